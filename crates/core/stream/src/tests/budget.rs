//! The memory of many streams (I9, R-STR-04).

use super::sim::{A, B, World};
use crate::{AttachKind, Budget, Config, End, INITIAL_WINDOW, STREAM_FLOOR, Share};
use proptest::prelude::*;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Streams, two ends each, that share one budget.
struct Crowd {
    budget: Budget,
    worlds: Vec<(World, [Share; 2])>,
}

impl Crowd {
    /// As many streams as there is room for, at most `count`, each with `bytes` both ways.
    fn new(total: u64, count: usize, bytes: u64, seed: u64) -> Self {
        let mut budget = Budget::new(total);
        let mut worlds = Vec::new();
        for n in 0..count {
            let Some(one) = budget.admit() else { break };
            let Some(two) = budget.admit() else {
                budget.release(&one);
                break;
            };
            let mut world = World::new(seed + n as u64, Config::default(), [bytes, bytes]);
            let mut shares = [one, two];
            for (end, share) in world.ends.iter_mut().zip(&mut shares) {
                share.apply(&mut end.stream);
            }
            world.open(1, AttachKind::Resend, ms(5));
            worlds.push((world, shares));
        }
        Self { budget, worlds }
    }

    /// Lets every stream go on for `time`; `reads` says whether an end's application reads.
    fn step(&mut self, time: Duration, reads: impl Fn(usize, usize) -> bool) {
        for n in 0..self.worlds.len() {
            let (world, _) = &mut self.worlds[n];
            let until = world.now.plus(time);
            while self.worlds[n].0.now < until {
                let (world, _) = &mut self.worlds[n];
                for side in [A, B] {
                    let end = &mut world.ends[side];
                    if end.ended.is_none() && (side == A || end.connected) {
                        end.app_write(usize::MAX);
                    }
                    if reads(n, side) {
                        end.app_read(usize::MAX, world.now);
                    }
                }
                self.balance(n);
                let (world, _) = &mut self.worlds[n];
                world.settle();
                self.balance(n);
                self.worlds[n].0.advance(until);
            }
        }
    }

    fn balance(&mut self, n: usize) {
        let (world, shares) = &mut self.worlds[n];
        for (end, share) in world.ends.iter_mut().zip(shares.iter_mut()) {
            let stream = &mut end.stream;
            assert!(
                stream.charge() <= share.bytes(),
                "{} above {share:?}",
                stream.charge()
            );
            if share.needs(stream, self.budget.window_limit()) {
                self.budget.balance(share, stream);
            }
            assert!(
                stream.charge() <= share.bytes(),
                "{} above {share:?}",
                stream.charge()
            );
        }
        let reserved: u64 = self
            .worlds
            .iter()
            .flat_map(|(_, shares)| shares)
            .map(Share::bytes)
            .sum();
        assert_eq!(self.budget.used(), reserved);
    }

    fn release(&mut self) {
        for (_, shares) in self.worlds.drain(..) {
            shares.iter().for_each(|share| self.budget.release(share));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// I9: whatever streams do, and whoever does not read, what they hold stays within what they have
    /// reserved and that within the budget; every byte arrives in the end, and all is given back.
    #[test]
    fn the_budget_holds(seed in any::<u64>(), total in 2 * MIB..16 * MIB, stalled in 0usize..24) {
        let mut crowd = Crowd::new(total, 12, 600_000, seed % 1_000_000);
        let reads = |n: usize, side: usize| 2 * n + side >= stalled;
        crowd.step(ms(300), reads);
        prop_assert!(crowd.budget.used() <= total);
        for _ in 0..400 {
            crowd.step(ms(100), |_, _| true);
            if crowd.worlds.iter().all(|(w, _)| w.ends.iter().all(|e| e.ended.is_some())) {
                break;
            }
        }
        for (world, _) in &crowd.worlds {
            for end in &world.ends {
                prop_assert_eq!((end.ended, end.read), (Some(End::Closed), 600_000));
            }
        }
        crowd.release();
        prop_assert_eq!(crowd.budget.used(), 0);
    }
}

/// R-STR-04: where there is memory a window grows to what the path can use; where it is short it
/// stays small, and the stream goes on.
#[test]
fn windows_follow_the_memory() {
    let grown = |total: u64, count: usize| {
        let mut crowd = Crowd::new(total, count, 64 * MIB, 5);
        crowd.step(ms(400), |_, _| true);
        let moved = crowd.worlds.iter().map(|(w, _)| w.ends[B].read).min().unwrap();
        assert!(moved > 0, "every stream moves");
        let largest = crowd.worlds.iter().flat_map(|(_, shares)| shares);
        largest.map(Share::bytes).max().unwrap()
    };
    let (rich, poor) = (grown(1024 * MIB, 1), grown(2 * MIB, 10));
    assert!(rich > MIB, "{rich} bytes with plenty of memory");
    assert!(poor <= STREAM_FLOOR + 2 * INITIAL_WINDOW, "{poor} bytes without");
}

/// I9: streams that have grown leave room for the floors of others, and then new ones are refused.
#[test]
fn a_quarter_is_kept_for_new_streams() {
    let total = 64 * MIB;
    let mut crowd = Crowd::new(total, 30, 64 * MIB, 9);
    // Nobody reads on one side: windows and send buffers fill.
    crowd.step(ms(400), |_, side| side == B);
    crowd.step(ms(100), |_, _| false);
    let before = crowd.budget.used();
    assert!(before > total / 4, "{before} of {total} bytes are in use");
    let admitted = std::iter::from_fn(|| crowd.budget.admit()).count() as u64;
    assert!(
        admitted * STREAM_FLOOR >= total / 5,
        "{admitted} more after {before} bytes"
    );
    assert!(crowd.budget.used() <= total && crowd.budget.used() + STREAM_FLOOR > total);
}
