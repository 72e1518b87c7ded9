//! Makes resource variables of the reference variables of TensorFlow 1.
//!
//! A node that TensorFlow gives a reference gets the handle of a resource. A node that reads the
//! value behind a reference gets a `ReadVariableOp` of its own, which waits for the other inputs of
//! the node: TensorFlow reads the value when the node starts. No later stage knows references.

use std::borrow::Cow;

use bytes::Bytes;
use hashbrown::HashMap;
use hashbrown::HashSet;

use super::proto::NodeDef;
use super::proto::TensorShapeProto;
use super::proto::Value;
use super::rewrite::attr;
use super::rewrite::by_name;
use super::rewrite::data_inputs;
use super::rewrite::name;
use super::rewrite::new_node;
use super::rewrite::op;
use super::rewrite::producer;
use super::rewrite::remove_attr;
use super::rewrite::set_attr;
use super::rewrite::set_type;
use super::rewrite::split;
use super::rewrite::type_attr;
use crate::tensor::DType;

/// Attribute that tells the shapes of outputs, for debugging.
const OUTPUT_SHAPES: &str = "_output_shapes";

/// What an op does with the reference that is its input 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It makes a reference: a variable.
    Variable,
    /// It passes references on. The op that passes other tensors on does the same with handles.
    Passes(&'static str),
    /// It changes the variable, and returns the reference. This op changes a resource.
    Changes(&'static str),
    /// It returns something else. This op does the same with a resource.
    Asks(&'static str),
}

fn role(op: &str) -> Option<Role> {
    Some(match op {
        "Variable" | "VariableV2" => Role::Variable,
        "RefEnter" => Role::Passes("Enter"),
        "RefExit" => Role::Passes("Exit"),
        "RefIdentity" => Role::Passes("Identity"),
        "RefMerge" => Role::Passes("Merge"),
        "RefNextIteration" => Role::Passes("NextIteration"),
        "RefSwitch" => Role::Passes("Switch"),
        "ApplyGradientDescent" => Role::Changes("ResourceApplyGradientDescent"),
        "Assign" => Role::Changes("AssignVariableOp"),
        "AssignAdd" => Role::Changes("AssignAddVariableOp"),
        "AssignSub" => Role::Changes("AssignSubVariableOp"),
        "ScatterAdd" => Role::Changes("ResourceScatterAdd"),
        "ScatterDiv" => Role::Changes("ResourceScatterDiv"),
        "ScatterMax" => Role::Changes("ResourceScatterMax"),
        "ScatterMin" => Role::Changes("ResourceScatterMin"),
        "ScatterMul" => Role::Changes("ResourceScatterMul"),
        "ScatterNdAdd" => Role::Changes("ResourceScatterNdAdd"),
        "ScatterNdMax" => Role::Changes("ResourceScatterNdMax"),
        "ScatterNdMin" => Role::Changes("ResourceScatterNdMin"),
        "ScatterNdSub" => Role::Changes("ResourceScatterNdSub"),
        "ScatterNdUpdate" => Role::Changes("ResourceScatterNdUpdate"),
        "ScatterSub" => Role::Changes("ResourceScatterSub"),
        "ScatterUpdate" => Role::Changes("ResourceScatterUpdate"),
        "StridedSliceAssign" => Role::Changes("ResourceStridedSliceAssign"),
        "CountUpTo" => Role::Asks("ResourceCountUpTo"),
        "IsVariableInitialized" => Role::Asks("VarIsInitializedOp"),
        _ => return None,
    })
}

/// A node whose output is a reference.
#[derive(Debug, Clone)]
struct Referring {
    /// The variable that it comes from.
    root: usize,
    /// The handle behind output 0, unless the output becomes a handle itself.
    handle: Option<Bytes>,
}

/// Replaces reference variables, and all uses of them. Other nodes stay as they are, also uses of
/// references that no variable makes, which the importer refuses.
pub(super) fn to_resources(nodes: &mut Vec<NodeDef>) {
    if !nodes
        .iter()
        .any(|node| role(op(node)) == Some(Role::Variable))
    {
        return;
    }
    let old = std::mem::take(nodes);
    let mut rewriter = Rewriter {
        nodes: &old,
        by_name: by_name(&old),
        referring: HashMap::new(),
        of_any_shape: HashSet::new(),
        made: HashSet::new(),
        new: Vec::with_capacity(old.len()),
    };
    rewriter.follow();
    for (index, node) in old.iter().enumerate() {
        rewriter.add(index, node);
    }
    *nodes = rewriter.new;
}

struct Rewriter<'a> {
    nodes: &'a [NodeDef],
    by_name: HashMap<&'a str, usize>,
    /// By position.
    referring: HashMap<usize, Referring>,
    /// Variables that are assigned values of any shape.
    of_any_shape: HashSet<usize>,
    /// Names of new nodes.
    made: HashSet<String>,
    new: Vec<NodeDef>,
}

impl Rewriter<'_> {
    /// Follows references from the variables on.
    fn follow(&mut self) {
        let mut users: HashMap<usize, Vec<(usize, usize)>> = HashMap::new();
        let mut found = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let n_references = match role(op(node)) {
                Some(Role::Variable) => {
                    let handle = self.unique(&format!("{}/handle", name(node)));
                    let handle = Some(handle.into());
                    self.referring.insert(
                        index,
                        Referring {
                            root: index,
                            handle,
                        },
                    );
                    found.push(index);
                    continue;
                }
                Some(Role::Passes("Merge")) => usize::MAX,
                Some(Role::Passes(_) | Role::Changes(_)) => 1,
                Some(Role::Asks(_)) | None => continue,
            };
            for tensor in data_inputs(node).take(n_references) {
                let (producer, slot) = split(tensor);
                if let Some(&producer) = self.by_name.get(producer) {
                    users.entry(producer).or_default().push((index, slot));
                }
            }
        }
        while let Some(at) = found.pop() {
            for &(user, slot) in users.get(&at).into_iter().flatten() {
                if self.referring.contains_key(&user) || !self.is_reference(at, slot) {
                    continue;
                }
                let node = &self.nodes[user];
                let root = self.referring[&at].root;
                let handle = match role(op(node)) {
                    Some(Role::Changes(_)) => Some(self.handle(at, slot)),
                    _ => None,
                };
                if op(node) == "Assign" && !validates_shape(node) {
                    self.of_any_shape.insert(root);
                }
                self.referring.insert(user, Referring { root, handle });
                found.push(user);
            }
        }
    }

    /// Returns whether output `slot` of a node is a reference.
    fn is_reference(&self, at: usize, slot: usize) -> bool {
        let n_references = match op(&self.nodes[at]) {
            "RefSwitch" => 2,
            _ => 1,
        };
        slot < n_references && self.referring.contains_key(&at)
    }

    /// Returns the node and output that an input names, if it is a reference.
    fn reference(&self, tensor: &str) -> Option<(usize, usize)> {
        let (producer, slot) = split(tensor);
        let at = *self.by_name.get(producer)?;
        self.is_reference(at, slot).then_some((at, slot))
    }

    /// Returns the tensor that is the handle of a reference.
    fn handle(&self, at: usize, slot: usize) -> Bytes {
        match &self.referring[&at].handle {
            Some(handle) => handle.clone(),
            None => format!("{}:{slot}", name(&self.nodes[at])).into(),
        }
    }

    /// Returns the control input that a user of a reference needs: what has changed the variable.
    fn wait(&self, at: usize) -> Option<Bytes> {
        let node = &self.nodes[at];
        let is_changed = matches!(role(op(node)), Some(Role::Changes(_)));
        is_changed.then(|| format!("^{}", name(node)).into())
    }

    fn unique(&mut self, wanted: &str) -> String {
        let mut unique = wanted.to_owned();
        let mut number = 0;
        while self.by_name.contains_key(unique.as_str()) || self.made.contains(&unique) {
            number += 1;
            unique = format!("{wanted}_{number}");
        }
        self.made.insert(unique.clone());
        unique
    }

    /// Adds what a node becomes.
    fn add(&mut self, index: usize, node: &NodeDef) {
        let role = role(op(node));
        if role == Some(Role::Variable) {
            self.add_variable(index, node);
            return;
        }
        let references: Vec<Option<(usize, usize)>> = data_inputs(node)
            .map(|tensor| self.reference(tensor))
            .collect();
        if references.iter().all(Option::is_none) {
            self.new.push(node.clone());
            return;
        }
        let n_handles = match role {
            Some(Role::Passes("Merge")) => references.len(),
            Some(_) => 1,
            None => 0,
        };
        // An op on a reference that gets another tensor stays, for the importer's error.
        let n_handles = match references.first() {
            Some(Some(_)) => n_handles,
            _ => 0,
        };
        let mut made = node.clone();
        let mut waits = Vec::new();
        for (input, reference) in made.input.iter_mut().zip(&references).take(n_handles) {
            if let &Some((at, slot)) = reference {
                *input = self.handle(at, slot);
                waits.extend(self.wait(at));
            }
        }
        if let ("Identity", &[Some(reference)]) = (op(node), &references[..]) {
            self.add_identity(made, reference);
            return;
        }
        self.add_reads(node, &mut made, &references, n_handles);
        made.input.extend(waits);
        match role.filter(|_| n_handles > 0) {
            Some(Role::Passes(op)) => {
                made.op = Bytes::from_static(op.as_bytes());
                set_type(&mut made, "T", DType::Resource);
                remove_attr(&mut made, OUTPUT_SHAPES);
                self.new.push(made);
            }
            Some(Role::Asks(op)) => {
                made.op = Bytes::from_static(op.as_bytes());
                remove_attr(&mut made, "dtype");
                self.new.push(made);
            }
            Some(Role::Changes(op)) => self.add_change(made, op, node),
            Some(Role::Variable) | None => self.new.push(made),
        }
    }

    /// Adds a resource, and a node of the variable's name that reads it.
    fn add_variable(&mut self, index: usize, node: &NodeDef) {
        let handle = self.handle(index, 0);
        let mut resource = new_node(String::new(), "VarHandleOp", Vec::new());
        resource.name = handle.clone();
        resource.device = node.device.clone();
        resource.attr.clone_from(&node.attr);
        let is_named =
            matches!(attr(node, "shared_name"), Some(Value::S(name)) if !name.is_empty());
        if !is_named {
            set_attr(&mut resource, "shared_name", Value::S(node.name.clone()));
        }
        let is_scalar = match attr(node, "shape") {
            Some(Value::Shape(shape)) => shape.dim.is_empty(),
            _ => false,
        };
        // The first version of the op writes `[]` for an unknown shape.
        let is_any = op(node) == "Variable" && is_scalar || self.of_any_shape.contains(&index);
        if is_any {
            let unknown = TensorShapeProto {
                dim: Vec::new(),
                unknown_rank: true,
            };
            set_attr(&mut resource, "shape", Value::Shape(unknown));
        }
        for key in ["_class", OUTPUT_SHAPES] {
            remove_attr(&mut resource, key);
        }
        self.new.push(resource);
        let mut read = node.clone();
        read.op = Bytes::from_static(b"ReadVariableOp");
        read.input.insert(0, handle);
        for key in ["shape", "container", "shared_name"] {
            remove_attr(&mut read, key);
        }
        self.new.push(read);
    }

    /// Makes a read of an `Identity`.
    fn add_identity(&mut self, mut made: NodeDef, (at, slot): (usize, usize)) {
        made.op = Bytes::from_static(b"ReadVariableOp");
        made.input[0] = self.handle(at, slot);
        made.input.extend(self.wait(at));
        if let Some(dtype) = type_attr(&made, "T") {
            set_type(&mut made, "dtype", dtype);
        }
        remove_attr(&mut made, "T");
        self.new.push(made);
    }

    /// Adds reads of the references among the data inputs from `first` on.
    fn add_reads(
        &mut self,
        node: &NodeDef,
        made: &mut NodeDef,
        references: &[Option<(usize, usize)>],
        first: usize,
    ) {
        if references[first..].iter().all(Option::is_none) {
            return;
        }
        let controls = self.controls(node, references);
        let mut reads: HashMap<(usize, usize), Bytes> = HashMap::new();
        for (input, reference) in made.input.iter_mut().zip(references).skip(first) {
            let &Some((at, slot)) = reference else {
                continue;
            };
            if let Some(read) = reads.get(&(at, slot)) {
                *input = read.clone();
                continue;
            }
            let unique = self.unique(&format!("{}/read", name(node)));
            let mut read = new_node(unique, "ReadVariableOp", Vec::new());
            read.device = self.nodes[at].device.clone();
            read.input.push(self.handle(at, slot));
            read.input.extend(controls.iter().cloned());
            let source = &self.nodes[at];
            if let Some(dtype) = type_attr(source, "T").or_else(|| type_attr(source, "dtype")) {
                set_type(&mut read, "dtype", dtype);
            }
            *input = read.name.clone();
            reads.insert((at, slot), read.name.clone());
            self.new.push(read);
        }
    }

    /// Returns the control inputs of a read for a node: what the node itself waits for.
    fn controls(&self, node: &NodeDef, references: &[Option<(usize, usize)>]) -> Vec<Bytes> {
        let mut controls: Vec<Bytes> = Vec::new();
        for (tensor, reference) in data_inputs(node).zip(references) {
            match *reference {
                Some((at, _)) => controls.extend(self.wait(at)),
                // A merge waits for one of its inputs, and constants are there from the start.
                None if op(node) == "Merge" => {}
                None => {
                    let producer = producer(tensor);
                    let at = self.by_name.get(producer);
                    let of = at.map_or("", |&at| op(&self.nodes[at]));
                    if !matches!(of, "Const" | "Placeholder") {
                        controls.push(format!("^{producer}").into());
                    }
                }
            }
        }
        let own = node.input.iter().filter(|input| input.starts_with(b"^"));
        controls.extend(own.cloned());
        let mut seen = HashSet::new();
        controls.retain(|control| seen.insert(control.clone()));
        controls
    }

    /// Adds a node that changes a resource, and one of the old name that reads it.
    fn add_change(&mut self, mut made: NodeDef, op: &'static str, node: &NodeDef) {
        let dtype = type_attr(node, "T");
        made.op = Bytes::from_static(op.as_bytes());
        made.name = self.unique(&format!("{}/change", name(node))).into();
        remove_attr(&mut made, OUTPUT_SHAPES);
        // Ops on one shape of update call the type of the variable `dtype`.
        let is_nested = op.starts_with("ResourceScatterNd");
        if op.starts_with("Assign") || op.starts_with("ResourceScatter") && !is_nested {
            if let Some(dtype) = dtype {
                set_type(&mut made, "dtype", dtype);
            }
            for key in ["T", "use_locking", "validate_shape"] {
                remove_attr(&mut made, key);
            }
        }
        if op == "AssignVariableOp" {
            set_attr(&mut made, "validate_shape", Value::B(validates_shape(node)));
        }
        if op == "ResourceStridedSliceAssign" {
            remove_attr(&mut made, "use_locking");
        }
        let handle = made.input[0].clone();
        let after: Cow<'_, str> = String::from_utf8_lossy(&made.name);
        let mut read = new_node(String::new(), "ReadVariableOp", Vec::new());
        read.name = node.name.clone();
        read.device = node.device.clone();
        read.input = vec![handle, format!("^{after}").into()];
        if let Some(dtype) = dtype {
            set_type(&mut read, "dtype", dtype);
        }
        self.new.push(made);
        self.new.push(read);
    }
}

/// Returns whether an `Assign` refuses values of another shape than the variable's.
fn validates_shape(node: &NodeDef) -> bool {
    !matches!(attr(node, "validate_shape"), Some(Value::B(false)))
}
