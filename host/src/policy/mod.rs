//! Policies: the sandbox, its limits, native twins, the ladder. Wasmtime lives only here.
