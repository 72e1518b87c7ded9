//! The bodies of a graph: what runs once per run, and what runs once per iteration of a loop.
//!
//! A loop of TensorFlow is a *frame*: tensors come in through `Enter` nodes, circulate from
//! `NextIteration` to `Merge`, and leave through `Exit` nodes. The nodes of a frame are a [`Body`];
//! the nodes outside of all loops are the outermost body. A graph without loops is one body, and
//! this module stores nothing per node for it.
//!
//! The rules are those of TensorFlow's `BuildControlFlowInfo`, except that a node may also read a
//! tensor of an enclosing body directly: such a tensor is the same in all iterations.
//!
//! Nodes behind a `Switch` run only if its predicate has the right value. That condition is their
//! [`Guard`]. Guards are for estimates and reports; an executor follows dead tensors instead.

use hashbrown::HashMap;

use super::columns::{Graph, NONE, NodeId, TensorId};

/// Maximum depth of nested loops. The executor uses its thread's stack for each level.
const DEPTH_MAX: u32 = 128;

/// A body, `0..bodies.len()`. An enclosing body has a smaller id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BodyId(pub u32);

impl BodyId {
    /// The nodes outside of all loops.
    pub const OUTERMOST: Self = Self(0);

    /// Returns the id as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The nodes of a loop, or those outside of all loops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body {
    /// The frame's name; empty for the outermost body.
    pub name: Box<str>,
    /// The body that the loop is in; its own id for the outermost body.
    pub parent: BodyId,
    /// Number of loops around its nodes: 0 for the outermost body.
    pub depth: u32,
}

/// The condition of a node: an output of a `Switch` that must be live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard {
    /// The condition under which the `Switch` itself runs, or [`NONE`].
    pub parent: u32,
    /// The predicate of the `Switch`.
    pub predicate: TensorId,
    /// The output of the `Switch`: 0 is false, 1 is true; the branch for `_SwitchN`.
    pub side: u32,
    /// Number of outputs of the `Switch`.
    pub n_sides: u32,
    depth: u32,
}

/// Why a graph's loops cannot be executed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoopError {
    /// A node reads tensors of two loops, neither of which contains the other.
    #[error(
        "node `{node}` reads a tensor of loop `{first}` and one of loop `{second}`; a tensor leaves \
         its loop through an Exit node and comes into another one through an Enter node"
    )]
    DifferentLoops {
        /// The node.
        node: String,
        /// One loop.
        first: String,
        /// The other loop.
        second: String,
    },
    /// Two `Enter` nodes of one frame are in different loops.
    #[error(
        "node `{node}` (Enter) starts loop `{frame}` from within loop `{found}`, other Enter nodes \
         start it from within loop `{expected}`; give the two loops different frame names"
    )]
    SharedFrame {
        /// The `Enter` node.
        node: String,
        /// Its frame.
        frame: String,
        /// Where the other nodes are; empty outside of all loops.
        expected: String,
        /// Where this node is; empty outside of all loops.
        found: String,
    },
    /// An `Exit` or `NextIteration` outside of all loops.
    #[error("node `{node}` ({op}) is outside of all loops: none of its inputs comes from an Enter")]
    OutsideLoop {
        /// The node.
        node: String,
        /// Its op.
        op: String,
    },
    /// An `Enter` without a frame name.
    #[error("node `{node}` (Enter) has no attribute `frame_name`")]
    Unnamed {
        /// The node.
        node: String,
    },
    /// Loops nested too deeply.
    #[error("loop `{frame}` is nested in {DEPTH_MAX} loops, which is the limit")]
    TooDeep {
        /// The innermost loop.
        frame: String,
    },
    /// A tensor that leaves a loop comes back into the same execution of it.
    #[error(
        "node `{node}` of loop `{frame}` needs a result of that loop; a loop starts when all its \
         inputs are known, so none of them may depend on its Exit nodes"
    )]
    Circular {
        /// A node in the loop.
        node: String,
        /// The loop.
        frame: String,
    },
    /// A `Merge` at the start of a loop that depends on the loop.
    #[error(
        "node `{node}` (Merge) closes a loop, and reads or waits for `{input}` of the same \
         iteration; only Enter and NextIteration nodes may precede it"
    )]
    LateMerge {
        /// The `Merge`.
        node: String,
        /// What it depends on.
        input: String,
    },
    /// A back edge between two loops.
    #[error(
        "node `{from}` of loop `{from_loop}` closes a loop at `{to}`, which is in loop `{to_loop}`"
    )]
    CrossingBackEdge {
        /// The `NextIteration`.
        from: String,
        /// The `Merge`.
        to: String,
        /// The loop of `from`.
        from_loop: String,
        /// The loop of `to`.
        to_loop: String,
    },
}

/// The bodies of a graph and the conditions of its nodes.
#[derive(Debug, Clone, Default)]
pub struct Bodies {
    bodies: Vec<Body>,
    /// Per node the body that executes it; empty if all nodes are in the outermost one.
    of_node: Vec<BodyId>,
    guards: Vec<Guard>,
    /// Per node its guard, or [`NONE`]; empty if no node has one.
    guard_of: Vec<u32>,
}

impl Bodies {
    /// Finds the bodies of a graph.
    pub(super) fn of(graph: &Graph) -> Result<Self, LoopError> {
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

    /// Returns the bodies; the first is the outermost one.
    pub fn all(&self) -> &[Body] {
        &self.bodies
    }

    /// Returns whether the graph has loops.
    pub fn has_loops(&self) -> bool {
        self.bodies.len() > 1
    }

    /// Returns a body.
    ///
    /// # Panics
    /// If there is no such body.
    pub fn body(&self, id: BodyId) -> &Body {
        &self.bodies[id.index()]
    }

    /// Returns the body that executes a node. An `Enter` is executed by the body that its loop is
    /// in, once per execution of the loop.
    pub fn of_node(&self, node: NodeId) -> BodyId {
        let body = self.of_node.get(node.index());
        body.copied().unwrap_or(BodyId::OUTERMOST)
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

    /// Returns the conditions of nodes.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Returns the condition of a node, an index into [`Self::guards`], or [`NONE`].
    pub fn guard_of(&self, node: NodeId) -> u32 {
        self.guard_of.get(node.index()).copied().unwrap_or(NONE)
    }

    /// Returns the child of `ancestor` on the way down to `body`; `None` if they are equal or
    /// `ancestor` does not enclose `body`.
    pub(crate) fn child_towards(&self, ancestor: BodyId, body: BodyId) -> Option<BodyId> {
        let mut child = body;
        while child != BodyId::OUTERMOST {
            let parent = self.body(child).parent;
            if parent == ancestor {
                return Some(child);
            }
            child = parent;
        }
        None
    }

    /// Returns the deeper body if one encloses the other.
    fn deeper(&self, first: BodyId, second: BodyId) -> Option<BodyId> {
        if first == second || self.child_towards(second, first).is_some() {
            return Some(first);
        }
        self.child_towards(first, second).map(|_| second)
    }

    fn name(&self, id: BodyId) -> String {
        self.body(id).name.to_string()
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

    fn depth(&self, guard: u32) -> u32 {
        self.guards
            .get(guard as usize)
            .map_or(0, |guard| guard.depth)
    }

    /// Returns what two conditions have in common.
    fn common(&self, mut first: u32, mut second: u32) -> u32 {
        while first != second {
            let deeper = match self.depth(first) >= self.depth(second) {
                true => &mut first,
                false => &mut second,
            };
            let guard = self.guards.get(*deeper as usize);
            *deeper = guard.map_or(NONE, |guard| guard.parent);
        }
        first
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

/// Returns whether an op brings a tensor into a loop.
pub(crate) fn is_enter(op: &str) -> bool {
    matches!(op, "Enter" | "RefEnter")
}

/// Returns whether an op takes a tensor out of a loop.
pub(crate) fn is_exit(op: &str) -> bool {
    matches!(op, "Exit" | "RefExit")
}

/// Returns whether an op passes a tensor to the next iteration.
pub(crate) fn is_next_iteration(op: &str) -> bool {
    matches!(op, "NextIteration" | "RefNextIteration")
}

/// Returns whether an op passes its first input to one of its outputs, and leaves the others dead.
pub(crate) fn is_switch(op: &str) -> bool {
    matches!(op, "Switch" | "RefSwitch" | "_SwitchN")
}

/// Returns whether an op passes on the one of its inputs that is live.
pub(crate) fn is_merge(op: &str) -> bool {
    matches!(op, "Merge" | "RefMerge")
}
