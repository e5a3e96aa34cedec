//! Facts of a tensor's shape as values: `Shape`, `ShapeN`, `Size`, `Rank`.
//!
//! Invariant: of a shape that is known when the graph is built they are constants of the same name, as TensorFlow
//! builds them.

use super::cuda_values::values_launches;
use super::values::{case, float, ints};
use crate::base::{Array, DType, Dims, Element, Shape};
use crate::device::cuda::CudaKernel;
use crate::device::{CpuKernel, Launch};
use crate::graph::{
    Attrs, Case, Cost, Fact, GradContext, InferContext, InputGradients, KernelContext, Op, Tensor, Traits,
};
use smallvec::smallvec;

/// The attribute `out_type`.
fn out_type(attrs: &Attrs) -> Result<DType, String> {
    match attrs.dtype("out_type").unwrap_or(DType::I32) {
        dtype if dtype.is_integer() => Ok(dtype),
        dtype => Err(format!("attribute 'out_type' must be int32 or int64, got {dtype}")),
    }
}

/// The values as an array, if they fit.
fn values(values: Dims, dtype: DType, shape: &Shape) -> Option<Array> {
    let dims = shape.to_dims()?;
    match dtype {
        DType::I64 => {
            Array::new(&dims, &values.iter().map(|&v| i64::try_from(v).ok()).collect::<Option<Vec<_>>>()?).ok()
        }
        _ => Array::new(&dims, &values.iter().map(|&v| i32::try_from(v).ok()).collect::<Option<Vec<_>>>()?).ok(),
    }
}

/// The values for known sizes.
fn values_of(c: &KernelContext<'_>, facts: fn(&[Option<usize>]) -> Option<Dims>) -> Result<Array, String> {
    let dims: Vec<Option<usize>> = c.inputs[0].dims.iter().copied().map(Some).collect();
    let shape = Shape::known(&c.outputs[0].dims);
    let values = facts(&dims).and_then(|v| values(v, out_type(c.attrs).ok()?, &shape));
    values.ok_or_else(|| "the value does not fit int32; set out_type to int64".into())
}

fn copy_out<T: Element>(l: &Launch<'_>, output: usize, values: &Array) -> Result<(), String> {
    l.output::<T>(output).copy_from_slice(values.as_slice().map_err(|e| e.to_string())?);
    Ok(())
}

/// Defines an op whose output is a fact of its input's shape, laid down when the step is planned.
macro_rules! shape_fact {
    ($(#[$doc:meta])* $op:ident = $name:literal, $facts:expr, $dims_of_output:expr, $case:expr) => {
        $(#[$doc])*
        pub struct $op;

        impl Op for $op {
            fn name(&self) -> &'static str {
                $name
            }

            fn traits(&self) -> Traits {
                Traits { no_gradient: true, ..Traits::default() }
            }

            fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
                c.want_inputs(1)?;
                let output: fn(&Shape) -> Shape = $dims_of_output;
                Ok(vec![Fact::new(out_type(c.attrs)?, output(c.shape(0)))])
            }

            fn gradient<'g>(&self, _c: &GradContext<'g>) -> Option<InputGradients<'g>> {
                Some(vec![None])
            }

            fn cost(&self, _c: &KernelContext<'_>) -> Cost {
                Cost::default()
            }

            fn values_of_shapes(&self, c: &InferContext<'_>) -> Option<Vec<Array>> {
                let facts: fn(&[Option<usize>]) -> Option<Dims> = $facts;
                let shape = &self.infer(c).ok()?[0].shape;
                Some(vec![values(facts(c.shape(0).dims()?)?, out_type(c.attrs).ok()?, shape)?])
            }

            fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
                let values = values_of(c, $facts)?;
                Ok(Box::new(move |l| match values.dtype() {
                    DType::I64 => copy_out::<i64>(l, 0, &values),
                    _ => copy_out::<i32>(l, 0, &values),
                }))
            }

            fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
                let values = values_of(c, $facts)?;
                Ok(CudaKernel::new(values_launches(0, values.dtype(), &values.to_i64().unwrap_or_default())))
            }

            fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
                true
            }

            fn cases(&self) -> Vec<Case> {
                vec![case(vec![float(&[3, 2], &[0.0; 6])], vec![$case], false)]
            }
        }
    };
}

shape_fact!(
    /// TensorFlow's `Shape`: the sizes of its input, of type `out_type` (`int32`).
    ShapeOp = "Shape",
    |dims| dims.iter().copied().collect(),
    |shape| shape.rank().map_or(Shape::of_rank(1), |rank| Shape::known(&[rank])),
    ints(&[3, 2])
);
shape_fact!(
    /// TensorFlow's `VariableShape`: the sizes of a resource variable, of type `out_type` (`int32`).
    VariableShape = "VariableShape",
    |dims| dims.iter().copied().collect(),
    |shape| shape.rank().map_or(Shape::of_rank(1), |rank| Shape::known(&[rank])),
    ints(&[3, 2])
);
shape_fact!(
    /// TensorFlow's `Size`: the number of elements of its input, of type `out_type` (`int32`).
    Size = "Size",
    |dims| Some(smallvec![crate::base::num_elements(&dims.iter().copied().collect::<Option<Dims>>()?)?]),
    |_| Shape::scalar(),
    Array::scalar(6i32)
);
shape_fact!(
    /// TensorFlow's `Rank`: the number of axes of its input.
    Rank = "Rank",
    |dims| Some(smallvec![dims.len()]),
    |_| Shape::scalar(),
    Array::scalar(2i32)
);

/// TensorFlow's `ShapeN`: the sizes of each of its inputs, of type `out_type` (`int32`).
pub struct ShapeN;

/// The sizes of one of its inputs.
fn sizes_of(dims: &[usize], attrs: &Attrs) -> Result<Array, String> {
    let dtype = out_type(attrs)?;
    let sizes = values(dims.into(), dtype, &Shape::known(&[dims.len()]));
    sizes.ok_or_else(|| format!("the sizes {dims:?} do not fit {dtype}; set out_type to int64"))
}

impl Op for ShapeN {
    fn name(&self) -> &'static str {
        "ShapeN"
    }

    fn traits(&self) -> Traits {
        Traits { no_gradient: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        if c.inputs.is_empty() {
            return Err("want at least one input, got none".into());
        }
        let dtype = out_type(c.attrs)?;
        let sizes = |f: &Fact| f.shape.rank().map_or(Shape::of_rank(1), |rank| Shape::known(&[rank]));
        Ok(c.inputs.iter().map(|f| Fact::new(dtype, sizes(f))).collect())
    }

    fn gradient<'g>(&self, c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        Some(vec![None; c.inputs.len()])
    }

    fn cost(&self, _c: &KernelContext<'_>) -> Cost {
        Cost::default()
    }

    fn values_of_shapes(&self, c: &InferContext<'_>) -> Option<Vec<Array>> {
        c.inputs.iter().map(|f| sizes_of(&f.shape.to_dims()?, c.attrs).ok()).collect()
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        let sizes = c.inputs.iter().map(|d| sizes_of(&d.dims, c.attrs)).collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(move |l| {
            sizes.iter().enumerate().try_for_each(|(i, sizes)| match sizes.dtype() {
                DType::I64 => copy_out::<i64>(l, i, sizes),
                _ => copy_out::<i32>(l, i, sizes),
            })
        }))
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let mut launches = Vec::new();
        for (i, desc) in c.inputs.iter().enumerate() {
            let sizes = sizes_of(&desc.dims, c.attrs)?;
            launches.extend(values_launches(i, sizes.dtype(), &sizes.to_i64().unwrap_or_default()));
        }
        Ok(CudaKernel::new(launches))
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let inputs = vec![float(&[3, 2], &[0.0; 6]), float(&[], &[1.0]), float(&[0], &[])];
        vec![case(inputs, vec![ints(&[3, 2]), ints(&[]), ints(&[0])], false)]
    }
}

impl<'g> Tensor<'g> {
    /// The sizes as an `int32` vector: a constant `Shape` where all are known.
    #[track_caller]
    pub fn shape_tensor(self) -> Tensor<'g> {
        let sizes = self.shape().to_dims().and_then(|d| d.iter().map(|&d| i32::try_from(d).ok()).collect());
        self.fact::<Vec<i32>>(&ShapeOp, sizes)
    }

    /// The number of elements as an `int32` scalar: a constant `Size` where it is known.
    #[track_caller]
    pub fn size_tensor(self) -> Tensor<'g> {
        let size = self.shape().num_elements().and_then(|n| i32::try_from(n).ok());
        self.fact(&Size, size)
    }

    /// The number of axes as an `int32` scalar: a constant `Rank` where it is known.
    #[track_caller]
    pub fn rank_tensor(self) -> Tensor<'g> {
        let rank = self.shape().rank().map(|r| r as i32);
        self.fact(&Rank, rank)
    }

    #[track_caller]
    fn fact<V: crate::base::IntoArray>(self, op: crate::graph::OpRef, known: Option<V>) -> Tensor<'g> {
        match known {
            _ if self.is_poison() => self,
            Some(value) => self.graph().constant_named(op.name(), value),
            None => self.graph().node_of(op).input(self).tensor(),
        }
    }
}
