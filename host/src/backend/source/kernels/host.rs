//! Ops without a device function: constants, feeds and reshaped tensors, and shapes, which stay on
//! the host.
//!
//! These are the kernels of [`crate::backend::host_kernels`]: they read host-memory arguments and
//! forward inputs, whatever memory these are in.
//!
//! As in TensorFlow on GPUs, shapes, sizes, ranks and ranges are written to host memory, where
//! their readers need them. Unlike in TensorFlow, int32 data is on the device like any other data:
//! its sums and matmuls have kernels here, and each round trip would cost two transfers.

use crate::backend::host_kernels::control;
use crate::backend::host_kernels::shape;
use crate::backend::host_kernels::state;
use crate::backend::source::kernels::Table;
use crate::backend::types::ELEMENTS;
use crate::backend::types::INDICES;
use crate::tensor::DType;

pub(super) fn register(table: &mut Table<'_>) {
    views(table);
    control_flow(table);
    shapes(table);
}

fn views(table: &mut Table<'_>) {
    let def = table.def("Const").with_types("dtype", &ELEMENTS);
    table.add(def.with_factory(state::constant));
    for op in ["Placeholder", "PlaceholderV2"] {
        let def = table.def(op).with_types("dtype", &ELEMENTS);
        table.add(def.with_factory(state::placeholder));
    }
    let def = table.def("NoOp");
    table.add(def.with_factory(state::no_op));
    let passed = passed_types();
    let def = table.def("Identity").with_types("T", &passed);
    table.add(def.with_factory(state::identity));
    for (op, attr) in [
        ("PlaceholderWithDefault", "dtype"),
        ("StopGradient", "T"),
        ("PreventGradient", "T"),
        ("Snapshot", "T"),
    ] {
        let def = table.def(op).with_types(attr, &ELEMENTS);
        table.add(def.with_factory(state::identity));
    }
    let def = table.def("Reshape").with_types("T", &ELEMENTS);
    let def = def.with_types("Tshape", &INDICES);
    table.add(def.with_host_memory("shape").with_factory(shape::reshape));
    let def = table.def("ExpandDims").with_types("T", &ELEMENTS);
    let def = def.with_types("Tdim", &INDICES).with_host_memory("dim");
    table.add(def.with_factory(shape::expand_dims));
    let def = table.def("Squeeze").with_types("T", &ELEMENTS);
    table.add(def.with_factory(shape::squeeze));
}

/// Types of what control flow and `Identity` pass on. Handles are in host memory on every device.
fn passed_types() -> Vec<DType> {
    [&ELEMENTS[..], &[DType::Resource]].concat()
}

fn control_flow(table: &mut Table<'_>) {
    let passed = passed_types();
    for (op, selector) in [
        ("Switch", "pred"),
        ("RefSwitch", "pred"),
        ("_SwitchN", "output_index"),
    ] {
        let def = table.def(op).with_types("T", &passed);
        table.add(
            def.with_host_memory(selector)
                .with_factory(control::of_executor),
        );
    }
    for op in ["Merge", "RefMerge"] {
        let def = table.def(op).with_types("T", &passed);
        table.add(
            def.with_host_memory("value_index")
                .with_factory(control::of_executor),
        );
    }
    for op in control::PASSING {
        let def = table.def(op).with_types("T", &passed);
        table.add(def.with_factory(state::identity));
    }
    // The condition decides on the host.
    let def = table
        .def("LoopCond")
        .with_host_memory("input")
        .with_host_memory("output");
    table.add(def.with_factory(state::identity));
    let def = table.def("ControlTrigger");
    table.add(def.with_factory(state::no_op));
    let def = table.def("IdentityN").with_types("T", &ELEMENTS);
    table.add(def.with_factory(state::identity_n));
}

fn shapes(table: &mut Table<'_>) {
    for op in ["Shape", "ShapeN", "Size"] {
        let def = table.def(op).with_types("T", &ELEMENTS);
        let def = def.with_types("out_type", &INDICES);
        table.add(def.with_host_memory("output").with_factory(shape::measure));
    }
    let def = table.def("Rank").with_types("T", &ELEMENTS);
    table.add(def.with_host_memory("output").with_factory(shape::rank));
    let mut def = table.def("BroadcastArgs").with_types("T", &INDICES);
    for arg in ["s0", "s1", "r0"] {
        def = def.with_host_memory(arg);
    }
    table.add(def.with_factory(shape::broadcast_args));
    let mut def = table.def("Range").with_types("Tidx", &shape::RANGES);
    for arg in ["start", "limit", "delta", "output"] {
        def = def.with_host_memory(arg);
    }
    table.add(def.with_factory(shape::range));
}
