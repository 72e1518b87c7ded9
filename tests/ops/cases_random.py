"""Cases of random numbers."""

import numpy as np
import tensorflow as tf

from harness import Case

raw = tf.raw_ops
FLOATS = [tf.float16, tf.bfloat16, tf.float32, tf.float64]
INTS = [tf.int32, tf.int64]
FULL = [tf.int32, tf.int64, tf.uint32, tf.uint64]


def shape(rng):
    rank = int(rng.integers(0, 4))
    dims = [int(rng.choice([0, 1, 2, 3, 5, 17, 40], p=[0.05, 0.2, 0.2, 0.2, 0.15, 0.1, 0.1]))
            for _ in range(rank)]
    return np.array(dims, rng.choice([np.int32, np.int64]))


def seeds(rng):
    return [int(x) for x in rng.integers(-2**63, 2**63 - 1, 2)] if rng.random() < 0.7 else [0, 5]


def stateless_seed(rng):
    dtype = np.dtype(rng.choice([np.int32, np.int64]))
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, 2, dtype=dtype)


def key(rng):
    info = np.iinfo(np.uint64)
    counter = rng.integers(0, info.max, int(rng.choice([2, 3])), dtype=np.uint64)
    if rng.random() < 0.3:
        counter[:2] = info.max
    return dict(key=rng.integers(0, info.max, 1, dtype=np.uint64), counter=counter,
                alg=int(rng.choice([1, 3])))


def pick(rng, options):
    return options[int(rng.integers(len(options)))]


def bounds(rng, dtype):
    info = np.iinfo(dtype.as_numpy_dtype)
    if rng.random() < 0.3:
        return info.min, info.max
    low = int(rng.integers(-1000, 1000))
    return low, low + int(rng.integers(-1, 2000))


def cases(rng, n):
    def case(op, build, ulps=0):
        return Case(op, build, ulps)

    def const(value, dtype):
        return tf.constant(value, dtype)

    for _ in range(n):
        for op in ["RandomUniform", "RandomStandardNormal", "TruncatedNormal"]:
            dtype, dims, (a, b) = pick(rng, FLOATS), shape(rng), seeds(rng)
            ulps = 0 if op == "RandomUniform" else 2
            yield case(op, lambda op=op, dtype=dtype, dims=dims, a=a, b=b: [
                getattr(raw, op)(shape=dims, dtype=dtype, seed=a, seed2=b)], ulps)
        dtype, dims, (a, b) = pick(rng, INTS), shape(rng), seeds(rng)
        low, high = bounds(rng, dtype)
        yield case("RandomUniformInt", lambda dtype=dtype, dims=dims, a=a, b=b, low=low, high=high: [
            raw.RandomUniformInt(shape=dims, minval=const(low, dtype), maxval=const(high, dtype),
                                 seed=a, seed2=b)])
        value, (a, b) = rng.integers(0, 100, shape(rng)), seeds(rng)
        kind = pick(rng, [tf.float32, tf.int8, tf.string, tf.complex128])
        yield case("RandomShuffle", lambda value=value, kind=kind, a=a, b=b: [
            raw.RandomShuffle(value=tf.as_string(value) if kind == tf.string
                              else tf.cast(value, kind), seed=a, seed2=b)])
        k = key(rng)
        yield case("StatelessShuffle", lambda value=value, k=k: [
            raw.StatelessShuffle(value=value, **k)])
        for op in ["StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal"]:
            ulps = 0 if op == "StatelessRandomUniform" else 2
            dtype, dims, seed, k = pick(rng, FLOATS), shape(rng), stateless_seed(rng), key(rng)
            yield case(op, lambda op=op, dtype=dtype, dims=dims, seed=seed: [
                getattr(raw, op)(shape=dims, seed=seed, dtype=dtype)], ulps)
            op += "V2"
            yield case(op, lambda op=op, dtype=dtype, dims=dims, k=k: [
                getattr(raw, op)(shape=dims, dtype=dtype, **k)], ulps)
        dtype, dims, seed, k = pick(rng, FULL), shape(rng), stateless_seed(rng), key(rng)
        yield case("StatelessRandomUniformFullInt", lambda dtype=dtype, dims=dims, seed=seed: [
            raw.StatelessRandomUniformFullInt(shape=dims, seed=seed, dtype=dtype)])
        yield case("StatelessRandomUniformFullIntV2", lambda dtype=dtype, dims=dims, k=k: [
            raw.StatelessRandomUniformFullIntV2(shape=dims, dtype=dtype, **k)])
        dtype, dims, seed, k = pick(rng, INTS), shape(rng), stateless_seed(rng), key(rng)
        low, high = bounds(rng, dtype)
        args = dict(dtype=dtype, low=low, high=high, dims=dims)
        yield case("StatelessRandomUniformInt", lambda a=args, seed=seed: [
            raw.StatelessRandomUniformInt(shape=a["dims"], seed=seed,
                                          minval=const(a["low"], a["dtype"]),
                                          maxval=const(a["high"], a["dtype"]))])
        yield case("StatelessRandomUniformIntV2", lambda a=args, k=k: [
            raw.StatelessRandomUniformIntV2(shape=a["dims"], minval=const(a["low"], a["dtype"]),
                                            maxval=const(a["high"], a["dtype"]), **k)])
        yield case("StatelessRandomGetKeyCounter", lambda seed=seed: list(
            raw.StatelessRandomGetKeyCounter(seed=seed)))
        yield case("StatelessRandomGetKeyCounterAlg", lambda seed=seed: list(
            raw.StatelessRandomGetKeyCounterAlg(seed=seed)))
        yield case("StatelessRandomGetAlg", lambda: [raw.StatelessRandomGetAlg()])

        n_classes, n_rows = int(rng.integers(1, 9)), int(rng.integers(0, 4))
        logits = rng.normal(size=(n_rows, n_classes))
        if n_rows and rng.random() < 0.3:
            logits[0, 0] = -np.inf
        dtype, out, n_samples = pick(rng, FLOATS), pick(rng, INTS), int(rng.integers(0, 30))
        (a, b), seed = seeds(rng), stateless_seed(rng)
        args = dict(logits=logits, dtype=dtype, out=out, n=n_samples)
        yield case("Multinomial", lambda x=args, a=a, b=b: [
            raw.Multinomial(logits=tf.cast(x["logits"], x["dtype"]), num_samples=x["n"], seed=a,
                            seed2=b, output_dtype=x["out"])])
        yield case("StatelessMultinomial", lambda x=args, seed=seed: [
            raw.StatelessMultinomial(logits=tf.cast(x["logits"], x["dtype"]), num_samples=x["n"],
                                     seed=seed, output_dtype=x["out"])])

        dtype = pick(rng, [tf.float16, tf.float32, tf.float64])
        alpha = rng.gamma(1, 3, size=tuple(int(x) for x in rng.integers(1, 4, int(rng.integers(0, 3)))))
        if alpha.ndim and rng.random() < 0.3:
            alpha.reshape(-1)[0] = 1
        dims, (a, b), seed, k = shape(rng)[:2], seeds(rng), stateless_seed(rng), key(rng)
        args = dict(dims=dims, alpha=alpha, dtype=dtype)
        full = np.concatenate([dims, np.array(alpha.shape, dims.dtype)])
        yield case("RandomGamma", lambda x=args, a=a, b=b: [
            raw.RandomGamma(shape=x["dims"], alpha=tf.cast(x["alpha"], x["dtype"]), seed=a,
                            seed2=b)], 4)
        yield case("StatelessRandomGammaV2", lambda x=args, full=full, seed=seed: [
            raw.StatelessRandomGammaV2(shape=full, seed=seed,
                                       alpha=tf.cast(x["alpha"], x["dtype"]))], 4)
        yield case("StatelessRandomGammaV3", lambda x=args, full=full, k=k: [
            raw.StatelessRandomGammaV3(shape=full, alpha=tf.cast(x["alpha"], x["dtype"]), **k)], 4)
        rate, out = pick(rng, FLOATS[:1] + FLOATS[2:] + INTS), pick(rng, FLOATS[:1] + FLOATS[2:] + INTS)
        args = dict(dims=dims, lam=alpha * rng.choice([1, 10]), rate=rate, out=out)
        yield case("RandomPoissonV2", lambda x=args, a=a, b=b: [
            raw.RandomPoissonV2(shape=x["dims"], rate=tf.cast(x["lam"], x["rate"]), seed=a, seed2=b,
                                dtype=x["out"])])
        yield case("StatelessRandomPoisson", lambda x=args, full=full, seed=seed: [
            raw.StatelessRandomPoisson(shape=full, seed=seed, lam=tf.cast(x["lam"], x["rate"]),
                                       dtype=x["out"])])

        state = rng.integers(-2**63, 2**63 - 1, 3, dtype=np.int64)
        dims, kind = shape(rng), pick(rng, FLOATS)
        integer, full_integer = pick(rng, INTS), pick(rng, FULL)
        low, high = bounds(rng, integer)
        delta = int(rng.integers(0, 2**40))
        args = dict(state=state, dims=dims, kind=kind, integer=integer, full=full_integer, low=low,
                    high=high, delta=delta)
        yield case("Stateful*", lambda x=args: generator(x), 2)


def generator(x):
    handle = raw.VarHandleOp(dtype=tf.int64, shape=[3], shared_name=f"g{id(x)}")
    outputs = []
    last = raw.AssignVariableOp(resource=handle, value=x["state"])

    def then(make):
        nonlocal last
        with tf.control_dependencies([last]):
            out = make()
        last = out if isinstance(out, tf.Operation) else out.op
        if not isinstance(out, tf.Operation):
            outputs.append(out)

    common = dict(resource=handle, algorithm=tf.constant(1, tf.int64), shape=x["dims"])
    then(lambda: raw.StatefulUniform(**common, dtype=x["kind"]))
    then(lambda: raw.StatefulStandardNormalV2(**common, dtype=x["kind"]))
    then(lambda: raw.RngSkip(resource=handle, algorithm=tf.constant(1, tf.int64),
                             delta=tf.constant(x["delta"], tf.int64)))
    then(lambda: raw.StatefulTruncatedNormal(**common, dtype=x["kind"]))
    then(lambda: raw.StatefulUniformInt(**common, minval=tf.constant(x["low"], x["integer"]),
                                        maxval=tf.constant(x["high"], x["integer"])))
    then(lambda: raw.StatefulUniformFullInt(**common, dtype=x["full"]))
    then(lambda: raw.RngReadAndSkip(resource=handle, alg=1, delta=tf.constant(x["delta"], tf.uint64)))
    then(lambda: raw.ReadVariableOp(resource=handle, dtype=tf.int64))
    return outputs
