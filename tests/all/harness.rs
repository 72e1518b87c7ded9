//! Runs the tests of this program like Rust's own harness, with its options, except that tests
//! declare their needs: if a need is absent, a test is ignored with the reason, or fails if the
//! environment requires it.
//!
//! Also runs helpers of tests, each in its own process. Helpers are not tests, and are not listed.

use std::backtrace::Backtrace;
use std::backtrace::BacktraceStatus;
use std::cell::RefCell;
use std::env;
use std::fmt;
use std::panic;
use std::process::Command;
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use libtest_mimic::Arguments;
use libtest_mimic::Completion;
use libtest_mimic::Failed;
use libtest_mimic::Trial;

use crate::needs;
use crate::needs::Met;
use crate::needs::Need;

type Run = fn() -> Result<(), String>;

/// What `#[test]` registers.
pub(crate) struct Test {
    module: &'static str,
    name: &'static str,
    needs: &'static [Need],
    run: Run,
}

/// What `#[helper]` registers.
pub(crate) struct Helper {
    module: &'static str,
    name: &'static str,
    run: Run,
}

inventory::collect!(Test);
inventory::collect!(Helper);

impl Test {
    pub(crate) const fn new(
        module: &'static str,
        name: &'static str,
        needs: &'static [Need],
        run: Run,
    ) -> Self {
        Self {
            module,
            name,
            needs,
            run,
        }
    }

    fn trial(&'static self, arguments: &Arguments) -> Trial {
        let name = full_name(self.module, self.name);
        let title = name.clone();
        // Drivers are queried only when a test needs one; this decides in advance which tests are
        // ignored.
        let is_ignored = (arguments.list || arguments.ignored)
            && matches!(needs::met(self.needs), Met::Ignored(_));
        let trial = Trial::ignorable_test(title, move || match needs::met(self.needs) {
            Met::Yes => {
                let start = Instant::now();
                let result = in_thread(name.clone(), self.run);
                TIMES
                    .lock()
                    .expect(UNPOISONED)
                    .push((start.elapsed(), name));
                result
            }
            Met::Ignored(reason) => Ok(Completion::ignored_with(reason)),
            Met::Failed(reason) => Err(reason.into()),
        });
        trial.with_ignored_flag(is_ignored)
    }
}

impl Helper {
    pub(crate) const fn new(module: &'static str, name: &'static str, run: Run) -> Self {
        Self { module, name, run }
    }
}

/// The return value of a test.
pub(crate) trait Outcome {
    fn result(self) -> Result<(), String>;
}

impl Outcome for () {
    fn result(self) -> Result<(), String> {
        Ok(())
    }
}

impl<E: fmt::Debug> Outcome for Result<(), E> {
    fn result(self) -> Result<(), String> {
        self.map_err(|error| format!("{error:?}"))
    }
}

/// Runs a test in a thread with its name, which panic messages contain, and with its own
/// thread-locals.
fn in_thread(name: String, run: Run) -> Result<Completion, Failed> {
    let tested = move || {
        SAID.set(Some(String::new()));
        let result = panic::catch_unwind(run);
        let said = SAID.take().unwrap_or_default();
        result.unwrap_or(Err(said))
    };
    let thread = thread::Builder::new().name(name).spawn(tested)?;
    let result = thread.join().expect("what panics is caught");
    Ok(result.map(|()| Completion::Completed)?)
}

/// What each test took, and its name.
static TIMES: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

const UNPOISONED: &str = "pushing and sorting do not panic";

/// Only tests that take longer are listed.
const LISTED_MIN: Duration = Duration::from_secs(5);

/// At most so many tests are listed.
const LISTED_MAX: usize = 15;

/// Prints the tests that took longest, so that the log of CI shows what to make faster.
#[expect(clippy::print_stdout, reason = "the output of a test program")]
fn list_slow_tests() {
    let mut times = TIMES.lock().expect(UNPOISONED);
    times.sort_by(|a, b| b.cmp(a));
    let slow = times.iter().filter(|(time, _)| *time >= LISTED_MIN);
    for (time, name) in slow.take(LISTED_MAX) {
        println!("slow: {name}: {:.0} s", time.as_secs_f64());
    }
}

thread_local! {
    /// Panic messages on the thread of a test, because many tests expect panics and pass; `None` on
    /// other threads.
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the panic messages of test threads in case the test fails. Other panics are printed at
/// once.
fn keep_panic_messages() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let backtrace = Backtrace::capture();
        // It is not borrowed while a test runs.
        let is_kept = SAID.try_with(|said| match &mut *said.borrow_mut() {
            Some(said) => {
                said.push_str(&format!("{info}\n"));
                if backtrace.status() == BacktraceStatus::Captured {
                    said.push_str(&format!("stack backtrace:\n{backtrace}\n"));
                }
                true
            }
            None => false,
        });
        if !is_kept.unwrap_or(false) {
            print(info);
        }
    }));
}

/// Returns the name without that of this program.
fn full_name(module: &str, name: &str) -> String {
    let module = module.split_once("::").map_or("", |(_, inside)| inside);
    format!("{module}::{name}")
}

/// Names the helper that a process is started for.
const HELPER: &str = "PLACEWRIGHT_TEST_HELPER";

/// Returns a process that runs a helper, `module::name`, and ends with status 0 unless the helper
/// panics.
pub(crate) fn helper(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program has a path"));
    command.env(HELPER, name);
    command
}

#[expect(clippy::print_stderr, reason = "a separate program")]
fn run_helper(wanted: &str) -> ExitCode {
    let helper = inventory::iter::<Helper>
        .into_iter()
        .find(|helper| full_name(helper.module, helper.name) == wanted);
    let result = match helper {
        Some(helper) => (helper.run)(),
        None => Err(format!("there is no helper `{wanted}`")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stderr, reason = "there is no test yet that could fail")]
pub(crate) fn main() -> ExitCode {
    if let Ok(name) = env::var(HELPER) {
        return run_helper(&name);
    }
    let arguments = Arguments::from_args();
    if let Err(problem) = needs::check_required() {
        eprintln!("error: {problem}");
        return ExitCode::from(2);
    }
    let tests = inventory::iter::<Test>.into_iter();
    let mut trials: Vec<_> = tests.map(|test| test.trial(&arguments)).collect();
    if trials.is_empty() {
        eprintln!("error: no test has been registered");
        return ExitCode::from(2);
    }
    if !arguments.nocapture {
        keep_panic_messages();
    }
    trials.sort_by(|a, b| a.name().cmp(b.name()));
    let conclusion = libtest_mimic::run(&arguments, trials);
    list_slow_tests();
    conclusion.exit_code()
}

#[test]
fn absent_needs_ignore_a_test_or_fail_it_if_required() {
    let absence = |need| (need != Need::Python).then_some("install it");
    let met = |needs: &[Need], required: &str| needs::decide(needs, required, absence);
    assert_eq!(met(&[], "SYCL"), Met::Yes);
    assert_eq!(met(&[Need::Python], "PYTHON"), Met::Yes);
    let needs = [Need::Python, Need::Sycl, Need::Nvrtc];
    let ignored = Met::Ignored("needs SYCL: install it".to_owned());
    assert_eq!(met(&needs, ""), ignored);
    assert_eq!(met(&needs, "GPU, PYTHON"), ignored);
    let failed = "PLACEWRIGHT_REQUIRE names NVRTC, which is absent: install it";
    assert_eq!(met(&needs, "GPU, NVRTC"), Met::Failed(failed.to_owned()));
}

#[test]
fn unknown_requirements_are_refused_before_any_test() {
    for known in ["", "SYCL", " CPU, SYCL:1 ,NVRTC,"] {
        assert_eq!(needs::check_words(known), Ok(()), "{known}");
    }
    let run = |required: &str| {
        let mut program = Command::new(env::current_exe().unwrap());
        program.args([
            "--exact",
            "harness::unknown_requirements_are_refused_before_any_test",
            "--list",
        ]);
        program.env(needs::VARIABLE, required).output().unwrap()
    };
    assert!(run("CPU").status.success());
    let refused = run("SYCL,NVRT");
    assert_eq!(refused.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&refused.stderr);
    for part in [needs::VARIABLE, "`NVRT`", "SYCL, SYCL:1"] {
        assert!(stderr.contains(part), "{stderr} lacks {part}");
    }
}
