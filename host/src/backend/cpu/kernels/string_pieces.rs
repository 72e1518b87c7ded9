//! Strings that are split, joined, and made of several tensors.

use std::fmt::Write as _;

use crate::backend::cpu::kernels::checks::write_element;
use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::strings::scalar_string;
use crate::backend::cpu::kernels::strings::set_strings;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::ints_attr;
use crate::backend::plan::attr::string_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::indices;
use crate::backend::plan::value::scalar;
use crate::backend::types::INDICES;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::ngrams::Ngrams;
use crate::kernels::scratch;
use crate::kernels::strings;
use crate::tensor::ByteString;
use crate::tensor::DType;
use crate::tensor::RANK_MAX;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(def("StringSplit").with_factory(|node| {
        let skips_empty = bool_attr(node, "skip_empty", true)?;
        kernel(move |context| {
            let delimiters = scalar_string(context, 1, "delimiter")?;
            split(context, |string, piece| {
                strings::split(string, delimiters, skips_empty, piece);
            })
        })
    }));
    registry.register(def("StringSplitV2").with_factory(|node| {
        let most = int_attr(node, "maxsplit", Some(-1))?;
        kernel(move |context| {
            let separator = scalar_string(context, 1, "sep")?;
            split(context, |string, piece| {
                strings::split_at(string, separator, most, piece);
            })
        })
    }));
    registry.register(
        def("StringNGrams")
            .with_types("Tsplits", &INDICES)
            .with_factory(ngrams),
    );
    registry.register(def("StringJoin").with_factory(join));
    registry.register(def("ReduceJoin").with_factory(reduce_join));
    registry.register(
        def("UnsortedSegmentJoin")
            .with_types("Tindices", &INDICES)
            .with_types("Tnumsegments", &INDICES)
            .with_factory(segment_join),
    );
    registry.register(def("StringFormat").with_factory(format));
}

/// Sets outputs 0 to 2 to the sparse tensor of the pieces of each string.
fn split<'a>(
    context: &'a KernelContext<'_>,
    pieces: impl Fn(&'a [u8], &mut dyn FnMut(&'a [u8])),
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    if input.shape().rank() != 1 {
        return Err(KernelError::invalid(format!(
            "input must be a vector, got shape: {}",
            input.shape()
        )));
    }
    let rows = input.as_strings()?;
    let mut found = scratch::list::<ByteString>(rows.len())?;
    let mut n_pieces = scratch::list::<usize>(rows.len())?;
    for string in rows {
        let before = found.len();
        pieces(string, &mut |piece| found.push(piece.into()));
        n_pieces.push(found.len() - before);
    }
    let shape = Shape::new(&[found.len(), 2]);
    context.fill_output(0, &shape, |out: &mut [i64]| {
        let rows = n_pieces.iter().enumerate();
        let places = rows.flat_map(|(row, &n)| (0..n).map(move |column| (row, column)));
        for (slot, (row, column)) in out.chunks_exact_mut(2).zip(places) {
            slot[0] = i64::try_from(row).unwrap_or(i64::MAX);
            slot[1] = i64::try_from(column).unwrap_or(i64::MAX);
        }
        Ok(())
    })?;
    let widest = n_pieces.iter().copied().max().unwrap_or(0);
    context.fill_output(2, &Shape::new(&[2]), |out: &mut [i64]| {
        out[0] = i64::try_from(rows.len()).unwrap_or(i64::MAX);
        out[1] = i64::try_from(widest).unwrap_or(i64::MAX);
        Ok(())
    })?;
    let shape = Shape::new(&[found.len()]);
    context.set_output(1, Tensor::from_strings(shape, found)?)
}

/// TensorFlow `StringNGrams`.
fn ngrams(node: &KernelConstruction<'_>) -> Made {
    let widths = ints_attr(node, "ngram_widths", &[])?;
    if widths.iter().any(|&width| width <= 0) {
        return Err(KernelError::invalid(
            "ngram_widths must contain positive values",
        ));
    }
    let ngrams = Ngrams {
        separator: string_attr(node, "separator", "")?.as_bytes().into(),
        left_pad: string_attr(node, "left_pad", "")?.as_bytes().into(),
        right_pad: string_attr(node, "right_pad", "")?.as_bytes().into(),
        pad_width: int_attr(node, "pad_width", None)?,
        widths: widths.into(),
        preserves_short: bool_attr(node, "preserve_short_sequences", false)?,
    };
    let is_wide = type_attr(node, "Tsplits")? == DType::I64;
    kernel(move |context| {
        let data = context.input(0)?.as_strings()?;
        let splits = indices(context.input(1)?)?;
        let shape = context.input(1)?.shape().clone();
        let mut found = scratch::list::<ByteString>(data.len())?;
        let mut ends = scratch::list::<i64>(splits.len())?;
        if let [first, ..] = splits.as_slice() {
            check_splits(&splits, data.len())?;
            ends.push(*first);
        }
        for row in splits.windows(2) {
            let range = [row[0], row[1]].map(|at| usize::try_from(at).unwrap_or(0));
            let row = &data[range[0]..range[1]];
            let made = ngrams.of_row(row, &mut |ngram| found.push(ngram.into()));
            if !data.is_empty() {
                made.map_err(KernelError::InvalidArgument)?;
            }
            ends.push(i64::try_from(found.len()).unwrap_or(i64::MAX));
        }
        if data.is_empty() {
            found.clear();
            ends.fill(0);
        }
        set_indices(context, 1, &shape, &ends, is_wide)?;
        let shape = Shape::new(&[found.len()]);
        context.set_output(0, Tensor::from_strings(shape, found)?)
    })
}

/// Checks that these are the starts of rows, and the end of the last one.
fn check_splits(splits: &[i64], n: usize) -> Result<(), KernelError> {
    let n = i64::try_from(n).unwrap_or(i64::MAX);
    if splits[0] != 0 {
        return Err(KernelError::invalid(format!(
            "First split value must be 0, got {}",
            splits[0]
        )));
    }
    for pair in splits.windows(2) {
        if pair[1] < pair[0] || pair[1] > n {
            return Err(KernelError::invalid(format!(
                "Invalid split value {}, must be in [{}, {n}]",
                pair[1], pair[0]
            )));
        }
    }
    match splits.last() {
        Some(&last) if last != n => Err(KernelError::invalid(format!(
            "Last split value must be data size. Expected {n}, got {last}"
        ))),
        _ => Ok(()),
    }
}

/// Sets an output to integers, of type `int64` if `is_wide`, and of `int32` otherwise.
pub(super) fn set_indices(
    context: &KernelContext<'_>,
    index: usize,
    shape: &Shape,
    values: &[i64],
    is_wide: bool,
) -> Result<(), KernelError> {
    if is_wide {
        return context.fill_output(index, shape, |out: &mut [i64]| {
            out.copy_from_slice(values);
            Ok(())
        });
    }
    context.fill_output(index, shape, |out: &mut [i32]| {
        for (slot, &value) in out.iter_mut().zip(values) {
            *slot = i32::try_from(value).map_err(|_| {
                KernelError::invalid(format!("{value} does not fit into {}", DType::I32))
            })?;
        }
        Ok(())
    })
}

/// TensorFlow `StringJoin`.
fn join(node: &KernelConstruction<'_>) -> Made {
    let separator = string_attr(node, "separator", "")?.to_owned();
    kernel(move |context| {
        let mut shape = Shape::scalar();
        for input in context.inputs() {
            if shape.rank() == 0 {
                shape = input.shape().clone();
            } else if input.shape().rank() > 0 && *input.shape() != shape {
                return Err(KernelError::invalid(format!(
                    "Input shapes do not match: {shape} vs. {}",
                    input.shape()
                )));
            }
        }
        let mut inputs = scratch::list(context.n_inputs())?;
        for index in 0..context.n_inputs() {
            let input = context.input(index)?;
            inputs.push((input.shape().rank() == 0, input.as_strings()?));
        }
        let joined = (0..shape.n_elements()).map(|index| {
            let parts = inputs
                .iter()
                .map(|(is_scalar, strings)| &*strings[if *is_scalar { 0 } else { index }]);
            joined(parts, separator.as_bytes())
        });
        set_strings(context, 0, &shape, joined)
    })
}

/// Returns the parts with a separator between them.
fn joined<'a>(
    parts: impl Iterator<Item = &'a [u8]> + Clone,
    separator: &[u8],
) -> Result<ByteString, KernelError> {
    let n_bytes = parts.clone().fold(0usize, |sum, part| {
        sum.saturating_add(part.len())
            .saturating_add(separator.len())
    });
    let mut string = scratch::list::<u8>(n_bytes)?;
    for (index, part) in parts.enumerate() {
        if index > 0 {
            string.extend_from_slice(separator);
        }
        string.extend_from_slice(part);
    }
    Ok(string.into())
}

/// TensorFlow `ReduceJoin`.
fn reduce_join(node: &KernelConstruction<'_>) -> Made {
    let keeps_dims = bool_attr(node, "keep_dims", false)?;
    let separator = string_attr(node, "separator", "")?.to_owned();
    kernel(move |context| {
        let input = context.input(0)?;
        let strings = input.as_strings()?;
        let dims = input.shape().dims();
        let axes = indices(context.input(1)?)?;
        let rank = i64::try_from(dims.len()).unwrap_or(i64::MAX);
        let mut is_reduced = [false; RANK_MAX];
        let mut order = scratch::list::<usize>(axes.len().min(dims.len()))?;
        for axis in axes {
            let from_start = if axis < 0 { axis + rank } else { axis };
            let Some(place) = usize::try_from(from_start)
                .ok()
                .filter(|&at| at < dims.len())
            else {
                return Err(KernelError::invalid(format!(
                    "Invalid reduction dimension {axis} for input with {rank} dimension(s)"
                )));
            };
            if std::mem::replace(&mut is_reduced[place], true) {
                return Err(KernelError::invalid(format!(
                    "Duplicate reduction dimension {axis}"
                )));
            }
            order.push(place);
        }
        // The first axis varies fastest.
        order.reverse();
        let kept = || (0..dims.len()).filter(|&axis| !is_reduced[axis]);
        let shape: Shape = (0..dims.len())
            .filter(|&axis| keeps_dims || !is_reduced[axis])
            .map(|axis| if is_reduced[axis] { 1 } else { dims[axis] })
            .collect();
        let n_joined = order
            .iter()
            .fold(1usize, |n, &axis| n.saturating_mul(dims[axis]));
        let place = |mut index: usize, axes: &mut dyn Iterator<Item = usize>| {
            let mut at = 0;
            for axis in axes {
                let stride: usize = dims[axis + 1..].iter().product();
                at += index % dims[axis] * stride;
                index /= dims[axis];
            }
            at
        };
        let joined = (0..shape.n_elements()).map(|index| {
            let start = place(index, &mut kept().rev());
            let parts = (0..n_joined)
                .map(|part| &*strings[start + place(part, &mut order.iter().rev().copied())]);
            joined(parts, separator.as_bytes())
        });
        set_strings(context, 0, &shape, joined)
    })
}

/// TensorFlow `UnsortedSegmentJoin`.
fn segment_join(node: &KernelConstruction<'_>) -> Made {
    let separator = string_attr(node, "separator", "")?.to_owned();
    kernel(move |context| {
        let (input, ids) = (context.input(0)?, context.input(1)?);
        let strings = input.as_strings()?;
        let n = scalar(context.input(2)?, "num_segments")?;
        let n_segments = usize::try_from(n).map_err(|_| {
            KernelError::invalid(format!(
                "Number of segments must be non-negative but got {n}"
            ))
        })?;
        let (dims, rank) = (input.shape().dims(), ids.shape().rank());
        if rank == 0 || dims.get(..rank) != Some(ids.shape().dims()) {
            return Err(KernelError::invalid(format!(
                "segment_ids must have a rank of at least 1, and input must start with their \
                 shape; the shapes are {} and {}",
                ids.shape(),
                input.shape()
            )));
        }
        let inner = Shape::new(&dims[rank..]).n_elements();
        let shape: Shape = std::iter::once(n_segments)
            .chain(dims[rank..].iter().copied())
            .collect();
        shape.size_bytes(DType::String).map_err(TensorError::from)?;
        let ids = indices(ids)?;
        // The rows of each segment, one segment after the other, in their order.
        let mut rows = scratch::list::<(usize, usize)>(ids.len())?;
        for (row, &id) in ids.iter().enumerate() {
            let id = usize::try_from(id).ok().filter(|&id| id < n_segments);
            let id = id.ok_or_else(|| {
                KernelError::invalid(
                    "segment_ids are not allowed to exceed num_segments or to have negative values",
                )
            })?;
            rows.push((id, row));
        }
        rows.sort_unstable();
        let mut first = 0;
        let segments = (0..n_segments).flat_map(|segment| {
            let rest = &rows[first..];
            let of_segment = &rest[..rest.iter().take_while(|(id, _)| *id == segment).count()];
            first += of_segment.len();
            let (strings, separator) = (&strings, separator.as_bytes());
            (0..inner).map(move |column| {
                let parts = of_segment.iter();
                joined(
                    parts.map(move |(_, row)| &*strings[row * inner + column]),
                    separator,
                )
            })
        });
        set_strings(context, 0, &shape, segments)
    })
}

/// TensorFlow `StringFormat`.
fn format(node: &KernelConstruction<'_>) -> Made {
    let template = string_attr(node, "template", "%s")?.to_owned();
    let placeholder = string_attr(node, "placeholder", "%s")?.to_owned();
    let n_shown = int_attr(node, "summarize", Some(3))?;
    let n_places = match placeholder.is_empty() {
        true => 0,
        false => template.matches(&placeholder).count(),
    };
    if n_places != node.input_dtypes.len() {
        return Err(KernelError::invalid(format!(
            "num placeholders in template and num inputs must match: {n_places} vs. {}",
            node.input_dtypes.len()
        )));
    }
    kernel(move |context| {
        let mut text = String::new();
        let mut inputs = context.inputs();
        let mut parts = match placeholder.is_empty() {
            true => template.split("\0\0").peekable(),
            false => template.split(placeholder.as_str()).peekable(),
        };
        while let Some(part) = parts.next() {
            text.push_str(part);
            if parts.peek().is_some()
                && let Some(input) = inputs.next()
            {
                let edge = usize::try_from(n_shown).unwrap_or(usize::MAX);
                match (edge, input.shape().rank()) {
                    (0, 0) => text.push_str("..."),
                    _ => write_edges(input, input.shape().dims(), 0, 0, edge, &mut text),
                }
            }
        }
        let text = std::iter::once(Ok(text.into_bytes().into()));
        set_strings(context, 0, &Shape::scalar(), text)
    })
}

/// Writes the first and the last elements of each axis from `axis` on, as TensorFlow's `PrintV2`.
fn write_edges(
    tensor: &Tensor,
    dims: &[usize],
    axis: usize,
    at: usize,
    edge: usize,
    text: &mut String,
) {
    let Some(&size) = dims.get(axis) else {
        return write_quoted(tensor, at, text);
    };
    let stride: usize = dims[axis + 1..].iter().product();
    let space = |text: &mut String| match dims.len() - axis - 1 {
        0 => text.push(' '),
        n => {
            // Writing to a string does not fail.
            let _ = write!(text, "{:\n<n$}{:width$}", "", "", width = axis + 1);
        }
    };
    text.push('[');
    for index in 0..size.min(edge) {
        if index > 0 {
            space(text);
        }
        write_edges(tensor, dims, axis + 1, at + index * stride, edge, text);
    }
    if size > edge.saturating_mul(2) {
        space(text);
        text.push_str("...");
    }
    for index in edge.max(size.saturating_sub(edge))..size {
        space(text);
        write_edges(tensor, dims, axis + 1, at + index * stride, edge, text);
    }
    text.push(']');
}

/// Writes one element; strings are quoted, and stay UTF-8.
fn write_quoted(tensor: &Tensor, index: usize, text: &mut String) {
    let Some(string) = tensor
        .as_strings()
        .ok()
        .and_then(|strings| strings.get(index))
    else {
        return write_element(tensor, index, text);
    };
    text.push('"');
    for chunk in string.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '"' | '\'' | '\\' => {
                    text.push('\\');
                    text.push(character);
                }
                '\0'..'\x20' | '\x7f' => {
                    let _ = write!(text, "\\{:03o}", u32::from(character));
                }
                _ => text.push(character),
            }
        }
        if !chunk.invalid().is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    text.push('"');
}
