//! Memory that a kernel needs besides its inputs and outputs.
//!
//! What grows with shapes is asked for here and nowhere else: what is large counts against the
//! device's memory, and a refusal is an error of the kernel. A test of the house rules holds the
//! kernels to it.

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

/// Elements in memory of the host, at first all 0. They go back when this is dropped. A few stand
/// in this value itself.
#[derive(Debug)]
pub struct Scratch<T> {
    place: Place,
    element: PhantomData<T>,
}

#[derive(Debug)]
enum Place {
    /// So many bytes of these.
    Inline([u64; N_INLINE], usize),
    Memory(Buffer),
}

/// Scratch memory up to this size does not count against the device's memory. Memory plans do not
/// know of scratch memory, and a kernel may hold some while it allocates its outputs, which then
/// would not fit although the plan says so.
const UNCOUNTED_BYTES: usize = 64 << 20;

/// Words of 8 bytes that need no allocation: indices of a small gather.
const N_INLINE: usize = 8;

impl<T: bytemuck::Pod> Scratch<T> {
    /// `n` elements; if they are many, they count against the memory of `device`, if there is one.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] without room.
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
            Place::Inline(words, len) => &bytemuck::cast_slice(words)[..*len],
            Place::Memory(buffer) => buffer.as_host_bytes().expect("memory of the host"),
        };
        bytemuck::cast_slice(bytes)
    }
}

impl<T: bytemuck::Pod> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let bytes = match &mut self.place {
            Place::Inline(words, len) => &mut bytemuck::cast_slice_mut(words)[..*len],
            Place::Memory(buffer) => buffer
                .as_host_bytes_mut()
                .expect("memory of the host that nobody else holds"),
        };
        bytemuck::cast_slice_mut(bytes)
    }
}

/// Room for `n` elements of a list that stands in no device's memory, such as texts, which are the
/// host's.
///
/// # Errors
/// [`KernelError::Tensor`] without room.
pub fn list<T>(n: usize) -> Result<Vec<T>, KernelError> {
    let mut list = Vec::new();
    list.try_reserve_exact(n)
        .map_err(|_| out_of_memory(n.saturating_mul(size_of::<T>())))?;
    Ok(list)
}

/// The system has not so many bytes.
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

    #[test]
    fn what_no_machine_has_is_refused() {
        for n in [usize::MAX, usize::MAX / 8, 1 << 59] {
            let error = Scratch::<f64>::new(None, n).unwrap_err().to_string();
            assert!(error.contains("out of memory"), "{error}");
            let error = list::<f64>(n).unwrap_err().to_string();
            assert!(error.contains("out of memory"), "{error}");
        }
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
