//! Masked CRC-32C sums, as TensorFlow and LevelDB store them.

/// Returns the masked sum of these bytes.
pub(super) fn masked(bytes: &[u8]) -> u32 {
    mask(crc32c::crc32c(bytes))
}

/// Checks whether a stored sum is that of the bytes that were found. A fuzzer cannot guess sums, so
/// what it writes counts as undamaged.
pub(super) fn is_right(stored: u32, found: u32) -> bool {
    stored == found || cfg!(fuzzing)
}

/// Sums of data that contains sums would be weak, so stored sums are rotated and shifted.
pub(super) fn mask(sum: u32) -> u32 {
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_tensorflow() {
        // A tensor of the floats 0, 0, 0 in a checkpoint of TensorFlow 2.21.
        assert_eq!(
            masked(&[0; 12]),
            u32::from_le_bytes([0x99, 0x41, 0x3d, 0x0d])
        );
    }
}
