"""What real servers do wrong when requests are pipelined, in a few lines each: imitations.py KIND PORT.

last       executes only the last request of what it reads at once (bjoern 3.2.2)
first      executes only the first (thin 1.8.1)
overtakes  refuses a long head or `|` at once, before it answers what is in front, and closes
           (node 20, bun, cowboy, aiohttp, Undertow)
closes     closes without a word for a head over 4 KiB (uWSGI, webfs)
stops      answers one request and closes, whatever else has come (gunicorn sync, unicorn)
resets     resets the connection when more than one request comes at once (php -S)
deaf       of the connections that had two requests at once, every eighth is never read again
           (reactor-netty 1.3)
dies       the process ends when a request comes while another one of its connection is
           unanswered (a node handler that touches `res.socket`)
head       sends a body in answer to HEAD, a moment after the head (gevent 26.9.0 `pywsgi`)
prefork    four workers, each serving one connection until it has been idle for 5 s (Apache prefork)
"""
import asyncio
import itertools
import os
import sys

from app import answer

KIND, PORT = sys.argv[1], int(sys.argv[2])
REASONS = {200: "OK", 204: "No Content", 304: "Not Modified", 431: "Too Large", 500: "Error"}
SHARED = itertools.count(1)
WORKERS = asyncio.Semaphore(4)


def respond(method, status, fields, text):
    fields = {"Content-Length": str(len(text)), **fields, "Server": KIND}
    if status in (204, 304):
        del fields["Content-Length"]
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    body = b"" if method == "HEAD" or status in (204, 304) else text
    return f"HTTP/1.1 {status} {REASONS[status]}\r\n{lines}\r\n".encode() + body


def take(data):
    """Splits off the first whole request. Returns it, or None, and the rest."""
    head, end, rest = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    length = int(fields.get("content-length", 0))
    if not end or len(rest) < length:
        return None, data
    return (*lines[0].split(" ")[:2], len(head), rest[:length]), rest[length:]


def is_refused(request):
    return request[2] > 8000 or "|" in request[1]


async def execute(request, writer):
    """Answers a request. Returns whether the connection goes on."""
    method, target, _, body = request
    path, _, query = target.partition("?")
    try:
        status, fields, text, seconds = answer(method, path, query, body)
        await asyncio.sleep(seconds or 0.001)
    except RuntimeError:
        status, fields, text = 500, {}, b"boom"
    if KIND == "stops":
        fields["Connection"] = "close"
    writer.write(respond(method, status, fields, text))
    if KIND == "head" and method == "HEAD":
        await asyncio.sleep(0.001)
        writer.write(query.encode())
    return "Connection" not in fields


async def connection(reader, writer):
    data, queue, worker = b"", [], None
    more = asyncio.Event()

    async def work():
        while True:
            while not queue:
                more.clear()
                await more.wait()
            if not await execute(queue[0], writer):
                return writer.close()
            queue.pop(0)

    try:
        worker = asyncio.create_task(work())
        while part := await asyncio.wait_for(reader.read(1 << 16), 5 if KIND == "prefork" else None):
            data += part
            come = []
            while (found := take(data))[0]:
                come.append(found[0])
                data = found[1]
            if KIND in ("last", "first"):
                come = come[-1:] if KIND == "last" else come[:1]
            if KIND == "overtakes" and any(map(is_refused, come)):
                writer.write(respond("GET", 431, {"Connection": "close"}, b"refused"))
                return
            if KIND == "closes" and (len(data) > 4096 or any(asked[2] > 4096 for asked in come)):
                return
            if len(queue) + len(come) > 1:
                if KIND == "dies":
                    os._exit(1)
                if KIND == "resets":
                    return writer.transport.abort()
                if KIND == "deaf" and next(SHARED) % 8 == 0:
                    worker.cancel()
                    await asyncio.sleep(3600)
            queue += come
            more.set()
    except (asyncio.TimeoutError, ConnectionError):
        pass
    finally:
        if worker:
            worker.cancel()
        writer.close()


async def one_at_a_time(reader, writer):
    async with WORKERS:
        await connection(reader, writer)


async def main():
    serve = one_at_a_time if KIND == "prefork" else connection
    async with await asyncio.start_server(serve, "127.0.0.1", PORT) as server:
        await server.serve_forever()

asyncio.run(main())
