//! All calls into cuBLASLt: matmuls, each by the routine that the library rates best.
//!
//! `cudarc` loads the library and panics if it is missing, so nothing here is called before
//! [`is_present`] has returned true. A CUDA context must be current wherever a handle is used.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::PoisonError;

use cudarc::cublaslt::sys;
use cudarc::cublaslt::sys::cublasComputeType_t as Compute;
use cudarc::cublaslt::sys::cublasLtEpilogue_t as Epilogue;
use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t as DescriptionAttribute;
use cudarc::cublaslt::sys::cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute;
use cudarc::cublaslt::sys::cublasLtMatrixLayoutAttribute_t as LayoutAttribute;
use cudarc::cublaslt::sys::cublasStatus_t as Status;
use cudarc::cublaslt::sys::cudaDataType as DataType;

use super::c_string::string_at;
use super::driver::Arithmetic;
use super::driver::DriverError;
use super::driver::DriverErrorKind;
use super::driver::Matmul;
use super::driver::Matrices;
use super::driver::Span;
use crate::device::Activation;

/// Maximum number of remembered kinds of matmuls. More kinds than this come from shapes that never
/// repeat.
const PREPARED_MAX: usize = 4096;

/// Alignments are distinguished up to here, in bytes: no routine requires more.
const ALIGNMENT_MAX: u64 = 256;

/// `cublasOperation_t`: a side as stored, and transposed. `cudarc` defines it only with cuBLAS.
const OPERATIONS: [i32; 2] = [0, 1];

/// `CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`: partial sums are added in the type of the computation.
const REDUCTION_COMPUTE_TYPE: u32 = 2;

type Called<T> = Result<T, DriverError>;

/// Returns whether the library is present. Loads it.
pub(super) fn is_present() -> bool {
    static IS_PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: loads a library of NVIDIA's, whose initialisation has no requirements.
    *IS_PRESENT.get_or_init(|| unsafe { sys::is_culib_present() })
}

fn done(status: Status) -> Called<()> {
    let kind = match status {
        Status::CUBLAS_STATUS_SUCCESS => return Ok(()),
        Status::CUBLAS_STATUS_NOT_SUPPORTED | Status::CUBLAS_STATUS_ARCH_MISMATCH => {
            DriverErrorKind::Unsupported
        }
        // The driver reports whether the GPU is lost.
        _ => DriverErrorKind::Refused,
    };
    // SAFETY: returns a string that lives as long as the library.
    let text = unsafe { sys::cublasLtGetStatusString(status) };
    Err(DriverError {
        code: status as i32,
        // SAFETY: as above.
        message: format!("cuBLASLt: {}", unsafe { string_at(text) }),
        kind,
    })
}

/// Returns the handle that a call writes through a pointer.
fn handle<T>(call: impl FnOnce(*mut *mut T) -> Status) -> Called<*mut T> {
    let mut handle = ptr::null_mut();
    done(call(&raw mut handle))?;
    Ok(handle)
}

/// A library handle for one GPU. It lives as long as the process, like the GPU's context.
#[derive(Debug)]
pub(super) struct CublasLt {
    handle: sys::cublasLtHandle_t,
    prepared: Mutex<HashMap<Kind, Option<Prepared>>>,
}

// SAFETY: the library allows all threads to use a handle.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

/// The properties shared by matmuls that one routine computes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Kind {
    arithmetic: Arithmetic,
    /// Left side, right side, result: rows, columns, leading, batch.
    sizes: [[u64; 4]; 3],
    is_transposed: [bool; 2],
    n_batches: u32,
    has_bias: bool,
    activation: Activation,
    /// Alignments of the three addresses, in bytes.
    alignments: [u32; 3],
    workspace_bytes: usize,
}

impl Kind {
    fn of(matmul: &Matmul, workspace: Span) -> Self {
        let Matmul {
            arithmetic,
            left,
            right,
            out,
            n_batches,
            bias,
            activation,
        } = *matmul;
        let sizes = |of: Matrices| [of.rows, of.columns, of.leading, of.batch];
        Self {
            arithmetic,
            sizes: [left, right, out].map(sizes),
            is_transposed: [left.is_transposed, right.is_transposed],
            n_batches,
            has_bias: bias.is_some(),
            activation,
            alignments: [left, right, out].map(|of| alignment(of.span.address)),
            workspace_bytes: workspace.len_bytes,
        }
    }
}

/// Returns the largest power of two that divides an address, up to [`ALIGNMENT_MAX`].
fn alignment(address: u64) -> u32 {
    let alignment = (address | ALIGNMENT_MAX).trailing_zeros();
    1 << alignment
}

/// The prepared computation of matmuls of a kind.
#[derive(Debug)]
struct Prepared {
    description: Description,
    /// Left side, right side, result.
    layouts: [Layout; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
}

// SAFETY: the library's descriptors are ordinary memory of the host.
unsafe impl Send for Prepared {}

#[derive(Debug)]
struct Description(sys::cublasLtMatmulDesc_t);

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: it is owned, and nobody uses it any more.
        let _ = unsafe { sys::cublasLtMatmulDescDestroy(self.0) };
    }
}

impl Description {
    fn new(compute: Compute) -> Called<Self> {
        handle(|description| {
            // SAFETY: writes a handle.
            unsafe { sys::cublasLtMatmulDescCreate(description, compute, DataType::CUDA_R_32F) }
        })
        .map(Self)
    }

    fn set<T: Copy>(&mut self, attribute: DescriptionAttribute, value: T) -> Called<()> {
        let value = ptr::from_ref(&value).cast::<c_void>();
        // SAFETY: the description is owned; the bytes of the value are read before this returns.
        done(unsafe {
            sys::cublasLtMatmulDescSetAttribute(self.0, attribute, value, size_of::<T>())
        })
    }
}

#[derive(Debug)]
struct Layout(sys::cublasLtMatrixLayout_t);

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: it is owned, and nobody uses it any more.
        let _ = unsafe { sys::cublasLtMatrixLayoutDestroy(self.0) };
    }
}

impl Layout {
    fn new(
        data_type: DataType,
        [rows, columns, leading, batch]: [u64; 4],
        n_batches: u32,
    ) -> Called<Self> {
        let layout = handle(|layout| {
            // SAFETY: writes a handle.
            unsafe {
                sys::cublasLtMatrixLayoutCreate(
                    layout,
                    data_type,
                    rows,
                    columns,
                    leading.cast_signed(),
                )
            }
        })?;
        let mut layout = Self(layout);
        layout.set(
            LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
            n_batches.cast_signed(),
        )?;
        let stride = LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
        layout.set(stride, batch.cast_signed())?;
        Ok(layout)
    }

    fn set<T: Copy>(&mut self, attribute: LayoutAttribute, value: T) -> Called<()> {
        let value = ptr::from_ref(&value).cast::<c_void>();
        // SAFETY: the layout is owned; the bytes of the value are read before this returns.
        done(unsafe {
            sys::cublasLtMatrixLayoutSetAttribute(self.0, attribute, value, size_of::<T>())
        })
    }
}

#[derive(Debug)]
struct Preference(sys::cublasLtMatmulPreference_t);

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: it is owned, and nobody uses it any more.
        let _ = unsafe { sys::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}

impl Preference {
    fn new(kind: &Kind) -> Called<Self> {
        let preference = handle(|preference| {
            // SAFETY: writes a handle.
            unsafe { sys::cublasLtMatmulPreferenceCreate(preference) }
        })?;
        let mut preference = Self(preference);
        let workspace = PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        preference.set(workspace, kind.workspace_bytes as u64)?;
        if matches!(kind.arithmetic, Arithmetic::F16 | Arithmetic::Bf16) {
            // Otherwise partial sums may be added in 16 bits.
            let scheme = PreferenceAttribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
            preference.set(scheme, REDUCTION_COMPUTE_TYPE)?;
        }
        let [left, right, out] = kind.alignments;
        for (attribute, alignment) in [
            (
                PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                left,
            ),
            (
                PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                right,
            ),
            (
                PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                out,
            ),
            (
                PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                out,
            ),
        ] {
            preference.set(attribute, alignment)?;
        }
        Ok(preference)
    }

    fn set<T: Copy>(&mut self, attribute: PreferenceAttribute, value: T) -> Called<()> {
        let value = ptr::from_ref(&value).cast::<c_void>();
        // SAFETY: the preference is owned; the bytes of the value are read before this returns.
        done(unsafe {
            sys::cublasLtMatmulPreferenceSetAttribute(self.0, attribute, value, size_of::<T>())
        })
    }
}

/// Describes a matmul for the library.
fn described(kind: &Kind) -> Called<(Description, [Layout; 3])> {
    let (compute, data_type) = match kind.arithmetic {
        // Factors must not be rounded, as `COMPUTE_32F_FAST_TF32` would.
        Arithmetic::F32 => (Compute::CUBLAS_COMPUTE_32F, DataType::CUDA_R_32F),
        Arithmetic::Tf32 => (Compute::CUBLAS_COMPUTE_32F_FAST_TF32, DataType::CUDA_R_32F),
        Arithmetic::F16 => (Compute::CUBLAS_COMPUTE_32F, DataType::CUDA_R_16F),
        Arithmetic::Bf16 => (Compute::CUBLAS_COMPUTE_32F, DataType::CUDA_R_16BF),
    };
    let [left, right] = kind
        .is_transposed
        .map(|is_transposed| OPERATIONS[usize::from(is_transposed)]);
    let epilogue = match (kind.has_bias, kind.activation) {
        (false, Activation::None) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
        (false, Activation::Relu) => Epilogue::CUBLASLT_EPILOGUE_RELU,
        (true, Activation::None) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
        (true, Activation::Relu) => Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
        (_, Activation::Relu6) => return Err(DriverError::unsupported("matmuls")),
    };
    let mut description = Description::new(compute)?;
    description.set(DescriptionAttribute::CUBLASLT_MATMUL_DESC_TRANSA, left)?;
    description.set(DescriptionAttribute::CUBLASLT_MATMUL_DESC_TRANSB, right)?;
    description.set(
        DescriptionAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE,
        epilogue,
    )?;
    let [left, right, out] = kind.sizes;
    let layout = |sizes| Layout::new(data_type, sizes, kind.n_batches);
    Ok((description, [layout(left)?, layout(right)?, layout(out)?]))
}

impl CublasLt {
    /// Creates a handle for the GPU whose context is current.
    ///
    /// # Errors
    /// The library's error.
    pub(super) fn new() -> Called<Self> {
        let handle = handle(|handle| {
            // SAFETY: writes a handle.
            unsafe { sys::cublasLtCreate(handle) }
        })?;
        Ok(Self {
            handle,
            prepared: Mutex::default(),
        })
    }

    /// Queues a matmul in a stream.
    ///
    /// # Errors
    /// As [`super::driver::Gpu::matmul`].
    ///
    /// # Safety
    /// As for [`super::driver::Gpu::matmul`]. The context of the GPU must be current, and the
    /// stream must belong to it.
    pub(super) unsafe fn matmul(
        &self,
        stream: *mut c_void,
        matmul: &Matmul,
        workspace: Span,
    ) -> Called<()> {
        let kind = Kind::of(matmul, workspace);
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if !prepared.contains_key(&kind) {
            if prepared.len() >= PREPARED_MAX {
                prepared.clear();
            }
            let found = self.prepare(&kind);
            let (found, failed) = match found {
                Ok(found) => (Some(found), Ok(())),
                Err(error) => (None, Err(error)),
            };
            // A kind that fails is not tried again.
            prepared.insert(kind.clone(), found);
            failed?;
        }
        let Some(Some(found)) = prepared.get_mut(&kind) else {
            return Err(DriverError::unsupported("matmuls"));
        };
        if let Some(bias) = matmul.bias {
            let attribute = DescriptionAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            found.description.set(attribute, bias.address)?;
        }
        let [left, right, out] = &found.layouts;
        let place = |span: Span| ptr::with_exposed_provenance_mut::<c_void>(span.address as usize);
        let (one, zero) = (1.0f32, 0.0f32);
        let result = place(matmul.out.span);
        // SAFETY: guaranteed by the caller. Factors are on the host and are read before this
        // returns, as are descriptions, which the lock keeps.
        let given = done(unsafe {
            sys::cublasLtMatmul(
                self.handle,
                found.description.0,
                ptr::from_ref(&one).cast(),
                place(matmul.left.span),
                left.0,
                place(matmul.right.span),
                right.0,
                ptr::from_ref(&zero).cast(),
                result,
                out.0,
                result,
                out.0,
                &raw const found.algorithm,
                place(workspace),
                found.workspace_bytes,
                stream.cast(),
            )
        });
        if given.is_err() {
            prepared.insert(kind, None);
        }
        given
    }

    /// Finds the routine that the library rates best.
    fn prepare(&self, kind: &Kind) -> Called<Prepared> {
        let (mut description, layouts) = described(kind)?;
        if kind.has_bias {
            // Any address will do: it tells the library the alignment, which is that of all tensor
            // memory.
            let attribute = DescriptionAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            description.set(attribute, ALIGNMENT_MAX)?;
        }
        let preference = Preference::new(kind)?;
        let [left, right, out] = &layouts;
        let mut found = sys::cublasLtMatmulHeuristicResult_t {
            algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            workspaceSize: 0,
            state: Status::CUBLAS_STATUS_NOT_SUPPORTED,
            wavesCount: 0.0,
            reserved: [0; 4],
        };
        let mut n_found = 0;
        // SAFETY: all descriptions are owned; there is space for one result.
        done(unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                description.0,
                left.0,
                right.0,
                out.0,
                out.0,
                preference.0,
                1,
                &raw mut found,
                &raw mut n_found,
            )
        })?;
        if n_found == 0 {
            return Err(DriverError::unsupported("matmuls"));
        }
        done(found.state)?;
        Ok(Prepared {
            description,
            layouts,
            algorithm: found.algo,
            workspace_bytes: found.workspaceSize,
        })
    }
}

/// Checks sizes and types in descriptors, which needs no GPU. `tests/all/nvidia.rs` includes this
/// file and calls this if the library is present.
#[cfg(test)]
#[allow(
    dead_code,
    reason = "the tests of this crate could not say that they did nothing"
)]
pub(super) fn check_descriptions() {
    let matrices = |rows, columns, is_transposed| Matrices {
        span: Span {
            address: 0x1000,
            len_bytes: 0,
        },
        rows,
        columns,
        leading: rows,
        batch: rows * columns,
        is_transposed,
    };
    for arithmetic in [
        Arithmetic::F32,
        Arithmetic::Tf32,
        Arithmetic::F16,
        Arithmetic::Bf16,
    ] {
        for activation in [Activation::None, Activation::Relu] {
            let matmul = Matmul {
                arithmetic,
                left: matrices(3, 4, true),
                right: matrices(3, 5, false),
                out: matrices(4, 5, false),
                n_batches: 2,
                bias: Some(Span {
                    address: 0x2000,
                    len_bytes: 8,
                }),
                activation,
            };
            let workspace = Span {
                address: 0x3000,
                len_bytes: 1 << 20,
            };
            let kind = Kind::of(&matmul, workspace);
            described(&kind).unwrap();
            Preference::new(&kind).unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignments_are_powers_of_two_of_the_address() {
        assert_eq!(alignment(0x1000), 256);
        assert_eq!(alignment(0x1010), 16);
        assert_eq!(alignment(0x1002), 2);
        assert_eq!(alignment(0x1001), 1);
    }
}
