//! Any stage's error.

use std::borrow::Cow;
#[cfg(feature = "graphdef")]
use std::io;
#[cfg(feature = "graphdef")]
use std::path::PathBuf;

use crate::builder::BuildError;
use crate::candidates::CandidatesError;
use crate::device::DeviceError;
use crate::device::StatusCode;
use crate::execute::ExecuteError;
#[cfg(feature = "graphdef")]
use crate::import::ImportError;
use crate::partition::PartitionError;
use crate::placement::KeepError;
use crate::placement::SavedPlacementError;
use crate::placement::Violation;
use crate::policy::LadderError;
use crate::policy::PolicyError;
use crate::registry::RegistryError;

/// What a session may end in: the error of the stage that failed, which says where, what, and what
/// to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A graph file cannot be read.
    #[cfg(feature = "graphdef")]
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        r#source: io::Error,
    },
    /// The GraphDef is not one, or holds what is not supported.
    #[cfg(feature = "graphdef")]
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A node that an app adds to a graph is wrong. No session says so; it is here for apps that
    /// build graphs.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// What a registrar brings cannot be registered. No session says so; it is here for apps that
    /// make a registry.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A device is unavailable.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A node has no device.
    #[error(transparent)]
    Candidates(#[from] CandidatesError),
    /// The sandbox cannot be started.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// No policy found a placement.
    #[error(transparent)]
    Ladder(#[from] LadderError),
    /// The app's own proposal breaks a rule.
    #[error("the proposal breaks rule `{rule}`: {0}", rule = .0.rule())]
    Proposal(Violation),
    /// A saved placement does not fit.
    #[error(transparent)]
    SavedPlacement(#[from] SavedPlacementError),
    /// A placement of before cannot be kept, and a node can go nowhere else.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// What was asked of a run does not fit the graph.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// A run cannot be prepared, or failed.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    /// The builder was given no graph.
    #[error("a session needs a graph: call with_graph, or with_graph_def or with_graph_def_file")]
    NoGraph,
    /// The builder was given candidates, and something that they bring as well.
    #[error(
        "the candidates bring {part} of their own, which `{call}` beside `with_candidates` would replace; leave one of the two out"
    )]
    BesideCandidates {
        /// What there are two of.
        part: &'static str,
        /// The builder's method.
        call: &'static str,
    },
    /// Several methods of the builder set the same thing.
    #[error("{} set {what}; call only one of them", quoted(calls))]
    ConflictingCalls {
        /// What they set, such as `the graph`.
        what: &'static str,
        /// The methods, in alphabetical order.
        calls: Vec<&'static str>,
    },
    /// A pin by names cannot be resolved.
    #[error("node `{node}` cannot be pinned to device `{device}`: {problem}")]
    Pin {
        /// The node.
        node: String,
        /// The device, as the app spelled it.
        device: String,
        /// What is wrong with one of the two names, as text.
        problem: String,
    },
    /// Devices came from two sides.
    #[error(
        "both `with_devices` and `with_device_manager` say which devices there are; leave one of the two out"
    )]
    DevicesTwice,
    /// The graph that a session shall go on with is not its own with more nodes.
    #[error("the session cannot be extended: node `{node}` {problem} in the new graph")]
    NotAnExtension {
        /// The node.
        node: String,
        /// What is different.
        problem: &'static str,
    },
    /// The session cannot go on with a larger graph.
    #[error("the session cannot be extended: {0}")]
    CannotExtend(Cow<'static, str>),
    /// The session cannot go on with other devices.
    #[error("the session cannot go on with other devices: {0}")]
    CannotReplace(Cow<'static, str>),
    /// A feed, fetch or target names no node.
    #[error("{role} `{name}`: the graph has no node `{node}`{}", suggest(.suggestion.as_deref()))]
    UnknownNode {
        /// `feed`, `fetch` or `target`.
        role: &'static str,
        /// What was asked for.
        name: String,
        /// The node that it names.
        node: String,
        /// The nearest name that the graph has.
        suggestion: Option<String>,
    },
    /// A feed or fetch names an output that its node does not have.
    #[error("{role} `{name}`: node `{node}` has {n_outputs} outputs")]
    NoSuchOutput {
        /// `feed` or `fetch`.
        role: &'static str,
        /// What was asked for.
        name: String,
        /// The node.
        node: String,
        /// Number of its outputs.
        n_outputs: usize,
    },
}

impl From<Violation> for Error {
    fn from(violation: Violation) -> Self {
        Self::Proposal(violation)
    }
}

impl Error {
    /// Its category, for programs that decide by it and for peers that are told a number.
    pub fn code(&self) -> StatusCode {
        match self {
            #[cfg(feature = "graphdef")]
            Self::Read { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => StatusCode::NotFound,
                io::ErrorKind::PermissionDenied => StatusCode::PermissionDenied,
                _ => StatusCode::Unknown,
            },
            #[cfg(feature = "graphdef")]
            Self::Import(_) => StatusCode::InvalidArgument,
            Self::Device(error) => error.code(),
            Self::Candidates(error) => error.code(),
            Self::Execute(error) => error.code(),
            // The caller handed in the policy, but what it does is not an argument.
            Self::Policy(_) | Self::Ladder(_) => StatusCode::Internal,
            Self::CannotExtend(_) | Self::CannotReplace(_) => StatusCode::FailedPrecondition,
            Self::Keep(_) => StatusCode::ResourceExhausted,
            Self::UnknownNode { .. } | Self::NoSuchOutput { .. } => StatusCode::NotFound,
            Self::Build(_)
            | Self::Proposal(_)
            | Self::SavedPlacement(_)
            | Self::Partition(_)
            | Self::Registry(_)
            | Self::NoGraph
            | Self::DevicesTwice
            | Self::ConflictingCalls { .. }
            | Self::Pin { .. }
            | Self::NotAnExtension { .. }
            | Self::BesideCandidates { .. } => StatusCode::InvalidArgument,
        }
    }
}

fn suggest(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

fn quoted(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}
