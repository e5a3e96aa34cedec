//! Launches of convolutions and their gradients on CUDA, by kernels of our own: products whose patches are gathered while
//! they are multiplied, and loops over the window where filters are of single channels. Where cuDNN is there, it takes
//! those whose padding is the same on both sides; filters are brought in its layout and back.

use super::conv_geometry::{Conv, Of};
use super::copy::{Copy, Move};
use super::cuda_copy;
use super::window::DataFormat;
use crate::base::DType;
use crate::device::cuda::{
    BLOCK, ConvGeometry, ConvResult, Convolution, CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch,
};

/// Rows and columns of a tile, as the texts have it.
const TILE: usize = 64;
/// Blocks that fill a large GPU.
const BLOCKS: usize = 528;
/// Threads that fill a large GPU.
const THREADS: usize = 1 << 18;
/// Rows of results that are worth a part of a filter's gradient.
const ROWS: usize = 256;
/// The most elements of scratch memory for the sums of parts.
const SCRATCH: usize = 1 << 25;

/// What computes this of a convolution.
///
/// # Errors
/// Sizes that the kernels cannot count.
pub(super) fn kernel(conv: &Conv, of: Of, dtype: DType) -> Result<CudaKernel, String> {
    let sizes = sizes(conv)?;
    let results = match of {
        Of::Output => conv.batch * conv.out[0] * conv.out[1] * conv.filters,
        Of::Image => conv.batch * conv.image[0] * conv.image[1] * conv.channels,
        Of::Filter => conv.taps[0] * conv.taps[1] * conv.depth() * conv.filters,
    };
    if results == 0 {
        return Ok(CudaKernel::default());
    }
    let alone = conv.depth() == 1 && conv.groups > 1;
    let own: Result<CudaKernel, String> = Ok(match (of, alone) {
        (Of::Filter, _) => filter(conv, dtype, alone, results, sizes),
        (_, true) => {
            let code = code(conv, dtype, include_str!("cuda/depthwise.cu")).with_constant("BACKWARD", backward(of));
            CudaKernel::new([CudaLaunch::elements(code, results, buffers(of).into_iter().chain(sizes))])
        }
        (_, false) => product(conv, of, dtype, sizes)?,
    });
    own.map(|own| if alone { own } else { by_library(conv, of, dtype, own) })
}

/// The same by cuDNN, where a GPU has it.
fn by_library(conv: &Conv, of: Of, dtype: DType, own: CudaKernel) -> CudaKernel {
    let places = |axis: usize| {
        let window = (conv.taps[axis] - 1) * conv.dilations[axis] + 1;
        let room = (conv.image[axis] + 2 * conv.before[axis]).checked_sub(window)?;
        Some(room / conv.strides[axis] + 1)
    };
    if [0, 1].iter().any(|&axis| places(axis) != Some(conv.out[axis])) {
        return own;
    }
    let geometry = ConvGeometry {
        dtype,
        channels_last: conv.format == DataFormat::Nhwc,
        batch: conv.batch,
        image: conv.image,
        channels: conv.channels,
        taps: conv.taps,
        groups: conv.groups,
        filters: conv.filters,
        out: conv.out,
        strides: conv.strides,
        dilations: conv.dilations,
        pads: conv.before,
    };
    let scratch = CudaBuffer::Scratch(0);
    let (input, output) = (|i| CudaBuffer::Input(i, 0), CudaBuffer::Output(0, 0));
    let moved = cuda_copy::moves(dtype, &[Move { input: 0, output: 0, copy: turned(conv, of == Of::Filter) }]).launches;
    let between = |from: CudaBuffer, to: CudaBuffer| -> Vec<CudaLaunch> {
        moved.iter().map(|launch| cuda_copy::redirected(launch.clone(), from, to)).collect()
    };
    let (result, image, given, before, after) = match of {
        Of::Output => (ConvResult::Output, input(0), output, between(input(1), scratch), Vec::new()),
        Of::Image => (ConvResult::Image, output, input(2), between(input(1), scratch), Vec::new()),
        Of::Filter => (ConvResult::Filter, input(0), input(2), Vec::new(), between(scratch, output)),
    };
    let filter_bytes = conv.taps[0] * conv.taps[1] * conv.depth() * conv.filters * dtype.size();
    let CudaKernel { launches, scratch_bytes, .. } = own;
    let convolution = Convolution {
        geometry,
        of: result,
        image,
        filter: scratch,
        output: given,
        before,
        after,
        scratch_bytes: filter_bytes,
        own: launches,
    };
    CudaKernel { scratch_bytes, ..CudaKernel::new([CudaLaunch::Convolution(Box::new(convolution))]) }
}

/// How a filter is copied from TensorFlow's layout, `[height, width, depth, filters]`, to cuDNN's, in which the filters
/// come first and each is laid out as the image is; or back.
fn turned(conv: &Conv, back: bool) -> Copy {
    let (taps, depth, filters) = (conv.taps[0] * conv.taps[1], conv.depth(), conv.filters);
    let strides = |n: [usize; 3]| n.map(|s| s as isize);
    let ours = strides([1, depth * filters, filters]);
    let theirs = match conv.format {
        DataFormat::Nhwc => strides([taps * depth, depth, 1]),
        DataFormat::Nchw => strides([taps * depth, 1, taps]),
    };
    // By filter, place in the window, channel.
    let (from, to) = if back { (theirs, ours) } else { (ours, theirs) };
    Copy::new(&[filters, taps, depth], 0, &from, 0, &to)
}

fn backward(of: Of) -> i64 {
    (of != Of::Output).into()
}

/// Source, filter or gradient, and result.
fn buffers(of: Of) -> [CudaArg; 3] {
    let (source, other) = match of {
        Of::Output => (0, 1),
        Of::Image => (2, 1),
        Of::Filter => (0, 2),
    };
    [CudaArg::input(source), CudaArg::input(other), CudaArg::output(0)]
}

fn code(conv: &Conv, dtype: DType, text: &str) -> CudaCode {
    CudaCode::new(format!("{}{text}", include_str!("cuda/conv_axes.cu")))
        .with_constant("CHANNELS_LAST", (conv.format == DataFormat::Nhwc).into())
        .with_type("T", dtype)
}

/// The parameters that all texts have.
fn sizes(conv: &Conv) -> Result<Vec<CudaArg>, String> {
    // Places in a padded image, and the filter's rows, are counted in 32 bits.
    let reach = |axis: usize| {
        let window = (conv.taps[axis] - 1).checked_mul(conv.dilations[axis])?;
        let places = conv.out[axis].checked_mul(conv.strides[axis])?;
        [conv.image[axis], conv.before[axis], window, places].into_iter().try_fold(0usize, |sum, n| sum.checked_add(n))
    };
    let filter = [conv.taps[0], conv.taps[1], conv.depth()].into_iter().try_fold(1usize, |n, m| n.checked_mul(m));
    let pairs = [conv.image[0], conv.image[1], conv.channels, conv.taps[0], conv.taps[1], conv.groups, conv.filters];
    let all = [conv.batch].into_iter().chain(pairs).chain(conv.out);
    let all = all.chain(conv.strides).chain(conv.dilations).chain(conv.before);
    if [reach(0), reach(1), filter].iter().any(|n| n.is_none_or(|n| n >= 1 << 30)) {
        return Err(format!("a convolution of these sizes is beyond what CUDA kernels count: {conv:?}"));
    }
    let number = |n: usize| i32::try_from(n).map(CudaArg::I32).map_err(|_| format!("{n} is beyond CUDA's int"));
    all.map(number).collect()
}

/// The output, or the image's gradient.
fn product(conv: &Conv, of: Of, dtype: DType, sizes: Vec<CudaArg>) -> Result<CudaKernel, String> {
    let (apart, remainders, places, width) = match of {
        Of::Output => ([1, 1], [1, 1], conv.out, conv.width()),
        _ => {
            let apart = [0, 1].map(|axis| conv.apart(axis));
            let remainders = [0, 1].map(|axis| conv.strides[axis].min(conv.image[axis]));
            let places = [0, 1].map(|axis| conv.image[axis].div_ceil(conv.strides[axis]));
            (apart, remainders, places, conv.depth())
        }
    };
    let (down, across) = ((conv.batch * places[0] * places[1]).div_ceil(TILE), width.div_ceil(TILE));
    let blocks = [remainders[0], remainders[1], down, conv.groups, across];
    let blocks = blocks.into_iter().try_fold(1usize, |n, m| n.checked_mul(m)).and_then(|n| i32::try_from(n).ok());
    let blocks = blocks.ok_or_else(|| format!("a convolution of these sizes has too many blocks: {conv:?}"))?;
    let layout = [apart[0], apart[1], remainders[1], across].map(|n| CudaArg::I32(n as i32));
    let args = buffers(of).into_iter().chain(sizes).chain(layout).chain([CudaArg::size(down)]).collect();
    let code = code(conv, dtype, include_str!("cuda/conv.cu")).with_constant("BACKWARD", backward(of));
    Ok(CudaKernel::new([CudaLaunch::Code { code, blocks: blocks as u32, threads: BLOCK, shared_bytes: 0, args }]))
}

/// The filter's gradient.
fn filter(conv: &Conv, dtype: DType, alone: bool, results: usize, sizes: Vec<CudaArg>) -> CudaKernel {
    let rows = conv.batch * conv.out[0] * conv.out[1];
    let (down, across) = ((results / conv.filters).div_ceil(TILE), conv.width().div_ceil(TILE));
    let tiles = down * across * conv.groups;
    let lanes = if conv.format == DataFormat::Nhwc { 1 } else { 32 };
    let wanted = if alone { THREADS.div_ceil(results * lanes) } else { BLOCKS.div_ceil(tiles) };
    let parts = wanted.min(rows.div_ceil(ROWS)).min(SCRATCH / results).max(1);
    let [source, gradient, output] = buffers(Of::Filter);
    let to = if parts > 1 { CudaArg::Buffer(CudaBuffer::Scratch(0)) } else { output };
    let args = [source, gradient, to].into_iter().chain(sizes);
    let first = if alone {
        let code = code(conv, dtype, include_str!("cuda/depthwise_filter.cu"));
        CudaLaunch::elements(code, results * parts * lanes, args.chain([CudaArg::I32(parts as i32)]))
    } else {
        let code = code(conv, dtype, include_str!("cuda/conv_filter.cu"));
        let args = args.chain([across, down, parts].map(|n| CudaArg::I32(n as i32))).collect();
        CudaLaunch::Code { code, blocks: (tiles * parts) as u32, threads: BLOCK, shared_bytes: 0, args }
    };
    if parts == 1 {
        return CudaKernel::new([first]);
    }
    let sum = sum_parts(dtype, to, output, results, parts);
    CudaKernel { scratch_bytes: parts * results * dtype.size(), ..CudaKernel::new([first, sum]) }
}

/// A launch that adds `parts` runs of `count` elements each, in order.
pub(super) fn sum_parts(dtype: DType, from: CudaArg, to: CudaArg, count: usize, parts: usize) -> CudaLaunch {
    let code = CudaCode::new(include_str!("cuda/sum_parts.cu")).with_type("T", dtype);
    CudaLaunch::elements(code, count, [from, to, CudaArg::size(count), CudaArg::size(parts)])
}
