//! The reference pages are what the code says. `cargo xtask docs` writes them.

use clap::CommandFactory as _;
use fairlead::cli::Cli;
use fairlead::exit::Exit;
use fairlead::settings::{self, Setting};
use fairlead_model::{ApiCode, RefusalCode};
use fairlead_telemetry::Metrics;
use fairlead_telemetry::metric::Described;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Set by `cargo xtask docs`: the pages are written, not compared.
const WRITE: &str = "FAIRLEAD_WRITE_REFERENCE";

/// The width of help texts on the page.
const WIDTH: usize = 100;

#[test]
fn the_reference_pages_are_as_the_code_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference");
    let mut stale = Vec::new();
    for (name, page) in [
        ("settings.md", settings_page()),
        ("metrics.md", metrics_page()),
        ("codes.md", codes_page()),
        ("cli.md", cli_page()),
    ] {
        let path = folder.join(name);
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&path, page).unwrap();
        } else if std::fs::read_to_string(&path).unwrap_or_default() != page {
            stale.push(name);
        }
    }
    assert!(
        stale.is_empty(),
        "run `cargo xtask docs`: {stale:?} are not what the code says"
    );
}

/// An operator has no list of requirements, and calls the pool by one word.
#[test]
fn the_pages_for_operators_use_their_words() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/guide.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    for page in [settings_page(), metrics_page(), codes_page(), cli_page(), guide] {
        for line in page.lines() {
            assert!(!line.contains("installation"), "{line}");
            let mut words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            assert!(!words.any(is_requirement), "{line}");
        }
    }
}

/// `R-GEN-01`, `F-01`.
fn is_requirement(word: &str) -> bool {
    let parts: Vec<&str> = word.split('-').collect();
    let is_number = |text: &&str| text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
    match parts.as_slice() {
        ["R", area, number] => area.len() == 3 && is_number(number),
        ["F", number] => is_number(number),
        _ => false,
    }
}

const GENERATED: &str = "<!-- Written by `cargo xtask docs` from the code: change it there. -->\n\n";

fn settings_page() -> String {
    let mut page = format!("# Settings\n\n{GENERATED}Every setting of Fairlead.\n\n");
    page.push_str(
        "## The pool's\n\n\
         Kept in the control plane's store, one value for the whole pool; `fairlead settings ls|get|set` or\n\
         `/v1/settings`. A change is audited and reaches every relay with its next policy. Durations are whole numbers\n\
         with units, ms, s, m, h or d, such as `90m`, `2d` or `1h30m`.\n\n\
         | key | default | range | meaning |\n|---|---|---|---|\n",
    );
    let mut table: Vec<_> = fairlead_control::setting::TABLE.iter().collect();
    table.sort_by_key(|setting| setting.key);
    for setting in table {
        let (default, range) = (setting.default_text(), setting.range_text());
        let (key, meaning) = (setting.key, setting.meaning);
        writeln!(page, "| `{key}` | {default} | {range} | {meaning} |").unwrap();
    }
    page.push_str(
        "\n## The daemons'\n\n\
         Given to `fairlead run control|supervisor|worker|node` as flags, or in the TOML file that `--settings` names;\n\
         in the file the keys stand as here, as flags with `-` for `_`. A flag goes before the file. Unknown keys are\n\
         refused, and all faults are listed before anything starts. The log filter is the variable `FAIRLEAD_LOG`, such\n\
         as `info` or `info,fairlead_node=debug`. Every worker and node daemon keeps running without the control plane;\n\
         nothing here is read from it.\n",
    );
    for (daemon, table) in [
        ("control", settings::CONTROL),
        ("supervisor", settings::SUPERVISOR),
        ("worker", settings::WORKER),
        ("node", settings::NODE),
    ] {
        writeln!(
            page,
            "\n### `run {daemon}`\n\n| key | default | meaning |\n|---|---|---|"
        )
        .unwrap();
        for Setting {
            key,
            default,
            required,
            meaning,
            ..
        } in table
        {
            let default = match (default, required) {
                (Some(default), _) => *default,
                (None, true) => "required",
                (None, false) => "none",
            };
            writeln!(page, "| `{key}` | {default} | {meaning} |").unwrap();
        }
    }
    page
}

/// A metric's name and labels.
type Key = (String, &'static [&'static str]);
/// A metric, and the roles that have it.
type Row = (Described, Vec<&'static str>);

fn metrics_page() -> String {
    // One name may have one more label at one role than at another.
    let mut roles: BTreeMap<Key, Row> = BTreeMap::new();
    let mut kinds = BTreeMap::new();
    for (role, describe) in [
        ("control", fairlead_control::describe_metrics as fn(&Metrics)),
        ("supervisor", fairlead_supervisor::describe_metrics),
        ("worker", fairlead_worker::describe_metrics),
        ("node", fairlead_node::describe_metrics),
    ] {
        let metrics = Metrics::new(role);
        describe(&metrics);
        for described in metrics.described() {
            let kind = kinds.entry(described.name.clone()).or_insert(described.kind);
            assert_eq!(*kind, described.kind, "{} is two things", described.name);
            let key = (described.name.clone(), described.labels);
            let known = roles.entry(key).or_insert((described, Vec::new()));
            known.1.push(role);
        }
    }
    let mut page = format!("# Metrics\n\n{GENERATED}");
    page.push_str(
        "Each daemon serves `/metrics` and `/healthz` over plain HTTP at the address of its setting `metrics` (the worker\n\
         at the supervisor's `worker_metrics`). There is no login: choose an address inside. Who asks for OpenMetrics gets\n\
         it, others get Prometheus text. Counters begin at 0 with the process. Times are in seconds, sizes in bytes. The\n\
         codes in `code` labels are in [codes.md](codes.md). Alert rules and a dashboard are in `deploy/`.\n\n",
    );
    for (role, title) in [
        ("control", "The control plane's own"),
        ("supervisor", "The supervisor's own"),
        ("worker", "The worker's own"),
        ("node", "The node daemon's own"),
    ] {
        let own = roles.values().filter(|(_, of)| of.as_slice() == [role]);
        section(&mut page, title, own, false);
    }
    let shared = roles.values().filter(|(_, of)| of.len() > 1);
    section(&mut page, "Of several daemons", shared, true);
    page.trim_end().to_owned() + "\n"
}

fn section<'a>(page: &mut String, title: &str, metrics: impl Iterator<Item = &'a Row>, with_roles: bool) {
    let more = if with_roles { (" of |", "---|") } else { ("", "") };
    writeln!(
        page,
        "## {title}\n\n| metric | type | labels |{} meaning |",
        more.0
    )
    .unwrap();
    writeln!(page, "|---|---|---|{}---|", more.1).unwrap();
    for (metric, roles) in metrics {
        let labels = metric.labels.join(", ");
        let roles = if with_roles {
            format!(" {} |", roles.join(", "))
        } else {
            String::new()
        };
        let (name, kind, help) = (&metric.name, metric.kind, &metric.help);
        writeln!(page, "| `{name}` | {kind} | {labels} |{roles} {help} |").unwrap();
    }
    page.push('\n');
}

fn codes_page() -> String {
    let mut page = format!("# Codes\n\n{GENERATED}");
    page.push_str(
        "## Refusals of tunnels\n\n\
         In metrics, in logs as `code`, and in `fairlead link show`. The class says what the refused side does by itself:\n\
         `elsewhere`: it tries another relay at once; `wait`: it tries again after a while; `never`: the connection is\n\
         reset, and stays so until somebody changes something. What to do about each is in the\n\
         [guide](../guide.md#refusals).\n\n| number | code | class | message |\n|---|---|---|---|\n",
    );
    for code in RefusalCode::ALL {
        let (number, name) = (code.number(), code.as_str());
        writeln!(
            page,
            "| {number} | `{name}` | {} | {code} |",
            code.class().as_str()
        )
        .unwrap();
    }
    page.push_str(
        "\n## Errors of the REST interface\n\n\
         In `error.code` of every answer that is not 2xx; `exit` is how a command ends that was answered so.\n\n\
         | code | HTTP status | exit | meaning |\n|---|---|---|---|\n",
    );
    let mut codes: Vec<ApiCode> = ApiCode::ALL.to_vec();
    codes.sort_by_key(|code| (code.http_status(), code.as_str()));
    for code in codes {
        let (status, exit) = (code.http_status(), Exit::of_api(code).number());
        writeln!(page, "| `{code}` | {status} | {exit} | {} |", code.meaning()).unwrap();
    }
    page.push_str(STATUS);
    page.push_str("\n## Exit codes of the command line\n\n| code | meaning |\n|---|---|\n");
    for (_, number, meaning) in Exit::ALL {
        writeln!(page, "| {number} | {meaning} |").unwrap();
    }
    page
}

/// What `status` says of the whole pool.
const STATUS: &str = "\n## Status of the pool\n\n\
    `verdict` of `fairlead status --json` and of `GET /v1/status`:\n\n\
    | verdict | meaning |\n|---|---|\n\
    | `well` | nothing is wrong, and all is ready |\n\
    | `settling` | something is not ready yet, and nothing is known to be wrong |\n\
    | `attention` | there are warnings, or members wait for somebody to enrol them |\n\n\
    `warnings` of `fairlead status --json` are those of `GET /v1/warnings`; what to do about each is in the\n\
    [guide](../guide.md#warnings). `not_ready` lists what is not ready and has no warning, by these codes:\n\n\
    | code | meaning |\n|---|---|\n\
    | `NOT_ENROLLED` | the relay or node has not been enrolled: run the command on its host that adding it printed |\n\
    | `WAITING` | the link waits for a node of it to be enrolled |\n\
    | `SETTLING` | it is starting, or something new is on its way to it: it comes right by itself |\n\
    | `NO_RELAY`, `NO_NODE`, `NO_LINK` | the pool carries nothing yet, and lacks this first |\n";

fn cli_page() -> String {
    let mut page = format!(
        "# Command line\n\n{GENERATED}The help of every command, as `fairlead COMMAND --help` prints it.\n"
    );
    let mut whole = Cli::command().term_width(WIDTH);
    whole.build();
    commands(&mut page, &whole, "fairlead");
    page
}

fn commands(page: &mut String, command: &clap::Command, path: &str) {
    let help = command.clone().term_width(WIDTH).render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let help = help.join("\n");
    writeln!(page, "\n## `{path}`\n\n```text\n{}\n```", help.trim_end()).unwrap();
    for sub in command
        .get_subcommands()
        .filter(|s| !s.is_hide_set() && s.get_name() != "help")
    {
        commands(page, sub, &format!("{path} {}", sub.get_name()));
    }
}
