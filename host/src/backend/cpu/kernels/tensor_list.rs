//! Lists of tensors, the values of loops in TensorFlow 2 (`list_kernels.cc`). A list is a value: a
//! change makes another one, which shares all other elements.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::elements::LEN_MAX;
use crate::backend::cpu::kernels::elements::checked_len;
use crate::backend::cpu::kernels::elements::concatenated;
use crate::backend::cpu::kernels::elements::element_types;
use crate::backend::cpu::kernels::elements::joined;
use crate::backend::cpu::kernels::elements::kept_input;
use crate::backend::cpu::kernels::elements::of_rows;
use crate::backend::cpu::kernels::elements::part;
use crate::backend::cpu::kernels::elements::partial_shape;
use crate::backend::cpu::kernels::elements::pieces;
use crate::backend::cpu::kernels::elements::rows;
use crate::backend::cpu::kernels::elements::vector;
use crate::backend::cpu::kernels::elements::zeros;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::indices;
use crate::backend::plan::value::scalar;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::binary;
use crate::kernels::scratch;
use crate::tensor::DType;
use crate::tensor::PartialShape;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;
use crate::tensor::TensorList;
use crate::tensor::Variant;

pub(super) fn register(registry: &mut KernelRegistry) {
    let types = element_types();
    let mut add = |op: &str, factory: fn(&KernelConstruction<'_>) -> Made| {
        let def = def(op).with_types("element_dtype", &types);
        registry.register(def.with_factory(factory));
    };
    add("EmptyTensorList", empty);
    add("TensorListReserve", reserve);
    add("TensorListFromTensor", from_tensor);
    add("TensorListGetItem", get_item);
    add("TensorListSetItem", set_item);
    add("TensorListPushBack", push_back);
    add("TensorListPopBack", pop_back);
    add("TensorListStack", stack);
    add("TensorListGather", gather);
    add("TensorListScatter", scatter);
    add("TensorListScatterV2", scatter);
    add("TensorListScatterIntoExistingList", scatter_into);
    add("TensorListConcat", concat);
    add("TensorListConcatV2", concat_v2);
    add("TensorListSplit", split);
    add("TensorListPushBackBatch", push_back_batch);
    add("TensorListConcatLists", concat_lists);
    let lists = |op| def(op).with_types("T", &[DType::Variant]);
    registry.register(lists("ZerosLike").with_factory(|_| kernel(zeros_like)));
    registry.register(lists("AddN").with_factory(|_| kernel(add_n)));
    registry.register(
        def("FakeParam")
            .with_types("dtype", &types)
            .with_factory(fake_param),
    );
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

/// Returns the list that an element of a tensor is.
fn as_list(variant: &Variant) -> Result<&TensorList, KernelError> {
    match variant {
        Variant::List(list) => Ok(list),
        Variant::Ragged(_) => Err(KernelError::invalid(
            "an element of the tensor must be a list, but it is a ragged tensor",
        )),
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
    check_shape(list, element.shape())
}

fn check_shape(list: &TensorList, shape: &Shape) -> Result<(), KernelError> {
    if list.element_shape().matches(shape) {
        return Ok(());
    }
    Err(KernelError::invalid(format!(
        "an element of shape {shape} does not fit a list of elements of shape {}",
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

/// Returns what is known of the shape of elements: by the list, by the op, and by those of these
/// elements that are set. The latter are not asked if their shape is known without them.
fn known_shape<'a>(
    list: &TensorList,
    asked: &PartialShape,
    elements: impl Iterator<Item = &'a Tensor>,
) -> Result<PartialShape, KernelError> {
    let mut shape = merged(list.element_shape(), asked)?;
    if shape.to_shape().is_none() {
        for element in elements {
            shape = merged(&shape, &PartialShape::from(element.shape()))?;
        }
    }
    Ok(shape)
}

/// Returns the zeros that stand for an element that is not set.
fn unset_element(
    context: &KernelContext<'_>,
    list: &TensorList,
    index: usize,
    shape: &PartialShape,
) -> Result<Tensor, KernelError> {
    let shape = shape.to_shape().ok_or_else(|| {
        KernelError::invalid(format!(
            "element {index} of the list is not set, and its shape is only known as {shape}"
        ))
    })?;
    zeros(context, list.dtype(), &shape)
}

/// Sets output 0 to a stack of elements, which must have equal shapes.
fn set_stack(
    context: &KernelContext<'_>,
    list: &TensorList,
    positions: &[usize],
    asked: &PartialShape,
) -> Result<(), KernelError> {
    let of_set = positions.iter().filter_map(|&index| list.get(index));
    let known = known_shape(list, asked, of_set)?;
    let Some(shape) = known.to_shape() else {
        return Err(KernelError::invalid(format!(
            "none of the {} elements to stack is set, and their shape is only known as {known}",
            positions.len()
        )));
    };
    let mut zeros = None;
    let mut elements = scratch::list(positions.len())?;
    for &index in positions {
        let element = match (list.get(index), &zeros) {
            (Some(element), _) | (None, Some(element)) => element.clone(),
            (None, None) => {
                let made = unset_element(context, list, index, &known)?;
                zeros.insert(made).clone()
            }
        };
        if *element.shape() != shape {
            return Err(KernelError::invalid(format!(
                "element {index} has shape {}, but {shape} is expected",
                element.shape()
            )));
        }
        elements.push(element);
    }
    let shape = of_rows(elements.len(), &shape);
    joined(context, 0, list.dtype(), &shape, &elements)
}

/// TensorFlow `EmptyTensorList`.
fn empty(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "element_dtype")?;
    kernel(move |context| {
        let shape = partial_shape(context.input(0)?)?;
        // Negative: no limit.
        let len_max = scalar(context.input(1)?, "max_num_elements")?;
        let len_max = usize::try_from(len_max).ok();
        set_list(context, TensorList::new(dtype, shape, len_max))
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
        let mut list = TensorList::new(dtype, partial_shape(context.input(1)?)?, None);
        check_shape(&list, &row)?;
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
        let asked = partial_shape(context.input(2)?)?;
        let shape = known_shape(list, &asked, list.iter().flatten())?;
        context.set_output(0, unset_element(context, list, index, &shape)?)
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
        check_len(&list, list.len_max().unwrap_or(LEN_MAX).min(LEN_MAX))?;
        list.push(Some(kept_input(context, 1)?));
        set_list(context, list)
    })
}

fn check_len(list: &TensorList, len_max: usize) -> Result<(), KernelError> {
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
        let removed = match list.pop() {
            Some(Some(element)) => element,
            Some(None) => {
                let asked = partial_shape(context.input(1)?)?;
                let shape = merged(list.element_shape(), &asked)?;
                unset_element(context, &list, list.len(), &shape)?
            }
            None => {
                return Err(KernelError::invalid(
                    "trying to remove an element of an empty list",
                ));
            }
        };
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
        let mut positions = scratch::list(list.len())?;
        positions.extend(0..list.len());
        set_stack(context, list, &positions, &asked)
    })
}

/// TensorFlow `TensorListGather`.
fn gather(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "element_dtype")?;
    kernel(move |context| {
        let list = list(context, 0)?;
        check_type(list, dtype)?;
        let asked = partial_shape(context.input(2)?)?;
        let indices = indices(context.input(1)?)?;
        let mut positions = scratch::list(indices.len())?;
        for index in indices {
            positions.push(position(list, index, "read")?);
        }
        set_stack(context, list, &positions, &asked)
    })
}

/// Sets the elements at the positions in input `of_indices` to the rows of a tensor. The list grows
/// up to the highest index if `grows`.
fn scatter_rows(
    context: &KernelContext<'_>,
    tensor: usize,
    of_indices: usize,
    list: &mut TensorList,
    grows: bool,
) -> Result<(), KernelError> {
    let tensor = context.input(tensor)?;
    let (n, row) = rows(tensor, "the tensor")?;
    check_type(list, tensor.dtype())?;
    check_shape(list, &row)?;
    let indices = vector(context.input(of_indices)?, "the indices")?;
    if indices.len() != n {
        return Err(KernelError::invalid(format!(
            "there are {} indices for a tensor with {n} rows",
            indices.len()
        )));
    }
    let highest = indices.iter().copied().max().unwrap_or(-1);
    if grows && highest >= i64::try_from(list.len()).unwrap_or(i64::MAX) {
        list.resize(checked_len(
            highest.saturating_add(1),
            "the length of the list",
        )?);
    }
    for (at, index) in indices.into_iter().enumerate() {
        let index = position(list, index, "set")?;
        list.set(index, part(context, tensor, at * row.n_elements(), &row)?);
    }
    Ok(())
}

/// TensorFlow `TensorListScatter` and `TensorListScatterV2`.
fn scatter(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "element_dtype")?;
    kernel(move |context| {
        let shape = partial_shape(context.input(2)?)?;
        let mut list = TensorList::new(dtype, shape, None);
        let len = match context.n_inputs() {
            3 => -1,
            _ => scalar(context.input(3)?, "num_elements")?,
        };
        // -1: as many as the highest index needs.
        let grows = len == -1;
        if !grows {
            list.resize(checked_len(len, "num_elements")?);
        }
        scatter_rows(context, 0, 1, &mut list, grows)?;
        set_list(context, list)
    })
}

/// TensorFlow `TensorListScatterIntoExistingList`.
fn scatter_into(_: &KernelConstruction<'_>) -> Made {
    kernel(|context| {
        let mut list = list(context, 0)?.clone();
        scatter_rows(context, 1, 2, &mut list, true)?;
        set_list(context, list)
    })
}

/// Splits an element shape into what is known of the number of rows, and of the shape of a row.
fn rows_of(shape: &PartialShape) -> Result<(Option<usize>, PartialShape), KernelError> {
    match shape.dims() {
        Some([n, row @ ..]) => Ok((*n, PartialShape::new(row))),
        Some([]) => Err(KernelError::invalid(
            "elements must be at least vectors to be concatenated or split, but the element shape \
             is that of scalars",
        )),
        None => Ok((None, PartialShape::unknown())),
    }
}

/// TensorFlow `TensorListConcat`.
fn concat(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "element_dtype")?;
    let shape = node.attrs.shape("element_shape").cloned();
    // This version of the op does not look at the number of rows.
    let (_, row) = rows_of(&shape.unwrap_or_default())?;
    kernel(move |context| {
        let list = list(context, 0)?;
        check_type(list, dtype)?;
        set_concatenation(context, list, (None, row.clone()), &[])
    })
}

/// TensorFlow `TensorListConcatV2`. Input 2 has the numbers of rows of elements that are not set.
fn concat_v2(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "element_dtype")?;
    kernel(move |context| {
        let list = list(context, 0)?;
        check_type(list, dtype)?;
        let asked = partial_shape(context.input(1)?)?;
        let known = rows_of(&merged(list.element_shape(), &asked)?)?;
        set_concatenation(context, list, known, &indices(context.input(2)?)?)
    })
}

/// Sets output 0 to the rows of all elements, and output 1 to their numbers. `known`: what is known
/// of them besides the elements that are set.
fn set_concatenation(
    context: &KernelContext<'_>,
    list: &TensorList,
    (n_rows, row): (Option<usize>, PartialShape),
    leading: &[i64],
) -> Result<(), KernelError> {
    let mut row = row;
    // The number of rows that all elements have that are set.
    let mut common = None;
    let mut is_common = true;
    for (index, element) in list.iter().enumerate() {
        let Some(element) = element else { continue };
        let (n, of_element) = rows(element, "an element to concatenate")?;
        row = merged(&row, &PartialShape::from(&of_element))?;
        if let Some(expected) = n_rows.filter(|&expected| expected != n) {
            return Err(KernelError::invalid(format!(
                "element {index} has {n} rows, but the element shape says {expected}"
            )));
        }
        is_common &= *common.get_or_insert(n) == n;
    }
    let common = n_rows.or(common.filter(|_| is_common));
    let mut parts = scratch::list(list.len())?;
    for (index, element) in list.iter().enumerate() {
        if let Some(element) = element {
            parts.push(element.clone());
            continue;
        }
        let n = match (leading.get(index), common) {
            (Some(&n), _) => usize::try_from(n).map_err(|_| {
                KernelError::invalid(format!(
                    "leading dimension {n} of element {index} is negative"
                ))
            })?,
            (None, Some(n)) => n,
            (None, None) => {
                return Err(KernelError::invalid(format!(
                    "element {index} of the list is not set, and its number of rows is not known: \
                     there are {} leading dimensions",
                    leading.len()
                )));
            }
        };
        let with_rows = |row: &[Option<usize>]| {
            let dims = std::iter::once(Some(n)).chain(row.iter().copied());
            dims.collect()
        };
        let shape = row.dims().map_or_else(PartialShape::unknown, with_rows);
        parts.push(unset_element(context, list, index, &shape)?);
    }
    concatenated(context, list.dtype(), &parts, &row)
}

/// TensorFlow `TensorListSplit`.
fn split(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "element_dtype")?;
    kernel(move |context| {
        let tensor = context.input(0)?;
        let shape = partial_shape(context.input(1)?)?;
        let lengths = vector(context.input(2)?, "the lengths")?;
        let (_, row) = rows(tensor, "the tensor to split")?;
        // Lengths decide, whatever number of rows the element shape says.
        if !rows_of(&shape)?.1.matches(&row) {
            return Err(KernelError::invalid(format!(
                "a tensor of shape {} cannot be split into elements of shape {shape}",
                tensor.shape()
            )));
        }
        let n = i64::try_from(lengths.len()).unwrap_or(i64::MAX);
        checked_len(n, "the number of lengths")?;
        let mut list = TensorList::new(dtype, shape, None);
        for piece in pieces(context, tensor, &lengths)? {
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
        if handles.shape().rank() != 1 || lists.len() != n {
            return Err(KernelError::invalid(format!(
                "a tensor with {n} rows needs a vector of as many lists, but their shape is {}",
                handles.shape()
            )));
        }
        let mut pushed = scratch::list(n)?;
        for (index, list) in lists.iter().enumerate() {
            let mut list = as_list(list)?.clone();
            let element = part(context, tensor, index * row.n_elements(), &row)?;
            check_element(&list, &element)?;
            // As in TensorFlow, only the other op takes notice of `max_num_elements`.
            check_len(&list, LEN_MAX)?;
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
        for (first, second) in pairs {
            let (first, second) = (as_list(first)?, as_list(second)?);
            check_type(first, dtype)?;
            check_type(second, dtype)?;
            if first.element_shape() != second.element_shape() {
                return Err(KernelError::invalid(format!(
                    "lists of elements of shapes {} and {} cannot be concatenated",
                    first.element_shape(),
                    second.element_shape()
                )));
            }
            let len = first.len().saturating_add(second.len());
            checked_len(
                i64::try_from(len).unwrap_or(i64::MAX),
                "the length of the list",
            )?;
            let mut list = first.clone();
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

/// TensorFlow `ZerosLike` of lists. Elements that are not set stay so.
fn zeros_like(context: &KernelContext<'_>) -> Result<(), KernelError> {
    context.set_output(0, zeros_of(context, context.input(0)?)?)
}

fn zeros_of(context: &KernelContext<'_>, tensor: &Tensor) -> Result<Tensor, KernelError> {
    let Ok(variants) = tensor.as_variants() else {
        return zeros(context, tensor.dtype(), tensor.shape());
    };
    let mut like = scratch::list(variants.len())?;
    for variant in variants {
        like.push(variant.try_map(|element| zeros_of(context, element))?);
    }
    Ok(Tensor::from_variants(tensor.shape().clone(), like)?)
}

/// TensorFlow `AddN` of lists: the sums of their elements. One that is not set counts as zeros.
fn add_n(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let mut sum = context.input(0)?.clone();
    for other in context.inputs().skip(1) {
        sum = sum_of(context, &sum, other)?;
    }
    context.set_output(0, sum)
}

fn sum_of(
    context: &KernelContext<'_>,
    first: &Tensor,
    second: &Tensor,
) -> Result<Tensor, KernelError> {
    if first.shape() != second.shape() || first.dtype() != second.dtype() {
        return Err(KernelError::invalid(format!(
            "{first:?} and {second:?} cannot be added: they differ in type or shape"
        )));
    }
    if first.dtype() != DType::Variant {
        return dispatch_arithmetic!(first.dtype(), T => {
            let mut sum = context.allocate_output(0, first.dtype(), first.shape().clone())?;
            let out = sum.as_slice_mut::<T>().ok_or(TensorError::NotOnHost)?;
            let second = second.as_slice::<T>()?;
            binary::sum_all(first.as_slice::<T>()?, &[second], out, Threads::of(context));
            Ok(sum)
        });
    }
    let pairs = first.as_variants()?.iter().zip(second.as_variants()?);
    let mut sums = scratch::list(pairs.len())?;
    for (first, second) in pairs {
        let (first, second) = (as_list(first)?, as_list(second)?);
        check_type(second, first.dtype())?;
        if first.len() != second.len() {
            return Err(KernelError::invalid(format!(
                "lists with {} and {} elements cannot be added",
                first.len(),
                second.len()
            )));
        }
        let shape = merged(first.element_shape(), second.element_shape())?;
        let mut sum = TensorList::new(first.dtype(), shape, first.len_max());
        for pair in first.iter().zip(second.iter()) {
            sum.push(match pair {
                (Some(first), Some(second)) => Some(sum_of(context, first, second)?),
                (element, None) | (None, element) => element.cloned(),
            });
        }
        sums.push(Variant::List(sum));
    }
    Ok(Tensor::from_variants(first.shape().clone(), sums)?)
}

/// TensorFlow `FakeParam`: the output of a branch for a value that only the other branch computes.
/// Nothing reads its elements.
fn fake_param(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "dtype")?;
    let shape = node.attrs.shape("shape").cloned().unwrap_or_default();
    let dims = shape.dims().unwrap_or_default().iter();
    let shape: Shape = dims.map(|dim| dim.unwrap_or(0)).collect();
    kernel(move |context| {
        if dtype != DType::Variant {
            return context.set_output(0, zeros(context, dtype, &shape)?);
        }
        let list = TensorList::new(DType::F32, PartialShape::unknown(), None);
        let mut lists = scratch::list(shape.n_elements())?;
        lists.extend(std::iter::repeat_n(Variant::List(list), shape.n_elements()));
        context.set_output(0, Tensor::from_variants(shape.clone(), lists)?)
    })
}
