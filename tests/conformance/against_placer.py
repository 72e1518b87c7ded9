"""Compares the policy `priority` with the placer of the installed TensorFlow, on random graphs.

    python against_placer.py [--program target/release/placewright] [--graphs 2000] [--seed 0]

Needs TensorFlow 2.21: earlier placers lack a rule, that of matching identities. Each graph is placed by a session, which places all
of it when it is extended and logs the device of every node; nothing runs, so no optimizer has changed the graph before. The
GraphDef goes to the session as it is: Python's `import_graph_def` would spell requested devices anew. The same bytes go to
`placewright place --policy priority --strict-policy --nodes --json`. A graph that the one refuses must be refused by the other.

Prints every difference with its graph, and how often each rule had something to decide. Exit status 1 if there is a difference.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

# Placements are logged at level INFO.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

FLOAT, INT32, RESOURCE = 1, 3, 20
ROOT = pathlib.Path(__file__).resolve().parents[2]
TASK = "/job:localhost/replica:0/task:0"
LOGGED = re.compile(r"placer\.cc:\d+\] (\S+): \((\w+)\): (/job:\S+)$")


class Draw:
    """A random graph. Most can be placed, some cannot."""

    def __init__(self, seed):
        from tensorflow.core.framework import graph_pb2

        self.random = random.Random(seed)
        self.n_devices = self.random.randint(1, 12)
        self.is_soft = self.random.random() < 0.25
        self.graph = graph_pb2.GraphDef()
        self.graph.versions.producer = 2000
        # By type of output: (tensor name, node name).
        self.floats, self.ints, self.resources = [], [], []
        # Tensors of unknown shape, which may be split.
        self.placeholders = []
        self.names = []
        # Most graphs request few devices, so that requests coincide.
        self.share_asked = self.random.choice([0.1, 0.3, 0.5, 0.7])
        self.asked = [self.request() for _ in range(self.random.choice([1, 1, 2, 3]))]
        for _ in range(self.random.randint(2, 30)):
            self.add_random()
        if self.random.random() < 0.3:
            self.shuffle()

    def request(self):
        index = self.random.randrange(self.n_devices)
        if self.random.random() < 0.02:
            index += self.n_devices
        spellings = [
            f"/device:CPU:{index}",
            f"/cpu:{index}",
            f"/device:cpu:{index}",
            f"{TASK}/device:CPU:{index}",
            f"/job:localhost/cpu:{index}",
            f"/task:0/device:CPU:{index}",
            "/device:CPU:*",
            f"/device:*:{index}",
            "/job:localhost",
            f"/job:localhost/replica:0/task:0/cpu:{index}",
        ]
        return self.random.choices(spellings, [6, 4, 1, 3, 1, 1, 1, 1, 1, 1])[0]

    def node(self, op, inputs=(), **types):
        node = self.graph.node.add()
        node.name = f"n{len(self.names)}"
        node.op = op
        node.input.extend(inputs)
        for attr, dtype in types.items():
            node.attr[attr].type = dtype
        # Most identities are left to the placer.
        share = self.share_asked * (0.2 if op == "Identity" else 1)
        if self.random.random() < share:
            node.device = self.random.choice(self.asked)
        if self.names and self.random.random() < 0.08:
            for _ in range(self.random.choice([1, 1, 2])):
                waited_for = self.random.choice(self.names)
                node.input.append(f"^{waited_for}")
        if self.random.random() < 0.06:
            mate = self.random.choice(self.names + ["g0", "g1"])
            node.attr["_class"].list.s.append(f"loc:@{mate}".encode())
        self.names.append(node.name)
        return node

    def float_input(self):
        """Recent tensors are read more often, so that there are chains."""
        if self.random.random() < 0.5:
            return self.random.choice(self.floats[-3:])
        return self.random.choice(self.floats)

    def add_random(self):
        kinds = ["source", "unary", "binary", "identity", "metadata", "split", "variable", "no_op"]
        weights = [4, 6, 3, 9, 3, 1, 2, 1]
        if not self.floats:
            return self.add_source()
        getattr(self, "add_" + self.random.choices(kinds, weights)[0])()

    def add_source(self):
        if self.random.random() < 0.5:
            node = self.node("Placeholder", dtype=FLOAT)
            self.placeholders.append(node.name)
        else:
            node = self.constant(FLOAT, 1.0)
        self.floats.append(node.name)

    def constant(self, dtype, value):
        node = self.node("Const", dtype=dtype)
        tensor = node.attr["value"].tensor
        tensor.dtype = dtype
        tensor.tensor_shape.SetInParent()
        (tensor.float_val if dtype == FLOAT else tensor.int_val).append(value)
        return node

    def add_unary(self):
        node = self.node(self.random.choice(["Relu", "Neg"]), [self.float_input()], T=FLOAT)
        self.floats.append(node.name)

    def add_binary(self):
        first = self.float_input()
        second = first if self.random.random() < 0.15 else self.float_input()
        self.floats.append(self.node("AddV2", [first, second], T=FLOAT).name)

    def add_identity(self):
        """Adds a chain of identities."""
        tensor = self.float_input()
        for _ in range(self.random.choice([1, 1, 1, 2, 3])):
            tensor = self.node("Identity", [tensor], T=FLOAT).name
        self.floats.append(tensor)

    def add_metadata(self):
        op = self.random.choice(["Shape", "Size", "Rank"])
        if self.ints and self.random.random() < 0.3:
            node = self.node(op, [self.random.choice(self.ints)], T=INT32)
        else:
            node = self.node(op, [self.float_input()], T=FLOAT)
        self.ints.append(node.name)

    def add_split(self):
        if not self.placeholders:
            return self.add_unary()
        dim = self.constant(INT32, 0)
        node = self.node("Split", [dim.name, self.random.choice(self.placeholders)], T=FLOAT)
        node.attr["num_split"].i = 2
        self.floats += [node.name, node.name + ":1"]

    def add_variable(self):
        if not self.resources or self.random.random() < 0.4:
            node = self.node("VarHandleOp", dtype=FLOAT)
            node.attr["shape"].shape.SetInParent()
            node.attr["shared_name"].s = node.name.encode()
            self.resources.append(node.name)
            return
        handle = self.random.choice(self.resources)
        kind = self.random.choice(["read", "assign", "identity"])
        if kind == "read":
            self.floats.append(self.node("ReadVariableOp", [handle], dtype=FLOAT).name)
        elif kind == "assign":
            self.node("AssignVariableOp", [handle, self.float_input()], dtype=FLOAT)
        else:
            self.resources.append(self.node("Identity", [handle], T=RESOURCE).name)

    def add_no_op(self):
        self.node("NoOp")

    def shuffle(self):
        """Changes the order in the file; producers need not come first."""
        nodes = list(self.graph.node)
        self.random.shuffle(nodes)
        del self.graph.node[:]
        self.graph.node.extend(nodes)

    def text(self):
        lines = [f"{self.n_devices} devices, {'soft' if self.is_soft else 'hard'}"]
        for node in self.graph.node:
            group = [name.decode() for name in node.attr["_class"].list.s] if "_class" in node.attr else []
            lines.append(f"  {node.name} = {node.op}({', '.join(node.input)}) {node.device} {' '.join(group)}".rstrip())
        return "\n".join(lines)


def placed_by_tensorflow(tf, session_api, draw):
    """Returns the device by node name, or the error."""
    graph = tf.Graph()
    options = session_api.TF_NewImportGraphDefOptions()
    # A group may have a name that no node has.
    session_api.TF_ImportGraphDefOptionsSetValidateColocationConstraints(options, False)
    try:
        with graph._c_graph.get() as c_graph:
            serialized = session_api.TF_NewBufferFromString(draw.graph.SerializeToString())
            try:
                session_api.TF_GraphImportGraphDefWithResults(c_graph, serialized, options)
            finally:
                session_api.TF_DeleteBuffer(serialized)
    except tf.errors.OpError as error:
        raise SystemExit(f"a graph that TensorFlow cannot read: {error}\n{draw.text()}") from error
    finally:
        session_api.TF_DeleteImportGraphDefOptions(options)
    config = tf.compat.v1.ConfigProto(
        device_count={"CPU": draw.n_devices},
        allow_soft_placement=draw.is_soft,
        log_device_placement=True,
        intra_op_parallelism_threads=1,
        inter_op_parallelism_threads=1,
    )
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    log = tempfile.TemporaryFile()
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(log.fileno(), 2)
    problem = None
    try:
        session = tf.compat.v1.Session(graph=graph, config=config)
        try:
            session._extend_graph()
        except tf.errors.OpError as error:
            problem = error.message
        session.close()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    log.seek(0)
    placed = {}
    for line in log.read().decode(errors="replace").splitlines():
        found = LOGGED.search(line)
        if found:
            placed[found[1]] = found[3]
    log.close()
    return problem or placed


def placed_by_program(program, folder, number, draw):
    """Returns the device by node name, or the error."""
    path = pathlib.Path(folder) / f"{number}.pb"
    path.write_bytes(draw.graph.SerializeToString())
    command = [program, "place", path, "--device-count", f"CPU={draw.n_devices}", "--no-calibration"]
    command += ["--policy", "priority", "--strict-policy", "--nodes", "--json"]
    if draw.is_soft:
        command.append("--soft-placement")
    env = dict(os.environ, TF_ENABLED_DEVICE_TYPES="CPU", PLACEWRIGHT_CACHE_DIR=str(pathlib.Path(folder) / "cache"))
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    path.unlink()
    if done.returncode == 1:
        return done.stderr.strip() or done.stdout.strip()
    if done.returncode != 0:
        raise SystemExit(f"{command} ended with {done.returncode}: {done.stderr}\n{draw.text()}")
    return {node["name"]: node["device"] for node in json.loads(done.stdout)["nodes"]}


def matching_identities(draw):
    """Returns the identities to which the rule applies, to check that the graphs have some."""
    nodes = {node.name: node for node in draw.graph.node}
    ends = collections.defaultdict(list)
    for node in draw.graph.node:
        controls = {name for name in node.input if name.startswith("^")}
        for name in [name for name in node.input if name not in controls] + sorted(controls):
            ends[name.lstrip("^").split(":")[0]].append(node.device)
    found = []
    for node in draw.graph.node:
        if node.op == "Identity" and not node.device and len(node.input) == 1:
            start = nodes[node.input[0].split(":")[0]].device
            if (ends[node.name] or [""]) == [start]:
                found.append(node.name)
    return found


def keep_stdout():
    """Returns a copy of standard output, and discards what TensorFlow prints there, also from C++."""
    ours = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    sys.stdout = ours


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=ROOT / "target/release/placewright")
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    keep_stdout()

    import tensorflow as tf
    from tensorflow.python.client import pywrap_tf_session as session_api

    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        draws = (Draw(f"{arguments.seed}/{number}") for number in range(arguments.graphs))
        jobs = ((n, draw, pool.submit(placed_by_program, arguments.program, folder, n, draw)) for n, draw in enumerate(draws))
        window = collections.deque()

        def compare():
            number, draw, job = window.popleft()
            theirs, ours = placed_by_tensorflow(tf, session_api, draw), job.result()
            counts["graphs"] += 1
            counts["nodes"] += len(draw.graph.node)
            followers = matching_identities(draw)
            counts["matching identities"] += len(followers)
            if isinstance(theirs, dict):
                first = f"{TASK}/device:CPU:0"
                counts["matching identities off the first device"] += sum(theirs[name] != first for name in followers)
            if isinstance(theirs, str) or isinstance(ours, str):
                counts["refused"] += 1
                if not (isinstance(theirs, str) and isinstance(ours, str)):
                    counts["differ"] += 1
                    print(f"graph {number}: TensorFlow says {theirs}\nplacewright says {ours}\n{draw.text()}\n", flush=True)
                return
            differing = {name: (device, ours.get(name)) for name, device in theirs.items() if ours.get(name) != device}
            if differing or len(theirs) != len(ours):
                counts["differ"] += 1
                for name, (device, found) in differing.items():
                    print(f"graph {number}: {name} is on {found}, TensorFlow has it on {device}")
                if len(theirs) != len(ours):
                    print(f"graph {number}: {len(ours)} nodes, TensorFlow placed {len(theirs)}")
                print(draw.text() + "\n", flush=True)

        for job in jobs:
            window.append(job)
            if len(window) > 8:
                compare()
        while window:
            compare()
    print(f"TensorFlow {tf.__version__}, " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    return 1 if counts["differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
