//! Compares computed tensors with expected ones, as `numpy.testing.assert_allclose` does.

use serde::Serialize;

use super::values::shown;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// How far a value may be from the expected one: `|found - expected| <= atol + rtol * |expected|`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tolerance {
    /// Absolute part.
    pub(super) atol: f64,
    /// Part relative to the expected value.
    pub(super) rtol: f64,
}

/// The comparison of one tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Comparison {
    /// Whether every element is within the tolerance.
    pub(super) matches: bool,
    /// Elements compared.
    pub(super) n_elements: usize,
    /// Elements out of tolerance.
    pub(super) n_mismatches: usize,
    /// Largest absolute error; infinite if one side is NaN or infinite and the other is not.
    #[serde(serialize_with = "finite_or_text")]
    pub(super) max_abs_error: f64,
    /// Largest error relative to the expected value, among expected values other than 0.
    #[serde(serialize_with = "finite_or_text")]
    pub(super) max_rel_error: f64,
    /// The element of the largest absolute error; `None` without elements.
    pub(super) worst: Option<Worst>,
    /// Why the tensors cannot be compared element by element, if they cannot.
    pub(super) incomparable: Option<String>,
}

/// The element of largest absolute error.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Worst {
    /// Its index, per dimension.
    pub(super) index: Vec<usize>,
    /// The computed value.
    #[serde(serialize_with = "finite_or_text")]
    pub(super) found: f64,
    /// The expected value.
    #[serde(serialize_with = "finite_or_text")]
    pub(super) expected: f64,
}

/// JSON has no infinities and no NaN.
fn finite_or_text<S: serde::Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() {
        serializer.serialize_f64(*value)
    } else {
        serializer.collect_str(value)
    }
}

/// Compares element by element. Type and shape must be equal. NaN matches NaN at the same place and
/// nothing else; an infinity matches itself.
///
/// # Errors
/// [`TensorError`] if an element cannot be read on the host.
pub(super) fn compare(
    found: &Tensor,
    expected: &Tensor,
    tolerance: Tolerance,
) -> Result<Comparison, TensorError> {
    let incomparable = if found.dtype() != expected.dtype() {
        Some(format!(
            "type is {}, expected {}",
            found.dtype(),
            expected.dtype()
        ))
    } else if found.shape() != expected.shape() {
        Some(format!(
            "shape is {}, expected {}",
            found.shape(),
            expected.shape()
        ))
    } else {
        None
    };
    if incomparable.is_some() {
        return Ok(Comparison {
            matches: false,
            n_elements: 0,
            n_mismatches: 0,
            max_abs_error: f64::INFINITY,
            max_rel_error: f64::INFINITY,
            worst: None,
            incomparable,
        });
    }

    if found.dtype() == DType::String {
        return compare_strings(found, expected);
    }
    let (found_values, expected_values) = (Numbers::of(found)?, Numbers::of(expected)?);
    let mut n_mismatches = 0;
    let (mut max_abs_error, mut max_rel_error) = (0.0f64, 0.0f64);
    let mut worst = None;
    for position in 0..found_values.len() {
        let error = found_values.abs_error(&expected_values, position);
        let b = expected_values.get(position);
        // An infinite error is never within, although `rtol * infinity` is infinite too.
        let within = error == 0.0
            || (error.is_finite() && error <= tolerance.atol + tolerance.rtol * b.abs());
        if !within {
            n_mismatches += 1;
        }
        if worst.is_none() || error > max_abs_error {
            worst = Some(position);
            max_abs_error = error;
        }
        if b != 0.0 && error > 0.0 {
            let relative = if b.is_finite() {
                error / b.abs()
            } else {
                error
            };
            max_rel_error = max_rel_error.max(relative);
        }
    }
    let n_elements = found_values.len();
    Ok(Comparison {
        matches: n_mismatches == 0,
        n_elements,
        n_mismatches,
        max_abs_error,
        max_rel_error,
        worst: worst.map(|position| Worst {
            index: index_of(position, found, n_elements),
            found: found_values.get(position),
            expected: expected_values.get(position),
        }),
        incomparable: None,
    })
}

/// Compares strings of equal shape, which are equal or not.
fn compare_strings(found: &Tensor, expected: &Tensor) -> Result<Comparison, TensorError> {
    let pairs = || -> Result<_, TensorError> {
        let pairs = found.as_strings()?.iter().zip(expected.as_strings()?);
        Ok(pairs
            .enumerate()
            .filter(|(_, (found, expected))| found != expected))
    };
    let n_elements = found.shape().n_elements();
    let n_mismatches = pairs()?.count();
    let incomparable = pairs()?.next().map(|(position, (is, should_be))| {
        format!(
            "{n_mismatches} of {n_elements} strings; at {:?} it is `{}`, expected `{}`",
            index_of(position, found, n_elements),
            shown(is),
            shown(should_be)
        )
    });
    let error = if n_mismatches == 0 {
        0.0
    } else {
        f64::INFINITY
    };
    Ok(Comparison {
        matches: n_mismatches == 0,
        n_elements,
        n_mismatches,
        max_abs_error: error,
        max_rel_error: error,
        worst: None,
        incomparable,
    })
}

/// Returns 0 for equal values (NaN equals NaN), infinity if only one side is NaN or infinite.
fn abs_error(found: f64, expected: f64) -> f64 {
    if found == expected || (found.is_nan() && expected.is_nan()) {
        0.0
    } else if found.is_finite() && expected.is_finite() {
        (found - expected).abs()
    } else {
        f64::INFINITY
    }
}

/// Converts a position in row-major order to one index per dimension. Complex numbers take two
/// positions each.
fn index_of(position: usize, tensor: &Tensor, n_values: usize) -> Vec<usize> {
    let n_elements = tensor.shape().n_elements();
    let mut rest = position / (n_values / n_elements).max(1);
    let mut index: Vec<usize> = tensor
        .shape()
        .dims()
        .iter()
        .rev()
        .map(|&dim| {
            let i = rest % dim;
            rest /= dim;
            i
        })
        .collect();
    index.reverse();
    index
}

/// The elements of a tensor, exactly. Integers stay integers: as doubles, large ones that differ
/// would look equal.
pub(super) enum Numbers {
    /// Floating-point numbers; complex ones as real and imaginary part.
    Real(Vec<f64>),
    /// Integers, and booleans as 0 and 1.
    Whole(Vec<i128>),
}

impl Numbers {
    /// Reads the elements of a tensor.
    ///
    /// # Errors
    /// [`TensorError`] for types without numbers and for memory that the host cannot read.
    pub(super) fn of(tensor: &Tensor) -> Result<Self, TensorError> {
        fn real<T: Element + Into<f64>>(tensor: &Tensor) -> Result<Numbers, TensorError> {
            let values = tensor.as_slice::<T>()?;
            Ok(Numbers::Real(values.iter().map(|&x| x.into()).collect()))
        }
        fn whole<T: Element + Into<i128>>(tensor: &Tensor) -> Result<Numbers, TensorError> {
            let values = tensor.as_slice::<T>()?;
            Ok(Numbers::Whole(values.iter().map(|&x| x.into()).collect()))
        }
        match tensor.dtype() {
            DType::F16 => real::<half::f16>(tensor),
            DType::BF16 => real::<half::bf16>(tensor),
            DType::F32 => real::<f32>(tensor),
            DType::F64 => real::<f64>(tensor),
            DType::I8 => whole::<i8>(tensor),
            DType::I16 => whole::<i16>(tensor),
            DType::I32 => whole::<i32>(tensor),
            DType::I64 => whole::<i64>(tensor),
            DType::U8 => whole::<u8>(tensor),
            DType::U16 => whole::<u16>(tensor),
            DType::U32 => whole::<u32>(tensor),
            DType::U64 => whole::<u64>(tensor),
            DType::Bool => Ok(Self::Whole(
                tensor
                    .as_bools()?
                    .iter()
                    .map(|&x| (x != 0).into())
                    .collect(),
            )),
            DType::Complex64 => {
                let (parts, _) = tensor.as_bytes()?.as_chunks::<4>();
                let parts = parts.iter().map(|&part| f32::from_le_bytes(part).into());
                Ok(Self::Real(parts.collect()))
            }
            DType::Complex128 => {
                let (parts, _) = tensor.as_bytes()?.as_chunks::<8>();
                let parts = parts.iter().map(|&part| f64::from_le_bytes(part));
                Ok(Self::Real(parts.collect()))
            }
            other @ (DType::String | DType::Resource | DType::Variant) => {
                Err(TensorError::NoFixedSize(other))
            }
        }
    }

    /// The number of elements; a complex number counts twice.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Real(values) => values.len(),
            Self::Whole(values) => values.len(),
        }
    }

    /// One element, rounded to f64.
    #[expect(
        clippy::cast_precision_loss,
        reason = "for display and tolerances only"
    )]
    fn get(&self, position: usize) -> f64 {
        match self {
            Self::Real(values) => values[position],
            Self::Whole(values) => values[position] as f64,
        }
    }

    /// Distance of element `position` to that of `expected`, which has the same type.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a distance other than 0 stays other than 0"
    )]
    fn abs_error(&self, expected: &Self, position: usize) -> f64 {
        match (self, expected) {
            (Self::Whole(found), Self::Whole(expected)) => {
                found[position].abs_diff(expected[position]) as f64
            }
            _ => abs_error(self.get(position), expected.get(position)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRICT: Tolerance = Tolerance {
        atol: 0.0,
        rtol: 0.0,
    };

    fn check(found: &[f32], expected: &[f32], tolerance: Tolerance) -> Comparison {
        let tensor = |values: &[f32]| Tensor::from_values([values.len()], values).expect("fits");
        compare(&tensor(found), &tensor(expected), tolerance).expect("numbers")
    }

    #[test]
    fn equal_tensors_match_without_tolerance() {
        let comparison = check(&[1.0, -2.0, 0.0], &[1.0, -2.0, -0.0], STRICT);
        assert!(comparison.matches);
        assert_eq!(comparison.max_abs_error, 0.0);
    }

    #[test]
    fn tolerance_is_absolute_plus_relative_to_the_expected_value() {
        let tolerance = Tolerance {
            atol: 0.5,
            rtol: 0.25,
        };
        assert!(!check(&[11.5], &[8.0], tolerance).matches);
        assert!(check(&[10.5], &[8.0], tolerance).matches);
        assert!(check(&[0.5], &[0.0], tolerance).matches);
        assert!(!check(&[0.75], &[0.0], tolerance).matches);
    }

    #[test]
    fn the_worst_element_is_named_by_its_index() {
        let found = Tensor::from_values([2, 3], &[0i32, 1, 2, 3, 40, 5]).expect("fits");
        let expected = Tensor::from_values([2, 3], &[0i32, 1, 2, 3, 4, 6]).expect("fits");
        let comparison = compare(&found, &expected, STRICT).expect("numbers");
        assert_eq!(comparison.n_mismatches, 2);
        assert_eq!(comparison.max_abs_error, 36.0);
        assert_eq!(comparison.max_rel_error, 9.0);
        let worst = comparison.worst.expect("there is one");
        assert_eq!(
            (worst.index, worst.found, worst.expected),
            (vec![1, 1], 40.0, 4.0)
        );
    }

    #[test]
    fn nan_matches_only_nan_at_the_same_place() {
        assert!(check(&[f32::NAN, 1.0], &[f32::NAN, 1.0], STRICT).matches);
        let lax = Tolerance {
            atol: 1e30,
            rtol: 1.0,
        };
        let comparison = check(&[1.0, f32::NAN], &[f32::NAN, 1.0], lax);
        assert_eq!(comparison.n_mismatches, 2);
        assert_eq!(comparison.max_abs_error, f64::INFINITY);
        let json = serde_json::to_string(&comparison).expect("serializes");
        assert!(json.contains("\"max_abs_error\":\"inf\""), "{json}");
    }

    #[test]
    fn an_infinity_matches_only_itself() {
        assert!(check(&[f32::INFINITY], &[f32::INFINITY], STRICT).matches);
        let lax = Tolerance {
            atol: 1e30,
            rtol: 0.0,
        };
        assert!(!check(&[f32::INFINITY], &[f32::NEG_INFINITY], lax).matches);
        assert!(!check(&[1.0], &[f32::INFINITY], lax).matches);
        let relative = Tolerance {
            atol: 0.0,
            rtol: 1.0,
        };
        assert!(!check(&[1.0], &[f32::INFINITY], relative).matches);
    }

    #[test]
    fn large_integers_that_round_to_the_same_double_differ() {
        let tensor = |value: i64| Tensor::from_values([1], &[value]).expect("fits");
        let comparison =
            compare(&tensor(1 << 53), &tensor((1 << 53) + 1), STRICT).expect("numbers");
        assert_eq!(
            (comparison.n_mismatches, comparison.max_abs_error),
            (1, 1.0)
        );
    }

    #[test]
    fn strings_are_equal_or_not() {
        let strings = |values: [&str; 2]| {
            let values = values.map(|value| value.as_bytes().into()).to_vec();
            Tensor::from_strings([2, 1].into(), values).expect("fits")
        };
        let lax = Tolerance {
            atol: 1e30,
            rtol: 1e30,
        };
        let found = strings(["a", "b"]);
        assert!(compare(&found, &found, lax).expect("strings").matches);
        let comparison = compare(&found, &strings(["a", "c"]), lax).expect("strings");
        assert!(!comparison.matches);
        assert_eq!(
            comparison.incomparable.as_deref(),
            Some("1 of 2 strings; at [1, 0] it is `b`, expected `c`")
        );
    }

    #[test]
    fn other_types_and_shapes_do_not_match() {
        let floats = Tensor::from_values([2], &[1f32, 2.0]).expect("fits");
        let doubles = Tensor::from_values([2], &[1f64, 2.0]).expect("fits");
        let row = Tensor::from_values([1, 2], &[1f32, 2.0]).expect("fits");
        for (other, expected) in [(doubles, "type is float"), (row, "shape is [2]")] {
            let comparison = compare(&floats, &other, STRICT).expect("comparable");
            assert!(!comparison.matches);
            let why = comparison.incomparable.expect("a reason");
            assert!(why.contains(expected), "{why}");
        }
    }

    #[test]
    fn empty_tensors_match() {
        let comparison = check(&[], &[], STRICT);
        assert!(comparison.matches);
        assert_eq!((comparison.n_elements, comparison.worst), (0, None));
    }
}
