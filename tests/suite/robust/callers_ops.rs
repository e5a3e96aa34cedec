//! The calls that a random program is made of.

use super::{Dice, Made, note, placement};
use turret::base::DType;
use turret::graph::{Gradient, Init, Operation, Tensor, Variable};
use turret::ops::VariableOptions;
use turret::train::{
    ApplyOptions, AverageOptions, ComputeOptions, GradAndVar, GradOptions, Optimizer, Towers, average_gradients,
    clip_by_global_norm, clip_by_norm, clip_by_value, cosine_decay, exponential_decay, get_or_create_global_step,
    gradients, piecewise_constant, polynomial_decay,
};

const UNARY: [fn(Tensor<'_>) -> Tensor<'_>; 12] = [
    |x| x.relu(),
    |x| x.square(),
    |x| -x,
    |x| x.sum(),
    |x| x.mean(),
    |x| x.softmax(),
    |x| x.log_softmax(),
    |x| x.stop_gradient(),
    |x| x.shape_tensor(),
    |x| x.zeros_like(),
    |x| x.reduce_max(),
    |x| x.l2_loss(),
];

/// One call with arguments that are mostly sensible.
pub fn call<'g>(made: &mut Made<'g>, d: &mut Dice) {
    let g = made.g;
    let (x, y) = (made.tensor(d), made.tensor(d));
    let kind = d.below(34);
    note(format!("{kind} on {x:?} and {y:?}"));
    match kind {
        0..=2 => {
            let (dtype, sizes, name) = (d.dtype(), d.sizes(), d.name());
            note(format!("placeholder {dtype} {sizes:?} '{name}'"));
            let open = d.below(3) == 0;
            let shape = sizes.into_iter().map(|s| if open && s == 2 { None } else { Some(s) });
            made.keep(g.placeholder(dtype, turret::base::Shape::partial(shape), name));
        }
        3 => made.keep(g.constant(d.array())),
        4..=6 => variable(made, d),
        7..=9 => made.keep(d.of(&UNARY)(x)),
        10..=12 => {
            let out = match d.below(8) {
                0 => x + y,
                1 => x - y,
                2 => x * y,
                3 => x / y,
                4 => x.matmul(y),
                5 => x.maximum(y),
                6 => x.pow(y),
                _ => x + d.float(),
            };
            made.keep(out);
        }
        13..=16 => axes(made, d, x, y),
        17 => {
            let (num, axis) = (d.size(), d.int32());
            note(format!("split({num}, {axis})"));
            for part in x.split(num, axis).into_iter().take(4) {
                made.keep(part);
            }
        }
        18 => {
            let (sizes, axis) = (d.ints(), d.int32());
            note(format!("split_sizes({sizes:?}, {axis})"));
            x.split_sizes(&sizes, axis).into_iter().for_each(|part| made.keep(part));
        }
        19 => made.keep(x.cast(d.dtype())),
        20 => made.keep(x.gather(y, d.int32())),
        21 => {
            let v = made.variable(d);
            let out = match d.below(5) {
                0 => v.assign(x),
                1 => v.assign_add(x),
                2 => v.assign_sub(x),
                3 => v.scatter_add(x, y),
                _ => v.scatter_update(x, y),
            };
            made.keep(out);
        }
        22 => {
            let op = g.group([made.op(d), made.op(d)], d.name());
            made.ops.push(op);
        }
        23 => made.keep(x.identity(d.name())),
        24 => {
            let op = turret::ops::TABLE[d.below(turret::ops::TABLE.len())];
            note(format!("bare {}", op.name()));
            let inputs = [x, y, made.tensor(d)];
            let count = d.below(4);
            let mut node = g.node_of(op).inputs(inputs.into_iter().take(count)).name(d.name());
            for name in ["T", "axis", "num_split", "shape", "dtype", "keep_dims", "N", "value"] {
                if d.below(4) == 0 {
                    node = match d.below(3) {
                        0 => node.attr(name, d.int()),
                        1 => node.attr(name, d.dtype()),
                        _ => node.attr(name, d.below(2) == 0),
                    };
                }
            }
            let op = if d.below(4) == 0 { node.control(made.op(d)).add() } else { node.add() };
            made.ops.push(op);
            made.tensors.extend(op.outputs().into_iter().take(3));
        }
        25 => {
            let grads = gradients([x], [y, made.tensor(d)], GradOptions::default());
            grads.into_iter().flatten().for_each(|grad| made.keep(grad.values()));
        }
        26..=28 => train(made, d, x),
        29 => towers(made, d),
        30 => schedule(made, d),
        31 => made.keep(g.range(d.int32(), d.int32(), d.int32())),
        32 => {
            g.reuse_variables();
            g.set_random_seed(d.int());
            let _ = (g.seeds(None), g.global_variables(), g.trainable_variables());
        }
        _ => made.ops.push(g.global_variables_initializer()),
    }
}

fn variable<'g>(made: &mut Made<'g>, d: &mut Dice) {
    let (name, sizes, init) = (d.name(), d.sizes(), d.init());
    note(format!("variable '{name}' {sizes:?} {init:?}"));
    let dtype = (d.below(3) == 0).then(|| d.dtype());
    let options = VariableOptions { dtype, trainable: d.below(4) > 0, ..VariableOptions::default() };
    let v = match d.below(3) {
        0 => made.g.get_variable(name, sizes, init),
        1 => made.g.get_variable(name, sizes, None),
        _ => made.g.get_variable_with(name, sizes, init, options),
    };
    made.variables.push(v);
    made.keep(v.value());
}

/// Calls with axes, sizes and positions.
fn axes<'g>(made: &mut Made<'g>, d: &mut Dice, x: Tensor<'g>, y: Tensor<'g>) {
    let (a, b, ints, sizes) = (d.int(), d.int(), d.ints(), d.sizes());
    let int32s: Vec<i32> = ints.iter().map(|&i| i.clamp(i32::MIN.into(), i32::MAX.into()) as i32).collect();
    let (a32, z, kind) = (d.int32(), d.size(), d.below(22));
    note(format!("axes {kind}: {a} {b} {ints:?} {sizes:?} {z}"));
    let out = match kind {
        0 => x.reshape(ints),
        1 => x.reshape(sizes),
        2 => x.expand_dims(a32),
        3 => x.squeeze(&ints),
        4 => x.transpose(&ints),
        5 => x.swap_axes(a, b),
        6 => x.tile(&int32s),
        7 => x.sum_axes(&int32s, d.below(2) == 0),
        8 => x.mean_axes(&int32s, d.below(2) == 0),
        9 => x.cumsum(a32, d.below(2) == 0, d.below(2) == 0),
        10 => made.g.concat([x, y], a32),
        11 => made.g.stack([x, y], a),
        12 => return x.unstack(a).into_iter().take(3).for_each(|t| made.keep(t)),
        13 => x.slice(&ints, &d.ints()),
        14 => x.pad(&sizes.iter().map(|&s| (s, z)).collect::<Vec<_>>()),
        15 => x.broadcast_to(&sizes),
        16 => x.reverse(&ints),
        17 => x.one_hot(z),
        18 => x.reshape(y),
        19 => x.sum_over(y, false),
        20 => x.sparse_softmax_cross_entropy(y),
        _ => x.bias_add(y),
    };
    made.keep(out);
}

fn optimizer<'g>(made: &Made<'g>, d: &mut Dice) -> Optimizer<'g> {
    let rate = d.float();
    let optimizer = match d.below(6) {
        0 => Optimizer::gradient_descent(made.tensor(d)),
        1 => Optimizer::momentum(rate, d.float()),
        2 => Optimizer::adam(rate),
        3 => Optimizer::rms_prop(rate),
        4 => Optimizer::adagrad(rate).initial_accumulator(d.float()),
        _ => Optimizer::gradient_descent(rate),
    };
    match d.below(8) {
        0 => optimizer.nesterov(),
        1 => optimizer.with(d.of(&["beta1", "nonsense", ""]), d.float()),
        2 => optimizer.named(d.name()),
        _ => optimizer,
    }
}

fn train<'g>(made: &mut Made<'g>, d: &mut Dice, loss: Tensor<'g>) {
    let optimizer = optimizer(made, d);
    let var_list = (d.below(4) == 0).then(|| vec![made.variable(d), made.variable(d)]);
    let list = match d.below(5) {
        0 => vec![GradAndVar { grad: Some(Gradient::Dense(made.tensor(d))), var: made.variable(d) }; d.below(3)],
        _ => optimizer.compute_gradients_with(loss, ComputeOptions { var_list, ..ComputeOptions::default() }),
    };
    let list = match d.below(5) {
        0 => clip_by_global_norm(&list, d.float()),
        1 => {
            made.keep(clip_by_value(loss, d.float(), d.float()));
            made.keep(clip_by_norm(loss, d.float()));
            list
        }
        2 => {
            let rows = (d.below(3) == 0).then(|| vec![d.size(), d.size()]);
            let options = AverageOptions { rows, check_finite: d.below(2) == 0, ..AverageOptions::device(d.device()) };
            average_gradients(&[list.clone(), list], options)
        }
        _ => list,
    };
    let global_step = (d.below(3) == 0).then(|| made.variable(d));
    let op = optimizer.apply_gradients_with(&list, ApplyOptions { global_step, ..ApplyOptions::default() });
    made.ops.push(op);
}

fn towers<'g>(made: &mut Made<'g>, d: &mut Dice) {
    let g = made.g;
    let count = d.of(&[0, 1, 2, 2, 3, usize::MAX, 1 << 40]);
    note(format!("{count} towers"));
    let mut towers = Towers::new(g, count).variables(placement(d));
    if d.below(3) == 0 {
        towers = towers.devices((0..d.below(3)).map(|_| d.device()));
    }
    if d.below(4) == 0 {
        towers = towers.uneven();
    }
    if towers.count() > 8 {
        return;
    }
    let batch = made.tensor(d);
    let parts = towers.split(batch);
    let optimizer = optimizer(made, d);
    let (built, op) = towers.train(&optimizer, ApplyOptions::default(), |tower| {
        let w: Variable<'g> = g.get_variable("tower_w", [2], Init::Ones);
        let x = parts.get(tower.index()).copied().unwrap_or(batch);
        (x * w).sum() + tower.placeholder(DType::F32, [], "bias")
    });
    let _ = (built.summary.to_string(), built.summary.clone().on_machine(d.of(&[0, 1, 5000])).idle_gpus());
    made.keep(built.loss);
    let op: Operation<'g> = op;
    made.ops.push(op);
}

fn schedule<'g>(made: &mut Made<'g>, d: &mut Dice) {
    let step = if d.below(2) == 0 { get_or_create_global_step(made.g).value() } else { made.tensor(d) };
    let out = match d.below(4) {
        0 => exponential_decay(step, d.float(), d.float(), d.float(), d.below(2) == 0),
        1 => {
            let values: Vec<f64> = (0..d.below(4)).map(|_| d.float()).collect();
            piecewise_constant(step, &d.ints(), &values)
        }
        2 => polynomial_decay(step, d.float(), d.float(), d.float(), d.float()),
        _ => cosine_decay(step, d.float(), d.float(), d.float()),
    };
    made.keep(out);
}
