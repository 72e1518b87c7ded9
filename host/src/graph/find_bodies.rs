//! Finds the bodies of a graph (TensorFlow `BuildControlFlowInfo`), and the conditions of nodes.

use hashbrown::HashMap;

use super::bodies::{Bodies, Body, BodyId, DEPTH_MAX, Guard, LoopError};
use super::bodies::{is_enter, is_exit, is_merge, is_next_iteration, is_switch};
use super::columns::Graph;
use super::ids::{NONE, NodeId, TensorId};

impl Graph {
    /// Returns the bodies of the graph: its loops, and the nodes outside of them.
    ///
    /// # Errors
    /// [`LoopError`] if the loops cannot be executed; such a graph can still be placed.
    pub fn bodies(&self) -> Result<&Bodies, LoopError> {
        let found = self.bodies.get_or_init(|| Bodies::of(self));
        found.as_ref().map_err(LoopError::clone)
    }

    /// Returns whether the outputs of a node have exactly one value in each run. Inside of loops
    /// and behind switches they may have none, or many.
    pub(crate) fn has_one_value_per_run(&self, node: NodeId) -> bool {
        self.bodies().ok().is_none_or(|bodies| {
            bodies.of_outputs(self, node) == BodyId::OUTERMOST
                && bodies.guard_of(node) == NONE
                && !is_switch(self.op(node))
        })
    }
}

impl Bodies {
    /// Finds the bodies of a graph.
    fn of(graph: &Graph) -> Result<Self, LoopError> {
        let has = |wanted: fn(&str) -> bool| graph.op_names().iter().any(|op| wanted(op));
        let outermost = Body {
            name: "".into(),
            parent: BodyId::OUTERMOST,
            depth: 0,
        };
        let mut found = Self {
            bodies: vec![outermost],
            ..Self::default()
        };
        if has(is_enter) || has(is_exit) || has(is_next_iteration) {
            Finder::new(graph, &mut found).run()?;
            found.check_back_edges(graph)?;
            found.check_order(graph)?;
        }
        if has(is_switch) {
            found.find_guards(graph);
        }
        Ok(found)
    }

    /// Returns the body in which the outputs of a node are written once per execution: that of the
    /// node, but for an `Exit` the body that its loop is in.
    pub(crate) fn of_outputs(&self, graph: &Graph, node: NodeId) -> BodyId {
        let body = self.of_node(node);
        if self.has_loops() && is_exit(graph.op(node)) {
            return self.body(body).parent;
        }
        body
    }

    fn check_back_edges(&self, graph: &Graph) -> Result<(), LoopError> {
        for pair in graph.back_edges().chunks_exact(2) {
            let (from, to) = (NodeId(pair[0]), NodeId(pair[1]));
            let (from_loop, to_loop) = (self.of_node(from), self.of_node(to));
            if from_loop != to_loop {
                return Err(LoopError::CrossingBackEdge {
                    from: graph.node_name(from).to_owned(),
                    to: graph.node_name(to).to_owned(),
                    from_loop: self.name(from_loop),
                    to_loop: self.name(to_loop),
                });
            }
            for &input in graph.predecessors().row(to.index()) {
                let input = NodeId(input);
                if self.of_outputs(graph, input) == to_loop {
                    return Err(LoopError::LateMerge {
                        node: graph.node_name(to).to_owned(),
                        input: graph.node_name(input).to_owned(),
                    });
                }
            }
            if from_loop == BodyId::OUTERMOST {
                return Err(LoopError::OutsideLoop {
                    node: graph.node_name(from).to_owned(),
                    op: graph.op(from).to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Checks that each loop can start when all its inputs are known, and that its results are
    /// needed only after it has ended.
    fn check_order(&self, graph: &Graph) -> Result<(), LoopError> {
        let mut exits: Vec<Vec<NodeId>> = vec![Vec::new(); self.bodies.len()];
        let mut last = vec![NodeId(0); self.bodies.len()];
        for node in graph.nodes() {
            let mut body = self.of_node(node);
            if is_exit(graph.op(node)) {
                exits[body.index()].push(node);
            } else if is_enter(graph.op(node)) {
                continue;
            }
            while body != BodyId::OUTERMOST {
                last[body.index()] = node;
                body = self.body(body).parent;
            }
        }
        // Ids are topological, so only a node behind the first exit can depend on it.
        for body in (1..).map(BodyId).take(self.bodies.len() - 1) {
            if exits[body.index()].first() < Some(&last[body.index()]) {
                self.check_loop(graph, body, &exits)?;
            }
        }
        Ok(())
    }

    /// Checks that no node of a loop depends on an exit of the same loop.
    fn check_loop(
        &self,
        graph: &Graph,
        body: BodyId,
        exits: &[Vec<NodeId>],
    ) -> Result<(), LoopError> {
        let parent = self.body(body).parent;
        let mut seen = vec![false; graph.n_nodes()];
        let mut entered = vec![false; self.bodies.len()];
        entered[body.index()] = true;
        let mut stack = exits[body.index()].clone();
        while let Some(node) = stack.pop() {
            for &successor in graph.successors().row(node.index()) {
                let successor = NodeId(successor);
                if std::mem::replace(&mut seen[successor.index()], true) {
                    continue;
                }
                let at = self.of_node(successor);
                if at == body || self.child_towards(body, at).is_some() {
                    return Err(LoopError::Circular {
                        node: graph.node_name(successor).to_owned(),
                        frame: self.name(body),
                    });
                }
                // A loop beside this one runs as a whole: all its results depend on its inputs.
                if let Some(beside) = self.child_towards(parent, at)
                    && !std::mem::replace(&mut entered[beside.index()], true)
                {
                    stack.extend(&exits[beside.index()]);
                }
                stack.push(successor);
            }
        }
        Ok(())
    }

    fn find_guards(&mut self, graph: &Graph) {
        let mut ids: HashMap<(u32, TensorId, u32), u32> = HashMap::new();
        let mut guard_of = vec![NONE; graph.n_nodes()];
        let mut frames = vec![NONE; self.bodies.len()];
        for node in graph.nodes() {
            let op = graph.op(node);
            if is_exit(op) {
                guard_of[node.index()] = frames[self.of_node(node).index()];
                continue;
            }
            let mut guard: Option<u32> = None;
            for edge in graph.predecessors().range(node.index()) {
                let producer = NodeId(graph.predecessors().items[edge]);
                let tensor = graph.edge_tensors()[edge];
                let mut of_input = guard_of[producer.index()];
                if tensor != NONE && is_switch(graph.op(producer)) {
                    let slot = graph.producer(TensorId(tensor)).1;
                    of_input = self.guard(graph, &mut ids, of_input, producer, slot);
                }
                guard = Some(match guard {
                    None => of_input,
                    Some(other) if is_merge(op) => self.common(other, of_input),
                    Some(other) if self.depth(of_input) > self.depth(other) => of_input,
                    Some(other) => other,
                });
            }
            guard_of[node.index()] = guard.unwrap_or(NONE);
            if is_enter(op)
                && let Some(body) = entered_body(graph, node, &self.bodies)
            {
                frames[body.index()] = guard_of[node.index()];
            }
        }
        self.guard_of = guard_of;
    }

    fn guard(
        &mut self,
        graph: &Graph,
        ids: &mut HashMap<(u32, TensorId, u32), u32>,
        parent: u32,
        switch: NodeId,
        slot: usize,
    ) -> u32 {
        let Some(predicate) = graph.data_inputs(switch).nth(1) else {
            return parent;
        };
        let side = to_u32(slot);
        let guards = &mut self.guards;
        let id = ids.entry((parent, predicate, side));
        *id.or_insert_with(|| {
            let depth = match guards.get(parent as usize) {
                Some(parent) => parent.depth + 1,
                None => 1,
            };
            guards.push(Guard {
                parent,
                predicate,
                side,
                n_sides: to_u32(graph.output_range(switch).len()),
                depth,
            });
            to_u32(guards.len() - 1)
        })
    }
}

/// Assigns nodes to bodies.
struct Finder<'a> {
    graph: &'a Graph,
    found: &'a mut Bodies,
    ids: HashMap<Box<str>, BodyId>,
    /// Per node the body whose nodes read its outputs.
    outputs_in: Vec<BodyId>,
}

impl<'a> Finder<'a> {
    fn new(graph: &'a Graph, found: &'a mut Bodies) -> Self {
        Self {
            graph,
            found,
            ids: HashMap::new(),
            outputs_in: Vec::with_capacity(graph.n_nodes()),
        }
    }

    fn run(mut self) -> Result<(), LoopError> {
        let mut of_node = Vec::with_capacity(self.graph.n_nodes());
        for node in self.graph.nodes() {
            let mut body = BodyId::OUTERMOST;
            for &producer in self.graph.predecessors().row(node.index()) {
                let input = self.outputs_in[producer as usize];
                let deeper = self.found.deeper(body, input);
                body = deeper.ok_or_else(|| LoopError::DifferentLoops {
                    node: self.graph.node_name(node).to_owned(),
                    first: self.found.name(body),
                    second: self.found.name(input),
                })?;
            }
            of_node.push(body);
            let op = self.graph.op(node);
            let outputs_in = if is_enter(op) {
                self.enter(node, body)?
            } else if is_exit(op) || is_next_iteration(op) {
                if body == BodyId::OUTERMOST {
                    return Err(LoopError::OutsideLoop {
                        node: self.graph.node_name(node).to_owned(),
                        op: op.to_owned(),
                    });
                }
                match is_exit(op) {
                    true => self.found.body(body).parent,
                    false => body,
                }
            } else {
                body
            };
            self.outputs_in.push(outputs_in);
        }
        self.found.of_node = of_node;
        Ok(())
    }

    fn enter(&mut self, node: NodeId, within: BodyId) -> Result<BodyId, LoopError> {
        let frame = frame_name(self.graph, node).ok_or_else(|| LoopError::Unnamed {
            node: self.graph.node_name(node).to_owned(),
        })?;
        if let Some(&body) = self.ids.get(frame) {
            let parent = self.found.body(body).parent;
            if parent != within {
                return Err(LoopError::SharedFrame {
                    node: self.graph.node_name(node).to_owned(),
                    frame: frame.to_owned(),
                    expected: self.found.name(parent),
                    found: self.found.name(within),
                });
            }
            return Ok(body);
        }
        let depth = self.found.body(within).depth + 1;
        if depth > DEPTH_MAX {
            return Err(LoopError::TooDeep {
                frame: frame.to_owned(),
            });
        }
        let body = BodyId(to_u32(self.found.bodies.len()));
        self.found.bodies.push(Body {
            name: frame.into(),
            parent: within,
            depth,
        });
        self.ids.insert(frame.into(), body);
        Ok(body)
    }
}

fn frame_name(graph: &Graph, enter: NodeId) -> Option<&str> {
    graph.attrs(enter).text("frame_name")
}

fn entered_body(graph: &Graph, enter: NodeId, bodies: &[Body]) -> Option<BodyId> {
    let frame = frame_name(graph, enter)?;
    let position = bodies
        .iter()
        .skip(1)
        .position(|body| &*body.name == frame)?;
    Some(BodyId(to_u32(position + 1)))
}

fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("a graph has fewer than 2^32 nodes and tensors")
}
