//! Paths and queries, read as the real server reads them.

use std::collections::BTreeMap;

use super::failure::Failure;
use super::kind::Resource;

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
pub struct Target {
    pub resource: Resource,
    /// Empty: all namespaces, or a kind without.
    pub namespace: String,
    pub name: Option<String>,
    pub subresource: Option<String>,
}

impl Target {
    pub fn parse(path: &str) -> Result<Target, Failure> {
        let parts: Vec<String> = path
            .split('/')
            .filter(|part| !part.is_empty())
            .map(decode)
            .collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Err(Failure::unknown_path()),
        };
        let (namespace, rest) = match rest {
            // A namespace's own endpoints are `namespaces/NAME` and `namespaces/NAME/status`.
            ["namespaces", namespace, plural, rest @ ..]
                if *plural != "status" && *plural != "finalize" =>
            {
                (*namespace, [&[*plural], rest].concat())
            }
            rest => ("", rest.to_vec()),
        };
        let (plural, name, subresource) = match rest.as_slice() {
            [plural] => (*plural, None, None),
            [plural, name] => (*plural, Some(*name), None),
            [plural, name, subresource] => (*plural, Some(*name), Some(*subresource)),
            _ => return Err(Failure::unknown_path()),
        };
        let resource = Resource::find(group, version, plural).ok_or_else(Failure::unknown_path)?;
        let namespaced = resource.kind.facts().namespaced;
        if !namespaced && !namespace.is_empty()
            || namespaced && name.is_some() && namespace.is_empty()
        {
            return Err(Failure::unknown_path());
        }
        Ok(Target {
            resource,
            namespace: namespace.to_owned(),
            name: name.map(str::to_owned),
            subresource: subresource.map(str::to_owned),
        })
    }
}

/// The query of a request; unknown parameters are ignored, as the real server does.
#[derive(Debug, Default)]
pub struct Query(BTreeMap<String, String>);

impl Query {
    pub fn parse(query: &str) -> Query {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        Query(
            pairs
                .map(|pair| {
                    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(key), decode(value))
                })
                .collect(),
        )
    }

    pub fn text(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    pub fn flag(&self, key: &str) -> bool {
        matches!(self.text(key), "1" | "true" | "True")
    }

    pub fn given(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    pub fn number(&self, key: &str) -> Result<Option<u64>, Failure> {
        let value = self.text(key);
        if value.is_empty() {
            return Ok(None);
        }
        value
            .parse()
            .map(Some)
            .map_err(|_| Failure::internal(format!("{key}: Invalid value: {value:?}: strconv.ParseUint: parsing {value:?}: invalid syntax")))
    }
}

/// Percent and plus encoding.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (bytes[at], escaped) {
            (_, Some(byte)) => {
                decoded.push(byte);
                at += 2;
            }
            (b'+', None) => decoded.push(b' '),
            (byte, None) => decoded.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::api::kind::Kind;

    #[test]
    fn paths() {
        let target =
            Target::parse("/api/v1/namespaces/default/pods/a/status").expect("a pod's status");
        assert_eq!(target.resource.kind, Kind::Pod);
        assert_eq!(target.namespace, "default");
        assert_eq!(target.name.as_deref(), Some("a"));
        assert_eq!(target.subresource.as_deref(), Some("status"));
        let target = Target::parse("/api/v1/namespaces/default").expect("a namespace");
        assert_eq!(
            (target.resource.kind, target.namespace.as_str()),
            (Kind::Namespace, "")
        );
        let target = Target::parse("/apis/storage.k8s.io/v1/csinodes").expect("CSINodes");
        assert_eq!((target.resource.kind, target.name), (Kind::CsiNode, None));
        for unknown in [
            "/api/v1/foos",
            "/api/v2/pods",
            "/api/v1/namespaces/x/nodes/a",
            "/api/v1/pods/a",
        ] {
            assert_eq!(Target::parse(unknown).unwrap_err().code, 404, "{unknown}");
        }
    }

    #[test]
    fn queries() {
        let query = Query::parse("labelSelector=a%3Db%2Cc+in+(d)&watch=true&limit=5");
        assert_eq!(query.text("labelSelector"), "a=b,c in (d)");
        assert!(query.flag("watch"));
        assert_eq!(query.number("limit").expect("number"), Some(5));
    }
}
