//! Every kernel case on every backend that this machine has.
//!
//! A case (`cases/<family>.rs`) is an op, attributes, inputs and what must come out: tensors,
//! computed by the plainest loop in the case itself, or an error. It runs through the kernel
//! registry and `KernelContext`, as in a session. A backend that is absent is ignored with its
//! factory's reason, unless the environment names it: `PLACEWRIGHT_REQUIRE=CPU,SYCL`. `NVRTC` there
//! requires CUDA's compiler, which then looks at all that emulated GPUs are given.

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

/// That the compiler is here which looks at all that emulated GPUs are given.
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

/// A case on a device.
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
        // Also what an earlier case has done wrong: each of them is reported.
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
