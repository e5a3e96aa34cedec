//! Random steps of everything at once: tensors of the sizes at which host kernels are cut, of several types, read inside
//! and outside of what is fused; variables that change between reads; orders by control inputs; conditionals; copies;
//! fetches and feeds of anything. Against the nodes one by one, and the rules by which reads see changes.
//!
//! All values are whole numbers that `float32` holds, so that sums have one result in whatever order, and every answer
//! is the reference's, element for element.

use super::graphs::seeds;
use super::random::Random;
use super::step_ops::{LARGEST, Pool, SMALL};
use std::collections::BTreeSet;
use turret::base::{Array, Bool8, DType};
use turret::device::Machine;
use turret::graph::{Graph, Init, Operation, Tensor, Variable};
use turret::run::{Session, SessionOptions};

/// What an item does beside computing its tensor from its inputs.
#[derive(Clone, Debug)]
enum Does {
    Compute,
    /// It is fed in every run.
    Placeholder,
    /// The default read of a variable, which is as old as the variable and depends on nothing.
    FirstRead,
    /// Changes this variable by its last input, where its predicate, an input before that, is true.
    Change(usize, How, bool),
    /// Has no tensor, and only orders.
    Gate,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum How {
    Assign,
    Add,
    Sub,
    /// These rows, by the rows of the value.
    Update([usize; 2]),
    ScatterAdd([usize; 2]),
}

struct Item<'g> {
    does: Does,
    op: Operation<'g>,
    tensor: Option<Tensor<'g>>,
    /// What `Graph::evaluate` computes its value by.
    reference: Option<Tensor<'g>>,
    inputs: Vec<usize>,
    controls: Vec<usize>,
}

struct Program<'g> {
    g: &'g Graph,
    random: Random,
    gpus: usize,
    device: String,
    variables: Vec<Variable<'g>>,
    last_change: Vec<Option<usize>>,
    items: Vec<Item<'g>>,
    pool: Pool<'g>,
}

/// Numbers of the type as the tests draw them: small and whole.
fn draw(random: &mut Random, dtype: DType, dims: &[usize], most: f64) -> Array {
    let most = most.min(3.0) as usize;
    let values: Vec<f64> =
        (0..dims.iter().product()).map(|_| random.below(2 * most + 1) as f64 - most as f64).collect();
    if dtype == DType::Bool {
        let values: Vec<Bool8> = values.iter().map(|v| Bool8::from(*v > 0.0)).collect();
        return Array::new(dims, &values).unwrap();
    }
    Array::from_f64(dtype, dims, &values).unwrap()
}

fn dims(t: Tensor<'_>) -> Vec<usize> {
    t.shape().to_dims().unwrap_or_else(|| panic!("{t:?} has no known shape")).to_vec()
}

impl<'g> Program<'g> {
    fn build(g: &'g Graph, seed: u64, gpus: usize) -> Program<'g> {
        let mut random = Random::new(seed);
        let pool = Pool::new(&mut random);
        let mut p = Program {
            g,
            random,
            gpus,
            device: String::new(),
            variables: Vec::new(),
            last_change: Vec::new(),
            items: Vec::new(),
            pool,
        };
        for i in 0..2 + p.random.below(2) {
            p.move_on();
            let sizes = p.pool.sizes(&mut p.random);
            let start = draw(&mut p.random, DType::F32, &sizes, 2.0);
            let name = format!("v{i}");
            p.variables.push(g.device(&p.device, || g.get_variable(&name, &sizes[..], Init::data(start))));
            p.last_change.push(None);
        }
        for i in 0..14 + p.random.below(30) {
            if p.random.one_in(4) {
                p.move_on();
            }
            match p.random.below(16) {
                _ if i < 3 => p.placeholder(),
                0 => p.placeholder(),
                1 | 2 => p.read(),
                3 | 4 => p.change(),
                5 => p.gate(),
                6 => p.conditional(),
                _ => p.compute(),
            }
        }
        p
    }

    /// What follows is on another device, perhaps.
    fn move_on(&mut self) {
        self.device = match self.random.below(self.gpus + 1) {
            0 => "/cpu:0".into(),
            n => format!("/gpu:{}", n - 1),
        };
    }

    /// What the next node waits for.
    fn waits(&mut self, often: usize) -> Vec<usize> {
        let count = self.items.len();
        let mut waits: Vec<usize> = Vec::new();
        while count > 0 && waits.len() < 2 && self.random.one_in(often) {
            // Lately made ones, so that chains come about.
            let back = self.random.below(count.min(6));
            waits.push(if self.random.one_in(2) { count - 1 - back } else { self.random.below(count) });
        }
        waits
    }

    fn ops(&self, items: &[usize]) -> Vec<Operation<'g>> {
        items.iter().map(|i| self.items[*i].op).collect()
    }

    fn push(&mut self, item: Item<'g>, bound: f64) {
        self.g.check().unwrap_or_else(|e| panic!("item {}: {e}", self.items.len()));
        if let Some(tensor) = item.tensor {
            self.pool.add(tensor, bound, self.items.len());
        }
        self.items.push(item);
    }

    fn placeholder(&mut self) {
        let sizes = self.pool.sizes(&mut self.random);
        let dtype = self.random.pick(&[DType::F32, DType::F32, DType::F32, DType::F64, DType::I32, DType::Bool]);
        let tensor = self.g.device(&self.device, || self.g.placeholder(dtype, &sizes[..], "p"));
        let (inputs, controls) = (Vec::new(), Vec::new());
        let does = Does::Placeholder;
        self.push(Item { does, op: tensor.op(), tensor: Some(tensor), reference: Some(tensor), inputs, controls }, 3.0);
    }

    /// Reads a variable: itself, by an Identity that waits, or by an op that waits for its other input.
    fn read(&mut self) {
        let v = self.random.below(self.variables.len());
        let variable = self.variables[v];
        let kind = self.random.below(4);
        let known = self.items.iter().any(|i| i.tensor == Some(variable.value()));
        if kind == 0 && !known {
            let tensor = variable.value();
            let (inputs, controls) = (Vec::new(), Vec::new());
            let does = Does::FirstRead;
            let item = Item { does, op: tensor.op(), tensor: Some(tensor), reference: Some(tensor), inputs, controls };
            return self.push(item, LARGEST);
        }
        let other =
            if kind == 1 { None } else { self.pool.like(&mut self.random, DType::F32, &dims(variable.buffer())) };
        let mut controls = self.waits(2);
        // Often after the last change, so that there is something to see.
        controls.extend(self.last_change[v].filter(|_| self.random.one_in(3)));
        let g = self.g;
        let tensor = g.control_dependencies(self.ops(&controls), || {
            g.device(&self.device, || match other {
                Some(i) if kind == 2 => self.pool.tensor(i).maximum(variable.buffer()),
                Some(i) => variable.buffer().minimum(self.pool.tensor(i)),
                None => variable.buffer().identity("read"),
            })
        });
        let inputs = other.map(|i| self.pool.item(i)).into_iter().collect();
        let does = Does::Compute;
        self.push(
            Item { does, op: tensor.op(), tensor: Some(tensor), reference: Some(tensor), inputs, controls },
            LARGEST,
        );
    }

    fn change(&mut self) {
        let v = self.random.below(self.variables.len());
        let (variable, g) = (self.variables[v], self.g);
        let sizes = dims(variable.buffer());
        let rows = sizes.first().copied().unwrap_or(0);
        let at = [self.random.below(rows.max(1)), self.random.below(rows.max(1))];
        let mut how = self.random.pick(&[How::Assign, How::Add, How::Sub, How::Update(at), How::ScatterAdd(at)]);
        let mut of = sizes.clone();
        let scatters = matches!(how, How::Update(_) | How::ScatterAdd(_));
        match rows {
            0 if scatters => how = How::Add,
            _ if scatters => of[0] = 2,
            _ => {}
        }
        let found = self.pool.like(&mut self.random, DType::F32, &of);
        let fits = |i: &usize| self.pool.bound(*i) <= SMALL;
        let value = match found.filter(fits) {
            Some(i) => i,
            None => {
                let array = draw(&mut self.random, DType::F32, &of, 2.0);
                let tensor = g.device(&self.device, || g.constant(array));
                let does = Does::Compute;
                let (inputs, controls) = (Vec::new(), Vec::new());
                let reference = Some(tensor);
                self.push(Item { does, op: tensor.op(), tensor: Some(tensor), reference, inputs, controls }, 2.0);
                self.pool.len() - 1
            }
        };
        // A CUDA GPU cannot leave a change out.
        let may_be_left_out = self.random.one_in(4) && !scatters && !crate::gpus::are_cuda();
        let predicate = if may_be_left_out { self.pool.like(&mut self.random, DType::Bool, &[]) } else { None };
        let mut controls = self.waits(3);
        controls.extend(self.last_change[v]);
        let tensor = g.control_dependencies(self.ops(&controls), || {
            let indices = || g.constant(vec![at[0] as i32, at[1] as i32]);
            let x = self.pool.tensor(value);
            g.device(&self.device, || match (how, predicate) {
                (_, Some(predicate)) => {
                    let (no, yes) = x.switch(self.pool.tensor(predicate));
                    let change = match how {
                        How::Assign => variable.assign(yes),
                        How::Sub => variable.assign_sub(yes),
                        _ => variable.assign_add(yes),
                    };
                    let yes = g.control_dependencies([change.op()], || yes.identity("changed"));
                    g.merge(-no, yes)
                }
                (How::Assign, _) => variable.assign(x),
                (How::Add, _) => variable.assign_add(x),
                (How::Sub, _) => variable.assign_sub(x),
                (How::Update(_), _) => variable.scatter_update(indices(), x),
                (How::ScatterAdd(_), _) => variable.scatter_add(indices(), x),
            })
        });
        self.last_change[v] = Some(self.items.len());
        let reference =
            predicate.map(|p| self.pool.tensor(p).select(self.pool.tensor(value), -self.pool.tensor(value)));
        let inputs = predicate.into_iter().chain([value]).map(|i| self.pool.item(i)).collect();
        let does = Does::Change(v, how, predicate.is_some());
        self.push(Item { does, op: tensor.op(), tensor: Some(tensor), reference, inputs, controls }, LARGEST);
    }

    /// A no_op, a group, or a gate around a tensor, as a tuple has them.
    fn gate(&mut self) {
        let (g, controls) = (self.g, self.waits(1));
        let ops = self.ops(&controls);
        let kind = self.random.below(3);
        let op = match kind {
            0 => g.group(ops.clone(), "group"),
            _ => g.control_dependencies(ops.clone(), || g.no_op("gate")),
        };
        let gate = self.items.len();
        self.push(Item { does: Does::Gate, op, tensor: None, reference: None, inputs: Vec::new(), controls }, 0.0);
        if kind == 2 && self.pool.len() > 0 {
            let i = self.random.below(self.pool.len());
            let tensor = g.control_dependencies([op], || self.pool.tensor(i).identity("gated"));
            let (does, inputs, bound) = (Does::Compute, vec![self.pool.item(i)], self.pool.bound(i));
            let (reference, controls) = (Some(tensor), vec![gate]);
            self.push(Item { does, op: tensor.op(), tensor: Some(tensor), reference, inputs, controls }, bound);
        }
    }

    fn conditional(&mut self) {
        let g = self.g;
        let Some(predicate) = self.pool.like(&mut self.random, DType::Bool, &[]) else {
            // Whether a sum is above 0.
            let Some(i) = self.pool.number(&mut self.random) else { return };
            let x = self.pool.tensor(i);
            let axes: Vec<i32> = (0..dims(x).len() as i32).collect();
            let tensor = g.device(&self.device, || x.max_axes(&axes, false).greater(g.constant(0i32).cast(x.dtype())));
            let (does, inputs, controls) = (Does::Compute, vec![self.pool.item(i)], Vec::new());
            let reference = Some(tensor);
            return self.push(Item { does, op: tensor.op(), tensor: Some(tensor), reference, inputs, controls }, 1.0);
        };
        let Some(i) = self.pool.number(&mut self.random) else { return };
        let (x, predicate_of) = (self.pool.tensor(i), self.pool.tensor(predicate));
        let controls = self.waits(4);
        let either = |yes: Tensor<'g>, no: Tensor<'g>| (yes.relu().abs(), -no);
        let tensor = g.control_dependencies(self.ops(&controls), || {
            g.device(&self.device, || {
                let (no, yes) = x.switch(predicate_of);
                let (yes, no) = either(yes, no);
                g.merge(no, yes)
            })
        });
        let (yes, no) = either(x, x);
        let reference = Some(predicate_of.select(yes, no));
        let inputs = vec![self.pool.item(predicate), self.pool.item(i)];
        let bound = self.pool.bound(i);
        let does = Does::Compute;
        self.push(Item { does, op: tensor.op(), tensor: Some(tensor), reference, inputs, controls }, bound);
    }

    fn compute(&mut self) {
        let g = self.g;
        let controls = self.waits(8);
        let (ops, device) = (self.ops(&controls), self.device.clone());
        let made = g.control_dependencies(ops, || g.device(&device, || self.pool.op(g, &mut self.random)));
        let Some(made) = made else { return };
        let inputs: Vec<usize> = made.from.iter().map(|i| self.pool.item(*i)).collect();
        // What would change nothing may be its own input.
        let is_new = |t: &Tensor<'g>| self.items.iter().all(|i| i.tensor != Some(*t));
        for tensor in made.tensors.into_iter().filter(is_new).collect::<Vec<_>>() {
            let (inputs, controls, does) = (inputs.clone(), controls.clone(), Does::Compute);
            let reference = Some(tensor);
            self.push(Item { does, op: tensor.op(), tensor: Some(tensor), reference, inputs, controls }, made.bound);
        }
    }

    /// By item: all whose nodes run before its own, where these are fed.
    fn after(&self, fed: &[bool]) -> Vec<BTreeSet<usize>> {
        let mut all: Vec<BTreeSet<usize>> = Vec::new();
        for item in &self.items {
            let data = item.inputs.iter().filter(|i| !fed[**i]);
            let mut after = BTreeSet::new();
            if !matches!(item.does, Does::FirstRead) {
                for &before in data.chain(&item.controls) {
                    after.insert(before);
                    after.extend(&all[before]);
                }
            }
            all.push(after);
        }
        all
    }

    /// What the reference says of all items, and of the variables after those that change them.
    fn interpret(
        &self,
        start: &[Array],
        feeds: &[(usize, Array)],
        after: &[BTreeSet<usize>],
    ) -> Vec<[Option<Array>; 2]> {
        let mut values: Vec<[Option<Array>; 2]> = Vec::new();
        for (i, item) in self.items.iter().enumerate() {
            let fed = feeds.iter().find(|(at, _)| *at == i).map(|(_, array)| array.clone());
            // A variable as the item sees it: after the last change that it depends on.
            let seen = |v: usize| -> Array {
                let changes = |j: &&usize| matches!(self.items[**j].does, Does::Change(of, _, _) if of == v);
                let last = after[i].iter().rev().find(changes);
                last.and_then(|j| values[*j][1].clone()).unwrap_or_else(|| start[v].clone())
            };
            let mut known: Vec<(Tensor<'g>, Array)> =
                (0..self.variables.len()).map(|v| (self.variables[v].buffer(), seen(v))).collect();
            known.extend(item.inputs.iter().filter_map(|j| Some((self.items[*j].tensor?, values[*j][0].clone()?))));
            let value = item.reference.filter(|_| !matches!(item.does, Does::Placeholder)).map(|t| {
                let value = self.g.evaluate(t, &known).unwrap_or_else(|e| panic!("node {i}, {t:?}: {e}"));
                (*value).clone()
            });
            let changed = match item.does {
                Does::Change(v, how, guarded) => {
                    let of = |j: usize| values[item.inputs[j]][0].clone().expect("a tensor");
                    let taken = !guarded || of(0).get_f64(0) != 0.0;
                    let value = of(item.inputs.len() - 1);
                    Some(if taken { changed(&seen(v), how, &value) } else { seen(v) })
                }
                _ => None,
            };
            values.push([fed.or(value).or_else(|| changed.clone()), changed]);
        }
        values
    }
}

/// A variable after a change by a value.
fn changed(was: &Array, how: How, by: &Array) -> Array {
    let mut all = was.to_f64();
    let by = by.to_f64();
    let row = all.len() / was.dims().first().copied().unwrap_or(1).max(1);
    match how {
        How::Assign => all = by,
        How::Add => all.iter_mut().zip(&by).for_each(|(x, y)| *x += y),
        How::Sub => all.iter_mut().zip(&by).for_each(|(x, y)| *x -= y),
        How::Update(rows) | How::ScatterAdd(rows) => {
            for (n, at) in rows.into_iter().enumerate() {
                for i in 0..row {
                    let kept = if matches!(how, How::Update(_)) { 0.0 } else { all[at * row + i] };
                    all[at * row + i] = kept + by[n * row + i];
                }
            }
        }
    }
    Array::from_f64(DType::F32, was.dims(), &all).unwrap()
}

/// The same numbers; 0 has two signs, by the order of a sum.
fn same(got: &Array, want: &Array) -> bool {
    (got.dtype(), got.dims()) == (want.dtype(), want.dims()) && got.to_f64() == want.to_f64()
}

/// One way to run the programs.
struct Way<'g> {
    session: Session<'g>,
    name: String,
    fused: usize,
}

fn ways<'g>(p: &Program<'g>, seed: u64) -> Vec<Way<'g>> {
    let threads = 1 + seed as usize % 3;
    [(true, threads), (false, 1)]
        .map(|(fusion, threads)| {
            let machine = if p.gpus == 0 { Machine::host() } else { crate::gpus::machine(p.gpus) };
            let options = SessionOptions { fusion, ..SessionOptions::on(machine.with_host_threads(threads)) };
            let session = Session::new(p.g, options).unwrap_or_else(|e| panic!("program {seed}: {e}"));
            session.initialize().unwrap_or_else(|e| panic!("program {seed}: {e}"));
            Way { session, name: format!("fusion {fusion}, {threads} threads, {} GPUs", p.gpus), fused: 0 }
        })
        .into()
}

/// One run of a program in all ways.
fn compare(p: &mut Program<'_>, ways: &mut [Way<'_>], seed: u64) {
    let start: Vec<Array> = p.variables.iter().map(|v| ways[0].session.value(*v).unwrap()).collect();
    let mut feeds: Vec<(usize, Array)> = Vec::new();
    let feedable = |item: &Item<'_>| !matches!(item.does, Does::Gate | Does::Change(..));
    for i in 0..p.items.len() {
        let is_placeholder = matches!(p.items[i].does, Does::Placeholder);
        if is_placeholder || feedable(&p.items[i]) && p.random.one_in(20) {
            let (tensor, most) = (p.items[i].tensor.expect("a tensor"), p.pool.bound_of(i));
            feeds.push((i, draw(&mut p.random, tensor.dtype(), &dims(tensor), most)));
        }
    }
    let mut fed = vec![false; p.items.len()];
    feeds.iter().for_each(|(i, _)| fed[*i] = true);
    let after = p.after(&fed);
    let values = p.interpret(&start, &feeds, &after);
    let tensors: Vec<usize> = (0..p.items.len()).filter(|i| p.items[*i].tensor.is_some()).collect();
    let fetched: Vec<usize> = (0..1 + p.random.below(5)).map(|_| p.random.pick(&tensors)).collect();
    let targets: Vec<usize> = (0..p.random.below(3)).map(|_| p.random.below(p.items.len())).collect();
    let fetches: Vec<Tensor<'_>> = fetched.iter().filter_map(|i| p.items[*i].tensor).collect();
    let given: Vec<(Tensor<'_>, &Array)> = feeds.iter().filter_map(|(i, a)| Some((p.items[*i].tensor?, a))).collect();
    let mut ran: BTreeSet<usize> = targets.iter().chain(fetched.iter().filter(|i| !fed[**i])).copied().collect();
    ran.extend(ran.clone().iter().flat_map(|i| after[*i].clone()));
    let text = || -> String {
        let line = |(i, item): (usize, &Item<'_>)| {
            format!("{i}: {} {:?} of {:?} after {:?}\n", item.op.name(), item.does, item.inputs, item.controls)
        };
        let feeds: Vec<usize> = feeds.iter().map(|(i, _)| *i).collect();
        let items: String = p.items.iter().enumerate().map(line).collect();
        format!("fetches {fetched:?}, targets {targets:?}, feeds {feeds:?}\n{items}")
    };
    for way in ways {
        let name = &way.name;
        let got = way.session.run(&given, &fetches, &p.ops(&targets));
        let got = got.unwrap_or_else(|e| panic!("program {seed}, {name}: {e}\n{}", text()));
        let shapes: Vec<(Tensor<'_>, &[usize])> = given.iter().map(|(t, a)| (*t, a.dims())).collect();
        let plan = way.session.schedule(&shapes, &fetches, &p.ops(&targets));
        way.fused += plan.map_or(0, |plan| plan.step.nodes.iter().filter(|n| n.fusion.is_some()).count());
        for (i, got) in fetched.iter().zip(&got) {
            let want = values[*i][0].as_ref().expect("a tensor");
            let pair = || got.to_f64().into_iter().zip(want.to_f64()).enumerate().find(|(_, (a, b))| a != b);
            assert!(same(got, want), "program {seed}, {name}: item {i}: got, want {:?}\n{}", pair(), text());
        }
        for (v, variable) in p.variables.iter().enumerate() {
            let changes = |i: &&usize| matches!(p.items[**i].does, Does::Change(of, _, _) if of == v);
            let want = ran.iter().rev().find(changes).and_then(|i| values[*i][1].as_ref()).unwrap_or(&start[v]);
            let got = way.session.value(*variable).unwrap();
            let pair = || got.to_f64().into_iter().zip(want.to_f64()).enumerate().find(|(_, (a, b))| a != b);
            assert!(same(&got, want), "program {seed}, {name}: variable {v}: got, want {:?}\n{}", pair(), text());
        }
    }
}

#[test]
fn steps_of_everything_agree_with_their_nodes_one_by_one() {
    let mut fused = [0, 0];
    for seed in 0..seeds(60) {
        let g = Graph::new();
        let mut p = Program::build(&g, seed, seed as usize % 4);
        g.check().unwrap_or_else(|e| panic!("program {seed}: {e}"));
        let mut ways = ways(&p, seed);
        for _ in 0..3 {
            compare(&mut p, &mut ways, seed);
        }
        fused.iter_mut().zip(&ways).for_each(|(all, way)| *all += way.fused);
    }
    assert!(fused[1] == 0 && fused[0] > 20, "{fused:?} nodes fused");
}
