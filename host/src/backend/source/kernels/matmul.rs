//! Matmuls and batched matmuls.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::plan::attr::type_attr;
use crate::backend::plan::matmul;
use crate::backend::source::call::Axes;
use crate::backend::source::call::Call;
use crate::backend::source::call::Made;
use crate::backend::source::call::index;
use crate::backend::source::call::program_device;
use crate::backend::source::call::site;
use crate::backend::source::kernels::Table;
use crate::backend::source::kernels::epilogue;
use crate::backend::source::kernels::epilogue::Epilogue;
use crate::backend::source::kernels::routine;
use crate::backend::source::kernels::routine::Operands;
use crate::backend::source::kernels::strided::Strided;
use crate::backend::source::kernels::tiles::PanelLayout;
use crate::backend::source::kernels::tiles::PanelWriter;
use crate::backend::source::kernels::tiles::TileFunction;
use crate::backend::source::kernels::tiles::Tiling;
use crate::backend::source::kernels::tiles::tile_args;
use crate::backend::source::kernels::transposed;
use crate::backend::source::kernels::transposed::Planned;
use crate::backend::source::kernels::transposed::Transposes;
use crate::device::Kernel;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::device::LaunchSite;
use crate::device::ProcessorKind;
use crate::kernels::batch::BatchMatmul;
use crate::kernels::batch::Operand;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

const SOURCE: &str = concat!(include_str!("../tile.h"), include_str!("../matmul.c"));

/// Maximum number of rows of the left side for which a non-constant right side is read in place.
/// Measured: panels cost more than they save at 128 x 512 x 512; at 1024 x 1024 x 1024 they break
/// even or save 15 %.
const DIRECT_ROWS_MAX: usize = 256;

/// The same if its columns are not contiguous, so that vector loads are impossible.
const DIRECT_ROWS_MAX_STRIDED: usize = 16;

const MATRICES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::I32, DType::I64];

const BATCHES: [DType; 6] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I16,
    DType::I32,
    DType::I64,
];

pub(super) fn register(table: &mut Table<'_>) {
    let def = table.def("MatMul").with_types("T", &MATRICES);
    table.add(def.with_factory(|node| mat_mul(node, false)));
    let def = table.def("_FusedMatMul").with_types("T", &epilogue::TYPES);
    table.add(def.with_factory(|node| mat_mul(node, true)));
    for op in ["BatchMatMul", "BatchMatMulV2"] {
        let def = table.def(op).with_types("T", &BATCHES);
        table.add(def.with_factory(|node| batch_mat_mul(node, type_attr(node, "T")?)));
    }
    let def = table.def(transposed::OP).with_types("T", &BATCHES);
    table.add(def.with_factory(transposed_mat_mul));
    for dtype in BATCHES {
        let def = table.def("BatchMatMulV3").with_types("Ta", &[dtype]);
        let def = def.with_types("Tb", &[dtype]).with_types("Tout", &[dtype]);
        table.add(def.with_factory(move |node| batch_mat_mul(node, dtype)));
    }
}

/// TensorFlow `MatMul`, or `_FusedMatMul`.
fn mat_mul(node: &KernelConstruction<'_>, has_epilogue: bool) -> Made {
    let transpose = matmul::matmul_attrs(node)?;
    let plan = move |lhs: &Shape, rhs: &Shape| {
        let [m, k, n] = matmul::matmul_size(lhs, rhs, transpose)?;
        let side = |rows, columns, is_transposed| {
            let (row, column) = if is_transposed {
                (1, rows)
            } else {
                (columns, 1)
            };
            Operand {
                batch: SmallVec::new(),
                row,
                column,
            }
        };
        let matmul = BatchMatmul {
            batch: SmallVec::new(),
            size: [m, k, n],
            lhs: side(m, k, transpose.0),
            rhs: side(k, n, transpose.1),
        };
        Ok(Planned::in_order(matmul, Shape::from([m, n])))
    };
    Ok(Box::new(MatmulKernel {
        matmuls: Matmuls::new(node, type_attr(node, "T")?, has_epilogue)?,
        prepacks_right: true,
        is_right_transposed: transpose.1,
        site: site(node),
        plan,
    }))
}

/// TensorFlow `BatchMatMul`, `BatchMatMulV2` and `BatchMatMulV3`.
fn batch_mat_mul(node: &KernelConstruction<'_>, dtype: DType) -> Made {
    let (transposed, broadcasts) = matmul::batch_attrs(node)?;
    Ok(Box::new(MatmulKernel {
        matmuls: Matmuls::new(node, dtype, false)?,
        prepacks_right: true,
        is_right_transposed: transposed[1],
        site: site(node),
        plan: move |lhs: &Shape, rhs: &Shape| {
            let (matmul, shape) = matmul::batch_plan(lhs, rhs, transposed, broadcasts)?;
            Ok(Planned::in_order(matmul, shape))
        },
    }))
}

/// The same with fused transpositions.
fn transposed_mat_mul(node: &KernelConstruction<'_>) -> Made {
    let transposes = Transposes::new(node)?;
    Ok(Box::new(MatmulKernel {
        matmuls: Matmuls::new(node, type_attr(node, "T")?, false)?,
        prepacks_right: transposes.keeps_right(),
        is_right_transposed: transposes.is_right_transposed(),
        site: site(node),
        plan: move |lhs: &Shape, rhs: &Shape| transposes.plan(lhs, rhs),
    }))
}

/// A kernel whose inputs are the two sides. A constant right side that is a single matrix is
/// prepacked.
struct MatmulKernel<P> {
    matmuls: Matmuls,
    /// Whether the layout of the right side follows from its shape alone.
    prepacks_right: bool,
    is_right_transposed: bool,
    site: Arc<LaunchSite>,
    plan: P,
}

impl<P> Kernel for MatmulKernel<P>
where
    P: Fn(&Shape, &Shape) -> Result<Planned, KernelError> + Send + Sync,
{
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let call = Call::new(context, &self.site)?;
        let (left, right) = (call.input(0)?, call.input(1)?);
        let plan = (self.plan)(left.shape(), right.shape())?;
        let right = match call.context.prepacked_input(1) {
            Some(panels) => Right::Panels(panels),
            None => Right::Matrices(right),
        };
        let out = call.output(self.matmuls.dtype, &plan.shape)?;
        let to = plan.out.as_ref();
        self.matmuls
            .compute(&call, left, right, (&out, to), &plan.matmul)?;
        call.set_output(0, out)
    }

    fn prepack_input(
        &self,
        index: usize,
        constant: &Tensor,
        device: &dyn KernelDevice,
    ) -> Result<Option<Tensor>, KernelError> {
        let &[ref batch @ .., rows, columns] = constant.shape().dims() else {
            return Ok(None); // Rejected when the kernel runs, with both shapes.
        };
        if index != 1
            || !self.prepacks_right
            || rows == 0
            || columns == 0
            || batch.iter().any(|&size| size != 1)
        {
            return Ok(None);
        }
        // Routines read it in its original layout.
        if self.matmuls.asks_routines {
            return Ok(None);
        }
        let (k, n, row, column) = if self.is_right_transposed {
            (columns, rows, 1, columns)
        } else {
            (rows, columns, columns, 1)
        };
        let layout = PanelLayout {
            k,
            n,
            inner: k,
            outer_stride: 0,
            row,
            column,
            n_matrices: 1,
            batch: Axes::default(),
            n_zeroes: 0,
        };
        let panel_writer = &self.matmuls.panel_writer;
        panel_writer
            .write(program_device(device)?, &self.site, constant, &layout)
            .map(Some)
    }

    fn prepacked_form(&self, index: usize) -> Option<&'static str> {
        // The tiling follows from the device and the type.
        (index == 1 && self.prepacks_right).then_some(match self.is_right_transposed {
            true => "placewright: panels of the transposed matrix",
            false => "placewright: panels",
        })
    }

    fn replaces_prepacked_input(&self, index: usize) -> bool {
        index == 1
    }
}

/// The right side of matmuls.
#[derive(Clone, Copy)]
pub(super) enum Right<'a> {
    Matrices(&'a Tensor),
    /// One matrix for the whole batch, in panels.
    Panels(&'a Tensor),
}

/// Maximum number of matrices of one launch: CUDA's limit.
const BATCHES_MAX_GPU: usize = 65_535;

/// `Matmul` of matmul.c.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct MatmulArgs {
    m: u32,
    k: u32,
    n: u32,
    left_row: u32,
    left_column: u32,
    right_row: u32,
    right_column: u32,
    n_panels: u32,
    out_row: u32,
    first: u32,
    batch: Axes,
}

/// The functions for one element type.
pub(super) struct Matmuls {
    pub(super) dtype: DType,
    /// Whether the vendor's routines are tried first.
    asks_routines: bool,
    tiling: Tiling,
    panel_writer: PanelWriter,
    on_panels: TileFunction,
    direct: TileFunction,
    strided: Strided,
    epilogue: Option<Epilogue>,
}

impl Matmuls {
    /// `has_epilogue` means that the node is fused.
    pub(super) fn new(
        node: &KernelConstruction<'_>,
        dtype: DType,
        has_epilogue: bool,
    ) -> Result<Self, KernelError> {
        let device = program_device(node.device)?;
        let tiling = Tiling::new(device.compute_traits(), dtype);
        let routines = device.routines();
        let epilogue = has_epilogue.then(|| Epilogue::new(node, dtype, tiling));
        let epilogue = epilogue.transpose()?;
        let function =
            |name| TileFunction::new(tiling, "matmul.c", SOURCE, name, epilogue.as_ref());
        Ok(Self {
            dtype,
            asks_routines: routines.is_some_and(|routines| routines.can_matmul(dtype)),
            tiling,
            panel_writer: PanelWriter::new(tiling)?,
            on_panels: function("matmul")?,
            direct: function("matmul_direct")?,
            epilogue,
            strided: Strided::new(dtype)?,
        })
    }

    /// Computes the matmuls into `out`: contiguous matrices, or at the given strides.
    pub(super) fn compute(
        &self,
        call: &Call<'_, '_>,
        left: &Tensor,
        right: Right<'_>,
        (out, strides): (&Tensor, Option<&Operand>),
        plan: &BatchMatmul,
    ) -> Result<(), KernelError> {
        let [mut m, k, n] = plan.size;
        let epilogue = self.epilogue.as_ref();
        let bias = epilogue.map(|epilogue| epilogue.bias(call, out.shape()));
        let bias = bias.transpose()?;
        if out.shape().n_elements() == 0 {
            return Ok(());
        }
        if k == 0 {
            return match (epilogue, bias) {
                (Some(epilogue), Some(bias)) => epilogue.fill(call, bias, out),
                _ => self.strided.fill(call, out, 0.0),
            };
        }
        let mut n_batches = plan.batch.iter().product::<usize>();
        let mut left_row = plan.lhs.row;
        // Size, and strides of both sides and of the result. If the right side is one matrix, the
        // rows of all left matrices count as rows of one.
        let mut batch: SmallVec<[(usize, [usize; 3]); 4]> = SmallVec::new();
        let out_row = strides.map_or(n, |strides| strides.row);
        if let Some(row) = plan.rows_of_all().filter(|_| strides.is_none()) {
            m *= n_batches;
            n_batches = 1;
            left_row = row;
        } else {
            let mut behind = m * n;
            let own = plan
                .batch
                .iter()
                .zip(plan.lhs.batch.iter().zip(&plan.rhs.batch));
            for (axis, (&size, (&lhs, &rhs))) in own.enumerate().rev() {
                let to = strides.map_or(behind, |strides| strides.batch[axis]);
                behind *= size;
                if size != 1 {
                    batch.insert(0, (size, [lhs, rhs, to]));
                }
            }
        }
        // Routines do not need panels.
        if let (true, Right::Matrices(right)) = (self.asks_routines, right) {
            let operands = Operands {
                left,
                right,
                out,
                bias,
                left_row,
                left_column: plan.lhs.column,
                right_row: plan.rhs.row,
                right_column: plan.rhs.column,
                out_row,
            };
            if routine::matmul(call, epilogue, [m, k, n], &batch, &operands)? {
                return Ok(());
            }
        }
        let most = if plan.rhs.column == 1 {
            DIRECT_ROWS_MAX
        } else {
            DIRECT_ROWS_MAX_STRIDED
        };
        let own_panels;
        let (function, right) = match right {
            Right::Panels(panels) => (&self.on_panels, panels),
            Right::Matrices(right) if m <= most => (&self.direct, right),
            Right::Matrices(right) => {
                own_panels = self.write_panels(call, right, plan, &mut batch)?;
                (&self.on_panels, &own_panels)
            }
        };
        let columns = self.tiling.columns(n);
        let n_panels = n.div_ceil(columns);
        index(left.shape().n_elements())?;
        index(out.shape().n_elements())?;
        let mut args = MatmulArgs {
            m: index(m)?,
            k: index(k)?,
            n: index(n)?,
            left_row: index(left_row)?,
            left_column: index(plan.lhs.column)?,
            right_row: index(plan.rhs.row)?,
            right_column: index(plan.rhs.column)?,
            n_panels: index(n_panels)?,
            out_row: index(out_row)?,
            first: 0,
            batch: axes(&batch)?,
        };
        let function = function.of(m, n).on(call.device)?;
        let depth = match call.device.compute_traits().kind {
            ProcessorKind::Cpu => n_batches,
            ProcessorKind::Gpu => BATCHES_MAX_GPU,
        };
        for first in (0..n_batches).step_by(depth.max(1)) {
            args.first = index(first)?;
            let n_here = depth.min(n_batches - first);
            let tiles = [m.div_ceil(self.tiling.rows(m)), n_panels, n_here];
            call.launch(
                function,
                self.tiling.groups(tiles),
                self.tiling.group(),
                &tile_args([left, right], bias, out, bytemuck::bytes_of(&args)),
            )?;
        }
        Ok(())
    }

    /// Writes the panels of all matrices of the right side. The strides in `batch` become those of
    /// the panels, counted in matrices.
    fn write_panels(
        &self,
        call: &Call<'_, '_>,
        right: &Tensor,
        plan: &BatchMatmul,
        batch: &mut [(usize, [usize; 3])],
    ) -> Result<Tensor, KernelError> {
        let [_, k, n] = plan.size;
        let own: SmallVec<[(usize, [usize; 3]); 4]> = batch
            .iter()
            .filter(|(_, [_, stride, _])| *stride != 0)
            .map(|&(size, [_, stride, _])| (size, [stride, 0, 0]))
            .collect();
        let mut n_matrices = 1;
        for (size, [_, stride, _]) in batch.iter_mut().rev() {
            if *stride != 0 {
                *stride = n_matrices;
                n_matrices *= *size;
            }
        }
        let layout = PanelLayout {
            k,
            n,
            inner: k,
            outer_stride: 0,
            row: plan.rhs.row,
            column: plan.rhs.column,
            n_matrices,
            batch: axes(&own)?,
            n_zeroes: 0,
        };
        self.panel_writer
            .write(call.device, call.site, right, &layout)
    }
}

fn axes(batch: &[(usize, [usize; 3])]) -> Result<Axes, KernelError> {
    let stride = |stride: usize| isize::try_from(stride).unwrap_or(isize::MAX);
    let axes = batch.iter();
    let axes = axes.map(|&(size, strides)| (size, strides.map(stride)));
    Axes::new(axes, [0; 3])
}
