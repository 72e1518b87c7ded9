//! Sessions that grow, end, and share devices: variables, `extend`, `close`, `reset`, isolation.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::time::Duration;

use placewright::builder::GraphBuilder;
use placewright::candidates::Proposal;
use placewright::device::DeviceManager;
use placewright::device::DeviceSet;
use placewright::device::Kernel;
use placewright::device::KernelContext;
use placewright::device::KernelDef;
use placewright::device::KernelError;
use placewright::device::Resource;
use placewright::device::StatusCode;
use placewright::error::Error;
use placewright::execute::ExecuteError;
use placewright::execute::RunOptions;
use placewright::graph::AttrSet;
use placewright::graph::AttrValue;
use placewright::graph::Graph;
use placewright::graph::GraphAssembler;
use placewright::graph::Input;
use placewright::graph::NodeSpec;
use placewright::graph::Output;
use placewright::graph::Work;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::session::SessionGroup;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;
use placewright::trace::EventKind;
use placewright::trace::Recorder;

use crate::sample::cpus;

mod callables;
mod changed_while_running;
mod grown_graph_def;
pub(crate) mod lost_device;
mod replaced_devices;

const PREFIX: &str = "/job:localhost/replica:0/task:0";

/// A node: name, op, inputs, device, output type, and whether it is stateful.
type Line<'a> = (
    &'a str,
    &'a str,
    &'a [&'a str],
    &'a str,
    Option<DType>,
    bool,
);

/// A counter `v`: `init` sets it to the feed `x`, `add` adds `x`, and `read` returns it.
const COUNTER: [Line<'static>; 5] = [
    ("x", "Placeholder", &[], "", Some(DType::F32), false),
    ("v", "VarHandleOp", &[], "", Some(DType::Resource), true),
    ("init", "AssignVariableOp", &["v", "x"], "", None, true),
    ("add", "AssignAddVariableOp", &["v", "x"], "", None, true),
    ("read", "ReadVariableOp", &["v"], "", Some(DType::F32), true),
];

fn graph(lines: &[Line<'_>]) -> Graph {
    graph_of(lines, DType::F32)
}

/// Builds the same graph with all type attributes set to this type.
fn graph_of(lines: &[Line<'_>], of: DType) -> Graph {
    let mut assembler = GraphAssembler::new("lines");
    for &(name, op, inputs, device, dtype, stateful) in lines {
        let inputs: Vec<Input> = inputs
            .iter()
            .map(|input| Input::Data {
                node: assembler.find_node(input).expect("inputs come first"),
                slot: 0,
            })
            .collect();
        let shape = PartialShape::new(&[Some(2)]);
        let type_attr = |name: &str| (Arc::from(name), AttrValue::from(of));
        let shape_attr = || (Arc::from("shape"), AttrValue::Shape(shape.clone()));
        let attrs = match op {
            "Placeholder" | "VarHandleOp" => AttrSet::new([type_attr("dtype"), shape_attr()]),
            "Neg" | "Relu" => AttrSet::new([type_attr("T")]),
            "Count" => AttrSet::default(),
            _ => AttrSet::new([type_attr("dtype")]),
        };
        let shape = match dtype {
            Some(DType::Resource) => PartialShape::new(&[]),
            _ => shape,
        };
        let outputs: Vec<Output> = dtype
            .map(|dtype| Output {
                dtype,
                is_ref: false,
                shape,
            })
            .into_iter()
            .collect();
        let spec = NodeSpec {
            name,
            op,
            inputs: &inputs,
            requested_device: device,
            attrs,
            outputs: &outputs,
            stateful,
            work: Work::default(),
        };
        assembler
            .add_node(&spec)
            .expect("the lines are well-formed");
    }
    assembler.finish()
}

fn devices(n: u32) -> Arc<DeviceSet> {
    let factories = placewright::backend::default_factories();
    Arc::new(factories.create_devices(&cpus(n), PREFIX).unwrap())
}

fn counter_on(devices: &Arc<DeviceSet>) -> SessionBuilder {
    Session::builder()
        .with_graph(graph(&COUNTER))
        .with_devices(Arc::clone(devices))
}

fn x(value: f32) -> (&'static str, Tensor) {
    ("x", Tensor::from_values([2], &[value; 2]).unwrap())
}

fn run(session: &Session, target: &str, value: f32) {
    let options = RunOptions::default();
    session
        .run_with(&[x(value)], &[], &[target], &options)
        .unwrap();
}

fn read(session: &Session) -> Result<f32, Box<Error>> {
    Ok(session.run(&[], &["read"]).map_err(Box::new)?[0]
        .as_slice::<f32>()
        .unwrap()[0])
}

#[test]
fn a_variable_keeps_its_value_between_runs() {
    let session = counter_on(&devices(1)).build().unwrap();
    let error = read(&session).unwrap_err();
    assert_eq!(error.code(), StatusCode::FailedPrecondition);
    assert!(
        error
            .to_string()
            .contains("`localhost/v` is not initialized"),
        "{error}"
    );
    run(&session, "init", 1.0);
    for _ in 0..3 {
        run(&session, "add", 2.0);
    }
    assert_eq!(read(&session).unwrap(), 7.0);
}

#[test]
fn a_variable_keeps_its_type() {
    let devices = devices(1);
    let floats = counter_on(&devices).build().unwrap();
    run(&floats, "init", 1.0);
    // The same variable, declared as an integer.
    let of_integers = COUNTER.map(|(name, op, inputs, device, dtype, stateful)| {
        let is_float = dtype == Some(DType::F32);
        let dtype = if is_float { Some(DType::I32) } else { dtype };
        (name, op, inputs, device, dtype, stateful)
    });
    let integers = Session::builder()
        .with_graph(graph_of(&of_integers, DType::I32))
        .with_devices(Arc::clone(&devices))
        .build()
        .unwrap();
    let x = ("x", Tensor::from_values([2], &[1i32; 2]).unwrap());
    let options = RunOptions::default();
    for (target, problem) in [
        ("init", "`v` is of type float, the value is int32"),
        ("add", "`v` is of type float, the value is int32"),
        ("read", "`v` is of type float, it is read as int32"),
    ] {
        let error = integers
            .run_with(std::slice::from_ref(&x), &[], &[target], &options)
            .unwrap_err();
        assert_eq!(error.code(), StatusCode::InvalidArgument);
        assert!(error.to_string().contains(problem), "{error}");
    }
    run(&floats, "add", 2.0);
    assert_eq!(read(&floats).unwrap(), 3.0);
}

#[test]
fn read_values_do_not_change_with_the_variable() {
    let session = counter_on(&devices(1)).build().unwrap();
    run(&session, "init", 1.0);
    let before = session.run(&[], &["read"]).unwrap();
    run(&session, "add", 5.0);
    assert_eq!(before[0].as_slice::<f32>().unwrap(), [1.0, 1.0]);
    assert_eq!(read(&session).unwrap(), 6.0);
}

#[test]
fn sessions_on_the_same_devices_share_variables_unless_they_are_isolated() {
    let devices = devices(1);
    let first = counter_on(&devices).build().unwrap();
    let second = counter_on(&devices).build().unwrap();
    let alone = counter_on(&devices)
        .with_isolated_session_state(true)
        .build()
        .unwrap();
    run(&first, "init", 1.0);
    assert_eq!(read(&second).unwrap(), 1.0);
    assert!(read(&alone).is_err());
    run(&alone, "init", 9.0);
    assert_eq!(read(&first).unwrap(), 1.0);
    assert_eq!(read(&alone).unwrap(), 9.0);
    let names = |session: &Session| {
        session
            .devices()
            .iter()
            .next()
            .unwrap()
            .1
            .name()
            .to_string()
    };
    assert_eq!(names(&alone), names(&first));
}

#[test]
fn many_threads_add_without_losing_anything() {
    let session = counter_on(&devices(1)).build().unwrap();
    run(&session, "init", 0.0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    run(&session, "add", 1.0);
                }
            });
        }
    });
    assert_eq!(read(&session).unwrap(), 200.0);
}

/// Returns the number of kernels created before it, and that of its executions.
struct Count {
    made: u32,
    calls: AtomicU32,
}

impl Kernel for Count {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let values = [self.made as f32, calls as f32];
        let shape = placewright::tensor::Shape::from([2]);
        context.fill_output(0, &shape, |out: &mut [f32]| {
            out.copy_from_slice(&values);
            Ok(())
        })
    }
}

/// A kernel that counts its calls, and the kernels created before it.
fn count() -> KernelDef {
    let n_made = AtomicU32::new(0);
    KernelDef::new("Count", "CPU").with_factory(move |_| {
        Ok(Box::new(Count {
            made: n_made.fetch_add(1, Ordering::Relaxed),
            calls: AtomicU32::new(0),
        }))
    })
}

fn counted(session: &Session) -> [f32; 2] {
    let fetched = session.run(&[], &["c"]).unwrap();
    let values = fetched[0].as_slice::<f32>().unwrap();
    [values[0], values[1]]
}

#[test]
fn extending_a_session_keeps_stateful_nodes_in_place() {
    for device in ["/device:CPU:0", "/device:CPU:1"] {
        let old = [("c", "Count", &[][..], "", Some(DType::F32), true)];
        let devices = devices(2);
        let on = devices.find_by_name(&format!("{PREFIX}{device}")).unwrap();
        let session = Session::builder()
            .with_graph(graph(&old))
            .with_devices(Arc::clone(&devices))
            .with_kernels([count()])
            .with_placement_options(
                placewright::candidates::PlacementOptions::default()
                    .with_pin(placewright::graph::NodeId(0), on),
            )
            .build()
            .unwrap();
        assert_eq!(counted(&session), [0.0, 1.0]);
        let larger = graph(&[
            // Other nodes may come first: nodes are matched by name, not by number.
            ("p", "Placeholder", &[], "", Some(DType::F32), false),
            old[0],
            ("n", "Neg", &["c"], "/device:CPU:0", Some(DType::F32), false),
        ]);
        session.extend(larger).unwrap();
        let node = session.graph().find_node("c").unwrap();
        assert_eq!(session.placement().device(node), on);
        let fetched = session.run(&[], &["n"]).unwrap();
        assert_eq!(fetched[0].as_slice::<f32>().unwrap(), [-0.0, -2.0]);
        assert_eq!(counted(&session), [0.0, 3.0]);
    }
}

/// `n` is the negative of `x`, after this many unrelated nodes.
fn negative_after(n_others: usize) -> Graph {
    let others = &["p", "q", "r"][..n_others];
    let placeholder = |&name| (name, "Placeholder", &[][..], "", Some(DType::F32), false);
    let mut lines: Vec<Line<'_>> = others.iter().map(placeholder).collect();
    lines.push(placeholder(&"x"));
    lines.push(("n", "Neg", &["x"], "", Some(DType::F32), false));
    graph(&lines)
}

#[test]
fn pins_follow_their_nodes_into_a_larger_graph() {
    let devices = devices(2);
    let device = |index| {
        let name = format!("{PREFIX}/device:CPU:{index}");
        devices.find_by_name(&name).unwrap()
    };
    let pins = placewright::candidates::PlacementOptions::default()
        .with_pin(placewright::graph::NodeId(0), device(0))
        .with_pin(placewright::graph::NodeId(1), device(1));
    let session = Session::builder()
        .with_graph(negative_after(0))
        .with_devices(Arc::clone(&devices))
        .with_placement_options(pins)
        .build()
        .unwrap();
    for n_others in [0, 1, 3] {
        session.extend(negative_after(n_others)).unwrap();
        let on = |name| {
            let node = session.graph().find_node(name).unwrap();
            session.placement().device(node)
        };
        assert_eq!((on("x"), on("n")), (device(0), device(1)), "{n_others}");
    }
}

#[test]
fn a_trace_uses_the_right_name_for_each_node() {
    let recorder = Recorder::on();
    let session = Session::builder()
        .with_graph(negative_after(0))
        .with_devices(devices(1))
        .with_recorder(recorder.clone())
        .build()
        .unwrap();
    let kernels = |session: &Session| -> Vec<String> {
        let trace = session.trace();
        let nodes = trace.events.iter().filter_map(|event| match event.kind {
            EventKind::Kernel { node, .. } => Some(trace.names.node(node).to_owned()),
            _ => None,
        });
        nodes.collect()
    };
    session.run(&[x(1.0)], &["n"]).unwrap();
    assert_eq!(kernels(&session), ["n"]);
    session.extend(negative_after(0)).unwrap();
    assert_eq!(kernels(&session), ["n"], "all nodes have their numbers");
    session.extend(negative_after(1)).unwrap();
    assert!(kernels(&session).is_empty());
    assert!(!session.trace().events.is_empty(), "the extension itself");
    session.run(&[x(1.0)], &["n"]).unwrap();
    session.extend(negative_after(1)).unwrap();
    assert_eq!(kernels(&session), ["n"]);
    assert!(recorder.events().len() > session.trace().events.len());
}

#[test]
fn other_sessions_have_stateful_kernels_of_their_own() {
    let lines = [("c", "Count", &[][..], "", Some(DType::F32), true)];
    let (devices, kernel) = (devices(1), count());
    let session = || {
        Session::builder()
            .with_graph(graph(&lines))
            .with_devices(Arc::clone(&devices))
            .with_kernels([kernel.clone()])
            .build()
            .unwrap()
    };
    let (first, second) = (session(), session());
    assert_eq!(counted(&first), [0.0, 1.0]);
    assert_eq!(counted(&second), [1.0, 1.0]);
    assert_eq!(counted(&first), [0.0, 2.0]);
    drop(first);
    assert_eq!(counted(&session()), [2.0, 1.0]);
}

#[test]
fn invalid_extensions_are_rejected_and_the_session_continues() {
    let session = counter_on(&devices(1)).build().unwrap();
    run(&session, "init", 3.0);
    let refused = |lines: &[Line<'_>], node: &str, problem: &str| {
        let error = session.extend(graph(lines)).unwrap_err().to_string();
        assert!(error.contains(node) && error.contains(problem), "{error}");
        assert_eq!(read(&session).unwrap(), 3.0);
    };
    refused(&COUNTER[..4], "`read`", "is missing");
    let mut lines = COUNTER;
    lines[3].1 = "AssignSubVariableOp";
    refused(&lines, "`add`", "has another op");
    let mut lines = COUNTER;
    lines[4].3 = "/device:CPU:0";
    refused(&lines, "`read`", "requests another device");
    let mut lines = COUNTER;
    lines[4].4 = Some(DType::I32);
    refused(&lines, "`read`", "has outputs of other types or shapes");
    let y = ("y", "Placeholder", &[][..], "", Some(DType::F32), false);
    let mut lines = vec![y];
    lines.extend(COUNTER);
    lines[3].2 = &["v", "y"];
    refused(&lines, "`init`", "has other inputs");
    let placed_by_app = counter_on(&devices(1))
        .with_proposal(Proposal {
            devices: vec![0; COUNTER.len()],
            ..Proposal::default()
        })
        .build()
        .unwrap();
    let error = placed_by_app.extend(graph(&COUNTER)).unwrap_err();
    assert_eq!(error.code(), StatusCode::FailedPrecondition);
}

#[test]
fn a_closed_session_rejects_runs_and_ends_those_in_progress() {
    let mut lines = vec![("c0", "Sleep", &[][..], "", Some(DType::F32), true)];
    let names: Vec<String> = (1..200).map(|i| format!("c{i}")).collect();
    for name in &names {
        lines.push((name.as_str(), "Sleep", &[], "", Some(DType::F32), true));
    }
    struct Sleep;
    impl Kernel for Sleep {
        fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
            std::thread::sleep(Duration::from_millis(5));
            let shape = placewright::tensor::Shape::from([2]);
            context.fill_output(0, &shape, |out: &mut [f32]| {
                out.fill(0.0);
                Ok(())
            })
        }
    }
    let session = Session::builder()
        .with_graph(graph(&lines))
        .with_kernels([KernelDef::new("Sleep", "CPU").with_factory(|_| Ok(Box::new(Sleep)))])
        .build()
        .unwrap();
    let targets: Vec<&str> = lines.iter().map(|line| line.0).collect();
    let options = RunOptions::default();
    let ended = std::thread::scope(|scope| {
        let run = || {
            session
                .run_with(&[], &[], &targets, &options)
                .map_err(Box::new)
        };
        let run = scope.spawn(run);
        std::thread::sleep(Duration::from_millis(30));
        session.close();
        run.join().unwrap()
    });
    let refused = session.run(&[], &["c0"]).unwrap_err();
    for error in [*ended.unwrap_err(), refused] {
        assert!(
            matches!(error, Error::Execute(ExecuteError::Closed)),
            "{error}"
        );
    }
    assert!(session.is_closed());
}

#[test]
fn sessions_of_one_builder_are_closed_separately() {
    let builder = counter_on(&devices(1));
    let first = builder.clone().build().unwrap();
    let second = builder.clone().build().unwrap();
    run(&second, "init", 2.0);
    let mut lines = COUNTER.to_vec();
    lines.push(("n", "Neg", &["read"], "", Some(DType::F32), false));
    first.extend(graph(&lines)).unwrap();
    assert_eq!(read(&first).unwrap(), 2.0);
    first.close();
    assert!(first.is_closed() && !second.is_closed());
    assert_eq!(read(&second).unwrap(), 2.0);
    let later = builder.build().unwrap();
    assert_eq!(read(&later).unwrap(), 2.0);
    // An extension does not reopen a closed session.
    let error = first.extend(graph(&lines)).unwrap_err();
    assert_eq!(error.code(), StatusCode::FailedPrecondition);
}

#[test]
fn a_reset_clears_containers_and_closes_the_sessions_of_the_group() {
    let devices = devices(1);
    let group = SessionGroup::new();
    let member = || counter_on(&devices).with_group(&group).build().unwrap();
    let (first, second) = (member(), member());
    let other = counter_on(&devices).build().unwrap();
    run(&first, "init", 4.0);
    assert_eq!(group.reset(&["nothing is here"]), 2);
    assert!(first.is_closed() && second.is_closed() && !other.is_closed());
    assert!(matches!(
        *read(&first).unwrap_err(),
        Error::Execute(ExecuteError::Closed)
    ));
    assert_eq!(read(&other).unwrap(), 4.0, "another container was cleared");
    let again = member();
    assert_eq!(read(&again).unwrap(), 4.0);
    again.reset(&[]);
    assert!(again.is_closed());
    assert_eq!(
        read(&other).unwrap_err().code(),
        StatusCode::FailedPrecondition,
        "the default container was cleared"
    );
    assert_eq!(group.reset(&[]), 0);
}

#[test]
fn a_reset_without_a_group_affects_only_that_session() {
    let devices = devices(1);
    let (first, second) = (
        counter_on(&devices).build().unwrap(),
        counter_on(&devices).build().unwrap(),
    );
    run(&first, "init", 4.0);
    first.reset(&["localhost"]);
    assert!(first.is_closed() && !second.is_closed());
    assert!(read(&second).is_err(), "the container was cleared");
    run(&second, "init", 5.0);
    assert_eq!(read(&second).unwrap(), 5.0);
}

#[test]
fn a_reset_ends_repeated_callers_and_devices_serve_later_sessions() {
    let devices = devices(1);
    let group = SessionGroup::new();
    let session = counter_on(&devices).with_group(&group).build().unwrap();
    run(&session, "init", 1.0);
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let options = RunOptions::default();
                        if let Err(error) = session.run_with(&[x(1.0)], &[], &["add"], &options) {
                            return error;
                        }
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(group.reset(&[]), 1);
        for caller in callers {
            let error = caller.join().unwrap();
            // A run that started just before finds no variable.
            assert!(
                matches!(error, Error::Execute(ExecuteError::Closed))
                    || error.code() == StatusCode::FailedPrecondition,
                "{error}"
            );
        }
    });
    let later = counter_on(&devices).with_group(&group).build().unwrap();
    assert!(read(&later).is_err(), "the variable is gone");
    run(&later, "init", 3.0);
    run(&later, "add", 1.0);
    assert_eq!(read(&later).unwrap(), 4.0);
    assert_eq!(group.reset(&[]), 1, "the earlier one is no member any more");
}

#[test]
fn using_a_removed_device_is_an_error_of_the_next_run() {
    let manager = Arc::new(DeviceManager::of_set(&devices(2)));
    let second = format!("{PREFIX}/device:CPU:1");
    let lines = [
        ("x", "Placeholder", &[][..], "", Some(DType::F32), false),
        ("n", "Neg", &["x"], second.as_str(), Some(DType::F32), false),
        ("m", "Neg", &["x"], "/device:CPU:0", Some(DType::F32), false),
    ];
    let session = Session::builder()
        .with_graph(graph(&lines))
        .with_device_manager(Arc::clone(&manager))
        .build()
        .unwrap();
    assert!(Arc::ptr_eq(&session.device_manager(), &manager));
    session.run(&[x(1.0)], &["n"]).unwrap();
    manager.remove_devices_by_name(&["CPU:1"]).unwrap();
    let error = session.run(&[x(1.0)], &["n"]).unwrap_err();
    assert!(error.to_string().contains(&second), "{error}");
    assert_eq!(error.code(), StatusCode::Unavailable);
    session.run(&[x(1.0)], &["m"]).unwrap();
    assert_eq!(manager.devices().len(), 1);
}

#[test]
fn the_manager_of_an_isolated_session_has_its_own_devices() {
    let manager = Arc::new(DeviceManager::of_set(&devices(1)));
    let lines = [("x", "Placeholder", &[][..], "", Some(DType::F32), false)];
    let builder = Session::builder()
        .with_graph(graph(&lines))
        .with_device_manager(Arc::clone(&manager));
    let session = builder
        .clone()
        .with_isolated_session_state(true)
        .build()
        .unwrap();
    let has_own_devices = |session: &Session| {
        let devices = session.devices();
        let (_, own) = devices.iter().next().unwrap();
        let found = session.device_manager().lookup(&own.attributes().name);
        let theirs = manager.lookup(&own.attributes().name).unwrap();
        Arc::ptr_eq(&found.unwrap(), own) && !Arc::ptr_eq(&theirs, own)
    };
    assert!(has_own_devices(&session));
    let larger = [
        lines[0],
        ("n", "Neg", &["x"][..], "", Some(DType::F32), false),
    ];
    session.extend(graph(&larger)).unwrap();
    assert!(has_own_devices(&session));
    let shared = builder.clone().build().unwrap();
    shared.extend(graph(&larger)).unwrap();
    assert!(Arc::ptr_eq(&shared.device_manager(), &manager));
    let error = builder.with_devices(devices(1)).build().unwrap_err();
    assert_eq!(
        error.to_string(),
        "`with_device_manager`, `with_devices` set the devices; call only one of them"
    );
    assert_eq!(error.code(), StatusCode::InvalidArgument);
}

#[test]
fn the_client_is_at_the_first_device_of_a_local_session() {
    let lines = [("x", "Placeholder", &[][..], "", Some(DType::F32), false)];
    let session = Session::builder()
        .with_graph(graph(&lines))
        .build()
        .unwrap();
    let devices = session.devices();
    let (first, _) = devices.iter().next().unwrap();
    assert_eq!(devices.client_device(), Some(first));
}

/// Forwards its input, using temporary memory and a resource that ends with the run.
struct Scratch;

struct Mark;

impl Resource for Mark {
    fn describe(&self) -> String {
        "a mark".to_owned()
    }
}

impl Kernel for Scratch {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let input = context.input(0)?.clone();
        context.allocate_temporary(DType::F32, input.shape().clone())?;
        let container = context.run_container()?;
        context
            .resource_manager()?
            .create(container, "mark", Arc::new(Mark))?;
        context.set_output(0, input)
    }
}

#[test]
fn a_trace_shows_the_calls_of_devices() {
    let b = GraphBuilder::new("calls");
    let x = b.placeholder::<f32>("x", [2, 2]).unwrap();
    let w = b.constant([2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
    let bias = b.placeholder::<f32>("b", [2]).unwrap();
    let product = b.named("product").matmul(x, w).unwrap();
    let sum = b.named("sum").bias_add(product, bias).unwrap();
    b.named("scratch").neg(sum).unwrap();
    let shape = AttrValue::Shape(PartialShape::new(&[Some(2)]));
    let variable = b.op("VarHandleOp").name("v");
    let variable = variable.attr("dtype", DType::F32).attr("shape", shape);
    variable.finish().unwrap();
    let recorder = Recorder::on();
    let scratch = KernelDef::new("Neg", "CPU").with_priority(1);
    let session = Session::builder()
        .with_graph(b.finish())
        .with_device_options(cpus(1))
        .with_kernels([scratch.with_factory(|_| Ok(Box::new(Scratch)))])
        .with_recorder(recorder.clone())
        .build()
        .unwrap();
    let zeros = |shape: &[usize]| {
        let values = vec![0.0f32; shape.iter().product()];
        Tensor::from_values(Shape::from(shape), &values).unwrap()
    };
    let feeds = [("x", zeros(&[2, 2])), ("b", zeros(&[2]))];
    let options = RunOptions::default();
    session
        .run_with(&feeds, &["scratch"], &["v"], &options)
        .unwrap();
    let calls: BTreeSet<&str> = recorder
        .events()
        .iter()
        .filter_map(|event| match event.kind {
            EventKind::Device { call, .. } => Some(call),
            _ => None,
        })
        .collect();
    let expected = [
        "create_kernel",
        "fill_context_map",
        "make_tensor",
        "maybe_rewrite_graph",
        "op_segment.find_or_create",
        "resource_manager.cleanup",
        "run_allocator",
    ];
    assert_eq!(calls, BTreeSet::from(expected));
    // The resources of the run are gone.
    let devices = session.devices();
    let (_, device) = devices.iter().next().unwrap();
    let manager = device.resource_manager().unwrap();
    assert!(!manager.describe().concat().contains("mark"));
}
