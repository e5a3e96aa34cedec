//! Times of single kernels: the products of the article's network, element-wise ops, reductions, convolutions, pools,
//! normalizations and optimizers' updates, on one thread and on all.
//!
//! Throughput is in floating-point operations for products and convolutions (criterion calls them elements), and in bytes
//! read and written for the rest.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use turret::graph::{Graph, Init, Operation, Tensor};
use turret::ops::{BatchNormOptions, ConvOptions, LrnOptions, Padding, PoolOptions};
use turret::train::{GradAndVar, GradOptions, Optimizer, gradients};
use turret_benches::OneOp;

/// Rows of the article's batch.
const ROWS: usize = 2000;

fn threads() -> Vec<usize> {
    let all = std::thread::available_parallelism().map_or(1, |n| n.get());
    if all == 1 { vec![1] } else { vec![1, all] }
}

/// Times what `build` makes, on each number of threads.
fn time(
    c: &mut Criterion,
    group: &str,
    name: &str,
    work: Throughput,
    inputs: &[&[usize]],
    build: impl for<'g> Fn(&'g Graph, &[Tensor<'g>]) -> Operation<'g>,
) {
    let mut group = c.benchmark_group(group);
    group.throughput(work);
    for threads in threads() {
        let graph = Graph::new();
        let op = OneOp::new(&graph, threads, inputs, |x| build(&graph, x)).expect("the operation is right");
        let mut step = op.step().expect("it runs");
        group.bench_function(BenchmarkId::new(name, format!("{threads}t")), |b| b.iter(&mut step));
    }
    group.finish();
}

/// The products of a step of the article's network: forward, of the weights' gradients, of the inputs' gradients.
fn products(c: &mut Criterion) {
    for (k, n) in [(600, 512), (512, 128), (128, 128), (128, 1)] {
        let flops = Throughput::Elements((2 * ROWS * k * n) as u64);
        let mut product = |what: &str, inputs: [&[usize]; 2], transposed: (bool, bool)| {
            let name = format!("{what} {k}x{n}");
            time(c, "products", &name, flops.clone(), &inputs, |_, x| {
                x[0].matmul_with(x[1], transposed.0, transposed.1).op()
            });
        };
        product("forward", [&[ROWS, k], &[k, n]], (false, false));
        product("weights", [&[ROWS, k], &[ROWS, n]], (true, false));
        product("inputs", [&[ROWS, n], &[k, n]], (false, true));
    }
}

fn elementwise(c: &mut Criterion) {
    const WIDTH: usize = 512;
    let one: &[usize] = &[ROWS, WIDTH];
    let bytes = |tensors: usize| Throughput::Bytes((tensors * ROWS * WIDTH * 4) as u64);
    type Unary = for<'g> fn(Tensor<'g>) -> Tensor<'g>;
    let unary: [(&str, Unary); 6] = [
        ("relu", |x| x.relu()),
        ("exp", |x| x.exp()),
        ("tanh", |x| x.tanh()),
        ("sigmoid", |x| x.sigmoid()),
        ("square", |x| x.square()),
        ("sqrt of square", |x| x.square().sqrt()),
    ];
    for (name, op) in unary {
        time(c, "elementwise", name, bytes(2), &[one], |_, x| op(x[0]).op());
    }
    time(c, "elementwise", "add", bytes(3), &[one, one], |_, x| (x[0] + x[1]).op());
    time(c, "elementwise", "add a row", bytes(2), &[one, &[WIDTH]], |_, x| (x[0] + x[1]).op());
    time(c, "elementwise", "add a number", bytes(2), &[one, &[]], |_, x| (x[0] + x[1]).op());
    time(c, "elementwise", "softmax", bytes(2), &[one], |_, x| x[0].softmax().op());
}

fn reductions(c: &mut Criterion) {
    const WIDTH: usize = 512;
    let (one, bytes): (&[usize], _) = (&[ROWS, WIDTH], Throughput::Bytes((ROWS * WIDTH * 4) as u64));
    time(c, "reductions", "sum of all", bytes.clone(), &[one], |_, x| x[0].sum().op());
    time(c, "reductions", "sum of columns", bytes.clone(), &[one], |_, x| x[0].sum_axes(&[0], false).op());
    time(c, "reductions", "sum of rows", bytes.clone(), &[one], |_, x| x[0].sum_axes(&[1], false).op());
    time(c, "reductions", "largest of rows", bytes, &[one], |_, x| x[0].max_axes(&[1], false).op());
}

/// The layers of the network of TensorFlow's CIFAR-10 tutorial.
fn images(c: &mut Criterion) {
    const BATCH: usize = 128;
    let mut conv = |name: &str, size: usize, channels: usize| {
        let (image, filter) = ([BATCH, size, size, channels], [5, 5, channels, 64]);
        let flops = Throughput::Elements((2 * BATCH * size * size * 25 * channels * 64) as u64);
        time(c, "images", name, flops, &[&image, &filter], |_, x| {
            x[0].conv2d(x[1], ConvOptions::new([1, 1], Padding::Same)).op()
        });
    };
    conv("conv 5x5 3 to 64", 24, 3);
    conv("conv 5x5 64 to 64", 12, 64);
    let pool = PoolOptions::new([3, 3], [2, 2], Padding::Same);
    let (image, bytes) = ([BATCH, 24, 24, 64], Throughput::Bytes((BATCH * 24 * 24 * 64 * 5) as u64));
    time(c, "images", "max pool 3x3", bytes.clone(), &[&image], |_, x| x[0].max_pool(pool).op());
    time(c, "images", "average pool 3x3", bytes, &[&image], |_, x| x[0].avg_pool(pool).op());
}

fn norm<'g>(x: &[Tensor<'g>]) -> Tensor<'g> {
    x[0].fused_batch_norm(x[1], x[2], BatchNormOptions::default())[0]
}

/// What computes the gradient of `y`, which is reached by `x`.
fn slope<'g>(y: Tensor<'g>, x: Tensor<'g>) -> Operation<'g> {
    let found = gradients([y], [x], GradOptions { grad_ys: vec![Some(x.into())], ..GradOptions::default() });
    found[0].expect("it has a gradient").values().op()
}

/// Normalizations of a batch of images, and what gives their gradients: the operation itself runs as well.
fn normalizations(c: &mut Criterion) {
    let image = [128, 24, 24, 64];
    let bytes = Throughput::Bytes(image.iter().product::<usize>() as u64 * 8);
    let batch: &[&[usize]] = &[&image, &[64], &[64]];
    time(c, "normalizations", "batch norm", bytes.clone(), batch, |_, x| norm(x).op());
    time(c, "normalizations", "batch norm with gradient", bytes.clone(), batch, |_, x| slope(norm(x), x[0]));
    let options = LrnOptions { depth_radius: 4, bias: 1.0, alpha: 0.001 / 9.0, beta: 0.75 };
    time(c, "normalizations", "lrn", bytes.clone(), &[&image], |_, x| x[0].lrn(options).op());
    time(c, "normalizations", "lrn with gradient", bytes, &[&image], |_, x| slope(x[0].lrn(options), x[0]));
}

/// One update of the article's largest variable.
fn updates(c: &mut Criterion) {
    let dims: [usize; 2] = [600, 512];
    for (name, tensors) in [("gradient descent", 3), ("momentum", 5), ("adam", 7)] {
        let bytes = Throughput::Bytes((tensors * 600 * 512 * 4) as u64);
        time(c, "updates", name, bytes, &[&dims], |graph, x| {
            let w = graph.get_variable("w", dims, Init::Zeros);
            let optimizer = match name {
                "momentum" => Optimizer::momentum(0.01, 0.9),
                "adam" => Optimizer::adam(0.001),
                _ => Optimizer::gradient_descent(0.01),
            };
            optimizer.apply_gradients(&[GradAndVar { grad: Some(x[0].into()), var: w }])
        });
    }
}

criterion_group!(kernels, products, elementwise, reductions, images, normalizations, updates);
criterion_main!(kernels);
