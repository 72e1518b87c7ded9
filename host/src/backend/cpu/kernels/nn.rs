//! Neural-network layers: convolution, pooling, bias, activations, softmax.

use std::sync::OnceLock;

use crate::backend::cpu::kernels::channels_first::either_layout;
use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::fused::EpilogueOps;
use crate::backend::cpu::kernels::fused::output_with;
use crate::backend::cpu::kernels::math;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::conv::ConvolutionWindows;
use crate::backend::plan::nn::bias_plan;
use crate::backend::plan::nn::channels_first;
use crate::backend::plan::nn::softmax_columns;
use crate::backend::plan::pool::PoolWindows;
use crate::backend::types::ARITHMETIC;
use crate::backend::types::NUMBERS;
use crate::backend::types::REALS;
use crate::device::AllocatorAttributes;
use crate::device::Kernel;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::MatmulElement;
use crate::kernels::MatrixView;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::kernels::binary;
use crate::kernels::epilogue;
use crate::kernels::matmul;
use crate::kernels::matmul::Epilogue;
use crate::kernels::softmax;
use crate::kernels::softmax::SoftmaxRow;
use crate::kernels::winograd::Winograd;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

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
    add("BiasAddV1", &ARITHMETIC, bias_add);
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
    add("Conv2D", &CONVOLVED, |node| either_layout(node, conv_2d));
    add("MaxPool", &POOLED, |node| either_layout(node, max_pool));
    add("AvgPool", &REALS, |node| either_layout(node, avg_pool));
}

/// TensorFlow `MaxPool`, channels last.
fn max_pool(node: &KernelConstruction<'_>) -> Made {
    let windows = PoolWindows::new(node)?;
    dispatch_number!(type_attr(node, "T")?, T => kernel(move |context| {
        let (pool, shape) = windows.over(context.input(0)?.shape())?;
        let x = context.input(0)?.as_slice::<T>()?;
        output(context, shape, |out| {
            pool.max(x, out, Threads::of(context))
        })
    }))
}

/// TensorFlow `AvgPool`, channels last.
fn avg_pool(node: &KernelConstruction<'_>) -> Made {
    let windows = PoolWindows::new(node)?;
    dispatch_real!(type_attr(node, "T")?, T => kernel(move |context| {
        let (pool, shape) = windows.over(context.input(0)?.shape())?;
        let x = context.input(0)?.as_slice::<T>()?;
        output(context, shape, |out| {
            pool.mean(x, out, Threads::of(context))
        })
    }))
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

/// TensorFlow `Conv2D`, channels last. The filter may have fewer channels than the image if it
/// divides their number (groups).
fn conv_2d(node: &KernelConstruction<'_>) -> Made {
    conv_2d_with(node, None)
}

/// The same, and the epilogue of a fused node, if the images are `float`.
pub(super) fn conv_2d_with(node: &KernelConstruction<'_>, epilogue: Option<EpilogueOps>) -> Made {
    let windows = ConvolutionWindows::new(node)?;
    dispatch!(
        type_attr(node, "T")?,
        [F32: f32, F64: f64, F16: half::f16, BF16: half::bf16, I32: i32],
        T => if T::DTYPE == DType::F32 {
            Ok(Box::new(FloatConvolution {
                windows,
                winograd: winograd_of(node, windows),
                epilogue,
                unpacked: OnceLock::new(),
            }))
        } else {
            kernel(move |context| convolve::<T>(context, windows))
        }
    )
}

/// A convolution of `float` images. A constant filter is prepacked; any other one is prepacked into
/// panels in each run.
struct FloatConvolution {
    windows: ConvolutionWindows,
    /// How a constant filter is prepacked, if not into panels.
    winograd: Option<Winograd>,
    /// That of a fused node.
    epilogue: Option<EpilogueOps>,
    /// A prepacked filter in its original layout, if images turn out to need that.
    unpacked: OnceLock<Tensor>,
}

/// Returns the form of a constant filter if the graph says how large the images are.
fn winograd_of(node: &KernelConstruction<'_>, windows: ConvolutionWindows) -> Option<Winograd> {
    let [images, filter] = node.input_shapes.get(..2)? else {
        return None;
    };
    let &[batch, rows, columns, channels] = images.dims()? else {
        return None;
    };
    let images = Shape::new(&[batch.unwrap_or(1), rows?, columns?, channels?]);
    let (convolution, _) = windows.over(&images, &filter.to_shape()?).ok()?;
    Winograd::best(&convolution)
}

impl FloatConvolution {
    /// Returns the filter in its original layout.
    fn filter<'a>(&'a self, context: &'a KernelContext<'_>) -> Result<&'a Tensor, KernelError> {
        let filter = context.input(1)?;
        let (true, Some(panels)) = (filter.is_released(), context.prepacked_input(1)) else {
            return Ok(filter);
        };
        if let Some(unpacked) = self.unpacked.get() {
            return Ok(unpacked);
        }
        let (rows, columns) = filter_size(filter.shape());
        let allocator = context.device().allocator(AllocatorAttributes::default());
        let shape = filter.shape().clone();
        let mut unpacked = Tensor::persistent_zeros(&*allocator, DType::F32, shape)?;
        let elements = unpacked.as_slice_mut().ok_or(TensorError::NotOnHost)?;
        matmul::unpack(panels.as_slice()?, rows, columns, elements)?;
        Ok(self.unpacked.get_or_init(|| unpacked))
    }
}

impl Kernel for FloatConvolution {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let shapes = (context.input(0)?.shape(), context.input(1)?.shape());
        let (convolution, shape) = self.windows.over(shapes.0, shapes.1)?;
        let threads = Threads::of(context);
        let x = context.input(0)?.as_slice()?;
        let in_original_layout =
            |filter: &[f32], epilogue: Option<Epilogue<'_>>, out: &mut [f32]| {
                convolution.apply(x, filter, out, threads)?;
                if let Some(epilogue) = epilogue {
                    epilogue::apply_all(out, epilogue, threads);
                }
                Ok(())
            };
        if let (Some(winograd), Some(filter)) = (self.winograd, context.prepacked_input(1)) {
            let filter = filter.as_slice()?;
            return output_with(context, self.epilogue, &shape, |epilogue, out| {
                winograd.apply(&convolution, x, filter, epilogue, out, threads)
            });
        }
        if !convolution.is_dense() {
            let filter = self.filter(context)?.as_slice()?;
            return output_with(context, self.epilogue, &shape, |epilogue, out| {
                in_original_layout(filter, epilogue, out)
            });
        }
        if let Some(panels) = context.prepacked_input(1) {
            let panels = panels.as_slice()?;
            return output_with(context, self.epilogue, &shape, |epilogue, out| {
                convolution.apply_prepacked(x, panels, epilogue, out, threads)
            });
        }
        let filter = context.input(1)?;
        let matrix = filter_matrix(filter)?;
        let n_elements = matmul::prepacked_len(matrix.rows(), matrix.columns());
        let filter = filter.as_slice::<f32>()?;
        output_with(context, self.epilogue, &shape, |epilogue, out| {
            // Scratch memory is allocated after the output, because plans account for tensors only.
            match n_elements.map(|n_elements| threads.scratch::<f32>(n_elements)) {
                Some(Ok(mut panels)) => {
                    matmul::prepack(matrix, &mut panels);
                    convolution.apply_prepacked(x, &panels, epilogue, out, threads)
                }
                // Without memory for the panels, the filter is used in its original layout.
                _ => in_original_layout(filter, epilogue, out),
            }
        })
    }

    fn prepack_input(
        &self,
        index: usize,
        constant: &Tensor,
        device: &dyn KernelDevice,
    ) -> Result<Option<Tensor>, KernelError> {
        let &[_, _, inputs, outputs] = constant.shape().dims() else {
            return Ok(None);
        };
        if index != 1 {
            return Ok(None);
        }
        if let Some(winograd) = self.winograd {
            let filter = constant.as_slice()?;
            return math::prepacked_with(winograd.prepacked_len(inputs, outputs), device, |to| {
                winograd.prepack(filter, inputs, outputs, to)
            })
            .map(Some);
        }
        math::prepacked(filter_matrix(constant)?, device).map(Some)
    }

    fn prepacked_form(&self, index: usize) -> Option<&'static str> {
        (index == 1).then_some(match self.winograd {
            None => math::PANELS,
            Some(Winograd::Two) => "placewright: filters of F(2 x 2, 3 x 3)",
            Some(Winograd::Four) => "placewright: filters of F(4 x 4, 3 x 3)",
        })
    }

    fn replaces_prepacked_input(&self, index: usize) -> bool {
        index == 1
    }
}

/// Returns a filter `[rows, columns, channels, output channels]` of one group as a matrix.
fn filter_matrix(filter: &Tensor) -> Result<MatrixView<'_, f32>, KernelError> {
    let (rows, columns) = filter_size(filter.shape());
    MatrixView::row_major(filter.as_slice::<f32>()?, rows, columns)
}

/// Returns rows and columns of that matrix.
fn filter_size(filter: &Shape) -> (usize, usize) {
    let columns = filter.dims().last().copied().unwrap_or(1);
    (filter.n_elements() / columns.max(1), columns)
}

fn convolve<T: MatmulElement>(
    context: &KernelContext<'_>,
    windows: ConvolutionWindows,
) -> Result<(), KernelError> {
    let (x, filter) = (context.input(0)?, context.input(1)?);
    let (convolution, shape) = windows.over(x.shape(), filter.shape())?;
    let (x, f) = (x.as_slice::<T>()?, filter.as_slice::<T>()?);
    output(context, shape, |out| {
        convolution.apply(x, f, out, Threads::of(context))
    })
}
