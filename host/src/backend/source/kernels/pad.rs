//! Padding of tensors, and tensors of one value.

use smallvec::SmallVec;

use crate::backend::plan::fill::filled_shape;
use crate::backend::plan::pad::mirror_attr;
use crate::backend::plan::pad::pad_plan;
use crate::backend::plan::pad::pad_value;
use crate::backend::source::call::Axes;
use crate::backend::source::call::Made;
use crate::backend::source::call::index;
use crate::backend::source::call::kernel;
use crate::backend::source::kernels::Table;
use crate::backend::source::kernels::moved::Moved;
use crate::backend::source::kernels::moved::run_of;
use crate::backend::types::ELEMENTS;
use crate::backend::types::INDICES;
use crate::device::KernelArg;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::kernels::pad::Mirror;
use crate::kernels::pad::Pad;
use crate::tensor::DType;
use crate::tensor::Tensor;

/// Bytes of the largest unit.
const UNIT_BYTES_MAX: usize = 16;

pub(super) fn register(table: &mut Table<'_>) {
    for op in ["Pad", "PadV2", "MirrorPad"] {
        let def = table.def(op).with_types("T", &ELEMENTS);
        let def = def.with_types("Tpaddings", &INDICES);
        let def = def.with_host_memory("paddings");
        table.add(match op {
            "Pad" => def.with_factory(pad),
            "PadV2" => def.with_host_memory("constant_values").with_factory(pad),
            _ => def.with_factory(mirror_pad),
        });
    }
    let def = table.def("Fill").with_types("T", &ELEMENTS);
    let def = def.with_types("index_type", &INDICES);
    table.add(def.with_host_memory("dims").with_factory(fill));
}

/// TensorFlow `Pad` and `PadV2`.
fn pad(node: &KernelConstruction<'_>) -> Made {
    let moved = Moved::new(node, "T", "pad_value")?;
    // Units of any size are zero.
    let zero = if node.op == "Pad" {
        let zeros = Tensor::from_bytes(DType::U8, [UNIT_BYTES_MAX].into(), &[0; UNIT_BYTES_MAX])?;
        Some(node.device.default_context().copy_from_host(&zeros)?)
    } else {
        None
    };
    kernel(node, move |call| {
        let plan = pad_plan(call.context)?;
        let value = match &zero {
            Some(zero) => zero.clone(),
            None => {
                // The value is repeated, so that it fills a unit of any size.
                let value = pad_value(call.context)?.as_bytes()?;
                let bytes = value.repeat(UNIT_BYTES_MAX / moved.element_bytes());
                let repeated = Tensor::from_bytes(DType::U8, [UNIT_BYTES_MAX].into(), &bytes)?;
                call.context.device_context().copy_from_host(&repeated)?
            }
        };
        if plan.is_identity() {
            return call.context.forward_input(0, 0, plan.shape());
        }
        let input = call.input(0)?;
        let out = call.output(input.dtype(), plan.shape())?;
        let last = plan.axes().next_back().unwrap_or_default();
        let per_unit = moved.elements_per_unit(&last.map(|n| n * plan.inner()));
        let axes = margins(&plan, per_unit)?;
        let n = plan.shape().n_elements() / per_unit;
        let run = run_of(call, n);
        call.launch_few(
            moved.function(call, per_unit)?,
            n.div_ceil(run),
            &[
                KernelArg::Read(input),
                KernelArg::Read(&value),
                KernelArg::Write(&out),
                axes.arg(),
                KernelArg::U32(index(n)?),
                KernelArg::U32(index(run)?),
            ],
        )?;
        call.set_output(0, out)
    })
}

/// TensorFlow `MirrorPad`.
fn mirror_pad(node: &KernelConstruction<'_>) -> Made {
    let moved = Moved::new(node, "T", "pad_mirrored")?;
    let mirror = mirror_attr(node)?;
    kernel(node, move |call| {
        let plan = pad_plan(call.context)?;
        plan.check_mirror(mirror)?;
        if plan.is_identity() {
            return call.context.forward_input(0, 0, plan.shape());
        }
        let input = call.input(0)?;
        let out = call.output(input.dtype(), plan.shape())?;
        let n = plan.shape().n_elements();
        index(input.shape().n_elements())?;
        let axes = mirrors(&plan)?;
        call.launch_items(
            moved.function(call, 1)?,
            n,
            &[
                KernelArg::Read(input),
                KernelArg::Write(&out),
                axes.arg(),
                KernelArg::U32(index(n)?),
                KernelArg::I32(i32::from(mirror == Mirror::Reflect)),
            ],
        )?;
        call.set_output(0, out)
    })
}

/// Returns the axes of padding: the padded size and, as operands, the stride of the source, the
/// margin before it and the size inside.
fn margins(plan: &Pad, per_unit: usize) -> Result<Axes, KernelError> {
    let mut axes: SmallVec<[[usize; 3]; 6]> = plan.axes().collect();
    if let Some(last) = axes.last_mut() {
        *last = last.map(|n| n * plan.inner() / per_unit);
    }
    walked(&axes)
}

/// The same, with the unpadded inner dimensions as an axis of their own.
fn mirrors(plan: &Pad) -> Result<Axes, KernelError> {
    let mut axes: SmallVec<[[usize; 3]; 6]> = plan.axes().collect();
    if plan.inner() != 1 {
        axes.push([0, plan.inner(), 0]);
    }
    walked(&axes)
}

fn walked(axes: &[[usize; 3]]) -> Result<Axes, KernelError> {
    let mut stride = 1usize;
    let mut out: SmallVec<[(usize, [isize; 3]); 6]> = SmallVec::new();
    for &[before, size, after] in axes.iter().rev() {
        let operands = [stride, before, size];
        let operands = operands.map(|n| isize::try_from(n).unwrap_or(isize::MAX));
        out.push((before + size + after, operands));
        stride = stride.saturating_mul(size);
    }
    Axes::new(out.into_iter().rev(), [0; 3])
}

/// TensorFlow `Fill`: the value is in device memory.
fn fill(node: &KernelConstruction<'_>) -> Made {
    let moved = Moved::new(node, "T", "fill")?;
    kernel(node, move |call| {
        let shape = filled_shape(call.context)?;
        let value = call.input(1)?;
        let out = call.output(value.dtype(), &shape)?;
        let n = shape.n_elements();
        let run = run_of(call, n);
        call.launch_few(
            moved.function(call, 1)?,
            n.div_ceil(run),
            &[
                KernelArg::Read(value),
                KernelArg::Write(&out),
                KernelArg::U32(index(n)?),
                KernelArg::U32(index(run)?),
            ],
        )?;
        call.set_output(0, out)
    })
}
