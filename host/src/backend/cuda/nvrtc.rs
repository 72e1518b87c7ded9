//! All calls into NVRTC.
//!
//! `cudarc` panics if the library is missing, so nothing here is called before [`is_present`] has
//! returned true.

use std::ffi::CStr;
use std::ffi::CString;
use std::sync::OnceLock;

use cudarc::nvrtc::result;
use cudarc::nvrtc::sys;

/// The operation that failed, and the library's code.
type Failure = (&'static str, String);

/// Returns whether NVRTC is present. Loads it.
pub fn is_present() -> bool {
    static IS_PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: loads a library of NVIDIA's, whose initialisation has no requirements.
    *IS_PRESENT.get_or_init(|| unsafe { sys::is_culib_present() })
}

/// Returns the version of NVRTC, if it is present.
pub(super) fn version() -> Option<(i32, i32)> {
    if !is_present() {
        return None;
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is present; writes two ints.
    let asked = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    asked.result().ok().map(|()| (major, minor))
}

/// Returns the architectures that NVRTC compiles for, 90 for `sm_90`; empty if it is missing or
/// does not report them.
pub(super) fn architectures() -> &'static [u32] {
    static ARCHITECTURES: OnceLock<Vec<u32>> = OnceLock::new();
    ARCHITECTURES.get_or_init(|| {
        if !is_present() {
            return Vec::new();
        }
        let mut n = 0;
        // SAFETY: the library is present; writes an int.
        let counted = unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut n) };
        let n = usize::try_from(n).unwrap_or(0);
        let mut architectures = vec![0; n];
        if counted.result().is_err() || n == 0 {
            return Vec::new();
        }
        // SAFETY: as above; writes as many ints as were counted.
        let given = unsafe { sys::nvrtcGetSupportedArchs(architectures.as_mut_ptr()) };
        let known = architectures
            .into_iter()
            .filter_map(|n| u32::try_from(n).ok());
        given
            .result()
            .map_or_else(|_| Vec::new(), |()| known.collect())
    })
}

/// A program that is being compiled.
pub(super) struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: only `new` creates it, and it is not used afterwards.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

impl Program {
    /// Creates a program. `name` appears in messages.
    pub(super) fn new(text: &str, name: &str) -> Result<Self, Failure> {
        let zero = |_| ("reading the program", "it contains a zero byte".to_owned());
        let (text, name) = (CString::new(text), CString::new(name));
        let (text, name) = (text.map_err(zero)?, name.map_err(zero)?);
        let program = result::create_program(&text, Some(&name));
        program.map(Self).map_err(failed("making a program"))
    }

    /// Compiles it; the inner error is the compiler's log.
    pub(super) fn compile(&self, options: &[String]) -> Result<Result<(), String>, Failure> {
        // SAFETY: the program lives.
        let compiled = unsafe { result::compile_program(self.0, options) };
        match compiled.map_err(|error| error.0) {
            Ok(()) => Ok(Ok(())),
            Err(
                sys::nvrtcResult::NVRTC_ERROR_COMPILATION
                | sys::nvrtcResult::NVRTC_ERROR_INVALID_OPTION,
            ) => self.log().map(Err),
            Err(code) => Err(("compiling", format!("{code:?}"))),
        }
    }

    /// Returns the machine code compiled for an architecture.
    pub(super) fn cubin(&self) -> Result<Vec<u8>, Failure> {
        let doing = "giving the cubin";
        let mut len_bytes = 0;
        // SAFETY: the program is alive, and compiled.
        let asked = unsafe { sys::nvrtcGetCUBINSize(self.0, &raw mut len_bytes) };
        asked.result().map_err(failed(doing))?;
        let mut cubin = vec![0u8; len_bytes];
        // SAFETY: as above; there is space for the reported number of bytes.
        let given = unsafe { sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast()) };
        given.result().map_err(failed(doing))?;
        Ok(cubin)
    }

    /// Returns the compiled PTX, with a zero at its end.
    pub(super) fn ptx(&self) -> Result<Vec<u8>, Failure> {
        let doing = "giving the PTX";
        let mut len_bytes = 0;
        // SAFETY: the program is alive, and compiled.
        let asked = unsafe { sys::nvrtcGetPTXSize(self.0, &raw mut len_bytes) };
        asked.result().map_err(failed(doing))?;
        let mut ptx = vec![0u8; len_bytes];
        // SAFETY: as above; there is space for the reported number of bytes, the last of which is a
        // zero.
        let given = unsafe { sys::nvrtcGetPTX(self.0, ptx.as_mut_ptr().cast()) };
        given.result().map_err(failed(doing))?;
        Ok(ptx)
    }

    fn log(&self) -> Result<String, Failure> {
        // SAFETY: the program lives.
        let log = unsafe { result::get_program_log(self.0) };
        let log = log.map_err(failed("giving its messages"))?;
        let log: Vec<u8> = log.into_iter().map(i8_to_u8).collect();
        let log = CStr::from_bytes_until_nul(&log).map_or(&*log, CStr::to_bytes);
        Ok(String::from_utf8_lossy(log).trim_end().to_owned())
    }
}

fn i8_to_u8(byte: std::ffi::c_char) -> u8 {
    byte.to_ne_bytes()[0]
}

fn failed(doing: &'static str) -> impl Fn(result::NvrtcError) -> Failure {
    move |error| (doing, error.to_string())
}
