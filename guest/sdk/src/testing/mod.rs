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
//!
//! Columns that a test cannot set are constant: tensors are of type `float` and of unknown shape,
//! there are no loops (`frame`, `back_edges`), and there is no last run. Unless a test changes
//! them, all costs are estimates (`cost_samples` and `calibrated` are 0), and the only option is
//! `graph-name`.

mod builder;
mod cluster;
mod graph;
pub mod papers;
mod plan;
mod schedule;

pub use builder::GraphBuilder;
pub use cluster::TestDevices;
pub use cluster::cluster;
pub use graph::TestGraph;
pub use plan::Offer;
pub use plan::TestPlan;

pub use crate::plan::BudgetUnit;

use crate::config::Config;
use crate::devices::DeviceSet;
use crate::graph::Graph;
use crate::log::Log;
use crate::plan::Plan;
use crate::policy::PlaceError;
use crate::policy::Policy;

/// How a test asks a policy for a plan.
///
/// ```
/// # use placewright_guest::testing::{BudgetUnit, PlaceOptions};
/// let options = PlaceOptions::default()
///     .with_setting("insertion", "false")
///     .with_seed(7)
///     .with_budget(BudgetUnit::Fuel, 1_000_000);
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PlaceOptions {
    /// Keys and values of settings. The others have their declared defaults.
    pub settings: Vec<(String, String)>,
    /// The seed that the policy gets.
    pub seed: u64,
    /// What [`Plan::budget_left`] returns at the start, and its unit. `None`: no limit, as in
    /// native builds.
    pub budget: Option<(BudgetUnit, u64)>,
}

impl PlaceOptions {
    /// Adds a setting.
    pub fn with_setting(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((key.into(), value.into()));
        self
    }

    /// Sets the seed.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the budget, see [`TestPlan::with_budget`].
    pub fn with_budget(mut self, unit: BudgetUnit, left: u64) -> Self {
        self.budget = Some((unit, left));
        self
    }
}

/// Configures a policy with its declared defaults, asks it for a plan, with seed 0 and without a
/// budget, and returns its last accepted offer. As in the host, an offer outlives
/// [`PlaceError::Failed`], which [`Offer::failure`] then reports, but not
/// [`PlaceError::Declined`].
///
/// # Errors
/// As [`place_with`].
pub fn place(
    policy: &mut impl Policy,
    graph: &TestGraph,
    devices: &TestDevices,
) -> Result<Offer, PlaceError> {
    place_with(policy, &PlaceOptions::default(), graph, devices)
}

/// Does the same with settings, a seed and a budget.
///
/// # Errors
/// The policy's error, or [`PlaceError::Failed`] if no offer was accepted or the settings are
/// refused.
pub fn place_with<P: Policy>(
    policy: &mut P,
    options: &PlaceOptions,
    graph: &TestGraph,
    devices: &TestDevices,
) -> Result<Offer, PlaceError> {
    let log = Log::silent();
    Config::new(P::SETTINGS, options.settings.clone(), log.clone())
        .and_then(|config| policy.configure(&config))
        .map_err(|error| PlaceError::Failed(error.to_string()))?;
    let mut sink = TestPlan::new(graph, devices);
    if let Some((unit, left)) = &options.budget {
        sink = sink.with_budget(unit.clone(), *left);
    }
    let ended = policy.place(
        &Graph::new(graph, &log),
        &DeviceSet::new(devices, &log),
        &Plan::new(&sink, &log),
        options.seed,
    );
    let failure = match ended {
        Ok(()) => None,
        Err(PlaceError::Failed(reason)) => Some(reason),
        Err(declined @ PlaceError::Declined(_)) => return Err(declined),
    };
    match sink.into_offer() {
        Some(offer) => Ok(Offer { failure, ..offer }),
        None => Err(PlaceError::Failed(
            failure.unwrap_or_else(|| "the policy offered no plan".to_owned()),
        )),
    }
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
            seed: u64,
        ) -> Result<(), PlaceError> {
            plan.metric("rounds", f64::from(self.rounds));
            plan.metric("seed", f64::from(u32::try_from(seed).unwrap_or(u32::MAX)));
            Ok(plan.offer_devices(&[])?)
        }
    }

    /// Searches until a tenth of its budget is left.
    #[derive(Default)]
    struct Searches;

    impl Policy for Searches {
        const NAME: &'static str = "searches";

        fn place(
            &mut self,
            graph: &Graph<'_>,
            _devices: &DeviceSet<'_>,
            plan: &Plan<'_>,
            _seed: u64,
        ) -> Result<(), PlaceError> {
            plan.offer_devices(&vec![0; graph.len()])?;
            if plan.budget_unit() != BudgetUnit::Fuel {
                return Ok(());
            }
            let reserve = plan.budget_left() / 10;
            let mut n_steps = 0.0;
            while plan.budget_left() > reserve {
                plan.makespan_ns();
                n_steps += 1.0;
            }
            plan.metric("steps", n_steps);
            Ok(())
        }
    }

    #[test]
    fn policies_are_configured_before_they_place() {
        let devices = cluster("1xCPU");
        let graph = GraphBuilder::new(&devices).build();
        let with = |options: PlaceOptions| {
            place_with(&mut Configured::default(), &options, &graph, &devices)
        };
        let metrics = |offer: Offer| [offer.metrics[0].1, offer.metrics[1].1];
        let unset = place(&mut Configured::default(), &graph, &devices).unwrap();
        assert_eq!(metrics(unset), [4096.0, 0.0]);
        let options = PlaceOptions::default();
        let set = options.clone().with_setting("rounds", "7").with_seed(3);
        assert_eq!(metrics(with(set).unwrap()), [7.0, 3.0]);
        let refused = with(options.with_setting("round", "7")).unwrap_err();
        assert_eq!(refused.to_string(), "the policy has no setting `round`");
    }

    /// Offers a plan if it should, then returns an error.
    struct Ends {
        offers: bool,
        error: PlaceError,
    }

    impl Default for Ends {
        fn default() -> Self {
            Self {
                offers: true,
                error: PlaceError::Failed("no better plan".to_owned()),
            }
        }
    }

    impl Policy for Ends {
        const NAME: &'static str = "ends";

        fn place(
            &mut self,
            graph: &Graph<'_>,
            _devices: &DeviceSet<'_>,
            plan: &Plan<'_>,
            _seed: u64,
        ) -> Result<(), PlaceError> {
            if self.offers {
                plan.offer_devices(&vec![0; graph.len()])?;
            }
            Err(self.error.clone())
        }
    }

    #[test]
    fn an_offer_outlives_a_failure_but_not_a_refusal() {
        let devices = cluster("1xCPU");
        let mut graph = GraphBuilder::new(&devices);
        graph.node("a", &[1.0]);
        let graph = graph.build();
        let with = |mut policy: Ends| place(&mut policy, &graph, &devices);
        let kept = with(Ends::default()).unwrap();
        assert_eq!(kept.devices, [0]);
        assert_eq!(kept.failure.as_deref(), Some("no better plan"));
        let without = with(Ends {
            offers: false,
            ..Ends::default()
        });
        assert_eq!(without, Err(Ends::default().error));
        let declined = PlaceError::Declined("too small".to_owned());
        let dropped = with(Ends {
            error: declined.clone(),
            ..Ends::default()
        });
        assert_eq!(dropped, Err(declined));
        let whole = place(&mut Searches, &graph, &devices).unwrap();
        assert_eq!(whole.failure, None);
    }

    #[test]
    fn a_search_ends_with_its_budget() {
        let devices = cluster("1xCPU");
        let mut graph = GraphBuilder::new(&devices);
        let [a, b] = ["a", "b"].map(|name| graph.node(name, &[1.0]));
        graph.edge(a, b, 8);
        let graph = graph.build();
        let n_steps = |fuel: u64| {
            let options = PlaceOptions::default().with_budget(BudgetUnit::Fuel, fuel);
            let offer = place_with(&mut Searches, &options, &graph, &devices).unwrap();
            offer.metrics[0].1
        };
        // A step costs 64 units, and 8 for each node and edge.
        assert_eq!(n_steps(10_000), 102.0);
        assert_eq!(n_steps(1000), 10.0);
        let unlimited = place(&mut Searches, &graph, &devices).unwrap();
        assert!(unlimited.metrics.is_empty());
    }
}
