//! Convolution and pooling of volumes.

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::vector;
use crate::backend::plan::volume::VolumeAttrs;
use crate::backend::plan::volume::VolumePoolWindows;
use crate::backend::types::REALS;
use crate::device::KernelConstruction;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::tensor::DType;

/// Types that TensorFlow's CPU kernels pool.
const POOLED: [DType; 2] = [DType::F32, DType::BF16];

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("Conv3D")
            .with_types("T", &REALS)
            .with_factory(convolution),
    );
    registry.register(
        def("Conv3DBackpropInputV2")
            .with_types("T", &REALS)
            .with_host_memory("input_sizes")
            .with_factory(transposed),
    );
    registry.register(
        def("MaxPool3D")
            .with_types("T", &POOLED)
            .with_factory(largest),
    );
    registry.register(def("AvgPool3D").with_types("T", &POOLED).with_factory(mean));
}

/// TensorFlow `Conv3D`, channels last.
fn convolution(node: &KernelConstruction<'_>) -> Made {
    let attrs = VolumeAttrs::new(node)?;
    dispatch_real!(type_attr(node, "T")?, T => kernel(move |context| {
        let (input, filter) = (context.input(0)?, context.input(1)?);
        let (plan, shape) = attrs.convolution(input.shape(), filter.shape())?;
        let (x, f) = (input.as_slice::<T>()?, filter.as_slice::<T>()?);
        output(context, shape, |out| plan.apply(x, f, out, Threads::of(context)))
    }))
}

/// TensorFlow `Conv3DBackpropInputV2`, channels last: a transposed convolution.
fn transposed(node: &KernelConstruction<'_>) -> Made {
    let attrs = VolumeAttrs::new(node)?;
    dispatch_real!(type_attr(node, "T")?, T => kernel(move |context| {
        let (sizes, filter, given) = (context.input(0)?, context.input(1)?, context.input(2)?);
        let sizes = vector(sizes, "input_sizes")?;
        let (plan, shape) = attrs.transposed(&sizes, filter.shape(), given.shape())?;
        let (f, g) = (filter.as_slice::<T>()?, given.as_slice::<T>()?);
        output(context, shape, |out| plan.transposed(g, f, out, Threads::of(context)))
    }))
}

/// TensorFlow `MaxPool3D`, channels last.
fn largest(node: &KernelConstruction<'_>) -> Made {
    let windows = VolumePoolWindows::new(node)?;
    dispatch_real!(type_attr(node, "T")?, T => kernel(move |context| {
        let input = context.input(0)?;
        let (plan, shape) = windows.over(input.shape())?;
        let x = input.as_slice::<T>()?;
        output(context, shape, |out| {
            plan.max(x, out, Threads::of(context));
            Ok(())
        })
    }))
}

/// TensorFlow `AvgPool3D`, channels last.
fn mean(node: &KernelConstruction<'_>) -> Made {
    let windows = VolumePoolWindows::new(node)?;
    dispatch_real!(type_attr(node, "T")?, T => kernel(move |context| {
        let input = context.input(0)?;
        let (plan, shape) = windows.over(input.shape())?;
        let x = input.as_slice::<T>()?;
        output(context, shape, |out| plan.mean(x, out, Threads::of(context)))
    }))
}
