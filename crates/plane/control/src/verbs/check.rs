//! Tries a link's path for an admin (R-UI-04).

use super::missing;
use crate::api::{ApiError, PathCheckView};
use crate::control::Control;
use crate::observed::CheckAsked;
use crate::view::Viewer;
use fairlead_host::rng;
use fairlead_model::ApiCode;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a consumer may take: a dial, a handshake, two opens, and a wait for one that tries
/// another path meanwhile.
const CHECK_WAIT_MAX: Duration = Duration::from_secs(25);

impl Control {
    /// Lets the link's consumer open a new hop session to one of the link's relays (the first where
    /// none is named), a new association and a new tunnel to the publisher's daemon, which sends back
    /// every byte; then one more to the target, which is closed at once.
    ///
    /// A path that does not work is no error: the view says how far it came.
    ///
    /// # Errors
    /// No such link or relay; the relay does not carry the link; the consumer is not connected, tries
    /// too many paths already, or does not answer.
    pub async fn check_link(&self, link: &str, relay: Option<&str>) -> Result<PathCheckView, ApiError> {
        let (view, relay) = {
            let viewer = Viewer::new(&self.0);
            let record = viewer
                .state
                .find_link(link)?
                .ok_or_else(|| missing(&viewer.state, "link", link))?;
            let view = viewer.link(record);
            let relay = match relay {
                None => view.relays.first().cloned().ok_or_else(|| {
                    ApiError::new(
                        ApiCode::NotCarried,
                        "no relay carries the link: it has no path to try",
                    )
                })?,
                Some(name_or_id) => {
                    let named = viewer.state.find_relay(name_or_id)?;
                    let id = named
                        .ok_or_else(|| missing(&viewer.state, "relay", name_or_id))?
                        .id
                        .0;
                    let carrying = view.relays.iter().find(|r| r.id == id).cloned();
                    carrying.ok_or_else(|| {
                        ApiError::new(
                            ApiCode::NotCarried,
                            format!("relay {name_or_id} does not carry link {}", view.name),
                        )
                    })?
                }
            };
            (view, relay)
        };
        let away = || {
            ApiError::new(
                ApiCode::NodeNotConnected,
                format!(
                    "consumer {} is not connected: it cannot try the path",
                    view.from.name
                ),
            )
        };
        let (answer, report) = oneshot::channel();
        let asked = CheckAsked {
            check: rng::bytes(),
            route: view.route,
            relay: relay.id,
            answer,
        };
        self.0.observed.ask_check(view.from.id, asked).map_err(|full| {
            if full {
                ApiError::new(
                    ApiCode::Unavailable,
                    format!(
                        "consumer {} tries other paths; ask again in a moment",
                        view.from.name
                    ),
                )
            } else {
                away()
            }
        })?;
        let report = match tokio::time::timeout(CHECK_WAIT_MAX, report).await {
            Ok(Ok(report)) => report,
            Ok(Err(_)) => return Err(away()),
            Err(_) => {
                return Err(ApiError::new(
                    ApiCode::Unavailable,
                    format!(
                        "consumer {} did not report within {} s; an older version cannot try paths",
                        view.from.name,
                        CHECK_WAIT_MAX.as_secs()
                    ),
                ));
            }
        };
        Ok(PathCheckView {
            link: view.name,
            from: view.from,
            to: view.to,
            relay,
            report,
        })
    }
}
