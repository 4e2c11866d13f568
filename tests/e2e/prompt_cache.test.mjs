// The prompt cache as its users meet it: what /stats, /metrics and usage say, the disk tier over restarts, kills and full
// disks; and answers are the same everywhere.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { refused, run, serve, sleep } from './loam.mjs';

const WORDS = 'To be, or not to be, that is the question: whether tis nobler in the mind to suffer ';
const prompt_of = (i) => `Act ${i}. ` + WORDS.repeat(12);
const N_PROMPTS = 6;

let folder;
const truth = [];
before(async () => {
  folder = mkdtempSync(join(tmpdir(), 'loam-e2e-cache-'));
  const server = await serve('--builtin', '--prompt-cache', '0');
  for (let i = 0; i < N_PROMPTS; i++) {
    const { text, cached } = await ask(server, i);
    truth.push(text);
    assert.equal(cached, 0);
  }
  await server.stop();
});
after(() => rmSync(folder, { recursive: true }));

async function ask(server, i, more) {
  const response = await fetch(`${server.url}/v1/completions`, { method: 'POST',
    body: JSON.stringify({ prompt: prompt_of(i), max_tokens: 16, temperature: 0, logprobs: 1, ...more }) });
  const body = await response.json();
  assert.equal(response.status, 200, JSON.stringify(body));
  return { text: JSON.stringify(body.choices[0].logprobs), n_prompt: body.usage.prompt_tokens,
    cached: body.usage.prompt_tokens_details.cached_tokens };
}

const stats_of = async (server) => (await fetch(`${server.url}/stats`)).json();
async function metrics_of(server) {
  const text = await (await fetch(`${server.url}/metrics`)).text();
  return Object.fromEntries([...text.matchAll(/^loam_(\w+) ([0-9.e+]+)$/gm)].map(([, name, value]) => [name, Number(value)]));
}
async function flush(server) {
  const response = await fetch(`${server.url}/admin/cache/flush`, { method: 'POST' });
  return { status: response.status, body: await response.json() };
}
const files = (dir) => existsSync(dir) ? readdirSync(dir, { recursive: true, withFileTypes: true })
  .filter((item) => item.isFile()).map((item) => join(item.parentPath ?? item.path, item.name)) : [];
// Figures are published after the answer's last byte.
async function until(look, what) {
  for (let i = 0; i < 200; i++) {
    const value = await look();
    if (value) return value;
    await sleep(20);
  }
  assert.fail(what);
}

test('figures in /stats and /metrics add up', async () => {
  const server = await serve('--builtin');
  const first = await ask(server, 0), again = await ask(server, 0), other = await ask(server, 1);
  assert.deepEqual([first.text, again.text, other.text], [truth[0], truth[0], truth[1]]);
  assert.deepEqual([first.cached, again.cached], [0, first.n_prompt - 1]);
  const stats = await until(async () => {
    const s = await stats_of(server);
    return s.prompt_cache.hits + s.prompt_cache.misses === 3 && s.batch.active_rows === 0 && s;
  }, 'three requests are counted');
  const cache = stats.prompt_cache;
  assert.equal(cache.hits, 1 + (other.cached > 0));
  assert.equal(cache.cached_tokens, again.cached + other.cached);
  assert.equal(cache.max_bytes, 8 * 2 ** 30);
  assert.ok(cache.entries >= first.n_prompt / 64 && cache.bytes >= cache.entries * 64 * 4 * 2 * 2 * 64 * 2, JSON.stringify(cache));
  assert.equal(stats.kv.reduce((n, group) => n + group.pages - group.free, 0), cache.entries, 'the cache alone holds pages');
  assert.equal(stats.ssd_cache, undefined);
  const metrics = await metrics_of(server);
  assert.deepEqual([metrics.prompt_cache_bytes, metrics.prompt_cache_hits_total, metrics.prompt_cache_misses_total,
    metrics.prompt_cache_evictions_total], [cache.bytes, cache.hits, cache.misses, cache.evicted]);
  const { status, body } = await flush(server);
  assert.equal(status, 400);
  assert.match(body.error.message, /--ssd-cache DIR/);
  await server.stop();
});

test('n answers read their prompt once', async () => {
  const server = await serve('--builtin', '--prompt-cache', '0', '--step-tokens', '32');
  const response = await fetch(`${server.url}/v1/completions`, { method: 'POST',
    body: JSON.stringify({ prompt: prompt_of(0), n: 4, max_tokens: 4, temperature: 1, seed: 1 }) });
  const { usage } = await response.json();
  const stats = await until(async () => {
    const s = await stats_of(server);
    return s.batch.active_rows === 0 && s.tokens.generated === 16 && s;
  }, 'four answers are counted');
  assert.equal(usage.completion_tokens, 16);
  // However late the other three come, none reads more than what is left when it does; as a rule they come at once.
  assert.ok(stats.tokens.prompt < 4 * usage.prompt_tokens - 3 * 32, `${stats.tokens.prompt} for ${usage.prompt_tokens}`);
  assert.ok(stats.prompt_cache.forked > 0);
  await server.stop();
});

test('a flush, a restart and a SIGTERM keep what was there', async () => {
  const dir = join(folder, 'kept');
  let server = await serve('--builtin', '--ssd-cache', dir);
  for (let i = 0; i < N_PROMPTS - 1; i++) assert.equal((await ask(server, i)).text, truth[i]);
  const { status, body } = await flush(server);
  assert.equal(status, 200, JSON.stringify(body));
  assert.ok(body.status === 'ok' && body.entries > 10 && body.written === body.entries, JSON.stringify(body));
  assert.equal(files(dir).length, body.entries);
  assert.equal((await stats_of(server)).ssd_cache.bytes, body.bytes);
  assert.equal((await ask(server, N_PROMPTS - 1)).text, truth[N_PROMPTS - 1]); // written at SIGTERM only
  assert.equal((await server.stop()).code, 0, server.stderr);
  assert.ok(files(dir).length > body.entries);
  server = await serve('--builtin', '--ssd-cache', dir);
  let cached = 0;
  for (let i = 0; i < N_PROMPTS; i++) {
    const answer = await ask(server, i);
    assert.equal(answer.text, truth[i]);
    assert.ok(answer.cached >= Math.floor((answer.n_prompt - 1) / 64) * 64, `${answer.cached} of ${answer.n_prompt}`);
    cached += answer.cached;
  }
  const stats = await until(async () => {
    const s = await stats_of(server);
    return s.prompt_cache.hits === N_PROMPTS && s;
  }, 'hits are counted');
  assert.equal(stats.prompt_cache.cached_tokens, cached);
  assert.ok(stats.ssd_cache.restores > 10 && stats.ssd_cache.restore_ms_last > 0, JSON.stringify(stats.ssd_cache));
  assert.deepEqual([stats.ssd_cache.damaged, stats.ssd_cache.failed_spills, stats.ssd_cache.dropped_spills], [0, 0, 0]);
  const metrics = await metrics_of(server);
  assert.equal(metrics.ssd_cache_bytes, stats.ssd_cache.bytes);
  assert.equal(metrics.ssd_cache_restores_total, stats.ssd_cache.restores);
  assert.equal((await server.stop()).code, 0);
});

test('another way to compute finds nothing of it', async () => {
  const dir = join(folder, 'kept');
  for (const other of [['--math', 'exact'], ['--kv-dtype', 'q8']]) {
    const server = await serve('--builtin', '--ssd-cache', dir, ...other);
    assert.equal((await ask(server, 0)).cached, 0);
    assert.equal((await stats_of(server)).ssd_cache.restores, 0);
    await server.stop();
  }
});

test('damaged files are removed, counted and computed again', async () => {
  const dir = join(folder, 'kept');
  const before = files(dir);
  before.forEach((file, i) => i % 2 ? truncateSync(file, 100) : writeFileSync(file, 'rubbish', { flag: 'r+' }));
  const server = await serve('--builtin', '--ssd-cache', dir);
  const first = await ask(server, 0);
  assert.deepEqual([first.text, first.cached], [truth[0], 0]);
  const { ssd_cache } = await stats_of(server);
  assert.ok(ssd_cache.damaged > 0);
  assert.match(server.stderr, /damaged/);
  assert.equal((await flush(server)).status, 200);
  assert.equal((await server.stop()).code, 0);
});

test('a kill at any moment leaves a folder that serves', async () => {
  const dir = join(folder, 'killed');
  for (let round = 0; round < 6; round++) {
    const server = await serve('--builtin', '--ssd-cache', dir, '--ssd-cache-max', '0.01', '--ssd-demote-idle', '1');
    for (let i = 0; i < 3; i++) {
      const k = (round + i) % N_PROMPTS;
      assert.equal((await ask(server, k)).text, truth[k]);
    }
    flush(server).catch(() => {}); // writes while it is killed
    await sleep(round * 3);
    assert.equal((await server.stop('SIGKILL')).signal, 'SIGKILL');
  }
  const server = await serve('--builtin', '--ssd-cache', dir);
  let cached = 0;
  for (let i = 0; i < N_PROMPTS; i++) {
    const answer = await ask(server, i);
    assert.equal(answer.text, truth[i]);
    cached += answer.cached;
  }
  assert.ok(cached > 0);
  assert.equal((await stats_of(server)).ssd_cache.damaged, 0);
  assert.ok(files(dir).every((file) => /\.(page|state)$/.test(file)), 'temporaries are gone');
  assert.equal((await server.stop()).code, 0);
});

test('what is not used goes to disk by itself, and what is full makes room', async () => {
  const dir = join(folder, 'idle');
  const server = await serve('--builtin', '--ssd-cache', dir, '--ssd-cache-max', '0.002', '--ssd-demote-idle', '1');
  for (let i = 0; i < N_PROMPTS; i++) await ask(server, i);
  const { ssd_cache } = await until(async () => {
    const s = await stats_of(server);
    return s.ssd_cache.demotions > 10 && s.ssd_cache.unwritten === 0 && s.ssd_cache.pending_spills === 0 &&
      s.ssd_cache.evicted > 0 && s.ssd_cache.bytes <= s.ssd_cache.max_bytes && s;
  }, 'all is written behind');
  assert.equal(ssd_cache.entries, files(dir).length);
  for (let i = 0; i < N_PROMPTS; i++) assert.equal((await ask(server, i)).text, truth[i]);
  await server.stop();
});

test('a full disk is said and survived', { skip: process.getuid() !== 0 && 'mounting a small tmpfs needs root' }, async (t) => {
  const dir = mkdtempSync(join(folder, 'full-'));
  if (spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=256k', 'tmpfs', dir]).status !== 0) return t.skip('cannot mount a tmpfs');
  try {
    const server = await serve('--builtin', '--ssd-cache', dir);
    for (let i = 0; i < N_PROMPTS; i++) assert.equal((await ask(server, i)).text, truth[i]);
    const { status, body } = await flush(server);
    assert.equal(status, 503);
    assert.equal(body.error.code, 'cache_not_written');
    assert.match(server.stderr, /No space left/);
    for (let i = 0; i < N_PROMPTS; i++) assert.equal((await ask(server, i)).text, truth[i]);
    assert.ok((await stats_of(server)).ssd_cache.failed_spills > 0);
    assert.equal((await server.stop()).code, 0);
  } finally {
    spawnSync('umount', ['-l', dir]);
  }
});

test('flags that cannot be are refused in a sentence', () => {
  refused(run('serve', '--builtin', '--ssd-cache-max', '1'), 2, '--ssd-cache DIR');
  refused(run('serve', '--builtin', '--ssd-demote-idle', '1'), 2, '--ssd-cache DIR');
  refused(run('serve', '--builtin', '--ssd-cache', folder, '--prompt-cache', '0'), 2, '--prompt-cache 0');
  refused(run('serve', '--builtin', '--port', '0', '--ssd-cache', '/dev/null/x'), 1, '/dev/null/x');
});
