//! The program `placewright`.

fn main() {}
