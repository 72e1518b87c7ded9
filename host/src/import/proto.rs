//! The protobuf messages of a GraphDef: only the fields that the importer reads; others are
//! skipped.
//!
//! Strings are `Bytes` and map entries are repeated messages (as they are encoded), so that
//! decoding slices the file instead of copying it. Values that may nest (attribute values, tensors
//! in lists) stay encoded until they are converted.

use bytes::Bytes;

/// `GraphDef`: not decoded as a whole (see [`super::wire`]); tests encode it.
#[cfg(test)]
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GraphDef {
    #[prost(message, repeated, tag = "1")]
    pub(crate) node: Vec<NodeDef>,
    #[prost(message, optional, tag = "2")]
    pub(crate) library: Option<FunctionDefLibrary>,
    #[prost(message, optional, tag = "4")]
    pub(crate) versions: Option<VersionDef>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NodeDef {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) name: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) op: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub(crate) input: Vec<Bytes>,
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) device: Bytes,
    #[prost(message, repeated, tag = "5")]
    pub(crate) attr: Vec<AttrEntry>,
}

/// An entry of `map<string, AttrValue>`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AttrEntry {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    /// An encoded [`AttrValue`].
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AttrValue {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub(crate) value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Value {
    #[prost(message, tag = "1")]
    List(Box<ListValue>),
    #[prost(bytes = "bytes", tag = "2")]
    S(Bytes),
    #[prost(int64, tag = "3")]
    I(i64),
    #[prost(float, tag = "4")]
    F(f32),
    #[prost(bool, tag = "5")]
    B(bool),
    #[prost(int32, tag = "6")]
    Type(i32),
    #[prost(message, tag = "7")]
    Shape(TensorShapeProto),
    #[prost(message, tag = "8")]
    Tensor(Box<TensorProto>),
    #[prost(bytes = "bytes", tag = "9")]
    Placeholder(Bytes),
    #[prost(message, tag = "10")]
    Func(NameAttrList),
}

/// `AttrValue.ListValue`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListValue {
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub(crate) s: Vec<Bytes>,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) i: Vec<i64>,
    #[prost(float, repeated, tag = "4")]
    pub(crate) f: Vec<f32>,
    #[prost(bool, repeated, tag = "5")]
    pub(crate) b: Vec<bool>,
    #[prost(int32, repeated, tag = "6")]
    pub(crate) r#type: Vec<i32>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) shape: Vec<TensorShapeProto>,
    /// Encoded [`TensorProto`]s.
    #[prost(bytes = "bytes", repeated, tag = "8")]
    pub(crate) tensor: Vec<Bytes>,
    #[prost(message, repeated, tag = "9")]
    pub(crate) func: Vec<NameAttrList>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NameAttrList {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) name: Bytes,
    #[prost(message, repeated, tag = "2")]
    pub(crate) attr: Vec<AttrEntry>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TensorShapeProto {
    #[prost(message, repeated, tag = "2")]
    pub(crate) dim: Vec<Dim>,
    #[prost(bool, tag = "3")]
    pub(crate) unknown_rank: bool,
}

/// `TensorShapeProto.Dim`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct Dim {
    #[prost(int64, tag = "1")]
    pub(crate) size: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TensorProto {
    #[prost(int32, tag = "1")]
    pub(crate) dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) tensor_shape: Option<TensorShapeProto>,
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) tensor_content: Bytes,
    #[prost(float, repeated, tag = "5")]
    pub(crate) float_val: Vec<f32>,
    #[prost(double, repeated, tag = "6")]
    pub(crate) double_val: Vec<f64>,
    #[prost(int32, repeated, tag = "7")]
    pub(crate) int_val: Vec<i32>,
    #[prost(bytes = "bytes", repeated, tag = "8")]
    pub(crate) string_val: Vec<Bytes>,
    #[prost(float, repeated, tag = "9")]
    pub(crate) scomplex_val: Vec<f32>,
    #[prost(int64, repeated, tag = "10")]
    pub(crate) int64_val: Vec<i64>,
    #[prost(bool, repeated, tag = "11")]
    pub(crate) bool_val: Vec<bool>,
    #[prost(double, repeated, tag = "12")]
    pub(crate) dcomplex_val: Vec<f64>,
    #[prost(int32, repeated, tag = "13")]
    pub(crate) half_val: Vec<i32>,
    #[prost(uint32, repeated, tag = "16")]
    pub(crate) uint32_val: Vec<u32>,
    #[prost(uint64, repeated, tag = "17")]
    pub(crate) uint64_val: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct VersionDef {
    #[prost(int32, tag = "1")]
    pub(crate) producer: i32,
}

#[cfg(test)]
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FunctionDefLibrary {
    #[prost(message, repeated, tag = "1")]
    pub(crate) function: Vec<FunctionDef>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FunctionDef {
    #[prost(message, optional, tag = "1")]
    pub(crate) signature: Option<OpDef>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) node_def: Vec<NodeDef>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) ret: Vec<TextEntry>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) attr: Vec<AttrEntry>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) control_ret: Vec<TextEntry>,
}

/// An entry of `map<string, string>`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TextEntry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OpDef {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) input_arg: Vec<ArgDef>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) output_arg: Vec<ArgDef>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) attr: Vec<AttrDef>,
    #[prost(bool, tag = "17")]
    pub(crate) is_stateful: bool,
    #[prost(string, repeated, tag = "20")]
    pub(crate) control_output: Vec<String>,
}

/// `OpDef.ArgDef`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ArgDef {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(int32, tag = "3")]
    pub(crate) r#type: i32,
    #[prost(string, tag = "4")]
    pub(crate) type_attr: String,
    #[prost(string, tag = "5")]
    pub(crate) number_attr: String,
    #[prost(string, tag = "6")]
    pub(crate) type_list_attr: String,
    #[prost(bool, tag = "16")]
    pub(crate) is_ref: bool,
}

/// `OpDef.AttrDef`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AttrDef {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) r#type: String,
    /// An encoded [`AttrValue`].
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub(crate) default_value: Option<Bytes>,
    #[prost(bool, tag = "5")]
    pub(crate) has_minimum: bool,
    #[prost(int64, tag = "6")]
    pub(crate) minimum: i64,
}
