//! The protobuf messages of a SavedModel: only the fields that are read.

use bytes::Bytes;

use crate::import::proto::TensorShapeProto;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SavedModel {
    #[prost(int64, tag = "1")]
    pub(super) schema_version: i64,
    #[prost(message, repeated, tag = "2")]
    pub(super) meta_graphs: Vec<MetaGraphDef>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct MetaGraphDef {
    #[prost(message, optional, tag = "1")]
    pub(super) info: Option<MetaInfoDef>,
    /// An encoded `GraphDef`.
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) graph_def: Bytes,
    #[prost(message, optional, tag = "3")]
    pub(super) saver: Option<SaverDef>,
    #[prost(message, repeated, tag = "4")]
    pub(super) collections: Vec<CollectionEntry>,
    #[prost(message, repeated, tag = "5")]
    pub(super) signatures: Vec<SignatureEntry>,
    #[prost(message, repeated, tag = "6")]
    pub(super) assets: Vec<AssetFileDef>,
}

/// `MetaGraphDef.MetaInfoDef`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct MetaInfoDef {
    #[prost(string, repeated, tag = "4")]
    pub(super) tags: Vec<String>,
    #[prost(string, tag = "5")]
    pub(super) tensorflow_version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SaverDef {
    #[prost(string, tag = "1")]
    pub(super) filename_tensor_name: String,
    #[prost(string, tag = "3")]
    pub(super) restore_op_name: String,
}

/// An entry of `map<string, CollectionDef>`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CollectionEntry {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<CollectionDef>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CollectionDef {
    #[prost(message, optional, tag = "1")]
    pub(super) node_list: Option<NodeList>,
}

/// `CollectionDef.NodeList`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct NodeList {
    #[prost(string, repeated, tag = "1")]
    pub(super) value: Vec<String>,
}

/// An entry of `map<string, SignatureDef>`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SignatureEntry {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<SignatureDef>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SignatureDef {
    #[prost(message, repeated, tag = "1")]
    pub(super) inputs: Vec<TensorEntry>,
    #[prost(message, repeated, tag = "2")]
    pub(super) outputs: Vec<TensorEntry>,
    #[prost(string, tag = "3")]
    pub(super) method_name: String,
}

/// An entry of `map<string, TensorInfo>`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TensorEntry {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<TensorInfo>,
}

/// `TensorInfo`; without a name, a sparse or composite tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TensorInfo {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(int32, tag = "2")]
    pub(super) dtype: i32,
    #[prost(message, optional, tag = "3")]
    pub(super) shape: Option<TensorShapeProto>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AssetFileDef {
    #[prost(message, optional, tag = "1")]
    pub(super) tensor_info: Option<TensorInfo>,
    #[prost(string, tag = "2")]
    pub(super) filename: String,
}
