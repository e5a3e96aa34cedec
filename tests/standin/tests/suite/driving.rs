//! The driver's smaller rules: current contexts, the default stream, time, functions of the host, what capture forbids.

use super::harness::{Gpu, gpu, lab, threads, values};
use super::pipelines::TEXT;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, PushKernelArg, result, sys};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use sys::CUresult::*;

fn scale(g: &Gpu, stream: &Arc<CudaStream>, y: &mut CudaSlice<f32>, x: &CudaSlice<f32>, a: f32) {
    let (n, f) = (x.len() as i32, g.function("scale"));
    let mut launch = stream.launch_builder(&f);
    launch.arg(y).arg(x).arg(&a).arg(&n);
    // SAFETY: the arguments are the kernel's.
    unsafe { launch.launch(threads(x.len())) }.unwrap();
}

#[test]
fn a_kernel_wants_its_context_to_be_current() {
    let Some(_lab) = lab() else { return };
    let g = gpu(0, TEXT);
    let other = CudaContext::new(1).unwrap();
    let f = g.function("scale");
    let x = g.put(&values(8));
    let mut address = x.device_ptr(&g.stream).0;
    let (mut a, mut n) = (1.0f32, 8i32);
    let at = |p: *mut c_void| p;
    let mut arguments = [
        at((&raw mut address).cast()),
        at((&raw mut address).cast()),
        at((&raw mut a).cast()),
        at((&raw mut n).cast()),
    ];
    other.bind_to_thread().unwrap();
    let module = {
        g.context.bind_to_thread().unwrap();
        let image = cudarc::nvrtc::compile_ptx(TEXT).unwrap().to_src();
        let image = std::ffi::CString::new(image.trim_end_matches('\0')).unwrap();
        // SAFETY: the image is a module's.
        unsafe { result::module::load_data(image.as_ptr().cast()) }.unwrap()
    };
    // SAFETY: the arguments are the kernel's.
    unsafe {
        let raw = result::module::get_function(module, c"scale".to_owned()).unwrap();
        let mut launch = || result::launch_kernel(raw, (1, 1, 1), (8, 1, 1), 0, g.stream.cu_stream(), &mut arguments);
        launch().unwrap();
        other.bind_to_thread().unwrap();
        assert_eq!(launch().unwrap_err().0, CUDA_ERROR_INVALID_HANDLE);
        result::module::unload(module).unwrap();
    }
    drop(f);
    g.stream.synchronize().unwrap();
}

#[test]
fn the_default_stream_waits_for_blocking_streams() {
    let Some(lab) = lab() else { return };
    let g = gpu(0, TEXT);
    g.context.bind_to_thread().unwrap();
    let (x, mut y) = (g.put(&values(64)), g.stream.alloc_zeros::<f32>(64).unwrap());
    g.stream.synchronize().unwrap();
    // A copy on the default stream after a kernel on a stream that does not block: a race. On one that does: none.
    // SAFETY: the addresses and the stream are alive.
    unsafe {
        let blocking = result::stream::create(result::stream::StreamKind::Default).unwrap();
        let address = y.device_ptr(&g.stream).0;
        result::memset_d8_async(address, 0, 256, blocking).unwrap();
        let mut out = [1.0f32; 64];
        result::memcpy_dtoh_sync(&mut out, address).unwrap();
        assert_eq!((out, lab.standin.race_count()), ([0.0; 64], 0));
        result::stream::destroy(blocking).unwrap();
        lab.standin.races_fail(false);
        scale(&g, &g.stream, &mut y, &x, 1.0);
        result::memcpy_dtoh_sync(&mut out, address).unwrap();
        assert!(lab.standin.race_count() > 0);
    }
}

#[test]
fn time_is_kept_where_asked_for() {
    let Some(_lab) = lab() else { return };
    let g = gpu(0, TEXT);
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let (x, mut y) = (g.put(&values(4096)), g.stream.alloc_zeros::<f32>(4096).unwrap());
    let start = g.stream.record_event(timed).unwrap();
    scale(&g, &g.stream, &mut y, &x, 1.0);
    let end = g.stream.record_event(timed).unwrap();
    let mut asked = 0;
    while !end.is_complete() {
        asked += 1;
        assert!(asked < 1000, "a query comes to an end");
    }
    assert!(start.elapsed_ms(&end).unwrap() > 0.0);
    assert!(start.elapsed_ms(&g.stream.record_event(None).unwrap()).is_err());
}

static CALLED: AtomicU32 = AtomicU32::new(0);
extern "C" fn call(data: *mut c_void) {
    CALLED.fetch_add(data as u32, Ordering::Relaxed);
}

#[test]
fn functions_of_the_host_run_in_order() {
    let Some(_lab) = lab() else { return };
    let g = gpu(0, TEXT);
    g.context.bind_to_thread().unwrap();
    // SAFETY: the function takes a number.
    unsafe { sys::cuLaunchHostFunc(g.stream.cu_stream(), Some(call), 5 as *mut c_void) }.result().unwrap();
    assert_eq!(CALLED.load(Ordering::Relaxed), 0);
    g.stream.synchronize().unwrap();
    assert_eq!(CALLED.load(Ordering::Relaxed), 5);
}

#[test]
fn what_capture_forbids_breaks_it() {
    let Some(lab) = lab() else { return };
    let g = gpu(0, TEXT);
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    for (mode, allowed) in [
        (sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL, false),
        (sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false),
        (sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED, true),
    ] {
        g.stream.begin_capture(mode).unwrap();
        // SAFETY: the memory is freed where there is any.
        let memory = unsafe { result::malloc_sync(64) };
        assert_eq!(memory.is_ok(), allowed);
        assert_eq!(g.stream.end_capture(flags).is_ok(), allowed);
        if let Ok(at) = memory {
            // SAFETY: as above.
            unsafe { result::free_sync(at) }.unwrap();
        }
    }
    g.stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    assert_eq!(g.stream.alloc_zeros::<f32>(4).map(drop).unwrap_err().0, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert!(g.stream.end_capture(flags).is_err());
    assert!(lab.standin.said().iter().any(|s| s.contains("memory nodes")));
}

#[test]
fn memory_is_counted() {
    let Some(_lab) = lab() else { return };
    let g = gpu(3, TEXT);
    g.context.bind_to_thread().unwrap();
    let (free, total) = result::mem_get_info().unwrap();
    assert_eq!((free, total), (2 << 30, 2 << 30));
    let half = g.stream.alloc_zeros::<u8>(64 << 20).unwrap();
    assert_eq!(result::mem_get_info().unwrap().0, free - (64 << 20));
    // SAFETY: nothing is allocated.
    assert_eq!(unsafe { result::malloc_sync(2 << 30) }.unwrap_err().0, CUDA_ERROR_OUT_OF_MEMORY);
    drop(half);
    g.stream.synchronize().unwrap();
    assert_eq!(result::mem_get_info().unwrap().0, free);
}
