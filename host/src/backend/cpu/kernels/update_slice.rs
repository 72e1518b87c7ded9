//! Slices of a tensor that are replaced.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::indices;
use crate::backend::types::INDICES;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::slice::update_slice;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("XlaDynamicUpdateSlice")
            .with_types("T", &MOVED)
            .with_types("Tindices", &INDICES)
            .with_host_memory("indices")
            .with_factory(
                |node| dispatch_raw!(type_attr(node, "T")?, W => kernel(dynamic_update_slice::<W>)),
            ),
    );
}

/// TensorFlow `XlaDynamicUpdateSlice`. An update that reaches beyond the end starts earlier.
fn dynamic_update_slice<W: RawElements>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let (input, update, starts) = (context.input(0)?, context.input(1)?, context.input(2)?);
    let (dims, parts) = (input.shape().dims(), update.shape().dims());
    let fits = dims.iter().zip(parts).all(|(dim, part)| part <= dim);
    if !fits || dims.len() != parts.len() {
        return Err(KernelError::invalid(format!(
            "update of shape {} must fit into input of shape {}",
            update.shape(),
            input.shape()
        )));
    }
    let wanted = indices(starts)?;
    if starts.shape().dims() != [dims.len()] {
        return Err(KernelError::invalid(format!(
            "indices must be a vector with an element per dimension of the input, {}, not of shape {}",
            dims.len(),
            starts.shape()
        )));
    }
    let starts = wanted.iter().zip(dims.iter().zip(parts));
    let starts = starts.map(|(&start, (dim, part))| {
        // A negative start is 0.
        usize::try_from(start.max(0)).map_or(dim - part, |start| start.min(dim - part))
    });
    let starts: smallvec::SmallVec<[usize; 8]> = starts.collect();
    let (elements, updates) = (W::read(input)?, W::read(update)?);
    let shape = input.shape().clone();
    W::write(context, 0, input.dtype(), shape, |out| {
        out.copy_from_slice(&elements);
        update_slice(&updates, parts, &starts, dims, out);
        Ok(())
    })
}
