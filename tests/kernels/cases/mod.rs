//! The cases, one file per family.

use crate::case::Case;

mod array;
mod binary;
mod matmul;
mod nn;
mod state;
mod unary;

/// A family's name and cases.
type Family = (&'static str, fn() -> Vec<Case>);

/// All cases, named `family::what it shows`.
pub(crate) fn all() -> Vec<Case> {
    let families: [Family; 6] = [
        ("array", array::cases),
        ("binary", binary::cases),
        ("matmul", matmul::cases),
        ("nn", nn::cases),
        ("state", state::cases),
        ("unary", unary::cases),
    ];
    families
        .into_iter()
        .flat_map(|(family, cases)| {
            cases().into_iter().map(move |mut case| {
                case.name = format!("{family}::{}", case.name);
                case
            })
        })
        .collect()
}
