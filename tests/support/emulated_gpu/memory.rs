//! The memory of emulated GPUs and pinned memory of the host: allocations by address, their bytes,
//! and what is known of memory that was given back. In go addresses, out go places in allocations;
//! who may use them when, is decided elsewhere.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use placewright::backend::cuda::driver::Span;

use super::order::Accesses;
use super::pinned::PinnedMemory;

/// What stands in memory that nobody has written.
pub(super) const GARBAGE: u8 = 0xa5;

/// What stands in pinned memory that was given back.
const FREED: u8 = 0xdd;

/// Pinned memory that was given back stays mapped until it is more than this, so that code that
/// still writes it is found out.
const FREED_BYTES_MAX: usize = 64 << 20;

/// Addresses of a GPU's memory are multiples of this, and what it takes of it, too.
const ALIGN_BYTES: usize = 256;

/// Where the first GPU's memory starts, and how far that of the next is: no address of the host's
/// is there.
const DEVICE_BASE: u64 = 0x7000_0000_0000_0000;
const DEVICE_STRIDE: u64 = 0x0001_0000_0000_0000;

const PAGE_BYTES: usize = 64 << 10;

/// Bytes of a GPU's memory. Pages that nobody has written take none of the host's.
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

/// Which memory there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A GPU's own.
    Device,
    /// A GPU's, of which there is more than it has; what of it is elsewhere, nothing here can tell.
    Managed,
    /// The host's.
    Pinned,
}

/// Whose bytes they are.
#[derive(Debug)]
pub(super) enum Bytes {
    Device(Pages),
    Managed(Pages),
    Pinned(PinnedMemory),
}

/// Memory that was given and not given back.
#[derive(Debug)]
pub(super) struct Allocation {
    /// Addresses of pinned memory come again; this does not.
    pub(super) id: u64,
    /// Who has given it.
    pub(super) context_idx: usize,
    pub(super) len_bytes: usize,
    pub(super) bytes: Bytes,
    pub(super) accesses: Accesses,
    /// Its GPU is lost, and its content with that.
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

    /// Has the host find garbage where it reads pinned memory too early.
    pub(super) fn spoil(&mut self, range: Range<usize>) {
        if let Bytes::Pinned(pinned) = &mut self.bytes {
            pinned.fill(range, GARBAGE);
        }
    }
}

/// A span within an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Where the allocation starts.
    pub(super) start: u64,
    /// Which allocation it is.
    pub(super) id: u64,
    /// From the allocation's start; nothing where nothing is touched.
    pub(super) bytes: Range<usize>,
}

impl Place {
    /// Where a span of no bytes is: nowhere.
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
    /// `64 bytes at 0x7000000000000100`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.start + self.bytes.start as u64;
        write!(f, "{} bytes at {address:#x}", self.bytes.len())
    }
}

/// What is told of a span, as a [`Place`] is.
pub(super) fn span_text(span: Span) -> String {
    format!("{} bytes at {:#x}", span.len_bytes, span.address)
}

/// Pinned memory that was given back, and is still mapped.
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
    /// By GPU: where the next allocation starts. Addresses do not come again.
    next: HashMap<u32, u64>,
    /// What was given back, by its start: how long it was.
    given_back: BTreeMap<u64, usize>,
    freed: Freed,
}

impl Memory {
    /// Memory of a GPU, of garbage.
    pub(super) fn allocate(&mut self, gpu: u32, context_idx: usize, len_bytes: usize) -> u64 {
        let bytes = Bytes::Device(Pages::default());
        self.insert_for_gpu(gpu, context_idx, len_bytes, bytes)
    }

    /// The same, of which there may be more than the GPU has.
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
        // Between allocations there is a gap: who runs over an end, runs into nothing.
        *next += taken_bytes(len_bytes) + ALIGN_BYTES as u64;
        self.insert(start, context_idx, len_bytes, bytes);
        start
    }

    /// Pinned memory, of garbage, if the host has so much.
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

    /// The allocation that starts at an address.
    pub(super) fn starting_at(&self, address: u64) -> Option<&Allocation> {
        self.live.get(&address)
    }

    /// Whether what started at an address was given back.
    pub(super) fn was_given_back(&self, address: u64) -> bool {
        self.given_back.contains_key(&address)
    }

    /// Whether an address is in something that was given back.
    pub(super) fn is_in_given_back(&self, address: u64) -> bool {
        let before = self.given_back.range(..=address).next_back();
        before.is_some_and(|(start, &len_bytes)| address - start < len_bytes as u64)
    }

    /// Takes an allocation back.
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

    /// Pinned memory that somebody has written since it was given back, if any; what is too much of
    /// it is unmapped.
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
                "the host has written byte {at} of {} bytes of pinned memory at {start:#x} after they were given back",
                bytes.len()
            ));
            // Once is enough.
            memory.fill(0..bytes.len(), FREED);
        }
        while freed.len_bytes > FREED_BYTES_MAX
            && let Some(oldest) = freed.memory.pop_front()
        {
            freed.len_bytes -= oldest.len_bytes();
        }
        problems
    }

    /// Whether there is more pinned memory given back than is to stay.
    pub(super) fn has_too_much_freed(&self) -> bool {
        self.freed.len_bytes > FREED_BYTES_MAX
    }

    /// The place that a span is, if one allocation holds all of it.
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

    /// The allocation of a place, if it is still there.
    pub(super) fn of(&self, place: &Place) -> Option<&Allocation> {
        let allocation = self.live.get(&place.start);
        allocation.filter(|allocation| allocation.id == place.id)
    }

    pub(super) fn of_mut(&mut self, place: &Place) -> Option<&mut Allocation> {
        let allocation = self.live.get_mut(&place.start);
        allocation.filter(|allocation| allocation.id == place.id)
    }

    /// What a context has given of one kind and not got back; of the GPU's memory, what it takes of
    /// it.
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

    /// A context's GPU is lost: its memory has no content any more. Pinned memory stays mapped, for
    /// the host may be at it.
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

/// What an allocation takes of a GPU's memory.
pub(super) fn taken_bytes(len_bytes: usize) -> u64 {
    len_bytes.next_multiple_of(ALIGN_BYTES) as u64
}

/// The address by which a GPU reaches pinned memory.
pub(super) fn address_of(start: NonNull<u8>) -> u64 {
    start.addr().get() as u64
}
