//! Function bodies as graphs (TensorFlow `InstantiateFunction`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Function;
use crate::graph::FunctionArg;
use crate::graph::FunctionNode;
use crate::graph::Graph;
use crate::graph::GraphAssembler;
use crate::graph::Input;
use crate::graph::NodeId;
use crate::graph::NodeSpec;
use crate::graph::Output;
use crate::graph::Work;
use crate::ops::ArgDef;
use crate::ops::ArgType;
use crate::ops::OpDef;
use crate::ops::TypedSlot;
use crate::tensor::DType;
use crate::tensor::PartialShape;

/// The limit of slots, since an attribute of a few bytes can request billions of tensors.
const SLOTS_MAX: usize = 1 << 16;

/// Looks up the definition of an op.
pub(crate) type Definitions<'a> = &'a dyn Fn(&str) -> Option<&'a OpDef>;

/// A body whose arguments and results are nodes.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) graph: Graph,
    /// Names of the `_Arg` nodes, in slot order.
    pub(crate) args: Vec<String>,
    /// Names of the `_Retval` nodes, in slot order.
    pub(crate) results: Vec<String>,
}

/// Returns the function as an op with these attributes.
pub(crate) fn signature(function: &Function, attrs: &AttrSet) -> OpDef {
    let args = |args: &[FunctionArg]| args.iter().map(|arg| arg_def(arg, attrs)).collect();
    let (inputs, outputs) = (args(&function.args), args(&function.results));
    OpDef::from_parts(Arc::clone(&function.name), inputs, outputs, Vec::new())
}

fn arg_def(arg: &FunctionArg, attrs: &AttrSet) -> ArgDef {
    let (number_attr, type_name) = match arg.spec.split_once('*') {
        Some((number, type_name)) => (Some(number.trim().into()), type_name.trim()),
        None => (None, arg.spec.trim()),
    };
    let dtype = match DType::from_name(type_name) {
        Some(dtype) => ArgType::Fixed(dtype),
        None if attrs.list(type_name).is_some() => ArgType::ListAttr(type_name.into()),
        None => ArgType::Attr(type_name.into()),
    };
    ArgDef {
        name: Arc::clone(&arg.name),
        dtype,
        number_attr,
        is_ref: arg.is_ref,
    }
}

/// Returns the dtypes of the results of a function with these attributes.
///
/// # Errors
/// The problem of the attributes, as text.
pub(crate) fn result_slots(function: &Function, attrs: &AttrSet) -> Result<Vec<TypedSlot>, String> {
    output_slots(&signature(function, attrs), attrs)
}

fn output_slots(op: &OpDef, attrs: &AttrSet) -> Result<Vec<TypedSlot>, String> {
    let n_slots = op.n_outputs(attrs).map_err(|error| error.to_string())?;
    if n_slots > SLOTS_MAX {
        return Err(format!("`{}` has {n_slots} outputs", op.name()));
    }
    op.output_slots(attrs).map_err(|error| error.to_string())
}

/// Returns the body of a function with these attributes; `library` has the functions that it calls.
///
/// # Errors
/// The problem of the function, as text.
pub(crate) fn instantiate(
    function: &Function,
    attrs: &AttrSet,
    library: &Graph,
    ops: Definitions<'_>,
) -> Result<Body, String> {
    let builder = Builder::new(function, attrs, library, ops)?;
    builder.build(function, attrs)
}

/// A node of the body with resolved attributes.
struct Node<'a> {
    node: &'a FunctionNode,
    attrs: AttrSet,
    outputs: Vec<Output>,
    ranges: HashMap<Arc<str>, Range<usize>>,
}

/// The source of an input.
#[derive(Clone, Copy)]
enum Source {
    Arg(usize),
    Node { index: usize, slot: u32 },
    Control(usize),
}

/// An input that closes a loop.
struct BackSource {
    from: usize,
    slot: u32,
    to: usize,
    input: u32,
}

struct Builder<'a> {
    assembler: GraphAssembler,
    arg_slots: Vec<TypedSlot>,
    arg_ranges: HashMap<Arc<str>, Range<usize>>,
    nodes: Vec<Node<'a>>,
    index_of: HashMap<&'a str, usize>,
}

impl<'a> Builder<'a> {
    fn new(
        function: &'a Function,
        attrs: &AttrSet,
        library: &Graph,
        ops: Definitions<'_>,
    ) -> Result<Self, String> {
        let of_function = signature(function, attrs);
        let n_args = of_function
            .n_inputs(attrs)
            .map_err(|error| error.to_string())?;
        if n_args > SLOTS_MAX {
            return Err(format!("it has {n_args} arguments"));
        }
        let arg_slots = of_function
            .input_slots(attrs)
            .map_err(|error| error.to_string())?;
        let arg_ranges = function.args.iter().filter_map(|arg| {
            let range = of_function.input_range(&arg.name, attrs)?;
            Some((Arc::clone(&arg.name), range))
        });
        let nodes: Result<Vec<Node<'a>>, String> = function
            .nodes
            .iter()
            .map(|node| {
                let attrs = substituted(&node.attrs, attrs);
                described(node, attrs, library, ops)
                    .map_err(|problem| format!("node `{}`: {problem}", node.name))
            })
            .collect();
        let names = function.nodes.iter().map(|node| &*node.name);
        Ok(Self {
            assembler: GraphAssembler::new(&*function.name),
            arg_slots,
            arg_ranges: arg_ranges.collect(),
            nodes: nodes?,
            index_of: names.zip(0..).collect(),
        })
    }

    /// Resolves an input of the body to its tensors or node: `arg`, `arg:index`, `node:output`,
    /// `node:output:index` or `^node`.
    fn sources(&self, input: &str) -> Result<Vec<Source>, String> {
        let unknown = || format!("`{input}` is not a node or tensor of the function");
        if let Some(name) = input.strip_prefix('^') {
            return match self.index_of.get(name) {
                Some(&index) => Ok(vec![Source::Control(index)]),
                // Arguments are there from the start.
                None if self.arg_ranges.contains_key(name) => Ok(Vec::new()),
                None => Err(unknown()),
            };
        }
        let mut parts = input.split(':');
        let name = parts.next().unwrap_or_default();
        let node = self.index_of.get(name).copied();
        let range = match node {
            Some(node) => {
                let output = parts.next().ok_or_else(unknown)?;
                self.nodes[node].ranges.get(output)
            }
            None => self.arg_ranges.get(name),
        };
        let mut range = range.ok_or_else(unknown)?.clone();
        if let Some(position) = parts.next() {
            let position: usize = position.parse().map_err(|_| unknown())?;
            range = range
                .skip(position)
                .take(1)
                .map(|slot| slot..slot + 1)
                .next()
                .ok_or_else(unknown)?;
        }
        Ok(range
            .map(|slot| match node {
                #[expect(clippy::cast_possible_truncation, reason = "fewer than `SLOTS_MAX`")]
                Some(index) => Source::Node {
                    index,
                    slot: slot as u32,
                },
                None => Source::Arg(slot),
            })
            .collect())
    }

    /// Returns the inputs of all nodes, data before control, without those that close a loop, which
    /// are added to `back`.
    fn all_sources(&self, back: &mut Vec<BackSource>) -> Result<Vec<Vec<Source>>, String> {
        let of_node = |(consumer, node): (usize, &Node<'_>)| {
            let mut sources = Vec::new();
            for input in &node.node.inputs {
                let found = self.sources(input);
                sources.extend(
                    found.map_err(|problem| format!("node `{}`: {problem}", node.node.name))?,
                );
            }
            let is_merge = ["Merge", "RefMerge"].contains(&&*node.node.op);
            let closes_loop = |source: &Source| match source {
                Source::Node { index, .. } => self.nodes[*index].node.op.ends_with("NextIteration"),
                _ => false,
            };
            let mut input = 0..;
            sources.retain(|source| {
                let input = input.next().unwrap_or(u32::MAX);
                let closes = is_merge && closes_loop(source);
                if let (true, Source::Node { index, slot }) = (closes, *source) {
                    back.push(BackSource {
                        from: index,
                        slot,
                        to: consumer,
                        input,
                    });
                }
                !closes
            });
            Ok(sources)
        };
        self.nodes.iter().enumerate().map(of_node).collect()
    }

    fn build(mut self, function: &Function, attrs: &AttrSet) -> Result<Body, String> {
        let mut back = Vec::new();
        let sources = self.all_sources(&mut back)?;
        let order = self.order(&sources)?;
        let arg_slots = std::mem::take(&mut self.arg_slots);
        let mut args = Vec::with_capacity(arg_slots.len());
        for arg in &function.args {
            let range = self.arg_ranges.get(&arg.name).cloned().unwrap_or_default();
            let is_list = range.len() != 1;
            for (position, slot) in range.enumerate() {
                let name = match is_list {
                    true => format!("{}_{position}", arg.name),
                    false => arg.name.to_string(),
                };
                let output = output(arg_slots[slot]);
                let attrs = end_attrs(arg_slots[slot], slot);
                self.add(&name, "_Arg", &[], "", attrs, &[output])?;
                args.push(name);
            }
        }
        let mut ids = vec![NodeId(0); self.nodes.len()];
        for index in order {
            let inputs: Vec<Input> = sources[index].iter().map(|&s| input(s, &ids)).collect();
            let node = &mut self.nodes[index];
            let (name, attrs) = (node.node, std::mem::take(&mut node.attrs));
            let outputs = std::mem::take(&mut node.outputs);
            ids[index] = self.add(&name.name, &name.op, &inputs, &name.device, attrs, &outputs)?;
        }
        for edge in back {
            let (from, to) = (ids[edge.from], ids[edge.to]);
            let added = self
                .assembler
                .add_back_input(from, edge.slot, to, edge.input);
            added.map_err(|error| error.to_string())?;
        }
        let slots = result_slots(function, attrs)?;
        let mut results = Vec::with_capacity(slots.len());
        for (result, source) in &function.returns {
            for source in self.sources(source)? {
                let slot = results.len();
                let typed = slots
                    .get(slot)
                    .ok_or("it returns more than it has results")?;
                let name = format!("{result}_{slot}_RetVal");
                let attrs = end_attrs(*typed, slot);
                self.add(&name, "_Retval", &[input(source, &ids)], "", attrs, &[])?;
                results.push(name);
            }
        }
        Ok(Body {
            graph: self.assembler.finish_checked(),
            args,
            results,
        })
    }

    /// Returns the nodes in their order, but with producers first.
    fn order(&self, sources: &[Vec<Source>]) -> Result<Vec<usize>, String> {
        let producer = |source: &Source| match *source {
            Source::Node { index, .. } | Source::Control(index) => Some(index),
            Source::Arg(_) => None,
        };
        let mut consumers = vec![Vec::new(); sources.len()];
        let mut n_pending = vec![0usize; sources.len()];
        for (consumer, sources) in sources.iter().enumerate() {
            for producer in sources.iter().filter_map(producer) {
                consumers[producer].push(consumer);
                n_pending[consumer] += 1;
            }
        }
        let mut ready: BinaryHeap<Reverse<usize>> = (0..sources.len())
            .filter(|&node| n_pending[node] == 0)
            .map(Reverse)
            .collect();
        let mut order = Vec::with_capacity(sources.len());
        while let Some(Reverse(node)) = ready.pop() {
            order.push(node);
            for &consumer in &consumers[node] {
                n_pending[consumer] -= 1;
                if n_pending[consumer] == 0 {
                    ready.push(Reverse(consumer));
                }
            }
        }
        match n_pending.iter().position(|&n| n > 0) {
            Some(node) => Err(format!(
                "node `{}` is part of a cycle or waits for one",
                self.nodes[node].node.name
            )),
            None => Ok(order),
        }
    }

    fn add(
        &mut self,
        name: &str,
        op: &str,
        inputs: &[Input],
        requested_device: &str,
        attrs: AttrSet,
        outputs: &[Output],
    ) -> Result<NodeId, String> {
        let mut inputs = inputs.to_vec();
        inputs.sort_by_key(|input| matches!(input, Input::Control(_)));
        let spec = NodeSpec {
            name,
            op,
            inputs: &inputs,
            requested_device,
            attrs,
            outputs,
            stateful: false,
            work: Work::default(),
        };
        let added = self.assembler.add_node(&spec);
        added.map_err(|error| error.to_string())
    }
}

/// Arguments are the first nodes, in slot order.
fn input(source: Source, ids: &[NodeId]) -> Input {
    match source {
        #[expect(clippy::cast_possible_truncation, reason = "fewer than `SLOTS_MAX`")]
        Source::Arg(slot) => Input::Data {
            node: NodeId(slot as u32),
            slot: 0,
        },
        Source::Node { index, slot } => Input::Data {
            node: ids[index],
            slot,
        },
        Source::Control(index) => Input::Control(ids[index]),
    }
}

fn output(slot: TypedSlot) -> Output {
    Output {
        dtype: slot.dtype,
        is_ref: slot.is_ref,
        shape: PartialShape::unknown(),
    }
}

/// Returns the attributes of `_Arg` and `_Retval` nodes.
fn end_attrs(slot: TypedSlot, index: usize) -> AttrSet {
    let dtype = AttrValue::Type {
        dtype: slot.dtype,
        is_ref: slot.is_ref,
    };
    let index = AttrValue::Int(i64::try_from(index).unwrap_or(i64::MAX));
    AttrSet::new([("T".into(), dtype), ("index".into(), index)])
}

fn described<'a>(
    node: &'a FunctionNode,
    attrs: AttrSet,
    library: &Graph,
    ops: Definitions<'_>,
) -> Result<Node<'a>, String> {
    let called = library.find_function(&node.op);
    let called = called.map(|function| signature(function, &attrs));
    let op = called.as_ref().or_else(|| ops(&node.op));
    let op = op.ok_or_else(|| format!("op `{}` is not defined", node.op))?;
    let slots = output_slots(op, &attrs)?;
    let ranges = op.outputs().iter().filter_map(|arg| {
        let range = op.output_range(&arg.name, &attrs)?;
        Some((Arc::clone(&arg.name), range))
    });
    Ok(Node {
        ranges: ranges.collect(),
        outputs: slots.into_iter().map(output).collect(),
        node,
        attrs,
    })
}

/// Resolves the attributes of a node of the body with those of the function.
fn substituted(attrs: &AttrSet, of_function: &AttrSet) -> AttrSet {
    AttrSet::new(attrs.iter().map(|(name, value)| {
        let value = substituted_value(value, of_function);
        (Arc::from(name), value)
    }))
}

fn substituted_value(value: &AttrValue, of_function: &AttrSet) -> AttrValue {
    match value {
        AttrValue::Placeholder(name) => of_function.get(name).unwrap_or(value).clone(),
        AttrValue::Function(name, attrs) => {
            AttrValue::Function(Arc::clone(name), substituted(attrs, of_function))
        }
        AttrValue::List(values) => AttrValue::List(
            values
                .iter()
                .map(|value| substituted_value(value, of_function))
                .collect(),
        ),
        other => other.clone(),
    }
}
