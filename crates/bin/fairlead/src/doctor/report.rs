//! What was checked, and how it stands.

use crate::exit::Exit;
use crate::table;
use serde::Serialize;

/// Columns before what a check found: its outcome and its name.
const CHECK_COLUMNS: usize = 30;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// As it should be.
    Ok,
    /// It works, and something is not as it should be.
    Warning,
    /// It does not work.
    Failed,
    /// It could not be measured.
    NotMeasured,
}

impl Outcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
            Self::NotMeasured => "not measured",
        }
    }
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// On what: `relay paris-1`.
    pub(crate) subject: String,
    /// What was checked: a stable word.
    pub(crate) check: &'static str,
    pub(crate) outcome: Outcome,
    /// What was found.
    pub(crate) found: String,
    /// What to do; empty where nothing is to be done.
    pub(crate) advice: String,
}

/// All checks, in their order.
#[derive(Debug, Default)]
pub(crate) struct Report {
    checks: Vec<Check>,
}

/// The report as JSON.
#[derive(Debug, Serialize)]
struct Page<'a> {
    result: Outcome,
    checks: &'a [Check],
}

/// Checks of one subject.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    report: &'a mut Report,
    name: String,
}

impl Report {
    /// Begins the checks of a subject.
    pub(crate) fn on(&mut self, name: impl Into<String>) -> Subject<'_> {
        Subject {
            report: self,
            name: name.into(),
        }
    }

    /// The worst of all.
    pub(crate) fn result(&self) -> Outcome {
        let has = |outcome| self.checks.iter().any(|c| c.outcome == outcome);
        [Outcome::Failed, Outcome::NotMeasured, Outcome::Warning]
            .into_iter()
            .find(|outcome| has(*outcome))
            .unwrap_or(Outcome::Ok)
    }

    /// 1 where something failed, 3 where something could not be checked.
    pub(crate) fn exit(&self) -> Exit {
        match self.result() {
            Outcome::Failed => Exit::Failed,
            Outcome::NotMeasured => Exit::Partial,
            Outcome::Warning | Outcome::Ok => Exit::Done,
        }
    }

    pub(crate) fn print(&self, json: bool) {
        if json {
            table::json(&Page {
                result: self.result(),
                checks: &self.checks,
            });
            return;
        }
        let mut subject = "";
        for check in &self.checks {
            if check.subject != subject {
                if !subject.is_empty() {
                    table::line("");
                }
                table::line(&check.subject);
                subject = &check.subject;
            }
            let outcome = table::state_padded(check.outcome.as_str(), 12);
            let head = format!("  {outcome}  {:12}  ", check.check);
            table::hanging(&head, CHECK_COLUMNS, &check.found);
            if !check.advice.is_empty() {
                let head = format!("{}→ ", " ".repeat(CHECK_COLUMNS));
                table::hanging(&head, CHECK_COLUMNS + 2, &check.advice);
            }
        }
        table::line(&format!("\n{}", self.summary()));
    }

    fn summary(&self) -> String {
        let count = |outcome| self.checks.iter().filter(|c| c.outcome == outcome).count();
        format!(
            "{}: {} ok, {}, {} failed, {} not measured",
            table::counted(self.checks.len(), "check"),
            count(Outcome::Ok),
            table::counted(count(Outcome::Warning), "warning"),
            count(Outcome::Failed),
            count(Outcome::NotMeasured),
        )
    }

    /// What was checked so far.
    #[cfg(test)]
    pub(super) fn checks(&self) -> &[Check] {
        &self.checks
    }
}

impl Subject<'_> {
    fn add(&mut self, check: &'static str, outcome: Outcome, found: String, advice: &str) {
        self.report.checks.push(Check {
            subject: self.name.clone(),
            check,
            outcome,
            found,
            advice: advice.to_owned(),
        });
    }

    pub(crate) fn ok(&mut self, check: &'static str, found: impl Into<String>) {
        self.add(check, Outcome::Ok, found.into(), "");
    }

    pub(crate) fn warning(&mut self, check: &'static str, found: impl Into<String>, advice: &str) {
        self.add(check, Outcome::Warning, found.into(), advice);
    }

    pub(crate) fn failed(&mut self, check: &'static str, found: impl Into<String>, advice: &str) {
        self.add(check, Outcome::Failed, found.into(), advice);
    }

    pub(crate) fn unmeasured(&mut self, check: &'static str, found: impl Into<String>, advice: &str) {
        self.add(check, Outcome::NotMeasured, found.into(), advice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_is_that_of_the_worst_check() {
        let mut report = Report::default();
        assert_eq!(report.exit(), Exit::Done);
        report.on("a").warning("x", "w", "look");
        let one = "1 check: 0 ok, 1 warning, 0 failed, 0 not measured";
        assert_eq!(report.summary(), one);
        assert_eq!((report.result(), report.exit()), (Outcome::Warning, Exit::Done));
        report.on("a").unmeasured("x", "n", "");
        assert_eq!(report.exit(), Exit::Partial);
        report.on("b").failed("x", "f", "mend it");
        report.on("b").ok("y", "fine");
        assert_eq!(report.exit(), Exit::Failed);
        let all = "4 checks: 1 ok, 1 warning, 1 failed, 1 not measured";
        assert_eq!(report.summary(), all);
        report.on("b").warning("z", "w", "look");
        assert!(report.summary().contains("2 warnings"), "{}", report.summary());
    }
}
