//! The few nodes that gradients, averaging and clipping all build: sums, joined rows, dense forms, numbers as tensors.

use crate::base::{Array, Code, DType, Diagnostic};
use crate::graph::{Gradient, Graph, IndexedSlices, NodeBuilder, Tensor};
use crate::ops;

/// Starts a node of the op type of this name.
#[track_caller]
pub(super) fn node<'g>(graph: &'g Graph, op: &'static str) -> NodeBuilder<'g> {
    match ops::find(op) {
        Some(op) => graph.node_of(op),
        None => {
            let message = format!("there is no op type '{op}'");
            graph.report(Diagnostic::at(Code::Unimplemented, message, graph.source_line()));
            let none = ops::find("Identity").expect("the op table has Identity");
            graph.node_of(none).input(graph.poison_tensor())
        }
    }
}

/// A number of this element type as a constant.
pub(super) fn scalar<'g>(graph: &'g Graph, dtype: DType, value: f64, name: &str) -> Tensor<'g> {
    match Array::from_f64(dtype, &[], &[value]) {
        Ok(array) => graph.constant_named(name.to_string(), array),
        Err(_) => graph.poison_tensor(),
    }
}

/// The sum of tensors of one shape; a single one is returned as it is.
pub(super) fn add_n<'g>(graph: &'g Graph, tensors: &[Tensor<'g>], name: &str) -> Tensor<'g> {
    match tensors {
        [one] => *one,
        _ => node(graph, "AddN").name(name.to_string()).inputs(tensors.iter().copied()).tensor(),
    }
}

/// The sizes of a tensor as an `int32` vector: a constant where they are known.
pub(super) fn shape_of(tensor: Tensor<'_>) -> Tensor<'_> {
    let graph = tensor.graph();
    if tensor.is_poison() {
        return graph.poison_tensor();
    }
    match tensor.shape().to_dims() {
        Some(dims) => {
            let narrow: Option<Vec<i32>> = dims.iter().map(|&d| i32::try_from(d).ok()).collect();
            match narrow {
                Some(sizes) => graph.constant_named("Shape", sizes),
                None => {
                    let sizes: Vec<i64> = dims.iter().map(|&d| i64::try_from(d).unwrap_or(i64::MAX)).collect();
                    graph.constant_named("Shape", sizes)
                }
            }
        }
        None => node(graph, "Shape").attr("out_type", DType::I32).input(tensor).tensor(),
    }
}

/// Ones of the shape of `like`, under this name.
pub(super) fn fill_ones<'g>(like: Tensor<'g>, name: &str) -> Tensor<'g> {
    let graph = like.graph();
    let sizes = shape_of(like);
    graph.name_scope(name, || {
        let one = scalar(graph, like.dtype(), 1.0, "Const");
        let scope = graph.current_name_scope();
        node(graph, "Fill").name(format!("{scope}/")).input(sizes).input(one).tensor()
    })
}

/// Zeros of the shape of `like`.
pub(super) fn zeros_like(like: Tensor<'_>) -> Tensor<'_> {
    node(like.graph(), "ZerosLike").name("zeros_like").input(like).tensor()
}

/// Tensors joined along axis 0; a single one is returned as it is.
pub(super) fn concat0<'g>(graph: &'g Graph, tensors: &[Tensor<'g>]) -> Tensor<'g> {
    if let [one] = tensors {
        return *one;
    }
    graph.concat(tensors.iter().copied(), 0)
}

/// The tensor in another element type; itself where it has that type.
pub(super) fn cast<'g>(tensor: Tensor<'g>, dtype: DType) -> Tensor<'g> {
    if tensor.is_poison() || tensor.dtype() == dtype {
        return tensor;
    }
    node(tensor.graph(), "Cast").attr("SrcT", tensor.dtype()).attr("DstT", dtype).input(tensor).tensor()
}

/// All rows in one list. Row numbers become `int64` where their types differ.
pub(super) fn concat_rows<'g>(slices: &[IndexedSlices<'g>]) -> IndexedSlices<'g> {
    let first = slices[0];
    let graph = first.values.graph();
    let mixed = slices.iter().any(|s| s.indices.dtype() != first.indices.dtype());
    let indices: Vec<Tensor<'g>> =
        (slices.iter()).map(|s| if mixed { cast(s.indices, DType::I64) } else { s.indices }).collect();
    let values: Vec<Tensor<'g>> = slices.iter().map(|s| s.values).collect();
    let values = concat0(graph, &values);
    IndexedSlices { values, indices: concat0(graph, &indices), of: first.of }
}

/// The whole gradient: rows are summed into zeros of the whole's shape.
pub(super) fn densify(gradient: Gradient<'_>) -> Tensor<'_> {
    let slices = match gradient {
        Gradient::Dense(tensor) => return tensor,
        Gradient::Slices(slices) => slices,
    };
    let graph = slices.values.graph();
    let rows = match slices.of.shape().dim(0) {
        Some(rows) => scalar(graph, DType::I32, rows as f64, "num_segments"),
        None => {
            let sizes = shape_of(slices.of);
            let zero = scalar(graph, DType::I32, 0.0, "Const");
            node(graph, "GatherV2").input(sizes).input(zero).input(zero).tensor()
        }
    };
    node(graph, "UnsortedSegmentSum").input(slices.values).input(slices.indices).input(rows).tensor()
}

/// The device that a tensor asks for, as text.
pub(super) fn spec_text(tensor: Tensor<'_>) -> String {
    tensor.device().to_string()
}
