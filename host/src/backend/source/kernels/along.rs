//! Functions along one axis: positions of extremes, cumulative sums and products.

use std::sync::Arc;

use crate::backend::plan::attr::type_attr;
use crate::backend::plan::reduce::extreme_plan;
use crate::backend::plan::reduce::scan_options;
use crate::backend::plan::reduce::scan_view;
use crate::backend::source::call::Call;
use crate::backend::source::call::Made;
use crate::backend::source::call::function;
use crate::backend::source::call::index;
use crate::backend::source::call::kernel;
use crate::backend::source::call::program_device;
use crate::backend::source::call::type_name;
use crate::backend::source::kernels::NUMBERS;
use crate::backend::source::kernels::Table;
use crate::backend::source::kernels::moved::n_cores;
use crate::backend::source::kernels::reduce::unsigned;
use crate::backend::types::INDICES;
use crate::backend::types::unsupported;
use crate::device::DeviceFunction;
use crate::device::KernelArg;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::device::ProcessorKind;
use crate::device::ProgramSource;
use crate::tensor::DType;

const SOURCE: &str = include_str!("../along.c");

/// Maximum number of elements that one work item searches alone, and minimum number per item if
/// several share the work.
const WHOLE_MAX: usize = 4096;
const PART_MIN_CPU: usize = 1024;
const PART_MIN_GPU: usize = 32;

/// Number of items per core up to which more items pay off.
const ITEMS_PER_CORE_CPU: usize = 64;
const ITEMS_PER_CORE_GPU: usize = 1024;

pub(super) fn register(table: &mut Table<'_>) {
    let types = [&NUMBERS[..], &[DType::Bool]].concat();
    for (op, positions) in [
        (
            "ArgMax",
            &[DType::I32, DType::I64, DType::I16, DType::U16][..],
        ),
        ("ArgMin", &INDICES),
    ] {
        let def = table.def(op).with_types("T", &types);
        let def = def.with_types("Tidx", &INDICES);
        let def = def.with_types("output_type", positions);
        let def = def.with_host_memory("dimension");
        table.add(def.with_factory(move |node| extreme(node, op == "ArgMax")));
    }
    for (op, name) in [("Cumsum", "running_sums"), ("Cumprod", "running_products")] {
        let def = table.def(op).with_types("T", &NUMBERS);
        let def = def.with_types("Tidx", &INDICES).with_host_memory("axis");
        table.add(def.with_factory(move |node| scan(node, name)));
    }
}

/// Returns the smallest or largest finite number of a type, in the dialect.
fn last_resort(dtype: DType, largest: bool) -> Result<&'static str, KernelError> {
    Ok(match (dtype, largest) {
        (DType::F32, true) => "f32_of_bits(0xff7fffffu)",
        (DType::F32, false) => "f32_of_bits(0x7f7fffffu)",
        (DType::F16, true) => "(-65504.0f)",
        (DType::F16, false) => "65504.0f",
        (DType::BF16, true) => "f32_of_bits(0xff7f0000u)",
        (DType::BF16, false) => "f32_of_bits(0x7f7f0000u)",
        (DType::I8, true) => "(-128)",
        (DType::I8, false) => "127",
        (DType::I16, true) => "(-32768)",
        (DType::I16, false) => "32767",
        (DType::I32, true) => "(-2147483647 - 1)",
        (DType::I32, false) => "2147483647",
        (DType::I64, true) => "((i64)1 << 63)",
        (DType::I64, false) => "(~((i64)1 << 63))",
        (DType::Bool, false) => "1",
        (DType::U8, false) => "255",
        (DType::U16, false) => "65535",
        (DType::U32, false) => "(~(u32)0)",
        (DType::U64, false) => "(~(u64)0)",
        (DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64, true) => "0",
        (other, _) => return Err(unsupported(other)),
    })
}

/// Functions of `along.c` that find extremes.
struct Extremes {
    whole: Arc<dyn DeviceFunction>,
    parts: Arc<dyn DeviceFunction>,
    rest: Arc<dyn DeviceFunction>,
}

/// TensorFlow `ArgMax` and `ArgMin`.
fn extreme(node: &KernelConstruction<'_>, largest: bool) -> Made {
    let dtype = type_attr(node, "T")?;
    let output_type = node.attrs.dtype("output_type").unwrap_or(DType::I64);
    let mut source = ProgramSource::of_source("along.c", SOURCE)
        .with("TYPE", type_name(dtype)?)
        .with("FIRST", last_resort(dtype, largest)?)
        .with("POSITION", type_name(output_type)?);
    if largest {
        source = source.with("LARGEST", "1");
    }
    let traits = program_device(node.device)?.compute_traits();
    if traits.kind == ProcessorKind::Gpu {
        source = source.with("INTERLEAVED", "1");
    }
    let functions = Extremes {
        whole: function(node, &source, "extreme_whole")?,
        parts: function(node, &source, "extreme_parts")?,
        rest: function(node, &source, "extreme_rest")?,
    };
    kernel(node, move |call| {
        let (view, shape) = extreme_plan(call.context)?;
        let input = call.input(0)?;
        let out = call.output(output_type, &shape)?;
        index(input.shape().n_elements())?;
        let (n, n_out) = (view.n(), shape.n_elements());
        let n_parts = n_parts(call, n, n_out);
        let [n_results, n_shares] = [index(n_out)?, index(n_parts)?];
        let [n_each, n_behind] = [index(n)?, index(view.inner())?];
        if n_parts == 1 {
            call.launch_few(
                &functions.whole,
                n_out,
                &[
                    KernelArg::Read(input),
                    KernelArg::Write(&out),
                    KernelArg::U32(n_results),
                    KernelArg::U32(n_each),
                    KernelArg::U32(n_behind),
                ],
            )?;
            return call.set_output(0, out);
        }
        let n_partials = [n_out * n_parts].into();
        let best = call.output(dtype, &n_partials)?;
        let found = call.output(DType::I32, &n_partials)?;
        call.launch_few(
            &functions.parts,
            n_out * n_parts,
            &[
                KernelArg::Read(input),
                KernelArg::Write(&best),
                KernelArg::Write(&found),
                KernelArg::U32(n_results),
                KernelArg::U32(n_shares),
                KernelArg::U32(n_each),
                KernelArg::U32(n_behind),
            ],
        )?;
        call.launch_few(
            &functions.rest,
            n_out,
            &[
                KernelArg::Read(&best),
                KernelArg::Read(&found),
                KernelArg::Write(&out),
                KernelArg::U32(n_results),
                KernelArg::U32(n_shares),
            ],
        )?;
        call.set_output(0, out)
    })
}

/// Returns the number of items that search for one extreme of `n` elements; there are `n_out`
/// extremes.
fn n_parts(call: &Call<'_, '_>, n: usize, n_out: usize) -> usize {
    let traits = call.device.compute_traits();
    let (per_core, part_min) = match traits.kind {
        ProcessorKind::Cpu => (ITEMS_PER_CORE_CPU, PART_MIN_CPU),
        ProcessorKind::Gpu => (ITEMS_PER_CORE_GPU, PART_MIN_GPU),
    };
    if n_out == 0 || (n <= WHOLE_MAX && traits.kind == ProcessorKind::Cpu) {
        return 1;
    }
    let n_wanted = (n_cores(traits) * per_core).div_ceil(n_out);
    n_wanted.min(n.div_ceil(part_min)).max(1)
}

/// TensorFlow `Cumsum` and `Cumprod`.
fn scan(node: &KernelConstruction<'_>, name: &'static str) -> Made {
    let dtype = type_attr(node, "T")?;
    let options = scan_options(node)?;
    let total = match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => unsigned(other),
    };
    let source = ProgramSource::of_source("along.c", SOURCE)
        .with("TYPE", type_name(dtype)?)
        .with("TOTAL", type_name(total)?);
    let function = function(node, &source, name)?;
    kernel(node, move |call| {
        let view = scan_view(call.context)?;
        let input = call.input(0)?;
        let out = call.output(dtype, input.shape())?;
        let n_elements = input.shape().n_elements();
        let n_lines = n_elements.checked_div(view.n()).unwrap_or(0);
        index(n_elements)?;
        if n_elements > 0 {
            call.launch_few(
                &function,
                n_lines,
                &[
                    KernelArg::Read(input),
                    KernelArg::Write(&out),
                    KernelArg::U32(index(n_lines)?),
                    KernelArg::U32(index(view.n())?),
                    KernelArg::U32(index(view.inner())?),
                    KernelArg::U32(u32::from(options.exclusive)),
                    KernelArg::U32(u32::from(options.reverse)),
                ],
            )?;
        }
        call.set_output(0, out)
    })
}
