//! Fills of tensors, and strided copies, as steps of other kernels.

use crate::backend::source::call::Axes;
use crate::backend::source::call::Call;
use crate::backend::source::call::LazyFunction;
use crate::backend::source::call::group;
use crate::backend::source::call::index;
use crate::backend::source::call::type_name;
use crate::device::KernelArg;
use crate::device::KernelError;
use crate::device::Launch;
use crate::device::ProgramDevice;
use crate::device::ProgramSource;
use crate::device::RoutineSite;
use crate::tensor::DType;
use crate::tensor::Tensor;

const SOURCE: &str = include_str!("../strided.c");

/// The functions for one element type.
pub(super) struct Strided {
    copy: LazyFunction,
    fill: LazyFunction,
}

impl Strided {
    pub(super) fn new(dtype: DType) -> Result<Self, KernelError> {
        let source = ProgramSource::of_source("strided.c", SOURCE).with("TYPE", type_name(dtype)?);
        Ok(Self {
            copy: LazyFunction::new(source.clone(), "copy"),
            fill: LazyFunction::new(source, "fill"),
        })
    }

    /// Copies `out[axes, 1] = input[axes, 0]` for `n` positions.
    pub(super) fn copy(
        &self,
        call: &Call<'_, '_>,
        input: &Tensor,
        out: &Tensor,
        n: usize,
        axes: &Axes,
    ) -> Result<(), KernelError> {
        self.copy_on(call.device, call.routine_site(), input, out, n, axes)
    }

    /// The same outside of an execution.
    pub(super) fn copy_on(
        &self,
        device: &dyn ProgramDevice,
        origin: RoutineSite<'_>,
        input: &Tensor,
        out: &Tensor,
        n: usize,
        axes: &Axes,
    ) -> Result<(), KernelError> {
        let group = group(device.compute_traits());
        device.launch(Launch {
            site: origin.site,
            step: origin.step,
            context: origin.context,
            function: self.copy.on(device)?,
            groups: [n.div_ceil(group), 1, 1],
            group_size: [group, 1, 1],
            args: &[
                KernelArg::Read(input),
                KernelArg::Write(out),
                KernelArg::U32(index(n)?),
                axes.arg(),
            ],
        })
    }

    /// Sets every element.
    pub(super) fn fill(
        &self,
        call: &Call<'_, '_>,
        out: &Tensor,
        value: f32,
    ) -> Result<(), KernelError> {
        let n = out.shape().n_elements();
        if n == 0 {
            return Ok(());
        }
        let args = [
            KernelArg::Write(out),
            KernelArg::U32(index(n)?),
            KernelArg::F32(value),
        ];
        call.launch_items(self.fill.on(call.device)?, n, &args)
    }
}
