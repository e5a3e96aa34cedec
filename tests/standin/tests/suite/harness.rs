//! Sets the stand-in up once, gives it to one test at a time, and says so where there is no C++ compiler.

use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, LaunchConfig, result,
};
use cudarc::nvrtc::compile_ptx;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use turret_standin::Standin;

static ONE: Mutex<()> = Mutex::new(());

/// The driver, for one test.
pub struct Lab {
    pub standin: Standin,
    _one: MutexGuard<'static, ()>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.standin.reset();
    }
}

/// Four GPUs, or none where the stand-in cannot be built.
pub fn lab() -> Option<Lab> {
    static READY: OnceLock<Result<Standin, String>> = OnceLock::new();
    let one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let ready = READY.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("standin");
        turret_standin::install(&folder)?;
        // SAFETY: other tests wait for the lock, and none of them reads the environment before.
        unsafe {
            std::env::set_var("TURRET_STANDIN_GPUS", "4");
            if std::env::var_os("TURRET_STANDIN_LOUD").is_none() {
                std::env::set_var("TURRET_STANDIN_QUIET", "1");
            }
        }
        turret_standin::preload(&folder)?;
        Standin::loaded()
    });
    match ready {
        Ok(standin) => {
            standin.reset();
            standin.patience(5000);
            standin.races_fail(true);
            standin.said();
            Some(Lab { standin: standin.clone(), _one: one })
        }
        Err(message) if message.contains("no C++ compiler") => {
            println!("skipped: {message}");
            None
        }
        Err(message) => panic!("{message}"),
    }
}

/// A GPU with one stream, and what is loaded on it.
pub struct Gpu {
    pub context: Arc<CudaContext>,
    pub stream: Arc<CudaStream>,
    pub module: Arc<CudaModule>,
}

pub fn gpu(i: usize, text: &str) -> Gpu {
    let context = CudaContext::new(i).unwrap();
    // SAFETY: the tests order everything by themselves.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().unwrap();
    let module = context.load_module(compile_ptx(text).unwrap()).unwrap();
    Gpu { context, stream, module }
}

impl Gpu {
    pub fn function(&self, name: &str) -> CudaFunction {
        self.module.load_function(name).unwrap()
    }

    pub fn put<T: cudarc::driver::DeviceRepr>(&self, values: &[T]) -> CudaSlice<T> {
        self.stream.clone_htod(values).unwrap()
    }
}

pub fn threads(n: usize) -> LaunchConfig {
    LaunchConfig::for_num_elems(n as u32)
}

/// Values that differ.
pub fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + 11) % 101) as f32 / 16.0 - 3.0).collect()
}

/// A copy on the target's stream that waits for nothing (cudarc's own waits for the source's stream).
pub fn peer_copy(from: &Gpu, to: &Gpu, source: &CudaSlice<f32>, target: &mut CudaSlice<f32>) -> bool {
    let (source, n) = (source.device_ptr(&from.stream).0, source.num_bytes());
    let target = target.device_ptr_mut(&to.stream).0;
    to.context.bind_to_thread().unwrap();
    // SAFETY: both are allocations of so many bytes.
    unsafe {
        result::memcpy_peer_async(to.context.cu_ctx(), target, from.context.cu_ctx(), source, n, to.stream.cu_stream())
    }
    .is_ok()
}
