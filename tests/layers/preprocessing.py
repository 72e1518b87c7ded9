"""Layers that prepare numbers, strings, images and sounds."""

import numpy as np
from export import family
from export import floats
from export import ints
from export import strings
from keras import layers


@family
def numbers():
    def build(x, rows, ids, counts):
        normalization = layers.Normalization()
        normalization.adapt(floats(20, 4, low=2, high=9))
        given = layers.Normalization(mean=[1.0, 2.0, 3.0, 4.0], variance=[4.0, 1.0, 2.0, 0.5])
        inverse = layers.Normalization(axis=None, mean=3.0, variance=2.0, invert=True)
        bounds = [-0.5, 0.0, 0.25, 0.7]
        adapted = layers.Discretization(num_bins=4)
        adapted.adapt(floats(50, 1))
        return {
            "Normalization": normalization(x),
            "Normalization__given": given(x),
            "Normalization__rows": layers.Normalization(axis=1, mean=[1, 2, 3], variance=[1, 4, 9])(
                rows
            ),
            "Normalization__invert": inverse(x),
            "Rescaling": layers.Rescaling(1 / 127.5, offset=-1)(x),
            "Rescaling__channels": layers.Rescaling([1.0, 2.0, 3.0, 4.0], offset=[0, 1, 0, 1])(x),
            "Discretization": layers.Discretization(bounds)(x),
            "Discretization__adapted": adapted(x),
            "Discretization__one_hot": layers.Discretization(bounds, output_mode="one_hot")(x),
            "Discretization__multi_hot": layers.Discretization(bounds, output_mode="multi_hot")(x),
            "Discretization__count": layers.Discretization(bounds, output_mode="count")(x),
            "CategoryEncoding__one_hot": layers.CategoryEncoding(5, "one_hot")(ids),
            "CategoryEncoding__multi_hot": layers.CategoryEncoding(5)(ids),
            "CategoryEncoding__count": layers.CategoryEncoding(5, "count")(ids),
            "CategoryEncoding__weights": layers.CategoryEncoding(5, "count")(
                ids, count_weights=counts
            ),
        }

    feeds = {"x": floats(3, 4), "rows": floats(2, 3, 2, seed=2)}
    return feeds | {"ids": ints(3, 4, high=5), "counts": floats(3, 4, seed=4)}, build


@family
def hashing():
    def build(words, others, ids):
        crossing = layers.HashedCrossing
        return {
            "Hashing": layers.Hashing(5)(words),
            "Hashing__salt": layers.Hashing(7, salt=133)(words),
            "Hashing__salts": layers.Hashing(7, salt=[133, 137])(words),
            "Hashing__mask": layers.Hashing(5, mask_value="")(words),
            "Hashing__ints": layers.Hashing(5)(ids),
            "Hashing__ints_salt": layers.Hashing(5, salt=9)(ids),
            "Hashing__one_hot": layers.Hashing(5, output_mode="one_hot")(words),
            "Hashing__multi_hot": layers.Hashing(5, output_mode="multi_hot")(words),
            "Hashing__count": layers.Hashing(5, output_mode="count")(words),
            "HashedCrossing": crossing(6)((words, others)),
            "HashedCrossing__mixed": crossing(6, output_mode="one_hot")((words, ids)),
        }

    words = strings([b"apple"], [b"pear"], [b""], [b"kiwi"])
    others = strings([b"red"], [b"green"], [b"blue"], [b"red"])
    return {"words": words, "others": others, "ids": ints(4, 1, high=99, dtype=np.int64)}, build


@family
def lookups():
    def build(words, ids):
        vocabulary = ["a", "b", "cc", "dd"]
        word = lambda **kwargs: layers.StringLookup(vocabulary=vocabulary, **kwargs)
        number = lambda **kwargs: layers.IntegerLookup(vocabulary=[12, 36, 7, 42], **kwargs)
        adapted = layers.StringLookup()
        adapted.adapt(np.array(["x", "a", "a", "x", "b", "a"]))
        weights = [0.5, 0.6, 0.7, 0.8]
        outputs = {"StringLookup__adapted": adapted(words)}
        for name, make, value in [("StringLookup", word, words), ("IntegerLookup", number, ids)]:
            outputs |= {
                name: make()(value),
                f"{name}__oov": make(num_oov_indices=3)(value),
                f"{name}__no_oov": make(num_oov_indices=2, output_mode="count")(value),
                f"{name}__one_hot": make(output_mode="one_hot")(value[:, 0]),
                f"{name}__multi_hot": make(output_mode="multi_hot")(value),
                f"{name}__count": make(output_mode="count")(value),
                f"{name}__tf_idf": make(output_mode="tf_idf", idf_weights=weights)(value),
                f"{name}__padded": make(output_mode="count", pad_to_max_tokens=True, max_tokens=9)(
                    value
                ),
            }
        outputs["StringLookup__mask"] = word(mask_token="")(words)
        outputs["IntegerLookup__mask"] = number(mask_token=0)(ids)
        inverse = word(invert=True)(word()(words))
        outputs["StringLookup__invert"] = inverse
        outputs["IntegerLookup__invert"] = number(invert=True)(number()(ids))
        return outputs

    words = strings([b"a", b"dd", b""], [b"zebra", b"b", b"cc"])
    return {"words": words, "ids": np.int64([[12, 7, 0], [99, 42, 36]])}, build


@family
def text():
    def build(lines):
        vocabulary = ["the", "cat", "sat", "mat", "dog"]
        make = lambda **kwargs: layers.TextVectorization(vocabulary=vocabulary, **kwargs)
        adapted = layers.TextVectorization(output_mode="tf_idf", ngrams=2)
        adapted.adapt(np.array(["the cat sat", "the dog", "a cat and a dog"]))
        unknown = {"vocabulary": ["a", "b", "é", " "], "split": "character"}
        bigrams = ["the cat", "cat", "dog sat"]
        standardize = "strip_punctuation"
        return {
            "TextVectorization": make()(lines),
            "TextVectorization__length": make(output_sequence_length=4)(lines),
            "TextVectorization__multi_hot": make(output_mode="multi_hot")(lines),
            "TextVectorization__count": make(output_mode="count")(lines),
            "TextVectorization__tf_idf": adapted(lines),
            "TextVectorization__weights": make(
                output_mode="tf_idf", idf_weights=[0.1, 0.2, 0.3, 0.4, 0.5]
            )(lines),
            "TextVectorization__characters": layers.TextVectorization(**unknown)(lines),
            "TextVectorization__bigrams": layers.TextVectorization(ngrams=2, vocabulary=bigrams)(
                lines
            ),
            "TextVectorization__lower": make(standardize="lower")(lines),
            "TextVectorization__punctuation": make(standardize=standardize)(lines),
            "TextVectorization__raw": make(standardize=None, split=None)(lines),
        }

    lines = strings([b"The cat, sat!"], [b"a dog -- on the MAT"], [b""], ["\u00e9 a".encode()])
    return {"lines": lines}, build


@family
def images():
    def build(image, bytes):
        resize = layers.Resizing
        return {
            "Resizing": resize(4, 9)(image),
            "Resizing__nearest": resize(3, 8, interpolation="nearest")(image),
            "Resizing__bicubic": resize(8, 4, interpolation="bicubic")(image),
            "Resizing__lanczos3": resize(4, 4, interpolation="lanczos3")(image),
            "Resizing__lanczos5": resize(7, 5, interpolation="lanczos5")(image),
            "Resizing__antialias": resize(3, 3, antialias=True)(image),
            "Resizing__crop": resize(4, 3, crop_to_aspect_ratio=True)(image),
            "Resizing__pad": resize(4, 3, pad_to_aspect_ratio=True, fill_value=1.0)(image),
            "Resizing__bytes": resize(4, 4)(bytes),
            "CenterCrop": layers.CenterCrop(3, 4)(image),
            "CenterCrop__larger": layers.CenterCrop(8, 4)(image),
            "Rescaling": layers.Rescaling(1 / 255)(bytes),
            "AutoContrast": layers.AutoContrast()(image),
            "Equalization": layers.Lambda(lambda x: layers.Equalization()(x))(image),
            "Solarization": layers.Solarization(threshold_factor=0.5, addition_factor=0.2)(image),
            "ContrastLimitedAdaptiveHistogramEqualization": (
                layers.ContrastLimitedAdaptiveHistogramEqualization(tile_grid_size=(2, 2))(image)
            ),
            "Pipeline": layers.Pipeline([layers.Rescaling(1 / 255), resize(4, 4)])(image),
        }

    image = np.floor(floats(2, 6, 7, 3, low=0, high=256))
    return {"image": image, "bytes": np.floor(image).astype(np.uint8)}, build


@family
def audio():
    def build(signal):
        spectrogram = layers.STFTSpectrogram
        channel = signal[..., None]
        return {
            "MelSpectrogram": layers.MelSpectrogram(
                fft_length=64, sequence_stride=16, sampling_rate=800, num_mel_bins=8
            )(signal),
            "STFTSpectrogram": spectrogram("log", frame_length=32, frame_step=16)(channel),
            "STFTSpectrogram__magnitude": spectrogram("magnitude", 32, 16, 64)(channel),
            "STFTSpectrogram__phase": spectrogram("angle", 32, 16, padding="same")(
                channel
            ),
            "STFTSpectrogram__real": spectrogram("real", 32, 16, window="hamming")(
                channel
            ),
            "STFTSpectrogram__psd": spectrogram("psd", 32, 16, scaling="spectrum")(
                channel
            ),
        }

    return {"signal": floats(2, 128)}, build
