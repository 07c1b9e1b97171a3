//! The figures: medians of all rounds, a row a measure, a column a subject.

use serde_json::{Map, Value, json};
use std::fmt::Write;

/// All figures of a run.
pub(super) struct Table {
    subjects: Vec<&'static str>,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    unit: &'static str,
    /// Per subject, one value a round.
    values: Vec<Vec<f64>>,
}

impl Table {
    pub(super) fn new(subjects: Vec<&'static str>) -> Self {
        Self {
            subjects,
            rows: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, row: &str, unit: &'static str, subject: &str, value: f64) {
        let Some(column) = self.subjects.iter().position(|s| *s == subject) else {
            return;
        };
        let index = self.rows.iter().position(|r| r.name == row).unwrap_or_else(|| {
            let values = vec![Vec::new(); self.subjects.len()];
            self.rows.push(Row {
                name: row.to_owned(),
                unit,
                values,
            });
            self.rows.len() - 1
        });
        if let Some(values) = self.rows.get_mut(index).and_then(|r| r.values.get_mut(column)) {
            values.push(value);
        }
    }

    /// As a Markdown table, with Fairlead held against the reference.
    pub(super) fn to_text(&self) -> String {
        let column = |name: &str| self.subjects.iter().position(|s| *s == name);
        let reference = match column(super::against::BEFORE) {
            Some(_) => super::against::BEFORE,
            None => "quinn",
        };
        let ratio = column("fairlead").zip(column(reference));
        let mut text = format!("| | unit | {} |", self.subjects.join(" | "));
        let mut rule = format!("|---|---|{}", "---|".repeat(self.subjects.len()));
        if ratio.is_some() {
            let _ = write!(text, " fairlead / {reference} |");
            rule.push_str("---|");
        }
        let _ = write!(text, "\n{rule}");
        for row in &self.rows {
            let _ = write!(text, "\n| {} | {} |", row.name, row.unit);
            for values in &row.values {
                match median(values) {
                    Some(value) => {
                        let _ = write!(text, " {} |", figure(value));
                    }
                    None => text.push_str(" – |"),
                }
            }
            if let Some((ours, theirs)) = ratio {
                let value = |i: usize| row.values.get(i).and_then(|v| median(v));
                match value(ours).zip(value(theirs)).filter(|(_, t)| *t > 0.0) {
                    Some((ours, theirs)) => {
                        let _ = write!(text, " {:.2} |", ours / theirs);
                    }
                    None => text.push_str(" – |"),
                }
            }
        }
        text
    }

    /// Of each measure: its name, its unit, and the values of two subjects.
    pub(super) fn pairs<'a>(
        &'a self,
        one: &str,
        other: &str,
    ) -> impl Iterator<Item = (&'a str, &'static str, &'a [f64], &'a [f64])> {
        let place = |name: &str| self.subjects.iter().position(|s| *s == name);
        let (one, other) = (place(one), place(other));
        self.rows.iter().filter_map(move |row| {
            let values = |place: Option<usize>| row.values.get(place?).map(Vec::as_slice);
            Some((row.name.as_str(), row.unit, values(one)?, values(other)?))
        })
    }

    /// Each measure with its unit, and each subject's median and rounds.
    pub(super) fn to_json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let subjects: Map<String, Value> = self
                .subjects
                .iter()
                .zip(&row.values)
                .filter_map(|(name, v)| {
                    Some(((*name).to_owned(), json!({"median": median(v)?, "rounds": v})))
                })
                .collect();
            json!({"measure": row.name, "unit": row.unit, "subjects": subjects})
        });
        Value::Array(rows.collect())
    }
}

pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// Three significant digits are what such figures are good for.
fn figure(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios() {
        let mut table = Table::new(vec!["fairlead", "quinn"]);
        for value in [1.0, 9.0, 3.0] {
            table.add("bulk", "Gbit/s", "fairlead", value);
        }
        table.add("bulk", "Gbit/s", "quinn", 4.0);
        table.add("idle", "KiB", "quinn", 123.4);
        let text = table.to_text();
        assert!(text.contains("| bulk | Gbit/s | 3.00 | 4.00 | 0.75 |"), "{text}");
        assert!(text.contains("| idle | KiB | – | 123 | – |"), "{text}");
        assert_eq!(table.to_json()[0]["subjects"]["fairlead"]["median"], 3.0);
    }
}
