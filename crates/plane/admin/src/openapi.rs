//! The OpenAPI document: made from the handlers, so that it cannot differ from the router.

use crate::json::ErrorBody;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Components, OpenApi};
use utoipa::{Modify, OpenApi as _};

/// The document before the routes are added.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Fairlead",
        description = "The control plane's admin interface. Errors of every route have one form: \
                       a stable code, a sentence, every fault of the request, facts for programs."
    ),
    components(schemas(ErrorBody)),
    modifiers(&Bearer),
    tags(
        (name = "members", description = "Relays and nodes, and their enrolment"),
        (name = "links", description = "What is published to whom"),
        (name = "system", description = "Audit log, settings, admin tokens, status"),
    )
)]
struct Document;

/// Adds the security scheme `bearer`, which protected routes name.
struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(
                "An admin token; scopes: admin:system (everything), read (GET only)",
            ))
            .build();
        document
            .components
            .get_or_insert_with(Components::new)
            .add_security_scheme("bearer", SecurityScheme::Http(scheme));
    }
}

/// The document without paths.
pub(crate) fn document() -> OpenApi {
    Document::openapi()
}
