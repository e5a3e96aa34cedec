//! `Range` and `OneHot`: tensors made from numbers.

use super::support::{around, axis_of, by_dtype, index_at, int_scalar, no_arithmetic, node, scoped, sized};
use crate::base::{Array, DType, Element, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaCode, CudaKernel};
use crate::graph::{
    Attrs, Case, Fact, GradContext, Graph, InferContext, InputGradients, KernelContext, Op, Tensor, Traits,
};
use smallvec::{SmallVec, smallvec};

/// TensorFlow's `Range`: inputs start, limit, delta, of one numeric type.
pub struct Range;

/// The number of elements.
fn count(start: &Array, limit: &Array, delta: &Array) -> Result<usize, String> {
    let one = |a: &Array| a.to_i64().and_then(|v| v.first().copied());
    let refuse = |step: String| format!("delta must not be 0, nor point away from the limit, got {step}");
    if let (Some(start), Some(limit), Some(delta)) = (one(start), one(limit), one(delta)) {
        let span = i128::from(limit) - i128::from(start);
        let delta = i128::from(delta);
        if delta == 0 || span.signum() * delta.signum() < 0 {
            return Err(refuse(delta.to_string()));
        }
        let steps = span.abs() / delta.abs() + i128::from(span.abs() % delta.abs() != 0);
        return usize::try_from(steps).map_err(|_| "the range has too many elements".into());
    }
    let (start, limit, delta) = (start.get_f64(0), limit.get_f64(0), delta.get_f64(0));
    let steps = ((limit - start) / delta).abs().ceil();
    if delta == 0.0 || (limit - start) * delta < 0.0 || steps.is_nan() {
        return Err(refuse(delta.to_string()));
    }
    if steps > isize::MAX as f64 {
        return Err("the range has too many elements".into());
    }
    Ok(steps as usize)
}

impl Op for Range {
    fn name(&self) -> &'static str {
        "Range"
    }

    fn traits(&self) -> Traits {
        Traits { no_gradient: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(3)?;
        let dtype = c.same_dtype()?;
        if !dtype.is_number() {
            return Err(no_arithmetic(dtype));
        }
        for (i, name) in ["start", "limit", "delta"].into_iter().enumerate() {
            if !c.shape(i).is_compatible_with(&Shape::scalar()) {
                return Err(format!("{name} must be a scalar, got shape {}", c.shape(i)));
            }
        }
        let size = match (c.value(0), c.value(1), c.value(2)) {
            (Some(start), Some(limit), Some(delta)) => Some(count(start, limit, delta)?),
            _ => None,
        };
        Ok(vec![sized(dtype, Shape::partial([size]))?])
    }

    fn gradient<'g>(&self, _c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![None, None, None])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![0, 1, 2]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        // Element by element, start plus multiples: TensorFlow adds up, which differs by rounding alone.
        fn fill<T: Element>(at: impl Fn(T, T, usize) -> T + Send + Sync + 'static) -> CpuKernel {
            Box::new(move |l| {
                let (start, delta) = (l.input::<T>(0)[0], l.input::<T>(2)[0]);
                l.output::<T>(0).iter_mut().enumerate().for_each(|(i, o)| *o = at(start, delta, i));
                Ok(())
            })
        }
        Ok(match c.outputs[0].dtype {
            DType::F32 => fill::<f32>(|start, delta, i| start + i as f32 * delta),
            DType::F64 => fill::<f64>(|start, delta, i| start + i as f64 * delta),
            DType::I32 => fill::<i32>(|start, delta, i| start.wrapping_add(delta.wrapping_mul(i as i32))),
            DType::I64 => fill::<i64>(|start, delta, i| start.wrapping_add(delta.wrapping_mul(i as i64))),
            other => return Err(no_arithmetic(other)),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let (dtype, len) = (c.outputs[0].dtype, c.outputs[0].len());
        let number = |i: usize| -> Option<CudaArg> {
            let value = c.values.get(i)?.as_deref()?;
            Some(match dtype {
                DType::F32 => CudaArg::F32(*value.as_slice().ok()?.first()?),
                DType::F64 => CudaArg::F64(*value.as_slice().ok()?.first()?),
                DType::I32 => CudaArg::I32(*value.as_slice().ok()?.first()?),
                _ => CudaArg::I64(*value.as_slice().ok()?.first()?),
            })
        };
        let ends = number(0).zip(number(2));
        let (start, delta) = ends.ok_or("start and delta must be known when the step is planned")?;
        let code = CudaCode::new(include_str!("cuda/range.cu")).with_type("T", dtype);
        Ok(CudaKernel::elements(code, len, [CudaArg::output(0), start, delta, CudaArg::size(len)]))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let inputs = [2i32, 11, 3].map(Array::scalar).to_vec();
        let outputs = Array::new(&[3], &[2i32, 5, 8]).ok();
        outputs.map(|o| Case { attrs: Attrs::new(), inputs, outputs: vec![o], gradient: false }).into_iter().collect()
    }
}

/// TensorFlow's `OneHot`: inputs indices, depth, on value, off value; attribute `axis` is where the new axis goes, -1
/// for last. An index outside of the depth gives a row of off values.
pub struct OneHot;

fn hot_axis(attrs: &Attrs, rank: usize) -> Result<usize, String> {
    axis_of(attrs.int("axis").unwrap_or(-1), rank + 1, "axis")
}

impl Op for OneHot {
    fn name(&self) -> &'static str {
        "OneHot"
    }

    fn traits(&self) -> Traits {
        Traits { no_gradient: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(4)?;
        if !c.dtype(0).is_integer() {
            return Err(format!("indices must be int32 or int64, got {}", c.dtype(0)));
        }
        if c.dtype(2) != c.dtype(3) {
            return Err(format!("on and off value must have one type, got {} and {}", c.dtype(2), c.dtype(3)));
        }
        for (i, name) in [(2, "the on value"), (3, "the off value")] {
            if !c.shape(i).is_compatible_with(&Shape::scalar()) {
                return Err(format!("{name} must be a scalar, got shape {}", c.shape(i)));
            }
        }
        let depth = match int_scalar(c, 1, "the depth")? {
            Some(d) => Some(usize::try_from(d).map_err(|_| format!("the depth must not be negative, got {d}"))?),
            None => None,
        };
        let Some(dims) = c.shape(0).dims() else { return Ok(vec![Fact::new(c.dtype(2), Shape::unknown())]) };
        let axis = hot_axis(c.attrs, dims.len())?;
        let shape = Shape::partial(dims[..axis].iter().chain(&[depth]).chain(&dims[axis..]).copied());
        Ok(vec![sized(c.dtype(2), shape)?])
    }

    fn gradient<'g>(&self, _c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![None; 4])
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![1]
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        fn kernel<T: Element>(count: usize, depth: usize, inner: usize) -> CpuKernel {
            Box::new(move |l| {
                let (on, off, index) = (l.input::<T>(2)[0], l.input::<T>(3)[0], index_at(l, 0));
                let out = l.output::<T>(0);
                out.fill(off);
                for i in 0..count {
                    if let Some(hot) = usize::try_from(index(i)).ok().filter(|&h| h < depth) {
                        out[(i / inner * depth + hot) * inner + i % inner] = on;
                    }
                }
                Ok(())
            })
        }
        let axis = hot_axis(c.attrs, c.inputs[0].dims.len())?;
        let (_, depth, inner) = around(&c.outputs[0].dims, axis);
        let count = c.inputs[0].len();
        Ok(by_dtype!(c.outputs[0].dtype, T => kernel::<T>(count, depth, inner)))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let axis = hot_axis(c.attrs, c.inputs[0].dims.len())?;
        let (_, depth, inner) = around(&c.outputs[0].dims, axis);
        let len = c.outputs[0].len();
        let number = if len <= 1 << 30 { DType::I32 } else { DType::I64 };
        let code = CudaCode::new(include_str!("cuda/one_hot.cu"))
            .with_type("T", c.outputs[0].dtype)
            .with_type("I", c.inputs[0].dtype)
            .with_type("N", number);
        let buffers = [CudaArg::input(0), CudaArg::input(2), CudaArg::input(3), CudaArg::output(0)];
        Ok(CudaKernel::elements(code, len, buffers.into_iter().chain([len, depth, inner].map(CudaArg::size))))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let build = |axis: i64, values: [f32; 6]| -> Option<Case> {
            let indices = Array::new(&[2], &[2i32, -1]).ok()?;
            let inputs = vec![indices, Array::scalar(3i32), Array::scalar(5.0f32), Array::scalar(0.0f32)];
            let outputs = vec![Array::new(if axis == 0 { &[3, 2] } else { &[2, 3] }, &values).ok()?];
            Some(Case { attrs: Attrs::new().with("axis", axis), inputs, outputs, gradient: false })
        };
        let cases = [build(-1, [0.0, 0.0, 5.0, 0.0, 0.0, 0.0]), build(0, [0.0, 0.0, 0.0, 0.0, 5.0, 0.0])];
        cases.into_iter().flatten().collect()
    }
}

impl Graph {
    /// `start, start + delta, …` below `limit` (above, for a negative delta), as `int32`. Named `range`.
    #[track_caller]
    pub fn range(&self, start: i32, limit: i32, delta: i32) -> Tensor<'_> {
        scoped(self, "range", |name| {
            let ends = [("start", start), ("limit", limit), ("delta", delta)];
            node(self, "Range").name(name).inputs(ends.map(|(name, value)| self.constant_named(name, value))).tensor()
        })
    }
}

impl<'g> Tensor<'g> {
    /// Rows of zeros with a one at these indices, on a new last axis of size `depth`, as `float32`. Named `one_hot`.
    #[track_caller]
    pub fn one_hot(self, depth: usize) -> Tensor<'g> {
        let g = self.graph();
        if depth == crate::base::POISON_DIM {
            return g.poison_tensor();
        }
        scoped(g, "one_hot", |name| {
            let one = g.constant_named("Const", 1.0f32);
            let zero = g.constant_named("Const_1", 0.0f32);
            let depth = match i32::try_from(depth) {
                Ok(depth) => g.constant_named("depth", depth),
                Err(_) => g.constant_named("depth", i64::try_from(depth).unwrap_or(i64::MAX)),
            };
            node(g, "OneHot").name(name).inputs([self, depth, one, zero]).attr("axis", -1i64).tensor()
        })
    }
}
