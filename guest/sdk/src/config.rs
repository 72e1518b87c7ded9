//! Configuration: the user's `--policy-config KEY=VALUE`, checked against the declared settings.
//!
//! Takes the properties of the contract's `configure`; returns typed values, or an error that names
//! the key.

use std::error::Error;
use std::fmt;
use std::fmt::Display;
use std::str::FromStr;

pub use crate::bytes::Bytes;
pub use crate::bytes::BytesError;
use crate::log::Log;

/// One configuration key of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// The key.
    pub key: &'static str,
    /// The type of its values, for users: `bool`, `u32`, `f64`, `name`, `bytes` ([`Bytes`]).
    pub kind: &'static str,
    /// The value if the user sets none, which [`Config::parse`] then parses.
    pub default: &'static str,
    /// A description in one sentence.
    pub description: &'static str,
}

/// The configuration of one policy instance.
///
/// The policy declares every key of it in its `SETTINGS`: the SDK refuses other keys before
/// [`crate::Policy::configure`] is called.
#[derive(Debug, Clone)]
pub struct Config {
    settings: &'static [Setting],
    entries: Vec<(String, String)>,
    log: Log,
}

/// The reason why a configuration is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The policy has no such setting.
    UnknownKey(String),
    /// The value of a setting is invalid.
    BadValue {
        /// The setting.
        key: String,
        /// The value, and what was expected.
        value: String,
    },
    /// Any other reason.
    Other(String),
}

impl Config {
    /// Checks the keys against the declared settings.
    ///
    /// # Errors
    /// [`ConfigError::UnknownKey`] for a key that is not declared, [`ConfigError::Other`] for one
    /// that is set twice.
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
                return Err(ConfigError::Other(format!("setting `{key}` is set twice")));
            }
        }
        Ok(Self {
            settings,
            entries,
            log,
        })
    }

    /// Returns the user's value, or `None` if the default applies.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.entries
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }

    /// Parses the value of a declared setting, or its declared default if the user set none.
    ///
    /// # Errors
    /// [`ConfigError::BadValue`] if the value does not parse; [`ConfigError::Other`] if the policy
    /// reads a key that it does not declare.
    pub fn parse<T>(&self, key: &str) -> Result<T, ConfigError>
    where
        T: FromStr,
        T::Err: Display,
    {
        let setting = self.declared(key)?;
        parse(setting, self.get(key).unwrap_or(setting.default))
    }

    /// Parses the value of a declared setting, or returns `default` if the user set none.
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

    /// Returns a configuration for another policy that declares `settings`. For the keys that both
    /// policies declare, it has the user's values. If the user set none and the two defaults
    /// differ, it has this policy's default, which is the one that users see.
    #[must_use]
    pub fn restricted_to(&self, settings: &'static [Setting]) -> Self {
        let entry = |setting: &Setting| {
            let own = self.declared(setting.key).ok()?;
            let default = Some(own.default).filter(|default| *default != setting.default);
            let value = self.get(setting.key).or(default)?;
            Some((setting.key.to_owned(), value.to_owned()))
        };
        Self {
            settings,
            entries: settings.iter().filter_map(entry).collect(),
            log: self.log.clone(),
        }
    }

    /// Returns the log. Keep a clone to log from [`crate::OnlinePolicy::pick`].
    pub fn log(&self) -> &Log {
        &self.log
    }

    fn declared(&self, key: &str) -> Result<&'static Setting, ConfigError> {
        let found = self.settings.iter().find(|setting| setting.key == key);
        found.ok_or_else(|| {
            ConfigError::Other(format!(
                "the policy reads setting `{key}`, but its SETTINGS do not declare it"
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
            Self::BadValue { key, value } => {
                write!(f, "setting `{key}` has the invalid value {value}")
            }
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
        Setting {
            key: "reserve",
            kind: "bytes",
            default: "64MiB",
            description: "memory that stays free",
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
        assert_eq!(error.to_string(), "setting `rounds` is set twice");
    }

    #[test]
    fn bad_values_name_the_key_and_the_kind() {
        let config = config(&[("rounds", "many")]).unwrap();
        let error = config.parse::<u32>("rounds").unwrap_err();
        assert_eq!(
            error.to_string(),
            "setting `rounds` has the invalid value many (expected u32: invalid digit found in string)"
        );
    }

    #[test]
    fn sizes_have_units() {
        let unset = config(&[]).unwrap();
        assert_eq!(unset.parse("reserve"), Ok(Bytes(64 << 20)));
        let config = config(&[("reserve", "4 MByte")]).unwrap();
        let error = config.parse::<Bytes>("reserve").unwrap_err();
        assert_eq!(
            error.to_string(),
            "setting `reserve` has the invalid value 4 MByte (expected bytes: a unit such as KiB, \
             MiB, GiB, KB, MB or GB)"
        );
    }

    #[test]
    fn another_policy_gets_the_values_of_the_keys_that_both_declare() {
        const INNER: &[Setting] = &[
            Setting {
                default: "5",
                ..SETTINGS[1]
            },
            Setting {
                key: "depth",
                ..SETTINGS[1]
            },
        ];
        let set = config(&[("rounds", "7"), ("insertion", "false")]).unwrap();
        let inner = set.restricted_to(INNER);
        assert_eq!(inner.parse("rounds"), Ok(7));
        assert_eq!(inner.get("insertion"), None);
        assert_eq!(inner.get("depth"), None);
        let unset = config(&[]).unwrap();
        let inner = unset.restricted_to(INNER);
        assert_eq!(inner.parse("rounds"), Ok(3), "the default that users see");
        assert_eq!(unset.restricted_to(SETTINGS).get("rounds"), None);
    }

    #[test]
    fn reading_an_undeclared_key_is_reported() {
        let error = config(&[]).unwrap().parse::<u32>("depth").unwrap_err();
        assert!(error.to_string().contains("`depth`"), "{error}");
    }
}
