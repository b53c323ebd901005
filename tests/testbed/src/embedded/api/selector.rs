//! Label and field selectors.

use serde_json::Value;

use super::failure::Failure;
use super::kind::{Kind, Resource};

/// What a list or a watch is narrowed to. The empty selector takes everything.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    labels: Vec<LabelRequirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Clone, Debug)]
struct LabelRequirement {
    key: String,
    rule: LabelRule,
}

#[derive(Clone, Debug)]
enum LabelRule {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
}

#[derive(Clone, Debug)]
struct FieldRequirement {
    path: String,
    value: String,
    equal: bool,
}

impl Selector {
    pub fn parse(resource: Resource, labels: &str, fields: &str) -> Result<Selector, Failure> {
        Ok(Selector {
            labels: parse_labels(labels)?,
            fields: parse_fields(resource, fields)?,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub fn matches(&self, object: &Value) -> bool {
        self.labels
            .iter()
            .all(|requirement| requirement.matches(object))
            && self
                .fields
                .iter()
                .all(|requirement| requirement.matches(object))
    }
}

impl LabelRequirement {
    fn matches(&self, object: &Value) -> bool {
        let value = object["metadata"]["labels"][&self.key].as_str();
        match (&self.rule, value) {
            (LabelRule::Exists, value) => value.is_some(),
            (LabelRule::Absent, value) => value.is_none(),
            (LabelRule::In(values), Some(value)) => values.iter().any(|v| v == value),
            (LabelRule::In(_), None) => false,
            (LabelRule::NotIn(values), Some(value)) => values.iter().all(|v| v != value),
            (LabelRule::NotIn(_), None) => true,
        }
    }
}

impl FieldRequirement {
    fn matches(&self, object: &Value) -> bool {
        let value = self
            .path
            .split('.')
            .fold(object, |value, step| &value[step]);
        let found = match value {
            Value::String(text) => text.clone(),
            Value::Bool(flag) => flag.to_string(),
            // A boolean that is not set reads as false.
            _ if matches!(
                self.path.as_str(),
                "spec.unschedulable" | "spec.hostNetwork"
            ) =>
            {
                "false".to_owned()
            }
            _ => String::new(),
        };
        (found == self.value) == self.equal
    }
}

/// Splits at commas outside parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0i32, 0);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

fn parse_labels(text: &str) -> Result<Vec<LabelRequirement>, Failure> {
    split(text).into_iter().map(parse_label).collect()
}

fn parse_label(part: &str) -> Result<LabelRequirement, Failure> {
    let requirement = |key: &str, rule| {
        let key = key.trim();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if key.is_empty() || !key.chars().all(plain) {
            return Err(Failure::bad_request(format!(
                "unable to parse requirement: {part:?}"
            )));
        }
        Ok(LabelRequirement {
            key: key.to_owned(),
            rule,
        })
    };
    let one = |value: &str| vec![value.trim().to_owned()];
    if let Some((key, value)) = part.split_once("!=") {
        return requirement(key, LabelRule::NotIn(one(value)));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return requirement(key, LabelRule::In(one(value)));
    }
    if let Some(key) = part.strip_prefix('!') {
        return requirement(key, LabelRule::Absent);
    }
    let Some((key, rest)) = part.split_once(char::is_whitespace) else {
        return requirement(part, LabelRule::Exists);
    };
    let rest = rest.trim();
    let set = |list: &str| -> Result<Vec<String>, Failure> {
        list.trim()
            .strip_prefix('(')
            .and_then(|list| list.strip_suffix(')'))
            .map(|list| {
                list.split(',')
                    .map(|value| value.trim().to_owned())
                    .collect()
            })
            .ok_or_else(|| Failure::bad_request(format!("unable to parse requirement: {part:?}")))
    };
    if let Some(list) = rest.strip_prefix("notin") {
        requirement(key, LabelRule::NotIn(set(list)?))
    } else if let Some(list) = rest.strip_prefix("in") {
        requirement(key, LabelRule::In(set(list)?))
    } else {
        Err(Failure::bad_request(format!(
            "unable to parse requirement: {part:?}"
        )))
    }
}

fn parse_fields(resource: Resource, text: &str) -> Result<Vec<FieldRequirement>, Failure> {
    split(text)
        .into_iter()
        .map(|part| {
            let (path, value, equal) = if let Some((path, value)) = part.split_once("!=") {
                (path, value, false)
            } else if let Some((path, value)) =
                part.split_once("==").or_else(|| part.split_once('='))
            {
                (path, value, true)
            } else {
                return Err(Failure::bad_request(format!(
                    "invalid field selector: {part:?}; can't understand '{part}'"
                )));
            };
            if !supported(resource, path) {
                return Err(Failure::bad_request(format!(
                    "field label not supported: {path}"
                )));
            }
            // Events are stored in their core form.
            let path = match path.strip_prefix("regarding.") {
                Some(rest) => format!("involvedObject.{rest}"),
                None => path.to_owned(),
            };
            Ok(FieldRequirement {
                path,
                value: value.to_owned(),
                equal,
            })
        })
        .collect()
}

fn supported(resource: Resource, path: &str) -> bool {
    if path == "metadata.name" || path == "metadata.namespace" && resource.kind.facts().namespaced {
        return true;
    }
    match resource.kind {
        Kind::Pod => matches!(
            path,
            "spec.nodeName"
                | "spec.restartPolicy"
                | "spec.schedulerName"
                | "spec.serviceAccountName"
                | "spec.hostNetwork"
                | "status.phase"
                | "status.podIP"
                | "status.nominatedNodeName"
        ),
        Kind::Node => path == "spec.unschedulable",
        Kind::Namespace => path == "status.phase",
        Kind::Event => {
            let about = path
                .strip_prefix("involvedObject.")
                .or_else(|| path.strip_prefix("regarding."));
            about.map_or(
                matches!(path, "reason" | "type" | "reportingComponent"),
                |field| {
                    matches!(
                        field,
                        "kind"
                            | "namespace"
                            | "name"
                            | "uid"
                            | "apiVersion"
                            | "resourceVersion"
                            | "fieldPath"
                    )
                },
            )
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn takes(labels: &str, fields: &str) -> bool {
        let pod = json!({
            "metadata": {"name": "a", "namespace": "n", "labels": {"app": "db", "tier": "back"}},
            "spec": {"nodeName": "one"},
        });
        Selector::parse(Resource::stored(Kind::Pod), labels, fields)
            .expect("selector")
            .matches(&pod)
    }

    #[test]
    fn labels() {
        for yes in [
            "",
            "app=db",
            "app==db,tier",
            "app in (web, db)",
            "!x",
            "x!=1",
            "app notin (web),tier",
        ] {
            assert!(takes(yes, ""), "{yes}");
        }
        for no in [
            "app=web",
            "x",
            "!app",
            "app!=db",
            "x in (a)",
            "app notin (db)",
        ] {
            assert!(!takes(no, ""), "{no}");
        }
    }

    #[test]
    fn fields() {
        assert!(takes("", "spec.nodeName=one,metadata.name!=b"));
        assert!(!takes("", "spec.nodeName=two"));
        assert!(takes("", "status.phase="));
        let refused = Selector::parse(Resource::stored(Kind::Pod), "", "spec.x=1");
        assert_eq!(refused.unwrap_err().code, 400);
    }
}
