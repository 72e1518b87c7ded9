//! Scratch memory of kernels: memory besides their inputs and outputs.
//!
//! Memory that grows with shapes is allocated only here. Large pieces count against the device's
//! memory, and a failed allocation is an error of the kernel. The test
//! `kernels_ask_for_memory_in_one_place` enforces it.

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

/// Elements in host memory, initially 0. The memory is freed on drop. A few elements are stored
/// inline.
#[derive(Debug)]
pub struct Scratch<T> {
    place: Place,
    element: PhantomData<T>,
}

#[derive(Debug)]
enum Place {
    /// The memory and the number of bytes in use.
    Inline([u64; N_INLINE], usize),
    Memory(Buffer),
}

/// Maximum size of a piece of scratch memory that does not count against the device's memory.
/// Memory plans do not contain scratch memory, and a kernel may hold some while it allocates its
/// outputs. If small pieces counted, a plan that just fits would fail at run time.
const UNCOUNTED_BYTES: usize = 64 << 20;

/// Number of `u64` elements stored inline: enough for the indices of a small gather.
const N_INLINE: usize = 8;

impl<T: bytemuck::Pod> Scratch<T> {
    /// Allocates `n` elements. More than 64 MiB count against the memory of `device`, if there is
    /// one; less is host memory outside every device's accounting.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if the device has not enough memory, or the system refuses.
    pub(crate) fn new(device: Option<&dyn KernelDevice>, n: usize) -> Result<Self, KernelError> {
        let bytes = n
            .checked_mul(size_of::<T>())
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| out_of_memory(usize::MAX))?;
        if bytes <= size_of::<[u64; N_INLINE]>() && align_of::<T>() <= align_of::<u64>() {
            return Ok(Self {
                place: Place::Inline([0; N_INLINE], bytes),
                element: PhantomData,
            });
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
        Ok(Self {
            place: Place::Memory(buffer),
            element: PhantomData,
        })
    }
}

impl<T: bytemuck::Pod> Deref for Scratch<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let bytes = match &self.place {
            Place::Inline(elements, len) => &bytemuck::cast_slice(elements)[..*len],
            Place::Memory(buffer) => buffer.as_host_bytes().expect("host memory"),
        };
        bytemuck::cast_slice(bytes)
    }
}

impl<T: bytemuck::Pod> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let bytes = match &mut self.place {
            Place::Inline(elements, len) => &mut bytemuck::cast_slice_mut(elements)[..*len],
            Place::Memory(buffer) => buffer
                .as_host_bytes_mut()
                .expect("host memory with one owner"),
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
