"""Calls of ops on sparse tensors and sets."""

import numpy as np

from draw import COMPLEX
from draw import INDICES
from draw import Call
from draw import calls

SUMMED = [np.float32, np.float64, np.int32, np.int64] + COMPLEX
REALS = [np.float32, np.float64]
ORDERED = REALS + [np.int32, np.int64, np.uint8, np.int8]


def places(draw, shape, order=True):
    """Draws distinct indices into a shape, usually in order."""
    n = draw.int(0, min(6, int(np.prod(shape))))
    found = draw.random.choice(int(np.prod(shape)), n, replace=False)
    found = np.sort(found) if order else found
    return np.stack(np.unravel_index(found, shape), -1).reshape(n, len(shape)).astype(np.int64)


def sparse(draw, dtype, shape=None, rank_min=1):
    """Draws the indices, values and shape of a sparse tensor."""
    shape = draw.shape(rank_min, 3, zeros=0) if shape is None else shape
    indices = places(draw, shape)
    return indices, draw.elements(dtype, [len(indices)]), np.array(shape, np.int64)


def named(prefix, parts):
    return {f"{prefix}_{name}": part for name, part in zip(["indices", "values", "shape"], parts)}


@calls("SparseAdd")
def sparse_add(draw, _):
    dtype = draw.choice(SUMMED)
    a = sparse(draw, dtype)
    shape = a[2].tolist()
    if draw.bool(0.05):
        shape[0] += 1
    b = sparse(draw, dtype, shape)
    real = {np.complex64: np.float32, np.complex128: np.float64}.get(dtype, dtype)
    return Call({**named("a", a), **named("b", b), "thresh": draw.array(real, [], 0, 2)})


@calls("SparseSparseMaximum", "SparseSparseMinimum")
def sparse_extreme(draw, _):
    dtype = draw.choice(ORDERED)
    a = sparse(draw, dtype)
    return Call({**named("a", a), **named("b", sparse(draw, dtype, a[2].tolist()))})


@calls("SparseConcat")
def sparse_concat(draw, _):
    dtype = draw.choice(SUMMED + [object])
    shape = draw.shape(1, 3, zeros=0)
    axis = draw.int(-len(shape), len(shape) - 1)
    parts = []
    for _ in range(draw.int(2, 3)):
        own = list(shape)
        own[axis] = draw.int(1, 4)
        if draw.bool(0.03):
            own[(axis + 1) % len(own)] += 1
        parts.append(sparse(draw, dtype, own))
    indices, values, shapes = (list(column) for column in zip(*parts))
    return Call({"indices": indices, "values": values, "shapes": shapes}, {"concat_dim": axis})


@calls("SparseSplit")
def sparse_split(draw, _):
    indices, values, shape = sparse(draw, draw.choice(SUMMED))
    axis = draw.int(0, len(shape) - 1)
    inputs = {"split_dim": np.int64(axis), "indices": indices, "values": values, "shape": shape}
    return Call(inputs, {"num_split": draw.int(1, int(shape[axis]))})


@calls("SparseSlice")
def sparse_slice(draw, _):
    indices, values, shape = sparse(draw, draw.choice(SUMMED + [object]))
    start = np.array([draw.int(0, size) for size in shape], np.int64)
    size = np.array([draw.int(0, size + 1) for size in shape], np.int64)
    return Call({"indices": indices, "values": values, "shape": shape, "start": start, "size": size})


@calls("SparseReduceSum", "SparseReduceMax", "SparseReduceSumSparse", "SparseReduceMaxSparse")
def sparse_reduce(draw, op):
    types = ORDERED if "Max" in op else SUMMED
    parts = sparse(draw, draw.choice(types))
    rank = len(parts[2])
    axes = draw.random.choice(rank, draw.int(1, rank), replace=False)
    axes = np.where(draw.random.random(len(axes)) < 0.3, axes - rank, axes)
    inputs = {**named("input", parts), "reduction_axes": axes.astype(np.int32)}
    return Call(inputs, {"keep_dims": draw.bool()})


@calls("SparseSoftmax")
def sparse_softmax(draw, _):
    return Call(named("sp", sparse(draw, draw.choice(REALS), rank_min=2)))


@calls("SparseDenseCwiseAdd", "SparseDenseCwiseMul", "SparseDenseCwiseDiv")
def sparse_dense(draw, op):
    dtype = draw.choice(SUMMED)
    parts = sparse(draw, dtype)
    shape = [1 if draw.bool(0.2) else int(size) for size in parts[2]][draw.int(0, len(parts[2]) - 1) :]
    dense = draw.array(dtype, shape, 1, 5) if op.endswith("Div") else draw.array(dtype, shape)
    return Call({**named("sp", parts), "dense": dense})


@calls("SparseTensorDenseMatMul")
def sparse_matmul(draw, _):
    dtype = draw.choice(SUMMED)
    parts = sparse(draw, dtype, draw.shape(2, 2, zeros=0))
    adjoint_a, adjoint_b = draw.bool(), draw.bool()
    inner, columns = int(parts[2][0 if adjoint_a else 1]), draw.int(1, 4)
    shape = [columns, inner] if adjoint_b else [inner, columns]
    return Call({**named("a", parts), "b": draw.array(dtype, shape)}, {"adjoint_a": adjoint_a, "adjoint_b": adjoint_b})


@calls("SparseCross")
def sparse_cross(draw, _):
    rows = draw.int(1, 3)
    sparse_parts = [sparse(draw, np.int64, [rows, draw.int(1, 3)]) for _ in range(draw.int(0, 2))]
    n_dense = draw.int(0 if len(sparse_parts) > 1 else 1, 2)
    dense = [draw.array(np.int64, [rows, draw.int(1, 2)], 0, 9) for _ in range(n_dense)]
    indices, values, shapes = ([part[i] for part in sparse_parts] for i in range(3))
    inputs = {"indices": indices, "values": values, "shapes": shapes, "dense_inputs": dense}
    attrs = {"hashed_output": True, "num_buckets": draw.choice([0, 7, 1000]), "hash_key": draw.int(1, 1 << 40)}
    return Call(inputs, {**attrs, "out_type": np.int64, "internal_type": np.int64})


@calls("DenseToDenseSetOperation")
def set_operation(draw, _):
    dtype = draw.choice([np.int32, np.int64, np.uint8, np.int8, object])
    front = draw.shape(1, 2, zeros=0)
    sets = {f"set{i}": draw.elements(dtype, front + [draw.int(1, 4)], 0, 4) for i in (1, 2)}
    operation = draw.choice(["a-b", "b-a", "intersection", "union"])
    return Call(sets, {"set_operation": operation, "validate_indices": draw.bool()})


@calls("DenseToSparseSetOperation")
def set_operation_sparse(draw, _):
    dtype = draw.choice([np.int32, np.int64, object])
    front = draw.shape(1, 2, zeros=0)
    first = draw.elements(dtype, front + [draw.int(1, 4)], 0, 4)
    indices, values, shape = sparse(draw, dtype, front + [draw.int(1, 4)])
    inputs = {"set1": first, "set2_indices": indices, "set2_values": values, "set2_shape": shape}
    return Call(inputs, {"set_operation": draw.choice(["a-b", "b-a", "intersection", "union"]), "validate_indices": True})


@calls("SetSize")
def set_size(draw, _):
    indices, values, shape = sparse(draw, draw.choice([np.int32, np.int64, object]), rank_min=2)
    return Call({"set_indices": indices, "set_values": values, "set_shape": shape}, {"validate_indices": True})


@calls("EditDistance")
def edit_distance(draw, _):
    dtype = draw.choice([np.int32, np.int64, np.float32, object])
    front = draw.shape(1, 1, 3, zeros=0)
    parts = {}
    for name in ["hypothesis", "truth"]:
        rows = [[row, at] for row in range(front[0]) for at in range(draw.int(0, 4))]
        indices = np.array(rows, np.int64).reshape(-1, 2)
        values = draw.elements(dtype, [len(indices)], 0, 3)
        values = np.round(values) if dtype is np.float32 else values
        parts |= named(name, (indices, values, np.array(front + [4], np.int64)))
    return Call(parts, {"normalize": draw.bool()})


@calls(
    "SparseSegmentSum",
    "SparseSegmentMean",
    "SparseSegmentSqrtN",
    "SparseSegmentSumWithNumSegments",
    "SparseSegmentMeanWithNumSegments",
    "SparseSegmentSqrtNWithNumSegments",
)
def sparse_segments(draw, op):
    types = [np.float16] + REALS + ([np.int32, np.int64] if "Sum" in op else [])
    data = draw.array(draw.choice(types), [draw.int(1, 5)] + draw.shape(0, 2))
    n = draw.int(0, 6)
    indices = draw.array(draw.choice(INDICES), [n], 0, len(data) - 1 + draw.bool(0.04))
    ids = np.sort(draw.array(draw.choice(INDICES), [n], 0, 4))
    if draw.bool(0.04):
        ids = ids[::-1].copy()
    inputs = {"data": data, "indices": indices, "segment_ids": ids}
    if op.endswith("NumSegments"):
        inputs["num_segments"] = draw.choice(INDICES)(draw.int(4, 6) - 2 * draw.bool(0.1))
    return Call(inputs)


@calls("SparseBincount")
def sparse_bincount(draw, _):
    index = draw.choice(INDICES)
    indices, values, shape = sparse(draw, index, draw.shape(1, 2, zeros=0))
    weights = draw.array(draw.choice(REALS + INDICES), draw.choice([[0], [len(values)]]))
    inputs = {"indices": indices, "values": np.abs(values), "dense_shape": shape, "size": index(draw.int(1, 8)), "weights": weights}
    return Call(inputs, {"binary_output": draw.bool()})


@calls("DenseCountSparseOutput")
def dense_count(draw, _):
    values = draw.array(draw.choice(INDICES), draw.shape(1, 2, 6, zeros=0), 0, 5)
    weights = draw.array(draw.choice(REALS + INDICES), draw.choice([[0], values.shape]))
    attrs = {"minlength": draw.choice([-1, 0, 3]), "maxlength": draw.choice([-1, 4, 8]), "binary_output": weights.size == 0 and draw.bool()}
    return Call({"values": values, "weights": weights}, attrs)
