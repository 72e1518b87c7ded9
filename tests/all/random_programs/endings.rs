//! How runs of branches and loops end early: errors, dead fetches, cancellation and timeouts.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use placewright::builder::GraphBuilder;
use placewright::builder::WhileLoop;
use placewright::device::AllocatorAttributes;
use placewright::device::DeviceOptions;
use placewright::device::DeviceSet;
use placewright::device::FactoryRegistry;
use placewright::error::Error;
use placewright::execute::CancelToken;
use placewright::execute::ExecuteError;
use placewright::execute::RunOptions;
use placewright::graph::Graph;
use placewright::session::Session;
use placewright::tensor::Boolean;
use placewright::tensor::PartialShape;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;

use crate::sample::Random;
use crate::strict_cpu::StrictCpuFactory;

/// Number of elements of `x` in [`failing_loop`]: an index beyond them is an error.
const N_ELEMENTS: usize = 3;

pub(super) fn session(graph: Graph) -> Session {
    let mut factories = FactoryRegistry::empty();
    factories
        .register("CPU", 60, Arc::new(StrictCpuFactory))
        .unwrap();
    let mut options = DeviceOptions::default();
    options.device_count.insert("CPU".to_owned(), 2);
    options.intra_op_parallelism_threads = 1;
    Session::builder()
        .with_graph(graph)
        .with_factories(factories)
        .with_device_options(options)
        .with_inter_op_parallelism_threads(2)
        .build()
        .unwrap()
}

fn scalar(value: i32) -> Tensor {
    Tensor::from_values(Shape::scalar(), &[value]).unwrap()
}

/// Returns a loop of `n` iterations on two devices: from index `start` on, it collects elements of
/// a vector, the first one for negative indices. Iteration `N_ELEMENTS - start` fails, if there is
/// one.
fn failing_loop() -> Graph {
    let b = GraphBuilder::new("failing");
    let start = b
        .placeholder::<i32>("start", PartialShape::scalar())
        .unwrap();
    let n = b.placeholder::<i32>("n", PartialShape::scalar()).unwrap();
    let x = b.constant([N_ELEMENTS], &[1.0f32, 2.0, 3.0]).unwrap();
    let none = b.constant([1], &[0.0f32]).unwrap();
    let options = WhileLoop::default().with_shape_invariants([
        PartialShape::scalar(),
        PartialShape::scalar(),
        PartialShape::of_rank(1),
    ]);
    let zero = b.scalar(0).unwrap();
    let (_, _, all) = b
        .while_loop_with(
            (zero, start, none),
            options,
            |b, (done, _, _)| b.less(done, n),
            |b, (done, index, all)| {
                let element = b.maximum(index, 0)?;
                let found = b.device("/device:CPU:1")?.gather(x, element, 0)?;
                let found = b.expand_dims(found, 0)?;
                let all = b.device("/device:CPU:0")?.concat([all, found], 0)?;
                Ok((b.add(done, 1)?, b.add(index, 1)?, all))
            },
        )
        .unwrap();
    b.named("all").identity(all).unwrap();
    b.finish()
}

/// Returns a loop that does not end by itself.
fn endless_loop() -> Graph {
    let b = GraphBuilder::new("endless");
    let yes = b.scalar(true).unwrap();
    let zero = b.scalar(0).unwrap();
    let n = b
        .while_loop(zero, |_, _| Ok(yes), |b, n| b.add(n, 1))
        .unwrap();
    b.named("n").identity(n).unwrap();
    b.finish()
}

#[test]
fn an_error_in_a_loop_names_node_and_iteration() {
    let session = session(failing_loop());
    let run = |start| session.run(&[("start", scalar(start)), ("n", scalar(6))], &["all"]);
    let all = run(-3).unwrap();
    let expected = [0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0];
    assert_eq!(all[0].as_slice::<f32>().unwrap(), expected);
    for (start, iteration) in [(3, 0), (1, 2), (-2, 5)] {
        let message = run(start).unwrap_err().to_string();
        let node = "node `while/body/GatherV2` (GatherV2) of function `while_body` on";
        assert!(message.starts_with(node), "{message}");
        let iteration = format!(", iteration {iteration} of loop `while`, ");
        assert!(message.contains(&iteration), "{message}");
    }
}

#[test]
fn a_fetch_in_a_branch_that_is_not_taken_is_an_error() {
    let b = GraphBuilder::new("branches");
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    let p = b.placeholder::<bool>("p", PartialShape::scalar()).unwrap();
    b.named("y")
        .cond(p, |b| b.named("a").neg(x), |b| b.named("b").square(x))
        .unwrap();
    let session = session(b.finish());
    let x = Tensor::from_values([2], &[1.0f32, 2.0]).unwrap();
    let p = Tensor::from_values(Shape::scalar(), &[Boolean::from(true)]).unwrap();
    let feeds = [("x", x), ("p", p)];
    let found = session.run(&feeds, &["y/then/a", "y"]).unwrap();
    assert_eq!(found[0].as_slice::<f32>().unwrap(), [-1.0, -2.0]);
    assert_eq!(found[1].as_slice::<f32>().unwrap(), [-1.0, -2.0]);
    let error = session.run(&feeds, &["y", "y/else/b"]).unwrap_err();
    let Error::Execute(ExecuteError::DeadFetch { tensor }) = &error else {
        panic!("{error}");
    };
    assert_eq!(tensor, "y/else/b:0");
}

#[test]
fn an_endless_loop_ends_when_it_is_cancelled_or_times_out() {
    let session = session(endless_loop());
    let limit = Duration::from_millis(20);
    let options = RunOptions::default().with_timeout(limit);
    let error = session.run_with(&[], &["n"], &[], &options).unwrap_err();
    assert!(
        matches!(error, Error::Execute(ExecuteError::TimedOut(found)) if found == limit),
        "{error}"
    );
    let token = CancelToken::new();
    let options = RunOptions::default().with_cancel(token.clone());
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(limit);
            token.cancel();
        });
        let error = session.run_with(&[], &["n"], &[], &options).unwrap_err();
        assert!(
            matches!(error, Error::Execute(ExecuteError::Cancelled)),
            "{error}"
        );
    });
}

fn bytes_in_use(devices: &DeviceSet) -> Vec<u64> {
    let devices = devices.iter();
    let allocators = devices.map(|(_, device)| device.allocator(AllocatorAttributes::default()));
    allocators
        .map(|allocator| allocator.stats().in_use_bytes)
        .collect()
}

#[test]
fn loops_that_fail_or_are_cancelled_leak_nothing() {
    const N_RUNS: usize = 10_000;
    const N_WARM_UP: usize = 500;
    let session = session(failing_loop());
    let devices = session.devices();
    let before = bytes_in_use(&devices);
    let callable = session.callable(&["start", "n"], &["all"]).unwrap();
    let mut random = Random::new(7);
    let (mut n_failed, mut n_cancelled, mut n_ended) = (0, 0, 0);
    let mut settled = Vec::new();
    for run in 0..N_RUNS {
        if run == N_WARM_UP {
            // Memory that runs share is there.
            settled = bytes_in_use(&devices);
        }
        let is_to_fail = random.below(2) == 0;
        let (start, n) = match is_to_fail {
            true => (i32::try_from(random.below(8)).unwrap() - 4, 8),
            false => (-1000, 40),
        };
        let token = CancelToken::new();
        let options = RunOptions::default().with_cancel(token.clone());
        let found = thread::scope(|scope| {
            if !is_to_fail {
                let n_spins = random.below(2000);
                scope.spawn(move || {
                    for _ in 0..n_spins {
                        std::hint::spin_loop();
                    }
                    token.cancel();
                });
            }
            callable.call_with(&[scalar(start), scalar(n)], &options)
        });
        match found {
            Ok(_) => n_ended += 1,
            Err(Error::Execute(ExecuteError::Cancelled)) => n_cancelled += 1,
            Err(Error::Execute(ExecuteError::Kernel { .. })) => n_failed += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(
        n_failed > N_RUNS / 4,
        "{n_failed}, {n_cancelled}, {n_ended}"
    );
    assert!(n_cancelled > 0, "{n_failed}, {n_cancelled}, {n_ended}");
    assert_eq!(bytes_in_use(&devices), settled);
    drop((callable, session));
    assert_eq!(bytes_in_use(&devices), before);
}
