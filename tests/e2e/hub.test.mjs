// get, ls, scan, fit, gc and rm as commands: results on stdout, progress and mistakes on stderr, exit codes; on a
// terminal and not; with trees that other tools wrote.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { existsSync, lstatSync, mkdirSync, readFileSync, readdirSync, rmSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { spawnSync } from 'node:child_process';
import { after, test } from 'node:test';
import { LOAM, serve_in } from './loam.mjs';
import { commit_of, fresh_home, on_terminal, repo_of, run_async, start_hub } from './hub.mjs';

const MODELS = join(process.env.LOAM_SOURCE_DIR, 'tests', 'models');
const LLAMA = join(MODELS, 'llama-mlx-4bit');
const CARD = '---\nlicense: other\nlicense_name: our-own\n---\n# Card\n';
const no_script = spawnSync('script', ['--version']).error && 'no script(1)';

const hub = await start_hub({
  'org/name': repo_of(LLAMA, { 'README.md': CARD, 'pytorch_model.bin': 'foreign', 'onnx/model.onnx': 'foreign', 'extra/notes.txt': 'n' }),
  'org/other-name': repo_of(join(MODELS, 'qwen2')),
  'org/gated': { ...repo_of(LLAMA), token: 'good' },
  'org/forbidden': { ...repo_of(LLAMA), status: 403 },
  'org/unauthorized': { ...repo_of(LLAMA), status: 401 },
  'org/bin-only': repo_of(null, { 'config.json': '{}', 'pytorch_model.bin': 'x' }),
  'org/wrong': { ...repo_of(LLAMA), wrong: { 'generation_config.json': Buffer.alloc(repo_of(LLAMA).files['generation_config.json'].length) } },
});
const home = fresh_home(hub);
after(async () => { home.remove(); await hub.stop(); });
const loam = (...args) => run_async(home.env, ...args);
const loam_with = (env, ...args) => run_async({ ...home.env, ...env }, ...args);
const snapshot_of = (name) => join(home.cache, `models--${name.replace('/', '--')}/snapshots/${commit_of(name)}`);

function refused(result, code, ...parts) {
  assert.equal(result.code, code, result.stderr);
  assert.equal(result.stdout, '', 'stdout carries results only');
  for (const part of parts) assert.ok(result.stderr.includes(part), `"${result.stderr}" does not say "${part}"`);
}
function done(result) {
  assert.equal(result.code, 0, result.stderr);
  return result.stdout;
}

test('with nothing downloaded every command says so and what to do', async () => {
  refused(await loam('ls'), 0, 'nothing is downloaded', 'loam get org/name');
  assert.deepEqual(JSON.parse(done(await loam('ls', '--json'))), []);
  refused(await loam('fit', 'llama'), 1, 'llama', 'loam get');
  refused(await loam('rm', 'llama'), 1, 'llama');
  assert.match(done(await loam('gc')), /^nothing to delete/);
  assert.equal(JSON.parse(done(await loam('scan', '--json'))).models, 0);
});

test('get prints the folder on stdout, the rest on stderr, and fetches nothing twice', async () => {
  const first = await loam('get', 'org/name');
  assert.equal(done(first), snapshot_of('org/name') + '\n');
  assert.match(first.stderr, /^org\/name: received \d+ kB in [\d.]+ s \(.*\/s\), verified\nleft out 2 files in formats/);
  assert.ok(!first.stderr.includes('\r'), 'no bar where there is no terminal');
  assert.ok(!existsSync(join(snapshot_of('org/name'), 'pytorch_model.bin')));
  const blob = lstatSync(join(snapshot_of('org/name'), 'model.safetensors'));
  assert.ok(blob.isSymbolicLink());
  assert.equal(readFileSync(join(home.cache, 'models--org--name/refs/main'), 'utf8'), commit_of('org/name'));

  hub.requests.length = 0;
  const again = JSON.parse(done(await loam('get', 'org/name', '--json')));
  assert.deepEqual(hub.requests.map((request) => request.path), ['/api/models/org/name/revision/main']);
  assert.equal(again.path, snapshot_of('org/name'));
  assert.equal(again.commit, commit_of('org/name'));
  assert.equal(again.received, 0);
  assert.equal(again.skipped, 2);
  assert.equal(JSON.parse(done(await loam('get', 'org/name', '--include', '*.bin', '--json'))).files, 1);
  assert.equal(readFileSync(join(snapshot_of('org/name'), 'pytorch_model.bin'), 'utf8'), 'foreign');
});

test('include and exclude choose files', async () => {
  const other = fresh_home(hub);
  const run = (...args) => run_async(other.env, 'get', 'org/name', '--json', ...args);
  const names = (result) => readdirSync(JSON.parse(done(result)).path, { recursive: true }).sort();
  assert.deepEqual(names(await run('--include', '*.json', '--exclude', 'tokenizer*', '--exclude', 'model*')), ['config.json', 'generation_config.json']);
  assert.deepEqual(names(await run('--include', 'extra/*')), ['config.json', 'extra', 'extra/notes.txt', 'generation_config.json']);
  refused(await run('--include', '*.zip'), 1, 'patterns leave none');
  other.remove();
});

test('a repository that cannot be had is explained', async () => {
  refused(await loam('get', 'org/gated'), 2, `accept`, `${hub.url}/org/gated`, 'HF_TOKEN');
  refused(await loam('get', 'org/forbidden'), 2, `${hub.url}/org/forbidden`, 'HF_TOKEN', '403');
  refused(await loam('get', 'org/unauthorized'), 2, 'set HF_TOKEN', `${hub.url}/org/unauthorized`, '401');
  refused(await loam_with({ HF_TOKEN: 'bad' }, 'get', 'org/unauthorized'), 2, 'refused', '401');
  refused(await loam('get', 'org/nam'), 1, 'no repository org/nam', 'nearest that is downloaded is org/name');
  refused(await loam('get', 'org/name@v9'), 1, 'no revision "v9"');
  refused(await loam('get', 'org/name', '--revision', 'v9'), 1, 'no revision "v9"');
  refused(await loam('get', 'org/bin-only'), 1, 'pytorch_model.bin', '--include');
  refused(await loam('get', 'org/wrong'), 1, 'generation_config.json', 'git hash');
  assert.ok(!existsSync(join(home.cache, 'models--org--wrong/refs')));
  refused(await loam('get'), 2, 'which model?');
  refused(await loam('get', 'a/b/c'), 2, 'org/name');
  refused(await loam('get', 'org/../name'), 2, 'org/name');
  refused(await loam('get', 'org/name@main', '--revision', 'main'), 2, 'twice');
  refused(await loam('get', '--inclde', 'x'), 2, 'did you mean --include?');
});

test('the token comes from HF_TOKEN or its file, and goes to the hub alone', async () => {
  hub.requests.length = 0;
  const one = fresh_home(hub), two = fresh_home(hub);
  done(await run_async({ ...one.env, HF_TOKEN: 'good' }, 'get', 'org/gated'));
  mkdirSync(join(two.folder, '.cache/huggingface'), { recursive: true });
  writeFileSync(join(two.folder, '.cache/huggingface/token'), 'good\n');
  done(await run_async(two.env, 'get', 'org/gated'));
  for (const request of hub.requests)
    assert.equal(request.authorization, request.host.startsWith('127.0.0.2') ? undefined : 'Bearer good');
  assert.ok(hub.requests.some((request) => request.host.startsWith('127.0.0.2')));
  one.remove();
  two.remove();
});

test('offline, a mirror, and a hub that is not there', async () => {
  assert.equal(done(await loam_with({ HF_HUB_OFFLINE: '1', HF_ENDPOINT: 'http://127.0.0.1:9' }, 'get', 'org/name')).trim(), snapshot_of('org/name'));
  refused(await loam_with({ HF_HUB_OFFLINE: '1' }, 'get', 'org/elsewhere'), 1, 'HF_HUB_OFFLINE');
  refused(await loam_with({ HF_ENDPOINT: 'ftp://mirror' }, 'get', 'org/name'), 2, 'HF_ENDPOINT');
  const mirror = await start_hub({ 'org/mirrored': repo_of(LLAMA) });
  done(await loam_with({ HF_ENDPOINT: mirror.url + '/' }, 'get', 'org/mirrored'));
  assert.ok(mirror.requests.length > 3);
  done(await loam('rm', 'org/mirrored', '--yes'));
  await mirror.stop();
});

test('on a terminal get draws a bar', { skip: no_script }, async () => {
  const slow = await start_hub({ 'org/slow': repo_of(LLAMA) }, () => new Promise((resolve) => setTimeout(resolve, 700)));
  const other = fresh_home(slow);
  const terminal = on_terminal(other.env, `stty cols 120; '${LOAM}' get org/slow`);
  assert.equal(await terminal.exited, 0);
  assert.match(terminal.text, /\r\x1b\[K#*\.* +\d+% \d+ kB of \d+ kB  .*\/s  .* left  \d\/6 files/);
  assert.match(terminal.text, /#{30} 100% /);
  assert.match(terminal.text, /verified\r\n/);
  other.remove();
  await slow.stop();
});

test('ls, and serve and fit by name, need no scan', async () => {
  done(await loam('get', 'org/other-name'));
  const table = done(await loam('ls')).trimEnd().split('\n');
  assert.match(table[0], /^NAME +SIZE +PARAMS +QUANT +CONTEXT +CAPABILITIES +FITS HERE$/);
  assert.match(table[1], /^org\/name +213 kB +377K +4-bit g64 +2k +- +yes$/);
  assert.equal(table.length, 3);
  const [model] = JSON.parse(done(await loam('ls', 'ORG/NAME', '--json')));
  const want = { id: 'org/name', revision: commit_of('org/name'), path: snapshot_of('org/name'), canonical: true, model_type: 'llama',
    license: 'our-own', quant_bits: 4, quant_group_size: 64, quant_mode: 'affine', layers: 2, hidden_size: 128, vocab_size: 512,
    context_length: 2048, params: 377472, vision: false, tools: false, fits: true };
  assert.deepEqual(Object.fromEntries(Object.keys(want).map((key) => [key, model[key]])), want);
  assert.deepEqual(JSON.parse(done(await loam('ls', '--vision', '--json'))), []);
  assert.deepEqual(JSON.parse(done(await loam('ls', '--audio', '--json'))), []);
  assert.deepEqual(JSON.parse(done(await loam('ls', '--max-size', '220kB', '--json'))).map((m) => m.id), ['org/name']);
  refused(await loam('ls', '--max-size', 'big'), 2, '10GB');
  refused(await loam('ls', 'zzz'), 0, 'none of the');
  assert.equal(done(await loam('generate', 'org/name', 'Hello', '--raw', '--max-tokens', '2', '--json')).includes('"tokens"'), true);
  // The whole name after org/ wins over a part of another's.
  assert.equal(JSON.parse(done(await loam('fit', 'name', '--json', '--ctx', '64'))).model, 'org/name');
});

test('scan counts, and says what it leaves out', async () => {
  const result = await loam('scan', '--json');
  const counts = JSON.parse(done(result));
  assert.deepEqual([counts.models, counts.left_out], [2, 1]);
  assert.match(result.stderr, /left out org\/wrong: .*config\.json/);
  assert.match(done(await loam('scan')), /^2 models in .* \(1 left out, 0 forgotten\), \d+ ms\n$/);
  const databases = await Promise.all(Array.from({ length: 8 }, () => loam('scan', '--json')));
  for (const each of databases) assert.equal(JSON.parse(done(each)).models, 2);
});

test('fit prints the plan, as text and as JSON', async () => {
  const text = await loam('fit', 'other-name', '--ctx', '256', '--machines');
  for (const part of [/^org\/other-name on .*CPU|^org\/other-name on /, /weights +\d/, /KV cache +\d.*context 256 tokens/, /workspace/, /fits: yes/,
    /largest context: \d+ tokens/, /predicted: prefill \d+ tokens\/s, decode [\d.]+ tokens\/s/, /H100 SXM 80 GB +80 GB +yes/])
    assert.match(done(text), part);
  const plan = JSON.parse(done(await loam('fit', 'org/name', '--json', '--ctx', '128', '--batch', '2')));
  assert.equal(plan.model, 'org/name');
  assert.equal(plan.fits, true);
  assert.equal(plan.sequences, 2);
  assert.equal(plan.context_length, 128);
  assert.equal(plan.kv_bytes, 2 * 128 * plan.kv_bytes_per_token);
  assert.equal(plan.total_bytes, plan.weights_bytes + plan.kv_bytes + plan.state_bytes + plan.transient_bytes);
  assert.equal(plan.host_bytes, plan.total_bytes);
  assert.equal(plan.device_bytes, 0);
  assert.ok(plan.predicted_decode_tps > 0 && plan.predicted_prefill_tps > 0 && plan.limit_bytes > 0);
  const quantized = JSON.parse(done(await loam('fit', 'org/name', '--json', '--ctx', '128', '--batch', '2', '--kv-quant', '4')));
  assert.ok(quantized.kv_bytes < plan.kv_bytes / 3);
  const small = JSON.parse(done(await loam('fit', 'org/name', '--json', '--memory-budget', '0.0001')));
  assert.equal(small.fits, false);
  assert.ok(small.reason.length > 10);
  refused(await loam('fit', 'org'), 2, 'matches 2 downloaded models', 'org/name', 'org/other-name');
  refused(await loam('fit'), 2, 'which model?');
  refused(await loam('fit', 'name', '--kv-quant', '5'), 2, '4|8|config|off');
});

test('gc shows its plan, and acts with --yes; rm asks', async () => {
  const repo = join(home.cache, 'models--org--name');
  const old = join(repo, 'snapshots', 'e'.repeat(40)), blob = join(repo, 'blobs', 'f'.repeat(64));
  mkdirSync(old);
  writeFileSync(blob, 'old weights');
  symlinkSync(`../../blobs/${'f'.repeat(64)}`, join(old, 'model.safetensors'));
  const long_ago = new Date(Date.now() - 7200e3);
  for (const path of [blob, old]) utimesSync(path, long_ago, long_ago);
  const plan = JSON.parse(done(await loam('gc', '--json')));
  assert.equal(plan.deleted, false);
  // The blob's own change is young, whatever its times say: a download may be about to link it.
  assert.deepEqual(plan.items.map((item) => [item.kind, item.path]), [['snapshot', old]]);
  assert.ok(plan.kept.some((kept) => kept.path.includes('models--org--wrong')));
  assert.match(done(await loam('gc')), /would be freed; --yes does it\n$/);
  assert.ok(existsSync(old));
  assert.match(done(await loam('gc', '--yes')), /freed \d+ B\n$/);
  assert.ok(existsSync(blob) && !existsSync(old));
  assert.equal(done(await loam('gc', '--json', '--yes')).includes('"deleted": true'), true);
  done(await loam('generate', 'org/name', 'x', '--raw', '--max-tokens', '1')); // what is current still works

  assert.match(done(await loam('rm', 'other-name')), /^would delete org\/other-name \(.*\); --yes does it\n$/);
  const removed = JSON.parse(done(await loam('rm', 'other-name', '--yes', '--json')));
  assert.equal(removed.repo, 'org/other-name');
  assert.equal(removed.deleted, true);
  assert.ok(!existsSync(join(home.cache, 'models--org--other-name')));
  refused(await loam('rm', 'other-name', '--yes'), 1, 'other-name');
  refused(await loam('rm'), 2, 'which model?');
  assert.equal(done(await loam('ls')).includes('other-name'), false, 'rows of what is gone go');
});

test('rm at a terminal wants a yes', { skip: no_script }, async () => {
  for (const [answer, gone] of [['n', false], ['y', true]]) {
    const terminal = on_terminal(home.env, `'${LOAM}' rm org/wrong`);
    await terminal.sees(/delete org\/wrong \(.*\)\? \[y\/N\] /);
    terminal.type(answer + '\n');
    assert.equal(await terminal.exited, 0);
    assert.equal(existsSync(join(home.cache, 'models--org--wrong')), !gone);
  }
});

test('two processes that get the same repository share the work', async () => {
  const slow = await start_hub({ 'org/both': repo_of(LLAMA) }, () => new Promise((resolve) => setTimeout(resolve, 400)));
  const other = fresh_home(slow);
  const results = await Promise.all([1, 2].map(() => run_async(other.env, 'get', 'org/both', '--json')));
  for (const result of results) assert.equal(JSON.parse(done(result)).files, 6);
  assert.equal(slow.requests.filter((request) => request.path.startsWith('/lfs/')).length, 1, 'the weights came once');
  other.remove();
  await slow.stop();
});

test('a full disk is said, and what is there is kept', { skip: process.getuid() !== 0 && 'mounting a small tmpfs needs root' }, async (t) => {
  const other = fresh_home(hub), cache = join(other.folder, 'small');
  mkdirSync(cache);
  if (spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=2m', 'tmpfs', cache]).status !== 0) return t.skip('cannot mount a tmpfs');
  try {
    refused(await run_async({ ...other.env, HF_HUB_CACHE: cache }, 'get', 'org/name'), 1, 'must stay free', 'HF_HUB_CACHE', 'loam gc');
    assert.ok(!existsSync(join(cache, 'models--org--name/refs')));
  } finally {
    spawnSync('umount', ['-l', cache]);
  }
  other.remove();
});

// A repository as huggingface_hub leaves it: links and its own extra files; or, where it may not link, plain files.
function tree_of_hf(cache, name, commit, files, { links }) {
  const repo = join(cache, `models--${name.replace('/', '--')}`), snapshot = join(repo, 'snapshots', commit);
  for (const folder of ['blobs', 'refs', `.no_exist/${commit}`]) mkdirSync(join(repo, folder), { recursive: true });
  mkdirSync(snapshot, { recursive: true });
  writeFileSync(join(cache, 'CACHEDIR.TAG'), 'Signature: 8a477f597d28d172789f06886806bc55\n');
  writeFileSync(join(repo, '.no_exist', commit, 'adapter_config.json'), '');
  writeFileSync(join(repo, 'refs/main'), commit);
  for (const [path, data] of Object.entries(files)) {
    const lfs = path.endsWith('.safetensors');
    const hash = lfs ? createHash('sha256').update(data).digest('hex')
                     : createHash('sha1').update(`blob ${data.length}\0`).update(data).digest('hex');
    if (!links) { writeFileSync(join(snapshot, path), data); continue; }
    writeFileSync(join(repo, 'blobs', hash), data);
    symlinkSync(`../../blobs/${hash}`, join(snapshot, path));
  }
  return snapshot;
}

test('trees of other tools are read, and completed without fetching what is there', async () => {
  for (const links of [true, false]) {
    const other = fresh_home(hub), { files } = repo_of(LLAMA);
    mkdirSync(other.cache, { recursive: true });
    const snapshot = tree_of_hf(other.cache, 'org/other-name', 'a'.repeat(40), files, { links });
    const [model] = JSON.parse(done(await run_async(other.env, 'ls', '--json')));
    assert.deepEqual([model.id, model.path, model.params], ['org/other-name', snapshot, 377472]);
    done(await run_async(other.env, 'generate', 'other-name', 'x', '--raw', '--max-tokens', '1'));
    assert.match(done(await run_async(other.env, 'gc')), /^nothing to delete/);

    // The same files under the commit that the hub has: only the list is asked for.
    const there = tree_of_hf(other.cache, 'org/name', commit_of('org/name'), repo_of(LLAMA, { 'README.md': CARD }).files, { links });
    hub.requests.length = 0;
    assert.equal(done(await run_async(other.env, 'get', 'org/name', '--include', '*.json', '--include', '*.safetensors')).trim(), there);
    assert.equal(hub.requests.length, 1);
    assert.equal(lstatSync(join(there, 'model.safetensors')).isSymbolicLink(), links);
    done(await run_async(other.env, 'rm', 'org/name', '--yes'));
    other.remove();
  }
});

test('serve starts with the model that was downloaded since, and a registry that cannot be written is no obstacle', async () => {
  const other = fresh_home(hub);
  done(await run_async(other.env, 'get', 'org/name'));
  mkdirSync(join(other.folder, '.cache/loam/registry.sqlite'), { recursive: true }); // a folder where the file should be
  assert.match(done(await run_async(other.env, 'ls')), /org\/name/);
  rmSync(join(other.folder, '.cache/loam'), { recursive: true, force: true });
  writeFileSync(join(other.folder, '.cache/loam'), 'in the way');
  assert.match(done(await run_async(other.env, 'ls')), /org\/name/);
  other.remove();
});

test('GET /library is what ls lists, without the folders, kept for a while', async () => {
  const other = fresh_home(hub);
  const server = await serve_in(other.env, '--builtin');
  const library = async (query = '') => {
    const response = await fetch(`${server.url}/library${query}`), text = await response.text();
    assert.equal(response.status, 200, text);
    assert.equal(text.includes(other.folder), false, 'no local path');
    return JSON.parse(text);
  };
  const first = await library();
  assert.deepEqual([first.serving, first.models], ['loam-shakespeare', []]);
  assert.ok(Math.abs(first.read_at - Date.now() / 1000) < 60);
  done(await run_async(other.env, 'get', 'org/name'));
  assert.deepEqual(await library(), first, 'still the answer of before');
  const all = await Promise.all(Array.from({ length: 20 }, () => library('?refresh=1')));
  const listed = JSON.parse(done(await run_async(other.env, 'ls', '--json'))).map(({ path, ...rest }) => rest);
  assert.equal(listed.length, 1);
  for (const { models } of all) assert.deepEqual(models, listed);
  assert.deepEqual((await library('?refresh=0')).models, listed);
  // What is wrong stands in the log, not in the answer.
  const broken = await serve_in({ ...other.env, HF_ENDPOINT: 'no url' }, '--builtin');
  const response = await fetch(`${broken.url}/library`);
  assert.equal(response.status, 500);
  assert.match((await response.json()).error.message, /^the downloaded models cannot be read/);
  assert.equal((await broken.stop()).code, 0);
  assert.match(broken.stderr, /library: cannot read the downloaded models: .*HF_ENDPOINT/);
  assert.equal((await server.stop()).code, 0, server.stderr);
  other.remove();
});
