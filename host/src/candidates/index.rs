//! Numbers of rows.

/// Converts lengths of columns, which the graph's assembler bounds, and numbers of types.
pub(super) fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("columns are shorter than 2^32")
}
