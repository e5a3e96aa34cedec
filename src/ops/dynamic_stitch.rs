//! `DynamicStitch`: rows of several tensors put together by row numbers that are known when the step is planned.
//!
//! Absent: row numbers that only the run computes, since they decide the size of the output.

use super::copy::{Copy, Move, zero_and_move_kernel};
use super::cuda_copy;
use super::support::{build, sized};
use super::values::{array, case, float, ints};
use crate::base::{Array, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::CudaKernel;
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// TensorFlow's `DynamicStitch` and `ParallelDynamicStitch`: inputs `N` tensors of row numbers (`int32`), then `N` of rows:
/// `output[indices[m][i, …], …] = data[m][i, …, …]`. Of equal numbers the last wins; rows that nothing names are zero.
pub struct StitchOp {
    name: &'static str,
}

/// TensorFlow's `DynamicStitch`.
pub static DYNAMIC_STITCH: StitchOp = StitchOp { name: "DynamicStitch" };
/// TensorFlow's `ParallelDynamicStitch`, in which equal numbers are the program's fault; here the last wins too.
pub static PARALLEL_DYNAMIC_STITCH: StitchOp = StitchOp { name: "ParallelDynamicStitch" };

/// Where each row comes from: the tensor of data, and which of its rows.
type Rows = BTreeMap<usize, (usize, usize)>;

fn rows(indices: &[Vec<i64>]) -> Result<Rows, String> {
    let mut rows = Rows::new();
    for (tensor, indices) in indices.iter().enumerate() {
        for (i, &row) in indices.iter().enumerate() {
            let row =
                usize::try_from(row).map_err(|_| format!("row number {row} (of indices {tensor}) is negative"))?;
            rows.insert(row, (tensor, i));
        }
    }
    Ok(rows)
}

/// Half of the inputs: as many tensors of indices as of data.
fn half(num_inputs: usize) -> Result<usize, String> {
    match num_inputs {
        n if n >= 2 && n % 2 == 0 => Ok(n / 2),
        n => Err(format!("want as many tensors of indices as of data, got {n} inputs")),
    }
}

fn stitched(c: &KernelContext<'_>) -> Result<Vec<Move>, String> {
    let n = half(c.inputs.len())?;
    let indices: Option<Vec<Vec<i64>>> = (0..n).map(|i| c.ints(i)).collect();
    let rows = rows(&indices.ok_or("the row numbers must be known when the step is planned")?)?;
    let width: usize = c.outputs[0].dims.iter().skip(1).product();
    let mut moves: Vec<(usize, usize, usize, usize)> = Vec::new();
    for (to, (tensor, from)) in rows {
        match moves.last_mut() {
            // Rows that follow each other in both are copied together.
            Some((t, f, at, len)) if *t == tensor && *f + *len == from && *at + *len == to => *len += 1,
            _ => moves.push((tensor, from, to, 1)),
        }
    }
    let start = |row: usize| (row * width) as isize;
    let copy = |(tensor, from, to, len): (usize, usize, usize, usize)| Move {
        input: n + tensor,
        output: 0,
        copy: Copy::new(&[len * width], start(from), &[1], start(to), &[1]),
    };
    Ok(if width == 0 { Vec::new() } else { moves.into_iter().map(copy).collect() })
}

impl Op for StitchOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        let n = half(c.inputs.len())?;
        let dtype = c.dtype(n);
        let mut row = Shape::unknown();
        for i in 0..n {
            let (indices, data) = (c.shape(i), c.shape(n + i));
            if !c.dtype(i).is_integer() || c.dtype(n + i) != dtype {
                let (indices, data) = (c.dtype(i), c.dtype(n + i));
                return Err(format!(
                    "want integer indices and data of one type, got {indices} and {data} beside {dtype}"
                ));
            }
            let (Some(indices), Some(of)) = (indices.dims(), data.dims()) else { continue };
            let prefix = Shape::partial(of.iter().take(indices.len()).copied());
            if !prefix.is_compatible_with(c.shape(i)) {
                return Err(format!("data {i} must begin with the shape of its indices {}, got {data}", c.shape(i)));
            }
            let own = Shape::partial(of[indices.len()..].iter().copied());
            row = row.merge(&own).ok_or_else(|| format!("the rows of data {i} have shape {own}, others {row}"))?;
        }
        let indices: Option<Vec<Vec<i64>>> = (0..n).map(|i| c.ints(i)).collect();
        let count = match indices {
            Some(indices) => Some(rows(&indices)?.last_key_value().map_or(0, |(row, _)| row + 1)),
            None => None,
        };
        let shape = match row.dims() {
            Some(row) => Shape::partial([count].into_iter().chain(row.iter().copied())),
            None => Shape::unknown(),
        };
        Ok(vec![sized(dtype, shape)?])
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let n = half(c.inputs.len()).ok()?;
        let of_data =
            c.inputs[..n].iter().map(|&indices| Some(build("Gather", "GatherV2", &[c.grad(), indices]).into()));
        Some(std::iter::repeat_n(None, n).chain(of_data).collect())
    }

    fn planned_inputs(&self, num_inputs: usize) -> SmallVec<[usize; 2]> {
        (0..num_inputs / 2).collect()
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        Ok(zero_and_move_kernel(c.outputs[0].dtype, stitched(c)?))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        Ok(cuda_copy::zero_and_moves(c.outputs[0].dtype, c.outputs[0].bytes(), &stitched(c)?))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let scalar = Array::scalar(3i32);
        vec![
            case(
                vec![ints(&[0, 2]), ints(&[1]), float(&[2], &[1.0, 2.0]), float(&[1], &[5.0])],
                vec![float(&[3], &[1.0, 5.0, 2.0])],
                true,
            ),
            case(
                vec![ints(&[0]), scalar, float(&[1, 2], &[1.0, 2.0]), float(&[2], &[5.0, 6.0])],
                vec![float(&[4, 2], &[1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 5.0, 6.0])],
                true,
            ),
            // Of equal numbers the last wins.
            case(vec![ints(&[0, 1]), ints(&[1]), ints(&[7, 8]), ints(&[9])], vec![ints(&[7, 9])], false),
            case(
                vec![array(&[2, 2], &[3i32, 0, 1, 2]), array(&[2, 2], &[1i64, 2, 3, 4])],
                vec![array(&[4], &[2i64, 3, 4, 1])],
                false,
            ),
            case(vec![ints(&[]), float(&[0, 3], &[])], vec![float(&[0, 3], &[])], false),
        ]
    }
}
