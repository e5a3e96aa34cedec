//! What becomes one node on CUDA GPUs, what does not, and how host and GPUs take turns.

use super::planned_tests::{self as planned, inputs, kernels};
use super::*;
use crate::base::DType;
use crate::device::Machine;
use crate::graph::{Graph, Init, Operation, Tensor};

fn plan<'g>(g: &'g Graph, fetches: &[Tensor<'g>], targets: &[Operation<'g>], dims: &[&[usize]]) -> Schedule {
    planned::plan(g, Machine::pretended_cuda(&[0, 1]), fetches, targets, dims)
}

#[test]
fn chains_become_one_kernel_and_broadcast_what_they_read() {
    let g = Graph::new();
    let dims: [&[usize]; 3] = [&[4, 3], &[3], &[]];
    let x = inputs(&g, &dims);
    let y = g.device("/gpu:0", || ((x[0] * x[1] + x[2]).tanh() - x[0]).square());
    let schedule = plan(&g, &[y], &[], &dims);
    assert_eq!(kernels(&schedule), ["Mul+AddV2+Tanh+Sub+Square"]);
    let fused = schedule.step.nodes.iter().find(|n| n.fusion.is_some()).unwrap();
    assert_eq!(fused.inputs.len(), 3);
    assert!(schedule.step.nodes.iter().enumerate().all(|(i, n)| n.controls.iter().all(|c| c.index() < i)));
}

#[test]
fn what_is_fetched_or_read_elsewhere_stays_a_node() {
    let g = Graph::new();
    let dims: [&[usize]; 1] = [&[4, 3]];
    let x = inputs(&g, &dims)[0];
    let (m, sums) = g.device("/gpu:0", || {
        let m = x.exp();
        (m, (m + 1.0).tanh().sum_axes(&[0], false))
    });
    // The reduction ends a chain; what it reads is one.
    assert_eq!(kernels(&plan(&g, &[sums], &[], &dims)), ["Exp+AddV2+Tanh", "Sum"]);
    assert_eq!(kernels(&plan(&g, &[sums, m], &[], &dims)), ["Exp", "AddV2+Tanh", "Sum"]);
    // Two chains read it: it is computed once.
    let other = g.device("/gpu:0", || (m * 2.0).sqrt().mean_axes(&[1], false));
    assert_eq!(kernels(&plan(&g, &[sums, other], &[], &dims))[0], "Exp");
    // Both ways lead to one end: it is computed once too, in the one kernel.
    let g = Graph::new();
    let x = inputs(&g, &dims)[0];
    let y = g.device("/gpu:0", || {
        let m = x.exp();
        (m + 1.0).tanh() * (m * 2.0).sqrt()
    });
    assert_eq!(kernels(&plan(&g, &[y], &[], &dims)), ["Exp+AddV2+Tanh+Mul+Sqrt+Mul"]);
}

#[test]
fn what_can_fail_or_is_of_other_sizes_stays_a_node() {
    let g = Graph::new();
    let dims: [&[usize]; 2] = [&[4, 1], &[4, 3]];
    let x = inputs(&g, &dims);
    // The column is smaller than what it is broadcast to.
    let y = g.device("/gpu:0", || x[0].exp() + x[1].exp());
    assert_eq!(kernels(&plan(&g, &[y], &[], &dims)), ["Exp", "Exp+AddV2"]);
    let g = Graph::new();
    let n = g.placeholder(DType::I32, [5], "x0");
    let y = g.device("/gpu:0", || (n + 1i32).floor_div(n) * n);
    assert_eq!(kernels(&plan(&g, &[y], &[], &[&[5]])), ["AddV2", "FloorDiv", "Mul"]);
}

#[test]
fn a_product_takes_a_vector_bias_and_a_relu_in() {
    let dims: [&[usize]; 4] = [&[4, 3], &[3, 2], &[2], &[]];
    let planned = |build: &dyn Fn(&[Tensor<'_>]) -> Vec<usize>| {
        let g = Graph::new();
        let x = inputs(&g, &dims);
        let made = g.device("/gpu:0", || {
            let product = x[0].matmul(x[1]);
            let biased = product + x[2];
            let scalar = x[0].matmul(x[1]) + x[3];
            [product, biased, biased.relu(), product.relu(), scalar.relu(), biased.relu().relu()]
        });
        let fetches: Vec<Tensor<'_>> = build(&made).into_iter().map(|i| made[i]).collect();
        kernels(&plan(&g, &fetches, &[], &dims))
    };
    assert_eq!(planned(&|_| vec![2]), ["MatMul+AddV2+Relu"]);
    assert_eq!(planned(&|_| vec![1]), ["MatMul+AddV2"]);
    assert_eq!(planned(&|_| vec![3]), ["MatMul+Relu"]);
    // A bias of one number is no vector; it is fused with the ReLU instead.
    assert_eq!(planned(&|_| vec![4]), ["MatMul", "AddV2+Relu"]);
    // What is fetched is not taken in.
    assert_eq!(planned(&|_| vec![0, 2]), ["MatMul", "AddV2+Relu"]);
    assert_eq!(planned(&|_| vec![1, 2]), ["MatMul+AddV2", "Relu"]);
    // Only one ReLU is part of a product.
    assert_eq!(planned(&|_| vec![5])[0], "MatMul+AddV2+Relu");
}

#[test]
fn the_expressions_of_epilogues_are_those_of_their_ops() {
    use crate::device::cuda::CudaMap;
    use crate::graph::{Attrs, KernelContext, TensorDesc};
    let desc = TensorDesc { dtype: DType::F32, dims: [2, 3].as_slice().into() };
    let (two, attrs) = (vec![desc.clone(), desc.clone()], Attrs::new());
    let expression = |name: &str, inputs: usize| {
        let context =
            KernelContext { attrs: &attrs, inputs: &two[..inputs], outputs: &two[..1], values: &vec![None; inputs] };
        crate::ops::find(name).unwrap().cuda_map(&context).unwrap().expression
    };
    assert_eq!(expression("Relu", 1), CudaMap::RELU);
    assert_eq!(expression("AddV2", 2), CudaMap::SUM);
}

#[test]
fn a_step_has_a_phase_for_each_turn_of_the_host() {
    let dims: [&[usize]; 1] = [&[4, 3]];
    let turns = |host: bool| {
        let g = Graph::new();
        let x = inputs(&g, &dims)[0];
        let w = g.device("/gpu:0", || g.get_variable("w", [3], Init::Ones));
        let first = g.device("/gpu:1", || (x * w).sum_axes(&[0], false));
        let between = g.device(if host { "/cpu:0" } else { "/gpu:0" }, || first * 2.0);
        let changed = g.device("/gpu:0", || w.assign_add(between));
        let beside = g.device("/cpu:0", || x.mean());
        let schedule = plan(&g, &[beside], &[changed.op()], &dims);
        let shape = |p: &Phase| (p.before.len(), !p.enqueued.is_empty(), p.beside.len());
        schedule.phases.iter().map(shape).collect::<Vec<_>>()
    };
    // On GPUs alone the step is one launch, beside which the host computes its own.
    assert_eq!(turns(false), [(0, true, 1)]);
    // A product on the host comes between two launches.
    assert_eq!(turns(true), [(0, true, 1), (1, true, 0)]);
}
