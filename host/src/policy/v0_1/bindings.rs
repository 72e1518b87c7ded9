//! Bindings generated from `wit/v0.1/policy.wit`.

/// What a policy's handle of the graph stands for: the graph of the call it was lent for.
#[derive(Debug)]
pub struct GraphHandle;

/// The same for the devices.
#[derive(Debug)]
pub struct DeviceSetHandle;

/// The same for the plan.
#[derive(Debug)]
pub struct PlanHandle;

/// An earlier run. Policies own these handles: they are positions in the store's state.
#[derive(Debug)]
pub struct ProfileHandle;

wasmtime::component::bindgen!({
    path: "wit/v0.1",
    world: "placewright:policy/policy",
    // So that a call that costs the host too much can end as a trap.
    imports: { default: trappable },
    with: {
        "placewright:policy/graphs.graph": GraphHandle,
        "placewright:policy/graphs.profile": ProfileHandle,
        "placewright:policy/devices.device-set": DeviceSetHandle,
        "placewright:policy/planning.plan": PlanHandle,
    },
});
