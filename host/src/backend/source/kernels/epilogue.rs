//! The epilogue of a matmul, applied before its sums are stored: a bias per column, and an
//! activation.

use super::tiles::Tiling;
use super::unary;
use crate::backend::fuse::bad_fused_ops;
use crate::backend::fuse::check_bias;
use crate::backend::fuse::fused_ops;
use crate::backend::source::call::Call;
use crate::backend::source::call::LazyFunction;
use crate::backend::source::call::index;
use crate::backend::source::fusion::with_functions_of_lanes;
use crate::device::Activation;
use crate::device::KernelArg;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::device::ProgramSource;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Types whose sums are `float`. As in TensorFlow's fused nodes on GPUs, f16 and bf16 are rounded
/// once, after the activation, and not between the nodes.
pub(in crate::backend::source) const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// The function of `lanes.h` for no activation.
const SAME: &str = "same";

/// The activation that routines support.
const RELU: &str = "relu";

/// Returns whether nodes of an op can follow a bias.
pub(in crate::backend::source) fn is_activation(op: &str) -> bool {
    unary::function_of_lanes(op).is_some()
}

/// The epilogue of a fused node. The bias is the input after the two operands.
pub(super) struct Epilogue {
    dtype: DType,
    function: &'static str,
    /// Used for matmuls with an inner dimension of 0.
    alone: LazyFunction,
    /// Used for stored sums that include their biases.
    behind: LazyFunction,
    /// Elements per work item of `behind`.
    width: usize,
}

impl Epilogue {
    /// Creates the epilogue from a node's attributes.
    pub(super) fn new(
        node: &KernelConstruction<'_>,
        dtype: DType,
        tiling: Tiling,
    ) -> Result<Self, KernelError> {
        let follow = fused_ops(node, is_activation)?;
        if follow.has_addend {
            return Err(bad_fused_ops(node));
        }
        let function = follow.activation.and_then(unary::function_of_lanes);
        let function = function.unwrap_or(SAME);
        let alone = tiling.source("tile.h", include_str!("../tile.h"), 1, 1)?;
        let source = with_activation(alone, function);
        Ok(Self {
            dtype,
            function,
            alone: LazyFunction::new(source.clone(), "biases"),
            behind: LazyFunction::new(source, "activations"),
            width: tiling.columns(1),
        })
    }

    /// Adds the epilogue to a program that starts with `tile.h`.
    pub(super) fn source(&self, source: ProgramSource) -> ProgramSource {
        with_activation(source, self.function)
    }

    /// Returns the bias for a result of this shape.
    pub(super) fn bias<'a>(
        &self,
        call: &'a Call<'_, '_>,
        shape: &Shape,
    ) -> Result<&'a Tensor, KernelError> {
        let bias = call.typed(2, self.dtype)?;
        check_bias(bias.shape(), shape)?;
        Ok(bias)
    }

    /// Returns the activation that routines apply; [`Self::finish`] does the rest.
    pub(super) fn of_routines(&self) -> Activation {
        if self.function == RELU {
            Activation::Relu
        } else {
            Activation::None
        }
    }

    /// Applies an activation that routines do not support.
    pub(super) fn finish(&self, call: &Call<'_, '_>, out: &Tensor) -> Result<(), KernelError> {
        if self.function == SAME || self.of_routines() != Activation::None {
            return Ok(());
        }
        let n = out.shape().n_elements();
        let args = [KernelArg::Write(out), KernelArg::U32(index(n)?)];
        call.launch_items(self.behind.on(call.device)?, n.div_ceil(self.width), &args)
    }

    /// Fills `out`, which is not empty, with the epilogue of zero sums.
    pub(super) fn fill(
        &self,
        call: &Call<'_, '_>,
        bias: &Tensor,
        out: &Tensor,
    ) -> Result<(), KernelError> {
        let n = out.shape().n_elements();
        let args = [
            KernelArg::Read(bias),
            KernelArg::Write(out),
            KernelArg::U32(index(n)?),
            KernelArg::U32(index(bias.shape().n_elements())?),
        ];
        call.launch_items(self.alone.on(call.device)?, n, &args)
    }
}

fn with_activation(source: ProgramSource, function: &'static str) -> ProgramSource {
    with_functions_of_lanes(source).with("ACTIVATION", function)
}
