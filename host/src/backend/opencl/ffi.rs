//! All calls into OpenCL, behind types that release what they hold.
//!
//! This module takes handles of one driver and returns handles and events; errors are the driver's
//! codes. It does not know about tensors, and the code above it is safe. The objects of crate
//! `opencl3` panic if the driver refuses a release, as drivers do after losing their device. So
//! this file uses that crate's functions, which return codes.

use std::any::Any;
use std::cell::Cell;
use std::ffi::CStr;
use std::ffi::CString;
use std::ffi::c_void;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::ptr;
use std::slice;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use opencl3::command_queue;
use opencl3::context::context;
use opencl3::event;
use opencl3::kernel;
use opencl3::memory;
use opencl3::program;
use opencl3::types::CL_NON_BLOCKING;
use opencl3::types::cl_command_queue;
use opencl3::types::cl_context;
use opencl3::types::cl_device_id;
use opencl3::types::cl_event;
use opencl3::types::cl_kernel;
use opencl3::types::cl_mem;
use opencl3::types::cl_program;

/// A driver's code, shown with its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Code(pub(super) i32);

impl Code {
    /// Returns whether a driver that returns this code will do no more work.
    pub(super) fn is_loss(self) -> bool {
        use opencl3::error_codes::CL_CONTEXT_TERMINATED_KHR;
        use opencl3::error_codes::CL_DEVICE_NOT_AVAILABLE;
        use opencl3::error_codes::CL_INVALID_COMMAND_QUEUE;
        use opencl3::error_codes::CL_INVALID_CONTEXT;
        use opencl3::error_codes::CL_INVALID_DEVICE;
        /// NVIDIA's code for an illegal access, after which the context is unusable.
        const NVIDIA_ILLEGAL_ACCESS: i32 = -9999;
        [
            CL_CONTEXT_TERMINATED_KHR,
            CL_DEVICE_NOT_AVAILABLE,
            CL_INVALID_COMMAND_QUEUE,
            CL_INVALID_CONTEXT,
            CL_INVALID_DEVICE,
            NVIDIA_ILLEGAL_ACCESS,
        ]
        .contains(&self.0)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = opencl3::error_codes::ClError(self.0).to_string();
        write!(f, "{name} ({})", self.0)
    }
}

impl From<i32> for Code {
    fn from(code: i32) -> Self {
        Self(code)
    }
}

impl From<opencl3::error_codes::ClError> for Code {
    fn from(error: opencl3::error_codes::ClError) -> Self {
        Self(error.0)
    }
}

/// A driver's device. It is valid as long as the process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeviceId(pub(super) cl_device_id);

// SAFETY: an identifier, which every function of the driver accepts on every thread.
unsafe impl Send for DeviceId {}
// SAFETY: as above.
unsafe impl Sync for DeviceId {}

thread_local! {
    static IS_IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this is a thread of the driver, which must not be blocked.
pub(super) fn is_driver_thread() -> bool {
    IS_IN_CALLBACK.get()
}

/// Runs a callback of the driver: a panic must not cross it.
fn called_by_driver(callback: impl FnOnce()) {
    let before = IS_IN_CALLBACK.replace(true);
    // A dropped callback shows its receiver that there was a panic.
    let _ = catch_unwind(AssertUnwindSafe(callback));
    IS_IN_CALLBACK.set(before);
}

/// Declares the owner of a handle.
macro_rules! owner {
    ($(#[$doc:meta])* $name:ident, $handle:ty, $release:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $name($handle);

        // SAFETY: OpenCL functions may be called from any thread, except for `clSetKernelArg`; see
        // `Function`.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: only this value has the handle. If the driver refuses to release it, it
                // is already lost.
                let _ = unsafe { $release(self.0) };
            }
        }
    };
}

owner!(
    /// Devices of one platform that share memory and events.
    Context,
    cl_context,
    context::release_context
);

owner!(
    /// A queue of one device, whose commands wait only for events.
    Queue,
    cl_command_queue,
    command_queue::release_command_queue
);

owner!(
    /// A buffer. The driver keeps it until commands that use it have ended.
    Mem,
    cl_mem,
    memory::release_mem_object
);

owner!(
    /// The driver's object of an [`Event`].
    EventHandle,
    cl_event,
    event::release_event
);

owner!(
    /// A program for one device.
    Program,
    cl_program,
    program::release_program
);

owner!(
    /// A function of a program with its arguments. Only one thread at a time may set arguments and
    /// enqueue it.
    Function,
    cl_kernel,
    kernel::release_kernel
);

impl Context {
    pub(super) fn new(devices: &[DeviceId]) -> Result<Self, Code> {
        let devices: Vec<cl_device_id> = devices.iter().map(|device| device.0).collect();
        let created = context::create_context(&devices, ptr::null(), None, ptr::null_mut());
        Ok(Self(created?))
    }
}

impl Mem {
    /// Allocates `len_bytes` bytes, at least 1, uninitialised, on the devices of a context;
    /// `on_host` requests memory that the host accesses without a copy.
    pub(super) fn new(context: &Context, len_bytes: usize, on_host: bool) -> Result<Self, Code> {
        let mut flags = memory::CL_MEM_READ_WRITE;
        if on_host {
            flags |= memory::CL_MEM_ALLOC_HOST_PTR;
        }
        // SAFETY: there is no host pointer.
        let created =
            unsafe { memory::create_buffer(context.0, flags, len_bytes, ptr::null_mut()) };
        Ok(Self(created?))
    }

    /// Creates a buffer over bytes of the host, which devices read and nothing writes. `owner` owns
    /// the bytes that `bytes` returns, and is dropped when the driver no longer uses them.
    pub(super) fn over<T: Any + Send + Sync>(
        context: &Context,
        owner: T,
        bytes: impl FnOnce(&T) -> &[u8],
    ) -> Result<Self, Code> {
        extern "C" fn release<T>(_: cl_mem, owner: *mut c_void) {
            // SAFETY: `over` has created it from such a box, and the driver calls this once.
            let owner = unsafe { Box::from_raw(owner.cast::<T>()) };
            called_by_driver(|| drop(owner));
        }
        let owner = Box::new(owner);
        let bytes = bytes(&owner);
        let flags = memory::CL_MEM_READ_ONLY | memory::CL_MEM_USE_HOST_PTR;
        let (start, len) = (bytes.as_ptr().cast_mut().cast(), bytes.len());
        // SAFETY: the bytes stay in place until the driver calls `release`: their owner is boxed,
        // and shares them with readers only. The flags promise that devices do not write.
        let mem = Self(unsafe { memory::create_buffer(context.0, flags, len, start) }?);
        let owner = Box::into_raw(owner);
        // SAFETY: `release` takes the pointer that is passed here.
        let registered = unsafe {
            memory::set_mem_object_destructor_callback(mem.0, release::<T>, owner.cast())
        };
        if let Err(code) = registered {
            drop(mem);
            // SAFETY: nobody else has it: the driver has rejected it, and no command uses the
            // buffer.
            drop(unsafe { Box::from_raw(owner) });
            return Err(code.into());
        }
        Ok(mem)
    }
}

/// The state of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// The command has not ended.
    Pending,
    Done,
    /// The command, or one that it waited for, has failed.
    Failed(Code),
}

/// The end event of a command.
#[derive(Debug)]
pub(super) struct Event {
    handle: EventHandle,
    /// Notified of the end.
    listener: Option<Arc<Listener>>,
}

impl From<cl_event> for Event {
    fn from(event: cl_event) -> Self {
        Self {
            handle: EventHandle(event),
            listener: None,
        }
    }
}

impl Event {
    pub(super) fn progress(&self) -> Progress {
        progress(self.handle.0)
    }

    /// Waits until the command has ended.
    pub(super) fn wait(&self) -> Result<(), Code> {
        let waited = event::wait_for_events(&[self.handle.0]);
        // The status has the cause; this call may only report the failure of a command that was
        // waited for.
        match self.progress() {
            Progress::Failed(code) => Err(code),
            _ => Ok(waited?),
        }
    }

    /// Calls `then` once when the command has ended, on a thread of the driver, which `then` must
    /// not block; or earlier, when [`Self::has_failed`] is called.
    fn when_ended(&mut self, then: impl FnOnce(Result<(), Code>) + Send + 'static) {
        extern "C" fn ended(event: cl_event, status: i32, listener: *mut c_void) {
            // SAFETY: `when_ended` has created it from such an `Arc`, and the driver calls this
            // once.
            let listener = unsafe { Arc::from_raw(listener.cast_const().cast::<Listener>()) };
            // PoCL 3.1 reports success if the command had failed before the callback was
            // registered.
            let code = Some(status).filter(|&status| status < 0);
            let code = code.or_else(|| execution_status(event).ok());
            let result = match code {
                Some(code) if code < 0 => Err(Code(code)),
                _ => Ok(()),
            };
            called_by_driver(|| listener.notify(result));
        }
        let listener = Arc::new(Listener {
            then: Mutex::new(Some(Box::new(then))),
        });
        self.listener = Some(Arc::clone(&listener));
        let given = Arc::into_raw(listener);
        let registered = event::set_event_callback(
            self.handle.0,
            event::CL_COMPLETE,
            ended,
            given.cast_mut().cast(),
        );
        if registered.is_err() {
            // Whatever `then` owns may be in use until then.
            let waited = self.wait();
            // SAFETY: the driver has rejected it.
            let listener = unsafe { Arc::from_raw(given) };
            listener.notify(waited);
        }
    }

    /// Notifies the listener of a failure unless it was already notified: PoCL 3.1 does not call
    /// the callback of a failed command.
    pub(super) fn has_failed(&self, code: Code) {
        if let Some(listener) = &self.listener {
            listener.notify(Err(code));
        }
    }
}

fn execution_status(event: cl_event) -> Result<i32, Code> {
    let status = event::get_event_info(event, event::CL_EVENT_COMMAND_EXECUTION_STATUS)?;
    Ok(i32::from(status))
}

fn progress(event: cl_event) -> Progress {
    match execution_status(event) {
        Ok(0) => Progress::Done,
        Ok(code) if code < 0 => Progress::Failed(Code(code)),
        Ok(_) => Progress::Pending,
        Err(code) => Progress::Failed(code),
    }
}

/// The callback for the end of a command.
type Then = Box<dyn FnOnce(Result<(), Code>) + Send>;

/// Called once, by the first thread that finds the command ended.
struct Listener {
    then: Mutex<Option<Then>>,
}

impl Listener {
    fn notify(&self, ended: Result<(), Code>) {
        // Nothing panics under the lock.
        let then = self
            .then
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(then) = then {
            then(ended);
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

/// The events that a command waits for.
#[derive(Debug, Default)]
pub(super) struct Waits {
    events: Vec<cl_event>,
}

// SAFETY: handles of events that the command's caller holds.
unsafe impl Send for Waits {}

impl Waits {
    pub(super) fn clear(&mut self) {
        self.events.clear();
    }

    pub(super) fn push(&mut self, event: &Event) {
        self.events.push(event.handle.0);
    }

    fn parts(&self) -> (u32, *const cl_event) {
        let n = u32::try_from(self.events.len()).unwrap_or(u32::MAX);
        let start = if n == 0 {
            ptr::null()
        } else {
            self.events.as_ptr()
        };
        (n, start)
    }
}

/// Bytes of a buffer that the host reads in place, until [`Queue::unmap`].
#[derive(Debug)]
pub(super) struct Mapped {
    start: *const u8,
    len_bytes: usize,
}

// SAFETY: bytes that nobody writes while they are mapped.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the driver has mapped this many bytes for reading, and unmaps them after this
        // value is given back.
        unsafe { slice::from_raw_parts(self.start, self.len_bytes) }
    }
}

impl Queue {
    /// Creates a queue that executes in the order of events if the device supports it, otherwise in
    /// order.
    pub(super) fn new(context: &Context, device: DeviceId) -> Result<Self, Code> {
        let out_of_order = [
            u64::from(command_queue::CL_QUEUE_PROPERTIES),
            command_queue::CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE,
            0,
        ];
        let create = |properties: *const u64| {
            // SAFETY: the context holds the device, and the list of properties ends with 0.
            unsafe {
                command_queue::create_command_queue_with_properties(context.0, device.0, properties)
            }
        };
        let created = create(out_of_order.as_ptr()).or_else(|_| create(ptr::null()));
        Ok(Self(created?))
    }

    pub(super) fn flush(&self) -> Result<(), Code> {
        Ok(command_queue::flush(self.0)?)
    }

    /// Waits until all commands have ended.
    pub(super) fn finish(&self) -> Result<(), Code> {
        Ok(command_queue::finish(self.0)?)
    }

    /// Copies the bytes that `bytes` returns to the start of a buffer. `owner` is dropped when the
    /// copy is done.
    pub(super) fn write<T: Send + 'static>(
        &self,
        to: &Mem,
        owner: T,
        bytes: impl FnOnce(&T) -> &[u8],
        waits: &Waits,
    ) -> Result<Event, Code> {
        let (n, start) = waits.parts();
        let owner = Box::new(owner);
        let from = bytes(&owner);
        // SAFETY: the bytes stay in place until the event: their owner is boxed, and dropped after
        // it. The driver checks the buffer's length.
        let event = unsafe {
            command_queue::enqueue_write_buffer(
                self.0,
                to.0,
                CL_NON_BLOCKING,
                0,
                from.len(),
                from.as_ptr().cast(),
                n,
                start,
            )
        };
        let mut event = Event::from(event?);
        event.when_ended(move |_| drop(owner));
        Ok(event)
    }

    /// Copies the start of a buffer to the bytes that `bytes` returns, and passes `owner` to
    /// `then`: when the copy is done, on a thread of the driver, or at once with the error if it
    /// cannot start.
    pub(super) fn read<T: Send + 'static>(
        &self,
        from: &Mem,
        owner: T,
        bytes: impl FnOnce(&mut T) -> &mut [u8],
        waits: &Waits,
        then: impl FnOnce(Result<T, Code>) + Send + 'static,
    ) -> Option<Event> {
        let (n, start) = waits.parts();
        let mut owner = Box::new(owner);
        let to = bytes(&mut owner);
        // SAFETY: as in `write`; the bytes are not accessed before the event.
        let event = unsafe {
            command_queue::enqueue_read_buffer(
                self.0,
                from.0,
                CL_NON_BLOCKING,
                0,
                to.len(),
                to.as_mut_ptr().cast(),
                n,
                start,
            )
        };
        match event {
            Ok(event) => {
                let mut event = Event::from(event);
                event.when_ended(move |ended| then(ended.map(|()| *owner)));
                Some(event)
            }
            Err(code) => {
                then(Err(code.into()));
                None
            }
        }
    }

    /// Maps the start of a buffer for the host; `then` is called as in [`Self::read`]. The buffer
    /// must live until it is unmapped.
    pub(super) fn map(
        &self,
        of: &Mem,
        len_bytes: usize,
        waits: &Waits,
        then: impl FnOnce(Result<Mapped, Code>) + Send + 'static,
    ) -> Option<Event> {
        let (n, start) = waits.parts();
        let mut at: *mut c_void = ptr::null_mut();
        // SAFETY: the driver checks the buffer's length, and holds the buffer while it is mapped.
        let event = unsafe {
            command_queue::enqueue_map_buffer(
                self.0,
                of.0,
                CL_NON_BLOCKING,
                memory::CL_MAP_READ,
                0,
                len_bytes,
                &mut at,
                n,
                start,
            )
        };
        match event {
            Ok(event) => {
                let mut event = Event::from(event);
                let mapped = Mapped {
                    start: at.cast_const().cast(),
                    len_bytes,
                };
                event.when_ended(move |ended| then(ended.map(|()| mapped)));
                Some(event)
            }
            Err(code) => {
                then(Err(code.into()));
                None
            }
        }
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "the bytes must not be read afterwards"
    )]
    pub(super) fn unmap(&self, of: &Mem, mapped: Mapped) -> Result<Event, Code> {
        let at = mapped.start.cast_mut().cast();
        // SAFETY: `map` has returned it for this buffer, and it is given back once.
        let event =
            unsafe { command_queue::enqueue_unmap_mem_object(self.0, of.0, at, 0, ptr::null()) };
        Ok(Event::from(event?))
    }

    /// Zeroes the start of a buffer.
    pub(super) fn zero(&self, of: &Mem, len_bytes: usize, waits: &Waits) -> Result<Event, Code> {
        let (n, start) = waits.parts();
        // The length of the pattern divides that of the area.
        let pattern = [0u8; 16];
        let pattern_bytes = if len_bytes.is_multiple_of(16) { 16 } else { 1 };
        // SAFETY: the driver copies the pattern at once and checks the buffer's length.
        let event = unsafe {
            command_queue::enqueue_fill_buffer(
                self.0,
                of.0,
                pattern.as_ptr().cast(),
                pattern_bytes,
                0,
                len_bytes,
                n,
                start,
            )
        };
        Ok(Event::from(event?))
    }

    /// Copies the start of one buffer to that of another of the same context.
    pub(super) fn copy(
        &self,
        from: &Mem,
        to: &Mem,
        len_bytes: usize,
        waits: &Waits,
    ) -> Result<Event, Code> {
        let (n, start) = waits.parts();
        // SAFETY: the driver checks the lengths and that both buffers belong to its context.
        let event = unsafe {
            command_queue::enqueue_copy_buffer(self.0, from.0, to.0, 0, 0, len_bytes, n, start)
        };
        Ok(Event::from(event?))
    }

    /// Runs a function with the arguments that were last set.
    pub(super) fn launch(
        &self,
        function: &Function,
        global: [usize; 3],
        local: [usize; 3],
        waits: &Waits,
    ) -> Result<Event, Code> {
        let (n, start) = waits.parts();
        let dimensions = if global[2] > 1 || local[2] > 1 {
            3
        } else if global[1] > 1 || local[1] > 1 {
            2
        } else {
            1
        };
        // SAFETY: the sizes live during the call; the driver holds its own references to the
        // arguments' objects.
        let event = unsafe {
            command_queue::enqueue_nd_range_kernel(
                self.0,
                function.0,
                dimensions,
                ptr::null(),
                global.as_ptr(),
                local.as_ptr(),
                n,
                start,
            )
        };
        Ok(Event::from(event?))
    }
}

/// The value of an argument.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    Mem(&'a Mem),
    Bytes(&'a [u8]),
    /// Local memory of a group.
    Local(usize),
}

impl Function {
    pub(super) fn new(program: &Program, name: &CStr) -> Result<Self, Code> {
        Ok(Self(kernel::create_kernel(program.0, name)?))
    }

    /// Sets an argument of the next launch. No other thread may use the function until then.
    pub(super) fn set(&self, index: u32, value: Value<'_>) -> Result<(), Code> {
        let (len, start) = match value {
            Value::Mem(mem) => (size_of::<cl_mem>(), (&raw const mem.0).cast()),
            Value::Bytes(bytes) => (bytes.len(), bytes.as_ptr().cast()),
            Value::Local(len) => (len, ptr::null()),
        };
        // SAFETY: the value lives during the call, in which the driver copies it and checks its
        // length.
        Ok(unsafe { kernel::set_kernel_arg(self.0, index, len, start) }?)
    }
}

impl Program {
    pub(super) fn of_source(context: &Context, text: &str) -> Result<Self, Code> {
        let text = [text];
        Ok(Self(program::create_program_with_source(context.0, &text)?))
    }

    /// Loads the result of [`Self::binary`]. If it is from another driver, this call or the build
    /// fails.
    pub(super) fn of_binary(
        context: &Context,
        device: DeviceId,
        binary: &[u8],
    ) -> Result<Self, Code> {
        // SAFETY: the device belongs to the context.
        let created =
            unsafe { program::create_program_with_binary(context.0, &[device.0], &[binary]) };
        Ok(Self(created?))
    }

    pub(super) fn of_spirv(context: &Context, module: &[u8]) -> Result<Self, Code> {
        Ok(Self(program::create_program_with_il(context.0, module)?))
    }

    pub(super) fn build(&self, device: DeviceId, options: &CStr) -> Result<(), Code> {
        let devices = [device.0];
        let built = program::build_program(self.0, &devices, options, None, ptr::null_mut());
        Ok(built?)
    }

    /// Returns the compiler's log.
    pub(super) fn log(&self, device: DeviceId) -> String {
        let log = program::get_program_build_info(self.0, device.0, program::CL_PROGRAM_BUILD_LOG);
        log.map_or_else(|_| String::new(), String::from)
    }

    /// Returns the compiled form, for this device and driver.
    pub(super) fn binary(&self) -> Result<Vec<u8>, Code> {
        let binaries = program::get_program_info(self.0, program::CL_PROGRAM_BINARIES)?;
        let binaries = Vec::<Vec<u8>>::from(binaries);
        Ok(binaries.into_iter().next().unwrap_or_default())
    }
}

/// Creates a C string for the driver; `text` must not contain a zero.
pub(super) fn text(text: &str) -> Result<CString, Code> {
    CString::new(text).map_err(|_| Code(opencl3::error_codes::CL_INVALID_VALUE))
}
