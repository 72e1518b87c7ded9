//! Margins around tensors.

use crate::backend::cpu::kernels::INDICES;
use crate::backend::cpu::kernels::Made;
use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::kernel;
use crate::backend::cpu::kernels::text_attr;
use crate::backend::cpu::kernels::type_attr;
use crate::backend::cpu::kernels::words::MOVED;
use crate::backend::cpu::kernels::words::Words;
use crate::backend::cpu::kernels::words::integers;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::pad::Mirror;
use crate::kernels::pad::Pad;

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

/// TensorFlow `Pad` (with 0, `false` or the empty text) and `PadV2` (with its third input).
fn pad(node: &KernelConstruction<'_>) -> Made {
    let has_value = node.op == "PadV2";
    dispatch_words!(type_attr(node, "T")?, W => kernel(move |context| {
        let plan = plan(context)?;
        let input = context.input(0)?;
        let values = has_value.then(|| context.input(2)).transpose()?;
        let value = match values {
            None => <W as Words>::Word::default(),
            Some(tensor) if tensor.shape().rank() == 0 => W::read(tensor)?[0],
            Some(tensor) => {
                return Err(KernelError::invalid(format!(
                    "constant_values must be a scalar. Found: {}",
                    tensor.shape()
                )));
            }
        };
        if plan.is_identity() {
            return context.forward_input(0, 0, plan.shape());
        }
        let words = W::read(input)?;
        W::write(context, 0, input.dtype(), plan.shape().clone(), |out| {
            plan.constant(&words, value, out, Threads::of(context));
            Ok(())
        })
    }))
}

/// TensorFlow `MirrorPad`.
fn mirror_pad(node: &KernelConstruction<'_>) -> Made {
    let mirror = match text_attr(node, "mode", "")? {
        "REFLECT" => Mirror::Reflect,
        "SYMMETRIC" => Mirror::Symmetric,
        other => {
            return Err(KernelError::invalid(format!(
                "attribute `mode` is `{other}`; expected `REFLECT` or `SYMMETRIC`"
            )));
        }
    };
    dispatch_words!(type_attr(node, "T")?, W => kernel(move |context| {
        let plan = plan(context)?;
        plan.check_mirror(mirror)?;
        if plan.is_identity() {
            return context.forward_input(0, 0, plan.shape());
        }
        let input = context.input(0)?;
        let words = W::read(input)?;
        W::write(context, 0, input.dtype(), plan.shape().clone(), |out| {
            plan.mirrored(mirror, &words, out, Threads::of(context));
            Ok(())
        })
    }))
}

fn plan(context: &KernelContext<'_>) -> Result<Pad, KernelError> {
    let (input, paddings) = (context.input(0)?, context.input(1)?);
    if !matches!(paddings.shape().dims(), [_, 2]) {
        return Err(KernelError::invalid(format!(
            "paddings must be a matrix with 2 columns: {}",
            paddings.shape()
        )));
    }
    Pad::new(input.shape(), &integers(paddings)?)
}
