"""Runs small graphs in TensorFlow and in placewright, and compares their outputs.

A case is a function that builds ops in the current graph and returns the tensors to fetch. All
cases of a family are in one graph. TensorFlow runs them one by one, so a case may fail; those that
run are fetched in one call of `placewright run`. Those that TensorFlow refuses must be refused.
"""

import os
import pathlib
import re
import subprocess
import tempfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2

v1 = tf.compat.v1
OFF = rewriter_config_pb2.RewriterConfig.OFF


class Case:
    def __init__(self, op, build, ulps=0):
        self.op, self.build, self.ulps = op, build, ulps
        self.fetches, self.expected, self.error = None, None, None


def session(graph):
    config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    rewrite = config.graph_options.rewrite_options
    rewrite.disable_meta_optimizer = True
    rewrite.constant_folding = OFF
    config.graph_options.optimizer_options.opt_level = -1
    return v1.Session(graph=graph, config=config)


def expect(cases):
    """Builds all cases in one graph, and stores what TensorFlow computes."""
    graph = tf.Graph()
    with graph.as_default():
        for index, case in enumerate(cases):
            with tf.name_scope(f"c{index}"):
                try:
                    outputs = case.build()
                    case.fetches = [tf.identity(output).name for output in outputs]
                except Exception as error:  # noqa: BLE001: any refusal counts
                    case.error = str(error)
    with session(graph) as run:
        for case in cases:
            if case.error is None:
                try:
                    case.expected = run.run(case.fetches)
                except Exception as error:  # noqa: BLE001
                    case.error = getattr(error, "message", str(error))
    return graph


def run(program, graph, fetches, folder):
    path, out = folder / "graph.pb", folder / "out.npz"
    path.write_bytes(graph)
    command = [program, "run", str(path), "--policy", "priority", "--device-count", "SYCL=0,GPU=0",
               "--no-calibration", "--output", str(out)]
    for fetch in fetches:
        command += ["--fetch", fetch]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode not in (0, 3):
        return None, done.stderr.strip()
    with np.load(out) as arrays:
        return [arrays[f"out/{fetch}"] for fetch in fetches], None


def array(value):
    """Returns an output of TensorFlow as an array; strings are objects."""
    is_string = isinstance(value, bytes) or value.dtype == object
    return np.array(value, object) if is_string else np.asarray(value)


def difference(found, expected, ulps):
    if expected.dtype == object:
        found = np.array([bytes(x) for x in found.reshape(-1)], object).reshape(found.shape)
    elif expected.dtype.name == "bfloat16":
        found = found.view(expected.dtype)
    if found.shape != expected.shape:
        return f"shape {found.shape}, expected {expected.shape}"
    if found.dtype != expected.dtype:
        return f"type {found.dtype}, expected {expected.dtype}"
    if found.size == 0 or expected.dtype in (object, bool) or expected.dtype.kind in "iu":
        same = np.array_equal(found, expected)
    else:
        a, b = (x.astype(np.float64 if x.dtype.kind != "c" else x.dtype) for x in (found, expected))
        if ulps == 0:
            same = np.array_equal(a, b, equal_nan=True)
        else:
            eps = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23}
            eps = ulps * eps.get(expected.dtype.name, 2**-52)
            same = np.allclose(a, b, rtol=eps, atol=eps / 8, equal_nan=True)
    if same:
        return None
    where = np.flatnonzero((found != expected).reshape(-1))[:3]
    return "; ".join(f"[{i}] {found.reshape(-1)[i]!r}, expected {expected.reshape(-1)[i]!r}"
                     for i in where)


def prune(graph, fetches):
    """Returns the bytes of the part of the graph that these fetches need."""
    names = [fetch.split(":")[0] for fetch in fetches]
    return v1.graph_util.extract_sub_graph(graph, names).SerializeToString()


def compare(program, cases, n_refusals=None, verbose=False):
    """Prints each difference; returns the numbers of agreements and differences per op."""
    graph_def = expect(cases).as_graph_def()
    score = {case.op: [0, 0] for case in cases}

    def report(case, problem):
        score[case.op][1] += 1
        print(f"{case.op} (c{cases.index(case)}): {problem}")

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        pending = [case for case in cases if case.error is None]
        while pending:
            fetches = [fetch for case in pending for fetch in case.fetches]
            found, error = run(program, prune(graph_def, fetches), fetches, folder)
            if error is None:
                arrays = iter(found)
                for case in pending:
                    pairs = [(next(arrays), array(e)) for e in case.expected]
                    problems = [difference(f, e, case.ulps) for f, e in pairs]
                    problems = [problem for problem in problems if problem]
                    if problems:
                        report(case, problems[0])
                    else:
                        score[case.op][0] += 1
                break
            named = re.search(r"`?\bc(\d+)(?:_\d+)?/", error)
            case = cases[int(named[1])] if named else pending[0]
            if case not in pending:
                case = pending[0]
            report(case, f"refused: {error[:400]}")
            pending.remove(case)
        refused = [case for case in cases if case.error is not None and case.fetches]
        for case in refused[:n_refusals]:
            _, error = run(program, prune(graph_def, case.fetches), case.fetches, folder)
            if error is None:
                report(case, f"not refused; TensorFlow: {case.error}")
            else:
                score[case.op][0] += 1
                if verbose:
                    print(f"{case.op}: {error[:300]!r}\n    TensorFlow: {case.error!r}")
    return score
