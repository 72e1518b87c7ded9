//! Messages of type `tf.train.Example`, read where they lie.
//!
//! An example has `Features`, a map from names to features. A feature is one of three lists: of
//! bytes, of floats or of integers.

use prost::encoding::DecodeContext;
use prost::encoding::WireType;
use prost::encoding::decode_key;
use prost::encoding::decode_varint;
use prost::encoding::skip_field;

use crate::tensor::DType;

/// A message that is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl From<prost::DecodeError> for Malformed {
    fn from(_: prost::DecodeError) -> Self {
        Self
    }
}

/// What a feature is a list of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bytes,
    Floats,
    Ints,
}

/// The values of a feature.
#[derive(Debug, Clone, Copy)]
pub struct Feature<'a> {
    kind: Kind,
    list: &'a [u8],
    n: usize,
}

impl<'a> Feature<'a> {
    /// Reads a message `Feature`. Returns `None` if it has no list.
    fn read(message: &'a [u8]) -> Result<Option<Self>, Malformed> {
        let mut found = None;
        each_field(message, |number, list| {
            let kind = match number {
                1 => Kind::Bytes,
                2 => Kind::Floats,
                3 => Kind::Ints,
                _ => return Ok(()),
            };
            let mut n = 0;
            match kind {
                Kind::Bytes => each_string(list, |_| n += 1)?,
                Kind::Floats => each_float(list, |_| n += 1)?,
                Kind::Ints => each_int(list, |_| n += 1)?,
            }
            found = Some(Self { kind, list, n });
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns the type of the values.
    pub fn dtype(&self) -> DType {
        match self.kind {
            Kind::Bytes => DType::String,
            Kind::Floats => DType::F32,
            Kind::Ints => DType::I64,
        }
    }

    /// Returns the number of values.
    pub fn n_values(&self) -> usize {
        self.n
    }

    /// Calls `visit` with each string; a feature of another type has none.
    pub fn strings(&self, visit: impl FnMut(&'a [u8])) {
        if self.kind == Kind::Bytes {
            // Read before without an error.
            each_string(self.list, visit).ok();
        }
    }

    /// Calls `visit` with each float; a feature of another type has none.
    pub fn floats(&self, visit: impl FnMut(f32)) {
        if self.kind == Kind::Floats {
            each_float(self.list, visit).ok();
        }
    }

    /// Calls `visit` with each integer; a feature of another type has none.
    pub fn ints(&self, visit: impl FnMut(i64)) {
        if self.kind == Kind::Ints {
            each_int(self.list, visit).ok();
        }
    }
}

/// Calls `visit` with the name of each feature of an example, and the feature. Features without a
/// list are left out.
///
/// # Errors
/// [`Malformed`] if the bytes are no example.
pub fn each_feature<'a>(
    example: &'a [u8],
    mut visit: impl FnMut(&'a [u8], Feature<'a>),
) -> Result<(), Malformed> {
    each_field(example, |number, features| {
        if number != 1 {
            return Ok(());
        }
        each_field(features, |number, entry| {
            if number != 1 {
                return Ok(());
            }
            let (mut name, mut feature) = (&[][..], None);
            each_field(entry, |number, content| {
                match number {
                    1 => name = content,
                    2 => feature = Feature::read(content)?,
                    _ => {}
                }
                Ok(())
            })?;
            if let Some(feature) = feature {
                visit(name, feature);
            }
            Ok(())
        })
    })
}

/// Takes a field's content with its length before it.
fn taken<'a>(message: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let n = usize::try_from(decode_varint(message)?).map_err(|_| Malformed)?;
    let (content, rest) = message.split_at_checked(n).ok_or(Malformed)?;
    *message = rest;
    Ok(content)
}

/// Calls `visit` with the number and the content of each field that has a length.
fn each_field<'a>(
    mut message: &'a [u8],
    mut visit: impl FnMut(u32, &'a [u8]) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    while !message.is_empty() {
        let (number, wire) = decode_key(&mut message)?;
        match wire {
            WireType::LengthDelimited => visit(number, taken(&mut message)?)?,
            _ => skip_field(wire, number, &mut message, DecodeContext::default())?,
        }
    }
    Ok(())
}

fn each_string<'a>(list: &'a [u8], mut visit: impl FnMut(&'a [u8])) -> Result<(), Malformed> {
    each_field(list, |number, string| {
        if number == 1 {
            visit(string);
        }
        Ok(())
    })
}

fn each_float(mut list: &[u8], mut visit: impl FnMut(f32)) -> Result<(), Malformed> {
    while !list.is_empty() {
        match decode_key(&mut list)? {
            (1, WireType::LengthDelimited) => {
                let (floats, rest) = taken(&mut list)?.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(Malformed);
                }
                floats
                    .iter()
                    .for_each(|&bytes| visit(f32::from_le_bytes(bytes)));
            }
            (1, WireType::ThirtyTwoBit) => {
                let (&bytes, rest) = list.split_first_chunk().ok_or(Malformed)?;
                list = rest;
                visit(f32::from_le_bytes(bytes));
            }
            (number, wire) => skip_field(wire, number, &mut list, DecodeContext::default())?,
        }
    }
    Ok(())
}

fn each_int(mut list: &[u8], mut visit: impl FnMut(i64)) -> Result<(), Malformed> {
    while !list.is_empty() {
        match decode_key(&mut list)? {
            (1, WireType::LengthDelimited) => {
                let mut ints = taken(&mut list)?;
                while !ints.is_empty() {
                    visit(decode_varint(&mut ints)?.cast_signed());
                }
            }
            (1, WireType::Varint) => visit(decode_varint(&mut list)?.cast_signed()),
            (number, wire) => skip_field(wire, number, &mut list, DecodeContext::default())?,
        }
    }
    Ok(())
}
