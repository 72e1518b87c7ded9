//! Writes NumPy archives, uncompressed as `numpy.savez` does.

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
            let bytes = tensor.as_bytes().with_context(entry)?;
            Ok((name, header, bytes))
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

fn write_entries(
    zip: &mut ZipWriter<impl Write + Seek>,
    entries: &[(&str, Vec<u8>, &[u8])],
) -> Result<()> {
    for (name, header, bytes) in entries {
        let options = FileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(bytes.len() as u64 + header.len() as u64 >= 1 << 31);
        zip.start_file(format!("{name}.npy"), options)?;
        zip.write_all(header)?;
        zip.write_all(bytes)?;
    }
    Ok(())
}

/// The part of a `.npy` stream before the elements, padded to a multiple of 64 bytes.
fn header_text(tensor: &Tensor) -> Result<Vec<u8>> {
    let dtype = tensor.dtype();
    let Some((_, kind)) = KINDS.iter().find(|(known, _)| *known == dtype) else {
        bail!("a {dtype} tensor cannot be written to an .npz file");
    };
    // Single bytes have no order.
    let order = match dtype.size_bytes() {
        Some(1) => '|',
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
    use crate::tensor::DType;
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
        let strings = Tensor::from_strings(Shape::new(&[1]), vec![b"text"[..].into()]);
        let strings = strings.expect("fits");
        assert!(write(&path, [("strings", &strings)]).is_err());
        assert_eq!(std::fs::read(&path).expect("read"), b"before");
    }
}
