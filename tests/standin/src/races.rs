//! The race detector: two operations that touch the same bytes, one of them writing, must be ordered.
//!
//! Judged when an operation has run, by what it touched byte by byte and by the clocks that both got when they were
//! enqueued; so a race shows whatever the order was in which they ran. Accesses through volatile pointers and atomic ones
//! race only with plain ones. What the host does to pinned memory is not seen.

use crate::bridge::{READ, SOFT_READ, SOFT_WRITE, WRITE};
use crate::clock::Clock;
use std::sync::Arc;

/// A stretch of bytes and what was done to it, in the shadow's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub lo: usize,
    /// The byte after the last.
    pub hi: usize,
    /// What was done.
    pub bits: u8,
}

/// What one operation touched, and where it stands in the order.
#[derive(Clone)]
pub struct Deed {
    /// The operation's name with its GPU and stream.
    pub label: Arc<str>,
    /// Its stream's slot.
    pub slot: usize,
    /// Its number there.
    pub time: u32,
    /// What was ordered before it.
    pub clock: Clock,
    /// What it touched, in order, without overlap.
    pub spans: Arc<Vec<Span>>,
}

impl Deed {
    fn sees(&self, other: &Deed) -> bool {
        self.clock.of(other.slot) >= other.time
    }
}

fn conflict(a: u8, b: u8) -> bool {
    let one = |a: u8, b: u8| (a & WRITE != 0 && b != 0) || (a & SOFT_WRITE != 0 && b & (READ | WRITE) != 0);
    one(a, b) || one(b, a)
}

fn words(bits: u8) -> &'static str {
    match (bits & WRITE != 0, bits & (SOFT_READ | SOFT_WRITE) != 0) {
        (true, _) => "write",
        (_, true) => "volatile",
        _ => "read",
    }
}

/// Puts spans in order and splits those that overlap, each part with what all of them did.
pub fn tidy(mut spans: Vec<Span>) -> Vec<Span> {
    spans.retain(|s| s.lo < s.hi);
    spans.sort_unstable_by_key(|s| (s.lo, s.hi));
    let apart = |w: &[Span]| w[0].hi < w[1].lo || (w[0].hi == w[1].lo && w[0].bits != w[1].bits);
    if spans.windows(2).all(apart) {
        return spans;
    }
    let mut cuts: Vec<usize> = spans.iter().flat_map(|s| [s.lo, s.hi]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut tidied: Vec<Span> = Vec::new();
    let (mut next, mut open): (usize, Vec<Span>) = (0, Vec::new());
    for w in cuts.windows(2) {
        open.retain(|s| s.hi > w[0]);
        while next < spans.len() && spans[next].lo <= w[0] {
            open.push(spans[next]);
            next += 1;
        }
        let bits = open.iter().fold(0, |b, s| b | s.bits);
        match tidied.last_mut() {
            Some(last) if last.hi == w[0] && last.bits == bits => last.hi = w[1],
            _ if bits != 0 => tidied.push(Span { lo: w[0], hi: w[1], bits }),
            _ => {}
        }
    }
    tidied
}

/// The first stretch that two operations may not share.
fn clash(a: &[Span], b: &[Span]) -> Option<(Span, Span)> {
    let (mut i, mut j) = (0, 0);
    if a.first()?.lo >= b.last()?.hi || b.first()?.lo >= a.last()?.hi {
        return None;
    }
    while i < a.len() && j < b.len() {
        let (x, y) = (a[i], b[j]);
        let (lo, hi) = (x.lo.max(y.lo), x.hi.min(y.hi));
        if lo < hi && conflict(x.bits, y.bits) {
            return Some((Span { lo, hi, bits: x.bits }, Span { lo, hi, bits: y.bits }));
        }
        if x.hi < y.hi { i += 1 } else { j += 1 }
    }
    None
}

/// What ran and may still race with what is to run, and the races found.
#[derive(Default)]
pub struct Races {
    deeds: Vec<Deed>,
    /// How many were left when the last ones were forgotten.
    kept: usize,
    /// The reports, oldest first.
    pub reports: Vec<String>,
    /// Races found, also those whose report was dropped.
    pub count: u64,
}

impl Races {
    /// Judges an operation that has run, and remembers it; the sentences say where it races.
    pub fn judge(&mut self, deed: Deed, device: impl Fn(usize) -> u64) -> Vec<String> {
        let found = self.judge_only(&deed, device);
        if deed.spans.is_empty() {
            return found;
        }
        // What the same stream did to the same bytes before says nothing more: who is not ordered after it races with
        // this one too.
        let start = self.deeds.len().saturating_sub(16);
        let same = |d: &Deed| d.slot == deed.slot && deed.sees(d) && d.spans == deed.spans;
        if let Some(i) = self.deeds[start..].iter().rposition(same) {
            self.deeds.remove(start + i);
        }
        self.deeds.push(deed);
        found
    }

    /// Judges without remembering.
    pub fn judge_only(&mut self, deed: &Deed, device: impl Fn(usize) -> u64) -> Vec<String> {
        let mut found = Vec::new();
        for other in &self.deeds {
            if deed.sees(other) || other.sees(deed) {
                continue;
            }
            let Some((own, theirs)) = clash(&deed.spans, &other.spans) else { continue };
            found.push(format!(
                "race: {} ({}) and {} ({}) are not ordered and share {:#x}..{:#x} ({} bytes); make the second wait for an event after the first",
                deed.label,
                words(own.bits),
                other.label,
                words(theirs.bits),
                device(own.lo),
                device(own.lo) + (own.hi - own.lo) as u64,
                own.hi - own.lo
            ));
        }
        self.report(&found);
        found
    }

    /// Keeps reports that were found here or elsewhere.
    pub fn report(&mut self, found: &[String]) {
        self.count += found.len() as u64;
        self.reports.extend(found.iter().take(1000usize.saturating_sub(self.reports.len())).cloned());
    }

    /// True when so much is remembered that forgetting pays.
    pub fn full(&self) -> bool {
        self.deeds.len() > 64 + 2 * self.kept
    }

    /// Forgets what everything to come is ordered after: the host knows it, and so do the operations that are pending.
    pub fn forget<'a>(&mut self, host: &'a Clock, pending: impl Iterator<Item = &'a Clock>) {
        let clocks: Vec<&Clock> = std::iter::once(host).chain(pending).collect();
        self.deeds.retain(|d| clocks.iter().any(|c| c.of(d.slot) < d.time));
        self.kept = self.deeds.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_split_and_joined() {
        let span = |lo, hi, bits| Span { lo, hi, bits };
        assert_eq!(tidy(vec![span(4, 8, 1), span(0, 4, 1)]), [span(0, 8, 1)]);
        assert_eq!(tidy(vec![span(0, 8, 1), span(4, 12, 2)]), [span(0, 4, 1), span(4, 8, 3), span(8, 12, 2)]);
        assert_eq!(tidy(vec![span(0, 16, 1), span(4, 8, 2), span(20, 21, 2)]).len(), 4);
    }

    #[test]
    fn volatile_accesses_race_with_plain_ones_only() {
        assert!(conflict(WRITE, READ) && conflict(READ, WRITE) && conflict(WRITE, WRITE));
        assert!(!conflict(READ, READ) && !conflict(SOFT_WRITE, SOFT_READ) && !conflict(SOFT_WRITE, SOFT_WRITE));
        assert!(conflict(SOFT_WRITE, READ) && conflict(SOFT_READ, WRITE) && !conflict(SOFT_READ, READ));
    }
}
