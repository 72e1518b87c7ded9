//! Graphs, devices and a plan in memory, for ordinary tests of policies. Native builds only.
//!
//! ```
//! use placewright_guest::testing::{GraphBuilder, cluster, place};
//! # use placewright_guest::{DeviceSet, Graph, PlaceError, Plan, Policy};
//! # #[derive(Default)]
//! # struct MyPolicy;
//! # impl Policy for MyPolicy {
//! #     const NAME: &'static str = "mine";
//! #     fn place(&mut self, graph: &Graph<'_>, _: &DeviceSet<'_>, plan: &Plan<'_>, _: u64) -> Result<(), PlaceError> {
//! #         Ok(plan.offer_devices(&vec![1; graph.len()])?)
//! #     }
//! # }
//!
//! let devices = cluster("1xCPU,2xGPU");
//! let mut graph = GraphBuilder::new(&devices);
//! let x = graph.node("x", &[50.0, 10.0]); // ns per device type, in the cluster's order
//! let y = graph.node("y", &[50.0, 10.0]);
//! graph.edge(x, y, 4096);
//! graph.pin(y, 0);
//!
//! let offer = place(&mut MyPolicy, &graph.build(), &devices);
//! // MyPolicy overlooks the pin, and the plan says so.
//! assert!(offer.unwrap_err().to_string().contains("pinned"));
//! ```
//!
//! Times are the host's: its estimate and [`TestPlan`] have one scheduler. The rule about memory is
//! simpler here: it counts resident bytes and the largest workspace of each memory. The host also
//! counts what a run makes and copies, so it may refuse a plan that is accepted here.

mod cluster;
mod graph;
mod plan;
mod schedule;

pub use cluster::TestDevices;
pub use cluster::cluster;
pub use graph::GraphBuilder;
pub use graph::TestGraph;
pub use plan::Offer;
pub use plan::TestPlan;

use crate::devices::DeviceSet;
use crate::graph::Graph;
use crate::log::Log;
use crate::plan::Plan;
use crate::policy::PlaceError;
use crate::policy::Policy;

/// Asks a policy for a plan, with seed 0, and returns what it offered last.
///
/// # Errors
/// What the policy says, or that it ended without an accepted offer.
pub fn place(
    policy: &mut impl Policy,
    graph: &TestGraph,
    devices: &TestDevices,
) -> Result<Offer, PlaceError> {
    let log = Log::silent();
    let sink = TestPlan::new(graph, devices);
    policy.place(
        &Graph::new(graph, &log),
        &DeviceSet::new(devices, &log),
        &Plan::new(&sink, &log),
        0,
    )?;
    sink.into_offer()
        .ok_or_else(|| PlaceError::Failed("the policy offered no plan".to_owned()))
}
