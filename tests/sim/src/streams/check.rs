//! The invariants.

use super::end::End;
use super::legs::LegId;
use super::world::{ACCEPTOR, DIALLER, EndId, World};
use fairlead_model::LegEpoch;
use fairlead_stream::{End as Ending, INITIAL_WINDOW};

/// What may be written beyond the peer's limit.
const AHEAD: u64 = 64 * 1024;
/// Two blocks of a send buffer: the first may be acknowledged in part, the last be hardly filled.
const TWO_BLOCKS: u64 = 2 * (64 * 1024 + 64);

/// Most memory of a send buffer for what a peer's window allows: a block between the first and the last
/// holds 4 KiB at least, of which less than a quarter is not used, and costs 64 bytes.
const fn send_bound(peer_window: u64) -> u64 {
    let bytes = peer_window + AHEAD;
    bytes + bytes * 2 / 5 + TWO_BLOCKS
}

impl World<'_> {
    /// I7, I5: an attach that the machine verified was sealed by the dialler for this leg's relay and
    /// epoch, and the epoch is a new one.
    pub(super) fn check_attach(&mut self, id: EndId, leg: LegId, epoch: LegEpoch, first: bool) {
        let leg = &self.legs[&leg];
        let end = &self.ends[&id];
        let course = &self.courses[end.stream];
        assert_eq!(leg.stream, end.stream, "I7: an attach of another stream");
        let opened = course.opened.get(&epoch);
        let relay = leg.relay[ACCEPTOR];
        assert_eq!(
            opened,
            Some(&relay),
            "I7: no leg of epoch {epoch} was opened through this relay"
        );
        assert!(epoch > end.attached, "I5: epoch {epoch} after {}", end.attached);
        let before = end.machine.ever_attached() || !end.verdicts.is_empty();
        assert!(first || before, "not the first, and none before");
        assert!(
            !first || !end.machine.ever_attached(),
            "the first, and one before"
        );
        self.ends.get_mut(&id).unwrap().attached = epoch;
    }

    /// I7 the other way: an answer comes from the acceptor that has taken this leg.
    pub(super) fn check_answer(&mut self, id: EndId, epoch: LegEpoch) {
        let end = &self.ends[&id];
        let course = &self.courses[end.stream];
        let relay = course.opened[&epoch];
        let acceptor = course.acceptor.and_then(|a| self.ends.get(&a));
        let taken = acceptor.is_some_and(|a| a.taken.contains(&(epoch, relay)) && a.attached >= epoch);
        assert!(taken, "I7: an answer on epoch {epoch} that no acceptor sealed");
    }

    pub(super) fn on_ended(&mut self, id: EndId, how: Ending) {
        let now = self.now;
        let end = self.ends.get_mut(&id).unwrap();
        end.over = Some(how);
        let (side, stream) = (end.side, end.stream);
        let hold = self.plan.config[side].hold;
        match how {
            // All is done at this end, and the hold is over: its peer, which may not know of the last
            // acknowledgement, finds nobody any more.
            Ending::Closed if end.held_until.is_some_and(|until| now >= until) => {
                self.courses[stream].excused.get_or_insert("the hold ended");
            }
            Ending::Closed => {}
            Ending::Protocol => panic!("an honest peer broke the protocol"),
            Ending::HoldExpired => {
                // An acceptor that was never attached has nobody to wait for.
                let held = end.machine.ever_attached();
                assert!(held || side == ACCEPTOR, "a dialler tries elsewhere");
                if held && !hold.is_zero() {
                    let until = end.held_until.expect("R-STR-04: no hold without a suspension");
                    assert!(now >= until, "R-STR-04: the hold ended early");
                }
                if held {
                    self.courses[stream].excused.get_or_insert("the hold ended");
                }
            }
            Ending::Refused(code) => {
                let excused = self.courses[stream].excused.is_some();
                assert!(excused || end.app.is_none(), "refused without a reason: {code:?}");
            }
            Ending::Reset(_) => assert!(end.own_reset || end.peer_reset, "a reset of nobody"),
        }
        self.ends.get_mut(&id).unwrap().held_until = None;
    }

    /// Everything that must hold of a stream at any moment.
    pub(super) fn check(&mut self, stream: usize) {
        let course = &self.courses[stream];
        let ends = [course.dialler, course.acceptor];
        for (side, id) in ends.into_iter().enumerate() {
            let Some(id) = id.filter(|id| !self.ends[id].gone) else {
                continue;
            };
            let peer = ends[1 - side].and_then(|p| self.ends.get(&p));
            self.check_end(&self.ends[&id], peer);
            let end = self.ends.get_mut(&id).unwrap();
            let progress = end.machine.progress();
            end.granted = progress.granted;
            end.received_max = end.received_max.max(progress.received);
        }
    }

    fn check_end(&self, end: &End, peer: Option<&End>) {
        let p = end.machine.progress();
        assert!(p.consumed <= p.received && p.received <= p.granted, "I3: {p:?}");
        assert!(p.granted >= end.granted, "I3: a limit was taken back");
        let window = self.plan.config[end.side].window_max.max(INITIAL_WINDOW);
        if end.over.is_none() && !end.own_reset {
            assert!(
                p.granted - p.consumed <= window,
                "I3, I9: more credit than the window"
            );
            assert!(p.acked <= p.sent && p.sent <= p.written, "I2: {p:?}");
        }
        assert!(p.sent <= p.limit, "I3: sent above the limit");
        let peer_granted = peer.map_or(INITIAL_WINDOW, |q| q.machine.progress().granted);
        assert!(
            p.limit <= peer_granted.max(INITIAL_WINDOW),
            "I3: a limit that nobody gave"
        );
        if end.over.is_none() {
            let held = peer.map_or(0, |q| q.received_max.max(q.machine.progress().received));
            assert!(p.acked <= held, "I2: a byte is freed that the far daemon has not");
        }
        let peer_window = self.plan.config[1 - end.side].window_max.max(INITIAL_WINDOW);
        let bound = window + send_bound(peer_window);
        assert!(
            end.machine.charge() <= bound,
            "I9: {} bytes",
            end.machine.charge()
        );
        let Some(app) = &end.app else { return };
        let written = peer.and_then(|q| q.app.as_ref()).map_or(0, |a| a.written);
        assert!(app.read <= written, "I1: more was read than written");
        if app.eof {
            let finished = peer.and_then(|q| q.app.as_ref()).is_some_and(|a| a.finished);
            assert!(finished && app.read == written, "I6: an end before all");
        }
    }

    /// What must hold when everything has come to its end.
    pub(super) fn final_check(&mut self) {
        for (stream, course) in self.courses.iter().enumerate() {
            let ends = [course.dialler, course.acceptor].map(|id| id.map(|id| &self.ends[&id]));
            for side in [DIALLER, ACCEPTOR] {
                let Some(end) = ends[side].filter(|e| e.over == Some(Ending::Closed)) else {
                    continue;
                };
                let peer = ends[1 - side].expect("a stream that closed had two ends");
                let (mine, theirs) = (end.app.as_ref().unwrap(), peer.app.as_ref().unwrap());
                if !end.gone {
                    assert!(
                        mine.eof || end.own_reset,
                        "stream {stream}: closed without an end"
                    );
                    assert_eq!(
                        mine.read, theirs.written,
                        "stream {stream}: closed with bytes missing"
                    );
                }
                assert!(
                    peer.received_max >= mine.written,
                    "stream {stream}: closed ahead of the peer"
                );
            }
            if course.excused.is_none() {
                for end in ends.map(|e| e.expect("both ends")) {
                    assert_eq!(
                        end.over,
                        Some(Ending::Closed),
                        "stream {stream}: nothing ended it"
                    );
                    let app = end.app.as_ref().unwrap();
                    assert!(
                        app.eof && app.finished && app.written == app.total,
                        "stream {stream}: not whole"
                    );
                }
            }
        }
        self.note(format_args!("over"));
    }

    pub(super) fn stuck(&self) -> ! {
        for (id, end) in self.ends.iter().filter(|(_, e)| !e.is_done()) {
            let app = end
                .app
                .as_ref()
                .map(|a| (a.written, a.total, a.read, a.finished, a.eof));
            eprintln!(
                "end {id} of stream {} at {}: {:?} {:?} legs {:?} application {app:?} over {:?}",
                end.stream,
                end.side,
                end.machine,
                end.machine.progress(),
                end.legs,
                end.over
            );
        }
        for (id, leg) in &self.legs {
            let pipes = leg
                .pipes
                .each_ref()
                .map(|p| [&p.near, &p.far].map(|s| (s.queue.len(), s.bytes, s.queue.front().map(|q| q.0))));
            eprintln!(
                "leg {id} epoch {} relay {:?} ends {:?} open {:?} dead {} wake {:?} {pipes:?} at {:?}",
                leg.epoch, leg.relay, leg.ends, leg.open, leg.dead, leg.wake, self.now
            );
        }
        panic!("seed {}: streams that never end", self.seed);
    }
}
