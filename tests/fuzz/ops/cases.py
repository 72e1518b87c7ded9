"""Random calls of single ops: attributes, types, shapes, values.

Case `k` of seed `s` is the same on every machine: each has a generator of its own.
"""

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

FLOATS = ["float", "double", "half", "bfloat16"]
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
COMPLEX = ["complex64", "complex128"]
NUMBERS = FLOATS + INTS + COMPLEX
ALL = NUMBERS + ["bool"]
NUMPY = {
    "float": np.float32, "double": np.float64, "half": np.float16, "bfloat16": ml_dtypes.bfloat16, "bool": np.bool_,
    "complex64": np.complex64, "complex128": np.complex128, **{name: np.dtype(name).type for name in INTS},
}
# DataType of types.proto.
NUMBERS_OF_TYPES = {
    "float": 1, "double": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "complex64": 8, "int64": 9, "bool": 10,
    "bfloat16": 14, "uint16": 17, "complex128": 18, "half": 19, "uint32": 22, "uint64": 23,
}


@dataclass
class Case:
    op: str
    inputs: dict = field(default_factory=dict)  # name -> arrays, one unless the input is a list
    lists: set = field(default_factory=set)
    attrs: dict = field(default_factory=dict)
    inferred: set = field(default_factory=set)  # attributes that TensorFlow's Python takes from the inputs
    fixed: set = field(default_factory=set)  # inputs that are constants of the graph rather than fed
    hides_shapes: bool = False  # whether placeholders have no shape
    n_outputs: int = 1
    n_compared: int | None = None  # outputs that TensorFlow gives values; all where it is None
    slack: float = 1.0  # how much more than one rounding a result may be off
    is_sum: bool = False  # whether terms may cancel, so that errors are measured by the largest
    largest: float = 0.0  # of such terms, where it is no input and no output

    def is_list(self, name):
        return name in self.lists

    def dtypes(self):
        return sorted({kind(array) for arrays in self.inputs.values() for array in arrays})

    def arrays(self):
        return [array for arrays in self.inputs.values() for array in arrays]

    def typed(self, **types):
        """Adds type attributes that follow from the inputs."""
        self.attrs.update({name: ("type", dtype) for name, dtype in types.items()})
        self.inferred |= set(types)
        return self

    def asked(self, **types):
        """Adds type attributes given by the caller."""
        self.attrs.update({name: ("type", dtype) for name, dtype in types.items()})
        return self

    def __str__(self):
        inputs = ", ".join(f"{name}: " + " ".join(f"{kind(a)}{list(a.shape)}" for a in arrays) for name, arrays in self.inputs.items())
        attrs = ", ".join(f"{name}={value[1] if isinstance(value, tuple) else value}" for name, value in self.attrs.items())
        return f"{self.op}({inputs}; {attrs})"


def kind(array):
    """Returns TensorFlow's name of an array's type."""
    return next(name for name, dtype in NUMPY.items() if np.dtype(dtype) == array.dtype)


class Draw:
    """Draws the parts of cases."""

    def __init__(self, seed, index):
        self.rng = np.random.default_rng([seed, index])

    def one(self, options):
        return options[int(self.rng.integers(len(options)))]

    def chance(self, p):
        return self.rng.random() < p

    def int(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def shape(self, rank_max=4, least=0, most=5, rank_min=0):
        rank = self.int(rank_min, rank_max)
        if rank_max >= 4 and rank_min <= 6 and self.chance(0.03):
            rank = self.int(6, 9)
            most = min(most, 2)
        dims = [self.int(max(least, 1), max(most, 1)) for _ in range(rank)]
        if least == 0 and dims and self.chance(0.07):
            dims[self.int(0, rank - 1)] = 0
        if dims and self.chance(0.08):
            dims[-1] = self.int(max(least, 1), 70)
        return dims

    def pair(self):
        """Draws two shapes that usually broadcast."""
        whole = self.shape()
        if self.chance(0.04):
            return whole, self.shape()
        cut = [1 if self.chance(0.25) else dim for dim in whole]
        other = [1 if self.chance(0.25) else dim for dim in whole]
        cut, other = cut[self.drop(len(cut)):], other[self.drop(len(other)):]
        return cut, other

    def drop(self, rank):
        return self.int(0, rank) if self.chance(0.3) else 0

    def values(self, dtype, shape, style=None):
        style = style or self.one(["plain", "plain", "plain", "small", "special", "wide"])
        n = int(np.prod(shape, dtype=np.int64))
        rng = self.rng
        if dtype == "bool":
            return rng.integers(0, 2, shape).astype(np.bool_)
        if dtype in COMPLEX:
            part = "float" if dtype == "complex64" else "double"
            both = [self.values(part, shape, style) for _ in range(2)]
            made = np.empty(shape, NUMPY[dtype])
            made.real, made.imag = both
            return made
        if dtype in INTS:
            info = np.iinfo(NUMPY[dtype])
            if style in ("plain", "small"):
                return rng.integers(max(info.min, -9), 10, shape).astype(NUMPY[dtype])
            if style == "wide":
                return rng.integers(info.min, info.max, shape, dtype=NUMPY[dtype], endpoint=True)
            return rng.choice(np.array([info.min, info.max, 0, 1, info.min + 1, info.max - 1], NUMPY[dtype]), shape)
        if style == "plain":
            numbers = rng.normal(size=n) * 2
        elif style == "small":
            numbers = rng.integers(-4, 5, n).astype(float)
        elif style == "wide":
            limit = 4 if dtype == "half" else 30
            numbers = rng.normal(size=n) * 10.0 ** rng.uniform(-limit, limit, n)
        else:
            info = ml_dtypes.finfo(NUMPY[dtype])
            special = [np.inf, -np.inf, np.nan, 0.0, -0.0, float(info.max), float(info.min), float(info.tiny), 1.0, -1.0, 0.5, 3.0]
            numbers = np.where(rng.random(n) < 0.5, rng.choice(np.array(special), n), rng.normal(size=n))
        with np.errstate(all="ignore"):
            return numbers.reshape(shape).astype(NUMPY[dtype])

    def array(self, dtype, shape, style=None):
        return [self.values(dtype, shape, style)]

    def index(self, values, dtype=None):
        """Draws integers for sizes or axes."""
        return [np.array(values, NUMPY[dtype or self.one(["int32", "int64"])])]

    def axis(self, rank):
        if self.chance(0.04):
            return self.one([rank, -rank - 1, rank + 3])
        return self.int(-rank, rank - 1) if rank else self.one([0, -1])


def wrong(draw, size):
    """Draws a size, or sometimes one that does not fit."""
    if draw.chance(0.05):
        return max(0, size + draw.one([-1, 1, 2]))
    return size


UNARY = {
    "x": "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Erfc Exp Expm1 Floor Inv Invert IsFinite IsInf IsNan Log Log1p Neg "
    "OnesLike Reciprocal Rint Round Rsqrt Sigmoid Sign Sin Sinh Sqrt Square Tan Tanh ZerosLike LogicalNot",
    "features": "Elu Relu Relu6 Selu Softplus Softsign LeakyRelu",
    "input": "Conj Identity Snapshot StopGradient PreventGradient Real Imag Angle",
}
BINARY = (
    "Add AddV2 Sub Mul Div RealDiv TruncateDiv FloorDiv Mod FloorMod TruncateMod Maximum Minimum SquaredDifference DivNoNan Pow Atan2 "
    "BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift Less LessEqual Greater GreaterEqual Equal NotEqual LogicalAnd LogicalOr"
)
COSTLY = {"Pow": 40, "Acosh": 8, "Tan": 8, "Erfc": 30, "Erf": 8, "Asinh": 4, "Atanh": 8, "Log1p": 4, "Tanh": 4, "Sigmoid": 4}


def unary(draw, op, argument, types):
    dtype = draw.one(types)
    case = Case(op, {argument: draw.array(dtype, draw.shape())}, slack=COSTLY.get(op, 4))
    if op == "LeakyRelu":
        case.attrs["alpha"] = float(np.float32(draw.one([0.2, 0.0, -1.0, 2.0])))
    if op == "LogicalNot":
        return case
    if op in ("Real", "Imag", "Angle"):
        case.asked(Tout="float" if dtype == "complex64" else "double")
    if dtype in COMPLEX:
        case.slack, case.is_sum = 200, True
    # TensorFlow computes exp(x) - 1, which has no digits of its own near 0.
    if op in ("Elu", "Selu"):
        case.is_sum, case.largest = True, 1.0
    return case.typed(T=dtype)


def binary(draw, op, types):
    dtype = draw.one(types)
    left, right = draw.pair()
    style = draw.one([None, "plain"])
    names = ("y", "x") if op == "Atan2" else ("x", "y")
    arrays = [draw.array(dtype, shape, style) for shape in (left, right)]
    case = Case(op, dict(zip(names, arrays)), slack=COSTLY.get(op, 4))
    if op in ("LogicalAnd", "LogicalOr"):
        return case
    if op in ("Equal", "NotEqual") and draw.chance(0.1):
        case.attrs["incompatible_shape_error"] = False
    if op == "Pow" and dtype in INTS:
        case.inputs["y"] = [np.abs(case.inputs["y"][0]) % NUMPY[dtype](9)]
    if op in ("LeftShift", "RightShift"):
        # Beyond the width, C++ leaves the result undefined.
        case.inputs["y"] = [draw.rng.integers(0, 8 * np.dtype(NUMPY[dtype]).itemsize, right).astype(NUMPY[dtype])]
    if op in ("Mod", "FloorMod", "TruncateMod", "FloorDiv", "TruncateDiv", "Div") and dtype in INTS and draw.chance(0.9):
        divisor = case.inputs["y"][0]
        case.inputs["y"] = [np.where(divisor == 0, NUMPY[dtype](3), divisor)]
    if dtype in COMPLEX:
        case.slack, case.is_sum = 200, True
    return case.typed(T=dtype)


def families(types_of):
    """Returns all families: a weight and a function of a `Draw`. `types_of(op, attr)` returns the types for which TensorFlow has kernels."""
    known = []

    def types(op, attr="T", wanted=ALL):
        return [name for name in types_of(op).get(attr, wanted) if name in wanted] or wanted

    for argument, names in UNARY.items():
        for op in names.split():
            found = ["bool"] if op == "LogicalNot" else COMPLEX if op in ("Real", "Imag", "Angle", "Conj") else types(op, wanted=FLOATS) if op == "LeakyRelu" else types(op, wanted=FLOATS + COMPLEX) if op == "Acos" else types(op)
            known.append((op, lambda draw, op=op, argument=argument, found=found: unary(draw, op, argument, found)))
    known.append(("ComplexAbs", lambda draw: complex_abs(draw)))
    known.append(("Complex", complex_of))
    for op in BINARY.split():
        found = ["bool"] if op.startswith("Logical") else types(op)
        known.append((op, lambda draw, op=op, found=found: binary(draw, op, found)))
    from families import families as others

    known.extend(others(types))
    return known


def complex_abs(draw):
    dtype = draw.one(COMPLEX)
    case = Case("ComplexAbs", {"x": draw.array(dtype, draw.shape())}, slack=8).typed(T=dtype)
    return case.asked(Tout="float" if dtype == "complex64" else "double")


def complex_of(draw):
    dtype = draw.one(["float", "double"])
    left, right = draw.pair()
    case = Case("Complex", {"real": draw.array(dtype, left), "imag": draw.array(dtype, right)}).typed(T=dtype)
    return case.asked(Tout="complex64" if dtype == "float" else "complex128")
