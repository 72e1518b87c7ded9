//! Folders that are given as graphs: TensorFlow SavedModels, which are recognized, and others.

use std::path::Path;

use anyhow::Result;
use anyhow::bail;

/// Names of a SavedModel's description in its folder.
const DESCRIPTIONS: [&str; 2] = ["saved_model.pb", "saved_model.pbtxt"];

/// Refuses a graph path that is a SavedModel, or another folder.
///
/// # Errors
/// Says what the path is, and how a graph is made of it.
pub(super) fn check_graph_path(path: &Path) -> Result<()> {
    if path.is_dir() {
        if is_saved_model(path) {
            bail!(not_supported(path, path));
        }
        bail!(
            "{} is a folder; expected a file: a frozen GraphDef (.pb)",
            path.display()
        );
    }
    let is_description = path
        .file_name()
        .is_some_and(|name| DESCRIPTIONS.iter().any(|description| name == *description));
    if is_description && path.is_file() {
        let folder = path.parent().unwrap_or(Path::new("."));
        bail!(not_supported(path, folder));
    }
    Ok(())
}

/// Whether a folder is a SavedModel.
pub(super) fn is_saved_model(folder: &Path) -> bool {
    let mut names = DESCRIPTIONS.iter();
    names.any(|name| folder.join(name).is_file())
}

fn not_supported(path: &Path, folder: &Path) -> String {
    let folder = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    let code = format!(
        "import tensorflow as tf; from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2 as freeze; graph = freeze(tf.saved_model.load({:?}).signatures[\"serving_default\"]).graph; tf.io.write_graph(graph, \".\", \"frozen.pb\", as_text=False)",
        folder.display().to_string()
    );
    format!(
        "{}: not supported yet: SavedModel; freeze it to a GraphDef, frozen.pb: python3 -c '{}'",
        path.display(),
        code.replace('\'', r"'\''")
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn saved_models_and_folders_are_refused_and_files_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let plain = check_graph_path(folder.path()).expect_err("a folder");
        assert!(plain.to_string().contains("is a folder"), "{plain}");
        let file = folder.path().join("saved_model.pb");
        check_graph_path(&file).expect("reading says that there is no such file");
        fs::write(&file, b"").expect("written");
        for path in [folder.path(), &file] {
            let error = check_graph_path(path)
                .expect_err("a SavedModel")
                .to_string();
            let shown = folder.path().display().to_string();
            for part in ["not supported yet: SavedModel", "freeze", &shown] {
                assert!(error.contains(part), "{part} is not in {error}");
            }
        }
        check_graph_path(Path::new("graph.pb")).expect("a file");
    }
}
