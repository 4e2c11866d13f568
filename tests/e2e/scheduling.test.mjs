// Who waits for whom, and what is refused.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { serve, sleep } from './loam.mjs';

const post = (server, path, body, headers = {}) => fetch(server.url + path, {
  method: 'POST', body: JSON.stringify(body), headers: { 'content-type': 'application/json', ...headers } });
const stats = async (server) => (await fetch(`${server.url}/stats`)).json();

const chat = { messages: [{ role: 'user', content: 'Speak.' }] };
// Each surface's request for about n tokens, and the text of its answer.
const SURFACES = [
  ['/v1/chat/completions', (n) => ({ ...chat, max_tokens: n }), (a) => a.choices[0].message.content],
  ['/v1/completions', (n) => ({ prompt: 'ROMEO:', max_tokens: n }), (a) => a.choices[0].text],
  ['/v1/responses', (n) => ({ input: 'Speak.', max_output_tokens: n, store: false }), (a) => a.output.map((o) => o.content?.[0].text).join('')],
  ['/v1/messages', (n) => ({ ...chat, max_tokens: n }), (a) => a.content.map((c) => c.text).join('')],
];

test('a batch request gives its place away and answers the same', async () => {
  const server = await serve('--builtin', '--batch', '1');
  try {
    for (const [i, [path, body, text]] of SURFACES.entries()) {
      const ask = { ...body(1500), temperature: 0, ignore_eos: true };
      const alone = text(await (await post(server, path, ask)).json());
      const preempted = async () => (await stats(server)).batch.preempted_rows;
      const before = await preempted();
      for (let tries = 0; tries < 20 && await preempted() === before; tries++) { // this one may be too late
        const slow = i % 2 ? post(server, path, { ...ask, priority: 'batch' })
                           : post(server, path, ask, { 'X-Loam-Priority': 'batch' });
        let begun = false;
        slow.then(() => { begun = true; });
        while (!begun && (await stats(server)).batch.active_rows === 0) await sleep(1);
        // The field wins over the header.
        const quick = await post(server, path, { ...body(2), priority: 'interactive' }, { 'X-Loam-Priority': 'batch' });
        assert.equal(quick.status, 200);
        await quick.json();
        assert.equal(text(await (await slow).json()), alone, path);
      }
      assert.ok(await preempted() > before, path);
    }
  } finally {
    await server.stop();
  }
});

test('another priority is refused by name', async () => {
  const server = await serve('--builtin');
  try {
    for (const [path, body] of SURFACES) {
      const field = await post(server, path, { ...body(1), priority: 'urgent' });
      assert.equal(field.status, 400);
      assert.match((await field.json()).error.message, /'priority' must be "interactive" or "batch"/);
      const header = await post(server, path, body(1), { 'X-Loam-Priority': 'urgent' });
      assert.equal(header.status, 400);
      assert.match((await header.json()).error.message, /X-Loam-Priority: priority is interactive or batch, not "urgent"/);
    }
  } finally {
    await server.stop();
  }
});

test('64 wait, the next is told to come again', async () => {
  const server = await serve('--builtin', '--batch', '1');
  try {
    const leave = new AbortController();
    const ask = () => fetch(`${server.url}/v1/completions`, { method: 'POST', signal: leave.signal,
      body: JSON.stringify({ prompt: 'ROMEO:', max_tokens: 1900, ignore_eos: true }) });
    const waiting = Array.from({ length: 65 }, () => ask().catch(() => null));
    for (let n = 0; n < 65;) {
      const { batch } = await stats(server);
      n = batch.active_rows + batch.pending_rows;
    }
    const refused = await ask();
    assert.equal(refused.status, 429);
    assert.match(refused.headers.get('retry-after'), /^\d+$/);
    const { error } = await refused.json();
    assert.equal(error.type, 'resource_admission');
    assert.equal(error.code, 'queue_full');
    const message = await post(server, '/v1/messages', { ...chat, max_tokens: 1 });
    assert.equal(message.status, 429);
    assert.equal((await message.json()).error.type, 'rate_limit_error');
    leave.abort(); // all leave, and the place is free again
    await Promise.all(waiting);
    assert.equal((await post(server, '/v1/completions', { prompt: 'a', max_tokens: 1 })).status, 200);
  } finally {
    await server.stop();
  }
});
