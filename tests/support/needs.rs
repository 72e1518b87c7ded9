//! Needs of tests that not every machine meets: the one place that decides whether a need is
//! present, and what happens to a test if it is absent.
//!
//! Such a test is ignored with the reason. `PLACEWRIGHT_REQUIRE`, a comma-separated list, names
//! needs that must be present; if one is absent, each test that needs it fails.

#![allow(dead_code, reason = "not every program of tests needs everything")]

use std::env;
use std::process::Command;
use std::sync::OnceLock;

#[cfg(feature = "cuda")]
use placewright::backend::cuda;
#[cfg(feature = "opencl")]
use placewright::backend::opencl::SyclDeviceFactory;
#[cfg(any(feature = "cuda", feature = "opencl"))]
use placewright::device::DeviceFactory;

/// Something that a test may need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Device CPU:0, which is always present, but may be required.
    Cpu,
    /// NVIDIA's library for matmuls.
    CublasLt,
    /// NVIDIA's library for convolutions.
    Cudnn,
    /// An NVIDIA card.
    Gpu,
    /// A machine without a card, like most.
    NoGpu,
    /// CUDA's compiler.
    Nvrtc,
    /// An interpreter of Python 3.
    Python,
    /// An OpenCL device.
    Sycl,
    /// A second OpenCL device.
    SecondSycl,
    /// Two OpenCL devices of one platform, which copy from each other.
    SyclPair,
}

/// Whether all needs of a test are present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Met {
    Yes,
    /// A need is absent, and why.
    Ignored(String),
    /// A required need is absent, and the remedy.
    Failed(String),
}

impl Need {
    pub(crate) const ALL: [Self; 10] = [
        Self::Cpu,
        Self::CublasLt,
        Self::Cudnn,
        Self::Gpu,
        Self::NoGpu,
        Self::Nvrtc,
        Self::Python,
        Self::Sycl,
        Self::SecondSycl,
        Self::SyclPair,
    ];

    /// Returns its name in [`VARIABLE`].
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::CublasLt => "CUBLASLT",
            Self::Cudnn => "CUDNN",
            Self::Gpu => "GPU",
            Self::NoGpu => "NO_GPU",
            Self::Nvrtc => "NVRTC",
            Self::Python => "PYTHON",
            Self::Sycl => "SYCL",
            Self::SecondSycl => "SYCL:1",
            Self::SyclPair => "SYCL_PAIR",
        }
    }

    /// Returns why it is absent and what to install; `None` if it is present. Checks only once.
    pub(crate) fn absence(self) -> Option<&'static str> {
        static FOUND: [OnceLock<Option<String>>; Need::ALL.len()] =
            [const { OnceLock::new() }; Need::ALL.len()];
        let found = FOUND[self as usize].get_or_init(|| self.look());
        found.as_deref()
    }

    fn look(self) -> Option<String> {
        match self {
            Self::Cpu => None,
            Self::CublasLt => cublaslt_absence(),
            Self::Cudnn => cudnn_absence(),
            Self::Gpu => gpu_absence(),
            Self::NoGpu => gpu_absence()
                .is_none()
                .then(|| "there is a card here".to_owned()),
            Self::Nvrtc => nvrtc_absence(),
            Self::Python => {
                let python = Command::new("python3").arg("--version").output();
                let is_here = python.is_ok_and(|output| output.status.success());
                (!is_here).then(|| "there is no `python3` here; install Python 3".to_owned())
            }
            Self::Sycl => sycl(1),
            Self::SecondSycl => sycl(2),
            Self::SyclPair => sycl(2).or_else(|| {
                let pair = sycl_pair();
                pair.is_none()
                    .then(|| "no two OpenCL devices are of one platform".to_owned())
            }),
        }
    }
}

/// Returns why there are fewer OpenCL devices than needed.
fn sycl(n_needed: usize) -> Option<String> {
    #[cfg(feature = "opencl")]
    return match SyclDeviceFactory.list_physical() {
        Ok(devices) if devices.len() >= n_needed => None,
        Ok(devices) => Some(format!(
            "of {n_needed} OpenCL devices there are {}; install another driver, or have PoCL show two (POCL_DEVICES=\"pthread basic\")",
            devices.len()
        )),
        Err(reason) => Some(without_type(&reason.to_string(), "SYCL")),
    };
    #[cfg(not(feature = "opencl"))]
    Some(format!(
        "{n_needed} needed; build with the feature `opencl`"
    ))
}

/// Removes the device type from the start of a factory's error, because it is printed anyway.
#[cfg(any(feature = "cuda", feature = "opencl"))]
fn without_type(error: &str, device_type: &str) -> String {
    let start = format!("{device_type}: ");
    error.strip_prefix(&start).unwrap_or(error).to_owned()
}

/// Returns the first two OpenCL devices of one platform, by their numbers.
#[cfg(feature = "opencl")]
pub(crate) fn sycl_pair() -> Option<[usize; 2]> {
    let n = SyclDeviceFactory.list_physical().ok()?.len();
    let platform = |index| {
        let details = SyclDeviceFactory.details(index).ok()?;
        details.get("platform_name").cloned()
    };
    let pairs = (0..n).flat_map(|first| (first + 1..n).map(move |second| [first, second]));
    let mut pairs = pairs.filter(|&[first, second]| platform(first) == platform(second));
    pairs.next()
}

#[cfg(not(feature = "opencl"))]
fn sycl_pair() -> Option<[usize; 2]> {
    None
}

fn gpu_absence() -> Option<String> {
    #[cfg(feature = "cuda")]
    return match cuda::GpuDeviceFactory::default().list_physical() {
        Ok(_) => None,
        Err(reason) => Some(without_type(&reason.to_string(), "GPU")),
    };
    #[cfg(not(feature = "cuda"))]
    Some("build with the feature `cuda`".to_owned())
}

fn nvrtc_absence() -> Option<String> {
    #[cfg(feature = "cuda")]
    return (!cuda::is_present()).then(|| cuda::CompileError::Absent.to_string());
    #[cfg(not(feature = "cuda"))]
    Some("build with the feature `cuda`".to_owned())
}

#[cfg(feature = "cuda")]
#[expect(unsafe_code, reason = "loads a library of NVIDIA's")]
fn cublaslt_absence() -> Option<String> {
    // SAFETY: the library's initialisation has no requirements.
    let is_here = unsafe { cudarc::cublaslt::sys::is_culib_present() };
    (!is_here).then(|| missing("cuBLASLt", "nvidia-cublas"))
}

#[cfg(feature = "cuda")]
#[expect(unsafe_code, reason = "loads a library of NVIDIA's")]
fn cudnn_absence() -> Option<String> {
    // SAFETY: the library's initialisation has no requirements.
    let is_here = unsafe { cudarc::cudnn::sys::is_culib_present() };
    (!is_here).then(|| missing("cuDNN 9", "nvidia-cudnn-cu13"))
}

#[cfg(feature = "cuda")]
fn missing(library: &str, package: &str) -> String {
    format!(
        "{library} is not here; install it (from PyPI: {package}), and have LD_LIBRARY_PATH lead to it"
    )
}

#[cfg(not(feature = "cuda"))]
fn cublaslt_absence() -> Option<String> {
    Some("build with the feature `cuda`".to_owned())
}

#[cfg(not(feature = "cuda"))]
fn cudnn_absence() -> Option<String> {
    Some("build with the feature `cuda`".to_owned())
}

/// Lists the required needs.
pub(crate) const VARIABLE: &str = "PLACEWRIGHT_REQUIRE";

fn required() -> String {
    env::var(VARIABLE).unwrap_or_default()
}

fn words(required: &str) -> impl Iterator<Item = &str> {
    required
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

fn names(required: &str, word: &str) -> bool {
    words(required).any(|required| required == word)
}

pub(crate) fn is_required(word: &str) -> bool {
    names(&required(), word)
}

/// # Errors
/// If the environment requires an unknown need: a misspelt requirement must not pass as a met one.
pub(crate) fn check_required() -> Result<(), String> {
    check_words(&required())
}

pub(crate) fn check_words(required: &str) -> Result<(), String> {
    let known = Need::ALL.map(Need::word);
    match words(required).find(|word| !known.contains(word)) {
        None => Ok(()),
        Some(unknown) => Err(format!(
            "{VARIABLE} names `{unknown}`, which no test needs; expected words of {}, with commas between them",
            known.join(", ")
        )),
    }
}

/// Decides whether all of these are present. Of absent needs, required ones come first.
pub(crate) fn met(needs: &[Need]) -> Met {
    decide(needs, &required(), Need::absence)
}

/// The same for other requirements and another machine.
pub(crate) fn decide(
    needs: &[Need],
    required: &str,
    absence: impl Fn(Need) -> Option<&'static str>,
) -> Met {
    let absent: Vec<_> = needs
        .iter()
        .filter_map(|&need| Some((need.word(), absence(need)?)))
        .collect();
    if let Some((word, reason)) = absent.iter().find(|(word, _)| names(required, word)) {
        return Met::Failed(format!(
            "{VARIABLE} names {word}, which is absent: {reason}"
        ));
    }
    match absent.first() {
        None => Met::Yes,
        Some((word, reason)) => Met::Ignored(format!("needs {word}: {reason}")),
    }
}
