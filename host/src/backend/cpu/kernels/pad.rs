//! Padding of tensors.

use crate::backend::cpu::kernels::INDICES;
use crate::backend::cpu::kernels::Made;
use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::kernel;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::cpu::kernels::raw::integers;
use crate::backend::cpu::kernels::string_attr;
use crate::backend::cpu::kernels::type_attr;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::pad::Mirror;
use crate::kernels::pad::Pad;
use crate::tensor::Tensor;

pub(super) fn register(registry: &mut KernelRegistry) {
    let mut add = |op: &str, make: fn(&KernelConstruction<'_>) -> Made| {
        let mut def = def(op)
            .with_types("T", &MOVED)
            .with_types("Tpaddings", &INDICES)
            .with_host_memory("paddings");
        if op == "PadV2" {
            def = def.with_host_memory("constant_values");
        }
        registry.register(def.with_factory(make));
    };
    add("Pad", pad);
    add("PadV2", pad);
    add("MirrorPad", mirror_pad);
}

/// TensorFlow `Pad` (with 0, `false` or the empty string) and `PadV2` (with its third input).
fn pad(node: &KernelConstruction<'_>) -> Made {
    let has_value = node.op == "PadV2";
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let plan = plan(context)?;
        let input = context.input(0)?;
        let value = match has_value.then(|| margin(context)).transpose()? {
            None => <W as RawElements>::Raw::default(),
            Some(tensor) => W::read(tensor)?[0],
        };
        if plan.is_identity() {
            return context.forward_input(0, 0, plan.shape());
        }
        let elements = W::read(input)?;
        W::write(context, 0, input.dtype(), plan.shape().clone(), |out| {
            plan.constant(&elements, value, out, Threads::of(context));
            Ok(())
        })
    }))
}

/// Returns the scalar with which TensorFlow `PadV2` pads its input 0.
pub(in crate::backend) fn margin<'a>(
    context: &'a KernelContext<'_>,
) -> Result<&'a Tensor, KernelError> {
    let value = context.input(2)?;
    if value.shape().rank() != 0 {
        return Err(KernelError::invalid(format!(
            "constant_values must be a scalar. Found: {}",
            value.shape()
        )));
    }
    Ok(value)
}

/// Returns which elements TensorFlow `MirrorPad` repeats in the margins.
pub(in crate::backend) fn mirror_attr(
    node: &KernelConstruction<'_>,
) -> Result<Mirror, KernelError> {
    match string_attr(node, "mode", "")? {
        "REFLECT" => Ok(Mirror::Reflect),
        "SYMMETRIC" => Ok(Mirror::Symmetric),
        other => Err(KernelError::invalid(format!(
            "attribute `mode` is `{other}`; expected `REFLECT` or `SYMMETRIC`"
        ))),
    }
}

fn mirror_pad(node: &KernelConstruction<'_>) -> Made {
    let mirror = mirror_attr(node)?;
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let plan = plan(context)?;
        plan.check_mirror(mirror)?;
        if plan.is_identity() {
            return context.forward_input(0, 0, plan.shape());
        }
        let input = context.input(0)?;
        let elements = W::read(input)?;
        W::write(context, 0, input.dtype(), plan.shape().clone(), |out| {
            plan.mirrored(mirror, &elements, out, Threads::of(context));
            Ok(())
        })
    }))
}

/// Returns the margins of input 0, which are input 1.
pub(in crate::backend) fn plan(context: &KernelContext<'_>) -> Result<Pad, KernelError> {
    let (input, paddings) = (context.input(0)?, context.input(1)?);
    if !matches!(paddings.shape().dims(), [_, 2]) {
        return Err(KernelError::invalid(format!(
            "paddings must be a matrix with 2 columns: {}",
            paddings.shape()
        )));
    }
    Pad::new(input.shape(), &integers(paddings)?)
}
