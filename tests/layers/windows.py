"""Convolutions, pooling and normalization."""

from export import family
from export import floats
from keras import layers


@family
def convolutions():
    def build(x, image, volume):
        return {
            "Conv1D": layers.Conv1D(3, 2, strides=2, activation="relu")(x),
            "Conv1D__causal": layers.Conv1D(3, 2, padding="causal", dilation_rate=2)(x),
            "Conv1D__groups": layers.Conv1D(4, 3, padding="same", groups=2)(x),
            "Conv2D": layers.Conv2D(3, 3, padding="same")(image),
            "Conv2D__strides": layers.Conv2D(3, (2, 3), strides=(2, 1), use_bias=False)(image),
            "Conv2D__dilated": layers.Conv2D(3, 2, dilation_rate=(2, 3))(image),
            "Conv2D__groups": layers.Conv2D(4, 3, groups=2, padding="same")(image),
            "Conv3D": layers.Conv3D(3, 2, strides=(1, 2, 1), padding="same")(volume),
            "Conv3D__dilated": layers.Conv3D(2, 2, dilation_rate=2)(volume),
            "DepthwiseConv1D": layers.DepthwiseConv1D(3, depth_multiplier=2)(x),
            "DepthwiseConv1D__same": layers.DepthwiseConv1D(2, padding="same", strides=2)(x),
            "DepthwiseConv2D": layers.DepthwiseConv2D(3, depth_multiplier=2)(image),
            "DepthwiseConv2D__strides": layers.DepthwiseConv2D(3, 2, padding="same")(image),
            "DepthwiseConv2D__dilated": layers.DepthwiseConv2D(2, dilation_rate=2)(image),
            "SeparableConv1D": layers.SeparableConv1D(3, 2)(x),
            "SeparableConv1D__same": layers.SeparableConv1D(3, 3, padding="same")(x),
            "SeparableConv2D": layers.SeparableConv2D(3, 3, depth_multiplier=2)(image),
            "SeparableConv2D__strides": layers.SeparableConv2D(3, 3, 2, padding="same")(image),
        }

    feeds = {"x": floats(2, 6, 4), "image": floats(2, 6, 7, 4, seed=2)}
    return feeds | {"volume": floats(1, 4, 5, 4, 2, seed=3)}, build


@family
def transposed_convolutions():
    def build(x, image, volume):
        image2, volume3 = layers.Conv2DTranspose, layers.Conv3DTranspose
        return {
            "Conv1DTranspose": layers.Conv1DTranspose(3, 3)(x),
            "Conv1DTranspose__same": layers.Conv1DTranspose(3, 3, 2, padding="same")(x),
            "Conv2DTranspose": image2(3, 3)(image),
            "Conv2DTranspose__strides": image2(3, 3, 2, padding="same")(image),
            "Conv2DTranspose__wide": image2(2, (2, 4), (3, 2), activation="relu")(image),
            "Conv2DTranspose__padded": image2(2, 3, 2, output_padding=1, padding="same")(image),
            "Conv3DTranspose": volume3(2, 2)(volume),
            "Conv3DTranspose__strides": volume3(2, 3, 2, padding="same", use_bias=False)(volume),
        }

    feeds = {"x": floats(2, 4, 2), "image": floats(2, 3, 4, 2, seed=2)}
    return feeds | {"volume": floats(1, 2, 3, 3, 2, seed=3)}, build


@family
def pooling():
    def build(x, image, volume):
        inputs = {1: x, 2: image, 3: volume}
        outputs = {}
        for rank, value in inputs.items():
            for kind in ["Average", "Max"]:
                name = f"{kind}Pooling{rank}D"
                layer = getattr(layers, name)
                outputs[name] = layer(2)(value)
                outputs[f"{name}__same"] = layer(3, strides=2, padding="same")(value)
                outputs[f"{name}__strides"] = layer(2, strides=1)(value)
                layer = getattr(layers, f"Global{name}")
                outputs[f"Global{name}"] = layer()(value)
                outputs[f"Global{name}__keepdims"] = layer(keepdims=True)(value)
                layer = getattr(layers, f"Adaptive{name}")
                outputs[f"Adaptive{name}"] = layer(2)(value)
                outputs[f"Adaptive{name}__uneven"] = layer(3)(value)
        return outputs

    feeds = {"x": floats(2, 5, 3), "image": floats(2, 5, 4, 2, seed=2)}
    return feeds | {"volume": floats(1, 4, 5, 4, 2, seed=3)}, build


@family
def normalization():
    def build(x, y, image):
        return {
            "BatchNormalization": layers.BatchNormalization()(x),
            "BatchNormalization__image": layers.BatchNormalization(scale=False)(image),
            "BatchNormalization__axis": layers.BatchNormalization(axis=1)(image),
            "GroupNormalization": layers.GroupNormalization(2)(image),
            "GroupNormalization__instance": layers.GroupNormalization(-1)(image),
            "GroupNormalization__layer": layers.GroupNormalization(1)(y),
            "LayerNormalization": layers.LayerNormalization()(y),
            "LayerNormalization__axes": layers.LayerNormalization(axis=(1, 2))(y),
            "LayerNormalization__no_center": layers.LayerNormalization(center=False)(image),
            "RMSNormalization": layers.RMSNormalization()(y),
            "UnitNormalization": layers.UnitNormalization()(y),
            "UnitNormalization__axes": layers.UnitNormalization(axis=(1, 2))(y),
        }

    feeds = {"x": floats(3, 4), "y": floats(2, 3, 4, seed=2)}
    return feeds | {"image": floats(2, 3, 3, 4, seed=3)}, build
