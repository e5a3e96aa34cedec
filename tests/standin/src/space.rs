//! Memory: one reserved stretch of addresses, a part of it for each GPU and one for pinned host memory.
//!
//! A device address is `(gpu + 1) << 56 | offset`, which no x86-64 processor follows: a host that does faults. The
//! bytes themselves lie in the GPU's part, at the offset. Pinned host memory has its own address on both sides. Fresh
//! memory is filled with 0xFF, a NaN as any float. Beside the memory lies its shadow, one byte for each byte: whether it
//! belongs to a live allocation, and what the running kernel did to it.

use crate::bridge::{BRIDGE, LIVE};
use crate::codes::{Code, Failure, ILLEGAL_ADDRESS, OUT_OF_MEMORY};
use crate::races::Span;
use std::collections::BTreeMap;

const ALIGN: usize = 512;
const PAGE: usize = 4096;
const CHUNK: usize = 16 << 20;
/// Offsets start here, so that small integers are no device addresses.
const FIRST: usize = 1 << 20;

/// One live allocation.
pub struct Alloc {
    /// Bytes asked for.
    pub size: usize,
    /// The context that made it.
    pub context: u64,
    /// The GPU, or none for pinned host memory.
    pub gpu: Option<usize>,
    room: usize,
}

/// All memory that the stand-in hands out.
pub struct Space {
    base: usize,
    shift: usize,
    gpus: usize,
    limit: usize,
    /// The end of what was handed out, and of what may be touched, in each part.
    ends: Vec<(usize, usize)>,
    freed: Vec<Vec<(usize, usize)>>,
    used: Vec<usize>,
    allocs: BTreeMap<usize, Alloc>,
    registered: BTreeMap<usize, usize>,
}

fn map(size: usize, protection: i32) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh anonymous mapping takes nothing from anyone.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED { 0 } else { at as usize }
}

/// Bytes of the files whose pages stand for fresh memory until they are written.
const PATTERN: usize = 4 << 20;

/// A file in memory that is full of one byte; -1 where the system gives none.
fn pattern_file(byte: u8) -> i32 {
    // SAFETY: plain calls; the descriptor is this process's own.
    unsafe {
        let file = libc::memfd_create(c"turret-standin".as_ptr(), 0);
        let bytes = vec![byte; PATTERN];
        let whole = file >= 0 && libc::write(file, bytes.as_ptr().cast(), PATTERN) == PATTERN as isize;
        if whole { file } else { -1 }
    }
}

/// Fills a stretch with a byte. Whole pages of a long one are a private view of a file with that byte, so that memory
/// that nobody uses costs nothing.
///
/// # Safety
/// The stretch is accessible and nobody else's.
unsafe fn fill(at: usize, len: usize, byte: u8) {
    static FILES: [std::sync::OnceLock<i32>; 2] = [std::sync::OnceLock::new(), std::sync::OnceLock::new()];
    let (mut from, upto) = (at.div_ceil(PAGE) * PAGE, (at + len) / PAGE * PAGE);
    // SAFETY: by the contract; mapped pages lie in the stretch.
    unsafe {
        if upto <= from + PATTERN / 4 {
            return std::ptr::write_bytes(at as *mut u8, byte, len);
        }
        std::ptr::write_bytes(at as *mut u8, byte, from - at);
        std::ptr::write_bytes(upto as *mut u8, byte, at + len - upto);
        let (flags, file) = match byte {
            0 => (libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1),
            _ => {
                let which = usize::from(byte != 0xFF);
                (libc::MAP_PRIVATE | libc::MAP_FIXED, *FILES[which].get_or_init(|| pattern_file(byte)))
            }
        };
        while from < upto {
            let n = if byte == 0 { upto - from } else { (upto - from).min(PATTERN) };
            let mapped = byte == 0 || file >= 0;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            if !mapped || libc::mmap(from as *mut _, n, protection, flags, file, 0) == libc::MAP_FAILED {
                std::ptr::write_bytes(from as *mut u8, byte, n);
            }
            from += n;
        }
    }
}

impl Space {
    /// Reserves addresses for a number of GPUs with so many bytes each.
    pub fn new(gpus: usize, limit: usize) -> Space {
        let wanted = limit.saturating_mul(16).clamp(1 << 30, 64 << 30).next_power_of_two();
        let mut shift = wanted.trailing_zeros() as usize;
        let (base, size) = loop {
            let size = (gpus + 1) << shift;
            let base = map(size, libc::PROT_NONE);
            let shadow = map(size, libc::PROT_READ | libc::PROT_WRITE);
            let dirty = map(size / PAGE, libc::PROT_READ | libc::PROT_WRITE);
            let pages = map(size / PAGE * 4, libc::PROT_READ | libc::PROT_WRITE);
            if [base, shadow, dirty, pages].iter().all(|m| *m != 0) {
                // SAFETY: the driver's lock is held, and no kernel runs yet.
                let bridge = unsafe { &mut *BRIDGE.get() };
                (bridge.base, bridge.size, bridge.slice_shift) = (base, size, shift);
                (bridge.shadow, bridge.dirty, bridge.pages) = (shadow as *mut u8, dirty as *mut u8, pages as *mut u32);
                break (base, size);
            }
            assert!(
                shift > 24,
                "the stand-in driver cannot reserve addresses for {gpus} GPUs; lift the limit (ulimit -v)"
            );
            shift -= 1;
        };
        let _ = size;
        let part = |g: usize| base + (g << shift) + FIRST;
        Space {
            base,
            shift,
            gpus,
            limit,
            ends: (0..=gpus).map(|g| (part(g), part(g))).collect(),
            freed: vec![Vec::new(); gpus + 1],
            used: vec![0; gpus + 1],
            allocs: BTreeMap::new(),
            registered: BTreeMap::new(),
        }
    }

    /// Bytes free and bytes in all on a GPU.
    pub fn room(&self, gpu: usize) -> (usize, usize) {
        (self.limit - self.used[gpu].min(self.limit), self.limit)
    }

    /// Live allocations of a GPU, or of pinned host memory for the number after the last GPU.
    pub fn live(&self, part: usize) -> usize {
        self.allocs.values().filter(|a| a.gpu.unwrap_or(self.gpus) == part).count()
    }

    fn shadow(&self, host: usize) -> *mut u8 {
        // SAFETY: the shadow is as long as the memory, and `host` lies in it.
        unsafe { (*BRIDGE.get()).shadow.add(host - self.base) }
    }

    /// Takes memory of a GPU for a context, or pinned host memory; the address is the host's.
    pub fn alloc(&mut self, gpu: Option<usize>, context: u64, size: usize) -> Result<usize, Code> {
        let part = gpu.unwrap_or(self.gpus);
        let align = if gpu.is_some() { ALIGN } else { PAGE };
        let room = size.max(1).div_ceil(align).checked_mul(align).ok_or(OUT_OF_MEMORY)?;
        if gpu.is_some() && self.used[part].saturating_add(room) > self.limit {
            return Err(OUT_OF_MEMORY);
        }
        let at = self.take(part, room + ALIGN, align).ok_or(OUT_OF_MEMORY)?;
        // SAFETY: the stretch was just taken and made accessible.
        unsafe {
            fill(at, room, 0xFF);
            fill(self.shadow(at) as usize, size, LIVE);
        }
        self.used[part] += room;
        self.allocs.insert(at, Alloc { size, context, gpu, room });
        Ok(at)
    }

    /// Finds addresses: fresh ones while there are any, so that a freed address stays wrong for long.
    fn take(&mut self, part: usize, room: usize, align: usize) -> Option<usize> {
        let end = self.base + ((part + 1) << self.shift);
        let (next, open) = self.ends[part];
        let at = next.div_ceil(align) * align;
        if at.checked_add(room)? <= end {
            if at + room > open {
                let upto = (at + room).div_ceil(CHUNK) * CHUNK;
                let from = open / PAGE * PAGE;
                let upto = upto.min(end);
                // SAFETY: the stretch lies in this part of the reservation.
                let ok = unsafe { libc::mprotect(from as *mut _, upto - from, libc::PROT_READ | libc::PROT_WRITE) };
                if ok != 0 {
                    return None;
                }
                self.ends[part].1 = upto;
            }
            self.ends[part].0 = at + room;
            return Some(at);
        }
        let i = self.freed[part].iter().position(|(a, n)| a % align == 0 && *n >= room)?;
        let (at, n) = self.freed[part].swap_remove(i);
        if n > room {
            self.freed[part].push((at + room.div_ceil(align) * align, n.saturating_sub(room.div_ceil(align) * align)));
        }
        Some(at)
    }

    /// Gives an allocation back; false when none starts there.
    pub fn free(&mut self, host: usize) -> bool {
        let Some(alloc) = self.allocs.remove(&host) else { return false };
        let part = alloc.gpu.unwrap_or(self.gpus);
        self.used[part] -= alloc.room;
        self.freed[part].push((host, alloc.room + ALIGN));
        // SAFETY: the stretch belonged to the allocation, which nobody may use any more.
        unsafe {
            fill(self.shadow(host) as usize, alloc.size, 0);
            fill(host, alloc.room, 0xFF);
        }
        true
    }

    /// The allocation that holds a host-side address, and where it starts.
    pub fn find(&self, host: usize) -> Option<(usize, &Alloc)> {
        let (at, alloc) = self.allocs.range(..=host).next_back()?;
        (host < at + alloc.size.max(1)).then_some((*at, alloc))
    }

    /// The allocations of a context, with their addresses.
    pub fn of_context(&self, context: u64) -> Vec<usize> {
        self.allocs.iter().filter(|(_, a)| a.context == context && a.gpu.is_some()).map(|(at, _)| *at).collect()
    }

    /// Device or pinned address to where the bytes are; none for pageable host memory.
    pub fn host(&self, address: u64) -> Option<usize> {
        let (tag, offset) = ((address >> 56) as usize, (address & ((1 << 56) - 1)) as usize);
        if tag == 0 {
            return self.pinned(offset, 1).then_some(offset);
        }
        (tag <= self.gpus && offset < 1 << self.shift).then(|| self.base + ((tag - 1) << self.shift) + offset)
    }

    /// The device address of a place in memory; pinned memory keeps its own.
    pub fn device(&self, host: usize) -> u64 {
        match host.checked_sub(self.base).map(|o| (o >> self.shift, o & ((1 << self.shift) - 1))) {
            Some((gpu, offset)) if gpu < self.gpus => ((gpu as u64 + 1) << 56) | offset as u64,
            _ => host as u64,
        }
    }

    /// The GPU of a device address.
    pub fn gpu_of(&self, address: u64) -> Option<usize> {
        ((address >> 56) as usize).checked_sub(1).filter(|g| *g < self.gpus)
    }

    /// True when a host range is pinned: allocated so, or registered.
    pub fn pinned(&self, at: usize, n: usize) -> bool {
        let holds = |found: Option<(&usize, &usize)>| found.is_some_and(|(b, l)| at + n <= b + l);
        holds(self.registered.range(..=at).next_back())
            || self.find(at).is_some_and(|(b, a)| a.gpu.is_none() && at + n <= b + a.size)
    }

    /// Pins a host range; false where part of it is pinned already.
    pub fn register(&mut self, at: usize, n: usize) -> bool {
        let before = self.registered.range(..at + n).next_back().is_some_and(|(b, l)| b + l > at);
        if before || self.find(at).is_some() {
            return false;
        }
        self.registered.insert(at, n);
        self.count_registered();
        true
    }

    /// Unpins a host range that starts there.
    pub fn unregister(&mut self, at: usize) -> bool {
        let known = self.registered.remove(&at).is_some();
        self.count_registered();
        known
    }

    /// The host ranges that are registered.
    pub fn registered(&self) -> Vec<(usize, usize)> {
        self.registered.iter().map(|(a, n)| (*a, a + n)).collect()
    }

    fn count_registered(&self) {
        // SAFETY: the driver's lock is held, and no kernel runs.
        unsafe { (*BRIDGE.get()).registered = self.registered.len() };
    }

    /// Checks that a range lies in one live allocation, and gives its place.
    pub fn range(&self, address: u64, n: usize) -> Result<usize, Failure> {
        let bad = |m: String| Err(Failure::new(ILLEGAL_ADDRESS, m));
        let Some(host) = self.host(address) else { return bad(format!("address {address:#x} is no device memory")) };
        if n == 0 || self.pinned(host, n) {
            return Ok(host);
        }
        match self.find(host) {
            None => bad(format!("address {address:#x} lies in no live allocation")),
            Some((at, a)) if host + n > at + a.size => bad(format!(
                "{n} bytes from {address:#x} run past the allocation of {} bytes at {:#x}",
                a.size,
                self.device(at)
            )),
            Some(_) => Ok(host),
        }
    }

    /// The marks of the pages that the last kernel touched, as spans in order; clears them.
    pub fn collect(&mut self) -> Vec<Span> {
        // SAFETY: the driver's lock is held, and no kernel runs.
        let bridge = unsafe { &mut *BRIDGE.get() };
        // SAFETY: the hooks wrote so many page numbers.
        let pages = unsafe { std::slice::from_raw_parts_mut(bridge.pages, bridge.page_count) };
        pages.sort_unstable();
        let mut spans: Vec<Span> = Vec::new();
        let mut put = |lo: usize, hi: usize, bits: u8| match spans.last_mut() {
            Some(last) if last.hi == lo && last.bits == bits => last.hi = hi,
            _ if bits != 0 => spans.push(Span { lo, hi, bits }),
            _ => {}
        };
        for page in pages.iter() {
            let at = *page as usize * PAGE;
            // SAFETY: the page lies in the reservation; its shadow and its dirty mark too.
            let words = unsafe {
                *bridge.dirty.add(*page as usize) = 0;
                std::slice::from_raw_parts_mut(bridge.shadow.add(at) as *mut u64, PAGE / 8)
            };
            for (i, word) in words.iter_mut().enumerate() {
                let marks = *word & 0x0F0F_0F0F_0F0F_0F0F;
                if marks == 0 {
                    continue;
                }
                *word &= 0x8080_8080_8080_8080;
                let lo = self.base + at + i * 8;
                let first = marks as u8;
                if marks == u64::from(first) * 0x0101_0101_0101_0101 {
                    put(lo, lo + 8, first);
                } else {
                    marks.to_le_bytes().iter().enumerate().for_each(|(b, bits)| put(lo + b, lo + b + 1, *bits));
                }
            }
        }
        bridge.page_count = 0;
        spans
    }
}
