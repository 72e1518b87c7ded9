//! Slices of tensors: the parts that a partitioned variable is stored as.

use super::proto;
use crate::tensor::Shape;

/// A part of a tensor: per dimension the first index and the number of indices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slice(pub(super) Vec<(usize, usize)>);

impl Slice {
    /// Returns all of a tensor.
    pub(super) fn whole(shape: &Shape) -> Self {
        Self(shape.dims().iter().map(|&size| (0, size)).collect())
    }

    /// Returns a stored slice of a tensor of this shape.
    pub(super) fn of_proto(proto: &proto::TensorSlice, shape: &Shape) -> Option<Self> {
        if proto.extent.len() != shape.rank() {
            return None;
        }
        let extents = proto.extent.iter().zip(shape.dims());
        let bounds = extents.map(|(extent, &size)| match extent.length {
            None => Some((0, size)),
            Some(length) => within(
                usize::try_from(extent.start).ok()?,
                usize::try_from(length).ok()?,
                size,
            ),
        });
        bounds.collect::<Option<_>>().map(Self)
    }

    /// Parses the slice of TensorFlow's `shape_and_slices`: `4 10 0,2:-` is the first two rows of
    /// shape `[4,10]`. Returns the shape of the whole tensor, too; `None` if the text is malformed.
    pub(super) fn parse(text: &str) -> Option<(Shape, Self)> {
        let (dims, slice) = text.rsplit_once(' ').unwrap_or(("", text));
        let dims = dims.split_whitespace().map(str::parse);
        let shape: Shape = dims
            .collect::<Result<Vec<usize>, _>>()
            .ok()?
            .into_iter()
            .collect();
        let parts: Vec<&str> = match slice.is_empty() {
            true => Vec::new(),
            false => slice.split(':').collect(),
        };
        if parts.len() != shape.rank() {
            return None;
        }
        let bounds = parts.iter().zip(shape.dims()).map(|(&part, &size)| {
            if part == "-" {
                return Some((0, size));
            }
            let (start, length) = part.split_once(',')?;
            within(start.parse().ok()?, length.parse().ok()?, size)
        });
        let slice = Self(bounds.collect::<Option<_>>()?);
        Some((shape, slice))
    }

    /// Returns the stored form of a text that [`Self::parse`] takes: all of a dimension has no
    /// length.
    pub(super) fn proto(text: &str) -> proto::TensorSlice {
        let slice = text.rsplit_once(' ').map_or(text, |(_, slice)| slice);
        let parts = slice.split(':').filter(|part| !part.is_empty());
        let extent = |part: &str| {
            let (start, length) = part.split_once(',')?;
            Some(proto::Extent {
                start: start.parse().ok()?,
                length: Some(length.parse().ok()?),
            })
        };
        proto::TensorSlice {
            extent: parts.map(|part| extent(part).unwrap_or_default()).collect(),
        }
    }

    pub(super) fn shape(&self) -> Shape {
        self.0.iter().map(|&(_, length)| length).collect()
    }

    pub(super) fn n_elements(&self) -> usize {
        self.shape().n_elements()
    }

    /// Returns what two slices have in common; `None` if nothing.
    pub(super) fn intersection(&self, other: &Self) -> Option<Self> {
        let pairs = self.0.iter().zip(&other.0);
        let common = pairs.map(|(&(start, length), &(other_start, other_length))| {
            let first = start.max(other_start);
            let end = (start + length).min(other_start + other_length);
            (first < end).then(|| (first, end - first))
        });
        common.collect::<Option<_>>().map(Self)
    }

    /// Copies a part from the bytes of slice `from` to those of `self`, both row-major. Both
    /// contain the part.
    pub(super) fn copy_part(
        &self,
        part: &Self,
        from: &Self,
        source: &[u8],
        target: &mut [u8],
        element_bytes: usize,
    ) {
        let Some((&(_, row), outer)) = part.0.split_last() else {
            target.copy_from_slice(source);
            return;
        };
        let row_bytes = row * element_bytes;
        let mut index: Vec<usize> = outer.iter().map(|&(start, _)| start).collect();
        index.extend(part.0.last().map(|&(start, _)| start));
        loop {
            let to = self.position(&index) * element_bytes;
            let at = from.position(&index) * element_bytes;
            target[to..to + row_bytes].copy_from_slice(&source[at..at + row_bytes]);
            // The next row, in row-major order.
            let mut axis = outer.len();
            loop {
                let Some(previous) = axis.checked_sub(1) else {
                    return;
                };
                axis = previous;
                let (start, length) = outer[axis];
                index[axis] += 1;
                if index[axis] < start + length {
                    break;
                }
                index[axis] = start;
            }
        }
    }

    /// Returns the position of an element of the tensor among those of the slice.
    fn position(&self, index: &[usize]) -> usize {
        let dims = self.0.iter().zip(index);
        dims.fold(0, |position, (&(start, length), &index)| {
            position * length + (index - start)
        })
    }
}

fn within(start: usize, length: usize, size: usize) -> Option<(usize, usize)> {
    (start.checked_add(length)? <= size).then_some((start, length))
}

/// Returns the key of a stored slice (TensorFlow's `EncodeTensorNameSlice`), in an encoding whose
/// order is that of names and numbers.
pub(super) fn key(name: &str, slice: &proto::TensorSlice) -> Vec<u8> {
    let mut key = vec![0];
    for &byte in name.as_bytes() {
        match byte {
            0 => key.extend([0, 0xff]),
            0xff => key.extend([0xff, 0]),
            _ => key.push(byte),
        }
    }
    key.extend([0, 1]);
    unsigned(&mut key, slice.extent.len() as u64);
    for extent in &slice.extent {
        signed(&mut key, extent.start);
        signed(&mut key, extent.length.unwrap_or(-1));
    }
    key
}

fn unsigned(key: &mut Vec<u8>, value: u64) {
    let bytes = value.to_be_bytes();
    let n_zero = bytes.iter().take_while(|&&byte| byte == 0).count();
    let significant = &bytes[n_zero..];
    key.push(u8::try_from(significant.len()).unwrap_or(8));
    key.extend_from_slice(significant);
}

/// The number of leading ones, flipped for negative numbers, is the number of bytes.
fn signed(key: &mut Vec<u8>, value: i64) {
    let magnitude = if value < 0 { !value } else { value };
    let n_bits = 64 - magnitude.leading_zeros() as usize;
    let n_bytes = n_bits / 7 + 1;
    let sign = if value < 0 { 0xff } else { 0 };
    let mut bytes = [sign; 10];
    bytes[2..].copy_from_slice(&value.to_be_bytes());
    let bytes = &mut bytes[10 - n_bytes..];
    let header = !(u16::MAX >> n_bytes.min(10));
    let [high, low] = header.to_be_bytes();
    bytes[0] ^= high;
    if let Some(second) = bytes.get_mut(1) {
        *second ^= low;
    }
    key.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(value: i64) -> Vec<u8> {
        let mut key = Vec::new();
        signed(&mut key, value);
        key
    }

    #[test]
    fn numbers_are_encoded_in_their_order() {
        assert_eq!(encoded(0), [0x80]);
        assert_eq!(encoded(-1), [0x7f]);
        assert_eq!(encoded(63), [0xbf]);
        assert_eq!(encoded(64), [0xc0, 64]);
        assert_eq!(encoded(-65), [0x3f, 0xbf]);
        let values = [
            i64::MIN,
            -1 << 40,
            -8193,
            -65,
            -64,
            -1,
            0,
            5,
            63,
            64,
            8192,
            1 << 40,
            i64::MAX,
        ];
        let keys = values.map(encoded);
        assert!(keys.is_sorted(), "{keys:?}");
    }

    #[test]
    fn strings_of_slices_are_parsed() {
        let (shape, slice) = Slice::parse("4 10 0,2:-").unwrap();
        assert_eq!(shape, Shape::new(&[4, 10]));
        assert_eq!(slice.0, [(0, 2), (0, 10)]);
        for text in ["4 10 0,2", "4 10 3,2:-", "4 x 0,2:-", "4 0", "4 -1,2"] {
            assert_eq!(Slice::parse(text), None, "{text}");
        }
    }

    #[test]
    fn parts_are_copied_row_by_row() {
        let whole = Slice::whole(&Shape::new(&[3, 4]));
        let part = Slice(vec![(1, 2), (1, 2)]);
        let source: Vec<u8> = (0..12).collect();
        let mut target = [0; 4];
        part.copy_part(&part, &whole, &source, &mut target, 1);
        assert_eq!(target, [5, 6, 9, 10]);
        let mut back = [0; 12];
        whole.copy_part(&part, &part, &target, &mut back, 1);
        assert_eq!(back, [0, 0, 0, 0, 0, 5, 6, 0, 0, 9, 10, 0]);
    }
}
