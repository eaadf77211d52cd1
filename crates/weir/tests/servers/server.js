// A server of the end-to-end tests (crates/weir/tests/e2e/servers.rs): the application of servers.py for node.
// Arguments: the port, and after how many milliseconds an idle connection is closed.
'use strict';
const fs = require('fs');
const http = require('http');

const [port, idle] = process.argv.slice(2).map(Number);
const log = process.env.SERVER_LOG;
const held = [];

const timer = setInterval(() => {
    if (held.length > 0 && fs.existsSync(log + '.release')) {
        held.splice(0).forEach((end) => end());
    }
}, 20);
timer.unref();

const server = http.createServer((request, response) => {
    const url = new URL(request.url, 'http://a');
    const nonce = url.searchParams.get('n') || '';
    request.resume();
    request.on('end', () => {
        fs.appendFileSync(log, `${request.method} ${nonce}\n`);
        response.setHeader('X-Nonce', nonce);
        if (url.pathname === '/events') {
            response.write('data: begin\n\n');
            held.push(() => response.end());
            return;
        }
        const body = `answer ${nonce}`;
        const answer = () => {
            response.setHeader('Content-Length', body.length);
            response.end(body);
        };
        if (url.pathname === '/poll') held.push(answer);
        else answer();
    });
});
if (idle > 0) server.keepAliveTimeout = idle;
server.listen(port, '127.0.0.1', 1024);
