//! The work that is repeated and timed: models with their arrays, and graphs of additions, by one
//! caller or several concurrent ones. What it needs of a runtime are the traits `Runtime` and
//! `Session`.

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
use serde::Deserialize;

/// Nodes per layer of the layered graph.
const WIDTH: u32 = 100;

/// A runtime whose library is loaded.
pub(crate) trait Runtime {
    /// Returns the name and the version.
    fn identity(&self) -> (&'static str, String);

    /// Loads an ONNX file.
    fn open(
        &self,
        graph: &Path,
        signature: Signature,
        options: &Options<'_>,
    ) -> Result<Box<dyn Session>>;
}

/// A loaded graph, which any number of threads may run concurrently.
pub(crate) trait Session: Send + Sync {
    /// Runs once with copies of these bytes, one item per input. Hands the elements of each output
    /// of floats to `check`, with the number of the output. Returns the time, which includes the
    /// copies but not the check.
    fn run(&self, inputs: &[Vec<u8>], check: Check<'_>) -> Result<Duration>;
}

/// Checks the elements of the output of this number.
pub(crate) type Check<'a> = &'a mut dyn FnMut(usize, &[f32]) -> Result<()>;

/// How a session is to execute.
#[derive(Debug)]
pub(crate) struct Options<'a> {
    /// The threads that it may use for one run.
    pub(crate) n_threads: u16,
    /// One of the runtime's settings.
    pub(crate) setting: &'a str,
    /// If not, every node stays a node.
    pub(crate) optimizes: bool,
}

/// The inputs and outputs that a session is run with, by the names in the ONNX file.
pub(crate) struct Signature {
    pub(crate) inputs: Vec<Input>,
    pub(crate) outputs: Vec<Output>,
}

pub(crate) struct Input {
    pub(crate) name: String,
    pub(crate) element: Element,
    pub(crate) shape: Vec<i64>,
}

pub(crate) struct Output {
    pub(crate) name: String,
    pub(crate) is_float: bool,
}

/// A type of elements that are fed. They have 4 bytes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    Float32,
    Int32,
}

impl Input {
    pub(crate) fn n_bytes(&self) -> usize {
        self.shape.iter().product::<i64>() as usize * 4
    }
}

/// Work that any number of threads may repeat concurrently.
pub(crate) trait Work: Sync {
    /// Runs once, checks the results, and returns the time, which includes new feeds but not the
    /// check.
    fn run(&self, number: u64) -> Result<Duration>;
}

/// The inputs and the expected outputs of a model.
pub(crate) struct Arrays {
    inputs: Vec<Vec<u8>>,
    /// Per output its name and elements; no elements where they are indices, which follow from
    /// floats.
    expected: Vec<(String, Vec<f32>)>,
}

/// The arrays of a model, each in a separate file next to this one: little-endian elements,
/// row-major.
#[derive(Debug, Deserialize)]
struct Listed {
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

impl Arrays {
    /// Reads the arrays that this file lists.
    pub(crate) fn read(list: &Path) -> Result<(Signature, Self)> {
        let context = || format!("reading {}", list.display());
        let text = fs::read_to_string(list).with_context(context)?;
        let listed: Listed = serde_json::from_str(&text).with_context(context)?;
        let read = |array: &Array| -> Result<Vec<u8>> {
            let path = list.with_file_name(&array.file);
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
        let mut signature = Signature {
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        let mut inputs = Vec::new();
        for array in listed.inputs {
            let element = match &*array.dtype {
                "float32" => Element::Float32,
                "int32" => Element::Int32,
                other => bail!(
                    "input {} is of {other}; float32 and int32 are fed",
                    array.name
                ),
            };
            inputs.push(read(&array)?);
            signature.inputs.push(Input {
                name: array.name,
                element,
                shape: array.shape,
            });
        }
        let mut expected = Vec::new();
        for array in listed.outputs {
            let is_float = array.dtype == "float32";
            let bytes = if is_float { read(&array)? } else { Vec::new() };
            let floats = bytes
                .chunks_exact(4)
                .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
                .collect();
            expected.push((array.name.clone(), floats));
            signature.outputs.push(Output {
                name: array.name,
                is_float,
            });
        }
        Ok((signature, Self { inputs, expected }))
    }
}

/// A model, its inputs and its expected outputs.
pub(crate) struct Model {
    pub(crate) session: Box<dyn Session>,
    pub(crate) arrays: Arrays,
    /// Absolute tolerance of results, and tolerance relative to the expected value.
    pub(crate) tolerance: f32,
}

impl Work for Model {
    fn run(&self, _: u64) -> Result<Duration> {
        self.session.run(&self.arrays.inputs, &mut |number, found| {
            let (name, expected) = &self.arrays.expected[number];
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
                "output {name} differs from the expected one"
            );
            Ok(())
        })
    }
}

/// A graph of scalar additions. Its input is `x`, and its output is the last node's sum.
pub(crate) struct Additions {
    session: Box<dyn Session>,
    /// Returns the last node's sum for an input and a number of nodes.
    expected: fn(f32, u32) -> f32,
    n_nodes: u32,
}

impl Additions {
    /// The last node's sum is known for the cases chain, independent and layered.
    pub(crate) fn new(session: Box<dyn Session>, case: &str, n_nodes: u32) -> Result<Self> {
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
        })
    }

    pub(crate) fn signature(n_nodes: u32) -> Signature {
        Signature {
            inputs: vec![Input {
                name: "x".to_owned(),
                element: Element::Float32,
                shape: Vec::new(),
            }],
            outputs: vec![Output {
                name: format!("a{}", n_nodes - 1),
                is_float: true,
            }],
        }
    }
}

impl Work for Additions {
    fn run(&self, number: u64) -> Result<Duration> {
        let x = (number % 8) as f32;
        let fed = [x.to_le_bytes().to_vec()];
        self.session.run(&fed, &mut |_, sums| {
            let expected = (self.expected)(x, self.n_nodes);
            ensure!(
                sums == [expected],
                "fed {x}, the sum is {sums:?}, expected {expected}"
            );
            Ok(())
        })
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
