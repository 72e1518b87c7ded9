//! The cases, one file per family.

use crate::case::Case;

mod array;
mod binary;
mod cast;
mod complex;
mod concat;
mod conv;
mod elementwise;
mod fill;
mod gather;
mod image;
mod logic;
mod matmul;
mod matrix;
mod nn;
mod norm;
mod pad;
mod random;
mod reduce;
mod slice;
mod sparse;
mod sparse_segment;
mod state;
mod strings;
mod unary;

/// A family's name and cases.
type Family = (&'static str, fn() -> Vec<Case>);

/// Returns all cases, named `family::description`.
pub(crate) fn all() -> Vec<Case> {
    let families: [Family; 24] = [
        ("array", array::cases),
        ("binary", binary::cases),
        ("cast", cast::cases),
        ("complex", complex::cases),
        ("elementwise", elementwise::cases),
        ("fill", fill::cases),
        ("logic", logic::cases),
        ("concat", concat::cases),
        ("conv", conv::cases),
        ("gather", gather::cases),
        ("image", image::cases),
        ("matmul", matmul::cases),
        ("matrix", matrix::cases),
        ("nn", nn::cases),
        ("reduce", reduce::cases),
        ("norm", norm::cases),
        ("pad", pad::cases),
        ("random", random::cases),
        ("slice", slice::cases),
        ("sparse", sparse::cases),
        ("sparse_segment", sparse_segment::cases),
        ("state", state::cases),
        ("strings", strings::cases),
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
