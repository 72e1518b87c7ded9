//! Runs every kernel case on every backend that this machine has.
//!
//! A case (`cases/<family>.rs`) is an op with attributes, inputs and the expected result: tensors
//! that a plain loop in the case computes, or an error. It runs through the kernel registry and
//! `KernelContext`, as in a session. If a backend is absent, its cases are ignored with its
//! factory's reason, unless `PLACEWRIGHT_REQUIRE` names it, as in `PLACEWRIGHT_REQUIRE=CPU,SYCL`.
//! `NVRTC` in that list requires CUDA's compiler, which then compiles all programs of emulated
//! GPUs.

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::Arguments;
use libtest_mimic::Completion;
use libtest_mimic::Trial;

mod backends;
mod case;
mod cases;
#[cfg(all(feature = "opencl", feature = "cuda"))]
#[path = "../support/emulated_gpu/mod.rs"]
mod emulated;
#[path = "../support/needs.rs"]
mod needs;
#[path = "../support/strict_cpu.rs"]
mod strict_cpu;

use case::Case;
use needs::Met;
use needs::Need;

#[expect(clippy::print_stderr, reason = "there is no trial yet that could fail")]
fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    if let Err(problem) = needs::check_required() {
        eprintln!("error: {problem}");
        return ExitCode::from(2);
    }
    let nvrtc = needs::is_required(Need::Nvrtc.word()).then(nvrtc);
    let trials = backends::ALL.iter().flat_map(trials).chain(nvrtc).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Fails if the compiler that checks the programs of emulated GPUs is required and absent.
fn nvrtc() -> Trial {
    Trial::test("NVRTC::present", || match needs::met(&[Need::Nvrtc]) {
        Met::Yes => Ok(()),
        Met::Ignored(reason) | Met::Failed(reason) => Err(reason.into()),
    })
}

fn trials(backend: &'static backends::Backend) -> Vec<Trial> {
    let benches = match backend.open() {
        Ok(benches) => benches,
        Err(reason) => {
            let name = backend.name;
            let is_required = needs::is_required(name);
            let present =
                Trial::ignorable_test(format!("{name}::present"), move || match is_required {
                    true => Err(format!(
                        "{} names {name}, which is absent: {reason}",
                        needs::VARIABLE
                    ))?,
                    false => Ok(Completion::ignored_with(reason)),
                });
            return vec![present];
        }
    };
    let benches = benches.into_iter().map(Arc::new);
    benches
        .flat_map(|bench| {
            let cases = cases::all().into_iter().filter(|case| {
                let ops = backend.ops;
                ops.is_none_or(|ops| ops.contains(&case.op))
            });
            cases.map(move |case| trial(backend, &bench, case))
        })
        .collect()
}

/// Returns the trial of a case on a device.
fn trial(backend: &'static backends::Backend, bench: &Arc<backends::Bench>, case: Case) -> Trial {
    let name = format!("{}::{}", bench.name, case.name);
    let ignored = |reason: &str| {
        let name = format!("{name} (unsupported: {reason})");
        Trial::test(name, || Ok(())).with_ignored_flag(true)
    };
    if let Some(reason) = backends::reason(backend.unsupported, &case.name) {
        return ignored(reason);
    }
    match backend.refuses(bench, &case) {
        Ok(Some(reason)) => return ignored(reason),
        Ok(None) => {}
        Err(problem) => return Trial::test(name, move || Err(problem.into())),
    }
    let fails = backends::reason(backend.expected_failures, &case.name);
    let bench = Arc::clone(bench);
    let run = move || {
        bench.run(&case)?;
        // Also reports problems that an earlier case has caused: each problem is reported once.
        match &(backend.problems)()[..] {
            [] => Ok(()),
            [problem, ..] => Err(problem.clone()),
        }
    };
    Trial::test(name, move || match (run(), fails) {
        (result, None) => result.map_err(Into::into),
        (Err(_), Some(_)) => Ok(()),
        (Ok(()), Some(reason)) => Err(format!("passes, though listed as failing: {reason}").into()),
    })
}
