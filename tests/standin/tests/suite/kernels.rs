//! Kernels: what CUDA C they may use, how threads of a block meet, and what they may not touch.

use super::harness::{Gpu, Lab, gpu, lab, threads, values};
use cudarc::driver::{
    CudaFunction, CudaSlice, DevicePtr, DeviceRepr, DriverError, LaunchConfig, PushKernelArg, result, sys,
};
use cudarc::nvrtc::{CompileError, compile_ptx};

fn shape(grid: u32, block: u32, shared: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (grid, 1, 1), block_dim: (block, 1, 1), shared_mem_bytes: shared }
}

/// Runs a kernel of one input and one output.
fn apply<T: DeviceRepr, U: DeviceRepr + cudarc::driver::ValidAsZeroBits + Clone>(
    g: &Gpu,
    name: &str,
    x: &[T],
    n: usize,
    shape: LaunchConfig,
) -> Result<Vec<U>, DriverError> {
    let f = g.function(name);
    let x = g.put(x);
    let mut y = g.stream.alloc_zeros::<U>(n)?;
    let count = n as i32;
    let mut launch = g.stream.launch_builder(&f);
    launch.arg(&mut y).arg(&x).arg(&count);
    // SAFETY: the arguments are the kernel's.
    unsafe { launch.launch(shape) }?;
    g.stream.clone_dtoh(&y)
}

const SUMS: &str = r#"
__device__ float warp_sum(float v) {
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffffu, v, d);
    return v;
}
namespace rows {
extern "C" __global__ void __launch_bounds__(256) row_sum(float* y, const float* __restrict__ x, int n) {
    __shared__ float part[32];
    int row = blockIdx.x;
    float v = 0.0f;
    for (int i = threadIdx.x; i < 1000; i += blockDim.x) v += x[row * 1000 + i];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = warp_sum(threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.0f);
        if (threadIdx.x == 0) y[row] = v;
    }
}
}
extern "C" __global__ void turned(float* y, const float* x, int n) {
    extern __shared__ float tile[];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void votes(unsigned* y, const int* x, int n) {
    unsigned ballot = __ballot_sync(0xffffffffu, x[threadIdx.x] > 0);
    int any = __any_sync(0xffffffffu, x[threadIdx.x] > 5), all = __all_sync(0xffffffffu, x[threadIdx.x] >= 0);
    int other = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1), first = __shfl_sync(0xffffffffu, x[threadIdx.x], 3);
    int up = __shfl_up_sync(0xffffffffu, x[threadIdx.x], 2);
    y[threadIdx.x] = (ballot ^ (any << 1) ^ all) + other * 1000 + first * 100 + up * 7;
}
extern "C" __global__ void count(int* y, const int* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&y[x[i] & 3], 1);
    atomicMax(&y[4], x[i]);
    atomicMin(&y[5], -x[i]);
    atomicCAS(&y[6], 0, 17);
}
"#;

#[test]
fn threads_of_a_block_meet() {
    let Some(lab) = lab() else { return };
    let g = gpu(0, SUMS);
    for seed in 1..4 {
        lab.standin.seed(seed);
        let x = values(8000);
        let sums: Vec<f32> = apply(&g, "row_sum", &x, 8, shape(8, 256, 0)).unwrap();
        for (row, sum) in sums.iter().enumerate() {
            let want: f32 = x[row * 1000..][..1000].iter().sum();
            assert!((sum - want).abs() < 0.05, "{sum} and {want}");
        }
        let turned: Vec<f32> = apply(&g, "turned", &x[..512], 512, shape(1, 512, 2048)).unwrap();
        assert!(turned.iter().eq(x[..512].iter().rev()));
        let x: Vec<i32> = (0..32).collect();
        let votes: Vec<u32> = apply(&g, "votes", &x, 32, shape(1, 32, 0)).unwrap();
        for (i, v) in votes.iter().enumerate() {
            let up = if i >= 2 { i - 2 } else { i } as u32;
            assert_eq!(*v, (0xffff_fffeu32 ^ 2 ^ 1).wrapping_add((i as u32 ^ 1) * 1000 + 300 + up * 7));
        }
        let counts: Vec<i32> = apply(&g, "count", &(0..256).collect::<Vec<i32>>(), 8, shape(4, 64, 0)).unwrap();
        assert_eq!(counts, [64, 64, 64, 64, 255, -255, 17, 0]);
    }
    assert_eq!(lab.standin.races(), Vec::<String>::new());
}

const WRONG: &str = r#"
extern "C" __global__ void half_barrier(float* y, const float* x, int n) {
    if (threadIdx.x < 8) return;
    __syncthreads();
    y[threadIdx.x] = x[threadIdx.x];
}
extern "C" __global__ void half_warp(float* y, const float* x, int n) {
    if (threadIdx.x < 8) y[threadIdx.x] = __shfl_down_sync(0xffffffffu, x[threadIdx.x], 1);
}
extern "C" __global__ void beyond(float* y, const float* x, int n) { y[threadIdx.x] = x[0]; }
extern "C" __global__ void before(float* y, const float* x, int n) { y[0] = x[-1 - (int)threadIdx.x]; }
extern "C" __global__ void nowhere(float* y, const float* x, int n) { *(float*)(size_t)(threadIdx.x * 4) = x[0]; }
extern "C" __global__ void skewed(float* y, const float* x, int n) { *(float*)((char*)y + 1) = x[0]; }
extern "C" __global__ void divide(int* y, const int* x, int n) { y[0] = x[0] / x[1]; }
extern "C" __global__ void deep(float* y, const float* x, int n) { volatile float a[400000]; a[threadIdx.x] = x[0]; y[0] = a[n]; }
"#;

#[test]
fn what_a_kernel_may_not_do_fails_its_context() {
    use sys::CUresult::*;
    let Some(lab) = lab() else { return };
    let cases = [
        ("half_barrier", CUDA_ERROR_LAUNCH_FAILED, "divergent barrier"),
        ("half_warp", CUDA_ERROR_LAUNCH_FAILED, "warp"),
        ("beyond", CUDA_ERROR_ILLEGAL_ADDRESS, "no live allocation"),
        ("before", CUDA_ERROR_ILLEGAL_ADDRESS, "no live allocation"),
        ("nowhere", CUDA_ERROR_ILLEGAL_ADDRESS, "nowhere"),
        ("skewed", CUDA_ERROR_MISALIGNED_ADDRESS, "not a multiple of 4"),
        ("divide", CUDA_ERROR_LAUNCH_FAILED, "divides"),
        ("deep", CUDA_ERROR_ILLEGAL_ADDRESS, "nowhere"),
    ];
    for (name, code, why) in cases {
        let g = gpu(1, WRONG);
        let error = apply::<f32, f32>(&g, name, &[0.0; 16], 16, shape(1, 64, 0)).unwrap_err();
        let said = lab.standin.said();
        assert_eq!(error.0, code, "{name}: {said:?}");
        assert!(said.iter().any(|s| s.contains(why) && s.contains(name)), "{name}: {said:?}");
        // The error stays until it is cleared, and then all is well again.
        assert!(g.stream.synchronize().is_err());
        lab.standin.reset();
        let _kept = g.context.check_err();
        let _kept = g.stream.synchronize();
    }
}

fn refused(
    g: &Gpu,
    f: &CudaFunction,
    y: &mut CudaSlice<f32>,
    x: &CudaSlice<f32>,
    shape: LaunchConfig,
) -> sys::CUresult {
    let mut launch = g.stream.launch_builder(f);
    launch.arg(y).arg(x).arg(&1i32);
    // SAFETY: the arguments are the kernel's.
    unsafe { launch.launch(shape) }.map_or_else(|e| e.0, |_| sys::CUresult::CUDA_SUCCESS)
}

#[test]
fn limits_of_a_launch_are_kept() {
    use sys::CUresult::*;
    let Some(_lab) = lab() else { return };
    let g = gpu(0, SUMS);
    let f = g.function("turned");
    let (mut y, x) = (g.put(&[0.0f32; 2000]), g.put(&[0.0f32; 2000]));
    assert_eq!(refused(&g, &f, &mut y, &x, shape(0, 32, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(refused(&g, &f, &mut y, &x, shape(1, 2048, 0)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(refused(&g, &f, &mut y, &x, shape(1, 32, 100 << 10)), CUDA_ERROR_INVALID_VALUE);
    f.set_attribute(sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 << 10).unwrap();
    assert_eq!(refused(&g, &f, &mut y, &x, shape(1, 32, 100 << 10)), CUDA_SUCCESS);
    assert!(
        f.set_attribute(sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 300 << 10).is_err()
    );
    assert!(g.module.load_function("missing").is_err());
    g.stream.synchronize().unwrap();
}

const POINTERS: &str = r#"
struct Table { float* to[4]; const float* from[4]; int n; };
extern "C" __global__ void by_value(Table t) {
    for (int k = 0; k < t.n; k++) t.to[k][threadIdx.x] = t.from[k][threadIdx.x] + k;
}
extern "C" __global__ void in_memory(float* const* to, const unsigned long long* from, int n) {
    for (int k = 0; k < n; k++) {
        const float* x = (const float*)from[k];
        to[k][threadIdx.x] = x[threadIdx.x] * 2.0f;
    }
}
extern "C" __global__ void wide(float4* y, const float4* x, int n) {
    int i = threadIdx.x;
    float4 v = x[i];
    y[i] = make_float4(v.w, v.z, v.y, v.x);
}
"#;

#[repr(C)]
#[derive(Clone, Copy)]
struct Table {
    to: [u64; 4],
    from: [u64; 4],
    n: i32,
}
// SAFETY: plain numbers.
unsafe impl DeviceRepr for Table {}

#[test]
fn pointers_may_stand_in_structures_and_in_memory() {
    let Some(lab) = lab() else { return };
    let g = gpu(0, POINTERS);
    let from: Vec<_> = (0..4).map(|i| g.put(&[i as f32; 32])).collect();
    let to: Vec<_> = (0..4).map(|_| g.put(&[0.0f32; 32])).collect();
    let address = |s: &CudaSlice<f32>| s.device_ptr(&g.stream).0;
    let ends: Vec<u64> = to.iter().map(address).collect();
    let starts: Vec<u64> = from.iter().map(address).collect();
    let table = Table { to: ends[..].try_into().unwrap(), from: starts[..].try_into().unwrap(), n: 4 };
    let f = g.function("by_value");
    let mut launch = g.stream.launch_builder(&f);
    launch.arg(&table);
    // SAFETY: the argument is the kernel's.
    unsafe { launch.launch(shape(1, 32, 0)) }.unwrap();
    assert_eq!(g.stream.clone_dtoh(&to[3]).unwrap(), [6.0; 32]);
    let (ends, starts) = (g.put(&ends), g.put(&starts));
    let f = g.function("in_memory");
    let mut launch = g.stream.launch_builder(&f);
    launch.arg(&ends).arg(&starts).arg(&4i32);
    // SAFETY: the arguments are the kernel's.
    unsafe { launch.launch(shape(1, 32, 0)) }.unwrap();
    assert_eq!(g.stream.clone_dtoh(&to[3]).unwrap(), [6.0; 32]);
    assert_eq!(g.stream.clone_dtoh(&to[1]).unwrap(), [2.0; 32]);
    assert_eq!(lab.standin.races(), Vec::<String>::new());
    let wide: Vec<f32> = {
        let (x, mut y) = (g.put(&values(64)), g.put(&[0.0f32; 64]));
        let f = g.function("wide");
        let mut launch = g.stream.launch_builder(&f);
        launch.arg(&mut y).arg(&x).arg(&16i32);
        // SAFETY: the arguments are the kernel's.
        unsafe { launch.launch(shape(1, 16, 0)) }.unwrap();
        g.stream.clone_dtoh(&y).unwrap()
    };
    assert_eq!(wide[..4], [values(64)[3], values(64)[2], values(64)[1], values(64)[0]]);
}

#[test]
fn kernels_reach_pinned_and_registered_memory() {
    let Some(_lab) = lab() else { return };
    let g = gpu(0, super::pipelines::TEXT);
    let f = g.function("scale");
    let mut registered = vec![1.0f32; 256];
    // SAFETY: the memory outlives the work, which is waited for.
    unsafe {
        g.context.bind_to_thread().unwrap();
        let pinned = result::malloc_host(1024, 0).unwrap().cast::<f32>();
        std::slice::from_raw_parts_mut(pinned, 256).fill(5.0);
        let at = registered.as_mut_ptr();
        let go = |y: u64, x: u64| {
            let mut launch = g.stream.launch_builder(&f);
            launch.arg(&y).arg(&x).arg(&2.0f32).arg(&256i32);
            launch.launch(threads(256)).unwrap();
            g.stream.synchronize()
        };
        sys::cuMemHostRegister_v2(at.cast(), 1024, 0).result().unwrap();
        go(at as u64, pinned as u64).unwrap();
        sys::cuMemHostUnregister(at.cast()).result().unwrap();
        assert_eq!(at.read_volatile(), 10.0);
        assert!(go(at as u64, pinned as u64).is_err(), "pageable memory is out of reach");
        result::free_host(pinned.cast()).unwrap();
    }
}

fn volatile_race(lab: &Lab, text: &str) -> u64 {
    let g = gpu(0, text);
    let other = g.context.new_stream().unwrap();
    let flag = g.put(&[0i32; 32]);
    g.stream.synchronize().unwrap();
    lab.standin.races_fail(false);
    for (stream, name) in [(&g.stream, "post"), (&other, "look")] {
        let (f, n) = (g.function(name), 0i32);
        let mut launch = stream.launch_builder(&f);
        launch.arg(&flag).arg(&n);
        // SAFETY: the arguments are the kernels'.
        unsafe { launch.launch(shape(1, 32, 0)) }.unwrap();
    }
    lab.standin.race_count()
}

#[test]
fn volatile_accesses_do_not_race_with_each_other() {
    let Some(lab) = lab() else { return };
    let soft = "extern \"C\" __global__ void post(volatile int* f, int n) { f[threadIdx.x] = 1; }
        extern \"C\" __global__ void look(volatile int* f, int n) { if (f[threadIdx.x] == 2) f[0] = 3; }";
    assert_eq!(volatile_race(&lab, soft), 0);
    lab.standin.reset();
    assert!(volatile_race(&lab, &soft.replacen("volatile ", "", 1)) > 0);
}

#[test]
fn a_wrong_text_gives_the_compilers_log() {
    let Some(_lab) = lab() else { return };
    let error = compile_ptx("extern \"C\" __global__ void f(float* x) {\n  x[0] = undefined_name;\n}").unwrap_err();
    let CompileError::CompileError { log, .. } = error else { panic!("{error:?}") };
    let log = log.to_string_lossy();
    assert!(log.contains("undefined_name") && log.contains(":2:"), "{log}");
}

#[test]
fn shared_arrays_may_stand_anywhere() {
    let Some(_lab) = lab() else { return };
    let text = r#"
    template <class T> __device__ T first(T v) {
        __shared__ T part[64];
        part[threadIdx.x] = v;
        __syncthreads();
        return part[0];
    }
    __device__ __forceinline__ float second(float v) {
        __shared__ float part[64];
        part[threadIdx.x] = v;
        __syncthreads();
        return part[1];
    }
    struct Half { int n; __device__ int half() const { __shared__ int kept; if (threadIdx.x == 0) kept = n / 2; __syncthreads(); return kept; } };
    extern "C" __global__ void f(float* y, const float* x, int n) {
        __shared__ __align__(16) double own[64];
        own[threadIdx.x] = x[threadIdx.x];
        Half h{n};
        y[threadIdx.x] = first(x[threadIdx.x]) + second(x[threadIdx.x]) + (float)first((double)h.half()) + (float)own[threadIdx.x];
    }
    extern "C" __global__ void g(int* y, const int* x, int n) {
        int votes = __syncthreads_count(x[threadIdx.x] > 2), any = __syncthreads_or(x[threadIdx.x] > 4), all = __syncthreads_and(x[threadIdx.x] > 0);
        y[threadIdx.x] = first(x[n - 1]) + 100 * votes + 1000 * any + 10000 * all;
    }
    "#;
    let g = gpu(0, text);
    let out: Vec<f32> = apply(&g, "f", &[1.0f32, 2.0, 3.0, 4.0], 4, shape(1, 4, 0)).unwrap();
    assert_eq!(out, [6.0, 7.0, 8.0, 9.0]);
    let out: Vec<i32> = apply(&g, "g", &[1, 2, 3, 4], 4, shape(1, 4, 0)).unwrap();
    assert_eq!(out, [10204; 4]);
}

#[test]
fn kernels_of_two_modules_may_have_one_name() {
    let Some(_lab) = lab() else { return };
    let one = gpu(
        0,
        "extern \"C\" __global__ void same(int* y, const int* x, int n) { y[threadIdx.x] = x[threadIdx.x] + 1; }",
    );
    let two = gpu(
        0,
        "extern \"C\" __global__ void same(float* y, const float* x, int n) { y[threadIdx.x] = x[threadIdx.x] * n; }",
    );
    assert_eq!(apply::<i32, i32>(&one, "same", &[5, 6], 2, shape(1, 2, 0)).unwrap(), [6, 7]);
    assert_eq!(apply::<f32, f32>(&two, "same", &[5.0, 6.0], 2, shape(1, 2, 0)).unwrap(), [10.0, 12.0]);
    assert_eq!(apply::<i32, i32>(&one, "same", &[8, 9], 2, shape(1, 2, 0)).unwrap(), [9, 10]);
}

#[test]
fn macros_make_kernels() {
    let Some(_lab) = lab() else { return };
    let text = r#"
    #define DOUBLE(NAME, T) \
        extern "C" __global__ void NAME(T* y, const T* x, int n) { \
            extern __shared__ T tile[]; \
            tile[threadIdx.x] = x[threadIdx.x]; \
            __syncthreads(); \
            y[threadIdx.x] = tile[n - 1 - threadIdx.x] * FACTOR; \
        }
    #ifdef TURRET_STANDIN
    #define FACTOR 2
    #endif
    DOUBLE(double_f32, float)
    DOUBLE(double_i32, int)
    "#;
    let g = gpu(0, text);
    let out: Vec<f32> = apply(&g, "double_f32", &[1.0f32, 2.0, 3.0], 3, shape(1, 3, 12)).unwrap();
    assert_eq!(out, [6.0, 4.0, 2.0]);
    let out: Vec<i32> = apply(&g, "double_i32", &[1, 2, 3], 3, shape(1, 3, 12)).unwrap();
    assert_eq!(out, [6, 4, 2]);
}

#[test]
fn cudas_own_functions_are_there() {
    let Some(_lab) = lab() else { return };
    let text = r#"
    template <typename T> __device__ __forceinline__ T square(T x) { return x * x; }
    __constant__ float half = 0.5f;
    extern "C" __global__ void f(float* y, const float* x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        float v = fabsf(x[i]) + 0.1f, s, c;
        sincosf(v, &s, &c);
        #pragma unroll
        for (int k = 0; k < 2; k++) v = square(v) * half;
        v += expf(-v) + logf(v + 1.0f) + log1pf(v) + expm1f(-v) + tanhf(v) + rsqrtf(v + 1.0f) + sqrtf(v) + powf(v, 0.3f);
        v += fmaxf(v, 1.0f) + fminf(v, 1.0f) + floorf(v) + fmodf(v, 3.0f) + rintf(v) + erff(v) + s + c + copysignf(1.0f, x[i]);
        v += __expf(-v) + __logf(v) + __fdividef(v, 3.0f) + fmaf(v, v, v) + max(v, 0.0f) + min(3, 4) + max(2u, 1u) + (float)min(5ll, 6ll);
        v += __int_as_float(__float_as_int(v)) + __uint_as_float(__float_as_uint(v)) + __fmul_rn(v, v) + __fadd_rn(v, v);
        double d = __longlong_as_double(__double_as_longlong((double)v)) + __dmul_rn(2.0, 3.0) + exp(-1.0) + rsqrt(2.0) + fmax(1.0, 2.0);
        unsigned h = __umulhi(0x80000000u, (unsigned)i) + (unsigned)__mul64hi(1ll << 40, 1ll << 40);
        if (isnan(v) || isinf(d) || !isfinite(v) || h == 1u) v = 0.0f;
        y[i] = __ldg(&x[i]) == x[i] ? v : -1.0f;
    }"#;
    let g = gpu(0, text);
    let out: Vec<f32> = apply(&g, "f", &values(100), 100, shape(4, 32, 0)).unwrap();
    assert!(out.iter().all(|v| v.is_finite() && *v != 0.0));
}
