//! Op definitions: arity, element types, shapes and work of each op. No devices, no kernels.
