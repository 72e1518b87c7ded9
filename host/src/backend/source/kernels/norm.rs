//! Normalisation over batches and over neighbouring channels.

use crate::backend::plan::attr::type_attr;
use crate::backend::plan::norm;
use crate::backend::plan::norm::BatchNorm;
use crate::backend::source::call::Call;
use crate::backend::source::call::LazyFunction;
use crate::backend::source::call::Made;
use crate::backend::source::call::index;
use crate::backend::source::call::kernel;
use crate::backend::source::kernels::Table;
use crate::backend::source::kernels::bias;
use crate::backend::source::kernels::strided::Strided;
use crate::device::KernelArg;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::kernels::norm::Channels;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

pub(super) fn register(table: &mut Table<'_>) {
    let def = table.def("FusedBatchNorm").with_types("T", &[DType::F32]);
    table.add(def.with_factory(batch_norm));
    for op in ["FusedBatchNormV2", "FusedBatchNormV3"] {
        let types = [DType::F32, DType::F16, DType::BF16];
        let def = table.def(op).with_types("T", &types);
        let def = def.with_types("U", &[DType::F32]);
        table.add(def.with_factory(batch_norm));
    }
    let def = table.def("LRN").with_types("T", &[DType::F32, DType::F16]);
    table.add(def.with_factory(local_response));
}

/// TensorFlow `LRN`.
fn local_response(node: &KernelConstruction<'_>) -> Made {
    let plan = norm::lrn_attrs(node)?;
    let dtype = type_attr(node, "T")?;
    let (source, _) = bias::source(node, dtype)?;
    let function = LazyFunction::new(source, "local_response");
    kernel(node, move |call: &Call<'_, '_>| {
        let input = call.input(0)?;
        let channels = norm::lrn_channels(input.shape())?;
        let out = call.output(dtype, input.shape())?;
        let n = input.shape().n_elements();
        if n > 0 {
            let args = [
                KernelArg::Read(input),
                KernelArg::Write(&out),
                KernelArg::U32(index(n)?),
                KernelArg::U32(index(channels)?),
                KernelArg::U32(index(plan.radius.min(channels))?),
                KernelArg::F32(plan.bias),
                KernelArg::F32(plan.alpha),
                KernelArg::F32(plan.beta),
            ];
            call.launch_items(function.on(call.device)?, n, &args)?;
        }
        call.set_output(0, out)
    })
}

/// TensorFlow `FusedBatchNorm`, `FusedBatchNormV2` and `FusedBatchNormV3`.
fn batch_norm(node: &KernelConstruction<'_>) -> Made {
    let (source, width) = bias::source(node, type_attr(node, "T")?)?;
    let kernels = BatchNormKernel {
        plan: BatchNorm::new(node)?,
        width,
        moments: LazyFunction::new(source.clone(), "moments"),
        running: LazyFunction::new(source.clone(), "running"),
        last: LazyFunction::new(source.clone(), "normalise_last"),
        first: LazyFunction::new(source, "normalise_first"),
        strided: Strided::new(DType::F32)?,
    };
    kernel(node, move |call: &Call<'_, '_>| kernels.compute(call))
}

struct BatchNormKernel {
    plan: BatchNorm,
    width: usize,
    moments: LazyFunction,
    running: LazyFunction,
    last: LazyFunction,
    first: LazyFunction,
    strided: Strided,
}

/// `Normalisation` of channels.c.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct NormalisationArgs {
    channels: u32,
    epsilon: f32,
    weight: f32,
    correction: f32,
    has_old: u32,
}

impl BatchNormKernel {
    fn compute(&self, call: &Call<'_, '_>) -> Result<(), KernelError> {
        let input = call.input(0)?;
        let shape = input.shape();
        let channels = self.plan.channels(shape)?;
        let given = |index: usize, name: &str| {
            let tensor = call.input(index)?;
            self.plan
                .check_given(name, tensor.shape(), channels, shape)?;
            Ok::<_, KernelError>(tensor)
        };
        let (scale, offset) = (given(1, "scale")?, given(2, "offset")?);
        let old = [given(3, "mean")?, given(4, "variance")?];
        let of_channels = || call.output(DType::F32, &Shape::from([channels.channels]));
        let numbers = [
            of_channels()?,
            of_channels()?,
            of_channels()?,
            of_channels()?,
        ];
        let out = call.output(input.dtype(), shape)?;
        if shape.n_elements() == 0 {
            for tensor in &numbers {
                self.strided.fill(call, tensor, f32::NAN)?;
            }
        } else {
            let factor = of_channels()?;
            let new = match self.plan.training {
                None => [old[0].clone(), old[1].clone()],
                Some(_) => self.moments(call, input, channels)?,
            };
            self.running(call, [scale, &new[0], &new[1]], old, &factor, &numbers)?;
            self.normalise(call, [input, &new[0], &factor, offset], &out, channels)?;
        }
        call.set_output(0, out)?;
        for (tensor, slot) in numbers.into_iter().zip(1..) {
            call.set_output(slot, tensor)?;
        }
        if self.plan.has_third_space {
            // Only GPU libraries store anything in this output.
            let space = call.output(DType::F32, &Shape::scalar())?;
            self.strided.fill(call, &space, 0.0)?;
            call.set_output(5, space)?;
        }
        Ok(())
    }

    /// Computes mean and variance of the batch.
    fn moments(
        &self,
        call: &Call<'_, '_>,
        input: &Tensor,
        channels: Channels,
    ) -> Result<[Tensor; 2], KernelError> {
        let n = channels.channels;
        let mean = call.output(DType::F32, &Shape::from([n]))?;
        let variance = call.output(DType::F32, &Shape::from([n]))?;
        index(input.shape().n_elements())?;
        let args = [
            KernelArg::Read(input),
            KernelArg::Write(&mean),
            KernelArg::Write(&variance),
            KernelArg::U32(index(channels.outer)?),
            KernelArg::U32(index(n)?),
            KernelArg::U32(index(channels.inner)?),
        ];
        call.launch_items(self.moments.on(call.device)?, n, &args)?;
        Ok([mean, variance])
    }

    /// Computes the factor of each channel, and outputs 1 to 4.
    fn running(
        &self,
        call: &Call<'_, '_>,
        [scale, mean, variance]: [&Tensor; 3],
        old: [&Tensor; 2],
        factor: &Tensor,
        outputs: &[Tensor; 4],
    ) -> Result<(), KernelError> {
        let n = mean.shape().n_elements();
        let per_channel = call.input(0)?.shape().n_elements() / n;
        let has_old = self.plan.training.is_some() && self.plan.reads_old();
        #[expect(clippy::cast_precision_loss, reason = "a number of elements")]
        let n_values = per_channel as f32;
        let numbers = NormalisationArgs {
            channels: index(n)?,
            epsilon: self.plan.epsilon,
            weight: self.plan.training.map_or(1.0, |training| training.factor),
            // Bessel's correction applies to the running variance only.
            correction: match self.plan.training {
                None => 1.0,
                Some(_) => n_values / (n_values - 1.0).max(1.0),
            },
            has_old: u32::from(has_old),
        };
        // Tensors that are not read may have another length, or be missing.
        let old = if has_old { old } else { [mean, variance] };
        let mut args = vec![
            KernelArg::Read(scale),
            KernelArg::Read(mean),
            KernelArg::Read(variance),
            KernelArg::Read(old[0]),
            KernelArg::Read(old[1]),
            KernelArg::Write(factor),
        ];
        args.extend(outputs.iter().map(KernelArg::Write));
        args.push(KernelArg::Bytes(bytemuck::bytes_of(&numbers)));
        call.launch_items(self.running.on(call.device)?, n, &args)
    }

    fn normalise(
        &self,
        call: &Call<'_, '_>,
        inputs: [&Tensor; 4],
        out: &Tensor,
        channels: Channels,
    ) -> Result<(), KernelError> {
        let n = out.shape().n_elements();
        index(n)?;
        let is_last = channels.inner == 1;
        let row = if is_last {
            channels.channels
        } else {
            channels.inner
        };
        let n_items = n / row * row.div_ceil(self.width);
        let mut args: Vec<KernelArg<'_>> = inputs.iter().map(|x| KernelArg::Read(x)).collect();
        args.push(KernelArg::Write(out));
        args.push(KernelArg::U32(index(n_items)?));
        args.push(KernelArg::U32(index(row)?));
        if is_last {
            return call.launch_items(self.last.on(call.device)?, n_items, &args);
        }
        args.push(KernelArg::U32(index(channels.channels)?));
        call.launch_items(self.first.on(call.device)?, n_items, &args)
    }
}
