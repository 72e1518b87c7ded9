//! How often nodes are executed in one run, as far as the graph tells: loops with their trip
//! counts, branches with equal probabilities.

use std::collections::BTreeMap;

use crate::graph::Bodies;
use crate::graph::BodyId;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::graph::is_control_flow;
use crate::graph::is_enter;
use crate::graph::is_merge;
use crate::graph::is_switch;
use crate::tensor::DType;
use crate::tensor::LiteralData;
use crate::trace::RunProfile;

/// The assumed number of iterations of a loop whose condition does not tell it. The order of
/// magnitude matters: what is in a loop counts more than what is outside.
const TRIPS_ASSUMED: f64 = 10.0;

/// How many nodes are followed from a condition to its constants.
const STEPS_MAX: usize = 64;

/// Expected executions and loop frames of nodes; empty if the graph has no branches and no loops.
#[derive(Debug, Default)]
pub(super) struct Executions {
    pub(super) of_node: Vec<f64>,
    /// Per node its loop, or [`NONE`].
    pub(super) frame: Vec<u32>,
    /// Per loop the loop around it, or [`NONE`].
    pub(super) frame_parents: Vec<u32>,
}

/// Estimates executions. A graph whose loops cannot be executed gets none. `stated` has the trip
/// counts that the user knows, by frame; the executions of nodes in `profile` are those measured.
pub(super) fn executions(
    graph: &Graph,
    stated: &[(String, f64)],
    profile: Option<&RunProfile>,
) -> Executions {
    let Ok(bodies) = graph.bodies() else {
        return Executions::default();
    };
    if !bodies.has_loops() && bodies.guards().is_empty() && profile.is_none() {
        return Executions::default();
    }
    let finder = Finder { graph, bodies };
    let trips: Vec<f64> = finder.trips(stated);
    let shares: Vec<f64> = finder.shares(&trips);
    // What runs once per iteration also runs when the condition is false, one time more.
    let mut rounds = vec![1.0; bodies.all().len()];
    for (index, body) in bodies.all().iter().enumerate().skip(1) {
        rounds[index] = rounds[body.parent.index()] * (trips[index] + 1.0);
    }
    let of_node = graph.nodes().map(|node| {
        // A loop leaves its results once.
        let body = bodies.of_outputs(graph, node);
        let share = match bodies.guard_of(node) {
            NONE => 1.0,
            guard => shares[guard as usize],
        };
        rounds[body.index()] * share
    });
    let frame = |body: BodyId| body.0.checked_sub(1).unwrap_or(NONE);
    let mut of_node: Vec<f64> = of_node.collect();
    if let Some(profile) = profile.filter(|_| stated.is_empty()) {
        measured(graph, bodies, profile, &mut of_node);
    }
    Executions {
        of_node,
        frame: match bodies.has_loops() {
            true => graph
                .nodes()
                .map(|node| frame(bodies.of_node(node)))
                .collect(),
            false => Vec::new(),
        },
        frame_parents: bodies
            .all()
            .iter()
            .skip(1)
            .map(|body| frame(body.parent))
            .collect(),
    }
}

/// Replaces estimates by measured executions. A node may have been executed on several devices, in
/// different runs of one profile or as part of different plans.
fn measured(graph: &Graph, bodies: &Bodies, profile: &RunProfile, of_node: &mut [f64]) {
    let mut found: BTreeMap<NodeId, f64> = BTreeMap::new();
    for times in &profile.nodes {
        if let Some(node) = graph.find_node(&times.node) {
            *found.entry(node).or_default() += times.executions;
        }
    }
    // What runs pass by has no executions of its own: as many as there are rounds of its body.
    let mut rounds = vec![0.0f64; bodies.all().len()];
    for (&node, &executions) in &found {
        let rounds = &mut rounds[bodies.of_outputs(graph, node).index()];
        *rounds = rounds.max(executions);
    }
    for node in graph.nodes() {
        let rounds = rounds[bodies.of_outputs(graph, node).index()];
        let executions = &mut of_node[node.index()];
        match found.get(&node) {
            Some(0.0) if is_control_flow(graph.op(node)) => *executions = rounds,
            Some(&measured) => *executions = measured,
            // The graph has grown.
            None => {}
        }
    }
}

struct Finder<'a> {
    graph: &'a Graph,
    bodies: &'a Bodies,
}

/// A loop variable to which each iteration adds a constant.
struct Counter {
    start: f64,
    step: f64,
    body: BodyId,
}

impl Finder<'_> {
    /// Returns the number of iterations of each body: stated, found, or assumed.
    fn trips(&self, stated: &[(String, f64)]) -> Vec<f64> {
        let mut conditions = vec![None; self.bodies.all().len()];
        for node in self.graph.nodes() {
            if self.graph.op(node) == "LoopCond" {
                let body = self.bodies.of_node(node).index();
                conditions[body] = self.graph.data_inputs(node).next();
            }
        }
        let mut trips = vec![TRIPS_ASSUMED; self.bodies.all().len()];
        // An outer loop has a smaller number than those in it, whose limits may depend on it.
        for (index, (body, condition)) in self.bodies.all().iter().zip(conditions).enumerate() {
            let stated = stated.iter().rev().find(|(frame, _)| **frame == *body.name);
            let found = match stated {
                Some(&(_, n_iterations)) => Some(n_iterations),
                None => condition.and_then(|condition| self.trips_of(condition, &trips, &mut 0)),
            };
            if let Some(found) = found {
                trips[index] = found;
            }
        }
        trips
    }

    /// Returns the number of iterations that a condition allows, if one of its parts compares a
    /// counter with a constant, or with the counter of an outer loop. `trips` has the iterations of
    /// outer loops.
    fn trips_of(&self, condition: TensorId, trips: &[f64], n_steps: &mut usize) -> Option<f64> {
        *n_steps += 1;
        if *n_steps > STEPS_MAX {
            return None;
        }
        let (node, _) = self.graph.producer(condition);
        let inputs: Vec<TensorId> = self.graph.data_inputs(node).collect();
        match (self.graph.op(node), inputs.as_slice()) {
            ("LogicalAnd", &[first, second]) => {
                let first = self.trips_of(first, trips, n_steps);
                let second = self.trips_of(second, trips, n_steps);
                match (first, second) {
                    (Some(first), Some(second)) => Some(first.min(second)),
                    (found, None) | (None, found) => found,
                }
            }
            ("Identity", &[input]) => self.trips_of(input, trips, n_steps),
            ("Less", &[counter, limit]) | ("Greater", &[limit, counter]) => {
                self.count(counter, limit, false, trips)
            }
            ("LessEqual", &[counter, limit]) | ("GreaterEqual", &[limit, counter]) => {
                self.count(counter, limit, true, trips)
            }
            _ => None,
        }
    }

    /// Returns how often a counter is below a limit. A counter that counts down has the two
    /// arguments the other way round.
    fn count(
        &self,
        counter: TensorId,
        limit: TensorId,
        includes_limit: bool,
        trips: &[f64],
    ) -> Option<f64> {
        let average = |limits: [f64; 2], start: f64, step: f64, sign: f64| {
            let n_steps = |limit: f64| n_steps(sign * (limit - start), sign * step, includes_limit);
            Some((n_steps(limits[0])? + n_steps(limits[1])?) / 2.0)
        };
        if let Some(up) = self.counter(counter)
            && let Some(limits) = self.limits(limit, up.body, trips)
        {
            return average(limits, up.start, up.step, 1.0);
        }
        let down = self.counter(limit)?;
        let limits = self.limits(counter, down.body, trips)?;
        average(limits, down.start, down.step, -1.0)
    }

    /// Returns what a counter of the loop `body` is compared with: twice a constant, or the first
    /// and the last value of a counter of an outer loop.
    fn limits(&self, tensor: TensorId, body: BodyId, trips: &[f64]) -> Option<[f64; 2]> {
        if let Some(constant) = self.constant(tensor) {
            return Some([constant; 2]);
        }
        let outer = self.counter(tensor)?;
        let n_trips = trips[outer.body.index()];
        let last = outer.start + outer.step * (n_trips - 1.0).max(0.0);
        (outer.body.0 < body.0).then_some([outer.start, last])
    }

    /// Returns a loop variable to which each iteration adds a constant.
    fn counter(&self, tensor: TensorId) -> Option<Counter> {
        let (merge, _) = self.graph.producer(self.origin(tensor));
        if !is_merge(self.graph.op(merge)) {
            return None;
        }
        let start = self.graph.data_inputs(merge).next()?;
        let start = self.constant(start)?;
        let back = self
            .graph
            .back_inputs()
            .iter()
            .find(|edge| edge.to == merge)?;
        let (next, _) = self.graph.producer(back.tensor);
        let sum = self.origin(self.graph.data_inputs(next).next()?);
        let (sum, _) = self.graph.producer(sum);
        let inputs: Vec<TensorId> = self.graph.data_inputs(sum).collect();
        let sign = match self.graph.op(sum) {
            "Add" | "AddV2" => 1.0,
            "Sub" => -1.0,
            _ => return None,
        };
        let &[first, second] = inputs.as_slice() else {
            return None;
        };
        let is_variable = |tensor| self.graph.producer(self.origin(tensor)).0 == merge;
        let step = if is_variable(first) {
            sign * self.constant(second)?
        } else if is_variable(second) && sign > 0.0 {
            self.constant(first)?
        } else {
            return None;
        };
        let body = self.bodies.of_node(merge);
        Some(Counter { start, step, body })
    }

    /// Follows a tensor back through nodes that pass it on, up to the start of an iteration.
    fn origin(&self, mut tensor: TensorId) -> TensorId {
        for _ in 0..STEPS_MAX {
            let (node, _) = self.graph.producer(tensor);
            let op = self.graph.op(node);
            let passes_on = is_enter(op) || is_switch(op) || op == "Identity";
            match self.graph.data_inputs(node).next() {
                Some(input) if passes_on => tensor = input,
                _ => break,
            }
        }
        tensor
    }

    /// Returns the value of a constant integer or number.
    fn constant(&self, tensor: TensorId) -> Option<f64> {
        let (node, _) = self.graph.producer(self.origin(tensor));
        if self.graph.op(node) != "Const" {
            return None;
        }
        let literal = self.graph.attrs(node).tensor("value")?;
        if literal.shape().n_elements() != 1 {
            return None;
        }
        let bytes: &[u8] = match literal.data() {
            LiteralData::Dense(bytes) | LiteralData::RepeatLast(bytes) => (**bytes).as_ref(),
            _ => return None,
        };
        if bytes.is_empty() {
            return Some(0.0);
        }
        match literal.dtype() {
            DType::I32 => Some(f64::from(i32::from_le_bytes(bytes.try_into().ok()?))),
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            DType::I64 => Some(i64::from_le_bytes(bytes.try_into().ok()?) as f64),
            DType::F32 => Some(f64::from(f32::from_le_bytes(bytes.try_into().ok()?))),
            _ => None,
        }
    }

    /// Returns per guard the part of its body's rounds in which it holds.
    fn shares(&self, trips: &[f64]) -> Vec<f64> {
        let mut shares: Vec<f64> = Vec::with_capacity(self.bodies.guards().len());
        for guard in self.bodies.guards() {
            // An enclosing guard has a smaller number.
            let around = shares.get(guard.parent as usize).copied().unwrap_or(1.0);
            let (predicate, _) = self.graph.producer(guard.predicate);
            let share = match self.graph.op(predicate) {
                "LoopCond" => {
                    let trips = trips[self.bodies.of_node(predicate).index()];
                    let goes_on = if guard.side == 1 { trips } else { 1.0 };
                    goes_on / (trips + 1.0)
                }
                _ => 1.0 / f64::from(guard.n_sides.max(1)),
            };
            shares.push(around * share);
        }
        shares
    }
}

fn n_steps(distance: f64, step: f64, includes_limit: bool) -> Option<f64> {
    let n_steps = match includes_limit {
        true => (distance / step).floor() + 1.0,
        false => (distance / step).ceil(),
    };
    // Without progress the loop is endless, or never begins.
    (step > 0.0 && n_steps.is_finite()).then(|| n_steps.max(0.0))
}
