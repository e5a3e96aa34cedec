//! Files that are there whole or not at all: written aside, flushed to the disk, renamed.
//!
//! Invariant: a program that is killed between any two calls here leaves under each final name what was there before,
//! or what was to be there.

use crate::base::{Code, Error, Result};
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The error of a call on a file.
pub(super) fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::NotFound => Code::NotFound,
        io::ErrorKind::StorageFull => Code::ResourceExhausted,
        io::ErrorKind::UnexpectedEof => Code::DataLoss,
        _ => Code::FailedPrecondition,
    };
    Error::new(code, format!("cannot {what} '{}': {error}", path.display()))
}

/// A file that is damaged, or not what it should be.
pub(super) fn damaged(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::new(Code::DataLoss, format!("cannot read '{}': {why}", path.display()))
}

/// The folder of a path; that of a bare name is where the program runs.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The last part of a path that names a file or begins the names of files.
pub(super) fn file_name(path: &Path) -> Result<&str> {
    path.file_name().and_then(|n| n.to_str()).ok_or_else(|| {
        Error::invalid(format!("'{}' ends in no file name; want a path such as checkpoints/model.ckpt", path.display()))
    })
}

/// Opens a file to read; gives its length too.
pub(super) fn open(path: &Path) -> Result<(File, u64)> {
    let file = File::open(path).map_err(|e| failed("read", path, &e))?;
    let metadata = file.metadata().map_err(|e| failed("read", path, &e))?;
    if !metadata.is_file() {
        return Err(damaged(path, "it is no file"));
    }
    Ok((file, metadata.len()))
}

/// A folder in which files are written and renamed, by one writer at a time over all programs.
pub(super) struct Folder {
    path: PathBuf,
    /// Locked until it is closed; absent where folders cannot be opened.
    handle: Option<File>,
}

impl Folder {
    /// Waits until no other writer has the folder.
    ///
    /// # Errors
    /// When there is no such folder.
    pub fn lock(path: &Path) -> Result<Folder> {
        if !path.is_dir() {
            let message = format!("there is no folder '{}'; make it first", path.display());
            return Err(Error::new(Code::NotFound, message));
        }
        let handle = File::open(path).ok();
        // File systems without locks leave it to the user that there is one writer.
        let _ = handle.as_ref().map(File::lock);
        Ok(Folder { path: path.into(), handle })
    }

    /// The path of a name in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Begins a new file, in the place of one of that name.
    ///
    /// # Errors
    /// What the file system says.
    pub fn create(&self, name: &str) -> Result<Aside> {
        let path = self.path(name);
        let file = steps::one_more().and_then(|()| File::create(&path)).map_err(|e| failed("write", &path, &e))?;
        Ok(Aside { out: BufWriter::with_capacity(1 << 18, file), path })
    }

    /// Gives a file another name, in the place of one that has it.
    ///
    /// # Errors
    /// What the file system says.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.path(from), self.path(to));
        steps::one_more().and_then(|()| std::fs::rename(&from, &to)).map_err(|e| failed("write", &to, &e))
    }

    /// Removes a file; one that is not there is none the less gone.
    ///
    /// # Errors
    /// What the file system says.
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        match steps::one_more().and_then(|()| std::fs::remove_file(&path)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path, &e)),
            _ => Ok(()),
        }
    }

    /// Waits until new names are on the disk.
    ///
    /// # Errors
    /// What the file system says.
    pub fn sync(&self) -> Result<()> {
        let Some(handle) = &self.handle else { return Ok(()) };
        steps::one_more().and_then(|()| handle.sync_all()).map_err(|e| failed("write to", &self.path, &e))
    }

    /// Whether there is a file of this name.
    pub fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }
}

/// A file that is being written under a name of its own.
pub(super) struct Aside {
    out: BufWriter<File>,
    path: PathBuf,
}

impl Aside {
    /// Appends bytes.
    ///
    /// # Errors
    /// What the file system says.
    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_all(bytes).map_err(|e| failed("write", &self.path, &e))
    }

    /// Waits until all of it is on the disk.
    ///
    /// # Errors
    /// What the file system says.
    pub fn finish(mut self) -> Result<()> {
        let flushed = steps::one_more().and_then(|()| self.out.flush()).and_then(|()| self.out.get_ref().sync_all());
        flushed.map_err(|e| failed("write", &self.path, &e))
    }
}

impl Write for Aside {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        steps::one_more().and_then(|()| self.out.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Seek for Aside {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.out.seek(to)
    }
}

/// Writes a file of its own: aside first, so that one that is there is replaced only when all is written.
///
/// # Errors
/// What `write` and the file system say.
pub(super) fn replace(path: &Path, write: impl FnOnce(Aside) -> Result<Aside>) -> Result<()> {
    let name = file_name(path)?;
    let folder = Folder::lock(folder_of(path))?;
    let aside = format!(".{name}.saving");
    let written = folder.create(&aside).and_then(|file| {
        write(file)?.finish()?;
        folder.rename(&aside, name)?;
        folder.sync()
    });
    if written.is_err() {
        // The error to tell is the first one.
        let _ = folder.remove(&aside);
    }
    written
}

/// Counts what is done to files, so that tests can stop a program between any two steps.
pub(super) mod steps {
    use std::io;

    #[cfg(test)]
    thread_local! {
        static LEFT: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
    }

    /// Lets this thread do so many more steps; every later one fails, clearing up included.
    #[cfg(test)]
    pub fn allow(steps: Option<usize>) {
        LEFT.set(steps);
    }

    /// Notes one step.
    #[cfg(test)]
    pub fn one_more() -> io::Result<()> {
        match LEFT.get() {
            Some(0) => return Err(io::Error::other("the test stops here")),
            Some(left) => LEFT.set(Some(left - 1)),
            None => {}
        }
        Ok(())
    }

    /// Notes one step.
    #[cfg(not(test))]
    pub fn one_more() -> io::Result<()> {
        Ok(())
    }
}
