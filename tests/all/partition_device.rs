//! Devices that take whole partitions: what they get, how it is executed, and how they fail. Device
//! CPU:1 interprets clusters; CPU:3 does too, and ends later than its call.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use placewright::Error;
use placewright::builder::BuildError;
use placewright::builder::GraphBuilder;
use placewright::builder::Value;
use placewright::device::DeviceOptions;
use placewright::device::FactoryRegistry;
use placewright::execute::ExecuteError;
use placewright::execute::Executor;
use placewright::execute::ExecutorOptions;
use placewright::graph::Graph;
use placewright::names::DeviceId;
use placewright::plan::ExecutionPlan;
use placewright::plan::StepKind;
use placewright::session::Session;
use placewright::tensor::DType;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;
use placewright::trace::EventKind;
use placewright::trace::Recorder;

use crate::interpreter::Calls;
use crate::interpreter::InterpreterFactory;

const CPU: &str = "/device:CPU:0";
const INTERPRETER: &str = "/device:CPU:1";
const LATER: &str = "/device:CPU:3";

fn factories() -> (FactoryRegistry, Arc<Calls>) {
    let interpreters = InterpreterFactory::default();
    let calls = Arc::clone(&interpreters.calls);
    let mut factories = FactoryRegistry::empty();
    factories
        .register("CPU", 60, Arc::new(interpreters))
        .unwrap();
    (factories, calls)
}

fn session(graph: Graph) -> (Session, Arc<Calls>) {
    let (factories, calls) = factories();
    let mut options = DeviceOptions::default();
    options.device_count.insert("CPU".to_owned(), 4);
    let session = Session::builder()
        .with_graph(graph)
        .with_factories(factories)
        .with_device_options(options)
        .build()
        .unwrap();
    (session, calls)
}

/// Returns the plan as the executor has rewritten it.
fn executed(session: &Session, feeds: &[&str], fetches: &[&str]) -> Arc<ExecutionPlan> {
    let plan = Arc::new(session.plan(feeds, fetches, &[]).unwrap());
    let kernels = Arc::new(factories().0.kernels());
    let (graph, devices) = (session.graph(), session.devices());
    let options = ExecutorOptions::default();
    let executor = Executor::new(graph, devices, kernels, &options).unwrap();
    Arc::clone(executor.prepare(&plan).unwrap().plan())
}

/// Returns the number of steps of a device that execute nodes other than constants and control
/// flow.
fn n_executing(session: &Session, plan: &ExecutionPlan, device: u32) -> usize {
    let graph = session.graph();
    let by_executor = [
        "Const",
        "Switch",
        "Merge",
        "Enter",
        "Exit",
        "NextIteration",
        "LoopCond",
    ];
    let steps = plan.steps().iter();
    let executes = |node| !by_executor.contains(&graph.op(node));
    steps
        .filter(|step| step.device == DeviceId(device))
        .filter(|step| matches!(step.kind, StepKind::Execute(node) if executes(node)))
        .count()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.as_slice::<f32>().unwrap().to_vec()
}

fn truth(value: bool) -> Tensor {
    Tensor::from_bytes(DType::Bool, Shape::scalar(), &[u8::from(value)]).unwrap()
}

fn vector(values: &[f32]) -> Tensor {
    Tensor::from_values([values.len()], values).unwrap()
}

/// Two chains on the interpreter, one of which reads what the CPU computes, and both of which
/// others read: one cluster, with inner results that leave it.
fn two_chains(device: &str) -> Result<Graph, BuildError> {
    let b = GraphBuilder::new("two chains");
    let x = b.placeholder::<f32>("x", [3])?;
    let cpu = b.device(CPU)?;
    let there = b.device(device)?;
    let read = cpu.named("read").exp(x)?;
    let a = there.named("a").neg(x)?;
    let twice = there.named("twice").add(a, a)?;
    let sum = there.named("sum").add(read, twice)?;
    cpu.named("y").add(sum, twice)?;
    there.named("z").mul(sum, 2.0)?;
    Ok(b.finish())
}

#[test]
fn a_partition_is_one_step() {
    for (device, index) in [(INTERPRETER, 1), (LATER, 3)] {
        let (session, calls) = session(two_chains(device).unwrap());
        let plan = executed(&session, &["x"], &["y", "z", "a"]);
        assert_eq!(n_executing(&session, &plan, index), 1, "{device}");
        for _ in 0..3 {
            let x = vector(&[0.0, 1.0, 2.0]);
            let found = session.run(&[("x", x)], &["y", "z", "a"]).unwrap();
            let expected = |f: fn(f32) -> f32| [0.0f32, 1.0, 2.0].map(f);
            assert_eq!(floats(&found[0]), expected(|x| x.exp() - 2.0 * x - 2.0 * x));
            assert_eq!(floats(&found[1]), expected(|x| (x.exp() - 2.0 * x) * 2.0));
            assert_eq!(floats(&found[2]), expected(|x| -x));
        }
        // By the executor of `executed`, and by that of the session.
        assert_eq!(calls.n_prepared.load(Relaxed), 2, "{device}");
        assert_eq!(calls.n_executions.load(Relaxed), 3, "{device}");
        assert_eq!(calls.n_nodes.load(Relaxed), 3 * 4, "{device}");
    }
}

#[test]
fn a_path_that_leaves_and_returns_separates_clusters() {
    let b = GraphBuilder::new("there and back");
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    let (cpu, there) = (b.device(CPU).unwrap(), b.device(INTERPRETER).unwrap());
    let first = there.neg(x).unwrap();
    let alone = there.add(x, 1.0).unwrap();
    let back = cpu.exp(first).unwrap();
    let last = there.add(back, alone).unwrap();
    there.named("y").add(last, first).unwrap();
    let (session, calls) = session(b.finish());
    let plan = executed(&session, &["x"], &["y"]);
    assert_eq!(n_executing(&session, &plan, 1), 2);
    let found = session.run(&[("x", vector(&[1.0, 2.0]))], &["y"]).unwrap();
    let expected = [1.0f32, 2.0].map(|x| (-x).exp() + (x + 1.0) - x);
    assert_eq!(floats(&found[0]), expected);
    assert_eq!(calls.n_executions.load(Relaxed), 2);
}

/// `y = taken ? -(x * x) : exp(exp(x))`, on the interpreter.
fn branches() -> Result<Graph, BuildError> {
    let b = GraphBuilder::new("branches");
    let x = b.placeholder::<f32>("x", [2])?;
    let taken = b.placeholder::<bool>("taken", Shape::scalar())?;
    let there = b.device(INTERPRETER)?;
    let y = there.cond(
        taken,
        |b| b.neg(b.mul(x, x)?),
        |b| b.named("second").exp(b.named("first").exp(x)?),
    )?;
    there.named("y").add(y, 1.0)?;
    Ok(b.finish())
}

#[test]
fn only_the_cluster_of_the_branch_that_is_taken_is_executed() {
    let (session, calls) = session(branches().unwrap());
    let mut n_nodes = Vec::new();
    for taken in [true, false] {
        let before = calls.n_nodes.load(Relaxed);
        let feeds = [("x", vector(&[0.5, 1.0])), ("taken", truth(taken))];
        let found = session.run(&feeds, &["y"]).unwrap();
        let expected = [0.5f32, 1.0].map(|x| match taken {
            true => -(x * x) + 1.0,
            false => x.exp().exp() + 1.0,
        });
        for (found, expected) in floats(&found[0]).iter().zip(expected) {
            assert!((found - expected).abs() < 1e-5, "{found}, {expected}");
        }
        n_nodes.push(calls.n_nodes.load(Relaxed) - before);
    }
    // Two nodes of the branch, and those outside of both.
    assert_eq!(n_nodes[0], n_nodes[1]);
    let graph = session.graph();
    let n_other = graph.nodes().filter(|&node| {
        let op = graph.op(node);
        ["Neg", "Mul", "Exp"].contains(&op)
    });
    assert!(n_nodes[0] <= graph.n_nodes() - n_other.count() + 2);
}

/// A loop on `device` that divides until the index is out of range, with a checked gather.
fn failing_loop(device: &str) -> Result<Graph, BuildError> {
    let b = GraphBuilder::new("loop");
    let x = b.placeholder::<f32>("x", [3])?;
    let n = b.placeholder::<i32>("n", Shape::scalar())?;
    let there = b.device(device)?;
    let (_, sum) = there.while_loop(
        (there.scalar(0)?, there.scalar(0.0f32)?),
        |b, (i, _): (Value<i32>, Value<f32>)| b.less(i, n),
        |b, (i, sum)| {
            let element = b.named("picked").gather(x, i, 0)?;
            Ok((b.add(i, 1)?, b.add(sum, element)?))
        },
    )?;
    b.named("y").identity(sum)?;
    Ok(b.finish())
}

#[test]
fn a_loop_executes_its_clusters_once_per_iteration_and_an_error_names_node_and_iteration() {
    for device in [INTERPRETER, LATER] {
        let (session, calls) = session(failing_loop(device).unwrap());
        let feeds = |n: i32| {
            [
                ("x", vector(&[1.0, 2.0, 4.0])),
                ("n", Tensor::from_values([], &[n]).unwrap()),
            ]
        };
        let found = session.run(&feeds(3), &["y"]).unwrap();
        assert_eq!(floats(&found[0]), [7.0]);
        let n_prepared = calls.n_prepared.load(Relaxed);
        let n_executions = calls.n_executions.load(Relaxed);
        // The condition is executed once more than the body.
        assert!(n_executions <= 3 * (n_prepared - 1) + 4, "{n_executions}");
        let error = session.run(&feeds(4), &["y"]).unwrap_err();
        let Error::Execute(error) = &error else {
            panic!("{error}");
        };
        let ExecuteError::Kernel { site, .. } = error else {
            panic!("{error}");
        };
        assert!(site.node.ends_with("picked"), "{device}: {error}");
        assert!(site.op.starts_with("Gather"), "{device}: {error}");
        assert!(site.device.ends_with(device), "{device}: {error}");
        let iteration = site.iteration.as_deref().unwrap_or_default();
        assert!(iteration.contains('3'), "{device}: {error}");
        // The session is as good as before.
        let found = session.run(&feeds(2), &["y"]).unwrap();
        assert_eq!(floats(&found[0]), [3.0]);
    }
}

#[test]
fn traces_show_the_preparation_and_each_execution() {
    let (factories, _) = factories();
    let recorder = Recorder::on();
    let mut options = DeviceOptions::default();
    options.device_count.insert("CPU".to_owned(), 4);
    let session = Session::builder()
        .with_graph(two_chains(INTERPRETER).unwrap())
        .with_factories(factories)
        .with_device_options(options)
        .with_recorder(recorder.clone())
        .build()
        .unwrap();
    session
        .run(&[("x", vector(&[1.0; 3]))], &["y", "z"])
        .unwrap();
    let events = recorder.events();
    let prepared = events.iter().filter_map(|event| match &event.kind {
        EventKind::Device { call, detail, .. } if &**call == "prepare" => Some(detail.to_string()),
        _ => None,
    });
    assert_eq!(prepared.collect::<Vec<_>>(), ["4 nodes"]);
    let executed = events.iter().filter(
        |event| matches!(event.kind, EventKind::Kernel { device, .. } if device == DeviceId(1)),
    );
    assert_eq!(executed.count(), 1);
}

#[test]
fn a_cluster_that_cannot_be_prepared_is_an_error_that_names_the_node() {
    for (name, expected) in [
        ("refused", "not on an interpreter"),
        (
            "panicking",
            "the device panicked: as the name says (cluster of 2 nodes)",
        ),
    ] {
        let b = GraphBuilder::new("refused");
        let x = b.placeholder::<f32>("x", [2]).unwrap();
        let there = b.device(INTERPRETER).unwrap();
        let inner = there.named(name).neg(x).unwrap();
        there.named("y").exp(inner).unwrap();
        let (session, _) = session(b.finish());
        let error = session.run(&[("x", vector(&[1.0, 2.0]))], &["y"]);
        let error = error.unwrap_err();
        let Error::Execute(ExecuteError::Prepare { site, source }) = &error else {
            panic!("{error}");
        };
        // Without a node of its own, the error names the last one.
        let node = if name == "refused" { name } else { "y" };
        assert_eq!(site.node, node);
        assert!(site.device.ends_with(INTERPRETER), "{error}");
        assert_eq!(source.to_string(), expected);
    }
}
