//! Programs of the dialect (`backend/source`), compiled by NVRTC. Compilation needs neither GPU nor
//! driver, so any machine can check that a kernel compiles; only a card can show that it runs
//! correctly.

use super::nvrtc;
use super::nvrtc::Program;
use super::nvrtc::is_present;
use crate::device::ProgramCode;
use crate::device::ProgramSource;
use crate::device::gpu::ComputeCapability;

/// The dialect in CUDA C++.
const PRELUDE: &str = concat!(
    include_str!("../source/prelude_cuda.h"),
    include_str!("../source/prelude_common.h")
);

/// The macro of the dialect with which programs request that each multiplication and each addition
/// is rounded. In CUDA, it holds for the whole program.
const UNCONTRACTED: &str = "NO_CONTRACTION";

/// The prefix of architectures that mean PTX, which a driver translates, rather than machine code.
const VIRTUAL: &str = "compute_";

/// The reason why a program was not compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// NVRTC is missing.
    #[error(
        "programs for GPUs are compiled by NVRTC, which was not found; install CUDA's runtime compiler (from PyPI: nvidia-cuda-nvrtc), and \
         add its folder to LD_LIBRARY_PATH"
    )]
    Absent,
    /// The program is not source code.
    #[error(
        "program {program} is SPIR-V, which this type of GPU does not accept; pass its source instead"
    )]
    NotSource {
        /// The program.
        program: String,
    },
    /// The compiler has rejected the program.
    #[error("program {program} does not compile for {architecture}: {log}")]
    Refused {
        /// The program, with its macros.
        program: String,
        /// The architecture it was compiled for.
        architecture: String,
        /// The compiler's messages, with lines of the source.
        log: String,
    },
    /// The compiler knows neither these GPUs nor any older ones.
    #[error(
        "NVRTC {version} compiles for {known}, not for {architecture}; install another version of it (from PyPI: nvidia-cuda-nvrtc, or \
         nvidia-cuda-nvrtc-cu12 for older GPUs), and add its folder to LD_LIBRARY_PATH"
    )]
    Architecture {
        /// The architecture of the GPUs.
        architecture: String,
        /// The version of the compiler.
        version: String,
        /// The architectures that it compiles for.
        known: String,
    },
    /// The compiler itself has failed.
    #[error("program {program}: NVRTC fails {doing}: {code}")]
    Failed {
        /// The program, with its macros.
        program: String,
        /// The operation that failed.
        doing: &'static str,
        /// The compiler's error code.
        code: String,
    },
}

/// The prelude of every program.
pub(super) fn head() -> &'static str {
    PRELUDE
}

/// Returns the architecture to compile for, so that GPUs of this capability can load the program:
/// machine code if the compiler knows them (`sm_90a`), otherwise PTX for the newest older
/// architecture that it knows (`compute_121`), which their driver translates. `known`: the result
/// of [`nvrtc::architectures`]; if it is empty, the compiler is assumed to know all.
pub(super) fn target(known: &[u32], capability: ComputeCapability) -> String {
    let ComputeCapability { major, minor } = capability;
    let own = major * 10 + minor;
    let older = known.iter().filter(|&&other| other < own).max();
    match older {
        Some(older) if !known.contains(&own) => format!("{VIRTUAL}{older}"),
        // Instructions of a single generation are only available in programs for that generation
        // alone.
        _ => format!("sm_{own}{}", if major >= 9 { "a" } else { "" }),
    }
}

/// Returns the message for a driver that rejects a compiled program: the CUDA versions of the
/// driver and of the compiler, and the remedy.
pub(super) fn refusal(driver: (i32, i32), compiler: Option<(i32, i32)>) -> String {
    let (major, minor) = driver;
    let Some(compiler) = compiler else {
        return format!("the driver supports CUDA {major}.{minor}");
    };
    let versions = format!(
        "the driver supports CUDA {major}.{minor}, but NVRTC is of CUDA {}.{}",
        compiler.0, compiler.1
    );
    if compiler <= driver {
        return versions;
    }
    // Before 13, packages have the major version in their names.
    let suffix = if major < 13 {
        format!("-cu{major}")
    } else {
        String::new()
    };
    format!(
        "{versions}, which is newer; install NVRTC of the driver's version (from PyPI: nvidia-cuda-nvrtc{suffix}=={major}.{minor}.*) and \
         add its folder to LD_LIBRARY_PATH, or install a newer driver"
    )
}

/// Compiles a program for GPUs of an architecture. For one such as `sm_90a`, it returns the cubin,
/// which their driver loads as it is. For one such as `compute_90`, it returns PTX that ends with a
/// zero, which drivers of those GPUs and of newer ones translate.
///
/// # Errors
/// [`CompileError`]; if the program is at fault, with the compiler's messages.
pub fn compile(source: &ProgramSource, architecture: &str) -> Result<Vec<u8>, CompileError> {
    let program = source.to_string();
    let ProgramCode::Source(code) = &source.code else {
        return Err(CompileError::NotSource { program });
    };
    if !is_present() {
        return Err(CompileError::Absent);
    }
    let mut text = String::new();
    for (name, value) in &source.defines {
        text.extend(["#define ", name, " ", value, "\n"]);
    }
    text.push_str(head());
    // Messages count from the program's first line.
    text.push_str("\n#line 1\n");
    text.push_str(code);
    let failed = |(doing, code)| CompileError::Failed {
        program: program.clone(),
        doing,
        code,
    };
    let mut options = vec![format!("--gpu-architecture={architecture}")];
    if code.contains(UNCONTRACTED) {
        options.push("--fmad=false".to_owned());
    }
    let compiling = Program::new(&text, &source.name).map_err(failed)?;
    if let Err(log) = compiling.compile(&options).map_err(failed)? {
        if let Some(error) = unknown(architecture) {
            return Err(error);
        }
        return Err(CompileError::Refused {
            program,
            architecture: architecture.to_owned(),
            log,
        });
    }
    match architecture.starts_with(VIRTUAL) {
        true => compiling.ptx().map_err(failed),
        false => compiling.cubin().map_err(failed),
    }
}

/// Returns the error for an architecture that the compiler does not know; `None` if the compiler
/// knows it or does not report which ones it knows.
fn unknown(architecture: &str) -> Option<CompileError> {
    let known = nvrtc::architectures();
    let number = architecture.trim_start_matches(VIRTUAL);
    let number = number
        .trim_start_matches("sm_")
        .trim_end_matches(['a', 'f']);
    let is_known = known.iter().any(|known| known.to_string() == number);
    let (major, minor) = nvrtc::version().filter(|_| !is_known && !known.is_empty())?;
    let known: Vec<String> = known.iter().map(|known| format!("sm_{known}")).collect();
    Some(CompileError::Architecture {
        architecture: architecture.to_owned(),
        version: format!("{major}.{minor}"),
        known: known.join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_newer_than_the_compiler_get_ptx_for_the_newest_known_architecture() {
        let known = [75, 80, 90, 100, 103, 120, 121];
        for (major, minor, expected) in [
            (7, 5, "sm_75"),
            (9, 0, "sm_90a"),
            (12, 1, "sm_121a"),
            (12, 2, "compute_121"),
            (13, 0, "compute_121"),
            // Newer than some architectures, but of no known generation.
            (11, 0, "compute_103"),
            (8, 9, "compute_80"),
            // Older than all architectures: the compiler reports it.
            (7, 0, "sm_70"),
        ] {
            let capability = ComputeCapability { major, minor };
            assert_eq!(target(&known, capability), expected);
        }
        let capability = ComputeCapability { major: 9, minor: 0 };
        assert_eq!(target(&[], capability), "sm_90a");
    }

    #[test]
    fn rejected_programs_are_reported_with_versions_and_a_remedy() {
        let text = refusal((12, 8), Some((13, 0)));
        for part in [
            "CUDA 12.8",
            "CUDA 13.0",
            "nvidia-cuda-nvrtc-cu12==12.8.*",
            "newer driver",
        ] {
            assert!(text.contains(part), "{text} lacks {part}");
        }
        let text = refusal((13, 0), Some((13, 1)));
        assert!(text.contains("nvidia-cuda-nvrtc==13.0.*"), "{text}");
        for compiler in [(13, 0), (12, 9)] {
            let text = refusal((13, 0), Some(compiler));
            assert!(!text.contains("install"), "{text}");
        }
        assert!(refusal((13, 0), None).contains("13.0"));
    }
}
