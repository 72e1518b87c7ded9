//! The cases, one file per family.

use crate::case::Case;

mod array;
mod binary;
mod cast;
mod complex;
mod concat;
mod conv;
mod diagonal;
mod elementwise;
mod fill;
mod gather;
mod image;
mod linalg;
mod logic;
mod matmul;
mod matrix;
mod nn;
mod norm;
mod pad;
mod patches;
mod reduce;
mod resample;
mod scatter;
mod search;
mod slice;
mod special;
mod state;
mod suppression;
mod unary;
mod volume;

/// A family's name and cases.
type Family = (&'static str, fn() -> Vec<Case>);

/// Returns all cases, named `family::description`.
pub(crate) fn all() -> Vec<Case> {
    let families: [Family; 29] = [
        ("array", array::cases),
        ("binary", binary::cases),
        ("cast", cast::cases),
        ("complex", complex::cases),
        ("elementwise", elementwise::cases),
        ("fill", fill::cases),
        ("linalg", linalg::cases),
        ("logic", logic::cases),
        ("concat", concat::cases),
        ("conv", conv::cases),
        ("diagonal", diagonal::cases),
        ("gather", gather::cases),
        ("image", image::cases),
        ("matmul", matmul::cases),
        ("matrix", matrix::cases),
        ("nn", nn::cases),
        ("reduce", reduce::cases),
        ("resample", resample::cases),
        ("norm", norm::cases),
        ("pad", pad::cases),
        ("patches", patches::cases),
        ("slice", slice::cases),
        ("special", special::cases),
        ("scatter", scatter::cases),
        ("search", search::cases),
        ("state", state::cases),
        ("suppression", suppression::cases),
        ("unary", unary::cases),
        ("volume", volume::cases),
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
