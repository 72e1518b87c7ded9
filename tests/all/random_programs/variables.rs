//! Variables in branches and loops that request other devices, or several variables of several
//! devices in one loop.

use placewright::builder::BuildError;
use placewright::builder::GraphBuilder;
use placewright::builder::Operation;
use placewright::builder::Scope;
use placewright::builder::Value;
use placewright::tensor::Boolean;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;

use super::endings::session;

/// Adds a variable of this value.
fn variable(b: &Scope, device: &str, value: f32) -> Result<(Value, Operation), BuildError> {
    let b = b.device(device)?;
    let value = b.scalar(value)?;
    let handle: Value = b
        .op("VarHandleOp")
        .attr("dtype", DType::F32)
        .attr("shape", PartialShape::scalar())
        .attr("shared_name", device)
        .value()?;
    let assign = b.op("AssignVariableOp").input(handle).input(value);
    Ok((handle, assign.finish()?))
}

fn add(b: &Scope, handle: Value, value: f32) -> Result<Operation, BuildError> {
    let value = b.scalar(value)?;
    let add = b.op("AssignAddVariableOp").input(handle).input(value);
    add.finish()
}

fn read(b: &Scope, handle: Value) -> Result<Value<f32>, BuildError> {
    let read = b.op("ReadVariableOp").input(handle);
    read.attr("dtype", DType::F32).value()
}

#[test]
fn a_loop_updates_variables_of_two_devices() {
    let b = GraphBuilder::new("two devices");
    let (x, x_is_set) = variable(&b, "/device:CPU:0", 1.0).unwrap();
    let (y, y_is_set) = variable(&b, "/device:CPU:1", 2.0).unwrap();
    let n = b
        .control_dependencies([x_is_set, y_is_set])
        .while_loop(
            b.scalar(0).unwrap(),
            |b, n| b.less(n, 3),
            |b, n| {
                add(b, x, 1.0)?;
                add(b, y, 10.0)?;
                b.add(n, 1)
            },
        )
        .unwrap();
    let after = b.control_dependencies([n]);
    read(&after.named("x"), x).unwrap();
    read(&after.named("y"), y).unwrap();
    let session = session(b.finish());
    for _ in 0..2 {
        let found = session.run(&[], &["x", "y"]).unwrap();
        assert_eq!(found[0].as_slice::<f32>().unwrap(), [4.0]);
        assert_eq!(found[1].as_slice::<f32>().unwrap(), [32.0]);
    }
}

#[test]
fn a_branch_that_requests_another_device_updates_a_variable_where_it_is() {
    let b = GraphBuilder::new("another device");
    let p = b.placeholder::<bool>("p", PartialShape::scalar()).unwrap();
    let (x, is_set) = variable(&b, "/device:CPU:0", 1.0).unwrap();
    let on_other = b.device("/device:CPU:1").unwrap();
    let y = on_other
        .control_dependencies([is_set])
        .cond(
            p,
            |b| {
                let there = b.device("/device:CPU:0")?;
                let added = add(&there, x, 1.0)?;
                let y = read(&there.control_dependencies([added]), x)?;
                b.mul(y, 3.0)
            },
            |b| b.scalar(0.0f32),
        )
        .unwrap();
    b.named("y").identity(y).unwrap();
    read(&b.named("x").control_dependencies([y]), x).unwrap();
    let session = session(b.finish());
    for (p, y, x) in [(true, 6.0, 2.0), (false, 0.0, 1.0)] {
        let p = Tensor::from_values(Shape::scalar(), &[Boolean::from(p)]).unwrap();
        let found = session.run(&[("p", p)], &["y", "x"]).unwrap();
        assert_eq!(found[0].as_slice::<f32>().unwrap(), [y]);
        assert_eq!(found[1].as_slice::<f32>().unwrap(), [x]);
    }
}

#[test]
fn effects_in_a_branch_of_a_function_wait_for_what_the_call_waits_for() {
    let b = GraphBuilder::new("order");
    let p = b.placeholder::<bool>("p", PartialShape::scalar()).unwrap();
    let (x, is_set) = variable(&b, "/device:CPU:0", 1.0).unwrap();
    let function = b.function("function", |b, (p,): (Value<bool>,)| {
        let y = b.cond(p, |b| read(b, x), |b| b.scalar(0.0f32))?;
        let zero = b.scalar(0)?;
        let n = b.while_loop(
            zero,
            |b, n| b.less_equal(b.cast::<f32>(n)?, read(b, x)?),
            |b, n| b.add(n, 1),
        )?;
        Ok((y, n))
    });
    let (y, n) = b
        .control_dependencies([is_set])
        .call(&function.unwrap(), (p,))
        .unwrap();
    b.named("y").identity(y).unwrap();
    b.named("n").identity(n).unwrap();
    let session = session(b.finish());
    let graph = session.graph();
    for read in ["cond/then", "while/cond"] {
        let read = format!("function/{read}/ReadVariableOp");
        let mut reached = vec![graph.find_node(&read).unwrap().0];
        let mut next = 0;
        while let Some(&node) = reached.get(next) {
            next += 1;
            for &producer in graph.predecessors().row(node as usize) {
                if !reached.contains(&producer) {
                    reached.push(producer);
                }
            }
        }
        let assign = graph.find_node("AssignVariableOp").unwrap();
        assert!(reached.contains(&assign.0), "{read}");
    }
    let p = Tensor::from_values(Shape::scalar(), &[Boolean::TRUE]).unwrap();
    let found = session.run(&[("p", p)], &["y", "n"]).unwrap();
    assert_eq!(found[0].as_slice::<f32>().unwrap(), [1.0]);
    assert_eq!(found[1].as_slice::<i32>().unwrap(), [2]);
}
