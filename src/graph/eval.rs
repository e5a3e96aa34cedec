//! Evaluates single nodes on host arrays: what planning folds with, and what op tests compare against.
//!
//! Absent: variables, devices and sessions; a node that needs one of them is an error here.

use super::attrs::Attrs;
use super::graph::Graph;
use super::node::TensorId;
use super::op::{Fact, InferContext, KernelContext, OpRef, TensorDesc};
use super::tensor::Tensor;
use crate::base::{Array, DType};
use crate::device::{CpuKernel, Launch, Team, View};
use std::collections::HashMap;
use std::sync::Arc;

/// The largest result, in elements, that is computed while building or planning.
pub(crate) const FOLDED_ELEMENTS: usize = 1024;

/// Runs one op on host arrays and gives its outputs.
///
/// # Errors
/// What the shape rule or the kernel says, without the node's name.
pub fn evaluate(op: OpRef, attrs: &Attrs, inputs: &[Arc<Array>], team: &Team) -> Result<Vec<Arc<Array>>, String> {
    evaluate_by(op, attrs, inputs, team, &|c| op.cpu_kernel(c))
}

/// As [`evaluate`], by another kernel of the op.
///
/// # Errors
/// As [`evaluate`].
pub(crate) fn evaluate_by(
    op: OpRef,
    attrs: &Attrs,
    inputs: &[Arc<Array>],
    team: &Team,
    make: &dyn Fn(&KernelContext<'_>) -> Result<CpuKernel, String>,
) -> Result<Vec<Arc<Array>>, String> {
    if let Some(value) = op.constant(attrs) {
        return Ok(vec![value.clone()]);
    }
    let facts: Vec<Fact> = inputs.iter().map(|a| Fact::new(a.dtype(), a.shape())).collect();
    let values: Vec<Option<Arc<Array>>> = inputs.iter().cloned().map(Some).collect();
    let outputs = op.infer(&InferContext { attrs, inputs: &facts, values: &values })?;
    if let Some(input) = op.traits().forwards {
        let dims = outputs[0].shape.to_dims().ok_or("the output's shape is not known")?;
        let mut output = Array::zeros(outputs[0].dtype, &dims).map_err(|e| e.to_string())?;
        output.bytes_mut().copy_from_slice(inputs[input].bytes());
        return Ok(vec![Arc::new(output)]);
    }
    let descs = |facts: &[Fact]| -> Option<Vec<TensorDesc>> {
        facts.iter().map(|f| Some(TensorDesc { dtype: f.dtype, dims: f.shape.to_dims()? })).collect()
    };
    let input_descs = descs(&facts).ok_or("an input's shape is not known")?;
    let output_descs = descs(&outputs).ok_or("an output's shape is not known")?;
    let context = KernelContext { attrs, inputs: &input_descs, outputs: &output_descs, values: &values };
    let kernel = make(&context)?;
    let results: Vec<Array> = (output_descs.iter())
        .map(|d| Array::zeros(d.dtype, &d.dims).map(fresh).map_err(|e| e.to_string()))
        .collect::<Result<_, _>>()?;
    let view = |a: &Array, writable| View { start: a.start(), len: a.len(), dtype: a.dtype(), writable };
    let input_views: Vec<View> = inputs.iter().map(|a| view(a, false)).collect();
    let output_views: Vec<View> = results.iter().map(|a| view(a, true)).collect();
    if !op.written_inputs(attrs, inputs.len()).is_empty() {
        return Err("a node that writes variables cannot be evaluated alone".into());
    }
    // SAFETY: the arrays live to the end of this function; the results are new and seen by this launch alone.
    kernel(&unsafe { Launch::new(&input_views, &output_views, team) })?;
    Ok(results.into_iter().map(Arc::new).collect())
}

/// A result before its kernel runs. In a step it is what another tensor left; in debug builds it is no zeros either, so
/// that op tests see a kernel that does not write all of it.
fn fresh(mut result: Array) -> Array {
    if cfg!(debug_assertions) {
        // The largest floats, nearly, which no tolerance hides.
        let byte = if result.dtype() == DType::Bool { 1 } else { 0x7F };
        result.bytes_mut().fill(byte);
    }
    result
}

impl Graph {
    /// The value of a tensor, computed on the host from these fed tensors, without a session. For tests and small
    /// constant parts; variables are read from `feeds` too.
    ///
    /// # Errors
    /// The node that failed and why.
    pub fn evaluate<'g>(&'g self, tensor: Tensor<'g>, feeds: &[(Tensor<'g>, Array)]) -> Result<Arc<Array>, String> {
        let team = Team::new(1, "evaluate");
        let mut known: HashMap<TensorId, Arc<Array>> = feeds.iter().map(|(t, a)| (t.id, Arc::new(a.clone()))).collect();
        let mut pending = vec![tensor.id];
        while let Some(&id) = pending.last() {
            if known.contains_key(&id) {
                pending.pop();
                continue;
            }
            let node = self.node(id.node).ok_or("a poison tensor")?;
            let missing: Vec<TensorId> = node.inputs.iter().copied().filter(|i| !known.contains_key(i)).collect();
            if !missing.is_empty() {
                pending.extend(missing);
                continue;
            }
            let inputs: Vec<Arc<Array>> = node.inputs.iter().map(|i| known[i].clone()).collect();
            let outputs = evaluate(node.op, &node.attrs, &inputs, &team).map_err(|e| format!("{}: {e}", node.name))?;
            for (output, array) in outputs.into_iter().enumerate() {
                // Another output of the node may be fed.
                known.entry(TensorId { node: node.id, output: output as u32 }).or_insert(array);
            }
        }
        Ok(known[&tensor.id].clone())
    }
}
