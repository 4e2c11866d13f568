// loam tokenize and loam render as a person types them, against what transformers and Jinja made of the same input.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { LOAM, refused, run, run_with } from './loam.mjs';

const TESTS = join(process.env.LOAM_SOURCE_DIR, 'tests');
const scratch = mkdtempSync(join(tmpdir(), 'loam-e2e-'));
after(() => rmSync(scratch, { recursive: true }));

const model = (name) => join(TESTS, 'models', name);
const golden = (name) => JSON.parse(readFileSync(join(model(name), 'golden.json'), 'utf8'));
const lines = (values) => values.map((v) => JSON.stringify(v) + '\n').join('');
const unlines = (text) => text.trimEnd().split('\n').map((line) => JSON.parse(line));
function file(name, value) {
  const path = join(scratch, name);
  writeFileSync(path, typeof value === 'string' ? value : JSON.stringify(value));
  return path;
}
function done(result) {
  assert.equal(result.code, 0, result.stderr);
  return result.stdout;
}
const CONVERSATION = { messages: [{ role: 'user', content: 'Who goes there?' }], add_generation_prompt: true };

for (const name of ['llama', 'qwen2', 'mistral']) {
  test(`tokenize gives ${name} the ids of transformers, and text back`, () => {
    const cases = golden(name).tokenizer_cases;
    assert.ok(cases.length >= 10);
    const texts = file('texts.jsonl', lines(cases.map((c) => c.text)));
    assert.deepEqual(unlines(done(run('tokenize', model(name), '--jsonl', texts))).map((a) => a.ids), cases.map((c) => c.ids_special));
    assert.deepEqual(unlines(done(run('tokenize', model(name), '--jsonl', texts, '--no-special'))).map((a) => a.ids), cases.map((c) => c.ids));
    const nfc = JSON.parse(readFileSync(join(model(name), 'tokenizer.json'), 'utf8')).normalizer?.type === 'NFC';
    const back = cases.map((c) => (nfc ? c.text.normalize('NFC') : c.text));
    const ids = file('ids.jsonl', lines(cases.map((c) => c.ids)));
    assert.deepEqual(unlines(done(run('tokenize', model(name), '--decode', ids))), back);
  });

  test(`render gives ${name} the prompts of transformers`, () => {
    const cases = golden(name).chat_cases;
    assert.ok(cases.length > 0);
    for (const c of cases) {
      const prompt = c.text ?? c.rendered;
      const input = file('case.json', { ...c, kwargs: c.kwargs ?? {} });
      assert.equal(done(run('render', model(name), '--input', input)), prompt);
      assert.equal(done(run('render', '--model', model(name), '--input', input)), prompt);
      if (c.ids)
        assert.deepEqual(JSON.parse(done(run('tokenize', model(name), '--template', input))).ids, c.ids);
    }
  });
}

test('text comes from an argument, a file or standard input', () => {
  const { text, ids_special } = golden('llama').tokenizer_cases[0];
  const ways = [
    run('tokenize', model('llama'), '--text', text),
    run('tokenize', model('llama'), '--file', file('text', text)),
    run('tokenize', '--model', model('llama'), '--text', text),
    run_with(text, 'tokenize', model('llama')),
    run_with(text, 'tokenize', model('llama'), '--file', '-'),
  ];
  for (const way of ways)
    assert.deepEqual(JSON.parse(done(way)).ids, ids_special);
  assert.deepEqual(unlines(done(run_with(JSON.stringify(text), 'tokenize', model('llama'), '--jsonl', '-')))[0].ids, ids_special);
});

test('the built-in model has a tokenizer and a template too', () => {
  const input = file('case.json', CONVERSATION);
  const prompt = done(run('render', '--builtin', '--input', input));
  assert.equal(prompt, '<|im_start|>user\nWho goes there?<|im_end|>\n<|im_start|>assistant\n');
  const ids = JSON.parse(done(run('tokenize', '--builtin', '--template', input))).ids;
  assert.deepEqual(ids, JSON.parse(done(run('tokenize', '--builtin', '--no-special', '--text', prompt))).ids);
  const back = file('ids.jsonl', lines([ids]));
  assert.equal(unlines(done(run('tokenize', '--builtin', '--decode', back)))[0], prompt);
  assert.equal(unlines(done(run('tokenize', '--builtin', '--decode', back, '--skip-special')))[0], 'user\nWho goes there?\nassistant\n');
});

test('render prints what Jinja prints, for a template a line', () => {
  const { context, cases } = JSON.parse(readFileSync(join(TESTS, 'template', 'goldens.json'), 'utf8'));
  const answers = unlines(done(run_with(lines(cases.map(({ template }) => ({ template, context }))), 'render', '--jsonl', '-')));
  assert.equal(answers.length, cases.length);
  for (const [i, { template, expected }] of cases.entries()) {
    if (expected !== undefined)
      assert.equal(answers[i].text, expected, template);
    else
      assert.equal(typeof answers[i].error, 'string', template);
  }
  const source = file('chat.jinja', '{{ messages[0].content | upper }}\n{{- bos_token }}');
  const input = file('case.json', { ...CONVERSATION, bos_token: '<s>' });
  assert.equal(done(run('render', '--template-file', source, '--input', input)), 'WHO GOES THERE?<s>');
});

test('a terminal shows tokens in colour, --json does not', { skip: spawnSync('script', ['--version']).error && 'no script(1)' }, () => {
  const on_terminal = (...args) => {
    const command = [LOAM, ...args].map((a) => `'${a}'`).join(' ');
    return spawnSync('script', ['-qec', command, '/dev/null'], { encoding: 'utf8' }).stdout.replaceAll('\r\n', '\n');
  };
  const ids = JSON.parse(done(run('tokenize', '--builtin', '--text', 'to be\nor'))).ids;
  const shown = on_terminal('tokenize', '--builtin', '--text', 'to be\nor');
  assert.match(shown, /\x1b\[4\dm|\x1b\[4\d;\d+m/);
  const [painted, ...table] = shown.split(`\n\n${ids.length} tokens\n`);
  assert.equal(painted.replaceAll(/\x1b\[[\d;]*m/g, ''), 'to be\\n\nor');
  assert.deepEqual(table[0].trimEnd().split('\n').map((row) => parseInt(row, 10)), ids);
  assert.match(on_terminal('tokenize', '--builtin', '--template', file('case.json', CONVERSATION)), /\x1b\[7m<\|im_start\|>\x1b\[0m/);
  assert.deepEqual(JSON.parse(on_terminal('tokenize', '--builtin', '--text', 'to be\nor', '--json')).ids, ids);
});

test('mistakes are told in one sentence', () => {
  const input = file('case.json', CONVERSATION);
  refused(run('render', '--input', input), 2, 'model');
  refused(run('render', '--builtin'), 2, '--input');
  refused(run('render', '--builtin', '--template-file', 'x', '--input', input), 2, 'either');
  refused(run('render', '--builtin', '--jsonl', '-'), 2, '--jsonl');
  refused(run('render', 'x', '--model', 'y', '--input', input), 2, 'once');
  refused(run('tokenize', '--text', 'x'), 2, 'which model?', '--builtin');
  refused(run('tokenize', '--builtin', '--text', 'x', '--file', 'y'), 2, 'exclude');
  refused(run('tokenize', '--builtin', '--text', 'x', '--skip-special'), 2, '--decode');
  refused(run('render', '--builtin', '--input', join(scratch, 'nothing.json')), 1, 'nothing.json');
  refused(run('render', '--builtin', '--input', file('bad.json', '[1]')), 1, 'JSON object');
  refused(run('render', '--builtin', '--input', file('bad.json', '{"messages": 1}')), 1, '"messages"');
  refused(run('tokenize', '--builtin', '--template', file('bad.json', '{}')), 1, '"messages"');
  refused(run('tokenize', '--builtin', '--decode', file('bad.jsonl', '"x"\n')), 1, 'bad.jsonl line 1', 'array of token ids');
  const source = file('bad.jinja', 'line\n{% if %}');
  refused(run('render', '--template-file', source, '--input', input), 1, 'line 2');
  refused(run('render', '--template-file', file('raise.jinja', "{{ raise_exception('no system role') }}"), '--input', input), 1, 'no system role');
});
