//! Unique names and their rules: one table for ops and name scopes, as in TensorFlow.

use std::collections::HashMap;

/// The table of names in use; names that differ only in case count as one.
#[derive(Default)]
pub(super) struct NameTable {
    used: HashMap<String, u32>,
}

impl NameTable {
    /// A name not used before: the wanted one, or with the first free `_1`, `_2`, …; marks it used.
    pub fn unique(&mut self, wanted: &str) -> String {
        let key = wanted.to_lowercase();
        let mut i = self.used.get(&key).copied().unwrap_or(0);
        self.used.insert(key.clone(), i + 1);
        if i == 0 {
            return wanted.to_string();
        }
        let mut candidate = key.clone();
        while self.used.contains_key(&candidate) {
            candidate = format!("{key}_{i}");
            i += 1;
        }
        self.used.insert(key, i);
        self.used.insert(candidate, 1);
        format!("{wanted}_{}", i - 1)
    }

    /// Marks a name used without making it unique.
    pub fn mark(&mut self, name: &str) {
        self.used.entry(name.to_lowercase()).or_insert(1);
    }
}

/// What is named, for messages and for what a trailing `/` means.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Op,
    NameScope,
    Variable,
    VariableScope,
}

impl Kind {
    fn noun(self) -> &'static str {
        match self {
            Kind::Op => "op",
            Kind::NameScope => "scope",
            Kind::Variable => "variable",
            Kind::VariableScope => "variable scope",
        }
    }

    /// True if a trailing `/` makes the name absolute.
    fn may_be_absolute(self) -> bool {
        matches!(self, Kind::Op | Kind::NameScope)
    }
}

/// Why a name is refused, and a legal one like it.
#[derive(Debug, PartialEq)]
pub(super) struct Illegal {
    pub message: String,
    pub suggestion: String,
}

/// Checks a name against TensorFlow's rule: nested names may start with any legal character, top-level ones only with a
/// letter, a digit or a dot. Stricter than TensorFlow, no part of a name may be empty.
pub(super) fn check(name: &str, nested: bool, kind: Kind) -> Result<(), Illegal> {
    let absolute = kind.may_be_absolute().then(|| name.strip_suffix('/')).flatten();
    let nested = nested && absolute.is_none();
    let Some(offence) = offence(absolute.unwrap_or(name), nested) else { return Ok(()) };
    let suggestion = suggest(name);
    let first = if nested { "" } else { "the first character must be a letter, a digit or '.'; " };
    let message = format!(
        "'{name}' is no legal {} name: {offence}; {first}names have letters, digits, '_', '.', '-', and single '/' \
         between parts; try '{suggestion}'",
        kind.noun()
    );
    Err(Illegal { message, suggestion })
}

/// The first thing wrong with a name, and where.
fn offence(name: &str, nested: bool) -> Option<String> {
    if name.is_empty() {
        return Some("it is empty".to_string());
    }
    let last = name.chars().count() - 1;
    let mut before = None;
    for (i, c) in name.chars().enumerate() {
        let why = match c {
            '/' if i == 0 => "nothing is before it",
            '/' if i == last => "nothing is after it",
            '/' if before == Some('/') => "it follows another '/'",
            '_' | '-' if i == 0 && !nested => "a name cannot start with it",
            '_' | '-' | '.' | '/' => "",
            c if c.is_ascii_alphanumeric() => "",
            _ => "it is not allowed in names",
        };
        if !why.is_empty() {
            return Some(format!("character {c:?} at index {i}: {why}"));
        }
        before = Some(c);
    }
    None
}

/// A legal name, at the top level too, that is as like this one as can be.
fn suggest(name: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' };
    let parts: Vec<String> =
        (name.split('/').filter(|p| !p.is_empty())).map(|p| p.chars().map(legal).collect::<String>()).collect();
    let joined = parts.join("/");
    let trimmed = joined.trim_start_matches(['_', '-', '/']).trim_end_matches(['_', '/']);
    if trimmed.is_empty() { "x".to_string() } else { trimmed.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unique_names_follow_tensorflow() {
        let mut table = NameTable::default();
        let names: Vec<String> = ["a", "a", "a_1", "a", "A"].into_iter().map(|n| table.unique(n)).collect();
        assert_eq!(names, ["a", "a_1", "a_1_1", "a_2", "A_3"]);
    }

    #[test]
    fn illegal_names_are_explained() {
        let kinds = [Kind::Op, Kind::NameScope, Kind::Variable, Kind::VariableScope];
        for kind in kinds {
            for good in ["fc1", "tower_0/fc", ".x", "a-b", "0", "A_.-/b"] {
                assert_eq!(check(good, false, kind), Ok(()));
            }
            for (bad, nested, offence, suggestion) in [
                ("concave points", false, "character ' ' at index 7", "concave_points"),
                ("x:0", true, "character ':' at index 1", "x_0"),
                ("chars,", true, "character ',' at index 5", "chars"),
                ("hey:)", false, "character ':' at index 3", "hey"),
                ("_lead", false, "character '_' at index 0", "lead"),
                ("-", false, "character '-' at index 0", "x"),
                ("", true, "it is empty", "x"),
                ("/", true, "", "x"),
                ("/a", true, "character '/' at index 0", "a"),
                ("a//b", true, "character '/' at index 2", "a/b"),
                ("a//", true, "character '/' at index ", "a"),
                ("_/:/_", false, "character '_' at index 0", "x"),
                ("größe", true, "character 'ö' at index 2", "gr__e"),
                ("a\n", true, "character '\\n' at index 1", "a"),
            ] {
                let Err(Illegal { message, suggestion: got }) = check(bad, nested, kind) else {
                    panic!("'{bad}' was accepted as a {} name", kind.noun());
                };
                assert!(
                    message.contains(bad) && message.contains(offence) && message.contains(kind.noun()),
                    "{message}"
                );
                assert_eq!((got.as_str(), check(&got, false, kind)), (suggestion, Ok(())), "{message}");
            }
            assert_eq!(check("_lead", true, kind), Ok(()));
            assert_eq!(check("a/", true, kind).is_ok(), kind.may_be_absolute());
        }
        // An absolute name is a top-level name wherever it is given.
        assert!(check("_lead/", true, Kind::Op).is_err());
    }
}
