//! Diagnostics with source lines, and the one error type of the public interface.
//!
//! Messages start in lower case, name the object, give both sides, then the usual fix, and have no final full stop.

use std::fmt;
use std::panic::Location;

/// The line of the user's program that made something.
pub type SourceLine = &'static Location<'static>;

/// The kind of a problem, by TensorFlow's status codes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Code {
    /// Arguments that cannot be right whatever the state: shapes, types, names.
    InvalidArgument,
    /// A name, device, variable or file that is not there.
    NotFound,
    /// Something of that name is there already.
    AlreadyExists,
    /// The state does not allow it: an uninitialised variable, a finalised graph, a closed session.
    FailedPrecondition,
    /// An index outside what it indexes.
    OutOfRange,
    /// Memory ran out.
    ResourceExhausted,
    /// No rule, kernel or feature for it.
    Unimplemented,
    /// A fault of turret or of a device.
    Internal,
    /// A file that is damaged, or is none of its kind.
    DataLoss,
}

/// One problem: what, where it was made, and what kind it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The kind.
    pub code: Code,
    /// One or more lines: the object, both sides, the fix.
    pub message: String,
    /// The line of the user's program, where there is one.
    pub source: Option<SourceLine>,
}

impl Diagnostic {
    /// A problem that belongs to no line of the user's program.
    pub fn new(code: Code, message: impl Into<String>) -> Diagnostic {
        Diagnostic { code, message: message.into(), source: None }
    }

    /// A problem of this line.
    pub fn at(code: Code, message: impl Into<String>, source: SourceLine) -> Diagnostic {
        Diagnostic { code, message: message.into(), source: Some(source) }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.source {
            Some(source) => write!(f, "\n  at {source}"),
            None => Ok(()),
        }
    }
}

/// The error of every fallible call: one or more diagnostics, all of them reported together.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    diagnostics: Vec<Diagnostic>,
}

/// A result with turret's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with one problem that belongs to no line.
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Diagnostic::new(code, message).into()
    }

    /// An error of kind [`Code::InvalidArgument`].
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(Code::InvalidArgument, message)
    }

    /// An error with these problems. An empty list is an internal fault, and says so.
    pub fn from_all(diagnostics: Vec<Diagnostic>) -> Error {
        if diagnostics.is_empty() {
            return Error::new(Code::Internal, "an error without a diagnostic");
        }
        Error { diagnostics }
    }

    /// The kind of the first problem.
    pub fn code(&self) -> Code {
        self.diagnostics[0].code
    }

    /// All problems, in the order in which they were found.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.diagnostics
    }

    /// The same error with `context: ` before the first problem's message.
    pub fn context(mut self, context: impl fmt::Display) -> Error {
        let first = &mut self.diagnostics[0];
        first.message = format!("{context}: {}", first.message);
        self
    }

    /// The same error with this line where a problem had none.
    pub fn with_source(mut self, source: SourceLine) -> Error {
        for d in &mut self.diagnostics {
            d.source.get_or_insert(source);
        }
        self
    }
}

impl From<Diagnostic> for Error {
    fn from(diagnostic: Diagnostic) -> Error {
        Error { diagnostics: vec![diagnostic] }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.diagnostics[..] {
            [one] => write!(f, "{one}"),
            many => {
                write!(f, "{} problems:", many.len())?;
                for (i, d) in many.iter().enumerate() {
                    write!(f, "\n{}. {}", i + 1, d.to_string().replace('\n', "\n   "))?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Error {}

/// The candidate nearest to a misspelt name (by edit distance), if one is near enough to suggest.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = name.chars().count();
    let limit = (length / 3).max(1);
    // Names of quite other lengths are as far apart as that, at least.
    let distance = |c: &str| match c.chars().count().abs_diff(length) {
        apart if apart > limit => apart,
        _ => edit_distance(name, c),
    };
    candidates
        .into_iter()
        .map(|c| (distance(c), c))
        .filter(|(d, c)| *d <= limit || c.rsplit('/').next() == Some(name) || c.ends_with(&format!("/{name}")))
        .min_by_key(|(d, _)| *d)
        .map(|(_, c)| c)
}

fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}
