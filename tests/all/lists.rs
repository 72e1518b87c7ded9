//! Lists, arrays and stacks of tensors, checks, variables, queues and sparse tensors: programs with
//! the results of TensorFlow.
//!
//! A program of the files `lists/*.txt` is a name after `==`, and one operation per line:
//!
//! ```text
//! name = Op argument.. ; attribute=value.. ; ^control..
//! ```
//!
//! An argument is a value (`name` or `name:slot`), several in braces, or a constant: `1` is int32,
//! `1.` float, `'a'` string; `i64[1]` and `i64:1` are int64; `empty[0,2]`, `empty32[0]` and
//! `empty64[0]` have no elements. A question mark before a constant makes it a feed of unknown
//! shape, which only kernels can check. Attributes in braces are lists. A line `once` says that a
//! second run of the session has other results. A line `>` is a fetch with its value; `!` is a part
//! of the error that the program ends with. With `!!`, TensorFlow does not refuse the program.

use std::collections::HashMap;

use placewright::builder::GraphBuilder;
use placewright::builder::Operation;
use placewright::builder::Value;
use placewright::candidates::Proposal;
use placewright::device::AllocatorAttributes;
use placewright::execute::RunOptions;
use placewright::graph::AttrValue;
use placewright::graph::Graph;
use placewright::session::Session;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;
use placewright::tensor::Tensor;

use crate::sample::cpus;

/// One program of the file.
#[derive(Default)]
struct Case<'a> {
    name: &'a str,
    lines: Vec<&'a str>,
    fetches: Vec<(&'a str, &'a str)>,
    refusal: Option<&'a str>,
    is_run_once: bool,
}

/// All files of programs.
const FILES: [&str; 4] = [
    include_str!("lists/cases.txt"),
    include_str!("lists/variables.txt"),
    include_str!("lists/queues.txt"),
    include_str!("lists/sparse.txt"),
];

fn cases() -> Vec<Case<'static>> {
    let mut cases: Vec<Case<'_>> = Vec::new();
    for line in FILES.iter().flat_map(|file| file.lines()) {
        if let Some(name) = line.strip_prefix("== ") {
            cases.push(Case {
                name,
                ..Case::default()
            });
            continue;
        }
        let case = cases.last_mut();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let case = case.expect("a program starts with its name");
        if let Some(fetch) = line.strip_prefix("> ") {
            case.fetches.push(fetch.split_once(' ').unwrap());
        } else if let Some(part) = line.strip_prefix("!! ").or(line.strip_prefix("! ")) {
            case.refusal = Some(part);
        } else if line == "once" {
            case.is_run_once = true;
        } else {
            case.lines.push(line);
        }
    }
    cases
}

/// Splits at spaces outside of brackets and quotes.
fn tokens(line: &str) -> Vec<&str> {
    let (mut depth, mut is_quoted, mut start) = (0, false, None);
    let mut tokens = Vec::new();
    for (at, character) in line.char_indices().chain([(line.len(), ' ')]) {
        match character {
            '\'' => is_quoted = !is_quoted,
            '[' | '{' if !is_quoted => depth += 1,
            ']' | '}' if !is_quoted => depth -= 1,
            _ => {}
        }
        if character == ' ' && depth == 0 && !is_quoted {
            if let Some(start) = start.take() {
                tokens.push(&line[start..at]);
            }
        } else {
            start.get_or_insert(at);
        }
    }
    tokens
}

/// Returns the constant that a token writes.
fn constant(token: &str) -> Tensor {
    for (prefix, dtype) in [
        ("empty[", DType::F32),
        ("empty32[", DType::I32),
        ("empty64[", DType::I64),
    ] {
        if let Some(dims) = token.strip_prefix(prefix) {
            let dims = dims.trim_end_matches(']').split(',');
            let dims: Vec<usize> = dims.map(|dim| dim.parse().unwrap()).collect();
            return Tensor::from_bytes(dtype, dims.as_slice().into(), &[]).unwrap();
        }
    }
    let wide = token.strip_prefix("i64");
    let token = wide.unwrap_or(token).trim_start_matches(':');
    let leaves: Vec<&str> = token.split(['[', ']', ' ']).collect();
    let leaves: Vec<&str> = leaves.into_iter().filter(|leaf| !leaf.is_empty()).collect();
    // The constants are vectors, matrices and scalars.
    let n_rows = token.matches('[').count();
    let dims = match n_rows {
        0 => vec![],
        1 => vec![leaves.len()],
        _ => vec![n_rows - 1, leaves.len() / (n_rows - 1)],
    };
    let dims = dims.as_slice();
    let first = leaves.first().copied().unwrap_or("0");
    if first.starts_with('\'') {
        let strings = leaves
            .iter()
            .map(|leaf| leaf.trim_matches('\'').as_bytes().into());
        return Tensor::from_strings(dims.into(), strings.collect()).unwrap();
    }
    if first == "true" || first == "false" {
        let truths: Vec<bool> = leaves.iter().map(|&leaf| leaf == "true").collect();
        return Tensor::from_bools(dims, &truths).unwrap();
    }
    if first.contains('.') {
        let floats = leaves
            .iter()
            .map(|leaf| leaf.trim_end_matches('.').parse().unwrap());
        return Tensor::from_values::<f32>(dims, &floats.collect::<Vec<_>>()).unwrap();
    }
    let numbers: Vec<i64> = leaves.iter().map(|leaf| leaf.parse().unwrap()).collect();
    if wide.is_some() {
        return Tensor::from_values(dims, &numbers).unwrap();
    }
    let numbers: Vec<i32> = numbers.into_iter().map(|n| n.try_into().unwrap()).collect();
    Tensor::from_values(dims, &numbers).unwrap()
}

fn attr(text: &str) -> AttrValue {
    if let Some(list) = text.strip_prefix('{') {
        let items = tokens(list.trim_end_matches('}'));
        return AttrValue::List(items.into_iter().map(attr).collect());
    }
    if let Some(dims) = text.strip_prefix('[') {
        let dims = dims.trim_end_matches(']').split(',');
        let dims = dims
            .filter(|dim| !dim.is_empty())
            .map(|dim| dim.parse().ok());
        return dims.collect::<PartialShape>().into();
    }
    if let Some(text) = text.strip_prefix('\'') {
        return text.trim_end_matches('\'').into();
    }
    if let Some(dtype) = DType::from_name(text) {
        return dtype.into();
    }
    match text {
        "true" | "false" => (text == "true").into(),
        number => number.parse::<i64>().unwrap().into(),
    }
}

/// A graph under construction.
#[derive(Default)]
struct Program {
    /// Operations on lists, which are on one device after the other. Arrays and stacks are
    /// resources, which all of their operations share.
    devices: Vec<(String, u32)>,
    values: HashMap<String, Operation>,
    feeds: Vec<(String, Tensor)>,
}

impl Program {
    fn value(&mut self, b: &GraphBuilder, token: &str) -> Result<Value, String> {
        let (name, slot) = token.split_once(':').unwrap_or((token, "0"));
        if let Some(&operation) = self.values.get(name) {
            return Ok(b.output(operation, slot.parse().unwrap()).unwrap());
        }
        let Some(fed) = token.strip_prefix('?') else {
            return b
                .tensor(&constant(token))
                .map_err(|error| error.to_string());
        };
        let tensor = constant(fed);
        let name = format!("feed{}", self.feeds.len());
        let feed = b.op("Placeholder").name(&name);
        let feed = feed.attr("dtype", tensor.dtype());
        let feed = feed.attr("shape", PartialShape::unknown()).value();
        self.feeds.push((format!("{name}:0"), tensor));
        feed.map_err(|error| error.to_string())
    }

    fn add(&mut self, b: &GraphBuilder, line: &str) -> Result<(), String> {
        let (name, rest) = line.split_once(" = ").unwrap();
        let mut parts = rest.split(" ;");
        let call = tokens(parts.next().unwrap());
        let attrs = tokens(parts.next().unwrap_or_default());
        let controls = tokens(parts.next().unwrap_or_default());
        let (op, arguments) = call.split_first().unwrap();
        let mut operands = Vec::new();
        for &argument in arguments {
            let list = argument
                .strip_prefix('{')
                .map(|list| list.trim_end_matches('}'));
            let items = list.map_or_else(|| vec![argument], tokens);
            let values = items.into_iter().map(|item| self.value(b, item));
            operands.push((list.is_some(), values.collect::<Result<Vec<_>, _>>()?));
        }
        if op.contains("TensorList") {
            let number = u32::try_from(self.values.len()).unwrap();
            self.devices.push((name.to_owned(), number));
        }
        let mut operation = b.op(op).name(name);
        for (is_list, values) in operands {
            operation = match is_list {
                true => operation.inputs(values),
                false => operation.input(values[0]),
            };
        }
        for pair in attrs {
            let (name, value) = pair.split_once('=').unwrap();
            operation = operation.attr(name, attr(value));
        }
        for control in controls {
            operation = operation.control(self.values[control.trim_start_matches('^')]);
        }
        let operation = operation.finish().map_err(|error| error.to_string())?;
        self.values.insert(name.to_owned(), operation);
        Ok(())
    }
}

/// Writes type, shape and elements.
fn show(tensor: &Tensor) -> String {
    fn numbers<T: placewright::tensor::Element + ToString>(tensor: &Tensor) -> Vec<String> {
        tensor
            .as_slice::<T>()
            .unwrap()
            .iter()
            .map(T::to_string)
            .collect()
    }
    let elements = match tensor.dtype() {
        DType::F32 => numbers::<f32>(tensor),
        DType::I32 => numbers::<i32>(tensor),
        DType::I64 => numbers::<i64>(tensor),
        DType::Bool => tensor
            .as_bools()
            .unwrap()
            .iter()
            .map(u8::to_string)
            .collect(),
        DType::String => {
            let strings = tensor.as_strings().unwrap().iter();
            let strings = strings.map(|string| String::from_utf8_lossy(string).into_owned());
            // `_` is the empty string.
            let strings = strings.map(|string| {
                if string.is_empty() {
                    "_".to_owned()
                } else {
                    string
                }
            });
            strings.collect()
        }
        other => panic!("a case fetches {other}"),
    };
    let text = format!(
        "{} {}: {}",
        tensor.dtype(),
        tensor.shape(),
        elements.join(" ")
    );
    text.trim_end().to_owned()
}

/// Returns the graph of a case, or the reason why it cannot be built.
fn built(case: &Case<'_>) -> Result<(Graph, Program), String> {
    let b = GraphBuilder::new("lists");
    let mut program = Program::default();
    for line in &case.lines {
        program.add(&b, line)?;
    }
    Ok((b.finish(), program))
}

/// Returns the fetched values as text, or the error.
fn outcome(case: &Case<'_>, n_cpus: u32) -> Result<Vec<String>, String> {
    let (graph, program) = built(case)?;
    let last = case.lines.last().unwrap().split_once(" = ").unwrap().0;
    // A proposal, because compiling a policy for each program takes most of the time.
    let mut devices = vec![0; graph.n_nodes()];
    for (name, number) in &program.devices {
        devices[graph.find_node(name).unwrap().index()] = number % n_cpus;
    }
    let session = Session::builder()
        .with_graph(graph)
        .with_device_options(cpus(n_cpus))
        .with_proposal(Proposal {
            devices,
            ..Proposal::default()
        })
        .build()
        .map_err(|error| error.to_string())?;
    let feeds: Vec<(&str, Tensor)> = program
        .feeds
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor.clone()))
        .collect();
    let tensor_name = |name: &str| match name.contains(':') {
        true => name.to_owned(),
        false => format!("{name}:0"),
    };
    let fetches = case.fetches.iter().map(|(name, _)| tensor_name(name));
    let fetches: Vec<String> = fetches.collect();
    let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
    let targets: &[&str] = if case.refusal.is_some() { &[last] } else { &[] };
    // The second run finds nothing of the first one.
    let mut found = Vec::new();
    let n_runs = if case.is_run_once { 1 } else { 2 };
    for _ in 0..n_runs {
        let tensors = session.run_with(&feeds, &fetches, targets, &RunOptions::default());
        let tensors = tensors.map_err(|error| error.to_string())?;
        found = tensors.iter().map(show).collect();
    }
    Ok(found)
}

fn check(case: &Case<'_>, n_cpus: u32) -> Result<(), String> {
    let found = outcome(case, n_cpus);
    match (found, case.refusal) {
        (Err(error), Some(part)) if error.contains(part) => Ok(()),
        (Err(error), expected) => Err(format!("refused with `{error}`, expected {expected:?}")),
        (Ok(found), Some(part)) => Err(format!("gave {found:?}, expected the refusal `{part}`")),
        (Ok(found), None) => {
            let expected: Vec<&str> = case.fetches.iter().map(|(_, value)| *value).collect();
            if found == expected {
                return Ok(());
            }
            Err(format!("gave {found:?}, expected {expected:?}"))
        }
    }
}

/// One line per row: a program of one line behind those of `LISTS`, and the shape of its outputs.
#[test]
fn shapes_follow_from_those_of_the_elements() {
    const LISTS: &[&str] = &[
        "l = TensorListReserve [-1 2] 3 ; element_dtype=float",
        "u = TensorListReserve -1 3 ; element_dtype=float",
        "a = TensorArrayV3 3 ; dtype=float element_shape=[?,2]",
        "f = TensorListFromTensor [[1. 2.]] [2]",
        "s = TensorListSplit [[1. 2.][3. 4.]] [-1 2] i64[1 1]",
    ];
    for (line, expected) in [
        (
            "x = TensorListGetItem l 0 -1 ; element_dtype=float",
            "[?,2]",
        ),
        (
            "x = TensorListGetItem l 0 [3 2] ; element_dtype=float",
            "[3,2]",
        ),
        (
            "x = TensorListGetItem u 0 -1 ; element_dtype=float",
            "<unknown>",
        ),
        ("x = TensorListGetItem f 0 -1 ; element_dtype=float", "[2]"),
        (
            "x = TensorListGetItem s 0 -1 ; element_dtype=float",
            "[?,2]",
        ),
        ("x = TensorListStack l -1 ; element_dtype=float", "[?,?,2]"),
        (
            "x = TensorListStack l -1 ; element_dtype=float num_elements=3",
            "[3,?,2]",
        ),
        (
            "x = TensorListGather l [0 1] [3 2] ; element_dtype=float",
            "[2,3,2]",
        ),
        (
            "x = TensorListConcatV2 l -1 i64[] ; element_dtype=float",
            "[?,2]",
        ),
        ("x = TensorListConcat l ; element_dtype=float", "[?,2]"),
        (
            "x = TensorListConcat u ; element_dtype=float element_shape=[4,3]",
            "[?,3]",
        ),
        ("x = TensorListElementShape l ; shape_type=int32", "[2]"),
        (
            "x = TensorListElementShape u ; shape_type=int32",
            "<unknown>",
        ),
        ("x = TensorListLength l", "[]"),
        ("x = TensorArrayReadV3 a 0 a:1 ; dtype=float", "[?,2]"),
        (
            "x = TensorArrayGatherV3 a [0 1] a:1 ; dtype=float element_shape=[3,?]",
            "[2,3,2]",
        ),
        (
            "x = TensorArrayConcatV3 a a:1 ; dtype=float element_shape_except0=[2]",
            "[?,2]",
        ),
    ] {
        let b = GraphBuilder::new("shapes");
        let mut program = Program::default();
        for line in LISTS.iter().chain([&line]) {
            program
                .add(&b, line)
                .unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        let output: Value = b.output(program.values["x"], 0).unwrap();
        assert_eq!(b.shape(output).unwrap().to_string(), expected, "{line}");
    }
    for (line, part) in [
        (
            "x = TensorListGetItem l 0 -1 ; element_dtype=int32",
            "the op is for int32",
        ),
        (
            "x = TensorListGetItem l [0] -1 ; element_dtype=float",
            "rank 0",
        ),
        (
            "x = TensorListGetItem l 0 [3 3] ; element_dtype=float",
            "element shapes must agree",
        ),
        (
            "x = TensorListSetItem l 0 [1. 2.]",
            "element shapes must agree",
        ),
        (
            "x = TensorListPushBack l [1. 2.]",
            "element shapes must agree",
        ),
        ("x = TensorListPushBack l 1", "the op is for int32"),
        (
            "x = TensorListFromTensor [[1. 2.]] [3]",
            "shapes of element and row must agree",
        ),
        ("x = TensorListFromTensor 1. -1", "rank 1 or more"),
        (
            "x = TensorListSplit [[1. 2.]] [-1 3] i64[1]",
            "shapes of rows must agree",
        ),
        (
            "x = TensorListScatterV2 [1. 2.] [0] [] -1",
            "numbers of rows and indices must agree",
        ),
        (
            "x = TensorListScatterIntoExistingList f [[1. 2. 3.]] [0]",
            "element and row must agree",
        ),
        ("x = TensorListPushBackBatch l [[1. 2.]]", "rank 1"),
        (
            "x = EmptyTensorList 3 -1 ; element_dtype=float",
            "it is the scalar 3",
        ),
        (
            "x = TensorArrayWriteV3 a 0 [1.] a:1",
            "shapes of element and value must agree",
        ),
        (
            "x = TensorArrayScatterV3 a [0 1] [[1. 2.]] a:1",
            "rows and indices must agree",
        ),
    ] {
        let b = GraphBuilder::new("refused");
        let mut program = Program::default();
        for line in LISTS {
            program.add(&b, line).unwrap();
        }
        let error = program.add(&b, line).unwrap_err();
        assert!(error.contains(part), "{line}: {error}");
    }
}

/// Returns the bytes that a session's first device holds.
fn in_use_bytes(session: &Session) -> u64 {
    let devices = session.devices();
    let (_, device) = devices.iter().next().unwrap();
    device
        .allocator(AllocatorAttributes::default())
        .stats()
        .in_use_bytes
}

#[test]
fn elements_count_against_the_device_and_end_with_the_run() {
    const N: usize = 1 << 20;
    let kept = [
        "x = Placeholder ; dtype=float",
        "y = Neg x",
        "l = EmptyTensorList -1 -1 ; element_dtype=float",
        "m = TensorListPushBack l y",
        "a = TensorArrayV3 1 ; dtype=float",
        "w = TensorArrayWriteV3 a 0 y a:1",
        "s = StackV2 -1 ; elem_type=float",
        "p = StackPushV2 s y",
    ];
    // A run that ends, and one that fails while the elements are there.
    for (last, fails) in [
        ("e = TensorListLength m ; ; ^w ^p", false),
        (
            "e = TensorListGetItem m 7 -1 ; element_dtype=float ; ^w ^p",
            true,
        ),
    ] {
        let b = GraphBuilder::new("memory");
        let mut program = Program::default();
        for line in kept.iter().chain([&last]) {
            program.add(&b, line).unwrap();
        }
        let session = Session::builder()
            .with_graph(b.finish())
            .with_device_options(cpus(1))
            .build()
            .unwrap();
        let x = Tensor::from_values([N], &vec![1.0f32; N]).unwrap();
        for _ in 0..10 {
            let result = session.run(&[("x:0", x.clone())], &["e:0"]);
            assert_eq!(result.is_err(), fails, "{result:?}");
        }
        // At most the memory of the next run, for the feed and its negation. Each run had three
        // more tensors of this size.
        let held = in_use_bytes(&session);
        assert!(held < 3 * 4 * N as u64, "{last}: {held} bytes");
        let devices = session.devices();
        let (_, device) = devices.iter().next().unwrap();
        assert!(device.resource_manager().unwrap().describe().is_empty());
    }
}

#[test]
fn a_list_of_tensors_that_do_not_fit_the_device_is_out_of_memory() {
    const N: usize = 1 << 18;
    let mut lines = vec!["l0 = EmptyTensorList -1 -1 ; element_dtype=float".to_owned()];
    for index in 0..16 {
        lines.push(format!("f{index} = Fill [{N}] 1."));
        lines.push(format!(
            "l{} = TensorListPushBack l{index} f{index}",
            index + 1
        ));
    }
    lines.push("n = TensorListLength l16".to_owned());
    let run = |capacity: u64| {
        let b = GraphBuilder::new("full");
        let mut program = Program::default();
        for line in &lines {
            program.add(&b, line).unwrap();
        }
        let mut options = cpus(1);
        options.memory_bytes.insert("CPU:0".to_owned(), capacity);
        let session = Session::builder()
            .with_graph(b.finish())
            .with_device_options(options);
        let session = session.build().map_err(|error| error.to_string())?;
        session
            .run(&[], &["n:0"])
            .map_err(|error| error.to_string())
    };
    let element = 4 * N as u64;
    assert_eq!(show(&run(64 * element).unwrap()[0]), "int32 []: 16");
    let error = run(12 * element).unwrap_err();
    assert!(error.contains("out of memory"), "{error}");
}

#[test]
fn lists_in_lists_have_a_limit() {
    let program = |depth: usize| {
        let b = GraphBuilder::new("nested");
        let mut program = Program::default();
        program
            .add(&b, "l0 = TensorListReserve [] 1 ; element_dtype=float")
            .unwrap();
        for index in 1..depth {
            for line in [
                format!("e{index} = EmptyTensorList [] -1 ; element_dtype=variant"),
                format!("l{index} = TensorListPushBack e{index} l{}", index - 1),
            ] {
                program.add(&b, &line).unwrap();
            }
        }
        program
            .add(&b, &format!("n = TensorListLength l{}", depth - 1))
            .unwrap();
        let session = Session::builder()
            .with_graph(b.finish())
            .with_device_options(cpus(1));
        let found = session.build().unwrap().run(&[], &["n:0"]);
        found.map_err(|error| error.to_string())
    };
    assert_eq!(show(&program(64).unwrap()[0]), "int32 []: 1");
    let error = program(65).unwrap_err();
    assert!(
        error.contains("lists cannot be nested more than 64 deep"),
        "{error}"
    );
}

#[test]
fn programs_give_tensorflows_values_and_refusals() {
    let cases = cases();
    assert!(cases.len() > 150);
    let problems = cases.iter().flat_map(|case| {
        [1, 3].map(|n_cpus| {
            let problem = check(case, n_cpus).err()?;
            Some(format!("{} ({n_cpus} devices): {problem}", case.name))
        })
    });
    let problems: Vec<String> = problems.flatten().collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
