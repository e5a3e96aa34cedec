//! What collectives compute: reductions in the order of the ranks, so that all get the same bits, every time.

use super::{Kind, Part, side};
use crate::bridge::{READ, WRITE};
use crate::codes::{Failure, LAUNCH_FAILED};
use crate::queue::{Op, Touch};
use crate::state::State;
use std::sync::Arc;

/// Bytes of an element of a type.
pub(super) fn size_of_type(dtype: i32) -> Option<usize> {
    Some(match dtype {
        0 | 1 => 1,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => return None,
    })
}

macro_rules! fold {
    ($type:ty, $inputs:expr, $op:expr, $add:ident, $multiply:ident) => {{
        let inputs: Vec<&[$type]> = $inputs
            .iter()
            // SAFETY: the bytes are whole elements, copied to memory of the largest alignment.
            .map(|b: &Vec<u64>| unsafe { std::slice::from_raw_parts(b.as_ptr().cast::<$type>(), $inputs.count) })
            .collect();
        let mut out = vec![0u64; $inputs.words()];
        // SAFETY: as above.
        let result = unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<$type>(), $inputs.count) };
        for (i, r) in result.iter_mut().enumerate() {
            let mut x = inputs[0][i];
            for other in &inputs[1..] {
                let y = other[i];
                x = match $op {
                    0 | 4 => x.$add(y),
                    1 => x.$multiply(y),
                    2 => {
                        if y > x {
                            y
                        } else {
                            x
                        }
                    }
                    _ => {
                        if y < x {
                            y
                        } else {
                            x
                        }
                    }
                };
            }
            *r = if $op == 4 { x / (inputs.len() as $type) } else { x };
        }
        out
    }};
}

/// Copies of what the ranks send.
struct Inputs {
    sides: Vec<Vec<u64>>,
    count: usize,
    bytes: usize,
}

impl Inputs {
    fn iter(&self) -> std::slice::Iter<'_, Vec<u64>> {
        self.sides.iter()
    }
    fn words(&self) -> usize {
        self.bytes.div_ceil(8).max(1)
    }
}

trait Float: Sized {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
}
impl Float for f32 {
    fn plus(self, other: f32) -> f32 {
        self + other
    }
    fn times(self, other: f32) -> f32 {
        self * other
    }
}
impl Float for f64 {
    fn plus(self, other: f64) -> f64 {
        self + other
    }
    fn times(self, other: f64) -> f64 {
        self * other
    }
}

fn reduce(inputs: &Inputs, dtype: i32, op: i32) -> Result<Vec<u64>, Failure> {
    Ok(match dtype {
        0 => fold!(i8, inputs, op, wrapping_add, wrapping_mul),
        1 => fold!(u8, inputs, op, wrapping_add, wrapping_mul),
        2 => fold!(i32, inputs, op, wrapping_add, wrapping_mul),
        3 => fold!(u32, inputs, op, wrapping_add, wrapping_mul),
        4 => fold!(i64, inputs, op, wrapping_add, wrapping_mul),
        5 => fold!(u64, inputs, op, wrapping_add, wrapping_mul),
        7 => fold!(f32, inputs, op, plus, times),
        8 => fold!(f64, inputs, op, plus, times),
        _ => return Err(Failure::new(LAUNCH_FAILED, format!("elements of type {dtype} are not stood in for"))),
    })
}

/// Does a collective; `parts` are in the order of the ranks, `touches` beside them.
pub(super) fn run(state: &mut State, parts: &[(usize, &Op, Arc<Part>)], touches: &mut [Touch]) -> Result<(), Failure> {
    let Some((_, _, first)) = parts.first() else { return Ok(()) };
    let size = size_of_type(first.dtype).unwrap_or(1);
    let n = first.ranks;
    let (sent, received) = match first.kind {
        Kind::AllGather => (first.count, first.count * n),
        Kind::ReduceScatter => (first.count * n, first.count),
        _ => (first.count, first.count),
    };
    let (sent, received) = (sent * size, received * size);
    let sends = |p: &Part| {
        !matches!(p.kind, Kind::Recv(_)) && (!matches!(p.kind, Kind::Broadcast(_)) || p.kind == Kind::Broadcast(p.rank))
    };
    let receives = |p: &Part| {
        !matches!(p.kind, Kind::Send(_)) && (!matches!(p.kind, Kind::Reduce(_)) || p.kind == Kind::Reduce(p.rank))
    };
    let mut sides = Vec::new();
    for ((_, _, part), touch) in parts.iter().zip(touches.iter_mut()).filter(|((_, _, p), _)| sends(p)) {
        let from = side(state, touch, part.send, sent, READ)?;
        let mut copy = vec![0u64; sent.div_ceil(8).max(1)];
        // SAFETY: the range was checked, and the copy has room.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), copy.as_mut_ptr().cast::<u8>(), sent) };
        sides.push(copy);
    }
    let inputs = Inputs { sides, count: sent / size, bytes: sent };
    let whole: Vec<u64> = match first.kind {
        Kind::AllReduce | Kind::Reduce(_) | Kind::ReduceScatter => reduce(&inputs, first.dtype, first.op)?,
        Kind::AllGather => {
            let mut bytes = vec![0u64; received.div_ceil(8).max(1)];
            for (i, input) in inputs.iter().enumerate() {
                // SAFETY: there is room for each rank's stretch.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        input.as_ptr().cast::<u8>(),
                        bytes.as_mut_ptr().cast::<u8>().add(i * sent),
                        sent,
                    )
                };
            }
            bytes
        }
        _ => inputs.sides.first().cloned().unwrap_or_default(),
    };
    for ((rank, _, part), touch) in parts.iter().zip(touches.iter_mut()).filter(|((_, _, p), _)| receives(p)) {
        let to = side(state, touch, part.receive, received, WRITE)?;
        let skip = if first.kind == Kind::ReduceScatter { rank * received } else { 0 };
        // SAFETY: the range was checked, and the result is as long.
        unsafe { std::ptr::copy_nonoverlapping(whole.as_ptr().cast::<u8>().add(skip), to, received) };
    }
    state.count_bytes("nccl", sent * parts.len());
    Ok(())
}
