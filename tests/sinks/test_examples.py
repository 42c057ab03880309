"""The three examples: write events to a log file, send beacon values to Datadog, publish every event to SNS."""
import json
import os
import sys
import time
import urllib.parse
import urllib.request

import pytest
from conftest import LIBS, eventually, free_port, is_open, missing, program
from receiver import Receiver


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_write_events_to_a_log_file(cellar, place):
    log = place / "events.jsonl"
    daemon = cellar(log={"match": [{"tag": "salt/*"}], "encoder": "json", "transport": {"file": {"path": str(log)}}})
    daemon.fire(*[("salt/auth", {"n": n, "id": "web1"}) for n in range(100)], ("other", {}))
    daemon.kill()
    daemon.start()
    daemon.fire(*[("salt/auth", {"n": n, "id": "web1"}) for n in range(100, 200)])
    daemon.delivered("log")
    found = {line["id"]: line for line in lines(log)}
    assert sorted(line["data"]["n"] for line in found.values()) == list(range(200))
    assert set(next(iter(found.values()))) == {"id", "seq", "time", "tag", "minion", "fun", "jid", "master_id", "data"}
    daemon.checked("log")


LOADS = [(f"salt/beacon/web{n}/load/", {"1m": n + 0.5, "5m": n, "id": f"web{n}"}) for n in range(3)]


def test_send_beacon_values_to_datadog(cellar, place):
    """The protocol of Datadog's `POST /api/v2/series`, whose reference names these fields and types."""
    receiver = Receiver(lambda n, body: (202, {}, b'{"errors":[]}'))
    (place / "key").write_text("k3y\n")
    daemon = cellar(datadog={
        "preset": "datadog", "with": {"api_key": f"file:{place}/key", "tags": {"env": "test"}},
        "transport": {"http": {"url": f"{receiver.url}/api/v2/series"}}, "batch": {"time": "0s"},
    })
    daemon.fire(*LOADS, ("salt/auth", {"id": "web1"}))
    daemon.delivered("datadog")
    series = [one for body in receiver.bodies() for one in json.loads(body)["series"]]
    assert {one["metric"] for one in series} == {"salt.load.1m", "salt.load.5m"}
    assert len(series) == 6
    for one in series:
        assert one["type"] == 3, "a gauge"
        (point,) = one["points"]
        assert isinstance(point["timestamp"], int) and abs(point["timestamp"] - time.time()) < 600
        assert isinstance(point["value"], (int, float))
        (host,) = one["resources"]
        assert host["type"] == "host" and host["name"] in {"web0", "web1", "web2"}
        assert set(one["tags"]) == {f"minion:{host['name']}", "env:test"}
    _, headers, _ = receiver.requests[0]
    assert headers["dd-api-key"] == "k3y"
    receiver.stop()


def test_send_beacon_values_to_victoriametrics_as_datadog(cellar, place, run):
    """VictoriaMetrics of Debian 12 speaks version 1 of the same protocol, which has points as pairs."""
    port = free_port()
    victoria = program("victoria-metrics", package="victoria-metrics")
    run(victoria, f"-storageDataPath={place}/vm", f"-httpListenAddr=127.0.0.1:{port}", "-retentionPeriod=1")
    eventually("the start of VictoriaMetrics", lambda: is_open(port))
    (place / "key").write_text("k3y\n")
    item = (
        '{"metric": {{ metric | tojson }}, "points": [[{{ unix }}, {{ value }}]], "host": {{ minion | tojson }}, '
        '"tags": {{ tag_list | tojson }}}'
    )
    daemon = cellar(datadog={
        "preset": "datadog", "with": {"api_key": f"file:{place}/key"}, "encoder": {"beacons": {"item": item}},
        "transport": {"http": {"url": f"http://127.0.0.1:{port}/datadog/api/v1/series"}}, "batch": {"time": "0s"},
    })
    daemon.fire(*LOADS)
    daemon.delivered("datadog")

    def stored():
        query = urllib.parse.urlencode({"match[]": '{__name__=~"salt.*"}'})
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/export?{query}") as answer:
            rows = [json.loads(line) for line in answer.read().splitlines()]
        return rows if len(rows) == 6 else None

    # Samples are visible to queries after some seconds.
    rows = eventually("the samples", stored)
    values = {(row["metric"]["__name__"], row["metric"]["minion"]): row["values"][0] for row in rows}
    assert values[("salt.load.1m", "web2")] == 2.5
    daemon.checked("datadog")


@pytest.fixture
def aws(place, run):
    """moto, and a client for each of its services."""
    try:
        import boto3
        import moto  # noqa: F401
    except ImportError as error:
        missing(f"moto (Python package moto[server]): {error}")
    port = free_port()
    # A process of its own needs none of Salt's packages.
    run(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port), env={**os.environ, "PYTHONPATH": LIBS})
    eventually("the start of moto", lambda: is_open(port))
    (place / "secret").write_text("s3cret\n")
    url = f"http://127.0.0.1:{port}"

    def client(service):
        keys = {"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "s3cret", "region_name": "eu-central-1"}
        return boto3.client(service, endpoint_url=url, **keys)

    return url, client, {"region": "eu-central-1", "access_key_id": "AKIAEXAMPLE", "secret_access_key": f"file:{place}/secret"}


def received(sqs, queue, count):
    """The strings of this many messages of a queue."""
    texts = []

    def look():
        for message in sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages", []):
            texts.append(message["Body"])
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
        return len(texts) >= count

    eventually(f"{count} messages", look)
    return texts


EVENTS = [("salt/auth", {"n": n, "text": "a & b = <\u00e9>"}) for n in range(25)]


def test_publish_every_event_to_sns(cellar, aws):
    url, client, keys = aws
    sns, sqs = client("sns"), client("sqs")
    topic = sns.create_topic(Name="salt")["TopicArn"]
    queue = sqs.create_queue(QueueName="copy")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"})
    daemon = cellar(every_event={"preset": "sns", "with": {**keys, "topic_arn": topic, "endpoint": f"{url}/"}})
    daemon.fire(*EVENTS)
    daemon.delivered("every_event")
    found = [json.loads(text) for text in received(sqs, queue, 25)]
    assert sorted(event["data"]["n"] for event in found) == list(range(25))
    assert found[0]["data"]["text"] == EVENTS[0][1]["text"]
    _, shown = daemon.checked("every_event")
    assert "<MessageId>" in shown and "s3cret" not in shown, shown


def test_batches_to_sqs(cellar, aws):
    url, client, keys = aws
    sqs = client("sqs")
    queue = sqs.create_queue(QueueName="salt")["QueueUrl"]
    daemon = cellar(queue={"preset": "sqs", "with": {**keys, "queue_url": queue}, "batch": {"time": "0s"}})
    daemon.fire(*EVENTS)
    daemon.delivered("queue")
    found = [json.loads(text)["data"]["n"] for text in received(sqs, queue, 25)]
    assert sorted(found) == list(range(25))
