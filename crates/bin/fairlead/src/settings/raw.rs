//! Flags and file merged into texts, each with its place.

use super::{Kind, Setting};
use crate::faults::Faults;
use fairlead_host::file;
use fairlead_model::ListenAddress;
use fairlead_telemetry::chain;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

/// A settings file's greatest size: hundreds of times what the longest table needs.
const FILE_LEN_MAX: usize = 64 * 1024;

/// Values of one daemon by key, flags over file over defaults: (place, text).
pub(super) struct Raw(BTreeMap<&'static str, (String, String)>);

impl Raw {
    pub(super) fn read(
        table: &'static [Setting],
        path: Option<&Path>,
        flags: &[(&'static str, Option<&str>)],
        faults: &mut Faults,
    ) -> Self {
        let mut raw = Self(BTreeMap::new());
        let mut whole = true;
        if let Some(path) = path {
            let contents = file::read_given(path, FILE_LEN_MAX).map_err(|e| chain(&e));
            whole = faults
                .take("--settings", contents)
                .is_some_and(|text| raw.take_file(&path.display().to_string(), &text, table, faults));
        }
        for (key, value) in flags {
            if let Some(value) = value {
                raw.0.insert(key, (flag(key), (*value).to_owned()));
            }
        }
        raw.complete(table, whole, faults);
        raw
    }

    pub(super) fn of_contents(
        name: &str,
        contents: &str,
        table: &'static [Setting],
        faults: &mut Faults,
    ) -> Self {
        let mut raw = Self(BTreeMap::new());
        let whole = raw.take_file(name, contents, table, faults);
        raw.complete(table, whole, faults);
        raw
    }

    /// Takes a file's values; every unknown key and wrong kind is noted with its place. Whether it is
    /// TOML at all.
    fn take_file(
        &mut self,
        name: &str,
        contents: &str,
        table: &'static [Setting],
        faults: &mut Faults,
    ) -> bool {
        let parsed: toml::Table = match contents.parse() {
            Ok(parsed) => parsed,
            Err(error) => {
                faults.add(name, error.to_string().trim_end().to_owned());
                return false;
            }
        };
        for (key, value) in parsed {
            let place = format!("{name}: {key}");
            let Some(setting) = table.iter().find(|s| s.key == key) else {
                let known: Vec<_> = table.iter().map(|s| s.key).collect();
                faults.add(place, format!("no such setting (known: {})", known.join(", ")));
                continue;
            };
            match (setting.kind, value) {
                (Kind::Text, toml::Value::String(text)) => {
                    self.0.insert(setting.key, (place, text));
                }
                (Kind::Switch, toml::Value::Boolean(on)) => {
                    self.0.insert(setting.key, (place, on.to_string()));
                }
                (Kind::Text, other) => {
                    let example = setting.default.unwrap_or("…");
                    let kind = other.type_str();
                    faults.add(
                        place,
                        format!("is {kind}, not a string: write `{key} = \"{example}\"`"),
                    );
                }
                (Kind::Switch, other) => {
                    faults.add(place, format!("is {}, not true or false", other.type_str()));
                }
            }
        }
        true
    }

    /// Fills in defaults and notes what is missing; of a file that was not read, that is not known.
    fn complete(&mut self, table: &'static [Setting], whole: bool, faults: &mut Faults) {
        for setting in table {
            if self.0.contains_key(setting.key) {
                continue;
            }
            if let Some(default) = setting.default {
                self.0
                    .insert(setting.key, (flag(setting.key), default.to_owned()));
            } else if setting.required && whole {
                faults.add(flag(setting.key), format!("is missing. {}", setting.meaning));
            }
        }
    }

    pub(super) fn get<T>(
        &self,
        key: &str,
        faults: &mut Faults,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let (place, value) = self.0.get(key)?;
        faults.take(place, parse(value))
    }
}

fn flag(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

pub(super) fn display(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// An address to listen on, where port 0 picks a free one.
pub(super) fn socket_address(text: &str) -> Result<SocketAddr, String> {
    match text.parse::<SocketAddr>() {
        Ok(address) => Ok(address),
        Err(_) => text.parse::<ListenAddress>().map(|a| a.0).map_err(display),
    }
}
