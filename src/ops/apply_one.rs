//! TensorFlow's updates of one variable: `ApplyGradientDescent`, `ApplyMomentum`, `ApplyAdam`, …, their forms for
//! gradients of rows (`SparseApply…`), and both for resource variables (`ResourceApply…`, `ResourceSparseApply…`).
//!
//! The formulas are those of `ApplyGradients` (`apply_rules.rs`), and so are the kernels. Absent: `use_locking`, which a
//! step has no need of, and what trains: turret's own programs have one `ApplyGradients` node.

use super::apply::{Update, VariableInputs, check_variable, cost};
use super::apply_rules::{Form, UpdateRule};
use super::{apply_kernels, cuda_apply};
use crate::base::{DType, Shape};
use crate::device::cuda::CudaKernel;
use crate::device::{CpuKernel, TileStream};
use crate::graph::{Attrs, Cost, Fact, InferContext, KernelContext, Op, Traits};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// A run of the inputs of one of TensorFlow's updates.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UpdateInputs {
    /// The variable and its slots.
    Own,
    /// The scalars of [`UpdateRule::powers`].
    Powers,
    /// Some of [`UpdateRule::hypers`].
    Hypers(Range<usize>),
    /// The gradient, or its rows and their numbers.
    Gradient,
}

impl UpdateRule {
    /// TensorFlow's op type for dense gradients.
    pub fn dense_op(self) -> &'static str {
        dense(self).name
    }

    /// TensorFlow's op type for gradients of rows, of which no row is named twice, if it has one.
    pub fn sparse_op(self) -> Option<&'static str> {
        ALL.iter().find(|op| op.rule == self && op.sparse && !op.resource).map(|op| op.name)
    }

    /// The inputs of both, in order.
    pub fn inputs(self) -> Vec<UpdateInputs> {
        use UpdateInputs::{Gradient, Hypers, Own, Powers};
        let hypers = Hypers(0..self.hypers().len());
        match self {
            UpdateRule::Momentum => vec![Own, Hypers(0..1), Gradient, Hypers(1..2)],
            UpdateRule::Adam => vec![Own, Powers, hypers, Gradient],
            UpdateRule::Ftrl | UpdateRule::FtrlV2 => vec![Own, Gradient, hypers],
            _ => vec![Own, hypers, Gradient],
        }
    }
}

fn dense(rule: UpdateRule) -> &'static UpdateOp {
    // Every rule has one; a test walks them.
    ALL.iter().find(|op| op.rule == rule && !op.sparse && !op.resource).copied().unwrap_or(&APPLY_GRADIENT_DESCENT)
}

/// One of TensorFlow's updates of one variable.
#[derive(PartialEq)]
pub struct UpdateOp {
    name: &'static str,
    rule: UpdateRule,
    /// The gradient is rows, each of which updates its row by itself, one after another.
    sparse: bool,
    /// The variable and its slots are resources, and there is no output.
    resource: bool,
}

impl UpdateOp {
    fn update(&self, attrs: &Attrs) -> Update {
        let on = |name: &str| attrs.get(name).is_none() || attrs.bool(name);
        let form = Form { rule: self.rule, nesterov: attrs.bool("use_nesterov"), keeps_slots: !on("update_slots") };
        let own = VariableInputs { var: 0, slots: 0..0, gradient: 0, indices: None };
        let mut update = Update {
            form,
            hypers: smallvec![0; self.rule.hypers().len()],
            powers: SmallVec::new(),
            variables: Vec::new(),
            updates_powers: false,
            each: true,
            global_step: None,
            num_inputs: 0,
        };
        let mut inputs = own;
        let mut next = 0;
        let mut take = |count: usize| {
            next += count;
            next - count..next
        };
        for run in self.rule.inputs() {
            match run {
                UpdateInputs::Own => {
                    inputs.var = take(1).start;
                    inputs.slots = take(self.rule.slots().len());
                }
                UpdateInputs::Powers => update.powers.extend(take(self.rule.powers().len())),
                UpdateInputs::Hypers(which) => {
                    let at = take(which.len());
                    update.hypers[which].iter_mut().zip(at).for_each(|(h, at)| *h = at);
                }
                UpdateInputs::Gradient => {
                    inputs.gradient = take(1).start;
                    inputs.indices = self.sparse.then(|| take(1).start);
                }
            }
        }
        update.variables.push(inputs);
        update.num_inputs = take(0).start;
        update
    }
}

impl Op for UpdateOp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn traits(&self) -> Traits {
        let traits = Traits { stateful: true, no_gradient: true, ..Traits::default() };
        Traits { fallible: self.sparse, checks_before_writing: true, ..traits }
    }

    fn infer(&self, c: &InferContext<'_>) -> Result<Vec<Fact>, String> {
        let update = self.update(c.attrs);
        c.want_inputs(update.num_inputs)?;
        if c.attrs.bool("multiply_linear_by_lr") {
            return Err("attribute 'multiply_linear_by_lr' must be false".into());
        }
        let dtype = c.dtype(0);
        let names = self.rule.hypers().iter().zip(&update.hypers);
        for (name, &i) in names.chain(self.rule.powers().iter().zip(&update.powers)) {
            if !c.shape(i).is_compatible_with(&Shape::scalar()) {
                return Err(format!("{name} must be a scalar, got shape {}", c.shape(i)));
            }
            if !c.dtype(i).is_floating() {
                return Err(format!("{name} must be float32 or float64, got {}", c.dtype(i)));
            }
        }
        if !dtype.is_floating() {
            return Err(format!("the variable must be float32 or float64 to be trained, got {dtype}"));
        }
        update.variables.iter().try_for_each(|v| check_variable(c, 0, v))?;
        Ok(if self.resource { Vec::new() } else { vec![c.inputs[0].clone()] })
    }

    fn cost(&self, c: &KernelContext<'_>) -> Cost {
        let written = 0..1 + self.rule.slots().len();
        cost(self.rule, c, written, std::iter::once(0))
    }

    fn written_inputs(&self, _attrs: &Attrs, num_inputs: usize) -> SmallVec<[usize; 4]> {
        // The variable and its slots come first, as in every of TensorFlow's updates.
        (0..1 + self.rule.slots().len()).filter(|&i| i < num_inputs).collect()
    }

    fn cpu_kernel(&self, c: &KernelContext<'_>) -> Result<CpuKernel, String> {
        self.streaming_kernel(c, Vec::new())
    }

    fn streamed_inputs(&self, c: &KernelContext<'_>) -> SmallVec<[usize; 4]> {
        self.update(c.attrs).dense_gradients().collect()
    }

    fn streaming_kernel(&self, c: &KernelContext<'_>, streams: Vec<(usize, TileStream)>) -> Result<CpuKernel, String> {
        apply_kernels::prepare(self.update(c.attrs), c, streams)
    }

    fn cuda_kernel(&self, c: &KernelContext<'_>) -> Result<CudaKernel, String> {
        cuda_apply::prepare(&self.update(c.attrs), c)
    }

    fn has_cuda_kernel(&self, _attrs: &Attrs, outputs: &[Fact]) -> bool {
        outputs.iter().all(|o| matches!(o.dtype, DType::F32 | DType::F64))
    }
}

macro_rules! updates {
    ($($op:ident = $name:literal, $rule:ident, $sparse:literal, $resource:literal;)*) => {
        $(
            #[doc = concat!("TensorFlow's `", $name, "`.")]
            pub static $op: UpdateOp =
                UpdateOp { name: $name, rule: UpdateRule::$rule, sparse: $sparse, resource: $resource };
        )*

        /// All of them.
        static ALL: &[&UpdateOp] = &[$(&$op),*];
    };
}

// Name, rule, whether the gradient is rows, whether the variables are resources.
updates! {
    APPLY_GRADIENT_DESCENT = "ApplyGradientDescent", GradientDescent, false, false;
    RESOURCE_APPLY_GRADIENT_DESCENT = "ResourceApplyGradientDescent", GradientDescent, false, true;
    APPLY_MOMENTUM = "ApplyMomentum", Momentum, false, false;
    RESOURCE_APPLY_MOMENTUM = "ResourceApplyMomentum", Momentum, false, true;
    SPARSE_APPLY_MOMENTUM = "SparseApplyMomentum", Momentum, true, false;
    RESOURCE_SPARSE_APPLY_MOMENTUM = "ResourceSparseApplyMomentum", Momentum, true, true;
    APPLY_ADAM = "ApplyAdam", Adam, false, false;
    RESOURCE_APPLY_ADAM = "ResourceApplyAdam", Adam, false, true;
    APPLY_RMS_PROP = "ApplyRMSProp", RmsProp, false, false;
    RESOURCE_APPLY_RMS_PROP = "ResourceApplyRMSProp", RmsProp, false, true;
    SPARSE_APPLY_RMS_PROP = "SparseApplyRMSProp", RmsProp, true, false;
    RESOURCE_SPARSE_APPLY_RMS_PROP = "ResourceSparseApplyRMSProp", RmsProp, true, true;
    APPLY_CENTERED_RMS_PROP = "ApplyCenteredRMSProp", CenteredRmsProp, false, false;
    RESOURCE_APPLY_CENTERED_RMS_PROP = "ResourceApplyCenteredRMSProp", CenteredRmsProp, false, true;
    SPARSE_APPLY_CENTERED_RMS_PROP = "SparseApplyCenteredRMSProp", CenteredRmsProp, true, false;
    RESOURCE_SPARSE_APPLY_CENTERED_RMS_PROP = "ResourceSparseApplyCenteredRMSProp", CenteredRmsProp, true, true;
    APPLY_ADAGRAD = "ApplyAdagrad", Adagrad, false, false;
    RESOURCE_APPLY_ADAGRAD = "ResourceApplyAdagrad", Adagrad, false, true;
    SPARSE_APPLY_ADAGRAD = "SparseApplyAdagrad", Adagrad, true, false;
    RESOURCE_SPARSE_APPLY_ADAGRAD = "ResourceSparseApplyAdagrad", Adagrad, true, true;
    APPLY_ADAGRAD_V2 = "ApplyAdagradV2", AdagradV2, false, false;
    RESOURCE_APPLY_ADAGRAD_V2 = "ResourceApplyAdagradV2", AdagradV2, false, true;
    SPARSE_APPLY_ADAGRAD_V2 = "SparseApplyAdagradV2", AdagradV2, true, false;
    RESOURCE_SPARSE_APPLY_ADAGRAD_V2 = "ResourceSparseApplyAdagradV2", AdagradV2, true, true;
    APPLY_ADADELTA = "ApplyAdadelta", Adadelta, false, false;
    RESOURCE_APPLY_ADADELTA = "ResourceApplyAdadelta", Adadelta, false, true;
    SPARSE_APPLY_ADADELTA = "SparseApplyAdadelta", Adadelta, true, false;
    RESOURCE_SPARSE_APPLY_ADADELTA = "ResourceSparseApplyAdadelta", Adadelta, true, true;
    APPLY_FTRL = "ApplyFtrl", Ftrl, false, false;
    RESOURCE_APPLY_FTRL = "ResourceApplyFtrl", Ftrl, false, true;
    SPARSE_APPLY_FTRL = "SparseApplyFtrl", Ftrl, true, false;
    RESOURCE_SPARSE_APPLY_FTRL = "ResourceSparseApplyFtrl", Ftrl, true, true;
    APPLY_FTRL_V2 = "ApplyFtrlV2", FtrlV2, false, false;
    RESOURCE_APPLY_FTRL_V2 = "ResourceApplyFtrlV2", FtrlV2, false, true;
    SPARSE_APPLY_FTRL_V2 = "SparseApplyFtrlV2", FtrlV2, true, false;
    RESOURCE_SPARSE_APPLY_FTRL_V2 = "ResourceSparseApplyFtrlV2", FtrlV2, true, true;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_its_ops_and_each_is_in_the_table() {
        for rule in UpdateRule::ALL {
            assert_eq!(dense(rule).rule, rule, "{}", rule.name());
        }
        for op in ALL {
            let found = super::super::find(op.name).unwrap_or_else(|| panic!("{} is not in the table", op.name));
            let update = op.update(&Attrs::new());
            let written = found.written_inputs(&Attrs::new(), update.num_inputs);
            assert_eq!(written.len(), 1 + op.rule.slots().len(), "{}", op.name);
            let scalars = update.hypers.len() + update.powers.len();
            assert_eq!(update.num_inputs, written.len() + scalars + 1 + usize::from(op.sparse), "{}", op.name);
        }
    }
}
