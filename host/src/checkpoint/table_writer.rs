//! Writes a sorted table, uncompressed, as TensorFlow's `BundleWriter` does.

use std::io;
use std::io::Write;

use prost::encoding::encode_varint;

use super::sum;
use super::table::FOOTER_LEN;
use super::table::Handle;
use super::table::MAGIC;

/// Bytes after which a block ends.
const BLOCK_LEN: usize = 256 << 10;

/// Entries from one complete key to the next.
const RESTART_INTERVAL: usize = 16;

/// Writes a table, entry by entry.
pub(super) struct TableWriter<W> {
    file: W,
    offset: u64,
    block: Block,
    index: Block,
    /// The last block: its last key, and where it is. Its key in the index may depend on the next
    /// one.
    ended: Option<(Vec<u8>, Handle)>,
}

impl<W: Write> TableWriter<W> {
    pub(super) fn new(file: W) -> Self {
        Self {
            file,
            offset: 0,
            block: Block::new(RESTART_INTERVAL),
            index: Block::new(1),
            ended: None,
        }
    }

    /// Adds an entry. Keys must ascend.
    pub(super) fn add(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if let Some((last, handle)) = self.ended.take() {
            self.index.add(&separator(last, key), &handle_bytes(handle));
        }
        self.block.add(key, value);
        if self.block.bytes.len() >= BLOCK_LEN {
            self.end_block()?;
        }
        Ok(())
    }

    fn end_block(&mut self) -> io::Result<()> {
        let block = std::mem::replace(&mut self.block, Block::new(RESTART_INTERVAL));
        if block.n_entries == 0 {
            return Ok(());
        }
        let last_key = block.last_key.clone();
        let handle = self.write_block(block)?;
        self.ended = Some((last_key, handle));
        Ok(())
    }

    fn write_block(&mut self, block: Block) -> io::Result<Handle> {
        let mut bytes = block.finish();
        let handle = Handle {
            offset: self.offset,
            size: bytes.len() as u64,
        };
        // No compression.
        bytes.push(0);
        bytes.extend(sum::masked(&bytes).to_le_bytes());
        self.file.write_all(&bytes)?;
        self.offset += bytes.len() as u64;
        Ok(handle)
    }

    /// Ends the table.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.end_block()?;
        if let Some((last, handle)) = self.ended.take() {
            self.index.add(&successor(last), &handle_bytes(handle));
        }
        let meta_index = self.write_block(Block::new(RESTART_INTERVAL))?;
        let index = std::mem::replace(&mut self.index, Block::new(1));
        let index = self.write_block(index)?;
        let mut footer = handle_bytes(meta_index);
        footer.extend(handle_bytes(index));
        footer.resize(FOOTER_LEN - 8, 0);
        footer.extend(MAGIC.to_le_bytes());
        self.file.write_all(&footer)?;
        self.file.flush()
    }
}

/// Returns a short key that is not before `key` and before `next` (LevelDB's
/// `FindShortestSeparator`).
fn separator(mut key: Vec<u8>, next: &[u8]) -> Vec<u8> {
    let differing = key.iter().zip(next).position(|(left, right)| left != right);
    if let Some(position) = differing
        && let Some(larger) = key[position].checked_add(1)
        && larger < next[position]
    {
        key[position] = larger;
        key.truncate(position + 1);
    }
    key
}

/// Returns a short key that is not before `key` (LevelDB's `FindShortSuccessor`).
fn successor(mut key: Vec<u8>) -> Vec<u8> {
    if let Some(position) = key.iter().position(|&byte| byte != 0xff) {
        key[position] += 1;
        key.truncate(position + 1);
    }
    key
}

fn handle_bytes(handle: Handle) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_varint(handle.offset, &mut bytes);
    encode_varint(handle.size, &mut bytes);
    bytes
}

/// A block that grows.
struct Block {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    restart_interval: usize,
    n_entries: usize,
    last_key: Vec<u8>,
}

impl Block {
    fn new(restart_interval: usize) -> Self {
        Self {
            bytes: Vec::new(),
            restarts: vec![0],
            restart_interval,
            n_entries: 0,
            last_key: Vec::new(),
        }
    }

    fn add(&mut self, key: &[u8], value: &[u8]) {
        let mut n_shared = 0;
        if !self.n_entries.is_multiple_of(self.restart_interval) {
            let pairs = self.last_key.iter().zip(key);
            n_shared = pairs.take_while(|(left, right)| left == right).count();
        } else if self.n_entries > 0 {
            // A block ends at 256 KiB and one more entry; names of 4 GiB are refused before.
            let position = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
            self.restarts.push(position);
        }
        for length in [n_shared, key.len() - n_shared, value.len()] {
            encode_varint(length as u64, &mut self.bytes);
        }
        self.bytes.extend_from_slice(&key[n_shared..]);
        self.bytes.extend_from_slice(value);
        self.last_key = key.to_vec();
        self.n_entries += 1;
    }

    fn finish(mut self) -> Vec<u8> {
        let n_restarts = u32::try_from(self.restarts.len()).unwrap_or(u32::MAX);
        for position in self.restarts {
            self.bytes.extend(position.to_le_bytes());
        }
        self.bytes.extend(n_restarts.to_le_bytes());
        self.bytes
    }
}
