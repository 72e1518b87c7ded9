//! The error of any stage, as one type.

use std::borrow::Cow;
use std::fmt;
#[cfg(feature = "graphdef")]
use std::io;
#[cfg(feature = "graphdef")]
use std::path::PathBuf;

use crate::builder::BuildError;
use crate::candidates::CandidatesError;
#[cfg(feature = "graphdef")]
use crate::checkpoint::CheckpointError;
use crate::device::DeviceError;
use crate::device::KernelError;
use crate::device::StatusCode;
use crate::execute::ExecuteError;
use crate::functions::LowerError;
#[cfg(feature = "graphdef")]
use crate::import::ImportError;
use crate::partition::PartitionError;
use crate::placement::KeepError;
use crate::placement::SavedPlacementError;
use crate::placement::Violation;
use crate::policy::LadderError;
use crate::policy::PolicyError;
use crate::registry::RegistryError;
#[cfg(feature = "graphdef")]
use crate::saved_model::SavedModelError;
use crate::tensor::TensorError;

/// The error of the stage of a session that failed: where, what, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A graph file cannot be read.
    #[cfg(feature = "graphdef")]
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system. The message contains it, so it is no
        /// [`source`](std::error::Error::source).
        r#source: io::Error,
    },
    /// The file is not a GraphDef, or contains something that is not supported.
    #[cfg(feature = "graphdef")]
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The folder is not a SavedModel, or contains something that is not supported.
    #[cfg(feature = "graphdef")]
    #[error(transparent)]
    SavedModel(#[from] SavedModelError),
    /// A checkpoint cannot be read or written.
    #[cfg(feature = "graphdef")]
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The session has no variables to save.
    #[cfg(feature = "graphdef")]
    #[error(
        "the session has no variables of a SavedModel to save; build it with `with_saved_model` and a signature that changes variables, or with `SavedModelOptions::with_keep_variables`"
    )]
    NothingToSave,
    /// A node that an app adds to a graph is wrong. Sessions do not return it; apps that build
    /// graphs can convert into it.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A tensor that an app makes or reads is wrong. Sessions do not return it; apps can convert
    /// into it.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The contents of a registrar cannot be registered. Sessions do not return it; apps that make
    /// a registry can convert into it.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The functions that nodes of the graph call are wrong, or call themselves.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// A device is unavailable.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A node has no device, or a pin names a device that cannot run its node
    /// ([`CandidatesError::PinNotLegal`]).
    #[error(transparent)]
    Candidates(#[from] CandidatesError),
    /// A policy or its sandbox cannot be used.
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
    /// An earlier placement cannot be kept: a node can neither stay nor move.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// The feeds, fetches or targets of a run do not fit the graph.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// A run cannot be prepared, or failed.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    /// The builder has no graph.
    #[error(
        "a session needs a graph: call with_graph, with_graph_def, with_graph_def_file or with_saved_model"
    )]
    NoGraph,
    /// The builder has candidates, and a part that they contain was set as well.
    #[error(
        "the candidates have their own {part}, which `{call}` beside `with_candidates` would replace; leave one of the two out"
    )]
    BesideCandidates {
        /// The part that is set twice, such as `graph`.
        part: &'static str,
        /// The builder's method.
        call: &'static str,
    },
    /// A trip count names a loop that the graph does not have.
    #[error(
        "trip count of `{frame}`: the graph has no such loop; {}",
        loops_of(loops)
    )]
    UnknownLoop {
        /// The name of the frame, as the caller spelled it.
        frame: String,
        /// The frames of the graph.
        loops: Vec<String>,
    },
    /// Several methods of the builder set the same thing.
    #[error("{} set {what}; call only one of them", quoted(calls))]
    ConflictingCalls {
        /// What they set, such as `the graph`.
        what: &'static str,
        /// The methods, in alphabetical order.
        calls: Vec<&'static str>,
    },
    /// The names of a pin cannot be resolved: the graph has no such node, or the device's name does
    /// not match exactly one device. A resolved pin that is not legal is
    /// [`CandidatesError::PinNotLegal`].
    #[error("node `{node}` cannot be pinned to device `{device}`: {problem}")]
    Pin {
        /// The node.
        node: String,
        /// The device, as the app spelled it.
        device: String,
        /// What is wrong with one of the two names, as text.
        problem: String,
    },
    /// [`SessionBuilder::with_device_count`](crate::session::SessionBuilder::with_device_count)
    /// names a type of which there is no factory.
    #[error("there is no device type `{device_type}`; {remedy}")]
    UnknownDeviceType {
        /// The type, as the app spelled it.
        device_type: String,
        /// The type that the app may have meant, or all types, as text.
        remedy: String,
    },
    /// No device matches the device scope, which nodes without a request of their own inherit.
    #[error("no device matches `{scope}`; {remedy}")]
    DeviceScope {
        /// The scope.
        scope: String,
        /// The devices, as text.
        remedy: String,
    },
    /// The graph by which a session is to be extended is not its own graph with more nodes.
    #[error("the session cannot be extended: node `{node}` {problem} in the new graph")]
    NotAnExtension {
        /// The node.
        node: String,
        /// The difference.
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
        /// What the name is for.
        role: NameRole,
        /// The name, as the caller spelled it.
        name: String,
        /// The node that it names.
        node: String,
        /// The nearest name that the graph has.
        suggestion: Option<String>,
    },
    /// The named feeds of a call are not those of its callable.
    #[error("feed `{name}`: {problem}")]
    CallFeed {
        /// The name, as the caller or the callable spells it.
        name: String,
        /// What is wrong with it, as text.
        problem: String,
    },
    /// A feed or fetch names an output that its node does not have.
    #[error("{role} `{name}`: node `{node}` has {n_outputs} output{}", if *n_outputs == 1 { "" } else { "s" })]
    NoSuchOutput {
        /// What the name is for: a feed or a fetch.
        role: NameRole,
        /// The name, as the caller spelled it.
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
    /// Returns the category of the error, for programs that decide by it, and for peers that
    /// receive a number.
    pub fn code(&self) -> StatusCode {
        match self {
            #[cfg(feature = "graphdef")]
            Self::Read { source, .. } => match source.kind() {
                io::ErrorKind::NotFound => StatusCode::NotFound,
                io::ErrorKind::PermissionDenied => StatusCode::PermissionDenied,
                _ => StatusCode::Unknown,
            },
            #[cfg(feature = "graphdef")]
            Self::Import(_) | Self::SavedModel(_) | Self::Checkpoint(_) | Self::NothingToSave => {
                StatusCode::InvalidArgument
            }
            Self::Device(error) => error.code(),
            Self::Candidates(error) => error.code(),
            Self::Execute(error) => error.code(),
            // The caller passed the policy, but its behaviour is not an argument.
            Self::Policy(_) | Self::Ladder(_) => StatusCode::Internal,
            Self::CannotExtend(_) | Self::CannotReplace(_) => StatusCode::FailedPrecondition,
            Self::Keep(_) => StatusCode::ResourceExhausted,
            Self::Tensor(error) => KernelError::Tensor(error.clone()).code(),
            Self::UnknownNode { .. } | Self::NoSuchOutput { .. } | Self::UnknownLoop { .. } => {
                StatusCode::NotFound
            }
            Self::Build(_)
            | Self::Lower(_)
            | Self::Proposal(_)
            | Self::SavedPlacement(_)
            | Self::Partition(_)
            | Self::Registry(_)
            | Self::NoGraph
            | Self::ConflictingCalls { .. }
            | Self::Pin { .. }
            | Self::UnknownDeviceType { .. }
            | Self::DeviceScope { .. }
            | Self::NotAnExtension { .. }
            | Self::CallFeed { .. }
            | Self::BesideCandidates { .. } => StatusCode::InvalidArgument,
        }
    }
}

fn loops_of(loops: &[String]) -> String {
    let names: Vec<String> = loops.iter().map(|name| format!("`{name}`")).collect();
    match names.is_empty() {
        true => "it has no loops".to_owned(),
        false => format!("its loops are {}", names.join(", ")),
    }
}

fn suggest(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

fn quoted(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// What a caller gives a name for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NameRole {
    /// A node, for an option.
    Node,
    /// A tensor to feed.
    Feed,
    /// A tensor to fetch.
    Fetch,
    /// A node that is only to be executed.
    Target,
}

impl fmt::Display for NameRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "node",
            Self::Feed => "feed",
            Self::Fetch => "fetch",
            Self::Target => "target",
        })
    }
}
