//! Generators whose state is a variable (TensorFlow `tf.random.Generator`).

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::random::fill_shape;
use crate::backend::cpu::kernels::random::int_range;
use crate::backend::cpu::kernels::random::scalar;
use crate::backend::cpu::kernels::random::sizes;
use crate::backend::cpu::kernels::random::unsupported_algorithm;
use crate::backend::cpu::kernels::variable::own;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::variable::no_value;
use crate::backend::host_kernels::variable::variable;
use crate::backend::plan::attr::type_attr;
use crate::backend::types::INDICES;
use crate::backend::types::REALS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::philox::BLOCKS_PER_ELEMENT;
use crate::kernels::philox::FullInt;
use crate::kernels::philox::Normal;
use crate::kernels::philox::Philox;
use crate::kernels::philox::TruncatedNormal;
use crate::kernels::philox::Uniform;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::TensorError;

/// Elements of the state: the counter's two halves and the key.
const STATE_LEN: usize = 3;

pub(super) fn register(registry: &mut KernelRegistry) {
    type Factory = fn(&KernelConstruction<'_>) -> Made;
    let ops: [(&str, &[DType], Factory); 5] = [
        ("StatefulUniform", &REALS, uniform),
        ("StatefulStandardNormalV2", &REALS, normal),
        ("StatefulTruncatedNormal", &REALS, truncated_normal),
        ("StatefulUniformInt", &INDICES, uniform_int),
        (
            "StatefulUniformFullInt",
            &[DType::I32, DType::I64, DType::U32, DType::U64],
            full_int,
        ),
    ];
    for (op, types, factory) in ops {
        registry.register(def(op).with_types("dtype", types).with_factory(factory));
    }
    registry.register(def("RngSkip").with_factory(|_| {
        kernel(|context| {
            let algorithm = scalar::<i64>(context, 1)?;
            let delta = scalar::<i64>(context, 2)?.cast_unsigned();
            advance(context, algorithm, delta).map(drop)
        })
    }));
    registry.register(def("RngReadAndSkip").with_factory(|_| {
        kernel(|context| {
            let algorithm = scalar::<i32>(context, 1)?;
            let delta = scalar::<u64>(context, 2)?;
            let (key, counter) = advance(context, algorithm.into(), delta)?.state();
            context.fill_output(0, &Shape::from([STATE_LEN]), |out: &mut [i64]| {
                out.copy_from_slice(&[counter[0], counter[1], key].map(u64::cast_signed));
                Ok(())
            })
        })
    }));
}

fn uniform(node: &KernelConstruction<'_>) -> Made {
    dispatch_real!(type_attr(node, "dtype")?, T => kernel(|context| {
        let shape = sizes(context, 2)?;
        fill_shape(context, &shape, &Uniform::<T>::default(), || reserve(context, &shape))
    }))
}

fn normal(node: &KernelConstruction<'_>) -> Made {
    dispatch_real!(type_attr(node, "dtype")?, T => kernel(|context| {
        let shape = sizes(context, 2)?;
        fill_shape(context, &shape, &Normal::<T>::default(), || reserve(context, &shape))
    }))
}

fn truncated_normal(node: &KernelConstruction<'_>) -> Made {
    dispatch_real!(type_attr(node, "dtype")?, T => kernel(|context| {
        let shape = sizes(context, 2)?;
        fill_shape(context, &shape, &TruncatedNormal::<T>::default(), || reserve(context, &shape))
    }))
}

fn full_int(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "dtype")?;
    dispatch!(dtype, [I32: i32, I64: i64, U32: u32, U64: u64], T => kernel(|context| {
        let shape = sizes(context, 2)?;
        fill_shape(context, &shape, &FullInt::<T>::default(), || reserve(context, &shape))
    }))
}

fn uniform_int(node: &KernelConstruction<'_>) -> Made {
    dispatch!(type_attr(node, "dtype")?, [I32: i32, I64: i64], T => kernel(|context| {
        let range = int_range::<T>(context, 3)?;
        let shape = sizes(context, 2)?;
        fill_shape(context, &shape, &range, || reserve(context, &shape))
    }))
}

/// Returns the generator for a tensor of this shape, and advances the state.
fn reserve(context: &KernelContext<'_>, shape: &Shape) -> Result<Philox, KernelError> {
    let algorithm = scalar::<i64>(context, 1)?;
    advance(context, algorithm, shape.n_elements() as u64)
}

/// Returns the generator of the variable in input 0, which is then advanced by as many blocks as
/// `n` elements reserve.
fn advance(context: &KernelContext<'_>, algorithm: i64, n: u64) -> Result<Philox, KernelError> {
    let variable = variable(context)?;
    let mut value = variable.lock();
    let held = value.as_mut().ok_or_else(|| no_value(context))?;
    if held.dtype() != DType::I64 {
        return Err(KernelError::invalid(format!(
            "dtype of RNG state variable must be int64, not {}",
            held.dtype()
        )));
    }
    if held.shape().rank() != 1 {
        return Err(KernelError::invalid(format!(
            "RNG state must have one and only one dimension, not {}",
            held.shape().rank()
        )));
    }
    if algorithm != 1 {
        return Err(unsupported_algorithm(algorithm));
    }
    let n_elements = held.shape().n_elements();
    if n_elements < STATE_LEN {
        return Err(KernelError::invalid(format!(
            "For the Philox algorithm, the size of state must be at least {STATE_LEN}; got \
             {n_elements}"
        )));
    }
    own(context, held)?;
    let state = held.as_slice_mut::<i64>().ok_or(TensorError::NotOnHost)?;
    let [low, high, key] = [state[0], state[1], state[2]].map(i64::cast_unsigned);
    let reserved = Philox::from_state(key, [low, high]);
    let mut advanced = reserved;
    advanced.skip(n.wrapping_mul(BLOCKS_PER_ELEMENT));
    let (_, counter) = advanced.state();
    state[..2].copy_from_slice(&counter.map(u64::cast_signed));
    Ok(reserved)
}
