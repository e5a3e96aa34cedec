//! What tests of CUDA kernels share: ops on their inputs, run on GPU 0 and on the host, and compared.

use std::slice::from_ref as one;
use turret::base::{Array, DType};
use turret::device::Machine;
use turret::graph::{Attrs, Graph, Tensor};
use turret::ops;
use turret::run::{Session, SessionOptions};

/// The types that have arithmetic.
pub const NUMBERS: [DType; 4] = [DType::F32, DType::F64, DType::I32, DType::I64];

/// A number of its own for each place.
fn mix(i: usize, seed: u64) -> u64 {
    (i as u64 + 1 + seed * 977).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20
}

/// Numbers between -4 and 4, or small integers, or truth.
pub fn numbers(dtype: DType, dims: &[usize], seed: u64) -> Array {
    let count: usize = dims.iter().product();
    let value = |i: usize| match dtype {
        DType::Bool => (mix(i, seed) % 2) as f64,
        _ if dtype.is_integer() => (mix(i, seed) % 13) as f64 - 6.0,
        _ => (mix(i, seed) % 100_003) as f64 / 12_500.0 - 4.0,
    };
    Array::from_f64(dtype, dims, &(0..count).map(value).collect::<Vec<_>>()).expect("sizes fit")
}

/// One op, on its inputs.
#[derive(Clone)]
struct Example {
    op: &'static str,
    attrs: Attrs,
    inputs: Vec<Array>,
    near: Near,
    /// Inputs are views at odd addresses.
    odd: bool,
}

impl Example {
    fn name(&self) -> String {
        let sizes: Vec<_> = self.inputs.iter().map(|a| format!("{} {:?}", a.dtype(), a.dims())).collect();
        format!("{} of {}{}", self.op, sizes.join(", "), if self.odd { " at odd addresses" } else { "" })
    }

    /// Builds the node; its fed inputs are added to `fed`.
    fn build<'g>(&self, g: &'g Graph, fed: &mut Vec<(Tensor<'g>, Array)>) -> Vec<Tensor<'g>> {
        let op = ops::find(self.op).expect("an op of the table");
        let planned = op.planned_inputs(self.inputs.len());
        let mut node = g.node_of(op);
        for (i, input) in self.inputs.iter().enumerate() {
            let (dims, name) = (input.dims(), format!("x{}", fed.len()));
            if planned.contains(&i) {
                node = node.input(g.constant(input.clone()));
            } else if !self.odd || dims.is_empty() {
                let x = g.placeholder(input.dtype(), dims, &name);
                fed.push((x, input.clone()));
                node = node.input(x);
            } else {
                // One element before it, which a slice leaves out.
                let whole: Vec<f64> = [0.0].into_iter().chain(input.to_f64()).collect();
                let x = g.placeholder(input.dtype(), [whole.len()], &name);
                fed.push((x, Array::from_f64(input.dtype(), &[whole.len()], &whole).expect("sizes fit")));
                let sizes: Vec<i32> = dims.iter().map(|&d| d as i32).collect();
                node = node.input(x.slice(&[1], &[input.len() as i64]).reshape(&sizes[..]));
            }
        }
        self.attrs.iter().fold(node, |node, (name, value)| node.attr(name.to_string(), value.clone())).add().outputs()
    }
}

/// How many outputs each example has, and all of them in each of three runs.
type Outputs = (Vec<usize>, Vec<Vec<Array>>);

/// The outputs of all examples in three runs of one session, on the GPU or on the host.
fn outputs(examples: &[Example], gpu: bool) -> turret::Result<Outputs> {
    let g = Graph::new();
    let mut fed = Vec::new();
    let device = if gpu { "/gpu:0" } else { "/cpu:0" };
    let made: Vec<Vec<Tensor<'_>>> = g.device(device, || examples.iter().map(|e| e.build(&g, &mut fed)).collect());
    let counts = made.iter().map(Vec::len).collect();
    let fetches: Vec<Tensor<'_>> = made.into_iter().flatten().collect();
    g.check()?;
    let machine = if gpu { Machine::cuda(&[0])? } else { Machine::simulated(0) };
    let session = Session::new(&g, SessionOptions::on(machine))?;
    let feeds: Vec<(Tensor<'_>, &Array)> = fed.iter().map(|(t, a)| (*t, a)).collect();
    let runs = (0..3).map(|_| session.run(&feeds, &fetches, &[])).collect::<turret::Result<_>>()?;
    Ok((counts, runs))
}

/// How near a floating-point value has to be; others are equal.
#[derive(Clone, Copy)]
pub enum Near {
    /// The very value, or both no number.
    Exactly,
    /// Within this share of the value, by type: `float32`, `float64`.
    Each(f64, f64),
    /// Within this share of the output's largest value.
    Largest(f64, f64),
}

impl Near {
    fn holds(self, dtype: DType, got: f64, want: f64, largest: f64) -> bool {
        let share = |single: f64, double: f64| if dtype == DType::F64 { double } else { single };
        got == want
            || got.is_nan() && want.is_nan()
            || match self {
                Near::Exactly => false,
                Near::Each(single, double) => (got - want).abs() <= share(single, double) * want.abs(),
                Near::Largest(single, double) => (got - want).abs() <= share(single, double) * largest,
            }
    }
}

/// What is compared: all examples that succeed in one session, so that their kernels are compiled together.
#[derive(Default)]
pub struct Comparison {
    examples: Vec<Example>,
    failures: Vec<String>,
}

impl Comparison {
    pub fn op(&mut self, op: &'static str, attrs: &Attrs, inputs: &[Array], near: Near) {
        self.examples.push(Example { op, attrs: attrs.clone(), inputs: inputs.to_vec(), near, odd: false });
    }

    /// The same at even and at odd addresses.
    pub fn op_anywhere(&mut self, op: &'static str, inputs: &[Array], near: Near) {
        let even = Example { op, attrs: Attrs::new(), inputs: inputs.to_vec(), near, odd: false };
        self.examples.extend([even.clone(), Example { odd: true, ..even }]);
    }

    /// An op that fails, with the host's words.
    pub fn refused(&mut self, op: &'static str, attrs: &Attrs, inputs: &[Array]) {
        let near = Near::Exactly;
        let example = Example { op, attrs: attrs.clone(), inputs: inputs.to_vec(), near, odd: false };
        let text = |gpu: bool| match outputs(one(&example), gpu) {
            Ok(_) => "no error".to_string(),
            Err(e) => e.to_string().replace("GPU:0", "CPU:0").replace("gpu:0", "cpu:0"),
        };
        let (got, want) = (text(true), text(false));
        if got != want || want == "no error" {
            self.failures.push(format!("{}: {got}\nwant {want}", example.name()));
        }
    }

    pub fn end(mut self, least: usize) {
        let (counts, got) = outputs(&self.examples, true).unwrap_or_else(|e| panic!("on the GPU: {e}"));
        let (_, want) = outputs(&self.examples, false).unwrap_or_else(|e| panic!("on the host: {e}"));
        for (run, (got, want)) in got.iter().zip(&want).enumerate() {
            let mut pairs = got.iter().zip(want);
            for (example, &outputs) in self.examples.iter().zip(&counts) {
                for (output, (got, want)) in pairs.by_ref().take(outputs).enumerate() {
                    let why = difference(got, want, example.near);
                    let of = || format!("{}, run {run}, output {output}", example.name());
                    self.failures.extend(why.map(|why| format!("{}: {why}", of())));
                }
            }
        }
        println!("{} examples", self.examples.len());
        assert!(self.failures.is_empty(), "{} fail:\n{}", self.failures.len(), self.failures.join("\n"));
        assert!(self.examples.len() >= least, "only {} examples", self.examples.len());
    }
}

pub fn difference(got: &Array, want: &Array, near: Near) -> Option<String> {
    if (got.dtype(), got.dims()) != (want.dtype(), want.dims()) {
        return Some(format!("{} {:?}, want {} {:?}", got.dtype(), got.dims(), want.dtype(), want.dims()));
    }
    if let (Some(got), Some(want)) = (got.to_i64(), want.to_i64()) {
        let at = got.iter().zip(&want).position(|(a, b)| a != b)?;
        return Some(format!("element {at} is {}, want {}", got[at], want[at]));
    }
    let (got, want, dtype) = (got.to_f64(), want.to_f64(), got.dtype());
    let largest = want.iter().filter(|v| v.is_finite()).fold(1e-30f64, |m, v| m.max(v.abs()));
    let at = got.iter().zip(&want).position(|(a, b)| !near.holds(dtype, *a, *b, largest))?;
    Some(format!("element {at} is {}, want {}", got[at], want[at]))
}
