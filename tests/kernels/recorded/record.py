"""Records calls of ops in TensorFlow 2.21 as cases of the kernel suite.

Usage: python FAMILY.py, in an environment with tensorflow-cpu 2.21; codec.py also needs Pillow. It
writes FAMILY.jsonl, with one call per line:
{"name", "op", "attrs": {NAME: VALUE}, "inputs": [TENSOR], "outputs": [TENSOR] or "refused": PART}.
A VALUE is {KIND: value} with TensorFlow's names of kinds (i, f, b, s, type, shape, list); s is in
hex. A TENSOR has an element type, a shape and its elements in hex; strings one by one. PART is a
part of our error; TensorFlow must refuse the call, too.
"""

import json
import pathlib

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

v1 = tf.compat.v1
v1.disable_eager_execution()

NAMES = {"float32": "float", "float64": "double", "float16": "half"}


class Recorder:
    def __init__(self, script):
        self.path = pathlib.Path(script).resolve().with_suffix(".jsonl")
        self.lines = []

    def call(self, name, op, inputs, refusal=None, **attrs):
        """Records one call; `inputs` has the names of arguments as keys, and arrays or lists of
        arrays as values."""
        feeds = {}

        def fed(value):
            if isinstance(value, list):
                return [fed(item) for item in value]
            array = np.asarray(value)
            # Of unknown shape, so that kernels and not shape functions refuse.
            held = v1.placeholder(tf.string if is_text(array) else array.dtype, None)
            feeds[held] = array
            return held

        with tf.Graph().as_default() as graph:
            args = op_def_registry.get(op).input_arg
            held = {arg.name: fed(inputs[arg.name]) for arg in args}
            outputs = tf.nest.flatten(getattr(tf.raw_ops, op)(**held, **attrs))
            node = next(node for node in graph.as_graph_def().node if node.op == op)
            line = {"name": name, "op": op}
            line["attrs"] = {
                key: attr(value)
                for key, value in sorted(node.attr.items())
                if not key.startswith("_")
            }
            line["inputs"] = [tensor(array) for array in feeds.values()]
            try:
                found = v1.Session(graph=graph).run(outputs, feeds)
                assert not refusal, (op, name, "is not refused", found)
                line["outputs"] = [tensor(array) for array in found]
            except tf.errors.OpError as error:
                assert refusal, (op, name, "is refused", error.message)
                line |= {"refused": refusal, "n_outputs": len(outputs)}
        self.lines.append(json.dumps(line))

    def write(self):
        self.path.write_text("\n".join(self.lines) + "\n")


def is_text(array):
    return array.dtype.kind in "OSU"


def tensor(array):
    array = np.asarray(array)
    shape = list(array.shape)
    if is_text(array):
        strings = [text.encode() if isinstance(text, str) else text for text in array.ravel().tolist()]
        return {"dtype": "string", "shape": shape, "elements": [text.hex() for text in strings]}
    dtype = NAMES.get(array.dtype.name, array.dtype.name)
    return {"dtype": dtype, "shape": shape, "elements": array.tobytes().hex()}


def attr(value):
    kind = value.WhichOneof("value")
    if kind == "type":
        name = tf.dtypes.as_dtype(value.type).name
        return {"type": NAMES.get(name, name)}
    if kind == "shape":
        return {"shape": shape_of(value.shape)}
    if kind == "s":
        return {"s": value.s.hex()}
    if kind == "list":
        items = []
        for field, values in value.list.ListFields():
            for item in values:
                single = type(value)()
                if field.name == "shape":
                    single.shape.CopyFrom(item)
                else:
                    setattr(single, field.name, item)
                items.append(attr(single))
        return {"list": items}
    return {kind: getattr(value, kind)}


def shape_of(shape):
    return None if shape.unknown_rank else [dim.size for dim in shape.dim]
