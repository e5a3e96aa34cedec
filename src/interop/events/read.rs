//! Reading event files, TensorFlow's and turret's.

use super::histogram::Histogram;
use super::messages::{EventProto, Figure, RunMetadataProto, What};
use super::record::{Next, next};
use crate::base::Result;
use crate::interop::files::{damaged, open};
use prost::Message;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// One event of a file.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// Seconds since 1970.
    pub wall_time: f64,
    /// The step that it belongs to.
    pub step: i64,
    /// What it is.
    pub kind: EventKind,
}

/// What an event is.
#[derive(Clone, PartialEq, Debug)]
pub enum EventKind {
    /// The first event of a file, as in `brain.Event:2`.
    FileVersion(String),
    /// A `GraphDef`, encoded.
    Graph(Vec<u8>),
    /// Figures with their tags.
    Summary(Vec<(String, SummaryFigure)>),
    /// When and where nodes ran.
    RunMetadata {
        /// What the run is called.
        tag: String,
        /// The nodes, in the order of the file.
        nodes: Vec<NodeStats>,
    },
    /// Something else.
    Other,
}

/// A figure of a summary.
#[derive(Clone, PartialEq, Debug)]
pub enum SummaryFigure {
    /// A number.
    Scalar(f32),
    /// A distribution.
    Histogram(Histogram),
    /// Something else, such as an image.
    Other,
}

/// What a `RunMetadata` says of one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeStats {
    /// The device, as in `/job:localhost/replica:0/task:0/device:GPU:0`.
    pub device: String,
    /// The node.
    pub name: String,
    /// Microseconds since 1970.
    pub start_micros: i64,
    /// Microseconds.
    pub took_micros: i64,
    /// Bytes of its outputs.
    pub bytes: i64,
    /// What a timeline calls it.
    pub label: String,
}

/// Reads the events of a file in order. A file whose last record is not whole ends before it.
pub struct EventReader {
    path: PathBuf,
    file: BufReader<File>,
    /// Nothing can be read after what is damaged.
    ended: bool,
}

impl EventReader {
    /// Opens a file.
    ///
    /// # Errors
    /// A file that is not there.
    pub fn open(path: impl AsRef<Path>) -> Result<EventReader> {
        let path = path.as_ref();
        Ok(EventReader { path: path.into(), file: BufReader::new(open(path)?.0), ended: false })
    }
}

impl Iterator for EventReader {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Result<Event>> {
        if self.ended {
            return None;
        }
        let event = match next(&mut self.file) {
            Ok(Next::End) => {
                self.ended = true;
                return None;
            }
            Ok(Next::Record(record)) => {
                EventProto::decode(&record[..]).map_err(|e| format!("an event is damaged: {e}"))
            }
            Err(why) => Err(why),
        };
        let event =
            event.and_then(|event| Ok(Event { wall_time: event.wall_time, step: event.step, kind: kind(event.what)? }));
        self.ended = event.is_err();
        Some(event.map_err(|why| damaged(&self.path, why)))
    }
}

fn kind(what: Option<What>) -> std::result::Result<EventKind, String> {
    Ok(match what {
        Some(What::FileVersion(version)) => EventKind::FileVersion(version),
        Some(What::GraphDef(bytes)) => EventKind::Graph(bytes),
        Some(What::Summary(summary)) => {
            let figure = |figure| match figure {
                Some(Figure::Simple(value)) => SummaryFigure::Scalar(value),
                Some(Figure::Histogram(message)) => SummaryFigure::Histogram(Histogram::from_message(message)),
                None => SummaryFigure::Other,
            };
            EventKind::Summary(summary.value.into_iter().map(|v| (v.tag, figure(v.figure))).collect())
        }
        Some(What::TaggedRunMetadata(run)) => {
            let message = RunMetadataProto::decode(&run.run_metadata[..]);
            let message = message.map_err(|e| format!("the times of run '{}' are damaged: {e}", run.tag))?;
            let mut nodes = Vec::new();
            for device in message.step_stats.unwrap_or_default().dev_stats {
                nodes.extend(device.node_stats.into_iter().map(|node| NodeStats {
                    device: device.device.clone(),
                    name: node.node_name,
                    start_micros: node.all_start_micros,
                    took_micros: node.all_end_rel_micros,
                    bytes: node.memory.iter().fold(0, |sum, m| sum.saturating_add(m.total_bytes)),
                    label: node.timeline_label,
                }));
            }
            EventKind::RunMetadata { tag: run.tag, nodes }
        }
        None => EventKind::Other,
    })
}
