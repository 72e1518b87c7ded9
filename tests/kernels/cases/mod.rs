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
mod random;
mod recorded;
mod reduce;
mod resample;
mod scatter;
mod search;
mod slice;
mod sparse;
mod sparse_join;
mod sparse_segment;
mod special;
mod state;
mod strings;
mod suppression;
mod unary;
mod volume;

/// A family's name and cases.
type Family = (&'static str, fn() -> Vec<Case>);

/// The family of calls that a script recorded.
macro_rules! recorded {
    ($name:literal) => {
        ($name, || {
            recorded::cases_of(include_str!(concat!("../recorded/", $name, ".jsonl")))
        })
    };
}

/// Returns all cases, named `family::description`.
pub(crate) fn all() -> Vec<Case> {
    let families: [Family; 39] = [
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
        ("random", random::cases),
        ("scatter", scatter::cases),
        ("search", search::cases),
        ("slice", slice::cases),
        ("sparse", sparse::cases),
        ("sparse_join", sparse_join::cases),
        ("sparse_segment", sparse_segment::cases),
        ("special", special::cases),
        ("state", state::cases),
        ("strings", strings::cases),
        ("suppression", suppression::cases),
        ("unary", unary::cases),
        ("volume", volume::cases),
        recorded!("codec"),
        recorded!("example"),
        recorded!("boxes"),
        recorded!("joined"),
        recorded!("functions"),
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
