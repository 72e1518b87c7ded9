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

use super::ids::{NONE, NodeId, TensorId};

/// Maximum depth of nested loops. The executor uses its thread's stack for each level.
pub(super) const DEPTH_MAX: u32 = 128;

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
    pub(super) depth: u32,
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
    pub(super) bodies: Vec<Body>,
    /// Per node the body that executes it; empty if all nodes are in the outermost one.
    pub(super) of_node: Vec<BodyId>,
    pub(super) guards: Vec<Guard>,
    /// Per node its guard, or [`NONE`]; empty if no node has one.
    pub(super) guard_of: Vec<u32>,
}

impl Bodies {
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
    pub(super) fn deeper(&self, first: BodyId, second: BodyId) -> Option<BodyId> {
        if first == second || self.child_towards(second, first).is_some() {
            return Some(first);
        }
        self.child_towards(first, second).map(|_| second)
    }

    pub(super) fn name(&self, id: BodyId) -> String {
        self.body(id).name.to_string()
    }

    pub(super) fn depth(&self, guard: u32) -> u32 {
        self.guards
            .get(guard as usize)
            .map_or(0, |guard| guard.depth)
    }

    /// Returns what two conditions have in common.
    pub(super) fn common(&self, mut first: u32, mut second: u32) -> u32 {
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

/// Returns whether an op brings a tensor into a loop.
pub(crate) fn is_enter(op: &str) -> bool {
    matches!(op, "Enter" | "RefEnter")
}

/// Returns whether an op only directs tensors, without computing anything.
pub(crate) fn is_control_flow(op: &str) -> bool {
    let is_for_loops = is_enter(op) || is_exit(op) || is_next_iteration(op) || op == "LoopCond";
    is_for_loops || is_switch(op) || is_merge(op) || op == "ControlTrigger"
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
