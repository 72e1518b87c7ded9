//! `auto`: the policy for those who do not choose one.
//!
//! It is [`policy_search::Search`] with a budget that fits the start of a program: all list
//! schedulers and single devices on graphs of usual size, and a search of about a tenth of a
//! second. Set `effort` for a longer one.
//!
//! Costs are not exact, and a plan over several devices depends on more of them than a plan on one.
//! So the graph leaves the best device only if the run becomes shorter by a margin: 25 % if the
//! rates of a device are documented defaults, 15 % if all are measured, 5 % if the nodes themselves
//! were measured or a cluster file states the rates, nothing if the app states what its tasks take.
//! The first two are about the error of a typical prediction (`placewright bench prediction`). A
//! search finds the plan that errors favour most.

use placewright_guest::Config;
use placewright_guest::ConfigError;
use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::Setting;
use placewright_guest::export_policy;
use placewright_guest::search::Objective;
use placewright_guest::wrap;
use policy_search::Search;

/// The margin where a device has documented rates.
const MARGIN_OF_DEFAULTS: f64 = 0.25;

/// The margin where the rates of all devices are measured.
const MARGIN_OF_MEASURED: f64 = 0.15;

/// The margin where the nodes were measured on all devices, or a cluster file states the rates.
const MARGIN_OF_KNOWN: f64 = 0.05;

/// The part of all costs that may be estimated where the nodes count as measured.
const ESTIMATED_MAX: f64 = 0.1;

/// The policy.
#[derive(Debug, Default)]
pub struct Auto {
    effort: u64,
    margin: Option<f64>,
    objective: Objective,
}

impl Policy for Auto {
    const NAME: &'static str = "auto";
    const DESCRIPTION: &'static str = "the best plan of list schedulers and single devices, improved for about a tenth of a \
        second";
    const SETTINGS: &'static [Setting] = &[
        Setting {
            default: "1000000",
            ..Search::SETTINGS[0]
        },
        Setting {
            // What applies if the user sets none: `Search` does without.
            description: "the gain, as a part of the run, for which a graph leaves one device; if unset, 0.25 with \
                default rates, 0.15 with measured ones, 0.05 with measured nodes or stated rates, 0 with stated times",
            ..Search::SETTINGS[1]
        },
        Search::SETTINGS[2],
    ];

    fn configure(&mut self, config: &Config) -> Result<(), ConfigError> {
        let mut search = Search::default();
        wrap::configure(&mut search, config)?;
        self.effort = search.effort;
        self.objective = search.objective;
        self.margin = config.get("margin").map(|_| search.margin);
        Ok(())
    }

    fn place(
        &mut self,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        plan: &Plan<'_>,
        seed: u64,
    ) -> Result<(), PlaceError> {
        let mut search = Search {
            effort: self.effort,
            margin: self.margin.unwrap_or_else(|| margin(graph, devices)),
            objective: self.objective,
        };
        search.place(graph, devices, plan, seed)
    }
}

/// Returns the margin that fits the source of the costs.
fn margin(graph: &Graph<'_>, devices: &DeviceSet<'_>) -> f64 {
    let is_stated = |what: &str| graph.option(what) == Some("true");
    if is_stated("stated-costs") {
        0.0
    } else if is_stated("stated-rates") || are_measured(graph) {
        MARGIN_OF_KNOWN
    } else if devices.calibrated().iter().all(|&is| is != 0) {
        MARGIN_OF_MEASURED
    } else {
        MARGIN_OF_DEFAULTS
    }
}

/// Returns whether nearly all of what nodes take on all devices was measured in runs.
fn are_measured(graph: &Graph<'_>) -> bool {
    let (mut all_ns, mut estimated_ns) = (0.0, 0.0);
    for (&ns, &samples) in graph.costs().iter().zip(graph.cost_samples()) {
        if ns.is_finite() {
            all_ns += ns;
            estimated_ns += if samples == 0 { ns } else { 0.0 };
        }
    }
    all_ns > 0.0 && estimated_ns <= ESTIMATED_MAX * all_ns
}

export_policy!(Auto, feature = "export");

#[cfg(test)]
mod tests {
    use placewright_guest::testing::GraphBuilder;
    use placewright_guest::testing::Offer;
    use placewright_guest::testing::PlaceOptions;
    use placewright_guest::testing::TestDevices;
    use placewright_guest::testing::TestGraph;
    use placewright_guest::testing::cluster;
    use placewright_guest::testing::papers;
    use placewright_guest::testing::place_with;

    use super::*;

    fn auto(settings: &[(&str, &str)], graph: &TestGraph, devices: &TestDevices) -> Offer {
        let mut options = PlaceOptions::default();
        for &(key, value) in settings {
            options = options.with_setting(key, value);
        }
        place_with(&mut Auto::default(), &options, graph, devices).unwrap()
    }

    #[test]
    fn its_own_budget_applies_unless_the_user_sets_one() {
        let (devices, graph) = papers::topcuoglu();
        let of_auto = auto(&[], &graph, &devices);
        let effort = PlaceOptions::default().with_setting("effort", "1000000");
        let search = &mut Search::default();
        let of_search = place_with(search, &effort, &graph, &devices).unwrap();
        assert_eq!(of_auto.devices, of_search.devices);
        assert_eq!(of_auto.metrics, of_search.metrics);
        let none = auto(&[("effort", "0")], &graph, &devices);
        assert_eq!(none.metric("evaluations"), Some(0.0));
    }

    #[test]
    fn the_better_costs_are_known_the_smaller_a_gain_counts() {
        let mut devices = cluster("1xA,1xB").with_links(0.0, 0.0);
        let mut builder = GraphBuilder::new(&devices);
        builder.node("large", &[1_000.0, 120.0]);
        builder.node("other", &[30.0, 20.0]);
        let graph = builder.build();
        let place = |graph: &TestGraph, devices: &TestDevices| auto(&[], graph, devices).devices;
        let is_split = [1, 0];
        // The gain of 14 % is less than the error of measured rates.
        assert_ne!(place(&graph, &devices), is_split);
        devices.calibrated = vec![1, 0];
        assert_ne!(place(&graph, &devices), is_split);
        devices.calibrated = vec![1, 1];
        assert_ne!(place(&graph, &devices), is_split);
        let mut measured = graph.clone();
        measured.cost_samples.fill(4);
        assert_eq!(place(&measured, &devices), is_split);
        measured.cost_samples[3] = 0;
        assert_eq!(place(&measured, &devices), is_split, "little is estimated");
        measured.cost_samples[0] = 0;
        assert_ne!(place(&measured, &devices), is_split, "much is estimated");
        for option in ["stated-rates", "stated-costs"] {
            let mut stated = graph.clone();
            stated.options.push((option.to_owned(), "true".to_owned()));
            assert_eq!(place(&stated, &devices), is_split, "{option}");
        }
    }

    #[test]
    fn a_small_gain_is_no_reason_to_leave_a_device() {
        // Alone on B: 140. With `other` on A: 120, which is 14 % less.
        let devices = cluster("1xA,1xB").with_links(0.0, 0.0);
        let mut graph = GraphBuilder::new(&devices);
        graph.node("large", &[1_000.0, 120.0]);
        graph.node("other", &[30.0, 20.0]);
        let graph = graph.build();
        let estimated = auto(&[], &graph, &devices);
        assert_eq!(
            (&estimated.devices[..], estimated.makespan_ns),
            (&[1, 1][..], 140.0)
        );
        assert_eq!(
            estimated.reason_of(0),
            Some("one device: others gain too little")
        );
        for (margin, expected) in [("0", [1, 0]), ("0.1", [1, 0]), ("0.2", [1, 1])] {
            let found = auto(&[("margin", margin)], &graph, &devices);
            assert_eq!(found.devices, expected, "{margin}");
        }
        let options = PlaceOptions::default().with_setting("margin", "1");
        let refused = place_with(&mut Auto::default(), &options, &graph, &devices);
        assert!(refused.unwrap_err().to_string().contains("margin"));
    }
}
