//! Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), as TensorFlow draws from it.
//!
//! A stream is a key and a 128-bit counter, so any part of the numbers can be made by itself, on any thread.

const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const FACTORS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];

/// A place in a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Philox {
    key: [u32; 2],
    counter: u128,
}

impl Philox {
    /// The start of the stream of an op's two seeds: the first is the key, the second the counter's upper half.
    pub fn new(seed: u64, seed2: u64) -> Philox {
        Philox { key: [seed as u32, (seed >> 32) as u32], counter: u128::from(seed2) << 64 }
    }

    /// The place this many blocks of four numbers on.
    pub fn skip(self, blocks: u64) -> Philox {
        Philox { counter: self.counter.wrapping_add(blocks.into()), ..self }
    }

    /// The next four numbers.
    pub fn next(&mut self) -> [u32; 4] {
        let mut block = [0, 32, 64, 96].map(|shift| (self.counter >> shift) as u32);
        let mut key = self.key;
        for _ in 0..10 {
            let (a, b) = (FACTORS[0] * u64::from(block[0]), FACTORS[1] * u64::from(block[2]));
            block = [(b >> 32) as u32 ^ block[1] ^ key[0], b as u32, (a >> 32) as u32 ^ block[3] ^ key[1], a as u32];
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        self.counter = self.counter.wrapping_add(1);
        block
    }
}

/// The numbers of a stream one at a time.
pub(super) struct Single {
    stream: Philox,
    block: [u32; 4],
    used: usize,
}

impl Single {
    /// From here on.
    pub fn new(stream: Philox) -> Single {
        Single { stream, block: [0; 4], used: 4 }
    }

    /// The next number.
    pub fn next(&mut self) -> u32 {
        if self.used == 4 {
            self.block = self.stream.next();
            self.used = 0;
        }
        self.used += 1;
        self.block[self.used - 1]
    }
}

/// A type that random numbers are drawn in.
pub(super) trait Drawn: crate::base::Element {
    /// Numbers of a block of four.
    const PER_BLOCK: usize;

    /// Number `i` of a block, uniform in `[0, 1)`.
    fn uniform(block: &[u32; 4], i: usize) -> Self;

    /// Two independent normal numbers by Box and Muller's method, from `PER_BLOCK`'s share of the block.
    fn normals(block: &[u32; 4], pair: usize) -> [Self; 2];

    /// True inside of two standard deviations.
    fn is_near(self) -> bool;
}

/// The smallest argument of the logarithm, in both precisions.
const LEAST: f64 = 1.0e-7;

impl Drawn for f32 {
    const PER_BLOCK: usize = 4;

    fn uniform(block: &[u32; 4], i: usize) -> f32 {
        f32::from_bits((127 << 23) | (block[i] & 0x7f_ffff)) - 1.0
    }

    fn normals(block: &[u32; 4], pair: usize) -> [f32; 2] {
        let u = f32::uniform(block, 2 * pair).max(LEAST as f32);
        // TensorFlow multiplies by the double-precision constant and rounds once.
        let angle = (2.0 * std::f64::consts::PI * f64::from(f32::uniform(block, 2 * pair + 1))) as f32;
        let radius = (-2.0 * u.ln()).sqrt();
        [angle.sin() * radius, angle.cos() * radius]
    }

    fn is_near(self) -> bool {
        self.abs() < 2.0
    }
}

impl Drawn for f64 {
    const PER_BLOCK: usize = 2;

    fn uniform(block: &[u32; 4], i: usize) -> f64 {
        let mantissa = (u64::from(block[2 * i] & 0xf_ffff) << 32) | u64::from(block[2 * i + 1]);
        f64::from_bits((1023 << 52) | mantissa) - 1.0
    }

    fn normals(block: &[u32; 4], _pair: usize) -> [f64; 2] {
        let u = f64::uniform(block, 0).max(LEAST);
        let angle = 2.0 * std::f64::consts::PI * f64::uniform(block, 1);
        let radius = (-2.0 * u.ln()).sqrt();
        [angle.sin() * radius, angle.cos() * radius]
    }

    fn is_near(self) -> bool {
        self.abs() < 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of the reference implementation (Random123, `kat_vectors`).
    #[test]
    fn known_answers() {
        let zeros = Philox::new(0, 0).next();
        assert_eq!(zeros, [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        let mut ones = Philox { key: [u32::MAX; 2], counter: u128::MAX };
        assert_eq!(ones.next(), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
    }
}
