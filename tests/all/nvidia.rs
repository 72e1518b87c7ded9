//! NVIDIA's libraries as far as they need no GPU: the compiler's results, and the checks of
//! descriptors by cuBLASLt and cuDNN.
//!
//! Includes the host's sources that call them, which are private in the host.

#![allow(dead_code, reason = "tests use a part of what this includes")]
#![allow(unreachable_pub, reason = "the same sources are public in the host")]

#[expect(unsafe_code, reason = "reads what pointers lead to")]
#[path = "../../host/src/backend/cuda/c_string.rs"]
mod c_string;
#[path = "../../host/src/backend/cuda/compile.rs"]
mod compile;
#[expect(unsafe_code, reason = "calls into cuBLASLt")]
#[path = "../../host/src/backend/cuda/cublaslt.rs"]
mod cublaslt;
#[expect(unsafe_code, reason = "calls into cuDNN")]
#[path = "../../host/src/backend/cuda/cudnn.rs"]
mod cudnn;
#[expect(unsafe_code, reason = "calls into NVRTC")]
#[path = "../../host/src/backend/cuda/nvrtc.rs"]
mod nvrtc;

use placewright::backend::cuda::driver;
use placewright::device::ProgramSource;
use placewright::device::gpu::ComputeCapability;

use compile::CompileError;
use compile::compile;

#[test]
#[needs(CublasLt)]
fn cublaslt_accepts_descriptors() {
    cublaslt::check_descriptions();
}

#[test]
#[needs(Cudnn)]
fn cudnn_accepts_descriptors() {
    cudnn::check_descriptions();
}

fn twice() -> ProgramSource {
    let code = "KERNEL void twice(GLOBAL f32 *x) { x[GLOBAL_ID(0)] *= 2; }";
    ProgramSource::of_source("twice.c", code)
}

#[test]
#[needs(Nvrtc)]
fn a_program_becomes_a_cubin() {
    let cubin = compile(&twice(), "sm_90a").unwrap();
    assert!(cubin.starts_with(b"\x7fELF"));
}

#[test]
#[needs(Nvrtc)]
fn for_newer_gpus_a_program_becomes_terminated_ptx() {
    let known = nvrtc::architectures();
    assert!(known.contains(&90), "{known:?}");
    let future = ComputeCapability {
        major: 99,
        minor: 0,
    };
    let newest = known.iter().max().unwrap();
    let architecture = compile::target(known, future);
    assert_eq!(architecture, format!("compute_{newest}"));
    let ptx = compile(&twice(), &architecture).unwrap();
    let text = std::ffi::CStr::from_bytes_with_nul(&ptx).unwrap();
    let text = text.to_str().unwrap();
    for part in [format!(".target sm_{newest}"), ".entry twice".to_owned()] {
        assert!(text.contains(&part), "{text} lacks {part}");
    }
}

#[test]
#[needs(Nvrtc)]
fn compile_errors_have_a_line() {
    let source = ProgramSource::of_source("wrong.c", "\n\nwrong").with("N", "1");
    let error = compile(&source, "sm_90a").unwrap_err().to_string();
    for part in ["wrong.c (N=1)", "sm_90a", "(3): error"] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    let source = ProgramSource::of_source("right.c", "");
    let error = compile(&source, "sm_1").unwrap_err().to_string();
    for part in ["not for sm_1;", "sm_90", "nvidia-cuda-nvrtc"] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    let module = ProgramSource::of_spirv("module", vec![0; 4]);
    let error = compile(&module, "sm_90a").unwrap_err();
    assert!(matches!(error, CompileError::NotSource { .. }), "{error}");
}
