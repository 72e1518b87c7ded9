//! Bodies of branches, loops and functions: graphs of their own, which capture values of the
//! graphs around them and become functions of the library.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use hashbrown::HashSet;
use rustc_hash::FxHashMap;

use crate::builder::Scope;
use crate::builder::State;
use crate::builder::error::BuildError;
use crate::builder::unique::UniqueNames;
use crate::builder::value::BuilderId;
use crate::builder::value::Operation;
use crate::builder::value::Value;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Function;
use crate::graph::FunctionArg;
use crate::graph::FunctionNode;
use crate::graph::Graph;
use crate::graph::GraphAssembler;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::ops::OpAssembler;
use crate::ops::OpInput;
use crate::ops::OpRegistry;
use crate::tensor::PartialShape;

/// What all graphs of one builder share.
#[derive(Debug)]
pub(super) struct Library {
    /// The outermost graph.
    pub(super) root: BuilderId,
    names: UniqueNames,
    /// All bodies so far, for messages about their values.
    bodies: FxHashMap<BuilderId, Arc<str>>,
    functions: Vec<Defined>,
    by_name: FxHashMap<Arc<str>, usize>,
}

/// A function of the library.
#[derive(Debug)]
pub(super) struct Defined {
    function: Function,
    /// The body. Its first nodes in the order of `args` are the arguments.
    pub(super) graph: Rc<Graph>,
    pub(super) args: Rc<[NodeId]>,
    /// Nodes and slots of the results.
    pub(super) results: Rc<[(NodeId, u32)]>,
    /// Whether the app defined it to call it: it stays in the library even if nothing does.
    is_public: bool,
}

/// The part of a graph's state that only graphs of bodies have.
pub(super) struct Enclosed {
    /// What it is: ``the then branch of `cond` ``.
    title: Arc<str>,
    /// Start of the names of functions inside.
    path: Arc<str>,
    outer: Rc<RefCell<State>>,
    /// Values of the outer graph, and the arguments that stand for them.
    captured: Vec<(Value, Value)>,
    by_outer: FxHashMap<(NodeId, u32), Value>,
    /// Operations of the outer graph that run before the body.
    after: Vec<Operation>,
}

/// A body under construction.
pub(super) struct Body {
    pub(super) scope: Scope,
    pub(super) title: Arc<str>,
    /// Name of its function, before numbering.
    path: Arc<str>,
}

/// A body that has become a function.
pub(super) struct Closed {
    pub(super) name: Arc<str>,
    pub(super) shapes: Vec<PartialShape>,
    pub(super) is_stateful: bool,
}

impl Library {
    pub(super) fn new(root: BuilderId) -> Self {
        Self {
            root,
            names: UniqueNames::default(),
            bodies: FxHashMap::default(),
            functions: Vec::new(),
            by_name: FxHashMap::default(),
        }
    }

    /// Returns the function of this name.
    pub(super) fn get(&self, name: &str) -> Option<&Defined> {
        Some(&self.functions[*self.by_name.get(name)?])
    }

    /// Keeps a function that no node calls.
    pub(super) fn keep(&mut self, name: &str) {
        if let Some(&index) = self.by_name.get(name) {
            self.functions[index].is_public = true;
        }
    }

    /// Returns a name that no function and no op has: a node of that op would call the function.
    pub(super) fn take_name(&mut self, wanted: &str, ops: &OpRegistry) -> Arc<str> {
        loop {
            let name = self.names.take(wanted);
            if ops.get(&name).is_none() {
                return name.into();
            }
        }
    }

    fn add(&mut self, defined: Defined) {
        let name = Arc::clone(&defined.function.name);
        self.by_name.insert(name, self.functions.len());
        self.functions.push(defined);
    }

    /// Adds the functions to the graph, without those of bodies whose node was refused.
    pub(super) fn add_to(&self, graph: &mut GraphAssembler) {
        let mut used = HashSet::new();
        for defined in self.functions.iter().filter(|defined| defined.is_public) {
            self.mark(&defined.function.name, &mut used);
        }
        if !self.functions.is_empty() {
            let n_nodes = u32::try_from(graph.n_nodes()).unwrap_or(u32::MAX);
            for node in (0..n_nodes).map(NodeId) {
                self.mark_all(graph.attrs(node), &mut used);
            }
        }
        for defined in &self.functions {
            if used.contains(&defined.function.name) {
                graph.add_function(defined.function.clone());
            }
        }
    }

    fn mark(&self, name: &str, used: &mut HashSet<Arc<str>>) {
        let Some(defined) = self.get(name) else {
            return;
        };
        if used.insert(Arc::clone(&defined.function.name)) {
            for node in &defined.function.nodes {
                self.mark_all(&node.attrs, used);
            }
        }
    }

    fn mark_all(&self, attrs: &AttrSet, used: &mut HashSet<Arc<str>>) {
        for (_, value) in attrs.iter() {
            let values = match value {
                AttrValue::List(values) => values,
                value => std::slice::from_ref(value),
            };
            for value in values {
                if let AttrValue::Function(name, _) = value {
                    self.mark(name, used);
                }
            }
        }
    }
}

/// Returns the state of the graph `id` if it is this graph or one around it.
pub(super) fn find(state: &Rc<RefCell<State>>, id: BuilderId) -> Option<Rc<RefCell<State>>> {
    let mut state = Rc::clone(state);
    while state.borrow().id != id {
        let outer = Rc::clone(&state.borrow().enclosed.as_ref()?.outer);
        state = outer;
    }
    Some(state)
}

/// Returns the tensor in this graph that a value is, or stands for: values of graphs around it are
/// captured. `None` if the value belongs to another graph.
fn capture(state: &Rc<RefCell<State>>, value: Value) -> Result<Option<Value>, BuildError> {
    let outer = {
        let state = state.borrow();
        if state.id == value.operation.builder {
            return Ok(Some(value));
        }
        match &state.enclosed {
            Some(enclosed) => Rc::clone(&enclosed.outer),
            None => return Ok(None),
        }
    };
    let Some(value) = capture(&outer, value)? else {
        return Ok(None);
    };
    let key = (value.operation.node, value.slot);
    let mut state = state.borrow_mut();
    let state = &mut *state;
    let enclosed = state.enclosed.as_mut();
    let enclosed = enclosed.expect("a graph in an outer one is enclosed");
    if let Some(&arg) = enclosed.by_outer.get(&key) {
        return Ok(Some(arg));
    }
    let (name, input) = {
        let outer = outer.borrow();
        let graph = outer.graph.as_ref().ok_or(BuildError::Finished)?;
        let input = graph.op_input(key.0, key.1);
        let name = arg_name(graph.graph().node_name(key.0));
        (name, input.expect("a value is an output of its operation"))
    };
    let graph = state.graph.as_mut().ok_or(BuildError::Finished)?;
    let node = graph.append_arg(&state.names.take(&name), input)?;
    let operation = Operation {
        builder: state.id,
        node,
    };
    let arg = Value::new(operation, 0);
    enclosed.captured.push((value, arg));
    enclosed.by_outer.insert(key, arg);
    Ok(Some(arg))
}

/// Returns the name of the argument that stands for an output of this node; like TensorFlow's in
/// lower case. Through several bodies, it stays the same.
fn arg_name(node: &str) -> String {
    let last = node.rsplit('/').next().unwrap_or_default();
    let last = last.strip_prefix("captured_").unwrap_or(last);
    let last = last.chars().map(|c| match c {
        c if c.is_ascii_alphanumeric() => c.to_ascii_lowercase(),
        _ => '_',
    });
    format!("captured_{}", last.collect::<String>())
}

/// Returns whether an operation is of this graph. If it is of a graph around it, the node that runs
/// the body waits for it instead. `None` if it belongs to another graph.
fn run_after(state: &Rc<RefCell<State>>, operation: Operation) -> Option<bool> {
    if state.borrow().id == operation.builder {
        return Some(true);
    }
    let outer = Rc::clone(&state.borrow().enclosed.as_ref()?.outer);
    if run_after(&outer, operation)? {
        let mut state = state.borrow_mut();
        let after = &mut state.enclosed.as_mut()?.after;
        if !after.iter().any(|other| other.node == operation.node) {
            after.push(operation);
        }
    }
    Some(false)
}

impl Scope {
    /// Returns the value, or the argument of this scope's body that stands for it.
    pub(super) fn resolve(
        &self,
        value: Value,
        place: impl FnOnce() -> String,
    ) -> Result<Value, BuildError> {
        let found = capture(&self.state, value)?;
        found.ok_or_else(|| self.foreign(value.operation.builder, place()))
    }

    /// Returns whether a node of this scope's graph itself must wait for an operation: the node
    /// that runs the body may do so.
    pub(super) fn waits_itself(
        &self,
        operation: Operation,
        place: impl FnOnce() -> String,
    ) -> Result<bool, BuildError> {
        let waits = run_after(&self.state, operation);
        waits.ok_or_else(|| self.foreign(operation.builder, place()))
    }

    /// Returns the error of a handle that is not of this scope's graph or of one around it.
    pub(super) fn foreign(&self, builder: BuilderId, place: String) -> BuildError {
        let state = self.state.borrow();
        let library = state.library.borrow();
        match library.bodies.get(&builder) {
            Some(body) => BuildError::OtherBody {
                place,
                body: body.to_string(),
            },
            None => BuildError::Foreign { place },
        }
    }

    /// Returns the name of a function for `part` of a node or function, before numbering. It says
    /// in which bodies the node is.
    fn path(&self, of: &str, part: &str) -> String {
        let of = of.replace('/', "_");
        match &self.state.borrow().enclosed {
            Some(enclosed) => format!("{}_{of}{part}", enclosed.path),
            None => format!("{of}{part}"),
        }
    }

    /// Returns what the body of this scope is.
    pub(super) fn title(&self) -> String {
        let state = self.state.borrow();
        let title = state.enclosed.as_ref().map(|enclosed| &enclosed.title);
        title.map_or_else(|| "the graph".to_owned(), |title| title.to_string())
    }
}

impl Body {
    /// Opens a body inside of a scope's graph: `part` of a node or function.
    pub(super) fn open(
        around: &Scope,
        title: String,
        of: &str,
        part: &str,
    ) -> Result<Self, BuildError> {
        let title: Arc<str> = title.into();
        let path: Arc<str> = around.path(of, part).into();
        let id = BuilderId::new();
        let state = {
            let outer = around.state.borrow();
            if outer.graph.is_none() {
                return Err(BuildError::Finished);
            }
            outer
                .library
                .borrow_mut()
                .bodies
                .insert(id, Arc::clone(&title));
            State {
                id,
                ops: Arc::clone(&outer.ops),
                graph: Some(OpAssembler::new(
                    &*title,
                    super::PRODUCER_VERSION,
                    usize::MAX,
                )),
                names: UniqueNames::default(),
                library: Rc::clone(&outer.library),
                enclosed: Some(Enclosed {
                    title: Arc::clone(&title),
                    path: Arc::clone(&path),
                    outer: Rc::clone(&around.state),
                    captured: Vec::new(),
                    by_outer: FxHashMap::default(),
                    after: Vec::new(),
                }),
            }
        };
        let scope = Scope {
            id,
            state: Rc::new(RefCell::new(state)),
            prefix: String::new(),
            name: None,
            devices: around.devices.of_body(),
            control: Vec::new(),
            colocated: Vec::new(),
        };
        Ok(Self { scope, title, path })
    }

    /// Adds an argument.
    pub(super) fn arg(&self, name: &str, input: OpInput) -> Result<Value, BuildError> {
        let mut state = self.scope.state.borrow_mut();
        let State { graph, names, .. } = &mut *state;
        let graph = graph.as_mut().ok_or(BuildError::Finished)?;
        let node = graph.append_arg(&names.take(name), input)?;
        let builder = self.scope.id;
        Ok(Value::new(Operation { builder, node }, 0))
    }

    /// Returns the results that the body's closure returned as values of its graph.
    pub(super) fn results(&self, returned: &[Value]) -> Result<Vec<Value>, BuildError> {
        let of_body = |(index, &value): (usize, &Value)| {
            let place = || format!("result {index} of {}", self.title);
            let value = self.scope.resolve(value, place)?;
            // Functions return no references.
            match self.scope.described(value)?.is_ref {
                true => self.scope.identity(value),
                false => Ok(value),
            }
        };
        returned.iter().enumerate().map(of_body).collect()
    }

    /// Returns the captured values of the outer graph.
    pub(super) fn captured(&self) -> Vec<Value> {
        let state = self.scope.state.borrow();
        let enclosed = state.enclosed.iter();
        let captured = enclosed.flat_map(|enclosed| &enclosed.captured);
        captured.map(|&(outer, _)| outer).collect()
    }

    /// Returns the operations of the outer graph that run before the body.
    pub(super) fn after(&self) -> Vec<Operation> {
        let state = self.scope.state.borrow();
        let enclosed = state.enclosed.iter();
        enclosed
            .flat_map(|enclosed| &enclosed.after)
            .copied()
            .collect()
    }

    /// Returns the arguments that stand for these values of the outer graph.
    pub(super) fn standing_for(&self, captured: &[Value]) -> Result<Vec<Value>, BuildError> {
        let place = || format!("a value that {} captures", self.title);
        let captured = captured.iter();
        captured
            .map(|&value| self.scope.resolve(value, place))
            .collect()
    }

    /// Returns a new name for its function.
    pub(super) fn new_name(&self) -> Arc<str> {
        let state = self.scope.state.borrow();
        let mut library = state.library.borrow_mut();
        library.take_name(&self.path, &state.ops)
    }

    /// Adds the body to the library as a function.
    pub(super) fn close(
        self,
        name: Arc<str>,
        args: &[Value],
        results: &[Value],
    ) -> Result<Closed, BuildError> {
        let mut state = self.scope.state.borrow_mut();
        let graph = state.graph.take().ok_or(BuildError::Finished)?.finish();
        let args: Rc<[NodeId]> = args.iter().map(|arg| arg.operation.node).collect();
        let results = results
            .iter()
            .map(|result| (result.operation.node, result.slot));
        let results: Rc<[(NodeId, u32)]> = results.collect();
        let shape = |&(node, slot): &(NodeId, u32)| {
            let tensor = graph.output(node, slot as usize);
            tensor.map_or_else(PartialShape::unknown, |tensor| graph.tensor_shape(tensor))
        };
        let shapes = results.iter().map(shape).collect();
        let function = function(&graph, &state.ops, Arc::clone(&name), &args, &results);
        let is_stateful = function.stateful;
        state.library.borrow_mut().add(Defined {
            function,
            graph: Rc::new(graph),
            args,
            results,
            is_public: false,
        });
        Ok(Closed {
            name,
            shapes,
            is_stateful,
        })
    }
}

/// Returns the values of several bodies of one node, each once, in order.
pub(super) fn union(values: impl IntoIterator<Item = Vec<Value>>) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    let mut known = HashSet::new();
    for value in values.into_iter().flatten() {
        if known.insert((value.operation.node, value.slot)) {
            all.push(value);
        }
    }
    all
}

/// Returns a body as a function.
fn function(
    graph: &Graph,
    ops: &OpRegistry,
    name: Arc<str>,
    args: &[NodeId],
    results: &[(NodeId, u32)],
) -> Function {
    let is_arg = |node: NodeId| graph.op(node) == "_Arg";
    let mut nodes = Vec::with_capacity(graph.n_nodes());
    for node in graph.nodes().filter(|&node| !is_arg(node)) {
        let (mut inputs, mut controls): (Vec<Arc<str>>, Vec<Arc<str>>) = (Vec::new(), Vec::new());
        for edge in graph.predecessors().range(node.index()) {
            let producer = NodeId(graph.predecessors().items[edge]);
            match graph.edge_tensors()[edge] {
                // Arguments exist before the body runs.
                NONE if is_arg(producer) => {}
                NONE => controls.push(format!("^{}", graph.node_name(producer)).into()),
                tensor => {
                    let (producer, slot) = graph.producer(TensorId(tensor));
                    inputs.push(spelled(graph, ops, producer, slot));
                }
            }
        }
        inputs.append(&mut controls);
        nodes.push(FunctionNode {
            name: graph.node_name(node).into(),
            op: graph.op(node).into(),
            inputs,
            device: graph.requested(node).into(),
            attrs: graph.attrs(node).clone(),
        });
    }
    let of_function = |name: &str, node: NodeId, slot: u32| {
        let tensor = graph.output(node, slot as usize);
        let tensor = tensor.expect("a value is an output of its operation");
        FunctionArg {
            name: name.into(),
            spec: graph.tensor_dtypes()[tensor.index()].name().into(),
            is_ref: false,
        }
    };
    let result_name = |index: usize| format!("result{index}");
    let mut is_needed = vec![false; graph.n_nodes()];
    for &(node, _) in results {
        is_needed[node.index()] = true;
    }
    for node in graph.nodes().rev() {
        if is_needed[node.index()] {
            for &producer in graph.predecessors().row(node.index()) {
                is_needed[producer as usize] = true;
            }
        }
    }
    let is_stateful = |node: &NodeId| graph.class(*node).stateful;
    let unneeded = graph.nodes().filter(|node| !is_needed[node.index()]);
    let control_returns = unneeded.filter(is_stateful).map(|node| {
        let name: Arc<str> = graph.node_name(node).into();
        (Arc::clone(&name), name)
    });
    Function {
        args: args
            .iter()
            .map(|&node| of_function(graph.node_name(node), node, 0))
            .collect(),
        results: (0..)
            .zip(results)
            .map(|(index, &(node, slot))| of_function(&result_name(index), node, slot))
            .collect(),
        returns: (0..)
            .zip(results)
            .map(|(index, &(node, slot))| {
                let source = spelled(graph, ops, node, slot as usize);
                (result_name(index).into(), source)
            })
            .collect(),
        control_returns: control_returns.collect(),
        attrs: AttrSet::default(),
        stateful: graph.nodes().any(|node| is_stateful(&node)),
        nodes,
        name,
    }
}

/// Returns the spelling of a tensor in a body: `arg` or `node:output_arg:index`.
fn spelled(graph: &Graph, ops: &OpRegistry, node: NodeId, slot: usize) -> Arc<str> {
    let name = graph.node_name(node);
    if graph.op(node) == "_Arg" {
        return name.into();
    }
    let op = ops.get(graph.op(node));
    let op = op.expect("builders add nodes of ops that the registry defines");
    let attrs = graph.attrs(node);
    let found = op.outputs().iter().find_map(|arg| {
        let range = op.output_range(&arg.name, attrs)?;
        range
            .contains(&slot)
            .then(|| format!("{name}:{}:{}", arg.name, slot - range.start))
    });
    found.expect("a value is an output of its operation").into()
}
