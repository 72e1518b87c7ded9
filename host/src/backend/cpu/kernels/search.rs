//! Searches in sorted values, sets of values, and positions of values.

use std::cmp::Ordering;
use std::hash::BuildHasher;
use std::hash::DefaultHasher;
use std::hash::Hash;
use std::hash::Hasher;
use std::hash::RandomState;

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::bad_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::product;
use crate::backend::plan::value::vector;
use crate::backend::types::INDICES;
use crate::backend::types::NUMBERS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::graph::AttrValue;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::kernels::gather;
use crate::kernels::scratch;
use crate::kernels::search;
use crate::kernels::slice::axis_index;
use crate::kernels::strided::row_major_strides;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Types of TensorFlow's `Where`: all but `half`.
const WHERE: [DType; 14] = [
    DType::F32,
    DType::F64,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::Bool,
    DType::Complex64,
    DType::Complex128,
];

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("Bucketize")
            .with_types("T", &[DType::F32, DType::F64, DType::I32, DType::I64])
            .with_factory(bucketize),
    );
    for op in ["LowerBound", "UpperBound"] {
        registry.register(
            def(op)
                .with_types("T", &NUMBERS)
                .with_types("out_type", &INDICES)
                .with_factory(bound),
        );
    }
    let with_string = [&NUMBERS[..], &[DType::String]].concat();
    registry.register(
        def("ListDiff")
            .with_types("T", &with_string)
            .with_types("out_idx", &INDICES)
            .with_factory(list_diff),
    );
    let unique_types = [&with_string[..], &[DType::Bool]].concat();
    for op in [
        "Unique",
        "UniqueV2",
        "UniqueWithCounts",
        "UniqueWithCountsV2",
    ] {
        registry.register(
            def(op)
                .with_types("T", &unique_types)
                .with_types("out_idx", &INDICES)
                .with_factory(unique),
        );
    }
    registry.register(
        def("Where")
            .with_types("T", &WHERE)
            .with_factory(
                |node| dispatch_element!(node.attrs.dtype("T").unwrap_or(DType::Bool), T => kernel(non_zero::<T>)),
            ),
    );
}

/// TensorFlow `Bucketize`.
fn bucketize(node: &KernelConstruction<'_>) -> Made {
    let list = node.attrs.list("boundaries");
    let list = list.ok_or_else(|| bad_attr(node, "boundaries", "list(float)"))?;
    let mut boundaries = scratch::list(list.len())?;
    for value in list {
        let AttrValue::Float(value) = value else {
            return Err(bad_attr(node, "boundaries", "list(float)"));
        };
        boundaries.push(*value);
    }
    if !boundaries.is_sorted() {
        return Err(KernelError::invalid("expected sorted boundaries"));
    }
    // Integers are compared as single-precision numbers, as in TensorFlow.
    let is_double = type_attr(node, "T")? == DType::F64;
    dispatch!(type_attr(node, "T")?, [F32: f32, F64: f64, I32: i32, I64: i64], T => {
        kernel(move |context| {
            let input = context.input(0)?;
            let x = input.as_slice::<T>()?;
            output(context, input.shape().clone(), |out: &mut [i32]| {
                for (slot, &x) in out.iter_mut().zip(x) {
                    let bucket = if is_double {
                        let x = x.to_f64();
                        boundaries.partition_point(|&boundary| {
                            x.partial_cmp(&f64::from(boundary)) != Some(Ordering::Less)
                        })
                    } else {
                        search::bucket(&<f32 as Number>::from_f64(x.to_f64()), &boundaries)
                    };
                    *slot = i32::try_from(bucket).unwrap_or(i32::MAX);
                }
                Ok(())
            })
        })
    })
}

/// TensorFlow `LowerBound` and `UpperBound`.
fn bound(node: &KernelConstruction<'_>) -> Made {
    fn bounds<T: Number, O: Number>(
        context: &KernelContext<'_>,
        bound: fn(&[T], &T) -> usize,
    ) -> Result<(), KernelError> {
        let (sorted, values) = (context.input(0)?, context.input(1)?);
        let (&[n_rows, n], &[n_value_rows, n_values]) =
            (sorted.shape().dims(), values.shape().dims())
        else {
            return Err(KernelError::invalid(format!(
                "sorted input and values argument must be 2-D, not {} and {}",
                sorted.shape(),
                values.shape()
            )));
        };
        if n_rows != n_value_rows {
            return Err(KernelError::invalid(format!(
                "leading dim_size of both tensors must match, not {n_rows} and {n_value_rows}"
            )));
        }
        if O::DTYPE == DType::I32 && i32::try_from(n).is_err() {
            return Err(KernelError::invalid(format!(
                "trailing dim_size must be less than 2^31 with positions of type int32, not {n}"
            )));
        }
        let (sorted, x) = (sorted.as_slice::<T>()?, values.as_slice::<T>()?);
        context.fill_output(0, values.shape(), |out: &mut [O]| {
            for (index, (slot, x)) in out.iter_mut().zip(x).enumerate() {
                let row = &sorted[index / n_values * n..][..n];
                *slot = O::from_i64(i64::try_from(bound(row, x)).unwrap_or(i64::MAX));
            }
            Ok(())
        })
    }
    let is_lower = node.op == "LowerBound";
    let out = node.attrs.dtype("out_type").unwrap_or(DType::I32);
    dispatch_number!(type_attr(node, "T")?, T => {
        let find = if is_lower { search::lower_bound::<T> } else { search::upper_bound::<T> };
        dispatch!(out, [I32: i32, I64: i64], O => {
            kernel(move |context| bounds::<T, O>(context, find))
        })
    })
}

/// Writes positions to output `index`, as the type that attribute `out_idx` names.
fn write_positions(
    context: &KernelContext<'_>,
    index: usize,
    dtype: DType,
    positions: &[usize],
) -> Result<(), KernelError> {
    let shape = Shape::from([positions.len()]);
    dispatch!(dtype, [I32: i32, I64: i64], O => {
        context.fill_output(index, &shape, |out: &mut [O]| {
            for (slot, &position) in out.iter_mut().zip(positions) {
                *slot = O::try_from(position).map_err(|_| {
                    KernelError::invalid(format!("position {position} exceeds {}", O::DTYPE))
                })?;
            }
            Ok(())
        })
    })
}

fn out_idx(node: &KernelConstruction<'_>) -> DType {
    node.attrs.dtype("out_idx").unwrap_or(DType::I32)
}

/// Returns the elements of a vector.
fn n_of_vector(tensor: &Tensor, what: &str) -> Result<usize, KernelError> {
    match *tensor.shape().dims() {
        [n] => Ok(n),
        _ => Err(KernelError::invalid(format!(
            "{what} should be a 1D vector, not {}",
            tensor.shape()
        ))),
    }
}

/// TensorFlow `ListDiff`.
fn list_diff(node: &KernelConstruction<'_>) -> Made {
    let idx = out_idx(node);
    let dtype = type_attr(node, "T")?;
    dispatch_raw!(dtype, W => kernel(move |context| {
        let (x, y) = (context.input(0)?, context.input(1)?);
        let n = n_of_vector(x, "x")?;
        n_of_vector(y, "y")?;
        let mut kept = Threads::of(context).scratch(n)?;
        let n_kept = if dtype == DType::String {
            let (x, y) = (x.as_strings()?, y.as_strings()?);
            let mut sorted = scratch::list(y.len())?;
            sorted.extend(y.iter().cloned());
            search::difference(x, &mut sorted, &mut kept)
        } else {
            dispatch_number!(dtype, T => {
                let (x, y) = (x.as_slice::<T>()?, y.as_slice::<T>()?);
                let mut sorted = Threads::of(context).scratch::<T>(y.len())?;
                sorted.copy_from_slice(y);
                Ok(search::difference(x, &mut sorted, &mut kept))
            })?
        };
        let kept = &kept[..n_kept];
        let elements = W::read(x)?;
        W::write(context, 0, dtype, Shape::from([n_kept]), |out| {
            gather::slices(&elements, kept, 1, out, Threads::of(context));
            Ok(())
        })?;
        write_positions(context, 1, idx, kept)
    }))
}

/// Calls `body` with a function that hashes the element at a position, and with whether the
/// elements at two positions are the same. Those that are have the same hash.
fn with_identity<R>(
    tensor: &Tensor,
    body: impl FnOnce(
        &dyn Fn(usize, &mut DefaultHasher),
        &dyn Fn(usize, usize) -> bool,
    ) -> Result<R, KernelError>,
) -> Result<R, KernelError> {
    match tensor.dtype() {
        DType::String => {
            let x = tensor.as_strings()?;
            body(&|index, hasher| x[index].hash(hasher), &|a, b| x[a] == x[b])
        }
        DType::Bool => {
            let x = tensor.as_bools()?;
            let truth = |index: usize| x[index] != 0;
            body(&|index, hasher| truth(index).hash(hasher), &|a, b| {
                truth(a) == truth(b)
            })
        }
        dtype => dispatch_number!(dtype, T => {
            let x = tensor.as_slice::<T>()?;
            body(&|index, hasher| hash_number(x, index, hasher), &|a, b| x[a] == x[b])
        }),
    }
}

fn hash_number<T: Element + PartialEq>(x: &[T], index: usize, hasher: &mut DefaultHasher) {
    let number = &x[index];
    #[expect(clippy::eq_op, reason = "the definition of NaN, for any type")]
    let is_nan = number != number;
    if is_nan {
        // Each is another one. If they had one hash, many would take quadratic time.
        hasher.write_usize(index);
    } else if *number == T::zeroed() {
        // Also -0.
        hasher.write(bytemuck::bytes_of(&T::zeroed()));
    } else {
        hasher.write(bytemuck::bytes_of(number));
    }
}

/// TensorFlow `Unique`, `UniqueV2` (along an axis) and `UniqueWithCounts`.
fn unique(node: &KernelConstruction<'_>) -> Made {
    let idx = out_idx(node);
    let has_axis = node.op.ends_with("V2");
    let has_counts = node.op.starts_with("UniqueWithCounts");
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        distinct::<W>(context, has_axis, has_counts, idx)
    }))
}

/// Returns the axis whose slices are compared.
fn unique_axis(context: &KernelContext<'_>, has_axis: bool) -> Result<usize, KernelError> {
    let shape = context.input(0)?.shape();
    let axis = if has_axis {
        vector(context.input(1)?, "axis")?
    } else {
        smallvec::SmallVec::new()
    };
    match axis[..] {
        [] if shape.rank() == 1 => Ok(0),
        [] => Err(KernelError::invalid(format!(
            "unique expects a 1D vector, not {shape}"
        ))),
        [axis] => axis_index(axis, shape.rank()).ok_or_else(|| {
            KernelError::invalid(format!(
                "axis has to be between [0, {}), not {axis}",
                shape.rank()
            ))
        }),
        _ => Err(KernelError::invalid(
            "axis does not support input tensors larger than 1 elements",
        )),
    }
}

fn distinct<W: RawElements>(
    context: &KernelContext<'_>,
    has_axis: bool,
    has_counts: bool,
    idx: DType,
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let axis = unique_axis(context, has_axis)?;
    let dims = input.shape().dims();
    let (outer, n, inner) = (
        product(&dims[..axis]),
        dims[axis],
        product(&dims[axis + 1..]),
    );
    let threads = Threads::of(context);
    let mut groups = threads.scratch(n)?;
    // Positions of the elements of slice `index`.
    let slice = |index: usize| {
        (0..outer).flat_map(move |block| (0..inner).map(move |k| (block * n + index) * inner + k))
    };
    // Seeded by chance: nobody can choose values that all have one hash.
    let seed = RandomState::new();
    let found = with_identity(input, |hash, is_same| {
        search::distinct(
            &mut groups,
            threads,
            |index| {
                let mut hasher = seed.build_hasher();
                slice(index).for_each(|position| hash(position, &mut hasher));
                hasher.finish()
            },
            |a, b| slice(a).zip(slice(b)).all(|(a, b)| is_same(a, b)),
        )
    })?;
    let shape: Shape = dims[..axis]
        .iter()
        .chain(&[found.n])
        .chain(&dims[axis + 1..])
        .copied()
        .collect();
    let elements = W::read(input)?;
    W::write(context, 0, input.dtype(), shape, |out| {
        if out.is_empty() {
            return Ok(());
        }
        for (row, out) in out.chunks_exact_mut(inner).enumerate() {
            let (block, index) = (row / found.n, row % found.n);
            let start = (block * n + found.firsts[index]) * inner;
            out.copy_from_slice(&elements[start..start + inner]);
        }
        Ok(())
    })?;
    write_positions(context, 1, idx, &groups)?;
    if has_counts {
        let mut counts = threads.scratch::<usize>(found.n)?;
        for &group in groups.iter() {
            counts[group] += 1;
        }
        write_positions(context, 2, idx, &counts)?;
    }
    Ok(())
}

/// TensorFlow `Where`: the positions of elements that are not 0.
fn non_zero<T: Element>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let x = input.as_slice::<T>()?;
    let dims = input.shape().dims();
    if !(1..=8).contains(&dims.len()) {
        return Err(KernelError::invalid(format!(
            "unhandled input dimensions: {}; Where takes 1 to 8",
            dims.len()
        )));
    }
    let is_set = |x: &T| *x != T::zeroed();
    let n = x.iter().filter(|x| is_set(x)).count();
    let strides = row_major_strides(dims);
    output(
        context,
        Shape::from([n, dims.len()]),
        |out: &mut [i64]| {
            if dims.is_empty() {
                return Ok(());
            }
            let set = x.iter().enumerate().filter(|(_, x)| is_set(x));
            for (out, (position, _)) in out.chunks_exact_mut(dims.len()).zip(set) {
                for (slot, (&dim, &stride)) in out.iter_mut().zip(dims.iter().zip(&strides)) {
                    let index = position / stride.unsigned_abs() % dim;
                    *slot = i64::try_from(index).unwrap_or(i64::MAX);
                }
            }
            Ok(())
        },
    )
}
