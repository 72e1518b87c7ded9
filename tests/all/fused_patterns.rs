//! Layer normalization, activations and cells that graphs contain as several nodes: a CPU device
//! computes each form of them with one kernel, and only if no one can observe the difference.

use std::sync::Arc;

use placewright::builder::Axes;
use placewright::builder::BuildError;
use placewright::builder::Conv2d;
use placewright::builder::GraphBuilder;
use placewright::builder::Padding;
use placewright::builder::Scope;
use placewright::builder::Value;
use placewright::device::FactoryRegistry;
use placewright::graph::Graph;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::tensor::PartialShape;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;
use placewright::trace::Recorder;

use crate::sample::cpus;
use crate::sample::joined;
use crate::strict_cpu::StrictCpuFactory;

const ROWS: usize = 3;
const COLUMNS: usize = 70;

type Floats<'a> = Result<Value<f32>, BuildError>;

/// What a form computes from `x`, `scale` and `offset`.
type Form = fn(&Scope, Value<f32>, Value<f32>, Value<f32>) -> Floats<'static>;

fn row() -> Axes {
    Axes::new([-1]).keeping_dims()
}

fn feeds() -> Vec<(&'static str, Tensor)> {
    let numbers = |shape: &[usize], seed: usize| {
        let n: usize = shape.iter().product();
        let numbers = (0..n).map(|i| ((i * 37 + seed * 17) % 101) as f32 / 20.0 - 2.5);
        Tensor::from_values(Shape::from(shape), &numbers.collect::<Vec<f32>>()).unwrap()
    };
    vec![
        ("x", numbers(&[2, ROWS, COLUMNS], 1)),
        ("scale", numbers(&[COLUMNS], 2)),
        ("offset", numbers(&[COLUMNS], 3)),
    ]
}

fn graph(form: Form) -> Graph {
    let build = || {
        let b = GraphBuilder::new("pattern");
        // The number of images is not known.
        let shape = PartialShape::new(&[None, Some(ROWS), Some(COLUMNS)]);
        let x = b.placeholder::<f32>("x", shape)?;
        let scale = b.placeholder::<f32>("scale", [COLUMNS])?;
        let offset = b.placeholder::<f32>("offset", [COLUMNS])?;
        let y = form(&b, x, scale, offset)?;
        b.named("y").identity(y)?;
        Ok::<Graph, BuildError>(b.finish())
    };
    build().unwrap()
}

/// Returns the results, and the ops of the fused nodes.
fn run(builder: SessionBuilder, graph: Graph, fetches: &[&str]) -> (Vec<Tensor>, Vec<String>) {
    let recorder = Recorder::on();
    let session = builder
        .with_graph(graph)
        .with_recorder(recorder.clone())
        .build()
        .unwrap();
    let used: Vec<(&str, Tensor)> = feeds();
    let fetched = session.run(&used, fetches).unwrap();
    let ops = joined(&recorder);
    let ops = ops.iter().filter_map(|it| it.split(' ').next());
    (fetched, ops.map(str::to_owned).collect())
}

fn cpu() -> SessionBuilder {
    Session::builder().with_device_options(cpus(1))
}

/// The test devices, which compute node by node.
fn one_by_one() -> SessionBuilder {
    let mut factories = FactoryRegistry::empty();
    factories
        .register("CPU", 60, Arc::new(StrictCpuFactory))
        .unwrap();
    Session::builder().with_factories(factories)
}

/// Compares a form with its nodes, one by one.
#[track_caller]
fn check(name: &str, form: Form, op: &[&str]) {
    let (expected, none) = run(one_by_one(), graph(form), &["y"]);
    let (found, ops) = run(cpu(), graph(form), &["y"]);
    assert_eq!(
        (none, ops),
        (vec![], op.iter().map(|&it| it.to_owned()).collect()),
        "{name}"
    );
    let found = found[0].as_slice::<f32>().unwrap();
    for (found, expected) in found.iter().zip(expected[0].as_slice::<f32>().unwrap()) {
        let tolerance = 2e-6 * expected.abs().max(1.0) * 4.0;
        assert!(
            (found - expected).abs() <= tolerance,
            "{name}: {found} is not {expected}"
        );
    }
}

fn inverse(b: &Scope, variance: Value<f32>) -> Floats<'static> {
    b.rsqrt(b.add(variance, 1e-3)?)
}

const NORMS: [(&str, Form); 8] = [
    ("of batches", |b, x, scale, offset| {
        let mean = b.reduce_mean(x, row())?;
        let square = b.squared_difference(x, b.op("StopGradient").input(mean).value::<f32>()?)?;
        let factor = b.mul(inverse(b, b.reduce_mean(square, row())?)?, scale)?;
        let rest = b.sub(offset, b.mul(mean, factor)?)?;
        b.add(b.mul(x, factor)?, rest)
    }),
    ("in Keras 3", |b, x, scale, offset| {
        let mean = b.reduce_mean(x, row())?;
        let variance = b.reduce_mean(b.squared_difference(x, mean)?, row())?;
        let factor = b.mul(inverse(b, variance)?, scale)?;
        let shift = b.mul(b.neg(mean)?, factor)?;
        b.add(b.mul(x, factor)?, b.add(shift, offset)?)
    }),
    ("by differences", |b, x, scale, offset| {
        let mean = b.reduce_mean(x, row())?;
        let variance = b.reduce_mean(b.square(b.sub(x, mean)?)?, row())?;
        let scaled = b.mul(b.sub(x, mean)?, inverse(b, variance)?)?;
        b.add(b.mul(scaled, scale)?, offset)
    }),
    ("by division", |b, x, scale, offset| {
        let difference = b.sub(x, b.reduce_mean(x, row())?)?;
        let variance = b.reduce_mean(b.pow(difference, 2.0)?, row())?;
        let deviation = b.sqrt(b.add(variance, 1e-5)?)?;
        b.add(offset, b.mul(scale, b.div(difference, deviation)?)?)
    }),
    ("with squares as products", |b, x, scale, offset| {
        let difference = b.sub(x, b.reduce_mean(x, row())?)?;
        let variance = b.reduce_mean(b.mul(difference, difference)?, row())?;
        let factor = b.mul(scale, inverse(b, variance)?)?;
        b.add(b.mul(factor, difference)?, offset)
    }),
    ("without a scale", |b, x, _, offset| {
        let difference = b.sub(x, b.reduce_mean(x, row())?)?;
        let variance = b.reduce_mean(b.square(difference)?, row())?;
        b.add(b.mul(difference, inverse(b, variance)?)?, offset)
    }),
    ("expanded without a scale", |b, x, _, offset| {
        let mean = b.reduce_mean(x, row())?;
        let factor = inverse(b, b.reduce_mean(b.squared_difference(x, mean)?, row())?)?;
        b.add(b.sub(offset, b.mul(mean, factor)?)?, b.mul(factor, x)?)
    }),
    ("without a mean", |b, x, scale, offset| {
        let factor = inverse(b, b.reduce_mean(b.square(x)?, row())?)?;
        b.add(b.mul(b.mul(x, factor)?, scale)?, offset)
    }),
];

#[test]
fn each_form_of_layer_normalization_is_one_kernel() {
    for (name, form) in NORMS {
        check(name, form, &["_FusedLayerNorm"]);
    }
}

#[test]
fn what_looks_like_layer_normalization_stays() {
    let others: [(&str, Form); 4] = [
        ("another axis", |b, x, scale, offset| {
            let axis = || Axes::new([1]).keeping_dims();
            let difference = b.sub(x, b.reduce_mean(x, axis())?)?;
            let variance = b.reduce_mean(b.square(difference)?, axis())?;
            let scaled = b.mul(difference, inverse(b, variance)?)?;
            b.add(b.mul(scaled, scale)?, offset)
        }),
        ("the variance of something else", |b, x, scale, offset| {
            let difference = b.sub(x, b.reduce_mean(x, row())?)?;
            let variance = b.reduce_mean(b.square(b.add(x, scale)?)?, row())?;
            b.add(b.mul(difference, inverse(b, variance)?)?, offset)
        }),
        ("an offset per element", |b, x, scale, _| {
            let difference = b.sub(x, b.reduce_mean(x, row())?)?;
            let variance = b.reduce_mean(b.square(difference)?, row())?;
            let scaled = b.mul(difference, inverse(b, variance)?)?;
            b.add(b.mul(scaled, scale)?, x)
        }),
        ("twice the result", |b, x, scale, offset| {
            let difference = b.sub(x, b.reduce_mean(x, row())?)?;
            let variance = b.reduce_mean(b.square(difference)?, row())?;
            let scaled = b.mul(b.mul(difference, 2.0)?, inverse(b, variance)?)?;
            b.add(b.mul(scaled, scale)?, offset)
        }),
    ];
    for (name, form) in others {
        check(name, form, &[]);
    }
}

const UNITS: [(&str, Form); 11] = [
    ("by a product", |b, x, _, _| {
        let erf = b.erf(b.mul(x, std::f32::consts::FRAC_1_SQRT_2)?)?;
        b.mul(b.mul(x, 0.5)?, b.add(erf, 1.0)?)
    }),
    ("by division", |b, x, _, _| {
        let erf = b.erf(b.div(x, std::f32::consts::SQRT_2)?)?;
        b.mul(
            b.constant([], &[0.5])?,
            b.mul(x, b.add(b.constant([], &[1.0])?, erf)?)?,
        )
    }),
    ("with half the sum", |b, x, _, _| {
        let erf = b.erf(b.div(x, std::f32::consts::SQRT_2)?)?;
        b.mul(x, b.mul(b.add(erf, 1.0)?, 0.5)?)
    }),
    ("by a power", |b, x, _, _| {
        let cube = b.mul(b.pow(x, 3.0)?, 0.044_715)?;
        let tanh = b.tanh(b.mul(b.add(x, cube)?, 0.797_884_6)?)?;
        b.mul(b.mul(x, 0.5)?, b.add(tanh, 1.0)?)
    }),
    ("by products", |b, x, _, _| {
        let cube = b.mul(b.mul(b.mul(x, 0.044_715)?, x)?, x)?;
        let tanh = b.tanh(b.mul(b.add(cube, x)?, 0.797_884_6)?)?;
        b.mul(b.mul(x, 0.5)?, b.add(tanh, 1.0)?)
    }),
    ("as a product of x", |b, x, _, _| {
        let square = b.mul(b.mul(x, x)?, 0.044_715)?;
        let tanh = b.tanh(b.mul(b.mul(x, 0.797_884_6)?, b.add(square, 1.0)?)?)?;
        b.mul(b.mul(x, 0.5)?, b.add(tanh, 1.0)?)
    }),
    ("swish", |b, x, _, _| b.mul(x, b.sigmoid(x)?)),
    ("swish in another order", |b, x, _, _| {
        b.mul(b.sigmoid(x)?, x)
    }),
    ("a hard swish", |b, x, _, _| {
        let six = b.op("Relu6").input(b.add(x, 3.0)?).value::<f32>()?;
        b.mul(x, b.mul(six, 1.0 / 6.0)?)
    }),
    ("a hard swish by division", |b, x, _, _| {
        let six = b.op("Relu6").input(b.add(x, 3.0)?).value::<f32>()?;
        b.div(b.mul(x, six)?, 6.0)
    }),
    ("a hard swish of a hard sigmoid", |b, x, _, _| {
        let six = b.op("Relu6").input(b.add(x, 3.0)?).value::<f32>()?;
        b.mul(b.div(six, 6.0)?, x)
    }),
];

#[test]
fn each_form_of_a_linear_unit_is_one_kernel() {
    for (name, form) in UNITS {
        check(name, form, &["_FusedUnit"]);
    }
    let others: [(&str, Form); 5] = [
        ("another gate", |b, x, _, _| b.mul(x, b.sigmoid(b.neg(x)?)?)),
        ("a hard swish with another shift", |b, x, _, _| {
            let six = b.op("Relu6").input(b.add(x, 2.0)?).value::<f32>()?;
            b.div(b.mul(x, six)?, 6.0)
        }),
        ("a quarter of it", |b, x, _, _| {
            let erf = b.erf(b.mul(x, std::f32::consts::FRAC_1_SQRT_2)?)?;
            b.mul(b.mul(x, 0.25)?, b.add(erf, 1.0)?)
        }),
        ("of another number", |b, x, scale, _| {
            let erf = b.erf(b.mul(b.mul(x, scale)?, std::f32::consts::FRAC_1_SQRT_2)?)?;
            b.mul(b.mul(x, 0.5)?, b.add(erf, 1.0)?)
        }),
        ("with another power", |b, x, _, _| {
            let square = b.mul(b.pow(x, 2.0)?, 0.044_715)?;
            let tanh = b.tanh(b.mul(b.add(x, square)?, 0.797_884_6)?)?;
            b.mul(b.mul(x, 0.5)?, b.add(tanh, 1.0)?)
        }),
    ];
    for (name, form) in others {
        check(name, form, &[]);
    }
}

#[test]
fn a_matmul_computes_bias_and_linear_unit() {
    for (index, (name, _)) in UNITS.into_iter().enumerate() {
        let layer = move || {
            let b = GraphBuilder::new("layer");
            let scale = b.placeholder::<f32>("scale", [COLUMNS])?;
            let offset = b.placeholder::<f32>("offset", [COLUMNS])?;
            let x = b.placeholder::<f32>("x", [2, ROWS, COLUMNS])?;
            let rows = b.reshape(x, [6, COLUMNS as i32])?;
            let weights = (0..COLUMNS * COLUMNS).map(|i| (i % 13) as f32 / 60.0 - 0.1);
            let weights = b.constant([COLUMNS, COLUMNS], &weights.collect::<Vec<f32>>())?;
            let product = b.matmul(rows, weights)?;
            // As `BiasAdd`, and as Keras writes it.
            let sum = match index % 2 {
                0 => b.bias_add(product, offset)?,
                _ => b.add(product, offset)?,
            };
            let y = UNITS[index].1(&b, sum, scale, offset)?;
            b.named("y").identity(y)?;
            Ok::<Graph, BuildError>(b.finish())
        };
        let (expected, _) = run(one_by_one(), layer().unwrap(), &["y"]);
        let (found, ops) = run(cpu(), layer().unwrap(), &["y"]);
        assert_eq!(ops, ["_FusedMatMul"], "{name}");
        let found = found[0].as_slice::<f32>().unwrap();
        for (found, expected) in found.iter().zip(expected[0].as_slice::<f32>().unwrap()) {
            assert!(
                (found - expected).abs() <= 1e-5,
                "{name}: {found} is not {expected}"
            );
        }
    }
}

#[test]
fn the_arithmetic_of_cells_and_softmax_are_one_kernel_each() {
    let cells: [(&str, Form, &[&str]); 4] = [
        (
            "a state",
            |b, x, _, _| {
                let (input, candidate) = (b.add(x, 1.0)?, b.mul(x, 2.0)?);
                let kept = b.mul(x, b.sigmoid(b.neg(x)?)?)?;
                b.add(kept, b.mul(b.sigmoid(input)?, b.tanh(candidate)?)?)
            },
            &["_FusedGatedSum"],
        ),
        (
            "a state in another order",
            |b, x, _, _| {
                let (input, candidate) = (b.add(x, 1.0)?, b.mul(x, 2.0)?);
                let added = b.mul(b.tanh(candidate)?, b.sigmoid(input)?)?;
                b.add(added, b.mul(b.sigmoid(b.neg(x)?)?, x)?)
            },
            &["_FusedGatedSum"],
        ),
        (
            "an output",
            |b, x, _, _| b.mul(b.sigmoid(b.neg(x)?)?, b.tanh(x)?),
            &["_FusedGatedTanh"],
        ),
        (
            "a softmax",
            |b, x, _, _| {
                let exponential = b.exp(b.sub(x, b.reduce_max(x, row())?)?)?;
                b.div(exponential, b.reduce_sum(exponential, row())?)
            },
            &["Softmax"],
        ),
    ];
    for (name, form, op) in cells {
        check(name, form, op);
    }
    // A broadcast gate.
    check(
        "a row of gates",
        |b, x, scale, _| b.mul(b.tanh(x)?, b.sigmoid(scale)?),
        &[],
    );
}

/// A pointwise convolution and a depthwise one behind it, each with bias and activation.
fn bottleneck(size: usize, stride: i64, between: usize, is_constant: bool) -> Graph {
    let build = || {
        let b = GraphBuilder::new("bottleneck");
        let x = b.placeholder::<f32>("x", [None, Some(61), Some(58), Some(7)])?;
        let numbers = |n: usize, factor: usize| -> Vec<f32> {
            (0..n)
                .map(|i| (i * factor % 23) as f32 / 11.0 - 1.0)
                .collect()
        };
        let given = b.placeholder::<f32>("weights", [1, 1, 7, between])?;
        let weights = match is_constant {
            true => b.constant([1, 1, 7, between], &numbers(7 * between, 5))?,
            false => given,
        };
        let filter = b.constant([size, size, between, 1], &numbers(size * size * between, 7))?;
        let bias = b.constant([between], &numbers(between, 3))?;
        let wide = b.conv2d(x, weights, Conv2d::new(Padding::Valid))?;
        let wide = b.bias_add(wide, bias)?;
        let wide = match size {
            3 => b.op("Relu6").input(wide).value::<f32>()?,
            _ => b.mul(wide, b.sigmoid(wide)?)?,
        };
        let y = b.op("DepthwiseConv2dNative").attr("padding", "SAME");
        let y = y.attr("strides", [1, stride, stride, 1]);
        let y = y.input(wide).input(filter).value::<f32>()?;
        let y = b.bias_add(y, bias)?;
        let y = match stride {
            1 => b.relu(y)?,
            _ => b.mul(b.sigmoid(y)?, y)?,
        };
        b.named("y").identity(y)?;
        Ok::<Graph, BuildError>(b.finish())
    };
    build().unwrap()
}

#[test]
fn a_wide_pointwise_convolution_is_part_of_the_depthwise_one_behind_it() {
    let tensor = |shape: &[usize], factor: usize| {
        let n: usize = shape.iter().product();
        let numbers: Vec<f32> = (0..n)
            .map(|i| (i * factor % 19) as f32 / 9.0 - 1.0)
            .collect();
        Tensor::from_values(Shape::from(shape), &numbers).unwrap()
    };
    for (size, stride, between, is_constant) in [
        (3, 1, 80, true),
        (3, 2, 96, true),
        (5, 1, 75, true),
        (5, 2, 75, true),
        (3, 1, 80, false),
        (3, 1, 40, true),
    ] {
        let feeds = [
            ("x", tensor(&[2, 61, 58, 7], 11)),
            ("weights", tensor(&[1, 1, 7, between], 5)),
        ];
        let used = &feeds[..2 - usize::from(is_constant)];
        let run = |builder: SessionBuilder| {
            let recorder = Recorder::on();
            let session = builder
                .with_graph(bottleneck(size, stride, between, is_constant))
                .with_recorder(recorder.clone())
                .build()
                .unwrap();
            let fetched = session.run(used, &["y"]).unwrap();
            (
                fetched[0].as_slice::<f32>().unwrap().to_vec(),
                joined(&recorder),
            )
        };
        let (expected, _) = run(one_by_one());
        for n_threads in [1, 2, 3] {
            let builder = Session::builder().with_intra_op_parallelism_threads(n_threads);
            let (found, fused) = run(builder);
            // Less is in the cache anyway.
            let is_together = 61 * 58 * between * 4 >= 1 << 20;
            let ops = fused.iter().filter_map(|it| it.split(' ').next());
            let is_fused = ops.eq(["_FusedPointwiseDepthwise"]);
            assert_eq!(is_fused, is_together, "{between}: {fused:?}");
            for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let message = format!("{size} {stride} {between} [{index}]: {found}, {expected}");
                assert!((found - expected).abs() < 2e-4, "{message}");
            }
        }
    }
}

#[test]
fn inner_values_that_are_fetched_are_computed() {
    let form: Form = |b, x, scale, offset| {
        let difference = b.named("difference").sub(x, b.reduce_mean(x, row())?)?;
        let variance = b.reduce_mean(b.square(difference)?, row())?;
        let scaled = b.mul(difference, inverse(b, variance)?)?;
        b.add(b.mul(scaled, scale)?, offset)
    };
    let (expected, _) = run(one_by_one(), graph(form), &["y", "difference"]);
    let (found, ops) = run(cpu(), graph(form), &["y", "difference"]);
    assert_eq!(ops, [""; 0]);
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.as_bytes().unwrap(), expected.as_bytes().unwrap());
    }
}
