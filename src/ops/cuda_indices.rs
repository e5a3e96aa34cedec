//! Row numbers on CUDA: checked before anything is written, and sorted where several entries may name one row.
//!
//! A key is an index above the number of its entry. Keys are sorted in tiles, whose sorted runs are merged two by two;
//! as no two keys are equal, the order is that of the entries, whatever runs first. What a row gets from several
//! entries is then added by one thread, in that order. Absent: what is done with the rows.

use super::cuda_copy::moved;
use super::cuda_index::{ASKING, Counter};
use crate::base::DType;
use crate::device::cuda::{CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch, FailureText};

/// Threads of a block, as the texts have it.
const THREADS: u32 = 256;
/// The most keys of a tile.
const TILE: usize = 2048;
/// Indices that one block checks for a gather.
const CHECKED: usize = 16384;

/// A vector of indices.
#[derive(Clone, Copy)]
pub(super) struct Indices {
    /// Where they are.
    pub buffer: CudaBuffer,
    /// `int32` or `int64`.
    pub dtype: DType,
    /// How many.
    pub count: usize,
    /// What they must be below.
    pub bound: usize,
    /// Whether negative ones are let pass.
    pub negative: bool,
    /// What is added to the number of an entry that is reported.
    pub offset: usize,
}

/// Sorted keys in the scratch memory.
pub(super) struct Sorted {
    /// What sorts them.
    pub launches: Vec<CudaLaunch>,
    /// Where they are then.
    pub keys: CudaArg,
    /// The bits below the index.
    pub shift: CudaArg,
    /// Where the scratch memory goes on.
    pub scratch_end: usize,
}

impl Indices {
    /// A text that checks indices.
    pub fn code(&self, counter: Counter, text: &str) -> CudaCode {
        let text = format!("{}{text}", include_str!("cuda/indices.cu"));
        counter.code(&text).with_type("X", self.dtype).with_constant("NEGATIVE", self.negative.into())
    }

    /// Reports the first bad index, from what this many blocks put in the scratch memory from `firsts` on.
    fn report(&self, firsts: usize, blocks: usize) -> CudaLaunch {
        let code = self.code(Counter::for_sizes(&[]), include_str!("cuda/report.cu"));
        let [firsts, indices] = [CudaBuffer::Scratch(firsts), self.buffer].map(CudaArg::Buffer);
        let [blocks, count, offset] = [blocks, self.count, self.offset].map(CudaArg::size);
        let args = vec![firsts, blocks, indices, count, offset, CudaArg::Failure];
        CudaLaunch::Code { code, blocks: 1, threads: THREADS, shared_bytes: 0, args }
    }

    /// Sorts them in scratch memory from `scratch` on, with a check of all if `checks`. There is at least one.
    pub fn sort(&self, scratch: usize, checks: bool) -> Sorted {
        let count = self.count;
        let tile = TILE.min(count.next_power_of_two());
        let tiles = count.div_ceil(tile);
        let keys = [scratch, scratch + 8 * count];
        let firsts = scratch + 16 * count;
        let shift = CudaArg::I32((usize::BITS - (count - 1).leading_zeros()) as i32);
        let at = |start: usize| CudaArg::Buffer(CudaBuffer::Scratch(start));
        let counter = Counter::for_sizes(&[]);
        let args = vec![
            CudaArg::Buffer(self.buffer),
            CudaArg::size(count),
            CudaArg::size(self.bound),
            shift,
            CudaArg::I32(tile as i32),
            CudaArg::I32(checks.into()),
            at(keys[0]),
            at(firsts),
            CudaArg::size(self.offset),
            CudaArg::Failure,
        ];
        let code = self.code(counter, include_str!("cuda/sort.cu"));
        let blocks = tiles as u32;
        let mut launches = vec![CudaLaunch::Code { code, blocks, threads: THREADS, shared_bytes: 0, args }];
        if checks && tiles > 1 {
            launches.push(self.report(firsts, tiles));
        }
        let (mut run, mut from) = (tile, 0);
        while run < count {
            let args = [at(keys[from]), at(keys[1 - from]), CudaArg::size(count), CudaArg::size(run)];
            launches.push(CudaLaunch::elements(CudaCode::new(include_str!("cuda/merge.cu")), count, args));
            (run, from) = (2 * run, 1 - from);
        }
        Sorted { launches, keys: at(keys[from]), shift, scratch_end: firsts + 8 * tiles }
    }

    /// Puts rows of `x`, one for each index, into rows of `y`, whose elements `step` makes of `old` and `x`.
    pub fn scatter(
        &self,
        step: &str,
        dtype: DType,
        width: usize,
        y: CudaArg,
        x: CudaArg,
        sorted: &Sorted,
    ) -> CudaLaunch {
        let counter = Counter::for_sizes(&[self.count * width, self.bound * width]);
        let code = counter.code(&include_str!("cuda/scatter.cu").replace("$step", step)).with_type("T", dtype);
        let sizes = [counter.size(self.count), counter.size(self.bound)];
        let args = [y, x, sorted.keys].into_iter().chain(sizes).chain(counter.divisor(width));
        CudaLaunch::elements(code, (self.count * width).min(ASKING), args.chain([sorted.shift, CudaArg::Failure]))
    }

    /// The kernel that gathers slices of `[outer, bound, width]` into output 0, `[outer, count, width]`.
    pub fn gather(
        &self,
        dtype: DType,
        params: CudaArg,
        outer: usize,
        width: usize,
        failure: FailureText,
    ) -> CudaKernel {
        self.gather_with(None, 0, (dtype, outer, width), params, failure)
    }

    /// As [`Indices::gather`] along the first axis, of indices that a launch puts into the scratch memory, of which it
    /// takes this many bytes.
    pub fn gather_after(
        &self,
        before: CudaLaunch,
        scratch: usize,
        dtype: DType,
        params: CudaArg,
        width: usize,
        failure: FailureText,
    ) -> CudaKernel {
        self.gather_with(Some(before), scratch, (dtype, 1, width), params, failure)
    }

    fn gather_with(
        &self,
        before: Option<CudaLaunch>,
        firsts: usize,
        (dtype, outer, width): (DType, usize, usize),
        params: CudaArg,
        failure: FailureText,
    ) -> CudaKernel {
        let len = outer * self.count * width;
        let checkers = self.count.div_ceil(CHECKED);
        let workers = len.div_ceil(4 * THREADS as usize).min(1 << 16);
        if checkers == 0 {
            return CudaKernel::default();
        }
        let counter = Counter::for_sizes(&[len, outer * self.bound * width, self.bound, self.count]);
        let code = self.code(counter, include_str!("cuda/gather.cu")).with_type("T", moved(dtype));
        let buffers = [params, CudaArg::Buffer(self.buffer), CudaArg::output(0)];
        let sizes = [counter.size(len), counter.size(self.bound)];
        let args = buffers.into_iter().chain(sizes).chain(counter.divisor(self.count)).chain(counter.divisor(width));
        let last = [CudaArg::U32(workers as u32), CudaArg::Buffer(CudaBuffer::Scratch(firsts)), CudaArg::Failure];
        let args = args.chain(last).collect();
        let blocks = (workers + checkers) as u32;
        let mut launches: Vec<CudaLaunch> = before.into_iter().collect();
        launches.push(CudaLaunch::Code { code, blocks, threads: THREADS, shared_bytes: 0, args });
        if checkers > 1 {
            launches.push(self.report(firsts, checkers));
        }
        CudaKernel { scratch_bytes: firsts + 8 * checkers, failure: Some(failure), ..CudaKernel::new(launches) }
    }
}
