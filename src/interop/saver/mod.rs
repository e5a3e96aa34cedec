//! `Saver`: a session's variables in checkpoints, and back.
//!
//! Names in a checkpoint are the variables' own, so nothing in it tells of towers or devices. Invariant: a program that
//! is killed while it saves leaves the checkpoint from before whole, and found. Absent: the graph, which a checkpoint
//! does not hold.

mod report;
mod restore;
mod roles;
#[cfg(test)]
mod tests;

pub use report::{Mismatch, RestoreReport};
pub use restore::RestoreOptions;

use super::arrays::{Format, WriteOptions, write_with_generators};
use super::checkpoint::{CheckpointState, find, remove_checkpoint};
use super::files::{Folder, file_name, folder_of};
use crate::base::{Array, Code, Error, Result};
use crate::graph::{Graph, Variable};
use crate::run::Session;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

/// Checkpoints that are kept unless the program says otherwise, as in TensorFlow.
const MAX_TO_KEEP: usize = 5;

/// Saves and restores variables.
///
/// ```
/// use turret::base::Array;
/// use turret::graph::{Graph, Init};
/// use turret::interop::{Saver, latest_checkpoint};
/// use turret::run::{Session, SessionOptions};
///
/// # fn main() -> turret::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("turret-saver-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// let g = Graph::new();
/// let w = g.get_variable("w", [], Init::Zeros);
/// let session = Session::new(&g, SessionOptions::devices("sim:1")?)?;
/// session.load(w, &Array::scalar(2.5f32))?;
/// let saver = Saver::new(&g);
/// let path = saver.save(&session, folder.join("model.ckpt"), 7)?;
/// assert!(path.ends_with("model.ckpt-7"));
///
/// // Another program: without initial values, as all of them are restored.
/// let session = Session::new(&g, SessionOptions::devices("sim:2")?)?;
/// let latest = latest_checkpoint(&folder)?.expect("there is one");
/// let report = Saver::new(&g).restore(&session, &latest)?;
/// assert_eq!((report.restored.len(), session.value(w)?.get_f64(0)), (1, 2.5));
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok(())
/// # }
/// ```
pub struct Saver<'g> {
    graph: &'g Graph,
    which: Which<'g>,
    /// Whether places of random nodes are saved and restored.
    random_nodes: bool,
    max_to_keep: usize,
    /// One checkpoint for each such time is kept for good.
    keep_every: Option<Duration>,
    kept: Mutex<Kept>,
}

enum Which<'g> {
    /// All global variables that there are.
    All,
    /// These, under these names.
    Named(Vec<(String, Variable<'g>)>),
}

/// The checkpoints of one folder that this saver looks after.
#[derive(Default)]
struct Kept {
    folder: PathBuf,
    /// Oldest first: as the state file lists it, and when it was written.
    listed: Vec<(String, SystemTime)>,
    /// Names of those to remove.
    doomed: Vec<(String, SystemTime)>,
    /// A checkpoint from after this moment is kept for good.
    next_for_good: Option<SystemTime>,
}

impl<'g> Saver<'g> {
    /// A saver of all saved variables (`keys::GLOBAL_VARIABLES`) that the graph has when it saves or restores: slots,
    /// powers and the global step too, and where random nodes stand.
    pub fn new(graph: &'g Graph) -> Saver<'g> {
        Saver::with(graph, Which::All)
    }

    /// A saver of these variables, under their own names.
    pub fn of(graph: &'g Graph, variables: &[Variable<'g>]) -> Saver<'g> {
        Saver::renamed(graph, variables.iter().map(|v| (v.name(), *v)))
    }

    /// A saver of these variables, under other names: each checkpoint's name with its variable.
    pub fn renamed<N: Into<String>>(
        graph: &'g Graph,
        variables: impl IntoIterator<Item = (N, Variable<'g>)>,
    ) -> Saver<'g> {
        Saver::with(graph, Which::Named(variables.into_iter().map(|(name, v)| (name.into(), v)).collect()))
    }

    fn with(graph: &'g Graph, which: Which<'g>) -> Saver<'g> {
        let random_nodes = matches!(which, Which::All);
        Saver { graph, which, random_nodes, max_to_keep: MAX_TO_KEEP, keep_every: None, kept: Mutex::default() }
    }

    /// Whether it saves and restores where random nodes stand: a saver of all variables does, one of some does not,
    /// unless set.
    #[must_use]
    pub fn random_nodes(mut self, all: bool) -> Saver<'g> {
        self.random_nodes = all;
        self
    }

    /// How many checkpoints are kept, the newest; 5 unless set, 0 for all.
    #[must_use]
    pub fn max_to_keep(mut self, count: usize) -> Saver<'g> {
        self.max_to_keep = count;
        self
    }

    /// Keeps one checkpoint for good for each such number of hours, beside the newest. Numbers that are no time are
    /// passed over.
    #[must_use]
    pub fn keep_every_hours(mut self, hours: f64) -> Saver<'g> {
        self.keep_every = Duration::try_from_secs_f64(hours * 3600.0).ok();
        self.lock().next_for_good = self.keep_every.and_then(|every| SystemTime::now().checked_add(every));
        self
    }

    /// Writes a checkpoint `PREFIX-STEP`, or `PREFIX` without a step, makes it its folder's latest, and then removes
    /// those beyond [`Saver::max_to_keep`]. Gives its path. Only checkpoints that this saver wrote are removed, and
    /// those that were listed beside one that it restored.
    ///
    /// All values are from between the same two steps. The file has no graph in it, and its size does not depend on the
    /// number of steps.
    ///
    /// # Errors
    /// Variables without a value, a folder that is not there, what the file system says; what was there is as before.
    pub fn save(
        &self,
        session: &Session<'g>,
        prefix: impl AsRef<Path>,
        global_step: impl Into<Option<i64>>,
    ) -> Result<PathBuf> {
        let prefix = prefix.as_ref();
        let base = file_name(prefix)?;
        let name = match global_step.into() {
            Some(step) => format!("{base}-{step}"),
            None => base.to_string(),
        };
        let path = prefix.with_file_name(&name);
        if Format::of(&path) != Format::Checkpoint {
            return Err(Error::invalid(format!(
                "cannot save to '{}': a checkpoint is several files, whose prefix cannot end so; write_arrays writes such \
                 a file",
                path.display()
            )));
        }
        let of = |e: Error| e.context(format!("cannot save to '{}'", path.display()));
        let variables = self.variables(session)?;
        if variables.is_empty() {
            let message = format!("cannot save to '{}': the graph has no variables", path.display());
            return Err(Error::new(Code::FailedPrecondition, message));
        }
        let handles: Vec<Variable<'g>> = variables.iter().map(|(_, v)| *v).collect();
        // One writer at a time, so that what is saved last is also what is read last.
        let mut kept = self.lock();
        let snapshot = session.snapshot(&handles).map_err(of)?;
        let arrays: Vec<(&str, &Array)> = variables.iter().map(|(n, _)| &n[..]).zip(&snapshot.values).collect();
        let generators = self.random_nodes.then_some(snapshot.generators);
        let folder = Folder::lock(folder_of(&path))?;
        write_with_generators(&folder, &name, &arrays, &WriteOptions { generators, ..WriteOptions::default() })?;
        kept.add(folder_of(&path), name, self.max_to_keep);
        let state = CheckpointState {
            latest: kept.listed.last().map(|(name, _)| name.clone()).unwrap_or_default(),
            all: kept.listed.iter().map(|(name, _)| name.clone()).collect(),
        };
        state.write(&folder)?;
        kept.remove(&folder, self.keep_every);
        Ok(path)
    }

    /// The checkpoints of the last folder that it saved to, oldest first.
    pub fn last_checkpoints(&self) -> Vec<PathBuf> {
        let kept = self.lock();
        kept.listed.iter().map(|(name, _)| kept.folder.join(name)).collect()
    }

    /// The names and variables, which must be the session's, and each once.
    fn variables(&self, session: &Session<'g>) -> Result<Vec<(String, Variable<'g>)>> {
        let ours = |v: &Variable<'g>| std::ptr::eq(v.op().graph(), self.graph) && !v.is_poison();
        let list = match &self.which {
            Which::All => self.graph.global_variables().into_iter().map(|v| (v.name(), v)).collect(),
            Which::Named(list) => list.clone(),
        };
        if !std::ptr::eq(session.graph(), self.graph) {
            return Err(Error::invalid(
                "the saver and the session belong to different graphs; make a saver of the session's",
            ));
        }
        if let Some((name, _)) = list.iter().find(|(_, v)| !ours(v)) {
            return Err(Error::invalid(format!("the variable for '{name}' is not one of the saver's graph")));
        }
        let (mut names, mut ids) = (HashSet::new(), HashSet::new());
        let named = matches!(self.which, Which::Named(_));
        let mut once = Vec::with_capacity(list.len());
        for (name, variable) in list {
            if names.insert(name.clone()) && ids.insert(variable.op().id()) {
                once.push((name, variable));
            } else if named {
                return Err(Error::invalid(format!("the saver's list has '{name}', or its variable, twice")));
            }
        }
        Ok(once)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Whoever panicked with it left a list of what is on the disk.
        self.kept.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Goes on with the list of the folder in which a checkpoint was restored, if that lists it.
    fn adopt(&self, path: &Path) {
        let folder = folder_of(path);
        let (Ok(Some(state)), Ok(name)) = (CheckpointState::read(folder), file_name(path)) else { return };
        let names: Vec<String> = (state.all.iter())
            .filter_map(|listed| Some(find(folder, listed)?.file_name()?.to_str()?.to_string()))
            .collect();
        if names.iter().any(|n| n == name) {
            let mut kept = self.lock();
            kept.folder = folder.to_path_buf();
            kept.listed = names.into_iter().map(|name| (name, SystemTime::now())).collect();
            kept.doomed.clear();
        }
    }
}

impl Kept {
    /// Notes a new checkpoint, and which are too many then.
    fn add(&mut self, folder: &Path, name: String, max_to_keep: usize) {
        if self.folder != folder {
            *self = Kept { folder: folder.into(), next_for_good: self.next_for_good, ..Kept::default() };
        }
        self.listed.retain(|(listed, _)| *listed != name);
        self.doomed.retain(|(doomed, _)| *doomed != name);
        self.listed.push((name, SystemTime::now()));
        if max_to_keep > 0 && self.listed.len() > max_to_keep {
            let over = self.listed.len() - max_to_keep;
            self.doomed.extend(self.listed.drain(..over));
        }
    }

    /// Removes what is too much. What cannot be removed now is tried again after the next save.
    fn remove(&mut self, folder: &Folder, keep_every: Option<Duration>) {
        for (name, written) in std::mem::take(&mut self.doomed) {
            if let (Some(next), Some(every)) = (self.next_for_good, keep_every)
                && written > next
            {
                self.next_for_good = next.checked_add(every);
                continue;
            }
            if remove_checkpoint(folder, &name).is_err() {
                self.doomed.push((name, written));
            }
        }
    }
}
