//! Copies that fail, are lost, or end when their run is over.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::Bench;
use super::CPU;
use super::Copy;
use super::GPU;
use super::TWO;
use crate::device::AllocatorAttributes;
use crate::device::CancelToken;
use crate::device::Device;
use crate::device::KernelError;
use crate::execute::ExecuteError;
use crate::execute::ExecutorOptions;
use crate::execute::RunOptions;
use crate::execute::tests::threads;

/// Plans of `TWO` that wait for a copy: of a send, and of a fetch.
const WAITING: [&str; 2] = ["fa", "a"];

/// A bench whose copies go to a test.
fn held(options: &ExecutorOptions) -> (Bench, mpsc::Receiver<Copy>) {
    let (sender, copies) = mpsc::channel();
    let sender = Mutex::new(sender);
    let bench = Bench::new(TWO, options, move |copy| {
        // A test that is over does not care.
        let _ = sender.lock().unwrap().send(copy);
    });
    (bench, copies)
}

#[test]
fn a_run_that_is_cancelled_or_closed_does_not_wait_for_a_copy() {
    for expected in [ExecuteError::Cancelled, ExecuteError::Closed] {
        for (n_threads, fetch) in WAITING
            .map(|fetch| (1, fetch))
            .into_iter()
            .chain([(2, "fa")])
        {
            let token = CancelToken::new();
            let (mut executor_options, mut options) = (threads(n_threads), RunOptions::default());
            match expected {
                ExecuteError::Closed => executor_options.closed = token.clone(),
                _ => options = options.with_cancel(token.clone()),
            }
            let (bench, copies) = held(&executor_options);
            let prepared = bench.prepare(&[fetch], &[]);
            let copy = thread::scope(|scope| {
                let run = scope.spawn(|| bench.run(&prepared, 1.0, &options));
                let copy = copies.recv().unwrap();
                token.cancel();
                assert_eq!(run.join().unwrap().unwrap_err(), expected);
                copy
            });
            // The copy has its tensor, and nobody else.
            assert_eq!(bench.in_use_bytes(), 16);
            copy.finish();
            assert_eq!(bench.in_use_bytes(), 0);
        }
    }
}

#[test]
fn a_run_that_takes_too_long_does_not_wait_for_a_copy() {
    for fetch in WAITING {
        let (bench, copies) = held(&threads(2));
        let prepared = bench.prepare(&[fetch], &[]);
        let timeout = Duration::from_millis(10);
        let options = RunOptions::default().with_timeout(timeout);
        let late = loop {
            let error = bench.run(&prepared, 1.0, &options).unwrap_err();
            assert_eq!(error, ExecuteError::TimedOut(timeout));
            // It may not have been started.
            if let Ok(copy) = copies.try_recv() {
                break copy;
            }
        };
        // The next run waits for its own copy, not for the late one.
        thread::scope(|scope| {
            let run = scope.spawn(|| bench.run(&prepared, 3.0, &RunOptions::default()));
            let copy = copies.recv().unwrap();
            late.finish();
            copy.finish();
            let expected = if fetch == "a" { -3.0 } else { 3.0 };
            assert_eq!(run.join().unwrap().unwrap(), [[expected; 4]]);
        });
    }
}

#[test]
fn a_failure_elsewhere_ends_the_run_while_a_copy_is_under_way() {
    for n_threads in [1, 2] {
        for fetch in WAITING {
            let (bench, copies) = held(&threads(n_threads));
            let failing = bench.prepare(&[fetch, "bad"], &[]);
            let good = bench.prepare(&[fetch], &[]);
            let before = bench.in_use_bytes();
            for round in 0..20 {
                let error = bench.run(&failing, 1.0, &RunOptions::default());
                assert!(error.unwrap_err().to_string().contains("Tuesday"));
                // Some were started, and end now, by success or by being lost.
                for copy in copies.try_iter() {
                    match round % 2 {
                        0 => copy.finish(),
                        _ => drop(copy),
                    }
                }
                assert_eq!(bench.in_use_bytes(), before);
                thread::scope(|scope| {
                    let run = scope.spawn(|| bench.run(&good, 3.0, &RunOptions::default()));
                    copies.recv().unwrap().finish();
                    let expected = if fetch == "a" { -3.0 } else { 3.0 };
                    assert_eq!(run.join().unwrap().unwrap(), [[expected; 4]]);
                });
            }
        }
    }
}

#[test]
fn what_outlives_its_session_changes_nothing() {
    let (bench, copies) = held(&threads(2));
    let prepared = bench.prepare(&["a"], &[]);
    let token = CancelToken::new();
    let options = RunOptions::default().with_cancel(token.clone());
    let copy = thread::scope(|scope| {
        let run = scope.spawn(|| bench.run(&prepared, 1.0, &options));
        let copy = copies.recv().unwrap();
        token.cancel();
        run.join().unwrap().unwrap_err();
        copy
    });
    let port = Arc::clone(&bench.port);
    drop((prepared, bench));
    copy.finish();
    let memory = port.allocator(AllocatorAttributes::default());
    assert_eq!(memory.stats().in_use_bytes, 0);
}

/// A failure of a copy, of a send and of a fetch, names what was copied, and where from and to.
fn check_failure(start: impl Fn(Copy) + Send + Sync + Clone + 'static, said: &str) {
    for n_threads in [1, 2] {
        let bench = Bench::new(TWO, &threads(n_threads), start.clone());
        for _ in 0..10 {
            for (fetch, what, to) in [
                (
                    "fa",
                    format!("transfer of `a:0` (key `{GPU};0000000000000001;{CPU};edge_3_a;0:0`)"),
                    CPU,
                ),
                ("a", "fetch `a:0`".to_owned(), "the caller"),
            ] {
                let error = bench.fail(fetch);
                assert!(matches!(error, ExecuteError::Transfer { .. }), "{error:?}");
                let error = error.to_string();
                let head = format!("{what} from {GPU} to {to}: ");
                assert!(error.starts_with(&head) && error.contains(said), "{error}");
            }
        }
    }
}

#[test]
fn a_copy_that_fails_fails_the_run() {
    let fail = |copy: Copy| copy.done.call(Err(KernelError::invalid("a bad cable")));
    check_failure(fail, "a bad cable");
    check_failure(
        move |copy| {
            thread::spawn(move || fail(copy));
        },
        "a bad cable",
    );
}

#[test]
fn a_copy_that_is_lost_fails_the_run() {
    check_failure(drop, "the device has lost the copy");
    check_failure(
        |copy| {
            thread::spawn(move || drop(copy));
        },
        "the device has lost the copy",
    );
}

#[test]
fn a_device_that_panics_when_a_copy_is_started_fails_the_run() {
    check_failure(|_| panic!("out of cheese"), "the device panicked");
    // Although the callback is never dropped.
    check_failure(
        |copy| {
            std::mem::forget(copy);
            panic!("out of cheese");
        },
        "the device panicked: out of cheese",
    );
}
