//! `search`: the best plan of list schedulers, improved by simulated annealing.
//!
//! First, `heft`, `peft`, `cpop`, `hbmct`, `lookahead` and `priority` are asked, and plans on one
//! device of each kind are tried; where memory is short, also `m-etf` and `m-topo`. The host's
//! estimate decides which is best: it knows what the schedulers ignore, such as links that
//! transfers share. Then that plan is improved step by step
//! ([`placewright_guest::search::anneal`]). A plan that is 1 % shorter than the last offer is
//! offered soon, and the best one at the end. The search ends before the budget of the call does.
//!
//! `effort` bounds the search: the evaluations of plans, times the nodes of the graph. It does not
//! depend on clocks, so equal graphs, devices and seeds give equal plans, unless a deadline ends
//! the call.
//!
//! `objective` says what is minimized ([`placewright_guest::search::Objective`]). If it is not
//! `latency` alone, plans are compared by a score, and `pipeline` is asked too if throughput has a
//! weight. The metrics are then `score`, `start_score`, `makespan_ns` and the weighted figures.

use placewright_guest::Assignment;
use placewright_guest::Config;
use placewright_guest::ConfigError;
use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::Reasons;
use placewright_guest::Setting;
use placewright_guest::algorithm::descending;
use placewright_guest::export_policy;
use placewright_guest::memory::free_constants;
use placewright_guest::memory::is_tight;
use placewright_guest::memory::place_constants;
use placewright_guest::schedule::TaskGraph;
use placewright_guest::search::Figure;
use placewright_guest::search::Found;
use placewright_guest::search::Limits;
use placewright_guest::search::Movable;
use placewright_guest::search::Objective;
use placewright_guest::search::Portfolio;
use placewright_guest::search::Random;
use placewright_guest::search::Scored;
use placewright_guest::search::anneal;

/// Up to this many nodes times devices, all list schedulers are asked, and several devices are
/// tried alone; beyond, only the fastest.
const ALL_SCHEDULERS_MAX: usize = 1 << 20;

/// Up to this many trials ([`policy_lookahead::n_trials`]), `lookahead` is asked.
const LOOKAHEAD_TRIALS_MAX: usize = 1 << 20;

/// Effort that is worth one evaluation per group that has a choice. Small graphs need no more.
const EFFORT_PER_GROUP: u64 = 2_000;

/// Effort that is worth one evaluation, however few groups have a choice: the rounds of a search
/// need some hundred evaluations each.
const EFFORT_PER_EVALUATION: u64 = 50;

/// With fewer evaluations per group, a search finds next to nothing.
const GROUPS_PER_EVALUATION: u64 = 16;

/// A graph whose effort allows fewer evaluations is not searched, and its groups are not collected.
const EVALUATIONS_MIN: u64 = 16;

/// The name of plans on one device.
const ON_ONE: &str = "one device";

/// A plan on one device that streams constants.
const STREAMED: &str = "streamed";

/// How many usual evaluations one takes that computes the memory of a plan.
const TIGHT_EVALUATION: u64 = 8;

/// Maximum number of devices that are tried alone.
const ALONE_MAX: usize = 4;

/// The policy.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// Evaluations of plans, times the nodes of the graph.
    pub effort: u64,
    /// By how much the run of a plan on several devices must be shorter than that of the best plan
    /// on one device, as a part of the latter. Else the graph stays on one device.
    pub margin: f64,
    /// What is minimized.
    pub objective: Objective,
}

impl Policy for Search {
    const NAME: &'static str = "search";
    const DESCRIPTION: &'static str =
        "the best plan of list schedulers and of single devices, improved by simulated annealing";
    const SETTINGS: &'static [Setting] = &[
        Setting {
            key: "effort",
            kind: "u64",
            default: "10000000",
            description: "evaluations of plans, times the nodes of the graph; 0 improves nothing",
        },
        Setting {
            key: "margin",
            kind: "f64",
            default: "0",
            description: "the gain, as a part of the run, for which a graph leaves one device",
        },
        Setting {
            key: "objective",
            kind: "text",
            default: "latency",
            description: "what is minimized: latency (the time of one run), throughput (the time per run of many), \
                memory (of the fullest device) or bytes (transferred), or several with weights, such as \
                latency=1,bytes=0.5",
        },
    ];

    fn configure(&mut self, config: &Config) -> Result<(), ConfigError> {
        self.effort = config.parse("effort")?;
        self.margin = config.parse("margin")?;
        self.objective = config.parse("objective")?;
        if !(0.0..1.0).contains(&self.margin) {
            return Err(ConfigError::BadValue {
                key: "margin".to_owned(),
                value: format!("{} (expected a number from 0 to less than 1)", self.margin),
            });
        }
        Ok(())
    }

    fn place(
        &mut self,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        plan: &Plan<'_>,
        seed: u64,
    ) -> Result<(), PlaceError> {
        if devices.is_empty() {
            return Err(PlaceError::Declined("there is no device".to_owned()));
        }
        let tasks = TaskGraph::new(graph, devices);
        // The host's estimate is the score of the usual objective.
        let scored =
            (!self.objective.is_latency()).then(|| Scored::new(self.objective, &tasks, *plan));
        let plan = &match &scored {
            None => *plan,
            Some(scored) => Plan::new(scored, plan.log()),
        };
        let movable =
            (self.n_evaluations_max(graph) >= EVALUATIONS_MIN).then(|| Movable::new(graph));
        let has_choice = movable.as_ref().is_none_or(|movable| !movable.is_empty());
        let starts = Starts::find(self.objective, &tasks, devices, plan, has_choice, seed);
        let Some((by, start)) = starts.best else {
            // The rule that the last one breaks says more.
            plan.offer()?;
            let reason = "no scheduler found a legal plan; `--log debug` shows why";
            return Err(PlaceError::Failed(reason.to_owned()));
        };
        // A plan on several devices must be shorter than this.
        let wanted_ns = starts.on_one.as_ref().map_or(f64::INFINITY, |on_one| {
            on_one.makespan_ns * (1.0 - self.margin)
        });
        let bound_ns = match self.objective.is_latency() {
            true => tasks.lower_bound_ns(),
            false => 0.0,
        };
        let is_slow = starts.is_tight || self.objective.needs_partitions();
        let mut n_evaluations = 0;
        let mut best = start.clone();
        if wanted_ns > bound_ns
            && let Some(movable) = &movable
        {
            let n = self.n_evaluations(graph, movable);
            let limits = Limits {
                n_evaluations: if is_slow { n / TIGHT_EVALUATION } else { n },
                enough_ns: bound_ns,
            };
            let random = &mut Random::new(seed);
            let outcome = anneal(graph, plan, movable, best, limits, random);
            (best, n_evaluations) = (outcome.best, outcome.n_evaluations);
        }
        let (by, start, best) = match starts.on_one {
            Some(on_one) if best.makespan_ns >= wanted_ns => {
                if on_one != best {
                    on_one.set(plan);
                    plan.offer()?;
                }
                (ON_ONE, on_one.clone(), on_one)
            }
            _ => (by, start, best),
        };
        if self.objective.is_latency() {
            plan.metric("start_ns", start.makespan_ns);
            plan.metric("lower_bound_ns", bound_ns);
            plan.metric("makespan_ns", best.makespan_ns);
        }
        if let Some(scored) = &scored {
            best.set(plan);
            plan.metric("start_score", start.makespan_ns);
            plan.metric("score", best.makespan_ns);
            scored.report();
        }
        #[expect(clippy::cast_precision_loss, reason = "for readers")]
        plan.metric("evaluations", n_evaluations as f64);
        explain(graph, plan, by, &start, &best);
        Ok(())
    }
}

impl Search {
    /// Returns how many plans may be evaluated; 0 if that is too few, or if there is no choice.
    fn n_evaluations(&self, graph: &Graph<'_>, movable: &Movable) -> u64 {
        let n_groups = movable.len() as u64;
        let n = self.n_evaluations_max(graph);
        let least = self.effort / EFFORT_PER_EVALUATION;
        let n = n.min(least.max(n_groups.saturating_mul(self.effort / EFFORT_PER_GROUP)));
        if n < n_groups / GROUPS_PER_EVALUATION {
            0
        } else {
            n
        }
    }

    /// Returns how many plans may be evaluated, whatever the number of groups.
    fn n_evaluations_max(&self, graph: &Graph<'_>) -> u64 {
        self.effort / (graph.len() as u64).max(1)
    }
}

/// The plans from which a search starts.
struct Starts {
    /// Who found the best plan, and the plan, which is offered.
    best: Option<(&'static str, Found)>,
    /// The best plan on one device, but for nodes that may not run there.
    on_one: Option<Found>,
    /// Whether evaluations have to compute the memory of plans, which takes about ten times as
    /// long.
    is_tight: bool,
}

impl Starts {
    fn find(
        objective: Objective,
        tasks: &TaskGraph<'_, '_>,
        devices: &DeviceSet<'_>,
        plan: &Plan<'_>,
        has_choice: bool,
        seed: u64,
    ) -> Self {
        let graph = tasks.graph();
        let portfolio = Portfolio::new(*plan);
        let mut on_one: Option<Found> = None;
        if !has_choice {
            portfolio.ask(&mut policy_priority::Priority, graph, devices, seed);
            return Self {
                best: portfolio.into_best(),
                on_one,
                is_tight: false,
            };
        }
        let start_order = by_rank(tasks);
        let is_large = graph.len().saturating_mul(devices.len()) > ALL_SCHEDULERS_MAX;
        let n_alone = if is_large { 1 } else { ALONE_MAX };
        for device in single_devices(tasks, devices).into_iter().take(n_alone) {
            let placed = all_on(tasks, device);
            let makespan_ns = portfolio.offer(ON_ONE, graph, &placed, &start_order);
            if on_one
                .as_ref()
                .is_none_or(|it| makespan_ns < it.makespan_ns)
            {
                on_one = (makespan_ns < f64::INFINITY).then(|| Found {
                    devices: placed,
                    start_order: start_order.clone(),
                    streamed: Vec::new(),
                    makespan_ns,
                });
            }
        }
        portfolio.ask(&mut policy_heft::Heft::default(), graph, devices, seed);
        if !is_large {
            portfolio.ask(&mut policy_peft::Peft, graph, devices, seed);
            portfolio.ask(&mut policy_hbmct::Hbmct, graph, devices, seed);
            portfolio.ask(&mut policy_cpop::Cpop, graph, devices, seed);
            portfolio.ask(&mut policy_priority::Priority, graph, devices, seed);
            if policy_lookahead::n_trials(graph, devices) <= LOOKAHEAD_TRIALS_MAX {
                portfolio.ask(&mut policy_lookahead::Lookahead, graph, devices, seed);
            }
        }
        if objective.weight(Figure::Throughput) > 0.0 {
            portfolio.ask(&mut policy_pipeline::Pipeline, graph, devices, seed);
        }
        let is_tight = on_one.is_none() || is_tight(graph, devices);
        if is_tight {
            portfolio.ask(&mut policy_m_topo::MTopo, graph, devices, seed);
            portfolio.ask(&mut policy_m_etf::MEtf, graph, devices, seed);
            for device in single_devices(tasks, devices).into_iter().take(n_alone) {
                let placed = all_on(tasks, device);
                portfolio.offer_streamed(STREAMED, graph, devices, &placed, &start_order);
            }
        }
        Self {
            best: portfolio.into_best(),
            on_one,
            is_tight,
        }
    }
}

/// Returns the start order by upward rank.
fn by_rank(tasks: &TaskGraph<'_, '_>) -> Vec<i32> {
    let ranks = tasks.upward_ranks();
    let mut order = vec![0; ranks.len()];
    for (position, node) in (0_i32..).zip(descending(&ranks)) {
        order[node as usize] = -position;
    }
    order
}

/// Returns the first device of each cost class, those that run the graph faster first.
fn single_devices(tasks: &TaskGraph<'_, '_>, devices: &DeviceSet<'_>) -> Vec<u32> {
    let classes = devices.cost_classes();
    let mut first_of_class: Vec<u32> = devices.ids().collect();
    first_of_class.sort_by_key(|&device| (classes[device as usize], device));
    first_of_class.dedup_by_key(|device| classes[*device as usize]);
    let work = |device: u32| -> f64 {
        let legal = tasks
            .nodes()
            .filter(|&node| tasks.candidates(node).contains(&device));
        let time = |node: u32| tasks.mean_work_ns()[node as usize] - tasks.work_ns(node, device);
        legal.map(time).sum()
    };
    // How much faster than the mean each device is, over all nodes.
    let mut gains: Vec<(f64, u32)> = first_of_class.iter().map(|&it| (work(it), it)).collect();
    gains.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    gains.into_iter().map(|(_, device)| device).collect()
}

/// Places each node on a device, or where it runs fastest if it may not run there.
fn all_on(tasks: &TaskGraph<'_, '_>, device: u32) -> Vec<u32> {
    let graph = tasks.graph();
    let mut assignment = Assignment::new(graph);
    for node in graph.nodes() {
        let legal = tasks.candidates(node);
        let fastest = || {
            let time = |&other: &u32| tasks.work_ns(node, other);
            let by_time = |a: &u32, b: &u32| time(a).total_cmp(&time(b));
            legal.iter().copied().min_by(by_time).unwrap_or(device)
        };
        let own = if legal.contains(&device) {
            device
        } else {
            fastest()
        };
        assignment.decide(node, own);
    }
    let mut devices = assignment.devices().to_vec();
    place_constants(graph, &free_constants(graph), &mut devices);
    devices
}

/// Explains where nodes are.
fn explain(graph: &Graph<'_>, plan: &Plan<'_>, by: &'static str, start: &Found, best: &Found) {
    let kept = match by {
        "heft" => "as heft places it",
        "peft" => "as peft places it",
        "cpop" => "as cpop places it",
        "lookahead" => "as lookahead places it",
        "hbmct" => "as hbmct places it",
        "m-etf" => "as m-etf places it",
        "m-topo" => "as m-topo places it",
        STREAMED => "one device: weights are streamed",
        "pipeline" => "as pipeline places it",
        "priority" => "as priority places it",
        _ => "one device: others gain too little",
    };
    Reasons::by_rule(graph, plan, |node| {
        let at = node as usize;
        if start.devices[at] == best.devices[at] {
            kept
        } else {
            "moved: the plan is better"
        }
    });
}

export_policy!(Search, feature = "export");

#[cfg(test)]
mod tests;
