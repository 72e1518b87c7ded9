//! Programs of emulated GPUs: "compiled" to images that contain their source, and executed by a
//! SYCL device, that is, by this machine's CPU. This module takes sources, bytes and values, and
//! returns images, functions and bytes; it does not know memory and order.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use placewright::backend::cuda;
use placewright::backend::cuda::CompileError;
use placewright::backend::cuda::driver::Grid;
use placewright::backend::opencl::SyclDeviceFactory;
use placewright::device::ComputeTraits;
use placewright::device::Device;
use placewright::device::DeviceError;
use placewright::device::DeviceFactory;
use placewright::device::DeviceFunction;
use placewright::device::DeviceOptions;
use placewright::device::KernelArg;
use placewright::device::KernelError;
use placewright::device::Launch;
use placewright::device::LaunchSite;
use placewright::device::ProgramCode;
use placewright::device::ProgramDevice;
use placewright::device::ProgramSource;
use placewright::store::CacheFolder;
use placewright::tensor::DType;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;

/// Hopper, with its architecture-specific instructions.
pub(super) const ARCHITECTURE: &str = "sm_90a";

/// The start of images.
const MARKER: &[u8] = b"emulated GPU program\n";

/// The arguments of a launch.
#[derive(Debug)]
pub(super) enum Given {
    /// The bytes with this index.
    Memory { bytes_idx: usize, is_written: bool },
    /// A number or a structure.
    Value(Box<[u8]>),
}

/// The SYCL device that executes the work of emulated GPUs.
#[derive(Debug)]
pub(super) struct Executor(Arc<dyn Device>);

impl Executor {
    /// Opens the first SYCL device.
    pub(super) fn new() -> Result<Self, DeviceError> {
        SyclDeviceFactory.list_physical()?;
        let mut options = DeviceOptions::default();
        options.device_count.insert("SYCL".to_owned(), 1);
        let cache = CacheFolder::open(concat!(env!("CARGO_TARGET_TMPDIR"), "/programs"));
        options.program_cache = cache.ok().map(Arc::new);
        let devices = SyclDeviceFactory.create(&options, "/job:emulated/replica:0/task:0")?;
        let device = devices.into_iter().find(|device| {
            let device = device.as_kernel_device();
            device.is_some_and(|device| device.as_program_device().is_some())
        });
        let absent = || DeviceError::InvalidArgument("no SYCL device runs programs".to_owned());
        Ok(Self(device.ok_or_else(absent)?))
    }

    fn device(&self) -> &dyn ProgramDevice {
        let device = self.0.as_kernel_device();
        let device = device.and_then(|device| device.as_program_device());
        device.expect("`new` has looked")
    }

    pub(super) fn traits(&self) -> &ComputeTraits {
        self.device().compute_traits()
    }

    pub(super) fn function(
        &self,
        source: &ProgramSource,
        name: &str,
    ) -> Result<Arc<dyn DeviceFunction>, KernelError> {
        self.device().function(source, name)
    }

    /// Calls a function, and returns after it has written `bytes`.
    pub(super) fn launch(
        &self,
        function: &Arc<dyn DeviceFunction>,
        grid: Grid,
        given: &[Given],
        bytes: &mut [Vec<u8>],
    ) -> Result<(), KernelError> {
        let device = self.device();
        let context = device.default_context();
        let is_written = |idx: usize| {
            given.iter().any(|given| {
                matches!(given, Given::Memory { bytes_idx, is_written: true } if *bytes_idx == idx)
            })
        };
        let mut tensors = Vec::new();
        for (idx, bytes) in bytes.iter().enumerate() {
            let shape = Shape::new(&[bytes.len()]);
            let host = Tensor::from_bytes(DType::U8, shape, bytes)?;
            let tensor = context.copy_from_host(&host)?;
            // It may be the host's tensor itself, which is never written.
            tensors.push(match is_written(idx) {
                true => context.copy_on_device(&tensor)?,
                false => tensor,
            });
        }
        let args: Vec<KernelArg<'_>> = given
            .iter()
            .map(|given| match given {
                Given::Memory {
                    bytes_idx,
                    is_written: true,
                } => KernelArg::Write(&tensors[*bytes_idx]),
                Given::Memory { bytes_idx, .. } => KernelArg::Read(&tensors[*bytes_idx]),
                Given::Value(bytes) => KernelArg::Bytes(bytes),
            })
            .collect();
        let sizes = |sizes: [u32; 3]| sizes.map(|size| size as usize);
        device.launch(Launch {
            site: &Arc::new(LaunchSite {
                node: "emulated".to_owned(),
                op: function.name().to_owned(),
            }),
            step: None,
            context: None,
            function,
            groups: sizes(grid.groups),
            group_size: sizes(grid.group_size),
            args: &args,
        })?;
        for (idx, bytes) in bytes.iter_mut().enumerate() {
            if is_written(idx) {
                let host = context.copy_to_host(&tensors[idx])?;
                bytes.copy_from_slice(host.as_bytes()?);
            }
        }
        // A failure without any write is an error, too.
        Ok(self.0.sync()?)
    }
}

/// The results of NVRTC, and whether it is used.
#[derive(Debug)]
pub(super) struct Compiler {
    is_real: bool,
    cubins: Mutex<HashMap<ProgramSource, Result<Vec<u8>, CompileError>>>,
}

impl Compiler {
    /// `is_wanted` means that NVRTC also compiles programs, if it is present.
    pub(super) fn new(is_wanted: bool) -> Self {
        Self {
            is_real: is_wanted && cuda::is_present(),
            cubins: Mutex::default(),
        }
    }

    /// Returns [`GpuFacts::driver`](cuda::driver::GpuFacts::driver): images of the two kinds
    /// differ.
    pub(super) fn driver(&self) -> &'static str {
        match self.is_real {
            true => "emulated, with NVRTC",
            false => "emulated",
        }
    }

    /// Returns an image, which contains the source, and the cubin if NVRTC has made one.
    pub(super) fn compile(&self, source: &ProgramSource) -> Result<Vec<u8>, CompileError> {
        let ProgramCode::Source(code) = &source.code else {
            return Err(CompileError::NotSource {
                program: source.to_string(),
            });
        };
        let mut cubin = Vec::new();
        if self.is_real {
            let cubins = || self.cubins.lock().unwrap_or_else(PoisonError::into_inner);
            let known = cubins().get(source).cloned();
            // Not locked while compiling, which takes long.
            let compiled = known.unwrap_or_else(|| cuda::compile(source, ARCHITECTURE));
            cubins().insert(source.clone(), compiled.clone());
            cubin = compiled?;
        }
        let mut image = MARKER.to_vec();
        let mut push = |field: &[u8]| {
            image.extend((field.len() as u64).to_le_bytes());
            image.extend(field);
        };
        push(&cubin);
        push(source.name.as_bytes());
        push(code.as_bytes());
        for (name, value) in &source.defines {
            push(name.as_bytes());
            push(value.as_bytes());
        }
        Ok(image)
    }
}

/// A loaded program.
#[derive(Clone)]
pub(super) struct Program {
    pub(super) source: ProgramSource,
    /// Empty if NVRTC was not used.
    cubin: Vec<u8>,
}

impl Program {
    /// Returns the program of an image made by [`Compiler::compile`]; `None` for any other image.
    pub(super) fn of_image(image: &[u8]) -> Option<Self> {
        let mut rest = image.strip_prefix(MARKER)?;
        let mut fields = Vec::new();
        while let Some((len, tail)) = rest.split_first_chunk() {
            let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
            let (field, tail) = tail.split_at_checked(len)?;
            fields.push(field);
            rest = tail;
        }
        let text = |field: &[u8]| String::from_utf8(field.to_vec()).ok();
        let [cubin, name, code, defines @ ..] = &fields[..] else {
            return None;
        };
        let mut source = ProgramSource::of_source(text(name)?, text(code)?);
        for pair in defines.chunks(2) {
            let [name, value] = pair else {
                return None;
            };
            source = source.with(text(name)?, text(value)?);
        }
        Some(Self {
            source,
            cubin: cubin.to_vec(),
        })
    }

    /// Returns whether a GPU would find a function of that name. Symbols of an ELF file are strings
    /// in it.
    pub(super) fn may_have(&self, name: &str) -> bool {
        self.cubin.is_empty()
            || self
                .cubin
                .windows(name.len().max(1))
                .any(|part| part == name.as_bytes())
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({})", self.source)
    }
}
