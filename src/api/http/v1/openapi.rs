//! The OpenAPI document, generated from the operations and from the types of their responses.

use std::collections::BTreeMap;

use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::{Map, Value as Json, json};

use super::operations::{OPERATIONS, Operation};
use super::params::{Param, ParamKind};

/// The document.
pub fn document() -> Json {
    let mut generator = SchemaSettings::draft2020_12()
        .for_serialize()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        // `default` describes how this program reads responses of other releases, not what it sends.
        .with_transform(RecursiveTransform(|schema: &mut Schema| {
            drop(schema.remove("default"));
        }))
        .into_generator();

    let mut paths: BTreeMap<String, Map<String, Json>> = BTreeMap::new();
    for operation in OPERATIONS.iter() {
        let answer = if operation.is_stream {
            json!({
                "text/event-stream": { "schema": { "type": "string" } },
                "application/x-ndjson": { "schema": { "type": "string" } },
            })
        } else {
            let schema = present((operation.call.answer)(&mut generator));
            json!({ "application/json": { "schema": schema } })
        };

        let path = paths
            .entry(format!("/api/v1{}", operation.path))
            .or_default();
        path.insert(
            operation.method.to_ascii_lowercase(),
            described(operation, &answer),
        );
    }

    json!({
        "openapi": "3.1.0",
        "info": { "title": "saltcellar", "version": env!("CARGO_PKG_VERSION") },
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": generator.take_definitions(true),
        },
    })
}

/// The schema of a response that exists: without one, the status is 404.
fn present(schema: Schema) -> Schema {
    let first = schema
        .get("anyOf")
        .and_then(Json::as_array)
        .and_then(|all| all.first());
    first
        .and_then(|first| Schema::try_from(first.clone()).ok())
        .unwrap_or(schema)
}

fn described(operation: &Operation, answer: &Json) -> Json {
    let of_path = operation
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));

    let mut parameters: Vec<Json> = of_path
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect();

    let mut body = None;

    // Parameters are in the query of a GET, and in a JSON body otherwise.
    if operation.method == "GET" {
        parameters.extend(operation.params.iter().map(|param| {
            json!({ "name": param.name, "in": "query", "description": param.doc, "schema": schema(param) })
        }));
    } else if !operation.params.is_empty() {
        let property = |param: &Param| {
            let described = json!({ "description": param.doc });
            let schema = [schema(param), described]
                .into_iter()
                .filter_map(|part| part.as_object().cloned())
                .flatten();
            (param.name.clone(), Json::Object(schema.collect()))
        };

        let properties: Map<_, _> = operation.params.iter().map(property).collect();
        let schema =
            json!({ "type": "object", "properties": properties, "additionalProperties": false });
        body = Some(json!({ "content": { "application/json": { "schema": schema } } }));
    }

    let described = json!({
        "summary": operation.summary(),
        "operationId": format!("{}{}", operation.method.to_ascii_lowercase(), operation.path.replace(['/', '{', '}', '-'], "_")),
        "x-scope": operation.call.right.name(),
        "parameters": parameters,
        "responses": {
            "200": { "description": "The answer", "content": answer },
            "default": {
                "description": "An error: {\"error\": {\"code\": TEXT, \"message\": TEXT}}",
                "content": { "application/json": { "schema": { "type": "object" } } },
            },
        },
    });

    // Most operations have no body, so its key is added last.
    let mut described = described.as_object().cloned().unwrap_or_default();
    described.extend(body.map(|body| ("requestBody".to_owned(), body)));
    described.into()
}

fn schema(param: &Param) -> Json {
    match param.kind {
        ParamKind::Text => json!({ "type": "string" }),
        ParamKind::Count => json!({ "type": "integer", "minimum": 0 }),
        ParamKind::Flag => json!({ "type": "boolean" }),
        ParamKind::Time => json!({ "type": ["string", "integer"] }),
        ParamKind::Json => json!({}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_makes_a_call_and_has_a_schema() {
        let document = document();
        for operation in OPERATIONS.iter() {
            let method = operation.method.to_ascii_lowercase();
            let described = &document["paths"][format!("/api/v1{}", operation.path)][&method];
            assert!(
                described["responses"]["200"]["content"].is_object(),
                "{}",
                operation.path
            );
        }
        // The target of every reference exists.
        let text = document.to_string();
        for reference in text.split("\"#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(
                document["components"]["schemas"][name].is_object(),
                "{name}"
            );
        }
    }
}
