//! JPEG files: sequential and progressive ones with Huffman codes.
//!
//! TensorFlow decodes with libjpeg-turbo, by default with its fast transform. Its integer
//! arithmetic is repeated here, so that pixels are equal. Decoders in Rust have other transforms,
//! whose pixels differ by up to 12 of 255, and do not offer TensorFlow's attributes.

mod entropy;
mod idct;
mod samples;

pub use self::idct::DctMethod;

use self::entropy::Bits;
use self::entropy::Codes;
use self::entropy::PLACES;
use self::entropy::Part;
use self::entropy::State;
use self::entropy::next_marker;
use self::idct::Block;
use self::idct::Transform;
use self::samples::Plane;
use self::samples::Space;
use self::samples::write_pixels;
use crate::kernels::scratch;

/// How a file is decoded: the attributes of TensorFlow `DecodeJpeg`.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// 1, 3, or 0 for those of the file.
    pub n_channels: usize,
    /// The image is smaller by this factor: 1, 2, 4 or 8.
    pub ratio: usize,
    /// Whether samples of colours are interpolated, and not repeated.
    pub is_smooth: bool,
    /// Whether what is missing at the end is grey, and not an error. TensorFlow's pixels there have
    /// no meaning either, but are others.
    pub recovers: bool,
    /// Smallest part of the rows that must be there.
    pub acceptable_fraction: f32,
    /// The transform.
    pub method: DctMethod,
}

/// Most scans of a file: more than one per bit of each coefficient of a component.
const N_SCANS_MAX: usize = 1000;

/// Most pixels per byte: a block of 64 has one bit or more in one of the components, whose
/// blocks may be 16 times as large as the least.
const PIXELS_PER_BYTE: usize = 8 * 64 * 16;

#[derive(Debug, Clone)]
struct Component {
    id: u8,
    /// Samples across and down for each unit of the file.
    sampling: [usize; 2],
    table: usize,
    transform: Option<Transform>,
    /// Blocks of its own, and those with the ones that fill the last unit.
    blocks: [usize; 2],
    padded: [usize; 2],
    /// Width and height of a block in samples.
    size: usize,
}

/// The header of a file.
#[derive(Debug)]
pub struct Jpeg<'a> {
    bytes: &'a [u8],
    options: Options,
    /// Width and height.
    size: [usize; 2],
    is_progressive: bool,
    components: Vec<Component>,
    sampling: [usize; 2],
    steps: [Option<[u16; 64]>; 4],
    codes: [[Option<Codes>; 4]; 2],
    interval: usize,
    adobe: Option<u8>,
    is_jfif: bool,
    at: usize,
}

/// Why a file cannot be decoded.
type Fault = String;

impl<'a> Jpeg<'a> {
    /// Reads a file up to its first scan.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn open(bytes: &'a [u8], options: Options) -> Result<Self, Fault> {
        let mut jpeg = Self {
            bytes,
            options,
            size: [0; 2],
            is_progressive: false,
            components: Vec::new(),
            sampling: [1; 2],
            steps: [None; 4],
            codes: [const { [const { None }; 4] }; 2],
            interval: 0,
            adobe: None,
            is_jfif: false,
            at: 0,
        };
        if bytes.first_chunk() != Some(&[0xff, 0xd8]) {
            return Err("it does not start with a JPEG marker".to_owned());
        }
        jpeg.at = 2;
        match jpeg.next_scan(None)? {
            true if !jpeg.components.is_empty() => Ok(jpeg),
            _ => Err("it has no image".to_owned()),
        }
    }

    /// Returns height, width and number of channels of the result.
    pub fn dims(&self) -> [usize; 3] {
        let [width, height] = self.size.map(|size| size.div_ceil(self.options.ratio));
        let n_channels = match self.options.n_channels {
            0 => self.components.len().min(3),
            n => n,
        };
        [height, width, n_channels]
    }

    fn segment(&mut self) -> Result<&'a [u8], Fault> {
        let truncated = || "it ends in a header".to_owned();
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let &[high, low] = rest.first_chunk().ok_or_else(truncated)?;
        let n = usize::from(u16::from_be_bytes([high, low]));
        let segment = rest.get(2..n).ok_or_else(truncated)?;
        self.at += n;
        Ok(segment)
    }

    /// Reads headers up to the next scan. Returns whether there is one.
    fn next_scan(&mut self, mut marker: Option<u8>) -> Result<bool, Fault> {
        loop {
            let found = match marker.take() {
                Some(marker) => marker,
                None => {
                    let (found, at) = next_marker(self.bytes, self.at);
                    self.at = at;
                    match found {
                        Some(found) => found,
                        None if self.options.recovers => return Ok(false),
                        None => return Err("it ends before its end marker".to_owned()),
                    }
                }
            };
            match found {
                0xda => return Ok(true),
                0xd9 => return Ok(false),
                0xc0..=0xc2 => {
                    let segment = self.segment()?;
                    self.frame(segment, found == 0xc2)?;
                }
                0xc4 => self.huffman_tables()?,
                0xdb => self.quantization_tables()?,
                0xc3 | 0xc5..=0xcf => {
                    return Err(format!("its coding (marker {found:#x}) is not supported"));
                }
                0xdd => match self.segment()? {
                    &[high, low] => self.interval = u16::from_be_bytes([high, low]).into(),
                    _ => return Err("a restart interval is not valid".to_owned()),
                },
                0xe0 => self.is_jfif |= self.segment()?.starts_with(b"JFIF\0"),
                0xee => {
                    let segment = self.segment()?;
                    if segment.starts_with(b"Adobe") && segment.len() >= 12 {
                        self.adobe = Some(segment[11]);
                    }
                }
                0x01 | 0xd0..=0xd8 => {}
                _ => drop(self.segment()?),
            }
        }
    }

    fn frame(&mut self, segment: &[u8], is_progressive: bool) -> Result<(), Fault> {
        let bad = || "its frame header is not valid".to_owned();
        let (&[precision, h1, h0, w1, w0, n], rest) =
            segment.split_first_chunk().ok_or_else(bad)?;
        if !self.components.is_empty() {
            return Err("it has several frames, which are not supported".to_owned());
        }
        if precision != 8 {
            return Err(format!(
                "its samples have {precision} bits; 8 are supported"
            ));
        }
        let n = usize::from(n);
        if !matches!(n, 1 | 3 | 4) || rest.len() != 3 * n {
            return Err(format!("it has {n} components; 1, 3 and 4 are supported"));
        }
        let [width, height] =
            [[w1, w0], [h1, h0]].map(|size| usize::from(u16::from_be_bytes(size)));
        if width == 0 || height == 0 {
            return Err("it states that it has no pixels".to_owned());
        }
        if width * height / PIXELS_PER_BYTE > self.bytes.len() || width * height * n >= 1 << 29 {
            return Err(format!(
                "it states {width} x {height} pixels, which is too large for a file of {} bytes",
                self.bytes.len()
            ));
        }
        let mut components = Vec::new();
        for part in rest.chunks_exact(3) {
            let sampling = [usize::from(part[1] >> 4), usize::from(part[1] & 15)];
            let table = usize::from(part[2]);
            if sampling.iter().any(|n| !(1..=4).contains(n)) || table > 3 {
                return Err(bad());
            }
            components.push(Component {
                id: part[0],
                sampling,
                table,
                transform: None,
                blocks: [0; 2],
                padded: [0; 2],
                size: 8 / self.options.ratio,
            });
        }
        let most = [0, 1].map(|axis| {
            components
                .iter()
                .map(|c| c.sampling[axis])
                .max()
                .unwrap_or(1)
        });
        for component in &mut components {
            // Instead of repeating samples, larger blocks are computed.
            let is_whole = |size: usize| {
                let divides = |axis: usize| {
                    let sampled = component.sampling[axis] * size * 2;
                    (most[axis] * (8 / self.options.ratio)).is_multiple_of(sampled)
                };
                divides(0) && divides(1)
            };
            while component.size < 8 && is_whole(component.size) {
                component.size *= 2;
            }
            for (axis, extent) in [width, height].into_iter().enumerate() {
                let (own, most) = (component.sampling[axis], most[axis]);
                component.blocks[axis] = (extent * own).div_ceil(8 * most);
                component.padded[axis] = extent.div_ceil(8 * most) * own;
            }
        }
        self.size = [width, height];
        self.sampling = most;
        self.components = components;
        self.is_progressive = is_progressive;
        Ok(())
    }

    fn quantization_tables(&mut self) -> Result<(), Fault> {
        let bad = || "a quantization table is not valid".to_owned();
        let mut rest = self.segment()?;
        while let Some((&first, after)) = rest.split_first() {
            let width = usize::from(first >> 4) + 1;
            let slot = self
                .steps
                .get_mut(usize::from(first & 15))
                .ok_or_else(bad)?;
            let steps = after
                .get(..64 * width)
                .filter(|_| width <= 2)
                .ok_or_else(bad)?;
            let mut table = [0; 64];
            for (&place, step) in PLACES.iter().zip(steps.chunks_exact(width)) {
                let bytes = step.iter();
                table[usize::from(place)] = bytes.fold(0, |sum, &byte| sum << 8 | u16::from(byte));
            }
            *slot = Some(table);
            rest = &after[64 * width..];
        }
        Ok(())
    }

    fn huffman_tables(&mut self) -> Result<(), Fault> {
        let bad = || "a Huffman table is not valid".to_owned();
        let mut rest = self.segment()?;
        while let Some((&first, after)) = rest.split_first() {
            let (&counts, symbols) = after.split_first_chunk::<16>().ok_or_else(bad)?;
            let n: usize = counts.iter().map(|&n| usize::from(n)).sum();
            let kinds = self
                .codes
                .get_mut(usize::from(first >> 4))
                .ok_or_else(bad)?;
            let slot = kinds.get_mut(usize::from(first & 15)).ok_or_else(bad)?;
            let own = symbols.get(..n).ok_or_else(bad)?;
            *slot = Some(Codes::new(counts, own, first >> 4 == 0)?);
            rest = &symbols[n..];
        }
        Ok(())
    }

    fn space(&self) -> Space {
        let ids: Vec<u8> = self
            .components
            .iter()
            .map(|component| component.id)
            .collect();
        match (self.components.len(), self.adobe) {
            (1, _) => Space::Grey,
            (3, _) if self.is_jfif => Space::Ycc,
            (3, Some(0)) => Space::Rgb,
            (3, None) if ids == *b"RGB" => Space::Rgb,
            (3, _) => Space::Ycc,
            (_, Some(0)) => Space::Cmyk(true),
            (_, Some(_)) => Space::Ycck(true),
            (_, None) => Space::Cmyk(false),
        }
    }

    /// Decodes the image into `out`, of the shape that [`Self::dims`] returns. `is_interrupted` is
    /// asked often; the result is then incomplete.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn read(mut self, out: &mut [u8], is_interrupted: &dyn Fn() -> bool) -> Result<(), Fault> {
        let space = self.space();
        let [height, width, n_channels] = self.dims();
        if matches!(space, Space::Cmyk(_) | Space::Ycck(_)) && n_channels == 1 {
            return Err("it has four inks, which cannot become grey".to_owned());
        }
        let memory = |_| "there is not enough memory for it".to_owned();
        let mut planes: Vec<Plane> = Vec::new();
        let mut coefficients: Vec<Vec<Block>> = Vec::new();
        for component in &self.components {
            let [across, down] = component.padded;
            let size = component.size;
            let mut samples = scratch::list(across * down * size * size).map_err(memory)?;
            // What no scan contains is grey.
            samples.extend(std::iter::repeat_n(128, across * down * size * size));
            let mut repeats = [0; 2];
            let mut own = [0; 2];
            for axis in [0, 1] {
                let all = self.sampling[axis] * (8 / self.options.ratio);
                let sampled = component.sampling[axis] * size;
                if !all.is_multiple_of(sampled) {
                    return Err("its components have sizes that are not supported".to_owned());
                }
                repeats[axis] = all / sampled;
                own[axis] = (self.size[axis] * sampled).div_ceil(8 * self.sampling[axis]);
            }
            planes.push(Plane {
                samples,
                stride: across * size,
                size: own,
                repeats,
            });
            let n = if self.is_progressive {
                across * down
            } else {
                0
            };
            let mut blocks = scratch::list(n).map_err(memory)?;
            blocks.extend(std::iter::repeat_n([0; 64], n));
            coefficients.push(blocks);
        }
        let mut n_rows = height;
        for index in 0.. {
            if index == N_SCANS_MAX {
                return Err(format!("it has more than {N_SCANS_MAX} scans"));
            }
            let (marker, n_complete) = self.scan(&mut planes, &mut coefficients, is_interrupted)?;
            if is_interrupted() {
                return Ok(());
            }
            n_rows = n_rows.min(n_complete * self.sampling[1] * 8 / self.options.ratio);
            let is_truncated = n_rows < height && !self.options.recovers;
            if is_truncated || !self.next_scan(marker)? {
                break;
            }
        }
        let missing = self
            .components
            .iter()
            .any(|component| component.transform.is_none());
        if missing {
            return Err("it has no scan of one of its components".to_owned());
        }
        if self.is_progressive {
            for ((component, plane), blocks) in
                self.components.iter().zip(&mut planes).zip(&coefficients)
            {
                for (index, block) in blocks.iter().enumerate() {
                    write_block(component, plane, index, block);
                }
            }
        }
        if !self.options.recovers && n_rows < height {
            #[expect(clippy::cast_precision_loss, reason = "at most 65535 rows")]
            let fraction = n_rows as f32 / height as f32;
            if self.is_progressive || fraction < self.options.acceptable_fraction.min(1.0) {
                return Err(format!("it ends after {n_rows} of {height} rows"));
            }
        }
        let is_smooth = self.options.is_smooth && self.options.ratio < 8;
        let mut rows = scratch::list(4 * (width + 8)).map_err(memory)?;
        rows.extend(std::iter::repeat_n(0, 4 * (width + 8)));
        for (y, out) in out.chunks_exact_mut(width * n_channels).enumerate() {
            if y >= n_rows && !self.options.recovers {
                out.fill(0);
                continue;
            }
            for (plane, line) in planes.iter().zip(rows.chunks_exact_mut(width + 8)) {
                plane.write_row(y, is_smooth, line);
            }
            let lines = std::array::from_fn(|index| &rows[index * (width + 8)..][..width + 8]);
            write_pixels(space, lines, n_channels, out);
        }
        Ok(())
    }

    /// Reads a scan. Returns the marker that ended it, and the number of complete rows of units.
    fn scan(
        &mut self,
        planes: &mut [Plane],
        coefficients: &mut [Vec<Block>],
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<(Option<u8>, usize), Fault> {
        let bad = || "a scan header is not valid".to_owned();
        let segment = self.segment()?;
        let n = usize::from(*segment.first().ok_or_else(bad)?);
        if !(1..=self.components.len()).contains(&n) || segment.len() != 2 * n + 4 {
            return Err(bad());
        }
        let mut parts: Vec<(usize, [usize; 2])> = Vec::new();
        for pair in segment[1..=2 * n].chunks_exact(2) {
            let index = self
                .components
                .iter()
                .position(|component| component.id == pair[0]);
            let index = index.ok_or_else(bad)?;
            let tables = [usize::from(pair[1] >> 4), usize::from(pair[1] & 15)];
            if tables.iter().any(|&table| table > 3) || parts.iter().any(|part| part.0 == index) {
                return Err(bad());
            }
            parts.push((index, tables));
        }
        let &[first, last, bits_of] = segment[2 * n + 1..].first_chunk().ok_or_else(bad)?;
        let part = match self.is_progressive {
            true => Part {
                first: first.into(),
                last: last.into(),
                is_refined: bits_of >> 4 != 0,
                low: u32::from(bits_of & 15),
            },
            false => Part {
                first: 0,
                last: 63,
                is_refined: false,
                low: 0,
            },
        };
        let is_valid = part.last < 64
            && part.low <= 13
            && match (self.is_progressive, part.first) {
                (true, 0) => part.last == 0,
                (true, first) => first <= part.last && n == 1,
                (false, _) => true,
            };
        if !is_valid {
            return Err(bad());
        }
        let undefined = |what: &str| format!("a scan has a {what} that is not defined");
        for &(index, _) in &parts {
            let component = &mut self.components[index];
            if component.transform.is_none() {
                let steps = self.steps[component.table];
                let steps = steps.ok_or_else(|| undefined("quantization table"))?;
                let method = self.options.method;
                component.transform = Some(Transform::new(component.size, steps, method));
            }
        }
        let mut codes = Vec::new();
        for (_, [constant, others]) in &parts {
            let (constant, others) = (&self.codes[0][*constant], &self.codes[1][*others]);
            let needs_constant = part.first == 0 && !part.is_refined;
            let is_defined =
                (constant.is_some() || !needs_constant) && (others.is_some() || part.last == 0);
            if !is_defined {
                return Err(undefined("Huffman table"));
            }
            codes.push((constant.as_ref(), others.as_ref()));
        }
        // The units of a scan with one component are its own blocks.
        let units = match parts.as_slice() {
            [(index, _)] => self.components[*index].blocks,
            _ => [0, 1].map(|axis| self.size[axis].div_ceil(8 * self.sampling[axis])),
        };
        let mut bits = Bits::new(self.bytes, self.at);
        let mut state = State::default();
        let (mut n_units, mut number) = (0usize, 0u8);
        let mut n_complete = units[1];
        for y in 0..units[1] {
            if is_interrupted() {
                break;
            }
            for x in 0..units[0] {
                if self.interval > 0 && n_units > 0 && n_units.is_multiple_of(self.interval) {
                    bits.restart(number);
                    number = (number + 1) & 7;
                    state = State::default();
                }
                n_units += 1;
                if bits.is_short {
                    continue;
                }
                for (slot, &(index, _)) in parts.iter().enumerate() {
                    let component = &self.components[index];
                    let [across, down] = if n == 1 { [1; 2] } else { component.sampling };
                    for place in 0..across * down {
                        let column = x * across + place % across;
                        let at = (y * down + place / across) * component.padded[0] + column;
                        let (constant, others) = codes[slot];
                        let last = &mut state.constants[slot];
                        if let (false, Some(constant), Some(others)) =
                            (self.is_progressive, constant, others)
                        {
                            let mut block = [0; 64];
                            entropy::sequential(&mut bits, constant, others, last, &mut block);
                            write_block(component, &mut planes[index], at, &block);
                            continue;
                        }
                        let Some(block) = coefficients[index].get_mut(at) else {
                            continue;
                        };
                        let n_empty = &mut state.n_empty;
                        match others.filter(|_| part.first > 0) {
                            None => entropy::constant(&mut bits, constant, part, last, block),
                            Some(codes) if part.is_refined => {
                                entropy::more_bits(&mut bits, codes, part, n_empty, block);
                            }
                            Some(codes) => {
                                entropy::first_bits(&mut bits, codes, part, n_empty, block);
                            }
                        }
                    }
                }
            }
            let is_over = bits.is_short && bits.marker.is_none();
            if is_over {
                n_complete = n_complete.min(y);
            }
            if bits.is_short && (is_over || self.interval == 0) {
                break;
            }
        }
        self.at = bits.at;
        if n == 1 && n_complete < units[1] {
            n_complete /= self.components[parts[0].0].sampling[1];
        } else if n_complete == units[1] {
            n_complete = self.size[1];
        }
        Ok((bits.marker, n_complete))
    }
}

/// Writes the samples of a block.
fn write_block(component: &Component, plane: &mut Plane, index: usize, block: &Block) {
    let (row, column) = (index / component.padded[0], index % component.padded[0]);
    let start = (row * plane.stride + column) * component.size;
    let rest = plane.samples.get_mut(start..).unwrap_or_default();
    if let Some(transform) = &component.transform {
        transform.write(block, rest, plane.stride);
    }
}
