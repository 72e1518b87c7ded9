//! Scratch memory of kernels: memory besides their inputs and outputs.
//!
//! Memory that grows with shapes is allocated only here. Large pieces count against the device's
//! memory, and a failed allocation is an error of the kernel. The test
//! `kernels_ask_for_memory_in_one_place` enforces it.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ops::DerefMut;
use std::sync::Arc;

use crate::device::AllocatorAttributes;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::tensor::Buffer;
use crate::tensor::HostMemory;
use crate::tensor::MemoryId;
use crate::tensor::OutOfMemory;
use crate::tensor::TensorError;

/// Elements in host memory. A few are stored inline. On drop, each thread keeps some pieces for its
/// next kernels, since the system takes long to provide pages; other memory is freed.
#[derive(Debug)]
pub struct Scratch<T> {
    place: Place,
    element: PhantomData<T>,
}

#[derive(Debug)]
enum Place {
    /// The memory and the number of bytes in use.
    Inline([u64; N_INLINE], usize),
    /// The memory, which may be larger, and the number of bytes in use.
    Memory(Buffer, usize),
}

/// Maximum size of a piece of scratch memory that does not count against the device's memory.
/// Memory plans do not contain scratch memory, and a kernel may hold some while it allocates its
/// outputs. If small pieces counted, a plan that just fits would fail at run time.
const UNCOUNTED_BYTES: usize = 64 << 20;

/// Number of `u64` elements stored inline: enough for the indices of a small gather.
const N_INLINE: usize = 8;

/// Sizes of the pieces that a thread keeps. Smaller ones are fast to allocate.
const KEPT_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=4 << 20;

/// Maximum number of pieces that a thread keeps.
const N_KEPT: usize = 4;

thread_local! {
    /// The pieces that this thread keeps, the oldest first.
    static KEPT: RefCell<[Option<Buffer>; N_KEPT]> = const { RefCell::new([const { None }; N_KEPT]) };
}

/// Takes a piece of at least this size that the thread has kept.
fn take_kept(bytes: usize) -> Option<Buffer> {
    if !KEPT_BYTES.contains(&bytes) {
        return None;
    }
    KEPT.try_with(|kept| {
        let mut kept = kept.try_borrow_mut().ok()?;
        // Not for a much smaller one.
        let fits = |it: &Buffer| (bytes..=bytes * 4).contains(&it.len_bytes());
        let mut latest_first = kept.iter_mut().rev();
        latest_first
            .find(|it| it.as_ref().is_some_and(fits))?
            .take()
    })
    .ok()
    .flatten()
}

/// Keeps a piece for this thread, if it has such a size.
fn keep(buffer: Buffer) {
    if !KEPT_BYTES.contains(&buffer.len_bytes()) {
        return;
    }
    // Fails while the thread ends; the memory is then freed.
    let _ = KEPT.try_with(|kept| {
        if let Ok(mut kept) = kept.try_borrow_mut() {
            let index = kept.iter().position(Option::is_none).unwrap_or(0);
            kept[index] = Some(buffer);
            kept[index..].rotate_left(1);
        }
    });
}

impl<T: bytemuck::Pod> Scratch<T> {
    /// Allocates `n` elements that are 0. More than 64 MiB count against the memory of `device`, if
    /// there is one; less is host memory outside every device's accounting.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if the device has not enough memory, or the system refuses.
    pub(crate) fn new(device: Option<&dyn KernelDevice>, n: usize) -> Result<Self, KernelError> {
        let (mut scratch, is_kept) = Self::allocate(device, n)?;
        if is_kept {
            scratch.fill(T::zeroed());
        }
        Ok(scratch)
    }

    /// Does the same, with elements of any value.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn unset(device: Option<&dyn KernelDevice>, n: usize) -> Result<Self, KernelError> {
        Self::allocate(device, n).map(|(scratch, _)| scratch)
    }

    /// Allocates `n` elements. Returns whether they have been used before; otherwise they are 0.
    fn allocate(device: Option<&dyn KernelDevice>, n: usize) -> Result<(Self, bool), KernelError> {
        let bytes = n
            .checked_mul(size_of::<T>())
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| out_of_memory(usize::MAX))?;
        if bytes <= size_of::<[u64; N_INLINE]>() && align_of::<T>() <= align_of::<u64>() {
            return Ok((Self::at(Place::Inline([0; N_INLINE], bytes)), false));
        }
        if let Some(buffer) = take_kept(bytes) {
            return Ok((Self::at(Place::Memory(buffer, bytes)), true));
        }
        let attributes = AllocatorAttributes {
            on_host: true,
            gpu_compatible: false,
        };
        let buffer = match device {
            Some(device) if bytes > UNCOUNTED_BYTES => {
                let allocator = device.allocator(attributes);
                allocator.allocate(bytes).map_err(TensorError::from)?
            }
            _ => HostMemory::try_zeroed(MemoryId::new(), bytes)
                .map(|memory| Buffer::new(Arc::new(memory)))
                .ok_or_else(|| out_of_memory(bytes))?,
        };
        Ok((Self::at(Place::Memory(buffer, bytes)), false))
    }

    fn at(place: Place) -> Self {
        Self {
            place,
            element: PhantomData,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Self::Memory(buffer, _) = self {
            keep(buffer.clone());
        }
    }
}

impl<T: bytemuck::Pod> Deref for Scratch<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let bytes = match &self.place {
            Place::Inline(elements, len) => &bytemuck::cast_slice(elements)[..*len],
            Place::Memory(buffer, len) => &buffer.as_host_bytes().expect("host memory")[..*len],
        };
        bytemuck::cast_slice(bytes)
    }
}

impl<T: bytemuck::Pod> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let bytes = match &mut self.place {
            Place::Inline(elements, len) => &mut bytemuck::cast_slice_mut(elements)[..*len],
            Place::Memory(buffer, len) => {
                let bytes = buffer.as_host_bytes_mut();
                &mut bytes.expect("host memory with one owner")[..*len]
            }
        };
        bytemuck::cast_slice_mut(bytes)
    }
}

/// Allocates a list of capacity `n` outside every device's memory, for example for strings, which
/// belong to the host.
///
/// # Errors
/// [`KernelError::Tensor`] if there is not enough memory.
pub fn list<T>(n: usize) -> Result<Vec<T>, KernelError> {
    let mut list = Vec::new();
    list.try_reserve_exact(n)
        .map_err(|_| out_of_memory(n.saturating_mul(size_of::<T>())))?;
    Ok(list)
}

/// Collects items into such a list.
///
/// # Errors
/// As [`list`].
pub fn collected<T>(items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>, KernelError> {
    let mut collected = list(items.len())?;
    collected.extend(items);
    Ok(collected)
}

/// Appends bytes to such a list.
///
/// # Errors
/// As [`list`].
pub fn append(list: &mut Vec<u8>, bytes: &[u8]) -> Result<(), KernelError> {
    list.try_reserve(bytes.len())
        .map_err(|_| out_of_memory(list.len().saturating_add(bytes.len())))?;
    list.extend_from_slice(bytes);
    Ok(())
}

/// Returns the error of an allocation that the system refused.
pub(crate) fn out_of_memory(requested_bytes: usize) -> KernelError {
    KernelError::Tensor(TensorError::OutOfMemory(OutOfMemory {
        allocator: "the host".to_owned(),
        requested_bytes,
        in_use_bytes: 0,
        limit_bytes: isize::MAX.unsigned_abs() as u64,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::device::DeviceAttributes;
    use crate::device::SimpleDevice;
    use crate::names::DeviceName;

    #[test]
    fn impossible_sizes_are_rejected() {
        for n in [usize::MAX, usize::MAX / 8, 1 << 59] {
            let error = Scratch::<f64>::new(None, n).unwrap_err().to_string();
            assert!(error.contains("out of memory"), "{error}");
            let error = list::<f64>(n).unwrap_err().to_string();
            assert!(error.contains("out of memory"), "{error}");
        }
    }

    #[test]
    fn only_large_pieces_count_against_the_device() {
        let name = DeviceName::full("localhost", 0, 0, "CPU", 0);
        let device = SimpleDevice::new(DeviceAttributes::new(&name, "CPU", 0)).unwrap();
        let device = device.with_memory_capacity_bytes(100 << 20);
        let in_use = || {
            let allocator = device.allocator(AllocatorAttributes::default());
            allocator.stats().in_use_bytes
        };
        let pieces = [UNCOUNTED_BYTES, UNCOUNTED_BYTES + 1];
        let pieces = pieces.map(|n| Scratch::<u8>::new(Some(&device), n).unwrap());
        assert_eq!(in_use(), UNCOUNTED_BYTES as u64 + 1, "the larger one");
        Scratch::<u8>::new(Some(&device), UNCOUNTED_BYTES).unwrap();
        let refused = Scratch::<u8>::new(Some(&device), UNCOUNTED_BYTES + 1);
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("out of memory"), "{error}");
        drop(pieces);
        assert_eq!(in_use(), 0);
    }

    #[test]
    fn a_thread_uses_pieces_again() {
        let n = 30_000;
        let mut scratch = Scratch::<u32>::new(None, n).unwrap();
        scratch.fill(7);
        let start = scratch.as_ptr();
        drop(scratch);
        let unset = Scratch::<u32>::unset(None, n - 1000).unwrap();
        assert_eq!((unset.as_ptr(), unset.len()), (start, n - 1000));
        drop(unset);
        let zeroed = Scratch::<u32>::new(None, n).unwrap();
        assert_eq!(zeroed.as_ptr(), start);
        assert!(zeroed.iter().all(|&it| it == 0));
        // Pieces that are too small, much too large or in use.
        for other in [n / 8, n, n + 1] {
            assert_ne!(Scratch::<u32>::new(None, other).unwrap().as_ptr(), start);
        }
        drop(zeroed);
        let pieces: Vec<_> = (0..2 * N_KEPT)
            .map(|_| Scratch::<u32>::new(None, n).unwrap())
            .collect();
        drop(pieces);
        KEPT.with(|kept| assert_eq!(kept.borrow().iter().flatten().count(), N_KEPT));
    }

    #[test]
    fn elements_are_zero_and_can_be_written() {
        for n in [5, 17, 300] {
            let mut scratch = Scratch::<u32>::new(None, n).unwrap();
            assert_eq!(*scratch, vec![0; n]);
            scratch[3] = 7;
            assert_eq!(scratch.iter().sum::<u32>(), 7);
        }
        assert!(Scratch::<u32>::new(None, 0).unwrap().is_empty());
    }
}
