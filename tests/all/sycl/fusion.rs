//! Nodes that SYCL devices fuse: the results equal those of separate nodes, and nodes are fused
//! only if no one can observe the difference.
//!
//! A session that fetches everything computes all nodes separately, and is the reference for the
//! others. `PLACEWRIGHT_SEED` selects other graphs.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use placewright::backend::cuda;
use placewright::builder::Axes;
use placewright::builder::BuildError;
use placewright::builder::GraphBuilder;
use placewright::builder::Value;
use placewright::device::DeviceSet;
use placewright::device::Kernel;
use placewright::device::KernelContext;
use placewright::device::KernelDef;
use placewright::device::KernelError;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::tensor::PartialShape;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;
use placewright::trace::Recorder;

use super::fused_matmuls::dense;
use super::open;
use super::options;
use super::session;
use crate::emulated::EmulatedConfig;
use crate::emulated::EmulatedRoutines;
use crate::gpu::Machine;
use crate::sample::Random;
use crate::sample::joined;
use crate::sample::seed;

/// Number of random graphs, each with its own program.
const N_GRAPHS: usize = 24;

/// Numbers of both signs whose sums and products are exact for a while.
pub(super) fn values(shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let numbers = (0..n).map(|i| ((i * 31 + seed * 17) % 23) as f32 / 4.0 - 2.75);
    Tensor::from_values(Shape::from(shape), &numbers.collect::<Vec<f32>>()).unwrap()
}

pub(super) fn bits(tensor: &Tensor) -> Vec<u32> {
    let values = tensor.as_slice::<f32>().unwrap().iter();
    // Any NaN equals any other.
    values
        .map(|x| if x.is_nan() { f32::NAN } else { *x }.to_bits())
        .collect()
}

/// Compares up to the differences of sums in another order, of quotients, and of driver functions
/// whose vector form differs from the scalar one.
pub(super) fn assert_close(found: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    let pairs = found.as_slice::<f32>().unwrap().iter();
    for (index, (a, b)) in pairs.zip(expected.as_slice::<f32>().unwrap()).enumerate() {
        let scale = a.abs().max(b.abs()).max(1.0);
        let is_close = a == b
            || scale.is_finite() && (a - b).abs() <= 1e-5 * scale
            || a.is_nan() && b.is_nan();
        assert!(is_close, "{what}: element {index} is {a}, expected {b}");
    }
}

/// SYCL devices, whose functions have the form for CPUs, and an emulated GPU, which gets them in
/// the form for GPUs. If NVRTC is present, they are also compiled for a real GPU.
pub(super) struct Ways {
    pub(super) vectors: Arc<DeviceSet>,
    pub(super) groups: Arc<DeviceSet>,
    /// The same with the vendor's routines.
    routines: Arc<DeviceSet>,
    machines: [Machine; 2],
}

impl Ways {
    /// Opens the devices, for tests that need a SYCL device.
    pub(super) fn open() -> Self {
        let machine = |routines| {
            Machine::new(EmulatedConfig {
                compiles_for_real: cuda::is_present(),
                routines,
                ..EmulatedConfig::default()
            })
        };
        let machines = [
            machine(EmulatedRoutines::Absent),
            machine(EmulatedRoutines::Present),
        ];
        Self {
            vectors: open(&options(1)),
            groups: machines[0].open(&options(1)),
            routines: machines[1].open(&options(1)),
            machines,
        }
    }

    pub(super) fn all(&self) -> [&Arc<DeviceSet>; 3] {
        [&self.vectors, &self.groups, &self.routines]
    }
}

impl Drop for Ways {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            for machine in &self.machines {
                assert_eq!(machine.driver.violations(), [""; 0]);
            }
        }
    }
}

/// Returns a session on the device that compiles, and its recorder.
pub(super) fn recorded(b: GraphBuilder, devices: &Arc<DeviceSet>) -> (Session, Recorder) {
    recorded_with(b, devices, |builder| builder)
}

fn recorded_with(
    b: GraphBuilder,
    devices: &Arc<DeviceSet>,
    more: impl FnOnce(SessionBuilder) -> SessionBuilder,
) -> (Session, Recorder) {
    let recorder = Recorder::on();
    // By TensorFlow's priorities, all nodes are placed there.
    let builder = more(session(b, devices));
    let session = builder.with_recorder(recorder.clone()).build().unwrap();
    (session, recorder)
}

/// `y` = normalised `x + residual`, as in models.
fn layer_norm(rows: Option<usize>, width: usize) -> Result<GraphBuilder, BuildError> {
    let b = GraphBuilder::new("norm");
    let shape = PartialShape::new(&[Some(2), rows, Some(width)]);
    let x = b.placeholder::<f32>("x", shape.clone())?;
    let residual = b.placeholder::<f32>("residual", shape)?;
    let scale = b.placeholder::<f32>("scale", [width])?;
    let offset = b.placeholder::<f32>("offset", [width])?;
    let row = || Axes::new([-1]).keeping_dims();
    let sum = b.named("sum").add(x, residual)?;
    let mean = b.named("mean").reduce_mean(sum, row())?;
    let same = b.named("same").identity(mean)?;
    let square = b.named("square").squared_difference(sum, same)?;
    let variance = b.named("variance").reduce_mean(square, row())?;
    let epsilon = b.constant([], &[1e-3f32])?;
    let shifted = b.named("shifted").add(variance, epsilon)?;
    let inverse = b.named("inverse").rsqrt(shifted)?;
    let factor = b.named("factor").mul(inverse, scale)?;
    let scaled = b.named("scaled").mul(sum, factor)?;
    let moved = b.named("moved").mul(mean, factor)?;
    let rest = b.named("rest").sub(offset, moved)?;
    b.named("y").add(scaled, rest)?;
    Ok(b)
}

const NORM: [&str; 12] = [
    "sum", "mean", "same", "square", "variance", "shifted", "inverse", "factor", "scaled", "moved",
    "rest", "y",
];

fn norm_feeds(rows: usize, width: usize) -> [(&'static str, Tensor); 4] {
    [
        ("x", values(&[2, rows, width], 1)),
        ("residual", values(&[2, rows, width], 5)),
        ("scale", values(&[width], 2)),
        ("offset", values(&[width], 3)),
    ]
}

#[test]
#[needs(Sycl)]
fn a_layer_normalisation_is_one_kernel() {
    let ways = Ways::open();
    for (rows, width) in [(3, 40), (1, 37), (5, 128), (2, 1000), (70, 32)] {
        for devices in ways.all() {
            normalise(rows, width, devices);
        }
    }
}

fn normalise(rows: usize, width: usize, devices: &Arc<DeviceSet>) {
    // The number of rows may vary, but their length may not.
    for known in [Some(rows), None] {
        let (session, recorder) = recorded(layer_norm(known, width).unwrap(), devices);
        let feeds = norm_feeds(rows, width);
        let found = session.run(&feeds, &["y"]).unwrap();
        assert_eq!(
            joined(&recorder),
            [format!("_FusedElementwise computes {}", NORM.join(", "))],
        );
        let expected = session.run(&feeds, &NORM).unwrap();
        assert_eq!(
            joined(&recorder).len(),
            1,
            "nothing of what is fetched is inside"
        );
        let expected = expected.last().unwrap();
        assert_eq!(found[0].shape(), expected.shape());
        assert_close(&found[0], expected, &format!("{rows} x {width}"));
        // Again with other shapes, if these may vary.
        if known.is_none() {
            let feeds = norm_feeds(rows + 4, width);
            let found = session.run(&feeds, &["y"]).unwrap();
            let expected = session.run(&feeds, &NORM).unwrap();
            assert_close(&found[0], expected.last().unwrap(), "more rows");
            let none = session.run(&norm_feeds(0, width), &["y"]).unwrap();
            assert_eq!(none[0].shape().dims(), [2, 0, width]);
        }
    }
}

/// Returns a graph of random arithmetic over broadcast operands, whose last node is `y`; its feeds;
/// and the names of all nodes.
fn random_graph(random: &mut Random) -> (GraphBuilder, Vec<(String, Tensor)>, Vec<String>) {
    let b = GraphBuilder::new("random");
    let mut shape: Vec<usize> = (0..random.below(4)).map(|_| 1 + random.below(5)).collect();
    let width = [1, 7, 33, 64, 130, 260, 1500][random.below(7)];
    shape.push(width);
    let (mut feeds, mut full, mut all): (Vec<_>, Vec<Value<f32>>, Vec<Value<f32>>) =
        Default::default();
    for input in 0..1 + random.below(6) {
        let mut own = shape.clone();
        if input > 0 {
            for dim in &mut own {
                if random.below(3) == 0 {
                    *dim = 1;
                }
            }
            own.drain(..random.below(2) * random.below(shape.len() + 1));
        }
        // The first dimension of some operands is unknown.
        let mut dims: Vec<Option<usize>> = own.iter().copied().map(Some).collect();
        if own.len() > 1 && random.below(4) == 0 {
            dims[0] = None;
        }
        let name = format!("in{input}");
        let value = b
            .placeholder::<f32>(&name, PartialShape::new(&dims))
            .unwrap();
        feeds.push((name, values(&own, input)));
        if input == 0 {
            full.push(value);
        }
        all.push(value);
    }
    let mut names = Vec::new();
    let n_nodes = 2 + random.below(14);
    for node in 0..n_nodes {
        let is_last = node + 1 == n_nodes;
        let name = if is_last {
            "y".to_owned()
        } else {
            format!("n{node}")
        };
        let scope = b.named(&name);
        // Usually the last computed values.
        let pick = |of: &[Value<f32>], random: &mut Random| {
            of[of.len() - 1 - random.below(of.len()).min(random.below(of.len()))]
        };
        let (x, y) = (pick(&full, random), pick(&all, random));
        let row = || {
            Axes::new([if random_bool(node) {
                -1
            } else {
                i32::try_from(shape.len()).unwrap() - 1
            }])
            .keeping_dims()
        };
        let kind = random.below(if is_last { 6 } else { 14 });
        let value = match kind {
            0 => scope.add(x, y),
            1 => scope.sub(y, x),
            2 => scope.maximum(x, y),
            3 => scope.minimum(y, x),
            4 => scope.squared_difference(x, y),
            5 => scope.mul(x, y),
            6 => scope.neg(x),
            7 => scope.abs(x),
            8 => scope.relu(x),
            9 => scope.identity(x),
            10 => scope.reduce_mean(x, row()),
            11 => scope.reduce_max(x, row()),
            12 => scope.reduce_min(x, row()),
            _ => scope.reduce_sum(x, row()),
        };
        let value = value.unwrap();
        if kind < 10 {
            full.push(value);
        }
        all.push(value);
        names.push(name);
    }
    (b, feeds, names)
}

/// Both ways to specify the last axis.
fn random_bool(node: usize) -> bool {
    node.is_multiple_of(2)
}

#[test]
#[needs(Sycl)]
fn random_arithmetic_gives_the_same_bits_together() {
    let seed = seed();
    let ways = Ways::open();
    let (vectors, groups) = (&ways.vectors, &ways.groups);
    random_arithmetic(seed, vectors, false);
    random_arithmetic(seed, groups, true);
}

fn random_arithmetic(seed: u64, devices: &Arc<DeviceSet>, is_gpu: bool) {
    let mut random = Random::new(seed);
    let (mut n_fused, mut n_rows) = (0, 0);
    for graph in 0..N_GRAPHS {
        let (b, feeds, names) = random_graph(&mut random);
        let (session, recorder) = recorded(b, devices);
        let feeds: Vec<(&str, Tensor)> = feeds
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()))
            .collect();
        let what = format!("graph {graph} of seed {seed}");
        let found = session.run(&feeds, &["y"]);
        let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
        let fused = joined(&recorder);
        n_fused += fused.len();
        let graph = session.graph();
        let is_row = |name: &str| {
            let node = graph.nodes().find(|&node| graph.node_name(node) == name);
            matches!(graph.op(node.unwrap()), "Mean" | "Sum" | "Max" | "Min")
        };
        for nodes in &fused {
            let nodes = nodes.split_once(" computes ").unwrap().1;
            n_rows += usize::from(nodes.split(", ").any(is_row));
        }
        let fetches: Vec<&str> = names.iter().map(String::as_str).collect();
        let expected = session.run(&feeds, &fetches).unwrap();
        let expected = expected.last().unwrap();
        assert_eq!(found[0].shape(), expected.shape(), "{what}: {fused:?}");
        // Sums of long rows are divided differently, and a GPU adds short ones in another order;
        // and for some drivers, scalar division differs from vector division.
        let has_mean = graph.nodes().any(|node| graph.op(node) == "Mean");
        let has_sum = graph.nodes().any(|node| graph.op(node) == "Sum");
        let is_close = has_mean || has_sum && is_gpu;
        if is_close || expected.shape().dims().last() > Some(&1024) {
            assert_close(&found[0], expected, &format!("{what}: {fused:?}"));
        } else {
            assert_eq!(bits(&found[0]), bits(expected), "{what}: {fused:?}");
        }
    }
    assert!(n_fused > N_GRAPHS / 3 && n_rows > 1, "{n_fused} {n_rows}");
}

fn activation() -> Result<GraphBuilder, BuildError> {
    let b = GraphBuilder::new("activation");
    let x = b.placeholder::<f32>("x", [3, 40])?;
    let bias = b.placeholder::<f32>("bias", PartialShape::unknown())?;
    let sum = b.named("sum").bias_add(x, bias)?;
    let half = b.constant([], &[0.5f32])?;
    let halved = b.named("halved").mul(sum, half)?;
    let bent = b.named("bent").tanh(halved)?;
    b.named("y").mul(bent, sum)?;
    Ok(b)
}

#[test]
#[needs(Sycl)]
fn nodes_with_other_readers_feeds_or_kernels_are_not_fused() {
    static N_CALLS: AtomicU32 = AtomicU32::new(0);
    struct Own;
    impl Kernel for Own {
        fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
            N_CALLS.fetch_add(1, Ordering::Relaxed);
            let shape = context.input(0)?.shape().clone();
            context.forward_input(0, 0, &shape)
        }
    }
    let devices = open(&options(1));
    let feeds = [("x", values(&[3, 40], 1)), ("bias", values(&[40], 2))];
    let reference = {
        let (session, _) = recorded(activation().unwrap(), &devices);
        session
            .run(&feeds, &["y", "bent", "halved", "sum"])
            .unwrap()
    };
    for (fetches, expected) in [
        (&["y"][..], &["sum, halved, bent, y"][..]),
        (&["y", "sum"], &["halved, bent, y"]),
        (&["y", "bent"], &["halved, bent"]),
        (&["y", "halved"], &["bent, y"]),
    ] {
        let (session, recorder) = recorded(activation().unwrap(), &devices);
        let found = session.run(&feeds, fetches).unwrap();
        let expected = expected
            .iter()
            .map(|nodes| format!("_FusedElementwise computes {nodes}"));
        assert_eq!(
            joined(&recorder),
            expected.collect::<Vec<_>>(),
            "{fetches:?}"
        );
        assert_close(&found[0], &reference[0], "activation");
    }
    let (session, recorder) = recorded(activation().unwrap(), &devices);
    let mut fed = feeds.to_vec();
    fed.push(("halved:0", values(&[3, 40], 9)));
    session.run(&fed, &["y"]).unwrap();
    assert_eq!(
        joined(&recorder),
        ["_FusedElementwise computes sum, bent, y"]
    );

    let own = KernelDef::new("Tanh", "SYCL").with_priority(1);
    let own = own.with_factory(|_| Ok(Box::new(Own)));
    let (session, recorder) = recorded_with(activation().unwrap(), &devices, |builder| {
        builder.with_kernels([own])
    });
    session.run(&feeds, &["y"]).unwrap();
    assert_eq!(joined(&recorder), [""; 0]);
    assert_eq!(N_CALLS.load(Ordering::Relaxed), 1);
}

#[test]
#[needs(Sycl)]
fn incompatible_shapes_are_rejected_with_node_and_shapes() {
    let devices = open(&options(1));
    let (session, recorder) = recorded(activation().unwrap(), &devices);
    for shape in [&[39][..], &[1, 40], &[]] {
        let feeds = [("x", values(&[3, 40], 1)), ("bias", values(shape, 2))];
        let error = session.run(&feeds, &["y"]).unwrap_err().to_string();
        assert!(
            error.contains("`y` (_FusedElementwise)") && error.contains("[3,40]"),
            "{error}"
        );
    }
    session
        .run(
            &[("x", values(&[3, 40], 1)), ("bias", values(&[40], 2))],
            &["y"],
        )
        .unwrap();
    assert_eq!(joined(&recorder).len(), 1);
}

/// Ops of one operand.
fn unary_names() -> [&'static str; 32] {
    [
        "Floor",
        "Ceil",
        "Rint",
        "Exp",
        "Expm1",
        "Log",
        "Log1p",
        "Sqrt",
        "Rsqrt",
        "Reciprocal",
        "Sigmoid",
        "Tanh",
        "Erf",
        "Erfc",
        "Sin",
        "Cos",
        "Tan",
        "Asin",
        "Acos",
        "Atan",
        "Sinh",
        "Cosh",
        "Asinh",
        "Acosh",
        "Atanh",
        "Softplus",
        "Softsign",
        "Elu",
        "Selu",
        "Sign",
        "Relu6",
        "Square",
    ]
}

/// Functions of the driver, on vectors and on scalars.
#[test]
#[needs(Sycl)]
fn transcendental_functions_agree_with_those_of_the_nodes() -> Result<(), BuildError> {
    let devices = open(&options(1));
    let b = GraphBuilder::new("functions");
    let x = b.placeholder::<f32>("x", [5, 37])?;
    let names = unary_names();
    for op in names {
        // After another node, so that there is something to fuse.
        let twice = b.named(format!("{op}_twice")).add(x, x)?;
        b.op(op).name(format!("{op}_of")).input(twice).finish()?;
    }
    let of_two = ["RealDiv", "DivNoNan", "Pow", "Atan2", "TruncateMod"];
    let z = b.placeholder::<f32>("z", [5, 37])?;
    for op in of_two {
        let twice = b.named(format!("{op}_twice")).add(x, x)?;
        let of = b.op(op).name(format!("{op}_of")).input(twice).input(z);
        of.finish()?;
    }
    let (session, recorder) = recorded(b, &devices);
    let feeds = [("x", values(&[5, 37], 1)), ("z", values(&[5, 37], 4))];
    for op in names.into_iter().chain(of_two) {
        let of = format!("{op}_of");
        let alone = session.run(&feeds, &[&of, &format!("{op}_twice")]).unwrap();
        let found = session.run(&feeds, &[&of]).unwrap();
        assert_close(&found[0], &alone[0], op);
    }
    assert_eq!(joined(&recorder).len(), names.len() + of_two.len());
    Ok(())
}

#[test]
#[needs(Sycl)]
fn a_softmax_is_fused_with_its_input() {
    let ways = Ways::open();
    let (vectors, groups) = (&ways.vectors, &ways.groups);
    for (op, width, devices) in [
        ("Softmax", 35, vectors),
        ("LogSoftmax", 45, groups),
        ("Softmax", 64, groups),
        ("LogSoftmax", 37, vectors),
    ] {
        let b = GraphBuilder::new("attention");
        let scores = b.placeholder::<f32>("scores", [2, 3, 4, width]).unwrap();
        let mask = b.placeholder::<f32>("mask", [2, 1, 1, width]).unwrap();
        let factor = b.constant([], &[0.25f32]).unwrap();
        let scaled = b.named("scaled").mul(scores, factor).unwrap();
        let masked = b.named("masked").add(scaled, mask).unwrap();
        b.op(op).name("y").input(masked).finish().unwrap();
        let (session, recorder) = recorded(b, devices);
        let mut mask = vec![0.0; 2 * width];
        mask[0] = -1e9;
        mask[2 * width - 1] = f32::NEG_INFINITY;
        if width == 64 {
            mask[width..].fill(f32::NEG_INFINITY);
        }
        let scores = values(&[2, 3, 4, width], 1);
        let mut scores = scores.as_slice::<f32>().unwrap().to_vec();
        scores[3] = f32::NAN;
        let feeds = [
            (
                "scores",
                Tensor::from_values([2, 3, 4, width], &scores).unwrap(),
            ),
            (
                "mask",
                Tensor::from_values([2, 1, 1, width], &mask).unwrap(),
            ),
        ];
        let found = session.run(&feeds, &["y"]).unwrap();
        assert_eq!(
            joined(&recorder),
            ["_FusedElementwise computes scaled, masked, y"]
        );
        let expected = session.run(&feeds, &["y", "masked", "scaled"]).unwrap();
        assert_close(&found[0], &expected[0], op);
    }
}

/// Compiles every activation with NVRTC.
#[test]
#[needs(Sycl, Nvrtc)]
fn fused_functions_compile_for_a_gpu() {
    let ways = Ways::open();
    let devices = &ways.groups;
    let compile = |b: GraphBuilder, feeds: &[(&str, Tensor)]| {
        let (session, recorder) = recorded(b, devices);
        session.run(feeds, &["y"]).unwrap();
        joined(&recorder).len()
    };
    let mut n_fused = compile(layer_norm(None, 33).unwrap(), &norm_feeds(3, 33));
    let feeds = [("x", values(&[3, 40], 1)), ("bias", values(&[40], 2))];
    n_fused += compile(activation().unwrap(), &feeds);
    let names = unary_names().into_iter();
    for name in [None].into_iter().chain(names.map(Some)) {
        let feeds = [("x", values(&[5, 9], 1)), ("bias", values(&[7], 3))];
        n_fused += compile(dense([5, 9, 7], name, true), &feeds);
    }
    let mut random = Random::new(20_261_122);
    for _ in 0..N_GRAPHS / 2 {
        let (b, feeds, _) = random_graph(&mut random);
        let feeds: Vec<(&str, Tensor)> = feeds
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()))
            .collect();
        n_fused += compile(b, &feeds);
    }
    assert!(n_fused > unary_names().len() + 4, "{n_fused}");
}
