//! Makes one checkpoint of several, as TensorFlow's savers do with the shards that each device has
//! written.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::path::PathBuf;

use super::CheckpointError;
use super::check_header;
use super::proto::BundleEntry;
use super::read_index;
use super::with_suffix;
use super::write::write_index;
use super::write::writing;

/// Moves the data of checkpoints to one of this prefix, and writes its index; the old indices are
/// deleted. `may_be_missing`: whether checkpoints that do not exist are left out.
///
/// # Errors
/// [`CheckpointError`] if a checkpoint is missing, damaged or of another format, if two have a
/// tensor of one name that is not stored in slices, or if a file cannot be moved or written.
pub(crate) fn merge_checkpoints(
    prefixes: &[PathBuf],
    merged: &Path,
    may_be_missing: bool,
) -> Result<(), CheckpointError> {
    let mut entries: BTreeMap<Vec<u8>, BundleEntry> = BTreeMap::new();
    // The data files, in the order of their new numbers.
    let mut files: Vec<PathBuf> = Vec::new();
    let mut merged_header = None;
    for prefix in prefixes {
        let (header, rows) = match read_index(prefix) {
            Err(CheckpointError::NotFound { .. }) if may_be_missing => continue,
            read => read?,
        };
        let n_old = check_header(&header, &with_suffix(prefix, ".index"))?;
        merged_header.get_or_insert(header);
        for (key, mut entry) in rows {
            if entry.slices.is_empty() {
                let shard = usize::try_from(entry.shard_id).ok();
                let shard = shard.filter(|&shard| shard < n_old).ok_or_else(|| {
                    let problem = format!("it is in shard {} of {n_old}", entry.shard_id);
                    tensor_error(prefix, &key, &problem)
                })?;
                let file = with_suffix(prefix, &format!(".data-{shard:05}-of-{n_old:05}"));
                let known = files.iter().position(|known| *known == file);
                let number = known.unwrap_or_else(|| {
                    files.push(file);
                    files.len() - 1
                });
                entry.shard_id = i32::try_from(number).unwrap_or(i32::MAX);
            }
            let Some(earlier) = entries.get_mut(&key) else {
                entries.insert(key, entry);
                continue;
            };
            let is_same = earlier.dtype == entry.dtype && earlier.shape == entry.shape;
            if earlier.slices.is_empty() || entry.slices.is_empty() || !is_same {
                let problem = "another one of the checkpoints has a tensor of this name";
                return Err(tensor_error(prefix, &key, problem));
            }
            earlier.slices.append(&mut entry.slices);
        }
    }
    let Some(mut header) = merged_header else {
        return Err(CheckpointError::NotFound {
            prefix: prefixes.first().cloned().unwrap_or_default(),
        });
    };
    // Shards without a tensor have no file here. A checkpoint without any still has one.
    header.num_shards = i32::try_from(files.len().max(1)).unwrap_or(i32::MAX);
    if let Some(folder) = merged.parent() {
        fs::create_dir_all(folder).map_err(writing(folder))?;
    }
    for number in 0..files.len() {
        let new = with_suffix(merged, &format!(".data-{number:05}-of-{:05}", files.len()));
        if let Some(later) = files[number + 1..].iter_mut().find(|file| **file == new) {
            // Out of the way, or its data would be lost.
            let aside = with_suffix(&new, ".old");
            fs::rename(&new, &aside).map_err(writing(&new))?;
            *later = aside;
        }
        fs::rename(&files[number], &new).map_err(writing(&files[number]))?;
    }
    write_index(merged, &header, &entries)?;
    for prefix in prefixes.iter().filter(|prefix| *prefix != merged) {
        // The merged checkpoint is complete without them.
        let _ = fs::remove_file(with_suffix(prefix, ".index"));
    }
    Ok(())
}

fn tensor_error(prefix: &Path, key: &[u8], problem: &str) -> CheckpointError {
    CheckpointError::Tensor {
        prefix: prefix.to_owned(),
        name: String::from_utf8_lossy(key).into_owned(),
        problem: problem.to_owned(),
    }
}
