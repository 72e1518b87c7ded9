//! All calls into cuDNN: convolutions of images with channels last, each by the routine that the
//! library rates best.
//!
//! `cudarc` loads the library and panics if it is missing, so nothing here is called before
//! [`is_present`] has returned true. A CUDA context must be current wherever a handle is used.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::PoisonError;

use cudarc::cudnn::sys;
use cudarc::cudnn::sys::cudnnActivationMode_t as Mode;
use cudarc::cudnn::sys::cudnnConvolutionFwdAlgo_t as Algorithm;
use cudarc::cudnn::sys::cudnnDataType_t as DataType;
use cudarc::cudnn::sys::cudnnMathType_t as Math;
use cudarc::cudnn::sys::cudnnStatus_t as Status;
use cudarc::cudnn::sys::cudnnTensorFormat_t as Format;

use super::c_string::string_at;
use super::driver::Arithmetic;
use super::driver::ConvolutionForward;
use super::driver::DriverError;
use super::driver::DriverErrorKind;
use super::driver::Span;
use super::driver::WindowSize;
use crate::device::Activation;

/// Versions whose error codes match `cudarc`'s table and that have these calls: 9.
const VERSIONS: Range<usize> = 90_000..100_000;

/// Maximum number of remembered kinds of convolutions. More kinds than this come from shapes that
/// never repeat.
const PREPARED_MAX: usize = 1024;

/// Number of routines requested from the library: each with tensor cores and without.
const N_ALGORITHMS: usize = 2 * Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_COUNT as usize;

type Called<T> = Result<T, DriverError>;

/// Returns whether the library is present, in a known version. Loads it.
pub(super) fn is_present() -> bool {
    static IS_PRESENT: OnceLock<bool> = OnceLock::new();
    *IS_PRESENT.get_or_init(|| {
        // SAFETY: loads a library of NVIDIA's, whose initialisation has no requirements.
        let is_there = unsafe { sys::is_culib_present() };
        // SAFETY: it is loaded; every version has this function.
        is_there && VERSIONS.contains(&unsafe { sys::cudnnGetVersion() })
    })
}

fn done(status: Status) -> Called<()> {
    if status == Status::CUDNN_STATUS_SUCCESS {
        return Ok(());
    }
    // Codes are grouped by thousands; this group is for unsupported calls.
    let kind = match status as u32 / 1000 {
        3 => DriverErrorKind::Unsupported,
        // The driver reports whether the GPU is lost.
        _ => DriverErrorKind::Refused,
    };
    // SAFETY: returns a string that lives as long as the library.
    let text = unsafe { sys::cudnnGetErrorString(status) };
    Err(DriverError {
        code: status as i32,
        // SAFETY: as above.
        message: format!("cuDNN: {}", unsafe { string_at(text) }),
        kind,
    })
}

/// Returns the handle that a call writes through a pointer.
fn handle<T>(call: impl FnOnce(*mut *mut T) -> Status) -> Called<*mut T> {
    let mut handle = ptr::null_mut();
    done(call(&raw mut handle))?;
    Ok(handle)
}

/// Converts a number to the library's type.
fn int(n: u32) -> Called<c_int> {
    c_int::try_from(n).map_err(|_| DriverError::unsupported("convolutions"))
}

/// A library handle for one GPU. It lives as long as the process, like the GPU's context.
#[derive(Debug)]
pub(super) struct Cudnn(Mutex<State>);

/// One thread at a time uses a handle: the handle stores the stream it works in.
#[derive(Debug)]
struct State {
    handle: sys::cudnnHandle_t,
    prepared: HashMap<Kind, Option<Prepared>>,
}

// SAFETY: a handle and its descriptors may be used by any thread, one at a time.
unsafe impl Send for State {}

/// The properties shared by convolutions that one routine computes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Kind {
    arithmetic: Arithmetic,
    n_images: u32,
    windows: [WindowSize; 2],
    channels: [u32; 2],
    n_groups: u32,
    has_bias: bool,
    activation: Activation,
    workspace_bytes: usize,
}

/// Defines a descriptor that the library creates and destroys.
macro_rules! descriptor {
    ($name:ident, $handle:ident, $create:ident, $destroy:ident) => {
        #[derive(Debug)]
        struct $name(sys::$handle);

        impl $name {
            fn new() -> Called<Self> {
                handle(|descriptor| {
                    // SAFETY: writes a handle.
                    unsafe { sys::$create(descriptor) }
                })
                .map(Self)
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: it is owned, and nobody uses it any more.
                let _ = unsafe { sys::$destroy(self.0) };
            }
        }
    };
}

descriptor!(
    Images,
    cudnnTensorDescriptor_t,
    cudnnCreateTensorDescriptor,
    cudnnDestroyTensorDescriptor
);
descriptor!(
    Filter,
    cudnnFilterDescriptor_t,
    cudnnCreateFilterDescriptor,
    cudnnDestroyFilterDescriptor
);
descriptor!(
    Windows,
    cudnnConvolutionDescriptor_t,
    cudnnCreateConvolutionDescriptor,
    cudnnDestroyConvolutionDescriptor
);
descriptor!(
    Behind,
    cudnnActivationDescriptor_t,
    cudnnCreateActivationDescriptor,
    cudnnDestroyActivationDescriptor
);

impl Windows {
    /// Sets the arithmetic of multiplications.
    fn set_math(&self, math: Math) -> Called<()> {
        // SAFETY: the descriptor is owned, and used by one thread at a time.
        done(unsafe { sys::cudnnSetConvolutionMathType(self.0, math) })
    }
}

impl Images {
    /// Images, rows, columns, channels.
    fn of(data_type: DataType, [n, rows, columns, channels]: [u32; 4]) -> Called<Self> {
        let images = Self::new()?;
        let (n, channels, rows, columns) = (int(n)?, int(channels)?, int(rows)?, int(columns)?);
        // SAFETY: the descriptor is owned.
        done(unsafe {
            sys::cudnnSetTensor4dDescriptor(
                images.0,
                Format::CUDNN_TENSOR_NHWC,
                data_type,
                n,
                channels,
                rows,
                columns,
            )
        })?;
        Ok(images)
    }
}

/// The library's descriptors of a convolution.
#[derive(Debug)]
struct Described {
    input: Images,
    filter: Filter,
    windows: Windows,
    out: Images,
    bias: Images,
    behind: Behind,
}

impl Described {
    fn new(kind: &Kind) -> Called<Self> {
        let data_type = match kind.arithmetic {
            Arithmetic::F32 | Arithmetic::Tf32 => DataType::CUDNN_DATA_FLOAT,
            Arithmetic::F16 => DataType::CUDNN_DATA_HALF,
            Arithmetic::Bf16 => DataType::CUDNN_DATA_BFLOAT16,
        };
        let Kind {
            n_images,
            windows: [rows, columns],
            channels: [channels, out_channels],
            n_groups,
            ..
        } = *kind;
        let input = Images::of(data_type, [n_images, rows.input, columns.input, channels])?;
        let out = Images::of(
            data_type,
            [n_images, rows.output, columns.output, out_channels],
        )?;
        let bias = Images::of(data_type, [1, 1, 1, out_channels])?;
        let filter = Filter::new()?;
        let (outer, inner) = (int(out_channels)?, int(channels / n_groups)?);
        let taps = [int(rows.taps)?, int(columns.taps)?];
        // SAFETY: the descriptor is owned.
        done(unsafe {
            sys::cudnnSetFilter4dDescriptor(
                filter.0,
                data_type,
                Format::CUDNN_TENSOR_NHWC,
                outer,
                inner,
                taps[0],
                taps[1],
            )
        })?;
        let windows = Windows::new()?;
        let [pad, stride, dilation] = [
            [int(rows.pad)?, int(columns.pad)?],
            [int(rows.stride)?, int(columns.stride)?],
            [int(rows.dilation)?, int(columns.dilation)?],
        ];
        // SAFETY: the descriptor is owned.
        done(unsafe {
            sys::cudnnSetConvolution2dDescriptor(
                windows.0,
                pad[0],
                pad[1],
                stride[0],
                stride[1],
                dilation[0],
                dilation[1],
                // TensorFlow's convolutions do not flip filters.
                sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION,
                DataType::CUDNN_DATA_FLOAT,
            )
        })?;
        // SAFETY: as above.
        done(unsafe { sys::cudnnSetConvolutionGroupCount(windows.0, int(n_groups)?) })?;
        if kind.arithmetic == Arithmetic::F32 {
            // The default would round factors to TensorFloat-32.
            windows.set_math(Math::CUDNN_FMA_MATH)?;
        }
        let behind = Behind::new()?;
        let mode = match kind.activation {
            Activation::None => Mode::CUDNN_ACTIVATION_IDENTITY,
            Activation::Relu => Mode::CUDNN_ACTIVATION_RELU,
            Activation::Relu6 => return Err(DriverError::unsupported("convolutions")),
        };
        // The only mode that is supported with a bias.
        let nans = sys::cudnnNanPropagation_t::CUDNN_NOT_PROPAGATE_NAN;
        // SAFETY: the descriptor is owned.
        done(unsafe { sys::cudnnSetActivationDescriptor(behind.0, mode, nans, 0.0) })?;
        Ok(Self {
            input,
            filter,
            windows,
            out,
            bias,
            behind,
        })
    }
}

/// The prepared computation of convolutions of a kind.
#[derive(Debug)]
struct Prepared {
    described: Described,
    /// Best first. Whether a routine adds a bias is only known when it is called.
    candidates: VecDeque<Candidate>,
}

/// A routine.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    algorithm: Algorithm,
    math: Math,
    workspace_bytes: usize,
}

impl Cudnn {
    /// Creates a handle for the GPU whose context is current.
    ///
    /// # Errors
    /// The library's error.
    pub(super) fn new() -> Called<Self> {
        let handle = handle(|handle| {
            // SAFETY: writes a handle.
            unsafe { sys::cudnnCreate(handle) }
        })?;
        Ok(Self(Mutex::new(State {
            handle,
            prepared: HashMap::new(),
        })))
    }

    /// Queues a convolution in a stream.
    ///
    /// # Errors
    /// As [`super::driver::Gpu::convolve`].
    ///
    /// # Safety
    /// As for [`super::driver::Gpu::convolve`]. The context of the GPU must be current, and the
    /// stream must belong to it.
    pub(super) unsafe fn convolve(
        &self,
        stream: *mut c_void,
        convolution: &ConvolutionForward,
        workspace: Span,
    ) -> Called<()> {
        let kind = Kind {
            arithmetic: convolution.arithmetic,
            n_images: convolution.n_images,
            windows: convolution.windows,
            channels: convolution.channels,
            n_groups: convolution.n_groups,
            has_bias: convolution.bias.is_some(),
            activation: convolution.activation,
            workspace_bytes: workspace.len_bytes,
        };
        // Only a routine that adds a bias also applies an activation.
        if !kind.has_bias && kind.activation != Activation::None {
            return Err(DriverError::unsupported("convolutions"));
        }
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let State { handle, prepared } = &mut *state;
        if !prepared.contains_key(&kind) {
            if prepared.len() >= PREPARED_MAX {
                prepared.clear();
            }
            let (found, failed) = match prepare(*handle, &kind) {
                Ok(found) => (Some(found), Ok(())),
                Err(error) => (None, Err(error)),
            };
            // A routine that fails is not tried again.
            prepared.insert(kind.clone(), found);
            failed?;
        }
        let Some(Some(found)) = prepared.get_mut(&kind) else {
            return Err(DriverError::unsupported("convolutions"));
        };
        // SAFETY: the stream is of this GPU.
        done(unsafe { sys::cudnnSetStream(*handle, stream.cast()) })?;
        while let Some(candidate) = found.candidates.front().copied() {
            // SAFETY: guaranteed by the caller.
            let given = unsafe { found.give(*handle, candidate, convolution, workspace) };
            match given {
                Err(error) if error.kind == DriverErrorKind::Unsupported => {
                    found.candidates.pop_front();
                }
                Err(error) => {
                    prepared.insert(kind, None);
                    return Err(error);
                }
                Ok(()) => return Ok(()),
            }
        }
        Err(DriverError::unsupported("convolutions"))
    }
}

impl Prepared {
    /// Queues a convolution in the stream of the handle.
    ///
    /// # Safety
    /// As [`Cudnn::convolve`].
    unsafe fn give(
        &self,
        handle: sys::cudnnHandle_t,
        candidate: Candidate,
        convolution: &ConvolutionForward,
        workspace: Span,
    ) -> Called<()> {
        self.described.windows.set_math(candidate.math)?;
        let place = |span: Span| ptr::with_exposed_provenance_mut::<c_void>(span.address as usize);
        let (one, zero) = (1.0f32, 0.0f32);
        let (one, zero) = (ptr::from_ref(&one).cast(), ptr::from_ref(&zero).cast());
        let Described {
            input,
            filter,
            windows,
            out,
            bias,
            behind,
            ..
        } = &self.described;
        let result = place(convolution.out);
        let Some(biases) = convolution.bias else {
            // SAFETY: guaranteed by the caller. Factors are on the host and are read before this
            // returns, as are descriptors.
            return done(unsafe {
                sys::cudnnConvolutionForward(
                    handle,
                    one,
                    input.0,
                    place(convolution.input),
                    filter.0,
                    place(convolution.filter),
                    windows.0,
                    candidate.algorithm,
                    place(workspace),
                    candidate.workspace_bytes,
                    zero,
                    out.0,
                    result,
                )
            });
        };
        // SAFETY: as above. The additional operand is multiplied with 0 and not read.
        done(unsafe {
            sys::cudnnConvolutionBiasActivationForward(
                handle,
                one,
                input.0,
                place(convolution.input),
                filter.0,
                place(convolution.filter),
                windows.0,
                candidate.algorithm,
                place(workspace),
                candidate.workspace_bytes,
                zero,
                out.0,
                result,
                bias.0,
                place(biases),
                behind.0,
                out.0,
                result,
            )
        })
    }
}

/// The library's routines, ordered by its estimate of their time: those with the required
/// arithmetic that fit into the workspace.
fn prepare(handle: sys::cudnnHandle_t, kind: &Kind) -> Called<Prepared> {
    let described = Described::new(kind)?;
    let Described {
        input,
        filter,
        windows,
        out,
        ..
    } = &described;
    let mut results =
        [const { MaybeUninit::<sys::cudnnConvolutionFwdAlgoPerf_t>::uninit() }; N_ALGORITHMS];
    let mut n_found: c_int = 0;
    // SAFETY: all descriptors are owned; there is space for this many results.
    done(unsafe {
        sys::cudnnGetConvolutionForwardAlgorithm_v7(
            handle,
            input.0,
            filter.0,
            windows.0,
            out.0,
            N_ALGORITHMS as c_int,
            &raw mut n_found,
            results.as_mut_ptr().cast(),
        )
    })?;
    let n_found = usize::try_from(n_found).unwrap_or(0).min(N_ALGORITHMS);
    let mut candidates = VecDeque::new();
    for result in &results[..n_found] {
        // SAFETY: the library has written this many results.
        let result = unsafe { result.assume_init_ref() };
        // A bias without an activation is added by only one routine.
        let adds = !kind.has_bias
            || kind.activation != Activation::None
            || result.algo == Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
        if result.status != Status::CUDNN_STATUS_SUCCESS || !adds {
            continue;
        }
        let math = match kind.arithmetic {
            Arithmetic::F32 => Math::CUDNN_FMA_MATH,
            _ => result.mathType,
        };
        windows.set_math(math)?;
        let mut workspace_bytes = 0;
        // SAFETY: all descriptors are owned; writes a size.
        let sized = done(unsafe {
            sys::cudnnGetConvolutionForwardWorkspaceSize(
                handle,
                input.0,
                filter.0,
                windows.0,
                out.0,
                result.algo,
                &raw mut workspace_bytes,
            )
        });
        if sized.is_ok() && workspace_bytes <= kind.workspace_bytes {
            candidates.push_back(Candidate {
                algorithm: result.algo,
                math,
                workspace_bytes,
            });
        }
    }
    Ok(Prepared {
        described,
        candidates,
    })
}

/// Checks sizes and types in descriptors, which needs no GPU. `tests/all/nvidia.rs` includes this
/// file and calls this if the library is present.
#[cfg(test)]
#[allow(
    dead_code,
    reason = "the tests of this crate could not say that they did nothing"
)]
pub(super) fn check_descriptions() {
    assert!(is_present(), "a version of cuDNN that is not known");
    let window = |input, output, taps| WindowSize {
        input,
        output,
        taps,
        stride: 2,
        dilation: 1,
        pad: 1,
    };
    for arithmetic in [
        Arithmetic::F32,
        Arithmetic::Tf32,
        Arithmetic::F16,
        Arithmetic::Bf16,
    ] {
        for activation in [Activation::None, Activation::Relu] {
            let kind = Kind {
                arithmetic,
                n_images: 2,
                windows: [window(9, 5, 3), window(8, 4, 3)],
                channels: [6, 8],
                n_groups: 2,
                has_bias: true,
                activation,
                workspace_bytes: 1 << 20,
            };
            let described = Described::new(&kind).unwrap();
            let (mut n, mut channels, mut rows, mut columns) = (0, 0, 0, 0);
            // SAFETY: the descriptions are alive; writes four ints.
            done(unsafe {
                sys::cudnnGetConvolution2dForwardOutputDim(
                    described.windows.0,
                    described.input.0,
                    described.filter.0,
                    &raw mut n,
                    &raw mut channels,
                    &raw mut rows,
                    &raw mut columns,
                )
            })
            .unwrap();
            // Matches the described result.
            assert_eq!([n, rows, columns, channels], [2, 5, 4, 8]);
        }
    }
}
