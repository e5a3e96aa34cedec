//! `InTopKV2`: whether each row's target is among its `k` largest predictions, which accuracy counts.

use super::cuda_rows::{ROWS, rows_launch};
use super::support::{index_at, int_scalar, node, scoped};
use crate::base::{Array, Bool8, DType, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaCode, CudaKernel};
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor, Traits};

/// TensorFlow's `InTopKV2`: inputs predictions `[rows, classes]` (`float32`), targets `[rows]`, `k`. A row with a
/// number that is not finite, or a target that is no class, is false.
pub struct InTopKV2;

impl Op for InTopKV2 {
    fn name(&self) -> &'static str {
        "InTopKV2"
    }

    fn traits(&self) -> Traits {
        Traits { no_gradient: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(3)?;
        if c.dtype(0) != DType::F32 || !c.dtype(1).is_integer() {
            let (predictions, targets) = (c.dtype(0), c.dtype(1));
            return Err(format!("want float32 predictions and integer targets, got {predictions} and {targets}"));
        }
        int_scalar(c, 2, "k")?;
        let refuse = || {
            let (predictions, targets) = (c.shape(0), c.shape(1));
            format!("predictions must be [rows, classes] and targets [rows], got {predictions} and {targets}")
        };
        let rows = c.shape(1).merge(&Shape::of_rank(1)).ok_or_else(refuse)?;
        let both = c.shape(0).merge(&Shape::partial([rows.dim(0), None])).ok_or_else(refuse)?;
        Ok(vec![Fact::new(DType::Bool, Shape::partial([both.dim(0)]))])
    }

    fn gradient<'g>(&self, _c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![None; 3])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let classes = c.inputs[0].dims.get(1).copied().unwrap_or(0);
        Ok(Box::new(move |l| {
            let (predictions, target, k) = (l.input::<f32>(0), index_at(l, 1), index_at(l, 2)(0));
            for (row, out) in l.output::<Bool8>(0).iter_mut().enumerate() {
                let row_of = &predictions[row * classes..][..classes];
                let own = usize::try_from(target(row)).ok().and_then(|t| row_of.get(t).copied());
                let larger = |own: f32| row_of.iter().filter(|&&p| p > own).count() as i64;
                let can_say = row_of.iter().all(|p| p.is_finite());
                *out = own.is_some_and(|own| can_say && larger(own) < k).into();
            }
            Ok(())
        }))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let [rows, classes] = c.inputs[0].dims[..] else { return Err("predictions must be [rows, classes]".into()) };
        let args = [CudaArg::input(0), CudaArg::input(1), CudaArg::input(2), CudaArg::output(0)];
        let args = args.into_iter().chain([rows, classes].map(CudaArg::size));
        let code = CudaCode::new(format!("{ROWS}{}", include_str!("cuda/in_top_k.cu")))
            .with_type("I", c.inputs[1].dtype)
            .with_type("K", c.inputs[2].dtype);
        Ok(CudaKernel::new((rows > 0).then(|| rows_launch(code, DType::F32, (rows, classes), false, args))))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let build = || -> Option<Case> {
            let predictions = Array::new(&[2, 3], &[0.1f32, 0.3, 0.2, 0.5, 0.1, 0.2]).ok()?;
            let targets = Array::new(&[2], &[2i32, 1]).ok()?;
            let outputs = vec![Array::new(&[2], &[Bool8(1), Bool8(0)]).ok()?];
            let inputs = vec![predictions, targets, Array::scalar(2i32)];
            Some(Case { attrs: Attrs::new(), inputs, outputs, gradient: false })
        };
        build().into_iter().collect()
    }
}

impl<'g> Tensor<'g> {
    /// Whether each row's target is among the `k` largest of these predictions `[rows, classes]`. Named `in_top_k`.
    #[track_caller]
    pub fn in_top_k(self, targets: Tensor<'g>, k: i32) -> Tensor<'g> {
        let g = self.graph();
        scoped(g, "in_top_k", |_| {
            scoped(g, "InTopKV2", |name| {
                let k = g.constant_named("k", k);
                node(g, "InTopKV2").name(name).inputs([self, targets, k]).tensor()
            })
        })
    }
}
