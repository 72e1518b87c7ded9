//! Numbers with units, as cluster files and task graphs have them: `"80 GB"`, `"3.35 TB/s"`.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::Serializer;
use serde::de;

/// What a number counts.
pub(crate) trait Unit {
    /// Spellings, with their sizes in the base unit, the smallest first.
    const UNITS: &'static [(&'static str, f64)];
    /// What it is, and an example, for messages.
    const EXPECTED: &'static str;
}

/// A finite number that is not negative, in the base unit.
pub(crate) struct Quantity<U> {
    pub(crate) value: f64,
    unit: PhantomData<U>,
}

/// Bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bytes;

/// Bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BytesPerS;

/// Floating-point operations per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct FlopPerS;

/// Nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ns;

impl Unit for Bytes {
    const UNITS: &'static [(&'static str, f64)] = &[
        ("B", 1.0),
        ("KB", 1e3),
        ("KiB", 1024.0),
        ("MB", 1e6),
        ("MiB", 1_048_576.0),
        ("GB", 1e9),
        ("GiB", 1_073_741_824.0),
        ("TB", 1e12),
        ("TiB", 1_099_511_627_776.0),
    ];
    const EXPECTED: &'static str = "a size such as \"80 GB\" or \"512 MiB\"";
}

impl Unit for BytesPerS {
    const UNITS: &'static [(&'static str, f64)] = &[
        ("B/s", 1.0),
        ("KB/s", 1e3),
        ("MB/s", 1e6),
        ("GB/s", 1e9),
        ("TB/s", 1e12),
    ];
    const EXPECTED: &'static str = "a rate such as \"3.35 TB/s\"";
}

impl Unit for FlopPerS {
    const UNITS: &'static [(&'static str, f64)] = &[
        ("FLOP/s", 1.0),
        ("KFLOP/s", 1e3),
        ("MFLOP/s", 1e6),
        ("GFLOP/s", 1e9),
        ("TFLOP/s", 1e12),
        ("PFLOP/s", 1e15),
    ];
    const EXPECTED: &'static str = "a rate such as \"67 TFLOP/s\"";
}

impl Unit for Ns {
    const UNITS: &'static [(&'static str, f64)] =
        &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    const EXPECTED: &'static str = "a time such as \"2.5 us\"";
}

impl<U: Unit> Quantity<U> {
    pub(crate) fn new(value: f64) -> Self {
        Self {
            value,
            unit: PhantomData,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let unit_at = text.find(|c: char| !(c.is_ascii_digit() || ".+-eE".contains(c)))?;
        // The `e` of an exponent is part of the number, and units have no digits.
        let (number, unit) = text.split_at(unit_at);
        let size = U::UNITS.iter().find(|(name, _)| *name == unit.trim())?.1;
        let value = number.trim().parse::<f64>().ok()? * size;
        (value.is_finite() && value >= 0.0).then(|| Self::new(value))
    }
}

impl<U> Clone for Quantity<U> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<U> Copy for Quantity<U> {}

impl<U> PartialEq for Quantity<U> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<U: Unit> fmt::Debug for Quantity<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<U: Unit> fmt::Display for Quantity<U> {
    /// Writes it in the largest unit in which it is at least one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |&&(_, size): &&(&str, f64)| self.value >= size;
        let (name, size) = U::UNITS.iter().rev().find(fits).unwrap_or(&U::UNITS[0]);
        write!(f, "{} {name}", self.value / size)
    }
}

impl<U: Unit> Serialize for Quantity<U> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, U: Unit> Deserialize<'de> for Quantity<U> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<U>(PhantomData<U>);
        impl<U: Unit> de::Visitor<'_> for Visitor<U> {
            type Value = Quantity<U>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(U::EXPECTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let unexpected = || E::invalid_value(de::Unexpected::Str(text), &self);
                Quantity::parse(text).ok_or_else(unexpected)
            }
        }
        deserializer.deserialize_str(Visitor(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_a_number_and_a_unit() {
        let bytes = |text| Quantity::<Bytes>::parse(text).map(|bytes| bytes.value);
        assert_eq!(bytes("80 GB"), Some(80e9));
        assert_eq!(bytes("1.5GiB"), Some(1.5 * 1_073_741_824.0));
        assert_eq!(bytes("1e3 B"), Some(1000.0));
        for bad in [
            "", "80", "GB", "-1 GB", "80 GB/s", "1 gb", "1e999 B", "NaN B", "1 2 B",
        ] {
            assert_eq!(bytes(bad), None, "{bad}");
        }
        let ns = |text| Quantity::<Ns>::parse(text).map(|ns| ns.value);
        assert_eq!(ns("2.5 us"), Some(2500.0));
        assert_eq!(ns("1 s"), Some(1e9));
    }

    #[test]
    fn what_is_written_is_read_again() {
        for value in [0.0, 0.5, 80.0, 1234.5, 3.35e12, 7.25e13] {
            let text = Quantity::<BytesPerS>::new(value).to_string();
            let read = Quantity::<BytesPerS>::parse(&text).unwrap().value;
            assert!((read - value).abs() <= value * 1e-15, "{text}");
        }
        assert_eq!(Quantity::<FlopPerS>::new(6.7e13).to_string(), "67 TFLOP/s");
    }
}
