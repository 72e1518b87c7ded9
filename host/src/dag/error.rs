//! Errors of task graphs.

use std::io;

use crate::candidates::CandidatesError;
use crate::cluster::OneLine;
use crate::cluster::Place;

/// Why a task graph cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskGraphError {
    /// The file cannot be read.
    #[error("the task graph cannot be read: {0}")]
    Read(io::Error),
    /// Something in the text is wrong, or does not suit the devices.
    #[error("{place}{}", OneLine(problem))]
    Invalid {
        /// The line, if it is known.
        place: Place,
        /// What is wrong, and what is possible.
        problem: String,
    },
    /// The devices cannot be used.
    #[error("{0}")]
    Candidates(CandidatesError),
}

impl From<io::Error> for TaskGraphError {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}
