//! A strict reader of OpenMetrics 1.0.0 text: what a lenient scraper forgives is an error here.

use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};

/// A family of a page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Family {
    /// counter, gauge, histogram or info.
    pub kind: String,
    /// Its help; never empty.
    pub help: String,
    /// Its unit; empty where it has none.
    pub unit: String,
    /// Each sample's name with its labels, and its value.
    pub samples: BTreeMap<String, f64>,
}

/// Units that values are given in; others are multiples of them.
const UNITS: [&str; 3] = ["seconds", "bytes", "ratios"];
/// Ends of names that say that a value is not in its base unit.
const MULTIPLES: [&str; 8] = [
    "_ms",
    "_us",
    "_ns",
    "_milliseconds",
    "_microseconds",
    "_kib",
    "_mib",
    "_percent",
];

/// Reads a page and returns its families by name.
///
/// # Errors
/// At the first line that the format, or the rules for names and units, do not allow.
pub fn parse(page: &str) -> Result<BTreeMap<String, Family>> {
    let body = page
        .strip_suffix("# EOF\n")
        .context("the page does not end in `# EOF`")?;
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in body.lines() {
        read(line, &mut families, &mut current).with_context(|| format!("in `{line}`"))?;
    }
    for (name, family) in &families {
        check(name, family).with_context(|| format!("family {name}"))?;
    }
    Ok(families)
}

fn read(line: &str, families: &mut BTreeMap<String, Family>, current: &mut String) -> Result<()> {
    if let Some(rest) = line.strip_prefix("# ") {
        let (keyword, rest) = rest.split_once(' ').context("no keyword")?;
        let (name, text) = rest.split_once(' ').context("no text")?;
        if name != current {
            ensure!(!families.contains_key(name), "the family is not in one piece");
            current.clear();
            current.push_str(name);
        }
        let family = families.entry(name.to_owned()).or_default();
        ensure!(family.samples.is_empty(), "it comes after samples");
        let slot = match keyword {
            "HELP" => &mut family.help,
            "TYPE" => &mut family.kind,
            "UNIT" => &mut family.unit,
            _ => bail!("unknown keyword {keyword}"),
        };
        ensure!(slot.is_empty(), "a second {keyword}");
        text.clone_into(slot);
        return Ok(());
    }
    ensure!(
        !line.starts_with('#') && !line.is_empty(),
        "neither a comment nor a sample"
    );
    let family = families.get_mut(current).context("a sample without its family")?;
    let (series, value) = line.rsplit_once(' ').context("no value")?;
    let name = series.split('{').next().unwrap_or_default();
    let suffix = name
        .strip_prefix(current.as_str())
        .context("a sample of another family")?;
    let allowed: &[&str] = match family.kind.as_str() {
        "counter" => &["_total"],
        "gauge" => &[""],
        "histogram" => &["_bucket", "_sum", "_count"],
        "info" => &["_info"],
        kind => bail!("unknown type `{kind}`"),
    };
    ensure!(
        allowed.contains(&suffix),
        "a {} has no sample `{suffix}`",
        family.kind
    );
    if let Some(labels) = series.strip_prefix(name).filter(|l| !l.is_empty()) {
        labels_of(labels)?;
    }
    let value: f64 = value.parse().context("the value is no number")?;
    ensure!(
        value.is_finite() && value >= 0.0,
        "a value that is negative or not finite"
    );
    ensure!(
        family.samples.insert(series.to_owned(), value).is_none(),
        "the series is there twice"
    );
    Ok(())
}

/// Reads `{name="value",…}`.
fn labels_of(text: &str) -> Result<()> {
    let inner = text
        .strip_prefix('{')
        .and_then(|t| t.strip_suffix('}'))
        .context("labels without braces")?;
    let mut seen = BTreeSet::new();
    let mut rest = inner;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").context("a label without a value")?;
        ensure!(is_name(name) && !name.starts_with("__"), "label name `{name}`");
        ensure!(seen.insert(name), "label `{name}` twice");
        let mut escaped = false;
        let end = after
            .char_indices()
            .find(|&(_, c)| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            })
            .context("an open label value")?
            .0;
        let value = after.get(..end).unwrap_or_default();
        ensure!(!value.is_empty(), "label `{name}` is empty");
        rest = after.get(end + 1..).unwrap_or_default();
        rest = match rest.strip_prefix(',') {
            Some(next) => next,
            None => {
                ensure!(rest.is_empty(), "text after a label");
                rest
            }
        };
    }
    Ok(())
}

fn check(name: &str, family: &Family) -> Result<()> {
    ensure!(is_name(name), "the name");
    ensure!(!family.kind.is_empty(), "no TYPE");
    ensure!(
        family.help.ends_with('.') && family.help.len() > 8,
        "no HELP that says anything"
    );
    ensure!(!name.ends_with("_total"), "the family's name ends in _total");
    for end in MULTIPLES {
        ensure!(!name.ends_with(end), "not in its base unit");
    }
    match family.unit.as_str() {
        "" => {
            for unit in UNITS {
                ensure!(!name.ends_with(&format!("_{unit}")), "no UNIT {unit}");
            }
        }
        unit => {
            ensure!(UNITS.contains(&unit), "unit {unit}");
            ensure!(
                name.ends_with(&format!("_{unit}")),
                "the name does not end in its unit"
            );
        }
    }
    Ok(())
}

fn is_name(text: &str) -> bool {
    let first = text.chars().next();
    first.is_some_and(|c| c.is_ascii_lowercase())
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_format_forbids_is_an_error() {
        let good = "# HELP a_seconds How long.\n# TYPE a_seconds gauge\n# UNIT a_seconds seconds\n\
                    a_seconds{x=\"1\",y=\"\\\"\"} 2.5\n# EOF\n";
        let page = parse(good).unwrap();
        assert_eq!(page["a_seconds"].samples["a_seconds{x=\"1\",y=\"\\\"\"}"], 2.5);
        for (from, to) in [
            ("# EOF\n", ""),
            ("# UNIT a_seconds seconds\n", ""),
            ("HELP a_seconds How long.", "HELP a_seconds x"),
            ("gauge", "counter"),
            ("gauge", "thing"),
            ("2.5", "NaN"),
            ("y=", "x="),
            ("a_seconds{", "b_seconds{"),
            ("2.5\n", "2.5\na_seconds{x=\"1\",y=\"\\\"\"} 3\n"),
        ] {
            assert!(parse(&good.replacen(from, to, 1)).is_err(), "{from} -> {to}");
        }
    }
}
