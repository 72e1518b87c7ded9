//! Cluster files: what they mean, and what is refused.

use super::*;
use crate::device::DeviceRates;
use crate::device::DeviceSet;
use crate::names::DeviceId;

fn id(devices: &DeviceSet, name: &str) -> DeviceId {
    let found = devices.find_by_name(name);
    found.unwrap_or_else(|| panic!("no device {name}"))
}

fn rates(cluster: &ClusterSpec, name: &str) -> DeviceRates {
    let devices = cluster.devices();
    devices.rates(id(devices, name))
}

fn error(text: &str) -> String {
    ClusterSpec::parse(text).unwrap_err().to_string()
}

const TWO_HOSTS: &str = r#"
name = "two hosts"

[[host]]
job = "worker"
count = 2
network = "lan"
device = [
    { profile = "cpu" },
    { profile = "gpu", count = 2, bus = "switch" },
    { profile = "gpu", count = 2, peer-link = "peers" },
]

[link.lan]
latency = "10 us"
bandwidth = "10 GB/s"

[link.bus]
latency = "1 us"
bandwidth = "20 GB/s"
back-latency = "2 us"

[link.peers]
latency = "500 ns"
bandwidth = "100 GB/s"
half-duplex = true

[profile.cpu]
type = "CPU"
memory = "64 GB"
memory-bandwidth = "100 GB/s"
f32 = "1 TFLOP/s"
launch = "100 ns"

[profile.gpu]
type = "GPU"
memory = "16 GB"
memory-bandwidth = "1 TB/s"
f32 = "10 TFLOP/s"
f16 = "80 TFLOP/s"
compute-efficiency = 0.5
memory-efficiency = 0.8
launch = "2 us"
host-link = "bus"
"#;

#[test]
fn every_profile_and_link_of_the_catalogue_can_be_used() {
    let entries = catalogue();
    let mut n_profiles = 0;
    for entry in &entries {
        assert!(!entry.source.is_empty(), "{}: no source", entry.name);
        let Some(device_type) = &entry.device_type else {
            let text = format!(
                "[[host]]\ncount = 2\nnetwork = \"{}\"\ndevice = [{{ profile = \"epyc-9654\" }}]",
                entry.name
            );
            ClusterSpec::parse(&text).unwrap_or_else(|err| panic!("{}: {err}", entry.name));
            continue;
        };
        n_profiles += 1;
        let text = format!(
            "[[host]]\ndevice = [{{ profile = \"epyc-9654\" }}, {{ profile = \"{}\" }}]",
            entry.name
        );
        let cluster = ClusterSpec::parse(&text);
        let cluster = cluster.unwrap_or_else(|err| panic!("{}: {err}", entry.name));
        let index = usize::from(device_type == "CPU");
        let name = format!("/job:localhost/replica:0/task:0/device:{device_type}:{index}");
        let rates = rates(&cluster, &name);
        assert!(rates.flops_per_s > 1e11, "{}: {rates:?}", entry.name);
        assert!(rates.memory_bytes_per_s > 1e10, "{}: {rates:?}", entry.name);
    }
    assert!(n_profiles >= 30, "{n_profiles}");
}

#[test]
fn rates_are_those_of_the_profile() {
    let cluster = ClusterSpec::parse(TWO_HOSTS).unwrap();
    assert_eq!(cluster.name(), Some("two hosts"));
    assert_eq!(cluster.devices().len(), 10);
    let gpu = rates(&cluster, "/job:worker/replica:0/task:1/device:GPU:3");
    assert_eq!(gpu.flops_per_s, 5e12);
    assert_eq!(gpu.memory_bytes_per_s, 0.8e12);
    assert_eq!(gpu.launch_ns, 2000.0);
    assert_eq!(gpu.host_link.from_host.latency_ns, 1000.0);
    assert_eq!(gpu.host_link.to_host.latency_ns, 2000.0);
    assert_eq!(gpu.host_link.to_host.ns_per_byte, 0.05);
}

#[test]
fn transfers_take_the_links_between_their_devices() {
    let cluster = ClusterSpec::parse(TWO_HOSTS).unwrap();
    let devices = cluster.devices();
    let topology = devices.topology().unwrap();
    let link = |source: &str, destination: &str| {
        let name = |of: &str| {
            let (task, device) = of.split_once('/').unwrap();
            id(
                devices,
                &format!("/job:worker/replica:0/task:{task}/device:{device}"),
            )
        };
        let found = topology.link(name(source), name(destination));
        (found.latency_ns, (found.ns_per_byte * 1e4).round() / 1e4)
    };
    assert_eq!(link("0/CPU:0", "0/GPU:0"), (1_000.0, 0.05));
    assert_eq!(link("0/GPU:0", "0/CPU:0"), (2_000.0, 0.05));
    assert_eq!(
        link("0/GPU:0", "0/GPU:1"),
        (3_000.0, 0.1),
        "through the host"
    );
    assert_eq!(link("0/GPU:2", "0/GPU:3"), (500.0, 0.01), "peers");
    assert_eq!(link("0/GPU:1", "0/GPU:2"), (3_000.0, 0.1));
    assert_eq!(link("0/CPU:0", "1/CPU:0"), (10_000.0, 0.1));
    assert_eq!(link("0/GPU:2", "1/GPU:2"), (13_000.0, 0.2));
    let pipelined = format!("forwarding = \"pipelined\"\n{TWO_HOSTS}");
    let pipelined = ClusterSpec::parse(&pipelined).unwrap();
    let topology = pipelined.devices().topology().unwrap();
    let found = topology.link(DeviceId(1), DeviceId(6));
    assert_eq!((found.latency_ns, found.ns_per_byte), (13_000.0, 0.1));
    // GPU:0 and GPU:1 share a bus, and peers share nothing.
    let buses = topology
        .devices
        .iter()
        .map(|device| device.bus.map(|bus| bus.link_out));
    let buses: Vec<_> = buses.take(5).collect();
    assert_eq!(buses[0], None);
    assert_eq!(buses[1], buses[2]);
    assert_ne!(buses[2], buses[3]);
    let (_, port) = topology.devices[3].network.unwrap();
    assert_eq!(port.link_in, port.link_out, "half duplex");
}

#[test]
fn problems_name_line_and_remedy() {
    let host = "[[host]]\ndevice = [{ profile = \"epyc-9654\" }";
    let cases = [
        ("", "the cluster has no host; add `[[host]]`"),
        ("[[host]]\n", "no device of type CPU"),
        (
            "[[hosts]]\n",
            "line 1, `[[hosts]]`: unknown field `hosts`, expected one of",
        ),
        (
            "[[host]]\ndevice = [{ profile = \"h200\" }]",
            "line 2, `device = [{ profile",
        ),
        (
            "[[host]]\ndevice = [{ profile = \"h200\" }]",
            "there is no profile \"h200\"; known are",
        ),
        (
            &format!("{host}, {{ profile = \"epyc-9654\", count = 0 }}]"),
            "line 2",
        ),
        (
            &format!("{host}, {{ profile = \"epyc-9654\", count = 5000 }}]"),
            "than 4096 devices",
        ),
        (
            &format!("{host}, {{ profile = \"epyc-9654\", count = 4294967295 }}]"),
            "than 4096",
        ),
        (&format!("{host}]\ncount = 2"), "a host has no `network`"),
        (
            &format!("{host}]\ntask = 4294967295\ncount = 2\nnetwork = \"pcie-4-x16\""),
            "tasks",
        ),
        (
            &format!("{host}, {{ profile = \"epyc-9654\", index = 0 }}]"),
            "two devices are named",
        ),
        (
            &format!("{host}, {{ profile = \"epyc-9654\", memory = 7 }}]"),
            "a size such as",
        ),
        (
            &format!("{host}]\n[link.a]\nlatency = \"1 us\"\nbandwidth = \"0 GB/s\""),
            "line 5",
        ),
        (
            &format!("{host}]\n[link.a]\nlatency = \"1 us\"\nefficiency = 1.5"),
            "at most 1",
        ),
        (
            &format!("{host}]\n[link.a]\nlatency = \"1 parsec\""),
            "a time such as",
        ),
        (
            &format!("{host}]\n[[connection]]\nbetween = [\"CPU:0\", \"CPU:1\"]\nlink = \"x\""),
            "there is no link \"x\"",
        ),
    ];
    for (text, expected) in cases {
        let problem = error(text);
        assert!(
            problem.contains(expected),
            "{text}\n{problem}\nlacks: {expected}"
        );
    }
}

#[test]
fn changes_apply_to_the_devices_that_they_name() {
    let cluster = ClusterSpec::parse(TWO_HOSTS).unwrap();
    let changes = Changes::default()
        .with_slower("/job:worker/task:0/device:GPU:1", 4.0)
        .with_memory_bytes("GPU:2", 1 << 30)
        .without("GPU:3");
    let changed = cluster.with_changes(&changes).unwrap();
    assert_eq!(changed.devices().len(), 8);
    let gpu =
        |task: u32, index: u32| format!("/job:worker/replica:0/task:{task}/device:GPU:{index}");
    assert_eq!(rates(&changed, &gpu(0, 1)).flops_per_s, 1.25e12);
    assert_eq!(rates(&changed, &gpu(0, 1)).launch_ns, 8000.0);
    assert_eq!(rates(&changed, &gpu(1, 1)).flops_per_s, 5e12);
    let devices = changed.devices();
    let small = devices.get(id(devices, &gpu(1, 2))).unwrap();
    assert_eq!(small.memory_capacity_bytes(), 1 << 30);
    let no_gpus = cluster.with_changes(&Changes::default().without("GPU"));
    assert_eq!(no_gpus.unwrap().devices().len(), 2);
    let refused = |changes: Changes| cluster.with_changes(&changes).unwrap_err().to_string();
    let refused_of_none = refused(Changes::default().without("TPU:0"));
    assert!(refused_of_none.contains("no device is named TPU:0; there are /job:worker"));
    assert!(refused(Changes::default().without("CPU:0")).contains("no device of type CPU"));
    assert!(refused(Changes::default().with_slower("GPU:0", 0.0)).contains("positive"));
    assert!(refused(Changes::default().without("GPU;x")).contains("not a device name"));
}

#[test]
fn a_written_cluster_is_read_again() {
    let cluster = ClusterSpec::parse(TWO_HOSTS).unwrap();
    let again = ClusterSpec::parse(&cluster.to_toml()).unwrap();
    assert_eq!(again.to_toml(), cluster.to_toml());
    let devices = [&cluster, &again].map(|cluster| cluster.devices());
    assert_eq!(devices[0].topology(), devices[1].topology());
    for (id, device) in devices[0].iter() {
        assert_eq!(devices[0].rates(id), devices[1].rates(id));
        let other = devices[1].get(id).unwrap();
        assert_eq!(device.attributes(), other.attributes());
    }
}

#[test]
fn damaged_files_are_refused_or_understood() {
    let bytes = TWO_HOSTS.as_bytes();
    let mut state = 1u64;
    let mut below = |n: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(state >> 33).unwrap() % n
    };
    let mut n_read = 0;
    for _ in 0..2000 {
        let mut damaged = bytes.to_vec();
        for _ in 0..=below(3) {
            let (from, to) = (below(damaged.len()), below(bytes.len()));
            match below(3) {
                0 => damaged[from] = bytes[to],
                1 => damaged.truncate(from.max(1)),
                _ => damaged.insert(from, b"0129e-+.\"[]{}="[below(14)]),
            }
        }
        let text = String::from_utf8(damaged).unwrap();
        match ClusterSpec::parse(&text) {
            Ok(cluster) => {
                n_read += 1;
                let again = ClusterSpec::parse(&cluster.to_toml()).unwrap();
                assert_eq!(again.devices().len(), cluster.devices().len());
            }
            Err(problem) => assert!(!problem.to_string().is_empty()),
        }
    }
    assert!(n_read > 20, "{n_read}");
}

/// A CPU and an accelerator in its socket, with a thread each, and the expected time of a task of
/// 1 ms on each of them.
fn in_one_socket(n_processors: u32) -> (Vec<u32>, f64) {
    let text = format!(
        r#"
        [[host]]
        processors = {n_processors}
        device = [{{ profile = "cpu" }}, {{ profile = "npu" }}]

        [profile.cpu]
        type = "CPU"
        memory = "16 GB"
        memory-bandwidth = "100 GB/s"
        f32 = "1 TFLOP/s"
        launch = "0 ns"
        chip = "socket"
        threads = 1

        [profile.npu]
        type = "NPU"
        memory = "16 GB"
        memory-bandwidth = "100 GB/s"
        f32 = "1 TFLOP/s"
        launch = "0 ns"
        host-link = "socket"
        chip = "socket"
        threads = 1

        [link.socket]
        latency = "1 us"
        bandwidth = "100 GB/s"
        "#
    );
    let cluster = ClusterSpec::parse(&text).unwrap();
    let tasks = crate::dag::TaskGraph::parse(
        r#"{ "tasks": [
            { "name": "a", "time": { "CPU": "1 ms", "NPU": "1 ms" } },
            { "name": "b", "time": { "CPU": "1 ms", "NPU": "1 ms" } }
        ] }"#,
    );
    let candidates = tasks.unwrap().candidates(cluster.devices()).unwrap();
    let mut plan = crate::placement::Evaluator::new(&candidates);
    plan.set_devices(&[0, 1]);
    (candidates.devices().competing_chips(), plan.makespan_ns())
}

#[test]
fn devices_of_a_chip_compete_if_it_has_fewer_threads_than_they() {
    // Besides the tasks, the host's dispatch takes part of a microsecond.
    for (n_processors, chips, expected_ns) in [(2, vec![0, 1], 1e6), (1, vec![0, 0], 2e6)] {
        let (found, makespan_ns) = in_one_socket(n_processors);
        assert_eq!(found, chips);
        let dispatch_ns = makespan_ns - expected_ns;
        assert!((0.0..1e3).contains(&dispatch_ns), "{makespan_ns}");
    }
}
