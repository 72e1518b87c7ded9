//! All calls into CUDA's driver.
//!
//! `cudarc` loads the library and panics if it is missing, so nothing here is called before
//! [`is_present`] has returned true. Handles are plain numbers: the code that uses this module owns
//! them.

use std::alloc;
use std::alloc::Layout;
use std::ffi::CStr;
use std::ffi::CString;
use std::ffi::c_char;
use std::ffi::c_int;
use std::ffi::c_void;
use std::ptr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::OnceLock;

use cudarc::driver::sys;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::sys::CUresult;
use smallvec::SmallVec;
use tracing::debug;
use tracing::warn;

use super::CompileError;
use super::c_string::string_at;
use super::compile::compile;
use super::compile::refusal;
use super::compile::target;
use super::cublaslt;
use super::cublaslt::CublasLt;
use super::cudnn;
use super::cudnn::Cudnn;
use super::driver::Argument;
use super::driver::ConvolutionForward;
use super::driver::Driver;
use super::driver::DriverError;
use super::driver::DriverErrorKind;
use super::driver::EventHandle;
use super::driver::FunctionHandle;
use super::driver::Gpu;
use super::driver::GpuFacts;
use super::driver::Grid;
use super::driver::Matmul;
use super::driver::ModuleHandle;
use super::driver::Span;
use super::driver::StreamHandle;
use super::nvml::nvlinks;
use super::nvrtc;
use crate::device::ComputeTraits;
use crate::device::DeviceError;
use crate::device::ProcessorKind;
use crate::device::ProgramSource;
use crate::device::gpu::ComputeCapability;
use crate::device::gpu::PhysicalGpu;
use crate::trace::targets;

type Called<T> = Result<T, DriverError>;

/// Checks whether CUDA's driver is present. Loads it.
fn is_present() -> bool {
    static IS_PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: loads a library of NVIDIA's, whose initialisation has no requirements.
    *IS_PRESENT.get_or_init(|| unsafe { sys::is_culib_present() })
}

/// Returns the newest CUDA version whose programs the driver accepts; 0 if it does not report it.
fn driver_version() -> (i32, i32) {
    // SAFETY: writes an int.
    let version: c_int = given(|version| unsafe { sys::cuDriverGetVersion(version) }).unwrap_or(0);
    (version / 1000, version % 1000 / 10)
}

/// Returns the consequence of an error code. Work that fails on the GPU invalidates the context,
/// which reports this from then on.
fn kind(code: CUresult) -> DriverErrorKind {
    match code {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => DriverErrorKind::OutOfMemory,
        CUresult::CUDA_ERROR_DEINITIALIZED
        | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
        | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
        | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
        | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
        | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | CUresult::CUDA_ERROR_ASSERT
        | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | CUresult::CUDA_ERROR_INVALID_PC
        | CUresult::CUDA_ERROR_LAUNCH_FAILED
        | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
        | CUresult::CUDA_ERROR_CONTAINED
        | CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK
        | CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED
        | CUresult::CUDA_ERROR_UNKNOWN => DriverErrorKind::Lost,
        _ => DriverErrorKind::Refused,
    }
}

fn error(code: CUresult) -> DriverError {
    let text = |ask: unsafe fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut text = ptr::null();
        // SAFETY: returns a string that lives as long as the library, or a null pointer.
        let asked = unsafe { ask(code, &raw mut text) };
        if asked != CUresult::CUDA_SUCCESS {
            return String::new();
        }
        // SAFETY: as above.
        unsafe { string_at(text) }
    };
    let name = text(sys::cuGetErrorName);
    let meaning = text(sys::cuGetErrorString);
    DriverError {
        code: code as i32,
        message: format!("{name}: {meaning}"),
        kind: kind(code),
    }
}

fn done(code: CUresult) -> Called<()> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(error(code)),
    }
}

/// Returns what a call writes through a pointer.
fn given<T: Default>(call: impl FnOnce(*mut T) -> CUresult) -> Called<T> {
    let mut value = T::default();
    done(call(&raw mut value))?;
    Ok(value)
}

/// The same for a handle, which is a pointer.
fn handle<T>(call: impl FnOnce(*mut *mut T) -> CUresult) -> Called<u64> {
    let mut handle = ptr::null_mut();
    done(call(&raw mut handle))?;
    Ok(handle.expose_provenance() as u64)
}

/// Converts a handle to the driver's pointer.
fn pointer<T>(handle: u64) -> *mut T {
    ptr::with_exposed_provenance_mut(usize::try_from(handle).unwrap_or_default())
}

/// Returns a layout of whole pages.
fn pinned_layout(len_bytes: usize) -> Option<Layout> {
    const PAGE_BYTES: usize = 4096;
    let len_bytes = len_bytes.max(1).checked_next_multiple_of(PAGE_BYTES)?;
    Layout::from_size_align(len_bytes, PAGE_BYTES).ok()
}

/// CUDA's driver.
#[derive(Debug, Clone, Copy)]
pub(super) struct CudaDriver;

impl CudaDriver {
    /// Initialises the driver and lists its devices.
    fn devices() -> Result<Vec<sys::CUdevice>, DeviceError> {
        let absent = |what: String, remedy: &str| DeviceError::Absent {
            device_type: super::DEVICE_TYPE.to_owned(),
            what,
            remedy: remedy.to_owned(),
        };
        if !is_present() {
            return Err(absent(
                "no CUDA driver (libcuda.so.1) was found".to_owned(),
                "install NVIDIA's driver, or add the folder of its library to LD_LIBRARY_PATH; start a container with the GPUs (`--gpus all`)",
            ));
        }
        // SAFETY: may be called any number of times.
        let started = done(unsafe { sys::cuInit(0) });
        // SAFETY: writes an int.
        let counted = started.and_then(|()| given(|n| unsafe { sys::cuDeviceGetCount(n) }));
        let remedy = "check the cards, and your permission to use them, with `nvidia-smi`";
        let n: c_int = counted
            .map_err(|error| absent(format!("the CUDA driver does not start: {error}"), remedy))?;
        let devices = (0..n).map(|ordinal| {
            // SAFETY: the ordinal is one of those that the driver has counted.
            given(|device| unsafe { sys::cuDeviceGet(device, ordinal) })
        });
        let devices: Vec<sys::CUdevice> = devices.collect::<Called<_>>().map_err(|error| {
            absent(
                format!("the CUDA driver does not list its GPUs: {error}"),
                remedy,
            )
        })?;
        if devices.is_empty() {
            return Err(absent("the CUDA driver has no GPU".to_owned(), remedy));
        }
        Ok(devices)
    }

    fn facts(device: sys::CUdevice, all: &[sys::CUdevice], driver: &str) -> Called<GpuFacts> {
        let attribute = |which: Attribute| {
            // SAFETY: the device is one of the driver's; writes an int.
            let value: Called<c_int> =
                given(|value| unsafe { sys::cuDeviceGetAttribute(value, which, device) });
            value.map(|value| u32::try_from(value).unwrap_or(0))
        };
        let text = |ask: unsafe fn(*mut c_char, c_int, sys::CUdevice) -> CUresult| {
            let mut text = [0u8; 256];
            // SAFETY: writes at most the given number of bytes, with a zero.
            done(unsafe { ask(text.as_mut_ptr().cast(), 256, device) })?;
            let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
            Ok::<_, DriverError>(text.to_string_lossy().into_owned())
        };
        let capability = ComputeCapability {
            major: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            minor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        };
        let n_multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        // SAFETY: the device is one of the driver's; writes a size.
        let total_bytes: usize = given(|bytes| unsafe { sys::cuDeviceTotalMem_v2(bytes, device) })?;
        let peers = (0u32..).zip(all).filter(|&(_, &other)| {
            // SAFETY: both devices are the driver's; writes an int.
            let can: Called<c_int> =
                given(|can| unsafe { sys::cuDeviceCanAccessPeer(can, device, other) });
            other != device && can == Ok(1)
        });
        // In kHz and bits; two transfers per clock. Newer drivers may return 0.
        let clock = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE).unwrap_or(0);
        let width = attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH).unwrap_or(0);
        let rate = 2.0 * 1e3 * f64::from(clock) * f64::from(width) / 8.0;
        // Without concurrent access, all managed memory must fit into the GPU at once.
        let has_managed_memory = [
            Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
            Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
        ]
        .into_iter()
        .all(|which| attribute(which).is_ok_and(|value| value != 0));
        Ok(GpuFacts {
            physical: PhysicalGpu {
                name: text(sys::cuDeviceGetName)?,
                pci_bus_id: text(pci_bus_id)?.to_ascii_lowercase(),
                compute_capability: Some(capability),
                n_multiprocessors,
                total_bytes: total_bytes as u64,
                // Free memory and priorities are read once the GPU is open.
                available_bytes: total_bytes as u64,
                numa_node: -1,
                peers: peers.map(|(id, _)| id).collect(),
                // Computed for all GPUs together.
                nvlinks: Vec::new(),
                stream_priorities: 0..=0,
                is_tegra: attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
            },
            traits: ComputeTraits {
                kind: ProcessorKind::Gpu,
                n_compute_units: n_multiprocessors,
                group_size_max: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?
                    as usize,
                local_memory_bytes: u64::from(attribute(
                    Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
                )?),
                vector_width_f32: 1,
                has_f16: capability >= ComputeCapability { major: 5, minor: 3 },
                has_f64: true,
            },
            architecture: target(nvrtc::architectures(), capability),
            driver: driver.to_owned(),
            memory_bytes_per_s: (rate > 0.0).then_some(rate),
            has_managed_memory,
        })
    }
}

/// [`sys::cuDeviceGetPCIBusId`] with the arguments of [`sys::cuDeviceGetName`].
///
/// # Safety
/// As for that function.
unsafe fn pci_bus_id(text: *mut c_char, len: c_int, device: sys::CUdevice) -> CUresult {
    // SAFETY: guaranteed by the caller.
    unsafe { sys::cuDeviceGetPCIBusId(text, len, device) }
}

impl Driver for CudaDriver {
    fn gpus(&self) -> Result<Vec<GpuFacts>, DeviceError> {
        let devices = Self::devices()?;
        let (major, minor) = driver_version();
        let compiler = nvrtc::version().map_or_else(
            || "no NVRTC".to_owned(),
            |(major, minor)| format!("NVRTC {major}.{minor}"),
        );
        let driver = format!("CUDA {major}.{minor}, {compiler}");
        let facts = devices
            .iter()
            .map(|&device| Self::facts(device, &devices, &driver));
        let mut facts: Vec<GpuFacts> =
            facts
                .collect::<Called<_>>()
                .map_err(|error| DeviceError::Failed {
                    device: super::DEVICE_TYPE.to_owned(),
                    message: format!("the driver does not describe its GPUs: {error}"),
                })?;
        let addresses = facts.iter().map(|facts| facts.physical.pci_bus_id.as_str());
        let links = nvlinks(&addresses.collect::<Vec<_>>());
        for (facts, links) in facts.iter_mut().zip(links) {
            facts.physical.nvlinks = links;
        }
        Ok(facts)
    }

    fn can_compile(&self) -> bool {
        nvrtc::is_present()
    }

    fn open(&self, gpu: u32) -> Called<Arc<dyn Gpu>> {
        let unknown = || error(CUresult::CUDA_ERROR_INVALID_DEVICE);
        let devices = Self::devices().map_err(|_| unknown())?;
        let device = *devices.get(gpu as usize).ok_or_else(unknown)?;
        let which = Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        // SAFETY: the device is one of the driver's; writes an int.
        let has_one_space: c_int =
            given(|value| unsafe { sys::cuDeviceGetAttribute(value, which, device) })?;
        if has_one_space == 0 {
            return Err(DriverError {
                message:
                    "its addresses of host memory differ from the host's, which is not supported"
                        .to_owned(),
                ..error(CUresult::CUDA_ERROR_NOT_SUPPORTED)
            });
        }
        let retain =
            // SAFETY: the device is one of the driver's; writes a handle.
            || handle(|context| unsafe { sys::cuDevicePrimaryCtxRetain(context, device) });
        let facts = Self::facts(device, &devices, "")?;
        let mut opened = CudaGpu {
            context: retain()?,
            architecture: facts.architecture,
            has_managed_memory: facts.has_managed_memory,
            devices,
            cublaslt: OnceLock::new(),
            cudnn: OnceLock::new(),
        };
        // A context in which work has failed reports the failure forever. The code that opens the
        // GPU again no longer uses that context.
        let started = opened.enter().and_then(|()| {
            // SAFETY: a context is current.
            done(unsafe { sys::cuCtxSynchronize() })
        });
        if started.is_err_and(|error| error.kind == DriverErrorKind::Lost) {
            // SAFETY: nobody uses the lost objects; the driver rejects handles to them.
            done(unsafe { sys::cuDevicePrimaryCtxReset_v2(device) })?;
            opened.context = retain()?;
            opened.enter()?;
            // The libraries keep objects of the old context, which is gone, and need not notice
            // that.
            let _ = opened.cublaslt.set(None);
            let _ = opened.cudnn.set(None);
        }
        Ok(Arc::new(opened))
    }
}

/// A GPU with its primary context, which stays open for the whole process: other libraries (cuBLAS,
/// cuDNN) use it, too.
#[derive(Debug)]
struct CudaGpu {
    context: u64,
    architecture: String,
    has_managed_memory: bool,
    devices: Vec<sys::CUdevice>,
    /// The libraries for matmuls and convolutions, loaded at first use; `None` if they are
    /// missing.
    cublaslt: OnceLock<Option<CublasLt>>,
    cudnn: OnceLock<Option<Cudnn>>,
}

impl CudaGpu {
    /// Makes the context current on this thread.
    fn enter(&self) -> Called<()> {
        // SAFETY: the context is retained.
        done(unsafe { sys::cuCtxSetCurrent(pointer(self.context)) })
    }

    fn cublaslt(&self) -> Option<&CublasLt> {
        let library = self.cublaslt.get_or_init(|| {
            let opened = || self.enter().and_then(|()| CublasLt::new());
            opened_if(cublaslt::is_present(), "cuBLASLt", opened)
        });
        library.as_ref()
    }

    fn cudnn(&self) -> Option<&Cudnn> {
        let library = self.cudnn.get_or_init(|| {
            let opened = || self.enter().and_then(|()| Cudnn::new());
            opened_if(cudnn::is_present(), "cuDNN", opened)
        });
        library.as_ref()
    }
}

/// Returns the error after a library has failed. If the GPU still responds, the work is done
/// without the library, which is not tried again for the same kind of work. Memory that the library
/// may have written is written again.
fn without_library(stream: StreamHandle, what: &str, error: DriverError) -> DriverError {
    if error.kind == DriverErrorKind::Unsupported {
        return error;
    }
    // SAFETY: the stream is owned and belongs to the current context.
    match unsafe { sys::cuStreamQuery(pointer(stream.0)) } {
        CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_NOT_READY => {
            warn!(target: targets::DEVICE, %error, "Placewright's own programs are used for some {what}");
            DriverError::unsupported(what)
        }
        code => self::error(code),
    }
}

/// Opens a library if it is present. Otherwise nothing fails: Placewright's own programs are used.
fn opened_if<T>(
    is_present: bool,
    name: &'static str,
    open: impl FnOnce() -> Called<T>,
) -> Option<T> {
    if !is_present {
        debug!(target: targets::DEVICE, library = name, "not found; Placewright's own programs are used");
        return None;
    }
    let opened = open();
    opened
        .inspect_err(|error| {
            warn!(target: targets::DEVICE, library = name, %error, "cannot be used; Placewright's own programs are used instead");
        })
        .ok()
}

impl Gpu for CudaGpu {
    fn allocate(&self, len_bytes: usize) -> Called<u64> {
        self.enter()?;
        // SAFETY: writes an address.
        given(|address| unsafe { sys::cuMemAlloc_v2(address, len_bytes.max(1)) })
    }

    fn allocate_managed(&self, len_bytes: usize) -> Called<u64> {
        self.enter()?;
        if !self.has_managed_memory {
            return Err(DriverError {
                message: "it does not page memory between the GPU and the host (CUDA's attributes MANAGED_MEMORY and CONCURRENT_MANAGED_ACCESS)"
                    .to_owned(),
                ..error(CUresult::CUDA_ERROR_NOT_SUPPORTED)
            });
        }
        // Accessible to all GPUs and the host, in any stream.
        let flags = sys::CUmemAttach_flags_enum::CU_MEM_ATTACH_GLOBAL as u32;
        // SAFETY: writes an address.
        given(|address| unsafe { sys::cuMemAllocManaged(address, len_bytes.max(1), flags) })
    }

    unsafe fn free(&self, address: u64) -> Called<()> {
        self.enter()?;
        // SAFETY: guaranteed by the caller.
        done(unsafe { sys::cuMemFree_v2(address) })
    }

    fn allocate_pinned(&self, len_bytes: usize) -> Called<NonNull<u8>> {
        self.enter()?;
        // Registered rather than allocated by the driver: when a context is restarted, memory
        // allocated by the driver is lost.
        let refused = || error(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let layout = pinned_layout(len_bytes).ok_or_else(refused)?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or_else(refused)?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the bytes are owned, and whole pages.
        let registered =
            done(unsafe { sys::cuMemHostRegister_v2(start.as_ptr().cast(), layout.size(), flags) });
        if let Err(error) = registered {
            // SAFETY: it was allocated above, and nobody uses it.
            unsafe { alloc::dealloc(start.as_ptr(), layout) };
            return Err(error);
        }
        Ok(start)
    }

    unsafe fn free_pinned(&self, start: NonNull<u8>, len_bytes: usize) {
        // A restarted context does not know the memory and returns an error.
        let _ = self.enter().and_then(|()| {
            // SAFETY: guaranteed by the caller.
            done(unsafe { sys::cuMemHostUnregister(start.as_ptr().cast()) })
        });
        if let Some(layout) = pinned_layout(len_bytes) {
            // SAFETY: guaranteed by the caller; it was allocated with this layout.
            unsafe { alloc::dealloc(start.as_ptr(), layout) };
        }
    }

    fn stream_priorities(&self) -> Called<std::ops::RangeInclusive<i32>> {
        self.enter()?;
        let (mut least, mut most) = (0, 0);
        // SAFETY: writes two ints.
        done(unsafe { sys::cuCtxGetStreamPriorityRange(&raw mut least, &raw mut most) })?;
        Ok(most..=least)
    }

    fn new_stream(&self, priority: i32) -> Called<StreamHandle> {
        self.enter()?;
        // The default stream of other code must not order our work.
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes a handle.
        handle(|stream| unsafe { sys::cuStreamCreateWithPriority(stream, flags, priority) })
            .map(StreamHandle)
    }

    fn drop_stream(&self, stream: StreamHandle) {
        // SAFETY: the stream is owned; its work is done before it is destroyed. A lost context has
        // no streams.
        let _ = self
            .enter()
            .and_then(|()| done(unsafe { sys::cuStreamDestroy_v2(pointer(stream.0)) }));
    }

    fn new_event(&self) -> Called<EventHandle> {
        self.enter()?;
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32
            | sys::CUevent_flags_enum::CU_EVENT_BLOCKING_SYNC as u32;
        // SAFETY: writes a handle.
        handle(|event| unsafe { sys::cuEventCreate(event, flags) }).map(EventHandle)
    }

    fn drop_event(&self, event: EventHandle) {
        // SAFETY: the event is owned; streams that wait for it are not disturbed.
        let _ = self
            .enter()
            .and_then(|()| done(unsafe { sys::cuEventDestroy_v2(pointer(event.0)) }));
    }

    fn record(&self, event: EventHandle, stream: StreamHandle) -> Called<()> {
        self.enter()?;
        // SAFETY: both are owned.
        done(unsafe { sys::cuEventRecord(pointer(event.0), pointer(stream.0)) })
    }

    fn wait(&self, stream: StreamHandle, event: EventHandle) -> Called<()> {
        self.enter()?;
        // SAFETY: both are owned, or the event is another GPU's, which the driver allows.
        done(unsafe { sys::cuStreamWaitEvent(pointer(stream.0), pointer(event.0), 0) })
    }

    fn has_happened(&self, event: EventHandle) -> Called<bool> {
        self.enter()?;
        // SAFETY: the event is owned.
        match unsafe { sys::cuEventQuery(pointer(event.0)) } {
            CUresult::CUDA_SUCCESS => Ok(true),
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => Err(error(code)),
        }
    }

    fn synchronize(&self, event: EventHandle) -> Called<()> {
        self.enter()?;
        // SAFETY: the event is owned.
        done(unsafe { sys::cuEventSynchronize(pointer(event.0)) })
    }

    unsafe fn copy(&self, stream: StreamHandle, to: Span, from: Span) -> Called<()> {
        self.enter()?;
        let len_bytes = to.len_bytes.min(from.len_bytes);
        // SAFETY: guaranteed by the caller; all addresses are in one space, so the driver knows the
        // direction.
        done(unsafe { sys::cuMemcpyAsync(to.address, from.address, len_bytes, pointer(stream.0)) })
    }

    unsafe fn zero(&self, stream: StreamHandle, span: Span) -> Called<()> {
        self.enter()?;
        // SAFETY: guaranteed by the caller.
        done(unsafe { sys::cuMemsetD8Async(span.address, 0, span.len_bytes, pointer(stream.0)) })
    }

    unsafe fn launch(
        &self,
        stream: StreamHandle,
        function: FunctionHandle,
        grid: Grid,
        arguments: &[Argument<'_>],
    ) -> Called<()> {
        self.enter()?;
        let addresses: SmallVec<[u64; 12]> = arguments
            .iter()
            .map(|argument| match argument {
                Argument::Read(span) | Argument::Write(span) => span.address,
                Argument::Value(_) => 0,
            })
            .collect();
        let mut places: SmallVec<[*mut c_void; 12]> = arguments
            .iter()
            .zip(&addresses)
            .map(|(argument, address)| match argument {
                Argument::Read(_) | Argument::Write(_) => ptr::from_ref(address).cast_mut().cast(),
                Argument::Value(bytes) => bytes.as_ptr().cast_mut().cast(),
            })
            .collect();
        let ([x, y, z], [width, height, depth]) = (grid.groups, grid.group_size);
        // SAFETY: guaranteed by the caller. The driver reads the arguments before it returns, by
        // the sizes that the function states, and writes none.
        done(unsafe {
            sys::cuLaunchKernel(
                pointer(function.0),
                x,
                y,
                z,
                width,
                height,
                depth,
                grid.shared_bytes,
                pointer(stream.0),
                places.as_mut_ptr(),
                ptr::null_mut(),
            )
        })
    }

    fn compile(&self, source: &ProgramSource) -> Result<Vec<u8>, CompileError> {
        compile(source, &self.architecture)
    }

    fn load(&self, image: &[u8]) -> Called<ModuleHandle> {
        self.enter()?;
        // A cubin contains its own length, and PTX ends with a zero.
        let is_whole = image.starts_with(b"\x7fELF") || image.ends_with(&[0]);
        let mut module = ptr::null_mut();
        let loaded = match is_whole {
            // SAFETY: as above; the driver copies it.
            true => unsafe { sys::cuModuleLoadData(&raw mut module, image.as_ptr().cast()) },
            false => CUresult::CUDA_ERROR_INVALID_IMAGE,
        };
        match loaded {
            CUresult::CUDA_SUCCESS => Ok(ModuleHandle(module.expose_provenance() as u64)),
            CUresult::CUDA_ERROR_INVALID_IMAGE
            | CUresult::CUDA_ERROR_INVALID_PTX
            | CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
                let refused = error(loaded);
                let versions = refusal(driver_version(), nvrtc::version());
                Err(DriverError {
                    message: format!("{}; {versions}", refused.message),
                    ..refused
                })
            }
            code => Err(error(code)),
        }
    }

    fn function(&self, module: ModuleHandle, name: &str) -> Called<FunctionHandle> {
        self.enter()?;
        let name = CString::new(name).map_err(|_| error(CUresult::CUDA_ERROR_NOT_FOUND))?;
        // SAFETY: the module is loaded; the name ends with a zero.
        handle(|function| unsafe {
            sys::cuModuleGetFunction(function, pointer(module.0), name.as_ptr())
        })
        .map(FunctionHandle)
    }

    fn enable_peer(&self, peer: u32) -> Called<()> {
        let unknown = || error(CUresult::CUDA_ERROR_INVALID_DEVICE);
        let device = *self.devices.get(peer as usize).ok_or_else(unknown)?;
        // SAFETY: the device is one of the driver's; writes a handle. It stays retained, like the
        // context of every GPU that is opened.
        let context = handle(|context| unsafe { sys::cuDevicePrimaryCtxRetain(context, device) })?;
        self.enter()?;
        // SAFETY: the context is retained.
        match unsafe { sys::cuCtxEnablePeerAccess(pointer(context), 0) } {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => done(code),
        }
    }

    fn memory_bytes(&self) -> Called<(u64, u64)> {
        self.enter()?;
        let (mut free, mut all) = (0, 0);
        // SAFETY: writes two sizes.
        done(unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut all) })?;
        Ok((free as u64, all as u64))
    }

    fn can_matmul(&self) -> bool {
        self.cublaslt().is_some()
    }

    unsafe fn matmul(&self, stream: StreamHandle, matmul: &Matmul, workspace: Span) -> Called<()> {
        let library = self.cublaslt();
        let library = library.ok_or_else(|| DriverError::unsupported("matmuls"))?;
        self.enter()?;
        // SAFETY: guaranteed by the caller.
        let given = unsafe { library.matmul(pointer(stream.0), matmul, workspace) };
        given.map_err(|error| without_library(stream, "matmuls", error))
    }

    fn can_convolve(&self) -> bool {
        self.cudnn().is_some()
    }

    unsafe fn convolve(
        &self,
        stream: StreamHandle,
        convolution: &ConvolutionForward,
        workspace: Span,
    ) -> Called<()> {
        let library = self.cudnn();
        let library = library.ok_or_else(|| DriverError::unsupported("convolutions"))?;
        self.enter()?;
        // SAFETY: guaranteed by the caller.
        let given = unsafe { library.convolve(pointer(stream.0), convolution, workspace) };
        given.map_err(|error| without_library(stream, "convolutions", error))
    }
}
