//! Constants, feeds, views of tensors, and shapes: the ops whose kernels all devices share.

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::control;
use crate::backend::host_kernels::shape;
use crate::backend::host_kernels::state;
use crate::backend::types::INDICES;
use crate::device::KernelRegistry;

pub(super) fn register(registry: &mut KernelRegistry) {
    views(registry);
    control_flow(registry);
    shapes(registry);
}

fn views(registry: &mut KernelRegistry) {
    registry.register(def("Const").with_factory(state::constant));
    registry.register(def("Placeholder").with_factory(state::placeholder));
    registry.register(def("PlaceholderV2").with_factory(state::placeholder));
    registry.register(def("NoOp").with_factory(state::no_op));
    for op in [
        "Identity",
        "PlaceholderWithDefault",
        "StopGradient",
        "PreventGradient",
        "Snapshot",
    ] {
        registry.register(def(op).with_factory(state::identity));
    }
    registry.register(
        def("Reshape")
            .with_types("Tshape", &INDICES)
            .with_host_memory("shape")
            .with_factory(shape::reshape),
    );
    registry.register(
        def("ExpandDims")
            .with_types("Tdim", &INDICES)
            .with_host_memory("dim")
            .with_factory(shape::expand_dims),
    );
    registry.register(def("Squeeze").with_factory(shape::squeeze));
}

fn control_flow(registry: &mut KernelRegistry) {
    for op in ["Switch", "RefSwitch", "_SwitchN", "Merge", "RefMerge"] {
        registry.register(def(op).with_factory(control::of_executor));
    }
    for op in control::PASSING {
        registry.register(def(op).with_factory(state::identity));
    }
    registry.register(def("LoopCond").with_factory(state::identity));
    registry.register(def("ControlTrigger").with_factory(state::no_op));
    registry.register(def("IdentityN").with_factory(state::identity_n));
}

fn shapes(registry: &mut KernelRegistry) {
    for op in ["Shape", "ShapeN", "Size"] {
        registry.register(
            def(op)
                .with_types("out_type", &INDICES)
                .with_host_memory("output")
                .with_factory(shape::measure),
        );
    }
    registry.register(
        def("Rank")
            .with_host_memory("output")
            .with_factory(shape::rank),
    );
    registry.register(
        def("BroadcastArgs")
            .with_types("T", &INDICES)
            .with_host_memory("s0")
            .with_host_memory("s1")
            .with_host_memory("r0")
            .with_factory(shape::broadcast_args),
    );
    registry.register(
        def("Range")
            .with_types("Tidx", &shape::RANGES)
            .with_host_memory("start")
            .with_host_memory("limit")
            .with_host_memory("delta")
            .with_host_memory("output")
            .with_factory(shape::range),
    );
}
