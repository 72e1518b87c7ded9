//! Bindings generated from `wit/v0.1/policy.wit`.

/// A policy's handle of the graph: the graph of the current call.
#[derive(Debug)]
pub struct GraphHandle;

/// A policy's handle of the devices.
#[derive(Debug)]
pub struct DeviceSetHandle;

/// A policy's handle of the plan.
#[derive(Debug)]
pub struct PlanHandle;

/// A policy's handle of an earlier run. Policies own these handles: each is an index into the
/// store's state.
#[derive(Debug)]
pub struct ProfileHandle;

wasmtime::component::bindgen!({
    path: "wit/v0.1",
    world: "placewright:policy/policy",
    // So that a call that uses too much of the host can end as a trap.
    imports: { default: trappable },
    with: {
        "placewright:policy/graphs.graph": GraphHandle,
        "placewright:policy/graphs.profile": ProfileHandle,
        "placewright:policy/devices.device-set": DeviceSetHandle,
        "placewright:policy/planning.plan": PlanHandle,
    },
});
