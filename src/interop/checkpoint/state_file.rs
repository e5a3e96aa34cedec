//! The file `checkpoint` of a folder: which checkpoints there are, in TensorFlow's text form.

use crate::base::{Code, Error, Result};
use crate::interop::files::{Folder, damaged, failed, open};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The file's name.
const NAME: &str = "checkpoint";

/// The largest such file that is read.
const MAX_BYTES: u64 = 1 << 24;

/// What the file says: checkpoints' prefixes, relative to the folder or absolute, as they stand there.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CheckpointState {
    /// The one to go on from.
    pub latest: String,
    /// All that are there, oldest first.
    pub all: Vec<String>,
}

impl CheckpointState {
    /// What the folder's file says; `None` where there is none.
    ///
    /// # Errors
    /// A file that cannot be read, or says nothing of a latest checkpoint.
    pub fn read(folder: impl AsRef<Path>) -> Result<Option<CheckpointState>> {
        let path = folder.as_ref().join(NAME);
        let (file, len) = match open(&path) {
            Err(e) if e.code() == Code::NotFound => return Ok(None),
            opened => opened?,
        };
        if len > MAX_BYTES {
            return Err(damaged(&path, format!("it has {len} bytes")));
        }
        let mut text = String::new();
        file.take(MAX_BYTES).read_to_string(&mut text).map_err(|e| failed("read", &path, &e))?;
        CheckpointState::parse(&text).map(Some).map_err(|why| damaged(&path, why))
    }

    fn parse(text: &str) -> Result<CheckpointState, String> {
        let mut state = CheckpointState::default();
        for (i, line) in text.lines().map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = || format!("line {} is not as in 'model_checkpoint_path: \"model.ckpt-7\"': {line}", i + 1);
            let (key, value) = line.split_once(':').ok_or_else(wrong)?;
            let value = value.trim();
            match key.trim() {
                "model_checkpoint_path" => state.latest = unquote(value).ok_or_else(wrong)?,
                "all_model_checkpoint_paths" => state.all.push(unquote(value).ok_or_else(wrong)?),
                // Times of newer versions.
                _ => {}
            }
        }
        match state.latest.is_empty() {
            true => Err("it names no model_checkpoint_path".into()),
            false => Ok(state),
        }
    }

    /// The file's text.
    fn text(&self) -> String {
        let all = self.all.iter().map(|path| format!("all_model_checkpoint_paths: {}\n", quote(path)));
        format!("model_checkpoint_path: {}\n{}", quote(&self.latest), all.collect::<String>())
    }

    /// Replaces the folder's file.
    pub(in crate::interop) fn write(&self, folder: &Folder) -> Result<()> {
        let aside = ".saving.checkpoint";
        let mut file = folder.create(aside)?;
        file.put(self.text().as_bytes())?;
        file.finish()?;
        folder.rename(aside, NAME)?;
        folder.sync()
    }
}

/// The prefix of a folder's latest checkpoint; `None` where the folder has no file `checkpoint`.
///
/// # Errors
/// A file that is damaged, or a checkpoint that is not there, with what is.
pub fn latest_checkpoint(folder: impl AsRef<Path>) -> Result<Option<PathBuf>> {
    let folder = folder.as_ref();
    let Some(state) = CheckpointState::read(folder)? else { return Ok(None) };
    if let Some(found) = find(folder, &state.latest) {
        return Ok(Some(found));
    }
    let there: Vec<&str> = state.all.iter().rev().filter(|p| find(folder, p).is_some()).map(String::as_str).collect();
    let there = match &there[..] {
        [] => "none of those that it lists is there".to_string(),
        there => format!("there are {}: restore one of them by its path", there.join(", ")),
    };
    Err(Error::new(
        Code::NotFound,
        format!(
            "the latest checkpoint of '{}' is not there: '{}' names '{}', which has no index; {there}",
            folder.display(),
            folder.join(NAME).display(),
            state.latest
        ),
    ))
}

/// Where a listed checkpoint is; in the folder itself too, if the folder was moved since.
pub(in crate::interop) fn find(folder: &Path, listed: &str) -> Option<PathBuf> {
    let moved = || Some(folder.join(Path::new(listed).file_name()?));
    let is_there = |p: &PathBuf| super::read::index_path(p).is_file();
    Some(folder.join(listed)).filter(is_there).or_else(|| moved().filter(is_there))
}

/// A string in the text form of protocol buffers.
fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' => quoted.push_str("\\\""),
            b'\\' => quoted.push_str("\\\\"),
            b'\n' => quoted.push_str("\\n"),
            b'\r' => quoted.push_str("\\r"),
            b'\t' => quoted.push_str("\\t"),
            0x20..0x7f => quoted.push(byte.into()),
            _ => quoted.push_str(&format!("\\{byte:03o}")),
        }
    }
    quoted + "\""
}

/// The string that [`quote`], or TensorFlow, wrote.
fn unquote(text: &str) -> Option<String> {
    let mark = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let inner = text.strip_prefix(mark)?.strip_suffix(mark)?;
    let mut bytes = Vec::new();
    let mut rest = inner.bytes().peekable();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next()? {
            b'n' => bytes.push(b'\n'),
            b'r' => bytes.push(b'\r'),
            b't' => bytes.push(b'\t'),
            first @ b'0'..=b'7' => {
                let mut value = u32::from(first - b'0');
                for _ in 0..2 {
                    if let Some(digit) = rest.next_if(|b| (b'0'..=b'7').contains(b)) {
                        value = value * 8 + u32::from(digit - b'0');
                    }
                }
                bytes.push(u8::try_from(value).ok()?);
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_tensorflows_and_comes_back() {
        let state =
            CheckpointState { latest: "model.ckpt-7".into(), all: vec!["a b\"\\é".into(), "model.ckpt-7".into()] };
        let text = state.text();
        assert_eq!(
            text,
            "model_checkpoint_path: \"model.ckpt-7\"\nall_model_checkpoint_paths: \"a b\\\"\\\\\\303\\251\"\n\
             all_model_checkpoint_paths: \"model.ckpt-7\"\n"
        );
        assert_eq!(CheckpointState::parse(&text).unwrap(), state);
        let newer = "model_checkpoint_path: \"m\"\nall_model_checkpoint_timestamps: 1.5\nlast_preserved_timestamp: 2\n";
        assert_eq!(CheckpointState::parse(newer).unwrap().latest, "m");
        for wrong in ["", "model_checkpoint_path \"m\"", "model_checkpoint_path: m", "model_checkpoint_path: \"\\777\""]
        {
            assert!(CheckpointState::parse(wrong).is_err(), "{wrong}");
        }
    }
}
