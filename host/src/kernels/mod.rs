//! CPU arithmetic on slices; knows no graph.
