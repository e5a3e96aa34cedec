//! Random convolutions with what follows them, of images and sizes that do not divide by blocks: fused and apart they must
//! give the same bits, from any number of threads; only sums over images may be rounded differently.

use super::graphs::seeds;
use super::random::Random;
use turret::base::{Array, DType};
use turret::device::Machine;
use turret::graph::{Graph, Tensor};
use turret::ops::{ConvOptions, Padding};
use turret::run::{Session, SessionOptions};

/// A convolution and what it is fed.
struct Convolving<'g> {
    g: &'g Graph,
    random: Random,
    feeds: Vec<(Tensor<'g>, Array)>,
}

impl<'g> Convolving<'g> {
    fn placeholder(&mut self, dims: &[usize]) -> Tensor<'g> {
        let placeholder = self.g.placeholder(DType::F32, dims, "p");
        let values = self.random.numbers(dims.iter().product());
        self.feeds.push((placeholder, Array::new(dims, &values).unwrap()));
        placeholder
    }

    /// A convolution or a gradient of one.
    fn convolution(&mut self) -> Tensor<'g> {
        let random = &mut self.random;
        let (channels, filters) = (random.pick(&[3, 8, 16, 32, 33]), random.pick(&[5, 16, 32, 40]));
        let window = random.pick(&[1, 3, 3, 5, 5]);
        let stride = random.pick(&[1, 1, 1, 2, 3]);
        let padding = random.pick(&[Padding::Same, Padding::Valid]);
        let (batch, size) = (1 + random.below(20), [(); 2].map(|()| window + random.below(20)));
        let (backward, depthwise) = (random.one_in(2), random.one_in(4));
        let options = ConvOptions::new([stride, stride], padding);
        let image = self.placeholder(&[batch, size[0], size[1], channels]);
        let (name, filter) = match depthwise {
            true => ("DepthwiseConv2dNative", self.placeholder(&[window, window, channels, 1])),
            false => ("Conv2D", self.placeholder(&[window, window, channels, filters])),
        };
        let forward = match depthwise {
            true => image.depthwise_conv2d_native(filter, options),
            false => image.conv2d(filter, options),
        };
        if !backward {
            return forward;
        }
        let gradient = self.placeholder(&forward.shape().to_dims().unwrap());
        let op = turret::ops::find(&format!("{name}BackpropInput")).unwrap();
        let sizes = Array::new(&[4], &[batch, size[0], size[1], channels].map(|d| d as i32)).unwrap();
        let node = self.g.node_of(op).inputs([self.g.constant(sizes), filter, gradient]);
        let pair = vec![1, stride as i64, stride as i64, 1];
        node.attr("strides", pair).attr("padding", padding.name()).tensor()
    }

    /// Something that computes every element alone.
    fn follow(&mut self, x: Tensor<'g>) -> Tensor<'g> {
        let dims = x.shape().to_dims().unwrap();
        match self.random.below(8) {
            0 => x.bias_add(self.placeholder(&dims[3..])),
            1 => x.relu(),
            2 => x * f64::from(self.random.number()),
            3 => x + self.placeholder(&dims),
            4 => {
                let features = self.placeholder(&dims);
                self.g.node_of(turret::ops::find("ReluGrad").unwrap()).inputs([x, features]).tensor()
            }
            5 => x + self.placeholder(&dims[2..]),
            6 => x.maximum(self.placeholder(&dims[1..])),
            _ => x * self.placeholder(&[dims[0], 1, 1, dims[3]]),
        }
    }
}

#[test]
fn convolutions_and_what_follows_have_the_same_bits_fused_and_apart() {
    let (mut fused_nodes, count) = (0, seeds(32));
    for seed in 0..count {
        let g = Graph::new();
        let mut w = Convolving { g: &g, random: Random::new(seed + 20_000), feeds: Vec::new() };
        let product = w.convolution();
        let mut x = product;
        for _ in 0..1 + w.random.below(3) {
            x = w.follow(x);
        }
        let mut fetches = vec![x];
        if w.random.one_in(4) {
            fetches.push(product);
        }
        // Reduced last: sums of whole images are merged of tiles.
        let whole = fetches.len();
        match w.random.below(4) {
            0 => fetches.push(x.sum_axes(&[0, 1, 2], false)),
            1 => fetches.push(x.mean_axes(&[3], true)),
            2 => fetches.push(x.max_axes(&[1, 2, 3], false)),
            _ => {}
        }
        g.check().unwrap_or_else(|e| panic!("graph {seed}: {e}"));
        let given: Vec<(Tensor<'_>, &Array)> = w.feeds.iter().map(|(t, a)| (*t, a)).collect();
        let run = |fusion: bool, threads: usize| {
            let machine = Machine::host().with_host_threads(threads);
            let s = Session::new(&g, SessionOptions { fusion, ..SessionOptions::on(machine) }).unwrap();
            let shapes: Vec<(Tensor<'_>, &[usize])> = given.iter().map(|(t, a)| (*t, a.dims())).collect();
            let plan = s.schedule(&shapes, &fetches, &[]).unwrap();
            let convolves = |name: String| name.contains("Conv2") && name.contains('+');
            let fused = plan.step.nodes.iter().filter(|n| convolves(plan.step.what(n))).count();
            let first = s.run(&given, &fetches, &[]).unwrap_or_else(|e| panic!("graph {seed}: {e}"));
            assert!(first == s.run(&given, &fetches, &[]).unwrap(), "graph {seed}: the second run");
            (first, fused)
        };
        let ((apart, none), (one, fused)) = (run(false, 1), run(true, 1));
        assert_eq!(none, 0, "graph {seed}");
        fused_nodes += fused;
        for threads in [2, 3] {
            assert!(run(true, threads).0 == one, "graph {seed}: other bits with {threads} threads");
        }
        for (i, (got, want)) in one.iter().zip(&apart).enumerate() {
            let name = product.op().op_type();
            if i < whole {
                assert!(got.bytes() == want.bytes(), "graph {seed}: {name} {:?} has other bits fused", want.dims());
                continue;
            }
            let (got, want) = (got.to_f64(), want.to_f64());
            let largest = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
            let near = got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 1e-5 * largest);
            assert!(got.len() == want.len() && near, "graph {seed}: a sum after {name}");
        }
    }
    assert!(fused_nodes as u64 > count / 2, "{fused_nodes} of {count} convolutions took in what follows");
}
