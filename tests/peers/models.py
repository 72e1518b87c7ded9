"""Makes the inputs of the peers: models with all weights as .pb and .onnx, their arrays as plain files, graphs of additions.

    models.py SOURCE TARGET NODES MODEL..

SOURCE has MODEL.skel.pb, MODEL.json and for some models MODEL.npz, as described in tests/models/README.md; TARGET gets
MODEL.pb, MODEL.onnx, MODEL.arrays.json with its arrays, and CASE-NODES.onnx for the graphs of additions. What is there
already is kept. Without MODEL.npz, TensorFlow computes the outputs of random inputs.
"""

import json
import hashlib
import logging
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import onnx
import tensorflow as tf
import tf2onnx
from onnx import TensorProto, helper

import loops
from additions import inputs_of
from procedural import procedural


def expand(skeleton):
    """Expands a skeleton to an ordinary GraphDef."""
    graph = tf.compat.v1.GraphDef.FromString(skeleton)
    for node in graph.node:
        if "_proc" not in node.attr:
            continue
        value = node.attr["value"].tensor
        shape = [dim.size for dim in value.tensor_shape.dim]
        value.tensor_content = procedural(node.attr["_proc"].s.decode(), shape).tobytes()
        del node.attr["_proc"]
    return graph


def tensor_name(name):
    return name if ":" in name else name + ":0"


def digest(paths):
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).hexdigest()


def write_arrays(archive, folder, model):
    """Writes each array of the archive as a file of little-endian elements, and a list of them."""
    listed = {"inputs": [], "outputs": []}
    for index, entry in enumerate(sorted(archive.files)):
        side, name = entry.split("/", 1)
        array = archive[entry]
        file = f"{model}.{index}.bin"
        (folder / file).write_bytes(array.astype(array.dtype.newbyteorder("<")).tobytes())
        row = {"name": tensor_name(name), "dtype": array.dtype.name, "shape": list(array.shape), "file": file}
        listed["inputs" if side == "in" else "outputs"].append(row)
    (folder / f"{model}.arrays.json").write_text(json.dumps(listed, indent=1))


def convert(graph, archive, target, model):
    """Writes the graph as ONNX. A graph that cannot be converted has no .onnx."""
    (target / f"{model}.onnx").unlink(missing_ok=True)
    entries = [entry.split("/", 1) for entry in sorted(archive.files)]
    inputs, outputs = ([tensor_name(name) for side, name in entries if side == wanted] for wanted in ("in", "out"))
    try:
        converted, _ = tf2onnx.convert.from_graph_def(graph, input_names=inputs, output_names=outputs, opset=18)
        onnx.save(converted, target / f"{model}.onnx")
    except Exception as error:  # noqa: BLE001: whatever the converter raises
        print(f"{model} cannot be converted: {error}", flush=True)


def make_archive(graph, described, path):
    """Writes random inputs, and the outputs that TensorFlow computes for them."""
    draw = np.random.default_rng(1)
    fed = {}
    for name, spec in described["inputs"].items():
        # Indices and masks: 0 and 1 are valid in all of them.
        numbers = draw.integers(0, 2, spec["shape"]) if spec["dtype"].startswith("int") else draw.random(spec["shape"])
        fed[tensor_name(name)] = numbers.astype(spec["dtype"])
    fetches = [tensor_name(name) for name in described["outputs"]]
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph, name="")
        with tf.compat.v1.Session(graph=imported) as session:
            found = session.run(fetches, fed)
    arrays = {f"in/{name}": array for name, array in fed.items()}
    np.savez(path, **arrays, **{f"out/{name}": array for name, array in zip(fetches, found)})


def write_model(source, target, model):
    paths = [target / f"{model}{end}" for end in (".pb", ".arrays.json")]
    given = source / f"{model}.npz"
    sources = [source / f"{model}.skel.pb", Path(__file__)] + [given] * given.exists()
    made_of, stamp = digest(sources), target / f"{model}.made-of"
    if stamp.exists() and stamp.read_text() == made_of and all(path.exists() for path in paths):
        return
    stamp.unlink(missing_ok=True)
    graph = expand((source / f"{model}.skel.pb").read_bytes())
    paths[0].write_bytes(graph.SerializeToString())
    if not given.exists():
        given = target / f"{model}.npz"
        make_archive(graph, json.loads((source / f"{model}.json").read_text()), given)
    archive = np.load(given)
    write_arrays(archive, target, model)
    convert(graph, archive, target, model)
    stamp.write_text(made_of)  # Last: what was interrupted is made again.
    print(f"made {model}", flush=True)


def write_loops(target, model):
    """Writes a graph of loops.py."""
    stamp = target / f"{model}.made-of"
    made_of = digest([Path(__file__), Path(loops.__file__)])
    if stamp.exists() and stamp.read_text() == made_of:
        return
    stamp.unlink(missing_ok=True)
    graph, arrays = loops.LOOPS[model]()
    (target / f"{model}.pb").write_bytes(graph.SerializeToString())
    np.savez(target / f"{model}.npz", **arrays)
    archive = np.load(target / f"{model}.npz")
    write_arrays(archive, target, model)
    convert(graph, archive, target, model)
    stamp.write_text(made_of)  # Last: what was interrupted is made again.
    print(f"made {model}", flush=True)


def write_additions(target, case, n_nodes):
    path = target / f"{case}-{n_nodes}.onnx"
    if path.exists():
        return
    nodes = [helper.make_node("Add", inputs_of(case, index), [f"a{index}"]) for index in range(n_nodes)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [])
    last = helper.make_tensor_value_info(f"a{n_nodes - 1}", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, case, [x], [last])
    unfinished = path.with_suffix(".unfinished")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), unfinished)
    unfinished.rename(path)


def main():
    source, target, n_nodes, *models = sys.argv[1:]
    source, target = Path(source), Path(target)
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    target.mkdir(parents=True, exist_ok=True)
    for case in ("chain", "independent", "layered"):
        write_additions(target, case, int(n_nodes))
    for model in models:
        if model in loops.LOOPS:
            write_loops(target, model)
        else:
            write_model(source, target, model)


if __name__ == "__main__":
    main()
