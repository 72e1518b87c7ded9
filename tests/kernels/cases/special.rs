//! Special functions, sequences, simulated quantization, cells of recurrent networks, and losses.

use half::bf16;
use half::f16;
use placewright::tensor::Complex64;
use placewright::tensor::Complex128;
use placewright::tensor::DType;
use placewright::tensor::Element;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::MOVED;
use crate::case::case;
use crate::case::noise;
use crate::case::tensor;
use crate::case::typed_tensor;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = functions(f64::from, 1e-6);
    cases.extend(functions(|x| x, 1e-5));
    cases.extend(sums());
    cases.extend(sequences());
    cases.extend(bytes());
    cases.extend(quantization());
    cases.extend(steps());
    cases.extend(cells());
    cases.extend(losses());
    cases
}

/// Known values; arguments are exact in `float`, results have seven digits.
fn functions<T: Element>(number: impl Fn(f32) -> T, tolerance: f64) -> Vec<Case> {
    let list = |values: &[f32]| {
        tensor(
            &[values.len()],
            &values.iter().map(|&x| number(x)).collect::<Vec<T>>(),
        )
    };
    let call = |op: &'static str, inputs: &[&[f32]], expected: &[f32]| {
        let start = case(&format!("{op}: {}", T::DTYPE), op).typed("T", T::DTYPE);
        let case = inputs
            .iter()
            .fold(start, |case, input| case.input(list(input)));
        case.gives_within(list(expected), tolerance)
    };
    let (nan, infinite) = (f32::NAN, f32::INFINITY);
    vec![
        call(
            "Lgamma",
            &[&[0.5, 1.0, 5.0, 0.0, -0.5]],
            &[0.572_364_9, 0.0, 3.178_053_9, infinite, 1.265_512_1],
        ),
        call(
            "Digamma",
            &[&[1.0, 0.5, 10.5, -0.5, -1.0]],
            &[-0.577_215_7, -1.963_51, 2.302_999_8, 0.036_489_97, nan],
        ),
        call(
            "Igamma",
            &[&[1.0, 2.0, 0.5, 0.0, 1.0], &[2.0, 1.0, 9.0, 1.0, -1.0]],
            &[0.864_664_7, 0.264_241_1, 0.999_977_9, nan, nan],
        ),
        call(
            "Igammac",
            &[&[1.0, 2.0, 0.5, 3.0], &[2.0, 1.0, 9.0, 0.0]],
            &[0.135_335_3, 0.735_758_9, 2.209_05e-5, 1.0],
        ),
        call(
            "Zeta",
            &[&[2.0, 3.0, 1.0, 0.5], &[1.0, 0.5, 1.0, 1.0]],
            &[1.644_934, 8.414_398, infinite, nan],
        ),
        call(
            "Polygamma",
            &[&[1.0, 2.0, 0.0, 0.5], &[1.0, 1.0, 1.0, 1.0]],
            &[1.644_934, -2.404_113_8, -0.577_215_7, nan],
        ),
        call(
            "Betainc",
            &[
                &[2.0, 2.0, 0.5, 1.0],
                &[3.0, 3.0, 0.5, 1.0],
                &[0.25, 0.75, 0.5, 2.0],
            ],
            &[0.261_718_75, 0.949_218_75, 0.5, nan],
        ),
        call("Betainc", &[&[], &[], &[]], &[]),
    ]
}

fn sums() -> Vec<Case> {
    let norm = |name: &str, x: Tensor, axes: &[i32], keeps: bool| {
        case(&format!("EuclideanNorm: {name}"), "EuclideanNorm")
            .typed("T", x.dtype())
            .typed("Tidx", DType::I32)
            .bool("keep_dims", keeps)
            .input(x)
            .named_input("reduction_indices", tensor(&[axes.len()], axes))
    };
    let mut cases = Vec::new();
    for dtype in MOVED
        .into_iter()
        .filter(|dtype| dtype.is_floating() || dtype.is_integer())
    {
        cases.push(
            norm(
                &format!("{dtype}"),
                typed_tensor(dtype, &[2, 2], &[3, 4, 0, 5]),
                &[1],
                false,
            )
            .gives(typed_tensor(dtype, &[2], &[5, 5])),
        );
    }
    let scan = |name: &str, x: Tensor, axis: i32| {
        case(
            &format!("CumulativeLogsumexp: {name}"),
            "CumulativeLogsumexp",
        )
        .typed("T", x.dtype())
        .typed("Tidx", DType::I32)
        .input(x)
        .named_input("axis", tensor(&[], &[axis]))
    };
    cases.push(
        case("BiasAddV1: the last dimension", "BiasAddV1")
            .typed("T", DType::I32)
            .input(tensor(&[2, 2], &[1, 2, 3, 4]))
            .input(tensor(&[2], &[10, 20]))
            .gives(tensor(&[2, 2], &[11, 22, 13, 24])),
    );
    let two = std::f32::consts::LN_2;
    let lowest = f32::NEG_INFINITY;
    cases.extend([
        norm(
            "complex",
            tensor(&[2], &[Complex64::new(0.0, 3.0), Complex64::new(4.0, 0.0)]),
            &[0],
            true,
        )
        .gives(tensor(&[1], &[Complex64::new(5.0, 0.0)])),
        norm(
            "complex, double",
            tensor(&[1], &[Complex128::new(3.0, -4.0)]),
            &[0],
            false,
        )
        .gives(tensor(&[], &[Complex128::new(5.0, 0.0)])),
        norm(
            "one negative number",
            tensor(&[1, 1], &[-2.0f32]),
            &[1],
            false,
        )
        .gives(tensor(&[1], &[2.0f32])),
        norm("no axes", tensor(&[1], &[-2.0f32]), &[], false).gives(tensor(&[1], &[2.0f32])),
        norm("nothing", tensor::<f32>(&[0, 2], &[]), &[0], false).gives(tensor(&[2], &[0.0f32; 2])),
        norm("an axis too far", tensor(&[1], &[1.0f32]), &[1], false).refused("1"),
        scan("float", tensor(&[2, 2], &[0.0f32, 0.0, 5.0, lowest]), 1)
            .gives_within(tensor(&[2, 2], &[0.0f32, two, 5.0, 5.0]), 1e-7),
        scan("double", tensor(&[2], &[0.0f64; 2]), 0)
            .gives_within(tensor(&[2], &[0.0, std::f64::consts::LN_2]), 1e-15),
        scan("half", tensor(&[2], &[f16::ZERO; 2]), 0)
            .gives_within(tensor(&[2], &[f16::ZERO, f16::from_f32(two)]), 1e-3),
        scan("bfloat16", tensor(&[2], &[bf16::ZERO; 2]), 0)
            .gives_within(tensor(&[2], &[bf16::ZERO, bf16::from_f32(two)]), 1e-2),
        scan("nothing", tensor::<f32>(&[0], &[]), 0).gives(tensor::<f32>(&[0], &[])),
        scan("an axis too far", tensor(&[1], &[1.0f32]), 1)
            .refused("expected scan axis in the range"),
    ]);
    cases
}

fn sequences() -> Vec<Case> {
    let reverse = |name: &str, x: Tensor, axes: &[bool]| {
        let axes = Tensor::from_bools([axes.len()], axes).expect("as many values");
        case(&format!("Reverse: {name}"), "Reverse")
            .typed("T", x.dtype())
            .input(x)
            .named_input("dims", axes)
    };
    let sequence = |name: &str, x: Tensor, lengths: &[i64], dims: [i64; 2]| {
        case(&format!("ReverseSequence: {name}"), "ReverseSequence")
            .typed("T", x.dtype())
            .typed("Tlen", DType::I64)
            .int("seq_dim", dims[0])
            .int("batch_dim", dims[1])
            .input(x)
            .input(tensor(&[lengths.len()], lengths))
    };
    let roll = |name: &str, x: Tensor, shifts: &[i32], axes: &[i64]| {
        case(&format!("Roll: {name}"), "Roll")
            .typed("T", x.dtype())
            .typed("Tshift", DType::I32)
            .typed("Taxis", DType::I64)
            .input(x)
            .input(tensor(&[shifts.len()], shifts))
            .input(tensor(&[axes.len()], axes))
    };
    let spaced = |name: &str, ends: [f32; 2], n: i32| {
        case(&format!("LinSpace: {name}"), "LinSpace")
            .typed("T", DType::F32)
            .typed("Tidx", DType::I32)
            .named_input("start", tensor(&[], &[ends[0]]))
            .named_input("stop", tensor(&[], &[ends[1]]))
            .named_input("num", tensor(&[], &[n]))
    };
    let mut cases = Vec::new();
    for dtype in MOVED {
        let name = format!("{dtype}");
        let x = || typed_tensor(dtype, &[2, 3], &[1, 0, 3, 5, 4, 7]);
        cases.push(reverse(&name, x(), &[false, true]).gives(typed_tensor(
            dtype,
            &[2, 3],
            &[3, 0, 1, 7, 4, 5],
        )));
        cases.push(sequence(&name, x(), &[2, 3], [1, 0]).gives(typed_tensor(
            dtype,
            &[2, 3],
            &[0, 1, 3, 7, 4, 5],
        )));
        cases.push(roll(&name, x(), &[1], &[1]).gives(typed_tensor(
            dtype,
            &[2, 3],
            &[3, 1, 0, 7, 5, 4],
        )));
    }
    let cube = tensor(&[1, 2, 1, 3, 1, 1], &[1, 2, 3, 4, 5, 6]);
    let none = tensor::<i32>(&[0, 2], &[]);
    cases.extend([
        reverse(
            "rank 6",
            cube.clone(),
            &[true, true, false, false, true, true],
        )
        .gives(tensor(&[1, 2, 1, 3, 1, 1], &[4, 5, 6, 1, 2, 3])),
        reverse("a scalar", tensor(&[], &[1]), &[]).gives(tensor(&[], &[1])),
        reverse("nothing", none.clone(), &[true, true]).gives(none.clone()),
        reverse("too few axes", cube.clone(), &[true]).refused("'dims' must have as many values"),
        sequence(
            "batches in columns",
            tensor(&[3, 2], &[1, 2, 3, 4, 5, 6]),
            &[3, 0],
            [0, 1],
        )
        .gives(tensor(&[3, 2], &[5, 2, 3, 4, 1, 6])),
        sequence("nothing", none.clone(), &[], [1, 0]).gives(none.clone()),
        sequence("a length too large", tensor(&[1, 2], &[1, 2]), &[3], [1, 0])
            .refused("seq_lens must be from 0 to 2"),
        sequence("too few lengths", tensor(&[2, 1], &[1, 2]), &[1], [1, 0])
            .refused("length of seq_lens should be 2"),
        sequence("one axis", tensor(&[2, 1], &[1, 2]), &[1, 1], [0, 0])
            .refused("batch_dim == seq_dim == 0"),
        sequence("an axis too far", tensor(&[2, 1], &[1, 2]), &[1, 1], [2, 0])
            .refused("seq_dim must be in the range [0, 2)"),
        roll(
            "back and twice",
            tensor(&[3], &[1, 2, 3]),
            &[-2, 5],
            &[0, -1],
        )
        .gives(tensor(&[3], &[1, 2, 3])),
        roll("two axes", tensor(&[2, 2], &[1, 2, 3, 4]), &[1, 1], &[0, 1])
            .gives(tensor(&[2, 2], &[4, 3, 2, 1])),
        roll("nothing", none.clone(), &[1], &[0]).gives(none),
        roll("an axis too far", tensor(&[1], &[1]), &[1], &[1]).refused("axis 1 is out of range"),
        roll("axes of another number", tensor(&[1], &[1]), &[1], &[0, 0])
            .refused("vectors of the same size"),
        spaced("five", [0.0, 1.0], 5).gives(tensor(&[5], &[0.0f32, 0.25, 0.5, 0.75, 1.0])),
        spaced("one", [2.0, 9.0], 1).gives(tensor(&[1], &[2.0f32])),
        spaced("descending", [1.0, -1.0], 3).gives(tensor(&[3], &[1.0f32, 0.0, -1.0])),
        spaced("none", [0.0, 1.0], 0).refused("requires num > 0: 0"),
        case("LinSpace: double", "LinSpace")
            .typed("T", DType::F64)
            .typed("Tidx", DType::I64)
            .named_input("start", tensor(&[], &[0.0f64]))
            .named_input("stop", tensor(&[], &[3.0f64]))
            .named_input("num", tensor(&[], &[4i64]))
            .gives(tensor(&[4], &[0.0f64, 1.0, 2.0, 3.0])),
    ]);
    cases
}

fn bytes() -> Vec<Case> {
    let cast = |name: &str, x: Tensor, to: DType| {
        case(&format!("Bitcast: {name}"), "Bitcast")
            .typed("T", x.dtype())
            .typed("type", to)
            .input(x)
    };
    let decode = |name: &str, strings: &[&[u8]], to: DType| {
        let strings: Vec<_> = strings.iter().map(|&bytes| bytes.into()).collect();
        let x = Tensor::from_strings([strings.len()].into(), strings).expect("as many strings");
        case(&format!("DecodeRaw: {name}"), "DecodeRaw")
            .typed("out_type", to)
            .input(x)
    };
    let mut cases = Vec::new();
    for dtype in MOVED.into_iter().filter(|&dtype| dtype != DType::String) {
        let x = typed_tensor(dtype, &[2], &[1, 0]);
        let size = dtype.size_bytes().expect("a fixed size");
        let raw = x.as_bytes().expect("on the host").to_vec();
        if dtype != DType::Bool {
            let split = if size == 1 { vec![2] } else { vec![2, size] };
            cases.push(cast(&format!("{dtype}"), x.clone(), DType::U8).gives(tensor(&split, &raw)));
            cases.push(cast(&format!("to {dtype}"), tensor(&split, &raw), dtype).gives(x.clone()));
        }
        if !matches!(dtype, DType::U32 | DType::U64) {
            let rows = x.reshaped([1, 2].into()).expect("as many elements");
            cases.push(decode(&format!("{dtype}"), &[&raw], dtype).gives(rows));
        }
    }
    cases.extend([
        cast("to a type as wide", tensor(&[1], &[1.0f32]), DType::I32)
            .gives(tensor(&[1], &[0x3f80_0000])),
        cast("a scalar", tensor(&[], &[1i64 << 32]), DType::I32).gives(tensor(&[2], &[0, 1])),
        cast("nothing", tensor::<i32>(&[0], &[]), DType::U16).gives(tensor::<u16>(&[0, 2], &[])),
        cast(
            "three bytes to four",
            tensor(&[3], &[1u8, 2, 3]),
            DType::I32,
        )
        .refused("cannot bitcast from uint8 to int32"),
        decode("big-endian", &[b"\0\x01\0\x02"], DType::I16)
            .bool("little_endian", false)
            .gives(tensor(&[1, 2], &[1i16, 2])),
        decode("no strings", &[], DType::I32).gives(tensor::<i32>(&[0, 0], &[])),
        decode("empty strings", &[b"", b""], DType::I32).gives(tensor::<i32>(&[2, 0], &[])),
        decode("strings of other lengths", &[b"a", b"bc"], DType::U8)
            .refused("to all be the same size, but found 1 and 2"),
        decode("a part of a number", &[b"abc"], DType::I16)
            .refused("length 3 that is not a multiple of 2"),
    ]);
    cases
}

fn quantization() -> Vec<Case> {
    let args = |name: &str, x: &[f32], [min, max]: [f32; 2], n_bits: i64| {
        case(
            &format!("FakeQuantWithMinMaxArgs: {name}"),
            "FakeQuantWithMinMaxArgs",
        )
        .float("min", min)
        .float("max", max)
        .int("num_bits", n_bits)
        .input(tensor(&[x.len()], x))
    };
    let vars = |name: &str, op: &'static str, x: Tensor, min: Tensor, max: Tensor| {
        case(&format!("{op}: {name}"), op)
            .int("num_bits", 2)
            .input(x)
            .input(min)
            .input(max)
    };
    let number = |x: f32| tensor(&[], &[x]);
    let x = [-0.6f32, 0.0, 0.4, 0.6, 1.0, 2.4, 2.6, 9.0];
    let rounded = [0.0f32, 0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 3.0];
    let (single, channels) = (
        "FakeQuantWithMinMaxVars",
        "FakeQuantWithMinMaxVarsPerChannel",
    );
    vec![
        args("two bits", &x, [0.0, 3.0], 2).gives(tensor(&[8], &rounded)),
        args("narrow", &[-1.6, -1.4, 0.6, 9.0], [-1.0, 1.0], 2)
            .bool("narrow_range", true)
            .gives(tensor(&[4], &[-1.0f32, -1.0, 1.0, 1.0])),
        // 0 is moved to a whole number: the range is -1 to 2.
        args("moved", &[-9.0, -0.6, 0.2, 9.0], [-1.2, 1.8], 2)
            .gives_within(tensor(&[4], &[-1.0f32, -1.0, 0.0, 2.0]), 1e-6),
        args("nothing", &[], [0.0, 3.0], 2).gives(tensor::<f32>(&[0], &[])),
        args("an empty range", &[1.0], [1.0, 1.0], 2).refused("min has to be smaller than max"),
        args("one bit", &[1.0], [0.0, 1.0], 1).refused("num_bits must be between 2 and 16"),
        vars(
            "two bits",
            single,
            tensor(&[8], &x),
            number(0.0),
            number(3.0),
        )
        .gives(tensor(&[8], &rounded)),
        vars(
            "only 0",
            single,
            tensor(&[2], &[1.0f32, -1.0]),
            number(0.0),
            number(0.0),
        )
        .gives(tensor(&[2], &[0.0f32, 0.0])),
        vars(
            "a range of rank 1",
            single,
            tensor(&[1], &[1.0f32]),
            tensor(&[1], &[0.0f32]),
            number(1.0),
        )
        .refused("min must be 0-D"),
        vars(
            "two channels",
            channels,
            tensor(&[2, 2], &[0.6f32, 0.6, 5.0, 5.0]),
            tensor(&[2], &[0.0f32, 0.0]),
            tensor(&[2], &[3.0f32, 6.0]),
        )
        .gives(tensor(&[2, 2], &[1.0f32, 0.0, 3.0, 6.0])),
        vars(
            "no channels",
            channels,
            tensor::<f32>(&[2, 0], &[]),
            tensor::<f32>(&[0], &[]),
            tensor::<f32>(&[0], &[]),
        )
        .gives(tensor::<f32>(&[2, 0], &[])),
        vars(
            "too few ranges",
            channels,
            tensor(&[2], &[0.0f32; 2]),
            tensor(&[1], &[0.0f32]),
            tensor(&[2], &[1.0f32; 2]),
        )
        .refused("min has incorrect size, expected [2] was [1]"),
    ]
}

/// An LSTM cell by its definition, in double precision: all outputs in their order.
fn lstm(batch: usize, n_in: usize, n: usize, peephole: bool, clip: f32) -> Case {
    let shapes: [(usize, usize); 8] = [
        (batch, n_in),
        (batch, n),
        (batch, n),
        (n_in + n, 4 * n),
        (1, n),
        (1, n),
        (1, n),
        (1, 4 * n),
    ];
    let values: Vec<Vec<f32>> = (20..)
        .zip(shapes)
        .map(|(seed, (rows, columns))| noise(rows * columns, seed))
        .collect();
    let at = |input: usize, place: usize| f64::from(values[input][place]);
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let weight = |input: usize, column: usize| if peephole { at(input, column) } else { 0.0 };
    let mut outputs = vec![Vec::new(); 7];
    for row in 0..batch {
        for column in 0..n {
            let gate = |gate: usize| {
                let place = gate * n + column;
                let of_x: f64 = (0..n_in)
                    .map(|k| at(0, row * n_in + k) * at(3, k * 4 * n + place))
                    .sum();
                let of_h: f64 = (0..n)
                    .map(|k| at(2, row * n + k) * at(3, (n_in + k) * 4 * n + place))
                    .sum();
                of_x + of_h + at(7, place)
            };
            let before = at(1, row * n + column);
            let i = sigmoid(gate(0) + before * weight(4, column));
            let ci = gate(1).tanh();
            let f = sigmoid(gate(2) + 0.5 + before * weight(5, column));
            let mut cs = ci * i + before * f;
            if clip > 0.0 {
                cs = cs.clamp(-f64::from(clip), clip.into());
            }
            let o = sigmoid(gate(3) + cs * weight(6, column));
            let co = cs.tanh();
            #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
            for (output, value) in outputs.iter_mut().zip([i, cs, f, o, ci, co, o * co]) {
                output.push(value as f32);
            }
        }
    }
    let start = case(
        &format!("LSTMBlockCell: {batch} of {n_in} to {n}, {peephole}, {clip}"),
        "LSTMBlockCell",
    )
    .typed("T", DType::F32)
    .float("forget_bias", 0.5)
    .float("cell_clip", clip)
    .bool("use_peephole", peephole);
    let inputs = values
        .iter()
        .zip(shapes)
        .enumerate()
        .map(|(index, (values, (rows, columns)))| {
            let dims = if index < 4 {
                vec![rows, columns]
            } else {
                vec![columns]
            };
            tensor(&dims, values)
        });
    let case = inputs.fold(start, Case::input);
    let expected = outputs
        .iter()
        .map(|values| tensor(&[batch, n], values))
        .collect();
    // Sums of some terms below 1, each rounded.
    case.gives_all_within(expected, 1e-6)
}

fn cells() -> Vec<Case> {
    let halves = |dims: &[usize]| tensor(dims, &vec![f16::ZERO; dims.iter().product()]);
    let half =
        |dims: &[usize], x: f32| tensor(dims, &vec![f16::from_f32(x); dims.iter().product()]);
    let zeros = |dims: &[usize]| tensor(dims, &vec![0.0f32; dims.iter().product()]);
    let decode = |name: &str, x: Tensor, lengths: &[i32]| {
        case(&format!("CTCGreedyDecoder: {name}"), "CTCGreedyDecoder")
            .typed("T", x.dtype())
            .input(x)
            .input(tensor(&[lengths.len()], lengths))
    };
    // Classes 0, 0, 2 (blank), 0 of the first sequence, 1, 1 of the second.
    let steps = [
        9.0f32, 1.0, 2.0, 0.0, 8.0, 1.0, 7.0, 0.0, 0.0, 0.0, 6.0, 0.0, 0.0, 1.0, 5.0, 0.0, 0.0,
        0.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0,
    ];
    let steps = tensor(&[4, 2, 3], &steps);
    let found = |indices: &[[i64; 2]], values: &[i64], longest: i64, scores: [f32; 2]| {
        vec![
            tensor(&[indices.len(), 2], indices.as_flattened()),
            tensor(&[values.len()], values),
            tensor(&[2], &[2i64, longest]),
            tensor(&[2, 1], &scores),
        ]
    };
    let steps_of = |n: i64| {
        let start = case(&format!("BlockLSTM: {n} of two steps"), "BlockLSTM")
            .typed("T", DType::F32)
            .float("forget_bias", 0.0)
            .input(tensor(&[], &[n]));
        let shapes: [&[usize]; 8] = [
            &[2, 1, 1],
            &[1, 1],
            &[1, 1],
            &[2, 4],
            &[1],
            &[1],
            &[1],
            &[4],
        ];
        let all = shapes
            .into_iter()
            .fold(start, |case, dims| case.input(zeros(dims)));
        all.with_outputs(7)
    };
    let lstm_of = |x: Tensor, w: Tensor| {
        let start = case(&format!("LSTMBlockCell: {:?}", x.shape()), "LSTMBlockCell")
            .typed("T", DType::F32);
        let inputs = [
            x,
            zeros(&[1, 1]),
            zeros(&[1, 1]),
            w,
            zeros(&[1]),
            zeros(&[1]),
            zeros(&[1]),
            zeros(&[4]),
        ];
        inputs.into_iter().fold(start, Case::input).with_outputs(7)
    };
    let half_cell = [
        halves(&[1, 1]),
        halves(&[1, 1]),
        halves(&[1, 1]),
        halves(&[2, 4]),
        halves(&[1]),
        halves(&[1]),
        halves(&[1]),
        halves(&[4]),
    ];
    vec![
        lstm(1, 1, 1, false, 3.0),
        lstm(3, 4, 5, false, -1.0),
        lstm(2, 3, 4, true, 0.1),
        half_cell
            .into_iter()
            .fold(
                case("LSTMBlockCell: half", "LSTMBlockCell")
                    .typed("T", DType::F16)
                    .float("forget_bias", 0.0),
                Case::input,
            )
            .gives_all(vec![
                half(&[1, 1], 0.5),
                half(&[1, 1], 0.0),
                half(&[1, 1], 0.5),
                half(&[1, 1], 0.5),
                half(&[1, 1], 0.0),
                half(&[1, 1], 0.0),
                half(&[1, 1], 0.0),
            ]),
        steps_of(3).refused("seq_len_max must be from 0 to 2"),
        steps_of(1).gives_all(
            [0.5, 0.0, 0.5, 0.5, 0.0, 0.0, 0.0]
                .map(|first| tensor(&[2, 1, 1], &[first, 0.0f32]))
                .to_vec(),
        ),
        case("IteratorGetNext", "IteratorGetNext").refused("feed the outputs of IteratorGetNext"),
        lstm_of(zeros(&[1, 2]), zeros(&[2, 4])).refused("w must have shape [3,4], not [2,4]"),
        lstm_of(zeros(&[1]), zeros(&[2, 4])).refused("x must be a matrix, not"),
        decode("all", steps.clone(), &[4, 2]).gives_all(found(
            &[[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]],
            &[0, 0, 0, 1, 1],
            3,
            [-25.0, -14.0],
        )),
        decode("merged", steps.clone(), &[4, 2])
            .bool("merge_repeated", true)
            .gives_all(found(
                &[[0, 0], [0, 1], [1, 0]],
                &[0, 0, 1],
                2,
                [-25.0, -14.0],
            )),
        decode("another blank", steps.clone(), &[3, 0])
            .int("blank_index", 0)
            .gives_all(found(&[[0, 0]], &[2], 1, [-21.0, 0.0])),
        decode("double", tensor(&[1, 2, 1], &[1.0f64, 2.0]), &[1, 1]).gives_all(vec![
            tensor::<i64>(&[0, 2], &[]),
            tensor::<i64>(&[0], &[]),
            tensor(&[2], &[2i64, 0]),
            tensor(&[2, 1], &[-1.0f64, -2.0]),
        ]),
        decode("a length too large", steps.clone(), &[5, 0])
            .with_outputs(4)
            .refused("sequence_length[0] must be from 0"),
        decode("too few lengths", steps.clone(), &[1])
            .with_outputs(4)
            .refused("sequence_length must have shape [2]"),
        decode("no such blank", steps, &[1, 1])
            .int("blank_index", 3)
            .with_outputs(4)
            .refused("blank_index expected to be less than 3"),
        decode("a matrix", zeros(&[1, 1]), &[1])
            .with_outputs(4)
            .refused("inputs is not a 3-Tensor"),
    ]
}

fn loss<T: Element>(number: impl Fn(f32) -> T, tolerance: f64) -> Vec<Case> {
    let list = |dims: &[usize], values: &[f32]| {
        tensor(dims, &values.iter().map(|&x| number(x)).collect::<Vec<T>>())
    };
    // Both classes are equally likely in the first row; in the second, one three times as likely.
    let three = 3.0f32.ln();
    let x = list(&[2, 2], &[0.0, 0.0, three, 0.0]);
    let (two, four_thirds) = (2.0f32.ln(), (4.0f32 / 3.0).ln());
    let gradient = list(&[2, 2], &[-0.5, 0.5, -0.25, 0.25]);
    let name = format!("{}", T::DTYPE);
    vec![
        case(
            &format!("SoftmaxCrossEntropyWithLogits: {name}"),
            "SoftmaxCrossEntropyWithLogits",
        )
        .typed("T", T::DTYPE)
        .input(x.clone())
        .input(list(&[1, 2], &[1.0, 0.0]))
        .gives_all_within(
            vec![list(&[2], &[two, four_thirds]), gradient.clone()],
            tolerance,
        ),
        case(
            &format!("SparseSoftmaxCrossEntropyWithLogits: {name}"),
            "SparseSoftmaxCrossEntropyWithLogits",
        )
        .typed("T", T::DTYPE)
        .typed("Tlabels", DType::I32)
        .input(x)
        .input(tensor(&[2], &[0, 0]))
        .gives_all_within(vec![list(&[2], &[two, four_thirds]), gradient], tolerance),
    ]
}

fn losses() -> Vec<Case> {
    let mut cases = loss(|x| x, 1e-6);
    cases.extend(loss(f64::from, 1e-6));
    cases.extend(loss(f16::from_f32, 2e-3));
    cases.extend(loss(bf16::from_f32, 2e-2));
    let zeros = |dims: &[usize]| tensor(dims, &vec![0.0f32; dims.iter().product()]);
    let dense = |name: &str, x: Tensor, labels: Tensor| {
        case(
            &format!("SoftmaxCrossEntropyWithLogits: {name}"),
            "SoftmaxCrossEntropyWithLogits",
        )
        .typed("T", DType::F32)
        .input(x)
        .input(labels)
        .with_outputs(2)
    };
    let sparse = |name: &str, x: Tensor, labels: &[i64]| {
        case(
            &format!("SparseSoftmaxCrossEntropyWithLogits: {name}"),
            "SparseSoftmaxCrossEntropyWithLogits",
        )
        .typed("T", DType::F32)
        .typed("Tlabels", DType::I64)
        .input(x)
        .input(tensor(&[labels.len()], labels))
        .with_outputs(2)
    };
    cases.extend([
        dense("no rows", zeros(&[0, 2]), zeros(&[0, 2]))
            .gives_all(vec![zeros(&[0]), zeros(&[0, 2])]),
        dense("vectors", zeros(&[2]), zeros(&[2])).refused("must be either 2-dimensional"),
        dense("other classes", zeros(&[1, 2]), zeros(&[1, 3])).refused("[1,2]"),
        sparse("no rows", zeros(&[0, 2]), &[]).gives_all(vec![zeros(&[0]), zeros(&[0, 2])]),
        sparse("no such class", zeros(&[1, 2]), &[2]).refused("outside the valid range of [0, 2)"),
        sparse("too few labels", zeros(&[2, 2]), &[0])
            .refused("must have the same first dimension"),
        sparse("no classes", zeros(&[1, 0]), &[0]).refused("must have at least one class"),
        sparse("a vector", zeros(&[2]), &[0, 0]).refused("logits must be 2-D and labels 1-D"),
    ]);
    cases
}

/// The results are TensorFlow's.
fn steps() -> Vec<Case> {
    let x = || tensor(&[2, 3], &[-1.5f32, -0.3, 0.0, 0.26, 0.5, 0.9]);
    let number = |x: f32| tensor(&[], &[x]);
    let steps = |name: &str, x: Tensor, min: Tensor, max: Tensor, n_bits: i64| {
        let op = "QuantizeAndDequantizeV4";
        case(&format!("{op}: {name}"), op)
            .typed("T", x.dtype())
            .int("num_bits", n_bits)
            .input(x)
            .input(min)
            .input(max)
    };
    let given = |name: &str, [min, max]: [f32; 2], n_bits: i64| {
        steps(name, x(), number(min), number(max), n_bits).bool("range_given", true)
    };
    let zero = || number(0.0);
    let row = |values: &[f64]| tensor(&[values.len()], values);
    let halves = |name: &str| {
        let ends = [-4.0, 3.0].map(|end| tensor(&[], &[end]));
        let [min, max] = ends;
        steps(name, row(&[0.5, 1.5, -2.5, 3.0]), min, max, 3).bool("range_given", true)
    };
    let third = 1.0 / 3.0;
    vec![
        steps("its own range", x(), zero(), zero(), 4).gives_within(
            tensor(&[2, 3], &[-1.5f32, -0.375, 0.0, 0.1875, 0.5625, 0.9375]),
            1e-6,
        ),
        steps("a range per row", x(), zero(), zero(), 3)
            .int("axis", 0)
            .gives_within(
                tensor(&[2, 3], &[-1.5f32, -0.375, 0.0, 0.3, 0.6, 0.9]),
                1e-6,
            ),
        given("a given range", [-1.0, 0.5], 4).gives_within(
            tensor(&[2, 3], &[-1.0f32, -0.25, 0.0, 0.25, 0.5, 0.875]),
            1e-6,
        ),
        given("narrow", [-1.0, 0.5], 3)
            .bool("narrow_range", true)
            .gives_within(
                tensor(&[2, 3], &[-1.0f32, -third, 0.0, third, 2.0 * third, 1.0]),
                1e-6,
            ),
        given("unsigned", [0.0, 1.0], 4)
            .bool("signed_input", false)
            .gives_within(
                tensor(
                    &[2, 3],
                    &[0.0f32, 0.0, 0.0, 4.0 / 15.0, 8.0 / 15.0, 14.0 / 15.0],
                ),
                1e-6,
            ),
        halves("to even").gives(row(&[0.0, 2.0, -2.0, 3.0])),
        halves("up")
            .text("round_mode", "HALF_UP")
            .gives(row(&[1.0, 2.0, -2.0, 3.0])),
        steps("nothing", tensor::<f32>(&[0, 2], &[]), zero(), zero(), 8)
            .gives(tensor::<f32>(&[0, 2], &[])),
        given("backwards", [1.0, 0.0], 8).refused("Invalid range: input_min 1 > input_max 0"),
        given("too many bits", [0.0, 1.0], 62).refused("num_bits is out of range: 62"),
        given("no such axis", [0.0, 1.0], 8)
            .int("axis", 2)
            .refused("Shape must be at least rank 3 but is rank 2"),
        given("one range for three", [0.0, 1.0], 8)
            .int("axis", 1)
            .refused("input_min has incorrect size"),
        case(
            "QuantizeAndDequantizeV3: bits of a tensor",
            "QuantizeAndDequantizeV3",
        )
        .typed("T", DType::F32)
        .input(x())
        .input(number(-1.0))
        .input(number(0.5))
        .input(tensor(&[], &[4]))
        .gives_within(
            tensor(&[2, 3], &[-1.0f32, -0.25, 0.0, 0.25, 0.5, 0.875]),
            1e-6,
        ),
    ]
}
