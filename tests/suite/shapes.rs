//! Shapes that are computed from shapes, as imported training graphs do it: known when the graph is built where sizes are,
//! and when a step is planned where feeds tell them.

use turret::base::{Array, DType, Shape};
use turret::graph::{Attr, Graph, Init, Tensor};
use turret::ops::find;
use turret::run::{Session, SessionOptions};

/// A node of an op type by name.
fn node<'g>(g: &'g Graph, op: &str, inputs: &[Tensor<'g>], attrs: &[(&'static str, Attr)]) -> Vec<Tensor<'g>> {
    let mut node = g.node_of(find(op).unwrap_or_else(|| panic!("no op {op}"))).inputs(inputs.iter().copied());
    for (name, value) in attrs {
        node = node.attr(*name, value.clone());
    }
    node.add().outputs()
}

fn one<'g>(g: &'g Graph, op: &str, inputs: &[Tensor<'g>]) -> Tensor<'g> {
    node(g, op, inputs, &[])[0]
}

/// Element `i` of a vector, as TensorFlow slices it.
fn at<'g>(g: &'g Graph, sizes: Tensor<'g>, i: i32) -> Tensor<'g> {
    let ends = [[i], [i + 1], [1]].map(|v| g.constant(v));
    node(g, "StridedSlice", &[&[sizes][..], &ends].concat(), &[("shrink_axis_mask", 1i64.into())])[0]
}

fn pack<'g>(g: &'g Graph, items: &[Tensor<'g>]) -> Tensor<'g> {
    node(g, "Pack", items, &[("axis", 0i64.into())])[0]
}

type Sizes = for<'g> fn(&'g Graph, Tensor<'g>) -> Tensor<'g>;

/// Sizes that are computed from those of `x`, which is `[4, 3, 2]`, and what they are.
const COMPUTED: &[(&str, Sizes, &[usize])] = &[
    (
        "Shape, StridedSlice, Pack",
        |g, x| {
            let sizes = one(g, "Shape", &[x]);
            pack(g, &[at(g, sizes, 0), at(g, sizes, 2), g.constant(5)])
        },
        &[4, 2, 5],
    ),
    (
        "ShapeN, ConcatV2",
        |g, x| {
            let both = node(g, "ShapeN", &[x, g.constant([1.0f32])], &[]);
            one(g, "ConcatV2", &[both[0], both[1], g.constant(0)])
        },
        &[4, 3, 2, 1],
    ),
    (
        "Prod, ExpandDims",
        |g, x| {
            let count = one(g, "Prod", &[one(g, "Shape", &[x]), g.constant([0])]);
            one(g, "ExpandDims", &[count, g.constant(0)])
        },
        &[24],
    ),
    (
        "Mul, AddV2, FloorDiv, Maximum",
        |g, x| {
            let sizes = one(g, "Shape", &[x]);
            let twice = one(g, "Mul", &[sizes, g.constant(2)]);
            let more = one(g, "AddV2", &[twice, g.constant([1, 1, 1])]);
            one(g, "Maximum", &[one(g, "FloorDiv", &[more, g.constant(3)]), g.constant([1, 4, 1])])
        },
        &[3, 4, 1],
    ),
    (
        "Size, Rank, Cast, Reshape",
        |g, x| {
            let wide = |t: Tensor<'_>| node(t.graph(), "Cast", &[t], &[("DstT", DType::I64.into())])[0].id();
            let (size, rank) = (one(g, "Size", &[x]), one(g, "Rank", &[x]));
            let ids = [wide(size), wide(rank)];
            let [size, rank] = ids.map(|id| g.operations()[id.node.index()].output(0));
            one(g, "Reshape", &[pack(g, &[size, rank]), g.constant([-1])])
        },
        &[24, 3],
    ),
    (
        "Range, GatherV2",
        |g, x| {
            let rank = one(g, "Rank", &[x]);
            let axes = one(g, "Range", &[g.constant(1), rank, g.constant(1)]);
            one(g, "GatherV2", &[one(g, "Shape", &[x]), axes, g.constant(0)])
        },
        &[3, 2],
    ),
    (
        "Slice, Squeeze, Fill, Tile",
        |g, x| {
            let first = one(g, "Slice", &[one(g, "Shape", &[x]), g.constant([0]), g.constant([1])]);
            let first = node(g, "Squeeze", &[first], &[("squeeze_dims", vec![0i64].into())])[0];
            one(g, "Tile", &[one(g, "Fill", &[g.constant([2]), first]), g.constant([2])])
        },
        &[4, 4, 4, 4],
    ),
    (
        "FloorMod, DynamicStitch, as reductions' gradients have it",
        |g, x| {
            let (sizes, rank) = (one(g, "Shape", &[x]), one(g, "Rank", &[x]));
            let axes = one(g, "FloorMod", &[one(g, "AddV2", &[g.constant([-1]), rank]), rank]);
            let all = one(g, "Range", &[g.constant(0), rank, g.constant(1)]);
            let ones = one(g, "Fill", &[one(g, "Shape", &[axes]), g.constant(1)]);
            one(g, "DynamicStitch", &[all, axes, sizes, ones])
        },
        &[4, 3, 1],
    ),
    (
        "BroadcastGradientArgs",
        |g, x| {
            let of_row = node(g, "BroadcastGradientArgs", &[one(g, "Shape", &[x]), g.constant([2])], &[])[1];
            one(g, "AddV2", &[of_row, g.constant([2, 2])])
        },
        &[2, 3],
    ),
    (
        "ConcatOffset",
        |g, x| {
            let sizes = one(g, "Shape", &[x]);
            let offsets = node(g, "ConcatOffset", &[g.constant(0), sizes, sizes], &[])[1];
            one(g, "AddV2", &[offsets, g.constant([0, 1, 2])])
        },
        &[4, 1, 2],
    ),
    (
        "ListDiff, as gradients of products have it",
        |g, x| {
            let all = one(g, "Range", &[g.constant(0), one(g, "Rank", &[x]), g.constant(1)]);
            let others = one(g, "ListDiff", &[all, g.constant([1])]);
            one(g, "GatherV2", &[one(g, "Shape", &[x]), others, g.constant(0)])
        },
        &[4, 2],
    ),
    (
        "Select, Greater",
        |g, x| {
            let sizes = one(g, "Shape", &[x]);
            one(g, "SelectV2", &[one(g, "Greater", &[sizes, g.constant(3)]), sizes, g.constant(1)])
        },
        &[4, 1, 1],
    ),
];

#[test]
fn sizes_that_are_computed_from_known_ones_are_known_when_built() {
    for (what, sizes, want) in COMPUTED {
        let g = Graph::new();
        let x = g.placeholder(DType::F32, [4, 3, 2], "x");
        let filled = one(&g, "Fill", &[sizes(&g, x), g.constant(1.0f32)]);
        g.check().unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(filled.shape(), Shape::known(want), "{what}");
    }
}

#[test]
fn sizes_that_are_computed_from_fed_ones_are_known_when_planned() {
    for (what, sizes, want) in COMPUTED {
        let g = Graph::new();
        let x = g.placeholder(DType::F32, [None, Some(3), None], "x");
        let filled = one(&g, "Fill", &[sizes(&g, x), g.constant(1.0f32)]);
        g.check().unwrap_or_else(|e| panic!("{what}: {e}"));
        let session = Session::new(&g, SessionOptions::on(crate::gpus::machine(1))).expect("a sound graph");
        let fed = Array::new(&[4, 3, 2], &[0.5f32; 24]).expect("sizes fit");
        let out = session.run(&[(x, &fed)], &[filled], &[]).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(out[0].dims(), *want, "{what}");
        let schedule = session.schedule(&[(x, &[4, 3, 2])], &[filled], &[]).expect("a plan");
        let runs: Vec<&str> = schedule.step.nodes.iter().map(|n| n.what()).filter(|n| *n != "copy").collect();
        assert!(runs.len() <= 1, "{what}: {runs:?} run");
    }
}

#[test]
fn what_a_run_decides_is_not_known_when_built() {
    let g = Graph::new();
    let fill =
        |sizes: Tensor<'_>| node(sizes.graph(), "Fill", &[sizes, sizes.graph().constant(1.0f32)], &[])[0].shape();
    let variable = g.get_variable_with(
        "v",
        [2],
        Init::Ones,
        turret::ops::VariableOptions { dtype: Some(DType::I32), ..Default::default() },
    );
    assert_eq!(fill(variable.value()), Shape::of_rank(2));
    assert_eq!(fill(g.random_uniform_int([2], 1, 4, 7)), Shape::of_rank(2));
    assert_eq!(fill(g.placeholder(DType::I32, [2], "p")), Shape::of_rank(2));
    let any = ("shape", Attr::from(Shape::known(&[2])));
    let default = node(&g, "PlaceholderWithDefault", &[g.constant([2, 3])], &[any])[0];
    assert_eq!(fill(default), Shape::of_rank(2));
    // Too many elements to compute while building, though few come out.
    let long = one(&g, "Range", &[g.constant(0), g.constant(1 << 20), g.constant(1)]);
    let most = one(&g, "Max", &[long, g.constant([0])]);
    let sizes = one(&g, "ExpandDims", &[most, g.constant(0)]);
    assert_eq!(fill(sizes), Shape::partial([None]));
    // A computation that fails is the run's to tell.
    let bad = one(&g, "FloorDiv", &[g.constant([4]), g.constant([0])]);
    assert_eq!(fill(bad), Shape::of_rank(1));
    g.check().expect("sound");
}
