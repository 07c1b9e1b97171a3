//! One object, by its name or id; if it is not there, what is.

use crate::exit::{Exit, Failing, Failure};
use crate::faults::{Faults, SettingsError};
use crate::rest::{RestClient, RestError, segment};
use fairlead_admin::json;
use fairlead_model::ApiCode;

/// So many names are listed when one is not found.
const NAMES_MAX: usize = 20;

/// A name or id as an admin wrote it.
#[derive(Debug)]
pub(super) struct One<'a> {
    /// The kind, as in paths: `relays`.
    kind: &'static str,
    text: &'a str,
}

/// It is not there.
#[derive(Debug, thiserror::Error)]
#[error("{}", said(&error.to_string(), text, names, *more))]
struct NotFound {
    error: RestError,
    text: String,
    names: Vec<String>,
    more: bool,
}

/// The error, and the name that was likely meant, else all of them if it does not list them itself.
pub(crate) fn said(error: &str, text: &str, names: &[String], more: bool) -> String {
    let there = are(names, more);
    match nearest(text, names) {
        Some(name) => format!("{error}; did you mean `{name}`?"),
        None if error.contains(&there) => error.to_owned(),
        None => format!("{error}; there {there}"),
    }
}

/// The name most like `text`, if one is as like it as a slip of the finger leaves it.
fn nearest<'a>(text: &str, names: &'a [String]) -> Option<&'a String> {
    const LIKE_MIN: f64 = 0.8;
    let like = |name: &str| strsim::jaro_winkler(&text.to_lowercase(), &name.to_lowercase());
    let best = names.iter().max_by(|a, b| like(a).total_cmp(&like(b)))?;
    (like(best) >= LIKE_MIN).then_some(best)
}

fn are(names: &[String], more: bool) -> String {
    match names {
        [] => "are none".to_owned(),
        [name] => format!("is only {name}"),
        names => format!("are: {}{}", names.join(", "), if more { ", …" } else { "" }),
    }
}

impl Failing for NotFound {
    fn exit(&self) -> Exit {
        self.error.exit()
    }
}

impl<'a> One<'a> {
    /// # Errors
    /// It is empty.
    pub(super) fn of(kind: &'static str, text: &'a str) -> Result<Self, SettingsError> {
        let mut faults = Faults::default();
        let one = Self { kind, text };
        if text.trim().is_empty() {
            let place = if kind == "settings" { "KEY" } else { "NAME" };
            faults.add(place, format!("is empty: which {}?", one.noun()));
        }
        faults.finish(Some(one))
    }

    pub(super) fn path(&self) -> String {
        format!("/v1/{}/{}", self.kind, segment(self.text))
    }

    /// The kind as a word for one of it.
    pub(super) fn noun(&self) -> &'static str {
        self.kind.strip_suffix('s').unwrap_or(self.kind)
    }

    /// The result; where the object is not found, the error with the names of those that are.
    ///
    /// # Errors
    /// The request's own.
    pub(super) async fn known<T>(
        &self,
        client: &RestClient,
        result: Result<T, RestError>,
    ) -> Result<T, Failure> {
        let error = match result {
            Err(
                error @ RestError::Api {
                    code: ApiCode::NotFound,
                    ..
                },
            ) => error,
            other => return Ok(other?),
        };
        let list: Result<json::List<serde_json::Value>, RestError> =
            client.get(&format!("/v1/{}", self.kind)).await;
        let Ok(list) = list else {
            return Err(error.into());
        };
        let name = |value: &serde_json::Value| {
            let name = value.get("name").or_else(|| value.get("key"))?;
            Some(name.as_str()?.to_owned())
        };
        Err(NotFound {
            error,
            text: self.text.to_owned(),
            names: shown(self.text, list.items.iter().filter_map(name).collect()),
            more: list.items.len() > NAMES_MAX,
        }
        .into())
    }
}

/// At most [`NAMES_MAX`] names; the one most like `text` is among them.
fn shown(text: &str, mut names: Vec<String>) -> Vec<String> {
    if let Some(place) = nearest(text, &names).and_then(|best| names.iter().position(|n| n == best)) {
        names.swap(0, place);
    }
    names.truncate(NAMES_MAX);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_name_is_asked_for_and_candidates_are_listed() {
        let error = One::of("nodes", "").unwrap_err().to_string();
        assert!(error.contains("NAME: is empty: which node?"), "{error}");
        assert_eq!(One::of("nodes", "a/b").unwrap().path(), "/v1/nodes/a%2Fb");
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        assert_eq!(are(&names(&["a", "b"]), true), "are: a, b, …");
        assert_eq!(are(&[], false), "are none");
        let known = names(&["alpha", "paris-1"]);
        assert_eq!(said("no", "alhpa", &known, false), "no; did you mean `alpha`?");
        assert_eq!(
            said("no", "tokyo", &known, false),
            "no; there are: alpha, paris-1"
        );
        let listed = "there is no `tokyo`; there are: alpha, paris-1";
        assert_eq!(said(listed, "tokyo", &known, false), listed);
    }
}
