//! Checkpoints, as the nodes of a graph's own saver read and write them.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::value::scalar;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::CheckpointError;
use crate::checkpoint::merge_checkpoints;
use crate::checkpoint::write_slices;
use crate::device::AllocatorAttributes;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::tensor::Tensor;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(def("ShardedFilename").with_factory(|_| kernel(sharded_filename)));
    registry.register(def("ShardedFilespec").with_factory(|_| kernel(sharded_filespec)));
    registry.register(def("SaveV2").with_factory(|_| kernel(save)));
    registry.register(def("RestoreV2").with_factory(restore));
    registry.register(def("MergeV2Checkpoints").with_factory(merge));
}

fn failed(error: &CheckpointError) -> KernelError {
    KernelError::invalid(error.to_string())
}

/// Returns a text among the elements of an input.
fn text(string: &[u8], what: &str) -> Result<String, KernelError> {
    String::from_utf8(string.to_vec()).map_err(|_| {
        KernelError::invalid(format!(
            "{what} `{}` is not UTF-8, which names in checkpoints and of files must be",
            String::from_utf8_lossy(string)
        ))
    })
}

/// Returns the strings of an input.
fn strings_of(
    context: &KernelContext<'_>,
    index: usize,
    what: &str,
) -> Result<Vec<String>, KernelError> {
    let strings = context.input(index)?.as_strings()?.iter();
    strings.map(|string| text(string, what)).collect()
}

/// Returns the text of an input, which must be a scalar.
fn scalar_text(
    context: &KernelContext<'_>,
    index: usize,
    what: &str,
) -> Result<String, KernelError> {
    let input = context.input(index)?;
    match (input.shape().rank(), input.as_strings()?) {
        (0, [string]) => text(string, what),
        _ => Err(KernelError::invalid(format!(
            "input {what} should be a scalar, got a tensor of shape {}",
            input.shape()
        ))),
    }
}

fn set_string(context: &KernelContext<'_>, string: &str) -> Result<(), KernelError> {
    let strings = vec![string.into()];
    context.set_output(0, Tensor::from_strings([].into(), strings)?)
}

/// TensorFlow `ShardedFilename`.
fn sharded_filename(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let base = scalar_text(context, 0, "basename")?;
    let shard = scalar(context.input(1)?, "shard")?;
    let n_shards = scalar(context.input(2)?, "num_shards")?;
    set_string(context, &format!("{base}-{shard:05}-of-{n_shards:05}"))
}

/// TensorFlow `ShardedFilespec`.
fn sharded_filespec(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let base = scalar_text(context, 0, "basename")?;
    let n_shards = scalar(context.input(1)?, "num_shards")?;
    set_string(context, &format!("{base}-?????-of-{n_shards:05}"))
}

/// The first inputs of savers: prefix, and per tensor its name and slice.
struct Named {
    prefix: PathBuf,
    tensors: Vec<(String, String)>,
}

fn named(context: &KernelContext<'_>, n_tensors: usize) -> Result<Named, KernelError> {
    let prefix = scalar_text(context, 0, "prefix")?;
    for (index, what) in [(1, "tensor_names"), (2, "shape_and_slices")] {
        let shape = context.input(index)?.shape();
        if shape.dims() != [n_tensors] {
            return Err(KernelError::invalid(format!(
                "input {what} should be a vector of {n_tensors} elements, one per tensor, got a \
                 tensor of shape {shape}"
            )));
        }
    }
    let names = strings_of(context, 1, "tensor_names")?;
    let slices = strings_of(context, 2, "shape_and_slices")?;
    Ok(Named {
        prefix: prefix.into(),
        tensors: names.into_iter().zip(slices).collect(),
    })
}

/// TensorFlow `SaveV2`.
fn save(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let named = named(context, context.n_inputs().saturating_sub(3))?;
    if let Some(folder) = named.prefix.parent() {
        fs::create_dir_all(folder).map_err(|error| {
            KernelError::invalid(format!(
                "the folder {} of a checkpoint cannot be made: {error}",
                folder.display()
            ))
        })?;
    }
    let tensors = named.tensors.iter().zip(context.inputs().skip(3));
    let tensors = tensors.map(|((name, slice), tensor)| (name.as_str(), slice.as_str(), tensor));
    write_slices(&named.prefix, tensors.collect()).map_err(|error| failed(&error))
}

/// TensorFlow `RestoreV2`.
fn restore(node: &KernelConstruction<'_>) -> Made {
    let dtypes = node.output_dtypes.to_vec();
    kernel(move |context| {
        let named = named(context, dtypes.len())?;
        let checkpoint = Checkpoint::open(named.prefix).map_err(|error| failed(&error))?;
        for (index, ((name, slice), &dtype)) in named.tensors.iter().zip(&dtypes).enumerate() {
            let literal = checkpoint.read_slice(name, slice);
            let literal = literal.map_err(|error| failed(&error))?;
            if literal.dtype() != dtype {
                return Err(KernelError::invalid(format!(
                    "checkpoint {}: tensor `{name}` is of type {}, it is restored as {dtype}",
                    checkpoint.prefix().display(),
                    literal.dtype()
                )));
            }
            let attributes = AllocatorAttributes::default();
            context.set_output(index, context.device().make_tensor(&literal, attributes)?)?;
        }
        Ok(())
    })
}

/// TensorFlow `MergeV2Checkpoints`.
fn merge(node: &KernelConstruction<'_>) -> Made {
    let deletes_folders = bool_attr(node, "delete_old_dirs", true)?;
    let may_be_missing = bool_attr(node, "allow_missing_files", false)?;
    kernel(move |context| {
        let prefixes = strings_of(context, 0, "checkpoint_prefixes")?;
        let prefixes: Vec<PathBuf> = prefixes.into_iter().map(PathBuf::from).collect();
        let merged = PathBuf::from(scalar_text(context, 1, "destination_prefix")?);
        merge_checkpoints(&prefixes, &merged, may_be_missing).map_err(|error| failed(&error))?;
        if deletes_folders {
            let folders = prefixes.iter().filter_map(|prefix| prefix.parent());
            for folder in folders.filter(|&folder| Some(folder) != merged.parent()) {
                delete_if_empty(folder);
            }
        }
        Ok(())
    })
}

/// Folders with other files stay, and the second checkpoint of a folder finds it deleted.
fn delete_if_empty(folder: &Path) {
    let _ = fs::remove_dir(folder);
}
