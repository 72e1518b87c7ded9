//! A pointwise and a depthwise convolution, each with bias and activation, as one kernel.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::fused::activation_of;
use crate::backend::cpu::kernels::math;
use crate::backend::fuse::check_bias;
use crate::backend::host_kernels::Made;
use crate::backend::plan::attr::bad_attr;
use crate::backend::plan::conv::UndilatedWindows;
use crate::backend::plan::conv::depthwise_plan;
use crate::device::Activation;
use crate::device::Kernel;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::MatrixView;
use crate::kernels::Threads;
use crate::kernels::composite::Unit;
use crate::kernels::depthwise::Pointwise;
use crate::kernels::matmul;
use crate::kernels::matmul::Epilogue;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// The op. It has the attributes of the depthwise convolution, and those below. It is not
/// TensorFlow's and never occurs in a graph.
pub(in crate::backend::cpu) const POINTWISE_DEPTHWISE: &str = "_FusedPointwiseDepthwise";

/// The op of the activation behind the pointwise convolution, if there is one.
pub(in crate::backend::cpu) const POINTWISE_ACTIVATION: &str = "pointwise_activation";

/// That behind the depthwise convolution.
pub(in crate::backend::cpu) const DEPTHWISE_ACTIVATION: &str = "depthwise_activation";

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def(POINTWISE_DEPTHWISE)
            .with_types("T", &[DType::F32])
            .with_factory(make),
    );
}

/// Inputs: image, filter and bias of the pointwise convolution, then filter and bias of the
/// depthwise one.
struct Bottleneck {
    windows: UndilatedWindows,
    activations: [(Activation, Option<Unit>); 2],
}

fn make(node: &KernelConstruction<'_>) -> Made {
    let activation = |name: &'static str| {
        let op = node.attrs.text(name).filter(|op| !op.is_empty());
        let found = activation_of(op);
        found.ok_or_else(|| bad_attr(node, name, "Relu, Relu6, a linear unit or nothing"))
    };
    Ok(Box::new(Bottleneck {
        windows: UndilatedWindows::of_depthwise(node)?,
        activations: [
            activation(POINTWISE_ACTIVATION)?,
            activation(DEPTHWISE_ACTIVATION)?,
        ],
    }))
}

impl Bottleneck {
    fn compute_with(&self, context: &KernelContext<'_>, panels: &[f32]) -> Result<(), KernelError> {
        let (image, filter) = (context.input(0)?, context.input(1)?);
        let (&[batch, rows, columns, channels], &[1, 1, filter_channels, outputs]) =
            (image.shape().dims(), filter.shape().dims())
        else {
            return Err(mismatch(image.shape(), filter.shape()));
        };
        if channels != filter_channels {
            return Err(mismatch(image.shape(), filter.shape()));
        }
        let between = Shape::from([batch, rows, columns, outputs]);
        let (bias, last_filter, last_bias) =
            (context.input(2)?, context.input(3)?, context.input(4)?);
        let (plan, shape) = depthwise_plan(self.windows, &between, last_filter.shape())?;
        check_bias(bias.shape(), &between)?;
        check_bias(last_bias.shape(), &shape)?;
        let epilogue = |bias, activation| Epilogue {
            bias,
            addend: None,
            activation,
        };
        let [(first_activation, first_unit), (last_activation, last_unit)] = self.activations;
        let pointwise = Pointwise {
            images: image.as_slice()?,
            channels,
            filter: panels,
            epilogue: epilogue(bias.as_slice()?, first_activation),
            unit: first_unit,
        };
        let last = (epilogue(last_bias.as_slice()?, last_activation), last_unit);
        let weights = last_filter.as_slice()?;
        context.fill_output(0, &shape, |out| {
            plan.apply_after(&pointwise, weights, last, out, Threads::of(context))
        })
    }
}

fn mismatch(image: &Shape, filter: &Shape) -> KernelError {
    KernelError::invalid(format!(
        "a pointwise convolution needs a filter with the depth of the image: input {image}, \
         filter {filter}"
    ))
}

/// Returns a filter of one element per window as a matrix.
fn matrix(filter: &Tensor) -> Result<MatrixView<'_, f32>, KernelError> {
    match *filter.shape().dims() {
        [1, 1, rows, columns] => MatrixView::row_major(filter.as_slice()?, rows, columns),
        _ => Err(mismatch(&Shape::scalar(), filter.shape())),
    }
}

impl Kernel for Bottleneck {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        if let Some(panels) = context.prepacked_input(1) {
            return self.compute_with(context, panels.as_slice()?);
        }
        let matrix = matrix(context.input(1)?)?;
        let len = matmul::prepacked_len(matrix.rows(), matrix.columns());
        let mut panels = Threads::of(context).scratch(len.unwrap_or(usize::MAX))?;
        matmul::prepack(matrix, &mut panels);
        self.compute_with(context, &panels)
    }

    fn prepack_input(
        &self,
        index: usize,
        constant: &Tensor,
        device: &dyn KernelDevice,
    ) -> Result<Option<Tensor>, KernelError> {
        if index != 1 {
            return Ok(None);
        }
        math::prepacked(matrix(constant)?, device).map(Some)
    }

    fn prepacked_form(&self, index: usize) -> Option<&'static str> {
        (index == 1).then_some(math::PANELS)
    }

    fn replaces_prepacked_input(&self, index: usize) -> bool {
        index == 1
    }
}
