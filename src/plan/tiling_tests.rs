//! What becomes one node on the host and on simulated GPUs, what does not, and that nothing computes other figures.

use super::planned_tests::{self as planned, inputs, kernels};
use super::*;
use crate::base::Array;
use crate::device::Machine;
use crate::graph::{Graph, Init, Operation, Tensor};
use crate::ops::{ConvOptions, Padding};
use crate::run::{Session, SessionOptions};
use crate::train::{GradOptions, gradients};

fn plan<'g>(g: &'g Graph, fetches: &[Tensor<'g>], targets: &[Operation<'g>], dims: &[&[usize]]) -> Schedule {
    planned::plan(g, Machine::simulated(2), fetches, targets, dims)
}

/// Fetches with and without fusion, with one thread and with three.
fn values<'g>(g: &'g Graph, fetches: &[Tensor<'g>], dims: &[&[usize]]) -> [Vec<Array>; 3] {
    let feeds: Vec<(Tensor<'g>, Array)> = dims
        .iter()
        .enumerate()
        .map(|(i, d)| {
            let values: Vec<f32> =
                (0..d.iter().product()).map(|j: usize| ((j * 37 + i) % 101) as f32 / 50.0 - 1.0).collect();
            (g.tensor(&format!("x{i}:0")).unwrap(), Array::new(d, &values).unwrap())
        })
        .collect();
    let given: Vec<(Tensor<'g>, &Array)> = feeds.iter().map(|(t, a)| (*t, a)).collect();
    [(true, 1), (true, 3), (false, 1)].map(|(fusion, threads)| {
        let mut options = SessionOptions::on(Machine::simulated(2).with_host_threads(threads));
        options.fusion = fusion;
        let session = Session::new(g, options).unwrap();
        session.initialize().unwrap();
        let first = session.run(&given, fetches, &[]).unwrap();
        assert_eq!(first, session.run(&given, fetches, &[]).unwrap(), "the second run");
        first
    })
}

/// That the figures are those without fusion, up to the order of sums, and the same bits for any number of threads.
fn check_values<'g>(g: &'g Graph, fetches: &[Tensor<'g>], dims: &[&[usize]]) {
    let [one, three, apart] = values(g, fetches, dims);
    assert_eq!(one, three, "threads change bits");
    for (fused, apart) in one.iter().zip(&apart) {
        assert_eq!(fused.dims(), apart.dims());
        let (fused, apart) = (fused.to_f64(), apart.to_f64());
        let largest = apart.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        for (a, b) in fused.iter().zip(&apart) {
            assert!((a - b).abs() <= 1e-6 * largest, "{a}, without fusion {b}, of at most {largest}");
        }
    }
}

#[test]
fn a_product_takes_in_what_follows_it() {
    let dims: [&[usize]; 4] = [&[301, 33], &[33, 64], &[64], &[]];
    let g = Graph::new();
    let x = inputs(&g, &dims);
    let by_row = (x[0].matmul(x[1]) + x[2]).relu();
    let by_number = (x[0].matmul(x[1]) * x[3]).tanh();
    assert_eq!(kernels(&plan(&g, &[by_row], &[], &dims)), ["MatMul+AddV2+Relu"]);
    assert_eq!(kernels(&plan(&g, &[by_number], &[], &dims)), ["MatMul+Mul+Tanh"]);
    let sums = [by_row.sum(), by_row.sum_axes(&[0], false), by_row.mean_axes(&[1], true), by_row];
    assert_eq!(kernels(&plan(&g, &sums, &[], &dims)), ["MatMul+AddV2+Relu+Sum+Sum+Mean"]);
    check_values(&g, &[by_row, by_number, sums[0], sums[1], sums[2]], &dims);
    // A product that is read elsewhere too keeps its own values.
    let product = x[0].matmul(x[1]);
    let both = [product.relu(), product, product.abs().sum_axes(&[1], true)];
    assert_eq!(kernels(&plan(&g, &both, &[], &dims)), ["MatMul+Relu+Abs+Sum"]);
    check_values(&g, &both, &dims);
    check_values(&g, &[product, product.relu()], &dims);
    // Rows that are sums alone have no buffer for the product.
    assert_eq!(kernels(&plan(&g, &[by_number.sum()], &[], &dims)), ["MatMul", "Mul+Tanh+Sum"]);
    check_values(&g, &[by_number.sum()], &dims);
}

#[test]
fn a_convolution_takes_in_what_follows_it() {
    // By Winograd, out of registers, and of single channels; the sizes do not divide by blocks.
    for (channels, filters, window, stride) in [(16, 32, 3, 1), (16, 32, 5, 1), (3, 40, 5, 1), (20, 40, 3, 2)] {
        let dims: [&[usize]; 5] = [
            &[9, 17, 14, channels],
            &[window, window, channels, filters],
            &[filters],
            &[window, window, channels, 1],
            &[channels],
        ];
        let g = Graph::new();
        let x = inputs(&g, &dims);
        let options = ConvOptions::new([stride; 2], Padding::Same);
        let y = x[0].conv2d(x[1], options).bias_add(x[2]).relu();
        assert_eq!(kernels(&plan(&g, &[y], &[], &dims)), ["Conv2D+BiasAdd+Relu"]);
        let sums = [y, y.sum_axes(&[0, 1, 2], false)];
        assert_eq!(kernels(&plan(&g, &sums, &[], &dims)), ["Conv2D+BiasAdd+Relu+Sum"]);
        // What begins with a ReLU of the image: its gradient follows the convolution's.
        let h = x[0].bias_add(x[4]).relu();
        let loss = h.conv2d(x[1], options).square().sum();
        let slopes = gradients([loss], [x[0], x[4]], GradOptions::default());
        let slopes: Vec<Tensor<'_>> = slopes.into_iter().map(|slope| slope.expect("a gradient").values()).collect();
        let names = kernels(&plan(&g, &slopes, &[], &dims));
        assert!(names.contains(&"Conv2DBackpropInput+ReluGrad+BiasAddGrad".into()), "{names:?}");
        check_values(&g, &[sums[0], sums[1], slopes[0], slopes[1]], &dims);
        if channels >= 8 {
            let y = x[0].depthwise_conv2d_native(x[3], options) * x[4];
            assert_eq!(kernels(&plan(&g, &[y], &[], &dims)), ["DepthwiseConv2dNative+Mul"]);
            check_values(&g, &[y], &dims);
        }
    }
}

#[test]
fn rows_of_a_convolution_are_pixels_lines_or_images() {
    let dims: [&[usize]; 5] = [&[9, 13, 12, 16], &[3, 3, 16, 16], &[9, 1, 1, 16], &[12, 16], &[13, 12, 16]];
    let g = Graph::new();
    let x = inputs(&g, &dims);
    let y = x[0].conv2d(x[1], ConvOptions::new([1, 1], Padding::Same));
    let all = [y.tanh() + 1.0, y * x[3], y - x[4], y + x[2]];
    let rows = |y: Tensor<'_>| {
        let schedule = plan(&g, &[y], &[], &dims);
        let tiled = schedule.step.nodes.iter().find_map(|n| match n.fusion.as_deref() {
            Some(Fusion::Tiled(tiled)) => Some((tiled.row_axes, tiled.product_in)),
            _ => None,
        });
        tiled.expect("a fused node")
    };
    assert_eq!(all.map(rows), [(3, Some(0)), (2, Some(0)), (1, Some(0)), (1, Some(0))]);
    check_values(&g, &all, &dims);
    // The bits are those of the ops alone.
    for y in all {
        let [fused, _, apart] = values(&g, &[y], &dims);
        assert_eq!(fused, apart);
    }
    // Nothing is fused into a convolution of another layout, of other floats, or where the image would be a row too long.
    let far = x[0].conv2d(x[1], ConvOptions { dilations: [1, 1 << 20], ..ConvOptions::new([1, 1], Padding::Same) });
    assert_eq!(kernels(&plan(&g, &[far.relu()], &[], &dims)), ["Conv2D", "Relu"]);
}

#[test]
fn a_product_comes_first_whatever_was_made_before_it() {
    let dims: [&[usize]; 3] = [&[301, 33], &[33, 64], &[301, 64]];
    let g = Graph::new();
    let x = inputs(&g, &dims);
    // Made before the product, and leads nowhere else.
    let scale = x[2].exp();
    let y = (x[0].matmul(x[1]) * scale).relu();
    assert_eq!(kernels(&plan(&g, &[y], &[], &dims)), ["MatMul+Exp+Mul+Relu"]);
    check_values(&g, &[y], &dims);
    // What the product itself reads comes before it.
    let dims: [&[usize]; 2] = [&[96, 96], &[96, 96]];
    let g = Graph::new();
    let x = inputs(&g, &dims);
    let left = x[0].exp();
    let y = (left.matmul(x[1]) + left).relu();
    assert_eq!(kernels(&plan(&g, &[y], &[], &dims)), ["Exp", "MatMul+AddV2+Relu"]);
    check_values(&g, &[y], &dims);
}

#[test]
fn what_is_read_elsewhere_is_made_beside() {
    let dims: [&[usize]; 2] = [&[150, 90], &[150, 1]];
    let g = Graph::new();
    let x = inputs(&g, &dims);
    let d = x[1] - x[0];
    let loss = d.square().mean();
    let slope = (d * 2.0).sum_axes(&[1], true);
    assert_eq!(kernels(&plan(&g, &[loss, slope], &[], &dims)), ["Sub+Square+Mean+Mul+Sum"]);
    assert_eq!(kernels(&plan(&g, &[loss, d], &[], &dims)), ["Sub+Square+Mean"]);
    check_values(&g, &[loss, slope, d], &dims);
}

#[test]
fn a_rows_result_is_there_for_its_row_and_a_columns_only_after_all() {
    let dims: [&[usize]; 1] = [&[257, 40]];
    let g = Graph::new();
    let x = inputs(&g, &dims)[0];
    let shifted = (x * 3.0) - (x * 3.0).max_axes(&[1], true);
    let by_rows = shifted.exp() / shifted.exp().sum_axes(&[1], true);
    assert_eq!(kernels(&plan(&g, &[by_rows], &[], &dims)).len(), 1);
    let y = x * 3.0;
    let by_columns = y - y.mean_axes(&[0], true);
    assert_eq!(kernels(&plan(&g, &[by_columns], &[], &dims)), ["Mul+Mean", "Sub"]);
    check_values(&g, &[by_rows, by_columns], &dims);
}

#[test]
fn sums_of_rows_that_are_spread_along_columns_come_first() {
    // As many rows as columns, so that sums without their axis fit the wrong one.
    let dims: [&[usize]; 2] = [&[80, 80], &[20, 20, 20]];
    let g = Graph::new();
    let x = inputs(&g, &dims);
    let y = x[0] * 3.0;
    let by_rows = y - y.sum_axes(&[1], false);
    let z = x[1] * 3.0;
    let (of_two, of_one) = (z - z.sum_axes(&[1, 2], false), z - z.sum_axes(&[2], false));
    let kept = z.sum_axes(&[0], true) + z.sum_axes(&[2], true) * z;
    check_values(&g, &[by_rows, of_two, of_one, kept], &dims);
}

#[test]
fn reductions_of_reductions_that_keep_all_sizes_are_whole() {
    let dims: [&[usize]; 2] = [&[1, 5000], &[5000, 1]];
    let g = Graph::new();
    let x = inputs(&g, &dims);
    let of_one_row = (x[0] * 3.0).sum_axes(&[0], true);
    let of_one_column = (x[1] * 3.0).sum_axes(&[1], true);
    let fetches = [
        of_one_row.min_axes(&[1], true),
        of_one_row.max_axes(&[0], true) * 2.0,
        of_one_column.min_axes(&[0], false),
        of_one_column.max_axes(&[1], true) - of_one_column.sum(),
        x[1].square().sum_axes(&[], true).sum_axes(&[0], true),
    ];
    check_values(&g, &fetches, &dims);
    fetches.into_iter().for_each(|fetch| check_values(&g, &[fetch], &dims));
}

#[test]
fn what_is_asked_for_as_an_op_is_computed_though_nobody_reads_it() {
    let dims: [&[usize]; 2] = [&[301, 33], &[33, 64]];
    let g = Graph::new();
    let x = inputs(&g, &dims);
    let (product, other) = (x[0].matmul(x[1]), x[0].exp());
    let targets = [other.sum(), other.max_axes(&[0], true), product.relu(), product.relu().mean()];
    let sum = other.min_axes(&[0], false);
    for fetches in [vec![], vec![sum], vec![sum, product]] {
        for some in [&targets[..1], &targets[..2], &targets[2..], &targets[..]] {
            let ops: Vec<Operation<'_>> = some.iter().map(|t| t.op()).collect();
            let run = |fusion: bool| {
                let options = SessionOptions { fusion, ..SessionOptions::on(Machine::host()) };
                let arrays = dims.map(|d| Array::new(d, &vec![0.25f32; d.iter().product()]).unwrap());
                let feeds: Vec<(Tensor<'_>, &Array)> = x.iter().copied().zip(&arrays).collect();
                Session::new(&g, options).unwrap().run(&feeds, &fetches, &ops).unwrap()
            };
            assert_eq!(run(true), run(false), "{fetches:?} with {some:?}");
        }
    }
}

#[test]
fn nothing_waits_for_itself() {
    let dims: [&[usize]; 2] = [&[128, 48], &[48, 48]];
    let g = Graph::new();
    let x = inputs(&g, &dims);
    let a = x[0].tanh();
    // The way from a to the sum leads through a product outside, and through a gate that waits for it.
    let through = a.matmul(x[1]);
    let sum = a.relu() + through;
    let gated = g.control_dependencies([through.op()], || a.square());
    let both = sum * gated;
    let schedule = plan(&g, &[both, a], &[], &dims);
    assert!(schedule.step.nodes.iter().enumerate().all(|(i, n)| n.controls.iter().all(|c| c.index() < i)));
    check_values(&g, &[both, sum, a], &dims);
}

#[test]
fn other_sizes_devices_and_what_can_fail_stay_apart() {
    let dims: [&[usize]; 2] = [&[400, 1], &[400, 30]];
    let g = Graph::new();
    let x = inputs(&g, &dims);
    let y = x[0].exp() + x[1].exp();
    assert_eq!(kernels(&plan(&g, &[y], &[], &dims)), ["Exp", "Exp+AddV2"]);
    let elsewhere = g.device("/gpu:1", || y.relu());
    assert_eq!(kernels(&plan(&g, &[elsewhere], &[], &dims)), ["Exp", "Exp+AddV2", "Relu"]);
    let checked = (y + 1.0).check_numerics("y") * 2.0;
    assert!(kernels(&plan(&g, &[checked], &[], &dims)).contains(&"CheckNumerics".to_string()));
    check_values(&g, &[elsewhere, checked], &dims);
    // What is in the first caches anyway is not worth a node of several ops.
    let dims: [&[usize]; 1] = [&[64, 64]];
    let g = Graph::new();
    let small = inputs(&g, &dims)[0];
    assert_eq!(kernels(&plan(&g, &[small.exp().relu()], &[], &dims)), ["Exp", "Relu"]);
}

#[test]
fn a_read_that_is_fused_still_comes_before_the_change() {
    let g = Graph::new();
    let dims: [&[usize]; 1] = [&[40, 300]];
    let x = inputs(&g, &dims)[0];
    let w = g.get_variable("w", [40, 300], Init::Ones);
    let y = ((x * 0.0 + w) * 2.0).relu();
    let changed = w.assign_add(y + 1.0);
    let array = Array::new(&[40, 300], &vec![1.0f32; 12_000]).unwrap();
    let session = Session::new(&g, SessionOptions::on(Machine::host())).unwrap();
    session.initialize().unwrap();
    for want in [2.0, 8.0, 26.0] {
        let got = session.run(&[(x, &array)], &[y], &[changed.op()]).unwrap();
        assert!(got[0].to_f64().iter().all(|v| *v == want), "want {want}, got {:?}", got[0].to_f64()[0]);
    }
}
