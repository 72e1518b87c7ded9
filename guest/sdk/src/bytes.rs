//! Sizes in bytes as people write them.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

/// Suffixes of sizes: binary with an `i`, decimal without.
const SUFFIXES: [(&str, u64); 13] = [
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

/// A number of bytes, for settings of the kind `bytes`.
///
/// Parses `4096`, `64KiB`, `1.5GiB`, `2GB`, as the program's flags do; `K`, `M`, `G` and `T` alone
/// are binary. Case does not matter.
///
/// ```
/// use placewright_guest::config::Bytes;
///
/// assert_eq!("64KiB".parse(), Ok(Bytes(65_536)));
/// assert_eq!("2GB".parse(), Ok(Bytes(2_000_000_000)));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// The reason why a string is not a size.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BytesError {
    /// It does not start with a number.
    NoNumber,
    /// Its unit is unknown.
    UnknownUnit,
    /// It is a fraction of a byte.
    Fraction,
    /// It is 2^64 bytes or more.
    TooLarge,
}

impl FromStr for Bytes {
    type Err = BytesError;

    fn from_str(text: &str) -> Result<Self, BytesError> {
        let lower = text.trim().to_ascii_lowercase();
        let end = lower
            .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')
            .unwrap_or(lower.len());
        let number = lower[..end].replace('_', "");
        let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
        if whole.is_empty() || fraction.contains('.') {
            return Err(BytesError::NoNumber);
        }
        let unit = match lower[end..].trim() {
            "" => 1,
            suffix => {
                let known = SUFFIXES.iter().find(|(name, _)| *name == suffix);
                known.ok_or(BytesError::UnknownUnit)?.1
            }
        };
        // Digits only, so the only possible error is that there are too many.
        let whole: u128 = whole.parse().map_err(|_| BytesError::TooLarge)?;
        let bytes = whole.checked_mul(u128::from(unit));
        let mut bytes = bytes.ok_or(BytesError::TooLarge)?;
        if !fraction.is_empty() {
            if unit == 1 {
                return Err(BytesError::Fraction);
            }
            // 18 digits are exact to less than a byte of the largest unit.
            let digits = &fraction[..fraction.len().min(18)];
            let numerator: u128 = digits.parse().map_err(|_| BytesError::NoNumber)?;
            let scale = 10_u128.pow(u32::try_from(digits.len()).unwrap_or(0));
            bytes += (numerator * u128::from(unit) + scale / 2) / scale;
        }
        match u64::try_from(bytes) {
            Ok(bytes) => Ok(Self(bytes)),
            Err(_) => Err(BytesError::TooLarge),
        }
    }
}

impl fmt::Display for BytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoNumber | Self::Fraction => "a size such as 4096, 64KiB, 1.5GiB or 2GB",
            Self::UnknownUnit => "a unit such as KiB, MiB, GiB, KB, MB or GB",
            Self::TooLarge => "less than 2^64 bytes",
        })
    }
}

impl Error for BytesError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_with_binary_and_decimal_units() {
        for (text, expected) in [
            ("0", 0),
            ("4096", 4096),
            ("1_000", 1000),
            ("1KiB", 1024),
            ("1k", 1024),
            ("1KB", 1000),
            ("2gb", 2_000_000_000),
            ("1.5GiB", 3 << 29),
            ("0.1KB", 100),
            ("0.0005KB", 1),
            ("3 MiB", 3 << 20),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(expected)), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_refused() {
        use BytesError::{Fraction, NoNumber, TooLarge, UnknownUnit};
        for (text, expected) in [
            ("", NoNumber),
            ("GiB", NoNumber),
            (".5GiB", NoNumber),
            ("1..5MiB", NoNumber),
            ("1.2.3MiB", NoNumber),
            ("-1", NoNumber),
            ("1e3", UnknownUnit),
            ("1 parsec", UnknownUnit),
            ("nan", NoNumber),
            ("1.5", Fraction),
            ("18446744073709551616", TooLarge),
            ("99999999999TiB", TooLarge),
            ("999999999999999999999999999999999999999TiB", TooLarge),
            ("17000000TiB", TooLarge),
        ] {
            assert_eq!(text.parse::<Bytes>(), Err(expected), "{text}");
        }
    }
}
