// Commands as a person types them: results, exit codes, and one clear sentence for every mistake.
import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, readFileSync, rmSync, statSync, truncateSync, unlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { refused, run } from './loam.mjs';

const MODELS = join(process.env.LOAM_SOURCE_DIR, 'tests', 'models');
const scratch = mkdtempSync(join(tmpdir(), 'loam-e2e-'));
after(() => rmSync(scratch, { recursive: true }));

// A copy of a small model to be damaged.
let n_copies = 0;
function copy_of(name) {
  const folder = join(scratch, `${name}-${n_copies++}`);
  cpSync(join(MODELS, name), folder, { recursive: true });
  return folder;
}
function edit_config(folder, edit) {
  const path = join(folder, 'config.json');
  const config = JSON.parse(readFileSync(path, 'utf8'));
  edit(config);
  writeFileSync(path, JSON.stringify(config));
}
const generate = (folder, ...more) => run('generate', folder, 'Hello', '--raw', '--max-tokens', '2', ...more);

test('help and version', () => {
  assert.match(run('--version').stdout, /^loam \d+\.\d+\.\d+\n$/);
  const help = run('help');
  for (const command of ['serve', 'generate', 'logits', 'bench'])
    assert.match(help.stdout, new RegExp(`^  ${command} `, 'm'));
  assert.equal(run('help', 'generate').stdout, run('generate', '--help').stdout);
  refused(run('help', 'genrate'), 2, 'generate');
});

test('bench puts a test beside what the machine could do', () => {
  const bench = JSON.parse(run('bench', '--builtin', '-p', '32', '-n', '8', '-b', '4', '-r', '1', '--roofline', '--json').stdout);
  assert.ok(bench.roofs.read_gb_s > 0);
  // Work does not depend on speed: a prompt passes each weight once, 8 tokens pass it 8 times.
  const [prompt, decode, batch] = bench.results.map((r) => r.read_gb_s / r.median * (r.test === 'pp32' ? 32 : r.test === 'bg4' ? 4 : 1));
  assert.ok(prompt > decode && prompt < 1.5 * decode, `${prompt} ${decode}`);
  assert.ok(batch > decode, `${batch} ${decode}`); // four contexts of keys and values, each longer
});

test('wrong usage exits 2 and names the nearest option', () => {
  refused(run('genrate'), 2, 'did you mean "loam generate"?');
  refused(run('generate', '--builtin', 'x', '--max-token', '3'), 2, '--max-token', 'did you mean --max-tokens?');
  refused(run('generate', '--builtin', 'x', '--max-tokens', '0'), 2, '--max-tokens');
  refused(run('generate', '--builtin', 'x', '--temp'), 2, '--temp needs a value');
  refused(run('generate'), 2, 'model');
  refused(run('generate', '--builtin', '--mlock', 'x'), 2, '--mlock', 'inside the program');
  refused(run('serve', '--port', '99999'), 2, '--port');
  refused(run('logits', '--builtin'), 2, '--tokens-file');
});

test('generate prints text on stdout, or one JSON object', () => {
  const text = run('generate', '--builtin', 'ROMEO:', '--max-tokens', '12', '--temp', '0');
  assert.equal(text.code, 0);
  const json = JSON.parse(run('generate', '--builtin', 'ROMEO:', '--max-tokens', '12', '--temp', '0', '--json').stdout);
  assert.equal(text.stdout, json.text.endsWith('\n') ? json.text : json.text + '\n');
  assert.equal(json.tokens.length, 12);
  assert.equal(json.finish_reason, 'length');
  for (const key of ['load_ms', 'prefill_ms', 'prefill_tps', 'decode_ms', 'decode_tps'])
    assert.equal(typeof json.timings[key], 'number');
});

test('logits writes float32 rows', () => {
  const ids = join(scratch, 'ids.json'), out = join(scratch, 'logits.bin');
  writeFileSync(ids, '[1,2,3,4,5]');
  assert.equal(run('logits', '--builtin', '--tokens-file', ids, '--out', out, '--math', 'exact').code, 0);
  assert.equal(statSync(out).size, 5 * 1024 * 4);
  const all = readFileSync(out);
  run('logits', '--builtin', '--tokens-file', ids, '--out', out, '--math', 'exact', '--positions', 'last', '--chunk', '2');
  assert.deepEqual(readFileSync(out), all.subarray(4 * 1024 * 4));
  writeFileSync(ids, '[1,2,99999]');
  refused(run('logits', '--builtin', '--tokens-file', ids, '--out', out), 2, '99999', 'vocabulary');
  writeFileSync(ids, '{"a":1}');
  refused(run('logits', '--builtin', '--tokens-file', ids, '--out', out), 1, 'array of token ids');
});

test('damaged model folders are refused by name', () => {
  refused(generate(join(scratch, 'nothing')), 1, 'nothing');
  let folder = copy_of('llama');
  unlinkSync(join(folder, 'config.json'));
  refused(generate(folder), 1, 'config.json');

  folder = copy_of('llama');
  writeFileSync(join(folder, 'config.json'), '{"model_type": "llama",');
  refused(generate(folder), 1, 'config.json', 'JSON');

  folder = copy_of('llama');
  edit_config(folder, (config) => { config.model_type = 'mamba9'; });
  refused(generate(folder), 1, 'mamba9', 'llama', 'qwen3');

  folder = copy_of('llama');
  truncateSync(join(folder, 'model.safetensors'), 5000);
  refused(generate(folder), 1, 'model.safetensors');

  folder = copy_of('llama');
  truncateSync(join(folder, 'model.safetensors'), statSync(join(folder, 'model.safetensors')).size - 4);
  refused(generate(folder), 1, 'model.safetensors');

  folder = copy_of('llama');
  edit_config(folder, (config) => { config.intermediate_size = 200; });
  refused(generate(folder), 1, 'mlp', '200');

  folder = copy_of('llama');
  edit_config(folder, (config) => { config.num_hidden_layers = 1; });
  refused(generate(folder), 1, 'layers.1');

  folder = copy_of('llama');
  edit_config(folder, (config) => { config.num_hidden_layers = 3; });
  refused(generate(folder), 1, 'missing tensor', 'layers.2');

  folder = copy_of('mistral');
  unlinkSync(join(folder, 'model-00002-of-00002.safetensors'));
  refused(generate(folder), 1, 'model-00002-of-00002.safetensors');

  folder = copy_of('llama');
  unlinkSync(join(folder, 'tokenizer.json'));
  refused(generate(folder), 1, 'tokenizer');
  assert.equal(run('logits', folder, '--tokens-file', join(scratch, 'good.json'), '--out', join(scratch, 'x')).code, 1);

  folder = copy_of('llama');
  writeFileSync(join(folder, 'tokenizer.json'), '{"model": 1}');
  refused(generate(folder), 1, 'tokenizer.json');
});

test('a prompt that is longer than the context is refused', () => {
  const folder = copy_of('llama');
  refused(run('generate', folder, 'word '.repeat(3000), '--raw', '--max-tokens', '4'), 2, 'tokens', 'context');
});
