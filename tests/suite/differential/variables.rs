//! Random programs that read and change variables, against an interpreter of the rules:
//!
//! - a read sees the changes that it depends on, by data or by control, and no others;
//! - the result of a change is the variable after it;
//! - the changes of one variable are ordered.

use super::random::Random;
use std::collections::BTreeSet;
use turret::base::Array;
use turret::graph::{Graph, Init, Operation, Tensor, Variable};
use turret::run::{Session, SessionOptions};

/// What a node of a program does; numbers are earlier nodes.
#[derive(Clone, Copy, Debug)]
enum Does {
    Constant(f32),
    /// Reads a variable.
    Read(usize),
    /// The default read of a variable, which is as old as the variable and depends on nothing.
    FirstRead(usize),
    Add(usize, usize),
    Times(usize, usize),
    Assign(usize, usize),
    AssignAdd(usize, usize),
    AssignSub(usize, usize),
}

struct Step<'g> {
    does: Does,
    /// All nodes that it depends on.
    after: BTreeSet<usize>,
    tensor: Tensor<'g>,
}

impl Does {
    fn changes(self) -> Option<usize> {
        match self {
            Does::Assign(v, _) | Does::AssignAdd(v, _) | Does::AssignSub(v, _) => Some(v),
            _ => None,
        }
    }
}

struct Program<'g> {
    variables: Vec<Variable<'g>>,
    steps: Vec<Step<'g>>,
}

impl<'g> Program<'g> {
    fn build(g: &'g Graph, random: &mut Random, gpus: usize) -> Program<'g> {
        let device = |random: &mut Random| match random.below(gpus + 1) {
            0 => "/cpu:0".to_string(),
            n => format!("/gpu:{}", n - 1),
        };
        let variables: Vec<Variable<'g>> = (0..1 + random.below(3))
            .map(|i| {
                let start = [random.number(), random.number()];
                g.device(&device(random), || g.get_variable(&format!("v{i}"), [2], Init::data(start)))
            })
            .collect();
        let mut program = Program { variables, steps: Vec::new() };
        let mut last_change: Vec<Option<usize>> = vec![None; program.variables.len()];
        for i in 0..4 + random.below(14) {
            let v = random.below(program.variables.len());
            let (a, b) = (random.below(i.max(1)), random.below(i.max(1)));
            let does = match random.below(if i == 0 { 3 } else { 10 }) {
                0 => Does::Constant(random.number()),
                1 => Does::Read(v),
                2 => Does::FirstRead(v),
                3 => Does::Add(a, b),
                4 => Does::Times(a, b),
                5 | 6 => Does::Assign(v, a),
                7 | 8 => Does::AssignAdd(v, a),
                _ => Does::AssignSub(v, a),
            };
            let mut controls: BTreeSet<usize> = BTreeSet::new();
            if i > 0 && random.one_in(2) {
                controls.insert(random.below(i));
            }
            if let Some(v) = does.changes() {
                // Changes of one variable in a row; sometimes the order is given by the data alone.
                controls.extend(last_change[v]);
                last_change[v] = Some(i);
            }
            program.add(g, does, controls, &device(random));
        }
        program
    }

    fn add(&mut self, g: &'g Graph, does: Does, controls: BTreeSet<usize>, device: &str) {
        let t = |i: usize| self.steps[i].tensor;
        let waits: Vec<Operation<'g>> = controls.iter().map(|&c| t(c).op()).collect();
        let tensor = g.control_dependencies(waits, || {
            let body = || match does {
                Does::Constant(value) => g.constant([value, value]).identity("constant"),
                Does::Read(v) => self.variables[v].buffer().identity("read"),
                Does::FirstRead(v) => self.variables[v].value(),
                Does::Add(a, b) => t(a) + t(b),
                Does::Times(a, b) => t(a) * t(b),
                Does::Assign(v, a) => self.variables[v].assign(t(a)),
                Does::AssignAdd(v, a) => self.variables[v].assign_add(t(a)),
                Does::AssignSub(v, a) => self.variables[v].assign_sub(t(a)),
            };
            g.device(device, body)
        });
        let inputs = match does {
            Does::Constant(_) | Does::Read(_) | Does::FirstRead(_) => vec![],
            Does::Add(a, b) | Does::Times(a, b) => vec![a, b],
            Does::Assign(_, a) | Does::AssignAdd(_, a) | Does::AssignSub(_, a) => vec![a],
        };
        let mut after = BTreeSet::new();
        if !matches!(does, Does::FirstRead(_)) {
            for before in inputs.into_iter().chain(controls) {
                after.insert(before);
                after.extend(&self.steps[before].after);
            }
        }
        self.steps.push(Step { does, after, tensor });
    }

    /// The variable as a node sees it: after the last change that the node depends on.
    fn seen(&self, v: usize, by: &Step<'g>, start: &[Vec<f32>], values: &[Vec<f32>]) -> Vec<f32> {
        let last = by.after.iter().rev().find(|&&i| self.steps[i].does.changes() == Some(v));
        last.map_or_else(|| start[v].clone(), |&i| values[i].clone())
    }

    /// The values of all nodes.
    fn interpret(&self, start: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let mut values: Vec<Vec<f32>> = Vec::new();
        for step in &self.steps {
            let both = |a: &[f32], b: &[f32], f: fn(f32, f32) -> f32| a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect();
            let value = match step.does {
                Does::Constant(value) => vec![value; 2],
                Does::Read(v) | Does::FirstRead(v) => self.seen(v, step, start, &values),
                Does::Add(a, b) => both(&values[a], &values[b], |a, b| a + b),
                Does::Times(a, b) => both(&values[a], &values[b], |a, b| a * b),
                Does::Assign(_, a) => values[a].clone(),
                Does::AssignAdd(v, a) => both(&self.seen(v, step, start, &values), &values[a], |a, b| a + b),
                Does::AssignSub(v, a) => both(&self.seen(v, step, start, &values), &values[a], |a, b| a - b),
            };
            values.push(value);
        }
        values
    }
}

#[test]
fn reads_see_the_changes_that_they_depend_on_and_no_others() {
    for seed in 0..super::graphs::seeds(400) {
        let mut random = Random::new(seed);
        let g = Graph::new();
        let gpus = 1 + random.below(4);
        let program = Program::build(&g, &mut random, gpus);
        g.check().unwrap_or_else(|e| panic!("program {seed}: {e}"));
        let s = Session::new(&g, SessionOptions::on(crate::gpus::machine(gpus).with_host_threads(1))).unwrap();
        s.initialize().unwrap();
        for run in 0..3 {
            let now: Vec<Vec<f32>> =
                program.variables.iter().map(|v| s.value(*v).unwrap().as_slice::<f32>().unwrap().to_vec()).collect();
            let values = program.interpret(&now);
            let count = 1 + random.below(program.steps.len());
            let fetched: Vec<usize> = (0..count).map(|_| random.below(program.steps.len())).collect();
            // Half of the runs ask for some nodes as targets only.
            let targets = if random.one_in(2) { vec![random.below(program.steps.len())] } else { Vec::new() };
            let fetches: Vec<Tensor<'_>> = fetched.iter().map(|&i| program.steps[i].tensor).collect();
            let ops: Vec<Operation<'_>> = targets.iter().map(|&i| program.steps[i].tensor.op()).collect();
            let got = s.run(&[], &fetches, &ops).unwrap_or_else(|e| panic!("program {seed}: {e}"));
            let text = || -> String {
                let steps = program.steps.iter().enumerate();
                steps.map(|(i, s)| format!("{i}: {:?} after {:?} = {}\n", s.does, s.after, s.tensor.name())).collect()
            };
            let same = |got: &Array, want: &[f32]| {
                let got = got.as_slice::<f32>().unwrap();
                got.iter().zip(want).all(|(g, w)| g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan())
            };
            for (&i, got) in fetched.iter().zip(&got) {
                let want = &values[i];
                assert!(same(got, want), "program {seed}, run {run}: node {i}: want {want:?}, got {got:?}\n{}", text());
            }
            // What ran has changed the variables, and nothing else.
            let mut ran: BTreeSet<usize> = fetched.iter().chain(&targets).copied().collect();
            ran.extend(ran.clone().into_iter().flat_map(|i| program.steps[i].after.clone()));
            for (v, variable) in program.variables.iter().enumerate() {
                let last = ran.iter().rev().find(|&&i| program.steps[i].does.changes() == Some(v));
                let want = last.map_or(&now[v], |&i| &values[i]);
                let got = s.value(*variable).unwrap();
                assert!(
                    same(&got, want),
                    "program {seed}, run {run}: variable {v} after {ran:?}: want {want:?}, got {got:?}\n{}",
                    text()
                );
            }
        }
    }
}

#[test]
fn a_change_may_read_the_buffer_that_it_changes() {
    let g = Graph::new();
    let [a, b] = ["a", "b"].map(|name| g.device("/gpu:0", || g.get_variable(name, [], Init::Constant(1.0))));
    let first = a.assign(g.constant(3f32));
    let doubled = g.control_dependencies([first.op()], || a.assign_add(a.buffer()));
    let swapped = [a.assign(b.buffer()), b.assign(a.buffer())];
    let s = Session::new(&g, SessionOptions::on(crate::gpus::machine(1))).unwrap();
    s.initialize().unwrap();
    let out = s.run(&[], &[first, doubled, first], &[]).unwrap();
    assert_eq!(out.iter().map(|v| v.get_f64(0)).collect::<Vec<_>>(), [3.0, 6.0, 3.0]);
    s.run(&[], &[], &[swapped[0].op(), swapped[1].op()]).unwrap();
    assert_eq!([a, b].map(|v| s.value(v).unwrap().get_f64(0)), [1.0, 6.0]);
}
