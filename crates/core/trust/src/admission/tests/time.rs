//! R-POL-05: when a lease ends, whatever the clocks do.

use super::*;
use proptest::prelude::*;

fn valid(relay: &RelayAdmission, now: Now) -> bool {
    matches!(relay.lease_state(now), LeaseState::Valid(_))
}

fn restarted(relay: &RelayAdmission, boot: HostBoot, saved: Now, now: Now) -> RelayAdmission {
    let policy = signed(&relay_policy(1, 10));
    let held = relay.lease.as_ref().map(|l| l.as_ref().clone());
    let snapshot = Snapshot::decode(&relay.snapshot(saved).encode().unwrap()).unwrap();
    RelayAdmission::restore(&snapshot, Some(policy), held, boot, now)
}

#[test]
fn a_lease_ends_at_its_end() {
    let relay = relay();
    let last = after(START, hours(72) - Duration::from_millis(1));
    assert_eq!(
        relay.lease_state(last),
        LeaseState::Valid(Duration::from_millis(1))
    );
    assert_eq!(relay.lease_state(after(START, hours(72))), LeaseState::Ended);
}

/// Turning the clock back never extends a lease.
#[test]
fn a_clock_turned_back_extends_nothing() {
    let turned_back = Now {
        wall: START.wall.minus(hours(1000)),
        ..after(START, hours(72))
    };
    assert_eq!(relay().lease_state(turned_back), LeaseState::Ended);
}

/// Whatever the boot clock says, the wall clock ends the lease too.
#[test]
fn the_wall_clock_ends_it_too() {
    let late = Now {
        wall: START.wall.plus(hours(72)),
        ..START
    };
    assert_eq!(relay().lease_state(late), LeaseState::Ended);
}

/// A clock that jumps to 2037 and comes back has neither ended the lease for good nor raised the
/// floor, not even if a lease and a restart fall into the jump.
#[test]
fn a_jump_to_2037_passes() {
    let relay = relay();
    let far = Now {
        wall: WallTime(2_114_380_800_000),
        ..START
    };
    assert!(!valid(&relay, far));
    let policy = signed(&relay_policy(1, 10));
    let renewed = next(relay.apply_lease(signed(&lease(&policy, 2)), far));
    let saved = restarted(&renewed, BOOT, far, far);
    for relay in [relay, renewed, saved] {
        assert!(valid(&relay, after(START, hours(1))));
        assert_eq!(relay.clock_behind(START), None);
    }
}

/// A signed time raises the floor: a host whose clock is years behind holds its lease by the
/// control plane's time, says so, and ends it in time.
#[test]
fn a_clock_behind_the_control_plane_is_held_up_and_reported() {
    let behind = Now {
        wall: START.wall.minus(hours(20_000)),
        ..START
    };
    let policy = signed(&relay_policy(1, 10));
    let lease = signed(&lease(&policy, 1));
    let relay = next(RelayAdmission::new(RELAY, BOOT).apply_policy(policy, lease, behind));
    assert!(valid(&relay, after(behind, hours(71))));
    assert!(!valid(&relay, after(behind, hours(72))));
    assert_eq!(relay.clock_behind(behind), Some(hours(20_000)));
    assert!(matches!(open(&relay, &grant(), false, behind), Verdict::Admit(_)));
    // 60 s are tolerated in silence.
    let little = |s| Now {
        wall: START.wall.minus(Duration::from_secs(s)),
        ..START
    };
    assert_eq!(relay.clock_behind(little(60)), None);
    assert_eq!(relay.clock_behind(little(61)), Some(Duration::from_secs(61)));
}

/// The same lease presented again was received the first time.
#[test]
fn the_same_lease_again_renews_nothing() {
    let relay = relay();
    let policy = signed(&relay_policy(1, 10));
    let same = signed(&lease(&policy, 1));
    // The wall clock was turned back by 71 h in the meantime.
    let later = Now {
        wall: START.wall,
        boot: START.boot.plus(hours(71)),
    };
    assert!(matches!(relay.apply_lease(same, later), Ok(Applied::Unchanged)));
    assert_eq!(relay.lease_state(later), LeaseState::Valid(hours(1)));
}

#[test]
fn a_restart_within_one_boot_counts_on() {
    let now = after(START, hours(30));
    let restarted = restarted(&relay(), BOOT, after(START, hours(10)), now);
    assert_eq!(restarted.lease_state(now), LeaseState::Valid(hours(42)));
}

/// After a reboot the boot clock begins anew; the saved count goes on, and the wall clock still
/// ends the lease.
#[test]
fn a_reboot_restarts_no_lease() {
    let saved = after(START, hours(70));
    // The clock lost its battery: it says the lease has just begun.
    let rebooted = Now {
        wall: START.wall,
        boot: BootTime(5_000),
    };
    let restarted = restarted(&relay(), OTHER_BOOT, saved, rebooted);
    assert_eq!(restarted.lease_state(rebooted), LeaseState::Valid(hours(2)));
    assert!(!valid(&restarted, after(rebooted, hours(2))));
    // The floor is as late as the last save.
    assert_eq!(restarted.clock_behind(rebooted), Some(hours(70)));
    let off_for_long = Now {
        wall: START.wall.plus(hours(72)),
        boot: BootTime(5_000),
    };
    assert!(!valid(&restarted, off_for_long));
}

/// A boot id that repeats with a clock that does not (a restored machine image) counts as a reboot.
#[test]
fn a_boot_clock_below_the_saved_one_is_another_boot() {
    let saved = after(START, hours(1));
    let earlier = Now {
        wall: saved.wall,
        boot: BootTime(0),
    };
    let restarted = restarted(&relay(), BOOT, saved, earlier);
    assert_eq!(restarted.lease_state(earlier), LeaseState::Valid(hours(71)));
}

/// A new reign's clock is believed over the old one's: a control plane whose clock was far in the
/// future can be mended.
#[test]
fn a_new_epoch_resets_the_floor() {
    let mut future = relay_policy(1, 10);
    future.issued_at = START.wall.plus(hours(100_000));
    let relay = relay_with(&future);
    assert!(!valid(&relay, START));
    let policy = signed(&relay_policy(2, 1));
    let lease = signed(&lease(&policy, 1));
    let mended = next(relay.apply_policy(policy, lease, START));
    assert!(valid(&mended, START));
    assert_eq!(mended.clock_behind(START), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// R-POL-05, R-POL-06: whatever the wall clock shows and whenever the process restarts, a lease
    /// admits for no longer than its length after its receipt and never past its signed end; and
    /// until then it does admit.
    #[test]
    fn no_clock_extends_a_lease(
        steps in proptest::collection::vec((0u64..20 * 3600, -300_000i64..300_000, any::<bool>()), 1..30),
    ) {
        let mut relay = relay();
        let mut boot = START.boot;
        for (passed_s, jump_s, restart) in steps {
            boot = boot.plus(Duration::from_secs(passed_s));
            let wall = WallTime(START.wall.0 + jump_s * 1000);
            let now = Now { wall, boot };
            if restart {
                relay = restarted(&relay, BOOT, now, now);
            }
            let ended = boot.since(START.boot) >= hours(72) || wall >= START.wall.plus(hours(72));
            prop_assert_eq!(valid(&relay, now), !ended);
            let verdict = open(&relay, &grant(), false, now);
            prop_assert_eq!(verdict == Verdict::Refuse(RefusalCode::LeaseEnded), ended);
        }
    }
}
