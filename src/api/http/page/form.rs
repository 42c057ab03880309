//! The fields that a form of the page sends.

use axum::body::Body;
use axum::extract::Query;
use hyper::Uri;

use super::super::answer::HttpError;
use super::super::server::HttpServer;
use crate::base::limits::HTTP_BODY_BYTES_MAX;

/// The fields of a form.
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    /// Reads the body of a request that sends a form.
    pub(super) async fn read(server: &HttpServer, body: Body) -> Result<Self, HttpError> {
        let body = server.body(body, HTTP_BODY_BYTES_MAX).await?;

        // The query of an address is encoded like a form, therefore axum's query parser reads both.
        let fields = std::str::from_utf8(&body)
            .ok()
            .and_then(|body| format!("/?{body}").parse::<Uri>().ok());
        let fields = fields.and_then(|uri| Query::<Vec<(String, String)>>::try_from_uri(&uri).ok());
        let Some(Query(fields)) = fields else {
            return Err(HttpError::bad("the form is malformed"));
        };
        Ok(Self(fields))
    }

    /// A field; empty if the form does not have it.
    pub(super) fn value(&self, name: &str) -> &str {
        self.field(name).unwrap_or_default()
    }

    /// A field, if the form has it.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}
