//! The host kernel of `ApplyGradients` and of TensorFlow's updates of one variable: a multi-tensor update in fixed chunks.
//!
//! All row numbers are checked, and the rows sorted, before the first element is written. Scratch is made when the
//! kernel is prepared. The arithmetic is in `apply_rules`.

use super::apply::{Update, VariableInputs};
use super::apply_rules::{Real, Step, UpdateRule};
use super::cuda_apply::bad_row_number;
use crate::base::DType;
use crate::device::{Buffers, CpuKernel, Launch, StreamScratch, TILE, TileStream};
use crate::graph::KernelContext;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;

/// Elements of one chunk: small enough to share out, large enough that taking one costs nothing. Whole tiles.
const GRAIN: usize = 4 * TILE;

/// Elements of a row that are summed at a time, on the stack.
const COLUMNS: usize = 64;

/// A piece of work; parts of the job are runs of pieces.
#[derive(Clone)]
enum Piece {
    /// Elements of a variable with a dense gradient.
    Dense { v: usize, elements: Range<usize> },
    /// Entries of the sorted rows of a variable whose other rows stay as they are.
    Entries { v: usize, entries: Range<usize> },
    /// Rows of a variable all of whose rows move (Adam).
    Rows { v: usize, rows: Range<usize> },
}

struct Variable {
    inputs: VariableInputs,
    dtype: DType,
    rows: usize,
    width: usize,
    /// What computes a dense gradient, if not another node.
    stream: Option<TileStream>,
}

/// A row of a gradient: the row of the variable, the row among the values.
type Entry = (usize, usize);

#[derive(Clone, Copy)]
struct Pointers {
    var: *mut u8,
    slots: [*mut u8; 3],
    gradient: *const u8,
}

// SAFETY: the pointers are used during one launch alone, which owns what they point to; pieces do not overlap.
unsafe impl Send for Pointers {}
// SAFETY: as above.
unsafe impl Sync for Pointers {}

struct Scratch {
    pointers: Vec<Pointers>,
    /// By variable; sorted by row, equal rows in the order of the values. Empty for dense gradients.
    entries: Vec<Vec<Entry>>,
}

/// Prepares the kernel of a node with this layout, of whose gradients these are computed by tiles.
pub(super) fn prepare(
    update: Update,
    c: &KernelContext<'_>,
    streams: Vec<(usize, TileStream)>,
) -> Result<CpuKernel, String> {
    if c.inputs.len() != update.num_inputs {
        return Err(format!("want {} inputs, got {}", update.num_inputs, c.inputs.len()));
    }
    let mut streams: HashMap<usize, TileStream> = streams.into_iter().collect();
    let mut variables = Vec::with_capacity(update.variables.len());
    let mut entries = Vec::with_capacity(update.variables.len());
    let mut pieces = Vec::new();
    for (v, inputs) in update.variables.iter().cloned().enumerate() {
        let desc = &c.inputs[inputs.var];
        let rows = desc.dims.first().copied().unwrap_or(1);
        let width = desc.dims.iter().skip(1).product::<usize>();
        let count = inputs.indices.map_or(0, |i| c.inputs[i].len());
        if c.inputs[inputs.gradient].len() != if inputs.indices.is_some() { count * width } else { desc.len() } {
            return Err(format!("the gradient of variable {v} does not have the variable's size"));
        }
        entries.push(vec![(0, 0); count]);
        let cut = |len: usize, grain: usize| (0..len).step_by(grain).map(move |s| s..len.min(s + grain));
        let row_grain = (GRAIN / width.max(1)).max(1);
        match (inputs.indices, update.form.rule) {
            (None, _) => pieces.extend(cut(desc.len(), GRAIN).map(|elements| Piece::Dense { v, elements })),
            (Some(_), UpdateRule::Adam) => pieces.extend(cut(rows, row_grain).map(|rows| Piece::Rows { v, rows })),
            (Some(_), _) => pieces.extend(cut(count, row_grain).map(|entries| Piece::Entries { v, entries })),
        }
        let stream = inputs.indices.is_none().then(|| streams.remove(&inputs.gradient)).flatten();
        variables.push(Variable { inputs, dtype: desc.dtype, rows, width, stream });
    }
    if let Some(input) = streams.keys().next() {
        return Err(format!("it cannot compute its input {input}"));
    }
    let parts = pack(&pieces, &variables);
    let none = Pointers { var: std::ptr::null_mut(), slots: [std::ptr::null_mut(); 3], gradient: std::ptr::null() };
    let scratch = Mutex::new(Scratch { pointers: vec![none; variables.len()], entries });
    let tiles = StreamScratch::of(variables.iter().filter_map(|v| v.stream.as_ref()));
    let arch = pulp::Arch::new();
    Ok(Box::new(move |l| {
        // Nothing is left in the scratch from launch to launch, so a poisoned lock does not matter.
        let mut scratch = scratch.lock().unwrap_or_else(|e| e.into_inner());
        let Scratch { pointers, entries } = &mut *scratch;
        for (v, (variable, entries)) in variables.iter().zip(entries.iter_mut()).enumerate() {
            sort_rows(l, v, variable, entries)?;
        }
        for (pointers, variable) in pointers.iter_mut().zip(&variables) {
            *pointers = variable.pointers(l);
        }
        let step = Step::read(&update, l);
        let buffers = Buffers::of(l);
        let failure = Mutex::new(None);
        tiles.reserve(l.team().threads());
        let (pointers, entries) = (&*pointers, &*entries);
        l.team().run(parts.len(), |part| {
            for piece in &pieces[parts[part].clone()] {
                let (Piece::Dense { v, .. } | Piece::Entries { v, .. } | Piece::Rows { v, .. }) = piece;
                let (variable, each) = (&variables[*v], update.each);
                let (at, entries) = (pointers[*v], &entries[*v][..]);
                let work = Work { step: &step, each, variable, at, entries, buffers: &buffers, tiles: &tiles };
                let done = match variables[*v].dtype {
                    DType::F64 => arch.dispatch(|| work.run::<f64>(piece)),
                    _ => arch.dispatch(|| work.run::<f32>(piece)),
                };
                if let Err(message) = done {
                    failure.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(message);
                }
            }
        });
        if let Some(message) = failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
            return Err(message);
        }
        finish(&update, l);
        Ok(())
    }))
}

/// Cuts the list of pieces into runs of about a grain of elements each.
fn pack(pieces: &[Piece], variables: &[Variable]) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut filled = GRAIN;
    for (i, piece) in pieces.iter().enumerate() {
        let elements = match piece {
            Piece::Dense { elements, .. } => elements.len(),
            Piece::Entries { v, entries } => entries.len() * variables[*v].width,
            Piece::Rows { v, rows } => rows.len() * variables[*v].width,
        };
        match parts.last_mut() {
            Some(last) if filled + elements <= GRAIN => last.end = i + 1,
            _ => {
                parts.push(i..i + 1);
                filled = 0;
            }
        }
        filled += elements;
    }
    parts
}

/// Checks a gradient's row numbers and sorts its rows.
fn sort_rows(l: &Launch<'_>, v: usize, variable: &Variable, entries: &mut [Entry]) -> Result<(), String> {
    let Some(input) = variable.inputs.indices else { return Ok(()) };
    let rows = variable.rows;
    let mut set = |at: usize, index: i64| match usize::try_from(index) {
        Ok(row) if row < rows => {
            entries[at] = (row, at);
            Ok(())
        }
        _ => Err(bad_row_number(index, at, v, rows)),
    };
    match l.input_dtype(input) {
        DType::I32 => l.input::<i32>(input).iter().enumerate().try_for_each(|(i, &x)| set(i, x.into()))?,
        _ => l.input::<i64>(input).iter().enumerate().try_for_each(|(i, &x)| set(i, x))?,
    }
    entries.sort_unstable();
    Ok(())
}

/// Multiplies the powers and counts the step.
fn finish(update: &Update, l: &Launch<'_>) {
    if update.updates_powers {
        // The powers follow the rates in the order beta1, beta2: hyper-parameters 1 and 2.
        for (&power, &beta) in update.powers.iter().zip(update.hypers.iter().skip(1)) {
            let beta = scalar(l, beta);
            match l.input_dtype(power) {
                DType::F64 => l.variable::<f64>(power)[0] *= beta,
                _ => l.variable::<f32>(power)[0] *= beta as f32,
            }
        }
    }
    if let Some(step) = update.global_step {
        match l.input_dtype(step) {
            DType::I32 => l.variable::<i32>(step).iter_mut().for_each(|s| *s = s.wrapping_add(1)),
            _ => l.variable::<i64>(step).iter_mut().for_each(|s| *s = s.wrapping_add(1)),
        }
    }
}

/// The value of a floating scalar input.
pub(super) fn scalar(l: &Launch<'_>, i: usize) -> f64 {
    match l.input_dtype(i) {
        DType::F64 => l.first::<f64>(i),
        _ => l.first::<f32>(i).into(),
    }
}

impl Variable {
    fn pointers(&self, l: &Launch<'_>) -> Pointers {
        let at = |i: usize| match self.dtype {
            DType::F64 => l.input_ptr::<f64>(i).0.cast::<u8>().cast_mut(),
            _ => l.input_ptr::<f32>(i).0.cast::<u8>().cast_mut(),
        };
        let slot = |i: usize| self.inputs.slots.clone().nth(i).map_or(std::ptr::null_mut(), at);
        Pointers { var: at(self.inputs.var), slots: [slot(0), slot(1), slot(2)], gradient: at(self.inputs.gradient) }
    }
}

/// One variable's part of a launch.
struct Work<'a> {
    step: &'a Step,
    each: bool,
    variable: &'a Variable,
    at: Pointers,
    entries: &'a [Entry],
    buffers: &'a Buffers<'a>,
    tiles: &'a StreamScratch,
}

impl Work<'_> {
    #[inline(always)]
    fn run<T: Real>(&self, piece: &Piece) -> Result<(), String> {
        let width = self.variable.width;
        match piece {
            Piece::Dense { elements, .. } => match &self.variable.stream {
                Some(stream) => stream.each(self.buffers, self.tiles, elements.clone(), |elements, at| {
                    // SAFETY: the tile's elements, which are this thread's until the next tile.
                    let gradient = unsafe { std::slice::from_raw_parts(at.cast::<T>(), elements.len()) };
                    let (var, slots) = self.written::<T>(elements);
                    self.step.dense(var, slots, gradient);
                })?,
                None => {
                    let gradient = self.gradient::<T>(elements.clone());
                    let (var, slots) = self.written::<T>(elements.clone());
                    self.step.dense(var, slots, gradient);
                }
            },
            Piece::Entries { entries, .. } => {
                let mut next = entries.start;
                while next < entries.end {
                    let (row, first) = (self.entries[next].0, next);
                    next = first + self.entries[first..].iter().take_while(|e| e.0 == row).count();
                    // The piece that holds the first entry of a row does the whole row.
                    if first == 0 || self.entries[first - 1].0 != row {
                        self.row::<T>(row, &self.entries[first..next]);
                    }
                }
            }
            Piece::Rows { rows, .. } => {
                let (var, [m, v, _]) = self.written::<T>(rows.start * width..rows.end * width);
                self.step.decay(m, v);
                let from = self.entries.partition_point(|e| e.0 < rows.start);
                let to = self.entries.partition_point(|e| e.0 < rows.end);
                for same in self.entries[from..to].chunk_by(|a, b| a.0 == b.0) {
                    let start = (same[0].0 - rows.start) * width;
                    self.summed::<T>(same, |columns, sum| {
                        let at = start + columns.start..start + columns.end;
                        self.step.scatter(&mut m[at.clone()], &mut v[at], sum);
                    });
                }
                self.step.move_all(var, m, v);
            }
        }
        Ok(())
    }

    /// Updates one row from all its entries.
    #[inline(always)]
    fn row<T: Real>(&self, row: usize, same: &[Entry]) {
        let start = row * self.variable.width;
        if self.each {
            for &(_, at) in same {
                let (var, slots) = self.written::<T>(start..start + self.variable.width);
                self.step.sparse(var, slots, self.gradient_row::<T>(at, 0..self.variable.width));
            }
            return;
        }
        self.summed::<T>(same, |columns, sum| {
            let (var, slots) = self.written::<T>(start + columns.start..start + columns.end);
            self.step.sparse(var, slots, sum);
        });
    }

    /// Sums the entries of one row, some columns at a time, in the order of the values.
    #[inline(always)]
    fn summed<T: Real>(&self, same: &[Entry], mut each: impl FnMut(Range<usize>, &[T])) {
        let width = self.variable.width;
        let mut sums = [T::default(); COLUMNS];
        for start in (0..width).step_by(COLUMNS) {
            let columns = start..width.min(start + COLUMNS);
            let sum = &mut sums[..columns.len()];
            sum.copy_from_slice(self.gradient_row(same[0].1, columns.clone()));
            for &(_, at) in &same[1..] {
                let row = self.gradient_row::<T>(at, columns.clone());
                sum.iter_mut().zip(row).for_each(|(s, &g)| *s = *s + g);
            }
            each(columns, sum);
        }
    }

    #[inline(always)]
    fn gradient_row<T: Real>(&self, at: usize, columns: Range<usize>) -> &[T] {
        let start = at * self.variable.width;
        self.gradient(start + columns.start..start + columns.end)
    }

    #[inline(always)]
    fn gradient<T: Real>(&self, r: Range<usize>) -> &[T] {
        // SAFETY: sizes were checked when the kernel was prepared; the launch keeps the buffer alive.
        unsafe { std::slice::from_raw_parts(self.at.gradient.cast::<T>().add(r.start), r.len()) }
    }

    /// The variable's and the slots' elements; slots that the rule does not have are empty.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    fn written<T: Real>(&self, r: Range<usize>) -> (&mut [T], [&mut [T]; 3]) {
        let slice = |at: *mut u8| match at.is_null() {
            true => Default::default(),
            // SAFETY: buffers of the variable's size, which this launch alone writes; pieces do not overlap, and a
            // piece holds one such borrow of a range at a time.
            false => unsafe { std::slice::from_raw_parts_mut(at.cast::<T>().add(r.start), r.len()) },
        };
        (slice(self.at.var), self.at.slots.map(slice))
    }
}
