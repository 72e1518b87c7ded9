//! An app's own op: a signature with shape and work functions, and a CPU kernel. It runs in a graph
//! built in Rust and in one imported from a GraphDef, each placed on two CPU devices by a policy.
//!
//! ```console
//! $ cargo run --example custom_op
//! ```

use std::error::Error;
use std::sync::Arc;

use placewright::builder::BuildError;
use placewright::builder::GraphBuilder;
use placewright::device::DeviceOptions;
use placewright::device::Kernel;
use placewright::device::KernelConstruction;
use placewright::device::KernelContext;
use placewright::device::KernelDef;
use placewright::device::KernelError;
use placewright::graph::Graph;
use placewright::graph::Work;
use placewright::ops::InferenceContext;
use placewright::ops::OpDef;
use placewright::ops::OpDefError;
use placewright::ops::OpRegistry;
use placewright::ops::ShapeError;
use placewright::policy::PolicyRequest;
use placewright::policy::ShippedPolicy;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;

#[allow(dead_code, reason = "the tests include this file and call `run`")]
#[expect(clippy::print_stdout, reason = "an example shows what it does")]
fn main() -> Result<(), Box<dyn Error>> {
    for outcome in run()? {
        println!("{}", outcome.graph);
        for (node, op, device) in &outcome.placed {
            println!("  {node:<15} {op:<15} {device}");
        }
        println!("  {} tensors cross devices", outcome.n_transfers);
        println!("  y = {:?}\n", outcome.y.as_slice::<f32>()?);
    }
    Ok(())
}

/// The outcome of one graph.
pub(crate) struct Outcome {
    /// Name of the graph.
    pub(crate) graph: String,
    /// Node, op and device of every node.
    pub(crate) placed: Vec<(String, String, String)>,
    /// Number of tensors transferred between devices in a run.
    pub(crate) n_transfers: usize,
    /// `y`, for the signals below.
    pub(crate) y: Tensor,
}

/// Two signals of eight samples, one per row.
#[rustfmt::skip]
const SIGNALS: [f32; 16] = [
    1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0,
    0.0, 3.0, 0.0, 3.0, 0.0, 3.0, 0.0, 3.0,
];

/// Runs both graphs.
pub(crate) fn run() -> Result<Vec<Outcome>, Box<dyn Error>> {
    let ops = Arc::new(registry()?);
    let built = build(&ops)?;
    Ok(vec![
        outcome("built in Rust", session(&ops)?.with_graph(built))?,
        outcome("imported", session(&ops)?.with_graph_def(graph_def()))?,
    ])
}

/// The built-in ops, and `MovingAverage`: `[.., n] -> [.., n - window + 1]`, the means of all
/// windows along the last axis.
fn registry() -> Result<OpRegistry, OpDefError> {
    let op = OpDef::new(
        "MovingAverage",
        &["signal: T"],
        &["averages: T"],
        &["T: {float, double}", "window: int >= 1 = 3"],
    )?
    .with_shape(averaged)
    // One addition per element of each window, and one division.
    .with_work(|context, outputs| Work {
        flops: outputs[0].shape.to_shape().map_or(0.0, |shape| {
            let window = context.int("window").unwrap_or(0);
            (shape.n_elements() as f64) * (window as f64)
        }),
        ..context.traffic_only(outputs)
    });
    let mut ops = OpRegistry::default();
    ops.register(op)?;
    Ok(ops)
}

/// Returns what is known of the output's shape; unknown sizes stay open.
fn averaged(context: &InferenceContext<'_>) -> Result<Vec<PartialShape>, ShapeError> {
    let window = usize::try_from(context.int("window")?).unwrap_or(usize::MAX);
    let Some(dims) = context.dims_of_rank_at_least(0, 1)? else {
        return Ok(vec![PartialShape::unknown()]);
    };
    let mut dims = dims.to_vec();
    if let Some(Some(n)) = dims.last_mut() {
        *n = n_windows(*n, window).ok_or_else(|| {
            ShapeError::new(format!("a window of {window} does not fit {n} samples"))
        })?;
    }
    Ok(vec![PartialShape::new(&dims)])
}

fn n_windows(n_samples: usize, window: usize) -> Option<usize> {
    (n_samples + 1).checked_sub(window).filter(|&n| n > 0)
}

/// The kernel of the op on CPU devices, for 32-bit floats.
fn kernel() -> KernelDef {
    KernelDef::new("MovingAverage", "CPU")
        .with_types("T", &[DType::F32])
        .with_factory(|node| Ok(Box::new(MovingAverage::new(node)?)))
}

struct MovingAverage {
    window: usize,
}

impl MovingAverage {
    fn new(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        let window = node.attrs.int("window");
        let window = window.and_then(|window| usize::try_from(window).ok());
        let window = window.filter(|&window| window > 0);
        let window =
            window.ok_or_else(|| KernelError::invalid("attribute `window` must be positive"))?;
        Ok(Self { window })
    }
}

impl Kernel for MovingAverage {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let signal = context.input(0)?;
        let window = self.window;
        let too_short =
            || KernelError::invalid(format!("no window of {window} in shape {}", signal.shape()));
        let (&n, rest) = signal.shape().dims().split_last().ok_or_else(too_short)?;
        let n_out = n_windows(n, window).ok_or_else(too_short)?;
        let shape: Shape = rest.iter().copied().chain([n_out]).collect();
        let samples = signal.as_slice::<f32>()?;
        context.fill_output(0, &shape, |averages: &mut [f32]| {
            for (row, averages) in samples.chunks(n).zip(averages.chunks_mut(n_out)) {
                for (samples, average) in row.windows(window).zip(averages) {
                    *average = samples.iter().sum::<f32>() / window as f32;
                }
            }
            Ok(())
        })
    }
}

/// `y`: the distance of the samples from the average around them.
fn build(ops: &Arc<OpRegistry>) -> Result<Graph, BuildError> {
    let b = GraphBuilder::with_ops("deviation", Arc::clone(ops));
    let x = b.placeholder::<f32>("x", [2, 8])?;
    let averages = b.op("MovingAverage").input(x).value::<f32>()?;
    let inner = b.slice(x, [0, 1], [2, 6])?;
    b.named("y").abs(b.sub(inner, averages)?)?;
    Ok(b.finish())
}

/// Two CPU devices, the kernel, and a policy that distributes nodes round-robin. With
/// `with_strict`, no other policy takes over.
fn session(ops: &Arc<OpRegistry>) -> Result<SessionBuilder, Box<dyn Error>> {
    let mut devices = DeviceOptions::default();
    devices.device_count.insert("CPU".to_owned(), 2);
    // The same devices on every machine.
    devices.device_count.insert("SYCL".to_owned(), 0);
    devices.device_count.insert("GPU".to_owned(), 0);
    let policy = ShippedPolicy::find("round-robin")?;
    Ok(Session::builder()
        .with_ops(Arc::clone(ops))
        .with_kernels([kernel()])
        .with_device_options(devices)
        .with_policy(PolicyRequest::new(policy).with_strict(true)))
}

fn outcome(graph: &str, session: SessionBuilder) -> Result<Outcome, Box<dyn Error>> {
    let session = session.build()?;
    let plan = session.plan(&["x"], &["y"], &[])?;
    let x = Tensor::from_values([2, 8], &SIGNALS)?;
    let mut fetched = session.run(&[("x", x)], &["y"])?;
    let device_names: Vec<String> = session
        .devices()
        .iter()
        .map(|(_, device)| device.attributes().name.to_string())
        .collect();
    let nodes = session.graph();
    let placed = nodes.nodes().map(|node| {
        let device = session.placement().device(node);
        (
            nodes.node_name(node).to_owned(),
            nodes.op(node).to_owned(),
            device_names[device.index()].clone(),
        )
    });
    // Without signals of control edges, which carry no tensor.
    let n_transfers = plan.run_transfers().filter(|it| it.sent.is_some());
    Ok(Outcome {
        graph: graph.to_owned(),
        placed: placed.collect(),
        n_transfers: n_transfers.count(),
        y: fetched.remove(0),
    })
}

/// `y = |MovingAverage(x, window = 4)|`, as TensorFlow writes a graph with an op from a loaded
/// library. Written by hand: a GraphDef consists of nodes (field 1) and versions (field 4).
fn graph_def() -> Vec<u8> {
    let shape = [dim(2), dim(8)].concat();
    let x = [
        field(1, b"x"),
        field(2, b"Placeholder"),
        attr("dtype", &varint(6, DT_FLOAT)),
        attr("shape", &field(7, &shape)),
    ];
    let averages = [
        field(1, b"averages"),
        field(2, b"MovingAverage"),
        field(3, b"x"),
        attr("T", &varint(6, DT_FLOAT)),
        attr("window", &varint(3, 4)),
    ];
    let y = [
        field(1, b"y"),
        field(2, b"Abs"),
        field(3, b"averages"),
        attr("T", &varint(6, DT_FLOAT)),
    ];
    [
        field(1, &x.concat()),
        field(1, &averages.concat()),
        field(1, &y.concat()),
        field(4, &varint(1, 100)),
    ]
    .concat()
}

/// TensorFlow's number of the type.
const DT_FLOAT: u8 = 1;

/// An attribute of a node: an entry of a map (field 5), with key and value. The field in the value
/// shows its kind: 3 = int, 6 = type, 7 = shape.
fn attr(key: &str, value: &[u8]) -> Vec<u8> {
    field(5, &[field(1, key.as_bytes()), field(2, value)].concat())
}

/// A dimension of a shape.
fn dim(size: u8) -> Vec<u8> {
    field(2, &varint(1, size))
}

/// A protobuf field of bytes: a string, or a message.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).expect("messages here are short");
    assert!(length < 128, "lengths here take one byte");
    [&[number << 3 | 2, length], bytes].concat()
}

/// A protobuf field of a number below 128.
fn varint(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}
