//! `CheckNumerics`: its input, or an error where that has NaN or infinite elements.

use super::elementwise::{Dispatch, GRAIN, Plain, Wide};
use super::values::{case_with, float};
use crate::base::{DType, Element};
use crate::device::CpuKernel;
use crate::device::cuda::{BLOCK, CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch, FailureText};
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor, Traits};
use pulp::NullaryFnOnce;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// TensorFlow's `CheckNumerics`, with attribute `message`, which its error carries.
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
            return Err(format!("want float32 or float64, got {}, which is always a number", c.dtype(0)));
        }
        super::like_input(c)
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let node = c.node.node()?;
        let message = node.attrs.str("message").unwrap_or_default();
        let message = format!("Not a number (NaN) or infinity (Inf) values detected in gradient. {message}");
        Some(vec![Some(c.grad().check_numerics(&message).into())])
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let message = c.attrs.str("message").unwrap_or_default().to_string();
        match c.inputs[0].dtype {
            DType::F32 => Ok(check::<f32, Wide>(message, f32::is_nan, f32::is_infinite)),
            DType::F64 => Ok(check::<f64, Plain>(message, f64::is_nan, f64::is_infinite)),
            other => Err(format!("there is no kernel for {other}")),
        }
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let (dtype, len) = (c.inputs[0].dtype, c.inputs[0].len());
        if len == 0 {
            return Ok(CudaKernel::default());
        }
        // Few elements are one block's, which needs no second launch.
        let blocks = if len <= 1 << 13 { 1 } else { len.div_ceil(1 << 11).min(1 << 12) };
        let launch = |text: &str, blocks: usize, args: Vec<CudaArg>| {
            let code = CudaCode::new(format!("{}{text}", include_str!("cuda/numerics_tell.cu"))).with_type("T", dtype);
            CudaLaunch::Code { code, blocks: blocks as u32, threads: BLOCK, shared_bytes: 0, args }
        };
        let counts = CudaArg::Buffer(CudaBuffer::Scratch(0));
        let args = vec![CudaArg::input(0), CudaArg::output(0), counts, CudaArg::Failure, CudaArg::size(len)];
        let mut launches = vec![launch(include_str!("cuda/numerics.cu"), blocks, args)];
        if blocks > 1 {
            let args = vec![counts, CudaArg::Failure, CudaArg::size(blocks)];
            launches.push(launch(include_str!("cuda/numerics_total.cu"), 1, args));
        }
        let message = c.attrs.str("message").unwrap_or_default().to_string();
        let failure: FailureText =
            Arc::new(move |kind, count| found(&message, kind & 1 != 0, kind & 2 != 0, count, len));
        Ok(CudaKernel { scratch_bytes: 16 * blocks, failure: Some(failure), ..CudaKernel::new(launches) })
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let attrs = Attrs::new().with("message", "the loss");
        let x = float(&[2], &[1.0, f32::MAX]);
        vec![
            case_with(attrs.clone(), vec![x.clone()], vec![x], false),
            case_with(attrs, vec![float(&[3], &[1.0, -2.0, 0.5])], vec![], true),
        ]
    }
}

/// The error: which of the two there were, and how many of them in all.
fn found(message: &str, nan: bool, infinite: bool, count: i64, len: usize) -> String {
    let what = match (nan, infinite) {
        (_, false) => "NaN",
        (false, _) => "Inf",
        _ => "Inf and NaN",
    };
    format!("{message}: tensor had {what} values, {count} of {len} elements")
}

fn check<T: Element, D: Dispatch>(message: String, nan: fn(T) -> bool, infinite: fn(T) -> bool) -> CpuKernel
where
    for<'a> Bad<'a, T>: NullaryFnOnce<Output = ()>,
{
    Box::new(move |l| {
        let ((x, len), (o, _)) = (l.input_ptr::<T>(0), l.output_ptr::<T>(0));
        // SAFETY: the input has `len` elements, and nothing writes them while this is borrowed.
        let input = unsafe { std::slice::from_raw_parts(x, len) };
        let bad = AtomicBool::new(false);
        l.team().chunks(len, GRAIN, |r| D::run(Bad { x: &input[r], found: &bad }));
        if bad.load(Ordering::Relaxed) {
            let count = |is: fn(T) -> bool| input.iter().filter(|v| is(**v)).count();
            let (nan, infinite) = (count(nan), count(infinite));
            return Err(found(&message, nan > 0, infinite > 0, (nan + infinite) as i64, len));
        }
        if !std::ptr::eq(x, o) {
            // SAFETY: both have `len` elements; they are two buffers.
            unsafe { std::ptr::copy_nonoverlapping(x, o, len) };
        }
        Ok(())
    })
}

/// Looks for elements that are no numbers.
struct Bad<'a, T> {
    x: &'a [T],
    found: &'a AtomicBool,
}

macro_rules! bad {
    ($t:ty) => {
        impl NullaryFnOnce for Bad<'_, $t> {
            type Output = ();

            #[inline(always)]
            fn call(self) {
                let bad = self.x.iter().fold(0u32, |n, v| n | u32::from(!v.is_finite()));
                if bad != 0 {
                    self.found.store(true, Ordering::Relaxed);
                }
            }
        }
    };
}
bad!(f32);
bad!(f64);

impl<'g> Tensor<'g> {
    /// The tensor itself; a step in which it has NaN or infinite elements ends with an error that carries the message.
    #[track_caller]
    pub fn check_numerics(self, message: &str) -> Tensor<'g> {
        self.graph().node_of(&CheckNumerics).input(self).attr("message", message).tensor()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Team;

    #[test]
    fn the_error_says_which_and_carries_the_message() {
        let attrs = Attrs::new().with("message", "the loss");
        let run = |values: &[f32]| {
            let x = Arc::new(float(&[values.len()], values));
            crate::graph::evaluate(&CheckNumerics, &attrs, &[x], &Team::new(1, "test")).map(|_| ())
        };
        assert_eq!(run(&[1.0, f32::NAN]), Err("the loss: tensor had NaN values, 1 of 2 elements".into()));
        assert_eq!(run(&[f32::INFINITY]), Err("the loss: tensor had Inf values, 1 of 1 elements".into()));
        assert_eq!(
            run(&[f32::NEG_INFINITY, f32::NAN]),
            Err("the loss: tensor had Inf and NaN values, 2 of 2 elements".into())
        );
        assert_eq!(run(&[0.0]), Ok(()));
    }
}
