//! Lists of tensors, the values of loops in TensorFlow 2 (`list_kernels.cc`). A list is a value: a
//! change makes another one, which shares all other elements.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::elements::LEN_MAX;
use crate::backend::cpu::kernels::elements::checked_len;
use crate::backend::cpu::kernels::elements::concatenated;
use crate::backend::cpu::kernels::elements::joined;
use crate::backend::cpu::kernels::elements::kept_input;
use crate::backend::cpu::kernels::elements::part;
use crate::backend::cpu::kernels::elements::partial_shape;
use crate::backend::cpu::kernels::elements::pieces;
use crate::backend::cpu::kernels::elements::rows;
use crate::backend::cpu::kernels::elements::zeros;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::indices;
use crate::backend::plan::value::scalar;
use crate::backend::types::ELEMENTS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::scratch;
use crate::tensor::DType;
use crate::tensor::PartialShape;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorList;
use crate::tensor::Variant;

pub(super) fn register(registry: &mut KernelRegistry) {
    let plain = [&ELEMENTS[..], &[DType::String]].concat();
    let any = [&plain[..], &[DType::Variant]].concat();
    let mut add = |op: &str, types: &[DType], factory: fn(&KernelConstruction<'_>) -> Made| {
        registry.register(
            def(op)
                .with_types("element_dtype", types)
                .with_factory(factory),
        );
    };
    add("EmptyTensorList", &any, empty);
    add("TensorListReserve", &any, reserve);
    add("TensorListFromTensor", &plain, from_tensor);
    add("TensorListGetItem", &any, get_item);
    add("TensorListSetItem", &any, set_item);
    add("TensorListPushBack", &any, push_back);
    add("TensorListPopBack", &any, pop_back);
    add("TensorListStack", &plain, stack);
    add("TensorListGather", &plain, gather);
    add("TensorListScatter", &plain, scatter);
    add("TensorListScatterV2", &plain, scatter);
    add("TensorListScatterIntoExistingList", &plain, scatter_into);
    add("TensorListConcat", &plain, concat);
    add("TensorListConcatV2", &plain, concat);
    add("TensorListSplit", &plain, split);
    add("TensorListPushBackBatch", &plain, push_back_batch);
    add("TensorListConcatLists", &any, concat_lists);
    registry.register(def("TensorListLength").with_factory(length));
    registry.register(def("TensorListElementShape").with_factory(element_shape));
    registry.register(def("TensorListResize").with_factory(resize));
}

/// Returns the list in input `index`, a scalar.
fn list<'a>(context: &'a KernelContext<'_>, index: usize) -> Result<&'a TensorList, KernelError> {
    match context.input(index)?.as_variants()? {
        [Variant::List(list)] => Ok(list),
        other => Err(KernelError::invalid(format!(
            "input {index} must be one list, but it has {} elements",
            other.len()
        ))),
    }
}

fn set_list(context: &KernelContext<'_>, list: TensorList) -> Result<(), KernelError> {
    let tensor = Tensor::from_variants(Shape::scalar(), vec![Variant::List(list)])?;
    context.set_output(0, tensor)
}

fn check_type(list: &TensorList, dtype: DType) -> Result<(), KernelError> {
    if list.dtype() == dtype {
        return Ok(());
    }
    Err(KernelError::invalid(format!(
        "the list has elements of type {}, the op is for {dtype}",
        list.dtype()
    )))
}

fn check_element(list: &TensorList, element: &Tensor) -> Result<(), KernelError> {
    check_type(list, element.dtype())?;
    if list.element_shape().matches(element.shape()) {
        return Ok(());
    }
    Err(KernelError::invalid(format!(
        "an element of shape {} does not fit a list of elements of shape {}",
        element.shape(),
        list.element_shape()
    )))
}

fn position(list: &TensorList, index: i64, what: &str) -> Result<usize, KernelError> {
    let position = usize::try_from(index).ok();
    position.filter(|&index| index < list.len()).ok_or_else(|| {
        KernelError::invalid(format!(
            "trying to {what} element {index} of a list with {} elements",
            list.len()
        ))
    })
}

fn merged(first: &PartialShape, second: &PartialShape) -> Result<PartialShape, KernelError> {
    first.merge(second).ok_or_else(|| {
        KernelError::invalid(format!(
            "the element shapes {first} and {second} contradict each other"
        ))
    })
}

/// Returns what is known of the shape of the elements: by the list, by the op, and by the elements
/// that are set.
fn known_shape(list: &TensorList, asked: &PartialShape) -> Result<PartialShape, KernelError> {
    let mut shape = merged(list.element_shape(), asked)?;
    if shape.to_shape().is_none() {
        for element in list.iter().flatten() {
            shape = merged(&shape, &PartialShape::from(element.shape()))?;
        }
    }
    Ok(shape)
}

/// Returns an element; zeros if it is not set.
fn element(
    context: &KernelContext<'_>,
    list: &TensorList,
    index: usize,
    shape: &PartialShape,
) -> Result<Tensor, KernelError> {
    if let Some(element) = list.get(index) {
        return Ok(element.clone());
    }
    let Some(shape) = shape.to_shape() else {
        return Err(KernelError::invalid(format!(
            "element {index} of the list is not set, and its shape is only known as {shape}"
        )));
    };
    if list.dtype() == DType::Variant {
        return Err(KernelError::invalid(format!(
            "element {index} of the list is not set"
        )));
    }
    zeros(context, list.dtype(), &shape)
}

/// Returns elements of equal shapes, and the shape of a stack of them.
fn stacked(
    context: &KernelContext<'_>,
    list: &TensorList,
    positions: impl ExactSizeIterator<Item = usize>,
    asked: &PartialShape,
) -> Result<(Shape, Vec<Tensor>), KernelError> {
    let known = known_shape(list, asked)?;
    let Some(shape) = known.to_shape() else {
        return Err(KernelError::invalid(format!(
            "the elements cannot be stacked: the list has no element that is set, and their shape is \
             only known as {known}"
        )));
    };
    let mut elements = scratch::list(positions.len())?;
    for index in positions {
        let element = element(context, list, index, &known)?;
        if *element.shape() != shape {
            return Err(KernelError::invalid(format!(
                "element {index} has shape {}, but {shape} was expected",
                element.shape()
            )));
        }
        elements.push(element);
    }
    let dims: Vec<usize> = std::iter::once(elements.len())
        .chain(shape.dims().iter().copied())
        .collect();
    Ok((Shape::new(&dims), elements))
}

/// TensorFlow `EmptyTensorList`.
fn empty(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "element_dtype")?;
    kernel(move |context| {
        let shape = partial_shape(context.input(0)?)?;
        let len_max = scalar(context.input(1)?, "max_num_elements")?;
        set_list(
            context,
            TensorList::new(dtype, shape, usize::try_from(len_max).ok()),
        )
    })
}

/// TensorFlow `TensorListReserve`: elements that are not set.
fn reserve(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "element_dtype")?;
    kernel(move |context| {
        let shape = partial_shape(context.input(0)?)?;
        let len = checked_len(scalar(context.input(1)?, "num_elements")?, "num_elements")?;
        let mut list = TensorList::new(dtype, shape, None);
        list.resize(len);
        set_list(context, list)
    })
}

/// TensorFlow `TensorListFromTensor`: the rows of a tensor.
fn from_tensor(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "element_dtype")?;
    kernel(move |context| {
        let tensor = context.input(0)?;
        let (n, row) = rows(tensor, "the tensor")?;
        let n = checked_len(i64::try_from(n).unwrap_or(i64::MAX), "the number of rows")?;
        let shape = merged(
            &partial_shape(context.input(1)?)?,
            &PartialShape::from(&row),
        )?;
        let mut list = TensorList::new(dtype, shape, None);
        for index in 0..n {
            list.push(Some(part(context, tensor, index * row.n_elements(), &row)?));
        }
        set_list(context, list)
    })
}

/// TensorFlow `TensorListGetItem`.
fn get_item(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "element_dtype")?;
    kernel(move |context| {
        let list = list(context, 0)?;
        check_type(list, dtype)?;
        let index = position(list, scalar(context.input(1)?, "the index")?, "read")?;
        if let Some(element) = list.get(index) {
            return context.set_output(0, element.clone());
        }
        let shape = known_shape(list, &partial_shape(context.input(2)?)?)?;
        context.set_output(0, element(context, list, index, &shape)?)
    })
}

/// TensorFlow `TensorListSetItem`.
fn set_item(node: &KernelConstruction<'_>) -> Made {
    let grows = bool_attr(node, "resize_if_index_out_of_bounds", false)?;
    kernel(move |context| {
        let mut list = list(context, 0)?.clone();
        let index = scalar(context.input(1)?, "the index")?;
        if grows && index >= i64::try_from(list.len()).unwrap_or(i64::MAX) {
            list.resize(checked_len(
                index.saturating_add(1),
                "the length of the list",
            )?);
        }
        let index = position(&list, index, "set")?;
        check_element(&list, context.input(2)?)?;
        list.set(index, kept_input(context, 2)?);
        set_list(context, list)
    })
}

/// TensorFlow `TensorListPushBack`.
fn push_back(_: &KernelConstruction<'_>) -> Made {
    kernel(|context| {
        let mut list = list(context, 0)?.clone();
        check_element(&list, context.input(1)?)?;
        check_room(&list)?;
        list.push(Some(kept_input(context, 1)?));
        set_list(context, list)
    })
}

fn check_room(list: &TensorList) -> Result<(), KernelError> {
    let len_max = list.len_max().unwrap_or(LEN_MAX).min(LEN_MAX);
    if list.len() < len_max {
        return Ok(());
    }
    Err(KernelError::invalid(format!(
        "trying to append to a full list: it has {} elements, its limit is {len_max}",
        list.len()
    )))
}

/// TensorFlow `TensorListPopBack`.
fn pop_back(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "element_dtype")?;
    kernel(move |context| {
        let mut list = list(context, 0)?.clone();
        check_type(&list, dtype)?;
        let Some(last) = list.len().checked_sub(1) else {
            return Err(KernelError::invalid(
                "trying to remove an element of an empty list",
            ));
        };
        let shape = match list.get(last) {
            Some(_) => PartialShape::unknown(),
            None => known_shape(&list, &partial_shape(context.input(1)?)?)?,
        };
        let removed = element(context, &list, last, &shape)?;
        list.pop();
        context.set_output(1, removed)?;
        set_list(context, list)
    })
}

/// TensorFlow `TensorListStack`.
fn stack(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "element_dtype")?;
    let expected = int_attr(node, "num_elements", Some(-1))?;
    kernel(move |context| {
        let list = list(context, 0)?;
        check_type(list, dtype)?;
        if expected >= 0 && usize::try_from(expected) != Ok(list.len()) {
            return Err(KernelError::invalid(format!(
                "the list has {} elements, the op expects {expected}",
                list.len()
            )));
        }
        let asked = partial_shape(context.input(1)?)?;
        let (shape, elements) = stacked(context, list, 0..list.len(), &asked)?;
        joined(context, 0, dtype, &shape, &elements)
    })
}

/// TensorFlow `TensorListGather`.
fn gather(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "element_dtype")?;
    kernel(move |context| {
        let list = list(context, 0)?;
        check_type(list, dtype)?;
        let asked = partial_shape(context.input(2)?)?;
        let mut positions = Vec::new();
        for index in indices(context.input(1)?)? {
            positions.push(position(list, index, "read")?);
        }
        let (shape, elements) = stacked(context, list, positions.into_iter(), &asked)?;
        joined(context, 0, dtype, &shape, &elements)
    })
}

/// Sets the elements at the positions in input `of_indices` to the rows of a tensor.
fn scatter_rows(
    context: &KernelContext<'_>,
    tensor: usize,
    of_indices: usize,
    list: &mut TensorList,
) -> Result<(), KernelError> {
    let tensor = context.input(tensor)?;
    let (n, row) = rows(tensor, "the tensor")?;
    let indices = indices(context.input(of_indices)?)?;
    if indices.len() != n {
        return Err(KernelError::invalid(format!(
            "there are {} indices for a tensor with {n} rows",
            indices.len()
        )));
    }
    for (at, index) in indices.into_iter().enumerate() {
        let len = index.saturating_add(1);
        if len > i64::try_from(list.len()).unwrap_or(i64::MAX) {
            list.resize(checked_len(len, "the length of the list")?);
        }
        let index = position(list, index, "set")?;
        let row = part(context, tensor, at * row.n_elements(), &row)?;
        check_element(list, &row)?;
        list.set(index, row);
    }
    Ok(())
}

/// TensorFlow `TensorListScatter` and `TensorListScatterV2`.
fn scatter(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "element_dtype")?;
    kernel(move |context| {
        let shape = partial_shape(context.input(2)?)?;
        let mut list = TensorList::new(dtype, shape, None);
        if context.n_inputs() > 3 {
            let len = scalar(context.input(3)?, "num_elements")?;
            if len >= 0 {
                list.resize(checked_len(len, "num_elements")?);
            }
        }
        scatter_rows(context, 0, 1, &mut list)?;
        set_list(context, list)
    })
}

/// TensorFlow `TensorListScatterIntoExistingList`.
fn scatter_into(_: &KernelConstruction<'_>) -> Made {
    kernel(|context| {
        let mut list = list(context, 0)?.clone();
        scatter_rows(context, 1, 2, &mut list)?;
        set_list(context, list)
    })
}

/// TensorFlow `TensorListConcat` and `TensorListConcatV2`. An element that is not set has as many
/// rows as input 2 says.
fn concat(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "element_dtype")?;
    let of_attr = node.attrs.shape("element_shape").cloned();
    kernel(move |context| {
        let list = list(context, 0)?;
        check_type(list, dtype)?;
        let (asked, leading) = match context.n_inputs() {
            1 => (of_attr.clone().unwrap_or_default(), Vec::new()),
            _ => (
                partial_shape(context.input(1)?)?,
                indices(context.input(2)?)?,
            ),
        };
        // Elements may differ in the number of rows.
        let rows_of = |shape: &PartialShape| match shape.dims() {
            Some([_, rest @ ..]) => Some(PartialShape::new(rest)),
            _ => None,
        };
        let mut row = PartialShape::unknown();
        let shapes = [list.element_shape().clone(), asked];
        let of_elements = list
            .iter()
            .flatten()
            .map(|element| PartialShape::from(element.shape()));
        for shape in shapes.into_iter().chain(of_elements) {
            if let Some(rows) = rows_of(&shape) {
                row = merged(&row, &rows)?;
            }
        }
        let row = row.to_shape();
        let mut parts = scratch::list(list.len())?;
        for (index, element) in list.iter().enumerate() {
            if let Some(element) = element {
                parts.push(element.clone());
                continue;
            }
            let (Some(row), Some(&n)) = (&row, leading.get(index)) else {
                return Err(KernelError::invalid(format!(
                    "element {index} of the list is not set, and its shape is not known"
                )));
            };
            let n = checked_len(n, "a leading dimension")?;
            let dims: Vec<usize> = std::iter::once(n)
                .chain(row.dims().iter().copied())
                .collect();
            parts.push(zeros(context, dtype, &Shape::new(&dims))?);
        }
        concatenated(context, dtype, &parts, row)
    })
}

/// TensorFlow `TensorListSplit`.
fn split(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "element_dtype")?;
    kernel(move |context| {
        let shape = partial_shape(context.input(1)?)?;
        let lengths = indices(context.input(2)?)?;
        let mut list = TensorList::new(dtype, shape, None);
        checked_len(
            i64::try_from(lengths.len()).unwrap_or(i64::MAX),
            "the number of lengths",
        )?;
        for piece in pieces(context, context.input(0)?, &lengths)? {
            check_element(&list, &piece)?;
            list.push(Some(piece));
        }
        set_list(context, list)
    })
}

/// TensorFlow `TensorListPushBackBatch`: a row for each of several lists.
fn push_back_batch(_: &KernelConstruction<'_>) -> Made {
    kernel(|context| {
        let handles = context.input(0)?;
        let tensor = context.input(1)?;
        let (n, row) = rows(tensor, "the tensor")?;
        let lists = handles.as_variants()?;
        if lists.len() != n {
            return Err(KernelError::invalid(format!(
                "there are {} lists for a tensor with {n} rows",
                lists.len()
            )));
        }
        let mut pushed = scratch::list(n)?;
        for (index, Variant::List(list)) in lists.iter().enumerate() {
            let mut list = list.clone();
            let element = part(context, tensor, index * row.n_elements(), &row)?;
            check_element(&list, &element)?;
            check_room(&list)?;
            list.push(Some(element));
            pushed.push(Variant::List(list));
        }
        context.set_output(0, Tensor::from_variants(handles.shape().clone(), pushed)?)
    })
}

/// TensorFlow `TensorListConcatLists`: pairs of lists, one behind the other.
fn concat_lists(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "element_dtype")?;
    kernel(move |context| {
        let (first, second) = (context.input(0)?, context.input(1)?);
        if first.shape() != second.shape() {
            return Err(KernelError::invalid(format!(
                "lists of shapes {} and {} cannot be concatenated",
                first.shape(),
                second.shape()
            )));
        }
        let pairs = first.as_variants()?.iter().zip(second.as_variants()?);
        let mut joined = scratch::list(pairs.len())?;
        for (Variant::List(first), Variant::List(second)) in pairs {
            check_type(first, dtype)?;
            check_type(second, dtype)?;
            let shape = merged(first.element_shape(), second.element_shape())?;
            let len = first.len().saturating_add(second.len());
            checked_len(
                i64::try_from(len).unwrap_or(i64::MAX),
                "the length of the list",
            )?;
            let mut list = TensorList::new(dtype, shape, first.len_max());
            list.append(first.clone());
            list.append(second.clone());
            joined.push(Variant::List(list));
        }
        context.set_output(0, Tensor::from_variants(first.shape().clone(), joined)?)
    })
}

/// TensorFlow `TensorListLength`.
fn length(_: &KernelConstruction<'_>) -> Made {
    kernel(|context| {
        let len = i32::try_from(list(context, 0)?.len()).unwrap_or(i32::MAX);
        context.fill_output(0, &Shape::scalar(), |out: &mut [i32]| {
            out.fill(len);
            Ok(())
        })
    })
}

/// TensorFlow `TensorListElementShape`.
fn element_shape(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "shape_type")?;
    kernel(move |context| {
        let shape = list(context, 0)?.element_shape();
        let sizes: Vec<i64> = match shape.dims() {
            Some(dims) => {
                let size = |dim: &Option<usize>| {
                    dim.map_or(-1, |dim| i64::try_from(dim).unwrap_or(i64::MAX))
                };
                dims.iter().map(size).collect()
            }
            None => vec![-1],
        };
        let shape = match shape.dims() {
            Some(dims) => Shape::new(&[dims.len()]),
            None => Shape::scalar(),
        };
        if dtype == DType::I32 {
            return context.fill_output(0, &shape, |out: &mut [i32]| {
                for (out, &size) in out.iter_mut().zip(&sizes) {
                    *out = i32::try_from(size).unwrap_or(i32::MAX);
                }
                Ok(())
            });
        }
        context.fill_output(0, &shape, |out: &mut [i64]| {
            out.copy_from_slice(&sizes);
            Ok(())
        })
    })
}

/// TensorFlow `TensorListResize`.
fn resize(_: &KernelConstruction<'_>) -> Made {
    kernel(|context| {
        let mut list = list(context, 0)?.clone();
        list.resize(checked_len(
            scalar(context.input(1)?, "the size")?,
            "the size",
        )?);
        set_list(context, list)
    })
}
