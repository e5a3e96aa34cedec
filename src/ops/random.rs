//! Random ops, bit for bit as TensorFlow's host kernels draw: `RandomUniform`, `RandomStandardNormal`,
//! `TruncatedNormal`, `RandomUniformInt`.
//!
//! The place in the stream is the session's, so it goes on from run to run. Bits of the normal
//! distributions rest on the C library's `sinf`, `cosf` and `logf`, as TensorFlow's do.

use super::philox::{Drawn, Philox, Single};
use super::support::{GRAIN, int_scalar, int_vector, sized, sizes_from};
use crate::base::{Array, DType, Element, Shape};
use crate::device::CpuKernel;
use crate::device::cuda::{CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch, FailureText};
use crate::graph::{Attrs, Case, Fact, Generator, InferContext, KernelContext, Op, Seeds, Traits};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Blocks of four numbers that a run takes per output element, used or not: TensorFlow's reserve for rejections.
const RESERVED: u64 = 256;

/// The node's two seeds; two zeros ask for entropy.
fn seeds(attrs: &Attrs) -> Seeds {
    match [attrs.int("seed").unwrap_or(0) as u64, attrs.int("seed2").unwrap_or(0) as u64] {
        [0, 0] => Seeds::Entropy,
        seeds => Seeds::Given(seeds),
    }
}

/// A CUDA kernel that draws `len` numbers by a text that follows `philox.cu`, and then moves on in the node's state.
/// Input buffers in `bounds` go to both launches.
fn drawing(attrs: &Attrs, code: [CudaCode; 2], per_block: usize, len: usize, bounds: &[CudaArg]) -> CudaKernel {
    if len == 0 {
        return CudaKernel::default();
    }
    let [draw, taken] = code;
    let state = CudaArg::Buffer(CudaBuffer::State(0));
    let mut args = vec![state];
    args.extend_from_slice(bounds);
    let mut drawn = args.clone();
    drawn.push(CudaArg::output(0));
    drawn.extend((!bounds.is_empty()).then_some(CudaArg::Failure));
    drawn.push(CudaArg::size(len));
    args.push(CudaArg::U64((len as u64).wrapping_mul(RESERVED)));
    let taken = CudaLaunch::Code { code: taken, blocks: 1, threads: 32, shared_bytes: 0, args };
    let state = Generator::new(seeds(attrs)).words().into_iter().flat_map(u64::to_le_bytes).collect();
    CudaKernel {
        state: Some(state),
        ..CudaKernel::new([CudaLaunch::elements(draw, len.div_ceil(per_block), drawn), taken])
    }
}

/// The stream of the next run of `len` elements.
fn take(generator: &Generator, len: usize) -> Philox {
    let [seed, seed2, taken] = generator.take((len as u64).wrapping_mul(RESERVED));
    Philox::new(seed, seed2).skip(taken)
}

/// A kernel that fills its output in groups of a fixed size, each from its number and the run's stream alone.
fn groups<T: Element>(
    generator: Arc<Generator>,
    size: usize,
    group: impl Fn(Philox, u64, &mut [T]) + Send + Sync + 'static,
) -> CpuKernel {
    Box::new(move |l| {
        struct Out<T>(*mut T);
        // SAFETY: each group writes its own elements.
        unsafe impl<T> Sync for Out<T> {}
        let out = l.output::<T>(0);
        let (len, stream) = (out.len(), take(&generator, out.len()));
        let start = Out(out.as_mut_ptr());
        let start = &start;
        l.team().chunks(len.div_ceil(size), GRAIN / 16 / size, |numbers| {
            for number in numbers {
                let at = number * size;
                // SAFETY: inside of the output, and this group's alone.
                let out = unsafe { std::slice::from_raw_parts_mut(start.0.add(at), size.min(len - at)) };
                group(stream, number as u64, out);
            }
        });
        Ok(())
    })
}

fn uniform<T: Drawn>(generator: Arc<Generator>) -> CpuKernel {
    groups::<T>(generator, T::PER_BLOCK, |stream, number, out| {
        let block = stream.skip(number).next();
        out.iter_mut().enumerate().for_each(|(i, o)| *o = T::uniform(&block, i));
    })
}

fn normal<T: Drawn>(generator: Arc<Generator>) -> CpuKernel {
    groups::<T>(generator, T::PER_BLOCK, |stream, number, out| {
        let block = stream.skip(number).next();
        for (pair, out) in out.chunks_mut(2).enumerate() {
            out.copy_from_slice(&T::normals(&block, pair)[..out.len()]);
        }
    })
}

fn truncated<T: Drawn>(generator: Arc<Generator>) -> CpuKernel {
    groups::<T>(generator, T::PER_BLOCK, |stream, number, out| {
        // Each group has a region of its own, so that rejections in one do not move the others.
        let mut single = Single::new(stream.skip(number.wrapping_mul(T::PER_BLOCK as u64 * RESERVED / 4)));
        let mut filled = 0;
        loop {
            let mut block = [0; 4];
            // A pair takes two numbers in single precision and all four in double.
            block[..8 / T::PER_BLOCK].iter_mut().for_each(|b| *b = single.next());
            for value in T::normals(&block, 0).into_iter().filter(|v| v.is_near()) {
                out[filled] = value;
                filled += 1;
                if filled == out.len() {
                    return;
                }
            }
        }
    })
}

/// The output's fact: the sizes are the value of input 0.
fn drawn(c: &InferContext<'_>, dtype: DType) -> Result<Vec<Fact>, String> {
    let shape = match int_vector(c, 0, "the shape")? {
        Some(sizes) => Shape::known(&sizes_from(&sizes, "sizes")?),
        None => c.shape(0).dim(0).map_or(Shape::unknown(), Shape::of_rank),
    };
    Ok(vec![sized(dtype, shape)?])
}

fn floating(c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
    c.want_inputs(1)?;
    match c.attrs.dtype("dtype") {
        Some(dtype) if dtype.is_floating() => drawn(c, dtype),
        Some(dtype) => Err(format!("attribute 'dtype' must be float32 or float64, got {dtype}")),
        None => Err("attribute 'dtype' is missing".into()),
    }
}

fn case(attrs: Attrs, more: &[Array], outputs: Array) -> Option<Case> {
    let mut inputs = vec![Array::new(&[1], &[i32::try_from(outputs.len()).ok()?]).ok()?];
    inputs.extend(more.iter().cloned());
    Some(Case { attrs, inputs, outputs: vec![outputs], gradient: false })
}

fn seeded() -> Attrs {
    Attrs::new().with("seed", 1i64).with("seed2", 2i64)
}

macro_rules! random {
    ($(#[$doc:meta])* $op:ident, $name:literal, $kernel:ident, $kind:literal, $values:expr) => {
        $(#[$doc])*
        pub struct $op;

        impl Op for $op {
            fn name(&self) -> &'static str {
                $name
            }

            fn traits(&self) -> Traits {
                Traits { stateful: true, no_gradient: true, ..Traits::default() }
            }

            fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
                floating(c)
            }

            fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
                smallvec![0]
            }

            fn seeds(&self, attrs: &Attrs) -> Option<Seeds> {
                Some(seeds(attrs))
            }

            fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
                self.drawing_kernel(c, Arc::new(Generator::new(seeds(c.attrs))))
            }

            fn drawing_kernel(&self, c: &KernelContext<'_>, generator: Arc<Generator>) -> Result<CpuKernel, String> {
                Ok(match c.outputs[0].dtype {
                    DType::F64 => $kernel::<f64>(generator),
                    _ => $kernel::<f32>(generator),
                })
            }

            fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
                let desc = &c.outputs[0];
                let draw = CudaCode::new(concat!(include_str!("cuda/philox.cu"), include_str!("cuda/random.cu")))
                    .with_type("T", desc.dtype)
                    .with_constant("KIND", $kind);
                let taken = CudaCode::new(include_str!("cuda/random_taken.cu"));
                Ok(drawing(c.attrs, [draw, taken], 16 / desc.dtype.size(), desc.len(), &[]))
            }

            fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
                true
            }

            fn cases(&self) -> Vec<Case> {
                let outputs = Array::new(&[3], &$values).ok();
                let attrs = seeded().with("dtype", DType::F32);
                outputs.and_then(|o| case(attrs, &[], o)).into_iter().collect()
            }
        }
    };
}

random!(
    /// TensorFlow's `RandomUniform`: uniform in `[0, 1)`; input the shape, attributes `dtype`, `seed`, `seed2`.
    RandomUniform,
    "RandomUniform",
    uniform,
    0,
    [0.40639675f32, 0.8575996, 0.05539584]
);
random!(
    /// TensorFlow's `RandomStandardNormal`: mean 0, deviation 1; input and attributes as [`RandomUniform`].
    RandomStandardNormal,
    "RandomStandardNormal",
    normal,
    1,
    [-1.0467793f32, 0.8397046, 1.2358364]
);
random!(
    /// TensorFlow's `TruncatedNormal`: as [`RandomStandardNormal`], drawn again where 2 or more from 0.
    TruncatedNormal,
    "TruncatedNormal",
    truncated,
    2,
    [-1.0467793f32, 0.8397046, 1.2358364]
);

/// TensorFlow's `RandomUniformInt`: uniform in `[minval, maxval)`; inputs shape, minval, maxval.
pub struct RandomUniformInt;

impl Op for RandomUniformInt {
    fn name(&self) -> &'static str {
        "RandomUniformInt"
    }

    fn traits(&self) -> Traits {
        Traits { stateful: true, no_gradient: true, fallible: true, ..Traits::default() }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        c.want_inputs(3)?;
        let (low, high) = (int_scalar(c, 1, "minval")?, int_scalar(c, 2, "maxval")?);
        if c.dtype(1) != c.dtype(2) {
            return Err(format!("minval and maxval must have one type, got {} and {}", c.dtype(1), c.dtype(2)));
        }
        if let (Some(low), Some(high)) = (low, high)
            && low >= high
        {
            return Err(empty_range(low, high));
        }
        drawn(c, c.dtype(1))
    }

    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        smallvec![0]
    }

    fn seeds(&self, attrs: &Attrs) -> Option<Seeds> {
        Some(seeds(attrs))
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        self.drawing_kernel(c, Arc::new(Generator::new(seeds(c.attrs))))
    }

    fn drawing_kernel(&self, c: &KernelContext<'_>, generator: Arc<Generator>) -> Result<CpuKernel, String> {
        fn kernel<T: Element + Into<i64>>(
            generator: Arc<Generator>,
            draw: fn(&[u32; 4], usize, T, T) -> T,
            size: usize,
        ) -> CpuKernel {
            Box::new(move |l| {
                let (low, high) = (l.input::<T>(1)[0], l.input::<T>(2)[0]);
                if low.into() >= high.into() {
                    return Err(empty_range(low.into(), high.into()));
                }
                let out = l.output::<T>(0);
                let stream = take(&generator, out.len());
                for (number, out) in out.chunks_mut(size).enumerate() {
                    let block = stream.skip(number as u64).next();
                    out.iter_mut().enumerate().for_each(|(i, o)| *o = draw(&block, i, low, high));
                }
                Ok(())
            })
        }
        Ok(match c.outputs[0].dtype {
            DType::I32 => kernel::<i32>(
                generator,
                |block, i, low, high| low.wrapping_add((block[i] % high.wrapping_sub(low) as u32) as i32),
                4,
            ),
            _ => kernel::<i64>(
                generator,
                |block, i, low, high| {
                    let bits = u64::from(block[2 * i]) | (u64::from(block[2 * i + 1]) << 32);
                    low.wrapping_add((bits % high.wrapping_sub(low) as u64) as i64)
                },
                2,
            ),
        })
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let desc = &c.outputs[0];
        let draw = concat!(include_str!("cuda/philox.cu"), include_str!("cuda/random_int.cu"));
        let code = [draw, include_str!("cuda/random_int_taken.cu")];
        let code = code.map(|text| CudaCode::new(text).with_type("T", desc.dtype));
        let bounds = [CudaArg::input(1), CudaArg::input(2)];
        // The kernel tells how far minval is above maxval, and minval, both cut to their bits.
        let failure: FailureText = Arc::new(|above, low| match above < TOLD && low.abs() < i64::from(i32::MAX) {
            true => empty_range(low, low - above),
            false => "minval must be below maxval".into(),
        });
        let kernel = drawing(c.attrs, code, 16 / desc.dtype.size(), desc.len(), &bounds);
        Ok(CudaKernel { failure: Some(failure), ..kernel })
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }

    fn cases(&self) -> Vec<Case> {
        let outputs = Array::new(&[5], &[9i32, 5, 2, 9, 1]).ok();
        let bounds = [Array::scalar(0i32), Array::scalar(10i32)];
        outputs.and_then(|o| case(seeded(), &bounds, o)).into_iter().collect()
    }
}

/// The largest position that a failed CUDA kernel can tell.
const TOLD: i64 = 0x3fff_ffff;

fn empty_range(low: i64, high: i64) -> String {
    format!("minval must be below maxval, got {low} and {high}")
}
