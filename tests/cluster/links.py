"""links: TCP connections that a test cuts, holds up and slows down."""
import contextlib
import socket
import threading
import time

#: Bytes of one read. Small enough that a slow link is slow for each of them.
CHUNK = 16 * 1024


class Link:
    """A way to a port of this machine. `port` is its own end."""

    def __init__(self, target):
        self.target, self.open, self.lock = target, set(), threading.Lock()
        self.cut_off, self.bytes_per_s, self.flows = False, None, threading.Event()
        self.flows.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                with self.lock:
                    far = None if self.cut_off else self._far()
                    if far is None:
                        end(near)
                        continue
                    self.open |= {near, far}
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _far(self):
        try:
            return socket.create_connection(("127.0.0.1", self.target), 5)
        except OSError:
            return None

    def _pump(self, reader, writer):
        with contextlib.suppress(OSError):
            # An idle connection is no error.
            for one in (reader, writer):
                one.settimeout(None)
            while data := reader.recv(CHUNK):
                self.flows.wait()
                if self.bytes_per_s:
                    time.sleep(len(data) / self.bytes_per_s)
                writer.sendall(data)
        for one in (reader, writer):
            end(one)
            self.open.discard(one)

    def cut(self):
        """Closes the open connections, and new ones as soon as they are made."""
        with self.lock:
            self.cut_off = True
            for one in list(self.open):
                end(one)

    def hang(self):
        """Connections stay, and nothing passes."""
        self.flows.clear()

    def slow(self, bytes_per_s):
        self.bytes_per_s = bytes_per_s

    def heal(self):
        self.cut_off, self.bytes_per_s = False, None
        self.flows.set()

    def close(self):
        end(self.listener)
        self.cut()
        self.flows.set()


def end(one):
    """Closes a socket in which another thread may wait."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
