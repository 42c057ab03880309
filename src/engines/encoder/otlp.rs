//! The encoders `otlp_logs` and `otlp_metrics`: protobuf of OpenTelemetry for OTLP over HTTP.
//!
//! An item is a complete request with the records of one event. Protobuf merges repeated fields, so
//! several items one after another are a request too, and the transport needs no separator.
//!
//! ```text
//! resource     service.name, host.name (the minion)
//! attributes   of a log record: salt.id, salt.tag, salt.fun, salt.jid, salt.master_id
//!              of a data point: salt.id, and the tags of the measurement
//! ```

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyKind;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use serde::Deserialize;
use serde_json::Value as Json;

use super::beacons::{Measurement, Measurements, Rules};
use super::encode::{BoxedEncoder, EncodeError, Encoder};
use crate::engines::event::Event;
use crate::engines::kind::{Kind, options};

const LOGS_DOC: &str = r"Events as log records of OpenTelemetry (protobuf).

For the transport `http` with the header `content-type: application/x-protobuf`, as in the preset of the same name. The body is the event's data as JSON; the other keys are the attributes `salt.id`, `salt.tag`, `salt.fun`,
`salt.jid` and `salt.master_id`. The resource has `service.name` (the option `service`, default `salt`) and `host.name`, the minion. The severity is ERROR if the run failed, else INFO.";

pub(super) const LOGS: Kind<BoxedEncoder> = Kind {
    name: "otlp_logs",
    doc: LOGS_DOC,
    example: "{service: salt}",
    build: |given| Ok(Box::new(options::<LogsEncoder>(given)?)),
};

const METRICS_DOC: &str = r"Numbers of beacons as gauges of OpenTelemetry (protobuf).

The measurements of [`beacons`](#beacons), with its options `rules` and `tags`, and `service` as above. Their tags are attributes; `salt.id` is the id of the event.

If a receiver rejects some records of a request (`partial_success`), the request is divided until each rejected item is alone. OTLP advises clients not to repeat such requests: accepted
records may arrive again, with the same `salt.id`.";

pub(super) const METRICS: Kind<BoxedEncoder> = Kind {
    name: "otlp_metrics",
    doc: METRICS_DOC,
    example: "{service: salt, rules: [{beacon: 'sensors*', at: values, prefix: site.sensors}], tags: {env: prod}}",
    build: |given| {
        let MetricsOptions {
            service,
            rules,
            tags,
        } = options(given)?;
        Ok(Box::new(MetricsEncoder {
            service,
            measurements: Measurements::new(rules, tags),
        }))
    },
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogsEncoder {
    /// The attribute `service.name` of the resource.
    #[serde(default = "salt")]
    service: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MetricsOptions {
    #[serde(default = "salt")]
    service: String,
    /// As those of the encoder `beacons`.
    #[serde(default)]
    rules: Rules,
    #[serde(default)]
    tags: std::collections::BTreeMap<String, Json>,
}

#[derive(Debug)]
struct MetricsEncoder {
    service: String,
    measurements: Measurements,
}

fn salt() -> String {
    "salt".to_owned()
}

impl Encoder for LogsEncoder {
    fn encode(&self, event: &Event, items: &mut Vec<Vec<u8>>) -> Result<(), EncodeError> {
        let data = event.data()?;
        // From the return itself and not from the event's columns, which dead letters do not keep.
        let has_failed = event.outcome().failed();
        let severity = if has_failed {
            SeverityNumber::Error
        } else {
            SeverityNumber::Info
        };

        let fields = [
            ("salt.id", event.id.as_str()),
            ("salt.tag", &event.tag),
            ("salt.fun", &event.fun),
            ("salt.jid", &event.jid),
            ("salt.master_id", &event.master_id),
        ];

        let record = LogRecord {
            time_unix_nano: nanoseconds(event),
            observed_time_unix_nano: nanoseconds(event),
            severity_number: severity.into(),
            severity_text: if has_failed { "ERROR" } else { "INFO" }.to_owned(),
            body: Some(AnyValue {
                value: Some(AnyKind::StringValue(data.to_string())),
            }),
            attributes: texts(&fields),
            ..LogRecord::default()
        };

        let scope_logs = ScopeLogs {
            scope: Some(scope()),
            log_records: vec![record],
            ..ScopeLogs::default()
        };

        let resource = Some(resource(&self.service, &event.minion));
        let logs = ResourceLogs {
            resource,
            scope_logs: vec![scope_logs],
            ..ResourceLogs::default()
        };

        items.push(
            ExportLogsServiceRequest {
                resource_logs: vec![logs],
            }
            .encode_to_vec(),
        );
        Ok(())
    }
}

impl Encoder for MetricsEncoder {
    fn encode(&self, event: &Event, items: &mut Vec<Vec<u8>>) -> Result<(), EncodeError> {
        let Some(found) = self.measurements.of(event)? else {
            return Ok(());
        };

        let metrics: Vec<_> = found
            .list
            .into_iter()
            .map(|one| metric(event, one, &found.tags))
            .collect();
        // A request without data points is an error to some receivers.
        if metrics.is_empty() {
            return Ok(());
        }

        let scope_metrics = ScopeMetrics {
            scope: Some(scope()),
            metrics,
            ..ScopeMetrics::default()
        };

        let resource = Some(resource(&self.service, &found.minion));
        let metrics = ResourceMetrics {
            resource,
            scope_metrics: vec![scope_metrics],
            ..ResourceMetrics::default()
        };

        items.push(
            ExportMetricsServiceRequest {
                resource_metrics: vec![metrics],
            }
            .encode_to_vec(),
        );
        Ok(())
    }
}

fn metric(
    event: &Event,
    Measurement { name, value }: Measurement,
    tags: &serde_json::Map<String, Json>,
) -> Metric {
    // With the event's id a receiver can tell a repeated delivery from a new value.
    let mut attributes = texts(&[("salt.id", event.id.as_str())]);
    attributes.extend(
        tags.iter()
            .map(|(name, value)| attribute(name, kind(value))),
    );

    // An integer where possible, because a double is exact up to 2^53 only.
    let value = match value.as_i64() {
        Some(whole) => Number::AsInt(whole),
        None => Number::AsDouble(value.as_f64().unwrap_or_default()),
    };

    let time_unix_nano = nanoseconds(event);
    let point = NumberDataPoint {
        attributes,
        time_unix_nano,
        value: Some(value),
        ..NumberDataPoint::default()
    };

    Metric {
        name,
        data: Some(Data::Gauge(Gauge {
            data_points: vec![point],
        })),
        ..Metric::default()
    }
}

fn resource(service: &str, minion: &str) -> Resource {
    Resource {
        attributes: texts(&[("service.name", service), ("host.name", minion)]),
        ..Resource::default()
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "saltcellar".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

/// Attributes; those with empty values are left out.
fn texts(fields: &[(&str, &str)]) -> Vec<KeyValue> {
    let given = fields.iter().filter(|(_, value)| !value.is_empty());
    given
        .map(|(name, value)| attribute(name, AnyKind::StringValue((*value).to_owned())))
        .collect()
}

fn attribute(name: &str, value: AnyKind) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

/// A number, a flag or a string as it is; any other value as JSON.
fn kind(value: &Json) -> AnyKind {
    match value {
        Json::Bool(flag) => AnyKind::BoolValue(*flag),
        Json::String(text) => AnyKind::StringValue(text.clone()),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => AnyKind::IntValue(whole),
            (None, Some(number)) => AnyKind::DoubleValue(number),
            (None, None) => AnyKind::StringValue(number.to_string()),
        },
        other => AnyKind::StringValue(other.to_string()),
    }
}

fn nanoseconds(event: &Event) -> u64 {
    u64::try_from(event.at.0).unwrap_or(0).saturating_mul(1_000)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engines::event::tests::event;

    /// The items of events, one after another as a transport sends them.
    fn request(kind: &Kind<BoxedEncoder>, options: &Json, events: &[Event]) -> Vec<u8> {
        let encoder = (kind.build)(options).unwrap();
        let mut items = Vec::new();
        for event in events {
            encoder.encode(event, &mut items).unwrap();
        }
        items.concat()
    }

    fn shown(attributes: &[KeyValue]) -> Vec<(String, AnyKind)> {
        let value = |pair: &KeyValue| pair.value.clone().unwrap().value.unwrap();
        attributes
            .iter()
            .map(|pair| (pair.key.clone(), value(pair)))
            .collect()
    }

    fn text(name: &str, value: &str) -> (String, AnyKind) {
        (name.to_owned(), AnyKind::StringValue(value.to_owned()))
    }

    #[test]
    fn items_in_a_row_are_one_request_with_a_record_per_event() {
        let events = [
            event(1, "salt/auth", "web1", json!({"result": true})),
            event(2, "t", "", json!({"retcode": 2})),
        ];
        let bytes = request(&LOGS, &json!({"service": "site"}), &events);
        let logs = ExportLogsServiceRequest::decode(bytes.as_slice())
            .unwrap()
            .resource_logs;
        assert_eq!(logs.len(), 2);
        let resource = logs[0].resource.clone().unwrap();
        assert_eq!(
            shown(&resource.attributes),
            [text("service.name", "site"), text("host.name", "web1")]
        );
        let record = &logs[0].scope_logs[0].log_records[0];
        assert_eq!(record.time_unix_nano, 1_795_000_000_123_456_000);
        assert_eq!(record.severity_text, "INFO");
        let body = record.body.clone().unwrap().value;
        assert_eq!(
            body,
            Some(AnyKind::StringValue(r#"{"result":true}"#.to_owned()))
        );
        let expected = [
            text("salt.id", "store:1"),
            text("salt.tag", "salt/auth"),
            text("salt.master_id", "master1"),
        ];
        assert_eq!(shown(&record.attributes), expected);
        let second = &logs[1].scope_logs[0].log_records[0];
        assert_eq!(second.severity_number, i32::from(SeverityNumber::Error));
        assert_eq!(
            shown(&logs[1].resource.clone().unwrap().attributes),
            [text("service.name", "site")]
        );
    }

    #[test]
    fn measurements_of_a_beacon_are_gauges() {
        let load = event(
            1,
            "salt/beacon/web1/load/",
            "web1",
            json!({"1m": 0.5, "5m": 2}),
        );
        let options = json!({"tags": {"env": "prod", "rack": 4}});
        let bytes = request(
            &METRICS,
            &options,
            &[load, event(2, "salt/auth", "web1", json!({"1m": 1}))],
        );
        let mut found = ExportMetricsServiceRequest::decode(bytes.as_slice())
            .unwrap()
            .resource_metrics;
        assert_eq!(found.len(), 1, "other events contain no items");
        let metrics = found.remove(0).scope_metrics.remove(0).metrics;
        let values: Vec<_> = metrics
            .iter()
            .map(|metric| match &metric.data {
                Some(Data::Gauge(gauge)) => {
                    (metric.name.as_str(), gauge.data_points[0].value.unwrap())
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            values,
            [
                ("salt.load.1m", Number::AsDouble(0.5)),
                ("salt.load.5m", Number::AsInt(2))
            ]
        );
        let Some(Data::Gauge(gauge)) = &metrics[0].data else {
            panic!("{metrics:?}")
        };
        let tags = shown(&gauge.data_points[0].attributes);
        let rack = ("rack".to_owned(), AnyKind::IntValue(4));
        assert_eq!(
            tags,
            [
                text("salt.id", "store:1"),
                text("minion", "web1"),
                text("env", "prod"),
                rack
            ]
        );
    }
}
