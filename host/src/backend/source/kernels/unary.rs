//! Functions of one element.

use crate::backend::source::call::Call;
use crate::backend::source::call::Made;
use crate::backend::source::call::function;
use crate::backend::source::call::index;
use crate::backend::source::call::kernel;
use crate::backend::source::call::type_name;
use crate::backend::source::kernels::Table;
use crate::device::KernelArg;
use crate::device::KernelConstruction;
use crate::device::ProgramSource;
use crate::tensor::DType;

const SOURCE: &str = include_str!("../unary.c");

pub(super) fn register(table: &mut Table<'_>) {
    for (op, name) in [("Relu", "relu"), ("Neg", "neg"), ("Square", "square")] {
        let def = table.def(op).with_types("T", &[DType::F32, DType::I32]);
        table.add(def.with_factory(move |node| unary(node, name)));
    }
}

fn unary(node: &KernelConstruction<'_>, name: &str) -> Made {
    let dtype = node.attrs.dtype("T").unwrap_or(DType::F32);
    let source = ProgramSource::of_source("unary.c", SOURCE).with("TYPE", type_name(dtype)?);
    let function = function(node, &source, name)?;
    kernel(node, move |call: &Call<'_, '_>| {
        let x = call.input(0)?;
        let out = call.output(x.dtype(), x.shape())?;
        let n = x.shape().n_elements();
        call.launch_items(
            &function,
            n,
            &[
                KernelArg::Read(x),
                KernelArg::Write(&out),
                KernelArg::U32(index(n)?),
            ],
        )?;
        call.set_output(0, out)
    })
}
