//! Every kernel case on every backend that this machine has.
//!
//! A case (`cases/<family>.rs`) is an op, attributes, inputs and what must come out: tensors, computed by the plainest
//! loop in the case itself, or an error. It runs through the kernel registry and `KernelContext`, as in a session. A
//! backend that is absent is ignored with its factory's reason, unless the environment names it:
//! `PLACEWRIGHT_REQUIRE=CPU,SYCL`. `NVRTC` there requires CUDA's compiler, which then looks at all that emulated GPUs are given.

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::Arguments;
use libtest_mimic::Trial;

mod backends;
mod case;
mod cases;
#[cfg(all(feature = "opencl", feature = "cuda"))]
#[path = "../support/emulated_gpu/mod.rs"]
mod emulated;
#[path = "../support/strict_cpu.rs"]
mod strict_cpu;

use case::Case;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let required = std::env::var("PLACEWRIGHT_REQUIRE").unwrap_or_default();
    let trials = backends::ALL
        .iter()
        .flat_map(|backend| trials(backend, &required))
        .chain(unknown(&required))
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A failure for each required name that no backend has: a misspelt requirement must not pass for a met one.
fn unknown(required: &str) -> Vec<Trial> {
    required
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty() && backends::ALL.iter().all(|b| b.name != *name))
        .map(|name| {
            let found = match name {
                "NVRTC" if backends::has_nvrtc() => Ok(()),
                "NVRTC" => {
                    Err("NVRTC is required and absent: have LD_LIBRARY_PATH lead to it".to_owned())
                }
                _ => Err(format!(
                    "{name} is required, and this suite has no such backend"
                )),
            };
            Trial::test(format!("{name}::present"), move || {
                found.map_err(Into::into)
            })
        })
        .collect()
}

fn trials(backend: &'static backends::Backend, required: &str) -> Vec<Trial> {
    let is_required = required.split(',').any(|name| name.trim() == backend.name);
    let benches = match backend.open() {
        Ok(benches) => benches,
        Err(reason) => {
            let trial = if is_required {
                let reason = format!("{} is required and absent: {reason}", backend.name);
                Trial::test(format!("{}::present", backend.name), move || {
                    Err(reason.into())
                })
            } else {
                let name = format!("{}::absent: {reason}", backend.name);
                Trial::test(name, || Ok(())).with_ignored_flag(true)
            };
            return vec![trial];
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
        // Also what an earlier case has done wrong: every one is to hear of it.
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
