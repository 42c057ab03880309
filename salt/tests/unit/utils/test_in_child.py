"""The fixture ``in_child``: a forked child does not wait for what a thread of its parent holds."""

import logging
import os
import select
import threading
import time


def ended(pid):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "it hangs"


def test_a_child_logs_while_a_thread_of_its_parent_writes(in_child):
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w", encoding="utf-8")
    handler = logging.StreamHandler(stream)
    logging.root.addHandler(handler)

    def fill():
        try:
            stream.write("x" * (1 << 20))
            stream.flush()
        except OSError:
            # The other end is closed below.
            pass

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        # The pipe is full: the thread waits, and holds the lock of the stream.
        while select.select([], [writing], [], 0)[1]:
            time.sleep(0.01)
        pid = in_child(logging.getLogger(__name__).error, "in the child", wait=False)
        assert ended(pid) == 0
    finally:
        logging.root.removeHandler(handler)
        os.close(reading)
        thread.join()
