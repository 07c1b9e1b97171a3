//! Tests of settings and of the command line.

use super::*;
use crate::cli::daemon::Run;
use crate::cli::{Cli, Command};
use clap::{CommandFactory, Parser};
use std::path::Path;

fn control(arguments: &[&str]) -> Result<ControlSettings, SettingsError> {
    let line = ["fairlead", "run", "control"].iter().chain(arguments);
    match Cli::try_parse_from(line).unwrap().command {
        Command::Run(Run::Control(flags)) => ControlSettings::check(&flags),
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_faults_are_listed_together_each_with_its_place() {
    let error = control(&[
        "--listen",
        "localhost:1",
        "--advertise",
        "::1:x",
        "--store",
        "mysql",
        "--metrics",
        "9",
    ])
    .unwrap_err();
    let places: Vec<_> = error.faults().iter().map(|f| f.place.as_str()).collect();
    assert_eq!(
        places,
        ["--dir", "--metrics", "--listen", "--advertise", "--store"]
    );
    let text = error.to_string();
    assert!(
        text.starts_with("nothing was done; 5 things are wrong:"),
        "{text}"
    );
    assert!(text.contains("[::1]:port"), "{text}");
}

#[test]
fn a_file_is_read_and_flags_win() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.toml");
    std::fs::write(
        &path,
        "dir = \"/var/lib/c\"\nadvertise = \"[2001:db8::1]:8444\"\nlab = true\nlisten = \"127.0.0.1:1\"\n",
    )
    .unwrap();
    let settings = control(&["--settings", path.to_str().unwrap(), "--listen", "[::1]:0"]).unwrap();
    assert_eq!(settings.common.dir, Path::new("/var/lib/c"));
    assert_eq!(settings.advertise.to_string(), "[2001:db8::1]:8444");
    assert!(settings.lab);
    assert_eq!(settings.listen, "[::1]:0".parse().unwrap());
    assert_eq!(settings.store, Backend::Redb);
}

#[test]
fn unknown_keys_and_wrong_kinds_are_named_with_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.toml");
    std::fs::write(
        &path,
        "dir = 5\nlisten_address = \"x\"\nlab = \"yes\"\nadvertise = \"c\"\n",
    )
    .unwrap();
    let text = control(&["--settings", path.to_str().unwrap()])
        .unwrap_err()
        .to_string();
    for part in [
        "control.toml: dir: is integer, not a string: write `dir = \"",
        "control.toml: listen_address: no such setting (known: dir, listen,",
        "control.toml: lab: is string, not true or false",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn a_file_that_is_no_toml_or_missing_is_named() {
    let text = control(&["--settings", "/nonexistent/x.toml"])
        .unwrap_err()
        .to_string();
    assert!(text.contains("/nonexistent/x.toml"), "{text}");
    assert!(text.contains("one thing is wrong"), "{text}");
    let broken = ControlSettings::parse("dir = ").unwrap_err();
    assert_eq!(broken.faults().len(), 1, "{broken}");
    let advertised = |listen: &str| {
        let contents = format!("dir = \"d\"\nadvertise = \"h\"\n{listen}");
        ControlSettings::parse(&contents).map(|s| s.advertise.to_string())
    };
    assert_eq!(advertised(""), Ok("h:8443".to_owned()));
    assert_eq!(
        advertised("listen = \"127.0.0.1:25530\""),
        Ok("h:25530".to_owned())
    );
    assert!(advertised("listen = \"127.0.0.1:0\"").is_err());
}

/// The folder of the other role is named as such, with the daemon that runs there.
#[test]
fn a_folder_of_another_role_is_told() {
    use fairlead_host::member::MemberConfig;
    let dir = tempfile::tempdir().unwrap();
    let common = Common {
        dir: dir.path().to_owned(),
        metrics: None,
        log_format: LogFormat::Text,
        tie: None,
    };
    let empty = common.check_member("node").unwrap_err().to_string();
    assert!(empty.contains("no member has enrolled into it"), "{empty}");
    // What cannot be looked at is not said to be missing. Root may look everywhere, but not through a
    // link that leads to itself.
    let link = dir.path().join("member.json");
    std::os::unix::fs::symlink(&link, &link).unwrap();
    common.check_member("node").unwrap();
    std::fs::remove_file(&link).unwrap();
    let config = MemberConfig {
        role: MemberRole::Node("0192f0c1-7d3a-7c55-9d0e-6b2f1f0a9c11".parse().unwrap()),
        name: "alpha".parse().unwrap(),
        trust_domain: "pool.example".parse().unwrap(),
        control: "control.example:8443".parse().unwrap(),
        ca_pin: fairlead_model::CaPin([0; 32]),
        grpc_server_name: "control".to_owned(),
        advertised_address: None,
        listen: None,
    };
    MemberFolder::new(dir.path().to_owned()).save(&config).unwrap();
    common.check_member("node").unwrap();
    let other = common.check_member("relay").unwrap_err().to_string();
    assert!(
        other.contains("node alpha's folder") && other.contains("`fairlead run node --dir"),
        "{other}"
    );
}

#[test]
fn every_setting_is_documented_and_is_a_flag() {
    let cli = Cli::command();
    let run = cli.find_subcommand("run").unwrap();
    for (name, table) in [
        ("control", CONTROL),
        ("supervisor", SUPERVISOR),
        ("worker", WORKER),
        ("node", NODE),
    ] {
        let command = run.find_subcommand(name).unwrap();
        for setting in table {
            assert!(setting.meaning.ends_with('.'), "{name} {}", setting.key);
            assert!(
                command.get_arguments().any(|a| a.get_id() == setting.key),
                "{name} {}",
                setting.key
            );
        }
    }
}

#[test]
fn the_command_line_is_well_formed() {
    Cli::command().debug_assert();
}
