//! Lists of tensors: tensor arrays of TensorFlow 1 and tensor lists of TensorFlow 2.
//!
//! The type and shape of the elements are passed on with the handle as far as they are known
//! ([`Known::Handle`]).

use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::infer::Known;
use super::infer::ShapeError;
use super::rules::Shapes;
use super::rules::merge;
use super::rules::merge_dims;
use super::rules::scalars;
use super::rules::size;
use super::rules::unknown;
use super::work::free;
use super::work::reads_what_it_writes;
use crate::graph::Output;
use crate::tensor::PartialShape;

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = arrays();
    ops.extend(stacks());
    ops.extend(lists());
    ops.extend(more_lists());
    ops
}

fn stacks() -> Vec<OpDef> {
    let ops = [
        op(
            "StackV2",
            "max_size: int32",
            "handle: resource",
            "elem_type: type; stack_name: string = ''",
        )
        .with_shape(scalars),
        op(
            "StackPushV2",
            "handle: resource, elem: T",
            "output: T",
            "T: type; swap_memory: bool = false",
        )
        .with_shape(|context| Ok(vec![context.shape(1).clone()])),
        op(
            "StackPopV2",
            "handle: resource",
            "elem: elem_type",
            "elem_type: type",
        )
        .with_shape(unknown),
        op("StackCloseV2", "handle: resource", "", ""),
    ];
    ops.into_iter().map(OpDef::stateful).collect()
}

/// Lists that are made of other lists, and of batches.
fn more_lists() -> Vec<OpDef> {
    vec![
        op(
            "TensorListScatter",
            "tensor: element_dtype, indices: int32, element_shape: shape_type",
            "output_handle: variant",
            "element_dtype: type; shape_type: {int32, int64}",
        )
        .with_shape(scattered)
        .with_fold(|context, _| vec![list_of(context, 2)]),
        op(
            "TensorListScatterIntoExistingList",
            "input_handle: variant, tensor: element_dtype, indices: int32",
            "output_handle: variant",
            "element_dtype: type",
        )
        .with_shape(|context| {
            check_type(context, 0)?;
            let row = rows_for(context, 1, 2)?;
            merge(&element_shape(context), &row, "shapes of element and row")?;
            scalars(context)
        })
        .with_fold(same_list),
        op(
            "TensorListConcat",
            "input_handle: variant",
            "tensor: element_dtype, lengths: int64",
            "element_dtype: type; element_shape: shape = { unknown_rank: true }",
        )
        .with_shape(|context| {
            let element = context
                .attrs()
                .shape("element_shape")
                .cloned()
                .unwrap_or_default();
            check_type(context, 0)?;
            let row = row_of(&element)?.merge(&row_of(&element_shape(context))?);
            let row = row.unwrap_or_default();
            Ok(vec![stacked(None, &row), PartialShape::of_rank(1)])
        }),
        op(
            "TensorListPushBackBatch",
            "input_handles: variant, tensor: element_dtype",
            "output_handles: variant",
            "element_dtype: type",
        )
        .with_shape(|context| {
            let n = context.shape_of_rank(0, 1)?.dim(0);
            let rows = context.dims_of_rank_at_least(1, 1)?;
            let n = merge_dims(
                n,
                rows.and_then(|dims| dims[0]),
                "numbers of lists and rows",
            )?;
            Ok(vec![PartialShape::new(&[n])])
        }),
        op(
            "TensorListConcatLists",
            "input_a: variant, input_b: variant",
            "output: variant",
            "element_dtype: type",
        )
        .with_shape(|context| {
            check_type(context, 0)?;
            check_type(context, 1)?;
            Ok(vec![merge(
                context.shape(0),
                context.shape(1),
                "shapes of lists",
            )?])
        })
        .with_fold(same_list),
    ]
}

fn arrays() -> Vec<OpDef> {
    let element = "dtype: type; element_shape: shape = { unknown_rank: true }";
    let ops = [
        op(
            "TensorArrayV3",
            "size: int32",
            "handle: resource, flow: float",
            &format!("{element}; dynamic_size: bool = false; clear_after_read: bool = true; identical_element_shapes: bool = false; tensor_array_name: string = ''"),
        )
        .with_shape(|_| Ok(vec![PartialShape::new(&[Some(2)]), PartialShape::scalar()]))
        .with_fold(|context, _| {
            let shape = context.attrs().shape("element_shape").cloned().unwrap_or_default();
            let handle = context.attrs().dtype("dtype").map(|dtype| Known::Handle(dtype, shape));
            vec![handle.unwrap_or_default(), Known::Nothing]
        })
        .with_work(free),
        op("TensorArrayGradV3", "handle: resource, flow_in: float", "grad_handle: resource, flow_out: float", "source: string")
            .with_shape(|_| Ok(vec![PartialShape::new(&[Some(2)]), PartialShape::scalar()])),
        op("TensorArrayWriteV3", "handle: resource, index: int32, value: T, flow_in: float", "flow_out: float", "T: type")
            .with_shape(|context| {
                context.shape_of_rank(1, 0)?;
                merge(&element_shape(context), context.shape(2), "shapes of element and value")?;
                scalars(context)
            }),
        op("TensorArrayReadV3", "handle: resource, index: int32, flow_in: float", "value: dtype", "dtype: type")
            .with_shape(|context| {
                context.shape_of_rank(1, 0)?;
                Ok(vec![element_shape(context)])
            }),
        op("TensorArrayGatherV3", "handle: resource, indices: int32, flow_in: float", "value: dtype", element)
            .with_shape(|context| {
                let declared = context.attrs().shape("element_shape").cloned().unwrap_or_default();
                let element = merge(&element_shape(context), &declared, "element shapes")?;
                let n = context.shape_of_rank(1, 1)?.dim(0);
                Ok(vec![stacked(n, &element)])
            }),
        op("TensorArrayScatterV3", "handle: resource, indices: int32, value: T, flow_in: float", "flow_out: float", "T: type")
            .with_shape(|context| {
                let row = rows_for(context, 2, 1)?;
                merge(&element_shape(context), &row, "shapes of element and row")?;
                scalars(context)
            }),
        op("TensorArrayConcatV3", "handle: resource, flow_in: float", "value: dtype, lengths: int64", "dtype: type; element_shape_except0: shape = { unknown_rank: true }")
            .with_shape(|context| {
                let rest = context.attrs().shape("element_shape_except0").cloned().unwrap_or_default();
                Ok(vec![stacked(None, &rest), PartialShape::of_rank(1)])
            }),
        op("TensorArraySplitV3", "handle: resource, value: T, lengths: int64, flow_in: float", "flow_out: float", "T: type")
            .with_shape(|context| {
                context.dims_of_rank_at_least(1, 1)?;
                context.shape_of_rank(2, 1)?;
                scalars(context)
            }),
        op("TensorArraySizeV3", "handle: resource, flow_in: float", "size: int32", "").with_shape(scalars),
        op("TensorArrayCloseV3", "handle: resource", "", ""),
    ];
    ops.into_iter().map(OpDef::stateful).collect()
}

fn lists() -> Vec<OpDef> {
    let element = "element_dtype: type";
    let shaped = "element_dtype: type; shape_type: {int32, int64}";
    vec![
        op(
            "EmptyTensorList",
            "element_shape: shape_type, max_num_elements: int32",
            "handle: variant",
            shaped,
        )
        .with_shape(|context| {
            context.shape_from_input(0)?;
            context.shape_of_rank(1, 0)?;
            scalars(context)
        })
        .with_fold(|context, _| vec![list_of(context, 0)]),
        op(
            "TensorListReserve",
            "element_shape: shape_type, num_elements: int32",
            "handle: variant",
            shaped,
        )
        .with_shape(|context| {
            context.shape_from_input(0)?;
            context.shape_of_rank(1, 0)?;
            scalars(context)
        })
        .with_fold(|context, _| vec![list_of(context, 0)]),
        op(
            "TensorListFromTensor",
            "tensor: element_dtype, element_shape: shape_type",
            "output_handle: variant",
            shaped,
        )
        .with_shape(|context| {
            let row = row(context, 0)?;
            let element = context.shape_from_input(1)?;
            merge(&element, &row, "shapes of element and row")?;
            scalars(context)
        })
        .with_fold(|context, _| vec![list_of(context, 1)]),
        op(
            "TensorListGetItem",
            "input_handle: variant, index: int32, element_shape: Tshape",
            "item: element_dtype",
            "element_dtype: type; Tshape: {int32, int64} = DT_INT32",
        )
        .with_shape(|context| {
            context.shape_of_rank(1, 0)?;
            Ok(vec![list_element(context, 2)?])
        }),
        op(
            "TensorListSetItem",
            "input_handle: variant, index: int32, item: element_dtype",
            "output_handle: variant",
            "element_dtype: type; resize_if_index_out_of_bounds: bool = false",
        )
        .with_shape(|context| {
            check_type(context, 0)?;
            context.shape_of_rank(1, 0)?;
            merge(&element_shape(context), context.shape(2), "element shapes")?;
            scalars(context)
        })
        .with_fold(same_list),
        op(
            "TensorListPushBack",
            "input_handle: variant, tensor: element_dtype",
            "output_handle: variant",
            element,
        )
        .with_shape(|context| {
            check_type(context, 0)?;
            merge(&element_shape(context), context.shape(1), "element shapes")?;
            scalars(context)
        })
        .with_fold(same_list),
        op(
            "TensorListPopBack",
            "input_handle: variant, element_shape: int32",
            "output_handle: variant, tensor: element_dtype",
            element,
        )
        .with_shape(|context| Ok(vec![PartialShape::scalar(), list_element(context, 1)?]))
        .with_fold(|context, _| vec![context.input(0).known.clone(), Known::Nothing]),
        op(
            "TensorListStack",
            "input_handle: variant, element_shape: int32",
            "tensor: element_dtype",
            "element_dtype: type; num_elements: int = -1",
        )
        .with_shape(|context| {
            let n = context.int("num_elements")?;
            let n = (n >= 0).then(|| size(n, "num_elements")).transpose()?;
            Ok(vec![stacked(n, &list_element(context, 1)?)])
        })
        .with_work(reads_what_it_writes),
        op(
            "TensorListGather",
            "input_handle: variant, indices: int32, element_shape: int32",
            "values: element_dtype",
            element,
        )
        .with_shape(|context| {
            let n = context.shape_of_rank(1, 1)?.dim(0);
            Ok(vec![stacked(n, &list_element(context, 2)?)])
        })
        .with_work(reads_what_it_writes),
        op(
            "TensorListScatterV2",
            "tensor: element_dtype, indices: int32, element_shape: shape_type, num_elements: int32",
            "output_handle: variant",
            shaped,
        )
        .with_shape(scattered)
        .with_fold(|context, _| vec![list_of(context, 2)]),
        op(
            "TensorListConcatV2",
            "input_handle: variant, element_shape: shape_type, leading_dims: int64",
            "tensor: element_dtype, lengths: int64",
            shaped,
        )
        .with_shape(|context| {
            let element = list_element(context, 1)?;
            context.shape_of_rank(2, 1)?;
            Ok(vec![
                stacked(None, &row_of(&element)?),
                PartialShape::of_rank(1),
            ])
        })
        .with_work(reads_what_it_writes),
        op(
            "TensorListSplit",
            "tensor: element_dtype, element_shape: shape_type, lengths: int64",
            "output_handle: variant",
            shaped,
        )
        .with_shape(|context| {
            let row = row(context, 0)?;
            context.shape_of_rank(2, 1)?;
            let element = row_of(&context.shape_from_input(1)?)?;
            merge(&element, &row, "shapes of rows")?;
            scalars(context)
        })
        .with_fold(|context, _| vec![list_of(context, 1)]),
        op(
            "TensorListLength",
            "input_handle: variant",
            "length: int32",
            "",
        )
        .with_shape(scalars),
        op(
            "TensorListElementShape",
            "input_handle: variant",
            "element_shape: shape_type",
            "shape_type: {int32, int64}",
        )
        .with_shape(|context| {
            let rank = element_shape(context).rank();
            let shape = rank.map(|rank| PartialShape::new(&[Some(rank)]));
            Ok(vec![shape.unwrap_or_default()])
        }),
        op(
            "TensorListResize",
            "input_handle: variant, size: int32",
            "output_handle: variant",
            "",
        )
        .with_shape(scalars)
        .with_fold(same_list),
    ]
}

fn element_shape(context: &InferenceContext<'_>) -> PartialShape {
    context
        .handle(0)
        .map_or_else(PartialShape::unknown, |(_, shape)| shape.clone())
}

/// Returns a list whose elements have the shape in input `index`.
fn list_of(context: &InferenceContext<'_>, index: usize) -> Known {
    match (
        context.attrs().dtype("element_dtype"),
        context.shape_from_input(index),
    ) {
        (Some(dtype), Ok(shape)) => Known::Handle(dtype, shape),
        _ => Known::Nothing,
    }
}

fn same_list(context: &InferenceContext<'_>, _: &[Output]) -> Vec<Known> {
    vec![context.input(0).known.clone()]
}

/// Checks that the list in input `index` has elements of the op's type, if that is known.
fn check_type(context: &InferenceContext<'_>, index: usize) -> Result<(), ShapeError> {
    match (
        context.handle(index),
        context.attrs().dtype("element_dtype"),
    ) {
        (Some((found, _)), Some(expected)) if found != expected => Err(ShapeError::new(format!(
            "the list has elements of type {found}, the op is for {expected}"
        ))),
        _ => Ok(()),
    }
}

/// Merges the element shape of the list with the shape requested by input `index`.
fn list_element(context: &InferenceContext<'_>, index: usize) -> Result<PartialShape, ShapeError> {
    check_type(context, 0)?;
    merge(
        &element_shape(context),
        &context.shape_from_input(index)?,
        "element shapes",
    )
}

/// Returns the shape of the rows of input `index`, which must be at least a vector.
fn row(context: &InferenceContext<'_>, index: usize) -> Result<PartialShape, ShapeError> {
    context.dims_of_rank_at_least(index, 1)?;
    row_of(context.shape(index))
}

/// Returns the shape of the rows of tensors of this shape.
fn row_of(shape: &PartialShape) -> Result<PartialShape, ShapeError> {
    match shape.dims() {
        Some([_, row @ ..]) => Ok(PartialShape::new(row)),
        Some([]) => Err(ShapeError::new(
            "elements must be at least vectors; their shape is []",
        )),
        None => Ok(PartialShape::unknown()),
    }
}

/// Returns the shape of the rows of input `tensor`, for each of which input `indices` has an index.
fn rows_for(
    context: &InferenceContext<'_>,
    tensor: usize,
    indices: usize,
) -> Result<PartialShape, ShapeError> {
    let row = row(context, tensor)?;
    let n_indices = context.shape_of_rank(indices, 1)?.dim(0);
    let n_rows = context.shape(tensor).dims().and_then(|dims| dims[0]);
    merge_dims(n_rows, n_indices, "numbers of rows and indices")?;
    Ok(row)
}

/// Shape rule of ops that make a list of the rows of input 0.
fn scattered(context: &InferenceContext<'_>) -> Shapes {
    let row = rows_for(context, 0, 1)?;
    let element = context.shape_from_input(2)?;
    merge(&element, &row, "shapes of element and row")?;
    scalars(context)
}

fn stacked(n: Option<usize>, element: &PartialShape) -> PartialShape {
    element.dims().map_or_else(PartialShape::unknown, |dims| {
        std::iter::once(n).chain(dims.iter().copied()).collect()
    })
}
