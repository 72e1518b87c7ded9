//! Queues between runs: runs that wait for each other, and runs that are cancelled.

use std::thread;
use std::time::Duration;

use placewright::builder::GraphBuilder;
use placewright::builder::Value;
use placewright::device::CancelToken;
use placewright::device::StatusCode;
use placewright::execute::RunOptions;
use placewright::graph::AttrValue;
use placewright::session::Session;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;

/// A queue of at most three integers: `add` adds the feed `x`, `take` takes one element, `three`
/// takes three, `close` closes the queue.
fn session() -> Session {
    let b = GraphBuilder::new("queue");
    let dtypes = || AttrValue::from(vec![DType::I32]);
    let queue = b.op("FIFOQueueV2").name("queue");
    let queue: Value = queue
        .attr("component_types", dtypes())
        .attr("shapes", vec![PartialShape::scalar()])
        .attr("capacity", 3i64)
        .value()
        .unwrap();
    let x = b.placeholder::<i32>("x", Shape::scalar()).unwrap();
    let add = b.op("QueueEnqueueV2").name("add").input(queue);
    add.inputs([x]).finish().unwrap();
    let take = b.op("QueueDequeueV2").name("take").input(queue);
    take.attr("component_types", dtypes()).finish().unwrap();
    let n: Value = b
        .tensor(&Tensor::from_values([], &[3i32]).unwrap())
        .unwrap();
    let three = b.op("QueueDequeueManyV2").name("three").input(queue);
    let three = three.input(n).attr("component_types", dtypes());
    three.finish().unwrap();
    for (name, op) in [("close", "QueueCloseV2"), ("size", "QueueSizeV2")] {
        b.op(op).name(name).input(queue).finish().unwrap();
    }
    Session::builder()
        .with_graph(b.finish())
        .with_device_count("SYCL", 0)
        .with_device_count("GPU", 0)
        .build()
        .unwrap()
}

fn add(session: &Session, value: i32) {
    let x = Tensor::from_values([], &[value]).unwrap();
    let added = session.run_with(&[("x", x)], &[], &["add"], &RunOptions::default());
    added.unwrap();
}

fn fetch(session: &Session, name: &str) -> Vec<i32> {
    let found = session.run(&[], &[name]).unwrap();
    found[0].as_slice::<i32>().unwrap().to_vec()
}

#[test]
fn a_run_waits_for_what_another_adds() {
    let session = session();
    thread::scope(|scope| {
        let taken = scope.spawn(|| fetch(&session, "three"));
        for value in [4, 5, 6] {
            add(&session, value);
        }
        assert_eq!(taken.join().unwrap(), [4, 5, 6]);
    });
    assert_eq!(fetch(&session, "size"), [0]);
}

#[test]
fn a_run_waits_for_room() {
    let session = session();
    for value in [1, 2, 3] {
        add(&session, value);
    }
    thread::scope(|scope| {
        let added = scope.spawn(|| add(&session, 4));
        assert_eq!(fetch(&session, "take"), [1]);
        added.join().unwrap();
    });
    assert_eq!(fetch(&session, "three"), [2, 3, 4]);
}

/// What the run has already taken is in the queue again.
#[test]
fn a_run_that_waits_is_cancelled() {
    let session = session();
    for value in [1, 2] {
        add(&session, value);
    }
    let token = CancelToken::new();
    let options = RunOptions::default().with_cancel(token.clone());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let fetched = session.run_with(&[], &["three"], &[], &options);
            fetched.map_err(Box::new)
        });
        // The run may also be cancelled before it asks.
        thread::sleep(Duration::from_millis(20));
        token.cancel();
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.code(), StatusCode::Cancelled);
    });
    assert_eq!(fetch(&session, "take"), [1]);
    assert_eq!(fetch(&session, "take"), [2]);
}

#[test]
fn a_closed_queue_ends_the_runs_that_wait() {
    let session = session();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| session.run(&[], &["take"]).map_err(Box::new));
        let closed = session.run_with(&[], &[], &["close"], &RunOptions::default());
        closed.unwrap();
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.code(), StatusCode::OutOfRange);
        assert!(
            error
                .to_string()
                .contains("is closed and has insufficient elements")
        );
    });
    let x = Tensor::from_values([], &[1i32]).unwrap();
    let error = session.run_with(&[("x", x)], &[], &["add"], &RunOptions::default());
    assert_eq!(error.unwrap_err().code(), StatusCode::Cancelled);
}
