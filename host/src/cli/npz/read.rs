//! Reads NumPy archives: zip files of `.npy` entries.
//!
//! The headers of entries are parsed here rather than by a general reader of Python literals: a
//! header is one short dictionary, and any malformed header must be an error.

use std::fs::File;
use std::io::BufReader;
use std::io::Read;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context;
use anyhow::Result;
use anyhow::anyhow;
use anyhow::bail;
use zip::ZipArchive;

use super::KINDS;
use super::MAGIC;
use crate::backend::cpu;
use crate::files;
use crate::tensor::Allocator;
use crate::tensor::ByteString;
use crate::tensor::DType;
use crate::tensor::HostAllocator;
use crate::tensor::PartialShape;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Longest header that is read. NumPy's own reader refuses above 10,000 bytes.
const HEADER_BYTES_MAX: usize = 64 << 10;

/// Bytes of a character in NumPy's kind `U`.
const CHARACTER_BYTES: usize = 4;

/// Memory of a string besides its bytes: a reference and the head of an allocation.
const STRING_BYTES: usize = 48;

/// An archive that is open for reading; arrays are decoded one by one, when they are read.
pub(in crate::cli) struct NpzReader {
    path: PathBuf,
    zip: ZipArchive<BufReader<File>>,
    /// Where the arrays go.
    memory: HostAllocator,
}

/// The type and shape that an array must have, as far as they are known.
#[derive(Debug)]
pub(in crate::cli) struct Wanted {
    pub(in crate::cli) dtype: DType,
    pub(in crate::cli) shape: PartialShape,
}

/// How the elements of an array are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stored {
    /// As numbers of the size of the type.
    Numbers,
    /// As strings of this many bytes, filled up with zeros (NumPy's kind `S`).
    Bytes(usize),
    /// As strings of this many characters of 4 bytes, filled up with zeros (NumPy's kind `U`).
    Characters(usize),
}

/// The header of an array.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    dtype: DType,
    stored: Stored,
    big_endian: bool,
    fortran_order: bool,
    shape: Shape,
}

impl NpzReader {
    /// Opens the archive at `path`.
    pub(in crate::cli) fn open(path: &Path) -> Result<Self> {
        let file = files::open(path).with_context(|| format!("opening {}", path.display()))?;
        let zip = ZipArchive::new(BufReader::new(file))
            .map_err(|err| anyhow!("{err}; expected an archive as numpy.savez writes it"))
            .with_context(|| format!("reading {}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            zip,
            memory: feed_memory(),
        })
    }

    /// Names of the arrays, sorted.
    pub(in crate::cli) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .zip
            .file_names()
            .filter_map(|name| name.strip_suffix(".npy"))
            .map(str::to_owned)
            .collect();
        names.sort();
        names
    }

    /// Reads the array `name`. An array of another type or shape, or one that does not fit into
    /// memory, is not decompressed.
    pub(in crate::cli) fn read(&mut self, name: &str, wanted: Option<&Wanted>) -> Result<Tensor> {
        let context = || format!("array `{name}` of {}", self.path.display());
        let mut entry = self
            .zip
            .by_name(&format!("{name}.npy"))
            .with_context(context)?;
        read_npy(&mut entry, wanted, &self.memory).with_context(context)
    }
}

/// Returns the memory of feeds: at most half of what this process may have, as devices get copies.
pub(in crate::cli) fn feed_memory() -> HostAllocator {
    HostAllocator::new("memory for feeds", cpu::system_memory_bytes() / 2)
}

/// Decodes one `.npy` stream.
fn read_npy(
    input: &mut impl Read,
    wanted: Option<&Wanted>,
    memory: &dyn Allocator,
) -> Result<Tensor> {
    let mut prefix = [0; 8];
    input
        .read_exact(&mut prefix)
        .context("the header is cut off")?;
    if &prefix[..6] != MAGIC {
        bail!("not a .npy entry: it does not start with \\x93NUMPY");
    }
    let header_len = match prefix[6] {
        1 => {
            let mut len = [0; 2];
            input
                .read_exact(&mut len)
                .context("the header is cut off")?;
            usize::from(u16::from_le_bytes(len))
        }
        2 | 3 => {
            let mut len = [0; 4];
            input
                .read_exact(&mut len)
                .context("the header is cut off")?;
            u32::from_le_bytes(len) as usize
        }
        other => bail!("unknown .npy version {other}; 1, 2 and 3 are known"),
    };
    if header_len > HEADER_BYTES_MAX {
        bail!("a header of {header_len} bytes; at most {HEADER_BYTES_MAX} are read");
    }
    let mut header = vec![0; header_len];
    input
        .read_exact(&mut header)
        .context("the header is cut off")?;
    let header = std::str::from_utf8(&header)
        .ok()
        .ok_or_else(|| anyhow!("the header is not UTF-8"))
        .and_then(parse_header)?;

    if let Some(wanted) = wanted
        && (header.dtype != wanted.dtype || !wanted.shape.matches(&header.shape))
    {
        bail!(
            "it is a {} array of shape {}, and the graph expects {} of shape {}",
            header.dtype,
            header.shape,
            wanted.dtype,
            wanted.shape
        );
    }
    let width = match header.stored {
        Stored::Numbers => None,
        Stored::Bytes(n) => Some(n),
        Stored::Characters(n) => Some(n.saturating_mul(CHARACTER_BYTES)),
    };
    if let Some(width) = width {
        return read_strings(input, &header, width, memory);
    }
    let expected = header.shape.size_bytes(header.dtype)?;
    let (dtype, shape) = (header.dtype, &header.shape);
    let said = || format!("shape {shape} of {dtype} takes {expected} bytes");
    // Pages are allocated when they are filled, so a header alone allocates nothing.
    let mut tensor = Tensor::zeros(memory, dtype, shape.clone()).with_context(said)?;
    let bytes = tensor.as_bytes_mut().context("memory of the host")?;
    read_all(input, bytes, &said)?;
    if dtype == DType::Bool
        && let Some(position) = bytes.iter().position(|&byte| byte > 1)
    {
        bail!(
            "element {position} is {}, which is not a boolean",
            bytes[position]
        );
    }
    if header.big_endian {
        swap_bytes(bytes, dtype);
    }
    if header.fortran_order {
        let mut ordered = Tensor::zeros(memory, dtype, shape.clone()).with_context(said)?;
        let to = ordered.as_bytes_mut().context("memory of the host")?;
        to_row_major(bytes, shape, element_bytes(dtype), to);
        return Ok(ordered);
    }
    Ok(tensor)
}

/// Reads the elements of an array of strings, which take `width` bytes each.
fn read_strings(
    input: &mut impl Read,
    header: &Header,
    width: usize,
    memory: &dyn Allocator,
) -> Result<Tensor> {
    let shape = &header.shape;
    let n = shape.n_elements();
    let said = || format!("shape {shape} of strings of {width} bytes");
    // Each string has an allocation of its own. Pages are allocated when they are filled.
    let with_strings = n.checked_mul(width.saturating_add(STRING_BYTES));
    let with_strings = with_strings.filter(|&bytes| isize::try_from(bytes).is_ok());
    let with_strings = with_strings
        .with_context(|| format!("{} is larger than this machine can address", said()))?;
    let mut raw = Tensor::zeros(memory, DType::U8, [with_strings].into()).with_context(said)?;
    let raw = raw.as_bytes_mut().context("memory of the host")?;
    let bytes = &mut raw[..n * width];
    read_all(input, bytes, &said)?;
    let ordered;
    let bytes = match header.fortran_order {
        true => {
            let size = Shape::new(&[bytes.len()]);
            let mut to = Tensor::zeros(memory, DType::U8, size).with_context(said)?;
            to_row_major(
                bytes,
                shape,
                width,
                to.as_bytes_mut().context("memory of the host")?,
            );
            ordered = to;
            ordered.as_bytes()?
        }
        false => bytes,
    };
    let mut strings: Vec<ByteString> = Vec::new();
    strings.try_reserve_exact(n).with_context(said)?;
    for (index, element) in bytes.chunks_exact(width).enumerate() {
        strings.push(match header.stored {
            Stored::Characters(_) => utf8(element, header.big_endian)
                .with_context(|| format!("element {index} is not Unicode"))?
                .into_bytes()
                .into(),
            _ => without_zeros(element, |&byte| byte == 0).into(),
        });
    }
    Ok(Tensor::from_strings(shape.clone(), strings)?)
}

/// Returns the elements without the zeros at the end, which NumPy does not count.
fn without_zeros<T>(elements: &[T], is_zero: impl Fn(&T) -> bool) -> &[T] {
    let n = elements.iter().rposition(|element| !is_zero(element));
    &elements[..n.map_or(0, |last| last + 1)]
}

/// Returns a string of 4 bytes per character as UTF-8; `None` if a number is not a character.
fn utf8(bytes: &[u8], big_endian: bool) -> Option<String> {
    let (numbers, _) = bytes.as_chunks::<CHARACTER_BYTES>();
    let characters = without_zeros(numbers, |number| *number == [0; CHARACTER_BYTES]).iter();
    let characters = characters.map(|&number| {
        char::from_u32(match big_endian {
            true => u32::from_be_bytes(number),
            false => u32::from_le_bytes(number),
        })
    });
    characters.collect()
}

/// Fills `bytes` with all that is left of an entry; `said` describes what it should have.
fn read_all(input: &mut impl Read, bytes: &mut [u8], said: &dyn Fn() -> String) -> Result<()> {
    let n_read = read_up_to(input, bytes).context("decompressing")?;
    if n_read < bytes.len() {
        bail!("{}, but the entry has {n_read}", said());
    }
    if read_up_to(input, &mut [0]).context("decompressing")? > 0 {
        bail!("{}, but the entry has more", said());
    }
    Ok(())
}

/// Reads until the end or until `bytes` is full, and returns the number of bytes read.
fn read_up_to(input: &mut impl Read, bytes: &mut [u8]) -> std::io::Result<usize> {
    let mut n_read = 0;
    while n_read < bytes.len() {
        match input.read(&mut bytes[n_read..]) {
            Ok(0) => break,
            Ok(n) => n_read += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(n_read)
}

fn element_bytes(dtype: DType) -> usize {
    dtype
        .size_bytes()
        .expect("the header's parser accepts only types of fixed size")
}

/// Big-endian to little-endian, in place. The two halves of a complex number are swapped each for
/// itself.
fn swap_bytes(bytes: &mut [u8], dtype: DType) {
    let width = match dtype {
        DType::Complex64 | DType::Complex128 => element_bytes(dtype) / 2,
        _ => element_bytes(dtype),
    };
    for number in bytes.chunks_exact_mut(width) {
        number.reverse();
    }
}

/// Column-major to row-major.
fn to_row_major(bytes: &[u8], shape: &Shape, element: usize, output: &mut [u8]) {
    // Other dimensions beside a zero may be huge: their product is not computed.
    if shape.n_elements() == 0 {
        return;
    }
    let dims = shape.dims();
    let mut strides = vec![0; dims.len()];
    let mut stride = element;
    for (axis, &dim) in dims.iter().enumerate() {
        strides[axis] = stride;
        stride *= dim;
    }
    let mut index = vec![0; dims.len()];
    for output in output.chunks_exact_mut(element) {
        let offset: usize = index
            .iter()
            .zip(&strides)
            .map(|(i, stride)| i * stride)
            .sum();
        output.copy_from_slice(&bytes[offset..offset + element]);
        for axis in (0..dims.len()).rev() {
            index[axis] += 1;
            if index[axis] < dims[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

/// Parses `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`, keys in any order.
fn parse_header(text: &str) -> Result<Header> {
    let malformed = || {
        anyhow!(
            "malformed header `{}`; expected {{'descr': .., 'fortran_order': .., 'shape': ..}}",
            text.trim_end().chars().take(200).collect::<String>()
        )
    };
    let mut rest = text
        .trim()
        .strip_prefix('{')
        .and_then(|inner| inner.strip_suffix('}'))
        .ok_or_else(malformed)?
        .trim();
    let (mut descr, mut fortran_order, mut dims) = (None, None, None);
    while !rest.is_empty() {
        let (key, after) = parse_quoted(rest).ok_or_else(malformed)?;
        let value = after
            .trim_start()
            .strip_prefix(':')
            .ok_or_else(malformed)?
            .trim_start();
        rest = match key {
            "descr" => {
                if value.starts_with('[') {
                    bail!("structured arrays are not supported; save each field as an array");
                }
                let (found, after) = parse_quoted(value).ok_or_else(malformed)?;
                descr = Some(found);
                after
            }
            "fortran_order" => {
                let (found, after) = match value.strip_prefix("True") {
                    Some(after) => (true, after),
                    None => (false, value.strip_prefix("False").ok_or_else(malformed)?),
                };
                fortran_order = Some(found);
                after
            }
            "shape" => {
                let (inner, after) = value
                    .strip_prefix('(')
                    .and_then(|value| value.split_once(')'))
                    .ok_or_else(malformed)?;
                let found: Option<Vec<usize>> = inner
                    .split(',')
                    .map(str::trim)
                    .filter(|dim| !dim.is_empty())
                    .map(|dim| dim.parse().ok())
                    .collect();
                dims = Some(found.ok_or_else(malformed)?);
                after
            }
            _ => return Err(malformed()),
        }
        .trim_start();
        if !rest.is_empty() {
            rest = rest.strip_prefix(',').ok_or_else(malformed)?.trim_start();
        }
    }
    let (Some(descr), Some(fortran_order), Some(dims)) = (descr, fortran_order, dims) else {
        return Err(malformed());
    };
    let (dtype, stored, big_endian) = parse_descr(descr)?;
    Ok(Header {
        dtype,
        stored,
        big_endian,
        fortran_order,
        shape: Shape::new(&dims),
    })
}

/// Parses a string in single or double quotes, and returns it with the rest.
fn parse_quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text[1..].split_once(quote)
}

/// NumPy's type string: byte order, kind, bytes per element (characters per element, for `U`).
fn parse_descr(descr: &str) -> Result<(DType, Stored, bool)> {
    let (order, kind) = match descr.chars().next() {
        Some(order @ ('<' | '>' | '|' | '=')) => (order, &descr[1..]),
        _ => ('|', descr),
    };
    let big_endian = order == '>';
    if kind.starts_with('O') {
        bail!(
            "an array of objects (`{descr}`) is a Python pickle, which is not read; save strings \
             as `array.astype('S')`, or `array.astype('U')` for str"
        );
    }
    for (letter, stored) in [
        ('S', Stored::Bytes as fn(usize) -> Stored),
        ('U', Stored::Characters),
    ] {
        if let Some(len) = kind.strip_prefix(letter) {
            let len = len.parse().ok().filter(|&len: &usize| len > 0);
            let len = len.with_context(|| format!("strings of type `{descr}` have no length"))?;
            return Ok((DType::String, stored(len), big_endian));
        }
    }
    let Some((dtype, _)) = KINDS.iter().find(|(_, known)| *known == kind) else {
        bail!(
            "element type `{descr}` is not supported; use f2 f4 f8 i1-i8 u1-u8 b1 c8 c16, or S and \
             U for strings"
        );
    };
    Ok((*dtype, Stored::Numbers, big_endian))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `.npy` stream of version 1 with this header.
    fn npy(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend(u16::try_from(header.len()).expect("short").to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn decode(header: &str, data: &[u8]) -> Result<Tensor> {
        decode_as(header, data, None)
    }

    fn decode_as(header: &str, data: &[u8], wanted: Option<&Wanted>) -> Result<Tensor> {
        read_npy(&mut npy(header, data).as_slice(), wanted, &small_memory())
    }

    /// As in a process that may have little.
    fn small_memory() -> HostAllocator {
        HostAllocator::new("memory for feeds", 1 << 20)
    }

    fn error(header: &str, data: &[u8]) -> String {
        format!("{:#}", decode(header, data).expect_err("malformed"))
    }

    #[test]
    fn big_endian_and_fortran_order_are_converted() {
        let header = "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }\n";
        // Column-major: (0,0) (1,0) (0,1) (1,1) (0,2) (1,2).
        let tensor = decode(header, &[0, 1, 0, 4, 0, 2, 0, 5, 0, 3, 0, 6]).expect("an array");
        assert_eq!(tensor.as_slice::<i16>().ok(), Some(&[1, 2, 3, 4, 5, 6][..]));

        let complex = decode(
            "{\"shape\": (1,), \"descr\": \">c8\", \"fortran_order\": False}",
            &[0x3f, 0x80, 0, 0, 0x40, 0, 0, 0],
        )
        .expect("an array");
        assert_eq!(
            complex.as_bytes().ok(),
            Some([1f32.to_le_bytes(), 2f32.to_le_bytes()].concat().as_slice())
        );
    }

    #[test]
    fn strings_end_before_their_zeros() {
        let header = "{'descr': '|S3', 'fortran_order': True, 'shape': (2, 2), }";
        let tensor = decode(header, b"abc\0\0\0d\0e\xff\0\0").expect("an array");
        let expected: [&[u8]; 4] = [b"abc", b"d\0e", b"", b"\xff"];
        let expected = expected.map(ByteString::from);
        assert_eq!(tensor.as_strings().ok(), Some(&expected[..]));

        let header = "{'descr': '>U2', 'fortran_order': False, 'shape': (2,), }";
        let data = [0, 0, 0, b'a', 0, 1, 0xf6, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let tensor = decode(header, &data).expect("an array");
        let expected = ["a\u{1f600}", ""].map(ByteString::from);
        assert_eq!(tensor.as_strings().ok(), Some(&expected[..]));
    }

    #[test]
    fn dimensions_beside_a_zero_are_not_multiplied() {
        let header =
            "{'descr': '<f4', 'fortran_order': True, 'shape': (9223372036854775807, 4, 0), }\n";
        let tensor = decode(header, &[]).expect("an empty array");
        assert_eq!(tensor.shape().n_elements(), 0);
    }

    #[test]
    fn malformed_arrays_are_errors() {
        let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";
        assert!(decode(good, &[0; 8]).is_ok());
        for (header, data, expected) in [
            (good, &[0; 7][..], "takes 8 bytes, but the entry has 7"),
            (good, &[0; 9], "takes 8 bytes, but the entry has more"),
            (
                "{'descr': '<f4', 'shape': (2,), }",
                &[0; 8],
                "malformed header",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }",
                &[],
                "malformed header",
            ),
            (
                "{'descr': '<f4', 'fortran_order': 1, 'shape': (2,), }",
                &[],
                "malformed header",
            ),
            (
                "{'descr': '<f4' 'fortran_order': False}",
                &[],
                "malformed header",
            ),
            ("((((((((", &[], "malformed header"),
            ("", &[], "malformed header"),
            (
                "{'descr': '<U5', 'fortran_order': False, 'shape': (2,), }",
                &[0; 39],
                "shape [2] of strings of 20 bytes, but the entry has 39",
            ),
            (
                "{'descr': '<U1', 'fortran_order': False, 'shape': (2,), }",
                &[b'a', 0, 0, 0, 0, 0xd8, 0, 0],
                "element 1 is not Unicode",
            ),
            (
                "{'descr': '|S0', 'fortran_order': False, 'shape': (1000000000000,), }",
                &[],
                "strings of type `|S0` have no length",
            ),
            (
                "{'descr': '|S1', 'fortran_order': False, 'shape': (100000,), }",
                &[],
                "out of memory",
            ),
            (
                "{'descr': '|S9223372036854775807', 'fortran_order': False, 'shape': (3, 1), }",
                &[],
                "larger than this machine can address",
            ),
            (
                "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }",
                &[],
                "a Python pickle, which is not read; save strings as `array.astype('S')`",
            ),
            (
                "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }",
                &[],
                "structured",
            ),
            (
                "{'descr': '<f16', 'fortran_order': False, 'shape': (2,), }",
                &[0; 32],
                "`<f16` is not supported",
            ),
            (
                "{'descr': '|b1', 'fortran_order': False, 'shape': (2,), }",
                &[1, 2],
                "element 1 is 2, which is not a boolean",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 9223372036854775807), }",
                &[],
                "larger than this machine can address",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976,), }",
                &[0; 4],
                "out of memory",
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (1000,), }",
                &[0; 4],
                "the entry has 4",
            ),
        ] {
            let found = error(header, data);
            assert!(found.contains(expected), "{header}: {found}");
        }
        for end in 0..npy(good, &[]).len() {
            assert!(
                read_npy(&mut &npy(good, &[])[..end], None, &small_memory()).is_err(),
                "cut off at byte {end}"
            );
        }
        let mut version_9 = npy(good, &[0; 8]);
        version_9[6] = 9;
        assert!(read_npy(&mut version_9.as_slice(), None, &small_memory()).is_err());
    }

    /// Counts what is read of an entry.
    struct Counted<R>(R, usize);

    impl<R: Read> Read for Counted<R> {
        fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
            let n = self.0.read(bytes)?;
            self.1 += n;
            Ok(n)
        }
    }

    #[test]
    fn what_is_not_wanted_or_does_not_fit_is_not_decompressed() {
        let wanted = &Wanted {
            dtype: DType::F32,
            shape: PartialShape::new(&[None, Some(3)]),
        };
        for (descr, dims, wanted, expected) in [
            (
                "<f4",
                "(2, 4)",
                Some(wanted),
                "it is a float array of shape [2,4], and the graph expects float of shape [?,3]",
            ),
            (
                "<f8",
                "(2, 3)",
                Some(wanted),
                "it is a double array of shape [2,3]",
            ),
            ("<f4", "(6,)", Some(wanted), "of shape [6]"),
            ("<f4", "(1073741824,)", None, "out of memory"),
        ] {
            let header =
                format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {dims}, }}");
            let stream = npy(&header, &[]);
            let mut entry = Counted(stream.chain(std::io::repeat(0)), 0);
            let error = read_npy(&mut entry, wanted, &small_memory()).expect_err("refused");
            assert!(format!("{error:#}").contains(expected), "{error:#}");
            assert_eq!(
                entry.1,
                npy(&header, &[]).len(),
                "{dims}: the header alone is read"
            );
        }
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3), }";
        assert!(decode_as(header, &[0; 12], Some(wanted)).is_ok());
    }

    #[test]
    fn a_file_that_is_no_archive_is_an_error_with_its_path() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("broken.npz");
        for content in [
            &b""[..],
            b"PK\x03\x04",
            b"not a zip file at all, only but long enough for one",
        ] {
            std::fs::write(&path, content).expect("written");
            let Err(err) = NpzReader::open(&path) else {
                panic!("{content:?} was opened");
            };
            assert!(format!("{err:#}").contains("broken.npz"), "{err:#}");
        }
        assert!(NpzReader::open(&folder.path().join("absent.npz")).is_err());
    }
}
