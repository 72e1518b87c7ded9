//! Counts the allocations of a store, and stops it at its limits.

use wasmtime::ResourceLimiter;

use super::limits::PolicyLimits;

/// A limit that a guest reached. Wasmtime passes it on as the error of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum LimitHit {
    #[error("memory")]
    Memory { requested_bytes: usize },
    #[error("table")]
    Table { requested: usize },
    /// Host calls used up the call's fuel.
    #[error("fuel of host calls")]
    HostFuel,
}

/// The limiter of one store. Wasmtime asks it before a memory or table grows.
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

    /// Returns the bytes of all memories. Memories never shrink, so this is also the peak.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}

impl ResourceLimiter for Limiter {
    // A guest whose allocation fails would abort with `unreachable`. Ending the call here reports
    // the reason.
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
