"""TensorFlow behind the protocol of tests/peers: one JSON command per input line, one JSON answer per output line.

`Session.make_callable` is the fastest way that TensorFlow has to run a graph from Python. Thread pools belong to the process, so
the driver starts one process per number of threads and setting.
"""

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from additions import WIDTH, first_unread, inputs_of

v1 = tf.compat.v1


def config(threads, setting, optimizes):
    """`default`: concurrent ops, and parallel loops inside ops. `one-op`: loops only. `single-threaded`: the executor that starts each op
    on the caller's thread."""
    if setting not in ("default", "one-op", "single-threaded"):
        raise ValueError(f"`{setting}` is no setting; expected default, one-op, single-threaded")
    inter = threads if setting == "default" else 1
    made = v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=inter)
    if not optimizes:
        made.graph_options.rewrite_options.disable_meta_optimizer = True
        made.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0
    if setting == "single-threaded":
        made.experimental.executor_type = "SINGLE_THREADED_EXECUTOR"
    return made


def open_session(graph_def, threads, setting, optimizes):
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    return v1.Session(graph=graph, config=config(threads, setting, optimizes))


def tensor_name(entry):
    """Returns the tensor of an array: `in/x` and `in/x:0` both belong to `x:0`."""
    name = entry.split("/", 1)[1]
    return name if ":" in name else name + ":0"


class Model:
    """A model with its feeds and its expected results."""

    def __init__(self, command):
        archive = np.load(command["arrays"])
        self.tolerance = command["tolerance"]
        names = sorted(archive.files)
        self.feeds = [archive[name] for name in names if name.startswith("in/")]
        self.expected = [archive[name] for name in names if name.startswith("out/")]
        with open(command["graph"], "rb") as file:
            graph_def = v1.GraphDef.FromString(file.read())
        self.session = open_session(graph_def, command["threads"], command["setting"], True)
        element = lambda name: self.session.graph.as_graph_element(tensor_name(name))
        fetches = [element(name) for name in names if name.startswith("out/")]
        feeds = [element(name) for name in names if name.startswith("in/")]
        self.call = self.session.make_callable(fetches, feed_list=feeds)

    def run(self, number):
        started = time.perf_counter_ns()
        found = self.call(*[feed.copy() for feed in self.feeds])
        elapsed = time.perf_counter_ns() - started
        for found, expected in zip(found, self.expected):
            if not np.allclose(found, expected, rtol=self.tolerance, atol=self.tolerance):
                raise ValueError(f"an output differs from the expected one by up to {np.abs(found - expected).max()}")
        return elapsed


class Additions:
    """A graph of scalar additions; `done` runs after those that nothing reads, and the last one's sum is fetched."""

    def __init__(self, command):
        self.case, self.n_nodes = command["case"], command["nodes"]
        graph_def = v1.GraphDef()
        graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION

        def add(name, op, inputs, attr):
            node = graph_def.node.add(name=name, op=op)
            node.input.extend(inputs)
            if attr:
                node.attr[attr].type = v1.dtypes.float32.as_datatype_enum
            return node

        add("x", "Placeholder", [], "dtype").attr["shape"].shape.SetInParent()
        for index in range(self.n_nodes):
            add(f"a{index}", "AddV2", inputs_of(self.case, index), "T")
        unread = range(first_unread(self.case, self.n_nodes), self.n_nodes)
        add("done", "NoOp", [f"^a{index}" for index in unread], None)
        self.session = open_session(graph_def, command["threads"], command["setting"], False)
        graph = self.session.graph
        fetches = [graph.get_tensor_by_name(f"a{self.n_nodes - 1}:0"), graph.get_operation_by_name("done")]
        self.call = self.session.make_callable(fetches, feed_list=[graph.get_tensor_by_name("x:0")])

    def run(self, number):
        x = np.float32(number % 8)
        started = time.perf_counter_ns()
        found = self.call(x)[0]
        elapsed = time.perf_counter_ns() - started
        if found != self.sum_of(x):
            raise ValueError(f"fed {x}, the sum is {found}")
        return elapsed

    def sum_of(self, x):
        if self.case == "chain":
            return x * np.float32(self.n_nodes + 1)  # exact: an integer below 2^24
        return x * np.float32(2.0) ** (1 if self.case == "independent" else -(-self.n_nodes // WIDTH))


def repeat(work, ms):
    """Repeats work for a while, at least three times, and returns the sorted times."""
    end = time.perf_counter_ns() + ms * 1_000_000
    times = []
    while len(times) < 3 or time.perf_counter_ns() < end:
        times.append(work.run(len(times)))
    return sorted(times)


class Worker:
    def __init__(self):
        self.open = None

    def answer(self, command):
        kind = command["do"]
        if kind == "hello":
            return {"framework": "TensorFlow", "version": tf.__version__}
        if kind in ("open-model", "open-dag"):
            self.close()
            started = time.perf_counter_ns()
            work = Model(command) if kind == "open-model" else Additions(command)
            load = time.perf_counter_ns() - started
            first = work.run(0)
            self.open = work
            return {"load_ns": load, "first_ns": first}
        if kind == "turn":
            if not self.open:
                raise ValueError("nothing is open; send `open-model` or `open-dag` first")
            times = repeat(self.open, command["ms"])
            quantile = lambda part: times[max(-int(-len(times) * part // 1), 1) - 1]
            return {"runs": len(times), "median_ns": quantile(0.5), "p90_ns": quantile(0.9), "min_ns": times[0]}
        if kind == "close":
            self.close()
            return {}
        raise ValueError(f"`{kind}` is no command of this worker")

    def close(self):
        if self.open:
            self.open.session.close()
            self.open = None


def main():
    worker = Worker()
    for line in sys.stdin:
        try:
            answer = worker.answer(json.loads(line))
        except Exception as error:  # the protocol: an error is an answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
