//! SHA-256 hashes of values, equal on every machine.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::Serializer;
use sha2::Digest as _;
use sha2::Sha256;

/// Size of the buffer in front of the hash, since many small updates are slow.
const BUFFER_BYTES: usize = 16 << 10;

/// A SHA-256 hash, displayed and saved as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// The error for a string that is not a hash.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a SHA-256 hash; expected 64 hexadecimal digits")]
pub struct DigestError(String);

impl Digest {
    /// Hashes bytes.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Returns the bytes of the hash.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let error = || DigestError(text.chars().take(80).collect());
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(error());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |index: usize| char::from(pair[index]).to_digit(16);
            let (high, low) = (digit(0), digit(1));
            let value = high.zip(low).map(|(high, low)| high * 16 + low);
            *byte = value
                .and_then(|value| u8::try_from(value).ok())
                .ok_or_else(error)?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Hashes a sequence of values. Numbers are little-endian, and values of variable length are
/// preceded by their length, so two different sequences of the same kinds never produce the same
/// bytes.
#[derive(Debug)]
pub(crate) struct DigestWriter {
    hash: Sha256,
    buffer: Vec<u8>,
}

impl DigestWriter {
    /// Creates a writer. `domain` separates the hashes of different kinds of things; its number
    /// grows when the hashed values change.
    pub(crate) fn new(domain: &str) -> Self {
        let mut writer = Self {
            hash: Sha256::new(),
            buffer: Vec::with_capacity(BUFFER_BYTES),
        };
        writer.text(domain);
        writer
    }

    pub(crate) fn flag(&mut self, value: bool) {
        self.raw(&[u8::from(value)]);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    pub(crate) fn f64(&mut self, value: f64) {
        self.u64(value.to_bits());
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.raw(bytes);
    }

    /// Writes whether there is a value, and the value with `write`.
    pub(crate) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// Writes the number of values and each value.
    pub(crate) fn list<T>(
        &mut self,
        values: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        let values = values.into_iter();
        self.length(values.len());
        for value in values {
            write(self, value);
        }
    }

    pub(crate) fn u32s(&mut self, values: &[u32]) {
        self.column(values, |writer, value| writer.u32(value));
    }

    pub(crate) fn u64s(&mut self, values: &[u64]) {
        self.column(values, |writer, value| writer.u64(value));
    }

    pub(crate) fn i64s(&mut self, values: &[i64]) {
        self.column(values, |writer, value| writer.u64(value.cast_unsigned()));
    }

    pub(crate) fn f64s(&mut self, values: &[f64]) {
        self.column(values, |writer, value| writer.f64(value));
    }

    /// Writes a column. Columns are long, so their memory is hashed directly if its layout allows.
    fn column<T: bytemuck::NoUninit>(&mut self, values: &[T], write: impl Fn(&mut Self, T)) {
        if cfg!(target_endian = "little") {
            self.length(values.len());
            self.raw(bytemuck::cast_slice(values));
        } else {
            self.list(values, |writer, value| write(writer, *value));
        }
    }

    pub(crate) fn finish(mut self) -> Digest {
        self.hash.update(&self.buffer);
        Digest(self.hash.finalize().into())
    }

    fn length(&mut self, length: usize) {
        self.u64(length as u64);
    }

    #[inline]
    fn raw(&mut self, bytes: &[u8]) {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.hash.update(&self.buffer);
            self.buffer.clear();
            if bytes.len() > BUFFER_BYTES {
                self.hash.update(bytes);
                return;
            }
        }
        self.buffer.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_parses_its_own_output_and_nothing_else() {
        let digest = Digest::of_bytes(b"abc");
        // FIPS 180-2, appendix B.1.
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse(), Ok(digest));
        for wrong in [
            "",
            &text[1..],
            &text.replace('b', "g"),
            &text.replace('a', "é"),
        ] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_do_not_run_into_each_other() {
        let digest = |write: &dyn Fn(&mut DigestWriter)| {
            let mut writer = DigestWriter::new("test");
            write(&mut writer);
            writer.finish()
        };
        let two = |a: &str, b: &str| {
            digest(&|writer| {
                writer.text(a);
                writer.text(b);
            })
        };
        assert_ne!(two("ab", "c"), two("a", "bc"));
        assert_ne!(
            digest(&|writer| writer.u32s(&[])),
            digest(&|writer| writer.option(None::<u32>, DigestWriter::u32))
        );
    }

    #[test]
    fn columns_are_hashed_like_their_values() {
        let mut column = DigestWriter::new("test");
        column.u32s(&[1, u32::MAX]);
        column.i64s(&[-1]);
        column.f64s(&[0.5]);
        let mut values = DigestWriter::new("test");
        values.list([1, u32::MAX], DigestWriter::u32);
        values.list([u64::MAX], DigestWriter::u64);
        values.list([0.5], DigestWriter::f64);
        assert_eq!(column.finish(), values.finish());
    }

    #[test]
    fn values_larger_than_the_buffer_are_hashed_like_others() {
        let large = vec![7u8; 3 * BUFFER_BYTES + 5];
        let mut whole = DigestWriter::new("test");
        whole.bytes(&large);
        let mut piecewise = DigestWriter::new("test");
        piecewise.u64(large.len() as u64);
        for byte in &large {
            piecewise.raw(&[*byte]);
        }
        assert_eq!(whole.finish(), piecewise.finish());
    }
}
