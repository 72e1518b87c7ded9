//! Callables: prepared calls of a session.

use std::sync::Arc;
use std::time::Duration;

use placewright::builder::GraphBuilder;
use placewright::device::AllocatorAttributes;
use placewright::device::DeviceSet;
use placewright::device::StatusCode;
use placewright::error::Error;
use placewright::error::NameRole;
use placewright::execute::CancelToken;
use placewright::execute::ExecuteError;
use placewright::execute::RunOptions;
use placewright::names::DeviceId;
use placewright::session::Callable;
use placewright::session::Session;
use placewright::session::SessionGroup;
use placewright::session::TensorInfo;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;
use placewright::tensor::Tensor;
use placewright::trace::EventKind;
use placewright::trace::Recorder;

use super::Line;
use super::counter_on;
use super::devices;
use super::graph;
use super::negative_after;
use super::read;
use super::run;
use super::x;

fn tensor(value: f32) -> Tensor {
    Tensor::from_values([2], &[value; 2]).unwrap()
}

fn first(tensor: &Tensor) -> f32 {
    tensor.as_slice::<f32>().unwrap()[0]
}

/// `n` is the negative of `x`, `y` of another placeholder `z`.
fn two_negatives() -> Session {
    let placeholder = |name| (name, "Placeholder", &[][..], "", Some(DType::F32), false);
    let lines: [Line<'_>; 4] = [
        placeholder("x"),
        placeholder("z"),
        ("n", "Neg", &["x"], "", Some(DType::F32), false),
        ("y", "Neg", &["z"], "", Some(DType::F32), false),
    ];
    let builder = Session::builder().with_graph(graph(&lines));
    builder.with_devices(devices(2)).build().unwrap()
}

#[test]
fn outputs_are_found_by_position_and_by_name() {
    let session = two_negatives();
    let callable = session.callable(&["x:0", "z"], &["n", "x", "y:0"]).unwrap();
    let names = |of: &[TensorInfo]| -> Vec<String> {
        let shape = PartialShape::new(&[Some(2)]);
        assert!(of.iter().all(|info| info.dtype == DType::F32));
        assert!(of.iter().all(|info| info.shape == shape));
        of.iter().map(|info| info.name.clone()).collect()
    };
    assert_eq!(names(callable.feeds()), ["x:0", "z"]);
    assert_eq!(names(callable.fetches()), ["n", "x", "y:0"]);

    let fetched = callable.call(&[tensor(1.0), tensor(2.0)]).unwrap();
    let values: Vec<f32> = fetched.iter().map(first).collect();
    assert_eq!(values, [-1.0, 1.0, -2.0]);

    // Named feeds come in any order and either spelling.
    let feeds = [("z:0", tensor(4.0)), ("x", tensor(3.0))];
    let outputs = callable.call_named(&feeds).unwrap();
    assert_eq!((outputs.len(), outputs.is_empty()), (3, false));
    assert_eq!(first(&outputs["n"]), -3.0);
    assert_eq!(first(&outputs["n:0"]), -3.0);
    assert_eq!(first(&outputs["y"]), -4.0);
    assert_eq!(first(&outputs[2]), -4.0);
    assert!(outputs.get("z").is_none() && outputs.get("n:1").is_none());
    let listed: Vec<(&str, f32)> = outputs.iter().map(|(name, t)| (name, first(t))).collect();
    assert_eq!(listed, [("n", -3.0), ("x", 3.0), ("y:0", -4.0)]);
    assert_eq!(outputs.into_vec().len(), 3);
}

#[test]
fn invalid_calls_are_explained_and_the_callable_continues() {
    let session = two_negatives();
    let callable = session.callable(&["x", "z"], &["n"]).unwrap();
    let refused = |feeds: &[Tensor], text: &str| {
        let error = callable.call(feeds).unwrap_err();
        assert_eq!(error.to_string(), text);
        assert_eq!(error.code(), StatusCode::InvalidArgument);
    };
    refused(&[tensor(1.0)], "expected 2 fed tensors, found 1");
    let wrong = Tensor::from_values([3], &[1f32; 3]).unwrap();
    refused(
        &[tensor(1.0), wrong],
        "feed `z:0`: expected float [2], found float [3]",
    );
    let wrong = Tensor::from_values([2], &[1i32; 2]).unwrap();
    refused(
        &[wrong, tensor(1.0)],
        "feed `x:0`: expected float [2], found int32 [2]",
    );
    let refused = |feeds: &[(&str, Tensor)], text: &str| {
        let error = callable.call_named(feeds).unwrap_err();
        assert!(matches!(error, Error::CallFeed { .. }), "{error}");
        assert_eq!(error.to_string(), text);
        assert_eq!(error.code(), StatusCode::InvalidArgument);
    };
    let (x, z) = (("x", tensor(1.0)), ("z", tensor(1.0)));
    refused(std::slice::from_ref(&x), "feed `z`: it is missing");
    refused(
        &[x.clone(), ("y", tensor(1.0))],
        "feed `y`: the callable has no such feed; feeds are `x`, `z`",
    );
    refused(
        &[x.clone(), z.clone(), ("x:0", tensor(1.0))],
        "feed `x:0`: it is fed twice",
    );
    assert_eq!(first(&callable.call_named(&[z, x]).unwrap()["n"]), -1.0);

    let error = session.callable(&["x"], &["m"]).unwrap_err();
    assert!(matches!(
        error,
        Error::UnknownNode {
            role: NameRole::Fetch,
            ..
        }
    ));
    let error = session.callable(&[], &["n"]).unwrap_err();
    assert!(matches!(error, Error::Partition(_)), "{error}");
    let error = session.callable_with_targets(&["x"], &["n"], &["nowhere"]);
    assert_eq!(error.unwrap_err().code(), StatusCode::NotFound);
}

#[test]
fn threads_call_one_callable_without_its_session() {
    let session = two_negatives();
    let callable = session.callable(&["x"], &["n"]).unwrap();
    drop(session);
    let threads = (0u8..4).map(|thread| {
        let callable = callable.clone();
        std::thread::spawn(move || {
            for round in 0u8..50 {
                let value = f32::from(thread) + 8.0 * f32::from(round);
                let fetched = callable.call(&[tensor(value)]).unwrap();
                assert_eq!(first(&fetched[0]), -value);
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    drop(callable);
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn targets_and_options_apply_to_calls() {
    let session = counter_on(&devices(1)).build().unwrap();
    run(&session, "init", 1.0);
    let add = session.callable_with_targets(&["x"], &[], &["add"]);
    let add = add.unwrap();
    assert!(add.fetches().is_empty());
    assert!(add.call_named(&[x(2.0)]).unwrap().is_empty());
    assert_eq!(read(&session).unwrap(), 3.0);

    let token = CancelToken::new();
    token.cancel();
    let options = RunOptions::default().with_cancel(token);
    for error in [
        add.call_with(&[tensor(1.0)], &options).unwrap_err(),
        add.call_named_with(&[x(1.0)], &options).unwrap_err(),
    ] {
        assert!(
            matches!(error, Error::Execute(ExecuteError::Cancelled)),
            "{error}"
        );
    }
    assert_eq!(read(&session).unwrap(), 3.0);
    let in_time = RunOptions::default().with_timeout(Duration::from_secs(600));
    add.call_with(&[tensor(1.0)], &in_time).unwrap();
    assert_eq!(read(&session).unwrap(), 4.0);
}

#[test]
fn a_closed_session_ends_its_callables_too() {
    let devices = devices(1);
    let is_closed = |callable: &Callable| {
        let error = callable.call(&[]).unwrap_err();
        assert!(
            matches!(error, Error::Execute(ExecuteError::Closed)),
            "{error}"
        );
    };
    let session = counter_on(&devices).build().unwrap();
    let callable = session.callable(&[], &["read"]).unwrap();
    // That of the state before, as well.
    session.extend(session.graph()).unwrap();
    let second = session.callable(&[], &["read"]).unwrap();
    session.close();
    is_closed(&callable);
    is_closed(&second);
    let error = session.callable(&[], &["read"]).unwrap_err();
    assert!(matches!(error, Error::Execute(ExecuteError::Closed)));

    let group = SessionGroup::new();
    let session = counter_on(&devices).with_group(&group).build().unwrap();
    let callable = session.callable(&[], &["read"]).unwrap();
    session.extend(session.graph()).unwrap();
    drop(session);
    assert_eq!(group.reset(&[]), 1, "its callable lives");
    is_closed(&callable);
    let session = counter_on(&devices).with_group(&group).build().unwrap();
    drop((session, callable));
    assert_eq!(group.reset(&[]), 0);
}

#[test]
fn a_callable_from_before_a_change_keeps_its_graph_and_devices() {
    let all = devices(2);
    let session = counter_on(&all).build().unwrap();
    run(&session, "init", 1.0);
    let before = session.callable(&[], &["read"]).unwrap();
    let n_nodes = session.graph().n_nodes();
    let mut lines = super::COUNTER.to_vec();
    lines.insert(0, ("p", "Placeholder", &[], "", Some(DType::F32), false));
    lines.push(("n", "Neg", &["read"], "", Some(DType::F32), false));
    session.extend(graph(&lines)).unwrap();
    let extended = session.callable(&[], &["n"]).unwrap();
    let second = Arc::clone(all.get(DeviceId(1)).unwrap());
    let one = DeviceSet::new([second as Arc<dyn placewright::device::Device>]);
    let replacement = session.replace_devices(one).unwrap();
    assert!(replacement.moved.iter().any(|moved| moved.is_stateful));
    assert_eq!(session.devices().len(), 1);
    // The variable of the other device is still there, for those that use it.
    assert_eq!(read(&session).unwrap(), 1.0);
    run(&session, "add", 4.0);
    assert_eq!(read(&session).unwrap(), 5.0);
    assert_eq!(first(&before.call(&[]).unwrap()[0]), 1.0);
    assert_eq!(first(&extended.call(&[]).unwrap()[0]), -1.0);
    assert_eq!(before.placement().graph().n_nodes(), n_nodes);
    assert_eq!(extended.placement().graph().n_nodes(), lines.len());
    assert_eq!(extended.placement().device_set().len(), 2);
}

#[test]
fn memory_goes_back_with_the_last_callable() {
    let devices = devices(1);
    let device = devices.get(DeviceId(0)).unwrap();
    let used = || {
        let allocator = device.allocator(AllocatorAttributes::default());
        allocator.stats().in_use_bytes
    };
    let unused = used();
    let b = GraphBuilder::new("weights");
    let x = b.placeholder::<f32>("x", [1000]).unwrap();
    let w = b.constant([1000], &[1f32; 1000]).unwrap();
    b.named("y").add(x, w).unwrap();
    let builder = Session::builder().with_graph(b.finish());
    let session = builder.with_devices(Arc::clone(&devices)).build().unwrap();
    let callable = session.callable(&["x"], &["y"]).unwrap();
    let zeros = Tensor::from_values([1000], &[0f32; 1000]).unwrap();
    callable.call(std::slice::from_ref(&zeros)).unwrap();
    let of_one = used() - unused;
    assert!(of_one >= 4000, "{of_one}");
    let other = callable.clone();
    session.extend(session.graph()).unwrap();
    assert_eq!(used() - unused, of_one);
    drop(callable);
    assert_eq!(used() - unused, of_one, "its clone lives");
    drop(other);
    assert_eq!(used(), unused);
    session.run(&[("x", zeros)], &["y"]).unwrap();
    assert!(used() > unused);
}

#[test]
fn a_trace_has_no_events_with_old_numbers() {
    let session = Session::builder()
        .with_graph(negative_after(0))
        .with_devices(devices(1))
        .with_recorder(Recorder::on())
        .build()
        .unwrap();
    let n_kernels = || {
        let trace = session.trace();
        let nodes = trace.events.iter().filter_map(|event| match event.kind {
            EventKind::Kernel { node, .. } => Some(trace.names.node(node)),
            _ => None,
        });
        nodes.inspect(|name| assert_eq!(*name, "n")).count()
    };
    let callable = || session.callable(&["x"], &["n"]).unwrap();
    let call = |callable: &Callable| drop(callable.call(&[tensor(1.0)]).unwrap());
    let first = callable();
    call(&first);
    assert_eq!(n_kernels(), 1);
    // The nodes keep their numbers.
    session.extend(negative_after(0)).unwrap();
    let second = callable();
    call(&first);
    call(&second);
    assert_eq!(n_kernels(), 3);
    session.extend(negative_after(1)).unwrap();
    assert_eq!(n_kernels(), 0);
    call(&first);
    call(&second);
    assert_eq!(n_kernels(), 0);
    let third = callable();
    call(&third);
    assert_eq!(n_kernels(), 1);
    // The app's own recorder records such calls.
    let own = Recorder::on();
    let options = RunOptions::default().with_recorder(own.clone());
    first.call_with(&[tensor(1.0)], &options).unwrap();
    let is_kernel =
        |event: &&placewright::trace::Event| matches!(event.kind, EventKind::Kernel { .. });
    assert_eq!(own.events().iter().filter(is_kernel).count(), 1);
}
