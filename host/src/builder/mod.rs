//! Builds graphs in Rust from the operations of an [`OpRegistry`].
//!
//! [`GraphBuilder`] owns the graph, [`Scope`] adds operations to it, and a [`Value`] is one of its
//! tensors with an element type. Each operation is checked when it is added: arguments, types,
//! attributes and shapes. The importer uses the same definitions and the same inference. No
//! devices, no kernels, no file format.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use crate::graph::Graph;
use crate::graph::GraphAssembler;
use crate::graph::NodeId;
use crate::graph::Output;
use crate::graph::is_node_name;
use crate::names::DeviceSpec;
use crate::ops::OpAssembler;
use crate::ops::OpRegistry;
use crate::tensor::DType;
use crate::tensor::PartialShape;

mod array;
mod body;
mod control;
mod device;
mod error;
mod function;
mod group;
mod math;
mod nn;
mod node;
mod signature;
#[cfg(test)]
mod tests;
mod unique;
mod value;

use self::body::Enclosed;
use self::body::Library;
use self::device::DeviceStack;
use self::unique::UniqueNames;
use self::value::BuilderId;

pub use self::control::Branch;
pub use self::control::WhileLoop;
pub use self::device::NewOperation;
pub use self::error::BuildError;
pub use self::error::TypeMismatch;
pub use self::function::Parameter;
pub use self::function::TypedFunction;
pub use self::group::TypedValues;
pub use self::group::Values;
pub use self::math::Axes;
pub use self::math::MatMul;
pub use self::nn::Conv2d;
pub use self::nn::Padding;
pub use self::nn::Pool2d;
pub use self::node::OpBuilder;
pub use self::value::Dynamic;
pub use self::value::Float;
pub use self::value::Number;
pub use self::value::Operand;
pub use self::value::Operation;
pub use self::value::Scalar;
pub use self::value::Value;
pub use self::value::ValueType;

/// Ops whose rules have changed follow their newest version.
const PRODUCER_VERSION: i32 = i32::MAX;

/// Builds a [`Graph`]. A builder is the outermost [`Scope`]; [`Self::finish`] returns the graph.
///
/// ```
/// use placewright::builder::GraphBuilder;
/// use placewright::builder::MatMul;
///
/// let b = GraphBuilder::new("dense");
/// let x = b.placeholder::<f32>("x", [None, Some(4)])?;
/// let w = b.constant([4, 2], &[0.5f32; 8])?;
/// let y = b.named("y").relu(b.add(b.matmul(x, w)?, [1.0, -1.0])?)?;
/// assert_eq!(b.shape(y)?.to_string(), "[?,2]");
/// let graph = b.finish();
/// assert!(graph.find_node("y").is_some());
/// # Ok::<(), placewright::builder::BuildError>(())
/// ```
///
/// Arguments of incompatible types do not compile:
///
/// ```compile_fail,E0277
/// use placewright::builder::GraphBuilder;
///
/// let b = GraphBuilder::new("mixed");
/// let x = b.placeholder::<f32>("x", [3])?;
/// let n = b.placeholder::<i32>("n", [3])?;
/// b.add(x, n)?; // `b.add(x, b.cast::<f32>(n)?)?` does
/// # Ok::<(), placewright::builder::BuildError>(())
/// ```
#[derive(Debug)]
pub struct GraphBuilder {
    root: Scope,
}

impl GraphBuilder {
    /// Returns an empty graph of the shipped ops; `name` is for reports.
    pub fn new(name: impl Into<String>) -> Self {
        Self::with_ops(name, OpRegistry::default())
    }

    /// Returns an empty graph of these ops.
    pub fn with_ops(name: impl Into<String>, ops: impl Into<Arc<OpRegistry>>) -> Self {
        let id = BuilderId::new();
        let state = State {
            id,
            ops: ops.into(),
            graph: Some(OpAssembler::new(name, PRODUCER_VERSION, usize::MAX)),
            names: UniqueNames::default(),
            library: Rc::new(RefCell::new(Library::new(id))),
            enclosed: None,
        };
        Self {
            root: Scope {
                id,
                state: Rc::new(RefCell::new(state)),
                prefix: String::new(),
                name: None,
                devices: DeviceStack::default(),
                control: Vec::new(),
                colocated: Vec::new(),
            },
        }
    }

    /// Returns the finished graph. Scopes that still exist can no longer add to it.
    pub fn finish(self) -> Graph {
        let mut state = self.root.state.borrow_mut();
        let graph = state.graph.take();
        let mut graph = graph.expect("a builder is finished once: finishing consumes it");
        state.library.borrow().add_to(graph.graph_mut());
        graph.finish()
    }
}

impl std::ops::Deref for GraphBuilder {
    type Target = Scope;

    fn deref(&self) -> &Scope {
        &self.root
    }
}

/// Adds operations to a graph: common ops have a method, all others are added by [`Self::op`]. A
/// scope also holds common properties of its operations, which scopes made from it inherit. Cloning
/// returns another handle of the same graph.
///
/// Default names are TensorFlow's: `add`, `add_1`, `layer/MatMul`. Names chosen by the app are
/// numbered in the same way if they are already in use.
#[derive(Clone)]
pub struct Scope {
    id: BuilderId,
    state: Rc<RefCell<State>>,
    /// Prefix of names: empty, or ending in `/`.
    prefix: String,
    /// Replaces the default name of the op.
    name: Option<String>,
    devices: DeviceStack,
    control: Vec<Operation>,
    colocated: Vec<Operation>,
}

/// A graph under construction: the builder's, or that of a body inside of it.
struct State {
    id: BuilderId,
    ops: Arc<OpRegistry>,
    /// `None` after `finish`, and when a body is complete.
    graph: Option<OpAssembler>,
    names: UniqueNames,
    /// Shared by all graphs of a builder.
    library: Rc<RefCell<Library>>,
    /// What connects a body with the graph around it; `None` for the builder's graph.
    enclosed: Option<Enclosed>,
}

impl Scope {
    /// Returns a scope in which names start with `name/`, or with `name_1/` and so on if `name` is
    /// in use.
    ///
    /// # Errors
    /// [`BuildError::InvalidName`].
    pub fn name_scope(&self, name: &str) -> Result<Self, BuildError> {
        let full = format!("{}{name}", self.prefix);
        if name.is_empty() || !is_node_name(full.as_bytes()) {
            return Err(BuildError::InvalidName(full));
        }
        let unique = self.state.borrow_mut().names.take(&full);
        Ok(Self {
            prefix: format!("{unique}/"),
            name: None,
            ..self.clone()
        })
    }

    /// Returns a scope whose operations are called `name`, to name the next one:
    /// `b.named("y").relu(x)`.
    #[must_use]
    pub fn named(&self, name: impl Into<String>) -> Self {
        Self {
            name: Some(name.into()),
            ..self.clone()
        }
    }

    /// Returns a scope whose operations request this device (`tf.device`), in any spelling of
    /// [`DeviceSpec`] and possibly partial: `/job:worker/task:1`, `/gpu:0`, `CPU:1`. If scopes are
    /// nested, the innermost one that sets a part of the name wins.
    ///
    /// # Errors
    /// [`BuildError::Device`].
    pub fn device(&self, device: &str) -> Result<Self, BuildError> {
        let devices = self.devices.entered(device);
        let devices = devices.map_err(|source| BuildError::Device {
            place: match &*self.prefix {
                "" => "device scope".to_owned(),
                prefix => format!("device scope in `{prefix}`"),
            },
            source,
        })?;
        Ok(Self {
            devices,
            ..self.clone()
        })
    }

    /// Like [`Self::device`], with a parsed specification.
    #[must_use]
    pub fn device_spec(&self, spec: DeviceSpec) -> Self {
        Self {
            devices: self.devices.merging(spec),
            ..self.clone()
        }
    }

    /// Returns a scope that ignores the devices of outer scopes (`tf.device(None)`).
    #[must_use]
    pub fn without_device(&self) -> Self {
        Self {
            devices: self.devices.reset(),
            ..self.clone()
        }
    }

    /// Returns a scope whose operations request the device that a function returns (`tf.device` of
    /// a function). It *replaces* the device of inner scopes, which the function receives
    /// ([`NewOperation::device`]), and keeps its spelling unless an outer scope is merged with it.
    /// If the function returns `None`, the operation is refused with [`BuildError::NoDevice`].
    ///
    /// ```
    /// use placewright::builder::GraphBuilder;
    ///
    /// let b = GraphBuilder::new("by op");
    /// let by_op = b.device("/job:worker")?.device_function(|operation| {
    ///     let device = if operation.op() == "MatMul" { "/gpu:0" } else { operation.device() };
    ///     Some(device.to_owned())
    /// });
    /// let x = by_op.placeholder::<f32>("x", [2, 2])?;
    /// by_op.named("y").matmul(x, x)?;
    /// let graph = b.finish();
    /// assert_eq!(graph.requested(graph.find_node("y").unwrap()), "/job:worker/device:GPU:0");
    /// # Ok::<(), placewright::builder::BuildError>(())
    /// ```
    #[must_use]
    pub fn device_function(
        &self,
        function: impl Fn(&NewOperation<'_>) -> Option<String> + 'static,
    ) -> Self {
        Self {
            devices: self.devices.replacing(function),
            ..self.clone()
        }
    }

    /// Returns a scope whose operations also run after these. Constants that operations create from
    /// scalars and arrays do not wait. In a body, the node that runs the body waits for operations
    /// outside of it.
    #[must_use]
    pub fn control_dependencies<O: Into<Operation>>(
        &self,
        operations: impl IntoIterator<Item = O>,
    ) -> Self {
        let mut scope = self.clone();
        scope
            .control
            .extend(operations.into_iter().map(Into::<Operation>::into));
        scope
    }

    /// Returns a scope whose operations are on the device of `operation`, by the attribute
    /// `_class`. As in TensorFlow, they request the device of `operation` and ignore outer device
    /// scopes. In a body, `operation` must belong to the same body.
    #[must_use]
    pub fn colocate_with(&self, operation: impl Into<Operation>) -> Self {
        let mut scope = self.clone();
        scope.colocated.push(operation.into());
        scope.devices = DeviceStack::default();
        scope
    }

    /// Returns a scope whose operations are not colocated with those of outer scopes
    /// (`tf.compat.v1.colocate_with(None, ignore_existing=True)`); outer device scopes apply again.
    #[must_use]
    pub fn without_colocation(&self) -> Self {
        let mut scope = self.clone();
        scope.colocated.clear();
        scope.devices = DeviceStack::default();
        scope
    }

    /// Starts an operation of any op of the registry.
    pub fn op(&self, op: &str) -> OpBuilder<'_> {
        OpBuilder::new(self, op, op)
    }

    /// Returns output `slot` of an operation.
    ///
    /// # Errors
    /// [`BuildError::NoSuchOutput`], [`BuildError::OutputType`] if it is not of type `T`,
    /// [`BuildError::Foreign`].
    pub fn output<T: ValueType>(
        &self,
        operation: Operation,
        slot: u32,
    ) -> Result<Value<T>, BuildError> {
        self.read(operation, |graph, node| {
            let found = graph.output(node, slot as usize);
            let found = found.ok_or_else(|| BuildError::NoSuchOutput {
                node: graph.node_name(node).to_owned(),
                op: graph.op(node).to_owned(),
                slot,
                n_outputs: graph.n_outputs(node),
            })?;
            match T::DTYPE {
                Some(expected) if expected != found.dtype => Err(BuildError::OutputType {
                    tensor: format!("{}:{slot}", graph.node_name(node)),
                    op: graph.op(node).to_owned(),
                    expected,
                    found: found.dtype,
                }),
                _ => Ok(Value::new(operation, slot)),
            }
        })
    }

    /// Returns a value with the element type `T`, which the app knows.
    ///
    /// # Errors
    /// [`BuildError::OutputType`] if it is not of type `T`, [`BuildError::Foreign`].
    pub fn typed<T: ValueType>(&self, value: Value) -> Result<Value<T>, BuildError> {
        self.output(value.operation, value.slot)
    }

    /// Returns the name of an operation, or of the one that produces a value.
    ///
    /// # Errors
    /// [`BuildError::Foreign`], [`BuildError::Finished`].
    pub fn name(&self, operation: impl Into<Operation>) -> Result<String, BuildError> {
        self.read(operation.into(), |graph, node| {
            Ok(graph.node_name(node).to_owned())
        })
    }

    /// Returns `node:output` of a value, for feeds and fetches.
    ///
    /// # Errors
    /// [`BuildError::Foreign`], [`BuildError::Finished`].
    pub fn tensor_name<T: ValueType>(&self, value: Value<T>) -> Result<String, BuildError> {
        Ok(format!("{}:{}", self.name(value)?, value.slot))
    }

    /// Returns the element type of a value.
    ///
    /// # Errors
    /// [`BuildError::Foreign`], [`BuildError::Finished`].
    pub fn dtype<T: ValueType>(&self, value: Value<T>) -> Result<DType, BuildError> {
        Ok(self.described(value)?.dtype)
    }

    /// Returns what is known of the shape of a value.
    ///
    /// # Errors
    /// [`BuildError::Foreign`], [`BuildError::Finished`].
    pub fn shape<T: ValueType>(&self, value: Value<T>) -> Result<PartialShape, BuildError> {
        Ok(self.described(value)?.shape)
    }

    fn described<T: ValueType>(&self, value: Value<T>) -> Result<Output, BuildError> {
        self.read(value.operation, |graph, node| {
            let output = graph.output(node, value.slot as usize);
            Ok(output.expect("a value is an output of its operation"))
        })
    }

    fn read<R>(
        &self,
        operation: Operation,
        read: impl FnOnce(&GraphAssembler, NodeId) -> Result<R, BuildError>,
    ) -> Result<R, BuildError> {
        let place = "the value or operation";
        let state = body::find(&self.state, operation.builder)
            .ok_or_else(|| self.foreign(operation.builder, place.to_owned()))?;
        let state = state.borrow();
        let graph = state.graph.as_ref().ok_or(BuildError::Finished)?;
        read(graph.graph(), operation.node)
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("prefix", &self.prefix)
            .field("name", &self.name)
            .field("devices", &self.devices)
            .finish_non_exhaustive()
    }
}
