#!/usr/bin/env python3
"""
Job caches of a Salt master, measured side by side in one run with the master's own calls.

    make bench-returners                          about eight minutes, jobs up to 100,000
    make bench-returners SIZES=10000,100000,1000000
    make bench-returners BENCH_ARGS='--only saltcellar,local_cache --seconds 2'

Each is loaded by Salt's own loader into the objects of a master's workers (``MasterMinion``), in a new directory with a new
server. Measurements of each:

* ``returns``: 1 and 8 processes store returns for some seconds with ``salt.utils.job.store_job``, the master's only call for
  a return; before every 50 a new job is published (``prep_jid``, ``save_load``). One return in four is a state run's.
* ``list``: ``get_jids``, used by ``jobs.list_jobs``, and ``get_jids_filter(50)``, used by ``jobs.list_jobs_filter``, with jobs of
  one return each. These jobs are bulk loaded: see ``job_caches.py``.
* ``big_job``: ``get_jid`` of a job with 10,000 returns.
* ``clean``: ``clean_old_jobs`` with all those jobs expired, while one process stores returns: the duration of the call, the time
  until eight jobs in ten are deleted, and the effect on concurrent returns.

A measurement over ``--limit`` seconds is stopped and reported as not finished. A cache that cannot run here is
skipped, with the reason in the report. Disk and inodes are those of its data directory, including journals.
"""

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import platform
import sys
import tempfile
import time
import traceback
import warnings
from datetime import datetime
from datetime import timedelta
from datetime import timezone

import job_caches
import salt.utils.job
import salt.version

FORK = multiprocessing.get_context("fork")
RETURNS_PER_JOB = 50
BIG_JOB = 10_000
KEEP_S = 5

#: The return of a state run: three states, typical in size.
STATES = {
    f"pkg_|-{name}_|-{name}_|-installed": {
        "name": name,
        "changes": {"installed": {"old": "1.2.3-4", "new": "1.2.4-1"}} if name == "nginx" else {},
        "result": True,
        "comment": f"All specified packages are already installed: {name}",
        "__sls__": "web.packages",
        "__run_num__": number,
        "start_time": "06:39:18.888951",
        "duration": 12.834,
        "__id__": name,
    }
    for number, name in enumerate(("nginx", "openssl", "curl"))
}


# ---- data


def load_of(jid, tgt, fun="test.ping"):
    """A publish, as the master passes it to ``save_load``."""
    load = {
        "cmd": "publish",
        "tgt": tgt,
        "fun": fun,
        "arg": [],
        "tgt_type": "glob",
        "ret": "",
        "jid": jid,
    }
    return {
        **load,
        "kwargs": {"show_timeout": True, "show_jid": False, "delimiter": ":"},
        "user": "root",
    }


def return_of(jid, minion, number):
    """A minion's answer, as the master passes it to ``store_job``."""
    states = number % 4 == 3
    return {
        "cmd": "_return",
        "id": minion,
        "success": True,
        "return": STATES
        if states
        else {"up": number, "text": "The service nginx is already running"},
        "retcode": 0,
        "jid": jid,
        "fun": "state.apply" if states else "service.status",
        "fun_args": [],
        "user": "root",
        "_stamp": "2026-11-21T03:09:55.600000+00:00",
    }


def jids(count):
    """So many jids, a millisecond apart, the last one now."""
    first = datetime.now(timezone.utc) - timedelta(milliseconds=count)
    return [(first + timedelta(milliseconds=n)).strftime("%Y%m%d%H%M%S%f") for n in range(count)]


def jobs(names):
    """A job of one return for each jid."""
    for number, jid in enumerate(names):
        minion = f"web{number % 1000:04d}"
        yield jid, load_of(jid, minion, "service.status"), [return_of(jid, minion, number)]


# ---- child processes with time limits


class Unfinished(Exception):
    """The time limit was exceeded."""


def apart(limit, function, *args):
    """The result of the function in a child process; :class:`Unfinished` after so many seconds."""
    ours, theirs = FORK.Pipe(duplex=False)

    def run():
        try:
            theirs.send((True, function(*args)))
        except BaseException:  # pylint: disable=broad-except
            theirs.send((False, traceback.format_exc()))

    process = FORK.Process(target=run)
    process.start()
    theirs.close()
    try:
        if not ours.poll(limit):
            raise Unfinished(f"did not finish within {limit:g} s")
        good, value = ours.recv()
    except EOFError:
        good, value = False, "the process died"
    finally:
        process.kill()
        process.join()
    if not good:
        raise RuntimeError(value)
    return value


def own_cpu_s():
    """Processor seconds of this process."""
    times = os.times()
    return times.user + times.system


def quantiles(took):
    """Median, 99th percentile and worst, in microseconds."""
    took = sorted(took)
    at = lambda part: round(took[min(len(took) - 1, int(len(took) * part))] * 1e6) if took else None
    return {"p50_us": at(0.5), "p99_us": at(0.99), "max_us": at(1.0)}


def store(cache, worker, until, started=None):
    """A master's worker: synchronous returns, and a publish before every 50."""
    publish, keep = cache.function("prep_jid"), cache.function("save_load")
    minions = [f"web{worker}-{number:03d}" for number in range(RETURNS_PER_JOB)]
    took, published, number = [], [], 0
    cpu = own_cpu_s()
    start = time.perf_counter()
    while time.monotonic() < until:
        at = time.perf_counter()
        jid = publish(nocache=False, passed_jid=None)
        keep(jid, load_of(jid, "*"), minions)
        published.append(time.perf_counter() - at)
        for minion in minions:
            load = return_of(jid, minion, number)
            number += 1
            at = time.perf_counter()
            salt.utils.job.store_job(cache.opts, load, mminion=cache.minion)
            took.append(time.perf_counter() - at)
            if time.monotonic() >= until:
                break
    return start, time.perf_counter(), own_cpu_s() - cpu, took, published, (started, jid, number)


# ---- measurements


def measure_returns(cache, processes, seconds, limit):
    """Concurrent processes."""
    before, cpu = cache.usage(), cache.server_cpu_s()
    pipes, workers = [], []
    barrier = FORK.Barrier(processes)

    def work(worker, pipe):
        try:
            barrier.wait(limit)
            pipe.send(store(cache, worker, time.monotonic() + seconds))
        except BaseException:  # pylint: disable=broad-except
            pipe.send(traceback.format_exc())

    for worker in range(processes):
        ours, theirs = FORK.Pipe(duplex=False)
        workers.append(FORK.Process(target=work, args=(worker, theirs)))
        workers[-1].start()
        theirs.close()
        pipes.append(ours)
    came, until = [], time.monotonic() + seconds + limit
    try:
        for pipe in pipes:
            if not pipe.poll(max(0, until - time.monotonic())):
                raise Unfinished(f"a worker did not finish within {limit:g} s of its last call")
            came.append(pipe.recv())
    finally:
        for process in workers:
            process.kill()
            process.join()
    for one in came:
        if isinstance(one, str):
            raise RuntimeError(one)
    server = cache.server_cpu_s() - cpu
    if isinstance(cache, job_caches.Saltcellar) and (left := cache.spooled_or_lost()):
        raise RuntimeError(f"entries did not reach the daemon: {left}")
    took = [each for one in came for each in one[3]]
    lasted = max(one[1] for one in came) - min(one[0] for one in came)
    after = cache.usage()
    _, jid, number = came[0][5]
    verify(cache, jid, (number - 1) % RETURNS_PER_JOB + 1)
    return {
        "processes": processes,
        "returns": len(took),
        "returns_per_s": round(len(took) / lasted),
        **quantiles(took),
        "publish_p50_us": quantiles([each for one in came for each in one[4]])["p50_us"],
        "master_cpu_us_per_return": round(sum(one[2] for one in came) / len(took) * 1e6),
        "server_cpu_us_per_return": round(server / len(took) * 1e6),
        "disk_bytes_per_return": round((after[0] - before[0]) / len(took)),
        "inodes_per_1000_returns": round((after[1] - before[1]) / len(took) * 1000),
        "server_memory_bytes": cache.server_memory(),
    }


def verify(cache, jid, returned):
    """Asserts that the last job is stored, because a cache that loses data would be the fastest."""
    found = apart(60, lambda: len(cache.function("get_jid")(jid)))
    if found != returned:
        raise RuntimeError(f"job {jid} has {found} returns, {returned} were stored")


def timed(function, *args):
    """``(seconds, number of results)``."""
    started = time.perf_counter()
    answer = function(*args)
    return time.perf_counter() - started, len(answer)


def measure_list(cache, count, limit):
    """All jobs, and the newest 50."""
    row = {"jobs": count}
    try:
        seconds, found = apart(limit, timed, cache.function("get_jids"))
        if found < count:
            raise RuntimeError(f"get_jids lists {found} jobs, {count} were stored")
        row["get_jids_s"] = round(seconds, 3)
    except Unfinished as exc:
        row["get_jids_s"] = str(exc)
    newest = cache.function("get_jids_filter")
    if newest is None:
        row["newest_50_s"] = "has none"
    else:
        try:
            seconds, found = apart(limit, timed, newest, 50)
            if found != 50:
                raise RuntimeError(f"get_jids_filter(50) gave {found} jobs")
            row["newest_50_s"] = round(seconds, 4)
        except Unfinished as exc:
            row["newest_50_s"] = str(exc)
    if isinstance(cache, job_caches.Saltcellar):
        text, seconds = cache.cli("jobs", "list", "--limit", "50", "--output", "jsonl")
        if text.count("\n") != 50:
            raise RuntimeError(
                f"`saltcellar jobs list --limit 50` gave {text.count(chr(10))} lines"
            )
        row["cli_newest_50_s"] = round(seconds, 4)
    row["disk_bytes"], row["inodes"] = cache.usage()
    return row


def measure_big_job(cache, limit):
    """One job with very many returns."""
    (jid,) = jids(1)
    returns = [return_of(jid, f"m{number:05d}", number) for number in range(BIG_JOB)]
    apart(limit, cache.fill, [(jid, load_of(jid, "*"), returns)])
    seconds, found = apart(limit, timed, cache.function("get_jid"), jid)
    if found != BIG_JOB:
        raise RuntimeError(f"get_jid gave {found} returns, {BIG_JOB} were stored")
    load_s, _ = apart(limit, timed, cache.function("get_load"), jid)
    return {"minions": BIG_JOB, "get_jid_s": round(seconds, 4), "get_load_s": round(load_s, 4)}


def measure_clean(cache, names, limit):
    """All these jobs expire while returns arrive."""
    time.sleep(KEEP_S + 1)
    cache.expire()
    time.sleep(1.5)
    cache.set_keep(KEEP_S)
    # A store with segments drops the oldest segments; the last one, a seventh of these jobs, also has newer returns and
    # stays.
    last = names[len(names) * 8 // 10]
    base = apart(limit, store, cache, 8, time.monotonic() + 2)
    stop = FORK.Event()
    ours, theirs = FORK.Pipe(duplex=False)

    def meanwhile():
        rounds = []
        while not stop.is_set():
            rounds.append(store(cache, 9, time.monotonic() + 0.5)[3])
        theirs.send([each for some in rounds for each in some])

    def clean():
        started = time.perf_counter()
        cache.function("clean_old_jobs")()
        return time.perf_counter() - started

    def is_gone():
        return cache.function("get_load")(last) in (None, {})

    writer = FORK.Process(target=meanwhile)
    cpu, started = cache.server_cpu_s(), time.perf_counter()
    writer.start()
    row = {"jobs": len(names)}
    try:
        row["call_s"] = round(apart(limit, clean), 3)
        while not apart(limit, is_gone):
            if time.perf_counter() - started > limit:
                raise Unfinished(f"did not finish within {limit:g} s")
            time.sleep(0.2)
        row["gone_s"] = round(time.perf_counter() - started, 3)
    except Unfinished as exc:
        row.setdefault("call_s", str(exc))
        row["gone_s"] = str(exc)
    finally:
        stop.set()
        took = ours.recv() if ours.poll(30) else []
        writer.kill()
        writer.join()
    row["server_cpu_s"] = round(cache.server_cpu_s() - cpu, 2)
    row["returns_before"], row["returns_meanwhile"] = quantiles(base[3]), quantiles(took)
    return row


def measure(cache, args, report):
    """All measurements of one cache; an error is reported in place of its result, and the rest continues."""
    row = report.setdefault(cache.name, {"durable": cache.durable})

    @contextlib.contextmanager
    def part(name):
        started = time.monotonic()
        try:
            yield
        except Unfinished as exc:
            row[name] = str(exc)
        print(
            f"  {cache.name}: {name}, {time.monotonic() - started:.1f} s",
            file=sys.stderr,
            flush=True,
        )

    def fresh():
        cache.stop()
        cache.start()

    cache.needs()
    try:
        cache.start()
        row["returns"] = []
        for processes in args.processes:
            with part(f"returns by {processes}"):
                row["returns"].append(measure_returns(cache, processes, args.seconds, args.limit))
            fresh()
        row["list"] = []
        cleaned = max((size for size in args.sizes if size <= args.clean), default=min(args.sizes))
        done = []
        for size in sorted(args.sizes):
            if done and size > cleaned and "clean" in row:
                fresh()
                done = []
            more = jids(size)[len(done) :]
            try:
                started = time.monotonic()
                apart(args.fill_limit, cache.fill, jobs(more))
                print(
                    f"  {cache.name}: filled up to {size} jobs, {time.monotonic() - started:.1f} s",
                    file=sys.stderr,
                    flush=True,
                )
            except Unfinished as exc:
                row["list"].append({"jobs": size, "unfilled": f"filling it {exc}"})
                if size == cleaned:
                    row["clean"] = f"filling it {exc}"
                break
            done += more
            with part(f"list of {size}"):
                row["list"].append(measure_list(cache, size, args.limit))
            if size == cleaned:
                with part("big_job"):
                    row["big_job"] = measure_big_job(cache, args.limit)
                with part("clean"):
                    if isinstance(cache, job_caches.Saltcellar):
                        cache.stop()
                        cache.segment_bytes_max = "1MiB"
                        cache.start()
                        apart(args.fill_limit, cache.fill, jobs(done))
                    row["clean"] = measure_clean(cache, done, args.limit)
                if isinstance(cache, job_caches.Saltcellar):
                    cache.segment_bytes_max = None
    finally:
        cache.stop()


# ---- report


def figure(value, unit=""):
    """A number for a table; text is unchanged."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:,.3g}{unit}" if value < 100 else f"{value:,.0f}{unit}"
    return f"{value:,}{unit}"


def size_of(count):
    """10000 -> 10 k."""
    return (
        f"{count // 10**6} M"
        if count >= 10**6
        else f"{count // 1000} k"
        if count >= 1000
        else str(count)
    )


def tables(report):
    """The report as Markdown."""
    caches = [(name, row) for name, row in report["caches"].items() if "skipped" not in row]

    def table(head, rows):
        yield "| " + " | ".join(head) + " |"
        yield "|" + "---|" * len(head)
        for row in rows:
            yield "| " + " | ".join(row) + " |"
        yield ""

    head = [
        "job cache",
        "durable",
        "processes",
        "returns/s",
        "p50 / p99 us",
        "publish us",
        "CPU us: master + server",
    ]
    head += ["disk B", "inodes per 1,000", "server MB"]
    yield from table(
        head,
        [
            [
                *(name, row["durable"], str(one["processes"]), figure(one["returns_per_s"])),
                f"{figure(one['p50_us'])} / {figure(one['p99_us'])}",
                figure(one["publish_p50_us"]),
                f"{figure(one['master_cpu_us_per_return'])} + {figure(one['server_cpu_us_per_return'])}",
                figure(one["disk_bytes_per_return"]),
                figure(one["inodes_per_1000_returns"]),
                figure(one["server_memory_bytes"] // 2**20),
            ]
            for name, row in caches
            for one in row.get("returns", ())
        ],
    )
    head = [
        "job cache",
        "jobs",
        "all (`get_jids`) s",
        "newest 50 s",
        "newest 50, command line s",
        "disk MB",
        "inodes",
    ]
    yield from table(
        head,
        [
            [name, size_of(one["jobs"]), one["unfilled"], "", "", "", ""]
            if "unfilled" in one
            else [
                *(
                    name,
                    size_of(one["jobs"]),
                    figure(one["get_jids_s"]),
                    figure(one["newest_50_s"]),
                ),
                figure(one.get("cli_newest_50_s")),
                figure(one["disk_bytes"] // 2**20),
                figure(one["inodes"]),
            ]
            for name, row in caches
            for one in row.get("list", ())
        ],
    )
    head = [
        "job cache",
        "`get_jid` of 10 k minions s",
        "cleaning",
        "call s",
        "8 in 10 gone s",
        "server CPU s",
    ]
    head += ["returns p99 us before / meanwhile", "worst us meanwhile"]

    def last(name, row):
        big, clean = row.get("big_job"), row.get("clean")
        cells = [name, figure(big["get_jid_s"]) if isinstance(big, dict) else str(big or "-")]
        if not isinstance(clean, dict):
            return [*cells, str(clean or "-"), "", "", "", "", ""]
        before, meanwhile = clean["returns_before"], clean["returns_meanwhile"]
        cells += [
            size_of(clean["jobs"]),
            figure(clean["call_s"]),
            figure(clean["gone_s"]),
            figure(clean["server_cpu_s"]),
        ]
        return [
            *cells,
            f"{figure(before['p99_us'])} / {figure(meanwhile['p99_us'])}",
            figure(meanwhile["max_us"]),
        ]

    yield from table(head, [last(name, row) for name, row in caches])
    for name, row in report["caches"].items():
        if "skipped" in row:
            yield f"{name} skipped: {row['skipped']}"


def main():
    """Measure all, print tables, write JSON."""
    words = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=words)
    numbers = lambda text: [int(one) for one in text.split(",")]
    parser.add_argument(
        "--sizes",
        type=numbers,
        default=[10_000, 100_000],
        help="numbers of listed jobs (10000,100000)",
    )
    parser.add_argument(
        "--clean",
        type=int,
        default=100_000,
        help="number of jobs to clean: the largest size up to this",
    )
    parser.add_argument(
        "--processes", type=numbers, default=[1, 8], help="numbers of concurrent processes (1,8)"
    )
    parser.add_argument("--seconds", type=float, default=4, help="duration of each (4)")
    parser.add_argument(
        "--limit", type=float, default=60, help="time limit of a measurement in seconds (60)"
    )
    parser.add_argument(
        "--fill-limit",
        type=float,
        default=1200,
        help="time limit of bulk loading in seconds (1200)",
    )
    parser.add_argument(
        "--only", default="", help=f"some of: {', '.join(one.name for one in job_caches.ALL)}"
    )
    parser.add_argument("--dir", help="directory of all data (default: $TMPDIR)")
    parser.add_argument("--json", metavar="FILE", help="also write the report to this file")
    args = parser.parse_args()
    chosen = [
        one
        for one in job_caches.ALL
        if not args.only or one.name.split(",")[0] in args.only.split(",")
    ]
    if not chosen:
        parser.error(f"--only {args.only}: no such job cache")
    with contextlib.suppress(ImportError, AttributeError):
        # Salt buffers early log records until a program sets up its log, as a master does.
        import salt._logging.impl

        salt._logging.impl.shutdown_temp_handler()
    logging.getLogger().addHandler(logging.NullHandler())
    # Warnings of third-party modules, whose output would be measured.
    warnings.simplefilter("ignore")
    report = {
        "salt": salt.version.__version__,
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} processors, {platform.platform()}",
        "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "load_average": os.getloadavg()[0],
        "sizes": args.sizes,
        "seconds": args.seconds,
        "limit": args.limit,
        "caches": {},
    }
    started = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="sc-bench-", dir=args.dir, ignore_cleanup_errors=True
    ) as base:
        # PostgreSQL runs as another user, which needs access.
        os.chmod(base, 0o711)
        for kind in chosen:
            cache = kind(base)
            try:
                measure(cache, args, report["caches"])
            except job_caches.Unavailable as exc:
                report["caches"].setdefault(cache.name, {})["skipped"] = str(exc)
                print(f"  {cache.name} is skipped: {exc}", file=sys.stderr, flush=True)
    report["took_s"] = round(time.monotonic() - started)
    print(
        f"Salt {report['salt']}, {report['machine']}, load {report['load_average']:.1f} at the start, {report['took_s']} s\n"
    )
    print("\n".join(tables(report)))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump(report, out, indent=2)


if __name__ == "__main__":
    main()
