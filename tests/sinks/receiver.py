"""An HTTP service that records requests and answers them as a test wants."""
import gzip
import http.server
import ssl
import threading


class Receiver:
    """``answer(n, body)`` returns status, headers and body for the n-th request; ``None`` closes the connection without a response."""

    def __init__(self, answer=lambda n, body: (200, {}, b""), certificate=None):
        self.requests, lock = [], threading.Lock()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                with lock:
                    number = len(receiver.requests)
                    receiver.requests.append((self.path, dict(self.headers), body))
                found = answer(number, body)
                if found is None:
                    self.close_connection = True
                    return
                status, headers, text = found
                self.send_response(status)
                for name, value in {"content-length": str(len(text)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        scheme = "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def bodies(self):
        return [body for _, _, body in self.requests]

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
