//! Once over real TLS: the router behind the control plane's own port.

use super::Subject;
