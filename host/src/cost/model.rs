//! The cost model: nanoseconds from work and rates.

use crate::cost::classes::LinkEnd;
use crate::device::DeviceRates;
use crate::device::LinkRates;

/// The cost of executions and transfers, in ns. The default is the roofline model (Williams et al.
/// 2009).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct CostModel {
    /// Fraction of a device's floating-point rate that a kernel reaches. The documented rates are
    /// those of a large matmul, so the default is 1.
    pub compute_efficiency: f64,
    /// Fraction of a device's memory bandwidth that a kernel reaches; 1 by default.
    pub memory_efficiency: f64,
}

impl Default for CostModel {
    fn default() -> Self {
        Self {
            compute_efficiency: 1.0,
            memory_efficiency: 1.0,
        }
    }
}

impl CostModel {
    /// Sets the fraction of a device's floating-point rate that a kernel reaches.
    #[must_use]
    pub fn with_compute_efficiency(mut self, fraction: f64) -> Self {
        self.compute_efficiency = fraction;
        self
    }

    /// Sets the fraction of a device's memory bandwidth that a kernel reaches.
    #[must_use]
    pub fn with_memory_efficiency(mut self, fraction: f64) -> Self {
        self.memory_efficiency = fraction;
        self
    }

    /// Returns the cost of one execution: `launch + max(flops / rate, bytes / bandwidth)`, in ns.
    /// +inf if there is no rate for the work; never NaN.
    pub fn execution_ns(&self, flops: f64, traffic_bytes: u64, rates: &DeviceRates) -> f64 {
        #[expect(
            clippy::cast_precision_loss,
            reason = "an estimate of bytes needs 53 bits at most"
        )]
        let bytes = traffic_bytes as f64;
        let compute = seconds(flops, rates.flops_per_s * self.compute_efficiency);
        let memory = seconds(bytes, rates.memory_bytes_per_s * self.memory_efficiency);
        rates.launch_ns.max(0.0) + compute.max(memory) * 1e9
    }

    /// Returns the link between two different devices. CPU devices use host memory: a tensor is
    /// copied once between two of them, and a copy to or from an accelerator costs the
    /// accelerator's link. A copy between two accelerators is staged in host memory and costs both
    /// links. Callers add direct links between accelerators as exceptions.
    pub fn link(&self, src: LinkEnd, dst: LinkEnd) -> LinkRates {
        let (from, to) = (src.host_link.to_host, dst.host_link.from_host);
        match (src.is_host, dst.is_host) {
            (_, true) => from,
            (true, false) => to,
            (false, false) => LinkRates {
                latency_ns: from.latency_ns + to.latency_ns,
                ns_per_byte: from.ns_per_byte + to.ns_per_byte,
            },
        }
    }
}

/// No work takes no time, whatever the rate. Work at rate 0 takes forever.
fn seconds(work: f64, rate_per_s: f64) -> f64 {
    if work <= 0.0 || work.is_nan() {
        0.0
    } else if rate_per_s > 0.0 {
        work / rate_per_s
    } else {
        f64::INFINITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::HostLink;

    fn rates(flops_per_s: f64, memory_bytes_per_s: f64) -> DeviceRates {
        DeviceRates {
            flops_per_s,
            memory_bytes_per_s,
            launch_ns: 500.0,
            ..DeviceRates::default_cpu(1)
        }
    }

    #[test]
    fn the_slower_of_compute_and_memory_decides() {
        let model = CostModel::default();
        let device = rates(1e9, 1e9);
        assert_eq!(model.execution_ns(2000.0, 100, &device), 2500.0);
        assert_eq!(model.execution_ns(100.0, 3000, &device), 3500.0);
        assert_eq!(model.execution_ns(0.0, 0, &device), 500.0);
    }

    #[test]
    fn a_missing_rate_is_infinite_and_never_nan() {
        let model = CostModel::default();
        assert_eq!(model.execution_ns(1.0, 0, &rates(0.0, 1e9)), f64::INFINITY);
        assert_eq!(model.execution_ns(0.0, 0, &rates(0.0, 0.0)), 500.0);
        assert!(!model.execution_ns(f64::NAN, 0, &rates(0.0, 0.0)).is_nan());
    }

    #[test]
    fn accelerators_pay_both_links_and_the_host_none() {
        let rates = |latency_ns, ns_per_byte| LinkRates {
            latency_ns,
            ns_per_byte,
        };
        let end = |is_host, from_host, to_host| LinkEnd {
            is_host,
            host_link: HostLink {
                from_host,
                to_host,
                is_half_duplex: false,
            },
        };
        let cpu = end(true, rates(1.0, 2.0), rates(1.0, 2.0));
        let gpu = end(false, rates(10.0, 20.0), rates(100.0, 200.0));
        let link = |src, dst| {
            let link = CostModel::default().link(src, dst);
            (link.latency_ns, link.ns_per_byte)
        };
        assert_eq!(link(cpu, cpu), (1.0, 2.0));
        assert_eq!(link(cpu, gpu), (10.0, 20.0));
        assert_eq!(link(gpu, cpu), (100.0, 200.0));
        assert_eq!(link(gpu, gpu), (110.0, 220.0));
    }
}
