//! Constants of a graph: not yet in a device's memory, and possibly not expanded.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use super::{Allocator, ByteString, DType, OutOfMemory, Shape, Tensor, TensorError};

/// The value of a constant. Cloning shares the bytes; nothing is expanded before
/// [`Literal::to_tensor`].
#[derive(Debug, Clone)]
pub struct Literal {
    dtype: DType,
    shape: Shape,
    data: LiteralData,
}

/// Maximum number of bytes from repeating a string.
const REPEATED_STRING_BYTES_MAX: u64 = 64 << 20;

/// Source of the elements of a literal.
#[derive(Clone)]
pub enum LiteralData {
    /// All elements, little-endian, row-major: usually a slice of the file.
    Dense(SharedBytes),
    /// The first elements; the last one repeats. Empty means all zero.
    RepeatLast(SharedBytes),
    /// Strings; the last one repeats. Empty means all empty.
    Strings(Arc<[ByteString]>),
    /// Computed from a formula, as `f32`.
    Procedural(Procedural),
    /// All elements, little-endian, row-major, which [`Literal::to_tensor`] reads from a file.
    Stored(Arc<dyn StoredBytes>),
}

/// Shared bytes, of any owner.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Bytes that are read when a tensor is made of them, and not before, such as a tensor of a
/// checkpoint. They are the same each time.
pub trait StoredBytes: fmt::Debug + Send + Sync {
    /// Returns the number of bytes.
    fn len_bytes(&self) -> usize;

    /// Reads all bytes into `target`, which has this length.
    ///
    /// # Errors
    /// [`StoredBytesError`] if they cannot be read, or are not what was stored.
    fn read(&self, target: &mut [u8]) -> Result<(), StoredBytesError>;
}

/// Why stored bytes cannot be read. Displays the error that it contains.
#[derive(Debug, Clone)]
pub struct StoredBytesError(Arc<dyn Error + Send + Sync>);

impl StoredBytesError {
    /// Wraps an error, which names what could not be read.
    pub fn new(error: impl Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }
}

impl PartialEq for StoredBytesError {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for StoredBytesError {}

impl fmt::Display for StoredBytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for StoredBytesError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// A seeded uniform constant with the same bits in every programming language.
///
/// Element `i` (row-major) is `lo + span * u` in `f32` (multiply, round, add, round), where `u =
/// (fmix32(i + seed * 0x9E3779B9 mod 2^32) >> 8) * 2^-24` and `fmix32` is MurmurHash3's finaliser.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Procedural {
    /// Selects the sequence.
    pub seed: u64,
    /// Smallest value.
    pub lo: f32,
    /// Largest value minus the smallest.
    pub span: f32,
}

/// Why a literal is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LiteralError {
    /// Wrong number of bytes or values for the shape.
    #[error("shape {shape} of {dtype} takes {expected}, found {found}")]
    Length {
        /// Shape of the literal.
        shape: Shape,
        /// Its element type.
        dtype: DType,
        /// What the shape requires, as text.
        expected: String,
        /// What was found, as text.
        found: String,
    },
    /// Constants of this element type are not supported.
    #[error("a constant of type {0} is not supported")]
    Unsupported(DType),
    /// The shape exceeds the address space.
    #[error(transparent)]
    TooLarge(#[from] super::ShapeTooLarge),
    /// Strings are copied one by one, so the total of repeated strings is limited.
    #[error(
        "a string constant of shape {shape} repeats its last string into {n_bytes} bytes, more than {REPEATED_STRING_BYTES_MAX}; \
         use Fill"
    )]
    Repeated {
        /// Shape of the literal.
        shape: Shape,
        /// Bytes of all strings.
        n_bytes: u64,
    },
    /// The formula cannot be parsed.
    #[error(
        "`{0}` is not a procedural constant; expected `fmix32:<seed>:<lo bits, hex>:<span bits, hex>`"
    )]
    Formula(String),
}

impl Literal {
    /// Checks that `data` matches `dtype` and `shape`. A literal costs no memory for repeated or
    /// procedural elements, so a small file may describe a large one; it is allocated under the
    /// limits of the device that needs the tensor.
    ///
    /// # Errors
    /// [`LiteralError`] if lengths disagree, or the type does not support such data.
    pub fn new(dtype: DType, shape: Shape, data: LiteralData) -> Result<Self, LiteralError> {
        let total_bytes = shape.size_bytes(dtype)?;
        let length = |expected: String, found: String| LiteralError::Length {
            shape: shape.clone(),
            dtype,
            expected,
            found,
        };
        let all_bytes = |found: usize| match found == total_bytes {
            true => Ok(()),
            false => Err(length(
                format!("{total_bytes} bytes"),
                format!("{found} bytes"),
            )),
        };
        match (&data, dtype.size_bytes()) {
            (LiteralData::Strings(values), None) if dtype == DType::String => {
                let expanded = string_bytes(values, shape.n_elements());
                let given = string_bytes(values, values.len());
                if expanded > REPEATED_STRING_BYTES_MAX.saturating_add(given) {
                    return Err(LiteralError::Repeated {
                        shape: shape.clone(),
                        n_bytes: expanded,
                    });
                }
                if values.len() > shape.n_elements() {
                    return Err(length(
                        format!("{} strings", shape.n_elements()),
                        format!("{} strings", values.len()),
                    ));
                }
            }
            (LiteralData::Strings(_), _) | (_, None) => {
                return Err(LiteralError::Unsupported(dtype));
            }
            (LiteralData::Dense(bytes), Some(_)) => all_bytes((**bytes).as_ref().len())?,
            (LiteralData::Stored(bytes), Some(_)) => all_bytes(bytes.len_bytes())?,
            (LiteralData::RepeatLast(bytes), Some(element)) => {
                let found = (**bytes).as_ref().len();
                if found % element != 0 || found > total_bytes {
                    return Err(length(
                        format!("at most {total_bytes} bytes"),
                        format!("{found} bytes"),
                    ));
                }
            }
            (LiteralData::Procedural(_), Some(_)) if dtype != DType::F32 => {
                return Err(LiteralError::Unsupported(dtype));
            }
            (LiteralData::Procedural(_), Some(_)) => {}
        }
        Ok(Self { dtype, shape, data })
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the source of the elements.
    pub fn data(&self) -> &LiteralData {
        &self.data
    }

    /// Returns the bytes of the tensor.
    pub fn size_bytes(&self) -> u64 {
        if let LiteralData::Strings(values) = &self.data {
            return string_bytes(values, self.shape.n_elements());
        }
        self.shape
            .size_bytes(self.dtype)
            .map_or(u64::MAX, |bytes| bytes as u64)
    }

    /// Returns the value in memory from `allocator`.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`] if there is not enough memory; [`TensorError::Stored`] if
    /// stored bytes cannot be read.
    pub fn to_tensor(&self, allocator: &dyn Allocator) -> Result<Tensor, TensorError> {
        if let LiteralData::Strings(values) = &self.data {
            let last: ByteString = values.last().cloned().unwrap_or_default();
            let n = self.shape.n_elements();
            let mut all = Vec::new();
            let has_room = all.try_reserve_exact(n).is_ok();
            if !has_room || self.size_bytes() > isize::MAX.unsigned_abs() as u64 {
                return Err(TensorError::OutOfMemory(OutOfMemory {
                    allocator: "the host".to_owned(),
                    requested_bytes: n.saturating_mul(size_of::<ByteString>()),
                    in_use_bytes: 0,
                    limit_bytes: isize::MAX.unsigned_abs() as u64,
                }));
            }
            all.extend_from_slice(values);
            all.resize(n, last);
            return Tensor::from_strings(self.shape.clone(), all);
        }
        let mut tensor = Tensor::persistent_zeros(allocator, self.dtype, self.shape.clone())?;
        let target = tensor.as_bytes_mut().ok_or(TensorError::NotOnHost)?;
        self.write_to(target)?;
        Ok(tensor)
    }

    /// Writes the elements, little-endian, to `target`, which has [`Self::size_bytes`] zeroed
    /// bytes.
    pub(crate) fn write_to(&self, target: &mut [u8]) -> Result<(), TensorError> {
        match &self.data {
            LiteralData::Stored(bytes) => bytes.read(target)?,
            LiteralData::Dense(bytes) => target.copy_from_slice((**bytes).as_ref()),
            LiteralData::RepeatLast(bytes) => {
                let given = (**bytes).as_ref();
                let (head, tail) = target.split_at_mut(given.len());
                head.copy_from_slice(given);
                if let Some(element) = self.dtype.size_bytes()
                    && given.len() >= element
                {
                    let last = &given[given.len() - element..];
                    for chunk in tail.chunks_exact_mut(element) {
                        chunk.copy_from_slice(last);
                    }
                }
            }
            LiteralData::Procedural(formula) => formula.write_to(bytemuck::cast_slice_mut(target)),
            LiteralData::Strings(_) => unreachable!("strings have no bytes of fixed size"),
        }
        Ok(())
    }
}

/// Returns the bytes of a tensor of `n` strings, the last of which is repeated.
fn string_bytes(values: &[ByteString], n: usize) -> u64 {
    let contents = values
        .iter()
        .fold(0, |sum: u64, text| sum.saturating_add(text.len() as u64));
    let last = values.last().map_or(0, |text| text.len() as u64);
    let repeated = (n.saturating_sub(values.len()) as u64).saturating_mul(last);
    let references = (n as u64).saturating_mul(size_of::<ByteString>() as u64);
    contents.saturating_add(repeated).saturating_add(references)
}

impl Procedural {
    /// Parses `fmix32:<seed>:<lo f32 bits, hex>:<span f32 bits, hex>`.
    ///
    /// # Errors
    /// [`LiteralError::Formula`] for other input.
    pub fn parse(text: &str) -> Result<Self, LiteralError> {
        let parse = || {
            let mut parts = text.strip_prefix("fmix32:")?.split(':');
            let seed = parts.next()?.parse().ok()?;
            let lo = u32::from_str_radix(parts.next()?, 16).ok()?;
            let span = u32::from_str_radix(parts.next()?, 16).ok()?;
            parts.next().is_none().then_some(Self {
                seed,
                lo: f32::from_bits(lo),
                span: f32::from_bits(span),
            })
        };
        parse().ok_or_else(|| LiteralError::Formula(text.chars().take(80).collect()))
    }

    /// Returns element `index`, row-major.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the formula is modulo 2^32"
    )]
    pub fn element(&self, index: usize) -> f32 {
        let mut x = (index as u32).wrapping_add((self.seed as u32).wrapping_mul(0x9E37_79B9));
        x ^= x >> 16;
        x = x.wrapping_mul(0x85EB_CA6B);
        x ^= x >> 13;
        x = x.wrapping_mul(0xC2B2_AE35);
        x ^= x >> 16;
        #[expect(clippy::cast_precision_loss, reason = "24 bits fit an `f32` exactly")]
        let unit = (x >> 8) as f32 * (1.0 / 16_777_216.0);
        self.lo + self.span * unit
    }

    fn write_to(&self, target: &mut [f32]) {
        for (index, value) in target.iter_mut().enumerate() {
            *value = self.element(index);
        }
    }
}

impl fmt::Debug for LiteralData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense(bytes) => write!(f, "Dense({} bytes)", (**bytes).as_ref().len()),
            Self::RepeatLast(bytes) => write!(f, "RepeatLast({} bytes)", (**bytes).as_ref().len()),
            Self::Strings(values) => write!(f, "Strings({})", values.len()),
            Self::Procedural(formula) => formula.fmt(f),
            Self::Stored(bytes) => write!(f, "Stored({} bytes)", bytes.len_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::HostAllocator;

    fn dense(values: &'static [u8]) -> SharedBytes {
        Arc::new(values)
    }

    #[test]
    fn the_last_value_stands_for_all_that_follow() {
        let data = LiteralData::RepeatLast(Arc::new([1u8, 0, 0, 0, 7, 0, 0, 0]));
        let literal = Literal::new(DType::I32, [4].into(), data).unwrap();
        let tensor = literal
            .to_tensor(&HostAllocator::new("test", u64::MAX))
            .unwrap();
        assert_eq!(tensor.as_slice::<i32>().unwrap(), [1, 7, 7, 7]);
    }

    #[test]
    fn no_value_at_all_means_zero() {
        let literal =
            Literal::new(DType::F32, [2].into(), LiteralData::RepeatLast(dense(&[]))).unwrap();
        let tensor = literal
            .to_tensor(&HostAllocator::new("test", u64::MAX))
            .unwrap();
        assert_eq!(tensor.as_slice::<f32>().unwrap(), [0.0, 0.0]);
    }

    #[test]
    fn bytes_that_do_not_fit_the_shape_are_refused() {
        assert!(Literal::new(DType::F32, [2].into(), LiteralData::Dense(dense(&[0; 7]))).is_err());
        assert!(
            Literal::new(
                DType::F32,
                [2].into(),
                LiteralData::RepeatLast(dense(&[0; 12]))
            )
            .is_err()
        );
        assert!(
            Literal::new(
                DType::F32,
                [usize::MAX, 4].into(),
                LiteralData::RepeatLast(dense(&[]))
            )
            .is_err()
        );
    }

    #[test]
    fn the_formula_gives_the_documented_bits() {
        // Computed in Python from the formula in the documentation: seed 12345, lo -0.5, span 1.0.
        let formula = Procedural::parse("fmix32:12345:bf000000:3f800000").unwrap();
        let expected = EXPECTED_BITS.map(f32::from_bits);
        assert_eq!([0, 1, 2, 1000].map(|i| formula.element(i)), expected);
        assert!(Procedural::parse("fmix32:1:2").is_err());
        assert!(Procedural::parse("fmix32:1:2:3:4").is_err());
    }

    const EXPECTED_BITS: [u32; 4] = [0x3E9F_2986, 0x3E96_DBAA, 0xBDAB_ED28, 0x3D03_8890];

    #[test]
    fn an_allocator_with_a_limit_refuses_a_small_file_that_names_a_large_constant() {
        let literal = Literal::new(
            DType::F32,
            [1 << 20].into(),
            LiteralData::RepeatLast(dense(&[])),
        )
        .unwrap();
        let error = literal
            .to_tensor(&HostAllocator::new("test", 1 << 10))
            .unwrap_err();
        assert!(
            error.to_string().contains("asked for 4194304 bytes"),
            "{error}"
        );
    }
}
