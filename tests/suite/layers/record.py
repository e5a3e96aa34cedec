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
    mask = np.uint64(0xFFFFFFFF)
    h = (np.arange(count, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(seed * 2246822519 + 374761393)) & mask
    h = ((h ^ (h >> np.uint64(15))) * np.uint64(2246822519)) & mask
    h ^= h >> np.uint64(13)
    return (h >> np.uint64(8)).astype(np.float64) / 2**24 - 0.5


def array(shape, seed):
    return numbers(int(np.prod(shape)), seed).reshape(shape).astype(np.float32)


def tame(name, shape, seed):
    """Values that keep a deep network's results of the size of its inputs (He et al., 2015)."""
    values = numbers(int(np.prod(shape)), seed).reshape(shape)
    if len(shape) > 1:
        depthwise = name.endswith("depthwise_kernel")
        values = values * np.sqrt(24.0 / np.prod(shape[: 2 if depthwise else -1]))
    elif name.endswith("gamma") or name.endswith("variance"):
        values = values * 0.25 + 1
    return values.astype(np.float32)


def x(*shape):
    return tf.placeholder(tf.keras.backend.floatx(), shape, name="x")


def sequence(cell, steps=3, inputs=3, **options):
    xs = [tf.placeholder(tf.float32, [2, inputs], name="x") for _ in range(steps)]
    outputs, state = tf.nn.static_rnn(cell, xs, dtype=tf.float32, **options)
    flat = tf.nest.flatten(state)
    return tf.concat(outputs + flat, 1)


def batch_norm(shape, **options):
    return lambda: tf.layers.batch_normalization(x(*shape), training=True, **options)


def cifar10(images):
    """The inference of TensorFlow's CIFAR-10 tutorial."""

    def weights(shape, deviation):
        return tf.get_variable("weights", shape, initializer=tf.truncated_normal_initializer(stddev=deviation))

    def biases(count):
        return tf.get_variable("biases", [count], initializer=tf.constant_initializer(0.1))

    def convolution(h, name):
        with tf.variable_scope(name) as scope:
            conv = tf.nn.conv2d(h, weights([5, 5, h.shape[3], 64], 5e-2), [1, 1, 1, 1], padding="SAME")
            return tf.nn.relu(tf.nn.bias_add(conv, biases(64)), name=scope.name)

    def affine(h, name, units, deviation, relu=tf.nn.relu):
        with tf.variable_scope(name):
            return relu(tf.matmul(h, weights([h.shape[1], units], deviation)) + biases(units))

    pool = lambda h: tf.nn.max_pool(h, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding="SAME")
    norm = lambda h: tf.nn.lrn(h, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)
    h = norm(pool(convolution(images, "conv1")))
    h = pool(norm(convolution(h, "conv2")))
    h = tf.reshape(h, [images.shape[0], -1])
    h = affine(h, "local3", 384, 0.04)
    h = affine(h, "local4", 192, 0.04)
    return affine(h, "softmax_linear", 10, 1 / 192.0, tf.identity)


def cnn(images):
    """Two convolutions of 5 by 5 with pools, three affine layers."""

    def variables(*shape):
        weights = tf.get_variable("w", shape, initializer=tf.truncated_normal_initializer())
        return weights, tf.get_variable("b", shape[-1:], initializer=tf.zeros_initializer())

    h = images
    for i in range(2):
        with tf.variable_scope("layer%d" % i):
            weights, biases = variables(5, 5, h.shape[3], 64)
            h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(h, weights, strides=1, padding="SAME"), biases))
        h = tf.nn.max_pool(h, ksize=3, strides=2, padding="SAME")
    h = tf.reshape(h, [images.shape[0], -1])
    for i, units in enumerate([384, 192, 10]):
        with tf.variable_scope("layer%d" % (2 + i)):
            weights, biases = variables(h.shape[1], units)
            h = tf.nn.bias_add(tf.matmul(h, weights), biases)
        h = tf.nn.relu(h) if i < 2 else h
    return h


def mobilenet_v2(**options):
    return tf.keras.applications.MobileNetV2(weights=None, classifier_activation=None, **options)


def trained(model, images):
    of_the_first_call = set(u.name for u in model.updates)
    y = model(images, training=True)
    for update in model.updates:
        if update.name not in of_the_first_call:
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    return y


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

# Whose variables are many: only their means and root mean squares are recorded, and no names of ops.
LARGE = {
    "cifar10": lambda: cifar10(x(2, 12, 12, 3)),
    "cnn": lambda: cnn(x(2, 12, 12, 3)),
    "mobilenet_v2": lambda: trained(
        mobilenet_v2(input_shape=(64, 64, 3), alpha=0.35, classes=5), x(4, 64, 64, 3)
    ),
}


# Batch normalization of few numbers makes rounding grow from step to step; in float64 there is less of it.
IN_FLOAT64 = ["mobilenet_v2"]


def record(name, build):
    large = name in LARGE
    tf.keras.backend.set_floatx("float64" if name in IN_FLOAT64 else "float32")
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
        optimizer = tf.train.GradientDescentOptimizer(RATE / 2500 if large else RATE)
        updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        if trainable:
            # All gradients first: a variable that changes while another gradient reads it would be seen half changed.
            grads = optimizer.compute_gradients(loss, gate_gradients=optimizer.GATE_GRAPH)
            with tf.control_dependencies(updates):
                train = optimizer.apply_gradients(grads)
        else:
            train = tf.group(*updates)
        feeds = {}
        ours = lambda o: o.type == "Placeholder" and o.name.startswith("x")
        for i, op in enumerate(o for o in graph.get_operations() if ours(o)):
            t = op.outputs[0]
            feeds[t] = array(t.shape.as_list(), 100 + i)
        with tf.Session(graph=graph) as s:
            for i, v in enumerate(variables):
                shape = v.shape.as_list()
                start = array(shape, i) + (1 if v.op.name.endswith("variance") else 0)
                start = tame(v.op.name, shape, i) if large else start
                v.load(start, s)
            # The loss before each step; fetched by itself, so that no step comes between.
            losses = []
            for _ in range(STEPS):
                losses.append(float(s.run(loss, feeds)))
                s.run(train, feeds)
            after = {v.op.name: np.ravel(s.run(v)).astype(np.float64) for v in variables}
            if large:
                after = {n: np.array([np.mean(a), np.sqrt(np.mean(a * a))]) for n, a in after.items()}
            after = {n: [float(e) for e in a] for n, a in after.items()}
    names = [v.op.name for v in variables]
    # The insides of these are TensorFlow's own business, and the last `concat` is the program's.
    inner = ("ZeroState/", "Tensordot/", "Conv2D/")
    skip = lambda o: any(o == n or o.startswith(n + "/") for n in names) or any(p in o for p in inner) or o == "concat"
    return {
        "variables": {v.op.name: v.shape.as_list() for v in variables},
        "trainable": trainable,
        "ops": [] if large else sorted(o for o in ops if not skip(o)),
        "losses": losses,
        "after": after,
    }


def main():
    print("{")
    lines = []
    for name, build in {**PROGRAMS, **LARGE}.items():
        lines.append(f'"{name}": {json.dumps(record(name, build), separators=(",", ":"))}')
    print(",\n".join(lines))
    print("}")


main()
