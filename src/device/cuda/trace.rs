//! When a traced step's commands ran, by events around each.

use super::call::CudaResult;
use super::context::{Event, Stream};
use super::gpu::Gpu;
use crate::device::DeviceId;

/// When a node's work ran, from the start of its segment.
pub struct GpuSpan {
    /// The step's node.
    pub node: u32,
    /// The device.
    pub device: DeviceId,
    /// Nanoseconds.
    pub start_ns: u64,
    /// Nanoseconds.
    pub end_ns: u64,
}

/// The times of a segment's commands, while they are not yet read.
#[derive(Default)]
pub struct Trace {
    starts: Vec<(DeviceId, Event)>,
    marks: Vec<(u32, DeviceId, Event, Event)>,
}

impl Trace {
    /// Notes where a GPU's part starts.
    pub(super) fn begin(&mut self, gpu: &Gpu, stream: &Stream) -> CudaResult<()> {
        self.starts.push((gpu.device, self.mark(gpu, stream)?));
        Ok(())
    }

    /// An event of this moment of a stream.
    pub(super) fn mark(&self, gpu: &Gpu, stream: &Stream) -> CudaResult<Event> {
        let event = Event::new(&gpu.context, true)?;
        event.record(stream)?;
        Ok(event)
    }

    /// Notes that a node's command ended here.
    pub(super) fn note(&mut self, node: u32, before: Event, gpu: &Gpu, stream: &Stream) -> CudaResult<()> {
        let after = self.mark(gpu, stream)?;
        self.marks.push((node, gpu.device, before, after));
        Ok(())
    }

    /// When the commands ran, once the segment was waited for.
    pub fn spans(&self) -> Vec<GpuSpan> {
        let ns = |from: &Event, to: &Event| to.since(from).map_or(0, |ms| (f64::from(ms) * 1e6).max(0.0) as u64);
        let spans = self.marks.iter().filter_map(|(node, device, before, after)| {
            let start = &self.starts.iter().find(|s| s.0 == *device)?.1;
            let (start_ns, end_ns) = (ns(start, before), ns(start, after));
            Some(GpuSpan { node: *node, device: *device, start_ns, end_ns: end_ns.max(start_ns) })
        });
        spans.collect()
    }
}
