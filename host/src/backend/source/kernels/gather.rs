//! Gathers: elements selected by their indices.
//!
//! Indices of gathers are host-memory arguments, unlike in TensorFlow, whose GPU kernels return
//! zeros for indices that are out of range. A wrong number is worse than an error, and an error
//! found by the device is known only after a wait. Indices mostly come from feeds, so the host
//! already has them; indices computed by a device cost a copy.

use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::gather::GATHERED_BY;
use crate::backend::plan::gather::HOT;
use crate::backend::plan::gather::gather_nd_plan;
use crate::backend::plan::gather::gather_plan;
use crate::backend::plan::gather::ignores_bad_indices_attr;
use crate::backend::plan::gather::one_hot_plan;
use crate::backend::source::call::Call;
use crate::backend::source::call::Made;
use crate::backend::source::call::index;
use crate::backend::source::call::kernel;
use crate::backend::source::call::offset;
use crate::backend::source::call::type_name;
use crate::backend::source::kernels::Table;
use crate::backend::source::kernels::moved::Moved;
use crate::backend::source::kernels::moved::run_of;
use crate::backend::types::ELEMENTS;
use crate::backend::types::INDICES;
use crate::device::KernelArg;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::kernels::gather::Gather;
use crate::kernels::gather::NOWHERE;
use crate::tensor::Shape;
use crate::tensor::Tensor;

pub(super) fn register(table: &mut Table<'_>) {
    let def = table.def("Gather").with_types("Tparams", &ELEMENTS);
    let def = def.with_types("Tindices", &INDICES);
    table.add(def.with_host_memory("indices").with_factory(gather));
    let def = table.def("GatherV2").with_types("Tparams", &ELEMENTS);
    let def = def.with_types("Tindices", &GATHERED_BY);
    let def = def.with_types("Taxis", &INDICES).with_host_memory("axis");
    table.add(def.with_host_memory("indices").with_factory(gather));
    let def = table.def("GatherNd").with_types("Tparams", &ELEMENTS);
    let def = def.with_types("Tindices", &GATHERED_BY);
    table.add(def.with_host_memory("indices").with_factory(gather_nd));
    let def = table.def("OneHot").with_types("T", &ELEMENTS);
    let def = def.with_types("TI", &HOT).with_host_memory("depth");
    table.add(def.with_factory(one_hot));
}

/// TensorFlow `Gather` and `GatherV2`.
fn gather(node: &KernelConstruction<'_>) -> Made {
    let batch_dims = int_attr(node, "batch_dims", Some(0))?;
    let has_axis = node.op == "GatherV2";
    let moved = Moved::new(node, "Tparams", "gather")?;
    kernel(node, move |call| {
        let (plan, positions, shape) = gather_plan(call.context, has_axis, batch_dims)?;
        let positions = positions.iter().map(|&position| offset(position));
        launch(call, &moved, &shape, plan, positions)
    })
}

/// TensorFlow `GatherNd`: a gather of slices, which start at multiples of their size.
fn gather_nd(node: &KernelConstruction<'_>) -> Made {
    let ignores_bad = ignores_bad_indices_attr(node)?;
    let moved = Moved::new(node, "Tparams", "gather")?;
    kernel(node, move |call| {
        let slices = gather_nd_plan(call.context, ignores_bad)?;
        let plan = Gather {
            outer: 1,
            length: 0,
            inner: slices.size,
            n_indices: slices.starts.len(),
        };
        let positions = slices.starts.iter().map(|&start| match start {
            NOWHERE => Ok(-1),
            start => offset(start / slices.size),
        });
        launch(call, &moved, &slices.shape, plan, positions)
    })
}

/// Writes to output 0 the elements of input 0 at positions that are in range; -1 means 0.
fn launch(
    call: &Call<'_, '_>,
    moved: &Moved,
    shape: &Shape,
    plan: Gather,
    positions: impl Iterator<Item = Result<i32, KernelError>>,
) -> Result<(), KernelError> {
    let params = call.input(0)?;
    let out = call.output(params.dtype(), shape)?;
    let n_elements = shape.n_elements();
    if n_elements == 0 {
        return call.set_output(0, out);
    }
    let positions = positions.collect::<Result<Vec<i32>, KernelError>>()?;
    let positions = Tensor::from_values([positions.len()], &positions)?;
    let positions = call.context.device_context().copy_from_host(&positions)?;
    index(params.shape().n_elements())?;
    let per_unit = moved.elements_per_unit(&[plan.inner]);
    let n = n_elements / per_unit;
    let run = run_of(call, n);
    call.launch_few(
        moved.function(call, per_unit)?,
        n.div_ceil(run),
        &[
            KernelArg::Read(params),
            KernelArg::Read(&positions),
            KernelArg::Write(&out),
            KernelArg::U32(index(n)?),
            KernelArg::U32(index(run)?),
            KernelArg::U32(index(plan.outer)?),
            KernelArg::U32(index(plan.length)?),
            KernelArg::U32(index(plan.inner / per_unit)?),
            KernelArg::U32(index(plan.n_indices)?),
        ],
    )?;
    call.set_output(0, out)
}

/// TensorFlow `OneHot`: indices that are out of range set nothing, so the device can read them.
fn one_hot(node: &KernelConstruction<'_>) -> Made {
    let axis = int_attr(node, "axis", Some(-1))?;
    let index_type = type_name(type_attr(node, "TI")?)?;
    let moved = Moved::new(node, "T", "one_hot")?.with_indices(index_type);
    kernel(node, move |call| {
        let plan = one_hot_plan(call.context, axis)?;
        let (hot, on, off) = (call.input(0)?, call.input(2)?, call.input(3)?);
        let out = call.output(on.dtype(), &plan.shape)?;
        let n = plan.shape.n_elements();
        if n == 0 {
            return call.set_output(0, out);
        }
        call.launch_items(
            moved.function(call, 1)?,
            n,
            &[
                KernelArg::Read(hot),
                KernelArg::Read(on),
                KernelArg::Read(off),
                KernelArg::Write(&out),
                KernelArg::U32(index(n)?),
                KernelArg::U32(index(plan.depth)?),
                KernelArg::U32(index(plan.suffix)?),
            ],
        )?;
        call.set_output(0, out)
    })
}
