"""Placewright as the subject: one GraphDef contains a batch of cases, each with its own placeholders, and the program runs it.

A case that is refused is named by the error; the rest of the batch is run again without it.
"""

import math
import re
import resource
import subprocess
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np

import wire
from cases import NUMBERS_OF_TYPES, kind

SECONDS_MAX = 120
MEMORY_MAX = 6 << 30


def add_case(graph, name, case, feeds):
    """Appends the nodes of one case; returns the names of its outputs."""
    inputs = []
    for argument, arrays in case.inputs.items():
        for index, array in enumerate(arrays):
            source = f"{name}_{argument}_{index}"
            dtype = NUMBERS_OF_TYPES[kind(array)]
            if argument in case.fixed:
                graph.append(wire.node(source, "Const", [], {"dtype": wire.dtype(dtype), "value": wire.tensor(dtype, array)}))
            else:
                shape = wire.shape(None if case.hides_shapes else array.shape)
                graph.append(wire.node(source, "Placeholder", [], {"dtype": wire.dtype(dtype), "shape": shape}))
                feeds[f"in/{source}:0"] = array
            inputs.append(source)
    attrs = {attr: wire.attribute(value) for attr, value in case.attrs.items()}
    graph.append(wire.node(name, case.op, inputs, attrs))
    return [f"{name}:{slot}" for slot in range(case.n_outputs)]


def limits():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))


class Subject:
    """The program at `path`."""

    def __init__(self, path):
        self.path = path
        self.folder = tempfile.TemporaryDirectory()

    def run(self, cases):
        """Returns (True, arrays) or (False, the error) per case."""
        answers, left = {}, dict(enumerate(cases))
        while left:
            found = self.attempt(left)
            if isinstance(found, dict):
                answers.update(found)
                break
            named = self.named(found, left)
            if named is not None:
                answers[named] = (False, found)
                del left[named]
            elif len(left) == 1:
                answers[next(iter(left))] = (False, found)
                break
            else:
                # The failing case is unknown: run each half separately.
                keys = list(left)
                for half in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
                    answers.update({half[i]: answer for i, answer in enumerate(self.run([left[key] for key in half]))})
                break
        return [answers[index] for index in range(len(cases))]

    @staticmethod
    def named(error, left):
        found = re.findall(r"\bcase(\d+)(?:_\w+)?\b", error)
        known = [int(index) for index in found if int(index) in left]
        return known[0] if known else None

    def attempt(self, cases):
        """Returns all outputs, or the error of one of them."""
        folder = Path(self.folder.name)
        graph, feeds, fetches = [], {"in/nothing": np.zeros(1, np.float32)}, {}
        for index, case in cases.items():
            fetches[index] = add_case(graph, f"case{index}", case, feeds)
        graph.append(wire.node("nothing", "Placeholder", [], {"dtype": wire.dtype(1), "shape": wire.shape((1,))}))
        (folder / "graph.pb").write_bytes(wire.graph(graph))
        np.savez(folder / "feeds.npz", **feeds)
        command = [self.path, "run", folder / "graph.pb", "--feeds", folder / "feeds.npz", "--output", folder / "out.npz", "--no-calibration"]
        command += ["--threads", "1", "--json", "--device-count", "SYCL=0"]
        command += [argument for names in fetches.values() for name in names for argument in ("--fetch", name)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=SECONDS_MAX, preexec_fn=limits, check=False)
        except subprocess.TimeoutExpired:
            return f"the program takes more than {SECONDS_MAX} s"
        if done.returncode:
            text = (done.stderr + done.stdout).decode(errors="replace").strip()
            return text if done.returncode in (1, 2) else f"the program ends with {done.returncode}: {text}"
        with np.load(folder / "out.npz") as found:
            arrays = {name: restored(found, f"out/{name}") for names in fetches.values() for name in names}
        return {index: (True, [arrays[name] for name in names]) for index, names in fetches.items()}


def restored(archive, name):
    """NumPy has no name for bfloat16 in archives, and no arrays of more than 64 dimensions: those are flattened."""
    try:
        array = archive[name]
    except ValueError:
        with archive.zip.open(f"{name}.npy") as file:
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            array = np.frombuffer(file.read(), dtype)
            assert array.size == math.prod(shape), (name, shape)
    return array.view(ml_dtypes.bfloat16) if array.dtype.kind == "V" else array
