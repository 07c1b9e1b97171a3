//! Query parameters that a route does not know are refused: one that is ignored looks as if it had
//! been heeded.

use crate::refused::Refused;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use fairlead_control::api::Faults;
use std::collections::BTreeSet;
use std::sync::Arc;
use utoipa::openapi::path::{Parameter, ParameterIn, PathItem};
use utoipa::openapi::{OpenApi, RefOr};

/// Characters of an unknown parameter that are repeated.
pub(crate) const PARAMETER_SHOWN_MAX: usize = 64;

/// The paths whose operations take parameters. Their handlers judge whole queries, names and values
/// together; everywhere else every parameter is unknown.
#[derive(Debug, Clone)]
pub(crate) struct Queries(Arc<BTreeSet<String>>);

impl Queries {
    /// Of the routes that the document lists.
    pub(crate) fn of(document: &OpenApi) -> Self {
        let takes = |item: &PathItem| {
            let operations = [&item.get, &item.post, &item.put, &item.delete];
            let mut parameters = operations
                .into_iter()
                .flatten()
                .flat_map(|operation| operation.parameters.iter().flatten());
            parameters.any(is_query)
        };
        let paths = document.paths.paths.iter().filter(|(_, item)| takes(item));
        Self(Arc::new(paths.map(|(path, _)| path.clone()).collect()))
    }
}

fn is_query(parameter: &RefOr<Parameter>) -> bool {
    match parameter {
        RefOr::T(parameter) => parameter.parameter_in == ParameterIn::Query,
        RefOr::Ref(_) => false,
    }
}

/// Refuses every parameter of a route that takes none.
pub(crate) async fn check(
    State(queries): State<Queries>,
    request: Request,
    next: Next,
) -> Result<Response, Refused> {
    let path = request.extensions().get::<MatchedPath>();
    if path.is_none_or(|path| !queries.0.contains(path.as_str())) {
        let mut faults = Faults::default();
        let names: BTreeSet<&str> = request.uri().query().unwrap_or("").split('&').map(name).collect();
        for name in names.into_iter().filter(|name| !name.is_empty()) {
            faults.add(&shown(name), "unknown parameter: this route takes none");
        }
        faults.into_result(Some(()))?;
    }
    Ok(next.run(request).await)
}

fn name(pair: &str) -> &str {
    pair.split_once('=').map_or(pair, |(name, _)| name)
}

/// A parameter's name as it is repeated in a message.
pub(crate) fn shown(name: &str) -> String {
    name.chars().take(PARAMETER_SHOWN_MAX).collect()
}
