//! `ApplyGradients`: one node that applies the whole (gradient, variable) list of an optimizer.
//!
//! TensorFlow has one `Apply…` node a variable (`apply_one.rs`), and turret's GraphDef forms translate. Formulas are those
//! of TensorFlow's kernels. Absent: making slots and choosing hyper-parameters, which `train` does.

use super::apply_rules::{Form, UpdateRule};
use super::{apply_kernels, cuda_apply};
use crate::base::{DType, Shape};
use crate::device::cuda::CudaKernel;
use crate::device::{CpuKernel, TileStream};
use crate::graph::{Attrs, Cost, Fact, InferContext, KernelContext, Op, Part, Traits};
use smallvec::SmallVec;
use std::ops::Range;

/// Where one variable's inputs are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VariableInputs {
    /// The variable's buffer.
    pub var: usize,
    /// Its slots' buffers.
    pub slots: Range<usize>,
    /// The gradient, or its rows.
    pub gradient: usize,
    /// The row numbers, for a gradient of rows.
    pub indices: Option<usize>,
}

/// Where the inputs of a node that updates variables are, for its kernels.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Update {
    /// What is computed.
    pub form: Form,
    /// In the order of [`UpdateRule::hypers`].
    pub hypers: SmallVec<[usize; 5]>,
    /// In the order of [`UpdateRule::powers`].
    pub powers: SmallVec<[usize; 2]>,
    /// The variables, each with its inputs.
    pub variables: Vec<VariableInputs>,
    /// Whether the powers are variables that are multiplied afterwards.
    pub updates_powers: bool,
    /// Whether each entry of a gradient of rows updates its row by itself; else those of one row are summed before.
    pub each: bool,
    /// The global step's buffer.
    pub global_step: Option<usize>,
    /// Number of inputs.
    pub num_inputs: usize,
}

impl Update {
    /// The inputs that are gradients, element by element.
    pub fn dense_gradients(&self) -> impl Iterator<Item = usize> + '_ {
        self.variables.iter().filter(|v| v.indices.is_none()).map(|v| v.gradient)
    }
}

/// The order of an `ApplyGradients` node's inputs. Everyone who builds, splits or runs one goes by this:
///
/// 1. the hyper-parameters of [`UpdateRule::hypers`]: scalars of any floating type, cast to each variable's type;
/// 2. the shared variables of [`UpdateRule::powers`] (buffers; multiplied by beta1 and beta2 after all updates);
/// 3. for each variable: its buffer, its slots' buffers, and its gradient, or the gradient's rows and row numbers;
/// 4. the global step's buffer (`int32` or `int64`; incremented by one), if `has_global_step`.
///
/// A part without variables that does not update the powers has neither 1 nor 2.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApplyLayout {
    /// Attribute `optimizer`.
    pub rule: UpdateRule,
    /// Attribute `use_nesterov`: Momentum and Adam look ahead.
    pub use_nesterov: bool,
    /// Attribute `sparse`: which gradients are rows with row numbers. Its length is attribute `num_vars`.
    pub sparse: Vec<bool>,
    /// Attribute `updates_powers`: whether this part multiplies the powers; true where unset.
    pub updates_powers: bool,
    /// Attribute `has_global_step`.
    pub has_global_step: bool,
}

impl ApplyLayout {
    /// The layout of a whole node.
    pub fn new(rule: UpdateRule, use_nesterov: bool, sparse: Vec<bool>, has_global_step: bool) -> ApplyLayout {
        ApplyLayout { rule, use_nesterov, sparse, updates_powers: true, has_global_step }
    }

    /// The layout that a node's attributes describe.
    ///
    /// # Errors
    /// When an attribute is missing or contradicts another.
    pub fn from_attrs(attrs: &Attrs) -> Result<ApplyLayout, String> {
        let name = attrs.str("optimizer").ok_or("attribute 'optimizer' is missing")?;
        let rule = UpdateRule::from_name(name).ok_or_else(|| {
            let known: Vec<&str> = UpdateRule::ALL.iter().map(|r| r.name()).collect();
            format!("attribute 'optimizer' must be one of {}, got '{name}'", known.join(", "))
        })?;
        let sparse = attrs.bools("sparse");
        let count = attrs.int("num_vars").unwrap_or(sparse.len() as i64);
        if count != sparse.len() as i64 {
            return Err(format!("attribute 'num_vars' is {count}, but 'sparse' has {} entries", sparse.len()));
        }
        let updates_powers = attrs.get("updates_powers").is_none() || attrs.bool("updates_powers");
        Ok(ApplyLayout {
            rule,
            use_nesterov: attrs.bool("use_nesterov"),
            sparse: sparse.to_vec(),
            updates_powers,
            has_global_step: attrs.bool("has_global_step"),
        })
    }

    /// The attributes that describe this layout.
    pub fn attrs(&self) -> Attrs {
        Attrs::new()
            .with("optimizer", self.rule.name())
            .with("use_nesterov", self.use_nesterov)
            .with("sparse", self.sparse.clone())
            .with("num_vars", self.sparse.len() as i64)
            .with("updates_powers", self.updates_powers)
            .with("has_global_step", self.has_global_step)
    }

    /// Number of variables.
    pub fn num_vars(&self) -> usize {
        self.sparse.len()
    }

    /// The hyper-parameters.
    pub fn hypers(&self) -> Range<usize> {
        let only_counts = self.sparse.is_empty() && (!self.updates_powers || self.rule.powers().is_empty());
        0..if only_counts { 0 } else { self.rule.hypers().len() }
    }

    /// The shared variables.
    pub fn powers(&self) -> Range<usize> {
        let start = self.hypers().end;
        start..start + if start == 0 { 0 } else { self.rule.powers().len() }
    }

    /// The inputs of all variables, in order.
    pub fn variables(&self) -> impl Iterator<Item = VariableInputs> + '_ {
        let slots = self.rule.slots().len();
        self.sparse.iter().scan(self.powers().end, move |next, &sparse| {
            let var = *next;
            let gradient = var + 1 + slots;
            *next = gradient + 1 + usize::from(sparse);
            Some(VariableInputs { var, slots: var + 1..gradient, gradient, indices: sparse.then_some(gradient + 1) })
        })
    }

    fn variables_end(&self) -> usize {
        let rows = self.sparse.iter().filter(|s| **s).count();
        self.powers().end + self.sparse.len() * (2 + self.rule.slots().len()) + rows
    }

    /// The global step's buffer.
    pub fn global_step(&self) -> Option<usize> {
        self.has_global_step.then(|| self.variables_end())
    }

    /// Number of inputs.
    pub fn num_inputs(&self) -> usize {
        self.variables_end() + usize::from(self.has_global_step)
    }

    /// What kernels go by.
    pub(super) fn update(&self) -> Update {
        Update {
            form: Form { rule: self.rule, nesterov: self.use_nesterov, keeps_slots: false },
            hypers: self.hypers().collect(),
            powers: self.powers().collect(),
            variables: self.variables().collect(),
            updates_powers: self.updates_powers,
            // TensorFlow scatters each entry by itself here.
            each: self.rule == UpdateRule::GradientDescent,
            global_step: self.global_step(),
            num_inputs: self.num_inputs(),
        }
    }

    fn written(&self) -> impl Iterator<Item = usize> + '_ {
        let powers = if self.updates_powers { self.powers() } else { 0..0 };
        powers.chain(self.variables().flat_map(|v| v.var..v.slots.end)).chain(self.global_step())
    }
}

/// One node for a whole training step's updates; see [`ApplyLayout`] for its inputs. It has no outputs.
pub struct ApplyGradients;

impl Op for ApplyGradients {
    fn name(&self) -> &'static str {
        "ApplyGradients"
    }

    fn traits(&self) -> Traits {
        let traits = Traits { stateful: true, no_gradient: true, ..Traits::default() };
        Traits { fallible: true, checks_before_writing: true, ..traits }
    }

    fn can_fail(&self, attrs: &Attrs, _outputs: &[DType]) -> bool {
        // Only the row numbers of gradients of rows can be wrong.
        attrs.bools("sparse").contains(&true)
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        let layout = ApplyLayout::from_attrs(c.attrs)?;
        c.want_inputs(layout.num_inputs())?;
        let scalar = |i: usize, name: &str| -> Result<(), String> {
            if !c.shape(i).is_compatible_with(&Shape::scalar()) {
                return Err(format!("{name} must be a scalar, got shape {}", c.shape(i)));
            }
            Ok(())
        };
        let names = layout.rule.hypers().iter().chain(layout.rule.powers());
        for (i, name) in (0..layout.powers().end).zip(names) {
            scalar(i, name)?;
            if !c.dtype(i).is_floating() {
                return Err(format!("{name} must be float32 or float64, got {}", c.dtype(i)));
            }
        }
        for (number, v) in layout.variables().enumerate() {
            check_variable(c, number, &v)?;
        }
        if let Some(step) = layout.global_step() {
            scalar(step, "the global step")?;
            if !c.dtype(step).is_integer() {
                return Err(format!("the global step must be int32 or int64, got {}", c.dtype(step)));
            }
        }
        Ok(Vec::new())
    }

    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        let Ok(layout) = ApplyLayout::from_attrs(c.attrs) else { return Cost::default() };
        cost(layout.rule, c, layout.written(), layout.variables().map(|v| v.var))
    }

    fn written_inputs(&self, attrs: &Attrs, num_inputs: usize) -> SmallVec<[usize; 4]> {
        match ApplyLayout::from_attrs(attrs) {
            Ok(layout) => layout.written().filter(|&i| i < num_inputs).collect(),
            Err(_) => SmallVec::new(),
        }
    }

    /// One part a device, in the order of the first variable there. The beta powers are multiplied by the part on
    /// their device alone, and the global step is counted by the part on its device; where no variable lives there,
    /// a part without variables does it. Powers on two devices cannot be split.
    fn split(&self, attrs: &Attrs, num_inputs: usize, device_of: &dyn Fn(usize) -> u32) -> Option<Vec<Part>> {
        let whole = ApplyLayout::from_attrs(attrs).ok().filter(|l| l.num_inputs() == num_inputs)?;
        let mut groups: Vec<Group> = Vec::new();
        let group_of = |groups: &mut Vec<Group>, input: usize| {
            let device = device_of(input);
            groups.iter().position(|g| g.device == device).unwrap_or_else(|| {
                groups.push(Group { device, follows: input, ..Group::default() });
                groups.len() - 1
            })
        };
        for v in whole.variables() {
            let group = group_of(&mut groups, v.var);
            groups[group].variables.push(v);
        }
        let powers = whole.powers();
        if whole.updates_powers && !powers.is_empty() {
            let group = group_of(&mut groups, powers.start);
            if powers.clone().any(|p| device_of(p) != groups[group].device) {
                return None;
            }
            groups[group].powers = true;
        }
        if let Some(step) = whole.global_step() {
            let group = group_of(&mut groups, step);
            groups[group].step = Some(step);
        }
        Some(groups.into_iter().map(|g| g.part(&whole)).collect())
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        self.streaming_kernel(c, Vec::new())
    }

    fn streamed_inputs(&self, c: &KernelContext<'_>) -> SmallVec<[usize; 4]> {
        ApplyLayout::from_attrs(c.attrs).map_or_else(|_| SmallVec::new(), |l| l.update().dense_gradients().collect())
    }

    fn streaming_kernel(&self, c: &KernelContext<'_>, streams: Vec<(usize, TileStream)>) -> Result<CpuKernel, String> {
        apply_kernels::prepare(ApplyLayout::from_attrs(c.attrs)?.update(), c, streams)
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        cuda_apply::prepare(&ApplyLayout::from_attrs(c.attrs)?.update(), c)
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, _outputs: &[Fact]) -> bool {
        true
    }
}

/// The cost of an update that writes these inputs, of these variables.
pub(super) fn cost(
    rule: UpdateRule,
    c: &KernelContext<'_>,
    written: impl Iterator<Item = usize>,
    variables: impl Iterator<Item = usize>,
) -> Cost {
    let read: usize = c.inputs.iter().map(|d| d.bytes()).sum();
    let written: usize = written.filter_map(|i| c.inputs.get(i)).map(|d| d.bytes()).sum();
    let elements: usize = variables.filter_map(|v| c.inputs.get(v)).map(|d| d.len()).sum();
    Cost { flops: rule.flops() * elements as f64, bytes: (read + written) as f64 }
}

#[derive(Default)]
struct Group {
    device: u32,
    follows: usize,
    variables: Vec<VariableInputs>,
    powers: bool,
    step: Option<usize>,
}

impl Group {
    fn part(self, whole: &ApplyLayout) -> Part {
        let layout = ApplyLayout {
            rule: whole.rule,
            use_nesterov: whole.use_nesterov,
            sparse: self.variables.iter().map(|v| v.indices.is_some()).collect(),
            updates_powers: self.powers,
            has_global_step: self.step.is_some(),
        };
        let shared = if layout.hypers().is_empty() { 0..0 } else { 0..whole.powers().end };
        let variables = self.variables.iter().flat_map(|v| v.var..v.indices.unwrap_or(v.gradient) + 1);
        let inputs = shared.chain(variables).chain(self.step).collect();
        Part { inputs, attrs: layout.attrs(), follows: self.follows }
    }
}

/// One variable's slots and gradient must be of its type and shape.
pub(super) fn check_variable(c: &InferContext<'_>, number: usize, v: &VariableInputs) -> Result<(), String> {
    let (dtype, shape) = (c.dtype(v.var), c.shape(v.var));
    if !dtype.is_floating() {
        return Err(format!("variable {number} must be float32 or float64 to be trained, got {dtype}"));
    }
    let like = |i: usize, what: &str, want: &Shape| -> Result<(), String> {
        if c.dtype(i) != dtype {
            return Err(format!("{what} of variable {number} must have its type: want {dtype}, got {}", c.dtype(i)));
        }
        if !c.shape(i).is_compatible_with(want) {
            return Err(format!("{what} of variable {number} must have its shape: want {want}, got {}", c.shape(i)));
        }
        Ok(())
    };
    v.slots.clone().try_for_each(|slot| like(slot, "a slot", shape))?;
    let Some(indices) = v.indices else { return like(v.gradient, "the gradient", shape) };
    let Some(dims) = shape.dims() else { return Ok(()) };
    let Some((_, width)) = dims.split_first() else {
        return Err(format!("variable {number} is a scalar, so its gradient cannot be rows; make the gradient dense"));
    };
    let count = c.shape(indices).dim(0);
    like(v.gradient, "the gradient's rows", &Shape::partial([count].into_iter().chain(width.iter().copied())))?;
    if !c.dtype(indices).is_integer() || c.shape(indices).rank().is_some_and(|r| r != 1) {
        return Err(format!(
            "the row numbers for variable {number} must be an int32 or int64 vector, got {} {}",
            c.dtype(indices),
            c.shape(indices)
        ));
    }
    Ok(())
}
