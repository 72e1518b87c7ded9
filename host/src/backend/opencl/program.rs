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
        let key = self.key(&text);
        let cached = self.cache.as_ref().and_then(|cache| cache.read(&key));
        if let Some(binary) = cached {
            match self.load(&binary) {
                Ok(program) => return Ok(program),
                Err(code) => debug!(
                    target: targets::DEVICE,
                    device = self.name,
                    program = %source,
                    %code,
                    "the driver rejects its cached program; it is compiled again"
                ),
            }
        }
        let program = Program::of_source(&self.context, &text)
            .map_err(|code| self.refused(source, code.to_string()))?;
        self.compile(source, &program)?;
        if let Some(cache) = &self.cache {
            let binary = program.binary().map_err(|code| code.to_string());
            let kept = binary.and_then(|binary| {
                cache
                    .write(&key, &binary)
                    .map_err(|error| error.to_string())
            });
            if let Err(problem) = kept {
                warn!(
                    target: targets::DEVICE,
                    device = self.name,
                    program = %source,
                    problem,
                    "a compiled program is not cached"
                );
            }
        }
        Ok(program)
    }

    /// Builds a program of its compiled form. A driver may reject that of another version of itself.
    fn load(&self, binary: &[u8]) -> Result<Program, ffi::Code> {
        let program = Program::of_binary(&self.context, self.facts.id, binary)?;
        program.build(self.facts.id, c"")?;
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

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Programs").field(&self.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::backend::opencl::discover;

    /// With the first device of any driver, also one that keeps programs itself.
    #[test]
    fn compiled_programs_are_kept_and_damaged_ones_are_compiled_again() {
        let Some(facts) = discover::devices()
            .ok()
            .and_then(|found| found.into_iter().next())
        else {
            return;
        };
        let facts = Arc::new(facts);
        let context = Arc::new(Context::new(&[facts.id]).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let source =
            ProgramSource::of_source("kept.c", "KERNEL void kept(GLOBAL u32 *x) { x[0] = 1; }");
        let compile = || {
            let cache = Some(Arc::new(CacheFolder::open(folder.path()).unwrap()));
            let programs = Programs::new("SYCL:0", Arc::clone(&facts), Arc::clone(&context), cache);
            programs.function(&source, "kept").unwrap();
            let entries = fs::read_dir(folder.path()).unwrap();
            let paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
            assert_eq!(paths.len(), 1, "{paths:?}");
            paths[0].clone()
        };
        let kept = compile();
        let first = fs::metadata(&kept).unwrap().modified().unwrap();
        compile();
        assert_eq!(fs::metadata(&kept).unwrap().modified().unwrap(), first);
        let damaged = b"no program";
        fs::write(&kept, damaged).unwrap();
        // Drivers do not compile to the same bytes each time.
        assert!(fs::read(compile()).unwrap().len() > damaged.len());
    }
}
