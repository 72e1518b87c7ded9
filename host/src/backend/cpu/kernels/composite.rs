//! Kernels of ops that graphs contain as several nodes, which a CPU device fuses.

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bad_attr;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::composite;
use crate::kernels::composite::Unit;
use crate::tensor::DType;
use crate::tensor::Shape;

/// Layer normalization of `x` with `scale` and `offset`, as far as `has_scale` and `has_offset`
/// say. These ops are not TensorFlow's and never occur in a graph.
pub(in crate::backend::cpu) const LAYER_NORM: &str = "_FusedLayerNorm";

/// A linear unit of `x`: that of attribute `unit`.
pub(in crate::backend::cpu) const UNIT: &str = "_FusedUnit";

/// `a * sigmoid(b) + sigmoid(c) * tanh(d)`
pub(in crate::backend::cpu) const GATED_SUM: &str = "_FusedGatedSum";

/// `tanh(a) * sigmoid(b)`
pub(in crate::backend::cpu) const GATED_TANH: &str = "_FusedGatedTanh";

pub(super) fn register(registry: &mut KernelRegistry) {
    for (op, make) in [
        (
            LAYER_NORM,
            layer_norm as fn(&KernelConstruction<'_>) -> Made,
        ),
        (UNIT, unit),
        (GATED_SUM, |_| kernel(gated_sum)),
        (GATED_TANH, |_| kernel(gated_tanh)),
    ] {
        registry.register(def(op).with_types("T", &[DType::F32]).with_factory(make));
    }
}

fn layer_norm(node: &KernelConstruction<'_>) -> Made {
    let flag = |name: &str| node.attrs.bool(name) == Some(true);
    let epsilon = node.attrs.float("epsilon").unwrap_or(0.0);
    let is_centered = flag("is_centered");
    let (has_scale, has_offset) = (flag("has_scale"), flag("has_offset"));
    kernel(move |context| {
        let input = context.input(0)?;
        let columns = input.shape().dims().last().copied().unwrap_or(1);
        let row = |index: usize| -> Result<&[f32], KernelError> {
            let row = context.input(index)?;
            if row.shape().n_elements() != columns {
                return Err(KernelError::invalid(format!(
                    "scale and offset of rows of {columns} elements must have as many: {}",
                    row.shape()
                )));
            }
            Ok(row.as_slice()?)
        };
        let norm = composite::LayerNorm {
            columns,
            epsilon,
            is_centered,
            scale: if has_scale { Some(row(1)?) } else { None },
            offset: if has_offset {
                Some(row(1 + usize::from(has_scale))?)
            } else {
                None
            },
        };
        let x = input.as_slice()?;
        context.fill_output(0, input.shape(), |out| {
            norm.apply(x, out, Threads::of(context));
            Ok(())
        })
    })
}

fn unit(node: &KernelConstruction<'_>) -> Made {
    let unit = node.attrs.text("unit").and_then(Unit::find);
    let unit = unit.ok_or_else(|| bad_attr(node, "unit", "name of a linear unit"))?;
    kernel(move |context| {
        let input = context.input(0)?;
        let x = input.as_slice::<f32>()?;
        context.fill_output(0, input.shape(), |out: &mut [f32]| {
            out.copy_from_slice(x);
            unit.apply(out, Threads::of(context));
            Ok(())
        })
    })
}

/// Returns the elements of inputs of the same shape.
fn same<'a, const N: usize>(
    context: &'a KernelContext<'_>,
) -> Result<([&'a [f32]; N], &'a Shape), KernelError> {
    let shape = context.input(0)?.shape();
    let mut inputs = [&[][..]; N];
    for (index, elements) in inputs.iter_mut().enumerate() {
        let input = context.input(index)?;
        if input.shape() != shape {
            return Err(KernelError::invalid(format!(
                "inputs must have the same shape: {shape} and {}",
                input.shape()
            )));
        }
        *elements = input.as_slice()?;
    }
    Ok((inputs, shape))
}

fn gated_sum(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let (inputs, shape) = same(context)?;
    context.fill_output(0, shape, |out| {
        composite::gated_sum(inputs, out, Threads::of(context));
        Ok(())
    })
}

fn gated_tanh(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let (inputs, shape) = same(context)?;
    context.fill_output(0, shape, |out| {
        composite::gated_tanh(inputs, out, Threads::of(context));
        Ok(())
    })
}
