//! Sizes in bytes and times as people write and read them.

use anyhow::Result;
use anyhow::bail;

pub(super) use crate::tensor::show_bytes;

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

/// Parses `4096`, `64KiB`, `1.5GiB`, `2GB`; `K`, `M`, `G` and `T` alone are binary. Case does not
/// matter.
pub(super) fn parse_bytes(text: &str) -> Result<u64> {
    let expected = "expected a size such as 4096, 64KiB, 1.5GiB or 2GB";
    let lower = text.trim().to_ascii_lowercase();
    let end = lower
        .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')
        .unwrap_or(lower.len());
    let number = lower[..end].replace('_', "");
    let suffix = lower[end..].trim();
    let unit = if suffix.is_empty() {
        1
    } else {
        match SUFFIXES.iter().find(|(name, _)| *name == suffix) {
            Some((_, unit)) => *unit,
            None => bail!("`{text}` has an unknown unit; {expected}"),
        }
    };
    if let Ok(whole) = number.parse::<u64>() {
        return match whole.checked_mul(unit) {
            Some(bytes) => Ok(bytes),
            None => bail!("`{text}` is more than 2^64 bytes"),
        };
    }
    match number.parse::<f64>() {
        Ok(value) if unit > 1 => {
            #[expect(
                clippy::cast_precision_loss,
                reason = "units are powers of 2 or 10 below 2^53"
            )]
            let bytes = value * unit as f64;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "checked to be in range; a number without a sign is not negative"
            )]
            if bytes < 9e18 {
                Ok(bytes.round() as u64)
            } else {
                bail!("`{text}` is more than 2^63 bytes")
            }
        }
        _ => bail!("`{text}` is not a valid size; {expected}"),
    }
}

/// Shows a time as `1.23 ms` or `45.6 us`, with three significant digits.
pub(super) fn show_ns(ns: f64) -> String {
    if !ns.is_finite() {
        return "never".to_owned();
    }
    let (value, unit) = match ns.abs() {
        x if x < 1e3 => (ns, "ns"),
        x if x < 1e6 => (ns / 1e3, "us"),
        x if x < 1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    match value.abs() {
        x if x < 10.0 => format!("{value:.2} {unit}"),
        x if x < 100.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}

/// Shows a difference of times with its sign, such as `-1.23 ms`.
pub(super) fn show_change_ns(ns: f64) -> String {
    let sign = if ns > 0.0 { "+" } else { "" };
    format!("{sign}{}", show_ns(ns))
}

/// Shows a count as `1 node` or `12 nodes`.
pub(super) fn count(n: usize, noun: &str) -> String {
    if n == 1 {
        format!("1 {noun}")
    } else {
        format!("{n} {noun}s")
    }
}

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
            ("3 MiB", 3 << 20),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text).ok(), Some(expected), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for text in [
            "",
            "GiB",
            "-1",
            "1.5",
            "1e3",
            "1 parsec",
            "1..5MiB",
            "99999999999TiB",
            "17000000TiB",
            "nan",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_shown_with_their_unit() {
        assert_eq!(show_bytes(640), "640 B");
        assert_eq!(show_bytes(3 << 19), "1.5 MiB");
        assert_eq!(show_ns(999.0), "999 ns");
        assert_eq!(show_ns(1_234.0), "1.23 us");
        assert_eq!(show_ns(45_600_000.0), "45.6 ms");
        assert_eq!(show_ns(2.5e9), "2.50 s");
        assert_eq!(show_ns(f64::INFINITY), "never");
        assert_eq!(show_change_ns(1_234.0), "+1.23 us");
        assert_eq!(show_change_ns(-999.0), "-999 ns");
        assert_eq!(show_change_ns(0.0), "0.00 ns");
        assert_eq!(count(1, "node"), "1 node");
        assert_eq!(count(0, "node"), "0 nodes");
    }
}
