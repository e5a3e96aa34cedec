"""Records what TensorFlow's own layers build and compute; `recorded.json` beside this file is its output.

Wants tensorflow and tf_keras: TF_USE_LEGACY_KERAS=1 python record.py > recorded.json
"""

import json
import warnings

warnings.filterwarnings("ignore")
import numpy as np
import tensorflow.compat.v1 as tf

tf.logging.set_verbosity(tf.logging.ERROR)
tf.disable_eager_execution()
tf.disable_resource_variables()

STEPS = 5
RATE = 0.25


def numbers(count, seed):
    """Numbers in [-0.5, 0.5) that are the same everywhere, without rounding."""
    k = np.arange(count, dtype=np.int64)
    return (((k * 37 + seed * 101 + (k * k) // 7) % 64) - 31.5) / 64


def array(shape, seed):
    return numbers(int(np.prod(shape)), seed).reshape(shape).astype(np.float32)


def x(*shape):
    return tf.placeholder(tf.float32, shape, name="x")


def sequence(cell, steps=3, inputs=3, **options):
    xs = [tf.placeholder(tf.float32, [2, inputs], name="x") for _ in range(steps)]
    outputs, state = tf.nn.static_rnn(cell, xs, dtype=tf.float32, **options)
    flat = tf.nest.flatten(state)
    return tf.concat(outputs + flat, 1)


def batch_norm(shape, **options):
    return lambda: tf.layers.batch_normalization(x(*shape), training=True, **options)


cells = tf.nn.rnn_cell
image = (2, 7, 6, 3)
PROGRAMS = {
    "dense": lambda: tf.layers.dense(tf.layers.dense(x(4, 3), 5, activation=tf.nn.relu), 2, use_bias=False),
    "dense_named": lambda: tf.layers.dense(x(4, 3), 5, activation=tf.nn.tanh, name="fc"),
    "dense_rank_3": lambda: tf.layers.dense(x(2, 4, 3), 5),
    "flatten": lambda: tf.layers.dense(tf.layers.flatten(x(2, 3, 4)), 2),
    "conv2d": lambda: tf.layers.conv2d(x(*image), 4, 3, activation=tf.nn.relu),
    "conv2d_same_strided": lambda: tf.layers.conv2d(x(*image), 4, (3, 2), strides=(2, 1), padding="same"),
    "conv2d_dilated": lambda: tf.layers.conv2d(x(*image), 4, 2, dilation_rate=2, use_bias=False, name="c"),
    "separable_conv2d": lambda: tf.layers.separable_conv2d(
        x(*image), 4, 3, strides=2, padding="same", depth_multiplier=2, activation=tf.nn.relu
    ),
    "depthwise_conv2d": lambda: tf.keras.layers.DepthwiseConv2D(3, depth_multiplier=2)(x(*image)),
    "conv2d_groups": lambda: tf.keras.layers.Conv2D(6, 3, groups=2)(x(2, 5, 4, 4)),
    "max_pooling2d": lambda: tf.layers.max_pooling2d(tf.layers.conv2d(x(*image), 4, 2), 3, 2, padding="same"),
    "average_pooling2d": lambda: tf.layers.average_pooling2d(tf.layers.conv2d(x(*image), 4, 2), 2, 2),
    "global_average_pooling2d": lambda: tf.keras.layers.GlobalAveragePooling2D()(tf.layers.conv2d(x(*image), 4, 2)),
    "batch_norm_rank_4": batch_norm(image, momentum=0.9),
    "batch_norm_rank_2": batch_norm((6, 3), momentum=0.9, epsilon=0.01),
    "batch_norm_plain": batch_norm(image, center=False, scale=False, name="bn"),
    "batch_norm_rank_3": batch_norm((3, 4, 2)),
    "batch_norm_inference": lambda: tf.layers.batch_normalization(x(*image)),
    "basic_lstm": lambda: sequence(cells.BasicLSTMCell(4)),
    "lstm": lambda: sequence(cells.LSTMCell(4)),
    "lstm_everything": lambda: sequence(
        cells.LSTMCell(4, use_peepholes=True, num_proj=3, cell_clip=0.125, proj_clip=0.25, forget_bias=0.5)
    ),
    "gru": lambda: sequence(cells.GRUCell(4)),
    "basic_rnn": lambda: sequence(cells.BasicRNNCell(4)),
    "multi_rnn": lambda: sequence(cells.MultiRNNCell([cells.BasicLSTMCell(4), cells.GRUCell(5)])),
}


def record(build):
    graph = tf.Graph()
    with graph.as_default():
        out = build()
        # Keras's variables are resources, whose reads are nodes; a convolution in groups is a function's call there.
        left_out = ("Const", "Placeholder", "ReadVariableOp")
        ops = [n.name for n in graph.as_graph_def().node if n.op not in left_out]
        ops = [o.replace("PartitionedCall", "Conv2D") for o in ops]
        loss = tf.reduce_mean(tf.square(out - 0.25), name="loss")
        variables = sorted(tf.global_variables(), key=lambda v: v.op.name)
        trainable = [v.op.name for v in tf.trainable_variables()]
        optimizer = tf.train.GradientDescentOptimizer(RATE)
        updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        if trainable:
            # All gradients first: a variable that changes while another gradient reads it would be seen half changed.
            grads = optimizer.compute_gradients(loss, gate_gradients=optimizer.GATE_GRAPH)
            with tf.control_dependencies(updates):
                train = optimizer.apply_gradients(grads)
        else:
            train = tf.group(*updates)
        feeds = {}
        for i, op in enumerate(o for o in graph.get_operations() if o.type == "Placeholder"):
            t = op.outputs[0]
            feeds[t] = array(t.shape.as_list(), 100 + i)
        with tf.Session(graph=graph) as s:
            for i, v in enumerate(variables):
                start = array(v.shape.as_list(), i) + (1 if v.op.name.endswith("variance") else 0)
                v.load(start, s)
            # The loss before each step; fetched by itself, so that no step comes between.
            losses = []
            for _ in range(STEPS):
                losses.append(float(s.run(loss, feeds)))
                s.run(train, feeds)
            after = {v.op.name: [float(e) for e in np.ravel(s.run(v))] for v in variables}
    names = [v.op.name for v in variables]
    # The insides of these are TensorFlow's own business, and the last `concat` is the program's.
    inner = ("ZeroState/", "Tensordot/", "Conv2D/")
    skip = lambda o: any(o == n or o.startswith(n + "/") for n in names) or any(p in o for p in inner) or o == "concat"
    return {
        "variables": {v.op.name: v.shape.as_list() for v in variables},
        "trainable": trainable,
        "ops": sorted(o for o in ops if not skip(o)),
        "losses": losses,
        "after": after,
    }


def main():
    print("{")
    lines = []
    for name, build in PROGRAMS.items():
        lines.append(f'"{name}": {json.dumps(record(build), separators=(",", ":"))}')
    print(",\n".join(lines))
    print("}")


main()
