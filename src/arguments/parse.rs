//! The command line by the rules of Go's `flag` package, which users' manifests were written for.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::flags::{Declaration, Default, Flag};
use crate::literals::{self, LiteralError, quoted};

/// Why the command line cannot be read; the texts are those of Go's `flag` package.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum ParseError {
    #[error("flag: help requested")]
    Help,
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    #[error("flag provided but not defined: -{0}")]
    NotDefined(String),
    #[error("flag needs an argument: -{0}")]
    NeedsArgument(&'static str),
    #[error("invalid value {} for flag -{flag}: {reason}", quoted(.value))]
    Value {
        value: String,
        flag: &'static str,
        reason: LiteralError,
    },
    #[error("invalid boolean value {} for -{flag}: {reason}", quoted(.value))]
    Boolean {
        value: String,
        flag: &'static str,
        reason: LiteralError,
    },
    #[error("argument is not UTF-8: {0}")]
    NotText(String),
}

/// What stands behind the flags. podmon takes no such arguments, so nothing in here had any effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ignored {
    pub arguments: Vec<String>,
    /// The boolean flag right before them, if it had no value: the likely mistake is a blank instead of `=`.
    pub after: Option<&'static str>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Value {
    Text(String),
    Integer(i64),
    Boolean(bool),
}

/// The flags that were given, last one first served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parsed {
    given: BTreeMap<&'static str, Value>,
    pub ignored: Option<Ignored>,
}

impl Parsed {
    /// Reads `arguments`, without the program's name, by `table`.
    pub fn new(
        table: &[Declaration],
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, ParseError> {
        let mut given = BTreeMap::new();
        let mut bare_boolean = None;
        let mut arguments = arguments.into_iter().map(into_text);
        while let Some(argument) = arguments.next().transpose()? {
            if argument == "--" {
                bare_boolean = None;
                break;
            }
            let Some(name) = after_dashes(&argument)? else {
                let arguments: Vec<_> = std::iter::once(Ok(argument))
                    .chain(arguments)
                    .collect::<Result<_, _>>()?;
                return Ok(Self {
                    given,
                    ignored: Some(Ignored {
                        arguments,
                        after: bare_boolean,
                    }),
                });
            };
            // An equals sign in first place has been refused, so the name has at least one character.
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (name, None),
            };
            let Some(flag) = table.iter().find(|flag| flag.name == name) else {
                return Err(match name {
                    "h" | "help" => ParseError::Help,
                    _ => ParseError::NotDefined(name.to_owned()),
                });
            };
            bare_boolean = match flag.default {
                Default::Boolean(_) if value.is_none() => Some(flag.name),
                _ => None,
            };
            let value = match (flag.default, value) {
                (Default::Boolean(_), None) => Value::Boolean(true),
                (_, Some(value)) => read(flag, value)?,
                (_, None) => match arguments.next().transpose()? {
                    Some(value) => read(flag, value)?,
                    None => return Err(ParseError::NeedsArgument(flag.name)),
                },
            };
            given.insert(flag.name, value);
        }
        let arguments: Vec<_> = arguments.collect::<Result<_, _>>()?;
        Ok(Self {
            given,
            ignored: (!arguments.is_empty()).then_some(Ignored {
                arguments,
                after: bare_boolean,
            }),
        })
    }

    /// The value of `flag` if it was given.
    pub fn given(&self, flag: &Flag<&'static str>) -> Option<&str> {
        match self.given.get(flag.name) {
            Some(Value::Text(value)) => Some(value),
            _ => None,
        }
    }

    pub fn text(&self, flag: &Flag<&'static str>) -> &str {
        self.given(flag).unwrap_or(flag.default)
    }

    pub fn integer(&self, flag: &Flag<i64>) -> i64 {
        match self.given.get(flag.name) {
            Some(Value::Integer(value)) => *value,
            _ => flag.default,
        }
    }

    pub fn boolean(&self, flag: &Flag<bool>) -> bool {
        match self.given.get(flag.name) {
            Some(Value::Boolean(value)) => *value,
            _ => flag.default,
        }
    }
}

fn into_text(argument: OsString) -> Result<String, ParseError> {
    argument
        .into_string()
        .map_err(|argument| ParseError::NotText(argument.to_string_lossy().into_owned()))
}

/// The flag's name with its value if there is one; `None` for an argument that is no flag.
fn after_dashes(argument: &str) -> Result<Option<&str>, ParseError> {
    let Some(name) = argument.strip_prefix('-').filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    let name = name.strip_prefix('-').unwrap_or(name);
    if name.is_empty() || name.starts_with(['-', '=']) {
        return Err(ParseError::Syntax(argument.to_owned()));
    }
    Ok(Some(name))
}

fn read(flag: &Declaration, value: String) -> Result<Value, ParseError> {
    match flag.default {
        Default::Text(_) => Ok(Value::Text(value)),
        Default::Integer(_) => match literals::integer(&value) {
            Ok(integer) => Ok(Value::Integer(integer)),
            Err(reason) => Err(ParseError::Value {
                value,
                flag: flag.name,
                reason,
            }),
        },
        Default::Boolean(_) => match literals::boolean(&value) {
            Ok(boolean) => Ok(Value::Boolean(boolean)),
            Err(reason) => Err(ParseError::Boolean {
                value,
                flag: flag.name,
                reason,
            }),
        },
    }
}
