//! Writes a checkpoint of one shard.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::io::BufWriter;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

use prost::Message;

use super::CheckpointError;
use super::VERSION;
use super::proto::BundleEntry;
use super::proto::BundleHeader;
use super::proto::Dim;
use super::proto::TensorShape;
use super::proto::VersionDef;
use super::strings;
use super::sum;
use super::table_writer::TableWriter;
use super::with_suffix;
use crate::tensor::DType;
use crate::tensor::Tensor;

/// Writes tensors as a checkpoint, which `tf.train.load_checkpoint` and
/// [`super::Checkpoint::open`] read. Each file gets its name when it is complete, the index last.
///
/// # Errors
/// [`CheckpointError`] if a name is empty or used twice, a tensor is not in host memory or has a
/// type that checkpoints do not store, or a file cannot be written.
pub fn write_checkpoint<'a>(
    prefix: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<(), CheckpointError> {
    let prefix = prefix.as_ref();
    let error = |name: &str, problem: &str| CheckpointError::Tensor {
        prefix: prefix.to_owned(),
        name: name.to_owned(),
        problem: problem.to_owned(),
    };
    let mut sorted = BTreeMap::new();
    for (name, tensor) in tensors {
        if name.is_empty() || name.starts_with('\0') {
            return Err(error(name, "this is not a name of a tensor"));
        }
        if sorted.insert(name, tensor).is_some() {
            return Err(error(name, "two tensors have this name"));
        }
    }
    let mut entries = Vec::with_capacity(sorted.len());
    let data = with_suffix(prefix, ".data-00000-of-00001");
    let mut offset = 0;
    replace(&data, |file| {
        for (&name, &tensor) in &sorted {
            let (encoded, sum);
            let bytes = if tensor.dtype() == DType::String {
                let strings = tensor.as_strings();
                let strings = strings.map_err(|found| error(name, &found.to_string()))?;
                (encoded, sum) = strings::encode(strings);
                &encoded[..]
            } else {
                let found = tensor.as_bytes();
                let found = found.map_err(|found| error(name, &found.to_string()))?;
                sum = sum::masked(found);
                found
            };
            file.write_all(bytes).map_err(writing(&data))?;
            entries.push((name, entry(tensor, offset, bytes.len(), sum)));
            offset += bytes.len();
        }
        Ok(())
    })?;
    let index = with_suffix(prefix, ".index");
    replace(&index, |file| {
        let header = BundleHeader {
            num_shards: 1,
            endianness: 0,
            version: Some(VersionDef {
                producer: VERSION,
                min_consumer: 0,
            }),
        };
        let write = || {
            let mut table = TableWriter::new(file);
            table.add(&[], &header.encode_to_vec())?;
            for (name, entry) in &entries {
                table.add(name.as_bytes(), &entry.encode_to_vec())?;
            }
            table.finish()
        };
        write().map_err(writing(&index))
    })
}

fn entry(tensor: &Tensor, offset: usize, size: usize, crc32c: u32) -> BundleEntry {
    let dims = tensor.shape().dims().iter();
    // Tensors are smaller than `isize::MAX` bytes.
    let number = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
    BundleEntry {
        dtype: i32::try_from(tensor.dtype().number()).unwrap_or_default(),
        shape: Some(TensorShape {
            dim: dims.map(|&size| Dim { size: number(size) }).collect(),
            unknown_rank: false,
        }),
        shard_id: 0,
        offset: number(offset),
        size: number(size),
        crc32c,
        slices: Vec::new(),
    }
}

/// Writes a file beside its path, and renames it.
fn replace(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    let temporary: PathBuf = with_suffix(path, &format!(".tempstate{}", std::process::id()));
    let written = File::create(&temporary)
        .map_err(writing(path))
        .and_then(|file| {
            let mut file = BufWriter::new(file);
            fill(&mut file)?;
            file.flush().map_err(writing(path))
        })
        .and_then(|()| std::fs::rename(&temporary, path).map_err(writing(path)));
    if written.is_err() {
        // The error of the write is the one to report.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

fn writing(path: &Path) -> impl Fn(io::Error) -> CheckpointError {
    let path = path.to_owned();
    move |source| CheckpointError::Write {
        path: path.clone(),
        source,
    }
}
