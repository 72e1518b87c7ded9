//! Reductions.

use std::sync::Arc;
use std::sync::OnceLock;

use smallvec::SmallVec;

use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::reduce::reduction_plan;
use crate::backend::source::call::Axes;
use crate::backend::source::call::Call;
use crate::backend::source::call::Made;
use crate::backend::source::call::function;
use crate::backend::source::call::index;
use crate::backend::source::call::kernel;
use crate::backend::source::call::program_device;
use crate::backend::source::call::tree_group;
use crate::backend::source::call::type_name;
use crate::backend::source::kernels::NUMBERS;
use crate::backend::source::kernels::Table;
use crate::backend::source::kernels::moved::n_cores;
use crate::backend::types::INDICES;
use crate::device::ComputeTraits;
use crate::device::DeviceFunction;
use crate::device::KernelArg;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::device::ProcessorKind;
use crate::device::ProgramSource;
use crate::kernels::reduce::Reduction;
use crate::tensor::DType;
use crate::tensor::Tensor;

const SOURCE: &str = concat!(include_str!("../reducers.h"), include_str!("../reduce.c"));

/// Adjacent columns that an item reduces on a CPU: a cache line of single-precision numbers.
const COLUMNS_CPU: usize = 16;

/// Maximum number of elements per item or group, to limit the length of a single sum.
const PART_MAX: usize = 1 << 16;

/// Minimum number of elements per item or group that justifies a second pass.
const PART_MIN: usize = 1024;

/// The same for an item with adjacent columns.
const COLUMN_PART_MIN: usize = 64;

/// Maximum number of elements in total for a single pass.
const ONE_PASS_MAX: usize = 1 << 16;

/// Groups per core up to which more groups pay off: cores should finish together, or hide
/// latencies.
const GROUPS_PER_CORE_CPU: usize = 4;
const GROUPS_PER_CORE_GPU: usize = 8;

/// Minimum number of elements per result for which a GPU uses a group instead of an item.
const GROUP_ELEMENTS_MIN: usize = 32;

/// The same for adjacent columns.
const COLUMN_GROUP_ELEMENTS_MIN: usize = 16;

/// Maximum number of adjacent columns that a group reduces: they are one access of a GPU.
const COLUMNS_OF_GROUP: usize = 32;

/// Minimum number of work items in a group: what a GPU executes together.
const GROUP_MIN: usize = 32;

/// Maximum number of elements that an item of a group adds one after the other.
const TERMS_MAX: usize = 256;

/// Minimum number of elements of a column per item of a group that justifies a second pass.
const COLUMN_TERMS_MIN: usize = 32;

/// Number of elements per item of a group that justifies another item.
const TERMS_MIN: usize = 2;

pub(super) fn register(table: &mut Table<'_>) {
    for (op, reducer) in [
        ("Sum", "sum"),
        ("Mean", "mean"),
        ("Prod", "product"),
        ("Max", "maximum"),
        ("Min", "minimum"),
        ("All", "every"),
        ("Any", "some"),
    ] {
        let mut def = table.def(op).with_types("Tidx", &INDICES);
        if !matches!(op, "All" | "Any") {
            def = def.with_types("T", &NUMBERS);
        }
        let def = def.with_host_memory("reduction_indices");
        table.add(def.with_factory(move |node| reduction(node, reducer)));
    }
}

/// Functions of `reduce.c`, compiled at first use.
pub(super) struct Reducer {
    source: ProgramSource,
    /// The type of partial results.
    total: DType,
    built: [OnceLock<Arc<dyn DeviceFunction>>; FUNCTIONS.len()],
}

const FUNCTIONS: [&str; 10] = [
    "rows_whole",
    "rows_parts",
    "rows_rest",
    "columns_whole",
    "columns_parts",
    "groups_whole",
    "groups_parts",
    "groups_rest",
    "column_groups_whole",
    "column_groups_parts",
];

impl Reducer {
    pub(super) fn new(
        node: &KernelConstruction<'_>,
        reducer: &'static str,
        dtype: DType,
    ) -> Result<Self, KernelError> {
        let total = total_of(reducer, dtype);
        let mut source = ProgramSource::of_source("reduce.c", SOURCE)
            .with("REDUCER", reducer)
            .with("TYPE", type_name(dtype)?)
            .with("TOTAL", type_name(total)?);
        if reducer == "mean" {
            let is_signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
            let quotient = if is_signed { DType::I64 } else { total };
            source = source.with("QUOTIENT", type_name(quotient)?);
        }
        let traits = program_device(node.device)?.compute_traits();
        let source = match traits.kind {
            ProcessorKind::Cpu => source.with("COLUMNS", COLUMNS_CPU.to_string()),
            ProcessorKind::Gpu => {
                let group = tree_group(traits);
                let columns = COLUMNS_OF_GROUP.min(group);
                let source = source.with("COLUMNS_OF_GROUP", columns.to_string());
                source.with("COLUMNS", "1").with("GROUP", group.to_string())
            }
        };
        // Compiled here, so that errors of the compiler are reported before the first run.
        function(node, &source, FUNCTIONS[0])?;
        Ok(Self {
            source,
            total,
            built: Default::default(),
        })
    }

    fn function(
        &self,
        call: &Call<'_, '_>,
        kind: &str,
        what: &str,
    ) -> Result<&Arc<dyn DeviceFunction>, KernelError> {
        let is_wanted = |name: &&str| {
            let rest = name.strip_prefix(kind);
            rest.and_then(|rest| rest.strip_prefix('_')) == Some(what)
        };
        let at = FUNCTIONS.iter().position(is_wanted);
        let at = at.expect("each kind has the functions that it is asked for");
        if let Some(function) = self.built[at].get() {
            return Ok(function);
        }
        let function = call.device.function(&self.source, FUNCTIONS[at])?;
        Ok(self.built[at].get_or_init(|| function))
    }
}

/// Returns the type in which a reducer accumulates. Sums of signed numbers wrap around, which C
/// defines for unsigned ones only; means are summed with 64 bits.
fn total_of(reducer: &str, dtype: DType) -> DType {
    match (reducer, dtype) {
        (_, DType::F32 | DType::F16 | DType::BF16) => DType::F32,
        (_, DType::Bool) => DType::U8,
        ("mean", _) => DType::U64,
        ("sum" | "product", _) => unsigned(dtype),
        _ => dtype,
    }
}

/// Returns the unsigned type of the same size.
pub(super) fn unsigned(dtype: DType) -> DType {
    match dtype {
        DType::I8 => DType::U8,
        DType::I16 => DType::U16,
        DType::I32 => DType::U32,
        DType::I64 => DType::U64,
        other => other,
    }
}

/// TensorFlow `Sum`, `Mean`, `Prod`, `Max`, `Min`, `All` and `Any`.
fn reduction(node: &KernelConstruction<'_>, name: &'static str) -> Made {
    let keep_dims = bool_attr(node, "keep_dims", false)?;
    let dtype = match name {
        "every" | "some" => DType::Bool,
        _ => type_attr(node, "T")?,
    };
    let reducer = Reducer::new(node, name, dtype)?;
    kernel(node, move |call| {
        let (plan, is_view) = reduction_plan(call.context, keep_dims)?;
        if is_view {
            return call.context.forward_input(0, 0, plan.shape());
        }
        let input = call.input(0)?;
        let out = call.output(dtype, plan.shape())?;
        index(input.shape().n_elements())?;
        if plan.shape().n_elements() > 0 {
            reduce(call, &reducer, &plan, input, &out)?;
        }
        call.set_output(0, out)
    })
}

/// Which functions compute a reduction, and how many items or groups share a result.
struct Way {
    kind: &'static str,
    n_parts: usize,
}

impl Way {
    fn of(call: &Call<'_, '_>, n: usize, by_columns: bool, n_rows: usize, width: usize) -> Self {
        let traits = call.device.compute_traits();
        let n_out = n_rows * width;
        let mut part_max = PART_MAX;
        let (kind, n_units, n_wanted, part_min) = match traits.kind {
            ProcessorKind::Cpu => {
                let n_wanted = n_cores(traits) * GROUPS_PER_CORE_CPU * call.small_group();
                if by_columns {
                    let n_tiles = n_rows * width.div_ceil(COLUMNS_CPU);
                    ("columns", n_tiles, n_wanted, COLUMN_PART_MIN)
                } else {
                    ("rows", n_out, n_wanted, PART_MIN)
                }
            }
            ProcessorKind::Gpu => {
                let n_wanted = n_cores(traits) * GROUPS_PER_CORE_GPU;
                if by_columns && n >= COLUMN_GROUP_ELEMENTS_MIN {
                    let n_columns = columns_of_group(traits, width);
                    let n_lanes = tree_group(traits) / n_columns;
                    part_max = n_lanes * TERMS_MAX;
                    let n_tiles = n_rows * width.div_ceil(n_columns);
                    (
                        "column_groups",
                        n_tiles,
                        n_wanted,
                        n_lanes * COLUMN_TERMS_MIN,
                    )
                } else if by_columns {
                    let n_wanted = n_wanted * call.small_group();
                    ("columns", n_out, n_wanted, COLUMN_PART_MIN)
                } else if n >= GROUP_ELEMENTS_MIN {
                    ("groups", n_out, n_wanted, 4 * PART_MIN)
                } else {
                    ("rows", n_out, 1, PART_MIN)
                }
            }
        };
        let is_short = match kind {
            "column_groups" => n <= part_min,
            _ => n.saturating_mul(n_out) <= ONE_PASS_MAX,
        };
        let n_parts = if is_short {
            1
        } else {
            n_wanted.div_ceil(n_units).min(n.div_ceil(part_min))
        };
        let n_parts = n_parts.max(n.div_ceil(part_max)).max(1);
        // The number of parts of equal length.
        let part = n.div_ceil(n_parts).max(1);
        Self {
            kind,
            n_parts: n.div_ceil(part).max(1),
        }
    }
}

/// Returns the number of adjacent columns that a group reduces: a power of two.
fn columns_of_group(traits: &ComputeTraits, width: usize) -> usize {
    let columns = width.next_power_of_two().min(COLUMNS_OF_GROUP);
    columns.min(tree_group(traits))
}

/// Returns the sizes and strides of one operand.
fn walked(axes: &[(usize, usize)]) -> Result<Axes, KernelError> {
    let axes = axes.iter().map(|&(size, stride)| {
        // Saturates only if a dimension is 0, and then nothing is read.
        let stride = isize::try_from(stride).unwrap_or(isize::MAX);
        (size, [stride, 0, 0])
    });
    Axes::new(axes, [0; 3])
}

/// Fills `out`, which is not empty.
pub(super) fn reduce(
    call: &Call<'_, '_>,
    reducer: &Reducer,
    plan: &Reduction,
    input: &Tensor,
    out: &Tensor,
) -> Result<(), KernelError> {
    let n = plan.n_reduced();
    let mut kept: SmallVec<[(usize, usize); 4]> = plan.kept_axes().collect();
    let mut reduced: SmallVec<[(usize, usize); 4]> = plan.reduced_axes().collect();
    let is_empty = input.shape().n_elements() == 0;
    if is_empty {
        // With no elements, the strides are irrelevant.
        kept.clear();
        reduced.clear();
    }
    let n_out = out.shape().n_elements();
    let is_by_columns = plan.is_by_columns() && !is_empty;
    let width = match kept.last() {
        Some(axis) if is_by_columns => axis.0,
        _ => 1,
    };
    if is_by_columns {
        kept.pop();
    }
    let n_rows = n_out / width;
    let way = Way::of(call, n, is_by_columns, n_rows, width);
    let (kind, n_parts) = (way.kind, way.n_parts);
    let part = n.div_ceil(n_parts).max(1);
    let length = if is_by_columns {
        width
    } else {
        reduced.pop().map_or(1, |axis| axis.0)
    };
    let partials;
    let (what, to) = if n_parts == 1 {
        ("whole", out)
    } else {
        partials = call.output(reducer.total, &[n_out * n_parts].into())?;
        ("parts", &partials)
    };
    let traits = call.device.compute_traits();
    let columns = match (kind, traits.kind) {
        ("column_groups", _) => columns_of_group(traits, width),
        ("columns", ProcessorKind::Cpu) => COLUMNS_CPU,
        _ => 1,
    };
    let n_items = n_rows * width.div_ceil(columns) * n_parts;
    let (kept, reduced) = (walked(&kept)?, walked(&reduced)?);
    let pass = Pass {
        kind,
        n_items,
        // If columns are reduced, the number of rows of results.
        n_out: if is_by_columns { n_rows } else { n_out },
        n_parts,
        part,
        length,
        n,
    };
    pass.launch(call, reducer, what, [input, to], [&kept, &reduced], n)?;
    if n_parts == 1 {
        return Ok(());
    }
    let rest = Pass {
        kind: if call.device.compute_traits().kind == ProcessorKind::Gpu {
            "groups"
        } else {
            "rows"
        },
        n_items: n_out,
        n_out,
        n_parts: 1,
        part: n_parts,
        length: n_parts,
        n: n_parts,
    };
    let (kept, none) = (walked(&[(n_out, n_parts)])?, walked(&[])?);
    rest.launch(call, reducer, "rest", [to, out], [&kept, &none], n)
}

/// The parameters of all functions of `reduce.c`.
struct Pass {
    kind: &'static str,
    n_items: usize,
    n_out: usize,
    n_parts: usize,
    part: usize,
    length: usize,
    n: usize,
}

impl Pass {
    /// Launches a pass. `count` elements make up a result in the end.
    fn launch(
        &self,
        call: &Call<'_, '_>,
        reducer: &Reducer,
        what: &str,
        [from, to]: [&Tensor; 2],
        [kept, reduced]: [&Axes; 2],
        count: usize,
    ) -> Result<(), KernelError> {
        let function = reducer.function(call, self.kind, what)?;
        let args = [
            KernelArg::Read(from),
            KernelArg::Write(to),
            kept.arg(),
            reduced.arg(),
            KernelArg::U32(index(self.n_out)?),
            KernelArg::U32(index(self.n_parts)?),
            KernelArg::U32(index(self.part)?),
            KernelArg::U32(index(self.length)?),
            KernelArg::U32(index(self.n)?),
            KernelArg::U32(index(count)?),
        ];
        index(self.n_items)?;
        let group_max = tree_group(call.device.compute_traits());
        let group = match self.kind {
            "groups" => {
                let n_lanes = self.part.div_ceil(TERMS_MIN).next_power_of_two();
                n_lanes.max(GROUP_MIN).min(group_max)
            }
            "column_groups" => group_max,
            _ => return call.launch_few(function, self.n_items, &args),
        };
        call.launch(function, [self.n_items, 1, 1], [group, 1, 1], &args)
    }
}
