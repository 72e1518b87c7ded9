//! Errors are printed with their sources (`anyhow`, `{:#}`), so no message repeats its source.
//! Compiles and passes without default features.

use std::fmt;
use std::path::Path;

use placewright::device::KernelCreationError;
use placewright::device::KernelError;
use placewright::names::NameError;
use placewright::placement::SavedPlacementError;
use placewright::prelude::*;

use crate::sample;

/// Returns whether a message occurs twice in the chain of sources.
fn repeats(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut effect = error;
    while let Some(cause) = effect.source() {
        if effect.to_string().contains(&cause.to_string()) {
            return true;
        }
        effect = cause;
    }
    false
}

#[derive(Debug)]
struct Quoting(NameError);

impl fmt::Display for Quoting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "above: {}", self.0)
    }
}

impl std::error::Error for Quoting {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[test]
fn a_message_that_repeats_its_source_is_found() {
    let name = placewright::names::DeviceName::parse_full("no name").unwrap_err();
    assert!(repeats(&Quoting(name)));
}

#[test]
fn errors_of_sessions_do_not_repeat_their_sources() {
    let candidates = sample::sample(6, 2);
    let with = |proposal| {
        Session::builder()
            .with_candidates(candidates.clone())
            .with_proposal(proposal)
    };
    let illegal = with(Proposal {
        devices: vec![9; 6],
        ..Proposal::default()
    })
    .build();
    let broken = PolicySource::Bytes("mine".to_owned(), b"\x7fELF".to_vec());
    let strict = Session::builder()
        .with_candidates(candidates.clone())
        .with_policy(PolicyRequest::new(broken).with_strict(true))
        .build();
    let missing = Session::builder()
        .with_candidates(candidates.clone())
        .with_policy(
            PolicyRequest::new(PolicySource::File("/no/such.wasm".into())).with_strict(true),
        )
        .build();
    let violation = match &illegal {
        Err(Error::Proposal(violation)) => violation.clone(),
        other => panic!("{other:?}"),
    };
    let errors: Vec<Error> = [illegal, strict, missing]
        .into_iter()
        .map(Result::unwrap_err)
        .chain([Error::from(SavedPlacementError::from(violation))])
        .collect();
    for error in &errors {
        assert!(!repeats(error), "{error:?}");
        assert!(!error.to_string().is_empty());
    }
    // The message contains the reason, whether or not the chain is printed.
    assert!(errors[2].to_string().contains("/no/such.wasm"));
    let kernel = KernelCreationError::from(KernelError::invalid("too wide"));
    assert!(!repeats(&kernel) && kernel.to_string().contains("too wide"));
}

/// Checks the sources: a variant whose message quotes a field must not make that field its source.
#[test]
fn no_error_message_quotes_its_source() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![folder];
    let (mut n_quoting, mut problems) = (0, Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                for (n, rest) in text.split("#[error(").skip(1).enumerate() {
                    // The message and the variant or type that follows, up to the next message.
                    let is_quoted = rest.split(")]").next().unwrap();
                    let item = &rest[is_quoted.len()..];
                    if is_quoted.contains("{source}") {
                        n_quoting += 1;
                        if !item.contains("r#source:") {
                            problems.push(format!("{}: message {n}", path.display()));
                        }
                    }
                    let first_line = item.lines().nth(1).unwrap_or_default();
                    if is_quoted.contains("{0}") && first_line.contains("#[from]") {
                        problems.push(format!("{}: message {n}", path.display()));
                    }
                }
            }
        }
    }
    assert!(n_quoting > 15, "{n_quoting}");
    assert!(problems.is_empty(), "{problems:#?}");
}
