//! Shapes of tensors, tensors of one value or a range, stacking along a new axis, and selection.

use half::bf16;
use half::f16;
use placewright::tensor::Boolean;
use placewright::tensor::Complex64;
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
    [
        measures(),
        fills(),
        broadcasts(),
        ranges(),
        packs(),
        selections(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn measures() -> Vec<Case> {
    let measure = |op: &'static str, name: &str, dtype: DType, input: Tensor| {
        case(&format!("{op}: {name}"), op)
            .typed("T", input.dtype())
            .typed("out_type", dtype)
            .input(input)
    };
    let six = || tensor(&[2, 3], &[0.0f32; 6]);
    vec![
        measure("Shape", "of a matrix", DType::I32, six()).gives(tensor(&[2], &[2, 3])),
        measure("Shape", "long", DType::I64, six()).gives(tensor(&[2], &[2i64, 3])),
        measure("Shape", "of a scalar", DType::I32, tensor(&[], &[1u8]))
            .gives(tensor::<i32>(&[0], &[])),
        measure(
            "Shape",
            "of strings",
            DType::I32,
            typed_tensor(DType::String, &[2, 0], &[]),
        )
        .gives(tensor(&[2], &[2, 0])),
        measure(
            "Shape",
            "beyond 32 bits",
            DType::I32,
            tensor(&[0, 1 << 31], &[] as &[u8]),
        )
        .refused("output type is int32, but size 1 of [0, 2147483648] is 2147483648"),
        measure("Size", "of a matrix", DType::I32, six()).gives(tensor(&[], &[6])),
        measure("Size", "of a scalar, long", DType::I64, tensor(&[], &[1u8]))
            .gives(tensor(&[], &[1i64])),
        measure(
            "Size",
            "of nothing",
            DType::I32,
            tensor(&[3, 0], &[] as &[f32]),
        )
        .gives(tensor(&[], &[0])),
        case("ShapeN: of several", "ShapeN")
            .typed("T", DType::F32)
            .typed("out_type", DType::I32)
            .int("N", 2)
            .input(six())
            .input(tensor(&[], &[1.0f32]))
            .gives_all(vec![tensor(&[2], &[2, 3]), tensor::<i32>(&[0], &[])]),
        case("Rank: of a matrix", "Rank")
            .typed("T", DType::F32)
            .input(six())
            .gives(tensor(&[], &[2])),
        case("Rank: of a scalar", "Rank")
            .typed("T", DType::Bool)
            .input(typed_tensor(DType::Bool, &[], &[1]))
            .gives(tensor(&[], &[0])),
    ]
}

fn fill(name: &str, dims: Tensor, value: Tensor) -> Case {
    case(&format!("Fill: {name}"), "Fill")
        .typed("T", value.dtype())
        .typed("index_type", dims.dtype())
        .named_input("dims", dims)
        .input(value)
}

fn fills() -> Vec<Case> {
    let mut cases = vec![
        fill("long sizes", tensor(&[2], &[2i64, 2]), tensor(&[], &[7]))
            .gives(tensor(&[2, 2], &[7; 4])),
        fill("a scalar", tensor::<i32>(&[0], &[]), tensor(&[], &[7])).gives(tensor(&[], &[7])),
        fill("nothing", tensor(&[2], &[3, 0]), tensor(&[], &[7]))
            .gives(tensor::<i32>(&[3, 0], &[])),
        fill("old forms of both", tensor(&[], &[2]), tensor(&[1], &[7]))
            .gives(tensor(&[2], &[7; 2])),
        fill(
            "sizes of rank two",
            tensor(&[1, 1], &[2]),
            tensor(&[], &[7]),
        )
        .refused("dims must represent a vector, got shape [1,1]"),
        fill("several values", tensor(&[1], &[2]), tensor(&[2], &[7, 8]))
            .refused("value must represent a scalar, got shape [2]"),
        fill("no value", tensor(&[1], &[2]), tensor::<i32>(&[0], &[]))
            .refused("value must represent a scalar, got shape [0]"),
        fill("a negative size", tensor(&[2], &[2, -1]), tensor(&[], &[7]))
            .refused("dimension -1 must be >= 0, in dims [2, -1]"),
        fill(
            "more than any machine holds",
            tensor(&[2], &[i64::MAX; 2]),
            tensor(&[], &[7]),
        )
        .refused("larger than this machine can address"),
        fill(
            "too many dimensions",
            tensor(&[255], &[1i32; 255]),
            tensor(&[], &[7]),
        )
        .refused("dims has 255 dimensions, more than 254"),
    ];
    for dtype in MOVED {
        let like = |op: &'static str| {
            case(&format!("{op}: {dtype}"), op)
                .typed("T", dtype)
                .input(typed_tensor(dtype, &[2], &[1, 0]))
        };
        cases.extend([
            fill(
                dtype.name(),
                tensor(&[2], &[1, 2]),
                typed_tensor(dtype, &[], &[1]),
            )
            .gives(typed_tensor(dtype, &[1, 2], &[1, 1])),
            like("ZerosLike").gives(typed_tensor(dtype, &[2], &[0, 0])),
        ]);
        if !matches!(dtype, DType::String | DType::Complex64 | DType::Complex128) {
            cases.push(like("OnesLike").gives(typed_tensor(dtype, &[2], &[1, 1])));
        }
    }
    let ones = |input: Tensor| {
        case("OnesLike: of complex numbers", "OnesLike")
            .typed("T", input.dtype())
            .input(input)
    };
    cases.push(
        ones(tensor(&[1], &[Complex64 { re: 5.0, im: 5.0 }]))
            .gives(tensor(&[1], &[Complex64 { re: 1.0, im: 0.0 }])),
    );
    cases
}

fn broadcast_to(name: &str, input: Tensor, sizes: &[i32]) -> Case {
    case(&format!("BroadcastTo: {name}"), "BroadcastTo")
        .typed("T", input.dtype())
        .typed("Tidx", DType::I32)
        .input(input)
        .named_input("shape", tensor(&[sizes.len()], sizes))
}

fn broadcasts() -> Vec<Case> {
    let args = |name: &str, lhs: &[i64], rhs: &[i64]| {
        case(&format!("BroadcastArgs: {name}"), "BroadcastArgs")
            .typed("T", DType::I64)
            .named_input("s0", tensor(&[lhs.len()], lhs))
            .named_input("s1", tensor(&[rhs.len()], rhs))
    };
    let mut cases = vec![
        broadcast_to("a row", tensor(&[2], &[1, 2]), &[2, 2]).gives(tensor(&[2, 2], &[1, 2, 1, 2])),
        broadcast_to("a column", tensor(&[2, 1], &[1, 2]), &[2, 2])
            .gives(tensor(&[2, 2], &[1, 1, 2, 2])),
        broadcast_to("a scalar", tensor(&[], &[3]), &[3]).gives(tensor(&[3], &[3; 3])),
        broadcast_to("the same shape", tensor(&[2], &[1, 2]), &[2]).gives(tensor(&[2], &[1, 2])),
        broadcast_to("to nothing", tensor(&[1], &[1]), &[2, 0]).gives(tensor::<i32>(&[2, 0], &[])),
        broadcast_to("another size", tensor(&[2], &[1, 2]), &[3])
            .refused("unable to broadcast tensor of shape [2] to tensor of shape [3]"),
        broadcast_to("fewer dimensions", tensor(&[1, 1], &[1]), &[1])
            .refused("rank of input (2) must be no greater than rank of output shape (1)"),
        broadcast_to("a negative size", tensor(&[1], &[1]), &[-1])
            .refused("dimension -1 must be >= 0"),
        args("both grow", &[2, 1], &[5]).gives(tensor(&[2], &[2i64, 5])),
        args("of scalars", &[], &[]).gives(tensor::<i64>(&[0], &[])),
        args("shapes that do not meet", &[2], &[3]).refused("incompatible shapes: [2] vs. [3]"),
        args("a negative size", &[-2], &[3]).refused("dimension -2 must be >= 0"),
    ];
    cases.extend(MOVED.map(|dtype| {
        broadcast_to(dtype.name(), typed_tensor(dtype, &[2, 1], &[1, 0]), &[2, 2])
            .gives(typed_tensor(dtype, &[2, 2], &[1, 1, 0, 0]))
    }));
    cases
}

fn range<T: Element>(name: &str, start: T, limit: T, delta: T) -> Case {
    case(&format!("Range: {name}"), "Range")
        .typed("Tidx", T::DTYPE)
        .named_input("start", tensor(&[], &[start]))
        .named_input("limit", tensor(&[], &[limit]))
        .named_input("delta", tensor(&[], &[delta]))
}

fn whole_numbers(n: u16) -> impl Iterator<Item = f32> {
    (0..n).map(f32::from)
}

/// Expects `start + i * delta`, rounded once per operation.
fn multiples<T>(name: &str, start: T, limit: T, delta: T) -> Case
where
    T: Element + From<u16> + std::ops::Add<Output = T> + std::ops::Mul<Output = T> + PartialOrd,
{
    let all = (0u16..).map(|i| start + T::from(i) * delta);
    let expected: Vec<T> = all.take_while(|value| *value < limit).collect();
    range(&format!("multiples in {name}"), start, limit, delta)
        .gives_bits(tensor(&[expected.len()], &expected))
}

fn ranges() -> Vec<Case> {
    macro_rules! types {
        ($($rust:ty, $of:expr);*) => { vec![$(
            range(stringify!($rust), $of(1u8), $of(6u8), $of(2u8)).gives(tensor(&[3], &[1u8, 3, 5].map($of))),
        )*] };
    }
    let mut cases = types! {
        f32, f32::from; f64, f64::from; f16, f16::from; bf16, |x| bf16::from_f32(f32::from(x));
        i8, |x: u8| i8::try_from(x).expect("small"); i16, i16::from; i32, i32::from; i64, i64::from;
        u16, u16::from; u32, u32::from
    };
    cases.extend([
        range("downwards", 3, -3, -2).gives(tensor(&[3], &[3, 1, -1])),
        range("nothing", 3, 3, 1).gives(tensor::<i32>(&[0], &[])),
        range("the whole of a type", i8::MIN, i8::MAX, 100)
            .gives(tensor(&[3], &[i8::MIN, -28, 72])),
        range("floats", 0.0f32, 1.0, 0.25).gives(tensor(&[4], &[0.0f32, 0.25, 0.5, 0.75])),
        // As in tensorflow-cpu 2.21: the start and a multiple, each rounded.
        multiples("float", 0.1f32, 100.0, 0.1),
        multiples("double", -3.0, 40.0, 0.1f64),
        range("half", f16::ZERO, f16::from_f32(3000.0), f16::ONE).gives(tensor(
            &[3000],
            &whole_numbers(3000).map(f16::from_f32).collect::<Vec<_>>(),
        )),
        range("bfloat16", bf16::ZERO, bf16::from_f32(1000.0), bf16::ONE).gives(tensor(
            &[1000],
            &whole_numbers(1000).map(bf16::from_f32).collect::<Vec<_>>(),
        )),
        range("by nothing", 0, 3, 0).refused("requires delta != 0"),
        range("the wrong way", 3, 0, 1).refused("requires start <= limit when delta > 0: 3/0"),
        range("the wrong way", 0.0f32, 3.0, -1.0)
            .refused("requires start >= limit when delta < 0: 0.0/3.0"),
        range("without end", 0.0f32, f32::INFINITY, 1.0)
            .refused("requires ((limit - start) / delta) <= 9223372036854775807"),
        range("not a number", 0.0f32, 1.0, f32::NAN).refused("requires start >= limit"),
        range("more than any machine holds", i64::MIN, i64::MAX, 1)
            .refused("larger than this machine can address"),
        range("unsigned", 0u64, 1, 1).refused("no kernel"),
        case("Range: a matrix", "Range")
            .typed("Tidx", DType::I32)
            .named_input("start", tensor(&[1, 1], &[0]))
            .named_input("limit", tensor(&[], &[1]))
            .named_input("delta", tensor(&[], &[1]))
            .refused("start must be a scalar, not shape [1,1]"),
    ]);
    cases
}

fn pack(name: &str, axis: i64, inputs: &[Tensor]) -> Case {
    let start = case(&format!("Pack: {name}"), "Pack")
        .typed("T", inputs[0].dtype())
        .int("N", i64::try_from(inputs.len()).expect("few"))
        .int("axis", axis);
    inputs
        .iter()
        .fold(start, |case, input| case.input(input.clone()))
}

fn unpack(name: &str, axis: i64, n: i64, input: Tensor) -> Case {
    case(&format!("Unpack: {name}"), "Unpack")
        .typed("T", input.dtype())
        .int("num", n)
        .int("axis", axis)
        .input(input)
}

fn packs() -> Vec<Case> {
    let (a, b) = (
        tensor(&[2, 2], &[1, 2, 3, 4]),
        tensor(&[2, 2], &[5, 6, 7, 8]),
    );
    let both = [a.clone(), b.clone()];
    let whole = |dims: &[usize]| tensor(dims, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let mut cases = vec![
        pack("the first axis", 0, &both).gives(whole(&[2, 2, 2])),
        pack("the middle axis", 1, &both).gives(tensor(&[2, 2, 2], &[1, 2, 5, 6, 3, 4, 7, 8])),
        pack("the last axis", -1, &both).gives(tensor(&[2, 2, 2], &[1, 5, 2, 6, 3, 7, 4, 8])),
        pack("one", 1, &both[..1]).gives(tensor(&[2, 1, 2], &[1, 2, 3, 4])),
        pack(
            "scalars",
            0,
            &[tensor(&[], &[1.0f32]), tensor(&[], &[2.0f32])],
        )
        .gives(tensor(&[2], &[1.0f32, 2.0])),
        pack(
            "nothing",
            1,
            &[tensor::<i32>(&[0], &[]), tensor::<i32>(&[0], &[])],
        )
        .gives(tensor::<i32>(&[0, 2], &[])),
        pack("different shapes", 0, &[a, tensor(&[2], &[1, 2])]).refused(
            "shapes of all inputs must match: values[0].shape = [2,2] != values[1].shape = [2]",
        ),
        pack("an axis that is not there", 3, &both).refused("axis = 3 not in [-3, 3)"),
        pack("an axis that is not there", -4, &both).refused("axis = -4 not in [-3, 3)"),
        unpack("the first axis", 0, 2, whole(&[2, 2, 2])).gives_all(both.to_vec()),
        unpack("the last axis", -1, 2, tensor(&[2, 2], &[1, 2, 3, 4]))
            .gives_all(vec![tensor(&[2], &[1, 3]), tensor(&[2], &[2, 4])]),
        unpack("one", 0, 1, tensor(&[1, 2], &[1, 2])).gives(tensor(&[2], &[1, 2])),
        unpack("into nothing", 0, 0, tensor::<i32>(&[0, 2], &[])).gives_nothing(),
        unpack("nothing", 1, 2, tensor::<i32>(&[0, 2], &[]))
            .gives_all(vec![tensor::<i32>(&[0], &[]), tensor::<i32>(&[0], &[])]),
        unpack("another number", 1, 3, whole(&[2, 4]))
            .with_outputs(3)
            .refused("input shape axis 1 must equal 3, got shape [2,4]"),
        unpack("a scalar", 0, 1, tensor(&[], &[1])).refused("axis = 0 not in [-0, 0)"),
        unpack("an axis that is not there", 2, 4, whole(&[2, 4]))
            .with_outputs(4)
            .refused("axis = 2 not in [-2, 2)"),
    ];
    for dtype in MOVED {
        let part = |values: &[u8]| typed_tensor(dtype, &[2], values);
        let whole = typed_tensor(dtype, &[2, 2], &[1, 0, 0, 1]);
        cases.extend([
            pack(dtype.name(), 1, &[part(&[1, 0]), part(&[0, 1])]).gives(whole.clone()),
            unpack(dtype.name(), 1, 2, whole).gives_all(vec![part(&[1, 0]), part(&[0, 1])]),
        ]);
    }
    // Large enough for several threads.
    let (a, b) = (noise(90_000, 1), noise(90_000, 2));
    let expected: Vec<f32> = a
        .chunks(300)
        .zip(b.chunks(300))
        .flat_map(|(a, b)| [a, b].concat())
        .collect();
    cases.push(
        pack(
            "many",
            1,
            &[tensor(&[300, 300], &a), tensor(&[300, 300], &b)],
        )
        .gives(tensor(&[300, 2, 300], &expected)),
    );
    cases
}

fn select(
    name: &str,
    op: &'static str,
    condition: (&[usize], &[u8]),
    t: Tensor,
    e: Tensor,
) -> Case {
    case(&format!("{op}: {name}"), op)
        .typed("T", t.dtype())
        .input(typed_tensor(DType::Bool, condition.0, condition.1))
        .input(t)
        .input(e)
}

fn selections() -> Vec<Case> {
    let t = || tensor(&[2, 2], &[1, 2, 3, 4]);
    let e = || tensor(&[2, 2], &[5, 6, 7, 8]);
    let mut cases = vec![
        select("each element", "Select", (&[2, 2], &[1, 0, 0, 1]), t(), e())
            .gives(tensor(&[2, 2], &[1, 6, 7, 4])),
        select("each row", "Select", (&[2], &[0, 1]), t(), e())
            .gives(tensor(&[2, 2], &[5, 6, 3, 4])),
        select("all", "Select", (&[], &[1]), t(), e()).gives(t()),
        select(
            "branches of different shapes",
            "Select",
            (&[], &[1]),
            t(),
            tensor(&[1], &[1]),
        )
        .refused("'then' and 'else' must have the same size, but received: [2,2] vs. [1]"),
        select(
            "another number of rows",
            "Select",
            (&[3], &[0, 1, 1]),
            t(),
            e(),
        )
        .refused("number of batches of 'then' must match size of 'cond', but saw: 2 vs. 3"),
        select(
            "a row of scalars",
            "Select",
            (&[1], &[1]),
            tensor(&[], &[1]),
            tensor(&[], &[2]),
        )
        .refused("'then' must be at least a vector"),
        select("another shape", "Select", (&[2, 1], &[0, 1]), t(), e()).refused(
            "inputs must have the same size and shape: 'cond' [2,1], 'then' [2,2], 'else' [2,2]",
        ),
        select(
            "no broadcasting",
            "Select",
            (&[2], &[0, 1]),
            tensor(&[1], &[1]),
            tensor(&[1], &[1]),
        )
        .refused("inputs must have the same size and shape"),
        select("each column", "SelectV2", (&[2], &[0, 1]), t(), e())
            .gives(tensor(&[2, 2], &[5, 2, 7, 4])),
        select("each row", "SelectV2", (&[2, 1], &[0, 1]), t(), e())
            .gives(tensor(&[2, 2], &[5, 6, 3, 4])),
        select("all", "SelectV2", (&[], &[0]), t(), e()).gives(e()),
        select(
            "scalars",
            "SelectV2",
            (&[2], &[0, 1]),
            tensor(&[], &[1]),
            tensor(&[], &[2]),
        )
        .gives(tensor(&[2], &[2, 1])),
        select(
            "all three grow",
            "SelectV2",
            (&[2, 1, 1], &[0, 1]),
            tensor(&[2, 1], &[1, 2]),
            tensor(&[2], &[3, 4]),
        )
        .gives(tensor(&[2, 2, 2], &[3, 4, 3, 4, 1, 1, 2, 2])),
        select(
            "nothing",
            "SelectV2",
            (&[0], &[]),
            tensor(&[], &[1]),
            tensor(&[], &[2]),
        )
        .gives(tensor::<i32>(&[0], &[])),
        select(
            "shapes that do not meet",
            "SelectV2",
            (&[2], &[0, 1]),
            tensor(&[3], &[1, 2, 3]),
            t(),
        )
        .refused("incompatible shapes: [2] vs. [3] vs. [2,2]"),
        case("SelectV2: numbers as condition", "SelectV2")
            .typed("T", DType::I32)
            .input(tensor(&[1], &[1u8]))
            .input(tensor(&[1], &[1]))
            .input(tensor(&[1], &[1]))
            .refused("the tensor holds uint8, not bool"),
    ];
    for dtype in MOVED {
        for op in ["Select", "SelectV2"] {
            let (t, e) = (
                typed_tensor(dtype, &[3], &[1, 1, 0]),
                typed_tensor(dtype, &[3], &[0, 0, 1]),
            );
            cases.push(
                select(dtype.name(), op, (&[3], &[1, 0, 1]), t, e).gives(typed_tensor(
                    dtype,
                    &[3],
                    &[1, 0, 0],
                )),
            );
        }
    }
    let (a, b) = (noise(90_000, 1), noise(300, 2));
    let condition: Vec<Boolean> = a.iter().map(|&x| Boolean::from(x > 0.0)).collect();
    let expected: Vec<f32> = a
        .iter()
        .enumerate()
        .map(|(i, &x)| if x > 0.0 { x } else { b[i % 300] })
        .collect();
    cases.push(
        case("SelectV2: many", "SelectV2")
            .typed("T", DType::F32)
            .input(tensor(&[300, 300], &condition))
            .input(tensor(&[300, 300], &a))
            .input(tensor(&[300], &b))
            .gives(tensor(&[300, 300], &expected)),
    );
    cases
}
