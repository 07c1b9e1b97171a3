//! What other load on the machine's cores costs a test.

use std::time::Duration;

/// How long threads of this process have waited for a core, in all: what a test that judges in time
/// takes off, so that its own time counts and not that of its neighbours. Zero where the kernel does not
/// tell.
pub(crate) fn starved() -> Duration {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return Duration::ZERO;
    };
    let waited = threads.filter_map(|thread| {
        // "ran waited turns", in nanoseconds; a thread that has just ended has none.
        let stat = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        stat.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    Duration::from_nanos(waited.sum())
}

/// A wait for a core counts; a sleep does not.
#[test]
fn waiting_for_a_core_counts() {
    let before = starved();
    std::thread::sleep(Duration::from_millis(50));
    let idle = starved().saturating_sub(before);
    let busy = std::thread::available_parallelism().unwrap().get() * 4;
    let began = std::time::Instant::now();
    let crowded = std::thread::scope(|scope| {
        for _ in 0..busy {
            scope.spawn(|| while began.elapsed() < Duration::from_millis(400) {});
        }
        std::thread::sleep(Duration::from_millis(350));
        starved().saturating_sub(before)
    });
    // Four of a core's threads wait for three quarters of the time, each.
    assert!(
        crowded > idle + Duration::from_millis(350),
        "{idle:?}, {crowded:?}"
    );
}
