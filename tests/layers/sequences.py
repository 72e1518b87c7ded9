"""Embeddings, recurrent layers and attention."""

import numpy as np
from export import family
from export import floats
from export import ints
from keras import layers


@family
def embeddings():
    def build(ids, bytes, vectors):
        embedding = layers.ReversibleEmbedding(7, 3)
        tied = layers.ReversibleEmbedding(7, 3, tie_weights=False, logit_soft_cap=2.0)
        return {
            "Embedding": layers.Embedding(7, 3)(ids),
            "Embedding__mask": layers.GlobalAveragePooling1D()(
                layers.Embedding(7, 3, mask_zero=True)(ids)
            ),
            "Embedding__lora": layers.Embedding(7, 3, lora_rank=2)(ids),
            "Embedding__uint8": layers.Embedding(7, 3)(bytes),
            "ReversibleEmbedding": embedding(ids),
            "ReversibleEmbedding__reverse": embedding(vectors, reverse=True),
            "ReversibleEmbedding__untied": tied(tied(ids), reverse=True),
            "Masking": layers.LSTM(2)(layers.Masking(0.0)(vectors)),
        }

    vectors = floats(2, 4, 3)
    vectors[0, 2:] = 0.0
    feeds = {"ids": np.int32([[1, 2, 0, 0], [6, 5, 4, 0]]), "bytes": ints(2, 4, high=7)}
    return feeds | {"bytes": feeds["bytes"].astype(np.uint8), "vectors": vectors}, build


def recurrent(layer, kept, **kwargs):
    """Forms of one recurrent layer."""
    name = layer.__name__

    def build(x, mask, state, other):
        states = [state, other] if name == "LSTM" else state
        make = lambda **more: layer(3, **kwargs, **more)
        returned = make(return_sequences=True, return_state=True)(x)
        bidirectional = layers.Bidirectional
        backward = make(go_backwards=True, return_sequences=True)
        outputs = {
            name: make()(x),
            f"{name}__mask": make()(x, mask=mask),
            f"{name}__sequences": make(return_sequences=True)(x),
            f"{name}__sequences_mask": make(return_sequences=True)(x, mask=mask),
            f"{name}__zero_output": make(return_sequences=True, zero_output_for_mask=True)(
                x, mask=mask
            ),
            f"{name}__backwards": make(go_backwards=True)(x),
            f"{name}__backwards_mask": make(go_backwards=True, return_sequences=True)(
                x, mask=mask
            ),
            f"{name}__unroll": make(unroll=True, return_sequences=True)(x),
            f"{name}__unroll_mask": make(unroll=True)(x, mask=mask),
            f"{name}__state_sequence": returned[0],
            f"{name}__state": returned[-1],
            f"{name}__initial": make()(x, initial_state=states),
            f"{name}__hard": make(recurrent_activation="hard_sigmoid", activation="relu")(x)
            if name != "SimpleRNN"
            else make(activation="relu")(x),
            f"{name}__no_bias": make(use_bias=False)(x),
            f"{name}__dropout": make(dropout=0.2, recurrent_dropout=0.1)(x),
            "Bidirectional": bidirectional(make())(x),
            "Bidirectional__mask": bidirectional(make(return_sequences=True))(x, mask=mask),
            "Bidirectional__sum": bidirectional(make(), merge_mode="sum")(x, mask=mask),
            "Bidirectional__mul": bidirectional(make(return_sequences=True), merge_mode="mul")(x),
            "Bidirectional__other": bidirectional(
                make(return_sequences=True), backward_layer=backward, merge_mode="ave"
            )(x),
        }
        kept_names = [name] + [f"{name}__{kind}" for kind in kept.split()] + kept.split()
        return {key: value for key, value in outputs.items() if key in kept_names}

    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    feeds = {"x": floats(2, 5, 4), "mask": mask, "state": floats(2, 3, seed=2)}
    return feeds | {"other": floats(2, 3, seed=3)}, build


@family
def simple_rnn():
    kept = "sequences_mask zero_output backwards_mask unroll_mask initial Bidirectional__mul"
    return recurrent(layers.SimpleRNN, kept)


@family
def gru():
    kept = "mask sequences_mask unroll hard Bidirectional__mask"
    return recurrent(layers.GRU, kept)


@family
def gru_reset_before():
    kept = "sequences_mask no_bias"
    return recurrent(layers.GRU, kept, reset_after=False)


@family
def lstm():
    kept = "mask sequences backwards_mask state_sequence state dropout initial"
    return recurrent(layers.LSTM, f"{kept} Bidirectional__other")


@family
def cells():
    def build(x, mask):
        cells = [layers.LSTMCell(3), layers.GRUCell(4), layers.SimpleRNNCell(2)]
        stacked = layers.RNN(layers.StackedRNNCells(cells), return_sequences=True)
        return {
            "StackedRNNCells": stacked(x),
            "RNN": layers.RNN(layers.GRUCell(3))(x, mask=mask),
            "RNN__unroll": layers.RNN(layers.SimpleRNNCell(3), unroll=True)(x),
            "GRUCell": layers.RNN(layers.GRUCell(3, reset_after=False))(x),
            "LSTMCell": layers.RNN(layers.LSTMCell(3), return_sequences=True)(x, mask=mask),
            "SimpleRNNCell": layers.RNN(layers.SimpleRNNCell(3))(x),
        }

    return {"x": floats(2, 5, 4), "mask": np.array([[1, 1, 0, 0, 0], [1] * 5], bool)}, build


@family
def stateful():
    """States are variables that each run changes."""

    def build(x):
        return {
            "GRU": layers.GRU(3, stateful=True)(x),
            "LSTM": layers.LSTM(3, stateful=True, return_sequences=True)(x),
            "SimpleRNN": layers.SimpleRNN(3, stateful=True)(x),
            "Bidirectional": layers.Bidirectional(layers.LSTM(2, stateful=True))(x),
        }

    return {"x": floats(2, 4, 3)}, build, True


@family
def conv_lstm():
    def build(x, image, volume):
        return {
            "ConvLSTM1D": layers.ConvLSTM1D(2, 2)(x),
            "ConvLSTM2D": layers.ConvLSTM2D(2, 3, padding="same")(image),
            "ConvLSTM2D__sequences": layers.ConvLSTM2D(2, 2, 2, return_sequences=True)(image),
            "ConvLSTM2D__backwards": layers.ConvLSTM2D(2, 2, go_backwards=True)(image),
            "ConvLSTM3D": layers.ConvLSTM3D(2, 2)(volume),
            "Bidirectional": layers.Bidirectional(layers.ConvLSTM2D(2, 2))(image),
            "TimeDistributed": layers.TimeDistributed(layers.Conv2D(2, 2))(image),
        }

    feeds = {"x": floats(2, 3, 5, 2), "image": floats(2, 3, 4, 4, 2, seed=2)}
    return feeds | {"volume": floats(1, 2, 3, 3, 3, 2, seed=3)}, build


@family
def attention():
    def build(q, k, v, q_mask, v_mask, mask):
        heads, group = layers.MultiHeadAttention, layers.GroupQueryAttention
        masks = {"query_mask": q_mask, "value_mask": v_mask}
        multi = heads(2, 3, value_dim=2)(q, v, k, return_attention_scores=True)
        return {
            "Attention": layers.Attention()([q, v, k]),
            "Attention__scale": layers.Attention(use_scale=True)([q, v, k], use_causal_mask=True),
            "Attention__concat": layers.Attention(score_mode="concat")([q, v]),
            "Attention__mask": layers.Attention()([q, v, k], mask=[q_mask, v_mask]),
            "AdditiveAttention": layers.AdditiveAttention()([q, v, k]),
            "AdditiveAttention__mask": layers.AdditiveAttention(use_scale=False)(
                [q, v], mask=[q_mask, v_mask]
            ),
            "MultiHeadAttention": multi[0],
            "MultiHeadAttention__scores": multi[1],
            "MultiHeadAttention__mask": heads(2, 3, output_shape=5)(q, v, **masks),
            "MultiHeadAttention__causal": heads(2, 3)(q, q, use_causal_mask=True),
            "MultiHeadAttention__masked": heads(2, 3, use_bias=False)(q, v, attention_mask=mask),
            "MultiHeadAttention__flash": heads(2, 3, flash_attention=False)(q, v),
            "GroupQueryAttention": group(4, 4, 2)(q, v, k),
            "GroupQueryAttention__causal": group(4, 2, 1)(q, q, use_causal_mask=True),
            "GroupQueryAttention__mask": group(4, 2, 2)(q, v, **masks),
        }

    feeds = {key: floats(2, 4, 4, seed=seed) for seed, key in enumerate("qkv")}
    return feeds | {
        "q_mask": np.array([[1, 1, 1, 0], [1, 1, 1, 1]], bool),
        "v_mask": np.array([[1, 1, 0, 0], [1, 1, 1, 0]], bool),
        "mask": ints(2, 4, 4, high=2).astype(bool) | np.eye(4, dtype=bool),
    }, build


@family
def attention_masks():
    """Masks that come from embeddings."""

    def build(ids, others):
        x = layers.Embedding(9, 4, mask_zero=True)(ids)
        y = layers.Embedding(9, 4, mask_zero=True)(others)
        context = layers.MultiHeadAttention(2, 2)(x, y)
        x = layers.LayerNormalization()(layers.Add()([x, context]))
        return {
            "MultiHeadAttention": layers.GlobalAveragePooling1D()(x),
            "Attention": layers.LSTM(2)(layers.Attention()([x, y])),
        }

    return {"ids": np.int32([[1, 2, 0], [3, 4, 5]]), "others": np.int32([[6, 0], [7, 8]])}, build
