//! Probes of a relay from outside.

use super::{Bench, dialler, relay_id, soon};
use crate::{Carrier, CarrierEnd, ProbeError, probe};
use fairlead_hop::{Frame, RelayControl};
use fairlead_model::{Identity, ProcessBootId, RefusalCode};

/// Answers one control stream like a relay; pings above `echo_max` bytes are swallowed. How it ended.
async fn answer(carrier: Carrier, echo_max: usize) -> CarrierEnd {
    let mut control = carrier.accept_leg().await.unwrap();
    let mut machine = RelayControl::new(relay_id(1), ProcessBootId::from_bytes([1; 16]), 100);
    while let Ok(Some(frame)) = control.recv.read_frame().await {
        if let Frame::Ping(ping) = &frame
            && ping.padding.len() > echo_max
        {
            continue;
        }
        machine.handle_frame(frame).unwrap();
        while let Some(frame) = machine.poll_transmit() {
            control.send.write_frame(&frame).await.unwrap();
        }
    }
    carrier.closed().await
}

async fn probed(bench: &Bench, echo_max: usize) -> Result<crate::ProbeReport, ProbeError> {
    let prober = dialler(bench.authority.member(Identity::Relay(relay_id(2))));
    let relay = async {
        let carrier = bench.listener.accept().await.unwrap().finish().await.unwrap();
        answer(carrier, echo_max).await
    };
    let (report, end) =
        soon(async { tokio::join!(probe(&prober, &bench.address, relay_id(1)), relay) }).await;
    // The relay's log has these words for each probe: nobody shuts down.
    assert_eq!(end, CarrierEnd::Peer(RefusalCode::MemberLeft.into()));
    assert!(
        end.to_string().ends_with("the member has ended its session"),
        "{end}"
    );
    report
}

/// R-ENR-07: a probe is a handshake from outside the process, and an echo.
#[tokio::test]
async fn a_relay_that_echoes_is_reachable() {
    let bench = Bench::new();
    let report = probed(&bench, usize::MAX).await.unwrap();
    assert!(report.rtt.as_micros() > 0);
    assert_eq!(report.address, bench.listener.local_address().unwrap());
}

/// R-RCH-03, F-11: a port that answers while data is blocked is unreachable.
#[tokio::test]
async fn a_relay_that_passes_only_small_frames_is_not() {
    let bench = Bench::new();
    let error = probed(&bench, 1_000).await.unwrap_err();
    assert!(matches!(error, ProbeError::NoEcho), "{error}");
}
