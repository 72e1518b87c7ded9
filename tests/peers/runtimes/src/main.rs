//! ONNX Runtime or OpenVINO behind the protocol of tests/peers: one JSON command per input line,
//! one JSON answer per output line.
//!
//! Uses their C APIs, like a C++ service: called from Python, their callers would wait for each
//! other's interpreter lock, and the calls would take longer than small models.

mod openvino;
mod ort;
mod work;

use std::io;
use std::io::BufRead;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use anyhow::Result;
use anyhow::bail;
use serde::Deserialize;
use serde_json::Value;
use serde_json::json;

use crate::openvino::OpenVino;
use crate::ort::OnnxRuntime;
use crate::work::Additions;
use crate::work::Arrays;
use crate::work::Model;
use crate::work::Options;
use crate::work::Runtime;
use crate::work::Work;
use crate::work::quantile;
use crate::work::repeat;
use crate::work::serve;

#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
enum Command {
    Hello,
    OpenModel {
        graph: PathBuf,
        arrays: PathBuf,
        threads: u16,
        setting: String,
        tolerance: f32,
    },
    OpenDag {
        graph: PathBuf,
        case: String,
        nodes: u32,
        threads: u16,
        setting: String,
    },
    Turn {
        ms: u64,
    },
    Serve {
        ms: u64,
        callers: u16,
    },
    Close,
}

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let runtime: Box<dyn Runtime> = match &arguments[..] {
        [name, library] if name == "onnxruntime" => Box::new(OnnxRuntime::load(library.as_ref())?),
        [name, library] if name == "openvino" => Box::new(OpenVino::load(library.as_ref())?),
        _ => bail!("expected `onnxruntime` or `openvino`, and the path of its library"),
    };
    let mut open: Option<Box<dyn Work>> = None;
    let mut stdout = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let answer = answer(&line?, &*runtime, &mut open)
            .unwrap_or_else(|err| json!({ "error": format!("{err:#}") }));
        writeln!(stdout, "{answer}")?;
        stdout.flush()?;
    }
    Ok(())
}

fn answer(line: &str, runtime: &dyn Runtime, open: &mut Option<Box<dyn Work>>) -> Result<Value> {
    let command = serde_json::from_str(line).with_context(|| format!("`{line}` is no command"))?;
    match command {
        Command::Hello => {
            let (framework, version) = runtime.identity();
            Ok(json!({ "framework": framework, "version": version }))
        }
        Command::OpenModel {
            graph,
            arrays,
            threads,
            setting,
            tolerance,
        } => {
            *open = None;
            let (signature, arrays) = Arrays::read(&arrays)?;
            let options = Options {
                n_threads: threads,
                setting: &setting,
                optimizes: true,
            };
            let started = Instant::now();
            let session = runtime.open(&graph, signature, &options)?;
            let load = started.elapsed();
            let model = Model {
                session,
                arrays,
                tolerance,
            };
            start(open, Box::new(model), load)
        }
        Command::OpenDag {
            graph,
            case,
            nodes,
            threads,
            setting,
        } => {
            *open = None;
            let options = Options {
                n_threads: threads,
                setting: &setting,
                optimizes: false,
            };
            let started = Instant::now();
            let session = runtime.open(&graph, Additions::signature(nodes), &options)?;
            let load = started.elapsed();
            let additions = Additions::new(session, &case, nodes)?;
            start(open, Box::new(additions), load)
        }
        Command::Turn { ms } => {
            let mut times = repeat(opened(open)?, Duration::from_millis(ms))?;
            times.sort_unstable();
            Ok(json!({
                "runs": times.len(),
                "median_ns": nanoseconds(quantile(&times, 1, 2)),
                "p90_ns": nanoseconds(quantile(&times, 9, 10)),
                "min_ns": nanoseconds(times[0]),
            }))
        }
        Command::Serve { ms, callers } => {
            if callers == 0 {
                bail!("0 callers; expected 1 at least");
            }
            let served = serve(opened(open)?, callers.into(), Duration::from_millis(ms))?;
            Ok(json!({
                "runs": served.times.len(),
                "requests_per_s": served.times.len() as f64 / served.elapsed.as_secs_f64(),
                "p50_ns": nanoseconds(quantile(&served.times, 1, 2)),
                "p99_ns": nanoseconds(quantile(&served.times, 99, 100)),
            }))
        }
        Command::Close => {
            *open = None;
            Ok(json!({}))
        }
    }
}

fn start(open: &mut Option<Box<dyn Work>>, work: Box<dyn Work>, load: Duration) -> Result<Value> {
    let first = work.run(0)?;
    *open = Some(work);
    Ok(json!({ "load_ns": nanoseconds(load), "first_ns": nanoseconds(first) }))
}

fn opened(open: &Option<Box<dyn Work>>) -> Result<&dyn Work> {
    open.as_deref()
        .context("nothing is open; send `open-model` or `open-dag` first")
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}
