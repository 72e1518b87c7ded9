//! Makes candidates of a task graph and devices.

use std::sync::Arc;

use super::assemble::TaskGraph;
use super::draft::Duration;
use super::draft::to_u32;
use super::error::TaskGraphError;
use super::text::Shown;
use crate::candidates::Candidates;
use crate::candidates::CandidatesBuilder;
use crate::candidates::CandidatesError;
use crate::cluster::Place;
use crate::cost::CostClass;
use crate::cost::CostClasses;
use crate::device::DeviceSet;
use crate::graph::NodeId;

/// Larger tables of costs are refused: 2 GiB.
const COSTS_MAX: usize = 1 << 28;

/// At most so many devices are named in a message.
const DEVICES_SHOWN_MAX: usize = 8;

/// The device type whose first device took the times of a workflow.
const REFERENCE_TYPE: &str = "CPU";

impl TaskGraph {
    /// Makes candidates for placing the tasks on these devices, whose links and topology they take
    /// over. They serve [`SessionBuilder::with_candidates`], among others.
    ///
    /// A task with work takes the time that the cost model expects by the rates of the device. A
    /// task with times takes the same on all devices of a type, and cannot run on types that it
    /// states no time for. A task of a workflow (WfFormat) runs on devices of type CPU only: on the
    /// first one of the set it takes as long as it took, and on others as much longer as their rate
    /// of `f32` operations is lower.
    ///
    /// # Errors
    /// [`TaskGraphError::Invalid`] if a task can run on no device, with its line.
    /// [`TaskGraphError::Candidates`] if there are no devices, or one has a link with an invalid
    /// cost.
    ///
    /// [`SessionBuilder::with_candidates`]: crate::session::SessionBuilder::with_candidates
    pub fn candidates(&self, devices: &Arc<DeviceSet>) -> Result<Candidates, TaskGraphError> {
        let classes = self.classes(devices);
        let n_costs = self.graph.n_nodes().saturating_mul(classes.classes.len());
        if n_costs > COSTS_MAX {
            let problem = format!(
                "{} tasks and inputs on {} kinds of devices have {n_costs} costs; the limit is \
                 {COSTS_MAX}",
                self.graph.n_nodes(),
                classes.classes.len()
            );
            return Err(self.invalid(Place::default(), problem));
        }
        let costs = Costs::new(self, devices, &classes);
        let mut builder = CandidatesBuilder::by_class(&self.graph, devices, classes);
        let mut row = Vec::new();
        for (node, duration) in self.graph.nodes().zip(&self.durations) {
            if costs.fill(duration.as_ref(), &mut row) {
                builder = builder.with_costs_ns(node, &row);
            }
        }
        for request in &self.requests {
            let found = devices.find_matching(&request.name);
            if found.is_empty() && !devices.is_empty() {
                let problem = format!(
                    "no device matches `{}`; there are {}",
                    request.name.request_text(),
                    names(devices)
                );
                return Err(self.invalid(request.place.clone(), problem));
            }
            builder = builder.with_allowed_devices(&request.nodes, &found);
        }
        for &(node, other) in &self.colocated {
            builder = builder.with_colocation(node, other);
        }
        for &(node, priority) in &self.priorities {
            builder = builder.with_priority(node, priority);
        }
        builder.build().map_err(|error| match &error {
            CandidatesError::NoDeviceAtAnyCost { node }
            | CandidatesError::NoAllowedDevice { node } => match self.graph.find_node(node) {
                Some(node) => self.no_device(node, devices),
                None => TaskGraphError::Candidates(error),
            },
            _ => TaskGraphError::Candidates(error),
        })
    }

    /// Returns the columns of the cost table: one per device type if all tasks have times, else one
    /// per type and rates.
    fn classes(&self, devices: &DeviceSet) -> CostClasses {
        let of_types =
            |duration: &Option<Duration>| matches!(duration, None | Some(Duration::OfTypes(_)));
        if !self.durations.iter().all(of_types) {
            return CostClasses::of(devices);
        }
        let mut classes: Vec<CostClass> = Vec::new();
        let of_device = devices.iter().map(|(id, device)| {
            let device_type = &device.attributes().device_type;
            let known = classes.iter().position(|it| it.device_type == *device_type);
            to_u32(known.unwrap_or_else(|| {
                classes.push(CostClass {
                    device_type: device_type.clone(),
                    rates: devices.rates(id),
                });
                classes.len() - 1
            }))
        });
        let of_device = of_device.collect();
        CostClasses { of_device, classes }
    }

    fn invalid(&self, place: Place, problem: String) -> TaskGraphError {
        TaskGraphError::Invalid { place, problem }
    }

    /// Explains why a task has no device.
    fn no_device(&self, node: NodeId, devices: &DeviceSet) -> TaskGraphError {
        let mut reasons = Vec::new();
        match &self.durations[node.index()] {
            Some(Duration::OfTypes(times)) => {
                let types = times.iter().take(DEVICES_SHOWN_MAX);
                let types: Vec<String> = types
                    .map(|&(id, _)| Shown(&self.device_types[id as usize]).to_string())
                    .collect();
                reasons.push(format!("it has times for {}", types.join(", ")));
            }
            Some(Duration::OfReference(_)) => {
                reasons.push(format!("tasks of workflows run on type `{REFERENCE_TYPE}`"));
            }
            Some(Duration::Work { .. }) | None => {}
        }
        if !self.graph.requested(node).is_empty() {
            reasons.push(format!("it asks for `{}`", self.graph.requested(node)));
        }
        let is_colocated = |pair: &&(NodeId, NodeId)| pair.0 == node || pair.1 == node;
        if let Some(pair) = self.colocated.iter().find(is_colocated) {
            let other = if pair.0 == node { pair.1 } else { pair.0 };
            let other = Shown(self.graph.node_name(other)).to_string();
            reasons.push(format!("it is colocated with {other}"));
        }
        reasons.push(format!("the devices are {}", names(devices)));
        let problem = format!(
            "no device can run task {}: {}",
            Shown(self.graph.node_name(node)),
            reasons.join(", and ")
        );
        let place = Place {
            line: self.lines[node.index()] as usize,
            text: String::new(),
        };
        self.invalid(place, problem)
    }
}

/// Lists devices for a message.
fn names(devices: &DeviceSet) -> String {
    let first = devices.iter().take(DEVICES_SHOWN_MAX);
    let mut names: Vec<String> = first
        .map(|(_, device)| device.attributes().name.clone())
        .collect();
    let left_out = devices.len() - names.len();
    if left_out > 0 {
        names.push(format!("{left_out} more"));
    }
    names.join(", ")
}

/// Costs by class of devices.
struct Costs {
    /// Per type of the file, its classes.
    of_types: Vec<Vec<u32>>,
    /// Per class, by how much longer a task takes than on the reference; +inf if it cannot run
    /// there.
    factors: Vec<f64>,
}

impl Costs {
    fn new(tasks: &TaskGraph, devices: &DeviceSet, classes: &CostClasses) -> Self {
        let all = || (0u32..).zip(&classes.classes);
        let of_type = |name: &String| {
            let of_type = all().filter(|(_, class)| class.device_type == *name);
            of_type.map(|(index, _)| index).collect()
        };
        let reference = devices.of_type(REFERENCE_TYPE);
        let reference = reference.first().map(|&first| devices.rates(first));
        let flops_per_s = reference.map_or(0.0, |rates| rates.flops_per_s);
        let factor = |class: &CostClass| {
            let own = class.rates.flops_per_s;
            match class.device_type == REFERENCE_TYPE {
                false => f64::INFINITY,
                // Without rates there is nothing to compare.
                true if own > 0.0 && flops_per_s > 0.0 => flops_per_s / own,
                true => 1.0,
            }
        };
        Self {
            of_types: tasks.device_types.iter().map(of_type).collect(),
            factors: classes.classes.iter().map(factor).collect(),
        }
    }

    /// Sets the costs of a node. Returns whether they differ from those by its work.
    fn fill(&self, duration: Option<&Duration>, row: &mut Vec<f64>) -> bool {
        row.clear();
        match duration {
            None => row.resize(self.factors.len(), 0.0),
            Some(Duration::Work { .. }) => return false,
            Some(Duration::OfReference(ns)) => {
                row.extend(self.factors.iter().map(|factor| match factor.is_finite() {
                    true => ns * factor,
                    // Not even a task that takes no time.
                    false => f64::INFINITY,
                }));
            }
            Some(Duration::OfTypes(times)) => {
                row.resize(self.factors.len(), f64::INFINITY);
                for &(of_type, ns) in times {
                    for &class in &self.of_types[of_type as usize] {
                        row[class as usize] = ns;
                    }
                }
            }
        }
        true
    }
}
