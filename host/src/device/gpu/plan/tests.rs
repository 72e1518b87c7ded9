//! Plans for GPUs that need not be there.

use proptest::prelude::*;

use super::*;
use crate::device::gpu::VirtualGpus;

const GIB: u64 = 1 << 30;
const MIN: ComputeCapability = ComputeCapability { major: 3, minor: 5 };

fn gpu() -> PhysicalGpu {
    PhysicalGpu {
        name: "Tesla".to_owned(),
        pci_bus_id: "0000:01:00.0".to_owned(),
        compute_capability: Some(ComputeCapability { major: 7, minor: 5 }),
        n_multiprocessors: 40,
        total_bytes: 16 * GIB,
        available_bytes: 15 * GIB,
        numa_node: 0,
        peers: Vec::new(),
        nvlinks: Vec::new(),
        stream_priorities: -5..=0,
        is_tegra: false,
    }
}

fn small(n_multiprocessors: u32) -> PhysicalGpu {
    PhysicalGpu {
        n_multiprocessors,
        ..gpu()
    }
}

fn plan(
    gpus: &[PhysicalGpu],
    count: Option<u32>,
    options: &GpuOptions,
) -> Result<GpuPlan, GpuPlanError> {
    plan_gpus(gpus, MIN, count, options)
}

/// Ids of the GPUs that the devices are on.
fn used(gpus: &[PhysicalGpu], count: Option<u32>, options: &GpuOptions) -> Vec<u32> {
    let plan = plan(gpus, count, options).unwrap();
    plan.devices.iter().map(|device| device.gpu).collect()
}

fn refused(gpus: &[PhysicalGpu], count: Option<u32>, options: &GpuOptions) -> String {
    plan(gpus, count, options).unwrap_err().to_string()
}

fn listed(list: &str) -> GpuOptions {
    GpuOptions {
        visible_device_list: list.to_owned(),
        ..GpuOptions::default()
    }
}

fn entry(limits: &[f32], ordinals: &[i32], priorities: &[i32]) -> VirtualGpus {
    VirtualGpus {
        memory_limits_mib: limits.to_vec(),
        device_ordinals: ordinals.to_vec(),
        priorities: priorities.to_vec(),
    }
}

fn entries(entries: &[VirtualGpus]) -> GpuOptions {
    GpuOptions {
        virtual_devices: entries.to_vec(),
        ..GpuOptions::default()
    }
}

#[test]
fn the_list_of_visible_gpus_selects_and_orders() {
    let gpus = vec![gpu(); 4];
    assert_eq!(used(&gpus, None, &GpuOptions::default()), [0, 1, 2, 3]);
    assert_eq!(used(&gpus, None, &listed(" 3,1 ")), [3, 1]);
    assert_eq!(used(&gpus, Some(1), &listed("3,1")), [3]);
    assert_eq!(used(&gpus, Some(9), &listed("2")), [2]);
    assert_eq!(used(&[], None, &listed("nonsense")), [0; 0]);
    // No GPU is wanted, so nobody looks at the list.
    assert_eq!(used(&gpus, Some(0), &listed("nonsense")), [0; 0]);
    for (list, fragments) in [
        ("0,x", ["`x`", "`0,x`"]),
        ("0,", ["``", "`0,`"]),
        ("0,4", ["GPU 4", "4 GPUs"]),
        ("-1", ["GPU -1", "4 GPUs"]),
        ("2,0,2", ["GPU 2 twice", "`2,0,2`"]),
    ] {
        let error = refused(&gpus, None, &listed(list));
        for fragment in fragments {
            assert!(error.contains(fragment), "{list}: {error}");
        }
    }
}

#[test]
fn gpus_that_are_not_good_enough_are_left_out_with_a_note() {
    let old = PhysicalGpu {
        compute_capability: Some(ComputeCapability { major: 3, minor: 0 }),
        ..gpu()
    };
    let rocm = PhysicalGpu {
        compute_capability: None,
        ..gpu()
    };
    let gpus = [gpu(), old, small(4), rocm];
    let planned = plan(&gpus, None, &GpuOptions::default()).unwrap();
    assert_eq!(used(&gpus, None, &GpuOptions::default()), [0, 3]);
    assert_eq!(planned.devices[1].index, 1, "indices have no gaps");
    assert!(planned.notes[0].contains("GPU 1") && planned.notes[0].contains("3.0 is below 3.5"));
    assert!(planned.notes[1].contains("GPU 2") && planned.notes[1].contains("4 multiprocessors"));
}

#[test]
fn the_wanted_number_of_multiprocessors_follows_release_and_environment() {
    let wanting = |count: Option<&str>, era| GpuOptions {
        min_multiprocessor_count: count.map(str::to_owned),
        era,
        ..GpuOptions::default()
    };
    let all_small = [small(2), small(4)];
    // The largest of small ones will do, from some release of 2 on.
    assert_eq!(used(&all_small, None, &wanting(None, GpuEra::V2Late)), [1]);
    assert!(used(&all_small, None, &wanting(None, GpuEra::V1)).is_empty());
    assert!(used(&all_small, None, &wanting(None, GpuEra::V0)).is_empty());
    let one = &all_small[..1];
    assert_eq!(used(one, None, &wanting(None, GpuEra::V0)), [0]);
    assert!(used(one, None, &wanting(None, GpuEra::V1)).is_empty());
    assert_eq!(
        used(&all_small, None, &wanting(Some("0"), GpuEra::V1)),
        [0, 1]
    );
    assert_eq!(
        used(&all_small, None, &wanting(Some(" 3 "), GpuEra::V2Late)),
        [1]
    );
    for bad in ["-1", "many"] {
        let options = wanting(Some(bad), GpuEra::V2Late);
        assert_eq!(used(&all_small, None, &options), [1]);
        let notes = plan(&all_small, None, &options).unwrap().notes;
        assert!(notes[0].contains(&format!("`{bad}`")), "{notes:?}");
    }
}

#[test]
fn fractions_and_what_is_left_to_others_decide_the_limit() {
    let limit = |gpu: PhysicalGpu, options: GpuOptions| {
        plan(&[gpu], None, &options).map(|plan| plan.devices[0].memory_limit_bytes)
    };
    let fraction = |fraction, era| GpuOptions {
        per_process_memory_fraction: fraction,
        era,
        ..GpuOptions::default()
    };
    let leaving = |option, variable: &str, era| GpuOptions {
        system_memory_mib: option,
        min_system_memory_mib: Some(variable.to_owned()),
        era,
        ..GpuOptions::default()
    };
    use GpuEra::*;
    assert_eq!(limit(gpu(), fraction(0.5, V0)), Ok(15 * GIB / 2));
    assert_eq!(limit(gpu(), fraction(0.5, V1)), Ok(8 * GIB));
    assert_eq!(limit(gpu(), fraction(2.0, V2Late)), Ok(32 * GIB));
    let reserve = 15 * GIB - 1050 * MIB;
    assert_eq!(limit(gpu(), GpuOptions::default()), Ok(reserve));
    let tegra = || PhysicalGpu {
        is_tegra: true,
        ..gpu()
    };
    assert_eq!(limit(tegra(), GpuOptions::default()), Ok(14 * GIB));
    let newest = PhysicalGpu {
        compute_capability: Some(ComputeCapability {
            major: 12,
            minor: 0,
        }),
        ..gpu()
    };
    let expected = 15 * GIB - 1800 * MIB;
    assert_eq!(limit(newest, GpuOptions::default()), Ok(expected));

    // The variable comes last, also after a fraction; what does not fit, or is no number, is
    // ignored.
    assert_eq!(limit(gpu(), leaving(1024, "", V2Late)), Ok(14 * GIB));
    assert_eq!(limit(gpu(), leaving(1024, "2048", V2Late)), Ok(13 * GIB));
    assert_eq!(limit(gpu(), leaving(1024, "99999", V2Late)), Ok(14 * GIB));
    assert_eq!(limit(gpu(), leaving(99_999, "-3", V2Late)), Ok(reserve));
    assert_eq!(limit(gpu(), leaving(1024, "15360", V2Late)), Ok(0));
    assert_eq!(limit(gpu(), leaving(1024, "0", V2Late)), Ok(15 * GIB));
    assert_eq!(limit(tegra(), leaving(1024, "2048", V1)), Ok(14 * GIB));
    let both = GpuOptions {
        per_process_memory_fraction: 0.5,
        ..leaving(1024, "", V2Late)
    };
    assert_eq!(limit(gpu(), both), Ok(14 * GIB));
    let notes = plan(&[gpu()], None, &leaving(99_999, "-3", V2Late))
        .unwrap()
        .notes;
    assert!(
        notes[0].contains("99999 MiB") && notes[1].contains("`-3`"),
        "{notes:?}"
    );

    for bad in [-0.5, f64::NAN, f64::INFINITY] {
        let error = limit(gpu(), fraction(bad, V2Late)).unwrap_err();
        assert!(matches!(error, GpuPlanError::BadFraction(_)), "{error}");
    }
}

#[test]
fn only_gpus_that_page_take_more_memory_than_there_is() {
    let at = |major, minor| PhysicalGpu {
        compute_capability: Some(ComputeCapability { major, minor }),
        ..gpu()
    };
    let unified = GpuOptions {
        use_unified_memory: true,
        ..GpuOptions::default()
    };
    assert!(plan(&[at(6, 0)], None, &unified).is_ok());
    let error = refused(&[at(6, 0), at(5, 3)], None, &unified);
    assert!(
        error.contains("GPU 1 (compute capability 5.3)") && error.contains("6.0"),
        "{error}"
    );
    // A GPU whose devices have limits is not asked.
    let limits = GpuOptions {
        virtual_devices: vec![entry(&[1024.0], &[], &[])],
        ..unified
    };
    assert!(plan(&[at(5, 3)], None, &limits).is_ok());
}

#[test]
fn devices_are_numbered_by_ordinal_then_by_declaration() {
    let gpus = vec![gpu(); 2];
    let options = entries(&[
        entry(&[1.0, 2.9], &[10, -20], &[0, -1]),
        entry(&[3.0, 4.0], &[10, 30], &[-5, -2]),
    ]);
    let devices = plan(&gpus, None, &options).unwrap().devices;
    let found: Vec<_> = devices
        .iter()
        .map(|device| {
            let mib = device.memory_limit_bytes / MIB;
            (device.index, device.gpu, mib, device.stream_priority)
        })
        .collect();
    // Limits are whole MiB, rounded down.
    assert_eq!(
        found,
        [(0, 0, 2, -1), (1, 0, 1, 0), (2, 1, 3, -5), (3, 1, 4, -2)]
    );

    // Entries without limits, and GPUs without entries, are split into equal parts.
    let mut options = entries(&[entry(&[], &[], &[]), entry(&[7.0], &[], &[])]);
    options.n_virtual_devices_per_gpu = 3;
    let devices = plan(&gpus, None, &options).unwrap().devices;
    let third = (15 * GIB - 1050 * MIB) / 3;
    let found: Vec<_> = devices
        .iter()
        .map(|device| (device.gpu, device.memory_limit_bytes))
        .collect();
    assert_eq!(found, [(0, third), (0, third), (0, third), (1, 7 * MIB)]);
    options.virtual_devices.clear();
    assert_eq!(used(&gpus, Some(1), &options), [0, 0, 0]);
}

#[test]
fn entries_that_do_not_go_with_the_gpus_are_refused() {
    let one = || entry(&[1.0], &[], &[]);
    let two = vec![gpu(); 2];
    let with_list = |list: &str| GpuOptions {
        visible_device_list: list.to_owned(),
        ..entries(&[one()])
    };
    let with_fraction = GpuOptions {
        per_process_memory_fraction: 0.5,
        ..entries(&[one()])
    };
    let rows: [(GpuOptions, Option<u32>, &str); 13] = [
        (with_fraction, None, "per_process_gpu_memory_fraction"),
        (
            entries(&[one(), one(), one()]),
            None,
            "3 entries, and 2 GPUs",
        ),
        (entries(&[one(), one()]), Some(1), "2 entries, and 1 GPUs"),
        (entries(&[one()]), Some(0), "1 entries, and 0 GPUs"),
        (
            with_list("0,1"),
            None,
            "has 2 GPUs, and virtual_devices has 1",
        ),
        (entries(&[one()]), None, "2 GPUs are valid"),
        (
            entries(&[entry(&[1.0], &[1], &[]), one()]),
            None,
            "device ordinals are set for entry 0 and not for entry 1",
        ),
        (
            entries(&[one(), entry(&[1.0], &[1], &[])]),
            None,
            "device ordinals are set for entry 1 and not for entry 0",
        ),
        (
            entries(&[entry(&[1.0, 2.0], &[1], &[]), entry(&[1.0], &[1], &[])]),
            None,
            "entry 0 has 2 memory limits and 1 device ordinals",
        ),
        (
            entries(&[one(), entry(&[1.0], &[], &[0])]),
            None,
            "priorities are set for entry 1 and not for entry 0",
        ),
        (
            entries(&[entry(&[1.0], &[], &[0]), one()]),
            None,
            "entry 1 has 1 memory limits and 0 priorities",
        ),
        (
            entries(&[entry(&[1.0], &[], &[0]), entry(&[1.0], &[], &[-6])]),
            None,
            "priority -6 of entry 1 is outside of the range -5..=0 of GPU 1",
        ),
        (
            entries(&[one(), entry(&[f32::NAN], &[], &[])]),
            None,
            "memory limit NaN MiB of entry 1",
        ),
    ];
    for (options, count, fragment) in rows {
        let error = refused(&two, count, &options);
        assert!(error.contains(fragment), "{error} does not say {fragment}");
    }
    let many = GpuOptions {
        n_virtual_devices_per_gpu: u32::MAX,
        ..GpuOptions::default()
    };
    assert!(refused(&two, None, &many).contains("4294967295 virtual devices on GPU 0"));
}

#[test]
fn localities_link_peers_and_devices_of_one_gpu() {
    let mut gpus = vec![gpu(); 3];
    gpus[0].peers = vec![2];
    // There are links to the second, and no way to use them.
    gpus[0].nvlinks = vec![(1, 4), (2, 12)];
    gpus[1].numa_node = -1;
    gpus[2].numa_node = 3;
    let mut options = entries(&[
        entry(&[1.0], &[], &[]),
        entry(&[1.0], &[], &[]),
        entry(&[1.0, 1.0], &[], &[]),
    ]);
    let planned = plan(&gpus, None, &options).unwrap();
    let links = |index: usize| -> Vec<_> {
        let links = planned.devices[index].locality.links.iter();
        links
            .map(|link| (link.device_index, link.kind.as_str(), link.strength))
            .collect()
    };
    assert_eq!(
        links(0),
        [
            (2, "StreamExecutor", 1),
            (3, "StreamExecutor", 1),
            (2, "NVLINK", 12),
            (3, "NVLINK", 12)
        ]
    );
    assert_eq!(links(1), []);
    assert_eq!(links(2), [(3, "SAME_DEVICE", 1000)]);
    let places = |plan: &GpuPlan| -> Vec<_> {
        let devices = plan.devices.iter();
        devices
            .map(|device| (device.locality.numa_node, device.locality.bus_id))
            .collect()
    };
    assert_eq!(places(&planned), [(0, 1), (0, 1), (3, 4), (3, 4)]);
    assert!(planned.notes[0].contains("GPU 1: its NUMA node is unknown"));
    options.era = GpuEra::V0;
    let old = plan(&gpus, None, &options).unwrap();
    assert_eq!(places(&old), [(0, 1), (0, 1), (3, 0), (3, 0)]);
}

#[test]
fn devices_describe_their_gpu() {
    let description = |gpu: PhysicalGpu, era| {
        let options = GpuOptions {
            era,
            ..GpuOptions::default()
        };
        let mut devices = plan(&[gpu], None, &options).unwrap().devices;
        devices.remove(0).physical_description
    };
    let plain = "device: 0, name: Tesla, pci bus id: 0000:01:00.0";
    let with_capability = format!("{plain}, compute capability: 7.5");
    assert_eq!(description(gpu(), GpuEra::V1), with_capability);
    assert_eq!(description(gpu(), GpuEra::V0), plain);
    let rocm = PhysicalGpu {
        compute_capability: None,
        ..gpu()
    };
    assert_eq!(description(rocm, GpuEra::V2Late), plain);
}

#[test]
fn copy_streams_are_one_to_four() {
    for (wanted, expected, n_notes) in [(0, 1, 0), (1, 1, 0), (4, 4, 0), (5, 1, 1)] {
        let options = GpuOptions {
            n_copy_streams: wanted,
            ..GpuOptions::default()
        };
        let plan = plan(&[gpu()], None, &options).unwrap();
        assert_eq!(plan.devices[0].n_copy_streams, expected);
        assert_eq!(plan.notes.len(), n_notes);
    }
}

proptest! {
    /// Whatever the options: a plan with indices from 0 on usable GPUs within the count, or an
    /// error.
    #[test]
    fn plans_hold_their_promises(
        n_gpus in 0usize..4,
        count in prop::option::of(0u32..5),
        list in prop::option::of("[0-4, x-]{0,6}"),
        limits in prop::collection::vec(prop::collection::vec(0f32..1e9, 0..3), 0..4),
        fraction in -1f64..3.0,
        n_parts in 0u32..400,
    ) {
        let gpus = vec![gpu(); n_gpus];
        let options = GpuOptions {
            visible_device_list: list.unwrap_or_default(),
            per_process_memory_fraction: if limits.is_empty() { fraction } else { 0.0 },
            virtual_devices: limits.iter().map(|limits| entry(limits, &[], &[])).collect(),
            n_virtual_devices_per_gpu: n_parts,
            ..GpuOptions::default()
        };
        match plan(&gpus, count, &options) {
            Err(error) => prop_assert!(!error.to_string().is_empty()),
            Ok(plan) => {
                let indices: Vec<u32> = plan.devices.iter().map(|device| device.index).collect();
                prop_assert_eq!(indices, (0..plan.devices.len() as u32).collect::<Vec<_>>());
                let used: std::collections::BTreeSet<u32> =
                    plan.devices.iter().map(|device| device.gpu).collect();
                prop_assert!(used.iter().all(|&gpu| (gpu as usize) < n_gpus));
                prop_assert!(count.is_none_or(|count| used.len() <= count as usize));
                for device in &plan.devices {
                    for link in &device.locality.links {
                        prop_assert!(link.device_index != device.index as i32);
                    }
                }
            }
        }
    }
}
