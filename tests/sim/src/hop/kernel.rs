//! Liveness connections as kernels see them: they acknowledge for processes that are stopped, say
//! that nobody listens, and give up what is not acknowledged for two seconds.

use super::carrier::Pipe;
use super::plan::ms;
use super::world::{Input, Timer, Who, World};
use fairlead_hop::liveness::{AttemptFailure, LiveMessage, LostCause, UNACKNOWLEDGED_MAX};
use fairlead_model::MonoTime;
use std::time::Duration;

pub(super) type ConnId = u64;

/// First wait for an acknowledgement, beside the path's round trip.
const AGAIN_FIRST: Duration = Duration::from_millis(200);
/// First wait for the answer to a SYN.
const SYN_AGAIN: Duration = Duration::from_secs(1);

/// What a process learns of one.
#[derive(Debug, Clone)]
pub(super) enum LiveInput {
    /// The peer's host has taken it.
    Taken,
    Message(LiveMessage),
    /// It was not taken.
    Failed(AttemptFailure),
    /// It is over.
    Ended(LostCause),
}

#[derive(Debug, Clone)]
enum Item {
    Message(LiveMessage),
    Fin,
}

#[derive(Debug, Clone)]
enum Body {
    Syn,
    SynAck,
    Rst,
    Data { first: u64, items: Vec<Item>, ack: u64 },
}

#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) conn: ConnId,
    /// The side that it goes to: the node's first.
    pub(super) to: usize,
    body: Body,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Opening,
    Open,
}

/// One end.
#[derive(Debug)]
struct Kernel {
    state: State,
    /// The process that has it, or had.
    run: u64,
    /// Its process has closed it or is gone.
    orphan: bool,
    pipe: Pipe<Item>,
    unacked_since: Option<MonoTime>,
    again: Duration,
    timer: Timer,
    sent: u64,
    answered: u64,
}

impl Kernel {
    fn new(state: State, run: u64) -> Self {
        Self {
            state,
            run,
            orphan: false,
            pipe: Pipe::default(),
            unacked_since: None,
            again: SYN_AGAIN,
            timer: Timer::default(),
            sent: 0,
            answered: 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) pair: (usize, usize),
    ends: [Kernel; 2],
    /// Limits of the attempt that have passed: the host's, the process's.
    limits: u8,
}

impl Conn {
    fn who(&self, side: usize) -> Who {
        match side {
            0 => Who::Node(self.pair.0),
            _ => Who::Relay(self.pair.1),
        }
    }

    /// Whether both ends hold it.
    pub(super) fn stands(&self) -> bool {
        self.ends.iter().all(|e| e.state == State::Open && !e.orphan)
    }

    /// Whether the peer's host has taken it.
    pub(super) fn is_taken(&self) -> bool {
        self.ends[0].state == State::Open
    }

    /// The next limit of an attempt has passed: whether it was the process's.
    pub(super) const fn limit_passed(&mut self) -> bool {
        self.limits += 1;
        self.limits > 1
    }

    fn is_over(&self) -> bool {
        self.ends.iter().all(|e| e.state == State::Closed)
    }
}

impl World<'_> {
    /// A node's process begins one.
    pub(super) fn live_connect(&mut self, node: usize, relay: usize) -> ConnId {
        let id = self.name();
        let run = self.nodes[node].host.run;
        let ends = [Kernel::new(State::Opening, run), Kernel::new(State::Closed, 0)];
        let pair = (node, relay);
        let limits = 0;
        self.conns.insert(id, Conn { pair, ends, limits });
        self.kernel_send(id, 1, Body::Syn);
        self.arm_kernel(id, 0, self.now.plus(SYN_AGAIN));
        id
    }

    /// A process says something on one.
    pub(super) fn live_say(&mut self, id: ConnId, side: usize, message: LiveMessage) {
        if let Some(conn) = self.conns.get_mut(&id)
            && conn.ends[side].state == State::Open
        {
            conn.ends[side].pipe.push(Item::Message(message));
            self.push(id, side);
        }
    }

    /// A process pings on one.
    pub(super) fn live_ping(&mut self, id: ConnId, side: usize) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.ends[side].sent += 1;
        let number = conn.ends[side].sent;
        self.live_say(id, side, LiveMessage::Ping(number));
    }

    /// The peer's process has answered a ping; how many are left.
    pub(super) fn live_answered(&mut self, id: ConnId, side: usize, number: u64) -> u32 {
        let end = &mut self.conns.get_mut(&id).unwrap().ends[side];
        end.answered = end.answered.max(number);
        u32::try_from(end.sent - end.answered).unwrap()
    }

    pub(super) fn live_unanswered(&self, id: ConnId, side: usize) -> u32 {
        let end = self.conns.get(&id).map(|c| &c.ends[side]);
        end.map_or(0, |e| u32::try_from(e.sent - e.answered).unwrap())
    }

    /// A process lets go of one, or dies.
    pub(super) fn live_close(&mut self, id: ConnId, side: usize) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let end = &mut conn.ends[side];
        if end.orphan {
            return;
        }
        end.orphan = true;
        match end.state {
            State::Closed => {}
            State::Opening => self.kernel_closed(id, side),
            State::Open => {
                end.pipe.push(Item::Fin);
                self.push(id, side);
            }
        }
    }

    /// Somebody forges the end of one towards one side.
    pub(super) fn live_forged(&mut self, id: ConnId, side: usize) {
        self.segment(Segment {
            conn: id,
            to: side,
            body: Body::Rst,
        });
    }

    /// The process of a host is gone; its kernel too, if `silently`.
    pub(super) fn live_orphans(&mut self, who: Who, silently: bool) {
        let mine = |c: &Conn| [0, 1].into_iter().find(|side| c.who(*side) == who);
        let ends: Vec<(ConnId, usize)> = self
            .conns
            .iter()
            .filter_map(|(id, c)| Some((*id, mine(c)?)))
            .collect();
        for (id, side) in ends {
            if silently {
                self.kernel_closed(id, side);
            } else {
                self.live_close(id, side);
            }
        }
    }

    fn kernel_send(&mut self, id: ConnId, to: usize, body: Body) {
        self.send_segment(Segment { conn: id, to, body });
    }

    fn arm_kernel(&mut self, id: ConnId, side: usize, at: MonoTime) {
        let timer = self.conns.get_mut(&id).map(|c| &mut c.ends[side].timer);
        if timer.is_some_and(|t| t.arm(at)) {
            self.kernel_at(at, id, side);
        }
    }

    /// Sends all that is unacknowledged.
    fn push(&mut self, id: ConnId, side: usize) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let (node, relay) = conn.pair;
        let end = &mut conn.ends[side];
        let (first, items) = end.pipe.unacked();
        let ack = end.pipe.next_in;
        if !items.is_empty() && end.unacked_since.is_none() {
            end.unacked_since = Some(self.now);
            end.again = AGAIN_FIRST;
            let at = self.now.plus(AGAIN_FIRST + self.rtt(node, relay));
            self.arm_kernel(id, side, at);
        }
        self.kernel_send(id, 1 - side, Body::Data { first, items, ack });
    }

    pub(super) fn kernel_timer(&mut self, id: ConnId, side: usize) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let end = &mut conn.ends[side];
        if !end.timer.fires(now) {
            return;
        }
        match (end.state, end.unacked_since) {
            (State::Closed, _) | (State::Open, None) => {}
            (State::Opening, _) => {
                end.again *= 2;
                let at = now.plus(end.again);
                self.arm_kernel(id, side, at);
                self.kernel_send(id, 1 - side, Body::Syn);
            }
            (State::Open, Some(since)) if now >= since.plus(UNACKNOWLEDGED_MAX) => {
                self.tell(id, side, LiveInput::Ended(LostCause::Unacknowledged));
                self.kernel_closed(id, side);
            }
            (State::Open, Some(since)) => {
                end.again *= 2;
                let at = now.plus(end.again).min(since.plus(UNACKNOWLEDGED_MAX));
                self.arm_kernel(id, side, at);
                self.push(id, side);
            }
        }
    }

    fn kernel_closed(&mut self, id: ConnId, side: usize) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.ends[side].state = State::Closed;
        if conn.is_over() {
            self.conns.remove(&id);
        }
    }

    /// Lets the process learn something, unless it has let go.
    fn tell(&mut self, id: ConnId, side: usize, input: LiveInput) {
        let conn = &self.conns[&id];
        let (who, end) = (conn.who(side), &conn.ends[side]);
        if !end.orphan && end.run == self.host(who).run {
            let at = self.now.plus(ms(0));
            self.input_at(at, who, Input::Live(id, input));
        }
    }

    /// A segment arrives at a host.
    pub(super) fn segment(&mut self, segment: Segment) {
        let Segment { conn: id, to, body } = segment;
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let who = conn.who(to);
        let (state, orphan) = (conn.ends[to].state, conn.ends[to].orphan);
        if !self.host(who).up {
            return;
        }
        match (body, state) {
            (Body::Syn, State::Closed) => {
                let run = self.host(who).run;
                if run == 0 || orphan {
                    self.kernel_send(id, 1 - to, Body::Rst);
                } else {
                    self.conns.get_mut(&id).unwrap().ends[to] = Kernel::new(State::Open, run);
                    self.kernel_send(id, 1 - to, Body::SynAck);
                }
            }
            (Body::Syn, State::Opening | State::Open) => self.kernel_send(id, 1 - to, Body::SynAck),
            (Body::SynAck, State::Opening) => {
                let conn = self.conns.get_mut(&id).unwrap();
                conn.ends[to].state = State::Open;
                self.tell(id, to, LiveInput::Taken);
            }
            (Body::SynAck, State::Open)
            | (Body::Data { .. }, State::Opening)
            | (Body::Rst, State::Closed) => {}
            (Body::SynAck, State::Closed) => self.kernel_send(id, 1 - to, Body::Rst),
            (Body::Rst, State::Opening) => {
                self.tell(id, to, LiveInput::Failed(AttemptFailure::Refused));
                self.kernel_closed(id, to);
            }
            (Body::Rst, State::Open) => {
                self.tell(id, to, LiveInput::Ended(LostCause::Closed));
                self.kernel_closed(id, to);
            }
            (Body::Data { items, .. }, State::Closed) => {
                if !items.is_empty() {
                    self.kernel_send(id, 1 - to, Body::Rst);
                }
            }
            (Body::Data { first, items, ack }, State::Open) => self.data(id, to, first, items, ack),
        }
    }

    fn data(&mut self, id: ConnId, to: usize, first: u64, items: Vec<Item>, ack: u64) {
        let now = self.now;
        let end = &mut self.conns.get_mut(&id).unwrap().ends[to];
        if end.pipe.acked(ack) {
            end.unacked_since = (!end.pipe.is_acked()).then_some(now);
            end.again = AGAIN_FIRST;
        }
        let acknowledge = !items.is_empty();
        let fresh = end.pipe.take(first, items);
        let (done, left) = (end.orphan && end.pipe.is_acked(), end.unacked_since);
        let again = end.again;
        if let Some(since) = left {
            let at = now.plus(again).min(since.plus(UNACKNOWLEDGED_MAX));
            self.arm_kernel(id, to, at);
        }
        if acknowledge {
            let ack = self.conns[&id].ends[to].pipe.next_in;
            let body = Body::Data {
                first: 0,
                items: Vec::new(),
                ack,
            };
            self.kernel_send(id, 1 - to, body);
        }
        let mut over = done;
        for item in fresh {
            match item {
                Item::Message(message) => self.tell(id, to, LiveInput::Message(message)),
                Item::Fin => {
                    self.tell(id, to, LiveInput::Ended(LostCause::Closed));
                    over = true;
                }
            }
        }
        if over {
            self.kernel_closed(id, to);
        }
    }
}
