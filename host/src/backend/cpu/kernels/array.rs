//! Shapes and rearrangement.

use crate::backend::cpu::kernels::INDICES;
use crate::backend::cpu::kernels::Made;
use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::indices;
use crate::backend::cpu::kernels::view;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::reshape;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("Reshape")
            .with_types("Tshape", &INDICES)
            .with_host_memory("shape")
            .with_factory(reshape),
    );
}

/// TensorFlow `Reshape`: no copy.
pub(in crate::backend) fn reshape(_: &KernelConstruction<'_>) -> Made {
    view(|context| {
        let (tensor, sizes) = (context.input(0)?, context.input(1)?);
        if sizes.shape().rank() != 1 {
            return Err(KernelError::invalid(format!(
                "sizes input must be 1-D, not {}, for a tensor of shape {}",
                sizes.shape(),
                tensor.shape()
            )));
        }
        reshape::resolve(tensor.shape(), &indices(sizes)?)
    })
}
