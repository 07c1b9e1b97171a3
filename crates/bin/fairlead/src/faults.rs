//! Faults of flags and settings, collected and shown together before anything starts.

use crate::exit::{Exit, Failing};
use std::fmt;
use std::str::FromStr;

/// One thing that is wrong, with its place: a flag, or a file and key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where: `--listen`, or `control.toml: listen`.
    pub place: String,
    /// What is wrong and what is allowed.
    pub message: String,
}

/// The faults found so far.
#[derive(Debug, Default)]
pub struct Faults(Vec<Fault>);

/// Flags or settings with faults. Nothing was done.
#[derive(Debug, PartialEq, Eq)]
pub struct SettingsError(Vec<Fault>);

impl Faults {
    /// Notes a fault.
    pub fn add(&mut self, place: impl Into<String>, message: impl Into<String>) {
        self.0.push(Fault {
            place: place.into(),
            message: message.into(),
        });
    }

    /// The value, or its error noted.
    pub fn take<T, E: fmt::Display>(&mut self, place: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|e| self.add(place, e.to_string())).ok()
    }

    /// The value that was checked elsewhere, or its faults noted.
    pub fn take_all<T>(&mut self, result: Result<T, SettingsError>) -> Option<T> {
        result.map_err(|SettingsError(faults)| self.0.extend(faults)).ok()
    }

    /// Parses `text`, or notes why it cannot be.
    pub fn parse<T>(&mut self, place: &str, text: &str) -> Option<T>
    where
        T: FromStr,
        T::Err: fmt::Display,
    {
        self.take(place, text.parse())
    }

    /// Ends the check: the faults, if there are any.
    ///
    /// # Errors
    /// Every fault, in the order found.
    pub fn finish<T>(self, value: Option<T>) -> Result<T, SettingsError> {
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            Some(_) | None => Err(SettingsError(self.0)),
        }
    }
}

impl SettingsError {
    /// The faults.
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        &self.0
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => f.write_str("nothing was done; one thing is wrong:")?,
            n => write!(f, "nothing was done; {n} things are wrong:")?,
        }
        for fault in &self.0 {
            write!(f, "\n  {}: {}", fault.place, fault.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for SettingsError {}

impl Failing for SettingsError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}
