//! Pooling, and depthwise convolutions.

use crate::backend::plan::attr::type_attr;
use crate::backend::plan::conv;
use crate::backend::plan::conv::UndilatedWindows;
use crate::backend::plan::pool::PoolWindows;
use crate::backend::source::call::Call;
use crate::backend::source::call::LazyFunction;
use crate::backend::source::call::Made;
use crate::backend::source::call::index;
use crate::backend::source::call::kernel;
use crate::backend::source::call::offset;
use crate::backend::source::call::program_device;
use crate::backend::source::call::type_name;
use crate::backend::source::call::width;
use crate::backend::source::kernels::Table;
use crate::backend::source::kernels::conv::factor;
use crate::backend::source::kernels::strided::Strided;
use crate::device::KernelArg;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::device::ProgramSource;
use crate::kernels::pool::Pool;
use crate::kernels::window::WindowAxis;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

const SOURCE: &str = include_str!("../window.c");

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

const POOLED: [DType; 9] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
];

pub(super) fn register(table: &mut Table<'_>) {
    let def = table.def("MaxPool").with_types("T", &POOLED);
    table.add(def.with_factory(|node| pool(node, "max_pool")));
    let def = table.def("AvgPool").with_types("T", &FLOATS);
    table.add(def.with_factory(|node| pool(node, "mean_pool")));
    let def = table.def("DepthwiseConv2dNative");
    table.add(def.with_types("T", &FLOATS).with_factory(depthwise));
}

/// TensorFlow `MaxPool` and `AvgPool`.
fn pool(node: &KernelConstruction<'_>, name: &'static str) -> Made {
    let windows = PoolWindows::new(node)?;
    let sliding = Sliding::new(node, name)?;
    let of_nothing = if name == "max_pool" {
        lowest(sliding.dtype)?.1
    } else {
        f32::NAN
    };
    kernel(node, move |call: &Call<'_, '_>| {
        let input = call.input(0)?;
        let (pool, shape) = windows.over(input.shape())?;
        let Pool { rows, columns, .. } = pool;
        let axes = [rows, columns];
        let out = sliding.run(call, &[input], &shape, axes, [pool.channels, 1], of_nothing)?;
        call.set_output(0, out)
    })
}

/// TensorFlow `DepthwiseConv2dNative`.
fn depthwise(node: &KernelConstruction<'_>) -> Made {
    let windows = UndilatedWindows::of_depthwise(node)?;
    let sliding = Sliding::new(node, "depthwise")?;
    kernel(node, move |call: &Call<'_, '_>| {
        let (input, filter) = (call.input(0)?, call.input(1)?);
        let (plan, shape) = conv::depthwise_plan(windows, input.shape(), filter.shape())?;
        let axes = [plan.rows, plan.columns];
        let channels = [plan.channels, plan.multiplier];
        let out = sliding.run(call, &[input, filter], &shape, axes, channels, 0.0)?;
        call.set_output(0, out)
    })
}

/// Returns the smallest finite number of a type: in C, and as a value to fill a tensor with.
fn lowest(dtype: DType) -> Result<(&'static str, f32), KernelError> {
    Ok(match dtype {
        DType::I8 => ("(-128)", -128.0),
        DType::I16 => ("(-32768)", -32_768.0),
        DType::I32 => ("(-2147483647 - 1)", -2_147_483_648.0),
        DType::I64 => ("(-9223372036854775807L - 1)", -9_223_372_036_854_775_808.0),
        DType::U8 | DType::U16 => ("0", 0.0),
        DType::F32 => ("(-0x1.fffffep127f)", f32::MIN),
        DType::F16 => ("(-65504.0f)", -65_504.0),
        DType::BF16 => ("(-0x1.fep127f)", half::bf16::MIN.to_f32()),
        other => {
            return Err(KernelError::Unimplemented(format!("pools of {other}")));
        }
    })
}

/// `Windows` of window.c.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct WindowArgs {
    n_items: u32,
    in_size: [u32; 2],
    out_size: [u32; 2],
    channels: u32,
    multiplier: u32,
    taps: [u32; 2],
    stride: [i32; 2],
    pad: [i32; 2],
}

/// A function over windows, compiled for one device.
struct Sliding {
    dtype: DType,
    width: usize,
    function: LazyFunction,
    strided: Strided,
}

impl Sliding {
    fn new(node: &KernelConstruction<'_>, name: &'static str) -> Result<Self, KernelError> {
        let dtype = type_attr(node, "T")?;
        let width = width(program_device(node.device)?.compute_traits());
        let mut source = ProgramSource::of_source("window.c", SOURCE)
            .with("TYPE", type_name(dtype)?)
            .with("WIDTH", width.to_string())
            .with("LOWEST", lowest(dtype)?.0);
        if dtype.is_floating() {
            source = source.with("FLOATS", "1");
        }
        Ok(Self {
            dtype,
            width,
            function: LazyFunction::new(source, name),
            strided: Strided::new(dtype)?,
        })
    }

    /// Returns the result of a function of `inputs`, the first of which is the image. If the image
    /// is empty, the result is filled with `of_nothing`.
    fn run(
        &self,
        call: &Call<'_, '_>,
        inputs: &[&Tensor],
        shape: &Shape,
        axes: [WindowAxis; 2],
        [channels, multiplier]: [usize; 2],
        of_nothing: f32,
    ) -> Result<Tensor, KernelError> {
        let out = call.output(self.dtype, shape)?;
        if inputs.iter().any(|input| input.shape().n_elements() == 0) {
            self.strided.fill(call, &out, of_nothing)?;
            return Ok(out);
        }
        if shape.n_elements() == 0 {
            return Ok(out);
        }
        let depth = channels * multiplier;
        let n_items = shape.n_elements() / depth * depth.div_ceil(self.width);
        index(inputs[0].shape().n_elements())?;
        index(shape.n_elements())?;
        for axis in axes {
            offset(axis.span(axis.output).saturating_add(axis.pad_before))?;
        }
        let args = WindowArgs {
            n_items: index(n_items)?,
            in_size: [index(axes[0].input)?, index(axes[1].input)?],
            out_size: [index(axes[0].output)?, index(axes[1].output)?],
            channels: index(channels)?,
            multiplier: index(multiplier)?,
            taps: [index(axes[0].size)?, index(axes[1].size)?],
            stride: axes.map(|axis| factor(axis.stride)),
            pad: [offset(axes[0].pad_before)?, offset(axes[1].pad_before)?],
        };
        let mut list: Vec<KernelArg<'_>> = inputs.iter().map(|x| KernelArg::Read(x)).collect();
        list.push(KernelArg::Write(&out));
        list.push(KernelArg::Bytes(bytemuck::bytes_of(&args)));
        call.launch_items(self.function.on(call.device)?, n_items, &list)?;
        Ok(out)
    }
}
