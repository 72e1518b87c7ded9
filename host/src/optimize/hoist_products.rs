//! Moves products out of unrolled recurrences.
//!
//! A cell of a recurrent network multiplies its input and its state, side by side, with one matrix.
//! The inputs of all steps are there before the first step. So one product serves all of them, and
//! each step multiplies its state only, with fewer rows of the matrix. These stay in a core's cache
//! more easily.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::edit::Edit;
use super::edit::New;
use super::edit::Source;
use super::fold_constants::constant;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::NodeId;
use crate::graph::Output;
use crate::graph::TensorId;
use crate::graph::is_control_flow;
use crate::tensor::DType;
use crate::tensor::HostAllocator;
use crate::tensor::Literal;
use crate::tensor::LiteralData;
use crate::tensor::PartialShape;
use crate::tensor::Shape;
use crate::tensor::StoredBytes;
use crate::tensor::StoredBytesError;

/// Maximum number of rows of a step: with more, the product takes longer than reading the matrix.
const ROWS_MAX: usize = 64;

/// Maximum number of steps.
const STEPS_MAX: usize = 4096;

/// Maximum number of bytes of a matrix: it is copied while a part of it is read, and a small file
/// may describe a large one.
const MATRIX_BYTES_MAX: u64 = 256 << 20;

/// `BiasAdd(MatMul(ConcatV2(parts), matrix), bias)`.
#[derive(Debug, Clone, Copy)]
struct Step {
    concat: NodeId,
    product: NodeId,
    bias: NodeId,
    parts: [TensorId; 2],
    /// Columns of the parts.
    columns: [usize; 2],
    n_rows: usize,
}

/// Replaces the steps of each matrix. The `BiasAdd` of a step keeps its name and becomes the sum;
/// the results differ by rounding.
pub(super) fn hoist_products(edit: &mut Edit<'_>) {
    let graph = edit.graph();
    // In a loop or branch, the inputs of other steps may be of another iteration, or dead.
    if graph.nodes().any(|node| is_control_flow(graph.op(node))) {
        return;
    }
    let mut steps: FxHashMap<NodeId, Vec<Step>> = FxHashMap::default();
    for node in graph.nodes().filter(|&node| graph.op(node) == "MatMul") {
        if let Some((matrix, step)) = step(edit, node) {
            steps.entry(matrix).or_default().push(step);
        }
    }
    let mut groups: Vec<Vec<Step>> = steps.into_values().collect();
    groups.sort_by_key(|steps| steps[0].product);
    for steps in groups {
        if (2..=STEPS_MAX).contains(&steps.len())
            && steps.iter().all(|step| {
                step.columns == steps[0].columns
                    && step.n_rows == steps[0].n_rows
                    && graph.requested(step.bias) == graph.requested(steps[0].bias)
            })
            && let Some(part) = known_before(edit, &steps)
        {
            hoist(edit, &steps, part);
        }
    }
}

/// Returns the step of a product, and the constant that is its matrix.
fn step(edit: &Edit<'_>, product: NodeId) -> Option<(NodeId, Step)> {
    let graph = edit.graph();
    let attrs = graph.attrs(product);
    let is_transposed = |name| attrs.bool(name) == Some(true);
    if attrs.dtype("T") != Some(DType::F32)
        || is_transposed("transpose_a")
        || is_transposed("transpose_b")
        || !edit.is_free(product)
    {
        return None;
    }
    let inputs: Vec<TensorId> = graph.data_inputs(product).collect();
    let &[rows, matrix] = &inputs[..] else {
        return None;
    };
    let (matrix, literal) = edit.constant(matrix)?;
    let (concat, _) = graph.producer(rows);
    let bias = edit.only_reader(product)?;
    let requested = graph.requested(product);
    let is_step = graph.op(concat) == "ConcatV2"
        && graph.op(bias) == "BiasAdd"
        && matches!(graph.attrs(bias).text("data_format"), None | Some("NHWC"))
        && graph.data_inputs(bias).next() == graph.output(product, 0)
        && edit.only_reader(concat) == Some(product)
        && [concat, bias]
            .into_iter()
            .all(|node| edit.is_free(node) && graph.requested(node) == requested);
    let parts: Vec<TensorId> = graph.data_inputs(concat).collect();
    let &[first, second, axis] = &parts[..] else {
        return None;
    };
    if !is_step || !is_last_of_two(edit, axis) {
        return None;
    }
    let dims = |tensor| graph.tensor_shape(tensor).to_shape();
    let (first_shape, second_shape) = (dims(first)?, dims(second)?);
    let (&[n_rows, a], &[_, b]) = (first_shape.dims(), second_shape.dims()) else {
        return None;
    };
    let is_whole = literal.dtype() == DType::F32
        && literal.shape().dims().first() == Some(&(a + b))
        && literal.size_bytes() <= MATRIX_BYTES_MAX;
    let step = Step {
        concat,
        product,
        bias,
        parts: [first, second],
        columns: [a, b],
        n_rows,
    };
    (is_whole && a > 0 && b > 0 && (1..=ROWS_MAX).contains(&n_rows)).then_some((matrix, step))
}

/// Returns whether a constant is the axis of the columns of a matrix.
fn is_last_of_two(edit: &Edit<'_>, axis: TensorId) -> bool {
    let Some((_, literal)) = edit.constant(axis) else {
        return false;
    };
    let allocator = HostAllocator::new("an axis", 64);
    let Ok(value) = literal.to_tensor(&allocator) else {
        return false;
    };
    let as_i32 = value.as_slice::<i32>().map(|it| matches!(it, [1 | -1]));
    let as_i64 = value.as_slice::<i64>().map(|it| matches!(it, [1 | -1]));
    as_i32.or(as_i64).unwrap_or(false)
}

/// Returns which part of all steps is computed before the first step, if the other one depends on
/// steps.
fn known_before(edit: &Edit<'_>, steps: &[Step]) -> Option<usize> {
    let graph = edit.graph();
    let first = steps[0].product;
    let is_before = |part: usize| {
        steps
            .iter()
            .all(|step| graph.producer(step.parts[part]).0 < first)
    };
    match (is_before(0), is_before(1)) {
        (true, false) => Some(0),
        (false, true) => Some(1),
        _ => None,
    }
}

fn hoist(edit: &mut Edit<'_>, steps: &[Step], part: usize) -> Option<()> {
    let graph = edit.graph();
    let (first, n_steps) = (steps[0], steps.len());
    let matrix = graph.data_inputs(first.product).nth(1)?;
    let (_, literal) = edit.constant(matrix)?;
    let literal = Arc::clone(literal);
    let &[_, columns] = literal.shape().dims() else {
        return None;
    };
    let [a, b] = first.columns;
    let rows = [(0, a), (a, b)];
    let of_part = |part: usize| {
        let (start, n) = rows[part];
        rows_of(&literal, start, n).map(constant)
    };
    let (inputs_matrix, state_matrix) = (of_part(part)?, of_part(1 - part)?);
    let zero = || scalar(0).map(constant);
    let (concat_axis, split_axis) = (zero()?, zero()?);
    edit.absorb(matrix);
    let n_rows = first.n_rows;
    let floats = |shape: &[usize]| Output {
        dtype: DType::F32,
        is_ref: false,
        shape: PartialShape::from(shape),
    };
    let type_attr = || AttrValue::Type {
        dtype: DType::F32,
        is_ref: false,
    };
    let n_steps_attr = AttrValue::Int(i64::try_from(n_steps).ok()?);
    // After the inputs of all steps, which are before all products, and before each sum.
    let before = steps.iter().map(|step| step.bias).min()?;
    let concat_axis = edit.insert(before, "inputs_axis", concat_axis);
    let inputs = steps.iter().map(|step| Source::Tensor(step.parts[part]));
    let inputs = New {
        op: "ConcatV2",
        attrs: AttrSet::new([
            ("N".into(), n_steps_attr.clone()),
            ("T".into(), type_attr()),
            (
                "Tidx".into(),
                AttrValue::Type {
                    dtype: DType::I32,
                    is_ref: false,
                },
            ),
        ]),
        inputs: inputs.chain([concat_axis]).collect(),
        outputs: vec![floats(&[n_steps * n_rows, first.columns[part]])],
    };
    let inputs = edit.insert(before, "inputs", inputs);
    let inputs_matrix = edit.insert(before, "inputs_matrix", inputs_matrix);
    let state_matrix = edit.insert(before, "state_matrix", state_matrix);
    let product = |rows: Source, matrix: Source, n_rows: usize| New {
        op: "MatMul",
        attrs: AttrSet::new([
            ("T".into(), type_attr()),
            ("transpose_a".into(), AttrValue::Bool(false)),
            ("transpose_b".into(), AttrValue::Bool(false)),
        ]),
        inputs: vec![rows, matrix],
        outputs: vec![floats(&[n_rows, columns])],
    };
    let products = product(inputs, inputs_matrix, n_steps * n_rows);
    let products = edit.insert(before, "inputs_product", products);
    let split_axis = edit.insert(before, "inputs_split_axis", split_axis);
    let split = New {
        op: "Split",
        attrs: AttrSet::new([
            ("num_split".into(), n_steps_attr),
            ("T".into(), type_attr()),
        ]),
        inputs: vec![split_axis, products],
        outputs: vec![floats(&[n_rows, columns]); n_steps],
    };
    let split = edit.insert(before, "inputs_split", split);
    for (index, step) in steps.iter().enumerate() {
        let bias = graph.data_inputs(step.bias).nth(1)?;
        let state = Source::Tensor(step.parts[1 - part]);
        let state = product(state, state_matrix, n_rows);
        let state = edit.insert(step.bias, "state_product", state);
        let biased = New {
            op: "BiasAdd",
            attrs: graph.attrs(step.bias).clone(),
            inputs: vec![state, Source::Tensor(bias)],
            outputs: edit.outputs(step.bias),
        };
        let biased = edit.insert(step.bias, "state", biased);
        let sum = New {
            op: "AddV2",
            attrs: AttrSet::new([("T".into(), type_attr())]),
            inputs: vec![biased, split.slot(index)],
            outputs: edit.outputs(step.bias),
        };
        edit.replace(step.bias, sum);
        edit.remove(step.product);
        edit.remove(step.concat);
    }
    Some(())
}

/// Some rows of a matrix, which are copied when a device reads them, so that they are in memory
/// once.
#[derive(Debug)]
struct RowsOf {
    matrix: Arc<Literal>,
    /// In bytes.
    start: usize,
    len: usize,
}

impl StoredBytes for RowsOf {
    fn len_bytes(&self) -> usize {
        self.len
    }

    fn read(&self, target: &mut [u8]) -> Result<(), StoredBytesError> {
        let len = usize::try_from(self.matrix.size_bytes()).unwrap_or(usize::MAX);
        let mut all = vec![0; len];
        self.matrix
            .write_to(&mut all)
            .map_err(StoredBytesError::new)?;
        target.copy_from_slice(&all[self.start..self.start + self.len]);
        Ok(())
    }
}

fn rows_of(matrix: &Arc<Literal>, start: usize, n: usize) -> Option<Literal> {
    let &[_, columns] = matrix.shape().dims() else {
        return None;
    };
    let row = columns * size_of::<f32>();
    let stored = RowsOf {
        matrix: Arc::clone(matrix),
        start: start * row,
        len: n * row,
    };
    let data = LiteralData::Stored(Arc::new(stored));
    Literal::new(DType::F32, Shape::new(&[n, columns]), data).ok()
}

fn scalar(value: i32) -> Option<Literal> {
    let bytes = value.to_le_bytes().to_vec();
    let data = LiteralData::Dense(Arc::new(bytes));
    Literal::new(DType::I32, Shape::scalar(), data).ok()
}
