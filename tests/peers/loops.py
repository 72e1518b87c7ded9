"""Graphs with branches, loops and calls, made with TensorFlow: the rows `control flow` of the table.

Each function adds its nodes to the default graph and returns the output; `x` is the only input. The number of
iterations, branches or calls is in CONTROL_FLOW of the driver, which divides times by it.
"""

import numpy as np
import tensorflow as tf

from driver import CONTROL_FLOW

N = CONTROL_FLOW["branches_v2"]
ITERATIONS = CONTROL_FLOW["loop_v2"]


def loop(x):
    """5 scalar operations per iteration, beside the comparison."""

    def body(i, a, b):
        a = a * 0.5 + x
        return i + 1, a, tf.maximum(b - 1.0, a)

    return tf.while_loop(lambda i, a, b: i < ITERATIONS, body, [0, x, x])[2]


def nested(x):
    """100 x 100 iterations of the same operations."""

    def inner(i, a, b):
        a = a * 0.5 + x
        return i + 1, a, tf.maximum(b - 1.0, a)

    def outer(j, a, b):
        _, a, b = tf.while_loop(lambda i, a, b: i < 100, inner, [0, a, b])
        return j + 1, a, b

    return tf.while_loop(lambda j, a, b: j < 100, outer, [0, x, x])[2]


def branches(x):
    """A chain of branches of one operation each; every other one is taken."""
    positive = x > 0.0
    for index in range(N):
        add, sub = (lambda x=x: x + 1.0), (lambda x=x: x - 1.0)
        x = tf.cond(positive, add, sub) if index % 2 else tf.cond(positive, sub, add)
    return x


def calls(x):
    """A chain of calls of a function of one operation."""
    increment = tf.function(lambda x: x + 1.0, autograph=False)
    for _ in range(N):
        x = increment(x)
    return x


def additions(x):
    """What the branches and calls compute, without branches and calls."""
    one = tf.constant(1.0)
    for _ in range(N):
        x = x + one
    return x


# Model: (function, control flow of TensorFlow 2).
SMALL = {
    "loop_v1": (loop, False),
    "loop_v2": (loop, True),
    "nested_v1": (nested, False),
    "nested_v2": (nested, True),
    "branches_v1": (branches, False),
    "branches_v2": (branches, True),
    "calls": (calls, True),
    "additions": (additions, True),
}


def small(name):
    """Returns GraphDef, feeds and expected outputs of a model of scalars."""
    make, is_v2 = SMALL[name]
    (tf.compat.v1.enable_control_flow_v2 if is_v2 else tf.compat.v1.disable_control_flow_v2)()
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [], name="x")
        tf.identity(make(x), name="y")
    tf.compat.v1.enable_control_flow_v2()
    feed = np.float32(0.25)
    with tf.compat.v1.Session(graph=graph) as session:
        found = session.run("y:0", {"x:0": feed})
    return graph.as_graph_def(), {"in/x": np.asarray(feed), "out/y:0": np.asarray(found)}


def lstm(batch):
    """Returns the same for a recurrent layer of Keras: 128 units, 100 steps of 128 numbers."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    tf.keras.utils.set_random_seed(7)
    layer = tf.keras.Sequential([tf.keras.Input((100, 128), batch_size=batch), tf.keras.layers.LSTM(128)])
    spec = tf.TensorSpec((batch, 100, 128), tf.float32, name="x")
    concrete = tf.function(lambda x: layer(x, training=False)).get_concrete_function(spec)
    frozen = convert_variables_to_constants_v2(concrete, lower_control_flow=False)
    x = np.random.default_rng(3).standard_normal((batch, 100, 128), np.float32)
    found = frozen(tf.constant(x))[0].numpy()
    return frozen.graph.as_graph_def(), {"in/x": x, f"out/{frozen.outputs[0].name}": found}


LOOPS = {name: (lambda name=name: small(name)) for name in SMALL}
LOOPS |= {"lstm_b1": lambda: lstm(1), "lstm_b32": lambda: lstm(32)}
