//! Turns an op's description into commands: texts become functions, buffers become addresses.

use super::call::{CudaError, CudaResult};
use super::code::{Convolution, CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch, CudaMap, Gemm};
use super::command::CudaCommand;
use super::gpu::Gpu;
use super::launch::KernelCall;
use super::map::{MapStep, Operand, map_kernel};
use crate::base::Dims;

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

/// A description in which every convolution is a call of cuDNN that has a choice, or the op's own launches; its scratch
/// memory is as large as that needs.
pub fn choose_kernel(gpu: &Gpu, kernel: CudaKernel) -> CudaKernel {
    if !kernel.launches.iter().any(|l| matches!(l, CudaLaunch::Convolution(_))) {
        return kernel;
    }
    let mut scratch_bytes = kernel.scratch_bytes;
    let mut launches = Vec::new();
    for launch in kernel.launches {
        let CudaLaunch::Convolution(mut convolution) = launch else {
            launches.push(launch);
            continue;
        };
        let choice = gpu.dnn().and_then(|dnn| dnn.choose(&convolution.geometry, convolution.of));
        match choice {
            None => launches.append(&mut convolution.own),
            Some(choice) => {
                convolution.own.clear();
                let (before, after) = (std::mem::take(&mut convolution.before), std::mem::take(&mut convolution.after));
                scratch_bytes = scratch_bytes.max(workspace_at(&convolution) + choice.workspace);
                launches.extend(before);
                launches.push(CudaLaunch::Convolution(convolution));
                launches.extend(after);
            }
        }
    }
    CudaKernel { launches, scratch_bytes, ..kernel }
}

/// Where the workspace starts in the scratch memory.
fn workspace_at(convolution: &Convolution) -> usize {
    convolution.scratch_bytes.next_multiple_of(256)
}

/// Compiles what these descriptions need, all in one go.
///
/// # Errors
/// What the compiler says.
pub fn prepare_kernels<'a>(gpu: &Gpu, kernels: impl Iterator<Item = &'a CudaKernel>) -> CudaResult<()> {
    let mut codes: Vec<CudaCode> = Vec::new();
    for launch in kernels.flat_map(|k| &k.launches) {
        let epilogue = match launch {
            CudaLaunch::Gemm(gemm) => epilogue(gemm),
            _ => None,
        };
        for launch in [Some(launch), epilogue.as_ref()].into_iter().flatten() {
            if let CudaLaunch::Code { code, .. } = launch {
                codes.push(code.clone());
            }
        }
    }
    gpu.context.kernels().prepare(&gpu.context, &codes)
}

/// The commands of a description whose texts are prepared.
///
/// # Errors
/// A product that the library refuses.
pub fn load_kernel(gpu: &Gpu, kernel: &CudaKernel, at: &Addresses<'_>) -> CudaResult<Vec<CudaCommand>> {
    let mut commands = Vec::with_capacity(kernel.launches.len());
    for launch in &kernel.launches {
        let command = load_launch(gpu, launch, at)?;
        let apart = match (&command, launch) {
            (CudaCommand::Gemm(product), CudaLaunch::Gemm(gemm)) if !product.has_epilogue() => epilogue(gemm),
            _ => None,
        };
        commands.push(command);
        if let Some(apart) = apart {
            commands.push(load_launch(gpu, &apart, at)?);
        }
    }
    Ok(commands)
}

/// Bias and ReLU of a product as a kernel of their own, for where cuBLASLt does not take them in.
fn epilogue(gemm: &Gemm) -> Option<CudaLaunch> {
    let (m, n, dtype) = (gemm.m, gemm.n, gemm.dtype);
    let whole: Dims = [m, n].as_slice().into();
    let mut steps = Vec::new();
    let (mut inputs, mut buffers) = (vec![(dtype, whole.clone())], vec![gemm.c]);
    if let Some(bias) = gemm.bias {
        let operands = vec![Operand::Input(0), Operand::Input(1)];
        steps.push(MapStep { map: CudaMap::new(CudaMap::SUM), dtype, operands });
        inputs.push((dtype, [n].as_slice().into()));
        buffers.push(bias);
    }
    if gemm.relu {
        let of = if steps.is_empty() { Operand::Input(0) } else { Operand::Step(0) };
        steps.push(MapStep { map: CudaMap::new(CudaMap::RELU), dtype, operands: vec![of] });
    }
    if steps.is_empty() {
        return None;
    }
    let launch = map_kernel(&steps, &inputs, &whole).ok()?.launches.into_iter().next()?;
    let CudaLaunch::Code { code, blocks, threads, shared_bytes, mut args } = launch else { return None };
    // The kernel's buffers are the product's.
    for arg in &mut args {
        match arg {
            CudaArg::Buffer(CudaBuffer::Input(i, 0)) => *arg = CudaArg::Buffer(buffers[*i]),
            CudaArg::Buffer(CudaBuffer::Output(..)) => *arg = CudaArg::Buffer(gemm.c),
            _ => {}
        }
    }
    Some(CudaLaunch::Code { code, blocks, threads, shared_bytes, args })
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
        CudaLaunch::Convolution(convolution) => {
            let dnn = gpu.dnn_handle()?;
            let choice = dnn.choose(&convolution.geometry, convolution.of).ok_or_else(|| {
                CudaError::refused("cudnnGetConvolutionAlgorithm", "the algorithm that was chosen is gone")
            })?;
            let workspace = CudaBuffer::Scratch(workspace_at(convolution));
            let buffers = [convolution.image, convolution.filter, convolution.output, workspace];
            CudaCommand::Convolution(dnn.prepare(&convolution.geometry, choice, buffers, |b| at.of(b))?)
        }
        CudaLaunch::Copy { from, to, bytes } => CudaCommand::Within(at.of(*to), at.of(*from), *bytes),
        CudaLaunch::Zero { to, bytes } => CudaCommand::Zero(at.of(*to), *bytes),
    })
}
