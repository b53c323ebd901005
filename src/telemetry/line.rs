//! One line of the log.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::literals::quoted;

/// Writes each event as one line.
pub struct Lines<W> {
    writer: W,
    json: Arc<AtomicBool>,
}

impl<W> Lines<W> {
    pub fn new(writer: W, json: Arc<AtomicBool>) -> Self {
        Self { writer, json }
    }
}

impl<S, W> Layer<S> for Lines<W>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: for<'writer> MakeWriter<'writer> + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        // From the outermost span inwards, so that what is nearer to the event wins.
        for span in context
            .event_scope(event)
            .into_iter()
            .flat_map(|scope| scope.from_root())
        {
            if let Some(more) = span.extensions().get::<Fields>() {
                fields
                    .0
                    .extend(more.0.iter().map(|(name, value)| (*name, value.clone())));
            }
        }
        event.record(&mut fields);
        let target = event.metadata().target();
        if target != "podmon" && !target.starts_with("podmon::") {
            fields.0.insert("target", target.into());
        }
        let level = event.metadata().level();
        let line = if self.json.load(Ordering::Relaxed) {
            fields.json(level)
        } else {
            fields.text(level)
        };
        // A log that cannot be written has nowhere to say so.
        let _ = self.writer.make_writer().write_all(line.as_bytes());
    }
}

const MESSAGE: &str = "message";

/// The fields of an event or a span by name.
#[derive(Default)]
struct Fields(BTreeMap<&'static str, Value>);

impl Fields {
    fn text(mut self, level: &Level) -> String {
        let mut line = format!(
            "time=\"{}\" level={} msg={}",
            now(),
            name(level),
            text_value(&self.message())
        );
        for (name, value) in &self.0 {
            line.push_str(&format!(" {}={}", unreserved(name), text_value(value)));
        }
        line.push('\n');
        line
    }

    fn json(mut self, level: &Level) -> String {
        let mut object = serde_json::Map::new();
        object.insert("msg".to_owned(), self.message());
        object.insert("level".to_owned(), name(level).into());
        object.insert("time".to_owned(), now().into());
        for (name, value) in self.0 {
            object.insert(unreserved(name), value);
        }
        let mut line = Value::Object(object).to_string();
        line.push('\n');
        line
    }

    fn message(&mut self) -> Value {
        self.0.remove(MESSAGE).unwrap_or_else(|| "".into())
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}").into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name(), value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name(), value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name(), value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name(), value.into());
    }
    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        let mut text = value.to_string();
        let mut source = value.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            // Many an error already ends with its cause.
            if !text.ends_with(&cause_text) {
                text.push_str(&format!(": {cause_text}"));
            }
            source = cause.source();
        }
        self.0.insert(field.name(), text.into());
    }
}

/// A field that would hide one of the line's own names goes by another, as in logrus.
fn unreserved(name: &str) -> String {
    match name {
        "time" | "level" | "msg" => format!("fields.{name}"),
        _ => name.to_owned(),
    }
}

fn text_value(value: &Value) -> String {
    match value {
        Value::String(text) if !text.bytes().all(bare) => quoted(text),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// What logrus leaves without quotes.
fn bare(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._/@^+".contains(&byte)
}

fn name(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}
