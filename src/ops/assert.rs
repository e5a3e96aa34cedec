//! `Assert`: ends the step with an error unless a condition holds.

use super::barrier::summary;
use super::support::{bool_scalar, node};
use super::values::{bools, case_with, float};
use crate::base::Bool8;
use crate::device::CpuKernel;
use crate::graph::{Attrs, Case, Fact, Graph, InferContext, KernelContext, Op, Operation, Tensor, Traits};

/// TensorFlow's `Assert`: input 0 is the condition, the others are told where it does not hold, `summarize` elements of
/// each. Strings among them are left out, for turret holds none.
pub struct Assert;

impl Op for Assert {
    fn name(&self) -> &'static str {
        "Assert"
    }

    fn traits(&self) -> Traits {
        Traits { stateful: true, fallible: true, no_gradient: true, ..Traits::default() }
    }

    fn ignores_opaque_inputs(&self) -> bool {
        true
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        if c.inputs.is_empty() {
            return Err("want a condition, got no input".into());
        }
        bool_scalar(c, 0, "the condition")?;
        Ok(Vec::new())
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let shown = usize::try_from(c.attrs.int("summarize").unwrap_or(3)).unwrap_or(usize::MAX);
        let sizes: Vec<usize> = c.inputs.iter().map(|d| d.len()).collect();
        Ok(Box::new(move |l| {
            if l.input::<Bool8>(0)[0].get() {
                return Ok(());
            }
            let data: Vec<String> = (1..sizes.len()).map(|i| summary(l, i, sizes[i], shown)).collect();
            Err(format!("assertion failed: {}", data.join(" ")))
        }))
    }

    fn cases(&self) -> Vec<Case> {
        let attrs = Attrs::new().with("summarize", 2i64);
        vec![case_with(attrs, vec![bools(&[], &[true]), float(&[3], &[1.0, 2.0, 3.0])], vec![], false)]
    }
}

impl Graph {
    /// An operation that ends the step with an error, which tells the first elements of `data`, unless `condition`, a
    /// bool scalar, is true. It runs where something that runs depends on it.
    #[track_caller]
    pub fn assert<'g>(&'g self, condition: Tensor<'g>, data: &[Tensor<'g>]) -> Operation<'g> {
        node(self, "Assert").input(condition).inputs(data.iter().copied()).attr("summarize", 3i64).add()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Array;
    use crate::device::Team;
    use std::sync::Arc;

    #[test]
    fn a_condition_that_does_not_hold_tells_the_data() {
        let run = |holds: bool| {
            let inputs = [bools(&[], &[holds]), Array::new(&[4], &[1i32, 2, 3, 4]).unwrap()].map(Arc::new);
            crate::graph::evaluate(&Assert, &Attrs::new(), &inputs, &Team::new(1, "test")).map(|_| ())
        };
        assert_eq!(run(true), Ok(()));
        assert_eq!(run(false), Err("assertion failed: [1 2 3...]".into()));
    }
}
