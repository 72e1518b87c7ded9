//! Fuzzes the reader of checkpoints: the bytes of an index and of its shard are refused, or each
//! tensor is read in the shape that the index states.
//!
//! The library does not compare sums when it is fuzzed, so damage gets past them.

#![no_main]

use std::fs;
use std::path::PathBuf;
use std::process;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use placewright::checkpoint::Checkpoint;

/// Where the files of a case are, without their suffixes.
static PREFIX: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("placewright-fuzz-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder.join("variables")
});

fuzz_target!(|bytes: &[u8]| {
    // The length of the index, the index, the shard.
    let Some((len, files)) = bytes.split_first_chunk() else {
        return;
    };
    let len = usize::from(u16::from_le_bytes(*len)).min(files.len());
    let (index, shard) = files.split_at(len);
    fs::write(PREFIX.with_extension("index"), index).unwrap();
    fs::write(PREFIX.with_extension("data-00000-of-00001"), shard).unwrap();
    let checkpoint = match Checkpoint::open(&*PREFIX) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return assert!(error.to_string().contains("variables")),
    };
    for entry in checkpoint.tensors() {
        match checkpoint.read(&entry.name) {
            Ok(tensor) => assert_eq!((tensor.dtype(), tensor.shape()), (entry.dtype, &entry.shape)),
            Err(error) => assert!(error.to_string().contains("variables")),
        }
    }
});
