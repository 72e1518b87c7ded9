//! The limits of a policy's sandbox, in one place.

use std::time::Duration;

use placewright_guest::source::LogLevel;

/// The limits of one policy's sandbox. Each policy runs in its own store, so they apply per policy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyLimits {
    /// Bytes of the file. A policy in Rust has some 100 KB, one in JavaScript 12 MB, one in Python
    /// 18 MB.
    pub wasm_bytes: usize,
    /// Functions of all modules in the file. Small functions cost a compiler more than their bytes
    /// suggest.
    pub functions: usize,
    /// Modules and components in the file. A policy in Python has some 40.
    pub parts: usize,
    /// Depth of components within components. Tools make two levels, compositions of compositions
    /// some more.
    pub nesting: usize,
    /// Types that are declared within types, as a world declares its interfaces. The parser
    /// recurses into them.
    pub nested_types: usize,
    /// Definitions (types, imports, exports, instances, aliases, arguments) of the file and of all
    /// component instances, counted once per instantiation: parsers and compilers keep an entry
    /// for each.
    pub items: usize,
    /// Functions of the component model that are lowered to core functions, counted in the same
    /// way. Each is compiled.
    pub lowered_functions: usize,
    /// Estimated effort of compiling one function: about one microsecond of one core and 300 bytes
    /// per unit. The largest function of `CPython` takes one million.
    pub function_effort: usize,
    /// Estimated effort of compiling all functions. A policy in Rust takes some 300,000, one in
    /// Python 42 million.
    pub effort: usize,
    /// Longest time of compiling by a [`CompilerProcess`](super::CompilerProcess), which is then
    /// ended. A compiler in the app's own process cannot be ended: only the limits above bound it.
    pub compile_deadline: Duration,
    /// Memory of that process, on Linux.
    pub compile_memory_bytes: usize,
    /// Bytes of all linear memories together. One million nodes need about 60 MB; a search that
    /// keeps many plans, or a guest in Python, needs more. Address space is reserved in any case:
    /// a higher limit costs nothing until a policy uses it.
    pub memory_bytes: usize,
    /// Elements per table (16 bytes each on the host). Tables contain function pointers: a program
    /// with a thousand is large.
    pub table_elements: usize,
    /// Core instances of one component. Guests in Rust, C and JavaScript have a handful, guests in
    /// Python more than 16.
    pub instances: usize,
    /// Tables of all instances together.
    pub tables: usize,
    /// Linear memories of all instances together.
    pub memories: usize,
    /// Stack of wasm frames, in bytes. `place` and `begin` run on a stack of known size: on the
    /// main thread, or on a new thread, which takes some 50 us. `pick`, `pick-batch`,
    /// `observe` and `end` run on the caller's thread, which must have this and
    /// [`Self::STACK_BYTES_HOST`] left; above [`Self::STACK_BYTES_INLINE`] they get a new
    /// thread too. So raise it for recursive policies, not for online ones.
    pub stack_bytes: usize,
    /// Bytes that one call may pass from the guest to the host at once. A plan of one million
    /// nodes has 4 MB. Without it, a policy could make the host allocate memory that the guest
    /// only describes.
    pub hostcall_bytes: usize,
    /// Handles of host resources that a policy may hold at one time.
    pub component_handles: usize,
    /// Longest wall-clock time of one `place` or `begin`. Plans that are offered before it ends
    /// count. On a slow or busy machine a search makes less progress, so plans may differ: see
    /// [`Self::fuel`].
    pub place_deadline: Duration,
    /// Longest time of one `pick`, `pick-batch`, `observe` or `end`. These calls are too short to
    /// read the clock at each, so one that does not end may take twice as long.
    pub pick_deadline: Duration,
    /// Longest time of `describe`, `settings` and `configure`, each.
    pub configure_deadline: Duration,
    /// The fuel of each call, or `None` if calls end by the deadlines above.
    ///
    /// Wasm instructions use about one unit each. Host calls are charged separately, up to the
    /// same limit: by call, by the bytes passed, and evaluations of the plan (`makespan`) by
    /// the size of the graph. With fuel the deadlines are off, and equal policy, graph,
    /// devices, rates, settings and fuel give equal plans on every machine, byte for byte,
    /// also if a search is stopped. (The rates and memory of devices come from the machine
    /// unless they are set.) Fuel costs about as much speed as deadlines do. It does not limit
    /// seconds.
    pub fuel: Option<u64>,
    /// Messages kept per call. The rest is counted.
    pub log_messages: usize,
    /// Bytes kept of one message, and of each other string (descriptions, reasons). The rest is
    /// truncated.
    pub log_message_bytes: usize,
    /// Least severe level that is kept. Policies can read it, so that they need not format the
    /// rest.
    pub log_level: LogLevel,
    /// Bytes of explanations kept per call, as a report shows them: the reason for each of its
    /// nodes, and 32 bytes besides. The rest is counted.
    pub explanation_bytes: usize,
    /// Metrics kept per call. The rest is counted.
    pub metrics: usize,
    /// Settings that a policy may have.
    pub settings: usize,
}

impl Default for PolicyLimits {
    fn default() -> Self {
        Self {
            wasm_bytes: 64 << 20,
            functions: 200_000,
            parts: 1000,
            nesting: 16,
            nested_types: 256,
            items: 100_000,
            lowered_functions: 1000,
            function_effort: 8_000_000,
            effort: 120_000_000,
            compile_deadline: Duration::from_secs(60),
            compile_memory_bytes: 2 << 30,
            memory_bytes: 1 << 30,
            table_elements: 10_000,
            instances: 64,
            tables: 64,
            memories: 16,
            stack_bytes: 512 << 10,
            hostcall_bytes: 64 << 20,
            component_handles: 1024,
            place_deadline: Duration::from_secs(30),
            pick_deadline: Duration::from_millis(10),
            configure_deadline: Duration::from_secs(1),
            fuel: None,
            log_messages: 256,
            log_message_bytes: 4096,
            log_level: LogLevel::Info,
            explanation_bytes: 64 << 20,
            metrics: 64,
            settings: 1000,
        }
    }
}

impl PolicyLimits {
    /// Returns the limits that decide whether a file is compiled.
    pub(super) fn of_files(&self) -> [usize; 13] {
        [
            self.wasm_bytes,
            self.functions,
            self.parts,
            self.nesting,
            self.nested_types,
            self.items,
            self.lowered_functions,
            self.function_effort,
            self.effort,
            self.table_elements,
            self.instances,
            self.tables,
            self.memories,
        ]
    }

    /// The largest [`Self::stack_bytes`] with which the short calls run on the caller's thread.
    /// Threads of the standard library and of rayon have 2 MiB.
    pub const STACK_BYTES_INLINE: usize = 1 << 20;

    /// The stack that the host's frames need besides the guest's. If the caller's thread has less
    /// than this and [`Self::stack_bytes`] together, an online policy that recurses too deep ends
    /// the process.
    pub const STACK_BYTES_HOST: usize = 256 << 10;

    /// Sets [`Self::wasm_bytes`].
    #[must_use]
    pub fn with_wasm_bytes(mut self, wasm_bytes: usize) -> Self {
        self.wasm_bytes = wasm_bytes;
        self
    }

    /// Sets [`Self::functions`].
    #[must_use]
    pub fn with_functions(mut self, functions: usize) -> Self {
        self.functions = functions;
        self
    }

    /// Sets [`Self::parts`].
    #[must_use]
    pub fn with_parts(mut self, parts: usize) -> Self {
        self.parts = parts;
        self
    }

    /// Sets [`Self::nesting`].
    #[must_use]
    pub fn with_nesting(mut self, nesting: usize) -> Self {
        self.nesting = nesting;
        self
    }

    /// Sets [`Self::nested_types`].
    #[must_use]
    pub fn with_nested_types(mut self, nested_types: usize) -> Self {
        self.nested_types = nested_types;
        self
    }

    /// Sets [`Self::items`].
    #[must_use]
    pub fn with_items(mut self, items: usize) -> Self {
        self.items = items;
        self
    }

    /// Sets [`Self::lowered_functions`].
    #[must_use]
    pub fn with_lowered_functions(mut self, lowered_functions: usize) -> Self {
        self.lowered_functions = lowered_functions;
        self
    }

    /// Sets [`Self::function_effort`].
    #[must_use]
    pub fn with_function_effort(mut self, function_effort: usize) -> Self {
        self.function_effort = function_effort;
        self
    }

    /// Sets [`Self::effort`].
    #[must_use]
    pub fn with_effort(mut self, effort: usize) -> Self {
        self.effort = effort;
        self
    }

    /// Sets [`Self::compile_deadline`].
    #[must_use]
    pub fn with_compile_deadline(mut self, compile_deadline: Duration) -> Self {
        self.compile_deadline = compile_deadline;
        self
    }

    /// Sets [`Self::compile_memory_bytes`].
    #[must_use]
    pub fn with_compile_memory_bytes(mut self, compile_memory_bytes: usize) -> Self {
        self.compile_memory_bytes = compile_memory_bytes;
        self
    }

    /// Sets [`Self::memory_bytes`].
    #[must_use]
    pub fn with_memory_bytes(mut self, memory_bytes: usize) -> Self {
        self.memory_bytes = memory_bytes;
        self
    }

    /// Sets [`Self::table_elements`].
    #[must_use]
    pub fn with_table_elements(mut self, table_elements: usize) -> Self {
        self.table_elements = table_elements;
        self
    }

    /// Sets [`Self::instances`].
    #[must_use]
    pub fn with_instances(mut self, instances: usize) -> Self {
        self.instances = instances;
        self
    }

    /// Sets [`Self::tables`].
    #[must_use]
    pub fn with_tables(mut self, tables: usize) -> Self {
        self.tables = tables;
        self
    }

    /// Sets [`Self::memories`].
    #[must_use]
    pub fn with_memories(mut self, memories: usize) -> Self {
        self.memories = memories;
        self
    }

    /// Sets [`Self::stack_bytes`].
    #[must_use]
    pub fn with_stack_bytes(mut self, stack_bytes: usize) -> Self {
        self.stack_bytes = stack_bytes;
        self
    }

    /// Sets [`Self::hostcall_bytes`].
    #[must_use]
    pub fn with_hostcall_bytes(mut self, hostcall_bytes: usize) -> Self {
        self.hostcall_bytes = hostcall_bytes;
        self
    }

    /// Sets [`Self::component_handles`].
    #[must_use]
    pub fn with_component_handles(mut self, component_handles: usize) -> Self {
        self.component_handles = component_handles;
        self
    }

    /// Sets [`Self::place_deadline`].
    #[must_use]
    pub fn with_place_deadline(mut self, place_deadline: Duration) -> Self {
        self.place_deadline = place_deadline;
        self
    }

    /// Sets [`Self::pick_deadline`].
    #[must_use]
    pub fn with_pick_deadline(mut self, pick_deadline: Duration) -> Self {
        self.pick_deadline = pick_deadline;
        self
    }

    /// Sets [`Self::configure_deadline`].
    #[must_use]
    pub fn with_configure_deadline(mut self, configure_deadline: Duration) -> Self {
        self.configure_deadline = configure_deadline;
        self
    }

    /// Sets [`Self::fuel`].
    #[must_use]
    pub fn with_fuel(mut self, fuel: Option<u64>) -> Self {
        self.fuel = fuel;
        self
    }

    /// Sets [`Self::log_messages`].
    #[must_use]
    pub fn with_log_messages(mut self, log_messages: usize) -> Self {
        self.log_messages = log_messages;
        self
    }

    /// Sets [`Self::log_message_bytes`].
    #[must_use]
    pub fn with_log_message_bytes(mut self, log_message_bytes: usize) -> Self {
        self.log_message_bytes = log_message_bytes;
        self
    }

    /// Sets [`Self::explanation_bytes`].
    #[must_use]
    pub fn with_explanation_bytes(mut self, explanation_bytes: usize) -> Self {
        self.explanation_bytes = explanation_bytes;
        self
    }

    /// Sets [`Self::metrics`].
    #[must_use]
    pub fn with_metrics(mut self, metrics: usize) -> Self {
        self.metrics = metrics;
        self
    }

    /// Sets [`Self::settings`].
    #[must_use]
    pub fn with_settings(mut self, settings: usize) -> Self {
        self.settings = settings;
        self
    }

    /// Sets [`Self::log_level`].
    #[must_use]
    pub fn with_log_level(mut self, log_level: LogLevel) -> Self {
        self.log_level = log_level;
        self
    }
}
