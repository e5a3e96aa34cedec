//! Channels of `float32` images, where they are last, in vectors: four at a time, one, and part of one.

use pulp::{MemMask, Simd};

/// Channels from which vectors pay.
pub(super) const CHANNELS: usize = 8;

/// A vector of channels, or the last part of one.
#[derive(Clone, Copy)]
pub(super) struct Lanes<S: Simd, const PART: bool> {
    pub simd: S,
    mask: MemMask<S::m32s>,
}

impl<S: Simd, const PART: bool> Lanes<S, PART> {
    /// # Safety
    /// The channels are there.
    #[inline(always)]
    pub unsafe fn load(self, from: *const f32) -> S::f32s {
        // SAFETY: by the contract.
        unsafe {
            match PART {
                true => self.simd.mask_load_ptr_f32s(self.mask, from),
                false => from.cast::<S::f32s>().read_unaligned(),
            }
        }
    }

    /// # Safety
    /// The channels are there.
    #[inline(always)]
    pub unsafe fn store(self, to: *mut f32, value: S::f32s) {
        // SAFETY: by the contract.
        unsafe {
            match PART {
                true => self.simd.mask_store_ptr_f32s(self.mask, to, value),
                false => to.cast::<S::f32s>().write_unaligned(value),
            }
        }
    }
}

/// What is done with some channels of a window: of the image, row and column of its result.
pub(super) trait Channels {
    /// Does it for `V` vectors from channel `first` on.
    ///
    /// # Safety
    /// The window is of the tensors that this is for.
    unsafe fn of<S: Simd, const V: usize, const PART: bool>(
        &self,
        lanes: Lanes<S, PART>,
        window: (usize, usize, usize),
        first: usize,
    );
}

/// Does it for all channels of a window.
///
/// # Safety
/// The window is of the tensors that this is for.
#[inline(always)]
pub(super) unsafe fn all_channels<S: Simd>(
    simd: S,
    of: &impl Channels,
    channels: usize,
    window: (usize, usize, usize),
) {
    let (lanes, whole) = (S::F32_LANES, Lanes::<S, false> { simd, mask: simd.mask_between_m32s(0, 0) });
    let mut first = 0;
    // SAFETY: by the contract.
    unsafe {
        while first + 4 * lanes <= channels {
            of.of::<S, 4, false>(whole, window, first);
            first += 4 * lanes;
        }
        while first + lanes <= channels {
            of.of::<S, 1, false>(whole, window, first);
            first += lanes;
        }
        if first < channels {
            let mask = simd.mask_between_m32s(0, (channels - first) as u32);
            of.of::<S, 1, true>(Lanes { simd, mask }, window, first);
        }
    }
}
