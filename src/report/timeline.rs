//! When each node of a step runs, in the format of Chrome's trace viewer (`chrome://tracing`, Perfetto): measured, and as
//! planned.
//!
//! Planned times go by nominal rates, which are no machine's: they show order, overlap and what waits for what.

use crate::device::{DeviceId, DeviceKind, Lane, Machine, QueueId};
use crate::graph::TensorDesc;
use crate::plan::{CopyInfo, Origin, Route, Schedule, StepNodeId};
use crate::run::RunMetadata;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Nominal floating-point operations a second.
const FLOPS: f64 = 5e10;
/// Nominal bytes a second that kernels read and write.
const MEMORY: f64 = 2e10;
/// Nominal bytes a second between two devices, once for each half of a way through the host.
const LINK: f64 = 1e10;
/// Nominal nanoseconds to begin a kernel or a copy.
const BEGIN_NS: u64 = 2_000;

/// Planned rows are processes of their own, above the measured ones in number.
const PLANNED: usize = 1000;

/// A traced run as JSON: a process for each device, a row for each queue, and one for copies where a queue has both;
/// times in microseconds since the step began. Copies have their bytes, ends and route.
pub fn timeline(metadata: &RunMetadata, machine: &Machine) -> Value {
    let mut trace = Trace::new(machine);
    trace.measured(metadata);
    trace.finish()
}

/// As [`timeline`], with what was planned for the same step in processes beside it.
pub fn timeline_with_plan(metadata: &RunMetadata, schedule: &Schedule, machine: &Machine) -> Value {
    let mut trace = Trace::new(machine);
    trace.measured(metadata);
    trace.planned(schedule);
    trace.finish()
}

struct Trace<'a> {
    machine: &'a Machine,
    events: Vec<Value>,
    /// Process, row and the row's name.
    rows: BTreeSet<(usize, usize, &'static str)>,
}

/// One bar.
struct Bar<'a> {
    process: usize,
    queue: QueueId,
    name: &'a str,
    what: &'a str,
    start_ns: u64,
    end_ns: u64,
    outputs: &'a [TensorDesc],
    copy: Option<&'a CopyInfo>,
}

impl<'a> Trace<'a> {
    fn new(machine: &'a Machine) -> Trace<'a> {
        Trace { machine, events: Vec::new(), rows: BTreeSet::new() }
    }

    fn measured(&mut self, metadata: &RunMetadata) {
        for span in &metadata.spans {
            self.bar(Bar {
                process: span.queue.device.index(),
                queue: span.queue,
                name: &span.name,
                what: &span.what,
                start_ns: span.start_ns,
                end_ns: span.end_ns,
                outputs: &span.outputs,
                copy: span.copy.as_ref(),
            });
        }
    }

    /// Every node begins when its queue and all that it needs are done.
    fn planned(&mut self, schedule: &Schedule) {
        let step = &schedule.step;
        let mut free = vec![0; schedule.queues.len()];
        let mut done = vec![0; step.nodes.len()];
        for (i, node) in step.nodes.iter().enumerate() {
            let id = StepNodeId(i as u32);
            let producers =
                node.inputs.iter().filter_map(|v| match step.value(schedule.memory.roots.get(*v).0).origin {
                    Origin::Computed(producer) => Some(producer),
                    _ => None,
                });
            let needed = producers.chain(node.controls.iter().copied()).map(|p| done[p.index()]).max().unwrap_or(0);
            if node.silent {
                done[i] = needed;
                continue;
            }
            let queue = schedule.queue_of[i];
            let start_ns = needed.max(free[queue]);
            let end_ns = start_ns + BEGIN_NS + nanoseconds(schedule, id);
            (free[queue], done[i]) = (end_ns, end_ns);
            let outputs: Vec<TensorDesc> = node.outputs.iter().map(|v| step.value(*v).desc.clone()).collect();
            self.bar(Bar {
                process: PLANNED + schedule.queues[queue].device.index(),
                queue: schedule.queues[queue],
                name: &node.name,
                what: &step.what(node),
                start_ns,
                end_ns,
                outputs: &outputs,
                copy: node.copy(),
            });
        }
    }

    fn bar(&mut self, bar: Bar<'_>) {
        let is_cuda = self.machine.device(bar.queue.device).kind == DeviceKind::Cuda;
        let (row, row_name) = match (is_cuda, bar.queue.lane) {
            (true, Lane::Compute) => (0, "kernels"),
            (true, Lane::FromHost) => (1, "copies from the host"),
            (true, Lane::ToHost) => (2, "copies to the host"),
            (true, Lane::Peer) => (3, "copies from other GPUs"),
            (false, _) if bar.copy.is_some() => (1, "copies"),
            (false, _) => (0, "operations"),
        };
        self.rows.insert((bar.process, row, row_name));
        let outputs: Vec<String> = bar.outputs.iter().map(|d| format!("{} {:?}", d.dtype, &d.dims[..])).collect();
        let bytes: usize = bar.outputs.iter().map(TensorDesc::bytes).sum();
        let mut args = json!({"op": bar.what, "outputs": outputs, "bytes": bytes});
        if let Some(copy) = bar.copy {
            let name = |d: DeviceId| self.machine.device(d).short_name();
            args["from"] = name(copy.from).into();
            args["to"] = name(copy.to).into();
            args["bytes"] = copy.bytes.into();
            args["route"] = if copy.route == Route::Direct { "direct" } else { "through host" }.into();
        }
        self.events.push(json!({
            "ph": "X", "name": bar.name, "cat": if bar.copy.is_some() { "copy" } else { "op" },
            "pid": bar.process, "tid": row, "ts": bar.start_ns as f64 / 1e3,
            "dur": bar.end_ns.saturating_sub(bar.start_ns) as f64 / 1e3, "args": args,
        }));
    }

    fn finish(self) -> Value {
        let mut events = Vec::new();
        let mut named = BTreeSet::new();
        for (process, row, name) in self.rows {
            if named.insert(process) {
                let device = self.machine.device(DeviceId((process % PLANNED) as u16));
                let of = if process >= PLANNED { "planned at nominal rates".to_string() } else { device.physical() };
                let text = format!("{} ({of})", device.short_name());
                events.push(json!({"ph": "M", "name": "process_name", "pid": process, "args": {"name": text}}));
                // Each device's plan is beside it.
                let order = 2 * (process % PLANNED) + process / PLANNED;
                let sort = json!({"sort_index": order});
                events.push(json!({"ph": "M", "name": "process_sort_index", "pid": process, "args": sort}));
            }
            let args = json!({"name": name});
            events.push(json!({"ph": "M", "name": "thread_name", "pid": process, "tid": row, "args": args}));
        }
        events.extend(self.events);
        json!({"displayTimeUnit": "ms", "traceEvents": events})
    }
}

/// What a node takes at nominal rates, beside its beginning.
fn nanoseconds(schedule: &Schedule, id: StepNodeId) -> u64 {
    let node = schedule.step.node(id);
    let seconds = if let Some(copy) = node.copy() {
        let ways = if copy.route == Route::Direct { 1.0 } else { 2.0 };
        copy.bytes as f64 * ways / LINK
    } else if let Some(sum) = node.all_reduce() {
        sum.bytes_per_device() as f64 / LINK
    } else {
        let cost = schedule.cost(id);
        (cost.flops / FLOPS).max(cost.bytes / MEMORY)
    };
    (seconds * 1e9) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Array, DType};
    use crate::graph::{Graph, Init};
    use crate::run::{Session, SessionOptions};

    #[test]
    fn what_ran_and_what_was_planned_are_side_by_side() {
        let g = Graph::new();
        let x = g.placeholder(DType::F32, [32, 16], "x");
        let w = g.device("/cpu:0", || g.get_variable("w", [16, 8], Init::Ones));
        let far: Vec<_> = (0..2).map(|i| g.device(&format!("/gpu:{i}"), || x.matmul(w).relu())).collect();
        let sum = g.device("/cpu:0", || far[0] + far[1]);
        let s = Session::new(&g, SessionOptions::devices("sim:2@none").unwrap()).unwrap();
        s.initialize().unwrap();
        let rows = Array::zeros(DType::F32, &[32, 16]).unwrap();
        let (_, metadata) = s.run_traced(&[(x, &rows)], &[sum], &[]).unwrap();
        let schedule = s.schedule(&[(x, &[32, 16])], &[sum], &[]).unwrap();
        let ran: usize = schedule.step.nodes.iter().filter(|n| !n.silent).count();
        assert_eq!(metadata.spans.len(), ran);
        let trace = timeline_with_plan(&metadata, &schedule, s.machine());
        let events = trace["traceEvents"].as_array().unwrap();
        let bars = |process: u64| {
            let of = move |e: &&Value| e["ph"] == "X" && e["pid"] == process;
            let mut all: Vec<&Value> = events.iter().filter(of).collect();
            all.sort_by(|a, b| a["ts"].as_f64().unwrap().total_cmp(&b["ts"].as_f64().unwrap()));
            all
        };
        let mut counted = 0;
        for device in [0, 1, 2, 1000, 1001, 1002] {
            let all = bars(device);
            counted += all.len();
            // One queue does one thing at a time.
            for pair in all.windows(2) {
                let end = pair[0]["ts"].as_f64().unwrap() + pair[0]["dur"].as_f64().unwrap();
                assert!(end <= pair[1]["ts"].as_f64().unwrap() + 1e-6, "{pair:?}");
            }
        }
        assert_eq!(counted, 2 * ran);
        let find = |process: u64, name: &str| {
            *bars(process).iter().find(|e| e["name"] == name).unwrap_or_else(|| panic!("{name}: {events:?}"))
        };
        for base in [0, 1000] {
            let copy = find(base + 2, "copy/w/read→gpu:1");
            let args = &copy["args"];
            assert_eq!((&args["bytes"], &args["op"], &copy["tid"]), (&json!(512), &json!("copy"), &json!(1)));
            assert_eq!((&args["from"], &args["to"]), (&json!("/device:CPU:0"), &json!("/device:GPU:1")));
            // What is computed from it begins later.
            let product = find(base + 2, "MatMul_1");
            assert_eq!(product["args"]["outputs"], json!(["float32 [32, 8]"]));
            let end = copy["ts"].as_f64().unwrap() + copy["dur"].as_f64().unwrap();
            assert!(end <= product["ts"].as_f64().unwrap() + 1e-6);
        }
        let names: Vec<&Value> =
            events.iter().filter(|e| e["name"] == "process_name").map(|e| &e["args"]["name"]).collect();
        assert_eq!(names.len(), 6);
        assert!(names.contains(&&json!("/device:GPU:1 (planned at nominal rates)")), "{names:?}");
        assert_eq!(timeline(&metadata, s.machine())["traceEvents"].as_array().unwrap().len(), ran + 3 * 2 + 6);
    }
}
