//! TensorFlow's checkpoints (tensor bundles): an index `PREFIX.index`, a sorted table of names, and
//! shards `PREFIX.data-NNNNN-of-NNNNN` with the bytes of the tensors.
//!
//! Files are untrusted. Every sum is checked, so a damaged file gives an error that names it and
//! the tensor, and never other numbers. Memory stays in proportion to the files.

mod error;
#[cfg(any(test, feature = "kernels"))]
mod merge;
mod objects;
mod proto;
mod slice;
mod strings;
mod sum;
mod table;
mod table_writer;
#[cfg(test)]
mod tests;
mod write;

pub use error::CheckpointError;
#[cfg(any(test, feature = "kernels"))]
pub(crate) use merge::merge_checkpoints;
pub use write::write_checkpoint;
#[cfg(any(test, feature = "kernels"))]
pub(crate) use write::write_slices;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use prost::Message;

use self::proto::BundleEntry;
use self::proto::BundleHeader;
use self::slice::Slice;
use crate::files;
use crate::tensor::DType;
use crate::tensor::Literal;
use crate::tensor::LiteralData;
use crate::tensor::RANK_MAX;
use crate::tensor::Shape;
use crate::tensor::StoredBytes;
use crate::tensor::StoredBytesError;

/// Bytes of an index. Each tensor takes some hundred.
const INDEX_BYTES_MAX: u64 = 1 << 30;

/// Version of the format that is read and written.
const VERSION: i32 = 1;

/// Slices of one tensor. Each is compared with all others.
const N_SLICES_MAX: usize = 4096;

/// Size from which [`Checkpoint::literal`] does not read a tensor. The inference of shapes looks at
/// values of smaller ones.
const STORED_BYTES_MIN: usize = 64 << 10;

/// An open checkpoint. Tensors are read one by one, so that those that nobody asks for (slots of
/// optimizers, second copies that Keras saves) take no memory.
///
/// ```no_run
/// use placewright::checkpoint::Checkpoint;
///
/// let checkpoint = Checkpoint::open("model/variables/variables")?;
/// for tensor in checkpoint.tensors() {
///     println!("{} {} {}", tensor.name, tensor.dtype, tensor.shape);
/// }
/// let weights = checkpoint.read("dense/kernel")?;
/// # Ok::<(), placewright::checkpoint::CheckpointError>(())
/// ```
#[derive(Debug)]
pub struct Checkpoint {
    prefix: PathBuf,
    entries: BTreeMap<String, TensorEntry>,
    /// By their keys.
    slices: BTreeMap<Vec<u8>, BundleEntry>,
    shards: Vec<Arc<Shard>>,
}

/// A tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TensorEntry {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
    stored: BundleEntry,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
    size_bytes: u64,
}

impl Checkpoint {
    /// Opens a checkpoint: reads its index, and opens its shards.
    ///
    /// # Errors
    /// [`CheckpointError`] if a file is missing, damaged or of another format.
    pub fn open(prefix: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let prefix = prefix.into();
        let (header, rows) = read_index(&prefix)?;
        let n_shards = check_header(&header, &with_suffix(&prefix, ".index"))?;
        let mut checkpoint = Self {
            entries: BTreeMap::new(),
            slices: BTreeMap::new(),
            shards: open_shards(&prefix, n_shards)?,
            prefix,
        };
        for (key, entry) in rows {
            // Names begin with a letter, and keys of slices with 0.
            if key.starts_with(&[0]) {
                checkpoint.slices.insert(key, entry);
                continue;
            }
            let name = String::from_utf8_lossy(&key).into_owned();
            let entry = checkpoint.entry(name.clone(), entry)?;
            checkpoint.entries.insert(name, entry);
        }
        Ok(checkpoint)
    }

    /// Returns the tensors, by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorEntry> {
        self.entries.values()
    }

    /// Returns the tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.entries.get(name)
    }

    /// Returns the path of the files without their suffixes.
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// Reads a tensor.
    ///
    /// # Errors
    /// [`CheckpointError`] if there is no such tensor, or its bytes are missing or damaged.
    pub fn read(&self, name: &str) -> Result<Literal, CheckpointError> {
        self.read_slice(name, "")
    }

    /// Reads a slice of a tensor. It is written as TensorFlow's `RestoreV2` takes it: the shape of
    /// the whole tensor, and per dimension `START,LENGTH` or `-`, which means all. `4 10 0,2:-` is
    /// the first two rows of shape `[4,10]`. The empty text means the whole tensor.
    ///
    /// # Errors
    /// As [`Self::read`], and if the slice is malformed, or its shape is not that of the tensor.
    pub fn read_slice(&self, name: &str, slice: &str) -> Result<Literal, CheckpointError> {
        self.read_or_store(name, slice, usize::MAX)
    }

    /// Returns a slice of a tensor, written as in [`Self::read_slice`], whose bytes are read when a
    /// device needs them. Their sum is checked then. The files stay open as long as the literal
    /// exists. Small tensors, strings and parts of tensors are read now.
    ///
    /// # Errors
    /// As [`Self::read_slice`], except that bytes may turn out to be damaged later
    /// ([`TensorError::Stored`](crate::tensor::TensorError::Stored)).
    pub fn literal(&self, name: &str, slice: &str) -> Result<Literal, CheckpointError> {
        self.read_or_store(name, slice, STORED_BYTES_MIN)
    }

    /// Reads a slice of a tensor. A whole tensor from this size on is not read yet.
    fn read_or_store(
        &self,
        name: &str,
        slice: &str,
        stored_bytes_min: usize,
    ) -> Result<Literal, CheckpointError> {
        let entry = self.entries.get(name);
        let entry = entry.ok_or_else(|| CheckpointError::NoSuchTensor {
            prefix: self.prefix.clone(),
            name: name.to_owned(),
            found: self.entries.keys().cloned().collect(),
        })?;
        let whole = Slice::whole(&entry.shape);
        let wanted = match slice.is_empty() {
            true => whole.clone(),
            false => {
                let (shape, wanted) = Slice::parse(slice).ok_or_else(|| {
                    self.tensor_error(
                        name,
                        format!("`{slice}` is not a slice, such as `4 10 0,2:-`"),
                    )
                })?;
                if shape != entry.shape {
                    let problem = format!(
                        "slice `{slice}` is of shape {shape}, but the tensor has shape {}; the graph and the checkpoint do not belong together",
                        entry.shape
                    );
                    return Err(self.tensor_error(name, problem));
                }
                wanted
            }
        };
        let data = if entry.stored.slices.is_empty() && wanted == whole {
            self.read_stored(entry, stored_bytes_min)?
        } else {
            self.assemble(entry, &wanted)?
        };
        Literal::new(entry.dtype, wanted.shape(), data)
            .map_err(|error| self.tensor_error(name, error.to_string()))
    }

    /// Copies a part of a tensor together from what is stored.
    fn assemble(
        &self,
        entry: &TensorEntry,
        wanted: &Slice,
    ) -> Result<LiteralData, CheckpointError> {
        let name = &entry.name;
        let error = |problem: &str| self.tensor_error(name, problem.to_owned());
        let Some(element) = entry.dtype.size_bytes() else {
            return Err(error("strings in slices are not supported"));
        };
        let stored = self.stored_slices(entry)?;
        let parts = stored
            .iter()
            .filter_map(|(slice, stored)| Some((wanted.intersection(slice)?, slice, *stored)));
        let parts: Vec<(Slice, &Slice, &BundleEntry)> = parts.collect();
        for (index, (part, ..)) in parts.iter().enumerate() {
            let mut others = parts[..index].iter();
            if others.any(|(other, ..)| part.intersection(other).is_some()) {
                return Err(error("its slices overlap; the index is damaged"));
            }
        }
        let n_covered = parts.iter().fold(0, |sum: usize, (part, ..)| {
            sum.saturating_add(part.n_elements())
        });
        if n_covered != wanted.n_elements() {
            return Err(error(
                "its slices do not cover it; the checkpoint is incomplete",
            ));
        }
        let mut bytes: Vec<u8> = Vec::new();
        for (index, (part, slice, stored)) in parts.iter().enumerate() {
            let data = self.extent_of(name, entry.dtype, &slice.shape(), stored)?;
            let data = data.bytes()?;
            if index == 0 {
                // Not before bytes of the file show that they exist.
                let size = wanted.shape().size_bytes(entry.dtype);
                let size = size.map_err(|too_large| error(&too_large.to_string()))?;
                let has_room = bytes.try_reserve_exact(size).is_ok();
                if !has_room {
                    return Err(error("there is not enough memory for it"));
                }
                bytes.resize(size, 0);
            }
            wanted.copy_part(part, slice, &data, &mut bytes, element);
        }
        Ok(LiteralData::Dense(Arc::new(bytes)))
    }

    /// Returns the parts that a tensor is stored as, with their entries.
    fn stored_slices<'a>(
        &'a self,
        entry: &'a TensorEntry,
    ) -> Result<Vec<(Slice, &'a BundleEntry)>, CheckpointError> {
        let protos = &entry.stored.slices;
        if protos.is_empty() {
            return Ok(vec![(Slice::whole(&entry.shape), &entry.stored)]);
        }
        if protos.len() > N_SLICES_MAX {
            let problem = format!("it has more than {N_SLICES_MAX} slices");
            return Err(self.tensor_error(&entry.name, problem));
        }
        let stored = protos.iter().map(|proto| {
            let slice = Slice::of_proto(proto, &entry.shape)?;
            let stored = self.slices.get(&slice::key(&entry.name, proto))?;
            Some((slice, stored))
        });
        let stored: Option<Vec<_>> = stored.collect();
        stored.ok_or_else(|| {
            let problem = "a slice is missing or outside of its shape; the index is damaged";
            self.tensor_error(&entry.name, problem.to_owned())
        })
    }

    fn read_stored(
        &self,
        entry: &TensorEntry,
        stored_bytes_min: usize,
    ) -> Result<LiteralData, CheckpointError> {
        let TensorEntry {
            name,
            dtype,
            shape,
            stored,
        } = entry;
        if *dtype == DType::String {
            let extent = self.extent(name, stored)?;
            let bytes = extent.unchecked_bytes()?;
            let read = strings::decode(&bytes, shape.n_elements(), stored.crc32c);
            let read = read.map_err(|problem| damaged(&extent.shard.path, name, problem))?;
            return Ok(LiteralData::Strings(read));
        }
        let extent = self.extent_of(name, *dtype, shape, stored)?;
        if extent.size >= stored_bytes_min {
            return Ok(LiteralData::Stored(Arc::new(extent)));
        }
        Ok(LiteralData::Dense(Arc::new(extent.bytes()?)))
    }

    /// Returns where elements of a fixed size are.
    fn extent_of(
        &self,
        name: &str,
        dtype: DType,
        shape: &Shape,
        stored: &BundleEntry,
    ) -> Result<Extent, CheckpointError> {
        if dtype.size_bytes().is_none() {
            let problem = format!("tensors of type {dtype} cannot be read");
            return Err(self.tensor_error(name, problem));
        }
        let expected = shape
            .size_bytes(dtype)
            .map_err(|error| self.tensor_error(name, error.to_string()))?;
        if usize::try_from(stored.size) != Ok(expected) {
            let problem = format!(
                "{} bytes are stored, but shape {shape} of {dtype} takes {expected}",
                stored.size
            );
            let path = with_suffix(&self.prefix, ".index");
            return Err(damaged(&path, name, problem));
        }
        self.extent(name, stored)
    }

    /// Returns where the bytes of an entry are.
    fn extent(&self, name: &str, stored: &BundleEntry) -> Result<Extent, CheckpointError> {
        let shard = usize::try_from(stored.shard_id).ok();
        let shard = shard.and_then(|shard| self.shards.get(shard));
        let Some(shard) = shard else {
            let problem = format!("it is in shard {}, which does not exist", stored.shard_id);
            let path = with_suffix(&self.prefix, ".index");
            return Err(damaged(&path, name, problem));
        };
        let range = || {
            let offset = u64::try_from(stored.offset).ok()?;
            let size = u64::try_from(stored.size).ok()?;
            let is_within = offset.checked_add(size)? <= shard.size_bytes;
            is_within.then_some((offset, usize::try_from(size).ok()?))
        };
        let Some((offset, size)) = range() else {
            let problem = format!(
                "bytes {} to {} are expected, but the file has {}",
                stored.offset,
                stored.offset.saturating_add(stored.size),
                shard.size_bytes
            );
            return Err(damaged(&shard.path, name, problem));
        };
        Ok(Extent {
            shard: Arc::clone(shard),
            name: name.to_owned(),
            offset,
            size,
            sum: stored.crc32c,
        })
    }

    /// Checks type and shape of an entry.
    fn entry(&self, name: String, stored: BundleEntry) -> Result<TensorEntry, CheckpointError> {
        let error = |problem: String| self.tensor_error(&name, problem);
        let dtype = u32::try_from(stored.dtype)
            .ok()
            .and_then(DType::from_number);
        let dtype = dtype
            .ok_or_else(|| error(format!("element type {} is not supported", stored.dtype)))?;
        let dims = stored.shape.iter().flat_map(|shape| &shape.dim);
        let dims: Option<Vec<usize>> = dims.map(|dim| usize::try_from(dim.size).ok()).collect();
        let is_known = stored
            .shape
            .as_ref()
            .is_none_or(|shape| !shape.unknown_rank);
        let dims = dims.filter(|dims| is_known && dims.len() <= RANK_MAX);
        let dims =
            dims.ok_or_else(|| error("its shape is invalid; the index is damaged".to_owned()))?;
        Ok(TensorEntry {
            dtype,
            shape: dims.into_iter().collect(),
            stored,
            name,
        })
    }

    fn tensor_error(&self, name: &str, problem: String) -> CheckpointError {
        CheckpointError::Tensor {
            prefix: self.prefix.clone(),
            name: name.to_owned(),
            problem,
        }
    }
}

/// Bytes of a shard that belong to a tensor.
#[derive(Debug)]
struct Extent {
    shard: Arc<Shard>,
    /// Name of the tensor.
    name: String,
    /// Position in the shard.
    offset: u64,
    /// Number of bytes.
    size: usize,
    /// Their masked sum.
    sum: u32,
}

impl Extent {
    /// Returns the bytes, whose sum is right.
    fn bytes(&self) -> Result<Vec<u8>, CheckpointError> {
        let bytes = self.unchecked_bytes()?;
        self.check(&bytes)?;
        Ok(bytes)
    }

    fn unchecked_bytes(&self) -> Result<Vec<u8>, CheckpointError> {
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(self.size);
        reserved.map_err(|error| self.read_error(error.into()))?;
        bytes.resize(self.size, 0);
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&self, target: &mut [u8]) -> Result<(), CheckpointError> {
        let read = self.shard.file.read_exact_at(target, self.offset);
        read.map_err(|error| self.read_error(error))
    }

    fn check(&self, bytes: &[u8]) -> Result<(), CheckpointError> {
        if sum::is_right(self.sum, sum::masked(bytes)) {
            return Ok(());
        }
        let problem = "the sum of its bytes is wrong".to_owned();
        Err(damaged(&self.shard.path, &self.name, problem))
    }

    fn read_error(&self, source: std::io::Error) -> CheckpointError {
        CheckpointError::Read {
            path: self.shard.path.clone(),
            source,
        }
    }
}

impl StoredBytes for Extent {
    fn len_bytes(&self) -> usize {
        self.size
    }

    fn read(&self, target: &mut [u8]) -> Result<(), StoredBytesError> {
        self.fill(target)
            .and_then(|()| self.check(target))
            .map_err(StoredBytesError::new)
    }
}

impl TensorEntry {
    /// Returns the bytes of its elements; `None` for strings and above the address space.
    pub fn size_bytes(&self) -> Option<u64> {
        self.dtype.size_bytes()?;
        let bytes = self.shape.size_bytes(self.dtype).ok()?;
        Some(bytes as u64)
    }
}

/// A key of an index, and what it says about the tensor of this name.
type KeyAndEntry = (Vec<u8>, BundleEntry);

/// Reads an index: its header, and its entries by key.
fn read_index(prefix: &Path) -> Result<(BundleHeader, Vec<KeyAndEntry>), CheckpointError> {
    let path = with_suffix(prefix, ".index");
    if !path.exists() {
        let path = prefix.to_owned();
        return Err(match prefix.is_file() {
            true => CheckpointError::VersionOne { path },
            false => CheckpointError::NotFound { prefix: path },
        });
    }
    let remedy = "it has millions of tensors; save them as several checkpoints";
    let bytes = files::read(&path, INDEX_BYTES_MAX, remedy);
    let bytes = bytes.map_err(|source| CheckpointError::Read {
        path: path.clone(),
        source,
    })?;
    let malformed = |(offset, problem)| CheckpointError::Malformed {
        path: path.clone(),
        offset,
        problem,
    };
    let mut rows = table::read(&bytes).map_err(malformed)?.into_iter();
    let header = rows.next().filter(|(key, _)| key.is_empty());
    let header = header.and_then(|(_, value)| BundleHeader::decode(&value[..]).ok());
    let header = header.ok_or_else(|| malformed((0, "there is no header".to_owned())))?;
    let entries = rows.map(|(key, value)| match BundleEntry::decode(&value[..]) {
        Ok(entry) => Ok((key, entry)),
        Err(_) => {
            let key = String::from_utf8_lossy(&key);
            Err(malformed((0, format!("the entry of `{key}` is malformed"))))
        }
    });
    Ok((header, entries.collect::<Result<_, _>>()?))
}

/// Returns the number of shards.
fn check_header(header: &BundleHeader, path: &Path) -> Result<usize, CheckpointError> {
    let unsupported = |problem: String| CheckpointError::Unsupported {
        path: path.to_owned(),
        problem,
    };
    if header.endianness != 0 {
        let problem = "the numbers of this checkpoint are big-endian, which is not supported; load and save it with TensorFlow on a little-endian machine";
        return Err(unsupported(problem.to_owned()));
    }
    let needed = header
        .version
        .as_ref()
        .map_or(0, |version| version.min_consumer);
    if needed > VERSION {
        return Err(unsupported(format!(
            "the checkpoint has format version {needed}; up to {VERSION} is supported"
        )));
    }
    usize::try_from(header.num_shards)
        .ok()
        .filter(|n_shards| (1..=99_999).contains(n_shards))
        .ok_or_else(|| unsupported(format!("the checkpoint has {} shards", header.num_shards)))
}

fn open_shards(prefix: &Path, n_shards: usize) -> Result<Vec<Arc<Shard>>, CheckpointError> {
    let shards = (0..n_shards).map(|index| {
        let path = with_suffix(prefix, &format!(".data-{index:05}-of-{n_shards:05}"));
        let opened = files::open(&path).and_then(|file| {
            let size_bytes = file.metadata()?.len();
            Ok((file, size_bytes))
        });
        match opened {
            Ok((file, size_bytes)) => Ok(Arc::new(Shard {
                path,
                file,
                size_bytes,
            })),
            Err(source) => Err(CheckpointError::Read { path, source }),
        }
    });
    shards.collect()
}

fn damaged(path: &Path, name: &str, problem: String) -> CheckpointError {
    CheckpointError::Damaged {
        path: path.to_owned(),
        name: name.to_owned(),
        problem,
    }
}

/// Prefixes may contain dots, so this is no extension.
fn with_suffix(prefix: &Path, suffix: &str) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}
