//! Initial values of variables as nodes.

use crate::base::{Array, DType, num_elements};
use crate::graph::{Graph, Init, Tensor};

/// Builds the initial value of a variable with these sizes.
pub(super) fn initial_value<'g>(graph: &'g Graph, init: &Init, dims: &[usize], dtype: DType) -> Tensor<'g> {
    let filled = |name: &'static str, value: f64| {
        let count = num_elements(dims).unwrap_or(usize::MAX);
        match Array::from_f64(dtype, dims, &vec![value; count]) {
            Ok(array) => graph.constant_named(name, array),
            Err(_) => graph.poison_tensor(),
        }
    };
    match init {
        Init::Zeros => filled("zeros", 0.0),
        Init::Ones => filled("ones", 1.0),
        Init::Constant(value) => filled("Const", *value),
        Init::Data(data) => graph.constant_named("Const", Array::clone(data)),
        _ => todo!(),
    }
}
