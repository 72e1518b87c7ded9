//! Strings of bytes: hashes, numbers, pieces.

use std::hash::Hasher;
use std::ops::Range;

use siphasher::sip::SipHasher24;

/// Returns TensorFlow's `Hash64` (MurmurHash64A with a fixed seed), of `StringToHashBucket`.
pub fn hash(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0xc6a4_a793_5bd1_e995;
    let mut hash = 0xde_cafc_affe_u64 ^ (bytes.len() as u64).wrapping_mul(FACTOR);
    let (blocks, rest) = bytes.as_chunks::<8>();
    for &block in blocks {
        let mut block = u64::from_le_bytes(block).wrapping_mul(FACTOR);
        block ^= block >> 47;
        hash = (hash ^ block.wrapping_mul(FACTOR)).wrapping_mul(FACTOR);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(last)).wrapping_mul(FACTOR);
    }
    hash ^= hash >> 47;
    hash = hash.wrapping_mul(FACTOR);
    hash ^ hash >> 47
}

/// Returns FarmHash's fingerprint, of `StringToHashBucketFast`.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    farmhash::fingerprint64(bytes)
}

/// Returns a fingerprint of two fingerprints, of `SparseCross`.
pub fn fingerprint_cat(first: u64, second: u64) -> u64 {
    const FACTOR: u64 = 0xc6a4_a793_5bd1_e995;
    let mixed = |value: u64| value ^ value >> 47;
    let hash = first ^ FACTOR ^ mixed(second.wrapping_mul(FACTOR)).wrapping_mul(FACTOR);
    mixed(mixed(hash.wrapping_mul(FACTOR)).wrapping_mul(FACTOR))
}

/// Returns SipHash-2-4 with this key, of `StringToHashBucketStrong`.
pub fn keyed_hash(bytes: &[u8], key: [u64; 2]) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(key[0], key[1]);
    hasher.write(bytes);
    hasher.finish()
}

/// Returns whether C's `isspace` holds.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Returns the string without spaces at its ends (TensorFlow `StringStrip`).
pub fn stripped(bytes: &[u8]) -> &[u8] {
    let start = bytes.iter().position(|&byte| !is_space(byte));
    let Some(start) = start else { return &[] };
    let end = bytes
        .iter()
        .rposition(|&byte| !is_space(byte))
        .unwrap_or(start);
    &bytes[start..=end]
}

/// Returns whether this byte continues a character of UTF-8.
fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// Returns the number of characters of UTF-8.
pub fn n_characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| !is_continuation(byte)).count()
}

/// Returns the range of a substring in bytes; `None` if it starts outside of the string (TensorFlow
/// `Substr`). A negative position counts from the end. A negative length means the rest.
pub fn substring(bytes: &[u8], position: i64, len: i64) -> Option<Range<usize>> {
    let size = bytes.len();
    let start = match usize::try_from(position) {
        Ok(start) => start,
        Err(_) => size.checked_sub(usize::try_from(position.unsigned_abs()).ok()?)?,
    };
    if start > size {
        return None;
    }
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    Some(start..start.saturating_add(len).min(size))
}

/// Returns the same for positions and lengths in characters of UTF-8. A negative length is 0 here.
pub fn substring_of_characters(bytes: &[u8], position: i64, len: i64) -> Option<Range<usize>> {
    if position >= 0 {
        let start = forward(bytes, 0, position).ok()?;
        let (Ok(end) | Err(end)) = forward(bytes, start, len);
        return Some(start..end);
    }
    let n_behind = (-i128::from(position) - i128::from(len)).max(0);
    let n_behind = i64::try_from(n_behind).ok()?;
    let end = back(bytes, bytes.len(), n_behind)?;
    let n_inside = i64::try_from(-i128::from(position) - i128::from(n_behind)).ok()?;
    Some(back(bytes, end, n_inside)?..end)
}

/// Moves over `n` characters; the error is the end of a string that has fewer.
fn forward(bytes: &[u8], mut at: usize, n: i64) -> Result<usize, usize> {
    for _ in 0..n.max(0) {
        if at >= bytes.len() {
            return Err(at);
        }
        at += 1;
        while bytes.get(at).is_some_and(|&byte| is_continuation(byte)) {
            at += 1;
        }
    }
    Ok(at)
}

/// Moves back over `n` characters, if there are so many; a negative number is refused.
fn back(bytes: &[u8], mut at: usize, n: i64) -> Option<usize> {
    for _ in 0..u64::try_from(n).ok()? {
        at = at.checked_sub(1)?;
        while at > 0 && is_continuation(bytes[at]) {
            at -= 1;
        }
    }
    Some(at)
}

/// Calls `piece` with the pieces between bytes of `delimiters` (TensorFlow `StringSplit`). Without
/// delimiters, each byte is a piece.
pub fn split<'a>(
    bytes: &'a [u8],
    delimiters: &[u8],
    skips_empty: bool,
    mut piece: impl FnMut(&'a [u8]),
) {
    if delimiters.is_empty() {
        return bytes.chunks(1).for_each(piece);
    }
    if bytes.is_empty() {
        return;
    }
    for part in bytes.split(|byte| delimiters.contains(byte)) {
        if !(skips_empty && part.is_empty()) {
            piece(part);
        }
    }
}

/// Calls `piece` with the pieces between separators, as Python's `str.split` (TensorFlow
/// `StringSplitV2`). An empty separator means any number of spaces. After `most` splits, if it is
/// positive, the rest is one piece; with 0 the whole string is.
pub fn split_at<'a>(bytes: &'a [u8], separator: &[u8], most: i64, mut piece: impl FnMut(&'a [u8])) {
    if most == 0 {
        return piece(bytes);
    }
    let mut rest = bytes;
    let mut n_splits = 0;
    if separator.is_empty() {
        loop {
            let start = rest.iter().position(|&byte| !is_space(byte));
            rest = start.map_or(&[], |start| &rest[start..]);
            if rest.is_empty() && n_splits != most {
                return;
            }
            if n_splits == most {
                return piece(rest);
            }
            let end = rest.iter().position(|&byte| is_space(byte));
            let (token, after) = rest.split_at(end.unwrap_or(rest.len()));
            piece(token);
            rest = after;
            n_splits += 1;
        }
    }
    while n_splits != most
        && let Some(at) = rest
            .windows(separator.len())
            .position(|window| window == separator)
    {
        piece(&rest[..at]);
        rest = &rest[at + separator.len()..];
        n_splits += 1;
    }
    piece(rest);
}

/// Returns the decimal integer that a string contains, with spaces around it.
pub fn integer<T: std::str::FromStr>(bytes: &[u8]) -> Option<T> {
    let text = std::str::from_utf8(stripped(bytes)).ok()?;
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

/// Returns the floating-point number that a string contains, with spaces around it.
pub fn float<T: std::str::FromStr + std::ops::Neg<Output = T>>(bytes: &[u8]) -> Option<T> {
    let text = std::str::from_utf8(stripped(bytes)).ok()?;
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str, separator: &str, most: i64) -> Vec<String> {
        let mut found = Vec::new();
        split_at(text.as_bytes(), separator.as_bytes(), most, |piece| {
            found.push(String::from_utf8(piece.to_vec()).unwrap());
        });
        found
    }

    #[test]
    fn strings_are_split_as_python_splits_them() {
        assert_eq!(pieces("1<>2<>3", "<>", -1), ["1", "2", "3"]);
        assert_eq!(pieces("1,2,3", ",", 1), ["1", "2,3"]);
        assert_eq!(pieces("1,2,,3,", ",", -1), ["1", "2", "", "3", ""]);
        assert_eq!(pieces("", ",", -1), [""]);
        assert_eq!(pieces("  1 2   3 ", "", -1), ["1", "2", "3"]);
        assert_eq!(pieces(" 1 2 3 ", "", 1), ["1", "2 3 "]);
        assert_eq!(pieces("", "", -1), [""; 0]);
        assert_eq!(pieces(" a ", "", 0), [" a "]);
    }

    #[test]
    fn substrings_count_bytes_or_characters() {
        let text = "a\u{e4}\u{20ac}b".as_bytes();
        assert_eq!(substring(text, 1, 2), Some(1..3));
        assert_eq!(substring(text, -1, 5), Some(6..7));
        assert_eq!(substring(text, 0, -1), Some(0..7));
        assert_eq!(substring(text, 7, 1), Some(7..7));
        assert_eq!(substring(text, 8, 1), None);
        assert_eq!(substring(text, -8, 1), None);
        assert_eq!(substring(text, i64::MIN, i64::MAX), None);
        assert_eq!(substring_of_characters(text, 1, 2), Some(1..6));
        assert_eq!(substring_of_characters(text, -2, 1), Some(3..6));
        assert_eq!(substring_of_characters(text, -2, 9), Some(3..7));
        assert_eq!(substring_of_characters(text, 5, 1), None);
        assert_eq!(substring_of_characters(text, -2, -1), None);
        assert_eq!(substring_of_characters(text, 1, -1), Some(1..1));
        assert_eq!(substring_of_characters(text, i64::MIN, i64::MIN), None);
    }

    #[test]
    fn numbers_are_whole_strings() {
        assert_eq!(integer::<i32>(b" -12\n"), Some(-12));
        assert_eq!(integer::<i32>(b"2147483648"), None);
        assert_eq!(integer::<u32>(b"-1"), None);
        assert_eq!(integer::<i64>(b"1 2"), None);
        assert_eq!(integer::<i64>(b""), None);
        assert_eq!(float::<f32>(b" 1e3 "), Some(1000.0));
        assert_eq!(float::<f64>(b"1x"), None);
    }
}
