//! How several nodes of a step are one: chains, tiles, epilogues of products, updates that compute their gradients.
//!
//! Absent: what becomes one (`fuse.rs`, `tiling.rs`, `updates.rs`) and how it runs.

use super::step::{Partitioned, StepNode, ValueId};
use crate::base::{Array, Dims};
use crate::device::cuda::Operand;
use crate::graph::{Attrs, KernelContext, NodeId, OpRef, Reduction, TensorDesc};
use indexmap::IndexSet;
use smallvec::SmallVec;
use std::sync::Arc;

/// How several nodes are one.
#[derive(Clone, Debug)]
pub enum Fusion {
    /// Element-wise ops in order; the last is the node's own. On a CUDA GPU.
    Chain(Vec<Part>),
    /// Ops that run one after the other on tiles. On the host and simulated GPUs.
    Tiled(Tiled),
    /// A product, and what is done to its result. On a CUDA GPU.
    Epilogue {
        /// The input that is added to every row.
        bias: Option<usize>,
        /// Negative values become 0.
        relu: bool,
        /// The graph nodes of the product and of the bias.
        of: (NodeId, Option<NodeId>),
        /// The op types that were taken in, in order.
        names: Vec<&'static str>,
    },
    /// An update of variables that computes some of its inputs itself. On the host and simulated GPUs.
    Update {
        /// How many of the node's inputs are its op's; what only its streams read follows.
        op_inputs: usize,
        /// By input that is computed.
        streams: Vec<Streamed>,
    },
}

/// An input of an update that element-wise ops compute, tile by tile, when it is asked for.
#[derive(Clone, Debug)]
pub struct Streamed {
    /// The op's input. In its place is an operand of the same type and sizes.
    pub place: usize,
    /// The ops, of which the last makes it: there is no other output. All sizes are rows.
    pub tiled: Tiled,
}

/// Ops that run one after the other on tiles of rows: a product that is computed by rows, element-wise ops, reductions.
#[derive(Clone, Debug)]
pub struct Tiled {
    /// The ops in order. Of a reduction only input 0 is an operand.
    pub parts: Vec<Part>,
    /// The sizes that all element-wise ops have and all reductions begin with.
    pub dims: Dims,
    /// How many of the leading axes count rows.
    pub row_axes: usize,
    /// Where part 0 is a product: the output whose buffer its rows are computed in.
    pub product_in: Option<usize>,
    /// By output of the node: the part that makes it.
    pub outputs: Vec<usize>,
}

/// One op of a chain or a tiled.
#[derive(Clone, Debug)]
pub struct Part {
    /// The graph node that it comes from.
    pub node: NodeId,
    /// Its op type.
    pub op: OpRef,
    /// Its attributes.
    pub attrs: Arc<Attrs>,
    /// Types and sizes of its inputs.
    pub inputs: SmallVec<[TensorDesc; 3]>,
    /// The inputs' values, where they are known.
    pub values: SmallVec<[Option<Arc<Array>>; 3]>,
    /// Type and sizes of its output.
    pub output: TensorDesc,
    /// Where its inputs come from.
    pub operands: Vec<Operand>,
}

impl Fusion {
    /// The op types in it, in order, as in `Mul+AddV2`. `first` is the node's own, which an epilogue follows, and which
    /// comes last of an update: `AddN+RealDiv+ApplyGradients`, where equal streams are said once.
    pub fn describe(&self, first: &str) -> String {
        match self {
            Fusion::Chain(parts) | Fusion::Tiled(Tiled { parts, .. }) => names(parts),
            Fusion::Update { streams, .. } => {
                let all: IndexSet<String> = streams.iter().map(|s| names(&s.tiled.parts)).collect();
                all.iter().map(String::as_str).chain([first]).collect::<Vec<_>>().join("+")
            }
            Fusion::Epilogue { names, .. } => format!("{first}+{}", names.join("+")),
        }
    }
}

fn names(parts: &[Part]) -> String {
    parts.iter().map(|p| p.op.name()).collect::<Vec<_>>().join("+")
}

/// How an op is reduced piece by piece, if it is a reduction; what computes every element alone is none.
pub(super) fn reduction(op: OpRef, c: &KernelContext<'_>) -> Option<Reduction> {
    if op.cuda_map(c).is_some() { None } else { op.reduction(c) }
}

impl Streamed {
    pub(super) fn reads(&self, input: usize) -> bool {
        self.tiled.parts.iter().any(|p| p.operands.contains(&Operand::Input(input)))
    }
}

impl Tiled {
    /// True if output 0 may be computed in this input's buffer: no part reads the input after the output is written.
    pub(super) fn ends_reading(&self, input: usize) -> bool {
        let Some(&writer) = self.outputs.first() else { return false };
        let reads = |p: &Part| p.operands.contains(&Operand::Input(input));
        let in_place = self.parts[writer].op.traits().in_place;
        let own = self.parts[writer].operands.iter().enumerate().filter(|(_, o)| **o == Operand::Input(input));
        self.product_in.is_none()
            && self.parts[writer].output.dims == self.dims
            && !self.parts[writer + 1..].iter().any(reads)
            && own.into_iter().all(|(i, _)| in_place.contains(&i))
    }
}

impl Part {
    /// A node's op as a part of another node.
    pub(super) fn of(step: &Partitioned, node: &StepNode, op: OpRef, operands: Vec<Operand>) -> Part {
        let desc = |v: &ValueId| step.value(*v).desc.clone();
        Part {
            node: node.node,
            op,
            attrs: node.attrs.clone(),
            inputs: node.inputs.iter().map(desc).collect(),
            values: node.inputs.iter().map(|v| step.value(*v).known().cloned()).collect(),
            output: desc(&node.outputs[0]),
            operands,
        }
    }

    /// How it is reduced piece by piece, if it is a reduction and no element-wise op.
    pub fn reduction(&self) -> Option<Reduction> {
        self.with_kernel_context(|c| reduction(self.op, c))
    }

    /// Asks something of its op.
    pub fn with_kernel_context<R>(&self, ask: impl FnOnce(&KernelContext<'_>) -> R) -> R {
        let outputs = std::slice::from_ref(&self.output);
        ask(&KernelContext { attrs: &self.attrs, inputs: &self.inputs, outputs, values: &self.values })
    }
}
