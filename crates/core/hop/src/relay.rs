//! The relay's end of a hop session's control stream.

use crate::frame::{Frame, Hello, HelloOk, Ping, Refusal, Register, RegisterRefused};
use crate::{SessionFault, VERSION};
use bytes::Bytes;
use fairlead_model::{ProcessBootId, RefusalCode, RelayId};
use std::collections::VecDeque;

/// Most frames that wait to be written. A daemon's registrations arrive in one burst; one that
/// asks for more than this without reading the answers breaks the protocol.
const OUTBOX_MAX: usize = 8_192;

/// What a relay's loop learns from a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayEvent {
    /// The daemon greeted; HELLO_OK is queued.
    Hello(Hello),
    /// Decide, and call [`RelayControl::registered`] or [`RelayControl::refuse`].
    Register(Register),
    /// The daemon gives up a registration.
    Unregister(Register),
    /// The daemon goes away and comes back (R-ADM-03).
    Restarting,
    /// The daemon ends the session.
    Closed(RefusalCode),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Greeting,
    Established,
    Closed,
}

/// The relay's end of a hop session, as a machine.
///
/// **Inputs:** [`handle_frame`](Self::handle_frame), which gives at most one event, and the loop's
/// verdicts on registrations. **Outputs:** frames from [`poll_transmit`](Self::poll_transmit);
/// drain them after every input. A fault ends the session. The machine has no timer: the loop
/// ends a session that has not greeted within the handshake deadline, and the carrier decides
/// whether the daemon's host lives.
#[derive(Debug)]
pub struct RelayControl {
    relay: RelayId,
    process_boot: ProcessBootId,
    legs_max: u32,
    state: State,
    outbox: VecDeque<Frame>,
    probes: u64,
}

impl RelayControl {
    /// A session that has not greeted.
    #[must_use]
    pub fn new(relay: RelayId, process_boot: ProcessBootId, legs_max: u32) -> Self {
        Self {
            relay,
            process_boot,
            legs_max,
            state: State::Greeting,
            outbox: VecDeque::new(),
            probes: 0,
        }
    }

    /// Whether the daemon has greeted and the session has not ended.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.state == State::Established
    }

    /// Takes a frame off the control stream.
    ///
    /// # Errors
    /// The daemon broke the protocol: end the session with [`SessionFault::code`].
    pub fn handle_frame(&mut self, frame: Frame) -> Result<Option<RelayEvent>, SessionFault> {
        match (self.state, frame) {
            (State::Closed, _) => Ok(None),
            (State::Greeting, Frame::Hello(hello)) => {
                if !(hello.version_min..=hello.version_max).contains(&VERSION) {
                    return Err(SessionFault::Version {
                        min: hello.version_min,
                        max: hello.version_max,
                    });
                }
                self.state = State::Established;
                self.send(Frame::HelloOk(HelloOk {
                    version: VERSION,
                    session: hello.session,
                    relay: self.relay,
                    process_boot: self.process_boot,
                    legs_max: self.legs_max,
                    capabilities: Vec::new(),
                }))?;
                Ok(Some(RelayEvent::Hello(hello)))
            }
            (State::Established, Frame::Register(register)) => Ok(Some(RelayEvent::Register(register))),
            (State::Established, Frame::Unregister(register)) => Ok(Some(RelayEvent::Unregister(register))),
            (State::Established, Frame::Restarting) => Ok(Some(RelayEvent::Restarting)),
            (State::Established, Frame::Ping(ping)) => {
                self.send(Frame::Pong(ping))?;
                Ok(None)
            }
            (State::Established, Frame::Pong(_)) => Ok(None),
            (State::Greeting | State::Established, Frame::Close(code)) => {
                self.state = State::Closed;
                self.outbox.clear();
                Ok(Some(RelayEvent::Closed(code)))
            }
            (state, frame) => Err(SessionFault::Unexpected {
                got: frame.name(),
                state: match state {
                    State::Greeting => "waiting for HELLO",
                    State::Established | State::Closed => "in session",
                },
            }),
        }
    }

    /// Tells the daemon that a registration is in force.
    ///
    /// # Errors
    /// The daemon does not read its answers.
    pub fn registered(&mut self, register: Register) -> Result<(), SessionFault> {
        self.send(Frame::Registered(register))
    }

    /// Tells the daemon that a registration is refused.
    ///
    /// # Errors
    /// The daemon does not read its answers.
    pub fn refuse(&mut self, register: Register, refusal: Refusal) -> Result<(), SessionFault> {
        self.send(Frame::RegisterRefused(RegisterRefused { register, refusal }))
    }

    /// Asks the daemon to open new legs elsewhere (R-OPS-01).
    ///
    /// # Errors
    /// The daemon does not read.
    pub fn drain_notice(&mut self) -> Result<(), SessionFault> {
        self.send(Frame::DrainNotice)
    }

    /// Pings the daemon at once: it is doubted (see [`crate::liveness`]).
    ///
    /// # Errors
    /// The daemon does not read.
    pub fn probe(&mut self) -> Result<(), SessionFault> {
        match self.state {
            State::Established => {
                self.probes = self.probes.wrapping_add(1);
                let ping = Ping {
                    number: self.probes,
                    padding: Bytes::new(),
                };
                self.send(Frame::Ping(ping))
            }
            State::Greeting | State::Closed => Ok(()),
        }
    }

    /// Ends the session; CLOSE is the last frame.
    pub fn close(&mut self, code: RefusalCode) {
        if self.state != State::Closed {
            self.state = State::Closed;
            self.outbox.push_back(Frame::Close(code));
        }
    }

    /// Whether a frame waits to be written.
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// The next frame to write to the control stream.
    pub fn poll_transmit(&mut self) -> Option<Frame> {
        self.outbox.pop_front()
    }

    fn send(&mut self, frame: Frame) -> Result<(), SessionFault> {
        if self.outbox.len() >= OUTBOX_MAX {
            return Err(SessionFault::Flood("answers"));
        }
        self.outbox.push_back(frame);
        Ok(())
    }
}
