//! GPUs that fail on request.

use placewright::backend::cuda::driver::DriverErrorKind::Lost;
use placewright::backend::cuda::driver::DriverErrorKind::OutOfMemory;
use placewright::backend::cuda::driver::DriverErrorKind::Refused;

use super::*;

#[track_caller]
fn assert_kind<T: std::fmt::Debug>(result: Result<T, DriverError>, kind: DriverErrorKind) {
    assert_eq!(result.unwrap_err().kind, kind);
}

#[test]
#[needs(Sycl)]
fn a_lost_gpu_fails_every_call_until_it_is_opened_again() {
    let Bench { driver, gpu } = bench(lazy());
    let stream = gpu.stream();
    let (memory, pinned) = (gpu.memory(300), gpu.pinned(8));
    gpu.zero(stream, memory).unwrap();
    let event = gpu.recorded(stream);
    assert_eq!((driver.live_bytes(), driver.live_pinned_bytes()), (512, 8));
    driver.lose(0);
    assert_kind(gpu.has_happened(event), Lost);
    assert_kind(gpu.synchronize(event), Lost);
    assert_kind(gpu.free(memory.address), Lost);
    assert_kind(gpu.allocate(8), Lost);
    assert_kind(gpu.memory_bytes(), Lost);
    // Nothing else uses the host's own memory meanwhile.
    pinned.write(&[1; 8]);
    assert_eq!(pinned.read(), [1; 8]);

    let anew = driver.open(0).unwrap();
    assert!(!Arc::ptr_eq(&anew, &gpu));
    assert_eq!(anew.memory_bytes().unwrap(), (1 << 30, 1 << 30));
    assert_eq!((driver.live_bytes(), driver.live_pinned_bytes()), (0, 0));
    let (stream, fresh) = (anew.stream(), anew.memory(8));
    anew.zero(stream, fresh).unwrap();
    anew.finish(stream).unwrap();
    assert_eq!(driver.violations(), Vec::<String>::new());
    // The old GPU must not be called any more, and its objects do not belong to the new one.
    assert_kind(gpu.has_happened(event), Lost);
    assert_kind(anew.zero(stream, memory), Refused);
    assert_eq!(driver.violations().len(), 2);
}

#[test]
#[needs(Sycl)]
fn a_failing_launch_loses_the_gpu_only_when_it_is_executed() {
    let config = EmulatedConfig {
        n_gpus: 2,
        ..lazy()
    };
    let Bench { driver, gpu } = bench(config);
    let other = driver.open(1).unwrap();
    let (stream, memory) = (gpu.stream(), gpu.memory(4));
    let function = gpu.compiled(&twice(), "twice");
    driver.fail_launch(1);
    gpu.zero(stream, memory).unwrap();
    for _ in 0..2 {
        gpu.call(stream, function, 1, &[Argument::Write(memory)])
            .unwrap();
    }
    let event = gpu.recorded(stream);
    // A stream of another GPU does not wait forever for a lost one.
    let theirs = other.stream();
    other.wait(theirs, event).unwrap();
    assert_kind(gpu.synchronize(event), Lost);
    assert_kind(gpu.new_event(), Lost);
    other.finish(theirs).unwrap();
    assert_kind(other.synchronize(event), Lost);
    assert_eq!(driver.violations(), Vec::<String>::new());
}

#[test]
#[needs(Sycl)]
fn calls_fail_on_request() {
    let Bench { driver, gpu } = bench(EmulatedConfig::default());
    driver.refuse_next("new_stream", Refused);
    assert_kind(gpu.new_stream(0), Refused);
    driver.refuse_after("allocate_pinned", 1, OutOfMemory);
    let pinned = gpu.pinned(8);
    assert_kind(gpu.allocate_pinned(8), OutOfMemory);
    gpu.free_pinned(pinned);
    driver.refuse_next("compile", Refused);
    let error = gpu.compile(&twice()).unwrap_err();
    assert!(matches!(error, CompileError::Failed { .. }), "{error}");
    let stream = gpu.stream();
    driver.refuse_next("record", Lost);
    let event = gpu.new_event().unwrap();
    assert_kind(gpu.record(event, stream), Lost);
    assert_kind(gpu.new_stream(0), Lost);
    assert_eq!(driver.n_calls("new_stream"), 3);
    assert_eq!(driver.violations(), Vec::<String>::new());
}

#[test]
#[needs(Sycl)]
fn memory_is_limited() {
    let config = EmulatedConfig {
        memory_bytes: 1 << 20,
        ..EmulatedConfig::default()
    };
    let Bench { driver, gpu } = bench(config);
    let all = 1 << 20;
    assert_kind(gpu.allocate(0), Refused);
    assert_kind(gpu.allocate(all + 1), OutOfMemory);
    assert_kind(gpu.allocate(usize::MAX), OutOfMemory);
    let first = gpu.memory(all - 256);
    assert_kind(gpu.allocate(257), OutOfMemory);
    assert_eq!(gpu.memory_bytes().unwrap(), (256, 1 << 20));
    let second = gpu.memory(1);
    assert_kind(gpu.allocate(1), OutOfMemory);
    gpu.free(first.address).unwrap();
    gpu.free(second.address).unwrap();
    driver.set_free_bytes(0, 1000);
    assert_eq!(driver.gpus().unwrap()[0].physical.available_bytes, 1000);
    assert_kind(gpu.allocate(1001), OutOfMemory);
    driver.refuse_allocations_above(100);
    assert_kind(gpu.allocate(101), OutOfMemory);
    gpu.memory(100);
    assert_eq!(driver.live_bytes(), 256);
    assert_eq!(driver.violations(), Vec::<String>::new());
    // Dropped with memory that was not freed: reported, but not a violation.
    drop(gpu);
    assert_eq!(driver.live_bytes(), 256);
    let again = driver.open(0).unwrap();
    assert_eq!(again.memory_bytes().unwrap().0, 1000);
}

#[test]
#[needs(Sycl)]
fn paged_memory_may_exceed_that_of_the_gpu() {
    let config = EmulatedConfig {
        memory_bytes: 1 << 20,
        ..EmulatedConfig::default()
    };
    let Bench { driver, gpu } = bench(config.clone());
    let stream = gpu.stream();
    let paged = span(gpu.allocate_managed(3 << 20).unwrap(), 3 << 20);
    // It does not use the GPU's own memory.
    let own = gpu.memory(1 << 20);
    assert_eq!(driver.live_managed_bytes(), 3 << 20);
    assert_eq!(driver.live_bytes(), 1 << 20);
    gpu.zero(stream, paged).unwrap();
    gpu.copy(stream, own, span(paged.address + 9, 1 << 20))
        .unwrap();
    gpu.finish(stream).unwrap();
    assert_eq!(driver.peek(span(own.address, 4)).unwrap(), [0; 4]);
    gpu.free(paged.address).unwrap();
    assert_eq!(driver.live_managed_bytes(), 0);
    assert_eq!(driver.violations(), Vec::<String>::new());
    assert_kind(gpu.free(paged.address), Refused);
    let pageless = EmulatedConfig {
        has_managed_memory: false,
        ..config
    };
    let Bench { gpu, .. } = bench(pageless);
    assert_kind(gpu.allocate_managed(8), Refused);
}

#[test]
#[needs(Sycl)]
fn invalid_grids_are_rejected() {
    let Bench { driver, gpu } = bench(EmulatedConfig::default());
    let stream = gpu.stream();
    let function = gpu.compiled(&twice(), "twice");
    let arguments = [Argument::Write(gpu.memory(4))];
    for (groups, group_size, shared_bytes) in [
        ([0, 1, 1], [1, 1, 1], 0),
        ([1, 65536, 1], [1, 1, 1], 0),
        ([1, 1, 1], [1, 1, 65], 0),
        ([1, 1, 1], [1024, 2, 1], 0),
        ([1, 1, 1], [1, 1, 1], 4),
    ] {
        let grid = Grid {
            groups,
            group_size,
            shared_bytes,
        };
        // SAFETY: the function takes these arguments, and the memory lives.
        let launched = unsafe { gpu.launch(stream, function, grid, &arguments) };
        assert_kind(launched, Refused);
    }
    assert_eq!(driver.n_waiting(), 0);
}
