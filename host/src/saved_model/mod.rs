//! TensorFlow's SavedModels: a folder with a graph, signatures, assets and the values of variables.
//!
//! Loading a signature makes a graph of what the signature needs. Variables that it only reads are
//! constants with the bytes of the checkpoint, as in a frozen GraphDef; variables that it changes
//! stay variables, and are restored before the first run. The file is untrusted, as in [`import`].

mod error;
mod flow;
mod freeze;
mod load;
mod proto;
mod prune;
mod restore;
mod signature;
mod summary;

pub use error::SavedModelError;
pub use load::LoadedModel;
pub use load::VariableInfo;
pub use summary::GraphSummary;

use std::path::Path;
use std::path::PathBuf;

use bytes::Bytes;
use prost::Message;

use self::proto::MetaGraphDef;
use crate::files;
use crate::graph::Signature;
use crate::import;
use crate::import::ImportOptions;
use crate::import::Parts;

/// The file with the graphs, in the folder of a model.
const DESCRIPTION: &str = "saved_model.pb";

/// The tag of graphs for inference.
const SERVE: &str = "serve";

/// Which graph and signature of a SavedModel are loaded, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedModelOptions {
    /// Tags of the graph; empty means `serve`.
    pub tags: Vec<String>,
    /// The signature. The default is `serving_default`, or the only one.
    pub signature: Option<String>,
    /// Whether variables that the signature only reads stay variables, too.
    pub keep_variables: bool,
}

impl SavedModelOptions {
    /// Sets the tags of the graph.
    #[must_use]
    pub fn with_tags<S: Into<String>>(mut self, tags: impl IntoIterator<Item = S>) -> Self {
        self.tags = tags.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the signature.
    #[must_use]
    pub fn with_signature(mut self, signature: impl Into<String>) -> Self {
        self.signature = Some(signature.into());
        self
    }

    /// Sets whether variables that the signature only reads stay variables, too.
    #[must_use]
    pub fn with_keep_variables(mut self, keep_variables: bool) -> Self {
        self.keep_variables = keep_variables;
        self
    }

    fn tags(&self) -> Vec<String> {
        match self.tags.is_empty() {
            true => vec![SERVE.to_owned()],
            false => self.tags.clone(),
        }
    }
}

/// An open SavedModel.
///
/// ```no_run
/// use placewright::saved_model::SavedModel;
///
/// let model = SavedModel::open("model")?;
/// for signature in model.signatures(&[])? {
///     println!("{}", signature.name);
/// }
/// # Ok::<(), placewright::saved_model::SavedModelError>(())
/// ```
#[derive(Debug)]
pub struct SavedModel {
    folder: PathBuf,
    graphs: Vec<MetaGraphDef>,
    size_bytes: usize,
}

impl SavedModel {
    /// Reads the file `saved_model.pb` of a folder.
    ///
    /// # Errors
    /// [`SavedModelError`] if the file is missing or malformed.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, SavedModelError> {
        let folder = folder.into();
        let path = folder.join(DESCRIPTION);
        let limit = ImportOptions::default().size_bytes_max;
        let bytes = files::read(&path, limit, "weights belong into the checkpoint");
        let bytes = match bytes {
            Ok(bytes) => Bytes::from(bytes),
            Err(source) => return Err(SavedModelError::Read { path, source }),
        };
        let size_bytes = bytes.len();
        let model = proto::SavedModel::decode(bytes);
        let malformed = |problem: String| SavedModelError::Malformed {
            path: path.clone(),
            problem,
        };
        let model =
            model.map_err(|error| malformed(format!("this is not a SavedModel ({error})")))?;
        if model.meta_graphs.is_empty() {
            return Err(malformed("the model has no graph".to_owned()));
        }
        Ok(Self {
            folder,
            graphs: model.meta_graphs,
            size_bytes,
        })
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the tags of each graph.
    pub fn tags(&self) -> Vec<Vec<String>> {
        self.graphs.iter().map(tags_of).collect()
    }

    /// Returns the version of the TensorFlow that has written the graph with these tags; empty tags
    /// mean `serve`.
    ///
    /// # Errors
    /// [`SavedModelError::NoSuchTags`].
    pub fn tensorflow_version(&self, tags: &[String]) -> Result<&str, SavedModelError> {
        let info = self.graph(tags)?.info.as_ref();
        Ok(info.map_or("", |info| &info.tensorflow_version))
    }

    /// Returns the signatures of the graph with these tags, by name; empty tags mean `serve`.
    ///
    /// # Errors
    /// [`SavedModelError::NoSuchTags`]; [`SavedModelError::Signature`] for one that is malformed.
    pub fn signatures(&self, tags: &[String]) -> Result<Vec<Signature>, SavedModelError> {
        let graph = self.graph(tags)?;
        let mut names = signature_names(graph);
        names.sort_unstable();
        names
            .iter()
            .map(|name| self.signature(graph, name))
            .collect()
    }

    /// Returns the signature that options select.
    ///
    /// # Errors
    /// [`SavedModelError`] if it does not exist.
    pub fn selected(&self, options: &SavedModelOptions) -> Result<Signature, SavedModelError> {
        self.select(self.graph(&options.tags)?, options.signature.as_deref())
    }

    fn graph(&self, tags: &[String]) -> Result<&MetaGraphDef, SavedModelError> {
        let options = SavedModelOptions::default().with_tags(tags.iter().cloned());
        let mut wanted = options.tags();
        wanted.sort_unstable();
        let has_tags = |graph: &&MetaGraphDef| {
            let mut tags = tags_of(graph);
            tags.sort_unstable();
            tags == wanted
        };
        let graph = self.graphs.iter().find(has_tags);
        graph.ok_or_else(|| SavedModelError::NoSuchTags {
            path: self.folder.clone(),
            tags: options.tags(),
            found: self
                .graphs
                .iter()
                .map(|graph| tags_of(graph).join(","))
                .collect(),
        })
    }

    /// Returns the requested signature, or the default one.
    fn select(
        &self,
        graph: &MetaGraphDef,
        wanted: Option<&str>,
    ) -> Result<Signature, SavedModelError> {
        let mut found = signature_names(graph);
        found.sort_unstable();
        if found.is_empty() {
            return Err(SavedModelError::NoSignatures {
                path: self.folder.clone(),
            });
        }
        let name = match (wanted, &found[..]) {
            (Some(name), _) => name,
            (None, [only]) => only,
            (None, _) => signature::DEFAULT,
        };
        if !found.iter().any(|found| found == name) {
            return Err(SavedModelError::NoSuchSignature {
                path: self.folder.clone(),
                name: name.to_owned(),
                found,
            });
        }
        self.signature(graph, name)
    }

    fn signature(&self, graph: &MetaGraphDef, name: &str) -> Result<Signature, SavedModelError> {
        let mut entries = graph.signatures.iter();
        let entry = entries.find(|entry| entry.key == name);
        let proto = entry
            .and_then(|entry| entry.value.clone())
            .unwrap_or_default();
        signature::read(name, &proto).map_err(|problem| SavedModelError::Signature {
            path: self.folder.clone(),
            signature: name.to_owned(),
            problem,
        })
    }

    fn parts(
        &self,
        graph: &MetaGraphDef,
        options: &ImportOptions,
    ) -> Result<Parts, SavedModelError> {
        Ok(import::split(&graph.graph_def, options)?)
    }
}

fn tags_of(graph: &MetaGraphDef) -> Vec<String> {
    graph
        .info
        .as_ref()
        .map(|info| info.tags.clone())
        .unwrap_or_default()
}

/// Returns the names of signatures that can be called.
fn signature_names(graph: &MetaGraphDef) -> Vec<String> {
    let names = graph.signatures.iter().map(|entry| &entry.key);
    names
        .filter(|name| *name != signature::INIT_OP)
        .cloned()
        .collect()
}

/// Returns whether a folder is a SavedModel.
pub fn is_saved_model(folder: &Path) -> bool {
    folder.join(DESCRIPTION).is_file()
}
