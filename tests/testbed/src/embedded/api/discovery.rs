//! What kubectl asks before it asks for anything else.

use serde_json::{Value, json};

use super::kind::{EVENTS_GROUP, Facts, KINDS, Kind};

const GROUPS: [&str; 4] = [
    "apps",
    "coordination.k8s.io",
    EVENTS_GROUP,
    "storage.k8s.io",
];

/// The discovery document at this path, if there is one.
pub fn document(path: &str) -> Option<Value> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    match parts.as_slice() {
        ["version"] => Some(json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.2", "gitCommit": "embedded", "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc", "platform": "embedded",
        })),
        ["api"] => Some(json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
        })),
        ["apis"] => {
            let groups: Vec<Value> = GROUPS.iter().map(|group| describe(group)).collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["apis", group] if GROUPS.contains(group) => {
            let mut document = describe(group);
            document["kind"] = json!("APIGroup");
            document["apiVersion"] = json!("v1");
            Some(document)
        }
        ["api", "v1"] => Some(resources("", "v1")),
        ["apis", group, "v1"] if GROUPS.contains(group) => {
            Some(resources(group, &format!("{group}/v1")))
        }
        _ => None,
    }
}

fn describe(group: &str) -> Value {
    let version = json!({"groupVersion": format!("{group}/v1"), "version": "v1"});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

fn resources(group: &str, version: &str) -> Value {
    let served =
        |facts: &&Facts| facts.group == group || group == EVENTS_GROUP && facts.kind == Kind::Event;
    let mut resources = Vec::new();
    for facts in KINDS.iter().filter(served) {
        resources.push(json!({
            "name": facts.plural, "singularName": facts.name.to_lowercase(), "namespaced": facts.namespaced,
            "kind": facts.name, "shortNames": facts.short,
            "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
        }));
        if facts.status {
            resources.push(json!({
                "name": format!("{}/status", facts.plural), "singularName": "", "namespaced": facts.namespaced,
                "kind": facts.name, "verbs": ["get", "patch", "update"],
            }));
        }
        if facts.kind == Kind::Pod {
            resources.push(json!({
                "name": "pods/binding", "singularName": "", "namespaced": true, "kind": "Binding", "verbs": ["create"],
            }));
        }
    }
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources})
}
