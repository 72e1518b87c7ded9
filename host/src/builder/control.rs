//! Branches and loops.

use crate::builder::Scope;
use crate::builder::body::Body;
use crate::builder::body::union;
use crate::builder::error::BuildError;
use crate::builder::group::Values;
use crate::builder::group::regroup;
use crate::builder::node::OpBuilder;
use crate::builder::value::Operand;
use crate::builder::value::Operation;
use crate::builder::value::Value;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::is_node_name;
use crate::ops::Known;
use crate::ops::OpInput;
use crate::ops::ShapeError;
use crate::tensor::DType;
use crate::tensor::PartialShape;

/// A branch of [`Scope::switch_case`].
pub type Branch<'a, R> = Box<dyn FnOnce(&Scope) -> Result<R, BuildError> + 'a>;

/// Options of [`Scope::while_loop_with`].
#[derive(Debug, Clone, Default)]
pub struct WhileLoop {
    shape_invariants: Option<Vec<PartialShape>>,
    maximum_iterations: Option<Operand<i32>>,
    parallel_iterations: Option<u32>,
}

impl WhileLoop {
    /// Declares, per variable, what is known of its shape in every iteration. By default, variables
    /// keep the shapes of their initial values.
    #[must_use]
    pub fn with_shape_invariants(
        mut self,
        shapes: impl IntoIterator<Item = impl Into<PartialShape>>,
    ) -> Self {
        self.shape_invariants = Some(shapes.into_iter().map(Into::into).collect());
        self
    }

    /// Ends the loop after this number of iterations, a number or a scalar. The loop counts them by
    /// a variable of its own, as in TensorFlow.
    #[must_use]
    pub fn with_maximum_iterations(mut self, n: impl Into<Operand<i32>>) -> Self {
        self.maximum_iterations = Some(n.into());
        self
    }

    /// Sets how many iterations may run at the same time; the default is TensorFlow's 10.
    #[must_use]
    pub fn with_parallel_iterations(mut self, n: u32) -> Self {
        self.parallel_iterations = Some(n);
        self
    }
}

/// A complete branch of a node.
struct Built {
    body: Body,
    results: Vec<Value>,
}

impl Scope {
    /// Runs one of two branches: `then` if `predicate` is true, `otherwise` if it is false. Both
    /// return the same number and types of values. A dimension in which they differ is unknown in
    /// the result. A branch that is not taken has no effects.
    ///
    /// The branches add operations to the scope that they receive, and may use values of all scopes
    /// around. Adds a node `StatelessIf`, or `If` if a branch has stateful operations.
    ///
    /// ```
    /// use placewright::builder::GraphBuilder;
    /// use placewright::tensor::Shape;
    ///
    /// let b = GraphBuilder::new("steps");
    /// let x = b.placeholder::<f32>("x", [3])?;
    /// let is_up = b.placeholder::<bool>("is_up", Shape::scalar())?;
    /// let y = b.cond(is_up, |b| b.add(x, 1.0), |b| b.sub(x, 1.0))?;
    /// assert_eq!(b.shape(y)?.to_string(), "[3]");
    /// assert_eq!(b.finish().functions().len(), 2);
    /// # Ok::<(), placewright::builder::BuildError>(())
    /// ```
    ///
    /// # Errors
    /// [`BuildError::ResultCount`], [`BuildError::ResultType`], [`BuildError::Shape`] if
    /// `predicate` is not a scalar, errors of the branches.
    pub fn cond<R: Values>(
        &self,
        predicate: Value<bool>,
        then: impl FnOnce(&Self) -> Result<R, BuildError>,
        otherwise: impl FnOnce(&Self) -> Result<R, BuildError>,
    ) -> Result<R, BuildError> {
        let node = self.next_name("cond")?;
        let predicate = self.scalar_selector(&node, "If", "cond", predicate.erase())?;
        let branches = vec![
            self.branch(&node, "then branch", "_then", then)?,
            self.branch(&node, "else branch", "_else", otherwise)?,
        ];
        regroup(
            &self.add_branches("cond", &node, "If", predicate, branches)?,
            &node,
        )
    }

    /// Runs the branch that `index` selects; an index that no branch has selects the last one, as
    /// in TensorFlow. Branches are [`Branch`]es, or closures of one type.
    ///
    /// Shapes, types, captured values and effects are those of [`Self::cond`]. Adds a node
    /// `StatelessCase`, or `Case` if a branch has stateful operations.
    ///
    /// ```
    /// use placewright::builder::Branch;
    /// use placewright::builder::GraphBuilder;
    /// use placewright::builder::Value;
    /// use placewright::tensor::Shape;
    ///
    /// let b = GraphBuilder::new("calculator");
    /// let x = b.placeholder::<f32>("x", [3])?;
    /// let op = b.placeholder::<i32>("op", Shape::scalar())?;
    /// let branches: Vec<Branch<'_, Value<f32>>> = vec![
    ///     Box::new(|b| b.square(x)),
    ///     Box::new(|b| b.neg(x)),
    ///     Box::new(|_| Ok(x)),
    /// ];
    /// b.switch_case(op, branches)?;
    /// # Ok::<(), placewright::builder::BuildError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::cond`]; [`BuildError::Attr`] if there are no branches.
    pub fn switch_case<R: Values, F>(
        &self,
        index: Value<i32>,
        branches: impl IntoIterator<Item = F>,
    ) -> Result<R, BuildError>
    where
        F: FnOnce(&Self) -> Result<R, BuildError>,
    {
        let node = self.next_name("switch_case")?;
        let index = self.scalar_selector(&node, "Case", "branch_index", index.erase())?;
        let built = branches.into_iter().enumerate().map(|(number, branch)| {
            let part = format!("_branch{number}");
            self.branch(&node, &format!("branch {number}"), &part, branch)
        });
        let built = built.collect::<Result<Vec<_>, _>>()?;
        regroup(
            &self.add_branches("switch_case", &node, "Case", index, built)?,
            &node,
        )
    }

    /// Repeats `body` as long as `condition` is true. Both receive the variables of the loop;
    /// `body` returns their next values. Returns their last values: the initial ones if `condition`
    /// is false at once.
    ///
    /// A variable keeps the element type and the shape of its initial value;
    /// [`Self::while_loop_with`] relaxes the shape. Condition and body add operations to the scope
    /// that they receive, and may use values of all scopes around, which are the same in every
    /// iteration. Adds a node `StatelessWhile`, or `While` if one of both has stateful operations.
    ///
    /// ```
    /// use placewright::builder::GraphBuilder;
    /// use placewright::tensor::Shape;
    ///
    /// let b = GraphBuilder::new("sum of the numbers below n");
    /// let n = b.placeholder::<i32>("n", Shape::scalar())?;
    /// let (i, sum) = b.while_loop(
    ///     (b.scalar(0)?, b.scalar(0)?),
    ///     |b, (i, _)| b.less(i, n),
    ///     |b, (i, sum)| Ok((b.add(i, 1)?, b.add(sum, i)?)),
    /// )?;
    /// assert_eq!(b.shape(sum)?.to_string(), "[]");
    /// # Ok::<(), placewright::builder::BuildError>(())
    /// ```
    ///
    /// # Errors
    /// [`BuildError::VariableShape`], [`BuildError::ResultCount`], [`BuildError::ResultType`],
    /// [`BuildError::Shape`] if the condition is not a scalar, errors of condition and body.
    pub fn while_loop<V: Values>(
        &self,
        variables: V,
        condition: impl FnOnce(&Self, V) -> Result<Value<bool>, BuildError>,
        body: impl FnOnce(&Self, V) -> Result<V, BuildError>,
    ) -> Result<V, BuildError> {
        self.while_loop_with(variables, WhileLoop::default(), condition, body)
    }

    /// Like [`Self::while_loop`], with options.
    ///
    /// ```
    /// use placewright::builder::GraphBuilder;
    /// use placewright::builder::WhileLoop;
    ///
    /// let b = GraphBuilder::new("doubled three times");
    /// let x = b.placeholder::<f32>("x", [4])?;
    /// let options = WhileLoop::default()
    ///     .with_shape_invariants([[None]])
    ///     .with_maximum_iterations(3);
    /// let always = b.scalar(true)?;
    /// let y = b.while_loop_with(x, options, |_, _| Ok(always), |b, x| b.concat([x, x], 0))?;
    /// assert_eq!(b.shape(y)?.to_string(), "[?]");
    /// # Ok::<(), placewright::builder::BuildError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::while_loop`]; [`BuildError::Shape`] if an initial value does not have the shape
    /// that is declared.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "groups are handles, which are made on the spot"
    )]
    pub fn while_loop_with<V: Values>(
        &self,
        variables: V,
        options: WhileLoop,
        condition: impl FnOnce(&Self, V) -> Result<Value<bool>, BuildError>,
        body: impl FnOnce(&Self, V) -> Result<V, BuildError>,
    ) -> Result<V, BuildError> {
        let node = self.next_name("while")?;
        let new = NewLoop::new(self, node, variables.values(), options)?;
        let decides = Body::open(
            self,
            format!("the condition of `{}`", new.node),
            &new.node,
            "_cond",
        )?;
        let condition_args = new.args(&decides)?;
        let decided = condition(&decides.scope, new.group(&condition_args)?)?;
        let repeats = Body::open(
            self,
            format!("the body of `{}`", new.node),
            &new.node,
            "_body",
        )?;
        let body_args = new.args(&repeats)?;
        let next = body(&repeats.scope, new.group(&body_args)?)?;
        let node = new.node.clone();
        let outputs = new.finish(
            (decides, condition_args, decided),
            (repeats, body_args, next.values()),
        )?;
        regroup(&outputs, &node)
    }

    /// Returns the name that the next node will have.
    pub(super) fn next_name(&self, default: &str) -> Result<String, BuildError> {
        let name = self.name.as_deref().unwrap_or(default);
        let wanted = format!("{}{name}", self.prefix);
        if name.is_empty() || !is_node_name(wanted.as_bytes()) {
            return Err(BuildError::InvalidName(wanted));
        }
        Ok(self.state.borrow().names.unique(&wanted))
    }

    /// Returns the value that selects a branch, which must be a scalar.
    fn scalar_selector(
        &self,
        node: &str,
        op: &str,
        arg: &str,
        value: Value,
    ) -> Result<Value, BuildError> {
        let value = self.resolve(value, || format!("node `{node}` ({op}): argument `{arg}`"))?;
        let shape = self.described(value)?.shape;
        match shape.rank() {
            None | Some(0) => Ok(value),
            Some(_) => Err(shape_error(
                node,
                op,
                &shape,
                format!("`{arg}` must be a scalar"),
            )),
        }
    }

    /// Builds a branch of `node`.
    fn branch<R: Values>(
        &self,
        node: &str,
        what: &str,
        part: &str,
        build: impl FnOnce(&Self) -> Result<R, BuildError>,
    ) -> Result<Built, BuildError> {
        let body = Body::open(self, format!("the {what} of `{node}`"), node, part)?;
        let results = build(&body.scope)?.values();
        Ok(Built {
            results: body.results(&results)?,
            body,
        })
    }

    /// Adds the node of complete branches and returns its outputs.
    fn add_branches(
        &self,
        default: &str,
        node: &str,
        op: &str,
        selector: Value,
        branches: Vec<Built>,
    ) -> Result<Vec<Value>, BuildError> {
        let mut dtypes: Vec<DType> = Vec::new();
        let mut first: Option<&Built> = None;
        for branch in &branches {
            let expected = first.map(|first| (dtypes.as_slice(), &*first.body.title));
            let found = check_results(node, op, &branch.body, &branch.results, expected)?;
            if first.is_none() {
                dtypes = found;
                first = Some(branch);
            }
        }
        let captured = union(branches.iter().map(|branch| branch.body.captured()));
        let after = branches.iter().flat_map(|branch| branch.body.after());
        let after: Vec<Operation> = after.collect();
        let mut functions = Vec::with_capacity(branches.len());
        let mut shapes: Option<Vec<PartialShape>> = None;
        let mut is_stateful = false;
        for Built { body, results } in branches {
            let args = body.standing_for(&captured)?;
            let name = body.new_name();
            let closed = body.close(name, &args, &results)?;
            is_stateful |= closed.is_stateful;
            shapes = Some(match shapes {
                None => closed.shapes,
                Some(shapes) => {
                    let both = shapes.iter().zip(&closed.shapes);
                    both.map(|(a, b)| a.common(b)).collect()
                }
            });
            functions.push(AttrValue::Function(closed.name, AttrSet::default()));
        }
        let n_results = dtypes.len();
        let op = stateful_form(op, is_stateful);
        let mut new = OpBuilder::new(self, &op, default)
            .tensor(selector)
            .operands(captured)
            .attr("Tout", dtypes)
            .attr("output_shapes", shapes.unwrap_or_default());
        new = match <[AttrValue; 2]>::try_from(functions) {
            Ok([then, otherwise]) if default == "cond" => {
                new.attr("then_branch", then).attr("else_branch", otherwise)
            }
            Ok(both) => new.attr("branches", AttrValue::List(both.into())),
            Err(functions) => new.attr("branches", AttrValue::List(functions.into())),
        };
        for operation in after {
            new = new.control(operation);
        }
        let operation = new.finish()?;
        Ok(first_outputs(operation, n_results))
    }
}

/// A loop whose condition and body are being built.
struct NewLoop<'a> {
    scope: &'a Scope,
    node: String,
    options: WhileLoop,
    initial: Vec<Value>,
    /// Types and shapes of the variables.
    variables: Vec<(DType, PartialShape)>,
}

/// The op in messages, which do not depend on whether it is stateful.
const WHILE: &str = "While";

impl<'a> NewLoop<'a> {
    fn new(
        scope: &'a Scope,
        node: String,
        initial: Vec<Value>,
        options: WhileLoop,
    ) -> Result<Self, BuildError> {
        let resolve = |(index, value): (usize, Value)| {
            scope.resolve(value, || {
                format!("node `{node}` ({WHILE}): variable {index}")
            })
        };
        let initial = initial.into_iter().enumerate().map(resolve);
        let initial = initial.collect::<Result<Vec<_>, _>>()?;
        let described = initial.iter().map(|&value| {
            let output = scope.described(value)?;
            Ok((output.dtype, output.shape))
        });
        let mut variables = described.collect::<Result<Vec<_>, BuildError>>()?;
        if let Some(invariants) = &options.shape_invariants {
            let shapes: Vec<String> = variables
                .iter()
                .map(|(_, shape)| shape.to_string())
                .collect();
            let wrong = |problem| BuildError::Shape {
                node: node.clone(),
                op: WHILE.to_owned(),
                inputs: shapes.join(", "),
                source: ShapeError::new(problem),
            };
            if invariants.len() != variables.len() {
                return Err(wrong(format!(
                    "{} shape invariants are declared for {} variables",
                    invariants.len(),
                    variables.len()
                )));
            }
            for (index, ((_, shape), invariant)) in variables.iter_mut().zip(invariants).enumerate()
            {
                if !shape.implies(invariant) {
                    return Err(wrong(format!(
                        "variable {index} is {shape} before the loop, its declared invariant is \
                         {invariant}"
                    )));
                }
                *shape = invariant.clone();
            }
        }
        Ok(Self {
            scope,
            node,
            options,
            initial,
            variables,
        })
    }

    /// Returns the number of variables before those of the app: the counter of iterations.
    fn n_hidden(&self) -> usize {
        usize::from(self.options.maximum_iterations.is_some())
    }

    /// Adds arguments for the variables.
    fn args(&self, body: &Body) -> Result<Vec<Value>, BuildError> {
        let arg = |name: &str, dtype, shape: &PartialShape| {
            let known = Known::Nothing;
            let shape = shape.clone();
            body.arg(
                name,
                OpInput {
                    dtype,
                    shape,
                    known,
                },
            )
        };
        let mut args = Vec::with_capacity(self.n_hidden() + self.variables.len());
        if self.n_hidden() > 0 {
            args.push(arg("loop_counter", DType::I32, &PartialShape::scalar())?);
        }
        for (index, (dtype, shape)) in self.variables.iter().enumerate() {
            args.push(arg(&format!("variable{index}"), *dtype, shape)?);
        }
        Ok(args)
    }

    /// Returns the arguments that the app sees.
    fn group<V: Values>(&self, args: &[Value]) -> Result<V, BuildError> {
        regroup(&args[self.n_hidden()..], &self.node)
    }

    /// Adds the node and returns the outputs of the app's variables.
    fn finish(
        self,
        (decides, condition_args, decided): (Body, Vec<Value>, Value<bool>),
        (repeats, body_args, next): (Body, Vec<Value>, Vec<Value>),
    ) -> Result<Vec<Value>, BuildError> {
        let decided = self.decided(&decides, &condition_args, decided)?;
        let mut next = repeats.results(&next)?;
        self.check_next(&repeats, &next)?;
        if self.n_hidden() > 0 {
            let counter: Value<i32> = repeats.scope.typed(body_args[0])?;
            next.insert(
                0,
                repeats
                    .scope
                    .named("loop_counter_next")
                    .add(counter, 1)?
                    .erase(),
            );
        }
        let captured = union([decides.captured(), repeats.captured()]);
        let mut after = decides.after();
        after.extend(repeats.after());
        let mut condition_args = condition_args;
        condition_args.extend(decides.standing_for(&captured)?);
        let mut body_args = body_args;
        let unchanged = repeats.standing_for(&captured)?;
        body_args.extend(&unchanged);
        next.extend(&unchanged);

        let mut shapes = vec![PartialShape::scalar(); self.n_hidden()];
        shapes.extend(self.variables.iter().map(|(_, shape)| shape.clone()));
        for &value in &captured {
            shapes.push(self.scope.described(value)?.shape);
        }
        let condition = decides.new_name();
        let condition = decides.close(condition, &condition_args, &[decided])?;
        let body = repeats.new_name();
        let body = repeats.close(body, &body_args, &next)?;
        let op = stateful_form(WHILE, condition.is_stateful || body.is_stateful);
        let counter = (self.n_hidden() > 0).then(|| Operand::from(0i32).erase());
        let variables = self.initial.iter().chain(&captured);
        let inputs = counter
            .into_iter()
            .chain(variables.map(|&value| value.into()));
        let function = |name| AttrValue::Function(name, AttrSet::default());
        let mut new = OpBuilder::new(self.scope, &op, "while")
            .operands(inputs.collect::<Vec<Operand>>())
            .attr("cond", function(condition.name))
            .attr("body", function(body.name))
            .attr("output_shapes", shapes);
        if let Some(n) = self.options.parallel_iterations {
            new = new.attr("parallel_iterations", i64::from(n));
        }
        for operation in after {
            new = new.control(operation);
        }
        let n_outputs = self.n_hidden() + self.initial.len();
        let outputs = first_outputs(new.finish()?, n_outputs);
        Ok(outputs[self.n_hidden()..].to_vec())
    }

    /// Returns whether the loop continues, also by its number of iterations.
    fn decided(
        &self,
        decides: &Body,
        args: &[Value],
        decided: Value<bool>,
    ) -> Result<Value, BuildError> {
        let decided = decides.results(&[decided.erase()])?[0];
        let shape = decides.scope.described(decided)?.shape;
        if shape.rank().is_some_and(|rank| rank > 0) {
            let problem = "the condition must be a scalar".to_owned();
            return Err(shape_error(&self.node, WHILE, &shape, problem));
        }
        let Some(n) = &self.options.maximum_iterations else {
            return Ok(decided);
        };
        let counter: Value<i32> = decides.scope.typed(args[0])?;
        let scope = decides.scope.name_scope("maximum_iterations")?;
        let goes_on = scope.less(counter, n.clone())?;
        Ok(scope
            .logical_and(goes_on, decided.retyped::<bool>())?
            .erase())
    }

    /// Checks that the variables keep their types and shapes.
    fn check_next(&self, repeats: &Body, next: &[Value]) -> Result<(), BuildError> {
        let dtypes: Vec<DType> = self.variables.iter().map(|(dtype, _)| *dtype).collect();
        let expected = Some((dtypes.as_slice(), "the variables of the loop"));
        check_results(&self.node, WHILE, repeats, next, expected)?;
        for (variable, (&value, (_, before))) in next.iter().zip(&self.variables).enumerate() {
            let after = repeats.scope.described(value)?.shape;
            if !after.implies(before) {
                return Err(BuildError::VariableShape {
                    node: self.node.clone(),
                    op: WHILE.to_owned(),
                    variable,
                    before: Box::new(before.clone()),
                    after: Box::new(after),
                });
            }
        }
        Ok(())
    }
}

/// Checks the results of a body, and returns their types. `expected`: the types that they must
/// have, and whose types these are.
fn check_results(
    node: &str,
    op: &str,
    body: &Body,
    results: &[Value],
    expected: Option<(&[DType], &str)>,
) -> Result<Vec<DType>, BuildError> {
    if let Some((expected, of)) = expected
        && expected.len() != results.len()
    {
        return Err(BuildError::ResultCount {
            node: node.to_owned(),
            op: op.to_owned(),
            body: body.title.to_string(),
            expected: format!("{} as in {of}", expected.len()),
            found: results.len(),
        });
    }
    let mut dtypes = Vec::with_capacity(results.len());
    for (result, &value) in results.iter().enumerate() {
        let found = body.scope.described(value)?.dtype;
        if let Some((expected, of)) = expected
            && expected[result] != found
        {
            return Err(BuildError::ResultType {
                node: node.to_owned(),
                op: op.to_owned(),
                body: body.title.to_string().into(),
                result,
                expected: expected[result],
                reason: format!("as in {of}").into(),
                found,
            });
        }
        dtypes.push(found);
    }
    Ok(dtypes)
}

/// Returns the op, or its form without effects.
fn stateful_form(op: &str, is_stateful: bool) -> String {
    match is_stateful {
        true => op.to_owned(),
        false => format!("Stateless{op}"),
    }
}

fn first_outputs(operation: Operation, n: usize) -> Vec<Value> {
    let slots = 0..u32::try_from(n).unwrap_or(u32::MAX);
    slots.map(|slot| Value::new(operation, slot)).collect()
}

fn shape_error(node: &str, op: &str, shape: &PartialShape, problem: String) -> BuildError {
    BuildError::Shape {
        node: node.to_owned(),
        op: op.to_owned(),
        inputs: shape.to_string(),
        source: ShapeError::new(problem),
    }
}
