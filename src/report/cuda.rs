//! What of CUDA this process can use: the GPUs, the driver, the libraries, and why not.

use super::tables::table;
use crate::device::cuda::{self, Library};
use serde::Serialize;

/// What of CUDA is there.
#[derive(Clone, Debug, Serialize)]
pub struct CudaReport {
    /// The driver's CUDA version, as in `13.0`.
    pub driver_version: Option<String>,
    /// GPUs that the driver shows.
    pub gpus: usize,
    /// Why CUDA cannot be used, if so.
    pub why_not: Option<String>,
    /// The libraries.
    pub libraries: Vec<LibraryRow>,
}

/// One of CUDA's libraries.
#[derive(Clone, Debug, Serialize)]
pub struct LibraryRow {
    /// Its file, without a version.
    pub file: &'static str,
    /// What turret uses it for.
    pub purpose: &'static str,
    /// Nothing runs on CUDA without it.
    pub needed: bool,
    /// It can be loaded.
    pub found: bool,
    /// Why not, and what helps.
    pub why_not: Option<String>,
}

impl CudaReport {
    /// Looks for the driver, its GPUs and the libraries.
    pub fn find() -> CudaReport {
        let libraries = Library::ALL.iter().map(|l| {
            let why_not = cuda::find(*l).err();
            let (file, purpose, needed) = (l.file(), l.purpose(), l.is_needed());
            LibraryRow { file, purpose, needed, found: why_not.is_none(), why_not }
        });
        let libraries: Vec<LibraryRow> = libraries.collect();
        let count = cuda::device_count();
        let missing = libraries.iter().find(|l| l.needed && !l.found).and_then(|l| l.why_not.clone());
        CudaReport {
            driver_version: cuda::driver_version().ok(),
            gpus: *count.as_ref().unwrap_or(&0),
            why_not: count.err().or(missing),
            libraries,
        }
    }

    /// Whether CUDA can be used, and the table of libraries, for people.
    pub fn text(&self) -> String {
        let rows = self.libraries.iter().map(|l| {
            let not_found = format!("{} was ", l.file);
            let why_not = l.why_not.as_ref().map(|w| w.strip_prefix(&not_found).unwrap_or(w).to_string());
            let state = why_not.unwrap_or_else(|| "found".into());
            vec![l.file.to_string(), l.purpose.to_string(), state]
        });
        format!("{}\n{}", self.in_words(), table(&["CUDA library", "what for", "state"], &[], rows))
    }

    fn in_words(&self) -> String {
        let gpus = if self.gpus == 1 { "1 GPU".to_string() } else { format!("{} GPUs", self.gpus) };
        match (&self.why_not, &self.driver_version) {
            (Some(why), _) => format!("CUDA cannot be used: {why}"),
            (None, Some(version)) => format!("CUDA can be used: {gpus}, driver for CUDA {version} (--devices cuda)"),
            (None, None) => format!("CUDA can be used: {gpus} (--devices cuda)"),
        }
    }
}
