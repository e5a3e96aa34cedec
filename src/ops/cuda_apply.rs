//! The CUDA kernel of `ApplyGradients` and of TensorFlow's updates of one variable: one launch for all variables with
//! dense gradients, as far as parameters go.
//!
//! All row numbers of sparse gradients are checked, and the rows sorted, before the first element is written. Every
//! launch that writes asks first whether a check of this or another node failed. The arithmetic is in `apply_rules`.

use super::apply::{Update, VariableInputs};
use super::apply_rules::{UpdateRule, cuda as rules};
use super::cuda_index::{ASKING, Counter, choose};
use super::cuda_indices::{Indices, Sorted};
use crate::base::DType;
use crate::device::cuda::{CudaArg, CudaBuffer, CudaCode, CudaKernel, CudaLaunch, FailureText, c_type};
use crate::graph::KernelContext;
use std::sync::Arc;

/// Threads of a block, as the texts have it.
const THREADS: u32 = 256;
/// Elements that a block updates.
const TILE: usize = 8 * THREADS as usize;
/// Bytes of parameters that a launch may have for its variables: 4 KiB, less those for what they share.
const PARAMETER_BYTES: usize = 3800;

/// Prepares the launches of a node with this layout.
pub(super) fn prepare(update: &Update, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
    if c.inputs.len() != update.num_inputs {
        return Err(format!("want {} inputs, got {}", update.num_inputs, c.inputs.len()));
    }
    let node = Node { update, c };
    let variables = &update.variables;
    let mut launches = Vec::new();
    let (mut scratch, mut entries) = (0, 0);
    let mut checked: Vec<(usize, Indices)> = Vec::new();
    let mut sparse = Vec::new();
    for (v, variable) in variables.iter().enumerate() {
        let Some(indices) = node.indices(variable, entries) else { continue };
        let sorted = (indices.count > 0).then(|| indices.sort(scratch, true));
        if let Some(sorted) = &sorted {
            launches.extend(sorted.launches.iter().cloned());
            (scratch, entries) = (sorted.scratch_end, entries + indices.count);
            checked.push((v, indices));
        }
        sparse.push((variable, indices, sorted));
    }
    let mut last = node.last();
    let in_dense = update.powers.is_empty();
    let mut dense = Vec::new();
    for dtype in [DType::F32, DType::F64] {
        let of_type: Vec<&VariableInputs> = (variables.iter())
            .filter(|v| v.indices.is_none() && c.inputs[v.var].dtype == dtype && !c.inputs[v.var].is_empty())
            .collect();
        let bytes_each = 8 * (4 + update.form.rule.slots().len());
        for variables in of_type.chunks(PARAMETER_BYTES / bytes_each) {
            let last = if in_dense { std::mem::take(&mut last) } else { Scalars::default() };
            dense.push(node.dense(dtype, variables, last));
        }
    }
    launches.extend(dense);
    launches.extend(sparse.iter().filter_map(|(v, indices, sorted)| node.sparse(v, indices, sorted.as_ref())));
    if !last.statements.is_empty() {
        launches.push(last.launch());
    }
    let failure = (!checked.is_empty()).then(|| -> FailureText { Arc::new(move |at, row| bad_row(&checked, at, row)) });
    Ok(CudaKernel { scratch_bytes: scratch, failure, ..CudaKernel::new(launches) })
}

/// The message for a row number, from the number of its entry among those of all sparse gradients.
fn bad_row(checked: &[(usize, Indices)], at: i64, row: i64) -> String {
    let at = usize::try_from(at).unwrap_or(0);
    let found = checked.iter().rev().find(|(_, i)| i.offset <= at);
    let (v, entry, rows) = found.map_or((0, at, 0), |(v, i)| (*v, at - i.offset, i.bound));
    bad_row_number(row, entry, v, rows)
}

/// The message for a row number that is not there.
pub(super) fn bad_row_number(row: i64, entry: usize, variable: usize, rows: usize) -> String {
    format!("row number {row} (entry {entry}) of the gradient of variable {variable} is not in [0, {rows})")
}

/// Parameters that a text declares, their arguments, and statements that use them.
#[derive(Default)]
struct Scalars {
    parameters: String,
    args: Vec<CudaArg>,
    statements: String,
}

impl Scalars {
    fn parameter(&mut self, kind: &str, name: &str, arg: CudaArg) {
        self.parameters.push_str(&format!(",\n    {kind} {name}"));
        self.args.push(arg);
    }

    /// A launch that only does the statements.
    fn launch(self) -> CudaLaunch {
        let text = format!(
            "extern \"C\" __global__ void ENTRY(volatile u64* failure, u32 node{}) {{\n    \
             if (turret_failed(failure)) return;\n    {}\n}}\n",
            self.parameters, self.statements
        );
        let args = [CudaArg::Failure].into_iter().chain(self.args).collect();
        CudaLaunch::Code { code: CudaCode::new(text), blocks: 1, threads: 1, shared_bytes: 0, args }
    }
}

struct Node<'a> {
    update: &'a Update,
    c: &'a KernelContext<'a>,
}

impl Node<'_> {
    /// The hyper-parameters and powers, as `T h0`, …, and what is computed once from them.
    fn scalars(&self) -> Scalars {
        let mut scalars = Scalars { statements: "const T one = 1;".into(), ..Scalars::default() };
        let mut read = |inputs: &[usize], name: &str| {
            for (i, &input) in inputs.iter().enumerate() {
                let kind = format!("const {}*", c_type(self.c.inputs[input].dtype));
                scalars.parameter(&kind, &format!("{name}_at{i}"), CudaArg::input(input));
                scalars.statements.push_str(&format!(" T {name}{i} = (T)(double)*{name}_at{i};"));
            }
        };
        read(&self.update.hypers, "h");
        read(&self.update.powers, "p");
        if !self.update.powers.is_empty() {
            scalars.statements.push_str(rules::ALPHA);
        }
        scalars
    }

    /// What comes after all updates: the powers are multiplied by beta1 and beta2, hyper-parameters 1 and 2, and the
    /// global step is counted.
    fn last(&self) -> Scalars {
        let mut last = Scalars::default();
        if self.update.updates_powers {
            for (i, &power) in self.update.powers.iter().enumerate() {
                let beta = self.update.hypers[i + 1];
                let kinds = [power, beta].map(|i| c_type(self.c.inputs[i].dtype));
                last.parameter(&format!("{}*", kinds[0]), &format!("power{i}"), CudaArg::input(power));
                last.parameter(&format!("const {}*", kinds[1]), &format!("beta{i}"), CudaArg::input(beta));
                last.statements.push_str(&format!("*power{i} = *power{i} * ({})(double)*beta{i}; ", kinds[0]));
            }
        }
        if let Some(step) = self.update.global_step {
            let (kind, unsigned) = match self.c.inputs[step].dtype {
                DType::I32 => ("int", "u32"),
                _ => ("i64", "u64"),
            };
            last.parameter(&format!("{kind}*"), "step", CudaArg::input(step));
            last.statements.push_str(&format!("*step = ({kind})(({unsigned})*step + 1);"));
        }
        last
    }

    /// The row numbers of a variable's gradient, whose entries are numbered from `offset` on.
    fn indices(&self, variable: &VariableInputs, offset: usize) -> Option<Indices> {
        let input = variable.indices?;
        let (dtype, count) = (self.c.inputs[input].dtype, self.c.inputs[input].len());
        let bound = self.c.inputs[variable.var].dims.first().copied().unwrap_or(1);
        Some(Indices { buffer: CudaBuffer::Input(input, 0), dtype, count, bound, negative: false, offset })
    }

    fn code(&self, counter: Counter, dtype: DType, scalars: &Scalars, text: &str) -> CudaCode {
        let text = text.replace("$scalars", &scalars.statements);
        let rule = self.update.form.rule;
        let slots = rule.slots().len() as i64;
        let before = if matches!(rule, UpdateRule::Ftrl | UpdateRule::FtrlV2) { rules::FOLLOWING } else { "" };
        counter.code(&format!("{before}{text}")).with_type("T", dtype).with_constant("SLOTS", slots)
    }

    /// The launch for some variables with dense gradients.
    fn dense(&self, dtype: DType, variables: &[&VariableInputs], last: Scalars) -> CudaLaunch {
        let mut scalars = self.scalars();
        scalars.parameters.push_str(&last.parameters);
        scalars.args.extend(last.args);
        let slots = self.update.form.rule.slots().len();
        let mut blocks = 0;
        for (i, v) in variables.iter().enumerate() {
            scalars.parameter("T*", &format!("var{i}"), CudaArg::input(v.var));
            for (s, slot) in v.slots.clone().enumerate() {
                scalars.parameter("T*", &format!("slot{s}_{i}"), CudaArg::input(slot));
            }
            scalars.parameter("const T*", &format!("gradient{i}"), CudaArg::input(v.gradient));
            let len = self.c.inputs[v.var].len();
            scalars.parameter("i64", &format!("count{i}"), CudaArg::size(len));
            blocks += len.div_ceil(TILE) as u32;
            scalars.parameter("u32", &format!("end{i}"), CudaArg::U32(blocks));
        }
        let choice = choose(variables.len(), &|i| {
            let before = if i == 0 { "0".into() } else { format!("end{}", i - 1) };
            let slots: String = (0..slots).map(|s| format!("slot{s} = slot{s}_{i}; ")).collect();
            format!("var = var{i}; {slots}gradient = gradient{i}; count = count{i}; before = {before};")
        });
        let text = include_str!("cuda/apply.cu").replace("$parameters", &scalars.parameters);
        let text = text.replace("$update", &format!("{{ {} }}", rules::dense(self.update.form)));
        let text = text.replace("$last", &last.statements).replace("$choice", &choice);
        let code = self.code(Counter::for_sizes(&[]), dtype, &scalars, &text).with_constant("TILE", TILE as i64);
        let args = [CudaArg::Failure].into_iter().chain(scalars.args).collect();
        CudaLaunch::Code { code, blocks, threads: THREADS, shared_bytes: 0, args }
    }

    /// The launch for a variable with a gradient of rows; `None` where it changes nothing.
    fn sparse(&self, v: &VariableInputs, indices: &Indices, sorted: Option<&Sorted>) -> Option<CudaLaunch> {
        let desc = &self.c.inputs[v.var];
        let width: usize = desc.dims.iter().skip(1).product();
        let adam = self.update.form.rule == UpdateRule::Adam;
        let work = if adam { desc.len() } else { indices.count * width };
        if work == 0 {
            return None;
        }
        let scalars = self.scalars();
        let counter = Counter::for_sizes(&[desc.len(), indices.count * width]);
        let text = match adam {
            true => include_str!("cuda/apply_adam_rows.cu").replace("$decay", rules::DECAY),
            false => include_str!("cuda/apply_rows.cu")
                .replace("$update", &format!("{{ {} }}", rules::sparse(self.update.form))),
        };
        let text = text.replace("$scatter", rules::SCATTER).replace("$move", rules::MOVE_ALL);
        let text = text.replace("$parameters", &scalars.parameters);
        let code = self.code(counter, desc.dtype, &scalars, &text).with_constant("EACH", self.update.each.into());
        // Slots and keys that are not there are not read.
        let slot = |i: usize| CudaArg::input(v.slots.clone().nth(i).unwrap_or(v.var));
        let (keys, shift) = sorted.map_or((CudaArg::input(v.var), CudaArg::I32(0)), |s| (s.keys, s.shift));
        let third = (!adam).then(|| slot(2));
        let buffers = [CudaArg::input(v.var), slot(0), slot(1)].into_iter().chain(third);
        let buffers = buffers.chain([CudaArg::input(v.gradient), keys]);
        let args = [CudaArg::Failure].into_iter().chain(buffers).chain([counter.size(indices.count), shift]);
        let args = args.chain(counter.divisor(width)).chain(adam.then(|| counter.size(work))).chain(scalars.args);
        Some(CudaLaunch::elements(code, work.min(ASKING), args))
    }
}
