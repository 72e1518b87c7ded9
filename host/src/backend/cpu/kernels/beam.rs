//! Beam search over the classes of steps.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::recurrent::sequence_length;
use crate::backend::cpu::kernels::string_pieces::set_indices;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::kernels::beam::Beam;
use crate::kernels::scratch;
use crate::tensor::DType;
use crate::tensor::Shape;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("CTCBeamSearchDecoder")
            .with_types("T", &[DType::F32, DType::F64])
            .with_factory(decode),
    );
}

/// Options of a search.
#[derive(Debug, Clone, Copy)]
struct Search {
    width: usize,
    n_paths: usize,
    merges: bool,
}

/// TensorFlow `CTCBeamSearchDecoder`.
fn decode(node: &KernelConstruction<'_>) -> Made {
    let positive = |name: &str| {
        let value = int_attr(node, name, None)?;
        let positive = usize::try_from(value).ok().filter(|&value| value > 0);
        positive
            .ok_or_else(|| KernelError::invalid(format!("{name} must be positive, not {value}")))
    };
    let search = Search {
        width: positive("beam_width")?,
        n_paths: positive("top_paths")?,
        merges: bool_attr(node, "merge_repeated", true)?,
    };
    dispatch!(type_attr(node, "T")?, [F32: f32, F64: f64], T => kernel(move |context| {
        search.compute::<T>(context)
    }))
}

impl Search {
    fn compute<T: Number>(self, context: &KernelContext<'_>) -> Result<(), KernelError> {
        let (inputs, lengths) = (context.input(0)?, context.input(1)?);
        let &[n_steps, batch, n_classes] = inputs.shape().dims() else {
            return Err(KernelError::invalid(format!(
                "inputs is not a 3-Tensor: {}",
                inputs.shape()
            )));
        };
        if lengths.shape().dims() != [batch] || inputs.shape().n_elements() == 0 {
            return Err(KernelError::invalid(format!(
                "sequence_length must have shape [{batch}], not {}, and inputs must not be empty",
                lengths.shape()
            )));
        }
        let lengths = lengths.as_slice::<i32>()?;
        let x = inputs.as_slice::<T>()?;
        let threads = Threads::of(context);
        let mut scores = threads.scratch::<f64>(batch.saturating_mul(self.n_paths))?;
        // Per path the rows and the classes of all sequences, in order.
        let mut found = scratch::list(self.n_paths)?;
        found.extend((0..self.n_paths).map(|_| (Vec::new(), Vec::new(), 0)));
        for (row, &length) in lengths.iter().enumerate() {
            let length = sequence_length(row, length, n_steps)?;
            let mut beam = Beam::new(self.width, n_classes)?;
            for step in 0..length {
                if threads.is_interrupted() {
                    break;
                }
                let logits = &x[(step * batch + row) * n_classes..][..n_classes];
                beam.step(|class| logits[class].to_f64())?;
            }
            for (path, (rows, classes, longest)) in found.iter_mut().enumerate() {
                let Some((score, own)) = beam.path(path, self.merges) else {
                    return Err(KernelError::invalid(format!(
                        "Less leaves in the beam search than requested: {} paths of sequence {row}",
                        self.n_paths
                    )));
                };
                scores[row * self.n_paths + path] = score;
                let before = classes.len();
                classes.extend(own.map(long));
                let n = classes.len() - before;
                classes[before..].reverse();
                rows.extend((0..n).flat_map(|at| [long(row), long(at)]));
                *longest = n.max(*longest);
            }
        }
        for (path, (rows, classes, longest)) in found.iter().enumerate() {
            let n = classes.len();
            set_indices(context, path, &Shape::new(&[n, 2]), rows, true)?;
            set_indices(
                context,
                self.n_paths + path,
                &Shape::new(&[n]),
                classes,
                true,
            )?;
            let dims = [long(batch), long(*longest)];
            set_indices(
                context,
                2 * self.n_paths + path,
                &Shape::new(&[2]),
                &dims,
                true,
            )?;
        }
        let shape = Shape::new(&[batch, self.n_paths]);
        context.fill_output(3 * self.n_paths, &shape, |out: &mut [T]| {
            for (slot, &score) in out.iter_mut().zip(scores.iter()) {
                *slot = T::from_f64(score);
            }
            Ok(())
        })
    }
}

fn long(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
