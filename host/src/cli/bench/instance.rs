//! A task graph and the network that it runs on, as DAGBench and SAGA describe them.
//!
//! A task takes its cost, divided by the speed of its node; data takes its size, divided by the
//! speed of the link between two nodes. A node executes one task at a time, and transfers do not
//! slow each other down.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Result;
use anyhow::bail;
use serde::Deserialize;
use serde::Serialize;
use serde_json::json;

use crate::candidates::Candidates;
use crate::dag::TaskGraph;
use crate::device::Device;
use crate::device::DeviceAttributes;
use crate::device::DeviceSet;
use crate::device::LinkRates;
use crate::device::SimpleDevice;
use crate::names::DeviceId;
use crate::names::DeviceName;

/// The time unit of a task graph is a millisecond.
pub(super) const NS_PER_UNIT: f64 = 1e6;

/// Bytes of the largest data: sizes are rounded to whole bytes.
const LARGEST_BYTES: f64 = 1e9;

/// No task graph fills it.
const MEMORY_BYTES: u64 = 1 << 60;

#[derive(Debug, Clone, Deserialize, Serialize)]
pub(super) struct Instance {
    pub(super) name: String,
    pub(super) task_graph: Tasks,
    pub(super) network: Network,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
pub(super) struct Tasks {
    pub(super) tasks: Vec<Task>,
    pub(super) dependencies: Vec<Dependency>,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
pub(super) struct Task {
    pub(super) name: String,
    pub(super) cost: f64,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
pub(super) struct Dependency {
    pub(super) source: String,
    pub(super) target: String,
    pub(super) size: f64,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
pub(super) struct Network {
    pub(super) nodes: Vec<Node>,
    pub(super) edges: Vec<Edge>,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) speed: f64,
}

#[derive(Debug, Clone, Deserialize, Serialize)]
pub(super) struct Edge {
    pub(super) source: String,
    pub(super) target: String,
    pub(super) speed: f64,
}

impl Instance {
    /// Returns the candidates that policies are asked about: each node of the network is a device.
    ///
    /// # Errors
    /// What is wrong with the graph or the network.
    pub(super) fn candidates(&self) -> Result<Candidates> {
        let largest = self.task_graph.dependencies.iter();
        let largest = largest.map(|edge| edge.size).fold(0.0, f64::max);
        let bytes_per_size = match largest > 0.0 {
            true => LARGEST_BYTES / largest,
            false => 1.0,
        };
        let devices = Arc::new(self.devices(bytes_per_size)?);
        let tasks = TaskGraph::parse(&self.to_json(bytes_per_size)?)?;
        Ok(tasks.candidates(&devices)?)
    }

    /// Returns the tasks in our own format. Each dependency has data of its own.
    fn to_json(&self, bytes_per_size: f64) -> Result<String> {
        let mut reads: HashMap<&str, Vec<String>> = HashMap::new();
        let mut writes: HashMap<&str, Vec<serde_json::Value>> = HashMap::new();
        for (index, edge) in self.task_graph.dependencies.iter().enumerate() {
            if !(edge.size.is_finite() && edge.size >= 0.0) {
                bail!(
                    "`{}` to `{}`: the size is {}",
                    edge.source,
                    edge.target,
                    edge.size
                );
            }
            let name = format!("data {index}");
            let bytes = (edge.size * bytes_per_size).round();
            let written = json!({"name": name, "bytes": bytes});
            writes.entry(&edge.source).or_default().push(written);
            reads.entry(&edge.target).or_default().push(name);
        }
        let mut tasks = Vec::new();
        for task in &self.task_graph.tasks {
            if !(task.cost.is_finite() && task.cost >= 0.0) {
                bail!("task `{}`: the cost is {}", task.name, task.cost);
            }
            let times = self.network.nodes.iter().enumerate().map(|(index, node)| {
                let ns = task.cost / node.speed * NS_PER_UNIT;
                (device_type(index), json!(ns))
            });
            tasks.push(json!({
                "name": task.name,
                "time": times.collect::<serde_json::Map<_, _>>(),
                "reads": reads.remove(&*task.name).unwrap_or_default(),
                "writes": writes.remove(&*task.name).unwrap_or_default(),
            }));
        }
        if let Some(unknown) = reads.keys().chain(writes.keys()).next() {
            bail!("a dependency names the task `{unknown}`, which does not exist");
        }
        Ok(json!({"name": self.name, "tasks": tasks}).to_string())
    }

    fn devices(&self, bytes_per_size: f64) -> Result<DeviceSet> {
        let mut ids = HashMap::new();
        let mut set = DeviceSet::default().without_contention();
        for (index, node) in self.network.nodes.iter().enumerate() {
            if !(node.speed.is_finite() && node.speed > 0.0) {
                bail!("node `{}`: the speed is {}", node.name, node.speed);
            }
            let device_type = device_type(index);
            let name = DeviceName::full("localhost", 0, 0, &device_type, 0);
            let attributes = DeviceAttributes::new(&name, &device_type, MEMORY_BYTES);
            let device = Arc::new(SimpleDevice::new(attributes)?) as Arc<dyn Device>;
            if ids.insert(&*node.name, set.add(device)).is_some() {
                bail!("two nodes have the name `{}`", node.name);
            }
        }
        // A link that is stated once is symmetric.
        let mut links: BTreeMap<(DeviceId, DeviceId), (LinkRates, bool)> = BTreeMap::new();
        for edge in &self.network.edges {
            let find = |name: &str| match ids.get(name) {
                Some(&id) => Ok(id),
                None => bail!("a link names the node `{name}`, which does not exist"),
            };
            let (from, to): (DeviceId, DeviceId) = (find(&edge.source)?, find(&edge.target)?);
            let ends = format!("link `{}` to `{}`", edge.source, edge.target);
            if !(edge.speed.is_finite() && edge.speed > 0.0) {
                bail!("{ends}: the speed is {}", edge.speed);
            }
            let link = LinkRates {
                latency_ns: 0.0,
                ns_per_byte: NS_PER_UNIT / (edge.speed * bytes_per_size),
            };
            let earlier = links.insert((from, to), (link, true));
            if earlier.is_some_and(|(_, is_stated)| is_stated) {
                bail!("{ends} is stated twice");
            }
            links.entry((to, from)).or_insert((link, false));
        }
        for source in &self.network.nodes {
            for target in &self.network.nodes {
                let (source, target) = (&*source.name, &*target.name);
                if source != target && !links.contains_key(&(ids[source], ids[target])) {
                    bail!("there is no link from `{source}` to `{target}`");
                }
            }
        }
        for ((from, to), (link, _)) in links {
            if from != to {
                set = set.with_link(from, to, link);
            }
        }
        Ok(set)
    }
}

/// Each node has a type, so that tasks state a time for each.
fn device_type(index: usize) -> String {
    format!("NODE{index}")
}
