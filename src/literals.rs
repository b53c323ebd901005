//! Literals as Go reads and writes them: users' manifests and log searches were written for a Go program.

use std::fmt::Write as _;

/// Why a literal was not read; the texts are those that Go's `flag` package shows.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum LiteralError {
    #[error("parse error")]
    Syntax,
    #[error("value out of range")]
    Range,
}

/// An integer literal of the Go language: decimal, `0b`, `0o`, `0x` or a leading `0` for octal, with `_` between digits.
pub fn integer(text: &str) -> Result<i64, LiteralError> {
    let (negative, unsigned) = sign(text);
    let (base, digits, prefixed) = match unsigned.as_bytes() {
        [b'0', b'b' | b'B', _, ..] => (2, &unsigned[2..], true),
        [b'0', b'o' | b'O', _, ..] => (8, &unsigned[2..], true),
        [b'0', b'x' | b'X', _, ..] => (16, &unsigned[2..], true),
        // The zero itself counts as a digit before an underscore.
        [b'0', ..] => (8, &unsigned[1..], true),
        _ => (10, unsigned, false),
    };
    if unsigned.is_empty() {
        return Err(LiteralError::Syntax);
    }
    let magnitude = magnitude(digits.bytes().filter(|byte| *byte != b'_'), base)?;
    let mut after_digit = prefixed;
    for byte in digits.bytes() {
        match (byte == b'_', after_digit) {
            (true, false) => return Err(LiteralError::Syntax),
            (underscore, _) => after_digit = !underscore,
        }
    }
    if digits.ends_with('_') {
        return Err(LiteralError::Syntax);
    }
    signed(negative, magnitude)
}

/// A base-10 integer with an optional sign and nothing else.
pub fn decimal(text: &str) -> Result<i64, LiteralError> {
    let (negative, digits) = sign(text);
    if digits.is_empty() {
        return Err(LiteralError::Syntax);
    }
    signed(negative, magnitude(digits.bytes(), 10)?)
}

/// A boolean literal of Go's `strconv`.
pub fn boolean(text: &str) -> Result<bool, LiteralError> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(LiteralError::Syntax),
    }
}

/// `text` in double quotes, with what cannot be printed escaped as Go's `%q` does.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x0b' => out.push_str("\\v"),
            '\0'..='\x1f' | '\x7f' => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\x{:02x}", u32::from(character));
            }
            ' '..='~' => out.push(character),
            _ if character.escape_debug().count() == 1 => out.push(character),
            '\u{80}'..='\u{ffff}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ => {
                let _ = write!(out, "\\U{:08x}", u32::from(character));
            }
        }
    }
    out.push('"');
    out
}

fn sign(text: &str) -> (bool, &str) {
    match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    }
}

/// Stops at the first digit that overflows, as Go does: whatever follows is not looked at any more.
fn magnitude(digits: impl Iterator<Item = u8>, base: u32) -> Result<u64, LiteralError> {
    let mut value = 0_u64;
    for byte in digits {
        let digit = char::from(byte)
            .to_digit(base)
            .ok_or(LiteralError::Syntax)?;
        value = value
            .checked_mul(u64::from(base))
            .and_then(|value| value.checked_add(u64::from(digit)))
            .ok_or(LiteralError::Range)?;
    }
    Ok(value)
}

fn signed(negative: bool, magnitude: u64) -> Result<i64, LiteralError> {
    let value = i128::from(magnitude);
    i64::try_from(if negative { -value } else { value }).map_err(|_| LiteralError::Range)
}

#[cfg(test)]
mod tests {
    use super::LiteralError::{Range, Syntax};
    use super::*;

    #[test]
    fn integers() {
        for (text, value) in [
            ("0", Ok(0)),
            ("-0", Ok(0)),
            ("+7", Ok(7)),
            ("0x10", Ok(16)),
            ("0B1_0", Ok(2)),
            ("0o17", Ok(15)),
            ("017", Ok(15)),
            ("0_7", Ok(7)),
            ("0x_f", Ok(15)),
            ("1_000", Ok(1000)),
            ("-9223372036854775808", Ok(i64::MIN)),
            ("9223372036854775808", Err(Range)),
            ("99999999999999999999x", Err(Range)),
            ("", Err(Syntax)),
            ("-", Err(Syntax)),
            ("--1", Err(Syntax)),
            ("08", Err(Syntax)),
            ("0x", Err(Syntax)),
            ("_1", Err(Syntax)),
            ("1_", Err(Syntax)),
            ("1__0", Err(Syntax)),
            ("1.5", Err(Syntax)),
            (" 1", Err(Syntax)),
            ("١", Err(Syntax)),
        ] {
            assert_eq!(integer(text), value, "{text:?}");
        }
    }

    #[test]
    fn decimals_have_no_prefix_and_no_underscore() {
        for (text, value) in [
            ("010", Ok(10)),
            ("+5", Ok(5)),
            ("-5", Ok(-5)),
            ("", Err(Syntax)),
            ("0x10", Err(Syntax)),
            ("1_000", Err(Syntax)),
            ("9223372036854775808", Err(Range)),
        ] {
            assert_eq!(decimal(text), value, "{text:?}");
        }
    }

    #[test]
    fn booleans_are_case_sensitive() {
        for text in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(boolean(text), Ok(true), "{text}");
        }
        for text in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(boolean(text), Ok(false), "{text}");
        }
        for text in ["", "tRUE", "yes", "on", "2", " true"] {
            assert_eq!(boolean(text), Err(Syntax), "{text:?}");
        }
    }

    #[test]
    fn quoting() {
        assert_eq!(quoted("a \"b\"\\\n\x01\x7f"), r#""a \"b\"\\\n\x01\x7f""#);
        assert_eq!(quoted("grün ✓"), "\"grün ✓\"");
        assert_eq!(quoted("\u{200b}"), r#""\u200b""#);
    }
}
