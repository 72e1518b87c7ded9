//! Work formulas shared by several op families.
//!
//! A multiplication, addition or comparison counts as 1 floating-point operation, so a multiply-add
//! counts as 2. A function that is computed by a polynomial or an iteration (exponential,
//! logarithm, sine, error function, power, root) counts as [`TRANSCENDENTAL_FLOPS`] per element.
//! Traffic is each input read once and each output written once. An unknown shape counts as 0.

use super::infer::InferenceContext;
use super::infer::elements;
use crate::graph::Output;
use crate::graph::Work;

/// Floating-point operations of one transcendental function: a polynomial of about eight terms and
/// its range reduction.
pub(super) const TRANSCENDENTAL_FLOPS: f64 = 20.0;

/// `flops` operations; every input is read and every output written once.
pub(super) fn with_flops(context: &InferenceContext<'_>, outputs: &[Output], flops: f64) -> Work {
    Work {
        flops,
        ..context.traffic_only(outputs)
    }
}

/// `flops` operations per element of output 0.
pub(super) fn per_output(
    flops: f64,
) -> impl Fn(&InferenceContext<'_>, &[Output]) -> Work + Send + Sync + 'static {
    move |context, outputs| {
        let n_elements = outputs
            .first()
            .map_or(0.0, |output| elements(&output.shape));
        with_flops(context, outputs, flops * n_elements)
    }
}

/// `flops` operations per element of input 0.
pub(super) fn per_input(
    flops: f64,
) -> impl Fn(&InferenceContext<'_>, &[Output]) -> Work + Send + Sync + 'static {
    move |context, outputs| with_flops(context, outputs, flops * context.input_elements(0))
}

/// Reads a part of its first input as large as the output, and all of the other inputs: slices and
/// gathers.
pub(super) fn reads_what_it_writes(context: &InferenceContext<'_>, outputs: &[Output]) -> Work {
    let written = super::infer::output_bytes(outputs);
    let first = context.input(0);
    let whole = first.shape.size_bytes(first.dtype).unwrap_or(0);
    let others = context.input_bytes() - whole;
    Work {
        traffic_bytes: others.saturating_add(written.saturating_mul(2)),
        ..Work::default()
    }
}

/// Moves no bytes: the output shares the input's memory, or there is none.
pub(super) fn free(_context: &InferenceContext<'_>, _outputs: &[Output]) -> Work {
    Work::default()
}
