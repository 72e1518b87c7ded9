//! Checks and printing.

use super::definition::OpDef;
use super::definition::op;
use super::rules::same_as_input;
use super::rules::scalars;
use super::work::free;

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    vec![
        op("Assert", "condition: bool, data: T", "", "T: list(type) >= 1; summarize: int = 3")
            .stateful()
            .with_work(free),
        op("Print", "input: T, data: U", "output: T", "T: type; U: list(type) >= 0; message: string = ''; first_n: int = -1; summarize: int = 3")
            .stateful()
            .with_shape(same_as_input)
            .with_work(free),
        op("PrintV2", "input: string", "", "output_stream: string = 'stderr'; end: string = '\n'").stateful(),
        op("Timestamp", "", "ts: double", "").stateful().with_shape(scalars),
    ]
}
