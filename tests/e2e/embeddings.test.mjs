// POST /v1/embeddings and /v1/rerank, with the official client and the goldens of transformers.
import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import OpenAI from 'openai';
import { serve } from './loam.mjs';

const folder = join(process.env.LOAM_SOURCE_DIR, 'tests/models/qwen3-embedding');
const exact = ['--math', 'exact', '--kv-dtype', 'f32'];
const scratch = mkdtempSync(join(tmpdir(), 'loam-'));
let server, client;
before(async () => {
  server = await serve(folder, ...exact);
  client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0 });
});
after(async () => {
  rmSync(scratch, { recursive: true });
  assert.equal((await server.stop()).code, 0, server.stderr);
});

// The tensors of a safetensors file by name, as arrays.
function tensors(path) {
  const data = readFileSync(path);
  const n = Number(data.readBigUInt64LE(0));
  const read = { F32: [4, 'readFloatLE'], I32: [4, 'readInt32LE'], I64: [8, 'readBigInt64LE'] };
  return Object.fromEntries(Object.entries(JSON.parse(data.subarray(8, 8 + n))).filter(([, t]) => read[t.dtype])
    .map(([name, { dtype, data_offsets: [from, to] }]) => {
      const [bytes, method] = read[dtype];
      return [name, Array.from({ length: (to - from) / bytes }, (_, i) => Number(data[method](8 + n + from + i * bytes)))];
    }));
}
const golden = tensors(join(folder, 'golden.safetensors'));
const n_golden = Object.keys(golden).filter((name) => /^embed\d+\.ids$/.test(name)).length;
const ids = (i) => golden[`embed${i}.ids`];
const embed = async (input, more = {}) =>
  (await client.embeddings.create({ model: 'any', input, encoding_format: 'float', ...more })).data.map((d) => d.embedding);
const distance = (a, b) => Math.max(...a.map((x, i) => Math.abs(x - b[i])));
const post = (route, body) => fetch(`${server.url}${route}`, { method: 'POST', body: JSON.stringify(body) });

test('embeddings of token ids are transformers\' own, one or many', async () => {
  assert.ok(n_golden > 2);
  const all = Array.from({ length: n_golden }, (_, i) => ids(i));
  const many = await client.embeddings.create({ model: 'any', input: all, encoding_format: 'float' });
  assert.equal(many.object, 'list');
  assert.equal(many.model, 'qwen3-embedding');
  const n_tokens = all.reduce((sum, one) => sum + one.length, 0);
  assert.deepEqual(many.usage, { prompt_tokens: n_tokens, total_tokens: n_tokens });
  for (let i = 0; i < n_golden; i++) {
    assert.equal(many.data[i].index, i);
    assert.equal(many.data[i].object, 'embedding');
    assert.equal(many.data[i].embedding.length, golden[`embed${i}.vec`].length);
    assert.ok(distance(many.data[i].embedding, golden[`embed${i}.vec`]) < 1e-4, `input ${i}`);
    assert.deepEqual((await embed(ids(i)))[0], many.data[i].embedding, 'alone as among others');
  }
});

test('a text gets its end token, and the instruction before it', async () => {
  const tokenize = async (content) => (await (await post('/tokenize', { content })).json()).tokens;
  const text = 'hear me speak';
  assert.deepEqual((await embed(text))[0], (await embed(await tokenize(text)))[0]);
  assert.deepEqual((await embed([text, 'no'], { instruction: 'Find the speaker' }))[0],
    (await embed(await tokenize(`Instruct: Find the speaker\nQuery:${text}`)))[0]);
});

test('base64 is the same numbers, and what the client asks for by itself', async () => {
  const [floats] = await embed('hear me speak');
  const { data: [{ embedding }] } = await (await post('/v1/embeddings', { input: 'hear me speak', encoding_format: 'base64' })).json();
  const bytes = Buffer.from(embedding, 'base64');
  assert.deepEqual(floats.map((_, i) => bytes.readFloatLE(i * 4)), floats.map(Math.fround));
  assert.equal(bytes.length, floats.length * 4);
  const { data: [decoded] } = await client.embeddings.create({ model: 'any', input: 'hear me speak' });
  assert.deepEqual(Array.from(decoded.embedding), floats.map(Math.fround));
});

test('fewer dimensions are the first ones, at length 1', async () => {
  const [[all], [few]] = [await embed('hear me speak'), await embed('hear me speak', { dimensions: 8 })];
  const length = Math.hypot(...all.slice(0, 8));
  assert.equal(few.length, 8);
  assert.ok(distance(few, all.slice(0, 8).map((x) => x / length)) < 1e-6);
});

test('more inputs than the engine takes at once', async () => {
  const many = await embed(Array.from({ length: 300 }, (_, i) => ids(i % n_golden)));
  assert.deepEqual(many[299], many[299 % n_golden]);
});

test('bad requests name their parameter', async () => {
  const cases = [
    [{}, 'input'], [{ input: '' }, 'input'], [{ input: [] }, 'input'], [{ input: ['a', ''] }, 'input'], [{ input: [[]] }, 'input'],
    [{ input: ['a', 3] }, 'input'], [{ input: [3, 'a'] }, 'input'], [{ input: [-1] }, 'input'], [{ input: [[100000]] }, 'input'],
    [{ input: { a: 1 } }, 'input'], [{ input: 'a', dimensions: 65 }, 'dimensions'], [{ input: 'a', dimensions: 0 }, 'dimensions'],
    [{ input: 'a', encoding_format: 'int8' }, 'encoding_format'], [{ input: 'a', instruction: 7 }, 'instruction'],
    [{ input: Array(2049).fill('a') }, 'input'], [{ input: Array(3000).fill(7) }, 'input'],
  ];
  for (const [body, param] of cases) {
    const response = await post('/v1/embeddings', body);
    const { error } = await response.json();
    assert.equal(response.status, 400, JSON.stringify(body).slice(0, 80));
    assert.equal(error.param, param, JSON.stringify(body).slice(0, 80));
  }
  await assert.rejects(client.embeddings.create({ model: 'any', input: Array(3000).fill(7) }), { code: 'context_length_exceeded' });
});

test('models that cannot say so', async () => {
  const rerank = await post('/v1/rerank', { query: 'who', documents: ['a'] });
  assert.equal(rerank.status, 400);
  assert.match((await rerank.json()).error.message, /no reranker.*no token "yes"/);
  const text = await serve('--builtin');
  const other = new OpenAI({ baseURL: `${text.url}/v1`, apiKey: 'none', maxRetries: 0 });
  await assert.rejects(other.embeddings.create({ model: 'any', input: 'a' }), { status: 400, code: 'unsupported_model' });
  await text.stop();
});

test('a client that hangs up frees the rows of its inputs', async () => {
  const abort = new AbortController();
  const asked = client.embeddings.create({ model: 'any', input: Array(2000).fill(ids(0)) }, { signal: abort.signal });
  setTimeout(() => abort.abort(), 30);
  await assert.rejects(asked, { name: 'Error' });
  for (let i = 0; i < 100; i++) {
    const { batch } = await (await fetch(`${server.url}/stats`)).json();
    if (batch.active_rows + batch.pending_rows === 0) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.fail('rows are still taken');
});

test('rerank: documents by their score, the best first', async () => {
  // The model's tokenizer with the two words that a reranker answers with.
  cpSync(folder, scratch, { recursive: true });
  const tokenizer = readFileSync(join(folder, 'tokenizer.json'), 'utf8')
    .replaceAll('<|reserved_special_token_0|>', 'yes').replaceAll('<|reserved_special_token_1|>', 'no');
  writeFileSync(join(scratch, 'tokenizer.json'), tokenizer);
  const reranker = await serve(scratch, ...exact);
  const rank = async (body) => (await fetch(`${reranker.url}/v1/rerank`, { method: 'POST', body: JSON.stringify(body) })).json();
  const documents = ['hear me speak', { text: 'we are accounted poor citizens' }, 'speak, speak'];
  const query = 'who speaks';
  const all = await rank({ model: 'any', query, documents, return_documents: true });
  assert.match(all.id, /^rerank-/);
  assert.equal(all.results.length, 3);
  assert.deepEqual(all.results.map((r) => r.index).sort(), [0, 1, 2]);
  assert.equal(all.usage.total_tokens, all.usage.prompt_tokens);
  for (const [i, { index, relevance_score: score, document }] of all.results.entries()) {
    assert.ok(score > 0 && score < 1 && (i === 0 || score <= all.results[i - 1].relevance_score));
    assert.equal(document.text, documents[index].text ?? documents[index]);
    const alone = await rank({ query, documents: [documents[index]] });
    assert.deepEqual(alone.results, [{ index: 0, relevance_score: score }], 'alone as among others');
  }
  // Yes and no as the text route weighs them: the score is the probability of yes against no.
  const prompt = `<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Listen\n<Query>: ${query}\n<Document>: \
hear me speak<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n`;
  const completion = async (bias) => {
    const text = new OpenAI({ baseURL: `${reranker.url}/v1`, apiKey: 'none' });
    const tokens = (await (await fetch(`${reranker.url}/tokenize`, { method: 'POST', body: JSON.stringify({ content: prompt, add_special: false }) })).json()).tokens;
    const { choices } = await text.completions.create({ model: 'any', prompt: tokens, max_tokens: 1, temperature: 1, logprobs: 2, logit_bias: bias });
    return choices[0].logprobs.top_logprobs[0];
  };
  const [yes, no] = [499, 500];
  const weighed = await completion({ [yes]: 60, [no]: 60 });
  const told = await rank({ query, documents: ['hear me speak'], instruction: 'Listen' });
  assert.ok(Math.abs(told.results[0].relevance_score - Math.exp(weighed.yes) / (Math.exp(weighed.yes) + Math.exp(weighed.no))) < 1e-5,
    JSON.stringify([told, weighed]));
  assert.equal((await rank({ query, documents, top_n: 2 })).results.length, 2);
  for (const [body, param] of [[{ documents }, 'query'], [{ query: '', documents }, 'query'], [{ query }, 'documents'],
    [{ query, documents: [] }, 'documents'], [{ query, documents: [7] }, 'documents'], [{ query, documents: [{}] }, 'documents'],
    [{ query, documents, top_n: 0 }, 'top_n'], [{ query, documents, return_documents: 1 }, 'return_documents'],
    [{ query, documents, instruction: [] }, 'instruction']])
    assert.equal((await rank(body)).error.param, param, JSON.stringify(body));
  assert.equal((await reranker.stop()).code, 0);
});
