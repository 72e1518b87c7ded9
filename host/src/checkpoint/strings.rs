//! String tensors: the lengths, their sum, and the bytes.

use std::sync::Arc;

use prost::encoding::decode_varint;
use prost::encoding::encode_varint;

use super::sum::is_right;
use super::sum::mask;
use crate::tensor::ByteString;

/// Decodes the strings of a tensor, and checks both sums.
pub(super) fn decode(
    bytes: &[u8],
    n_strings: usize,
    sum: u32,
) -> Result<Arc<[ByteString]>, String> {
    let truncated = || "the strings end early".to_owned();
    // Each length takes a byte or more.
    if n_strings > bytes.len() {
        return Err(truncated());
    }
    let mut rest = bytes;
    let mut lengths = Vec::with_capacity(n_strings);
    let mut found = 0;
    for _ in 0..n_strings {
        let length = decode_varint(&mut rest).map_err(|_| truncated())?;
        found = add_length(found, length);
        lengths.push(usize::try_from(length).map_err(|_| truncated())?);
    }
    let (sum_of_lengths, mut rest) = rest.split_first_chunk::<4>().ok_or_else(truncated)?;
    if !is_right(u32::from_le_bytes(*sum_of_lengths), mask(found)) {
        return Err("the sum of its lengths is wrong".to_owned());
    }
    found = crc32c::crc32c_append(found, sum_of_lengths);
    let mut strings: Vec<ByteString> = Vec::with_capacity(n_strings);
    for length in lengths {
        let (string, after) = rest.split_at_checked(length).ok_or_else(truncated)?;
        found = crc32c::crc32c_append(found, string);
        strings.push(string.into());
        rest = after;
    }
    if !rest.is_empty() {
        return Err("there are bytes after the strings".to_owned());
    }
    if !is_right(sum, mask(found)) {
        return Err("the sum of its bytes is wrong".to_owned());
    }
    Ok(strings.into())
}

/// Encodes the strings of a tensor; returns the sum, too.
pub(super) fn encode(strings: &[ByteString]) -> (Vec<u8>, u32) {
    let mut bytes = Vec::new();
    let mut sum = 0;
    for string in strings {
        encode_varint(string.len() as u64, &mut bytes);
        sum = add_length(sum, string.len() as u64);
    }
    let sum_of_lengths = mask(sum).to_le_bytes();
    bytes.extend(sum_of_lengths);
    sum = crc32c::crc32c_append(sum, &sum_of_lengths);
    for string in strings {
        bytes.extend_from_slice(string);
        sum = crc32c::crc32c_append(sum, string);
    }
    (bytes, mask(sum))
}

/// Lengths are summed as numbers of four bytes, unless they are larger.
fn add_length(sum: u32, length: u64) -> u32 {
    match u32::try_from(length) {
        Ok(length) => crc32c::crc32c_append(sum, &length.to_le_bytes()),
        Err(_) => crc32c::crc32c_append(sum, &length.to_le_bytes()),
    }
}
