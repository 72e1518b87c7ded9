//! A tensor: element type, shape and bytes.

use std::fmt;
use std::sync::Arc;
use std::sync::OnceLock;

use super::buffer::ReleasedMemory;
use super::{
    Allocator, Buffer, ByteString, DType, Element, HostMemory, MemoryId, OutOfMemory,
    ResourceHandle, Shape, ShapeTooLarge, StoredBytesError, Variant,
};

/// Why a tensor cannot be created or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The allocator has not enough free memory.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The tensor exceeds the address space.
    #[error(transparent)]
    TooLarge(#[from] ShapeTooLarge),
    /// The number of values does not match the shape.
    #[error("shape {shape} has {} elements, found {n_values} values", shape.n_elements())]
    LengthMismatch {
        /// The shape.
        shape: Shape,
        /// Number of values.
        n_values: usize,
    },
    /// The tensor has another element type than requested.
    #[error("the tensor holds {found}, not {expected}")]
    WrongDType {
        /// The requested type.
        expected: DType,
        /// The type of the tensor.
        found: DType,
    },
    /// The bytes are in a device's memory: transfer the tensor first.
    #[error("the tensor is not in memory that the host can read")]
    NotOnHost,
    /// Elements of this type have no fixed size.
    #[error("{0} tensors have no elements of fixed size")]
    NoFixedSize(DType),
    /// The elements cannot be read from where they are stored.
    #[error(transparent)]
    Stored(#[from] StoredBytesError),
}

#[derive(Clone)]
enum Data {
    Buffer(Buffer),
    /// Strings are always in host memory, as in TensorFlow.
    Strings(Arc<Strings>),
    /// So are handles.
    Handle(Arc<ResourceHandle>),
    /// What variants contain may be in the memory of a device.
    Variants(Arc<[Variant]>),
}

struct Strings {
    values: Vec<ByteString>,
    /// The sum of their lengths, once somebody has asked for it: executors do for each op that
    /// passes the tensor on.
    len_bytes: OnceLock<usize>,
}

/// An n-dimensional array, row-major. Cloning shares the bytes.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    data: Data,
}

impl Tensor {
    /// Allocates a tensor of zeros (`false`, for booleans) from `allocator`.
    ///
    /// # Errors
    /// If there is not enough memory, or the elements have no fixed size.
    pub fn zeros(
        allocator: &dyn Allocator,
        dtype: DType,
        shape: Shape,
    ) -> Result<Self, TensorError> {
        Self::zeros_of(dtype, shape, |len_bytes| allocator.allocate(len_bytes))
    }

    /// Does the same for a tensor that stays as long as a plan, such as a constant
    /// ([`Allocator::allocate_persistent`]).
    ///
    /// # Errors
    /// As [`Self::zeros`].
    pub fn persistent_zeros(
        allocator: &dyn Allocator,
        dtype: DType,
        shape: Shape,
    ) -> Result<Self, TensorError> {
        Self::zeros_of(dtype, shape, |len_bytes| {
            allocator.allocate_persistent(len_bytes)
        })
    }

    fn zeros_of(
        dtype: DType,
        shape: Shape,
        allocate: impl FnOnce(usize) -> Result<Buffer, OutOfMemory>,
    ) -> Result<Self, TensorError> {
        if dtype.size_bytes().is_none() {
            return Err(TensorError::NoFixedSize(dtype));
        }
        let buffer = allocate(shape.size_bytes(dtype)?)?;
        Ok(Self {
            dtype,
            shape,
            data: Data::Buffer(buffer),
        })
    }

    /// Copies `values`, row-major, into memory that belongs to no device: a tensor for an app to
    /// feed.
    ///
    /// # Errors
    /// [`TensorError::LengthMismatch`] if the shape has another number of elements.
    pub fn from_values<T: Element>(
        shape: impl Into<Shape>,
        values: &[T],
    ) -> Result<Self, TensorError> {
        Self::from_bytes(T::DTYPE, shape.into(), bytemuck::cast_slice(values))
    }

    /// Copies booleans, row-major.
    ///
    /// # Errors
    /// [`TensorError::LengthMismatch`] if the shape has another number of elements.
    pub fn from_bools(shape: impl Into<Shape>, values: &[bool]) -> Result<Self, TensorError> {
        Self::from_bytes(DType::Bool, shape.into(), bytemuck::cast_slice(values))
    }

    /// Copies little-endian elements, row-major.
    ///
    /// # Errors
    /// [`TensorError::LengthMismatch`] if the shape has another number of elements, or their size
    /// is not fixed.
    pub fn from_bytes(dtype: DType, shape: Shape, bytes: &[u8]) -> Result<Self, TensorError> {
        let element = dtype.size_bytes().ok_or(TensorError::NoFixedSize(dtype))?;
        if shape.size_bytes(dtype)? != bytes.len() {
            return Err(TensorError::LengthMismatch {
                shape,
                n_values: bytes.len() / element,
            });
        }
        let memory = HostMemory::from_bytes(MemoryId::new(), bytes);
        Ok(Self {
            dtype,
            shape,
            data: Data::Buffer(Buffer::new(Arc::new(memory))),
        })
    }

    /// Returns a tensor over existing bytes.
    ///
    /// # Errors
    /// [`TensorError::LengthMismatch`] if the length of the buffer does not match the shape.
    pub fn from_buffer(dtype: DType, shape: Shape, buffer: Buffer) -> Result<Self, TensorError> {
        let element = dtype.size_bytes().ok_or(TensorError::NoFixedSize(dtype))?;
        if shape.size_bytes(dtype)? != buffer.len_bytes() {
            return Err(TensorError::LengthMismatch {
                shape,
                n_values: buffer.len_bytes() / element,
            });
        }
        Ok(Self {
            dtype,
            shape,
            data: Data::Buffer(buffer),
        })
    }

    /// Returns a tensor that takes no memory: it has type and shape of one whose elements nobody
    /// reads any more, because kernels have prepacked it. To read elements of it is an error
    /// ([`TensorError::NotOnHost`]). `None` if elements of the type have no fixed size.
    pub fn released(dtype: DType, shape: Shape, memory_id: MemoryId) -> Option<Self> {
        dtype.size_bytes()?;
        let memory = ReleasedMemory {
            id: memory_id,
            len_bytes: shape.size_bytes(dtype).ok()?,
        };
        let data = Data::Buffer(Buffer::new(Arc::new(memory)));
        Some(Self { dtype, shape, data })
    }

    /// Returns whether this is [`Self::released`].
    pub fn is_released(&self) -> bool {
        let memory = self.buffer().and_then(Buffer::memory);
        memory.is_some_and(|memory| (&**memory as &dyn std::any::Any).is::<ReleasedMemory>())
    }

    /// Returns a tensor of strings (bytes, not necessarily UTF-8), row-major.
    ///
    /// # Errors
    /// [`TensorError::LengthMismatch`] if the shape has another number of elements.
    pub fn from_strings(shape: Shape, values: Vec<ByteString>) -> Result<Self, TensorError> {
        if shape.n_elements() != values.len() {
            return Err(TensorError::LengthMismatch {
                shape,
                n_values: values.len(),
            });
        }
        Ok(Self {
            dtype: DType::String,
            shape,
            data: Data::Strings(Arc::new(Strings {
                values,
                len_bytes: OnceLock::new(),
            })),
        })
    }

    /// Returns a scalar of type `resource`.
    pub fn from_handle(handle: ResourceHandle) -> Self {
        Self {
            dtype: DType::Resource,
            shape: Shape::default(),
            data: Data::Handle(Arc::new(handle)),
        }
    }

    /// Returns a tensor of type `variant`, row-major.
    ///
    /// # Errors
    /// [`TensorError::LengthMismatch`] if the shape has another number of elements.
    pub fn from_variants(shape: Shape, values: Vec<Variant>) -> Result<Self, TensorError> {
        if shape.n_elements() != values.len() {
            return Err(TensorError::LengthMismatch {
                shape,
                n_values: values.len(),
            });
        }
        Ok(Self {
            dtype: DType::Variant,
            shape,
            data: Data::Variants(values.into()),
        })
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the bytes of the elements (of the contents, for strings).
    pub fn len_bytes(&self) -> usize {
        match &self.data {
            Data::Buffer(buffer) => buffer.len_bytes(),
            Data::Strings(strings) => *strings.len_bytes.get_or_init(|| {
                let lens = strings.values.iter().map(|value| value.len());
                lens.fold(0, usize::saturating_add)
            }),
            Data::Handle(_) => 0,
            Data::Variants(values) => values.iter().map(Variant::len_bytes).sum(),
        }
    }

    /// Returns the memory; `None` for strings and handles, which belong to the host, and for
    /// variants.
    pub fn buffer(&self) -> Option<&Buffer> {
        match &self.data {
            Data::Buffer(buffer) => Some(buffer),
            Data::Strings(_) | Data::Handle(_) | Data::Variants(_) => None,
        }
    }

    /// Returns the same elements with another shape.
    ///
    /// # Errors
    /// [`TensorError::LengthMismatch`] if the shape has another number of elements.
    pub fn reshaped(&self, shape: Shape) -> Result<Self, TensorError> {
        if shape.n_elements() != self.shape.n_elements() {
            return Err(TensorError::LengthMismatch {
                shape,
                n_values: self.shape.n_elements(),
            });
        }
        Ok(Self {
            dtype: self.dtype,
            shape,
            data: self.data.clone(),
        })
    }

    /// Returns the elements, little-endian.
    ///
    /// # Errors
    /// [`TensorError::NotOnHost`] in a device's memory, [`TensorError::NoFixedSize`] for strings.
    pub fn as_bytes(&self) -> Result<&[u8], TensorError> {
        match &self.data {
            Data::Buffer(buffer) => buffer.as_host_bytes().ok_or(TensorError::NotOnHost),
            Data::Strings(_) | Data::Handle(_) | Data::Variants(_) => {
                Err(TensorError::NoFixedSize(self.dtype))
            }
        }
    }

    /// Returns the elements, row-major.
    ///
    /// # Errors
    /// [`TensorError::WrongDType`] for another type, and as [`Self::as_bytes`].
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        self.expect_dtype(T::DTYPE)?;
        Ok(bytemuck::cast_slice(self.as_bytes()?))
    }

    /// Returns the elements of a boolean tensor, one byte each; every value except 0 is true.
    ///
    /// # Errors
    /// As [`Self::as_slice`].
    pub fn as_bools(&self) -> Result<&[u8], TensorError> {
        self.expect_dtype(DType::Bool)?;
        self.as_bytes()
    }

    /// Returns the elements of a string tensor.
    ///
    /// # Errors
    /// [`TensorError::WrongDType`] for another type.
    pub fn as_strings(&self) -> Result<&[ByteString], TensorError> {
        match &self.data {
            Data::Strings(strings) => Ok(&strings.values),
            _ => Err(TensorError::WrongDType {
                expected: DType::String,
                found: self.dtype,
            }),
        }
    }

    /// Returns the element of a scalar of type `resource`.
    ///
    /// # Errors
    /// [`TensorError::WrongDType`] for another type.
    pub fn as_handle(&self) -> Result<&ResourceHandle, TensorError> {
        match &self.data {
            Data::Handle(handle) => Ok(handle),
            _ => Err(TensorError::WrongDType {
                expected: DType::Resource,
                found: self.dtype,
            }),
        }
    }

    /// Returns the elements of a tensor of type `variant`.
    ///
    /// # Errors
    /// [`TensorError::WrongDType`] for another type.
    pub fn as_variants(&self) -> Result<&[Variant], TensorError> {
        match &self.data {
            Data::Variants(values) => Ok(values),
            _ => Err(TensorError::WrongDType {
                expected: DType::Variant,
                found: self.dtype,
            }),
        }
    }

    /// Returns the bytes for writing; `None` while they are shared, or not on the host.
    pub fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.data {
            Data::Buffer(buffer) => buffer.as_host_bytes_mut(),
            Data::Strings(_) | Data::Handle(_) | Data::Variants(_) => None,
        }
    }

    /// Returns the elements for writing; `None` while they are shared, of another type, or not on
    /// the host.
    pub fn as_slice_mut<T: Element>(&mut self) -> Option<&mut [T]> {
        if self.dtype != T::DTYPE {
            return None;
        }
        self.as_bytes_mut().map(bytemuck::cast_slice_mut)
    }

    fn expect_dtype(&self, expected: DType) -> Result<(), TensorError> {
        if self.dtype == expected {
            Ok(())
        } else {
            Err(TensorError::WrongDType {
                expected,
                found: self.dtype,
            })
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor<{}, {}>", self.dtype, self.shape)
    }
}
