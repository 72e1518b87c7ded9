//! What was measured of one device, and the rates that plans make of it.

use serde::Deserialize;
use serde::Serialize;

use crate::device::DeviceProfile;
use crate::device::LinkProfile;

/// Figures of one device, measured while it was alone. `None`: it could not be measured, and
/// [`Self::missing`] says why.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Floating-point operations per second of the fastest `f32` matrix product that was tried.
    pub flops_per_s: Option<f64>,
    /// Bytes per second that elementwise kernels read and write; the median over ops and sizes.
    pub elementwise_bytes_per_s: Option<f64>,
    /// Bytes per second that sums read; the median over axes and sizes. Shown, but no part of
    /// [`Self::profile`]: plans know one bandwidth per device, and most of what they place is
    /// elementwise.
    pub reduction_bytes_per_s: Option<f64>,
    /// One of many tiny kernels that each read what the one before has made, in ns: what a kernel
    /// costs besides its work.
    pub launch_ns: Option<f64>,
    /// Getting one number that a kernel just started is to make, besides the kernel, in ns: what
    /// it costs the host to wait.
    pub wait_ns: Option<f64>,
    /// The ways between its memory and others.
    pub links: Vec<MeasuredLink>,
    /// What all this was taken from.
    pub samples: Vec<Sample>,
    /// What could not be measured, and why.
    pub missing: Vec<String>,
}

/// A way between a device's memory and another one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredLink {
    /// Which way.
    pub direction: LinkDirection,
    /// What it costs.
    pub profile: LinkProfile,
}

/// Where a link leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LinkDirection {
    /// From the host's memory to the device's.
    FromHost,
    /// From the device's memory to the host's.
    ToHost,
}

/// The median of some timings of one thing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// What was timed, with its size.
    pub of: String,
    /// Time of one, in ns.
    pub ns: f64,
    /// Its work by that time, less the launch of the kernel: floating-point operations of products
    /// per second, bytes of everything else.
    pub rate_per_s: f64,
}

impl Calibration {
    /// The rates of a device that states others: what was measured stands in their place. Where
    /// several devices share threads, each gets a part of the rates
    /// ([`Device::n_sharing_rates`](crate::device::Device::n_sharing_rates)). The profile is
    /// calibrated if all that costs of kernels are computed from was measured.
    pub fn profile(&self, stated: DeviceProfile, n_sharing_rates: u32) -> DeviceProfile {
        let n_sharing = f64::from(n_sharing_rates.max(1));
        let part = |measured: Option<f64>, stated| measured.map_or(stated, |rate| rate / n_sharing);
        DeviceProfile {
            flops_per_s: part(self.flops_per_s, stated.flops_per_s),
            memory_bytes_per_s: part(self.elementwise_bytes_per_s, stated.memory_bytes_per_s),
            launch_ns: self.launch_ns.unwrap_or(stated.launch_ns),
            is_calibrated: self.flops_per_s.is_some()
                && self.elementwise_bytes_per_s.is_some()
                && self.launch_ns.is_some(),
            queues: stated.queues,
            host_link: self.host_link().unwrap_or(stated.host_link),
        }
    }

    /// A way that was measured.
    pub fn link(&self, direction: &LinkDirection) -> Option<LinkProfile> {
        let mut links = self.links.iter();
        let link = links.find(|link| link.direction == *direction);
        link.map(|link| link.profile)
    }

    /// The mean of both ways, as a profile knows one link. Whoever copies to the host in a plan
    /// waits for the kernel before, so waiting counts there.
    fn host_link(&self) -> Option<LinkProfile> {
        let from_host = self.link(&LinkDirection::FromHost)?;
        let to_host = self.link(&LinkDirection::ToHost)?;
        let waiting_ns = to_host.latency_ns.max(self.wait_ns.unwrap_or(0.0));
        Some(LinkProfile {
            latency_ns: f64::midpoint(from_host.latency_ns, waiting_ns),
            ns_per_byte: f64::midpoint(from_host.ns_per_byte, to_host.ns_per_byte),
        })
    }

    /// Whether no figure of it was measured.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Whether rates are positive, times not negative, and all of them finite: anything else makes
    /// every estimate nonsense.
    pub(super) fn is_sound(&self) -> bool {
        let rates = [
            self.flops_per_s,
            self.elementwise_bytes_per_s,
            self.reduction_bytes_per_s,
        ];
        let times = [self.launch_ns, self.wait_ns].into_iter().flatten();
        let links = self.links.iter().map(|link| link.profile);
        let links = links.flat_map(|link| [link.latency_ns, link.ns_per_byte]);
        let is_rate = |rate: f64| rate.is_finite() && rate > 0.0;
        let is_time = |ns: f64| ns.is_finite() && ns >= 0.0;
        rates.into_iter().flatten().all(is_rate)
            && times.chain(links).all(is_time)
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
            profile: LinkProfile {
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
    fn what_was_measured_stands_for_what_is_stated_and_the_rest_stays() {
        let stated = DeviceProfile::default_cpu(2);
        let profile = measured().profile(stated, 1);
        let expected = DeviceProfile {
            flops_per_s: 4e11,
            memory_bytes_per_s: 2e10,
            launch_ns: 100.0,
            is_calibrated: true,
            ..stated
        };
        assert_eq!(profile, expected);
        let without_products = Calibration {
            flops_per_s: None,
            ..measured()
        };
        let expected = DeviceProfile {
            flops_per_s: stated.flops_per_s,
            is_calibrated: false,
            ..expected
        };
        assert_eq!(without_products.profile(stated, 1), expected);
    }

    #[test]
    fn devices_that_share_threads_get_a_part_of_the_rates() {
        let whole = measured().profile(DeviceProfile::default_cpu(2), 1);
        let part = measured().profile(DeviceProfile::default_cpu(2), 4);
        assert_eq!(part.flops_per_s * 4.0, whole.flops_per_s);
        assert_eq!(part.memory_bytes_per_s * 4.0, whole.memory_bytes_per_s);
        assert_eq!(part.launch_ns, whole.launch_ns);
    }

    #[test]
    fn the_host_link_is_the_mean_of_both_ways_and_waits() {
        let stated = DeviceProfile::default_cpu(1);
        let mut calibration = measured();
        calibration.links = vec![link(LinkDirection::FromHost, 100.0, 0.25)];
        assert_eq!(calibration.profile(stated, 1).host_link, stated.host_link);
        let to_host = link(LinkDirection::ToHost, 300.0, 0.75);
        calibration.links.push(to_host);
        let host_link = |calibration: &Calibration| {
            let link = calibration.profile(stated, 1).host_link;
            (link.latency_ns, link.ns_per_byte)
        };
        assert_eq!(host_link(&calibration), (200.0, 0.5));
        calibration.wait_ns = Some(900.0);
        assert_eq!(host_link(&calibration), (500.0, 0.5));
    }

    #[test]
    fn figures_that_no_clock_gives_are_noticed() {
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
