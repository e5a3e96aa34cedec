//! Walks the table: names, rules, kernels and gradients of every op.

use super::*;

#[test]
fn names_are_unique() {
    let mut names: Vec<&str> = TABLE.iter().map(|op| op.name()).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
}
