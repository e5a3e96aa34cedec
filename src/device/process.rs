//! The memory of the whole process as the operating system counts it; Linux's figures, and none elsewhere.

use std::fs;

/// The most bytes of memory that the process has held at once since it began, or since [`reset_peak_resident`].
pub fn peak_resident_bytes() -> Option<u64> {
    status("VmHWM:")
}

/// The bytes of memory that the process holds now.
pub fn resident_bytes() -> Option<u64> {
    status("VmRSS:")
}

/// Lets [`peak_resident_bytes`] count anew from what is held now; false where the system does not offer it.
pub fn reset_peak_resident() -> bool {
    // proc(5): writing 5 to clear_refs resets the peak resident set size.
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// A line of `/proc/self/status`, which are in kB of 1024 bytes.
fn status(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_shows_in_the_peak() {
        let Some(before) = resident_bytes() else { return };
        const TAKEN: usize = 64 << 20;
        let taken = vec![1u8; TAKEN];
        assert!(std::hint::black_box(&taken)[TAKEN - 1] == 1);
        assert!(peak_resident_bytes().is_some_and(|peak| peak >= before.max(TAKEN as u64)));
    }
}
