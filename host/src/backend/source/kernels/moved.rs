//! Copies of elements regardless of their values: functions of `move.c`, for units of one element
//! or of several that stay adjacent.

use std::sync::Arc;
use std::sync::OnceLock;

use smallvec::SmallVec;

use crate::backend::plan::attr::type_attr;
use crate::backend::source::call::Axes;
use crate::backend::source::call::Call;
use crate::backend::source::call::index;
use crate::backend::source::call::offset;
use crate::backend::types::unsupported;
use crate::device::ComputeTraits;
use crate::device::DeviceFunction;
use crate::device::KernelArg;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::device::ProcessorKind;
use crate::device::ProgramSource;
use crate::tensor::Tensor;

const SOURCE: &str = include_str!("../move.c");

/// Sizes of units in bytes, and their names in `move.c`.
const UNITS: [(usize, &str); 5] = [(1, "u8"), (2, "u16"), (4, "u32"), (8, "u64"), (16, "pair")];

/// Minimum number of units per item on processors that execute items one after the other.
const RUN_MIN: usize = 16;
const RUN_MAX: usize = 4096;

/// Bytes of a tile's row on CPUs: two cache lines, because they are fetched in pairs.
const TILE_BYTES_CPU: usize = 128;

/// Rows and columns of a tile: on CPUs the maximum, so that small matrices have several tiles; on
/// GPUs the exact number, because a group of 256 items processes a tile.
const TILE_MAX_CPU: usize = 64;
const TILE_GPU: usize = 32;

/// Minimum number of rows and columns of a transposition by tiles.
const TILED_MIN: usize = 4;

/// Groups per core up to which more groups pay off: cores should finish together.
const GROUPS_PER_CORE: usize = 4;

/// One axis of a copy: its size, and the strides of source and destination.
pub(super) type CopyAxis = (usize, [isize; 2]);

/// One function of `move.c` for elements of one size, compiled for the unit sizes in use.
pub(super) struct Moved {
    name: &'static str,
    /// The type that replaces `INDEX`.
    index_type: Option<&'static str>,
    element_bytes: usize,
    by_unit: [OnceLock<Arc<dyn DeviceFunction>>; UNITS.len()],
}

impl Moved {
    /// Creates function `name` for elements of the type in attribute `attr`.
    pub(super) fn new(
        node: &KernelConstruction<'_>,
        attr: &str,
        name: &'static str,
    ) -> Result<Self, KernelError> {
        let dtype = type_attr(node, attr)?;
        let has_unit = |&size: &usize| UNITS.iter().any(|&(bytes, _)| bytes == size);
        let element_bytes = dtype.size_bytes().filter(has_unit);
        Ok(Self {
            name,
            index_type: None,
            element_bytes: element_bytes.ok_or_else(|| unsupported(dtype))?,
            by_unit: Default::default(),
        })
    }

    /// The same with indices of this type.
    pub(super) fn with_indices(mut self, index_type: &'static str) -> Self {
        self.index_type = Some(index_type);
        self
    }

    pub(super) fn element_bytes(&self) -> usize {
        self.element_bytes
    }

    /// Returns the largest number of elements per unit if runs have these lengths and start at
    /// these positions.
    pub(super) fn elements_per_unit(&self, multiples: &[usize]) -> usize {
        let factors = UNITS.iter().rev().filter_map(|&(bytes, _)| {
            let is_wider = bytes >= self.element_bytes;
            is_wider.then(|| bytes / self.element_bytes)
        });
        let fits = |&factor: &usize| multiples.iter().all(|n| n.is_multiple_of(factor));
        factors.into_iter().find(fits).unwrap_or(1)
    }

    /// Returns the function for units of `n_elements` elements.
    pub(super) fn function(
        &self,
        call: &Call<'_, '_>,
        n_elements: usize,
    ) -> Result<&Arc<dyn DeviceFunction>, KernelError> {
        let bytes = self.element_bytes * n_elements;
        let unit = UNITS.iter().position(|&(size, _)| size == bytes);
        let unit = unit.expect("there is a unit of each size that is asked for");
        let slot = &self.by_unit[unit];
        if let Some(function) = slot.get() {
            return Ok(function);
        }
        let traits = call.device.compute_traits();
        let mut source = ProgramSource::of_source("move.c", SOURCE)
            .with("UNIT", UNITS[unit].1)
            .with("TILE", tile(traits, bytes).to_string());
        if traits.kind == ProcessorKind::Gpu {
            source = source.with("SHARED_TILE", "1");
        }
        if let Some(index_type) = self.index_type {
            source = source.with("INDEX", index_type);
        }
        let function = call.device.function(&source, self.name)?;
        Ok(slot.get_or_init(|| function))
    }
}

/// Returns the number of adjacent units that an item moves, out of `n`.
pub(super) fn run_of(call: &Call<'_, '_>, n: usize) -> usize {
    let traits = call.device.compute_traits();
    match traits.kind {
        ProcessorKind::Gpu => 1,
        ProcessorKind::Cpu => {
            let n_items = n_cores(traits) * GROUPS_PER_CORE * call.small_group();
            (n / n_items).clamp(RUN_MIN, RUN_MAX)
        }
    }
}

pub(super) fn n_cores(traits: &ComputeTraits) -> usize {
    usize::try_from(traits.n_compute_units).unwrap_or(1).max(1)
}

/// Returns the rows and columns of a tile of units with `unit_bytes` bytes.
fn tile(traits: &ComputeTraits, unit_bytes: usize) -> usize {
    match traits.kind {
        ProcessorKind::Cpu => (TILE_BYTES_CPU / unit_bytes).min(TILE_MAX_CPU),
        ProcessorKind::Gpu => TILE_GPU,
    }
}

/// `copy_strided` and `transpose_tiles`.
pub(super) struct Copier {
    strided: Moved,
    tiles: Moved,
}

impl Copier {
    pub(super) fn new(node: &KernelConstruction<'_>, attr: &str) -> Result<Self, KernelError> {
        Ok(Self {
            strided: Moved::new(node, attr, "copy_strided")?,
            tiles: Moved::new(node, attr, "transpose_tiles")?,
        })
    }

    /// Copies `to[starts[1] + ..] = from[starts[0] + ..]` for each index of the axes, outermost
    /// first.
    pub(super) fn copy(
        &self,
        call: &Call<'_, '_>,
        from: &Tensor,
        to: &Tensor,
        starts: [usize; 2],
        axes: impl IntoIterator<Item = CopyAxis>,
    ) -> Result<(), KernelError> {
        let axes = merged(axes);
        let n = axes.iter().fold(1usize, |n, axis| n.saturating_mul(axis.0));
        if n == 0 {
            return Ok(());
        }
        index(from.shape().n_elements())?;
        index(to.shape().n_elements())?;
        if let Some(across) = contiguous_axis(&axes) {
            return self.transpose(call, from, to, starts, axes, across);
        }
        let per_unit = match axes.split_last() {
            Some((&(size, [1, 1]), outer)) => {
                let strides = outer.iter().flat_map(|axis| axis.1);
                let strides = strides.map(isize::unsigned_abs);
                let multiples = starts.into_iter().chain([size]).chain(strides);
                let multiples: SmallVec<[usize; 16]> = multiples.collect();
                self.strided.elements_per_unit(&multiples)
            }
            _ => 1,
        };
        let walked = walked(&axes, per_unit, starts.map(|start| start / per_unit))?;
        let n = n / per_unit;
        let run = run_of(call, n);
        call.launch_few(
            self.strided.function(call, per_unit)?,
            n.div_ceil(run),
            &[
                KernelArg::Read(from),
                KernelArg::Write(to),
                walked.arg(),
                KernelArg::U32(index(n)?),
                KernelArg::U32(index(run)?),
            ],
        )
    }

    /// The same tile by tile. Axis `across` is contiguous in the source, the last axis in the
    /// destination.
    fn transpose(
        &self,
        call: &Call<'_, '_>,
        from: &Tensor,
        to: &Tensor,
        starts: [usize; 2],
        mut axes: SmallVec<[CopyAxis; 6]>,
        across: usize,
    ) -> Result<(), KernelError> {
        let (n_columns, [from_step, _]) = axes.pop().expect("the last axis is another one");
        let (n_rows, [_, to_step]) = axes.remove(across);
        let n_outer: usize = axes.iter().map(|axis| axis.0).product();
        let outer = walked(&axes, 1, starts)?;
        let traits = call.device.compute_traits();
        let tile = tile(traits, self.tiles.element_bytes());
        let n_tiles = n_outer * n_rows.div_ceil(tile) * n_columns.div_ceil(tile);
        let function = self.tiles.function(call, 1)?;
        let args = [
            KernelArg::Read(from),
            KernelArg::Write(to),
            outer.arg(),
            KernelArg::U32(index(n_outer)?),
            KernelArg::U32(index(n_rows)?),
            KernelArg::U32(index(n_columns)?),
            KernelArg::I32(signed(from_step)?),
            KernelArg::I32(signed(to_step)?),
        ];
        match traits.kind {
            ProcessorKind::Cpu => call.launch_few(function, n_tiles, &args),
            // A tile is eight rows of items, each of which processes four rows.
            ProcessorKind::Gpu => call.launch(function, [n_tiles, 1, 1], [tile * 8, 1, 1], &args),
        }
    }
}

fn signed(stride: isize) -> Result<i32, KernelError> {
    let magnitude = offset(stride.unsigned_abs())?;
    Ok(if stride < 0 { -magnitude } else { magnitude })
}

/// Returns the axes without those of size 1. Adjacent axes that one stride covers in both tensors
/// are merged.
fn merged(axes: impl IntoIterator<Item = CopyAxis>) -> SmallVec<[CopyAxis; 6]> {
    let mut merged: SmallVec<[CopyAxis; 6]> = SmallVec::new();
    for (size, strides) in axes {
        if size == 1 {
            continue;
        }
        let length = isize::try_from(size).unwrap_or(isize::MAX);
        let span = strides.map(|stride| length.checked_mul(stride));
        match merged.last_mut() {
            Some(outer) if span == outer.1.map(Some) => {
                *outer = (outer.0.saturating_mul(size), strides);
            }
            _ => merged.push((size, strides)),
        }
    }
    merged
}

/// Returns the axis that is contiguous in the source, if the last one is in the destination and
/// both are long.
fn contiguous_axis(axes: &[CopyAxis]) -> Option<usize> {
    let (&(size, [from, to]), outer) = axes.split_last()?;
    let is_strided = size >= TILED_MIN && from.unsigned_abs() > 1 && to == 1;
    let across = outer
        .iter()
        .rposition(|&(size, [from, _])| from == 1 && size >= TILED_MIN)?;
    is_strided.then_some(across)
}

/// Returns the axes in units of `per_unit` elements; at least one.
fn walked(axes: &[CopyAxis], per_unit: usize, starts: [usize; 2]) -> Result<Axes, KernelError> {
    let last = axes.len().saturating_sub(1);
    let factor = isize::try_from(per_unit).expect("a unit has few elements");
    let in_units = axes.iter().enumerate().map(|(axis, &(size, [from, to]))| {
        if axis == last && per_unit > 1 {
            (size / per_unit, [from, to, 0])
        } else {
            (size, [from / factor, to / factor, 0])
        }
    });
    let alone = axes.is_empty().then_some((1, [1, 1, 0]));
    Axes::new(in_units.chain(alone), [starts[0], starts[1], 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_with_a_common_stride_in_both_tensors_are_merged() {
        let axes = merged([(2, [12, 12]), (3, [4, 4]), (1, [9, 9]), (4, [1, 1])]);
        assert_eq!(&axes[..], [(24, [1, 1])]);
        let axes = merged([(2, [12, 24]), (3, [4, 4]), (4, [1, 1])]);
        assert_eq!(&axes[..], [(2, [12, 24]), (12, [1, 1])]);
        assert_eq!(merged([(1, [5, 5])]).len(), 0);
    }

    #[test]
    fn tiles_are_used_for_transposed_axes() {
        assert_eq!(contiguous_axis(&[(8, [1, 9]), (9, [8, 1])]), Some(0));
        assert_eq!(contiguous_axis(&[(2, [1, 9]), (9, [2, 1])]), None);
        assert_eq!(contiguous_axis(&[(8, [9, 9]), (9, [1, 1])]), None);
        assert_eq!(contiguous_axis(&[(8, [9, 9]), (9, [0, 1])]), None);
    }
}
