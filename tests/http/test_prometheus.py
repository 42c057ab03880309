"""Alert rules, dashboard and metrics with a real Prometheus."""

import json
import pathlib
import re
import subprocess
import urllib.parse

from conftest import fetch, program, wait_for

MONITORING = pathlib.Path(__file__).parents[2] / "docs" / "monitoring"


def promtool(*args, stdin=None):
    done = subprocess.run(
        [program("promtool"), *args], cwd=MONITORING, input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_valid_and_fire_when_they_should():
    promtool("check", "rules", "alerts.yml")
    promtool("test", "rules", "alerts.test.yml")


def test_the_scrape_configuration_is_valid():
    promtool("check", "config", "prometheus.yml")


def query(address, expression):
    url = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    answer = json.loads(fetch(url))
    assert answer["status"] == "success", answer
    return answer["data"]["result"]


def test_prometheus_scrapes_every_metric_and_evaluates_rules_and_panels(daemon, tmp_path):
    page = fetch(f"http://{daemon.address}/metrics")
    (tmp_path / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(MONITORING / "alerts.yml")],
                "scrape_configs": [{"job_name": "saltcellar", "static_configs": [{"targets": [daemon.address]}]}],
            }
        )
    )
    log = tmp_path / "prometheus.log"
    server = subprocess.Popen(
        [
            program("prometheus"),
            f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data",
            "--web.listen-address=127.0.0.1:0",
        ],
        stderr=open(log, "w"),
    )
    try:
        found = wait_for("the address of Prometheus", lambda: re.search(r"address=(127\.0\.0\.1:[1-9]\d+)", log.read_text()))
        address = found[1]
        wait_for("a scrape", lambda: scraped(address))
        names = {line.split(" ")[2] for line in page.splitlines() if line.startswith("# TYPE")}
        assert len(names) > 100
        missing = [name for name in names if not query(address, f'{{__name__=~"{name}(_total|_count)?"}}')]
        # Families without a sample in a daemon without buses, consumers and sinks have no line in the response.
        assert missing == []
        rules = json.loads(fetch(f"http://{address}/api/v1/rules"))["data"]["groups"][0]["rules"]
        assert len(rules) >= 14 and not [rule["lastError"] for rule in rules if rule.get("lastError")]
        for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]:
            for target in panel["targets"]:
                query(address, target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m"))
    finally:
        server.terminate()
        server.wait(60)


def scraped(address):
    try:
        return query(address, 'up{job="saltcellar"} == 1')
    except OSError:
        return None
