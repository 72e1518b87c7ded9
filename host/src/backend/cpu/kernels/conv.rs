//! Depthwise and transposed convolutions.

use crate::backend::cpu::kernels::channels_first::either_layout;
use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::fused::EpilogueOps;
use crate::backend::cpu::kernels::fused::output_with;
use crate::backend::cpu::kernels::nn::CONVOLVED;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::conv::UndilatedWindows;
use crate::backend::plan::conv::depthwise_plan;
use crate::backend::plan::conv::transposed_plan;
use crate::backend::types::REALS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::MatmulElement;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::tensor::DType;
use crate::tensor::Element;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("DepthwiseConv2dNative")
            .with_types("T", &REALS)
            .with_factory(|node| either_layout(node, depthwise)),
    );
    registry.register(
        def("Conv2DBackpropInput")
            .with_types("T", &CONVOLVED)
            .with_host_memory("input_sizes")
            .with_factory(transposed),
    );
}

/// TensorFlow `DepthwiseConv2dNative`, channels last.
fn depthwise(node: &KernelConstruction<'_>) -> Made {
    depthwise_with(node, None)
}

/// The same, and the epilogue of a fused node, if the images are `float`.
pub(super) fn depthwise_with(node: &KernelConstruction<'_>, epilogue: Option<EpilogueOps>) -> Made {
    let windows = UndilatedWindows::of_depthwise(node)?;
    dispatch_real!(type_attr(node, "T")?, T => if T::DTYPE == DType::F32 {
        kernel(move |context| convolve_floats(context, windows, epilogue))
    } else {
        kernel(move |context| convolve::<T>(context, windows))
    })
}

fn convolve<T: Real>(
    context: &KernelContext<'_>,
    windows: UndilatedWindows,
) -> Result<(), KernelError> {
    let (input, filter) = (context.input(0)?, context.input(1)?);
    let (plan, shape) = depthwise_plan(windows, input.shape(), filter.shape())?;
    let (x, f) = (input.as_slice::<T>()?, filter.as_slice::<T>()?);
    output(context, shape, |out| {
        plan.apply(x, f, out, Threads::of(context))
    })
}

fn convolve_floats(
    context: &KernelContext<'_>,
    windows: UndilatedWindows,
    epilogue: Option<EpilogueOps>,
) -> Result<(), KernelError> {
    let (input, filter) = (context.input(0)?, context.input(1)?);
    let (plan, shape) = depthwise_plan(windows, input.shape(), filter.shape())?;
    let (x, f) = (input.as_slice()?, filter.as_slice()?);
    output_with(context, epilogue, &shape, |epilogue, out| {
        plan.apply_with(x, f, epilogue, out, Threads::of(context))
    })
}

/// TensorFlow `Conv2DBackpropInput`, channels last: a transposed convolution.
fn transposed(node: &KernelConstruction<'_>) -> Made {
    let windows = UndilatedWindows::new(node)?;
    dispatch!(
        type_attr(node, "T")?,
        [F32: f32, F64: f64, F16: half::f16, BF16: half::bf16, I32: i32],
        T => kernel(move |context| spread::<T>(context, windows))
    )
}

fn spread<T: MatmulElement>(
    context: &KernelContext<'_>,
    windows: UndilatedWindows,
) -> Result<(), KernelError> {
    let (sizes, filter, given) = (context.input(0)?, context.input(1)?, context.input(2)?);
    let (plan, shape) = transposed_plan(windows, sizes, filter.shape(), given.shape())?;
    let (f, g) = (filter.as_slice::<T>()?, given.as_slice::<T>()?);
    output(context, shape, |out| {
        plan.apply(g, f, out, Threads::of(context))
    })
}
