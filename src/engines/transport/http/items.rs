//! Errors of single items in the response to a bulk request.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use prost::Message as _;
use serde::Deserialize;
use serde_json::Value as Json;

use crate::engines::template::at_path;
use crate::engines::transport::deliver::{DeliverError, Rejected};
use crate::engines::transport::item::Item;

/// Location of the results of items in a response. Paths are dotted; `*` is the only member.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ItemErrors {
    /// A list: of all items in their order, or with `id` of the failed ones. A missing list contains no
    /// failed items if there is an `id`.
    list: String,
    /// The sequence number of a failed item's event, which stands for all items of the event, or the
    /// item's id.
    #[serde(default)]
    id: Option<String>,
    /// The item's HTTP status.
    #[serde(default)]
    status: Option<String>,
    /// A flag: the item itself is at fault, so that it fails again.
    #[serde(default)]
    permanent: Option<String>,
    /// The reason, for people.
    #[serde(default)]
    reason: Option<String>,
    /// Statuses that count as delivered, besides 2xx.
    #[serde(default)]
    accept: Vec<u16>,
}

impl ItemErrors {
    /// The items that the destination did not accept.
    pub(super) fn find(&self, items: &[Item], answer: &Json) -> Result<Vec<Rejected>, String> {
        // Without `id` the results are matched by position, so a list must be there and complete.
        let list = match (at_path(answer, &self.list), &self.id) {
            (Some(Json::Array(list)), _) => list.as_slice(),
            (None | Some(Json::Null), Some(_)) => &[],
            _ => return Err(format!("the response contains no list `{}`", self.list)),
        };

        if self.id.is_none() && list.len() != items.len() {
            return Err(format!(
                "the response has {} results for {} items",
                list.len(),
                items.len()
            ));
        }

        let mut rejected = Vec::new();
        for (n, result) in list.iter().enumerate() {
            let indexes = match &self.id {
                None => vec![n],
                Some(path) => {
                    let id = at_path(result, path).map(text).unwrap_or_default();
                    named(items, &id)?
                }
            };

            let status = self
                .status
                .as_ref()
                .and_then(|path| at_path(result, path)?.as_u64());
            let is_accepted = |status: u64| {
                (200..300).contains(&status)
                    || self
                        .accept
                        .iter()
                        .any(|accepted| u64::from(*accepted) == status)
            };
            // With `id` the list contains failures only, whatever their status.
            if self.id.is_none() && status.is_some_and(is_accepted) {
                continue;
            }
            // An item that is itself at fault fails again; 429 is about the rate.
            let is_permanent = match &self.permanent {
                Some(path) => at_path(result, path)
                    .and_then(Json::as_bool)
                    .unwrap_or(false),
                None => matches!(status, Some(400..=499)) && status != Some(429),
            };

            let reason = self
                .reason
                .as_ref()
                .and_then(|path| at_path(result, path))
                .unwrap_or(result);

            let status = status
                .map(|status| format!("{status}: "))
                .unwrap_or_default();
            let reason = format!("{status}{}", text(reason));
            rejected.extend(indexes.into_iter().map(|index| Rejected {
                index,
                reason: reason.clone(),
                is_temporary: !is_permanent,
            }));
        }
        Ok(rejected)
    }
}

/// The items with an id of a response. The number of an event names all of its items, because any of
/// them may have failed.
fn named(items: &[Item], id: &str) -> Result<Vec<usize>, String> {
    let is_named = |item: &Item| item.seq().0.to_string() == id || item.id() == id;
    let found: Vec<_> = (0..)
        .zip(items)
        .filter_map(|(index, item)| is_named(item).then_some(index))
        .collect();

    // An unknown id means that the response belongs to something else: nothing of it can be trusted.
    if found.is_empty() {
        return Err(format!(
            "the response contains a result for the unknown item {id:?}"
        ));
    }
    Ok(found)
}

/// The response of an OTLP receiver, which gives the number of rejected records but not which. A
/// rejected item is found by dividing the request. Responses for logs and metrics have the same
/// fields.
pub(super) fn partial_success(
    items: &[Item],
    answer: &[u8],
) -> Result<Vec<Rejected>, DeliverError> {
    let answer = ExportLogsServiceResponse::decode(answer).map_err(|error| {
        DeliverError::retry(format_args!("the response is not one of OTLP: {error}"))
    })?;

    match answer.partial_success {
        Some(part) if part.rejected_log_records > 0 => {
            let reason = format!(
                "{} records rejected: {}",
                part.rejected_log_records, part.error_message
            );
            // The response does not say which: dividing the request finds out.
            if items.len() > 1 {
                return Err(DeliverError::Refused { reason });
            }
            Ok(vec![Rejected {
                index: 0,
                reason,
                is_temporary: false,
            }])
        }
        _ => Ok(Vec::new()),
    }
}

/// A string as it is, any other value as JSON.
fn text(value: &Json) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::engines::transport::tests::items;

    fn find(errors: Json, answer: &Json) -> Result<Vec<(usize, String, bool)>, String> {
        let errors: ItemErrors = serde_json::from_value(errors).unwrap();
        let found = errors.find(&items(&["a", "b", "c"]), answer)?;
        Ok(found
            .into_iter()
            .map(|one| (one.index, one.reason, one.is_temporary))
            .collect())
    }

    #[test]
    fn results_in_order_are_found_as_in_a_bulk_request_of_elasticsearch() {
        let errors = json!({"list": "items", "status": "*.status", "reason": "*.error.reason", "accept": [409]});
        let item = |status: u16, reason: &str| json!({"create": {"status": status, "error": {"reason": reason}}});
        let answer =
            json!({"items": [item(409, "exists"), item(400, "no date"), item(429, "busy")]});
        let expected = [
            (1, "400: no date".to_owned(), false),
            (2, "429: busy".to_owned(), true),
        ];
        assert_eq!(find(errors.clone(), &answer).unwrap(), expected);
        for (answer, expected) in [
            (
                json!({"items": [item(201, "")]}),
                "the response has 1 results for 3 items",
            ),
            (json!({"took": 1}), "the response contains no list `items`"),
        ] {
            assert_eq!(find(errors.clone(), &answer).unwrap_err(), expected);
        }
    }

    #[test]
    fn failed_items_are_found_by_id_as_in_a_batch_of_sqs() {
        let errors =
            json!({"list": "Failed", "id": "Id", "permanent": "SenderFault", "reason": "Message"});
        let failed = json!({"Failed": [
            {"Id": "3", "SenderFault": true, "Message": "bad"}, {"Id": "1", "SenderFault": false},
        ]});
        let found = find(errors.clone(), &failed).unwrap();
        assert_eq!(found[0], (2, "bad".to_owned(), false));
        assert_eq!((found[1].0, found[1].2), (0, true));
        assert_eq!(
            find(errors.clone(), &json!({"Successful": []})).unwrap(),
            []
        );
        let unknown = json!({"Failed": [{"Id": "9"}]});
        assert_eq!(
            find(errors, &unknown).unwrap_err(),
            "the response contains a result for the unknown item \"9\""
        );
    }

    #[test]
    fn an_id_names_all_items_of_an_event_or_one() {
        let mut items = items(&["a", "b", "c"]);
        // Of the first event two items, as an encoder that makes several writes them.
        let event = items[0].event.clone();
        for (part, item) in items.iter_mut().take(2).enumerate() {
            *item = Item::new(event.clone(), Some(part), item.bytes.clone());
        }
        let errors: ItemErrors =
            serde_json::from_value(json!({"list": "Failed", "id": "Id"})).unwrap();
        let second = items[1].id();
        for (id, expected) in [("1", vec![0, 1]), (&*second, vec![1]), ("3", vec![2])] {
            let answer = json!({"Failed": [{"Id": id}]});
            let found = errors.find(&items, &answer).unwrap();
            let indexes: Vec<_> = found.iter().map(|one| one.index).collect();
            assert_eq!(indexes, expected, "{id}");
        }
    }

    #[test]
    fn records_that_an_otlp_receiver_rejects_are_found_by_dividing_the_request() {
        // partial_success {rejected: 2, error_message: "old"}
        let answer = b"\x0a\x07\x08\x02\x12\x03old";
        let refused = partial_success(&items(&["a", "b", "c"]), answer).unwrap_err();
        assert_eq!(
            refused,
            DeliverError::Refused {
                reason: "2 records rejected: old".to_owned()
            }
        );
        let alone = partial_success(&items(&["a"]), answer).unwrap();
        assert_eq!((alone.len(), alone[0].is_temporary), (1, false));
        assert_eq!(partial_success(&items(&["a"]), b""), Ok(vec![]));
        let warning = b"\x0a\x05\x12\x03old";
        assert_eq!(
            partial_success(&items(&["a"]), warning),
            Ok(vec![]),
            "nothing is rejected"
        );
        assert!(matches!(
            partial_success(&items(&["a"]), b"\xff"),
            Err(DeliverError::Retry { .. })
        ));
    }
}
