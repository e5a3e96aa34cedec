//! What is enqueued on a stream, and where.

use super::collective::AllReduce;
use super::context::{Event, PinnedMemory};
use super::dnn::PreparedConvolution;
use super::gemm::PreparedGemm;
use super::launch::KernelCall;
use crate::device::Lane;

/// One thing that is enqueued.
pub enum CudaCommand {
    /// Makes the stream wait for an event of the step.
    Wait(usize),
    /// Marks an event of the step.
    Signal(usize),
    /// Launches a kernel.
    Kernel(KernelCall),
    /// A product.
    Gemm(PreparedGemm),
    /// A convolution by cuDNN.
    Convolution(PreparedConvolution),
    /// Copies within the GPU's memory: destination, source, bytes.
    Within(u64, u64, usize),
    /// Sets bytes to zero: destination, bytes.
    Zero(u64, usize),
    /// Copies from pinned host memory: destination, source, bytes.
    FromHost(u64, *const u8, usize),
    /// Copies to pinned host memory: destination, source, bytes.
    ToHost(*mut u8, u64, usize),
    /// Copies from another GPU (its number in the step): destination, GPU, source, bytes.
    FromPeer(u64, usize, u64, usize),
    /// Copies from another GPU through pinned host memory.
    ThroughHost(Box<ThroughHost>),
    /// A sum over GPUs, on the peer stream of the first.
    AllReduce(Box<AllReduce>),
}

/// A copy between GPUs that do not get bytes to each other rightly.
pub struct ThroughHost {
    /// Where the bytes go.
    pub to: u64,
    /// The sending GPU's number in the step.
    pub source: usize,
    /// Where the bytes are.
    pub from: u64,
    /// As large as what is copied.
    pub staging: PinnedMemory,
    /// Marked when the source may be read, and when the staging memory is full.
    pub turns: [Event; 2],
}

/// A command in its place.
pub struct Placed {
    /// The step's node, for messages and traces.
    pub node: u32,
    /// The GPU's number in the step.
    pub gpu: usize,
    /// Its stream.
    pub lane: Lane,
    /// True if it changes variables.
    pub writes: bool,
    /// What is done.
    pub command: CudaCommand,
}

/// Host bytes that are copied to a GPU before the first segment.
pub struct Upload {
    /// The step's node.
    pub node: u32,
    /// The GPU's number in the step.
    pub gpu: usize,
    /// Which feed, and the byte of it where the copy starts.
    pub feed: (usize, usize),
    /// Where the bytes go, and how many.
    pub to: (u64, usize),
}
