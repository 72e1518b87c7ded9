//! Biases per channel.

use crate::backend::plan::attr::type_attr;
use crate::backend::plan::nn;
use crate::backend::source::call::Call;
use crate::backend::source::call::LazyFunction;
use crate::backend::source::call::Made;
use crate::backend::source::call::index;
use crate::backend::source::call::kernel;
use crate::backend::source::call::program_device;
use crate::backend::source::call::type_name;
use crate::backend::source::call::width;
use crate::backend::source::kernels::Table;
use crate::device::KernelArg;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::device::ProgramSource;
use crate::tensor::DType;

const SOURCE: &str = include_str!("../channels.c");

const NUMBERS: [DType; 11] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
];

pub(super) fn register(table: &mut Table<'_>) {
    let def = table.def("BiasAdd").with_types("T", &NUMBERS);
    table.add(def.with_factory(bias_add));
}

/// Returns the source of channels.c, and the number of elements that a work item computes.
pub(super) fn source(
    node: &KernelConstruction<'_>,
    dtype: DType,
) -> Result<(ProgramSource, usize), KernelError> {
    let width = width(program_device(node.device)?.compute_traits());
    let mut source = ProgramSource::of_source("channels.c", SOURCE)
        .with("TYPE", type_name(dtype)?)
        .with("WIDTH", width.to_string());
    if dtype.is_floating() {
        source = source.with("FLOATS", "1");
    }
    Ok((source, width))
}

/// TensorFlow `BiasAdd`.
fn bias_add(node: &KernelConstruction<'_>) -> Made {
    let channels_first = nn::channels_first(node)?;
    let dtype = type_attr(node, "T")?;
    let (source, width) = source(node, dtype)?;
    let last = LazyFunction::new(source.clone(), "bias_last");
    let first = LazyFunction::new(source, "bias_first");
    kernel(node, move |call: &Call<'_, '_>| {
        let (value, bias) = (call.input(0)?, call.input(1)?);
        let shape = value.shape();
        let axis = nn::bias_axis(shape, bias.shape(), channels_first)?;
        let out = call.output(dtype, shape)?;
        let n = shape.n_elements();
        if n == 0 {
            return call.set_output(0, out);
        }
        index(n)?;
        let channels = shape.dims()[axis];
        let inner: usize = shape.dims()[axis + 1..].iter().product();
        let row = if inner == 1 { channels } else { inner };
        let n_items = n / row * row.div_ceil(width);
        let args = [
            KernelArg::Read(value),
            KernelArg::Read(bias),
            KernelArg::Write(&out),
            KernelArg::U32(index(n_items)?),
            KernelArg::U32(index(row)?),
            KernelArg::U32(index(channels)?),
        ];
        if inner == 1 {
            call.launch_items(last.on(call.device)?, n_items, &args[..5])?;
        } else {
            call.launch_items(first.on(call.device)?, n_items, &args)?;
        }
        call.set_output(0, out)
    })
}
