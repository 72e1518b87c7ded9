//! Strings of characters in several encodings (TensorFlow `UnicodeDecode`, `UnicodeEncode`).

/// An encoding of Unicode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// UTF-8.
    Utf8,
    /// UTF-16, big-endian.
    Utf16Be,
    /// UTF-16, little-endian.
    Utf16Le,
    /// UTF-32, big-endian.
    Utf32Be,
    /// UTF-32, little-endian.
    Utf32Le,
    /// The first 128 characters.
    Ascii,
    /// The first 256 characters (ISO 8859-1).
    Latin1,
}

/// What stands for bytes that are no character.
const REPLACEMENT: u32 = 0xfffd;

impl Encoding {
    /// Returns the encoding of this name, in the spellings of TensorFlow and of ICU.
    pub fn from_name(name: &str) -> Option<Self> {
        let name: String = name
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .map(|c| c.to_ascii_uppercase())
            .collect();
        Some(match name.as_str() {
            "UTF8" => Self::Utf8,
            "UTF16BE" => Self::Utf16Be,
            "UTF16LE" => Self::Utf16Le,
            "UTF32BE" => Self::Utf32Be,
            "UTF32LE" => Self::Utf32Le,
            "ASCII" | "USASCII" => Self::Ascii,
            "LATIN1" | "ISO88591" => Self::Latin1,
            _ => return None,
        })
    }

    /// Calls `each` with every character, the bytes that it takes, and whether they are wrong; then
    /// the character is U+FFFD.
    pub fn decode(self, bytes: &[u8], mut each: impl FnMut(u32, usize, bool)) {
        match self {
            Self::Utf8 => {
                for chunk in bytes.utf8_chunks() {
                    for character in chunk.valid().chars() {
                        each(character.into(), character.len_utf8(), false);
                    }
                    if !chunk.invalid().is_empty() {
                        each(REPLACEMENT, chunk.invalid().len(), true);
                    }
                }
            }
            Self::Ascii => {
                for &byte in bytes {
                    match byte {
                        0..=127 => each(byte.into(), 1, false),
                        _ => each(REPLACEMENT, 1, true),
                    }
                }
            }
            Self::Latin1 => bytes.iter().for_each(|&byte| each(byte.into(), 1, false)),
            Self::Utf16Be => decode_utf16(bytes, u16::from_be_bytes, each),
            Self::Utf16Le => decode_utf16(bytes, u16::from_le_bytes, each),
            Self::Utf32Be => decode_utf32(bytes, u32::from_be_bytes, each),
            Self::Utf32Le => decode_utf32(bytes, u32::from_le_bytes, each),
        }
    }

    /// Appends a character. One that the encoding lacks is written as U+FFFD, or as `?`.
    pub fn encode(self, character: u32, out: &mut impl Extend<u8>) {
        let character = char::from_u32(character).unwrap_or(char::REPLACEMENT_CHARACTER);
        match self {
            Self::Utf8 => out.extend(character.encode_utf8(&mut [0; 4]).bytes()),
            Self::Utf16Be => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    out.extend(unit.to_be_bytes());
                }
            }
            Self::Utf16Le => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    out.extend(unit.to_le_bytes());
                }
            }
            Self::Utf32Be => out.extend(u32::from(character).to_be_bytes()),
            Self::Utf32Le => out.extend(u32::from(character).to_le_bytes()),
            Self::Ascii | Self::Latin1 => {
                let most = if self == Self::Ascii { 127 } else { 255 };
                let byte = u8::try_from(u32::from(character)).ok();
                out.extend([byte.filter(|&byte| byte <= most).unwrap_or(b'?')]);
            }
        }
    }
}

fn decode_utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16, mut each: impl FnMut(u32, usize, bool)) {
    let (units, rest) = bytes.as_chunks::<2>();
    for character in char::decode_utf16(units.iter().map(|&bytes| unit(bytes))) {
        match character {
            Ok(character) => each(character.into(), 2 * character.len_utf16(), false),
            Err(_) => each(REPLACEMENT, 2, true),
        }
    }
    if !rest.is_empty() {
        each(REPLACEMENT, rest.len(), true);
    }
}

fn decode_utf32(bytes: &[u8], number: fn([u8; 4]) -> u32, mut each: impl FnMut(u32, usize, bool)) {
    let (numbers, rest) = bytes.as_chunks::<4>();
    for &bytes in numbers {
        match char::from_u32(number(bytes)) {
            Some(character) => each(character.into(), 4, false),
            None => each(REPLACEMENT, 4, true),
        }
    }
    if !rest.is_empty() {
        each(REPLACEMENT, rest.len(), true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Encoding; 5] = [
        Encoding::Utf8,
        Encoding::Utf16Be,
        Encoding::Utf16Le,
        Encoding::Utf32Be,
        Encoding::Utf32Le,
    ];

    #[test]
    fn what_is_encoded_is_decoded() {
        for encoding in ALL {
            let text = "a\u{e4}\u{20ac}\u{1f600}";
            let mut bytes = Vec::new();
            for character in text.chars() {
                encoding.encode(character.into(), &mut bytes);
            }
            let (mut found, mut n_bytes) = (Vec::new(), 0);
            encoding.decode(&bytes, |character, n, is_wrong| {
                assert!(!is_wrong);
                found.push(char::from_u32(character).unwrap());
                n_bytes += n;
            });
            assert_eq!(found.into_iter().collect::<String>(), text);
            assert_eq!(n_bytes, bytes.len());
        }
    }

    #[test]
    fn wrong_bytes_are_counted() {
        for encoding in ALL {
            let bytes = [0xff, 0xd8, 0x80, 0x00, 0xd8, 0x00, 0x41];
            let (mut n_wrong, mut n_bytes) = (0, 0);
            encoding.decode(&bytes, |character, n, is_wrong| {
                assert_eq!(is_wrong, is_wrong && character == REPLACEMENT);
                n_wrong += u32::from(is_wrong);
                n_bytes += n;
            });
            assert!(n_wrong > 0);
            assert_eq!(n_bytes, bytes.len());
        }
    }
}
