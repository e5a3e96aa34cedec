//! Sums over GPUs become one node each where NCCL reaches all of them, and nothing else changes.

use super::*;
use crate::base::DType;
use crate::device::{DeviceId, Lane, Machine, QueueId};
use crate::graph::{Graph, Init, Tensor, Variable};
use crate::report::{CopyTable, Stage, StageView};
use crate::run::{Session, SessionOptions};
use crate::train::{AverageOptions, GradAndVar, average_gradients};

/// Means of gradients that two vectors have on so many GPUs, less the vectors, and the gradients' feeds. Element-wise all
/// through, so that it needs little of CUDA.
fn means<'g>(g: &'g Graph, count: usize, variables: impl Fn(usize) -> usize) -> (Vec<Tensor<'g>>, Vec<Tensor<'g>>) {
    let on = |i: usize| format!("/gpu:{i}");
    let sizes = [("w", 20), ("b", 4)];
    let make = |(i, &(name, size)): (usize, &(&str, usize))| {
        g.device(&on(variables(i)), || g.get_variable(name, [size], Init::Ones))
    };
    let vars: Vec<Variable<'g>> = sizes.iter().enumerate().map(make).collect();
    let mut fed = Vec::new();
    let mut tower = |i: usize| {
        g.device(&on(i), || {
            let x = g.placeholder(DType::F32, [], "x");
            fed.push(x);
            vars.iter().map(|&var| GradAndVar { grad: Some((var.value() * x).exp().into()), var }).collect()
        })
    };
    let towers: Vec<Vec<GradAndVar<'g>>> = (0..count).map(&mut tower).collect();
    let means = average_gradients(&towers, AverageOptions::all_reduce());
    let left = means.iter().map(|gv| g.colocate_with(gv.var, || gv.var.value() - gv.grad.unwrap().values()));
    let left = left.collect();
    g.check().unwrap();
    (left, fed)
}

fn plan<'g>(g: &'g Graph, fetches: &[Tensor<'g>], fed: &[Tensor<'g>], machine: &Machine) -> Schedule {
    let session = Session::new(g, SessionOptions::on(machine.clone())).unwrap();
    let feeds: Vec<(Tensor<'g>, &[usize])> = fed.iter().map(|x| (*x, &[][..])).collect();
    session.schedule(&feeds, fetches, &[]).unwrap()
}

fn gpu(i: u16) -> DeviceId {
    DeviceId(i + 1)
}

#[test]
fn a_sum_over_gpus_is_one_node_on_all_of_them() {
    let g = Graph::new();
    let (left, fed) = means(&g, 3, |i| i);
    let machine = Machine::pretended_cuda(&[0, 1, 2]);
    let schedule = plan(&g, &left, &fed, &machine);
    let step = &schedule.step;
    let sums: Vec<_> = step.all_reduces().collect();
    assert_eq!(sums.iter().map(|(n, _)| &n.name[..]).collect::<Vec<_>>(), ["average/w/sum", "average/b/sum"]);
    for (node, sum) in &sums {
        assert_eq!(sum.devices[..], [gpu(0), gpu(1), gpu(2)]);
        for values in [&node.inputs[..], &node.outputs[..]] {
            assert_eq!(values.iter().map(|v| step.value(*v).device).collect::<Vec<_>>(), sum.devices[..]);
        }
        for (&input, &output) in node.inputs.iter().zip(&node.outputs) {
            assert!(matches!(schedule.memory.places[output.index()], Some((Region::Copy, _))));
            // Nothing else is computed where its parts are, not even later.
            let part = step.base(input).0;
            let place = schedule.memory.places[part.index()];
            let device = step.value(part).device;
            let shares =
                |(i, v): (usize, &Value)| i != part.index() && v.device == device && schedule.memory.places[i] == place;
            assert!(place.is_some() && !step.values.iter().enumerate().any(shares), "{}", node.name);
        }
    }
    // No gradient is copied: variables go out to two others each, and that is all.
    let between = step.copies().filter(|(_, c)| !c.from.is_host() && !c.to.is_host());
    let copied: Vec<String> = between.map(|(n, _)| n.name.to_string()).collect();
    assert_eq!(copied.len(), 4, "{copied:?}");
    assert!(copied.iter().all(|n| n.contains("/read→")), "{copied:?}");
    assert_eq!((sums[0].1.bytes, sums[0].1.bytes_per_device()), (80, 106));
}

#[test]
fn it_waits_for_every_part_and_every_reader_waits_for_it() {
    let g = Graph::new();
    let (left, fed) = means(&g, 2, |i| i);
    let machine = Machine::pretended_cuda(&[0, 1]);
    let schedule = plan(&g, &left, &fed, &machine);
    let step = &schedule.step;
    let mut waits = Vec::new();
    for (i, node) in step.nodes.iter().enumerate().filter(|(_, n)| n.all_reduce().is_some()) {
        let queue = schedule.queues[schedule.queue_of[i]];
        assert_eq!(queue, QueueId { device: gpu(0), lane: Lane::Peer });
        assert!(schedule.phases.iter().any(|p| p.enqueued.contains(&StepNodeId(i as u32))));
        // What the first one waited for, the second knows.
        waits.push(schedule.waits[i].len());
        let event = schedule.signals[i].expect("somebody waits");
        for reader in node.outputs.iter().flat_map(|o| step.consumers(*o)) {
            let at = step.nodes.iter().position(|n| std::ptr::eq(n, reader)).unwrap();
            assert!(at > i && schedule.waits[at].contains(&event), "{}", reader.name);
        }
    }
    assert_eq!((waits[0], waits.len()), (2, 2));
}

#[test]
fn without_nccl_or_on_one_gpu_it_is_a_kernel() {
    for machine in
        [Machine::pretended_cuda(&[0, 1]).without_nccl(), Machine::pretended_cuda(&[0, 0]), Machine::simulated(2)]
    {
        let g = Graph::new();
        let (left, fed) = means(&g, 2, |_| 1);
        let schedule = plan(&g, &left, &fed, &machine);
        assert_eq!(schedule.step.all_reduces().count(), 0);
        // The sums run where the variables are: the other tower's gradients go there, and nothing comes back.
        let peers: Vec<_> = schedule.step.copies().filter(|(_, c)| !c.from.is_host() && !c.to.is_host()).collect();
        assert_eq!(peers.iter().filter(|(_, c)| (c.from, c.to) == (gpu(0), gpu(1))).count(), 2);
        assert_eq!(peers.len(), 4);
    }
}

#[test]
fn parts_that_are_fed_or_on_the_host_are_summed_by_a_kernel() {
    let g = Graph::new();
    let x = g.placeholder(DType::F32, [3], "x");
    let (a, b) = (g.device("/gpu:0", || x.square()), g.device("/gpu:1", || x.square()));
    let sums = g.device("/gpu:0", || [g.all_reduce_n([a, b]), g.all_reduce_n([a, x]), g.all_reduce_n([a, a])]);
    let fetches: Vec<Tensor<'_>> = sums.into_iter().flatten().collect();
    let session = Session::new(&g, SessionOptions::on(Machine::pretended_cuda(&[0, 1]))).unwrap();
    let schedule = session.schedule(&[(x, &[3])], &fetches, &[]).unwrap();
    assert_eq!(schedule.step.all_reduces().map(|(n, _)| &n.name[..]).collect::<Vec<_>>(), ["AllReduceN"]);
}

#[test]
fn reports_show_it_as_a_node_of_its_own_kind() {
    let g = Graph::new();
    let (left, fed) = means(&g, 2, |_| 0);
    let machine = Machine::pretended_cuda(&[0, 1]);
    let schedule = plan(&g, &left, &fed, &machine);
    let table = CopyTable::new(&schedule, &machine);
    let row = &table.all_reduces[0];
    assert_eq!((&row.name[..], row.bytes, row.bytes_per_device), ("average/w/sum", 80, 80));
    assert_eq!(row.devices, ["/device:GPU:0", "/device:GPU:1"]);
    assert_eq!(table.sent_bytes() - table.total_bytes, 2 * (80 + 16));
    let text = table.text();
    assert!(text.contains("2 all-reduces: 96 B out of each device"), "{text}");
    assert!(text.lines().any(|l| l.contains("average/w/sum") && l.contains("| all-reduce |")), "{text}");
    assert!(table.csv().contains("average/b/sum,/device:GPU:0 /device:GPU:1,each,"), "{}", table.csv());
    for stage in [Stage::Partitioned, Stage::Scheduled] {
        let view = StageView::of(&schedule, &machine, stage);
        let (text, dot) = (view.text(), view.dot());
        assert!(text.contains("all-reduces: 2, 96 bytes out of each device"), "{text}");
        assert!(text.contains("AllReduce") && dot.contains("shape=hexagon"), "{text}\n{dot}");
    }
}
