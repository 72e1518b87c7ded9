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

mod branches;
mod conditional;
mod loops;
mod nodes;

use std::sync::Arc;

use self::conditional::Conditional;
use self::nodes::New;
use self::nodes::merged_device;
use self::nodes::type_attr;
use self::nodes::within;
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
use crate::graph::is_switch;
use crate::ops::OpAssembler;
use crate::ops::OpRegistry;
use crate::tensor::DType;
use crate::tensor::PartialShape;

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
    let mut lowered = match graph.is_checked() {
        true => lowerer.assembler.finish(),
        false => lowerer.assembler.finish_unchecked(),
    };
    lowered.copy_interface(graph);
    Ok(lowered)
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
    /// Whether it is in a branch or loop of the same graph, so that it is dead with its inputs.
    is_conditional: bool,
}

struct Lowerer<'a> {
    library: &'a Graph,
    ops: &'a OpRegistry,
    assembler: OpAssembler,
    /// The functions whose bodies are being added.
    stack: Vec<Arc<str>>,
    is_checked: bool,
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
                // As nodes with effects do; a call passes the pivot on to its function.
                if form != Form::Call && self.is_stateful(op) {
                    controls.extend(scope.guard.pivot);
                }
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
                    is_conditional,
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
            let (id, is_guarded) = self.copy(scope, node, &name, &device, &inputs, controls)?;
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
        name: &str,
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
            let id = self.copy_undefined(graph, node, name, device, attrs, &edges)?;
            return Ok((id, is_guarded));
        };
        let attrs = self.completed(&definition, attrs, name)?;
        let known = match scope.is_outermost {
            true => shapes.as_slice(),
            false => &[],
        };
        let id = self.append(name, &definition, &attrs, &edges, device, known)?;
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

    /// Makes all nodes of the functions of a caller wait for the caller's inputs: the caller is in
    /// a branch or loop of the same graph, which nodes without inputs would not be in.
    fn guard_by_inputs(&mut self, caller: &mut Caller<'_>) -> Result<(), LowerError> {
        let mut waits_for = caller.controls.clone();
        for (index, &input) in caller.inputs.iter().enumerate() {
            // A `Switch` is not dead when one of its outputs is.
            waits_for.push(match is_switch(self.assembler.graph().op(input.node)) {
                true => {
                    let name = format!("{}/input{index}", caller.name);
                    self.identity(caller, name, input, None)?.node
                }
                false => input.node,
            });
        }
        let pivot = self.add(New {
            name: format!("{}/inputs", caller.name),
            op: "NoOp",
            device: &caller.device,
            attrs: Vec::new(),
            inputs: waits_for.into_iter().map(Input::Control).collect(),
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
        // Handles of resources that a loop passes on are read where they come from: one node could
        // not be beside resources of several devices. A node of fewer outputs would give others a
        // wrong number, so it keeps those before the first handle, or none.
        let is_resource = |source: &Source| self.dtype(*source) == DType::Resource;
        let n_first = returned
            .results
            .iter()
            .take_while(|source| !is_resource(source))
            .count();
        let n_kept = match returned.results[n_first..].iter().all(is_resource) {
            true => n_first,
            false => 0,
        };
        let kept = &returned.results[..n_kept];
        let mut inputs: Vec<Input> = kept.iter().map(|source| source.data()).collect();
        let controls = returned.effects.iter().chain(&caller.controls);
        inputs.extend(controls.map(|&node| Input::Control(node)));
        let is_guarded = kept.iter().any(|source| source.is_guarded);
        if caller.guard.is_needed && !is_guarded {
            inputs.extend(caller.guard.pivot.map(Input::Control));
        }
        let types = kept.iter().map(|source| self.dtype(*source));
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
        // A result may be a constant, or an input as it is, and then does not wait for what the
        // caller waits for. Branches and loops wait for the controls before they begin.
        let has_controls = form == Form::Call && !caller.controls.is_empty();
        if !has_effects && !has_controls && !caller.is_conditional {
            return Ok((returned.results, last, false));
        }
        // A node that reads a result needs the effects, too.
        let results = (0..n_kept).map(|slot| Source {
            node: last,
            slot: to_u32(slot),
            is_guarded: is_guarded || caller.guard.is_needed,
        });
        let mut results: Vec<Source> = results.collect();
        for (index, &source) in returned.results.iter().enumerate().skip(n_kept) {
            results.push(match self.dtype(source) {
                DType::Resource => source,
                _ => {
                    let name = format!("{}/result{index}", caller.name);
                    self.identity(caller, name, source, Some(last))?
                }
            });
        }
        Ok((results, last, has_effects))
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
        let first_node = self.assembler.graph().n_nodes();
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
        let assembler = self.assembler.graph_mut();
        assembler.set_function(first_node, &function.name);
        for (_, node) in &function.control_returns {
            let name = format!("{prefix}{node}");
            let node = self.assembler.graph().find_node(&name);
            returned
                .effects
                .extend(node.filter(|node| !returned.effects.contains(node)));
        }
        Ok(returned)
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

fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("a graph has fewer than 2^32 nodes and tensors")
}
