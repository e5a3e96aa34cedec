//! Claims: what an op says of its node's buffers, checked before the plan relies on it.
//!
//! Ops can be anybody's; one that says the wrong thing is an error of the plan, never a write to memory that is not
//! its own.

use super::step::{Origin, Partitioned, ValueId};
use crate::base::{Code, Diagnostic, Result};
use crate::device::DeviceId;
use crate::graph::{Node, TensorDesc};
use std::collections::HashSet;

/// Checks what a node writes: variables on its device, each once.
pub(super) fn written(
    p: &Partitioned,
    node: &Node,
    device: DeviceId,
    places: &[usize],
    inputs: &[ValueId],
) -> Result<()> {
    let refuse = |what: String| {
        let message = format!("'{}' ({}) {what}", node.name, node.op_type());
        Err(Diagnostic::at(Code::InvalidArgument, message, node.source).into())
    };
    let mut written = HashSet::with_capacity(places.len());
    for &i in places {
        let value = p.value(inputs[i]);
        let name = &p.pruned.node(value.tensor.node).name;
        if value.copy_of_variable(p) {
            return refuse(format!("runs on {device} but writes variable '{name}', which is elsewhere; colocate them"));
        }
        if !matches!(value.origin, Origin::Variable(_)) {
            return refuse(format!(
                "writes '{}', which is no variable in this run, for it is fed; do not feed what the run changes",
                p.tensor_name(value.tensor)
            ));
        }
        if !written.insert(inputs[i]) {
            return refuse(format!("writes variable '{name}' twice; change it once"));
        }
    }
    Ok(())
}

/// Checks that outputs which are runs of inputs' bytes lie within them.
pub(super) fn aliases(
    p: &Partitioned,
    node: &Node,
    aliases: &[(usize, usize)],
    inputs: &[ValueId],
    outputs: &[TensorDesc],
) -> Result<()> {
    for (i, desc) in outputs.iter().enumerate() {
        let fits = aliases.get(i).is_some_and(|&(input, start)| {
            let whole = inputs.get(input).map(|&v| p.value(v).desc.bytes());
            start.is_multiple_of(desc.dtype.size())
                && whole.zip(start.checked_add(desc.bytes())).is_some_and(|(whole, end)| end <= whole)
        });
        if !fits {
            let message = format!(
                "'{}' ({}) says that output {i} ({} bytes) is a part of an input's bytes, {:?}, which it cannot be: a \
                 fault of the op",
                node.name,
                node.op_type(),
                desc.bytes(),
                aliases.get(i)
            );
            return Err(Diagnostic::at(Code::Internal, message, node.source).into());
        }
    }
    Ok(())
}
