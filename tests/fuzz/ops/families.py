"""Cases of ops that are not elementwise."""

import numpy as np

from cases import ALL, COMPLEX, FLOATS, INTS, NUMBERS, NUMPY, Case, wrong

INDEX = ["int32", "int64"]


def families(types):
    """Name and function of each op; `types(op, attr, wanted)` are TensorFlow's."""

    def of(op, make, wanted=ALL, attr="T"):
        found = types(op, attr, wanted)
        return op, lambda draw: make(draw, op, draw.one(found))

    return (
        [of(op, reduce) for op in ("Sum", "Prod", "Mean", "Max", "Min")]
        + [of(op, lambda d, op, _: reduce(d, op, "bool"), ["bool"]) for op in ("All", "Any")]
        + [of(op, extreme) for op in ("ArgMax", "ArgMin")]
        + [of(op, scan) for op in ("Cumsum", "Cumprod")]
        + [of("MatMul", mat_mul)]
        + [of(op, batch_mat_mul) for op in ("BatchMatMul", "BatchMatMulV2")]
        + [of("BatchMatMulV3", batch_mat_mul, attr="Tout"), of("Einsum", einsum), of("Einsum", einsum)]
        + [of(op, convolution) for op in ("Conv2D", "DepthwiseConv2dNative")]
        + [of("Conv2DBackpropInput", transposed)]
        + [of(op, pool) for op in ("MaxPool", "AvgPool")]
        + [of("LRN", lrn), of("BiasAdd", bias_add)]
        + [of(op, batch_norm) for op in ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")]
        + [of(op, softmax) for op in ("Softmax", "LogSoftmax")]
        + [of("Reshape", reshape), of("ExpandDims", expand_dims), of("Squeeze", squeeze)]
        + [of(op, concat) for op in ("Concat", "ConcatV2")]
        + [of("Pack", pack), of("Unpack", unpack), of("Split", split), of("SplitV", split_v)]
        + [of("Slice", slice_), of("StridedSlice", strided_slice), of("StridedSlice", strided_slice)]
        + [of("ReverseV2", reverse), of("Transpose", transpose), of("Tile", tile)]
        + [of(op, pad) for op in ("Pad", "PadV2", "MirrorPad")]
        + [of("Gather", gather, attr="Tparams"), of("GatherV2", gather, attr="Tparams"), of("GatherNd", gather_nd, attr="Tparams")]
        + [of("OneHot", one_hot), of("Fill", fill), of("BroadcastTo", broadcast_to)]
        + [("BroadcastArgs", broadcast_args), of("Range", range_, attr="Tidx")]
        + [of(op, measure) for op in ("Shape", "ShapeN", "Size", "Rank")]
        + [of(op, blocks) for op in ("SpaceToDepth", "DepthToSpace")]
        + [of("SpaceToBatchND", space_to_batch), of("BatchToSpaceND", batch_to_space)]
        + [of(op, resize) for op in ("ResizeBilinear", "ResizeNearestNeighbor")]
        + [of("Select", select), of("SelectV2", select), of("ClipByValue", clip), of("AddN", add_n)]
        + [("Cast", cast), ("Cast", cast)]
    )


def reduce(draw, op, dtype):
    shape = draw.shape()
    axes = [draw.axis(len(shape)) for _ in range(draw.int(0, len(shape)))]
    if draw.chance(0.9):
        axes = list({axis % len(shape): axis for axis in axes}.values()) if shape else []
    axes = draw.index(axes if draw.chance(0.9) or len(axes) != 1 else axes[0])
    n = int(np.prod(shape)) or 1
    case = Case(op, {"input": draw.array(dtype, shape), "axis": axes}, attrs={"keep_dims": draw.chance(0.5)})
    case.slack, case.is_sum = 8 + n, op in ("Sum", "Mean") or dtype in COMPLEX
    case.typed(Tidx=str(axes[0].dtype))
    return case if op in ("All", "Any") else case.typed(T=dtype)


def extreme(draw, op, dtype):
    shape = draw.shape(rank_min=1)
    axis = draw.index(draw.axis(len(shape)))
    out = draw.one(["int32", "int64", "int16", "uint16"] if op == "ArgMax" else INDEX)
    case = Case(op, {"input": draw.array(dtype, shape), "dimension": axis}).typed(T=dtype, Tidx=str(axis[0].dtype))
    return case.asked(output_type=out)


def scan(draw, op, dtype):
    shape = draw.shape()
    axis = draw.index(draw.axis(len(shape)))
    attrs = {"exclusive": draw.chance(0.4), "reverse": draw.chance(0.4)}
    case = Case(op, {"x": draw.array(dtype, shape), "axis": axis}, attrs=attrs, is_sum=op == "Cumsum" or dtype in COMPLEX)
    case.slack = 80
    return case.typed(T=dtype, Tidx=str(axis[0].dtype))


def sides(draw):
    """Rows, inner size, columns; sometimes large enough for blocks."""
    if draw.chance(0.1):
        return draw.int(1, 90), draw.int(1, 90), draw.int(1, 90)
    return draw.int(0, 6), draw.int(0, 6), draw.int(0, 6)


def mat_mul(draw, op, dtype):
    m, k, n = sides(draw)
    transposed = draw.chance(0.4), draw.chance(0.4)
    a = [k, m] if transposed[0] else [m, k]
    b = [n, wrong(draw, k)] if transposed[1] else [wrong(draw, k), n]
    style = draw.one(["plain", "small", "small", "special"])
    case = Case(op, {"a": draw.array(dtype, a, style), "b": draw.array(dtype, b, style)}, is_sum=True, slack=20 + k)
    case.attrs = {"transpose_a": transposed[0], "transpose_b": transposed[1]}
    if draw.chance(0.03):
        case.inputs["a"] = draw.array(dtype, draw.shape())
    return case.typed(T=dtype)


def batch_mat_mul(draw, op, dtype):
    m, k, n = sides(draw)
    batch = draw.shape(3, most=3)
    left, right = (batch, batch) if op == "BatchMatMul" and draw.chance(0.95) else broadcast_of(draw, batch)
    transposed = draw.chance(0.4), draw.chance(0.4)
    x = left + ([k, m] if transposed[0] else [m, k])
    y = right + ([n, wrong(draw, k)] if transposed[1] else [wrong(draw, k), n])
    style = draw.one(["plain", "small", "small", "special"])
    case = Case(op, {"x": draw.array(dtype, x, style), "y": draw.array(dtype, y, style)}, is_sum=True, slack=20 + k)
    case.attrs = {"adj_x": transposed[0], "adj_y": transposed[1]}
    if op == "BatchMatMulV3":
        return case.typed(Ta=dtype, Tb=dtype).asked(Tout=dtype)
    return case.typed(T=dtype)


def broadcast_of(draw, shape):
    made = []
    for _ in range(2):
        own = [1 if draw.chance(0.3) else dim for dim in shape]
        made.append(own[draw.drop(len(own)):])
    return made


def einsum(draw, op, dtype):
    letters = "abcdef"[: draw.int(1, 6)]
    sizes = {letter: draw.int(0 if draw.chance(0.05) else 1, 4) for letter in letters}
    terms, shapes = [], []
    for _ in range(draw.int(1, 2)):
        term = [draw.one(letters) for _ in range(draw.int(0, 4))]
        shape = [sizes[letter] for letter in term]
        if draw.chance(0.2):
            at = draw.int(0, len(term))
            extra = [draw.one([1, 2]) for _ in range(draw.int(0, 2))]
            term.insert(at, "...")
            shape[at:at] = extra
        terms.append("".join(term))
        shapes.append([wrong(draw, dim) if draw.chance(0.1) else dim for dim in shape])
    used = sorted({letter for term in terms for letter in term if letter != "."})
    kept = [letter for letter in used if draw.chance(0.5)]
    draw.rng.shuffle(kept)
    if draw.chance(0.08) and kept:
        kept.append(draw.one(kept))
    if any("..." in term for term in terms):
        kept.insert(draw.int(0, len(kept)), "...")
    equation = ",".join(terms) + "->" + "".join(kept)
    style = draw.one(["plain", "small"])
    arrays = [draw.values(dtype, shape, style) for shape in shapes]
    n = int(np.prod([max(size, 1) for size in sizes.values()]))
    case = Case(op, {"inputs": arrays}, {"inputs"}, {"equation": equation, "N": len(arrays)}, {"N"}, is_sum=True, slack=40 + 4 * n)
    return case.typed(T=dtype)


def windows(draw, op, explicit=True):
    stride = draw.int(1, 3)
    strides = [1, stride, stride if draw.chance(0.7) else draw.int(1, 3), 1]
    padding = draw.one(["SAME", "VALID"] + (["EXPLICIT"] if explicit else []))
    attrs = {"strides": strides, "padding": padding}
    if padding == "EXPLICIT":
        attrs["explicit_paddings"] = [0, 0] + [draw.int(0, 2) for _ in range(4)] + [0, 0]
    return attrs


def convolution(draw, op, dtype):
    batch, rows, columns, channels = draw.int(0, 2), draw.int(1, 8), draw.int(1, 8), draw.int(1, 5)
    filter_channels = wrong(draw, channels)
    if op == "Conv2D" and draw.chance(0.1):
        channels = filter_channels * 2
    taps = [draw.int(1, 4), draw.int(1, 4)]
    out = draw.int(1, 6)
    style = draw.one(["plain", "small", "special"])
    case = Case(op, {"input": draw.array(dtype, [batch, rows, columns, channels], style)})
    case.inputs["filter"] = draw.array(dtype, taps + [filter_channels, out], style)
    case.attrs = windows(draw, op)
    if op == "Conv2D" and draw.chance(0.2):
        case.attrs["dilations"] = [1, draw.int(1, 3), draw.int(1, 3), 1]
    case.is_sum, case.slack = True, 60
    return case.typed(T=dtype)


def transposed(draw, op, dtype):
    batch, rows, columns, channels, out = draw.int(1, 2), draw.int(1, 7), draw.int(1, 7), draw.int(1, 3), draw.int(1, 4)
    taps = [draw.int(1, 3), draw.int(1, 3)]
    attrs = windows(draw, op)
    places = []
    for axis, (size, tap) in enumerate(zip((rows, columns), taps)):
        stride = attrs["strides"][1 + axis]
        if attrs["padding"] == "SAME":
            places.append(-(-size // stride))
        else:
            around = sum(attrs.get("explicit_paddings", [0] * 8)[2 + 2 * axis:4 + 2 * axis])
            places.append(max(0, (size + around - tap) // stride + 1))
    case = Case(op, {"input_sizes": draw.index([batch, rows, columns, channels], "int32")}, attrs=attrs, is_sum=True, slack=60)
    case.inputs["filter"] = draw.array(dtype, taps + [channels, out], "small")
    case.inputs["out_backprop"] = draw.array(dtype, [batch, wrong(draw, places[0]), places[1], out], "small")
    return case.typed(T=dtype)


def pool(draw, op, dtype):
    argument = "input" if op == "MaxPool" else "value"
    shape = [draw.int(0, 2), draw.int(1, 8), draw.int(1, 8), draw.int(1, 5)]
    attrs = windows(draw, op, explicit=op == "MaxPool")
    attrs["ksize"] = [1, draw.int(1, 4), draw.int(1, 4), 1]
    if draw.chance(0.03):
        attrs[draw.one(["ksize", "strides"])][1] = draw.one([2**31, 2**31 - 1, 0, -1])
    case = Case(op, {argument: draw.array(dtype, shape)}, attrs=attrs, is_sum=op == "AvgPool", slack=20)
    return case.typed(T=dtype)


def lrn(draw, op, dtype):
    shape = [draw.int(0, 2), draw.int(1, 3), draw.int(1, 3), draw.int(1, 20)]
    style = draw.one(["plain", "small"])
    case = Case(op, {"input": draw.array(dtype, shape, style)}, slack=60)
    number = lambda *options: float(np.float32(draw.one(options)))
    case.attrs = {"depth_radius": draw.one([0, 1, 2, 5, 40]), "bias": number(1, 2, 0.5, 0), "alpha": number(1, 0.1, 0, -1, -0.3)}
    case.attrs["beta"] = number(0.5, 0.75, 1, 2, -1)
    if draw.chance(0.03):
        case.attrs["depth_radius"] = draw.one([2**31, -1])
    return case.typed(T=dtype)


def bias_add(draw, op, dtype):
    shape = draw.shape(rank_min=2, rank_max=5)
    first = draw.chance(0.3)
    n = shape[1] if first and len(shape) > 1 else shape[-1]
    attrs = {"data_format": "NCHW" if first else "NHWC"}
    return Case(op, {"value": draw.array(dtype, shape), "bias": draw.array(dtype, [wrong(draw, n)])}, attrs=attrs).typed(T=dtype)


def batch_norm(draw, op, dtype):
    first = draw.chance(0.3)
    shape = [draw.int(1, 3), draw.int(1, 4), draw.int(1, 4), draw.int(1, 5)]
    n = shape[1] if first else shape[3]
    training = draw.chance(0.5)
    case = Case(op, {"x": draw.array(dtype, shape, "plain")}, n_outputs=6 if op == "FusedBatchNormV3" else 5)
    for name in ("scale", "offset", "mean", "variance"):
        values = draw.values("float", [wrong(draw, n)], "plain")
        case.inputs[name] = [np.abs(values) if name == "variance" else values]
    case.attrs = {"is_training": training, "epsilon": float(np.float32(draw.one([1e-3, 1e-4]))), "data_format": "NCHW" if first else "NHWC"}
    if training and draw.chance(0.8):
        for name in ("mean", "variance"):
            case.inputs[name] = [np.zeros([0], np.float32)]
    case.is_sum, case.slack = True, 4000
    # Outputs for gradients are uninitialised memory.
    case.n_compared = None if training else 3
    return case.typed(T=dtype) if op == "FusedBatchNorm" else case.typed(T=dtype, U="float")


def softmax(draw, op, dtype):
    case = Case(op, {"logits": draw.array(dtype, draw.shape())}, is_sum=True, slack=40)
    return case.typed(T=dtype)


def reshape(draw, op, dtype):
    shape = draw.shape()
    n = int(np.prod(shape))
    parts = []
    rest = n
    while rest > 1 and len(parts) < 4:
        divisors = [d for d in range(1, rest + 1) if rest % d == 0]
        parts.append(draw.one(divisors))
        rest //= parts[-1]
    parts.append(rest)
    if draw.chance(0.02):
        parts = [n] + [1] * draw.one([252, 253, 254, 300])
    if draw.chance(0.3):
        parts[draw.int(0, len(parts) - 1)] = -1
    if draw.chance(0.06):
        parts[draw.int(0, len(parts) - 1)] = draw.int(-2, 6)
    sizes = draw.index(parts)
    return Case(op, {"tensor": draw.array(dtype, shape), "shape": sizes}).typed(T=dtype, Tshape=str(sizes[0].dtype))


def expand_dims(draw, op, dtype):
    shape = draw.shape()
    axis = draw.index(draw.axis(len(shape) + 1))
    return Case(op, {"input": draw.array(dtype, shape), "axis": axis}).typed(T=dtype, Tdim=str(axis[0].dtype))


def squeeze(draw, op, dtype):
    shape = [1 if draw.chance(0.5) else dim for dim in draw.shape()]
    axes = [axis for axis, dim in enumerate(shape) if (dim == 1 or draw.chance(0.03)) and draw.chance(0.4)]
    axes = [axis - len(shape) if draw.chance(0.3) else axis for axis in axes]
    return Case(op, {"input": draw.array(dtype, shape)}, attrs={"squeeze_dims": axes}).typed(T=dtype)


def joined(draw, dtype):
    shape = draw.shape(rank_min=1)
    axis = draw.axis(len(shape))
    arrays = []
    for _ in range(draw.int(2, 4)):
        own = list(shape)
        if -len(shape) <= axis < len(shape):
            own[axis] = draw.int(0, 4)
        if draw.chance(0.02):
            own[draw.int(0, len(own) - 1)] += 1
        arrays.append(draw.values(dtype, own))
    return arrays, axis


def concat(draw, op, dtype):
    arrays, axis = joined(draw, dtype)
    n = {"N": len(arrays)}
    if op == "Concat":
        return Case(op, {"concat_dim": draw.index(axis, "int32"), "values": arrays}, {"values"}, n, {"N"}).typed(T=dtype)
    at = draw.index(axis)
    return Case(op, {"values": arrays, "axis": at}, {"values"}, n, {"N"}).typed(T=dtype, Tidx=str(at[0].dtype))


def pack(draw, op, dtype):
    shape = draw.shape(rank_max=3)
    arrays = [draw.values(dtype, [wrong(draw, dim) for dim in shape] if draw.chance(0.05) else shape) for _ in range(draw.int(1, 4))]
    return Case(op, {"values": arrays}, {"values"}, {"axis": draw.axis(len(shape) + 1), "N": len(arrays)}, {"N"}).typed(T=dtype)


def unpack(draw, op, dtype):
    shape = draw.shape(rank_min=1, least=1)
    axis = draw.axis(len(shape))
    n = shape[axis] if -len(shape) <= axis < len(shape) else 1
    n = wrong(draw, n)
    return Case(op, {"value": draw.array(dtype, shape)}, attrs={"num": n, "axis": axis}, n_outputs=n).typed(T=dtype)


def split(draw, op, dtype):
    shape = draw.shape(rank_min=1)
    axis, n = draw.axis(len(shape)), draw.int(1, 4)
    if -len(shape) <= axis < len(shape) and draw.chance(0.95):
        shape[axis] = n * draw.int(0, 3)
    case = Case(op, {"axis": draw.index(axis, "int32"), "value": draw.array(dtype, shape)}, attrs={"num_split": n}, n_outputs=n)
    return case.typed(T=dtype)


def split_v(draw, op, dtype):
    shape = draw.shape(rank_min=1)
    axis = draw.axis(len(shape))
    sizes = [draw.int(0, 3) for _ in range(draw.int(1, 4))]
    if -len(shape) <= axis < len(shape):
        shape[axis] = wrong(draw, sum(sizes))
    if draw.chance(0.3):
        sizes[draw.int(0, len(sizes) - 1)] = -1
    lengths = draw.index(sizes)
    case = Case(op, {"value": draw.array(dtype, shape), "size_splits": lengths, "axis": draw.index(axis, "int32")})
    case.attrs, case.n_outputs = {"num_split": len(sizes)}, len(sizes)
    return case.typed(T=dtype, Tlen=str(lengths[0].dtype))


def slice_(draw, op, dtype):
    shape = draw.shape()
    begin = [draw.int(0, dim) for dim in shape]
    size = [-1 if draw.chance(0.2) else draw.int(0, dim - b) for dim, b in zip(shape, begin)]
    if shape and draw.chance(0.05):
        draw.one([begin, size])[draw.int(0, len(shape) - 1)] = draw.int(-3, 9)
    kind = draw.one(["int32", "int64"])
    case = Case(op, {"input": draw.array(dtype, shape), "begin": draw.index(begin, kind), "size": draw.index(size, kind)})
    return case.typed(T=dtype, Index=kind)


def strided_slice(draw, op, dtype):
    shape = draw.shape()
    n = max(0, min(len(shape) + draw.one([-1, 0, 0, 0, 1]), 9))
    kind = draw.one(["int32", "int64"])
    dims = (shape + [1] * 9)[:n]
    begin, end = ([draw.int(-dim - 1, dim + 1) for dim in dims] for _ in range(2))
    strides = [draw.one([1, 1, 1, 2, -1, -2] + ([0] if draw.chance(0.05) else [])) for _ in dims]
    bits = lambda p: sum(1 << i for i in range(n) if draw.chance(p))
    case = Case(op, {"input": draw.array(dtype, shape)})
    for name, values in (("begin", begin), ("end", end), ("strides", strides)):
        case.inputs[name] = draw.index(values, kind)
    case.attrs = {"begin_mask": bits(0.2), "end_mask": bits(0.2), "new_axis_mask": bits(0.08), "shrink_axis_mask": bits(0.12)}
    case.attrs["ellipsis_mask"] = 1 << draw.int(0, n - 1) if n and draw.chance(0.15) else 0
    return case.typed(T=dtype, Index=kind)


def reverse(draw, op, dtype):
    shape = draw.shape()
    axes = [axis - len(shape) if draw.chance(0.3) else axis for axis in range(len(shape)) if draw.chance(0.4)]
    if draw.chance(0.04):
        axes.append(draw.axis(len(shape)))
    axes = draw.index(axes)
    return Case(op, {"tensor": draw.array(dtype, shape), "axis": axes}).typed(T=dtype, Tidx=str(axes[0].dtype))


def transpose(draw, op, dtype):
    shape = draw.shape()
    order = list(range(len(shape)))
    draw.rng.shuffle(order)
    if order and draw.chance(0.04):
        order[0] = draw.axis(len(shape))
    order = draw.index(order)
    return Case(op, {"x": draw.array(dtype, shape), "perm": order}).typed(T=dtype, Tperm=str(order[0].dtype))


def tile(draw, op, dtype):
    shape = draw.shape(most=4)
    multiples = [draw.int(-1 if draw.chance(0.02) else 0, 3) for _ in range(wrong(draw, len(shape)))]
    multiples = draw.index(multiples)
    return Case(op, {"input": draw.array(dtype, shape), "multiples": multiples}).typed(T=dtype, Tmultiples=str(multiples[0].dtype))


def pad(draw, op, dtype):
    shape = draw.shape(rank_max=5)
    most = 2 if op != "MirrorPad" else 1
    paddings = draw.index([[draw.int(-1 if draw.chance(0.02) else 0, most) for _ in range(2)] for _ in range(wrong(draw, len(shape)))])
    if not len(paddings[0]):
        paddings = [paddings[0].reshape(0, 2)]
    case = Case(op, {"input": draw.array(dtype, shape), "paddings": paddings})
    if op == "PadV2":
        case.inputs["constant_values"] = draw.array(dtype, [])
    if op == "MirrorPad":
        case.attrs["mode"] = draw.one(["REFLECT", "SYMMETRIC"])
    return case.typed(T=dtype, Tpaddings=str(paddings[0].dtype))


def indices(draw, shape, length, kinds=("int32", "int64")):
    values = draw.rng.integers(0, max(length, 1), shape)
    if draw.chance(0.04) and values.size:
        values.flat[draw.int(0, values.size - 1)] = draw.one([-1, length, length + 5])
    return values.astype(NUMPY[draw.one(kinds)])


def gather(draw, op, dtype):
    shape = draw.shape(rank_min=1)
    if op == "Gather":
        at = indices(draw, draw.shape(3), shape[0])
        return Case(op, {"params": draw.array(dtype, shape), "indices": [at]}).typed(Tparams=dtype, Tindices=str(at.dtype))
    axis = draw.axis(len(shape))
    batch = draw.int(0, axis % len(shape)) if draw.chance(0.3) and -len(shape) <= axis < len(shape) else 0
    wanted = shape[:batch] + draw.shape(2)
    length = shape[axis] if -len(shape) <= axis < len(shape) else 1
    at = indices(draw, wanted, length, ("int16", "int32", "int64"))
    if draw.chance(0.3):
        batch -= len(wanted)
    kind = draw.index(axis)
    case = Case(op, {"params": draw.array(dtype, shape), "indices": [at], "axis": kind}, attrs={"batch_dims": batch})
    return case.typed(Tparams=dtype, Tindices=str(at.dtype), Taxis=str(kind[0].dtype))


def gather_nd(draw, op, dtype):
    shape = draw.shape(rank_min=1)
    depth = draw.int(0, len(shape))
    rows = draw.shape(2)
    at = np.stack([indices(draw, rows, dim, ("int64",)) for dim in shape[:depth]], -1) if depth else np.zeros(rows + [0], np.int64)
    at = at.astype(NUMPY[draw.one(["int16", "int32", "int64"])])
    case = Case(op, {"params": draw.array(dtype, shape), "indices": [at]}).typed(Tparams=dtype, Tindices=str(at.dtype))
    if draw.chance(0.2):
        case.attrs["bad_indices_policy"] = draw.one(["", "DEFAULT", "ERROR", "IGNORE"])
    return case


def one_hot(draw, op, dtype):
    shape = draw.shape(3)
    at = draw.rng.integers(-1 if draw.chance(0.5) else 0, 5, shape)
    kind = draw.one(["uint8", "int8", "int32", "int64"])
    at = np.maximum(at, 0) if kind == "uint8" else at
    case = Case(op, {"indices": [at.astype(NUMPY[kind])], "depth": draw.index(draw.int(-1 if draw.chance(0.03) else 0, 6), "int32")})
    case.inputs["on_value"], case.inputs["off_value"] = draw.array(dtype, []), draw.array(dtype, [])
    case.attrs["axis"] = draw.one([-1, draw.int(0, len(shape)), draw.int(-2, 4)])
    return case.typed(T=dtype, TI=kind)


def fill(draw, op, dtype):
    dims = draw.shape()
    if dims and draw.chance(0.03):
        dims[0] = -1
    dims = draw.index(dims)
    return Case(op, {"dims": dims, "value": draw.array(dtype, [])}).typed(T=dtype, index_type=str(dims[0].dtype))


def broadcast_to(draw, op, dtype):
    whole = draw.shape()
    own = [1 if draw.chance(0.3) else wrong(draw, dim) if draw.chance(0.1) else dim for dim in whole]
    sizes = draw.index(whole)
    case = Case(op, {"input": draw.array(dtype, own[draw.drop(len(own)):]), "shape": sizes})
    return case.typed(T=dtype, Tidx=str(sizes[0].dtype))


def broadcast_args(draw):
    kind = draw.one(["int32", "int64"])
    left, right = draw.pair()
    return Case("BroadcastArgs", {"s0": draw.index(left, kind), "s1": draw.index(right, kind)}).typed(T=kind)


def range_(draw, op, dtype):
    number = lambda low, high: draw.int(low, high) if dtype in INTS or draw.chance(0.4) else draw.rng.uniform(low, high)
    start, limit = number(-20, 20), number(-20, 60)
    delta = draw.one([1, 2, number(1, 5), 0.1 if dtype not in INTS else 3])
    delta = delta if limit >= start or draw.chance(0.03) else -delta
    values = [np.array(value).astype(NUMPY[dtype]) for value in (start, limit, 0 if draw.chance(0.02) else delta)]
    return Case(op, dict(zip(("start", "limit", "delta"), ([value] for value in values)))).typed(Tidx=dtype)


def measure(draw, op, dtype):
    if op == "ShapeN":
        arrays = [draw.values(dtype, draw.shape()) for _ in range(draw.int(1, 3))]
        case = Case(op, {"input": arrays}, {"input"}, {"N": len(arrays)}, {"N"}, n_outputs=len(arrays))
    else:
        case = Case(op, {"input": draw.array(dtype, draw.shape())})
    case.typed(T=dtype)
    return case if op == "Rank" else case.asked(out_type=draw.one(INDEX))


def blocks(draw, op, dtype):
    block = draw.int(2, 3)
    shape = [draw.int(0, 2), draw.int(0, 3), draw.int(1, 3), draw.int(1, 3)]
    if op == "SpaceToDepth":
        shape = [shape[0], shape[1] * block, wrong(draw, shape[2] * block), shape[3]]
    else:
        shape[3] = wrong(draw, shape[3] * block * block)
    return Case(op, {"input": draw.array(dtype, shape)}, attrs={"block_size": block}).typed(T=dtype)


def space_to_batch(draw, op, dtype):
    n = draw.int(1, 2)
    sizes = [draw.int(1, 3) for _ in range(n)]
    margins, space = [], []
    for size in sizes:
        margin = [draw.int(0, 2), draw.int(0, 2)]
        whole = size * draw.int(1, 3)
        while whole < sum(margin):
            whole += size
        margins.append(margin)
        space.append(wrong(draw, whole - sum(margin)))
    shape = [draw.int(1, 3)] + space + [draw.int(1, 3) for _ in range(draw.int(0, 2))]
    kinds = draw.index(sizes), draw.index(margins)
    case = Case(op, {"input": draw.array(dtype, shape), "block_shape": kinds[0], "paddings": kinds[1]})
    return case.typed(T=dtype, Tblock_shape=str(kinds[0][0].dtype), Tpaddings=str(kinds[1][0].dtype))


def batch_to_space(draw, op, dtype):
    n = draw.int(1, 2)
    sizes = [draw.int(1, 3) for _ in range(n)]
    shape = [wrong(draw, draw.int(1, 2) * int(np.prod(sizes)))] + [draw.int(1, 3) for _ in range(n + draw.int(0, 2))]
    crops = []
    for size, dim in zip(sizes, shape[1:]):
        first = draw.int(0, size * dim)
        crops.append([first, draw.int(0, max(0, size * dim - first))])
    kinds = draw.index(sizes), draw.index(crops)
    case = Case(op, {"input": draw.array(dtype, shape), "block_shape": kinds[0], "crops": kinds[1]})
    return case.typed(T=dtype, Tblock_shape=str(kinds[0][0].dtype), Tcrops=str(kinds[1][0].dtype))


def resize(draw, op, dtype):
    shape = [draw.int(0, 2), draw.int(1, 5), draw.int(1, 5), draw.int(1, 3)]
    size = draw.index([draw.int(0 if draw.chance(0.03) else 1, 9), draw.int(1, 9)], "int32")
    case = Case(op, {"images": draw.array(dtype, shape, draw.one(["plain", "small"])), "size": size}, is_sum=True, slack=8)
    way = draw.int(0, 2)
    case.attrs = {"align_corners": way == 1, "half_pixel_centers": way == 2}
    return case.typed(T=dtype)


def select(draw, op, dtype):
    if op == "Select":
        shape = draw.shape()
        condition = draw.one([shape, shape, [], shape[:1]])
        t = e = shape
    else:
        whole = draw.shape()
        (condition, t), (e, _) = broadcast_of(draw, whole), broadcast_of(draw, whole)
    names = ("condition", "t", "e")
    arrays = [draw.array("bool", condition), draw.array(dtype, t), draw.array(dtype, e)]
    return Case(op, dict(zip(names, arrays))).typed(T=dtype)


def clip(draw, op, dtype):
    shape = draw.shape()
    bound = lambda: draw.array(dtype, draw.one([[], shape]))
    return Case(op, {"t": draw.array(dtype, shape), "clip_value_min": bound(), "clip_value_max": bound()}).typed(T=dtype)


def add_n(draw, op, dtype):
    shape = draw.shape()
    arrays = [draw.values(dtype, shape) for _ in range(draw.int(1, 5))]
    if draw.chance(0.04):
        arrays[-1] = draw.values(dtype, draw.shape())
    case = Case(op, {"inputs": arrays}, {"inputs"}, {"N": len(arrays)}, {"N"}, is_sum=True, slack=16)
    return case.typed(T=dtype)


def cast(draw):
    source, target = draw.one(ALL), draw.one(ALL)
    attrs = {"Truncate": True} if draw.chance(0.2) else {}
    x = draw.values(source, draw.shape())
    if target in INTS and source not in INTS + ["bool"]:
        # Beyond the range of an integer, C++ leaves the result undefined, and TensorFlow's vector
        # code differs from its code for the remainder.
        info = np.iinfo(NUMPY[target])
        wide = np.nan_to_num(x.real.astype(np.float64), nan=0.0)
        with np.errstate(over="ignore"):
            small = np.clip(wide, info.min / 2, info.max / 2).astype(NUMPY[source])
        x = np.where((x.real == small) & np.isfinite(x.real.astype(np.float64)), x, small)
    return Case("Cast", {"x": [x]}, attrs=attrs).typed(SrcT=source).asked(DstT=target)
