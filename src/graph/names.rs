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

/// Checks an op name or a scope name. Nested names may start with any legal character, top-level names only with a
/// letter, a digit or a dot.
pub(super) fn check(name: &str, nested: bool, what: &str) -> Result<(), String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/');
    let legal_first = |c: char| c.is_ascii_alphanumeric() || c == '.';
    let body = name.strip_suffix('/').unwrap_or(name);
    let rule = "names start with a letter, a digit or '.', then also '_', '-' and single '/'";
    if body.is_empty() {
        return Err(format!("'{name}' is not a valid {what} name: it is empty; {rule}"));
    }
    let offence = body
        .chars()
        .enumerate()
        .find(|&(i, c)| !legal(c) || (i == 0 && !nested && !legal_first(c)))
        .map(|(i, c)| (i, format!("{c:?}")))
        .or_else(|| body.find("//").map(|at| (at, "an empty part between two '/'".to_string())));
    let Some((at, offence)) = offence else { return Ok(()) };
    Err(format!("'{name}' is not a valid {what} name: {offence} at position {at}; {rule}; try '{}'", suggest(body)))
}

fn suggest(name: &str) -> String {
    let parts: Vec<String> = name
        .split('/')
        .filter(|p| !p.is_empty())
        .map(|p| p.chars().map(|c| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' }).collect())
        .collect();
    let joined = parts.join("/");
    let trimmed = joined.trim_start_matches(['_', '-', '/']).trim_end_matches('_');
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
        for good in ["fc1", "tower_0/fc", ".x", "a-b"] {
            assert_eq!(check(good, false, "op"), Ok(()));
        }
        for bad in ["concave points", "x:0", "chars,", "hey:)", "_lead", "", "/a", "a//b"] {
            let message = check(bad, false, "op").unwrap_err();
            assert!(message.contains(bad) && message.contains("names start with"), "{message}");
        }
    }
}
