//! Functions that graphs contain as several ops: layer normalization, linear units with a scale,
//! and the arithmetic of LSTM cells.

use rten_simd::SimdUnaryOp;
use rten_vecmath::Sigmoid;
use rten_vecmath::Tanh;

use crate::kernels::Threads;
use crate::kernels::simd::vectorize;
use crate::kernels::special;

/// Minimum number of elements per thread.
const GRAIN: usize = 40_000;

/// Elements that are computed at a time: they stay in the L1 cache.
const BLOCK: usize = 512;

/// Partial sums of a row: enough for several vectors.
const N_SUMS: usize = 64;

/// Normalization of rows: `(x - mean) / sqrt(variance + epsilon) * scale + offset`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerNorm<'a> {
    /// Number of elements of a row.
    pub columns: usize,
    /// What is added to the variance.
    pub epsilon: f32,
    /// Whether the mean is subtracted. Otherwise the variance is the mean of the squares.
    pub is_centered: bool,
    /// One number per column.
    pub scale: Option<&'a [f32]>,
    /// One number per column.
    pub offset: Option<&'a [f32]>,
}

impl LayerNorm<'_> {
    /// Normalizes the rows of `x`.
    ///
    /// # Panics
    /// If the length of a slice does not match.
    pub fn apply(&self, x: &[f32], out: &mut [f32], threads: Threads<'_>) {
        let columns = self.columns;
        assert_eq!(x.len(), out.len(), "one result per element");
        for row in [self.scale, self.offset].into_iter().flatten() {
            assert_eq!(row.len(), columns, "one number per column");
        }
        if columns == 0 {
            return;
        }
        threads.fill(out, columns, GRAIN, |start, part| {
            let rows = x[start..].chunks_exact(columns);
            vectorize::<f32, _>(|| {
                for (row, out) in rows.zip(part.chunks_exact_mut(columns)) {
                    self.row(row, out);
                }
            });
        });
    }

    #[inline(always)]
    #[expect(clippy::cast_precision_loss, reason = "a number of elements")]
    fn row(&self, row: &[f32], out: &mut [f32]) {
        let n = self.columns as f32;
        let mean = if self.is_centered {
            sum(row, |x| x) / n
        } else {
            0.0
        };
        let variance = sum(row, |x| (x - mean) * (x - mean)) / n;
        let factor = 1.0 / (variance + self.epsilon).sqrt();
        match (self.scale, self.offset) {
            (Some(scale), Some(offset)) => {
                for (((out, x), scale), offset) in out.iter_mut().zip(row).zip(scale).zip(offset) {
                    *out = (x - mean) * factor * scale + offset;
                }
            }
            (Some(scale), None) => {
                for ((out, x), scale) in out.iter_mut().zip(row).zip(scale) {
                    *out = (x - mean) * factor * scale;
                }
            }
            (None, Some(offset)) => {
                for ((out, x), offset) in out.iter_mut().zip(row).zip(offset) {
                    *out = (x - mean) * factor + offset;
                }
            }
            (None, None) => {
                for (out, x) in out.iter_mut().zip(row) {
                    *out = (x - mean) * factor;
                }
            }
        }
    }
}

/// Returns the sum of a function of all elements.
#[inline(always)]
fn sum(row: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0; N_SUMS];
    let blocks = row.chunks_exact(N_SUMS);
    let mut rest = 0.0;
    for &x in blocks.remainder() {
        rest += term(x);
    }
    for block in blocks {
        for (sum, &x) in sums.iter_mut().zip(block) {
            *sum += term(x);
        }
    }
    let mut n = N_SUMS;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            sums[i] += sums[i + n];
        }
    }
    sums[0] + rest
}

/// An activation that multiplies a number by a function of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// The Gaussian error linear unit: `x / 2 * (1 + erf(x / sqrt(2)))`.
    GeluExact,
    /// Its approximation: `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`.
    GeluApproximate,
    /// The sigmoid linear unit, or swish: `x * sigmoid(x)`.
    Silu,
    /// `x * relu6(x + 3) / 6`.
    HardSwish,
}

impl Unit {
    const ALL: [Self; 4] = [
        Self::GeluExact,
        Self::GeluApproximate,
        Self::Silu,
        Self::HardSwish,
    ];

    /// Returns the unit of this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name() == name)
    }

    /// Returns the name of the unit in fused ops: TensorFlow's, if it has one.
    pub fn name(self) -> &'static str {
        match self {
            Self::GeluExact => "GeluExact",
            Self::GeluApproximate => "GeluApproximate",
            Self::Silu => "Silu",
            Self::HardSwish => "HardSwish",
        }
    }

    /// Replaces each number.
    pub fn apply(self, values: &mut [f32], threads: Threads<'_>) {
        threads.fill(values, 1, GRAIN, |_, part| match self {
            Self::GeluExact => vectorize::<f32, _>(|| {
                for x in part {
                    let erf = special::erf_f32(*x * std::f32::consts::FRAC_1_SQRT_2);
                    *x = *x * 0.5 * (1.0 + erf);
                }
            }),
            Self::GeluApproximate => {
                let cubic = |x: f32| SQRT_2_BY_PI * (x + 0.044_715 * (x * x * x));
                scale(part, cubic, &Tanh {}, |x, tanh| x * 0.5 * (1.0 + tanh));
            }
            Self::Silu => scale(part, |x| x, &Sigmoid {}, |x, sigmoid| x * sigmoid),
            Self::HardSwish => vectorize::<f32, _>(|| {
                for x in part {
                    let shifted = *x + 3.0;
                    let least = if shifted < 0.0 { 0.0 } else { shifted };
                    *x = *x * if least > 6.0 { 6.0 } else { least } * (1.0 / 6.0);
                }
            }),
        });
    }
}

/// Replaces each `x` by `end(x, function(argument(x)))`.
#[inline(always)]
fn scale(
    values: &mut [f32],
    argument: impl Fn(f32) -> f32,
    function: &impl SimdUnaryOp<f32>,
    end: impl Fn(f32, f32) -> f32,
) {
    let mut results = [0.0; BLOCK];
    for block in values.chunks_mut(BLOCK) {
        let results = &mut results[..block.len()];
        vectorize::<f32, _>(|| {
            for (result, &x) in results.iter_mut().zip(&*block) {
                *result = argument(x);
            }
        });
        function.map_mut(results);
        vectorize::<f32, _>(|| {
            for (x, &result) in block.iter_mut().zip(&*results) {
                *x = end(*x, result);
            }
        });
    }
}

/// `sqrt(2 / pi)`
const SQRT_2_BY_PI: f32 = 0.797_884_6;

/// Computes `out = a * sigmoid(b) + sigmoid(c) * tanh(d)`: the state of an LSTM cell.
///
/// # Panics
/// If the lengths differ.
pub fn gated_sum([a, b, c, d]: [&[f32]; 4], out: &mut [f32], threads: Threads<'_>) {
    for input in [a, b, c, d] {
        assert_eq!(input.len(), out.len(), "one result per element");
    }
    threads.fill(out, 1, GRAIN, |start, part| {
        let (mut forget, mut add, mut candidate) = ([0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK]);
        for (index, block) in part.chunks_mut(BLOCK).enumerate() {
            let first = start + index * BLOCK;
            let n = block.len();
            let of = |input: &[f32], to: &mut [f32]| to.copy_from_slice(&input[first..first + n]);
            let (forget, add, candidate) = (&mut forget[..n], &mut add[..n], &mut candidate[..n]);
            of(b, forget);
            of(c, add);
            of(d, candidate);
            Sigmoid {}.map_mut(forget);
            Sigmoid {}.map_mut(add);
            Tanh {}.map_mut(candidate);
            let a = &a[first..first + n];
            vectorize::<f32, _>(|| {
                for i in 0..n {
                    block[i] = a[i] * forget[i] + add[i] * candidate[i];
                }
            });
        }
    });
}

/// Computes `out = tanh(a) * sigmoid(b)`: the output of an LSTM cell.
///
/// # Panics
/// If the lengths differ.
pub fn gated_tanh([a, b]: [&[f32]; 2], out: &mut [f32], threads: Threads<'_>) {
    assert_eq!(
        (a.len(), b.len()),
        (out.len(), out.len()),
        "one result per element"
    );
    threads.fill(out, 1, GRAIN, |start, part| {
        let mut gate = [0.0; BLOCK];
        for (index, block) in part.chunks_mut(BLOCK).enumerate() {
            let first = start + index * BLOCK;
            let gate = &mut gate[..block.len()];
            gate.copy_from_slice(&b[first..first + block.len()]);
            Sigmoid {}.map_mut(gate);
            block.copy_from_slice(&a[first..first + block.len()]);
            Tanh {}.map_mut(block);
            vectorize::<f32, _>(|| {
                for (element, gate) in block.iter_mut().zip(&*gate) {
                    *element *= *gate;
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reference implementation.
    fn plain_norm(norm: &LayerNorm<'_>, row: &[f32]) -> Vec<f64> {
        let n = row.len() as f64;
        let row: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
        let mean = if norm.is_centered {
            row.iter().sum::<f64>() / n
        } else {
            0.0
        };
        let squares = row.iter().map(|x| (x - mean).powi(2));
        let deviation = (squares.sum::<f64>() / n + f64::from(norm.epsilon)).sqrt();
        let at = |row: Option<&[f32]>, column: usize, default: f64| {
            row.map_or(default, |row| f64::from(row[column]))
        };
        let normalized = row.iter().enumerate().map(|(column, x)| {
            (x - mean) / deviation * at(norm.scale, column, 1.0) + at(norm.offset, column, 0.0)
        });
        normalized.collect()
    }

    fn close(found: f32, expected: f64, scale: f64) -> bool {
        (f64::from(found) - expected).abs() <= scale * expected.abs().max(1.0)
    }

    proptest! {
        #[test]
        fn rows_are_normalized(
            x in prop::collection::vec(-8.0f32..8.0, 1..300), n_rows in 1usize..4,
            is_centered: bool, has_scale: bool, has_offset: bool,
        ) {
            let columns = x.len();
            let scale: Vec<f32> = x.iter().rev().map(|it| it / 2.0).collect();
            let offset: Vec<f32> = x.iter().map(|it| 1.0 - it).collect();
            let norm = LayerNorm {
                columns,
                epsilon: 0.25,
                is_centered,
                scale: has_scale.then_some(&scale),
                offset: has_offset.then_some(&offset),
            };
            let rows = x.repeat(n_rows);
            let mut out = vec![f32::NAN; rows.len()];
            norm.apply(&rows, &mut out, Threads::single());
            let expected = plain_norm(&norm, &x);
            for row in out.chunks_exact(columns) {
                for (&found, &expected) in row.iter().zip(&expected) {
                    prop_assert!(close(found, expected, 1e-4), "{found} is not {expected}");
                }
            }
        }

        #[test]
        fn units_and_gates_agree_with_doubles(
            x in prop::collection::vec(-12.0f32..12.0, 0..1300), shift in 1usize..9,
        ) {
            let wide = |it: f32| f64::from(it);
            let sigmoid = |it: f32| 1.0 / (1.0 + (-wide(it)).exp());
            for unit in Unit::ALL {
                let mut out = x.clone();
                unit.apply(&mut out, Threads::single());
                for (&found, x) in out.iter().zip(x.iter().map(|&it| wide(it))) {
                    let factor = match unit {
                        Unit::GeluExact => {
                            (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)) / 2.0
                        }
                        Unit::GeluApproximate => {
                            let root = (2.0 / std::f64::consts::PI).sqrt();
                            (1.0 + (root * (x + 0.044_715 * x.powi(3))).tanh()) / 2.0
                        }
                        Unit::Silu => 1.0 / (1.0 + (-x).exp()),
                        Unit::HardSwish => (x + 3.0).clamp(0.0, 6.0) / 6.0,
                    };
                    let expected = x * factor;
                    prop_assert!(close(found, expected, 4e-6), "{x}: {found} is not {expected}");
                }
            }
            let rotated = |n: usize| {
                let mut rotated = x.clone();
                rotated.rotate_left(n.min(x.len()));
                rotated
            };
            let (b, c, d) = (rotated(shift), rotated(2 * shift), rotated(3 * shift));
            let (mut sums, mut products) = (vec![f32::NAN; x.len()], vec![f32::NAN; x.len()]);
            gated_sum([&x, &b, &c, &d], &mut sums, Threads::single());
            gated_tanh([&x, &b], &mut products, Threads::single());
            for i in 0..x.len() {
                let sum = wide(x[i]) * sigmoid(b[i]) + sigmoid(c[i]) * wide(d[i]).tanh();
                prop_assert!(close(sums[i], sum, 2e-6), "{} is not {sum}", sums[i]);
                let product = wide(x[i]).tanh() * sigmoid(b[i]);
                prop_assert!(close(products[i], product, 2e-6), "{} is not {product}", products[i]);
            }
        }
    }

    #[test]
    fn no_elements_and_undefined_ones() {
        let norm = LayerNorm {
            columns: 0,
            epsilon: 0.0,
            is_centered: true,
            scale: None,
            offset: None,
        };
        norm.apply(&[], &mut [], Threads::single());
        for unit in Unit::ALL {
            assert_eq!(Unit::find(unit.name()), Some(unit));
            let mut values = [f32::NAN, f32::INFINITY, -200.0, 0.0];
            unit.apply(&mut values, Threads::single());
            assert!(values[0].is_nan());
            assert_eq!(values[1..], [f32::INFINITY, 0.0, 0.0], "{unit:?}");
        }
    }
}
