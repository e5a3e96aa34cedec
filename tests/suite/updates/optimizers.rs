//! FTRL, Adadelta and centered RMSProp: three steps of training, from dense gradients and from rows, with the names and
//! values that TensorFlow's optimizers left (TensorFlow 2.21, `tf.compat.v1.train`).

use turret::base::Array;
use turret::graph::{Graph, Init};
use turret::run::{Session, SessionOptions};
use turret::train::{ApplyOptions, ComputeOptions, Optimizer};

/// The variables by name afterwards: of the dense program, and of the one whose gradient is rows.
type Figures = [(&'static str, &'static [f64], &'static [f64])];

type Make = for<'g> fn(&'g Graph) -> Optimizer<'g>;

fn check(make: Make, name: &str, figures: &Figures) {
    for sparse in [false, true] {
        for device in ["/cpu:0", "/gpu:0"] {
            let g = Graph::new();
            let optimizer = make(&g);
            let train = g.device(device, || {
                let loss = match sparse {
                    false => {
                        let start = Array::new(&[3], &[1.0f32, -2.0, 3.0]).expect("three");
                        g.get_variable("w", [3], Init::data(start)).value()
                    }
                    true => {
                        let start = Array::new(&[3, 2], &[1.0f32, -2.0, 3.0, 0.5, -0.25, 4.0]).expect("six");
                        let w = g.get_variable("w", [3, 2], Init::data(start));
                        g.embedding_lookup(w, g.constant([2, 0, 2]))
                    }
                };
                let loss = loss.square().sum() * 0.5;
                optimizer.minimize(loss, ComputeOptions::default(), ApplyOptions::default())
            });
            assert_eq!(train.name(), name);
            let session = Session::new(&g, SessionOptions::on(crate::gpus::machine(1))).expect("a sound graph");
            session.initialize().expect("initial values");
            (0..3).for_each(|_| drop(session.run(&[], &[], &[train]).expect("a step")));
            let made: Vec<String> = g.global_variables().iter().map(|v| v.name()).collect();
            let wanted: Vec<&str> = figures.iter().map(|f| f.0).collect();
            assert_eq!(made, wanted);
            for (variable, dense, rows) in figures {
                let want = if sparse { rows } else { dense };
                let got = session.value(g.find_variable(variable).expect("it is there")).expect("a value");
                let largest = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
                let near = |(g, w): (f64, &f64)| (g - w).abs() <= 1e-5 * largest;
                let alike = got.len() == want.len() && got.to_f64().into_iter().zip(*want).all(near);
                assert!(alike, "{variable} on {device}, rows {sparse}: want {want:?}, got {got:?}");
            }
        }
    }
}

#[test]
fn ftrl_follows_the_regularized_leader() {
    check(
        |_| {
            let ftrl = Optimizer::ftrl(0.1).with("l1_regularization_strength", 0.3);
            ftrl.with("l2_regularization_strength", 0.02)
        },
        "Ftrl",
        &[
            (
                "w",
                &[0.4845324158668518, -1.4590673446655273, 2.4544715881347656],
                &[0.4845324158668518, -1.4590673446655273, 3.0, 0.5, 0.0, 3.612626552581787],
            ),
            (
                "w/Ftrl",
                &[1.7028088569641113, 8.847282409667969, 22.00831413269043],
                &[1.7028088569641113, 8.847282409667969, 0.1, 0.1, 0.3499999940395355, 173.76959228515625],
            ),
            (
                "w/Ftrl_1",
                &[-6.6421284675598145, 43.75741958618164, -115.54485321044922],
                &[-6.6421284675598145, 43.75741958618164, 0.0, 0.0, 0.18845057487487793, -476.66705322265625],
            ),
        ],
    );
}

#[test]
fn ftrl_shrinks_where_asked_to() {
    check(
        |_| {
            let ftrl = Optimizer::ftrl(0.1).with("l2_shrinkage_regularization_strength", 0.1);
            ftrl.with("learning_rate_power", -0.4).initial_accumulator(0.2)
        },
        "Ftrl",
        &[
            (
                "w",
                &[0.3210199475288391, -1.1325018405914307, 2.032461643218994],
                &[0.3210199475288391, -1.1325018405914307, 3.0, 0.5, 0.0031320585403591394, 3.224094867706299],
            ),
            (
                "w/Ftrl",
                &[1.487962245941162, 7.254816055297852, 18.511512756347656],
                &[1.487962245941162, 7.254816055297852, 0.2, 0.2, 0.4502466917037964, 155.54063415527344],
            ),
            (
                "w/Ftrl_1",
                &[-3.7632997035980225, 25.020126342773438, -65.31291961669922],
                &[-3.7632997035980225, 25.020126342773438, 0.0, 0.0, -0.022761981934309006, -242.74224853515625],
            ),
        ],
    );
}

#[test]
fn adadelta_goes_by_the_size_of_its_steps() {
    check(
        |_| Optimizer::adadelta(0.5),
        "Adadelta",
        &[
            (
                "w",
                &[0.9993216395378113, -1.999321460723877, 2.999321460723877],
                &[0.9993216395378113, -1.999321460723877, 3.0, 0.5, -0.24932187795639038, 3.999321460723877],
            ),
            (
                "w/Adadelta",
                &[0.14255879819393158, 0.5703675746917725, 1.2834265232086182],
                &[0.14255879819393158, 0.5703675746917725, 0.0, 0.0, 0.03559006750583649, 9.126941680908203],
            ),
            (
                "w/Adadelta_1",
                &[2.9192822381673977e-08, 2.9196556283750397e-08, 2.9197801509894816e-08],
                &[
                    2.9192822381673977e-08,
                    2.9196556283750397e-08,
                    0.0,
                    0.0,
                    2.9170447390924892e-08,
                    2.9198425011145446e-08,
                ],
            ),
        ],
    );
}

#[test]
fn centered_rms_prop_goes_by_the_variance() {
    check(
        |_| Optimizer::rms_prop(0.01).with("momentum", 0.5).centered(),
        "RMSProp",
        &[
            (
                "w",
                &[0.9571200609207153, -1.927902340888977, 2.9109106063842773],
                &[0.9571200609207153, -1.927902340888977, 3.0, 0.5, -0.22753486037254333, 3.8874688148498535],
            ),
            (
                "w/RMSProp",
                &[0.9932299256324768, 1.789458155632019, 3.123222827911377],
                &[0.9932299256324768, 1.7894580364227295, 1.0, 1.0, 0.7932662963867188, 17.75918960571289],
            ),
            (
                "w/RMSProp_1",
                &[0.2675788104534149, -0.5360604524612427, 0.8054797649383545],
                &[0.2675788104534149, -0.5360604524612427, 0.0, 0.0, -0.13193769752979279, 2.1482396125793457],
            ),
            (
                "w/RMSProp_2",
                &[0.017712753266096115, -0.02873655967414379, 0.03453239053487778],
                &[0.017712753266096115, -0.02873656153678894, 0.0, 0.0, -0.009338732808828354, 0.041627053171396255],
            ),
        ],
    );
}

#[test]
fn settings_that_an_optimizer_does_not_have_are_told() {
    let told = |make: Make| {
        let g = Graph::new();
        let w = g.get_variable("w", [2], Init::Ones);
        let loss = w.value().square().sum();
        let list = Optimizer::gradient_descent(0.1).compute_gradients(loss);
        make(&g).apply_gradients(&list);
        g.check().expect_err("it is refused").to_string()
    };
    assert!(told(|_| Optimizer::adam(0.1).centered()).contains("has no centered form"));
    assert!(told(|_| Optimizer::ftrl(0.1).with("learning_rate_power", 0.5)).contains("must be zero or less, got 0.5"));
    let negative: Make = |_| Optimizer::ftrl(0.1).with("l2_shrinkage_regularization_strength", -1.0);
    assert!(told(negative).contains("must be zero or more, got -1"));
    assert!(told(|_| Optimizer::ftrl(0.1).initial_accumulator(-0.1)).contains("cannot be -0.1"));
}
