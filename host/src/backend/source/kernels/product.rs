//! Matrix products and batches of them.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::cpu::kernels::math;
use crate::backend::cpu::kernels::matrix;
use crate::backend::cpu::kernels::type_attr;
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
use crate::backend::source::kernels::tiles::Packer;
use crate::backend::source::kernels::tiles::PanelLayout;
use crate::backend::source::kernels::tiles::TileFunction;
use crate::backend::source::kernels::tiles::Tiling;
use crate::backend::source::kernels::tiles::tile_args;
use crate::backend::source::kernels::turned;
use crate::backend::source::kernels::turned::Planned;
use crate::backend::source::kernels::turned::Turns;
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

const SOURCE: &str = concat!(include_str!("../tile.h"), include_str!("../product.c"));

/// Rows of the left side up to which a right side that changes is read as it stands. Measured:
/// packing costs more than it gains at 128 x 512 x 512, and at 1024 x 1024 x 1024 it pays for
/// itself, or gains 15 %.
const UNPACKED_ROWS_MAX: usize = 256;

/// The same where its columns do not stand side by side, so that no vector can be read.
const UNPACKED_ROWS_MAX_STRIDED: usize = 16;

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
    let def = table.def(turned::OP).with_types("T", &BATCHES);
    table.add(def.with_factory(turned_mat_mul));
    for dtype in BATCHES {
        let def = table.def("BatchMatMulV3").with_types("Ta", &[dtype]);
        let def = def.with_types("Tb", &[dtype]).with_types("Tout", &[dtype]);
        table.add(def.with_factory(move |node| batch_mat_mul(node, dtype)));
    }
}

/// TensorFlow `MatMul`, or `_FusedMatMul`.
fn mat_mul(node: &KernelConstruction<'_>, has_epilogue: bool) -> Made {
    let transpose = math::transposed(node)?;
    let plan = move |lhs: &Shape, rhs: &Shape| {
        let [m, k, n] = math::product_size(lhs, rhs, transpose)?;
        let side = |rows, columns, is_turned| {
            let (row, column) = if is_turned { (1, rows) } else { (columns, 1) };
            Operand {
                batch: SmallVec::new(),
                row,
                column,
            }
        };
        let product = BatchMatmul {
            batch: SmallVec::new(),
            size: [m, k, n],
            lhs: side(m, k, transpose.0),
            rhs: side(k, n, transpose.1),
        };
        Ok(Planned::in_order(product, Shape::from([m, n])))
    };
    Ok(Box::new(ProductKernel {
        products: Products::new(node, type_attr(node, "T")?, has_epilogue)?,
        packs_right: true,
        is_right_turned: transpose.1,
        site: site(node),
        plan,
    }))
}

/// TensorFlow `BatchMatMul`, `BatchMatMulV2` and `BatchMatMulV3`.
fn batch_mat_mul(node: &KernelConstruction<'_>, dtype: DType) -> Made {
    let (transposed, broadcasts) = matrix::batch_attrs(node)?;
    Ok(Box::new(ProductKernel {
        products: Products::new(node, dtype, false)?,
        packs_right: true,
        is_right_turned: transposed[1],
        site: site(node),
        plan: move |lhs: &Shape, rhs: &Shape| {
            let (product, shape) = matrix::plan(lhs, rhs, transposed, broadcasts)?;
            Ok(Planned::in_order(product, shape))
        },
    }))
}

/// The same between transpositions.
fn turned_mat_mul(node: &KernelConstruction<'_>) -> Made {
    let turns = Turns::new(node)?;
    Ok(Box::new(ProductKernel {
        products: Products::new(node, type_attr(node, "T")?, false)?,
        packs_right: turns.keeps_right(),
        is_right_turned: turns.is_right_transposed(),
        site: site(node),
        plan: move |lhs: &Shape, rhs: &Shape| turns.plan(lhs, rhs),
    }))
}

/// A kernel whose inputs are the two sides. A right side that is one matrix and the same in all
/// runs is packed before.
struct ProductKernel<P> {
    products: Products,
    /// The right side is as it looks.
    packs_right: bool,
    is_right_turned: bool,
    site: Arc<LaunchSite>,
    plan: P,
}

impl<P> Kernel for ProductKernel<P>
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
        let out = call.output(self.products.dtype, &plan.shape)?;
        let to = plan.out.as_ref();
        self.products
            .multiply(&call, left, right, (&out, to), &plan.product)?;
        call.set_output(0, out)
    }

    fn prepack_input(
        &self,
        index: usize,
        constant: &Tensor,
        device: &dyn KernelDevice,
    ) -> Result<Option<Tensor>, KernelError> {
        let &[ref batch @ .., rows, columns] = constant.shape().dims() else {
            return Ok(None); // Refused when it is computed, with both shapes.
        };
        if index != 1
            || !self.packs_right
            || rows == 0
            || columns == 0
            || batch.iter().any(|&size| size != 1)
        {
            return Ok(None);
        }
        // Routines take it as it stands.
        if self.products.asks_routines {
            return Ok(None);
        }
        let (k, n, row, column) = if self.is_right_turned {
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
        let packer = &self.products.packer;
        packer
            .pack(program_device(device)?, &self.site, constant, &layout)
            .map(Some)
    }
}

/// The right side of products.
#[derive(Clone, Copy)]
pub(super) enum Right<'a> {
    Matrices(&'a Tensor),
    /// One matrix, which all of the left side is multiplied with.
    Panels(&'a Tensor),
}

/// Matrices of one launch: CUDA's are no deeper.
const BATCHES_MAX_GPU: usize = 65_535;

/// `Product` of product.c.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct ProductArgs {
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
pub(super) struct Products {
    pub(super) dtype: DType,
    /// Whether routines of the device's maker are asked first.
    asks_routines: bool,
    tiling: Tiling,
    packer: Packer,
    packed: TileFunction,
    unpacked: TileFunction,
    strided: Strided,
    epilogue: Option<Epilogue>,
}

impl Products {
    /// `has_epilogue`: the node is a fused one.
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
            |name| TileFunction::new(tiling, "product.c", SOURCE, name, epilogue.as_ref());
        Ok(Self {
            dtype,
            asks_routines: routines.is_some_and(|routines| routines.multiplies(dtype)),
            tiling,
            packer: Packer::new(tiling)?,
            packed: function("product")?,
            unpacked: function("product_unpacked")?,
            epilogue,
            strided: Strided::new(dtype)?,
        })
    }

    /// Fills `out` with the products, one matrix behind the other, or as the strides say.
    pub(super) fn multiply(
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
        // (size, strides of both sides and of the result); the rows of all matrices are those of
        // one where the right side is one.
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
        // Nothing is packed for routines.
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
            if routine::multiply(call, epilogue, [m, k, n], &batch, &operands)? {
                return Ok(());
            }
        }
        let most = if plan.rhs.column == 1 {
            UNPACKED_ROWS_MAX
        } else {
            UNPACKED_ROWS_MAX_STRIDED
        };
        let packed_here;
        let (function, right) = match right {
            Right::Panels(panels) => (&self.packed, panels),
            Right::Matrices(right) if m <= most => (&self.unpacked, right),
            Right::Matrices(right) => {
                packed_here = self.pack(call, right, plan, &mut batch)?;
                (&self.packed, &packed_here)
            }
        };
        let columns = self.tiling.columns(n);
        let n_panels = n.div_ceil(columns);
        index(left.shape().n_elements())?;
        index(out.shape().n_elements())?;
        let mut args = ProductArgs {
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

    /// The panels of all matrices of the right side. The strides in `batch` become those of the
    /// panels, counted in matrices.
    fn pack(
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
        self.packer.pack(call.device, call.site, right, &layout)
    }
}

fn axes(batch: &[(usize, [usize; 3])]) -> Result<Axes, KernelError> {
    let stride = |stride: usize| isize::try_from(stride).unwrap_or(isize::MAX);
    let axes = batch.iter();
    let axes = axes.map(|&(size, strides)| (size, strides.map(stride)));
    Axes::new(axes, [0; 3])
}
