//! Search: the best of several plans, and its improvement step by step.
//!
//! [`Portfolio`] asks policies and keeps the plan with the least makespan by the host's estimate.
//! [`anneal`] starts from any legal plan. A step moves a colocation group to another device, swaps
//! the devices of two groups, lets connected groups on two devices change places, or lets a node
//! start earlier or later than others of its device. A step that lengthens the run is kept with a
//! probability that falls during the search (simulated annealing; Kirkpatrick, Gelatt, Vecchi
//! 1983), so the search leaves plans that no single step improves. Where there is time for more
//! rounds, each begins at the best plan and is hotter at first. The best plan is never worse than
//! the one at the start. Both minimize another [`Objective`] if they get a [`Scored`] plan.

mod objective;
mod portfolio;

use crate::NONE;
use crate::algorithm::Members;
use crate::graph::Graph;
use crate::memory::free_constants;
use crate::memory::place_constants;
use crate::plan::Plan;

pub use objective::Figure;
pub use objective::Objective;
pub use objective::ObjectiveError;
pub use objective::Scored;
pub use objective::bottleneck_ns;
pub use portfolio::Portfolio;

/// Evaluations between two looks at the budget of the call.
const STEPS_PER_LOOK: u64 = 64;

/// The budget of the call that is left at the end, as a part of the budget at the start.
const RESERVE: u64 = 16;

/// Temperatures at the start of each round, as parts of the makespan: a step that lengthens the run
/// by as much is kept with a probability of 1/e. The first round improves the plan at the start.
/// Later ones begin at the best plan so far and wander far from it: where a link is slow, a path to
/// a better plan may lead through much worse ones. The hottest ones begin anywhere.
const HOT: [f64; 6] = [0.02, 0.3, 10.0, 0.1, 1.0, 0.03];

/// Maximum number of rounds.
const ROUNDS_MAX: u64 = 12;

/// The temperature at the end of each round.
const COLD: f64 = 0.002;

/// Evaluations per group that make another round worth its while.
const EVALUATIONS_PER_ROUND: u64 = 100;

/// Maximum number of groups that move together.
const REGION_MAX: usize = 12;

/// A plan with its start order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Found {
    /// Device of each node.
    pub devices: Vec<u32>,
    /// Start order of each node, larger first.
    pub start_order: Vec<i32>,
    /// The streamed constants ([`Plan::set_streamed`]).
    pub streamed: Vec<u32>,
    /// The host's estimate, in ns; +inf if the plan is not legal.
    pub makespan_ns: f64,
}

impl Found {
    /// Makes it the host's plan.
    pub fn set(&self, plan: &Plan<'_>) {
        plan.set_devices(&self.devices);
        plan.set_start_order(&self.start_order);
        plan.set_streamed(&self.streamed);
    }
}

/// When a search ends, whatever the budget of the call.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of evaluations.
    pub n_evaluations: u64,
    /// A makespan that is good enough, in ns, such as a lower bound; 0 for none.
    pub enough_ns: f64,
}

/// What a search did.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The best plan.
    pub best: Found,
    /// Number of evaluations.
    pub n_evaluations: u64,
}

/// Pseudo-random numbers from a seed (xorshift64*).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Creates a generator. Equal seeds give equal numbers.
    pub fn new(seed: u64) -> Self {
        // No seed gives the state 0, which never changes.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `n`; 0 if `n` is 0.
    #[expect(clippy::cast_possible_truncation, reason = "below `n`")]
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// Returns a number between 0, inclusive, and 1, exclusive.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The colocation groups that have a choice.
#[derive(Debug, Clone, Default)]
pub struct Movable {
    groups: Vec<MovableGroup>,
    /// Per colocation group its index in `groups`, [`NONE`] for those without a choice.
    index: Vec<u32>,
    /// Nodes whose start order may matter.
    tasks: Vec<u32>,
    members: Members,
}

#[derive(Debug, Clone)]
struct MovableGroup {
    /// A member.
    node: u32,
    /// The devices that all members may take, at least two.
    devices: Vec<u32>,
}

impl Movable {
    /// Collects the groups. Constants that nothing binds are left out: their device does not
    /// matter.
    pub fn new(graph: &Graph<'_>) -> Self {
        let is_free_constant = free_constants(graph);
        let members = Members::new(graph);
        let mut is_seen = vec![false; graph.counts().groups as usize];
        let mut movable = Self {
            index: vec![NONE; is_seen.len()],
            ..Self::default()
        };
        for node in graph
            .nodes()
            .filter(|&node| !is_free_constant[node as usize])
        {
            movable.tasks.push(node);
            let group = graph.group()[node as usize];
            if std::mem::replace(&mut is_seen[group as usize], true) {
                continue;
            }
            let others = members.of(group);
            let own = [node];
            let all = if others.is_empty() { &own } else { others };
            if all
                .iter()
                .any(|&member| graph.pinned()[member as usize] != NONE)
            {
                continue;
            }
            let legal_for_all = |device: &u32| {
                let mut sets = all.iter().map(|&member| graph.candidates_of(member));
                sets.all(|legal| legal.contains(device))
            };
            let first = graph.candidates_of(node).iter();
            let devices: Vec<u32> = first.copied().filter(legal_for_all).collect();
            if devices.len() > 1 {
                movable.index[group as usize] = u32::try_from(movable.groups.len()).unwrap_or(NONE);
                movable.groups.push(MovableGroup { node, devices });
            }
        }
        movable.members = members;
        movable
    }

    /// Returns the members of a group.
    fn members<'m>(&'m self, graph: &Graph<'_>, group: &'m MovableGroup) -> &'m [u32] {
        match self.members.of(graph.group()[group.node as usize]) {
            [] => std::slice::from_ref(&group.node),
            members => members,
        }
    }

    /// Returns whether no group has a choice.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns the number of groups that have a choice.
    pub fn len(&self) -> usize {
        self.groups.len()
    }
}

/// Improves `start`, which was offered, within the limits, and stops earlier if the budget of the
/// call is nearly used up. Offers improvements on its way, so that the best plan is the answer
/// whenever the call ends; the last plan that it offers is the best one.
pub fn anneal(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    movable: &Movable,
    start: Found,
    limits: Limits,
    random: &mut Random,
) -> Outcome {
    let mut walk = Walk::new(graph, plan, movable, start);
    walk.run(limits, random);
    walk.offer();
    Outcome {
        best: walk.best,
        n_evaluations: walk.n_evaluations,
    }
}

/// A step that can be taken back.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A group, where it was, and where it goes.
    Move(u32, u32, u32),
    /// Two groups and their devices before.
    Swap([(u32, u32); 2]),
    /// The groups of [`Walk::region`], each on one of these devices, which go to the other one.
    Region(u32, u32),
    /// The positions in the sequence between which a node moves.
    Shift(usize, usize),
}

/// A search in progress.
struct Walk<'w, 'g> {
    graph: &'w Graph<'g>,
    plan: &'w Plan<'w>,
    movable: &'w Movable,
    is_free_constant: Vec<bool>,
    /// The current plan.
    devices: Vec<u32>,
    /// Tasks in their start order.
    sequence: Vec<u32>,
    start_order: Vec<i32>,
    makespan_ns: f64,
    /// A node of each group that moves together with others.
    region: Vec<u32>,
    best: Found,
    /// The makespan of the last offer.
    offered_ns: f64,
    n_evaluations: u64,
}

impl<'w, 'g> Walk<'w, 'g> {
    fn new(graph: &'w Graph<'g>, plan: &'w Plan<'w>, movable: &'w Movable, start: Found) -> Self {
        let mut sequence = movable.tasks.clone();
        let order = |&node: &u32| (-i64::from(start.start_order[node as usize]), node);
        sequence.sort_by_key(order);
        let mut start_order = vec![0; graph.len()];
        for (order, &node) in (0_i32..).zip(&sequence) {
            start_order[node as usize] = -order;
        }
        plan.set_devices(&start.devices);
        plan.set_start_order(&start_order);
        plan.set_streamed(&start.streamed);
        // Those that are streamed stay where they are kept.
        let mut is_free_constant = free_constants(graph);
        for &constant in &start.streamed {
            is_free_constant[constant as usize] = false;
        }
        Self {
            graph,
            plan,
            movable,
            is_free_constant,
            devices: start.devices.clone(),
            sequence,
            start_order,
            makespan_ns: start.makespan_ns,
            region: Vec::new(),
            offered_ns: start.makespan_ns,
            best: start,
            n_evaluations: 0,
        }
    }

    fn run(&mut self, limits: Limits, random: &mut Random) {
        let n_groups = (self.movable.len() as u64).max(1);
        let n_rounds = limits.n_evaluations / (n_groups * EVALUATIONS_PER_ROUND);
        let n_rounds = n_rounds.clamp(1, ROUNDS_MAX);
        let limits = Limits {
            n_evaluations: limits.n_evaluations / n_rounds,
            ..limits
        };
        let reserve = self.plan.budget_left() / RESERVE;
        for (hot, round) in HOT.into_iter().cycle().zip(0..n_rounds) {
            if round > 0 {
                self.return_to_best();
            }
            if !self.cool_down(hot, limits, reserve, random) {
                return;
            }
        }
    }

    /// Makes the best plan the current one.
    fn return_to_best(&mut self) {
        self.devices.clone_from(&self.best.devices);
        self.start_order.clone_from(&self.best.start_order);
        self.makespan_ns = self.best.makespan_ns;
        let start_order = &self.start_order;
        self.sequence
            .sort_by_key(|&node| -i64::from(start_order[node as usize]));
        self.plan.set_devices(&self.devices);
        self.plan.set_start_order(&self.start_order);
    }

    /// Searches while the temperature falls. Returns whether the search may go on.
    #[expect(clippy::cast_precision_loss, reason = "a part of the search")]
    fn cool_down(&mut self, hot: f64, limits: Limits, reserve: u64, random: &mut Random) -> bool {
        let Limits {
            n_evaluations,
            enough_ns,
        } = limits;
        for step in 0..n_evaluations {
            if step % STEPS_PER_LOOK == 0 {
                let is_enough = self.best.makespan_ns <= enough_ns * (1.0 + 1e-9);
                if is_enough || self.plan.budget_left() <= reserve {
                    return false;
                }
                // What is left of the call may be short, so large gains are offered at once.
                if self.best.makespan_ns < 0.99 * self.offered_ns {
                    self.offer();
                }
            }
            let done = step as f64 / n_evaluations as f64;
            let temperature_ns = self.best.makespan_ns * hot * (COLD / hot).powf(done);
            let Some(taken) = self.step(random) else {
                continue;
            };
            self.apply(taken);
            let makespan_ns = self.plan.makespan_ns();
            self.n_evaluations += 1;
            let longer_ns = makespan_ns - self.makespan_ns;
            if longer_ns <= 0.0 || random.unit() < (-longer_ns / temperature_ns).exp() {
                self.makespan_ns = makespan_ns;
                if makespan_ns < self.best.makespan_ns {
                    self.best.makespan_ns = makespan_ns;
                    self.best.devices.clone_from(&self.devices);
                    self.best.start_order.clone_from(&self.start_order);
                }
            } else {
                self.take_back(taken);
            }
        }
        true
    }

    /// Returns a random step; `None` if none of a few draws changes anything.
    fn step(&mut self, random: &mut Random) -> Option<Step> {
        let movable = self.movable;
        let groups = &movable.groups;
        for _ in 0..16 {
            let kind = random.below(8);
            let group = groups.get(random.below(groups.len()))?;
            let from = self.devices[group.node as usize];
            match kind {
                0..4 => {
                    let to = group.devices[random.below(group.devices.len())];
                    if to != from && kind == 3 {
                        self.find_region(group, to, random);
                        return Some(Step::Region(from, to));
                    }
                    if to != from {
                        return Some(Step::Move(group.node, from, to));
                    }
                }
                4 => {
                    let other = &groups[random.below(groups.len())];
                    let to = self.devices[other.node as usize];
                    if to != from && group.devices.contains(&to) && other.devices.contains(&from) {
                        return Some(Step::Swap([(group.node, from), (other.node, to)]));
                    }
                }
                _ => {
                    let at = random.below(self.sequence.len());
                    if let Some(to) = self.shifted(at, random) {
                        return Some(Step::Shift(at, to));
                    }
                }
            }
        }
        None
    }

    /// Collects a group and some that are connected with it: on its device, those that may move to
    /// `to`; every other time also those on `to` that may move to its device.
    fn find_region(&mut self, group: &MovableGroup, to: u32, random: &mut Random) {
        let (graph, movable) = (self.graph, self.movable);
        let from = self.devices[group.node as usize];
        let n = 2 + random.below(REGION_MAX - 1);
        let swaps = random.below(2) == 0;
        let all = random.below(3) == 0;
        let may_move = |found: &MovableGroup, device: u32| {
            device == from && found.devices.contains(&to)
                || swaps && device == to && found.devices.contains(&from)
        };
        self.region.clear();
        self.region.push(group.node);
        let mut next = 0;
        while self.region.len() < n
            && let Some(&node) = self.region.get(next)
        {
            next += 1;
            let own = movable.index[graph.group()[node as usize] as usize];
            for &member in movable.members(graph, &movable.groups[own as usize]) {
                let producers = graph.predecessors().row(member);
                for &other in producers.iter().chain(graph.successors().row(member)) {
                    let index = movable.index[graph.group()[other as usize] as usize];
                    let Some(found) = movable.groups.get(index as usize) else {
                        continue;
                    };
                    if self.region.len() < n
                        && may_move(found, self.devices[found.node as usize])
                        && !self.region.contains(&found.node)
                        && (all || random.below(2) == 0)
                    {
                        self.region.push(found.node);
                    }
                }
            }
        }
    }

    /// Returns a position in the sequence before or after one of the next tasks of the same device.
    fn shifted(&self, at: usize, random: &mut Random) -> Option<usize> {
        let device = self.devices[self.sequence[at] as usize];
        let is_on_device =
            |position: &usize| self.devices[self.sequence[*position] as usize] == device;
        let skip = random.below(3);
        if random.below(2) == 0 {
            (0..at).rev().filter(is_on_device).nth(skip)
        } else {
            (at + 1..self.sequence.len()).filter(is_on_device).nth(skip)
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Move(node, _, to) => self.set_device(node, to),
            Step::Swap([(a, device_a), (b, device_b)]) => {
                self.set_device(a, device_b);
                self.set_device(b, device_a);
            }
            Step::Region(from, to) => self.exchange_region(from, to),
            Step::Shift(from, to) => self.shift(from, to),
        }
    }

    fn take_back(&mut self, step: Step) {
        match step {
            Step::Move(node, from, _) => self.set_device(node, from),
            Step::Swap(before) => {
                for (node, device) in before {
                    self.set_device(node, device);
                }
            }
            Step::Region(from, to) => self.exchange_region(from, to),
            Step::Shift(from, to) => self.shift(to, from),
        }
    }

    /// Moves the group of a node.
    fn set_device(&mut self, node: u32, device: u32) {
        self.plan.move_nodes(&[node], device);
        self.note_device(node, device);
    }

    fn exchange_region(&mut self, from: u32, to: u32) {
        let mut region = std::mem::take(&mut self.region);
        let mut n_there = 0;
        for at in 0..region.len() {
            if self.devices[region[at] as usize] == from {
                region.swap(n_there, at);
                n_there += 1;
            }
        }
        let (there, back) = region.split_at(n_there);
        for (nodes, device) in [(there, to), (back, from)] {
            if !nodes.is_empty() {
                self.plan.move_nodes(nodes, device);
            }
            for &node in nodes {
                self.note_device(node, device);
            }
        }
        self.region = region;
    }

    /// Records the device of a node's group.
    fn note_device(&mut self, node: u32, device: u32) {
        let group = self.movable.index[self.graph.group()[node as usize] as usize];
        let group = &self.movable.groups[group as usize];
        for &member in self.movable.members(self.graph, group) {
            self.devices[member as usize] = device;
        }
    }

    /// Moves a task from one position of the sequence to another.
    fn shift(&mut self, from: usize, to: usize) {
        let (first, last) = if from < to {
            self.sequence[from..=to].rotate_left(1);
            (from, to)
        } else {
            self.sequence[to..=from].rotate_right(1);
            (to, from)
        };
        // The orders in this range stay, each for another task.
        for (order, &node) in (first..).zip(&self.sequence[first..=last]) {
            self.start_order[node as usize] = -i32::try_from(order).unwrap_or(i32::MAX);
        }
        self.plan.set_start_order(&self.start_order);
    }

    /// Offers the best plan, unless it was offered, and returns to the current one.
    fn offer(&mut self) {
        if self.best.makespan_ns >= self.offered_ns {
            return;
        }
        let mut devices = self.best.devices.clone();
        place_constants(self.graph, &self.is_free_constant, &mut devices);
        self.plan.set_devices(&devices);
        self.plan.set_start_order(&self.best.start_order);
        if self.plan.offer().is_ok() {
            self.offered_ns = self.best.makespan_ns;
        }
        self.plan.set_devices(&self.devices);
        self.plan.set_start_order(&self.start_order);
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use crate::devices::DeviceSet;
    use crate::log::Log;
    use crate::policy::PlaceError;
    use crate::policy::Policy;
    use crate::testing::GraphBuilder;
    use crate::testing::TestPlan;
    use crate::testing::cluster;

    #[test]
    fn groups_with_a_choice_are_movable() {
        let devices = cluster("2xA,1xB");
        let mut builder = GraphBuilder::new(&devices);
        let constant = builder.constant("constant", 8);
        let free = builder.node("free", &[1.0, 1.0]);
        builder.edge(constant, free, 8);
        let pinned = builder.node("pinned", &[1.0, 1.0]);
        builder.pin(pinned, 0);
        let only = builder.node("only", &[1.0, 1.0]);
        builder.candidates(only, &[1]);
        let (a, b) = (
            builder.node("a", &[1.0, 1.0]),
            builder.node("b", &[1.0, 1.0]),
        );
        builder.group(&[a, b]);
        builder.candidates(b, &[2, 1]);
        let graph = builder.build();
        let log = Log::silent();
        let movable = Movable::new(&Graph::new(&graph, &log));
        let found: Vec<(u32, &[u32])> = movable
            .groups
            .iter()
            .map(|it| (it.node, &it.devices[..]))
            .collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].0, free);
        assert_eq!(found[0].1.len(), 3);
        assert_eq!(found[1].0, a);
        let mut of_group = found[1].1.to_vec();
        of_group.sort_unstable();
        assert_eq!(of_group, [1, 2]);
        assert_eq!(movable.tasks, [free, pinned, only, a, b]);
    }

    /// Offers plans one after the other.
    #[derive(Default)]
    struct Offers(Vec<Vec<u32>>);

    impl Policy for Offers {
        const NAME: &'static str = "offers";

        fn place(
            &mut self,
            _graph: &Graph<'_>,
            _devices: &DeviceSet<'_>,
            plan: &Plan<'_>,
            _seed: u64,
        ) -> Result<(), PlaceError> {
            plan.metric("lost", 1.0);
            assert!(!plan.explain_wanted());
            for devices in &self.0 {
                plan.offer_devices(devices)?;
            }
            Ok(())
        }
    }

    #[test]
    fn a_portfolio_offers_what_is_better_than_before() {
        let devices = cluster("1xA,1xB").with_links(0.0, 0.0);
        let mut builder = GraphBuilder::new(&devices);
        builder.node("a", &[10.0, 20.0]);
        builder.node("b", &[10.0, 5.0]);
        let test_graph = builder.build();
        let log = Log::silent();
        let (graph, set) = (
            Graph::new(&test_graph, &log),
            DeviceSet::new(&devices, &log),
        );
        let sink = TestPlan::new(&test_graph, &devices);
        let portfolio = Portfolio::new(Plan::new(&sink, &log));
        let ask = |plans: &[[u32; 2]]| {
            let plans = plans.iter().map(|plan| plan.to_vec()).collect();
            portfolio.ask(&mut Offers(plans), &graph, &set, 0)
        };
        assert_eq!(ask(&[[7, 0]]), f64::INFINITY, "there is no device 7");
        assert_eq!(ask(&[[0, 0], [1, 1]]), 25.0);
        assert_eq!(portfolio.offer("own", &graph, &[0, 1], &[0, 0]), 10.0);
        assert_eq!(ask(&[[0, 0], [7, 0]]), 20.0, "a worse plan is no answer");
        let (by, best) = portfolio.into_best().unwrap();
        assert_eq!(
            (by, &best.devices[..], best.makespan_ns),
            ("own", &[0, 1][..], 10.0)
        );
        let offer = sink.into_offer().unwrap();
        assert_eq!(offer.devices, [0, 1]);
        assert_eq!(offer.metrics, []);
    }

    #[test]
    fn random_numbers_are_spread_and_depend_on_the_seed() {
        for seed in [0, 1, u64::MAX] {
            let mut random = Random::new(seed);
            let mut counts = [0; 7];
            for _ in 0..7_000 {
                counts[random.below(7)] += 1;
                assert!((0.0..1.0).contains(&random.unit()));
            }
            assert!(
                counts.iter().all(|&n| (800..1_200).contains(&n)),
                "{counts:?}"
            );
            assert_eq!(random.below(0), 0);
        }
        assert_ne!(Random::new(1).below(1 << 30), Random::new(2).below(1 << 30));
    }
}
