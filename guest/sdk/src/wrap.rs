//! A policy that runs another one inside it.
//!
//! The outer policy passes the inner one a [`WrappedPlan`]. Everything that the inner policy does
//! with it reaches the host's plan, except offers: those call a closure of the outer policy, which
//! accepts, changes or refuses them.
//!
//! A policy that improves what another one found, by moving single nodes:
//!
//! ```
//! use placewright_guest::algorithm::preferred_devices;
//! use placewright_guest::testing::{GraphBuilder, cluster, place};
//! use placewright_guest::{Config, ConfigError, DeviceSet, Graph, PlaceError, Plan, Policy, Setting, wrap};
//! # #[derive(Default)]
//! # struct Inner; // in place of `policy_heft::Heft`
//! # impl Policy for Inner {
//! #     const NAME: &'static str = "inner";
//! #     fn place(&mut self, graph: &Graph<'_>, _: &DeviceSet<'_>, plan: &Plan<'_>, _: u64) -> Result<(), PlaceError> {
//! #         Ok(plan.offer_devices(&preferred_devices(graph))?)
//! #     }
//! # }
//!
//! #[derive(Default)]
//! struct Improved {
//!     inner: Inner, // any policy, such as `policy_heft::Heft`
//! }
//!
//! impl Policy for Improved {
//!     const NAME: &'static str = "improved";
//!     const SETTINGS: &'static [Setting] = Inner::SETTINGS; // the user sets them as if asking `Inner`
//!
//!     fn configure(&mut self, config: &Config) -> Result<(), ConfigError> {
//!         wrap::configure(&mut self.inner, config)
//!     }
//!
//!     fn place(&mut self, graph: &Graph<'_>, devices: &DeviceSet<'_>, plan: &Plan<'_>, seed: u64) -> Result<(), PlaceError> {
//!         wrap::place(&mut self.inner, graph, devices, plan, seed, |plan| {
//!             plan.offer()?; // whatever follows, this plan counts
//!             let mut best_ns = plan.makespan_ns();
//!             let before = plan.devices();
//!             for node in graph.nodes() {
//!                 let mut best = before[node as usize];
//!                 for &device in graph.candidates_of(node) {
//!                     plan.move_nodes(&[node], device);
//!                     if plan.makespan_ns() < best_ns {
//!                         (best_ns, best) = (plan.makespan_ns(), device);
//!                     }
//!                 }
//!                 plan.move_nodes(&[node], best);
//!             }
//!             plan.offer()
//!         })
//!     }
//! }
//!
//! // The GPU is preferred, and slower for a node this small.
//! let devices = cluster("1xCPU,1xGPU");
//! let mut graph = GraphBuilder::new(&devices);
//! graph.node("small", &[40.0, 5_000.0]);
//! graph.node("large", &[90_000.0, 6_000.0]);
//! let offer = place(&mut Improved::default(), &graph.build(), &devices)?;
//! assert_eq!(offer.devices, [0, 1]);
//! # Ok::<(), PlaceError>(())
//! ```
//!
//! To keep a device free, the closure would move its nodes away before it offers; to refuse a plan,
//! it returns a [`Violation`] of its own, which the inner policy receives as if it came from the
//! host.
//!
//! Reasons that the inner policy gives after an offer are dropped for nodes that the closure moved:
//! they describe the devices that these nodes have left. The outer policy explains such nodes
//! itself. The inner policy's metrics are kept: they describe its plan before the moves.
//!
//! A crate whose policy others may wrap puts its exports behind a feature: see
//! [`crate::export_policy!`].

use std::cell::RefCell;
use std::fmt;

use crate::config::Config;
use crate::config::ConfigError;
use crate::devices::DeviceSet;
use crate::graph::Graph;
use crate::plan::Plan;
use crate::policy::PlaceError;
use crate::policy::Policy;
use crate::source::BudgetUnit;
use crate::source::PlanSink;
use crate::source::Violation;

/// Configures an inner policy with those settings of the outer one that the inner one declares.
///
/// # Errors
/// As [`Policy::configure`].
pub fn configure<P: Policy>(inner: &mut P, config: &Config) -> Result<(), ConfigError> {
    inner.configure(&config.restricted_to(P::SETTINGS))
}

/// Asks an inner policy for a placement. For each of its offers, `on_offer` is called with the
/// host's plan, which then contains the inner policy's assignment, start order and queues. The
/// inner policy's `offer` returns the result of `on_offer`.
///
/// # Errors
/// The error of the inner policy. It may have offered plans before.
pub fn place<P, F>(
    inner: &mut P,
    graph: &Graph<'_>,
    devices: &DeviceSet<'_>,
    plan: &Plan<'_>,
    seed: u64,
    on_offer: F,
) -> Result<(), PlaceError>
where
    P: Policy,
    F: FnMut(&Plan<'_>) -> Result<(), Violation>,
{
    let wrapped = WrappedPlan::new(*plan, on_offer);
    inner.place(graph, devices, &wrapped.plan(), seed)
}

/// A plan that calls a closure for each offer, and passes everything else on to the plan that it
/// wraps.
pub struct WrappedPlan<'a, F> {
    outer: Plan<'a>,
    on_offer: RefCell<F>,
    /// Per node, whether the closure moved it at the last offer. Empty if nobody reads reasons.
    is_moved: RefCell<Vec<bool>>,
}

impl<'a, F> WrappedPlan<'a, F>
where
    F: FnMut(&Plan<'_>) -> Result<(), Violation>,
{
    /// Wraps a plan.
    pub fn new(outer: Plan<'a>, on_offer: F) -> Self {
        Self {
            outer,
            on_offer: RefCell::new(on_offer),
            is_moved: RefCell::default(),
        }
    }

    /// Returns the plan to pass to an inner policy.
    pub fn plan(&self) -> Plan<'_> {
        Plan::new(self, self.outer.log())
    }
}

impl<F> PlanSink for WrappedPlan<'_, F>
where
    F: FnMut(&Plan<'_>) -> Result<(), Violation>,
{
    fn set_devices(&self, device: &[u32]) {
        self.outer.set_devices(device);
    }

    fn devices(&self) -> Vec<u32> {
        self.outer.devices()
    }

    fn move_nodes(&self, nodes: &[u32], device: u32) {
        self.outer.move_nodes(nodes, device);
    }

    fn makespan_ns(&self) -> f64 {
        self.outer.makespan_ns()
    }

    fn violation(&self) -> Option<Violation> {
        self.outer.violation()
    }

    fn transfer_bytes(&self) -> u64 {
        self.outer.transfer_bytes()
    }

    fn peak_bytes_per_device(&self) -> Vec<u64> {
        self.outer.peak_bytes_per_device()
    }

    fn set_start_order(&self, order: &[i32]) {
        self.outer.set_start_order(order);
    }

    fn set_queues(&self, queue: &[u32]) {
        self.outer.set_queues(queue);
    }

    fn set_streamed(&self, constants: &[u32]) {
        self.outer.set_streamed(constants);
    }

    fn explain_wanted(&self) -> bool {
        self.outer.explain_wanted()
    }

    fn explain(&self, nodes: &[u32], reason: &str) {
        let is_moved = self.is_moved.borrow();
        let stays = |node: &u32| is_moved.get(*node as usize) != Some(&true);
        let kept: Vec<u32> = nodes.iter().copied().filter(stays).collect();
        if nodes.is_empty() || !kept.is_empty() {
            self.outer.explain(&kept, || reason.to_owned());
        }
    }

    fn metric(&self, name: &str, value: f64) {
        self.outer.metric(name, value);
    }

    fn offer(&self) -> Result<(), Violation> {
        let found = self.explain_wanted().then(|| self.devices());
        let outcome = (*self.on_offer.borrow_mut())(&self.outer);
        if let Some(found) = found {
            let changed = found.iter().zip(self.devices()).map(|(a, b)| *a != b);
            *self.is_moved.borrow_mut() = changed.collect();
        }
        outcome
    }

    fn budget_left(&self) -> u64 {
        self.outer.budget_left()
    }

    fn budget_unit(&self) -> BudgetUnit {
        self.outer.budget_unit()
    }
}

impl<F> fmt::Debug for WrappedPlan<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WrappedPlan").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use crate::algorithm::preferred_devices;
    use crate::plan::Reasons;
    use crate::testing::GraphBuilder;
    use crate::testing::cluster;

    #[derive(Default)]
    struct Inner;

    impl Policy for Inner {
        const NAME: &'static str = "inner";

        fn place(
            &mut self,
            graph: &Graph<'_>,
            _devices: &DeviceSet<'_>,
            plan: &Plan<'_>,
            _seed: u64,
        ) -> Result<(), PlaceError> {
            plan.offer_devices(&preferred_devices(graph))?;
            let mut reasons = Reasons::new();
            for node in graph.nodes() {
                reasons.add(node, "preferred");
            }
            reasons.explain(plan);
            Ok(())
        }
    }

    #[derive(Default)]
    struct Outer(Inner);

    impl Policy for Outer {
        const NAME: &'static str = "outer";

        fn place(
            &mut self,
            graph: &Graph<'_>,
            devices: &DeviceSet<'_>,
            plan: &Plan<'_>,
            seed: u64,
        ) -> Result<(), PlaceError> {
            place(&mut self.0, graph, devices, plan, seed, |plan| {
                plan.move_nodes(&[1], 0);
                plan.offer()
            })?;
            plan.explain(&[1], || "moved".to_owned());
            Ok(())
        }
    }

    #[test]
    fn only_the_outer_policy_explains_nodes_that_it_moved() {
        let devices = cluster("1xCPU,1xGPU");
        let mut graph = GraphBuilder::new(&devices);
        for name in ["a", "b", "c"] {
            graph.node(name, &[10.0, 10.0]);
        }
        let graph = graph.build();
        let offer = crate::testing::place(&mut Outer::default(), &graph, &devices).unwrap();
        assert_eq!(offer.devices, [1, 0, 1]);
        assert_eq!(
            offer.reasons,
            [
                (vec![0, 2], "preferred".to_owned()),
                (vec![1], "moved".to_owned())
            ]
        );
    }
}
