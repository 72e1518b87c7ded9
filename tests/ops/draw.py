"""What random calls of ops are drawn from; `compare.py` runs them."""

import dataclasses
from typing import Callable

import ml_dtypes
import numpy as np

bfloat16 = ml_dtypes.bfloat16

REALS = [np.float16, bfloat16, np.float32, np.float64]
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
NUMBERS = REALS + INTEGERS
COMPLEX = [np.complex64, np.complex128]
ARITHMETIC = NUMBERS + COMPLEX
ELEMENTS = ARITHMETIC + [np.bool_]
INDICES = [np.int32, np.int64]

# Op name to a function that draws a call of it.
CALLS = {}


@dataclasses.dataclass
class Call:
    """Arguments of an op by name; an argument of several tensors is a list."""

    inputs: dict
    attrs: dict = dataclasses.field(default_factory=dict)
    # Allowed deviation, relative to the larger of 1 and the expected number.
    tolerance: float | None = None
    # Compares the results itself: returns what is wrong, or None.
    check: Callable | None = None


def calls(*ops):
    """Registers a function as what draws calls of these ops."""

    def register(function):
        for op in ops:
            CALLS[op] = lambda draw, op=op: function(draw, op)
        return function

    return register


class Draw:
    """A source of random attributes, shapes and values."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)

    def int(self, low, high):
        """Returns an integer of `low..=high`."""
        return int(self.random.integers(low, high, endpoint=True))

    def choice(self, values):
        return values[self.int(0, len(values) - 1)]

    def bool(self, probability=0.5):
        return bool(self.random.random() < probability)

    def shape(self, rank_min=0, rank_max=4, size_max=4, zeros=0.05):
        """Returns dimensions of 1 to `size_max`; few are 0."""
        rank = self.int(rank_min, rank_max)
        return [0 if self.bool(zeros) else self.int(1, size_max) for _ in range(rank)]

    def array(self, dtype, shape, low=-4, high=4):
        """Returns numbers of `low..high`: whole ones for integers, which are not negative if unsigned."""
        dtype = np.dtype(dtype)
        if dtype.kind == "b":
            return self.random.random(shape) < 0.5
        if dtype.kind in "iu":
            low = max(low, 0) if dtype.kind == "u" else low
            return self.random.integers(int(low), int(high), shape, endpoint=True).astype(dtype)
        values = self.random.uniform(low, high, shape)
        if dtype.kind == "c":
            values = values + 1j * self.random.uniform(low, high, shape)
        return np.asarray(values).astype(dtype)

    def strings(self, shape, n=5):
        words = [bytes([97 + index]) * (index % 3) for index in range(n)]
        return np.array([self.choice(words) for _ in range(int(np.prod(shape)))], dtype=object).reshape(shape)

    def elements(self, dtype, shape, low=-4, high=4):
        """Like `array`, for strings too."""
        return self.strings(shape) if dtype is object else self.array(dtype, shape, low, high)
