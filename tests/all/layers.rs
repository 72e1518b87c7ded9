//! Layers of Keras in SavedModels, with the results of TensorFlow. The folder `tests/layers` has
//! them, with the script that made them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::path::PathBuf;

use placewright::policy::PolicyRequest;
use placewright::policy::ShippedPolicy;
use placewright::saved_model::SavedModelOptions;
use placewright::session::Session;
use placewright::tensor::DType;
use placewright::tensor::Tensor;

use crate::npz;

const POLICIES: [&str; 3] = ["auto", "heft", "round-robin"];

/// Results that depend on how exponentials and sums are rounded; others are within 2e-5.
const TOLERANCES: [(&str, f32); 1] = [("STFTSpectrogram__phase", 1e-3)];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/layers")
}

/// The families, each of which is a folder with an archive beside it.
fn families() -> Vec<String> {
    let entries = fs::read_dir(folder()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut families: Vec<String> = names
        .filter_map(|name| Some(name.strip_suffix(".npz")?.to_owned()))
        .collect();
    families.sort();
    families
}

/// Opens a family for so many devices.
fn open(family: &str, policy: &str, n_devices: u32) -> Result<Session, String> {
    let request = PolicyRequest::new(ShippedPolicy::find(policy).unwrap()).with_strict(true);
    Session::builder()
        .with_saved_model(folder().join(family), SavedModelOptions::default())
        .with_device_count("SYCL", 0)
        .with_device_count("GPU", 0)
        .with_device_count("CPU", n_devices)
        .with_policy(request)
        .build()
        .map_err(|error| error.to_string())
}

/// Runs a family, and returns the outputs that are not as in TensorFlow.
fn mismatches(family: &str, policy: &str, n_devices: u32) -> Vec<String> {
    let arrays = npz::read(&folder().join(format!("{family}.npz")));
    let with = |prefix: &str| -> BTreeMap<String, Tensor> {
        let named = arrays.iter().filter_map(|(name, tensor)| {
            Some((name.strip_prefix(prefix)?.to_owned(), tensor.clone()))
        });
        named.collect()
    };
    let (feeds, expected) = (with("in/"), with("out/"));
    let session = match open(family, policy, n_devices) {
        Ok(session) => session,
        Err(error) => return vec![format!("{family}: {error}")],
    };
    let feeds: Vec<(&str, Tensor)> = feeds
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor.clone()))
        .collect();
    let fetches: Vec<&str> = expected.keys().map(String::as_str).collect();
    let found = match session.run(&feeds, &fetches) {
        Ok(found) => found,
        Err(error) => return vec![format!("{family}: {error}")],
    };
    let pairs = found.iter().zip(&expected);
    pairs
        .filter_map(|(found, (name, expected))| {
            let tolerance = TOLERANCES.iter().find(|(of, _)| of == name);
            let tolerance = tolerance.map_or(2e-5, |&(_, tolerance)| tolerance);
            let problem = difference(found, expected, tolerance)?;
            Some(format!("{family} {name}: {problem}"))
        })
        .collect()
}

/// Says how a result differs from the expected one.
fn difference(found: &Tensor, expected: &Tensor, tolerance: f32) -> Option<String> {
    if found.shape() != expected.shape() || found.dtype() != expected.dtype() {
        return Some(format!("found {found:?}, expected {expected:?}"));
    }
    match found.dtype() {
        DType::F32 => {
            let (found, expected) = (found.as_slice::<f32>().unwrap(), expected.as_slice::<f32>());
            let mut pairs = found.iter().zip(expected.unwrap());
            let is_close = |found: f32, expected: f32| {
                (found - expected).abs() <= tolerance * (1.0 + expected.abs())
                    || found.is_nan() && expected.is_nan()
                    || found == expected
            };
            let (found, expected) =
                pairs.find(|&(&found, &expected)| !is_close(found, expected))?;
            Some(format!("found {found}, expected {expected}"))
        }
        DType::String => {
            let (found, expected) = (found.as_strings().unwrap(), expected.as_strings().unwrap());
            (found != expected).then(|| format!("found {found:?}, expected {expected:?}"))
        }
        _ => (found.as_bytes().unwrap() != expected.as_bytes().unwrap())
            .then(|| "other values".to_owned()),
    }
}

fn check(policy: &str, n_devices: u32) {
    let families = families();
    assert!(families.len() > 20, "{families:?}");
    let problems: Vec<String> = families
        .iter()
        .flat_map(|family| mismatches(family, policy, n_devices))
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn layers_compute_what_tensorflow_computes() {
    for policy in POLICIES {
        check(policy, 1);
    }
}

#[test]
fn layers_compute_the_same_on_four_devices() {
    for policy in POLICIES {
        check(policy, 4);
    }
}
