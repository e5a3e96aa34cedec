//! The built-in networks: their variables, and five steps of training as in TensorFlow.

use super::array;
use super::recorded::{check_network, x};
use crate::gpus;
use turret::base::{Array, DType};
use turret::graph::{Graph, keys};
use turret::layers::layer_parameters;
use turret::layers::models::{Cifar10, Cnn, MobileNetV2, cifar10, classification_loss, cnn, mobilenet_v2};
use turret::plan::StepNode;
use turret::run::{Session, SessionOptions};
use turret::train::{ApplyOptions, ComputeOptions, Optimizer};

#[test]
fn cifar10_is_the_tutorials() {
    check_network("cifar10", |g| cifar10(x(g, &[2, 12, 12, 3]), Cifar10 { weight_decay: 0.0, ..Cifar10::default() }));
    let g = Graph::new();
    let scores = cifar10(x(&g, &[2, 24, 24, 3]), Cifar10::default());
    assert_eq!(scores.shape().to_dims().unwrap()[..], [2, 10]);
    let loss = classification_loss(scores, g.placeholder(DType::I32, [2], "labels"));
    assert_eq!(g.tensors_in(keys::LOSSES), [loss]);
    // The weight decay is that of the two local layers.
    let penalties: Vec<String> = g.tensors_in(keys::REGULARIZATION_LOSSES).iter().map(|p| p.op().name()).collect();
    let of = |layer: &str| format!("{layer}/weights/Regularizer/l2_regularizer");
    assert_eq!(penalties, [of("local3"), of("local4")]);
    let total: usize = layer_parameters(&g).iter().map(|l| l.trainable).sum();
    assert_eq!(total, 1_068_298);
}

#[test]
fn the_cnn_trains_as_in_tensorflow() {
    check_network("cnn", |g| cnn(x(g, &[2, 12, 12, 3]), Cnn::default()));
    let g = Graph::new();
    assert_eq!(cnn(x(&g, &[2, 24, 24, 3]), Cnn::default()).shape().to_dims().unwrap()[..], [2, 10]);
    let total: usize = layer_parameters(&g).iter().map(|l| l.trainable).sum();
    assert_eq!(total, 1_068_298);
    for (options, said) in [
        (Cnn { filters: 0, ..Cnn::default() }, "layer 'layer0': want 1 or more filters, got 0"),
        (Cnn { units: [384, 0], ..Cnn::default() }, "layer 'layer3': want 1 or more units, got 0"),
    ] {
        let g = Graph::new();
        assert!(cnn(x(&g, &[1, 24, 24, 3]), options).is_poison());
        let message = g.check().unwrap_err().to_string();
        assert!(message.starts_with(said), "{message}");
    }
}

#[test]
fn variables_are_of_the_images_type() {
    for dtype in [DType::F32, DType::F64] {
        let g = Graph::new();
        let images = g.placeholder(dtype, [2, 12, 12, 3], "images");
        let scores = [cifar10(images, Cifar10::default()), cnn(images, Cnn::default())];
        assert!(g.global_variables().iter().all(|v| v.dtype() == dtype) && scores.iter().all(|s| s.dtype() == dtype));
        let session = Session::new(&g, SessionOptions::on(gpus::machine(0))).expect("a sound graph");
        session.initialize().expect("initial values");
        let fed = array(&[2, 12, 12, 3], 1).cast(dtype).expect("a cast");
        let found = session.run(&[(images, &fed)], &scores, &[]).expect("scores");
        assert!(found.iter().all(|s| s.to_f64().iter().all(|v| v.is_finite())), "{found:?}");
    }
}

/// The labels are checked, and gradients wait for that, but nobody asked for the images' gradient.
#[test]
fn the_images_get_no_gradient() {
    let g = Graph::new();
    let (images, labels) = (x(&g, &[2, 12, 12, 3]), g.placeholder(DType::I32, [2], "labels"));
    let loss = classification_loss(cnn(images, Cnn::default()), labels);
    let train = Optimizer::gradient_descent(0.1).minimize(loss, ComputeOptions::default(), ApplyOptions::default());
    let session = Session::new(&g, SessionOptions::on(gpus::machine(1))).expect("a sound graph");
    let schedule = session.schedule(&[(images, &[2, 12, 12, 3]), (labels, &[2])], &[], &[train]).expect("a plan");
    // Alone, or with what is fused to them.
    let runs = |n: &StepNode, op: &str| schedule.step.what(n).split('+').any(|part| part == op);
    let count = |op: &str| schedule.step.nodes.iter().filter(|n| runs(n, op)).count();
    assert_eq!(["Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput"].map(count), [2, 2, 1]);
    session.initialize().expect("initial values");
    let images = (images, &array(&[2, 12, 12, 3], 1));
    let step = |label: i32| {
        let (w, was) = (g.find_variable("layer0/w").expect("it is there"), (labels, &Array::new(&[2], &[1, label])?));
        let before = session.value(w)?;
        let result = session.run(&[images, was], &[], &[train]).map(drop);
        Ok::<_, turret::Error>((result.is_ok(), session.value(w)? == before))
    };
    assert_eq!(step(10).expect("values"), (false, true), "a label that is no class ends the step");
    assert_eq!(step(9).expect("values"), (true, false));
}

#[test]
fn mobilenet_v2_is_keras() {
    check_network("mobilenet_v2", |g| {
        let options = MobileNetV2 { width: 0.35, classes: 5, ..MobileNetV2::default() };
        // In float64: batch normalization of few numbers makes rounding grow from step to step.
        mobilenet_v2(g.placeholder(DType::F64, [4, 64, 64, 3], "x"), true, options)
    });
}

/// Trainable and other parameters of `tf.keras.applications.MobileNetV2(alpha=…)`.
#[test]
fn mobilenet_v2_has_as_many_parameters_as_keras() {
    for (width, trainable, other) in [
        (0.35, 1_677_128, 14_080),
        (0.5, 1_968_680, 18_544),
        (0.75, 2_636_424, 26_640),
        (1.0, 3_504_872, 34_112),
        (1.3, 5_386_792, 44_256),
        (1.4, 6_108_776, 47_936),
    ] {
        let g = Graph::new();
        mobilenet_v2(x(&g, &[1, 224, 224, 3]), false, MobileNetV2 { width, ..MobileNetV2::default() });
        g.check().unwrap();
        let layers = layer_parameters(&g);
        let sum = |of: fn(&turret::layers::LayerParameters) -> usize| layers.iter().map(of).sum::<usize>();
        assert_eq!((sum(|l| l.trainable), sum(|l| l.other)), (trainable, other), "width {width}");
        // 35 convolutions of whole channels, 17 of single ones, as many normalizations, and the classifier.
        assert_eq!(layers.len(), 105);
        assert_eq!(layers[0].layer, "Conv1");
        assert_eq!(layers[104].variables.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["kernel", "bias"]);
    }
}

#[test]
fn a_width_that_is_none_is_refused() {
    let g = Graph::new();
    let options = MobileNetV2 { width: -1.0, ..MobileNetV2::default() };
    assert!(mobilenet_v2(x(&g, &[1, 32, 32, 3]), true, options).is_poison());
    let message = g.check().unwrap_err().to_string();
    assert!(message.starts_with("MobileNetV2 wants a width above 0 and up to 64, got -1"), "{message}");
    let g = Graph::new();
    assert!(cifar10(x(&g, &[1, 24, 24]), Cifar10::default()).is_poison());
    let message = g.check().unwrap_err().to_string();
    assert!(message.starts_with("layer 'conv1': want an input of rank 4"), "{message}");
}
