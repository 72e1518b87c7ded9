//! The table of kernels that have run on cards has exactly one row per kernel.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use placewright::backend::cuda::DEVICE_TYPE;
use placewright::backend::cuda::GpuDeviceFactory;
use placewright::device::DeviceFactory;
use placewright::device::KernelRegistry;

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/gpu/kernels.md");

/// Returns the op and element types with which rows start.
fn kernels() -> BTreeMap<String, String> {
    let mut registry = KernelRegistry::empty();
    GpuDeviceFactory::default().register_kernels(&mut registry);
    let ops = registry.ops().into_iter().map(|op| {
        let defs = registry.of_op(op).iter();
        let defs = defs.filter(|def| def.device_type == DEVICE_TYPE);
        // Several attributes are distinguished by their names, as for `Cast`.
        let mut types: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for (attr, dtypes) in defs.flat_map(|def| &def.constraints) {
            let names = dtypes.iter().map(ToString::to_string);
            types.entry(attr).or_default().extend(names);
        }
        let types = types.into_iter().map(|(attr, names)| {
            let names: Vec<_> = names.into_iter().collect();
            format!("{attr}: {}", names.join(" "))
        });
        (op.to_owned(), types.collect::<Vec<_>>().join("; "))
    });
    ops.collect()
}

#[test]
fn has_a_row_for_each_kernel() {
    let table = std::fs::read_to_string(Path::new(TABLE)).unwrap();
    let rows = table.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
        let op = cells.next()?.strip_suffix('`')?;
        Some((op, cells.next()?, cells.next()?))
    });
    let mut found: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for (op, types, cards) in rows {
        assert!(!cards.is_empty(), "{op}: which cards?");
        assert!(
            found.insert(op, (types, cards)).is_none(),
            "{op} has two rows"
        );
    }
    let kernels = kernels();
    let is_equal = kernels.len() == found.len()
        && kernels.iter().all(|(op, types)| {
            found
                .get(op.as_str())
                .is_some_and(|(found, _)| found == types)
        });
    // Known results of cards stay with their op.
    let mut rows = String::new();
    for (op, types) in &kernels {
        let cards = found
            .get(op.as_str())
            .map_or("unproven", |(_, cards)| cards);
        let _ = writeln!(rows, "| `{op}` | {types} | {cards} |");
    }
    assert!(is_equal, "the rows of {TABLE} are to be:\n{rows}");
}
