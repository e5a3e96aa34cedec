//! Initial values of variables as nodes, under TensorFlow's names and by its formulas.

use super::random_build::{Draw, draw};
use super::support::{build, dims_array, node, scoped};
use crate::base::{Array, Code, DType, Diagnostic, num_elements};
use crate::graph::{Distribution, FanMode, Graph, Init, Tensor};

/// From this number of elements on a filled tensor is a `Fill` node instead of a constant, as TensorFlow has it.
const LARGE: usize = 1000;

/// Standard deviation of a normal distribution that is cut at two deviations.
const CUT_STDDEV: f64 = 0.879_625_661_034_239_8;

/// Builds the initial value of a variable with these sizes.
pub(super) fn initial_value<'g>(graph: &'g Graph, init: &Init, dims: &[usize], dtype: DType) -> Tensor<'g> {
    let refuse = |message: String| {
        graph.report(Diagnostic::at(Code::InvalidArgument, message, graph.source_line()));
        graph.poison_tensor()
    };
    let floating = dtype.is_floating();
    match *init {
        Init::Zeros => filled(graph, "zeros", 0.0, dims, dtype),
        Init::Ones => filled(graph, "ones", 1.0, dims, dtype),
        Init::Constant(value) => filled(graph, "Const", value, dims, dtype),
        Init::Data(ref data) => graph.constant_named("Const", Array::clone(data)),
        Init::RandomUniform { min, max, seed } if floating || dtype.is_integer() => {
            draw(graph, Draw::Uniform { min, max }, dims, dtype, seed)
        }
        _ if !floating => refuse(format!("a random initial value must be float32 or float64, got {dtype}")),
        Init::RandomUniform { .. } => refuse(format!("a uniform initial value must be a number, got {dtype}")),
        Init::TruncatedNormal { mean, stddev, seed } => {
            draw(graph, Draw::TruncatedNormal { mean, stddev }, dims, dtype, seed)
        }
        Init::RandomNormal { mean, stddev, seed } => draw(graph, Draw::Normal { mean, stddev }, dims, dtype, seed),
        Init::VarianceScaling { scale, mode, distribution, seed } => {
            if scale.is_nan() || scale <= 0.0 {
                return refuse(format!("variance scaling needs a scale above 0, got {scale}"));
            }
            draw(graph, scaled(scale, mode, distribution, dims), dims, dtype, seed)
        }
        Init::Orthogonal { gain, seed } => match dims {
            [rows @ .., columns] if !rows.is_empty() => orthogonal(graph, gain, rows, *columns, dtype, seed),
            _ => refuse(format!("an orthogonal initial value needs rank 2 or more, got rank {}", dims.len())),
        },
    }
}

/// A tensor of one value.
fn filled<'g>(graph: &'g Graph, name: &'static str, value: f64, dims: &[usize], dtype: DType) -> Tensor<'g> {
    let count = num_elements(dims).unwrap_or(usize::MAX);
    if count < LARGE {
        return match Array::from_f64(dtype, dims, &vec![value; count]) {
            Ok(array) => graph.constant_named(name, array),
            Err(_) => graph.poison_tensor(),
        };
    }
    scoped(graph, name, |name| {
        let shape = graph.constant_named("shape_as_tensor", dims_array(dims));
        match Array::from_f64(dtype, &[], &[value]) {
            Ok(array) => node(graph, "Fill").name(name).inputs([shape, graph.constant_named("Const", array)]).tensor(),
            Err(_) => graph.poison_tensor(),
        }
    })
}

/// TensorFlow's `variance_scaling_initializer`: the variance is `scale` over the number of connections.
fn scaled(scale: f64, mode: FanMode, distribution: Distribution, dims: &[usize]) -> Draw {
    let (fan_in, fan_out) = match *dims {
        [] => (1.0, 1.0),
        [n] => (n as f64, n as f64),
        [ref field @ .., inputs, outputs] => {
            let field: f64 = field.iter().map(|&d| d as f64).product();
            (inputs as f64 * field, outputs as f64 * field)
        }
    };
    let fan = match mode {
        FanMode::In => fan_in,
        FanMode::Out => fan_out,
        FanMode::Avg => (fan_in + fan_out) / 2.0,
    };
    let variance = scale / fan.max(1.0);
    match distribution {
        Distribution::TruncatedNormal => Draw::TruncatedNormal { mean: 0.0, stddev: variance.sqrt() / CUT_STDDEV },
        Distribution::UntruncatedNormal => Draw::Normal { mean: 0.0, stddev: variance.sqrt() },
        Distribution::Uniform => {
            let limit = (3.0 * variance).sqrt();
            Draw::Uniform { min: -limit, max: limit }
        }
    }
}

/// The orthogonal factor of a normal matrix, with signs such that the other factor's diagonal is positive.
fn orthogonal<'g>(
    graph: &'g Graph,
    gain: f64,
    rows: &[usize],
    columns: usize,
    dtype: DType,
    seed: Option<i64>,
) -> Tensor<'g> {
    let count = num_elements(rows).unwrap_or(usize::MAX);
    let wide = count < columns;
    let flat = if wide { [columns, count] } else { [count, columns] };
    let normal = draw(graph, Draw::Normal { mean: 0.0, stddev: 1.0 }, &flat, dtype, seed);
    let qr = node(graph, "Qr").input(normal).attr("full_matrices", false).add();
    if qr.is_poison() {
        return graph.poison_tensor();
    }
    let diagonal = build("DiagPart", "", &[qr.output(1)]);
    let signed = build("Mul", "mul", &[qr.output(0), build("Sign", "", &[diagonal])]);
    let turned = match wide {
        true => scoped(graph, "matrix_transpose", |_| signed.transpose(&[1, 0])),
        false => signed,
    };
    let shaped = scoped(graph, "Reshape", |name| {
        let dims: Vec<usize> = rows.iter().copied().chain([columns]).collect();
        let shape = graph.constant_named("shape", dims_array(&dims));
        node(graph, "Reshape").name(name).inputs([turned, shape]).tensor()
    });
    scoped(graph, "mul_1", |name| match Array::from_f64(dtype, &[], &[gain]) {
        Ok(gain) => node(graph, "Mul").name(name).inputs([graph.constant_named("x", gain), shaped]).tensor(),
        Err(_) => graph.poison_tensor(),
    })
}

#[cfg(test)]
mod tests {
    use crate::base::Array;
    use crate::graph::{Graph, Init, keys};

    fn names_under(g: &Graph, prefix: &str) -> Vec<String> {
        let names = g.nodes().into_iter().map(|n| n.name.to_string());
        names.filter_map(|n| n.strip_prefix(prefix).map(String::from)).collect()
    }

    #[test]
    fn nodes_have_tensorflows_names() {
        let g = Graph::new();
        g.get_variable("w", [3, 4], Init::truncated_normal(0.0, 1.0));
        let want = ["shape", "mean", "stddev", "TruncatedNormal", "mul", ""].map(|n| format!("truncated_normal/{n}"));
        let want = want.map(|n| n.trim_end_matches('/').to_string());
        assert_eq!(names_under(&g, "w/Initializer/"), want);
        g.get_variable("u", [3, 4], None);
        let want = ["shape", "min", "max", "RandomUniform", "sub", "mul", ""].map(|n| format!("random_uniform/{n}"));
        let want = want.map(|n| n.trim_end_matches('/').to_string());
        assert_eq!(names_under(&g, "u/Initializer/"), want);
        g.get_variable("z", [1000], Init::Zeros);
        assert_eq!(names_under(&g, "z/Initializer/"), ["zeros/shape_as_tensor", "zeros/Const", "zeros"]);
        assert!(g.check().is_ok(), "{:?}", g.check());
    }

    #[test]
    fn orthogonal_values_are_orthogonal() {
        for (dims, across) in [([4, 3], true), ([3, 4], false)] {
            let g = Graph::new();
            g.set_random_seed(7);
            g.get_variable("w", dims, Init::orthogonal(2.0));
            assert!(g.check().is_ok(), "{:?}", g.check());
            let value =
                g.tensor("w/Initializer/mul_1:0").and_then(|t| g.evaluate(t, &[]).map_err(crate::base::Error::invalid));
            let value: Vec<f64> = value.expect("it is computed").to_f64();
            let at = |k: usize, i: usize| if across { value[i * 3 + k] } else { value[k * 4 + i] };
            for a in 0..3 {
                for b in 0..3 {
                    let dot: f64 = (0..4).map(|i| at(a, i) * at(b, i)).sum();
                    assert!((dot - if a == b { 4.0 } else { 0.0 }).abs() < 1e-5, "{dims:?} {a} {b} {dot}");
                }
            }
        }
    }

    #[test]
    fn a_penalty_joins_the_regularization_losses() {
        let g = Graph::new();
        let w = g.get_variable("w", [2], Init::Ones);
        let penalty = g.add_l2_penalty(w, 0.5);
        assert_eq!(penalty.name(), "w/Regularizer/l2_regularizer:0");
        assert_eq!(g.tensors_in(keys::REGULARIZATION_LOSSES), [penalty]);
        let value = g.evaluate(penalty, &[(w.value(), Array::new(&[2], &[3.0f32, 4.0]).expect("two"))]);
        assert_eq!(value.expect("it is computed").to_f64(), [6.25]);
    }
}
