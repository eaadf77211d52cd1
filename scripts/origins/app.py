"""The application that Python servers run: as WSGI (`wsgi`), as ASGI (`asgi`), or `app.py SERVER PORT`."""
import asyncio
import os
import sys
import time
from urllib.parse import parse_qsl

LOG = os.open(os.environ.get("ORIGINS_LOG", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
STATUSES = {200: "200 OK", 204: "204 No Content", 304: "304 Not Modified"}


def answer(method, path, query, body=b""):
    """Logs one execution. Returns status, fields, body and how long the handler takes, in seconds."""
    asked = dict(parse_qsl(query))
    own = asked.get("n", "-")
    os.write(LOG, f"{method} {path} {own}\n".encode())
    if path == "/boom":
        raise RuntimeError("boom")
    status = {"/204": 204, "/304": 304}.get(path, 200)
    fields = {"X-N": own}
    if path == "/close":
        fields["Connection"] = "close"
    text = {"/page": "page\n", "/big": own.ljust(300_000, "x")}.get(path, own).encode()
    text = body if path == "/echo" else text if status == 200 else b""
    if status == 200:
        fields["Content-Length"] = str(len(text))
    return status, fields, text if method != "HEAD" else b"", int(asked.get("ms", 0)) / 1000


def wsgi(environ, start_response):
    length = int(environ.get("CONTENT_LENGTH") or 0)
    body = environ["wsgi.input"].read(length) if length else b""
    status, fields, text, seconds = answer(
        environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", ""), body)
    time.sleep(seconds)
    start_response(STATUSES[status], list(fields.items()))
    return [text]


async def asgi(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            event = (await receive())["type"]
            await send({"type": f"{event}.complete"})
            if event == "lifespan.shutdown":
                return
    body, more = b"", scope["type"] == "http"
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    status, fields, text, seconds = answer(
        scope["method"], scope["path"], scope["query_string"].decode(), body)
    await asyncio.sleep(seconds)
    head = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": text})


def http_server(port, version):
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        protocol_version = version

        def log_message(self, *_):
            pass

        def do_GET(self):
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, fields, text, seconds = answer(self.command, path, query, body)
            time.sleep(seconds)
            self.send_response(status)
            for name, value in fields.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)
        do_HEAD = do_POST = do_GET
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def aiohttp(port):
    from aiohttp import web

    async def handler(request):
        body = await request.read()
        status, fields, text, seconds = answer(
            request.method, request.path, request.query_string, body)
        await asyncio.sleep(seconds)
        return web.Response(status=status, body=text or None, headers=fields)
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handler)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


def tornado(port):
    import tornado.web

    class Handler(tornado.web.RequestHandler):
        async def get(self):
            asked = self.request
            status, fields, text, seconds = answer(
                asked.method, asked.path, asked.query, asked.body)
            await asyncio.sleep(seconds)
            self.set_status(status)
            for name, value in fields.items():
                self.set_header(name, value)
            if text:
                self.write(text)
        head = post = get

    async def serve():
        tornado.web.Application([("/.*", Handler)]).listen(port, "127.0.0.1")
        await asyncio.Event().wait()
    asyncio.run(serve())


def sanic(port):
    from sanic import Sanic, response
    app = Sanic("origin")

    async def handler(request, tail=""):
        status, fields, text, seconds = answer(
            request.method, request.path, request.query_string, request.body)
        await asyncio.sleep(seconds)
        return response.raw(text, status=status, headers=fields)
    app.add_route(handler, "/<tail:path>", methods=["GET", "HEAD", "POST"])
    app.run(host="127.0.0.1", port=port, single_process=True, access_log=False, motd=False)


def twisted(port):
    from twisted.internet import reactor
    from twisted.web import resource, server

    class Root(resource.Resource):
        isLeaf = True

        def render(self, request):
            path, _, query = request.uri.decode().partition("?")
            status, fields, text, seconds = answer(
                request.method.decode(), path, query, request.content.read())

            def finish():
                request.setResponseCode(status)
                for name, value in fields.items():
                    request.setHeader(name.encode(), value.encode())
                request.write(text)
                request.finish()
            reactor.callLater(seconds, finish)
            return server.NOT_DONE_YET
    reactor.listenTCP(port, server.Site(Root()), interface="127.0.0.1")
    reactor.run()


if __name__ == "__main__":
    name, port = sys.argv[1], int(sys.argv[2])
    if name.startswith("HTTP/"):
        http_server(port, name)
    globals()[name](port)
