"""Constants that a model defines by a formula; tests/models/README.md has the formulas."""

import numpy as np


def procedural(formula, sizes):
    """Returns the values that `_proc` defines, bit by bit as in tests/models/README.md."""
    kind, seed, low, span = formula.split(":")
    if kind != "fmix32":
        raise ValueError(f"unknown formula {formula}")
    low, span = (np.uint32(int(bits, 16)).view(np.float32) for bits in (low, span))
    x = np.arange(np.prod(sizes, dtype=np.int64), dtype=np.uint32)
    x += np.uint32(int(seed) * 0x9E3779B9 & 0xFFFFFFFF)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    unit = (x >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    return (span * unit + low).reshape(sizes)
