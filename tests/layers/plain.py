"""Layers without state: dense ones, activations, merges and shapes."""

import keras
import numpy as np
from export import family
from export import floats
from export import ints
from keras import layers
from keras import ops


@family
def dense():
    def build(x, y):
        spectral = layers.SpectralNormalization(layers.Dense(3, name="inner"))
        return {
            "Dense__relu": layers.Dense(3, activation="relu")(x),
            "Dense__no_bias": layers.Dense(3, use_bias=False)(y),
            "Dense__lora": layers.Dense(3, lora_rank=2)(x),
            "EinsumDense__dense": layers.EinsumDense("ab,bc->ac", 3, bias_axes="c")(x),
            "EinsumDense__heads": layers.EinsumDense(
                "abc,cde->abde", (None, 2, 3), bias_axes="de", activation="tanh"
            )(y),
            "EinsumDense__ellipsis": layers.EinsumDense("...x,xy->...y", (3, 2))(y),
            "SpectralNormalization": spectral(x),
            "TimeDistributed": layers.TimeDistributed(layers.Dense(2))(y),
            "Identity": layers.Identity()(x),
        }

    return {"x": floats(2, 4), "y": floats(2, 3, 5, seed=2)}, build


@family
def activations():
    names = """celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_tanh leaky_relu
    linear log_sigmoid log_softmax mish relu relu6 selu sigmoid silu softmax soft_shrink softplus
    softsign sparse_plus sparsemax sparse_sigmoid squareplus swish tanh tanh_shrink threshold"""
    functions = {}
    for name in names.split():
        call = getattr(keras.activations, name)
        functions[name] = (lambda x: call(x, 0.3, -0.5)) if name == "threshold" else call

    def build(x, y, mask):
        outputs = {f"Activation__{name}": layers.Activation(f)(x) for name, f in functions.items()}
        return outputs | {
            "ELU": layers.ELU(alpha=0.7)(x),
            "LeakyReLU": layers.LeakyReLU(negative_slope=0.2)(x),
            "PReLU": layers.PReLU()(y),
            "PReLU__shared": layers.PReLU(shared_axes=[1])(y),
            "ReLU": layers.ReLU()(x),
            "ReLU__bounded": layers.ReLU(max_value=0.7, negative_slope=0.1, threshold=0.2)(x),
            "Softmax": layers.Softmax()(y),
            "Softmax__axes": layers.Softmax(axis=(1, 2))(y),
            "Softmax__mask": layers.Softmax()(y, mask=mask),
        }

    feeds = {"x": floats(3, 6, low=-3, high=3), "y": floats(2, 3, 4, seed=2)}
    return feeds | {"mask": ints(2, 3, 4, high=2).astype(bool)}, build


@family
def merging():
    def build(x, y, z, row):
        return {
            "Add": layers.Add()([x, y, z]),
            "Add__broadcast": layers.Add()([x, row]),
            "Average": layers.Average()([x, y, z]),
            "Concatenate": layers.Concatenate()([x, y]),
            "Concatenate__axis": layers.Concatenate(axis=1)([x, y, z]),
            "Dot": layers.Dot(axes=2)([x, y]),
            "Dot__axes": layers.Dot(axes=(1, 1), normalize=True)([x, y]),
            "Maximum": layers.Maximum()([x, y, z]),
            "Minimum": layers.Minimum()([x, y, row]),
            "Multiply": layers.Multiply()([x, y, row]),
            "Subtract": layers.Subtract()([x, y]),
        }

    rows = {key: floats(2, 3, 4, seed=seed) for seed, key in enumerate("xyz")}
    return rows | {"row": floats(2, 4, seed=9)}, build


@family
def merging_masks():
    def build(ids, others):
        x = layers.Embedding(8, 3, mask_zero=True)(ids)
        y = layers.Embedding(8, 3, mask_zero=True)(others)
        mean = lambda z: layers.GlobalAveragePooling1D()(z)
        return {
            "Add": mean(layers.Add()([x, y])),
            "Concatenate": mean(layers.Concatenate()([x, y])),
            "Concatenate__axis": mean(layers.Concatenate(axis=1)([x, y])),
            "Multiply": mean(layers.Multiply()([x, y])),
            "GlobalAveragePooling1D": mean(x),
            "TimeDistributed": mean(layers.TimeDistributed(layers.Dense(2))(x)),
        }

    return {"ids": np.int32([[1, 2, 0, 0], [3, 4, 5, 0]]), "others": ints(2, 4, high=8)}, build


@family
def shapes():
    def build(x, image, volume, row):
        return {
            "Flatten": layers.Flatten()(image),
            "Flatten__channels_first": layers.Flatten("channels_first")(image),
            "Permute": layers.Permute((2, 3, 1))(image),
            "RepeatVector": layers.RepeatVector(3)(row),
            "Reshape": layers.Reshape((-1, 4))(image),
            "Reshape__flat": layers.Reshape((12,))(x),
            "Cropping1D": layers.Cropping1D((1, 1))(x),
            "Cropping2D": layers.Cropping2D(((1, 0), (1, 1)))(image),
            "Cropping3D": layers.Cropping3D(1)(volume),
            "UpSampling1D": layers.UpSampling1D(2)(x),
            "UpSampling2D": layers.UpSampling2D((2, 3))(image),
            "UpSampling2D__bilinear": layers.UpSampling2D(2, interpolation="bilinear")(image),
            "UpSampling2D__bicubic": layers.UpSampling2D(2, interpolation="bicubic")(image),
            "UpSampling2D__lanczos3": layers.UpSampling2D(2, interpolation="lanczos3")(image),
            "UpSampling2D__lanczos5": layers.UpSampling2D(2, interpolation="lanczos5")(image),
            "UpSampling3D": layers.UpSampling3D((1, 2, 2))(volume),
            "ZeroPadding1D": layers.ZeroPadding1D((2, 1))(x),
            "ZeroPadding2D": layers.ZeroPadding2D(((1, 0), (2, 1)))(image),
            "ZeroPadding3D": layers.ZeroPadding3D(((1, 0), (0, 1), (1, 1)))(volume),
        }

    feeds = {"x": floats(2, 4, 3), "image": floats(2, 3, 4, 2, seed=2)}
    return feeds | {"volume": floats(2, 3, 3, 4, 2, seed=3), "row": floats(2, 3)}, build


@family
def lambdas():
    def build(x, ids):
        return {
            "Lambda": layers.Lambda(lambda x: x * 2 + 1)(x),
            "Lambda__reduce": layers.Lambda(lambda x: ops.logsumexp(x, axis=-1))(x),
            "Lambda__one_hot": layers.Lambda(lambda x: ops.one_hot(x, 4))(ids),
            "Lambda__sort": layers.Lambda(lambda x: ops.sort(x, axis=1))(x),
            "Lambda__cumsum": layers.Lambda(lambda x: ops.cumsum(x, axis=1))(x),
            "Lambda__top_k": layers.Lambda(lambda x: ops.top_k(x, 2)[0])(x),
            "Lambda__where": layers.Lambda(lambda x: ops.where(x > 0, x, -2 * x))(x),
            "Lambda__roll": layers.Lambda(lambda x: ops.roll(x, 1, axis=1))(x),
            "Lambda__erf": layers.Lambda(lambda x: ops.erf(x) + ops.expm1(x))(x),
            "Lambda__segment_sum": layers.Lambda(
                lambda x: ops.segment_sum(x, np.array([0, 1]), 3), output_shape=(4,)
            )(x),
            "Lambda__argmax": layers.Lambda(lambda x: ops.argmax(x, axis=-1))(x),
            "Lambda__norm": layers.Lambda(lambda x: ops.norm(x, axis=-1))(x),
            "Lambda__scatter": layers.Lambda(
                lambda x: ops.slice_update(x, (0, 1), ops.zeros((2, 2))), output_shape=(4,)
            )(x),
            "ActivityRegularization": layers.ActivityRegularization(0.1)(x),
        }

    return {"x": floats(2, 4), "ids": ints(2, 3, high=4)}, build


@family
def training_only():
    """Layers that are the identity in inference."""

    def build(x, image):
        return {
            "AlphaDropout": layers.AlphaDropout(0.3)(x),
            "Dropout": layers.Dropout(0.3)(x),
            "GaussianDropout": layers.GaussianDropout(0.3)(x),
            "GaussianNoise": layers.GaussianNoise(0.3)(x),
            "SpatialDropout1D": layers.SpatialDropout1D(0.3)(x),
            "SpatialDropout2D": layers.SpatialDropout2D(0.3)(image),
            "RandomBrightness": layers.RandomBrightness(0.2)(image),
            "RandomColorDegeneration": layers.RandomColorDegeneration(0.2)(image),
            "RandomContrast": layers.RandomContrast(0.2)(image),
            "RandomCrop": layers.RandomCrop(4, 4)(image),
            "RandomFlip": layers.RandomFlip()(image),
            "RandomGrayscale": layers.RandomGrayscale()(image),
            "RandomHue": layers.RandomHue(0.2)(image),
            "RandomInvert": layers.RandomInvert()(image),
            "RandomRotation": layers.RandomRotation(0.2)(image),
            "RandomSaturation": layers.RandomSaturation(0.2)(image),
            "RandomTranslation": layers.RandomTranslation(0.2, 0.2)(image),
            "RandomZoom": layers.RandomZoom(0.2)(image),
        }

    return {"x": floats(2, 4, 3), "image": floats(2, 8, 6, 3, low=0, high=255, seed=2)}, build
