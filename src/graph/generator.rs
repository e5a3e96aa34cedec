//! Where the streams of random ops stand: seeds, and how much is taken.
//!
//! A session has one generator for each random node, whatever the number of its plans; checkpoints keep them. Absent:
//! the numbers, which `ops` draws.

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a random node says of its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seeds {
    /// The stream of these seeds.
    Given([u64; 2]),
    /// Another stream in every session.
    Entropy,
}

/// One random node's stream: its two seeds, and the blocks of numbers that are taken of it. On CUDA GPUs a node's state
/// is the same three words, in that order.
#[derive(Debug)]
pub struct Generator {
    words: [AtomicU64; 3],
}

impl Generator {
    /// The start of a stream.
    pub fn new(seeds: Seeds) -> Generator {
        let entropy = || std::collections::hash_map::RandomState::new().build_hasher().finish();
        let [seed, seed2] = match seeds {
            Seeds::Given(seeds) => seeds,
            Seeds::Entropy => [entropy(), entropy()],
        };
        Generator { words: [seed, seed2, 0].map(AtomicU64::new) }
    }

    /// The seeds, and the blocks that are taken.
    pub fn words(&self) -> [u64; 3] {
        [0, 1, 2].map(|i| self.words[i].load(Ordering::Relaxed))
    }

    /// Moves to another place, of another stream if the seeds differ. No step may be running.
    pub fn set(&self, words: [u64; 3]) {
        self.words.iter().zip(words).for_each(|(w, to)| w.store(to, Ordering::Relaxed));
    }

    /// Takes blocks: the seeds, and the place of the first block.
    pub fn take(&self, blocks: u64) -> [u64; 3] {
        let at = self.words[2].fetch_add(blocks, Ordering::Relaxed);
        let [seed, seed2, _] = self.words();
        [seed, seed2, at]
    }
}
