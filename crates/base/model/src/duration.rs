//! Durations as people write them: `90s`, `15m`, `72h`, `1h30m`, `250ms`, `7d`.

use std::time::Duration;

/// Text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a duration: {reason} (write a number and a unit, ms, s, m, h or d: 250ms, 90s, 72h, 1h30m)"
)]
pub struct DurationError {
    text: String,
    reason: &'static str,
}

/// Parses a duration; units must fall (`1h30m`, not `30m1h`), and a bare number is refused, since
/// its unit would be a guess.
///
/// # Errors
/// Names the text and what is wrong with it.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let fail = |reason| DurationError {
        text: text.chars().take(64).collect(),
        reason,
    };
    if text.is_empty() {
        return Err(fail("it is empty"));
    }
    let mut rest = text;
    let mut total_ms: u64 = 0;
    let mut last_unit_ms = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        if number.is_empty() {
            return Err(fail("a number is missing"));
        }
        let number: u64 = number.parse().map_err(|_| fail("it is too long"))?;
        let unit_len = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_len);
        let unit_ms: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "" => return Err(fail("its unit is missing")),
            _ => return Err(fail("its unit is unknown")),
        };
        if unit_ms >= last_unit_ms {
            return Err(fail("its units do not fall"));
        }
        last_unit_ms = unit_ms;
        total_ms = number
            .checked_mul(unit_ms)
            .and_then(|ms| total_ms.checked_add(ms))
            .ok_or_else(|| fail("it is too long"))?;
        rest = tail;
    }
    Ok(Duration::from_millis(total_ms))
}

/// Writes a duration in the form that [`parse`] reads, exact to the millisecond.
#[must_use]
pub fn format(d: Duration) -> String {
    let mut ms = u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    if ms == 0 {
        return "0s".to_owned();
    }
    let mut out = String::new();
    for (unit, unit_ms) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
        ("ms", 1),
    ] {
        // 72h reads better than 3d to people who set leases in hours.
        if unit == "d" && ms < 14 * unit_ms && ms % unit_ms != 0 || unit == "d" && ms <= 7 * unit_ms {
            continue;
        }
        if ms >= unit_ms {
            out.push_str(&format!("{}{unit}", ms / unit_ms));
            ms %= unit_ms;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn examples() {
        assert_eq!(parse("72h").unwrap(), Duration::from_secs(72 * 3600));
        assert_eq!(parse("1h30m").unwrap(), Duration::from_secs(5400));
        assert_eq!(parse("250ms").unwrap(), Duration::from_millis(250));
        assert_eq!(format(Duration::from_secs(72 * 3600)), "72h");
        for (bad, why) in [
            ("", "empty"),
            ("5", "unit is missing"),
            ("h", "number is missing"),
            ("5w", "unknown"),
            ("30m1h", "fall"),
            ("-5s", "number is missing"),
            ("1.5h", "unknown"),
            ("99999999999999999999s", "too long"),
            ("999999999999999999d", "too long"),
        ] {
            let error = parse(bad).unwrap_err().to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(ms in 0u64..10_000_000_000) {
            let d = Duration::from_millis(ms);
            prop_assert_eq!(parse(&format(d)).unwrap(), d);
        }
    }
}
