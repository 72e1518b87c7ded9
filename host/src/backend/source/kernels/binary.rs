//! Functions of two elements, broadcast.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::source::call::Axes;
use crate::backend::source::call::Call;
use crate::backend::source::call::LazyFunction;
use crate::backend::source::call::Made;
use crate::backend::source::call::function;
use crate::backend::source::call::index;
use crate::backend::source::call::kernel;
use crate::backend::source::call::type_name;
use crate::backend::source::kernels::INTEGERS;
use crate::backend::source::kernels::NUMBERS;
use crate::backend::source::kernels::REALS;
use crate::backend::source::kernels::Table;
use crate::device::DeviceFunction;
use crate::device::KernelArg;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::device::ProcessorKind;
use crate::device::ProgramSource;
use crate::kernels::Broadcast;
use crate::kernels::binary::DIVISION_BY_ZERO;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

const SOURCE: &str = include_str!("../binary.c");
const DIVISION: &str = include_str!("../division.c");

/// Types for which TensorFlow has both `SquaredDifference` and `TruncateMod`.
const DIFFERENCES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::I32, DType::I64];

/// Which functions of the file a program contains.
#[derive(Debug, Clone, Copy)]
enum Part {
    Numbers,
    Reals,
    Integers,
    Booleans,
}

impl Part {
    fn source(self, dtype: DType) -> Result<ProgramSource, KernelError> {
        let part = match self {
            Self::Numbers => "NUMBERS",
            Self::Reals => "REALS",
            Self::Integers => "INTEGERS",
            Self::Booleans => "BOOLEANS",
        };
        let source = ProgramSource::of_source("binary.c", SOURCE);
        Ok(source.with("TYPE", type_name(dtype)?).with(part, "1"))
    }
}

/// Functions of `binary.c` whose result has the operands' type, by op.
const FUNCTIONS: [(&str, &str, Part, &[DType]); 19] = [
    ("Add", "add", Part::Numbers, &NUMBERS),
    ("AddV2", "add", Part::Numbers, &NUMBERS),
    ("Sub", "sub", Part::Numbers, &NUMBERS),
    ("Mul", "mul", Part::Numbers, &NUMBERS),
    ("Maximum", "maximum", Part::Numbers, &NUMBERS),
    ("Minimum", "minimum", Part::Numbers, &NUMBERS),
    (
        "SquaredDifference",
        "squared_difference",
        Part::Numbers,
        &DIFFERENCES,
    ),
    ("RealDiv", "real_div", Part::Reals, &REALS),
    ("Div", "real_div", Part::Reals, &REALS),
    ("DivNoNan", "div_no_nan", Part::Reals, &REALS),
    ("FloorDiv", "floor_div", Part::Reals, &REALS),
    ("FloorMod", "floor_mod", Part::Reals, &REALS),
    ("Mod", "truncate_mod", Part::Reals, &[DType::F32]),
    ("TruncateMod", "truncate_mod", Part::Reals, &[DType::F32]),
    ("Pow", "power", Part::Reals, &REALS),
    ("Atan2", "angle", Part::Reals, &REALS),
    ("BitwiseAnd", "bitwise_and", Part::Integers, &INTEGERS),
    ("BitwiseOr", "bitwise_or", Part::Integers, &INTEGERS),
    ("BitwiseXor", "bitwise_xor", Part::Integers, &INTEGERS),
];

/// Functions of single numbers, without a form for lanes.
const NOT_OF_LANES: [&str; 2] = ["floor_div", "floor_mod"];

/// Returns the function of lanes for an op in single precision (`FUSED` in `binary.c`).
pub(in crate::backend::source) fn function_of_lanes(op: &str) -> Option<&'static str> {
    let mut functions = FUNCTIONS.into_iter();
    let found = functions.find(|(known, name, _, types)| {
        *known == op && types.contains(&DType::F32) && !NOT_OF_LANES.contains(name)
    });
    found.map(|(_, name, ..)| name)
}

pub(super) fn register(table: &mut Table<'_>) {
    for (op, name, part, types) in FUNCTIONS {
        let def = table.def(op).with_types("T", types);
        table.add(def.with_factory(move |node| {
            let dtype = type_attr(node, "T")?;
            binary(node, &part.source(dtype)?, name, dtype)
        }));
    }
    for (op, name) in [
        ("Less", "less"),
        ("LessEqual", "less_equal"),
        ("Greater", "greater"),
        ("GreaterEqual", "greater_equal"),
    ] {
        let def = table.def(op).with_types("T", &NUMBERS);
        table.add(def.with_factory(move |node| {
            let source = Part::Numbers.source(type_attr(node, "T")?)?;
            binary(node, &source, name, DType::Bool)
        }));
    }
    for (op, name) in [("LogicalAnd", "logical_and"), ("LogicalOr", "logical_or")] {
        table.add(table.def(op).with_factory(move |node| {
            let source = Part::Booleans.source(DType::Bool)?;
            binary(node, &source, name, DType::Bool)
        }));
    }
    let comparable = [&NUMBERS[..], &[DType::Bool]].concat();
    for (op, name) in [("Equal", "equal"), ("NotEqual", "not_equal")] {
        let def = table.def(op).with_types("T", &comparable);
        table.add(def.with_factory(move |node| equality(node, name)));
    }
    for (op, name, types) in [
        ("Div", "truncate_div", &INTEGERS[..]),
        ("TruncateDiv", "truncate_div", &INTEGERS),
        ("FloorDiv", "floor_div", &INTEGERS),
        ("FloorMod", "floor_mod", &INTEGERS),
        ("Mod", "truncate_mod", &[DType::I32, DType::I64]),
        ("TruncateMod", "truncate_mod", &[DType::I32, DType::I64]),
    ] {
        let def = table.def(op).with_types("T", types);
        table.add(def.with_factory(move |node| division(node, name)));
    }
}

/// Returns a function of numbers for operands of one shape, which is also that of the result.
pub(super) fn of_one_shape(
    node: &KernelConstruction<'_>,
    dtype: DType,
    name: &str,
) -> Result<Arc<dyn DeviceFunction>, KernelError> {
    function(node, &Part::Numbers.source(dtype)?, name)
}

/// Launches a function of two operands of one shape, and returns the result.
pub(super) fn launch_of_one_shape(
    call: &Call<'_, '_>,
    function: &Arc<dyn DeviceFunction>,
    operands: [&Tensor; 2],
    result: DType,
    more: &[KernelArg<'_>],
) -> Result<Tensor, KernelError> {
    let [lhs, rhs] = operands;
    let out = call.output(result, lhs.shape())?;
    let n = lhs.shape().n_elements();
    let args = [
        KernelArg::Read(lhs),
        KernelArg::Read(rhs),
        KernelArg::Write(&out),
        KernelArg::U32(index(n)?),
    ];
    call.launch_items(function, n, &[&args, more].concat())?;
    Ok(out)
}

/// A function for tensors of one shape, and its variants for broadcast tensors.
struct Pair {
    operand: DType,
    same: Arc<dyn DeviceFunction>,
    spread: LazyFunction,
    /// Faster than `spread` if rows are long and the items need not be adjacent.
    rows: Option<LazyFunction>,
}

/// Maximum number of elements of a row per item.
const RUN_MAX: usize = 1024;

/// Minimum length of rows: finding a row costs about as much as finding this many elements.
const ROW_MIN: usize = 4;

/// `Rows` of binary.c.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Rows {
    n_items: u32,
    n_runs: u32,
    run: u32,
    width: u32,
    lhs_step: u32,
    rhs_step: u32,
}

impl Pair {
    fn new(
        node: &KernelConstruction<'_>,
        source: &ProgramSource,
        name: &str,
    ) -> Result<Self, KernelError> {
        Ok(Self {
            operand: node.attrs.dtype("T").unwrap_or(DType::Bool),
            same: function(node, source, name)?,
            spread: LazyFunction::new(source.clone(), format!("{name}_spread")),
            rows: None,
        })
    }

    /// The same with a function for rows.
    fn with_rows(mut self, source: &ProgramSource, name: &str) -> Self {
        self.rows = Some(LazyFunction::new(source.clone(), format!("{name}_rows")));
        self
    }

    fn run(
        &self,
        call: &Call<'_, '_>,
        result: DType,
        more: &[KernelArg<'_>],
    ) -> Result<(), KernelError> {
        let (lhs, rhs) = (call.typed(0, self.operand)?, call.typed(1, self.operand)?);
        if lhs.shape() == rhs.shape() {
            let out = launch_of_one_shape(call, &self.same, [lhs, rhs], result, more)?;
            return call.set_output(0, out);
        }
        let plan = Broadcast::new(lhs.shape(), rhs.shape())?;
        let out = call.output(result, plan.shape())?;
        let n = plan.shape().n_elements();
        let operands = [
            KernelArg::Read(lhs),
            KernelArg::Read(rhs),
            KernelArg::Write(&out),
        ];
        let is_cpu = call.device.compute_traits().kind == ProcessorKind::Cpu;
        let axes: SmallVec<[(usize, [usize; 2]); 4]> = plan.axes().collect();
        if let (Some(rows), Some(&(width, steps))) = (&self.rows, axes.last())
            && is_cpu
            && width >= ROW_MIN
            && n > 0
        {
            index(n)?;
            let run = width.min(RUN_MAX);
            let n_runs = width.div_ceil(run);
            let n_items = n / width * n_runs;
            let layout = Rows {
                n_items: index(n_items)?,
                n_runs: index(n_runs)?,
                run: index(run)?,
                width: index(width)?,
                lhs_step: index(steps[0])?,
                rhs_step: index(steps[1])?,
            };
            let outer = Axes::of_spread(axes[..axes.len() - 1].iter().copied())?;
            let layout = KernelArg::Bytes(bytemuck::bytes_of(&layout));
            let args = [&operands[..], &[layout, outer.arg()], more].concat();
            call.launch_few(rows.on(call.device)?, n_items, &args)?;
        } else {
            let axes = Axes::of_spread(axes)?;
            let args = [
                &operands[..],
                &[KernelArg::U32(index(n)?), axes.arg()],
                more,
            ]
            .concat();
            call.launch_items(self.spread.on(call.device)?, n, &args)?;
        }
        call.set_output(0, out)
    }
}

fn binary(
    node: &KernelConstruction<'_>,
    source: &ProgramSource,
    name: &str,
    result: DType,
) -> Made {
    let pair = Pair::new(node, source, name)?.with_rows(source, name);
    kernel(node, move |call: &Call<'_, '_>| pair.run(call, result, &[]))
}

/// Integer division; a divisor of 0 is an error of the run.
fn division(node: &KernelConstruction<'_>, name: &str) -> Made {
    let dtype = type_attr(node, "T")?;
    let source = ProgramSource::of_source("division.c", DIVISION).with("TYPE", type_name(dtype)?);
    let pair = Pair::new(node, &source, name)?;
    let message: Arc<str> = DIVISION_BY_ZERO.into();
    kernel(node, move |call: &Call<'_, '_>| {
        pair.run(call, dtype, &[KernelArg::Fault(&message)])
    })
}

/// TensorFlow `Equal` and `NotEqual`. If they must not fail, tensors whose shapes do not match are
/// unequal.
fn equality(node: &KernelConstruction<'_>, name: &str) -> Made {
    let must_meet = bool_attr(node, "incompatible_shape_error", true)?;
    let dtype = type_attr(node, "T")?;
    let part = match dtype {
        DType::Bool => Part::Booleans,
        _ => Part::Numbers,
    };
    let source = part.source(dtype)?;
    let pair = Pair::new(node, &source, name)?.with_rows(&source, name);
    let if_different = name == "not_equal";
    kernel(node, move |call: &Call<'_, '_>| {
        let (lhs, rhs) = (call.input(0)?.shape(), call.input(1)?.shape());
        if !must_meet && Broadcast::new(lhs, rhs).is_err() {
            let answer = Tensor::from_bools(Shape::scalar(), &[if_different])?;
            let answer = call.context.device_context().copy_from_host(&answer)?;
            return call.set_output(0, answer);
        }
        pair.run(call, DType::Bool, &[])
    })
}
