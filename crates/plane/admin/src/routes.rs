//! The routes, by object.

mod enrol;
mod events;
mod links;
mod nodes;
mod relays;
mod session;
mod settings;
mod system;
mod tokens;

use crate::refused::Refused;
use crate::{Admin, access, console, openapi, query};
use axum::extract::{FromRequestParts, Path};
use axum::middleware::from_fn_with_state;
use axum::{Json, Router};
use fairlead_control::ApiError;
use fairlead_model::ApiCode;
use http::request::Parts;
use http::{Method, Uri};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// An answer, or an error.
type Answer<T> = Result<Json<T>, Refused>;

/// Characters of a path that are repeated in a message.
const PATH_SHOWN_MAX: usize = 128;

/// All routes.
pub(crate) fn router(admin: Admin) -> Router {
    let (protected, document) = OpenApiRouter::with_openapi(openapi::document())
        .routes(routes!(relays::list, relays::add))
        .routes(routes!(relays::show, relays::remove))
        .routes(routes!(relays::reissue))
        .routes(routes!(nodes::list, nodes::add))
        .routes(routes!(nodes::show, nodes::remove))
        .routes(routes!(nodes::reissue))
        .routes(routes!(links::list, links::add))
        .routes(routes!(links::show, links::remove))
        .routes(routes!(links::check))
        .routes(routes!(system::audit))
        .routes(routes!(settings::list))
        .routes(routes!(settings::show, settings::set))
        .routes(routes!(tokens::list, tokens::add))
        .routes(routes!(tokens::revoke))
        .routes(routes!(system::whoami))
        .routes(routes!(system::status))
        .routes(routes!(system::warnings))
        .routes(routes!(events::events))
        .split_for_parts();
    let (public, document) = OpenApiRouter::with_openapi(document)
        .routes(routes!(enrol::enrol))
        .routes(routes!(session::login, session::logout))
        .routes(routes!(system::health))
        .routes(routes!(system::document))
        .split_for_parts();
    let queries = query::Queries::of(&document);
    protected
        .route_layer(from_fn_with_state(admin.clone(), access::authorise))
        .merge(public)
        .merge(console::routes())
        .route_layer(from_fn_with_state(queries, query::check))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .layer(axum::Extension(Arc::new(document)))
        .with_state(admin)
}

async fn not_found(uri: Uri) -> Refused {
    let path: String = uri.path().chars().take(PATH_SHOWN_MAX).collect();
    Refused::new(
        ApiCode::NotFound,
        format!("there is no `{path}` here: /v1/openapi.json lists what there is"),
    )
}

async fn method_not_allowed(method: Method, uri: Uri) -> Refused {
    let path: String = uri.path().chars().take(PATH_SHOWN_MAX).collect();
    Refused::new(
        ApiCode::MethodNotAllowed,
        format!("`{path}` does not take {method}: /v1/openapi.json lists what it takes"),
    )
}

/// The name or id in a path.
#[derive(Debug)]
struct Which(String);

impl<S: Send + Sync> FromRequestParts<S> for Which {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(text)) => Ok(Self(text)),
            Err(_) => Err(
                ApiError::new(ApiCode::InvalidRequest, "the path is not UTF-8 text")
                    .with_fault("path", "expected a name or an id")
                    .into(),
            ),
        }
    }
}
