//! The cases, one file per family.

use crate::case::Case;

mod array;
mod binary;
mod matmul;
mod nn;
mod state;
mod unary;

/// All cases, named `family::what it shows`.
pub fn all() -> Vec<Case> {
    let families: [(&str, fn() -> Vec<Case>); 6] = [
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
