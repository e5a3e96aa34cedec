//! Turns an op's description into commands: texts become functions, buffers become addresses.

use super::call::CudaResult;
use super::code::{CudaArg, CudaBuffer, CudaKernel, CudaLaunch};
use super::gpu::Gpu;
use super::launch::KernelCall;
use super::step::CudaCommand;

/// Where a node's buffers are.
pub struct Addresses<'a> {
    /// Its inputs.
    pub inputs: &'a [u64],
    /// Its outputs.
    pub outputs: &'a [u64],
    /// Its scratch memory.
    pub scratch: u64,
    /// Its state.
    pub state: u64,
    /// The words that checks report to, 0 where nothing in the step can fail.
    pub failure: u64,
    /// Its number in the step.
    pub node: u32,
}

impl Addresses<'_> {
    fn of(&self, buffer: CudaBuffer) -> u64 {
        match buffer {
            CudaBuffer::Input(i, at) => self.inputs[i] + at as u64,
            CudaBuffer::Output(i, at) => self.outputs[i] + at as u64,
            CudaBuffer::Scratch(at) => self.scratch + at as u64,
            CudaBuffer::State(at) => self.state + at as u64,
        }
    }
}

/// Compiles what these descriptions need, all in one go.
///
/// # Errors
/// What the compiler says.
pub fn prepare_kernels<'a>(gpu: &Gpu, kernels: impl Iterator<Item = &'a CudaKernel>) -> CudaResult<()> {
    let codes = kernels.flat_map(|k| &k.launches).filter_map(|l| match l {
        CudaLaunch::Code { code, .. } => Some(code),
        _ => None,
    });
    gpu.context.kernels().prepare(&gpu.context, codes)
}

/// The commands of a description whose texts are prepared.
///
/// # Errors
/// A product that the library refuses.
pub fn load_kernel(gpu: &Gpu, kernel: &CudaKernel, at: &Addresses<'_>) -> CudaResult<Vec<CudaCommand>> {
    kernel.launches.iter().map(|l| load_launch(gpu, l, at)).collect()
}

fn load_launch(gpu: &Gpu, launch: &CudaLaunch, at: &Addresses<'_>) -> CudaResult<CudaCommand> {
    Ok(match launch {
        CudaLaunch::Code { code, blocks, threads, shared_bytes, args } => {
            let function = gpu.context.kernels().function(code)?;
            let mut values = Vec::with_capacity(args.len() + 1);
            for arg in args {
                match *arg {
                    CudaArg::Buffer(buffer) => values.push(at.of(buffer)),
                    CudaArg::Failure => values.extend([at.failure, u64::from(at.node)]),
                    CudaArg::I32(v) => values.push(u64::from(v as u32)),
                    CudaArg::U32(v) => values.push(u64::from(v)),
                    CudaArg::I64(v) => values.push(v as u64),
                    CudaArg::U64(v) => values.push(v),
                    CudaArg::F32(v) => values.push(u64::from(v.to_bits())),
                    CudaArg::F64(v) => values.push(v.to_bits()),
                }
            }
            CudaCommand::Kernel(KernelCall::new(function, *blocks, *threads, *shared_bytes, values))
        }
        CudaLaunch::Gemm(gemm) if gemm.k == 0 => CudaCommand::Zero(at.of(gemm.c), gemm.m * gemm.n * gemm.dtype.size()),
        CudaLaunch::Gemm(gemm) => CudaCommand::Gemm(gpu.blas()?.prepare(gemm, |b| at.of(b))?),
        CudaLaunch::Copy { from, to, bytes } => CudaCommand::Within(at.of(*to), at.of(*from), *bytes),
        CudaLaunch::Zero { to, bytes } => CudaCommand::Zero(at.of(*to), *bytes),
    })
}
