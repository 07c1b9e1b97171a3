//! What enrolment leaves in a member's folder, and tokens that arrive by standard input.
#![no_main]

use fairlead_host::StateFile;
use fairlead_host::member::MemberFolder;
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::LazyLock;

/// A folder of this process, in memory where the host has such a file system.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let base = PathBuf::from("/dev/shm");
    let base = if base.is_dir() { base } else { std::env::temp_dir() };
    let folder = base.join(format!("fairlead-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the files");
    folder
});

fuzz_target!(|data: &[u8]| {
    let Some((kind, content)) = data.split_first() else {
        return;
    };
    let folder = MemberFolder::new(FOLDER.clone());
    let put = |path: PathBuf| std::fs::write(path, content).expect("the folder is writable");
    match kind % 4 {
        0 => {
            put(folder.config_path());
            if let Ok(config) = folder.load() {
                folder.save(&config).expect("the folder is writable");
                assert_eq!(folder.load().expect("it was just saved"), config);
            }
        }
        1 => {
            put(folder.trust_path());
            if let Ok(bundle) = folder.load_trust() {
                folder.save_trust(&bundle).expect("the folder is writable");
                assert_eq!(folder.load_trust().expect("it was just saved"), bundle);
            }
        }
        2 => {
            put(folder.runtime_path());
            let _ = folder.read_runtime();
        }
        _ => {
            let path = FOLDER.join("state");
            put(path.clone());
            let _ = StateFile::new(path, *b"FLFUZZ\0\x01", 64 * 1024).load();
        }
    }
});
