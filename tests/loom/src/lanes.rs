//! Models of the queue of a SYCL device's commands.

use std::sync::Arc;
use std::sync::Mutex as StdMutex;

use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::Ordering::SeqCst;
use loom::thread;

use crate::check_up_to;
use crate::command_counter::CommandCounter;
use crate::lane::Execute;
use crate::lane::Lane;
use crate::lane::Progress;
use crate::lane::Wakes;

/// Maximum number of preemptions: with three, these models take half a minute.
const N_PREEMPTIONS_MAX: usize = 2;

/// A command of the model.
struct Command {
    sender: usize,
    /// Counts the commands of the sender.
    number: usize,
    /// Number of commands that were sent before.
    n_before: u64,
    /// The first commands of another device, for which it waits.
    after: Option<(Arc<Device>, u64)>,
}

/// What a device's executor has done.
#[derive(Default)]
struct Device {
    given: CommandCounter,
    /// Executed commands: sender and number. The checker need not know this lock: only the holder
    /// of the executor writes.
    executed: StdMutex<Vec<(usize, usize)>>,
}

impl Progress for Device {
    fn has_done(&self, n: u64) -> bool {
        self.given.has_done(n)
    }

    /// The checker has no clock: the thread sleeps until it is woken.
    fn is_in_flight(&self) -> bool {
        false
    }

    fn note_death(&self) {}

    fn release(&self) {}
}

struct Executor(Arc<Device>);

impl Execute for Executor {
    type Command = Command;
    type Progress = Device;

    fn take(&mut self, command: Command) {
        if let Some((other, n)) = command.after {
            other.given.wait(n);
        }
        let n_before = command.n_before;
        assert!(self.0.has_done(n_before), "it overtakes an earlier command");
        let mut executed = self.0.executed.lock().unwrap();
        executed.push((command.sender, command.number));
        drop(executed);
        self.0.given.count();
    }

    fn flush(&mut self) {}

    fn finish_all(&mut self) {}

    fn look_at_ends(&mut self) {}
}

/// A lane, and its thread.
struct Queue {
    device: Arc<Device>,
    lane: Arc<Lane<Executor>>,
    thread: thread::JoinHandle<()>,
}

impl Queue {
    fn start() -> Self {
        let device = Arc::new(Device::default());
        let lane = Arc::new(Lane::new(
            Executor(Arc::clone(&device)),
            Arc::clone(&device),
        ));
        let thread = thread::spawn({
            let lane = Arc::clone(&lane);
            move || lane.work()
        });
        Self {
            device,
            lane,
            thread,
        }
    }

    /// Ends the thread. Then each sender's commands have been executed once and in order.
    fn end(self, n_sent: &[usize]) {
        self.lane.close();
        self.thread.join().unwrap();
        let executed = self.device.executed.lock().unwrap();
        for (sender, &n_sent) in n_sent.iter().enumerate() {
            let own = executed.iter().filter(|(of, _)| *of == sender);
            let numbers: Vec<usize> = own.map(|(_, number)| *number).collect();
            assert_eq!(numbers, (0..n_sent).collect::<Vec<_>>(), "sender {sender}");
        }
        assert_eq!(executed.len(), n_sent.iter().sum::<usize>());
    }
}

fn command(lane: &Lane<Executor>, sender: usize, number: usize) -> Command {
    Command {
        sender,
        number,
        n_before: lane.n_sent(),
        after: None,
    }
}

/// A sender's command is executed before `execute_until` returns, and after its earlier ones,
/// although the thread need not be woken for those.
pub fn a_command_that_is_waited_for_comes_after_earlier_ones() {
    check_up_to(N_PREEMPTIONS_MAX, || {
        let queue = Queue::start();
        let lane = &queue.lane;
        lane.post(command(lane, 0, 0), Wakes::Later);
        let number = lane.post(command(lane, 0, 1), Wakes::Never);
        lane.execute_until(number);
        assert!(queue.device.has_done(number));
        queue.end(&[2]);
    });
}

/// Two senders, one of which assists until it is told to stop: nothing overtakes the commands that
/// it has taken and not executed, and they are executed although it sends no more.
pub fn what_an_assistant_leaves_is_executed_in_order() {
    check_up_to(N_PREEMPTIONS_MAX, || {
        let queue = Queue::start();
        let is_wanted = Arc::new(AtomicBool::new(false));
        let other = {
            let (lane, is_wanted) = (Arc::clone(&queue.lane), Arc::clone(&is_wanted));
            thread::spawn(move || {
                is_wanted.store(true, SeqCst);
                let number = lane.post(command(&lane, 1, 0), Wakes::Never);
                lane.execute_until(number);
            })
        };
        let lane = &queue.lane;
        lane.post(command(lane, 0, 0), Wakes::Later);
        lane.post(command(lane, 0, 1), Wakes::Later);
        lane.assist(&|| is_wanted.load(SeqCst));
        queue.device.given.wait(2);
        other.join().unwrap();
        queue.end(&[2, 1]);
    });
}

/// The same where the other sender executes nothing.
pub fn what_an_assistant_leaves_is_executed_by_the_thread() {
    check_up_to(N_PREEMPTIONS_MAX, || {
        let queue = Queue::start();
        let is_wanted = Arc::new(AtomicBool::new(false));
        let other = {
            let is_wanted = Arc::clone(&is_wanted);
            thread::spawn(move || is_wanted.store(true, SeqCst))
        };
        let lane = &queue.lane;
        lane.post(command(lane, 0, 0), Wakes::Later);
        lane.post(command(lane, 0, 1), Wakes::Later);
        lane.assist(&|| is_wanted.load(SeqCst));
        queue.device.given.wait(2);
        other.join().unwrap();
        queue.end(&[2]);
    });
}

/// A command that a sender executes itself comes after all earlier ones.
pub fn a_command_executed_at_once_overtakes_nothing() {
    check_up_to(N_PREEMPTIONS_MAX, || {
        let queue = Queue::start();
        let other = {
            let lane = Arc::clone(&queue.lane);
            thread::spawn(move || {
                if let Some(command) = lane.take_at_once(command(&lane, 1, 0)) {
                    lane.post(command, Wakes::Now);
                }
            })
        };
        let lane = &queue.lane;
        lane.post(command(lane, 0, 0), Wakes::Later);
        if let Some(command) = lane.take_at_once(command(lane, 0, 1)) {
            lane.post(command, Wakes::Later);
        }
        lane.wake();
        queue.device.given.wait(2);
        other.join().unwrap();
        queue.end(&[2, 1]);
    });
}

/// Two devices copy from each other: each copy waits for earlier commands of the other device, and
/// both end, with an assistant at one of them.
pub fn devices_that_copy_from_each_other_end() {
    check_up_to(N_PREEMPTIONS_MAX, || {
        let queues = [Queue::start(), Queue::start()];
        let copy = |queue: &Queue, other: &Queue, number: usize| {
            // As in `Stream::now`.
            other.lane.wake();
            let mut copy = command(&queue.lane, 0, number);
            copy.after = Some((Arc::clone(&other.device), other.lane.n_sent()));
            queue.lane.post(copy, Wakes::Later);
        };
        let [first, second] = &queues;
        first.lane.post(command(&first.lane, 0, 0), Wakes::Later);
        copy(second, first, 0);
        copy(first, second, 1);
        first.lane.assist(&|| false);
        first.device.given.wait(2);
        let [first, second] = queues;
        first.end(&[2]);
        second.end(&[1]);
    });
}
