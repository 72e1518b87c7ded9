//! One entry: its key, and the header that distinguishes a complete entry from a damaged one.
//!
//! The header protects against accidents, not against attackers: its digest has no secret, so any
//! process that may write to the folder can create a valid entry. [`super::CacheFolder`] checks
//! that no other user may write to it.

use std::fmt;

use sha2::{Digest, Sha256};

/// First bytes of every entry; the number grows when the layout of the header changes.
const MAGIC: &[u8; 8] = b"PLWCACH1";
const HASH_BYTES: usize = 32;
/// Magic, key, hash of the payload, length of the payload.
pub(super) const HEADER_BYTES: usize = MAGIC.len() + 2 * HASH_BYTES + 8;

/// Names an entry: a kind, and everything that its content depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheKey {
    kind: &'static str,
    hash: [u8; HASH_BYTES],
}

impl CacheKey {
    /// Creates a key from these parts, in this order. `kind` is a short word of lower-case letters,
    /// with which the file's name starts.
    pub fn new(kind: &'static str, parts: &[&[u8]]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(kind.as_bytes());
        for part in parts {
            // The length keeps ("ab", "c") and ("a", "bc") apart.
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self {
            kind,
            hash: hasher.finalize().into(),
        }
    }

    /// Returns the name of the entry's file.
    pub(super) fn file_name(&self) -> String {
        format!("{self}{FILE_SUFFIX}")
    }

    /// Returns header and payload, as the file contains them.
    pub(super) fn seal(&self, payload: &[u8]) -> Vec<u8> {
        let mut sealed = Vec::with_capacity(HEADER_BYTES + payload.len());
        sealed.extend_from_slice(MAGIC);
        sealed.extend_from_slice(&self.hash);
        sealed.extend_from_slice(&Sha256::digest(payload));
        sealed.extend_from_slice(&(payload.len() as u64).to_le_bytes());
        sealed.extend_from_slice(payload);
        sealed
    }

    /// Returns the payload if `sealed` is a complete, undamaged entry of this key.
    pub(super) fn open(&self, mut sealed: Vec<u8>) -> Option<Vec<u8>> {
        let (header, payload) = sealed.split_at_checked(HEADER_BYTES)?;
        let (magic, rest) = header.split_at(MAGIC.len());
        let (key, rest) = rest.split_at(HASH_BYTES);
        let (hash, length) = rest.split_at(HASH_BYTES);
        let is_whole = magic == MAGIC
            && key == self.hash
            && length == (payload.len() as u64).to_le_bytes()
            && hash == Sha256::digest(payload).as_slice();
        is_whole.then(|| sealed.split_off(HEADER_BYTES))
    }
}

/// The end of the name of every entry's file.
pub(super) const FILE_SUFFIX: &str = ".cache";

impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-", self.kind)?;
        self.hash
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_into_each_other() {
        let key = |parts: &[&[u8]]| CacheKey::new("test", parts);
        assert_ne!(key(&[b"ab", b"c"]), key(&[b"a", b"bc"]));
        assert_eq!(key(&[b"ab", b"c"]), key(&[b"ab", b"c"]));
        assert_ne!(key(&[b"x"]), CacheKey::new("other", &[b"x"]));
    }

    #[test]
    fn every_damage_of_an_entry_is_noticed() {
        let key = CacheKey::new("test", &[b"x"]);
        let sealed = key.seal(b"payload");
        assert_eq!(key.open(sealed.clone()).as_deref(), Some(&b"payload"[..]));
        for length in 0..sealed.len() {
            assert_eq!(key.open(sealed[..length].to_vec()), None, "cut at {length}");
        }
        for position in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[position] ^= 1;
            assert_eq!(key.open(damaged), None, "bit of byte {position} flipped");
        }
        assert_eq!(CacheKey::new("test", &[b"y"]).open(sealed), None);
    }
}
