//! Tests of the ops on images beyond the table's: messages, names, sizes that are cut into several parts, and gradients
//! that take more than one node.

use super::conv_geometry::{Conv, Kind};
use super::rows_tests::check_rows;
use super::*;
use crate::base::{Array, DType, Shape};
use crate::device::Team;
use crate::graph::{Attrs, Graph, Tensor, evaluate};
use crate::train::{GradOptions, gradients};
use std::sync::Arc;

/// Numbers of which no two neighbours are alike.
fn numbers(dtype: DType, dims: &[usize], seed: usize) -> Array {
    let count = dims.iter().product();
    let values: Vec<f64> =
        (0..count).map(|i: usize| ((i * 37 + i / 7 + seed * 11) % 101) as f64 / 40.0 - 1.25).collect();
    Array::from_f64(dtype, dims, &values).expect("sizes fit")
}

fn sizes(dims: &[usize]) -> Array {
    Array::new(&[dims.len()], &dims.iter().map(|&d| d as i32).collect::<Vec<_>>()).expect("sizes fit")
}

/// What is wrong with a graph, all in one.
fn problem(build: impl FnOnce(&Graph)) -> String {
    let g = Graph::new();
    build(&g);
    g.check().expect_err("a problem").to_string()
}

fn contains(message: &str, parts: &[&str]) {
    parts.iter().for_each(|part| assert!(message.contains(part), "no '{part}' in: {message}"));
}

#[test]
fn bad_convolutions_say_what_both_sides_are() {
    let build = |image: &'static [usize], filter: &'static [usize], options: ConvOptions| {
        problem(|g| {
            let x = g.placeholder(DType::F32, image, "x");
            x.conv2d(g.placeholder(DType::F32, filter, "w"), options);
        })
    };
    let plain = ConvOptions::default();
    let rank = build(&[5, 5, 3], &[3, 3, 3, 8], plain);
    contains(&rank, &["'Conv2D'", "the image must have 4 axes (NHWC)", "[5, 5, 3]"]);
    let channels = build(&[1, 5, 5, 4], &[3, 3, 3, 8], plain);
    contains(&channels, &["must be a multiple of the filter's", "has 4", "[3, 3, 3, 8] has 3"]);
    let groups = build(&[1, 5, 5, 6], &[3, 3, 3, 7], plain);
    contains(&groups, &["the filters must be a multiple of the groups", "has 7", "2 groups of 3"]);
    let window = build(&[1, 5, 5, 3], &[3, 7, 3, 8], plain);
    contains(&window, &["larger than the image", "over 7 along the width", "has 5", "padding SAME"]);
    let dilated = build(&[1, 5, 5, 3], &[3, 3, 3, 8], ConvOptions { dilations: [3, 1], ..plain });
    contains(&dilated, &["over 7 along the height", "dilation 3"]);
    let stride = build(&[1, 5, 5, 3], &[3, 3, 3, 8], ConvOptions { strides: [0, 1], ..plain });
    contains(&stride, &["attribute 'strides'", "got 0"]);
    let huge = ConvOptions { padding: Padding::Explicit([(usize::MAX, 0), (0, 0)]), ..plain };
    contains(&build(&[1, 5, 5, 3], &[3, 3, 3, 8], huge), &["explicit_paddings"]);
    let most = (i32::MAX as usize, i32::MAX as usize);
    let huge = ConvOptions { padding: Padding::Explicit([most, most]), ..plain };
    contains(&build(&[1, 5, 5, 3], &[3, 3, 3, 8], huge), &["does not fit in memory"]);
    let empty = build(&[1, 5, 5, 3], &[3, 0, 3, 8], plain);
    contains(&empty, &["the filter must have elements"]);
    let types = problem(|g| {
        let x = g.placeholder(DType::F32, [1, 5, 5, 3], "x");
        x.conv2d(g.placeholder(DType::F64, [1, 1, 3, 3], "w"), plain);
    });
    contains(&types, &["both be float32 or float64", "float32 and float64"]);
    let depthwise = problem(|g| {
        let x = g.placeholder(DType::F32, [1, 5, 5, 3], "x");
        x.depthwise_conv2d_native(g.placeholder(DType::F32, [3, 3, 1, 3], "w"), plain);
    });
    contains(&depthwise, &["must have the image's channels", "has 3", "has 1"]);
    let transposed = problem(|g| {
        let y = g.placeholder(DType::F32, [1, 5, 5, 8], "y");
        y.conv2d_transpose(g.placeholder(DType::F32, [3, 3, 4, 8], "w"), [1, 5, 5, 4], plain);
    });
    contains(&transposed, &["must have the output's shape", "make [1, 3, 3, 8]", "got [1, 5, 5, 8]"]);
}

#[test]
fn other_bad_images_say_what_is_wanted() {
    let of = |dims: &'static [usize], build: &dyn for<'g> Fn(Tensor<'g>) -> Tensor<'g>| {
        problem(|g| {
            build(g.placeholder(DType::F32, dims, "x"));
        })
    };
    let pool = of(&[1, 2, 4, 3], &|x| x.max_pool(PoolOptions::new([3, 3], [1, 1], Padding::Valid)));
    contains(&pool, &["'MaxPool'", "larger than the image", "over 3 along the height", "has 2"]);
    let padding = Padding::Explicit([(2, 0), (0, 0)]);
    let padded = of(&[1, 4, 4, 3], &|x| x.max_pool(PoolOptions::new([2, 2], [1, 1], padding)));
    contains(&padded, &["must be smaller than the window", "2 and 0"]);
    let channels = of(&[2, 2, 2, 3], &|x| {
        let vector = x.graph().placeholder(DType::F32, [4], "scale");
        x.fused_batch_norm(vector, vector, BatchNormOptions::default())[0]
    });
    contains(&channels, &["one entry a channel (axis 3)", "want [3], got [4]"]);
    let moments = of(&[2, 2, 2, 3], &|x| {
        let vector = x.graph().placeholder(DType::F32, [3], "scale");
        x.fused_batch_norm(vector, vector, BatchNormOptions { is_training: false, ..BatchNormOptions::default() })[0]
    });
    contains(&moments, &["input 3 must have one entry a channel", "want [3], got [0]"]);
    contains(&of(&[2, 3], &|x| x.lrn(LrnOptions::default())), &["4 axes", "[2, 3]"]);
    let both = ResizeOptions { align_corners: true, half_pixel_centers: true };
    contains(&of(&[1, 2, 2, 1], &|x| x.resize_bilinear([4, 4], both)), &["exclude each other"]);
    let nothing = of(&[1, 2, 2, 1], &|x| x.resize_nearest_neighbor([0, 4], ResizeOptions::default()));
    contains(&nothing, &["both above 0", "[0, 4]"]);
}

#[test]
fn builders_give_tensorflows_names_and_attributes() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [None, Some(8), Some(8), Some(3)], "x");
    let w = g.placeholder(DType::F32, [3, 3, 3, 4], "w");
    let padding = Padding::Explicit([(1, 2), (3, 4)]);
    let y = x.conv2d(w, ConvOptions::new([2, 1], padding));
    assert_eq!((y.op().name(), y.shape()), ("Conv2D".into(), Shape::partial([None, Some(5), Some(13), Some(4)])));
    let node = y.op().node().expect("a node");
    assert_eq!(node.attrs.ints("strides"), [1, 2, 1, 1]);
    assert_eq!(node.attrs.ints("explicit_paddings"), [0, 0, 1, 2, 3, 4, 0, 0]);
    assert_eq!((node.attrs.str("padding"), node.attrs.str("data_format")), (Some("EXPLICIT"), Some("NHWC")));
    let images = g.placeholder(DType::F32, [2, 3, 8, 8], "images");
    let options = ConvOptions { data_format: DataFormat::Nchw, dilations: [1, 2], ..ConvOptions::default() };
    let z = images.conv2d(w, options);
    assert_eq!((z.op().name(), z.shape()), ("Conv2D_1".into(), Shape::known(&[2, 4, 6, 4])));
    assert_eq!(z.op().node().expect("a node").attrs.ints("dilations"), [1, 1, 1, 2]);
    let back = z.conv2d_transpose(w, [2, 3, 8, 8], options);
    assert_eq!((&*back.op().name(), &*back.op().op_type()), ("conv2d_transpose", "Conv2DBackpropInput"));
    assert_eq!(
        (back.op().inputs()[0].op().name(), back.shape()),
        ("conv2d_transpose/input_sizes".into(), images.shape())
    );
    let depthwise = x.depthwise_conv2d_native(g.placeholder(DType::F32, [1, 1, 3, 2], "d"), ConvOptions::default());
    assert_eq!((depthwise.op().name(), depthwise.shape().dim(3)), ("DepthwiseConv2dNative".into(), Some(6)));
    let pooled = x.max_pool(PoolOptions::default());
    assert_eq!((pooled.op().name(), pooled.shape().dim(1)), ("MaxPool".into(), Some(4)));
    assert_eq!(x.avg_pool(PoolOptions::new([3, 3], [1, 1], Padding::Same)).op().name(), "AvgPool");
    let vector = g.placeholder(DType::F32, [3], "scale");
    let [y, mean, _] = x.fused_batch_norm(vector, vector, BatchNormOptions::default());
    let inputs: Vec<String> = y.op().inputs().iter().map(|t| t.op().name()).collect();
    assert_eq!((y.name(), mean.name()), ("FusedBatchNormV3:0".into(), "FusedBatchNormV3:1".into()));
    assert_eq!(inputs, ["x", "scale", "scale", "Const", "Const_1"]);
    assert_eq!(x.lrn(LrnOptions::default()).op().name(), "LRN");
    let resized = x.resize_bilinear([4, 16], ResizeOptions::default());
    assert_eq!(
        (resized.op().inputs()[1].op().name(), resized.shape().dim(2)),
        ("ResizeBilinear/size".into(), Some(16))
    );
    assert_eq!(x.resize_nearest_neighbor([4, 4], ResizeOptions::default()).op().name(), "ResizeNearestNeighbor");
    let biased = images.bias_add_with(vector, DataFormat::Nchw);
    assert_eq!(biased.op().node().expect("a node").attrs.str("data_format"), Some("NCHW"));
    g.check().expect("no problem");

    let outer = g.name_scope("gradients", || gradients([z], [images, w], GradOptions::default()));
    let names: Vec<String> = outer.into_iter().flatten().map(|gradient| gradient.op().name()).collect();
    assert!(names.iter().all(|name| name.contains("Conv2D_1_grad/")), "{names:?}");
}

/// An op on inputs that are cut into several parts: the same bits from any number of threads, and near those of doubles.
fn check_parts(op: &str, attrs: &Attrs, inputs: &[Array]) {
    let op = find(op).expect("an op of the table");
    let run = |inputs: &[Array], threads: usize| {
        let inputs: Vec<Arc<Array>> = inputs.iter().cloned().map(Arc::new).collect();
        evaluate(op, attrs, &inputs, &Team::new(threads, "parts")).unwrap_or_else(|e| panic!("{}: {e}", op.name()))
    };
    let (one, three) = (run(inputs, 1), run(inputs, 3));
    assert!(one == three, "{}: other bits on three threads", op.name());
    check_rows(op, attrs, inputs);
    let wide = |a: &Array| if a.dtype() == DType::F32 { a.cast(DType::F64).expect("a cast") } else { a.clone() };
    let exact = run(&inputs.iter().map(wide).collect::<Vec<_>>(), 1);
    for (got, want) in one.iter().zip(&exact) {
        let (got, want) = (got.to_f64(), want.to_f64());
        let bound = 1e-5 * want.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
        let at = got.iter().zip(&want).position(|(a, b)| (a - b).abs() > bound);
        assert_eq!(at, None, "{} {attrs:?}: {:?}", op.name(), at.map(|at| (got[at], want[at])));
    }
}

#[test]
fn convolutions_in_several_parts_are_exact() {
    let attrs = |format: &str, stride: i64, padding: &str| {
        let strides = if format == "NHWC" { vec![1, stride, stride, 1] } else { vec![1, 1, stride, stride] };
        Attrs::new().with("data_format", format).with("strides", strides).with("padding", padding)
    };
    let arrange = |format: &str, batch: usize, size: [usize; 2], channels: usize| match format {
        "NHWC" => [batch, size[0], size[1], channels],
        _ => [batch, channels, size[0], size[1]],
    };
    // Images, channels, window, filters, groups, stride: many rows, many taps, many filters, a plain product.
    let all = [
        (2, [30, 33], 3, 3, 20, 1, 1),
        (1, [12, 12], 200, 3, 40, 1, 2),
        (2, [5, 5], 96, 1, 300, 1, 1),
        (3, [16, 16], 24, 3, 36, 2, 1),
        (3, [7, 9], 32, 5, 48, 1, 1),
        (3, [13, 14], 48, 3, 16, 1, 1),
        // Strips by bands, columns and lines of the window; several runs of them; several runs of Winograd's tiles.
        (1, [14, 14], 300, 3, 200, 1, 2),
        (2, [40, 40], 20, 3, 36, 1, 1),
        (3, [32, 30], 32, 3, 32, 1, 1),
    ];
    for (batch, image, channels, window, filters, groups, stride) in all {
        for format in ["NHWC", "NCHW"] {
            let attrs = attrs(format, stride as i64, "SAME");
            let out: [usize; 2] = image.map(|n: usize| n.div_ceil(stride));
            let image = arrange(format, batch, image, channels);
            let filter = [window, window, channels / groups, filters];
            let output = arrange(format, batch, out, filters);
            let [x, w, g] = [(&image, 1), (&filter, 2), (&output, 3)].map(|(d, seed)| numbers(DType::F32, d, seed));
            check_parts("Conv2D", &attrs, &[x.clone(), w.clone()]);
            check_parts("Conv2DBackpropInput", &attrs, &[sizes(&image), w, g.clone()]);
            check_parts("Conv2DBackpropFilter", &attrs, &[x, sizes(&filter), g]);
        }
    }
    for format in ["NHWC", "NCHW"] {
        let attrs = attrs(format, 2, "VALID");
        let (image, filter) = (arrange(format, 2, [40, 41], 70), [3, 3, 70, 1]);
        let output = arrange(format, 2, [19, 20], 70);
        let [x, w, g] = [(&image, 1), (&filter, 2), (&output, 3)].map(|(d, seed)| numbers(DType::F32, d, seed));
        check_parts("DepthwiseConv2dNative", &attrs, &[x.clone(), w.clone()]);
        check_parts("DepthwiseConv2dNativeBackpropInput", &attrs, &[sizes(&image), w, g.clone()]);
        check_parts("DepthwiseConv2dNativeBackpropFilter", &attrs, &[x, sizes(&filter), g]);
    }
}

/// Dilations and strides of which a padded line would be gigabytes.
#[test]
fn windows_that_reach_far_take_no_memory() {
    let far = 1i64 << 30;
    let pair = |n: i64| vec![1, n, n, 1];
    let dilated = Attrs::new().with("strides", pair(1)).with("dilations", pair(far)).with("padding", "SAME");
    let strided = Attrs::new().with("strides", pair(far)).with("padding", "EXPLICIT");
    let strided = strided.with("explicit_paddings", vec![0, 0, far, far, far, far, 0, 0]);
    for (attrs, out) in [(&dilated, [5, 6]), (&strided, [3, 3])] {
        // Of the padding nothing is seen, so that few products are left.
        for (depth, filters, channels) in [(2, 3, 2), (2, 4, 4), (1, 9, 9)] {
            let (image, filter, output) = ([2, 5, 6, channels], [3, 3, depth, filters], [2, out[0], out[1], filters]);
            let [x, w, g] = [(&image, 1), (&filter, 2), (&output, 3)].map(|(d, seed)| numbers(DType::F32, d, seed));
            let conv = Conv::new(Kind::Full, attrs, &image, &filter).expect("sizes that fit");
            assert!(conv_strips::forward(&conv).is_none() && conv_strips_filter::filter_gradient(&conv).is_none());
            // With such strides a line of the gradient's is one pixel.
            assert!(conv.strides[0] > 1 || conv_strips::backward(&conv).is_none());
            check_parts("Conv2D", attrs, &[x.clone(), w.clone()]);
            check_parts("Conv2DBackpropInput", attrs, &[sizes(&image), w.clone(), g.clone()]);
            check_parts("Conv2DBackpropFilter", attrs, &[x.clone(), sizes(&filter), g.clone()]);
            let op = find("Conv2D").expect("an op of the table");
            let y = evaluate(op, attrs, &[Arc::new(x.clone()), Arc::new(w.clone())], &Team::new(1, "far"));
            let y = y.expect("an output");
            // One image and one filter, as defined: dilated, the taps in the middle; strided, the first tap of the place
            // in the middle sees the first pixel, and its others the first three by three.
            let want: f64 = match conv.strides[0] {
                1 => (0..depth).map(|c| x.get_f64(c) * w.get_f64((4 * depth + c) * filters)).sum(),
                _ => (0..9 * depth)
                    .map(|n| {
                        let (tap, c) = (n / depth, n % depth);
                        x.get_f64((tap / 3 * 6 + tap % 3) * channels + c) * w.get_f64(n * filters)
                    })
                    .sum(),
            };
            let at = if conv.strides[0] == 1 { 0 } else { (3 + 1) * filters };
            assert!((y[0].get_f64(at) - want).abs() < 1e-5, "{attrs:?}: {} for {want}", y[0].get_f64(at));
        }
    }
}

#[test]
fn other_ops_on_images_in_several_parts_are_exact() {
    let dims = [2, 70, 9, 70];
    let (x, g) = (numbers(DType::F32, &dims, 1), numbers(DType::F32, &dims, 2));
    let window = Attrs::new().with("ksize", vec![1i64, 3, 3, 1]).with("strides", vec![1i64, 1, 1, 1]);
    let window = window.with("padding", "SAME");
    check_parts("MaxPool", &window, std::slice::from_ref(&x));
    check_parts("MaxPoolGrad", &window, &[x.clone(), x.clone(), g.clone()]);
    check_parts("MaxPoolGradGrad", &window, &[x.clone(), x.clone(), g.clone()]);
    check_parts("AvgPool", &window, std::slice::from_ref(&x));
    check_parts("AvgPoolGrad", &window, &[sizes(&dims), g.clone()]);
    check_parts("LRN", &Attrs::new(), std::slice::from_ref(&x));
    check_parts("LRNGrad", &Attrs::new(), &[g.clone(), x.clone(), x.clone()]);
    check_parts("ResizeNearestNeighbor", &Attrs::new(), &[x.clone(), sizes(&[100, 30])]);
    check_parts("ResizeNearestNeighborGrad", &Attrs::new(), &[x.clone(), sizes(&[30, 30])]);
    for format in ["NHWC", "NCHW"] {
        let attrs = Attrs::new().with("data_format", format);
        let channels = 70;
        let [scale, mean] = [3, 4].map(|seed| numbers(DType::F32, &[channels], seed));
        let variance = Array::from_f64(DType::F32, &[channels], &vec![0.75; channels]).expect("sizes fit");
        let empty = Array::zeros(DType::F32, &[0]).expect("nothing fits");
        check_parts(
            "FusedBatchNormV3",
            &attrs,
            &[x.clone(), scale.clone(), mean.clone(), empty.clone(), empty.clone()],
        );
        check_parts("FusedBatchNormGradV3", &attrs, &[g.clone(), x.clone(), scale, mean, variance, empty]);
    }
}

/// The gradients of a loss.
fn dense<'g>(loss: Tensor<'g>, xs: &[Tensor<'g>]) -> Vec<Tensor<'g>> {
    let found = gradients([loss], xs.iter().copied(), GradOptions::default());
    found.into_iter().map(|gradient| gradient.expect("a gradient").values()).collect()
}

/// The slope of a loss along each element of some inputs, by nodes and by differences.
fn check_slopes(fed: &[(Tensor<'_>, Array)], loss: Tensor<'_>, slopes: &[Tensor<'_>]) {
    let g = loss.graph();
    g.check().expect("no problem");
    let at = |fed: &[(Tensor<'_>, Array)]| g.evaluate(loss, fed).expect("a loss").get_f64(0);
    for (input, slope) in slopes.iter().enumerate() {
        let got = g.evaluate(*slope, fed).expect("a slope");
        assert_eq!(got.dims(), fed[input].1.dims());
        for i in 0..got.len() {
            let moved = |by: f64| {
                let mut fed = fed.to_vec();
                fed[input].1.as_mut_slice::<f64>().expect("doubles")[i] += by;
                at(&fed)
            };
            let want = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            assert!((got.get_f64(i) - want).abs() < 1e-6 * want.abs().max(1.0), "input {input}, {i}: {got:?}, {want}");
        }
    }
}

#[test]
fn batch_normalization_in_training_has_gradients_and_gradients_of_these() {
    for (format, dims) in [(DataFormat::Nhwc, [2, 2, 2, 2]), (DataFormat::Nchw, [2, 2, 3, 1])] {
        let g = Graph::new();
        let channels = dims[format.channels()];
        let fed: Vec<(Tensor<'_>, Array)> = [(&dims[..], 1), (&[channels], 2), (&[channels], 3), (&dims, 4)]
            .map(|(dims, seed)| (g.placeholder(DType::F64, dims, "x"), numbers(DType::F64, dims, seed)))
            .into();
        let [x, scale, offset, upstream] = [fed[0].0, fed[1].0, fed[2].0, fed[3].0];
        let options = BatchNormOptions { data_format: format, epsilon: 0.1, ..BatchNormOptions::default() };
        let [y, ..] = x.fused_batch_norm(scale, offset, options);
        let loss = (y * upstream * y).sum();
        let first = dense(loss, &[x, scale, offset]);
        check_slopes(&fed, loss, &first);
        // The squares make a loss of the gradients that each input bends.
        let second = first.iter().map(|slope| slope.square().sum()).reduce(|a, b| a + b).expect("three");
        check_slopes(&fed, second, &dense(second, &[x, scale, offset, upstream]));
    }
}
