//! Whether a request was made by our own pages. Browsers say so by themselves, and no script of
//! another site can make them say otherwise.

use crate::guard::host_of;
use crate::refused::Refused;
use fairlead_control::ApiError;
use fairlead_model::{ApiCode, HostPort};
use http::header::{HeaderName, ORIGIN};
use http::{HeaderMap, Uri};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The port that stands in no origin.
const HTTPS_PORT: u16 = 443;
/// Characters of a foreign origin that are repeated.
const SHOWN_MAX: usize = 128;

/// Lets changes through that our own pages make: the one `Origin` is this host's.
///
/// # Errors
/// There is no origin, several, or another one; or the browser says that the request crosses sites.
pub(crate) fn check_change(uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
    check_read(headers)?;
    let mut origins = headers.get_all(ORIGIN).iter();
    let (origin, None) = (origins.next(), origins.next()) else {
        return Err(foreign("several origins"));
    };
    let origin = origin.and_then(|value| value.to_str().ok()).unwrap_or("");
    let ours = host_of(uri, headers).and_then(|host| HostPort::parse(host, Some(HTTPS_PORT)).ok());
    let theirs = origin
        .strip_prefix("https://")
        .and_then(|host| HostPort::parse(host, Some(HTTPS_PORT)).ok());
    match (ours, theirs) {
        (Some(ours), Some(theirs)) if ours == theirs => Ok(()),
        (Some(_) | None, _) if origin.is_empty() => Err(foreign("no origin")),
        (Some(_) | None, _) => {
            let shown: String = origin.chars().take(SHOWN_MAX).collect();
            Err(foreign(&format!("the origin `{shown}`")))
        }
    }
}

/// Lets reads through that no page of another site makes. Programs do not say; browsers do.
///
/// # Errors
/// The browser says that the request crosses sites.
pub(crate) fn check_read(headers: &HeaderMap) -> Result<(), Refused> {
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
    // `none`: an address that somebody typed.
    if sites.all(|site| site == "same-origin" || site == "none") {
        Ok(())
    } else {
        Err(foreign("a page of another site"))
    }
}

fn foreign(what: &str) -> Refused {
    ApiError::new(
        ApiCode::CrossSite,
        format!("refused: the request has {what}; only this control plane's own pages may use its cookie"),
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use http::header::HOST;

    fn check(pairs: &[(&str, &str)]) -> bool {
        let mut headers = HeaderMap::new();
        headers.append(HOST, HeaderValue::from_static("Control.example:8443"));
        for (name, value) in pairs {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_str(value).unwrap());
        }
        check_change(&Uri::from_static("/v1/session"), &headers).is_ok()
    }

    #[test]
    fn only_our_own_origin_may_change_things() {
        assert!(check(&[("origin", "https://control.example:8443")]));
        assert!(check(&[
            ("origin", "https://control.example:8443"),
            ("sec-fetch-site", "same-origin")
        ]));
        for pairs in [
            &[][..],
            &[("origin", "")],
            &[("origin", "null")],
            &[("origin", "https://evil.example")],
            &[("origin", "http://control.example:8443")],
            &[("origin", "https://control.example")],
            &[("origin", "https://control.example:8444")],
            &[("origin", "https://control.example:8443.evil.example")],
            &[("origin", "https://control.example:8443/")],
            &[("origin", "https://evil@control.example:8443")],
            &[
                ("origin", "https://control.example:8443"),
                ("origin", "https://evil.example"),
            ],
            &[
                ("origin", "https://control.example:8443"),
                ("sec-fetch-site", "cross-site"),
            ],
            &[
                ("origin", "https://control.example:8443"),
                ("sec-fetch-site", "same-site"),
            ],
        ] {
            assert!(!check(pairs), "{pairs:?}");
        }
        let uri = Uri::from_static("https://control.example/v1/session");
        let mut headers = HeaderMap::new();
        headers.insert(ORIGIN, HeaderValue::from_static("https://control.example"));
        assert!(
            check_change(&uri, &headers).is_ok(),
            "HTTP/2, and the port that none writes"
        );
    }
}
