//! Strings.

use placewright::graph::AttrValue;
use placewright::tensor::Boolean;
use placewright::tensor::Complex64;
use placewright::tensor::DType;
use placewright::tensor::Element;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::case;
use crate::case::tensor;

fn strings(dims: &[usize], values: &[&str]) -> Tensor {
    let values = values.iter().map(|value| value.as_bytes().into()).collect();
    Tensor::from_strings(dims.into(), values).expect("as many strings as the shape holds")
}

fn truths(values: &[bool]) -> Tensor {
    let values: Vec<Boolean> = values.iter().map(|&value| value.into()).collect();
    tensor(&[values.len()], &values)
}

/// An op on one tensor of strings.
fn unary(name: &str, op: &'static str, values: &[&str]) -> Case {
    case(&format!("{op}: {name}"), op).input(strings(&[values.len()], values))
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = one_by_one();
    cases.extend(numbers());
    cases.extend(patterns());
    cases.extend(pieces());
    cases.extend(joined());
    cases.extend(unicode());
    cases
}

fn one_by_one() -> Vec<Case> {
    let bucket =
        |op: &'static str, n| unary("hashes", op, &["", "a", "Hello"]).int("num_buckets", n);
    let substring = |name: &str, unit: &str, position: i32, len: i64| {
        let values = ["hello", "\u{e4}\u{20ac}b"];
        unary(name, "Substr", &values)
            .text("unit", unit)
            .typed("T", DType::I64)
            .input(tensor(&[], &[i64::from(position)]))
            .input(tensor(&[], &[len]))
    };
    vec![
        unary("ASCII", "StringLower", &["Ab\u{c4}", ""]).gives(strings(&[2], &["ab\u{c4}", ""])),
        unary("UTF-8", "StringLower", &["Ab\u{c4}"])
            .text("encoding", "utf-8")
            .gives(strings(&[1], &["ab\u{e4}"])),
        unary("UTF-8", "StringUpper", &["ab\u{df}"])
            .text("encoding", "utf-8")
            .gives(strings(&[1], &["ABSS"])),
        unary("another encoding", "StringUpper", &["a"])
            .text("encoding", "latin1")
            .refused("only utf-8 or '' (no encoding) is supported, received latin1"),
        case("StringLower: numbers", "StringLower")
            .input(tensor(&[1], &[1]))
            .refused("the tensor holds int32, not string"),
        unary("spaces", "StringStrip", &[" a b\n", "\t ", ""])
            .gives(strings(&[3], &["a b", "", ""])),
        unary("bytes", "StringLength", &["\u{e4}b", ""]).gives(tensor(&[2], &[3, 0])),
        unary("characters", "StringLength", &["\u{e4}b", ""])
            .text("unit", "UTF8_CHAR")
            .gives(tensor(&[2], &[2, 0])),
        case("StringLength: a matrix without elements", "StringLength")
            .input(strings(&[0, 2], &[]))
            .gives(tensor::<i32>(&[0, 2], &[])),
        substring("bytes", "BYTE", 0, 2).gives(strings(&[2], &["he", "\u{e4}"])),
        substring("characters", "UTF8_CHAR", -2, 1).gives(strings(&[2], &["l", "\u{20ac}"])),
        substring("outside", "BYTE", 6, 1)
            .refused("pos 6 out of range for string b'hello' at index 0"),
        substring("outside", "UTF8_CHAR", 4, 1).refused("pos 4 out of range for string at index 1"),
        unary("one per string", "Substr", &["abc", "def"])
            .typed("T", DType::I32)
            .input(tensor(&[2], &[0, 1]))
            .input(tensor(&[2], &[1, 2]))
            .gives(strings(&[2], &["a", "ef"])),
        unary("other shapes", "Substr", &["abc", "def"])
            .typed("T", DType::I32)
            .input(tensor(&[2], &[0, 1]))
            .input(tensor(&[1], &[1]))
            .refused("pos and len should have the same shape, got: [2] vs. [1]"),
        unary("no positions", "Substr", &["abc"])
            .typed("T", DType::I32)
            .input(tensor::<i32>(&[0], &[]))
            .input(tensor::<i32>(&[0], &[]))
            .gives(strings(&[0], &[])),
        // Of TensorFlow 2.21.
        bucket("StringToHashBucket", 1_000_000_007)
            .gives(tensor(&[3], &[727_638_525i64, 395_105_680, 556_243_135])),
        bucket("StringToHashBucketFast", 1_000_000_007)
            .gives(tensor(&[3], &[912_170_738i64, 384_735_799, 724_633_949])),
        bucket("StringToHashBucketStrong", 1_000_000_007)
            .ints("key", &[1, -2])
            .gives(tensor(&[3], &[86_710_601i64, 306_109_332, 855_189_507])),
        bucket("StringToHashBucketStrong", 10)
            .ints("key", &[1])
            .refused("Key must have 2 elements, found 1"),
        unary(
            "without padding",
            "EncodeBase64",
            &["a", "\u{ff}\u{fe}", ""],
        )
        .gives(strings(&[3], &["YQ", "w7_Dvg", ""])),
        unary("with padding", "EncodeBase64", &["a"])
            .bool("pad", true)
            .gives(strings(&[1], &["YQ=="])),
        unary("both", "DecodeBase64", &["YQ", "YQ==", ""]).gives(strings(&[3], &["a", "a", ""])),
        unary("bits behind the last byte", "DecodeBase64", &["YR", "YR=="])
            .gives(strings(&[2], &["a", "a"])),
        unary("too little padding", "DecodeBase64", &["YQ="])
            .refused("Invalid character found in base64"),
        unary("another alphabet", "DecodeBase64", &["w7/Dvg"])
            .refused("Invalid character found in base64"),
    ]
}

fn numbers() -> Vec<Case> {
    fn number<T: Element>(name: &str, text: &str, value: T) -> Case {
        unary(name, "StringToNumber", &[text])
            .typed("out_type", T::DTYPE)
            .gives(tensor(&[1], &[value]))
    }
    fn written(name: &str, input: Tensor) -> Case {
        case(&format!("AsString: {name}"), "AsString")
            .typed("T", input.dtype())
            .input(input)
    }
    let floats = || tensor(&[3], &[1.5f32, -2e10, f32::INFINITY]);
    let mut cases = vec![
        number("float", " 1.5e3\n", 1500f32),
        number("double", "-0.5", -0.5f64),
        number("int32", "+12", 12i32),
        number("int64", "-9223372036854775808", i64::MIN),
        number("uint32", "4294967295", u32::MAX),
        number("uint64", "18446744073709551615", u64::MAX),
        unary("too large", "StringToNumber", &["2147483648"])
            .typed("out_type", DType::I32)
            .refused("StringToNumberOp could not correctly convert string: 2147483648"),
        unary("no number", "StringToNumber", &["1x"])
            .typed("out_type", DType::F32)
            .refused("StringToNumberOp could not correctly convert string: 1x"),
        unary("nothing", "StringToNumber", &[""])
            .typed("out_type", DType::F32)
            .refused("could not correctly convert"),
        written("floats", floats())
            .gives(strings(&[3], &["1.500000", "-20000000000.000000", "inf"])),
        written("scientific", floats())
            .bool("scientific", true)
            .int("precision", 2)
            .int("width", 12)
            .text("fill", "0")
            .gives(strings(
                &[3],
                &["00001.50e+00", "-0002.00e+10", "         inf"],
            )),
        written("shortest", floats())
            .bool("shortest", true)
            .gives(strings(&[3], &["1.5", "-2e+10", "inf"])),
        written(
            "complex numbers",
            tensor(&[], &[Complex64 { re: 1.0, im: 2.0 }]),
        )
        .bool("shortest", true)
        .gives(strings(&[], &["(1,2)"])),
        written("booleans", truths(&[true, false])).gives(strings(&[2], &["true", "false"])),
        written("filled up", tensor(&[2], &[-5, 300]))
            .int("width", 5)
            .text("fill", "0")
            .gives(strings(&[2], &["-0005", "00300"])),
        written("signs", tensor(&[2], &[-5, 3]))
            .text("fill", "+")
            .gives(strings(&[2], &["-5", "+3"])),
        written("no sign", tensor(&[2], &[5u8, 30]))
            .int("width", 2)
            .text("fill", " ")
            .gives(strings(&[2], &[" 5", "30"])),
        written("strings", strings(&[2], &["a", "abc"]))
            .int("width", 2)
            .gives(strings(&[2], &[" a", "abc"])),
        written("nothing", tensor::<f64>(&[2, 0], &[])).gives(strings(&[2, 0], &[])),
        written("a precision of integers", tensor(&[], &[1]))
            .int("precision", 2)
            .refused("precision not supported for datatype int32"),
        written("two notations", floats())
            .bool("scientific", true)
            .bool("shortest", true)
            .refused("Cannot select both scientific and shortest notation"),
        written("two fills", floats())
            .text("fill", "00")
            .refused("Fill string must be one or fewer characters"),
        written("another fill", floats())
            .text("fill", "x")
            .refused("Fill argument not supported: \"x\""),
        written("a wide string", floats())
            .int("width", 1 << 31)
            .refused("at most 65535 is supported"),
    ];
    for dtype in [
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
    ] {
        let input = crate::case::typed_tensor(dtype, &[2], &[0, 7]);
        cases.push(written(dtype.name(), input).gives(strings(&[2], &["0", "7"])));
    }
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let input = crate::case::typed_tensor(dtype, &[2], &[0, 7]);
        cases.push(
            written(dtype.name(), input)
                .bool("shortest", true)
                .gives(strings(&[2], &["0", "7"])),
        );
    }
    cases
}

fn patterns() -> Vec<Case> {
    let replaced = |name: &str, pattern: &str, rewrite: &str| {
        unary(name, "StaticRegexReplace", &["abab", "", "x1\u{e4}"])
            .text("pattern", pattern)
            .text("rewrite", rewrite)
    };
    let dynamic = |name: &str, pattern: Tensor| {
        unary(name, "RegexReplace", &["abab"])
            .bool("replace_global", false)
            .input(pattern)
            .input(strings(&[], &["<\\0>"]))
    };
    vec![
        replaced("all", "a(b)", r"\1\\").gives(strings(&[3], &[r"b\b\", "", "x1\u{e4}"])),
        replaced("the first", "a(b)", r"\1")
            .bool("replace_global", false)
            .gives(strings(&[3], &["bab", "", "x1\u{e4}"])),
        replaced("letters are ASCII", r"\w", ".").gives(strings(&[3], &["....", "", "..\u{e4}"])),
        replaced("between characters", "b*", "-")
            .gives(strings(&[3], &["-a-a-", "-", "-x-1-\u{e4}-"])),
        replaced("a wrong pattern", "a(", "").refused("Invalid pattern: a(, error: "),
        replaced("a wrong rewrite", "a", r"\x").refused("invalid rewrite"),
        dynamic("a pattern", strings(&[], &["b"])).gives(strings(&[1], &["a<b>ab"])),
        dynamic("two patterns", strings(&[2], &["a", "b"]))
            .refused("Pattern must be scalar, but received [2]"),
        unary("matches", "StaticRegexFullMatch", &["ab", "abc", ""])
            .text("pattern", "a|ab")
            .gives(truths(&[true, false, false])),
        unary("matches", "RegexFullMatch", &["ab", "abc", ""])
            .input(strings(&[], &["(ab?c?)?"]))
            .gives(truths(&[true, true, true])),
        unary("a wrong pattern", "RegexFullMatch", &["ab"])
            .input(strings(&[], &[")("]))
            .refused("Invalid pattern: )(, error: "),
    ]
}

fn pieces() -> Vec<Case> {
    let split = |name: &str, op: &'static str, separator: &str, values: &[&str]| {
        unary(name, op, values).input(strings(&[], &[separator]))
    };
    let found = |places: &[i64], values: &[&str], shape: [i64; 2]| {
        vec![
            tensor(&[values.len(), 2], places),
            strings(&[values.len()], values),
            tensor(&[2], &shape),
        ]
    };
    let ngrams = |name: &str, splits: &[i64], widths: &[i64]| {
        unary(name, "StringNGrams", &["a", "b", "c", "d"])
            .text("separator", "|")
            .text("left_pad", "L")
            .text("right_pad", "R")
            .ints("ngram_widths", widths)
            .int("pad_width", 1)
            .bool("preserve_short_sequences", false)
            .typed("Tsplits", DType::I64)
            .input(tensor(&[splits.len()], splits))
    };
    vec![
        split("spaces", "StringSplitV2", "", &[" a b ", "", "c"]).gives_all(found(
            &[0, 0, 0, 1, 2, 0],
            &["a", "b", "c"],
            [3, 2],
        )),
        split("once", "StringSplitV2", ",", &["a,b,c"])
            .int("maxsplit", 1)
            .gives_all(found(&[0, 0, 0, 1], &["a", "b,c"], [1, 2])),
        split("nothing", "StringSplitV2", ",", &[]).gives_all(found(&[], &[], [0, 0])),
        split("without empty ones", "StringSplit", ", ", &["a, b", ","]).gives_all(found(
            &[0, 0, 0, 1],
            &["a", "b"],
            [2, 2],
        )),
        split("with empty ones", "StringSplit", ",", &[","])
            .bool("skip_empty", false)
            .gives_all(found(&[0, 0, 0, 1], &["", ""], [1, 2])),
        split("bytes", "StringSplit", "", &["ab"]).gives_all(found(
            &[0, 0, 0, 1],
            &["a", "b"],
            [1, 2],
        )),
        case("StringSplit: a scalar", "StringSplit")
            .input(strings(&[], &["a"]))
            .input(strings(&[], &[""]))
            .with_outputs(3)
            .refused("input must be a vector, got shape: []"),
        ngrams("pairs", &[0, 3, 3, 4], &[2]).gives_all(vec![
            strings(&[7], &["L|a", "a|b", "b|c", "c|R", "L|R", "L|d", "d|R"]),
            tensor(&[4], &[0i64, 4, 5, 7]),
        ]),
        ngrams("a wrong start", &[1, 4], &[2])
            .with_outputs(2)
            .refused("First split value must be 0, got 1"),
        ngrams("a wrong end", &[0, 3], &[2])
            .with_outputs(2)
            .refused("Last split value must be data size. Expected 4, got 3"),
        ngrams("backwards", &[0, 3, 2, 4], &[2])
            .with_outputs(2)
            .refused("Invalid split value 2, must be in [3, 4]"),
        ngrams("no width", &[0, 4], &[0])
            .with_outputs(2)
            .refused("ngram_widths must contain positive values"),
    ]
}

fn joined() -> Vec<Case> {
    let joined = |name: &str, inputs: &[Tensor]| {
        let start = case(&format!("StringJoin: {name}"), "StringJoin").text("separator", "-");
        inputs
            .iter()
            .fold(start, |case, input| case.input(input.clone()))
    };
    let reduced = |name: &str, axes: &[i32], keep: bool| {
        case(&format!("ReduceJoin: {name}"), "ReduceJoin")
            .text("separator", "+")
            .bool("keep_dims", keep)
            .input(strings(&[2, 2], &["a", "b", "c", "d"]))
            .input(tensor(&[axes.len()], axes))
    };
    let segments = |name: &str, ids: Tensor, n: i32| {
        case(
            &format!("UnsortedSegmentJoin: {name}"),
            "UnsortedSegmentJoin",
        )
        .typed("Tindices", ids.dtype())
        .typed("Tnumsegments", DType::I32)
        .text("separator", "+")
        .input(strings(&[2, 2], &["a", "b", "c", "d"]))
        .input(ids)
        .input(tensor(&[], &[n]))
    };
    let format = |name: &str, template: &str, inputs: &[Tensor]| {
        let start = case(&format!("StringFormat: {name}"), "StringFormat")
            .text("template", template)
            .text("placeholder", "{}");
        inputs
            .iter()
            .fold(start, |case, input| case.input(input.clone()))
    };
    vec![
        joined(
            "a scalar with each",
            &[strings(&[], &["x"]), strings(&[2], &["a", ""])],
        )
        .gives(strings(&[2], &["x-a", "x-"])),
        joined("nothing", &[]).gives(strings(&[], &[""])),
        joined(
            "different shapes",
            &[strings(&[1], &["x"]), strings(&[2], &["a", ""])],
        )
        .refused("Input shapes do not match: [1] vs. [2]"),
        reduced("rows", &[1], false).gives(strings(&[2], &["a+b", "c+d"])),
        reduced("columns", &[-2], true).gives(strings(&[1, 2], &["a+c", "b+d"])),
        reduced("both", &[0, 1], false).gives(strings(&[], &["a+c+b+d"])),
        reduced("none", &[], false).gives(strings(&[2, 2], &["a", "b", "c", "d"])),
        reduced("an axis that is not there", &[2], false)
            .refused("Invalid reduction dimension 2 for input with 2 dimension(s)"),
        reduced("an axis twice", &[1, -1], false).refused("Duplicate reduction dimension -1"),
        segments("rows", tensor(&[2], &[1i64, 1]), 2)
            .gives(strings(&[2, 2], &["", "", "a+c", "b+d"])),
        segments("elements", tensor(&[2, 2], &[1, 0, 1, 0]), 2)
            .gives(strings(&[2], &["b+d", "a+c"])),
        segments("beyond", tensor(&[2], &[0, 2]), 2)
            .refused("segment_ids are not allowed to exceed num_segments"),
        segments("negative", tensor(&[2], &[0, -1]), 2).refused("or to have negative values"),
        segments("no segments", tensor(&[2], &[0, 1]), -1)
            .refused("Number of segments must be non-negative but got -1"),
        segments("another shape", tensor(&[3], &[0, 1, 1]), 2)
            .refused("input must start with their shape"),
        segments("a scalar", tensor(&[], &[0]), 2).refused("a rank of at least 1"),
        case("ReduceJoin: nothing", "ReduceJoin")
            .input(strings(&[2, 0], &[]))
            .input(tensor(&[1], &[1]))
            .gives(strings(&[2], &["", ""])),
        format(
            "two tensors",
            "x {} and {}",
            &[
                tensor(&[2, 2], &[1.5f32, 2.0, 3.0, 4.25]),
                strings(&[2], &["a\"b", "\u{e4}"]),
            ],
        )
        .gives(strings(
            &[],
            &["x [[1.5 2]\n [3 4.25]] and [\"a\\\"b\" \"\u{e4}\"]"],
        )),
        format(
            "the ends",
            "{}",
            &[tensor(&[10], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9])],
        )
        .int("summarize", 2)
        .gives(strings(&[], &["[0 1 ... 8 9]"])),
        format(
            "no elements",
            "{} {}",
            &[tensor(&[], &[1]), tensor(&[2], &[1, 2])],
        )
        .int("summarize", 0)
        .gives(strings(&[], &["... [ ...]"])),
        format("too few", "{} {}", &[tensor(&[], &[1])])
            .refused("num placeholders in template and num inputs must match: 2 vs. 1"),
    ]
}

fn unicode() -> Vec<Case> {
    let decoded = |name: &str, bytes: &[u8], errors: &str| {
        let string = Tensor::from_strings([1].into(), vec![bytes.into()]).expect("one string");
        case(
            &format!("UnicodeDecodeWithOffsets: {name}"),
            "UnicodeDecodeWithOffsets",
        )
        .text("input_encoding", "UTF-8")
        .text("errors", errors)
        .typed("Tsplits", DType::I64)
        .input(string)
    };
    let characters = |characters: &[i32], offsets: &[i64]| {
        let n = characters.len();
        vec![
            tensor(&[2], &[0, i64::try_from(n).expect("few")]),
            tensor(&[n], characters),
            tensor(&[n], offsets),
        ]
    };
    let encoded = |name: &str, errors: &str| {
        case(&format!("UnicodeEncode: {name}"), "UnicodeEncode")
            .text("output_encoding", "UTF-8")
            .text("errors", errors)
            .typed("Tsplits", DType::I32)
            .input(tensor(&[3], &[0x61, 0xd800, 0x1_f600]))
            .input(tensor(&[3], &[0, 1, 3]))
    };
    vec![
        decoded("characters", "a\u{20ac}b".as_bytes(), "strict")
            .gives_all(characters(&[0x61, 0x20ac, 0x62], &[0, 1, 4])),
        decoded("replaced", b"a\xffb", "replace")
            .gives_all(characters(&[0x61, 0xfffd, 0x62], &[0, 1, 2])),
        decoded("ignored", b"a\xffb", "ignore").gives_all(characters(&[0x61, 0x62], &[0, 2])),
        decoded("wrong bytes", b"a\xffb", "strict")
            .with_outputs(3)
            .refused("Invalid formatting on input string"),
        decoded("another encoding", b"a", "strict")
            .text("input_encoding", "EBCDIC")
            .with_outputs(3)
            .refused("Could not create converter for input encoding: EBCDIC"),
        decoded("a replacement that is no character", b"a", "replace")
            .attr("replacement_char", AttrValue::Int(0x11_0000))
            .with_outputs(3)
            .refused("replacement_char out of unicode codepoint range"),
        encoded("replaced", "replace").gives(strings(&[2], &["a", "\u{fffd}\u{1f600}"])),
        encoded("ignored", "ignore").gives(strings(&[2], &["a", "\u{1f600}"])),
        encoded("wrong characters", "strict")
            .refused("Code point is out of range for Unicode, or a noncharacter."),
        unary("controls", "UnicodeTranscode", &["a\u{1}b"])
            .text("input_encoding", "UTF-8")
            .text("output_encoding", "UTF-8")
            .text("errors", "strict")
            .bool("replace_control_characters", true)
            .refused("Invalid formatting on input string"),
        unary("to UTF-16", "UnicodeTranscode", &["a\u{1f600}"])
            .text("input_encoding", "UTF-8")
            .text("output_encoding", "UTF-16-BE")
            .gives(
                Tensor::from_strings([1].into(), vec![b"\0a\xd8\x3d\xde\x00"[..].into()])
                    .expect("one string"),
            ),
    ]
}
