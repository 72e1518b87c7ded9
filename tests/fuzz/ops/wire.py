"""Writes GraphDefs: the few messages of tensorflow/core/framework that a graph of single ops needs, in protobuf's wire format.

TensorFlow's own classes would do, but they belong to its process, which some cases end.
"""

import struct

import numpy as np


def varint(value):
    value &= (1 << 64) - 1
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def number(field, value):
    return varint(field << 3) + varint(value)


def message(field, data):
    return varint(field << 3 | 2) + varint(len(data)) + data


def text(field, value):
    return message(field, value.encode())


def shape(dims):
    """An attribute; `None` = unknown rank."""
    return message(7, shape_of(dims))


def shape_of(dims):
    if dims is None:
        return number(3, 1)
    return b"".join(message(2, number(1, dim)) for dim in dims)


def dtype(value):
    return number(6, value)


def tensor(of_type, array):
    content = np.ascontiguousarray(array).tobytes()
    return message(8, number(1, of_type) + message(2, shape_of(array.shape)) + message(4, content))


def attribute(value):
    """An AttrValue of a Python value; ("type", name) is an element type."""
    from cases import NUMBERS_OF_TYPES

    if isinstance(value, tuple):
        return dtype(NUMBERS_OF_TYPES[value[1]])
    if isinstance(value, bool):
        return number(5, int(value))
    if isinstance(value, int):
        return number(3, value)
    if isinstance(value, float):
        return varint(4 << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, str):
        return text(2, value)
    if isinstance(value, list):
        return message(1, message(3, b"".join(varint(item) for item in value)) if value else b"")
    raise TypeError(f"an attribute of {type(value)}")


def node(name, op, inputs, attrs):
    made = text(1, name) + text(2, op) + b"".join(text(3, source) for source in inputs)
    for key, value in attrs.items():
        made += message(5, text(1, key) + message(2, value))
    return made


def graph(nodes):
    """Nodes, and a version that TensorFlow 2.21 reads."""
    return b"".join(message(1, one) for one in nodes) + message(4, number(1, 1395))
