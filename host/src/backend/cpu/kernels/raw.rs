//! Elements that are copied without being interpreted: as unsigned integers of the same size, or as
//! strings.

use std::borrow::Cow;
use std::marker::PhantomData;

use crate::device::KernelContext;
use crate::device::KernelError;
use crate::kernels::scratch;
use crate::tensor::ByteString;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// Expands `$body` with `$W` as the [`RawElements`] of an element type, or returns an error for a
/// type that has none.
macro_rules! dispatch_raw {
    ($dtype:expr, $W:ident => $body:expr) => {{
        use $crate::backend::cpu::kernels::raw::Fixed;
        use $crate::backend::cpu::kernels::raw::Strings;
        match ($dtype, $dtype.size_bytes()) {
            (_, Some(1)) => {
                type $W = Fixed<u8>;
                $body
            }
            (_, Some(2)) => {
                type $W = Fixed<u16>;
                $body
            }
            (_, Some(4)) => {
                type $W = Fixed<u32>;
                $body
            }
            (_, Some(8)) => {
                type $W = Fixed<u64>;
                $body
            }
            (_, Some(16)) => {
                type $W = Fixed<[u64; 2]>;
                $body
            }
            ($crate::tensor::DType::String, _) => {
                type $W = Strings;
                $body
            }
            (other, _) => Err($crate::backend::types::unsupported(other)),
        }
    }};
}

/// Types whose elements TensorFlow's kernels move (`TF_CALL_POD_STRING_TYPES`).
pub(in crate::backend) const MOVED: [DType; 16] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::Complex64,
    DType::Complex128,
    DType::Bool,
    DType::String,
];

/// Reads and writes the elements of a tensor regardless of their meaning. The default element is 0,
/// `false`, or the empty string.
pub(super) trait RawElements: 'static {
    /// The raw form of an element.
    type Raw<'a>: Copy + Default + Send + Sync;

    /// Returns the elements, row-major.
    fn read(tensor: &Tensor) -> Result<Cow<'_, [Self::Raw<'_>]>, KernelError>;

    /// Creates output `index`; `fill` writes all of its elements.
    fn write<'a>(
        context: &KernelContext<'_>,
        index: usize,
        dtype: DType,
        shape: Shape,
        fill: impl FnOnce(&mut [Self::Raw<'a>]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError>;
}

/// Elements of the size of `W`.
pub(super) struct Fixed<W>(PhantomData<W>);

/// Strings.
pub(super) struct Strings;

impl<W: bytemuck::Pod + Default + Send + Sync> RawElements for Fixed<W> {
    type Raw<'a> = W;

    fn read(tensor: &Tensor) -> Result<Cow<'_, [W]>, KernelError> {
        Ok(Cow::Borrowed(bytemuck::cast_slice(tensor.as_bytes()?)))
    }

    fn write<'a>(
        context: &KernelContext<'_>,
        index: usize,
        dtype: DType,
        shape: Shape,
        fill: impl FnOnce(&mut [Self::Raw<'a>]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        context.fill_output_bytes(index, dtype, &shape, |bytes| {
            fill(bytemuck::cast_slice_mut(bytes))
        })
    }
}

impl RawElements for Strings {
    /// Strings are shared rather than copied, so that a large one may be repeated often. `None`
    /// means the empty string.
    type Raw<'a> = Option<&'a ByteString>;

    fn read(tensor: &Tensor) -> Result<Cow<'_, [Option<&ByteString>]>, KernelError> {
        let strings = tensor.as_strings()?;
        let mut shared = scratch::list(strings.len())?;
        shared.extend(strings.iter().map(Some));
        Ok(Cow::Owned(shared))
    }

    fn write<'a>(
        context: &KernelContext<'_>,
        index: usize,
        _: DType,
        shape: Shape,
        fill: impl FnOnce(&mut [Option<&'a ByteString>]) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        // Checked before the list is allocated: a shape that exceeds the address space is an error.
        shape.size_bytes(DType::String).map_err(TensorError::from)?;
        let n = shape.n_elements();
        let mut strings = scratch::list(n)?;
        strings.extend(std::iter::repeat_n(None, n));
        fill(&mut strings)?;
        let mut owned = scratch::list(n)?;
        // Several threads would have to overwrite empty strings, which takes as long again.
        let owners = strings.iter().map(|string| string.cloned());
        owned.extend(owners.map(Option::unwrap_or_default));
        context.set_output(index, Tensor::from_strings(shape, owned)?)
    }
}
