//! What TensorFlow has for `ApplyGradients`: its optimizers' own subgraphs (tensorflow/python/training, 1.15).
//!
//! Gradients of rows are summed by row first, as TensorFlow's optimizers do. Names are TensorFlow's as far as there is
//! one: `Adam/update_w/ApplyAdam`, `Adam/mul`, `Adam/Assign`, under the `NoOp` `Adam`.

use super::expand::{Expander, NewNode, new_node};
use super::proto::NodeDef;
use crate::base::{Array, DType};
use crate::graph::{Node, TensorId};
use crate::ops::{ApplyLayout, UpdateInputs, UpdateRule, VariableInputs};

/// The nodes for one `ApplyGradients` node.
pub(super) fn expand(expander: &mut Expander<'_>, node: &Node) -> Result<Vec<NodeDef>, String> {
    let layout = ApplyLayout::from_attrs(&node.attrs)?;
    if layout.num_inputs() != node.inputs.len() {
        return Err(format!("want {} inputs, got {}", layout.num_inputs(), node.inputs.len()));
    }
    let waits = expander.controls(node);
    let mut new = Expansion { expander, node, layout: &layout, waits, nodes: Vec::new() };
    let mut done: Vec<String> = Vec::new();
    for variable in layout.variables() {
        done.extend(new.update(&variable)?);
    }
    let updated = done.clone();
    if layout.updates_powers {
        for (i, power) in layout.powers().enumerate() {
            done.push(new.raise(power, i + 1, &updated)?);
        }
    }
    if let Some(step) = layout.global_step() {
        done.push(new.count(step, &updated)?);
    }
    let devices: Vec<String> = layout.variables().map(|v| new.device_of(v.var)).collect();
    let one = devices.first().filter(|first| devices.iter().all(|d| d == *first)).cloned();
    let controls = done.iter().map(|n| format!("^{n}")).collect();
    let Expansion { mut nodes, .. } = new;
    nodes.push(new_node(&node.name, "NoOp", controls).on(one.unwrap_or_default()).done()?);
    Ok(nodes)
}

struct Expansion<'e, 'a> {
    expander: &'e mut Expander<'a>,
    node: &'e Node,
    layout: &'e ApplyLayout,
    /// What the whole node waits for, as control inputs.
    waits: Vec<String>,
    nodes: Vec<NodeDef>,
}

/// Where the nodes of one variable's update go.
struct Place {
    /// The scope of their names.
    scope: String,
    /// The variable that they are put with.
    beside: String,
    device: String,
    dtype: DType,
}

impl Expansion<'_, '_> {
    fn tensor(&self, input: usize) -> TensorId {
        self.node.inputs[input]
    }

    fn input(&self, input: usize) -> String {
        self.expander.input(self.tensor(input))
    }

    fn name_of(&self, input: usize) -> String {
        self.expander.source(self.tensor(input)).name.to_string()
    }

    fn device_of(&self, input: usize) -> String {
        self.expander.device(self.tensor(input).node)
    }

    fn place(&self, scope: String, var: usize) -> Place {
        let dtype = self.expander.dtype(self.tensor(var));
        Place { scope, beside: self.name_of(var), device: self.device_of(var), dtype }
    }

    /// Adds a node at a place, and gives its name.
    fn add(
        &mut self,
        at: &Place,
        op: &str,
        inputs: Vec<String>,
        with: impl Fn(NewNode) -> NewNode,
    ) -> Result<String, String> {
        let name = self.expander.free(format!("{}/{op}", at.scope));
        let node = new_node(&name, op, inputs).on(at.device.clone()).beside(&at.beside);
        self.nodes.push(with(node).done()?);
        Ok(name)
    }

    /// As [`Expansion::add`], of nodes with the one attribute `T`.
    fn compute(&mut self, at: &Place, op: &str, inputs: Vec<String>) -> Result<String, String> {
        self.add(at, op, inputs, |n| n.with("T", at.dtype))
    }

    fn constant(&mut self, at: &Place, value: f64) -> Result<String, String> {
        let array = Array::from_f64(at.dtype, &[], &[value]).map_err(|e| e.to_string())?;
        self.add(at, "Const", Vec::new(), |n| {
            n.with("dtype", at.dtype).with("value", std::sync::Arc::new(array.clone()))
        })
    }

    /// A scalar in the type that it is used in.
    fn scalar(&mut self, at: &Place, input: usize) -> Result<String, String> {
        let (dtype, name) = (self.expander.dtype(self.tensor(input)), self.input(input));
        if dtype == at.dtype {
            return Ok(name);
        }
        self.add(at, "Cast", vec![name], |n| n.with("SrcT", dtype).with("DstT", at.dtype))
    }

    /// The update of one variable; the names of the nodes that finish it.
    fn update(&mut self, v: &VariableInputs) -> Result<Vec<String>, String> {
        let at = self.place(format!("{}/update_{}", self.node.name, self.name_of(v.var)), v.var);
        let hypers = (self.layout.hypers()).map(|i| self.scalar(&at, i)).collect::<Result<Vec<_>, _>>()?;
        let powers = (self.layout.powers()).map(|i| self.scalar(&at, i)).collect::<Result<Vec<_>, _>>()?;
        let own: Vec<String> = std::iter::once(v.var).chain(v.slots.clone()).map(|i| self.input(i)).collect();
        let gradient = self.input(v.gradient);
        let Some(indices) = v.indices else {
            let nesterov = self.layout.use_nesterov;
            let rule = self.layout.rule;
            let inputs = in_order(rule, own, powers, hypers, vec![gradient]);
            let inputs = inputs.into_iter().chain(self.waits.clone()).collect();
            let name = self.add(&at, rule.dense_op(), inputs, |n| match takes_nesterov(rule) && nesterov {
                true => n.with("T", at.dtype).with("use_nesterov", true),
                false => n.with("T", at.dtype),
            })?;
            return Ok(vec![name]);
        };
        let index_type = self.expander.dtype(self.tensor(indices));
        let rows = Rows { values: gradient, indices: self.input(indices), index_type };
        if self.layout.rule == UpdateRule::GradientDescent {
            let step = self.compute(&at, "Mul", vec![rows.values, hypers[0].clone()])?;
            let inputs = [own[0].clone(), rows.indices, step].into_iter().chain(self.waits.clone()).collect();
            return Ok(vec![self.scatter(&at, "ScatterSub", index_type, inputs)?]);
        }
        let rows = self.summed(&at, rows)?;
        if self.layout.rule == UpdateRule::Adam {
            return self.sparse_adam(&at, &own, &powers, &hypers, &rows);
        }
        let nesterov = self.layout.use_nesterov;
        let op = self.layout.rule.sparse_op().ok_or("it has no update of rows of its own")?;
        let inputs = in_order(self.layout.rule, own, powers, hypers, vec![rows.values, rows.indices]);
        let inputs = inputs.into_iter().chain(self.waits.clone()).collect();
        let name = self.add(&at, op, inputs, |n| {
            let node = n.with("T", at.dtype).with("Tindices", index_type);
            if nesterov { node.with("use_nesterov", true) } else { node }
        })?;
        Ok(vec![name])
    }

    fn scatter(&mut self, at: &Place, op: &str, index_type: DType, inputs: Vec<String>) -> Result<String, String> {
        self.add(at, op, inputs, |n| n.with("T", at.dtype).with("Tindices", index_type))
    }

    /// Rows without repetition: `_deduplicate_indexed_slices`.
    fn summed(&mut self, at: &Place, rows: Rows) -> Result<Rows, String> {
        let int = DType::I32;
        let index_type = rows.index_type;
        let unique = self.add(at, "Unique", vec![rows.indices], |n| n.with("T", index_type).with("out_idx", int))?;
        let count = self.add(at, "Size", vec![unique.clone()], |n| n.with("T", index_type).with("out_type", int))?;
        let inputs = vec![rows.values, format!("{unique}:1"), count];
        let values = self.add(at, "UnsortedSegmentSum", inputs, |n| {
            n.with("T", at.dtype).with("Tindices", int).with("Tnumsegments", int)
        })?;
        Ok(Rows { values, indices: unique, index_type })
    }

    /// `AdamOptimizer._apply_sparse_shared`.
    fn sparse_adam(
        &mut self,
        at: &Place,
        own: &[String],
        powers: &[String],
        hypers: &[String],
        rows: &Rows,
    ) -> Result<Vec<String>, String> {
        let one = self.constant(at, 1.0)?;
        let rest = |new: &mut Self, of: &str| new.compute(at, "Sub", vec![one.clone(), of.to_string()]);
        let mut moments = Vec::new();
        for (i, slot) in own[1..].iter().enumerate() {
            let beta = &hypers[1 + i];
            let rest = rest(self, beta)?;
            let values = match i {
                0 => rows.values.clone(),
                _ => self.compute(at, "Mul", vec![rows.values.clone(); 2])?,
            };
            let values = self.compute(at, "Mul", vec![values, rest])?;
            let decayed = self.compute(at, "Mul", vec![slot.clone(), beta.clone()])?;
            let inputs = [slot.clone(), decayed].into_iter().chain(self.waits.clone()).collect();
            let assigned = self.compute(at, "Assign", inputs)?;
            let inputs = vec![slot.clone(), rows.indices.clone(), values, format!("^{assigned}")];
            moments.push(self.scatter(at, "ScatterAdd", rows.index_type, inputs)?);
        }
        let (rest1, rest2) = (rest(self, &powers[0])?, rest(self, &powers[1])?);
        let root = self.compute(at, "Sqrt", vec![rest2])?;
        let rate = self.compute(at, "Mul", vec![hypers[0].clone(), root])?;
        let rate = self.compute(at, "RealDiv", vec![rate, rest1])?;
        let root = self.compute(at, "Sqrt", vec![moments[1].clone()])?;
        let below = self.compute(at, "AddV2", vec![root, hypers[3].clone()])?;
        let above = self.compute(at, "Mul", vec![rate, moments[0].clone()])?;
        let step = self.compute(at, "RealDiv", vec![above, below])?;
        let inputs = [own[0].clone(), step].into_iter().chain(self.waits.clone()).collect();
        let updated = self.compute(at, "AssignSub", inputs)?;
        moments.insert(0, updated);
        Ok(moments)
    }

    /// Multiplies a power by its hyper-parameter after all updates.
    fn raise(&mut self, power: usize, hyper: usize, after: &[String]) -> Result<String, String> {
        let at = self.place(self.node.name.to_string(), power);
        let controls: Vec<String> = after.iter().map(|n| format!("^{n}")).collect();
        let by = self.scalar(&at, hyper)?;
        let name = self.expander.free(format!("{}/mul", at.scope));
        let inputs = [self.input(power), by].into_iter().chain(controls.clone()).collect();
        let product = new_node(&name, "Mul", inputs).with("T", at.dtype).on(at.device.clone()).beside(&at.beside);
        self.nodes.push(product.done()?);
        let inputs = [self.input(power), name].into_iter().chain(controls).collect();
        self.compute(&at, "Assign", inputs)
    }

    /// Counts the step after all updates.
    fn count(&mut self, step: usize, after: &[String]) -> Result<String, String> {
        let at = self.place(self.node.name.to_string(), step);
        let one = self.constant(&at, 1.0)?;
        let controls = after.iter().map(|n| format!("^{n}")).chain(self.waits.clone());
        let inputs = [self.input(step), one].into_iter().chain(controls).collect();
        self.compute(&at, "AssignAdd", inputs)
    }
}

/// A gradient of rows.
struct Rows {
    values: String,
    indices: String,
    index_type: DType,
}

fn takes_nesterov(rule: UpdateRule) -> bool {
    matches!(rule, UpdateRule::Momentum | UpdateRule::Adam)
}

/// The inputs of TensorFlow's op in its order; `gradient` is the gradient, or its rows and their numbers.
fn in_order(
    rule: UpdateRule,
    own: Vec<String>,
    powers: Vec<String>,
    hypers: Vec<String>,
    gradient: Vec<String>,
) -> Vec<String> {
    let run = |inputs: UpdateInputs| match inputs {
        UpdateInputs::Own => own.clone(),
        UpdateInputs::Powers => powers.clone(),
        UpdateInputs::Hypers(which) => hypers[which].to_vec(),
        UpdateInputs::Gradient => gradient.clone(),
    };
    rule.inputs().into_iter().flat_map(run).collect()
}
