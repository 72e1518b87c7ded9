//! The memory of emulated GPUs and pinned host memory: allocations by address, their bytes, and
//! records of freed memory. This module turns addresses into places in allocations; others decide
//! who may use them when.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use placewright::backend::cuda::driver::Span;

use super::order::Accesses;
use super::pinned::PinnedMemory;

/// Contents of memory that was never written.
pub(super) const GARBAGE: u8 = 0xa5;

/// Contents of pinned memory that was freed.
const FREED: u8 = 0xdd;

/// Freed pinned memory stays mapped up to this size, so that later writes to it are found.
const FREED_BYTES_MAX: usize = 64 << 20;

/// Addresses and sizes of a GPU's memory are multiples of this.
const ALIGN_BYTES: usize = 256;

/// Start of the first GPU's memory, and the distance to the next one's. The host has no addresses
/// there.
const DEVICE_BASE: u64 = 0x7000_0000_0000_0000;
const DEVICE_STRIDE: u64 = 0x0001_0000_0000_0000;

const PAGE_BYTES: usize = 64 << 10;

/// Bytes of a GPU's memory. Pages that were never written use no host memory.
#[derive(Debug, Default)]
pub(super) struct Pages(HashMap<usize, Box<[u8]>>);

impl Pages {
    fn read(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(range.len());
        let mut at = range.start;
        while at < range.end {
            let (page, start) = (at / PAGE_BYTES, at % PAGE_BYTES);
            let len = (PAGE_BYTES - start).min(range.end - at);
            match self.0.get(&page) {
                Some(page) => bytes.extend_from_slice(&page[start..start + len]),
                None => bytes.resize(bytes.len() + len, GARBAGE),
            }
            at += len;
        }
        bytes
    }

    fn write(&mut self, mut at: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (page, start) = (at / PAGE_BYTES, at % PAGE_BYTES);
            let (now, later) = bytes.split_at(bytes.len().min(PAGE_BYTES - start));
            let page = self.0.entry(page);
            let page = page.or_insert_with(|| vec![GARBAGE; PAGE_BYTES].into());
            page[start..start + now.len()].copy_from_slice(now);
            at += now.len();
            bytes = later;
        }
    }
}

/// Kinds of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A GPU's own memory.
    Device,
    /// Paged memory of a GPU, which may exceed the GPU's own. Which part is elsewhere is not
    /// modelled.
    Managed,
    /// The host's memory.
    Pinned,
}

/// The storage of an allocation.
#[derive(Debug)]
pub(super) enum Bytes {
    Device(Pages),
    Managed(Pages),
    Pinned(PinnedMemory),
}

/// An allocation in use.
#[derive(Debug)]
pub(super) struct Allocation {
    /// Unique, unlike addresses of pinned memory, which are reused.
    pub(super) id: u64,
    /// The context that allocated it.
    pub(super) context_idx: usize,
    pub(super) len_bytes: usize,
    pub(super) bytes: Bytes,
    pub(super) accesses: Accesses,
    /// Whether its GPU is lost, with the contents.
    pub(super) is_lost: bool,
}

impl Allocation {
    pub(super) fn kind(&self) -> Kind {
        match self.bytes {
            Bytes::Device(_) => Kind::Device,
            Bytes::Managed(_) => Kind::Managed,
            Bytes::Pinned(_) => Kind::Pinned,
        }
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.kind() == Kind::Pinned
    }

    pub(super) fn read(&self, range: Range<usize>) -> Vec<u8> {
        match &self.bytes {
            Bytes::Device(pages) | Bytes::Managed(pages) => pages.read(range),
            Bytes::Pinned(pinned) => pinned.read(range),
        }
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        match &mut self.bytes {
            Bytes::Device(pages) | Bytes::Managed(pages) => pages.write(at, bytes),
            Bytes::Pinned(pinned) => pinned.write(at, bytes),
        }
    }

    /// Fills pinned memory with garbage, which the host finds if it reads too early.
    pub(super) fn spoil(&mut self, range: Range<usize>) {
        if let Bytes::Pinned(pinned) = &mut self.bytes {
            pinned.fill(range, GARBAGE);
        }
    }
}

/// A span within an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Start of the allocation.
    pub(super) start: u64,
    /// Id of the allocation.
    pub(super) id: u64,
    /// Relative to the start of the allocation; empty if nothing is accessed.
    pub(super) bytes: Range<usize>,
}

impl Place {
    /// The place of an empty span.
    pub(super) fn nowhere() -> Self {
        Self {
            start: 0,
            id: u64::MAX,
            bytes: 0..0,
        }
    }

    pub(super) fn is_nowhere(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.id == other.id
            && self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
    }
}

impl fmt::Display for Place {
    /// Formats as `64 bytes at 0x7000000000000100`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.start + self.bytes.start as u64;
        write!(f, "{} bytes at {address:#x}", self.bytes.len())
    }
}

/// Formats a span like a [`Place`].
pub(super) fn span_text(span: Span) -> String {
    format!("{} bytes at {:#x}", span.len_bytes, span.address)
}

/// Pinned memory that was freed, but is still mapped.
#[derive(Debug, Default)]
struct Freed {
    memory: VecDeque<PinnedMemory>,
    len_bytes: usize,
}

/// All allocations.
#[derive(Debug, Default)]
pub(super) struct Memory {
    live: BTreeMap<u64, Allocation>,
    n_given: u64,
    /// Start of the next allocation, per GPU. Addresses are not reused.
    next: HashMap<u32, u64>,
    /// Length of each freed allocation, by its start.
    given_back: BTreeMap<u64, usize>,
    freed: Freed,
}

impl Memory {
    /// Allocates memory of a GPU, filled with garbage.
    pub(super) fn allocate(&mut self, gpu: u32, context_idx: usize, len_bytes: usize) -> u64 {
        let bytes = Bytes::Device(Pages::default());
        self.insert_for_gpu(gpu, context_idx, len_bytes, bytes)
    }

    /// Allocates paged memory, which may exceed the GPU's own.
    pub(super) fn allocate_managed(
        &mut self,
        gpu: u32,
        context_idx: usize,
        len_bytes: usize,
    ) -> u64 {
        let bytes = Bytes::Managed(Pages::default());
        self.insert_for_gpu(gpu, context_idx, len_bytes, bytes)
    }

    fn insert_for_gpu(
        &mut self,
        gpu: u32,
        context_idx: usize,
        len_bytes: usize,
        bytes: Bytes,
    ) -> u64 {
        let first = DEVICE_BASE + u64::from(gpu) * DEVICE_STRIDE;
        let next = self.next.entry(gpu).or_insert(first);
        let start = *next;
        // A gap between allocations catches accesses beyond the end.
        *next += taken_bytes(len_bytes) + ALIGN_BYTES as u64;
        self.insert(start, context_idx, len_bytes, bytes);
        start
    }

    /// Allocates pinned memory, filled with garbage, if the host has enough.
    pub(super) fn allocate_pinned(
        &mut self,
        context_idx: usize,
        len_bytes: usize,
    ) -> Option<NonNull<u8>> {
        let memory = PinnedMemory::new(len_bytes, GARBAGE)?;
        let start = memory.start();
        let address = address_of(start);
        self.given_back.remove(&address);
        self.insert(address, context_idx, len_bytes, Bytes::Pinned(memory));
        Some(start)
    }

    fn insert(&mut self, start: u64, context_idx: usize, len_bytes: usize, bytes: Bytes) {
        self.n_given += 1;
        let allocation = Allocation {
            id: self.n_given,
            context_idx,
            len_bytes,
            bytes,
            accesses: Accesses::default(),
            is_lost: false,
        };
        self.live.insert(start, allocation);
    }

    /// Returns the allocation that starts at an address.
    pub(super) fn starting_at(&self, address: u64) -> Option<&Allocation> {
        self.live.get(&address)
    }

    /// Returns whether the allocation that started at an address was freed.
    pub(super) fn was_given_back(&self, address: u64) -> bool {
        self.given_back.contains_key(&address)
    }

    /// Returns whether an address is in freed memory.
    pub(super) fn is_in_given_back(&self, address: u64) -> bool {
        let before = self.given_back.range(..=address).next_back();
        before.is_some_and(|(start, &len_bytes)| address - start < len_bytes as u64)
    }

    /// Removes an allocation.
    pub(super) fn remove(&mut self, address: u64) {
        let Some(allocation) = self.live.remove(&address) else {
            return;
        };
        self.given_back.insert(address, allocation.len_bytes);
        if let Bytes::Pinned(mut memory) = allocation.bytes {
            memory.fill(0..allocation.len_bytes, FREED);
            self.freed.len_bytes += allocation.len_bytes;
            self.freed.memory.push_back(memory);
        }
    }

    /// Reports pinned memory that was written after it was freed, and unmaps what exceeds the
    /// limit.
    pub(super) fn written_after_free(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        let freed = &mut self.freed;
        for memory in &mut freed.memory {
            let bytes = memory.read(0..memory.len_bytes());
            let Some(at) = bytes.iter().position(|&byte| byte != FREED) else {
                continue;
            };
            let start = address_of(memory.start());
            problems.push(format!(
                "the host has written byte {at} of {} bytes of pinned memory at {start:#x} after they were freed",
                bytes.len()
            ));
            // Each write is reported once.
            memory.fill(0..bytes.len(), FREED);
        }
        while freed.len_bytes > FREED_BYTES_MAX
            && let Some(oldest) = freed.memory.pop_front()
        {
            freed.len_bytes -= oldest.len_bytes();
        }
        problems
    }

    /// Returns whether there is more freed pinned memory than the limit.
    pub(super) fn has_too_much_freed(&self) -> bool {
        self.freed.len_bytes > FREED_BYTES_MAX
    }

    /// Returns the place of a span, if it is within one allocation.
    pub(super) fn find(&self, span: Span) -> Option<Place> {
        if span.len_bytes == 0 {
            return Some(Place::nowhere());
        }
        let (&start, allocation) = self.live.range(..=span.address).next_back()?;
        let offset = usize::try_from(span.address - start).ok()?;
        let end = offset.checked_add(span.len_bytes)?;
        (end <= allocation.len_bytes).then_some(Place {
            start,
            id: allocation.id,
            bytes: offset..end,
        })
    }

    /// Returns the allocation of a place, if it still exists.
    pub(super) fn of(&self, place: &Place) -> Option<&Allocation> {
        let allocation = self.live.get(&place.start);
        allocation.filter(|allocation| allocation.id == place.id)
    }

    pub(super) fn of_mut(&mut self, place: &Place) -> Option<&mut Allocation> {
        let allocation = self.live.get_mut(&place.start);
        allocation.filter(|allocation| allocation.id == place.id)
    }

    /// Returns the bytes that a context has allocated of one kind and not freed. For a GPU's
    /// memory, rounded up to its alignment.
    pub(super) fn live_bytes(&self, context_idx: usize, kind: Kind) -> u64 {
        let live = self.live.values().filter(|allocation| {
            allocation.context_idx == context_idx
                && allocation.kind() == kind
                && !allocation.is_lost
        });
        live.map(|allocation| match kind {
            Kind::Pinned => allocation.len_bytes as u64,
            Kind::Device | Kind::Managed => taken_bytes(allocation.len_bytes),
        })
        .sum()
    }

    /// Marks a context's GPU as lost: its memory has no contents any more. Pinned memory stays
    /// mapped, because the host may be using it.
    pub(super) fn lose(&mut self, context_idx: usize) {
        for allocation in self.live.values_mut() {
            if allocation.context_idx == context_idx {
                allocation.is_lost = true;
                if let Bytes::Device(pages) | Bytes::Managed(pages) = &mut allocation.bytes {
                    *pages = Pages::default();
                }
            }
        }
    }
}

/// Returns how much of a GPU's memory an allocation takes.
pub(super) fn taken_bytes(len_bytes: usize) -> u64 {
    len_bytes.next_multiple_of(ALIGN_BYTES) as u64
}

/// Returns the address at which a GPU accesses pinned memory.
pub(super) fn address_of(start: NonNull<u8>) -> u64 {
    start.addr().get() as u64
}
