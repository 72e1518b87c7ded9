"""Special functions, gradients of functions, cells of recurrent networks, rows and formats."""

import numpy as np
import tensorflow as tf
from record import Recorder

RECORDER = Recorder(__file__)
RANDOM = np.random.default_rng(5)

ABOVE_ZERO = "BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Expint Spence".split()
ANY = "BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 Dawsn FresnelCos FresnelSin".split()
PROBABILITIES = "Ndtri Erfinv".split()
SPECIAL = np.array([0.0, -0.0, 1.0, np.inf, np.nan])


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def main():
    call = RECORDER.call
    for names, numbers in (
        (ABOVE_ZERO, RANDOM.uniform(0.01, 9, 40)),
        (ANY, RANDOM.normal(0, 4, 40)),
        (PROBABILITIES, RANDOM.uniform(0.001, 0.999, 40)),
    ):
        for op in names:
            # Single precision loses digits where a function has large derivatives.
            call("numbers", op, {"x": numbers})
            call("special values", op, {"x": SPECIAL})
            call("of single precision", op, {"x": np.float32([0.25, 0.5, 0.75])})
    call("below zero", "BesselK0", {"x": np.array([-1.0])})
    call("below zero", "BesselY1", {"x": np.array([-1.0])})
    x, y = normal(3, 4), normal(4)
    for dtype in (np.float32, np.float64):
        pair = np.array([1, 1, 0, -0.0, np.nan, 3], dtype), np.array([2, 0, 0, 1, 1, 3], dtype)
        call(dtype.__name__, "NextAfter", {"x1": pair[0], "x2": pair[1]})
    call("broadcast", "NextAfter", {"x1": x, "x2": y})
    call("numbers", "Xlog1py", {"x": np.float32([0, 2, 0, 3]), "y": np.float32([-1, 0.5, np.nan, 1e-6])})
    call("complex", "Xlog1py", {"x": np.complex64([0, 2 + 1j]), "y": np.complex64([-1, 0.5j])})
    for dtype in (np.int8, np.uint16, np.int32, np.int64):
        call(dtype.__name__, "PopulationCount", {"x": np.array([0, 1, 77, -1]).astype(dtype)})
    for dtype in (np.float32, np.float64):
        call(dtype.__name__, "L2Loss", {"t": RANDOM.integers(-3, 4, (2, 3)).astype(dtype)})
    call("nothing", "L2Loss", {"t": np.zeros([0], np.float32)})
    wave = (normal(2, 3, 4) + 1j * normal(2, 3, 4)).astype(np.complex64)
    call("complex", "ConjugateTranspose", {"x": wave, "perm": np.int32([2, 0, 1])})
    call("real", "ConjugateTranspose", {"x": normal(2, 3), "perm": np.int64([1, 0])})
    numbers = np.float64([-1.5, -0.5, 0.25, 0.5, 2, 7])
    after = np.float64([1, 2, -1, 0.5, 3, 1])
    for op in "TanhGrad SigmoidGrad SqrtGrad RsqrtGrad ReciprocalGrad InvGrad".split():
        call("numbers", op, {"y": numbers, "dy": after})
        call("complex", op, {"y": numbers * (1 + 0.5j), "dy": after * (1 - 2j)})
    for op in "EluGrad SeluGrad".split():
        call("numbers", op, {"gradients": after, "outputs": numbers})
    for op in "SoftplusGrad SoftsignGrad ReluGrad Relu6Grad LeakyReluGrad".split():
        call("numbers", op, {"gradients": after, "features": numbers})
    call("integers", "ReluGrad", {"gradients": np.int32([1, 2, 3]), "features": np.int32([-1, 0, 1])})
    call("alpha", "LeakyReluGrad", {"gradients": after, "features": numbers}, alpha=0.5)
    call("other shapes", "ReluGrad", {"gradients": np.float32([1]), "features": np.float32([1, 2])}, "must have the same shape")
    beams()
    cells()
    rows()
    windows()
    for op in ("DataFormatVecPermute", "DataFormatDimMap"):
        for source, target in (("NHWC", "NCHW"), ("NCHW", "NHWC"), ("NDHWC", "NCDHW"), ("NHWC", "NHWC")):
            n = len(source)
            shapes = [[n], [n, 2], [n - 2]] if op == "DataFormatVecPermute" else [[n], [2, 2]]
            for shape in shapes:
                array = RANDOM.integers(0, n, shape).astype(np.int32 if n == 4 else np.int64)
                call(f"{source} to {target} {shape}", op, {"x": array}, src_format=source, dst_format=target)
    call("negative", "DataFormatDimMap", {"x": np.int32([-1, -4])})
    call("outside", "DataFormatDimMap", {"x": np.int32([4])})
    for left, right in (([2, 1], [3]), ([2], [2]), ([], [2]), ([0], [1])):
        strings = [np.array([b"ab", b"", b"c"] * 9, object)[: int(np.prod(shape))].reshape(shape) for shape in (left, right)]
        call(f"strings {left} {right}", "Add", dict(zip("xy", strings)))
    RECORDER.write()


def cells():
    call = RECORDER.call
    batch, n_inputs, n, steps = 2, 3, 4, 3
    gru = {
        "x": normal(batch, n_inputs),
        "h_prev": normal(batch, n),
        "w_ru": normal(n_inputs + n, 2 * n),
        "w_c": normal(n_inputs + n, n),
        "b_ru": normal(2 * n),
        "b_c": normal(n),
    }
    call("a cell", "GRUBlockCell", gru)
    call("another shape", "GRUBlockCell", gru | {"b_c": normal(n + 1)}, "b_c must have shape")
    lstm = {
        # TensorFlow does not set the results of further steps, and more end its process.
        "seq_len_max": np.int64(steps),
        "x": normal(steps, batch, n_inputs),
        "cs_prev": normal(batch, n),
        "h_prev": normal(batch, n),
        "w": normal(n_inputs + n, 4 * n),
        "wci": normal(n),
        "wcf": normal(n),
        "wco": normal(n),
        "b": normal(4 * n),
    }
    for op in ("BlockLSTM", "BlockLSTMV2"):
        call("three steps", op, lstm)
        call("peepholes", op, lstm, use_peephole=True, cell_clip=0.5)
    call("no bias", "BlockLSTM", lstm, forget_bias=0.0)


def windows():
    call = RECORDER.call
    image = np.round(normal(1, 5, 6, 2), 1)
    for padding in ("SAME", "VALID"):
        attrs = {"ksize": [1, 3, 2, 1], "strides": [1, 2, 1, 1], "padding": padding}
        pooled = [1, 3, 6, 2] if padding == "SAME" else [1, 2, 5, 2]
        gradient = np.float32(RANDOM.integers(-8, 9, pooled))
        inputs = {"orig_input": image, "orig_output": np.zeros(pooled, np.float32), "grad": gradient}
        call(padding, "MaxPoolGrad", inputs, **attrs)
        call(padding, "AvgPoolGrad", {"orig_input_shape": np.int32(image.shape), "grad": gradient}, **attrs)
    call("another shape", "MaxPoolGrad", inputs | {"grad": gradient[:, 1:]}, "Expected grad shape", **attrs)
    image = RANDOM.integers(0, 99, (1, 4, 6, 2)).astype(np.int32)
    margins = np.int32([[1, 1], [0, 2]])
    call("margins", "SpaceToBatch", {"input": image, "paddings": margins}, block_size=2)
    call("not divisible", "SpaceToBatch", {"input": image, "paddings": margins}, "is not divisible", block_size=3)
    images = RANDOM.normal(size=(8, 2, 3, 1)).astype(np.float32)
    call("margins", "BatchToSpace", {"input": images, "crops": margins}, block_size=2)
    numbers = np.float32([0, 1, np.inf, np.nan])
    call("numbers", "MulNoNan", {"x": numbers, "y": np.float32([[0], [2]])})


def beams():
    call = RECORDER.call
    for seed in range(3):
        inputs = {"inputs": RANDOM.normal(0, 2, (6, 2, 4)), "sequence_length": np.int32([6, 4])}
        for width, paths in ((1, 1), (4, 2), (30, 3)):
            for merges in (False, True):
                attrs = {"beam_width": width, "top_paths": paths, "merge_repeated": merges}
                call(f"{seed} {width} {merges}", "CTCBeamSearchDecoder", inputs, **attrs)
    attrs = {"beam_width": 2, "top_paths": 1}
    call("too long", "CTCBeamSearchDecoder", inputs | {"sequence_length": np.int32([6, 7])}, "sequence_length[1] must be", **attrs)
    call("too many paths", "CTCBeamSearchDecoder", inputs, "Less leaves in the beam search", beam_width=2, top_paths=3)


def rows():
    call = RECORDER.call
    x = RANDOM.permutation(24).reshape(2, 3, 4)
    for dtype in (np.float32, np.int64, np.uint8):
        for n in (0, 3):
            for reverse in (False, True):
                call(f"{n} {reverse} {dtype.__name__}", "NthElement", {"input": x.astype(dtype), "n": np.int32(n)}, reverse=reverse)
    call("outside", "NthElement", {"input": x.astype(np.float32), "n": np.int32(4)}, "Input must have last dimension > n = 4")
    for op in ("InplaceUpdate", "InplaceAdd", "InplaceSub"):
        call("rows", op, {"x": normal(4, 3), "i": np.int32([2, 0]), "v": normal(2, 3)})
        call("integers", op, {"x": np.arange(4), "i": np.int32([1, 1]), "v": np.int64([5, 6])})
        call("another shape", op, {"x": normal(4, 3), "i": np.int32([2]), "v": normal(1, 2)}, "do not fit")
    shapes = [np.int32([2, 3, 4]), np.int32([2, 5, 4]), np.int32([2, 1, 4])]
    for axis in (1, -2):
        call(f"along {axis}", "ConcatOffset", {"concat_dim": np.int32(axis), "shape": shapes})
    call("other shapes", "ConcatOffset", {"concat_dim": np.int32(0), "shape": shapes}, "All dimensions except 0 must match")
    call("zeros", "Empty", {"shape": np.int32([2, 3])}, dtype=tf.float32, init=True)
    call("a copy", "DeepCopy", {"x": normal(2, 3)})
    call("a constant", "GuaranteeConst", {"input": normal(2, 3)})


if __name__ == "__main__":
    main()
