//! The gradient of a filter by Winograd's transforms: blocks of tiles of the image and of the output's gradient are
//! transformed, their products summed over all tiles, and the sums transformed once.
//!
//! Invariant: tiles are cut into a fixed number of runs, whose sums are added in order.

use super::conv_geometry::Conv;
use super::conv_kernel::Sweep;
use super::elementwise::Shared;
use super::scratch::Scratch;
use super::strip::Strip;
use super::winograd::{PLACES, PRODUCTS, Places, Square, Transform};
use super::winograd_kernel::Tiles;
use crate::device::CpuKernel;
use std::sync::Mutex;

/// Runs of tiles.
const RUNS: usize = 8;
/// The largest number of elements of a filter's rows and columns: its sums are kept for every run.
const LARGEST: usize = 128 * 128;

/// The kernel of the filter's gradient, of the image (input 0) and the output's gradient (input 2), where this is worth
/// it.
pub(super) fn filter_gradient(conv: &Conv) -> Option<CpuKernel> {
    let sweep = Sweep::forward(conv);
    let Sweep { depth, width, .. } = sweep;
    let tiles = Tiles::new(sweep).filter(|_| depth * width <= LARGEST)?;
    let runs = tiles.blocks().min(RUNS);
    let of_run = PRODUCTS * depth * width;
    let sums = Mutex::new(vec![0.0f32; runs * of_run]);
    let (zeros, block) = (depth.max(width), PRODUCTS * tiles.block);
    let scratch = Scratch::<f32>::new(zeros + block * (depth + width));
    let taps = tiles.taps;
    Some(Box::new(move |l| {
        // Every launch overwrites all of it, so a poisoned lock does not matter.
        let mut sums = sums.lock().unwrap_or_else(|e| e.into_inner());
        let sums = Shared::new(sums.as_mut_ptr());
        let source = Shared::new(l.input::<f32>(0).as_ptr().cast_mut());
        let gradient = Shared::new(l.input::<f32>(2).as_ptr().cast_mut());
        let filter = Shared::new(l.output::<f32>(0).as_mut_ptr());
        scratch.reserve(l.team().threads());
        l.team().run(runs, |run| {
            let (first, end) = (tiles.blocks() * run / runs, tiles.blocks() * (run + 1) / runs);
            scratch.with(|scratch| {
                let (zeros, rest) = scratch.split_at_mut(zeros);
                zeros.fill(0.0);
                let (images, gradients) = rest.split_at_mut(block * depth);
                for n in first..end {
                    let of_block = tiles.of_block(n);
                    // SAFETY: the tensors have the sweep's sizes, the scratch memory was split by those of a block, and
                    // each run has sums of its own.
                    unsafe {
                        tiles.transform_sources(of_block.clone(), source.get(), zeros, images.as_mut_ptr());
                        tiles.transform_gradient(of_block.clone(), gradient.get(), zeros, gradients.as_mut_ptr());
                        for product in 0..PRODUCTS {
                            Strip {
                                rows: depth,
                                columns: width,
                                loops: [1, of_block.len()],
                                a: images.as_ptr().add(product * tiles.block * depth),
                                a_row: 1,
                                a_loops: [0, depth],
                                b: gradients.as_ptr().add(product * tiles.block * width),
                                b_loops: [0, width],
                                to: sums.get().add(run * of_run + product * depth * width),
                                to_row: width,
                                add: n > first,
                            }
                            .run();
                        }
                    }
                }
            });
        });
        l.team().chunks(depth, 1, |rows| {
            for row in rows {
                let at = |place: usize| (place * depth + row) * width;
                for product in 0..PRODUCTS {
                    for run in 1..runs {
                        let (to, from) = (sums.get().wrapping_add(at(product)), run * of_run + at(product));
                        for column in 0..width {
                            // SAFETY: rows are within the sums, and each is of one part.
                            unsafe { *to.add(column) += *sums.get().add(from + column) }
                        }
                    }
                }
                let from: Places<*const f32> = std::array::from_fn(|i| {
                    std::array::from_fn(|j| sums.get().wrapping_add(at(i * PLACES + j)).cast_const())
                });
                let mut to: Places<*mut f32> = [[std::ptr::null_mut(); PLACES]; PLACES];
                for (i, to) in to.iter_mut().take(taps).enumerate() {
                    for (j, to) in to.iter_mut().take(taps).enumerate() {
                        *to = filter.get().wrapping_add(at(i * taps + j));
                    }
                }
                let transform = Transform::FilterGradient { taps };
                // SAFETY: the filter's rows are within it, and each is of one part.
                unsafe { Square { transform, channels: width, from: &from, to: &to }.run() }
            }
        });
        Ok(())
    }))
}
