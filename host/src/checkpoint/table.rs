//! The sorted table that a checkpoint's index is (LevelDB's table format): its blocks, and entries.
//!
//! A block is a list of entries, whose keys lack what they share with the key before, and an array
//! of the positions at which keys are complete. After it come a byte that names the compression and
//! a sum. The footer tells where the index block is, whose values tell where the data blocks are.

use super::sum;

/// Last eight bytes of a table.
pub(super) const MAGIC: u64 = 0xdb47_7524_8b80_fb57;

/// Bytes of the footer: two handles, padded, and the magic number.
pub(super) const FOOTER_LEN: usize = 48;

/// Bytes after a block: compression and sum.
pub(super) const TRAILER_LEN: usize = 5;

/// Most bytes that Snappy makes of one compressed byte: a copy of 64 bytes takes 3.
const SNAPPY_EXPANSION_MAX: usize = 32;

/// Most bytes of a block's keys by the bytes of the block. A writer shares at most 15 keys' bytes
/// with one complete key.
const KEY_EXPANSION_MAX: usize = 32;

/// An entry of a table: key and value.
pub(super) type Entry = (Vec<u8>, Vec<u8>);

/// What is wrong, and the position in the file.
pub(super) type Fault = (u64, String);

/// Returns all entries of a table, in the order of their keys.
pub(super) fn read(file: &[u8]) -> Result<Vec<Entry>, Fault> {
    let end = file.len() as u64;
    let Some(footer_at) = file.len().checked_sub(FOOTER_LEN) else {
        return Err((end, "the file is too short for an index".to_owned()));
    };
    let (handles, magic) = file[footer_at..].split_at(FOOTER_LEN - 8);
    if *magic != MAGIC.to_le_bytes() {
        return Err((end - 8, "the file does not end as an index does".to_owned()));
    }
    let footer = |problem| (footer_at as u64, problem);
    let mut handles = handles;
    let meta_index = Handle::read(&mut handles).map_err(footer)?;
    // It has no entries, but a wrong sum tells that the file is damaged.
    block_entries(file, meta_index)?;
    let index = Handle::read(&mut handles).map_err(footer)?;
    let mut entries = Vec::new();
    for (_, handle) in block_entries(file, index)? {
        let handle = Handle::read(&mut &handle[..]).map_err(|problem| (index.offset, problem))?;
        entries.append(&mut block_entries(file, handle)?);
        if entries.len() > file.len() {
            return Err((index.offset, "blocks are listed repeatedly".to_owned()));
        }
    }
    if let Some(pair) = entries.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        let key = String::from_utf8_lossy(&pair[1].0);
        return Err((0, format!("key `{key}` is not in order")));
    }
    Ok(entries)
}

/// Position and size of a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handle {
    pub(super) offset: u64,
    pub(super) size: u64,
}

impl Handle {
    fn read(bytes: &mut &[u8]) -> Result<Self, String> {
        Ok(Self {
            offset: varint(bytes)?,
            size: varint(bytes)?,
        })
    }
}

fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    prost::encoding::decode_varint(bytes).map_err(|_| "a number is malformed".to_owned())
}

fn length(bytes: &mut &[u8]) -> Result<usize, String> {
    usize::try_from(varint(bytes)?).map_err(|_| "a length is too large".to_owned())
}

/// Returns the entries of a block, whose sum is checked.
fn block_entries(file: &[u8], handle: Handle) -> Result<Vec<Entry>, Fault> {
    let fault = |problem: String| (handle.offset, problem);
    let range = || {
        let start = usize::try_from(handle.offset).ok()?;
        let end = start.checked_add(usize::try_from(handle.size).ok()?)?;
        file.get(start..end.checked_add(TRAILER_LEN)?)
    };
    let Some(block) = range() else {
        return Err(fault("a block is outside of the file".to_owned()));
    };
    let (summed, stored) = block.split_last_chunk().expect("it has a trailer");
    if !sum::is_right(u32::from_le_bytes(*stored), sum::masked(summed)) {
        return Err(fault("the sum of a block is wrong".to_owned()));
    }
    let (content, compression) = summed.split_at(summed.len() - 1);
    match compression {
        [0] => entries(content),
        [1] => entries(&decompress(content).map_err(fault)?),
        other => Err(format!(
            "a block is compressed in an unknown way ({})",
            other[0]
        )),
    }
    .map_err(fault)
}

fn decompress(content: &[u8]) -> Result<Vec<u8>, String> {
    let malformed = |error: snap::Error| format!("a block cannot be decompressed ({error})");
    let claimed = snap::raw::decompress_len(content).map_err(malformed)?;
    if claimed > content.len().saturating_mul(SNAPPY_EXPANSION_MAX) {
        return Err("a block claims an impossible size".to_owned());
    }
    snap::raw::Decoder::new()
        .decompress_vec(content)
        .map_err(malformed)
}

/// Parses a block.
fn entries(block: &[u8]) -> Result<Vec<Entry>, String> {
    let malformed = || "a block is malformed".to_owned();
    let (rest, n_restarts) = block.split_last_chunk::<4>().ok_or_else(malformed)?;
    let n_restarts = u32::from_le_bytes(*n_restarts) as usize;
    let restarts_len = n_restarts.checked_mul(4).ok_or_else(malformed)?;
    let end = rest.len().checked_sub(restarts_len).ok_or_else(malformed)?;
    let mut rest = &rest[..end];
    let mut entries = Vec::new();
    let mut key: Vec<u8> = Vec::new();
    let mut keys_left = block.len().saturating_mul(KEY_EXPANSION_MAX);
    while !rest.is_empty() {
        let n_shared = length(&mut rest)?;
        let n_own = length(&mut rest)?;
        let n_value = length(&mut rest)?;
        if n_shared > key.len() || n_own > rest.len() {
            return Err(malformed());
        }
        let (own, after) = rest.split_at(n_own);
        if n_value > after.len() {
            return Err(malformed());
        }
        let (value, after) = after.split_at(n_value);
        key.truncate(n_shared);
        key.extend_from_slice(own);
        // Otherwise entries of a few bytes would repeat a long key, without end.
        keys_left = match keys_left.checked_sub(key.len()) {
            Some(left) => left,
            None => return Err("its keys are longer than a block can hold".to_owned()),
        };
        entries.push((key.clone(), value.to_vec()));
        rest = after;
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_key_is_not_repeated_without_end() {
        let n_shared = 60_000;
        let mut block = Vec::new();
        let mut entry = |shared: u64, own: &[u8]| {
            for number in [shared, own.len() as u64, 0] {
                prost::encoding::encode_varint(number, &mut block);
            }
            block.extend_from_slice(own);
        };
        entry(0, &vec![b'k'; n_shared]);
        for _ in 0..100_000 {
            entry(n_shared as u64, b"");
        }
        block.extend_from_slice(&0u32.to_le_bytes());
        let error = entries(&block).unwrap_err();
        assert!(error.contains("longer"), "{error}");
    }
}
