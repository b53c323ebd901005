//! The usage text, laid out as Go's `flag` package does it.

use super::flags::{Declaration, Default};
use crate::literals::quoted;

/// The usage of `program`, with a line break at its end.
pub fn usage(program: &str, table: &[Declaration]) -> String {
    let mut out = format!("Usage of {program}:\n");
    for flag in table {
        let kind = match flag.default {
            Default::Text(_) => " string",
            Default::Integer(_) => " int",
            Default::Boolean(_) => "",
        };
        let default = match flag.default {
            Default::Text("") | Default::Integer(0) | Default::Boolean(false) => String::new(),
            Default::Text(text) => format!(" (default {})", quoted(text)),
            Default::Integer(integer) => format!(" (default {integer})"),
            Default::Boolean(boolean) => format!(" (default {boolean})"),
        };
        out.push_str(&format!(
            "  -{}{kind}\n    \t{}{default}\n",
            flag.name, flag.meaning
        ));
    }
    out
}
