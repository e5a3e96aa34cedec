//! NCCL's functions. Calls between `ncclGroupStart` and `ncclGroupEnd` are enqueued at the end, as NCCL does it.

use super::reduce::size_of_type;
use super::{Comm, Kind, Part};
use crate::queue::Work;
use crate::state::{Held, current_handle, say};
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Arc, Mutex};

const OK: c_int = 0;
const UNHANDLED_CUDA: c_int = 1;
const INVALID_ARGUMENT: c_int = 4;
const INVALID_USAGE: c_int = 5;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; 128]);

type Deferred = Box<dyn FnOnce(&mut Held) -> Result<(), c_int>>;

#[derive(Default)]
struct Group {
    depth: usize,
    calls: Vec<Deferred>,
}

thread_local!(static GROUP: RefCell<Group> = RefCell::new(Group::default()));
static LAST: Mutex<Option<CString>> = Mutex::new(None);

fn refuse(code: c_int, message: &str) -> c_int {
    say(&format!("NCCL: {message}"));
    *LAST.lock().unwrap_or_else(|e| e.into_inner()) = CString::new(message).ok();
    code
}

fn held<T>(name: &str, action: impl FnOnce(&mut Held) -> T) -> T {
    let mut h = Held::take();
    *h.calls.entry(name.to_owned()).or_default() += 1;
    action(&mut h)
}

fn code(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(OK)
}

fn add_comm(h: &mut Held, clique: u64, rank: c_int, ranks: c_int, gpu: usize) -> Result<u64, c_int> {
    if rank < 0 || rank >= ranks {
        return Err(refuse(INVALID_ARGUMENT, &format!("rank {rank} of {ranks} ranks")));
    }
    let rank = rank as usize;
    if let Some(other) = h.nccl.comms.values().find(|c| c.clique == clique && (c.gpu == gpu || c.rank == rank)) {
        return Err(refuse(
            INVALID_USAGE,
            &format!(
                "ranks {} and {rank} are both on GPU {gpu}, or the same; a communicator has one rank for each GPU",
                other.rank
            ),
        ));
    }
    let id = h.id();
    h.nccl.comms.insert(id, Comm { clique, rank, ranks: ranks as usize, gpu });
    Ok(id)
}

unsafe fn init_rank(out: *mut u64, ranks: c_int, id: UniqueId, rank: c_int) -> c_int {
    code(held("ncclCommInitRank", |h| {
        let context = current_handle();
        if !h.contexts.contains_key(&context) {
            return Err(refuse(UNHANDLED_CUDA, "no context is current; bind the rank's GPU first"));
        }
        let gpu = h.gpu(context);
        let clique = u64::from_le_bytes(id.0[..8].try_into().unwrap_or_default());
        let made = add_comm(h, clique, rank, ranks, gpu)?;
        // SAFETY: the caller's pointer is to a handle.
        unsafe { out.write(made) };
        Ok(())
    }))
}

/// Enqueues a call, or keeps it for the end of the group.
fn submit(
    name: &'static str,
    comm: u64,
    stream: u64,
    kind: Kind,
    send: u64,
    receive: u64,
    count: usize,
    dtype: c_int,
    op: c_int,
) -> c_int {
    code(held(name, |h| {
        let c = h
            .nccl
            .comms
            .get(&comm)
            .ok_or_else(|| refuse(INVALID_ARGUMENT, &format!("{name}: no such communicator")))?;
        let (clique, rank, ranks, gpu) = (c.clique, c.rank, c.ranks, c.gpu);
        if size_of_type(dtype).is_none() || !(0..=4).contains(&op) {
            return Err(refuse(
                INVALID_ARGUMENT,
                &format!("{name}: type {dtype} or operation {op} is not stood in for"),
            ));
        }
        if let Kind::Reduce(other) | Kind::Broadcast(other) | Kind::Send(other) | Kind::Recv(other) = kind
            && other >= ranks
        {
            return Err(refuse(INVALID_ARGUMENT, &format!("{name}: rank {other} of {ranks} ranks")));
        }
        let part = Arc::new(Part { clique, rank, ranks, kind, send, receive, count, dtype, op });
        let enqueue = move |h: &mut Held| {
            let stream = h
                .stream(stream)
                .map_err(|e| refuse(UNHANDLED_CUDA, &format!("{name}: the stream cannot be used ({e})")))?;
            let on = h.gpu(h.streams[&stream].context);
            if on != gpu {
                return Err(refuse(
                    INVALID_USAGE,
                    &format!("{name}: the communicator is of GPU {gpu} and the stream of GPU {on}"),
                ));
            }
            let label = format!("{name} of rank {rank}");
            h.enqueue(stream, &label, Work::Part(part)).map(drop).map_err(|_| UNHANDLED_CUDA)
        };
        GROUP.with_borrow_mut(|g| {
            if g.depth > 0 {
                g.calls.push(Box::new(enqueue));
                return Ok(());
            }
            enqueue(h)
        })
    }))
}

macro_rules! nccl {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            // SAFETY: the caller's pointers are as NCCL's interface wants them.
            #[allow(unused_unsafe)]
            unsafe { $body }
        }
    )* };
}

fn root(value: c_int) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

unsafe fn about(comm: u64, out: *mut c_int, what: impl Fn(&Comm) -> usize) -> c_int {
    held("ncclComm", |h| match h.nccl.comms.get(&comm) {
        // SAFETY: the caller's pointer is to a number.
        Some(c) => unsafe {
            out.write(what(c) as c_int);
            OK
        },
        None => refuse(INVALID_ARGUMENT, "no such communicator"),
    })
}

fn drop_comm(name: &str, comm: u64) -> c_int {
    held(
        name,
        |h| if h.nccl.comms.remove(&comm).is_some() { OK } else { refuse(INVALID_ARGUMENT, "no such communicator") },
    )
}

nccl! {
    fn ncclGetVersion(out: *mut c_int) { *out = 22703; OK }
    fn ncclGetUniqueId(out: *mut UniqueId) {
        held("ncclGetUniqueId", |h| {
            let mut id = UniqueId([0; 128]);
            id.0[..8].copy_from_slice(&h.id().to_le_bytes());
            *out = id;
        });
        OK
    }
    fn ncclCommInitAll(out: *mut u64, n: c_int, devices: *const c_int) {
        code(held("ncclCommInitAll", |h| {
            let clique = h.id();
            for i in 0..n.max(0) as usize {
                let device = if devices.is_null() { i as c_int } else { *devices.add(i) };
                let gpu = crate::driver::devices::device(h, device).map_err(|_| refuse(INVALID_ARGUMENT, &format!("no GPU {device}")))?;
                let made = add_comm(h, clique, i as c_int, n, gpu)?;
                out.add(i).write(made);
            }
            Ok(())
        }))
    }
    fn ncclCommInitRank(out: *mut u64, ranks: c_int, id: UniqueId, rank: c_int) { init_rank(out, ranks, id, rank) }
    fn ncclCommInitRankConfig(out: *mut u64, ranks: c_int, id: UniqueId, rank: c_int, _config: *mut c_void) { init_rank(out, ranks, id, rank) }
    fn ncclCommFinalize(comm: u64) { about(comm, &mut 0, |_| 0) }
    fn ncclCommDestroy(comm: u64) { drop_comm("ncclCommDestroy", comm) }
    fn ncclCommAbort(comm: u64) { drop_comm("ncclCommAbort", comm) }
    fn ncclCommCount(comm: u64, out: *mut c_int) { about(comm, out, |c| c.ranks) }
    fn ncclCommCuDevice(comm: u64, out: *mut c_int) { about(comm, out, |c| c.gpu) }
    fn ncclCommUserRank(comm: u64, out: *mut c_int) { about(comm, out, |c| c.rank) }
    fn ncclCommGetAsyncError(comm: u64, out: *mut c_int) {
        held("ncclCommGetAsyncError", |h| {
            let gpu = h.nccl.comms.get(&comm).map(|c| c.gpu);
            let failed = h.contexts.values().any(|c| Some(c.gpu) == gpu && c.sticky != 0);
            *out = if failed { UNHANDLED_CUDA } else { OK };
            if gpu.is_some() { OK } else { INVALID_ARGUMENT }
        })
    }
    fn ncclCommSplit(_comm: u64, _color: c_int, _key: c_int, _out: *mut u64, _config: *mut c_void) {
        refuse(INVALID_USAGE, "ncclCommSplit is not stood in for")
    }
    fn ncclGroupStart() { GROUP.with_borrow_mut(|g| g.depth += 1); OK }
    fn ncclGroupEnd() {
        let calls = GROUP.with_borrow_mut(|g| {
            g.depth = g.depth.saturating_sub(1);
            if g.depth == 0 { std::mem::take(&mut g.calls) } else { Vec::new() }
        });
        held("ncclGroupEnd", |h| calls.into_iter().fold(OK, |first, call| match call(h) {
            Err(e) if first == OK => e,
            _ => first,
        }))
    }
    fn ncclAllReduce(send: u64, receive: u64, count: usize, dtype: c_int, op: c_int, comm: u64, stream: u64) {
        submit("ncclAllReduce", comm, stream, Kind::AllReduce, send, receive, count, dtype, op)
    }
    fn ncclReduce(send: u64, receive: u64, count: usize, dtype: c_int, op: c_int, to: c_int, comm: u64, stream: u64) {
        submit("ncclReduce", comm, stream, Kind::Reduce(root(to)), send, receive, count, dtype, op)
    }
    fn ncclBroadcast(send: u64, receive: u64, count: usize, dtype: c_int, from: c_int, comm: u64, stream: u64) {
        submit("ncclBroadcast", comm, stream, Kind::Broadcast(root(from)), send, receive, count, dtype, 0)
    }
    fn ncclBcast(buffer: u64, count: usize, dtype: c_int, from: c_int, comm: u64, stream: u64) {
        submit("ncclBroadcast", comm, stream, Kind::Broadcast(root(from)), buffer, buffer, count, dtype, 0)
    }
    fn ncclAllGather(send: u64, receive: u64, count: usize, dtype: c_int, comm: u64, stream: u64) {
        submit("ncclAllGather", comm, stream, Kind::AllGather, send, receive, count, dtype, 0)
    }
    fn ncclReduceScatter(send: u64, receive: u64, count: usize, dtype: c_int, op: c_int, comm: u64, stream: u64) {
        submit("ncclReduceScatter", comm, stream, Kind::ReduceScatter, send, receive, count, dtype, op)
    }
    fn ncclSend(send: u64, count: usize, dtype: c_int, to: c_int, comm: u64, stream: u64) {
        submit("ncclSend", comm, stream, Kind::Send(root(to)), send, 0, count, dtype, 0)
    }
    fn ncclRecv(receive: u64, count: usize, dtype: c_int, from: c_int, comm: u64, stream: u64) {
        submit("ncclRecv", comm, stream, Kind::Recv(root(from)), 0, receive, count, dtype, 0)
    }
}

/// `ncclGetErrorString`.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    match code {
        OK => c"no error",
        UNHANDLED_CUDA => c"unhandled cuda error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        _ => c"unknown result code",
    }
    .as_ptr()
}

/// `ncclGetLastError`.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: u64) -> *const c_char {
    LAST.lock().unwrap_or_else(|e| e.into_inner()).as_ref().map_or(c"".as_ptr(), |m| m.as_ptr())
}
