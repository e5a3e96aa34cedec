//! CUDA kernels over rows and columns: how many threads share one, and into how many parts a long one is cut.
//!
//! Absent: what is computed of a row.

use crate::base::DType;
use crate::device::cuda::{CudaArg, CudaCode, CudaLaunch};

/// What every such text begins with.
pub(super) const ROWS: &str = include_str!("cuda/rows.cu");

/// The longest row that a warp takes, and has in its registers where it keeps one.
fn longest(dtype: DType) -> usize {
    if dtype.size() > 4 { 128 } else { 1024 }
}

/// A launch over `rows > 0` rows of this length. The text follows `rows.cu`, in which `PER` is how many elements of a
/// row a lane keeps; where nothing is kept it is 1 at most, so that there are fewer texts.
pub(super) fn rows_launch(
    code: CudaCode,
    dtype: DType,
    (rows, length): (usize, usize),
    kept: bool,
    args: impl IntoIterator<Item = CudaArg>,
) -> CudaLaunch {
    let per = match (length <= longest(dtype), kept) {
        (true, true) => length.div_ceil(32).next_power_of_two(),
        (in_warp, _) => usize::from(in_warp),
    };
    let (threads, rows_of_block) = match per {
        0 if length < 8192 || dtype.size() > 4 => (256, 1),
        0 => (512, 1),
        _ => (256, 8),
    };
    let blocks = rows.div_ceil(rows_of_block).clamp(1, 1 << 16) as u32;
    let code = code.with_constant("PER", per as i64).with_type("T", dtype);
    CudaLaunch::Code { code, blocks, threads, shared_bytes: 0, args: args.into_iter().collect() }
}

/// How columns of elements, `inner` apart, are shared out to threads.
pub(super) struct Parts {
    /// Lanes of a warp that share a part; 1 where neighbouring columns lie side by side, so that each thread has its own.
    pub lanes: usize,
    /// Parts of a column.
    pub count: usize,
    /// Elements of a part.
    pub length: usize,
}

impl Parts {
    /// As many parts as keep a large GPU busy, none shorter than pays.
    pub fn new(columns: usize, length: usize, inner: usize) -> Parts {
        /// Threads that a large GPU has room for at once.
        const THREADS: usize = 1 << 18;
        let lanes = if inner >= 32 || length < 32 { 1 } else { 32 };
        let most = length.div_ceil(64 * lanes).min(1024);
        let wanted = (THREADS / lanes).div_ceil(columns.max(1)).clamp(1, most.max(1));
        let length_of_part = length.div_ceil(wanted).next_multiple_of(lanes);
        Parts { lanes, count: length.div_ceil(length_of_part).max(1), length: length_of_part }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_columns() {
        for (columns, length, inner) in [(1, 1, 1), (1, 1_000_000, 1), (10, 5000, 10), (4096, 4096, 64), (3, 33, 3)] {
            let parts = Parts::new(columns, length, inner);
            assert!(parts.count * parts.length >= length && (parts.count - 1) * parts.length < length);
            assert!(parts.count <= 1024);
        }
        assert_eq!(Parts::new(1, 1_000_000, 1).count, 489);
        assert_eq!(Parts::new(64, 100, 64).lanes, 1);
    }
}
