//! The kernel of fused nodes.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use smallvec::SmallVec;

use super::INPUTS_MAX;
use super::OP;
use super::expression::Expression;
use super::program::FUNCTION;
use super::program::Form;
use super::program::program;
use crate::backend::plan::attr::type_attr;
use crate::backend::source::call::Call;
use crate::backend::source::call::Made;
use crate::backend::source::call::index;
use crate::backend::source::call::kernel;
use crate::backend::source::call::program_device;
use crate::backend::source::call::width;
use crate::device::ComputeTraits;
use crate::device::DeviceFunction;
use crate::device::KernelArg;
use crate::device::KernelConstruction;
use crate::device::KernelDef;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::device::ProcessorKind;
use crate::kernels::spread::Spread;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Elements of a row per unit of work, if rows are not reduced.
const RUN_CPU: usize = 1024;

/// The same per work item of a group.
const RUN_PER_ITEM_GPU: usize = 4;

/// Groups per core or multiprocessor: enough for an even load, few enough to have a negligible
/// overhead.
const GROUPS_PER_UNIT: usize = 16;

const GROUP_GPU: usize = 256;

/// Types for which there are fused functions.
pub(super) const TYPES: [DType; 1] = [DType::F32];

pub(in crate::backend::source) fn register(
    registry: &mut KernelRegistry,
    device_type: &'static str,
) {
    let def = KernelDef::new(OP, device_type).with_types("T", &TYPES);
    registry.register(def.with_factory(fused));
}

/// An expression, compiled for a device.
struct Fused {
    expression: Expression,
    dtype: DType,
    /// Lanes of vectors; `group` is the work items of a group.
    width: usize,
    group: usize,
    n_groups_max: usize,
    run: usize,
    /// The work prepared for the last shapes, which the next run most likely has, too.
    last: Mutex<Option<Arc<Prepared>>>,
    forms: Mutex<Vec<(Form, Arc<dyn DeviceFunction>)>>,
}

/// The work prepared for inputs of some shapes.
struct Prepared {
    inputs: SmallVec<[Shape; 8]>,
    output: Shape,
    /// Units of work, the function and its layout; `None` if there is nothing to do.
    work: Option<(usize, Arc<dyn DeviceFunction>, Vec<u8>)>,
}

fn fused(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    let traits = program_device(node.device)?.compute_traits();
    let fused = Fused::new(Expression::of(node)?, dtype, traits);
    kernel(node, move |call: &Call<'_, '_>| fused.run(call))
}

impl Fused {
    fn new(expression: Expression, dtype: DType, traits: &ComputeTraits) -> Self {
        let (width, group) = match traits.kind {
            ProcessorKind::Cpu => (width(traits), 1),
            // Its lanes are work items. Partial sums are combined by halving, so their number is a
            // power of two.
            ProcessorKind::Gpu => (1, 1 << GROUP_GPU.min(traits.group_size_max).max(1).ilog2()),
        };
        let run = match traits.kind {
            ProcessorKind::Cpu => RUN_CPU,
            ProcessorKind::Gpu => group * RUN_PER_ITEM_GPU,
        };
        let n_units = usize::try_from(traits.n_compute_units).unwrap_or(1);
        Self {
            expression,
            dtype,
            width,
            group,
            n_groups_max: n_units.max(1) * GROUPS_PER_UNIT,
            run,
            last: Mutex::default(),
            forms: Mutex::default(),
        }
    }

    fn run(&self, call: &Call<'_, '_>) -> Result<(), KernelError> {
        let inputs = (0..self.expression.n_inputs).map(|i| call.typed(i, self.dtype));
        let inputs: SmallVec<[&Tensor; 8]> = inputs.collect::<Result<_, _>>()?;
        let prepared = self.prepared(call, &inputs)?;
        let out = call.output(self.dtype, &prepared.output)?;
        if let Some((n_units, function, layout)) = &prepared.work {
            let inputs = inputs.iter().map(|input| KernelArg::Read(input));
            let args = inputs.chain([KernelArg::Write(&out), KernelArg::Bytes(layout)]);
            let args: SmallVec<[KernelArg<'_>; 8]> = args.collect();
            call.launch(
                function,
                [(*n_units).min(self.n_groups_max), 1, 1],
                [self.group, 1, 1],
                &args,
            )?;
        }
        call.set_output(0, out)
    }

    fn prepared(
        &self,
        call: &Call<'_, '_>,
        inputs: &[&Tensor],
    ) -> Result<Arc<Prepared>, KernelError> {
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |prepared: &Arc<Prepared>| {
            let mut pairs = prepared.inputs.iter().zip(inputs);
            pairs.all(|(known, input)| known == input.shape())
        };
        let known = last().clone();
        if let Some(prepared) = known.filter(same) {
            return Ok(prepared);
        }
        let prepared = Arc::new(self.prepare(call, inputs)?);
        *last() = Some(Arc::clone(&prepared));
        Ok(prepared)
    }

    fn prepare(&self, call: &Call<'_, '_>, inputs: &[&Tensor]) -> Result<Prepared, KernelError> {
        let shapes: SmallVec<[&Shape; 8]> = inputs.iter().map(|input| input.shape()).collect();
        let output = self.expression.shape(&shapes)?;
        let n = output.n_elements();
        let work = if n == 0 {
            None
        } else {
            index(n)?;
            let rows = Rows::new(&output, &shapes, self.expression.has_rows())?;
            let run = if self.expression.has_rows() {
                rows.width
            } else {
                self.run.min(rows.width)
            };
            let n_runs = rows.width.div_ceil(run);
            let n_units = n / rows.width * n_runs;
            let form = Form {
                n_axes: rows.axes.len().max(1),
                width: self.width,
                group: self.group,
                advances: rows.advances.to_vec(),
            };
            let function = self.function(call, form)?;
            let layout = rows.layout(n_units, n_runs, run)?;
            Some((n_units, function, layout))
        };
        Ok(Prepared {
            inputs: shapes.into_iter().cloned().collect(),
            output,
            work,
        })
    }

    fn function(
        &self,
        call: &Call<'_, '_>,
        form: Form,
    ) -> Result<Arc<dyn DeviceFunction>, KernelError> {
        let mut forms = self.forms.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, function)) = forms.iter().find(|(known, _)| *known == form) {
            return Ok(Arc::clone(function));
        }
        let source = program(&self.expression, self.dtype, &form)?;
        let function = call.device.function(&source, FUNCTION)?;
        forms.push((form, Arc::clone(&function)));
        Ok(function)
    }
}

/// How inputs are broadcast to rows of the output.
struct Rows {
    /// Elements of a row.
    width: usize,
    /// Whether each input has one element per element of a row, or one for the whole row.
    advances: SmallVec<[bool; 8]>,
    /// Axes outside the rows: size, and stride per input.
    axes: SmallVec<[(usize, [usize; INPUTS_MAX]); 4]>,
}

impl Rows {
    /// `is_last_axis` means that rows are the last dimension only; otherwise they are as long as
    /// possible.
    fn new(output: &Shape, inputs: &[&Shape], is_last_axis: bool) -> Result<Self, KernelError> {
        let without_last = |shape: &Shape| match shape.dims() {
            [outer @ .., _] if is_last_axis => Shape::new(outer),
            _ => shape.clone(),
        };
        let scalar = Shape::scalar();
        let outer: SmallVec<[Shape; 8]> = inputs.iter().map(|shape| without_last(shape)).collect();
        let operands: [&Shape; INPUTS_MAX] =
            std::array::from_fn(|input| outer.get(input).unwrap_or(&scalar));
        let spread = Spread::new(&without_last(output), operands)?;
        let mut axes: SmallVec<[(usize, [usize; INPUTS_MAX]); 4]> = spread.axes().collect();
        if !is_last_axis {
            let (width, strides) = axes.pop().unwrap_or((1, [0; INPUTS_MAX]));
            return Ok(Self {
                width,
                advances: strides[..inputs.len()]
                    .iter()
                    .map(|&stride| stride > 0)
                    .collect(),
                axes,
            });
        }
        let last = |shape: &Shape| shape.dims().last().copied().unwrap_or(1);
        for (_, strides) in &mut axes {
            for (stride, shape) in strides.iter_mut().zip(inputs) {
                *stride *= last(shape);
            }
        }
        Ok(Self {
            width: last(output),
            advances: inputs.iter().map(|shape| last(shape) > 1).collect(),
            axes,
        })
    }

    /// Returns the `Layout` of fused.c.
    fn layout(&self, n_units: usize, n_runs: usize, run: usize) -> Result<Vec<u8>, KernelError> {
        let mut layout = vec![n_units, n_runs, run, self.width];
        if self.axes.is_empty() {
            // A single row.
            layout.push(1);
            layout.extend(self.advances.iter().map(|_| 0));
        } else {
            layout.extend(self.axes.iter().map(|(size, _)| size));
            for input in 0..self.advances.len() {
                layout.extend(self.axes.iter().map(|(_, strides)| strides[input]));
            }
        }
        let layout = layout.into_iter().map(index);
        let layout: Vec<u32> = layout.collect::<Result<_, _>>()?;
        Ok(bytemuck::cast_slice(&layout).to_vec())
    }
}
