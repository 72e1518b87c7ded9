//! The tensors of one run.
//!
//! This is the only place of the executor where threads access the same memory without locks. The
//! plan keeps them apart: a value is written by one operation, and read by operations that depend
//! on it. Values that share bytes of an arena are never in use at the same time ([`super::arena`]).
//! The thread that counts the last one of a [`Countdown`] sees what the others wrote, so an
//! operation's writes are visible to those that depend on it.
#![expect(
    unsafe_code,
    reason = "operations of one run share values without locks; the plan keeps them apart"
)]

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::Arc;

use super::compile::Compiled;
use super::compile::Place;
use super::countdown::Countdown;
use super::error::ExecuteError;
use crate::device::AllocatorAttributes;
use crate::device::DeviceSet;
use crate::device::OutputSlot;
use crate::device::OutputState;
use crate::tensor::Arena;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::trace::TransferWay;

/// A tensor between its send and its receive.
#[derive(Debug, Default)]
pub(super) struct InTransit {
    /// The tensor, copied to host-readable memory, or copied directly to the receiver's memory;
    /// `None` for control edges, and if the receiver reads the tensor in place.
    pub(super) tensor: Option<Tensor>,
    /// How it is transferred; set by each send of a tensor.
    pub(super) way: TransferWay,
    /// When it was sent; only set while events are recorded.
    pub(super) sent: Times,
    /// Number of bytes received.
    pub(super) bytes: u64,
}

/// When an operation was executed, in ns since the run started, and how long it was ready before.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    pub(super) queue_wait_ns: u64,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
}

/// The tensors of one run, reused by later runs.
#[derive(Debug)]
pub(super) struct RunValues {
    slots: Box<[UnsafeCell<OutputSlot>]>,
    /// Per value the number of remaining reads, if it has its own allocation.
    n_readers_left: Box<[Countdown]>,
    transit: Box<[UnsafeCell<InTransit>]>,
    fetched: Box<[UnsafeCell<Option<Tensor>>]>,
    /// Per value its observed shape; empty if all shapes are known.
    observed: Box<[UnsafeCell<Option<Shape>>]>,
    /// Per operation whether it is dead; empty if the plan has no branches and loops.
    dead: Box<[UnsafeCell<bool>]>,
}

// SAFETY: see the module's comment; every method that accesses a cell documents what its caller
// must ensure.
unsafe impl Sync for RunValues {}

impl RunValues {
    /// Allocates the arenas, unless each tensor is to have its own allocation. Without arenas more
    /// steps allocate, and only live tensors hold memory.
    pub(super) fn new(
        compiled: &Compiled,
        n_transfers: usize,
        n_fetches: usize,
        devices: &DeviceSet,
        with_arenas: bool,
    ) -> Result<Self, ExecuteError> {
        let mut arenas = Vec::with_capacity(compiled.arenas.len());
        for plan in &compiled.arenas {
            if !plan.is_allocated || !with_arenas {
                arenas.push(None);
                continue;
            }
            let device = devices.get(plan.device).ok_or(ExecuteError::ForeignPlan)?;
            let allocator = device.allocator(AllocatorAttributes {
                on_host: plan.on_host,
                ..AllocatorAttributes::default()
            });
            let whole =
                allocator
                    .allocate(plan.len_bytes)
                    .map_err(|source| ExecuteError::Arena {
                        device: device.attributes().name.clone(),
                        bytes: plan.len_bytes,
                        source: Box::new(source),
                        failure: None,
                    })?;
            // Memory that the host cannot write has no planned places; kernels allocate their
            // outputs.
            arenas.push(Arena::new(whole).ok());
        }
        let slots = compiled.places.iter().map(|place| {
            let mut slot = OutputSlot::default();
            match place {
                Place::Anywhere => {}
                Place::Fixed(tensor) => {
                    slot.planned = Some(tensor.clone());
                    slot.state = OutputState::Planned;
                }
                Place::Arena {
                    arena,
                    offset,
                    dtype,
                    shape,
                    is_forwarded,
                } => {
                    let bytes = shape.size_bytes(*dtype).unwrap_or(usize::MAX);
                    let arena: Option<&Arc<Arena>> = arenas[*arena as usize].as_ref();
                    // SAFETY: `compile` assigned overlapping places only to values that no two
                    // operations use at the same time, and nothing exposes a value only to the
                    // operations that write and read it.
                    let part = arena.and_then(|arena| unsafe { arena.part(*offset, bytes) });
                    let tensor =
                        part.and_then(|part| Tensor::from_buffer(*dtype, shape.clone(), part).ok());
                    slot.planned = tensor;
                    slot.is_forwarded = *is_forwarded;
                }
            }
            UnsafeCell::new(slot)
        });
        let n_observed = if compiled.is_partial {
            compiled.places.len()
        } else {
            0
        };
        Ok(Self {
            slots: slots.collect(),
            n_readers_left: compiled.places.iter().map(|_| Countdown::new()).collect(),
            transit: (0..n_transfers).map(|_| UnsafeCell::default()).collect(),
            fetched: (0..n_fetches).map(|_| UnsafeCell::default()).collect(),
            observed: (0..n_observed).map(|_| UnsafeCell::default()).collect(),
            dead: match compiled.flow {
                Some(_) => compiled
                    .operations
                    .iter()
                    .map(|_| UnsafeCell::default())
                    .collect(),
                None => Box::default(),
            },
        })
    }

    /// Returns a value that was written; `None` if its writer left it unset.
    ///
    /// # Safety
    /// The caller executes an operation that reads `value`.
    #[inline]
    pub(super) unsafe fn read(&self, value: u32) -> Option<&Tensor> {
        // SAFETY: its writer has ended, and the value is not cleared before all readers have left.
        let slot = unsafe { &*self.slots[value as usize].get() };
        slot.tensor()
    }

    /// Checks whether a value is dead.
    ///
    /// # Safety
    /// As [`Self::read`].
    #[inline]
    pub(super) unsafe fn is_dead(&self, value: u32) -> bool {
        // SAFETY: as in `read`.
        let slot = unsafe { &*self.slots[value as usize].get() };
        slot.state == OutputState::Dead
    }

    /// Checks whether an operation is dead.
    ///
    /// # Safety
    /// The caller executes an operation that waits for it.
    #[inline]
    pub(super) unsafe fn is_operation_dead(&self, rank: u32) -> bool {
        // SAFETY: it is written before the operations that wait for it start.
        unsafe { *self.dead[rank as usize].get() }
    }

    /// Records whether an operation is dead.
    ///
    /// # Safety
    /// The caller executes the operation.
    #[inline]
    pub(super) unsafe fn set_operation_dead(&self, rank: u32, is_dead: bool) {
        // SAFETY: one operation writes it, before those that read it start.
        unsafe { *self.dead[rank as usize].get() = is_dead };
    }

    /// Checks whether a written value is at its planned place, or is a constant.
    ///
    /// # Safety
    /// As [`Self::read`].
    pub(super) unsafe fn is_planned(&self, value: u32) -> bool {
        // SAFETY: as in `read`.
        let slot = unsafe { &*self.slots[value as usize].get() };
        slot.state == OutputState::Planned
    }

    /// Returns the slots that an operation writes.
    ///
    /// # Safety
    /// The caller executes the operation that writes `values`, and has no other reference to them.
    #[inline]
    #[expect(
        clippy::mut_from_ref,
        reason = "the operation has its outputs exclusively"
    )]
    pub(super) unsafe fn outputs(&self, values: Range<usize>) -> &mut [OutputSlot] {
        let slots = &self.slots[values];
        let first = UnsafeCell::raw_get(slots.as_ptr());
        // SAFETY: cells have the layout of their contents; no other operation reads or writes these
        // before this one has ended.
        unsafe { std::slice::from_raw_parts_mut(first, slots.len()) }
    }

    /// Records that the value has its own allocation and will be read `n_readers` times. Drops it
    /// at once if `n_readers` is 0.
    ///
    /// # Safety
    /// The caller executes the operation that writes `value`, and has no reference to it.
    pub(super) unsafe fn expect_readers(&self, value: usize, n_readers: u32) {
        if n_readers == 0 {
            // SAFETY: no operation reads it, and its writer is the caller.
            unsafe { &mut *self.slots[value].get() }.clear();
        }
        self.n_readers_left[value].set(n_readers);
    }

    /// Records that a reader no longer uses a value. The last reader gets a value that has its own
    /// allocation.
    ///
    /// # Safety
    /// The caller executes an operation that reads `value`, has no reference to it, and does not
    /// read it again, except for as many times as it still calls this.
    #[inline]
    pub(super) unsafe fn leave(&self, value: u32) -> Option<Tensor> {
        let cell = &self.slots[value as usize];
        // SAFETY: its writer has ended; other readers do not change it before this one has left.
        if unsafe { &*cell.get() }.state != OutputState::Own {
            return None;
        }
        if !self.n_readers_left[value as usize].count() {
            return None;
        }
        // SAFETY: all other readers have left before; acquiring their decrements puts their reads
        // before this.
        let slot = unsafe { &mut *cell.get() };
        slot.state = OutputState::Unset;
        slot.own.take().map(|tensor| *tensor)
    }

    /// Returns the state of a transfer.
    ///
    /// # Safety
    /// The caller executes the transfer's send, or its receive.
    #[expect(
        clippy::mut_from_ref,
        reason = "send and receive have it one after the other"
    )]
    pub(super) unsafe fn transit(&self, transfer: usize) -> &mut InTransit {
        // SAFETY: the receive waits for the send, and no other operation accesses it.
        unsafe { &mut *self.transit[transfer].get() }
    }

    /// Sets the tensor of a fetch.
    ///
    /// # Safety
    /// The caller executes the fetch.
    pub(super) unsafe fn set_fetched(&self, fetch: u32, tensor: Tensor) {
        // SAFETY: one operation writes it, and it is read when the run is over.
        unsafe { *self.fetched[fetch as usize].get() = Some(tensor) };
    }

    /// Records the shape of a value.
    ///
    /// # Safety
    /// The caller executes the operation that writes `value`.
    pub(super) unsafe fn observe(&self, value: usize, shape: &Shape) {
        if let Some(observed) = self.observed.get(value) {
            // SAFETY: one operation writes it, and it is read when the run is over.
            unsafe { *observed.get() = Some(shape.clone()) };
        }
    }

    /// Takes the tensor of a fetch.
    pub(super) fn take_fetched(&mut self, fetch: usize) -> Option<Tensor> {
        self.fetched[fetch].get_mut().take()
    }

    /// Returns the bytes that transfers moved in a run that is over.
    pub(super) fn transferred_bytes(&mut self) -> u64 {
        let transit = self.transit.iter_mut();
        transit.map(|transit| transit.get_mut().bytes).sum()
    }

    /// Returns the observed shapes; empty if none had to be observed.
    pub(super) fn take_observed(&mut self) -> Vec<Option<Shape>> {
        let observed = self.observed.iter_mut();
        observed.map(|shape| shape.get_mut().take()).collect()
    }

    /// Drops the tensors that a failed run left behind.
    pub(super) fn drop_leftovers(&mut self, compiled: &Compiled) {
        for (slot, place) in self.slots.iter_mut().zip(&compiled.places) {
            if !matches!(place, Place::Fixed(_)) {
                slot.get_mut().clear();
            }
        }
        for transit in &mut self.transit {
            *transit.get_mut() = InTransit::default();
        }
        for fetched in &mut self.fetched {
            *fetched.get_mut() = None;
        }
    }
}
