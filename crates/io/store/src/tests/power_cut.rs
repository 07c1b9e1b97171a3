//! A power cut: an ext4 file system that is shut down under the running process, without its
//! journal or its dirty pages written, and mounted again as the disk has it.
//!
//! Needs root and loop devices; without them it says so and proves nothing. It is the test that
//! tells sled with our syncs from sled as shipped: killing a process never shows the difference,
//! since the page cache survives.

use super::crash::{WRITERS, child, child_arguments, verify_at_least};
use super::fresh;
use crate::Backend;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Cuts per backend. sled as shipped fails about six of ten.
const ROUNDS: u64 = 8;
/// Size of the disk.
const DISK_BYTES: &str = "64M";

/// Shuts the file system down by `EXT4_IOC_SHUTDOWN` with `EXT4_GOING_FLAGS_NOLOGFLUSH`.
const SHUTDOWN: &str =
    r#"open(my $f, "<", $ARGV[0]) or die; my $how = pack("L", 2); ioctl($f, 0x8004587d, $how) or die "$!""#;

fn run(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output().unwrap();
    if !output.status.success() {
        println!(
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    output.status.success()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What `nothing_acknowledged_is_lost_in_a_power_cut` runs in a mount namespace of its own; by
/// itself it does nothing.
#[test]
fn power_cut_child() {
    let Some((backend, dir)) = child_arguments() else {
        return;
    };
    let (image, copy) = (dir.join("image"), dir.join("copy"));
    let (disk, again) = (dir.join("disk"), dir.join("again"));
    for folder in [&disk, &again] {
        std::fs::create_dir(folder).unwrap();
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for round in 0..ROUNDS {
        let file = std::fs::File::create(&image).unwrap();
        drop(file);
        assert!(run("truncate", &["-s", DISK_BYTES, text(&image)]));
        assert!(run("mkfs.ext4", &["-q", "-F", text(&image)]));
        if !run("mount", &["-o", "loop", text(&image), text(&disk)]) {
            println!("power cut: skipped, no loop devices here");
            return;
        }
        let acked = cut_during_commits(backend, &disk, 5 + round * 61 + fastrand::u64(0..40));
        assert!(run("cp", &["--sparse=always", text(&image), text(&copy)]));
        assert!(run("umount", &["-l", text(&disk)]));
        assert!(run("mount", &["-o", "loop", text(&copy), text(&again)]));
        let store = fresh(backend, &again.join("store"));
        runtime.block_on(verify_at_least(&*store, acked));
        runtime.block_on(store.close());
        println!("{backend}: cut {round} after {acked:?}");
        assert!(run("umount", &["-l", text(&again)]));
    }
    println!("power cut: done");
}

/// Runs the writers of the kill test on `disk` and cuts its power after `acks` commits; what each
/// writer had acknowledged before.
fn cut_during_commits(backend: Backend, disk: &Path, acks: u64) -> [u64; WRITERS as usize] {
    let mut writers = child("tests::crash::crash_child", backend, &disk.join("store"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut acked = [0; WRITERS as usize];
    let mut lines = BufReader::new(writers.stdout.take().unwrap()).lines();
    let mut count = 0;
    while count < acks {
        let line = lines.next().expect("the writers go on").unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let [.., "ack", writer, n] = words[..] else {
            continue;
        };
        acked[writer.parse::<usize>().unwrap()] = n.parse().unwrap();
        count += 1;
    }
    assert!(run("perl", &["-e", SHUTDOWN, text(disk)]));
    writers.kill().unwrap();
    writers.wait().unwrap();
    acked
}

#[test]
fn nothing_acknowledged_is_lost_in_a_power_cut() {
    for backend in Backend::ALL {
        let dir = tempfile::tempdir().unwrap();
        let inner = child("tests::power_cut::power_cut_child", backend, dir.path());
        let output = Command::new("unshare")
            .args(["-m", "--propagation", "private"])
            .arg(inner.get_program())
            .args(inner.get_args())
            .envs(inner.get_envs().filter_map(|(k, v)| Some((k, v?))))
            .output()
            .expect("unshare of util-linux runs");
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        print!("{out}");
        if err.contains("unshare failed") {
            println!("power cut: skipped, it needs root");
            return;
        }
        let finished = out.contains("power cut: done") || out.contains("power cut: skipped");
        assert!(output.status.success() && finished, "{out}\n{err}");
    }
}
