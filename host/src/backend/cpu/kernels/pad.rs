//! Padding of tensors.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::pad::mirror_attr;
use crate::backend::plan::pad::pad_plan;
use crate::backend::plan::pad::pad_value;
use crate::backend::types::INDICES;
use crate::device::KernelConstruction;
use crate::device::KernelRegistry;
use crate::kernels::Threads;

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
        let plan = pad_plan(context)?;
        let input = context.input(0)?;
        let value = match has_value.then(|| pad_value(context)).transpose()? {
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

fn mirror_pad(node: &KernelConstruction<'_>) -> Made {
    let mirror = mirror_attr(node)?;
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let plan = pad_plan(context)?;
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
