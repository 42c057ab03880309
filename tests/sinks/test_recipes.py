"""The recipes of docs/SINKS.md, as they stand there, with a Kafka cluster of librdkafka and a statsd of a few lines."""
import json
import os
import pathlib
import re
import shutil
import socket
import sys

import pytest
import yaml
from conftest import LIBS, eventually, free_port, is_open, missing

try:
    import confluent_kafka
except ImportError:
    confluent_kafka = None

DOCS = pathlib.Path(__file__).parents[2] / "docs/SINKS.md"
EVENTS = [(f"salt/job/7/ret/web{n}", {"id": f"web{n}", "fun": "test.ping", "jid": "7", "n": n}) for n in range(20)]


def recipe(title, **replace):
    """The code blocks of a section by language, with other addresses and paths."""
    section = re.search(rf"^### {title}\n(.*?)(?=^##|\Z)", DOCS.read_text(), re.M | re.S).group(1)
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```", section, re.M | re.S))
    for old, new in replace.items():
        assert any(old in block for block in blocks.values()), old
        blocks = {language: block.replace(old, str(new)) for language, block in blocks.items()}
    return blocks


class Kafka:
    """A mock cluster, which speaks Kafka's protocol on a port of its own."""

    def __init__(self):
        if confluent_kafka is None:
            missing("confluent-kafka (Python package)")
        self.producer = confluent_kafka.Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
        (broker,) = self.producer.list_topics(timeout=30).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def messages(self, topic, count):
        """The key and value of the first messages of a topic."""
        consumer = confluent_kafka.Consumer({
            "bootstrap.servers": self.address, "group.id": "test", "auto.offset.reset": "earliest", "log_level": 0,
            "allow.auto.create.topics": True, "topic.metadata.refresh.interval.ms": 200,
        })
        consumer.subscribe([topic])
        found = []

        def look():
            message = consumer.poll(0.2)
            if message is not None and not message.error():
                found.append((message.key(), message.value()))
            return len(found) >= count

        eventually(f"{count} messages of {topic}, not {found}", look)
        consumer.close()
        return found


@pytest.fixture
def kafka():
    return Kafka()


def write_program(place, text):
    """A program that starts with this Python, whose packages it finds."""
    path = place / "program.py"
    first, rest = text.split("\n", 1)
    assert first == "#!/usr/bin/python3", first
    path.write_text(f"#!{sys.executable}\nimport sys\nsys.path.append({LIBS!r})\n{rest}")
    path.chmod(0o755)
    return path


def test_kafka_by_a_program(cellar, place, kafka):
    found = recipe("Kafka, by a program", **{"kafka1:9092": kafka.address, "/etc/saltcellar/to-kafka": place / "program.py"})
    write_program(place, found["python"])
    daemon = cellar(**yaml.safe_load(found["yaml"])["sinks"])
    daemon.fire(*EVENTS, ("salt/auth", {"text": "x" * 2_000_000}))
    daemon.delivered("kafka")
    messages = kafka.messages("salt", len(EVENTS))
    assert sorted(json.loads(value)["data"]["n"] for _, value in messages) == list(range(20))
    assert {key: json.loads(value)["minion"] for key, value in messages}[b"web7"] == "web7"
    (letter,) = daemon.letters("kafka")
    assert letter["tag"] == "salt/auth" and "too large" in letter["reason"], letter


def test_kafka_by_a_program_waits_for_the_cluster(cellar, place, kafka):
    port = free_port()
    found = recipe("Kafka, by a program", **{"kafka1:9092": f"127.0.0.1:{port}", "/etc/saltcellar/to-kafka": place / "program.py"})
    write_program(place, found["python"].replace("20_000", "500"))
    daemon = cellar(kafka={**yaml.safe_load(found["yaml"])["sinks"]["kafka"], "retry": {"backoff": "1s", "max": "1s"}})
    daemon.fire(*EVENTS)
    error = eventually("an error", lambda: (daemon.sink("kafka")["error"] or {}).get("message", ""))
    assert "timed out" in error.lower(), error
    row = daemon.sink("kafka")
    assert (row["lag_entries"], daemon.letters("kafka")) == (20, [])
    forward(port, kafka.address)
    daemon.delivered("kafka")
    assert len(kafka.messages("salt", 20)) >= 20


def test_statsd_by_a_program(cellar, place):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd:
        statsd.bind(("127.0.0.1", 0))
        statsd.settimeout(30)
        found = recipe("statsd, by a program", **{"8125": statsd.getsockname()[1], "/etc/saltcellar/to-statsd": place / "program.py"})
        write_program(place, found["python"])
        daemon = cellar(**yaml.safe_load(found["yaml"])["sinks"])
        daemon.fire(("salt/beacon/web1.example/load/", {"1m": 0.5, "id": "web1.example"}))
        daemon.delivered("statsd")
        assert statsd.recv(65536) == b"web1_example.salt.load.1m:0.5|g"


def test_opentelemetry_collector_to_kafka(cellar, run, place, kafka):
    """Rotel, a collector that pip installs, stands for the OpenTelemetry Collector."""
    agent = pathlib.Path(LIBS, "rotel/rotel-agent")
    if not agent.exists():
        missing("rotel (Python package)")
    agent.chmod(0o755)
    port = free_port()
    found = recipe("OpenTelemetry Collector", **{"4318": port})
    run(
        agent, "start", "--otlp-http-endpoint", f"127.0.0.1:{port}", "--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}", "--exporter", "kafka",
        "--kafka-exporter-brokers", kafka.address, "--kafka-exporter-format", "json", "--pid-file", place / "rotel.pid", cwd=place,
    )
    eventually("the start of the collector", lambda: is_open(port))
    daemon = cellar(**yaml.safe_load(found["yaml"])["sinks"])
    daemon.fire(*EVENTS)
    daemon.delivered("collector")
    numbers = set()
    for _, value in kafka.messages("otlp_logs", 1):
        numbers.update(int(n) for n in re.findall(r'\\"n\\":(\d+)', value.decode()))
    assert numbers == set(range(20))


def test_fluent_bit_to_kafka(cellar, run, place, kafka):
    """Fluent Bit is in no package registry; the test runs where it is installed."""
    program = shutil.which("fluent-bit", path=f"{os.environ['PATH']}:/opt/fluent-bit/bin")
    if not program:
        pytest.skip("missing: fluent-bit (not a Debian package)")
    port = free_port()
    found = recipe("Fluent Bit", **{"9880": port, "kafka1:9092": kafka.address, "/var/lib/fluent-bit": place / "storage"})
    config = place / "fluent-bit.conf"
    config.write_text(found["ini"])
    run(program, "-c", config)
    eventually("the start of Fluent Bit", lambda: is_open(port))
    daemon = cellar(**yaml.safe_load(found["yaml"])["sinks"])
    daemon.fire(*EVENTS)
    daemon.delivered("fluentbit")
    messages = kafka.messages("salt", len(EVENTS))
    assert sorted(json.loads(value)["data"]["n"] for _, value in messages) == list(range(20))


def forward(port, address):
    """Passes connections to a port on to an address."""
    import threading

    host, target = address.rsplit(":", 1)
    listener = socket.create_server(("127.0.0.1", port))

    def pump(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for one in (source, sink):
            one.close()

    def serve():
        while True:
            near, _ = listener.accept()
            far = socket.create_connection((host, int(target)))
            for pair in [(near, far), (far, near)]:
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
