//! Lowers calls of functions, branches and loops: nodes that name functions become the nodes of
//! those functions, connected by `Switch`, `Merge`, `Enter` and `Exit` (TensorFlow
//! `LowerFunctionalOpsPass` and `InlineFunctionBody`).
//!
//! Policies then place every node, also those in functions, and the executor knows two notions
//! only: dead tensors and loops. As in TensorFlow, a node of the lowered node's name remains, so
//! that it can be fetched, and inner nodes are named `NODE/INNER`, with `then`, `else`, `branchN`,
//! `cond` or `body` in between.
//!
//! There are two differences to TensorFlow. A tensor that a loop does not change is read directly,
//! without an `Enter` node per loop: it crosses to another device once. Constants of a body stay
//! outside of it, so that kernels can prepack them.

use std::sync::Arc;

use super::body;
use super::body::Body;
use super::constants::free_constants;
use super::constants::has_bound_constants;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Function;
use crate::graph::Graph;
use crate::graph::GraphError;
use crate::graph::Input;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::graph::NodeSpec;
use crate::graph::Output;
use crate::graph::TensorId;
use crate::graph::Work;
use crate::graph::is_enter;
use crate::graph::is_switch;
use crate::names::DeviceName;
use crate::ops::Inferred;
use crate::ops::Known;
use crate::ops::OpAssembler;
use crate::ops::OpDef;
use crate::ops::OpInput;
use crate::ops::OpNode;
use crate::ops::OpNodeError;
use crate::ops::OpRegistry;
use crate::tensor::DType;
use crate::tensor::Literal;
use crate::tensor::LiteralData;
use crate::tensor::PartialShape;
use crate::tensor::Shape;

/// Maximum number of functions that call each other.
const CALL_DEPTH_MAX: usize = 100;

/// Maximum number of nodes after lowering: a few functions that call each other twice could
/// describe any number.
const N_NODES_MAX: usize = 1 << 22;

/// Why a graph's calls, branches or loops cannot be lowered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LowerError {
    /// The node's attributes, its function or the arguments of the function are wrong.
    #[error("node `{node}` ({op}): {problem}")]
    Call {
        /// The node, with the names of the nodes that it was called from.
        node: String,
        /// Its op.
        op: String,
        /// What is wrong.
        problem: String,
    },
    /// Functions call each other without end, as far as one can tell without running them.
    #[error(
        "node `{node}` calls function `{function}` within itself: {stack}; recursion is not \
         supported: write a loop, or a function per level"
    )]
    Recursive {
        /// The node.
        node: String,
        /// The function.
        function: String,
        /// The functions that call each other, outermost first.
        stack: String,
    },
    /// The lowered graph would be too large.
    #[error(
        "node `{node}`: the functions have more than {N_NODES_MAX} nodes in total, counted once \
         per call"
    )]
    TooLarge {
        /// The node at which the limit is exceeded.
        node: String,
    },
    /// The lowered graph cannot be assembled.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Checks whether a graph has nodes that [`lower`] replaces.
pub fn has_calls(graph: &Graph) -> bool {
    let calls = |op: &str| is_call(op) || graph.find_function(op).is_some();
    graph.op_names().iter().any(|op| calls(op))
}

/// Checks whether [`lower`] would change a graph.
pub(crate) fn is_lowered_by(graph: &Graph) -> bool {
    has_calls(graph) || has_bound_constants(graph)
}

/// Checks whether an op calls functions that attributes name, so that [`lower`] replaces it.
pub(crate) fn is_call(op: &str) -> bool {
    Form::of(op).is_some()
}

/// Replaces calls of functions, branches and loops that name functions. Other nodes keep their
/// names, but not their ids. Constants of branches and loops lose control edges that say nothing
/// that their readers do not know from another input.
///
/// # Errors
/// [`LowerError`], which names the node.
pub fn lower(graph: &Graph, ops: &OpRegistry) -> Result<Graph, LowerError> {
    let mut lowerer = Lowerer {
        library: graph,
        ops,
        // Known values and outputs in proportion to what a graph may have.
        assembler: OpAssembler::new(graph.name(), PRODUCER_VERSION, N_NODES_MAX),
        stack: Vec::new(),
        is_checked: graph.is_checked(),
    };
    let scope = Scope {
        graph,
        prefix: "",
        device: "",
        args: &[],
        guard: Guard::default(),
        is_outermost: true,
    };
    lowerer.add_all(&scope)?;
    for function in graph.functions() {
        lowerer.assembler.graph_mut().add_function(function.clone());
    }
    Ok(match graph.is_checked() {
        true => lowerer.assembler.finish(),
        false => lowerer.assembler.finish_unchecked(),
    })
}

/// The version of TensorFlow's graphs whose rules of shape inference hold: the newest.
const PRODUCER_VERSION: i32 = i32::MAX;

/// How a node calls functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Call,
    If,
    Case,
    While,
}

impl Form {
    fn of(op: &str) -> Option<Self> {
        match op {
            "PartitionedCall" | "StatefulPartitionedCall" => Some(Self::Call),
            "If" | "StatelessIf" => Some(Self::If),
            "Case" | "StatelessCase" => Some(Self::Case),
            "While" | "StatelessWhile" => Some(Self::While),
            _ => None,
        }
    }
}

/// A tensor of the lowered graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Source {
    node: NodeId,
    slot: u32,
    /// Whether it is dead, or new in each iteration, whenever the scope's guard says so.
    is_guarded: bool,
}

impl Source {
    fn data(self) -> Input {
        Input::Data {
            node: self.node,
            slot: self.slot,
        }
    }
}

/// When the nodes of a scope run.
#[derive(Debug, Clone, Copy, Default)]
struct Guard {
    /// A node that runs when they may run: stateful nodes wait for it.
    pivot: Option<NodeId>,
    /// Whether each node must depend on the pivot or on a tensor that does: the scope is a branch
    /// or in a loop.
    is_needed: bool,
}

/// A graph of which the nodes are added: the whole graph, or a function for one call.
struct Scope<'a> {
    graph: &'a Graph,
    prefix: &'a str,
    /// The requested device of the caller.
    device: &'a str,
    args: &'a [Source],
    guard: Guard,
    is_outermost: bool,
}

/// What a scope returns.
#[derive(Debug, Default)]
struct Returned {
    results: Vec<Source>,
    /// Nodes with effects, which must run although no result depends on them.
    effects: Vec<NodeId>,
}

/// A node that calls functions.
struct Caller<'a> {
    graph: &'a Graph,
    node: NodeId,
    /// Full name.
    name: String,
    op: &'a str,
    device: String,
    attrs: &'a AttrSet,
    inputs: Vec<Source>,
    controls: Vec<NodeId>,
    guard: Guard,
}

struct Lowerer<'a> {
    library: &'a Graph,
    ops: &'a OpRegistry,
    assembler: OpAssembler,
    /// The functions whose bodies are being added.
    stack: Vec<Arc<str>>,
    is_checked: bool,
}

/// A new node. Data inputs precede control inputs.
struct New<'a> {
    name: String,
    op: &'a str,
    device: &'a str,
    attrs: Vec<(&'a str, AttrValue)>,
    inputs: Vec<Input>,
}

impl<'a> Lowerer<'a> {
    /// Adds all nodes of a scope.
    fn add_all(&mut self, scope: &Scope<'_>) -> Result<Returned, LowerError> {
        let graph = scope.graph;
        let mut outputs: Vec<Vec<Source>> = Vec::with_capacity(graph.n_nodes());
        let mut waits_for: Vec<Option<NodeId>> = Vec::with_capacity(graph.n_nodes());
        let mut conditional = Conditional::of(graph);
        let free_constants = free_constants(graph);
        let mut returned = Returned::default();
        let mut args = scope.args.iter();
        for node in graph.nodes() {
            let op = graph.op(node);
            let mut inputs = Vec::new();
            let mut controls = Vec::new();
            for edge in graph.predecessors().range(node.index()) {
                let producer = graph.predecessors().items[edge] as usize;
                match graph.edge_tensors()[edge] {
                    NONE => controls.extend(waits_for[producer]),
                    tensor => {
                        let slot = graph.producer(TensorId(tensor)).1;
                        inputs.push(outputs[producer][slot]);
                    }
                }
            }
            let name = format!("{}{}", scope.prefix, graph.node_name(node));
            if !scope.is_outermost && op == "_Arg" {
                outputs.push(args.next().copied().into_iter().collect());
                waits_for.push(None);
                continue;
            }
            if !scope.is_outermost && op == "_Retval" {
                returned.results.extend(inputs);
                outputs.push(Vec::new());
                waits_for.push(None);
                continue;
            }
            if self.assembler.graph().n_nodes() > N_NODES_MAX {
                return Err(LowerError::TooLarge { node: name });
            }
            let device = merged_device(graph.requested(node), scope.device);
            let form = Form::of(op).or_else(|| self.library.find_function(op).map(|_| Form::Call));
            let is_conditional = conditional.add(graph, node);
            if let Some(form) = form {
                let mut caller = Caller {
                    graph,
                    node,
                    name,
                    op,
                    device,
                    attrs: graph.attrs(node),
                    inputs,
                    controls,
                    guard: scope.guard,
                };
                if is_conditional {
                    self.guard_by_inputs(&mut caller)?;
                }
                let (sources, last, has_effects) = self.add_caller(form, &caller)?;
                if has_effects {
                    returned.effects.push(last);
                }
                outputs.push(sources);
                waits_for.push(Some(last));
                continue;
            }
            if free_constants.get(node.index()) == Some(&true) {
                controls.clear();
            }
            let (id, is_guarded) = self.copy(scope, node, name, &device, &inputs, controls)?;
            if self.is_stateful(op) {
                returned.effects.push(id);
            }
            let sources = (0..graph.output_range(node).len()).map(|slot| Source {
                node: id,
                slot: to_u32(slot),
                is_guarded,
            });
            outputs.push(sources.collect());
            waits_for.push(Some(id));
        }
        for edge in graph.back_inputs() {
            let (from, slot) = graph.producer(edge.tensor);
            let from = outputs[from.index()][slot];
            let Some(to) = waits_for[edge.to.index()] else {
                continue;
            };
            let assembler = self.assembler.graph_mut();
            assembler.add_back_input(from.node, from.slot, to, edge.input)?;
        }
        Ok(returned)
    }

    /// Adds a node that calls nothing. Returns it, and whether it is guarded.
    fn copy(
        &mut self,
        scope: &Scope<'_>,
        node: NodeId,
        name: String,
        device: &str,
        inputs: &[Source],
        mut controls: Vec<NodeId>,
    ) -> Result<(NodeId, bool), LowerError> {
        let (graph, op) = (scope.graph, scope.graph.op(node));
        let mut is_guarded = inputs.iter().any(|input| input.is_guarded);
        let is_constant = op == "Const" && controls.is_empty();
        let must_wait = scope.guard.is_needed && !is_guarded && !is_constant;
        if must_wait || self.is_stateful(op) {
            controls.extend(scope.guard.pivot);
            is_guarded |= scope.guard.is_needed && scope.guard.pivot.is_some();
        }
        let edges = inputs.iter().map(|input| input.data());
        let edges = edges.chain(controls.into_iter().map(Input::Control));
        let attrs = match scope.is_outermost {
            true => graph.attrs(node).clone(),
            false => within(graph.attrs(node), scope),
        };
        let shapes = graph
            .output_range(node)
            .map(|tensor| graph.tensor_shape(TensorId(to_u32(tensor))));
        let shapes: Vec<PartialShape> = shapes.collect();
        let edges: Vec<Input> = edges.collect();
        let Some(definition) = self.ops.get(op).cloned() else {
            let id = self.copy_undefined(graph, node, &name, device, attrs, &edges)?;
            return Ok((id, is_guarded));
        };
        let attrs = self.completed(&definition, attrs, &name)?;
        let known = match scope.is_outermost {
            true => shapes.as_slice(),
            false => &[],
        };
        let id = self.append(&name, &definition, &attrs, &edges, device, known)?;
        Ok((id, is_guarded))
    }

    /// Adds a node whose op has no definition, as it is.
    fn copy_undefined(
        &mut self,
        graph: &Graph,
        node: NodeId,
        name: &str,
        device: &str,
        attrs: AttrSet,
        edges: &[Input],
    ) -> Result<NodeId, LowerError> {
        let outputs = graph.output_range(node).map(|tensor| {
            let id = TensorId(to_u32(tensor));
            Output {
                dtype: graph.tensor_dtypes()[tensor],
                is_ref: graph.tensor_is_ref(id),
                shape: graph.tensor_shape(id),
            }
        });
        let outputs: Vec<Output> = outputs.collect();
        let index = node.index();
        Ok(self.assembler.graph_mut().add_node(&NodeSpec {
            name,
            op: graph.op(node),
            inputs: edges,
            requested_device: device,
            attrs,
            outputs: &outputs,
            stateful: graph.class(node).stateful,
            work: Work {
                flops: graph.flops()[index],
                traffic_bytes: graph.traffic_bytes()[index],
                resident_bytes: graph.resident_bytes()[index],
                workspace_bytes: graph.workspace_bytes()[index],
            },
        })?)
    }

    fn is_stateful(&self, op: &str) -> bool {
        self.ops.get(op).is_some_and(|op| op.is_stateful())
    }

    /// Makes all nodes of the functions of a caller wait for the caller's inputs: the caller is in a
    /// branch or loop of the same graph, which nodes without inputs would not be in.
    fn guard_by_inputs(&mut self, caller: &mut Caller<'_>) -> Result<(), LowerError> {
        let of_inputs = caller.inputs.iter().map(|input| input.node);
        let waits_for = of_inputs.chain(caller.controls.iter().copied());
        let pivot = self.add(New {
            name: format!("{}/inputs", caller.name),
            op: "NoOp",
            device: &caller.device,
            attrs: Vec::new(),
            inputs: waits_for.map(Input::Control).collect(),
        })?;
        caller.guard = Guard {
            pivot: Some(pivot),
            is_needed: true,
        };
        for input in &mut caller.inputs {
            input.is_guarded = false;
        }
        Ok(())
    }

    /// Adds what a node that calls functions stands for. Returns the tensors that replace its
    /// outputs, the node of its name, and whether it has effects.
    fn add_caller(
        &mut self,
        form: Form,
        caller: &Caller<'_>,
    ) -> Result<(Vec<Source>, NodeId, bool), LowerError> {
        let returned = match form {
            Form::Call => self.add_call(caller)?,
            Form::If | Form::Case => self.add_branches(form, caller)?,
            Form::While => self.add_loop(caller)?,
        };
        let n_outputs = caller.graph.output_range(caller.node).len();
        if returned.results.len() != n_outputs {
            return Err(caller.error(format!(
                "its function returns {} tensors, it has {n_outputs} outputs",
                returned.results.len()
            )));
        }
        let has_effects = !returned.effects.is_empty();
        let mut inputs: Vec<Input> = returned
            .results
            .iter()
            .map(|source| source.data())
            .collect();
        let controls = returned.effects.iter().chain(&caller.controls);
        inputs.extend(controls.map(|&node| Input::Control(node)));
        let is_guarded = returned.results.iter().any(|source| source.is_guarded);
        if caller.guard.is_needed && !is_guarded {
            inputs.extend(caller.guard.pivot.map(Input::Control));
        }
        let types = returned.results.iter().map(|source| self.dtype(*source));
        let types: Vec<DType> = types.collect();
        let (op, attrs) = match types.as_slice() {
            [] => ("NoOp", Vec::new()),
            &[dtype] => ("Identity", vec![("T", type_attr(dtype))]),
            types => {
                let types = types.iter().map(|&dtype| type_attr(dtype)).collect();
                ("IdentityN", vec![("T", AttrValue::List(types))])
            }
        };
        let last = self.add(New {
            name: caller.name.clone(),
            op,
            device: &caller.device,
            attrs,
            inputs,
        })?;
        if !has_effects {
            return Ok((returned.results, last, false));
        }
        // Whoever reads a result needs the effects, too.
        let results = (0..n_outputs).map(|slot| Source {
            node: last,
            slot: to_u32(slot),
            is_guarded: is_guarded || caller.guard.is_needed,
        });
        Ok((results.collect(), last, true))
    }

    fn add_call(&mut self, caller: &Caller<'_>) -> Result<Returned, LowerError> {
        let (function, attrs) = match self.library.find_function(caller.op) {
            Some(function) => (function, caller.attrs),
            None => self.function(caller, caller.attrs.get("f"))?,
        };
        let mut guard = caller.guard;
        if !caller.controls.is_empty() {
            let controls = caller.controls.iter().copied().chain(guard.pivot);
            guard.pivot = Some(self.add(New {
                name: format!("{}/control", caller.name),
                op: "NoOp",
                device: &caller.device,
                attrs: Vec::new(),
                inputs: controls.map(Input::Control).collect(),
            })?);
        }
        self.add_function(caller, "", function, attrs, &caller.inputs, guard)
    }

    /// Adds the branches of an `If` or `Case`.
    fn add_branches(&mut self, form: Form, caller: &Caller<'_>) -> Result<Returned, LowerError> {
        let mut branches = Vec::new();
        if form == Form::If {
            for (attr, name) in [("else_branch", "else/"), ("then_branch", "then/")] {
                let found = self.function(caller, caller.attrs.get(attr))?;
                branches.push((name.to_owned(), found));
            }
        } else {
            let listed = caller.attrs.list("branches").unwrap_or_default();
            for (index, function) in listed.iter().enumerate() {
                let found = self.function(caller, Some(function))?;
                branches.push((format!("branch{index}/"), found));
            }
        }
        let n_branches = branches.len();
        let Some((&selector, args)) = caller.inputs.split_first() else {
            return Err(caller.error("it has no inputs".to_owned()));
        };
        if n_branches == 0 {
            return Err(caller.error("it has no branches".to_owned()));
        }
        let selector = match form {
            Form::If => self.predicate(caller, selector)?,
            _ => selector,
        };
        let mut switched: Vec<Option<NodeId>> = vec![None; args.len()];
        let waits = &caller.controls;
        let pivots = self.switch(caller, "pivot", form, selector, selector, n_branches, waits)?;
        let mut returned: Vec<Returned> = Vec::with_capacity(n_branches);
        let mut pivot_nodes = Vec::with_capacity(n_branches);
        for (branch, (name, (function, attrs))) in (0..).zip(&branches) {
            let pivot = Source {
                node: pivots,
                slot: branch,
                is_guarded: true,
            };
            let name_of_pivot = format!("{}/{name}pivot", caller.name);
            let pivot = self.identity(caller, name_of_pivot, pivot, None)?;
            let guard = Guard {
                pivot: Some(pivot.node),
                is_needed: true,
            };
            let body = self.instantiate(caller, function, attrs, args.len())?;
            let mut branch_args = Vec::with_capacity(args.len());
            for (index, &arg) in args.iter().enumerate() {
                if !body.reads(index) {
                    // Nothing reads it.
                    branch_args.push(arg);
                    continue;
                }
                let node = match switched[index] {
                    Some(node) => node,
                    None => {
                        let name = format!("switch{index}");
                        self.switch(caller, &name, form, arg, selector, n_branches, waits)?
                    }
                };
                switched[index] = Some(node);
                branch_args.push(Source {
                    node,
                    slot: branch,
                    is_guarded: true,
                });
            }
            pivot_nodes.push(pivot.node);
            returned.push(self.add_body(caller, name, &body, function, &branch_args, guard)?);
        }
        let n_results = returned[0].results.len();
        if let Some(other) = returned
            .iter()
            .find(|other| other.results.len() != n_results)
        {
            return Err(caller.error(format!(
                "its branches return {n_results} and {} tensors",
                other.results.len()
            )));
        }
        let is_guarded = caller.is_guarded();
        let mut merged = Returned::default();
        for result in 0..n_results {
            let mut inputs = Vec::with_capacity(n_branches);
            for (branch, returned) in returned.iter().enumerate() {
                let mut source = returned.results[result];
                if !source.is_guarded {
                    let name = format!("{}/result{result}_{branch}", caller.name);
                    source = self.identity(caller, name, source, Some(pivot_nodes[branch]))?;
                }
                inputs.push(source.data());
            }
            let dtype = self.dtype(returned[0].results[result]);
            let node = self.merge(caller, &format!("merge{result}"), dtype, inputs)?;
            merged.results.push(Source {
                node,
                slot: 0,
                is_guarded,
            });
        }
        if returned.iter().any(|branch| !branch.effects.is_empty()) {
            // Runs when the effects of the branch that was taken are done.
            let mut done = Vec::with_capacity(n_branches);
            for (branch, returned) in (0..).zip(&returned) {
                let effects = returned.effects.iter().map(|&node| Input::Control(node));
                let pivot = Input::Data {
                    node: pivots,
                    slot: branch,
                };
                let dtype = self.dtype(selector);
                let node = self.add(New {
                    name: format!("{}/done{branch}", caller.name),
                    op: "Identity",
                    device: &caller.device,
                    attrs: vec![("T", type_attr(dtype))],
                    inputs: std::iter::once(pivot).chain(effects).collect(),
                })?;
                done.push(Input::Data { node, slot: 0 });
            }
            let dtype = self.dtype(selector);
            merged
                .effects
                .push(self.merge(caller, "done", dtype, done)?);
        }
        Ok(merged)
    }

    /// Adds the loop of a `While`.
    fn add_loop(&mut self, caller: &Caller<'_>) -> Result<Returned, LowerError> {
        let (cond, cond_attrs) = self.function(caller, caller.attrs.get("cond"))?;
        let (body, body_attrs) = self.function(caller, caller.attrs.get("body"))?;
        let n_vars = caller.inputs.len();
        let cond_graph = self.instantiate(caller, cond, cond_attrs, n_vars)?;
        let body_graph = self.instantiate(caller, body, body_attrs, n_vars)?;
        if body_graph.results.len() != n_vars || cond_graph.results.len() != 1 {
            return Err(caller.error(format!(
                "its body returns {} tensors and its condition {}, expected {n_vars} and 1",
                body_graph.results.len(),
                cond_graph.results.len()
            )));
        }
        let mut vars: Vec<Option<usize>> = Vec::with_capacity(n_vars);
        let (mut merges, mut entered) = (Vec::new(), caller.inputs.clone());
        // A loop without a variable that changes has one of its own.
        let changes = (0..n_vars).map(|var| body_graph.returned_arg(var) != Some(var));
        let changes: Vec<bool> = changes.collect();
        if !changes.contains(&true) {
            let literal = Literal::new(
                DType::Bool,
                Shape::scalar(),
                LiteralData::Dense(Arc::new([1u8])),
            );
            let literal = literal.map_err(|error| caller.error(error.to_string()))?;
            let node = self.add(New {
                name: format!("{}/once", caller.name),
                op: "Const",
                device: &caller.device,
                attrs: vec![
                    ("dtype", type_attr(DType::Bool)),
                    ("value", AttrValue::Tensor(Arc::new(literal))),
                ],
                inputs: Vec::new(),
            })?;
            entered.push(Source {
                node,
                slot: 0,
                is_guarded: false,
            });
        }
        let parallel = caller.attrs.int("parallel_iterations").unwrap_or(10);
        let declared = caller.attrs.list("output_shapes").unwrap_or_default();
        for (var, &source) in entered.iter().enumerate() {
            if changes.get(var) == Some(&false) {
                vars.push(None);
                continue;
            }
            let dtype = self.dtype(source);
            let controls = caller.controls.iter().copied();
            // Makes the loop part of the scope around it, which constants are not.
            let pivot = caller.guard.pivot.filter(|_| !source.is_guarded);
            let controls = controls.chain(pivot).map(Input::Control);
            let enter = self.add(New {
                name: format!("{}/enter{var}", caller.name),
                op: "Enter",
                device: &caller.device,
                attrs: vec![
                    ("T", type_attr(dtype)),
                    (
                        "frame_name",
                        AttrValue::Bytes(caller.name.as_bytes().into()),
                    ),
                    ("is_constant", AttrValue::Bool(false)),
                    ("parallel_iterations", AttrValue::Int(parallel)),
                ],
                inputs: std::iter::once(source.data()).chain(controls).collect(),
            })?;
            // Loop variables keep their shapes, unless the node says otherwise.
            let shape = match declared.get(var) {
                Some(AttrValue::Shape(shape)) => shape.clone(),
                Some(_) => PartialShape::unknown(),
                None => self.output(source).shape,
            };
            let merge = self.loop_merge(caller, var, dtype, enter, &shape)?;
            vars.push(Some(merges.len()));
            merges.push(merge);
        }
        let first = merges[0];
        let unchanged = |var: usize| Source {
            is_guarded: false,
            ..caller.inputs[var]
        };
        let of_var = |nodes: &[NodeId], slot: u32, var: usize| match vars[var] {
            None => unchanged(var),
            Some(index) => Source {
                node: nodes[index],
                slot,
                is_guarded: true,
            },
        };
        let args: Vec<Source> = (0..n_vars).map(|var| of_var(&merges, 0, var)).collect();
        let guard = Guard {
            pivot: Some(first),
            is_needed: true,
        };
        let decided = self.add_body(caller, "cond/", &cond_graph, cond, &args, guard)?;
        let condition = self.predicate(caller, decided.results[0])?;
        let effects = decided.effects.iter().map(|&node| Input::Control(node));
        let pivot = (!condition.is_guarded).then_some(Input::Control(first));
        let loop_cond = self.add(New {
            name: format!("{}/loop_cond", caller.name),
            op: "LoopCond",
            device: &caller.device,
            attrs: Vec::new(),
            inputs: std::iter::once(condition.data())
                .chain(effects)
                .chain(pivot)
                .collect(),
        })?;
        let condition = Source {
            node: loop_cond,
            slot: 0,
            is_guarded: true,
        };
        let mut switches = Vec::with_capacity(merges.len());
        for (index, &merge) in merges.iter().enumerate() {
            let merge = Source {
                node: merge,
                slot: 0,
                is_guarded: true,
            };
            let name = format!("switch{index}");
            switches.push(self.switch(caller, &name, Form::If, merge, condition, 2, &[])?);
        }
        let pivot = Source {
            node: switches[0],
            slot: 1,
            is_guarded: true,
        };
        let name_of_pivot = format!("{}/body/pivot", caller.name);
        let pivot = self.identity(caller, name_of_pivot, pivot, None)?;
        let guard = Guard {
            pivot: Some(pivot.node),
            is_needed: true,
        };
        let args: Vec<Source> = (0..n_vars).map(|var| of_var(&switches, 1, var)).collect();
        let next = self.add_body(caller, "body/", &body_graph, body, &args, guard)?;
        let mut effects = next.effects;
        for (var, &index) in vars.iter().enumerate() {
            let Some(index) = index else { continue };
            let source = next
                .results
                .get(var)
                .copied()
                .unwrap_or(pivot_of(&switches, index));
            let dtype = self.dtype(source);
            let mut inputs = vec![source.data()];
            // The effects of an iteration belong to the loop, whichever results are read.
            inputs.extend(effects.iter().map(|&node| Input::Control(node)));
            if !source.is_guarded {
                inputs.push(Input::Control(pivot.node));
            }
            let node = self.add(New {
                name: format!("{}/next{var}", caller.name),
                op: "NextIteration",
                device: &caller.device,
                attrs: vec![("T", type_attr(dtype))],
                inputs,
            })?;
            let expected = self.dtype(Source {
                node: merges[index],
                slot: 0,
                is_guarded: true,
            });
            if dtype != expected {
                return Err(caller.error(format!(
                    "its body returns {dtype} for variable {var}, which is {expected}"
                )));
            }
            let assembler = self.assembler.graph_mut();
            assembler.add_back_input(node, 0, merges[index], 1)?;
        }
        let is_guarded = caller.is_guarded();
        let mut returned = Returned::default();
        let mut last = None;
        for (var, index) in vars.iter().enumerate() {
            let Some(index) = *index else {
                returned.results.push(caller.inputs[var]);
                continue;
            };
            let source = Source {
                node: switches[index],
                slot: 0,
                is_guarded: true,
            };
            let node = self.add(New {
                name: format!("{}/exit{var}", caller.name),
                op: "Exit",
                device: &caller.device,
                attrs: vec![("T", type_attr(self.dtype(source)))],
                inputs: vec![source.data()],
            })?;
            last = Some(node);
            if var < n_vars {
                returned.results.push(Source {
                    node,
                    slot: 0,
                    is_guarded,
                });
            }
        }
        effects.extend(decided.effects);
        if !effects.is_empty() {
            returned.effects.extend(last);
        }
        Ok(returned)
    }

    fn loop_merge(
        &mut self,
        caller: &Caller<'_>,
        var: usize,
        dtype: DType,
        enter: NodeId,
        shape: &PartialShape,
    ) -> Result<NodeId, LowerError> {
        let name = format!("{}/merge{var}", caller.name);
        let definition = self.definition("Merge", &name)?;
        let attrs = vec![
            ("T".into(), type_attr(dtype)),
            ("N".into(), AttrValue::Int(2)),
        ];
        let attrs = self.completed(&definition, AttrSet::new(attrs), &name)?;
        let back = OpInput {
            dtype,
            shape: PartialShape::unknown(),
            known: Known::Nothing,
        };
        let inputs = [
            self.op_input(Source {
                node: enter,
                slot: 0,
                is_guarded: true,
            }),
            back,
        ];
        let inferred = self
            .assembler
            .infer(&definition, &attrs, &inputs, |shapes| {
                if let Some(merged) = shapes.first_mut() {
                    *merged = shape.clone();
                }
                Ok(())
            });
        let inferred = inferred.map_err(|error| caller.error(problem(error)))?;
        let edges = [Input::Data {
            node: enter,
            slot: 0,
        }];
        self.append_inferred(&name, &definition, &attrs, &edges, &caller.device, inferred)
    }

    /// Adds a `Switch` or `_SwitchN` of a tensor.
    fn switch(
        &mut self,
        caller: &Caller<'_>,
        name: &str,
        form: Form,
        data: Source,
        selector: Source,
        n_outputs: usize,
        controls: &[NodeId],
    ) -> Result<NodeId, LowerError> {
        let mut attrs = vec![("T", type_attr(self.dtype(data)))];
        let op = match form {
            Form::Case => {
                let n_outputs = i64::try_from(n_outputs).unwrap_or(i64::MAX);
                attrs.push(("num_outs", AttrValue::Int(n_outputs)));
                "_SwitchN"
            }
            _ => "Switch",
        };
        let controls = controls.iter().map(|&node| Input::Control(node));
        // A constant does not say by itself which branch or loop the node is in.
        let is_guarded = data.is_guarded || selector.is_guarded;
        let pivot = caller
            .guard
            .pivot
            .filter(|_| caller.guard.is_needed && !is_guarded);
        let inputs = [data.data(), selector.data()].into_iter();
        self.add(New {
            name: format!("{}/{name}", caller.name),
            op,
            device: &caller.device,
            attrs,
            inputs: inputs
                .chain(controls)
                .chain(pivot.map(Input::Control))
                .collect(),
        })
    }

    fn merge(
        &mut self,
        caller: &Caller<'_>,
        name: &str,
        dtype: DType,
        inputs: Vec<Input>,
    ) -> Result<NodeId, LowerError> {
        let n_inputs = i64::try_from(inputs.len()).unwrap_or(i64::MAX);
        self.add(New {
            name: format!("{}/{name}", caller.name),
            op: "Merge",
            device: &caller.device,
            attrs: vec![("T", type_attr(dtype)), ("N", AttrValue::Int(n_inputs))],
            inputs,
        })
    }

    fn identity(
        &mut self,
        caller: &Caller<'_>,
        name: String,
        source: Source,
        control: Option<NodeId>,
    ) -> Result<Source, LowerError> {
        let dtype = self.dtype(source);
        let inputs = std::iter::once(source.data()).chain(control.map(Input::Control));
        let node = self.add(New {
            name,
            op: "Identity",
            device: &caller.device,
            attrs: vec![("T", type_attr(dtype))],
            inputs: inputs.collect(),
        })?;
        Ok(Source {
            node,
            slot: 0,
            is_guarded: true,
        })
    }

    /// Returns a condition as a boolean: numbers other than 0 are true.
    fn predicate(&mut self, caller: &Caller<'_>, source: Source) -> Result<Source, LowerError> {
        let dtype = self.dtype(source);
        if dtype == DType::Bool {
            return Ok(source);
        }
        if dtype.size_bytes().is_none() {
            return Err(caller.error(format!("its condition is {dtype}, expected bool")));
        }
        let node = self.add(New {
            name: format!("{}/to_bool", caller.name),
            op: "Cast",
            device: &caller.device,
            attrs: vec![("SrcT", type_attr(dtype)), ("DstT", type_attr(DType::Bool))],
            inputs: vec![source.data()],
        })?;
        Ok(Source {
            node,
            slot: 0,
            ..source
        })
    }

    /// Returns the function that an attribute names.
    fn function<'b>(
        &self,
        caller: &Caller<'b>,
        value: Option<&'b AttrValue>,
    ) -> Result<(&'a Function, &'b AttrSet), LowerError> {
        let Some(AttrValue::Function(name, attrs)) = value else {
            return Err(caller.error("an attribute does not name a function".to_owned()));
        };
        match self.library.find_function(name) {
            Some(function) => Ok((function, attrs)),
            None => Err(caller.error(format!("the graph has no function `{name}`"))),
        }
    }

    fn instantiate(
        &self,
        caller: &Caller<'_>,
        function: &Function,
        attrs: &AttrSet,
        n_args: usize,
    ) -> Result<Body, LowerError> {
        if self.stack.contains(&function.name) || self.stack.len() >= CALL_DEPTH_MAX {
            return Err(LowerError::Recursive {
                node: caller.name.clone(),
                function: function.name.to_string(),
                stack: self.stack.join(" > "),
            });
        }
        let ops = |op: &str| self.ops.get(op).map(|op| &**op);
        let body = body::instantiate(function, attrs, self.library, &ops);
        let body = body
            .map_err(|problem| caller.error(format!("function `{}`: {problem}", function.name)))?;
        if body.args.len() != n_args {
            return Err(caller.error(format!(
                "function `{}` takes {} arguments, the node passes {n_args}",
                function.name,
                body.args.len()
            )));
        }
        Ok(body)
    }

    fn add_function(
        &mut self,
        caller: &Caller<'_>,
        part: &str,
        function: &Function,
        attrs: &AttrSet,
        args: &[Source],
        guard: Guard,
    ) -> Result<Returned, LowerError> {
        let body = self.instantiate(caller, function, attrs, args.len())?;
        self.add_body(caller, part, &body, function, args, guard)
    }

    fn add_body(
        &mut self,
        caller: &Caller<'_>,
        part: &str,
        body: &Body,
        function: &Function,
        args: &[Source],
        guard: Guard,
    ) -> Result<Returned, LowerError> {
        for (index, (name, arg)) in body.args.iter().zip(args).enumerate() {
            let node = body.graph.find_node(name);
            let expected = node.and_then(|node| body.graph.output(node, 0));
            let expected = expected.map(|tensor| body.graph.tensor_dtypes()[tensor.index()]);
            let found = self.dtype(*arg);
            if expected.is_some_and(|expected| expected != found) {
                return Err(caller.error(format!(
                    "argument {index} (`{name}`) of function `{}` is {}, the node passes {found}",
                    function.name,
                    expected.map_or("?", DType::name)
                )));
            }
        }
        self.stack.push(Arc::clone(&function.name));
        let prefix = format!("{}/{part}", caller.name);
        let added = self.add_all(&Scope {
            graph: &body.graph,
            prefix: &prefix,
            device: &caller.device,
            args,
            guard,
            is_outermost: false,
        });
        self.stack.pop();
        let mut returned = added?;
        for (_, node) in &function.control_returns {
            let name = format!("{prefix}{node}");
            let node = self.assembler.graph().find_node(&name);
            returned
                .effects
                .extend(node.filter(|node| !returned.effects.contains(node)));
        }
        Ok(returned)
    }

    fn add(&mut self, new: New<'_>) -> Result<NodeId, LowerError> {
        let definition = self.definition(new.op, &new.name)?;
        let attrs = new.attrs.into_iter();
        let attrs = AttrSet::new(attrs.map(|(name, value)| (name.into(), value)));
        let attrs = self.completed(&definition, attrs, &new.name)?;
        self.append(&new.name, &definition, &attrs, &new.inputs, new.device, &[])
    }

    fn definition(&self, op: &str, node: &str) -> Result<Arc<OpDef>, LowerError> {
        self.ops.get(op).cloned().ok_or_else(|| LowerError::Call {
            node: node.to_owned(),
            op: op.to_owned(),
            problem: "the op registry does not define this op, which calls are lowered to".into(),
        })
    }

    fn completed(
        &self,
        definition: &OpDef,
        attrs: AttrSet,
        node: &str,
    ) -> Result<AttrSet, LowerError> {
        if !self.is_checked {
            return Ok(attrs);
        }
        let listed = attrs
            .iter()
            .map(|(name, value)| (name.into(), value.clone()));
        let completed = definition.complete_attrs(listed.collect());
        completed.map_err(|(attr, _)| LowerError::Call {
            node: node.to_owned(),
            op: definition.name().to_owned(),
            problem: format!("attribute `{attr}` is missing or wrong"),
        })
    }

    /// Adds a node of a defined op. `shapes`: what the graph knows of its outputs.
    fn append(
        &mut self,
        name: &str,
        op: &OpDef,
        attrs: &AttrSet,
        edges: &[Input],
        device: &str,
        shapes: &[PartialShape],
    ) -> Result<NodeId, LowerError> {
        let inputs = edges.iter().filter_map(|edge| match *edge {
            Input::Data { node, slot } => Some(self.op_input(Source {
                node,
                slot,
                is_guarded: false,
            })),
            Input::Control(_) => None,
        });
        let mut inputs: Vec<OpInput> = inputs.collect();
        let failed = |problem: String| LowerError::Call {
            node: name.to_owned(),
            op: op.name().to_owned(),
            problem,
        };
        let slots = op
            .input_slots(attrs)
            .map_err(|error| failed(error.to_string()))?;
        // Inputs that close a loop are added later.
        for slot in slots.iter().skip(inputs.len()) {
            inputs.push(OpInput {
                dtype: slot.dtype,
                shape: PartialShape::unknown(),
                known: Known::Nothing,
            });
        }
        let inferred = self.assembler.infer(op, attrs, &inputs, |inferred| {
            for (shape, known) in inferred.iter_mut().zip(shapes) {
                if let Some(merged) = shape.merge(known) {
                    *shape = merged;
                }
            }
            Ok(())
        });
        let inferred = inferred.map_err(|error| failed(problem(error)))?;
        self.append_inferred(name, op, attrs, edges, device, inferred)
    }

    fn append_inferred(
        &mut self,
        name: &str,
        op: &OpDef,
        attrs: &AttrSet,
        edges: &[Input],
        device: &str,
        inferred: Inferred,
    ) -> Result<NodeId, LowerError> {
        let node = OpNode {
            name,
            op,
            attrs,
            edges,
            requested_device: device,
        };
        Ok(self.assembler.append(&node, inferred)?)
    }

    fn output(&self, source: Source) -> Output {
        let output = self
            .assembler
            .graph()
            .output(source.node, source.slot as usize);
        output.expect("sources are outputs of nodes that have been added")
    }

    fn dtype(&self, source: Source) -> DType {
        self.output(source).dtype
    }

    fn op_input(&self, source: Source) -> OpInput {
        let output = self.output(source);
        OpInput {
            dtype: output.dtype,
            shape: output.shape,
            known: self.assembler.known(source.node, source.slot),
        }
    }
}

/// The nodes of a graph that are in a branch or loop which is written with `Switch` or `Enter`, or
/// behind one.
struct Conditional {
    /// Per node; `None` if the graph has no such branches and loops.
    nodes: Option<Vec<bool>>,
}

impl Conditional {
    fn of(graph: &Graph) -> Self {
        let mut ops = graph.op_names().iter();
        let has_any = ops.any(|op| is_switch(op) || is_enter(op));
        Self {
            nodes: has_any.then(|| vec![false; graph.n_nodes()]),
        }
    }

    /// Adds the next node, in topological order. Returns whether one of its inputs is conditional.
    fn add(&mut self, graph: &Graph, node: NodeId) -> bool {
        let Some(nodes) = &mut self.nodes else {
            return false;
        };
        let inputs = graph.predecessors().row(node.index());
        let has_conditional_input = inputs.iter().any(|&input| nodes[input as usize]);
        let op = graph.op(node);
        nodes[node.index()] = has_conditional_input || is_switch(op) || is_enter(op);
        has_conditional_input
    }
}

/// Returns what the variable of a loop without variables is in the next iteration: unchanged.
fn pivot_of(switches: &[NodeId], index: usize) -> Source {
    Source {
        node: switches[index],
        slot: 1,
        is_guarded: true,
    }
}

impl Caller<'_> {
    /// Returns whether its results are dead, or new in each iteration, when its scope's guard says
    /// so.
    fn is_guarded(&self) -> bool {
        self.guard.is_needed
    }

    fn error(&self, problem: String) -> LowerError {
        LowerError::Call {
            node: self.name.clone(),
            op: self.op.to_owned(),
            problem,
        }
    }
}

impl Body {
    /// Returns whether something reads an argument.
    fn reads(&self, arg: usize) -> bool {
        let node = self
            .args
            .get(arg)
            .and_then(|name| self.graph.find_node(name));
        node.is_some_and(|node| !self.graph.successors().row(node.index()).is_empty())
    }

    /// Returns the argument that a result is, unchanged, if it is one.
    fn returned_arg(&self, result: usize) -> Option<usize> {
        let mut node = self.graph.find_node(self.results.get(result)?)?;
        loop {
            match self.graph.op(node) {
                "_Arg" => {
                    let name = self.graph.node_name(node);
                    return self.args.iter().position(|arg| arg == name);
                }
                "Identity" | "_Retval" => {
                    let &[producer] = self.graph.predecessors().row(node.index()) else {
                        return None;
                    };
                    node = NodeId(producer);
                }
                _ => return None,
            }
        }
    }
}

/// Returns the requested device of a node of a function: what the node does not say, its caller
/// says.
fn merged_device(of_node: &str, of_caller: &str) -> String {
    match (of_node, of_caller) {
        ("", device) | (device, "") => device.to_owned(),
        (of_node, of_caller) => {
            let names = (
                DeviceName::parse_full(of_node),
                DeviceName::parse_full(of_caller),
            );
            match names {
                (Ok(mut name), Ok(caller)) => {
                    name.merge_unset(&caller);
                    name.request_text()
                }
                _ => of_node.to_owned(),
            }
        }
    }
}

/// Returns the attributes of a node of a function, with colocation by the nodes' new names.
fn within(attrs: &AttrSet, scope: &Scope<'_>) -> AttrSet {
    const COLOCATED: &[u8] = b"loc:@";
    let Some(AttrValue::List(classes)) = attrs.get("_class") else {
        return attrs.clone();
    };
    let renamed = classes.iter().filter_map(|class| {
        let AttrValue::Bytes(text) = class else {
            return Some(class.clone());
        };
        let Some(name) = text.strip_prefix(COLOCATED) else {
            return Some(class.clone());
        };
        let name = std::str::from_utf8(name).ok()?;
        let node = scope.graph.find_node(name)?;
        // Arguments are nodes of the caller.
        (scope.graph.op(node) != "_Arg").then(|| {
            let name = format!("loc:@{}{name}", scope.prefix);
            AttrValue::Bytes(name.as_bytes().into())
        })
    });
    let renamed = AttrValue::List(renamed.collect());
    AttrSet::new(attrs.iter().map(|(name, value)| match name {
        "_class" => (name.into(), renamed.clone()),
        _ => (name.into(), value.clone()),
    }))
}

fn problem(error: OpNodeError) -> String {
    match error {
        OpNodeError::TooManyOutputs => "it has too many outputs".to_owned(),
        OpNodeError::Signature(error) => error.to_string(),
        OpNodeError::Shape(error) => error.to_string(),
    }
}

fn type_attr(dtype: DType) -> AttrValue {
    AttrValue::Type {
        dtype,
        is_ref: false,
    }
}

fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("a graph has fewer than 2^32 nodes and tensors")
}
