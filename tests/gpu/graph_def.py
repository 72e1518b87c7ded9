"""Reads a frozen TensorFlow GraphDef without TensorFlow or protobuf: the wire format, and the parts of its messages that models need.

Fields are those of tensorflow/core/framework/{graph,node_def,attr_value,tensor,tensor_shape,types}.proto.
"""

import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "peers"))

from procedural import procedural

DTYPES = {1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 9: "int64", 10: "bool", 19: "float16"}


@dataclass
class Node:
    name: str = ""
    op: str = ""
    inputs: list = field(default_factory=list)
    attrs: dict = field(default_factory=dict)


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data):
    """Yields number and value of each field of a message: integers, or bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = data[at : at + 8], at + 8
        elif kind == 2:
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
        elif kind == 5:
            value, at = data[at : at + 4], at + 4
        else:
            raise ValueError(f"field {number} has wire type {kind}, which no GraphDef has")
        if at > len(data):
            raise ValueError(f"field {number} is longer than its message")
        yield number, value


def signed(value):
    return value - (1 << 64) if value >> 63 else value


def packed(value, parse):
    """A repeated number: packed, or one by one."""
    if isinstance(value, int):
        return [parse(value)]
    numbers, at = [], 0
    while at < len(value):
        number, at = varint(value, at)
        numbers.append(parse(number))
    return numbers


def shape(data):
    """Returns the sizes, -1 if one is unknown; None if the rank is unknown."""
    sizes = []
    for number, value in fields(data):
        if number == 2:
            sizes.append(next((signed(size) for at, size in fields(value) if at == 1), 0))
        elif number == 3 and value:
            return None
    return sizes


def tensor(data):
    """Returns an array; `None` in place of missing elements."""
    dtype, sizes, content, values = "float32", [], b"", []
    for number, value in fields(data):
        if number == 1:
            if value not in DTYPES:
                raise ValueError(f"a constant of TensorFlow's type {value}, which this reader does not know")
            dtype = DTYPES[value]
        elif number == 2:
            sizes = shape(value)
        elif number == 4:
            content = value
        elif number == 5:  # float_val
            values += struct.unpack(f"<{len(value) // 4}f", value)
        elif number == 6:  # double_val
            values += struct.unpack(f"<{len(value) // 8}d", value)
        elif number in (7, 10, 11):  # int_val, int64_val, bool_val
            values += packed(value, signed)
    if content:
        return np.frombuffer(content, dtype).reshape(sizes).copy()
    n_elements = int(np.prod(sizes, dtype=np.int64))
    if not values:
        return (np.dtype(dtype), sizes)
    # The last value is repeated for all that follow.
    values += values[-1:] * (n_elements - len(values))
    return np.array(values[:n_elements], dtype).reshape(sizes)


def attr(data):
    for number, value in fields(data):
        if number == 1:  # list: of integers or strings
            listed = [(at, entry) for at, entry in fields(value)]
            numbers = [entry for at, part in listed if at == 3 for entry in packed(part, signed)]
            return numbers or [part.decode() for at, part in listed if at == 2]
        if number == 2:
            return value.decode("latin-1")
        if number == 3:
            return signed(value)
        if number == 4:
            return struct.unpack("<f", value)[0]
        if number == 5:
            return bool(value)
        if number == 6:
            return DTYPES.get(value, value)
        if number == 7:
            return shape(value)
        if number == 8:
            return tensor(value)
    return None


def read(path):
    """Returns the nodes of a GraphDef. Constants have their elements in `attrs["value"]`."""
    with open(path, "rb") as file:
        data = file.read()
    nodes = []
    for number, value in fields(data):
        if number != 1:
            continue
        node = Node()
        for at, part in fields(value):
            if at == 1:
                node.name = part.decode()
            elif at == 2:
                node.op = part.decode()
            elif at == 3:
                node.inputs.append(part.decode())
            elif at == 5:
                entry = dict(fields(part))
                node.attrs[entry[1].decode()] = attr(entry.get(2, b""))
        constant = node.attrs.get("value")
        if node.op == "Const" and isinstance(constant, tuple):
            dtype, sizes = constant
            formula = node.attrs.get("_proc")
            node.attrs["value"] = procedural(formula, sizes) if formula else np.zeros(sizes, dtype)
        nodes.append(node)
    return nodes
