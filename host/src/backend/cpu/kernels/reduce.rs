//! Reductions, positions of extremes, cumulative sums and products.

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::reduce::extreme_plan;
use crate::backend::plan::reduce::reduction_plan;
use crate::backend::plan::reduce::scan_options;
use crate::backend::plan::reduce::scan_view;
use crate::backend::types::ARITHMETIC;
use crate::backend::types::INDICES;
use crate::backend::types::NUMBERS;
use crate::backend::types::REALS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::Number;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::reducer;
use crate::kernels::reducer::Normed;
use crate::kernels::reducer::Reducer;
use crate::kernels::scan::Ordered;
use crate::tensor::Boolean;
use crate::tensor::DType;
use crate::tensor::Element;

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
        "EuclideanNorm",
        &ARITHMETIC,
        |node| dispatch_arithmetic!(type_attr(node, "T")?, T => norm::<T>(node)),
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
    registry.register(
        def("CumulativeLogsumexp")
            .with_types("T", &REALS)
            .with_types("Tidx", &INDICES)
            .with_host_memory("axis")
            .with_factory(|node| {
                dispatch_real!(type_attr(node, "T")?, T => scan(node, T::LOWEST, log_sum::<T>))
            }),
    );
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

/// TensorFlow `EuclideanNorm`.
fn norm<T: Element + Normed>(node: &KernelConstruction<'_>) -> Made {
    let keep_dims = bool_attr(node, "keep_dims", false)?;
    kernel(move |context| {
        let x = context.input(0)?.as_slice::<T>()?;
        // Even an axis of one element is reduced: a norm is not negative.
        let (plan, _) = reduction_plan(context, keep_dims)?;
        output(context, plan.shape().clone(), |out: &mut [T]| {
            plan.apply::<T, reducer::Norm>(x, out, Threads::of(context));
            Ok(())
        })
    })
}

/// Returns `ln(e^x + e^y)`.
fn log_sum<T: Real>(x: T, y: T) -> T {
    let (a, b) = (x.to_f64(), y.to_f64());
    let (high, low) = if a > b { (a, b) } else { (b, a) };
    match low == f64::NEG_INFINITY {
        true => T::from_f64(high),
        false => T::from_f64(high + (low - high).exp().ln_1p()),
    }
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
