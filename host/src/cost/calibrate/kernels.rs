//! Times the kernels of all families: alone at growing sizes, and small ones in turns.

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::time::Duration;

use super::Bench;
use super::LAUNCHES;
use super::copies;
use super::rounded;
use crate::cost::calibration::MeasuredKernel;
use crate::cost::families::Family;
use crate::cost::families::families;
use crate::cost::probe::Probe;
use crate::cost::probe::ProbeError;
use crate::cost::probe::deviation;
use crate::cost::probe::median;
use crate::cost::probe::median_ns;
use crate::cost::probe::timed;
use crate::cost::probe::to_f64;

/// Kernels that read weights of at least so many bytes take turns with others, so that all of them
/// have some of these bytes: in a network, weights come from the processor's last cache, not from
/// that of a core.
const COLD_BYTES_MIN: u64 = 128 << 10;
const TURNS_BYTES: u64 = 16 << 20;
const N_TURNS_MAX: u64 = 16;

/// How often all families are timed, one after the other. Other tenants of a machine take more or
/// less of its memory for seconds, so timings of one moment differ more from those of the next
/// minute than the medians of several moments do.
pub(super) const N_PASSES: u32 = 5;

/// Kernels of at most so many nanoseconds, or launches, are timed in turns, if there are at least
/// so many kinds of them. Those that take longer have more code, which is not typical.
const SMALL_NS: f64 = 150.0;
const SMALL_LAUNCHES: f64 = 2.0;
const KINDS_MIN: usize = 8;

impl Bench<'_> {
    /// Times the kernels of all families, several times. A family without a kernel is left out.
    pub(super) fn kernels_by_family(&mut self, begins: &mut dyn FnMut(&'static str)) {
        let mut first_ns = None;
        let mut timings: Vec<Vec<Timings>> = Vec::new();
        timings.resize_with(families().len(), Vec::new);
        for _ in 0..N_PASSES {
            for (family, timings) in families().iter().zip(&mut timings) {
                begins(family.name);
                let now_ns = self.reference_ns();
                // As large as the shortest kernels, so it must be of the same moment.
                self.renew_call_ns();
                first_ns = first_ns.or(now_ns);
                let scale = match (first_ns, now_ns) {
                    (Some(first_ns), Some(now_ns)) => first_ns / now_ns,
                    _ => 1.0,
                };
                // An app's kernel may fail in any way.
                let outcome = catch_unwind(AssertUnwindSafe(|| self.family(family)));
                for (size, kernel) in outcome.unwrap_or_default().into_iter().enumerate() {
                    // Sizes are always timed in the same order, while there is time.
                    if size == timings.len() {
                        timings.push(Timings::default());
                    }
                    timings[size].add(kernel, scale);
                }
            }
        }
        let kernels = timings.into_iter().flatten().filter_map(Timings::median);
        self.found.kernels.extend(kernels);
        self.found.reference_ns = first_ns;
        self.attempt("kernels in turns", Self::cold_calls);
    }

    /// Times small kernels of all families in turns. What this takes longer than each of them
    /// alone is what their code and data in farther caches cost.
    fn cold_calls(&mut self) -> Result<(), ProbeError> {
        let small_ns = SMALL_NS.max(SMALL_LAUNCHES * self.launch_ns());
        let (mut probes, mut alone_ns) = (Vec::new(), 0.0);
        for family in families() {
            let mut of_family = self.found.kernels.iter();
            let least = of_family.find(|kernel| kernel.family == family.name);
            let (Some(least), Some(sample)) = (least, family.samples().next()) else {
                continue;
            };
            let ns = least.hot_ns.unwrap_or(least.ns);
            if ns <= small_ns {
                let (graph, node) = (&sample.graph, sample.node);
                let probe = Probe::of_node(self.device, self.kernels, graph, node)?;
                alone_ns += ns;
                probes.push((probe, None));
            }
        }
        if probes.len() < KINDS_MIN {
            return Ok(());
        }
        let now_ns = self.reference_ns();
        let n_probes = to_f64(probes.len());
        let is_async = self.device.default_context().copies_are_async();
        let round_ns = median_ns(self.device, LAUNCHES, self.budget, || {
            for (probe, place) in &mut probes {
                *place = Some(probe.run(place.take())?);
            }
            // Like a run, which ends with a fetch: a device that works on its own starts anew.
            match probes.last() {
                Some((_, Some(last))) if is_async => {
                    copies::copy_to_host(self.device, last).map(drop)
                }
                _ => Ok(()),
            }
        })?;
        let waiting_ns = self.found.wait_ns.filter(|_| is_async).unwrap_or(0.0);
        let scale = match (self.found.reference_ns, now_ns) {
            (Some(then_ns), Some(now_ns)) => then_ns / now_ns,
            _ => 1.0,
        };
        let of_kernels_ns = (round_ns - n_probes * self.call_ns) * scale;
        let cold_ns = (of_kernels_ns - waiting_ns - alone_ns) / n_probes;
        self.found.cold_ns = Some(rounded(cold_ns.max(0.0)));
        Ok(())
    }

    /// Times the kernels of a family at growing sizes, while they fit the device and the time.
    fn family(&self, family: &Family) -> Vec<MeasuredKernel> {
        let mut took = Duration::ZERO;
        let mut kernels: Vec<MeasuredKernel> = Vec::new();
        for sample in family.samples() {
            let (graph, node) = (&sample.graph, sample.node);
            let (flops, traffic_bytes) = (
                graph.flops()[node.index()],
                graph.traffic_bytes()[node.index()],
            );
            let work = family.work(flops, traffic_bytes);
            if let Some(before) = kernels.last() {
                // Two calls warm up and show how long one takes, and one counts.
                let expected_ns = 3.0 * before.ns * work / before.work.max(1.0);
                let left = self.budget.saturating_sub(took);
                let bytes = usize::try_from(traffic_bytes).unwrap_or(usize::MAX);
                if expected_ns > left.as_secs_f64() * 1e9 || !self.fits(bytes) {
                    break;
                }
            }
            let bytes = usize::try_from(traffic_bytes).unwrap_or(usize::MAX);
            let n_turns = match traffic_bytes {
                COLD_BYTES_MIN.. if family.reads_weights() => {
                    let n_turns = (TURNS_BYTES / traffic_bytes).clamp(2, N_TURNS_MAX);
                    usize::try_from(n_turns).unwrap_or(1)
                }
                _ => 1,
            };
            let n_turns = match self.fits(bytes.saturating_mul(n_turns)) {
                true => n_turns,
                false => 1,
            };
            let measured = |n_probes: usize| {
                let probe = || Probe::of_node(self.device, self.kernels, graph, node);
                let probes: Vec<Probe<'_>> =
                    (0..n_probes).map(|_| probe()).collect::<Result<_, _>>()?;
                let (mut place, mut next) = (None, probes.iter().cycle());
                let call = || {
                    if let Some(probe) = next.next() {
                        place = Some(probe.run(place.take())?);
                    }
                    Ok(())
                };
                let share = self.budget / 4;
                Ok::<_, ProbeError>(timed(self.device, self.calls(bytes), share, call)?)
            };
            let Ok(cold) = measured(n_turns) else {
                break;
            };
            took += cold.took;
            let hot = match n_turns {
                1 => None,
                _ => measured(1).ok(),
            };
            took += hot.map_or(Duration::ZERO, |hot| hot.took);
            kernels.push(MeasuredKernel {
                family: family.name.to_owned(),
                of: sample.describe(),
                work,
                ns: self.of_kernel(cold.ns),
                spread_ns: cold.spread_ns,
                hot_ns: hot.map(|hot| self.of_kernel(hot.ns)),
            });
        }
        kernels
    }
}

/// The timings of a kernel at one size, of several moments.
#[derive(Default)]
struct Timings {
    kernel: Option<MeasuredKernel>,
    ns: Vec<f64>,
    spread_ns: Vec<f64>,
    hot_ns: Vec<f64>,
}

impl Timings {
    fn add(&mut self, kernel: MeasuredKernel, scale: f64) {
        self.ns.push(kernel.ns * scale);
        self.spread_ns.push(kernel.spread_ns * scale);
        self.hot_ns.extend(kernel.hot_ns.map(|ns| ns * scale));
        self.kernel = Some(kernel);
    }

    /// The medians. The spread is that within the moments or that between them, whichever is
    /// larger.
    fn median(self) -> Option<MeasuredKernel> {
        let ns = median(self.ns.clone());
        let spread_ns = median(self.spread_ns).max(deviation(&self.ns, ns));
        Some(MeasuredKernel {
            ns: rounded(ns),
            spread_ns: rounded(spread_ns),
            hot_ns: (!self.hot_ns.is_empty()).then(|| rounded(median(self.hot_ns))),
            ..self.kernel?
        })
    }
}
