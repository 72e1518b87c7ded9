//! Rates of devices and links, from which costs are computed.

use serde::{Deserialize, Serialize};

/// Rates of one device. Devices with equal rates share a column of the cost table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DeviceRates {
    /// Floating-point operations per second of a large matmul.
    pub flops_per_s: f64,
    /// Bytes per second that elementwise kernels read and write.
    pub memory_bytes_per_s: f64,
    /// Fixed cost of one kernel among many, in ns. The host's wait for a result is not included; it
    /// is part of the link.
    pub launch_ns: f64,
    /// Whether the rates were measured on this machine, or a cluster file states them; otherwise
    /// they are documented defaults.
    pub is_calibrated: bool,
    /// Number of compute queues that run independently.
    pub queues: u32,
    /// The link between this device's memory and the host's.
    pub host_link: HostLink,
}

/// The link between a device's memory and the host's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HostLink {
    /// Copies from the host to the device.
    pub from_host: LinkRates,
    /// Copies from the device to the host. The latency includes the wait for the device.
    pub to_host: LinkRates,
    /// Whether copies one way slow down those the other way.
    pub is_half_duplex: bool,
}

impl HostLink {
    /// Creates a link with the same rates both ways, which do not slow each other down.
    pub fn same(rates: LinkRates) -> Self {
        Self {
            from_host: rates,
            to_host: rates,
            is_half_duplex: false,
        }
    }
}

/// Cost of a transfer: `latency_ns + bytes * ns_per_byte`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LinkRates {
    /// Fixed part.
    pub latency_ns: f64,
    /// Part that grows with the size.
    pub ns_per_byte: f64,
}

impl LinkRates {
    /// Whether both are finite and not negative.
    pub(crate) fn is_sound(&self) -> bool {
        let parts = [self.latency_ns, self.ns_per_byte];
        parts.iter().all(|part| part.is_finite() && *part >= 0.0)
    }
}

impl DeviceRates {
    /// Documented default of a CPU device: one server core's worth of AVX-512 `f32` per thread is
    /// about 100 GFLOP/s in practice, a device gets 8 B/ns of memory bandwidth, a kernel costs
    /// 80 ns, and a copy between two CPU devices runs at 10 GB/s after 1 us. Round figures for
    /// planning, marked uncalibrated.
    pub fn default_cpu(n_threads: usize) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "thread counts are small")]
        let threads = n_threads.max(1) as f64;
        Self {
            flops_per_s: 100e9 * threads,
            memory_bytes_per_s: 8e9,
            launch_ns: 80.0,
            is_calibrated: false,
            queues: 1,
            host_link: HostLink::same(LinkRates {
                latency_ns: 1_000.0,
                ns_per_byte: 0.1,
            }),
        }
    }
}
