//! Work submitted directly to a GPU's driver: the reference with which benchmarks compare a GPU
//! device.
//!
//! It has its own stream and memory on the GPU that the device has opened. It uses none of the
//! device's streams, pools and launches: only one driver call per copy and launch, and one wait at
//! the end.

use std::any::Any;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use super::context::GpuContext;
use super::driver::Argument;
use super::driver::DriverError;
use super::driver::EventHandle;
use super::driver::Gpu;
use super::driver::GpuFacts;
use super::driver::Grid;
use super::driver::Span;
use super::driver::StreamHandle;
use super::open_gpu::OpenGpu;
use super::open_gpu::device_error;
use crate::device::Device;
use crate::device::DeviceError;
use crate::device::ProgramSource;

/// A nearly empty kernel.
const SOURCE: &str = "\
KERNEL void tiny(const GLOBAL f32 *x, GLOBAL f32 *y)
{
    y[GLOBAL_ID(0)] = x[GLOBAL_ID(0)] + 1;
}
";

/// A GPU with a stream of its own.
#[derive(Debug)]
pub(crate) struct Reference {
    device: String,
    gpu: Arc<OpenGpu>,
    stream: StreamHandle,
    event: EventHandle,
}

/// Work that can be repeated: each call returns the time until all of it is done.
pub(crate) type Rounds<'a> = Box<dyn FnMut() -> Result<Duration, DeviceError> + 'a>;

impl Reference {
    /// Creates a reference on the GPU that a device has open.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] if the device is not of this backend.
    pub(crate) fn of(device: &dyn Device) -> Result<Self, DeviceError> {
        let name = device.attributes().name.clone();
        let context = device.as_kernel_device().map(|kernels| {
            let context: &dyn Any = &**kernels.default_context();
            context
        });
        let Some(context) = context.and_then(|context| context.downcast_ref::<GpuContext>()) else {
            return Err(DeviceError::InvalidArgument(format!(
                "{name} is not a GPU that the CUDA backend has opened, so there is no driver to compare with"
            )));
        };
        let gpu = Arc::clone(context.gpu());
        let made = gpu.call(|driver| {
            let stream = driver.new_stream(0)?;
            let event = driver.new_event();
            if event.is_err() {
                driver.drop_stream(stream);
            }
            Ok((stream, event?))
        });
        let (stream, event) =
            made.map_err(|error| device_error(&name, None, "making a stream", &error))?;
        Ok(Self {
            device: name,
            gpu,
            stream,
            event,
        })
    }

    /// Returns the facts of the GPU.
    pub(crate) fn facts(&self) -> &GpuFacts {
        self.gpu.facts()
    }

    /// Returns a copy of `len_bytes` bytes from pinned host memory.
    pub(crate) fn write(&self, len_bytes: usize) -> Result<Rounds<'_>, DeviceError> {
        let (there, here) = (self.memory(len_bytes)?, self.pinned(len_bytes)?);
        Ok(self.copies(there, here))
    }

    /// Returns a copy of `len_bytes` bytes to pinned host memory.
    pub(crate) fn read(&self, len_bytes: usize) -> Result<Rounds<'_>, DeviceError> {
        let (there, here) = (self.memory(len_bytes)?, self.pinned(len_bytes)?);
        Ok(self.copies(here, there))
    }

    /// Returns `n` kernels of one work item, each of which reads the previous result.
    pub(crate) fn launches(&self, n: usize) -> Result<Rounds<'_>, DeviceError> {
        let source = ProgramSource::of_source("reference.c", SOURCE);
        let function = self.gpu.function(&self.device, None, &source, "tiny")?;
        let memories = [self.memory(4)?, self.memory(4)?];
        let grid = Grid {
            groups: [1; 3],
            group_size: [1; 3],
            shared_bytes: 0,
        };
        Ok(Box::new(move || {
            self.timed("launching kernels", |driver| {
                for index in 0..n {
                    let [from, to] = [index % 2, (index + 1) % 2].map(|at| memories[at].span());
                    let arguments = [Argument::Read(from), Argument::Write(to)];
                    // SAFETY: the function takes these two arguments of one float each; `memories`
                    // outlive the work, and one stream orders it.
                    unsafe { driver.launch(self.stream, function, grid, &arguments)? };
                }
                Ok(())
            })
        }))
    }

    fn copies<'a>(&'a self, to: Space<'a>, from: Space<'a>) -> Rounds<'a> {
        Box::new(move || {
            self.timed("copying", |driver| {
                // SAFETY: they have equal lengths, are used by nothing else, and outlive the work.
                unsafe { driver.copy(self.stream, to.span(), from.span()) }
            })
        })
    }

    /// Returns the time of the work from the first call to its end.
    fn timed(
        &self,
        doing: &str,
        give: impl FnOnce(&dyn Gpu) -> Result<(), DriverError>,
    ) -> Result<Duration, DeviceError> {
        let started = Instant::now();
        let given = self.gpu.call(give);
        let finished = self.finish();
        let elapsed = started.elapsed();
        given
            .and(finished)
            .map_err(|error| self.failed(doing, &error))?;
        Ok(elapsed)
    }

    /// Waits until the stream has done all of its work.
    fn finish(&self) -> Result<(), DriverError> {
        self.gpu.call(|driver| {
            driver.record(self.event, self.stream)?;
            driver.synchronize(self.event)
        })
    }

    /// Allocates memory of the GPU, all 0.
    fn memory(&self, len_bytes: usize) -> Result<Space<'_>, DeviceError> {
        let address = self.gpu.call(|driver| driver.allocate(len_bytes));
        let address = address.map_err(|error| self.failed("asking for memory", &error))?;
        let space = Space {
            reference: self,
            span: Span { address, len_bytes },
            pinned: None,
        };
        // SAFETY: nothing else uses it, and `Space` waits for this before freeing it.
        let zeroed = self
            .gpu
            .call(|driver| unsafe { driver.zero(self.stream, space.span()) });
        zeroed
            .and_then(|()| self.finish())
            .map_err(|error| self.failed("filling memory", &error))?;
        Ok(space)
    }

    /// Allocates memory of the host, all 1.
    fn pinned(&self, len_bytes: usize) -> Result<Space<'_>, DeviceError> {
        let start = self.gpu.call(|driver| driver.allocate_pinned(len_bytes));
        let start = start.map_err(|error| self.failed("pinning memory", &error))?;
        // SAFETY: the driver has allocated this many bytes, which are initialised, and nobody else
        // has the address.
        unsafe { slice::from_raw_parts_mut(start.as_ptr(), len_bytes) }.fill(1);
        Ok(Space {
            reference: self,
            span: Span {
                address: start.as_ptr() as u64,
                len_bytes,
            },
            pinned: Some(start),
        })
    }

    fn failed(&self, doing: &str, error: &DriverError) -> DeviceError {
        device_error(&self.device, None, doing, error)
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        // A lost GPU may have been restarted, and its old objects are not used.
        let _ = self.gpu.call(|driver| {
            driver.drop_event(self.event);
            driver.drop_stream(self.stream);
            Ok(())
        });
    }
}

/// Memory of the GPU or pinned memory of the host, freed when the stream has done its work.
struct Space<'a> {
    reference: &'a Reference,
    span: Span,
    pinned: Option<NonNull<u8>>,
}

impl Space<'_> {
    /// Returns its location. This is a method because a closure that names the field would copy it,
    /// and release the memory early.
    fn span(&self) -> Span {
        self.span
    }
}

impl Drop for Space<'_> {
    fn drop(&mut self) {
        // Memory that may still be in use is leaked; this happens only if the GPU is broken.
        if self.reference.finish().is_err() {
            return;
        }
        let Span { address, len_bytes } = self.span;
        let _ = self.reference.gpu.call(|driver| {
            match self.pinned {
                // SAFETY: the driver has allocated it with this length, and all work with it is
                // done.
                Some(start) => unsafe { driver.free_pinned(start, len_bytes) },
                // SAFETY: as above.
                None => unsafe { driver.free(address)? },
            }
            Ok(())
        });
    }
}
