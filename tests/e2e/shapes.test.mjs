// Every surface's answers, field by field: what comes over the wire is written down as TypeScript and compiled against
// the types of the official clients. A missing field, a wrong type and a field that the type does not have are errors;
// what loam adds on purpose is named in EXTENSIONS.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { serve, start } from './loam.mjs';

let real, scripted, embedding;
before(async () => {
  [real, scripted, embedding] = await Promise.all([serve('--builtin'), start(process.env.LOAM_SCRIPTED, []),
    serve(join(process.env.LOAM_SOURCE_DIR, 'tests/models/qwen3-embedding'))]);
});
after(async () => {
  for (const server of [real, scripted, embedding]) {
    const { code } = await server.stop();
    assert.equal(code, 0, server.stderr);
  }
});

// Chat completions: DeepSeek's field for reasoning. Models: both APIs' fields in one object, and what the model can.
const EXTENSIONS = {
  'OpenAI.Chat.ChatCompletion': ['reasoning_content'],
  'OpenAI.Chat.ChatCompletionChunk': ['reasoning_content'],
  'OpenAI.Model': ['type', 'display_name', 'created_at', 'capabilities', 'lifecycle', 'line', 'deprecated_at', 'retires_at',
    'max_input_tokens', 'max_tokens', 'context_window', 'reasoning', 'tools', 'structured_output', 'vision', 'audio',
    'embeddings', 'gen_defaults'],
  'Anthropic.ModelInfo': ['object', 'created', 'owned_by', 'context_window', 'reasoning', 'tools', 'structured_output', 'vision',
    'audio', 'embeddings', 'gen_defaults'],
};

const seen = []; // [type, value, where]
function see(type, value, where) {
  const strip = (v) => Array.isArray(v) ? v.map(strip) : v && typeof v === 'object'
    ? Object.fromEntries(Object.entries(v).filter(([key]) => !EXTENSIONS[type]?.includes(key)).map(([k, x]) => [k, strip(x)])) : v;
  seen.push([type, strip(value), where]);
  return value;
}

async function send(server, path, body, headers = {}) {
  const response = await fetch(server.url + path, body === undefined ? { headers }
    : { method: 'POST', body: JSON.stringify(body), headers });
  return { status: response.status, text: await response.text() };
}
async function one(type, server, path, body, headers) {
  const { status, text } = await send(server, path, body, headers);
  assert.equal(status, 200, text);
  return see(type, JSON.parse(text), path);
}
async function events(type, server, path, body, fix = (event) => event) {
  const { status, text } = await send(server, path, { ...body, stream: true });
  assert.equal(status, 200, text);
  let n = 0;
  for (const block of text.split('\n\n')) {
    const [, name] = /^event: (.*)$/m.exec(block) ?? [], [, data] = /^data: (.*)$/m.exec(block) ?? [];
    if (!data || data === '[DONE]') continue;
    const event = JSON.parse(data);
    if (name) assert.equal(name, event.type);
    if (event.type === 'ping') continue; // the client drops them and has no type for them
    see(type, fix(event), path);
    n++;
  }
  assert.ok(n > 2, text);
}

const say = (text) => `<<<${text}>>>`;
const call = (city) => `<tool_call>\n${JSON.stringify({ name: 'weather', arguments: { city } })}\n</tool_call>`;
const script = say(`<think>\nHm.\n</think>\n\nI look.\n${call('Bern')}\n${call('Uri')}`);
const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false };
const user = [{ role: 'user', content: 'Who goes there?' }], asked = [{ role: 'user', content: script }];

test('chat completions and completions', async () => {
  const type = 'OpenAI.Chat.ChatCompletion', path = '/v1/chat/completions';
  const tools = [{ type: 'function', function: { name: 'weather', parameters } }];
  const plain = { messages: user, max_tokens: 4, n: 2, logprobs: true, top_logprobs: 2, stream_options: { include_usage: true } };
  await one(type, real, path, { ...plain, stream_options: undefined });
  await events(type + 'Chunk', real, path, plain);
  await one(type, scripted, path, { messages: asked, tools });
  await events(type + 'Chunk', scripted, path, { messages: asked, tools });
  const prompt = { prompt: 'ROMEO:', max_tokens: 3, logprobs: 2, echo: true, n: 2 };
  await one('OpenAI.Completion', real, '/v1/completions', prompt);
});

test('embeddings and models', async () => {
  await one('OpenAI.CreateEmbeddingResponse', embedding, '/v1/embeddings', { input: ['a', 'b'] });
  for (const server of [real, embedding]) {
    const list = JSON.parse((await send(server, '/v1/models')).text);
    for (const type of ['OpenAI.Model', 'Anthropic.ModelInfo']) {
      see(type, list.data[0], '/v1/models');
      await one(type, server, `/v1/models/${list.data[0].id}`);
    }
    assert.deepEqual({ ...list, data: 0 }, { object: 'list', data: 0, has_more: false, first_id: list.data[0].id, last_id: list.data[0].id });
  }
});

test('responses', async () => {
  const type = 'OpenAI.Responses.Response', path = '/v1/responses';
  // output_text is the client's own; store is what OpenAI sends and the type does not have; name is for older clients.
  const with_text = ({ store, ...response }) => ({ ...response, output_text: '' });
  const fix = (event) => {
    if (event.response) return { ...event, response: with_text(event.response) };
    const { name, ...rest } = event;
    return event.type === 'response.function_call_arguments.done' ? rest : event;
  };
  const tools = [{ type: 'function', name: 'weather', parameters, strict: false }];
  const requests = [[real, { input: 'Who?', max_output_tokens: 4, include: ['message.output_text.logprobs'], top_logprobs: 1 }],
    [scripted, { input: script, tools, instructions: 'Be brief.', reasoning: { effort: 'low' }, metadata: { a: 'b' } }]];
  for (const [server, body] of requests) {
    const { status, text } = await send(server, path, body);
    assert.equal(status, 200, text);
    const response = see(type, with_text(JSON.parse(text)), path);
    see(type, with_text(JSON.parse((await send(server, `${path}/${response.id}`)).text)), path);
    const next = JSON.parse((await send(server, path, { ...body, previous_response_id: response.id,
      input: [...response.output, { role: 'user', content: 'And now?' }] })).text);
    await one('Items', server, `${path}/${next.id}/input_items`);
    await events('OpenAI.Responses.ResponseStreamEvent', server, path, body, fix);
    await one('OpenAI.Responses.InputTokenCountResponse', server, `${path}/input_tokens`, { input: body.input, tools: body.tools });
  }
});

test('messages', async () => {
  const tools = [{ name: 'weather', input_schema: parameters }];
  for (const [server, body] of [[real, { max_tokens: 4, messages: user }], [scripted, { max_tokens: 200, messages: asked, tools }]]) {
    await one('Anthropic.Message', server, '/v1/messages', body);
    await events('Anthropic.RawMessageStreamEvent', server, '/v1/messages', body);
    await one('Anthropic.MessageTokensCount', server, '/v1/messages/count_tokens', body);
  }
});

test('errors', async () => {
  const refused = async (path, body, headers) => JSON.parse((await send(real, path, body, headers)).text);
  for (const [path, body] of [['/v1/chat/completions', { messages: 3 }], ['/v1/nothing', {}], ['/v1/responses/none'], ['/v1/completions']])
    see('OpenAI.ErrorObject', (await refused(path, body)).error, path);
  for (const [path, body] of [['/v1/messages', { messages: 3 }], ['/v1/messages'], ['/v1/messages/count_tokens', {}], ['/v1/models/none']])
    see('Anthropic.ErrorResponse', await refused(path, body, { 'anthropic-version': '2023-06-01' }), path);
});

test('all of it compiles', () => {
  const lines = ["import type OpenAI from 'openai';", "import type Anthropic from '@anthropic-ai/sdk';",
    "type Items = { object: 'list', data: OpenAI.Responses.ResponseItem[], first_id: string, last_id: string, has_more: boolean };"];
  const at = [null, null, null];
  const kinds = new Set();
  for (const [type, value, where] of seen) {
    const line = `: ${type} = ${JSON.stringify(value)};`;
    if (kinds.has(line)) continue;
    kinds.add(line);
    lines.push(`export const v${lines.length}${line}`);
    at.push(where);
  }
  assert.ok(lines.length > 100, `${lines.length} lines`);
  writeFileSync('shapes.mts', lines.join('\n'));
  const tsc = spawnSync(process.execPath, ['node_modules/typescript/bin/tsc', '--noEmit', '--strict', '--skipLibCheck',
    '--module', 'nodenext', '--target', 'es2022', '--types', '', 'shapes.mts'], { encoding: 'utf8' });
  const found = tsc.stdout.split('\n').filter(Boolean)
    .map((line) => line.replace(/^shapes\.mts\((\d+),.*?\)/, (_, n) => `${at[n - 1]} ${lines[n - 1].slice(0, 300)}\n  `));
  assert.equal(found.join('\n') + tsc.stderr, '', 'tsc');
});
