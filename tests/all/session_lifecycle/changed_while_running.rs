//! Sessions that get a larger graph or other devices while they run.

use std::sync::Arc;
use std::sync::Barrier;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use std::time::Instant;

use placewright::device::Device;
use placewright::device::DeviceSet;
use placewright::device::Kernel;
use placewright::device::KernelContext;
use placewright::device::KernelDef;
use placewright::device::KernelError;
use placewright::error::Error;
use placewright::names::DeviceId;
use placewright::policy::PolicyRequest;
use placewright::policy::ShippedPolicy;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::tensor::DType;
use placewright::tensor::Tensor;

use super::Line;
use super::devices;
use super::graph;
use super::grown_graph_def::TINY_ADD;
use super::grown_graph_def::node;
use super::x;

/// A kernel that forwards its input, after the test lets it.
struct Wait {
    started: SyncSender<()>,
    released: Mutex<Receiver<()>>,
}

impl Kernel for Wait {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let gone = |_| KernelError::invalid("the test is over");
        self.started.send(()).map_err(|_| gone(()))?;
        let released = self.released.lock().unwrap();
        let limit = Duration::from_secs(60);
        released.recv_timeout(limit).map_err(|_| gone(()))?;
        context.set_output(0, context.input(0)?.clone())
    }
}

/// A kernel that waits in its first run, with the test's ends of its channels: started, release.
fn waiting() -> (KernelDef, Receiver<()>, SyncSender<()>) {
    let (started, has_started) = mpsc::sync_channel(8);
    let (release, released) = mpsc::sync_channel(8);
    let released = Mutex::new(Some(released));
    let kernel = KernelDef::new("Wait", "CPU").with_factory(move |_| {
        let released = released.lock().unwrap().take();
        Ok(match released {
            Some(released) => Box::new(Wait {
                started: started.clone(),
                released: Mutex::new(released),
            }),
            None => Box::new(Forward),
        })
    });
    (kernel, has_started, release)
}

/// Forwards its input.
struct Forward;

impl Kernel for Forward {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        context.set_output(0, context.input(0)?.clone())
    }
}

/// `w` forwards `x`, `n` is its negative; after this many unrelated nodes, and with `more` at the
/// end.
fn lines<'a>(others: &'a [&'a str], more: &[Line<'a>]) -> Vec<Line<'a>> {
    let placeholder = |&name| (name, "Placeholder", &[][..], "", Some(DType::F32), false);
    let mut lines: Vec<Line<'_>> = others.iter().map(placeholder).collect();
    lines.push(placeholder(&"x"));
    lines.push(("w", "Wait", &["x"], "", Some(DType::F32), false));
    lines.push(("n", "Neg", &["w"], "", Some(DType::F32), false));
    lines.extend(more);
    lines
}

fn builder(lines: &[Line<'_>], devices: &Arc<DeviceSet>, kernel: KernelDef) -> SessionBuilder {
    let policy = ShippedPolicy::find("round-robin").unwrap();
    Session::builder()
        .with_graph(graph(lines))
        .with_devices(Arc::clone(devices))
        .with_kernels([kernel])
        .with_policy(PolicyRequest::new(policy))
}

fn negative(session: &Session, value: f32, fetch: &str) -> f32 {
    let fetched = session.run(&[x(value)], &[fetch]).unwrap();
    fetched[0].as_slice::<f32>().unwrap()[0]
}

fn device(set: &DeviceSet, index: u32) -> Arc<dyn Device> {
    Arc::clone(set.get(DeviceId(index)).unwrap()) as Arc<dyn Device>
}

#[test]
fn a_run_ends_on_the_graph_and_devices_that_it_began_with() {
    let (kernel, has_started, release) = waiting();
    let all = devices(2);
    let session = builder(&lines(&[], &[]), &all, kernel).build().unwrap();
    let callable = session.callable(&["x"], &["n"]).unwrap();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| negative(&session, 1.0, "n"));
        has_started.recv_timeout(Duration::from_secs(60)).unwrap();
        // Neither change waits for the run, and other runs use the new graph at once.
        let m: Line<'_> = ("m", "Neg", &["n"], "", Some(DType::F32), false);
        session.extend(graph(&lines(&["p", "q"], &[m]))).unwrap();
        assert_eq!(negative(&session, 2.0, "m"), 2.0);
        session
            .replace_devices(DeviceSet::new([device(&all, 1)]))
            .unwrap();
        assert_eq!(session.devices().len(), 1);
        assert_eq!(negative(&session, 3.0, "m"), 3.0);
        assert!(!running.is_finished());
        release.send(()).unwrap();
        assert_eq!(running.join().unwrap(), -1.0);
    });
    release.send(()).unwrap();
    let x = Tensor::from_values([2], &[5f32; 2]).unwrap();
    let fetched = callable.call(&[x]).unwrap();
    assert_eq!(fetched[0].as_slice::<f32>().unwrap(), [-5.0, -5.0]);
    assert_eq!(callable.placement().device_set().len(), 2);
}

#[test]
fn runs_and_changes_alternate_without_wrong_results() {
    let all = devices(3);
    let forward = KernelDef::new("Wait", "CPU").with_factory(|_| Ok(Box::new(Forward)));
    let session = builder(&lines(&[], &[]), &all, forward).build().unwrap();
    let is_done = AtomicBool::new(false);
    let others = ["p", "q", "r", "s", "t"];
    let started = Instant::now();
    let run = || {
        // Changes that fail do not end the loop.
        while !is_done.load(Ordering::Relaxed) && started.elapsed() < Duration::from_secs(60) {
            let callable = session.callable(&["x"], &["n", "w"]).unwrap();
            for value in [1.0, 2.0] {
                assert_eq!(negative(&session, value, "n"), -value);
                let outputs = callable.call_named(&[x(value)]).unwrap();
                assert_eq!(outputs["n"].as_slice::<f32>().unwrap(), [-value; 2]);
                assert_eq!(outputs["w"].as_slice::<f32>().unwrap(), [value; 2]);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(run);
        }
        for n_others in 1..=others.len() {
            // All nodes get other numbers, and so do the devices.
            let larger = graph(&lines(&others[..n_others], &[]));
            session.extend(larger).unwrap();
            let order: &[u32] = match n_others % 3 {
                0 => &[0, 1, 2],
                1 => &[2, 0],
                _ => &[1],
            };
            let some = order.iter().map(|&index| device(&all, index));
            session.replace_devices(DeviceSet::new(some)).unwrap();
            assert_eq!(session.devices().len(), order.len());
            let placement = session.placement();
            assert_eq!(placement.graph().n_nodes(), 3 + n_others);
            assert_eq!(placement.device_set().len(), order.len());
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn concurrent_extensions_follow_each_other() {
    let session = Session::builder().with_graph_def(TINY_ADD).build().unwrap();
    let names = ["n0", "n1", "n2", "n3"];
    let all_at_once = Barrier::new(names.len());
    std::thread::scope(|scope| {
        for name in names {
            let (session, all_at_once) = (&session, &all_at_once);
            scope.spawn(move || {
                all_at_once.wait();
                session.extend_graph_def(&node(name, "Neg", "y")).unwrap();
            });
        }
    });
    let a = Tensor::from_values([3], &[1f32, 2.0, 3.0]).unwrap();
    let feeds = [("a", a.clone()), ("b", a)];
    for fetched in session.run(&feeds, &names).unwrap() {
        assert_eq!(fetched.as_slice::<f32>().unwrap(), [-2.0, -4.0, -6.0]);
    }
    let stages = session.report().stages.len();
    session.extend(session.graph()).unwrap();
    assert!(session.report().stages.len() > stages, "all are listed");
}

#[test]
fn a_change_that_fails_leaves_the_session_as_it_is() {
    let all = devices(2);
    let forward = || KernelDef::new("Wait", "CPU").with_factory(|_| Ok(Box::new(Forward)));
    let pinned = lines(
        &[],
        &[("m", "Neg", &["n"], "/device:CPU:1", Some(DType::F32), false)],
    );
    let session = builder(&pinned, &all, forward()).build().unwrap();
    let before = (session.placement(), session.report());
    let error = session.extend(graph(&lines(&[], &[]))).unwrap_err();
    assert!(matches!(error, Error::NotAnExtension { .. }), "{error}");
    let lost = DeviceSet::new([device(&all, 0)]);
    let error = session.replace_devices(lost).unwrap_err();
    assert!(matches!(error, Error::Candidates(_)), "{error}");
    assert!(Arc::ptr_eq(&session.placement(), &before.0));
    assert!(Arc::ptr_eq(&session.report(), &before.1));
    assert_eq!(negative(&session, 1.0, "m"), 1.0);
}

#[test]
fn a_session_that_is_closed_during_a_change_stays_closed() {
    let all = devices(1);
    let forward = KernelDef::new("Wait", "CPU").with_factory(|_| Ok(Box::new(Forward)));
    let session = builder(&lines(&[], &[]), &all, forward).build().unwrap();
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            loop {
                if let Err(error) = session.extend(session.graph()) {
                    return error;
                }
            }
        });
        session.close();
        let error = changes.join().unwrap();
        assert!(matches!(error, Error::CannotExtend(_)), "{error}");
    });
    assert!(session.is_closed());
    assert!(session.run(&[x(1.0)], &["n"]).is_err());
}
