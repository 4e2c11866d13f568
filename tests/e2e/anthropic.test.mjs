// The official Anthropic client against the built-in model.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { serve } from './loam.mjs';

let server, client;
before(async () => {
  server = await serve('--builtin');
  client = new Anthropic({ baseURL: server.url, apiKey: 'none', maxRetries: 0 });
});
after(async () => {
  const { code } = await server.stop();
  assert.equal(code, 0, server.stderr);
});

const ask = { model: 'any', max_tokens: 24, temperature: 0, messages: [{ role: 'user', content: 'Who goes there?' }] };

test('a message in one piece', async () => {
  const message = await client.messages.create(ask);
  assert.equal(message.type, 'message');
  assert.equal(message.role, 'assistant');
  assert.equal(message.content.length, 1);
  assert.equal(message.content[0].type, 'text');
  assert.ok(message.content[0].text.length > 10);
  assert.equal(message.stop_reason, 'max_tokens');
  assert.equal(message.stop_sequence, null);
  assert.equal(message.usage.output_tokens, 24);
  const count = await client.messages.countTokens({ model: 'any', messages: ask.messages });
  assert.equal(message.usage.input_tokens + message.usage.cache_read_input_tokens, count.input_tokens);
});

test('a stream: the events in their order, and the same message', async () => {
  const whole = await client.messages.create(ask);
  const events = [];
  for await (const event of await client.messages.create({ ...ask, stream: true })) events.push(event);
  const types = events.map((event) => event.type).filter((type) => type !== 'ping');
  assert.equal(types[0], 'message_start');
  assert.equal(types[1], 'content_block_start');
  assert.deepEqual(types.slice(-3), ['content_block_stop', 'message_delta', 'message_stop']);
  assert.ok(types.slice(2, -3).every((type) => type === 'content_block_delta'));
  const start = events[0].message;
  assert.deepEqual(start.content, []);
  assert.equal(start.stop_reason, null);
  const n_prompt = ({ usage }) => usage.input_tokens + usage.cache_read_input_tokens;
  assert.equal(n_prompt(start), n_prompt(whole));
  const text = events.filter((event) => event.type === 'content_block_delta').map((event) => event.delta.text).join('');
  assert.equal(text, whole.content[0].text);
  const delta = events.at(-2);
  assert.equal(delta.delta.stop_reason, 'max_tokens');
  assert.equal(delta.usage.output_tokens, 24);
  const final = await client.messages.stream(ask).finalMessage();
  assert.deepEqual(final.content, whole.content);
  assert.equal(n_prompt(final), n_prompt(whole));
  assert.ok(final.usage.cache_read_input_tokens > 0, 'the third time, the prompt comes from the cache');
});

test('stop sequences are named', async () => {
  const free = (await client.messages.create({ ...ask, max_tokens: 64 })).content[0].text;
  const stop = free.slice(12, 17);
  const message = await client.messages.create({ ...ask, max_tokens: 64, stop_sequences: ['zzzz', stop] });
  assert.equal(message.stop_reason, 'stop_sequence');
  assert.equal(message.stop_sequence, stop);
  assert.equal(message.content[0].text, free.slice(0, free.indexOf(stop)));
});

test('system, blocks, tools, results and thinking are read', async () => {
  const tools = [{ name: 'weather', description: 'of a city', input_schema: { type: 'object', properties: { city: { type: 'string' } } } }];
  const messages = [
    { role: 'user', content: [{ type: 'text', text: 'Rain?' }] },
    { role: 'assistant', content: [
      { type: 'thinking', thinking: 'hm', signature: 'x' },
      { type: 'tool_use', id: 'toolu_1', name: 'weather', input: { city: 'Bern' } }] },
    { role: 'user', content: [
      { type: 'tool_result', tool_use_id: 'toolu_1', content: [{ type: 'text', text: 'sunny' }] },
      { type: 'text', text: 'And now?' }] },
  ];
  const system = [{ type: 'text', text: 'Be brief.', cache_control: { type: 'ephemeral' } }];
  const message = await client.messages.create({ ...ask, system, tools, messages });
  assert.equal(message.usage.output_tokens, 24);
  const with_tools = await client.messages.countTokens({ model: 'any', system, tools, messages });
  const without = await client.messages.countTokens({ model: 'any', system, messages });
  assert.ok(with_tools.input_tokens > without.input_tokens, 'the tools are described');
  await client.messages.create({ ...ask, messages: [...ask.messages, { role: 'assistant', content: 'It is' }] });
});

test('errors have Anthropic\'s shape', async () => {
  const cases = [
    [{ messages: [] }, /messages/], [{ messages: [{ role: 'robot', content: 'x' }] }, /role/],
    [{ temperature: 'hot' }, /temperature/], [{ max_tokens: 0 }, /max_tokens/], [{ tools: 'x' }, /tools/],
    [{ messages: [{ role: 'user', content: [{ type: 'image', source: {} }] }] }, /image/],
    [{ stop_sequences: [1] }, /stop_sequences/], [{ thinking: { type: 'maybe' } }, /thinking/],
    [{ system: 3 }, /system/], [{ tool_choice: { type: 'tool', name: 'nothing' } }, /tool_choice/],
  ];
  for (const [more, about] of cases)
    await assert.rejects(client.messages.create({ ...ask, ...more }), (error) => {
      assert.equal(error.status, 400, JSON.stringify(more));
      assert.equal(error.error.type, 'error');
      assert.equal(error.error.error.type, 'invalid_request_error');
      assert.match(error.error.error.message, about);
      return true;
    });
  await assert.rejects(client.messages.create({ ...ask, messages: [{ role: 'user', content: 'word '.repeat(4000) }] }),
    { status: 400 });
});

test('requests have an id, in answers and in errors', async () => {
  const message = await client.messages.create(ask);
  assert.match(message._request_id, /^req_\w+$/);
  await assert.rejects(client.messages.create({ ...ask, messages: [] }), (error) => {
    assert.match(error.requestID, /^req_\w+$/);
    return error.error.request_id === error.requestID;
  });
});

test('models, as this API describes them', async () => {
  const models = [];
  for await (const model of client.models.list()) models.push(model);
  assert.equal(models.length, 1);
  assert.deepEqual(await client.models.retrieve(models[0].id), models[0]);
  const { type, display_name, created_at, max_input_tokens, capabilities } = models[0];
  assert.deepEqual([type, display_name, max_input_tokens], ['model', 'loam-shakespeare', 2048]);
  assert.ok(Math.abs(Date.parse(created_at) - Date.now()) < 600000, created_at);
  assert.deepEqual([capabilities.structured_outputs.supported, capabilities.image_input.supported, capabilities.thinking.supported],
    [true, false, true]);
  await assert.rejects(client.models.retrieve('none'), ({ status, error }) => status === 404 && error.error.type === 'not_found_error');
});

test('an aborted stream frees its row', async () => {
  const live = async () => (await (await fetch(`${server.url}/stats`)).json()).batch.active_rows;
  const stream = client.messages.stream({ ...ask, max_tokens: 1500, ignore_eos: true });
  stream.on('text', () => stream.abort());
  await assert.rejects(stream.finalMessage());
  for (let i = 0; i < 200 && (await live()) > 0; i++) await new Promise((resolve) => setTimeout(resolve, 10));
  assert.equal(await live(), 0);
});
