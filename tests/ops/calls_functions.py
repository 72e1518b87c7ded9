"""Calls of functions of one or two numbers, and of their gradients."""

import numpy as np

from draw import COMPLEX
from draw import INTEGERS
from draw import REALS
from draw import Call
from draw import calls

SINGLE = [np.float32, np.float64]
PARTS = {np.complex64: np.float32, np.complex128: np.float64}
# Relative to the larger of 1 and the number; polynomials differ in the last digits.
LOOSE = {np.float32: 4e-5, np.float64: 1e-11}


@calls("Complex")
def complex_of(draw, _):
    dtype = draw.choice(SINGLE)
    shape = draw.shape()
    other = shape[draw.int(0, len(shape)) :]
    out = {np.float32: np.complex64, np.float64: np.complex128}[dtype]
    return Call({"real": draw.array(dtype, shape), "imag": draw.array(dtype, other)}, {"Tout": out})


@calls("Real", "Imag", "Angle", "ComplexAbs")
def part(draw, op):
    dtype = draw.choice(COMPLEX)
    name = "x" if op == "ComplexAbs" else "input"
    return Call({name: draw.array(dtype, draw.shape())}, {"Tout": PARTS[dtype]})


@calls("Conj", "ConjugateTranspose")
def conjugate(draw, op):
    values = draw.array(draw.choice(COMPLEX + SINGLE if op == "ConjugateTranspose" else COMPLEX), draw.shape())
    if op == "Conj":
        return Call({"input": values})
    return Call({"x": values, "perm": draw.random.permutation(values.ndim).astype(np.int32)})


BESSEL = ["BesselI0", "BesselI1", "BesselI0e", "BesselI1e", "BesselJ0", "BesselJ1", "Dawsn", "Expint", "FresnelCos", "FresnelSin", "Spence"]


@calls(*BESSEL, "BesselK0", "BesselK1", "BesselK0e", "BesselK1e", "BesselY0", "BesselY1")
def bessel(draw, op):
    dtype = draw.choice(SINGLE)
    low = 0.01 if op[-2:] in ("K0", "K1", "Y0", "Y1") or op[-1] == "e" and "K" in op else -12
    return Call({"x": draw.array(dtype, draw.shape(), low, 12)}, tolerance=LOOSE[dtype])


@calls("Erfinv", "Ndtri")
def inverse(draw, op):
    dtype = draw.choice(SINGLE)
    return Call({"x": draw.array(dtype, draw.shape(), 0 if op == "Ndtri" else -1, 1)}, tolerance=LOOSE[dtype])


@calls("NextAfter")
def next_after(draw, _):
    dtype = draw.choice(SINGLE)
    shape = draw.shape()
    return Call({"x1": draw.array(dtype, shape), "x2": draw.array(dtype, shape[draw.int(0, len(shape)) :])}, tolerance=0.0)


@calls("Xlogy", "Xlog1py", "Xdivy", "MulNoNan", "DivNoNan")
def guarded(draw, op):
    dtype = draw.choice((REALS if op in ("MulNoNan", "DivNoNan") else [np.float16] + SINGLE) + COMPLEX)
    shape = draw.shape()
    x, y = draw.array(dtype, shape), draw.array(dtype, shape[draw.int(0, len(shape)) :], 0.1, 4)
    zeros = draw.random.random(x.shape) < 0.3
    x = np.where(zeros, np.zeros_like(x), x)
    if op.endswith("NoNan") and draw.bool():
        y = np.where(draw.random.random(y.shape) < 0.3, np.zeros_like(y), y)
    return Call({"x": x, "y": y})


@calls("ReluGrad", "Relu6Grad", "EluGrad", "SeluGrad", "LeakyReluGrad", "SoftplusGrad", "SoftsignGrad")
def activation_gradient(draw, op):
    dtype = draw.choice(REALS)
    shape = draw.shape()
    name = "outputs" if op in ("EluGrad", "SeluGrad") else "features"
    attrs = {"alpha": draw.choice([0.0, 0.2, 1.5])} if op == "LeakyReluGrad" else {}
    return Call({"gradients": draw.array(dtype, shape), name: draw.array(dtype, shape, -8, 8)}, attrs)


@calls("SigmoidGrad", "TanhGrad", "InvGrad", "ReciprocalGrad", "SqrtGrad", "RsqrtGrad")
def function_gradient(draw, _):
    dtype = draw.choice(REALS + COMPLEX)
    shape = draw.shape()
    return Call({"y": draw.array(dtype, shape, 0.5, 2), "dy": draw.array(dtype, shape)})


@calls("L2Loss")
def l2_loss(draw, _):
    return Call({"t": draw.array(draw.choice(REALS), draw.shape())})


@calls("PopulationCount", "Invert")
def bits(draw, _):
    return Call({"x": draw.array(draw.choice(INTEGERS), draw.shape(), -100, 100)})


@calls("BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift", "RightShift")
def bitwise(draw, op):
    dtype = draw.choice(INTEGERS)
    shape = draw.shape()
    y = draw.array(dtype, shape[draw.int(0, len(shape)) :], 0 if "Shift" in op else -100, 7 if "Shift" in op else 100)
    return Call({"x": draw.array(dtype, shape, -100, 100), "y": y})
