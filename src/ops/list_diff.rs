//! `ListDiff`: what one list of whole numbers has that another does not, as gradients of products ask for axes.
//!
//! Absent: lists that only the run computes, since they decide the size of the output.

use super::cuda_values::values_launches;
use super::support::int_vector;
use super::values::{array, case, case_with, ints};
use crate::base::{DType, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::CudaKernel;
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Traits};
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeSet;

/// TensorFlow's `ListDiff`: inputs two vectors; outputs the elements of the first that are not in the second, in their
/// order, and their places in the first, of type `out_idx` (`int32`).
pub struct ListDiff;

/// The elements that are left, and their places.
fn left(x: &[i64], y: &[i64]) -> [Vec<i64>; 2] {
    let without: BTreeSet<i64> = y.iter().copied().collect();
    let kept = || x.iter().enumerate().filter(|(_, v)| !without.contains(v));
    [kept().map(|(_, &v)| v).collect(), kept().map(|(i, _)| i as i64).collect()]
}

fn planned(c: &KernelContext<'_>) -> Result<[Vec<i64>; 2], String> {
    let lists = c.ints(0).zip(c.ints(1));
    let (x, y) = lists.ok_or("both lists must be known when the step is planned")?;
    Ok(left(&x, &y))
}

impl Op for ListDiff {
    fn name(&self) -> &'static str {
        "ListDiff"
    }

    fn traits(&self) -> Traits {
        Traits { no_gradient: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(2)?;
        let dtype = c.same_dtype()?;
        let places = c.attrs.dtype("out_idx").unwrap_or(DType::I32);
        if !places.is_integer() {
            return Err(format!("attribute 'out_idx' must be int32 or int64, got {places}"));
        }
        let shape = match (int_vector(c, 0, "the first list")?, int_vector(c, 1, "the second list")?) {
            (Some(x), Some(y)) => Shape::known(&[left(&x, &y)[0].len()]),
            _ => Shape::of_rank(1),
        };
        Ok(vec![Fact::new(dtype, shape.clone()), Fact::new(places, shape)])
    }

    fn gradient<'g>(&self, _c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![None, None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![0, 1]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let lists = planned(c)?;
        let wide = [0, 1].map(|i| c.outputs[i].dtype == DType::I64);
        Ok(Box::new(move |l| {
            for (i, list) in lists.iter().enumerate() {
                if wide[i] {
                    l.output::<i64>(i).copy_from_slice(list);
                } else {
                    // Elements come from an int32 list, and places are fewer than those.
                    l.output::<i32>(i).iter_mut().zip(list).for_each(|(o, &v)| *o = v as i32);
                }
            }
            Ok(())
        }))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let lists = planned(c)?;
        let write = |(i, list): (usize, &Vec<i64>)| values_launches(i, c.outputs[i].dtype, list);
        Ok(CudaKernel::new(lists.iter().enumerate().flat_map(write)))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let wide = Attrs::new().with("out_idx", DType::I64);
        vec![
            case(vec![ints(&[0, 1, 2, 3, 1]), ints(&[2, 0])], vec![ints(&[1, 3, 1]), ints(&[1, 3, 4])], false),
            case(vec![ints(&[4]), ints(&[4, 5])], vec![ints(&[]), ints(&[])], false),
            case_with(
                wide,
                vec![array(&[2], &[1i64 << 40, 7]), array(&[0], &[0i64; 0])],
                vec![array(&[2], &[1i64 << 40, 7]), array(&[2], &[0i64, 1])],
                false,
            ),
        ]
    }
}
