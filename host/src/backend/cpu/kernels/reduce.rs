//! Reductions, positions of extremes, cumulative sums and products.

use crate::backend::cpu::kernels::ARITHMETIC;
use crate::backend::cpu::kernels::INDICES;
use crate::backend::cpu::kernels::Made;
use crate::backend::cpu::kernels::NUMBERS;
use crate::backend::cpu::kernels::bool_attr;
use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::indices;
use crate::backend::cpu::kernels::kernel;
use crate::backend::cpu::kernels::output;
use crate::backend::cpu::kernels::type_attr;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::kernels::reduce;
use crate::kernels::reduce::Reduction;
use crate::kernels::reduce::axis_index;
use crate::kernels::reducer;
use crate::kernels::reducer::Reducer;
use crate::kernels::scan::AxisView;
use crate::kernels::scan::Ordered;
use crate::kernels::scan::ScanOptions;
use crate::tensor::Boolean;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;
use crate::tensor::Tensor;

pub(super) fn register(registry: &mut KernelRegistry) {
    let mut add = |op: &str, types: &[DType], make: fn(&KernelConstruction<'_>) -> Made| {
        registry.register(
            def(op)
                .with_types("T", types)
                .with_types("Tidx", &INDICES)
                .with_host_memory("reduction_indices")
                .with_factory(make),
        );
    };
    add(
        "Sum",
        &ARITHMETIC,
        |node| dispatch_arithmetic!(type_attr(node, "T")?, T => reduction::<T, reducer::Sum>(node)),
    );
    add(
        "Mean",
        &ARITHMETIC,
        |node| dispatch_arithmetic!(type_attr(node, "T")?, T => reduction::<T, reducer::Mean>(node)),
    );
    add(
        "Prod",
        &ARITHMETIC,
        |node| dispatch_arithmetic!(type_attr(node, "T")?, T => reduction::<T, reducer::Product>(node)),
    );
    add(
        "Max",
        &NUMBERS,
        |node| dispatch_number!(type_attr(node, "T")?, T => reduction::<T, reducer::Max>(node)),
    );
    add(
        "Min",
        &NUMBERS,
        |node| dispatch_number!(type_attr(node, "T")?, T => reduction::<T, reducer::Min>(node)),
    );
    let mut add = |op: &str, make: fn(&KernelConstruction<'_>) -> Made| {
        registry.register(
            def(op)
                .with_types("Tidx", &INDICES)
                .with_host_memory("reduction_indices")
                .with_factory(make),
        );
    };
    add("All", reduction::<Boolean, reducer::All>);
    add("Any", reduction::<Boolean, reducer::Any>);
    positions(registry);
    for op in ["Cumsum", "Cumprod"] {
        registry.register(
            def(op)
                .with_types("T", &ARITHMETIC)
                .with_types("Tidx", &INDICES)
                .with_host_memory("axis")
                .with_factory(move |node| {
                    dispatch_arithmetic!(type_attr(node, "T")?, T => if op == "Cumsum" {
                        scan(node, T::ZERO, T::plus)
                    } else {
                        scan(node, T::ONE, T::times)
                    })
                }),
        );
    }
}

/// Plans the reduction of input 0 over the axes in input 1, and returns whether the result is the
/// input with another shape.
pub(in crate::backend) fn reduction_plan(
    context: &KernelContext<'_>,
    keep_dims: bool,
) -> Result<(Reduction, bool), KernelError> {
    let (input, axes) = (context.input(0)?, context.input(1)?);
    let reduced = reduce::reduced_axes(input.shape(), &indices(axes)?)?;
    let plan = Reduction::new(input.shape(), &reduced, keep_dims);
    let mut gone = input.shape().dims().iter().zip(&reduced);
    let is_view = gone.all(|(&dim, &gone)| dim == 1 || !gone);
    Ok((plan, is_view))
}

/// TensorFlow `Sum`, `Mean`, `Prod`, `Max`, `Min`, `All`, `Any`.
fn reduction<T: Element, R: Reducer<T> + 'static>(node: &KernelConstruction<'_>) -> Made {
    let keep_dims = bool_attr(node, "keep_dims", false)?;
    kernel(move |context| {
        let x = context.input(0)?.as_slice::<T>()?;
        let (plan, is_view) = reduction_plan(context, keep_dims)?;
        if is_view {
            return context.forward_input(0, 0, plan.shape());
        }
        output(context, plan.shape().clone(), |out: &mut [T]| {
            plan.apply::<T, R>(x, out, Threads::of(context));
            Ok(())
        })
    })
}

/// TensorFlow `ArgMax` and `ArgMin`. NaNs are skipped, and the first of equal elements wins.
fn positions(registry: &mut KernelRegistry) {
    let types = [&NUMBERS[..], &[DType::Bool]].concat();
    for (op, output_types) in [
        (
            "ArgMax",
            &[DType::I32, DType::I64, DType::I16, DType::U16][..],
        ),
        ("ArgMin", &INDICES),
    ] {
        registry.register(
            def(op)
                .with_types("T", &types)
                .with_types("Tidx", &INDICES)
                .with_types("output_type", output_types)
                .with_host_memory("dimension")
                .with_factory(move |node| make_arg(node, op == "ArgMax")),
        );
    }
}

fn make_arg(node: &KernelConstruction<'_>, largest: bool) -> Made {
    fn made<T: Ordered>(node: &KernelConstruction<'_>, largest: bool) -> Made {
        let output_type = node.attrs.dtype("output_type").unwrap_or(DType::I64);
        dispatch!(output_type, [I32: i32, I64: i64, I16: i16, U16: u16], O => {
            if largest {
                arg::<T, O>(T::LEAST, |x, y| x > y)
            } else {
                arg::<T, O>(T::MOST, |x, y| x < y)
            }
        })
    }
    match type_attr(node, "T")? {
        DType::Bool => made::<Boolean>(node, largest),
        dtype => dispatch_number!(dtype, T => made::<T>(node, largest)),
    }
}

/// Returns the axis in input 1, and the shape without it.
pub(in crate::backend) fn extreme_plan(
    context: &KernelContext<'_>,
) -> Result<(AxisView, Shape), KernelError> {
    let (input, dimension) = (context.input(0)?, context.input(1)?);
    let shape = input.shape();
    let dim = scalar_index(dimension, || {
        format!(
            "dim must be a scalar, but received tensor of shape: {}",
            dimension.shape()
        )
    })?;
    let rank = shape.rank();
    let axis = axis_index(dim, rank).ok_or_else(|| {
        KernelError::invalid(format!(
            "expected dimension in the range [-{rank}, {rank}), but got {dim} for shape {shape}"
        ))
    })?;
    if shape.dims()[axis] == 0 {
        return Err(KernelError::invalid(format!(
            "reduction axis {dim} is empty in shape {shape}"
        )));
    }
    let left = (0..rank)
        .filter(|&other| other != axis)
        .map(|other| shape.dims()[other])
        .collect();
    Ok((AxisView::new(shape, axis), left))
}

fn arg<T: Ordered, O: Number>(
    start: T,
    beyond: impl Fn(T, T) -> bool + Copy + Send + Sync + 'static,
) -> Made {
    kernel(move |context| {
        let (view, left) = extreme_plan(context)?;
        let x = context.input(0)?.as_slice::<T>()?;
        output(context, left, |out: &mut [O]| {
            let threads = Threads::of(context);
            view.arg(x, out, threads, start, beyond);
            Ok(())
        })
    })
}

/// Returns the only element of a scalar; `message` describes the error for any other shape.
fn scalar_index(tensor: &Tensor, message: impl FnOnce() -> String) -> Result<i64, KernelError> {
    if tensor.shape().rank() != 0 {
        return Err(KernelError::invalid(message()));
    }
    let [index] = indices(tensor)?[..] else {
        unreachable!("a scalar has one element");
    };
    Ok(index)
}

/// Returns the options of TensorFlow `Cumsum` and `Cumprod`.
pub(in crate::backend) fn scan_options(
    node: &KernelConstruction<'_>,
) -> Result<ScanOptions, KernelError> {
    Ok(ScanOptions {
        exclusive: bool_attr(node, "exclusive", false)?,
        reverse: bool_attr(node, "reverse", false)?,
    })
}

/// Returns the axis of the scan, input 1.
pub(in crate::backend) fn scan_view(context: &KernelContext<'_>) -> Result<AxisView, KernelError> {
    let (input, axis) = (context.input(0)?, context.input(1)?);
    let shape = input.shape();
    let asked = scalar_index(axis, || {
        format!("ScanOp: axis must be a scalar, not {}", axis.shape())
    })?;
    let rank = shape.rank();
    let axis = axis_index(asked, rank).ok_or_else(|| {
        KernelError::invalid(format!(
            "ScanOp: expected scan axis in the range [-{rank}, {rank}), but got {asked} for shape {shape}"
        ))
    })?;
    Ok(AxisView::new(shape, axis))
}

fn scan<T: Arithmetic>(
    node: &KernelConstruction<'_>,
    start: T,
    join: impl Fn(T, T) -> T + Copy + Send + Sync + 'static,
) -> Made {
    let options = scan_options(node)?;
    kernel(move |context: &KernelContext<'_>| {
        let view = scan_view(context)?;
        let input = context.input(0)?;
        let x = input.as_slice::<T>()?;
        output(context, input.shape().clone(), |out: &mut [T]| {
            let threads = Threads::of(context);
            view.scan(x, out, options, threads, start, join);
            Ok(())
        })
    })
}
