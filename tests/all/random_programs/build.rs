//! Builds the graph of a program by a `GraphBuilder`.

use placewright::builder::Branch;
use placewright::builder::BuildError;
use placewright::builder::GraphBuilder;
use placewright::builder::Operation;
use placewright::builder::Parameter;
use placewright::builder::Scope;
use placewright::builder::TypedFunction;
use placewright::builder::Value;
use placewright::builder::WhileLoop;
use placewright::graph::Graph;
use placewright::tensor::Boolean;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;
use placewright::tensor::Tensor;

use super::program::Binary;
use super::program::Block;
use super::program::Comparison;
use super::program::Data;
use super::program::Kind;
use super::program::Program;
use super::program::Statement;
use super::program::Unary;

/// Returns the graph. Runs feed `feed0` and so on, and fetch `result0` and so on, then `last0` and
/// so on, the last values of the variables.
pub(super) fn graph(program: &Program) -> Result<Graph, BuildError> {
    let b = GraphBuilder::new("random");
    let mut env = Env::default();
    for (index, kind) in program.feeds.iter().enumerate() {
        let value = b
            .op("Placeholder")
            .name(format!("feed{index}"))
            .attr("dtype", kind.dtype)
            .attr("shape", PartialShape::from(kind.dims))
            .value()?;
        env.values.push(value);
    }
    for (index, (initial, device)) in program.variables.iter().enumerate() {
        let scope = b.device(&format!("/device:CPU:{device}"))?;
        let handle: Value = scope
            .op("VarHandleOp")
            .attr("dtype", initial.kind.dtype)
            .attr("shape", PartialShape::from(initial.kind.dims))
            .attr("shared_name", format!("variable{index}"))
            .value()?;
        let value: Value = b.tensor(&tensor(initial))?;
        let mut assign = scope.op("AssignVariableOp").input(handle).input(value);
        if let Some(last) = env.last {
            assign = assign.control(last);
        }
        env.last = Some(assign.finish()?);
        env.variables.push((handle, initial.kind, *device));
    }
    let (results, last) = block(&b, &program.main, env.clone(), &[])?;
    for (index, value) in results.into_iter().enumerate() {
        b.named(format!("result{index}")).identity(value)?;
    }
    env.last = last;
    for variable in 0..env.variables.len() {
        let value = read(&b, &mut env, variable)?;
        b.named(format!("last{variable}")).identity(value)?;
    }
    Ok(b.finish())
}

/// Returns a tensor of these elements.
pub(super) fn tensor(data: &Data) -> Tensor {
    let shape = data.kind.dims;
    let bits = data.bits.iter();
    match data.kind.dtype {
        DType::F32 => {
            let values: Vec<f32> = bits.map(|&bits| f32::from_bits(bits)).collect();
            Tensor::from_values(shape, &values)
        }
        DType::I32 => {
            let values: Vec<i32> = bits.map(|&bits| bits.cast_signed()).collect();
            Tensor::from_values(shape, &values)
        }
        _ => {
            let values: Vec<Boolean> = bits.map(|&bit| Boolean::from(bit == 1)).collect();
            Tensor::from_values(shape, &values)
        }
    }
    .unwrap()
}

/// What a block sees.
#[derive(Clone, Default)]
struct Env {
    values: Vec<Value>,
    functions: Vec<TypedFunction<Vec<Value>, Vec<Value>>>,
    variables: Vec<(Value, Kind, usize)>,
    /// The operation whose effects come before those of the next.
    last: Option<Operation>,
}

type Built = Result<(Vec<Value>, Option<Operation>), BuildError>;

/// Adds the operations of a block; returns its results and the operation with the last effect.
fn block(b: &Scope, block: &Block, mut env: Env, args: &[Value]) -> Built {
    env.values.extend(args);
    for line in &block.lines {
        let scope = match line.device {
            Some(device) => b.device(&format!("/device:CPU:{device}"))?,
            None => b.clone(),
        };
        let results = statement(&scope, &line.statement, &mut env)?;
        env.values.extend(results);
    }
    let results = block.results.iter();
    let results = results.map(|&value| env.values[value]).collect();
    Ok((results, env.last))
}

fn results_of(
    b: &Scope,
    inner: &Block,
    env: Env,
    args: &[Value],
) -> Result<Vec<Value>, BuildError> {
    Ok(block(b, inner, env, args)?.0)
}

fn statement(b: &Scope, statement: &Statement, env: &mut Env) -> Result<Vec<Value>, BuildError> {
    let value = |index: usize| env.values[index];
    Ok(vec![match statement {
        Statement::Constant(data) => b.tensor(&tensor(data))?,
        Statement::Unary(op, x) => {
            let x = value(*x);
            match op {
                Unary::Neg => b.neg(x)?,
                Unary::Abs => b.abs(x)?,
                Unary::Square => b.square(x)?,
            }
        }
        Statement::Binary(op, x, y) => {
            let (x, y) = (value(*x), value(*y));
            match op {
                Binary::Add => b.add(x, y)?,
                Binary::Sub => b.sub(x, y)?,
                Binary::Mul => b.mul(x, y)?,
                Binary::Maximum => b.maximum(x, y)?,
                Binary::Minimum => b.minimum(x, y)?,
            }
        }
        Statement::Compare(op, x, y) => {
            let (x, y) = (value(*x), value(*y));
            match op {
                Comparison::Less => b.less(x, y)?.erase(),
                Comparison::GreaterEqual => b.greater_equal(x, y)?.erase(),
                Comparison::Equal => b.equal(x, y)?.erase(),
            }
        }
        Statement::Not(x) => b.logical_not(b.typed(value(*x))?)?.erase(),
        Statement::Select(condition, x, y) => {
            b.select(b.typed(value(*condition))?, value(*x), value(*y))?
        }
        Statement::ToFloat(x) => b.cast::<f32>(value(*x))?.erase(),
        Statement::Sum { of, axis } => b.reduce_sum(value(*of), i32::try_from(*axis).unwrap())?,
        Statement::Cond {
            predicate,
            then,
            otherwise,
        } => {
            let results = b.cond(
                b.typed(value(*predicate))?,
                |b| results_of(b, then, env.clone(), &[]),
                |b| results_of(b, otherwise, env.clone(), &[]),
            )?;
            return Ok(after(
                env,
                then.has_effects || otherwise.has_effects,
                results,
            ));
        }
        Statement::Case { index, branches } => {
            let around = &*env;
            let of_branch = |branch| -> Branch<'_, Vec<Value>> {
                Box::new(move |b| results_of(b, branch, around.clone(), &[]))
            };
            let closures = branches.iter().map(of_branch);
            let results = b.switch_case(b.typed(value(*index))?, closures)?;
            let has_effects = branches.iter().any(|branch| branch.has_effects);
            return Ok(after(env, has_effects, results));
        }
        Statement::While {
            variables,
            condition,
            body,
            maximum,
            parallel,
        } => {
            let mut options = WhileLoop::default();
            if let Some(n) = *maximum {
                options = options.with_maximum_iterations(n);
            }
            if let Some(n) = *parallel {
                options = options.with_parallel_iterations(n);
            }
            let results = b.while_loop_with(
                variables.iter().map(|&index| value(index)).collect(),
                options,
                |b, args: Vec<Value>| {
                    let results = results_of(b, condition, env.clone(), &args)?;
                    b.typed(results[0])
                },
                |b, args| results_of(b, body, env.clone(), &args),
            )?;
            return Ok(after(
                env,
                condition.has_effects || body.has_effects,
                results,
            ));
        }
        Statement::Function { parameters, body } => {
            let parameters = parameters.iter();
            let parameters = parameters.map(|kind| Parameter::new(kind.dtype, kind.dims));
            let inside = Env {
                // A call waits for the effects before it, not for those before the definition.
                last: None,
                ..env.clone()
            };
            let function = b.function_with("function", parameters, |b, args: Vec<Value>| {
                results_of(b, body, inside, &args)
            })?;
            env.functions.push(function);
            return Ok(Vec::new());
        }
        Statement::Call { function, args } => {
            let function = &env.functions[*function];
            let args = args.iter().map(|&index| value(index)).collect();
            // Whether the function has effects is known by its node.
            let results = b.control_dependencies(env.last).call(function, args)?;
            return Ok(after(env, true, results));
        }
        Statement::AssignAdd { variable, value } => {
            let (handle, _, device) = env.variables[*variable];
            let assign = b
                .device(&format!("/device:CPU:{device}"))?
                .control_dependencies(env.last)
                .op("AssignAddVariableOp")
                .input(handle)
                .input(env.values[*value])
                .finish()?;
            env.last = Some(assign);
            return Ok(Vec::new());
        }
        Statement::Read { variable } => read(b, env, *variable)?,
    }])
}

fn read(b: &Scope, env: &mut Env, variable: usize) -> Result<Value, BuildError> {
    let (handle, kind, device) = env.variables[variable];
    let value: Value = b
        .device(&format!("/device:CPU:{device}"))?
        .control_dependencies(env.last)
        .op("ReadVariableOp")
        .input(handle)
        .attr("dtype", kind.dtype)
        .value()?;
    env.last = Some(value.operation());
    Ok(value)
}

/// Lets the next effect come after those of the node that computes `results`.
fn after(env: &mut Env, has_effects: bool, results: Vec<Value>) -> Vec<Value> {
    if has_effects {
        env.last = results.first().map(|value| value.operation());
    }
    results
}
