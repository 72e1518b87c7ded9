//! Converts `TensorProto`, in all its encodings, to [`Literal`].

use std::sync::Arc;

use bytes::Buf;
use bytes::Bytes;

use super::error::AttrError;
use super::proto::TensorProto;
use super::proto::TensorShapeProto;
use crate::tensor::ByteString;
use crate::tensor::DType;
use crate::tensor::Literal;
use crate::tensor::LiteralData;
use crate::tensor::PartialShape;
use crate::tensor::RANK_MAX;
use crate::tensor::SharedBytes;

/// Returns the element type of this number, and whether it is a reference (numbers above 100).
pub(crate) fn dtype(number: i32) -> Result<(DType, bool), AttrError> {
    let unknown = || AttrError::UnknownDType(number);
    let magnitude = u32::try_from(number).map_err(|_| unknown())?;
    let (base, is_ref) = match magnitude.checked_sub(100) {
        Some(base) if base > 0 => (base, true),
        _ => (magnitude, false),
    };
    DType::from_number(base)
        .map(|dtype| (dtype, is_ref))
        .ok_or_else(unknown)
}

/// Converts a shape; size -1 is an unknown dimension.
pub(crate) fn shape(proto: &TensorShapeProto) -> Result<PartialShape, AttrError> {
    if proto.unknown_rank {
        return Ok(PartialShape::unknown());
    }
    if proto.dim.len() > RANK_MAX {
        return Err(AttrError::Shape(format!(
            "{} dimensions; at most {RANK_MAX} are supported",
            proto.dim.len()
        )));
    }
    proto
        .dim
        .iter()
        .map(|dim| match dim.size {
            -1 => Ok(None),
            size => usize::try_from(size)
                .map(Some)
                .map_err(|_| AttrError::Shape(format!("a dimension of size {size}"))),
        })
        .collect()
}

/// Converts a constant. Its content is a slice of the file; the values of the typed fields are
/// copied, and the last one repeats.
pub(crate) fn literal(proto: &TensorProto) -> Result<Literal, AttrError> {
    let (dtype, is_ref) = dtype(proto.dtype)?;
    if is_ref {
        return Err(AttrError::UnknownDType(proto.dtype));
    }
    let shape = match &proto.tensor_shape {
        Some(proto) => shape(proto)?,
        None => PartialShape::scalar(),
    };
    let shape = shape.to_shape().ok_or_else(|| {
        AttrError::Shape(format!(
            "{shape}, but the shape of a constant must be known"
        ))
    })?;
    let content = &proto.tensor_content;
    let data = if dtype == DType::String {
        let strings = if content.is_empty() {
            proto
                .string_val
                .iter()
                .map(|value| (**value).into())
                .collect()
        } else {
            string_content(content.clone(), shape.n_elements())?
        };
        LiteralData::Strings(strings)
    } else if content.is_empty() {
        LiteralData::RepeatLast(values(proto, dtype))
    } else {
        LiteralData::Dense(Arc::new(content.clone()))
    };
    Ok(Literal::new(dtype, shape, data)?)
}

/// Returns the elements of the field for `dtype`, little-endian.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "narrow elements are in wider fields; as in TensorFlow, only their low bits count"
)]
fn values(proto: &TensorProto, dtype: DType) -> SharedBytes {
    fn bytes<T: Copy, const N: usize>(values: &[T], encode: impl Fn(T) -> [u8; N]) -> SharedBytes {
        Arc::new(
            values
                .iter()
                .flat_map(|&value| encode(value))
                .collect::<Vec<u8>>(),
        )
    }
    match dtype {
        DType::F32 => bytes(&proto.float_val, f32::to_le_bytes),
        DType::F64 => bytes(&proto.double_val, f64::to_le_bytes),
        DType::I32 => bytes(&proto.int_val, i32::to_le_bytes),
        DType::I16 | DType::U16 => bytes(&proto.int_val, |value| (value as u16).to_le_bytes()),
        DType::I8 | DType::U8 => bytes(&proto.int_val, |value| [value as u8]),
        DType::F16 | DType::BF16 => bytes(&proto.half_val, |value| (value as u16).to_le_bytes()),
        DType::I64 => bytes(&proto.int64_val, i64::to_le_bytes),
        DType::Bool => bytes(&proto.bool_val, |value| [u8::from(value)]),
        DType::Complex64 => bytes(&proto.scomplex_val, f32::to_le_bytes),
        DType::Complex128 => bytes(&proto.dcomplex_val, f64::to_le_bytes),
        DType::U32 => bytes(&proto.uint32_val, u32::to_le_bytes),
        DType::U64 => bytes(&proto.uint64_val, u64::to_le_bytes),
        // `Literal::new` refuses these.
        DType::String | DType::Resource | DType::Variant => Arc::new([0u8; 0]),
    }
}

/// Decodes strings in `tensor_content`: all lengths as varints, then all bytes.
fn string_content(mut content: Bytes, n_elements: usize) -> Result<Arc<[ByteString]>, AttrError> {
    let truncated = || AttrError::Malformed("the strings of a constant end early".to_owned());
    if n_elements > content.len() {
        return Err(truncated());
    }
    let mut lengths = Vec::with_capacity(n_elements);
    for _ in 0..n_elements {
        let length = prost::encoding::decode_varint(&mut content).map_err(|_| truncated())?;
        lengths.push(usize::try_from(length).map_err(|_| truncated())?);
    }
    let mut strings: Vec<ByteString> = Vec::with_capacity(n_elements);
    for length in lengths {
        if length > content.remaining() {
            return Err(truncated());
        }
        strings.push((*content.split_to(length)).into());
    }
    Ok(strings.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::proto::Dim;
    use crate::tensor::HostAllocator;
    use crate::tensor::Tensor;

    fn proto(dtype: DType, dims: &[i64]) -> TensorProto {
        let dim = dims.iter().map(|&size| Dim { size }).collect();
        TensorProto {
            dtype: i32::try_from(dtype.number()).unwrap(),
            tensor_shape: Some(TensorShapeProto {
                dim,
                unknown_rank: false,
            }),
            ..TensorProto::default()
        }
    }

    fn tensor(proto: &TensorProto) -> Tensor {
        literal(proto)
            .unwrap()
            .to_tensor(&HostAllocator::new("test", u64::MAX))
            .unwrap()
    }

    #[test]
    fn content_is_a_slice_of_the_file() {
        let file = Bytes::from(vec![1, 0, 0, 0, 2, 0, 0, 0]);
        let mut proto = proto(DType::I32, &[2]);
        proto.tensor_content = file.slice(..);
        let literal = literal(&proto).unwrap();
        let LiteralData::Dense(bytes) = literal.data() else {
            panic!("content is dense");
        };
        assert_eq!((**bytes).as_ref().as_ptr(), file.as_ptr());
        assert_eq!(tensor(&proto).as_slice::<i32>().unwrap(), [1, 2]);
    }

    #[test]
    fn every_type_reads_its_own_field_and_repeats_the_last_value() {
        let mut p = proto(DType::F32, &[3]);
        p.float_val = vec![1.5, -2.0];
        assert_eq!(tensor(&p).as_slice::<f32>().unwrap(), [1.5, -2.0, -2.0]);
        let mut p = proto(DType::F64, &[2]);
        p.double_val = vec![0.1];
        assert_eq!(tensor(&p).as_slice::<f64>().unwrap(), [0.1, 0.1]);
        let mut p = proto(DType::I32, &[2]);
        p.int_val = vec![-7];
        assert_eq!(tensor(&p).as_slice::<i32>().unwrap(), [-7, -7]);
        let mut p = proto(DType::I8, &[2]);
        p.int_val = vec![-7, 5];
        assert_eq!(tensor(&p).as_slice::<i8>().unwrap(), [-7, 5]);
        let mut p = proto(DType::U8, &[2]);
        p.int_val = vec![200];
        assert_eq!(tensor(&p).as_slice::<u8>().unwrap(), [200, 200]);
        let mut p = proto(DType::I16, &[1]);
        p.int_val = vec![-300];
        assert_eq!(tensor(&p).as_slice::<i16>().unwrap(), [-300]);
        let mut p = proto(DType::U16, &[1]);
        p.int_val = vec![60_000];
        assert_eq!(tensor(&p).as_slice::<u16>().unwrap(), [60_000]);
        let mut p = proto(DType::F16, &[2]);
        p.half_val = vec![0x3c00];
        assert_eq!(
            tensor(&p).as_slice::<half::f16>().unwrap(),
            [half::f16::ONE; 2]
        );
        let mut p = proto(DType::BF16, &[2]);
        p.half_val = vec![0x3f80];
        assert_eq!(
            tensor(&p).as_slice::<half::bf16>().unwrap(),
            [half::bf16::ONE; 2]
        );
        let mut p = proto(DType::I64, &[1]);
        p.int64_val = vec![i64::MIN];
        assert_eq!(tensor(&p).as_slice::<i64>().unwrap(), [i64::MIN]);
        let mut p = proto(DType::Bool, &[2]);
        p.bool_val = vec![true];
        assert_eq!(tensor(&p).as_bools().unwrap(), [1, 1]);
        let mut p = proto(DType::U32, &[1]);
        p.uint32_val = vec![u32::MAX];
        assert_eq!(tensor(&p).as_slice::<u32>().unwrap(), [u32::MAX]);
        let mut p = proto(DType::U64, &[1]);
        p.uint64_val = vec![u64::MAX];
        assert_eq!(tensor(&p).as_slice::<u64>().unwrap(), [u64::MAX]);
        let mut p = proto(DType::Complex64, &[2]);
        p.scomplex_val = vec![1.0, 2.0];
        let bytes = [1.0f32, 2.0, 1.0, 2.0].map(f32::to_le_bytes).concat();
        assert_eq!(tensor(&p).as_bytes().unwrap(), bytes);
        let mut p = proto(DType::Complex128, &[1]);
        p.dcomplex_val = vec![1.0, 2.0];
        let bytes = [1.0f64, 2.0].map(f64::to_le_bytes).concat();
        assert_eq!(tensor(&p).as_bytes().unwrap(), bytes);
    }

    #[test]
    fn strings_come_as_values_or_as_lengths_and_content() {
        let mut p = proto(DType::String, &[3]);
        p.string_val = vec![Bytes::from_static(b"a"), Bytes::from_static(b"bc")];
        let joined = |p: &TensorProto| tensor(p).as_strings().unwrap().concat();
        assert_eq!(joined(&p), b"abcbc");
        let mut p = proto(DType::String, &[2]);
        p.tensor_content = Bytes::from_static(b"\x01\x02abc");
        assert_eq!(joined(&p), b"abc");
        p.tensor_content = Bytes::from_static(b"\x01\x03abc");
        assert!(literal(&p).is_err());
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        let mut p = proto(DType::F32, &[1]);
        p.float_val = vec![1.0, 2.0];
        assert!(literal(&p).is_err());
        let mut p = proto(DType::Complex64, &[2]);
        p.scomplex_val = vec![1.0];
        assert!(literal(&p).is_err());
        let mut p = proto(DType::F32, &[2]);
        p.tensor_content = Bytes::from_static(&[0; 7]);
        assert!(literal(&p).is_err());
        assert!(literal(&proto(DType::F32, &[-1])).is_err());
        assert!(literal(&proto(DType::F32, &[-2])).is_err());
        assert!(literal(&proto(DType::F32, &[1; 255])).is_err());
        assert!(literal(&proto(DType::Resource, &[])).is_err());
        let mut p = proto(DType::F32, &[]);
        p.dtype = 11;
        assert_eq!(literal(&p).unwrap_err(), AttrError::UnknownDType(11));
        p.dtype = 101;
        assert_eq!(literal(&p).unwrap_err(), AttrError::UnknownDType(101));
    }
}
