//! Convolutions and transposed convolutions, as matmuls that read the image in place.

use std::sync::Arc;
use std::sync::OnceLock;

use crate::backend::plan::attr::type_attr;
use crate::backend::plan::conv;
use crate::backend::plan::conv::ConvolutionWindows;
use crate::backend::plan::conv::UndilatedWindows;
use crate::backend::source::call::Axes;
use crate::backend::source::call::Call;
use crate::backend::source::call::Made;
use crate::backend::source::call::index;
use crate::backend::source::call::offset;
use crate::backend::source::call::program_device;
use crate::backend::source::call::site;
use crate::backend::source::kernels::Table;
use crate::backend::source::kernels::epilogue;
use crate::backend::source::kernels::epilogue::Epilogue;
use crate::backend::source::kernels::moved::Moved;
use crate::backend::source::kernels::strided::Strided;
use crate::backend::source::kernels::tiles::PanelLayout;
use crate::backend::source::kernels::tiles::PanelWriter;
use crate::backend::source::kernels::tiles::TileFunction;
use crate::backend::source::kernels::tiles::Tiling;
use crate::backend::source::kernels::tiles::tile_args;
use crate::device::Activation;
use crate::device::Kernel;
use crate::device::KernelArg;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::device::LaunchSite;
use crate::device::ProgramDevice;
use crate::device::RoutineConvolution;
use crate::device::RoutineMatmul;
use crate::device::RoutineMatrices;
use crate::device::RoutineSite;
use crate::device::RoutineWindow;
use crate::device::Routines;
use crate::kernels::window::WindowAxis;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

const SOURCE: &str = concat!(include_str!("../tile.h"), include_str!("../conv.c"));

/// Maximum factor by which padding for a routine may enlarge an image; dilated filters reach far
/// beyond it.
const PADDED_MAX: usize = 4;

/// Maximum size of the matrix of windows that a routine multiplies at a time.
const WINDOWS_BYTES_MAX: usize = 64 << 20;

const TYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::I32];

pub(super) fn register(table: &mut Table<'_>) {
    let def = table.def("Conv2D").with_types("T", &TYPES);
    table.add(def.with_factory(|node| conv_2d(node, false)));
    let def = table.def("_FusedConv2D").with_types("T", &epilogue::TYPES);
    table.add(def.with_factory(|node| conv_2d(node, true)));
    let def = table.def("Conv2DBackpropInput").with_types("T", &TYPES);
    let def = def.with_host_memory("input_sizes");
    table.add(def.with_factory(|node| {
        let windows = UndilatedWindows::new(node)?;
        made(node, Direction::Back(windows), "convolve_transposed", false)
    }));
}

/// TensorFlow `Conv2D`, or `_FusedConv2D`.
fn conv_2d(node: &KernelConstruction<'_>, has_epilogue: bool) -> Made {
    let windows = ConvolutionWindows::new(node)?;
    made(node, Direction::Forward(windows), "convolve", has_epilogue)
}

fn made(
    node: &KernelConstruction<'_>,
    direction: Direction,
    name: &'static str,
    has_epilogue: bool,
) -> Made {
    let dtype = type_attr(node, "T")?;
    let device = program_device(node.device)?;
    let tiling = Tiling::new(device.compute_traits(), dtype);
    let asks_routines = matches!(direction, Direction::Forward(_))
        && device.routines().is_some_and(|routines| {
            routines.can_convolve(dtype, None) || routines.can_matmul(dtype)
        });
    let epilogue = has_epilogue.then(|| Epilogue::new(node, dtype, tiling));
    let epilogue = epilogue.transpose()?;
    Ok(Box::new(ConvolutionKernel {
        dtype,
        direction,
        tiling,
        panel_writer: PanelWriter::new(tiling)?,
        function: TileFunction::new(tiling, "conv.c", SOURCE, name, epilogue.as_ref())?,
        epilogue,
        strided: Strided::new(dtype)?,
        windows: Moved::new(node, "T", "windows")?,
        asks_routines,
        panels: OnceLock::new(),
        site: site(node),
    }))
}

/// TensorFlow `Conv2D` or `Conv2DBackpropInput`. Input 1 is the filter of both.
#[derive(Debug, Clone, Copy)]
enum Direction {
    Forward(ConvolutionWindows),
    Back(UndilatedWindows),
}

struct ConvolutionKernel {
    dtype: DType,
    direction: Direction,
    tiling: Tiling,
    panel_writer: PanelWriter,
    function: TileFunction,
    strided: Strided,
    windows: Moved,
    epilogue: Option<Epilogue>,
    /// Whether the vendor's routines are tried first; constant filters are prepared for them.
    asks_routines: bool,
    /// Panels of a constant filter that was prepared for routines, for calls that the routines do
    /// not support.
    panels: OnceLock<Tensor>,
    site: Arc<LaunchSite>,
}

/// `Convolution` of conv.c.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct ConvolutionArgs {
    n_pixels: u32,
    out_size: [u32; 2],
    in_size: [u32; 2],
    channels: u32,
    group_channels: u32,
    taps: [u32; 2],
    stride: [i32; 2],
    dilation: [i32; 2],
    pad: [i32; 2],
    out_channels: u32,
    group_columns: u32,
    n_panels: u32,
    n_panels_of_all: u32,
    zeroes: u32,
}

/// The plan of an execution in either direction.
struct ConvPlan<'a> {
    input: &'a Tensor,
    shape: Shape,
    axes: [WindowAxis; 2],
    n_groups: usize,
    /// Sizes of the input and of the result.
    size: [[usize; 2]; 2],
    channels: usize,
}

impl ConvPlan<'_> {
    /// Returns whether each output pixel depends on the pixel at the same place only.
    fn is_pointwise(&self) -> bool {
        let is_pointwise = |axis: &WindowAxis| {
            axis.size == 1 && axis.stride == 1 && axis.pad_before == 0 && axis.input == axis.output
        };
        self.n_groups == 1 && self.axes.iter().all(is_pointwise)
    }
}

/// What a routine reads besides the images, and what it writes.
struct RoutineOperands<'a> {
    /// Output channels outermost.
    filter: &'a Tensor,
    bias: Option<&'a Tensor>,
    out: &'a Tensor,
}

/// `Windows` of move.c.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct WindowsArgs {
    first: u32,
    units: u32,
    out_size: [u32; 2],
    in_size: [u32; 2],
    taps: [u32; 2],
    stride: [i32; 2],
    dilation: [i32; 2],
    pad: [i32; 2],
}

impl Kernel for ConvolutionKernel {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let call = Call::new(context, &self.site)?;
        let plan = self.plan(&call)?;
        let out = call.output(self.dtype, &plan.shape)?;
        let epilogue = self.epilogue.as_ref();
        let bias = epilogue.map(|epilogue| epilogue.bias(&call, out.shape()));
        let bias = bias.transpose()?;
        if out.shape().n_elements() > 0 {
            let layout = self.layout(call.input(1)?.shape(), plan.n_groups)?;
            // No layout if the images or the filter are empty.
            let layout = layout.filter(|_| plan.input.shape().n_elements() > 0);
            match (layout, epilogue, bias) {
                (Some(layout), ..) => {
                    if !self.convolve_by_routine(&call, &plan, bias, &out)? {
                        self.launch(&call, &plan, &layout, bias, &out)?;
                    }
                }
                (None, Some(epilogue), Some(bias)) => epilogue.fill(&call, bias, &out)?,
                (None, ..) => self.strided.fill(&call, &out, 0.0)?,
            }
        }
        call.set_output(0, out)
    }

    fn prepack_input(
        &self,
        index: usize,
        constant: &Tensor,
        device: &dyn KernelDevice,
    ) -> Result<Option<Tensor>, KernelError> {
        // Prepacked as one group: the number of groups depends on the image.
        let Some(layout) = self.layout(constant.shape(), 1)?.filter(|_| index == 1) else {
            return Ok(None);
        };
        let device = program_device(device)?;
        let panels_of_filter = if self.asks_routines {
            let origin = RoutineSite {
                site: &self.site,
                step: None,
                context: None,
            };
            self.output_channels_first(device, origin, constant)?
        } else {
            self.panel_writer
                .write(device, &self.site, constant, &layout)?
        };
        Ok(Some(panels_of_filter))
    }
}

impl ConvolutionKernel {
    fn plan<'a>(&self, call: &'a Call<'_, '_>) -> Result<ConvPlan<'a>, KernelError> {
        let filter = call.input(1)?;
        match self.direction {
            Direction::Forward(windows) => {
                let input = call.input(0)?;
                let (plan, shape) = windows.over(input.shape(), filter.shape())?;
                Ok(ConvPlan {
                    input,
                    shape,
                    axes: [plan.rows, plan.columns],
                    n_groups: plan.input_channels / plan.filter_channels,
                    size: [
                        [plan.rows.input, plan.columns.input],
                        [plan.rows.output, plan.columns.output],
                    ],
                    channels: plan.input_channels,
                })
            }
            Direction::Back(windows) => {
                let (sizes, input) = (call.input(0)?, call.input(2)?);
                let (plan, shape) =
                    conv::transposed_plan(windows, sizes, filter.shape(), input.shape())?;
                Ok(ConvPlan {
                    input,
                    shape,
                    axes: [plan.rows, plan.columns],
                    n_groups: 1,
                    size: [
                        [plan.rows.output, plan.columns.output],
                        [plan.rows.input, plan.columns.input],
                    ],
                    channels: plan.given_channels,
                })
            }
        }
    }

    /// Returns the panel layout of a filter of this shape; `None` if it is empty or not a filter.
    fn layout(&self, filter: &Shape, n_groups: usize) -> Result<Option<PanelLayout>, KernelError> {
        let &[rows, columns, first, second] = filter.dims() else {
            return Ok(None);
        };
        if filter.n_elements() == 0 {
            return Ok(None);
        }
        Ok(Some(match self.direction {
            Direction::Forward(_) => {
                let (k, n) = (rows * columns * first, second / n_groups);
                let group = isize::try_from(n).unwrap_or(isize::MAX);
                PanelLayout {
                    k,
                    n,
                    inner: k,
                    outer_stride: 0,
                    row: second,
                    column: 1,
                    n_matrices: n_groups,
                    batch: Axes::new([(n_groups, [group, 0, 0])], [0; 3])?,
                    n_zeroes: columns * first,
                }
            }
            Direction::Back(_) => PanelLayout {
                k: rows * columns * second,
                n: first,
                inner: second,
                outer_stride: first * second,
                row: 1,
                column: second,
                n_matrices: 1,
                batch: Axes::default(),
                n_zeroes: second,
            },
        }))
    }

    /// Reorders a filter for the routines.
    fn output_channels_first(
        &self,
        device: &dyn ProgramDevice,
        origin: RoutineSite<'_>,
        filter: &Tensor,
    ) -> Result<Tensor, KernelError> {
        let &[rows, columns, channels, out_channels] = filter.shape().dims() else {
            return Err(KernelError::invalid("a filter has four dimensions"));
        };
        let shape = Shape::from([out_channels, rows, columns, channels]);
        let n_inner = rows * columns * channels;
        let axes = Axes::of_spread([(out_channels, [1, n_inner]), (n_inner, [out_channels, 1])])?;
        let reordered = device.uninitialized(self.dtype, shape)?;
        let n = filter.shape().n_elements();
        self.strided
            .copy_on(device, origin, filter, &reordered, n, &axes)?;
        Ok(reordered)
    }

    /// Computes with a routine and the epilogue. Returns `false` if the routines do not support it.
    fn convolve_by_routine(
        &self,
        call: &Call<'_, '_>,
        plan: &ConvPlan<'_>,
        bias: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<bool, KernelError> {
        let routines = call.device.routines();
        let Some(routines) = routines.filter(|_| self.asks_routines) else {
            return Ok(false);
        };
        let can_matmul = plan.n_groups == 1
            && routines.can_matmul(self.dtype)
            && index(plan.input.shape().n_elements()).is_ok();
        let windows = self.routine_windows(routines, plan);
        if !can_matmul && windows.is_none() {
            return Ok(false);
        }
        let own_transposed;
        let filter = match call.context.prepacked_input(1) {
            Some(reordered) => reordered,
            None => {
                let filter = call.input(1)?;
                own_transposed =
                    self.output_channels_first(call.device, call.routine_site(), filter)?;
                &own_transposed
            }
        };
        let operands = RoutineOperands { filter, bias, out };
        // cuDNN's convolutions of single images took 4 to 60 times as long on a Hopper GPU, in f32
        // and bf16.
        let mut is_done = can_matmul && self.by_matmul(call, routines, plan, &operands)?;
        if let Some(windows) = windows.filter(|_| !is_done) {
            is_done = self.by_convolution(call, routines, plan, windows, &operands)?;
        }
        if let Some(epilogue) = self.epilogue.as_ref().filter(|_| is_done) {
            epilogue.finish(call, out)?;
        }
        Ok(is_done)
    }

    fn activation(&self) -> Activation {
        let epilogue = self.epilogue.as_ref();
        epilogue.map(Epilogue::of_routines).unwrap_or_default()
    }

    /// Computes matmuls of the windows and the filter.
    fn by_matmul(
        &self,
        call: &Call<'_, '_>,
        routines: &dyn Routines,
        plan: &ConvPlan<'_>,
        operands: &RoutineOperands<'_>,
    ) -> Result<bool, KernelError> {
        let out = operands.out;
        let Some(&n) = out.shape().dims().last() else {
            return Ok(false);
        };
        let n_pixels = out.shape().n_elements() / n;
        let k = plan.channels * plan.axes[0].size * plan.axes[1].size;
        let matmul = |left: &Tensor, first: usize, m: usize| {
            routines.matmul(&RoutineMatmul {
                origin: call.routine_site(),
                size: [m, k, n],
                n_batches: 1,
                left: one_matrix(left, 0, [k, 1]),
                right: one_matrix(operands.filter, 0, [1, k]),
                out: one_matrix(out, first * n, [n, 1]),
                bias: operands.bias,
                activation: self.activation(),
            })
        };
        if plan.is_pointwise() {
            return matmul(plan.input, 0, n_pixels);
        }
        let row_bytes = k * self.windows.element_bytes();
        let n_rows_max = (WINDOWS_BYTES_MAX / row_bytes).clamp(1, n_pixels);
        // On a device with little memory, other ways need less.
        let Ok(rows) = call.output(self.dtype, &Shape::from([n_rows_max, k])) else {
            return Ok(false);
        };
        for first in (0..n_pixels).step_by(n_rows_max) {
            let n_rows = n_rows_max.min(n_pixels - first);
            self.write_windows(call, plan, first, n_rows, &rows)?;
            if !matmul(&rows, first, n_rows)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the windows of output pixels from `first` on as rows of a matrix.
    fn write_windows(
        &self,
        call: &Call<'_, '_>,
        plan: &ConvPlan<'_>,
        first: usize,
        n_rows: usize,
        rows: &Tensor,
    ) -> Result<(), KernelError> {
        let per_unit = self.windows.elements_per_unit(&[plan.channels]);
        let units = plan.channels / per_unit;
        let [in_size, out_size] = plan.size;
        let [vertical, horizontal] = &plan.axes;
        for axis in &plan.axes {
            offset(axis.span(axis.output).saturating_add(axis.pad_before))?;
        }
        let args = WindowsArgs {
            first: index(first)?,
            units: index(units)?,
            out_size: [index(out_size[0])?, index(out_size[1])?],
            in_size: [index(in_size[0])?, index(in_size[1])?],
            taps: [index(vertical.size)?, index(horizontal.size)?],
            stride: [factor(vertical.stride), factor(horizontal.stride)],
            dilation: [factor(vertical.dilation), factor(horizontal.dilation)],
            pad: [offset(vertical.pad_before)?, offset(horizontal.pad_before)?],
        };
        let n = n_rows * vertical.size * horizontal.size * units;
        call.launch_items(
            self.windows.function(call, per_unit)?,
            n,
            &[
                KernelArg::Read(plan.input),
                KernelArg::Write(rows),
                KernelArg::Bytes(bytemuck::bytes_of(&args)),
                KernelArg::U32(index(n)?),
            ],
        )
    }

    /// Returns the windows with which a routine computes a convolution: those of the images, or of
    /// padded ones.
    fn routine_windows(
        &self,
        routines: &dyn Routines,
        plan: &ConvPlan<'_>,
    ) -> Option<[RoutineWindow; 2]> {
        let windows = plan.axes.map(window);
        let padded_windows = plan.axes.map(padded);
        let convolves = |windows| routines.can_convolve(self.dtype, Some(windows));
        if convolves(&windows) {
            return Some(windows);
        }
        let is_small = pixels(&padded_windows) <= pixels(&windows).saturating_mul(PADDED_MAX);
        (is_small && convolves(&padded_windows)).then_some(padded_windows)
    }

    /// Computes with a routine for convolutions.
    fn by_convolution(
        &self,
        call: &Call<'_, '_>,
        routines: &dyn Routines,
        plan: &ConvPlan<'_>,
        windows: [RoutineWindow; 2],
        operands: &RoutineOperands<'_>,
    ) -> Result<bool, KernelError> {
        let padded_here;
        let input = if windows == plan.axes.map(window) {
            plan.input
        } else {
            padded_here = self.padded(call, plan, windows)?;
            &padded_here
        };
        let RoutineOperands { filter, bias, out } = *operands;
        let (&[n_images, ..], &[out_channels, ..]) = (out.shape().dims(), filter.shape().dims())
        else {
            return Ok(false);
        };
        routines.convolve(&RoutineConvolution {
            origin: call.routine_site(),
            n_images,
            windows,
            channels: [plan.channels, out_channels],
            n_groups: plan.n_groups,
            input,
            filter,
            out,
            bias,
            activation: self.activation(),
        })
    }

    /// Pads the images with zeroes as far as windows reach.
    fn padded(
        &self,
        call: &Call<'_, '_>,
        plan: &ConvPlan<'_>,
        windows: [RoutineWindow; 2],
    ) -> Result<Tensor, KernelError> {
        let &[n, rows, columns, channels] = plan.input.shape().dims() else {
            return Err(KernelError::invalid("an image has four dimensions"));
        };
        let [rows_there, columns_there] = windows.map(|window| window.input);
        let [top, left] = plan.axes.map(|axis| axis.pad_before);
        let shape = Shape::from([n, rows_there, columns_there, channels]);
        let out = call.output(self.dtype, &shape)?;
        self.strided.fill(call, &out, 0.0)?;
        let stride = |n: usize| isize::try_from(n).unwrap_or(isize::MAX);
        let (row, row_there) = (columns * channels, columns_there * channels);
        let axes = [
            (n, [stride(rows * row), stride(rows_there * row_there), 0]),
            (rows, [stride(row), stride(row_there), 0]),
            (row, [1, 1, 0]),
        ];
        let first = top * row_there + left * channels;
        let axes = Axes::new(axes, [0, first, 0])?;
        let n = plan.input.shape().n_elements();
        self.strided.copy(call, plan.input, &out, n, &axes)?;
        Ok(out)
    }

    fn launch(
        &self,
        call: &Call<'_, '_>,
        plan: &ConvPlan<'_>,
        layout: &PanelLayout,
        bias: Option<&Tensor>,
        out: &Tensor,
    ) -> Result<(), KernelError> {
        let filter = call.input(1)?;
        let panels_of_filter = || {
            self.panel_writer
                .write(call.device, call.site, filter, layout)
        };
        let own_panels;
        let panels = match call
            .context
            .prepacked_input(1)
            .filter(|_| plan.n_groups == 1)
        {
            Some(panels) if !self.asks_routines => panels,
            Some(_) => match self.panels.get() {
                Some(panels) => panels,
                None => {
                    let panels = panels_of_filter()?;
                    self.panels.get_or_init(|| panels)
                }
            },
            None => {
                own_panels = panels_of_filter()?;
                &own_panels
            }
        };
        let n_panels = layout.n.div_ceil(self.tiling.columns(layout.n));
        let [in_size, out_size] = plan.size;
        let out_channels = layout.n * plan.n_groups;
        let n_pixels = out.shape().n_elements() / out_channels;
        index(plan.input.shape().n_elements())?;
        index(out.shape().n_elements())?;
        for axis in plan.axes {
            offset(axis.span(axis.output).saturating_add(axis.pad_before))?;
        }
        let args = ConvolutionArgs {
            n_pixels: index(n_pixels)?,
            out_size: [index(out_size[0])?, index(out_size[1])?],
            in_size: [index(in_size[0])?, index(in_size[1])?],
            channels: index(plan.channels)?,
            group_channels: index(plan.channels / plan.n_groups)?,
            taps: [index(plan.axes[0].size)?, index(plan.axes[1].size)?],
            stride: plan.axes.map(|axis| factor(axis.stride)),
            dilation: plan.axes.map(|axis| factor(axis.dilation)),
            pad: [
                offset(plan.axes[0].pad_before)?,
                offset(plan.axes[1].pad_before)?,
            ],
            out_channels: index(out_channels)?,
            group_columns: index(layout.n)?,
            n_panels: index(n_panels)?,
            n_panels_of_all: index(n_panels * plan.n_groups)?,
            zeroes: index(self.panel_writer.zeroes_at(layout))?,
        };
        let tiles = [
            n_pixels.div_ceil(self.tiling.rows(n_pixels)),
            n_panels * plan.n_groups,
            1,
        ];
        call.launch(
            self.function.of(n_pixels, layout.n).on(call.device)?,
            self.tiling.groups(tiles),
            self.tiling.group(),
            &tile_args([plan.input, panels], bias, out, bytemuck::bytes_of(&args)),
        )
    }
}

fn one_matrix(tensor: &Tensor, first: usize, [row, column]: [usize; 2]) -> RoutineMatrices<'_> {
    RoutineMatrices {
        tensor,
        first,
        row,
        column,
        batch: 0,
    }
}

fn pixels(windows: &[RoutineWindow; 2]) -> usize {
    windows[0].input.saturating_mul(windows[1].input)
}

/// Converts an axis for the routines.
fn window(axis: WindowAxis) -> RoutineWindow {
    RoutineWindow {
        input: axis.input,
        output: axis.output,
        taps: axis.size,
        stride: axis.stride,
        dilation: axis.dilation,
        pad_before: axis.pad_before,
    }
}

/// The same for an image that is already padded at both ends.
fn padded(axis: WindowAxis) -> RoutineWindow {
    let reached = axis.span(axis.output);
    RoutineWindow {
        input: reached.max(axis.input.saturating_add(axis.pad_before)),
        pad_before: 0,
        ..window(axis)
    }
}

/// Converts a stride or dilation. One beyond 31 bits is only ever multiplied with 0, because spans
/// have been checked.
pub(super) fn factor(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}
