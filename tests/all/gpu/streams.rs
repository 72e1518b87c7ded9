//! Streams of GPUs: which work waits, and which need not.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use placewright::builder::GraphBuilder;
use placewright::device::AllocatorAttributes;
use placewright::device::CopyDone;
use placewright::tensor::Tensor;

use super::Machine;
use super::floats;
use super::options;
use super::session;
use crate::emulated::EmulatedConfig;
use crate::sample::seed;

/// If this passes, the awaited end will not come.
const HANGS: Duration = Duration::from_secs(30);

/// `y` = x w w .., with `n` matmuls.
fn matmuls(n: usize) -> GraphBuilder {
    let b = GraphBuilder::new("matmuls");
    let x = b.placeholder::<f32>("x", [4, 4]).unwrap();
    let gpu = b.device("/device:GPU:0").unwrap();
    let mut y = x;
    for index in 0..n {
        let name = if index + 1 == n {
            "y".to_owned()
        } else {
            format!("y{index}")
        };
        y = gpu.named(&name).matmul(y, x).unwrap();
    }
    b
}

/// Pageable memory is copied by several threads, in pieces that arrive in any order.
#[test]
#[needs(Sycl)]
fn large_feeds_arrive_whole_before_kernels_read_them() {
    let machine = Machine::new(EmulatedConfig {
        seed: seed(),
        ..EmulatedConfig::default()
    });
    let b = GraphBuilder::new("large");
    let x = b.placeholder::<f32>("x", [Option::<usize>::None]).unwrap();
    let gpu = b.device("/device:GPU:0").unwrap();
    gpu.named("y").add(x, x).unwrap();
    let session = session(b, &machine.open(&options(1))).build().unwrap();
    // Not a whole number of pieces.
    for n in [(20 << 18) + 5, (36 << 18) + 1] {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let x: Vec<f32> = (0..n).map(|i| (i % 4093) as f32).collect();
        let fed = Tensor::from_values([n], &x).unwrap();
        let y = session.run(&[("x", fed)], &["y"]).unwrap();
        let y = y[0].as_slice::<f32>().unwrap();
        assert!(x.iter().zip(y).all(|(x, y)| 2.0 * x == *y));
    }
    drop(session);
    machine.check();
}

#[test]
#[needs(Sycl)]
fn a_run_in_one_stream_takes_a_fixed_number_of_events() {
    let mut events = Vec::new();
    for n in [2, 30] {
        let machine = Machine::new(EmulatedConfig::default());
        let devices = machine.open(&options(1));
        let session = session(matmuls(n), &devices).build().unwrap();
        let x = Tensor::from_values([4, 4], &[0.5f32; 16]).unwrap();
        let run = || session.run(&[("x", x.clone())], &["y"]).unwrap();
        run();
        let n_calls = |call| machine.driver.n_calls(call);
        let before = [n_calls("record"), n_calls("wait"), n_calls("launch")];
        run();
        let after = [n_calls("record"), n_calls("wait"), n_calls("launch")];
        let [records, waits, launches] = [0, 1, 2].map(|index| after[index] - before[index]);
        assert!(launches >= n as u64, "{launches}");
        events.push((records, waits));
        drop((session, devices));
        machine.check();
    }
    // The feed's copy, for which kernels wait; and the last kernel, for which the copy back waits,
    // whose own end is waited for.
    assert_eq!(events, [(3, 2), (3, 2)]);
}

/// Their work shares the streams, and each thread gets its own results.
#[test]
#[needs(Sycl)]
fn several_threads_run_sessions_on_one_gpu() {
    let machine = Machine::new(EmulatedConfig::default());
    let devices = machine.open(&options(1));
    let sessions = [matmuls(2), matmuls(7)].map(|b| session(b, &devices).build().unwrap());
    thread::scope(|scope| {
        for thread in 0..4u8 {
            let session = &sessions[usize::from(thread) % 2];
            let n = [2, 7][usize::from(thread) % 2];
            scope.spawn(move || {
                for round in 0..15 {
                    // A diagonal matrix, so that its powers are known.
                    let x = f32::from(1 + (thread + round) % 3);
                    let mut fed = vec![0.0; 16];
                    (0..4).for_each(|i| fed[i * 5] = x);
                    let fed = Tensor::from_values([4, 4], &fed).unwrap();
                    let y = session.run(&[("x", fed)], &["y"]).unwrap();
                    let found = y[0].as_slice::<f32>().unwrap();
                    assert_eq!((found[5], found[6]), (x.powi(n + 1), 0.0));
                }
            });
        }
    });
    drop((sessions, devices));
    machine.check();
}

#[test]
#[needs(Sycl)]
fn kernels_of_branches_are_distributed_over_streams_and_join() {
    let config = EmulatedConfig {
        // No work is done before it must be.
        early_per_mille: 0,
        ..EmulatedConfig::default()
    };
    let machine = Machine::new(config);
    let mut options = options(1);
    options.gpu.n_compute_streams = 2;
    let devices = machine.open(&options);
    let b = GraphBuilder::new("branches");
    let x = b.placeholder::<f32>("x", [8, 8]).unwrap();
    let gpu = b.device("/device:GPU:0").unwrap();
    let left = gpu.named("left").matmul(x, x).unwrap();
    let perm = b.constant([2], &[1i32, 0]).unwrap();
    let right = gpu.named("right").transpose(x, perm).unwrap();
    gpu.named("y").matmul(left, right).unwrap();
    let session = session(b, &devices).build().unwrap();
    let x: Vec<f32> = (0..64u8).map(|i| f32::from(i % 5)).collect();
    let fed = Tensor::from_values([8, 8], &x).unwrap();
    let before = machine.driver.n_calls("wait");
    let fetched = session.run(&[("x", fed)], &["y"]).unwrap();
    // Both streams wait for the feed, one for the other, and the copy back for both.
    assert!(machine.driver.n_calls("wait") - before >= 4);
    let found = fetched[0].as_slice::<f32>().unwrap();
    let at = |row: usize, column: usize| {
        let squared = |k: usize| (0..8).map(|j| x[row * 8 + j] * x[j * 8 + k]).sum::<f32>();
        (0..8).map(|k| squared(k) * x[column * 8 + k]).sum::<f32>()
    };
    assert!((0..64).all(|i| found[i] == at(i / 8, i % 8)));
    drop((session, devices, fetched));
    machine.check();
}

#[test]
#[needs(Sycl)]
fn apps_are_notified_when_a_stream_has_done_its_work() {
    let machine = Machine::new(EmulatedConfig::default());
    let devices = machine.open(&options(1));
    let gpu = devices
        .iter()
        .map(|(_, device)| device)
        .find(|device| device.attributes().device_type == "GPU");
    let info = gpu.and_then(|gpu| gpu.accelerator_info()).unwrap();
    assert_eq!(info.id, 0);
    let copy = info.default_context.copy_from_host(&floats(7)).unwrap();
    let doubled = info.default_context.copy_on_device(&copy).unwrap();
    let (sender, receiver) = mpsc::channel();
    let callback = Box::new(move || sender.send(()).unwrap());
    info.event_manager
        .then_execute(&info.stream, callback)
        .unwrap();
    receiver.recv().unwrap();
    // Both copies are done, by the order of the streams.
    assert_eq!(machine.driver.n_waiting(), 0);
    info.stream.synchronize().unwrap();
    drop((copy, doubled, devices));
    machine.check();
}

/// One copy is in flight for long: a waiter for another stream is notified meanwhile.
#[test]
#[needs(Sycl)]
fn the_end_of_a_stream_is_reported_while_another_is_busy() {
    let config = EmulatedConfig {
        early_per_mille: 0,
        ..EmulatedConfig::default()
    };
    let machine = Machine::new(config);
    let devices = machine.open(&options(1));
    let gpu = devices
        .iter()
        .map(|(_, device)| device)
        .find(|device| device.attributes().device_type == "GPU")
        .unwrap();
    let info = gpu.accelerator_info().unwrap();
    let (long, arrived) = mpsc::channel();
    let copy = info.default_context.copy_from_host(&floats(7)).unwrap();
    machine.driver.hold_busy_streams();
    // It comes after the work that is held.
    let done = CopyDone::new(move |copied| long.send(copied).unwrap());
    info.default_context.copy_to_host_async(&copy, done);
    // Until the watching thread has polled long enough to sleep between polls.
    let n_calls = |call| machine.driver.n_calls(call);
    let (asked, waited) = (n_calls("has_happened"), n_calls("synchronize"));
    while n_calls("has_happened") < asked + 500 && n_calls("synchronize") == waited {
        thread::yield_now();
    }
    // Independent work of another stream.
    let memory = gpu.allocator(AllocatorAttributes::default());
    let zeros = memory.allocate(64).unwrap();
    let (short, ended) = mpsc::channel();
    let callback = Box::new(move || short.send(()).unwrap());
    info.event_manager
        .then_execute(&info.stream, callback)
        .unwrap();
    let ended = ended.recv_timeout(HANGS);
    let (early, n_waiting) = (arrived.try_recv(), machine.driver.n_waiting());
    // Before any assertion: held threads would wait forever when devices are dropped.
    machine.driver.release();
    assert_eq!(ended, Ok(()));
    assert_eq!(early.unwrap_err(), mpsc::TryRecvError::Empty);
    assert!(n_waiting > 0);
    let copied = arrived.recv_timeout(HANGS).unwrap().unwrap();
    assert_eq!(
        copied.as_slice::<f32>().unwrap()[4],
        floats(7).as_slice::<f32>().unwrap()[4]
    );
    drop((copy, copied, zeros, memory, devices));
    machine.check();
}
