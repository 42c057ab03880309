"""An HTTP service that appends each body to a file, and answers once it is on disk: ``durable_receiver.py PORT FILE``."""
import http.server
import os
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        assert os.write(self.server.file, body) == len(body)
        os.fdatasync(self.server.file)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    port, path = sys.argv[1:]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    server.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    server.serve_forever()
