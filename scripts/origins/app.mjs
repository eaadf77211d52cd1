// The application for servers in JavaScript: app.mjs http|fastify|fetch PORT.
import fs from 'node:fs';
import { createRequire } from 'node:module';
const [kind, port] = process.argv.slice(-2);
const log = fs.openSync(process.env.ORIGINS_LOG || '/dev/null', 'a');

// Logs one execution. Calls end(status, fields, body) when the handler is done.
function answer(method, target, body, end) {
  const [path, query] = target.split('?'), asked = new URLSearchParams(query || '');
  const own = asked.get('n') || '-', fields = { 'X-N': own };
  fs.writeSync(log, `${method} ${path} ${own}\n`);
  if (path === '/boom') throw new Error('boom');
  if (path === '/close') fields.Connection = 'close';
  const status = { '/204': 204, '/304': 304 }[path] || 200;
  const text = { '/page': 'page\n', '/big': own.padEnd(300000, 'x'), '/echo': body }[path] ?? own;
  const done = () => end(status, fields, status === 200 ? text : null);
  asked.has('ms') ? setTimeout(done, +asked.get('ms')) : done();
}

if (kind === 'http') {
  const http = await import('node:http');
  http.createServer((asked, reply) => {
    const parts = [];
    const end = (status, fields, body) => { reply.writeHead(status, fields); reply.end(body); };
    asked.on('data', part => parts.push(part));
    asked.on('end', () => {
      try {
        answer(asked.method, asked.url, Buffer.concat(parts), end);
      } catch { end(500, {}, 'boom'); }
    });
  }).listen(+port, '127.0.0.1');
} else if (kind === 'fastify') {
  const app = createRequire(process.env.ORIGINS_NPM + '/')('fastify')();
  app.addContentTypeParser('*', { parseAs: 'buffer' }, (_, body, done) => done(null, body));
  app.all('/*', (asked, reply) => answer(asked.method, asked.url, asked.body,
    (status, fields, body) => reply.code(status).headers(fields).send(body ?? undefined)));
  app.listen({ port: +port, host: '127.0.0.1' });
} else {
  const fetch = async asked => {
    const body = await asked.arrayBuffer(), url = new URL(asked.url);
    return new Promise((resolve, reject) => {
      try {
        answer(asked.method, url.pathname + url.search, body,
          (status, headers, text) => resolve(new Response(text, { status, headers })));
      } catch (error) { reject(error); }
    });
  };
  const where = { port: +port, hostname: '127.0.0.1' };
  if (typeof Bun !== 'undefined') Bun.serve({ ...where, fetch, development: false });
  else Deno.serve({ ...where, onListen() {} }, fetch);
}
