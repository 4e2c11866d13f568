// /v1/responses with the official OpenAI client, and the routes around text.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import OpenAI from 'openai';
import { serve } from './loam.mjs';

let server, client;
before(async () => {
  server = await serve('--builtin');
  client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0 });
});
after(async () => {
  const { code } = await server.stop();
  assert.equal(code, 0, server.stderr);
});

const ask = { model: 'any', max_output_tokens: 16, temperature: 0, input: 'Who goes there?' };

test('a response in one piece', async () => {
  const response = await client.responses.create(ask);
  assert.equal(response.object, 'response');
  assert.equal(response.status, 'incomplete');
  assert.equal(response.incomplete_details.reason, 'max_output_tokens');
  assert.ok(response.output_text.length > 5);
  assert.equal(response.output[0].type, 'message');
  assert.equal(response.output[0].status, 'incomplete');
  assert.equal(response.usage.output_tokens, 16);
  assert.equal(response.usage.total_tokens, response.usage.input_tokens + 16);
  const chat = await client.chat.completions.create({
    model: 'any', max_tokens: 16, temperature: 0, messages: [{ role: 'user', content: 'Who goes there?' }] });
  assert.equal(response.output_text, chat.choices[0].message.content, 'the same chat behind both');
});

test('a stream: numbered events in their order, and the same response', async () => {
  const whole = await client.responses.create(ask);
  const events = [];
  for await (const event of await client.responses.create({ ...ask, stream: true })) events.push(event);
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, i) => i));
  const types = events.map((event) => event.type);
  assert.deepEqual(types.slice(0, 4), ['response.created', 'response.in_progress', 'response.output_item.added',
    'response.content_part.added']);
  assert.deepEqual(types.slice(-4), ['response.output_text.done', 'response.content_part.done',
    'response.output_item.done', 'response.incomplete']);
  assert.ok(types.slice(4, -4).every((type) => type === 'response.output_text.delta'));
  assert.equal(events[0].response.status, 'in_progress');
  assert.deepEqual(events[0].response.output, []);
  const last = events.at(-1).response;
  assert.equal(last.output[0].content[0].text, whole.output_text);
  assert.deepEqual(last.usage, whole.usage);
  const final = await client.responses.stream(ask).finalResponse();
  assert.equal(final.output[0].content[0].text, whole.output_text);
});

test('answers are kept, gone on from, listed and forgotten', async () => {
  const first = await client.responses.create(ask);
  const again = await client.responses.retrieve(first.id);
  assert.deepEqual(again.output, first.output);
  const second = await client.responses.create({ ...ask, input: 'And now?', previous_response_id: first.id });
  assert.equal(second.previous_response_id, first.id);
  const by_hand = await client.responses.create({ ...ask, input: [
    { role: 'user', content: 'Who goes there?' }, ...first.output, { role: 'user', content: 'And now?' }] });
  assert.equal(second.output_text, by_hand.output_text);
  assert.equal(second.usage.input_tokens, by_hand.usage.input_tokens);
  const items = await client.responses.inputItems.list(second.id);
  assert.equal(items.data[0].content[0].text, 'And now?');
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), { status: 404 });
  await assert.rejects(client.responses.create({ ...ask, previous_response_id: first.id }),
    { status: 404, param: 'previous_response_id' });
  const unkept = await client.responses.create({ ...ask, store: false });
  await assert.rejects(client.responses.retrieve(unkept.id), { status: 404 });
});

test('input items have ids, come in pages, and are referred to', async () => {
  const said = await client.responses.create({ ...ask, input: [{ role: 'user', content: 'One.' }, { role: 'assistant', content: 'Two.' },
    { type: 'function_call', call_id: 'c1', name: 'weather', arguments: '{}' },
    { type: 'function_call_output', call_id: 'c1', output: 'sunny' }] });
  const ids = async (query) => {
    const list = [];
    for await (const item of client.responses.inputItems.list(said.id, query)) list.push(item);
    return list;
  };
  const items = await ids({ order: 'asc' });
  assert.deepEqual(items.map((item) => item.type), ['message', 'message', 'function_call', 'function_call_output']);
  assert.equal(new Set(items.map((item) => item.id)).size, 4);
  assert.deepEqual([items[0].content[0].type, items[1].content[0].type], ['input_text', 'output_text']);
  assert.deepEqual(await ids(), items.toReversed(), 'the newest first');
  assert.deepEqual(await ids({ order: 'asc', limit: 1 }), items, 'page by page');
  assert.deepEqual((await client.responses.inputItems.list(said.id, { after: items[2].id })).data, [items[1], items[0]]);
  await assert.rejects(client.responses.inputItems.list(said.id, { limit: 0 }), { status: 400, param: 'limit' });
  const input = [...items.map(({ id }) => ({ type: 'item_reference', id })), { role: 'user', content: 'And?' }];
  const by_hand = await client.responses.create({ ...ask, input: [...items, input.at(-1)] });
  const referred = await client.responses.create({ ...ask, input });
  assert.equal(referred.output_text, by_hand.output_text);
  assert.equal((await client.responses.inputTokens.count({ model: 'any', input })).input_tokens, referred.usage.input_tokens);
  await assert.rejects(client.responses.create({ ...ask, input: [{ type: 'item_reference', id: 'msg_none' }] }),
    { status: 400, param: 'input', message: /'input\[0\]' refers to an item/ });
});

test('what is no background response cannot be cancelled or streamed again', async () => {
  const { id } = await client.responses.create(ask);
  await assert.rejects(client.responses.cancel(id), { status: 400, message: /background/ });
  await assert.rejects(client.responses.cancel('resp_none'), { status: 404 });
  await assert.rejects(client.responses.retrieve(id, { stream: true }), { status: 400, param: 'stream' });
});

test('calls and their outputs are read', async () => {
  const response = await client.responses.create({ ...ask, instructions: 'Be brief.',
    tools: [{ type: 'function', name: 'weather', parameters: { type: 'object', properties: {} }, strict: false },
      { type: 'web_search' }],
    input: [{ role: 'user', content: [{ type: 'input_text', text: 'Rain?' }] },
      { type: 'reasoning', id: 'rs_1', summary: [] },
      { type: 'function_call', call_id: 'c1', name: 'weather', arguments: '{}' },
      { type: 'function_call_output', call_id: 'c1', output: 'sunny' }] });
  assert.equal(response.usage.output_tokens, 16);
});

test('bad requests name their parameter', async () => {
  const cases = [[{ input: [] }, 'input'], [{ input: 3 }, 'input'], [{ input: [{ type: 'image' }] }, 'input'],
    [{ input: [{ role: 'user', content: [{ type: 'input_image', image_url: 'x' }] }] }, 'input'],
    [{ max_output_tokens: 0 }, 'max_output_tokens'], [{ store: 'yes' }, 'store'], [{ tools: [1] }, 'tools'],
    [{ reasoning: { effort: 'huge' } }, 'reasoning_effort'], [{ instructions: 5 }, 'instructions']];
  for (const [more, param] of cases)
    await assert.rejects(client.responses.create({ ...ask, ...more }), { status: 400, param }, JSON.stringify(more));
});

const post = async (path, body) => {
  const response = await fetch(server.url + path, { method: 'POST', body: JSON.stringify(body) });
  return { status: response.status, json: await response.json() };
};

test('tokenize, detokenize and apply-template agree', async () => {
  const text = 'Who goes there?';
  const { json } = await post('/tokenize', { content: text });
  assert.equal(json.count, json.tokens.length);
  assert.equal((await post('/detokenize', { tokens: json.tokens })).json.content, text);
  const pieces = (await post('/tokenize', { content: text, with_pieces: true })).json.tokens;
  assert.equal(pieces.map((piece) => piece.piece).join(''), text);
  const messages = [{ role: 'user', content: text }];
  const applied = (await post('/apply-template', { messages })).json;
  assert.match(applied.prompt, /<\|im_start\|>user\nWho goes there\?<\|im_end\|>\n<\|im_start\|>assistant\n$/);
  assert.equal((await post('/tokenize', { messages })).json.count, applied.count);
  assert.equal((await post('/detokenize', { tokens: 'x' })).status, 400);
  assert.equal((await post('/tokenize', {})).status, 400);
});

test('ready, metrics, openapi', async () => {
  assert.equal((await fetch(`${server.url}/ready`)).status, 200);
  const metrics = await (await fetch(`${server.url}/metrics`)).text();
  assert.match(metrics, /^loam_time_to_first_token_seconds_bucket\{le="\+Inf"\} [1-9]/m);
  assert.match(metrics, /^loam_generation_tokens_total [1-9]/m);
  for (const line of metrics.trimEnd().split('\n'))
    assert.match(line, /^(# (HELP|TYPE) loam_\w+ .+|loam_\w+(\{[^}]*\})? -?[0-9.e+-]+)$/, line);
  const api = await (await fetch(`${server.url}/openapi.json`)).json();
  const { routes } = await (await fetch(`${server.url}/v1`)).json();
  for (const { method, path } of routes) {
    const at = Object.keys(api.paths).filter((name) => name.replace(/\{\w+\}.*$/, '*') === path);
    assert.ok(at.some((name) => api.paths[name][method.toLowerCase()]), `${method} ${path} is described`);
  }
});

test('fit: the plan that is served, and the speed of the answers so far', async () => {
  const fit = async () => (await fetch(`${server.url}/fit`)).json();
  const { admission } = await (await fetch(`${server.url}/stats`)).json();
  await client.responses.create({ model: 'any', input: 'Who?', max_output_tokens: 8 });
  const got = await fit();
  assert.equal(got.model, 'loam-shakespeare');
  assert.equal(got.fits, true);
  assert.equal(got.weights_bytes, admission.weights_bytes);
  assert.equal(got.kv_bytes, admission.kv_bytes);
  assert.equal(got.transient_bytes, admission.workspace_bytes);
  assert.equal(got.total_bytes, got.weights_bytes + got.kv_bytes + got.state_bytes + got.transient_bytes);
  assert.equal(got.context_length, admission.max_context);
  assert.ok(got.max_safe_context >= got.context_length && got.total_bytes <= got.usable_bytes);
  assert.ok(got.measured_decode_tps > 0 && got.machine.length > 2);
});
