//! Makes a graph of a signature.

use std::collections::BTreeMap;
use std::path::Component;
use std::path::Path;

use bytes::Bytes;
use hashbrown::HashMap;
use hashbrown::HashSet;

use super::GraphSummary;
use super::MetaGraphDef;
use super::SavedModel;
use super::SavedModelError;
use super::SavedModelOptions;
use super::flow::Flow;
use super::freeze;
use super::prune::has_node;
use super::prune::only_needed;
use super::restore;
use super::restore::Source;
use super::signature::INIT_OP;
use crate::checkpoint::Checkpoint;
use crate::graph::Graph;
use crate::graph::Signature;
use crate::graph::Stored;
use crate::import;
use crate::import::ImportOptions;
use crate::import::Parts;
use crate::import::proto::NodeDef;
use crate::import::proto::Value;
use crate::import::rewrite::attr;
use crate::import::rewrite::name;
use crate::import::rewrite::new_node;
use crate::import::rewrite::op;
use crate::import::rewrite::producer;
use crate::import::rewrite::set_attr;
use crate::import::rewrite::set_type;
use crate::import::rewrite::type_attr;
use crate::import::rewrite::type_number;
use crate::import::rewrite::variable_of;
use crate::import::shape_of;
use crate::ops::OpRegistry;
use crate::tensor::DType;
use crate::tensor::Literal;
use crate::tensor::PartialShape;

/// The checkpoint in the folder of a model.
const VARIABLES: &str = "variables/variables";

/// The folder of assets in the folder of a model.
const ASSETS: &str = "assets";

/// Collections of TensorFlow 1 that name the op that initialises tables.
const INIT_COLLECTIONS: [&str; 2] = ["saved_model_main_op", "legacy_init_op"];

/// A signature of a SavedModel as a graph.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LoadedModel {
    /// What the signature needs, with its names of inputs and outputs ([`Graph::signature`]), and
    /// the nodes to run before anything else ([`Graph::init`]). Calls are not lowered.
    pub graph: Graph,
    /// The variables that the signature needs, by name.
    pub variables: Vec<VariableInfo>,
}

/// A variable of a SavedModel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VariableInfo {
    /// Its node.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its shape, as far as the graph determines it.
    pub shape: PartialShape,
    /// Whether it is a constant in the loaded graph.
    pub is_constant: bool,
    /// The tensor of the checkpoint that it is restored from.
    pub restored_from: Option<String>,
}

impl VariableInfo {
    /// Returns its bytes, if its shape is known.
    pub fn size_bytes(&self) -> Option<u64> {
        self.shape.size_bytes(self.dtype)
    }
}

/// The parts of a graph that a signature needs.
struct Needed {
    signature: Signature,
    parts: Parts,
    init_op: Option<String>,
    /// Per variable whether it is only read.
    variables: BTreeMap<String, bool>,
    sources: HashMap<String, Source>,
}

/// Returns the variables that become constants, with types and shapes.
fn frozen<'a>(
    variables: impl Iterator<Item = (&'a VariableInfo, PartialShape)>,
) -> BTreeMap<String, (DType, PartialShape)> {
    variables
        .filter(|(variable, _)| variable.is_constant)
        .map(|(variable, shape)| (variable.name.clone(), (variable.dtype, shape)))
        .collect()
}

impl Needed {
    /// Returns the graph as it is imported, except for what restores variables.
    fn loaded(&self, frozen: &BTreeMap<String, (DType, PartialShape)>) -> Parts {
        freeze::freeze(&self.parts, &Flow::new(&self.parts), frozen)
    }
}

impl SavedModel {
    /// Makes a graph of a signature.
    ///
    /// # Errors
    /// [`SavedModelError`] if tags or signature do not exist, the graph contains something that is
    /// not supported, or a variable has no value.
    pub fn load(
        &self,
        options: &SavedModelOptions,
        ops: &OpRegistry,
        import_options: &ImportOptions,
    ) -> Result<LoadedModel, SavedModelError> {
        let mut needed = self.needed(options, import_options)?;
        let variables = self.variable_infos(&needed, options);
        let values = self.values(&needed, &variables)?;
        let shapes = variables.iter().map(|variable| {
            let value = values.get(&variable.name);
            let shape = value.map(|value| PartialShape::from(value.shape()));
            (variable, shape.unwrap_or_else(|| variable.shape.clone()))
        });
        let frozen = frozen(shapes);
        let mut parts = needed.loaded(&frozen);
        let mut literals: HashMap<String, Literal> = HashMap::new();
        let (mut restores, mut stored) = (Vec::new(), Vec::new());
        let mut names = Names::of(&parts);
        for (variable, value) in values {
            if frozen.contains_key(&variable) {
                literals.insert(variable, value);
                continue;
            }
            let constant = names.unique(&format!("{variable}/restored"));
            let restore = names.unique(&format!("{variable}/restore"));
            let source = needed.sources.get(&variable).cloned();
            let source = source.unwrap_or_else(|| Source {
                tensor: variable.clone(),
                slice: String::new(),
            });
            let saved = names.unique(&format!("{variable}/saved"));
            add_restore(&mut parts, &variable, &constant, &restore, &value);
            add_read(&mut parts, &variable, &saved, value.dtype());
            stored.push((source.tensor, source.slice, format!("{saved}:0")));
            literals.insert(constant, value);
            restores.push(restore);
        }
        let init = [restores, needed.init_op.take().into_iter().collect()];
        let init = init.into_iter().filter(|nodes| !nodes.is_empty());
        let mut graph =
            import::import_parts(&parts, literals, self.size_bytes, ops, import_options)?;
        let stored = (!stored.is_empty()).then(|| Stored::new(self.folder.join(VARIABLES), stored));
        graph.set_interface(needed.signature, init.collect(), stored);
        Ok(LoadedModel { graph, variables })
    }

    /// Returns what a signature needs. Values of variables are not read, and ops may be unknown.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn summary(
        &self,
        options: &SavedModelOptions,
        import_options: &ImportOptions,
    ) -> Result<GraphSummary, SavedModelError> {
        let needed = self.needed(options, import_options)?;
        let variables = self.variable_infos(&needed, options);
        let shapes = variables
            .iter()
            .map(|variable| (variable, variable.shape.clone()));
        let frozen = frozen(shapes);
        let parts = needed.loaded(&frozen);
        Ok(GraphSummary::of(&parts, variables))
    }

    fn needed(
        &self,
        options: &SavedModelOptions,
        import_options: &ImportOptions,
    ) -> Result<Needed, SavedModelError> {
        let meta = self.graph(&options.tags())?;
        let signature = self.select(meta, options.signature.as_deref())?;
        let mut whole = self.parts(meta, import_options)?;
        self.set_assets(meta, &mut whole)?;
        let arguments = signature.inputs.iter().chain(&signature.outputs);
        let mut roots: Vec<String> = arguments.map(|argument| argument.tensor.clone()).collect();
        if let Some(missing) = roots.iter().find(|root| !has_node(&whole, root)) {
            return Err(SavedModelError::Signature {
                path: self.folder.clone(),
                signature: signature.name,
                problem: format!("the graph has no tensor `{missing}`"),
            });
        }
        let init_op = init_op(meta, &whole);
        roots.extend(init_op.clone());
        let restored = match &meta.saver {
            Some(saver) => restore::sources(&whole, &saver.restore_op_name),
            None => HashMap::new(),
        };
        let parts = only_needed(&whole, &roots);
        let sources = self.sources(&parts, &restored);
        let fetches = signature.outputs.iter();
        let fetches: Vec<String> = fetches.map(|argument| argument.tensor.clone()).collect();
        let flow = Flow::new(&parts);
        let variables = freeze::only_read(&parts, &flow, &fetches);
        drop(flow);
        Ok(Needed {
            signature,
            parts,
            init_op,
            variables,
            sources,
        })
    }

    /// Returns the sources of variables by their nodes: what the graph restores, or else the only
    /// variable of the name in the checkpoint. The restore op of a Keras model that is saved with
    /// `tf.saved_model.save` has other handles than its signatures.
    fn sources(
        &self,
        parts: &Parts,
        restored: &HashMap<(String, String), Source>,
    ) -> HashMap<String, Source> {
        let mut sources = HashMap::new();
        let mut others = Vec::new();
        for node in parts.nodes.iter().filter(|node| is_variable(node)) {
            match restored.get(&variable_of(node)) {
                Some(source) => {
                    sources.insert(name(node).to_owned(), source.clone());
                }
                None => others.push(node),
            }
        }
        if others.is_empty() {
            return sources;
        }
        // A checkpoint that cannot be read is reported when values are.
        let Ok(checkpoint) = Checkpoint::open(self.folder.join(VARIABLES)) else {
            return sources;
        };
        let stored = checkpoint.variables().unwrap_or_default();
        for node in others {
            let variable = variable_of(node).1;
            let keys = stored.get(&variable);
            let mut keys = keys.into_iter().flatten();
            let tensor = match (keys.next(), keys.next()) {
                (Some(key), None) => key.clone(),
                _ if checkpoint.tensor(&variable).is_some() => variable,
                _ => continue,
            };
            let source = Source {
                tensor,
                slice: String::new(),
            };
            sources.insert(name(node).to_owned(), source);
        }
        sources
    }

    fn variable_infos(&self, needed: &Needed, options: &SavedModelOptions) -> Vec<VariableInfo> {
        let nodes = needed.parts.nodes.iter().filter(|node| is_variable(node));
        let mut variables: Vec<VariableInfo> = nodes
            .map(|node| {
                let source = needed.sources.get(name(node));
                VariableInfo {
                    is_constant: !options.keep_variables
                        && needed.variables.get(name(node)) == Some(&true),
                    restored_from: source.map(|source| source.tensor.clone()),
                    ..variable_info(node)
                }
            })
            .collect();
        variables.sort_by(|left, right| left.name.cmp(&right.name));
        variables
    }

    /// Returns the values of variables. Large ones are read when devices need them.
    fn values(
        &self,
        needed: &Needed,
        variables: &[VariableInfo],
    ) -> Result<BTreeMap<String, Literal>, SavedModelError> {
        if variables.is_empty() {
            return Ok(BTreeMap::new());
        }
        let checkpoint = Checkpoint::open(self.folder.join(VARIABLES))?;
        // The graph itself assigns the others, such as those with the paths of assets.
        let has_value = |variable: &&VariableInfo| {
            needed.variables.get(&variable.name) == Some(&true)
                || needed.sources.contains_key(&variable.name)
                || checkpoint.tensor(&variable.name).is_some()
        };
        let values = variables.iter().filter(has_value).map(|variable| {
            let error = |problem: String| SavedModelError::Variable {
                path: self.folder.clone(),
                variable: variable.name.clone(),
                problem,
            };
            let value = match needed.sources.get(&variable.name) {
                Some(source) => checkpoint.literal(&source.tensor, &source.slice)?,
                None if checkpoint.tensor(&variable.name).is_some() => {
                    checkpoint.literal(&variable.name, "")?
                }
                None => {
                    let problem = "it has no value: the graph does not restore it, and no tensor of the checkpoint, or more than one, is a variable of its name; in Keras, save the model with `model.export(folder)`";
                    return Err(error(problem.to_owned()));
                }
            };
            if value.dtype() != variable.dtype || !variable.shape.matches(value.shape()) {
                return Err(error(format!(
                    "it is {} of shape {}, but the checkpoint has {} of shape {}; graph and checkpoint do not belong together",
                    variable.dtype,
                    variable.shape,
                    value.dtype(),
                    value.shape()
                )));
            }
            Ok((variable.name.clone(), value))
        });
        values.collect()
    }

    /// Makes constants with the paths of assets of the tensors that name them.
    fn set_assets(&self, meta: &MetaGraphDef, parts: &mut Parts) -> Result<(), SavedModelError> {
        for asset in &meta.assets {
            let error = |problem: &str| SavedModelError::Asset {
                path: self.folder.clone(),
                asset: asset.filename.clone(),
                problem: problem.to_owned(),
            };
            let file = Path::new(&asset.filename);
            let mut components = file.components();
            if !components.all(|part| matches!(part, Component::Normal(_))) {
                return Err(error("its path leads out of the model's folder"));
            }
            let path = self.folder.join(ASSETS).join(file);
            let path = path
                .to_str()
                .ok_or_else(|| error("the path of the folder is not UTF-8"))?;
            let tensor = asset.tensor_info.as_ref().map_or("", |info| &info.name);
            let node = parts
                .nodes
                .iter_mut()
                .find(|node| name(node) == producer(tensor));
            if let Some(node) = node {
                make_string(node, path);
            }
        }
        Ok(())
    }
}

/// Makes a constant of a node.
fn make_string(node: &mut NodeDef, value: &str) {
    use crate::import::proto::TensorProto;
    use crate::import::proto::TensorShapeProto;
    let tensor = TensorProto {
        dtype: type_number(DType::String),
        tensor_shape: Some(TensorShapeProto::default()),
        string_val: vec![value.to_owned().into()],
        ..TensorProto::default()
    };
    *node = NodeDef {
        device: node.device.clone(),
        ..new_node(name(node).to_owned(), "Const", Vec::new())
    };
    set_type(node, "dtype", DType::String);
    set_attr(node, "value", Value::Tensor(Box::new(tensor)));
}

/// Returns what the node of a variable tells.
pub(super) fn variable_info(node: &NodeDef) -> VariableInfo {
    let shape = match attr(node, "shape") {
        Some(Value::Shape(shape)) => shape_of(&shape).unwrap_or_default(),
        _ => PartialShape::unknown(),
    };
    VariableInfo {
        name: name(node).to_owned(),
        // The importer refuses a variable without a type.
        dtype: type_attr(node, "dtype").unwrap_or(DType::F32),
        shape,
        is_constant: false,
        restored_from: None,
    }
}

pub(super) fn is_variable(node: &NodeDef) -> bool {
    op(node) == "VarHandleOp"
}

/// Returns the node that initialises the model, unless it does nothing.
fn init_op(meta: &MetaGraphDef, parts: &Parts) -> Option<String> {
    let signature = meta.signatures.iter().find(|entry| entry.key == INIT_OP);
    let outputs = signature.and_then(|entry| entry.value.as_ref()).into_iter();
    let mut of_signature = outputs.flat_map(|signature| &signature.outputs);
    let of_signature = of_signature.find(|entry| entry.key == INIT_OP);
    let of_signature = of_signature.and_then(|entry| entry.value.as_ref());
    let of_signature = of_signature.map(|info| info.name.clone());
    let of_collections = INIT_COLLECTIONS.iter().find_map(|key| {
        let collection = meta.collections.iter().find(|entry| entry.key == *key)?;
        let nodes = collection.value.as_ref()?.node_list.as_ref()?;
        nodes.value.first().cloned()
    });
    let init = of_signature.or(of_collections)?;
    let init = producer(&init);
    let node = parts.nodes.iter().find(|node| name(node) == init)?;
    let does_nothing = op(node) == "NoOp" && node.input.is_empty();
    (!does_nothing).then(|| init.to_owned())
}

/// Adds the nodes that assign a value to a variable.
fn add_restore(parts: &mut Parts, variable: &str, constant: &str, restore: &str, value: &Literal) {
    let device = device_of(parts, variable);
    let mut made = new_node(constant.to_owned(), "Const", Vec::new());
    made.device = device.clone();
    set_type(&mut made, "dtype", value.dtype());
    parts.nodes.push(made);
    let inputs = vec![variable.to_owned(), constant.to_owned()];
    let mut made = new_node(restore.to_owned(), "AssignVariableOp", inputs);
    made.device = device;
    set_type(&mut made, "dtype", value.dtype());
    parts.nodes.push(made);
}

/// Adds a node that reads a variable, to write it to a checkpoint.
fn add_read(parts: &mut Parts, variable: &str, read: &str, dtype: DType) {
    let inputs = vec![variable.to_owned()];
    let mut made = new_node(read.to_owned(), "ReadVariableOp", inputs);
    made.device = device_of(parts, variable);
    set_type(&mut made, "dtype", dtype);
    parts.nodes.push(made);
}

/// Returns the device that a node requests.
fn device_of(parts: &Parts, wanted: &str) -> Bytes {
    let node = parts.nodes.iter().find(|node| name(node) == wanted);
    node.map(|node| node.device.clone()).unwrap_or_default()
}

/// Names of nodes that are taken.
struct Names(HashSet<String>);

impl Names {
    fn of(parts: &Parts) -> Self {
        Self(
            parts
                .nodes
                .iter()
                .map(|node| name(node).to_owned())
                .collect(),
        )
    }

    fn unique(&mut self, wanted: &str) -> String {
        let mut unique = wanted.to_owned();
        let mut number = 0;
        while !self.0.insert(unique.clone()) {
            number += 1;
            unique = format!("{wanted}_{number}");
        }
        unique
    }
}
