"""Records what TensorFlow's ops that write variables leave in them: `python record.py > updates.json` (TensorFlow 2.21)."""

import json
import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import op_def_registry

tf.disable_eager_execution()
rng = np.random.RandomState(7)

HYPERS = {
    "GradientDescent": (0, [0.1]),
    "Momentum": (1, [0.1, 0.9]),
    "Adam": (2, [0.81, 0.998, 0.1, 0.9, 0.999, 1e-3]),
    "RMSProp": (2, [0.1, 0.9, 0.5, 1e-3]),
    "CenteredRMSProp": (3, [0.1, 0.9, 0.5, 2.0]),
    "Adagrad": (1, [0.1]),
    "AdagradV2": (1, [0.1, 1e-2]),
    "Adadelta": (2, [0.1, 0.95, 1e-2]),
    "Ftrl": (2, [0.1, 0.3, 0.02, -0.5]),
    "FtrlV2": (2, [0.1, 0.3, 0.02, 0.03, -0.4]),
}


def numbers(dtype, *shape):
    if dtype.startswith("int"):
        return rng.randint(1, 7, size=shape).astype(dtype)
    return rng.uniform(0.25, 2.0, size=shape).astype(dtype) * rng.choice([-1, 1], size=shape).astype(dtype)


def inputs_of(rule, dtype, sparse):
    """The values in TensorFlow's order, each with whether it is a variable."""
    slots, hypers = HYPERS[rule]
    shape = (5, 3) if sparse else (2, 3)
    own = [(numbers(dtype, *shape), True)] + [(np.abs(numbers(dtype, *shape)), True) for _ in range(slots)]
    if rule == "CenteredRMSProp":
        own[1] = (own[1][0] / 4, True)
    scalars = [(np.array(h, dtype), False) for h in hypers]
    gradient = [(numbers(dtype, 4, 3), False), (np.array([3, 0, 3, 1], sparse), False)] if sparse else [(numbers(dtype, *shape), False)]
    if rule == "Momentum":
        return own + scalars[:1] + gradient + scalars[1:]
    if rule.startswith("Ftrl"):
        return own + gradient + scalars
    return own + scalars + gradient


def record(op, attrs, inputs, resource, steps=2):
    arrays = [np.asarray(v) for v, _ in inputs]
    with tf.Graph().as_default():
        tensors, variables = [], []
        for (value, is_variable) in inputs:
            if is_variable:
                v = tf.Variable(value, use_resource=resource)
                variables.append(v)
                tensors.append(v.handle if resource else v._ref())
            else:
                tensors.append(tf.constant(value))
        names = [a.name for a in op_def_registry.get(op).input_arg]
        made = getattr(tf.raw_ops, op)(**dict(zip(names, tensors)), **attrs)
        with tf.Session() as s:
            s.run(tf.global_variables_initializer())
            for _ in range(steps):
                s.run(made if isinstance(made, tf.Operation) else made.op)
            after = s.run([v.value() for v in variables])
    tensor = lambda a: {"dtype": str(a.dtype), "shape": list(a.shape), "data": a.reshape(-1).tolist()}
    given = [dict(tensor(a), variable=v) for a, (_, v) in zip(arrays, inputs)]
    return {"op": op, "attrs": attrs, "inputs": given, "steps": steps, "after": [tensor(np.asarray(a)) for a in after]}


cases = []
for rule in HYPERS:
    variations = [{}]
    if rule in ("Momentum", "Adam"):
        variations.append({"use_nesterov": True})
    if rule.startswith("Adagrad"):
        variations.append({"update_slots": False})
    for attrs in variations:
        for dtype in ("float32", "float64"):
            cases.append(record("Apply" + rule, attrs, inputs_of(rule, dtype, None), False))
        cases.append(record("ResourceApply" + rule, attrs, inputs_of(rule, "float32", None), True))
        if rule in ("GradientDescent", "Adam"):
            continue
        for dtype, index in (("float32", "int32"), ("float64", "int64")):
            cases.append(record("SparseApply" + rule, attrs, inputs_of(rule, dtype, index), False))
        cases.append(record("ResourceSparseApply" + rule, attrs, inputs_of(rule, "float32", "int64"), True))
for how in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Update"):
    for dtype, index in (("float32", "int32"), ("int64", "int64")):
        if how == "Div" and dtype == "int64":
            continue
        rows = [(numbers(dtype, 4, 2), True), (np.array([2, 0, 2], index), False), (numbers(dtype, 3, 2), False)]
        cases.append(record("Scatter" + how, {}, rows, False))
        cases.append(record("ResourceScatter" + how, {}, rows, True))
for dtype in ("float32", "int32"):
    pair = [(numbers(dtype, 3), True), (numbers(dtype, 3), False)]
    for op in ("Assign", "AssignAdd", "AssignSub"):
        cases.append(record(op, {}, pair, False))
    for op in ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"):
        cases.append(record(op, {}, pair, True))
print("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]")
