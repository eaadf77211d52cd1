#!/usr/bin/env python3
"""Runs HTTP servers behind weir's defaults, with clients that check every answer. Called by `make origins`.

usage: run.py WEIR FOLDER SECONDS [SERVER...]

Each server is asked directly first: what it refuses there, it may refuse behind weir as well. Then for SECONDS
24 clients mix quick, slow and large GETs, HEAD, conditional requests, POST and answers with `Connection: close`,
while one more client sends what servers refuse or fail on: long cookies, `|` in a target, a handler that raises.
A server fails the test when a client gets an answer that is not its own, a cut one, none for 20 s, or an
error that the server does not give directly; when a request is executed twice although no connection was
lost; or when the server dies. Exit code: 0 when no server fails, 1 otherwise. docs/servers.md
"""
import asyncio
import collections
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import servers

CLIENTS, PATIENCE = 24, 20
# Weight, method, path, further fields. `%d` is the number of a file.
USUAL = {
    "page": (250, "GET", "/page", ""), "get": (450, "GET", "/get", ""), "head": (60, "HEAD", "/get", ""),
    "post": (80, "POST", "/echo", ""), "slow": (60, "GET", "/slow", ""), "big": (20, "GET", "/big", ""),
    "204": (30, "GET", "/204", ""), "304": (30, "GET", "/304", 'If-None-Match: "a"\r\n'),
    "close": (10, "GET", "/close", ""),
}
FILES = {
    "page": (250, "GET", "/page", ""), "get": (600, "GET", "/f%d", ""), "head": (60, "HEAD", "/f%d", ""),
    "big": (20, "GET", "/big", ""),
}
BAD = {
    "cookie": (1, "GET", "/get", f"Cookie: c={'z' * 9_000}\r\n"),
    "cookies": (1, "GET", "/get", f"Cookie: c={'z' * 20_000}\r\n"),
    "pipe": (1, "GET", "/a|b", ""), "boom": (1, "GET", "/boom", ""),
}
# Imitations that die when they are pipelined: rehearsals may find that out, twice for each of two
# workers.
DEATHS = {"like-dies": 4}
NUMBERS = itertools.count(1)


class Client:
    """One connection at a time, one request at a time."""

    def __init__(self, port):
        self.port, self.reader, self.writer = port, None, None

    def drop(self):
        if self.writer:
            self.writer.close()
        self.reader = self.writer = None

    async def ask(self, method, target, fields, body, patience=PATIENCE):
        """Returns status, fields and body; or the name of an error, and nothing."""
        try:
            if not self.writer:
                self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 22)
            length = f"Content-Length: {len(body)}\r\n" if body else ""
            head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{fields}{length}\r\n"
            self.writer.write(head.encode() + body)
            return await asyncio.wait_for(self.answer(method), patience)
        except (asyncio.IncompleteReadError, asyncio.TimeoutError, OSError, ValueError) as error:
            self.drop()
            return type(error).__name__, {}, b""

    async def answer(self, method):
        status = 100
        while status < 200:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(head[0].split(" ")[1])
        lines = (line.partition(":") for line in head[1:] if line)
        fields = {name.lower(): value.strip() for name, _, value in lines}
        body = b""
        if method == "HEAD" or status in (204, 304):
            pass
        elif "chunked" in fields.get("transfer-encoding", ""):
            size = -1
            while size:
                size = int(await self.reader.readuntil(b"\r\n"), 16)
                body += (await self.reader.readexactly(size + 2))[:-2]
        elif "content-length" in fields:
            body = await self.reader.readexactly(int(fields["content-length"]))
        else:
            body = await self.reader.read()
            self.drop()
        if fields.get("connection", "").lower() == "close" or head[0].startswith("HTTP/1.0"):
            self.drop()
        return status, fields, body


class Run:
    """What clients have seen of one server."""

    def __init__(self, has_files):
        self.kinds = FILES if has_files else USUAL
        self.has_files = has_files
        self.direct = collections.defaultdict(set)
        self.seen = collections.Counter()
        self.first = {}
        self.posts, self.mine = set(), set()

    async def one(self, client, kind, is_direct=False):
        own, file = f"k{next(NUMBERS)}k", random.randrange(50)
        _, method, path, fields = (self.kinds | BAD)[kind]
        body = f"body-{own}-".encode() * 8 if method == "POST" else b""
        more = "&ms=30" if kind == "slow" else ""
        target = path % file if "%" in path else path if self.has_files else f"{path}?n={own}{more}"
        target = path if kind == "page" else target
        got, answered, text = await client.ask(method, target, fields, body, 3 if is_direct else PATIENCE)
        if is_direct:
            self.direct[kind].add(got)
            return
        files = {"get": f"file {file}\n", "big": "x" * 300_000}
        others = {"big": own.ljust(300_000, "x"), "post": body.decode()}
        want = "page\n" if kind == "page" else (files if self.has_files else others).get(kind, own)
        status = int(kind) if kind in ("204", "304") else 200
        empty = kind in ("head", "204", "304")
        is_own = text == (b"" if empty else want.encode()) and answered.get("x-n", own) in (own, "-")
        self.seen["requests"] += 1
        if kind in BAD:
            self.note("wrong", got == 200 and not self.has_files and not is_own, kind, got, text)
            return
        self.mine.add(own)
        if method == "POST":
            self.posts.add(own)
        known = got in self.direct[kind]
        self.note("wrong", isinstance(got, int) and got < 400 and (got != status or not is_own), kind, got, text)
        self.note("errors", isinstance(got, int) and got >= 400 and not known, kind, got, text)
        self.note("silent", got == "TimeoutError" and not known, kind, got, text)
        self.note("cut", isinstance(got, str) and got != "TimeoutError" and not known, kind, got, text)
        if isinstance(got, int) and got >= 400 and not known and method == "POST":
            self.seen["post-errors"] += 1

    def note(self, what, is_so, kind, got, text):
        if is_so:
            self.seen[what] += 1
            self.first.setdefault(what, f"{what}: {kind} got {got} {text[:60]!r}")

    async def ask_directly(self, port):
        for kind in (self.kinds | BAD):
            client = Client(port)
            for _ in range(3):
                await self.one(client, kind, is_direct=True)
            client.drop()

    async def ask_weir(self, port, seconds):
        until = time.monotonic() + seconds

        async def usual():
            client, names = Client(port), list(self.kinds)
            weights = [self.kinds[name][0] for name in names]
            while time.monotonic() < until:
                await self.one(client, random.choices(names, weights)[0])
            client.drop()

        async def bad():
            client = Client(port)
            await asyncio.sleep(seconds / 10)
            while time.monotonic() < until:
                await self.one(client, random.choice(list(BAD)))
                await asyncio.sleep(0.05)
            client.drop()
        await asyncio.gather(bad(), *(usual() for _ in range(CLIENTS)))

    def count_twice(self, log):
        with open(log) as file:
            times = collections.Counter(line.split(" ")[2].strip() for line in file)
        self.seen["twice"] = sum(times[own] - 1 for own in self.mine if times[own] > 1)
        self.seen["post-twice"] = sum(times[own] > 1 for own in self.posts)


class Process:
    """A server, which is started again when it dies."""

    def __init__(self, name, root, where):
        self.port, self.log, self.deaths = free_port(), f"{where}/log", 0
        self.start = lambda: servers.start(name, root, self.port, where, self.log)
        open(self.log, "w").close()
        os.chmod(self.log, 0o666)
        self.process = self.start()

    async def is_up(self, path="/page"):
        for _ in range(100):
            if (await Client(self.port).ask("GET", path, "Connection: close\r\n", b"", 2))[0] == 200:
                return True
            await asyncio.sleep(0.1)
        return False

    async def supervise(self):
        while True:
            await asyncio.sleep(0.02)
            if self.process.poll() is not None:
                self.deaths += 1
                self.process = self.start()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def stop(process):
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(3)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


async def run(name, weir, root, where, seconds):
    """Runs one server. Returns the row of the table and what was wrong."""
    server, proxy = Process(name, root, where), None
    result = Run(name in servers.FILES)
    try:
        if not await server.is_up():
            return None, ["does not start"]
        await result.ask_directly(server.port)
        port, admin = free_port(), f"{where}/admin"
        with open(f"{where}/weir.kdl", "w") as file:
            file.write(f'listen "127.0.0.1:{port}"\nadmin "{admin}"\n'
                       f'upstream "app" {{ server "127.0.0.1:{server.port}"; }}\nroute {{ proxy "app"; }}\n')
        with open(f"{where}/weir.log", "w") as output:
            proxy = subprocess.Popen([weir, "run", "-c", f"{where}/weir.kdl"], stdout=output, stderr=output,
                                     stdin=subprocess.DEVNULL, start_new_session=True)
        while proxy.poll() is None and not os.path.exists(admin):
            await asyncio.sleep(0.05)
        supervisor = asyncio.create_task(server.supervise())
        await result.ask_weir(port, seconds)
        supervisor.cancel()
        out = subprocess.run([weir, "status", "--json", "--admin", admin], capture_output=True, text=True)
        status = json.loads(out.stdout)
        is_alive = server.process.poll() is None and await server.is_up()
    finally:
        stop(server.process)
        if proxy:
            stop(proxy)
    result.count_twice(server.log)
    return judge(name, result, status, server.deaths, is_alive)


def judge(name, result, status, deaths, is_alive):
    seen, known = result.seen, status["upstreams"][0]["servers"][0]
    totals, may_die = known["totals"], DEATHS.get(name, 0)
    lost = totals["retries"] + totals["resends"]
    wrong = [result.first[what] for what in ("wrong", "cut", "silent") if seen[what]]
    # Whoever waits for an answer to a POST when the server dies cannot get one.
    if seen["errors"] - (seen["post-errors"] if may_die else 0) > 0:
        wrong.append(result.first["errors"])
    if seen["post-twice"] and not deaths or seen["twice"] > lost:
        wrong.append(f"twice: {seen['twice']} ({seen['post-twice']} POST), {lost} after losses")
    if deaths > may_die or not is_alive:
        wrong.append(f"died {deaths} times{'' if is_alive else ', is not alive'}")
    row = [name, *(seen[what] for what in ("requests", "wrong", "cut", "silent", "errors", "twice")), lost,
           deaths, totals["rehearsals"], known["penalty_for"] or known["trust"], status["totals"]["pipelined"],
           "FAILED" if wrong else "ok"]
    return row, wrong


HEADINGS = ("server", "requests", "wrong", "cut", "silent", "errors", "twice", "lost", "deaths", "rehearsals",
            "trust", "pipelined", "")
FORM = "{:18}{:>9}{:>7}{:>5}{:>8}{:>8}{:>7}{:>6}{:>8}{:>12}{:>17}{:>11}  {}"


def make_files(root):
    os.makedirs(f"{root}/www", exist_ok=True)
    for name, text in {"page": "page\n", "big": "x" * 300_000, **{f"f{n}": f"file {n}\n" for n in range(50)}}.items():
        with open(f"{root}/www/{name}", "w") as file:
            file.write(text)


def main():
    weir, root, seconds = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), float(sys.argv[3])
    names = sys.argv[4:] or list(servers.SERVERS)
    unknown = [name for name in names if name not in servers.SERVERS]
    if unknown:
        sys.exit(f"origins: no such server: {' '.join(unknown)}; there are {' '.join(servers.SERVERS)}")
    make_files(root)
    skipped, failed = [], []
    print(FORM.format(*HEADINGS), flush=True)
    for name in names:
        why = servers.install(name, root)
        if why:
            skipped.append(f"{name}: {why}")
            continue
        where = tempfile.mkdtemp(prefix=f"weir-origins-{name}-")
        os.chmod(where, 0o777)
        row, wrong = asyncio.run(run(name, weir, root, where, seconds))
        print(FORM.format(*(row or [name, *[""] * 11, "FAILED"])), flush=True)
        for what in wrong:
            print(f"    {what}", flush=True)
        if wrong:
            failed.append(name)
            print(f"    logs: {where}", flush=True)
        else:
            shutil.rmtree(where)
    for line in skipped:
        print(f"skipped {line}")
    sys.exit(f"origins: failed: {' '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
