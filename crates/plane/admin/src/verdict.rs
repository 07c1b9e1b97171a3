//! How the pool is, in one word: the console, the command line and whoever else asks are told the same. Pure.

use crate::json::{Warning, waits_for_somebody};
use fairlead_control::api::{LinkState, Look, NodeState, RelayState};

/// Nothing is wrong, and all is ready.
pub(crate) const WELL: &str = "well";
/// Something is not ready yet, and nothing is known to be wrong.
pub(crate) const SETTLING: &str = "settling";
/// There are warnings, or members wait for somebody to enrol them.
pub(crate) const ATTENTION: &str = "attention";

/// The pool's verdict; `warnings` are those of the same look.
pub(crate) fn verdict(look: &Look, warnings: &[Warning]) -> &'static str {
    let relays = look.relays.iter().map(|relay| relay.state.as_str());
    let nodes = look.nodes.iter().map(|node| node.state.as_str());
    if !warnings.is_empty() || relays.chain(nodes).any(waits_for_somebody) {
        return ATTENTION;
    }
    let is_ready = look.relays.iter().all(|relay| relay.state == RelayState::Ready)
        && look.nodes.iter().all(|node| node.state == NodeState::Ready)
        && look.links.iter().all(|link| link.state == LinkState::Ready);
    if is_ready { WELL } else { SETTLING }
}
