//! When each node of a traced run ran, in the format of Chrome's trace viewer (`chrome://tracing`, Perfetto).

use crate::device::{DeviceId, Machine};
use crate::run::RunMetadata;
use serde_json::{Value, json};

/// The trace as JSON: a process for each device, with a row for operations and one for copies; times in microseconds
/// since the step began.
pub fn timeline(metadata: &RunMetadata, machine: &Machine) -> Value {
    let mut events = Vec::new();
    let mut devices: Vec<DeviceId> = metadata.spans.iter().map(|(_, device, _)| *device).collect();
    devices.sort_unstable();
    devices.dedup();
    for device in devices {
        let name = format!("{} ({})", machine.device(device).short_name(), machine.device(device).physical());
        events.push(json!({"ph": "M", "name": "process_name", "pid": device.0, "args": {"name": name}}));
        for (row, name) in [(0, "operations"), (1, "copies")] {
            events.push(json!({"ph": "M", "name": "thread_name", "pid": device.0, "tid": row, "args": {"name": name}}));
        }
    }
    for (name, device, span) in &metadata.spans {
        let is_copy = name.starts_with("copy/");
        let (category, row) = if is_copy { ("copy", 1) } else { ("op", 0) };
        events.push(json!({
            "ph": "X", "name": &**name, "cat": category, "pid": device.0, "tid": row,
            "ts": span.start_ns as f64 / 1e3, "dur": span.end_ns.saturating_sub(span.start_ns) as f64 / 1e3,
        }));
    }
    json!({"displayTimeUnit": "ms", "traceEvents": events})
}
