//! Measures what it costs to read a tensor for the first time after another processor wrote it.
//!
//! A device that shares its memory with the host copies nothing, but the bytes are still in the
//! cache of the core that wrote them: its kernels read them several times as slowly as their own.

use std::panic::resume_unwind;
use std::thread;
use std::time::Instant;

use super::Bench;
use super::copies::copy_to_host;
use super::rounded;
use super::size_text;
use crate::cost::calibration::LinkDirection;
use crate::cost::probe::Probe;
use crate::cost::probe::ProbeError;
use crate::cost::probe::median;
use crate::cost::probe::nanoseconds;
use crate::cost::probe::to_f64;
use crate::device::KernelError;
use crate::tensor::Tensor;

/// Sizes of activations. Larger ones come from the main memory in any case.
const SIZES_BYTES: [usize; 3] = [256 << 10, 1 << 20, 4 << 20];

/// Tensors of each size.
const N_ROUNDS: usize = 33;

/// Times of one tensor, in ns: read by the receiver for the first time and again.
struct Reads {
    first_ns: f64,
    again_ns: f64,
}

impl Bench<'_> {
    /// Adds to the links of a device that copies on its own what first reads cost.
    pub(super) fn first_reads(&mut self) -> Result<(), ProbeError> {
        let is_async = self.device.default_context().copies_are_async();
        // A machine with one core has no other caches.
        let n_cores = thread::available_parallelism().map_or(1, usize::from);
        if self.found.links.len() != 2 || !is_async || n_cores == 1 {
            return Ok(());
        }
        for direction in [LinkDirection::FromHost, LinkDirection::ToHost] {
            // A first read by a kernel comes after a copy, whose latency the link has already.
            let mut links = self.found.links.iter();
            let link = links.find(|link| link.direction == direction);
            let copying_ns = match direction {
                LinkDirection::FromHost => link.map_or(0.0, |link| link.rates.latency_ns),
                LinkDirection::ToHost => 0.0,
            };
            let mut slopes = Vec::new();
            for bytes in SIZES_BYTES {
                if !self.fits(bytes) {
                    break;
                }
                let probe = self.relu(&self.ones(&[bytes / 4])?)?;
                // The first one compiles and allocates.
                self.read(&direction, &probe, bytes)?;
                let reads = (0..N_ROUNDS).map(|_| self.read(&direction, &probe, bytes));
                let reads: Vec<Reads> = reads.collect::<Result<_, _>>()?;
                let first_ns = median(reads.iter().map(|reads| reads.first_ns).collect());
                // The differences of neighbours: each moment has its own speed.
                let more_ns = reads.iter().map(|reads| reads.first_ns - reads.again_ns);
                let more_ns = (median(more_ns.collect()) - copying_ns).max(0.0);
                let of = match direction {
                    LinkDirection::FromHost => "from the host, read by a kernel",
                    LinkDirection::ToHost => "from the device, read by the host",
                };
                let rate = rounded(to_f64(bytes) / first_ns.max(1.0) * 1e9);
                self.sample(
                    format!("{} {of}", size_text(bytes)),
                    rounded(first_ns),
                    rate,
                );
                slopes.push(more_ns / to_f64(bytes));
            }
            // The size that a cache holds is the dearest.
            let ns_per_byte = rounded(slopes.into_iter().fold(0.0, f64::max));
            let links = self.found.links.iter_mut();
            for link in links.filter(|link| link.direction == direction) {
                link.rates.ns_per_byte = link.rates.ns_per_byte.max(ns_per_byte);
            }
        }
        Ok(())
    }

    fn read(
        &self,
        direction: &LinkDirection,
        probe: &Probe<'_>,
        bytes: usize,
    ) -> Result<Reads, KernelError> {
        match direction {
            LinkDirection::FromHost => self.read_by_device(probe, bytes),
            LinkDirection::ToHost => self.read_by_host(probe),
        }
    }

    /// A kernel reads a tensor that another core has written, and then what it has written itself.
    /// The calling thread waits for the kernel and hence executes it. The second time contains no
    /// copy, so the difference is the whole cost of the transfer.
    fn read_by_device(&self, probe: &Probe<'_>, bytes: usize) -> Result<Reads, KernelError> {
        let context = self.device.default_context();
        let written = on_another_core(|| self.ones(&[bytes / 4]))?;
        let time = |input: &mut dyn FnMut() -> Result<Tensor, KernelError>| {
            self.device.sync()?;
            let started = Instant::now();
            let output = probe.run_on(&[input()?], None)?;
            copy_to_host(self.device, &output)?;
            Ok::<_, KernelError>((output, nanoseconds(started.elapsed())))
        };
        let (own, first_ns) = time(&mut || context.copy_from_host(&written))?;
        let (_, again_ns) = time(&mut || Ok(own.clone()))?;
        Ok(Reads { first_ns, again_ns })
    }

    /// The calling thread reads what a kernel has written on another core, twice.
    fn read_by_host(&self, probe: &Probe<'_>) -> Result<Reads, KernelError> {
        let there = on_another_core(|| copy_to_host(self.device, &probe.run(None)?))?;
        let values = there.as_slice::<f32>()?;
        let time = || {
            let started = Instant::now();
            let (chunks, rest) = values.as_chunks::<16>();
            let mut sums = [0.0; 16];
            for chunk in chunks {
                for (sum, value) in sums.iter_mut().zip(chunk) {
                    *sum += value;
                }
            }
            std::hint::black_box((sums, rest));
            nanoseconds(started.elapsed())
        };
        Ok(Reads {
            first_ns: time(),
            again_ns: time(),
        })
    }
}

/// Runs `work` on another thread while this one keeps its core busy.
fn on_another_core<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let other = scope.spawn(work);
        while !other.is_finished() {
            std::hint::spin_loop();
        }
        other.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}
