//! Programs: compiled once per device, driver and source, and cached.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use smallvec::SmallVec;
use tracing::debug;
use tracing::info;
use tracing::warn;

use super::discover::DeviceFacts;
use super::ffi;
use super::ffi::Context;
use super::ffi::Program;
use super::ffi::Value;
use crate::backend::source::OPENCL_PRELUDE;
use crate::device::DeviceError;
use crate::device::DeviceFunction;
use crate::device::KernelError;
use crate::device::ProgramCode;
use crate::device::ProgramSource;
use crate::store::CacheFolder;
use crate::store::CacheKey;
use crate::trace::targets;

/// The start of the names of cached programs.
const CACHE_KIND: &str = "program";

/// Maximum length of a compiler's log in an error, in characters.
const LOG_CHARS_MAX: usize = 4000;

/// The programs of one device.
pub(super) struct Programs {
    name: String,
    facts: Arc<DeviceFacts>,
    context: Arc<Context>,
    cache: Option<Arc<CacheFolder>>,
    /// Locked while compiling, so that two threads that need the same program compile it once.
    built: Mutex<Built>,
}

#[derive(Default)]
struct Built {
    programs: HashMap<ProgramSource, Arc<Program>>,
    functions: HashMap<(ProgramSource, String), Arc<SyclFunction>>,
}

/// A function of a program.
#[derive(Debug)]
pub(super) struct SyclFunction {
    name: String,
    /// Names the function and its program in messages.
    label: String,
    context: Arc<Context>,
    handle: Mutex<Handle>,
}

/// A function with its arguments. Unchanged arguments are not set again: setting one takes a tenth
/// of the time of a launch.
#[derive(Debug)]
pub(super) struct Handle {
    function: ffi::Function,
    /// The values last set, by index; empty for anything but a plain value.
    values: Vec<SmallVec<[u8; 8]>>,
}

impl Handle {
    /// Sets a plain value.
    pub(super) fn set_value(&mut self, index: u32, bytes: &[u8]) -> Result<(), ffi::Code> {
        let last = self.last(index);
        if **last == *bytes {
            return Ok(());
        }
        last.clear();
        self.function.set(index, Value::Bytes(bytes))?;
        self.last(index).extend_from_slice(bytes);
        Ok(())
    }

    /// Sets anything but a plain value.
    pub(super) fn set(&mut self, index: u32, value: Value<'_>) -> Result<(), ffi::Code> {
        self.last(index).clear();
        self.function.set(index, value)
    }

    fn last(&mut self, index: u32) -> &mut SmallVec<[u8; 8]> {
        let index = index as usize;
        if index >= self.values.len() {
            self.values.resize_with(index + 1, SmallVec::new);
        }
        &mut self.values[index]
    }

    pub(super) fn function(&self) -> &ffi::Function {
        &self.function
    }
}

impl SyclFunction {
    /// Locks the function, to set its arguments and enqueue it.
    pub(super) fn handle(&self) -> MutexGuard<'_, Handle> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The function and its program.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    pub(super) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }
}

impl DeviceFunction for SyclFunction {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Programs {
    pub(super) fn new(
        name: &str,
        facts: Arc<DeviceFacts>,
        context: Arc<Context>,
        cache: Option<Arc<CacheFolder>>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            facts,
            context,
            cache,
            built: Mutex::default(),
        }
    }

    /// Returns a function of a program; builds the program if necessary.
    pub(super) fn function(
        &self,
        source: &ProgramSource,
        name: &str,
    ) -> Result<Arc<SyclFunction>, KernelError> {
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (source.clone(), name.to_owned());
        if let Some(function) = built.functions.get(&key) {
            return Ok(Arc::clone(function));
        }
        let program = match built.programs.get(source) {
            Some(program) => Arc::clone(program),
            None => {
                let program = Arc::new(self.build(source)?);
                built.programs.insert(source.clone(), Arc::clone(&program));
                program
            }
        };
        let no_such = |code: ffi::Code| {
            self.refused(source, format!("function `{name}` is unavailable: {code}"))
        };
        let handle = ffi::text(name)
            .and_then(|name| ffi::Function::new(&program, &name))
            .map_err(no_such)?;
        let function = Arc::new(SyclFunction {
            name: name.to_owned(),
            label: format!("{name} of {source}"),
            context: Arc::clone(&self.context),
            handle: Mutex::new(Handle {
                function: handle,
                values: Vec::new(),
            }),
        });
        built.functions.insert(key, Arc::clone(&function));
        Ok(function)
    }

    fn build(&self, source: &ProgramSource) -> Result<Program, KernelError> {
        let text = match &source.code {
            ProgramCode::Source(text) => Self::head(source) + text,
            ProgramCode::SpirV(module) => return self.build_spirv(source, module),
        };
        let compile = || {
            let program = Program::of_source(&self.context, &text)
                .map_err(|code| self.refused(source, code.to_string()))?;
            self.compile(source, &program)?;
            Ok(program)
        };
        let Some(cache) = &self.cache else {
            return compile();
        };
        // A driver may reject a binary of another version of itself.
        let load = |binary: &[u8]| {
            let program = Program::of_binary(&self.context, self.facts.id, binary)?;
            program.build(self.facts.id, c"")?;
            Ok(program)
        };
        let (program, problem) = kept(cache, &self.key(&text), load, compile, Program::binary)?;
        match problem {
            Some(KeepingProblem::Rejected(code)) => debug!(
                target: targets::DEVICE,
                device = self.name,
                program = %source,
                %code,
                "the driver rejects its cached program; it is compiled again"
            ),
            Some(KeepingProblem::NotWritten(problem)) => warn!(
                target: targets::DEVICE,
                device = self.name,
                program = %source,
                problem,
                "a compiled program is not cached"
            ),
            None => {}
        }
        Ok(program)
    }

    fn build_spirv(&self, source: &ProgramSource, module: &[u8]) -> Result<Program, KernelError> {
        if !self.facts.takes_spirv {
            return Err(KernelError::Unimplemented(format!(
                "{source}: {} does not accept SPIR-V; pass the kernel as source, or use a driver that accepts SPIR-V",
                self.facts.description()
            )));
        }
        let program = Program::of_spirv(&self.context, module)
            .map_err(|code| self.refused(source, format!("the module is refused: {code}")))?;
        self.compile(source, &program)?;
        Ok(program)
    }

    fn compile(&self, source: &ProgramSource, program: &Program) -> Result<(), KernelError> {
        info!(target: targets::PROGRAM, device = self.name, program = %source, "compiling");
        let compiled = program.build(self.facts.id, c"");
        compiled.map_err(|code| {
            let log = program.log(self.facts.id);
            let log: String = log.trim().chars().take(LOG_CHARS_MAX).collect();
            self.refused(source, format!("{code}\n{log}"))
        })
    }

    fn refused(&self, source: &ProgramSource, message: String) -> KernelError {
        DeviceError::Build {
            device: self.name.clone(),
            program: source.to_string(),
            message,
        }
        .into()
    }

    /// Returns the lines before the source: its macros and the prelude.
    fn head(source: &ProgramSource) -> String {
        let mut head = String::new();
        for (name, value) in &source.defines {
            head += &format!("#define {name} {value}\n");
        }
        head + OPENCL_PRELUDE + "\n#line 1\n"
    }

    fn key(&self, text: &str) -> CacheKey {
        let facts = &self.facts;
        let identity = [
            facts.platform.as_str(),
            &facts.name,
            &facts.vendor,
            &facts.version,
            &facts.driver,
            text,
        ];
        let identity: Vec<&[u8]> = identity.iter().map(|part| part.as_bytes()).collect();
        CacheKey::new(CACHE_KIND, &identity)
    }
}

/// Why a program was compiled although it was kept, or why it was not kept.
#[derive(Debug, PartialEq, Eq)]
enum KeepingProblem {
    /// The driver rejects the kept binary.
    Rejected(ffi::Code),
    /// The driver gives no binary, or the cache takes none.
    NotWritten(String),
}

/// Loads a program from the cache, or compiles it and keeps its binary there.
///
/// # Errors
/// That of `compile`.
fn kept<P, E>(
    cache: &CacheFolder,
    key: &CacheKey,
    load: impl Fn(&[u8]) -> Result<P, ffi::Code>,
    compile: impl FnOnce() -> Result<P, E>,
    binary: impl Fn(&P) -> Result<Vec<u8>, ffi::Code>,
) -> Result<(P, Option<KeepingProblem>), E> {
    let loaded = cache.read(key).map(|binary| load(&binary));
    let mut problem = match loaded {
        Some(Ok(program)) => return Ok((program, None)),
        Some(Err(code)) => Some(KeepingProblem::Rejected(code)),
        None => None,
    };
    let program = compile()?;
    let written = binary(&program)
        .map_err(|code| code.to_string())
        .and_then(|binary| cache.write(key, &binary).map_err(|error| error.to_string()));
    if let Err(text) = written {
        problem = Some(KeepingProblem::NotWritten(text));
    }
    Ok((program, problem))
}

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Programs").field(&self.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use opencl3::error_codes::CL_INVALID_BINARY;

    use super::*;

    #[test]
    fn programs_are_kept_and_compiled_again_if_the_driver_rejects_them() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CacheFolder::open(folder.path()).unwrap();
        let key = CacheKey::new(CACHE_KIND, &[b"source"]);
        let n_compiled = Cell::new(0);
        // A program is the version of the driver that compiled it.
        let build = |driver: u8, gives: bool| {
            let load = |binary: &[u8]| match binary == [driver] {
                true => Ok(driver),
                false => Err(ffi::Code(CL_INVALID_BINARY)),
            };
            let compile = || {
                n_compiled.set(n_compiled.get() + 1);
                Ok::<_, ()>(driver)
            };
            let binary = |&program: &u8| match gives {
                true => Ok(vec![program]),
                false => Err(ffi::Code(CL_INVALID_BINARY)),
            };
            let built = kept(&cache, &key, load, compile, binary).unwrap();
            assert_eq!(built.0, driver);
            (n_compiled.get(), built.1)
        };
        let (n, problem) = build(1, false);
        assert_eq!(n, 1);
        assert!(
            matches!(problem, Some(KeepingProblem::NotWritten(_))),
            "{problem:?}"
        );
        assert_eq!(build(1, true), (2, None));
        assert_eq!(build(1, true), (2, None), "it is loaded");
        let rejected = Some(KeepingProblem::Rejected(ffi::Code(CL_INVALID_BINARY)));
        assert_eq!(build(2, true), (3, rejected));
        assert_eq!(build(2, true), (3, None), "the new one is kept");
        let refused = kept(
            &cache,
            &CacheKey::new(CACHE_KIND, &[b"other"]),
            |_| Ok(0),
            || Err::<u8, _>("refused"),
            |_| Ok(Vec::new()),
        );
        assert_eq!(refused.unwrap_err(), "refused");
    }
}
