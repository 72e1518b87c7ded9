//! Measures one device: matmuls, elementwise ops, sums, launches, waits, and its link to the host.

mod copies;
mod first_reads;
mod kernels;
mod pairs;

pub use pairs::calibrate_pair;

use std::hint;
use std::iter;
use std::mem;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::slice;
use std::time::Duration;
use std::time::Instant;

use crate::cost::busy::LoadWatch;
use crate::cost::calibration::Calibration;
use crate::cost::calibration::LinkDirection;
use crate::cost::calibration::Sample;
use crate::cost::families::families;
use crate::cost::probe::Calls;
use crate::cost::probe::Probe;
use crate::cost::probe::ProbeError;
use crate::cost::probe::Question;
use crate::cost::probe::median;
use crate::cost::probe::median_ns;
use crate::cost::probe::nanoseconds;
use crate::cost::probe::timed;
use crate::cost::probe::to_f64;
use crate::device::Device;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::device::LinkRates;
use crate::device::ProcessorKind;
use crate::device::panic_message;
use crate::graph::AttrValue;
use crate::tensor::DType;
use crate::tensor::HostAllocator;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Sides of the square matrices of the timed matmuls.
const SIDES: [usize; 6] = [64, 128, 256, 512, 1024, 2048];

/// Numbers in the tensors of elementwise ops and sums: 16 KiB to 64 MiB.
const LENGTHS: [usize; 4] = [1 << 12, 1 << 16, 1 << 20, 1 << 24];

/// Elements of a row from which devices fuse elementwise nodes (`backend::source::fusion`).
const FUSED_ROW_MIN_CPU: usize = 16;
const FUSED_ROW_MIN_GPU: usize = 128;

/// Bytes that are copied.
const COPIES_BYTES: [usize; 4] = [4, 64 << 10, 1 << 20, 16 << 20];

/// Side of the square matrices of the reference.
const REFERENCE_SIDE: usize = 128;

/// Time for which the reference alone is timed.
const REFERENCE_BUDGET: Duration = Duration::from_millis(20);

/// Kernels that read and write less mostly measure the launch, not the bandwidth.
const TRAFFIC_BYTES_MIN: f64 = 256.0 * 1024.0;

/// Least and most tiny kernels in a timed chain. More kernels give no further information about a
/// queue.
const LAUNCHES: Calls = Calls { min: 64, max: 4096 };

/// Number of waits, and how long the device is idle before each, as between the runs of a busy app:
/// its thread no longer spins. The caller does not sleep: it executes what is left to do, as in a
/// run.
const N_WAITS: usize = 33;
const IDLE: Duration = Duration::from_micros(20);

/// Options of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CalibrateOptions {
    /// Approximate time of the timings of one device, 24 s by default. The first call of each
    /// kernel, in which a driver may compile it, comes on top. With more time, slow devices reach
    /// larger sizes and medians cover more timings. The smallest size of everything is always
    /// timed.
    pub budget: Duration,
}

impl CalibrateOptions {
    /// Sets [`Self::budget`].
    #[must_use]
    pub fn with_budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }
}

impl Default for CalibrateOptions {
    fn default() -> Self {
        Self {
            budget: Duration::from_secs(24),
        }
    }
}

/// Why a device cannot be measured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The device executes no kernels in this process.
    #[error("{device} keeps its stated rates: it runs no kernels in this process")]
    NoKernelDevice {
        /// Its name.
        device: String,
    },
    /// Nothing could be measured.
    #[error("{device} keeps its stated rates: {reasons}")]
    Nothing {
        /// Its name.
        device: String,
        /// The reason for each figure.
        reasons: String,
    },
}

/// Measures a device with its own kernels, on the calling thread. Other devices should be idle:
/// anything that uses the machine's memory or processors at the same time lowers the measured
/// rates. Figures without a kernel, or whose kernel fails, are left out;
/// [`Calibration::missing`] lists them.
///
/// # Errors
/// [`CalibrateError`] if no figure can be measured.
pub fn calibrate(
    device: &dyn Device,
    kernels: &KernelRegistry,
    options: &CalibrateOptions,
) -> Result<Calibration, CalibrateError> {
    calibrate_with_progress(device, kernels, options, &mut |_| {})
}

/// Returns the time of the product by which [`Calibration::reference_ns`] relates times to one
/// clock rate, now: what was predicted by rates of another minute takes as many times as long as
/// this product does. `None` if the device has no kernel for it. In ns.
pub fn reference_ns(device: &dyn Device, kernels: &KernelRegistry) -> Option<f64> {
    let bench = Bench::new(device.as_kernel_device()?, kernels, REFERENCE_BUDGET);
    bench.reference_ns()
}

/// Like [`calibrate`], and calls `begins` with the name of each part that begins.
///
/// # Errors
/// As [`calibrate`].
pub fn calibrate_with_progress(
    device: &dyn Device,
    kernels: &KernelRegistry,
    options: &CalibrateOptions,
    begins: &mut dyn FnMut(&'static str),
) -> Result<Calibration, CalibrateError> {
    let watch = LoadWatch::start();
    let name = || device.attributes().name.clone();
    let Some(kernel_device) = device.as_kernel_device() else {
        return Err(CalibrateError::NoKernelDevice { device: name() });
    };
    // The families of kernels have the greater part.
    let mut bench = Bench::new(kernel_device, kernels, options.budget / 84);
    bench.found.fused_row_min =
        kernel_device
            .as_program_device()
            .map(|device| match device.compute_traits().kind {
                ProcessorKind::Cpu => FUSED_ROW_MIN_CPU,
                ProcessorKind::Gpu => FUSED_ROW_MIN_GPU,
            });
    begins("rates and copies");
    // These come first, since they are subtracted from everything else.
    bench.renew_call_ns();
    bench.attempt("launches", Bench::launches);
    bench.attempt("waiting", Bench::waits);
    bench.attempt("matmuls", Bench::matmuls);
    bench.attempt("elementwise ops", Bench::elementwise);
    bench.attempt("sums", Bench::sums);
    bench.attempt("copies from the host", |bench| {
        bench.copies(LinkDirection::FromHost)
    });
    bench.attempt("copies to the host", |bench| {
        bench.copies(LinkDirection::ToHost)
    });
    bench.attempt("copies both ways", Bench::copies_both_ways);
    bench.attempt("first reads", Bench::first_reads);
    let n_families = u32::try_from(families().len()).unwrap_or(1);
    bench.budget = options.budget * 3 / 4 / kernels::N_PASSES / n_families.max(1);
    bench.kernels_by_family(begins);
    let mut found = bench.found;
    found.others_busy = watch.and_then(LoadWatch::others_busy).map(rounded);
    if found.is_empty() {
        return Err(CalibrateError::Nothing {
            device: name(),
            reasons: found.missing.join("; "),
        });
    }
    Ok(found)
}

/// Whether the measurement of one device also holds for another: both compute with as many threads
/// of one chip, under the same runtime. Two measurements would differ by chance, and plans would
/// prefer one of the devices because of that.
pub fn computes_alike(first: &dyn Device, second: &dyn Device) -> bool {
    let place = |device: &dyn Device| {
        let (attributes, threads) = (device.attributes(), device.chip_threads()?);
        Some((
            attributes.device_type.clone(),
            attributes.physical_description.clone(),
            device.chip()?.to_owned(),
            threads,
        ))
    };
    let is_local = first.is_local() && second.is_local();
    is_local && place(first).is_some_and(|first| Some(first) == place(second))
}

struct Bench<'a> {
    device: &'a dyn KernelDevice,
    kernels: &'a KernelRegistry,
    /// Host memory that belongs to no device.
    host: HostAllocator,
    /// The time for each kind of figure.
    budget: Duration,
    /// What the call of a kernel adds to its timing, in ns.
    call_ns: f64,
    found: Calibration,
}

/// One kernel at one size.
struct Work {
    of: String,
    /// Floating-point operations, or bytes.
    amount: f64,
}

impl<'d> Bench<'d> {
    fn new(device: &'d dyn KernelDevice, kernels: &'d KernelRegistry, budget: Duration) -> Self {
        Self {
            device,
            kernels,
            host: HostAllocator::new("calibration", u64::MAX),
            budget,
            call_ns: 0.0,
            found: Calibration::default(),
        }
    }

    /// Measures one kind of figure, or records why it cannot be measured.
    fn attempt(&mut self, what: &str, measure: impl FnOnce(&mut Self) -> Result<(), ProbeError>) {
        // An app's kernel may fail in any way at sizes that the app never uses.
        let outcome = catch_unwind(AssertUnwindSafe(|| measure(self)));
        let reason = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("its kernel panicked: {}", panic_message(&*panic)),
        };
        self.found.missing.push(format!("{what}: {reason}"));
    }

    /// Measures what calls take now. It stays as it was if the device has no kernel to call.
    fn renew_call_ns(&mut self) {
        let time = || {
            let probe = self.relu(&self.ones(&[1])?)?;
            Ok::<_, ProbeError>(probe.call_ns(LAUNCHES, self.budget)?)
        };
        if let Ok(Ok(call_ns)) = catch_unwind(AssertUnwindSafe(time)) {
            self.call_ns = call_ns;
        }
    }

    fn launches(&mut self) -> Result<(), ProbeError> {
        let one = self.ones(&[1])?;
        let probe = self.relu(&one)?;
        let (mut last, mut spare) = (probe.inputs()[0].clone(), None);
        let ns = median_ns(self.device, LAUNCHES, self.budget, || {
            let next = probe.run_on(slice::from_ref(&last), spare.take())?;
            spare = Some(mem::replace(&mut last, next));
            Ok(())
        })?;
        let ns = rounded(self.of_kernel(ns));
        self.sample("Relu of one number".to_owned(), ns, rounded(8.0 / ns * 1e9));
        self.found.launch_ns = Some(ns);
        Ok(())
    }

    fn waits(&mut self) -> Result<(), ProbeError> {
        let one = self.ones(&[1])?;
        let probe = self.relu(&one)?;
        let mut times = Vec::with_capacity(N_WAITS);
        let mut place = None;
        // The first one compiles and allocates.
        for is_timed in iter::once(false).chain(iter::repeat_n(true, N_WAITS)) {
            self.device.sync().map_err(KernelError::from)?;
            let idle = Instant::now();
            while idle.elapsed() < IDLE {
                hint::spin_loop();
            }
            let started = Instant::now();
            let output = probe.run(place.take())?;
            copies::copy_to_host(self.device, &output)?;
            if is_timed {
                times.push(nanoseconds(started.elapsed()));
            }
            place = Some(output);
        }
        let ns = median(times);
        let waiting_ns = (self.of_kernel(ns) - self.launch_ns()).max(0.0);
        self.sample(
            "Relu of one number, read by the host".to_owned(),
            rounded(ns),
            rounded(8.0 / ns * 1e9),
        );
        self.found.wait_ns = Some(rounded(waiting_ns));
        Ok(())
    }

    fn matmuls(&mut self) -> Result<(), ProbeError> {
        let attrs = [
            ("T", AttrValue::from(DType::F32)),
            ("transpose_a", AttrValue::from(false)),
            ("transpose_b", AttrValue::from(false)),
        ];
        let rates = self.grow(
            &SIDES,
            |side| (side * side * 12, side.pow(3)),
            |bench, side| {
                let square = bench.ones(&[side, side])?;
                let probe = bench.probe("MatMul", &attrs, &[("a", &square), ("b", &square)])?;
                let work = Work {
                    of: format!("MatMul of [{side},{side}] and [{side},{side}]"),
                    amount: 2.0 * to_f64(side).powi(3),
                };
                Ok((probe, work))
            },
        )?;
        let fastest = rates.iter().map(|&(_, rate)| rate).fold(0.0, f64::max);
        self.found.flops_per_s = Some(fastest);
        Ok(())
    }

    fn elementwise(&mut self) -> Result<(), ProbeError> {
        let attrs = [("T", AttrValue::from(DType::F32))];
        let mut rates = Vec::new();
        let mut problem = None;
        let budget = self.budget;
        self.budget = budget / 3;
        for (op, arguments) in [
            ("AddV2", &["x", "y"][..]),
            ("Mul", &["x", "y"]),
            ("Relu", &["features"]),
        ] {
            let n_tensors = arguments.len() + 1;
            let found = self.grow(
                &LENGTHS,
                |len| (4 * n_tensors * len, len),
                |bench, len| {
                    let operand = bench.ones(&[len])?;
                    let inputs: Vec<_> = arguments.iter().map(|&name| (name, &operand)).collect();
                    let probe = bench.probe(op, &attrs, &inputs)?;
                    let work = Work {
                        of: format!("{op} of [{len}]"),
                        amount: to_f64(4 * n_tensors * len),
                    };
                    Ok((probe, work))
                },
            );
            // A device may have kernels for only some of them.
            match found {
                Ok(found) => rates.extend(found),
                Err(error) => problem = Some(error),
            }
        }
        self.budget = budget;
        self.found.elementwise_bytes_per_s = bandwidth(&rates);
        problem.filter(|_| rates.is_empty()).map_or(Ok(()), Err)
    }

    fn sums(&mut self) -> Result<(), ProbeError> {
        let attrs = [
            ("T", AttrValue::from(DType::F32)),
            ("Tidx", AttrValue::from(DType::I32)),
            ("keep_dims", AttrValue::from(false)),
        ];
        let mut rates = Vec::new();
        let budget = self.budget;
        self.budget = budget / 2;
        for axis in [1, 0] {
            let axes = Tensor::from_values([1], &[axis])?;
            let found = self.grow(
                &LENGTHS,
                |len| (8 * len, len),
                |bench, len| {
                    let (rows, columns) = (len / 64, 64);
                    let operand = bench.ones(&[rows, columns])?;
                    let inputs = [("input", &operand), ("reduction_indices", &axes)];
                    let probe = bench.probe("Sum", &attrs, &inputs)?;
                    let work = Work {
                        of: format!("Sum of [{rows},{columns}] over axis {axis}"),
                        amount: to_f64(4 * len),
                    };
                    Ok((probe, work))
                },
            );
            rates.extend(found.inspect_err(|_| self.budget = budget)?);
        }
        self.budget = budget;
        self.found.reduction_bytes_per_s = bandwidth(&rates);
        Ok(())
    }

    /// Returns the time of the reference, a small matmul, if the device has a kernel for it.
    fn reference_ns(&self) -> Option<f64> {
        let timed = || {
            let attrs = [("T", AttrValue::from(DType::F32))];
            let square = self.ones(&[REFERENCE_SIDE, REFERENCE_SIDE])?;
            let probe = self.probe("MatMul", &attrs, &[("a", &square), ("b", &square)])?;
            let mut place = None;
            let call = || {
                place = Some(probe.run(place.take())?);
                Ok(())
            };
            let calls = Calls { min: 1, max: 256 };
            Ok::<f64, ProbeError>(median_ns(self.device, calls, self.budget, call)?)
        };
        catch_unwind(AssertUnwindSafe(timed)).ok()?.ok()
    }

    /// Times kernels at growing sizes while they fit the device and the time: (work, work per
    /// second). `demand` returns the bytes that a size needs, and a number that its time is assumed
    /// to be proportional to.
    fn grow(
        &mut self,
        sizes: &[usize],
        demand: impl Fn(usize) -> (usize, usize),
        prepare: impl Fn(&Self, usize) -> Result<(Probe<'d>, Work), ProbeError>,
    ) -> Result<Vec<(f64, f64)>, ProbeError> {
        let mut took = Duration::ZERO;
        let share = self.budget / u32::try_from(sizes.len()).unwrap_or(1).max(1);
        let mut rates = Vec::new();
        let mut before: Option<(usize, f64)> = None;
        for &size in sizes {
            let (bytes, effort) = demand(size);
            if let Some((effort_before, ns)) = before {
                // Two calls warm up and show how long one takes, and one counts.
                let expected_ns = 3.0 * ns * to_f64(effort) / to_f64(effort_before.max(1));
                let left = self.budget.saturating_sub(took);
                if expected_ns > left.as_secs_f64() * 1e9 || !self.fits(bytes) {
                    break;
                }
            }
            let found = prepare(self, size).and_then(|(probe, work)| {
                let mut place = None;
                let call = || {
                    place = Some(probe.run(place.take())?);
                    Ok(())
                };
                let timed = timed(self.device, self.calls(bytes), share, call)?;
                Ok((timed, work))
            });
            let (ns, work) = match found {
                Ok((timed, work)) => {
                    took += timed.took;
                    (timed.ns, work)
                }
                Err(error) if before.is_none() => return Err(error),
                // Keeps the figures measured so far, such as those of sizes that fit the memory.
                Err(_) => break,
            };
            // If a kernel is launched while the previous one computes, its time does not contain
            // its launch.
            let working_ns = (self.of_kernel(ns) - self.launch_ns()).max(ns / 2.0);
            let rate = rounded(work.amount / working_ns * 1e9);
            self.sample(work.of, rounded(ns), rate);
            rates.push((work.amount, rate));
            before = Some((effort, ns));
        }
        Ok(rates)
    }

    fn probe(
        &self,
        op: &'static str,
        attrs: &[(&'static str, AttrValue)],
        inputs: &[(&'static str, &Tensor)],
    ) -> Result<Probe<'d>, ProbeError> {
        Probe::new(self.device, self.kernels, &Question { op, attrs, inputs })
    }

    fn relu(&self, operand: &Tensor) -> Result<Probe<'d>, ProbeError> {
        let attrs = [("T", AttrValue::from(DType::F32))];
        self.probe("Relu", &attrs, &[("features", operand)])
    }

    fn ones(&self, dims: &[usize]) -> Result<Tensor, KernelError> {
        ones(&self.host, dims)
    }

    /// Whether so many bytes leave most of the memory for outputs that the device still uses.
    fn fits(&self, bytes: usize) -> bool {
        let quarter = self.device.memory_capacity_bytes() / 4;
        u64::try_from(bytes).is_ok_and(|bytes| bytes <= quarter)
    }

    /// How often a call that allocates so much memory may be repeated.
    fn calls(&self, bytes: usize) -> Calls {
        let quarter = self.device.memory_capacity_bytes() / 4;
        let room = quarter / u64::try_from(bytes.max(1)).unwrap_or(u64::MAX);
        let max = usize::try_from(room).unwrap_or(usize::MAX);
        Calls {
            min: 1,
            max: max.clamp(1, 256),
        }
    }

    /// Returns the part of a timing that is the kernel's. A kernel that does next to nothing takes
    /// a nanosecond.
    fn of_kernel(&self, ns: f64) -> f64 {
        (ns - self.call_ns).max(1.0)
    }

    fn launch_ns(&self) -> f64 {
        self.found.launch_ns.unwrap_or(0.0)
    }

    fn sample(&mut self, of: String, ns: f64, rate_per_s: f64) {
        self.found.samples.push(Sample { of, ns, rate_per_s });
    }
}

/// Returns host memory filled with ones, since no kernel is slow for that value.
fn ones(host: &HostAllocator, dims: &[usize]) -> Result<Tensor, KernelError> {
    let mut tensor = Tensor::zeros(host, DType::F32, Shape::from(dims))?;
    if let Some(values) = tensor.as_slice_mut::<f32>() {
        values.fill(1.0);
    }
    Ok(tensor)
}

/// Returns the cost of copies, by the times of copies of growing sizes (bytes, ns): the time of the
/// smallest one is the latency.
fn link_rates(times: &[(f64, f64)]) -> Option<LinkRates> {
    let (&(_, latency_ns), others) = times.split_first()?;
    // From sizes whose time is not mostly latency. A device that shares its memory with the host
    // has none.
    let slopes = others
        .iter()
        .map(|(bytes, ns)| (ns - latency_ns).max(0.0) / bytes);
    Some(LinkRates {
        latency_ns,
        ns_per_byte: rounded(median(slopes.collect())),
    })
}

/// The median rate of those that are large enough, or of all if none is.
fn bandwidth(rates: &[(f64, f64)]) -> Option<f64> {
    let is_large = |&&(bytes, _): &&(f64, f64)| bytes >= TRAFFIC_BYTES_MIN;
    let large: Vec<f64> = rates
        .iter()
        .filter(is_large)
        .map(|&(_, rate)| rate)
        .collect();
    let all = || rates.iter().map(|&(_, rate)| rate).collect();
    let counted = if large.is_empty() { all() } else { large };
    (!counted.is_empty()).then(|| median(counted))
}

/// `4 B`, `64 KiB`, `16 MiB`.
fn size_text(bytes: usize) -> String {
    match bytes {
        0..0x400 => format!("{bytes} B"),
        0x400..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// Rounds to four digits. Further digits would be noise, and these survive JSON unchanged.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_four_digits_and_survive_json() {
        assert_eq!(rounded(123_456.0), 123_500.0);
        assert_eq!(rounded(0.0), 0.0);
        for value in [1.234_567e11, 0.012_345_6, 98_765.4, 1e-3] {
            let text = serde_json::to_string(&rounded(value)).unwrap();
            let back: f64 = serde_json::from_str(&text).unwrap();
            assert_eq!(back, rounded(value), "{text}");
        }
    }

    #[test]
    fn small_kernels_do_not_count_for_a_bandwidth_unless_there_are_no_others() {
        let large = (1e9, 10.0);
        assert_eq!(bandwidth(&[(1.0, 1.0), large]), Some(10.0));
        assert_eq!(bandwidth(&[(1.0, 1.0)]), Some(1.0));
        assert_eq!(bandwidth(&[]), None);
    }
}
