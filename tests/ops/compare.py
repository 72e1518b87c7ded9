"""Compares ops of the program with those of the installed TensorFlow, on random calls.

    python compare.py [--program target/release/placewright] [--op NAME ..] [--calls 40] [--seed 0]

Needs TensorFlow 2.21, whose CPU kernels give the expected results. The files `calls_*.py` beside this one draw the calls: attributes,
element types, shapes and values of each op. All calls of an op are nodes of one GraphDef, which TensorFlow builds, so its attributes
are TensorFlow's. In every second call the inputs are constants, otherwise they are placeholders of unknown shape. What TensorFlow
refuses, the program must refuse, too; such a call runs alone.

Prints one line per op with the number of agreements, and every disagreement. Exit status 1 if there is one.
"""

import argparse
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# The results of oneDNN differ between processors.
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from draw import CALLS
from draw import Draw
from draw import bfloat16

# Relative to the larger of 1 and the expected number.
TOLERANCES = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12, "complex64": 1e-5, "complex128": 1e-12}


def flattened(value):
    """Returns the results of an op as a list of arrays."""
    if value is None or isinstance(value, (str, bytes)):
        return []
    if isinstance(value, (list, tuple)):
        return [array for part in value for array in flattened(part)]
    return [value]


def expected(tf, op, call):
    """Returns TensorFlow's results, or its error."""
    try:
        inputs = {name: constants(tf, value) for name, value in call.inputs.items()}
        results = [value.numpy() for value in flattened(getattr(tf.raw_ops, op)(**inputs, **call.attrs))]
        return [np.asarray(value, dtype=object) if isinstance(value, bytes) else value for value in results]
    except Exception as error:
        return str(error).split("\n")[0]


def constants(tf, value):
    return [tf.constant(part) for part in value] if isinstance(value, list) else tf.constant(value)


class Batch:
    """Calls of an op as one GraphDef with its feeds."""

    def __init__(self, tf, op):
        self.tf, self.op = tf, op
        self.graph = tf.Graph()
        self.feeds, self.fetches = {}, {}

    def add(self, index, call, are_constant, results):
        """Adds a call; returns False if TensorFlow refuses to build it."""
        tf = self.tf
        n_feeds = 0

        def given(value):
            nonlocal n_feeds
            if isinstance(value, list):
                return [given(part) for part in value]
            value = np.asarray(value)
            if are_constant or value.dtype.kind in "OSU":
                return tf.constant(value)
            name = f"call{index}_{n_feeds}"
            n_feeds += 1
            feeds[name] = value
            return tf.compat.v1.placeholder(tf.as_dtype(value.dtype), shape=None, name=name)

        feeds = {}
        with self.graph.as_default():
            try:
                inputs = {name: given(value) for name, value in call.inputs.items()}
                found = flattened(getattr(tf.raw_ops, self.op)(**inputs, **call.attrs, name=f"call{index}"))
            except Exception:
                return False
            names = []
            for slot, tensor in enumerate(found):
                if tensor.dtype == tf.string:
                    # Archives hold no strings: the graph compares them.
                    if isinstance(results, list):
                        tensor = tf.raw_ops.Equal(x=tensor, y=tf.constant(results[slot], dtype=tf.string), incompatible_shape_error=False)
                    else:
                        tensor = tf.raw_ops.Shape(input=tensor)
                names.append(tensor.name)
        self.feeds.update(feeds)
        self.fetches[index] = names
        return True

    def run(self, program, only=None):
        """Returns the results of the calls by number, or the program's error."""
        wanted = self.fetches if only is None else {only: self.fetches[only]}
        graph = self.graph.as_graph_def()
        if only is not None:
            graph = self.tf.compat.v1.graph_util.extract_sub_graph(graph, [name.split(":")[0] for name in wanted[only]])
        names = {node.name for node in graph.node}
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "graph.pb").write_bytes(graph.SerializeToString())
            feeds = {f"in/{name}": value for name, value in self.feeds.items() if name in names}
            command = [program, "run", str(folder / "graph.pb"), "--device", "/device:CPU:0", "--no-calibration", "--output", str(folder / "out.npz")]
            if feeds:
                np.savez(folder / "in.npz", **feeds)
                command += ["--feeds", str(folder / "in.npz")]
            fetches = dict.fromkeys(name for names in wanted.values() for name in names)
            for name in fetches:
                command += ["--fetch", name]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
            if ended.returncode != 0:
                return ended.stderr.strip() or f"exit status {ended.returncode}"
            with np.load(folder / "out.npz") as archive:
                return {index: [archive[f"out/{name}"] for name in names] for index, names in wanted.items()}


def difference(call, wanted, found):
    """Returns how two lists of results differ, or None."""
    if len(wanted) != len(found):
        return f"{len(found)} results, expected {len(wanted)}"
    if call.check is not None:
        return call.check(wanted, found)
    for slot, (want, have) in enumerate(zip(wanted, found)):
        if want.dtype.kind in "OSU":
            if not np.all(have):
                return f"output {slot}: strings differ; expected {want.tolist()!r}"
            continue
        if have.dtype.kind == "V":
            have = have.view(bfloat16)
        if want.dtype != have.dtype or want.shape != have.shape:
            return f"output {slot} is {have.dtype}{list(have.shape)}, expected {want.dtype}{list(want.shape)}"
        tolerance = TOLERANCES.get(want.dtype.name, 0) if call.tolerance is None else call.tolerance
        if want.dtype.name not in TOLERANCES:
            if call.tolerance is None:
                differs = want != have
            else:
                differs = np.abs(want.astype(np.float64) - have.astype(np.float64)) > call.tolerance
        else:
            kind = np.complex128 if want.dtype.kind == "c" else np.float64
            want, have = want.astype(kind), have.astype(kind)
            with np.errstate(invalid="ignore", over="ignore"):
                close = np.abs(want - have) <= tolerance * np.maximum(1, np.abs(want))
            same = (want == have) | (np.isnan(want) & np.isnan(have))
            differs = ~(close | same)
        if np.any(differs):
            first = tuple(int(axis[0]) for axis in np.nonzero(differs)) if np.ndim(differs) else ()
            return f"output {slot}: {int(np.sum(differs))} of {want.size} differ, the first at {list(first)}: {have[first]!r}, expected {want[first]!r}"
    return None


def described(call):
    def of(value):
        if isinstance(value, list):
            return "[" + ", ".join(map(of, value)) + "]"
        value = np.asarray(value)
        shown = np.array2string(value, threshold=12, precision=4).replace("\n", "") if value.size <= 24 else ""
        return f"{value.dtype.name}{list(value.shape)}{shown}"

    inputs = ", ".join(f"{name}={of(value)}" for name, value in call.inputs.items())
    return inputs + "".join(f", {name}={value!r}" for name, value in call.attrs.items())


def compared(tf, program, op, n_calls, seed):
    """Prints how the calls of an op compare; returns the number of disagreements."""
    draw = Draw(seed + zlib.crc32(op.encode()))
    calls = [CALLS[op](draw) for _ in range(n_calls)]
    results = [expected(tf, op, call) for call in calls]
    batch, refused = Batch(tf, op), {}
    for index, (call, result) in enumerate(zip(calls, results)):
        are_constant = index % 2 == 0
        if isinstance(result, str):
            # Built alone, and with placeholders if TensorFlow refuses to build it.
            alone = Batch(tf, op)
            if alone.add(index, call, are_constant, result) or alone.add(index, call, False, result):
                refused[index] = alone
        elif not batch.add(index, call, are_constant, result) and not batch.add(index, call, False, result):
            print(f"  {op}: TensorFlow computes but does not build: {described(call)}")
    problems = []
    found = batch.run(program) if batch.fetches else {}
    for index in batch.fetches:
        alone = found if isinstance(found, dict) else batch.run(program, only=index)
        if isinstance(alone, str):
            problems.append((index, "refused: " + " | ".join(alone.splitlines()[:6])))
        elif (what := difference(calls[index], results[index], alone[index])) is not None:
            problems.append((index, what))
    for index, alone in refused.items():
        if isinstance(alone.run(program), dict):
            problems.append((index, f"computed, but TensorFlow refuses: {results[index]}"))
    n_compared = len(batch.fetches) + len(refused)
    print(f"{op}: {n_compared - len(problems)} of {n_compared} agree, {len(refused)} of them refusals")
    for index, what in problems:
        print(f"  call {index}: {described(calls[index])}\n    {what}")
    sys.stdout.flush()
    return len(problems)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default=str(ROOT / "target/release/placewright"))
    parser.add_argument("--op", nargs="*")
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for path in sorted(HERE.glob("calls_*.py")):
        importlib.import_module(path.stem)
    import tensorflow as tf

    ops = arguments.op or sorted(CALLS)
    n_problems = sum(compared(tf, arguments.program, op, arguments.calls, arguments.seed) for op in ops)
    print(f"{len(ops)} ops, {n_problems} disagreements")
    sys.exit(1 if n_problems else 0)


if __name__ == "__main__":
    main()
