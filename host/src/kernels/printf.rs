//! Numbers as C's `printf` writes them (TensorFlow `AsString`).

/// A conversion specification without its letter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Format {
    /// `' '`, `+`, `-`, `0` or `#`.
    pub flag: Option<u8>,
    /// The minimum number of characters.
    pub width: usize,
    /// The number of digits after the point, or of significant ones.
    pub precision: Option<usize>,
}

/// How floating-point numbers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notation {
    /// `%f`
    Fixed,
    /// `%e`
    Scientific,
    /// `%g`
    Shortest,
}

impl Format {
    /// Writes an integer (`%d`). A precision is the minimum number of digits.
    pub fn integer(self, value: i128) -> String {
        // 128-bit numbers are slow to write, and those of tensors have at most 64.
        let mut digits = match u64::try_from(value.unsigned_abs()) {
            Ok(value) => value.to_string(),
            Err(_) => value.unsigned_abs().to_string(),
        };
        if let Some(precision) = self.precision {
            if precision == 0 && value == 0 {
                digits.clear();
            }
            digits.insert_str(0, &zeros(precision.saturating_sub(digits.len())));
        }
        self.padded(value < 0, digits, self.precision.is_none())
    }

    /// Writes a floating-point number.
    pub fn float(self, value: f64, notation: Notation) -> String {
        let is_negative = value.is_sign_negative();
        if !value.is_finite() {
            let name = if value.is_nan() { "nan" } else { "inf" };
            return self.padded(is_negative, name.to_owned(), false);
        }
        let precision = self.precision.unwrap_or(6);
        let value = value.abs();
        let has_point = self.flag == Some(b'#');
        let digits = match notation {
            Notation::Fixed => with_point(format!("{value:.precision$}"), has_point),
            Notation::Scientific => {
                let (mantissa, exponent) = scientific(value, precision);
                exponential(&with_point(mantissa, has_point), exponent)
            }
            Notation::Shortest => general(value, precision.max(1), has_point),
        };
        self.padded(is_negative, digits, true)
    }

    /// Writes a string (`%s`), which may be bytes of any kind.
    pub fn string(self, value: &[u8], out: &mut impl Extend<u8>) {
        let len = self
            .precision
            .map_or(value.len(), |precision| precision.min(value.len()));
        // C's strings end at a zero.
        let end = value
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(value.len());
        let value = &value[..len.min(end)];
        let padding = std::iter::repeat_n(b' ', self.width.saturating_sub(value.len()));
        if self.flag == Some(b'-') {
            out.extend(value.iter().copied());
            out.extend(padding);
        } else {
            out.extend(padding);
            out.extend(value.iter().copied());
        }
    }

    /// Adds the sign, and fills up to the width.
    fn padded(self, is_negative: bool, digits: String, may_have_zeros: bool) -> String {
        let sign = match (is_negative, self.flag) {
            (true, _) => "-",
            (false, Some(b'+')) => "+",
            (false, Some(b' ')) => " ",
            _ => "",
        };
        let missing = self.width.saturating_sub(sign.len() + digits.len());
        if missing == 0 && sign.is_empty() {
            return digits;
        }
        match self.flag {
            Some(b'-') => format!("{sign}{digits}{}", spaces(missing)),
            Some(b'0') if may_have_zeros => format!("{sign}{}{digits}", zeros(missing)),
            _ => format!("{}{sign}{digits}", spaces(missing)),
        }
    }
}

fn zeros(n: usize) -> String {
    format!("{:0<n$}", "")
}

fn spaces(n: usize) -> String {
    format!("{:n$}", "")
}

/// Adds a point to a number without one, if `has_point` (flag `#`).
fn with_point(mut number: String, has_point: bool) -> String {
    if has_point && !number.contains('.') {
        number.push('.');
    }
    number
}

/// Returns the mantissa, with this many digits after the point, and the exponent.
fn scientific(value: f64, precision: usize) -> (String, i32) {
    let number = format!("{value:.precision$e}");
    let (mantissa, exponent) = number.split_once('e').unwrap_or((&number, "0"));
    (mantissa.to_owned(), exponent.parse().unwrap_or(0))
}

fn exponential(mantissa: &str, exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Writes `%g`: as many significant digits, without zeros at the end unless `keeps_zeros`.
fn general(value: f64, digits: usize, keeps_zeros: bool) -> String {
    let without_zeros = |number: String| match number.contains('.') && !keeps_zeros {
        true => number
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned(),
        false => with_point(number, keeps_zeros),
    };
    let (mantissa, exponent) = scientific(value, digits - 1);
    let is_fixed = exponent >= -4 && usize::try_from(exponent).is_ok_and(|e| e < digits)
        || (-4..0).contains(&exponent);
    if !is_fixed {
        return exponential(&without_zeros(mantissa), exponent);
    }
    let places = i32::try_from(digits - 1)
        .unwrap_or(i32::MAX)
        .saturating_sub(exponent);
    let places = usize::try_from(places).unwrap_or(0);
    without_zeros(format!("{value:.places$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_look_like_cs() {
        let format = |flag: Option<u8>, width, precision| Format {
            flag,
            width,
            precision,
        };
        let plain = Format::default();
        assert_eq!(plain.integer(-5), "-5");
        assert_eq!(format(Some(b'0'), 5, None).integer(-5), "-0005");
        assert_eq!(format(Some(b'-'), 5, None).integer(5), "5    ");
        assert_eq!(format(Some(b'+'), 4, None).integer(5), "  +5");
        assert_eq!(format(None, 0, Some(3)).integer(-5), "-005");
        assert_eq!(format(Some(b'0'), 6, Some(3)).integer(5), "   005");
        assert_eq!(plain.float(1.5, Notation::Fixed), "1.500000");
        assert_eq!(plain.float(-0.0, Notation::Fixed), "-0.000000");
        assert_eq!(plain.float(12345.678, Notation::Scientific), "1.234568e+04");
        assert_eq!(plain.float(1e-100, Notation::Scientific), "1.000000e-100");
        assert_eq!(plain.float(0.0001, Notation::Shortest), "0.0001");
        assert_eq!(plain.float(0.00001, Notation::Shortest), "1e-05");
        assert_eq!(
            plain.float(123_456_789.0, Notation::Shortest),
            "1.23457e+08"
        );
        assert_eq!(plain.float(100_000.0, Notation::Shortest), "100000");
        assert_eq!(
            format(Some(b'#'), 0, None).float(1.0, Notation::Shortest),
            "1.00000"
        );
        assert_eq!(
            format(Some(b'0'), 8, Some(1)).float(-1.25, Notation::Fixed),
            "-00001.2"
        );
        assert_eq!(
            format(Some(b'0'), 6, None).float(f64::NEG_INFINITY, Notation::Fixed),
            "  -inf"
        );
        assert_eq!(plain.float(f64::NAN, Notation::Shortest), "nan");
    }
}
