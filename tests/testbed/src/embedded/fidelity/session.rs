//! What a check works with: requests in, documents or refusals out.

use std::fmt::Display;

use serde_json::{Value, json};

/// What a check found: nothing, or a difference.
pub type Checked = Result<(), String>;

/// A refusal by the server.
#[derive(Debug)]
pub struct Refusal {
    pub code: u16,
    pub reason: String,
    pub message: String,
}

/// What a request gave.
pub type Answer = Result<Value, Refusal>;

pub const NODES: &str = "/api/v1/nodes";
pub const PODS: &str = "/api/v1/namespaces/default/pods";
pub const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
pub const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";

pub const MERGE: &str = "application/merge-patch+json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub const JSON_PATCH: &str = "application/json-patch+json";

/// A client and a prefix for names.
pub struct Session {
    client: kube::Client,
    prefix: String,
}

impl Session {
    pub fn new(client: kube::Client, prefix: String) -> Session {
        Session { client, prefix }
    }

    pub fn name(&self, suffix: &str) -> String {
        format!("{}-{suffix}", self.prefix)
    }

    fn request(
        method: &str,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<http::Request<Vec<u8>>, String> {
        http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .body(body)
            .map_err(|error| format!("{method} {path}: {error}"))
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> Result<Answer, String> {
        let bytes = body
            .map(|body| body.to_string().into_bytes())
            .unwrap_or_default();
        let request = Session::request(method, path, content_type, bytes)?;
        match self.client.request::<Value>(request).await {
            Ok(document) => Ok(Ok(document)),
            Err(kube::Error::Api(status)) => Ok(Err(Refusal {
                code: status.code,
                reason: status.reason.clone(),
                message: status.message.clone(),
            })),
            Err(error) => Err(format!("{method} {path}: {error}")),
        }
    }

    pub async fn get(&self, path: &str) -> Result<Answer, String> {
        self.send("GET", path, "application/json", None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer, String> {
        self.send("POST", path, "application/json", Some(body))
            .await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Result<Answer, String> {
        self.send("PUT", path, "application/json", Some(body)).await
    }

    pub async fn patch(&self, path: &str, format: &str, body: Value) -> Result<Answer, String> {
        self.send("PATCH", path, format, Some(&body)).await
    }

    pub async fn delete(&self, path: &str, options: Value) -> Result<Answer, String> {
        self.send("DELETE", path, "application/json", Some(&options))
            .await
    }

    /// The events of a watch that ends by itself.
    pub async fn watch(&self, path: &str) -> Result<Vec<Value>, String> {
        let request = Session::request("GET", path, "application/json", Vec::new())?;
        let text = self
            .client
            .request_text(request)
            .await
            .map_err(|error| format!("GET {path}: {error}"))?;
        text.lines()
            .map(|line| {
                serde_json::from_str(line).map_err(|error| format!("GET {path}: {line:?}: {error}"))
            })
            .collect()
    }

    pub async fn node(&self, suffix: &str, extra: Value) -> Result<Value, String> {
        let mut node =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name(suffix)}});
        merge(&mut node, extra);
        ok(self.post(NODES, &node).await?)
    }

    /// A pod that no scheduler takes.
    pub async fn pod(&self, suffix: &str, extra: Value) -> Result<Value, String> {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.name(suffix)},
            "spec": {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]},
        });
        merge(&mut pod, extra);
        ok(self.post(PODS, &pod).await?)
    }

    pub async fn attachment(&self, suffix: &str, extra: Value) -> Result<Value, String> {
        let mut attachment = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": self.name(suffix)},
            "spec": {"attacher": "driver.example", "nodeName": "nowhere", "source": {"persistentVolumeName": "none"}},
        });
        merge(&mut attachment, extra);
        ok(self.post(ATTACHMENTS, &attachment).await?)
    }

    pub fn at(&self, collection: &str, suffix: &str) -> String {
        format!("{collection}/{}", self.name(suffix))
    }
}

fn merge(object: &mut Value, extra: Value) {
    if !extra.is_null() {
        json_patch::merge(object, &extra);
    }
}

pub fn ok(answer: Answer) -> Result<Value, String> {
    answer.map_err(|refusal| format!("refused: {refusal:?}"))
}

/// The request was refused with this code and reason, and its message contains `text`.
pub fn refused(answer: Answer, code: u16, reason: &str, text: &str) -> Checked {
    match answer {
        Err(refusal)
            if refusal.code == code
                && refusal.reason == reason
                && refusal.message.contains(text) =>
        {
            Ok(())
        }
        other => Err(format!(
            "wanted {code} {reason} with {text:?}, got {other:?}"
        )),
    }
}

pub fn equal<A: PartialEq<B> + Display, B: Display>(what: &str, found: A, wanted: B) -> Checked {
    if found == wanted {
        return Ok(());
    }
    Err(format!("{what}: wanted {wanted}, got {found}"))
}

pub fn version(object: &Value) -> Result<u64, String> {
    object["metadata"]["resourceVersion"]
        .as_str()
        .and_then(|version| version.parse().ok())
        .ok_or_else(|| format!("no resourceVersion in {object}"))
}
