//! Graphs built in Rust: TensorFlow's models, compared node by node, and random ones, compared with
//! plain arithmetic.

use std::path::PathBuf;
use std::sync::Arc;

use placewright::builder::Axes;
use placewright::builder::BuildError;
use placewright::builder::Conv2d;
use placewright::builder::Float;
use placewright::builder::GraphBuilder;
use placewright::builder::MatMul;
use placewright::builder::Number;
use placewright::builder::Padding;
use placewright::builder::Pool2d;
use placewright::builder::Scope;
use placewright::builder::Value;
use placewright::builder::ValueType;
use placewright::candidates::Proposal;
use placewright::device::DeviceOptions;
use placewright::graph::AttrSet;
use placewright::graph::Graph;
use placewright::graph::NodeId;
use placewright::graph::TensorId;
use placewright::import::ImportOptions;
use placewright::import::import_graph;
use placewright::ops::OpRegistry;
use placewright::session::Session;
use placewright::tensor::DType;
use placewright::tensor::Literal;
use placewright::tensor::Tensor;
use proptest::prelude::*;

use crate::npz;

#[path = "../../host/examples/custom_op.rs"]
mod custom_op;

fn model(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/models")
        .join(file)
}

fn import(file: &str) -> Graph {
    let bytes = std::fs::read(model(file)).unwrap();
    import_graph(bytes, &OpRegistry::default(), &ImportOptions::default()).unwrap()
}

/// The weights of an imported model, by the names of their constants.
struct Weights<'a>(&'a Graph);

impl Weights<'_> {
    fn get(&self, name: &str) -> Literal {
        let node = self.0.find_node(name).unwrap();
        Literal::clone(self.0.attrs(node).tensor("value").unwrap())
    }
}

/// A dense layer with any element type.
fn dense<T: Number>(
    b: &Scope,
    x: Value<T>,
    (w, bias): (&str, &str),
    weights: &Weights<'_>,
) -> Result<Value<T>, BuildError> {
    // In the file, the matmul comes between weights and bias.
    let matmul = b.matmul(x, b.named(w).literal(weights.get(w))?)?;
    b.bias_add(matmul, b.named(bias).literal(weights.get(bias))?)
}

fn mlp(weights: &Weights<'_>) -> Result<Graph, BuildError> {
    let b = GraphBuilder::new("mlp");
    let x = b.placeholder::<f32>("x", [1, 784])?;
    let x = b.relu(dense(&b, x, ("w0", "b0"), weights)?)?;
    let x = b.relu(dense(&b, x, ("w1", "b1"), weights)?)?;
    let x = dense(&b, x, ("w2", "b2"), weights)?;
    b.named("probs").softmax(x)?;
    Ok(b.finish())
}

fn convolution<T: Float>(
    b: &Scope,
    x: Value<T>,
    padding: Padding,
    (filters, bias): (&str, &str),
    weights: &Weights<'_>,
) -> Result<Value<T>, BuildError> {
    let filters = b.literal(weights.get(filters))?;
    let x = b.conv2d(x, filters, Conv2d::new(padding))?;
    b.tanh(b.bias_add(x, b.literal(weights.get(bias))?)?)
}

fn lenet(weights: &Weights<'_>) -> Result<Graph, BuildError> {
    let b = GraphBuilder::new("lenet");
    let halved = Pool2d::new([2, 2], Padding::Valid);
    let x = b.placeholder::<f32>("x", [1, 28, 28, 1])?;
    let x = convolution(&b, x, Padding::Same, ("Const", "Const_1"), weights)?;
    let x = b.avg_pool(x, halved)?;
    let x = convolution(&b, x, Padding::Valid, ("Const_2", "Const_3"), weights)?;
    let x = b.reshape(b.max_pool(x, halved)?, [-1, 400])?;
    let x = b.tanh(dense(&b, x, ("Const_4", "Const_5"), weights)?)?;
    let x = b.tanh(dense(&b, x, ("Const_6", "Const_7"), weights)?)?;
    let x = dense(&b, x, ("Const_8", "Const_9"), weights)?;
    b.named("probs").softmax(x)?;
    Ok(b.finish())
}

/// Returns everything that stages after the importer read from a node, except the values of
/// constants.
fn describe(graph: &Graph, node: NodeId) -> (String, Vec<(String, String)>, f64, [u64; 3]) {
    let inputs = graph.data_inputs(node).map(|id| graph.tensor_name(id));
    let outputs = graph.output_range(node).map(|id| {
        let shape = graph.tensor_shape(TensorId(u32::try_from(id).unwrap()));
        format!("{} {shape}", graph.tensor_dtypes()[id])
    });
    let attrs: &AttrSet = graph.attrs(node);
    let attrs = attrs.iter().filter(|(name, _)| *name != "value");
    (
        format!(
            "{} {} {:?} {:?} {:?}",
            graph.node_name(node),
            graph.op(node),
            inputs.collect::<Vec<_>>(),
            outputs.collect::<Vec<_>>(),
            graph.requested(node),
        ),
        attrs
            .map(|(name, value)| (name.to_owned(), format!("{value:?}")))
            .collect(),
        graph.flops()[node.index()],
        [
            graph.traffic_bytes()[node.index()],
            graph.resident_bytes()[node.index()],
            graph.workspace_bytes()[node.index()],
        ],
    )
}

fn run(graph: Graph, x: &Tensor) -> Tensor {
    let session = Session::builder().with_graph(graph).build().unwrap();
    session
        .run(&[("x", x.clone())], &["probs"])
        .unwrap()
        .remove(0)
}

#[test]
fn a_model_built_in_rust_is_the_graph_that_tensorflow_wrote() {
    type Build = fn(&Weights<'_>) -> Result<Graph, BuildError>;
    let models: [(&str, Build); 2] = [("mlp", mlp), ("lenet", lenet)];
    for (name, build) in models {
        let imported = import(&format!("{name}.skel.pb"));
        let built = build(&Weights(&imported)).unwrap();
        assert_eq!(built.n_nodes(), imported.n_nodes(), "{name}");
        for node in imported.nodes() {
            assert_eq!(describe(&built, node), describe(&imported, node), "{name}");
        }
        let arrays = npz::read(&model(&format!("{name}.npz")));
        let x = &arrays["in/x"];
        let (built, imported) = (run(built, x), run(imported, x));
        assert_eq!(
            built.as_bytes().unwrap(),
            imported.as_bytes().unwrap(),
            "{name}"
        );
        let expected = arrays["out/probs:0"].as_slice::<f32>().unwrap();
        let found = built.as_slice::<f32>().unwrap();
        assert_eq!(found.len(), expected.len(), "{name}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (found - expected).abs() <= 1e-5,
                "{name}: {found}, expected {expected}"
            );
        }
    }
}

#[test]
fn the_example_runs_its_op_in_graphs_of_both_kinds_on_two_devices() {
    let outcomes = custom_op::run().unwrap();
    let expected: [&[f32]; 2] = [
        // The second row has averages of 3 samples: 2, 1, 2, 1 ..
        &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0],
        // Averages of 4 samples.
        &[2.5, 3.5, 4.5, 5.5, 6.5, 1.5, 1.5, 1.5, 1.5, 1.5],
    ];
    assert_eq!(outcomes.len(), expected.len());
    for (outcome, expected) in outcomes.iter().zip(expected) {
        assert_eq!(
            outcome.y.as_slice::<f32>().unwrap(),
            expected,
            "{}",
            outcome.graph
        );
        let is_there = |op: &str, device: &str| {
            let mut placed = outcome.placed.iter();
            placed.any(|(_, o, d)| o.contains(op) && d.ends_with(device))
        };
        assert!(is_there("MovingAverage", ""), "{}", outcome.graph);
        for device in ["CPU:0", "CPU:1"] {
            assert!(
                is_there("", device),
                "{}: nothing on {device}",
                outcome.graph
            );
        }
        assert!(outcome.n_transfers > 0, "{}", outcome.graph);
    }
}

/// The rows of a test: the built values and their elements, as `f64`.
struct Rows<'a> {
    b: &'a Scope,
    rows: Vec<(String, Vec<f64>)>,
}

impl Rows<'_> {
    #[track_caller]
    fn add<T: ValueType>(&mut self, value: Result<Value<T>, BuildError>, expected: &[f64]) {
        let value = self.b.op("Cast").input(value.unwrap().erase());
        let value = value.attr("DstT", DType::F64).name("row").value::<f64>();
        let name = self.b.tensor_name(value.unwrap()).unwrap();
        self.rows.push((name, expected.to_vec()));
    }
}

#[test]
#[rustfmt::skip]
fn each_method_computes_its_op() {
    let builder = GraphBuilder::new("methods");
    let b: &Scope = &builder;
    let x = b.placeholder::<f32>("x", [3]).unwrap();
    let y = b.constant([3], &[2f32, 2.0, -1.0]).unwrap();
    let m = b.reshape(b.concat([x, y], 0).unwrap(), [2, 3]).unwrap();
    let n = b.constant([3], &[7i32, -7, 9]).unwrap();
    let t = b.less(x, y).unwrap();
    let mut rows = Rows { b, rows: Vec::new() };
    let mut row = |value: Result<Value<f32>, BuildError>, expected: &[f64]| rows.add(value, expected);
    let f = |operation: fn(f64) -> f64| [1.0, 4.0, 0.25].map(operation);
    let p = b.constant([3], &[1f32, 4.0, 0.25]).unwrap();

    // x = [1, -2, 3], y = [2, 2, -1], m = [[1, -2, 3], [2, 2, -1]], p = [1, 4, 0.25]
    row(b.add(x, y), &[3.0, 0.0, 2.0]);
    row(b.sub(x, y), &[-1.0, -4.0, 4.0]);
    row(b.mul(x, y), &[2.0, -4.0, -3.0]);
    row(b.div(x, y), &[0.5, -1.0, -3.0]);
    row(b.maximum(x, y), &[2.0, 2.0, 3.0]);
    row(b.minimum(x, y), &[1.0, -2.0, -1.0]);
    row(b.pow(x, 2.0), &[1.0, 4.0, 9.0]);
    row(b.add_n([x, y, y]), &[5.0, 2.0, 1.0]);
    row(b.squared_difference(x, y), &[1.0, 16.0, 16.0]);
    row(b.neg(x), &[-1.0, 2.0, -3.0]);
    row(b.abs(x), &[1.0, 2.0, 3.0]);
    row(b.square(x), &[1.0, 4.0, 9.0]);
    row(b.relu(x), &[1.0, 0.0, 3.0]);
    row(b.exp(p), &f(f64::exp));
    row(b.log(p), &f(f64::ln));
    row(b.sqrt(p), &f(f64::sqrt));
    row(b.rsqrt(p), &f(|p| 1.0 / p.sqrt()));
    row(b.tanh(p), &f(f64::tanh));
    row(b.sigmoid(p), &f(|p| 1.0 / (1.0 + (-p).exp())));
    // Abramowitz and Stegun, table 7.1.
    row(b.erf(b.constant([2], &[0.5f32, 1.0]).unwrap()), &[0.520_499_877_8, 0.842_700_792_9]);
    row(b.softmax(b.log(p).unwrap()), &[4.0 / 21.0, 16.0 / 21.0, 1.0 / 21.0]);
    row(b.reduce_sum(m, 1), &[2.0, 3.0]);
    row(b.reduce_mean(m, [0]), &[1.5, 0.0, 1.0]);
    row(b.reduce_max(m, Axes::new([0, 1]).keeping_dims()), &[3.0]);
    row(b.reduce_min(m, [-1]), &[-2.0, -1.0]);
    row(b.reduce_prod(m, [1]), &[-6.0, -4.0]);
    row(b.matmul_with(m, m, MatMul::default().with_transpose_b()), &[14.0, -5.0, -5.0, 9.0]);
    row(b.matmul_with(m, m, MatMul::default().with_transpose_a()), &[5.0, 2.0, 1.0, 2.0, 8.0, -8.0, 1.0, -8.0, 10.0]);
    row(b.matmul(m, b.reshape(y, [3, 1]).unwrap()), &[-5.0, 9.0]);
    row(b.batch_matmul(b.reshape(m, [1, 2, 3]).unwrap(), b.reshape(y, [3, 1]).unwrap()), &[-5.0, 9.0]);
    row(b.bias_add(m, y), &[3.0, 0.0, 2.0, 4.0, 4.0, -2.0]);
    row(b.select(t, x, y), &[1.0, -2.0, -1.0]);
    row(b.identity(x), &[1.0, -2.0, 3.0]);
    row(b.transpose(m, [1, 0]), &[1.0, 2.0, -2.0, 2.0, 3.0, -1.0]);
    row(b.split(m, 3, 1).map(|parts| parts[1]), &[-2.0, 2.0]);
    row(b.stack([x, y], 1), &[1.0, 2.0, -2.0, 2.0, 3.0, -1.0]);
    row(b.squeeze(b.expand_dims(x, 0).unwrap(), &[0]), &[1.0, -2.0, 3.0]);
    row(b.slice(m, [0, 1], [2, 1]), &[-2.0, 2.0]);
    row(b.gather(m, [2, 0], 1), &[3.0, 1.0, -1.0, 2.0]);
    let paddings = b.constant([1, 2], &[1, 2]).unwrap();
    row(b.pad(x, paddings), &[0.0, 1.0, -2.0, 3.0, 0.0, 0.0]);
    let image = b.reshape(m, [1, 2, 3, 1]).unwrap();
    row(b.max_pool(image, Pool2d::new([2, 2], Padding::Valid).with_strides([1, 1])), &[2.0, 3.0]);
    row(b.avg_pool(image, Pool2d::new([2, 2], Padding::Valid)), &[0.75]);
    let filter = b.constant([1, 2, 1, 1], &[1f32, 10.0]).unwrap();
    let dilated = Conv2d::new(Padding::Valid).with_dilations([1, 2]);
    row(b.conv2d(image, filter, dilated), &[31.0, -8.0]);
    row(b.conv2d(image, filter, Conv2d::new(Padding::Valid).with_strides([2, 1])), &[-19.0, 28.0]);
    row(b.cast(b.not_equal(x, 1.0).unwrap()), &[0.0, 1.0, 1.0]);

    rows.add(b.floor_div(n, 2), &[3.0, -4.0, 4.0]);
    rows.add(b.cast::<i32>(b.mul(x, 1.5).unwrap()), &[1.0, -3.0, 4.0]);
    rows.add(b.arg_max(m, 1), &[2.0, 0.0]);
    rows.add(b.shape_of(m), &[2.0, 3.0]);
    rows.add(b.less_equal(x, 1.0), &[1.0, 1.0, 0.0]);
    rows.add(b.greater(x, y), &[0.0, 0.0, 1.0]);
    rows.add(b.greater_equal(x, 1.0), &[1.0, 0.0, 1.0]);
    rows.add(b.equal(n, 9), &[0.0, 0.0, 1.0]);
    rows.add(b.logical_and(t, [true, false, true]), &[1.0, 0.0, 0.0]);
    rows.add(b.logical_or(t, [true, false, true]), &[1.0, 1.0, 1.0]);
    rows.add(b.logical_not(t), &[0.0, 0.0, 1.0]);

    let rows = rows.rows;
    let session = Session::builder().with_graph(builder.finish()).build().unwrap();
    let x = Tensor::from_values([3], &[1f32, -2.0, 3.0]).unwrap();
    let names: Vec<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
    for (found, (name, expected)) in session.run(&[("x", x)], &names).unwrap().iter().zip(&rows) {
        let found = found.as_slice::<f64>().unwrap();
        assert_eq!(found.len(), expected.len(), "{name}");
        for (a, b) in found.iter().zip(expected) {
            // Results are `f32`; functions are within a few ulps.
            assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{name}: {found:?}, expected {expected:?}");
        }
    }
}

/// Shapes that all broadcast to each other.
const SHAPES: [[usize; 2]; 4] = [[2, 3], [1, 3], [2, 1], [1, 1]];

/// A tensor for plain arithmetic.
#[derive(Debug, Clone)]
struct Plain {
    shape: [usize; 2],
    values: Vec<i32>,
}

impl Plain {
    fn at(&self, [row, column]: [usize; 2]) -> i32 {
        let [rows, columns] = self.shape;
        self.values[(row % rows) * columns + column % columns]
    }

    fn combine(&self, other: &Self, operation: impl Fn(i32, i32) -> i32) -> Self {
        let shape = [0, 1].map(|axis| self.shape[axis].max(other.shape[axis]));
        let [rows, columns] = shape;
        let indices = (0..rows).flat_map(|row| (0..columns).map(move |column| [row, column]));
        let values = indices.map(|index| operation(self.at(index), other.at(index)));
        Self {
            shape,
            values: values.collect(),
        }
    }
}

fn step(
    b: &Scope,
    kind: u8,
    (x, plain_x): &(Value<i32>, Plain),
    (y, plain_y): &(Value<i32>, Plain),
) -> Result<(Value<i32>, Plain), BuildError> {
    let (x, y) = (*x, *y);
    let plain = |operation: fn(i32, i32) -> i32| plain_x.combine(plain_y, operation);
    Ok(match kind {
        0 => (b.add(x, y)?, plain(i32::wrapping_add)),
        1 => (b.sub(x, y)?, plain(i32::wrapping_sub)),
        2 => (b.mul(x, y)?, plain(i32::wrapping_mul)),
        3 => (b.maximum(x, y)?, plain(i32::max)),
        4 => (b.minimum(x, y)?, plain(i32::min)),
        5 => (
            b.add(x, 17)?,
            plain_x.combine(plain_x, |x, _| x.wrapping_add(17)),
        ),
        6 => (b.neg(x)?, plain_x.combine(plain_x, |x, _| x.wrapping_neg())),
        _ => {
            let chosen = b.select(b.less(x, y)?, x, y)?;
            (chosen, plain(|x, y| if x < y { x } else { y }))
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_graphs_agree_with_plain_arithmetic(
        fed in prop::collection::vec((0..SHAPES.len(), prop::array::uniform6(any::<i32>())), 1..4),
        steps in prop::collection::vec(
            (0..8u8, any::<prop::sample::Index>(), any::<prop::sample::Index>()),
            1..12,
        ),
    ) {
        let b = GraphBuilder::new("random");
        let mut values: Vec<(Value<i32>, Plain)> = Vec::new();
        let mut feeds = Vec::new();
        for (shape, elements) in fed {
            let shape = SHAPES[shape];
            let plain = Plain { shape, values: elements[..shape[0] * shape[1]].to_vec() };
            let x = b.placeholder::<i32>("x", shape).unwrap();
            feeds.push((b.name(x).unwrap(), Tensor::from_values(shape, &plain.values).unwrap()));
            values.push((x, plain));
        }
        for (kind, x, y) in steps {
            let (x, y) = (x.index(values.len()), y.index(values.len()));
            let made = step(&b, kind, &values[x], &values[y]).unwrap();
            prop_assert_eq!(b.shape(made.0).unwrap(), made.1.shape.into());
            values.push(made);
        }
        let names: Vec<String> = values.iter().map(|(v, _)| b.tensor_name(*v).unwrap()).collect();
        let graph = Arc::new(b.finish());
        let mut devices = DeviceOptions::default();
        devices.device_count.insert("CPU".to_owned(), 2);
        let session = Session::builder()
            .with_graph(Arc::clone(&graph))
            .with_device_options(devices)
            .with_proposal(Proposal {
                devices: (0..2).cycle().take(graph.n_nodes()).collect(),
                ..Proposal::default()
            })
            .build()
            .unwrap();
        let feeds: Vec<(&str, Tensor)> = feeds.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for (found, (_, plain)) in session.run(&feeds, &names).unwrap().iter().zip(&values) {
            prop_assert_eq!(found.shape().dims(), plain.shape);
            prop_assert_eq!(found.as_slice::<i32>().unwrap(), plain.values.as_slice());
        }
    }
}
