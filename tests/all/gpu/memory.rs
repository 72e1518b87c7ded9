//! Memory of GPUs: limits, parts of one GPU, sharing between sessions, lifetimes.

use placewright::backend::cuda::driver::DriverErrorKind;
use placewright::builder::GraphBuilder;
use placewright::device::AllocatorAttributes;
use placewright::device::gpu::VirtualGpus;
use placewright::tensor::Tensor;
use placewright::trace::EventKind;
use placewright::trace::Recorder;
use placewright::trace::TransferWay;

use super::Machine;
use super::floats;
use super::options;
use super::session;
use crate::emulated::EmulatedConfig;

/// `y` = x x + x x. `squared` is fetched, too, so that it is computed separately.
fn squares() -> GraphBuilder {
    let b = GraphBuilder::new("squares");
    let x = b.placeholder::<f32>("x", [Option::<usize>::None]).unwrap();
    let gpu = b.device("/device:GPU:0").unwrap();
    let squared = gpu.named("squared").mul(x, x).unwrap();
    gpu.named("y").add(squared, squared).unwrap();
    b
}

const FETCHES: [&str; 2] = ["y", "squared"];

#[test]
#[needs(Sycl)]
fn a_gpu_without_memory_ends_the_run_and_leaves_nothing_behind() {
    let machine = Machine::new(EmulatedConfig::default());
    let mut options = options(1);
    options.memory_bytes.insert("GPU:0".to_owned(), 4096);
    let small = session(squares(), &machine.open(&options)).build().unwrap();
    let fetched = small.run(&[("x", floats(60))], &FETCHES).unwrap();
    assert_eq!(fetched[0].as_slice::<f32>().unwrap()[4], 8.0);
    let error = small.run(&[("x", floats(600))], &FETCHES).unwrap_err();
    let error = error.to_string();
    for part in ["squared", "Mul", "GPU:0", "2400 bytes", "4096 of 4096"] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    assert!(small.run(&[("x", floats(60))], &FETCHES).is_ok());
    drop((small, fetched));
    machine.check();
}

#[test]
#[needs(Sycl)]
fn a_gpu_filled_by_others_uses_what_is_left() {
    let machine = Machine::new(EmulatedConfig::default());
    let devices = machine.open(&options(1));
    let session = session(squares(), &devices).build().unwrap();
    // The first region would be 2 MiB.
    machine.driver.set_free_bytes(0, 100_000);
    assert!(session.run(&[("x", floats(1000))], &FETCHES).is_ok());
    let error = session.run(&[("x", floats(14_000))], &FETCHES).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("asked for 56000 bytes"), "{error}");
    machine.driver.set_free_bytes(0, 1 << 29);
    assert!(session.run(&[("x", floats(14_000))], &FETCHES).is_ok());
    drop((session, devices));
    machine.check();
}

/// With 4 MiB, and a run that takes 4.6 MiB: two tensors at a time.
#[test]
#[needs(Sycl)]
fn a_device_with_unified_memory_holds_more_than_its_gpu() {
    let small = EmulatedConfig {
        memory_bytes: 4 << 20,
        ..EmulatedConfig::default()
    };
    for (fraction, use_unified_memory, holds) in
        [(1.0, false, false), (1.5, false, true), (1.0, true, false)]
    {
        let machine = Machine::new(small.clone());
        let mut options = options(1);
        options.gpu.allow_growth = false;
        options.gpu.per_process_memory_fraction = fraction;
        options.gpu.use_unified_memory = use_unified_memory;
        let devices = machine.open(&options);
        let session = session(squares(), &devices).build().unwrap();
        let fetched = session.run(&[("x", floats(600_000))], &FETCHES);
        match &fetched {
            Ok(fetched) => assert_eq!(fetched[0].as_slice::<f32>().unwrap()[4], 8.0),
            // The limit is that of the plan, whatever the kind of memory.
            Err(error) => assert!(error.to_string().contains("of 4194304"), "{error}"),
        }
        assert_eq!(fetched.is_ok(), holds, "{fraction}");
        assert!(session.run(&[("x", floats(1000))], &FETCHES).is_ok());
        let too_much = session.run(&[("x", floats(800_000))], &FETCHES);
        assert!(too_much.is_err(), "more than the limit");
        let (own, managed) = (
            machine.driver.live_bytes(),
            machine.driver.live_managed_bytes(),
        );
        let is_unified = fraction > 1.0 || use_unified_memory;
        assert_eq!((own > 0, managed > 0), (!is_unified, is_unified));
        drop((session, devices, fetched));
        machine.check();
    }
}

#[test]
#[needs(Sycl)]
fn unified_memory_is_rejected_without_paging_or_with_another_kind_in_use() {
    let machine = Machine::new(EmulatedConfig {
        has_managed_memory: false,
        ..EmulatedConfig::default()
    });
    let mut unified = options(1);
    unified.gpu.use_unified_memory = true;
    let error = machine.try_open(&unified).unwrap_err().to_string();
    for part in ["GPU:0", "cannot page", "unset use_unified_memory"] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    drop(machine.open(&options(1)));
    machine.check();

    let machine = Machine::new(EmulatedConfig::default());
    for (first, second) in [(&unified, &options(1)), (&options(1), &unified)] {
        let devices = machine.open(first);
        drop(machine.open(first));
        let error = machine.try_open(second).unwrap_err().to_string();
        for part in ["another session", "unified memory", "its own memory"] {
            assert!(error.contains(part), "{error} lacks {part}");
        }
        drop(devices);
        drop(machine.open(second));
    }
    machine.check();
}

#[test]
#[needs(Sycl)]
fn without_growth_the_whole_limit_is_allocated_at_once() {
    let machine = Machine::new(EmulatedConfig::default());
    let mut options = options(1);
    options.gpu.allow_growth = false;
    options.gpu.per_process_memory_fraction = 0.25;
    let devices = machine.open(&options);
    assert_eq!(machine.driver.live_bytes(), 0);
    let session = session(squares(), &devices).build().unwrap();
    for n in [10, 100_000] {
        session.run(&[("x", floats(n))], &FETCHES).unwrap();
        assert_eq!(machine.driver.live_bytes(), 1 << 28);
    }
    assert_eq!(machine.driver.n_calls("allocate"), 1);
    drop((session, devices));
    machine.check();
}

#[test]
#[needs(Sycl)]
fn parts_of_a_gpu_are_devices_that_copy_from_each_other() {
    let machine = Machine::new(EmulatedConfig::default());
    let mut options = options(1);
    options.gpu.virtual_devices = vec![VirtualGpus {
        memory_limits_mib: vec![64.0, 32.0],
        ..VirtualGpus::default()
    }];
    let devices = machine.open(&options);
    let limits: Vec<u64> = devices
        .iter()
        .map(|(_, device)| device.attributes())
        .filter(|attributes| attributes.device_type == "GPU")
        .map(|attributes| {
            let description = &attributes.physical_description;
            assert!(description.starts_with("device: 0,"), "{description}");
            assert_eq!(attributes.locality.links[0].kind, "SAME_DEVICE");
            attributes.memory_limit_bytes
        })
        .collect();
    assert_eq!(limits, [64 << 20, 32 << 20]);
    let b = GraphBuilder::new("both");
    let x = b.placeholder::<f32>("x", [Option::<usize>::None]).unwrap();
    let [first, second] = ["/device:GPU:0", "/device:GPU:1"].map(|name| b.device(name).unwrap());
    let squared = first.named("squared").mul(x, x).unwrap();
    second.named("y").neg(squared).unwrap();
    let recorder = Recorder::on();
    let session = session(b, &devices)
        .with_recorder(recorder.clone())
        .build()
        .unwrap();
    let fetched = session.run(&[("x", floats(5))], &["y"]).unwrap();
    assert_eq!(
        fetched[0].as_slice::<f32>().unwrap(),
        [-4.0, -1.0, 0.0, -1.0, -4.0]
    );
    let is_direct = recorder.events().into_iter().any(|event| {
        matches!(
            event.kind,
            EventKind::Transfer {
                way: TransferWay::Direct,
                ..
            }
        )
    });
    assert!(is_direct);
    drop((session, devices, fetched));
    machine.check();
}

#[test]
#[needs(Sycl)]
fn sessions_of_a_process_share_streams_and_memory_of_a_device() {
    let machine = Machine::new(EmulatedConfig::default());
    let (first, second) = (machine.open(&options(1)), machine.open(&options(1)));
    let n_streams = machine.driver.n_live_streams();
    assert_eq!(n_streams, 4);
    for devices in [&first, &second] {
        let session = session(squares(), devices).build().unwrap();
        session.run(&[("x", floats(10))], &FETCHES).unwrap();
    }
    assert_eq!(machine.driver.n_calls("allocate"), 1);
    assert_eq!(machine.driver.n_calls("open"), 1);
    // A device has the same state in all sessions of a process.
    let mut other = options(1);
    other.gpu.n_compute_streams = 2;
    let refused = machine.try_open(&other).unwrap_err().to_string();
    assert!(refused.contains("another session"), "{refused}");
    drop((first, second));
    assert_eq!(machine.driver.n_live_streams(), 0);
    drop(machine.open(&other));
    machine.check();
}

#[test]
#[needs(Sycl)]
fn fetched_tensors_outlive_the_gpu() {
    let machine = Machine::new(EmulatedConfig::default());
    let devices = machine.open(&options(1));
    let session = session(squares(), &devices).build().unwrap();
    let fetched = session.run(&[("x", floats(3000))], &FETCHES).unwrap();
    drop((session, devices));
    let Machine { driver, factories } = machine;
    drop(factories);
    assert_eq!(fetched[1].as_slice::<f32>().unwrap()[2999], 2997.0 * 2997.0);
    assert!(driver.live_pinned_bytes() > 0);
    drop(fetched);
    assert_eq!(driver.live_pinned_bytes(), 0);
    assert_eq!(driver.violations(), [""; 0]);
}

#[test]
#[needs(Sycl)]
fn invisible_gpus_are_not_opened() {
    let machine = Machine::new(EmulatedConfig {
        n_gpus: 3,
        ..EmulatedConfig::default()
    });
    let mut options = options(1);
    options.gpu.visible_device_list = "2,1".to_owned();
    let devices = machine.open(&options);
    let gpus = devices
        .iter()
        .filter_map(|(_, device)| device.accelerator_info());
    assert_eq!(gpus.map(|info| info.id).collect::<Vec<_>>(), [2, 1]);
    // Each of the two accesses the other; the one that was named first also has pinned memory for
    // CPU devices.
    assert_eq!(machine.driver.n_calls("enable_peer"), 2);
    assert_eq!(machine.driver.n_calls("open"), 2);
    let session = session(squares(), &devices).build().unwrap();
    session.run(&[("x", floats(5))], &FETCHES).unwrap();
    drop((session, devices));
    machine.check();
}

#[test]
#[needs(Sycl)]
fn unused_pinned_memory_is_freed_except_for_some() {
    let machine = Machine::new(EmulatedConfig::default());
    const MIB: u64 = 1 << 20;
    let mut options = options(1);
    options.memory_bytes.insert("CPU:0".to_owned(), 64 * MIB);
    let devices = machine.open(&options);
    let (_, cpu) = devices.iter().next().unwrap();
    let pinned = cpu.allocator(AllocatorAttributes {
        on_host: true,
        gpu_compatible: true,
    });
    let before = machine.driver.live_pinned_bytes();
    let live = || machine.driver.live_pinned_bytes() - before;
    let allocate = |mib: usize| pinned.allocate(mib << 20).unwrap();
    let pieces: Vec<_> = (0..6).map(|_| allocate(8)).collect();
    assert!((48 * MIB..=64 * MIB).contains(&live()), "{}", live());
    drop(pieces);
    // A quarter of the limit.
    assert!((1..=16 * MIB).contains(&live()), "{}", live());
    let n_pinned = machine.driver.n_calls("allocate_pinned");
    drop(allocate(1));
    assert_eq!(machine.driver.n_calls("allocate_pinned"), n_pinned);
    // No kept region is long enough, and the limit allows none besides them.
    let long = allocate(60);
    assert_eq!(live(), 60 * MIB);
    drop(long);
    assert_eq!(live(), 0);
    drop((pinned, devices));
    machine.check();
}

/// Memory remembers whose work has used it, and keeps those streams until their work is known to
/// have ended.
#[test]
#[needs(Sycl)]
fn streams_of_a_device_that_is_gone_are_not_kept_by_memory_of_others() {
    let machine = Machine::new(EmulatedConfig {
        n_gpus: 2,
        ..EmulatedConfig::default()
    });
    let mut one = options(1);
    one.gpu.visible_device_list = "0".to_owned();
    let stays = machine.open(&one);
    let n_streams = machine.driver.n_live_streams();
    let own = session(squares(), &stays).build().unwrap();
    for _ in 0..3 {
        let devices = machine.open(&options(1));
        let b = GraphBuilder::new("both");
        let x = b.placeholder::<f32>("x", [Option::<usize>::None]).unwrap();
        let [first, second] =
            ["/device:GPU:0", "/device:GPU:1"].map(|name| b.device(name).unwrap());
        let squared = first.named("squared").mul(x, x).unwrap();
        second.named("y").neg(squared).unwrap();
        let both = session(b, &devices).build().unwrap();
        both.run(&[("x", floats(5000))], &["y"]).unwrap();
        assert!(machine.driver.n_live_streams() > n_streams);
        drop((both, devices));
        own.run(&[("x", floats(5000))], &FETCHES).unwrap();
    }
    assert_eq!(machine.driver.n_live_streams(), n_streams);
    drop((own, stays));
    machine.check();
}

/// Pinned memory decides which CPU devices there are, and it needs an open GPU.
#[test]
#[needs(Sycl)]
fn no_gpu_is_opened_for_pinned_memory_if_none_becomes_a_device() {
    let usual = || (EmulatedConfig::default(), options(1));
    let mut none_wanted = usual();
    none_wanted.1.device_count.insert("GPU".to_owned(), 0);
    let mut no_compiler = usual();
    no_compiler.0.has_compiler = false;
    let mut too_small = usual();
    too_small.1.gpu.min_multiprocessor_count = Some("1000".to_owned());
    let mut wrong_list = usual();
    wrong_list.1.gpu.visible_device_list = "7".to_owned();
    for (at, (config, options)) in [none_wanted, no_compiler, too_small, wrong_list]
        .into_iter()
        .enumerate()
    {
        let machine = Machine::new(config);
        match machine.try_open(&options) {
            Ok(devices) => {
                assert_eq!(devices.len(), 1, "{at}");
                assert_eq!(devices.type_priority("CPU"), 60);
                assert!(machine.driver.n_calls("open") <= u64::from(at == 2), "{at}");
            }
            Err(error) => {
                assert_eq!((at, machine.driver.n_calls("open")), (3, 0));
                assert!(error.to_string().contains("GPU 7"), "{error}");
            }
        }
        assert_eq!(machine.driver.n_calls("allocate_pinned"), 0);
        machine.check();
    }
}

/// Larger than the pieces in which pageable memory is copied to a GPU.
#[test]
#[needs(Sycl)]
fn large_tensors_are_copied_in_pieces_and_pinned_ones_at_once() {
    let machine = Machine::new(EmulatedConfig::default());
    let devices = machine.open(&options(1));
    let session = session(squares(), &devices).build().unwrap();
    let n = 5_500_000;
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let values: Vec<f32> = (0..n).map(|i| (i % 1013) as f32).collect();
    let x = Tensor::from_values([n], &values).unwrap();
    let run = |x: Tensor| {
        let before = machine.driver.n_calls("copy");
        let fetched = session.run(&[("x", x)], &["squared"]).unwrap();
        let squared = fetched[0].as_slice::<f32>().unwrap();
        let is_squared = |(x, y): (&f32, &f32)| x * x == *y;
        assert!(values.iter().zip(squared).all(is_squared));
        (machine.driver.n_calls("copy") - before, fetched)
    };
    let (n_copies, _) = run(x.clone());
    // 22 MB in pieces of 4 MiB, and one copy back.
    assert_eq!(n_copies, 7);
    let pinned = devices.iter().find_map(|(_, device)| {
        let attributes = AllocatorAttributes {
            on_host: true,
            gpu_compatible: true,
        };
        let is_cpu = device.attributes().device_type == "CPU";
        is_cpu.then(|| device.allocator(attributes))
    });
    let pinned = pinned.unwrap();
    let mut copy = Tensor::zeros(&*pinned, x.dtype(), x.shape().clone()).unwrap();
    copy.as_bytes_mut()
        .unwrap()
        .copy_from_slice(x.as_bytes().unwrap());
    let (n_copies, _) = run(copy);
    assert_eq!(n_copies, 2);
    // Memory that the system does not pin is pageable memory.
    for _ in 0..200 {
        machine
            .driver
            .refuse_next("allocate_pinned", DriverErrorKind::OutOfMemory);
    }
    let mut copy = Tensor::zeros(&*pinned, x.dtype(), [6, n].into()).unwrap();
    assert_eq!(copy.buffer().unwrap().memory_id(), pinned.memory_id());
    assert!(copy.as_bytes_mut().is_some());
    drop((session, devices, pinned, copy));
    machine.check();
}
