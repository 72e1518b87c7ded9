"""Cases of sparse and ragged tensors."""

import numpy as np
import tensorflow as tf

from harness import Case

raw = tf.raw_ops
TYPES = [tf.float32, tf.float64, tf.int32, tf.int64, tf.int8, tf.string, tf.bool, tf.complex64, tf.float16]
NUMBERS = [tf.float32, tf.float64, tf.int32, tf.complex64, tf.float16, tf.bfloat16]
INTS = [tf.int32, tf.int64]


def pick(rng, options):
    return options[int(rng.integers(len(options)))]


def typed(values, kind):
    values = np.asarray(values)
    if kind == tf.string:
        return tf.constant(np.array([b"%d" % v for v in values.reshape(-1)], object).reshape(values.shape),
                           tf.string)
    return tf.cast(tf.constant(values.tolist(), tf.int64, values.shape), kind)


def sparse(rng, rank=None):
    rank = rank or int(rng.integers(1, 4))
    dims = rng.integers(1, 5, rank)
    n = int(rng.integers(0, min(6, int(np.prod(dims))) + 1))
    places = np.sort(rng.choice(int(np.prod(dims)), n, replace=False))
    indices = np.stack(np.unravel_index(places, dims), -1).reshape(n, rank).astype(np.int64)
    if rng.random() < 0.15 and n > 1:
        indices = indices[rng.permutation(n)]
    if rng.random() < 0.05 and n:
        indices[0, 0] = 9
    return indices, rng.integers(-9, 10, n), dims.astype(np.int64)


def splits(rng, n_rows, n=None):
    lengths = rng.integers(0, 4, n_rows)
    return np.concatenate([[0], np.cumsum(lengths)])


def cases(rng, n):
    for _ in range(n):
        (indices, values, dims), kind, index = sparse(rng), pick(rng, TYPES), pick(rng, INTS)
        x = dict(i=indices, v=values, d=dims, k=kind, t=index, check=bool(rng.random() < 0.8),
                 scalar=bool(rng.random() < 0.2))
        yield Case("SparseToDense", lambda x=x: [raw.SparseToDense(
            sparse_indices=tf.cast(x["i"], x["t"]), output_shape=tf.cast(x["d"], x["t"]),
            sparse_values=typed(7 if x["scalar"] else x["v"], x["k"]), default_value=typed(1, x["k"]),
            validate_indices=x["check"])])
        order = rng.permutation(len(values))
        yield Case("SparseReorder", lambda x=x, o=order: list(raw.SparseReorder(
            input_indices=x["i"][o], input_values=typed(x["v"][o], x["k"]), input_shape=x["d"])))
        if (indices >= dims).any():
            continue  # TensorFlow 2.21 does not check indices of SparseReshape.
        total = int(np.prod(dims))
        new = pick(rng, [[total], [-1], [1, -1], [-1, 1, 1], [total, 1], [2, -1], [total + 1], [-1, -1]])
        yield Case("SparseReshape", lambda x=x, new=new: list(raw.SparseReshape(
            input_indices=x["i"], input_shape=x["d"], new_shape=tf.constant(new, tf.int64))))
        i, v, d = sparse(rng, 2)
        yield Case("SparseFillEmptyRows", lambda i=i, v=v, d=d, k=kind: list(raw.SparseFillEmptyRows(
            indices=i, values=typed(v, k), dense_shape=d, default_value=typed(5, k))))
        kind, a, b = pick(rng, NUMBERS), bool(rng.random() < 0.5), bool(rng.random() < 0.5)
        inner = int(d[0] if a else d[1])
        other = rng.integers(-9, 10, (3, inner) if b else (inner, 3))
        x = dict(i=i, v=v, d=d, o=other, k=kind, a=a, b=b)
        yield Case("SparseTensorDenseMatMul", lambda x=x: [raw.SparseTensorDenseMatMul(
            a_indices=x["i"], a_values=typed(x["v"], x["k"]), a_shape=x["d"], b=typed(x["o"], x["k"]),
            adjoint_a=x["a"], adjoint_b=x["b"])])

        kind = pick(rng, [tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int32, tf.int8, tf.uint64])
        real = pick(rng, [tf.float32, tf.float64, tf.float16, tf.bfloat16])
        m = int(rng.integers(0, 8))
        x = dict(data=rng.integers(0, 9, (5,) + pick(rng, [(), (2,), (3, 2)])), k=kind, r=real,
                 rows=rng.integers(0, 5 + (rng.random() < 0.1), m), i=pick(rng, INTS), t=pick(rng, INTS),
                 ids=np.sort(rng.integers(0, 5, m)), n=int(rng.integers(3, 8)))
        for op in ["SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"]:
            yield Case(op, lambda x=x, op=op: [getattr(raw, op)(**segments(x, op))], 4)
            yield Case(op + "WithNumSegments", lambda x=x, op=op: [getattr(
                raw, op + "WithNumSegments")(**segments(x, op), num_segments=x["n"])], 4)

        kind = pick(rng, TYPES)
        outer = splits(rng, int(rng.integers(0, 4)))
        nested = [outer, splits(rng, int(outer[-1]))] if rng.random() < 0.5 else [outer]
        inner = (2,) if rng.random() < 0.3 else ()
        flat = rng.integers(0, 100, (int(nested[-1][-1]),) + inner)
        asked = -1 if rng.random() < 0.6 else [
            int(rng.choice([-1, 1, 2, 4])) for _ in range(len(nested) + 1)] + list(inner)
        x = dict(s=nested, v=flat, k=kind, t=pick(rng, INTS), asked=asked,
                 rows=bool(rng.random() < 0.4))
        yield Case("RaggedTensorToTensor", lambda x=x: [to_tensor(x)])
        yield Case("RaggedTensorToSparse", lambda x=x: list(raw.RaggedTensorToSparse(
            rt_nested_splits=[tf.cast(s, x["t"]) for s in x["s"]], rt_dense_values=typed(x["v"], x["k"]))))
        n_rows = len(outer) - 1
        shape = pick(rng, [(), (2,), (3,), (2, 2), (0,)])
        rows = rng.integers(0, max(n_rows, 1), shape)
        yield Case("RaggedGather", lambda x=x, r=rows, i=pick(rng, INTS): flattened(raw.RaggedGather(
            params_nested_splits=[tf.cast(s, x["t"]) for s in x["s"]],
            params_dense_values=typed(x["v"], x["k"]), indices=tf.cast(r, i),
            OUTPUT_RAGGED_RANK=len(x["s"]) + r.ndim - 1)))
        kind = pick(rng, [tf.int32, tf.int64, tf.float32, tf.float64])
        rows = pick(rng, [(), (3,)])
        args = [rng.integers(-5, 6, rows), rng.integers(-5, 6, rows),
                rng.choice([-2, -1, 1, 2, 3] + [0] * (rng.random() < 0.1), rows)]
        yield Case("RaggedRange", lambda a=args, k=kind, t=pick(rng, INTS): list(raw.RaggedRange(
            starts=tf.cast(a[0], k), limits=tf.cast(a[1], k), deltas=tf.cast(a[2], k), Tsplits=t)))

        kind = pick(rng, [tf.int32, tf.int64, tf.float32, tf.float64])
        s = splits(rng, int(rng.integers(1, 4)))
        m = int(s[-1])
        x = dict(s=s, v=rng.integers(0, 6, m), k=kind, t=pick(rng, INTS), binary=bool(rng.random() < 0.4),
                 w=rng.integers(0, 9, m if rng.random() < 0.5 else 0))
        yield Case("RaggedBincount", lambda x=x: [raw.RaggedBincount(
            splits=tf.cast(x["s"], tf.int64), values=tf.cast(x["v"], x["t"]), size=tf.cast(4, x["t"]),
            weights=tf.cast(x["w"], x["k"]), binary_output=x["binary"])])
        i, v, d = sparse(rng, int(rng.integers(1, 3)))
        x = dict(x, i=i, v=abs(v) % 4, d=d, w=rng.integers(0, 9, len(v) if rng.random() < 0.5 else 0))
        yield Case("SparseBincount", lambda x=x: [raw.SparseBincount(
            indices=x["i"], values=tf.cast(x["v"], x["t"]), dense_shape=x["d"], size=tf.cast(4, x["t"]),
            weights=tf.cast(x["w"], x["k"]), binary_output=x["binary"])])


def segments(x, op):
    kind = x["k"] if op == "SparseSegmentSum" else x["r"]
    return dict(data=tf.cast(x["data"], kind), indices=tf.cast(x["rows"], x["i"]),
                segment_ids=tf.cast(x["ids"], x["t"]))


def flattened(outputs):
    return list(outputs.output_nested_splits) + [outputs.output_dense_values]


def to_tensor(x):
    tensors, types = [tf.cast(s, x["t"]) for s in x["s"]], ["ROW_SPLITS"] * len(x["s"])
    if x["rows"]:
        rows = [np.repeat(np.arange(len(s) - 1), np.diff(s)) for s in x["s"]]
        tensors = [tf.cast(len(x["s"][0]) - 1, x["t"])] + [tf.cast(r, x["t"]) for r in rows]
        types = ["FIRST_DIM_SIZE"] + ["VALUE_ROWIDS"] * len(rows)
    return raw.RaggedTensorToTensor(
        shape=tf.constant(x["asked"], tf.int64), values=typed(x["v"], x["k"]),
        default_value=typed(3, x["k"]), row_partition_tensors=tensors, row_partition_types=types)
