"""Messages of type tf.train.Example."""

import numpy as np
import tensorflow as tf
from record import Recorder

RECORDER = Recorder(__file__)


def ints(*values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def floats(*values):
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def strings(*values):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def example(**features):
    message = tf.train.Example(features=tf.train.Features(feature=features))
    return message.SerializeToString(deterministic=True)


def vector(*values):
    return np.array(values, object).reshape(len(values))


FULL = example(i=ints(1, -2), f=floats(0.5, 1.5, 2.5), s=strings(b"a", b""), d=floats(1, 2), v=ints(7, 8, 9, 10))
SHORT = example(i=ints(5), d=floats(3, 4), other=ints(1), n=tf.train.Feature())
EMPTY = example(d=floats(5, 6))
# Each number in a field of its own; a field that nobody knows; a name twice.
UNPACKED = bytes.fromhex("0a0b0a090a0169" + "12041a02" + "0807") + bytes.fromhex("1001") + SHORT

SPARSE = {"i": tf.int64, "f": tf.float32, "s": tf.string}


def two(name, batch, refusal=None, names=(), sparse=SPARSE, dense=None, ragged=()):
    dense = dense if dense is not None else {"d": ([2], np.float32([])), "v": ([None, 2], np.int64(-1))}
    attrs = {
        "num_sparse": len(sparse),
        "sparse_types": list(sparse.values()),
        "dense_shapes": [shape for shape, _ in dense.values()],
        "ragged_value_types": [dtype for _, dtype, _ in ragged],
        "ragged_split_types": [dtype for _, _, dtype in ragged],
    }
    inputs = {
        "serialized": batch if isinstance(batch, np.ndarray) else np.array(batch, object),
        "names": vector(*names),
        "sparse_keys": vector(*(key.encode() for key in sparse)),
        "dense_keys": vector(*(key.encode() for key in dense)),
        "ragged_keys": vector(*(key.encode() for key, _, _ in ragged)),
        "dense_defaults": [default for _, default in dense.values()],
    }
    RECORDER.call(name, "ParseExampleV2", inputs, refusal, **attrs)


def main():
    batch = vector(FULL, SHORT, EMPTY)
    ragged = [("i", tf.int64, tf.int32), ("f", tf.float32, tf.int64), ("s", tf.string, tf.int64)]
    two("a batch", batch)
    two("no examples", vector())
    two("one example", FULL)
    two("ragged", batch, sparse={}, ragged=ragged)
    two("ragged, one example", FULL, sparse={}, dense={}, ragged=ragged)
    two("nothing is asked for", batch, sparse={}, dense={})
    two("fields in other forms", vector(UNPACKED, UNPACKED), sparse={"i": tf.int64})
    defaults = {"s": ([1], vector(b"none")), "f": ([3], np.float32([7, 8, 9])), "x": ([], np.int64(4))}
    two("defaults", vector(example(s=strings(b"z")), example(f=floats(1, 2, 3))), sparse={}, dense=defaults)
    strings_vary = {"s": ([None], np.array(b"pad", object))}
    two("strings that vary", batch, sparse={}, dense=strings_vary)
    two("a required one is missing", vector(FULL, SHORT), "is required but could not be found", sparse={}, dense={"s": ([2], vector())})
    two("another number", vector(FULL), "Number of float values != expected", dense={"d": ([3], np.float32([]))})
    two("another type", vector(FULL), "Data types don't match", sparse={"i": tf.float32})
    two("no message", vector(FULL, b"\x0a\x7f"), "Could not parse example input 1")
    two("a cut message", vector(FULL[:-3]), "Could not parse example input 0")
    two("names", vector(SHORT), "Name: first, Feature: s", names=[b"first"], sparse={}, dense={"s": ([2], vector())})
    two("one name for two", batch, "Expected len(names) == len(serialized)", names=[b"first"])
    two("a matrix", batch.reshape(3, 1), "Expected serialized to be a scalar or vector")
    one = {
        "serialized": batch,
        "names": vector(),
        "sparse_keys": [np.array(key.encode(), object) for key in SPARSE],
        "dense_keys": [np.array(b"d", object)],
        "dense_defaults": [np.float32([0, 0])],
    }
    attrs = {"sparse_types": list(SPARSE.values()), "dense_shapes": [[2]]}
    RECORDER.call("a batch", "ParseExample", one, **attrs)
    RECORDER.call("a scalar", "ParseExample", one | {"serialized": np.array(FULL, object)}, "to be a vector", **attrs)
    single = {"serialized": np.array(FULL, object), "dense_defaults": [np.float32([]), np.int64([0])]}
    attrs = {
        "num_sparse": 3,
        "sparse_keys": list(SPARSE),
        "sparse_types": list(SPARSE.values()),
        "dense_keys": ["d", "i2"],
        "dense_shapes": [[2], [1]],
    }
    RECORDER.call("an example", "ParseSingleExample", single, **attrs)
    RECORDER.write()


if __name__ == "__main__":
    main()
