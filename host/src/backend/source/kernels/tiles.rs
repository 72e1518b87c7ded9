//! Tiles of sums (`tile.h`): their sizes, and right sides in panels.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::source::call::Axes;
use crate::backend::source::call::LazyFunction;
use crate::backend::source::call::group;
use crate::backend::source::call::index;
use crate::backend::source::call::type_name;
use crate::backend::source::call::width;
use crate::backend::source::kernels::epilogue::Epilogue;
use crate::device::ComputeTraits;
use crate::device::KernelArg;
use crate::device::KernelError;
use crate::device::Launch;
use crate::device::LaunchSite;
use crate::device::ProcessorKind;
use crate::device::ProgramDevice;
use crate::device::ProgramSource;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

const PANELS: &str = concat!(include_str!("../tile.h"), include_str!("../panels.c"));

/// Maximum width of a tile in vectors.
const VECTORS_MAX: usize = 2;

/// Rows of a tile if there are fewer than `.0` rows in total; otherwise `Tiling::rows_max`.
const FEW_ROWS: [usize; 2] = [1, 4];

/// Tile sizes on a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiling {
    dtype: DType,
    kind: ProcessorKind,
    width: usize,
    /// Leaves registers for a row of the right side and an element of the left side.
    rows_max: usize,
}

impl Tiling {
    pub(super) fn new(traits: &ComputeTraits, dtype: DType) -> Self {
        let width = width(traits);
        Self {
            dtype,
            kind: traits.kind,
            width,
            rows_max: match width {
                16 => 8,
                8 => 6,
                _ => 4,
            },
        }
    }

    /// Returns the vectors of a tile for a right side of `n` columns.
    pub(super) fn vectors(self, n: usize) -> usize {
        n.div_ceil(self.width).clamp(1, VECTORS_MAX)
    }

    /// Returns the columns of a tile, and hence of a panel, for a right side of `n` columns.
    pub(super) fn columns(self, n: usize) -> usize {
        self.width * self.vectors(n)
    }

    /// Returns the rows of a tile if there are `m` rows.
    pub(super) fn rows(self, m: usize) -> usize {
        let few = FEW_ROWS.into_iter().find(|&rows| m <= rows);
        few.unwrap_or(self.rows_max).min(self.rows_max)
    }

    /// Returns the work items per group, by rows, columns and matrices. A vector processor computes
    /// one tile at a time.
    pub(super) fn group(self) -> [usize; 3] {
        match self.kind {
            ProcessorKind::Cpu => [1, 1, 1],
            ProcessorKind::Gpu => [8, 8, 1],
        }
    }

    /// Returns the number of groups for this many tiles.
    pub(super) fn groups(self, tiles: [usize; 3]) -> [usize; 3] {
        let group = self.group();
        std::array::from_fn(|axis| tiles[axis].div_ceil(group[axis]))
    }

    pub(super) fn source(
        self,
        name: &'static str,
        text: &'static str,
        rows: usize,
        vectors: usize,
    ) -> Result<ProgramSource, KernelError> {
        Ok(ProgramSource::of_source(name, text)
            .with("TYPE", type_name(self.dtype)?)
            .with("WIDTH", self.width.to_string())
            .with("VECTORS", vectors.to_string())
            .with("ROWS", rows.to_string()))
    }
}

/// A function for each tile size.
pub(super) struct TileFunction {
    tiling: Tiling,
    /// By rows, then by vectors.
    functions: Vec<LazyFunction>,
}

impl TileFunction {
    /// Creates function `name` of `text`, which starts with `tile.h`. With an epilogue, the
    /// function takes a bias before the output.
    pub(super) fn new(
        tiling: Tiling,
        file: &'static str,
        text: &'static str,
        name: &'static str,
        epilogue: Option<&Epilogue>,
    ) -> Result<Self, KernelError> {
        let mut functions = Vec::new();
        for rows in FEW_ROWS.into_iter().chain([tiling.rows_max]) {
            for vectors in 1..=VECTORS_MAX {
                let source = tiling.source(file, text, rows, vectors)?;
                let source = match epilogue {
                    Some(epilogue) => epilogue.source(source),
                    None => source,
                };
                functions.push(LazyFunction::new(source, name));
            }
        }
        Ok(Self { tiling, functions })
    }

    /// Returns the function for `m` rows and `n` columns.
    pub(super) fn of(&self, m: usize, n: usize) -> &LazyFunction {
        let class = FEW_ROWS.into_iter().position(|rows| m <= rows);
        let class = class.unwrap_or(FEW_ROWS.len());
        &self.functions[class * VECTORS_MAX + self.tiling.vectors(n) - 1]
    }
}

/// Returns the arguments of such a function: both sides, the bias of an epilogue, the output, and
/// numbers.
pub(super) fn tile_args<'a>(
    [left, right]: [&'a Tensor; 2],
    bias: Option<&'a Tensor>,
    out: &'a Tensor,
    numbers: &'a [u8],
) -> SmallVec<[KernelArg<'a>; 5]> {
    let read = [left, right].into_iter().chain(bias).map(KernelArg::Read);
    read.chain([KernelArg::Write(out), KernelArg::Bytes(numbers)])
        .collect()
}

/// The layout of right sides to be prepacked into panels: `n_matrices` matrices `[k, n]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct PanelLayout {
    pub(super) k: usize,
    pub(super) n: usize,
    /// Row `q` starts at element `q / inner * outer_stride + q % inner * row`.
    pub(super) inner: usize,
    pub(super) outer_stride: usize,
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) n_matrices: usize,
    /// Starts of the matrices, as operand 0.
    pub(super) batch: Axes,
    /// Zeroes after the last panel, in elements.
    pub(super) n_zeroes: usize,
}

/// `Panels` of panels.c.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct PanelArgs {
    k: u32,
    n: u32,
    n_panels: u32,
    n_matrices: u32,
    inner: u32,
    outer_stride: u32,
    row: u32,
    column: u32,
    batch: Axes,
    n_zero_lines: u32,
}

/// Prepacks right sides into panels.
pub(super) struct PanelWriter {
    tiling: Tiling,
    /// Functions by number of vectors.
    functions: [LazyFunction; VECTORS_MAX],
}

impl PanelWriter {
    pub(super) fn new(tiling: Tiling) -> Result<Self, KernelError> {
        let function = |vectors| {
            let source = tiling.source("panels.c", PANELS, 1, vectors)?;
            Ok::<_, KernelError>(LazyFunction::new(source, "write_panels"))
        };
        Ok(Self {
            tiling,
            functions: [function(1)?, function(2)?],
        })
    }

    /// Returns the elements of the panels without the zeroes, which is where the zeroes start.
    pub(super) fn zeroes_at(&self, layout: &PanelLayout) -> usize {
        let columns = self.tiling.columns(layout.n);
        let panels = layout.n.div_ceil(columns).saturating_mul(layout.n_matrices);
        panels.saturating_mul(layout.k).saturating_mul(columns)
    }

    /// Writes the panels in the type of the computation. Neither `k` nor `n` may be 0.
    pub(super) fn write(
        &self,
        device: &dyn ProgramDevice,
        site: &Arc<LaunchSite>,
        right: &Tensor,
        layout: &PanelLayout,
    ) -> Result<Tensor, KernelError> {
        let columns = self.tiling.columns(layout.n);
        let n_zero_lines = layout.n_zeroes.div_ceil(columns);
        let n_lines = self.zeroes_at(layout) / columns + n_zero_lines;
        index(n_lines.saturating_mul(columns))?;
        let args = PanelArgs {
            k: index(layout.k)?,
            n: index(layout.n)?,
            n_panels: index(layout.n.div_ceil(columns))?,
            n_matrices: index(layout.n_matrices)?,
            inner: index(layout.inner)?,
            outer_stride: index(layout.outer_stride)?,
            row: index(layout.row)?,
            column: index(layout.column)?,
            batch: layout.batch,
            n_zero_lines: index(n_zero_lines)?,
        };
        let dtype = match self.tiling.dtype {
            DType::F16 | DType::BF16 => DType::F32,
            other => other,
        };
        let panels = device.uninitialized(dtype, Shape::from([n_lines, columns]))?;
        let group = group(device.compute_traits());
        device.launch(Launch {
            site,
            // Not bound to a run: a failure is reported to the first caller that asks.
            step: None,
            context: None,
            function: self.functions[self.tiling.vectors(layout.n) - 1].on(device)?,
            groups: [n_lines.div_ceil(group), 1, 1],
            group_size: [group, 1, 1],
            args: &[
                KernelArg::Read(right),
                KernelArg::Write(&panels),
                KernelArg::Bytes(bytemuck::bytes_of(&args)),
            ],
        })?;
        Ok(panels)
    }
}
