"""Sparse tensors with each other and with dense ones, counts, sets, and distances of sequences."""

import numpy as np
import tensorflow as tf
from record import Recorder

RECORDER = Recorder(__file__)
RANDOM = np.random.default_rng(3)


def sparse(shape, dtype, n=None):
    """Returns indices, values and shape with a random number of values."""
    size = int(np.prod(shape))
    n = RANDOM.integers(0, size + 1) if n is None else n
    places = np.sort(RANDOM.choice(size, n, replace=False)) if size else np.zeros(0, int)
    indices = np.stack(np.unravel_index(places, shape), -1).astype(np.int64) if size else np.zeros((0, len(shape)), np.int64)
    return [indices, values([len(places)], dtype), np.array(shape, np.int64)]


def values(shape, dtype):
    if dtype is str:
        return np.array([b"ab"[i : i + 1] for i in RANDOM.integers(0, 2, int(np.prod(shape)))], object).reshape(shape)
    if np.dtype(dtype).kind in "iu":
        return RANDOM.integers(1, 9, shape).astype(dtype)
    return RANDOM.normal(size=shape).astype(dtype)


def named(names, parts):
    return dict(zip(names.split(), parts, strict=True))


def main():
    call = RECORDER.call
    of_sp = "sp_indices sp_values sp_shape"
    of_two = "a_indices a_values a_shape b_indices b_values b_shape"
    for dtype in (np.float16, np.float32, np.float64):
        for shape in ([3, 4], [2, 2, 3], [0, 3]):
            call(f"{shape} {dtype.__name__}", "SparseSoftmax", named(of_sp, sparse(shape, dtype)))
    call("a vector", "SparseSoftmax", named(of_sp, sparse([4], np.float32)), "should have rank >= 2")
    for op in ("Add", "Mul", "Div"):
        for dtype in (np.float32, np.float64, np.int32, np.uint8):
            for shape, dense in (([3, 4], [3, 4]), ([2, 3, 4], [4]), ([2, 3, 4], [3, 1]), ([3, 4], [])):
                parts = [*sparse(shape, dtype), values(dense, dtype)]
                call(f"{dense} to {shape}, {dtype.__name__}", f"SparseDenseCwise{op}", named(of_sp + " dense", parts))
        parts = [*sparse([3, 4], np.float32), values([2], np.float32)]
        call("another shape", f"SparseDenseCwise{op}", named(of_sp + " dense", parts), "broadcasts dense to sparse only")
    parts = [np.int64([[1]]), np.int32([5]), np.int64([2]), np.int32([1, 0])]
    call("by zero", "SparseDenseCwiseDiv", named(of_sp + " dense", parts), "cannot divide by zero")
    for dtype in (np.float32, np.int64, np.complex64):
        parts = [*sparse([3, 4], dtype), values([3, 4], dtype)]
        call(dtype.__name__, "SparseTensorDenseAdd", named("a_indices a_values a_shape b", parts))
    for op in ("SparseSparseMaximum", "SparseSparseMinimum"):
        for shape in ([5], [3, 4]):
            for dtype in (np.float32, np.int32):
                parts = [*sparse(shape, dtype), *sparse(shape, dtype)]
                call(f"{shape} {dtype.__name__}", op, named(of_two, parts))
        call("other shapes", op, named(of_two, [*sparse([5], np.float32), *sparse([6], np.float32)]), "do not match")
    for axis in (0, 1, -1):
        for n in (1, 2, 3):
            for dtype in (np.float32, str):
                parts = [np.int64(axis), *sparse([4, 5], dtype)]
                call(f"{n} along {axis}, {dtype.__name__}", "SparseSplit", named("split_dim indices values shape", parts), num_split=n)
    parts = [np.int64(0), *sparse([2, 5], np.float32)]
    call("too many", "SparseSplit", named("split_dim indices values shape", parts), "between 1 and the splitting", num_split=3)
    for dtype in (np.int32, np.int64):
        for n_min, n_max, binary in ((-1, -1, False), (20, -1, False), (-1, 5, True), (3, 4, False)):
            attrs = {"minlength": n_min, "maxlength": n_max, "binary_output": binary}
            name = f"{dtype.__name__} {n_min} {n_max} {binary}"
            for shape in ([6], [3, 4], [0]):
                array = values(shape, dtype)
                weights = values(shape, np.float32) if not binary else np.zeros([0], np.float32)
                call(f"{shape} {name}", "DenseCountSparseOutput", {"values": array, "weights": weights}, **attrs)
            parts = [*sparse([3, 4], dtype), np.zeros([0], np.int64)]
            call(name, "SparseCountSparseOutput", named("indices values dense_shape weights", parts), **attrs)
            parts = [np.array([0, 2, 2, 5], np.int64), values([5], dtype), values([5], np.float64)]
            call(name, "RaggedCountSparseOutput", named("splits values weights", parts), **attrs)
    empty = {"values": np.int32([1, -1]), "weights": np.zeros([0], np.int64)}
    call("negative", "DenseCountSparseOutput", empty, "must all be non-negative", binary_output=False)
    of_set = "set_indices set_values set_shape"
    first, second = "set1_indices set1_values set1_shape", "set2_indices set2_values set2_shape"
    for dtype in (np.int8, np.int64, np.uint16, str):
        call(dtype.__name__, "SetSize", named(of_set, sparse([2, 3, 4], dtype)))
        for operation in ("a-b", "b-a", "intersection", "union"):
            name = f"{operation} {dtype.__name__}"
            dense = values([2, 3, 4], dtype)
            call(name, "DenseToDenseSetOperation", {"set1": dense, "set2": values([2, 3, 2], dtype)}, set_operation=operation)
            other = sparse([2, 3, 5], dtype)
            call(name, "DenseToSparseSetOperation", {"set1": dense} | named(second, other), set_operation=operation)
            both = named(first, sparse([2, 3, 4], dtype)) | named(second, other)
            call(name, "SparseToSparseSetOperation", both, set_operation=operation)
    call("a vector", "SetSize", named(of_set, sparse([4], np.int32)), "rank 1 < 2")
    both = named(first, sparse([2, 4], np.int32)) | named(second, sparse([3, 4], np.int32))
    call("other shapes", "SparseToSparseSetOperation", both, "Mismatched shapes", set_operation="union")
    of_edit = "hypothesis_indices hypothesis_values hypothesis_shape truth_indices truth_values truth_shape"
    for dtype in (np.int32, np.float32, str):
        for normalize in (True, False):
            for shapes in (([2, 3, 4], [2, 3, 4]), ([3, 5], [3, 2]), ([2, 3], [4, 3])):
                parts = [*sparse(shapes[0], dtype), *sparse(shapes[1], dtype)]
                call(f"{shapes} {dtype.__name__} {normalize}", "EditDistance", named(of_edit, parts), normalize=normalize)
    RECORDER.write()


if __name__ == "__main__":
    main()
