//! GraphDef bytes to [`crate::graph::Graph`]; the only place that knows protobuf.
