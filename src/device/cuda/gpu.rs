//! One GPU as a session uses it: its streams, its product handle, the pinned buffers that feeds pass through.

use super::call::{CudaError, CudaErrorKind, CudaResult};
use super::context::{Context, Event, PinnedMemory, Stream};
use super::dnn::Dnn;
use super::gemm::Blas;
use super::libraries::{Library, find};
use crate::base::Error;
use crate::device::{DeviceId, DeviceInfo, DeviceMemory, Lane, MemoryUse};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Bytes of each of the two buffers that host bytes pass through on their way to a GPU.
const STAGING_BYTES: usize = 4 << 20;

/// A GPU that is open for a session.
pub struct Gpu {
    /// Its place in the session's machine.
    pub device: DeviceId,
    /// Its context, shared with other sessions of the process.
    pub context: Arc<Context>,
    info: DeviceInfo,
    account: Arc<MemoryUse>,
    /// Gone before the stream that it is set to.
    blas: OnceLock<Blas>,
    /// `None` where there is no cuDNN, or it is not wanted.
    dnn: OnceLock<Option<Dnn>>,
    streams: [Stream; Lane::ALL.len()],
    staging: Mutex<Option<Staging>>,
    libraries: LibraryUse,
}

/// How a GPU's libraries are used.
#[derive(Clone, Copy, Debug)]
pub struct LibraryUse {
    /// Products and convolutions of `float32` may use TensorFloat-32.
    pub tf32: bool,
    /// Convolutions are cuDNN's, where it is there.
    pub cudnn: bool,
}

/// Two pinned buffers, each with the event of its last copy, and which is next.
struct Staging {
    buffers: [(PinnedMemory, Event); 2],
    next: usize,
}

impl Gpu {
    /// Opens a GPU, whose memory for products goes on this account.
    ///
    /// # Errors
    /// What the driver says, or that the device is no CUDA GPU.
    pub fn open(info: &DeviceInfo, account: &Arc<MemoryUse>, libraries: LibraryUse) -> CudaResult<Gpu> {
        let Some(identity) = &info.cuda else {
            return Err(CudaError::refused("cuDeviceGet", format!("{} is no CUDA GPU", info.short_name())));
        };
        let context = Context::open(identity)?;
        let stream = || Stream::new(&context);
        let streams = [stream()?, stream()?, stream()?, stream()?];
        Ok(Gpu {
            device: info.id,
            context,
            info: info.clone(),
            account: account.clone(),
            streams,
            blas: OnceLock::new(),
            dnn: OnceLock::new(),
            staging: Mutex::default(),
            libraries,
        })
    }

    /// The stream of a lane.
    pub fn stream(&self, lane: Lane) -> &Stream {
        &self.streams[lane as usize]
    }

    /// The product handle of the compute stream, made on first use.
    pub fn blas(&self) -> CudaResult<&Blas> {
        if let Some(blas) = self.blas.get() {
            return Ok(blas);
        }
        let bytes = Blas::workspace_bytes(&self.context);
        let none = |e: Error| CudaError { call: "cuMemAlloc", said: e.to_string(), kind: CudaErrorKind::OutOfMemory };
        let workspace = DeviceMemory::allocate(&self.info, &self.account, bytes).map_err(none)?;
        let made = Blas::new(self.stream(Lane::Compute), workspace, self.libraries.tf32)?;
        Ok(self.blas.get_or_init(|| made))
    }

    /// cuDNN's handle of the compute stream, made on first use; `None` where there is none.
    pub(super) fn dnn(&self) -> Option<&Dnn> {
        let make = || {
            let wanted = self.libraries.cudnn && find(Library::Cudnn).is_ok();
            wanted.then(|| Dnn::new(self.stream(Lane::Compute), self.libraries.tf32).ok()).flatten()
        };
        self.dnn.get_or_init(make).as_ref()
    }

    /// The same, for a convolution that was prepared with it.
    pub(super) fn dnn_handle(&self) -> CudaResult<&Dnn> {
        self.dnn().ok_or_else(|| CudaError::refused("cudnnCreate", "no handle"))
    }

    /// Makes the staging buffers, so that a later upload allocates nothing.
    pub fn prepare_staging(&self) -> CudaResult<()> {
        let mut staging = self.lock_staging();
        if staging.is_none() {
            let buffer = || -> CudaResult<(PinnedMemory, Event)> {
                Ok((PinnedMemory::allocate(&self.context, STAGING_BYTES)?, Event::new(&self.context, false)?))
            };
            *staging = Some(Staging { buffers: [buffer()?, buffer()?], next: 0 });
        }
        Ok(())
    }

    /// Enqueues a copy of pageable host bytes on the host-to-device stream. They are read before this returns: while
    /// one buffer is on its way, the other is filled.
    ///
    /// # Safety
    /// `to` is `bytes.len()` bytes of this GPU's memory, which no one else uses until the stream's work is waited for.
    pub unsafe fn upload(&self, bytes: &[u8], to: u64) -> CudaResult<()> {
        self.prepare_staging()?;
        let mut staging = self.lock_staging();
        let Some(Staging { buffers, next }) = staging.as_mut() else { return Ok(()) };
        self.context.bind()?;
        let stream = self.stream(Lane::FromHost);
        for (i, piece) in bytes.chunks(STAGING_BYTES).enumerate() {
            let (buffer, copied) = &buffers[std::mem::replace(next, 1 - *next)];
            // The buffer's last copy may still be reading it.
            copied.synchronize()?;
            // SAFETY: the buffer is as large as the largest piece, and no copy reads it now.
            let staged = unsafe {
                std::ptr::copy_nonoverlapping(piece.as_ptr(), buffer.start(), piece.len());
                std::slice::from_raw_parts(buffer.start(), piece.len())
            };
            // SAFETY: by this function's contract; the buffer is not written before its event.
            unsafe { super::copy::from_host(stream, to + (i * STAGING_BYTES) as u64, staged.as_ptr(), staged.len())? };
            copied.record(stream)?;
        }
        Ok(())
    }

    fn lock_staging(&self) -> MutexGuard<'_, Option<Staging>> {
        self.staging.lock().unwrap_or_else(|e| e.into_inner())
    }
}
