//! Files with images. Functions return text that says what is wrong with a file.

pub mod bmp;
pub mod jpeg;
pub mod png;

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Windows bitmaps.
    Bmp,
    /// Graphics Interchange Format.
    Gif,
    /// JPEG File Interchange Format.
    Jpeg,
    /// Portable Network Graphics.
    Png,
}

impl Format {
    /// Returns the format that the first bytes of a file state.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let formats: [(&[u8], Self); 4] = [
            (b"\xff\xd8\xff", Self::Jpeg),
            (b"\x89PNG\r\n\x1a\n", Self::Png),
            (b"GIF8", Self::Gif),
            (b"BM", Self::Bmp),
        ];
        let mut formats = formats.into_iter();
        formats.find_map(|(start, format)| bytes.starts_with(start).then_some(format))
    }
}
