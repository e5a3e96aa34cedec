//! TensorBoard's event files: graphs, scalars, histograms and the times of traced runs, written and read.
//!
//! The formats are TensorFlow's TFRecord framing and `event.proto`. Absent: images, audio, text.

mod histogram;
mod messages;
mod read;
mod record;
mod step_stats;
#[cfg(test)]
mod tests;

pub use histogram::Histogram;
pub use read::{Event, EventKind, EventReader, NodeStats, SummaryFigure};

use super::files::failed;
use super::graphdef::GraphDef;
use crate::base::{Array, Result};
use crate::device::Machine;
use crate::run::RunMetadata;
use messages::{EventProto, Figure, Summary, SummaryValue, TaggedRunMetadata, What};
use prost::Message;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The version of the format.
const VERSION: &str = "brain.Event:2";

/// Bytes that are held back before they are written.
const HELD_BACK: usize = 1 << 16;

/// Writes one event file. What is held back is written by [`EventWriter::flush`] and at the writer's end.
///
/// ```
/// use turret::base::Array;
/// use turret::interop::events::{EventKind, EventReader, EventWriter};
///
/// # fn main() -> turret::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("turret-events-{}", std::process::id()));
/// let mut events = EventWriter::new(&folder)?;
/// for step in 0..3 {
///     events.scalar("loss", 1.0 / (step + 1) as f32, step)?;
/// }
/// events.histogram("w", &Array::new(&[3], &[0.5f32, -1.0, 2.0])?, 2)?;
/// events.flush()?;
/// let read: Vec<_> = EventReader::open(events.path())?.collect::<turret::Result<_>>()?;
/// assert!(matches!(read[1].kind, EventKind::Summary(_)) && read.len() == 5);
/// # drop(events);
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok(())
/// # }
/// ```
pub struct EventWriter {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
}

impl EventWriter {
    /// A new file in a folder, which is made if it is not there, named as TensorFlow's: `events.out.tfevents.SECONDS.HOST`,
    /// with a number at the end where there is one of that name.
    ///
    /// # Errors
    /// What the file system says.
    pub fn new(folder: impl AsRef<Path>) -> Result<EventWriter> {
        let folder = folder.as_ref();
        std::fs::create_dir_all(folder).map_err(|e| failed("make the folder", folder, &e))?;
        let host = gethostname::gethostname().to_string_lossy().replace(['/', '\\', '\0'], "-");
        let name = format!("events.out.tfevents.{:010}.{host}", now().as_secs());
        let (path, file) = create_new(folder, &name)?;
        let mut writer = EventWriter { path, file, buffer: Vec::new() };
        writer.put(0, What::FileVersion(VERSION.into()))?;
        writer.flush()?;
        Ok(writer)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a graph; [`export_graph`](super::graphdef::export_graph) gives one.
    ///
    /// # Errors
    /// What the file system says.
    pub fn graph(&mut self, graph: &GraphDef) -> Result<()> {
        self.graph_bytes(graph.encode_to_vec())
    }

    /// Adds a graph that is encoded already.
    ///
    /// # Errors
    /// What the file system says.
    pub fn graph_bytes(&mut self, graph_def: Vec<u8>) -> Result<()> {
        self.put(0, What::GraphDef(graph_def))
    }

    /// Adds a number.
    ///
    /// # Errors
    /// What the file system says.
    pub fn scalar(&mut self, tag: &str, value: f32, step: i64) -> Result<()> {
        self.summary(tag, Figure::Simple(value), step)
    }

    /// Adds the distribution of an array's values, in TensorFlow's buckets.
    ///
    /// # Errors
    /// Values that are not finite; what the file system says.
    pub fn histogram(&mut self, tag: &str, values: &Array, step: i64) -> Result<()> {
        let histogram = Histogram::of(values).map_err(|e| e.context(format!("histogram '{tag}'")))?;
        self.summary(tag, Figure::Histogram(histogram.to_message()), step)
    }

    /// Adds when and where the nodes of a traced run ran. TensorBoard shows a run by its tag beside the graph.
    ///
    /// # Errors
    /// What the file system says.
    pub fn run_metadata(&mut self, tag: &str, run: &RunMetadata, machine: &Machine, step: i64) -> Result<()> {
        let took = run.spans.iter().map(|s| s.end_ns).max().unwrap_or(0) as i64 / 1000;
        let began = (now().as_micros() as i64).saturating_sub(took);
        let run_metadata = step_stats::message(run, machine, began).encode_to_vec();
        self.put(step, What::TaggedRunMetadata(TaggedRunMetadata { tag: tag.into(), run_metadata }))
    }

    /// Writes what is held back.
    ///
    /// # Errors
    /// What the file system says.
    pub fn flush(&mut self) -> Result<()> {
        self.file.write_all(&self.buffer).map_err(|e| failed("write", &self.path, &e))?;
        self.buffer.clear();
        Ok(())
    }

    fn summary(&mut self, tag: &str, figure: Figure, step: i64) -> Result<()> {
        self.put(step, What::Summary(Summary { value: vec![SummaryValue { tag: tag.into(), figure: Some(figure) }] }))
    }

    fn put(&mut self, step: i64, what: What) -> Result<()> {
        let event = EventProto { wall_time: now().as_secs_f64(), step, what: Some(what) };
        record::put(&mut self.buffer, &event.encode_to_vec());
        if self.buffer.len() > HELD_BACK { self.flush() } else { Ok(()) }
    }
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        // Whoever wants to know of an error flushes before.
        let _ = self.flush();
    }
}

/// The time since 1970.
fn now() -> std::time::Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn create_new(folder: &Path, name: &str) -> Result<(PathBuf, File)> {
    let mut path = folder.join(name);
    for number in 1.. {
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && number < 10_000 => {
                path = folder.join(format!("{name}.{number}"));
            }
            opened => return opened.map(|file| (path.clone(), file)).map_err(|e| failed("write", &path, &e)),
        }
    }
    Err(failed("write", &path, &io::ErrorKind::AlreadyExists.into()))
}
