//! The process's descriptors: how many it may open, and how many of them its traffic may take.
//!
//! Whatever is out of descriptors can say nothing any more: no metrics, no state file, no word to
//! its control plane. So the sockets that others make it open are counted, and refused while a
//! reserve is left (F-09).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most descriptors a daemon asks for: Linux's own default for one process (`fs.nr_open`). What
/// leaks has an end, where a hard limit has none.
const LIMIT_MAX: u64 = 1 << 20;
/// Kept from traffic: 16 scrapers, a UDP socket per address family and relay, the sessions upwards,
/// state files and name lookups take less than half of it.
const RESERVE_MAX: u64 = 128;
/// Of a small limit, this share is kept.
const RESERVE_SHARE: u64 = 4;

/// Raises the soft limit to the hard one, at most to 1,048,576, and gives the limit in force. The
/// soft limit that daemons are usually started with (1,024) is meant for programs that use
/// `select`.
///
/// # Errors
/// The kernel refuses; the limit stays as it was.
pub fn raise_limit() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(LIMIT_MAX).min(LIMIT_MAX);
    if limit.current.is_none_or(|soft| soft >= wanted) {
        return Ok(limit.current.unwrap_or(u64::MAX));
    }
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(wanted),
            maximum: limit.maximum,
        },
    )?;
    Ok(wanted)
}

/// How many descriptors the process may open at this moment: the limit of a running process can be
/// changed from outside.
#[must_use]
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Whether an error says that the process or the host has run out of descriptors or memory for
/// sockets: asking again at once does not cure it.
#[must_use]
pub fn is_exhaustion(error: &io::Error) -> bool {
    use rustix::io::Errno;
    error.raw_os_error().is_some_and(|number| {
        [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].contains(&Errno::from_raw_os_error(number))
    })
}

/// Whether a descriptor that was just opened is of the reserve: the kernel gives the least free
/// number, so as many as its number are open.
#[must_use]
pub fn is_of_reserve(descriptor: BorrowedFd<'_>) -> bool {
    u64::try_from(descriptor.as_raw_fd()).unwrap_or(0) >= traffic_max(limit())
}

/// How many of `limit` traffic may take.
pub(crate) const fn traffic_max(limit: u64) -> u64 {
    let share = limit / RESERVE_SHARE;
    limit - if share < RESERVE_MAX { share } else { RESERVE_MAX }
}

/// Counts the descriptors that traffic holds against the limit less the reserve. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct DescriptorBudget {
    taken: Arc<AtomicU64>,
}

/// One descriptor of traffic, until dropped.
#[derive(Debug)]
pub struct DescriptorPlace {
    taken: Arc<AtomicU64>,
}

impl DescriptorBudget {
    /// A place for one more, or `None` where only the reserve is left.
    #[must_use]
    pub fn take(&self) -> Option<DescriptorPlace> {
        self.take_within(limit())
    }

    /// A place in any case: for one that another is about to make room for.
    #[must_use]
    pub fn take_over(&self) -> DescriptorPlace {
        self.taken.fetch_add(1, Ordering::Relaxed);
        DescriptorPlace {
            taken: Arc::clone(&self.taken),
        }
    }

    /// How many are taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    fn take_within(&self, limit: u64) -> Option<DescriptorPlace> {
        let max = traffic_max(limit);
        self.taken
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                (taken < max).then_some(taken + 1)
            })
            .ok()
            .map(|_| DescriptorPlace {
                taken: Arc::clone(&self.taken),
            })
    }
}

impl Drop for DescriptorPlace {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F-09: traffic leaves a reserve, of a small limit as of a large one.
    #[test]
    fn traffic_leaves_a_reserve() {
        for (limit, traffic) in [(4, 3), (256, 192), (1024, 896), (1 << 20, (1 << 20) - 128)] {
            let budget = DescriptorBudget::default();
            budget.taken.store(traffic - 1, Ordering::Relaxed);
            let last = budget.take_within(limit);
            assert!(last.is_some() && budget.take_within(limit).is_none(), "{limit}");
            let over = budget.take_over();
            drop(last);
            assert!(budget.take_within(limit).is_none(), "{limit}");
            drop(over);
            assert!(budget.take_within(limit).is_some(), "{limit}");
        }
        assert!(DescriptorBudget::default().take_within(0).is_none());
    }

    #[test]
    fn a_number_tells_how_many_are_open() {
        use std::os::fd::AsFd as _;
        raise_limit().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(!is_of_reserve(file.as_fd()));
        assert_eq!((traffic_max(0), traffic_max(256)), (0, 192));
    }

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        let raised = raise_limit().unwrap();
        assert_eq!(raised, limit());
        let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(LIMIT_MAX);
        assert!(raised >= hard.min(LIMIT_MAX));
        assert_eq!(raise_limit().unwrap(), raised, "a second time changes nothing");
        assert!(is_exhaustion(&io::Error::from_raw_os_error(24)) && !is_exhaustion(&io::Error::other("x")));
    }
}
