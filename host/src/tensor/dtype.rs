//! Element types, with TensorFlow's numbers and names.

use std::fmt;

/// Element type of a tensor. The discriminants are TensorFlow's `DataType` numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[expect(missing_docs, reason = "each variant is the type that its name says")]
#[non_exhaustive]
pub enum DType {
    F32 = 1,
    F64 = 2,
    I32 = 3,
    U8 = 4,
    I16 = 5,
    I8 = 6,
    String = 7,
    Complex64 = 8,
    I64 = 9,
    Bool = 10,
    BF16 = 14,
    U16 = 17,
    Complex128 = 18,
    F16 = 19,
    Resource = 20,
    Variant = 21,
    U32 = 22,
    U64 = 23,
}

impl DType {
    /// All element types that the importer accepts.
    pub const ALL: [Self; 18] = [
        Self::F32,
        Self::F64,
        Self::I32,
        Self::U8,
        Self::I16,
        Self::I8,
        Self::String,
        Self::Complex64,
        Self::I64,
        Self::Bool,
        Self::BF16,
        Self::U16,
        Self::Complex128,
        Self::F16,
        Self::Resource,
        Self::Variant,
        Self::U32,
        Self::U64,
    ];

    /// Returns the type with this TensorFlow `DataType` number. Callers handle reference types
    /// (`number > 100`).
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.number() == number)
    }

    /// Returns TensorFlow's `DataType` number.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Returns the bytes of one element; `None` if elements have no fixed size (string, resource,
    /// variant).
    pub const fn size_bytes(self) -> Option<usize> {
        match self {
            Self::Bool | Self::U8 | Self::I8 => Some(1),
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => Some(2),
            Self::F32 | Self::I32 | Self::U32 => Some(4),
            Self::F64 | Self::I64 | Self::U64 | Self::Complex64 => Some(8),
            Self::Complex128 => Some(16),
            Self::String | Self::Resource | Self::Variant => None,
        }
    }

    /// Returns whether elements are IEEE or bfloat16 numbers.
    pub const fn is_floating(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32 | Self::F64)
    }

    /// Returns whether elements are signed or unsigned integers; booleans are not.
    pub const fn is_integer(self) -> bool {
        matches!(
            self,
            Self::I8
                | Self::I16
                | Self::I32
                | Self::I64
                | Self::U8
                | Self::U16
                | Self::U32
                | Self::U64
        )
    }

    /// Returns TensorFlow's name, as in op definitions and error messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::F64 => "double",
            Self::I32 => "int32",
            Self::U8 => "uint8",
            Self::I16 => "int16",
            Self::I8 => "int8",
            Self::String => "string",
            Self::Complex64 => "complex64",
            Self::I64 => "int64",
            Self::Bool => "bool",
            Self::BF16 => "bfloat16",
            Self::U16 => "uint16",
            Self::Complex128 => "complex128",
            Self::F16 => "half",
            Self::Resource => "resource",
            Self::Variant => "variant",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
        }
    }

    /// Returns the type with this TensorFlow name (`float`, `int32`, ...); `float32`, `float64` and
    /// `float16` are accepted too.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "float32" => Some(Self::F32),
            "float64" => Some(Self::F64),
            "float16" => Some(Self::F16),
            _ => Self::ALL.into_iter().find(|dtype| dtype.name() == name),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
