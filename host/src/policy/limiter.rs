//! Counts what a store allocates, and stops it at the limits.

use wasmtime::ResourceLimiter;

use super::limits::PolicyLimits;

/// A limit that a guest ran into. Travels through wasmtime as the error of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum LimitHit {
    #[error("memory")]
    Memory { requested_bytes: usize },
    #[error("table")]
    Table { requested: usize },
    /// Imports cost more than the call's fuel.
    #[error("fuel of imports")]
    HostFuel,
}

/// The limiter of one store. Wasmtime asks it before anything grows.
#[derive(Debug)]
pub(super) struct Limiter {
    memory_bytes_max: usize,
    table_elements_max: usize,
    instances_max: usize,
    tables_max: usize,
    memories_max: usize,
    memory_bytes: usize,
}

impl Limiter {
    pub(super) fn new(limits: &PolicyLimits) -> Self {
        Self {
            memory_bytes_max: limits.memory_bytes,
            table_elements_max: limits.table_elements,
            instances_max: limits.instances,
            tables_max: limits.tables,
            memories_max: limits.memories,
            memory_bytes: 0,
        }
    }

    /// Bytes of all memories. Memories never shrink, so it is the peak, too.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}

impl ResourceLimiter for Limiter {
    // A guest whose allocation fails would abort with a bare `unreachable`; ending the call here
    // says why.
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let requested_bytes = self
            .memory_bytes
            .saturating_add(desired.saturating_sub(current));
        if requested_bytes > self.memory_bytes_max {
            return Err(LimitHit::Memory { requested_bytes }.into());
        }
        self.memory_bytes = requested_bytes;
        Ok(true)
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > self.table_elements_max {
            return Err(LimitHit::Table { requested: desired }.into());
        }
        Ok(true)
    }

    fn instances(&self) -> usize {
        self.instances_max
    }

    fn tables(&self) -> usize {
        self.tables_max
    }

    fn memories(&self) -> usize {
        self.memories_max
    }
}
