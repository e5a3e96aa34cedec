//! The article's network (600 → 512, 128, 128 → 1), step by step: the host with its threads, a GPU in several layouts.
//!
//! A row's loss after the first steps is compared with the host's, so that no row is fast by being wrong.

use super::items::{Items, is_near, text};
use std::cell::OnceCell;
use std::time::{Duration, Instant};
use turret::base::{Array, DType};
use turret::device::{Machine, cuda};
use turret::graph::{Graph, Init, Tensor, VariablePlacement};
use turret::ops::VariableOptions;
use turret::report::{CopyTable, human_bytes};
use turret::run::{CudaOptions, Session, SessionOptions};
use turret::train::{AveragePlace, Optimizer, Towers};

const WIDTH: usize = 600;
const DIMS: [usize; 3] = [512, 128, 128];

/// Steps before the loss is compared and times are taken.
const WARMUP: usize = 5;

/// One row of the table.
struct Row {
    /// The CUDA GPUs, one tower each; none for the host, with so many threads.
    gpus: Vec<usize>,
    threads: usize,
    on_gpu: bool,
    graphs: bool,
    tf32: bool,
    /// The inputs are fed with every step; otherwise they lie on the first GPU.
    fed: bool,
    place: AveragePlace,
}

fn rows(quick: bool) -> Vec<Row> {
    let all = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut threads: Vec<usize> = (1..).map(|i| 1 << i).take_while(|t| *t < all).collect();
    threads.push(all);
    let host = |threads: usize| Row {
        gpus: Vec::new(),
        threads,
        on_gpu: false,
        graphs: false,
        tf32: false,
        fed: true,
        place: AveragePlace::BesideVariables,
    };
    let mut rows: Vec<Row> = threads.into_iter().filter(|t| !quick || *t <= 2).map(host).collect();
    let mut towers = vec![vec![0], vec![0, 0]];
    if cuda::device_count().is_ok_and(|n| n > 1) {
        towers.push(vec![0, 1]);
    }
    for gpus in &towers {
        for on_gpu in [false, true] {
            for graphs in [true, false] {
                for tf32 in [false, true] {
                    if !quick || graphs != tf32 {
                        let gpus = gpus.clone();
                        rows.push(Row { gpus, on_gpu, graphs, tf32, ..host(all) });
                    }
                }
            }
        }
    }
    for gpus in &towers {
        for tf32 in [false, true] {
            rows.push(Row { gpus: gpus.clone(), on_gpu: true, graphs: true, tf32, fed: false, ..host(all) });
        }
        for place in [AveragePlace::Spread, AveragePlace::AllReduce] {
            if gpus.len() > 1 && !quick {
                rows.push(Row { gpus: gpus.clone(), on_gpu: true, graphs: true, place, ..host(all) });
            }
        }
    }
    rows
}

impl Row {
    fn cells(&self) -> [String; 6] {
        let gpus: Vec<String> = self.gpus.iter().map(|g| g.to_string()).collect();
        let on = |is: bool| if is { "on" } else { "off" }.to_string();
        let place = match self.place {
            AveragePlace::Spread => ", spread",
            AveragePlace::AllReduce => ", all-reduce",
            _ => "",
        };
        let device =
            if gpus.is_empty() { format!("host {}", self.threads) } else { format!("cuda:{}", gpus.join(",")) };
        let (graphs, tf32) = if gpus.is_empty() { ("-".into(), "-".into()) } else { (on(self.graphs), on(self.tf32)) };
        let variables = if self.on_gpu { "gpu" } else { "cpu" };
        let inputs = if self.fed { "fed" } else { "resident" };
        [device, self.gpus.len().max(1).to_string(), format!("{variables}{place}"), inputs.into(), graphs, tf32]
    }

    fn options(&self) -> turret::Result<SessionOptions> {
        let machine = match self.gpus.is_empty() {
            true => Machine::host().with_host_threads(self.threads),
            false => Machine::cuda(&self.gpus)?,
        };
        let cuda = CudaOptions { graphs: self.graphs, tf32: self.tf32, ..CudaOptions::default() };
        Ok(SessionOptions { cuda, ..SessionOptions::on(machine) })
    }

    /// The loss after the warm-up, milliseconds of each measured step, operations of a step, bytes copied.
    fn measure(&self, batch: usize, quick: bool) -> turret::Result<(f64, Vec<f64>, f64, u64)> {
        let g = Graph::new();
        let [inputs, targets] = batch_of(batch)?;
        let devices: Vec<String> = match self.gpus.len() {
            0 => vec!["/cpu:0".into()],
            n => (0..n).map(|i| format!("/gpu:{i}")).collect(),
        };
        let variables = if self.on_gpu { VariablePlacement::gpu(0) } else { VariablePlacement::host() };
        let towers = Towers::new(&g, 1).devices(devices).variables(variables).average_at(self.place.clone());
        let input = |name: &str, value: &Array| match self.fed {
            true => g.placeholder(DType::F32, [batch, WIDTH], name),
            false => g.device("/gpu:0", || {
                let options = VariableOptions { trainable: false, ..VariableOptions::default() };
                g.get_variable_with(name, [batch, WIDTH], Init::data(value.clone()), options).value()
            }),
        };
        let (x, target) = (input("input", &inputs), input("target", &targets));
        let split = || (towers.split(x), towers.split(target));
        let (xs, ts) = if self.fed { split() } else { g.device("/gpu:0", split) };
        let optimizer = Optimizer::gradient_descent(1e-2);
        let built = towers.build(&optimizer, |tower| loss(&g, xs[tower.index()], ts[tower.index()]));
        let train = built.apply(&optimizer);
        let session = Session::new(&g, self.options()?)?;
        session.initialize()?;
        let (fed, arrays) = if self.fed { (vec![x, target], vec![&inputs, &targets]) } else { (vec![], vec![]) };
        let step = session.callable(&fed, &[built.loss], &[train]);
        let mut fetched = Vec::new();
        for _ in 0..WARMUP {
            step.run_into(&arrays, &mut fetched)?;
        }
        let loss = fetched[0].get_f64(0);
        let (most, enough) = if quick { (3, 0.5) } else { (300, 2.5) };
        let mut times: Vec<f64> = Vec::new();
        let began = Instant::now();
        while times.len() < most && (times.len() < 3 || began.elapsed() < Duration::from_secs_f64(enough)) {
            let start = Instant::now();
            step.run_into(&arrays, &mut fetched)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        for warning in session.warnings() {
            println!("note: {warning}");
        }
        let dims = [batch, WIDTH];
        let feeds: Vec<(Tensor<'_>, &[usize])> = fed.iter().map(|t| (*t, &dims[..])).collect();
        let schedule = session.schedule(&feeds, &[built.loss], &[train])?;
        let flops = schedule.work().iter().map(|cost| cost.flops).sum();
        Ok((loss, times, flops, CopyTable::new(&schedule, session.machine()).sent_bytes()))
    }
}

/// The network y = xw + b with ReLU between the layers, and its mean square loss, from weights that train.
fn loss<'g>(g: &'g Graph, x: Tensor<'g>, target: Tensor<'g>) -> Tensor<'g> {
    let affine = |scope: &str, x: Tensor<'g>, width: usize| {
        let (w, b) = g.variable_scope(scope, || {
            let dims = [x.dim(1), width];
            let start: Vec<f32> = uniform(dims[0] * width).iter().map(|v| (v - 0.5) * 0.2).collect();
            let start = Array::new(&dims, &start).map_or(Init::Zeros, Init::data);
            (g.get_variable("w", dims, start), g.get_variable("b", [], Init::Zeros))
        });
        x.matmul(w) + b
    };
    let mut hidden = x;
    for (i, width) in DIMS.into_iter().enumerate() {
        hidden = affine(&format!("affine{i}"), hidden, width).relu();
    }
    (affine("affine_last", hidden, 1) - target).square().mean()
}

/// The article's `np.random.rand`: uniform in [0, 1), here from a fixed seed (Marsaglia's xorshift).
fn uniform(count: usize) -> Vec<f32> {
    let mut state = 88172645463325252u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..count).map(|_| next()).collect()
}

fn batch_of(rows: usize) -> turret::Result<[Array; 2]> {
    let inputs = uniform(rows * WIDTH);
    let targets: Vec<f32> = inputs.iter().map(|x| x * 2.0 + 1.0).collect();
    Ok([Array::new(&[rows, WIDTH], &inputs)?, Array::new(&[rows, WIDTH], &targets)?])
}

const HEADS: [&str; 6] = ["devices", "towers", "variables", "inputs", "graphs", "TF32"];

fn line(cells: &[String; 6], rest: [&str; 5]) -> String {
    let [devices, towers, variables, inputs, graphs, tf32] = cells;
    let [ms, least, most, gflops, copied] = rest;
    format!(
        "{devices:<10} {towers:>6} {variables:<15} {inputs:<8} {graphs:<6} {tf32:<4} {ms:>9} {least:>9} {most:>9} \
         {gflops:>9} {copied:>10}"
    )
}

/// Measures all rows; some of them, with a small batch, in quick runs.
pub fn run(items: &mut Items) {
    let batch = if items.quick { 20 } else { 2000 };
    let quick = items.quick;
    if items.is_first_process() {
        let name = cuda::identities().ok().and_then(|all| Some(all.first()?.name.clone())).unwrap_or_default();
        let driver = cuda::driver_version().unwrap_or_else(|why| why);
        println!("{name}, driver for CUDA {driver}; 600 → 512, 128, 128 → 1, batch {batch}, milliseconds per step");
        println!("{}", line(&HEADS.map(String::from), ["median", "min", "max", "GFLOP/s", "copied"]));
    }
    let host: OnceCell<f64> = OnceCell::new();
    for row in rows(quick) {
        let cells = row.cells();
        items.check(&cells.join(" "), || {
            if host.get().is_none() {
                let reference = Row { gpus: Vec::new(), on_gpu: false, fed: true, ..rows(true).remove(0) };
                let _ = host.set(reference.measure(batch, true).map_err(text)?.0);
            }
            let want = host.get().copied().unwrap_or(f64::NAN);
            let (loss, mut times, flops, copied) = row.measure(batch, quick).map_err(text)?;
            // TensorFloat-32 has 10 bits of mantissa.
            let tolerance = if row.tf32 { 2e-2 } else { 1e-4 };
            if !is_near(loss, want, tolerance) {
                return Err(format!("the loss after {WARMUP} steps is {loss}, the host's {want}"));
            }
            times.sort_by(f64::total_cmp);
            let median = times[times.len() / 2];
            let ms = |v: f64| format!("{v:.3}");
            let (least, most) = (ms(times[0]), ms(times[times.len() - 1]));
            let gflops = format!("{:.0}", flops / median.max(1e-9) / 1e6);
            Ok(line(&cells, [&ms(median), &least, &most, &gflops, &human_bytes(copied)]))
        });
    }
}
