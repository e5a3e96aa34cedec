//! What the array, network and random families share: axes, scalars, checked shapes, and small nodes of gradient rules.

use crate::base::{Array, DType, Dims, Element, Shape};
use crate::device::{Launch, Team};
use crate::graph::{Fact, Graph, InferContext, NodeBuilder, Tensor};

/// Runs a body with `T` as the Rust type of an element type.
macro_rules! by_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::base::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::base::DType::F64 => {
                type $t = f64;
                $body
            }
            $crate::base::DType::I32 => {
                type $t = i32;
                $body
            }
            $crate::base::DType::I64 => {
                type $t = i64;
                $body
            }
            $crate::base::DType::Bool => {
                type $t = $crate::base::Bool8;
                $body
            }
            $crate::base::DType::F16 => {
                type $t = $crate::base::f16;
                $body
            }
            $crate::base::DType::BF16 => {
                type $t = $crate::base::bf16;
                $body
            }
            $crate::base::DType::U8 => {
                type $t = u8;
                $body
            }
            $crate::base::DType::Opaque(_) => unreachable!("no node that runs has values of an opaque type"),
        }
    };
}
pub(super) use by_dtype;

/// What is wrong where an op computes with a type that is only stored.
pub(super) fn no_arithmetic(dtype: DType) -> String {
    format!("there is no arithmetic on {dtype}; cast it to a type that is computed with")
}

/// Elements that a thread takes at a time.
pub(super) const GRAIN: usize = 16 * 1024;

/// The most outputs that a node may have: enough for any model, few enough to list.
pub(super) const MAX_OUTPUTS: i64 = 1 << 16;

/// An axis that may count from the end, as an index.
pub(super) fn axis_of(axis: i64, rank: usize, what: &str) -> Result<usize, String> {
    let bound = rank as i64;
    if (-bound..bound).contains(&axis) {
        return Ok(axis.rem_euclid(bound) as usize);
    }
    Err(format!("{what} {axis} is out of range for rank {rank}; want {} to {}", -bound, bound - 1))
}

/// Checks that an input is an integer scalar; its value, where known.
pub(super) fn int_scalar(c: &InferContext<'_>, i: usize, what: &str) -> Result<Option<i64>, String> {
    let rank = c.shape(i).rank();
    if !c.dtype(i).is_integer() || rank.is_some_and(|r| r != 0) {
        return Err(format!("{what} must be an int32 or int64 scalar, got {} {}", c.dtype(i), c.shape(i)));
    }
    Ok(c.ints(i).and_then(|v| v.first().copied()))
}

/// Checks that an input is a bool scalar.
pub(super) fn bool_scalar(c: &InferContext<'_>, i: usize, what: &str) -> Result<(), String> {
    if c.dtype(i) != DType::Bool || !c.shape(i).is_compatible_with(&Shape::scalar()) {
        return Err(format!("{what} must be a bool scalar, got {} {}", c.dtype(i), c.shape(i)));
    }
    Ok(())
}

/// Checks that an input is an integer vector; its values, where known.
pub(super) fn int_vector(c: &InferContext<'_>, i: usize, what: &str) -> Result<Option<Vec<i64>>, String> {
    let rank = c.shape(i).rank();
    if !c.dtype(i).is_integer() || rank.is_some_and(|r| r != 1) {
        return Err(format!("{what} must be an int32 or int64 vector, got {} {}", c.dtype(i), c.shape(i)));
    }
    Ok(c.ints(i))
}

/// A fact whose size fits the address space, as far as known.
pub(super) fn sized(dtype: DType, shape: Shape) -> Result<Fact, String> {
    if let Some(dims) = shape.to_dims().filter(|_| !shape.is_poisoned()) {
        let bytes = crate::base::num_elements(&dims).and_then(|n| n.checked_mul(dtype.size()));
        if bytes.is_none_or(|b| b > isize::MAX as usize) {
            return Err(format!("the output would have shape {shape}, which does not fit in memory"));
        }
    }
    Ok(Fact::new(dtype, shape))
}

/// Sizes with one replaced.
pub(super) fn with_dim(dims: &[Option<usize>], axis: usize, size: Option<usize>) -> Shape {
    Shape::partial(dims.iter().enumerate().map(|(i, d)| if i == axis { size } else { *d }))
}

/// The product of the sizes before an axis, its size, and the product of those after.
pub(super) fn around(dims: &[usize], axis: usize) -> (usize, usize, usize) {
    (dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product())
}

/// A node of an op type by name, for rules that build nodes of other families.
pub(super) fn node<'g>(graph: &'g Graph, op: &str) -> NodeBuilder<'g> {
    // The table has every op that a rule names; if not, the node is refused for its inputs, which is reported.
    graph.node_of(super::find(op).unwrap_or(&super::identity::NoOp))
}

/// A node of an op type by name, of these inputs; named after its op unless `name` says otherwise.
#[track_caller]
pub(super) fn build<'g>(op: &'static str, name: &'static str, inputs: &[Tensor<'g>]) -> Tensor<'g> {
    let Some(first) = inputs.first() else { unreachable!("rules build nodes of inputs") };
    let name = if name.is_empty() { op } else { name };
    node(first.graph(), op).name(name).inputs(inputs.iter().copied()).tensor()
}

/// Opens a name scope and gives its absolute name with a slash: a node of that name is named as the scope.
#[track_caller]
pub(super) fn scoped<R>(graph: &Graph, name: &str, body: impl FnOnce(String) -> R) -> R {
    let source = graph.source_line();
    graph.with_source(source, || graph.name_scope(name, || body(format!("{}/", graph.current_name_scope()))))
}

/// Integers as an `int32` vector, or `int64` where they need it.
pub(super) fn int_array(values: &[i64]) -> Array {
    let narrow: Option<Vec<i32>> = values.iter().map(|&v| i32::try_from(v).ok()).collect();
    let array = match narrow {
        Some(narrow) => Array::new(&[values.len()], &narrow),
        None => Array::new(&[values.len()], values),
    };
    array.unwrap_or_else(|_| unreachable!("the length is the size"))
}

/// Sizes as an array.
pub(super) fn dims_array(dims: &[usize]) -> Array {
    int_array(&dims.iter().map(|&d| i64::try_from(d).unwrap_or(i64::MAX)).collect::<Vec<_>>())
}

/// The shape of a tensor as gradient rules take it: a constant where known, as TensorFlow makes it, else a `Shape` node.
pub(super) fn shape_of<'g>(x: Tensor<'g>, dtype: DType) -> Tensor<'g> {
    match x.shape().to_dims() {
        Some(dims) => {
            let dims: Vec<f64> = dims.iter().map(|&d| d as f64).collect();
            let small = dims.iter().all(|&d| d <= i32::MAX as f64);
            let dtype = if small { dtype } else { DType::I64 };
            match Array::from_f64(dtype, &[dims.len()], &dims) {
                Ok(array) => x.graph().constant_named("Shape", array),
                Err(_) => x.graph().poison_tensor(),
            }
        }
        None => node(x.graph(), "Shape").input(x).attr("out_type", dtype).tensor(),
    }
}

/// The rank of a tensor: a constant where known, else a `Rank` node.
pub(super) fn rank_of<'g>(x: Tensor<'g>) -> Tensor<'g> {
    match x.rank() {
        Some(rank) => x.graph().constant_named("Rank", rank as i32),
        None => node(x.graph(), "Rank").input(x).tensor(),
    }
}

/// Zeros like a tensor, where a rule needs a gradient that did not come.
pub(super) fn or_zeros<'g>(gradient: Option<Tensor<'g>>, like: Tensor<'g>) -> Tensor<'g> {
    gradient.unwrap_or_else(|| build("ZerosLike", "zeros_like", &[like]))
}

/// Row-major strides in elements.
pub(super) fn strides_of(dims: &[usize]) -> smallvec::SmallVec<[isize; 6]> {
    let mut strides: smallvec::SmallVec<[isize; 6]> = smallvec::smallvec![0; dims.len()];
    let mut next = 1usize;
    for (stride, &dim) in strides.iter_mut().zip(dims).rev() {
        *stride = next as isize;
        next = next.wrapping_mul(dim);
    }
    strides
}

/// The sizes that a vector of integers gives, or which of them is no size.
pub(super) fn sizes_from(values: &[i64], what: &str) -> Result<Dims, String> {
    let size = |(i, &v): (usize, &i64)| {
        usize::try_from(v).map_err(|_| format!("{what} must not be negative, got {v} at position {i}"))
    };
    values.iter().enumerate().map(size).collect()
}

/// Updates a buffer from another of its length, in chunks that the team shares.
pub(super) fn update<T: Element>(team: &Team, out: &mut [T], values: &[T], f: impl Fn(&mut [T], &[T]) + Sync) {
    struct Out<T>(*mut T);
    // SAFETY: the chunks do not overlap, and the borrow of the whole lasts until the job is done.
    unsafe impl<T> Sync for Out<T> {}
    let len = out.len().min(values.len());
    let start = Out(out.as_mut_ptr());
    let start = &start;
    team.chunks(len, GRAIN, |r| {
        // SAFETY: the range is inside of the buffer, and only this chunk has it.
        let out = unsafe { std::slice::from_raw_parts_mut(start.0.add(r.start), r.len()) };
        f(out, &values[r]);
    });
}

/// Gives each chunk of rows its own part of a buffer: `f(first row, rows' elements)`.
pub(super) fn by_rows<T: Element>(team: &Team, out: &mut [T], width: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    struct Out<T>(*mut T);
    // SAFETY: as in `update`.
    unsafe impl<T> Sync for Out<T> {}
    if width == 0 {
        return;
    }
    let start = Out(out.as_mut_ptr());
    let start = &start;
    team.chunks(out.len() / width, GRAIN / width, |r| {
        // SAFETY: as in `update`.
        let rows = unsafe { std::slice::from_raw_parts_mut(start.0.add(r.start * width), r.len() * width) };
        f(r.start, rows);
    });
}

/// An integer input's elements as `i64`, one at a time.
pub(super) fn index_at<'a>(l: &Launch<'a>, i: usize) -> impl Fn(usize) -> i64 + Sync + 'a {
    enum Ints<'a> {
        Narrow(&'a [i32]),
        Wide(&'a [i64]),
    }
    let ints = match l.input_dtype(i) {
        DType::I32 => Ints::Narrow(l.input(i)),
        _ => Ints::Wide(l.input(i)),
    };
    move |at| match ints {
        Ints::Narrow(v) => v[at].into(),
        Ints::Wide(v) => v[at],
    }
}
