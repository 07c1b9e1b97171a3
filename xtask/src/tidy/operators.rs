//! What operators are given agrees: alert rules, dashboard, metrics, codes and the guide.

use super::Fault;
use crate::source::SourceFile;

const GUIDE: &str = "docs/guide.md";
const METRICS: &str = "docs/reference/metrics.md";
const RULES: &str = "deploy/prometheus/fairlead.rules.yml";
const DASHBOARD: &str = "deploy/grafana/fairlead.json";

/// Files whose upper-case string literals are codes that the guide explains.
const CODES: [&str; 2] = [
    "crates/base/model/src/refusal.rs",
    "crates/plane/admin/src/warning.rs",
];

/// What each alert tells.
const ANNOTATIONS: [&str; 4] = ["summary:", "meaning:", "action:", "guide:"];

pub(super) fn check(files: &[SourceFile]) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut file = |path: &str| {
        let found = files.iter().find(|f| f.path == path);
        if found.is_none() {
            faults.push(Fault {
                place: path.into(),
                what: "is not there".into(),
            });
        }
        found
    };
    let (guide, metrics) = (file(GUIDE), file(METRICS));
    let (rules, dashboard) = (file(RULES), file(DASHBOARD));
    let codes = CODES.map(&mut file);
    let (Some(guide), Some(metrics), Some(rules), Some(dashboard)) = (guide, metrics, rules, dashboard)
    else {
        return faults;
    };
    faults.extend(alerts(rules, &guide.text));
    for source in [rules, dashboard] {
        for metric in metrics_of(&source.text) {
            if !metrics.text.contains(&format!("`{metric}`")) {
                faults.push(Fault::of(source, format!("`{metric}` is not in {METRICS}")));
            }
        }
    }
    for source in codes.into_iter().flatten() {
        for code in codes_of(&source.halves().0.join("\n")) {
            if !guide.text.contains(&code) {
                faults.push(Fault::of(source, format!("{code} is not explained in {GUIDE}")));
            }
        }
    }
    faults
}

/// Each alert has its annotations, and its section in the guide.
fn alerts(rules: &SourceFile, guide: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    for block in rules.text.split("- alert: ").skip(1) {
        let name = block.lines().next().unwrap_or_default().trim();
        for annotation in ANNOTATIONS {
            if !block.contains(annotation) {
                faults.push(Fault::of(rules, format!("{name} has no `{annotation}`")));
            }
        }
        let link = format!("guide: {GUIDE}#{}", name.to_lowercase());
        if !block.contains(&link) || !guide.lines().any(|line| line == format!("### {name}")) {
            faults.push(Fault::of(
                rules,
                format!("{name} has no section in {GUIDE}, or no link to it"),
            ));
        }
    }
    faults
}

/// The names of our metrics in a text, as the reference page has them.
fn metrics_of(text: &str) -> Vec<String> {
    let part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let mut found: Vec<String> = text
        .match_indices("fairlead_")
        .map(|(at, _)| {
            let rest = text.get(at..).unwrap_or_default();
            let name: String = rest.chars().take_while(|c| part(*c)).collect();
            match name.strip_suffix("_bucket") {
                Some(histogram) => histogram.to_owned(),
                None => name,
            }
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// String literals that are codes: `"LEASE_ENDED"`.
fn codes_of(text: &str) -> Vec<String> {
    let literals = text.split('"').skip(1).step_by(2);
    literals
        .filter(|l| l.len() > 4 && l.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_without_a_section_is_named() {
        let rules = SourceFile {
            path: RULES.into(),
            text: "- alert: FairleadX\n  expr: 'fairlead_x_bucket > 1'\n  summary: a\n  meaning: b\n  action: c\n  \
                   guide: docs/guide.md#fairleadx\n"
                .into(),
        };
        assert_eq!(alerts(&rules, "text\n### FairleadX\n"), []);
        assert_eq!(alerts(&rules, "text\n").len(), 1);
        assert_eq!(metrics_of(&rules.text), ["fairlead_x"]);
        assert_eq!(codes_of("a(\"LEASE_ENDED\", \"the lease\")"), ["LEASE_ENDED"]);
    }
}
