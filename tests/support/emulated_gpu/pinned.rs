//! Host memory with real addresses, because the code under test writes it through raw pointers.
//! Copies of its bytes are passed in and out; this module does not know who uses it when.

use std::alloc::Layout;
use std::alloc::alloc;
use std::alloc::dealloc;
use std::ops::Range;
use std::ptr::NonNull;

/// The alignment that the contract promises.
const ALIGN_BYTES: usize = 256;

/// Bytes that keep their address until this is dropped.
#[derive(Debug)]
pub(super) struct PinnedMemory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns the bytes, and accesses them only through `&self` and `&mut self`. Others who
// have the pointer promise not to access them concurrently (`Gpu::copy`).
unsafe impl Send for PinnedMemory {}

impl PinnedMemory {
    /// Allocates `len_bytes` bytes, not 0, all of them `garbage`.
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
        // SAFETY: `at` has checked the range; `bytes` has the same length, and is new.
        unsafe { from.copy_to_nonoverlapping(NonNull::from(&mut bytes[..]).cast(), range.len()) };
        bytes
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        let to = self.at(&(at..at + bytes.len()));
        // SAFETY: `at` has checked the range; nobody has a reference to these bytes, so `bytes`
        // does not overlap.
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
