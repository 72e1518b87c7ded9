"""Calls of ops that scatter, distribute, count, search and select."""

import numpy as np

from draw import ARITHMETIC
from draw import ELEMENTS
from draw import INDICES
from draw import NUMBERS
from draw import Call
from draw import calls

COUNTED = [np.int32, np.int64, np.float32, np.float64]


def scattered(draw, dtype):
    """Draws a shape, indices into it, and updates."""
    shape = draw.shape(1, 4, zeros=0.02)
    depth = draw.int(1, len(shape))
    rows = draw.shape(1, 2, 3)
    high = [max(size - 1, 0) for size in shape[:depth]]
    indices = np.stack([draw.array(np.int64, rows, 0, top) for top in high], axis=-1) if depth else np.zeros(rows + [0])
    if draw.bool(0.06):
        indices = indices + 1
    update_shape = rows + shape[depth:]
    if draw.bool(0.03):
        # TensorFlow's process ends if there are too few dimensions.
        update_shape = update_shape[:-1] + [update_shape[-1] + 1]
    return shape, indices.astype(draw.choice(INDICES)), draw.elements(dtype, update_shape)


@calls("TensorScatterUpdate", "TensorScatterAdd", "TensorScatterSub", "TensorScatterMax", "TensorScatterMin")
def tensor_scatter(draw, op):
    types = {"TensorScatterUpdate": ELEMENTS + [object], "TensorScatterAdd": ARITHMETIC, "TensorScatterSub": ARITHMETIC}
    dtype = draw.choice(types.get(op, NUMBERS))
    shape, indices, updates = scattered(draw, dtype)
    policy = draw.choice(["", "", "ERROR", "IGNORE"])
    return Call({"tensor": draw.elements(dtype, shape), "indices": indices, "updates": updates}, {"bad_indices_policy": policy})


@calls("ScatterNd")
def scatter_nd(draw, _):
    shape, indices, updates = scattered(draw, draw.choice(ELEMENTS))
    return Call({"indices": indices, "updates": updates, "shape": np.array(shape, indices.dtype)})


@calls("DynamicPartition")
def dynamic_partition(draw, _):
    shape = draw.shape(0, 4)
    n = draw.int(1, 4)
    partitions = draw.array(np.int32, shape[: draw.int(0, len(shape))], 0, n - 1 + draw.bool(0.05))
    return Call({"data": draw.elements(draw.choice(ELEMENTS + [object]), shape), "partitions": partitions}, {"num_partitions": n})


@calls("DynamicStitch", "ParallelDynamicStitch")
def stitch(draw, _):
    dtype = draw.choice(ELEMENTS + [object])
    row = draw.shape(0, 2)
    fronts = [draw.shape(0, 2, 3) for _ in range(draw.int(1, 3))]
    sizes = [int(np.prod(front)) for front in fronts]
    # All rows are written: TensorFlow leaves others undefined.
    places = draw.random.permutation(sum(sizes)).astype(np.int32)
    parts = np.split(places, np.cumsum(sizes)[:-1])
    indices = [part.reshape(front) for part, front in zip(parts, fronts)]
    return Call({"indices": indices, "data": [draw.elements(dtype, front + row) for front in fronts]})


@calls("Bincount")
def bincount(draw, _):
    shape = draw.shape(0, 3)
    dtype = draw.choice(COUNTED)
    weights = draw.array(dtype, draw.choice([[0], shape]))
    return Call({"arr": draw.array(np.int32, shape, -draw.bool(0.1), 6), "size": np.int32(draw.int(0, 8)), "weights": weights})


@calls("DenseBincount")
def dense_bincount(draw, _):
    shape = draw.shape(1, 2, 6)
    index = draw.choice(INDICES)
    weights = draw.array(draw.choice(COUNTED), draw.choice([[0], shape]))
    inputs = {"input": draw.array(index, shape, 0, 6), "size": index(draw.int(0, 8)), "weights": weights}
    return Call(inputs, {"binary_output": draw.bool()})


@calls("HistogramFixedWidth")
def histogram(draw, _):
    dtype = draw.choice(COUNTED)
    low = draw.int(-4, 2)
    inputs = {
        "values": draw.array(dtype, draw.shape(0, 3), -6, 6),
        "value_range": np.array([low, low + draw.int(0, 6)], dtype),
        "nbins": np.int32(draw.int(0, 7)),
    }
    return Call(inputs, {"dtype": draw.choice(INDICES)})


@calls("Bucketize")
def bucketize(draw, _):
    boundaries = sorted(float(np.float32(draw.random.uniform(-3, 3))) for _ in range(draw.int(0, 5)))
    if draw.bool(0.1):
        boundaries = [2.0, 1.0]
    return Call({"input": draw.array(draw.choice(COUNTED), draw.shape(0, 3))}, {"boundaries": boundaries})


@calls("ListDiff")
def list_diff(draw, _):
    dtype = draw.choice(NUMBERS + [object])
    x, y = (draw.elements(dtype, draw.shape(1, 1, 12), -3, 3) for _ in range(2))
    if dtype in (np.float16, np.float32, np.float64):
        x, y = np.round(x), np.round(y)
    return Call({"x": x, "y": y}, {"out_idx": draw.choice(INDICES)})


@calls("LowerBound", "UpperBound")
def bounds(draw, _):
    dtype = draw.choice(NUMBERS)
    rows = draw.int(1, 3)
    values = [np.sort(draw.array(dtype, [rows, draw.int(0, 8)]), axis=1), draw.array(dtype, [rows + draw.bool(0.05), draw.int(0, 5)])]
    return Call({"sorted_inputs": values[0], "values": values[1]}, {"out_type": draw.choice(INDICES)})


@calls("SegmentSum", "SegmentMean", "SegmentProd", "SegmentMax", "SegmentMin")
def segments(draw, op):
    dtype = draw.choice(NUMBERS if op in ("SegmentMax", "SegmentMin") else ARITHMETIC)
    data = draw.array(dtype, draw.shape(1, 3))
    ids = np.sort(draw.array(draw.choice(INDICES), [len(data)], 0, 5))
    if draw.bool(0.05):
        ids = ids[::-1].copy()
    return Call({"data": data, "segment_ids": ids}, tolerance=2e-2 if dtype in (np.float16,) else None)


@calls("UnsortedSegmentSum", "UnsortedSegmentProd", "UnsortedSegmentMax", "UnsortedSegmentMin")
def unsorted_segments(draw, op):
    dtype = draw.choice(NUMBERS if op.endswith(("Max", "Min")) else ARITHMETIC)
    shape = draw.shape(0, 4)
    ids = draw.array(draw.choice(INDICES), shape[: draw.int(0, len(shape))], -1, 4 + draw.bool(0.05))
    return Call({"data": draw.array(dtype, shape), "segment_ids": ids, "num_segments": draw.choice(INDICES)(5)}, tolerance=3e-2 if dtype(0).itemsize == 2 and dtype(0.5) != 0 else None)


@calls("InvertPermutation")
def invert_permutation(draw, _):
    x = draw.random.permutation(draw.int(0, 8)).astype(draw.choice(INDICES))
    if len(x) and draw.bool(0.1):
        x[0] = draw.int(-1, len(x))
    return Call({"x": x})


@calls("TopKV2")
def top_k(draw, _):
    x = draw.array(draw.choice(NUMBERS), draw.shape(1, 3, 9))
    k = draw.int(0, x.shape[-1]) + draw.bool(0.05)
    return Call({"input": x, "k": draw.choice([np.int16, np.int32, np.int64])(k)}, {"index_type": draw.choice([np.int16, np.int32, np.int64])})


@calls("InTopK", "InTopKV2")
def in_top_k(draw, op):
    rows, classes = draw.int(0, 5), draw.int(1, 6)
    x = draw.array(np.float32, [rows, classes])
    if rows and draw.bool(0.2):
        x[0, 0] = np.inf
    index = draw.choice(INDICES)
    targets, k = draw.array(index, [rows], -1, classes), draw.int(0, 4)
    if op == "InTopK":
        return Call({"predictions": x, "targets": targets}, {"k": k})
    return Call({"predictions": x, "targets": targets, "k": index(k)})


@calls("Where")
def where(draw, _):
    return Call({"condition": draw.array(draw.choice(ELEMENTS), draw.shape(0, 5), -1, 1)})


@calls("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2")
def unique(draw, op):
    dtype = draw.choice(NUMBERS + [object, np.bool_])
    attrs = {"out_idx": draw.choice(INDICES)}
    if not op.endswith("V2"):
        x = draw.elements(dtype, draw.shape(1, 1, 12), -3, 3)
        return Call({"x": np.round(x) if dtype in (np.float32, np.float64) else x}, attrs)
    has_axis = draw.bool(0.7)
    shape = draw.shape(1, 3, 3) if has_axis else draw.shape(1, 1, 12)
    axis = [draw.int(-len(shape), len(shape) - 1)] if has_axis else []
    return Call({"x": draw.elements(dtype, shape, 0, 1), "axis": np.array(axis, draw.choice(INDICES))}, attrs)


@calls("NonMaxSuppression", "NonMaxSuppressionV2", "NonMaxSuppressionV3", "NonMaxSuppressionV4", "NonMaxSuppressionV5")
def suppression(draw, op):
    version = int(op[-1]) if op[-1].isdigit() else 1
    dtype = draw.choice([np.float16, np.float32]) if version > 1 else np.float32
    n = draw.int(0, 15)
    inputs = {"boxes": draw.array(dtype, [n, 4], 0, 3), "scores": draw.array(dtype, [n], 0, 1), "max_output_size": np.int32(draw.int(0, 10))}
    threshold = dtype(draw.random.uniform(0, 1) + draw.bool(0.05))
    if version == 1:
        return Call(inputs, {"iou_threshold": float(threshold)})
    inputs["iou_threshold"] = threshold
    if version > 2:
        inputs["score_threshold"] = dtype(draw.random.uniform(0, 0.6))
    if version == 5:
        inputs["soft_nms_sigma"] = dtype(draw.choice([0, 0.3, 1]))
    return Call(inputs, {"pad_to_max_output_size": draw.bool()} if version > 3 else {}, tolerance=2e-3 if dtype == np.float16 else None)


@calls("CombinedNonMaxSuppression")
def combined_suppression(draw, _):
    images, boxes, classes = draw.int(1, 2), draw.int(1, 8), draw.int(1, 3)
    inputs = {
        "boxes": draw.array(np.float32, [images, boxes, draw.choice([1, classes]), 4], -0.5, 1.5),
        "scores": draw.array(np.float32, [images, boxes, classes], 0, 1),
        "max_output_size_per_class": np.int32(draw.int(1, 4)),
        "max_total_size": np.int32(draw.int(1, 9)),
        "iou_threshold": np.float32(draw.random.uniform(0, 1)),
        "score_threshold": np.float32(draw.random.uniform(0, 0.6)),
    }
    return Call(inputs, {"pad_per_class": draw.bool(), "clip_boxes": draw.bool()})
