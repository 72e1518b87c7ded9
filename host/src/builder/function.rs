//! Functions of the graph's library, and calls of them.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::builder::Scope;
use crate::builder::body::Body;
use crate::builder::body::Library;
use crate::builder::error::BuildError;
use crate::builder::error::TypeMismatch;
use crate::builder::group::TypedValues;
use crate::builder::group::Values;
use crate::builder::group::regroup;
use crate::builder::node::OpBuilder;
use crate::builder::value::BuilderId;
use crate::builder::value::Operation;
use crate::builder::value::Value;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Input;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::graph::is_node_name;
use crate::ops::Known;
use crate::ops::OpAssembler;
use crate::ops::OpInput;
use crate::ops::OpNode;
use crate::ops::OpNodeError;
use crate::ops::OpRegistry;
use crate::ops::ShapeError;
use crate::ops::input_shapes;
use crate::tensor::DType;
use crate::tensor::PartialShape;

/// Maximum number of nodes whose shapes are inferred again for one call: functions that call each
/// other twice could describe any number.
const N_INFERRED_MAX: usize = 10_000;

/// Element type and shape of an argument, for [`Scope::function_with`]. A [`DType`] converts into
/// it, with an unknown shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    dtype: DType,
    shape: PartialShape,
}

impl Parameter {
    /// Returns an argument of this type and shape.
    pub fn new(dtype: DType, shape: impl Into<PartialShape>) -> Self {
        Self {
            dtype,
            shape: shape.into(),
        }
    }
}

impl From<DType> for Parameter {
    fn from(dtype: DType) -> Self {
        Self::new(dtype, PartialShape::unknown())
    }
}

/// A function of a builder's library, with the types of its arguments and results.
/// [`Scope::call`] runs it. Valid only for the builder that created it.
pub struct TypedFunction<A, R> {
    name: Arc<str>,
    root: BuilderId,
    parameters: Vec<Parameter>,
    captured: Vec<Value>,
    after: Vec<Operation>,
    results: Vec<DType>,
    is_stateful: bool,
    marker: PhantomData<fn(A) -> R>,
}

impl<A, R> TypedFunction<A, R> {
    /// Returns its name in the library.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<A, R> Clone for TypedFunction<A, R> {
    fn clone(&self) -> Self {
        Self {
            name: Arc::clone(&self.name),
            root: self.root,
            parameters: self.parameters.clone(),
            captured: self.captured.clone(),
            after: self.after.clone(),
            results: self.results.clone(),
            is_stateful: self.is_stateful,
            marker: PhantomData,
        }
    }
}

impl<A, R> fmt::Debug for TypedFunction<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedFunction")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Scope {
    /// Adds a function to the graph's library, called `name`, or `name_1` and so on if the name is
    /// in use. Its argument types follow from the closure; their shapes are unknown inside.
    ///
    /// The body adds operations to the scope that it receives, and may use values of all scopes
    /// around, which each call passes on.
    ///
    /// ```
    /// use placewright::builder::GraphBuilder;
    /// use placewright::builder::Value;
    ///
    /// let b = GraphBuilder::new("squares");
    /// let x = b.placeholder::<f32>("x", [2, 3])?;
    /// let square = b.function("square", |b, (x,): (Value<f32>,)| b.mul(x, x))?;
    /// let y = b.call(&square, (b.call(&square, (x,))?,))?;
    /// assert_eq!(b.shape(y)?.to_string(), "[2,3]");
    /// assert_eq!(b.finish().functions().len(), 1);
    /// # Ok::<(), placewright::builder::BuildError>(())
    /// ```
    ///
    /// # Errors
    /// [`BuildError::InvalidName`], errors of the body.
    pub fn function<A: TypedValues, R: Values>(
        &self,
        name: &str,
        body: impl FnOnce(&Self, A) -> Result<R, BuildError>,
    ) -> Result<TypedFunction<A, R>, BuildError> {
        let dtypes = A::types().unwrap_or_default().into_iter().flatten();
        self.function_with(name, dtypes, body)
    }

    /// Like [`Self::function`], with the types and shapes of the arguments, for groups whose types
    /// are not known at compile time (`Vec<Value>`, [`super::Dynamic`]), and for bodies whose
    /// shapes depend on them.
    ///
    /// ```
    /// use placewright::builder::GraphBuilder;
    /// use placewright::builder::Parameter;
    /// use placewright::builder::Value;
    /// use placewright::tensor::DType;
    ///
    /// let b = GraphBuilder::new("a layer");
    /// let x = b.placeholder::<f32>("x", [None, Some(4)])?;
    /// let w = b.constant([4, 2], &[0.5f32; 8])?;
    /// let parameters = [Parameter::new(DType::F32, [None, Some(4)])];
    /// let dense = b.function_with("dense", parameters, |b, (x,): (Value<f32>,)| b.matmul(x, w))?;
    /// assert_eq!(b.shape(b.call(&dense, (x,))?)?.to_string(), "[?,2]");
    /// # Ok::<(), placewright::builder::BuildError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::function`]; [`BuildError::Parameters`] if number or types are not those of `A`.
    pub fn function_with<A: Values, R: Values>(
        &self,
        name: &str,
        parameters: impl IntoIterator<Item = impl Into<Parameter>>,
        body: impl FnOnce(&Self, A) -> Result<R, BuildError>,
    ) -> Result<TypedFunction<A, R>, BuildError> {
        if !is_node_name(name.as_bytes()) {
            return Err(BuildError::InvalidName(name.to_owned()));
        }
        let parameters: Vec<Parameter> = parameters.into_iter().map(Into::into).collect();
        check_parameters::<A>(name, &parameters)?;
        let name = {
            let state = self.state.borrow();
            state.library.borrow_mut().take_name(name, &state.ops)
        };
        let inside = Body::open(self, format!("function `{name}`"), &name, "")?;
        let mut args = Vec::with_capacity(parameters.len());
        for (index, parameter) in parameters.iter().enumerate() {
            let input = OpInput {
                dtype: parameter.dtype,
                shape: parameter.shape.clone(),
                known: Known::Nothing,
            };
            args.push(inside.arg(&format!("arg{index}"), input)?);
        }
        let returned = body(&inside.scope, regroup(&args, &name)?)?;
        let returned = inside.results(&returned.values())?;
        let of_result = |&value: &Value| Ok(inside.scope.described(value)?.dtype);
        let results: Result<Vec<DType>, BuildError> = returned.iter().map(of_result).collect();
        let results = results?;
        let captured = inside.captured();
        let after = inside.after();
        args.extend(inside.standing_for(&captured)?);
        let closed = inside.close(Arc::clone(&name), &args, &returned)?;
        let state = self.state.borrow();
        let mut library = state.library.borrow_mut();
        library.keep(&name);
        Ok(TypedFunction {
            name,
            root: library.root,
            parameters,
            captured,
            after,
            results,
            is_stateful: closed.is_stateful,
            marker: PhantomData,
        })
    }

    /// Runs a function of the library. The node has the function's name; the shapes of the results
    /// follow from those of `args`, unless the function is very large.
    ///
    /// Adds a node `PartitionedCall`, or `StatefulPartitionedCall` if the function has stateful
    /// operations.
    ///
    /// # Errors
    /// [`BuildError::Foreign`] if the function is of another builder, [`BuildError::OtherBody`] if
    /// it uses values of a body that this scope is not in, [`BuildError::ArgumentCount`] and
    /// [`BuildError::ArgumentType`] for groups that are not known at compile time,
    /// [`BuildError::Shape`] if the shapes contradict the function.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "groups are handles, which are made on the spot"
    )]
    pub fn call<A: Values, R: Values>(
        &self,
        function: &TypedFunction<A, R>,
        args: A,
    ) -> Result<R, BuildError> {
        let op = match function.is_stateful {
            true => "StatefulPartitionedCall",
            false => "PartitionedCall",
        };
        let node = self.next_name(&function.name)?;
        let place = |what: &str| format!("node `{node}` ({op}): {what}");
        let root = self.state.borrow().library.borrow().root;
        if root != function.root {
            let what = format!("function `{}`", function.name);
            return Err(BuildError::Foreign {
                place: place(&what),
            });
        }
        let args = args.values();
        let n_args = args.len();
        let mut inputs = Vec::with_capacity(n_args + function.captured.len());
        for (index, value) in args.into_iter().enumerate() {
            inputs.push(self.resolve(value, || place(&format!("argument {index}")))?);
        }
        for &value in &function.captured {
            let what = format!("a value that function `{}` uses", function.name);
            inputs.push(self.resolve(value, || place(&what))?);
        }
        let shapes = {
            let state = self.state.borrow();
            let graph = state.graph.as_ref().ok_or(BuildError::Finished)?;
            let of_input = |value: &Value| {
                let input = graph.op_input(value.operation.node, value.slot);
                input.expect("a value is an output of its operation")
            };
            let mut known: Vec<OpInput> = inputs.iter().map(of_input).collect();
            function.check_args(&node, op, &mut known[..n_args], |index| {
                let value = inputs[index];
                let name = graph.graph().node_name(value.operation.node);
                format!("{name}:{}", value.slot)
            })?;
            let library = state.library.borrow();
            let mut again = Again {
                library: &library,
                ops: &state.ops,
                n_left: N_INFERRED_MAX,
            };
            let shapes = again.results(&function.name, &known);
            shapes.map_err(|source| BuildError::Shape {
                node: node.clone(),
                op: op.to_owned(),
                inputs: input_shapes(&known),
                source,
            })?
        };
        let mut new = OpBuilder::new(self, op, &function.name)
            .operands(inputs)
            .attr("Tout", function.results.clone())
            .attr(
                "f",
                AttrValue::Function(Arc::clone(&function.name), AttrSet::default()),
            )
            .output_shapes(shapes);
        for &operation in &function.after {
            new = new.control(operation);
        }
        let operation = new.finish()?;
        let slots = 0..u32::try_from(function.results.len()).unwrap_or(u32::MAX);
        let results: Vec<Value> = slots.map(|slot| Value::new(operation, slot)).collect();
        regroup(&results, &node)
    }
}

impl<A, R> TypedFunction<A, R> {
    /// Checks the arguments of a call, and adds what the function declares of their shapes.
    fn check_args(
        &self,
        node: &str,
        op: &str,
        args: &mut [OpInput],
        name_of: impl Fn(usize) -> String,
    ) -> Result<(), BuildError> {
        if args.len() != self.parameters.len() {
            let dtypes = self.parameters.iter().map(|arg| arg.dtype.name());
            let dtypes: Vec<&str> = dtypes.collect();
            return Err(BuildError::ArgumentCount {
                node: node.to_owned(),
                op: op.to_owned(),
                expected: format!(
                    "{} by function `{}`: {}",
                    dtypes.len(),
                    self.name,
                    dtypes.join(", ")
                ),
                found: args.len(),
            });
        }
        let given = input_shapes(args);
        for (index, (arg, parameter)) in args.iter_mut().zip(&self.parameters).enumerate() {
            if arg.dtype != parameter.dtype {
                return Err(BuildError::ArgumentType(Box::new(TypeMismatch {
                    node: node.to_owned(),
                    op: op.to_owned(),
                    arg: format!("args[{index}]"),
                    expected: parameter.dtype,
                    expected_ref: false,
                    reason: format!(" (function `{}`)", self.name),
                    producer: name_of(index),
                    found: arg.dtype,
                    found_ref: false,
                })));
            }
            let merged = arg.shape.merge(&parameter.shape);
            arg.shape = merged.ok_or_else(|| BuildError::Shape {
                node: node.to_owned(),
                op: op.to_owned(),
                inputs: given.clone(),
                source: ShapeError::new(format!(
                    "argument {index} of function `{}` is declared as {}, not {}",
                    self.name, parameter.shape, arg.shape
                )),
            })?;
        }
        Ok(())
    }
}

/// Checks that parameters are those of a group.
fn check_parameters<A: Values>(name: &str, parameters: &[Parameter]) -> Result<(), BuildError> {
    let Some(types) = A::types() else {
        return Ok(());
    };
    let wrong = |problem| BuildError::Parameters {
        function: name.to_owned(),
        problem,
    };
    if types.len() != parameters.len() {
        return Err(wrong(format!(
            "{} arguments are declared, its body takes {}",
            parameters.len(),
            types.len()
        )));
    }
    for (index, (dtype, parameter)) in types.iter().zip(parameters).enumerate() {
        if let Some(dtype) = dtype
            && *dtype != parameter.dtype
        {
            return Err(wrong(format!(
                "argument {index} is declared as {}, its body takes {dtype}",
                parameter.dtype
            )));
        }
    }
    Ok(())
}

/// Infers the shapes of functions again, with the arguments of a call.
struct Again<'a> {
    library: &'a Library,
    ops: &'a OpRegistry,
    /// Number of nodes that may still be inferred.
    n_left: usize,
}

impl Again<'_> {
    /// Returns the shapes of the results; fewer, or none, if the function is too large.
    fn results(&mut self, name: &str, args: &[OpInput]) -> Result<Vec<PartialShape>, ShapeError> {
        let Some(function) = self.library.get(name) else {
            return Ok(Vec::new());
        };
        let graph = &*function.graph;
        let Some(left) = self.n_left.checked_sub(graph.n_nodes()) else {
            return Ok(Vec::new());
        };
        self.n_left = left;
        let mut again = OpAssembler::new(name, super::PRODUCER_VERSION, usize::MAX);
        for node in graph.nodes() {
            // Nodes keep their ids.
            if let Some(arg) = function.args.iter().position(|&arg| arg == node) {
                let appended = again.append_arg(graph.node_name(node), args[arg].clone());
                appended.map_err(|error| ShapeError::new(error.to_string()))?;
                continue;
            }
            let failed = |problem: &dyn fmt::Display| {
                let (node, op) = (graph.node_name(node), graph.op(node));
                ShapeError::new(format!(
                    "in function `{name}`: node `{node}` ({op}): {problem}"
                ))
            };
            let Some(op) = self.ops.get(graph.op(node)) else {
                return Ok(Vec::new());
            };
            let mut edges = Vec::new();
            let mut inputs = Vec::new();
            for edge in graph.predecessors().range(node.index()) {
                let producer = NodeId(graph.predecessors().items[edge]);
                edges.push(match graph.edge_tensors()[edge] {
                    NONE => Input::Control(producer),
                    tensor => {
                        let slot = graph.producer(TensorId(tensor)).1;
                        let slot = u32::try_from(slot).unwrap_or(u32::MAX);
                        let input = again.op_input(producer, slot);
                        inputs.push(input.expect("producers precede their consumers"));
                        Input::Data {
                            node: producer,
                            slot,
                        }
                    }
                });
            }
            let attrs = graph.attrs(node);
            let called = match attrs.get("f") {
                Some(AttrValue::Function(called, _)) if called.as_ref() != name => self
                    .results(called, &inputs)
                    .map_err(|error| failed(&error))?,
                _ => Vec::new(),
            };
            let inferred = again.infer(op, attrs, &inputs, |shapes| {
                for (shape, known) in shapes.iter_mut().zip(&called) {
                    if let Some(merged) = shape.merge(known) {
                        *shape = merged;
                    }
                }
                Ok(())
            });
            let inferred = inferred.map_err(|error| match error {
                OpNodeError::TooManyOutputs => failed(&"it has too many outputs"),
                OpNodeError::Signature(error) => failed(&error),
                OpNodeError::Shape(error) => failed(&error),
            })?;
            let new = OpNode {
                name: graph.node_name(node),
                op,
                attrs,
                edges: &edges,
                requested_device: "",
            };
            let appended = again.append(&new, inferred);
            appended.map_err(|error| failed(&error))?;
        }
        let shape = |&(node, slot): &(NodeId, u32)| {
            let output = again.op_input(node, slot);
            output.map_or_else(PartialShape::unknown, |output| output.shape)
        };
        Ok(function.results.iter().map(shape).collect())
    }
}
