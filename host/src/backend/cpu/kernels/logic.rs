//! Comparisons, and functions of booleans and bits.

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::types::ELEMENTS;
use crate::backend::types::INTEGERS;
use crate::backend::types::NUMBERS;
use crate::backend::types::REALS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::Bits;
use crate::kernels::Broadcast;
use crate::kernels::Number;
use crate::kernels::Scratch;
use crate::kernels::Threads;
use crate::kernels::unary;
use crate::tensor::Boolean;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;

pub(super) fn register(registry: &mut KernelRegistry) {
    compare(registry);
    let mut add = |op: &str, make: fn(&KernelConstruction<'_>) -> Made| {
        registry.register(def(op).with_types("T", &INTEGERS).with_factory(make));
    };
    add(
        "BitwiseAnd",
        |node| dispatch_integer!(type_attr(node, "T")?, T => binary(<T as Bits>::both)),
    );
    add(
        "BitwiseOr",
        |node| dispatch_integer!(type_attr(node, "T")?, T => binary(<T as Bits>::either)),
    );
    add(
        "BitwiseXor",
        |node| dispatch_integer!(type_attr(node, "T")?, T => binary(<T as Bits>::one_of)),
    );
    add(
        "LeftShift",
        |node| dispatch_integer!(type_attr(node, "T")?, T => binary(<T as Bits>::shifted_left)),
    );
    add(
        "RightShift",
        |node| dispatch_integer!(type_attr(node, "T")?, T => binary(<T as Bits>::shifted_right)),
    );
    add(
        "Invert",
        |node| dispatch_integer!(type_attr(node, "T")?, T => function(<T as Bits>::inverted)),
    );
    registry.register(def("LogicalAnd").with_factory(|_| {
        binary(|x: Boolean, y: Boolean| Boolean::from(x.is_true() & y.is_true()))
    }));
    registry.register(def("LogicalOr").with_factory(|_| {
        binary(|x: Boolean, y: Boolean| Boolean::from(x.is_true() | y.is_true()))
    }));
    registry.register(
        def("LogicalNot").with_factory(|_| function(|x: Boolean| Boolean::from(!x.is_true()))),
    );
    let mut add = |op: &str, make: fn(&KernelConstruction<'_>) -> Made| {
        registry.register(def(op).with_types("T", &REALS).with_factory(make));
    };
    add(
        "IsNan",
        |node| dispatch_real!(type_attr(node, "T")?, T => function(|x: T| Boolean::from(x.is_not_a_number()))),
    );
    add(
        "IsInf",
        |node| dispatch_real!(type_attr(node, "T")?, T => function(|x: T| Boolean::from(is_infinite(x)))),
    );
    add("IsFinite", |node| {
        dispatch_real!(type_attr(node, "T")?, T => function(|x: T| {
            Boolean::from(!is_infinite(x) && !x.is_not_a_number())
        }))
    });
}

fn is_infinite<T: Number>(x: T) -> bool {
    x == T::LOWEST || x == T::HIGHEST
}

/// TensorFlow `Less` to `NotEqual`. With NaN, all but `NotEqual` are false.
fn compare(registry: &mut KernelRegistry) {
    let mut add = |op: &str, make: fn(&KernelConstruction<'_>) -> Made| {
        registry.register(def(op).with_types("T", &NUMBERS).with_factory(make));
    };
    add(
        "Less",
        |node| dispatch_number!(type_attr(node, "T")?, T => binary(|x: T, y: T| Boolean::from(x < y))),
    );
    add(
        "LessEqual",
        |node| dispatch_number!(type_attr(node, "T")?, T => binary(|x: T, y: T| Boolean::from(x <= y))),
    );
    add(
        "Greater",
        |node| dispatch_number!(type_attr(node, "T")?, T => binary(|x: T, y: T| Boolean::from(x > y))),
    );
    add(
        "GreaterEqual",
        |node| dispatch_number!(type_attr(node, "T")?, T => binary(|x: T, y: T| Boolean::from(x >= y))),
    );
    let with_strings = [&ELEMENTS[..], &[DType::String]].concat();
    registry.register(
        def("Equal")
            .with_types("T", &with_strings)
            .with_factory(|node| equality(node, true)),
    );
    registry.register(
        def("NotEqual")
            .with_types("T", &with_strings)
            .with_factory(|node| equality(node, false)),
    );
}

/// TensorFlow `Equal` (`if_equal`) and `NotEqual`. With `incompatible_shape_error` off, tensors
/// whose shapes do not broadcast are different.
fn equality(node: &KernelConstruction<'_>, if_equal: bool) -> Made {
    let must_meet = bool_attr(node, "incompatible_shape_error", true)?;
    let dtype = type_attr(node, "T")?;
    if dtype == DType::String {
        return kernel(move |context| {
            let (l, r) = (
                context.input(0)?.as_strings()?,
                context.input(1)?.as_strings()?,
            );
            // Positions of strings are broadcast, because strings are expensive to copy.
            let places = |n: usize| -> Result<Scratch<u64>, KernelError> {
                let mut places = Threads::of(context).scratch::<u64>(n)?;
                (0..)
                    .zip(places.iter_mut())
                    .for_each(|(place, slot)| *slot = place);
                Ok(places)
            };
            let (left, right) = (places(l.len())?, places(r.len())?);
            let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX);
            equal(context, must_meet, if_equal, &left, &right, |x, y| {
                l[at(x)] == r[at(y)]
            })
        });
    }
    dispatch_element!(dtype, T => kernel(move |context| {
        let (l, r) = (
            context.input(0)?.as_slice::<T>()?,
            context.input(1)?.as_slice::<T>()?,
        );
        equal(context, must_meet, if_equal, l, r, |x: T, y: T| x == y)
    }))
}

fn equal<T: Element>(
    context: &KernelContext<'_>,
    must_meet: bool,
    if_equal: bool,
    lhs: &[T],
    rhs: &[T],
    f: impl Fn(T, T) -> bool + Sync,
) -> Result<(), KernelError> {
    match Broadcast::new(context.input(0)?.shape(), context.input(1)?.shape()) {
        Err(_) if !must_meet => output(context, Shape::scalar(), |out| {
            out.fill(Boolean::from(!if_equal));
            Ok(())
        }),
        Err(error) => Err(error),
        Ok(plan) => output(context, plan.shape().clone(), |out| {
            let threads = Threads::of(context);
            plan.apply(lhs, rhs, out, threads, |x, y| {
                Boolean::from(f(x, y) == if_equal)
            });
            Ok(())
        }),
    }
}

/// A function of two elements, broadcast (TensorFlow `BinaryOp`).
fn binary<T, O, F>(f: F) -> Made
where
    T: Element,
    O: Element,
    F: Fn(T, T) -> O + Copy + Send + Sync + 'static,
{
    kernel(move |context| {
        let (lhs, rhs) = (context.input(0)?, context.input(1)?);
        let plan = Broadcast::new(lhs.shape(), rhs.shape())?;
        let (l, r) = (lhs.as_slice::<T>()?, rhs.as_slice::<T>()?);
        output(context, plan.shape().clone(), |out| {
            plan.apply(l, r, out, Threads::of(context), f);
            Ok(())
        })
    })
}

/// A function of one element (TensorFlow `UnaryOp`).
fn function<T, O, F>(f: F) -> Made
where
    T: Element,
    O: Element,
    F: Fn(T) -> O + Copy + Send + Sync + 'static,
{
    kernel(move |context| {
        let input = context.input(0)?;
        let x = input.as_slice::<T>()?;
        output(context, input.shape().clone(), |out| {
            unary::map(x, out, Threads::of(context), f);
            Ok(())
        })
    })
}
