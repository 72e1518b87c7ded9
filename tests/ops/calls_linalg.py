"""Calls of ops on diagonals, of linear algebra, and of Fourier transforms."""

import numpy as np

from draw import COMPLEX
from draw import ELEMENTS
from draw import INDICES
from draw import NUMBERS
from draw import Call
from draw import calls

FIELDS = [np.float32, np.float64, *COMPLEX]
ALIGNMENTS = ["LEFT_RIGHT", "RIGHT_LEFT", "LEFT_LEFT", "RIGHT_RIGHT"]


def rough(dtype, tolerance=2e-4):
    """Returns a tolerance for numbers that depend on the order of operations."""
    return {np.float16: 0.1, np.float32: tolerance, np.complex64: tolerance}.get(dtype, 1e-9)


def adjoint(x):
    return np.conj(np.swapaxes(x, -1, -2))


def diagonal_range(draw, rows, columns):
    first = draw.int(min(1 - rows, 0), max(columns - 1, 0)) + (draw.int(-3, 3) if draw.bool(0.05) else 0)
    if draw.bool(0.4):
        return draw.choice([np.int32(first), np.array([first], np.int32)]), [first, first]
    last = draw.int(first, max(columns - 1, first))
    return np.array([first, last], np.int32), [first, last]


def layout(draw, batch, rows, columns, which):
    """Returns the shape of the diagonals of matrices."""
    first, last = which
    length = min(rows + min(last, 0), columns - max(first, 0))
    return batch + ([last - first + 1] if first != last else []) + [max(length, 0)]


@calls("MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3")
def diagonals(draw, op):
    dtype = draw.choice(ELEMENTS)
    shape = draw.shape(2, 4)
    x = draw.array(dtype, shape)
    if op == "MatrixDiagPart":
        return Call({"input": x})
    k, _ = diagonal_range(draw, *shape[-2:])
    return Call({"input": x, "k": k, "padding_value": draw.array(dtype, [])}, {"align": draw.choice(ALIGNMENTS)} if op.endswith("V3") else {})


@calls("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def set_diagonals(draw, op):
    dtype = draw.choice(ELEMENTS)
    shape = draw.shape(2, 4, zeros=0.02)
    k, which = (None, [0, 0]) if op == "MatrixSetDiag" else diagonal_range(draw, *shape[-2:])
    inputs = {"input": draw.array(dtype, shape), "diagonal": draw.array(dtype, layout(draw, shape[:-2], *shape[-2:], which))}
    if k is not None:
        inputs["k"] = k
    return Call(inputs, {"align": draw.choice(ALIGNMENTS)} if op.endswith("V3") else {})


@calls("MatrixDiag", "MatrixDiagV2", "MatrixDiagV3")
def diagonal_matrices(draw, op):
    dtype = draw.choice(ELEMENTS)
    if op == "MatrixDiag":
        return Call({"diagonal": draw.array(dtype, draw.shape(1, 4))})
    rows, columns = draw.int(1, 4), draw.int(1, 4)
    k, which = diagonal_range(draw, rows, columns)
    sizes = draw.choice([[-1, -1], [rows, columns], [rows, -1], [-1, columns], [rows + 1, columns]])
    inputs = {
        "diagonal": draw.array(dtype, layout(draw, draw.shape(0, 2), rows, columns, which)),
        "k": k,
        "num_rows": np.int32(sizes[0]),
        "num_cols": np.int32(sizes[1]),
        "padding_value": draw.array(dtype, []),
    }
    return Call(inputs, {"align": draw.choice(ALIGNMENTS)} if op.endswith("V3") else {})


@calls("MatrixBandPart")
def band(draw, _):
    shape = draw.shape(2, 4)
    index = draw.choice(INDICES)
    widths = {name: index(draw.int(-1, size + draw.bool(0.1))) for name, size in zip(("num_lower", "num_upper"), shape[-2:])}
    return Call({"input": draw.array(draw.choice(ELEMENTS), shape), **widths})


@calls("Diag", "DiagPart")
def diag(draw, op):
    dtype = draw.choice([np.float16, np.int32, np.int64] + FIELDS)
    shape = draw.shape(1, 3, 3)
    if op == "Diag":
        return Call({"diagonal": draw.array(dtype, shape)})
    return Call({"input": draw.array(dtype, shape + (shape if draw.bool(0.9) else [2]))})


@calls("Cross")
def cross(draw, _):
    dtype = draw.choice(NUMBERS)
    shape = draw.shape(0, 3) + [3 if draw.bool(0.95) else 2]
    return Call({"a": draw.array(dtype, shape), "b": draw.array(dtype, shape)}, tolerance=0.1 if np.dtype(dtype).itemsize == 2 and np.dtype(dtype).kind not in "iu" else None)


def square(draw, dtype, batch=None):
    """Draws square matrices that are well conditioned, or, sometimes, singular."""
    batch = draw.shape(0, 2) if batch is None else batch
    n = draw.int(0, 6)
    x = draw.array(dtype, batch + [n, n], -1, 1) + np.eye(n, dtype=dtype) * dtype(3)
    if n and draw.bool(0.05):
        x[...] = 0
    return x.astype(dtype)


@calls("Cholesky")
def cholesky(draw, _):
    dtype = draw.choice(FIELDS)
    x = square(draw, dtype)
    x = x @ adjoint(x)
    # If a real matrix is not positive definite, TensorFlow gives NaN below the diagonal; the rest,
    # and complex ones, are undefined.
    if x.shape[-1] and dtype not in COMPLEX and draw.bool(0.1):
        x = -x
    tolerance = rough(dtype)

    def check(wanted, found):
        lower = [np.tril(factor[0]) for factor in (wanted, found)]
        if lower[0].shape != lower[1].shape or lower[0].dtype != lower[1].dtype or not np.allclose(*lower, tolerance, tolerance, equal_nan=True):
            return f"{found[0]!r}, expected {wanted[0]!r}"
        return None

    return Call({"input": x.astype(dtype)}, check=check)


@calls("MatrixInverse")
def inverse(draw, _):
    dtype = draw.choice(FIELDS + [np.float16])
    return Call({"input": square(draw, dtype)}, {"adjoint": draw.bool()}, tolerance=rough(dtype))


@calls("MatrixDeterminant", "LogMatrixDeterminant")
def determinant(draw, _):
    dtype = draw.choice(FIELDS)
    return Call({"input": square(draw, dtype)}, tolerance=rough(dtype))


@calls("MatrixExponential")
def exponential(draw, _):
    dtype = draw.choice(FIELDS)
    return Call({"input": square(draw, dtype) * dtype(draw.choice([0.1, 1, 2]))}, tolerance=rough(dtype, 2e-3))


@calls("Lu")
def lu(draw, _):
    dtype = draw.choice(FIELDS)
    x = square(draw, dtype)
    if x.shape[-1] and draw.bool():
        x = x[..., draw.random.permutation(x.shape[-1]), :]
    return Call({"input": x}, {"output_idx_type": draw.choice(INDICES)}, tolerance=rough(dtype))


@calls("MatrixSolve", "MatrixTriangularSolve")
def solve(draw, op):
    dtype = draw.choice(FIELDS)
    x = square(draw, dtype)
    batch = list(x.shape[:-2])
    if op == "MatrixTriangularSolve" and draw.bool(0.3):
        batch = [draw.choice([1, size]) for size in batch][draw.int(0, len(batch)) :]
    inputs = {"matrix": x, "rhs": draw.array(dtype, batch + [x.shape[-1] + draw.bool(0.03), draw.int(0, 4)])}
    attrs = {"adjoint": draw.bool()}
    if op == "MatrixTriangularSolve":
        attrs["lower"] = draw.bool()
    return Call(inputs, attrs, tolerance=rough(dtype))


@calls("Qr")
def qr(draw, _):
    dtype = draw.choice(FIELDS + [np.float16])
    return Call({"input": draw.array(dtype, draw.shape(2, 4, 6))}, {"full_matrices": draw.bool()}, tolerance=rough(dtype))


def rebuilt(found, x, shapes, rebuild, tolerance):
    """Returns what is wrong with a factorization, whose vectors are not unique."""
    for slot, (have, shape) in enumerate(zip(found, shapes)):
        if have.shape != shape or have.dtype != x.dtype:
            return f"output {slot} is {have.dtype}{list(have.shape)}, expected {x.dtype}{list(shape)}"
    for have in found[1:]:
        if have.ndim == x.ndim and have.size:
            gram = adjoint(have) @ have
            if np.max(np.abs(gram - np.eye(gram.shape[-1]))) > tolerance:
                return "the vectors are not orthonormal"
    again = rebuild(found)
    if again is not None and again.size and np.max(np.abs(again - x)) > tolerance * 10:
        return f"the product of the factors differs by {np.max(np.abs(again - x))}"
    return None


@calls("Svd")
def svd(draw, _):
    dtype = draw.choice(FIELDS)
    x = draw.array(dtype, draw.shape(2, 4, 6))
    if draw.bool(0.2):
        x[..., -1:, :] = x[..., :1, :]
    full, vectors = draw.bool(), draw.bool(0.8)

    def check(wanted, found):
        tolerance = rough(dtype)
        if wanted[0].shape != found[0].shape or wanted[0].size and np.max(np.abs(wanted[0] - found[0])) > tolerance * 10:
            return f"singular values {found[0]!r}, expected {wanted[0]!r}"
        if not vectors:
            return None if [x.shape for x in wanted] == [x.shape for x in found] else "shapes differ"
        n = found[0].shape[-1]
        product = lambda found: (found[1][..., :n] * found[0][..., None, :]) @ adjoint(found[2][..., :n])
        return rebuilt(found, x, [value.shape for value in wanted], product, tolerance)

    return Call({"input": x}, {"compute_uv": vectors, "full_matrices": full}, check=check)


@calls("SelfAdjointEigV2")
def eigen(draw, _):
    dtype = draw.choice(FIELDS)
    x = square(draw, dtype)
    x = (x + adjoint(x)).astype(dtype)
    if draw.bool(0.2):
        x = x * 0 + np.eye(x.shape[-1], dtype=dtype)
    vectors = draw.bool(0.8)

    def check(wanted, found):
        tolerance = rough(dtype)
        if wanted[0].shape != found[0].shape or wanted[0].size and np.max(np.abs(wanted[0] - found[0])) > tolerance * 10:
            return f"eigenvalues {found[0]!r}, expected {wanted[0]!r}"
        product = lambda found: (found[1] * found[0][..., None, :]) @ adjoint(found[1])
        if not vectors:
            return None if wanted[1].shape == found[1].shape else "shapes differ"
        return rebuilt(found, x, [value.shape for value in wanted], product, tolerance)

    return Call({"input": x}, {"compute_v": vectors}, check=check)


@calls("FFT", "IFFT", "FFT2D", "IFFT2D", "FFT3D", "IFFT3D")
def fft(draw, op):
    n_axes = int(op[-2]) if op.endswith("D") else 1
    dtype = draw.choice(COMPLEX)
    return Call({"input": draw.array(dtype, draw.shape(n_axes - draw.bool(0.05), n_axes + 2, 9))}, tolerance=1e-4 if dtype == np.complex64 else 1e-11)


@calls("RFFT", "IRFFT", "RFFT2D", "IRFFT2D", "RFFT3D", "IRFFT3D")
def real_fft(draw, op):
    n_axes = int(op[-2]) if op.endswith("D") else 1
    real, whole = draw.choice([(np.float32, np.complex64), (np.float64, np.complex128)])
    is_forward = op.startswith("R")
    # TensorFlow leaves results undefined if a transformed axis is empty.
    shape = draw.shape(0, 2, 4) + draw.shape(n_axes, n_axes, 8, 0)
    lengths = [draw.int(1, max(size, 1)) if draw.bool(0.4) else size for size in shape[-n_axes:]]
    if not is_forward:
        lengths[-1] = draw.int(1, max(2 * shape[-1] - 1, 1))
    if draw.bool(0.05):
        lengths[0] += 20
    inputs = {"input": draw.array(real if is_forward else whole, shape), "fft_length": np.array(lengths, np.int32)}
    other = {"Tcomplex": whole} if is_forward else {"Treal": real}
    return Call(inputs, other, tolerance=1e-4 if real == np.float32 else 1e-11)
