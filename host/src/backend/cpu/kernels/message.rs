//! Tensors as messages of type `TensorProto`.

use bytes::Bytes;
use prost::Message as _;

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::strings::scalar_string;
use crate::backend::cpu::kernels::strings::set_strings;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::type_attr;
use crate::device::AllocatorAttributes;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::import::proto::Dim;
use crate::import::proto::TensorProto;
use crate::import::proto::TensorShapeProto;
use crate::kernels::scratch;
use crate::tensor::DType;
use crate::tensor::Shape;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("SerializeTensor")
            .with_types("T", &MOVED)
            .with_factory(|_| kernel(serialize)),
    );
    registry.register(
        def("ParseTensor")
            .with_types("out_type", &MOVED)
            .with_factory(parse),
    );
}

/// TensorFlow `SerializeTensor`.
fn serialize(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let tensor = context.input(0)?;
    let size = |&dim: &usize| Dim {
        size: i64::try_from(dim).unwrap_or(i64::MAX),
    };
    let mut message = TensorProto {
        dtype: i32::try_from(tensor.dtype().number()).unwrap_or(0),
        tensor_shape: Some(TensorShapeProto {
            dim: tensor.shape().dims().iter().map(size).collect(),
            unknown_rank: false,
        }),
        ..TensorProto::default()
    };
    if tensor.dtype() == DType::String {
        let strings = tensor.as_strings()?.iter();
        for string in strings {
            message.string_val.push(copied(string)?);
        }
    } else {
        message.tensor_content = copied(tensor.as_bytes()?)?;
    }
    let mut bytes = scratch::list(message.encoded_len())?;
    message.encode(&mut bytes).map_err(|error| {
        KernelError::invalid(format!("the tensor is too large for a message: {error}"))
    })?;
    set_strings(
        context,
        0,
        &Shape::scalar(),
        std::iter::once(Ok(bytes.into())),
    )
}

fn copied(bytes: &[u8]) -> Result<Bytes, KernelError> {
    let mut copy = scratch::list(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy.into())
}

/// TensorFlow `ParseTensor`.
fn parse(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "out_type")?;
    kernel(move |context| {
        let bytes = scalar_string(context, 0, "Expected `serialized`")?;
        let invalid = |error: &dyn std::fmt::Display| {
            KernelError::invalid(format!(
                "Could not parse `serialized` as TensorProto: {error}"
            ))
        };
        let message = TensorProto::decode(bytes).map_err(|error| invalid(&error))?;
        let literal = crate::import::tensor::literal(&message).map_err(|error| invalid(&error))?;
        if literal.dtype() != dtype {
            return Err(KernelError::invalid(format!(
                "Type mismatch between parsed tensor ({}) and dtype ({dtype})",
                literal.dtype()
            )));
        }
        let allocator = context.device().allocator(AllocatorAttributes::default());
        context.set_output(0, literal.to_tensor(&*allocator)?)
    })
}
