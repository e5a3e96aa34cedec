//! CUDA kernels against the host's for what the op table's cases are too small for: every vector width, broadcasts along
//! several axes, views at odd addresses, rows longer than a warp or a block, sums in parts, and every number that is
//! special.

use super::compare::{Comparison, NUMBERS, Near, numbers};
use super::in_child;
use std::slice::from_ref as one;
use turret::base::{Array, Bool8, DType, Element, bf16, f16};
use turret::graph::Attrs;

/// Every pair of special numbers meets in two such vectors.
pub(super) fn specials(dtype: DType, first: bool) -> Array {
    fn pairs<T: Element>(values: &[T], first: bool) -> Array {
        let n = values.len();
        let all: Vec<T> = (0..n * n).map(|i| values[if first { i / n } else { i % n }]).collect();
        Array::new(&[n * n], &all).expect("sizes fit")
    }
    match dtype {
        DType::F32 => pairs(
            &[
                0.0,
                -0.0,
                1.0,
                -1.0,
                0.5,
                -2.5,
                3.0,
                1e-40,
                1e30,
                -3e9,
                2_147_483_648.0,
                1e20,
                f32::MAX,
                f32::NAN,
                f32::INFINITY,
                f32::NEG_INFINITY,
            ],
            first,
        ),
        DType::F64 => pairs(
            &[
                0.0,
                -0.0,
                1.0,
                -1.0,
                0.5,
                -2.5,
                3.0,
                1e-310,
                1e30,
                -3e9,
                2_147_483_647.5,
                1e20,
                f64::MAX,
                f64::NAN,
                f64::INFINITY,
                f64::NEG_INFINITY,
            ],
            first,
        ),
        DType::I32 => pairs(&[0, 1, -1, 2, -2, 7, -7, 31, 65_537, i32::MAX, i32::MIN, i32::MIN + 1], first),
        DType::I64 => pairs(&[0, 1, -1, 2, -2, 7, -7, 63, 1 << 40, i64::MAX, i64::MIN, i64::MIN + 1], first),
        DType::Bool => pairs(&[0, 1, 2, 128, 255].map(Bool8), first),
        DType::U8 => pairs(&[0u8, 1, 2, 127, 128, 255], first),
        DType::F16 => pairs(&[0.0, -1.0, 6e-8, 65504.0, f32::NAN, f32::INFINITY].map(f16::from_f32), first),
        DType::BF16 => pairs(&[0.0, -1.0, 1e-40, 3e38, f32::NAN, f32::INFINITY].map(bf16::from_f32), first),
        DType::Opaque(_) => unreachable!("no values are held"),
    }
}

/// Numbers with some of them replaced by 3.
pub(super) fn without(array: &Array, unwanted: impl Fn(f64) -> bool) -> Array {
    let values: Vec<f64> = array.to_f64().into_iter().map(|v| if unwanted(v) { 3.0 } else { v }).collect();
    Array::from_f64(array.dtype(), array.dims(), &values).expect("sizes fit")
}

#[test]
fn child_special_numbers_are_treated_alike() {
    if !in_child() {
        return;
    }
    let mut all = Comparison::default();
    let none = Attrs::new();
    let function = Near::Each(2e-6, 1e-14);
    for dtype in NUMBERS {
        let (x, y) = (specials(dtype, true), specials(dtype, false));
        let both = [x.clone(), y.clone()];
        let exact = [
            "AddV2",
            "Sub",
            "Mul",
            "Maximum",
            "Minimum",
            "SquaredDifference",
            "Equal",
            "NotEqual",
            "Less",
            "LessEqual",
            "Greater",
            "GreaterEqual",
        ];
        exact.iter().for_each(|op| all.op(op, &none, &both, Near::Exactly));
        ["Neg", "Abs", "Sign", "Square", "Relu", "Relu6"]
            .iter()
            .for_each(|op| all.op(op, &none, &both[..1], Near::Exactly));
        let divisors = if dtype.is_integer() { without(&y, |v| v == 0.0) } else { y.clone() };
        ["FloorDiv", "FloorMod"].iter().for_each(|op| all.op(op, &none, &[x.clone(), divisors.clone()], Near::Exactly));
        let exponents = if dtype.is_integer() { without(&y, |v| v < 0.0) } else { y.clone() };
        all.op("Pow", &none, &[x.clone(), exponents], Near::Each(1e-5, 1e-13));
        // What is refused, with the host's words.
        if dtype.is_integer() {
            ["FloorDiv", "FloorMod", "Pow"].iter().for_each(|op| all.refused(op, &none, &both));
        }
        for to in [DType::F32, DType::F64, DType::I32, DType::I64, DType::Bool] {
            all.op("Cast", &none.clone().with("DstT", to), &both[..1], Near::Exactly);
        }
    }
    for dtype in [DType::F32, DType::F64] {
        let (x, y) = (specials(dtype, true), specials(dtype, false));
        ["Floor", "Sqrt", "Rsqrt", "Reciprocal"].iter().for_each(|op| all.op(op, &none, one(&x), Near::Exactly));
        ["Exp", "Log", "Log1p", "Sin", "Cos", "Tanh", "Sigmoid", "Softplus"]
            .iter()
            .for_each(|op| all.op(op, &none, one(&x), function));
        ["RealDiv", "ReluGrad", "Relu6Grad", "TanhGrad", "SigmoidGrad", "SqrtGrad", "RsqrtGrad", "ReciprocalGrad"]
            .iter()
            .for_each(|op| all.op(op, &none, &[x.clone(), y.clone()], Near::Exactly));
        all.op("SoftplusGrad", &none, &[x, y], function);
    }
    let (x, y) = (specials(DType::Bool, true), specials(DType::Bool, false));
    ["LogicalAnd", "LogicalOr", "Equal", "NotEqual"]
        .iter()
        .for_each(|op| all.op(op, &none, &[x.clone(), y.clone()], Near::Exactly));
    all.op("LogicalNot", &none, one(&x), Near::Exactly);
    for dtype in NUMBERS {
        all.op("Cast", &none.clone().with("DstT", dtype), one(&x), Near::Exactly);
    }
    all.end(150);
}

#[test]
fn child_elements_meet_alike_at_every_size_and_address() {
    if !in_child() {
        return;
    }
    let mut all = Comparison::default();
    let pairs: &[(&[usize], &[usize])] = &[
        (&[1003], &[1003]),
        (&[4096], &[4096]),
        (&[4097], &[]),
        (&[], &[70, 3]),
        (&[37, 64], &[64]),
        (&[37, 63], &[63]),
        (&[37, 64], &[37, 1]),
        (&[37, 1], &[1, 64]),
        (&[5, 7, 8], &[7, 1]),
        (&[5, 7, 9], &[5, 1, 9]),
        (&[2, 3, 4, 5], &[3, 1, 5]),
        (&[6, 1, 8], &[1, 7, 1]),
        (&[2, 1, 3, 1, 4], &[5, 1, 6, 4]),
        (&[3, 0, 4], &[4]),
    ];
    for (x, y) in pairs {
        for dtype in NUMBERS {
            let inputs = [numbers(dtype, x, 1), numbers(dtype, y, 2)];
            all.op_anywhere("Sub", &inputs, Near::Exactly);
            all.op_anywhere("Less", &inputs, Near::Exactly);
        }
        let choice = [numbers(DType::Bool, x, 1), numbers(DType::F32, y, 2), numbers(DType::F32, x, 3)];
        all.op_anywhere("SelectV2", &choice, Near::Exactly);
        all.op_anywhere("LogicalOr", &[numbers(DType::Bool, x, 1), numbers(DType::Bool, y, 2)], Near::Exactly);
    }
    for count in [1, 2, 5, 16, 17, 40] {
        for dtype in NUMBERS {
            let inputs: Vec<Array> = (0..count).map(|i| numbers(dtype, &[1003], i)).collect();
            all.op_anywhere("AddN", &inputs, Near::Exactly);
        }
    }
    for (format, channels) in [("NHWC", 6), ("NCHW", 5)] {
        let inputs = [numbers(DType::F32, &[3, 5, 4, 6], 1), numbers(DType::F32, &[channels], 2)];
        all.op("BiasAdd", &Attrs::new().with("data_format", format), &inputs, Near::Exactly);
    }
    for condition in [&[33usize, 5][..], &[33], &[]] {
        let inputs =
            [numbers(DType::Bool, condition, 1), numbers(DType::F32, &[33, 5], 2), numbers(DType::F32, &[33, 5], 3)];
        all.op("Select", &Attrs::new(), &inputs, Near::Exactly);
    }
    all.end(200);
}

#[test]
fn child_rows_and_columns_of_every_length_agree() {
    if !in_child() {
        return;
    }
    let mut all = Comparison::default();
    let (none, near) = (Attrs::new(), Near::Largest(3e-6, 1e-13));
    for classes in [1, 2, 10, 33, 100, 129, 500, 1024, 1025, 9000] {
        for dtype in [DType::F32, DType::F64] {
            let x = numbers(dtype, &[11, classes], 1);
            all.op_anywhere("Softmax", one(&x), near);
            all.op("LogSoftmax", &none, one(&x), near);
            let shares = all_positive(&numbers(dtype, &[11, classes], 2));
            all.op("SoftmaxCrossEntropyWithLogits", &none, &[x.clone(), shares], Near::Largest(1e-5, 1e-12));
            for labels in [DType::I32, DType::I64] {
                let labels = numbers(labels, &[11], 3);
                let inside: Vec<f64> = labels.to_f64().iter().map(|v| v.abs() % classes as f64).collect();
                let inside = Array::from_f64(labels.dtype(), &[11], &inside).expect("sizes fit");
                all.op("SparseSoftmaxCrossEntropyWithLogits", &none, &[x.clone(), inside.clone()], near);
                let k = Array::scalar(2i32);
                if dtype == DType::F32 {
                    all.op("InTopKV2", &none, &[x.clone(), inside, k], Near::Exactly);
                }
            }
        }
    }
    let mut wrong = vec![0i32; 11];
    (wrong[7], wrong[9]) = (12, -1);
    let labels = Array::new(&[11], &wrong).expect("sizes fit");
    all.refused("SparseSoftmaxCrossEntropyWithLogits", &none, &[numbers(DType::F32, &[11, 10], 1), labels]);
    let no_class = [numbers(DType::F32, &[2, 0], 1), Array::new(&[2], &[0i32, 0]).expect("sizes fit")];
    all.refused("SparseSoftmaxCrossEntropyWithLogits", &none, &no_class);
    let nothing = numbers(DType::F32, &[2, 0], 1);
    all.op("SoftmaxCrossEntropyWithLogits", &none, &[nothing.clone(), nothing], near);
    for (dims, axis) in [
        (&[7usize][..], 0),
        (&[70_000], 0),
        (&[3, 5000], 1),
        (&[5000, 3], 0),
        (&[2, 700, 40], 1),
        (&[5, 6, 7], 0),
        (&[200, 2, 31], 0),
    ] {
        let axis = Array::scalar(axis);
        for dtype in NUMBERS {
            let x = numbers(dtype, dims, 5);
            for op in ["ArgMax", "ArgMin"] {
                all.op(op, &none, &[x.clone(), axis.clone()], Near::Exactly);
                let small = none.clone().with("output_type", DType::I32);
                let places = if dtype.is_floating() { with_nan(&x) } else { x.clone() };
                all.op(op, &small, &[places, axis.clone()], Near::Exactly);
            }
            for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
                let attrs = none.clone().with("exclusive", exclusive).with("reverse", reverse);
                all.op("Cumsum", &attrs, &[x.clone(), axis.clone()], Near::Largest(1e-5, 1e-13));
                let x = if dtype.is_floating() { near_one(&x) } else { x.clone() };
                all.op("Cumprod", &attrs, &[x, axis.clone()], Near::Largest(1e-3, 1e-11));
            }
        }
    }
    all.end(300);
}

fn all_positive(x: &Array) -> Array {
    Array::from_f64(x.dtype(), x.dims(), &x.to_f64().iter().map(|v| v.max(0.0)).collect::<Vec<_>>()).expect("sizes fit")
}

fn near_one(x: &Array) -> Array {
    let values: Vec<f64> = x.to_f64().iter().map(|v| 1.0 + v * 1e-4).collect();
    Array::from_f64(x.dtype(), x.dims(), &values).expect("sizes fit")
}

/// Some elements are no numbers, the first among them.
fn with_nan(x: &Array) -> Array {
    let values = x.to_f64().into_iter().enumerate().map(|(i, v)| if i % 97 == 0 { f64::NAN } else { v });
    Array::from_f64(x.dtype(), x.dims(), &values.collect::<Vec<_>>()).expect("sizes fit")
}

#[test]
fn child_numbers_are_drawn_checked_and_laid_out_alike() {
    if !in_child() {
        return;
    }
    let mut all = Comparison::default();
    let seeded = Attrs::new().with("seed", 87_654_321i64).with("seed2", -5i64);
    for len in [1, 3, 4, 1000, 4099] {
        let shape = Array::new(&[1], &[len]).expect("sizes fit");
        for dtype in [DType::F32, DType::F64] {
            let attrs = seeded.clone().with("dtype", dtype);
            all.op("RandomUniform", &attrs, one(&shape), Near::Exactly);
            all.op("RandomStandardNormal", &attrs, one(&shape), Near::Largest(1e-6, 1e-14));
            all.op("TruncatedNormal", &attrs, one(&shape), Near::Largest(1e-6, 1e-14));
        }
        let bounds = |low: i64, high: i64| [shape.clone(), Array::scalar(low as i32), Array::scalar(high as i32)];
        let wide = |low: i64, high: i64| [shape.clone(), Array::scalar(low), Array::scalar(high)];
        for (low, high) in [(-3, 10), (i32::MIN.into(), i32::MAX.into())] {
            all.op("RandomUniformInt", &seeded, &bounds(low, high), Near::Exactly);
            all.op("RandomUniformInt", &seeded, &wide(low, high), Near::Exactly);
        }
        if len == 1000 {
            all.refused("RandomUniformInt", &seeded, &bounds(5, 5));
            all.refused("RandomUniformInt", &seeded, &wide(7, -9));
        }
        all.op("RandomUniformInt", &seeded, &wide(i64::MIN, i64::MAX), Near::Exactly);
    }
    let message = Attrs::new().with("message", "the loss");
    for dtype in [DType::F32, DType::F64] {
        for len in [3, 1003, 20_001] {
            let x = numbers(dtype, &[len], 1);
            all.op("CheckNumerics", &message, one(&x), Near::Exactly);
            let mut values = x.to_f64();
            for (at, bad) in [(0, f64::INFINITY), (len / 2, f64::NAN), (len - 1, f64::NEG_INFINITY)] {
                values[at] = bad;
                all.refused("CheckNumerics", &message, &[Array::from_f64(dtype, &[len], &values).expect("sizes fit")]);
            }
        }
    }
    for dtype in NUMBERS {
        let scalar = |v: f64| Array::from_f64(dtype, &[], &[v]).expect("one");
        for (start, limit, delta) in [(3.0, 4000.0, 7.0), (5.0, -300.0, -1.0), (2.0, 2.0, 1.0)] {
            all.op("Range", &Attrs::new(), &[scalar(start), scalar(limit), scalar(delta)], Near::Exactly);
        }
        for (dims, axis) in [(&[100usize][..], -1i64), (&[5, 9], 0), (&[5, 9], 1), (&[], 0)] {
            let attrs = Attrs::new().with("axis", axis);
            for indices in [DType::I32, DType::I64] {
                let inputs = [numbers(indices, dims, 1), Array::scalar(6i32), scalar(3.0), scalar(-1.0)];
                all.op("OneHot", &attrs, &inputs, Near::Exactly);
            }
        }
    }
    all.op("DiagPart", &Attrs::new(), &[numbers(DType::F64, &[300, 300], 1)], Near::Exactly);
    all.end(80);
}
