"""Makes ../cases/partition_graph.json from the partitions that TensorFlow reports.

    python make_cases.py RUN.json... > ../cases/partition_graph.json

One RUN.json per graph, made in a session with four CPU devices, without soft placement, grappler off, optimizer level L0:

    options = tf.compat.v1.RunOptions(output_partition_graphs=True)
    metadata = tf.compat.v1.RunMetadata()
    session.run(fetches, feeds, options, metadata)
    json.dump({"name": ..., "feeds": {name: value}, "fetches": [...], "targets": [...],
               "partition_graphs": [MessageToDict(graph, preserving_proto_field_name=True)
                                    for graph in metadata.partition_graphs]}, file)

`NAME.graph.pb` beside this script is the GraphDef that the session was made of. A case says, per device, which nodes run there
and what each reads: `NODE:SLOT` or `^NODE` of the same device, the same with `from DEVICE` where a receive stands between, and
`fed` where it comes from the caller (`_Arg`). Control that crosses (a constant, a pair and an identity) is one `^NODE from
DEVICE`. `transfers` are the send/receive pairs with their element types, without those that carry feeds and fetches between the
caller's device and others; for these `fed` lists the devices that read a feed, `fetches` the device that a fetch stands on.
"""

import base64
import json
import os
import sys

TASK = "/job:localhost/replica:0/task:0/device:"


def short(device):
    assert device.startswith(TASK), device
    return device[len(TASK):]


def text(node, attr):
    return base64.b64decode(node["attr"][attr]["s"]).decode()


def with_slot(tensor):
    return tensor if ":" in tensor else tensor + ":0"


def is_transfer(node):
    return node["op"] in ("_Send", "_HostSend", "_Recv", "_HostRecv")


def case(run):
    nodes = {node["name"]: node for graph in run["partition_graphs"] for node in graph["node"]}
    names = {name.rsplit(":", 1)[0] for name in run["feeds"]}
    sends = {}
    for node in nodes.values():
        if node["op"] in ("_Send", "_HostSend"):
            key = text(node, "tensor_name"), node["attr"]["recv_device"]["s"]
            assert key not in sends, key
            sends[key] = node

    def fed(tensor):
        """Returns the feed of an `_Arg`."""
        node = nodes.get(tensor.split(":")[0])
        if node is None or node["op"] != "_Arg":
            return None
        name = node["name"][len("_arg_"):].rsplit("_", 2)[0]
        assert name in names, node["name"]
        return name + ":0"

    def source(tensor):
        """Returns the source of a receive: tensor or control, and the sending device, if any."""
        node = nodes[tensor.split(":")[0]]
        if node["op"] not in ("_Recv", "_HostRecv"):
            return with_slot(tensor), None
        key = text(node, "tensor_name"), node["attr"]["recv_device"]["s"]
        send = sends[key]
        sent = send["input"][0]
        origin = nodes[sent.split(":")[0]]
        if origin["op"] == "Const" and "/ctrl/_" in origin["name"]:
            sent = origin["input"][0]
            assert sent.startswith("^")
            return sent, short(send["device"])
        return with_slot(sent), short(send["device"])

    def spelled(tensor):
        if tensor.startswith("^"):
            node = nodes[tensor[1:]]
            if node["op"] == "Identity" and nodes[node["input"][0]]["op"] == "_Recv":
                name, device = source(node["input"][0])
                return f"{name} from {device}"
            return tensor
        name, device = source(tensor)
        feed = fed(name)
        if feed is not None:
            return f"{feed} fed"
        return name if device is None else f"{name} from {device}"

    partitions, transfers, readers, fetches = {}, [], {}, {}
    for node in nodes.values():
        device = short(node["device"])
        inputs = [spelled(tensor) for tensor in node.get("input", [])]
        if node["op"] in ("_Send", "_HostSend"):
            payload = node["input"][0]
            origin = nodes[payload.split(":")[0]]
            is_control = origin["op"] == "Const" and "/ctrl/_" in origin["name"]
            to = short(base64.b64decode(node["attr"]["recv_device"]["s"]).decode())
            if fed(payload) is None and not text(node, "_dst").startswith("_retval_"):
                what = origin["input"][0] if is_control else with_slot(payload)
                dtype = "" if is_control else " " + node["attr"]["T"]["type"][len("DT_"):].lower()
                transfers.append(f"{what}{dtype} {device} -> {to}")
        elif node["op"] == "_Retval":
            name, device_of = source(node["input"][0])
            fetches[name] = device_of or device
        elif is_transfer(node) or node["op"] == "_Arg" or "/ctrl/_" in node["name"]:
            pass
        elif node["op"] == "Identity" and nodes[node["input"][0].split(":")[0]]["op"] == "_Recv" and "/_" in node["name"]:
            pass
        else:
            data = [name for name in inputs if not name.startswith("^")]
            control = sorted(name for name in inputs if name.startswith("^"))
            partitions.setdefault(device, {})[node["name"]] = data + control
            for name in data:
                if name.endswith(" fed"):
                    readers.setdefault(name[: -len(" fed")], set()).add(device)
    return {
        "id": f"partition_graph/{run['name']}",
        "area": "partition_graph",
        "source": "partition graphs of a session with four CPU devices",
        "verified": "tensorflow-cpu 2.21.0",
        "graph": f"{run['name']}.graph.pb",
        "n_cpus": 4,
        "feeds": sorted(with_slot(name) for name in run["feeds"]),
        "fetches": run["fetches"],
        "targets": run["targets"],
        "expect": {
            "partitions": {device: dict(sorted(partitions[device].items())) for device in sorted(partitions)},
            "transfers": sorted(transfers),
            "fed": {name: sorted(devices) for name, devices in sorted(readers.items())},
            "fetches": fetches,
        },
    }


cases = [json.dumps(case(json.load(open(path)))) for path in sys.argv[1:]]
print("[\n" + ",\n".join(cases) + "\n]")
