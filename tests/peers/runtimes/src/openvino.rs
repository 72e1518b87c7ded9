//! OpenVINO, by the crate that wraps its C API.

use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use anyhow::Result;
use anyhow::anyhow;
use anyhow::bail;
use anyhow::ensure;
use openvino::CompiledModel;
use openvino::Core;
use openvino::DeviceType;
use openvino::ElementType;
use openvino::InferRequest;
use openvino::Model;
use openvino::PartialShape;
use openvino::RwPropertyKey;
use openvino::Tensor;

use crate::work::Check;
use crate::work::Element;
use crate::work::Options;
use crate::work::Runtime;
use crate::work::Session;
use crate::work::Signature;

/// The loaded library, which the crate keeps.
pub(crate) struct OpenVino;

/// A compiled model, with a request for each run that has been in flight at the same time.
struct OpenVinoSession {
    signature: Signature,
    model: Mutex<CompiledModel>,
    idle: Mutex<Vec<Request>>,
}

/// What one run needs. It is used by one run at a time.
struct Request {
    request: InferRequest,
    /// The request's own input tensors, in the order of the signature.
    inputs: Vec<Tensor>,
}

impl OpenVino {
    /// Loads the library `libopenvino_c`; the others lie next to it.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        openvino_sys::library::load_from(path).map_err(|err| anyhow!(err))?;
        Ok(Self)
    }
}

impl Runtime for OpenVino {
    fn identity(&self) -> (&'static str, String) {
        let build = openvino::version().build_number;
        let version = build.split('-').next().unwrap_or(&build);
        ("OpenVINO", version.to_owned())
    }

    fn open(
        &self,
        graph: &Path,
        signature: Signature,
        options: &Options<'_>,
    ) -> Result<Box<dyn Session>> {
        ensure!(
            options.optimizes,
            "OpenVINO has no option that keeps every node"
        );
        let mut core = Core::new()?;
        for (key, value) in properties(options)? {
            core.set_property(&DeviceType::CPU, &key, &value)
                .with_context(|| format!("{} {value}", key.as_ref()))?;
        }
        let path = graph.to_str().context("a path that is not UTF-8")?;
        let mut model = core
            .read_model_from_file(path, "")
            .with_context(|| format!("reading {path}"))?;
        fix_shapes(&mut model, &signature).with_context(|| format!("reshaping {path}"))?;
        let model = core
            .compile_model(&model, DeviceType::CPU)
            .with_context(|| format!("compiling {path}"))?;
        let session = OpenVinoSession {
            signature,
            model: Mutex::new(model),
            idle: Mutex::default(),
        };
        let request = session.request()?;
        session.put_back(request);
        Ok(Box::new(session))
    }
}

/// Returns the properties of a setting: `latency`, one stream of all threads, or `throughput`, for
/// concurrent callers, as many streams of one thread as the process has cores. With `no-pin`,
/// threads are not bound to cores; callers then need not hand their runs to threads that are.
fn properties(options: &Options<'_>) -> Result<Vec<(RwPropertyKey, String)>> {
    let (mut hint, mut n_streams, mut n_threads) = ("LATENCY", 1, options.n_threads.into());
    let mut pins = true;
    for word in options.setting.split_whitespace() {
        match word {
            "latency" => {}
            "throughput" => {
                let n_cores = thread::available_parallelism()?.get();
                (hint, n_streams, n_threads) = ("THROUGHPUT", n_cores, n_cores);
            }
            "no-pin" => pins = false,
            _ => bail!("`{word}` is no setting; expected latency, throughput, no-pin"),
        }
    }
    let mut properties = vec![
        // The default has half the bits where the processor supports that: less work.
        (RwPropertyKey::HintInferencePrecision, "f32".to_owned()),
        (RwPropertyKey::HintPerformanceMode, hint.to_owned()),
        (RwPropertyKey::NumStreams, n_streams.to_string()),
        (RwPropertyKey::InferenceNumThreads, n_threads.to_string()),
    ];
    if !pins {
        properties.push((RwPropertyKey::HintEnableCpuPinning, "NO".to_owned()));
    }
    Ok(properties)
}

/// Sets the shapes of inputs to those of the arrays if the file leaves a shape open.
fn fix_shapes(model: &mut Model, signature: &Signature) -> Result<()> {
    let n_inputs = model.get_inputs_len()?;
    ensure!(
        n_inputs == signature.inputs.len(),
        "the model has {n_inputs} inputs, and {} are fed",
        signature.inputs.len()
    );
    if !model.is_dynamic() {
        return Ok(());
    }
    let mut shapes = Vec::new();
    for input in &signature.inputs {
        // To the C API, no dimensions are an unknown number of them: scalars stay as in the file.
        if !input.shape.is_empty() {
            let shape = PartialShape::new_static(input.shape.len() as i64, &input.shape)?;
            shapes.push((&*input.name, shape));
        }
    }
    if shapes.is_empty() {
        return Ok(());
    }
    let shapes: Vec<_> = shapes.iter().map(|(name, shape)| (*name, shape)).collect();
    Ok(model.reshape(&shapes)?)
}

impl OpenVinoSession {
    fn request(&self) -> Result<Request> {
        let request = self
            .model
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .create_infer_request()?;
        let mut inputs = Vec::new();
        for input in &self.signature.inputs {
            let tensor = request
                .get_tensor(&input.name)
                .with_context(|| format!("input {}", input.name))?;
            let expected = match input.element {
                Element::Float32 => ElementType::F32,
                Element::Int32 => ElementType::I32,
            };
            let (found, n_bytes) = (tensor.get_element_type()?, tensor.get_byte_size()?);
            ensure!(
                found == expected && n_bytes == input.n_bytes(),
                "input {} has {n_bytes} bytes of {found}, expected {} bytes of {expected}",
                input.name,
                input.n_bytes()
            );
            inputs.push(tensor);
        }
        Ok(Request { request, inputs })
    }

    fn put_back(&self, request: Request) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(request);
    }
}

impl Session for OpenVinoSession {
    fn run(&self, inputs: &[Vec<u8>], check: Check<'_>) -> Result<Duration> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        // A service would make its requests before the first run, so the time begins afterwards.
        let mut request = idle.map_or_else(|| self.request(), Ok)?;
        let started = Instant::now();
        for (tensor, bytes) in request.inputs.iter_mut().zip(inputs) {
            tensor.get_raw_data_mut()?.copy_from_slice(bytes);
        }
        request.request.infer()?;
        let time = started.elapsed();
        for (number, output) in self.signature.outputs.iter().enumerate() {
            if !output.is_float {
                continue;
            }
            let tensor = request
                .request
                .get_tensor(&output.name)
                .with_context(|| format!("output {}", output.name))?;
            let found = tensor.get_element_type()?;
            ensure!(
                found == ElementType::F32,
                "output {} has elements of {found}, expected 32-bit floats",
                output.name
            );
            check(number, tensor.get_data()?)?;
        }
        self.put_back(request);
        Ok(time)
    }
}
