//! Every fault of a body's shape.

use super::node::Node;
use super::{Field, Kind, SHOWN_MAX};
use fairlead_control::api::Fault;
use std::collections::BTreeSet;

/// Faults that are listed; a hostile body has thousands.
const FAULTS_MAX: usize = 64;

/// Faults of known fields in the order of `known`, then unknown fields in the order given.
///
/// A body of the right shape has none: its texts are the verb's, which knows more about them (whether
/// a node of that name exists) and lists all their faults together. A body of the wrong shape never
/// reaches the verb, so that its texts are judged here.
pub(super) fn judge(known: &[Field], given: &[(String, Node)]) -> Vec<Fault> {
    let shape = list(known, given, false);
    if shape.is_empty() {
        return shape;
    }
    list(known, given, true)
}

fn list(known: &[Field], given: &[(String, Node)], texts: bool) -> Vec<Fault> {
    let mut faults = Vec::new();
    for field in known {
        let mut values = given
            .iter()
            .filter(|(name, _)| name == field.name)
            .map(|(_, node)| node);
        match values.next() {
            None if field.required => add(&mut faults, field.name, "it is missing"),
            None => {}
            Some(node) => judge_value(field, node, texts, &mut faults),
        }
        let more = values.count();
        if more > 0 {
            add(&mut faults, field.name, format!("it is given {} times", more + 1));
        }
    }
    let mut seen = BTreeSet::new();
    for (name, _) in given {
        if known.iter().all(|field| field.name != name) && seen.insert(name) {
            add(
                &mut faults,
                &shown(name),
                format!("unknown field: {}", allowed(known)),
            );
        }
    }
    faults
}

fn judge_value(field: &Field, node: &Node, texts: bool, faults: &mut Vec<Fault>) {
    let wrong = |expected: &str| format!("expected {expected}, found {}", node.kind());
    match (field.kind, node) {
        (_, Node::Null) if !field.required => {}
        (Kind::Flag, Node::Flag) => {}
        (Kind::Text, Node::Text(text)) => {
            if let Some(message) = (field.check)(text).filter(|_| texts) {
                add(faults, field.name, message);
            }
        }
        (Kind::Texts, Node::List(items)) => {
            for (index, item) in items.iter().enumerate() {
                if let Some(message) = judge_text(field, item, texts) {
                    add(faults, &format!("{}[{index}]", field.name), message);
                }
            }
        }
        (Kind::TextMap, Node::Object(entries)) => {
            let mut seen = BTreeSet::new();
            for (name, item) in entries {
                let place = format!("{}.{}", field.name, shown(name));
                if !seen.insert(name) {
                    add(faults, &place, "it is given twice");
                }
                if let Some(message) = judge_text(field, item, texts) {
                    add(faults, &place, message);
                }
            }
        }
        (Kind::Text, _) => add(faults, field.name, wrong("a text")),
        (Kind::Flag, _) => add(faults, field.name, wrong("true or false")),
        (Kind::Texts, _) => add(faults, field.name, wrong("a list of texts")),
        (Kind::TextMap, _) => add(faults, field.name, wrong("an object of texts")),
    }
}

fn judge_text(field: &Field, item: &Node, texts: bool) -> Option<String> {
    match item {
        Node::Text(text) => (field.check)(text).filter(|_| texts),
        other => Some(format!("expected a text, found {}", other.kind())),
    }
}

fn allowed(known: &[Field]) -> String {
    if known.is_empty() {
        return "no field is allowed here".to_owned();
    }
    let names: Vec<&str> = known.iter().map(|field| field.name).collect();
    format!("allowed are {}", names.join(", "))
}

fn shown(name: &str) -> String {
    name.chars().take(SHOWN_MAX).collect()
}

fn add(faults: &mut Vec<Fault>, field: &str, message: impl Into<String>) {
    if faults.len() < FAULTS_MAX {
        faults.push(Fault {
            field: field.to_owned(),
            message: message.into(),
        });
    }
}
