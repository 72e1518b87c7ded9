"""Cases of lookup tables."""

import numpy as np
import tensorflow as tf

from harness import Case

raw = tf.raw_ops
KEYS = {tf.string: [b"", b"a", b"b", b"abc", b"z\xff"], tf.int64: [0, 1, -1, 2**40, 7],
        tf.int32: [0, 1, -1, 2**30, 7]}
FIXED = [(tf.string, v) for v in (tf.string, tf.int64, tf.int32, tf.float32, tf.float64, tf.bool)]
FIXED += [(tf.int64, v) for v in (tf.string, tf.int64, tf.int32, tf.float32, tf.float64)]
FIXED += [(tf.int32, v) for v in (tf.string, tf.int32, tf.float32, tf.float64)]
MUTABLE = [p for p in FIXED if p not in ((tf.string, tf.string), (tf.int32, tf.string))]
DENSE = [p for p in MUTABLE if p[1] != tf.string] + [(tf.int64, tf.bool)]


def pick(rng, options):
    return options[int(rng.integers(len(options)))]


def some(rng, dtype, shape):
    n = int(np.prod(shape))
    if dtype == tf.string:
        values = np.array([b"v%d" % i for i in rng.integers(0, 50, n)], object)
    elif dtype == tf.bool:
        values = rng.integers(0, 2, n).astype(bool)
    else:
        values = rng.integers(-50, 50, n)
    return values.reshape(shape)


def const(value, dtype):
    return tf.constant(value, dtype)


class Steps:
    """Ops one after the other."""

    def __init__(self):
        self.last, self.outputs = [], []

    def add(self, make, fetch=False):
        with tf.control_dependencies(self.last):
            out = make()
        outs = out if isinstance(out, (tuple, list)) else [out]
        self.last = [x if isinstance(x, tf.Operation) else x.op for x in outs]
        if fetch:
            self.outputs += list(outs)


def cases(rng, n):
    number = 0
    for _ in range(n):
        number += 1
        k, v = pick(rng, FIXED)
        keys = [KEYS[k][i] for i in rng.integers(0, 5, int(rng.integers(0, 5)))]
        if rng.random() < 0.6:
            keys = list(dict.fromkeys(keys))
        x = dict(k=k, v=v, keys=keys, values=some(rng, v, (len(keys),)), name=f"fixed{number}",
                 again=bool(rng.random() < 0.3), uninitialized=bool(rng.random() < 0.1),
                 find=np.array([KEYS[k][i] for i in rng.integers(0, 5, 6)], object).reshape(2, 3),
                 default=some(rng, v, ()))
        yield Case("HashTableV2", lambda x=x: fixed(x))
        yield Case("HashTable", lambda x=x: fixed_v1(x))

        k, v = pick(rng, MUTABLE)
        x = dict(k=k, v=v, name=f"mutable{number}", shape=(), op="MutableHashTableV2")
        yield Case("MutableHashTableV2", lambda x=mutable_args(rng, x): mutable(x))
        x = dict(x, name=f"tensors{number}", shape=(int(rng.integers(1, 4)),),
                 op="MutableHashTableOfTensorsV2")
        yield Case("MutableHashTableOfTensorsV2", lambda x=mutable_args(rng, x): mutable(x))
        k, v = pick(rng, DENSE)
        shape = () if rng.random() < 0.5 else (int(rng.integers(1, 4)),)
        x = dict(k=k, v=v, name=f"dense{number}", shape=shape, op="MutableDenseHashTableV2")
        yield Case("MutableDenseHashTableV2", lambda x=mutable_args(rng, x): mutable(x))

        lines = int(rng.integers(1, 6))
        x = dict(name=f"file{number}", lines=lines, key=int(rng.choice([-2, -1, 0, 1])),
                 value=int(rng.choice([-2, -1, 0, 1])), size=int(rng.choice([-1, -1, 2, 9])))
        yield Case("InitializeTableFromTextFileV2", lambda x=x: from_file(x))


def fixed(x):
    steps = Steps()
    table = raw.HashTableV2(key_dtype=x["k"], value_dtype=x["v"], shared_name=x["name"])
    keys, values = const(x["keys"], x["k"]), const(x["values"], x["v"])
    if not x["uninitialized"]:
        steps.add(lambda: raw.InitializeTableV2(table_handle=table, keys=keys, values=values))
    if x["again"]:
        steps.add(lambda: raw.InitializeTableV2(table_handle=table, keys=keys, values=values))
    steps.add(lambda: raw.LookupTableFindV2(
        table_handle=table, keys=const(x["find"], x["k"]), default_value=const(x["default"], x["v"])),
        True)
    steps.add(lambda: raw.LookupTableSizeV2(table_handle=table), True)
    return steps.outputs


def fixed_v1(x):
    steps = Steps()
    table = raw.HashTable(key_dtype=x["k"], value_dtype=x["v"], shared_name=x["name"] + "v1")
    keys, values = const(x["keys"], x["k"]), const(x["values"], x["v"])
    steps.add(lambda: raw.InitializeTable(table_handle=table, keys=keys, values=values))
    steps.add(lambda: raw.LookupTableFind(
        table_handle=table, keys=const(x["find"], x["k"]), default_value=const(x["default"], x["v"])),
        True)
    steps.add(lambda: raw.LookupTableSize(table_handle=table), True)
    return steps.outputs


def mutable_args(rng, x):
    pool = KEYS[x["k"]][1:4]

    def keys(n):
        return np.array([pool[i] for i in rng.integers(0, 3, n)], object)

    insert, second, remove, find = keys(3), keys(2), keys(1), keys(4)
    return dict(x, insert=insert, values=some(rng, x["v"], (3,) + x["shape"]), second=second,
                second_values=some(rng, x["v"], (2,) + x["shape"]), remove=remove, find=find,
                default=some(rng, x["v"], ((4,) if rng.random() < 0.3 else ()) + x["shape"]),
                imports=bool(rng.random() < 0.3), bad=bool(rng.random() < 0.1))


def mutable(x):
    steps, args = Steps(), dict(key_dtype=x["k"], value_dtype=x["v"], shared_name=x["name"])
    if "Dense" in x["op"]:
        del args["key_dtype"]
        args |= dict(empty_key=const(KEYS[x["k"]][0], x["k"]), value_shape=x["shape"],
                     deleted_key=const(KEYS[x["k"]][4], x["k"]), initial_num_buckets=8)
    elif x["shape"]:
        args["value_shape"] = x["shape"]
    table = getattr(raw, x["op"])(**args)

    def keys(name):
        return const(x[name].tolist(), x["k"])

    def insert(name, values, op):
        values = const(x[values].tolist(), x["v"])
        steps.add(lambda: op(table_handle=table, keys=keys(name), values=values))

    insert("insert", "values", raw.LookupTableInsertV2)
    if x["bad"]:
        steps.add(lambda: raw.LookupTableInsertV2(
            table_handle=table, keys=const([KEYS[x["k"]][0]], x["k"]),
            values=const(x["values"][:2].tolist(), x["v"])))
    steps.add(lambda: raw.LookupTableRemoveV2(table_handle=table, keys=keys("remove")))
    second = raw.LookupTableInsertV2
    if x["imports"] and "Dense" not in x["op"]:
        second = raw.LookupTableImportV2
    insert("second", "second_values", second)
    steps.add(lambda: raw.LookupTableFindV2(
        table_handle=table, keys=keys("find"), default_value=const(x["default"].tolist(), x["v"])), True)
    steps.add(lambda: raw.LookupTableSizeV2(table_handle=table), True)
    if "Dense" not in x["op"]:
        # The order of exported entries is not defined: they are looked up again.
        with tf.control_dependencies(steps.last):
            exported, values = raw.LookupTableExportV2(table_handle=table, Tkeys=x["k"],
                                                       Tvalues=x["v"])
        steps.last = [exported.op]
        steps.outputs += [tf.shape(exported), tf.shape(values)]
    return steps.outputs


def from_file(x):
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
        for i in range(x["lines"]):
            file.write(f"w{i}\t{i * 3}\n")
    kinds = {-2: tf.string, -1: tf.int64, 0: tf.string, 1: tf.int64}
    k, v = kinds[x["key"]], kinds[x["value"]]
    steps = Steps()
    table = raw.HashTableV2(key_dtype=k, value_dtype=v, shared_name=x["name"])
    steps.add(lambda: raw.InitializeTableFromTextFileV2(
        table_handle=table, filename=file.name, key_index=x["key"], value_index=x["value"],
        vocab_size=x["size"]))
    find = [b"w0", b"w1\t3", b"?"] if k == tf.string else [0, 3, 99]
    default = b"no" if v == tf.string else -5
    steps.add(lambda: raw.LookupTableFindV2(
        table_handle=table, keys=const(find, k), default_value=const(default, v)), True)
    steps.add(lambda: raw.LookupTableSizeV2(table_handle=table), True)
    return steps.outputs
