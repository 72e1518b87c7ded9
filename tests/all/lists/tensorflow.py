"""Runs the programs of a file in TensorFlow and compares values and refusals.

Usage: python tensorflow.py [cases.txt], in an environment with tensorflow-cpu 2.21.
"""

import inspect
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
# This script is called like the package.
sys.path = [path for path in sys.path if path not in ("", str(HERE))]

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2  # noqa: F401
from tensorflow.python.framework import op_def_registry

v1 = tf.compat.v1

TYPES = {"float": tf.float32, "int32": tf.int32, "int64": tf.int64, "bool": tf.bool}
TYPES |= {"string": tf.string, "variant": tf.variant}


def tokens(line):
    found, depth, quoted, token = [], 0, False, ""
    for character in line + " ":
        quoted ^= character == "'"
        if not quoted:
            depth += (character in "[{") - (character in "]}")
        if character == " " and not depth and not quoted:
            found += [token] if token else []
            token = ""
        else:
            token += character
    return found


def constant(token):
    empty = re.fullmatch(r"empty(32|64|)\[(.*)\]", token)
    if empty:
        dtype = {"32": np.int32, "64": np.int64, "": np.float32}[empty[1]]
        return np.zeros([int(dim) for dim in empty[2].split(",")], dtype)
    wide = token.startswith("i64")
    token = token.removeprefix("i64").removeprefix(":")
    leaves = [leaf for leaf in re.split(r"[\[\] ]", token) if leaf]
    n_rows = token.count("[")
    shape = [[], [len(leaves)]][n_rows] if n_rows < 2 else [n_rows - 1, -1]
    first = leaves[0] if leaves else "0"
    if first.startswith("'"):
        return np.array([leaf.strip("'").encode() for leaf in leaves], object).reshape(shape)
    if first in ("true", "false"):
        return np.array([leaf == "true" for leaf in leaves]).reshape(shape)
    if "." in first:
        return np.array([float(leaf.rstrip(".")) for leaf in leaves], np.float32).reshape(shape)
    dtype = np.int64 if wide else np.int32
    return np.array([int(leaf) for leaf in leaves], dtype).reshape(shape)


def attr(text):
    if text.startswith("{"):
        return [attr(item) for item in tokens(text.strip("{}"))]
    if text.startswith("["):
        dims = [dim for dim in text.strip("[]").split(",") if dim]
        return [None if dim == "?" else int(dim) for dim in dims]
    if text.startswith("'"):
        return text.strip("'")
    if text in TYPES:
        return TYPES[text]
    return text == "true" if text in ("true", "false") else int(text)


def value(values, feeds, token):
    name, _, slot = token.partition(":")
    if name in values:
        return values[name][int(slot or 0)]
    if not token.startswith("?"):
        return tf.constant(constant(token))
    array = constant(token[1:])
    dtype = tf.string if array.dtype == object else array.dtype
    feed = v1.placeholder(dtype)
    feeds[feed] = array
    return feed


def add(values, feeds, operations, line):
    name, rest = line.split(" = ")
    call, attrs, controls = (rest.split(" ;") + ["", ""])[:3]
    op, *arguments = tokens(call)
    names = [arg.name for arg in op_def_registry.get(op).input_arg]
    kwargs = {}
    for parameter, argument in zip(names, arguments):
        if argument.startswith("{"):
            items = tokens(argument.strip("{}"))
            kwargs[parameter] = [value(values, feeds, item) for item in items]
        else:
            kwargs[parameter] = value(values, feeds, argument)
    for pair in tokens(attrs):
        key, text = pair.split("=", 1)
        kwargs[key] = attr(text)
    make = getattr(tf.raw_ops, op)
    # Types that follow from the inputs are no parameters of the function.
    parameters = inspect.signature(make).parameters
    kwargs = {key: part for key, part in kwargs.items() if key in parameters}
    with tf.control_dependencies([operations[control[1:]] for control in tokens(controls)]):
        made = make(**kwargs)
    if isinstance(made, (tf.Operation, tf.Tensor)):
        made = [made]
    # Arguments that are lists are lists in the result, too.
    made = [part for arg in made for part in (arg if isinstance(arg, list) else [arg])]
    operations[name] = made[0] if isinstance(made[0], tf.Operation) else made[0].op
    values[name] = made


def show(array):
    array = np.asarray(array)
    kinds = {"f": "float", "b": "bool", "O": "string", "S": "string"}
    kind = kinds.get(array.dtype.kind, array.dtype.name)
    shape = ",".join(str(dim) for dim in array.shape)
    if kind == "string":
        leaves = [leaf.decode() or "_" for leaf in array.reshape(-1)]
    elif kind == "float":
        leaves = [f"{leaf:g}" for leaf in array.reshape(-1)]
    else:
        leaves = [str(int(leaf)) for leaf in array.reshape(-1)]
    return f"{kind} [{shape}]: {' '.join(leaves)}".rstrip()


def run(lines, fetches, refused):
    with tf.Graph().as_default():
        values, feeds, operations = {}, {}, {}
        for line in lines:
            add(values, feeds, operations, line)
        wanted = [value(values, feeds, name) for name, _ in fetches]
        wanted += [operations[lines[-1].split(" = ")[0]]] if refused else []
        config = v1.ConfigProto()
        # Rewritten graphs refuse less: pushes without a pop disappear, for example.
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = -1
        with v1.Session(config=config) as session:
            return [show(found) for found in session.run(wanted, feeds)[: len(fetches)]]


def main():
    file = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "cases.txt")
    n_agreed, n_skipped, problems = 0, 0, []
    for case in file.read_text().split("\n== ")[1:]:
        name, *lines = [line for line in case.splitlines() if line]
        lines = [line for line in lines if not line.startswith("#")]
        program = [line for line in lines if line[0] not in ">!" and line != "once"]
        fetches = [line[2:].split(" ", 1) for line in lines if line.startswith("> ")]
        refused = any(line.startswith("! ") for line in lines)
        if any(line.startswith("!! ") for line in lines) or "FakeParam" in case:
            n_skipped += 1
            continue
        # TensorFlow may crash.
        print(name, file=sys.stderr, flush=True)
        try:
            found = run(program, fetches, refused)
        except (tf.errors.OpError, ValueError, TypeError) as error:
            found = error
        expected = [text for _, text in fetches]
        if refused != isinstance(found, Exception) or not refused and found != expected:
            problems.append(f"{name}: TensorFlow gives {found}, expected {expected}")
        else:
            n_agreed += 1
    print("\n".join(problems))
    print(f"{n_agreed} programs agree, {len(problems)} differ, {n_skipped} are skipped")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
