"""``bench/returners.py`` stores jobs as the returners do, and reports missing measurements."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import job_caches
import returners


@pytest.fixture(params=[job_caches.JobCache, job_caches.SaltCache], ids=lambda kind: kind.name)
def cache(request, run_dir):
    one = request.param(run_dir)
    try:
        one.needs()
    except job_caches.Unavailable as exc:
        pytest.skip(str(exc))
    one.start()
    yield one
    one.stop()


def test_a_bulk_loaded_job_equals_one_stored_through_the_returner(cache):
    filled, stored = returners.jids(2)
    minions = ["web1", "web2", "web3", "web4"]
    cache.fill(
        [
            (
                filled,
                returners.load_of(filled, "*"),
                [returners.return_of(filled, *one) for one in zip(minions, range(4))],
            )
        ]
    )
    cache.function("prep_jid")(nocache=False, passed_jid=stored)
    cache.function("save_load")(stored, returners.load_of(stored, "*"), minions)
    for number, minion in enumerate(minions):
        cache.function("returner")(returners.return_of(stored, minion, number))
    assert cache.function("get_jid")(filled) == cache.function("get_jid")(stored)
    assert set(cache.function("get_jid")(filled)) == set(minions)
    loads = [dict(cache.function("get_load")(jid), jid="") for jid in (filled, stored)]
    assert loads[0] == loads[1]
    assert loads[0]["Minions"] == minions
    assert set(cache.function("get_jids")()) == {filled, stored}
    assert [row["JID"] for row in cache.function("get_jids_filter")(1)] == [stored]


def test_the_bench_measures_a_short_run_and_reads_it_back(cache):
    row = returners.measure_returns(cache, 2, 0.3, 30)
    assert row["processes"] == 2
    assert row["returns"] > 0
    assert row["p50_us"] <= row["p99_us"] <= row["max_us"]
    assert row["inodes_per_1000_returns"] >= 1000


def test_a_measurement_over_its_limit_is_stopped_and_reported():
    with pytest.raises(returners.Unfinished, match="did not finish within 0.2 s"):
        returners.apart(0.2, __import__("time").sleep, 30)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        returners.apart(30, lambda: 1 / 0)


def test_the_tables_contain_results_and_missing_measurements():
    report = {
        "caches": {
            "redis": {"skipped": "redis-server is not installed"},
            "local_cache": {
                "durable": "no",
                "returns": [],
                "list": [
                    {
                        "jobs": 10_000,
                        "get_jids_s": "did not finish within 60 s",
                        "newest_50_s": 0.25,
                        "disk_bytes": 2**21,
                        "inodes": 7,
                    },
                    {"jobs": 1_000_000, "unfilled": "filling it did not finish within 5 s"},
                ],
                "clean": "did not finish within 60 s",
            },
        }
    }
    text = "\n".join(returners.tables(report))
    assert "| local_cache | 10 k | did not finish within 60 s | 0.25 | - | 2 | 7 |" in text
    assert "| local_cache | 1 M | filling it did not finish within 5 s |" in text
    assert "redis skipped: redis-server is not installed" in text
    assert "| local_cache | - | did not finish within 60 s |" in text
