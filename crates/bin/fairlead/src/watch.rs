//! `--watch`: a read, again and again.

use crate::cli::verbs::Watch;
use crate::exit::Failure;
use crate::faults::{Faults, SettingsError};
use crate::table;
use fairlead_telemetry::chain;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::time::Duration;

/// Shortest interval: faster than people read, slower than it costs the control plane anything.
const EVERY_MIN: Duration = Duration::from_millis(500);
/// Longest interval.
const EVERY_MAX: Duration = Duration::from_secs(3600);

/// Runs `look` once, or until Ctrl-C where `--watch` asks for it. On a terminal each look takes the
/// place of the one before; elsewhere a look is printed when it differs from the one before, with
/// `--json` on one line.
pub(crate) async fn repeat(
    watch: &Watch,
    look: impl AsyncFn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Some(every) = every(watch)? else {
        return look().await;
    };
    let terminal = std::io::stdout().is_terminal();
    let (mut shown, mut complained) = (String::new(), String::new());
    let mut first = true;
    while !table::is_closed() {
        table::hold();
        let looked = look().await;
        let held = table::release();
        match looked {
            Ok(()) => {
                complained.clear();
                if terminal {
                    let clear = if first { "\x1b[2J" } else { "" };
                    // Home, each line cleared to its end, and what is left below the last.
                    let lines = held.text.replace('\n', "\x1b[K\n");
                    let every = fairlead_model::duration::format(every);
                    table::raw(&format!(
                        "{clear}\x1b[H{lines}\x1b[K\nevery {every}; Ctrl-C ends\x1b[K\x1b[J"
                    ));
                } else if held.compared() != shown {
                    // JSON stays one line for each look.
                    let apart = if first || held.text.lines().count() < 2 {
                        ""
                    } else {
                        "\n"
                    };
                    table::raw(&format!("{apart}{}", held.text));
                }
                held.compared().clone_into(&mut shown);
            }
            // What cannot be read at all is no state to wait for.
            Err(failure) if first => return Err(failure),
            Err(failure) => {
                let text = chain(failure.as_error());
                if text != complained {
                    table::complain(&format!("fairlead: {text}; trying again"));
                    complained = text;
                }
            }
        }
        first = false;
        tokio::time::sleep(every).await;
    }
    Ok(())
}

/// What to write for a time that stands behind `--watch` as a word of its own, which the command line
/// takes for another argument: `--watch` alone has a time already.
pub(crate) fn tip(args: &[OsString]) -> Option<String> {
    let after = args
        .iter()
        .zip(args.iter().skip(1))
        .find(|(flag, _)| *flag == "--watch");
    let (_, time) = after?;
    let time = time
        .to_str()
        .filter(|text| text.starts_with(|c: char| c.is_ascii_digit()))?;
    Some(format!("tip: write `--watch={time}`"))
}

fn every(watch: &Watch) -> Result<Option<Duration>, SettingsError> {
    let Some(text) = &watch.watch else {
        return Ok(None);
    };
    let mut faults = Faults::default();
    let spelled = if text.bytes().all(|b| b.is_ascii_digit()) {
        format!("{text}s")
    } else {
        text.clone()
    };
    let every = fairlead_model::duration::parse(&spelled)
        .ok()
        .filter(|every| (EVERY_MIN..=EVERY_MAX).contains(every));
    if every.is_none() {
        faults.add(
            "--watch",
            format!("`{text}` is no time from 500ms to 1h, such as 2s"),
        );
    }
    faults.finish(Some(every))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_apart_from_its_flag_gets_a_tip() {
        let of = |line: &str| {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            tip(&args)
        };
        assert_eq!(
            of("f status --watch 1s").as_deref(),
            Some("tip: write `--watch=1s`")
        );
        for line in [
            "f status --watch",
            "f status --watch=1s",
            "f status --watch --json",
            "f",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
    }

    #[test]
    fn an_interval_is_a_time_or_seconds() {
        let of = |text: &str| {
            every(&Watch {
                watch: Some(text.to_owned()),
            })
        };
        assert_eq!(of("5"), Ok(Some(Duration::from_secs(5))));
        assert_eq!(of("2s"), Ok(Some(Duration::from_secs(2))));
        for bad in ["0", "1ms", "2h", "soon", ""] {
            assert!(of(bad).is_err(), "{bad}");
        }
        assert_eq!(every(&Watch { watch: None }), Ok(None));
    }
}
