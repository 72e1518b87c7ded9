//! Write a placement policy for Placewright once; run it sandboxed as WebAssembly, or natively.

pub mod source;
