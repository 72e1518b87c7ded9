//! Kernels that would run for minutes or hours end when their run does.

use std::thread;
use std::time::Duration;
use std::time::Instant;

use placewright::Error;
use placewright::builder::GraphBuilder;
use placewright::builder::Scalar;
use placewright::device::CancelToken;
use placewright::execute::ExecuteError;
use placewright::execute::RunOptions;
use placewright::session::Session;
use placewright::tensor::Element;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;

/// Far more than a loop takes to see the cancellation, and far less than any of these kernels
/// takes.
const LIMIT: Duration = Duration::from_secs(60);

/// The value of one attribute.
enum Attr {
    Int(i64),
    Ints([i64; 4]),
    Text(&'static str),
}

/// Returns a session of one node that reads zeroes of these shapes, and its feeds.
fn session<T: Scalar + Element>(
    op: &str,
    shapes: &[Shape],
    attrs: &[(&str, Attr)],
    n_threads: usize,
) -> (Session, Vec<(String, Tensor)>) {
    let b = GraphBuilder::new("long");
    let mut node = b.op(op).name("long");
    let mut feeds = Vec::new();
    for (index, shape) in shapes.iter().enumerate() {
        let name = format!("x{index}");
        let fed = b
            .placeholder::<T>(&name, shape.clone())
            .expect("a placeholder");
        node = node.input(fed.erase());
        let zeroes = vec![T::zeroed(); shape.n_elements()];
        feeds.push((
            name,
            Tensor::from_values(shape.clone(), &zeroes).expect("fits"),
        ));
    }
    for (name, value) in attrs {
        node = match value {
            Attr::Int(value) => node.attr(name, *value),
            Attr::Ints(values) => node.attr(name, *values),
            Attr::Text(text) => node.attr(name, *text),
        };
    }
    node.finish().expect("a node");
    let session = Session::builder()
        .with_graph(b.finish())
        // A kernel of a SYCL device cannot be interrupted: it would go on beside all later tests.
        .with_device_count("SYCL", 0)
        .with_device_count("GPU", 0)
        .with_intra_op_parallelism_threads(n_threads)
        .build()
        .expect("a session");
    (session, feeds)
}

fn run(
    (session, feeds): &(Session, Vec<(String, Tensor)>),
    options: &RunOptions,
) -> (Result<Vec<Tensor>, Error>, Duration) {
    let feeds: Vec<(&str, Tensor)> = feeds
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor.clone()))
        .collect();
    let started = Instant::now();
    let outcome = session.run_with(&feeds, &["long"], &[], options);
    (outcome, started.elapsed())
}

/// Checks that a run cancelled from another thread ends, and so does one with a deadline.
fn ends(what: &(Session, Vec<(String, Tensor)>), name: &str) {
    let token = CancelToken::new();
    let options = RunOptions::default().with_cancel(token.clone());
    let (outcome, elapsed) = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(300));
            token.cancel();
        });
        run(what, &options)
    });
    assert!(
        matches!(outcome, Err(Error::Execute(ExecuteError::Cancelled))),
        "{name}: {outcome:?}"
    );
    assert!(elapsed < LIMIT, "{name}: {elapsed:?}");
    let options = RunOptions::default().with_timeout(Duration::from_millis(300));
    let (outcome, elapsed) = run(what, &options);
    assert!(
        matches!(outcome, Err(Error::Execute(ExecuteError::TimedOut(_)))),
        "{name}: {outcome:?}"
    );
    assert!(elapsed < LIMIT, "{name}: {elapsed:?}");
}

fn strides() -> [(&'static str, Attr); 2] {
    [
        ("strides", Attr::Ints([1, 1, 1, 1])),
        ("padding", Attr::Text("SAME")),
    ]
}

/// 25 million products for each of 25 million pixels.
#[test]
fn convolutions_end() {
    let side = 5000;
    let image = Shape::from([1, side, side, 1]);
    let filter = Shape::from([side, side, 1, 1]);
    for n_threads in [1, 2] {
        let shapes = [image.clone(), filter.clone()];
        ends(
            &session::<f32>("Conv2D", &shapes, &strides(), n_threads),
            "prepacked",
        );
    }
    let shapes = [image, filter];
    ends(
        &session::<f64>("Conv2D", &shapes, &strides(), 2),
        "unrolled",
    );
    ends(
        &session::<f32>("DepthwiseConv2dNative", &shapes, &strides(), 2),
        "depthwise",
    );
}

#[test]
fn products_end() {
    let square = |side: usize| Shape::from([side, side]);
    let attrs: [(&str, Attr); 0] = [];
    // Integers are multiplied by a plain loop.
    let shapes = [square(4000), square(4000)];
    ends(&session::<i64>("MatMul", &shapes, &attrs, 2), "integers");
    let batch = [[40, 2500, 2500].into(), [40, 2500, 2500].into()];
    ends(
        &session::<f64>("BatchMatMulV2", &batch, &attrs, 2),
        "a batch",
    );
}

/// Each channel has all others as neighbours.
#[test]
fn responses_end() {
    let shapes = [Shape::from([1, 1, 1, 1_000_000])];
    let attrs = [("depth_radius", Attr::Int(1_000_000))];
    ends(&session::<f32>("LRN", &shapes, &attrs, 2), "LRN");
}
