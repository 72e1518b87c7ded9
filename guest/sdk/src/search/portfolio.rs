//! The best plan of several policies.

use std::cell::RefCell;
use std::fmt;

use super::Found;
use crate::debug;
use crate::devices::DeviceSet;
use crate::graph::Graph;
use crate::memory::stream;
use crate::plan::Plan;
use crate::policy::PlaceError;
use crate::policy::Policy;
use crate::source::BudgetUnit;
use crate::source::PlanSink;
use crate::source::Violation;

/// Asks policies for plans, and keeps the best one: that with the least makespan by the host's
/// estimate, of equal ones the first. Each plan that is better than those before is offered, so
/// that the best one is the answer whenever the call ends.
pub struct Portfolio<'a> {
    plan: Plan<'a>,
    /// Who found the best plan, and the plan.
    best: RefCell<Option<(&'static str, Found)>>,
    /// The policy that is asked, with its columns.
    current: RefCell<Current>,
}

#[derive(Default)]
struct Current {
    name: &'static str,
    start_order: Vec<i32>,
    streamed: Vec<u32>,
    makespan_ns: f64,
}

impl<'a> Portfolio<'a> {
    /// Creates a portfolio without plans.
    pub fn new(plan: Plan<'a>) -> Self {
        Self {
            plan,
            best: RefCell::default(),
            current: RefCell::default(),
        }
    }

    /// Asks a policy. Its reasons and metrics are dropped. Returns the makespan of its last plan in
    /// ns, +inf if it found no legal one: why is in the log.
    pub fn ask<P: Policy>(
        &self,
        policy: &mut P,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        seed: u64,
    ) -> f64 {
        self.begin(P::NAME, graph);
        let sink = Asked(self);
        let outcome = policy.place(graph, devices, &Plan::new(&sink, self.plan.log()), seed);
        if let Err(PlaceError::Declined(reason) | PlaceError::Failed(reason)) = outcome {
            debug!(self.plan, "`{}` has no plan: {reason}", P::NAME);
        }
        self.current.borrow().makespan_ns
    }

    /// Tries a plan. Returns its makespan in ns, +inf if it is not legal.
    pub fn offer(
        &self,
        name: &'static str,
        graph: &Graph<'_>,
        devices: &[u32],
        start_order: &[i32],
    ) -> f64 {
        self.begin(name, graph);
        let sink = Asked(self);
        sink.set_devices(devices);
        sink.set_start_order(start_order);
        if let Err(violation) = sink.offer() {
            debug!(self.plan, "`{name}` has no plan: {violation}");
        }
        self.current.borrow().makespan_ns
    }

    /// Tries a plan that may lack memory: streams constants if it does
    /// ([`crate::memory::stream`]). Returns as [`Self::offer`].
    pub fn offer_streamed(
        &self,
        name: &'static str,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        placed: &[u32],
        start_order: &[i32],
    ) -> f64 {
        self.begin(name, graph);
        let sink = Asked(self);
        sink.set_start_order(start_order);
        let asked = Plan::new(&sink, self.plan.log());
        let mut placed = placed.to_vec();
        match stream(graph, devices, &asked, &mut placed) {
            Some(_) => _ = sink.offer(),
            None => debug!(
                self.plan,
                "`{name}` has no plan: constants cannot be streamed"
            ),
        }
        self.current.borrow().makespan_ns
    }

    /// Returns who found the best plan, and the plan; `None` if nobody found a legal one.
    pub fn into_best(self) -> Option<(&'static str, Found)> {
        self.best.into_inner()
    }

    /// Plans start without what earlier ones have set.
    fn begin(&self, name: &'static str, graph: &Graph<'_>) {
        let start_order = vec![0; graph.len()];
        self.plan.set_start_order(&start_order);
        self.plan.set_streamed(&[]);
        *self.current.borrow_mut() = Current {
            name,
            start_order,
            streamed: Vec::new(),
            makespan_ns: f64::INFINITY,
        };
    }

    fn is_better(&self, makespan_ns: f64) -> bool {
        let best = self.best.borrow();
        let best = best
            .as_ref()
            .map_or(f64::INFINITY, |(_, it)| it.makespan_ns);
        makespan_ns < best
    }
}

impl fmt::Debug for Portfolio<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Portfolio")
            .field("best", &self.best)
            .finish_non_exhaustive()
    }
}

/// The plan that a policy of a portfolio writes.
struct Asked<'p, 'a>(&'p Portfolio<'a>);

impl PlanSink for Asked<'_, '_> {
    fn set_devices(&self, device: &[u32]) {
        self.0.plan.set_devices(device);
    }

    fn devices(&self) -> Vec<u32> {
        self.0.plan.devices()
    }

    fn move_nodes(&self, nodes: &[u32], device: u32) {
        self.0.plan.move_nodes(nodes, device);
    }

    fn makespan_ns(&self) -> f64 {
        self.0.plan.makespan_ns()
    }

    fn violation(&self) -> Option<Violation> {
        self.0.plan.violation()
    }

    fn transfer_bytes(&self) -> u64 {
        self.0.plan.transfer_bytes()
    }

    fn peak_bytes_per_device(&self) -> Vec<u64> {
        self.0.plan.peak_bytes_per_device()
    }

    fn set_start_order(&self, order: &[i32]) {
        self.0.plan.set_start_order(order);
        self.0.current.borrow_mut().start_order = order.to_vec();
    }

    /// Searches move nodes, and each device has its own number of queues: the host decides.
    fn set_queues(&self, _queue: &[u32]) {}

    fn set_streamed(&self, constants: &[u32]) {
        self.0.plan.set_streamed(constants);
        self.0.current.borrow_mut().streamed = constants.to_vec();
    }

    fn explain_wanted(&self) -> bool {
        false
    }

    fn explain(&self, _nodes: &[u32], _reason: &str) {}

    fn metric(&self, _name: &str, _value: f64) {}

    fn offer(&self) -> Result<(), Violation> {
        let Self(portfolio) = self;
        let makespan_ns = portfolio.plan.makespan_ns();
        if !portfolio.is_better(makespan_ns) {
            if let Some(violation) = portfolio.plan.violation() {
                return Err(violation);
            }
            portfolio.current.borrow_mut().makespan_ns = makespan_ns;
            return Ok(());
        }
        portfolio.plan.offer()?;
        let mut current = portfolio.current.borrow_mut();
        current.makespan_ns = makespan_ns;
        let found = Found {
            devices: portfolio.plan.devices(),
            start_order: current.start_order.clone(),
            streamed: current.streamed.clone(),
            makespan_ns,
        };
        *portfolio.best.borrow_mut() = Some((current.name, found));
        Ok(())
    }

    fn budget_left(&self) -> u64 {
        self.0.plan.budget_left()
    }

    fn budget_unit(&self) -> BudgetUnit {
        self.0.plan.budget_unit()
    }
}
