//! Where random nodes stand, as an entry beside the variables that TensorFlow passes over.
//!
//! A line for each node: seeds and blocks taken in hexadecimal, always as long, then the name, so that a checkpoint has
//! the same size whatever the number of steps.

use crate::run::GeneratorPlaces;
use std::fmt::Write;

/// The name of the entry, and of the note in a `.safetensors` file.
pub(super) const ENTRY: &str = "_TURRET_GENERATORS";

/// The entry's text.
pub(super) fn encode(places: &GeneratorPlaces) -> String {
    places.iter().fold(String::new(), |mut text, (name, [seed, seed2, taken])| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{seed:016x} {seed2:016x} {taken:016x} {name}");
        text
    })
}

/// What an entry says.
///
/// # Errors
/// The line that is wrong.
pub(super) fn decode(text: &str) -> Result<GeneratorPlaces, String> {
    let line = |line: &str| {
        let mut fields = line.splitn(4, ' ');
        let mut word = || u64::from_str_radix(fields.next()?, 16).ok();
        let words = [word()?, word()?, word()?];
        Some((fields.next()?.to_string(), words))
    };
    let of = |(i, text): (usize, &str)| line(text).ok_or_else(|| format!("line {} of '{ENTRY}' is wrong", i + 1));
    text.lines().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_back_and_take_the_same_room() {
        let places = |taken| {
            let all = [("tower_0/a", [1, u64::MAX, taken]), ("b", [0, 2, 3])];
            all.into_iter().map(|(n, w)| (n.to_string(), w)).collect::<GeneratorPlaces>()
        };
        assert_eq!(decode(&encode(&places(7))).unwrap(), places(7));
        assert_eq!(encode(&places(0)).len(), encode(&places(u64::MAX)).len());
        assert!(decode("12 13 b").unwrap_err().contains("line 1"));
        assert!(decode("").unwrap().is_empty());
    }
}
