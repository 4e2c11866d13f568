// A server that starts with nothing downloaded: it answers at once, and a fetched model takes over while it runs.
import assert from 'node:assert/strict';
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { spawnSync } from 'node:child_process';
import { after, test } from 'node:test';
import { LOAM, serve_in, sleep } from './loam.mjs';
import { fresh_home, on_terminal, repo_of, start_hub } from './hub.mjs';

const LLAMA = join(process.env.LOAM_SOURCE_DIR, 'tests', 'models', 'llama-mlx-4bit');
const BUILTIN = 'loam-shakespeare';
const ended = [];
after(async () => { for (const end of ended.reverse()) await end(); });

// A hub that serves our small model as whatever an mlx-community name asks for, and holds weights back until release().
async function scene(options = {}) {
  let release;
  const released = new Promise((resolve) => { release = resolve; });
  const any = options.repo ?? repo_of(LLAMA);
  const repos = new Proxy({}, { get: (_, name) => (/^(mlx-community|org)\//.test(name) ? any : undefined) });
  const hub = await start_hub(repos, async (_, path) => { if (path.endsWith('.safetensors')) await released; });
  const home = fresh_home(hub);
  ended.push(() => { home.remove(); return hub.stop(); });
  return { hub, home, release };
}
const get = async (server, path) => (await fetch(server.url + path)).json();
const served = async (server) => (await get(server, '/v1/models')).data.map((model) => model.id);
async function until(what, ms = 20000) {
  for (const end = Date.now() + ms; Date.now() < end; await sleep(20))
    if (await what()) return;
  throw new Error(`not seen within ${ms} ms: ${what}`);
}
const post = (server, body) => fetch(server.url + '/v1/completions', {
  method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });

test('serve --get answers with the demo, fetches, and switches without dropping a running request', async () => {
  const { home, release } = await scene();
  const server = await serve_in({ ...home.env, LOAM_LOG: 'info' }, '--get');
  ended.push(() => server.stop('SIGKILL'));
  assert.deepEqual(await served(server), [BUILTIN]);
  const [, repo] = /One that suits this machine: (mlx-community\/\S+) \(about [\d.]+ GB\)/.exec(server.stderr);
  assert.match(server.stderr, new RegExp(`fetching ${repo} in the background`));
  await until(async () => (await get(server, '/downloads')).downloads[0].files > 0);
  const [download] = (await get(server, '/downloads')).downloads;
  assert.equal(download.repo, repo);
  assert.equal(download.state, 'running');
  assert.equal(download.error, null);

  // Many choices one after another: most of them start when the other model has long taken over.
  const running = await post(server, { prompt: 'ROMEO:', max_tokens: 400, n: 64, ignore_eos: true, stream: true, seed: 1 });
  const reader = running.body.getReader(), decoder = new TextDecoder();
  let text = decoder.decode((await reader.read()).value);
  release();
  await until(async () => (await served(server))[0] === repo);
  const answer = await (await post(server, { prompt: 'a', max_tokens: 2, ignore_eos: true })).json();
  assert.equal(answer.model, repo);
  assert.equal(answer.usage.completion_tokens, 2);
  for (let part; !(part = await reader.read()).done;) text += decoder.decode(part.value);
  assert.match(text, /data: \[DONE\]\n\n$/);
  const chunks = [...text.matchAll(/^data: (\{.*)$/gm)].map((match) => JSON.parse(match[1]));
  assert.deepEqual([...new Set(chunks.map((chunk) => chunk.model))], [BUILTIN], 'answered to its end by the model that began');
  assert.equal(chunks.filter((chunk) => chunk.choices[0]?.finish_reason === 'length').length, 64);

  await until(() => server.stderr.includes(`gone model=${BUILTIN}`)); // its last request is answered
  assert.match(server.stderr, new RegExp(`^${repo} is ready and answers from now on`, 'm'));
  assert.match(server.stderr, new RegExp(`^loam \\S+ serves ${repo} on `, 'm'));
  assert.equal((await get(server, '/downloads')).downloads[0].state, 'done');
  assert.equal((await get(server, '/v1')).models[0], repo);
  assert.equal((await get(server, '/stats')).server.model, repo);
  assert.equal((await server.stop()).code, 0);

  // The next one takes it from the start.
  const next = await serve_in(home.env, '--get');
  ended.push(() => next.stop('SIGKILL'));
  assert.deepEqual(await served(next), [repo]);
  assert.match(next.stderr, /nothing to fetch/);
  assert.equal((await next.stop()).code, 0);
});

test('a named model that is not downloaded is fetched with --get, and refused without', async () => {
  const { home, release } = await scene();
  await assert.rejects(serve_in(home.env, 'org/mine'), /loam get org\/mine/);
  const server = await serve_in(home.env, 'org/mine', '--get');
  ended.push(() => server.stop('SIGKILL'));
  assert.deepEqual(await served(server), [BUILTIN]);
  release();
  await until(async () => (await served(server))[0] === 'org/mine');
  assert.equal((await server.stop()).code, 0);
});

test('a failed download or a model that cannot be opened leaves the demo serving', async () => {
  const repo = repo_of(LLAMA, { 'config.json': '{"model_type":"mamba9"}' });
  const { home, release } = await scene({ repo });
  release();
  const broken = await serve_in(home.env, 'org/broken', '--get');
  const missing = await serve_in(home.env, 'nobody/nothing', '--get');
  ended.push(() => broken.stop('SIGKILL'), () => missing.stop('SIGKILL'));
  await until(() => broken.stderr.includes('cannot serve org/broken') && broken.stderr.includes('mamba9'));
  await until(() => missing.stderr.includes('cannot fetch nobody/nothing'));
  const [failed] = (await get(missing, '/downloads')).downloads;
  assert.equal(failed.state, 'failed');
  assert.match(failed.error, /no repository nobody\/nothing/);
  for (const server of [broken, missing]) {
    assert.deepEqual(await served(server), [BUILTIN]);
    assert.equal((await (await post(server, { prompt: 'ROMEO:', max_tokens: 3 })).json()).model, BUILTIN);
    assert.equal((await server.stop()).code, 0);
  }
});

test('told to stop while it fetches, it stops, and what is there is kept', async () => {
  const { home } = await scene();
  const server = await serve_in(home.env, 'org/mine', '--get');
  ended.push(() => server.stop('SIGKILL'));
  await until(() => existsSync(join(home.cache, 'models--org--mine/blobs')) &&
    readdirSync(join(home.cache, 'models--org--mine/blobs')).some((name) => name.endsWith('.incomplete')));
  assert.equal((await server.stop()).code, 0);
  assert.ok(!existsSync(join(home.cache, 'models--org--mine/refs')), 'refs are written last');
});

test('a person at a terminal is asked', { skip: spawnSync('script', ['--version']).error && 'no script(1)' }, async () => {
  const { home, release } = await scene();
  const yes = on_terminal(home.env, `'${LOAM}' serve --port 0`);
  await yes.sees(/Fetch it now and switch to it when it is there\? \[y\/N\] /);
  const server = { url: (await yes.sees(/ready (http:\S+)/))[1] };
  assert.deepEqual(await served(server), [BUILTIN], 'it serves while it waits for the answer');
  yes.type('y\n');
  const [, repo] = await yes.sees(/fetching (\S+) in the background/);
  release();
  await until(async () => (await served(server))[0] === repo);
  await yes.sees(/is ready and answers from now on/);
  yes.type('\x03');
  await yes.exited;

  const other = await scene();
  const no = on_terminal(other.home.env, `'${LOAM}' serve --port 0`);
  await no.sees(/\[y\/N\] /);
  no.type('\n');
  await no.sees(/Not now\. `loam get mlx-community/);
  assert.deepEqual(other.hub.requests, []);
  no.type('\x03');
  await no.exited;
  for (const flag of ['--no-get', '--builtin']) {
    const quiet = on_terminal(other.home.env, `'${LOAM}' serve --port 0 ${flag}`);
    await quiet.sees(/ready http/);
    await sleep(50);
    assert.doesNotMatch(quiet.text, /\[y\/N\]/);
    quiet.type('\x03');
    await quiet.exited;
  }
});
