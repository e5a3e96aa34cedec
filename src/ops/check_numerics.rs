//! `CheckNumerics`: ends the step where a tensor holds a NaN or an infinity.

use super::number::Number;
use super::values::{case_with, float};
use crate::base::DType;
use crate::device::CpuKernel;
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor, Traits};

/// TensorFlow's `CheckNumerics`: its input, and an error with the attribute `message` where an element is not finite.
pub struct CheckNumerics;

impl Op for CheckNumerics {
    fn name(&self) -> &'static str {
        "CheckNumerics"
    }

    fn traits(&self) -> Traits {
        Traits { in_place: &[0], fallible: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1)?;
        if !c.dtype(0).is_floating() {
            return Err(format!("only float32 and float64 have NaN and infinity, got {}", c.dtype(0)));
        }
        Ok(vec![c.inputs[0].clone()])
    }

    /// As in TensorFlow the gradient is checked too.
    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let message = c.node.node().and_then(|n| n.attrs.str("message").map(str::to_string)).unwrap_or_default();
        let message = format!("Not a number (NaN) or infinity (Inf) values detected in gradient. {message}");
        let graph = c.node.graph();
        Some(vec![Some(graph.node_of(&CheckNumerics).input(c.grad()).attr("message", message).tensor().into())])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let message = c.attrs.str("message").unwrap_or_default().to_string();
        Ok(match c.inputs[0].dtype {
            DType::F64 => checked::<f64>(message),
            _ => checked::<f32>(message),
        })
    }

    fn cases(&self) -> Vec<Case> {
        let mut attrs = Attrs::new();
        attrs.set("message", "the case");
        let values = float(&[3], &[1.0, f32::MAX, -0.0]);
        vec![
            case_with(attrs.clone(), vec![values.clone()], vec![values], false),
            case_with(attrs, vec![float(&[2], &[0.5, -2.0])], vec![float(&[2], &[0.5, -2.0])], true),
        ]
    }
}

fn checked<T: Number>(message: String) -> CpuKernel {
    Box::new(move |l| {
        let ((x, len), (o, _)) = (l.input_ptr::<T>(0), l.output_ptr::<T>(0));
        let (mut nan, mut infinite) = (0usize, 0usize);
        for i in 0..len {
            // SAFETY: the input has `len` elements, and nothing is written yet.
            let x = unsafe { x.add(i).read() };
            let differs = x.minus(x);
            if differs.partial_cmp(&T::ZERO).is_none() {
                if x.partial_cmp(&x).is_none() { nan += 1 } else { infinite += 1 }
            }
        }
        let what = match (nan, infinite) {
            (0, 0) => {
                // SAFETY: both have `len` elements; they may be one buffer.
                unsafe { std::ptr::copy(x, o, len) };
                return Ok(());
            }
            (_, 0) => "NaN",
            (0, _) => "Inf",
            _ => "Inf and NaN",
        };
        Err(format!("{message}: tensor had {what} values, {} of {len} elements", nan + infinite))
    })
}

impl<'g> Tensor<'g> {
    /// The same values; the step fails with this message where one of them is a NaN or an infinity.
    #[track_caller]
    pub fn check_numerics(self, message: &str) -> Tensor<'g> {
        self.graph().node_of(&CheckNumerics).input(self).attr("message", message.to_string()).tensor()
    }
}
