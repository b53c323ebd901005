//! The configuration file as a map of scalars. It is the driver's file too, so anything else in it is skipped.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What podmon's keys hold, as text and by upper-case name. A key without a value is absent.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Document(BTreeMap<String, String>);

/// The text is not a YAML map.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("{0}")]
pub struct DocumentError(String);

impl Document {
    /// Reads the first YAML document in `bytes`; nothing at all counts as an empty map.
    pub fn parse(bytes: &[u8]) -> Result<Self, DocumentError> {
        let options = serde_saphyr::options! {
            // `yes` is a text, `010` is eight: what the reference's YAML library makes of them.
            strict_booleans: true,
            legacy_octal_numbers: true,
            with_snippet: false,
        };
        let documents: Vec<Option<Document>> =
            serde_saphyr::from_slice_multiple_with_options(bytes, options).map_err(|error| {
                // An error is one line of the log.
                let text = error.to_string();
                DocumentError(text.split_whitespace().collect::<Vec<_>>().join(" "))
            })?;
        Ok(documents.into_iter().next().flatten().unwrap_or_default())
    }

    /// The value of `key`, which is given in upper case.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Document;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document, A::Error> {
                let mut document = Document::default();
                while let Some(Scalar(key)) = map.next_key()? {
                    let key = key.unwrap_or_default().to_uppercase();
                    if !key.starts_with("PODMON_") {
                        map.next_value::<IgnoredAny>()?;
                    } else if let Scalar(Some(value)) = map.next_value()? {
                        document.0.insert(key, value);
                    }
                }
                Ok(document)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// A value as the text that the reference's configuration library makes of it: `None` for null, nothing for a list or a map.
struct Scalar(Option<String>);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Scalar;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_unit<E: Error>(self) -> Result<Scalar, E> {
                Ok(Scalar(None))
            }
            fn visit_none<E: Error>(self) -> Result<Scalar, E> {
                Ok(Scalar(None))
            }
            fn visit_bool<E: Error>(self, value: bool) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }
            fn visit_i64<E: Error>(self, value: i64) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }
            fn visit_i128<E: Error>(self, value: i128) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }
            fn visit_u64<E: Error>(self, value: u64) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }
            fn visit_u128<E: Error>(self, value: u128) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }
            fn visit_f64<E: Error>(self, value: f64) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_string())))
            }
            fn visit_str<E: Error>(self, value: &str) -> Result<Scalar, E> {
                Ok(Scalar(Some(value.to_owned())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Scalar, A::Error> {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Scalar(Some(String::new())))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar(Some(String::new())))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(yaml: &str) -> Option<String> {
        let document = Document::parse(yaml.as_bytes()).unwrap_or_else(|e| panic!("{yaml:?}: {e}"));
        document.get("PODMON_X").map(str::to_owned)
    }

    #[test]
    fn values_as_text() {
        for (yaml, text) in [
            ("PODMON_X: 60", Some("60")),
            ("PODMON_X: \"60\"", Some("60")),
            ("podmon_x: 60", Some("60")),
            ("Podmon_X: 60 # why", Some("60")),
            ("PODMON_X: 60.0", Some("60")),
            ("PODMON_X: 0x10", Some("16")),
            ("PODMON_X: 010", Some("8")),
            ("PODMON_X: '010'", Some("010")),
            ("PODMON_X: -5", Some("-5")),
            (
                "PODMON_X: 99999999999999999999",
                Some("100000000000000000000"),
            ),
            ("PODMON_X: true", Some("true")),
            ("PODMON_X: True", Some("true")),
            ("PODMON_X: yes", Some("yes")),
            ("PODMON_X: ''", Some("")),
            ("PODMON_X:", None),
            ("PODMON_X: null", None),
            ("PODMON_X: ~", None),
            ("PODMON_X: [1, {a: 2}]", Some("")),
            ("PODMON_X: {a: {b: [1]}}", Some("")),
            ("PODMON_XY: 1", None),
            ("---\nPODMON_X: 1\n", Some("1")),
            ("PODMON_X: 1\n---\nPODMON_X: 2\n", Some("1")),
            ("# nothing\n", None),
            ("", None),
            ("{\"PODMON_X\": 5}", Some("5")),
        ] {
            assert_eq!(value(yaml).as_deref(), text, "{yaml:?}");
        }
    }

    #[test]
    fn what_is_the_drivers_is_skipped() {
        let yaml = "\
CSI_LOG_LEVEL: debug
interfaceNames:
  worker-1: \"ens192,ens224\"
  ? [a, b]
  : complex
1: integer key
~: null key
tagged: !Custom {a: 1}
anchor: &here {a: 1}
merged:
  <<: *here
folded: >-
  some
  text
PODMON_X: 7
";
        assert_eq!(value(yaml).as_deref(), Some("7"));
    }

    #[test]
    fn what_is_no_map_is_an_error_on_one_line() {
        for yaml in [
            "- a\n- b\n",
            "text",
            "a: b: c",
            "PODMON_X: 1\nPODMON_X: 2\n",
            "PODMON_X: !!int text",
            "\t\tx",
        ] {
            let error = Document::parse(yaml.as_bytes())
                .expect_err(yaml)
                .to_string();
            assert!(!error.is_empty() && !error.contains('\n'), "{error:?}");
        }
        assert!(Document::parse(b"\xff\xfe\xfd").is_err());
    }
}
