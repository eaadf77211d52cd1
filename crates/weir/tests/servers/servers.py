"""Servers of the end-to-end tests (crates/weir/tests/e2e/servers.rs): one application, for gunicorn and by http.server.

It answers with the nonce of the request (`?n=`), and writes a line to the file $SERVER_LOG for what it does. `/poll` and `/events` last
until the file $SERVER_LOG.release is there.
"""
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from urllib.parse import parse_qs

LOG = os.environ["SERVER_LOG"]


def tell(what, nonce):
    """One write, so that lines of several processes do not mix."""
    with open(LOG, "ab", buffering=0) as log:
        log.write(f"{what} {nonce}\n".encode())


def until_release():
    while not os.path.exists(LOG + ".release"):
        time.sleep(0.02)


def nonce_of(query):
    return parse_qs(query).get("n", [""])[0]


def application(environ, start_response):
    """For gunicorn (PEP 3333)."""
    nonce, path = nonce_of(environ["QUERY_STRING"]), environ["PATH_INFO"]
    environ["wsgi.input"].read()
    tell(environ["REQUEST_METHOD"], nonce)
    if path == "/poll":
        until_release()
    body = f"answer {nonce}".encode()
    start_response("200 OK", [("X-Nonce", nonce), ("Content-Length", str(len(body)))])
    return [body]


class Handler(BaseHTTPRequestHandler):
    """For http.server."""

    def do_GET(self):
        path, _, query = self.path.partition("?")
        nonce = nonce_of(query)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        tell(self.command, nonce)
        if path == "/events":
            self.answer(nonce, "Transfer-Encoding: chunked", b"d\r\ndata: begin\n\n\r\n")
            until_release()
            self.wfile.write(b"0\r\n\r\n")
            return
        if path == "/poll":
            until_release()
        body = f"answer {nonce}".encode()
        self.answer(nonce, f"Content-Length: {len(body)}", body)

    do_POST = do_GET

    def answer(self, nonce, framing, body):
        head = f"{self.protocol_version} 200 OK\r\nX-Nonce: {nonce}\r\n{framing}\r\n\r\n"
        self.wfile.write(head.encode() + body)

    def log_message(self, *_):
        pass


def main():
    kind, port = sys.argv[1], int(sys.argv[2])
    server = {"one": HTTPServer, "keeps": HTTPServer, "threads": ThreadingHTTPServer}[kind]
    if kind != "one":
        Handler.protocol_version = "HTTP/1.1"
    if kind == "threads":
        server.request_queue_size = 1024
    server(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
