"""Calls of special functions, of ops on sequences, of simulated quantization, and of cells of recurrent networks."""

import numpy as np

from draw import ARITHMETIC
from draw import ELEMENTS
from draw import INDICES
from draw import REALS
from draw import Call
from draw import bfloat16
from draw import calls

# TensorFlow computes in the type itself, with some thousand ulps of error in float.
ROUGH = {np.float16: 2e-2, np.float32: 2e-3, np.float64: 1e-9}


@calls("Lgamma", "Digamma")
def gamma(draw, _):
    dtype = draw.choice([np.float16, np.float32, np.float64])
    return Call({"x": draw.array(dtype, draw.shape(0, 3), 0.1 if draw.bool() else -4, 9)}, tolerance=ROUGH[dtype])


@calls("Igamma", "Igammac")
def incomplete_gamma(draw, _):
    dtype = draw.choice([np.float32, np.float64])
    shape = draw.shape(0, 3)
    return Call({"a": draw.array(dtype, shape, -0.2, 9), "x": draw.array(dtype, shape[draw.int(0, len(shape)) :], -0.2, 12)}, tolerance=ROUGH[dtype])


@calls("Zeta")
def zeta(draw, _):
    dtype = draw.choice([np.float32, np.float64])
    shape = draw.shape(0, 3)
    return Call({"x": draw.array(dtype, shape, 0.8, 6), "q": draw.array(dtype, shape, -0.2, 9)}, tolerance=ROUGH[dtype])


@calls("Polygamma")
def polygamma(draw, _):
    dtype = draw.choice([np.float32, np.float64])
    shape = draw.shape(0, 3)
    orders = np.round(draw.array(dtype, shape, -0.6, 4))
    return Call({"a": orders.astype(dtype), "x": draw.array(dtype, shape, 0.5, 9)}, tolerance=ROUGH[dtype])


@calls("Betainc")
def betainc(draw, _):
    dtype = draw.choice([np.float32, np.float64])
    shape = draw.shape(1, 3)
    a, b = (draw.array(dtype, draw.choice([shape, []]), 0.1, 9) for _ in range(2))
    return Call({"a": a, "b": b, "x": draw.array(dtype, shape, 0, 1.02)}, tolerance=ROUGH[dtype])


@calls("EuclideanNorm")
def norm(draw, _):
    dtype = draw.choice(ARITHMETIC)
    shape = draw.shape(0, 4)
    axes = draw.random.permutation(len(shape))[: draw.int(0, len(shape))].astype(draw.choice(INDICES))
    tolerance = 3e-2 if np.dtype(dtype).itemsize == 2 and np.dtype(dtype).kind not in "iu" else None
    return Call({"input": draw.array(dtype, shape, -2, 2), "axis": axes}, {"keep_dims": draw.bool()}, tolerance=tolerance)


@calls("CumulativeLogsumexp")
def cumulative(draw, _):
    dtype = draw.choice(REALS)
    x = draw.array(dtype, draw.shape(1, 3))
    axis = draw.choice(INDICES)(draw.int(-x.ndim, x.ndim - 1))
    tolerance = {np.float16: 1e-2, bfloat16: 6e-2}.get(dtype)
    return Call({"x": x, "axis": axis}, {"exclusive": draw.bool(), "reverse": draw.bool()}, tolerance=tolerance)


@calls("Bitcast")
def bitcast(draw, _):
    dtype, to = draw.choice(ARITHMETIC), draw.choice(ARITHMETIC)
    ratio = np.dtype(to).itemsize // np.dtype(dtype).itemsize
    shape = draw.shape(0, 3) + ([ratio if draw.bool(0.9) else ratio + 1] if ratio > 1 else [])
    return Call({"input": draw.array(dtype, shape, 1, 4)}, {"type": to})


@calls("DecodeRaw")
def decode_raw(draw, _):
    to = draw.choice([np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.float16, bfloat16, np.float32, np.float64, np.complex64, np.bool_])
    n = draw.int(0, 3) * np.dtype(to).itemsize + draw.bool(0.1)
    shape = draw.shape(0, 2, 3, 0.02)
    # Small bytes: no NaN, and booleans that are true.
    strings = [bytes(draw.int(0, 1 if to == np.bool_ else 60) for _ in range(n)) for _ in range(int(np.prod(shape)))]
    return Call({"bytes": np.array(strings, dtype=object).reshape(shape)}, {"out_type": to, "little_endian": draw.bool()})


@calls("LinSpace")
def linear_space(draw, _):
    dtype = draw.choice([np.float32, np.float64])
    ends = [dtype(draw.random.uniform(-5, 5)) for _ in range(2)]
    return Call({"start": ends[0], "stop": ends[1], "num": draw.choice(INDICES)(draw.int(0, 9))})


@calls("Reverse")
def reverse(draw, _):
    # TensorFlow refuses some empty tensors.
    shape = draw.shape(0, 4, zeros=0)
    return Call({"tensor": draw.elements(draw.choice(ELEMENTS + [object]), shape), "dims": draw.array(np.bool_, [len(shape)])})


@calls("ReverseSequence")
def reverse_sequence(draw, _):
    shape = draw.shape(2, 4)
    sequence, batch = draw.random.permutation(len(shape))[:2]
    lengths = draw.array(draw.choice(INDICES), [shape[batch]], 0, shape[sequence] + draw.bool(0.05))
    return Call({"input": draw.elements(draw.choice(ELEMENTS + [object]), shape), "seq_lengths": lengths}, {"seq_dim": int(sequence), "batch_dim": int(batch)})


@calls("Roll")
def roll(draw, _):
    shape = draw.shape(1, 4)
    n = draw.choice([[], [draw.int(0, 4)]])
    shift, axis = draw.array(draw.choice(INDICES), n, -9, 9), draw.array(draw.choice(INDICES), n, -len(shape), len(shape) - 1)
    return Call({"input": draw.elements(draw.choice(ELEMENTS + [object]), shape), "shift": shift, "axis": axis})


@calls("BiasAddV1")
def bias_add(draw, _):
    dtype = draw.choice(ARITHMETIC)
    shape = draw.shape(2, 4)
    return Call({"value": draw.array(dtype, shape), "bias": draw.array(dtype, shape[-1:])})


@calls("FakeQuantWithMinMaxArgs", "FakeQuantWithMinMaxVars", "FakeQuantWithMinMaxVarsPerChannel")
def fake_quantization(draw, op):
    shape = draw.shape(1, 4, zeros=0.02)
    inputs = {"inputs": draw.array(np.float32, shape, -8, 8)}
    attrs = {"num_bits": draw.int(2, 10), "narrow_range": draw.bool()}
    n = shape[-1:] if op.endswith("Channel") else []
    low, high = draw.array(np.float32, n, -6, 0), draw.array(np.float32, n, 0.1, 6)
    if draw.bool(0.1):
        low, high = low * 0, high * 0
    if op.endswith("Args"):
        attrs |= {"min": float(low), "max": float(high)}
    else:
        inputs |= {"min": low, "max": high}
    return Call(inputs, attrs, tolerance=1e-4)


@calls("LSTMBlockCell")
def lstm(draw, _):
    dtype = draw.choice([np.float16, np.float32])
    batch, n_inputs, n = draw.int(1, 3), draw.int(1, 4), draw.int(1, 4)
    shapes = {"x": [batch, n_inputs], "cs_prev": [batch, n], "h_prev": [batch, n], "w": [n_inputs + n, 4 * n], "wci": [n], "wcf": [n], "wco": [n], "b": [4 * n]}
    attrs = {"forget_bias": draw.choice([0.0, 1.0]), "cell_clip": draw.choice([-1.0, 0.5, 3.0]), "use_peephole": draw.bool()}
    return Call({name: draw.array(dtype, shape, -2, 2) for name, shape in shapes.items()}, attrs, tolerance=3e-2 if dtype == np.float16 else 1e-4)


@calls("CTCGreedyDecoder")
def decode(draw, _):
    steps, batch, classes = draw.int(1, 6), draw.int(0, 3), draw.int(1, 4)
    inputs = draw.array(draw.choice([np.float32, np.float64]), [steps, batch, classes])
    lengths = draw.array(np.int32, [batch], 0, steps + draw.bool(0.05))
    return Call({"inputs": inputs, "sequence_length": lengths}, {"merge_repeated": draw.bool(), "blank_index": draw.int(-classes, classes - 1)})


@calls("SoftmaxCrossEntropyWithLogits")
def cross_entropy(draw, _):
    dtype = draw.choice(REALS)
    shape = draw.shape(2, 2, 5)
    labels = draw.array(dtype, draw.choice([shape, [1, shape[1]]]), 0, 1)
    return Call({"features": draw.array(dtype, shape), "labels": labels}, tolerance={np.float16: 2e-2, bfloat16: 2e-1}.get(dtype))


@calls("SparseSoftmaxCrossEntropyWithLogits")
def sparse_cross_entropy(draw, _):
    dtype = draw.choice(REALS)
    rows, classes = draw.int(0, 4), draw.int(1, 5)
    labels = draw.array(draw.choice(INDICES), [rows], 0, classes - 1)
    return Call({"features": draw.array(dtype, [rows, classes]), "labels": labels}, tolerance={np.float16: 2e-2, bfloat16: 2e-1}.get(dtype))
