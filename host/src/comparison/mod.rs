//! Several policies on one graph and the same devices, side by side.
//!
//! [`Comparison::new`] places the graph by each policy, and simulates each placement.
//! [`Comparison::measure`] also runs them, in turns. [`Comparison::write_html`] writes a page that
//! a browser shows without a network.
//!
//! ```
//! use placewright::builder::GraphBuilder;
//! use placewright::cluster::ClusterSpec;
//! use placewright::comparison::Comparison;
//! use placewright::policy::{PolicyRequest, ShippedPolicy};
//! use placewright::session::Session;
//!
//! let b = GraphBuilder::new("squares");
//! let x = b.placeholder::<f32>("x", [1024, 1024])?;
//! b.named("y").matmul(x, x)?;
//! let cluster = ClusterSpec::parse(
//!     r#"
//!     [[host]]
//!     device = [{ profile = "epyc-9654" }, { profile = "h100-sxm" }]
//!     "#,
//! )?;
//! let builder = Session::builder().with_graph(b.finish()).with_cluster(&cluster);
//! let policies = ["priority", "heft"].map(ShippedPolicy::find);
//! let policies = policies.map(|policy| policy.map(PolicyRequest::new));
//! let requests = policies.into_iter().collect::<Result<Vec<_>, _>>()?;
//! let comparison = Comparison::new(&builder, requests)?;
//! assert_eq!(comparison.policies.len(), 2);
//! assert!(comparison.best().is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod html;

use std::time::Duration;
use std::time::Instant;

use crate::error::Error;
use crate::placement::Placement;
use crate::placement::Simulation;
use crate::policy::LadderError;
use crate::policy::PolicyRequest;
use crate::session::Session;
use crate::session::SessionBuilder;
use crate::tensor::Tensor;

/// Policies on one graph and the same devices.
#[derive(Debug)]
#[non_exhaustive]
pub struct Comparison {
    /// The policies, in the order of the requests.
    pub policies: Vec<ComparedPolicy>,
}

/// A policy of a [`Comparison`].
#[derive(Debug)]
#[non_exhaustive]
pub struct ComparedPolicy {
    /// Its name, or the path of its file.
    pub name: String,
    /// Its placement, or why it has none.
    pub outcome: Result<ComparedPlan, LadderError>,
}

/// The placement of a policy.
#[derive(Debug)]
#[non_exhaustive]
pub struct ComparedPlan {
    /// A session that executes it, if its devices can.
    pub session: Session,
    /// What one run would look like.
    pub simulation: Simulation,
    /// Time of the policy's call.
    pub placed_in: Duration,
    /// Bytes that one run moves between devices.
    pub transfer_bytes: u64,
    /// Tensors that one run moves between devices.
    pub n_transfers: u64,
    /// Per device the most bytes that it holds at one time.
    pub peak_bytes: Vec<u64>,
    /// Median time of a run, after [`Comparison::measure`].
    pub measured: Option<Duration>,
}

/// Runs of each plan before those that are timed: executors try several ways first.
const N_RUNS_TO_SETTLE: usize = 20;

impl Comparison {
    /// Places the graph of a builder by each policy, without fallback to another one.
    ///
    /// # Errors
    /// What is wrong besides the policies: the graph, the devices.
    pub fn new(
        builder: &SessionBuilder,
        requests: impl IntoIterator<Item = PolicyRequest>,
    ) -> Result<Self, Error> {
        let policies = requests.into_iter().map(|request| {
            let name = request.source.to_string();
            let builder = builder.clone().with_policy(request.with_strict(true));
            let outcome = match builder.build() {
                Ok(session) => Ok(ComparedPlan::new(session)),
                Err(Error::Ladder(error)) => Err(error),
                Err(error) => return Err(error),
            };
            Ok(ComparedPolicy { name, outcome })
        });
        Ok(Self {
            policies: policies.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the plans, with the names of their policies.
    pub fn plans(&self) -> impl Iterator<Item = (&str, &ComparedPlan)> {
        let plans = self.policies.iter();
        plans.filter_map(|policy| Some((&*policy.name, policy.outcome.as_ref().ok()?)))
    }

    /// Returns the name and the plan with the shortest run: measured if runs were, else expected.
    pub fn best(&self) -> Option<(&str, &ComparedPlan)> {
        let run_ns = |plan: &ComparedPlan| plan.run_ns();
        self.plans()
            .min_by(|(_, a), (_, b)| run_ns(a).total_cmp(&run_ns(b)))
    }

    /// Runs all plans with these feeds and fetches, in turns, since clocks of processors drift:
    /// each for `time` in each of `rounds` rounds, and at least once.
    ///
    /// # Errors
    /// Those of runs.
    pub fn measure(
        &mut self,
        feeds: &[(&str, Tensor)],
        fetches: &[&str],
        rounds: u32,
        time: Duration,
    ) -> Result<(), Error> {
        let mut plans: Vec<(&mut ComparedPlan, Vec<Duration>)> = self
            .policies
            .iter_mut()
            .filter_map(|policy| Some((policy.outcome.as_mut().ok()?, Vec::new())))
            .collect();
        for (plan, _) in &plans {
            let started = Instant::now();
            for _ in 0..N_RUNS_TO_SETTLE {
                plan.session.run(feeds, fetches)?;
                if started.elapsed() > time {
                    break;
                }
            }
        }
        for _ in 0..rounds {
            for (plan, times) in &mut plans {
                let started = Instant::now();
                loop {
                    let before = Instant::now();
                    plan.session.run(feeds, fetches)?;
                    times.push(before.elapsed());
                    if started.elapsed() >= time {
                        break;
                    }
                }
            }
        }
        for (plan, mut times) in plans {
            times.sort_unstable();
            plan.measured = times.get(times.len() / 2).copied();
        }
        Ok(())
    }
}

impl ComparedPlan {
    fn new(session: Session) -> Self {
        let placement = session.placement();
        let report = session.report();
        let summary = placement.summary();
        Self {
            simulation: placement.simulate(),
            placed_in: report
                .policy()
                .map_or(Duration::ZERO, |policy| policy.answer.elapsed),
            transfer_bytes: summary.transfer_bytes,
            n_transfers: summary.n_transfers,
            peak_bytes: placement.evaluator().peak_bytes_per_device(),
            measured: None,
            session,
        }
    }

    /// Returns the placement.
    pub fn placement(&self) -> std::sync::Arc<Placement> {
        self.session.placement()
    }

    /// Returns the time of a run, in ns: measured if runs were, else expected.
    #[expect(clippy::cast_precision_loss, reason = "times are far below 2^53 ns")]
    pub fn run_ns(&self) -> f64 {
        match self.measured {
            Some(measured) => measured.as_nanos() as f64,
            None => self.simulation.expected_ns,
        }
    }
}
