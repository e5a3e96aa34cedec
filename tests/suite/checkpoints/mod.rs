//! Checkpoints as a training program uses them: saved, killed, gone on from; and files of every format that are damaged.

mod command;
mod damage;
mod events;
mod killed;
mod resume;
mod tensorflow;

use std::path::PathBuf;

/// An empty folder of this name, for this process.
fn scratch(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("checkpoints-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the scratch folder can be made");
    folder
}
