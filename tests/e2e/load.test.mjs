// Many clients, and clients that send rubbish: the process stays, its memory stays, later answers are right.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import net from 'node:net';
import { after, before, test } from 'node:test';
import { serve } from './loam.mjs';

let server, port, truth;
before(async () => {
  server = await serve('--builtin');
  port = Number(new URL(server.url).port);
  truth = await complete();
});
after(async () => {
  const { code } = await server.stop();
  assert.equal(code, 0, server.stderr);
});

const rss_kib = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${server.child.pid}/status`, 'utf8'))[1]);

async function complete(more) {
  const response = await fetch(`${server.url}/v1/completions`, { method: 'POST',
    body: JSON.stringify({ prompt: 'ROMEO:', max_tokens: 24, temperature: 0, ...more }) });
  const text = await response.text();
  assert.equal(response.status, 200, text);
  if (!more?.stream) return JSON.parse(text).choices[0].text;
  assert.match(text, /data: \[DONE\]\n\n$/);
  return text.split('\n').filter((line) => line.startsWith('data: {'))
    .map((line) => JSON.parse(line.slice(6)).choices[0].text).join('');
}

const health = 'GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n';

test('1,000 idle connections and 50 streams', async () => {
  const before = rss_kib(), idle = [];
  for (let i = 0; i < 1000; i++)
    idle.push(new Promise((resolve, reject) => {
      const socket = net.connect(port, '127.0.0.1', () => socket.write(health));
      socket.once('data', () => resolve(socket));
      socket.on('error', reject);
    }));
  const sockets = await Promise.all(idle);
  const grown = rss_kib() - before;
  assert.ok(grown < 64 * 1000, `${grown} KiB for 1,000 connections`);
  const texts = await Promise.all(Array.from({ length: 50 }, () => complete({ stream: true })));
  assert.ok(texts.every((text) => text === truth));
  await Promise.all(sockets.map((socket) => new Promise((resolve, reject) => {
    socket.once('data', resolve);
    socket.once('close', () => reject(new Error('an idle connection was dropped')));
    socket.write(health);
  })));
  sockets.forEach((socket) => { socket.removeAllListeners('close'); socket.destroy(); });
});

test('a reader that takes nothing costs little, and others go on', async () => {
  const before = rss_kib();
  const body = JSON.stringify({ prompt: 'ROMEO:', max_tokens: 1900, ignore_eos: true, stream: true, logprobs: 5 });
  const sockets = [];
  for (let i = 0; i < 8; i++) {
    const socket = net.connect({ port, host: '127.0.0.1', onread: { buffer: Buffer.alloc(1024), callback: () => false } });
    socket.write(`POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
    sockets.push(socket);
  }
  assert.equal(await complete(), truth);
  assert.ok(rss_kib() - before < 8 * 8192, `${rss_kib() - before} KiB`);
  sockets.forEach((socket) => socket.destroy());
});

// mulberry32: the same rubbish every time.
function random(seed) {
  return () => {
    seed = (seed + 0x6D2B79F5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

test('10,000 malformed requests', async () => {
  const draw = random(7), pick = (list) => list[Math.floor(draw() * list.length)];
  const bodies = ['{}', '{"messages":[{"role":"user","content":"hi"}],"max_tokens":1}', '{"prompt":"a","max_tokens":1,"n":2}',
    '{"input":"a","max_output_tokens":1,"store":false}', '{"tokens":[1,2]}', '{"content":"x"}', '[', '\u0000'];
  const paths = ['/v1/chat/completions', '/v1/completions', '/v1/messages', '/v1/responses', '/tokenize', '/detokenize',
    '/apply-template', '/v1/models/%ff', '/', '//', '/../x', '*', 'http://x/v1'];
  const request = () => {
    const body = pick(bodies);
    const text = `${pick(['GET', 'POST', 'DELETE', 'OPTIONS', 'PUT', 'BREW'])} ${pick(paths)} HTTP/1.1\r\nHost: localhost\r\n` +
      `Content-Length: ${pick([body.length, body.length, body.length + 5, -1, '9'.repeat(30), 0])}\r\n` +
      pick(['', 'Transfer-Encoding: chunked\r\n', 'X-Request-Id: ' + 'x'.repeat(200) + '\r\n', 'Origin: null\r\n']) + `\r\n${body}`;
    const bytes = Buffer.from(text);
    for (let n = Math.floor(draw() * 4); n > 0; n--) bytes[Math.floor(draw() * bytes.length)] = Math.floor(draw() * 256);
    return draw() < 0.2 ? bytes.subarray(0, Math.floor(draw() * bytes.length)) : bytes;
  };
  const send = () => new Promise((resolve) => {
    const socket = net.connect(port, '127.0.0.1');
    socket.setTimeout(200, () => socket.destroy());
    socket.on('error', () => {});
    socket.on('close', resolve);
    socket.on('data', () => { if (draw() < 0.9) socket.destroy(); });
    socket.end(request());
  });
  const run = async (n) => { for (let i = 0; i < n; i++) await send(); };
  await Promise.all(Array.from({ length: 40 }, () => run(25)));
  const before = rss_kib();
  await Promise.all(Array.from({ length: 40 }, () => run(225)));
  assert.equal(server.child.exitCode, null);
  assert.ok(rss_kib() - before < 4096, `${rss_kib() - before} KiB more`);
  assert.equal(await complete(), truth);
});
