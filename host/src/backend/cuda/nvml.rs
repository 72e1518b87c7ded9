//! The NVLinks between GPUs, read from NVML (the library behind `nvidia-smi`): CUDA does not report
//! them.
//!
//! The module maps PCI addresses, as CUDA writes them, to numbers of links. The library is loaded
//! if there is more than one GPU. If it is missing or fails, links are unknown, and nothing else
//! depends on it.

use std::ffi::OsStr;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::nv_link::Capability;
use nvml_wrapper::error::NvmlError;
use tracing::debug;

use crate::trace::targets;

/// The library's file as drivers install it. The name without a version is for building programs
/// against it.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// An upper bound on the links of a GPU (18 in 2025); NVML rejects the first link that does not
/// exist.
const LINKS_MAX: u32 = 64;

/// Vendors of other link ends: IBM's processors have had NVLinks.
const VENDOR_IBM: u32 = 0x1014;

/// Domain, bus and device. CUDA writes domains with four digits and NVML with eight, but neither
/// guarantees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PciAddress([u32; 3]);

impl PciAddress {
    /// Parses an address such as `0000:01:00.0`. The function is ignored, because GPUs have one.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.trim().splitn(3, ':');
        let mut number = |end: char| {
            let field = fields.next()?.split(end).next()?;
            u32::from_str_radix(field, 16).ok()
        };
        let address = [number(':')?, number(':')?, number('.')?];
        Some(Self(address))
    }
}

/// The other end of an active link, as NVML reports it.
#[derive(Debug, Clone)]
struct Remote {
    bus_id: String,
    vendor: u32,
    /// Whether NVML reports a GPU. It does not know which GPUs CUDA uses.
    is_gpu: bool,
}

/// The other end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Position among CUDA's GPUs.
    Gpu(usize),
    /// An NVSwitch, which connects all GPUs that have links to switches.
    Switch,
    /// Not a device of CUDA.
    Other,
}

impl Remote {
    /// NVML has a call that returns the type of a remote device, but the wrapper drops its result
    /// (0.13). So, as in NCCL, a remote that is not a GPU is a switch, which virtual machines see
    /// at an address of ones, or not at all.
    fn end(&self, gpus: &[Option<PciAddress>]) -> End {
        let address = PciAddress::parse(&self.bus_id);
        let known = address.and_then(|_| gpus.iter().position(|gpu| *gpu == address));
        match known {
            Some(gpu) => End::Gpu(gpu),
            None if self.is_gpu || self.vendor == VENDOR_IBM => End::Other,
            None => End::Switch,
        }
    }
}

/// Returns, per GPU, the other GPUs to which NVLinks lead, and the number of links. Links through
/// switches count for each other GPU behind switches, up to the smaller number of both.
fn counts(ends: &[Vec<End>]) -> Vec<Vec<(u32, u32)>> {
    let count = |gpu: usize, end: End| ends[gpu].iter().filter(|&&other| other == end).count();
    let between = |gpu: usize, other: usize| {
        let through = count(gpu, End::Switch).min(count(other, End::Switch));
        count(gpu, End::Gpu(other)) + through
    };
    let id = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let all = 0..ends.len();
    all.clone()
        .map(|gpu| {
            let others = all.clone().filter(|&other| other != gpu);
            others
                .map(|other| (id(other), id(between(gpu, other))))
                .filter(|(_, n)| *n > 0)
                .collect()
        })
        .collect()
}

/// Returns the remote ends of those active links of a GPU over which its memory is accessible.
fn remotes(nvml: &Nvml, bus_id: &str) -> Result<Vec<Remote>, NvmlError> {
    let device = nvml.device_by_pci_bus_id(bus_id)?;
    let mut remotes = Vec::new();
    for link in 0..LINKS_MAX {
        let link = device.link_wrapper_for(link);
        match link.is_active() {
            Ok(true) => {}
            Ok(false) => continue,
            // There are no more links, or none at all.
            Err(NvmlError::InvalidArg | NvmlError::NotSupported) => break,
            Err(error) => return Err(error),
        }
        if !link.has_capability(Capability::P2p).unwrap_or(false) {
            continue;
        }
        let remote = link.remote_pci_info()?;
        remotes.push(Remote {
            is_gpu: nvml.device_by_pci_bus_id(remote.bus_id.as_str()).is_ok(),
            vendor: remote.pci_device_id & 0xffff,
            bus_id: remote.bus_id,
        });
    }
    Ok(remotes)
}

/// Returns, per GPU of these addresses, the positions of the GPUs to which NVLinks lead, and the
/// number of links.
pub(super) fn nvlinks(bus_ids: &[&str]) -> Vec<Vec<(u32, u32)>> {
    let unknown = || vec![Vec::new(); bus_ids.len()];
    if bus_ids.len() < 2 {
        return unknown();
    }
    let nvml = match Nvml::builder().lib_path(OsStr::new(LIBRARY)).init() {
        Ok(nvml) => nvml,
        Err(error) => {
            debug!(target: targets::DEVICE, %error, "NVLinks are unknown: NVML does not start");
            return unknown();
        }
    };
    let gpus: Vec<_> = bus_ids.iter().map(|id| PciAddress::parse(id)).collect();
    let ends: Vec<Vec<End>> = bus_ids
        .iter()
        .map(|&bus_id| match remotes(&nvml, bus_id) {
            Ok(remotes) => remotes.iter().map(|remote| remote.end(&gpus)).collect(),
            Err(error) => {
                debug!(target: targets::DEVICE, bus_id, %error, "the NVLinks of a GPU are unknown");
                Vec::new()
            }
        })
        .collect();
    counts(&ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(bus_id: &str, vendor: u32, is_gpu: bool) -> Remote {
        Remote {
            bus_id: bus_id.to_owned(),
            vendor,
            is_gpu,
        }
    }

    #[test]
    fn addresses_are_equal_whatever_their_number_of_digits() {
        let parse = PciAddress::parse;
        assert_eq!(parse("0000:1a:00.0"), Some(PciAddress([0, 0x1a, 0])));
        assert_eq!(parse("0000:1a:00.0"), parse("00000000:1A:00.0"));
        assert_eq!(parse("0000:1a:00.0"), parse("0:1a:0"));
        assert_ne!(parse("0001:1a:00.0"), parse("00000000:1A:00.0"));
        assert_ne!(parse("0000:1a:01.0"), parse("0000:1a:00.0"));
        for bad in ["", "0000:1a", "0000:xy:00.0", "::", "0000:1a:.0"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_other_end_is_a_gpu_a_switch_or_unknown() {
        let gpus = ["0000:01:00.0", "0000:1a:00.0", "what"].map(PciAddress::parse);
        for (remote, end) in [
            (remote("00000000:1A:00.0", 0x10de, true), End::Gpu(1)),
            // A GPU that CUDA does not use.
            (remote("00000000:1B:00.0", 0x10de, true), End::Other),
            (remote("00000000:1C:00.0", 0x10de, false), End::Switch),
            // As seen in a virtual machine.
            (remote("fffffff:ffff:ff", 0, false), End::Switch),
            (remote("", 0, false), End::Switch),
            (remote("00000004:00:00.0", VENDOR_IBM, false), End::Other),
        ] {
            assert_eq!(remote.end(&gpus), end, "{remote:?}");
        }
    }

    #[test]
    fn links_are_counted_by_pairs_of_gpus() {
        let direct = |others: &[(usize, usize)]| -> Vec<End> {
            let ends = others.iter();
            ends.flat_map(|&(other, n)| vec![End::Gpu(other); n])
                .collect()
        };
        // A ring with one double connection, as on cards that are connected by bridges.
        let ring = [
            direct(&[(1, 2), (3, 1)]),
            direct(&[(0, 2), (2, 1)]),
            direct(&[(1, 1), (3, 1)]),
            [direct(&[(2, 1), (0, 1)]), vec![End::Other]].concat(),
        ];
        assert_eq!(
            counts(&ring),
            [
                vec![(1, 2), (3, 1)],
                vec![(0, 2), (2, 1)],
                vec![(1, 1), (3, 1)],
                vec![(0, 1), (2, 1)]
            ]
        );
        // Behind switches; one link of the second is down, and the last is not connected.
        let switched = [18, 17, 18, 0].map(|n| vec![End::Switch; n]);
        assert_eq!(
            counts(&switched),
            [
                vec![(1, 17), (2, 18)],
                vec![(0, 17), (2, 17)],
                vec![(0, 18), (1, 17)],
                vec![]
            ]
        );
        assert!(counts(&[]).is_empty());
    }

    #[test]
    fn without_nvml_or_other_gpus_nothing_is_known() {
        assert_eq!(nvlinks(&["0000:01:00.0"]), [vec![]]);
        // No card has these addresses, whether or not the library is present.
        assert_eq!(nvlinks(&["ffff:fe:1e.0", "ffff:fe:1f.0"]), [vec![], vec![]]);
    }
}
