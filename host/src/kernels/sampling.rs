//! Samples of distributions with parameters, with TensorFlow's bits: gamma, Poisson, categorical.

use crate::device::KernelError;
use crate::kernels::Threads;
use crate::kernels::philox::BLOCKS_PER_ELEMENT;
use crate::kernels::philox::Philox;
use crate::kernels::philox::Singles;
use crate::kernels::philox::normals_f64;
use crate::kernels::philox::unit_f64s;

/// Samples that take about 20 us.
const GRAIN: usize = 256;

/// Numbers of a block.
const POOL: usize = 2;

/// Numbers of a block that have not been used. TensorFlow uses the last one first.
struct Pool<T> {
    numbers: [T; POOL],
    n_left: usize,
}

impl<T: Copy + Default> Pool<T> {
    fn new() -> Self {
        Self {
            numbers: [T::default(); POOL],
            n_left: 0,
        }
    }

    /// Returns the next number; `refill` makes those of the next block.
    fn next<const N: usize>(&mut self, refill: impl FnOnce() -> [T; N]) -> T {
        if self.n_left == 0 {
            self.numbers[..N].copy_from_slice(&refill());
            self.n_left = N;
        }
        self.n_left -= 1;
        self.numbers[self.n_left]
    }
}

/// Fills `out` with samples; `sample(i, generator)` makes sample `i`, in TensorFlow's numbering:
/// all samples of the first parameter come first. In `out`, the parameters vary fastest.
fn fill<T: Send>(
    n_parameters: usize,
    out: &mut [T],
    generator: Philox,
    threads: Threads<'_>,
    sample: impl Fn(usize, Philox) -> T + Sync,
) {
    let n_samples = out.len() / n_parameters.max(1);
    threads.fill(out, 1, GRAIN, |start, part| {
        for (offset, slot) in part.iter_mut().enumerate() {
            let at = start + offset;
            let (row, parameter) = (at / n_parameters, at % n_parameters);
            let number = (parameter * n_samples + row) as u64;
            let mut generator = generator;
            generator.skip(number.wrapping_mul(BLOCKS_PER_ELEMENT));
            *slot = sample(parameter, generator);
        }
    });
}

/// Samples of gamma distributions with these shape parameters and scale 1 (TensorFlow
/// `RandomGamma`, `StatelessRandomGammaV2`). Parameters vary fastest in `out`.
pub fn gamma<T: Send>(
    alphas: impl Fn(usize) -> f64 + Sync,
    n_alphas: usize,
    out: &mut [T],
    generator: Philox,
    narrow: impl Fn(f64) -> T + Sync,
    threads: Threads<'_>,
) {
    fill(n_alphas, out, generator, threads, |index, generator| {
        narrow(gamma_sample(alphas(index), generator))
    });
}

/// One sample by rejection (Marsaglia and Tsang, "A simple method for generating gamma variables").
fn gamma_sample(alpha: f64, mut generator: Philox) -> f64 {
    let mut uniforms = Pool::new();
    #[expect(clippy::float_cmp, reason = "as TensorFlow")]
    if alpha == 1.0 {
        let u: f64 = uniforms.next(|| unit_f64s(generator.block()));
        return -(-u).ln_1p();
    }
    let is_less_than_one = alpha < 1.0;
    let d = alpha
        + if is_less_than_one {
            2.0 / 3.0
        } else {
            -1.0 / 3.0
        };
    let c = 1.0 / 3.0 / d.sqrt();
    let mut normals = Pool::new();
    loop {
        let x: f64 = normals.next(|| normals_f64(generator.block()));
        let v = 1.0 + c * x;
        if v <= 0.0 {
            continue;
        }
        let v = v * v * v;
        let u: f64 = uniforms.next(|| unit_f64s(generator.block()));
        // Not a number is never accepted; the parameter then decides.
        let is_accepted =
            u < 1.0 - 0.0331 * (x * x) * (x * x) || u.ln() < 0.5 * x * x + d * (1.0 - v + v.ln());
        if !is_accepted && v.is_nan() {
            return f64::NAN;
        }
        if is_accepted {
            let sample = d * v;
            if !is_less_than_one {
                return sample;
            }
            let b: f64 = uniforms.next(|| unit_f64s(generator.block()));
            return sample * b.powf(1.0 / alpha);
        }
    }
}

macro_rules! poisson {
    ($samples:ident, $sample:ident, $rust:ty, $lgamma:path, |$block:ident| $units:expr) => {
        /// Samples of Poisson distributions with these rates (TensorFlow `RandomPoissonV2`,
        /// `StatelessRandomPoisson`). Results above `highest` are drawn again. Rates vary fastest
        /// in `out`.
        pub fn $samples<T: Send>(
            rates: impl Fn(usize) -> $rust + Sync,
            n_rates: usize,
            out: &mut [T],
            generator: Philox,
            highest: $rust,
            narrow: impl Fn($rust) -> T + Sync,
            threads: Threads<'_>,
        ) {
            fill(n_rates, out, generator, threads, |index, generator| {
                narrow($sample(rates(index), highest, generator))
            });
        }

        /// One sample: by Knuth's algorithm for small rates, and by transformed rejection (Hörmann)
        /// for others.
        fn $sample(rate: $rust, highest: $rust, mut generator: Philox) -> $rust {
            let mut uniforms = Pool::new();
            let mut uniform = || -> $rust {
                uniforms.next(|| {
                    let $block = generator.block();
                    $units
                })
            };
            if rate.is_nan() || rate == <$rust>::INFINITY {
                return rate;
            }
            if rate < 10.0 {
                let limit = (-rate).exp();
                let (mut product, mut x) = (1.0, 0.0);
                loop {
                    product *= uniform();
                    if product <= limit && x <= highest {
                        return x;
                    }
                    x += 1.0;
                }
            }
            let log_rate = rate.ln();
            let b = 0.931 + 2.53 * rate.sqrt();
            let a = -0.059 + 0.02483 * b;
            let inv_alpha = 1.1239 + 1.1328 / (b - 3.4);
            loop {
                let u = uniform() - 0.5;
                let v = uniform();
                let u_shifted = 0.5 - u.abs();
                let k = ((2.0 * a / u_shifted + b) * u + rate + 0.43).floor();
                if k > highest {
                    continue;
                }
                if u_shifted >= 0.07 && v <= 0.9277 - 3.6224 / (b - 2.0) {
                    return k;
                }
                if k < 0.0 || (u_shifted < 0.013 && v > u_shifted) {
                    continue;
                }
                let s = (v * inv_alpha / (a / (u_shifted * u_shifted) + b)).ln();
                let t = -rate + k * log_rate - $lgamma(k + 1.0);
                if s <= t {
                    return k;
                }
            }
        }
    };
}

poisson!(
    poisson_f64,
    poisson_sample_f64,
    f64,
    libm::lgamma,
    |block| unit_f64s(block)
);
poisson!(
    poisson_f32,
    poisson_sample_f32,
    f32,
    libm::lgammaf,
    |block| {
        #[expect(clippy::cast_possible_truncation, reason = "as TensorFlow rounds")]
        let units = unit_f64s(block).map(|unit| unit as f32);
        units
    }
);

/// Samples of categorical distributions with these logits, one row each (TensorFlow `Multinomial`):
/// the index of a class per sample. `logit(i)` is a row-major element; `is_finite` says whether it
/// counts.
///
/// # Errors
/// [`KernelError`] if there is not enough memory.
pub fn categorical<T>(
    logits: &[T],
    n_classes: usize,
    n_samples: usize,
    generator: Philox,
    widen: impl Fn(&T) -> f64,
    mut put: impl FnMut(usize, usize),
    threads: Threads<'_>,
) -> Result<(), KernelError> {
    let mut singles = Singles::new(generator);
    let mut sums = threads.scratch::<f64>(n_classes)?;
    for (row, logits) in logits.chunks_exact(n_classes.max(1)).enumerate() {
        if threads.is_interrupted() {
            return Ok(());
        }
        let finite = logits.iter().map(&widen).filter(|x| x.is_finite());
        let largest = finite.fold(f64::NEG_INFINITY, f64::max);
        let mut total = 0.0;
        for (sum, logit) in sums.iter_mut().zip(logits) {
            let logit = widen(logit);
            if logit.is_finite() {
                total += (logit - largest).exp();
            }
            *sum = total;
        }
        for sample in 0..n_samples {
            let place = singles.unit_f64() * total;
            let class = sums.partition_point(|&sum| sum <= place);
            put(row * n_samples + sample, class);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generator() -> Philox {
        Philox::from_stateless_seeds([5, 6])
    }

    fn mean(values: &[f64]) -> f64 {
        let n = u32::try_from(values.len()).unwrap();
        values.iter().sum::<f64>() / f64::from(n)
    }

    #[test]
    fn means_are_the_parameters() {
        let mut out = vec![0.0; 60_000];
        for alpha in [0.3, 1.0, 4.5] {
            gamma(
                |_| alpha,
                1,
                &mut out,
                generator(),
                |x| x,
                Threads::single(),
            );
            assert!(
                (mean(&out) - alpha).abs() < 0.05 * alpha.max(1.0),
                "{alpha}"
            );
        }
        for rate in [0.5, 4.0, 40.0] {
            let highest = 1e18;
            poisson_f64(
                |_| rate,
                1,
                &mut out,
                generator(),
                highest,
                |x| x,
                Threads::single(),
            );
            assert!((mean(&out) - rate).abs() < 0.05 * rate.max(1.0), "{rate}");
        }
    }

    #[test]
    fn parameters_that_have_no_distribution_end() {
        let mut out = [0.0; 3];
        let alphas = [f64::NAN, -2.0, f64::INFINITY];
        gamma(
            |i| alphas[i],
            3,
            &mut out,
            generator(),
            |x| x,
            Threads::single(),
        );
        assert!(out[0].is_nan() && out[1].is_nan() && out[2] == f64::INFINITY);
        let rates = [f64::NAN, -2.0, f64::INFINITY];
        poisson_f64(
            |i| rates[i],
            3,
            &mut out,
            generator(),
            1e9,
            |x| x,
            Threads::single(),
        );
        assert!(out[0].is_nan() && out[1] == 0.0 && out[2] == f64::INFINITY);
    }

    #[test]
    fn classes_are_as_frequent_as_their_probabilities() {
        let logits = [0.0f64, f64::NEG_INFINITY, 3.0f64.ln()];
        let mut counts = [0u32; 3];
        let threads = Threads::single();
        categorical(
            &logits,
            3,
            40_000,
            generator(),
            |x| *x,
            |_, class| counts[class] += 1,
            threads,
        )
        .unwrap();
        assert_eq!(counts[1], 0);
        assert!(
            (f64::from(counts[2]) / 40_000.0 - 0.75).abs() < 0.01,
            "{counts:?}"
        );
    }
}
