//! Lists OpenCL devices before any is opened.

use std::sync::Mutex;
use std::sync::PoisonError;

use opencl3::device::CL_DEVICE_TYPE_ACCELERATOR;
use opencl3::device::CL_DEVICE_TYPE_ALL;
use opencl3::device::CL_DEVICE_TYPE_CPU;
use opencl3::device::CL_DEVICE_TYPE_GPU;
use opencl3::device::Device;
use opencl3::error_codes::CL_DEVICE_NOT_FOUND;
use opencl3::error_codes::CL_PLATFORM_NOT_FOUND_KHR;
use opencl3::error_codes::DLOPEN_RUNTIME_LOAD_FAILED;
use opencl3::platform::Platform;
use opencl3::platform::get_platforms;

use super::DEVICE_TYPE;
use super::ffi::Code;
use super::ffi::DeviceId;
use super::pocl::Quirks;
use crate::device::ComputeTraits;
use crate::device::DeviceDetails;
use crate::device::DeviceError;
use crate::device::ProcessorKind;

/// A driver's description of a device.
#[derive(Debug, Clone)]
pub(super) struct DeviceFacts {
    pub(super) id: DeviceId,
    /// The index of its platform, in the driver's order.
    pub(super) platform_idx: usize,
    pub(super) platform: String,
    pub(super) name: String,
    pub(super) vendor: String,
    /// The OpenCL version, as the device reports it: `OpenCL 3.0 ..`.
    pub(super) version: String,
    /// Version of the driver.
    pub(super) driver: String,
    pub(super) class: DeviceClass,
    pub(super) memory_bytes: u64,
    /// The largest buffer.
    pub(super) max_allocation_bytes: u64,
    /// Whether the device and the host share memory.
    pub(super) is_unified: bool,
    /// The alignment of host memory that can be shared rather than copied.
    pub(super) alignment_bytes: usize,
    pub(super) takes_spirv: bool,
    pub(super) quirks: Quirks,
    /// `0000:3b:00.0`, if the driver reports it.
    pub(super) pci_address: Option<String>,
    pub(super) traits: ComputeTraits,
}

/// Kind of device, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DeviceClass {
    Gpu,
    Accelerator,
    Other,
    Cpu,
}

impl DeviceClass {
    fn name(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Accelerator => "accelerator",
            Self::Cpu => "CPU",
            Self::Other => "other",
        }
    }
}

impl DeviceFacts {
    /// `NAME, PLATFORM, driver DRIVER`.
    pub(super) fn description(&self) -> String {
        format!("{}, {}, driver {}", self.name, self.platform, self.driver)
    }

    pub(super) fn details(&self) -> DeviceDetails {
        let mut details = DeviceDetails::from([
            ("device_name".to_owned(), self.name.clone()),
            ("device_class".to_owned(), self.class.name().to_owned()),
            ("platform_name".to_owned(), self.platform.clone()),
            ("vendor".to_owned(), self.vendor.clone()),
            ("version".to_owned(), self.version.clone()),
            ("driver_version".to_owned(), self.driver.clone()),
            (
                "max_allocation_bytes".to_owned(),
                self.max_allocation_bytes.to_string(),
            ),
        ]);
        if let Some(address) = &self.pci_address {
            details.insert("pci_bus_id".to_owned(), address.clone());
        }
        details
    }
}

/// Lists all devices that drivers report: GPUs first, then by the names of platforms, then in each
/// driver's order. The order does not depend on the order in which drivers are found.
pub(super) fn devices() -> Result<Vec<DeviceFacts>, DeviceError> {
    // Drivers start when they are first called, and some cannot handle two threads at that time
    // (PoCL 3.1 returns devices without names). The library and its drivers belong to the process,
    // and so does the lock.
    static STARTING: Mutex<()> = Mutex::new(());
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let platforms = match get_platforms() {
        Ok(platforms) => platforms,
        Err(error) => return Err(absent(error.0)),
    };
    let mut found = Vec::new();
    for (index, platform) in platforms.iter().enumerate() {
        let devices = match platform.get_devices(CL_DEVICE_TYPE_ALL) {
            Ok(devices) => devices,
            Err(error) if error.0 == CL_DEVICE_NOT_FOUND => continue,
            // One broken driver must not hide the others' devices.
            Err(error) => {
                let platform = platform.name().unwrap_or_default();
                tracing::warn!(
                    target: crate::trace::targets::DEVICE,
                    platform,
                    %error,
                    "an OpenCL platform does not list its devices"
                );
                continue;
            }
        };
        for id in devices {
            found.extend(facts(index, platform, Device::new(id)));
        }
    }
    if found.is_empty() {
        return Err(absent(CL_DEVICE_NOT_FOUND));
    }
    found.sort_by(|a, b| {
        let key = |facts: &DeviceFacts| (facts.class, facts.platform.clone());
        key(a).cmp(&key(b))
    });
    Ok(found)
}

/// Returns the error for an absent device.
fn absent(code: i32) -> DeviceError {
    let (what, remedy) = match code {
        DLOPEN_RUNTIME_LOAD_FAILED => (
            "no OpenCL library (libOpenCL.so) was found".to_owned(),
            "install a loader and a driver, on Debian `ocl-icd-libopencl1 pocl-opencl-icd`, or name the library in OPENCL_DYLIB_PATH",
        ),
        CL_PLATFORM_NOT_FOUND_KHR => (
            "the OpenCL library finds no platform".to_owned(),
            "install a driver, on Debian `pocl-opencl-icd`, or name the folder of its .icd file in OCL_ICD_VENDORS",
        ),
        CL_DEVICE_NOT_FOUND => (
            "the OpenCL platforms have no device".to_owned(),
            "check the hardware, and your permission to use it, with `clinfo`",
        ),
        other => (
            format!("the OpenCL library fails: {}", Code(other)),
            "check the drivers with `clinfo`",
        ),
    };
    DeviceError::Absent {
        device_type: DEVICE_TYPE.to_owned(),
        what,
        remedy: remedy.to_owned(),
    }
}

/// Reads the facts of a device; `None` if it is not ready.
fn facts(platform_idx: usize, platform: &Platform, device: Device) -> Option<DeviceFacts> {
    if !device.available().unwrap_or(false) || !device.compiler_available().unwrap_or(false) {
        return None;
    }
    let has = |bit: u64| device.dev_type().is_ok_and(|class| class & bit != 0);
    let class = if has(CL_DEVICE_TYPE_GPU) {
        DeviceClass::Gpu
    } else if has(CL_DEVICE_TYPE_ACCELERATOR) {
        DeviceClass::Accelerator
    } else if has(CL_DEVICE_TYPE_CPU) {
        DeviceClass::Cpu
    } else {
        DeviceClass::Other
    };
    let extensions = device.extensions().unwrap_or_default();
    let has_extension = |name: &str| extensions.split_whitespace().any(|other| other == name);
    let text = |text: opencl3::Result<String>| text.unwrap_or_default().trim().to_owned();
    let kind = match class {
        DeviceClass::Cpu => ProcessorKind::Cpu,
        _ => ProcessorKind::Gpu,
    };
    let sizes = device.max_work_item_sizes().unwrap_or_default();
    let group_size_max = device.max_work_group_size().unwrap_or(1);
    let pci_address = pci_address(&device, &extensions);
    Some(DeviceFacts {
        id: DeviceId(device.id()),
        platform_idx,
        platform: text(platform.name()),
        name: text(device.name()),
        vendor: text(device.vendor()),
        version: text(device.version()),
        driver: text(device.driver_version()),
        class,
        memory_bytes: device.global_mem_size().unwrap_or(0),
        max_allocation_bytes: device.max_mem_alloc_size().unwrap_or(u64::MAX),
        is_unified: class == DeviceClass::Cpu || device.host_unified_memory().unwrap_or(false),
        alignment_bytes: device
            .mem_base_addr_align()
            .map_or(1, |bits| (bits as usize / 8).max(1)),
        takes_spirv: device
            .il_version()
            .is_ok_and(|versions| versions.contains("SPIR-V")),
        quirks: Quirks::of(&text(platform.name()), &text(device.driver_version())),
        pci_address,
        traits: ComputeTraits {
            kind,
            n_compute_units: device.max_compute_units().unwrap_or(1),
            group_size_max: sizes
                .first()
                .map_or(group_size_max, |&size| size.min(group_size_max)),
            local_memory_bytes: device.local_mem_size().unwrap_or(0),
            vector_width_f32: match kind {
                ProcessorKind::Cpu => device.native_vector_width_float().unwrap_or(1).max(1),
                ProcessorKind::Gpu => 1,
            },
            has_f16: has_extension("cl_khr_fp16"),
            has_f64: has_extension("cl_khr_fp64"),
        },
    })
}

/// Returns the card's bus address, by the standard's extension or otherwise by NVIDIA's.
fn pci_address(device: &Device, extensions: &str) -> Option<String> {
    let has_extension = |name: &str| extensions.split_whitespace().any(|other| other == name);
    if has_extension("cl_khr_pci_bus_info") {
        let place = device.pcibusinfokhr_intel().ok()?;
        return Some(format!(
            "{:04x}:{:02x}:{:02x}.{:x}",
            place.pci_domain, place.pci_bus, place.pci_device, place.pci_function
        ));
    }
    if has_extension("cl_nv_device_attribute_query") {
        let (bus, slot) = (device.pci_bus_id_nv().ok()?, device.pci_slot_id_nv().ok()?);
        return Some(format!("0000:{bus:02x}:{:02x}.{:x}", slot >> 3, slot & 7));
    }
    None
}
