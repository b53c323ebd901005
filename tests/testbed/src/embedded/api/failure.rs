//! Refusals, as the `Status` objects the real API server sends.

use serde_json::{Value, json};

use super::kind::{EVENTS_GROUP, Resource};

/// A refused request. The texts are those of the real server, since clients match on some of them.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{code} {reason}: {message}")]
pub struct Failure {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    pub details: Option<Value>,
}

impl Failure {
    fn named(
        code: u16,
        reason: &'static str,
        message: String,
        resource: Resource,
        name: &str,
    ) -> Failure {
        let facts = resource.kind.facts();
        let mut details = json!({"name": name, "kind": facts.plural});
        if !resource.group.is_empty() {
            details["group"] = json!(resource.group);
        }
        Failure {
            code,
            reason,
            message,
            details: Some(details),
        }
    }

    pub fn bad_request(message: impl Into<String>) -> Failure {
        Failure {
            code: 400,
            reason: "BadRequest",
            message: message.into(),
            details: None,
        }
    }

    pub fn not_found(resource: Resource, name: &str) -> Failure {
        let message = format!("{} \"{name}\" not found", resource.qualified());
        Failure::named(404, "NotFound", message, resource, name)
    }

    /// No such path.
    pub fn unknown_path() -> Failure {
        Failure {
            code: 404,
            reason: "NotFound",
            message: "the server could not find the requested resource".to_owned(),
            details: Some(json!({})),
        }
    }

    pub fn already_exists(resource: Resource, name: &str) -> Failure {
        let message = format!("{} \"{name}\" already exists", resource.qualified());
        Failure::named(409, "AlreadyExists", message, resource, name)
    }

    pub fn conflict(resource: Resource, name: &str, why: &str) -> Failure {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": {why}",
            resource.qualified()
        );
        Failure::named(409, "Conflict", message, resource, name)
    }

    /// The resourceVersion that the client sent is not the newest.
    pub fn modified(resource: Resource, name: &str) -> Failure {
        Failure::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// A delete precondition that does not hold; the real server names the kind here, not the resource.
    pub fn precondition(resource: Resource, name: &str, why: &str) -> Failure {
        let kind = resource.kind.facts().name;
        let mut details = json!({"name": name, "kind": kind});
        if !resource.group.is_empty() {
            details["group"] = json!(resource.group);
        }
        Failure {
            code: 409,
            reason: "Conflict",
            message: format!(
                "Operation cannot be fulfilled on {} \"{name}\": {why}",
                resource.qualified_kind()
            ),
            details: Some(details),
        }
    }

    pub fn invalid(
        resource: Resource,
        name: &str,
        field: &str,
        cause: &'static str,
        why: &str,
    ) -> Failure {
        let message = format!(
            "{} \"{name}\" is invalid: {field}: {why}",
            resource.qualified_kind()
        );
        let mut details = json!({
            "name": name,
            "kind": resource.kind.facts().name,
            "causes": [{"reason": cause, "message": why, "field": field}],
        });
        if !resource.group.is_empty() && resource.group != EVENTS_GROUP {
            details["group"] = json!(resource.group);
        }
        Failure {
            code: 422,
            reason: "Invalid",
            message,
            details: Some(details),
        }
    }

    /// A lease PUT without resourceVersion is reported against the resource, not the kind.
    pub fn version_required(resource: Resource, name: &str) -> Failure {
        let why = "Invalid value: 0: must be specified for an update";
        let mut failure = Failure::invalid(
            resource,
            name,
            "metadata.resourceVersion",
            "FieldValueInvalid",
            why,
        );
        failure.message = format!(
            "{} \"{name}\" is invalid: metadata.resourceVersion: {why}",
            resource.qualified()
        );
        if let Some(details) = &mut failure.details {
            details["kind"] = json!(resource.kind.facts().plural);
        }
        failure
    }

    /// A JSON patch that does not apply, a failed `test` among them.
    pub fn patch_rejected() -> Failure {
        Failure {
            code: 422,
            reason: "Invalid",
            message: "the server rejected our request due to an error in our request".to_owned(),
            details: Some(json!({})),
        }
    }

    pub fn unsupported_media_type() -> Failure {
        Failure {
            code: 415,
            reason: "UnsupportedMediaType",
            message: "415: Unsupported Media Type".to_owned(),
            details: Some(json!({})),
        }
    }

    pub fn method_not_allowed() -> Failure {
        Failure {
            code: 405,
            reason: "MethodNotAllowed",
            message: "the server does not allow this method on the requested resource".to_owned(),
            details: Some(json!({})),
        }
    }

    /// The version asked for is older than what is kept.
    pub fn expired(asked: u64, oldest: u64) -> Failure {
        Failure {
            code: 410,
            reason: "Expired",
            message: format!("too old resource version: {asked} ({oldest})"),
            details: None,
        }
    }

    /// The version asked for is newer than any.
    pub fn too_large(asked: u64, current: u64) -> Failure {
        Failure {
            code: 504,
            reason: "Timeout",
            message: format!("Timeout: Too large resource version: {asked}, current: {current}"),
            details: Some(json!({
                "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
                "retryAfterSeconds": 1,
            })),
        }
    }

    /// The real server answers some malformed requests with 500 and no reason.
    pub fn internal(message: impl Into<String>) -> Failure {
        Failure {
            code: 500,
            reason: "",
            message: message.into(),
            details: None,
        }
    }

    /// What this server does not model; a wrong answer would be worse.
    pub fn not_implemented(what: &str) -> Failure {
        Failure {
            code: 501,
            reason: "NotImplemented",
            message: format!("the embedded API server does not implement {what}"),
            details: None,
        }
    }

    pub fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }
}
