//! The protobuf messages of a checkpoint's index.

/// `BundleHeaderProto`, the value of the empty key.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct BundleHeader {
    #[prost(int32, tag = "1")]
    pub(super) num_shards: i32,
    /// 0 is little-endian.
    #[prost(int32, tag = "2")]
    pub(super) endianness: i32,
    #[prost(message, optional, tag = "3")]
    pub(super) version: Option<VersionDef>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct VersionDef {
    #[prost(int32, tag = "1")]
    pub(super) producer: i32,
    #[prost(int32, tag = "2")]
    pub(super) min_consumer: i32,
}

/// `BundleEntryProto`: where the bytes of a tensor are.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct BundleEntry {
    #[prost(int32, tag = "1")]
    pub(super) dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) shape: Option<TensorShape>,
    #[prost(int32, tag = "3")]
    pub(super) shard_id: i32,
    #[prost(int64, tag = "4")]
    pub(super) offset: i64,
    #[prost(int64, tag = "5")]
    pub(super) size: i64,
    /// Masked CRC-32C of the bytes.
    #[prost(fixed32, tag = "6")]
    pub(super) crc32c: u32,
    /// The slices that a partitioned tensor is stored as; each has an entry of its own.
    #[prost(message, repeated, tag = "7")]
    pub(super) slices: Vec<TensorSlice>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TensorShape {
    #[prost(message, repeated, tag = "2")]
    pub(super) dim: Vec<Dim>,
    #[prost(bool, tag = "3")]
    pub(super) unknown_rank: bool,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Dim {
    #[prost(int64, tag = "1")]
    pub(super) size: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TensorSlice {
    #[prost(message, repeated, tag = "1")]
    pub(super) extent: Vec<Extent>,
}

/// `TensorSliceProto.Extent`; without a length, all of the dimension.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct Extent {
    #[prost(int64, tag = "1")]
    pub(super) start: i64,
    #[prost(int64, optional, tag = "2")]
    pub(super) length: Option<i64>,
}
