//! What an op asks of a CUDA GPU: launches of kernels written in CUDA C, products, copies, in order.
//!
//! Absent: anything that needs a driver. An op describes its launches when a step is planned; the backend compiles the
//! texts, fills in addresses and enqueues them. Invariant: a description holds no address, so that it is the same for
//! every device, and equal texts are compiled once.

use crate::base::DType;
use std::fmt;
use std::sync::Arc;

/// The threads of a block where nothing asks for another number.
pub const BLOCK: u32 = 256;

/// One node's work on a CUDA GPU.
#[derive(Clone, Default)]
pub struct CudaKernel {
    /// What is enqueued, in order.
    pub launches: Vec<CudaLaunch>,
    /// Bytes of memory that the launches share among themselves, without contents at first.
    pub scratch_bytes: usize,
    /// First contents of memory that stays with the node for the session's life, such as a random generator's counter.
    pub state: Option<Vec<u8>>,
    /// The message for what a launch reported with `turret_fail(failure, node, position, value)`.
    pub failure: Option<FailureText>,
}

/// Makes the message of a failed check from the position and the value that the kernel reported.
pub type FailureText = Arc<dyn Fn(i64, i64) -> String + Send + Sync>;

impl CudaKernel {
    /// Work of these launches, with no memory of its own.
    pub fn new(launches: impl IntoIterator<Item = CudaLaunch>) -> CudaKernel {
        CudaKernel { launches: launches.into_iter().collect(), ..CudaKernel::default() }
    }

    /// All launches, those of convolutions without cuDNN and around cuDNN too, in order.
    pub fn all_launches(&self) -> impl Iterator<Item = &CudaLaunch> {
        self.launches.iter().flat_map(|launch| {
            let (first, rest) = match launch {
                CudaLaunch::Convolution(c) => (None, [&c.own[..], &c.before[..], &c.after[..]]),
                _ => (Some(launch), [&[][..]; 3]),
            };
            first.into_iter().chain(rest.into_iter().flatten())
        })
    }

    /// Work of one launch of own code; nothing where there are no elements.
    pub fn elements(code: CudaCode, len: usize, args: impl IntoIterator<Item = CudaArg>) -> CudaKernel {
        CudaKernel::new((len > 0).then(|| CudaLaunch::elements(code, len, args)))
    }
}

impl fmt::Debug for CudaKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaKernel")
            .field("launches", &self.launches)
            .field("scratch_bytes", &self.scratch_bytes)
            .field("state", &self.state)
            .field("can_fail", &self.failure.is_some())
            .finish()
    }
}

/// One thing to enqueue on a compute stream.
#[derive(Clone, Debug, PartialEq)]
pub enum CudaLaunch {
    /// A kernel of our own.
    Code {
        /// Its text.
        code: CudaCode,
        /// Number of blocks, at least 1.
        blocks: u32,
        /// Threads of a block, at most 1024.
        threads: u32,
        /// Bytes of dynamic shared memory.
        shared_bytes: u32,
        /// The parameters, in the order of the text.
        args: Vec<CudaArg>,
    },
    /// A product by cuBLAS or cuBLASLt.
    Gemm(Gemm),
    /// A convolution, or a gradient of one.
    Convolution(Box<Convolution>),
    /// Copies bytes within the device.
    Copy {
        /// Where they are.
        from: CudaBuffer,
        /// Where they go; no part of the source.
        to: CudaBuffer,
        /// How many.
        bytes: usize,
    },
    /// Sets bytes to zero.
    Zero {
        /// Where.
        to: CudaBuffer,
        /// How many.
        bytes: usize,
    },
}

impl CudaLaunch {
    /// A kernel with one thread for each of `len > 0` elements (or fewer, in a grid-stride loop).
    pub fn elements(code: CudaCode, len: usize, args: impl IntoIterator<Item = CudaArg>) -> CudaLaunch {
        let blocks = len.div_ceil(BLOCK as usize).clamp(1, 1 << 16) as u32;
        CudaLaunch::Code { code, blocks, threads: BLOCK, shared_bytes: 0, args: args.into_iter().collect() }
    }
}

/// A buffer of a node's launch, by its role, and the byte where the part in question starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CudaBuffer {
    /// An input of the node.
    Input(usize, usize),
    /// An output of the node.
    Output(usize, usize),
    /// The scratch memory.
    Scratch(usize),
    /// The node's state.
    State(usize),
}

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CudaArg {
    /// The address of a buffer: `const T*` where the text only reads it, `T*` otherwise.
    Buffer(CudaBuffer),
    /// Two parameters, `volatile unsigned long long* failure, unsigned node`: for `turret_fail` and `turret_failed`.
    Failure,
    /// An `int`.
    I32(i32),
    /// An `unsigned`.
    U32(u32),
    /// A `long long`.
    I64(i64),
    /// An `unsigned long long`.
    U64(u64),
    /// A `float`.
    F32(f32),
    /// A `double`.
    F64(f64),
}

impl CudaArg {
    /// The start of an input.
    pub fn input(i: usize) -> CudaArg {
        CudaArg::Buffer(CudaBuffer::Input(i, 0))
    }

    /// The start of an output.
    pub fn output(i: usize) -> CudaArg {
        CudaArg::Buffer(CudaBuffer::Output(i, 0))
    }

    /// A count or step as `long long`.
    pub fn size(n: usize) -> CudaArg {
        CudaArg::I64(n as i64)
    }
}

/// The text of one kernel: CUDA C with `extern "C" __global__ void ENTRY(…)`, to which the backend gives a name.
///
/// It may use what `prelude.cu` has, and needs no header. Sizes are parameters rather than part of the text, so that
/// one compilation serves all of them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CudaCode {
    text: String,
}

impl CudaCode {
    /// A text as it stands.
    pub fn new(text: impl Into<String>) -> CudaCode {
        CudaCode { text: text.into() }
    }

    /// The same with a type name that the text uses, as in `T` for `float`.
    pub fn with_type(mut self, name: &str, dtype: DType) -> CudaCode {
        self.text.insert_str(0, &format!("typedef {} {name};\n", c_type(dtype)));
        self
    }

    /// The same with a whole-number constant that the text uses.
    pub fn with_constant(mut self, name: &str, value: i64) -> CudaCode {
        self.text.insert_str(0, &format!("static constexpr long long {name} = {value};\n"));
        self
    }

    /// The text, in which the kernel is still called `ENTRY`.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// A convolution by cuDNN where that has a way, else by launches of the op's own.
#[derive(Clone, Debug, PartialEq)]
pub struct Convolution {
    /// Its sizes.
    pub geometry: ConvGeometry,
    /// Which of the three is computed from the other two.
    pub of: ConvResult,
    /// The image, or its gradient.
    pub image: CudaBuffer,
    /// The filter, or its gradient, in cuDNN's layout: filter by filter, each as the image is.
    pub filter: CudaBuffer,
    /// The output, or its gradient.
    pub output: CudaBuffer,
    /// What brings the filter in cuDNN's layout, in scratch memory.
    pub before: Vec<CudaLaunch>,
    /// What brings the filter's gradient back from it.
    pub after: Vec<CudaLaunch>,
    /// Bytes of scratch memory from its start that these use.
    pub scratch_bytes: usize,
    /// The launches without cuDNN.
    pub own: Vec<CudaLaunch>,
}

/// The sizes of a convolution whose padding is the same on both sides. Pairs are of height and width.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConvGeometry {
    /// `float32` or `float64`.
    pub dtype: DType,
    /// `NHWC`, else `NCHW`.
    pub channels_last: bool,
    /// Images.
    pub batch: usize,
    /// An image's size.
    pub image: [usize; 2],
    /// An image's channels, over all groups.
    pub channels: usize,
    /// A filter's size.
    pub taps: [usize; 2],
    /// Groups of channels.
    pub groups: usize,
    /// Filters, over all groups.
    pub filters: usize,
    /// The output's size.
    pub out: [usize; 2],
    /// Steps of the filter.
    pub strides: [usize; 2],
    /// Steps within the filter.
    pub dilations: [usize; 2],
    /// Padding before and after.
    pub pads: [usize; 2],
}

/// What a convolution computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ConvResult {
    /// The output.
    Output,
    /// The image's gradient.
    Image,
    /// The filter's gradient.
    Filter,
}

/// The type of an element in CUDA C.
pub fn c_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::F64 => "double",
        DType::I32 => "int",
        DType::I64 => "long long",
        DType::Bool | DType::U8 | DType::Opaque(_) => "unsigned char",
        DType::F16 | DType::BF16 => "unsigned short",
    }
}

/// A product of row-major matrices: `c[m, n] = op(a) · op(b)`, then the epilogue.
#[derive(Clone, Debug, PartialEq)]
pub struct Gemm {
    /// `float32` or `float64`.
    pub dtype: DType,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Length of the sums; where it is 0 the result is 0.
    pub k: usize,
    /// `a` is stored as `[k, m]`.
    pub transpose_a: bool,
    /// `b` is stored as `[n, k]`.
    pub transpose_b: bool,
    /// The first factor.
    pub a: CudaBuffer,
    /// The second factor.
    pub b: CudaBuffer,
    /// The result, no part of another buffer.
    pub c: CudaBuffer,
    /// Added to every row, `[n]`.
    pub bias: Option<CudaBuffer>,
    /// Negative values become 0, after the bias.
    pub relu: bool,
}

/// An element-wise op in CUDA C: one expression for one element.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaMap {
    /// The output's element; `$0`, `$1`, … stand for the inputs' elements, of the inputs' types.
    pub expression: String,
    /// A condition on which the op fails, and its message; such an op is fused with no other.
    pub refuses: Option<(String, &'static str)>,
}

impl CudaMap {
    /// The sum of two elements.
    pub const SUM: &'static str = "turret_plus($0, $1)";

    /// The element, or 0 where it is negative.
    pub const RELU: &'static str = "turret_rectified($0)";

    /// An expression that cannot fail.
    pub fn new(expression: impl Into<String>) -> CudaMap {
        CudaMap { expression: expression.into(), refuses: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_carries_its_types_and_constants() {
        let code = CudaCode::new("void ENTRY(const T* x);").with_type("T", DType::I64).with_constant("RANK", 3);
        let want = "static constexpr long long RANK = 3;\ntypedef long long T;\nvoid ENTRY(const T* x);";
        assert_eq!(code.text(), want);
    }
}
