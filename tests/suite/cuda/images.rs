//! CUDA kernels against the host's for ops on images, of sizes that the op table's cases are too small for: several
//! tiles, runs of rows whose sums are added, rows of channels that a warp shares.

use super::compare::{Comparison, Near, numbers};
use super::in_child;
use std::slice::from_ref as one;
use turret::base::{Array, DType};
use turret::graph::Attrs;

const FORMATS: [&str; 2] = ["NHWC", "NCHW"];

fn sizes(dims: &[usize]) -> Array {
    Array::new(&[dims.len()], &dims.iter().map(|&d| d as i32).collect::<Vec<_>>()).expect("sizes fit")
}

/// The entries of batch, height and width, and channels in the order of a format.
fn arrange<T: Copy>(format: &str, batch: T, [y, x]: [T; 2], channels: T) -> [T; 4] {
    if format == "NHWC" { [batch, y, x, channels] } else { [batch, channels, y, x] }
}

fn window(format: &str, strides: [i64; 2], padding: &str) -> Attrs {
    let strides = arrange(format, 1, strides, 1).to_vec();
    Attrs::new().with("data_format", format).with("padding", padding).with("strides", strides)
}

#[test]
fn child_convolutions_in_several_tiles_agree() {
    if !in_child() {
        return;
    }
    let mut all = Comparison::default();
    let near = Near::Largest(1e-5, 1e-13);
    for (format, dtype) in FORMATS.into_iter().flat_map(|f| [(f, DType::F32), (f, DType::F64)]) {
        // Image, channels of a group, window, filters of a group, groups, strides.
        for (image, depth, taps, width, groups, strides) in [
            ([19, 21], 3, [3, 2], 70, 1, [1, 1]),
            ([15, 9], 20, [2, 3], 65, 1, [2, 3]),
            ([11, 13], 33, [1, 1], 5, 2, [1, 1]),
            ([23, 24], 1, [3, 3], 1, 37, [2, 1]),
            ([9, 8], 1, [3, 3], 2, 3, [1, 2]),
        ] {
            let attrs = window(format, strides.map(|s| s as i64), "SAME");
            let image_dims = arrange(format, 2, image, depth * groups);
            let places = [0, 1].map(|axis| usize::div_ceil(image[axis], strides[axis]));
            let output = arrange(format, 2, places, width * groups);
            let filter = [taps[0], taps[1], depth, width * groups];
            let [x, w, g] = [(&image_dims, 1), (&filter, 2), (&output, 3)].map(|(d, seed)| numbers(dtype, d, seed));
            all.op("Conv2D", &attrs, &[x.clone(), w.clone()], near);
            all.op("Conv2DBackpropInput", &attrs, &[sizes(&image_dims), w.clone(), g.clone()], near);
            all.op("Conv2DBackpropFilter", &attrs, &[x.clone(), sizes(&filter), g.clone()], near);
            if depth == 1 {
                let filter = [taps[0], taps[1], groups, width];
                let w = Array::from_f64(dtype, &filter, &w.to_f64()).expect("as many");
                all.op("DepthwiseConv2dNative", &attrs, &[x.clone(), w.clone()], near);
                all.op("DepthwiseConv2dNativeBackpropInput", &attrs, &[sizes(&image_dims), w, g.clone()], near);
                all.op("DepthwiseConv2dNativeBackpropFilter", &attrs, &[x, sizes(&filter), g], near);
            }
        }
    }
    all.end(70);
}

#[test]
fn child_pools_norms_and_resized_images_agree() {
    if !in_child() {
        return;
    }
    let mut all = Comparison::default();
    let near = Near::Largest(1e-5, 1e-12);
    for (format, dtype) in FORMATS.into_iter().flat_map(|f| [(f, DType::F32), (f, DType::F64)]) {
        for (image, channels) in [([13, 17], 70), ([65, 33], 3)] {
            let dims = arrange(format, 3, image, channels);
            let x = numbers(dtype, &dims, 1);
            let ksize = arrange(format, 1i64, [3, 2], 1).to_vec();
            let attrs = window(format, [2, 1], "SAME").with("ksize", ksize);
            let output = arrange(format, 3, [image[0].div_ceil(2), image[1]], channels);
            let g = numbers(dtype, &output, 2);
            all.op("MaxPool", &attrs, one(&x), Near::Exactly);
            all.op("MaxPoolGrad", &attrs, &[x.clone(), g.clone(), g.clone()], near);
            all.op("MaxPoolGradGrad", &attrs, &[x.clone(), g.clone(), numbers(dtype, &dims, 3)], Near::Exactly);
            all.op("AvgPool", &attrs, one(&x), near);
            all.op("AvgPoolGrad", &attrs, &[sizes(&dims), g], near);

            let [scale, offset, mean] = [4, 5, 6].map(|seed| numbers(dtype, &[channels], seed));
            let positive: Vec<f64> = mean.to_f64().iter().map(|v| v.abs() + 0.25).collect();
            let variance = Array::from_f64(dtype, &[channels], &positive).expect("sizes fit");
            let g = numbers(dtype, &dims, 7);
            for (training, factor) in [(true, 1.0f32), (true, 0.125), (false, 1.0)] {
                let attrs = Attrs::new().with("data_format", format).with("is_training", training);
                let inputs = [x.clone(), scale.clone(), offset.clone(), mean.clone(), variance.clone()];
                all.op("FusedBatchNormV3", &attrs.clone().with("exponential_avg_factor", factor), &inputs, near);
                let inputs = [g.clone(), x.clone(), scale.clone(), mean.clone(), variance.clone(), mean.clone()];
                all.op("FusedBatchNormGradV3", &attrs, &inputs, near);
            }
            if format == "NHWC" {
                let attrs = Attrs::new().with("depth_radius", 3i64).with("beta", 0.75f32).with("bias", 2.0f32);
                all.op("LRN", &attrs, one(&x), near);
                all.op("LRNGrad", &attrs, &[g, x.clone(), x.clone()], near);
                for mode in ["", "align_corners", "half_pixel_centers"] {
                    for out in [[40, 9], [7, 50]] {
                        let attrs = if mode.is_empty() { Attrs::new() } else { Attrs::new().with(mode, true) };
                        all.op("ResizeBilinear", &attrs, &[x.clone(), sizes(&out)], Near::Largest(1e-6, 1e-6));
                        all.op("ResizeNearestNeighbor", &attrs, &[x.clone(), sizes(&out)], Near::Exactly);
                        let g = numbers(DType::F32, &[3, out[0], out[1], channels], 8);
                        all.op("ResizeBilinearGrad", &attrs, &[g.clone(), x.clone()], Near::Largest(1e-5, 1e-6));
                        all.op("ResizeNearestNeighborGrad", &attrs, &[g, sizes(&image)], near);
                    }
                }
            }
        }
    }
    all.end(100);
}
