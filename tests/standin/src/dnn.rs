//! cuDNN: descriptors, algorithms to choose from, and convolutions by plain loops.
//!
//! As the library does, it offers algorithms that give other bits in every run, or that use TensorFloat-32, before the
//! one that a careful caller takes; the careless one gets wrong numbers. `TURRET_STANDIN_DNN=none` offers none at all.

use crate::blas::handle::blas;
use crate::codes::{Code, Failure};
use crate::queue::{Touch, Work};
use crate::state::{Held, State, call, current_handle, say};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard};

const NOT_INITIALIZED: c_int = 1001;
const BAD_PARAM: c_int = 2000;
const NOT_SUPPORTED: c_int = 3000;
const EXECUTION_FAILED: c_int = 5000;

/// The algorithms that are offered, in this order: `(number, deterministic, math type)`. The math types are
/// `CUDNN_TENSOR_OP_MATH` and `CUDNN_FMA_MATH`.
const OFFERED: [(c_int, c_int, c_int); 3] = [(2, 1, 1), (0, 0, 3), (1, 1, 3)];
/// The one that is computed rightly.
const RIGHT: c_int = 1;
/// Bytes of workspace that it wants, and writes.
const WORKSPACE: usize = 1000;

#[derive(Clone, Copy, Default)]
struct Handle {
    context: u64,
    stream: u64,
}

/// A descriptor of any kind.
#[derive(Clone, Copy, Debug)]
enum Object {
    Empty,
    /// Format, type, and sizes in the order batch, channels, height, width.
    Tensor(c_int, c_int, [c_int; 4]),
    /// The same for filters: filters, channels, height, width.
    Filter(c_int, c_int, [c_int; 4]),
    Convolution(Geometry),
}

/// Padding, strides and dilations of height and width, groups, and the math type.
#[derive(Clone, Copy, Default, Debug)]
struct Geometry {
    pads: [c_int; 2],
    strides: [c_int; 2],
    dilations: [c_int; 2],
    groups: c_int,
    math: c_int,
}

#[derive(Default)]
struct Known {
    handles: BTreeMap<u64, Handle>,
    objects: BTreeMap<u64, Object>,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

fn known<R>(ask: impl FnOnce(&mut Known) -> R) -> R {
    let mut known: MutexGuard<'_, Option<Known>> = KNOWN.lock().unwrap_or_else(|e| e.into_inner());
    ask(known.get_or_insert_default())
}

fn scalar_error(code: Code) -> c_int {
    code
}

fn create(s: &mut Held, out: *mut u64) -> Result<(), Code> {
    let id = s.id();
    known(|k| k.objects.insert(id, Object::Empty));
    // SAFETY: the caller's pointer is to a handle.
    unsafe { out.write(id) };
    Ok(())
}

fn destroy(id: u64) -> Result<(), Code> {
    known(|k| k.objects.remove(&id)).map(drop).ok_or(BAD_PARAM)
}

fn set(id: u64, value: Object) -> Result<(), Code> {
    known(|k| k.objects.get_mut(&id).map(|o| *o = value)).ok_or(BAD_PARAM)
}

fn geometry(id: u64, change: impl FnOnce(&mut Geometry)) -> Result<(), Code> {
    known(|k| match k.objects.get_mut(&id) {
        Some(Object::Convolution(g)) => {
            change(g);
            Ok(())
        }
        _ => Err(BAD_PARAM),
    })
}

/// A convolution whose descriptors meet.
#[derive(Clone, Copy, Debug)]
struct Convolution {
    image: [usize; 4],
    filter: [usize; 4],
    output: [usize; 4],
    channels_last: bool,
    double: bool,
    geometry: Geometry,
}

impl Convolution {
    fn find(image: u64, filter: u64, conv: u64, output: u64) -> Result<Convolution, Code> {
        let object = |id: u64| known(|k| k.objects.get(&id).copied()).ok_or(BAD_PARAM);
        let refuse = |what: String| {
            say(&format!("cuDNN: {what}"));
            Err(BAD_PARAM)
        };
        let (
            Object::Tensor(fx, tx, x),
            Object::Filter(fw, tw, w),
            Object::Tensor(fy, ty, y),
            Object::Convolution(geometry),
        ) = (object(image)?, object(filter)?, object(output)?, object(conv)?)
        else {
            return refuse("a descriptor is of another kind, or was not set".into());
        };
        if fx != fw || fx != fy || tx != tw || tx != ty || tx > 1 || fx > 1 {
            return refuse(format!("formats {fx}, {fw}, {fy} and types {tx}, {tw}, {ty} do not go together"));
        }
        let all = [x, w, y].map(|sizes| sizes.map(|n| n.max(0) as usize));
        let [image, filter, output] = all;
        for axis in 0..2 {
            let reach = image[2 + axis] as i64 + 2 * i64::from(geometry.pads[axis]);
            let window = (filter[2 + axis] as i64 - 1) * i64::from(geometry.dilations[axis]) + 1;
            let places = (reach - window).div_euclid(i64::from(geometry.strides[axis].max(1))) + 1;
            if places != output[2 + axis] as i64 {
                return refuse(format!("axis {axis} has {places} places, the output descriptor says {output:?}"));
            }
        }
        let groups = geometry.groups as usize;
        if groups == 0
            || image[0] != output[0]
            || image[1] != filter[1] * groups
            || filter[0] != output[1]
            || filter[0] % groups != 0
        {
            return refuse(format!("{image:?} by {filter:?} in {groups} groups does not give {output:?}"));
        }
        Ok(Convolution { image, filter, output, channels_last: fx == 1, double: tx == 1, geometry })
    }

    fn at(&self, sizes: [usize; 4], [n, c, y, x]: [usize; 4]) -> usize {
        let [_, channels, height, width] = sizes;
        match self.channels_last {
            true => ((n * height + y) * width + x) * channels + c,
            false => ((n * channels + c) * height + y) * width + x,
        }
    }

    /// Calls for every product: the places in image, filter and output.
    fn each(&self, mut product: impl FnMut(usize, usize, usize)) {
        let ([batch, _, height, width], [filters, depth, rows, columns]) = (self.image, self.filter);
        let (g, per_group) = (&self.geometry, filters / self.geometry.groups as usize);
        for n in 0..batch {
            for k in 0..filters {
                for y in 0..self.output[2] {
                    for x in 0..self.output[3] {
                        for r in 0..rows {
                            for s in 0..columns {
                                let place = |at: usize, tap: usize, axis: usize, size: usize| {
                                    let at = at as i64 * i64::from(g.strides[axis]) - i64::from(g.pads[axis])
                                        + tap as i64 * i64::from(g.dilations[axis]);
                                    usize::try_from(at).ok().filter(|at| *at < size)
                                };
                                let Some((iy, ix)) = place(y, r, 0, height).zip(place(x, s, 1, width)) else {
                                    continue;
                                };
                                for c in 0..depth {
                                    let channel = k / per_group * depth + c;
                                    product(
                                        self.at(self.image, [n, channel, iy, ix]),
                                        self.at(self.filter, [k, c, r, s]),
                                        self.at(self.output, [n, k, y, x]),
                                    );
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Which of image, filter and output is computed, and where they are.
#[derive(Clone, Copy)]
struct Call {
    conv: Convolution,
    result: usize,
    at: [u64; 3],
    workspace: u64,
}

impl Call {
    fn run<T: Copy + Into<f64>>(
        &self,
        state: &State,
        touch: &mut Touch,
        narrow: impl Fn(f64) -> T,
    ) -> Result<(), Failure> {
        let sizes = [self.conv.image, self.conv.filter, self.conv.output].map(|s| s.iter().product::<usize>());
        // The workspace is written, so that a caller who gives it to two at once is found out.
        let workspace = touch.reach(state, self.workspace, WORKSPACE, true)?;
        // SAFETY: the range was checked.
        unsafe { workspace.write_bytes(0xEE, WORKSPACE) };
        let mut at = [std::ptr::null_mut::<T>(); 3];
        for i in 0..3 {
            at[i] = touch.reach(state, self.at[i], sizes[i] * size_of::<T>(), i == self.result)?.cast();
        }
        let mut sums = vec![0f64; sizes[self.result]];
        self.conv.each(|x, w, y| {
            let places = [x, w, y];
            let [a, b] = [(self.result + 1) % 3, (self.result + 2) % 3];
            // SAFETY: the ranges were checked, and the places are within the sizes.
            let (a, b) = unsafe { ((*at[a].add(places[a])).into(), (*at[b].add(places[b])).into()) };
            sums[places[self.result]] += a * b;
        });
        for (i, sum) in sums.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { at[self.result].add(i).write(narrow(sum)) };
        }
        Ok(())
    }
}

/// `cudnnConvolution…AlgoPerf_t`.
#[repr(C)]
pub struct Perf {
    algorithm: c_int,
    status: c_int,
    time: f32,
    memory: usize,
    determinism: c_int,
    math: c_int,
    reserved: [c_int; 3],
}

fn offer(conv: Result<Convolution, Code>, wanted: c_int, count: *mut c_int, out: *mut Perf) -> Result<(), Code> {
    conv?;
    let none = std::env::var("TURRET_STANDIN_DNN").is_ok_and(|v| v == "none");
    let offered = if none { &[][..] } else { &OFFERED[..OFFERED.len().min(wanted.max(0) as usize)] };
    for (i, &(algorithm, determinism, math)) in offered.iter().enumerate() {
        let perf = Perf { algorithm, status: 0, time: 1.0, memory: WORKSPACE, determinism, math, reserved: [0; 3] };
        // SAFETY: the caller has room for as many as were wanted.
        unsafe { out.add(i).write(perf) };
    }
    // SAFETY: the caller's pointer is to an integer.
    unsafe { count.write(offered.len() as c_int) };
    Ok(())
}

fn enqueue(
    s: &mut Held,
    handle: u64,
    name: &str,
    conv: Result<Convolution, Code>,
    result: usize,
    at: [u64; 3],
    (algorithm, workspace, bytes): (c_int, u64, usize),
) -> Result<(), Code> {
    let conv = conv?;
    let h = known(|k| k.handles.get(&handle).copied()).ok_or(NOT_INITIALIZED)?;
    if current_handle() != h.context {
        say(&format!("{name}: the context of the handle is not current"));
        return Err(EXECUTION_FAILED);
    }
    if algorithm != RIGHT {
        say(&format!("{name}: algorithm {algorithm} gives other bits in every run, or uses TensorFloat-32"));
        return Err(NOT_SUPPORTED);
    }
    if conv.geometry.math != 3 {
        say(&format!("{name}: math type {} allows TensorFloat-32", conv.geometry.math));
    }
    if bytes < WORKSPACE || workspace == 0 || s.space.range(workspace, bytes).is_err() {
        say(&format!(
            "{name}: the workspace of {bytes} bytes at {workspace:#x} is no live memory of {WORKSPACE} bytes"
        ));
        return Err(BAD_PARAM);
    }
    let stream = s.stream(h.stream).map_err(|_| EXECUTION_FAILED)?;
    if s.faults.launch("convolution") {
        say(&format!("{name}: refused by the fault that was asked for"));
        return Err(EXECUTION_FAILED);
    }
    let call = Call { conv, result, at, workspace };
    let work = match conv.double {
        true => Work::Run(Arc::new(move |state: &mut State, touch: &mut Touch| call.run::<f64>(state, touch, |v| v))),
        false => {
            Work::Run(Arc::new(move |state: &mut State, touch: &mut Touch| call.run::<f32>(state, touch, |v| v as f32)))
        }
    };
    s.enqueue(stream, name, work).map(drop).map_err(|_| EXECUTION_FAILED)
}

blas! {
    fn cudnnCreate(out: *mut u64) |s| {
        let (context, _) = s.current().map_err(|_| NOT_INITIALIZED)?;
        let id = s.id();
        known(|k| k.handles.insert(id, Handle { context, stream: 0 }));
        *out = id;
        Ok(())
    }
    fn cudnnDestroy(handle: u64) |_s| { known(|k| k.handles.remove(&handle)).map(drop).ok_or(NOT_INITIALIZED) }
    fn cudnnSetStream(handle: u64, stream: u64) |_s| {
        known(|k| k.handles.get_mut(&handle).map(|h| h.stream = stream)).ok_or(NOT_INITIALIZED)
    }
    fn cudnnCreateTensorDescriptor(out: *mut u64) |s| { create(s, out) }
    fn cudnnDestroyTensorDescriptor(id: u64) |_s| { destroy(id) }
    fn cudnnSetTensor4dDescriptor(id: u64, format: c_int, kind: c_int, n: c_int, c: c_int, h: c_int, w: c_int) |_s| {
        set(id, Object::Tensor(format, kind, [n, c, h, w]))
    }
    fn cudnnCreateFilterDescriptor(out: *mut u64) |s| { create(s, out) }
    fn cudnnDestroyFilterDescriptor(id: u64) |_s| { destroy(id) }
    fn cudnnSetFilter4dDescriptor(id: u64, kind: c_int, format: c_int, k: c_int, c: c_int, h: c_int, w: c_int) |_s| {
        set(id, Object::Filter(format, kind, [k, c, h, w]))
    }
    fn cudnnCreateConvolutionDescriptor(out: *mut u64) |s| { create(s, out) }
    fn cudnnDestroyConvolutionDescriptor(id: u64) |_s| { destroy(id) }
    fn cudnnSetConvolution2dDescriptor(id: u64, ph: c_int, pw: c_int, u: c_int, v: c_int, dh: c_int, dw: c_int, mode: c_int, kind: c_int) |_s| {
        if mode != 1 || kind > 1 {
            say(&format!("cudnnSetConvolution2dDescriptor: mode {mode}, type {kind}; only cross-correlations of float and double are stood in for"));
            return Err(NOT_SUPPORTED);
        }
        set(id, Object::Convolution(Geometry { pads: [ph, pw], strides: [u, v], dilations: [dh, dw], groups: 1, math: 0 }))
    }
    fn cudnnSetConvolutionGroupCount(id: u64, groups: c_int) |_s| { geometry(id, |g| g.groups = groups) }
    fn cudnnSetConvolutionMathType(id: u64, math: c_int) |_s| { geometry(id, |g| g.math = math) }
    fn cudnnGetConvolutionForwardAlgorithm_v7(_handle: u64, x: u64, w: u64, conv: u64, y: u64, wanted: c_int, count: *mut c_int, out: *mut Perf) |_s| {
        offer(Convolution::find(x, w, conv, y), wanted, count, out)
    }
    fn cudnnGetConvolutionBackwardDataAlgorithm_v7(_handle: u64, w: u64, dy: u64, conv: u64, dx: u64, wanted: c_int, count: *mut c_int, out: *mut Perf) |_s| {
        offer(Convolution::find(dx, w, conv, dy), wanted, count, out)
    }
    fn cudnnGetConvolutionBackwardFilterAlgorithm_v7(_handle: u64, x: u64, dy: u64, conv: u64, dw: u64, wanted: c_int, count: *mut c_int, out: *mut Perf) |_s| {
        offer(Convolution::find(x, dw, conv, dy), wanted, count, out)
    }
    fn cudnnConvolutionForward(handle: u64, _alpha: *const c_void, xd: u64, x: u64, wd: u64, w: u64, conv: u64, algorithm: c_int, workspace: u64, bytes: usize, _beta: *const c_void, yd: u64, y: u64) |s| {
        enqueue(s, handle, "convolution", Convolution::find(xd, wd, conv, yd), 2, [x, w, y], (algorithm, workspace, bytes))
    }
    fn cudnnConvolutionBackwardData(handle: u64, _alpha: *const c_void, wd: u64, w: u64, dyd: u64, dy: u64, conv: u64, algorithm: c_int, workspace: u64, bytes: usize, _beta: *const c_void, dxd: u64, dx: u64) |s| {
        enqueue(s, handle, "convolution-image", Convolution::find(dxd, wd, conv, dyd), 0, [dx, w, dy], (algorithm, workspace, bytes))
    }
    fn cudnnConvolutionBackwardFilter(handle: u64, _alpha: *const c_void, xd: u64, x: u64, dyd: u64, dy: u64, conv: u64, algorithm: c_int, workspace: u64, bytes: usize, _beta: *const c_void, dwd: u64, dw: u64) |s| {
        enqueue(s, handle, "convolution-filter", Convolution::find(xd, dwd, conv, dyd), 1, [x, dw, dy], (algorithm, workspace, bytes))
    }
}

/// `cudnnGetVersion`.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetVersion() -> usize {
    90_201
}
