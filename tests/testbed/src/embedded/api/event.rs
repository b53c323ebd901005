//! Events are stored once, in their core form, and read and written under two groups.

use serde_json::{Map, Value};

/// (core, events.k8s.io)
const RENAMED: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

fn rename(
    value: &Value,
    pairs: impl Iterator<Item = (&'static str, &'static str)> + Clone,
    version: &str,
) -> Value {
    let mut renamed = Map::new();
    for (key, item) in value.as_object().into_iter().flatten() {
        let name = pairs
            .clone()
            .find(|(from, _)| from == key)
            .map_or(key.as_str(), |(_, to)| to);
        renamed.insert(name.to_owned(), item.clone());
    }
    renamed.insert("apiVersion".to_owned(), Value::from(version));
    Value::Object(renamed)
}

/// From the stored form to that of `events.k8s.io/v1`.
pub fn to_new(core: &Value) -> Value {
    rename(core, RENAMED.into_iter(), "events.k8s.io/v1")
}

/// From the form of `events.k8s.io/v1` to the stored one.
pub fn to_core(new: &Value) -> Value {
    rename(
        new,
        RENAMED.into_iter().map(|(core, new)| (new, core)),
        "v1",
    )
}
