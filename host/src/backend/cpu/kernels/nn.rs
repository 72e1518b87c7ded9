//! Neural-network layers: convolution, pooling, bias, activations, softmax.

use smallvec::SmallVec;

use crate::backend::cpu::kernels::ARITHMETIC;
use crate::backend::cpu::kernels::Made;
use crate::backend::cpu::kernels::NUMBERS;
use crate::backend::cpu::kernels::REALS;
use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::ints_attr;
use crate::backend::cpu::kernels::kernel;
use crate::backend::cpu::kernels::math;
use crate::backend::cpu::kernels::output;
use crate::backend::cpu::kernels::string_attr;
use crate::backend::cpu::kernels::type_attr;
use crate::device::Kernel;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::Broadcast;
use crate::kernels::MatmulElement;
use crate::kernels::MatrixView;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::kernels::binary;
use crate::kernels::conv::Convolution;
use crate::kernels::matmul;
use crate::kernels::pool::Pool;
use crate::kernels::softmax;
use crate::kernels::softmax::SoftmaxRow;
use crate::kernels::window::Padding;
use crate::kernels::window::WindowAxis;
use crate::kernels::window::WindowSpec;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Types that TensorFlow's CPU convolution supports.
pub(super) const CONVOLVED: [DType; 5] =
    [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32];

/// Types that TensorFlow's CPU `MaxPool` supports.
const POOLED: [DType; 12] = [
    DType::F32,
    DType::F64,
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

pub(super) fn register(registry: &mut KernelRegistry) {
    let mut add = |op: &str, types: &[DType], make: fn(&KernelConstruction<'_>) -> Made| {
        registry.register(def(op).with_types("T", types).with_factory(make));
    };
    add(
        "Relu",
        &NUMBERS,
        |node| dispatch_number!(type_attr(node, "T")?, T => math::unary_op(|x: T| binary::maximum(x, T::ZERO))),
    );
    add("Relu6", &NUMBERS, |node| {
        dispatch_number!(type_attr(node, "T")?, T => math::unary_op(|x: T| {
            binary::minimum(binary::maximum(x, T::ZERO), T::from_i64(6))
        }))
    });
    add("BiasAdd", &ARITHMETIC, bias_add);
    add(
        "Softmax",
        &REALS,
        |node| dispatch_real!(type_attr(node, "T")?, T => kernel(|context| softmax(context, softmax::softmax::<T>))),
    );
    add(
        "LogSoftmax",
        &REALS,
        |node| dispatch_real!(type_attr(node, "T")?, T => kernel(|context| softmax(context, softmax::log_softmax::<T>))),
    );
    add("Conv2D", &CONVOLVED, conv_2d);
    add("MaxPool", &POOLED, |node| {
        let windows = Windows::of_pool(node)?;
        dispatch_number!(type_attr(node, "T")?, T => kernel(move |context| {
            let (pool, shape) = windows.over(context.input(0)?.shape())?;
            let x = context.input(0)?.as_slice::<T>()?;
            output(context, shape, |out| {
                pool.max(x, out, Threads::of(context))
            })
        }))
    });
    add("AvgPool", &REALS, |node| {
        let windows = Windows::of_pool(node)?;
        dispatch_real!(type_attr(node, "T")?, T => kernel(move |context| {
            let (pool, shape) = windows.over(context.input(0)?.shape())?;
            let x = context.input(0)?.as_slice::<T>()?;
            output(context, shape, |out| {
                pool.mean(x, out, Threads::of(context))
            })
        }))
    });
}

/// TensorFlow `BiasAdd`: `[.., c] + [c]`, or `[n, c, ..] + [c]` for `NCHW`.
fn bias_add(node: &KernelConstruction<'_>) -> Made {
    let channels_first = channels_first(node)?;
    dispatch_arithmetic!(type_attr(node, "T")?, T => kernel(move |context| {
        let (value, bias) = (context.input(0)?, context.input(1)?);
        let plan = bias_plan(value.shape(), bias.shape(), channels_first)?;
        let (x, b) = (value.as_slice::<T>()?, bias.as_slice::<T>()?);
        context.fill_output(0, plan.shape(), |out| {
            plan.apply(x, b, out, Threads::of(context), T::plus);
            Ok(())
        })
    }))
}

/// Returns whether attribute `data_format` puts the channels before rows and columns.
pub(in crate::backend) fn channels_first(
    node: &KernelConstruction<'_>,
) -> Result<bool, KernelError> {
    match string_attr(node, "data_format", "NHWC")? {
        "NHWC" => Ok(false),
        "NCHW" => Ok(true),
        other => Err(KernelError::invalid(format!(
            "attribute `data_format` is `{other}`; expected `NHWC` or `NCHW`"
        ))),
    }
}

/// Plans how a bias is broadcast to a value; the result has the value's shape.
fn bias_plan(value: &Shape, bias: &Shape, channels_first: bool) -> Result<Broadcast, KernelError> {
    let axis = bias_axis(value, bias, channels_first)?;
    let mut aligned: SmallVec<[usize; 4]> = SmallVec::from_elem(1, value.rank() - axis);
    aligned[0] = value.dims()[axis];
    Broadcast::new(value, &Shape::new(&aligned))
}

/// Returns the axis of the value to which the bias applies; the bias has one element per index.
pub(in crate::backend) fn bias_axis(
    value: &Shape,
    bias: &Shape,
    channels_first: bool,
) -> Result<usize, KernelError> {
    if value.rank() < 2 {
        return Err(KernelError::invalid(format!(
            "input tensor must be at least 2D: {value}, with biases {bias}"
        )));
    }
    let &[n_biases] = bias.dims() else {
        return Err(KernelError::invalid(format!(
            "biases must be 1D: {bias}, for an input of shape {value}"
        )));
    };
    let axis = if channels_first { 1 } else { value.rank() - 1 };
    if value.dims()[axis] != n_biases {
        return Err(KernelError::invalid(format!(
            "must provide as many biases as dimension {axis} of the input tensor: {bias} vs. {value}"
        )));
    }
    Ok(axis)
}

/// Input rows, their number of columns, output rows.
type RowFunction<T> = fn(&[T], usize, &mut [T], Threads<'_>) -> Result<(), KernelError>;

/// TensorFlow `Softmax` and `LogSoftmax`: over the last dimension.
fn softmax<T: SoftmaxRow>(
    context: &KernelContext<'_>,
    function: RowFunction<T>,
) -> Result<(), KernelError> {
    let logits = context.input(0)?;
    let columns = softmax_columns(logits.shape())?;
    let x = logits.as_slice::<T>()?;
    context.fill_output(0, logits.shape(), |out| {
        function(x, columns, out, Threads::of(context))
    })
}

/// Returns the number of elements in a row of logits.
pub(in crate::backend) fn softmax_columns(logits: &Shape) -> Result<usize, KernelError> {
    logits.dims().last().copied().ok_or_else(|| {
        KernelError::invalid("logits must have at least one dimension, found a scalar")
    })
}

/// TensorFlow `Conv2D`, channels last. The filter may have fewer channels than the image if it
/// divides their number (groups).
pub(super) fn conv_2d(node: &KernelConstruction<'_>) -> Made {
    let windows = ConvolutionWindows::new(node)?;
    dispatch!(
        type_attr(node, "T")?,
        [F32: f32, F64: f64, F16: half::f16, BF16: half::bf16, I32: i32],
        T => if T::DTYPE == DType::F32 {
            Ok(Box::new(FloatConvolution { windows }))
        } else {
            kernel(move |context| convolve::<T>(context, windows))
        }
    )
}

/// A convolution of `float` images. A constant filter is prepacked; any other one is prepacked into
/// panels in each run.
struct FloatConvolution {
    windows: ConvolutionWindows,
}

impl Kernel for FloatConvolution {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let shapes = (context.input(0)?.shape(), context.input(1)?.shape());
        let (convolution, shape) = self.windows.over(shapes.0, shapes.1)?;
        if !convolution.is_dense() {
            return convolve::<f32>(context, self.windows);
        }
        let threads = Threads::of(context);
        let x = context.input(0)?.as_slice()?;
        if let Some(panels) = context.prepacked_input(1) {
            let panels = panels.as_slice()?;
            return output(context, shape, |out| {
                convolution.apply_prepacked(x, panels, out, threads)
            });
        }
        let filter = context.input(1)?;
        let matrix = filter_matrix(filter)?;
        let n_elements = matmul::prepacked_len(matrix.rows(), matrix.columns());
        let f = filter.as_slice::<f32>()?;
        output(context, shape, |out| {
            // Scratch memory is allocated after the output, because plans account for tensors only.
            match n_elements.map(|n_elements| threads.scratch::<f32>(n_elements)) {
                Some(Ok(mut panels)) => {
                    matmul::prepack(matrix, &mut panels);
                    convolution.apply_prepacked(x, &panels, out, threads)
                }
                // Without memory for the panels, the filter is used in its original layout.
                _ => convolution.apply(x, f, out, threads),
            }
        })
    }

    fn prepack_input(
        &self,
        index: usize,
        constant: &Tensor,
        device: &dyn KernelDevice,
    ) -> Result<Option<Tensor>, KernelError> {
        if index != 1 || constant.shape().rank() != 4 {
            return Ok(None);
        }
        math::prepacked(filter_matrix(constant)?, device).map(Some)
    }
}

/// Returns a filter `[rows, columns, channels, output channels]` of one group as a matrix.
fn filter_matrix(filter: &Tensor) -> Result<MatrixView<'_, f32>, KernelError> {
    let dims = filter.shape().dims();
    let columns = dims.last().copied().unwrap_or(1);
    let rows = filter.shape().n_elements() / columns.max(1);
    MatrixView::row_major(filter.as_slice::<f32>()?, rows, columns)
}

fn convolve<T: MatmulElement>(
    context: &KernelContext<'_>,
    windows: ConvolutionWindows,
) -> Result<(), KernelError> {
    let shapes = (context.input(0)?.shape(), context.input(1)?.shape());
    let (convolution, shape) = windows.over(shapes.0, shapes.1)?;
    let x = context.input(0)?.as_slice::<T>()?;
    let f = context.input(1)?.as_slice::<T>()?;
    output(context, shape, |out| {
        convolution.apply(x, f, out, Threads::of(context))
    })
}

/// The attributes of `Conv2D`.
#[derive(Debug, Clone, Copy)]
pub(in crate::backend) struct ConvolutionWindows {
    strides: [usize; 2],
    dilations: [usize; 2],
    padding: [Padding; 2],
}

impl ConvolutionWindows {
    pub(in crate::backend) fn new(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        channels_last(node)?;
        Ok(Self {
            strides: spatial(node, "strides", None)?,
            dilations: spatial(node, "dilations", Some(&[1, 1, 1, 1]))?,
            padding: paddings(node)?,
        })
    }

    /// Plans the convolution of inputs of these shapes, and returns the result's shape.
    pub(in crate::backend) fn over(
        self,
        input: &Shape,
        filter: &Shape,
    ) -> Result<(Convolution, Shape), KernelError> {
        let shapes = || format!("input {input}, filter {filter}");
        let (
            &[batch, in_rows, in_columns, input_channels],
            &[rows, columns, filter_channels, output_channels],
        ) = (input.dims(), filter.dims())
        else {
            return Err(KernelError::invalid(format!(
                "input and filter must be 4-dimensional: {}",
                shapes()
            )));
        };
        if filter.n_elements() == 0 {
            return Err(KernelError::invalid(format!(
                "filter must not have zero elements: {}",
                shapes()
            )));
        }
        if !input_channels.is_multiple_of(filter_channels) {
            return Err(KernelError::invalid(format!(
                "input depth must be evenly divisible by filter depth: {input_channels} vs {filter_channels} ({})",
                shapes()
            )));
        }
        let n_groups = input_channels / filter_channels;
        if n_groups == 0 || !output_channels.is_multiple_of(n_groups) {
            return Err(KernelError::invalid(format!(
                "output depth must be evenly divisible by the number of groups: {output_channels} vs {n_groups} ({})",
                shapes()
            )));
        }
        let axis = |index: usize, size: usize, length: usize| -> Result<WindowAxis, KernelError> {
            WindowSpec {
                size,
                stride: self.strides[index],
                dilation: self.dilations[index],
                padding: self.padding[index],
            }
            .over(length)
            .map_err(|error| KernelError::invalid(format!("{error}: {}", shapes())))
        };
        let convolution = Convolution {
            batch,
            rows: axis(0, rows, in_rows)?,
            columns: axis(1, columns, in_columns)?,
            input_channels,
            filter_channels,
            output_channels,
        };
        let shape = Shape::from([
            batch,
            convolution.rows.output,
            convolution.columns.output,
            output_channels,
        ]);
        Ok((convolution, shape))
    }
}

/// The windows of TensorFlow `MaxPool` and `AvgPool`, channels last.
#[derive(Debug, Clone, Copy)]
pub(in crate::backend) struct Windows {
    rows: WindowSpec,
    columns: WindowSpec,
}

impl Windows {
    pub(in crate::backend) fn of_pool(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        channels_last(node)?;
        let sizes = spatial(node, "ksize", None)?;
        let strides = spatial(node, "strides", None)?;
        let padding = paddings(node)?;
        let spec = |index: usize| WindowSpec {
            size: sizes[index],
            stride: strides[index],
            dilation: 1,
            padding: padding[index],
        };
        for axis in [0, 1] {
            if let Padding::Explicit(before, after) = padding[axis]
                && before.max(after) >= sizes[axis]
            {
                return Err(KernelError::invalid(format!(
                    "a padding of {before} and {after} would leave windows of {} without input",
                    sizes[axis]
                )));
            }
        }
        Ok(Self {
            rows: spec(0),
            columns: spec(1),
        })
    }

    /// Plans the pooling of an input of this shape, and returns the result's shape.
    pub(in crate::backend) fn over(self, input: &Shape) -> Result<(Pool, Shape), KernelError> {
        let &[batch, rows, columns, channels] = input.dims() else {
            return Err(KernelError::invalid(format!(
                "input must be 4-dimensional, found {input}"
            )));
        };
        let over = |spec: WindowSpec, length: usize| {
            spec.over(length)
                .map_err(|error| KernelError::invalid(format!("{error}: input {input}")))
        };
        let pool = Pool {
            batch,
            rows: over(self.rows, rows)?,
            columns: over(self.columns, columns)?,
            channels,
        };
        let shape = Shape::from([batch, pool.rows.output, pool.columns.output, channels]);
        Ok((pool, shape))
    }
}

/// Checks that images have channels last, the only layout of TensorFlow's CPU kernels.
pub(super) fn channels_last(node: &KernelConstruction<'_>) -> Result<(), KernelError> {
    match string_attr(node, "data_format", "NHWC")? {
        "NHWC" => Ok(()),
        other => Err(KernelError::Unimplemented(format!(
            "{} with data_format `{other}`; only NHWC is implemented",
            node.op
        ))),
    }
}

/// Returns the row and column entries of a list of four, whose batch and channel entries must be 1.
pub(super) fn spatial(
    node: &KernelConstruction<'_>,
    name: &str,
    default: Option<&[i64]>,
) -> Result<[usize; 2], KernelError> {
    let list = ints_attr(node, name, default.unwrap_or(&[]))?;
    let &[batch, rows, columns, channels] = &list[..] else {
        return Err(KernelError::invalid(format!(
            "attribute `{name}` must have 4 elements, found {list:?}"
        )));
    };
    if batch != 1 || channels != 1 {
        return Err(KernelError::Unimplemented(format!(
            "`{name}` {list:?}: batch and depth dimensions must be 1"
        )));
    }
    let positive = |value: i64| {
        if value > i64::from(i32::MAX) {
            return Err(KernelError::invalid(format!(
                "attribute `{name}` has value {value} out of range for an int32: {list:?}"
            )));
        }
        usize::try_from(value)
            .ok()
            .filter(|&value| value > 0)
            .ok_or_else(|| {
                KernelError::invalid(format!(
                    "attribute `{name}` must be positive, found {list:?}"
                ))
            })
    };
    Ok([positive(rows)?, positive(columns)?])
}

/// Returns the padding of rows and columns.
pub(super) fn paddings(node: &KernelConstruction<'_>) -> Result<[Padding; 2], KernelError> {
    let list = ints_attr(node, "explicit_paddings", &[])?;
    let padding = string_attr(node, "padding", "")?;
    match padding {
        "SAME" | "VALID" if !list.is_empty() => Err(KernelError::invalid(format!(
            "explicit_paddings must be empty with padding `{padding}`, found {list:?}"
        ))),
        "SAME" => Ok([Padding::Same; 2]),
        "VALID" => Ok([Padding::Valid; 2]),
        "EXPLICIT" => {
            if let Some(size) = list.iter().find(|&&size| size > i64::from(i32::MAX)) {
                return Err(KernelError::invalid(format!(
                    "attribute `explicit_paddings` has value {size} out of range for an int32: {list:?}"
                )));
            }
            let sizes: Vec<usize> = list
                .iter()
                .filter_map(|&size| usize::try_from(size).ok())
                .collect();
            match sizes[..] {
                [0, 0, top, bottom, left, right, 0, 0] => Ok([
                    Padding::Explicit(top, bottom),
                    Padding::Explicit(left, right),
                ]),
                _ => Err(KernelError::invalid(format!(
                    "explicit_paddings must be 8 sizes from 0, with 0 for batch and depth, found {list:?}"
                ))),
            }
        }
        other => Err(KernelError::invalid(format!(
            "attribute `padding` is `{other}`; expected `SAME`, `VALID` or `EXPLICIT`"
        ))),
    }
}
