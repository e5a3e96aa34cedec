//! Writes to variables: `AssignAdd`, `AssignSub`, the scatters, and the methods of variables that build them.
//!
//! The output of each is the variable's buffer afterwards; kernels do not touch it.

use super::cuda_indices::Indices;
use super::number::Number;
use super::state::{Assign, assigned, cuda_update};
use super::support::{index_at, no_arithmetic, update};
use crate::base::{DType, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaBuffer, CudaKernel, FailureText};
use crate::graph::{Attrs, Fact, InferContext, KernelContext, Op, OpRef, Tensor, Traits, Variable};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Runs a body with `T` as the Rust type of a numeric element type; the others are refused.
macro_rules! by_number {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            DType::F32 => {
                type $t = f32;
                Ok($body)
            }
            DType::F64 => {
                type $t = f64;
                Ok($body)
            }
            DType::I32 => {
                type $t = i32;
                Ok($body)
            }
            DType::I64 => {
                type $t = i64;
                Ok($body)
            }
            other => Err(no_arithmetic(other)),
        }
    };
}

/// TensorFlow's `AssignAdd`.
pub struct AssignAdd;

/// TensorFlow's `AssignSub`.
pub struct AssignSub;

fn numeric(c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
    let facts = assigned(c)?;
    match c.dtype(0) {
        other if !other.is_number() => Err(no_arithmetic(other)),
        _ => Ok(facts),
    }
}

fn accumulate<N: Number>(f: impl Fn(N, N) -> N + Copy + Send + Sync + 'static) -> CpuKernel {
    Box::new(move |l| {
        let (variable, value) = (l.variable::<N>(0), l.input::<N>(1));
        update(l.team(), variable, value, |out, values| {
            out.iter_mut().zip(values).for_each(|(o, &v)| *o = f(*o, v));
        });
        Ok(())
    })
}

macro_rules! accumulating {
    ($op:ident, $name:literal, $how:ident) => {
        impl Op for $op {
            fn name(&self) -> &'static str {
                $name
            }

            fn traits(&self) -> Traits {
                Traits { stateful: true, ..Traits::default() }
            }

            fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
                numeric(c)
            }

            fn written_inputs(&self, _attrs: &Attrs, _num_inputs: usize) -> SmallVec<[usize; 4]> {
                smallvec![0]
            }

            fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
                by_number!(c.inputs[0].dtype, N => accumulate::<N>(N::$how))
            }

            fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
                let step = concat!("turret_", stringify!($how), "(old, x)");
                Ok(cuda_update(step, c.inputs[0].dtype, c.inputs[0].len()))
            }

            fn has_cuda_kernel(&self, _attrs: &Attrs, outputs: &[Fact]) -> bool {
                has_sums(outputs)
            }
        }
    };
}

accumulating!(AssignAdd, "AssignAdd", plus);
accumulating!(AssignSub, "AssignSub", minus);

#[derive(Clone, Copy)]
enum Scatter {
    Add,
    Sub,
    Update,
}

/// TensorFlow's `ScatterAdd`: adds row `i` of the updates to row `indices[i]` of the variable.
pub struct ScatterAdd;

/// TensorFlow's `ScatterSub`.
pub struct ScatterSub;

/// TensorFlow's `ScatterUpdate`: overwrites rows; of equal indices the last wins.
pub struct ScatterUpdate;

/// The shape rule: updates have the shape `indices.shape + variable.shape[1..]`.
fn scattered(c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
    c.want_inputs(3)?;
    if !c.dtype(1).is_integer() {
        return Err(format!("indices must be int32 or int64, got {}", c.dtype(1)));
    }
    if c.dtype(2) != c.dtype(0) {
        return Err(format!("updates must have the variable's type: want {}, got {}", c.dtype(0), c.dtype(2)));
    }
    if c.dtype(0) == DType::Bool {
        return Err("rows of bools cannot be scattered; cast them to int32".into());
    }
    if let (Some(variable), Some(indices)) = (c.shape(0).dims(), c.shape(1).dims()) {
        let Some((_, width)) = variable.split_first() else {
            return Err("a scalar variable has no rows; assign it as a whole".into());
        };
        let want = Shape::partial(indices.iter().chain(width).copied());
        if !want.is_compatible_with(c.shape(2)) {
            return Err(format!("updates must have shape indices + row: want {want}, got {}", c.shape(2)));
        }
    }
    Ok(vec![c.inputs[0].clone()])
}

fn bad_index(entry: i64, index: i64, rows: usize) -> String {
    format!("index {index} (entry {entry}) is not in [0, {rows})")
}

fn has_sums(outputs: &[Fact]) -> bool {
    outputs.iter().all(|o| o.dtype != DType::Bool)
}

/// Sorts the indices, with a check of all, and then changes each row by its updates in their order.
fn scatter_cuda_kernel(c: &KernelContext<'_>, how: Scatter) -> Result<CudaKernel, String> {
    let (dims, dtype, count) = (&c.inputs[0].dims, c.inputs[1].dtype, c.inputs[1].len());
    let rows = *dims.first().ok_or("a scalar has no rows")?;
    let width = dims[1..].iter().product();
    let indices = Indices { buffer: CudaBuffer::Input(1, 0), dtype, count, bound: rows, negative: false, offset: 0 };
    if count == 0 {
        return Ok(CudaKernel::default());
    }
    let step = match how {
        Scatter::Add => "turret_plus(old, x)",
        Scatter::Sub => "turret_minus(old, x)",
        Scatter::Update => "x",
    };
    let mut sorted = indices.sort(0, true);
    let mut launches = std::mem::take(&mut sorted.launches);
    if width > 0 {
        launches.push(indices.scatter(step, c.inputs[0].dtype, width, CudaArg::input(0), CudaArg::input(2), &sorted));
    }
    let failure: FailureText = Arc::new(move |entry, index| bad_index(entry, index, rows));
    Ok(CudaKernel { scratch_bytes: sorted.scratch_end, failure: Some(failure), ..CudaKernel::new(launches) })
}

fn scatter_kernel(c: &KernelContext<'_>, how: Scatter) -> Result<CpuKernel, String> {
    fn kernel<N: Number>(
        rows: usize,
        width: usize,
        count: usize,
        f: impl Fn(N, N) -> N + Send + Sync + 'static,
    ) -> CpuKernel {
        Box::new(move |l| {
            let index = index_at(l, 1);
            // All indices are checked before anything is written.
            if let Some(i) = (0..count).find(|&i| !usize::try_from(index(i)).is_ok_and(|r| r < rows)) {
                return Err(bad_index(i as i64, index(i), rows));
            }
            let (variable, updates) = (l.variable::<N>(0), l.input::<N>(2));
            for (i, update) in updates.chunks_exact(width.max(1)).enumerate().take(count) {
                let row = &mut variable[index(i) as usize * width..][..width];
                row.iter_mut().zip(update).for_each(|(o, &v)| *o = f(*o, v));
            }
            Ok(())
        })
    }
    let dims = &c.inputs[0].dims;
    let (Some(&rows), count) = (dims.first(), c.inputs[1].len()) else { return Err("a scalar has no rows".into()) };
    let width = dims[1..].iter().product();
    by_number!(c.inputs[0].dtype, N => match how {
        Scatter::Add => kernel::<N>(rows, width, count, N::plus),
        Scatter::Sub => kernel::<N>(rows, width, count, N::minus),
        Scatter::Update => kernel::<N>(rows, width, count, |_, b| b),
    })
}

macro_rules! scatter {
    ($op:ident, $name:literal, $how:expr) => {
        impl Op for $op {
            fn name(&self) -> &'static str {
                $name
            }

            fn traits(&self) -> Traits {
                Traits { stateful: true, fallible: true, checks_before_writing: true, ..Traits::default() }
            }

            fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
                scattered(c)
            }

            fn written_inputs(&self, _attrs: &Attrs, _num_inputs: usize) -> SmallVec<[usize; 4]> {
                smallvec![0]
            }

            fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
                scatter_kernel(c, $how)
            }

            fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
                scatter_cuda_kernel(c, $how)
            }

            fn has_cuda_kernel(&self, _attrs: &Attrs, outputs: &[Fact]) -> bool {
                has_sums(outputs)
            }
        }
    };
}

scatter!(ScatterAdd, "ScatterAdd", Scatter::Add);
scatter!(ScatterSub, "ScatterSub", Scatter::Sub);
scatter!(ScatterUpdate, "ScatterUpdate", Scatter::Update);

impl<'g> Variable<'g> {
    #[track_caller]
    fn written_by(self, op: OpRef, values: &[Tensor<'g>]) -> Tensor<'g> {
        let node = self.op().graph().node_of(op).input(self.buffer());
        node.inputs(values.iter().copied()).colocate_with(self).tensor()
    }

    /// Overwrites the variable; the result is the variable afterwards.
    #[track_caller]
    pub fn assign(self, value: impl Into<Tensor<'g>>) -> Tensor<'g> {
        self.written_by(&Assign, &[value.into()])
    }

    /// Adds to the variable; the result is the variable afterwards.
    #[track_caller]
    pub fn assign_add(self, value: impl Into<Tensor<'g>>) -> Tensor<'g> {
        self.written_by(&AssignAdd, &[value.into()])
    }

    /// Subtracts from the variable; the result is the variable afterwards.
    #[track_caller]
    pub fn assign_sub(self, value: impl Into<Tensor<'g>>) -> Tensor<'g> {
        self.written_by(&AssignSub, &[value.into()])
    }

    /// Adds rows to the rows with these numbers; the result is the variable afterwards.
    #[track_caller]
    pub fn scatter_add(self, indices: Tensor<'g>, rows: Tensor<'g>) -> Tensor<'g> {
        self.written_by(&ScatterAdd, &[indices, rows])
    }

    /// Subtracts rows from the rows with these numbers; the result is the variable afterwards.
    #[track_caller]
    pub fn scatter_sub(self, indices: Tensor<'g>, rows: Tensor<'g>) -> Tensor<'g> {
        self.written_by(&ScatterSub, &[indices, rows])
    }

    /// Overwrites the rows with these numbers; the result is the variable afterwards.
    #[track_caller]
    pub fn scatter_update(self, indices: Tensor<'g>, rows: Tensor<'g>) -> Tensor<'g> {
        self.written_by(&ScatterUpdate, &[indices, rows])
    }
}
