//! What a restore did, or why it did nothing.

use crate::base::{DType, Shape, nearest};
use crate::interop::arrays::ArrayInfo;
use std::fmt;
use std::path::PathBuf;

/// Names for which a like one is looked for; the rest of a long list goes without.
const SUGGESTIONS: usize = 50;

/// A variable that is otherwise in the file than in the graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// The name in the file.
    pub name: String,
    /// Type and shape there.
    pub file: String,
    /// Type and shape in the graph.
    pub graph: String,
}

/// What a restore did. Names are those in the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RestoreReport {
    /// What was read: a checkpoint's prefix, or a file.
    pub path: PathBuf,
    /// Variables that have the file's values now.
    pub restored: Vec<String>,
    /// Variables that the file has not, and that are as they were.
    pub missing: Vec<String>,
    /// Names in the file that no variable has.
    pub unused: Vec<String>,
    /// Variables whose shape is another in the file.
    pub wrong_shape: Vec<Mismatch>,
    /// Variables whose element type is another in the file.
    pub wrong_dtype: Vec<Mismatch>,
    /// Variables of the optimizers' state that have their initial values now.
    pub initialized: Vec<String>,
    /// Random nodes that go on from where they were.
    pub generators: usize,
}

impl RestoreReport {
    /// Variables that were asked for.
    fn variables(&self) -> usize {
        let wrong = self.wrong_shape.len() + self.wrong_dtype.len();
        self.restored.len() + self.missing.len() + wrong + self.initialized.len()
    }
}

/// One line, as in `restored 4 of 6 variables from 'model.ckpt-7'; 2 missing, 1 name unused`.
impl fmt::Display for RestoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (restored, all) = (self.restored.len(), self.variables());
        write!(f, "restored {restored} of {all} variables from '{}'", self.path.display())?;
        let mut rest = Vec::new();
        for (count, what) in [
            (self.initialized.len(), "set to initial values"),
            (self.missing.len(), "missing"),
            (self.wrong_shape.len(), "of another shape"),
            (self.wrong_dtype.len(), "of another type"),
            (self.unused.len(), "of the file's names unused"),
            (self.generators, "random nodes go on"),
        ] {
            if count > 0 {
                rest.push(format!("{count} {what}"));
            }
        }
        match rest.is_empty() {
            true => Ok(()),
            false => write!(f, "; {}", rest.join(", ")),
        }
    }
}

/// A variable that the file has not.
pub(super) struct Missing {
    pub name: String,
    pub dtype: DType,
    pub shape: Shape,
    /// The optimizer whose state it is.
    pub optimizer: Option<String>,
}

/// Why nothing was restored: everything that does not fit, in one message, and the ways out.
pub(super) struct Refusal<'a> {
    pub path: PathBuf,
    pub matched: usize,
    pub variables: usize,
    pub missing: &'a [Missing],
    pub wrong_shape: &'a [Mismatch],
    pub wrong_dtype: &'a [Mismatch],
    pub unused: &'a [&'a ArrayInfo],
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        write!(
            f,
            "cannot restore from '{path}': {} of {} variables match; nothing was restored",
            self.matched, self.variables
        )?;
        let plain: Vec<&Missing> = self.missing.iter().filter(|m| m.optimizer.is_none()).collect();
        for (i, missing) in plain.iter().enumerate() {
            let Missing { name, dtype, shape, .. } = missing;
            write!(f, "\nmissing from the file: '{name}' {dtype} {shape}")?;
            if let Some(like) = self.like(missing).filter(|_| i < SUGGESTIONS) {
                write!(f, ", did you mean its '{like}'?")?;
            }
        }
        let mut optimizers: Vec<&str> = self.missing.iter().filter_map(|m| m.optimizer.as_deref()).collect();
        optimizers.dedup();
        optimizers.sort_unstable();
        optimizers.dedup();
        for optimizer in &optimizers {
            let of = self.missing.iter().filter(|m| m.optimizer.as_deref() == Some(*optimizer));
            let names: Vec<String> = of.map(|m| format!("'{}'", m.name)).collect();
            write!(f, "\nmissing from the file: optimizer state of {optimizer}: {}", names.join(", "))?;
        }
        for (what, list) in [("shape", self.wrong_shape), ("type", self.wrong_dtype)] {
            for Mismatch { name, file, graph } in list {
                write!(f, "\nof another {what}: '{name}' is {file} in the file, {graph} in the graph")?;
            }
        }
        if !self.unused.is_empty() {
            let names: Vec<String> = self.unused.iter().map(|a| format!("'{}'", a.name)).collect();
            write!(f, "\nunused keys of the file: {}", names.join(", "))?;
        }
        write!(f, "\n{}", self.ways_out(!plain.is_empty(), !optimizers.is_empty()))
    }
}

impl Refusal<'_> {
    /// A name of the file that no variable has and that may be meant: one of like type and shape rather than any.
    fn like(&self, missing: &Missing) -> Option<&str> {
        let end_of = |long: &str, short: &str| {
            long.strip_suffix(short).is_some_and(|rest| rest.ends_with('/') && !short.is_empty())
        };
        let fits = |a: &ArrayInfo| a.stored.dtype() == Some(missing.dtype) && Shape::known(&a.shape) == missing.shape;
        let near = |list: &mut dyn Iterator<Item = &&ArrayInfo>| -> Option<String> {
            let names: Vec<&str> = list.map(|a| &a.name[..]).collect();
            let suffix = names.iter().find(|n| end_of(n, &missing.name) || end_of(&missing.name, n));
            suffix.copied().or_else(|| nearest(&missing.name, names)).map(str::to_string)
        };
        let name = near(&mut self.unused.iter().filter(|a| fits(a))).or_else(|| near(&mut self.unused.iter()))?;
        self.unused.iter().map(|a| &a.name[..]).find(|n| *n == name)
    }

    fn ways_out(&self, missing: bool, optimizers: bool) -> String {
        if self.variables == 0 {
            return "the graph has no variables: build it before restoring".into();
        }
        let mut ways = Vec::new();
        if missing {
            ways.push("give the file's names with Saver::renamed");
        }
        if optimizers {
            ways.push("restore the model alone with RestoreOptions::model_only");
        }
        if missing && self.matched > 0 {
            ways.push("leave what is missing as it is with RestoreOptions::partial");
        }
        if !(self.wrong_shape.is_empty() && self.wrong_dtype.is_empty()) {
            ways.push("leave what differs as it is with RestoreOptions::skip_mismatched");
        }
        ways.join(", or ")
    }
}
