"""Cases of strings."""

import numpy as np
import tensorflow as tf

from harness import Case

raw = tf.raw_ops
SAMPLES = ["", "a", "ab", "abc", "Hello World", " lead", "trail ", "a,b,,c", "x.y z", "\u00e4\u20ac",
         "\U0001f600b", "UPPER lower 12", "tab\tnew\nline", "1", "-3.5e2", "aaaa", "na\u00efve \u00c9t\u00c9"]
BYTES = [b"\xff\xfe", b"a\xe2\x82b", b"\xf0\x9f\x98", b"ok\x80", b"a\x01b"]
PATTERNS = [r"a+", r"[^a-z]", r"\s+", r"(\w)(\w)?", r"\d", "", r"a*", r"[[:punct:]]", r"\bl", r"(?i)HELLO",
            r'[!"#$%&()\*\+,-\./:;<=>?@\[\\\]^_`{|}~\']', r".", r"\pL+", r"^a", r"b$", r"x|xy", r"[a&&b]"]
REWRITES = [r"", r"<\0>", r"\1-\2", r"\\", r"[\1]", "z"]


def words(rng, shape, raw_bytes=False):
    pool = [w.encode() for w in SAMPLES] + (BYTES if raw_bytes else [])
    n = int(np.prod(shape))
    return np.array([pool[int(i)] for i in rng.integers(0, len(pool), n)], object).reshape(shape)


def dims(rng, most=3):
    return tuple(int(x) for x in rng.choice([0, 1, 2, 3, 4], int(rng.integers(0, most + 1)),
                                            p=[0.05, 0.25, 0.3, 0.2, 0.2]))


def pick(rng, options):
    return options[int(rng.integers(len(options)))]


def splits(rng, n):
    inner = np.sort(rng.integers(0, n + 1, int(rng.integers(0, 4))))
    return np.concatenate([[0], inner, [n]])


def const(value):
    return tf.constant(value, tf.string)


def ended(strings):
    """Appends a letter: NumPy does not keep zeros at the end of strings."""
    return raw.StringJoin(inputs=[strings, const("|")])


def cases(rng, n):
    for _ in range(n):
        s = words(rng, dims(rng))
        b = words(rng, dims(rng), True)
        for op in ["StringLower", "StringUpper"]:
            e = pick(rng, ["", "utf-8"])
            yield Case(op, lambda op=op, s=s, e=e: [getattr(raw, op)(input=const(s), encoding=e)])
        yield Case("StringStrip", lambda b=b: [raw.StringStrip(input=const(b))])
        unit = pick(rng, ["BYTE", "UTF8_CHAR"])
        yield Case("StringLength", lambda b=b, u=unit: [raw.StringLength(input=const(b), unit=u)])
        buckets = int(rng.integers(1, 10**9))
        for op in ["StringToHashBucket", "StringToHashBucketFast"]:
            key = "string_tensor" if op == "StringToHashBucket" else "input"
            yield Case(op, lambda op=op, key=key, b=b, k=buckets: [
                getattr(raw, op)(**{key: const(b)}, num_buckets=k)])
        long = np.array([rng.bytes(int(rng.integers(1, 300))) + b"x"], object)
        yield Case("StringToHashBucketFast", lambda b=long, k=buckets: [
            raw.StringToHashBucketFast(input=const(b), num_buckets=k)])
        yield Case("StringToHashBucket", lambda b=long, k=buckets: [
            raw.StringToHashBucket(string_tensor=const(b), num_buckets=k)])
        hash_key = [int(x) for x in rng.integers(0, 2**62, 2)]
        yield Case("StringToHashBucketStrong", lambda b=b, k=buckets, h=hash_key: [
            raw.StringToHashBucketStrong(input=const(b), num_buckets=k, key=h)])

        out = pick(rng, [tf.float32, tf.float64, tf.int32, tf.int64, tf.uint32, tf.uint64])
        numbers = ["1", " 2 ", "-3", "+4", "1.5", "1e3", "inf", "-INF", "nan", "0x10", "", "abc",
                   "1 2", "99999999999", "-0", ".5", "5.", "1e400", "infinity", "1_0", "0" * 40,
                   "3.4028236e38", "1e-50", "18446744073709551615", "4294967295", "\t7\n"]
        if rng.random() < 0.5:
            numbers = ["1", " 2 ", "3", "+4", "007", "\t7\n"]
        value = pick(rng, numbers)
        yield Case("StringToNumber", lambda v=value, out=out: [
            raw.StringToNumber(string_tensor=const([v]), out_type=out)])

        s = words(rng, dims(rng, 2), True)
        index = pick(rng, [tf.int32, tf.int64])
        pos_shape = pick(rng, [(), s.shape, s.shape[-1:]])
        pos = rng.integers(-4, 4, pos_shape)
        length = rng.integers(-1, 5, pos_shape)
        yield Case("Substr", lambda s=s, p=pos, n=length, i=index, u=unit: [
            raw.Substr(input=const(s), pos=tf.cast(p, i), len=tf.cast(n, i), unit=u)])

        s = words(rng, dims(rng))
        pattern, rewrite, all_ = pick(rng, PATTERNS), pick(rng, REWRITES), bool(rng.random() < 0.7)
        args = dict(s=s, p=pattern, r=rewrite, g=all_)
        yield Case("RegexReplace", lambda x=args: [
            raw.RegexReplace(input=const(x["s"]), pattern=x["p"], rewrite=x["r"],
                             replace_global=x["g"])])
        yield Case("StaticRegexReplace", lambda x=args: [
            raw.StaticRegexReplace(input=const(x["s"]), pattern=x["p"], rewrite=x["r"],
                                   replace_global=x["g"])])
        pattern = pick(rng, PATTERNS + [".*", r"(?s).*", r"a.*|.*b", r"\w*", "[a-z ]*", ")(", "(", "a**"])
        yield Case("RegexFullMatch", lambda s=s, p=pattern: [
            raw.RegexFullMatch(input=const(s), pattern=p)])
        yield Case("StaticRegexFullMatch", lambda s=s, p=pattern: [
            raw.StaticRegexFullMatch(input=const(s), pattern=p)])
        pad = bool(rng.random() < 0.5)
        yield Case("EncodeBase64", lambda b=b, p=pad: [raw.EncodeBase64(input=const(b), pad=p)])
        yield Case("DecodeBase64", lambda b=b, p=pad: [
            raw.DecodeBase64(input=raw.EncodeBase64(input=const(b), pad=p))])
        bad = pick(rng, ["a", "a b", "ab=", "abc!", "YWI_", "YWI+", "YQ", "YR"])
        yield Case("DecodeBase64", lambda b=bad: [raw.DecodeBase64(input=const([b]))])

        s = words(rng, dims(rng, 1) or (2,), True)
        delimiter, skip = pick(rng, ["", ",", " ", ", ", "a"]), bool(rng.random() < 0.5)
        yield Case("StringSplit", lambda s=s, d=delimiter, k=skip: list(
            raw.StringSplit(input=const(s.reshape(-1)), delimiter=d, skip_empty=k)))
        sep, most = pick(rng, ["", ",", " ", "a", "ab", ",,"]), int(rng.integers(-1, 3))
        yield Case("StringSplitV2", lambda s=s, d=sep, m=most: list(
            raw.StringSplitV2(input=const(s.reshape(-1)), sep=d, maxsplit=m)))

        data = words(rng, (int(rng.integers(0, 7)),))
        args = dict(data=data, splits=splits(rng, len(data)), index=index,
                    widths=[int(x) for x in rng.integers(1, 4, int(rng.integers(1, 3)))],
                    pad=int(rng.integers(-1, 3)), short=bool(rng.random() < 0.5))
        yield Case("StringNGrams", lambda x=args: list(raw.StringNGrams(
            data=const(x["data"]), data_splits=tf.cast(x["splits"], x["index"]), separator="|",
            ngram_widths=x["widths"], left_pad="LP", right_pad="RP", pad_width=x["pad"],
            preserve_short_sequences=x["short"])))

        shape = dims(rng)
        parts = [words(rng, shape if rng.random() < 0.6 else ()) for _ in range(int(rng.integers(1, 4)))]
        yield Case("StringJoin", lambda p=parts: [
            raw.StringJoin(inputs=[const(x) for x in p], separator="-")])
        s = words(rng, shape)
        axes = [int(x) for x in rng.permutation(len(shape))[:int(rng.integers(0, len(shape) + 1))]]
        axes = [a - len(shape) if rng.random() < 0.3 else a for a in axes]
        keep = bool(rng.random() < 0.5)
        yield Case("ReduceJoin", lambda s=s, a=axes, k=keep: [raw.ReduceJoin(
            inputs=const(s), reduction_indices=tf.constant(a, tf.int32), keep_dims=k, separator="+")])

        kind = pick(rng, [tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int32, tf.int8, tf.uint8,
                          tf.int64, tf.uint64, tf.bool, tf.complex64, tf.complex128, tf.int16])
        value = rng.normal(size=dims(rng, 2)) * 10.0 ** float(rng.integers(-6, 8))
        value = np.abs(value) if kind.is_integer or kind == tf.bool else value
        attrs = dict(width=int(rng.choice([-1, 0, 3, 12])), fill=pick(rng, ["", "0", " ", "-", "+", "#"]))
        if kind.is_floating or kind.is_complex:
            attrs["precision"] = int(rng.choice([-1, 0, 2, 9]))
            attrs |= pick(rng, [{}, {"scientific": True}, {"shortest": True}])
        yield Case("AsString", lambda v=value, k=kind, a=attrs: [
            raw.AsString(input=tf.cast(v, k), **a)])
        yield Case("AsString", lambda s=s, a=attrs: [
            raw.AsString(input=const(s), width=a["width"], fill="" if a["fill"] in "+#0" else a["fill"])])
        summarize = int(rng.choice([-1, 0, 1, 2, 3]))
        yield Case("StringFormat", lambda v=value, k=kind, s=s, m=summarize: [raw.StringFormat(
            inputs=[const(s)] if k.is_complex else [tf.cast(v, k), const(s)],
            template="x %s" if k.is_complex else "%s and %s.", placeholder="%s", summarize=m)])

        errors = pick(rng, ["strict", "replace", "ignore"])
        control = bool(rng.random() < 0.3)
        b = words(rng, (3,), True)
        args = dict(b=b, errors=errors, control=control, index=index)
        yield Case("UnicodeDecode", lambda x=args: list(raw.UnicodeDecode(
            input=const(x["b"]), input_encoding="UTF-8", errors=x["errors"], Tsplits=x["index"],
            replace_control_characters=x["control"])))
        # With int32, TensorFlow 2.21 ends the process.
        yield Case("UnicodeDecodeWithOffsets", lambda x=args: list(raw.UnicodeDecodeWithOffsets(
            input=const(x["b"]), input_encoding="UTF-8", errors=x["errors"], Tsplits=tf.int64,
            replace_control_characters=x["control"])))
        to = pick(rng, ["UTF-8", "UTF-16-BE", "UTF-32-BE"])
        yield Case("UnicodeTranscode", lambda x=args, to=to: [ended(raw.UnicodeTranscode(
            input=const(x["b"]), input_encoding="UTF-8", output_encoding=to, errors=x["errors"],
            replace_control_characters=x["control"]))])
        chars = rng.choice([65, 0xe4, 0x20ac, 0x1f600, 0xd800, 0x110000, 0xfffe, 0xfdd0, 10], 6)
        args = dict(c=chars, s=splits(rng, 6), i=index, e=errors, to=to)
        yield Case("UnicodeEncode", lambda x=args: [ended(raw.UnicodeEncode(
            input_values=tf.cast(x["c"], tf.int32), input_splits=tf.cast(x["s"], x["i"]),
            output_encoding=x["to"], errors=x["e"]))])
