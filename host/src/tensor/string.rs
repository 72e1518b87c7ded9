//! Strings as elements of tensors.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::hash::Hasher;
use std::ops::Deref;
use std::sync::Arc;

/// The longest string without memory of its own: with tag and length it takes three words.
const INLINE_MAX: usize = 22;

/// A string of bytes, not necessarily UTF-8: an element of a tensor of type `string` (TensorFlow's
/// `tstring`).
///
/// Strings of at most 22 bytes take no memory of their own. Clones of longer ones share their
/// bytes.
#[derive(Clone)]
pub struct ByteString(Repr);

#[derive(Clone)]
enum Repr {
    Inline { len: u8, bytes: [u8; INLINE_MAX] },
    Shared(Arc<[u8]>),
}

impl ByteString {
    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Shared(bytes) => bytes,
        }
    }

    /// Returns the string, if it takes no memory of its own.
    fn inline(value: &[u8]) -> Option<Self> {
        let len = u8::try_from(value.len()).ok()?;
        let mut bytes = [0; INLINE_MAX];
        bytes.get_mut(..value.len())?.copy_from_slice(value);
        Some(Self(Repr::Inline { len, bytes }))
    }
}

impl Default for ByteString {
    fn default() -> Self {
        Self(Repr::Inline {
            len: 0,
            bytes: [0; INLINE_MAX],
        })
    }
}

impl From<&[u8]> for ByteString {
    fn from(value: &[u8]) -> Self {
        Self::inline(value).unwrap_or_else(|| Self(Repr::Shared(value.into())))
    }
}

impl<const N: usize> From<&[u8; N]> for ByteString {
    fn from(value: &[u8; N]) -> Self {
        value.as_slice().into()
    }
}

impl From<Arc<[u8]>> for ByteString {
    fn from(value: Arc<[u8]>) -> Self {
        Self::inline(&value).unwrap_or(Self(Repr::Shared(value)))
    }
}

impl From<Vec<u8>> for ByteString {
    fn from(value: Vec<u8>) -> Self {
        value.as_slice().into()
    }
}

impl From<&str> for ByteString {
    fn from(value: &str) -> Self {
        value.as_bytes().into()
    }
}

impl From<String> for ByteString {
    fn from(value: String) -> Self {
        value.as_bytes().into()
    }
}

impl Deref for ByteString {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsRef<[u8]> for ByteString {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Borrow<[u8]> for ByteString {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl PartialEq for ByteString {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for ByteString {}

impl PartialOrd for ByteString {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByteString {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for ByteString {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_take_three_words_and_long_ones_are_shared() {
        assert_eq!(size_of::<ByteString>(), 3 * size_of::<u64>());
        assert_eq!(size_of::<Option<ByteString>>(), 3 * size_of::<u64>());
        for len in [0, 1, 21, 22, 23, 300] {
            let bytes: Vec<u8> = (0..=255).cycle().take(len).collect();
            let string = ByteString::from(&bytes[..]);
            assert_eq!(*string, *bytes);
            assert_eq!(ByteString::from(Arc::<[u8]>::from(&bytes[..])), string);
            let clone = string.clone();
            let is_shared = std::ptr::eq(string.as_ptr(), clone.as_ptr());
            assert_eq!(is_shared, len > INLINE_MAX, "{len}");
        }
        assert!(ByteString::from("ab") < ByteString::from(b"b"));
        assert_eq!(
            format!("{:?}", ByteString::from(b"a\"\xff")),
            r#"b"a\"\xff""#
        );
        assert!(ByteString::default().is_empty());
    }
}
