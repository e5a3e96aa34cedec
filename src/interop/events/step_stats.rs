//! A traced run as TensorFlow's `RunMetadata`, which TensorBoard colours a graph by.

use super::messages::{
    AllocationDescription, AllocatorMemoryUsed, DeviceStepStats, NodeExecStats, NodeOutput, RunMetadataProto,
    StepStats, TensorDescription,
};
use crate::base::Shape;
use crate::device::{DeviceId, Machine};
use crate::interop::arrays::StoredType;
use crate::interop::graphdef::write_shape;
use crate::run::{NodeSpan, RunMetadata};
use std::collections::BTreeMap;

/// The message of a run that began at a time, in microseconds since 1970.
pub(super) fn message(metadata: &RunMetadata, machine: &Machine, began_micros: i64) -> RunMetadataProto {
    let mut by_device: BTreeMap<DeviceId, Vec<NodeExecStats>> = BTreeMap::new();
    for span in &metadata.spans {
        by_device.entry(span.queue.device).or_default().push(node(span, machine, began_micros));
    }
    let devices = by_device
        .into_iter()
        .map(|(device, node_stats)| DeviceStepStats { device: machine.device(device).name.to_string(), node_stats });
    RunMetadataProto { step_stats: Some(StepStats { dev_stats: devices.collect() }) }
}

fn node(span: &NodeSpan, machine: &Machine, began_micros: i64) -> NodeExecStats {
    let took = span.end_ns.saturating_sub(span.start_ns) as i64;
    let allocator = machine.device(span.queue.device).short_name();
    let output = |(slot, desc): (usize, &crate::graph::TensorDesc)| NodeOutput {
        slot: slot as i32,
        tensor_description: Some(TensorDescription {
            dtype: StoredType::from(desc.dtype).tensorflow().unwrap_or(0),
            shape: Some(write_shape(&Shape::known(&desc.dims))),
            allocation_description: Some(AllocationDescription {
                requested_bytes: desc.bytes() as i64,
                allocator_name: allocator.clone(),
            }),
        }),
    };
    let label = match &span.copy {
        Some(copy) => format!("[{} B] {} → {}", copy.bytes, copy.from, copy.to),
        None => format!("{} = {}", span.name, span.what),
    };
    let bytes = span.bytes() as i64;
    NodeExecStats {
        node_name: span.name.to_string(),
        all_start_micros: began_micros + span.start_ns as i64 / 1000,
        op_start_rel_micros: 0,
        op_end_rel_micros: took / 1000,
        all_end_rel_micros: took / 1000,
        memory: vec![AllocatorMemoryUsed { allocator_name: allocator.clone(), total_bytes: bytes, peak_bytes: bytes }],
        output: span.outputs.iter().enumerate().map(output).collect(),
        timeline_label: label,
        thread_id: span.queue.lane as u32,
        all_start_nanos: began_micros * 1000 + span.start_ns as i64,
        op_end_rel_nanos: took,
        all_end_rel_nanos: took,
    }
}
