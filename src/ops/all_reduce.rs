//! `AllReduceN`: the sum of one tensor from each of several devices, for each of them.
//!
//! Absent: NCCL. Where the inputs lie on as many CUDA GPUs that it reaches, planning makes one collective call of such a
//! node; everywhere else the kernels here run on the node's own device.

use super::add_n::{sum_kernel, summed};
use super::values::{case_with, float, ints};
use crate::base::DType;
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch};
use crate::graph::{
    Attrs, Case, Cost, Fact, GradContext, Graph, InferContext, InputGradients, KernelContext, Op, Tensor, Traits,
};

/// N tensors of one type and shape, one from each device; N outputs, each the sum of all, in the order of the inputs.
/// turret's own, for TensorFlow's group of N `NcclAllReduce` nodes, whose attribute `reduction` it has, and `N` for
/// their `num_devices`. One NCCL call may sum in another order, but in the same one on every run.
pub struct AllReduceN;

/// The most inputs that one kernel reads, and the most outputs that one writes.
const AT_ONCE: usize = 32;

impl Op for AllReduceN {
    fn name(&self) -> &'static str {
        "AllReduceN"
    }

    fn traits(&self) -> Traits {
        Traits { in_place: &[0], ..Traits::default() }
    }

    fn is_all_reduce(&self) -> bool {
        true
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        let n = c.inputs.len();
        if let Some(told) = c.attrs.int("N").filter(|&told| told != n as i64) {
            return Err(format!("want {told} inputs, as 'N' says, got {n}"));
        }
        if let Some(reduction) = c.attrs.str("reduction").filter(|r| *r != "sum") {
            return Err(format!(
                "the reduction must be 'sum', got '{reduction}'; divide or compare the sums afterwards"
            ));
        }
        Ok(vec![summed(c)?; n])
    }

    /// Every input is in every output, so that the gradients are all-reduced in turn.
    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let grads: Vec<Tensor<'g>> = c.grads.iter().flatten().copied().collect();
        let graph = c.node.graph();
        if grads.len() == c.inputs.len() {
            return Some(graph.all_reduce_n(grads).into_iter().map(|g| Some(g.into())).collect());
        }
        let sum = if let [one] = grads[..] { one } else { graph.add_n(grads) };
        Some(c.inputs.iter().map(|_| Some(sum.into())).collect())
    }

    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        let bytes = c.inputs.iter().chain(c.outputs).map(|d| d.bytes() as f64).sum();
        Cost { flops: (c.inputs.len() - 1) as f64 * c.outputs[0].len() as f64, bytes }
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        sum_kernel(c.outputs[0].dtype)
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let (n, desc) = (c.inputs.len(), &c.outputs[0]);
        if desc.is_empty() {
            return Ok(CudaKernel::default());
        }
        let mut launches = Vec::new();
        let (mut taken, mut before) = (0, None);
        while taken < n {
            // The sum so far stays apart from output 0, which may be the buffer of an input that is still to come.
            let end = n.min(taken + AT_ONCE - usize::from(before.is_some()));
            let from: Vec<_> = before.into_iter().chain((taken..end).map(|i| CudaBuffer::Input(i, 0))).collect();
            let to: Vec<_> = match end == n {
                true => (0..n.min(AT_ONCE)).map(|i| CudaBuffer::Output(i, 0)).collect(),
                false => vec![CudaBuffer::Scratch(0)],
            };
            launches.push(launch(desc.dtype, desc.len(), &from, &to));
            (taken, before) = (end, Some(CudaBuffer::Scratch(0)));
        }
        let (from, bytes) = (CudaBuffer::Output(0, 0), desc.bytes());
        launches.extend((AT_ONCE..n).map(|i| CudaLaunch::Copy { from, to: CudaBuffer::Output(i, 0), bytes }));
        let scratch_bytes = if n > AT_ONCE { bytes } else { 0 };
        Ok(CudaKernel { scratch_bytes, ..CudaKernel::new(launches) })
    }

    fn cases(&self) -> Vec<Case> {
        let x = |values: &[f32; 4]| float(&[2, 2], values);
        let (a, b) = (x(&[1.0, 2.0, 3.0, 4.0]), x(&[0.5, -2.0, 1.0, 0.0]));
        let attrs = |n: i64| Attrs::new().with("N", n).with("reduction", "sum");
        let many: Vec<f32> = (0..1500).map(|i| i as f32).collect();
        let four: Vec<f32> = many.iter().map(|v| 4.0 * v).collect();
        let sum = ints(&[4, i32::MIN + 1]);
        let (whole, of_40) = (float(&[3], &[1.0, -2.0, 0.5]), float(&[3], &[40.0, -80.0, 20.0]));
        vec![
            case_with(attrs(2), vec![a.clone(), b], vec![x(&[1.5, 0.0, 4.0, 4.0]); 2], true),
            case_with(attrs(1), vec![a.clone()], vec![a], true),
            case_with(attrs(4), vec![float(&[1500], &many); 4], vec![float(&[1500], &four); 4], false),
            case_with(attrs(2), vec![ints(&[1, 2]), ints(&[3, i32::MAX])], vec![sum; 2], false),
            case_with(attrs(40), vec![whole; 40], vec![of_40; 40], false),
        ]
    }
}

/// A kernel that adds what is in some buffers, in order, and writes the sum to others.
fn launch(dtype: DType, len: usize, from: &[CudaBuffer], to: &[CudaBuffer]) -> CudaLaunch {
    let parameters = (0..from.len()).map(|i| format!(", const T* x{i}"));
    let parameters: String = parameters.chain((0..to.len()).map(|i| format!(", T* y{i}"))).collect();
    let adds: String = (1..from.len()).map(|i| format!("        sum = turret_plus(sum, x{i}[i]);\n")).collect();
    let stores: String = (0..to.len()).map(|i| format!("        y{i}[i] = sum;\n")).collect();
    let text = format!(
        "extern \"C\" __global__ void ENTRY(long long n{parameters}) {{\n    \
         long long step = (long long)blockDim.x * gridDim.x;\n    \
         for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {{\n        \
         T sum = x0[i];\n{adds}{stores}    }}\n}}\n"
    );
    let buffers = from.iter().chain(to).map(|b| CudaArg::Buffer(*b));
    let args = std::iter::once(CudaArg::size(len)).chain(buffers);
    CudaLaunch::elements(CudaCode::new(text).with_type("T", dtype), len, args)
}

impl Graph {
    /// For each of these tensors of one shape, one from each device, the sum of all. Named `AllReduceN`; planning makes one
    /// NCCL call of it where the tensors lie on CUDA GPUs that NCCL reaches.
    #[track_caller]
    pub fn all_reduce_n<'g>(&'g self, tensors: impl IntoIterator<Item = Tensor<'g>>) -> Vec<Tensor<'g>> {
        let tensors: Vec<Tensor<'g>> = tensors.into_iter().collect();
        let count = tensors.len();
        let node = self.node_of(&AllReduceN).inputs(tensors).attr("N", count as i64).attr("reduction", "sum").add();
        super::split::parts(node, count)
    }
}
