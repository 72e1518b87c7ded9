//! Nodes that CPU devices fuse: the results equal those of separate nodes, and nodes are fused only
//! if no one can observe the difference.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use placewright::builder::BuildError;
use placewright::builder::Conv2d;
use placewright::builder::Float;
use placewright::builder::GraphBuilder;
use placewright::builder::Padding;
use placewright::builder::Scalar;
use placewright::device::FactoryRegistry;
use placewright::device::Kernel;
use placewright::device::KernelContext;
use placewright::device::KernelDef;
use placewright::device::KernelError;
use placewright::execute::RunOptions;
use placewright::graph::Graph;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;
use placewright::trace::Recorder;

use crate::sample::cpus;
use crate::sample::joined;
use crate::strict_cpu::StrictCpuFactory;

/// `dense` = relu(x w + b), `plain` = x w + b of another matmul.
fn layers<T: Float + Scalar>() -> Result<Graph, BuildError> {
    let b = GraphBuilder::new("layers");
    let x = b.placeholder::<T>("x", [4, 8])?;
    let w = b.placeholder::<T>("w", [8, 5])?;
    let bias = b.placeholder::<T>("b", [5])?;
    let product = b.named("product").matmul(x, w)?;
    let sum = b.named("sum").bias_add(product, bias)?;
    b.named("dense").relu(sum)?;
    let other = b.named("other").matmul(x, w)?;
    b.named("plain").bias_add(other, bias)?;
    Ok(b.finish())
}

fn image() -> Result<Graph, BuildError> {
    let b = GraphBuilder::new("image");
    let x = b.placeholder::<f32>("x", [2, 9, 9, 3])?;
    let w = b.placeholder::<f32>("w", [3, 3, 3, 7])?;
    let bias = b.placeholder::<f32>("b", [7])?;
    let product = b
        .named("product")
        .conv2d(x, w, Conv2d::new(Padding::Same))?;
    let sum = b.named("sum").bias_add(product, bias)?;
    b.named("dense").relu(sum)?;
    Ok(b.finish())
}

#[test]
fn threads_share_winograds_tiles() {
    let graph = || {
        let b = GraphBuilder::new("image");
        let x = b.placeholder::<f32>("x", [1, 61, 58, 16])?;
        let w = values(DType::F32, &[3, 3, 16, 80], 2);
        let w = b.constant([3, 3, 16, 80], w.as_slice::<f32>().unwrap())?;
        let bias = values(DType::F32, &[80], 3);
        let bias = b.constant([80], bias.as_slice::<f32>().unwrap())?;
        let product = b.conv2d(x, w, Conv2d::new(Padding::Same))?;
        let sum = b.bias_add(product, bias)?;
        b.named("dense").relu(sum)?;
        Ok::<Graph, BuildError>(b.finish())
    };
    let run = |n_threads| {
        let session = Session::builder()
            .with_graph(graph().unwrap())
            .with_intra_op_parallelism_threads(n_threads)
            .build()
            .unwrap();
        let x = values(DType::F32, &[1, 61, 58, 16], 1);
        let answers = session.run(&[("x", x)], &["dense"]).unwrap();
        answers[0].as_slice::<f32>().unwrap().to_vec()
    };
    let alone = run(1);
    for n_threads in [2, 3, 8] {
        // Sums of another order, of 144 terms of up to 8.
        for (index, (found, expected)) in run(n_threads).iter().zip(&alone).enumerate() {
            let message = format!("{n_threads} threads [{index}]: {found} is not {expected}");
            assert!((found - expected).abs() < 1e-3, "{message}");
        }
    }
}

/// Numbers of both signs, of any type.
fn values(dtype: DType, shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let numbers = (0..n).map(|i| ((i * 31 + seed * 17) % 23) as f32 / 4.0 - 2.75);
    let shape = Shape::from(shape);
    match dtype {
        DType::F32 => Tensor::from_values(shape, &numbers.collect::<Vec<f32>>()),
        DType::F64 => {
            let numbers: Vec<f64> = numbers.map(f64::from).collect();
            Tensor::from_values(shape, &numbers)
        }
        _ => {
            let numbers: Vec<half::f16> = numbers.map(half::f16::from_f32).collect();
            Tensor::from_values(shape, &numbers)
        }
    }
    .unwrap()
}

fn feeds(dtype: DType) -> Vec<(&'static str, Tensor)> {
    vec![
        ("x", values(dtype, &[4, 8], 1)),
        ("w", values(dtype, &[8, 5], 2)),
        ("b", values(dtype, &[5], 3)),
    ]
}

/// The test devices, which compute node by node.
fn one_by_one() -> SessionBuilder {
    let mut factories = FactoryRegistry::empty();
    factories
        .register("CPU", 60, Arc::new(StrictCpuFactory))
        .unwrap();
    Session::builder().with_factories(factories)
}

/// Returns the fetched bytes, and the fused nodes.
fn run(
    builder: SessionBuilder,
    graph: Graph,
    feeds: &[(&str, Tensor)],
    fetches: &[&str],
    targets: &[&str],
) -> (Vec<Vec<u8>>, Vec<String>) {
    let recorder = Recorder::on();
    let session = builder
        .with_graph(graph)
        .with_recorder(recorder.clone())
        .build()
        .unwrap();
    let options = RunOptions::default();
    let fetched = session.run_with(feeds, fetches, targets, &options).unwrap();
    let bytes = fetched
        .iter()
        .map(|tensor| tensor.as_bytes().unwrap().to_vec());
    (bytes.collect(), joined(&recorder))
}

fn cpu() -> SessionBuilder {
    Session::builder().with_device_options(cpus(1))
}

#[test]
fn fused_matmuls_biases_and_activations_give_the_same_bits() {
    for (dtype, graph) in [
        (
            DType::F32,
            layers::<f32> as fn() -> Result<Graph, BuildError>,
        ),
        (DType::F64, layers::<f64>),
        (DType::F16, layers::<half::f16>),
    ] {
        let graph = || graph().unwrap();
        let fetches = ["dense", "plain"];
        let (expected, none) = run(one_by_one(), graph(), &feeds(dtype), &fetches, &[]);
        let (found, together) = run(cpu(), graph(), &feeds(dtype), &fetches, &[]);
        assert_eq!(found, expected, "{dtype}");
        assert_eq!(none, [""; 0]);
        assert_eq!(
            together,
            [
                "_FusedMatMul computes other, plain",
                "_FusedMatMul computes product, sum, dense"
            ]
        );
    }
}

#[test]
fn fused_convolutions_give_the_same_bits() {
    let feeds = [
        ("x", values(DType::F32, &[2, 9, 9, 3], 1)),
        ("w", values(DType::F32, &[3, 3, 3, 7], 2)),
        ("b", values(DType::F32, &[7], 3)),
    ];
    let graph = || image().unwrap();
    let (expected, _) = run(one_by_one(), graph(), &feeds, &["dense"], &[]);
    let (found, together) = run(cpu(), graph(), &feeds, &["dense"], &[]);
    assert_eq!(found, expected);
    assert_eq!(together, ["_FusedConv2D computes product, sum, dense"]);
}

/// Sums of two convolutions with a bias, of a matmul and its operand, and a depthwise convolution.
fn residual(batch: Option<usize>) -> Result<Graph, BuildError> {
    let b = GraphBuilder::new("residual");
    let shape = PartialShape::from([batch, Some(5), Some(9), Some(20)]);
    let x = b.placeholder::<f32>("x", shape.clone())?;
    let other = b.placeholder::<f32>("other", shape)?;
    let filter = b.placeholder::<f32>("w", [3, 3, 20, 20])?;
    let weights = b.placeholder::<f32>("d", [3, 3, 20, 1])?;
    let bias = b.placeholder::<f32>("b", [20])?;
    let attrs = || Conv2d::new(Padding::Same);
    let left = b.named("left").conv2d(x, filter, attrs())?;
    let left = b.named("left_b").bias_add(left, bias)?;
    let right = b.named("right").conv2d(other, filter, attrs())?;
    let right = b.named("right_b").bias_add(right, bias)?;
    let sum = b.named("sum").add(right, left)?;
    let y = b.named("y").relu(sum)?;
    let depthwise = b.op("DepthwiseConv2dNative").name("depthwise");
    let depthwise = depthwise.attr("strides", [1i64; 4]).attr("padding", "SAME");
    let depthwise = depthwise.input(y).input(weights).value::<f32>()?;
    let depthwise = b.named("depthwise_b").bias_add(depthwise, bias)?;
    let six = b.op("Relu6").name("six").input(depthwise).value::<f32>()?;
    let last = b.named("last").conv2d(six, filter, attrs())?;
    let last = b.named("last_b").bias_add(last, bias)?;
    b.named("z").add(other, last)?;
    let v = b.placeholder::<f32>("v", [20, 20])?;
    let product = b.named("product").matmul(v, v)?;
    let product = b.named("product_b").bias_add(product, bias)?;
    let twice = b.named("twice").add(product, v)?;
    b.named("u").relu(twice)?;
    Ok(b.finish())
}

#[test]
fn sums_after_a_bias_and_depthwise_convolutions_are_fused() {
    let all = [
        "_FusedConv2D computes last, last_b, z",
        "_FusedConv2D computes left, left_b",
        "_FusedConv2D computes right, right_b, sum, y",
        "_FusedDepthwiseConv2dNative computes depthwise, depthwise_b, six",
        "_FusedMatMul computes product, product_b, twice, u",
    ];
    for (batch, n, n_others) in [(Some(2), 2, 2), (None, 2, 2), (None, 1, 3), (None, 3, 1)] {
        let feeds = [
            ("x", values(DType::F32, &[n, 5, 9, 20], 1)),
            ("other", values(DType::F32, &[n_others, 5, 9, 20], 2)),
            ("w", values(DType::F32, &[3, 3, 20, 20], 3)),
            ("d", values(DType::F32, &[3, 3, 20, 1], 4)),
            ("b", values(DType::F32, &[20], 5)),
            ("v", values(DType::F32, &[20, 20], 6)),
        ];
        let graph = || residual(batch).unwrap();
        let fetches = ["y", "z", "u"];
        let (expected, _) = run(one_by_one(), graph(), &feeds, &fetches, &[]);
        let (found, together) = run(cpu(), graph(), &feeds, &fetches, &[]);
        assert_eq!(found, expected, "{batch:?} {n} {n_others}");
        assert_eq!(together, all, "{batch:?}");
    }
}

#[test]
fn nodes_with_other_readers_are_not_fused() {
    let graph = || layers::<f32>().unwrap();
    let feeds = feeds(DType::F32);
    for (fetches, together) in [
        (
            &["dense", "sum"][..],
            &["_FusedMatMul computes product, sum"][..],
        ),
        (&["dense", "product"], &[]),
        (&["dense"], &["_FusedMatMul computes product, sum, dense"]),
    ] {
        let (expected, _) = run(one_by_one(), graph(), &feeds, fetches, &[]);
        let (found, fused) = run(cpu(), graph(), &feeds, fetches, &[]);
        assert_eq!(found, expected, "{fetches:?}");
        assert_eq!(fused, together, "{fetches:?}");
    }
    // A fed tensor is not computed, whatever its producer.
    let mut fed = feeds.clone();
    fed.push(("product:0", values(DType::F32, &[4, 5], 9)));
    let (expected, _) = run(one_by_one(), graph(), &fed, &["dense"], &[]);
    let (found, fused) = run(cpu(), graph(), &fed, &["dense"], &[]);
    assert_eq!((found, fused), (expected, Vec::new()));
}

#[test]
fn one_session_runs_a_graph_with_and_without_fusion() {
    let session = cpu().with_graph(layers::<f32>().unwrap()).build().unwrap();
    let feeds = feeds(DType::F32);
    let together = session.run(&feeds, &["dense"]).unwrap();
    let apart = session.run(&feeds, &["product", "sum", "dense"]).unwrap();
    assert_eq!(
        together[0].as_bytes().unwrap(),
        apart[2].as_bytes().unwrap()
    );
    let again = session.run(&feeds, &["dense"]).unwrap();
    assert_eq!(
        together[0].as_bytes().unwrap(),
        again[0].as_bytes().unwrap()
    );
}

#[test]
fn an_apps_kernel_is_called_and_not_fused() {
    static N_CALLS: AtomicU32 = AtomicU32::new(0);
    struct Own;
    impl Kernel for Own {
        fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
            N_CALLS.fetch_add(1, Ordering::Relaxed);
            context.fill_output(0, &Shape::from([4, 5]), |out: &mut [f32]| {
                out.fill(1.0);
                Ok(())
            })
        }
    }
    let own = KernelDef::new("MatMul", "CPU").with_priority(1);
    let builder = cpu().with_kernels([own.with_factory(|_| Ok(Box::new(Own)))]);
    let graph = layers::<f32>().unwrap();
    let (_, together) = run(builder, graph, &feeds(DType::F32), &["dense"], &[]);
    assert_eq!(together, [""; 0]);
    assert_eq!(N_CALLS.load(Ordering::Relaxed), 1);
}

#[test]
fn a_bias_of_a_wrong_shape_is_rejected_with_node_and_shapes() {
    let b = GraphBuilder::new("unknown");
    let x = b.placeholder::<f32>("x", [4, 8]).unwrap();
    let w = b.placeholder::<f32>("w", [8, 5]).unwrap();
    let bias = b
        .placeholder::<f32>("b", placewright::tensor::PartialShape::unknown())
        .unwrap();
    let product = b.named("product").matmul(x, w).unwrap();
    b.named("sum").bias_add(product, bias).unwrap();
    let session = cpu().with_graph(b.finish()).build().unwrap();
    for shape in [&[4][..], &[1, 5], &[]] {
        let mut feeds = feeds(DType::F32);
        feeds[2].1 = values(DType::F32, shape, 3);
        let error = session.run(&feeds, &["sum"]).unwrap_err().to_string();
        assert!(
            error.contains("`sum` (_FusedMatMul)") && error.contains("[4,5]"),
            "{error}"
        );
    }
    session.run(&feeds(DType::F32), &["sum"]).unwrap();
}
