//! Lists of tensors: tensor arrays of TensorFlow 1 and tensor lists of TensorFlow 2.
//!
//! The type and shape of the elements are passed on with the handle as far as they are known
//! ([`Known::Handle`]).

use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::infer::Known;
use super::rules::merge;
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
        .with_shape(scalars)
        .with_fold(|context, _| vec![list_of(context, 2)]),
        op(
            "TensorListScatterIntoExistingList",
            "input_handle: variant, tensor: element_dtype, indices: int32",
            "output_handle: variant",
            "element_dtype: type",
        )
        .with_shape(scalars)
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
            let element = merge(&element_shape(context), &element, "element shapes")?;
            let rows = element.dims().filter(|dims| !dims.is_empty());
            let rows = rows.map(|dims| stacked(None, &PartialShape::new(&dims[1..])));
            Ok(vec![rows.unwrap_or_default(), PartialShape::of_rank(1)])
        }),
        op(
            "TensorListPushBackBatch",
            "input_handles: variant, tensor: element_dtype",
            "output_handles: variant",
            "element_dtype: type",
        )
        .with_shape(|context| Ok(vec![context.shape(0).clone()])),
        op(
            "TensorListConcatLists",
            "input_a: variant, input_b: variant",
            "output: variant",
            "element_dtype: type",
        )
        .with_shape(|context| Ok(vec![context.shape(0).clone()])),
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
                if let Some((_, shape)) = context.handle(0) {
                    merge(shape, context.shape(2), "shapes of element and value")?;
                }
                Ok(vec![PartialShape::scalar()])
            }),
        op("TensorArrayReadV3", "handle: resource, index: int32, flow_in: float", "value: dtype", "dtype: type")
            .with_shape(|context| Ok(vec![element_shape(context)])),
        op("TensorArrayGatherV3", "handle: resource, indices: int32, flow_in: float", "value: dtype", element)
            .with_shape(|context| {
                let declared = context.attrs().shape("element_shape").cloned().unwrap_or_default();
                let element = merge(&element_shape(context), &declared, "element shapes")?;
                let n = context.shape_of_rank(1, 1)?.dim(0);
                Ok(vec![stacked(n, &element)])
            }),
        op("TensorArrayScatterV3", "handle: resource, indices: int32, value: T, flow_in: float", "flow_out: float", "T: type")
            .with_shape(scalars),
        op("TensorArrayConcatV3", "handle: resource, flow_in: float", "value: dtype, lengths: int64", "dtype: type; element_shape_except0: shape = { unknown_rank: true }")
            .with_shape(|context| {
                let rest = context.attrs().shape("element_shape_except0").cloned().unwrap_or_default();
                Ok(vec![stacked(None, &rest), PartialShape::of_rank(1)])
            }),
        op("TensorArraySplitV3", "handle: resource, value: T, lengths: int64, flow_in: float", "flow_out: float", "T: type")
            .with_shape(scalars),
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
        .with_shape(scalars)
        .with_fold(|context, _| vec![list_of(context, 0)]),
        op(
            "TensorListReserve",
            "element_shape: shape_type, num_elements: int32",
            "handle: variant",
            shaped,
        )
        .with_shape(scalars)
        .with_fold(|context, _| vec![list_of(context, 0)]),
        op(
            "TensorListFromTensor",
            "tensor: element_dtype, element_shape: shape_type",
            "output_handle: variant",
            shaped,
        )
        .with_shape(|context| {
            context.dims_of_rank_at_least(0, 1)?;
            scalars(context)
        })
        .with_fold(|context, _| vec![list_of(context, 1)]),
        op(
            "TensorListGetItem",
            "input_handle: variant, index: int32, element_shape: Tshape",
            "item: element_dtype",
            "element_dtype: type; Tshape: {int32, int64} = DT_INT32",
        )
        .with_shape(|context| Ok(vec![list_element(context, 2)?])),
        op(
            "TensorListSetItem",
            "input_handle: variant, index: int32, item: element_dtype",
            "output_handle: variant",
            "element_dtype: type; resize_if_index_out_of_bounds: bool = false",
        )
        .with_shape(scalars)
        .with_fold(same_list),
        op(
            "TensorListPushBack",
            "input_handle: variant, tensor: element_dtype",
            "output_handle: variant",
            element,
        )
        .with_shape(scalars)
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
        .with_shape(scalars)
        .with_fold(|context, _| vec![list_of(context, 2)]),
        op(
            "TensorListConcatV2",
            "input_handle: variant, element_shape: shape_type, leading_dims: int64",
            "tensor: element_dtype, lengths: int64",
            shaped,
        )
        .with_shape(unknown),
        op(
            "TensorListSplit",
            "tensor: element_dtype, element_shape: shape_type, lengths: int64",
            "output_handle: variant",
            shaped,
        )
        .with_shape(scalars),
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
        .with_shape(unknown),
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

/// Merges the element shape of the list with the shape requested by input `index`.
fn list_element(
    context: &InferenceContext<'_>,
    index: usize,
) -> Result<PartialShape, super::infer::ShapeError> {
    merge(
        &element_shape(context),
        &context.shape_from_input(index)?,
        "element shapes",
    )
}

fn stacked(n: Option<usize>, element: &PartialShape) -> PartialShape {
    element.dims().map_or_else(PartialShape::unknown, |dims| {
        std::iter::once(n).chain(dims.iter().copied()).collect()
    })
}
