//! Ops that pass their input on: `StopGradient`, `PreventGradient`, and `Print`, which shows tensors as a step runs.

use super::like_input;
use super::no_kernel;
use super::support::{by_dtype, node};
use crate::base::{Array, Bool8, DType, bf16, f16};
use crate::device::{CpuKernel, Launch};
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor, Traits};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicI64, Ordering};

/// TensorFlow's `StopGradient`: the bytes of its input; gradients end here.
pub struct StopGradient;

impl Op for StopGradient {
    fn name(&self) -> &'static str {
        "StopGradient"
    }

    fn traits(&self) -> Traits {
        Traits { forwards: Some(0), no_gradient: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        like_input(c)
    }

    fn gradient<'g>(&self, _c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![None])
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        no_kernel()
    }

    fn cases(&self) -> Vec<Case> {
        let x = Array::scalar(2.5f32);
        vec![Case { attrs: Attrs::new(), inputs: vec![x.clone()], outputs: vec![x], gradient: false }]
    }
}

/// TensorFlow's `PreventGradient`: the bytes of its input; to ask for a gradient through it is an error, which attribute
/// `message` explains.
pub struct PreventGradient;

impl Op for PreventGradient {
    fn name(&self) -> &'static str {
        "PreventGradient"
    }

    fn traits(&self) -> Traits {
        Traits { forwards: Some(0), ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        like_input(c)
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let node = c.node.node()?;
        let why = node.attrs.str("message").unwrap_or_default();
        let message = format!("no gradient goes through '{}' (PreventGradient): {why}", node.name);
        Some(vec![Some(c.node.graph().report_invalid(message).into())])
    }

    fn cpu_kernel(&self, _c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        no_kernel()
    }

    fn cases(&self) -> Vec<Case> {
        let x = Array::scalar(2.5f32);
        let attrs = Attrs::new().with("message", "it is not written");
        vec![Case { attrs, inputs: vec![x.clone()], outputs: vec![x], gradient: false }]
    }
}

/// TensorFlow 1's `Print`: input 0 comes out, the other inputs are written to standard error. Attributes: `message`;
/// `first_n`, after how many runs it falls silent (-1: never); `summarize`, how many elements of each are shown.
pub struct Print;

impl Op for Print {
    fn name(&self) -> &'static str {
        "Print"
    }

    fn traits(&self) -> Traits {
        Traits { stateful: true, host_only: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        Ok(vec![c.inputs.first().ok_or("want at least one input, got none")?.clone()])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let rest = c.inputs.len().saturating_sub(1);
        Some(std::iter::once(Some(c.grad().into())).chain(vec![None; rest]).collect())
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let message = c.attrs.str("message").unwrap_or_default().to_string();
        let shown = usize::try_from(c.attrs.int("summarize").unwrap_or(3)).unwrap_or(usize::MAX);
        let left = AtomicI64::new(c.attrs.int("first_n").unwrap_or(-1));
        let sizes: Vec<_> = c.inputs.to_vec();
        Ok(Box::new(move |l| {
            by_dtype!(l.input_dtype(0), T => l.output::<T>(0).copy_from_slice(l.input::<T>(0)));
            // A negative count never reaches zero in practice: it would take 2^63 runs.
            if left.load(Ordering::Relaxed) == 0 {
                return Ok(());
            }
            left.fetch_sub(1, Ordering::Relaxed);
            let mut line = message.clone();
            for (i, desc) in sizes.iter().enumerate().skip(1) {
                line.push_str(&summary(l, i, desc.len(), shown));
            }
            // Where standard error is closed there is nobody to tell.
            let _ = writeln!(std::io::stderr(), "{line}");
            Ok(())
        }))
    }
}

/// The first elements of an input, as in `[1 2 3...]`.
pub(super) fn summary(l: &Launch<'_>, i: usize, len: usize, shown: usize) -> String {
    let mut text = String::from("[");
    for at in 0..len.min(shown) {
        let separator = if at == 0 { "" } else { " " };
        // Writing to a string does not fail.
        let _ = match l.input_dtype(i) {
            DType::Bool => write!(text, "{separator}{}", l.input::<Bool8>(i)[at].get()),
            DType::F32 => write!(text, "{separator}{}", l.input::<f32>(i)[at]),
            DType::F64 => write!(text, "{separator}{}", l.input::<f64>(i)[at]),
            DType::I32 => write!(text, "{separator}{}", l.input::<i32>(i)[at]),
            DType::I64 => write!(text, "{separator}{}", l.input::<i64>(i)[at]),
            DType::F16 => write!(text, "{separator}{}", l.input::<f16>(i)[at]),
            DType::BF16 => write!(text, "{separator}{}", l.input::<bf16>(i)[at]),
            DType::U8 => write!(text, "{separator}{}", l.input::<u8>(i)[at]),
            DType::Opaque(_) => Ok(()),
        };
    }
    text.push_str(if len > shown { "...]" } else { "]" });
    text
}

impl<'g> Tensor<'g> {
    /// The same values, through which no gradient flows.
    #[track_caller]
    pub fn stop_gradient(self) -> Tensor<'g> {
        self.graph().node_of(&StopGradient).input(self).tensor()
    }

    /// The same values; whenever they are computed, `message` and the first elements of `data` go to standard error.
    #[track_caller]
    pub fn print(self, data: &[Tensor<'g>], message: &str) -> Tensor<'g> {
        let node = node(self.graph(), "Print").input(self).inputs(data.iter().copied());
        node.attr("message", message).attr("first_n", -1i64).attr("summarize", 3i64).tensor()
    }
}
