//! Softmax over rows.

use crate::backend::plan::attr::type_attr;
use crate::backend::plan::nn;
use crate::backend::source::call::Call;
use crate::backend::source::call::Made;
use crate::backend::source::call::function;
use crate::backend::source::call::index;
use crate::backend::source::call::kernel;
use crate::backend::source::call::program_device;
use crate::backend::source::call::tree_group;
use crate::backend::source::call::type_name;
use crate::backend::source::call::width;
use crate::backend::source::kernels::Table;
use crate::device::KernelArg;
use crate::device::KernelConstruction;
use crate::device::ProcessorKind;
use crate::device::ProgramSource;
use crate::tensor::DType;

const SOURCE: &str = include_str!("../softmax.c");

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Work items in groups per core or multiprocessor: enough for an even load, few enough to have a
/// negligible overhead.
const ITEMS_PER_CORE: usize = 16;
const ITEMS_PER_MULTIPROCESSOR: usize = 4096;

/// Minimum number of work items in a group of a GPU: what it executes together.
const GROUP_MIN: usize = 32;

pub(super) fn register(table: &mut Table<'_>) {
    for (op, is_logarithm) in [("Softmax", "0"), ("LogSoftmax", "1")] {
        let def = table.def(op).with_types("T", &FLOATS);
        table.add(def.with_factory(move |node| softmax(node, is_logarithm)));
    }
}

/// TensorFlow `Softmax` and `LogSoftmax`: over the last dimension.
fn softmax(node: &KernelConstruction<'_>, is_logarithm: &'static str) -> Made {
    let dtype = type_attr(node, "T")?;
    let traits = program_device(node.device)?.compute_traits();
    let ([group_min, group_max], items_per_unit) = match traits.kind {
        ProcessorKind::Cpu => ([1, 1], ITEMS_PER_CORE),
        ProcessorKind::Gpu => {
            let group_max = tree_group(traits);
            (
                [GROUP_MIN.min(group_max), group_max],
                ITEMS_PER_MULTIPROCESSOR,
            )
        }
    };
    let n_units = usize::try_from(traits.n_compute_units).unwrap_or(1);
    let n_items_max = n_units.max(1) * items_per_unit;
    let width = width(traits);
    let source = ProgramSource::of_source("softmax.c", SOURCE)
        .with("TYPE", type_name(dtype)?)
        .with("WIDTH", width.to_string())
        .with("GROUP", group_max.to_string())
        .with("IS_LOGARITHM", is_logarithm);
    let function = function(node, &source, "softmax")?;
    kernel(node, move |call: &Call<'_, '_>| {
        let logits = call.input(0)?;
        let columns = nn::softmax_columns(logits.shape())?;
        let out = call.output(dtype, logits.shape())?;
        let n = logits.shape().n_elements();
        if n > 0 {
            index(n)?;
            let n_rows = n / columns;
            let group = columns.div_ceil(width).next_power_of_two();
            let group = group.clamp(group_min, group_max);
            call.launch(
                &function,
                [n_rows.min(n_items_max / group), 1, 1],
                [group, 1, 1],
                &[
                    KernelArg::Read(logits),
                    KernelArg::Write(&out),
                    KernelArg::U32(index(n_rows)?),
                    KernelArg::U32(index(columns)?),
                ],
            )?;
        }
        call.set_output(0, out)
    })
}
