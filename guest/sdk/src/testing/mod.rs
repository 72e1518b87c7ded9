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
//! // MyPolicy ignores the pin, and the plan reports it.
//! assert!(offer.unwrap_err().to_string().contains("pinned"));
//! ```
//!
//! Times are those of the host: its estimate and [`TestPlan`] use the same scheduler. The memory
//! rule is simpler here: it counts state, the constants that the nodes of a device read, and the
//! largest workspace of each memory. The host also counts the tensors that a run produces and
//! copies, so it may refuse a plan that is accepted here.

mod builder;
mod cluster;
mod graph;
mod plan;
mod schedule;

pub use builder::GraphBuilder;
pub use cluster::TestDevices;
pub use cluster::cluster;
pub use graph::TestGraph;
pub use plan::Offer;
pub use plan::TestPlan;

use crate::config::Config;
use crate::devices::DeviceSet;
use crate::graph::Graph;
use crate::log::Log;
use crate::plan::Plan;
use crate::policy::PlaceError;
use crate::policy::Policy;

/// Configures a policy with its declared defaults, asks it for a plan, with seed 0, and returns its
/// last accepted offer.
///
/// # Errors
/// As [`place_with`].
pub fn place(
    policy: &mut impl Policy,
    graph: &TestGraph,
    devices: &TestDevices,
) -> Result<Offer, PlaceError> {
    place_with(policy, &[], graph, devices)
}

/// Does the same with the keys and values of some settings: `&[("insertion", "false")]`. The others
/// have their declared defaults.
///
/// # Errors
/// The policy's error, or [`PlaceError::Failed`] if no offer was accepted or the settings are
/// refused.
pub fn place_with<P: Policy>(
    policy: &mut P,
    settings: &[(&str, &str)],
    graph: &TestGraph,
    devices: &TestDevices,
) -> Result<Offer, PlaceError> {
    let log = Log::silent();
    let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
    let entries = settings.iter().map(owned).collect();
    Config::new(P::SETTINGS, entries, log.clone())
        .and_then(|config| policy.configure(&config))
        .map_err(|error| PlaceError::Failed(error.to_string()))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigError;
    use crate::config::Setting;

    /// Reports its setting as a metric.
    #[derive(Default)]
    struct Configured {
        rounds: u32,
    }

    impl Policy for Configured {
        const NAME: &'static str = "configured";
        const SETTINGS: &'static [Setting] = &[Setting {
            key: "rounds",
            kind: "u32",
            default: "4096",
            description: "",
        }];

        fn configure(&mut self, config: &Config) -> Result<(), ConfigError> {
            self.rounds = config.parse("rounds")?;
            Ok(())
        }

        fn place(
            &mut self,
            _graph: &Graph<'_>,
            _devices: &DeviceSet<'_>,
            plan: &Plan<'_>,
            _seed: u64,
        ) -> Result<(), PlaceError> {
            plan.metric("rounds", f64::from(self.rounds));
            Ok(plan.offer_devices(&[])?)
        }
    }

    #[test]
    fn policies_are_configured_before_they_place() {
        let devices = cluster("1xCPU");
        let graph = GraphBuilder::new(&devices).build();
        let with = |settings: &[(&str, &str)]| {
            place_with(&mut Configured::default(), settings, &graph, &devices)
        };
        let rounds = |offer: Offer| offer.metrics[0].1;
        let unset = place(&mut Configured::default(), &graph, &devices).unwrap();
        assert_eq!(rounds(unset), 4096.0);
        assert_eq!(rounds(with(&[("rounds", "7")]).unwrap()), 7.0);
        let refused = with(&[("round", "7")]).unwrap_err();
        assert_eq!(refused.to_string(), "the policy has no setting `round`");
    }
}
