"""Exports a model, and writes feeds and the results of TensorFlow beside it."""

import os
import shutil

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras
import numpy as np
import tensorflow as tf
from keras.src.export.export_utils import get_input_signature

HERE = os.path.dirname(os.path.abspath(__file__))
FAMILIES = {}


def family(make):
    FAMILIES[make.__name__] = make
    return make


def floats(*shape, low=-1.0, high=1.0, seed=1):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def ints(*shape, low=0, high=10, seed=1, dtype=np.int32):
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def strings(*values):
    return np.array(values, dtype=np.bytes_)


def to_tensors(feeds):
    return {name: tf.constant(value) for name, value in feeds.items()}


def randomize(model):
    """Gives each weight values of its own: zeros and ones would hide errors."""
    for index, weight in enumerate(model.weights):
        if weight.dtype == "float32" and "seed" not in weight.path:
            is_scale = "variance" in weight.path
            low, high = (0.5, 1.5) if is_scale else (-0.8, 0.8)
            weight.assign(floats(*weight.shape, low=low, high=high, seed=100 + index))


def path_of(name):
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def finish(name, feeds):
    """Leaves out what no reader needs, and writes what TensorFlow computes."""
    folder = os.path.join(HERE, name)
    path = os.path.join(folder, "fingerprint.pb")
    if os.path.exists(path):
        os.remove(path)
    assets = os.path.join(folder, "assets")
    if os.path.isdir(assets) and not os.listdir(assets):
        os.rmdir(assets)
    signature = tf.saved_model.load(folder).signatures["serving_default"]
    results = signature(**to_tensors(feeds))
    entries = {f"in/{key}": value for key, value in feeds.items()}
    for key, value in results.items():
        value = value.numpy()
        entries[f"out/{key}"] = value.astype(np.bytes_) if value.dtype == object else value
    np.savez(os.path.join(HERE, f"{name}.npz"), **entries)


OPTIONS = tf.saved_model.SaveOptions(experimental_debug_stripper=True)


def export(name, feeds, build, is_fixed=False):
    """Exports a functional model as `model.export` does, without what only debuggers read."""
    keras.utils.set_random_seed(1)
    inputs = {}
    for key, value in feeds.items():
        dtype = "string" if value.dtype.kind == "S" else value.dtype.name
        size = value.shape[0] if is_fixed else None
        inputs[key] = keras.Input(batch_shape=(size, *value.shape[1:]), dtype=dtype, name=key)
    model = keras.Model(list(inputs.values()), build(**inputs), name="m")
    randomize(model)
    archive = keras.export.ExportArchive()
    signature = get_input_signature(model)
    archive.track_and_add_endpoint("serve", model, signature)
    archive.write_out(path_of(name), options=OPTIONS, verbose=False)
    finish(name, feeds)


def save(name, module, feeds):
    """Saves a module whose method `serve` has a signature of its own."""
    tf.saved_model.save(module, path_of(name), signatures=module.serve, options=OPTIONS)
    finish(name, feeds)
