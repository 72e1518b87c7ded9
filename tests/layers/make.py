"""Writes a SavedModel per family of Keras layers, with feeds and the results of TensorFlow.

    python make.py [FAMILY ..]

was run with TensorFlow 2.21 and Keras 3.15. Each decorated function of the modules beside it is a
family. It returns its feeds, and a function from inputs to outputs. An output has the name of a
layer class, and of its configuration after `__`. Beside each model FAMILY is an archive FAMILY.npz
with arrays in/ARGUMENT and out/OUTPUT.

Without a model are the layers that wrap another framework (FlaxLayer, JaxLayer,
TorchModuleWrapper), TFSMLayer, those that augment a batch of images with labels (MixUp, CutMix,
MaxNumBoundingBoxes), and ten random augmentations, which are the identity in inference like those
of `training_only`.
"""

import sys

from export import FAMILIES
from export import export
from export import save
import tensorflow as tf

import modules
import plain
import preprocessing
import sequences
import windows

for name, make in FAMILIES.items():
    if name in sys.argv[1:] or not sys.argv[1:]:
        print(name, flush=True)
        feeds, made, *is_fixed = make()
        if isinstance(made, tf.Module):
            save(name, made, feeds)
        else:
            export(name, feeds, made, *is_fixed)
