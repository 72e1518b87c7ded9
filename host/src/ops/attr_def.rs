//! Attributes of op definitions: kinds, limits and defaults, parsed from TensorFlow's signatures.

use std::fmt;
use std::sync::Arc;

use crate::graph::AttrValue;
use crate::tensor::DType;
use crate::tensor::PartialShape;

/// Kind of an attribute, or of each element of a list attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant is the kind that its name says")]
#[non_exhaustive]
pub enum AttrKind {
    String,
    Int,
    Float,
    Bool,
    Type,
    Shape,
    Tensor,
    Func,
}

impl AttrKind {
    /// Returns TensorFlow's name of the kind, as in signatures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Int => "int",
            Self::Float => "float",
            Self::Bool => "bool",
            Self::Type => "type",
            Self::Shape => "shape",
            Self::Tensor => "tensor",
            Self::Func => "func",
        }
    }

    /// Returns the kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::String,
            Self::Int,
            Self::Float,
            Self::Bool,
            Self::Type,
            Self::Shape,
            Self::Tensor,
            Self::Func,
        ]
        .into_iter()
        .find(|kind| kind.name() == name)
    }
}

/// One attribute of an op (TensorFlow `OpDef.AttrDef`).
#[derive(Debug, Clone)]
pub struct AttrDef {
    /// Name, unique in the op.
    pub name: Arc<str>,
    /// Kind of the value or of the elements.
    pub kind: AttrKind,
    /// Whether the value is a list.
    pub is_list: bool,
    /// Smallest value of an int, or smallest number of elements of a list.
    pub minimum: Option<i64>,
    /// Allowed element types; empty means any.
    pub allowed_types: Vec<DType>,
    /// Allowed strings; empty means any.
    pub allowed_strings: Vec<Box<str>>,
    /// Value of nodes that omit the attribute. Without a default they must not omit it.
    pub default: Option<AttrValue>,
}

impl AttrDef {
    /// Parses a definition such as `"T: {half, float} = DT_FLOAT"`, `"N: int >= 1"`,
    /// `"strides: list(int)"` or `"padding: {'SAME', 'VALID'}"`.
    ///
    /// # Errors
    /// What is wrong with the definition, as text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, rest) = text
            .split_once(':')
            .ok_or("expected `name: kind`".to_owned())?;
        let mut cursor = Cursor(rest.trim());
        let is_list = cursor.take("list(");
        let mut attr = Self {
            name: name.trim().into(),
            kind: AttrKind::Type,
            is_list,
            minimum: None,
            allowed_types: Vec::new(),
            allowed_strings: Vec::new(),
            default: None,
        };
        attr.parse_kind(&mut cursor)?;
        if is_list && !cursor.take(")") {
            return Err("`list(` is not closed".to_owned());
        }
        if cursor.take(">=") {
            let number = cursor.until(&['=']);
            let minimum = number
                .parse()
                .map_err(|_| format!("`{number}` is not a valid minimum"))?;
            attr.minimum = Some(minimum);
        }
        if cursor.take("=") {
            attr.default = Some(attr.parse_default(cursor.0)?);
        } else if !cursor.0.is_empty() {
            return Err(format!("`{}` follows the kind", cursor.0));
        }
        Ok(attr)
    }

    /// Checks whether a node may have this value.
    ///
    /// # Errors
    /// What is wrong with the value, as text that continues "attribute `x`".
    pub fn check(&self, value: &AttrValue) -> Result<(), String> {
        if let AttrValue::Placeholder(_) = value {
            // Refers to an attribute of the enclosing function: checked when the function is
            // instantiated.
            return Ok(());
        }
        if !self.is_list {
            return self.check_element(value);
        }
        let AttrValue::List(values) = value else {
            return Err(self.wrong_kind(value.kind()));
        };
        let fewest = usize::try_from(self.minimum.unwrap_or(0)).unwrap_or(0);
        if values.len() < fewest {
            return Err(format!(
                "has {} elements; at least {fewest} are required",
                values.len()
            ));
        }
        values
            .iter()
            .try_for_each(|value| self.check_element(value))
    }

    fn check_element(&self, value: &AttrValue) -> Result<(), String> {
        match (self.kind, value) {
            (AttrKind::String, AttrValue::Bytes(bytes)) => {
                let allowed = &self.allowed_strings;
                if allowed.is_empty() || allowed.iter().any(|text| text.as_bytes() == &**bytes) {
                    Ok(())
                } else {
                    let found = String::from_utf8_lossy(bytes);
                    Err(format!("is `{found}`; allowed: {}", allowed.join(", ")))
                }
            }
            (AttrKind::Int, AttrValue::Int(value)) => match self.minimum {
                Some(minimum) if !self.is_list && *value < minimum => Err(format!(
                    "is {value}; the smallest allowed value is {minimum}"
                )),
                _ => Ok(()),
            },
            (
                AttrKind::Type,
                AttrValue::Type {
                    is_ref: true,
                    dtype,
                },
            ) => Err(format!(
                "is a reference to {dtype}; references are made by ops, not by attributes"
            )),
            (AttrKind::Type, AttrValue::Type { dtype, .. }) => {
                if self.allowed_types.is_empty() || self.allowed_types.contains(dtype) {
                    Ok(())
                } else {
                    let allowed: Vec<_> = self.allowed_types.iter().map(|t| t.name()).collect();
                    Err(format!("is {dtype}; allowed: {}", allowed.join(", ")))
                }
            }
            (AttrKind::Float, AttrValue::Float(_))
            | (AttrKind::Bool, AttrValue::Bool(_))
            | (AttrKind::Shape, AttrValue::Shape(_))
            | (AttrKind::Tensor, AttrValue::Tensor(_))
            | (AttrKind::Func, AttrValue::Function(..)) => Ok(()),
            _ => Err(self.wrong_kind(value.kind())),
        }
    }

    fn wrong_kind(&self, found: &str) -> String {
        let expected = self.kind.name();
        if self.is_list {
            format!("must be a list of {expected}, found {found}")
        } else {
            format!("must be of kind {expected}, found {found}")
        }
    }

    fn parse_kind(&mut self, cursor: &mut Cursor<'_>) -> Result<(), String> {
        if !cursor.take("{") {
            let name = cursor.word();
            if let Some(kind) = AttrKind::from_name(name) {
                self.kind = kind;
            } else {
                self.allowed_types = type_set(name).ok_or(format!("`{name}` is not a kind"))?;
            }
            return Ok(());
        }
        let (set, rest) = cursor
            .0
            .split_once('}')
            .ok_or("`{` is not closed".to_owned())?;
        cursor.0 = rest.trim_start();
        for item in set.split(',').map(str::trim) {
            if let Some(text) = unquote(item) {
                self.kind = AttrKind::String;
                self.allowed_strings.push(text.into());
            } else {
                let types = type_set(item).ok_or(format!("`{item}` is not a type"))?;
                self.allowed_types.extend(types);
            }
        }
        Ok(())
    }

    fn parse_default(&self, text: &str) -> Result<AttrValue, String> {
        let text = text.trim();
        let value = if self.is_list {
            let items = text
                .strip_prefix('[')
                .and_then(|text| text.strip_suffix(']'))
                .ok_or(format!("`{text}` is not a list"))?;
            let items = items.split(',').map(str::trim).filter(|i| !i.is_empty());
            let values: Result<Vec<_>, String> = items.map(|i| self.parse_element(i)).collect();
            AttrValue::List(values?.into())
        } else {
            self.parse_element(text)?
        };
        self.check(&value)
            .map_err(|problem| format!("the default {problem}"))?;
        Ok(value)
    }

    fn parse_element(&self, text: &str) -> Result<AttrValue, String> {
        let value = match self.kind {
            AttrKind::String => unquote(text).map(|text| AttrValue::Bytes(text.as_bytes().into())),
            AttrKind::Int => text.parse().ok().map(AttrValue::Int),
            AttrKind::Float => text.parse().ok().map(AttrValue::Float),
            AttrKind::Bool => text.parse().ok().map(AttrValue::Bool),
            AttrKind::Type => text
                .strip_prefix("DT_")
                .and_then(|name| DType::from_name(&name.to_lowercase()))
                .map(|dtype| AttrValue::Type {
                    dtype,
                    is_ref: false,
                }),
            AttrKind::Shape => match text.replace(' ', "").as_str() {
                "{}" => Some(AttrValue::Shape(PartialShape::scalar())),
                "{unknown_rank:true}" => Some(AttrValue::Shape(PartialShape::unknown())),
                _ => None,
            },
            AttrKind::Tensor | AttrKind::Func => None,
        };
        value.ok_or_else(|| format!("`{text}` is not a default of kind {}", self.kind.name()))
    }
}

impl fmt::Display for AttrDef {
    /// Writes `name: kind`, without limits and default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.name();
        if self.is_list {
            write!(f, "{}: list({kind})", self.name)
        } else {
            write!(f, "{}: {kind}", self.name)
        }
    }
}

/// Returns the types that a name in a signature stands for: one type, or one of TensorFlow's sets
/// (without quantized types, which are not supported).
fn type_set(name: &str) -> Option<Vec<DType>> {
    let is_real = |dtype: &DType| dtype.is_floating() || dtype.is_integer();
    let is_complex = |dtype: &DType| matches!(dtype, DType::Complex64 | DType::Complex128);
    let all = DType::ALL.into_iter();
    match name {
        "realnumbertype" => Some(all.filter(is_real).collect()),
        "numbertype" => Some(all.filter(|t| is_real(t) || is_complex(t)).collect()),
        _ => DType::from_name(name).map(|dtype| vec![dtype]),
    }
}

fn unquote(text: &str) -> Option<&str> {
    ['\'', '"'].into_iter().find_map(|quote| {
        text.strip_prefix(quote)
            .and_then(|text| text.strip_suffix(quote))
    })
}

struct Cursor<'a>(&'a str);

impl<'a> Cursor<'a> {
    fn take(&mut self, token: &str) -> bool {
        if let Some(rest) = self.0.strip_prefix(token) {
            self.0 = rest.trim_start();
            true
        } else {
            false
        }
    }

    fn until(&mut self, stops: &[char]) -> &'a str {
        let end = self.0.find(stops).unwrap_or(self.0.len());
        let (head, rest) = self.0.split_at(end);
        self.0 = rest.trim_start();
        head.trim()
    }

    fn word(&mut self) -> &'a str {
        self.until(&[')', '=', '>', ' '])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int_list(values: &[i64]) -> AttrValue {
        AttrValue::List(values.iter().map(|&v| AttrValue::Int(v)).collect())
    }

    #[test]
    fn signature_text_gives_kind_limits_and_default() {
        let attr = AttrDef::parse("T: {half, float} = DT_FLOAT").unwrap();
        assert_eq!(attr.allowed_types, [DType::F16, DType::F32]);
        let float = AttrValue::Type {
            dtype: DType::F32,
            is_ref: false,
        };
        assert_eq!(attr.default, Some(float));

        let attr = AttrDef::parse("N: int >= 2 = 3").unwrap();
        assert_eq!((attr.kind, attr.minimum), (AttrKind::Int, Some(2)));
        assert_eq!(attr.default, Some(AttrValue::Int(3)));

        let attr = AttrDef::parse("dilations: list(int) >= 4 = [1, 1, 2, 1]").unwrap();
        assert!(attr.is_list);
        assert_eq!(attr.default, Some(int_list(&[1, 1, 2, 1])));

        let attr = AttrDef::parse("padding: {'SAME', 'VALID'}").unwrap();
        assert_eq!(attr.kind, AttrKind::String);
        assert_eq!(attr.allowed_strings.len(), 2);
        assert!(attr.default.is_none());

        let attr = AttrDef::parse("shape: shape = { unknown_rank: true }").unwrap();
        assert_eq!(
            attr.default,
            Some(AttrValue::Shape(PartialShape::unknown()))
        );
        let attr = AttrDef::parse("T: list({int32, int64}) = []").unwrap();
        assert_eq!(attr.default, Some(int_list(&[])));
        assert_eq!(attr.allowed_types, [DType::I32, DType::I64]);
    }

    #[test]
    fn malformed_signatures_are_refused() {
        for text in [
            "T",
            "T: {float",
            "T: floot",
            "n: int = x",
            "n: int >= y",
            "n: int >= 4 = 3",
            "l: list(int = []",
            "s: {'A'} = 'B'",
            "t: tensor = {}",
            "b: bool nonsense",
        ] {
            assert!(AttrDef::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn values_are_checked_against_kind_limits_and_allowed_values() {
        let check = |attr: &str, value: &AttrValue| AttrDef::parse(attr).unwrap().check(value);
        assert!(check("n: int >= 2", &AttrValue::Int(2)).is_ok());
        assert!(check("n: int >= 2", &AttrValue::Int(1)).is_err());
        assert!(check("n: int", &AttrValue::Bool(true)).is_err());
        assert!(check("l: list(int) >= 2", &int_list(&[1])).is_err());
        assert!(check("l: list(int) >= 2", &int_list(&[-1, -1])).is_ok());
        assert!(check("l: list(float)", &int_list(&[1])).is_err());
        let text = AttrValue::Bytes(b"FULL".as_slice().into());
        let problem = check("padding: {'SAME', 'VALID'}", &text).unwrap_err();
        assert_eq!(problem, "is `FULL`; allowed: SAME, VALID");
        let string = AttrValue::Type {
            dtype: DType::String,
            is_ref: false,
        };
        assert!(check("T: numbertype", &string).is_err());
        assert!(check("T: type", &string).is_ok());
    }
}
