//! Programs of the dialect (`backend/source`), compiled by NVRTC. That takes no GPU and no driver, so any machine can tell whether a kernel
//! compiles; that it runs, and runs right, only a card can tell.

use super::nvrtc::Program;
use super::nvrtc::is_present;
use crate::device::ProgramCode;
use crate::device::ProgramSource;

/// The dialect in CUDA C++.
const PRELUDE: &str = concat!(
    include_str!("../source/prelude_cuda.h"),
    include_str!("../source/prelude_common.h")
);

/// The macro by which programs ask for each product and each sum to be rounded (`NO_CONTRACTION` of the dialect).
const UNCONTRACTED: &str = "FUSED";

/// Why there is no cubin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// There is no NVRTC.
    #[error(
        "programs for GPUs are compiled by NVRTC, which is not here; install CUDA's runtime compiler (from PyPI: nvidia-cuda-nvrtc), and have \
         LD_LIBRARY_PATH lead to it"
    )]
    Absent,
    /// The program is not source code.
    #[error(
        "program {program} is SPIR-V, which GPUs of this type do not take; give them its source"
    )]
    NotSource {
        /// Which.
        program: String,
    },
    /// The compiler has refused the program.
    #[error("program {program} does not compile for {architecture}: {log}")]
    Refused {
        /// Which, with its macros.
        program: String,
        /// For which GPUs.
        architecture: String,
        /// What the compiler says, with lines of the source.
        log: String,
    },
    /// The compiler itself has failed.
    #[error("program {program}: NVRTC fails {doing}: {code}")]
    Failed {
        /// Which, with its macros.
        program: String,
        /// At what.
        doing: &'static str,
        /// Its code.
        code: String,
    },
}

/// What stands in front of every program.
pub(super) fn head() -> &'static str {
    PRELUDE
}

/// Compiles a program for GPUs of an architecture, such as `sm_90a`; gives the cubin, which their driver loads as it is.
///
/// # Errors
/// [`CompileError`]; where the program is at fault, with what the compiler says.
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
    if source.defines.iter().any(|(name, _)| name == UNCONTRACTED) {
        options.push("--fmad=false".to_owned());
    }
    let compiling = Program::new(&text, &source.name).map_err(failed)?;
    match compiling.compile(&options).map_err(failed)? {
        Ok(cubin) => Ok(cubin),
        Err(log) => Err(CompileError::Refused {
            program,
            architecture: architecture.to_owned(),
            log,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether NVRTC is here; a failure where it has to be.
    fn can_compile() -> bool {
        let required = std::env::var("PLACEWRIGHT_REQUIRE").unwrap_or_default();
        let is_required = required.split(',').any(|name| name.trim() == "NVRTC");
        assert!(is_present() || !is_required, "{}", CompileError::Absent);
        is_present()
    }

    #[test]
    fn a_program_becomes_a_cubin() {
        if !can_compile() {
            return;
        }
        let code = "KERNEL void twice(GLOBAL f32 *x) { x[GLOBAL_ID(0)] *= 2; }";
        let source = ProgramSource::of_source("twice.c", code);
        let cubin = compile(&source, "sm_90a").unwrap();
        assert!(cubin.starts_with(b"\x7fELF"));
    }

    #[test]
    fn what_does_not_compile_is_said_with_its_line() {
        if !can_compile() {
            return;
        }
        let source = ProgramSource::of_source("wrong.c", "\n\nwrong").with("N", "1");
        let error = compile(&source, "sm_90a").unwrap_err().to_string();
        for part in ["wrong.c (N=1)", "sm_90a", "(3): error"] {
            assert!(error.contains(part), "{error} lacks {part}");
        }
        let source = ProgramSource::of_source("right.c", "");
        let error = compile(&source, "sm_1").unwrap_err();
        assert!(!matches!(error, CompileError::Absent), "{error}");
        let module = ProgramSource::of_spirv("module", vec![0; 4]);
        let error = compile(&module, "sm_90a").unwrap_err();
        assert!(matches!(error, CompileError::NotSource { .. }), "{error}");
    }
}
