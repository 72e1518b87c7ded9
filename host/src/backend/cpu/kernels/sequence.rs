//! Elements in another order or of another type, and evenly spaced numbers.

use smallvec::SmallVec;

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::integers;
use crate::backend::plan::value::scalar;
use crate::backend::types::INDICES;
use crate::backend::types::unsupported;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Real;
use crate::kernels::slice::axis_index;
use crate::kernels::strided::row_major_strides;
use crate::tensor::DType;
use crate::tensor::Shape;

/// Types that TensorFlow decodes.
const DECODED: [DType; 13] = [
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::Bool,
    DType::Complex64,
    DType::Complex128,
];

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("Reverse")
            .with_types("T", &MOVED)
            .with_host_memory("dims")
            .with_factory(|node| dispatch_raw!(type_attr(node, "T")?, W => kernel(reverse::<W>))),
    );
    registry.register(
        def("ReverseSequence")
            .with_types("T", &MOVED)
            .with_types("Tlen", &INDICES)
            .with_factory(reverse_sequence),
    );
    registry.register(
        def("Roll")
            .with_types("T", &MOVED)
            .with_types("Tshift", &INDICES)
            .with_types("Taxis", &INDICES)
            .with_factory(|node| dispatch_raw!(type_attr(node, "T")?, W => kernel(roll::<W>))),
    );
    registry.register(
        def("LinSpace")
            .with_types("T", &[DType::F32, DType::F64])
            .with_types("Tidx", &INDICES)
            .with_host_memory("start")
            .with_host_memory("stop")
            .with_host_memory("num")
            .with_host_memory("output")
            .with_factory(|node| {
                dispatch!(type_attr(node, "T")?, [F32: f32, F64: f64], T => {
                    kernel(linear_space::<T>)
                })
            }),
    );
    registry.register(def("Bitcast").with_factory(bitcast));
    registry.register(
        def("DecodeRaw")
            .with_types("out_type", &DECODED)
            .with_factory(decode_raw),
    );
}

/// Copies each element of input 0 to the position that `place` gives for its coordinates.
fn moved<W: RawElements>(
    context: &KernelContext<'_>,
    place: impl Fn(&mut [usize]),
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let dims = input.shape().dims();
    let strides = row_major_strides(dims);
    let x = W::read(input)?;
    W::write(context, 0, input.dtype(), input.shape().clone(), |out| {
        let mut index: SmallVec<[usize; 8]> = SmallVec::from_elem(0, dims.len());
        for (position, &x) in x.iter().enumerate() {
            let mut rest = position;
            for (slot, stride) in index.iter_mut().zip(&strides) {
                *slot = rest / stride.unsigned_abs();
                rest %= stride.unsigned_abs();
            }
            place(&mut index);
            let pairs = index.iter().zip(&strides);
            let target: usize = pairs.map(|(i, stride)| i * stride.unsigned_abs()).sum();
            out[target] = x;
        }
        Ok(())
    })
}

/// TensorFlow `Reverse`, whose axes are booleans.
fn reverse<W: RawElements>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let (input, axes) = (context.input(0)?, context.input(1)?);
    let dims = input.shape().dims();
    if axes.shape().dims() != [dims.len()] || dims.len() > 8 {
        return Err(KernelError::invalid(format!(
            "'dims' must have as many values as 'input' has dimensions, at most 8; found {} for \
             {}",
            axes.shape(),
            input.shape()
        )));
    }
    let is_reversed = axes.as_bools()?;
    moved::<W>(context, |index| {
        for (slot, (&dim, &is_reversed)) in index.iter_mut().zip(dims.iter().zip(is_reversed)) {
            if is_reversed != 0 {
                *slot = dim - 1 - *slot;
            }
        }
    })
}

/// TensorFlow `ReverseSequence`: the first elements of each sequence.
fn reverse_sequence(node: &KernelConstruction<'_>) -> Made {
    let (sequence, batch) = (
        int_attr(node, "seq_dim", None)?,
        int_attr(node, "batch_dim", Some(0))?,
    );
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let (input, lengths) = (context.input(0)?, context.input(1)?);
        let dims = input.shape().dims();
        let axis = |given: i64, what: &str| {
            usize::try_from(given).ok().filter(|&axis| axis < dims.len()).ok_or_else(|| {
                KernelError::invalid(format!(
                    "{what} must be in the range [0, {}), not {given}",
                    dims.len()
                ))
            })
        };
        let (sequence, batch) = (axis(sequence, "seq_dim")?, axis(batch, "batch_dim")?);
        if sequence == batch {
            return Err(KernelError::invalid(format!("batch_dim == seq_dim == {sequence}")));
        }
        if lengths.shape().dims() != [dims[batch]] {
            return Err(KernelError::invalid(format!(
                "length of seq_lens should be {}, got shape {}",
                dims[batch],
                lengths.shape()
            )));
        }
        let lengths = integers(lengths)?;
        for &length in &lengths {
            if usize::try_from(length).ok().is_none_or(|length| length > dims[sequence]) {
                return Err(KernelError::invalid(format!(
                    "seq_lens must be from 0 to {}, found {length}",
                    dims[sequence]
                )));
            }
        }
        moved::<W>(context, |index| {
            let length = usize::try_from(lengths[index[batch]]).unwrap_or(0);
            if index[sequence] < length {
                index[sequence] = length - 1 - index[sequence];
            }
        })
    }))
}

/// TensorFlow `Roll`: shifts along axes; elements that leave at one end return at the other.
fn roll<W: RawElements>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let (input, shifts, axes) = (context.input(0)?, context.input(1)?, context.input(2)?);
    let dims = input.shape().dims();
    if dims.is_empty() {
        return Err(KernelError::invalid("input must be 1-D or higher"));
    }
    if shifts.shape() != axes.shape() || shifts.shape().rank() > 1 {
        return Err(KernelError::invalid(format!(
            "shift and axis must be scalars or vectors of the same size, not {} and {}",
            shifts.shape(),
            axes.shape()
        )));
    }
    let mut by: SmallVec<[usize; 8]> = SmallVec::from_elem(0, dims.len());
    for (&shift, &axis) in integers(shifts)?.iter().zip(&integers(axes)?) {
        let axis = axis_index(axis, dims.len()).ok_or_else(|| {
            KernelError::invalid(format!(
                "axis {axis} is out of range for shape {}",
                input.shape()
            ))
        })?;
        let dim = i64::try_from(dims[axis]).unwrap_or(i64::MAX).max(1);
        let total = i64::try_from(by[axis]).unwrap_or(0) + shift.rem_euclid(dim);
        by[axis] = usize::try_from(total % dim).unwrap_or(0);
    }
    moved::<W>(context, |index| {
        for (slot, (&dim, &by)) in index.iter_mut().zip(dims.iter().zip(&by)) {
            *slot = (*slot + by) % dim;
        }
    })
}

/// TensorFlow `LinSpace`.
fn linear_space<T: Real>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let end = |index: usize, what: &str| {
        let tensor = context.input(index)?;
        match (tensor.shape().rank(), tensor.as_slice::<T>()?) {
            (0, &[value]) => Ok(value),
            _ => Err(KernelError::invalid(format!(
                "{what} must be a scalar, not {}",
                tensor.shape()
            ))),
        }
    };
    let (start, stop) = (end(0, "start")?, end(1, "stop")?);
    let given = scalar(context.input(2)?, "num")?;
    let n = usize::try_from(given).ok().filter(|&n| n > 0);
    let n = n.ok_or_else(|| KernelError::invalid(format!("requires num > 0: {given}")))?;
    output(context, Shape::from([n]), |out: &mut [T]| {
        let step = stop.minus(start).over(T::from_i64((given - 1).max(1)));
        for (index, slot) in (0..).zip(out.iter_mut()) {
            *slot = start.plus(step.times(T::from_i64(index)));
        }
        if n > 1 {
            out[n - 1] = stop;
        }
        Ok(())
    })
}

/// TensorFlow `Bitcast`: the same bytes as elements of another type.
fn bitcast(node: &KernelConstruction<'_>) -> Made {
    let (from, to) = (type_attr(node, "T")?, type_attr(node, "type")?);
    let size = |dtype: DType| dtype.size_bytes().ok_or_else(|| unsupported(dtype));
    let (old, new) = (size(from)?, size(to)?);
    kernel(move |context| {
        let input = context.input(0)?;
        let dims = input.shape().dims();
        let shape: Shape = if old >= new {
            let split = (old > new).then_some(old / new);
            dims.iter().copied().chain(split).collect()
        } else {
            match dims.split_last() {
                Some((&last, rest)) if last == new / old => Shape::new(rest),
                _ => {
                    return Err(KernelError::invalid(format!(
                        "cannot bitcast from {from} to {to}: the last dimension of shape {} is \
                         not {}",
                        input.shape(),
                        new / old
                    )));
                }
            }
        };
        let bytes = input.as_bytes()?;
        context.fill_output_bytes(0, to, &shape, |out| {
            out.copy_from_slice(bytes);
            Ok(())
        })
    })
}

/// TensorFlow `DecodeRaw`: the bytes of strings, which are of one length, as elements.
fn decode_raw(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "out_type")?;
    let is_little = bool_attr(node, "little_endian", true)?;
    let size = dtype.size_bytes().ok_or_else(|| unsupported(dtype))?;
    // The two parts of a complex number are numbers of their own.
    let part = match dtype {
        DType::Complex64 | DType::Complex128 => size / 2,
        _ => size,
    };
    kernel(move |context| {
        let input = context.input(0)?;
        let strings = input.as_strings()?;
        let length = strings.first().map_or(0, |string| string.len());
        if let Some(other) = strings.iter().find(|string| string.len() != length) {
            return Err(KernelError::invalid(format!(
                "DecodeRaw requires input strings to all be the same size, but found {length} and \
                 {}",
                other.len()
            )));
        }
        if !length.is_multiple_of(size) {
            return Err(KernelError::invalid(format!(
                "input to DecodeRaw has length {length} that is not a multiple of {size}, the size \
                 of {dtype}"
            )));
        }
        let dims = input.shape().dims().iter().copied();
        let shape: Shape = dims.chain([length / size]).collect();
        context.fill_output_bytes(0, dtype, &shape, |out| {
            for (out, string) in out.chunks_exact_mut(length.max(1)).zip(strings) {
                out.copy_from_slice(string);
                if !is_little {
                    out.chunks_exact_mut(part).for_each(<[u8]>::reverse);
                }
                if dtype == DType::Bool {
                    out.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
                }
            }
            Ok(())
        })
    })
}
