"""The encoders `otlp_logs` and `otlp_metrics`, decoded with OpenTelemetry's own protobuf."""
import pytest
from conftest import missing
from receiver import Receiver

try:
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
except ImportError:
    logs = metrics = None

PROTOBUF = {"content-type": "application/x-protobuf"}


@pytest.fixture(autouse=True)
def protobuf():
    if logs is None:
        missing("opentelemetry-proto (Python package)")


def attributes(pairs):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def test_events_are_log_records_and_one_that_is_rejected_is_a_dead_letter(cellar):
    def answer(_, body):
        request = logs.ExportLogsServiceRequest.FromString(body)
        records = [record for one in request.resource_logs for scope in one.scope_logs for record in scope.log_records]
        bad = sum("poison" in record.body.string_value for record in records)
        response = logs.ExportLogsServiceResponse()
        if bad:
            response.partial_success.rejected_log_records = bad
            response.partial_success.error_message = "no poison"
        return 200, PROTOBUF, response.SerializeToString()

    receiver = Receiver(answer)
    daemon = cellar(otlp={"preset": "otlp_logs", "with": {"url": receiver.url, "service": "site"}})
    events = [("salt/job/1/ret/web1", {"n": n, "id": "web1", "fun": "test.ping", "retcode": n % 2}) for n in range(9)]
    daemon.fire(*events, ("salt/auth", {"text": "poison"}))
    daemon.delivered("otlp")
    (letter,) = daemon.letters("otlp")
    assert letter["tag"] == "salt/auth" and letter["reason"] == "1 records rejected: no poison"
    path, headers, body = receiver.requests[0]
    assert path == "/v1/logs" and headers["content-type"] == "application/x-protobuf"
    first = logs.ExportLogsServiceRequest.FromString(body).resource_logs[0]
    assert attributes(first.resource.attributes) == {"service.name": "site", "host.name": "web1"}
    record = first.scope_logs[0].log_records[0]
    found = attributes(record.attributes)
    assert found["salt.tag"] == "salt/job/1/ret/web1" and found["salt.fun"] == "test.ping", found
    assert record.severity_text == "INFO" and record.time_unix_nano > 10**18
    # A test sends the newest event.
    daemon.fire(("salt/auth", {"text": "fine"}))
    daemon.delivered("otlp")
    daemon.checked("otlp")


def test_numbers_of_beacons_are_gauges(cellar):
    receiver = Receiver(lambda n, body: (200, PROTOBUF, b""))
    daemon = cellar(otlp={"preset": "otlp_metrics", "with": {"url": receiver.url, "tags": {"env": "test"}}, "batch": {"time": "0s"}})
    daemon.fire(("salt/beacon/web1/load/", {"1m": 0.5, "5m": 2, "id": "web1"}), ("salt/auth", {}))
    daemon.delivered("otlp")
    (body,) = receiver.bodies()
    (resource,) = metrics.ExportMetricsServiceRequest.FromString(body).resource_metrics
    found = {metric.name: metric.gauge.data_points[0] for metric in resource.scope_metrics[0].metrics}
    assert found["salt.load.1m"].as_double == 0.5 and found["salt.load.5m"].as_int == 2
    assert attributes(found["salt.load.1m"].attributes)["env"] == "test"
