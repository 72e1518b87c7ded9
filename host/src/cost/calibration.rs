//! The measured figures of one device, and the rates that the cost model derives from them.

use serde::Deserialize;
use serde::Serialize;

use crate::device::DeviceRates;
use crate::device::HostLink;
use crate::device::LinkRates;

/// Processors that other programs may keep busy while a device is measured.
pub const OTHERS_BUSY_MAX: f64 = 0.25;

/// Figures of one device, measured while the machine was otherwise idle. A figure is `None` if it
/// could not be measured; [`Self::missing`] gives the reason.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Floating-point operations per second of the fastest `f32` matmul that was tried.
    pub flops_per_s: Option<f64>,
    /// Bytes per second that elementwise kernels read and write; the median over ops and sizes.
    pub elementwise_bytes_per_s: Option<f64>,
    /// Bytes per second that sums read; the median over axes and sizes. Reports show it, but
    /// [`Self::rates`] do not contain it: the cost model has one bandwidth per device, and
    /// most nodes are elementwise.
    pub reduction_bytes_per_s: Option<f64>,
    /// Overhead of one kernel, in ns: the time per kernel in a chain of tiny kernels, each of
    /// which reads the output of the previous one.
    pub launch_ns: Option<f64>,
    /// Time that the host spends waiting for a kernel, in ns: reading one number right after the
    /// launch of the kernel that computes it, less the kernel's own time.
    pub wait_ns: Option<f64>,
    /// Times of kernels, by family and size, the least work of each family first.
    #[serde(default)]
    pub kernels: Vec<MeasuredKernel>,
    /// By how much longer a small kernel takes, in ns, if other kernels were executed since its
    /// last execution, as in a run: the caches hold less of what it needs.
    #[serde(default)]
    pub cold_ns: Option<f64>,
    /// Time of the product by which all times of [`Self::kernels`] are related to the same clock
    /// rate, in ns: processors change theirs.
    #[serde(default)]
    pub reference_ns: Option<f64>,
    /// Processors that other programs kept busy meanwhile, on average, if the system tells: more
    /// than [`OTHERS_BUSY_MAX`] distorts the figures.
    #[serde(default)]
    pub others_busy: Option<f64>,
    /// Links between its memory and other memories.
    pub links: Vec<MeasuredLink>,
    /// Whether copies to the host and from it slow each other down when they happen at one time.
    pub is_half_duplex: bool,
    /// If the device compiles chains of elementwise nodes into one kernel: the least number of
    /// elements of a row for which it does. Of a chain, only the last node then takes time, and the
    /// arithmetic of functions such as `Exp`.
    pub fused_row_min: Option<usize>,
    /// The timings behind these figures.
    pub samples: Vec<Sample>,
    /// The figures that could not be measured, with reasons.
    pub missing: Vec<String>,
}

/// One size of a family of kernels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredKernel {
    /// The family.
    pub family: String,
    /// Op and shapes.
    pub of: String,
    /// Floating-point operations of products and convolutions; bytes read and written of others.
    pub work: f64,
    /// Median time of one execution, in ns.
    pub ns: f64,
    /// Standard deviation of the timings, in ns, without single slow ones.
    pub spread_ns: f64,
    /// The time if the weights are in the cache of a core, in ns, if [`Self::ns`] is that of
    /// weights that are not: those of a small graph stay there from one run to the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot_ns: Option<f64>,
}

impl MeasuredKernel {
    pub(super) fn is_sound(&self) -> bool {
        [self.work, self.ns, self.spread_ns]
            .iter()
            .chain(&self.hot_ns)
            .all(|number| number.is_finite() && *number >= 0.0)
    }
}

/// One direction of a link between a device's memory and another memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredLink {
    /// The direction.
    pub direction: LinkDirection,
    /// The cost of copies.
    pub rates: LinkRates,
}

/// The direction of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LinkDirection {
    /// From host memory to the device's memory.
    FromHost,
    /// From the device's memory to host memory.
    ToHost,
}

/// The median of several timings of one operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// The operation and its size.
    pub of: String,
    /// Time of one execution, in ns.
    pub ns: f64,
    /// Work per second, without the launch time of the kernel: floating-point operations for
    /// matmuls, bytes for everything else.
    pub rate_per_s: f64,
}

impl Calibration {
    /// Returns the stated rates of a device with measured rates in place of stated ones. They count
    /// as calibrated if every rate that kernel costs depend on was measured.
    pub fn rates(&self, stated: DeviceRates) -> DeviceRates {
        DeviceRates {
            flops_per_s: self.flops_per_s.unwrap_or(stated.flops_per_s),
            memory_bytes_per_s: self
                .elementwise_bytes_per_s
                .unwrap_or(stated.memory_bytes_per_s),
            launch_ns: self.launch_ns.unwrap_or(stated.launch_ns),
            is_calibrated: self.flops_per_s.is_some()
                && self.elementwise_bytes_per_s.is_some()
                && self.launch_ns.is_some(),
            queues: stated.queues,
            host_link: self.host_link().unwrap_or(stated.host_link),
        }
    }

    /// Returns the link in a direction, if it was measured.
    pub fn link(&self, direction: &LinkDirection) -> Option<LinkRates> {
        let mut links = self.links.iter();
        let link = links.find(|link| link.direction == *direction);
        link.map(|link| link.rates)
    }

    /// Returns the link to the host, if both ways were measured. In a plan, a copy to the host
    /// waits for the preceding kernel, so its latency includes the wait time.
    fn host_link(&self) -> Option<HostLink> {
        let from_host = self.link(&LinkDirection::FromHost)?;
        let to_host = self.link(&LinkDirection::ToHost)?;
        Some(HostLink {
            from_host,
            to_host: LinkRates {
                latency_ns: to_host.latency_ns.max(self.wait_ns.unwrap_or(0.0)),
                ..to_host
            },
            is_half_duplex: self.is_half_duplex,
        })
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Whether rates are positive, times are not negative, and all are finite. Other values would
    /// make estimates meaningless.
    pub(super) fn is_sound(&self) -> bool {
        let rates = [
            self.flops_per_s,
            self.elementwise_bytes_per_s,
            self.reduction_bytes_per_s,
        ];
        let times = [self.launch_ns, self.wait_ns].into_iter().flatten();
        let links = self.links.iter().map(|link| link.rates);
        let links = links.flat_map(|link| [link.latency_ns, link.ns_per_byte]);
        let times = times.chain(self.reference_ns);
        let is_rate = |rate: f64| rate.is_finite() && rate > 0.0;
        let is_time = |ns: f64| ns.is_finite() && ns >= 0.0;
        rates.into_iter().flatten().all(is_rate)
            && times.chain(links).all(is_time)
            && self.kernels.iter().all(MeasuredKernel::is_sound)
            && self
                .samples
                .iter()
                .all(|sample| is_time(sample.ns) && is_rate(sample.rate_per_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(direction: LinkDirection, latency_ns: f64, ns_per_byte: f64) -> MeasuredLink {
        MeasuredLink {
            direction,
            rates: LinkRates {
                latency_ns,
                ns_per_byte,
            },
        }
    }

    fn measured() -> Calibration {
        Calibration {
            flops_per_s: Some(4e11),
            elementwise_bytes_per_s: Some(2e10),
            launch_ns: Some(100.0),
            ..Calibration::default()
        }
    }

    #[test]
    fn measured_rates_replace_stated_ones_and_the_rest_stays() {
        let stated = DeviceRates::default_cpu(2);
        let rates = measured().rates(stated);
        let expected = DeviceRates {
            flops_per_s: 4e11,
            memory_bytes_per_s: 2e10,
            launch_ns: 100.0,
            is_calibrated: true,
            ..stated
        };
        assert_eq!(rates, expected);
        let without_matmuls = Calibration {
            flops_per_s: None,
            ..measured()
        };
        let expected = DeviceRates {
            flops_per_s: stated.flops_per_s,
            is_calibrated: false,
            ..expected
        };
        assert_eq!(without_matmuls.rates(stated), expected);
    }

    #[test]
    fn the_host_link_has_both_directions_and_waits() {
        let stated = DeviceRates::default_cpu(1);
        let mut calibration = measured();
        calibration.links = vec![link(LinkDirection::FromHost, 100.0, 0.25)];
        assert_eq!(calibration.rates(stated).host_link, stated.host_link);
        let to_host = link(LinkDirection::ToHost, 300.0, 0.75);
        calibration.links.push(to_host);
        let host_link = |calibration: &Calibration| {
            let link = calibration.rates(stated).host_link;
            [link.from_host, link.to_host].map(|rates| (rates.latency_ns, rates.ns_per_byte))
        };
        assert_eq!(host_link(&calibration), [(100.0, 0.25), (300.0, 0.75)]);
        calibration.wait_ns = Some(900.0);
        assert_eq!(host_link(&calibration), [(100.0, 0.25), (900.0, 0.75)]);
    }

    #[test]
    fn invalid_figures_are_noticed() {
        assert!(measured().is_sound());
        let bad: [fn(&mut Calibration); 4] = [
            |it| it.flops_per_s = Some(0.0),
            |it| it.launch_ns = Some(-1.0),
            |it| it.elementwise_bytes_per_s = Some(f64::INFINITY),
            |it| it.links = vec![link(LinkDirection::ToHost, f64::NAN, 0.0)],
        ];
        for change in bad {
            let mut calibration = measured();
            change(&mut calibration);
            assert!(!calibration.is_sound(), "{calibration:?}");
        }
    }
}
