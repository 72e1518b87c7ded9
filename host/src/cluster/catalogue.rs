//! The catalogue of processors and links.

use std::sync::LazyLock;

use super::file::ClusterFile;

/// The file is part of the program.
const TEXT: &str = include_str!("catalogue.toml");

static CATALOGUE: LazyLock<ClusterFile> = LazyLock::new(|| {
    let parsed = toml::from_str(TEXT);
    parsed.expect("a test parses the catalogue")
});

/// A profile or link of the catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogueEntry {
    /// The name by which cluster files refer to it.
    pub name: String,
    /// The device type; `None` for a link.
    pub device_type: Option<String>,
    /// What it is.
    pub description: String,
    /// Where its figures come from.
    pub source: String,
}

/// Returns the catalogue: first profiles, then links, each by name.
pub fn catalogue() -> Vec<CatalogueEntry> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let profiles = CATALOGUE.profiles.iter();
    let profiles = profiles.map(|(name, profile)| CatalogueEntry {
        name: name.clone(),
        device_type: Some(profile.device_type.get_ref().clone()),
        description: text(&profile.description),
        source: text(&profile.source),
    });
    let links = CATALOGUE.links.iter();
    let links = links.map(|(name, link)| CatalogueEntry {
        name: name.clone(),
        device_type: None,
        description: text(&link.description),
        source: text(&link.source),
    });
    profiles.chain(links).collect()
}

pub(super) fn file() -> &'static ClusterFile {
    &CATALOGUE
}
