// Tool calls and reasoning through the official clients: the model is scripted (scripted_serve.c).
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { start } from './loam.mjs';

let server, openai, anthropic;
before(async () => {
  server = await start(process.env.LOAM_SCRIPTED, []);
  openai = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0 });
  anthropic = new Anthropic({ baseURL: server.url, apiKey: 'none', maxRetries: 0 });
});
after(async () => {
  const { code } = await server.stop();
  assert.equal(code, 0, server.stderr);
});

const say = (text) => `<<<${text}>>>`;
const call = (name, args) => `<tool_call>\n${JSON.stringify({ name, arguments: args })}\n</tool_call>`;
const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const tools = [{ type: 'function', function: { name: 'weather', description: 'of a city', parameters } }];
const script = say(`<think>\nHm.\n</think>\n\nI look.\n${call('weather', { city: 'Zürich "Nord"' })}\n${call('weather', { city: 'Bern' })}`);

const ask = { model: 'x', tools, messages: [{ role: 'user', content: script }] };

test('chat: reasoning, text and two calls, whole and streamed', async () => {
  const { choices: [choice], usage } = await openai.chat.completions.create(ask);
  assert.equal(choice.finish_reason, 'tool_calls');
  assert.equal(choice.message.content, 'I look.');
  assert.equal(choice.message.reasoning_content, 'Hm.');
  assert.deepEqual(choice.message.tool_calls.map((c) => [c.type, c.function.name, JSON.parse(c.function.arguments)]),
    [['function', 'weather', { city: 'Zürich "Nord"' }], ['function', 'weather', { city: 'Bern' }]]);
  assert.ok(usage.completion_tokens_details.reasoning_tokens > 0);
  const runner = openai.chat.completions.stream(ask);
  let n_fragments = 0, reasoning = '';
  runner.on('chunk', (chunk) => {
    n_fragments += chunk.choices[0]?.delta.tool_calls?.filter((c) => c.function.arguments).length ?? 0;
    reasoning += chunk.choices[0]?.delta.reasoning_content ?? '';
  });
  const final = await runner.finalChatCompletion();
  assert.ok(n_fragments > 2, 'arguments come in pieces');
  assert.equal(reasoning, 'Hm.');
  assert.equal(final.choices[0].finish_reason, 'tool_calls');
  const strip = (calls) => calls.map((c) => [c.function.name, c.function.arguments]);
  assert.deepEqual(strip(final.choices[0].message.tool_calls), strip(choice.message.tool_calls));
});

test('chat: the tool runner makes a round trip', async () => {
  const runner = openai.chat.completions.runTools({
    model: 'x', messages: [{ role: 'user', content: say(call('weather', { city: 'Bern' })) }],
    tools: [{ type: 'function', function: { name: 'weather', parse: JSON.parse, parameters,
      function: ({ city }) => say(`It rains in ${city}.`) } }] });
  assert.equal(await runner.finalContent(), 'It rains in Bern.');
});

test('chat: tool_choice none, and markup without tools, is text', async () => {
  const text = call('weather', { city: 'Bern' });
  const messages = [{ role: 'user', content: say(text) }];
  const none = await openai.chat.completions.create({ model: 'x', messages, tools, tool_choice: 'none' });
  assert.equal(none.choices[0].message.content, text);
  assert.equal(none.choices[0].message.tool_calls, undefined);
  const without = await openai.chat.completions.create({ model: 'x', messages });
  assert.equal(without.choices[0].message.content, text);
});

// The scripted model is refused where its script breaks the grammar that the request asks for.
const two_tools = [...tools, { type: 'function', function: { name: 'clock', parameters: { type: 'object',
  properties: { zone: { enum: ['utc', 'local'] } }, required: ['zone'], additionalProperties: false } } }];
const create = (text, rest) => openai.chat.completions.create({ model: 'x', tools: two_tools,
  messages: [{ role: 'user', content: say(text) }], ...rest });
const names = ({ choices: [{ message }] }) => message.tool_calls.map((c) => c.function.name);
const refused = (text, rest) => assert.rejects(create(text, rest), /the grammar/, text);

test('chat: tool_choice required, named and allowed_tools force the family\'s call', async () => {
  const weather = call('weather', { city: 'Bern' }).replaceAll(':"', ': "').replaceAll(',"', ', "').replace('ts":', 'ts": ');
  const clock = '<tool_call>\n{"name": "clock", "arguments": {"zone": "utc"}}\n</tool_call>';
  const required = { tool_choice: 'required' };
  assert.deepEqual(names(await create(weather, required)), ['weather']);
  assert.deepEqual(names(await create(`${weather}\n${clock}`, required)), ['weather', 'clock']);
  await refused('It rains.', required);
  await refused(`Well. ${weather}`, required);
  await refused(weather.replace('weather', 'whether'), required);
  await refused(weather.replace('"Bern"', '7'), required);
  await refused(clock.replace('utc', 'mars'), required);
  await refused(`${weather}\n${clock}`, { ...required, parallel_tool_calls: false });
  const named = { tool_choice: { type: 'function', function: { name: 'clock' } } };
  assert.deepEqual(names(await create(clock, named)), ['clock']);
  await refused(weather, named);
  const allowed = (mode) => ({ tool_choice: { type: 'allowed_tools', allowed_tools: { mode, tools: [{ type: 'function', function: { name: 'clock' } }] } } });
  assert.deepEqual(names(await create(clock, allowed('required'))), ['clock']);
  await refused(weather, allowed('required'));
  await refused(weather, allowed('auto'));
  assert.equal((await create('It rains.', allowed('auto'))).choices[0].message.content, 'It rains.');
  await assert.rejects(create('', { tool_choice: 'required', tools: [] }), { status: 400, param: 'tool_choice' });
  await assert.rejects(create('', { tool_choice: { type: 'function', function: { name: 'no' } } }), { status: 400, param: 'tool_choice' });
  await assert.rejects(create('', { ...required, response_format: { type: 'json_object' } }), { status: 400, param: 'tool_choice' });
  await assert.rejects(create('', { ...required, tools: [{ type: 'function', function: { name: 'f', parameters: { type: 'object', properties: { a: { type: 'no' } } } } }] }),
    ({ status, message }) => status === 400 && message.includes('tools[0].function.parameters') && message.includes('#/properties/a'));
});

test('chat: parallel_tool_calls false and strict tools constrain calls, not text', async () => {
  const bad = '<tool_call>\n{"name": "clock", "arguments": {"zone": "mars"}}\n</tool_call>';
  const good = bad.replace('mars', 'utc');
  assert.deepEqual(names(await create(`Hm.\n${bad}\n${bad}`, {})), ['clock', 'clock']);
  assert.deepEqual(names(await create(`Hm.\n${bad}`, { parallel_tool_calls: false })), ['clock']);
  await refused(`${bad}\n${bad}`, { parallel_tool_calls: false });
  const strict = two_tools.map(({ type, function: f }) => ({ type, function: { ...f, strict: true } }));
  await refused(`Hm.\n${bad}`, { tools: strict });
  const { choices: [choice] } = await create(`Hm: <tool.\n${good}`, { tools: strict });
  assert.equal(choice.message.content, 'Hm: <tool.');
  assert.equal(choice.message.tool_calls[0].function.arguments, '{"zone":"utc"}');
  const unique = { type: 'object', properties: { a: { type: 'array', contentEncoding: 'x', uniqueItems: true } } };
  await assert.rejects(create('', { tools: [{ type: 'function', function: { name: 'f', strict: true, parameters: unique } }] }),
    ({ status, message }) => status === 400 && message.includes('"f"') && message.includes('uniqueItems') && message.includes('#/properties/a'));
});

test('chat: a grammar begins behind the reasoning, and marks inside its strings are text', async () => {
  const response_format = { type: 'json_schema', json_schema: { name: 'p', schema: { type: 'object', properties: { a: { type: 'string' } }, required: ['a'] } } };
  const { choices: [{ message }] } = await create('{"a": "<think>x</think> <tool_call>\\n{}"}', { response_format });
  assert.equal(JSON.parse(message.content).a, '<think>x</think> <tool_call>\n{}');
  assert.equal(message.tool_calls, undefined);
  assert.deepEqual(names(await create('<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>', { response_format })), ['weather']);
  await refused('It rains.', { response_format });
});

const anthropic_ask = { model: 'x', max_tokens: 4000, tools: [{ name: 'weather', input_schema: parameters }],
  messages: [{ role: 'user', content: script }] };

test('messages: thinking, text and tool_use blocks, whole and streamed', async () => {
  const message = await anthropic.messages.create(anthropic_ask);
  assert.equal(message.stop_reason, 'tool_use');
  assert.deepEqual(message.content.map((block) => block.type), ['thinking', 'text', 'tool_use', 'tool_use']);
  assert.equal(message.content[0].thinking, 'Hm.');
  assert.deepEqual(message.content[2].input, { city: 'Zürich "Nord"' });
  const stream = anthropic.messages.stream(anthropic_ask);
  const indexes = [];
  stream.on('streamEvent', (event) => { if (event.type === 'content_block_start') indexes.push(event.index); });
  const streamed = await stream.finalMessage();
  assert.deepEqual(indexes, [0, 1, 2, 3]);
  const strip = (blocks) => blocks.map(({ id, ...block }) => block);
  assert.deepEqual(strip(streamed.content), strip(message.content));
});

test('messages: a tool result goes back', async () => {
  const first = await anthropic.messages.create(anthropic_ask);
  const use = first.content.at(-1);
  const second = await anthropic.messages.create({ ...anthropic_ask, messages: [...anthropic_ask.messages,
    { role: 'assistant', content: first.content },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id, content: say('Wet.') }] }] });
  assert.equal(second.content[0].text, 'Wet.');
  assert.equal(second.stop_reason, 'end_turn');
});

test('responses: reasoning, message and function_call items, whole and streamed', async () => {
  const request = { model: 'x', input: script, tools: [{ type: 'function', name: 'weather', parameters, strict: false }] };
  const response = await openai.responses.create(request);
  assert.deepEqual(response.output.map((item) => item.type), ['reasoning', 'message', 'function_call', 'function_call']);
  assert.equal(response.output[0].content[0].text, 'Hm.');
  assert.deepEqual(JSON.parse(response.output[2].arguments), { city: 'Zürich "Nord"' });
  const streamed = await openai.responses.stream(request).finalResponse();
  assert.deepEqual(streamed.output.map((item) => item.arguments), response.output.map((item) => item.arguments));
  const next = await openai.responses.create({ ...request, previous_response_id: response.id,
    input: [{ type: 'function_call_output', call_id: response.output[3].call_id, output: say('Wet.') }] });
  assert.equal(next.output_text, 'Wet.');
});

test('messages and responses: forced calls', async () => {
  const text = (city) => `<tool_call>\n{"name": "weather", "arguments": {"city": ${city}}}\n</tool_call>`;
  const message = (script, rest) => anthropic.messages.create({ model: 'x', max_tokens: 4000, tools: [{ name: 'weather', input_schema: parameters }],
    messages: [{ role: 'user', content: say(script) }], ...rest });
  for (const tool_choice of [{ type: 'any' }, { type: 'tool', name: 'weather' }]) {
    const forced = await message(text('"Bern"'), { tool_choice });
    assert.deepEqual([forced.stop_reason, forced.content[0].input], ['tool_use', { city: 'Bern' }]);
    await assert.rejects(message('It rains.', { tool_choice }), /the grammar refuses/);
    await assert.rejects(message(text('7'), { tool_choice }), /the grammar refuses/);
  }
  const twice = `${text('"Bern"')}\n${text('"Chur"')}`;
  assert.equal((await message(twice, { tool_choice: { type: 'any' } })).content.length, 2);
  await assert.rejects(message(twice, { tool_choice: { type: 'any', disable_parallel_tool_use: true } }), /the grammar refuses/);
  await assert.rejects(message(text('7'), { tools: [{ name: 'weather', input_schema: parameters, strict: true }] }), /the grammar refuses/);
  assert.equal((await message('Dry.', { tool_choice: { type: 'none' } })).content[0].text, 'Dry.');
  const respond = (script, rest) => openai.responses.create({ model: 'x', input: say(script), tools: [{ type: 'function', name: 'weather', parameters }], ...rest });
  for (const tool_choice of ['required', { type: 'function', name: 'weather' },
    { type: 'allowed_tools', mode: 'required', tools: [{ type: 'function', name: 'weather' }] }]) {
    const forced = await respond(text('"Bern"'), { tool_choice });
    assert.deepEqual(forced.output.map((item) => [item.type, item.arguments]), [['function_call', '{"city":"Bern"}']]);
    await assert.rejects(respond('It rains.', { tool_choice }), /the grammar refuses/);
  }
  await assert.rejects(respond(twice, { tool_choice: 'required', parallel_tool_calls: false }), /the grammar refuses/);
});

test('a cut answer says so', async () => {
  const cut = await openai.chat.completions.create({ model: 'x', max_tokens: 3, messages: [{ role: 'user', content: say('a long answer') }] });
  assert.equal(cut.choices[0].finish_reason, 'length');
});
