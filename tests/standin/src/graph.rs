//! Graphs: capture of streams, instances, and launching them.
//!
//! A launch does the recorded operations again in the graph's order, not in the streams'. An instance has its own slots in
//! the clocks, one for each stream that was captured, as its launches are ordered after each other and with nothing else.

use crate::clock::Clock;
use crate::codes::{
    CAPTURED_EVENT, Code, INVALID_HANDLE, INVALID_VALUE, LAUNCH_OUT_OF_RESOURCES, NOT_PERMITTED, OUT_OF_MEMORY,
    STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_ISOLATION, STREAM_CAPTURE_MERGE, STREAM_CAPTURE_UNJOINED,
    STREAM_CAPTURE_UNMATCHED, STREAM_CAPTURE_UNSUPPORTED, STREAM_CAPTURE_WRONG_THREAD,
};
use crate::queue::{OpId, Work, op};
use crate::state::{Event, Held, State, say};
use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::thread::ThreadId;

/// One recorded operation.
#[derive(Clone)]
pub struct Node {
    deps: Vec<usize>,
    context: u64,
    /// Which of the captured streams, in the order they joined.
    lane: usize,
    label: Arc<str>,
    work: Work,
    /// An event outside that it waits for, or records.
    waits: Option<u64>,
    records: Option<u64>,
}

/// A capture that goes on.
pub struct Capture {
    origin: u64,
    mode: u32,
    thread: ThreadId,
    streams: Vec<u64>,
    nodes: Vec<Node>,
    broken: Option<String>,
}

/// A graph.
pub struct Graph {
    /// Its nodes, each after those it depends on.
    pub nodes: Vec<Node>,
    lanes: usize,
}

/// An instance of a graph.
pub struct Exec {
    nodes: Arc<Vec<Node>>,
    slots: Vec<usize>,
    last: Vec<OpId>,
    clock: Clock,
}

/// The modes of `CUstreamCaptureMode`.
pub const GLOBAL: u32 = 0;
/// Only the own thread's calls are watched.
pub const THREAD_LOCAL: u32 = 1;
/// No calls are watched.
pub const RELAXED: u32 = 2;

thread_local! {
    /// How a thread's calls are watched while captures go on: `cuThreadExchangeStreamCaptureMode`.
    pub static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

impl State {
    /// Starts to record a stream.
    pub fn begin_capture(&mut self, stream: u64, mode: u32) -> Result<(), Code> {
        let s = &self.streams[&stream];
        if s.null {
            say("the default stream cannot be captured; make one with cuStreamCreate");
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        if s.capture.is_some() || mode > RELAXED {
            return Err(crate::codes::INVALID_VALUE);
        }
        let id = self.id();
        let thread = std::thread::current().id();
        self.captures.insert(
            id,
            Capture { origin: stream, mode, thread, streams: vec![stream], nodes: Vec::new(), broken: None },
        );
        self.set_capture(stream, Some(id), Vec::new());
        Ok(())
    }

    fn set_capture(&mut self, stream: u64, capture: Option<u64>, frontier: Vec<usize>) {
        if let Some(s) = self.streams.get_mut(&stream) {
            (s.capture, s.frontier) = (capture, frontier);
        }
    }

    /// A call that a capture does not allow: it breaks the capture.
    pub fn break_capture(&mut self, capture: u64, why: &str) {
        if let Some(c) = self.captures.get_mut(&capture) {
            say(&format!("{why} is not permitted while a stream is captured; the capture is invalidated"));
            c.broken.get_or_insert_with(|| why.to_owned());
        }
    }

    /// Refuses a call that is unsafe while any capture of this thread goes on, or a global one of another.
    pub fn outside_capture(&mut self, name: &str) -> Result<(), Code> {
        let own = std::thread::current().id();
        let watched = |c: &Capture| match MODE.get() {
            GLOBAL => c.mode == GLOBAL || c.mode == THREAD_LOCAL && c.thread == own,
            THREAD_LOCAL => c.mode != RELAXED && c.thread == own,
            _ => false,
        };
        let Some(id) = self.captures.iter().find(|(_, c)| watched(c)).map(|(k, _)| *k) else { return Ok(()) };
        self.break_capture(id, name);
        Err(STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Refuses to wait for a stream that is captured.
    pub fn not_captured(&mut self, stream: u64, name: &str) -> Result<(), Code> {
        let Some(id) = self.streams[&stream].capture else { return Ok(()) };
        self.break_capture(id, name);
        Err(STREAM_CAPTURE_UNSUPPORTED)
    }

    fn node(
        &mut self,
        stream: u64,
        label: &str,
        work: Work,
        waits: Option<u64>,
        records: Option<u64>,
    ) -> Result<usize, Code> {
        let s = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        let capture = s.capture.and_then(|c| self.captures.get_mut(&c)).ok_or(STREAM_CAPTURE_INVALIDATED)?;
        if capture.broken.is_some() {
            return Err(STREAM_CAPTURE_INVALIDATED);
        }
        let lane = capture.streams.iter().position(|k| *k == stream).unwrap_or(0);
        let label = format!("{label} on {} in a graph", s.name).into();
        let n = capture.nodes.len();
        let deps = std::mem::replace(&mut s.frontier, vec![n]);
        capture.nodes.push(Node { deps, context: s.context, lane, label, work, waits, records });
        Ok(n)
    }

    /// Records an operation.
    pub fn add_node(&mut self, stream: u64, label: &str, work: Work) -> Result<(), Code> {
        self.node(stream, label, work, None, None).map(drop)
    }

    /// Records an event in a captured stream; one that is external becomes a node.
    pub fn record_captured(&mut self, event: u64, stream: u64, external: bool) -> Result<(), Code> {
        if external {
            return self.node(stream, "event record", Work::Nothing, None, Some(event)).map(drop);
        }
        let s = &self.streams[&stream];
        let captured = s.capture.map(|c| (c, s.frontier.clone()));
        if let Some(e) = self.events.get_mut(&event) {
            (e.captured, e.recorded) = (captured, true);
        }
        Ok(())
    }

    /// A stream waits for an event, where one of the two is in a capture. False when neither is.
    pub fn wait_captured(&mut self, stream: u64, event: u64, external: bool) -> Result<bool, Code> {
        let own = self.streams[&stream].capture;
        if external {
            if own.is_some() {
                self.node(stream, "event wait", Work::Nothing, Some(event), None)?;
            }
            return Ok(own.is_some());
        }
        let theirs = self.events[&event].captured.clone();
        match (own, theirs) {
            (None, None) => Ok(false),
            (Some(capture), None) => {
                if !self.events[&event].recorded {
                    return Ok(true);
                }
                say("a captured stream waits for an event from outside of the capture; use CU_EVENT_WAIT_EXTERNAL");
                self.break_capture(capture, "waiting for an event from outside");
                Err(STREAM_CAPTURE_ISOLATION)
            }
            (own, Some((capture, nodes))) => {
                if !self.captures.contains_key(&capture) {
                    say("the event was last recorded in a capture that is over");
                    return Err(CAPTURED_EVENT);
                }
                if own.is_some_and(|o| o != capture) {
                    self.break_capture(capture, "waiting for an event of another capture");
                    return Err(STREAM_CAPTURE_MERGE);
                }
                if own.is_none() {
                    if self.streams[&stream].null {
                        self.break_capture(capture, "waiting for a captured event on the default stream");
                        return Err(crate::codes::STREAM_CAPTURE_IMPLICIT);
                    }
                    self.captures.entry(capture).and_modify(|c| {
                        if !c.streams.contains(&stream) {
                            c.streams.push(stream);
                        }
                    });
                    self.set_capture(stream, Some(capture), Vec::new());
                }
                if let Some(s) = self.streams.get_mut(&stream) {
                    let new: Vec<usize> = nodes.into_iter().filter(|n| !s.frontier.contains(n)).collect();
                    s.frontier.extend(new);
                }
                Ok(true)
            }
        }
    }

    /// Ends a capture; the graph's handle.
    pub fn end_capture(&mut self, stream: u64) -> Result<u64, Code> {
        let id = self.streams[&stream].capture.ok_or(INVALID_VALUE)?;
        let capture = self.captures.get(&id).ok_or(STREAM_CAPTURE_INVALIDATED)?;
        if capture.origin != stream {
            self.break_capture(id, "ending it on another stream than it began on");
            return Err(STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != RELAXED && capture.thread != std::thread::current().id() {
            return Err(STREAM_CAPTURE_WRONG_THREAD);
        }
        let mut joined: HashSet<usize> = HashSet::new();
        let mut todo = self.streams[&stream].frontier.clone();
        while let Some(n) = todo.pop() {
            if joined.insert(n) {
                todo.extend(&capture.nodes[n].deps);
            }
        }
        let loose = capture
            .streams
            .iter()
            .find(|k| self.streams.get(k).is_some_and(|s| s.frontier.iter().any(|n| !joined.contains(n))));
        let loose = loose.map(|k| self.streams[k].name.clone());
        let Some(capture) = self.captures.remove(&id) else { return Err(STREAM_CAPTURE_INVALIDATED) };
        capture.streams.iter().for_each(|k| self.set_capture(*k, None, Vec::new()));
        if let Some(why) = capture.broken {
            say(&format!("the capture was invalidated: {why}"));
            return Err(STREAM_CAPTURE_INVALIDATED);
        }
        if let Some(name) = loose {
            say(&format!(
                "{name} has captured work that {} does not wait for; record an event there and wait for it",
                "the first stream"
            ));
            return Err(STREAM_CAPTURE_UNJOINED);
        }
        let graph = self.id();
        self.graphs.insert(graph, Graph { lanes: capture.streams.len(), nodes: capture.nodes });
        Ok(graph)
    }

    /// Makes an instance.
    pub fn instantiate(&mut self, graph: u64) -> Result<u64, Code> {
        if self.faults.always("graph") {
            say("an instance of a graph fails by the fault that was asked for");
            return Err(OUT_OF_MEMORY);
        }
        let g = self.graphs.get(&graph).ok_or(INVALID_HANDLE)?;
        let (nodes, lanes) = (Arc::new(g.nodes.clone()), g.lanes);
        let slots = (0..lanes).map(|_| self.clocks.slot()).collect();
        let exec = self.id();
        self.execs.insert(exec, Exec { nodes, slots, last: Vec::new(), clock: Clock::default() });
        Ok(exec)
    }

    /// Puts another graph of the same form in an instance.
    pub fn update(&mut self, exec: u64, graph: u64) -> Result<bool, Code> {
        let g = self.graphs.get(&graph).ok_or(INVALID_HANDLE)?;
        let (nodes, lanes) = (Arc::new(g.nodes.clone()), g.lanes);
        let e = self.execs.get_mut(&exec).ok_or(INVALID_HANDLE)?;
        let same = |a: &Node, b: &Node| a.deps == b.deps && a.context == b.context;
        if lanes != e.slots.len()
            || nodes.len() != e.nodes.len()
            || !nodes.iter().zip(e.nodes.iter()).all(|(a, b)| same(a, b))
        {
            return Ok(false);
        }
        e.nodes = nodes;
        Ok(true)
    }

    /// Destroys an instance.
    pub fn drop_exec(&mut self, exec: u64) -> Result<(), Code> {
        let e = self.execs.remove(&exec).ok_or(INVALID_HANDLE)?;
        e.slots.into_iter().for_each(|s| self.clocks.release(s));
        Ok(())
    }
}

impl Held {
    /// Launches an instance on a stream.
    pub fn launch_graph(&mut self, exec: u64, stream: u64) -> Result<(), Code> {
        let e = self.execs.get(&exec).ok_or(INVALID_HANDLE)?;
        let nodes = e.nodes.clone();
        if self.faults.launch("graph") {
            say("launch of a graph: refused by the fault that was asked for");
            return Err(LAUNCH_OUT_OF_RESOURCES);
        }
        let contexts: BTreeSet<u64> = nodes.iter().map(|n| n.context).collect();
        for context in contexts {
            self.usable(context)?;
        }
        if let Some(capture) = self.streams[&stream].capture {
            self.break_capture(capture, "launching an instance of a graph");
            return Err(NOT_PERMITTED);
        }
        // The launch itself stands in the stream, then come the nodes, then their end.
        let start = self.enqueue(stream, "graph launch", Work::Nothing)?.ok_or(STREAM_CAPTURE_INVALIDATED)?;
        let mut begin = self.streams[&stream].clock.clone();
        let e = &self.execs[&exec];
        begin.join(&e.clock);
        let (slots, mut first) = (e.slots.clone(), e.last.clone());
        first.push(start);
        let mut made: Vec<(OpId, Clock)> = Vec::with_capacity(nodes.len());
        let mut end = begin.clone();
        let mut inner: HashSet<usize> = HashSet::new();
        for node in nodes.iter() {
            let id = self.id();
            let mut clock = begin.clone();
            let mut deps: Vec<OpId> = node.deps.iter().map(|n| made[*n].0).collect();
            node.deps.iter().for_each(|n| clock.join(&made[*n].1));
            inner.extend(&node.deps);
            if deps.is_empty() {
                deps.extend(&first);
            }
            if let Some(event) = node.waits.and_then(|e| self.events.get(&e)) {
                deps.extend(&event.ops);
                clock.join(&event.clock);
            }
            let time = self.clocks.tick(slots[node.lane], &mut clock);
            let made_op =
                op(deps, node.context, node.label.clone(), slots[node.lane], time, clock.clone(), node.work.clone());
            self.submit(id, made_op)?;
            if let Some(event) = node.records.and_then(|e| self.events.get_mut(&e)) {
                *event = Event {
                    ops: vec![id],
                    clock: clock.clone(),
                    recorded: true,
                    captured: None,
                    at: None,
                    ..std::mem::take(event)
                };
            }
            end.join(&clock);
            made.push((id, clock));
        }
        let leaves: Vec<OpId> = made.iter().enumerate().filter(|(i, _)| !inner.contains(i)).map(|(_, m)| m.0).collect();
        if let Some(e) = self.execs.get_mut(&exec) {
            (e.last, e.clock) = (leaves.clone(), end.clone());
        }
        self.wait_for(stream, &leaves, &end);
        Ok(())
    }
}
