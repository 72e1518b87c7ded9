//! What the path of a graph is: a GraphDef, a TensorFlow SavedModel, or neither.

use std::path::Path;
use std::path::PathBuf;

use anyhow::Result;
use anyhow::bail;

use super::UsageError;
use super::args::ModelArgs;
use crate::saved_model;

/// The description of a SavedModel, in its folder.
const DESCRIPTION: &str = "saved_model.pb";

/// The same as text.
const TEXT: &str = "saved_model.pbtxt";

/// What the path of a graph is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GraphPath {
    /// A file with a GraphDef, or with something that its reader refuses.
    GraphDef,
    /// A SavedModel in this folder.
    SavedModel(PathBuf),
}

impl GraphPath {
    /// Returns what a path is. A path of `saved_model.pb` means its folder.
    ///
    /// # Errors
    /// If the path is another folder, or a SavedModel in text format.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let is_description = path.file_name().is_some_and(|name| name == DESCRIPTION);
        if is_description && path.is_file() {
            let folder = path.parent().unwrap_or(Path::new("."));
            let folder = match folder.as_os_str().is_empty() {
                true => Path::new("."),
                false => folder,
            };
            return Ok(Self::SavedModel(folder.to_owned()));
        }
        if saved_model::is_saved_model(path) {
            return Ok(Self::SavedModel(path.to_owned()));
        }
        if path.join(TEXT).is_file() || path.file_name().is_some_and(|name| name == TEXT) {
            bail!(
                "{}: this SavedModel is in text format; load and save it with TensorFlow, which writes {DESCRIPTION}",
                path.display()
            );
        }
        if path.is_dir() {
            bail!(
                "{} is a folder without {DESCRIPTION}; expected a SavedModel, or a file: a frozen GraphDef (.pb)",
                path.display()
            );
        }
        Ok(Self::GraphDef)
    }

    /// Refuses flags that have no effect.
    pub(super) fn check_flags(&self, args: &ModelArgs) -> Result<()> {
        match (self, args.first_flag()) {
            (Self::GraphDef, Some(flag)) => {
                let problem = format!("{flag} has no effect on a GraphDef; it is for SavedModels");
                Err(UsageError(problem).into())
            }
            _ => Ok(()),
        }
    }
}

/// Whether a folder is a SavedModel.
pub(super) fn is_saved_model(folder: &Path) -> bool {
    saved_model::is_saved_model(folder) || folder.join(TEXT).is_file()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn saved_models_are_told_from_other_folders_and_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let plain = GraphPath::of(folder.path()).expect_err("a folder");
        assert!(
            plain.to_string().contains("without saved_model.pb"),
            "{plain}"
        );
        let file = folder.path().join(TEXT);
        fs::write(&file, b"").expect("written");
        for path in [folder.path(), &file] {
            let text = GraphPath::of(path).expect_err("text").to_string();
            assert!(text.contains("text format"), "{text}");
        }
        let file = folder.path().join(DESCRIPTION);
        assert_eq!(GraphPath::of(&file).expect("missing"), GraphPath::GraphDef);
        fs::write(&file, b"").expect("written");
        let model = GraphPath::SavedModel(folder.path().to_owned());
        for path in [folder.path(), &file] {
            assert_eq!(GraphPath::of(path).expect("a SavedModel"), model);
        }
        let graph = GraphPath::of(Path::new("graph.pb")).expect("a file");
        assert_eq!(graph, GraphPath::GraphDef);
    }
}
