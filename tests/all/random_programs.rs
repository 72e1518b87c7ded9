//! Random programs of branches, loops, functions and effects: built by a `GraphBuilder`, run by a
//! session on devices that reject each other's memory, and equal to a plain interpreter.
//!
//! `PLACEWRIGHT_PROGRAMS` sets their number and `PLACEWRIGHT_SEED` the first seed.
#![expect(
    clippy::needless_pass_by_value,
    clippy::result_large_err,
    reason = "programs are small, and errors end the test"
)]

mod build;
mod endings;
mod generate;
mod interpret;
mod program;
mod variables;

use std::env;
use std::panic;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use placewright::device::DeviceFactory;
use placewright::device::DeviceOptions;
use placewright::device::FactoryRegistry;
use placewright::execute::Executor;
use placewright::execute::ExecutorOptions;
use placewright::execute::InterOpPool;
use placewright::execute::RunOptions;
use placewright::execute::Scheduling;
use placewright::policy::PolicyEngine;
use placewright::policy::PolicyLimits;
use placewright::policy::PolicyRequest;
use placewright::policy::ShippedPolicy;
use placewright::session::Session;
use placewright::store::CacheFolder;
use placewright::tensor::DType;
use placewright::tensor::Tensor;

use self::program::Data;
use self::program::Program;
use self::program::Statement;
use crate::interpreter::Calls;
use crate::interpreter::InterpreterFactory;
use crate::sample::Random;
use crate::sample::varied_policies;
use crate::strict_cpu::StrictCpuFactory;

/// Number of statements of a program, without those that other statements need.
const N_STATEMENTS: usize = 24;

/// Runs of each program in each mode, with other feeds.
const N_FEEDS: usize = 2;

fn number(variable: &str, default: u64) -> u64 {
    let asked = env::var(variable).ok();
    asked.map_or(default, |n| n.parse().unwrap())
}

#[test]
fn random_programs_equal_a_plain_interpreter() {
    let runner = Runner::new();
    let first = number("PLACEWRIGHT_SEED", 1);
    let mut seen = Seen::default();
    for seed in first..first + number("PLACEWRIGHT_PROGRAMS", 300) {
        let Err(problem) = runner.check(seed, N_STATEMENTS, &mut seen) else {
            continue;
        };
        // Programs of one seed with fewer statements are often as wrong.
        let smaller = (1..N_STATEMENTS).find_map(|n| {
            let problem = runner.check(seed, n, &mut Seen::default()).err()?;
            Some((n, problem))
        });
        let (n, problem) = smaller.unwrap_or((N_STATEMENTS, problem));
        let program = generate::program(seed, n, n_devices(seed));
        panic!("PLACEWRIGHT_SEED={seed}, {n} statements:\n{program}\n{problem}");
    }
    // Otherwise the generator only tests arithmetic.
    let Seen {
        n_programs,
        n_nested,
        n_transfers,
        n_loops,
        n_clusters,
        n_clustered,
    } = seen;
    assert!(n_nested * 2 > n_programs, "{seen:?}");
    assert!(n_loops * 3 > n_programs, "{seen:?}");
    assert!(n_transfers > n_programs, "{seen:?}");
    assert!(n_clustered > n_clusters, "{seen:?}");
}

/// What the programs consist of.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    n_programs: u64,
    /// Programs with blocks in blocks.
    n_nested: u64,
    n_loops: u64,
    n_transfers: u64,
    /// Executions of clusters.
    n_clusters: usize,
    /// Executions of nodes in clusters.
    n_clustered: usize,
}

fn n_devices(seed: u64) -> usize {
    1 + usize::try_from(seed % 4).unwrap()
}

/// Builds sessions of programs.
struct Runner {
    engine: PolicyEngine,
    policies: Vec<ShippedPolicy>,
    pool: InterOpPool,
}

impl Runner {
    fn new() -> Self {
        let cache = CacheFolder::open(concat!(env!("CARGO_TARGET_TMPDIR"), "/policies")).ok();
        Self {
            engine: PolicyEngine::with_cache(PolicyLimits::default(), cache).unwrap(),
            policies: varied_policies().to_vec(),
            pool: InterOpPool::new(3).unwrap(),
        }
    }

    fn check(&self, seed: u64, n_statements: usize, seen: &mut Seen) -> Result<(), String> {
        let program = generate::program(seed, n_statements, n_devices(seed));
        let checked = panic::catch_unwind(AssertUnwindSafe(|| self.run(&program, seed)));
        let (n_transfers, calls) = checked.map_err(|_| "it panics".to_owned())??;
        seen.n_programs += 1;
        seen.n_transfers += u64::try_from(n_transfers).unwrap();
        seen.n_clusters += calls.n_executions.load(Ordering::Relaxed);
        seen.n_clustered += calls.n_nodes.load(Ordering::Relaxed);
        let lines = &program.main.lines;
        let blocks = lines.iter().flat_map(|line| line.statement.blocks());
        let mut inner = blocks.flat_map(|block| &block.lines);
        seen.n_nested += u64::from(inner.any(|line| !line.statement.blocks().is_empty()));
        let is_loop = |line: &program::Line| matches!(line.statement, Statement::While { .. });
        seen.n_loops += u64::from(lines.iter().any(is_loop));
        Ok(())
    }

    /// Runs a program in each mode and returns the number of its transfers, and how often devices
    /// that take whole partitions were called.
    fn run(&self, program: &Program, seed: u64) -> Result<(usize, Arc<Calls>), String> {
        let mut factories = FactoryRegistry::empty();
        // Every third program runs with devices that take whole partitions.
        let interpreters = InterpreterFactory::default();
        let calls = Arc::clone(&interpreters.calls);
        let factory: Arc<dyn DeviceFactory> = match seed % 3 {
            0 => Arc::new(interpreters),
            _ => Arc::new(StrictCpuFactory),
        };
        factories.register("CPU", 60, factory).unwrap();
        let kernels = Arc::new(factories.kernels());
        let mut options = DeviceOptions::default();
        let n_cpus = u32::try_from(n_devices(seed)).unwrap();
        options.device_count.insert("CPU".to_owned(), n_cpus);
        options.intra_op_parallelism_threads = 1;
        let graph = build::graph(program).map_err(|error| format!("it is not built: {error}"))?;
        let policy = usize::try_from(seed / 4).unwrap() % self.policies.len();
        let policy = self.policies[policy];
        let session = Session::builder()
            .with_graph(graph)
            .with_factories(factories)
            .with_device_options(options)
            .with_inter_op_pool(self.pool.clone())
            .with_policy_engine(self.engine.clone())
            .with_policy(PolicyRequest::new(policy).with_strict(true))
            .build()
            .map_err(|error| format!("no session under {}: {error}", policy.name()))?;
        let names = |what: &str, n: usize| (0..n).map(|i| format!("{what}{i}")).collect();
        let fed: Vec<String> = names("feed", program.feeds.len());
        let fed: Vec<&str> = fed.iter().map(String::as_str).collect();
        let mut fetched: Vec<String> = names("result", program.main.results.len());
        let last: Vec<String> = names("last", program.variables.len());
        fetched.extend(last);
        let fetched: Vec<&str> = fetched.iter().map(String::as_str).collect();
        let plan = session.plan(&fed, &fetched, &[]);
        let plan = Arc::new(plan.map_err(|error| format!("no plan: {error}"))?);
        let callable = session.callable(&fed, &fetched);
        let callable = callable.map_err(|error| format!("no callable: {error}"))?;
        let mut modes = Vec::new();
        for scheduling in [Scheduling::Serial, Scheduling::Shared] {
            let options = ExecutorOptions::default()
                .with_inter_op_pool(self.pool.clone())
                .with_scheduling(scheduling);
            let (graph, devices) = (session.graph(), session.devices());
            let executor = Executor::new(graph, devices, Arc::clone(&kernels), &options);
            let executor = executor.map_err(|error| format!("no executor: {error}"))?;
            let prepared = executor.prepare(&plan);
            let prepared = prepared.map_err(|error| format!("not prepared: {error}"))?;
            modes.push((scheduling, executor, prepared));
        }
        let mut random = Random::new(!seed);
        for run in 0..N_FEEDS {
            let kinds = program.feeds.iter();
            let feeds: Vec<Data> = kinds
                .map(|&kind| generate::data(&mut random, kind))
                .collect();
            let expected = interpret::interpret(program, &feeds);
            let tensors: Vec<Tensor> = feeds.iter().map(build::tensor).collect();
            let found = callable.call(&tensors).map_err(|error| error.to_string());
            let mut all = vec![(format!("session, run {run}"), found)];
            for (scheduling, executor, prepared) in &modes {
                let found = executor.run(prepared, &tensors, &RunOptions::default());
                let found = found.map_err(|error| error.to_string());
                all.push((format!("{scheduling:?}, run {run}"), found));
            }
            for (mode, found) in all {
                let what = format!("{mode} under {}", policy.name());
                let found = found.map_err(|error| format!("{what}: {error}"))?;
                for ((name, expected), found) in fetched.iter().zip(&expected).zip(&found) {
                    agree(expected, found).map_err(|error| format!("{what}: {name} {error}"))?;
                }
            }
        }
        Ok((plan.transfers().len(), calls))
    }
}

/// Checks that a tensor has these elements, bit for bit. Only zeros of both signs are equal, and
/// so are all NaN: an op may compute either.
fn agree(expected: &Data, found: &Tensor) -> Result<(), String> {
    if found.dtype() != expected.kind.dtype || found.shape().dims() != expected.kind.dims {
        return Err(format!(
            "is {} {}, expected {}",
            found.dtype(),
            found.shape(),
            expected.kind
        ));
    }
    let bits: Vec<u32> = match expected.kind.dtype {
        DType::Bool => found
            .as_bytes()
            .unwrap()
            .iter()
            .map(|&b| b.into())
            .collect(),
        _ => {
            let bytes = found.as_bytes().unwrap();
            let words = bytes.chunks_exact(4);
            words
                .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
                .collect()
        }
    };
    let is_equal = |(&expected, &found): (&u32, &u32)| {
        let (a, b) = (f32::from_bits(expected), f32::from_bits(found));
        expected == found || (a.is_nan() && b.is_nan()) || (a == 0.0 && b == 0.0)
    };
    let is_float = expected.kind.dtype == DType::F32;
    let mut pairs = expected.bits.iter().zip(&bits);
    match is_float {
        true if pairs.all(is_equal) => Ok(()),
        false if bits == expected.bits => Ok(()),
        _ => Err(format!(
            "is {}, expected {expected}",
            Data {
                kind: expected.kind,
                bits
            }
        )),
    }
}
