//! Where resources flow: which variables the inputs of a node may be, through calls, branches and
//! loops.
//!
//! Tensors that are passed on unchanged share a class: both sides of an `Identity`, argument and
//! parameter of a call. A class that several calls of one function join has several variables. Time
//! is linear in the graph and in the functions that it reaches, however they call each other.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use crate::import::Parts;
use crate::import::proto::FunctionDef;
use crate::import::proto::NodeDef;
use crate::import::proto::Value;
use crate::import::rewrite::attr;
use crate::import::rewrite::by_name;
use crate::import::rewrite::data_inputs;
use crate::import::rewrite::functions_of;
use crate::import::rewrite::name;
use crate::import::rewrite::op;
use crate::import::rewrite::split;

/// The graph itself among the scopes; function `i` of the library is scope `i + 1`.
pub(super) const GRAPH: usize = 0;

/// A node: scope and position in it.
pub(super) type NodeAt = (usize, usize);

/// What the tensors of a class may be.
#[derive(Debug, Clone, Default)]
pub(super) struct Class {
    /// Variables, as `VarHandleOp` nodes.
    pub(super) variables: BTreeSet<NodeAt>,
    /// Outputs of `RestoreV2` nodes.
    pub(super) restored: BTreeSet<(NodeAt, usize)>,
    /// Whether a tensor may come from elsewhere.
    pub(super) has_other_source: bool,
    /// A node that does more than read the variable.
    pub(super) changed_by: Option<String>,
}

/// How a node passes resources on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Passing {
    /// Input `i` is output `i`: `Identity`, `IdentityN`, `Enter`, `Exit`, `NextIteration`.
    EachInput,
    /// Input 0 is every output.
    Switch,
    /// Every input is output 0.
    Merge,
    /// Inputs from `first` on are arguments of each function; results are outputs.
    Call {
        /// The functions, by their position in the library.
        functions: Vec<usize>,
        first: usize,
    },
    /// Inputs are arguments of both functions, and results of the second one.
    While { cond: usize, body: usize },
    /// It passes nothing on.
    No,
}

/// Classes of all tensors that nodes read.
pub(super) struct Flow<'a> {
    parts: &'a Parts,
    functions: HashMap<&'a str, usize>,
    ids: HashMap<(usize, String), u32>,
    /// Parents in the union-find forest.
    parents: Vec<u32>,
    classes: Vec<Class>,
    /// Scopes that are reached, in the order in which they were found.
    pub(super) scopes: Vec<usize>,
    is_reached: Vec<bool>,
}

impl<'a> Flow<'a> {
    /// Follows the resources of a graph, of which all nodes are used.
    pub(super) fn new(parts: &'a Parts) -> Self {
        let names = parts.functions.iter().map(function_name);
        let mut flow = Self {
            parts,
            functions: names.zip(0..).collect(),
            ids: HashMap::new(),
            parents: Vec::new(),
            classes: Vec::new(),
            scopes: vec![GRAPH],
            is_reached: vec![false; parts.functions.len() + 1],
        };
        flow.is_reached[GRAPH] = true;
        let mut next = 0;
        while let Some(&scope) = flow.scopes.get(next) {
            flow.add_scope(scope);
            next += 1;
        }
        flow.mark_other_sources();
        flow
    }

    /// Returns the nodes of a scope.
    pub(super) fn nodes(&self, scope: usize) -> &'a [NodeDef] {
        match scope.checked_sub(1) {
            None => &self.parts.nodes,
            Some(function) => &self.parts.functions[function].node_def,
        }
    }

    /// Returns the class of a tensor that is named as an input.
    pub(super) fn class_of(&self, scope: usize, tensor: &str) -> Option<u32> {
        let id = self.ids.get(&(scope, key(scope, tensor)))?;
        Some(self.root(*id))
    }

    /// Returns the class of an output of a node; `None` if nothing reads it.
    pub(super) fn class_of_output(&self, at: NodeAt, slot: usize) -> Option<u32> {
        let id = self.ids.get(&(at.0, self.output_key(at, slot)?))?;
        Some(self.root(*id))
    }

    /// Returns the class of a parameter of a function.
    pub(super) fn class_of_argument(&self, function: usize, index: usize) -> Option<u32> {
        let name = argument(&self.parts.functions[function], index)?;
        self.class_of(function + 1, name)
    }

    /// Returns the class of a result of a function.
    pub(super) fn class_of_result(&self, function: usize, index: usize) -> Option<u32> {
        let tensor = result(&self.parts.functions[function], index)?;
        self.class_of(function + 1, tensor)
    }

    /// Returns the number of results of a function.
    pub(super) fn n_results(&self, function: usize) -> usize {
        let signature = self.parts.functions[function].signature.as_ref();
        signature.map_or(0, |signature| signature.output_arg.len())
    }

    /// Returns what is known of a class.
    pub(super) fn class(&self, class: u32) -> &Class {
        &self.classes[class as usize]
    }

    /// Returns how a node passes resources on.
    pub(super) fn passing(&self, node: &NodeDef) -> Passing {
        let find = |wanted: &[&str]| -> Option<Vec<usize>> {
            let named = functions_of(node);
            let named = named
                .iter()
                .filter(|(key, _)| wanted.contains(&key.as_str()));
            named
                .map(|(_, name)| self.functions.get(name.as_str()).copied())
                .collect()
        };
        let call = |functions: Option<Vec<usize>>, first| match functions {
            Some(functions) if !functions.is_empty() => Passing::Call { functions, first },
            _ => Passing::No,
        };
        match op(node) {
            "Identity" | "IdentityN" | "Enter" | "Exit" | "NextIteration" => Passing::EachInput,
            "Switch" => Passing::Switch,
            "Merge" => Passing::Merge,
            "PartitionedCall" | "StatefulPartitionedCall" => call(find(&["f"]), 0),
            "If" | "StatelessIf" => call(find(&["then_branch", "else_branch"]), 1),
            "Case" | "StatelessCase" => call(find(&["branches"]), 1),
            "While" | "StatelessWhile" => {
                let (cond, body) = (find(&["cond"]), find(&["body"]));
                match (cond.as_deref(), body.as_deref()) {
                    (Some(&[cond]), Some(&[body])) => Passing::While { cond, body },
                    _ => Passing::No,
                }
            }
            op => match self.functions.get(op) {
                Some(&function) if has_plain_arguments(&self.parts.functions[function]) => {
                    Passing::Call {
                        functions: vec![function],
                        first: 0,
                    }
                }
                _ => Passing::No,
            },
        }
    }

    fn root(&self, mut id: u32) -> u32 {
        while self.parents[id as usize] != id {
            id = self.parents[id as usize];
        }
        id
    }

    /// Returns the id of a tensor. What nodes that pass nothing on produce has another source.
    fn id(&mut self, scope: usize, key: String) -> u32 {
        if let Some(&id) = self.ids.get(&(scope, key.clone())) {
            return id;
        }
        let id = u32::try_from(self.parents.len()).unwrap_or(u32::MAX);
        self.ids.insert((scope, key), id);
        self.parents.push(id);
        self.classes.push(Class::default());
        id
    }

    fn input(&mut self, scope: usize, tensor: &str) -> u32 {
        self.id(scope, key(scope, tensor))
    }

    fn join(&mut self, left: u32, right: u32) {
        let (left, right) = (self.root(left), self.root(right));
        if left == right {
            return;
        }
        // The larger class stays, so paths are short.
        let size = |class: &Class| class.variables.len() + class.restored.len();
        let is_left_larger = size(self.class(left)) >= size(self.class(right));
        let (kept, other) = match is_left_larger {
            true => (left, right),
            false => (right, left),
        };
        self.parents[other as usize] = kept;
        let moved = std::mem::take(&mut self.classes[other as usize]);
        let kept = &mut self.classes[kept as usize];
        kept.variables.extend(moved.variables);
        kept.restored.extend(moved.restored);
        kept.has_other_source |= moved.has_other_source;
        kept.changed_by = kept.changed_by.take().or(moved.changed_by);
    }

    fn facts(&mut self, id: u32) -> &mut Class {
        let root = self.root(id);
        &mut self.classes[root as usize]
    }

    fn reach(&mut self, function: usize) {
        if !std::mem::replace(&mut self.is_reached[function + 1], true) {
            self.scopes.push(function + 1);
        }
    }

    /// Returns the key of an output, as readers of its scope name it.
    fn output_key(&self, at: NodeAt, slot: usize) -> Option<String> {
        let node = &self.nodes(at.0)[at.1];
        let name = name(node);
        if at.0 == GRAPH {
            return Some(format!("{name}:{slot}"));
        }
        let (output, index) = match (op(node), slot) {
            ("Switch", 0) => ("output_false", 0),
            ("Switch", _) => ("output_true", 0),
            ("Merge", 1) => ("value_index", 0),
            ("VarHandleOp", _) => ("resource", 0),
            ("RestoreV2", _) => ("tensors", slot),
            (op, _) => match self.functions.get(op) {
                Some(&function) => {
                    let signature = self.parts.functions[function].signature.as_ref()?;
                    (signature.output_arg.get(slot)?.name.as_str(), 0)
                }
                None => ("output", slot),
            },
        };
        Some(format!("{name}:{output}:{index}"))
    }

    fn output(&mut self, at: NodeAt, slot: usize) -> Option<u32> {
        let key = self.output_key(at, slot)?;
        Some(self.id(at.0, key))
    }

    fn add_scope(&mut self, scope: usize) {
        for (index, node) in self.nodes(scope).iter().enumerate() {
            self.add_node((scope, index), node);
        }
    }

    fn add_node(&mut self, at: NodeAt, node: &NodeDef) {
        let inputs: Vec<u32> = data_inputs(node)
            .map(|tensor| self.input(at.0, tensor))
            .collect();
        match self.passing(node) {
            Passing::EachInput => {
                for (slot, &input) in inputs.iter().enumerate() {
                    self.join_output(at, slot, input);
                }
            }
            Passing::Switch => {
                if let Some(&input) = inputs.first() {
                    self.join_output(at, 0, input);
                    self.join_output(at, 1, input);
                }
                self.change(&inputs[inputs.len().min(1)..], node);
            }
            Passing::Merge => inputs
                .iter()
                .for_each(|&input| self.join_output(at, 0, input)),
            Passing::Call { functions, first } => {
                let (others, arguments) = inputs.split_at(first.min(inputs.len()));
                self.change(others, node);
                for function in functions {
                    self.reach(function);
                    self.join_arguments(arguments, function, node);
                    for (slot, result) in self.results(function).into_iter().enumerate() {
                        self.join_output(at, slot, result);
                    }
                }
            }
            Passing::While { cond, body } => {
                for function in [cond, body] {
                    self.reach(function);
                    self.join_arguments(&inputs, function, node);
                }
                for (slot, result) in self.results(body).into_iter().enumerate() {
                    self.join_output(at, slot, result);
                    if let Some(&input) = inputs.get(slot) {
                        self.join(input, result);
                    }
                }
            }
            Passing::No => {
                let n_read = usize::from(reads_variable(op(node))).min(inputs.len());
                self.change(&inputs[n_read..], node);
                self.source(at, node);
                for (_, function) in functions_of(node) {
                    self.call_from_elsewhere(&function);
                }
                self.call_from_elsewhere(op(node));
            }
        }
    }

    fn join_output(&mut self, at: NodeAt, slot: usize, other: u32) {
        if let Some(output) = self.output(at, slot) {
            self.join(output, other);
        }
    }

    /// Records what a node produces.
    fn source(&mut self, at: NodeAt, node: &NodeDef) {
        match op(node) {
            "VarHandleOp" => {
                if let Some(output) = self.output(at, 0) {
                    self.facts(output).variables.insert(at);
                }
            }
            "RestoreV2" => {
                let n_outputs = match attr(node, "dtypes") {
                    Some(Value::List(list)) => list.r#type.len(),
                    _ => 0,
                };
                for slot in 0..n_outputs {
                    if let Some(output) = self.output(at, slot) {
                        self.facts(output).restored.insert((at, slot));
                    }
                }
            }
            _ => {}
        }
    }

    /// Records that a node does more with these tensors than read a variable.
    fn change(&mut self, tensors: &[u32], node: &NodeDef) {
        for &tensor in tensors {
            let changed_by = &mut self.facts(tensor).changed_by;
            changed_by.get_or_insert_with(|| name(node).to_owned());
        }
    }

    fn join_arguments(&mut self, inputs: &[u32], function: usize, node: &NodeDef) {
        let definition = &self.parts.functions[function];
        let n_arguments = definition
            .signature
            .as_ref()
            .map_or(0, |s| s.input_arg.len());
        if n_arguments != inputs.len() || !has_plain_arguments(definition) {
            // The importer or the lowering reports it, or it is a list of arguments.
            self.change(inputs, node);
            self.call_from_elsewhere(function_name(definition));
            return;
        }
        for (index, &input) in inputs.iter().enumerate() {
            if let Some(name) = argument(definition, index) {
                let parameter = self.input(function + 1, name);
                self.join(parameter, input);
            }
        }
    }

    /// Records that the arguments of a function may be anything.
    fn call_from_elsewhere(&mut self, function: &str) {
        let Some(&function) = self.functions.get(function) else {
            return;
        };
        self.reach(function);
        let definition = &self.parts.functions[function];
        for index in 0.. {
            let Some(name) = argument(definition, index) else {
                break;
            };
            let parameter = self.input(function + 1, name);
            self.facts(parameter).has_other_source = true;
        }
        for result in self.results(function) {
            let changed_by = &mut self.facts(result).changed_by;
            changed_by.get_or_insert_with(|| function_name(definition).to_owned());
        }
    }

    fn results(&mut self, function: usize) -> Vec<u32> {
        let definition = &self.parts.functions[function];
        let tensors = (0..).map_while(|index| result(definition, index));
        let tensors: Vec<&str> = tensors.collect();
        tensors
            .into_iter()
            .map(|tensor| self.input(function + 1, tensor))
            .collect()
    }

    /// Marks tensors that come from nodes that neither are variables nor pass them on.
    fn mark_other_sources(&mut self) {
        let by_name: HashMap<usize, HashMap<&str, usize>> = self
            .scopes
            .iter()
            .map(|&scope| (scope, by_name(self.nodes(scope))))
            .collect();
        let is_other = |(scope, key): &(usize, String)| {
            // Parameters of functions have no output; calls join them with their arguments.
            let Some((producer, _)) = key.split_once(':') else {
                return false;
            };
            let Some(&index) = by_name[scope].get(producer) else {
                return true;
            };
            let node = &self.nodes(*scope)[index];
            let is_source = matches!(op(node), "VarHandleOp" | "RestoreV2");
            !is_source && self.passing(node) == Passing::No
        };
        let others = self.ids.iter().filter(|(tensor, _)| is_other(tensor));
        let others: Vec<u32> = others.map(|(_, &id)| id).collect();
        for id in others {
            self.facts(id).has_other_source = true;
        }
    }
}

/// Returns whether an op only reads the variable that is its first input.
pub(super) fn reads_variable(op: &str) -> bool {
    matches!(
        op,
        "ReadVariableOp"
            | "ResourceGather"
            | "ResourceGatherNd"
            | "VariableShape"
            | "VarIsInitializedOp"
    )
}

/// Returns the form of a tensor's name that all readers share.
fn key(scope: usize, tensor: &str) -> String {
    if scope == GRAPH {
        let (node, slot) = split(tensor);
        return format!("{node}:{slot}");
    }
    // `node:output:index`, or an argument.
    match tensor.matches(':').count() {
        1 => format!("{tensor}:0"),
        _ => tensor.to_owned(),
    }
}

pub(super) fn function_name(function: &FunctionDef) -> &str {
    function
        .signature
        .as_ref()
        .map_or("", |signature| &signature.name)
}

fn argument(function: &FunctionDef, index: usize) -> Option<&str> {
    let signature = function.signature.as_ref()?;
    signature.input_arg.get(index).map(|arg| arg.name.as_str())
}

/// Returns the tensor of the body that is a result.
fn result(function: &FunctionDef, index: usize) -> Option<&str> {
    let signature = function.signature.as_ref()?;
    let name = &signature.output_arg.get(index)?.name;
    let mut returned = function.ret.iter();
    let entry = returned.find(|entry| entry.key == *name)?;
    Some(&entry.value)
}

/// Returns whether each argument and result is one tensor of a fixed type.
fn has_plain_arguments(function: &FunctionDef) -> bool {
    let signature = function.signature.iter();
    let mut args = signature.flat_map(|s| s.input_arg.iter().chain(&s.output_arg));
    args.all(|arg| {
        arg.type_attr.is_empty() && arg.number_attr.is_empty() && arg.type_list_attr.is_empty()
    })
}
