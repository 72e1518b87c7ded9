//! Implements the SDK's sources with the contract's imports. Every call crosses the sandbox
//! boundary; the views cache the results.

use std::borrow::Cow;

use super::bindings::export_lifecycle::placewright::policy as wit;
use crate::source::BudgetUnit;
use crate::source::Counts;
use crate::source::Csr;
use crate::source::DeviceAttributes;
use crate::source::DeviceSource;
use crate::source::DeviceSpec;
use crate::source::Dims;
use crate::source::GraphSource;
use crate::source::LinkCost;
use crate::source::Locality;
use crate::source::LogLevel;
use crate::source::LogSink;
use crate::source::PlanSink;
use crate::source::Profile;
use crate::source::Strings;
use crate::source::Violation;

/// Columns that are returned unchanged: `name: entry type`.
macro_rules! columns {
    ($($name:ident: $entry:ty;)+) => {
        $(fn $name(&self) -> Cow<'_, [$entry]> {
            Cow::Owned(Self::$name(self))
        })+
    };
}

impl GraphSource for wit::graphs::Graph {
    fn counts(&self) -> Counts {
        let counts = Self::counts(self);
        Counts {
            nodes: counts.nodes,
            edges: counts.edges,
            tensors: counts.tensors,
            candidate_sets: counts.candidate_sets,
            groups: counts.groups,
            cost_rows: counts.cost_rows,
            cost_classes: counts.cost_classes,
        }
    }

    fn predecessors(&self) -> Csr<'_> {
        csr(Self::predecessors(self))
    }

    fn successors(&self) -> Csr<'_> {
        csr(Self::successors(self))
    }

    fn candidates(&self) -> Csr<'_> {
        csr(Self::candidates(self))
    }

    columns! {
        edge_tensors: u32;
        edge_kinds: u8;
        tensor_bytes: u64;
        tensor_nodes: u32;
        tensor_dtypes: u32;
        back_edges: u32;
        op_type: u32;
        executions: f64;
        flops: f64;
        resident_bytes: u64;
        workspace_bytes: u64;
        user_priority: i32;
        candidate_set: u32;
        group: u32;
        pinned: u32;
        placement_hints: u8;
        follow: u32;
        frame: u32;
        frame_parents: u32;
        cost_row: u32;
        costs: f64;
        cost_samples: u32;
    }

    fn tensor_dims(&self) -> Dims<'_> {
        let dims = Self::tensor_dims(self);
        Dims {
            offsets: dims.offsets.into(),
            sizes: dims.sizes.into(),
        }
    }

    fn op_type_names(&self) -> Vec<String> {
        Self::op_type_names(self)
    }

    fn requested(&self) -> Strings<'_> {
        strings(Self::requested(self))
    }

    fn options(&self) -> Vec<(String, String)> {
        properties(Self::options(self))
    }

    fn cost(&self, node: u32, device: u32) -> f64 {
        Self::cost(self, node, device)
    }

    fn node_name(&self, node: u32) -> String {
        Self::node_name(self, node)
    }

    fn node_names(&self) -> Strings<'_> {
        strings(Self::node_names(self))
    }

    fn last_run(&self) -> Option<Profile> {
        let profile = Self::last_run(self)?;
        Some(Profile {
            devices: profile.devices(),
            makespan_ns: profile.makespan(),
            node: profile.node(),
            device: profile.device(),
            mean_ns: profile.mean(),
            samples: profile.samples(),
            runs: profile.runs(),
            starts_ns: profile.starts(),
            transfer_mean_ns: profile.transfer_mean(),
        })
    }
}

impl DeviceSource for wit::devices::DeviceSet {
    fn count(&self) -> u32 {
        Self::count(self)
    }

    fn attributes(&self, device: u32) -> Option<DeviceAttributes> {
        Self::attributes(self, device).map(attributes)
    }

    fn all(&self) -> Vec<DeviceAttributes> {
        Self::all(self).into_iter().map(attributes).collect()
    }

    fn by_name(&self, name: &str) -> Option<u32> {
        Self::by_name(self, name)
    }

    fn by_spec(&self, spec: &DeviceSpec) -> Vec<u32> {
        Self::by_spec(
            self,
            &wit::types::DeviceSpec {
                job: spec.job.clone(),
                replica: spec.replica,
                task: spec.task,
                device_type: spec.device_type.clone(),
                index: spec.index,
            },
        )
    }

    fn by_spec_text(&self, spec: &str) -> Result<Vec<u32>, String> {
        Self::by_spec_text(self, spec).map_err(|error| match error {
            wit::types::LookupError::MalformedSpec(text) | wit::types::LookupError::Other(text) => {
                text
            }
        })
    }

    fn prioritized_types(&self) -> Vec<String> {
        Self::prioritized_types(self)
    }

    fn of_type(&self, device_type: &str) -> Vec<u32> {
        Self::of_type(self, device_type)
    }

    fn client_device(&self) -> Option<u32> {
        Self::client_device(self)
    }

    columns! {
        cost_classes: u32;
        link_domains: u32;
        chips: u32;
        memory_domains: u32;
        memory_capacity: u64;
        memory_free: u64;
        loads: f64;
        calibrated: u8;
        queues: u32;
    }

    fn links(&self) -> Vec<LinkCost> {
        Self::links(self).into_iter().map(link_cost).collect()
    }

    fn link(&self, src: u32, dst: u32) -> LinkCost {
        link_cost(Self::link(self, src, dst))
    }
}

impl PlanSink for wit::planning::Plan {
    fn set_devices(&self, device: &[u32]) {
        Self::set_devices(self, device);
    }

    fn devices(&self) -> Vec<u32> {
        Self::devices(self)
    }

    fn move_nodes(&self, nodes: &[u32], device: u32) {
        Self::move_(self, nodes, device);
    }

    fn makespan_ns(&self) -> f64 {
        Self::makespan(self)
    }

    fn violation(&self) -> Option<Violation> {
        Self::violation(self).map(violation)
    }

    fn transfer_bytes(&self) -> u64 {
        Self::transfer_bytes(self)
    }

    fn peak_bytes_per_device(&self) -> Vec<u64> {
        Self::peak_bytes_per_device(self)
    }

    fn set_start_order(&self, order: &[i32]) {
        Self::set_start_order(self, order);
    }

    fn set_queues(&self, queue: &[u32]) {
        Self::set_queues(self, queue);
    }

    fn set_streamed(&self, constants: &[u32]) {
        Self::set_streamed(self, constants);
    }

    fn explain_wanted(&self) -> bool {
        Self::explain_wanted(self)
    }

    fn explain(&self, nodes: &[u32], reason: &str) {
        Self::explain(self, nodes, reason);
    }

    fn metric(&self, name: &str, value: f64) {
        Self::metric(self, name, value);
    }

    fn offer(&self) -> Result<(), Violation> {
        Self::offer(self).map_err(violation)
    }

    fn budget_left(&self) -> u64 {
        Self::budget_left(self)
    }

    fn budget_unit(&self) -> BudgetUnit {
        match Self::budget_unit(self) {
            wit::planning::BudgetUnit::Unlimited => BudgetUnit::Unlimited,
            wit::planning::BudgetUnit::Fuel => BudgetUnit::Fuel,
            wit::planning::BudgetUnit::Nanoseconds => BudgetUnit::Nanoseconds,
            wit::planning::BudgetUnit::Other(unit) => BudgetUnit::Other(unit),
        }
    }
}

/// The host's log, as imported.
#[derive(Debug)]
pub(super) struct HostLog;

impl LogSink for HostLog {
    fn threshold(&self) -> LogLevel {
        match wit::log::threshold() {
            wit::log::Level::Trace => LogLevel::Trace,
            wit::log::Level::Debug => LogLevel::Debug,
            wit::log::Level::Info => LogLevel::Info,
            wit::log::Level::Warn => LogLevel::Warn,
            wit::log::Level::Error => LogLevel::Error,
        }
    }

    fn emit(&self, level: LogLevel, message: &str) {
        let level = match level {
            LogLevel::Trace => wit::log::Level::Trace,
            LogLevel::Debug => wit::log::Level::Debug,
            LogLevel::Info => wit::log::Level::Info,
            LogLevel::Warn => wit::log::Level::Warn,
            LogLevel::Error => wit::log::Level::Error,
        };
        wit::log::emit(level, message);
    }
}

fn csr(csr: wit::graphs::Csr) -> Csr<'static> {
    Csr {
        offsets: csr.offsets.into(),
        items: csr.items.into(),
    }
}

fn strings(strings: wit::graphs::Strings) -> Strings<'static> {
    Strings {
        offsets: strings.offsets.into(),
        text: strings.text.into(),
    }
}

fn properties(properties: Vec<wit::types::Property>) -> Vec<(String, String)> {
    properties
        .into_iter()
        .map(|property| (property.key, property.value))
        .collect()
}

fn link_cost(link: wit::types::LinkCost) -> LinkCost {
    LinkCost {
        latency_ns: link.latency,
        ns_per_byte: link.ns_per_byte,
    }
}

fn violation(violation: wit::planning::Violation) -> Violation {
    Violation {
        rule: violation.rule,
        node: violation.node,
        explanation: violation.explanation,
    }
}

fn attributes(attributes: wit::types::DeviceAttributes) -> DeviceAttributes {
    let locality = attributes.locality;
    DeviceAttributes {
        name: attributes.name,
        device_type: attributes.device_type,
        memory_limit: attributes.memory_limit,
        locality: Locality {
            bus_id: locality.bus_id,
            numa_node: locality.numa_node,
            links: locality
                .links
                .into_iter()
                .map(|link| (link.device, link.kind, link.strength))
                .collect(),
        },
        incarnation: attributes.incarnation,
        physical_description: attributes.physical_description,
        type_preference: attributes.type_preference,
        properties: properties(attributes.properties),
    }
}
