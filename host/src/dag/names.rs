//! Names of a file, by which entries refer to each other.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::error::TaskGraphError;
use super::text::Name;
use super::text::Shown;

/// Numbers of names.
pub(super) struct Names<'a> {
    file: &'a str,
    /// What they name, for messages.
    what: &'static str,
    numbers: HashMap<&'a str, u32>,
}

impl<'a> Names<'a> {
    pub(super) fn new(file: &'a str, what: &'static str) -> Self {
        Self {
            file,
            what,
            numbers: HashMap::new(),
        }
    }

    /// Adds a name, which is an error if it has a number already.
    pub(super) fn add(&mut self, name: &'a Name<'_>, number: u32) -> Result<(), TaskGraphError> {
        let (what, shown) = (self.what, Shown(name));
        if name.is_empty() {
            return Err(name.invalid(self.file, format!("the name of a {what} is empty")));
        }
        if name.chars().any(char::is_control) {
            let problem = format!("the name of {what} {shown} has control characters");
            return Err(name.invalid(self.file, problem));
        }
        match self.numbers.entry(name) {
            Entry::Vacant(entry) => {
                entry.insert(number);
                Ok(())
            }
            Entry::Occupied(_) => {
                Err(name.invalid(self.file, format!("there are two of {what} {shown}")))
            }
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// Returns the number of a name that `reader` mentions.
    pub(super) fn find(&self, name: &Name<'_>, reader: &str) -> Result<u32, TaskGraphError> {
        self.get(name).ok_or_else(|| {
            let (reader, what, name_shown) = (Shown(reader), self.what, Shown(name));
            let problem = format!("task {reader} names {what} {name_shown}, which does not exist");
            name.invalid(self.file, problem)
        })
    }
}
