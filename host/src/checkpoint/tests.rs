//! Round trips, and damaged files. Files of TensorFlow are read in `tests/all`.

use std::fs;
use std::path::Path;

use prost::Message;

use super::*;
use crate::tensor::ByteString;
use crate::tensor::HostAllocator;
use crate::tensor::Tensor;

fn tensors() -> Vec<(String, Tensor)> {
    let mut tensors: Vec<(String, Tensor)> = (0..40u16)
        .map(|index| {
            let values = [f32::from(index), 0.5, -1.0];
            let tensor = Tensor::from_values([1, 3], &values).unwrap();
            (format!("layer_{index:02}/kernel"), tensor)
        })
        .collect();
    let strings: Vec<ByteString> = vec![b"one"[..].into(), b""[..].into(), vec![7; 300].into()];
    let strings = Tensor::from_strings([3].into(), strings).unwrap();
    tensors.push(("_strings".to_owned(), strings));
    let empty = Tensor::from_values([0, 4], &[] as &[i64]).unwrap();
    tensors.push(("empty".to_owned(), empty));
    let flags = Tensor::from_bools([2], &[true, false]).unwrap();
    tensors.push(("flags".to_owned(), flags));
    tensors
}

fn write(prefix: &Path, tensors: &[(String, Tensor)]) {
    let tensors = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    write_checkpoint(prefix, tensors).unwrap();
}

fn tensor(literal: &Literal) -> Tensor {
    literal
        .to_tensor(&HostAllocator::new("test", 1 << 20))
        .unwrap()
}

fn is_same(left: &Tensor, right: &Tensor) -> bool {
    let strings = |tensor: &Tensor| tensor.as_strings().map(<[_]>::to_vec).ok();
    let bytes = |tensor: &Tensor| tensor.as_bytes().map(<[_]>::to_vec).ok();
    left.dtype() == right.dtype()
        && left.shape() == right.shape()
        && strings(left) == strings(right)
        && bytes(left) == bytes(right)
}

#[test]
fn what_is_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("model.v1");
    let expected = tensors();
    write(&prefix, &expected);
    let checkpoint = Checkpoint::open(&prefix).unwrap();
    assert_eq!(checkpoint.tensors().len(), expected.len());
    for (name, expected) in &expected {
        assert!(
            is_same(&tensor(&checkpoint.read(name).unwrap()), expected),
            "{name}"
        );
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

/// The index has several blocks.
#[test]
fn a_checkpoint_may_have_thousands_of_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("many");
    let value = Tensor::from_values([1], &[1i32]).unwrap();
    let many: Vec<_> = (0..9000)
        .map(|index| (format!("v{index}"), value.clone()))
        .collect();
    write(&prefix, &many);
    let checkpoint = Checkpoint::open(&prefix).unwrap();
    assert_eq!(checkpoint.tensors().len(), 9000);
    assert!(is_same(&tensor(&checkpoint.read("v8999").unwrap()), &value));
}

#[test]
fn names_that_are_not_there_and_files_that_are_not_there_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("model");
    let error = Checkpoint::open(&prefix).unwrap_err().to_string();
    assert!(error.contains("model.index does not exist"), "{error}");
    write(&prefix, &tensors());
    let checkpoint = Checkpoint::open(&prefix).unwrap();
    let error = checkpoint.read("kernel").unwrap_err().to_string();
    assert!(
        error.contains("no tensor `kernel`; it has `_strings`"),
        "{error}"
    );
    fs::remove_file(folder.path().join("model.data-00000-of-00001")).unwrap();
    let error = Checkpoint::open(&prefix).unwrap_err().to_string();
    assert!(error.contains("model.data-00000-of-00001"), "{error}");
    fs::write(folder.path().join("old"), b"x").unwrap();
    let error = Checkpoint::open(folder.path().join("old"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("version 1"), "{error}");
}

#[test]
fn other_byte_orders_and_versions_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("model");
    write(&prefix, &[]);
    for (endianness, min_consumer, num_shards, expected) in [
        (1, 0, 1, "big-endian"),
        (0, 2, 1, "version 2"),
        (0, 0, 0, "0 shards"),
    ] {
        let version = Some(proto::VersionDef {
            producer: 1,
            min_consumer,
        });
        let header = BundleHeader {
            num_shards,
            endianness,
            version,
        };
        let file = File::create(folder.path().join("model.index")).unwrap();
        let mut table = table_writer::TableWriter::new(file);
        table.add(&[], &header.encode_to_vec()).unwrap();
        table.finish().unwrap();
        let error = Checkpoint::open(&prefix).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Reads everything; returns whether all of it is as it was written.
fn reads_as(prefix: &Path, expected: &[(String, Tensor)]) -> Result<bool, CheckpointError> {
    let checkpoint = Checkpoint::open(prefix)?;
    let mut is_as_written = checkpoint.tensors().len() == expected.len();
    for (name, expected) in expected {
        is_as_written &= is_same(&tensor(&checkpoint.read(name)?), expected);
    }
    Ok(is_as_written)
}

#[test]
fn damaged_files_give_errors_and_never_other_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("model");
    let expected = tensors();
    write(&prefix, &expected);
    for suffix in [".index", ".data-00000-of-00001"] {
        let path = with_suffix(&prefix, suffix);
        let whole = fs::read(&path).unwrap();
        for length in (0..whole.len()).step_by(64) {
            fs::write(&path, &whole[..length]).unwrap();
            let error = reads_as(&prefix, &expected).unwrap_err().to_string();
            assert!(
                error.contains("model"),
                "{length} bytes of {suffix}: {error}"
            );
        }
        for position in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[position] ^= 1 << (position % 8);
            fs::write(&path, &damaged).unwrap();
            // Padding of the footer has no meaning.
            if let Ok(is_as_written) = reads_as(&prefix, &expected) {
                assert!(is_as_written, "byte {position} of {suffix}");
                assert!(suffix == ".index" && position >= whole.len() - 48);
            }
        }
        fs::write(&path, &whole).unwrap();
    }
    assert!(reads_as(&prefix, &expected).unwrap());
}

#[test]
fn large_tensors_are_read_later_and_checked_then() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("model");
    let values: Vec<f32> = (0..20_000u16).map(f32::from).collect();
    let large = Tensor::from_values([100, 200], &values).unwrap();
    let small = Tensor::from_values([2], &[1i32, 2]).unwrap();
    let all = [("large".to_owned(), large), ("small".to_owned(), small)];
    write(&prefix, &all);
    let checkpoint = Checkpoint::open(&prefix).unwrap();
    let literals = all
        .clone()
        .map(|(name, _)| checkpoint.literal(&name, "").unwrap());
    assert!(matches!(literals[0].data(), LiteralData::Stored(_)));
    assert!(matches!(literals[1].data(), LiteralData::Dense(_)));
    let rows = checkpoint.literal("large", "100 200 3,2:-").unwrap();
    assert_eq!(tensor(&rows).as_slice::<f32>().unwrap(), &values[600..1000]);
    drop(checkpoint);
    for (literal, (name, expected)) in literals.iter().zip(&all) {
        assert!(is_same(&tensor(literal), expected), "{name}");
    }
    // An open file can be read after it is deleted, but not after it is damaged.
    let path = with_suffix(&prefix, ".data-00000-of-00001");
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(is_same(&tensor(&literals[0]), &all[0].1));
    file.write_all_at(&[7], 400).unwrap();
    let read = || literals[0].to_tensor(&HostAllocator::new("test", 1 << 20));
    let error = read().unwrap_err().to_string();
    assert!(
        error.contains("model.data-00000-of-00001: tensor `large`"),
        "{error}"
    );
    assert!(error.contains("the sum of its bytes is wrong"), "{error}");
    file.set_len(1000).unwrap();
    let error = read().unwrap_err().to_string();
    assert!(error.contains("model.data-00000-of-00001"), "{error}");
}

#[test]
fn slices_must_fit_their_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("model");
    let rows = Tensor::from_values([1, 2], &[1i32, 2]).unwrap();
    let floats = Tensor::from_values([1, 2], &[1f32, 2.0]).unwrap();
    for (slices, part) in [
        (vec![("v", "2 2 0,1", &rows)], "not a slice"),
        (
            vec![("v", "2 2 0,2:-", &rows)],
            "has shape [2,2], but the tensor has shape [1,2]",
        ),
        (
            vec![("v", "2 2 0,1:-", &rows), ("v", "3 2 1,1:-", &rows)],
            "of another tensor",
        ),
        (
            vec![("v", "2 2 0,1:-", &rows), ("v", "2 2 1,1:-", &floats)],
            "of another tensor",
        ),
        (
            vec![("v", "2 2 0,1:-", &rows), ("v", "2 2 0,1:-", &rows)],
            "two tensors have this name",
        ),
        (
            vec![("v", "2 2 0,1:-", &rows), ("v", "", &rows)],
            "two tensors have this name",
        ),
    ] {
        let error = write_slices(&prefix, slices).unwrap_err().to_string();
        assert!(error.contains("tensor `v`: "), "{error}");
        assert!(error.contains(part), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn checkpoints_of_several_devices_become_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let [first, second] = [1, 3].map(|n| Tensor::from_values([1, 2], &[n, n + 1]).unwrap());
    write_slices(
        &at("a"),
        vec![("v", "2 2 0,1:-", &first), ("x", "", &first)],
    )
    .unwrap();
    write_slices(
        &at("b"),
        vec![("v", "2 2 1,1:-", &second), ("y", "", &second)],
    )
    .unwrap();
    let error = merge_checkpoints(&[at("a"), at("c")], &at("all"), false);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("c.index does not exist"), "{error}");
    merge_checkpoints(&[at("a"), at("c"), at("b")], &at("all"), true).unwrap();
    let mut files: Vec<String> = fs::read_dir(folder.path())
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(
        files,
        [
            "all.data-00000-of-00002",
            "all.data-00001-of-00002",
            "all.index"
        ]
    );
    let checkpoint = Checkpoint::open(at("all")).unwrap();
    let values = |name: &str| {
        let value = tensor(&checkpoint.read(name).unwrap());
        value.as_slice::<i32>().unwrap().to_vec()
    };
    assert_eq!(values("v"), [1, 2, 3, 4]);
    assert_eq!(values("x"), [1, 2]);
    assert_eq!(values("y"), [3, 4]);
    write_slices(&at("other"), vec![("x", "", &second)]).unwrap();
    let error = merge_checkpoints(&[at("all"), at("other")], &at("both"), false);
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("tensor `x`: another one of the checkpoints"),
        "{error}"
    );
}

/// New names of data files may be old names of others, and a device may have nothing to save.
#[test]
fn merged_checkpoints_have_all_data() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let [first, second] = [1, 3].map(|n| Tensor::from_values([2], &[n, n + 1]).unwrap());
    write_slices(&at("a"), vec![("y", "", &first)]).unwrap();
    write_slices(&at("b"), vec![("x", "", &second)]).unwrap();
    write_slices(&at("empty"), Vec::new()).unwrap();
    let prefixes = [at("a"), at("b"), at("empty")];
    merge_checkpoints(&prefixes, &at("all"), false).unwrap();
    for _ in 0..2 {
        let checkpoint = Checkpoint::open(at("all")).unwrap();
        for (name, expected) in [("y", [1, 2]), ("x", [3, 4])] {
            let value = tensor(&checkpoint.read(name).unwrap());
            assert_eq!(value.as_slice::<i32>().unwrap(), expected, "{name}");
        }
        // The first tensor, `x`, is in the second file.
        merge_checkpoints(&[at("all")], &at("all"), false).unwrap();
    }
}
