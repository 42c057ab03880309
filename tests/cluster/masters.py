"""Masters that only a reactor needs: an event bus that others read, and a request port that notes what is published."""
import json
import os
import pathlib
import socket
import threading
import time

import msgpack
import rawbus
import zmq


class Master:
    """The bus and the request port of one master. `calls` are the strings that published jobs have as their first argument."""

    def __init__(self, place, name):
        self.name, self.place = name, pathlib.Path(place)
        self.sock_dir, cache = self.place / "sock", self.place / "cache"
        self.sock_dir.mkdir(parents=True)
        cache.mkdir()
        key = cache / ".root_key"
        key.write_text("k" * 76)
        key.chmod(0o400)
        self.calls, self._clients, self._lock, self._answers = [], [], threading.Lock(), None

        self._request = zmq.Context.instance().socket(zmq.REP)
        self._request.linger = 0
        self.port = self._request.bind_to_random_port("tcp://127.0.0.1")
        self.conf = self.place / "master"
        self.conf.write_text(json.dumps({"id": name, "user": "root", "interface": "127.0.0.1", "ret_port": self.port, "sock_dir": str(self.sock_dir),
                                         "cachedir": str(cache), "engines": ["saltcellar_reactor"]}))
        self.sls = self.place / "react.sls"
        self.sls.write_text("call:\n  local.test.echo:\n    - tgt: web1\n    - arg: ['{{ tag }}']\n")
        self._listeners = []
        for end in ("pub", "pull"):
            path = self.sock_dir / f"master_event_{end}.ipc"
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(path))
            listener.listen()
            self._listeners.append(listener)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._accept, self._answer)]
        self._is_up = True
        for thread in self._threads:
            thread.start()

    def settings(self, election, **reactor):
        """The configuration of its daemon."""
        return {"bus": [str(self.sock_dir)],
                "reactor": {"master": str(self.conf), "rules": [{"x/*": str(self.sls)}], "election": election, **reactor}}

    def _accept(self):
        while self._is_up:
            try:
                client, _ = self._listeners[0].accept()
            except OSError:
                return
            with self._lock:
                self._clients.append(client)

    def _answer(self):
        while self._is_up:
            if not self._request.poll(50):
                continue
            asked = msgpack.unpackb(self._request.recv(), raw=False, strict_map_key=False)["load"]
            self.calls.append(asked["arg"][0])
            load = {"jid": asked["jid"], "minions": ["web1"]}
            self._request.send(msgpack.packb({"enc": "clear", "load": load}, use_bin_type=True))
        self._request.close()

    def fire(self, tag, **data):
        """An event of web1 on the bus, with this master's stamp."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + f".{time.time_ns() // 1000 % 10**6:06}"
        frame = rawbus.make_frame(tag, {"id": "web1", "_stamp": stamp, **data}, "plain", True)
        with self._lock:
            for client in list(self._clients):
                try:
                    client.sendall(frame)
                except OSError:
                    self._clients.remove(client)

    def has_readers(self):
        with self._lock:
            return bool(self._clients)

    def end(self):
        """Its processes are gone."""
        self._is_up = False
        for listener in self._listeners:
            listener.close()
        for path in self.sock_dir.iterdir():
            os.unlink(path)
        with self._lock:
            for client in self._clients:
                client.close()
            self._clients.clear()
        for thread in self._threads[1:]:
            thread.join()
