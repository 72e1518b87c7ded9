//! The graph of a session: as the app built it, or as a GraphDef.

use std::sync::Arc;

#[cfg(feature = "graphdef")]
use tracing::debug_span;

use super::SessionBuilder;
use crate::error::Error;
use crate::graph::Graph;
#[cfg(feature = "graphdef")]
use crate::import;
#[cfg(feature = "graphdef")]
use crate::import::ImportOptions;
use crate::ops::OpRegistry;
use crate::optimize::Pass;
#[cfg(feature = "graphdef")]
use crate::saved_model::SavedModel;
#[cfg(feature = "graphdef")]
use crate::saved_model::SavedModelOptions;
#[cfg(feature = "graphdef")]
use crate::session::graph_file;
use crate::session::one_of::OneOf;
use crate::session::report::StageClock;
#[cfg(feature = "graphdef")]
use crate::trace::targets;

/// The graph, and what it is read with.
#[derive(Debug, Clone, Default)]
pub(in crate::session) struct GraphSetup {
    source: OneOf<GraphSource>,
    pub(in crate::session) ops: Option<Arc<OpRegistry>>,
    /// What rewrites the graph before it is placed; `None` means all passes.
    pub(in crate::session) passes: Option<Vec<Pass>>,
    #[cfg(feature = "graphdef")]
    import_options: ImportOptions,
    /// The GraphDef that the graph of the session came from.
    #[cfg(feature = "graphdef")]
    pub(in crate::session) graph_def: Option<bytes::Bytes>,
}

#[derive(Debug, Clone)]
enum GraphSource {
    Graph(Arc<Graph>),
    #[cfg(feature = "graphdef")]
    Bytes(bytes::Bytes),
    #[cfg(feature = "graphdef")]
    File(std::path::PathBuf),
    #[cfg(feature = "graphdef")]
    SavedModel(std::path::PathBuf, SavedModelOptions),
}

/// # The graph
impl SessionBuilder {
    /// Sets the graph, built with [`crate::builder::GraphBuilder`], assembled with
    /// [`crate::graph::GraphAssembler`], or imported before.
    #[must_use]
    pub fn with_graph(mut self, graph: impl Into<Arc<Graph>>) -> Self {
        self.graph
            .source
            .set("with_graph", GraphSource::Graph(graph.into()));
        self
    }

    /// Sets the graph, as the bytes of a GraphDef.
    #[cfg(feature = "graphdef")]
    #[must_use]
    pub fn with_graph_def(mut self, bytes: impl Into<bytes::Bytes>) -> Self {
        self.graph
            .source
            .set("with_graph_def", GraphSource::Bytes(bytes.into()));
        self
    }

    /// Sets the graph, as a file that holds a GraphDef.
    #[cfg(feature = "graphdef")]
    #[must_use]
    pub fn with_graph_def_file(mut self, path: impl Into<std::path::PathBuf>) -> Self {
        self.graph
            .source
            .set("with_graph_def_file", GraphSource::File(path.into()));
        self
    }

    /// Sets the graph, as a signature of the SavedModel in a folder. Feeds and fetches may be named
    /// as the signature names them ([`Graph::signature`]), or as tensors of the graph. The session
    /// has what the signature needs; variables that it only reads are constants. Before its first
    /// run, the session restores other variables, and runs the model's own initialisation
    /// ([`Graph::init`]); if that fails, so does the run, and the next one tries again.
    #[cfg(feature = "graphdef")]
    #[must_use]
    pub fn with_saved_model(
        mut self,
        folder: impl Into<std::path::PathBuf>,
        options: SavedModelOptions,
    ) -> Self {
        let source = GraphSource::SavedModel(folder.into(), options);
        self.graph.source.set("with_saved_model", source);
        self
    }

    /// Sets how a GraphDef or SavedModel is read.
    #[cfg(feature = "graphdef")]
    #[must_use]
    pub fn with_import_options(mut self, options: ImportOptions) -> Self {
        self.graph.import_options = options;
        self
    }

    /// Sets the passes that rewrite the graph before it is placed, by default [`Pass::ALL`].
    /// [`Session::graph`](crate::session::Session::graph) then is the result, and
    /// [`Session::given_graph`](crate::session::Session::given_graph) what this builder was given.
    /// Nodes that are pinned, or have effects or no readers, remain. A run that feeds or fetches a
    /// tensor that a pass has removed runs the graph as it was given, and so do all later runs of
    /// the session. Callables that were made before keep their graph.
    ///
    /// Passes change nothing if the app has made the candidates or the proposal, whose node ids are
    /// those of its own graph. The same holds for a saved placement that names a node that they
    /// would remove: it was made for the graph as it was given.
    #[must_use]
    pub fn with_passes(mut self, passes: impl IntoIterator<Item = Pass>) -> Self {
        self.graph.passes = Some(passes.into_iter().collect());
        self
    }

    /// Sets the known ops, instead of those of [`Self::with_registry`] or [`OpRegistry::default`].
    #[must_use]
    pub fn with_ops(mut self, ops: impl Into<Arc<OpRegistry>>) -> Self {
        self.graph.ops = Some(ops.into());
        self
    }
}

impl GraphSetup {
    /// Checks that only one method has set the graph.
    pub(in crate::session) fn check(&self) -> Result<(), Error> {
        self.source.check("the graph")
    }

    /// Copies the GraphDef that the graph came from, of a builder for the same graph.
    pub(in crate::session) fn copy_graph_def(&mut self, other: &Self) {
        #[cfg(feature = "graphdef")]
        {
            self.graph_def.clone_from(&other.graph_def);
        }
        #[cfg(not(feature = "graphdef"))]
        let _ = other;
    }

    /// Returns the graph; reads it if it is a GraphDef. `of_candidates` is the graph of the app's
    /// candidates.
    pub(in crate::session) fn open(
        &mut self,
        of_candidates: Option<&Arc<Graph>>,
        ops: &OpRegistry,
        clock: &mut StageClock,
    ) -> Result<Arc<Graph>, Error> {
        #[cfg(not(feature = "graphdef"))]
        let _ = (ops, clock);
        let of_candidates = || of_candidates.map(|graph| GraphSource::Graph(Arc::clone(graph)));
        match self.source.take().or_else(of_candidates) {
            None => Err(Error::NoGraph),
            Some(GraphSource::Graph(graph)) => {
                // An earlier GraphDef does not have all nodes of this graph.
                #[cfg(feature = "graphdef")]
                {
                    self.graph_def = None;
                }
                Ok(graph)
            }
            #[cfg(feature = "graphdef")]
            Some(GraphSource::Bytes(bytes)) => self.import(|_| Ok(bytes), ops, clock),
            #[cfg(feature = "graphdef")]
            Some(GraphSource::File(path)) => {
                let read = |options: &ImportOptions| {
                    let bytes = graph_file::read(path, options.size_bytes_max)?;
                    Ok(bytes::Bytes::from(bytes))
                };
                self.import(read, ops, clock)
            }
            #[cfg(feature = "graphdef")]
            Some(GraphSource::SavedModel(folder, options)) => {
                self.graph_def = None;
                let span = debug_span!(target: targets::SESSION, "import");
                clock.time("import", &span, || {
                    let model = SavedModel::open(folder)?;
                    let loaded = model.load(&options, ops, &self.import_options)?;
                    Ok(Arc::new(loaded.graph))
                })
            }
        }
    }

    #[cfg(feature = "graphdef")]
    fn import(
        &mut self,
        read: impl FnOnce(&ImportOptions) -> Result<bytes::Bytes, Error>,
        ops: &OpRegistry,
        clock: &mut StageClock,
    ) -> Result<Arc<Graph>, Error> {
        let options = &self.import_options;
        let span = debug_span!(target: targets::SESSION, "import");
        let (graph, bytes) = clock.time("import", &span, || {
            let bytes = read(options)?;
            let graph = import::import_graph(bytes.clone(), ops, options)?;
            Ok::<_, Error>((Arc::new(graph), bytes))
        })?;
        self.graph_def = Some(bytes);
        Ok(graph)
    }
}
