//! Rows that are replaced, selected elements, and formats of images.

use smallvec::SmallVec;

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::cpu::kernels::string_pieces::set_indices;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::host_kernels::view;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::string_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::indices;
use crate::backend::plan::value::scalar;
use crate::backend::plan::value::shape_of;
use crate::backend::types::ARITHMETIC;
use crate::backend::types::INDICES;
use crate::backend::types::NUMBERS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::Number;
use crate::kernels::scratch;
use crate::kernels::slice::axis_index;
use crate::tensor::DType;
use crate::tensor::Shape;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("Empty")
            .with_types("dtype", &MOVED)
            .with_factory(|node| {
                dispatch_raw!(type_attr(node, "dtype")?, W => {
                    let dtype = type_attr(node, "dtype")?;
                    kernel(move |context| {
                        let shape = shape_of(context.input(0)?, "shape")?;
                        W::write(context, 0, dtype, shape, |out| {
                            // Also without `init`: no result depends on what was in memory before.
                            out.fill(Default::default());
                            Ok(())
                        })
                    })
                })
            }),
    );
    for op in ["DeepCopy", "GuaranteeConst"] {
        registry.register(
            def(op).with_factory(|_| view(|context| Ok(context.input(0)?.shape().clone()))),
        );
    }
    registry.register(
        def("NthElement")
            .with_types("T", &NUMBERS)
            .with_factory(|node| {
                let is_from_largest = bool_attr(node, "reverse", false)?;
                dispatch_number!(type_attr(node, "T")?, T => kernel(move |context| {
                    nth::<T>(context, is_from_largest)
                }))
            }),
    );
    registry.register(
        def("ConcatOffset")
            .with_types("shape_type", &INDICES)
            .with_factory(|node| {
                let is_wide = node.attrs.dtype("shape_type") == Some(DType::I64);
                kernel(move |context| concat_offset(context, is_wide))
            }),
    );
    registry.register(
        def("InplaceUpdate")
            .with_types("T", &MOVED)
            .with_factory(|node| {
                dispatch_raw!(type_attr(node, "T")?, W => kernel(|context| {
                    let rows = Rows::of(context)?;
                    let (x, v) = (W::read(context.input(0)?)?, W::read(context.input(2)?)?);
                    let dtype = context.input(0)?.dtype();
                    W::write(context, 0, dtype, context.input(0)?.shape().clone(), |out| {
                        out.copy_from_slice(&x);
                        rows.each(|place, at| out[place] = v[at]);
                        Ok(())
                    })
                }))
            }),
    );
    for (op, is_sum) in [("InplaceAdd", true), ("InplaceSub", false)] {
        registry.register(
            def(op)
                .with_types("T", &ARITHMETIC)
                .with_factory(move |node| {
                    dispatch_arithmetic!(type_attr(node, "T")?, T => kernel(move |context| {
                        changed::<T>(context, if is_sum { T::plus } else { T::minus })
                    }))
                }),
        );
    }
    for op in ["DataFormatVecPermute", "DataFormatDimMap"] {
        registry.register(def(op).with_types("T", &INDICES).with_factory(format));
    }
}

/// TensorFlow `NthElement`: of each row of the last axis, in the order of values.
fn nth<T: Number>(context: &KernelContext<'_>, is_from_largest: bool) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let Some((&size, outer)) = input.shape().dims().split_last() else {
        return Err(KernelError::invalid(format!(
            "input must be >= 1-D, got shape {}",
            input.shape()
        )));
    };
    let n = scalar(context.input(1)?, "n")?;
    let place = usize::try_from(n).ok().filter(|&place| place < size);
    let place = place.ok_or_else(|| {
        KernelError::invalid(format!(
            "Input must have last dimension > n = {n} and n must be non-negative, got shape {}",
            input.shape()
        ))
    })?;
    let place = if is_from_largest {
        size - 1 - place
    } else {
        place
    };
    let x = input.as_slice::<T>()?;
    let mut row = scratch::list(size)?;
    output(context, Shape::new(outer), |out: &mut [T]| {
        for (slot, values) in out.iter_mut().zip(x.chunks_exact(size)) {
            row.clear();
            row.extend_from_slice(values);
            let order = |a: &T, b: &T| a.to_f64().total_cmp(&b.to_f64());
            let by_value = |a: &T, b: &T| a.partial_cmp(b).unwrap_or_else(|| order(a, b));
            *slot = *row.select_nth_unstable_by(place, by_value).1;
        }
        Ok(())
    })
}

/// TensorFlow `ConcatOffset`: where each input starts in their concatenation.
fn concat_offset(context: &KernelContext<'_>, is_wide: bool) -> Result<(), KernelError> {
    let axis = scalar(context.input(0)?, "concat_dim")?;
    let first = indices(context.input(1)?)?;
    let found = axis_index(axis, first.len()).ok_or_else(|| {
        KernelError::invalid(format!(
            "Concat dim is out of range: {axis} vs. {}",
            first.len()
        ))
    })?;
    let mut offset = 0i64;
    for input in 1..context.n_inputs() {
        let dims = indices(context.input(input)?)?;
        if dims.len() != first.len() {
            return Err(KernelError::invalid(format!(
                "input {input} should contain {} elements, but got {}",
                first.len(),
                dims.len()
            )));
        }
        for (at, (dim, expected)) in dims.iter().zip(&first).enumerate() {
            if at != found && dim != expected {
                return Err(KernelError::invalid(format!(
                    "All dimensions except {found} must match. Input {input} has shape {dims:?} \
                     and doesn't match input 0 with shape {first:?}."
                )));
            }
        }
        let mut offsets: SmallVec<[i64; 8]> = SmallVec::from_elem(0, dims.len());
        offsets[found] = offset;
        set_indices(
            context,
            input - 1,
            &Shape::new(&[dims.len()]),
            &offsets,
            is_wide,
        )?;
        offset = offset.saturating_add(dims[found]);
    }
    Ok(())
}

/// Rows of input 0 that are changed by those of input 2; input 1 has their numbers.
struct Rows {
    numbers: Vec<usize>,
    n_row: usize,
}

impl Rows {
    fn of(context: &KernelContext<'_>) -> Result<Self, KernelError> {
        let (x, v) = (context.input(0)?, context.input(2)?);
        let numbers = indices(context.input(1)?)?;
        let (Some((&n, inner)), Some((&n_given, given))) = (
            x.shape().dims().split_first(),
            v.shape().dims().split_first(),
        ) else {
            return Err(KernelError::invalid("x and v must have rank 1 or more"));
        };
        if inner != given || n_given != numbers.len() {
            return Err(KernelError::invalid(format!(
                "v has shape {}; rows of x, whose shape is {}, at {} places do not fit",
                v.shape(),
                x.shape(),
                numbers.len()
            )));
        }
        // TensorFlow takes the numbers modulo the number of rows.
        let places = numbers.iter().map(|&number| {
            let n = i64::try_from(n).unwrap_or(i64::MAX).max(1);
            usize::try_from(number.rem_euclid(n)).unwrap_or(0)
        });
        if n == 0 && n_given > 0 {
            return Err(KernelError::invalid("x has no rows that can be changed"));
        }
        Ok(Self {
            numbers: scratch::collected(places)?,
            n_row: Shape::new(inner).n_elements(),
        })
    }

    /// Calls `visit` with each place in `x` and in `v`.
    fn each(&self, mut visit: impl FnMut(usize, usize)) {
        for (given, row) in self.numbers.iter().enumerate() {
            for column in 0..self.n_row {
                visit(row * self.n_row + column, given * self.n_row + column);
            }
        }
    }
}

/// TensorFlow `InplaceAdd` and `InplaceSub`.
fn changed<T: Arithmetic>(
    context: &KernelContext<'_>,
    change: fn(T, T) -> T,
) -> Result<(), KernelError> {
    let rows = Rows::of(context)?;
    let x = context.input(0)?;
    let (values, v) = (x.as_slice::<T>()?, context.input(2)?.as_slice::<T>()?);
    output(context, x.shape().clone(), |out: &mut [T]| {
        out.copy_from_slice(values);
        rows.each(|place, at| out[place] = change(out[place], v[at]));
        Ok(())
    })
}

/// TensorFlow `DataFormatVecPermute` and `DataFormatDimMap`.
fn format(node: &KernelConstruction<'_>) -> Made {
    let source: SmallVec<[u8; 8]> = string_attr(node, "src_format", "NHWC")?.bytes().collect();
    let target: SmallVec<[u8; 8]> = string_attr(node, "dst_format", "NCHW")?.bytes().collect();
    let place = |axis: &u8| target.iter().position(|other| other == axis);
    let places: Option<SmallVec<[usize; 8]>> = source.iter().map(place).collect();
    let fits = source.len() == target.len() && matches!(source.len(), 4 | 5);
    let Some(places) = places.filter(|_| fits) else {
        return Err(KernelError::invalid(format!(
            "src_format and dst_format must have 4 or 5 equal characters in some order, not {} and \
             {}",
            source.escape_ascii(),
            target.escape_ascii()
        )));
    };
    let is_wide = type_attr(node, "T")? == DType::I64;
    if node.op == "DataFormatDimMap" {
        return kernel(move |context| {
            let input = context.input(0)?;
            let mut axes = indices(input)?;
            for axis in &mut axes {
                // TensorFlow takes the axis modulo the rank.
                let rank = i64::try_from(places.len()).unwrap_or(1);
                let found = usize::try_from(axis.rem_euclid(rank)).unwrap_or(0);
                *axis = i64::try_from(places[found]).unwrap_or(0);
            }
            set_indices(context, 0, input.shape(), &axes, is_wide)
        });
    }
    // Without batch and channels, the order of the axes of an image.
    let is_spatial = |axis: &&u8| !matches!(axis, b'N' | b'C');
    let rank_of = |axis: &u8| {
        target
            .iter()
            .filter(is_spatial)
            .position(|other| other == axis)
    };
    let spatial: SmallVec<[usize; 8]> = source
        .iter()
        .filter(is_spatial)
        .filter_map(rank_of)
        .collect();
    kernel(move |context| {
        let input = context.input(0)?;
        let (n, columns) = match *input.shape().dims() {
            [n] => (n, 1),
            [n, 2] => (n, 2),
            _ => {
                return Err(KernelError::invalid(format!(
                    "input must be a vector or 2D tensor with 2 columns, but got shape {}",
                    input.shape()
                )));
            }
        };
        let order = [&places, &spatial]
            .into_iter()
            .find(|order| order.len() == n);
        let order = order.ok_or_else(|| {
            KernelError::invalid(format!(
                "input must have {} or {} rows, but got shape {}",
                places.len(),
                spatial.len(),
                input.shape()
            ))
        })?;
        let values = indices(input)?;
        // Two columns for five axes at most.
        let mut permuted = [0i64; 10];
        for (row, &place) in order.iter().enumerate() {
            permuted[place * columns..][..columns]
                .copy_from_slice(&values[row * columns..][..columns]);
        }
        set_indices(
            context,
            0,
            input.shape(),
            &permuted[..values.len()],
            is_wide,
        )
    })
}
