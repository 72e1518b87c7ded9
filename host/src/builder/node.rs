//! Builds one operation and adds it to the graph.

use std::sync::Arc;

use crate::builder::Scope;
use crate::builder::State;
use crate::builder::body::find;
use crate::builder::device::ScopeError;
use crate::builder::error::BuildError;
use crate::builder::signature::Argument;
use crate::builder::signature::Call;
use crate::builder::signature::Given;
use crate::builder::value::Operand;
use crate::builder::value::Operation;
use crate::builder::value::Source;
use crate::builder::value::Value;
use crate::builder::value::ValueType;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Input;
use crate::graph::NodeId;
use crate::graph::Output;
use crate::graph::is_node_name;
use crate::ops::Inferred;
use crate::ops::Known;
use crate::ops::OpAssembler;
use crate::ops::OpDef;
use crate::ops::OpInput;
use crate::ops::OpNode;
use crate::ops::OpNodeError;
use crate::ops::ShapeError;
use crate::ops::TypedSlot;
use crate::ops::input_shapes;
use crate::tensor::PartialShape;

/// Maximum number of outputs of an operation: an attribute could request billions.
const N_OUTPUTS_MAX: usize = 1 << 16;

/// Attribute with the colocation groups of a node.
const CLASS: &str = "_class";

/// The op of constants.
const CONST: &str = "Const";

/// An operation of any op: [`Scope::op`] starts it; [`Self::finish`] or [`Self::value`] checks it
/// and adds it to the graph.
///
/// ```
/// use placewright::builder::GraphBuilder;
///
/// let b = GraphBuilder::new("halves");
/// let x = b.placeholder::<f32>("x", [4, 6])?;
/// let axis = b.scalar(1)?;
/// let halves = b.op("Split").input(axis).input(x).attr("num_split", 2).finish()?;
/// let right = b.output::<f32>(halves, 1)?;
/// assert_eq!(b.shape(right)?.to_string(), "[4,3]");
/// # Ok::<(), placewright::builder::BuildError>(())
/// ```
#[derive(Debug)]
#[must_use = "an operation is added by `finish` or `value`"]
pub struct OpBuilder<'a> {
    scope: &'a Scope,
    op: String,
    name: String,
    arguments: Vec<Argument<Source>>,
    attrs: Vec<(Arc<str>, AttrValue)>,
    devices: Vec<String>,
    control: Vec<Operation>,
    /// What the caller knows of the shapes of the outputs, beyond the op's rule.
    output_shapes: Vec<PartialShape>,
}

impl<'a> OpBuilder<'a> {
    pub(super) fn new(scope: &'a Scope, op: &str, name: &str) -> Self {
        Self {
            scope,
            op: op.to_owned(),
            name: scope.name.as_deref().unwrap_or(name).to_owned(),
            arguments: Vec::new(),
            attrs: Vec::new(),
            devices: Vec::new(),
            control: scope.control.clone(),
            output_shapes: Vec::new(),
        }
    }

    /// Adds the next argument of the op's signature.
    pub fn input(self, value: impl Into<Operand>) -> Self {
        self.operand(value)
    }

    /// Adds the next argument of the op's signature, a list of tensors.
    pub fn inputs<V: Into<Operand>>(self, values: impl IntoIterator<Item = V>) -> Self {
        self.operands(values)
    }

    /// Sets an attribute. Attributes that follow from the arguments or have defaults may be
    /// omitted.
    pub fn attr(mut self, name: &str, value: impl Into<AttrValue>) -> Self {
        self.attrs.push((name.into(), value.into()));
        self
    }

    /// Sets the name within the scope; the default is the op's.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds a control dependency: runs after `operation`.
    pub fn control(mut self, operation: impl Into<Operation>) -> Self {
        self.control.push(operation.into());
        self
    }

    /// Requests this device; open parts come from the scope ([`Scope::device`]).
    pub fn device(mut self, device: impl Into<String>) -> Self {
        self.devices.push(device.into());
        self
    }

    /// Adds the operation. [`Scope::output`] returns its outputs.
    ///
    /// # Errors
    /// [`BuildError`], naming node, op and argument; the graph stays unchanged.
    pub fn finish(self) -> Result<Operation, BuildError> {
        self.add(|_, _, _| Ok(()))
    }

    /// Adds the operation and returns its only output.
    ///
    /// # Errors
    /// As [`Self::finish`]; [`BuildError::NotOneOutput`] or [`BuildError::OutputType`] if the
    /// operation does not have exactly one output of type `T`.
    pub fn value<T: ValueType>(self) -> Result<Value<T>, BuildError> {
        let operation = self.add(|node, op, outputs| {
            let [output] = outputs else {
                return Err(BuildError::NotOneOutput {
                    node: node.to_owned(),
                    op: op.to_owned(),
                    n_outputs: outputs.len(),
                });
            };
            match T::DTYPE {
                Some(expected) if expected != output.dtype => Err(BuildError::OutputType {
                    tensor: format!("{node}:0"),
                    op: op.to_owned(),
                    expected,
                    found: output.dtype,
                }),
                _ => Ok(()),
            }
        })?;
        Ok(Value::new(operation, 0))
    }

    /// [`Self::input`] for values of any type.
    pub(super) fn tensor<T: ValueType>(mut self, value: Value<T>) -> Self {
        let source = Source::Value(value.erase());
        self.arguments.push(Argument::One(source));
        self
    }

    /// [`Self::input`] for operands of any type.
    pub(super) fn operand<T: ValueType>(mut self, value: impl Into<Operand<T>>) -> Self {
        self.arguments.push(Argument::One(value.into().0));
        self
    }

    /// [`Self::inputs`] for operands of any type.
    pub(super) fn operands<T: ValueType, V: Into<Operand<T>>>(
        mut self,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        let sources = values.into_iter().map(|value| value.into().0);
        self.arguments.push(Argument::List(sources.collect()));
        self
    }

    /// Sets what is known of the shapes of the outputs, beyond the op's rule.
    pub(super) fn output_shapes(mut self, shapes: Vec<PartialShape>) -> Self {
        self.output_shapes = shapes;
        self
    }

    /// Adds the operation if `check`, which receives its name, op and outputs, succeeds.
    fn add(
        mut self,
        check: impl FnOnce(&str, &str, &[Output]) -> Result<(), BuildError>,
    ) -> Result<Operation, BuildError> {
        let scope = self.scope;
        let wanted = format!("{}{}", scope.prefix, self.name);
        if self.name.is_empty() || !is_node_name(wanted.as_bytes()) {
            return Err(BuildError::InvalidName(wanted));
        }
        // Before the graph is borrowed: functions of device scopes may read it and add to it.
        let node = scope.state.borrow().names.unique(&wanted);
        let by_scopes = self.device_by_scopes(&node);
        let op = self.definition(&node)?;
        self.resolve_handles(&node, &op)?;
        let mut state = scope.state.borrow_mut();
        let State {
            ops,
            graph,
            names,
            library,
            ..
        } = &mut *state;
        let graph = graph.as_mut().ok_or(BuildError::Finished)?;
        let node = names.unique(&wanted);
        let op = &*op;
        let device = self.requested_device(graph, by_scopes?);
        self.add_class(graph);
        let prepared = prepare(&node, op, self.arguments, graph, ops.get(CONST))?;
        let call = Call {
            node: &node,
            op,
            arguments: &prepared.given,
            is_function: &|name| library.borrow().get(name).is_some(),
        };
        let attrs = call.attrs(self.attrs)?;
        let shapes = &self.output_shapes;
        let inferred = infer(graph, &node, op, &attrs, &prepared.inputs, shapes)?;
        check(&node, op.name(), &inferred.outputs)?;

        // From here on the only possible error is a full graph.
        let node = names.take(&wanted);
        let mut edges = Vec::with_capacity(prepared.sources.len() + self.control.len());
        for source in prepared.sources {
            let (node, slot) = match source {
                Ready::Value(value) => (value.operation.node, value.slot),
                Ready::Constant(constant) => {
                    let spec = OpNode {
                        name: &names.take(&format!("{node}/{}", constant.arg)),
                        op: &constant.op,
                        attrs: &constant.attrs,
                        edges: &[],
                        requested_device: &device,
                    };
                    (graph.append(&spec, constant.inferred)?, 0)
                }
            };
            edges.push(Input::Data { node, slot });
        }
        edges.extend(control_edges(
            &self.control,
            &edges,
            calls_functions(&attrs),
        ));
        let id = graph.append(
            &OpNode {
                name: &node,
                op,
                attrs: &attrs,
                edges: &edges,
                requested_device: &device,
            },
            inferred,
        )?;
        Ok(Operation {
            builder: scope.id,
            node: id,
        })
    }

    /// Returns the definition of the op.
    fn definition(&self, node: &str) -> Result<Arc<OpDef>, BuildError> {
        let state = self.scope.state.borrow();
        if state.graph.is_none() {
            return Err(BuildError::Finished);
        }
        let op = state.ops.get(&self.op).cloned();
        op.ok_or_else(|| BuildError::UnknownOp {
            node: node.to_owned(),
            op: self.op.clone(),
            suggestion: state
                .ops
                .iter()
                .find(|known| known.name().eq_ignore_ascii_case(&self.op))
                .map(|known| known.name().to_owned()),
        })
    }

    /// Captures values of graphs around the scope's, and lets the node that runs the scope's body
    /// wait for operations of those graphs.
    fn resolve_handles(&mut self, node: &str, op: &OpDef) -> Result<(), BuildError> {
        let scope = self.scope;
        let at = |what: String| format!("node `{node}` ({}): {what}", op.name());
        for (index, argument) in self.arguments.iter_mut().enumerate() {
            for source in argument.items_mut() {
                if let Source::Value(value) = source {
                    *value = scope.resolve(*value, || {
                        at(match op.inputs().get(index) {
                            Some(arg) => format!("argument `{}`", arg.name),
                            None => format!("argument {index}"),
                        })
                    })?;
                }
            }
        }
        let mut own = Vec::with_capacity(self.control.len());
        for &after in &self.control {
            if scope.waits_itself(after, || at("a control dependency".to_owned()))? {
                own.push(after);
            }
        }
        self.control = own;
        for with in &scope.colocated {
            if with.builder == scope.id {
                continue;
            }
            // The name of a node of another graph would be another node, or none.
            if find(&scope.state, with.builder).is_some() {
                return Err(BuildError::ColocatedOutside {
                    node: node.to_owned(),
                    op: op.name().to_owned(),
                    body: scope.title(),
                });
            }
            return Err(scope.foreign(with.builder, at("the colocation target".to_owned())));
        }
        Ok(())
    }

    /// Returns the device that the node and its scopes request.
    fn device_by_scopes(&self, node: &str) -> Result<String, BuildError> {
        let refuse = |error| match error {
            ScopeError::Name(source) => BuildError::Device {
                place: format!("node `{node}` ({})", self.op),
                source,
            },
            ScopeError::NoDevice => BuildError::NoDevice {
                node: node.to_owned(),
                op: self.op.clone(),
            },
        };
        let mut devices = self.scope.devices.clone();
        for device in &self.devices {
            let entered = devices.entered(device);
            devices = entered.map_err(|source| refuse(ScopeError::Name(source)))?;
        }
        devices.requested(node, &self.op).map_err(refuse)
    }

    /// Returns the requested device: that of the colocation target, if it requests one, or that of
    /// the scopes.
    fn requested_device(&self, graph: &OpAssembler, by_scopes: String) -> String {
        let colocated = self.scope.colocated.iter().rev();
        let theirs = colocated
            .map(|with| graph.graph().requested(with.node))
            .find(|device| !device.is_empty());
        theirs.map_or(by_scopes, str::to_owned)
    }

    /// Adds the colocation groups of the target nodes; a node without a group has one of its own
    /// name.
    fn add_class(&mut self, graph: &OpAssembler) {
        if self.scope.colocated.is_empty() {
            return;
        }
        let mut groups: Vec<String> = Vec::new();
        for with in &self.scope.colocated {
            let inherited = graph.graph().attrs(with.node).list(CLASS);
            let inherited = inherited.unwrap_or_default().iter();
            let inherited = inherited.filter_map(|group| match group {
                // Other entries are unrelated to colocation.
                AttrValue::Bytes(group) if group.starts_with(b"loc:@") => {
                    Some(String::from_utf8_lossy(group).into_owned())
                }
                _ => None,
            });
            let n_before = groups.len();
            groups.extend(inherited);
            if groups.len() == n_before {
                groups.push(format!("loc:@{}", graph.graph().node_name(with.node)));
            }
        }
        groups.sort_unstable();
        groups.dedup();
        self.attrs.push((CLASS.into(), groups.into()));
    }
}

/// The arguments of a node, in three views.
struct Prepared {
    /// For the signature.
    given: Vec<Argument<Given>>,
    /// For inference, in slot order.
    inputs: Vec<OpInput>,
    /// Sources, in slot order.
    sources: Vec<Ready>,
}

enum Ready {
    Value(Value),
    Constant(Box<Constant>),
}

/// A constant that is added after its node has been checked.
struct Constant {
    op: Arc<OpDef>,
    /// The argument of the node.
    arg: String,
    attrs: AttrSet,
    inferred: Inferred,
}

fn prepare(
    node: &str,
    op: &OpDef,
    arguments: Vec<Argument<Source>>,
    graph: &mut OpAssembler,
    const_op: Option<&Arc<OpDef>>,
) -> Result<Prepared, BuildError> {
    let mut prepared = Prepared {
        given: Vec::with_capacity(arguments.len()),
        inputs: Vec::with_capacity(arguments.len()),
        sources: Vec::with_capacity(arguments.len()),
    };
    for (index, argument) in arguments.into_iter().enumerate() {
        // Arguments beyond the signature are refused later.
        let arg = op.inputs().get(index).map_or("argument", |arg| &*arg.name);
        let given = match argument {
            Argument::One(source) => {
                Argument::One(prepared.add(node, arg, source, graph, const_op)?)
            }
            Argument::List(sources) => Argument::List(
                sources
                    .into_iter()
                    .map(|source| prepared.add(node, arg, source, graph, const_op))
                    .collect::<Result<_, _>>()?,
            ),
        };
        prepared.given.push(given);
    }
    Ok(prepared)
}

impl Prepared {
    fn add(
        &mut self,
        node: &str,
        arg: &str,
        source: Source,
        graph: &mut OpAssembler,
        const_op: Option<&Arc<OpDef>>,
    ) -> Result<Given, BuildError> {
        let (input, is_ref, name) = match source {
            Source::Value(value) => {
                let id = value.operation.node;
                let output = graph.graph().output(id, value.slot as usize);
                let output = output.expect("a value is an output of its operation");
                self.sources.push(Ready::Value(value));
                let input = OpInput {
                    dtype: output.dtype,
                    shape: output.shape,
                    known: graph.known(id, value.slot),
                };
                let name = format!("{}:{}", graph.graph().node_name(id), value.slot);
                (input, output.is_ref, name)
            }
            Source::Constant(literal) => {
                let name = format!("{node}/{arg}");
                let literal = Arc::new(literal.map_err(|source| BuildError::Constant {
                    node: name.clone(),
                    source,
                })?);
                let op = const_op.ok_or_else(|| BuildError::UnknownOp {
                    node: name.clone(),
                    op: CONST.to_owned(),
                    suggestion: None,
                })?;
                let call = Call {
                    node: &name,
                    op,
                    arguments: &[],
                    is_function: &|_| false,
                };
                let attrs = call.attrs(vec![
                    ("value".into(), AttrValue::Tensor(Arc::clone(&literal))),
                    ("dtype".into(), literal.dtype().into()),
                ])?;
                let inferred = infer(graph, &name, op, &attrs, &[], &[])?;
                self.sources.push(Ready::Constant(Box::new(Constant {
                    op: Arc::clone(op),
                    arg: arg.to_owned(),
                    attrs,
                    inferred,
                })));
                let input = OpInput {
                    dtype: literal.dtype(),
                    shape: PartialShape::from(literal.shape()),
                    known: Known::Literal(literal),
                };
                (input, false, format!("{name}:0"))
            }
        };
        let dtype = input.dtype;
        self.inputs.push(input);
        let slot = TypedSlot { dtype, is_ref };
        Ok(Given { slot, name })
    }
}

/// Returns whether a node with these attributes calls functions.
fn calls_functions(attrs: &AttrSet) -> bool {
    attrs.iter().any(|(_, value)| match value {
        AttrValue::List(values) => matches!(values.first(), Some(AttrValue::Function(..))),
        value => matches!(value, AttrValue::Function(..)),
    })
}

/// Returns one control edge per node. Nodes with a data edge need none, unless the node calls
/// functions: their nodes run as soon as their own inputs are there, and wait for nothing else
/// than control edges of the call.
fn control_edges(control: &[Operation], data: &[Input], calls_functions: bool) -> Vec<Input> {
    let mut nodes: Vec<NodeId> = control.iter().map(|after| after.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let is_waited_for = |node: NodeId| {
        data.iter()
            .any(|edge| matches!(edge, Input::Data { node: from, .. } if *from == node))
    };
    nodes.retain(|&node| calls_functions || !is_waited_for(node));
    nodes.into_iter().map(Input::Control).collect()
}

fn infer(
    graph: &mut OpAssembler,
    node: &str,
    op: &OpDef,
    attrs: &AttrSet,
    inputs: &[OpInput],
    output_shapes: &[PartialShape],
) -> Result<Inferred, BuildError> {
    let shape = |source| BuildError::Shape {
        node: node.to_owned(),
        op: op.name().to_owned(),
        inputs: input_shapes(inputs),
        source,
    };
    // The inference reports errors of the signature.
    let found = op.n_outputs(attrs).unwrap_or_default();
    let too_many = || BuildError::TooManyOutputs {
        node: node.to_owned(),
        op: op.name().to_owned(),
        found,
        limit: N_OUTPUTS_MAX,
    };
    if found > N_OUTPUTS_MAX {
        return Err(too_many());
    }
    let inferred = graph.infer(op, attrs, inputs, |inferred| {
        for (shape, known) in inferred.iter_mut().zip(output_shapes) {
            *shape = shape.merge(known).ok_or_else(|| {
                ShapeError::new(format!("the output is {shape} by its op, but {known}"))
            })?;
        }
        Ok(())
    });
    inferred.map_err(|error| match error {
        OpNodeError::TooManyOutputs => too_many(),
        OpNodeError::Signature(error) => shape(ShapeError::new(error.to_string())),
        OpNodeError::Shape(error) => shape(error),
    })
}
