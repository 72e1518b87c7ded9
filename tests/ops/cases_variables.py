"""Cases of reference variables, which the program makes resources of, and of savers."""

import tempfile

import numpy as np
import tensorflow as tf

from harness import Case

raw = tf.raw_ops
NUMBERS = [tf.float32, tf.float64, tf.int32, tf.int64]
SCATTERS = ["Update", "Add", "Sub", "Mul", "Div", "Min", "Max"]
SCATTERS_ND = ["Update", "Add", "Sub", "Min", "Max"]


def pick(rng, options):
    return options[int(rng.integers(len(options)))]


def const(value, dtype):
    return tf.constant(np.asarray(value).tolist(), dtype, np.shape(value))


def cases(rng, n):
    for _ in range(n):
        yield Case("VariableV2", lambda x=steps(rng): run_steps(x))
        yield Case("RefSwitch", lambda x=branch(rng): run_branch(x))
        yield Case("CountUpTo", lambda start=int(rng.integers(0, 4)): count(start))
        yield Case("SaveV2", lambda x=saved(rng): save(x))


def steps(rng):
    shape = [int(d) for d in rng.integers(1, 4, int(rng.integers(1, 4)))]
    x = dict(dtype=pick(rng, NUMBERS), shape=shape, start=rng.integers(-5, 6, shape), steps=[],
             uninitialized=bool(rng.random() < 0.05))
    for _ in range(int(rng.integers(1, 5))):
        kind = pick(rng, ["assign", "add", "sub", "rows", "rows", "elements", "slice", "read", "use"])
        step = dict(kind=kind, value=rng.integers(-5, 6, shape))
        if kind == "rows":
            step["op"] = pick(rng, SCATTERS)
            step["indices"] = rng.integers(0, shape[0], int(rng.integers(0, 3)))
            step["value"] = rng.integers(1, 6, [len(step["indices"])] + shape[1:])
            if rng.random() < 0.2:
                step["value"] = rng.integers(1, 6, ())
            if rng.random() < 0.05:
                step["indices"] = np.array([shape[0]])
        if kind == "elements":
            step["op"] = pick(rng, SCATTERS_ND)
            n = int(rng.integers(1, 3))
            step["indices"] = np.stack([rng.integers(0, d, n) for d in shape], -1)
            step["value"] = rng.integers(-5, 6, n)
        if kind == "slice":
            begin = int(rng.integers(0, shape[0]))
            step |= dict(begin=begin, value=rng.integers(-5, 6, [1] + shape[1:]))
        x["steps"].append(step)
    return x


def run_steps(x):
    """Ops on a variable, each after the one before, some of them on its output."""
    dtype, outputs = x["dtype"], []
    variable = raw.VariableV2(shape=x["shape"], dtype=dtype)
    last = variable
    if not x["uninitialized"]:
        last = raw.Assign(ref=variable, value=const(x["start"], dtype))
    for number, step in enumerate(x["steps"]):
        value = const(step["value"], dtype)
        ref = last if last.dtype._is_ref_dtype and number % 2 else variable
        with tf.control_dependencies([last]):
            kind = step["kind"]
            if kind == "assign":
                last = raw.Assign(ref=ref, value=value)
            elif kind == "add":
                last = raw.AssignAdd(ref=ref, value=value)
            elif kind == "sub":
                last = raw.AssignSub(ref=ref, value=value)
            elif kind == "rows":
                last = getattr(raw, "Scatter" + step["op"])(
                    ref=ref, indices=const(step["indices"], tf.int32), updates=value)
            elif kind == "elements":
                last = getattr(raw, "ScatterNd" + step["op"])(
                    ref=ref, indices=const(step["indices"], tf.int64), updates=value)
            elif kind == "slice":
                begin = step["begin"]
                last = raw.StridedSliceAssign(
                    ref=ref, begin=[begin], end=[begin + 1], strides=[1], value=value)
            elif kind == "read":
                # TensorFlow's `Identity` shares the buffer, so later updates change its value.
                last = raw.Neg(x=ref)
                outputs.append(last)
            else:
                last = raw.AddV2(x=ref, y=value)
                outputs.append(last)
    with tf.control_dependencies([last]):
        outputs += [raw.Identity(input=variable), raw.IsVariableInitialized(ref=variable)]
    return outputs


def branch(rng):
    return dict(taken=bool(rng.random() < 0.5), start=rng.integers(-5, 6, 3),
                value=rng.integers(-5, 6, 3))


def run_branch(x):
    """A variable that one branch changes."""
    variable = raw.VariableV2(shape=[3], dtype=tf.int32)
    start = raw.Assign(ref=variable, value=const(x["start"], tf.int32))
    with tf.control_dependencies([start]):
        predicate = tf.identity(tf.constant(x["taken"]))
    off, on = raw.RefSwitch(data=start, pred=predicate)
    changed = raw.AssignAdd(ref=on, value=const(x["value"], tf.int32))
    result, index = raw.Merge(inputs=[raw.Neg(x=off), raw.Identity(input=changed)])
    with tf.control_dependencies([result]):
        return [result, index, raw.Identity(input=variable)]


def count(start):
    variable = raw.VariableV2(shape=[], dtype=tf.int32)
    assigned = raw.Assign(ref=variable, value=tf.constant(start))
    counted = raw.CountUpTo(ref=assigned, limit=3)
    with tf.control_dependencies([counted]):
        return [counted, raw.Identity(input=variable)]


def saved(rng):
    kinds = [tf.float32, tf.int64, tf.bool, tf.string, tf.float16]
    tensors = []
    for number in range(int(rng.integers(1, 5))):
        shape = [int(d) for d in rng.integers(0, 4, int(rng.integers(0, 4)))]
        tensors.append((f"t{number}", pick(rng, kinds), rng.integers(0, 9, shape)))
    part = bool(rng.random() < 0.4)
    return dict(tensors=tensors, part=part, wrong=bool(rng.random() < 0.1),
                missing=bool(rng.random() < 0.1), rows=rng.integers(0, 9, (3, 2)),
                prefix=tempfile.mkdtemp() + "/checkpoint")


def save(x):
    """Tensors and two slices of one, in two checkpoints that are merged, and restored."""
    def typed(values, kind):
        if kind == tf.string:
            strings = np.array([b"s%d" % v for v in values.reshape(-1)], object)
            return tf.constant(strings.reshape(values.shape), tf.string)
        return tf.cast(const(values, tf.int64), kind)

    names = [name for name, _, _ in x["tensors"]]
    slices, values = [""] * len(names), [typed(v, k) for _, k, v in x["tensors"]]
    prefixes = [x["prefix"] + "_parts/a", x["prefix"] + "_parts/b"]
    rows = const(x["rows"], tf.int32)
    first = raw.SaveV2(prefix=prefixes[0], tensor_names=names + ["rows"], tensors=values + [rows[:1]],
                       shape_and_slices=slices + ["3 2 0,1:-"])
    second = raw.SaveV2(prefix=prefixes[1], tensor_names=["rows"], tensors=[rows[1:]],
                        shape_and_slices=["3 2 1,2:-"])
    with tf.control_dependencies([first, second]):
        merged = raw.MergeV2Checkpoints(checkpoint_prefixes=prefixes, destination_prefix=x["prefix"])
    wanted, kinds = names + ["rows"], [kind for _, kind, _ in x["tensors"]] + [tf.int32]
    if x["missing"]:
        wanted[0] = "nothing"
    if x["wrong"]:
        kinds[-1] = tf.float32
    with tf.control_dependencies([merged]):
        restored = raw.RestoreV2(prefix=x["prefix"], tensor_names=wanted, dtypes=kinds,
                                 shape_and_slices=slices + ["3 2 1,2:0,1" if x["part"] else ""])
        name = raw.ShardedFilename(basename="a/b", shard=tf.constant(3), num_shards=tf.constant(12))
    return list(restored) + [name]
