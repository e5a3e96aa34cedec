//! Every case of the op table on a CUDA GPU against the host's kernel, as `examples/device_check` runs them.

use super::in_child;

#[allow(dead_code)]
#[path = "../../../examples/device_check/items.rs"]
mod items;
#[allow(dead_code)]
#[path = "../../../examples/device_check/ops.rs"]
pub(super) mod walk;

#[test]
fn child_every_op_agrees_with_the_host() {
    if !in_child() {
        return;
    }
    let cases = walk::cases();
    let check = |(op, i, case): &(_, usize, _)| {
        let op: turret::graph::OpRef = *op;
        walk::check(op, case).err().map(|why| format!("case {i} of {}: {why}", op.name()))
    };
    let failures: Vec<String> = cases.iter().filter_map(check).collect();
    println!("{} cases on CUDA", cases.len());
    assert!(failures.is_empty(), "{} of {} cases fail:\n{}", failures.len(), cases.len(), failures.join("\n"));
    assert!(cases.len() > 100, "only {} cases have a CUDA kernel", cases.len());
}
