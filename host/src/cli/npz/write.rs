//! Writes NumPy archives, uncompressed as `numpy.savez` does.

use std::io::Read;
use std::io::Seek;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use anyhow::Result;
use anyhow::bail;
use zip::CompressionMethod;
use zip::ZipWriter;
use zip::write::FileOptions;

use super::KINDS;
use super::MAGIC;
use crate::cli::output_file;
use crate::tensor::ByteString;
use crate::tensor::DType;
use crate::tensor::Tensor;

/// Writes an archive of arrays, in this order, uncompressed as `numpy.savez` does.
pub(in crate::cli) fn write<'a>(
    path: &Path,
    arrays: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<()> {
    let context = || format!("writing {}", path.display());
    // Before the file is emptied: it may be all that is left of an earlier run.
    let entries = arrays
        .into_iter()
        .map(|(name, tensor)| {
            let entry = || format!("array `{name}`");
            let header = header_text(tensor).with_context(entry)?;
            let elements = Elements::of(tensor).with_context(entry)?;
            Ok((name, header, elements))
        })
        .collect::<Result<Vec<_>>>()
        .with_context(context)?;
    output_file::write(path, |file| {
        let mut zip = ZipWriter::new(file);
        let written = write_entries(&mut zip, &entries).and_then(|()| {
            zip.finish()?;
            Ok(())
        });
        if written.is_err() {
            // If it were dropped, it would try again, and print that it failed.
            std::mem::forget(zip);
        }
        written
    })
}

/// The elements of an array.
enum Elements<'a> {
    Numbers(&'a [u8]),
    /// Strings, and the number of bytes that each of them takes.
    Strings(&'a [ByteString], usize),
}

impl<'a> Elements<'a> {
    fn of(tensor: &'a Tensor) -> Result<Self> {
        if tensor.dtype() != DType::String {
            return Ok(Self::Numbers(tensor.as_bytes()?));
        }
        let strings = tensor.as_strings()?;
        if let Some(index) = strings.iter().position(|string| string.ends_with(&[0])) {
            bail!(
                "string {index} ends with a zero byte, which strings of NumPy do not keep; fetch \
                 another tensor, such as one of its bytes (`DecodeRaw`)"
            );
        }
        Ok(Self::Strings(strings, string_bytes(strings)))
    }

    fn len_bytes(&self) -> u64 {
        match self {
            Self::Numbers(bytes) => bytes.len() as u64,
            Self::Strings(strings, width) => (strings.len() as u64).saturating_mul(*width as u64),
        }
    }

    fn write(&self, to: &mut impl Write) -> Result<()> {
        match self {
            Self::Numbers(bytes) => to.write_all(bytes)?,
            Self::Strings(strings, width) => {
                for string in *strings {
                    to.write_all(string)?;
                    let n_zeros = width.saturating_sub(string.len()) as u64;
                    std::io::copy(&mut std::io::repeat(0).take(n_zeros), to)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the bytes of the longest string; NumPy's strings have at least 1.
fn string_bytes(strings: &[ByteString]) -> usize {
    let longest = strings.iter().map(|string| string.len()).max();
    longest.unwrap_or(0).max(1)
}

fn write_entries(
    zip: &mut ZipWriter<impl Write + Seek>,
    entries: &[(&str, Vec<u8>, Elements<'_>)],
) -> Result<()> {
    for (name, header, elements) in entries {
        let options = FileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(elements.len_bytes() + header.len() as u64 >= 1 << 31);
        zip.start_file(format!("{name}.npy"), options)?;
        zip.write_all(header)?;
        elements.write(zip)?;
    }
    Ok(())
}

/// The part of a `.npy` stream before the elements, padded to a multiple of 64 bytes.
fn header_text(tensor: &Tensor) -> Result<Vec<u8>> {
    let dtype = tensor.dtype();
    let kind = KINDS.iter().find(|(known, _)| *known == dtype);
    let kind = match (kind, tensor.as_strings()) {
        (Some((_, kind)), _) => (*kind).to_owned(),
        (None, Ok(strings)) => format!("S{}", string_bytes(strings)),
        (None, Err(_)) => bail!("a {dtype} tensor cannot be written to an .npz file"),
    };
    // Single bytes have no order.
    let order = match dtype.size_bytes() {
        None | Some(1) => '|',
        _ => '<',
    };
    let dims: String = tensor
        .shape()
        .dims()
        .iter()
        .map(|dim| format!("{dim}, "))
        .collect();
    // One dimension needs its comma to be a tuple, more look better without the last one.
    let dims = match tensor.shape().rank() {
        1 => dims.trim_end(),
        _ => dims.trim_end_matches(", "),
    };
    let dictionary =
        format!("{{'descr': '{order}{kind}', 'fortran_order': False, 'shape': ({dims}), }}");
    let unpadded = MAGIC.len() + 4 + dictionary.len() + 1;
    let padded = unpadded.next_multiple_of(64);
    let header_len = u16::try_from(padded - MAGIC.len() - 4)
        .context("the tensor has too many dimensions for an .npz file")?;
    let mut header = Vec::with_capacity(padded);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&[1, 0]);
    header.extend_from_slice(&header_len.to_le_bytes());
    header.extend_from_slice(dictionary.as_bytes());
    header.resize(padded - 1, b' ');
    header.push(b'\n');
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Shape;

    #[test]
    fn headers_name_types_as_numpy_does() {
        for (dtype, expected) in [
            (
                DType::F32,
                "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }",
            ),
            (DType::U8, "{'descr': '|u1', "),
            (DType::Bool, "{'descr': '|b1', "),
            (DType::Complex128, "{'descr': '<c16', "),
            (DType::BF16, "{'descr': '<V2', "),
        ] {
            let bytes = vec![0; dtype.size_bytes().expect("a fixed size")];
            let tensor = Tensor::from_bytes(dtype, Shape::new(&[1]), &bytes).expect("fits");
            let header = header_text(&tensor).expect("a header");
            assert_eq!(header.len() % 64, 0);
            assert!(
                header[MAGIC.len() + 4..].starts_with(expected.as_bytes()),
                "{dtype}"
            );
        }
    }

    #[test]
    fn an_archive_that_cannot_be_written_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("kept.npz");
        std::fs::write(&path, "before").expect("written");
        let strings = Tensor::from_strings(Shape::new(&[1]), vec![b"text\0"[..].into()]);
        let strings = strings.expect("fits");
        let error = write(&path, [("strings", &strings)]).expect_err("a zero at the end");
        let error = format!("{error:#}");
        assert!(
            error.contains("`strings`: string 0 ends with a zero byte"),
            "{error}"
        );
        assert_eq!(std::fs::read(&path).expect("read"), b"before");
    }
}
