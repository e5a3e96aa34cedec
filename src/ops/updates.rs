//! Writes to variables: `AssignAdd`, `AssignSub`, the scatters, and the methods of variables that build them.
//!
//! The output of each is the variable's buffer afterwards; kernels do not touch it.

use super::cuda_indices::Indices;
use super::number::Number;
use super::state::{ASSIGN, assigned, cuda_update};
use super::support::{by_dtype, index_at, no_arithmetic, update};
use crate::base::{DType, Element, Shape};
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

/// An addition to a variable, or a subtraction from it.
pub struct AccumulateOp {
    name: &'static str,
    subtracts: bool,
    /// Whether the variable is a resource; then there is no output.
    resource: bool,
}

/// TensorFlow's `AssignAdd`.
pub static ASSIGN_ADD: AccumulateOp = AccumulateOp { name: "AssignAdd", subtracts: false, resource: false };
/// TensorFlow's `AssignSub`.
pub static ASSIGN_SUB: AccumulateOp = AccumulateOp { name: "AssignSub", subtracts: true, resource: false };
/// TensorFlow's `AssignAddVariableOp`.
pub static ASSIGN_ADD_VARIABLE: AccumulateOp =
    AccumulateOp { name: "AssignAddVariableOp", subtracts: false, resource: true };
/// TensorFlow's `AssignSubVariableOp`.
pub static ASSIGN_SUB_VARIABLE: AccumulateOp =
    AccumulateOp { name: "AssignSubVariableOp", subtracts: true, resource: true };

fn accumulate<N: Number>(f: impl Fn(N, N) -> N + Copy + Send + Sync + 'static) -> CpuKernel {
    Box::new(move |l| {
        let (variable, value) = (l.variable::<N>(0), l.input::<N>(1));
        update(l.team(), variable, value, |out, values| {
            out.iter_mut().zip(values).for_each(|(o, &v)| *o = f(*o, v));
        });
        Ok(())
    })
}

impl Op for AccumulateOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        Traits { stateful: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        let facts = assigned(c, self.resource)?;
        match c.dtype(0).is_number() {
            true => Ok(facts),
            false => Err(no_arithmetic(c.dtype(0))),
        }
    }

    fn written_inputs(&self, _attrs: &Attrs, _num_inputs: usize) -> SmallVec<[usize; 4]> {
        smallvec![0]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        by_number!(c.inputs[0].dtype, N => match self.subtracts {
            false => accumulate::<N>(N::plus),
            true => accumulate::<N>(N::minus),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let step = if self.subtracts { "turret_minus(old, x)" } else { "turret_plus(old, x)" };
        Ok(cuda_update(step, c.inputs[0].dtype, c.inputs[0].len()))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, outputs: &[Fact]) -> bool {
        has_sums(outputs)
    }
}

/// What a scatter makes of an old element and an update.
#[derive(Clone, Copy, PartialEq)]
enum Scatter {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
    Update,
}

/// A change of those rows of a variable that indices name: row `i` of the updates changes row `indices[i]`. Of equal
/// indices one comes after another, in their order.
pub struct ScatterOp {
    name: &'static str,
    how: Scatter,
    /// Whether the variable is a resource; then there is no output.
    resource: bool,
}

macro_rules! scatters {
    ($($op:ident, $resource:ident = $name:literal, $how:ident;)*) => {$(
        #[doc = concat!("TensorFlow's `", $name, "`.")]
        pub static $op: ScatterOp = ScatterOp { name: $name, how: Scatter::$how, resource: false };
        #[doc = concat!("TensorFlow's `Resource", $name, "`.")]
        pub static $resource: ScatterOp =
            ScatterOp { name: concat!("Resource", $name), how: Scatter::$how, resource: true };
    )*};
}

scatters! {
    SCATTER_ADD, RESOURCE_SCATTER_ADD = "ScatterAdd", Add;
    SCATTER_SUB, RESOURCE_SCATTER_SUB = "ScatterSub", Sub;
    SCATTER_MUL, RESOURCE_SCATTER_MUL = "ScatterMul", Mul;
    SCATTER_DIV, RESOURCE_SCATTER_DIV = "ScatterDiv", Div;
    SCATTER_MIN, RESOURCE_SCATTER_MIN = "ScatterMin", Min;
    SCATTER_MAX, RESOURCE_SCATTER_MAX = "ScatterMax", Max;
    SCATTER_UPDATE, RESOURCE_SCATTER_UPDATE = "ScatterUpdate", Update;
}

/// The shape rule: updates have the shape `indices.shape + variable.shape[1..]`.
fn scattered(c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
    c.want_inputs(3)?;
    if !c.dtype(1).is_integer() {
        return Err(format!("indices must be int32 or int64, got {}", c.dtype(1)));
    }
    if c.dtype(2) != c.dtype(0) {
        return Err(format!("updates must have the variable's type: want {}, got {}", c.dtype(0), c.dtype(2)));
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
        Scatter::Mul => "turret_times(old, x)",
        Scatter::Div => "turret_over(old, x)",
        Scatter::Min => "turret_smaller(old, x)",
        Scatter::Max => "turret_larger(old, x)",
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
    fn kernel<N: Element>(
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
    if how == Scatter::Update {
        return Ok(by_dtype!(c.inputs[0].dtype, T => kernel::<T>(rows, width, count, |_, b| b)));
    }
    by_number!(c.inputs[0].dtype, N => match how {
        Scatter::Add => kernel::<N>(rows, width, count, N::plus),
        Scatter::Sub => kernel::<N>(rows, width, count, N::minus),
        Scatter::Mul => kernel::<N>(rows, width, count, N::times),
        Scatter::Div => kernel::<N>(rows, width, count, N::over),
        Scatter::Min => kernel::<N>(rows, width, count, N::smaller),
        Scatter::Max => kernel::<N>(rows, width, count, N::larger),
        Scatter::Update => kernel::<N>(rows, width, count, |_, b| b),
    })
}

impl Op for ScatterOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        Traits { stateful: true, fallible: true, checks_before_writing: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        let facts = scattered(c)?;
        if self.how != Scatter::Update && !c.dtype(0).is_number() {
            return Err(no_arithmetic(c.dtype(0)));
        }
        if self.how == Scatter::Div && !c.dtype(0).is_floating() {
            return Err(format!("rows can be divided in float32 and float64, got {}; cast the variable", c.dtype(0)));
        }
        Ok(if self.resource { Vec::new() } else { facts })
    }

    fn written_inputs(&self, _attrs: &Attrs, _num_inputs: usize) -> SmallVec<[usize; 4]> {
        smallvec![0]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        scatter_kernel(c, self.how)
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        scatter_cuda_kernel(c, self.how)
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, outputs: &[Fact]) -> bool {
        self.how == Scatter::Update || has_sums(outputs)
    }
}

impl<'g> Variable<'g> {
    #[track_caller]
    fn written_by(self, op: OpRef, values: &[Tensor<'g>]) -> Tensor<'g> {
        let node = self.op().graph().node_of(op).input(self.buffer());
        node.inputs(values.iter().copied()).colocate_with(self).tensor()
    }

    /// Overwrites the variable; the result is the variable afterwards.
    #[track_caller]
    pub fn assign(self, value: impl Into<Tensor<'g>>) -> Tensor<'g> {
        self.written_by(&ASSIGN, &[value.into()])
    }

    /// Adds to the variable; the result is the variable afterwards.
    #[track_caller]
    pub fn assign_add(self, value: impl Into<Tensor<'g>>) -> Tensor<'g> {
        self.written_by(&ASSIGN_ADD, &[value.into()])
    }

    /// Subtracts from the variable; the result is the variable afterwards.
    #[track_caller]
    pub fn assign_sub(self, value: impl Into<Tensor<'g>>) -> Tensor<'g> {
        self.written_by(&ASSIGN_SUB, &[value.into()])
    }

    /// Adds rows to the rows with these numbers; the result is the variable afterwards.
    #[track_caller]
    pub fn scatter_add(self, indices: Tensor<'g>, rows: Tensor<'g>) -> Tensor<'g> {
        self.written_by(&SCATTER_ADD, &[indices, rows])
    }

    /// Subtracts rows from the rows with these numbers; the result is the variable afterwards.
    #[track_caller]
    pub fn scatter_sub(self, indices: Tensor<'g>, rows: Tensor<'g>) -> Tensor<'g> {
        self.written_by(&SCATTER_SUB, &[indices, rows])
    }

    /// Overwrites the rows with these numbers; the result is the variable afterwards.
    #[track_caller]
    pub fn scatter_update(self, indices: Tensor<'g>, rows: Tensor<'g>) -> Tensor<'g> {
        self.written_by(&SCATTER_UPDATE, &[indices, rows])
    }
}
