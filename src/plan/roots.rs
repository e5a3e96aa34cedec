//! Roots: the value in whose buffer each value lies, of all values at once.
//!
//! From one value, [`Partitioned::base`] walks through all its other names, of which a chain of thousands of nodes gives it
//! as many; whoever asks for many values asks here. Absent: steps whose aliases still change.

use super::step::{Partitioned, ValueId};

/// Where every value of a step lies.
#[derive(Clone, Default, Debug)]
pub struct Roots {
    of: Vec<(ValueId, usize)>,
}

impl Roots {
    /// The roots of a step's values as they are now.
    pub(super) fn find(step: &Partitioned) -> Roots {
        let of = along_aliases(step, |id| (id, 0), |_, from, below: &(ValueId, usize)| (below.0, below.1 + from));
        Roots { of }
    }

    /// The value whose bytes these are, and where in it they start.
    pub fn get(&self, id: ValueId) -> (ValueId, usize) {
        self.of[id.index()]
    }
}

/// Something of every value: of what lies in no other's bytes by `of_base`, of a run of another's bytes, from a byte on,
/// by `of_alias`, from what was found of the other.
pub(super) fn along_aliases<T: Clone>(
    step: &Partitioned,
    of_base: impl Fn(ValueId) -> T,
    of_alias: impl Fn(ValueId, usize, &T) -> T,
) -> Vec<T> {
    let mut found: Vec<Option<T>> = vec![None; step.values.len()];
    let mut pending: Vec<(ValueId, usize)> = Vec::new();
    for id in (0..step.values.len() as u32).map(ValueId) {
        let mut at = id;
        let mut below = loop {
            match (&found[at.index()], step.value(at).alias_of) {
                (Some(known), _) => break known.clone(),
                (None, Some((of, from))) => {
                    pending.push((at, from));
                    at = of;
                }
                (None, None) => {
                    let base = of_base(at);
                    found[at.index()] = Some(base.clone());
                    break base;
                }
            }
        };
        while let Some((alias, from)) = pending.pop() {
            below = of_alias(alias, from, &below);
            found[alias.index()] = Some(below.clone());
        }
    }
    found.into_iter().flatten().collect()
}
