//! The report of a comparison: a page that a browser shows without a network.

use std::collections::BTreeMap;
use std::io;
use std::io::Write;

use hashbrown::HashMap;
use serde::Serialize;

use super::ComparedPlan;
use super::ComparedPolicy;
use super::Comparison;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::placement::Placement;

/// The page: its data replaces `@DATA@`.
const PAGE: &str = include_str!("page.html");

/// Version of the data, which the page checks.
const VERSION: u32 = 1;

/// The data of the page. Times are whole ns: half of the size, and nobody sees the rest.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    program: String,
    graph: GraphData<'a>,
    devices: Vec<DeviceData>,
    links: Vec<&'a str>,
    plans: Vec<PlanData<'a>>,
}

#[derive(Serialize)]
struct GraphData<'a> {
    name: &'a str,
    /// The ops that occur, to which nodes refer by their index.
    ops: Vec<&'a str>,
    nodes: NodeData<'a>,
    edges: EdgeData,
}

#[derive(Serialize)]
struct NodeData<'a> {
    name: Vec<&'a str>,
    op: Vec<usize>,
}

#[derive(Default, Serialize)]
struct EdgeData {
    from: Vec<u32>,
    to: Vec<usize>,
    bytes: Vec<u64>,
}

#[derive(Serialize)]
struct DeviceData {
    name: String,
    #[serde(rename = "type")]
    device_type: String,
    memory_bytes: u64,
}

#[derive(Serialize)]
#[serde(untagged)]
enum PlanData<'a> {
    Failed { policy: &'a str, error: String },
    Placed(Box<PlacedData<'a>>),
}

#[derive(Serialize)]
struct PlacedData<'a> {
    policy: &'a str,
    makespan_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured_ns: Option<u64>,
    placed_in_ns: u64,
    device: Vec<u32>,
    start_ns: Vec<u64>,
    end_ns: Vec<u64>,
    transfers: TransferData,
    critical_path: &'a [u32],
    memory: Vec<MemoryData>,
    peak_bytes: Vec<u64>,
    busy_ns: Vec<u64>,
    link_busy_ns: Vec<u64>,
    transfer_bytes: u64,
    why: BTreeMap<u32, String>,
}

/// A transfer over several links has an entry for each.
#[derive(Default, Serialize)]
struct TransferData {
    node: Vec<u32>,
    source: Vec<u32>,
    destination: Vec<u32>,
    bytes: Vec<u64>,
    start_ns: Vec<u64>,
    end_ns: Vec<u64>,
    /// -1 without a link.
    link: Vec<i64>,
}

#[derive(Serialize)]
struct MemoryData {
    at_ns: Vec<u64>,
    bytes: Vec<u64>,
}

impl Comparison {
    /// Writes a page with the timelines, the graph, the critical paths, the memory over time and
    /// the comparison of the policies. It is one file and needs no network. A comparison without a
    /// plan gives a page that shows the errors.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_html(&self, mut writer: impl Write) -> io::Result<()> {
        let placement = self.plans().next().map(|(_, plan)| plan.placement());
        let document = Document {
            version: VERSION,
            program: concat!("placewright ", env!("CARGO_PKG_VERSION")).to_owned(),
            graph: match &placement {
                Some(placement) => GraphData::new(placement.graph()),
                None => GraphData::empty(),
            },
            devices: placement.as_deref().map(devices).unwrap_or_default(),
            links: self.plans().next().map_or_else(Vec::new, |(_, plan)| {
                let links = plan.simulation.links.iter();
                links.map(|link| &*link.name).collect()
            }),
            plans: self.policies.iter().map(PlanData::new).collect(),
        };
        let Some((before, after)) = PAGE.split_once("@DATA@") else {
            return Err(io::Error::other("the page has no place for its data"));
        };
        writer.write_all(before.as_bytes())?;
        serde_json::to_writer(InScript(&mut writer), &document).map_err(io::Error::from)?;
        writer.write_all(after.as_bytes())
    }
}

/// Escapes `<`, so that no text of the data ends the script that contains it. In JSON it occurs in
/// strings only.
struct InScript<W>(W);

impl<W: Write> Write for InScript<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut parts = bytes.split(|&byte| byte == b'<');
        if let Some(first) = parts.next() {
            self.0.write_all(first)?;
        }
        for part in parts {
            self.0.write_all(br"\u003c")?;
            self.0.write_all(part)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl<'a> GraphData<'a> {
    fn empty() -> Self {
        Self {
            name: "",
            ops: Vec::new(),
            nodes: NodeData {
                name: Vec::new(),
                op: Vec::new(),
            },
            edges: EdgeData::default(),
        }
    }

    fn new(graph: &'a Graph) -> Self {
        let (mut ops, mut numbers) = (Vec::new(), HashMap::new());
        let mut number = |op: &'a str| {
            *numbers.entry(op).or_insert_with(|| {
                ops.push(op);
                ops.len() - 1
            })
        };
        let nodes = NodeData {
            op: graph.nodes().map(|node| number(graph.op(node))).collect(),
            name: graph.nodes().map(|node| graph.node_name(node)).collect(),
        };
        let mut edges = EdgeData::default();
        let predecessors = graph.predecessors();
        for node in graph.nodes() {
            for edge in predecessors.range(node.index()) {
                let tensor = graph.edge_tensors()[edge];
                edges.from.push(predecessors.items[edge]);
                edges.to.push(node.index());
                edges.bytes.push(match tensor {
                    NONE => 0,
                    tensor => graph.tensor_bytes()[tensor as usize],
                });
            }
        }
        Self {
            name: graph.name(),
            ops,
            nodes,
            edges,
        }
    }
}

fn devices(placement: &Placement) -> Vec<DeviceData> {
    let devices = placement.device_set().iter();
    devices
        .map(|(_, device)| DeviceData {
            name: device.attributes().name.clone(),
            device_type: device.attributes().device_type.clone(),
            memory_bytes: device.memory_capacity_bytes(),
        })
        .collect()
}

impl<'a> PlanData<'a> {
    fn new(policy: &'a ComparedPolicy) -> Self {
        match &policy.outcome {
            Ok(plan) => Self::Placed(Box::new(PlacedData::new(&policy.name, plan))),
            Err(error) => Self::Failed {
                policy: &policy.name,
                error: error.to_string(),
            },
        }
    }
}

impl<'a> PlacedData<'a> {
    fn new(policy: &'a str, plan: &'a ComparedPlan) -> Self {
        let (simulation, placement) = (&plan.simulation, plan.placement());
        let mut transfers = TransferData::default();
        for transfer in &simulation.transfers {
            let links = transfer.links.iter().map(|&link| i64::from(link));
            let none = transfer.links.is_empty().then_some(-1);
            for link in links.chain(none) {
                transfers.node.push(transfer.producer);
                transfers.source.push(transfer.source);
                transfers.destination.push(transfer.destination);
                transfers.bytes.push(transfer.bytes);
                transfers.start_ns.push(whole(transfer.start_ns));
                transfers.end_ns.push(whole(transfer.end_ns));
                transfers.link.push(link);
            }
        }
        let mut why: BTreeMap<u32, String> = BTreeMap::new();
        for explanation in placement.explanations() {
            for &node in &explanation.nodes {
                let reasons = why.entry(node).or_default();
                if !reasons.is_empty() {
                    reasons.push_str("; ");
                }
                reasons.push_str(&explanation.reason);
            }
        }
        let memory = simulation.devices.iter().map(|device| MemoryData {
            at_ns: device
                .memory
                .iter()
                .map(|&(at_ns, _)| whole(at_ns))
                .collect(),
            bytes: device.memory.iter().map(|&(_, bytes)| bytes).collect(),
        });
        let measured = plan.measured.map(|measured| measured.as_nanos());
        Self {
            policy,
            makespan_ns: whole(simulation.end_ns),
            measured_ns: measured.map(|ns| u64::try_from(ns).unwrap_or(u64::MAX)),
            placed_in_ns: u64::try_from(plan.placed_in.as_nanos()).unwrap_or(u64::MAX),
            device: placement.devices().to_vec(),
            start_ns: simulation.starts_ns.iter().copied().map(whole).collect(),
            end_ns: simulation.ends_ns.iter().copied().map(whole).collect(),
            transfers,
            critical_path: &simulation.critical_path,
            memory: memory.collect(),
            peak_bytes: plan.peak_bytes.clone(),
            busy_ns: simulation
                .devices
                .iter()
                .map(|device| whole(device.busy_ns))
                .collect(),
            link_busy_ns: simulation
                .links
                .iter()
                .map(|link| whole(link.busy_ns))
                .collect(),
            transfer_bytes: plan.transfer_bytes,
            why,
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times are positive; casts saturate"
)]
fn whole(ns: f64) -> u64 {
    ns.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_the_script() {
        let mut written = Vec::new();
        let text = "</script><script>";
        serde_json::to_writer(InScript(&mut written), text).unwrap();
        let written = String::from_utf8(written).unwrap();
        assert_eq!(written, r#""\u003c/script>\u003cscript>""#);
        assert_eq!(serde_json::from_str::<String>(&written).unwrap(), text);
    }

    #[test]
    fn the_page_has_one_place_for_its_data() {
        assert_eq!(PAGE.matches("@DATA@").count(), 1);
    }
}
