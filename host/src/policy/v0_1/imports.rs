//! The imports of policies: the host's side of `devices`, `graphs`, `planning` and `log`.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use placewright_guest::source;
use placewright_guest::source::{DeviceSource, GraphSource, LogLevel, LogSink, PlanSink};
use wasmtime::component::{HasSelf, Linker, Resource};
use wasmtime::{Result, StoreContextMut, format_err};

use super::bindings::placewright::policy::{devices, graphs, log, planning, types};
use super::bindings::{DeviceSetHandle, GraphHandle, PlanHandle, ProfileHandle};
use crate::policy::limiter::{LimitHit, Limiter};
use crate::policy::limits::PolicyLimits;
use crate::policy::messages::MessageBook;
use crate::policy::plan::PolicyPlan;
use crate::policy::ticker::CallEnd;
use crate::policy::view::View;

/// The fuel for one evaluation of a plan, per node and edge. About the fuel that a guest would use
/// for the same work; it must only be the same on every machine.
const FUEL_PER_EVALUATED_ITEM: u64 = 8;
/// The fuel for a host call itself, which takes some 50 ns.
const FUEL_PER_CALL: u64 = 64;

/// The host's half of a policy's store.
pub(in crate::policy) struct State {
    pub(in crate::policy) limiter: Limiter,
    pub(in crate::policy) messages: Arc<MessageBook>,
    /// The end of the call, if calls are metered by deadlines.
    pub(in crate::policy) call_end: CallEnd,
    call: Option<Call>,
    /// The runs that the guest holds handles to.
    profiles: Vec<Option<source::Profile>>,
    /// The fuel that imports of this call may use, if calls are metered by fuel. Wasm fuel does
    /// not include the host's work.
    host_fuel: Option<HostFuel>,
}

/// The fuel for host calls within one call into the policy.
#[derive(Debug, Clone, Copy)]
struct HostFuel {
    limit: u64,
    left: u64,
}

/// The resources that the guest borrows for one call.
struct Call {
    view: View,
    plan: Option<PolicyPlan>,
    /// Nodes and edges.
    n_items: u64,
}

impl State {
    pub(in crate::policy) fn new(limits: &PolicyLimits, messages: Arc<MessageBook>) -> Self {
        Self {
            limiter: Limiter::new(limits),
            messages,
            call_end: CallEnd::Never,
            call: None,
            profiles: Vec::new(),
            host_fuel: None,
        }
    }

    /// Sets the fuel that imports of the next call may use; `None` means that only the deadline
    /// bounds them.
    pub(in crate::policy) fn set_host_fuel(&mut self, fuel: Option<u64>) {
        self.host_fuel = fuel.map(|fuel| HostFuel {
            limit: fuel,
            left: fuel,
        });
    }

    /// Returns the fuel that imports of the last call used, or `None` if calls are metered by
    /// deadlines.
    pub(in crate::policy) fn host_fuel_used(&self) -> Option<u64> {
        self.host_fuel.map(|fuel| fuel.limit - fuel.left)
    }

    /// Provides the graph, devices and optionally a plan to the guest.
    pub(super) fn begin_call(&mut self, view: View, plan: Option<PolicyPlan>) {
        let counts = view.counts();
        let n_items = u64::from(counts.nodes) + u64::from(counts.edges);
        self.call = Some(Call {
            view,
            plan,
            n_items,
        });
    }

    /// Removes them, and returns the plan with the guest's offers.
    pub(in crate::policy) fn end_call(&mut self) -> Option<PolicyPlan> {
        self.call.take()?.plan
    }

    fn call(&self) -> Result<&Call> {
        // Handles are borrowed: the sandbox drops them at the end of the call.
        self.call
            .as_ref()
            .ok_or_else(|| format_err!("graph, devices or plan used outside of a call"))
    }

    fn view(&self) -> Result<&View> {
        Ok(&self.call()?.view)
    }

    fn plan(&self) -> Result<&PolicyPlan> {
        let plan = self.call()?.plan.as_ref();
        plan.ok_or_else(|| format_err!("the call has no plan"))
    }

    /// Charges an import's fuel, in addition to that of the call itself. Every import calls it
    /// once.
    fn charge(&mut self, fuel: u64) -> Result<()> {
        if let Some(HostFuel { left, .. }) = &mut self.host_fuel {
            let fuel = fuel.saturating_add(FUEL_PER_CALL);
            let rest = left.checked_sub(fuel);
            *left = rest.unwrap_or(0);
            rest.ok_or(LimitHit::HostFuel)?;
        }
        Ok(())
    }

    /// Returns the plan, for an operation that evaluates the whole of it.
    fn evaluated_plan(&mut self) -> Result<&PolicyPlan> {
        let n_items = self.call()?.n_items;
        self.charge(n_items.saturating_mul(FUEL_PER_EVALUATED_ITEM))?;
        self.plan()
    }

    fn column<T: Clone>(&mut self, get: impl FnOnce(&View) -> Cow<'_, [T]>) -> Result<Vec<T>> {
        let column = get(self.view()?).into_owned();
        self.charge(column.len() as u64)?;
        Ok(column)
    }

    fn csr(&mut self, get: impl FnOnce(&View) -> source::Csr<'_>) -> Result<graphs::Csr> {
        let csr = get(self.view()?);
        let csr = graphs::Csr {
            offsets: csr.offsets.into_owned(),
            items: csr.items.into_owned(),
        };
        self.charge((csr.offsets.len() + csr.items.len()) as u64)?;
        Ok(csr)
    }

    fn strings(
        &mut self,
        get: impl FnOnce(&View) -> source::Strings<'_>,
    ) -> Result<graphs::Strings> {
        let strings = get(self.view()?);
        let strings = graphs::Strings {
            offsets: strings.offsets.into_owned(),
            text: strings.text.into_owned(),
        };
        self.charge((strings.offsets.len() + strings.text.len()) as u64)?;
        Ok(strings)
    }

    /// Charges for an operation on every device and for the bytes of its arguments, and runs it.
    fn of_devices<T>(&mut self, n_bytes_asked: usize, get: impl FnOnce(&View) -> T) -> Result<T> {
        let n_devices = u64::from(self.view()?.count());
        self.charge((n_bytes_asked as u64).saturating_add(n_devices.saturating_mul(16)))?;
        Ok(get(self.view()?))
    }

    /// Charges for an operation of constant cost.
    fn asked(&mut self) -> Result<&View> {
        self.charge(0)?;
        self.view()
    }

    /// Returns a column of an earlier run.
    fn profile_column<T: Clone>(
        &mut self,
        handle: &Resource<ProfileHandle>,
        get: impl FnOnce(&source::Profile) -> &Vec<T>,
    ) -> Result<Vec<T>> {
        let column = get(self.profile(handle)?).clone();
        self.charge(column.len() as u64)?;
        Ok(column)
    }

    fn profile(&self, handle: &Resource<ProfileHandle>) -> Result<&source::Profile> {
        self.profiles
            .get(handle.rep() as usize)
            .and_then(Option::as_ref)
            .ok_or_else(|| format_err!("no such profile"))
    }
}

/// Defines every import.
///
/// # Errors
/// Two definitions have one name.
pub(super) fn add_to_linker(linker: &mut Linker<State>) -> Result<()> {
    types::add_to_linker::<_, HasSelf<State>>(linker, |state| state)?;
    devices::add_to_linker::<_, HasSelf<State>>(linker, |state| state)?;
    graphs::add_to_linker::<_, HasSelf<State>>(linker, |state| state)?;
    planning::add_to_linker::<_, HasSelf<State>>(linker, |state| state)?;
    log::add_to_linker::<_, HasSelf<State>>(linker, |state| state)?;
    // The only import that needs the store itself, which has the fuel. Generated imports only have
    // access to its data.
    linker.allow_shadowing(true);
    let name = format!(
        "placewright:policy/planning@{}",
        crate::policy::form::CONTRACT_VERSION
    );
    linker.instance(&name)?.func_wrap(
        "[method]plan.budget-left",
        |mut store: StoreContextMut<'_, State>, (_plan,): (Resource<PlanHandle>,)| {
            store.data_mut().charge(0)?;
            let left = match store.data().host_fuel {
                None => store.data_mut().call_end.left_ns(Instant::now()),
                Some(host_fuel) => store.get_fuel()?.min(host_fuel.left),
            };
            Ok((left,))
        },
    )?;
    linker.allow_shadowing(false);
    Ok(())
}

/// Defines getters of whole columns: name and type of an item.
macro_rules! columns {
    ($handle:ty; $($name:ident: $item:ty),* $(,)?) => {
        $(fn $name(&mut self, _: Resource<$handle>) -> Result<Vec<$item>> {
            self.column(|view| view.$name())
        })*
    };
}

impl types::Host for State {}

impl devices::Host for State {}

impl devices::HostDeviceSet for State {
    columns! { DeviceSetHandle;
        cost_classes: u32,
        link_domains: u32,
        chips: u32,
        memory_domains: u32,
        memory_capacity: u64,
        memory_free: u64,
        loads: f64,
        calibrated: u8,
        queues: u32,
    }

    fn count(&mut self, _: Resource<DeviceSetHandle>) -> Result<u32> {
        Ok(self.asked()?.count())
    }

    fn attributes(
        &mut self,
        _: Resource<DeviceSetHandle>,
        device: u32,
    ) -> Result<Option<types::DeviceAttributes>> {
        let found = self.of_devices(0, |view| view.attributes(device))?;
        Ok(found.map(device_attributes))
    }

    fn all(&mut self, _: Resource<DeviceSetHandle>) -> Result<Vec<types::DeviceAttributes>> {
        let all = self.of_devices(0, View::all)?;
        Ok(all.into_iter().map(device_attributes).collect())
    }

    fn by_name(&mut self, _: Resource<DeviceSetHandle>, name: String) -> Result<Option<u32>> {
        self.of_devices(name.len(), |view| view.by_name(&name))
    }

    fn by_spec(
        &mut self,
        _: Resource<DeviceSetHandle>,
        spec: types::DeviceSpec,
    ) -> Result<Vec<u32>> {
        let spec = source::DeviceSpec {
            job: spec.job,
            replica: spec.replica,
            task: spec.task,
            device_type: spec.device_type,
            index: spec.index,
        };
        let names = [&spec.job, &spec.device_type];
        let n_bytes = names.into_iter().flatten().map(String::len).sum();
        self.of_devices(n_bytes, |view| view.by_spec(&spec))
    }

    fn by_spec_text(
        &mut self,
        _: Resource<DeviceSetHandle>,
        spec: String,
    ) -> Result<std::result::Result<Vec<u32>, types::LookupError>> {
        let found = self.of_devices(spec.len(), |view| view.by_spec_text(&spec))?;
        Ok(found.map_err(types::LookupError::MalformedSpec))
    }

    fn prioritized_types(&mut self, _: Resource<DeviceSetHandle>) -> Result<Vec<String>> {
        self.of_devices(0, View::prioritized_types)
    }

    fn of_type(&mut self, _: Resource<DeviceSetHandle>, device_type: String) -> Result<Vec<u32>> {
        self.of_devices(device_type.len(), |view| view.of_type(&device_type))
    }

    fn client_device(&mut self, _: Resource<DeviceSetHandle>) -> Result<Option<u32>> {
        Ok(self.asked()?.client_device())
    }

    fn links(&mut self, _: Resource<DeviceSetHandle>) -> Result<Vec<types::LinkCost>> {
        let links = self.view()?.links();
        self.charge(links.len() as u64)?;
        Ok(links.into_iter().map(link_cost).collect())
    }

    fn link(
        &mut self,
        _: Resource<DeviceSetHandle>,
        src: u32,
        dst: u32,
    ) -> Result<types::LinkCost> {
        Ok(link_cost(self.asked()?.link(src, dst)))
    }

    fn drop(&mut self, _: Resource<DeviceSetHandle>) -> Result<()> {
        Ok(())
    }
}

impl graphs::Host for State {}

impl graphs::HostGraph for State {
    columns! { GraphHandle;
        edge_tensors: u32,
        edge_kinds: u8,
        tensor_bytes: u64,
        tensor_nodes: u32,
        tensor_dtypes: u32,
        back_edges: u32,
        op_type: u32,
        executions: f64,
        flops: f64,
        resident_bytes: u64,
        workspace_bytes: u64,
        user_priority: i32,
        candidate_set: u32,
        group: u32,
        pinned: u32,
        placement_hints: u8,
        follow: u32,
        frame: u32,
        frame_parents: u32,
        cost_row: u32,
        costs: f64,
        cost_samples: u32,
    }

    fn counts(&mut self, _: Resource<GraphHandle>) -> Result<graphs::Counts> {
        let counts = self.asked()?.counts();
        Ok(graphs::Counts {
            nodes: counts.nodes,
            edges: counts.edges,
            tensors: counts.tensors,
            candidate_sets: counts.candidate_sets,
            groups: counts.groups,
            cost_rows: counts.cost_rows,
            cost_classes: counts.cost_classes,
        })
    }

    fn predecessors(&mut self, _: Resource<GraphHandle>) -> Result<graphs::Csr> {
        self.csr(View::predecessors)
    }

    fn successors(&mut self, _: Resource<GraphHandle>) -> Result<graphs::Csr> {
        self.csr(View::successors)
    }

    fn tensor_dims(&mut self, _: Resource<GraphHandle>) -> Result<graphs::Dims> {
        let dims = self.view()?.tensor_dims();
        let dims = graphs::Dims {
            offsets: dims.offsets.into_owned(),
            sizes: dims.sizes.into_owned(),
        };
        self.charge((dims.offsets.len() + dims.sizes.len()) as u64)?;
        Ok(dims)
    }

    fn op_type_names(&mut self, _: Resource<GraphHandle>) -> Result<Vec<String>> {
        let names = self.view()?.op_type_names();
        self.charge(names.iter().map(|name| name.len() as u64).sum())?;
        Ok(names)
    }

    fn candidates(&mut self, _: Resource<GraphHandle>) -> Result<graphs::Csr> {
        self.csr(View::candidates)
    }

    fn requested(&mut self, _: Resource<GraphHandle>) -> Result<graphs::Strings> {
        self.strings(View::requested)
    }

    fn options(&mut self, _: Resource<GraphHandle>) -> Result<Vec<types::Property>> {
        Ok(properties(self.asked()?.options()))
    }

    fn cost(&mut self, _: Resource<GraphHandle>, node: u32, device: u32) -> Result<f64> {
        Ok(self.asked()?.cost(node, device))
    }

    fn node_name(&mut self, _: Resource<GraphHandle>, node: u32) -> Result<String> {
        let name = self.view()?.node_name(node);
        self.charge(name.len() as u64)?;
        Ok(name)
    }

    fn node_names(&mut self, _: Resource<GraphHandle>) -> Result<graphs::Strings> {
        self.strings(View::node_names)
    }

    fn last_run(&mut self, _: Resource<GraphHandle>) -> Result<Option<Resource<ProfileHandle>>> {
        let Some(profile) = self.asked()?.last_run() else {
            return Ok(None);
        };
        let free = self.profiles.iter().position(Option::is_none);
        let rep = free.unwrap_or_else(|| {
            self.profiles.push(None);
            self.profiles.len() - 1
        });
        self.profiles[rep] = Some(profile);
        Ok(Some(Resource::new_own(u32::try_from(rep)?)))
    }

    fn drop(&mut self, _: Resource<GraphHandle>) -> Result<()> {
        Ok(())
    }
}

impl graphs::HostProfile for State {
    fn devices(&mut self, profile: Resource<ProfileHandle>) -> Result<Vec<u32>> {
        self.profile_column(&profile, |profile| &profile.devices)
    }

    fn makespan(&mut self, profile: Resource<ProfileHandle>) -> Result<f64> {
        self.charge(0)?;
        Ok(self.profile(&profile)?.makespan_ns)
    }

    fn node(&mut self, profile: Resource<ProfileHandle>) -> Result<Vec<u32>> {
        self.profile_column(&profile, |profile| &profile.node)
    }

    fn device(&mut self, profile: Resource<ProfileHandle>) -> Result<Vec<u32>> {
        self.profile_column(&profile, |profile| &profile.device)
    }

    fn mean(&mut self, profile: Resource<ProfileHandle>) -> Result<Vec<f64>> {
        self.profile_column(&profile, |profile| &profile.mean_ns)
    }

    fn samples(&mut self, profile: Resource<ProfileHandle>) -> Result<Vec<u32>> {
        self.profile_column(&profile, |profile| &profile.samples)
    }

    fn runs(&mut self, profile: Resource<ProfileHandle>) -> Result<u32> {
        self.charge(0)?;
        Ok(self.profile(&profile)?.runs)
    }

    fn starts(&mut self, profile: Resource<ProfileHandle>) -> Result<Vec<f64>> {
        self.profile_column(&profile, |profile| &profile.starts_ns)
    }

    fn transfer_mean(&mut self, profile: Resource<ProfileHandle>) -> Result<Vec<f64>> {
        self.profile_column(&profile, |profile| &profile.transfer_mean_ns)
    }

    fn drop(&mut self, profile: Resource<ProfileHandle>) -> Result<()> {
        if let Some(slot) = self.profiles.get_mut(profile.rep() as usize) {
            *slot = None;
        }
        Ok(())
    }
}

impl planning::Host for State {}

impl planning::HostPlan for State {
    fn set_devices(&mut self, _: Resource<PlanHandle>, device: Vec<u32>) -> Result<()> {
        self.charge(device.len() as u64)?;
        self.plan()?.set_devices(&device);
        Ok(())
    }

    fn devices(&mut self, _: Resource<PlanHandle>) -> Result<Vec<u32>> {
        let devices = self.plan()?.devices();
        self.charge(devices.len() as u64)?;
        Ok(devices)
    }

    fn move_(&mut self, _: Resource<PlanHandle>, nodes: Vec<u32>, device: u32) -> Result<()> {
        // Charged afterwards, when the sizes of the groups are known. A call visits no node twice,
        // so its work before it is refused is bounded.
        let n_visited = self.plan()?.move_and_count(&nodes, device);
        self.charge(n_visited as u64)
    }

    fn makespan(&mut self, _: Resource<PlanHandle>) -> Result<f64> {
        Ok(self.evaluated_plan()?.makespan_ns())
    }

    fn violation(&mut self, _: Resource<PlanHandle>) -> Result<Option<planning::Violation>> {
        Ok(self.evaluated_plan()?.violation().map(violation))
    }

    fn transfer_bytes(&mut self, _: Resource<PlanHandle>) -> Result<u64> {
        Ok(self.evaluated_plan()?.transfer_bytes())
    }

    fn peak_bytes_per_device(&mut self, _: Resource<PlanHandle>) -> Result<Vec<u64>> {
        Ok(self.evaluated_plan()?.peak_bytes_per_device())
    }

    fn set_start_order(&mut self, _: Resource<PlanHandle>, order: Vec<i32>) -> Result<()> {
        self.charge(order.len() as u64)?;
        self.plan()?.set_start_order(&order);
        Ok(())
    }

    fn set_queues(&mut self, _: Resource<PlanHandle>, queue: Vec<u32>) -> Result<()> {
        self.charge(queue.len() as u64)?;
        self.plan()?.set_queues(&queue);
        Ok(())
    }

    fn set_streamed(&mut self, _: Resource<PlanHandle>, constants: Vec<u32>) -> Result<()> {
        self.charge(constants.len() as u64)?;
        self.plan()?.set_streamed(&constants);
        Ok(())
    }

    fn explain_wanted(&mut self, _: Resource<PlanHandle>) -> Result<bool> {
        self.charge(0)?;
        Ok(self.plan()?.explain_wanted())
    }

    fn explain(&mut self, _: Resource<PlanHandle>, nodes: Vec<u32>, reason: String) -> Result<()> {
        self.charge((nodes.len() + reason.len()) as u64)?;
        self.plan()?.explain(&nodes, &reason);
        Ok(())
    }

    fn metric(&mut self, _: Resource<PlanHandle>, name: String, value: f64) -> Result<()> {
        self.charge(name.len() as u64)?;
        self.plan()?.metric(&name, value);
        Ok(())
    }

    fn offer(
        &mut self,
        _: Resource<PlanHandle>,
    ) -> Result<std::result::Result<(), planning::Violation>> {
        Ok(self.evaluated_plan()?.offer().map_err(violation))
    }

    fn budget_left(&mut self, _: Resource<PlanHandle>) -> Result<u64> {
        Err(format_err!(
            "`budget-left` is defined on the store, see `add_to_linker`"
        ))
    }

    fn budget_unit(&mut self, _: Resource<PlanHandle>) -> Result<planning::BudgetUnit> {
        self.charge(0)?;
        Ok(match (self.host_fuel, self.call_end) {
            (Some(_), _) => planning::BudgetUnit::Fuel,
            (None, CallEnd::Never) => planning::BudgetUnit::Unlimited,
            (None, CallEnd::At(_) | CallEnd::Unmeasured(_)) => planning::BudgetUnit::Nanoseconds,
        })
    }

    fn drop(&mut self, _: Resource<PlanHandle>) -> Result<()> {
        Ok(())
    }
}

impl log::Host for State {
    fn threshold(&mut self) -> Result<log::Level> {
        self.charge(0)?;
        Ok(match self.messages.threshold() {
            LogLevel::Trace => log::Level::Trace,
            LogLevel::Debug => log::Level::Debug,
            LogLevel::Info => log::Level::Info,
            LogLevel::Warn => log::Level::Warn,
            LogLevel::Error => log::Level::Error,
        })
    }

    fn emit(&mut self, level: log::Level, message: String) -> Result<()> {
        let level = match level {
            log::Level::Trace => LogLevel::Trace,
            log::Level::Debug => LogLevel::Debug,
            log::Level::Info => LogLevel::Info,
            log::Level::Warn => LogLevel::Warn,
            log::Level::Error => LogLevel::Error,
        };
        // Stored before it is charged: the message of a panic must not be lost for lack of fuel.
        self.messages.emit(level, &message);
        self.charge(message.len() as u64)
    }
}

fn violation(violation: source::Violation) -> planning::Violation {
    planning::Violation {
        rule: violation.rule,
        node: violation.node,
        explanation: violation.explanation,
    }
}

fn link_cost(cost: source::LinkCost) -> types::LinkCost {
    types::LinkCost {
        latency: cost.latency_ns,
        ns_per_byte: cost.ns_per_byte,
    }
}

fn properties(properties: Vec<(String, String)>) -> Vec<types::Property> {
    properties
        .into_iter()
        .map(|(key, value)| types::Property { key, value })
        .collect()
}

fn device_attributes(attributes: source::DeviceAttributes) -> types::DeviceAttributes {
    let links = attributes.locality.links.into_iter();
    types::DeviceAttributes {
        name: attributes.name,
        device_type: attributes.device_type,
        memory_limit: attributes.memory_limit,
        locality: types::Locality {
            bus_id: attributes.locality.bus_id,
            numa_node: attributes.locality.numa_node,
            links: links
                .map(|(device, kind, strength)| types::LocalLink {
                    device,
                    kind,
                    strength,
                })
                .collect(),
        },
        incarnation: attributes.incarnation,
        physical_description: attributes.physical_description,
        type_preference: attributes.type_preference,
        properties: properties(attributes.properties),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::candidates::CandidatesBuilder;
    use crate::candidates::PlacementOptions;
    use crate::candidates::enumerate;
    use crate::candidates::synthetic;
    use crate::graph::NodeId;
    use crate::policy::loaded::PlaceOptions;

    fn state() -> State {
        let graph = Arc::new(synthetic::SyntheticGraph::new(20, 0).build());
        let devices = Arc::new(synthetic::devices(2));
        let kernels = synthetic::kernels();
        let options = PlacementOptions::default();
        let candidates = enumerate(&graph, &devices, &kernels, &options).unwrap();
        let limits = PolicyLimits::default();
        let mut state = State::new(&limits, Arc::new(MessageBook::new(&limits)));
        state.begin_call(View::new(candidates, &limits), None);
        state
    }

    fn is_out_of_fuel<T>(asked: Result<T>) -> bool {
        asked
            .err()
            .is_some_and(|error| error.downcast_ref() == Some(&LimitHit::HostFuel))
    }

    #[test]
    fn the_bytes_of_a_question_cost_fuel() {
        use self::devices::HostDeviceSet;

        let mut state = state();
        let handle = || Resource::new_borrow(0);
        for (n_bytes, is_too_long) in [(100, false), (10_000, true)] {
            let text = "x".repeat(n_bytes);
            let fresh = |state: &mut State| state.set_host_fuel(Some(5_000));
            fresh(&mut state);
            let asked = state.by_name(handle(), text.clone());
            assert_eq!(is_out_of_fuel(asked), is_too_long, "by-name");
            fresh(&mut state);
            let asked = state.by_spec_text(handle(), text.clone());
            assert_eq!(is_out_of_fuel(asked), is_too_long, "by-spec-text");
            fresh(&mut state);
            let asked = state.of_type(handle(), text.clone());
            assert_eq!(is_out_of_fuel(asked), is_too_long, "of-type");
            fresh(&mut state);
            let spec = types::DeviceSpec {
                job: Some(text),
                replica: None,
                task: None,
                device_type: None,
                index: None,
            };
            let asked = state.by_spec(handle(), spec);
            assert_eq!(is_out_of_fuel(asked), is_too_long, "by-spec");
        }
    }

    #[test]
    fn the_smallest_questions_cost_fuel_as_well() {
        use self::devices::HostDeviceSet;
        use self::graphs::HostGraph;

        let mut state = state();
        let n_calls = 10;
        state.set_host_fuel(Some(3 * n_calls * FUEL_PER_CALL));
        for _ in 0..n_calls {
            state.count(Resource::new_borrow(0)).unwrap();
            state.cost(Resource::new_borrow(0), 0, 0).unwrap();
            state.link(Resource::new_borrow(0), 0, 1).unwrap();
        }
        assert!(is_out_of_fuel(state.count(Resource::new_borrow(0))));
        state.set_host_fuel(None);
        state.count(Resource::new_borrow(0)).unwrap();
    }

    #[test]
    fn a_move_is_charged_for_every_member_of_a_group_but_once() {
        let graph = synthetic::graph(100, 1);
        let mut builder = CandidatesBuilder::new(&graph, &Arc::new(synthetic::devices(2)));
        for node in 1..60 {
            builder = builder.with_colocation(NodeId(0), NodeId(node));
        }
        let candidates = builder.build().unwrap();
        let limits = PolicyLimits::default();
        let mut state = State::new(&limits, Arc::new(MessageBook::new(&limits)));
        let book = PolicyPlan::new(&candidates, &PlaceOptions::default(), &limits);
        book.set_devices(&[0; 100]);
        state.begin_call(View::new(candidates, &limits), Some(book));
        let mut left_after = |nodes: Vec<u32>, fuel| {
            state.set_host_fuel(Some(FUEL_PER_CALL + fuel));
            let moved = planning::HostPlan::move_(&mut state, Resource::new_borrow(0), nodes, 1);
            moved.ok().and(state.host_fuel).map(|fuel| fuel.left)
        };
        assert_eq!(left_after(vec![5], 100), Some(100 - 1 - 60));
        assert_eq!(left_after(vec![7; 30], 100), Some(100 - 30 - 60));
        assert_eq!(left_after(vec![7, 80, 81, 999], 100), Some(100 - 4 - 62));
        assert_eq!(left_after(vec![7; 41], 100), None);
        assert_eq!(
            state.host_fuel_used(),
            Some(FUEL_PER_CALL + 100),
            "a call that is refused uses up the rest"
        );
    }
}
