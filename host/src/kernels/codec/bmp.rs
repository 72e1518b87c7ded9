//! Uncompressed Windows bitmaps of 8, 24 and 32 bits per pixel (TensorFlow `DecodeBmp`).

/// The header of a file.
#[derive(Debug)]
pub struct Bmp<'a> {
    pixels: &'a [u8],
    width: usize,
    height: usize,
    is_top_down: bool,
    n_own_channels: usize,
    n_channels: usize,
}

impl<'a> Bmp<'a> {
    /// Reads the header of a file; `n_channels` is 3, 4, or 0 for those of the file.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn open(bytes: &'a [u8], n_channels: usize) -> Result<Self, String> {
        if bytes.len() < 32 {
            return Err(format!(
                "Incomplete bmp content, requires at least 32 bytes to find the header size, \
                 width, height, and bpp, got {} bytes",
                bytes.len()
            ));
        }
        let number = |at: usize| {
            let four = bytes[at..].first_chunk().copied();
            i64::from(i32::from_le_bytes(four.unwrap_or_default()))
        };
        let (start, width, height) = (number(10), number(18), number(22));
        let n_own_channels = usize::from(u16::from_le_bytes([bytes[28], bytes[29]]) / 8);
        if !matches!(n_own_channels, 1 | 3 | 4) {
            return Err(format!(
                "Number of channels inherent in the image must be 1, 3 or 4, was {n_own_channels}"
            ));
        }
        let is_top_down = height < 0;
        let sizes = [start, width, height.abs()].map(usize::try_from);
        let [Ok(start), Ok(width @ 1..), Ok(height @ 1..)] = sizes else {
            return Err(format!(
                "width must be positive, height nonzero and header size nonnegative; they are \
                 {width}, {height} and {start}"
            ));
        };
        let stride = (width * n_own_channels).next_multiple_of(4);
        let pixels = bytes.get(start..).unwrap_or_default();
        if stride.checked_mul(height) != Some(pixels.len()) {
            return Err(format!(
                "Input size should match (header_size + row_size * abs_height): {height} rows of \
                 {stride} bytes behind a header of {start} are not {} bytes",
                bytes.len()
            ));
        }
        Ok(Self {
            pixels,
            width,
            height,
            is_top_down,
            n_own_channels,
            n_channels: if n_channels == 0 {
                n_own_channels
            } else {
                n_channels
            },
        })
    }

    /// Returns height, width and number of channels of the result.
    pub fn dims(&self) -> [usize; 3] {
        [self.height, self.width, self.n_channels]
    }

    /// Writes the pixels, of the shape that [`Self::dims`] returns.
    pub fn read(&self, out: &mut [u8]) {
        let stride = self.pixels.len() / self.height;
        let rows = out.chunks_exact_mut(self.width * self.n_channels);
        for (y, out) in rows.enumerate() {
            let y = if self.is_top_down {
                y
            } else {
                self.height - 1 - y
            };
            let pixels = self.pixels[y * stride..].chunks_exact(self.n_own_channels);
            for (out, pixel) in out.chunks_exact_mut(self.n_channels).zip(pixels) {
                let rgba = match *pixel {
                    [grey] => [grey, grey, grey, 255],
                    [blue, green, red] => [red, green, blue, 255],
                    _ => [pixel[2], pixel[1], pixel[0], pixel[3]],
                };
                out.copy_from_slice(&rgba[..out.len()]);
            }
        }
    }
}
