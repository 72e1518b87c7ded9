//! Conversion of element types.

use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::source::call::Call;
use crate::backend::source::call::Made;
use crate::backend::source::call::function;
use crate::backend::source::call::kernel;
use crate::backend::source::call::type_name;
use crate::backend::source::kernels::NUMBERS;
use crate::backend::source::kernels::REALS;
use crate::backend::source::kernels::Table;
use crate::backend::source::kernels::unary::map;
use crate::device::KernelConstruction;
use crate::device::ProgramSource;
use crate::tensor::DType;

const SOURCE: &str = include_str!("../cast.c");

pub(super) fn register(table: &mut Table<'_>) {
    let types = [&NUMBERS[..], &[DType::Bool]].concat();
    let def = table.def("Cast").with_types("SrcT", &types);
    let def = def.with_types("DstT", &types);
    table.add(def.with_factory(make));
}

/// TensorFlow `Cast`. [`crate::kernels::cast`] describes the result for values that the target type
/// cannot represent.
fn make(node: &KernelConstruction<'_>) -> Made {
    let (source, target) = (type_attr(node, "SrcT")?, type_attr(node, "DstT")?);
    if source == target {
        return kernel(node, |call: &Call<'_, '_>| {
            let shape = call.input(0)?.shape().clone();
            call.context.forward_input(0, 0, &shape)
        });
    }
    let is_truncating = bool_attr(node, "Truncate", false)?;
    let program = ProgramSource::of_source("cast.c", SOURCE)
        .with("SOURCE", type_name(source)?)
        .with("TARGET", type_name(target)?)
        .with("CONVERSION", conversion(source, target, is_truncating));
    let program = if REALS.contains(&source) {
        program.with("FROM_REAL", "1")
    } else {
        program
    };
    let function = function(node, &program, "convert")?;
    kernel(node, move |call: &Call<'_, '_>| {
        call.typed(0, source)?;
        map(call, &function, target, &[])
    })
}

/// Returns the C expression that converts `x` from type `source` to `target`.
fn conversion(source: DType, target: DType, is_truncating: bool) -> &'static str {
    let from_real = REALS.contains(&source);
    match target {
        // The pairs of reals for which TensorFlow honours `Truncate`.
        DType::F16 if is_truncating && source == DType::F32 => "truncated(x, 13)",
        DType::BF16 if is_truncating && source == DType::F32 => "truncated(x, 16)",
        DType::F32 | DType::F16 | DType::BF16 => "(f32)x",
        DType::Bool => "x != 0",
        DType::I8 if from_real => "(i8)i32_of(x)",
        DType::I16 if from_real => "(i16)i32_of(x)",
        DType::I32 if from_real => "i32_of(x)",
        DType::I64 if from_real => "i64_of(x)",
        DType::U8 if from_real => "(u8)i32_of(x)",
        DType::U16 if from_real => "(u16)i32_of(x)",
        DType::U32 if from_real => "(u32)i64_of(x)",
        DType::U64 if from_real => "u64_of(x)",
        _ => "(COMPUTED(TARGET))x",
    }
}
