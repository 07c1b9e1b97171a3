//! Files that are written whole or not at all.

use super::*;

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn replaced_whole_with_the_mode_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    write_atomic(&path, 0o640, b"one").unwrap();
    write_atomic(&path, 0o666, b"two").unwrap();
    assert_eq!(read_text(&path, 3).unwrap(), "two");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
    assert_eq!(names(dir.path()), ["f"], "no temporary file stays");
}

#[test]
fn a_failed_write_leaves_the_old_file_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("inside"), "x").unwrap();
    let error = write_atomic(&path, 0o600, b"one").unwrap_err().to_string();
    assert!(error.contains("rename") && error.contains("/f"), "{error}");
    assert_eq!(names(dir.path()), ["f"]);
}

/// A full disk is said with the file that was wanted and with what to do.
#[test]
fn a_file_that_cannot_be_written_is_named_and_not_the_one_beside_it() {
    let path = Path::new("/d/boot.state");
    let full = FileError::io("write", path, io::ErrorKind::StorageFull.into()).to_string();
    assert_eq!(full, "cannot write /d/boot.state (make room on its file system)");
    let denied = FileError::io("write", path, io::ErrorKind::PermissionDenied.into()).to_string();
    assert_eq!(
        denied,
        "cannot write /d/boot.state (this user may not: run it as the owner, or as root)"
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none").join("f");
    let error = write_atomic(&path, 0o600, b"one").unwrap_err().to_string();
    assert_eq!(error, format!("cannot write {}", path.display()));
}

#[test]
fn only_what_no_writer_holds_is_stale() {
    let dir = tempfile::tempdir().unwrap();
    let held = write_new(
        &dir.path().join(".key.0123456789abcdef.tmp"),
        &dir.path().join("key"),
        0o600,
        b"x",
    )
    .unwrap();
    let stays = [
        ".key.0123456789abcdef.tmp",
        ".key.0123456789ABCDEF.tmp",
        ".key.0123.tmp",
        ".0123456789abcdef.tmp",
        "key.0123456789abcdef.tmp",
        ".key.0123456789abcdef",
        "key",
    ];
    for name in stays.iter().skip(1) {
        fs::write(dir.path().join(name), "x").unwrap();
    }
    fs::write(dir.path().join(".a.b.fedcba9876543210.tmp"), "x").unwrap();
    fs::create_dir(dir.path().join(".folder.0123456789abcdef.tmp")).unwrap();
    // As identities and keys are kept.
    let inner = dir.path().join("keys");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join(".key.pem.fedcba9876543210.tmp"), "x").unwrap();
    remove_stale(dir.path());
    assert!(names(&inner).is_empty());
    let mut expected = stays.to_vec();
    expected.extend([".folder.0123456789abcdef.tmp", "keys"]);
    expected.sort_unstable();
    assert_eq!(names(dir.path()), expected);
    drop(held);
    remove_stale(dir.path());
    assert!(!names(dir.path()).contains(&stays[0].to_owned()));
    remove_stale(&dir.path().join("none"));
}

/// Names the folder in which the child writes.
const CHILD_ENV: &str = "FAIRLEAD_FILE_TEST_CHILD";

/// The process that `killed_writers_leave_nothing_behind` kills; by itself it does nothing.
#[test]
fn killed_writer() {
    let Some(dir) = std::env::var_os(CHILD_ENV) else {
        return;
    };
    loop {
        crate::secret::write(&Path::new(&dir).join("key"), &vec![7; 8 << 20]).unwrap();
    }
}

/// What a killed daemon had begun to write, its keys among it, goes when the next one takes
/// the folder.
#[test]
fn killed_writers_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let has_temp = || names(dir.path()).iter().any(|name| is_temp(name));
    for _ in 0..50 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "file::tests::killed_writer", "--nocapture"])
            .env(CHILD_ENV, dir.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while !has_temp() {
            assert!(child.try_wait().unwrap().is_none(), "the writer ended");
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if has_temp() {
            break;
        }
    }
    assert!(has_temp(), "no kill hit a write");
    let _lock = crate::FolderLock::acquire(dir.path()).unwrap();
    let left: Vec<String> = names(dir.path());
    assert!(!left.iter().any(|name| is_temp(name)), "{left:?}");
}

#[test]
fn reads_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    fs::write(&path, [0xff; 11]).unwrap();
    assert!(matches!(
        read_bounded(&path, 10),
        Err(FileError::TooLarge { max: 10, .. })
    ));
    assert!(matches!(read_text(&path, 11), Err(FileError::NotText { .. })));
    assert!(read_optional(&dir.path().join("none"), 1).unwrap().is_none());
    assert!(read_bounded(&dir.path().join("none"), 1).unwrap_err().is_absent());
    // A file without an end does not hang or exhaust memory.
    assert!(matches!(
        read_given(Path::new("/dev/zero"), 10),
        Err(FileError::TooLarge { .. })
    ));
    remove(&path).unwrap();
    remove(&path).unwrap();
    assert!(names(dir.path()).is_empty());
}

/// R-GEN-02: a pipe, socket, device or endless link in a file's place is named for what it is, with what to do, and
/// nobody waits for it.
#[test]
fn what_is_no_file_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("trust.json");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let looped = dir.path().join("looped");
    std::os::unix::fs::symlink("looped", &looped).unwrap();
    for read in [
        |path: &Path| read_bounded(path, 10).map(drop),
        |path: &Path| read_text(path, 10).map(drop),
        |path: &Path| crate::secret::read(path, 10).map(drop),
    ] {
        for (path, is) in [
            (pipe.as_path(), "a pipe"),
            (socket.as_path(), "a socket"),
            (looped.as_path(), "a symbolic link that leads back to itself"),
            (Path::new("/dev/null"), "a device"),
        ] {
            let error = read(path).unwrap_err();
            assert!(matches!(error, FileError::NotRegular { .. }), "{error:?}");
            let text = error.to_string();
            assert!(
                text.starts_with(&format!("{} is {is}", path.display())) && text.contains("move it away"),
                "{text}"
            );
        }
    }
    assert_eq!(read_given(Path::new("/dev/null"), 10).unwrap(), "");
    let given = read_given(&socket, 10).unwrap_err();
    assert!(matches!(given, FileError::NotRegular { .. }), "{given:?}");
}
