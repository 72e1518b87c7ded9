//! Policies of random code: modules from wasm-smith with the contract's imports and exports.
//!
//! Purely random code would never reach `place`: `configure` must return a pointer to memory that
//! contains "ok". So most of the functions that are called before it have a valid body, and `place`
//! usually ends by offering a plan of random numbers. The generator decides what the rest of the
//! code does: host calls with any arguments, endless loops, growing memory, traps.

mod sound;

use std::path::Path;
use std::sync::OnceLock;

use arbitrary::{Arbitrary, Result, Unstructured};
use wit_component::{ComponentEncoder, StringEncoding};
use wit_parser::{LiftLowerAbi, ManglingAndAbi, Resolve, WorldId};

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A core module with the contract in a custom section, as compilers emit it.
    Module,
    /// The same as a component.
    Component,
    /// Either of these, with some bytes changed, moved or removed.
    Damaged,
    /// Arbitrary bytes.
    Bytes,
}

/// A file that may be a policy.
#[derive(Debug, Clone)]
pub struct RandomPolicy {
    /// Its kind.
    pub kind: Kind,
    /// The bytes of the file.
    pub bytes: Vec<u8>,
}

impl RandomPolicy {
    /// Creates a policy for graphs of about `n_nodes` nodes and `n_devices` devices.
    ///
    /// # Errors
    /// If there are too few bytes to choose from.
    pub fn new(u: &mut Unstructured<'_>, n_nodes: u32, n_devices: u32) -> Result<Self> {
        let kind = match u.int_in_range(0..=15)? {
            0 => Kind::Bytes,
            1 | 2 => Kind::Damaged,
            3..=8 => Kind::Component,
            _ => Kind::Module,
        };
        let bytes = match kind {
            Kind::Bytes => random_bytes(u)?,
            Kind::Damaged => {
                let is_component = u.arbitrary()?;
                let mut bytes = smith(u, n_nodes, n_devices, is_component)?;
                damage(u, &mut bytes)?;
                bytes
            }
            Kind::Component => smith(u, n_nodes, n_devices, true)?,
            Kind::Module => smith(u, n_nodes, n_devices, false)?,
        };
        Ok(Self { kind, bytes })
    }

    /// Creates the policy of a seed, which is always the same.
    pub fn of_seed(seed: u64, n_nodes: u32, n_devices: u32) -> Self {
        let data = bytes_of_seed(seed, 16 << 10);
        Self::new(&mut Unstructured::new(&data), n_nodes, n_devices)
            .expect("the bytes suffice for every choice")
    }
}

/// Returns pseudo-random bytes (SplitMix64).
fn bytes_of_seed(seed: u64, n: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).to_le_bytes()
    };
    (0..n.div_ceil(8)).flat_map(|_| next()).take(n).collect()
}

/// Half of them start like a module or component.
fn random_bytes(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut bytes = match u.int_in_range(0..=3)? {
        0 => b"\0asm\x01\0\0\0".to_vec(),
        1 => b"\0asm\x0d\0\x01\0".to_vec(),
        _ => Vec::new(),
    };
    let n = u.int_in_range(0..=256)?;
    for _ in 0..n {
        bytes.push(u8::arbitrary(u)?);
    }
    Ok(bytes)
}

/// Changes, moves or removes some bytes.
fn damage(u: &mut Unstructured<'_>, bytes: &mut Vec<u8>) -> Result<()> {
    for _ in 0..=u.int_in_range(0..=4)? {
        if bytes.is_empty() {
            break;
        }
        let at = u.choose_index(bytes.len())?;
        match u.int_in_range(0..=9)? {
            0 => bytes.truncate(at),
            1 => {
                let end = (at + u.int_in_range(1..=64)?).min(bytes.len());
                bytes.drain(at..end);
            }
            2 => {
                let end = (at + u.int_in_range(1..=64)?).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                let to = u.choose_index(bytes.len())?;
                bytes.splice(to..to, copy);
            }
            3..=5 => bytes[at] = *u.choose(&[0, 1, 0x7f, 0x80, 0xff])?,
            _ => bytes[at] = u.arbitrary()?,
        }
    }
    Ok(())
}

/// The contract and the worlds that a policy may implement, each with a module that does nothing.
struct Contract {
    resolve: Resolve,
    worlds: Vec<(WorldId, Vec<u8>)>,
}

fn contract() -> &'static Contract {
    static CONTRACT: OnceLock<Contract> = OnceLock::new();
    CONTRACT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wit/v0.1");
        let mut resolve = Resolve::default();
        let (package, _) = resolve.push_dir(folder).expect("the contract is valid");
        let worlds = ["offline-policy", "online-policy", "policy"].map(|name| {
            let world = resolve
                .select_world(&[package], Some(name))
                .expect("the contract has the world");
            let abi = ManglingAndAbi::Legacy(LiftLowerAbi::Sync);
            (world, wit_component::dummy_module(&resolve, world, abi))
        });
        Contract {
            worlds: worlds.into(),
            resolve,
        }
    })
}

/// Creates a valid policy of random code.
fn smith(
    u: &mut Unstructured<'_>,
    n_nodes: u32,
    n_devices: u32,
    is_component: bool,
) -> Result<Vec<u8>> {
    let Contract { resolve, worlds } = contract();
    let (world, shape) = match u.int_in_range(0..=9)? {
        0 => &worlds[1],
        1 | 2 => &worlds[2],
        _ => &worlds[0],
    };
    let config = wasm_smith::Config {
        module_shape: Some(shape.clone()),
        allow_start_export: u.ratio(1, 16)?,
        disallow_traps: u.arbitrary()?,
        max_data_segments: 4,
        max_element_segments: 4,
        max_funcs: 60,
        max_globals: 8,
        max_instructions: *u.choose(&[10, 100, 1000])?,
        max_memories: 1,
        max_table_elements: 100,
        max_tables: 2,
        max_types: 40,
        // Beyond what the sandbox supports.
        custom_page_sizes_enabled: false,
        exceptions_enabled: false,
        gc_enabled: false,
        memory64_enabled: false,
        // References to garbage-collected values.
        reference_types_enabled: u.ratio(1, 32)?,
        relaxed_simd_enabled: false,
        shared_everything_threads_enabled: false,
        tail_call_enabled: false,
        threads_enabled: false,
        wide_arithmetic_enabled: false,
        ..wasm_smith::Config::default()
    };
    // Uses only a part of the bytes, so that some are left for the rest.
    let n_code = u.len() * 3 / 4;
    let code = u.bytes(n_code)?;
    let mut random = wasm_smith::Module::new(config, &mut Unstructured::new(code))?.to_bytes();
    sound::replace(u, &mut random, n_nodes, n_devices)?;
    wit_component::embed_component_metadata(&mut random, resolve, *world, StringEncoding::UTF8)
        .expect("the contract can be encoded");
    if !is_component {
        return Ok(random);
    }
    let encoded = ComponentEncoder::default()
        .validate(false)
        .module(&random)
        .and_then(|mut encoder| encoder.encode());
    // If the module cannot be encoded, the host must reject it.
    Ok(encoded.unwrap_or(random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_and_components_are_valid() {
        let mut seen = std::collections::BTreeMap::new();
        for seed in 0..200 {
            let RandomPolicy { kind, bytes } = RandomPolicy::of_seed(seed, 12, 3);
            *seen.entry(kind).or_insert(0) += 1;
            assert_eq!(bytes, RandomPolicy::of_seed(seed, 12, 3).bytes);
            let is_valid = wasmparser::validate(&bytes);
            if matches!(kind, Kind::Module | Kind::Component) {
                is_valid.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
        }
        assert_eq!(seen.len(), 4, "{seen:?}");
    }
}
