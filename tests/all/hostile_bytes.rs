//! Small files that expand to gigabytes, or to hours of compilation: a limit on their structure
//! rejects each of them before it is compiled.

use std::fmt::Write;

use placewright::policy::Fault;
use placewright::policy::PolicyEngine;
use placewright::policy::PolicyErrorKind;
use placewright::policy::PolicyLimits;

/// Makes a component look like a policy.
const EXPORTS: &str = r#" (instance $i)
    (export "placewright:policy/lifecycle@0.1.0" (instance $i))
    (export "placewright:policy/whole-graph@0.1.0" (instance $i))"#;

/// Loads a policy that must be rejected as too complex; returns the limit that it exceeds.
fn refused(text: &str) -> &'static str {
    let body = text.strip_suffix(')').unwrap();
    let bytes = wat::parse_str(format!("{body}{EXPORTS})")).unwrap();
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let error = engine.load("hostile", &bytes, &[]).unwrap_err();
    assert_eq!(error.fault(), Fault::Guest);
    let text = error.to_string();
    let PolicyErrorKind::TooComplex {
        what, found, limit, ..
    } = &*error.kind
    else {
        panic!("{text}");
    };
    assert!(found > &0 && text.contains(&limit.to_string()), "{text}");
    // The flag that raises the limit.
    assert!(text.contains(&what.replace('_', "-")), "{text}");
    what
}

#[test]
fn instances_that_double() {
    let mut text = "(component (component $c0".to_owned();
    text += " (core module $m (func)) (core instance (instantiate $m)))";
    for level in 1..=26 {
        let before = level - 1;
        write!(
            text,
            " (component $c{level} (alias outer 1 $c{before} (component $c))
                (instance (instantiate $c)) (instance (instantiate $c)))"
        )
        .unwrap();
    }
    text += " (instance (instantiate $c26)))";
    let what = refused(&text);
    assert!(["instances", "items"].contains(&what), "{what}");
}

/// Each lowered function moves 400,000 fields, for a few bytes of the file.
#[test]
fn adapters_of_large_types() {
    let text = format!(
        r#"(component
            (type $row (tuple {})) (type $table (list (tuple {})))
            (import "placewright:policy/log@0.1.0" (func $f (param "x" $table)))
            (component $c
                (alias outer 1 $table (type $table))
                (import "f" (func $f (param "x" $table)))
                (core module $m (memory (export "m") 1))
                (core instance $i (instantiate $m))
                (core func (canon lower (func $f) (memory (core memory $i "m")))))
            {})"#,
        "u8 ".repeat(1000),
        "$row ".repeat(400),
        r#"(instance (instantiate $c (with "f" (func $f))))"#.repeat(28)
    );
    assert_eq!(refused(&text), "effort");
}

/// Each copies memory as a whole: a call, a check and a trap.
#[test]
fn operators_on_whole_memories() {
    let copies = "(memory.copy (local.get 0) (local.get 0) (local.get 0))".repeat(60_000);
    let text = format!("(component (core module (memory 1) (func (param i32) {copies})))");
    assert_eq!(refused(&text), "function_effort");
}

/// The arguments of an instance are compared with its imports, once per instance.
#[test]
fn instances_with_large_imports() {
    let mut text = String::from("(component (type $t (instance");
    for index in 0..20_000 {
        write!(text, " (export \"e{index}\" (func))").unwrap();
    }
    let instances = |name: char| format!("(instance (instantiate ${name}))").repeat(100);
    write!(
        text,
        r#"))
        (component $c (alias outer 1 $t (type $t)) (import "i" (instance (type $t))))
        (component $d (alias outer 1 $c (component $c)) {})
        {})"#,
        instances('c'),
        instances('d')
    )
    .unwrap();
    assert_eq!(refused(&text), "effort");
}

/// Types by index: aliases, imports and nested types count like the type they refer to.
#[test]
fn types_are_as_large_as_the_types_they_refer_to() {
    let text = format!(
        r#"(component
            (type $i (instance
                (type $row (tuple {}))
                (export "row" (type $same (eq $row)))
                (type $outer (component
                    (alias outer 1 $same (type $t))
                    (import "rows" (type $u (eq $t)))
                    (type $v (variant (case "a" (record (field "x" $u) (field "y" (option $u)))) (case "b" $u)))
                    (export "f" (func (param "x" (list $v)) (result (result $v (error $u)))))))))
            (component $c (alias outer 1 $i (type $i)) (import "i" (instance (type $i))))
            {})"#,
        "u64 ".repeat(9_000),
        "(instance (instantiate $c))".repeat(900)
    );
    // 9,000 fields, some thirty times in total, for each of 900 instances.
    assert_eq!(refused(&text), "effort");
}

#[test]
fn components_within_components() {
    let text = format!("(component {}{})", "(component ".repeat(64), ")".repeat(64));
    let what = refused(&text);
    assert!(["nesting", "parts"].contains(&what), "{what}");
}

/// Returns `n` nested files; each begins with these bytes and is a section of the outer one.
fn nested(n: usize, header: &[u8], section: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    // From the innermost to the outermost, and from the end to the start.
    let mut reversed = Vec::new();
    let prepend = |reversed: &mut Vec<u8>, bytes: &[u8]| reversed.extend(bytes.iter().rev());
    prepend(&mut reversed, header);
    for _ in 0..n {
        let before = section(reversed.len());
        prepend(&mut reversed, &before);
        prepend(&mut reversed, header);
    }
    reversed.reverse();
    reversed
}

fn leb128(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";

#[test]
fn a_component_within_20_000() {
    const COMPONENT_SECTION: u8 = 4;
    let mut bytes = wat::parse_str(format!("(component {EXPORTS})")).unwrap();
    let inner = nested(20_000, COMPONENT, |length| {
        [vec![COMPONENT_SECTION], leb128(length)].concat()
    });
    bytes.push(COMPONENT_SECTION);
    bytes.extend(leb128(inner.len()));
    bytes.extend(inner);
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let error = engine.load("hostile", &bytes, &[]).unwrap_err();
    assert_eq!(error.kind.reason(), "too-complex", "{error}");
}

/// Metadata is a component in a custom section, which may have metadata itself.
#[test]
fn metadata_within_metadata() {
    let section = |length: usize| {
        let name = [leb128(14), b"component-type".to_vec()].concat();
        [vec![0], leb128(name.len() + length), name].concat()
    };
    let inner = nested(100_000, COMPONENT, section);
    let mut bytes = wat::parse_str(format!("(component {EXPORTS})")).unwrap();
    bytes.extend(section(inner.len()));
    bytes.extend(inner);
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let error = engine.load("hostile", &bytes, &[]).unwrap_err();
    assert_eq!(error.fault(), Fault::Guest, "{error}");
}

#[test]
fn components_beside_components() {
    let text = format!("(component {})", "(component)".repeat(20_000));
    assert_eq!(refused(&text), "parts");
}

/// Returns `n_loops` nested loops, each of which changes all of `n_locals` locals.
fn nested_loops(n_loops: usize, n_locals: usize) -> Vec<u8> {
    let locals = "i32 ".repeat(n_locals);
    let mut text = format!("(component (core module (func (param i32) (local {locals})");
    for index in 0..n_loops {
        let local = index % n_locals + 1;
        // About 25 bytes, as a C compiler would emit them.
        write!(
            text,
            " loop local.get {local} i32.const {index} i32.add local.tee {local} local.get 0 i32.lt_s br_if 0
              local.get 0 local.get {local} i32.xor local.set 0"
        )
        .unwrap();
    }
    text += &" end".repeat(n_loops);
    text += "))";
    wat::parse_str(format!("{text}{EXPORTS})")).unwrap()
}

#[test]
fn loops_within_loops() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    for n_locals in [1, 8, 60, 500, 3000] {
        let bytes = nested_loops(3000, n_locals);
        let error = engine.load("hostile", &bytes, &[]).unwrap_err();
        let is_refused = error.kind.reason() == "too-complex";
        // An accepted file is compiled in seconds, and lacks the required exports.
        let is_no_policy = matches!(*error.kind, PolicyErrorKind::NotAPolicy { .. });
        assert!(is_refused || is_no_policy, "{error}");
        if n_locals >= 500 {
            assert!(is_refused, "{n_locals} locals: {error}");
        }
    }
}

#[test]
fn shipped_policies_are_far_below_the_limits() {
    let usual = PolicyLimits::default();
    let (effort, function_effort) = (usual.effort / 10, usual.function_effort / 10);
    let (items, parts) = (usual.items / 10, usual.parts / 10);
    let tenth = usual
        .with_effort(effort)
        .with_function_effort(function_effort)
        .with_items(items)
        .with_parts(parts);
    let engine = PolicyEngine::new(tenth).unwrap();
    for policy in placewright::policy::ShippedPolicy::all() {
        engine.load(policy.name(), policy.wasm(), &[]).unwrap();
    }
}
