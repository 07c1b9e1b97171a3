//! The daemon's end of a hop session's control stream.

use crate::frame::{Frame, Hello, Ping, Refusal, Register};
use crate::{SessionFault, VERSION};
use bytes::Bytes;
use fairlead_model::{
    EndpointId, Generation, MonoTime, ProcessBootId, RefusalCode, RegistrationBoot, RegistrationEpoch,
    RelayId, SessionId,
};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How long the relay may take for its HELLO_OK: the handshake deadline of ARCHITECTURE.md, Hop sessions and legs.
const HELLO_DEADLINE: Duration = Duration::from_secs(10);
/// How often the daemon pings a quiet relay.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Silence on the control stream that ends the session. Longer than a frozen relay is kept: this
/// one only catches a relay whose carrier lives and whose session loop does not.
pub const SILENCE_MAX: Duration = Duration::from_secs(70);
const _: () = assert!(SILENCE_MAX.as_millis() > crate::liveness::FROZEN_MAX.as_millis());
/// For this long a refused registration is tried again soon: its policy may be on the way
/// (R-POL-10).
const RETRY_SOON_FOR: Duration = Duration::from_secs(10);
/// The soon: 0.2 to 0.4 s (R-POL-10).
const RETRY_SOON_MS: (u64, u64) = (200, 400);
/// After that: 4 to 6 s.
const RETRY_LATE_MS: (u64, u64) = (4_000, 6_000);
/// Most pongs that wait to be sent. A relay that pings faster than it reads breaks the protocol.
const PONGS_MAX: usize = 8;
/// Most events that wait to be taken.
const EVENTS_MAX: usize = 16_384;

/// What a daemon brings into a hop session.
#[derive(Debug, Clone)]
pub struct NodeControlConfig {
    /// The session's id, fresh for each.
    pub session: SessionId,
    /// This run of the daemon.
    pub process_boot: ProcessBootId,
    /// How often the daemon has started.
    pub boot: RegistrationBoot,
    /// Rises with each hop session of this run, whatever the relay.
    pub session_number: u32,
    /// Software version, for the relay's log.
    pub software: String,
}

/// What became of one registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistrationState {
    /// Sent, or about to be.
    Pending,
    /// In force at the relay.
    Registered,
    /// Refused; tried again at the given time.
    Refused {
        /// Why.
        code: RefusalCode,
        /// When it is tried again.
        retry_at: MonoTime,
    },
}

/// What a daemon's loop learns from its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeEvent {
    /// The relay answered: legs may be opened.
    Established {
        /// Who it says it is; the carrier has authenticated it.
        relay: RelayId,
        /// The relay worker's run.
        relay_boot: ProcessBootId,
        /// Most legs that may be open at once.
        legs_max: u32,
    },
    /// A registration is in force.
    Registered {
        /// The endpoint.
        endpoint: EndpointId,
        /// Its generation.
        generation: Generation,
    },
    /// A registration was refused; the machine tries again by itself.
    RegisterRefused {
        /// The endpoint.
        endpoint: EndpointId,
        /// Its generation.
        generation: Generation,
        /// Why.
        code: RefusalCode,
        /// When it is tried again.
        retry_at: MonoTime,
    },
    /// Open new legs through other relays.
    DrainNotice,
    /// The relay ends the session.
    Closed {
        /// Why.
        code: RefusalCode,
    },
    /// Round-trip time of a ping, the relay's event loop included.
    Rtt(Duration),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// HELLO is sent or about to be.
    Greeting,
    Established,
    Closed,
}

#[derive(Debug)]
struct Entry {
    generation: Generation,
    state: RegistrationState,
    /// When this generation was first tried in this session.
    since: MonoTime,
    attempts: u32,
}

/// The daemon's end of a hop session, as a machine.
///
/// **Inputs:** [`handle_frame`](Self::handle_frame), [`handle_timeout`](Self::handle_timeout) at
/// [`poll_timeout`](Self::poll_timeout), and the wanted publications. **Outputs:** frames from
/// [`poll_transmit`](Self::poll_transmit) and events from [`poll_event`](Self::poll_event); drain
/// both after every input. A fault ends the session: send nothing more and close the carrier with
/// [`SessionFault::code`]. Nothing needs to be persisted, except that `boot` must have been before
/// the machine is made, so that the next run registers with a higher epoch (R-ADM-04).
#[derive(Debug)]
pub struct NodeControl {
    config: NodeControlConfig,
    state: State,
    outbox: VecDeque<Frame>,
    pongs_waiting: usize,
    events: VecDeque<NodeEvent>,
    registrations: BTreeMap<EndpointId, Entry>,
    started: MonoTime,
    heard: MonoTime,
    ping_due: MonoTime,
    ping_sent: Option<(u64, MonoTime)>,
    ping_number: u64,
}

impl NodeControl {
    /// A new session; its first transmit is HELLO.
    #[must_use]
    pub fn new(config: NodeControlConfig, now: MonoTime) -> Self {
        let hello = Frame::Hello(Hello {
            version_min: VERSION,
            version_max: VERSION,
            session: config.session,
            process_boot: config.process_boot,
            software: config.software.chars().take(32).collect(),
            capabilities: Vec::new(),
        });
        Self {
            config,
            state: State::Greeting,
            outbox: VecDeque::from([hello]),
            pongs_waiting: 0,
            events: VecDeque::new(),
            registrations: BTreeMap::new(),
            started: now,
            heard: now,
            ping_due: now.plus(PING_INTERVAL),
            ping_sent: None,
            ping_number: 0,
        }
    }

    /// Whether the relay has answered and the session has not ended.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.state == State::Established
    }

    /// The registrations of this session.
    pub fn registrations(&self) -> impl Iterator<Item = (EndpointId, Generation, RegistrationState)> + '_ {
        self.registrations
            .iter()
            .map(|(endpoint, entry)| (*endpoint, entry.generation, entry.state))
    }

    /// Replaces the wanted publications: registers what is new or has another generation,
    /// unregisters what is gone. Memory and frames are proportional to the publications, which the
    /// node's policy bounds.
    pub fn set_publications(&mut self, wanted: &BTreeMap<EndpointId, Generation>, now: MonoTime) {
        let gone: Vec<EndpointId> = self
            .registrations
            .keys()
            .filter(|endpoint| !wanted.contains_key(endpoint))
            .copied()
            .collect();
        for endpoint in gone {
            if let Some(entry) = self.registrations.remove(&endpoint)
                && self.is_established()
            {
                let register = self.register(endpoint, entry.generation);
                self.outbox.push_back(Frame::Unregister(register));
            }
        }
        for (&endpoint, &generation) in wanted {
            let same = self
                .registrations
                .get(&endpoint)
                .is_some_and(|entry| entry.generation == generation);
            if !same {
                self.registrations.insert(
                    endpoint,
                    Entry {
                        generation,
                        state: RegistrationState::Pending,
                        since: now,
                        attempts: 0,
                    },
                );
                if self.is_established() {
                    self.outbox
                        .push_back(Frame::Register(self.register(endpoint, generation)));
                }
            }
        }
    }

    /// Takes a frame off the control stream.
    ///
    /// # Errors
    /// The relay broke the protocol: end the session.
    pub fn handle_frame(&mut self, frame: Frame, now: MonoTime) -> Result<(), SessionFault> {
        self.heard = self.heard.max(now);
        match (self.state, frame) {
            (State::Closed, _) => Ok(()),
            (State::Greeting, Frame::HelloOk(ok)) => {
                if ok.version != VERSION || ok.session != self.config.session {
                    return Err(SessionFault::Version {
                        min: ok.version,
                        max: ok.version,
                    });
                }
                self.state = State::Established;
                let registers: Vec<Frame> = self
                    .registrations
                    .iter_mut()
                    .map(|(&endpoint, entry)| {
                        entry.since = now;
                        (endpoint, entry.generation)
                    })
                    .map(|(endpoint, generation)| {
                        Frame::Register(register(&self.config, endpoint, generation))
                    })
                    .collect();
                self.outbox.extend(registers);
                self.event(NodeEvent::Established {
                    relay: ok.relay,
                    relay_boot: ok.process_boot,
                    legs_max: ok.legs_max,
                })
            }
            (State::Established, Frame::Registered(answer)) => self.registered(answer),
            (State::Established, Frame::RegisterRefused(answer)) => {
                self.register_refused(answer.register, answer.refusal, now)
            }
            (State::Established, Frame::DrainNotice) => self.event(NodeEvent::DrainNotice),
            (State::Established, Frame::Ping(ping)) => {
                if self.pongs_waiting >= PONGS_MAX {
                    return Err(SessionFault::Flood("pongs"));
                }
                self.pongs_waiting += 1;
                self.outbox.push_back(Frame::Pong(ping));
                Ok(())
            }
            (State::Established, Frame::Pong(pong)) => match self.ping_sent {
                Some((number, sent)) if number == pong.number => {
                    self.ping_sent = None;
                    self.event(NodeEvent::Rtt(now.since(sent)))
                }
                Some(_) | None => Ok(()),
            },
            (State::Greeting | State::Established, Frame::Close(code)) => {
                self.state = State::Closed;
                self.outbox.clear();
                self.event(NodeEvent::Closed { code })
            }
            (state, frame) => Err(SessionFault::Unexpected {
                got: frame.name(),
                state: match state {
                    State::Greeting => "waiting for HELLO_OK",
                    State::Established | State::Closed => "in session",
                },
            }),
        }
    }

    /// The next frame to write to the control stream.
    pub fn poll_transmit(&mut self) -> Option<Frame> {
        let frame = self.outbox.pop_front()?;
        if matches!(frame, Frame::Pong(_)) {
            self.pongs_waiting = self.pongs_waiting.saturating_sub(1);
        }
        Some(frame)
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<NodeEvent> {
        self.events.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<MonoTime> {
        match self.state {
            State::Closed => None,
            State::Greeting => Some(self.started.plus(HELLO_DEADLINE)),
            State::Established => {
                let retries = self.registrations.values().filter_map(|entry| match entry.state {
                    RegistrationState::Refused { retry_at, .. } => Some(retry_at),
                    RegistrationState::Pending | RegistrationState::Registered => None,
                });
                retries.chain([self.ping_due, self.heard.plus(SILENCE_MAX)]).min()
            }
        }
    }

    /// Lets the time pass: pings, and tries refused registrations again.
    ///
    /// # Errors
    /// The relay was silent for too long: end the session.
    pub fn handle_timeout(&mut self, now: MonoTime) -> Result<(), SessionFault> {
        let silent = |since: MonoTime| {
            SessionFault::Silent(u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX))
        };
        match self.state {
            State::Closed => return Ok(()),
            State::Greeting if now >= self.started.plus(HELLO_DEADLINE) => return Err(silent(self.started)),
            State::Greeting => return Ok(()),
            State::Established if now >= self.heard.plus(SILENCE_MAX) => return Err(silent(self.heard)),
            State::Established => {}
        }
        if now >= self.ping_due {
            self.ping(now);
        }
        for (&endpoint, entry) in &mut self.registrations {
            if let RegistrationState::Refused { retry_at, .. } = entry.state
                && now >= retry_at
            {
                entry.state = RegistrationState::Pending;
                self.outbox.push_back(Frame::Register(register(
                    &self.config,
                    endpoint,
                    entry.generation,
                )));
            }
        }
        Ok(())
    }

    /// Pings the relay at once: it is doubted (see [`crate::liveness`]).
    pub fn probe(&mut self, now: MonoTime) {
        if self.is_established() {
            self.ping(now);
        }
    }

    /// Says that the daemon goes away and comes back: the relay keeps its registrations for a
    /// while (R-ADM-03). Send what [`poll_transmit`](Self::poll_transmit) gives, then close.
    pub fn announce_restart(&mut self) {
        if self.is_established() {
            self.outbox.push_back(Frame::Restarting);
        }
    }

    /// Ends the session from this side.
    pub fn close(&mut self, code: RefusalCode) {
        if self.state != State::Closed {
            self.state = State::Closed;
            self.outbox.push_back(Frame::Close(code));
        }
    }

    fn ping(&mut self, now: MonoTime) {
        self.ping_due = now.plus(PING_INTERVAL);
        self.ping_number = self.ping_number.wrapping_add(1);
        self.ping_sent = Some((self.ping_number, now));
        self.outbox.push_back(Frame::Ping(Ping {
            number: self.ping_number,
            padding: Bytes::new(),
        }));
    }

    fn register(&self, endpoint: EndpointId, generation: Generation) -> Register {
        register(&self.config, endpoint, generation)
    }

    fn registered(&mut self, answer: Register) -> Result<(), SessionFault> {
        // An answer to a generation that is no longer wanted says nothing.
        let Some(entry) = self.registrations.get_mut(&answer.endpoint) else {
            return Ok(());
        };
        if entry.generation != answer.generation {
            return Ok(());
        }
        entry.state = RegistrationState::Registered;
        entry.attempts = 0;
        self.event(NodeEvent::Registered {
            endpoint: answer.endpoint,
            generation: answer.generation,
        })
    }

    fn register_refused(
        &mut self,
        answer: Register,
        refusal: Refusal,
        now: MonoTime,
    ) -> Result<(), SessionFault> {
        let Some(entry) = self.registrations.get_mut(&answer.endpoint) else {
            return Ok(());
        };
        if entry.generation != answer.generation {
            return Ok(());
        }
        if entry.state == RegistrationState::Registered {
            // Withdrawn: it is tried soon again, as when it was new.
            entry.since = now;
            entry.attempts = 0;
        }
        entry.attempts = entry.attempts.saturating_add(1);
        let window = if now < entry.since.plus(RETRY_SOON_FOR) {
            RETRY_SOON_MS
        } else {
            RETRY_LATE_MS
        };
        let wait = Duration::from_millis(spread(answer.endpoint, entry.attempts, window));
        let retry_at = now.plus(refusal.retry_after.map_or(wait, |after| after.max(wait)));
        entry.state = RegistrationState::Refused {
            code: refusal.code,
            retry_at,
        };
        self.event(NodeEvent::RegisterRefused {
            endpoint: answer.endpoint,
            generation: answer.generation,
            code: refusal.code,
            retry_at,
        })
    }

    fn event(&mut self, event: NodeEvent) -> Result<(), SessionFault> {
        if self.events.len() >= EVENTS_MAX {
            return Err(SessionFault::Flood("events"));
        }
        self.events.push_back(event);
        Ok(())
    }
}

/// The registration of one endpoint by this session. Its epoch rises over the daemon's starts and
/// over the sessions of one run, so that the newest session's registration wins (R-ADM-04).
fn register(config: &NodeControlConfig, endpoint: EndpointId, generation: Generation) -> Register {
    Register {
        endpoint,
        generation,
        epoch: RegistrationEpoch::of(config.boot, config.session_number),
    }
}

/// A wait between `low` and `high`, spread over endpoints and attempts without randomness.
fn spread(endpoint: EndpointId, attempt: u32, (low, high): (u64, u64)) -> u64 {
    // FNV-1a, 64 bits.
    let hash = endpoint
        .to_bytes()
        .into_iter()
        .chain(attempt.to_be_bytes())
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    low + hash % (high - low + 1)
}
