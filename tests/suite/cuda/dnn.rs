//! Convolutions on CUDA: cuDNN's where it has a way, turret's own kernels elsewhere, both as the host has them.

use super::in_child;
use super::ops::walk;
use turret::base::{Array, DType};
use turret::graph::{Attrs, Case};
use turret::ops::find;
use turret_standin::Standin;

/// Small numbers that differ.
fn numbers(dtype: DType, dims: &[usize], seed: usize) -> Array {
    let len: usize = dims.iter().product();
    let values: Vec<f64> = (0..len).map(|i| ((i * 37 + seed * 11) % 23) as f64 / 8.0 - 1.25).collect();
    Array::from_f64(dtype, dims, &values).expect("sizes fit")
}

/// Forward convolutions and both gradients over kinds of geometry: strides, dilations, groups, paddings, formats.
fn cases() -> Vec<(&'static str, Case)> {
    let mut all = Vec::new();
    let geometries = [
        // Window, stride, dilation, groups, padding.
        (1, 1, 1, 1, "SAME"),
        (3, 1, 1, 1, "SAME"),
        (3, 1, 1, 1, "VALID"),
        (3, 2, 1, 1, "VALID"),
        (3, 1, 2, 1, "SAME"),
        (3, 2, 1, 2, "SAME"),
        (2, 1, 1, 2, "VALID"),
        (2, 2, 1, 1, "SAME"),
        (5, 3, 1, 1, "SAME"),
    ];
    for (i, (window, stride, dilation, groups, padding)) in geometries.into_iter().enumerate() {
        for (format, dtype) in [("NHWC", DType::F32), ("NCHW", DType::F32), ("NHWC", DType::F64)] {
            let arrange = |n: i64, s: i64, c: i64| match format {
                "NHWC" => vec![n, s, s, c],
                _ => vec![n, c, s, s],
            };
            let attrs = Attrs::new()
                .with("strides", arrange(1, stride, 1))
                .with("dilations", arrange(1, dilation, 1))
                .with("padding", padding)
                .with("data_format", format);
            let sizes = |v: Vec<i64>| -> Vec<usize> { v.into_iter().map(|n| n as usize).collect() };
            let size = 7;
            let image = sizes(arrange(2, size, 4));
            let filter = vec![window as usize, window as usize, 4 / groups, 6];
            let reach = (window - 1) * dilation + 1;
            let places = if padding == "SAME" { (size + stride - 1) / stride } else { (size - reach) / stride + 1 };
            let output = sizes(arrange(2, places, 6));
            let (x, w, y) = (numbers(dtype, &image, i), numbers(dtype, &filter, i + 1), numbers(dtype, &output, i + 2));
            let dims = |d: &[usize]| Array::new(&[4], &d.iter().map(|&n| n as i32).collect::<Vec<_>>()).expect("four");
            let case = |inputs| Case { attrs: attrs.clone(), inputs, outputs: Vec::new(), gradient: false };
            all.push(("Conv2D", case(vec![x.clone(), w.clone()])));
            all.push(("Conv2DBackpropInput", case(vec![dims(&image), w, y.clone()])));
            all.push(("Conv2DBackpropFilter", case(vec![x, dims(&filter), y])));
        }
    }
    all
}

fn all_agree() -> [u64; 3] {
    for (name, case) in cases() {
        let op = find(name).expect("an op of the table");
        if let Err(why) = walk::check(op, &case) {
            panic!("{name} {:?} of {:?}: {why}", case.attrs, case.inputs);
        }
    }
    let standin = Standin::loaded().expect("the stand-in runs");
    ["cudnnConvolutionForward", "cudnnConvolutionBackwardData", "cudnnConvolutionBackwardFilter"]
        .map(|call| standin.calls(call))
}

#[test]
fn child_convolutions_are_cudnns_where_it_has_a_way() {
    if in_child() {
        let calls = all_agree();
        assert!(calls.iter().all(|n| *n > 10), "{calls:?}");
    }
}

#[test]
fn child_convolutions_without_an_algorithm_are_our_own() {
    if in_child() {
        assert_eq!(all_agree(), [0; 3]);
    }
}
