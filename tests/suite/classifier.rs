//! A whole program of a user: embedded words, a classifier, momentum with a falling rate, clipping, weight decay, the step
//! counter, variables spread over the GPUs, a batch size that only the feeds say.

use turret::base::{Array, DType};
use turret::graph::{Graph, Init, Regularizer, ScopeOptions, VariablePlacement};
use turret::run::{Session, SessionOptions};
use turret::train::{
    ApplyOptions, Optimizer, Towers, clip_by_global_norm, exponential_decay, get_or_create_global_step,
};

const CLASSES: usize = 4;
const WORDS: usize = 12 * CLASSES;

/// Rows of three words of one class each, and the classes.
fn batch(rows: usize, seed: usize) -> [Array; 2] {
    let mut state = seed as u32 + 1;
    let mut below = |n: usize| {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 10) as usize % n
    };
    let (mut words, mut labels) = (Vec::new(), Vec::new());
    for _ in 0..rows {
        let class = below(CLASSES);
        labels.push(class as i32);
        words.extend((0..3).map(|_| (class * 12 + below(12)) as i32));
    }
    [Array::new(&[rows, 3], &words).unwrap(), Array::new(&[rows], &labels).unwrap()]
}

/// The losses of its steps, and what the step counter says then.
fn train(towers: usize, steps: usize) -> (Vec<f64>, f64) {
    let g = Graph::new();
    g.set_random_seed(7);
    let words = g.placeholder(DType::I32, [None, Some(3)], "words");
    let labels = g.placeholder(DType::I32, [None], "labels");
    let step = get_or_create_global_step(&g);
    let optimizer = Optimizer::momentum(exponential_decay(step, 0.5, 50.0, 0.9, false), 0.9);
    let builder = Towers::new(&g, towers).variables(VariablePlacement::least_bytes(towers as u32));
    let (words_of, labels_of) = (builder.split(words), builder.split(labels));
    let built = builder.build(&optimizer, |tower| {
        let options = ScopeOptions { regularizer: Some(Regularizer::L2(1e-4)), ..ScopeOptions::default() };
        g.variable_scope_with("net", options, || {
            let embedding = g.get_variable("embedding", [WORDS, 8], Init::truncated_normal(0.0, 0.1));
            // The number of rows is not known here, so the mean's gradient has it computed.
            let text = g.embedding_lookup(embedding, words_of[tower.index()]).mean_axes(&[1], false);
            let w = g.get_variable("w", [8, CLASSES], Init::glorot_uniform());
            let scores = text.matmul(w) + g.get_variable("b", [CLASSES], Init::Zeros);
            scores.sparse_softmax_cross_entropy(labels_of[tower.index()]).mean()
        })
    });
    let clipped = clip_by_global_norm(&built.grads, 1.0);
    let train = optimizer.apply_gradients_with(&clipped, ApplyOptions::step(step));
    let session = Session::new(&g, SessionOptions::on(crate::gpus::machine(towers))).unwrap();
    session.initialize().unwrap();
    let losses = (0..steps).map(|i| {
        // Batches of two sizes.
        let [x, y] = batch(32 + 16 * (i % 2), i);
        session.run(&[(words, &x), (labels, &y)], &[built.loss], &[train]).unwrap()[0].get_f64(0)
    });
    (losses.collect(), session.value(step).unwrap().get_f64(0))
}

#[test]
fn a_classifier_of_words_trains_the_same_with_any_number_of_towers() {
    let (one, step) = train(1, 60);
    assert_eq!(step, 60.0);
    assert!(one[0] > 1.3 && one[59] < 0.1, "{one:?}");
    for towers in [2, 4] {
        let (many, _) = train(towers, 60);
        assert!(one.iter().zip(&many).all(|(a, b)| (a - b).abs() < 1e-4), "{towers} towers: {one:?} {many:?}");
    }
}

#[test]
fn a_division_by_zero_between_constants_fails_in_the_run() {
    let g = Graph::new();
    let (seven, zero) = (g.constant(7i32), g.constant(0i32));
    let session = Session::new(&g, SessionOptions::devices("cpu").unwrap()).unwrap();
    let quotient = seven.floor_div(zero);
    let message = session.run(&[], &[quotient], &[]).unwrap_err().to_string();
    assert!(message.contains(&quotient.op().name()) && message.contains("zero"), "{message}");
    let halves = seven.floor_div(g.constant(2i32));
    assert_eq!(session.run(&[], &[halves], &[]).unwrap()[0].get_f64(0), 3.0);
}
