"""Ragged and sparse inputs, and boxes."""

import keras
import numpy as np
import tensorflow as tf
from export import family
from export import floats
from export import strings
from export import randomize
from keras import layers


class Ragged(tf.Module):
    """Ragged rows, given by values and row splits."""

    def __init__(self):
        self.embedding = layers.Embedding(9, 3)
        self.embedding.build()
        self.embedding.embeddings.assign(floats(9, 3))
        self.lstm = layers.LSTM(2)
        self.lstm.build((None, None, 3))
        randomize(self.lstm)
        self.table = self.embedding.embeddings.value
        self.kept = self.embedding.variables + self.lstm.variables
        self.kept = [variable.value for variable in self.kept]

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64, "values"),
            tf.TensorSpec([None], tf.int64, "splits"),
            tf.TensorSpec([], tf.string, "line"),
        ]
    )
    def serve(self, values, splits, line):
        rows = tf.RaggedTensor.from_row_splits(values, splits)
        vectors = tf.ragged.map_flat_values(tf.gather, self.table, rows)
        padded = vectors.to_tensor()
        mask = tf.sequence_mask(rows.row_lengths(), tf.shape(padded)[1])
        words = tf.strings.split([line, tf.strings.join([line, " end"])])
        return {
            "Ragged__sum": tf.reduce_sum(vectors, axis=1),
            "Ragged__mean": tf.reduce_mean(vectors, axis=1),
            "Ragged__max": tf.reduce_max(tf.cast(rows, tf.float32), axis=1),
            "Ragged__padded": padded,
            "Ragged__lstm": self.lstm(padded, mask=mask),
            "Ragged__joined": tf.strings.reduce_join(words, axis=1, separator="_"),
            "Ragged__words": words.to_tensor("pad"),
            "Ragged__concat": tf.concat([rows, rows + 1], axis=1).to_tensor(),
            "Ragged__boolean_mask": tf.ragged.boolean_mask(rows, rows > 3).to_tensor(-1),
            "Ragged__expanded": tf.expand_dims(rows, 1).to_tensor(),
        }


@family
def ragged():
    values, splits = np.int64([1, 2, 3, 4, 5, 8]), np.int64([0, 2, 2, 6])
    return {"values": values, "splits": splits, "line": np.array(b"one two  three")}, Ragged()


class Sparse(tf.Module):
    """A sparse matrix, given by indices and values."""

    def __init__(self, compute):
        self.kernel = tf.Variable(floats(6, 3))
        self.compute = compute

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 2], tf.int64, "indices"),
            tf.TensorSpec([None], tf.float32, "values"),
        ]
    )
    def serve(self, indices, values):
        x = tf.SparseTensor(indices, values, [4, 6])
        ids = tf.SparseTensor(indices, indices[:, 1], [4, 6])
        return self.compute(x, ids, self.kernel)


INDICES = np.int64([[0, 1], [0, 4], [1, 0], [3, 2], [3, 5]])
SPARSE = {"indices": INDICES, "values": floats(5, low=0.1)}


@family
def sparse():
    def compute(x, ids, kernel):
        lookup = tf.nn.embedding_lookup_sparse
        return {
            "Sparse__matmul": tf.sparse.sparse_dense_matmul(x, kernel),
            "Sparse__dense": tf.sparse.to_dense(x),
            "Sparse__mean": lookup(kernel, ids, None, combiner="mean"),
            "Sparse__sum": lookup(kernel, ids, x, combiner="sum"),
            "Sparse__sqrtn": lookup(kernel, ids, x, combiner="sqrtn"),
            "Sparse__safe": tf.nn.safe_embedding_lookup_sparse(kernel, ids, combiner="mean"),
        }

    return SPARSE, Sparse(compute)


@family
def sparse_rows():
    def compute(x, ids, kernel):
        return {
            "Sparse__reduce": tf.sparse.reduce_sum(x, axis=1),
            "Sparse__softmax": tf.sparse.to_dense(tf.sparse.softmax(x)),
        }

    return SPARSE, Sparse(compute)


@family
def bounding_boxes():
    def build(boxes, scores):
        combined = tf.image.combined_non_max_suppression
        suppress = layers.Lambda(
            lambda inputs: combined(inputs[0][:, :, None], inputs[1], 3, 5, 0.4, 0.2)[0]
        )
        convert = lambda x: keras.utils.bounding_boxes.convert_format(x, "xyxy", "center_xywh")
        return {
            "Lambda__suppression": suppress([boxes, scores]),
            "Lambda__boxes": layers.Lambda(convert)(boxes),
        }

    corner = floats(2, 6, 2, low=0, high=0.6)
    boxes = np.concatenate([corner, corner + 0.3], axis=-1)
    return {"boxes": boxes, "scores": floats(2, 6, 2, low=0, high=1, seed=3)}, build
