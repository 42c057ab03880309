"""The metrics of each sink, as a real Prometheus reads them."""
import json
import urllib.parse
import urllib.request

from conftest import Cellar, eventually, free_port, is_open, program


def test_prometheus_reads_what_each_sink_has_delivered_and_what_it_has_not(run, place):
    port, own = free_port(), free_port()
    sinks = {
        "copy": {"encoder": "json", "transport": {"file": {"path": str(place / "out.jsonl")}}, "batch": {"time": "0s"}},
        "dead": {"encoder": "json", "transport": {"http": {"url": f"http://127.0.0.1:{free_port()}"}}, "retry": {"backoff": "1s", "max": "1s"}},
    }
    daemon = Cellar(run, place, sinks, http={"listen": f"127.0.0.1:{port}"})
    daemon.fire(*[("salt/auth", {"n": n}) for n in range(7)])
    daemon.delivered("copy")
    config = place / "prometheus.yml"
    config.write_text(json.dumps({
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "saltcellar", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
    }))
    run(program("prometheus", package="prometheus"), f"--config.file={config}", f"--storage.tsdb.path={place}/data", f"--web.listen-address=127.0.0.1:{own}")
    eventually("Prometheus listens", lambda: is_open(own))

    def value(metric):
        query = urllib.parse.urlencode({"query": f"saltcellar_{metric}"})
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{own}/api/v1/query?{query}", timeout=60) as answer:
                found = json.load(answer)["data"]["result"]
        except OSError:
            return None
        return float(found[0]["value"][1]) if found else None

    size = (place / "out.jsonl").stat().st_size
    for metric, expected in [
        ('sink_events_total{sink="copy", outcome="delivered"}', 7),
        ('sink_lag_entries{sink="copy"}', 0),
        ('sink_bytes_total{sink="copy"}', size - 7),
        ('sink_events_total{sink="dead", outcome="delivered"}', 0),
        ('sink_lag_entries{sink="dead"}', 7),
        ('sink_dead_letters{sink="dead"}', 0),
        ('sink_paused{sink="dead"}', 0),
    ]:
        eventually(f"{metric} is {expected}", lambda: value(metric) == expected)
    eventually("failed attempts", lambda: (value('sink_failed_attempts{sink="dead"}') or 0) >= 2)
    daemon.verb("sinks", "pause", "dead")
    eventually("a paused sink", lambda: value('sink_paused{sink="dead"}') == 1)
