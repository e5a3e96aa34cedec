//! `TopKV2` and `TopK`: the largest elements of each row, and where they are.
//!
//! Largest first, of equal ones the first in the row; NaN counts as larger than every number.

use super::elementwise::Shared;
use super::number::Number;
use super::strided_slice::Index;
use super::support::{GRAIN, build, int_scalar, no_arithmetic, node, scoped};
use super::values::{array, case_with, float, ints};
use crate::base::{Array, DType, Element, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaCode, CudaKernel, CudaLaunch};
use crate::graph::{Attrs, Case, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor};
use smallvec::{SmallVec, smallvec};

/// TensorFlow's `TopKV2` and `TopK`: outputs values and indices (`int32`, or attribute `index_type`).
pub struct TopKOp {
    name: &'static str,
    /// Whether how many is input 1, or attribute `k`.
    counted_by_input: bool,
}

/// TensorFlow's `TopKV2`: inputs the tensor and how many.
pub static TOP_K_V2: TopKOp = TopKOp { name: "TopKV2", counted_by_input: true };
/// TensorFlow's `TopK`, its older form with attribute `k`.
pub static TOP_K: TopKOp = TopKOp { name: "TopK", counted_by_input: false };

/// The smallest element type of indices.
trait Place: Element {
    fn of(index: usize) -> Self;
    fn index(self) -> usize;
}

impl Place for i32 {
    fn of(index: usize) -> i32 {
        // The shape rule sees to it that an index fits.
        index as i32
    }
    fn index(self) -> usize {
        self as usize
    }
}

impl Place for i64 {
    fn of(index: usize) -> i64 {
        index as i64
    }
    fn index(self) -> usize {
        self as usize
    }
}

/// Whether the element `x` at `i` comes before `y` at `j`.
#[inline(always)]
fn before<T: Number>((x, i): (T, usize), (y, j): (T, usize)) -> bool {
    match (x.is_nan(), y.is_nan()) {
        (false, false) if x != y => x > y,
        (nan, other) if nan != other => nan,
        _ => i < j,
    }
}

/// Keeps the best of a row in a heap whose root is the worst of them, in the very outputs, and then takes them out.
fn row<T: Number, P: Place>(x: &[T], values: &mut [T], places: &mut [P]) {
    let k = values.len();
    let at = |values: &[T], places: &[P], i: usize| (values[i], places[i].index());
    let sink = |values: &mut [T], places: &mut [P], mut parent: usize, len: usize| {
        loop {
            let mut worst = parent;
            for child in [2 * parent + 1, 2 * parent + 2] {
                if child < len && before(at(values, places, worst), at(values, places, child)) {
                    worst = child;
                }
            }
            if worst == parent {
                return;
            }
            values.swap(parent, worst);
            places.swap(parent, worst);
            parent = worst;
        }
    };
    for (i, &v) in x.iter().enumerate().take(k) {
        (values[i], places[i]) = (v, P::of(i));
    }
    (0..k / 2).rev().for_each(|parent| sink(values, places, parent, k));
    for (i, &v) in x.iter().enumerate().skip(k) {
        if k > 0 && before((v, i), at(values, places, 0)) {
            (values[0], places[0]) = (v, P::of(i));
            sink(values, places, 0, k);
        }
    }
    for end in (1..k).rev() {
        values.swap(0, end);
        places.swap(0, end);
        sink(values, places, 0, end);
    }
}

fn kernel<T: Number, P: Place>(columns: usize, k: usize) -> CpuKernel {
    Box::new(move |l| {
        let x = l.input::<T>(0);
        let (values, places) = (l.output::<T>(0), l.output::<P>(1));
        if columns == 0 || k == 0 {
            return Ok(());
        }
        let (values, places) = (Shared::new(values.as_mut_ptr()), Shared::new(places.as_mut_ptr()));
        l.team().chunks(x.len() / columns, (GRAIN / columns).max(1), |rows| {
            for r in rows {
                // SAFETY: each row has its own part of either output.
                let (values, places) = unsafe {
                    let (values, places) = (values.get().add(r * k), places.get().add(r * k));
                    (std::slice::from_raw_parts_mut(values, k), std::slice::from_raw_parts_mut(places, k))
                };
                row(&x[r * columns..][..columns], values, places);
            }
        });
        Ok(())
    })
}

impl TopKOp {
    fn count(&self, c: &InferContext<'_>) -> Result<Option<usize>, String> {
        let k = match self.counted_by_input {
            true => int_scalar(c, 1, "k")?,
            false => Some(c.attrs.int("k").ok_or("attribute 'k' is missing")?),
        };
        k.map(|k| usize::try_from(k).map_err(|_| format!("k must not be negative, got {k}"))).transpose()
    }
}

impl Op for TopKOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(1 + usize::from(self.counted_by_input))?;
        if !c.dtype(0).is_number() {
            return Err(no_arithmetic(c.dtype(0)));
        }
        let places = c.attrs.dtype("index_type").unwrap_or(DType::I32);
        if !places.is_integer() {
            return Err(format!("attribute 'index_type' must be int32 or int64, got {places}"));
        }
        let k = self.count(c)?;
        let Some(dims) = c.shape(0).dims() else {
            return Ok(vec![Fact::new(c.dtype(0), Shape::unknown()), Fact::new(places, Shape::unknown())]);
        };
        let (columns, rows) = dims.split_last().ok_or("a scalar has no rows; want rank 1 or more")?;
        if let (Some(columns), Some(k)) = (columns, k)
            && *columns < k
        {
            return Err(format!("the last axis has {columns} elements, fewer than k = {k}"));
        }
        if places == DType::I32 && columns.is_some_and(|c| i32::try_from(c).is_err()) {
            return Err("the last axis is too long for int32 indices; set index_type to int64".into());
        }
        let shape = Shape::partial(rows.iter().copied().chain([k]));
        Ok(vec![Fact::new(c.dtype(0), shape.clone()), Fact::new(places, shape)])
    }

    /// Node for node TensorFlow's (`python/ops/nn_grad.py`): the gradients are scattered into zeros.
    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        let (x, indices, g) = (*c.inputs.first()?, *c.outputs.get(1)?, c.node.graph());
        let grad = c.grads.first().copied().flatten()?;
        let (in_shape, index_shape) = (x.shape_tensor(), indices.shape_tensor());
        let width = index_shape.index([Index::At(-1)]);
        let flat = scoped(g, "stack", |name| {
            let all = g.constant_named("0", -1i32);
            node(g, "Pack").name(name).inputs([all, width]).attr("axis", 0i64).tensor()
        });
        let by_row = build("Reshape", "", &[indices, flat]).cast(DType::I32);
        let columns = in_shape.index([Index::At(-1)]);
        let rows = by_row.shape_tensor().index([Index::At(0)]);
        let starts = scoped(g, "range", |name| {
            let start = g.constant_named("start", 0i32);
            node(g, "Range").name(name).inputs([start, rows * columns, columns]).tensor()
        });
        let places = (by_row + starts.expand_dims(-1)).reshape([-1i64]);
        let count = in_shape.prod_axes(&[0], true);
        let scattered = build("ScatterNd", "", &[places.expand_dims(-1), grad.reshape([-1i64]), count]);
        let mut gradients = vec![Some(scattered.reshape_as(in_shape, &x.shape()).into())];
        gradients.resize(c.inputs.len(), None);
        Some(gradients)
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        if self.counted_by_input { smallvec![1] } else { SmallVec::new() }
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let columns = *c.inputs[0].dims.last().ok_or("a scalar has no rows")?;
        let k = *c.outputs[0].dims.last().ok_or("a scalar has no rows")?;
        fn to<T: Number>(places: DType, columns: usize, k: usize) -> CpuKernel {
            if places == DType::I64 { kernel::<T, i64>(columns, k) } else { kernel::<T, i32>(columns, k) }
        }
        let places = c.outputs[1].dtype;
        Ok(match c.inputs[0].dtype {
            DType::F32 => to::<f32>(places, columns, k),
            DType::F64 => to::<f64>(places, columns, k),
            DType::I32 => to::<i32>(places, columns, k),
            DType::I64 => to::<i64>(places, columns, k),
            other => return Err(no_arithmetic(other)),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let columns = *c.inputs[0].dims.last().ok_or("a scalar has no rows")?;
        let k = *c.outputs[0].dims.last().ok_or("a scalar has no rows")?;
        if c.outputs[0].is_empty() {
            return Ok(CudaKernel::default());
        }
        let rows = c.inputs[0].len() / columns;
        let code = CudaCode::new(include_str!("cuda/top_k.cu"));
        let code = code.with_type("T", c.inputs[0].dtype).with_type("P", c.outputs[1].dtype);
        let buffers = [CudaArg::input(0), CudaArg::output(0), CudaArg::output(1)];
        let args = buffers.into_iter().chain([rows, columns, k].map(CudaArg::size)).collect();
        let blocks = rows.min(1 << 16) as u32;
        Ok(CudaKernel::new([CudaLaunch::Code { code, blocks, threads: 256, shared_bytes: 0, args }]))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, outputs: &[Fact]) -> bool {
        outputs.first().is_none_or(|o| o.dtype.is_number())
    }

    fn cases(&self) -> Vec<Case> {
        let with = |x: Array, k: i32, attrs: Attrs, outputs: Vec<Array>, gradient: bool| match self.counted_by_input {
            true => case_with(attrs, vec![x, Array::scalar(k)], outputs, gradient),
            false => case_with(attrs.with("k", i64::from(k)), vec![x], outputs, gradient),
        };
        let x = float(&[2, 4], &[1.0, 4.0, 2.0, 3.0, -1.0, 5.0, 7.0, 6.0]);
        let long: Vec<f32> = (0..700).map(|i| ((i * 373) % 699) as f32).collect();
        let nan = float(&[5], &[1.0, f32::NAN, 3.0, f32::NEG_INFINITY, 3.0]);
        let mut cases = vec![
            with(
                x.clone(),
                2,
                Attrs::new(),
                vec![float(&[2, 2], &[4.0, 3.0, 7.0, 6.0]), array(&[2, 2], &[1, 3, 2, 3])],
                true,
            ),
            with(x.clone(), 1, Attrs::new(), vec![float(&[2, 1], &[4.0, 7.0]), array(&[2, 1], &[1, 2])], true),
            with(x.clone(), 0, Attrs::new(), vec![float(&[2, 0], &[]), array(&[2, 0], &[0i32; 0])], false),
            with(ints(&[3, 3, 1, 3]), 4, Attrs::new(), vec![ints(&[3, 3, 3, 1]), ints(&[0, 1, 3, 2])], false),
            with(float(&[700], &long), 40, Attrs::new(), vec![], false),
            with(nan, 4, Attrs::new(), vec![float(&[4], &[f32::NAN, 3.0, 3.0, 1.0]), ints(&[1, 2, 4, 0])], false),
        ];
        if self.counted_by_input {
            let wide = Attrs::new().with("index_type", DType::I64);
            let places = array(&[2, 1], &[1i64, 2]);
            cases.push(with(x, 1, wide, vec![float(&[2, 1], &[4.0, 7.0]), places], false));
        }
        cases
    }
}

impl<'g> Tensor<'g> {
    /// The `k` largest elements of each row of the last axis, largest first, and their places in it, `int32`. Named
    /// `TopKV2`.
    #[track_caller]
    pub fn top_k(self, k: usize) -> (Tensor<'g>, Tensor<'g>) {
        let g = self.graph();
        if self.is_poison() || k == crate::base::POISON_DIM {
            return (g.poison_tensor(), g.poison_tensor());
        }
        let mut op = g.poison_operation();
        scoped(g, "TopKV2", |name| {
            let k = match i32::try_from(k) {
                Ok(k) => g.constant_named("k", k),
                Err(_) => g.constant_named("k", i64::try_from(k).unwrap_or(i64::MAX)),
            };
            op = g.node_of(&TOP_K_V2).name(name).inputs([self, k]).attr("sorted", true).add();
        });
        if op.is_poison() { (g.poison_tensor(), g.poison_tensor()) } else { (op.output(0), op.output(1)) }
    }
}
