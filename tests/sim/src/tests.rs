//! Seeds that run in CI; that a seed is a replay; and seeds that once found something.

use crate::hop::Mutation;
use crate::{Transcript, WorldKind, hop};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds of each world in CI. `cargo xtask sim` runs as many as one likes.
const SEEDS: u64 = 240;

/// Seeds within which a world must notice that a rule is left out.
const MUTATED_SEEDS: u64 = 2000;

fn digest(world: WorldKind, seed: u64) -> (u64, u64) {
    let mut transcript = Transcript::new(false);
    world.run(seed, &mut transcript);
    (transcript.digest(), transcript.events())
}

fn all(world: WorldKind, seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        let shown = catch_unwind(|| digest(world, seed));
        assert!(
            shown.is_ok(),
            "replay: cargo xtask sim --world {} --seed {seed}",
            world.as_str()
        );
    }
}

/// Two runs of a seed are the same run; two seeds are not.
#[test]
fn a_seed_is_a_replay() {
    for world in WorldKind::ALL {
        let run = || -> Vec<_> { (0..20).map(|seed| digest(world, seed)).collect() };
        let once = run();
        assert_eq!(once, run());
        let distinct: std::collections::BTreeSet<_> = once.iter().collect();
        assert_eq!(distinct.len(), once.len());
    }
}

/// R-STR-01, R-STR-02, R-STR-03, R-STR-04, R-STR-05, F-01, F-02, F-03, F-04: every byte once and in
/// order and the end after all of it, through all that can be done to daemons, relays and paths.
#[test]
fn streams_hold_their_invariants() {
    all(WorldKind::Streams, (0..SEEDS / 2).map(|n| n * 2));
}

/// The other half, for the other core.
#[test]
fn streams_hold_their_invariants_too() {
    all(WorldKind::Streams, (0..SEEDS / 2).map(|n| n * 2 + 1));
}

/// What the simulator has found, and each is mended:
/// - 1752: an ACK was lost with a leg, and an older leg was still attached: the peer waited at its limit;
/// - 15114: of two attaches that waited, the first brought the end, and the second was processed behind it;
/// - 16141: an own reset met the refusal of a stream that the peer knows no longer, and ended cleanly.
#[test]
fn streams_that_once_failed() {
    all(WorldKind::Streams, [1752, 15114, 16141]);
}

/// What was the simulator's own:
/// - 70010298: the model asked too much: an end that has all it wants closes when its hold is over, and a
///   peer that was out of reach for longer is told that there is no such stream;
/// - 73019863: a publisher that was stalled gave its verdict on an attach, which ended the stream, and could
///   tell nobody of the end until it went on.
#[test]
fn streams_that_the_model_once_misjudged() {
    all(WorldKind::Streams, [70_010_298, 73_019_863]);
}

/// R-ADM-01, R-ADM-02, R-ADM-03, R-ADM-04, R-NOD-01, R-UPD-08, F-05, F-06: opens are led to the newest
/// registration, only the dead are declared dead, and all come back (H1 to H7).
#[test]
fn hop_sessions_hold_their_invariants() {
    all(WorldKind::Hop, 0..SEEDS);
}

/// An end that went on after a pause was told first that the liveness connection had been lost, and
/// declared the other dead before it had read that it lives: a relay in 71011906, a node in 81004516.
#[test]
fn hop_sessions_that_once_failed() {
    all(WorldKind::Hop, [71_011_906, 81_004_516]);
}

/// What the checks once asked too much:
/// - 50003486, 50028668: a relay that left a node's policy and entered it again was to be reached as soon as
///   if it had been wanted all the time (H4);
/// - 60040000, 71014772, 71019407: a relay's host came back, its next process was stopped and went with the
///   host: for the node the same as a busy one, whose attempts have their time (H3);
/// - 75063777: what came during a pause that is too short to be noticed counted as heard (H2);
/// - 164724907345260: a node's host vanished and was back before its relay knew, which then waited as for any
///   that is lost (H3);
/// - 74040141: a policy had come in the moment of the look, and its node had not had its turn (H7).
#[test]
fn hop_sessions_that_the_checks_once_misjudged() {
    all(WorldKind::Hop, [50_003_486, 50_028_668]);
    all(WorldKind::Hop, [60_040_000, 71_014_772, 71_019_407]);
    all(WorldKind::Hop, [75_063_777, 74_040_141, 164_724_907_345_260]);
}

/// Each rule that is left out is noticed. Two of them stand for what the simulator has found:
/// - `PausesCount`: a daemon that had been stopped for ten seconds itself declared its relay dead, whose
///   datagrams it had not read yet;
/// - `SilentSweeps`: an endpoint left a relay's policy and came back before its daemon heard of either: the
///   relay dropped the registration, and the daemon took itself for registered for good.
#[test]
fn hop_mutations_are_noticed() {
    let hook = std::panic::take_hook();
    // What is expected need not be told.
    std::panic::set_hook(Box::new(|_| ()));
    let noticed = Mutation::ALL.map(|mutation| {
        let fails = |seed: &u64| {
            let run = || hop::run_mutated(*seed, mutation, &mut Transcript::new(false));
            catch_unwind(AssertUnwindSafe(run)).is_err()
        };
        (mutation, (0..MUTATED_SEEDS).find(fails))
    });
    std::panic::set_hook(hook);
    for (mutation, seed) in noticed {
        eprintln!("{mutation:?} is noticed by seed {seed:?}");
        assert!(
            seed.is_some(),
            "{mutation:?} is not noticed within {MUTATED_SEEDS} seeds"
        );
    }
}
