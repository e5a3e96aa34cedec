//! Work over several GPUs: right results, and a race where a wait is missing.

use super::harness::{gpu, lab, peer_copy, threads, values};
use cudarc::driver::{CudaContext, DevicePtr, PushKernelArg, result, sys};
use turret_standin::Live;

pub const TEXT: &str = r#"
extern "C" __global__ void scale(float* y, const float* x, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
extern "C" __global__ void add(float* y, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i];
}
"#;

fn ring(gpus: usize, seed: u64, wait: bool) -> (Vec<f32>, u64, bool) {
    let Some(lab) = lab() else { return (Vec::new(), 0, true) };
    lab.standin.seed(seed);
    let n = 5000usize;
    let all: Vec<_> = (0..gpus).map(|i| gpu(i, TEXT)).collect();
    let x = values(n);
    let mut buffers: Vec<_> = all.iter().map(|g| g.put(&x)).collect();
    let mut spare: Vec<_> = all.iter().map(|g| g.stream.alloc_zeros::<f32>(n).unwrap()).collect();
    for (i, g) in all.iter().enumerate() {
        let factor = (i + 1) as f32;
        let (count, f) = (n as i32, g.function("scale"));
        let mut launch = g.stream.launch_builder(&f);
        launch.arg(&mut spare[i]).arg(&buffers[i]).arg(&factor).arg(&count);
        // SAFETY: the arguments are the kernel's.
        unsafe { launch.launch(threads(n)) }.unwrap();
    }
    let mut sound = true;
    for i in 0..gpus - 1 {
        let (from, to) = (&all[i], &all[i + 1]);
        if wait {
            let event = from.stream.record_event(None).unwrap();
            to.stream.wait(&event).unwrap();
        }
        sound &= peer_copy(from, to, &spare[i], &mut buffers[i + 1]);
        let (count, f) = (n as i32, to.function("add"));
        let mut launch = to.stream.launch_builder(&f);
        launch.arg(&mut spare[i + 1]).arg(&buffers[i + 1]).arg(&count);
        // SAFETY: the arguments are the kernel's.
        sound &= unsafe { launch.launch(threads(n)) }.is_ok();
    }
    let last = &all[gpus - 1];
    let out = last.stream.clone_dtoh(&spare[gpus - 1]).unwrap_or_default();
    sound &= last.stream.synchronize().is_ok();
    let races = lab.standin.race_count();
    lab.standin.reset();
    (out, races, sound)
}

#[test]
fn sums_travel_from_gpu_to_gpu() {
    for (gpus, seed) in [(2, 1), (2, 2), (4, 3), (4, 4)] {
        let (out, races, sound) = ring(gpus, seed, true);
        let factor = (gpus * (gpus + 1) / 2) as f32;
        assert!(sound && races == 0, "{races} races");
        for (o, x) in out.iter().zip(values(5000)) {
            assert!((o - factor * x).abs() <= 1e-4 * o.abs().max(1.0), "{o} and {factor} * {x}");
        }
    }
}

#[test]
fn a_missing_wait_is_a_race() {
    if lab().is_none() {
        return;
    }
    for seed in 1..4 {
        let (out, races, _) = ring(2, seed, false);
        assert!(races > 0);
        assert!(out.iter().any(|x| x.is_nan()) || out.is_empty(), "what was not waited for is not there");
    }
}

#[test]
fn parts_of_one_allocation_do_not_race() {
    let Some(lab) = lab() else { return };
    let a = gpu(0, TEXT);
    let other = a.context.new_stream().unwrap();
    let mut buffer = a.stream.alloc_zeros::<f32>(4096).unwrap();
    let x = a.put(&values(4096));
    a.stream.synchronize().unwrap();
    let f = a.function("scale");
    let n = 2048i32;
    for (stream, offset) in [(&a.stream, 0usize), (&other, 2048)] {
        let mut part = buffer.slice_mut(offset..offset + 2048);
        let mut launch = stream.launch_builder(&f);
        launch.arg(&mut part).arg(&x).arg(&2.0f32).arg(&n);
        // SAFETY: the arguments are the kernel's.
        unsafe { launch.launch(threads(2048)) }.unwrap();
    }
    a.stream.synchronize().unwrap();
    other.synchronize().unwrap();
    assert_eq!(lab.standin.races(), Vec::<String>::new());
    // One element more, and they do.
    for (stream, offset) in [(&a.stream, 0usize), (&other, 2047)] {
        let mut part = buffer.slice_mut(offset..offset + 2048);
        let mut launch = stream.launch_builder(&f);
        launch.arg(&mut part).arg(&x).arg(&2.0f32).arg(&n);
        // SAFETY: the arguments are the kernel's.
        unsafe { launch.launch(threads(2048)) }.unwrap();
    }
    let results = [a.stream.synchronize(), other.synchronize()];
    assert!(results.iter().any(Result::is_err));
    let races = lab.standin.races();
    assert!(races.len() == 1 && races[0].contains("4 bytes"), "{races:?}");
}

#[test]
fn a_pinned_copy_is_not_there_before_the_wait() {
    let Some(_lab) = lab() else { return };
    let a = gpu(0, TEXT);
    let x = a.put(&[1.0f32; 256]);
    // SAFETY: the memory is freed at the end, and read as floats.
    unsafe {
        let host = result::malloc_host(1024, 0).unwrap().cast::<f32>();
        a.context.bind_to_thread().unwrap();
        let address = x.device_ptr(&a.stream).0;
        let out = std::slice::from_raw_parts_mut(host, 256);
        result::memcpy_dtoh_async(out, address, a.stream.cu_stream()).unwrap();
        assert!(host.read().is_nan(), "an early look shows what was there before");
        a.stream.synchronize().unwrap();
        assert_eq!(host.read(), 1.0);
        result::free_host(host.cast()).unwrap();
    }
}

#[test]
fn peer_memory_is_out_of_reach_without_access() {
    let Some(lab) = lab() else { return };
    let (a, b) = (gpu(0, TEXT), gpu(1, TEXT));
    let n = 64usize;
    let x = b.put(&values(n));
    b.stream.synchronize().unwrap();
    let run = || {
        let (count, f) = (n as i32, a.function("scale"));
        let mut y = a.stream.alloc_zeros::<f32>(n).unwrap();
        let mut launch = a.stream.launch_builder(&f);
        launch.arg(&mut y).arg(&x).arg(&1.0f32).arg(&count);
        // SAFETY: the arguments are the kernel's.
        unsafe { launch.launch(threads(n)) }.unwrap();
        a.stream.clone_dtoh(&y)
    };
    assert_eq!(run().unwrap_err().0, sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    lab.standin.reset();
    let _kept = a.context.check_err();
    a.context.bind_to_thread().unwrap();
    // SAFETY: the context is alive.
    unsafe { sys::cuCtxEnablePeerAccess(b.context.cu_ctx(), 0) }.result().unwrap();
    assert_eq!(run().unwrap(), values(n));
}

#[test]
fn two_contexts_share_one_gpu() {
    let Some(lab) = lab() else { return };
    let (a, b) = (CudaContext::new(0).unwrap(), CudaContext::new_non_primary(0, 0).unwrap());
    assert_eq!(lab.standin.live(Live::Contexts, 0), 2);
    let (s, t) = (a.new_stream().unwrap(), b.new_stream().unwrap());
    let x = s.clone_htod(&[3.0f32; 10]).unwrap();
    s.synchronize().unwrap();
    let mut y = t.alloc_zeros::<f32>(10).unwrap();
    t.memcpy_dtod(&x, &mut y).unwrap();
    assert_eq!(t.clone_dtoh(&y).unwrap(), [3.0; 10]);
    assert_eq!(lab.standin.bytes("peer"), 40);
}

#[test]
fn nothing_is_left_alive() {
    let Some(lab) = lab() else { return };
    {
        let g = gpu(2, TEXT);
        let _x = g.put(&[1u8; 100]);
        assert!(lab.standin.live(Live::Allocations, 2) == 1 && lab.standin.live(Live::Streams, 2) == 1);
    }
    for kind in
        [Live::Allocations, Live::Streams, Live::Events, Live::Modules, Live::Contexts, Live::Bytes, Live::Pending]
    {
        assert_eq!(lab.standin.live(kind, 2), 0, "{kind:?}");
    }
}
