//! Variables in the memory of SYCL devices.

use std::sync::Arc;

use placewright::builder::BuildError;
use placewright::builder::GraphBuilder;
use placewright::builder::Operation;
use placewright::builder::Scope;
use placewright::builder::Value;
use placewright::device::DeviceSet;
use placewright::execute::RunOptions;
use placewright::session::Session;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;
use placewright::tensor::Tensor;

use super::PREFIX;
use super::open;
use super::options;

const DEVICES: [&str; 2] = ["/device:CPU:0", "/device:SYCL:0"];

/// What a session does with the variable `v`, which all operations share.
const OPERATIONS: [(&str, &str); 6] = [
    ("set", "AssignVariableOp"),
    ("add", "AssignAddVariableOp"),
    ("sub", "AssignSubVariableOp"),
    ("read", "ReadVariableOp"),
    ("is_set", "VarIsInitializedOp"),
    ("drop", "DestroyResourceOp"),
];

fn handle(b: &Scope, dtype: DType) -> Result<Value, BuildError> {
    let handle = b.op("VarHandleOp").name("v").attr("dtype", dtype);
    let handle = handle.attr("shape", PartialShape::unknown());
    handle.attr("shared_name", "v").value()
}

/// A session with all operations and the feed `x` on a device.
fn session(dtype: DType, device: &str, devices: &Arc<DeviceSet>) -> Session {
    let b = GraphBuilder::new("variable");
    let on_device = b.device(device).unwrap();
    let v = handle(&on_device, dtype).unwrap();
    let x = b.op("Placeholder").name("x").attr("dtype", dtype);
    let x: Value = x.attr("shape", PartialShape::unknown()).value().unwrap();
    for (name, op) in OPERATIONS {
        let mut operation = on_device.op(op).name(name).input(v);
        operation = match name {
            "set" | "add" | "sub" => operation.input(x),
            "read" => operation.attr("dtype", dtype),
            _ => operation,
        };
        operation.finish().unwrap();
    }
    let shape = on_device.op("VariableShape").name("shape").input(v);
    shape.attr("out_type", DType::I64).finish().unwrap();
    super::session(b, devices).build().unwrap()
}

fn run(session: &Session, target: &str, x: &Tensor) -> Result<(), String> {
    let feeds = [("x", x.clone())];
    let done = session.run_with(&feeds, &[], &[target], &RunOptions::default());
    done.map(drop).map_err(|error| error.to_string())
}

fn fetch(session: &Session, name: &str) -> Result<Tensor, String> {
    let fetched = session.run(&[], &[name]);
    fetched
        .map(|mut fetched| fetched.remove(0))
        .map_err(|error| error.to_string())
}

/// Returns elements 1, 2, .. of a type.
fn counted(dtype: DType, dims: &[usize]) -> Tensor {
    let n: usize = dims.iter().product();
    let b = GraphBuilder::new("cast");
    let numbers: Vec<i32> = (1..).take(n).collect();
    let numbers = Tensor::from_values(dims, &numbers).unwrap();
    let numbers: Value = b.tensor(&numbers).unwrap();
    let cast = b.op("Cast").name("y").input(numbers);
    cast.attr("DstT", dtype).finish().unwrap();
    let session = super::session(b, &open(&options(1).with_device_count("SYCL", 0)));
    fetch(&session.build().unwrap(), "y").unwrap()
}

/// Everything that a session answers about a variable in one history of it.
fn answers(session: &Session, x: &Tensor) -> Vec<Result<Tensor, String>> {
    let mut answers = vec![fetch(session, "read"), fetch(session, "is_set")];
    for target in ["set", "add", "add", "sub"] {
        run(session, target, x).unwrap();
        answers.push(fetch(session, "read"));
    }
    answers.extend(["is_set", "shape"].map(|name| fetch(session, name)));
    run(session, "drop", x).unwrap();
    answers.extend(["is_set", "read"].map(|name| fetch(session, name)));
    answers
}

#[test]
#[needs(Sycl)]
fn variables_answer_as_those_of_the_cpu() {
    let devices = open(&options(1));
    for dtype in [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I8,
        DType::I32,
        DType::I64,
        DType::U8,
    ] {
        let [cpu, sycl] = DEVICES.map(|device| session(dtype, device, &devices));
        let v = sycl.graph().find_node("v").unwrap();
        let devices = sycl.devices();
        let device = devices.get(sycl.placement().device(v)).unwrap();
        assert_eq!(device.attributes().name, format!("{PREFIX}{}", DEVICES[1]));
        for dims in [&[][..], &[0, 3], &[5], &[2, 3, 4]] {
            let x = counted(dtype, dims);
            let expected = answers(&cpu, &x);
            for (expected, found) in expected.into_iter().zip(answers(&sycl, &x)) {
                match (expected, found) {
                    (Ok(expected), Ok(found)) => {
                        assert_eq!(expected.shape(), found.shape(), "{dtype} {dims:?}");
                        assert_eq!(
                            expected.as_bytes().unwrap(),
                            found.as_bytes().unwrap(),
                            "{dtype} {dims:?}"
                        );
                    }
                    (expected, found) => {
                        let (expected, found) = (expected.unwrap_err(), found.unwrap_err());
                        assert_eq!(expected.replace("CPU", "SYCL"), found);
                    }
                }
            }
        }
    }
}

#[test]
#[needs(Sycl)]
fn a_value_of_another_shape_is_not_added() {
    let devices = open(&options(1));
    let session = session(DType::F32, DEVICES[1], &devices);
    let x = counted(DType::F32, &[3]);
    run(&session, "set", &x).unwrap();
    let error = run(&session, "add", &counted(DType::F32, &[2])).unwrap_err();
    let expected = "the variable has shape [3], the value has [2]";
    assert!(error.contains(expected), "{error}");
    let found = fetch(&session, "read").unwrap();
    assert_eq!(found.as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0]);
}

fn add(b: &Scope, handle: Value, value: f32) -> Result<Operation, BuildError> {
    let add = b.op("AssignAddVariableOp").input(handle);
    add.input(b.scalar(value)?).finish()
}

fn read(b: &Scope, handle: Value) -> Result<Value<f32>, BuildError> {
    let read = b.op("ReadVariableOp").input(handle);
    read.attr("dtype", DType::F32).value()
}

/// A branch and a loop on the device get the handle, and what was read before an update stays.
#[test]
#[needs(Sycl)]
fn handles_pass_through_branches_and_loops() {
    let devices = open(&options(1));
    let b = GraphBuilder::new("loop");
    let sycl = b.device(DEVICES[1]).unwrap();
    let v = handle(&sycl, DType::F32).unwrap();
    let set = sycl.op("AssignVariableOp").input(v);
    let set = set.input(sycl.scalar(1.0f32).unwrap()).finish().unwrap();
    let ready = sycl.control_dependencies([set]);
    let before = read(&ready.named("before"), v).unwrap();
    // A handle that TensorFlow 1 forwards explicitly.
    let later = sycl.control_dependencies([before]);
    let passed = later.op("Identity").input(v);
    let passed: Value = passed.attr("T", DType::Resource).value().unwrap();
    let n = sycl
        .while_loop(
            sycl.scalar(0).unwrap(),
            |b, n| b.less(n, 5),
            |b, n| {
                add(b, passed, 2.0)?;
                b.add(n, 1)
            },
        )
        .unwrap();
    read(&sycl.control_dependencies([n]).named("after"), v).unwrap();
    let session = super::session(b, &devices).build().unwrap();
    for _ in 0..3 {
        let found = session.run(&[], &["before", "after"]).unwrap();
        assert_eq!(found[0].as_slice::<f32>().unwrap(), [1.0]);
        assert_eq!(found[1].as_slice::<f32>().unwrap(), [11.0]);
    }
}

/// To the CPU and back, with the value of each time.
#[test]
#[needs(Sycl)]
fn variables_leave_a_device_that_is_replaced() {
    let devices = open(&options(1));
    let b = GraphBuilder::new("moved");
    let v = handle(&b, DType::F32).unwrap();
    let x = b.placeholder::<f32>("x", [2]).unwrap();
    for (name, op) in [("set", "AssignVariableOp"), ("add", "AssignAddVariableOp")] {
        b.op(op).name(name).input(v).input(x).finish().unwrap();
    }
    read(&b.named("read"), v).unwrap();
    let session = super::session(b, &devices).build().unwrap();
    let kept = |device: &str| {
        let all = devices.iter().map(|(_, device)| Arc::clone(device));
        let kept = all.filter(|it| it.attributes().name.ends_with(device));
        Arc::new(DeviceSet::new(kept).with_type_priorities_of(&devices))
    };
    let x = Tensor::from_values([2], &[1.0f32, 2.0]).unwrap();
    run(&session, "set", &x).unwrap();
    for (device, expected) in [DEVICES[0], DEVICES[1]]
        .into_iter()
        .zip([[2.0, 4.0], [3.0, 6.0]])
    {
        let replacement = session.replace_devices(kept(device)).unwrap();
        let bytes = replacement
            .moved
            .iter()
            .filter_map(|moved| moved.moved_state_bytes);
        assert_eq!(bytes.collect::<Vec<_>>(), [8]);
        run(&session, "add", &x).unwrap();
        let found = fetch(&session, "read").unwrap();
        assert_eq!(found.as_slice::<f32>().unwrap(), expected);
    }
}
