//! Fused kernels: TensorFlow's `_FusedMatMul` and `_FusedConv2D`.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::math;
use crate::backend::cpu::kernels::nn;
use crate::backend::fuse::activation;
use crate::backend::fuse::check_bias;
use crate::backend::fuse::fuse_epilogues;
use crate::backend::host_kernels::Made;
use crate::backend::plan::attr::type_attr;
use crate::backend::types::REALS;
use crate::device::Activation;
use crate::device::Kernel;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::device::PartitionGraph;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::kernels::epilogue;
use crate::kernels::matmul::Epilogue;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Fuses the nodes of a CPU device for which this module has kernels.
pub(in crate::backend::cpu) fn fuse(graph: &mut PartitionGraph<'_>) {
    fuse_epilogues(graph, &REALS, is_activation);
}

fn is_activation(op: &str) -> bool {
    matches!(op, "Relu" | "Relu6")
}

pub(super) fn register(registry: &mut KernelRegistry) {
    for (op, base) in [
        (
            "_FusedMatMul",
            math::mat_mul_with as fn(&KernelConstruction<'_>, Option<Activation>) -> Made,
        ),
        ("_FusedConv2D", nn::conv_2d_with),
    ] {
        registry.register(
            def(op)
                .with_types("T", &REALS)
                .with_factory(move |node| fused(node, base)),
        );
    }
}

/// A matmul or convolution with a bias, which is the input after its operands, and the activation
/// that follows. Those of `float` compute both themselves.
struct Fused {
    base_kernel: Box<dyn Kernel>,
    dtype: DType,
    activation: Activation,
}

fn fused(
    node: &KernelConstruction<'_>,
    base: fn(&KernelConstruction<'_>, Option<Activation>) -> Made,
) -> Made {
    let activation = match activation(node, is_activation)? {
        Some("Relu") => Activation::Relu,
        Some("Relu6") => Activation::Relu6,
        _ => Activation::None,
    };
    let dtype = type_attr(node, "T")?;
    if dtype == DType::F32 {
        return base(node, Some(activation));
    }
    Ok(Box::new(Fused {
        base_kernel: base(node, None)?,
        dtype,
        activation,
    }))
}

/// Returns the epilogue of an execution with a result of this shape, if its kernel is a fused one.
pub(super) fn epilogue_of<'a>(
    context: &'a KernelContext<'_>,
    activation: Option<Activation>,
    shape: &Shape,
) -> Result<Option<Epilogue<'a>>, KernelError> {
    let Some(activation) = activation else {
        return Ok(None);
    };
    let bias = context.input(2)?;
    check_bias(bias.shape(), shape)?;
    Ok(Some(Epilogue {
        bias: bias.as_slice()?,
        activation,
    }))
}

/// Computes the epilogue of output 0, which has been set.
pub(super) fn add_epilogue<T: Number + Element>(
    context: &KernelContext<'_>,
    activation: Activation,
) -> Result<(), KernelError> {
    let bias = context.input(2)?;
    let values = bias.as_slice::<T>()?;
    let threads = Threads::of(context);
    context.update_output(0, |shape, out: &mut [T]| {
        check_bias(bias.shape(), shape)?;
        epilogue::apply(out, values, activation, threads);
        Ok(())
    })
}

impl Kernel for Fused {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        self.base_kernel.compute(context)?;
        dispatch_real!(self.dtype, T => add_epilogue::<T>(context, self.activation))
    }

    fn prepack_input(
        &self,
        index: usize,
        constant: &Tensor,
        device: &dyn KernelDevice,
    ) -> Result<Option<Tensor>, KernelError> {
        self.base_kernel.prepack_input(index, constant, device)
    }

    fn prepacked_form(&self, index: usize) -> Option<&'static str> {
        self.base_kernel.prepacked_form(index)
    }

    fn replaces_prepacked_input(&self, index: usize) -> bool {
        self.base_kernel.replaces_prepacked_input(index)
    }
}
