//! Layers: the variables and the ops of one layer of a network in one call, by the names of `tf.layers` and
//! `tf.nn.rnn_cell`.
//!
//! Every layer opens a variable scope: the one of its options' `name`, or the next free one of `dense`, `dense_1`, ….
//! So its variables follow the scopes' rules: reuse by name, the place of variables, the default initializer and
//! regularizer. Each tower counts its layers from the start, so that layers without names are shared too.
//!
//! A layer that cannot be built is reported under its name, and gives a poison tensor.
//! Absent: layers as objects that keep their variables; what is shared is found by its name.

mod batch_norm;
mod cells;
mod conv;
mod dense;
mod dropout;
mod embedding;
mod lstm;
pub mod models;
mod parameters;
mod pool;
mod rnn;
mod scope;
mod statistics;
mod synchronized;

pub use batch_norm::{BatchNormOptions, Training, batch_norm};
pub use cells::{BasicRnnCell, GruCell, MultiRnnCell};
pub use conv::{Conv2dOptions, SeparableConv2dOptions, conv2d, depthwise_conv2d, separable_conv2d};
pub use dense::{DenseOptions, dense, flatten};
pub use dropout::dropout;
pub use embedding::{EmbeddingOptions, embedding};
pub use lstm::{BasicLstmCell, LstmCell};
pub use parameters::{LayerParameters, layer_parameters};
pub use pool::{average_pooling2d, global_average_pooling2d, max_pooling2d};
pub use rnn::{RnnCell, static_rnn};
pub use scope::Activation;
pub use statistics::{MovingStatistics, update_from_towers};
pub(crate) use synchronized::{
    begin as begin_synchronized, combine as combine_synchronized, finish as finish_synchronized,
};
