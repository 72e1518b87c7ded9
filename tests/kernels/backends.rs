//! The backends, and what each one does not support.

use std::sync::Arc;
use std::sync::Mutex;
#[cfg(all(feature = "opencl", feature = "cuda"))]
use std::sync::OnceLock;
use std::sync::PoisonError;

use placewright::backend::cpu::ThreadPoolDeviceFactory;
#[cfg(feature = "cuda")]
use placewright::backend::cuda;
#[cfg(feature = "cuda")]
use placewright::backend::cuda::GpuDeviceFactory;
#[cfg(feature = "opencl")]
use placewright::backend::opencl::SyclDeviceFactory;
use placewright::device::AllocatorAttributes;
use placewright::device::Device;
use placewright::device::DeviceFactory;
use placewright::device::DeviceOptions;
use placewright::device::Kernel;
use placewright::device::KernelConstruction;
use placewright::device::KernelContext;
use placewright::device::KernelDef;
use placewright::device::KernelDevice;
use placewright::device::KernelRegistry;
use placewright::ops::OpRegistry;
use placewright::tensor::Buffer;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;
use placewright::tensor::Tensor;

use crate::case::Case;
use crate::case::Expected;
use crate::case::compare;
#[cfg(all(feature = "opencl", feature = "cuda"))]
use crate::emulated::EmulatedConfig;
#[cfg(all(feature = "opencl", feature = "cuda"))]
use crate::emulated::EmulatedDriver;
#[cfg(all(feature = "opencl", feature = "cuda"))]
use crate::emulated::EmulatedRoutines;
use crate::strict_cpu::StrictCpuFactory;

/// Case (or family), op or element type, and the reason.
type Reasons = &'static [(&'static str, &'static str)];

/// The reason why all compiling backends lack an element type.
#[cfg(any(feature = "cuda", feature = "opencl"))]
const TEXT: &str = "strings and handles are the host's";
#[cfg(any(feature = "cuda", feature = "opencl"))]
const COMPLEX: &str = "the dialect has no complex numbers; they are moved, not computed with";
#[cfg(any(feature = "cuda", feature = "opencl"))]
const DOUBLE: &str = "not every device computes with 64-bit floats";

/// The reason why compiling devices leave an op to the CPU.
#[cfg(any(feature = "cuda", feature = "opencl"))]
const RARE: &str = "no model that is run needs it on a device; it runs on the CPU";

/// Why devices that compile do not transpose images.
#[cfg(any(feature = "cuda", feature = "opencl"))]
const LAYOUT: &str = "the optimizer puts channels last; what it leaves runs on the CPU";

/// One backend: how to create its devices, and their known limitations.
pub(crate) struct Backend {
    /// The name in trials and in `PLACEWRIGHT_REQUIRE`.
    pub(crate) name: &'static str,
    factory: fn() -> Result<Arc<dyn DeviceFactory>, String>,
    /// Cases that it will never support. An entry is the start of a case's name.
    pub(crate) unsupported: Reasons,
    /// Cases that fail today. If one passes, that is an error, so that the list stays accurate.
    pub(crate) expected_failures: Reasons,
    /// Ops without a kernel. If one has a kernel, that is an error.
    pub(crate) ops_without_kernels: Reasons,
    /// Element types that kernels of other ops need not support. Cases with these types run if
    /// there is a kernel.
    pub(crate) unsupported_types: Reasons,
    /// The only ops to test, if another backend tests the others.
    pub(crate) ops: Option<&'static [&'static str]>,
    /// Returns problems that results do not show.
    pub(crate) problems: fn() -> Vec<String>,
}

const CPU: Backend = Backend {
    name: "CPU",
    factory: || Ok(Arc::new(ThreadPoolDeviceFactory::default())),
    unsupported: &[],
    expected_failures: &[],
    ops_without_kernels: &[],
    unsupported_types: &[],
    ops: None,
    problems: Vec::new,
};

/// The common properties of devices that compile.
#[cfg(any(feature = "cuda", feature = "opencl"))]
const COMPILING: Backend = Backend {
    unsupported: UNSUPPORTED,
    ops_without_kernels: WITHOUT_KERNELS,
    unsupported_types: UNSUPPORTED_TYPES,
    ..CPU
};

#[cfg(any(feature = "cuda", feature = "opencl"))]
const UNSUPPORTED: Reasons = &[
    ("binary::Pow: of integers", RARE),
    ("binary::Pow: a negative exponent", RARE),
    ("boxes::", RARE),
    ("codec::", TEXT),
    ("conv::DepthwiseConv2dNative: channels first", LAYOUT),
    ("elementwise::TruncateDiv: floats", RARE),
    ("example::", TEXT),
    ("functions::", RARE),
    ("joined::", RARE),
    ("matrix::BatchMatMulV3: bfloat16 and", RARE),
    ("matrix::BatchMatMulV3: int8 and", RARE),
    ("nn::AvgPool: channels first", LAYOUT),
    ("nn::Conv2D: channels first", LAYOUT),
    ("nn::MaxPool: channels first", LAYOUT),
    ("random::", RARE),
    ("sparse::", RARE),
    ("sparse_join::", RARE),
    ("sparse_segment::", RARE),
    ("strings::", TEXT),
];

#[cfg(any(feature = "cuda", feature = "opencl"))]
const WITHOUT_KERNELS: Reasons = &[
    ("AddN", RARE),
    ("AdjustContrastv2", RARE),
    ("AdjustHue", RARE),
    ("AdjustSaturation", RARE),
    ("AvgPool3D", RARE),
    ("BatchToSpaceND", RARE),
    ("Betainc", RARE),
    ("BiasAddV1", RARE),
    ("Bincount", RARE),
    ("Bitcast", RARE),
    ("BlockLSTM", RARE),
    ("Bucketize", RARE),
    ("CTCGreedyDecoder", RARE),
    ("Cholesky", RARE),
    ("ClipByValue", RARE),
    ("CombinedNonMaxSuppression", RARE),
    ("Conv3D", RARE),
    ("Conv3DBackpropInputV2", RARE),
    ("CropAndResize", RARE),
    ("Cross", RARE),
    ("CumulativeLogsumexp", RARE),
    ("DecodeRaw", RARE),
    ("DenseBincount", RARE),
    ("DepthToSpace", RARE),
    ("Diag", RARE),
    ("DiagPart", RARE),
    ("Digamma", RARE),
    ("Dilation2D", RARE),
    ("DrawBoundingBoxes", RARE),
    ("DrawBoundingBoxesV2", RARE),
    ("DynamicPartition", RARE),
    ("DynamicStitch", RARE),
    ("EuclideanNorm", RARE),
    ("ExtractImagePatches", RARE),
    ("FFT", RARE),
    ("FFT2D", RARE),
    ("FFT3D", RARE),
    ("FakeQuantWithMinMaxArgs", RARE),
    ("FakeQuantWithMinMaxVars", RARE),
    ("FakeQuantWithMinMaxVarsPerChannel", RARE),
    ("HSVToRGB", RARE),
    ("HistogramFixedWidth", RARE),
    ("IFFT", RARE),
    ("IFFT2D", RARE),
    ("IFFT3D", RARE),
    ("IRFFT", RARE),
    ("IRFFT2D", RARE),
    ("IRFFT3D", RARE),
    ("Igamma", RARE),
    ("Igammac", RARE),
    ("ImageProjectiveTransformV2", RARE),
    ("ImageProjectiveTransformV3", RARE),
    ("InTopK", RARE),
    ("IteratorGetNext", RARE),
    ("InTopKV2", RARE),
    ("Invert", RARE),
    ("InvertPermutation", RARE),
    ("LSTMBlockCell", RARE),
    ("LeftShift", RARE),
    ("Lgamma", RARE),
    ("LinSpace", RARE),
    ("ListDiff", RARE),
    ("LogMatrixDeterminant", RARE),
    ("LowerBound", RARE),
    ("Lu", RARE),
    ("MatrixBandPart", RARE),
    ("MatrixDeterminant", RARE),
    ("MatrixDiag", RARE),
    ("MatrixDiagPart", RARE),
    ("MatrixDiagPartV2", RARE),
    ("MatrixDiagPartV3", RARE),
    ("MatrixDiagV2", RARE),
    ("MatrixDiagV3", RARE),
    ("MatrixExponential", RARE),
    ("MatrixInverse", RARE),
    ("MatrixSetDiag", RARE),
    ("MatrixSetDiagV2", RARE),
    ("MatrixSetDiagV3", RARE),
    ("MatrixSolve", RARE),
    ("MatrixTriangularSolve", RARE),
    ("MaxPool3D", RARE),
    ("MaxPoolV2", RARE),
    ("MaxPoolWithArgmax", RARE),
    ("NonMaxSuppression", RARE),
    ("NonMaxSuppressionV2", RARE),
    ("NonMaxSuppressionV3", RARE),
    ("NonMaxSuppressionV4", RARE),
    ("NonMaxSuppressionV5", RARE),
    ("OnesLike", RARE),
    ("ParallelDynamicStitch", RARE),
    ("Polygamma", RARE),
    ("Qr", RARE),
    ("QuantizeAndDequantizeV3", RARE),
    ("QuantizeAndDequantizeV4", RARE),
    ("RFFT", RARE),
    ("RFFT2D", RARE),
    ("RFFT3D", RARE),
    ("RGBToHSV", RARE),
    ("ResizeArea", RARE),
    ("ResizeBicubic", RARE),
    ("ResizeBilinear", RARE),
    ("ResizeNearestNeighbor", RARE),
    ("Reverse", RARE),
    ("ReverseSequence", RARE),
    ("RightShift", RARE),
    ("Roll", RARE),
    ("ScatterNd", RARE),
    ("ScaleAndTranslate", RARE),
    ("SegmentMax", RARE),
    ("SegmentMean", RARE),
    ("SegmentMin", RARE),
    ("SegmentProd", RARE),
    ("SegmentSum", RARE),
    ("SelfAdjointEigV2", RARE),
    ("SoftmaxCrossEntropyWithLogits", RARE),
    ("SpaceToBatchND", RARE),
    ("SpaceToDepth", RARE),
    ("SparseSoftmaxCrossEntropyWithLogits", RARE),
    ("Svd", RARE),
    ("TensorScatterAdd", RARE),
    ("TensorScatterMax", RARE),
    ("TensorScatterMin", RARE),
    ("TensorScatterSub", RARE),
    ("TensorScatterUpdate", RARE),
    ("TensorStridedSliceUpdate", RARE),
    ("TopK", RARE),
    ("TopKV2", RARE),
    ("Unique", RARE),
    ("UniqueV2", RARE),
    ("UniqueWithCounts", RARE),
    ("UniqueWithCountsV2", RARE),
    ("UnsortedSegmentMax", RARE),
    ("UnsortedSegmentMin", RARE),
    ("UnsortedSegmentProd", RARE),
    ("UnsortedSegmentSum", RARE),
    ("UpperBound", RARE),
    ("Where", RARE),
    ("Xdivy", RARE),
    ("XlaDynamicUpdateSlice", RARE),
    ("Xlogy", RARE),
    ("ZerosLike", RARE),
    ("Zeta", RARE),
];

#[cfg(any(feature = "cuda", feature = "opencl"))]
const UNSUPPORTED_TYPES: Reasons = &[
    ("string", TEXT),
    ("double", DOUBLE),
    ("complex64", COMPLEX),
    ("complex128", COMPLEX),
];

/// Ops that vendor routines compute.
#[cfg(all(feature = "opencl", feature = "cuda"))]
const WITH_ROUTINES: &[&str] = &[
    "BatchMatMul",
    "BatchMatMulV2",
    "BatchMatMulV3",
    "Conv2D",
    "Einsum",
    "MatMul",
];

/// The driver of an emulated GPU, or the reason why there is none.
#[cfg(all(feature = "opencl", feature = "cuda"))]
type Emulated = OnceLock<Result<Arc<EmulatedDriver>, String>>;

/// The emulated GPU of the suite.
#[cfg(all(feature = "opencl", feature = "cuda"))]
fn emulated() -> Result<Arc<EmulatedDriver>, String> {
    static DRIVER: Emulated = OnceLock::new();
    started(&DRIVER, EmulatedRoutines::Absent)
}

/// The same with libraries for matmuls and convolutions.
#[cfg(all(feature = "opencl", feature = "cuda"))]
fn emulated_with_routines() -> Result<Arc<EmulatedDriver>, String> {
    static DRIVER: Emulated = OnceLock::new();
    started(&DRIVER, EmulatedRoutines::Present)
}

#[cfg(all(feature = "opencl", feature = "cuda"))]
fn started(driver: &Emulated, routines: EmulatedRoutines) -> Result<Arc<EmulatedDriver>, String> {
    let driver = driver.get_or_init(|| {
        let config = EmulatedConfig {
            compiles_for_real: cuda::is_present(),
            routines,
            ..EmulatedConfig::default()
        };
        let driver = EmulatedDriver::new(config).map_err(|error| error.to_string())?;
        Ok(Arc::new(driver))
    });
    driver.clone()
}

/// All backends.
pub(crate) const ALL: &[Backend] = &[
    CPU,
    // The same kernels with a tensor that reads as poison if it was not transferred: checks that
    // the suite itself transfers its tensors.
    Backend {
        name: "CPU-strict",
        factory: || Ok(Arc::new(StrictCpuFactory)),
        ..CPU
    },
    #[cfg(feature = "opencl")]
    Backend {
        name: "SYCL",
        factory: || Ok(Arc::new(SyclDeviceFactory)),
        ..COMPILING
    },
    #[cfg(feature = "cuda")]
    Backend {
        name: "GPU",
        factory: || Ok(Arc::new(GpuDeviceFactory::default())),
        ..COMPILING
    },
    // The same device on a driver that checks every call and executes GPU functions on a SYCL
    // device. Functions are also compiled for a GPU if NVRTC is present. This is no evidence that
    // a GPU runs them.
    #[cfg(all(feature = "opencl", feature = "cuda"))]
    Backend {
        name: "GPU-emulated",
        factory: || {
            let driver = emulated()?;
            Ok(Arc::new(GpuDeviceFactory::with_driver(driver)))
        },
        problems: || emulated().map_or_else(|_| Vec::new(), |driver| driver.violations()),
        ..COMPILING
    },
    // The same with cuBLASLt and cuDNN, which the driver emulates, too: it checks that their calls
    // are supported.
    #[cfg(all(feature = "opencl", feature = "cuda"))]
    Backend {
        name: "GPU-routines",
        factory: || {
            let driver = emulated_with_routines()?;
            Ok(Arc::new(GpuDeviceFactory::with_driver(driver)))
        },
        problems: || {
            emulated_with_routines().map_or_else(|_| Vec::new(), |driver| driver.violations())
        },
        ops: Some(WITH_ROUTINES),
        ..COMPILING
    },
];

/// Returns the reason that a list gives for a case.
pub(crate) fn reason(reasons: Reasons, case: &str) -> Option<&'static str> {
    reasons
        .iter()
        .find(|(start, _)| case.starts_with(start))
        .map(|(_, reason)| *reason)
}

/// The result of a kernel, or the reason why it has none.
type Outputs = Result<Vec<Tensor>, String>;

/// A device with its kernels, ready to run cases.
pub(crate) struct Bench {
    device: Arc<dyn Device>,
    registry: Arc<KernelRegistry>,
    /// Locked from a launch to its check: the caller that polls the device first receives the
    /// faults that functions report.
    alone: Mutex<()>,
    /// The name in trials: the backend's name, and the device's number if there are several.
    pub(crate) name: String,
}

impl Backend {
    /// Returns all devices, with two threads for loops inside kernels, or the reason why there are
    /// none.
    pub(crate) fn open(&self) -> Result<Vec<Bench>, String> {
        let factory = (self.factory)()?;
        // Returns the reason why there are no devices; creating zero devices would not fail.
        factory.list_physical().map_err(|error| error.to_string())?;
        let options = DeviceOptions::default().with_intra_op_parallelism_threads(2);
        let devices = factory
            .create(&options, "/job:localhost/replica:0/task:0")
            .map_err(|error| error.to_string())?;
        if devices.is_empty() {
            return Err("no device was made".to_owned());
        }
        let mut registry = KernelRegistry::empty();
        factory.register_kernels(&mut registry);
        let registry = Arc::new(registry);
        let is_alone = devices.len() == 1;
        let benches = devices
            .into_iter()
            .enumerate()
            .map(|(index, device)| Bench {
                device,
                registry: Arc::clone(&registry),
                alone: Mutex::new(()),
                name: if is_alone {
                    self.name.to_owned()
                } else {
                    format!("{}:{index}", self.name)
                },
            });
        Ok(benches.collect())
    }

    /// Returns why the device need not run a case: it has no kernel for it, and the op or one of
    /// its types is listed.
    pub(crate) fn refuses(
        &self,
        bench: &Bench,
        case: &Case,
    ) -> Result<Option<&'static str>, String> {
        let of_op = self
            .ops_without_kernels
            .iter()
            .find(|(op, _)| *op == case.op);
        let has_kernels = !bench.registry.of_op(case.op).is_empty();
        match of_op {
            Some((op, reason)) if has_kernels => {
                return Err(format!(
                    "{op} has a kernel, though listed without: {reason}"
                ));
            }
            Some((_, reason)) => return Ok(Some(reason)),
            None => {}
        }
        let found = bench.find(case);
        if found.is_ok_and(|found| found.is_some()) {
            return Ok(None);
        }
        let dtypes = case.dtypes();
        let mut of_type = self.unsupported_types.iter();
        let of_type = of_type.find(|(name, _)| dtypes.iter().any(|dtype| dtype.name() == *name));
        Ok(of_type.map(|(_, reason)| *reason))
    }
}

impl Bench {
    /// Runs a case; the error describes the difference. A kernel that prepacks inputs must give the
    /// same result with prepacked inputs.
    pub(crate) fn run(&self, case: &Case) -> Result<(), String> {
        let device = self
            .device
            .as_kernel_device()
            .ok_or("the device has no kernels")?;
        let (found, prepacked) = match self.outputs(device, case) {
            Ok((found, prepacked)) => (Ok(found), prepacked),
            Err(error) => (Err(error), None),
        };
        Self::judge(found, case)?;
        prepacked.map_or(Ok(()), |prepacked| {
            Self::judge(prepacked, case).map_err(|error| format!("with prepacked inputs: {error}"))
        })
    }

    fn judge(found: Result<Vec<Tensor>, String>, case: &Case) -> Result<(), String> {
        match (found, &case.expected) {
            (Ok(found), Expected::Tensors(expected, tolerance)) => {
                if found.len() != expected.len() {
                    return Err(format!(
                        "{} outputs, expected {}",
                        found.len(),
                        expected.len()
                    ));
                }
                found
                    .iter()
                    .zip(expected)
                    .try_for_each(|(found, expected)| compare(found, expected, *tolerance))
            }
            (Err(found), Expected::Refusal(part)) if found.contains(part) => Ok(()),
            (Err(found), Expected::Refusal(part)) => {
                Err(format!("refused with `{found}`, expected `{part}`"))
            }
            (Err(found), Expected::Tensors(..)) => Err(found),
            (_, Expected::Unsaid) => Err("the case says nothing of its result".to_owned()),
            (Ok(found), Expected::Refusal(part)) => {
                Err(format!("gave {found:?}, expected the refusal `{part}`"))
            }
        }
    }

    fn find(&self, case: &Case) -> Result<Option<Arc<KernelDef>>, String> {
        let device_type = &self.device.attributes().device_type;
        self.registry
            .find(case.op, device_type, &case.attrs())
            .map_err(|error| error.to_string())
    }

    /// Returns the outputs, and those from prepacked inputs if the kernel prepacks any.
    fn outputs(
        &self,
        device: &dyn KernelDevice,
        case: &Case,
    ) -> Result<(Vec<Tensor>, Option<Outputs>), String> {
        let attrs = case.attrs();
        let def = self.find(case)?.ok_or("no kernel")?;
        let inputs = case
            .inputs
            .iter()
            .map(|(name, tensor)| {
                if def.host_memory_args.iter().any(|arg| arg == name) {
                    on_host(device, tensor)
                } else {
                    device
                        .default_context()
                        .copy_from_host(tensor)
                        .map_err(|e| e.to_string())
                }
            })
            .collect::<Result<Vec<_>, _>>()?;
        let input_dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
        let shapes = inputs.iter().map(|input| input.shape().into());
        let input_shapes: Vec<PartialShape> = shapes.collect();
        let output_dtypes =
            vec![input_dtypes.first().copied().unwrap_or(DType::F32); case.n_outputs];
        let factory = def.factory.as_ref().ok_or("kernel without factory")?;
        let kernel = factory(&KernelConstruction {
            node: "node",
            op: case.op,
            attrs: &attrs,
            input_dtypes: &input_dtypes,
            input_shapes: &input_shapes,
            output_dtypes: &output_dtypes,
            device,
        })
        .map_err(|error| error.to_string())?;
        // No op of a case has both host-memory and device-memory outputs.
        let is_on_host = OpRegistry::default().get(case.op).is_some_and(|op| {
            let mut outputs = op.outputs().iter();
            outputs.any(|output| def.host_memory_args.iter().any(|arg| **arg == *output.name))
        });
        let on_host = vec![is_on_host; case.n_outputs];
        let found = self.compute(device, &on_host, &*kernel, inputs.clone(), &[])?;
        let prepacked = inputs
            .iter()
            .enumerate()
            .map(|(index, input)| kernel.prepack_input(index, input, device))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| error.to_string())?;
        // As the executor passes them on if nothing else reads them.
        let is_replaced = |index| kernel.replaces_prepacked_input(index);
        let released = inputs.iter().zip(&prepacked).enumerate();
        let released = released.map(|(index, (input, prepacked))| {
            let buffer = input
                .buffer()
                .filter(|_| prepacked.is_some() && is_replaced(index));
            let memory_id = buffer.map(Buffer::memory_id);
            memory_id
                .and_then(|id| Tensor::released(input.dtype(), input.shape().clone(), id))
                .unwrap_or_else(|| input.clone())
        });
        let released: Vec<Tensor> = released.collect();
        let found_prepacked = prepacked
            .iter()
            .any(Option::is_some)
            .then(|| self.compute(device, &on_host, &*kernel, released, &prepacked));
        Ok((found, found_prepacked))
    }

    fn compute(
        &self,
        device: &dyn KernelDevice,
        on_host: &[bool],
        kernel: &dyn Kernel,
        inputs: Vec<Tensor>,
        prepacked: &[Option<Tensor>],
    ) -> Result<Vec<Tensor>, String> {
        let mut context =
            KernelContext::new(device, "node", inputs, on_host).with_prepacked_inputs(prepacked);
        {
            let alone = self.alone.lock();
            let _alone = alone.unwrap_or_else(PoisonError::into_inner);
            device
                .compute(kernel, &mut context)
                .map_err(|error| error.to_string())?;
            // Some devices find invalid inputs only later.
            device.sync().map_err(|error| error.to_string())?;
        }
        let allocator = device.allocator(AllocatorAttributes {
            on_host: on_host.contains(&true),
            gpu_compatible: false,
        });
        let memory = allocator.memory_id();
        context
            .into_outputs()
            .map_err(|error| error.to_string())?
            .iter()
            .map(|output| {
                if output.buffer().is_some_and(|b| b.memory_id() != memory) {
                    return Err("an output is not in the memory where it belongs".to_owned());
                }
                if on_host.contains(&true) {
                    return Ok(output.clone());
                }
                device
                    .default_context()
                    .copy_to_host(output)
                    .map_err(|e| e.to_string())
            })
            .collect()
    }
}

/// Returns a copy in the host memory from which this device's kernels read arguments.
fn on_host(device: &dyn KernelDevice, tensor: &Tensor) -> Result<Tensor, String> {
    if tensor.dtype() == DType::String {
        return Ok(tensor.clone());
    }
    let allocator = device.allocator(AllocatorAttributes {
        on_host: true,
        gpu_compatible: false,
    });
    let mut copy = Tensor::zeros(&*allocator, tensor.dtype(), tensor.shape().clone())
        .map_err(|error| error.to_string())?;
    copy.as_bytes_mut()
        .ok_or("host memory that the host cannot write")?
        .copy_from_slice(tensor.as_bytes().map_err(|error| error.to_string())?);
    Ok(copy)
}
