//! Kernels by rows: every block alone gives the bits that the whole kernel gives there.

use super::*;
use crate::base::Array;
use crate::device::{Product, Team, TiledKernel};
use crate::graph::{Attrs, OpRef, evaluate, evaluate_by};
use smallvec::SmallVec;
use std::sync::Arc;

/// Compares an op's kernel by rows with its whole one, in rows of every number of leading axes. False if there is none.
pub(super) fn check_rows(op: OpRef, attrs: &Attrs, inputs: &[Array]) -> bool {
    let inputs: Vec<Arc<Array>> = inputs.iter().cloned().map(Arc::new).collect();
    let whole = evaluate(op, attrs, &inputs, &Team::new(1, "whole")).unwrap_or_else(|e| panic!("{}: {e}", op.name()));
    let dims = whole[0].dims().to_vec();
    let mut compared = false;
    for axes in (1..dims.len()).filter(|_| !whole[0].is_empty()) {
        for threads in [1, 3] {
            let team = Team::new(threads, "rows");
            let rows = evaluate_by(op, attrs, &inputs, &team, &|c| {
                let (rows, kernel) = (dims[..axes].iter().product::<usize>(), op.row_kernel(c).ok_or("no rows")?);
                if !kernel.cut.rows.is_multiple_of(rows) {
                    return Err("no rows".into());
                }
                let of_row = kernel.cut.rows / rows;
                let cut = kernel.cut.coarser(of_row);
                let product = Product { kernel, rows: of_row, inputs: (0..inputs.len()).collect(), output: 0 };
                let (parts, partials) = (Vec::new(), Vec::new());
                let tiled =
                    TiledKernel { cut, tile_rows: 1, product: Some(product), parts, partials, scratch_bytes: 0 };
                Ok(tiled.kernel())
            });
            match rows {
                Ok(rows) => {
                    let (got, want) = (rows[0].to_f64(), whole[0].to_f64());
                    let at = got.iter().zip(&want).position(|(a, b)| a.to_bits() != b.to_bits());
                    let pair = at.map(|at| (at, got[at], want[at]));
                    assert!(at.is_none(), "{} {attrs:?} to {dims:?}, {axes} axes: {pair:?}", op.name());
                    compared = true;
                }
                Err(message) => assert_eq!(message, "no rows", "{}", op.name()),
            }
        }
    }
    compared
}

#[test]
fn blocks_of_rows_have_the_bits_of_the_whole() {
    let mut compared = std::collections::BTreeSet::new();
    for op in TABLE.iter().copied() {
        for case in op.cases() {
            if op.traits().product && check_rows(op, &case.attrs, &case.inputs) {
                compared.insert(op.name());
            }
        }
    }
    let names: SmallVec<[&str; 8]> = compared.into_iter().collect();
    let depthwise = ["DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropInput"];
    assert_eq!(names[..], ["Conv2D", "Conv2DBackpropInput", depthwise[0], depthwise[1], "MatMul"]);
}

/// Convolutions of which blocks are several images, one, and lines of one, with a rest or without.
#[test]
fn convolutions_of_many_sizes_have_rows() {
    let numbers = |dims: &[usize], seed: usize| {
        let value = |i: usize| ((i * 37 + i / 7 + seed * 11) % 101) as f32 / 40.0 - 1.25;
        Array::new(dims, &(0..dims.iter().product()).map(value).collect::<Vec<_>>()).expect("sizes fit")
    };
    // Batch, size, channels, window, filters, stride, dilation.
    let all = [
        (37, [6, 6], 16, 3, 16, 1, 1),
        (19, [6, 5], 32, 5, 16, 1, 1),
        (5, [12, 12], 32, 5, 48, 1, 1),
        (3, [13, 14], 48, 3, 16, 1, 1),
        (2, [28, 28], 16, 3, 16, 1, 1),
        (1, [41, 30], 16, 3, 32, 1, 1),
        (35, [5, 6], 3, 5, 17, 1, 1),
        (3, [24, 23], 3, 5, 64, 1, 1),
        (17, [15, 14], 20, 3, 12, 2, 1),
        (18, [14, 15], 24, 1, 40, 1, 1),
        (18, [14, 15], 12, 1, 10, 2, 1),
        (16, [17, 9], 6, 3, 8, 1, 2),
        (16, [17, 19], 6, 3, 8, 3, 1),
    ];
    let options = |stride: i64, dilation: i64, padding: &str| {
        let pair = |n: i64| vec![1, n, n, 1];
        Attrs::new().with("strides", pair(stride)).with("dilations", pair(dilation)).with("padding", padding)
    };
    for (batch, [height, width], channels, window, filters, stride, dilation) in all {
        for padding in ["SAME", "VALID"] {
            let attrs = options(stride, dilation, padding);
            let image = [batch, height, width, channels];
            let sizes = Array::new(&[4], &image.map(|d| d as i32)).expect("four sizes");
            for (forward, backward, filter) in [
                ("Conv2D", "Conv2DBackpropInput", [window, window, channels, filters]),
                ("DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropInput", [window, window, channels, 1]),
            ] {
                let out = |n: usize| match padding {
                    "SAME" => n.div_ceil(stride as usize),
                    _ => (n - (window - 1) * dilation as usize).div_ceil(stride as usize),
                };
                let filters = if forward == "Conv2D" { filters } else { channels };
                let [x, w] = [numbers(&image, 1), numbers(&filter, 2)];
                let gradient = numbers(&[batch, out(height), out(width), filters], 3);
                let found = [(forward, vec![x, w.clone()]), (backward, vec![sizes.clone(), w, gradient])]
                    .map(|(name, inputs)| check_rows(find(name).expect("an op of the table"), &attrs, &inputs));
                // Few single channels do not fill vectors.
                let want = forward == "Conv2D" || channels >= super::vectors::CHANNELS;
                assert_eq!(found, [want; 2], "{forward} of {image:?} by {filter:?}, {padding}");
            }
        }
    }
}
