//! Reads and writes NumPy archives (`.npz`): zip files of `.npy` entries.

mod read;
mod write;

pub(super) use self::read::NpzReader;
pub(super) use self::read::Wanted;
pub(super) use self::read::feed_memory;
pub(super) use self::write::write;
use crate::tensor::DType;

/// The first bytes of a `.npy` entry.
const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// NumPy's names of element types, without the byte order: kind and bytes per element.
const KINDS: [(DType, &str); 15] = [
    (DType::F16, "f2"),
    (DType::F32, "f4"),
    (DType::F64, "f8"),
    (DType::I8, "i1"),
    (DType::I16, "i2"),
    (DType::I32, "i4"),
    (DType::I64, "i8"),
    (DType::U8, "u1"),
    (DType::U16, "u2"),
    (DType::U32, "u4"),
    (DType::U64, "u8"),
    (DType::Bool, "b1"),
    (DType::Complex64, "c8"),
    (DType::Complex128, "c16"),
    // How ml_dtypes' bfloat16, NumPy's only one, is saved: two bytes without a meaning of their
    // own.
    (DType::BF16, "V2"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::ByteString;
    use crate::tensor::Shape;
    use crate::tensor::Tensor;

    #[test]
    fn every_dtype_survives_a_round_trip_through_a_file() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("all.npz");
        let tensors: Vec<(String, Tensor)> = DType::ALL
            .into_iter()
            .filter_map(|dtype| {
                let element = dtype.size_bytes()?;
                let bytes: Vec<u8> = match dtype {
                    DType::Bool => vec![1, 0, 1, 1, 0, 0],
                    _ => (0..6 * element)
                        .map(|i| u8::try_from(i).expect("small"))
                        .collect(),
                };
                let tensor = Tensor::from_bytes(dtype, Shape::new(&[2, 3]), &bytes).expect("fits");
                Some((format!("in/{dtype}"), tensor))
            })
            .chain([
                (
                    "scalar".to_owned(),
                    Tensor::from_values([], &[1.5f32]).expect("fits"),
                ),
                (
                    "vector".to_owned(),
                    Tensor::from_values([3], &[1i64, 2, 3]).expect("fits"),
                ),
                (
                    "empty".to_owned(),
                    Tensor::from_values::<f32>([0, 4], &[]).expect("fits"),
                ),
            ])
            .collect();
        write(
            &path,
            tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)),
        )
        .expect("written");

        let mut archive = NpzReader::open(&path).expect("an archive");
        assert_eq!(archive.names().len(), tensors.len());
        for (name, tensor) in &tensors {
            let read = archive.read(name, None).expect("an array");
            assert_eq!(
                (read.dtype(), read.shape()),
                (tensor.dtype(), tensor.shape()),
                "{name}"
            );
            assert_eq!(read.as_bytes().ok(), tensor.as_bytes().ok(), "{name}");
        }
    }

    #[test]
    fn strings_survive_a_round_trip_through_a_file() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("strings.npz");
        let strings: [&[u8]; 4] = [b"a", b"", b"b\0\xff", "\u{e9}".as_bytes()];
        let strings =
            Tensor::from_strings(Shape::new(&[2, 2]), strings.map(ByteString::from).to_vec());
        let strings = strings.expect("fits");
        let none = Tensor::from_strings(Shape::new(&[0]), Vec::new()).expect("fits");
        write(&path, [("some", &strings), ("none", &none)]).expect("written");
        let mut archive = NpzReader::open(&path).expect("an archive");
        for (name, tensor) in [("some", &strings), ("none", &none)] {
            let read = archive.read(name, None).expect("an array");
            assert_eq!(read.shape(), tensor.shape());
            assert_eq!(read.as_strings().ok(), tensor.as_strings().ok());
        }
    }

    #[test]
    fn an_archive_truncated_or_flipped_anywhere_is_an_error_or_an_array() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("whole.npz");
        let tensor = Tensor::from_values([4], &[1f32, 2.0, 3.0, 4.0]).expect("fits");
        write(&path, [("in/x", &tensor)]).expect("written");
        let whole = std::fs::read(&path).expect("read");
        let damaged = folder.path().join("damaged.npz");
        let check = |content: &[u8]| {
            std::fs::write(&damaged, content).expect("written");
            if let Ok(mut archive) = NpzReader::open(&damaged) {
                for name in archive.names() {
                    // Either answer is right; a panic or an endless loop is not.
                    let _ = archive.read(&name, None);
                }
            }
        };
        for end in 0..whole.len() {
            check(&whole[..end]);
        }
        for position in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[position] ^= 0xff;
            check(&flipped);
        }
    }
}
