"""Calls of ops on images and volumes."""

import numpy as np

from draw import ARITHMETIC
from draw import INDICES
from draw import NUMBERS
from draw import REALS
from draw import Call
from draw import bfloat16
from draw import calls


def rough(dtype):
    """Returns a tolerance for sums of a type."""
    return {np.float16: 3e-2, bfloat16: 2e-1}.get(dtype)


def windows(sizes, window, strides, padding):
    """Returns the numbers of windows along axes."""
    return [-(-s // t) if padding == "SAME" else max((s - w + t) // t, 0) for s, w, t in zip(sizes, window, strides)]


def volumes(draw):
    """Draws sizes, windows, strides and padding that give results: TensorFlow's own are of wrong shapes if empty."""
    while True:
        sizes, window, strides = (draw.shape(3, 3, high, 0) for high in (6, 3, 3))
        padding = draw.choice(["SAME", "VALID"])
        if all(windows(sizes, window, strides, padding)):
            return sizes, window, strides, padding


@calls("Conv3D")
def conv_3d(draw, _):
    dtype = draw.choice(REALS)
    channels = draw.int(1, 3)
    sizes, window, strides, padding = volumes(draw)
    image = draw.array(dtype, [draw.int(1, 2), *sizes, channels], -1, 1)
    filters = draw.array(dtype, [*window, channels + draw.bool(0.05), draw.int(1, 4)], -1, 1)
    attrs = {"strides": [1, *strides, 1], "padding": padding}
    if padding == "SAME" and dtype == np.float32 and draw.bool(0.2):
        attrs["dilations"] = [1, 2, 1, 1, 1]
    return Call({"input": image, "filter": filters}, attrs, tolerance=rough(dtype))


@calls("Conv3DBackpropInputV2")
def conv_3d_transposed(draw, _):
    dtype = draw.choice(REALS)
    sizes, window, strides, padding = volumes(draw)
    places = windows(sizes, window, strides, padding)
    batch, channels, depth = draw.int(1, 2), draw.int(1, 3), draw.int(1, 3)
    inputs = {
        "input_sizes": np.array([batch, *sizes, channels], draw.choice(INDICES)),
        "filter": draw.array(dtype, [*window, channels, depth], -1, 1),
        "out_backprop": draw.array(dtype, [batch, *places, depth], -1, 1),
    }
    return Call(inputs, {"strides": [1, *strides, 1], "padding": padding}, tolerance=rough(dtype))


@calls("Conv2DBackpropInput")
def conv_2d_transposed(draw, _):
    dtype = draw.choice(REALS + [np.int32])
    sizes, window, strides = (draw.shape(2, 2, high, 0) for high in (7, 3, 2))
    padding = draw.choice(["SAME", "VALID"])
    places = windows(sizes, window, strides, padding)
    groups = 2 if draw.bool(0.1) else 1
    batch, channels, depth = draw.int(1, 2), draw.int(1, 3), groups * draw.int(1, 3)
    inputs = {
        "input_sizes": np.array([batch, *sizes, channels * groups], np.int32),
        "filter": draw.array(dtype, [*window, channels, depth], -1, 1),
        "out_backprop": draw.array(dtype, [batch, *places, depth], -1, 1),
    }
    attrs = {"strides": [1, *strides, 1], "padding": padding}
    if draw.bool(0.1):
        attrs["dilations"] = [1, 2, 2, 1]
    return Call(inputs, attrs, tolerance=rough(dtype))


@calls("MaxPool3D", "AvgPool3D")
def pool_3d(draw, _):
    dtype = draw.choice([np.float32, bfloat16])
    image = draw.array(dtype, [draw.int(0, 2), *draw.shape(3, 3, 6, 0), draw.int(1, 3)])
    attrs = {"ksize": [1, *draw.shape(3, 3, 3, 0), 1], "strides": [1, *draw.shape(3, 3, 3, 0), 1], "padding": draw.choice(["SAME", "VALID"])}
    return Call({"input": image}, attrs)


@calls("MaxPoolV2")
def max_pool_v2(draw, _):
    # The op's definition allows fewer types than there are kernels for.
    dtype = draw.choice([t for t in NUMBERS if t not in (np.uint32, np.uint64)])
    inputs = {
        "input": draw.array(dtype, [draw.int(1, 2), *draw.shape(2, 2, 7, 0), draw.int(1, 3)]),
        "ksize": np.array([1, *draw.shape(2, 2, 3, 0), 1], np.int32),
        "strides": np.array([1, *draw.shape(2, 2, 3, 0), 1], np.int32),
    }
    return Call(inputs, {"padding": draw.choice(["SAME", "VALID"])})


@calls("MaxPoolWithArgmax")
def max_pool_with_argmax(draw, _):
    image = draw.array(draw.choice(NUMBERS), [draw.int(1, 3), *draw.shape(2, 2, 7, 0), draw.int(1, 3)])
    attrs = {"ksize": [1, *draw.shape(2, 2, 3, 0), 1], "strides": [1, *draw.shape(2, 2, 2, 0), 1], "padding": draw.choice(["SAME", "VALID"])}
    attrs |= {"Targmax": draw.choice(INDICES), "include_batch_in_index": draw.bool()}
    return Call({"input": image}, attrs)


@calls("Dilation2D")
def dilation(draw, _):
    dtype = draw.choice(NUMBERS)
    channels = draw.int(1, 3)
    image = draw.array(dtype, [draw.int(1, 2), *draw.shape(2, 2, 7, 0), channels])
    filters = draw.array(dtype, [*draw.shape(2, 2, 3, 0), channels])
    attrs = {"strides": [1, *draw.shape(2, 2, 2, 0), 1], "rates": [1, *draw.shape(2, 2, 2, 0), 1], "padding": draw.choice(["SAME", "VALID"])}
    return Call({"input": image, "filter": filters}, attrs)


@calls("ExtractImagePatches")
def patches(draw, _):
    image = draw.array(draw.choice(ARITHMETIC), [draw.int(1, 2), *draw.shape(2, 2, 7, 0), draw.int(1, 3)])
    attrs = {name: [1, *draw.shape(2, 2, high, 0), 1] for name, high in (("ksizes", 3), ("strides", 3), ("rates", 2))}
    return Call({"images": image}, attrs | {"padding": draw.choice(["SAME", "VALID"])})


@calls("AdjustContrastv2")
def contrast(draw, _):
    return Call({"images": draw.array(np.float32, draw.shape(3, 5, 5)), "contrast_factor": np.float32(draw.random.uniform(-1, 3))})


@calls("AdjustHue", "AdjustSaturation")
def adjusted(draw, op):
    image = draw.array(np.float32, draw.shape(2, 4, 5) + [3], 0, 1)
    if draw.bool(0.2):
        image = np.round(image)
    amount = np.float32(draw.random.uniform(-1, 1) if op == "AdjustHue" else draw.random.uniform(0, 3))
    return Call({"images": image, "delta" if op == "AdjustHue" else "scale": amount})


@calls("RGBToHSV", "HSVToRGB")
def converted(draw, _):
    dtype = draw.choice(REALS)
    image = draw.array(dtype, draw.shape(0, 3, 5) + [3], 0, 1)
    return Call({"images": image}, tolerance={np.float16: 5e-3, bfloat16: 4e-2}.get(dtype))


@calls("ImageProjectiveTransformV2", "ImageProjectiveTransformV3")
def projective(draw, op):
    dtype = draw.choice([np.uint8, np.int32, np.int64, np.float16, bfloat16, np.float32, np.float64])
    batch = draw.int(1, 3)
    transforms = np.array([[1, 0, 0, 0, 1, 0, 0, 0]] * draw.choice([1, batch]), np.float32)
    transforms += draw.array(np.float32, transforms.shape, -1, 1) * np.array([0.7, 0.7, 3, 0.7, 0.7, 3, 0.05, 0.05], np.float32)
    inputs = {
        "images": draw.array(dtype, [batch, *draw.shape(2, 2, 6, 0), draw.int(1, 3)]),
        "transforms": transforms,
        "output_shape": draw.array(np.int32, [2], 1, 6),
    }
    if op.endswith("V3"):
        inputs["fill_value"] = np.float32(draw.int(0, 3))
    attrs = {"interpolation": draw.choice(["NEAREST", "BILINEAR"]), "fill_mode": draw.choice(["CONSTANT", "REFLECT", "WRAP", "NEAREST"])}
    whole = np.dtype(dtype).kind in "iu"
    # Interpolated whole numbers are truncated, just below or just above one.
    return Call(inputs, attrs, tolerance=1 if whole else {np.float32: 1e-4, np.float64: 1e-4}.get(dtype))


@calls("ResizeArea", "ResizeBicubic")
def resized(draw, op):
    # The op's definition allows fewer types than there are kernels for.
    dtype = draw.choice([np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.float16, np.float32, np.float64, bfloat16])
    attrs = {"align_corners": draw.bool(0.4)}
    if op == "ResizeBicubic":
        attrs["half_pixel_centers"] = not attrs["align_corners"] and draw.bool()
    inputs = {"images": draw.array(dtype, [draw.int(0, 2), *draw.shape(2, 2, 7, 0), draw.int(1, 3)]), "size": draw.array(np.int32, [2], 1, 9)}
    return Call(inputs, attrs, tolerance=1e-4)


@calls("CropAndResize")
def cropped(draw, _):
    dtype = draw.choice([np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.float16, np.float32, np.float64])
    batch, n = draw.int(1, 3), draw.int(0, 4)
    inputs = {
        "image": draw.array(dtype, [batch, *draw.shape(2, 2, 6, 0), draw.int(1, 3)]),
        "boxes": draw.array(np.float32, [n, 4], -0.2, 1.2),
        "box_ind": draw.array(np.int32, [n], 0, batch - 1 + draw.bool(0.05)),
        "crop_size": draw.array(np.int32, [2], 1, 5),
    }
    return Call(inputs, {"method": draw.choice(["bilinear", "nearest"]), "extrapolation_value": float(draw.int(0, 3))}, tolerance=1e-4)


@calls("DrawBoundingBoxes", "DrawBoundingBoxesV2")
def boxes(draw, op):
    batch, channels = draw.int(0, 2), draw.choice([1, 3, 4])
    inputs = {
        "images": draw.array(draw.choice([np.float16, np.float32]), [batch, *draw.shape(2, 2, 8, 0), channels], 0, 1),
        "boxes": draw.array(np.float32, [batch, draw.int(0, 12), 4], -0.3, 1.3),
    }
    if op.endswith("V2"):
        inputs["colors"] = draw.array(np.float32, [draw.int(0, 3), channels], 0, 1)
    return Call(inputs)
