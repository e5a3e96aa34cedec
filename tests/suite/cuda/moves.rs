//! CUDA kernels that move elements, reduce them, multiply matrices or go by indices, against the host's: every way that
//! axes are joined, tiles and parts that are not full, indices in many tiles.

use super::compare::{Comparison, NUMBERS, Near, numbers};
use super::in_child;
use turret::base::{Array, DType};
use turret::graph::Attrs;

fn ints(values: &[i32]) -> Array {
    Array::new(&[values.len()], values).expect("sizes fit")
}

/// Numbers from 0 to `bound` (not included).
pub(super) fn indices(dtype: DType, count: usize, bound: usize, seed: u64) -> Array {
    let any = numbers(DType::F64, &[count], seed).to_f64();
    let values: Vec<f64> = any.iter().map(|v| ((v + 4.0) * 12_500.0).round() % bound as f64).collect();
    Array::from_f64(dtype, &[count], &values).expect("sizes fit")
}

/// The same with one entry replaced.
pub(super) fn with(array: &Array, at: usize, value: f64) -> Array {
    let mut values = array.to_f64();
    values[at] = value;
    Array::from_f64(array.dtype(), array.dims(), &values).expect("sizes fit")
}

#[test]
fn child_elements_move_alike() {
    if !in_child() {
        return;
    }
    let mut all = Comparison::default();
    let none = Attrs::new();
    for dtype in DType::ALL {
        let x = |dims: &[usize]| numbers(dtype, dims, 1);
        let transposed: [(&[usize], &[i32]); 9] = [
            (&[70, 45], &[1, 0]),
            (&[5, 40, 33], &[0, 2, 1]),
            (&[5, 4, 33], &[2, 0, 1]),
            (&[3, 4, 5, 6], &[3, 1, 0, 2]),
            (&[20, 30, 2], &[1, 0, 2]),
            (&[16, 3, 20], &[2, 1, 0]),
            (&[1, 7, 1], &[2, 1, 0]),
            (&[0, 7], &[1, 0]),
            (&[40, 3, 2, 50], &[3, 1, 2, 0]),
        ];
        for (dims, perm) in transposed {
            all.op("Transpose", &none, &[x(dims), ints(perm)], Near::Exactly);
        }
        all.op_anywhere("Transpose", &[x(&[33, 65]), ints(&[1, 0])], Near::Exactly);
        for axis in [0, 1, -1] {
            let parts = [1, 2, 3].map(|seed| numbers(dtype, &[6, 5, 7], seed));
            all.op("ConcatV2", &none, &[&parts[..], &[Array::scalar(axis)]].concat(), Near::Exactly);
        }
        let parts = [50, 1, 0, 33].map(|width| x(&[60, width]));
        all.op("ConcatV2", &none, &[&parts[..], &[Array::scalar(1i32)]].concat(), Near::Exactly);
        for axis in [0i64, 1] {
            let parts: Vec<Array> = (0..5).map(|seed| numbers(dtype, &[30, 7], seed)).collect();
            all.op("Pack", &none.clone().with("axis", axis), &parts, Near::Exactly);
        }
        let unpacked = none.clone().with("axis", 1i64).with("num", 7i64);
        all.op("Unpack", &unpacked, &[x(&[30, 7, 3])], Near::Exactly);
        let three = none.clone().with("num_split", 3i64);
        all.op("Split", &three, &[Array::scalar(1i32), x(&[30, 60])], Near::Exactly);
        all.op("SplitV", &three, &[x(&[30, 60]), ints(&[10, 0, -1]), Array::scalar(1i32)], Near::Exactly);
        all.op("Slice", &none, &[x(&[30, 60, 4]), ints(&[2, 5, 1]), ints(&[20, -1, 2])], Near::Exactly);
        let around = Array::new(&[2, 2], &[1i32, 2, 3, 0]).expect("sizes fit");
        all.op("Pad", &none, &[x(&[30, 60]), around], Near::Exactly);
        let ends = [&[25, 3][..], &[2, 50], &[-3, 7]].map(ints);
        all.op("StridedSlice", &none, &[&[x(&[30, 60])], &ends[..]].concat(), Near::Exactly);
        let whole = [&[ints(&[30, 60])], &ends[..], &[x(&[8, 7])]].concat();
        all.op("StridedSliceGrad", &none, &whole, Near::Exactly);
        for dims in [&[30usize, 1, 5][..], &[]] {
            all.op("BroadcastTo", &none, &[x(dims), ints(&[2, 30, 6, 5])], Near::Exactly);
        }
        all.op("ReverseV2", &none, &[x(&[30, 4, 5]), ints(&[0, 2])], Near::Exactly);
        for dims in [[3, 4, 5], [3, 0, 5]] {
            all.op("Tile", &none, &[x(&dims), ints(&[2, 1, 3])], Near::Exactly);
        }
        all.op("Fill", &none, &[ints(&[30, 40]), x(&[])], Near::Exactly);
    }
    // Runs in several launches, in several blocks, and copies that are large enough to be the device's own.
    let many: Vec<Array> = (0..230).map(|i| numbers(DType::F32, &[3, 1 + i as usize % 5], i)).collect();
    all.op("ConcatV2", &none, &[&many[..], &[Array::scalar(1i32)]].concat(), Near::Exactly);
    let long = [1, 2].map(|seed| numbers(DType::F64, &[3000, 5], seed));
    all.op("ConcatV2", &none, &[&long[..], &[Array::scalar(0i32)]].concat(), Near::Exactly);
    let unpacked = none.clone().with("axis", 1i64).with("num", 150i64);
    all.op("Unpack", &unpacked, &[numbers(DType::F64, &[3, 150, 2], 1)], Near::Exactly);
    all.op("Transpose", &none, &[numbers(DType::F32, &[200, 1, 100], 1), ints(&[1, 0, 2])], Near::Exactly);
    all.end(130);
}

#[test]
fn child_reductions_and_products_agree() {
    if !in_child() {
        return;
    }
    let mut all = Comparison::default();
    let none = Attrs::new();
    let axes_of: [(&[usize], &[i32]); 19] = [
        (&[70, 45], &[0]),
        (&[70, 45], &[1]),
        (&[300, 2], &[0]),
        (&[2, 300], &[1]),
        (&[5, 40, 33], &[1]),
        (&[5, 40, 33], &[0, 2]),
        (&[3, 4, 5, 6], &[0, 2]),
        (&[3, 4, 5, 6], &[1, 3]),
        (&[20_001], &[0]),
        (&[20_001, 3], &[0]),
        (&[3, 20_001], &[1]),
        (&[40_000, 2], &[0, 1]),
        (&[5], &[]),
        (&[3, 0], &[0]),
        (&[3, 0], &[1]),
        (&[200, 1, 150], &[0]),
        (&[64, 64, 9, 3], &[0, 2]),
        (&[], &[]),
        (&[9, 300, 7], &[1]),
    ];
    for (dims, axes) in axes_of {
        let axes = ints(axes);
        for dtype in NUMBERS {
            // Positive ones, so that nothing is lost in a difference.
            let x = numbers(dtype, dims, 1);
            let positive: Vec<f64> = x.to_f64().iter().map(|v| v.abs() + 1.0).collect();
            let positive = Array::from_f64(dtype, dims, &positive).expect("sizes fit");
            ["Max", "Min"].iter().for_each(|op| all.op(op, &none, &[x.clone(), axes.clone()], Near::Exactly));
            all.op("Sum", &none, &[positive.clone(), axes.clone()], Near::Each(1e-5, 1e-13));
            let of_none = dtype.is_integer() && dims.contains(&0) && axes.to_i64() == Some(vec![1]);
            if of_none {
                all.refused("Mean", &none, &[x, axes.clone()]);
                continue;
            }
            all.op("Mean", &none, &[positive, axes.clone()], Near::Each(1e-5, 1e-13));
            let near_one: Vec<f64> = x.to_f64().iter().map(|v| 1.0 + v * 1e-4).collect();
            let factors =
                if dtype.is_integer() { x } else { Array::from_f64(dtype, dims, &near_one).expect("sizes fit") };
            all.op("Prod", &none, &[factors, axes.clone()], Near::Each(1e-3, 1e-11));
        }
        let x = numbers(DType::Bool, dims, 1);
        ["All", "Any"].iter().for_each(|op| all.op(op, &none, &[x.clone(), axes.clone()], Near::Exactly));
    }
    let x = with(&numbers(DType::F32, &[100, 30], 1), 77, f64::NAN);
    for op in ["Max", "Min"] {
        [0, 1].iter().for_each(|&axis| all.op(op, &none, &[x.clone(), ints(&[axis])], Near::Exactly));
    }
    for dtype in [DType::F32, DType::F64] {
        for dims in [&[20_001usize][..], &[100_000], &[7, 3], &[]] {
            all.op("L2Loss", &none, &[numbers(dtype, dims, 1)], Near::Each(1e-5, 1e-13));
        }
        for (dims, format) in
            [(&[300usize, 20][..], "NHWC"), (&[9000, 5], "NHWC"), (&[8, 20, 300], "NCHW"), (&[0, 3], "NHWC")]
        {
            let attrs = none.clone().with("data_format", format);
            all.op("BiasAddGrad", &attrs, &[numbers(dtype, dims, 1)], Near::Largest(1e-4, 1e-12));
        }
    }
    for dtype in NUMBERS {
        for (m, k, n) in [(20, 33, 17), (1, 5, 70), (70, 5, 1), (3, 0, 4), (0, 3, 4), (16, 16, 16)] {
            for (a, b) in [(false, false), (true, false), (false, true), (true, true)] {
                let x = numbers(dtype, &if a { [k, m] } else { [m, k] }, 1);
                let y = numbers(dtype, &if b { [n, k] } else { [k, n] }, 2);
                let attrs = none.clone().with("transpose_a", a).with("transpose_b", b);
                all.op("MatMul", &attrs, &[x, y], Near::Largest(1e-5, 1e-13));
            }
        }
    }
    all.end(500);
}

#[test]
fn child_indices_are_checked_and_followed_alike() {
    if !in_child() {
        return;
    }
    let mut all = Comparison::default();
    let none = Attrs::new();
    let zero = Array::scalar(0i32);
    for kind in [DType::I32, DType::I64] {
        for dtype in DType::ALL {
            for (dims, axis) in [(&[50usize, 30][..], 0), (&[50, 30], 1), (&[4, 50, 3], 1), (&[50], 0), (&[50, 0], 0)] {
                let bound = dims[axis];
                for count in [0, 1, 7, 3000] {
                    let inputs = [numbers(dtype, dims, 1), indices(kind, count, bound, 2), Array::scalar(axis as i32)];
                    all.op("GatherV2", &none, &inputs, Near::Exactly);
                }
            }
        }
        let params = numbers(DType::F32, &[50], 1);
        for count in [3, 40_000] {
            let good = indices(kind, count, 50, 2);
            all.op("GatherV2", &none, &[params.clone(), good.clone(), zero.clone()], Near::Exactly);
            let bad = with(&with(&good, count - 1, -1.0), count / 2, 50.0);
            all.refused("GatherV2", &none, &[params.clone(), bad, zero.clone()]);
        }
        for dtype in NUMBERS {
            for (count, width) in [(1, 5), (7, 5), (100, 5), (2048, 2), (2049, 2), (5000, 1), (5, 0)] {
                let data = numbers(dtype, &[count, width], 1);
                let ids = with(&indices(kind, count, 30, 3), count - 1, -7.0);
                all.op("UnsortedSegmentSum", &none, &[data, ids, Array::scalar(40i32)], Near::Exactly);
            }
        }
        for count in [3, 5000] {
            let ids = with(&with(&indices(kind, count, 30, 3), count - 1, 41.0), count / 2, 40.0);
            all.refused("UnsortedSegmentSum", &none, &[numbers(DType::F32, &[count], 1), ids, Array::scalar(40i32)]);
        }
        for count in [1, 4, 5000] {
            let turned: Vec<f64> = (0..count).map(|i| ((i * 7 + 3) % count) as f64).collect();
            let turned = Array::from_f64(kind, &[count], &turned).expect("sizes fit");
            all.op("InvertPermutation", &none, std::slice::from_ref(&turned), Near::Exactly);
            all.refused("InvertPermutation", &none, &[with(&turned, count - 1, count as f64)]);
            if count > 1 {
                all.refused("InvertPermutation", &none, &[with(&turned, count / 2, turned.to_f64()[1])]);
            }
        }
        let shapes: Vec<Array> =
            (0..450).map(|i| Array::from_f64(kind, &[3], &[5.0, 6.0, f64::from(i)]).expect("three")).collect();
        for axis in [0i32, 2, -1] {
            all.op("ConcatOffset", &none, &[&[Array::scalar(axis)], &shapes[..]].concat(), Near::Exactly);
        }
        all.refused("ConcatOffset", &none, &[&[Array::scalar(3i32)], &shapes[..2]].concat());
    }
    all.end(250);
}
