// Who may ask, and what a server does with clients that misbehave.
import assert from 'node:assert/strict';
import http from 'node:http';
import net from 'node:net';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import https from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { serve, sleep } from './loam.mjs';

const scratch = mkdtempSync(join(tmpdir(), 'loam-'));
after(() => rmSync(scratch, { recursive: true }));

// fetch() sets Host and Origin itself: here they are ours.
function get(url, headers = {}, options = {}) {
  return new Promise((resolve, reject) => {
    const request = (url.startsWith('https') ? https : http).request(url, { headers, rejectUnauthorized: false, ...options }, (response) => {
      let body = '';
      response.on('data', (data) => { body += data; });
      response.on('end', () => resolve({ status: response.statusCode, headers: response.headers, body }));
    });
    request.on('error', reject);
    request.end();
  });
}

const count = (text, part) => text.split(part).length - 1;

// Raw bytes in, what comes back until the server closes or until(all of it).
function raw(port, text, until, timeout = 10000) {
  return new Promise((resolve) => {
    const socket = net.connect(port, '127.0.0.1');
    let got = '';
    const done = () => { socket.destroy(); resolve(got); };
    socket.setTimeout(timeout, done);
    socket.on('data', (data) => { got += data; if (until(got)) done(); });
    socket.on('close', done);
    socket.on('error', done);
    socket.write(text);
  });
}

test('a key is asked for, by either header, and only then', async () => {
  const server = await serve('--builtin', '--api-key', 'sesame');
  const models = `${server.url}/v1/models`;
  assert.equal((await get(models)).status, 401);
  assert.equal((await get(models)).headers['www-authenticate'], 'Bearer');
  assert.equal((await get(models, { authorization: 'Bearer sesam' })).status, 401);
  assert.equal((await get(models, { authorization: 'Bearer sesame' })).status, 200);
  assert.equal((await get(models, { 'x-api-key': 'sesame' })).status, 200);
  assert.equal((await get(`${server.url}/health`)).status, 200);
  assert.equal((await get(`${server.url}/stats`)).status, 401);
  const ask = { model: 'x', max_tokens: 2, messages: [{ role: 'user', content: 'Hi' }] };
  await new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'sesame' }).chat.completions.create(ask);
  await assert.rejects(new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'x', maxRetries: 0 }).chat.completions.create(ask),
    { status: 401, code: 'invalid_api_key' });
  await new Anthropic({ baseURL: server.url, apiKey: 'sesame' }).messages.create(ask);
  await assert.rejects(new Anthropic({ baseURL: server.url, apiKey: 'x', maxRetries: 0 }).messages.create(ask), (error) => {
    assert.equal(error.error.error.type, 'authentication_error');
    return true;
  });
  assert.ok(!server.stderr.includes('sesame'));
  assert.equal((await server.stop()).code, 0);
});

test('a local server answers local names and pages only', async () => {
  const server = await serve('--builtin', '--cors', 'https://app.example, https://b.example/');
  const url = `${server.url}/v1/models`, { port } = new URL(server.url);
  for (const host of ['evil.example', `evil.example:${port}`, '127.0.0.1.evil.example', 'localhost.evil.example', '10.0.0.1'])
    assert.equal((await get(url, { host })).status, 403, host);
  for (const host of ['localhost', `LOCALHOST:${port}`, `127.0.0.1:${port}`, `[::1]:${port}`, '127.8.8.8', 'x.localhost'])
    assert.equal((await get(url, { host })).status, 200, host);
  for (const origin of ['https://evil.example', 'null', 'https://app.example.evil', 'http://localhost.evil.example'])
    assert.equal((await get(url, { origin })).status, 403, origin);
  for (const origin of ['https://app.example', 'https://b.example', 'http://localhost:3000', server.url]) {
    const answer = await get(url, { origin });
    assert.equal(answer.status, 200, origin);
    assert.equal(answer.headers['access-control-allow-origin'], origin);
    assert.equal(answer.headers.vary, 'Origin');
  }
  const preflight = await get(`${server.url}/v1/chat/completions`,
    { origin: 'https://app.example', 'access-control-request-method': 'POST', 'access-control-request-headers': 'x-stainless-os' },
    { method: 'OPTIONS' });
  assert.equal(preflight.status, 204);
  assert.equal(preflight.headers['access-control-allow-headers'], 'x-stainless-os');
  assert.equal((await get(url, { origin: 'https://evil.example', 'access-control-request-method': 'POST' }, { method: 'OPTIONS' })).status, 403);
  assert.equal((await server.stop()).code, 0);
});

test('request ids come back; made ones differ', async () => {
  const server = await serve('--builtin');
  assert.equal((await get(`${server.url}/health`, { 'x-request-id': 'abc' })).headers['x-request-id'], 'abc');
  const made = (await get(`${server.url}/health`)).headers['x-request-id'];
  assert.match(made, /^req_[0-9a-f]{16}$/);
  assert.notEqual((await get(`${server.url}/health`)).headers['x-request-id'], made);
  assert.equal((await server.stop()).code, 0);
});

test('TLS', async (t) => {
  const cert = join(scratch, 'cert.pem'), key = join(scratch, 'key.pem');
  const made = spawnSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes',
    '-keyout', key, '-out', cert, '-subj', '/CN=localhost', '-days', '2']);
  if (made.status !== 0) return t.skip('no openssl command');
  const server = await serve('--builtin', '--tls-cert', cert, '--tls-key', key, '--header-timeout', '1');
  assert.match(server.url, /^https:/);
  const answer = await get(`${server.url}/v1/models`);
  assert.equal(answer.status, 200);
  const body = JSON.stringify({ prompt: 'ROMEO:', max_tokens: 400, ignore_eos: true, stream: true });
  const streamed = await new Promise((resolve, reject) => {
    const request = https.request(`${server.url}/v1/completions`, { method: 'POST', rejectUnauthorized: false }, (response) => {
      let got = '';
      response.on('data', (data) => { got += data; });
      response.on('end', () => resolve(got));
    });
    request.on('error', reject);
    request.end(body);
  });
  assert.match(streamed, /data: \[DONE\]\n\n$/);
  const plain = await raw(new URL(server.url).port, 'GET / HTTP/1.1\r\n\r\n', () => false, 1000);
  assert.doesNotMatch(plain, /^HTTP\/1\.1 200/m);
  const { ms } = await drip(new URL(server.url).port, [...'\x16\x03\x01\x02\x00\x01\x00'], 400);
  assert.ok(ms > 900 && ms < 8000, `a handshake that does not go on: ${ms} ms`);
  assert.equal((await get(`${server.url}/health`)).status, 200);
  assert.equal((await server.stop()).code, 0);
});

test('pipelined requests are answered in turn, also behind a stream', async () => {
  const server = await serve('--builtin');
  const { port } = new URL(server.url);
  const one = 'GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n';
  const got = await raw(port, one.repeat(50), (all) => count(all, '"ok"') === 50);
  assert.equal(count(got, 'HTTP/1.1 200'), 50);
  const body = JSON.stringify({ prompt: 'ROMEO:', max_tokens: 40, ignore_eos: true, stream: true });
  const stream = `POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
  const both = await raw(port, stream + one + stream + one, (all) => count(all, '"ok"') === 2);
  assert.equal(count(both, '[DONE]'), 2);
  assert.equal((await server.stop()).code, 0);
});

// Sends these parts, one every so many ms; resolves with what came back and how long it took to be closed.
function drip(port, parts, ms, until = () => false) {
  return new Promise((resolve) => {
    const begun = Date.now(), socket = net.connect(port, '127.0.0.1');
    let got = '', i = 0;
    const timer = setInterval(() => (i < parts.length ? socket.write(parts[i++]) : clearInterval(timer)), ms);
    const done = () => { clearInterval(timer); socket.destroy(); resolve({ got, ms: Date.now() - begun }); };
    socket.on('data', (data) => { got += data; if (until(got)) done(); });
    socket.on('error', () => {});
    socket.on('close', done);
    socket.setTimeout(60000, done);
  });
}

test('requests that trickle in are given up, others are not held up', async () => {
  const server = await serve('--builtin', '--header-timeout', '1', '--max-connections', '60');
  const { port } = new URL(server.url);
  const head = 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n';
  const body = JSON.stringify({ prompt: 'ROMEO:', max_tokens: 4, stop: 'x'.repeat(4000) });
  const whole = `${head}Content-Length: ${body.length}\r\n\r\n`;
  const idle = drip(port, ['GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n'], 10, (got) => count(got, '"ok"') === 2);
  const loris = Array.from({ length: 50 }, () => drip(port, [head, ...'X-Slow: and so on, a byte at a time, for ever and ever'], 200));
  const slow_body = drip(port, [whole, ...'{"prompt": "a byte at a time, and never whole, though it would be"'], 200);
  const steady_body = drip(port, [whole, ...body.match(/.{1,400}/g)], 180, (got) => got.includes('text_completion'));
  const half_open = drip(port, [], 1000, () => false);
  await sleep(300);
  for (let i = 0; i < 5; i++) assert.equal((await get(`${server.url}/health`)).status, 200);
  for (const { got, ms } of await Promise.all([...loris, slow_body])) {
    assert.match(got, /^HTTP\/1.1 408 Request Timeout\r\n/);
    assert.ok(ms > 900 && ms < 8000, `${ms} ms`);
  }
  const { got, ms } = await steady_body;
  assert.match(got, /^HTTP\/1.1 200 OK/);
  assert.ok(ms > 1500, `${ms} ms: longer than the limit, but never silent`);
  // Neither a silent connection nor one between two requests is a request that takes too long.
  assert.equal(await Promise.race([idle, half_open, sleep(10).then(() => 'open')]), 'open');
  assert.equal((await server.stop()).code, 0);
});

test('silent connections are closed, but not those that wait for an answer', async () => {
  const server = await serve('--builtin', '--idle-timeout', '1');
  const { port } = new URL(server.url);
  const body = JSON.stringify({ prompt: 'ROMEO:', max_tokens: 1900, ignore_eos: true, n: 12 });
  const silent = drip(port, [], 1000), used = drip(port, ['GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n'], 10);
  const asked = drip(port, [`POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${body.length}\r\n\r\n${body}`],
    10, (got) => got.includes('"usage"'));
  for (const { got, ms } of await Promise.all([silent, used])) {
    assert.ok(ms > 900 && ms < 8000, `${ms} ms`);
    assert.doesNotMatch(got, /^HTTP\/1\.1 408/m);
  }
  assert.match((await asked).got, /"usage"/);
  assert.equal((await server.stop()).code, 0);
});

test('what is sent behind a request while it is answered does not pile up', async () => {
  const server = await serve('--builtin');
  const rss_kib = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${server.child.pid}/status`, 'utf8'))[1]);
  const body = JSON.stringify({ prompt: 'ROMEO:', max_tokens: 1900, ignore_eos: true, stream: true, logprobs: 5, n: 4 });
  // A reader that takes nothing keeps the answer open.
  const socket = net.connect({ port: new URL(server.url).port, host: '127.0.0.1', onread: { buffer: Buffer.alloc(1024), callback: () => false } });
  socket.on('error', () => {});
  socket.write(`POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
  await sleep(1500);
  const before = rss_kib();
  let n_taken = 0;
  const flood = Buffer.alloc(1 << 20, 'x');
  for (let i = 0; i < 100; i++) socket.write(flood, (error) => { n_taken += !error; });
  await sleep(1500);
  assert.ok(n_taken < 30, `${n_taken} MiB were taken`);
  assert.ok(rss_kib() - before < 16384, `${rss_kib() - before} KiB more`);
  socket.destroy();
  assert.equal((await get(`${server.url}/health`)).status, 200);
  assert.equal((await server.stop()).code, 0);
});

test('connections above the cap wait and are then served', async () => {
  const server = await serve('--builtin', '--max-connections', '4');
  const { port } = new URL(server.url);
  const held = [];
  for (let i = 0; i < 4; i++) held.push(net.connect(port, '127.0.0.1'));
  await sleep(200);
  const late = get(`${server.url}/health`, {}, { agent: new http.Agent() });
  const first = await Promise.race([late.then(() => 'served'), sleep(400).then(() => 'waiting')]);
  assert.equal(first, 'waiting');
  held.forEach((socket) => socket.destroy());
  assert.equal((await late).status, 200);
  assert.equal((await server.stop()).code, 0);
});
