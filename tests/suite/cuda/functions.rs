//! CUDA kernels against the host's for functions of analysis, older quotients, batches of products, tuples of numbers,
//! mirrored rims and largest elements: special numbers, and sizes that the op table's cases are too small for.

use super::compare::{Comparison, NUMBERS, Near, numbers};
use super::in_child;
use super::moves::{indices, with};
use super::sizes::{specials, without};
use std::slice::from_ref as one;
use turret::base::{Array, DType, bf16, f16};
use turret::graph::Attrs;

fn array(dims: &[usize], values: &[i32]) -> Array {
    Array::new(dims, values).expect("sizes fit")
}

#[test]
fn child_special_numbers_of_functions_are_treated_alike() {
    if !in_child() {
        return;
    }
    let mut all = Comparison::default();
    let none = Attrs::new();
    for dtype in NUMBERS {
        let (x, y) = (specials(dtype, true), specials(dtype, false));
        let divisors = if dtype.is_integer() { without(&y, |v| v == 0.0) } else { y.clone() };
        for op in ["Div", "TruncateDiv", "TruncateMod", "Mod"] {
            all.op(op, &none, &[x.clone(), divisors.clone()], Near::Exactly);
            if dtype.is_integer() {
                all.refused(op, &none, &[x.clone(), y.clone()]);
            }
        }
        all.op("Add", &none, &[x.clone(), y.clone()], Near::Exactly);
        all.op("Round", &none, one(&x), Near::Exactly);
        let high = Array::from_f64(dtype, &[], &[3.0]).expect("one");
        all.op("ClipByValue", &none, &[x.clone(), y, high], Near::Exactly);
    }
    for from in DType::ALL {
        let (x, y) = (specials(from, true), specials(from, false));
        for to in DType::ALL {
            all.op("Cast", &none.clone().with("DstT", to), one(&x), Near::Exactly);
        }
        for op in ["Equal", "NotEqual"] {
            all.op(op, &none, &[x.clone(), y.clone()], Near::Exactly);
        }
        if from != DType::Bool {
            let ordered = ["Less", "LessEqual", "Greater", "GreaterEqual"];
            ordered.iter().for_each(|op| all.op(op, &none, &[x.clone(), y.clone()], Near::Exactly));
        }
        ["ZerosLike", "OnesLike"].iter().for_each(|op| all.op(op, &none, one(&x), Near::Exactly));
    }
    // Every half there is.
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    let halves = [
        Array::new(&[1 << 16], &bits.iter().map(|&b| f16::from_bits(b)).collect::<Vec<_>>()).expect("all"),
        Array::new(&[1 << 16], &bits.iter().map(|&b| bf16::from_bits(b)).collect::<Vec<_>>()).expect("all"),
    ];
    for half in &halves {
        all.op("Cast", &none.clone().with("DstT", DType::F32), one(half), Near::Exactly);
    }
    // Around each half: itself, halfway to the next, and the floats beside that.
    let floats = (0..0x7c00u32).flat_map(|b| {
        let (low, high) = (f16::from_bits(b as u16).to_f32(), f16::from_bits(b as u16 + 1).to_f32());
        let middle = if high.is_finite() { (low + high) / 2.0 } else { 65520.0 };
        [low, middle, middle.next_down(), -middle.next_up()]
    });
    let floats: Vec<f32> = floats.collect();
    let floats = Array::new(&[floats.len()], &floats).expect("sizes fit");
    for to in [DType::F16, DType::BF16] {
        all.op("Cast", &none.clone().with("DstT", to), one(&floats), Near::Exactly);
    }
    let alpha = none.clone().with("alpha", 0.3f32);
    for dtype in [DType::F32, DType::F64] {
        let (x, y) = (specials(dtype, true), specials(dtype, false));
        ["Ceil", "Rint", "Inv", "IsNan", "IsInf", "IsFinite", "Softsign"]
            .iter()
            .for_each(|op| all.op(op, &none, one(&x), Near::Exactly));
        // Angles beyond the largest that a table serves are left out: their sines differ by the library.
        let angles = without(&x, |v| v.abs() > 1e9);
        for op in ["Elu", "Selu", "Expm1", "Erf", "Sinh", "Cosh", "Asin", "Acos", "Atan", "Asinh", "Acosh", "Atanh"] {
            all.op(op, &none, one(&x), Near::Each(4e-6, 1e-13));
        }
        all.op("Tan", &none, &[angles], Near::Each(4e-6, 1e-13));
        all.op("Erfc", &none, one(&x), Near::Largest(1e-6, 1e-14));
        ["DivNoNan", "EluGrad", "SeluGrad", "SoftsignGrad", "InvGrad"]
            .iter()
            .for_each(|op| all.op(op, &none, &[x.clone(), y.clone()], Near::Exactly));
        all.op("LeakyRelu", &alpha, one(&x), Near::Exactly);
        all.op("LeakyReluGrad", &alpha, &[x, y], Near::Exactly);
    }
    all.end(80);
}

#[test]
fn child_products_tuples_rims_and_largest_agree() {
    if !in_child() {
        return;
    }
    let mut all = Comparison::default();
    let none = Attrs::new();
    for dtype in NUMBERS {
        type Sizes<'a> = (&'a [usize], &'a [usize], usize, usize, usize);
        let sizes: [Sizes<'_>; 5] = [
            (&[3], &[3], 20, 33, 17),
            (&[2, 3], &[3], 5, 7, 9),
            (&[4, 1], &[3], 1, 5, 1),
            (&[], &[70], 3, 4, 5),
            (&[2], &[2], 3, 0, 4),
        ];
        for (of_x, of_y, m, k, n) in sizes {
            for (a, b) in [(false, false), (true, false), (false, true), (true, true)] {
                let x = [of_x, &if a { [k, m] } else { [m, k] }].concat();
                let y = [of_y, &if b { [n, k] } else { [k, n] }].concat();
                let attrs = none.clone().with("adj_x", a).with("adj_y", b);
                let inputs = [numbers(dtype, &x, 1), numbers(dtype, &y, 2)];
                all.op("BatchMatMulV2", &attrs, &inputs, Near::Largest(1e-5, 1e-13));
            }
        }
        for (dims, k) in [(&[40usize, 10][..], 3), (&[3, 5000], 7), (&[2, 300], 300), (&[7], 1), (&[0, 4], 2)] {
            all.op("TopKV2", &none, &[numbers(dtype, dims, 1), Array::scalar(k)], Near::Exactly);
        }
        let rims = [array(&[2, 2], &[1, 2, 4, 0]), array(&[2, 2], &[0, 0, 3, 5])];
        for rim in &rims {
            for (mode, inner) in [("REFLECT", [30, 60]), ("SYMMETRIC", [30, 60])] {
                let mode = none.clone().with("mode", mode);
                all.op("MirrorPad", &mode, &[numbers(dtype, &inner, 1), rim.clone()], Near::Exactly);
                let pads = rim.to_i64().expect("integers");
                let outer = [30 + pads[0] + pads[1], 60 + pads[2] + pads[3]].map(|d| d as usize);
                all.op("MirrorPadGrad", &mode, &[numbers(dtype, &outer, 1), rim.clone()], Near::Exactly);
            }
        }
    }
    // Large enough for the library's products, one by one.
    for (x, y) in [(&[3usize, 160, 130][..], &[130usize, 150][..]), (&[2, 1, 160, 130], &[3, 130, 150])] {
        let inputs = [numbers(DType::F32, x, 1), numbers(DType::F32, y, 2)];
        all.op("BatchMatMulV2", &none, &inputs, Near::Largest(1e-5, 1e-13));
    }
    for dtype in DType::ALL {
        let pads = array(&[2, 2], &[1, 2, 3, 0]);
        all.op("PadV2", &none, &[numbers(dtype, &[30, 60], 1), pads, numbers(dtype, &[], 3)], Near::Exactly);
    }
    for kind in [DType::I32, DType::I64] {
        for count in [0, 7, 3000, 40_000] {
            let pairs = Array::from_f64(kind, &[count, 2], &indices(kind, 2 * count, 9, 2).to_f64()).expect("pairs");
            for dtype in DType::ALL {
                for dims in [&[9usize, 20][..], &[10, 9, 3]] {
                    if count < 40_000 || dtype == DType::F32 {
                        all.op("GatherNd", &none, &[numbers(dtype, dims, 1), pairs.clone()], Near::Exactly);
                    }
                }
            }
            if count < 40_000 {
                let shape = Array::from_f64(kind, &[3], &[10.0, 9.0, 3.0]).expect("three");
                for dtype in NUMBERS {
                    let updates = numbers(dtype, &[count, 3], 3);
                    all.op("ScatterNd", &none, &[pairs.clone(), updates, shape.clone()], Near::Exactly);
                }
            }
            if count > 0 {
                let bad = with(&with(&pairs, 2 * count - 1, 20.0), count / 2 * 2, -1.0);
                all.refused("GatherNd", &none, &[numbers(DType::F32, &[9, 20], 1), bad.clone()]);
                let shape = Array::from_f64(kind, &[2], &[9.0, 20.0]).expect("two");
                all.refused("ScatterNd", &none, &[bad, numbers(DType::F32, &[count], 3), shape]);
            }
        }
    }
    let ends = [DType::F32, DType::F64].map(|t| [numbers(t, &[], 1), numbers(t, &[], 2), Array::scalar(1003i32)]);
    ends.iter().for_each(|ends| all.op("LinSpace", &none, ends, Near::Exactly));
    let rows = [array(&[300], &(0..300).rev().collect::<Vec<_>>()), array(&[2], &[7, 400])];
    for dtype in DType::ALL {
        let data = [numbers(dtype, &[300, 5], 1), numbers(dtype, &[2, 5], 2)];
        all.op("DynamicStitch", &none, &[&rows[..], &data[..]].concat(), Near::Exactly);
    }
    all.end(200);
}
