//! The passes of the optimizer, and sessions whose graph they have changed.

use std::sync::Arc;

use placewright::builder::Axes;
use placewright::builder::Conv2d;
use placewright::builder::Dynamic;
use placewright::builder::GraphBuilder;
use placewright::builder::MatMul;
use placewright::builder::Padding;
use placewright::builder::Value;
use placewright::graph::AttrValue;
use placewright::graph::Graph;
use placewright::optimize::Pass;
use placewright::placement::SavedPlacement;
use placewright::session::PlacedBy;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::tensor::Boolean;
use placewright::tensor::DType;
use placewright::tensor::Literal;
use placewright::tensor::LiteralData;
use placewright::tensor::PartialShape;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;

use crate::sample::cpus;

/// Channels of the network.
const N: usize = 5;

fn numbers(n: usize, seed: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 37 + seed * 11) % 19) as f32 / 8.0 - 1.0;
    (0..n).map(number).collect()
}

/// A convolution, a sum, a product and a sum with constants, and an activation; another node reads
/// the filter. A variable counts.
fn network() -> Arc<Graph> {
    let b = GraphBuilder::new("network");
    let x = b.placeholder::<f32>("x", [2, 6, 6, 3]).unwrap();
    let filter = b
        .named("filter")
        .constant([3, 3, 3, N], &numbers(27 * N, 1))
        .unwrap();
    let of_channel = |name: &str, seed| b.named(name).constant([N], &numbers(N, seed)).unwrap();
    let (bias, scale, shift) = (
        of_channel("bias", 2),
        of_channel("scale", 3),
        of_channel("shift", 4),
    );
    let conv = b
        .named("conv")
        .conv2d(x, filter, Conv2d::new(Padding::Same))
        .unwrap();
    let biased = b.named("biased").bias_add(conv, bias).unwrap();
    let scaled = b.named("scaled").mul(biased, scale).unwrap();
    let shifted = b.named("shifted").add(scaled, shift).unwrap();
    b.named("y").relu(shifted).unwrap();
    b.named("of_filter").neg(filter).unwrap();
    let sum = b.named("sum").add(bias, shift).unwrap();
    let twice = b.named("twice").mul(sum, scale).unwrap();
    b.named("z").sub(shifted, twice).unwrap();
    let shape = AttrValue::Shape(PartialShape::scalar());
    let handle = b.op("VarHandleOp").name("v");
    let handle = handle.attr("dtype", DType::F32).attr("shape", shape);
    let handle = handle.value::<Dynamic>().unwrap();
    let one = b.named("one").constant([], &[1f32]).unwrap();
    b.op("AssignVariableOp")
        .name("init")
        .input(handle)
        .input(one)
        .finish()
        .unwrap();
    let add = b
        .op("AssignAddVariableOp")
        .name("count")
        .input(handle)
        .input(one);
    add.finish().unwrap();
    let read = b
        .op("ReadVariableOp")
        .name("read")
        .attr("dtype", DType::F32)
        .input(handle);
    read.finish().unwrap();
    Arc::new(b.finish())
}

fn builder(graph: &Arc<Graph>, n_cpus: u32) -> SessionBuilder {
    Session::builder()
        .with_graph(Arc::clone(graph))
        .with_device_options(cpus(n_cpus))
}

fn x() -> (&'static str, Tensor) {
    (
        "x",
        Tensor::from_values([2, 6, 6, 3], &numbers(216, 5)).unwrap(),
    )
}

#[track_caller]
fn assert_close(found: &[Tensor], expected: &[Tensor]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.shape(), expected.shape());
        let (found, expected) = (
            found.as_slice::<f32>().unwrap(),
            expected.as_slice::<f32>().unwrap(),
        );
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (found - expected).abs() <= 1e-5 * expected.abs().max(1.0),
                "{found} {expected}"
            );
        }
    }
}

/// Runs both the given graph and the optimized one, and compares the results.
#[track_caller]
fn compare(optimized: &Session, given: &Session, feeds: &[(&str, Tensor)], fetches: &[&str]) {
    let found = optimized.run(feeds, fetches).unwrap();
    assert_close(&found, &given.run(feeds, fetches).unwrap());
}

fn ops(graph: &Graph) -> Vec<&str> {
    graph.nodes().map(|node| graph.op(node)).collect()
}

#[test]
fn what_scales_and_shifts_channels_becomes_weights_and_a_bias() {
    let graph = network();
    let optimized = builder(&graph, 1).build().unwrap();
    let given = builder(&graph, 1).with_passes([]).build().unwrap();
    assert!(Arc::ptr_eq(&given.graph(), &graph) && given.passes().is_empty());
    assert!(Arc::ptr_eq(&optimized.given_graph(), &graph));
    let passes: Vec<Pass> = optimized.passes().iter().map(|it| it.pass).collect();
    assert_eq!(passes, [Pass::FoldConstants, Pass::FoldBatchNorms]);
    let small = optimized.graph();
    assert!(!ops(&small).contains(&"Mul"));
    assert_eq!(small.op(small.find_node("shifted").unwrap()), "BiasAdd");
    assert_eq!(small.op(small.find_node("twice").unwrap()), "Const");
    for gone in ["conv", "biased", "scaled", "sum", "scale"] {
        assert!(small.find_node(gone).is_none(), "{gone}");
    }
    compare(
        &optimized,
        &given,
        &[x()],
        &["y", "z", "shifted", "of_filter"],
    );
    assert!(
        !Arc::ptr_eq(&optimized.graph(), &graph),
        "it has run the small graph"
    );
}

#[test]
fn removed_tensors_can_be_fetched_and_variables_keep_their_values() {
    let graph = network();
    let optimized = builder(&graph, 2).build().unwrap();
    let given = builder(&graph, 2).with_passes([]).build().unwrap();
    optimized
        .run_with(&[], &[], &["init"], &Default::default())
        .unwrap();
    optimized
        .run_with(&[], &[], &["count"], &Default::default())
        .unwrap();
    let callable = optimized.callable(&["x"], &["y"]).unwrap();
    compare(&optimized, &given, &[x()], &["scaled", "y"]);
    assert!(Arc::ptr_eq(&optimized.graph(), &graph));
    let read = optimized.run(&[], &["read"]).unwrap();
    assert_eq!(read[0].as_slice::<f32>().unwrap(), [2.0]);
    // It has the graph that it was made from.
    assert_close(
        &callable.call(&[x().1]).unwrap(),
        &given.run(&[x()], &["y"]).unwrap(),
    );
    let wrong = optimized.run(&[x()], &["nothing"]).unwrap_err();
    assert!(wrong.to_string().contains("`nothing`"), "{wrong}");
}

#[test]
fn saved_placements_fit_the_graph_that_they_were_made_for() {
    let graph = network();
    let optimized = builder(&graph, 2).build().unwrap();
    let given = builder(&graph, 2).with_passes([]).build().unwrap();
    assert!(optimized.graph().n_nodes() < given.graph().n_nodes());
    for session in [&optimized, &given] {
        let placement = session.placement();
        let last = placement.candidates().device_set().len() as u32 - 1;
        let mut saved = SavedPlacement::new(&placement, "mine", 0, []);
        let device = placement.candidates().device_name(last).to_owned();
        saved.devices.insert("y".into(), device);
        let again = builder(&graph, 2)
            .with_saved_placement(saved.clone())
            .build()
            .unwrap();
        assert_eq!(again.graph().n_nodes(), session.graph().n_nodes());
        assert!(matches!(again.report().placed_by, PlacedBy::Saved));
        compare(&again, &given, &[x()], &["y", "z"]);
        // A tensor that the passes have removed: its node is placed by a policy, the others stay.
        compare(&again, &given, &[x()], &["scaled", "y"]);
        assert_eq!(again.graph().n_nodes(), given.graph().n_nodes());
        let y = again.graph().find_node("y").unwrap();
        assert_eq!(again.placement().device(y).0, last);
    }
}

#[test]
fn a_fed_constant_reaches_all_of_its_readers() {
    let graph = network();
    let given = builder(&graph, 1).with_passes([]).build().unwrap();
    for (name, dims) in [
        ("filter", vec![3, 3, 3, N]),
        ("shift", vec![N]),
        ("sum", vec![N]),
        ("twice", vec![N]),
    ] {
        let optimized = builder(&graph, 1).build().unwrap();
        let n = dims.iter().product();
        let value = Tensor::from_values(Shape::new(&dims), &numbers(n, 9)).unwrap();
        compare(
            &optimized,
            &given,
            &[x(), (name, value)],
            &["y", "z", "of_filter"],
        );
    }
}

#[test]
fn pinned_nodes_remain() {
    let graph = network();
    let given = builder(&graph, 2).with_passes([]).build().unwrap();
    let optimized = builder(&graph, 2)
        .with_pin("scaled", "CPU:1")
        .with_pin("sum", "CPU:1")
        .build()
        .unwrap();
    let small = optimized.graph();
    for name in ["scaled", "sum"] {
        let node = small.find_node(name).unwrap();
        let device = optimized
            .devices()
            .get(optimized.placement().device(node))
            .unwrap()
            .attributes()
            .name
            .clone();
        assert!(device.ends_with("CPU:1"), "{name} {device}");
    }
    compare(&optimized, &given, &[x()], &["y", "z", "scaled"]);
}

#[test]
fn optimized_sessions_grow_and_get_other_devices() {
    let graph = network();
    let given = builder(&graph, 2).with_passes([]).build().unwrap();
    let optimized = builder(&graph, 2)
        .with_pin("scaled", "CPU:1")
        .build()
        .unwrap();
    optimized
        .run_with(&[], &[], &["init"], &Default::default())
        .unwrap();
    let small = optimized.graph();
    optimized
        .replace_devices(Arc::clone(&optimized.devices()))
        .unwrap();
    assert_eq!(optimized.graph().n_nodes(), small.n_nodes());
    compare(&optimized, &given, &[x()], &["y", "z"]);
    // The same graph is one that has not shrunk.
    optimized.extend(Arc::clone(&graph)).unwrap();
    compare(&optimized, &given, &[x()], &["y", "z", "biased"]);
    let read = optimized.run(&[], &["read"]).unwrap();
    assert_eq!(read[0].as_slice::<f32>().unwrap(), [1.0]);
}

#[test]
fn products_are_folded_unless_something_else_reads_them() {
    for (is_shared, transposes) in [(false, false), (true, false), (false, true)] {
        let b = GraphBuilder::new("product");
        let x = b.placeholder::<f32>("x", [4, 3]).unwrap();
        let dims = if transposes { [N, 3] } else { [3, N] };
        let weights = b
            .named("weights")
            .constant(dims, &numbers(3 * N, 1))
            .unwrap();
        let options = if transposes {
            MatMul::default().with_transpose_b()
        } else {
            MatMul::default()
        };
        let product = b.named("product").matmul_with(x, weights, options).unwrap();
        let scale = b.named("scale").constant([1, N], &numbers(N, 2)).unwrap();
        let scaled = b.named("scaled").mul(scale, product).unwrap();
        let less = b.named("less").constant([], &[0.5f32]).unwrap();
        b.named("y").sub(scaled, less).unwrap();
        if is_shared {
            b.named("other").neg(product).unwrap();
        }
        let graph = Arc::new(b.finish());
        let optimized = builder(&graph, 1).build().unwrap();
        let given = builder(&graph, 1).with_passes([]).build().unwrap();
        let is_folded = !ops(&optimized.graph()).contains(&"Mul");
        assert_eq!(is_folded, !is_shared && !transposes);
        let x = Tensor::from_values([4, 3], &numbers(12, 7)).unwrap();
        compare(&optimized, &given, &[("x", x)], &["y"]);
    }
}

#[test]
fn constants_of_a_branch_that_is_not_taken_stay_dead() {
    let b = GraphBuilder::new("branch");
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    let is_taken = b
        .placeholder::<bool>("is_taken", PartialShape::scalar())
        .unwrap();
    let switch = b.op("Switch").name("switch").input(x).input(is_taken);
    let switch = switch.finish().unwrap();
    let [not_taken, taken] = [0, 1].map(|slot| b.output::<f32>(switch, slot).unwrap());
    let pivot = b.named("pivot").identity(taken).unwrap();
    let guarded = b.control_dependencies([pivot.operation()]);
    let constant = guarded.named("c").constant([2], &[3f32, 4.0]).unwrap();
    let negated = b.named("negated").neg(constant).unwrap();
    let merge = b.op("Merge").name("y").inputs([not_taken, negated]);
    merge.finish().unwrap();
    let graph = Arc::new(b.finish());
    let session = builder(&graph, 1).build().unwrap();
    for (is_taken, expected) in [(false, [1.0, 2.0]), (true, [-3.0, -4.0])] {
        let x = Tensor::from_values([2], &[1f32, 2.0]).unwrap();
        let is_taken = Tensor::from_values([], &[Boolean::from(is_taken)]).unwrap();
        let found = session.run(&[("x", x), ("is_taken", is_taken)], &["y:0"]);
        assert_eq!(found.unwrap()[0].as_slice::<f32>().unwrap(), expected);
    }
}

/// `padded` is read by `conv`, `x` with other padding by `other`; a pool reads zeros around the
/// activation of `conv`.
fn padded(pad: [i32; 8]) -> Arc<Graph> {
    let b = GraphBuilder::new("padded");
    let x = b.placeholder::<f32>("x", [2, 6, 6, 3]).unwrap();
    let filter = b.constant([3, 3, 3, 4], &numbers(108, 1)).unwrap();
    let paddings = b.constant([4, 2], &pad).unwrap();
    let padded = b.named("padded").pad(x, paddings).unwrap();
    let attrs = Conv2d::new(Padding::Valid).with_strides([2, 2]);
    let conv = b.named("conv").conv2d(padded, filter, attrs).unwrap();
    let active = b.named("active").relu(conv).unwrap();
    let around = b.constant([4, 2], &[0, 0, 1, 0, 0, 2, 0, 0i32]).unwrap();
    let pool = |name: &str, images, own: i64| {
        let pad = b.named(format!("{name}_pad")).pad(images, around).unwrap();
        let pool = b.op("MaxPool").name(name).input(pad);
        let pool = pool.attr("ksize", [1i64, 3, 3, 1]);
        let pool = pool.attr("strides", [1i64, 1, 1, 1]);
        let pool = match own {
            0 => pool.attr("padding", "VALID"),
            own => pool
                .attr("padding", "EXPLICIT")
                .attr("explicit_paddings", [0, 0, own, 0, 0, 0, 0, 0]),
        };
        pool.value::<f32>().unwrap()
    };
    pool("y", active, 0);
    // Numbers below 0 may be less than the padding.
    pool("z", x, 0);
    // A window over padding only.
    pool("u", active, 2);
    Arc::new(b.finish())
}

#[test]
fn zeros_around_images_become_the_padding_of_their_reader() {
    // Padding of the batch remains a node.
    for (pad, removed) in [
        ([0, 0, 0, 1, 2, 0, 0, 0], &["padded", "y_pad"][..]),
        ([1, 0, 0, 1, 1, 0, 0, 0], &["y_pad"]),
    ] {
        let graph = padded(pad);
        let optimized = builder(&graph, 1).build().unwrap();
        let given = builder(&graph, 1).with_passes([]).build().unwrap();
        compare(&optimized, &given, &[x()], &["conv", "y", "z", "u"]);
        let left = |name: &str| optimized.graph().find_node(name).is_some();
        for name in ["padded", "y_pad", "z_pad", "u_pad"] {
            assert_eq!(left(name), !removed.contains(&name), "{name}");
        }
        compare(&optimized, &given, &[x()], &["y_pad", "y"]);
        assert!(Arc::ptr_eq(&optimized.graph(), &graph));
    }
    // It stays where another device is asked for, or a pin.
    let graph = padded([0, 0, 0, 1, 2, 0, 0, 0]);
    let pinned = builder(&graph, 2).with_pin("padded", "/device:CPU:1");
    let pinned = pinned.build().unwrap();
    assert!(pinned.graph().find_node("padded").is_some());
    assert!(pinned.graph().find_node("y_pad").is_none());
}

/// `n_steps` of `h = tanh([x, h] w + b)`, or of `[h, x]`.
fn recurrence(n_steps: usize, input_first: bool) -> Arc<Graph> {
    let b = GraphBuilder::new("recurrence");
    let inputs: Vec<_> = (0..n_steps)
        .map(|step| b.placeholder::<f32>(&format!("x{step}"), [2, 3]).unwrap())
        .collect();
    let w = b.named("w").constant([7, 4], &numbers(28, 1)).unwrap();
    let bias = b.named("b").constant([4], &numbers(4, 2)).unwrap();
    let mut h = b.constant([2, 4], &numbers(8, 3)).unwrap();
    for (step, &x) in inputs.iter().enumerate() {
        let parts = if input_first { [x, h] } else { [h, x] };
        let both = b.named(format!("both{step}")).concat(parts, 1).unwrap();
        let product = b.named(format!("product{step}")).matmul(both, w).unwrap();
        let sum = b.named(format!("sum{step}")).bias_add(product, bias);
        h = b.named(format!("h{step}")).tanh(sum.unwrap()).unwrap();
    }
    Arc::new(b.finish())
}

#[test]
fn inputs_of_all_steps_are_multiplied_at_once() {
    for (n_steps, input_first) in [(2, true), (5, true), (5, false)] {
        let graph = recurrence(n_steps, input_first);
        let names: Vec<String> = (0..n_steps).map(|step| format!("x{step}")).collect();
        let names = names.iter().enumerate();
        let feeds: Vec<(&str, Tensor)> = names
            .map(|(step, name)| {
                let x = Tensor::from_values([2, 3], &numbers(6, 7 + step));
                (name.as_str(), x.unwrap())
            })
            .collect();
        let optimized = builder(&graph, 1).build().unwrap();
        let given = builder(&graph, 1).with_passes([]).build().unwrap();
        let last = format!("h{}", n_steps - 1);
        let fetches = ["sum0", "sum1", "h0", &last];
        compare(&optimized, &given, &feeds, &fetches);
        let small = optimized.graph();
        let of_op = |op| ops(&small).iter().filter(|it| **it == op).count();
        assert_eq!((of_op("ConcatV2"), of_op("Split")), (1, 1));
        assert_eq!(of_op("MatMul"), n_steps + 1);
        // Another matrix in one run, and a product that the pass has removed.
        let mut other = feeds.clone();
        other.push(("w", Tensor::from_values([7, 4], &numbers(28, 9)).unwrap()));
        for (feeds, fetch) in [(&other, "sum1"), (&feeds, "product1")] {
            let optimized = builder(&graph, 1).build().unwrap();
            compare(&optimized, &given, feeds, &[fetch, &last]);
            assert!(Arc::ptr_eq(&optimized.graph(), &graph));
        }
    }
    // One step has nothing to share.
    let graph = recurrence(1, true);
    let session = builder(&graph, 1).build().unwrap();
    assert!(session.graph().find_node("both0").is_some());
}

#[test]
fn a_matrix_that_a_few_bytes_describe_is_not_divided() {
    for (n, is_divided) in [(1 << 10, true), (1 << 25, false)] {
        let b = GraphBuilder::new("large");
        let seven: Arc<[u8]> = Arc::new(7f32.to_le_bytes());
        let data = LiteralData::RepeatLast(Arc::new(seven));
        let literal = Literal::new(DType::F32, Shape::new(&[n + 4, 4]), data).unwrap();
        let w = b.op("Const").name("w").attr("dtype", DType::F32);
        let w = w.attr("value", AttrValue::Tensor(Arc::new(literal)));
        let w = w.value::<f32>().unwrap();
        let bias = b.constant([4], &numbers(4, 2)).unwrap();
        let x = b.placeholder::<f32>("x", [1, n]).unwrap();
        let mut h = b.constant([1, 4], &numbers(4, 3)).unwrap();
        for step in 0..2 {
            let both = b.named(format!("both{step}")).concat([x, h], 1).unwrap();
            h = b.bias_add(b.matmul(both, w).unwrap(), bias).unwrap();
        }
        let graph = Arc::new(b.finish());
        let session = builder(&graph, 1).build().unwrap();
        assert_eq!(session.graph().find_node("both1").is_none(), is_divided);
    }
}

/// A network of images with channels first or last; `x` is `[2, 3, 9, 8]` in both. `y` is a mean
/// per channel, `z` an image with channels first, `u` one with channels last.
fn layout(is_first: bool) -> Arc<Graph> {
    let b = GraphBuilder::new("layout");
    // The place of each axis, and values per axis, of images with channels first.
    let order = if is_first { [0, 1, 2, 3] } else { [0, 2, 3, 1] };
    let per_axis = |values: [i64; 4]| order.map(|axis| values[axis]);
    let axis = |first: usize| i32::try_from(order.iter().position(|&it| it == first).unwrap());
    let format = if is_first { "NCHW" } else { "NHWC" };
    let transposed = |name: &str, image: Value<f32>, axes: [i32; 4]| {
        let node = b.op("Transpose").name(name).input(image);
        let axes = b.constant([4], &axes).unwrap();
        node.input(axes).value::<f32>().unwrap()
    };
    let windowed = |op: &str, name: &str, strides: [i64; 4]| {
        let node = b.op(op).name(name).attr("strides", per_axis(strides));
        node.attr("data_format", format)
    };
    let x = b.placeholder::<f32>("x", [2, 3, 9, 8]).unwrap();
    let x = match is_first {
        true => x,
        false => transposed("x_last", x, [0, 2, 3, 1]),
    };
    let paddings = [[0, 0], [0, 0], [1, 1], [1, 0i32]];
    let paddings = b.constant([4, 2], &order.map(|it| paddings[it]).concat());
    let padded = b.named("padded").pad(x, paddings.unwrap()).unwrap();
    let filter = b.constant([3, 2, 3, 4], &numbers(72, 1)).unwrap();
    let conv = windowed("Conv2D", "conv", [1, 1, 2, 1]).attr("padding", "VALID");
    let conv = conv.input(padded).input(filter).value::<f32>().unwrap();
    let bias = b.constant([4], &numbers(4, 2)).unwrap();
    let biased = b.op("BiasAdd").name("biased").attr("data_format", format);
    let biased = biased.input(conv).input(bias).value::<f32>().unwrap();
    let shape = per_axis([1, 4, 1, 1]).map(|dim| usize::try_from(dim).unwrap());
    let scale = b.named("scale").constant(shape, &numbers(4, 3)).unwrap();
    let scaled = b.named("scaled").mul(scale, biased).unwrap();
    let active = b.named("active").relu(scaled).unwrap();
    let less = b.named("less").sub(active, 0.25).unwrap();
    let pool = windowed("MaxPool", "pool", [1, 1, 1, 1]).attr("padding", "EXPLICIT");
    let explicit = [[0i64, 0], [0, 0], [1, 0], [0, 1]];
    let pool = pool
        .attr("ksize", per_axis([1, 1, 2, 2]))
        .attr("explicit_paddings", order.map(|it| explicit[it]).concat());
    let pool = pool.input(less).value::<f32>().unwrap();
    let weights = b.constant([3, 3, 4, 2], &numbers(72, 4)).unwrap();
    let depthwise = windowed("DepthwiseConv2dNative", "depthwise", [1, 1, 1, 1]);
    let depthwise = depthwise.attr("padding", "SAME");
    let depthwise = depthwise.input(less).input(weights).value::<f32>().unwrap();
    let average = windowed("AvgPool", "average", [1, 1, 1, 1]).attr("padding", "SAME");
    let average = average.attr("ksize", per_axis([1, 1, 3, 2]));
    let average = average.input(depthwise).value::<f32>().unwrap();
    let channels = axis(1).unwrap();
    let both = b.named("both").concat([pool, average], channels).unwrap();
    let ones = |seed| b.constant([12], &numbers(12, seed)).unwrap();
    let variance = b.constant([12], &[0.5f32; 12]).unwrap();
    let norm = b.op("FusedBatchNormV3").name("norm").input(both);
    let norm = norm
        .input(ones(5))
        .input(ones(6))
        .input(ones(7))
        .input(variance);
    let norm = norm.attr("is_training", false).attr("data_format", format);
    let norm = norm.finish().unwrap();
    let norm = b.output::<f32>(norm, 0).unwrap();
    let axes = [axis(2).unwrap(), axis(3).unwrap()];
    let mean = b.reduce_mean(norm, Axes::new(axes)).unwrap();
    b.named("y").neg(mean).unwrap();
    let kept = b.reduce_max(norm, Axes::new(axes).keeping_dims()).unwrap();
    let rest = b.named("rest").sub(norm, kept).unwrap();
    match is_first {
        true => {
            b.named("z").identity(rest).unwrap();
            transposed("u", rest, [0, 2, 3, 1]);
        }
        false => {
            transposed("z", rest, [0, 3, 1, 2]);
            b.named("u").identity(rest).unwrap();
        }
    }
    Arc::new(b.finish())
}

#[test]
fn networks_with_channels_first_are_computed_with_channels_last() {
    let x = Tensor::from_values([2, 3, 9, 8], &numbers(432, 5)).unwrap();
    let feeds = [("x", x)];
    let graph = layout(true);
    let session = builder(&graph, 1).build().unwrap();
    let last = builder(&layout(false), 1).with_passes([]).build().unwrap();
    let fetches = ["y", "z", "u"];
    let found = session.run(&feeds, &fetches).unwrap();
    assert_close(&found, &last.run(&feeds, &fetches).unwrap());
    let small = session.graph();
    assert!(!Arc::ptr_eq(&small, &graph));
    for node in small.nodes() {
        let format = small.attrs(node).text("data_format");
        assert_ne!(format, Some("NCHW"), "{}", small.node_name(node));
    }
    // Zeros around `x` are the convolution's.
    assert!(!ops(&small).contains(&"Pad"));
    // Of `x`, and of what is fetched with channels first.
    let n_transpositions = ops(&small).iter().filter(|&&op| op == "Transpose").count();
    assert_eq!(n_transpositions, 2);
    // Only the given graph has this tensor. Its kernels transpose images.
    let given = builder(&graph, 1).with_passes([]).build().unwrap();
    compare(&session, &given, &feeds, &["conv", "pool", "average", "y"]);
    assert!(Arc::ptr_eq(&session.graph(), &graph));
    assert_close(&session.run(&feeds, &fetches).unwrap(), &found);
}

#[test]
fn an_image_that_was_transposed_to_channels_first_is_read_as_it_was() {
    let b = GraphBuilder::new("twice");
    let x = b.placeholder::<f32>("x", [2, 6, 6, 3]).unwrap();
    let axes = b.constant([4], &[0, 3, 1, 2]).unwrap();
    let first = b
        .op("Transpose")
        .input(x)
        .input(axes)
        .value::<f32>()
        .unwrap();
    let filter = b.constant([1, 1, 3, 4], &numbers(12, 1)).unwrap();
    let conv = b.op("Conv2D").name("conv").attr("strides", [1i64; 4]);
    let conv = conv.attr("padding", "SAME").attr("data_format", "NCHW");
    let conv = conv.input(first).input(filter).value::<f32>().unwrap();
    let axes = b.constant([4], &[0, 2, 3, 1]).unwrap();
    let y = b.op("Transpose").name("y").input(conv).input(axes);
    y.value::<f32>().unwrap();
    // The name that the pass would take.
    b.named("conv/channels_last").neg(x).unwrap();
    let graph = Arc::new(b.finish());
    let session = builder(&graph, 1).build().unwrap();
    let fetched = session.run(&[self::x()], &["y", "conv/channels_last"]);
    let expected = numbers(216, 5).iter().map(|x| -x).collect::<Vec<f32>>();
    assert_eq!(fetched.unwrap()[1].as_slice::<f32>().unwrap(), expected);
    let small = session.graph();
    assert!(!ops(&small).contains(&"Transpose"), "{:?}", ops(&small));
    // A pinned node remains.
    let pinned = builder(&graph, 1).with_pin("conv", "/device:CPU:0");
    let pinned = pinned.build().unwrap();
    let left = pinned.graph();
    let conv = left.find_node("conv").unwrap();
    assert_eq!(left.attrs(conv).text("data_format"), Some("NCHW"));
}

#[test]
fn a_constant_of_more_dimensions_than_an_image_gives_the_result_as_many() {
    let b = GraphBuilder::new("five");
    let x = b.placeholder::<f32>("x", [2, 6, 6, 3]).unwrap();
    let pool = b.op("MaxPool").attr("strides", [1i64; 4]);
    let pool = pool.attr("ksize", [1i64, 1, 2, 2]).attr("padding", "SAME");
    let pool = pool.attr("data_format", "NCHW").input(x);
    let two = b.constant([1, 1, 1, 1, 1], &[2f32]).unwrap();
    b.named("y").mul(pool.value::<f32>().unwrap(), two).unwrap();
    let graph = Arc::new(b.finish());
    let optimized = builder(&graph, 1).build().unwrap();
    let given = builder(&graph, 1).with_passes([]).build().unwrap();
    compare(&optimized, &given, &[self::x()], &["y"]);
}
