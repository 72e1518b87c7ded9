//! ONNX Runtime: safe types for the few calls of its C API that are needed. All unsafe code of this
//! program is here.

use std::ffi::CStr;
use std::ffi::CString;
use std::ffi::c_char;
use std::ffi::c_void;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use anyhow::Result;
use anyhow::anyhow;
use anyhow::bail;
use anyhow::ensure;
use ort_sys::ExecutionMode;
use ort_sys::GraphOptimizationLevel;
use ort_sys::ONNXTensorElementDataType;
use ort_sys::OrtAllocator;
use ort_sys::OrtApi;
use ort_sys::OrtApiBase;
use ort_sys::OrtEnv;
use ort_sys::OrtLoggingLevel;
use ort_sys::OrtSession;
use ort_sys::OrtSessionOptions;
use ort_sys::OrtStatusPtr;
use ort_sys::OrtValue;

use crate::work::Check;
use crate::work::Element;
use crate::work::Input;
use crate::work::Options;
use crate::work::Runtime;
use crate::work::Session;
use crate::work::Signature;

/// The loaded library. It is never unloaded, so pointers into it stay valid.
pub(crate) struct OnnxRuntime {
    api: &'static OrtApi,
    version: String,
    env: *mut OrtEnv,
    allocator: *mut OrtAllocator,
}

/// How a session executes.
#[derive(Debug, Clone, Copy)]
struct Setting {
    is_parallel: bool,
    may_spin: bool,
}

/// A loaded model. Any number of threads may run it concurrently, as ONNX Runtime documents for
/// `Run`.
struct OnnxSession {
    api: &'static OrtApi,
    session: *mut OrtSession,
    allocator: *mut OrtAllocator,
    signature: Signature,
    input_names: Vec<CString>,
    output_names: Vec<CString>,
}

/// A tensor of ONNX Runtime.
struct Value {
    api: &'static OrtApi,
    value: *mut OrtValue,
}

// SAFETY: `Run` may be called from several threads concurrently, and the default allocator is
// thread-safe; both are documented.
unsafe impl Sync for OnnxSession {}
// SAFETY: nothing in it belongs to the thread that created it.
unsafe impl Send for OnnxSession {}

/// Calls a function of the API and turns its status into a result.
macro_rules! call {
    ($api:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let api: &OrtApi = $api;
        // SAFETY: every pointer argument was returned by the API and has not been released, or
        // points to a value of this function that outlives the call.
        let status = unsafe { (api.$function)($($argument),*) };
        check(api, status).with_context(|| stringify!($function))
    }};
}

fn check(api: &OrtApi, status: OrtStatusPtr) -> Result<()> {
    if status.0.is_null() {
        return Ok(());
    }
    // SAFETY: a status that is not null is an error with a null-terminated message, valid until it
    // is released.
    let message = unsafe { CStr::from_ptr((api.GetErrorMessage)(status.0)) };
    let message = message.to_string_lossy().into_owned();
    // SAFETY: released once, here.
    unsafe { (api.ReleaseStatus)(status.0) };
    Err(anyhow!(message))
}

impl Setting {
    /// Parses `sequential` or `parallel` (concurrent operators), optionally with `no-spin` (waiting
    /// threads sleep).
    fn parse(text: &str) -> Result<Self> {
        let mut setting = Self {
            is_parallel: false,
            may_spin: true,
        };
        for word in text.split_whitespace() {
            match word {
                "sequential" => setting.is_parallel = false,
                "parallel" => setting.is_parallel = true,
                "no-spin" => setting.may_spin = false,
                _ => bail!("`{word}` is no setting; expected sequential, parallel, no-spin"),
            }
        }
        Ok(setting)
    }
}

impl OnnxRuntime {
    /// Loads the library.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        // SAFETY: the constructors of ONNX Runtime have no requirements.
        let library = unsafe { libloading::Library::new(path) }
            .with_context(|| format!("loading {}", path.display()))?;
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        // SAFETY: this is the type of the exported function in the C header.
        let base = unsafe {
            library.get::<unsafe extern "system" fn() -> *const OrtApiBase>(b"OrtGetApiBase\0")
        }?;
        // SAFETY: the function has no preconditions and returns a pointer to a static structure.
        let base = unsafe { &*base() };
        // SAFETY: as above.
        let version = unsafe { CStr::from_ptr((base.GetVersionString)()) };
        let version = version.to_string_lossy().into_owned();
        // SAFETY: null, or a pointer to a static structure whose beginning is the API of that
        // version.
        let api =
            unsafe { (base.GetApi)(ort_sys::ORT_API_VERSION).as_ref() }.with_context(|| {
                format!(
                    "ONNX Runtime {version} lacks API {}",
                    ort_sys::ORT_API_VERSION
                )
            })?;
        let mut env = ptr::null_mut();
        let level = OrtLoggingLevel::ORT_LOGGING_LEVEL_ERROR;
        call!(api, CreateEnv(level, c"peers".as_ptr(), &mut env))?;
        let mut allocator = ptr::null_mut();
        call!(api, GetAllocatorWithDefaultOptions(&mut allocator))?;
        Ok(Self {
            api,
            version,
            env,
            allocator,
        })
    }

    fn create(
        &self,
        graph: &Path,
        how: &Options<'_>,
        options: *mut OrtSessionOptions,
    ) -> Result<*mut OrtSession> {
        let setting = Setting::parse(how.setting)?;
        let api = self.api;
        let n_threads = how.n_threads.into();
        let (mode, n_inter, n_intra) = if setting.is_parallel {
            (ExecutionMode::ORT_PARALLEL, n_threads, 1)
        } else {
            (ExecutionMode::ORT_SEQUENTIAL, 1, n_threads)
        };
        let level = if how.optimizes {
            GraphOptimizationLevel::ORT_ENABLE_ALL
        } else {
            GraphOptimizationLevel::ORT_DISABLE_ALL
        };
        call!(api, SetSessionExecutionMode(options, mode))?;
        call!(api, SetInterOpNumThreads(options, n_inter))?;
        call!(api, SetIntraOpNumThreads(options, n_intra))?;
        call!(api, SetSessionGraphOptimizationLevel(options, level))?;
        let spins = if setting.may_spin { c"1" } else { c"0" };
        for key in [
            c"session.intra_op.allow_spinning",
            c"session.inter_op.allow_spinning",
        ] {
            call!(
                api,
                AddSessionConfigEntry(options, key.as_ptr(), spins.as_ptr())
            )?;
        }
        let path = CString::new(graph.as_os_str().as_bytes())?;
        let mut session = ptr::null_mut();
        call!(
            api,
            CreateSession(self.env, path.as_ptr(), options, &mut session)
        )?;
        Ok(session)
    }
}

impl Runtime for OnnxRuntime {
    fn identity(&self) -> (&'static str, String) {
        ("ONNX Runtime", self.version.clone())
    }

    fn open(
        &self,
        graph: &Path,
        signature: Signature,
        how: &Options<'_>,
    ) -> Result<Box<dyn Session>> {
        let api = self.api;
        let input_names = names(signature.inputs.iter().map(|input| &input.name))?;
        let output_names = names(signature.outputs.iter().map(|output| &output.name))?;
        let mut options = ptr::null_mut();
        call!(api, CreateSessionOptions(&mut options))?;
        let session = self.create(graph, how, options);
        // SAFETY: released once, and sessions do not refer to it.
        unsafe { (api.ReleaseSessionOptions)(options) };
        Ok(Box::new(OnnxSession {
            api,
            session: session.with_context(|| graph.display().to_string())?,
            allocator: self.allocator,
            signature,
            input_names,
            output_names,
        }))
    }
}

fn names<'a>(names: impl Iterator<Item = &'a String>) -> Result<Vec<CString>> {
    Ok(names
        .map(|name| CString::new(&**name))
        .collect::<Result<_, _>>()?)
}

impl OnnxSession {
    /// Creates a tensor with a copy of these bytes.
    fn tensor(&self, input: &Input, bytes: &[u8]) -> Result<Value> {
        ensure!(
            bytes.len() == input.n_bytes(),
            "input {} has {} bytes, expected {}",
            input.name,
            bytes.len(),
            input.n_bytes()
        );
        let api = self.api;
        let element_type = match input.element {
            Element::Float32 => ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
            Element::Int32 => ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
        };
        let mut value = ptr::null_mut();
        call!(
            api,
            CreateTensorAsOrtValue(
                self.allocator,
                input.shape.as_ptr(),
                input.shape.len(),
                element_type,
                &mut value
            )
        )?;
        let value = Value { api, value };
        let data = value.data()?;
        // SAFETY: the tensor has just been created for that many bytes.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), data.cast(), bytes.len()) };
        Ok(value)
    }

    /// Runs the model with these inputs and returns all outputs.
    fn run_fed(&self, inputs: &[Value]) -> Result<Vec<Value>> {
        let api = self.api;
        let pointers = |names: &[CString]| -> Vec<*const c_char> {
            names.iter().map(|name| name.as_ptr()).collect()
        };
        let (input_names, output_names) =
            (pointers(&self.input_names), pointers(&self.output_names));
        let inputs: Vec<*const OrtValue> = inputs
            .iter()
            .map(|input| input.value.cast_const())
            .collect();
        let mut outputs = vec![ptr::null_mut(); output_names.len()];
        call!(
            api,
            Run(
                self.session,
                ptr::null(),
                input_names.as_ptr(),
                inputs.as_ptr(),
                inputs.len(),
                output_names.as_ptr(),
                output_names.len(),
                outputs.as_mut_ptr()
            )
        )?;
        Ok(outputs
            .into_iter()
            .map(|value| Value { api, value })
            .collect())
    }
}

impl Session for OnnxSession {
    fn run(&self, inputs: &[Vec<u8>], check: Check<'_>) -> Result<Duration> {
        let started = Instant::now();
        let fed: Vec<Value> = self
            .signature
            .inputs
            .iter()
            .zip(inputs)
            .map(|(input, bytes)| self.tensor(input, bytes))
            .collect::<Result<_>>()?;
        let outputs = self.run_fed(&fed)?;
        let time = started.elapsed();
        for (number, (output, value)) in self.signature.outputs.iter().zip(&outputs).enumerate() {
            if output.is_float {
                check(number, value.as_floats()?)?;
            }
        }
        Ok(time)
    }
}

impl Value {
    /// Returns the elements, which must be 32-bit floats.
    fn as_floats(&self) -> Result<&[f32]> {
        let api = self.api;
        let mut info = ptr::null_mut();
        call!(api, GetTensorTypeAndShape(self.value, &mut info))?;
        let mut element_type = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
        let mut n_elements = 0;
        let read = call!(api, GetTensorElementType(info, &mut element_type))
            .and_then(|()| call!(api, GetTensorShapeElementCount(info, &mut n_elements)));
        // SAFETY: released once.
        unsafe { (api.ReleaseTensorTypeAndShapeInfo)(info) };
        read?;
        if element_type != ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT {
            bail!("an output has elements of {element_type:?}, expected 32-bit floats");
        }
        let data = self.data()?;
        // SAFETY: the tensor contains that many floats, and lives as long as the slice.
        Ok(unsafe { std::slice::from_raw_parts(data.cast(), n_elements) })
    }

    fn data(&self) -> Result<*mut c_void> {
        let mut data = ptr::null_mut();
        call!(self.api, GetTensorMutableData(self.value, &mut data))?;
        Ok(data)
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: released once.
        unsafe { (self.api.ReleaseValue)(self.value) };
    }
}

impl Drop for OnnxSession {
    fn drop(&mut self) {
        // SAFETY: released once, and no run is in flight: runs borrow the session.
        unsafe { (self.api.ReleaseSession)(self.session) };
    }
}
