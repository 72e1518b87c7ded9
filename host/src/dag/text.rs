//! Parts of JSON files that know where they are, and numbers with or without units.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ops::Range;

use serde::Deserialize;
use serde::Deserializer;
use serde::de;
use serde::de::IntoDeserializer;

use super::error::TaskGraphError;
use crate::cluster::Place;
use crate::cluster::quantity::Quantity;
use crate::cluster::quantity::Unit;

/// A string of a file. Without escapes, it is a part of the file's text, and so has a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name<'f>(Cow<'f, str>);

impl Deref for Name<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'f> Name<'f> {
    /// Returns where it is in the text of the file.
    pub(super) fn offset(&self, file: &str) -> Option<usize> {
        match &self.0 {
            Cow::Borrowed(part) => {
                let start = part.as_ptr().addr().checked_sub(file.as_ptr().addr())?;
                (start <= file.len()).then_some(start)
            }
            // As it is usually escaped.
            Cow::Owned(text) => file.find(&serde_json::to_string(text).ok()?),
        }
    }

    /// Returns an error about it.
    pub(super) fn invalid(&self, file: &str, problem: impl Into<String>) -> TaskGraphError {
        let span = self.offset(file).map(|start| start..start + self.len());
        TaskGraphError::Invalid {
            place: Place::of(file, span),
            problem: problem.into(),
        }
    }

    pub(super) fn into_inner(self) -> Cow<'f, str> {
        self.0
    }
}

impl<'de: 'f, 'f> Deserialize<'de> for Name<'f> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

/// Longer names are cut in messages.
const SHOWN_MAX: usize = 60;

/// Shows a name in a message.
pub(super) struct Shown<'a>(pub(super) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(SHOWN_MAX) {
            None => write!(f, "`{}`", self.0),
            Some((end, _)) => write!(f, "`{}..`", &self.0[..end]),
        }
    }
}

/// A number in the base unit, or a string of a number and a unit.
#[derive(Debug)]
pub(super) struct Amount<U>(f64, PhantomData<U>);

impl<U> Amount<U> {
    /// Returns it in the base unit: finite, and not negative.
    pub(super) fn value(&self) -> f64 {
        self.0
    }
}

impl<U> Default for Amount<U> {
    fn default() -> Self {
        Self(0.0, PhantomData)
    }
}

impl<'de, U: Unit> Deserialize<'de> for Amount<U> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<U>(PhantomData<U>);
        impl<U: Unit> de::Visitor<'_> for Visitor<U> {
            type Value = Amount<U>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let base = U::UNITS.first().map_or("", |(name, _)| name);
                write!(f, "{}, or a number of {base}, from 0", U::EXPECTED)
            }

            #[expect(clippy::cast_precision_loss, reason = "amounts are approximate")]
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Amount<U>, E> {
                Ok(Amount(number as f64, PhantomData))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Amount<U>, E> {
                match u64::try_from(number) {
                    Ok(number) => self.visit_u64(number),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Signed(number), &self)),
                }
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Amount<U>, E> {
                match number.is_finite() && number >= 0.0 {
                    true => Ok(Amount(number, PhantomData)),
                    false => Err(E::invalid_value(de::Unexpected::Float(number), &self)),
                }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Amount<U>, E> {
                let quantity = Quantity::<U>::deserialize(text.into_deserializer());
                quantity.map(|quantity| Amount(quantity.value, PhantomData))
            }
        }
        deserializer.deserialize_any(Visitor(PhantomData))
    }
}

/// Bytes of a line that are shown before the place of an error.
const CONTEXT_BYTES: usize = 40;

/// Parses a JSON file.
pub(super) fn parse<'f, T: Deserialize<'f>>(file: &'f str) -> Result<T, TaskGraphError> {
    serde_json::from_str(file).map_err(|error| {
        let message = error.to_string();
        let end = format!(" at line {} column {}", error.line(), error.column());
        TaskGraphError::Invalid {
            place: Place::of(file, span(file, error.line(), error.column())),
            problem: message.strip_suffix(&end).unwrap_or(&message).to_owned(),
        }
    })
}

/// Returns the bytes before a position, which serde_json states as a line and a byte of it, from 1.
fn span(file: &str, line: usize, column: usize) -> Option<Range<usize>> {
    let newlines = file.match_indices('\n');
    let start = match line.checked_sub(2) {
        None => 0,
        Some(before) => newlines.map(|(at, _)| at + 1).nth(before)?,
    };
    let end = file.len().min(start.saturating_add(column));
    let context = end.saturating_sub(CONTEXT_BYTES).max(start);
    Some(file.floor_char_boundary(context)..end)
}

/// Finds the numbers of lines, in one pass if the places ascend.
pub(super) struct Lines<'f> {
    file: &'f str,
    at: usize,
    line: u32,
}

impl<'f> Lines<'f> {
    pub(super) fn new(file: &'f str) -> Self {
        Self {
            file,
            at: 0,
            line: 1,
        }
    }

    /// Returns the line of a name, from 1; 0 if it is unknown.
    pub(super) fn of(&mut self, name: &Name<'_>) -> u32 {
        // Names with escapes would be searched for.
        let offset = match name.0 {
            Cow::Borrowed(_) => name.offset(self.file),
            Cow::Owned(_) => None,
        };
        let Some(offset) = offset else {
            return 0;
        };
        if offset < self.at {
            (self.at, self.line) = (0, 1);
        }
        let between = &self.file.as_bytes()[self.at..offset];
        let n_lines = between.iter().filter(|&&byte| byte == b'\n').count();
        self.line = self
            .line
            .saturating_add(u32::try_from(n_lines).unwrap_or(u32::MAX));
        self.at = offset;
        self.line
    }
}
