//! Memory of the host whose addresses are real, as the code under test writes it through raw
//! pointers. In and out go copies of its bytes; who uses it when, this does not know.

use std::alloc::Layout;
use std::alloc::alloc;
use std::alloc::dealloc;
use std::ops::Range;
use std::ptr::NonNull;

/// What the contract promises of addresses.
const ALIGN_BYTES: usize = 256;

/// Bytes that stay where they are until this is dropped.
#[derive(Debug)]
pub(super) struct PinnedMemory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns the bytes, and touches them through `&self` and `&mut self` alone; that others
// who have the pointer do not do so at the same time, they promise (`Gpu::copy`).
unsafe impl Send for PinnedMemory {}

impl PinnedMemory {
    /// So many bytes, not 0, all of them `garbage`.
    pub(super) fn new(len_bytes: usize, garbage: u8) -> Option<Self> {
        assert!(len_bytes > 0, "the caller has looked");
        let layout = Layout::from_size_align(len_bytes, ALIGN_BYTES).ok()?;
        // SAFETY: the size is not 0.
        let start = unsafe { alloc(layout) };
        let start = NonNull::new(start)?;
        let mut memory = Self { start, layout };
        memory.fill(0..len_bytes, garbage);
        Some(memory)
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.layout.size()
    }

    pub(super) fn read(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        let from = self.at(&range);
        // SAFETY: `at` has checked the range, `bytes` is as long, and new.
        unsafe { from.copy_to_nonoverlapping(NonNull::from(&mut bytes[..]).cast(), range.len()) };
        bytes
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        let to = self.at(&(at..at + bytes.len()));
        // SAFETY: `at` has checked the range; nobody has a reference to these bytes, so `bytes` are
        // others.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    pub(super) fn fill(&mut self, range: Range<usize>, byte: u8) {
        let to = self.at(&range);
        // SAFETY: `at` has checked the range.
        unsafe { to.write_bytes(byte, range.len()) };
    }

    fn at(&self, range: &Range<usize>) -> NonNull<u8> {
        assert!(
            range.start <= range.end && range.end <= self.len_bytes(),
            "{range:?} is outside of {} bytes",
            self.len_bytes()
        );
        // SAFETY: the start of the range is in the allocation or at its end.
        unsafe { self.start.add(range.start) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // SAFETY: `new` has allocated it with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
