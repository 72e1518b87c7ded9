//! Fused kernels: TensorFlow's `_FusedMatMul`, `_FusedConv2D` and `_FusedDepthwiseConv2dNative`.

use crate::backend::cpu::kernels::conv;
use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::math;
use crate::backend::cpu::kernels::nn;
use crate::backend::fuse::Epilogues;
use crate::backend::fuse::bad_fused_ops;
use crate::backend::fuse::check_bias;
use crate::backend::fuse::fused_ops;
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
use crate::kernels::Broadcast;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::kernels::composite::Unit;
use crate::kernels::epilogue;
use crate::kernels::matmul::Epilogue;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// What the kernels of this module compute.
pub(in crate::backend::cpu) const EPILOGUES: Epilogues<'static> = Epilogues {
    types: &REALS,
    added_types: &[DType::F32],
    has_depthwise: true,
    is_activation: |op| matches!(op, "Relu" | "Relu6"),
};

/// Returns the activation of a name in fused ops, and the linear unit, which is not computed in
/// registers.
pub(super) fn activation_of(op: Option<&str>) -> Option<(Activation, Option<Unit>)> {
    Some(match op {
        None => (Activation::None, None),
        Some("Relu") => (Activation::Relu, None),
        Some("Relu6") => (Activation::Relu6, None),
        Some(op) => (Activation::None, Some(Unit::find(op)?)),
    })
}

/// Makes the kernel of an op. If there is an epilogue, its `float` kernels compute that, too.
type MakeBase = fn(&KernelConstruction<'_>, Option<EpilogueOps>) -> Made;

pub(super) fn register(registry: &mut KernelRegistry) {
    for (op, base) in [
        ("_FusedMatMul", math::mat_mul_with as MakeBase),
        ("_FusedConv2D", nn::conv_2d_with),
        ("_FusedDepthwiseConv2dNative", conv::depthwise_with),
    ] {
        registry.register(
            def(op)
                .with_types("T", &REALS)
                .with_factory(move |node| fused(node, base)),
        );
    }
}

/// What follows the bias of a fused node. The bias is the input after the operands of its first op,
/// and the addend the one after that.
#[derive(Debug, Clone, Copy)]
pub(super) struct EpilogueOps {
    has_addend: bool,
    activation: Activation,
    /// What follows everything else.
    unit: Option<Unit>,
}

/// A matmul or convolution of another type than `float`, with a bias and the activation that
/// follows.
struct Fused {
    base_kernel: Box<dyn Kernel>,
    dtype: DType,
    activation: Activation,
}

fn fused(node: &KernelConstruction<'_>, base: MakeBase) -> Made {
    let follow = fused_ops(node, |op| activation_of(Some(op)).is_some())?;
    let known = activation_of(follow.activation);
    let (activation, unit) = known.ok_or_else(|| bad_fused_ops(node))?;
    let dtype = type_attr(node, "T")?;
    if follow.has_addend && unit.is_some() {
        return Err(bad_fused_ops(node));
    }
    if dtype == DType::F32 {
        let epilogue = EpilogueOps {
            has_addend: follow.has_addend,
            activation,
            unit,
        };
        return base(node, Some(epilogue));
    }
    if follow.has_addend || unit.is_some() {
        return Err(bad_fused_ops(node));
    }
    Ok(Box::new(Fused {
        base_kernel: base(node, None)?,
        dtype,
        activation,
    }))
}

/// Sets output 0, of this shape before anything is added, to what `compute` writes. It gets the
/// epilogue, if the node has one, and computes that as well.
pub(super) fn output_with(
    context: &KernelContext<'_>,
    ops: Option<EpilogueOps>,
    shape: &Shape,
    compute: impl Fn(Option<Epilogue<'_>>, &mut [f32]) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    let Some(EpilogueOps {
        has_addend,
        activation,
        unit,
    }) = ops
    else {
        return context.fill_output(0, shape, |out| compute(None, out));
    };
    let threads = Threads::of(context);
    let compute = |epilogue: Option<Epilogue<'_>>, out: &mut [f32]| {
        compute(epilogue, out)?;
        if let Some(unit) = unit {
            unit.apply(out, threads);
        }
        Ok(())
    };
    let bias = context.input(2)?;
    check_bias(bias.shape(), shape)?;
    let epilogue = Epilogue {
        bias: bias.as_slice()?,
        addend: None,
        activation,
    };
    if !has_addend {
        return context.fill_output(0, shape, |out| compute(Some(epilogue), out));
    }
    let addend = context.input(3)?;
    let added = addend.as_slice::<f32>()?;
    if addend.shape() == shape {
        let epilogue = Epilogue {
            addend: Some(added),
            ..epilogue
        };
        return context.fill_output(0, shape, |out| compute(Some(epilogue), out));
    }
    // The graph did not say all dimensions, and one of the two is broadcast.
    let plan = Broadcast::new(shape, addend.shape())?;
    let mut sums = threads.scratch::<f32>(shape.n_elements())?;
    let biased = Epilogue {
        activation: Activation::None,
        ..epilogue
    };
    compute(Some(biased), &mut sums)?;
    context.fill_output(0, plan.shape(), |out| {
        plan.apply(&sums, added, out, threads, |x: f32, y: f32| {
            epilogue::activate(x + y, activation)
        });
        Ok(())
    })
}

/// Computes the bias and the activation of output 0, which has been set.
fn add_epilogue<T: Number + Element>(
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
