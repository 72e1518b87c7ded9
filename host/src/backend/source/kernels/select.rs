//! Choice between two tensors.

use crate::backend::plan::attr::type_attr;
use crate::backend::plan::select;
use crate::backend::plan::select::SelectPlan;
use crate::backend::source::call::Axes;
use crate::backend::source::call::Call;
use crate::backend::source::call::Made;
use crate::backend::source::call::function;
use crate::backend::source::call::index;
use crate::backend::source::call::kernel;
use crate::backend::source::call::moved_type;
use crate::backend::source::kernels::MOVED;
use crate::backend::source::kernels::Table;
use crate::device::KernelArg;
use crate::device::KernelConstruction;
use crate::device::ProgramSource;
use crate::tensor::DType;

const SOURCE: &str = include_str!("../select.c");

pub(super) fn register(table: &mut Table<'_>) {
    for (op, plan) in [
        ("Select", select::by_rows as SelectPlan),
        ("SelectV2", select::broadcast),
    ] {
        let def = table.def(op).with_types("T", &MOVED);
        table.add(def.with_factory(move |node| make(node, plan)));
    }
}

fn make(node: &KernelConstruction<'_>, plan: SelectPlan) -> Made {
    let dtype = type_attr(node, "T")?;
    let source = ProgramSource::of_source("select.c", SOURCE).with("TYPE", moved_type(dtype)?);
    let same = function(node, &source, "choose")?;
    let spread = function(node, &source, "choose_spread")?;
    kernel(node, move |call: &Call<'_, '_>| {
        let condition = call.typed(0, DType::Bool)?;
        let (yes, no) = (call.typed(1, dtype)?, call.typed(2, dtype)?);
        let (shape, plan) = plan(condition.shape(), yes.shape(), no.shape())?;
        let out = call.output(dtype, &shape)?;
        let n = shape.n_elements();
        let args = [
            KernelArg::Read(condition),
            KernelArg::Read(yes),
            KernelArg::Read(no),
            KernelArg::Write(&out),
            KernelArg::U32(index(n)?),
        ];
        if [condition, yes, no]
            .iter()
            .all(|input| *input.shape() == shape)
        {
            call.launch_items(&same, n, &args)?;
        } else {
            let axes = Axes::of_spread(plan.axes())?;
            call.launch_items(&spread, n, &[&args[..], &[axes.arg()]].concat())?;
        }
        call.set_output(0, out)
    })
}
