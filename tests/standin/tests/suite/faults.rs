//! Every fault that can be asked for strikes as it says, and nothing else does.

use super::harness::{Gpu, gpu, lab, peer_copy, threads, values};
use super::pipelines::TEXT;
use cudarc::driver::{CudaContext, CudaSlice, DriverError, PushKernelArg, result, sys};
use cudarc::nvrtc::compile_ptx;
use sys::CUresult::*;

fn scale(g: &Gpu, y: &mut CudaSlice<f32>, x: &CudaSlice<f32>) -> Result<(), DriverError> {
    let (n, f) = (x.len() as i32, g.function("scale"));
    let mut launch = g.stream.launch_builder(&f);
    launch.arg(y).arg(x).arg(&2.0f32).arg(&n);
    // SAFETY: the arguments are the kernel's.
    unsafe { launch.launch(threads(x.len())) }.map(drop)
}

#[test]
fn memory_runs_out_when_asked_to() {
    let Some(lab) = lab() else { return };
    let g = gpu(0, TEXT);
    lab.standin.fault("alloc:2").unwrap();
    assert!(g.stream.alloc_zeros::<f32>(10).is_ok());
    assert_eq!(g.stream.alloc_zeros::<f32>(10).unwrap_err().0, CUDA_ERROR_OUT_OF_MEMORY);
    assert!(g.stream.alloc_zeros::<f32>(10).is_ok());
    lab.standin.fault("alloc>1000").unwrap();
    assert!(g.stream.alloc_zeros::<u8>(1000).is_ok());
    assert!(g.stream.alloc_zeros::<u8>(1001).is_err());
    lab.standin.fault("hostalloc,register").unwrap();
    g.context.bind_to_thread().unwrap();
    let mut own = [0u8; 64];
    // SAFETY: the memory is the test's.
    unsafe {
        assert_eq!(result::malloc_host(16, 0).unwrap_err().0, CUDA_ERROR_OUT_OF_MEMORY);
        assert!(sys::cuMemHostRegister_v2(own.as_mut_ptr().cast(), 64, 0).result().is_err());
        lab.standin.fault("").unwrap();
        result::free_host(result::malloc_host(16, 0).unwrap()).unwrap();
    }
    assert!(lab.standin.fault("nonsense").is_err());
}

#[test]
fn launches_are_refused_and_kernels_fail() {
    let Some(lab) = lab() else { return };
    let g = gpu(0, TEXT);
    let (x, mut y) = (g.put(&values(64)), g.stream.alloc_zeros::<f32>(64).unwrap());
    lab.standin.fault("launch:add:1,launch:scale:2").unwrap();
    scale(&g, &mut y, &x).unwrap();
    assert_eq!(scale(&g, &mut y, &x).unwrap_err().0, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    scale(&g, &mut y, &x).unwrap();
    g.stream.synchronize().unwrap();
    lab.standin.fault("async:2").unwrap();
    scale(&g, &mut y, &x).unwrap();
    scale(&g, &mut y, &x).unwrap();
    assert_eq!(g.stream.synchronize().unwrap_err().0, CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(g.stream.synchronize().unwrap_err().0, CUDA_ERROR_ILLEGAL_ADDRESS);
    lab.standin.reset();
    g.stream.synchronize().unwrap();
    // A graph's launch, and its instance.
    g.stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    scale(&g, &mut y, &x).unwrap();
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = g.stream.end_capture(flags).unwrap().unwrap();
    lab.standin.fault("launch:1").unwrap();
    assert_eq!(graph.launch().unwrap_err().0, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    graph.launch().unwrap();
    lab.standin.fault("graph").unwrap();
    g.stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    scale(&g, &mut y, &x).unwrap();
    assert!(g.stream.end_capture(flags).is_err());
    lab.standin.fault("nvrtc").unwrap();
    assert!(compile_ptx(TEXT).is_err());
}

#[test]
fn copies_turn_bytes_over() {
    let Some(lab) = lab() else { return };
    let (a, b) = (gpu(0, TEXT), gpu(1, TEXT));
    let (x, mut y) = (a.put(&values(64)), b.put(&[0.0f32; 64]));
    a.stream.synchronize().unwrap();
    for (fault, same) in [("", true), ("corrupt:peer", false), ("corrupt:peer:0>1", false), ("corrupt:peer:1>0", true)]
    {
        lab.standin.fault(fault).unwrap();
        assert!(peer_copy(&a, &b, &x, &mut y));
        assert_eq!(b.stream.clone_dtoh(&y).unwrap() == values(64), same, "{fault}");
    }
    lab.standin.fault("corrupt:2").unwrap();
    assert!(a.stream.clone_dtoh(&x).unwrap() == values(64));
    assert!(a.stream.clone_dtoh(&x).unwrap() != values(64));
    assert!(a.stream.clone_dtoh(&x).unwrap() == values(64));
}

#[test]
fn a_gpu_is_lost() {
    let Some(lab) = lab() else { return };
    let (a, b) = (gpu(0, TEXT), gpu(1, TEXT));
    lab.standin.fault("lost:1:3").unwrap();
    let x = b.put(&[1.0f32; 4]);
    assert_eq!(b.stream.clone_dtoh(&x).map(drop).unwrap_err().0, CUDA_ERROR_DEVICE_UNAVAILABLE);
    assert_eq!(b.stream.synchronize().unwrap_err().0, CUDA_ERROR_DEVICE_UNAVAILABLE);
    assert_eq!(CudaContext::new(1).map(drop).unwrap_err().0, CUDA_ERROR_DEVICE_UNAVAILABLE);
    a.stream.synchronize().unwrap();
    lab.standin.heal();
    let _kept = b.context.check_err();
    b.stream.synchronize().unwrap();
}

#[test]
fn memory_in_use_is_not_to_be_freed() {
    let Some(lab) = lab() else { return };
    let g = gpu(0, TEXT);
    let x = g.put(&values(64));
    g.context.bind_to_thread().unwrap();
    // SAFETY: the address is freed once, here.
    unsafe {
        let y = result::malloc_sync(256).unwrap();
        let (n, f) = (64i32, g.function("scale"));
        let mut launch = g.stream.launch_builder(&f);
        launch.arg(&y).arg(&x).arg(&2.0f32).arg(&n);
        launch.launch(threads(64)).unwrap();
        result::free_sync(y).unwrap();
        assert!(lab.standin.races().iter().any(|r| r.contains("freeing memory")), "{:?}", lab.standin.races());
        assert_eq!(result::free_sync(y).unwrap_err().0, CUDA_ERROR_INVALID_VALUE);
    }
}
