//! NUMA nodes: the places of processors, memory and cards in the machine, as Linux reports them in
//! its system folder.
//!
//! It takes the folder (`/sys`, or a copy of it), and returns nodes, and the node of a card. It
//! also pins threads.

use std::fs;
use std::io;
use std::path::Path;
use std::path::PathBuf;

use serde::Serialize;
use tracing::info;

use crate::files;
use crate::trace::targets;

/// The folder in which Linux describes the machine.
pub const SYSTEM_ROOT: &str = "/sys";

/// More processors than any machine has. A list with larger numbers is garbage and must not
/// allocate memory.
const MAX_CPU: u32 = 1 << 16;

/// A file of the system folder cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct TopologyError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

/// Processors with a common local memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NumaNode {
    /// The system's number of the node.
    pub id: u32,
    /// Numbers of its processors, ascending; empty if it has only memory.
    pub cpus: Vec<u32>,
    /// Its memory, in bytes, if the system reports it.
    pub memory_bytes: Option<u64>,
    /// The distance of its processors from the memory of each node, in the order of the nodes: 10
    /// for their own, 20 if an access takes twice as long. Empty if the system does not report it.
    pub distances: Vec<u32>,
}

/// The nodes of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct NumaTopology {
    nodes: Vec<NumaNode>,
}

/// A card on the PCI bus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PciDevice {
    /// `DOMAIN:BUS:DEVICE.FUNCTION`, in hexadecimal digits.
    pub address: String,
    /// Its class on the bus: `0x03....` is a display controller, `0x12....` an accelerator.
    pub class: u32,
    /// Its vendor's number.
    pub vendor: u32,
    /// Its node; `None` if the system does not report it.
    pub numa_node: Option<u32>,
}

impl NumaTopology {
    /// Returns the nodes in a system folder, by number. There are none for a kernel without NUMA,
    /// or another system.
    ///
    /// # Errors
    /// [`TopologyError`] for a file that cannot be read or understood.
    pub fn read(root: &Path) -> Result<Self, TopologyError> {
        let folder = root.join("devices/system/node");
        let mut nodes = Vec::new();
        for name in names_in(&folder)? {
            let id = name.strip_prefix("node").map(str::parse);
            let Some(Ok(id)) = id else { continue };
            nodes.push(NumaNode::read(id, &folder.join(name))?);
        }
        nodes.sort_by_key(|node: &NumaNode| node.id);
        let n = nodes.len();
        for node in &nodes {
            if !node.distances.is_empty() && node.distances.len() != n {
                return Err(TopologyError {
                    path: folder.join(format!("node{}/distance", node.id)),
                    problem: format!("{} distances, for {n} nodes", node.distances.len()),
                });
            }
        }
        Ok(Self { nodes })
    }

    /// Returns all nodes, ascending.
    pub fn nodes(&self) -> &[NumaNode] {
        &self.nodes
    }

    /// Returns the nodes with processors, ascending: devices are distributed over these.
    pub fn nodes_with_cpus(&self) -> Vec<&NumaNode> {
        let nodes = self.nodes.iter();
        nodes.filter(|node| !node.cpus.is_empty()).collect()
    }

    /// Returns the distance of the processors of one node from the memory of another
    /// ([`NumaNode::distances`]).
    pub fn distance(&self, from: u32, to: u32) -> Option<u32> {
        let position = |id| self.nodes.iter().position(|node| node.id == id);
        let distances = &self.nodes.get(position(from)?)?.distances;
        distances.get(position(to)?).copied()
    }
}

impl NumaNode {
    fn read(id: u32, folder: &Path) -> Result<Self, TopologyError> {
        let path = folder.join("cpulist");
        let cpus = match text_of(&path)? {
            Some(text) => {
                parse_cpu_list(&text).map_err(|problem| TopologyError { path, problem })?
            }
            None => Vec::new(),
        };
        let path = folder.join("meminfo");
        let memory_bytes = match text_of(&path)? {
            Some(text) => {
                let bytes = parse_memory(&text).ok_or_else(|| TopologyError {
                    path,
                    problem: "no line `Node N MemTotal: X kB`".to_owned(),
                })?;
                Some(bytes)
            }
            None => None,
        };
        let path = folder.join("distance");
        let distances = match text_of(&path)? {
            Some(text) => text
                .split_whitespace()
                .map(str::parse)
                .collect::<Result<_, _>>()
                .map_err(|_| TopologyError {
                    path,
                    problem: format!("`{}` are no distances", text.trim()),
                })?,
            None => Vec::new(),
        };
        Ok(Self {
            id,
            cpus,
            memory_bytes,
            distances,
        })
    }
}

/// Returns the cards of some classes (their first byte, such as `0x03`) on the PCI bus of a system
/// folder, by address.
///
/// # Errors
/// [`TopologyError`] for a file that cannot be read or understood.
pub fn pci_devices(root: &Path, classes: &[u32]) -> Result<Vec<PciDevice>, TopologyError> {
    let folder = root.join("bus/pci/devices");
    let mut devices = Vec::new();
    for address in names_in(&folder)? {
        let number = |file: &str| -> Result<Option<u32>, TopologyError> {
            let path = folder.join(&address).join(file);
            let Some(text) = text_of(&path)? else {
                return Ok(None);
            };
            let digits = text.trim().trim_start_matches("0x");
            let parsed = u32::from_str_radix(digits, 16).map(Some);
            parsed.map_err(|_| TopologyError {
                path,
                problem: format!("`{}` is not a number such as 0x030000", text.trim()),
            })
        };
        let Some(class) = number("class")?.filter(|class| classes.contains(&(class >> 16))) else {
            continue;
        };
        let vendor = number("vendor")?.unwrap_or(0);
        devices.push(PciDevice {
            numa_node: told_pci_numa_node(root, &address)?,
            address,
            class,
            vendor,
        });
    }
    Ok(devices)
}

/// Returns the NUMA node of the card at a PCI address, in upper or lower case. If the system does
/// not report it, or reports -1, the result is 0, as in TensorFlow, and an event says so.
///
/// # Errors
/// [`TopologyError`] for an invalid address, and for a file that cannot be read or understood.
pub fn pci_numa_node(root: &Path, address: &str) -> Result<u32, TopologyError> {
    // Drivers write addresses in capitals, the system in small letters.
    let address = address.to_ascii_lowercase();
    let is_address = |c: char| c.is_ascii_hexdigit() || c == ':' || c == '.';
    if !address.contains(':') || !address.chars().all(is_address) {
        return Err(TopologyError {
            path: root.join("bus/pci/devices"),
            problem: format!("`{address}` is not a PCI address such as 0000:3b:00.0"),
        });
    }
    let told = told_pci_numa_node(root, &address)?;
    if told.is_none() {
        info!(
            target: targets::DEVICE,
            address = %address,
            "the system does not report the NUMA node of the card; node 0 is assumed"
        );
    }
    Ok(told.unwrap_or(0))
}

fn told_pci_numa_node(root: &Path, address: &str) -> Result<Option<u32>, TopologyError> {
    let path = root.join("bus/pci/devices").join(address).join("numa_node");
    let Some(text) = text_of(&path)? else {
        return Ok(None);
    };
    match text.trim().parse::<i64>() {
        Ok(node) => Ok(u32::try_from(node).ok()),
        Err(_) => Err(TopologyError {
            path,
            problem: format!("`{}` is not a NUMA node", text.trim()),
        }),
    }
}

/// Parses a list of processors as Linux writes it; returns the numbers, ascending: `0-3,8`, and
/// with a stride (of each group of 4 the first 2) `0-15:2/4`. The list may be empty.
///
/// # Errors
/// The part that is not valid.
pub fn parse_cpu_list(text: &str) -> Result<Vec<u32>, String> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let wrong = || format!("`{part}` is not a range of processors such as 0-3");
        let number = |text: &str| {
            let number: u32 = text.trim().parse().map_err(|_| wrong())?;
            if number >= MAX_CPU {
                return Err(format!(
                    "`{part}` names processor {number}, which is too large"
                ));
            }
            Ok(number)
        };
        let (range, stride) = match part.split_once(':') {
            Some((range, stride)) => (range, Some(stride.split_once('/').ok_or_else(wrong)?)),
            None => (part, None),
        };
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(range)?, number(range)?),
        };
        let (used, group) = match stride {
            Some((used, group)) => (number(used)?, number(group)?),
            None => (1, 1),
        };
        if first > last || used == 0 || used > group {
            return Err(wrong());
        }
        cpus.extend((first..=last).filter(|cpu| (cpu - first) % group < used));
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

/// Returns the bytes of `Node 0 MemTotal:  65536 kB`.
fn parse_memory(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("MemTotal:"))?;
    let (_, amount) = line.split_once("MemTotal:")?;
    let kib: u64 = amount.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the entries of a folder, sorted; none if there is no such folder.
fn names_in(folder: &Path) -> Result<Vec<String>, TopologyError> {
    let problem = |error: io::Error| TopologyError {
        path: folder.to_owned(),
        problem: error.to_string(),
    };
    let entries = match fs::read_dir(folder) {
        Err(error) if is_absence(&error) => return Ok(Vec::new()),
        entries => entries.map_err(problem)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(problem)?.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

/// Maximum length of a system file: that of a machine with thousands of processors has some
/// thousand bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Returns the contents of a file; `None` if there is none.
fn text_of(path: &Path) -> Result<Option<String>, TopologyError> {
    match files::read_text(path, FILE_BYTES_MAX, "it is not a file of a system folder") {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(TopologyError {
            path: path.to_owned(),
            problem: error.to_string(),
        }),
    }
}

fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Returns the processors that the calling thread may run on, ascending; none if the system does
/// not report them.
#[cfg(target_os = "linux")]
pub fn schedulable_cpus() -> Vec<u32> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return Vec::new();
    };
    let cpus = 0..rustix::thread::CpuSet::MAX_CPU;
    cpus.filter(|&cpu| set.is_set(cpu))
        .filter_map(|cpu| u32::try_from(cpu).ok())
        .collect()
}

/// Returns the processors that the calling thread may run on; none if the system does not report
/// them.
#[cfg(not(target_os = "linux"))]
pub fn schedulable_cpus() -> Vec<u32> {
    Vec::new()
}

/// Restricts the calling thread to these processors.
#[cfg(target_os = "linux")]
pub(crate) fn pin_this_thread(cpus: &[u32]) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for &cpu in cpus {
        if let Ok(cpu) = usize::try_from(cpu)
            && cpu < rustix::thread::CpuSet::MAX_CPU
        {
            set.set(cpu);
        }
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Restricts the calling thread to these processors.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin_this_thread(_: &[u32]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system folder with these files.
    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const TWO_SOCKETS: [(&str, &str); 9] = [
        ("devices/system/node/online", "0,2-3\n"),
        ("devices/system/node/node0/cpulist", "0-1,4\n"),
        (
            "devices/system/node/node0/meminfo",
            "Node 0 MemTotal:       2048 kB\nNode 0 MemFree: 1 kB\n",
        ),
        ("devices/system/node/node0/distance", "10 21 31\n"),
        ("devices/system/node/node2/cpulist", "2-3\n"),
        (
            "devices/system/node/node2/meminfo",
            "Node 2 MemTotal: 4 kB\n",
        ),
        ("devices/system/node/node2/distance", "21 10 17\n"),
        ("devices/system/node/node3/cpulist", "\n"),
        ("devices/system/node/node3/distance", "31 17 10\n"),
    ];

    #[test]
    fn lists_of_processors_are_read_as_linux_writes_them() {
        for (text, cpus) in [
            ("", vec![]),
            ("\n", vec![]),
            ("5", vec![5]),
            ("0-3,8,10-11\n", vec![0, 1, 2, 3, 8, 10, 11]),
            ("8,0-2,1", vec![0, 1, 2, 8]),
            ("0-7:2/4", vec![0, 1, 4, 5]),
        ] {
            assert_eq!(parse_cpu_list(text), Ok(cpus), "{text}");
        }
        for text in [
            "x",
            "3-1",
            "1-",
            "-1",
            "0-3:2",
            "0-3:0/2",
            "0-3:3/2",
            "0-4294967295",
        ] {
            let problem = parse_cpu_list(text).unwrap_err();
            assert!(problem.contains(text), "{text}: {problem}");
        }
    }

    #[test]
    fn nodes_have_processors_memory_and_distances() {
        let root = system(&TWO_SOCKETS);
        let topology = NumaTopology::read(root.path()).unwrap();
        let ids: Vec<_> = topology.nodes().iter().map(|node| node.id).collect();
        assert_eq!(ids, [0, 2, 3]);
        let first = &topology.nodes()[0];
        assert_eq!(first.cpus, [0, 1, 4]);
        assert_eq!(first.memory_bytes, Some(2 << 20));
        assert_eq!(topology.nodes()[2].memory_bytes, None);
        assert_eq!(
            topology.nodes_with_cpus().len(),
            2,
            "node 3 is memory alone"
        );
        assert_eq!(topology.distance(0, 2), Some(21));
        assert_eq!(topology.distance(3, 0), Some(31));
        assert_eq!(topology.distance(0, 1), None, "there is no node 1");
    }

    #[test]
    fn a_system_without_nodes_has_none_and_a_broken_one_names_the_file() {
        let empty = system(&[]);
        let none = NumaTopology::read(empty.path()).unwrap();
        assert!(none.nodes().is_empty());
        for (file, text, problem) in [
            ("cpulist", "0-x", "`0-x`"),
            ("meminfo", "Node 0 MemTotal: much", "MemTotal"),
            ("distance", "ten", "`ten`"),
            ("distance", "10 20", "2 distances, for 1 nodes"),
        ] {
            let path = format!("devices/system/node/node0/{file}");
            let root = system(&[(&path, text)]);
            let error = NumaTopology::read(root.path()).unwrap_err().to_string();
            assert!(error.contains(&path) && error.contains(problem), "{error}");
        }
    }

    #[test]
    fn a_card_without_a_node_is_taken_to_be_on_node_0() {
        let root = system(&[
            ("bus/pci/devices/0000:3b:00.0/numa_node", "1\n"),
            ("bus/pci/devices/0000:3b:00.0/class", "0x030200\n"),
            ("bus/pci/devices/0000:3b:00.0/vendor", "0x10de\n"),
            ("bus/pci/devices/0000:00:02.0/numa_node", "-1\n"),
            ("bus/pci/devices/0000:00:02.0/class", "0x030000\n"),
            ("bus/pci/devices/0000:00:1f.0/class", "0x060100\n"),
            ("bus/pci/devices/0000:00:1e.0/numa_node", "many\n"),
        ]);
        let node = |address| pci_numa_node(root.path(), address);
        assert_eq!(node("0000:3B:00.0"), Ok(1));
        assert_eq!(node("0000:00:02.0"), Ok(0));
        assert_eq!(node("0000:ff:00.0"), Ok(0));
        for wrong in ["0000:00:1e.0", "../x", ""] {
            assert!(node(wrong).is_err(), "{wrong}");
        }
        let found = pci_devices(root.path(), &[0x03]).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|card| (card.address.as_str(), card.vendor, card.numa_node))
            .collect();
        assert_eq!(
            found,
            [("0000:00:02.0", 0, None), ("0000:3b:00.0", 0x10de, Some(1))]
        );
    }

    #[test]
    fn this_machine_can_be_read() {
        NumaTopology::read(Path::new(SYSTEM_ROOT)).unwrap();
        pci_devices(Path::new(SYSTEM_ROOT), &[0x03, 0x12]).unwrap();
    }
}
