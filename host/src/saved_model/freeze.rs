//! Turns variables that are only read into constants.
//!
//! A variable's handle becomes its value: tensors that carry the handle carry the value instead,
//! through calls, branches and loops, and `ReadVariableOp` becomes `Identity`. This happens before
//! calls are lowered, so the constants are those of a frozen graph: kernels prepack them, also
//! inside of loops.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use bytes::Bytes;
use hashbrown::HashMap;
use hashbrown::HashSet;

use super::flow::Flow;
use super::flow::GRAPH;
use super::flow::NodeAt;
use super::flow::Passing;
use super::flow::reads_variable;
use crate::import::Parts;
use crate::import::proto::NodeDef;
use crate::import::proto::TensorProto;
use crate::import::proto::TensorShapeProto;
use crate::import::proto::Value;
use crate::import::rewrite::attr;
use crate::import::rewrite::data_inputs;
use crate::import::rewrite::name;
use crate::import::rewrite::new_node;
use crate::import::rewrite::op;
use crate::import::rewrite::remove_attr;
use crate::import::rewrite::set_attr;
use crate::import::rewrite::set_shape_of;
use crate::import::rewrite::set_type;
use crate::import::rewrite::set_type_of;
use crate::import::rewrite::shape_proto;
use crate::import::rewrite::type_attr;
use crate::import::rewrite::type_number;
use crate::import::rewrite::variable_of;
use crate::tensor::DType;
use crate::tensor::PartialShape;

/// Attribute that tells the shapes of outputs, for debugging; that of a handle is not its value's.
const OUTPUT_SHAPES: &str = "_output_shapes";

/// The variables of a graph, by name, and whether each is only read.
pub(super) fn only_read(
    parts: &Parts,
    flow: &Flow<'_>,
    fetches: &[String],
) -> BTreeMap<String, bool> {
    let handles = handles(flow);
    let mut is_constant = constant_classes(flow, fetches);
    // Nodes of one shared name are one variable.
    loop {
        let is_frozen = |at: &NodeAt| {
            let class = flow.class_of_output(*at, 0);
            class.is_some_and(|class| is_constant.contains(&class))
        };
        let changed: HashSet<&Variable> = handles
            .iter()
            .filter(|(at, _)| !is_frozen(at))
            .map(|(_, variable)| variable)
            .collect();
        let classes = handles
            .iter()
            .filter(|(_, variable)| changed.contains(variable))
            .filter_map(|(at, _)| flow.class_of_output(*at, 0));
        let classes: Vec<u32> = classes.collect();
        if !classes.iter().any(|class| is_constant.contains(class)) {
            break;
        }
        is_constant.retain(|class| !classes.contains(class));
    }
    let mut variables = BTreeMap::new();
    for (at, _) in &handles {
        let class = flow.class_of_output(*at, 0);
        let is_frozen = class.is_some_and(|class| is_constant.contains(&class));
        if at.0 == GRAPH {
            variables.insert(name(&parts.nodes[at.1]).to_owned(), is_frozen);
        }
    }
    variables
}

/// Container and shared name.
type Variable = (String, String);

/// Returns all `VarHandleOp` nodes.
fn handles(flow: &Flow<'_>) -> Vec<(NodeAt, Variable)> {
    let mut handles = Vec::new();
    for &scope in &flow.scopes {
        for (index, node) in flow.nodes(scope).iter().enumerate() {
            if op(node) == "VarHandleOp" {
                handles.push(((scope, index), variable_of(node)));
            }
        }
    }
    handles
}

/// Returns the classes of tensors that are handles of variables of the graph, of one type, that are
/// only read.
fn constant_classes(flow: &Flow<'_>, fetches: &[String]) -> BTreeSet<u32> {
    let fetched = fetches.iter();
    let fetched: HashSet<u32> = fetched
        .filter_map(|tensor| flow.class_of(GRAPH, tensor))
        .collect();
    let mut classes = BTreeSet::new();
    for index in 0..flow.nodes(GRAPH).len() {
        let Some(class) = flow.class_of_output((GRAPH, index), 0) else {
            continue;
        };
        let facts = flow.class(class);
        let dtypes = facts.variables.iter().map(|&(scope, index)| {
            let node = &flow.nodes(scope)[index];
            let is_handle = scope == GRAPH && op(node) == "VarHandleOp";
            is_handle.then(|| type_attr(node, "dtype")).flatten()
        });
        let dtypes: Option<BTreeSet<DType>> = dtypes.collect();
        if dtypes.is_some_and(|dtypes| dtypes.len() == 1)
            && facts.restored.is_empty()
            && !facts.has_other_source
            && facts.changed_by.is_none()
            && !fetched.contains(&class)
        {
            classes.insert(class);
        }
    }
    classes
}

/// Returns the graph in which these variables are constants without values, which the importer
/// gets beside it. They are only read, and have these shapes. Gathers from variables that remain
/// become reads and gathers.
pub(super) fn freeze(
    parts: &Parts,
    flow: &Flow<'_>,
    frozen: &BTreeMap<String, (DType, PartialShape)>,
) -> Parts {
    let mut classes: HashMap<u32, Carried> = HashMap::new();
    for (index, node) in parts.nodes.iter().enumerate() {
        if let Some((dtype, shape)) = frozen.get(name(node))
            && op(node) == "VarHandleOp"
            && let Some(class) = flow.class_of_output((GRAPH, index), 0)
        {
            let value = Carried {
                dtype: *dtype,
                shape: shape.clone(),
            };
            classes
                .entry(class)
                .and_modify(|known| known.shape = known.shape.common(shape))
                .or_insert(value);
        }
    }
    let freezer = Freezer {
        flow,
        classes,
        frozen,
    };
    let mut functions = parts.functions.clone();
    for (index, function) in functions.iter_mut().enumerate() {
        let (nodes, renamed) = freezer.nodes(index + 1);
        function.node_def = nodes;
        for entry in &mut function.ret {
            if let Some(tensor) = renamed.get(entry.value.as_str()) {
                entry.value.clone_from(tensor);
            }
        }
        let Some(signature) = &mut function.signature else {
            continue;
        };
        for (position, arg) in signature.input_arg.iter_mut().enumerate() {
            if let Some(value) = freezer.value(flow.class_of_argument(index, position)) {
                arg.r#type = type_number(value.dtype);
            }
        }
        for (position, arg) in signature.output_arg.iter_mut().enumerate() {
            if let Some(value) = freezer.value(flow.class_of_result(index, position)) {
                arg.r#type = type_number(value.dtype);
            }
        }
    }
    Parts {
        nodes: freezer.nodes(GRAPH).0,
        functions,
        producer_version: parts.producer_version,
    }
}

/// What tensors of a class carry instead of a handle.
#[derive(Debug)]
struct Carried {
    dtype: DType,
    shape: PartialShape,
}

struct Freezer<'a> {
    flow: &'a Flow<'a>,
    classes: HashMap<u32, Carried>,
    frozen: &'a BTreeMap<String, (DType, PartialShape)>,
}

impl Freezer<'_> {
    fn value(&self, class: Option<u32>) -> Option<&Carried> {
        self.classes.get(&class?)
    }

    /// Returns the nodes of a scope, changed, and tensors of a function that have new names: they
    /// contain the names of outputs, which other ops call otherwise.
    fn nodes(&self, scope: usize) -> (Vec<NodeDef>, HashMap<String, String>) {
        let old = self.flow.nodes(scope);
        let mut added = Vec::new();
        let mut renamed = HashMap::new();
        let mut nodes: Vec<NodeDef> = Vec::with_capacity(old.len());
        for (index, node) in old.iter().enumerate() {
            let changed = self.node((scope, index), node.clone(), &mut added);
            let output = match op(node) {
                "ReadVariableOp" => "value",
                "VarIsInitializedOp" => "is_initialized",
                _ => "output",
            };
            if scope != GRAPH && output != "output" && op(&changed) != op(node) {
                let name = name(node);
                let new = format!("{name}:output:0");
                renamed.insert(format!("{name}:{output}:0"), new.clone());
                renamed.insert(format!("{name}:{output}"), new);
            }
            nodes.push(changed);
        }
        nodes.append(&mut added);
        if !renamed.is_empty() {
            for input in nodes.iter_mut().flat_map(|node| &mut node.input) {
                let text = std::str::from_utf8(input).unwrap_or_default();
                if let Some(tensor) = renamed.get(text) {
                    *input = tensor.clone().into();
                }
            }
        }
        (nodes, renamed)
    }

    fn node(&self, at: NodeAt, mut node: NodeDef, added: &mut Vec<NodeDef>) -> NodeDef {
        let inputs: Vec<Option<&Carried>> = data_inputs(&node)
            .map(|tensor| self.value(self.flow.class_of(at.0, tensor)))
            .collect();
        if at.0 == GRAPH
            && op(&node) == "VarHandleOp"
            && let Some((dtype, _)) = self.frozen.get(name(&node))
        {
            make_constant(&mut node, *dtype);
            return node;
        }
        if reads_variable(op(&node)) {
            match inputs.first().copied().flatten() {
                Some(value) => make_read(at.0, &mut node, value.dtype, added),
                None if op(&node).starts_with("ResourceGather") => {
                    make_read_and_gather(at.0, &mut node, added);
                }
                None => {}
            }
            return node;
        }
        let output = |slot| self.value(self.flow.class_of_output(at, slot));
        let mut is_changed = inputs.iter().any(Option::is_some);
        match self.flow.passing(&node) {
            Passing::EachInput if op(&node) == "IdentityN" => {
                for (slot, value) in inputs.iter().enumerate() {
                    if let Some(value) = value {
                        set_type_of(&mut node, "T", slot, value.dtype);
                    }
                }
            }
            Passing::EachInput | Passing::Switch | Passing::Merge => {
                if let Some(value) = inputs.first().copied().flatten() {
                    set_type(&mut node, "T", value.dtype);
                }
            }
            Passing::Call { first, functions } => {
                for (position, value) in inputs.iter().enumerate().skip(first) {
                    if let Some(value) = value {
                        set_type_of(&mut node, "Tin", position - first, value.dtype);
                    }
                }
                for slot in 0..self.n_results(&functions) {
                    if let Some(value) = output(slot) {
                        set_type_of(&mut node, "Tout", slot, value.dtype);
                        let shape = shape_proto(&value.shape);
                        set_shape_of(&mut node, "output_shapes", slot, &shape);
                        is_changed = true;
                    }
                }
            }
            Passing::While { .. } => {
                for (position, value) in inputs.iter().enumerate() {
                    if let Some(value) = value {
                        set_type_of(&mut node, "T", position, value.dtype);
                        let shape = shape_proto(&value.shape);
                        set_shape_of(&mut node, "output_shapes", position, &shape);
                    }
                }
            }
            Passing::No => {}
        }
        if is_changed {
            remove_attr(&mut node, OUTPUT_SHAPES);
        }
        node
    }

    fn n_results(&self, functions: &[usize]) -> usize {
        let function = functions.first();
        function.map_or(0, |&function| self.flow.n_results(function))
    }
}

/// Makes a constant of a variable. Its value comes beside the graph.
fn make_constant(node: &mut NodeDef, dtype: DType) {
    node.op = Bytes::from_static(b"Const");
    node.attr.retain(|entry| entry.key == b"_class"[..]);
    set_type(node, "dtype", dtype);
}

/// Makes a node that reads a value of one that reads a variable.
fn make_read(scope: usize, node: &mut NodeDef, dtype: DType, added: &mut Vec<NodeDef>) {
    match op(node) {
        "ReadVariableOp" => become_op(node, "Identity", "T", dtype),
        "VariableShape" => become_op(node, "Shape", "T", dtype),
        "ResourceGather" | "ResourceGatherNd" => make_gather(scope, node, dtype, added),
        _ => {
            // A constant is initialised.
            let made = constant(name(node), DType::Bool, |tensor| {
                tensor.bool_val = vec![true];
            });
            node.input.retain(|input| input.starts_with(b"^"));
            node.op = made.op;
            node.attr = made.attr;
        }
    }
}

/// Makes a node that gathers from a value of one that gathers from a variable.
fn make_gather(scope: usize, node: &mut NodeDef, dtype: DType, added: &mut Vec<NodeDef>) {
    if op(node) == "ResourceGatherNd" {
        become_op(node, "GatherNd", "Tparams", dtype);
        return;
    }
    become_op(node, "GatherV2", "Tparams", dtype);
    remove_attr(node, "validate_indices");
    set_type(node, "Taxis", DType::I32);
    let axis = match attr(node, "batch_dims") {
        Some(Value::I(batch_dims)) => batch_dims,
        _ => 0,
    };
    let constant = constant(&format!("{}/axis", name(node)), DType::I32, |tensor| {
        tensor.int_val = vec![i32::try_from(axis).unwrap_or(i32::MAX)];
    });
    let n_data = data_inputs(node).count();
    let tensor = output_text(scope, name(&constant), "output");
    node.input.insert(n_data, tensor.into());
    added.push(constant);
}

/// Makes a node that reads a variable and gathers from the value of one that gathers from the
/// variable. What waits for the gather also waits for the read.
fn make_read_and_gather(scope: usize, node: &mut NodeDef, added: &mut Vec<NodeDef>) {
    let (Some(dtype), Some(handle)) = (type_attr(node, "dtype"), node.input.first().cloned())
    else {
        return;
    };
    let mut read = new_node(format!("{}/read", name(node)), "ReadVariableOp", Vec::new());
    read.device = node.device.clone();
    let controls = node.input.iter().filter(|input| input.starts_with(b"^"));
    read.input = std::iter::once(handle).chain(controls.cloned()).collect();
    set_type(&mut read, "dtype", dtype);
    if let Some(params) = node.input.first_mut() {
        *params = output_text(scope, name(&read), "value").into();
    }
    added.push(read);
    make_gather(scope, node, dtype, added);
}

/// Returns the name of output 0 of a node, as readers of its scope write it.
fn output_text(scope: usize, node: &str, output: &str) -> String {
    match scope {
        GRAPH => node.to_owned(),
        _ => format!("{node}:{output}:0"),
    }
}

/// Changes the op of a node that has read a variable.
fn become_op(node: &mut NodeDef, op: &'static str, type_of: &'static str, dtype: DType) {
    node.op = Bytes::from_static(op.as_bytes());
    remove_attr(node, "dtype");
    set_type(node, type_of, dtype);
}

/// Makes a constant of one element.
fn constant(name: &str, dtype: DType, fill: impl FnOnce(&mut TensorProto)) -> NodeDef {
    let mut node = new_node(name.to_owned(), "Const", Vec::new());
    let mut tensor = TensorProto {
        dtype: type_number(dtype),
        tensor_shape: Some(TensorShapeProto::default()),
        ..TensorProto::default()
    };
    fill(&mut tensor);
    set_type(&mut node, "dtype", dtype);
    set_attr(&mut node, "value", Value::Tensor(Box::new(tensor)));
    node
}
