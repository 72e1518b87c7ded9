//! Huffman codes of JPEG files, and the coefficients of blocks.

use super::idct::Block;

/// Places of the coefficients in a block, in the order of the file. Runs that leave the block end
/// in its last place.
pub(super) const PLACES: [u8; 80] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
    63, 63, 63, 63, 63, 63,
];

/// The codes of a table.
#[derive(Debug, Clone)]
pub(super) struct Codes {
    /// For each length, the largest code of it, or -1.
    largest: [i32; 18],
    /// For each length, what is added to a code to find its symbol.
    offsets: [i32; 18],
    symbols: [u8; 256],
    /// Length and symbol of the codes that a byte starts with; length 0 for longer codes.
    short: [(u8, u8); 256],
}

impl Codes {
    /// Makes the codes of a table from the numbers of codes of each length, and the symbols.
    ///
    /// # Errors
    /// What is wrong with the table.
    pub(super) fn new(counts: [u8; 16], symbols: &[u8], is_dc: bool) -> Result<Self, String> {
        let bad = || "a Huffman table is not valid".to_owned();
        let mut codes = Self {
            largest: [-1; 18],
            offsets: [0; 18],
            symbols: [0; 256],
            short: [(0, 0); 256],
        };
        codes
            .symbols
            .get_mut(..symbols.len())
            .ok_or_else(bad)?
            .copy_from_slice(symbols);
        if is_dc && symbols.iter().any(|&symbol| symbol > 15) {
            return Err(bad());
        }
        let (mut code, mut first) = (0i32, 0i32);
        for (length, &count) in (1usize..).zip(&counts) {
            let count = i32::from(count);
            if count > 0 {
                codes.offsets[length] = first - code;
                codes.largest[length] = code + count - 1;
            }
            if code + count > 1 << length {
                return Err(bad());
            }
            if length <= 8 {
                for index in 0..count {
                    let start =
                        usize::try_from((code + index) << (8 - length)).map_err(|_| bad())?;
                    let place = usize::try_from(first + index).map_err(|_| bad())?;
                    let entry = (
                        u8::try_from(length).map_err(|_| bad())?,
                        codes.symbols[place],
                    );
                    codes.short[start..start + (1 << (8 - length))].fill(entry);
                }
            }
            first += count;
            code = (code + count) << 1;
        }
        Ok(codes)
    }
}

/// The bits of a scan. After the end of its data, bits are 0.
#[derive(Debug)]
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    /// The next byte.
    pub(super) at: usize,
    bits: u64,
    n: u32,
    /// The marker that ended the data.
    pub(super) marker: Option<u8>,
    /// Whether more bits were read than there are.
    pub(super) is_short: bool,
}

impl<'a> Bits<'a> {
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self {
            bytes,
            at,
            bits: 0,
            n: 0,
            marker: None,
            is_short: false,
        }
    }

    fn fill(&mut self) {
        while self.n <= 56 && self.marker.is_none() {
            let Some(&byte) = self.bytes.get(self.at) else {
                return;
            };
            self.at += 1;
            if byte == 0xff {
                loop {
                    let Some(&next) = self.bytes.get(self.at) else {
                        return;
                    };
                    self.at += 1;
                    match next {
                        0 => break,
                        0xff => {}
                        marker => {
                            self.marker = Some(marker);
                            return;
                        }
                    }
                }
            }
            self.bits = self.bits << 8 | u64::from(byte);
            self.n += 8;
        }
    }

    /// Returns the next 16 bits without reading them.
    fn peek(&mut self) -> u32 {
        if self.n < 16 {
            self.fill();
        }
        let bits = match self.n {
            16.. => self.bits >> (self.n - 16),
            n => self.bits << (16 - n),
        };
        u32::try_from(bits & 0xffff).unwrap_or_default()
    }

    fn skip(&mut self, n: u32) {
        if n > self.n {
            self.is_short = true;
            (self.bits, self.n) = (0, 0);
        } else {
            self.n -= n;
        }
    }

    /// Reads at most 16 bits.
    pub(super) fn take(&mut self, n: u32) -> i32 {
        if n == 0 {
            return 0;
        }
        let bits = self.peek() >> (16 - n);
        self.skip(n);
        i32::try_from(bits).unwrap_or_default()
    }

    /// Reads a number of `n` bits whose sign is that of its first bit.
    fn signed(&mut self, n: u32) -> i32 {
        let n = n.min(15);
        let bits = self.take(n);
        match n > 0 && bits < 1 << (n - 1) {
            true => bits - (1 << n) + 1,
            false => bits,
        }
    }

    fn symbol(&mut self, codes: &Codes) -> u8 {
        let next = self.peek();
        let (length, symbol) = codes.short[usize::try_from(next >> 8).unwrap_or_default()];
        if length > 0 {
            self.skip(length.into());
            return symbol;
        }
        for length in 9..=16u8 {
            let code = i32::try_from(next >> (16 - length)).unwrap_or_default();
            let place = usize::from(length);
            if code <= codes.largest[place] {
                self.skip(length.into());
                let index = usize::try_from(code + codes.offsets[place]).unwrap_or_default();
                return codes.symbols[index & 255];
            }
        }
        // An undefined code counts as the symbol 0.
        self.skip(16);
        0
    }

    /// Ends a segment between restart markers. Returns whether the marker `RST` of this number
    /// follows; then reading goes on behind it.
    pub(super) fn restart(&mut self, number: u8) -> bool {
        (self.bits, self.n) = (0, 0);
        if self.marker.is_none() {
            (self.marker, self.at) = next_marker(self.bytes, self.at);
        }
        let is_expected = self.marker == Some(0xd0 + number);
        if is_expected {
            self.marker = None;
        }
        self.is_short = !is_expected;
        is_expected
    }
}

/// Finds the next marker. Returns it, and the place behind it.
pub(super) fn next_marker(bytes: &[u8], mut at: usize) -> (Option<u8>, usize) {
    while let Some(rest) = bytes.get(at..) {
        let Some(found) = rest.iter().position(|&byte| byte == 0xff) else {
            break;
        };
        at += found + 1;
        while bytes.get(at) == Some(&0xff) {
            at += 1;
        }
        match bytes.get(at) {
            None => break,
            Some(0) => at += 1,
            Some(&marker) => return (Some(marker), at + 1),
        }
    }
    (None, bytes.len())
}

/// The coefficients and bits that a scan contains.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// First coefficient, in the order of the file.
    pub(super) first: usize,
    /// Last coefficient.
    pub(super) last: usize,
    /// Whether earlier scans contained higher bits.
    pub(super) is_refined: bool,
    /// Lowest bit.
    pub(super) low: u32,
}

/// What a scan carries from block to block.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The last constant coefficients of the scan's components.
    pub(super) constants: [i32; 4],
    /// The number of blocks without further coefficients.
    pub(super) n_empty: u32,
}

/// The low 16 bits, which is all that a coefficient has.
#[expect(clippy::cast_possible_truncation, reason = "as libjpeg stores them")]
fn stored(value: i32) -> i16 {
    value as i16
}

/// Reads all coefficients of a block.
pub(super) fn sequential(
    bits: &mut Bits<'_>,
    constants: &Codes,
    others: &Codes,
    last: &mut i32,
    block: &mut Block,
) {
    let size = bits.symbol(constants);
    *last = last.wrapping_add(bits.signed(size.into()));
    block[0] = stored(*last);
    let mut at = 1;
    while at < 64 {
        let symbol = bits.symbol(others);
        let (run, size) = (usize::from(symbol >> 4), symbol & 15);
        if size == 0 {
            if run != 15 {
                return;
            }
            at += 16;
            continue;
        }
        at += run;
        block[usize::from(PLACES[at])] = stored(bits.signed(size.into()));
        at += 1;
    }
}

/// Reads the constant coefficient of a block, or one more bit of it.
pub(super) fn constant(
    bits: &mut Bits<'_>,
    codes: Option<&Codes>,
    part: Part,
    last: &mut i32,
    block: &mut Block,
) {
    let Some(codes) = codes.filter(|_| !part.is_refined) else {
        if bits.take(1) == 1 {
            block[0] |= 1 << part.low;
        }
        return;
    };
    let size = bits.symbol(codes);
    *last = last.wrapping_add(bits.signed(size.into()));
    block[0] = stored(last.wrapping_shl(part.low));
}

/// Reads the upper bits of some coefficients of a block.
pub(super) fn first_bits(
    bits: &mut Bits<'_>,
    codes: &Codes,
    part: Part,
    n_empty: &mut u32,
    block: &mut Block,
) {
    if *n_empty > 0 {
        *n_empty -= 1;
        return;
    }
    let mut at = part.first;
    while at <= part.last {
        let symbol = bits.symbol(codes);
        let (run, size) = (symbol >> 4, symbol & 15);
        if size > 0 {
            at += usize::from(run);
            let value = bits.signed(size.into());
            block[usize::from(PLACES[at])] = stored(value.wrapping_shl(part.low));
            at += 1;
        } else if run == 15 {
            at += 16;
        } else {
            *n_empty = (1 << run) - 1 + u32::try_from(bits.take(run.into())).unwrap_or_default();
            return;
        }
    }
}

/// Reads one more bit of some coefficients of a block.
pub(super) fn more_bits(
    bits: &mut Bits<'_>,
    codes: &Codes,
    part: Part,
    n_empty: &mut u32,
    block: &mut Block,
) {
    let bit = 1i16 << part.low;
    let refine = |bits: &mut Bits<'_>, value: &mut i16| {
        if bits.take(1) == 1 && *value & bit == 0 {
            *value = match *value >= 0 {
                true => value.wrapping_add(bit),
                false => value.wrapping_sub(bit),
            };
        }
    };
    let mut at = part.first;
    if *n_empty == 0 {
        while at <= part.last {
            let symbol = bits.symbol(codes);
            let (mut run, size) = (symbol >> 4, symbol & 15);
            let mut value = 0;
            if size > 0 {
                value = if bits.take(1) == 1 { bit } else { -bit };
            } else if run != 15 {
                *n_empty = (1 << run) + u32::try_from(bits.take(run.into())).unwrap_or_default();
                break;
            }
            while at <= part.last {
                let slot = &mut block[usize::from(PLACES[at])];
                if *slot != 0 {
                    refine(bits, slot);
                } else if run == 0 {
                    break;
                } else {
                    run -= 1;
                }
                at += 1;
            }
            if value != 0 {
                block[usize::from(PLACES[at])] = value;
            }
            at += 1;
        }
    }
    if *n_empty > 0 {
        while at <= part.last {
            let slot = &mut block[usize::from(PLACES[at])];
            if *slot != 0 {
                refine(bits, slot);
            }
            at += 1;
        }
        *n_empty -= 1;
    }
}
