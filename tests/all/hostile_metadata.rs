//! Metadata of core modules: descriptions of interfaces that would take a reader forever.

use placewright::policy::{Fault, PolicyEngine, PolicyError, PolicyLimits, ShippedPolicy};

/// Returns `heft` with additional sections of metadata.
fn with_metadata(sections: &[Vec<u8>]) -> Vec<u8> {
    const CUSTOM_SECTION: u8 = 0;
    let mut bytes = ShippedPolicy::find("heft").unwrap().wasm().to_vec();
    for data in sections {
        let name = b"component-type";
        let name = [&leb128(name.len()), &name[..]].concat();
        bytes.push(CUSTOM_SECTION);
        bytes.extend(leb128(name.len() + data.len()));
        bytes.extend(name);
        bytes.extend(data);
    }
    bytes
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

/// Returns the metadata of a world, as bindings emit it: a component that exports the type of a
/// component that exports the world.
fn world(name: &str, items: &str) -> Vec<u8> {
    let text = format!(
        r#"(component
            (type (component (type (component {items})) (export "{name}" (component (type 0)))))
            (export "world" (type 0))
            (@custom "wit-component-encoding" "\04\00"))"#
    );
    wat::parse_str(text).unwrap()
}

/// An interface with a type `t`.
fn defines(id: &str, interface: &str) -> String {
    format!(
        r#"(type ${id}-type (instance
                (type (record (field "v" u32))) (export "t" (type (eq 0)))))
            (import "{interface}" (instance ${id} (type ${id}-type)))"#
    )
}

/// An interface whose type `t` is that of another interface, declared before.
fn uses(id: &str, interface: &str, of: &str) -> String {
    format!(
        r#"(alias export ${of} "t" (type ${id}-t))
            (type ${id}-type (instance
                (alias outer 1 ${id}-t (type)) (export "t" (type (eq 0)))))
            (import "{interface}" (instance ${id} (type ${id}-type)))"#
    )
}

fn load(sections: &[Vec<u8>]) -> Result<(), PolicyError> {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let loaded = engine.load("hostile", &with_metadata(sections), &[]);
    loaded.map(|_| ())
}

fn refused(sections: &[Vec<u8>], why: &str) {
    let error = load(sections).unwrap_err();
    assert_eq!(error.fault(), Fault::Guest, "{error}");
    assert_eq!(error.kind.reason(), "not-a-policy", "{error}");
    assert!(error.to_string().contains(why), "{error}");
}

#[test]
fn worlds_beside_the_contract() {
    let y = defines("y", "b:p/y") + &uses("x", "a:p/x", "y");
    let w = defines("w", "c:p/w") + &uses("z", "a:p/z@1.0.0", "w");
    load(&[world("m:m/one", &y), world("m:m/two", &w)]).unwrap();
    load(&[world("a:p/both", &(y + &w))]).unwrap();
}

/// The reader of one section sorts the packages that are not part of its world.
#[test]
fn packages_that_need_each_other() {
    let items = [
        defines("y", "b:p/y"),
        defines("w", "a:p/w"),
        uses("x", "a:p/x", "y"),
        uses("z", "b:p/z", "w"),
    ];
    refused(&[world("m:m/w", &items.concat())], "in a cycle");
}

#[test]
fn packages_that_need_the_package_of_the_world() {
    let items = defines("y", "m:m/y") + &uses("x", "a:p/x", "y");
    refused(&[world("m:m/w", &items)], "in a cycle");
    let items = defines("y", "plain") + &uses("x", "a:p/x", "y");
    refused(&[world("m:m/w", &items)], "in a cycle");
}

/// Neither section has a cycle, but all sections are merged, including compatible versions.
#[test]
fn packages_that_need_each_other_over_sections() {
    for version in ["", "@1.0.1"] {
        let one = defines("y", "b:p/y@1.0.0") + &uses("x", "a:p/x", "y");
        let two = defines("w", "a:p/w") + &uses("z", &format!("b:p/z{version}"), "w");
        refused(
            &[world("m:m/one", &one), world("m:m/two", &two)],
            "in a cycle",
        );
    }
}

/// If two interfaces have the same type without an alias, the reader assigns it to the first.
#[test]
fn packages_that_share_a_type() {
    let shared = r#"(type $r (record (field "v" u32)))
        (type $i (instance (alias outer 1 $r (type)) (export "t" (type (eq 0)))))
        (type $k (instance (alias outer 1 $r (type)) (export "u" (type (eq 0)))))"#;
    let items = r#"(import "a:p/x" (instance (type $i))) (import "b:p/y" (instance (type $i)))
        (import "b:p/z" (instance (type $k))) (import "a:p/w" (instance (type $k)))"#;
    // Whatever the result, it terminates.
    let _ = load(&[world("m:m/w", &format!("{shared}{items}"))]);
    let error = load(&[world("b:p/w", &format!("{shared}{items}"))]);
    assert!(error.unwrap_err().to_string().contains("in a cycle"));
}

#[test]
fn a_long_chain_of_packages() {
    let mut items = defines("i0", "p0:p/i");
    for n in 1..200 {
        items += &uses(
            &format!("i{n}"),
            &format!("p{n}:p/i"),
            &format!("i{}", n - 1),
        );
    }
    refused(&[world("m:m/w", &items)], "more than 64 packages");
}

#[test]
fn many_sections() {
    let sections: Vec<_> = (0..70).map(|n| world(&format!("m:m/w{n}"), "")).collect();
    refused(&sections, "more than 64 sections");
}

/// Each type contains the previous one twice.
#[test]
fn types_that_double() {
    let mut types = "(type $t0 (tuple u32 u32))".to_owned();
    for n in 1..10_000 {
        let before = n - 1;
        types += &format!("(type $t{n} (tuple $t{before} $t{before}))");
    }
    let items = format!(
        r#"(type $i (instance {types} (export "t" (type (eq $t9999)))))
        (import "a:p/i" (instance (type $i)))"#
    );
    let error = load(&[world("m:m/w", &items)]).unwrap_err();
    assert_eq!(error.fault(), Fault::Guest, "{error}");
}

/// Sections count together: a single one is within the limits.
#[test]
fn sections_that_are_too_many_together() {
    let parts = PolicyLimits::default().parts / 40;
    let component = format!("(component {})", "(component)".repeat(parts));
    let sections: Vec<_> = (0..60)
        .map(|_| wat::parse_str(&component).unwrap())
        .collect();
    let error = load(&sections).unwrap_err();
    assert_eq!(error.kind.reason(), "too-complex", "{error}");
}

/// The form of metadata before 2023, in which a component does not begin at the first byte.
#[test]
fn metadata_of_another_form() {
    let component = wat::parse_str("(component)").unwrap();
    let section = [&[3, 0, 1, b'w'][..], &component].concat();
    refused(&[section], "`component-type` is not a component");
}

/// The encoder sorts packages by their dependencies, without checking for cycles.
#[test]
fn a_contract_that_needs_itself() {
    let heft = ShippedPolicy::find("heft").unwrap();
    let name = b"placewright:policy/whole-graph@";
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let mut n_cycles = 0;
    for at in 0..heft.wasm().len() - name.len() {
        if !heft.wasm()[at..].starts_with(name) {
            continue;
        }
        // Another package, whose interface uses the contract's types, and on which the contract's
        // world depends.
        let mut bytes = heft.wasm().to_vec();
        bytes[at + 5] = b'7';
        // If the name is only a comment, the file loads.
        if let Err(error) = engine.load("hostile", &bytes, &[]) {
            assert_eq!(error.fault(), Fault::Guest, "{error}");
            n_cycles += usize::from(error.to_string().contains("in a cycle"));
        }
    }
    assert!(n_cycles > 0);
}
