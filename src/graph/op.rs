//! The `Op` trait: everything there is to know about an op type, in one place.
//!
//! Invariant: graph, planner and session learn about an op only through this trait; none of them matches on op names.

use super::attrs::Attrs;
use super::generator::{Generator, Seeds};
use super::tensor::{Gradient, Operation, Tensor};
use crate::base::{Array, DType, Dims, Shape};
use crate::device::cuda::{CudaKernel, CudaMap, MapStep, Operand, map_kernel};
use crate::device::{CpuKernel, RowKernel, TileStream};
use smallvec::SmallVec;
use std::sync::Arc;

/// A shared reference to an op type; op types are statics.
pub type OpRef = &'static dyn Op;

/// What is known of an output when the graph is built.
#[derive(Clone, PartialEq, Debug)]
pub struct Fact {
    /// The element type.
    pub dtype: DType,
    /// The shape, as far as known.
    pub shape: Shape,
}

impl Fact {
    /// A fact.
    pub fn new(dtype: DType, shape: Shape) -> Fact {
        Fact { dtype, shape }
    }
}

/// The type and sizes of a buffer, all known.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorDesc {
    /// The element type.
    pub dtype: DType,
    /// The sizes.
    pub dims: Dims,
}

impl TensorDesc {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of bytes.
    pub fn bytes(&self) -> usize {
        self.len() * self.dtype.size()
    }
}

/// What a shape rule sees.
pub struct InferContext<'a> {
    /// The node's attributes.
    pub attrs: &'a Attrs,
    /// The facts of its inputs.
    pub inputs: &'a [Fact],
    /// The inputs' values where they are constants, in the same order.
    pub values: &'a [Option<Arc<Array>>],
}

impl InferContext<'_> {
    /// The value of an input, where it is a constant.
    pub fn value(&self, i: usize) -> Option<&Array> {
        self.values.get(i)?.as_deref()
    }

    /// The integers of a constant input of type `int32` or `int64`.
    pub fn ints(&self, i: usize) -> Option<Vec<i64>> {
        self.value(i)?.to_i64()
    }

    /// The shape of an input.
    pub fn shape(&self, i: usize) -> &Shape {
        &self.inputs[i].shape
    }

    /// The type of an input.
    pub fn dtype(&self, i: usize) -> DType {
        self.inputs[i].dtype
    }

    /// An error unless there are exactly `n` inputs.
    pub fn want_inputs(&self, n: usize) -> Result<(), String> {
        if self.inputs.len() == n {
            return Ok(());
        }
        Err(format!("want {n} inputs, got {}", self.inputs.len()))
    }

    /// The inputs' common type, or an error that names the first that differs.
    pub fn same_dtype(&self) -> Result<DType, String> {
        let first = self.inputs.first().ok_or("want at least one input, got none")?.dtype;
        match self.inputs.iter().position(|f| f.dtype != first) {
            None => Ok(first),
            Some(i) => Err(format!(
                "inputs must have one element type: input 0 is {first}, input {i} is {}; cast one of them",
                self.inputs[i].dtype
            )),
        }
    }
}

/// What a kernel is prepared from: all shapes are known.
pub struct KernelContext<'a> {
    /// The node's attributes.
    pub attrs: &'a Attrs,
    /// Types and sizes of the inputs.
    pub inputs: &'a [TensorDesc],
    /// Types and sizes of the outputs.
    pub outputs: &'a [TensorDesc],
    /// The inputs' values where they are known when planned; always there for [`Op::planned_inputs`].
    pub values: &'a [Option<Arc<Array>>],
}

impl KernelContext<'_> {
    /// The integers of an input that is known when planned.
    pub fn ints(&self, i: usize) -> Option<Vec<i64>> {
        self.values.get(i)?.as_deref()?.to_i64()
    }
}

/// What one execution of a node costs.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Cost {
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.flops += other.flops;
        self.bytes += other.bytes;
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        let mut total = Cost::default();
        costs.for_each(|cost| total += cost);
        total
    }
}

/// Small facts about an op type that the planner goes by.
#[derive(Clone, Copy, Default, Debug)]
pub struct Traits {
    /// Has effects or draws random numbers: never computed when planning, never merged with a twin.
    pub stateful: bool,
    /// Owns a variable's buffer, which is its output 0.
    pub variable: bool,
    /// Output 0 has the bytes of this input, so they share one buffer and nothing runs.
    pub forwards: Option<usize>,
    /// Output 0 may be computed in the buffer of one of these inputs; the kernel uses raw pointers then.
    pub in_place: &'static [usize],
    /// The kernel can fail on values (an index out of range, a failed check).
    pub fallible: bool,
    /// Where the kernel fails, it has not yet written any variable.
    pub checks_before_writing: bool,
    /// A product of matrices or a convolution: work that grows faster than the bytes that it reads.
    pub product: bool,
    /// Runs only on the host.
    pub host_only: bool,
    /// Replaces the whole of the variables that it writes without reading them, as initializers do.
    pub overwrites: bool,
    /// No gradient flows through, and asking for one is no error (`Shape`, `StopGradient`, comparisons).
    pub no_gradient: bool,
}

/// What a gradient rule sees.
pub struct GradContext<'g> {
    /// The forward node.
    pub node: Operation<'g>,
    /// Its inputs.
    pub inputs: Vec<Tensor<'g>>,
    /// Its outputs.
    pub outputs: Vec<Tensor<'g>>,
    /// The gradient that reaches each output; `None` for outputs that nothing depends on.
    pub grads: Vec<Option<Tensor<'g>>>,
}

impl<'g> GradContext<'g> {
    /// The gradient of output 0, which is there whenever a rule is asked.
    pub fn grad(&self) -> Tensor<'g> {
        self.grads.iter().flatten().next().copied().unwrap_or_else(|| self.node.graph().poison_tensor())
    }
}

/// The gradients of a node's inputs, one entry each; `None` where none flows.
pub type InputGradients<'g> = Vec<Option<Gradient<'g>>>;

/// One test case of an op, walked by the table's tests: shape rule against kernel, kernel against
/// expected values, gradient against numeric differences.
#[derive(Clone, Debug)]
pub struct Case {
    /// The node's attributes.
    pub attrs: Attrs,
    /// The inputs' values.
    pub inputs: Vec<Array>,
    /// The expected outputs; empty to check only shapes and gradients.
    pub outputs: Vec<Array>,
    /// Whether to compare the gradient rule with numeric differences of the kernel.
    pub gradient: bool,
}

/// What becomes of a conditional's nodes when a step is planned.
#[derive(Clone, Copy, Debug)]
pub enum ControlFlow {
    /// Input 0 goes to output 1 where input 1, the predicate, is true, and to output 0 where it is false.
    Switch {
        /// Takes the data alone; both outputs are its bytes.
        branches: OpRef,
    },
    /// Output 0 is the input whose branch was taken.
    Merge {
        /// Takes the input whose branch is known to be taken.
        taken: OpRef,
        /// Takes the predicate, the input for true and the input for false.
        select: OpRef,
    },
    /// Output 0 says whether the variable that is input 0 has a value when the step begins.
    AsksInitialized {
        /// Takes nothing; attributes `dtype` and `value` have the answer.
        constant: OpRef,
    },
}

/// What an output is where NumPy's broadcasting of something smaller to its sizes gives it.
#[derive(Clone, Debug)]
pub enum Stretched {
    /// This input.
    Input(usize),
    /// This value of no axes.
    Value(Array),
}

/// Makes the kernel that reduces an input of this type and sizes over the marked axes.
pub type ReduceKernel = fn(DType, &[usize], &[bool]) -> Result<CpuKernel, String>;

/// As [`ReduceKernel`], for the results of pieces; the last number is how many elements each result is of.
pub type MergeKernel = fn(DType, &[usize], &[bool], usize) -> Result<CpuKernel, String>;

/// How a reduction of input 0 is computed piece by piece.
pub struct Reduction {
    /// Which axes of input 0 are reduced.
    pub axes: SmallVec<[bool; 8]>,
    /// Reduces what is not cut into pieces.
    pub whole: ReduceKernel,
    /// Reduces one piece.
    pub piece: ReduceKernel,
    /// Reduces the pieces' results to that of the whole.
    pub merge: MergeKernel,
}

/// One part of a node that is split by device.
pub struct Part {
    /// Indices of the whole node's inputs that this part takes, in order.
    pub inputs: Vec<usize>,
    /// The part's attributes.
    pub attrs: Attrs,
    /// The whole node's input whose device this part runs on.
    pub follows: usize,
}

/// An op type: its name, rules and kernels. Implementors are unit structs; a node's settings are its attributes.
pub trait Op: Send + Sync {
    /// TensorFlow's op type, as in `MatMul`.
    fn name(&self) -> &'static str;

    /// The small facts that the planner goes by.
    fn traits(&self) -> Traits {
        Traits::default()
    }

    /// The types and shapes of the outputs, or what is wrong, without the node's name.
    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String>;

    /// The gradient rule: builds nodes under the current scope. `None` means that there is no rule.
    fn gradient<'g>(&self, _c: &GradContext<'g>) -> Option<InputGradients<'g>> {
        None
    }

    /// Work of one execution; the default moves every input and output once and computes one operation per output element.
    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        let bytes = c.inputs.iter().chain(c.outputs).map(|d| d.bytes() as f64).sum();
        Cost { flops: c.outputs.iter().map(|d| d.len() as f64).sum(), bytes }
    }

    /// A host kernel for these shapes, or why there is none. Not asked of ops that forward, of variables, or of nodes without outputs and effects.
    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String>;

    /// The seeds of a random node; `None`, the default, for nodes that draw nothing. Such a node's kernel is asked of
    /// [`Op::drawing_kernel`], and its state on a CUDA GPU is a [`Generator`]'s three words.
    fn seeds(&self, _attrs: &Attrs) -> Option<Seeds> {
        None
    }

    /// As [`Op::cpu_kernel`], for a node that draws from this generator, which is the session's.
    fn drawing_kernel(&self, c: &KernelContext<'_>, _generator: Arc<Generator>) -> Result<CpuKernel, String> {
        self.cpu_kernel(c)
    }

    /// The expression of one element, for ops that compute every element of their one output alone from the elements
    /// of NumPy-broadcast inputs. Such ops are fused: on CUDA as text, on the host tile by tile with their own kernels,
    /// which must therefore work for a run of rows as they do for the whole.
    fn cuda_map(&self, _c: &KernelContext<'_>) -> Option<CudaMap> {
        None
    }

    /// How a host computes it piece by piece, for reductions of input 0: on the host they are fused with what computes
    /// that input.
    fn reduction(&self, _c: &KernelContext<'_>) -> Option<Reduction> {
        None
    }

    /// A host kernel by rows of output 0, for products: on the host, what follows is fused into each block of rows.
    fn row_kernel(&self, _c: &KernelContext<'_>) -> Option<RowKernel> {
        None
    }

    /// The inputs that a host kernel can compute from their ops' operands while it runs, tile by tile: each is read once,
    /// element by element, when it is that element's turn.
    fn streamed_inputs(&self, _c: &KernelContext<'_>) -> SmallVec<[usize; 4]> {
        SmallVec::new()
    }

    /// As [`Op::cpu_kernel`], where these of [`Op::streamed_inputs`] are computed; inputs of the launch in their places
    /// have the same type and sizes, and no meaning.
    fn streaming_kernel(&self, c: &KernelContext<'_>, streams: Vec<(usize, TileStream)>) -> Result<CpuKernel, String> {
        match streams.first() {
            Some((input, _)) => Err(format!("{} cannot compute its input {input}", self.name())),
            None => self.cpu_kernel(c),
        }
    }

    /// True for products whose CUDA kernel is one [`crate::device::cuda::Gemm`], which can take a bias and a ReLU in.
    fn takes_epilogue(&self, _c: &KernelContext<'_>) -> bool {
        false
    }

    /// What runs on a CUDA GPU for these shapes, or why nothing does. Asked where `has_cuda_kernel` says so, as
    /// `cpu_kernel` is; the default makes a loop of [`Op::cuda_map`].
    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        let map = self.cuda_map(c).ok_or_else(|| format!("{} has no CUDA kernel", self.name()))?;
        let operands = (0..c.inputs.len()).map(Operand::Input).collect();
        let step = MapStep { map, dtype: c.outputs[0].dtype, operands };
        let inputs: Vec<_> = c.inputs.iter().map(|d| (d.dtype, d.dims.clone())).collect();
        map_kernel(&[step], &inputs, &c.outputs[0].dims)
    }

    /// True if a node with these attributes and outputs has a CUDA kernel, whatever its sizes. Asked when nodes
    /// are placed; what has none runs on the host. The default is true of ops for which nothing runs anywhere.
    fn has_cuda_kernel(&self, attrs: &Attrs, _outputs: &[Fact]) -> bool {
        let traits = self.traits();
        traits.forwards.is_some() || traits.variable || self.must_be_fed() || self.constant(attrs).is_some()
    }

    /// For ops whose outputs are the bytes of inputs, or runs of them: per output the input and the byte where it starts.
    /// Nothing runs for such a node. The default goes by [`Traits::forwards`].
    fn aliases(&self, _c: &KernelContext<'_>) -> Option<SmallVec<[(usize, usize); 2]>> {
        self.traits().forwards.map(|input| smallvec::smallvec![(input, 0)])
    }

    /// What the one output is stretched from, for ops that only repeat (`Tile`, `Fill`, `BroadcastTo`). Element-wise readers
    /// then read that instead.
    fn stretches(&self, _c: &KernelContext<'_>) -> Option<Stretched> {
        None
    }

    /// True where the one output is input 0 with its last two axes swapped.
    fn swaps_last_axes(&self, _c: &KernelContext<'_>) -> bool {
        false
    }

    /// The bool attribute that makes the node read this input with its last two axes swapped, for products.
    fn transposing_attr(&self, _input: usize) -> Option<&'static str> {
        None
    }

    /// Inputs whose values must be known when the step is planned (target shapes, axes), for this many inputs.
    fn planned_inputs(&self, _num_inputs: usize) -> SmallVec<[usize; 2]> {
        SmallVec::new()
    }

    /// Inputs that are variables and are written.
    fn written_inputs(&self, _attrs: &Attrs, _num_inputs: usize) -> SmallVec<[usize; 4]> {
        SmallVec::new()
    }

    /// True if a node with these attributes and outputs of these types can fail on values; the default goes by [`Traits::fallible`].
    fn can_fail(&self, _attrs: &Attrs, _outputs: &[DType]) -> bool {
        self.traits().fallible
    }

    /// How a node of this type is split when the variables that it writes live on several devices; `None` if it cannot be.
    /// `device_of` gives any value that is equal for equal devices.
    fn split(&self, _attrs: &Attrs, _num_inputs: usize, _device_of: &dyn Fn(usize) -> u32) -> Option<Vec<Part>> {
        None
    }

    /// The outputs' values, for ops that only look at the shapes of their inputs (`Shape`, `Size`, `Rank`), where those are
    /// known.
    fn values_of_shapes(&self, _c: &InferContext<'_>) -> Option<Vec<Array>> {
        None
    }

    /// What a conditional's node becomes when a step is planned; `None` for all other ops.
    fn control_flow(&self) -> Option<ControlFlow> {
        None
    }

    /// True if inputs of types that turret holds no values of are allowed, and count for nothing.
    fn ignores_opaque_inputs(&self) -> bool {
        false
    }

    /// True for [`Unknown`](super::Unknown) alone, whose nodes cannot run.
    fn is_unknown(&self) -> bool {
        false
    }

    /// True for placeholders: a run that needs the node must feed its output.
    fn must_be_fed(&self) -> bool {
        false
    }

    /// True for nodes that a run may feed as a matter of course, so that no value of theirs is known beforehand.
    fn may_be_fed(&self) -> bool {
        self.must_be_fed()
    }

    /// The value, for ops whose output is a constant of their attributes.
    fn constant<'a>(&self, _attrs: &'a Attrs) -> Option<&'a Arc<Array>> {
        None
    }

    /// True for ops of which every output is the sum of all inputs, as many as outputs: where the inputs lie on as many
    /// CUDA GPUs that NCCL reaches, the node becomes one collective call whose outputs lie where the inputs do.
    fn is_all_reduce(&self) -> bool {
        false
    }

    /// Element types that the op does not have a kernel for on a GPU, real or simulated.
    fn gpu_lacks(&self, _dtype: DType) -> bool {
        false
    }

    /// Cases that the table's tests walk.
    fn cases(&self) -> Vec<Case> {
        Vec::new()
    }
}

impl std::fmt::Debug for dyn Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
