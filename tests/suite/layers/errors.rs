//! What layers refuse: the layer's name, both sides, the fix, and the line.

use turret::base::DType;
use turret::graph::{Graph, Tensor};
use turret::layers::{
    self, BasicLstmCell, BatchNormOptions, Conv2dOptions, DenseOptions, EmbeddingOptions, GruCell, RnnCell,
};
use turret::ops::{DataFormat, PoolOptions};

/// The one problem of a program.
fn problem(build: impl for<'g> FnOnce(&'g Graph) -> Tensor<'g>) -> String {
    let g = Graph::new();
    assert!(build(&g).is_poison());
    match &g.diagnostics()[..] {
        [one] => {
            assert!(one.to_string().contains("errors.rs"), "{one}");
            one.message.clone()
        }
        other => panic!("want one problem, got {other:?}"),
    }
}

fn x<'g>(g: &'g Graph, dims: &[Option<usize>]) -> Tensor<'g> {
    g.placeholder(DType::F32, turret::base::Shape::partial(dims.iter().copied()), "x")
}

#[test]
fn dense_wants_rows_of_floats() {
    fn dense(x: Tensor<'_>) -> Tensor<'_> {
        layers::dense(x, 4, DenseOptions::named("fc"))
    }
    assert_eq!(
        problem(|g| dense(x(g, &[Some(2), None]))),
        "layer 'fc': the size of a row must be known, which is axis 1 of 'x:0' [2, ?]; declare it where the input is made"
    );
    assert_eq!(
        problem(|g| dense(x(g, &[Some(2)]))),
        "layer 'fc': want an input of rank 2 or more, got 'x:0' [2]; flatten or reshape it"
    );
    assert_eq!(
        problem(|g| dense(g.placeholder(DType::I32, [2, 3], "x"))),
        "layer 'fc': want an input of floats, got 'x:0' int32; cast it"
    );
    assert_eq!(
        problem(|g| g.variable_scope("net", || layers::dense(x(g, &[Some(2), Some(3)]), 0, DenseOptions::default()))),
        "layer 'net/dense': want 1 or more units, got 0"
    );
    assert_eq!(
        problem(|g| layers::flatten(x(g, &[None, None, Some(2)]))),
        "layer 'flatten': the sizes of all axes but the first must be known, got 'x:0' [?, ?, 2]; declare them where the \
         input is made"
    );
}

#[test]
fn convolutions_want_images() {
    fn conv<'g>(x: Tensor<'g>, filters: usize, options: Conv2dOptions<'g>) -> Tensor<'g> {
        layers::conv2d(x, filters, [3, 3], Conv2dOptions { name: Some("c".into()), ..options })
    }
    let image = [None, Some(8), Some(8), Some(3)];
    assert_eq!(
        problem(|g| conv(x(g, &[Some(2), Some(3)]), 4, Conv2dOptions::default())),
        "layer 'c': want an input of rank 4, [batch, height, width, channels], got 'x:0' [2, 3]; reshape it"
    );
    assert_eq!(
        problem(|g| {
            let nchw = Conv2dOptions { data_format: DataFormat::Nchw, ..Conv2dOptions::default() };
            conv(x(g, &[Some(2), Some(0), Some(8), Some(8)]), 4, nchw)
        }),
        "layer 'c': want 1 or more channels, got 'x:0' [2, 0, 8, 8]"
    );
    assert_eq!(
        problem(|g| conv(x(g, &[None, Some(8), Some(8), None]), 4, Conv2dOptions::default())),
        "layer 'c': the size of the channels must be known, which is axis 3 of 'x:0' [?, 8, 8, ?]; declare it where the \
         input is made"
    );
    assert_eq!(
        problem(|g| conv(x(g, &image), 0, Conv2dOptions::default())),
        "layer 'c': want 1 or more filters, got 0"
    );
    assert_eq!(
        problem(|g| conv(x(g, &image), 4, Conv2dOptions { groups: 2, ..Conv2dOptions::default() })),
        "layer 'c': groups must divide channels and filters, got 2 groups, 3 channels, 4 filters"
    );
    let message = problem(|g| layers::depthwise_conv2d(x(g, &image), [9, 9], 1, Conv2dOptions::named("d")));
    assert!(message.contains("'d/depthwise'") && message.contains('9'), "{message}");
}

#[test]
fn batch_norm_and_pools_want_channels() {
    fn norm(x: Tensor<'_>) -> Tensor<'_> {
        layers::batch_norm(x, true, BatchNormOptions::named("bn"))
    }
    assert_eq!(
        problem(|g| norm(x(g, &[Some(2)]))),
        "layer 'bn': want an input of rank 2 or more, got 'x:0' [2]; declare its rank or reshape it"
    );
    assert_eq!(
        problem(|g| norm(x(g, &[Some(2), None]))),
        "layer 'bn': the size of the channels must be known, which is axis 1 of 'x:0' [2, ?]; declare it where the input \
         is made"
    );
    assert_eq!(
        problem(|g| layers::max_pooling2d(x(g, &[Some(2), Some(4)]), PoolOptions::default())),
        "layer 'max_pooling2d': want an input of rank 4, [batch, height, width, channels], got 'x:0' [2, 4]; reshape it"
    );
    assert_eq!(
        problem(|g| layers::global_average_pooling2d(g.placeholder(DType::I32, [1, 2, 2, 1], "x"), DataFormat::Nchw)),
        "layer 'global_average_pooling2d': want an input of floats, got 'x:0' int32; cast it"
    );
}

#[test]
fn embeddings_want_numbers() {
    assert_eq!(
        problem(|g| layers::embedding(x(g, &[Some(2)]), 4, 3, EmbeddingOptions::named("words"))),
        "layer 'words': want numbers of rows, int32 or int64, got 'x:0' float32"
    );
    assert_eq!(
        problem(|g| layers::embedding(g.placeholder(DType::I64, [2], "x"), 0, 3, EmbeddingOptions::default())),
        "layer 'embedding': want 1 or more rows and columns, got [0, 3]"
    );
}

#[test]
fn a_second_layer_of_one_name_says_how_to_share() {
    let message = problem(|g| {
        let x = x(g, &[Some(2), Some(3)]);
        layers::dense(x, 4, DenseOptions { use_bias: false, ..DenseOptions::named("fc") });
        layers::dense(x, 4, DenseOptions { use_bias: false, ..DenseOptions::named("fc") })
    });
    assert!(message.contains("variable 'fc/kernel' already exists") && message.contains("reuse is off"), "{message}");
}

#[test]
fn cells_want_their_own_state() {
    let got = problem(|g| {
        let x = x(g, &[None, Some(3)]);
        let state = GruCell::new(4).zero_state(x);
        layers::static_rnn(&BasicLstmCell::new(4), &[x], Some(&state)).0[0]
    });
    assert_eq!(
        got,
        "layer 'rnn/basic_lstm_cell': the state must have shapes [batch, 4], [batch, 4], got [?, ?]; zero_state makes one"
    );
    let got = problem(|g| layers::static_rnn(&GruCell::new(0), &[x(g, &[Some(2), Some(3)])], None).0[0]);
    assert_eq!(got, "layer 'rnn/gru_cell': want 1 or more units, got 0");
    let got = problem(|g| layers::static_rnn(&GruCell::new(2), &[x(g, &[Some(2)])], None).0[0]);
    assert_eq!(got, "layer 'rnn/gru_cell': want an input of rank 2, [batch, inputs], got 'x:0' [2]; reshape it");
}
