"""Writes the SavedModels and checkpoints of this folder, with feeds and the results of TensorFlow.

    python make.py [modules] [tallies] [requests] [keras_models] [keras_saved] [version_one_models] [checkpoint]

was run with TensorFlow 2.21 and Keras 3. Beside each model NAME are archives NAME.SIGNATURE.npz
with arrays in/ARGUMENT and out/ARGUMENT.
"""

import os
import shutil
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras
import numpy as np
import tensorflow as tf

HERE = os.path.dirname(os.path.abspath(__file__))
V1 = tf.compat.v1


def random(*shape, seed=1):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def finish(name):
    """Leaves out what neither reader needs."""
    folder = os.path.join(HERE, name)
    for unused in ["fingerprint.pb", "keras_metadata.pb"]:
        path = os.path.join(folder, unused)
        if os.path.exists(path):
            os.remove(path)
    for unused in ["assets"]:
        path = os.path.join(folder, unused)
        if os.path.isdir(path) and not os.listdir(path):
            os.rmdir(path)
    return folder


def arrays(name, signature, feeds, fetches):
    entries = {f"in/{key}": np.asarray(value) for key, value in feeds.items()}
    entries |= {f"out/{key}": np.asarray(value) for key, value in fetches.items()}
    np.savez(os.path.join(HERE, f"{name}.{signature}.npz"), **entries)


def call(name, signature, feeds):
    """Calls a signature of a saved model, and writes feeds and results."""
    loaded = tf.saved_model.load(finish(name))
    feeds_of = {key: tf.constant(value) for key, value in feeds.items()}
    results = loaded.signatures[signature](**feeds_of)
    arrays(name, signature, feeds, {key: value.numpy() for key, value in results.items()})


def path(name):
    folder = os.path.join(HERE, name)
    shutil.rmtree(folder, ignore_errors=True)
    return folder


OPTIONS = tf.saved_model.SaveOptions(experimental_debug_stripper=True)


class Counter(tf.Module):
    """Two signatures: one reads its variables in nested functions, one changes a variable."""

    def __init__(self):
        self.kernel = tf.Variable(random(2, 3), name="kernel")
        self.bias = tf.Variable([1.0, 2.0, 3.0], name="bias")
        self.total = tf.Variable(5, name="total")

    @tf.function
    def affine(self, x):
        return x @ self.kernel + self.bias

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")])
    def predict(self, x):
        return {"y": self.affine(x), "twice": self.affine(2.0 * x)}

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32, "step")])
    def count(self, step):
        self.total.assign_add(step)
        return {"total": self.total.read_value(), "bias": self.bias + 0.0}


class Tallies(tf.Module):
    """Two variables that a signature changes."""

    def __init__(self):
        self.hits = tf.Variable(5, name="hits")
        self.steps = tf.Variable(10, name="steps")

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32, "step")])
    def add(self, step):
        self.hits.assign_add(step)
        self.steps.assign_add(1)
        return {"hits": self.hits.read_value(), "steps": self.steps.read_value()}


class Flow(tf.Module):
    """Variables that are read in branches and loops, gathered, and asked for their shape."""

    def __init__(self):
        self.table = tf.Variable(random(5, 3), name="table")
        self.kernel = tf.Variable(random(3, 3, seed=2), name="kernel")
        self.other = tf.Variable(random(3, 3, seed=3), name="other")

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int32, "ids"),
            tf.TensorSpec([], tf.int32, "steps"),
        ]
    )
    def predict(self, ids, steps):
        x = tf.gather(self.table, ids)
        x = tf.cond(steps > 2, lambda: x @ self.kernel, lambda: x @ self.other)
        _, x = tf.while_loop(
            lambda i, _: i < steps,
            lambda i, x: (i + 1, tf.tanh(x @ self.kernel) + self.other[0]),
            (0, x),
        )
        return {"x": x, "shape": tf.shape(self.table)}


class Requests(tf.Module):
    """What servers get: messages with features, and images in files."""

    def __init__(self):
        self.kernel = tf.Variable(random(4, 3), name="kernel")
        self.table = tf.Variable(random(10, 3, seed=2), name="table")
        self.filter = tf.Variable(random(3, 3, 3, 4, seed=3), name="filter")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "examples")])
    def classify(self, examples):
        features = tf.io.parse_example(
            examples,
            {
                "x": tf.io.FixedLenFeature([4], tf.float32),
                "ids": tf.io.VarLenFeature(tf.int64),
                "age": tf.io.FixedLenFeature([], tf.int64, default_value=30),
                "words": tf.io.RaggedFeature(tf.string),
            },
        )
        of_ids = tf.nn.safe_embedding_lookup_sparse(self.table, features["ids"], combiner="mean")
        age = tf.cast(features["age"], tf.float32)[:, None] / 100.0
        scores = tf.nn.softmax(features["x"] @ self.kernel + of_ids + age)
        n_words = features["words"].row_lengths()
        return {"scores": scores, "classes": tf.argmax(scores, 1), "n_words": n_words}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "images")])
    def describe(self, images):
        def decoded(image):
            image = tf.io.decode_image(image, channels=3, expand_animations=False)
            image.set_shape([None, None, 3])
            return tf.image.resize(tf.image.convert_image_dtype(image, tf.float32), [16, 16])

        x = tf.map_fn(decoded, images, fn_output_signature=tf.float32)
        x = tf.nn.relu(tf.nn.conv2d(x, self.filter, 2, "SAME"))
        return {"features": tf.reduce_mean(x, [1, 2])}


class Words(tf.Module):
    """A table that is read from an asset."""

    def __init__(self):
        words = os.path.join(HERE, "words.txt")
        with open(words, "w") as file:
            file.write("the\ncat\nsat\n")
        initializer = tf.lookup.TextFileInitializer(
            words,
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        )
        self.table = tf.lookup.StaticHashTable(initializer, 7)
        self.vectors = tf.Variable(random(8, 2), name="vectors")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "words")])
    def predict(self, words):
        ids = self.table.lookup(words)
        return {"ids": ids, "vectors": tf.gather(self.vectors, ids)}


def modules():
    counter = Counter()
    signatures = {"serving_default": counter.predict, "count": counter.count}
    tf.saved_model.save(counter, path("counter"), signatures=signatures, options=OPTIONS)
    call("counter", "serving_default", {"x": random(4, 2, seed=5)})
    call("counter", "count", {"step": np.int32(3)})
    flow = Flow()
    tf.saved_model.save(flow, path("flow"), signatures=flow.predict, options=OPTIONS)
    call("flow", "serving_default", {"ids": np.int32([1, 4]), "steps": np.int32(3)})
    words = Words()
    tf.saved_model.save(words, path("words"), signatures=words.predict, options=OPTIONS)
    call("words", "serving_default", {"words": np.array([b"cat", b"dog", b"the"])})
    os.remove(os.path.join(HERE, "words.txt"))


def tallies():
    model = Tallies()
    tf.saved_model.save(model, path("tallies"), signatures=model.add, options=OPTIONS)
    call("tallies", "serving_default", {"step": np.int32(3)})


def keras_models():
    keras.utils.set_random_seed(1)
    layers = keras.layers
    left, right = keras.Input((4,), name="left"), keras.Input((3,), name="right")
    x = layers.Concatenate()([layers.Dense(5, activation="relu")(left), right])
    x = layers.Dense(6, activation="gelu")(layers.LayerNormalization()(x))
    outputs = {"class": layers.Dense(3, activation="softmax")(x), "score": layers.Dense(1)(x)}
    dense = keras.Model([left, right], outputs)
    dense.export(path("keras_dense"), verbose=False)
    call(
        "keras_dense",
        "serving_default",
        {"left": random(2, 4, seed=7), "right": random(2, 3, seed=8)},
    )
    image = keras.Input((8, 8, 3), name="image")
    x = layers.Conv2D(4, 3, padding="same", use_bias=False)(image)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.MaxPooling2D()(x)
    x = layers.SeparableConv2D(6, 3, activation="relu")(x)
    x = layers.Dense(5)(layers.GlobalAveragePooling2D()(x))
    conv = keras.Model(image, x)
    norm = [layer for layer in conv.layers if isinstance(layer, layers.BatchNormalization)][0]
    norm.set_weights([1 + random(4, seed=s) / 2 for s in range(4)])
    conv.export(path("keras_conv"), verbose=False)
    call("keras_conv", "serving_default", {"image": random(2, 8, 8, 3, seed=9)})
    ids = keras.Input((6,), dtype="int32", name="ids")
    x = layers.Embedding(10, 4)(ids)
    x = layers.LSTM(5)(x)
    lstm = keras.Model(ids, layers.Dense(2)(x))
    lstm.export(path("keras_lstm"), verbose=False)
    call("keras_lstm", "serving_default", {"ids": np.int32([[1, 2, 3, 4, 5, 9]])})


def keras_saved():
    """Not exported: the restore op has other handles than the signature."""
    keras.utils.set_random_seed(2)
    trained = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    trained.compile("adam", "mse")
    trained.fit(random(4, 3), random(4, 2), verbose=0)
    tf.saved_model.save(trained, path("keras_saved"), options=OPTIONS)
    call("keras_saved", "serving_default", {"inputs": random(2, 3, seed=10)})


def version_one(name, use_resource, partitioner=None, n_devices=1):
    """A graph of TensorFlow 1, with a saver of its own."""
    feed, graph = random(2, 4, seed=11), V1.Graph()
    with graph.as_default():
        x = V1.placeholder(tf.float32, [None, 4], "input")
        with V1.device("/device:CPU:0"):
            kernel = V1.get_variable(
                "kernel",
                [4, 3],
                initializer=V1.random_uniform_initializer(-1, 1, seed=12),
                use_resource=use_resource,
                partitioner=partitioner,
            )
        with V1.device(f"/device:CPU:{n_devices - 1}"):
            bias = V1.get_variable(
                "bias",
                [3],
                initializer=V1.constant_initializer([0.5, -1.0, 2.0]),
                use_resource=use_resource,
            )
        y = tf.add(tf.matmul(x, tf.convert_to_tensor(kernel)), bias, name="y")
        config = V1.ConfigProto(device_count={"CPU": n_devices})
        with V1.Session(config=config) as session:
            session.run(V1.global_variables_initializer())
            signature = V1.saved_model.predict_signature_def({"x": x}, {"y": y})
            builder = V1.saved_model.builder.SavedModelBuilder(path(name))
            builder.add_meta_graph_and_variables(
                session,
                [V1.saved_model.tag_constants.SERVING],
                {"serving_default": signature},
                saver=V1.train.Saver(sharded=n_devices > 1),
                clear_devices=True,
            )
            builder.save()
            arrays(name, "serving_default", {"x": feed}, {"y": session.run(y, {x: feed})})
    finish(name)


def checkpoint():
    """All element types, and strings, in the order of their names."""
    folder = path("checkpoint")
    os.makedirs(folder)
    values = {
        "a/bool": tf.constant([True, False]),
        "a/empty": tf.zeros([0, 3]),
        "b/float": tf.constant(random(2, 3)),
        "b/half": tf.constant([1.5, -2.0], tf.float16),
        "b/bfloat16": tf.constant([1.5, -2.0], tf.bfloat16),
        "b/complex": tf.constant([1 + 2j], tf.complex64),
        "c/int64": tf.constant([1 << 40, -1], tf.int64),
        "c/uint8": tf.constant([1, 255], tf.uint8),
        "c/scalar": tf.constant(7, tf.int32),
        "d/strings": tf.constant([["one", ""], ["three", "x" * 200]]),
    }
    names = sorted(values)
    tf.raw_ops.SaveV2(
        prefix=os.path.join(folder, "types"),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[values[name] for name in names],
    )
    rows = tf.constant(np.arange(12, dtype=np.float32).reshape(4, 3))
    tf.raw_ops.SaveV2(
        prefix=os.path.join(folder, "slices"),
        tensor_names=["rows", "rows", "whole"],
        shape_and_slices=["4 3 0,1:0,3", "4 3 1,3:-", ""],
        tensors=[rows[:1], rows[1:], rows],
    )


def version_one_models():
    version_one("v1_reference", use_resource=False)
    version_one("v1_resource", use_resource=True)
    version_one(
        "v1_partitioned",
        use_resource=True,
        partitioner=V1.fixed_size_partitioner(2),
        n_devices=2,
    )


def requests():
    import io

    from PIL import Image

    model = Requests()
    signatures = {"serving_default": model.classify, "describe": model.describe}
    tf.saved_model.save(model, path("requests"), signatures=signatures, options=OPTIONS)

    def example(**features):
        lists = {float: ("float_list", tf.train.FloatList), int: ("int64_list", tf.train.Int64List)}
        lists[bytes] = ("bytes_list", tf.train.BytesList)
        of_names = {}
        for key, values in features.items():
            field, kind = lists[type(values[0])]
            of_names[key] = tf.train.Feature(**{field: kind(value=values)})
        message = tf.train.Example(features=tf.train.Features(feature=of_names))
        return message.SerializeToString(deterministic=True)

    examples = [
        example(x=[1.0, 2.0, 3.0, 4.0], ids=[1, 5], words=[b"a", b"b"]),
        example(x=[0.0, -1.0, 0.5, 2.0], age=[50]),
    ]
    call("requests", "serving_default", {"examples": np.array(examples)})
    files = []
    for seed, kind in enumerate(["JPEG", "PNG"]):
        pixels = np.random.default_rng(seed).integers(0, 255, (20 + seed, 31, 3)).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind)
        files.append(file.getvalue())
    call("requests", "describe", {"images": np.array(files)})


for make in [modules, tallies, requests, keras_models, keras_saved, version_one_models, checkpoint]:
    if make.__name__ in sys.argv[1:] or not sys.argv[1:]:
        make()
