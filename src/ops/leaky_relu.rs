//! `LeakyRelu` and `LeakyReluGrad`: a rectifier that lets a share of negative values through, given by an attribute.

use super::elementwise::{Map1, Map2, Plain, Wide, binary, unary};
use super::number::Number;
use super::values::{array, case, case_with, float};
use crate::base::DType;
use crate::device::CpuKernel;
use crate::device::cuda::CudaMap;
use crate::graph::{
    Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, OpRef, Tensor, Traits,
};

/// TensorFlow's `LeakyRelu` with attribute `alpha` (0.2): `x` above zero, else `alpha · x`.
pub struct LeakyRelu;

/// TensorFlow's `LeakyReluGrad` with attribute `alpha` (0.2): input 0, the gradient, where input 1, the relu's input, is
/// above zero, else `alpha` times it.
pub struct LeakyReluGrad;

/// The share, in the type of the elements.
#[derive(Clone, Copy)]
struct Leak<T>(T);

impl<T: Number> Map1<T, T> for Leak<T> {
    #[inline(always)]
    fn at(self, x: T) -> T {
        if x > T::ZERO { x } else { x.times(self.0) }
    }
}

impl<T: Number> Map2<T, T> for Leak<T> {
    #[inline(always)]
    fn at(self, grad: T, x: T) -> T {
        if x > T::ZERO { grad } else { grad.times(self.0) }
    }
}

fn alpha(attrs: &Attrs) -> f32 {
    attrs.float("alpha").unwrap_or(0.2)
}

/// The share as a number of CUDA C.
fn alpha_text(attrs: &Attrs) -> String {
    format!("{:e}f", alpha(attrs))
}

fn inferred(c: &InferContext<'_>, count: usize) -> Result<Vec<Fact>, String> {
    c.want_inputs(count)?;
    let dtype = c.same_dtype()?;
    if !matches!(dtype, DType::F32 | DType::F64) {
        return Err(format!("want float32 or float64, got {dtype}; cast the input"));
    }
    if !alpha(c.attrs).is_finite() {
        return Err(format!("attribute 'alpha' must be finite, got {}", alpha(c.attrs)));
    }
    let shape = (1..count).try_fold(c.shape(0).clone(), |shape, i| {
        let merged = shape.merge(c.shape(i));
        merged.ok_or_else(|| format!("both inputs must have one shape, got {} and {}", c.shape(0), c.shape(1)))
    })?;
    Ok(vec![Fact::new(dtype, shape)])
}

fn with_alpha<'g>(op: OpRef, c: &GradContext<'g>, inputs: [Tensor<'g>; 2]) -> Option<Tensor<'g>> {
    let alpha = alpha(&c.node.node()?.attrs);
    Some(c.node.graph().node_of(op).inputs(inputs).attr("alpha", alpha).tensor())
}

impl Op for LeakyRelu {
    fn name(&self) -> &'static str {
        "LeakyRelu"
    }

    fn traits(&self) -> Traits {
        Traits { in_place: &[0], ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        inferred(c, 1)
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![Some(with_alpha(&LeakyReluGrad, c, [c.grad(), c.inputs[0]])?.into())])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let alpha = alpha(c.attrs);
        Ok(match c.inputs[0].dtype {
            DType::F32 => unary::<f32, f32, _, Wide>(0, Leak(alpha)),
            DType::F64 => unary::<f64, f64, _, Plain>(0, Leak(f64::from(alpha))),
            other => return Err(format!("there is no kernel for {other}")),
        })
    }

    fn cuda_map(&self, c: &KernelContext<'_>) -> Option<CudaMap> {
        Some(CudaMap::new(format!("$0 > 0 ? $0 : $0 * {}", alpha_text(c.attrs))))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let x = float(&[2, 2], &[-2.0, -0.5, 0.25, 3.0]);
        let leaks = Attrs::new().with("alpha", 0.5f32);
        let nan = float(&[2], &[f32::NAN, f32::NEG_INFINITY]);
        vec![
            case(vec![x.clone()], vec![float(&[2, 2], &[-0.4, -0.1, 0.25, 3.0])], true),
            case_with(leaks.clone(), vec![x], vec![float(&[2, 2], &[-1.0, -0.25, 0.25, 3.0])], true),
            case_with(leaks, vec![array(&[2], &[-1.0f64, 1.0])], vec![array(&[2], &[-0.5f64, 1.0])], true),
            case(vec![nan.clone()], vec![nan], false),
        ]
    }
}

impl Op for LeakyReluGrad {
    fn name(&self) -> &'static str {
        "LeakyReluGrad"
    }

    fn traits(&self) -> Traits {
        Traits { in_place: &[0, 1], ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        inferred(c, 2)
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let x = c.inputs[1];
        let first = with_alpha(&LeakyReluGrad, c, [c.grad(), x])?;
        Some(vec![Some(first.into()), Some(x.zeros_like().into())])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let (x, y, o, alpha) = (&c.inputs[0].dims, &c.inputs[1].dims, &c.outputs[0].dims, alpha(c.attrs));
        Ok(match c.inputs[0].dtype {
            DType::F32 => binary::<f32, f32, _, Wide>(x, y, o, Leak(alpha)),
            DType::F64 => binary::<f64, f64, _, Plain>(x, y, o, Leak(f64::from(alpha))),
            other => return Err(format!("there is no kernel for {other}")),
        })
    }

    fn cuda_map(&self, c: &KernelContext<'_>) -> Option<CudaMap> {
        Some(CudaMap::new(format!("$1 > 0 ? $0 : $0 * {}", alpha_text(c.attrs))))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let inputs = || vec![float(&[3], &[1.5, -2.0, 3.0]), float(&[3], &[0.5, -1.0, -2.0])];
        let leaks = Attrs::new().with("alpha", 0.5f32);
        vec![
            case(inputs(), vec![float(&[3], &[1.5, -0.4, 0.6])], true),
            case_with(leaks, inputs(), vec![float(&[3], &[1.5, -1.0, 1.5])], true),
        ]
    }
}

impl<'g> Tensor<'g> {
    /// This where it is above zero, else `alpha` times it. Named `LeakyRelu`.
    #[track_caller]
    pub fn leaky_relu(self, alpha: f32) -> Tensor<'g> {
        self.graph().node_of(&LeakyRelu).input(self).attr("alpha", alpha).tensor()
    }
}
