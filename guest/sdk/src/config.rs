//! Configuration: what the user passed as `--policy-config KEY=VALUE`, checked against what the
//! policy declares.
//!
//! Takes the properties of the contract's `configure`; gives typed values, or an error that names
//! the key.

use std::error::Error;
use std::fmt;
use std::fmt::Display;
use std::str::FromStr;

use crate::log::Log;

/// One configuration key that a policy understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// The key.
    pub key: &'static str,
    /// What a value looks like, for people: `bool`, `u32`, `f64`, `name`, `bytes`.
    pub kind: &'static str,
    /// The value in force when the user gives none; what [`Config::parse`] falls back to.
    pub default: &'static str,
    /// One sentence.
    pub description: &'static str,
}

/// The configuration of one policy instance.
///
/// Every key in it is one that the policy declares in its `SETTINGS`: the SDK refuses others before
/// [`crate::Policy::configure`] is called.
#[derive(Debug, Clone)]
pub struct Config {
    settings: &'static [Setting],
    entries: Vec<(String, String)>,
    log: Log,
}

/// Why a configuration is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The policy has no such setting.
    UnknownKey(String),
    /// The setting exists, but not with this value.
    BadValue {
        /// The setting.
        key: String,
        /// What was given, and what was expected.
        value: String,
    },
    /// Anything else, in words.
    Other(String),
}

impl Config {
    /// Checks the keys against the declared settings.
    ///
    /// # Errors
    /// [`ConfigError::UnknownKey`] for a key that is not declared, [`ConfigError::Other`] for one
    /// given twice.
    pub fn new(
        settings: &'static [Setting],
        entries: Vec<(String, String)>,
        log: Log,
    ) -> Result<Self, ConfigError> {
        for (i, (key, _)) in entries.iter().enumerate() {
            if !settings.iter().any(|setting| setting.key == key) {
                return Err(ConfigError::UnknownKey(key.clone()));
            }
            if entries[..i].iter().any(|(earlier, _)| earlier == key) {
                return Err(ConfigError::Other(format!(
                    "setting `{key}` is given twice"
                )));
            }
        }
        Ok(Self {
            settings,
            entries,
            log,
        })
    }

    /// The value as the user gave it, or `None` when the default applies.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.entries
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }

    /// The value of a declared setting, its declared default where the user gave none.
    ///
    /// # Errors
    /// [`ConfigError::BadValue`] when the value does not parse; [`ConfigError::Other`] when the
    /// policy reads a key that it does not declare.
    pub fn parse<T>(&self, key: &str) -> Result<T, ConfigError>
    where
        T: FromStr,
        T::Err: Display,
    {
        let setting = self.declared(key)?;
        parse(setting, self.get(key).unwrap_or(setting.default))
    }

    /// The value of a declared setting, or `default` where the user gave none.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_or<T>(&self, key: &str, default: T) -> Result<T, ConfigError>
    where
        T: FromStr,
        T::Err: Display,
    {
        let setting = self.declared(key)?;
        self.get(key)
            .map_or(Ok(default), |value| parse(setting, value))
    }

    /// Returns a configuration for another policy: its settings, and the user's values for those of
    /// its keys that this configuration has.
    #[must_use]
    pub fn restricted_to(&self, settings: &'static [Setting]) -> Self {
        let is_known = |key: &str| settings.iter().any(|setting| setting.key == key);
        let entries = self.entries.iter();
        Self {
            settings,
            entries: entries.filter(|(key, _)| is_known(key)).cloned().collect(),
            log: self.log.clone(),
        }
    }

    /// Where messages go; keep a clone to log from [`crate::OnlinePolicy::pick`].
    pub fn log(&self) -> &Log {
        &self.log
    }

    fn declared(&self, key: &str) -> Result<&'static Setting, ConfigError> {
        let found = self.settings.iter().find(|setting| setting.key == key);
        found.ok_or_else(|| {
            ConfigError::Other(format!(
                "the policy reads setting `{key}`, which its SETTINGS do not declare"
            ))
        })
    }
}

fn parse<T>(setting: &Setting, value: &str) -> Result<T, ConfigError>
where
    T: FromStr,
    T::Err: Display,
{
    value.parse().map_err(|error| ConfigError::BadValue {
        key: setting.key.to_owned(),
        value: format!("{value} (expected {}: {error})", setting.kind),
    })
}

impl Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKey(key) => write!(f, "the policy has no setting `{key}`"),
            Self::BadValue { key, value } => write!(f, "setting `{key}` cannot be {value}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

impl Error for ConfigError {}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: &[Setting] = &[
        Setting {
            key: "insertion",
            kind: "bool",
            default: "true",
            description: "whether gaps are filled",
        },
        Setting {
            key: "rounds",
            kind: "u32",
            default: "3",
            description: "how often to try again",
        },
    ];

    fn config(entries: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let entries = entries
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Config::new(SETTINGS, entries, Log::silent())
    }

    #[test]
    fn given_values_win_over_defaults() {
        let config = config(&[("rounds", "7")]).unwrap();
        assert_eq!(config.parse("rounds"), Ok(7));
        assert_eq!(config.parse_or("rounds", 9), Ok(7));
        assert_eq!(config.parse("insertion"), Ok(true));
        assert_eq!(config.parse_or("insertion", false), Ok(false));
    }

    #[test]
    fn unknown_and_repeated_keys_are_refused() {
        assert_eq!(
            config(&[("round", "7")]).unwrap_err(),
            ConfigError::UnknownKey("round".to_owned())
        );
        let error = config(&[("rounds", "1"), ("rounds", "2")]).unwrap_err();
        assert_eq!(error.to_string(), "setting `rounds` is given twice");
    }

    #[test]
    fn bad_values_name_the_key_and_the_kind() {
        let config = config(&[("rounds", "many")]).unwrap();
        let error = config.parse::<u32>("rounds").unwrap_err();
        assert_eq!(
            error.to_string(),
            "setting `rounds` cannot be many (expected u32: invalid digit found in string)"
        );
    }

    #[test]
    fn reading_an_undeclared_key_is_reported() {
        let error = config(&[]).unwrap().parse::<u32>("depth").unwrap_err();
        assert!(error.to_string().contains("`depth`"), "{error}");
    }
}
