//! The work that is repeated and timed: models with their arrays, and graphs of additions, by one
//! caller or several concurrent ones.

use std::ffi::CString;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::sync::RwLock;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use anyhow::Result;
use anyhow::anyhow;
use anyhow::bail;
use anyhow::ensure;
use ort_sys::ONNXTensorElementDataType;
use serde::Deserialize;

use crate::ort::Session;
use crate::ort::Value;

/// Nodes per layer of the layered graph.
const WIDTH: u32 = 100;

/// Work that any number of threads may repeat concurrently.
pub(crate) trait Work: Sync {
    /// Runs once, checks the results, and returns the time, which includes new feeds but not the
    /// check.
    fn run(&self, number: u64) -> Result<Duration>;
}

/// A model, its inputs and its expected outputs.
pub(crate) struct Model {
    session: Session,
    inputs: Vec<Input>,
    input_names: Vec<CString>,
    /// Per output its elements; none where they are indices, which follow from floats.
    expected: Vec<Option<Vec<f32>>>,
    output_names: Vec<CString>,
    /// Absolute tolerance of results, and tolerance relative to the expected value.
    tolerance: f32,
}

struct Input {
    element_type: ONNXTensorElementDataType,
    shape: Vec<i64>,
    bytes: Vec<u8>,
}

/// The arrays of a model, each in a separate file next to this one: little-endian elements,
/// row-major.
#[derive(Debug, Deserialize)]
struct Arrays {
    inputs: Vec<Array>,
    outputs: Vec<Array>,
}

#[derive(Debug, Deserialize)]
struct Array {
    /// The name in the ONNX file.
    name: String,
    dtype: String,
    shape: Vec<i64>,
    file: PathBuf,
}

impl Model {
    /// Reads the arrays that the file `arrays` lists.
    pub(crate) fn new(session: Session, arrays: &Path, tolerance: f32) -> Result<Self> {
        let context = || format!("reading {}", arrays.display());
        let text = fs::read_to_string(arrays).with_context(context)?;
        let listed: Arrays = serde_json::from_str(&text).with_context(context)?;
        let read = |array: &Array| -> Result<Vec<u8>> {
            let path = arrays.with_file_name(&array.file);
            let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            let n_elements: i64 = array.shape.iter().product();
            ensure!(
                bytes.len() as i64 == n_elements * 4,
                "{}: {} bytes, expected {n_elements} elements of 4 bytes",
                path.display(),
                bytes.len()
            );
            Ok(bytes)
        };
        let names = |arrays: &[Array]| -> Result<Vec<CString>> {
            let names = arrays.iter().map(|array| CString::new(&*array.name));
            Ok(names.collect::<Result<_, _>>()?)
        };
        let mut inputs = Vec::new();
        for array in &listed.inputs {
            let element_type = match &*array.dtype {
                "float32" => ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
                "int32" => ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
                other => bail!(
                    "input {} is of {other}; float32 and int32 are fed",
                    array.name
                ),
            };
            inputs.push(Input {
                element_type,
                shape: array.shape.clone(),
                bytes: read(array)?,
            });
        }
        let mut expected = Vec::new();
        for array in &listed.outputs {
            if array.dtype != "float32" {
                expected.push(None);
                continue;
            }
            let bytes = read(array)?;
            let floats = bytes.chunks_exact(4);
            expected.push(Some(
                floats
                    .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
                    .collect(),
            ));
        }
        Ok(Self {
            session,
            inputs,
            input_names: names(&listed.inputs)?,
            expected,
            output_names: names(&listed.outputs)?,
            tolerance,
        })
    }
}

impl Work for Model {
    fn run(&self, _: u64) -> Result<Duration> {
        let started = Instant::now();
        let mut fed: Vec<Value> = Vec::with_capacity(self.inputs.len());
        for input in &self.inputs {
            let tensor = self
                .session
                .tensor(input.element_type, &input.shape, &input.bytes)?;
            fed.push(tensor);
        }
        let outputs = self
            .session
            .run(&self.input_names, &fed, &self.output_names)?;
        let time = started.elapsed();
        for ((output, expected), name) in outputs.iter().zip(&self.expected).zip(&self.output_names)
        {
            let Some(expected) = expected else { continue };
            let found = output.as_floats()?;
            // The error is finite: with an infinite tolerance anything would be close.
            let is_close = |(&found, &expected): (&f32, &f32)| {
                let error = (found - expected).abs();
                (found == expected)
                    | (error <= f32::MAX) & (error <= self.tolerance * (1.0 + expected.abs()))
            };
            // Without an early exit, so that it is vectorized.
            let all_close = found
                .iter()
                .zip(expected)
                .fold(true, |close, pair| close & is_close(pair));
            ensure!(
                found.len() == expected.len() && all_close,
                "output {} differs from the expected one",
                name.to_string_lossy()
            );
        }
        Ok(time)
    }
}

/// A graph of scalar additions. Its input is `x`, and its output is the last node's sum.
pub(crate) struct Additions {
    session: Session,
    /// Returns the last node's sum for an input and a number of nodes.
    expected: fn(f32, u32) -> f32,
    n_nodes: u32,
    input_names: Vec<CString>,
    output_names: Vec<CString>,
}

impl Additions {
    /// The last node's sum is known for the cases chain, independent and layered.
    pub(crate) fn new(session: Session, case: &str, n_nodes: u32) -> Result<Self> {
        let expected: fn(f32, u32) -> f32 = match case {
            "chain" => |x, n_nodes| (1..=n_nodes).fold(x, |sum, _| sum + x),
            "independent" => |x, _| x + x,
            "layered" => |x, n_nodes| (0..n_nodes.div_ceil(WIDTH)).fold(x, |sum, _| sum + sum),
            _ => bail!("`{case}` is no case; expected chain, independent or layered"),
        };
        Ok(Self {
            session,
            expected,
            n_nodes,
            input_names: vec![CString::new("x")?],
            output_names: vec![CString::new(format!("a{}", n_nodes - 1))?],
        })
    }
}

impl Work for Additions {
    fn run(&self, number: u64) -> Result<Duration> {
        let x = (number % 8) as f32;
        let float = ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
        let started = Instant::now();
        let fed = [self.session.tensor(float, &[], &x.to_le_bytes())?];
        let outputs = self
            .session
            .run(&self.input_names, &fed, &self.output_names)?;
        let time = started.elapsed();
        let sum = outputs[0].as_floats()?[0];
        let expected = (self.expected)(x, self.n_nodes);
        ensure!(
            sum == expected,
            "fed {x}, the sum is {sum}, expected {expected}"
        );
        Ok(time)
    }
}

/// Repeats `work` for a while, at least three times, and returns the time of each run.
pub(crate) fn repeat(work: &dyn Work, duration: Duration) -> Result<Vec<Duration>> {
    let started = Instant::now();
    let mut times = Vec::new();
    while times.len() < 3 || started.elapsed() < duration {
        times.push(work.run(times.len() as u64)?);
    }
    Ok(times)
}

/// Sorted times of all requests, and the total time.
pub(crate) struct Served {
    pub(crate) times: Vec<Duration>,
    pub(crate) elapsed: Duration,
}

/// Runs a closed loop: each caller starts the next run after it has checked the last.
pub(crate) fn serve(work: &dyn Work, n_callers: usize, duration: Duration) -> Result<Served> {
    // Callers wait until all have been started, or one could not be.
    let gate = RwLock::new(());
    thread::scope(|scope| {
        let call = || {
            drop(gate.read());
            repeat(work, duration)
        };
        let closed = gate.write();
        let callers: Result<Vec<_>, _> = (0..n_callers)
            .map(|_| thread::Builder::new().spawn_scoped(scope, call))
            .collect();
        drop(closed);
        let callers = callers?;
        let started = Instant::now();
        let mut times = Vec::new();
        for caller in callers {
            let of_caller = caller.join().map_err(|_| anyhow!("a caller panicked"))??;
            times.extend(of_caller);
        }
        let elapsed = started.elapsed();
        times.sort_unstable();
        Ok(Served { times, elapsed })
    })
}

/// Returns the smallest time that at least `n / d` of the sorted times do not exceed.
pub(crate) fn quantile(sorted: &[Duration], n: usize, d: usize) -> Duration {
    sorted[(sorted.len() * n).div_ceil(d).max(1) - 1]
}
