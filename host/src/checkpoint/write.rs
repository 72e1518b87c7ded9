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
use super::slice;
use super::slice::Slice;
use super::strings;
use super::sum;
use super::table_writer::TableWriter;
use super::with_suffix;
use crate::tensor::DType;
use crate::tensor::Shape;
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
    let whole = tensors.into_iter().map(|(name, tensor)| (name, "", tensor));
    write_slices(prefix.as_ref(), whole.collect())
}

/// Writes tensors and slices of tensors as a checkpoint: names of whole tensors, and slices as
/// [`super::Checkpoint::read_slice`] takes them. The bytes are those of TensorFlow's `SaveV2`.
///
/// # Errors
/// As [`write_checkpoint`], and if a slice is malformed or does not fit its tensor or the other
/// slices of the name.
pub(crate) fn write_slices(
    prefix: &Path,
    mut tensors: Vec<(&str, &str, &Tensor)>,
) -> Result<(), CheckpointError> {
    let error = |name: &str, problem: &str| CheckpointError::Tensor {
        prefix: prefix.to_owned(),
        name: name.to_owned(),
        problem: problem.to_owned(),
    };
    tensors.sort_by_key(|&(name, ..)| name);
    let mut entries: BTreeMap<Vec<u8>, BundleEntry> = BTreeMap::new();
    let data = with_suffix(prefix, ".data-00000-of-00001");
    let mut offset = 0;
    replace(&data, |file| {
        for (name, slice, tensor) in tensors {
            if name.is_empty() || name.starts_with('\0') {
                return Err(error(name, "this is not a name of a tensor"));
            }
            let key = add_slice(&mut entries, name, slice, tensor)
                .map_err(|problem| error(name, &problem))?;
            if entries.contains_key(&key) {
                return Err(error(name, "two tensors have this name"));
            }
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
            entries.insert(key, entry(tensor, offset, bytes.len(), sum));
            offset += bytes.len();
        }
        Ok(())
    })?;
    let header = BundleHeader {
        num_shards: 1,
        endianness: 0,
        version: Some(VersionDef {
            producer: VERSION,
            min_consumer: 0,
        }),
    };
    write_index(prefix, &header, &entries)
}

/// Writes the index of a checkpoint.
pub(super) fn write_index(
    prefix: &Path,
    header: &BundleHeader,
    entries: &BTreeMap<Vec<u8>, BundleEntry>,
) -> Result<(), CheckpointError> {
    let index = with_suffix(prefix, ".index");
    replace(&index, |file| {
        let write = || {
            let mut table = TableWriter::new(file);
            table.add(&[], &header.encode_to_vec())?;
            for (key, entry) in entries {
                table.add(key, &entry.encode_to_vec())?;
            }
            table.finish()
        };
        write().map_err(writing(&index))
    })
}

/// Returns the key of a tensor or of a slice of one. The entry of the name then lists the slice.
fn add_slice(
    entries: &mut BTreeMap<Vec<u8>, BundleEntry>,
    name: &str,
    slice: &str,
    tensor: &Tensor,
) -> Result<Vec<u8>, String> {
    let key = name.as_bytes().to_vec();
    if slice.is_empty() {
        return Ok(key);
    }
    let parsed = Slice::parse(slice);
    let (shape, part) =
        parsed.ok_or_else(|| format!("`{slice}` is not a slice, such as `4 10 0,2:-`"))?;
    if part.shape() != *tensor.shape() {
        return Err(format!(
            "slice `{slice}` has shape {}, but the tensor has shape {}",
            part.shape(),
            tensor.shape()
        ));
    }
    if part == Slice::whole(&shape) {
        return Ok(key);
    }
    let whole = BundleEntry {
        dtype: type_number(tensor),
        shape: Some(shape_proto(&shape)),
        ..BundleEntry::default()
    };
    let listed = entries.entry(key).or_insert_with(|| whole.clone());
    if listed.dtype != whole.dtype || listed.shape != whole.shape || listed.size != 0 {
        return Err(format!(
            "slice `{slice}` is of another tensor than those of the same name before it"
        ));
    }
    let proto = Slice::proto(slice);
    let key = slice::key(name, &proto);
    listed.slices.push(proto);
    Ok(key)
}

fn type_number(tensor: &Tensor) -> i32 {
    i32::try_from(tensor.dtype().number()).unwrap_or_default()
}

fn shape_proto(shape: &Shape) -> TensorShape {
    let dims = shape.dims().iter();
    TensorShape {
        dim: dims.map(|&size| Dim { size: number(size) }).collect(),
        unknown_rank: false,
    }
}

/// Tensors are smaller than `isize::MAX` bytes.
fn number(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn entry(tensor: &Tensor, offset: usize, size: usize, crc32c: u32) -> BundleEntry {
    BundleEntry {
        dtype: type_number(tensor),
        shape: Some(shape_proto(tensor.shape())),
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

pub(super) fn writing(path: &Path) -> impl Fn(io::Error) -> CheckpointError {
    let path = path.to_owned();
    move |source| CheckpointError::Write {
        path: path.clone(),
        source,
    }
}
