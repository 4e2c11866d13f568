// The official OpenAI client against the built-in model.
import assert from 'node:assert/strict';
import net from 'node:net';
import { after, before, test } from 'node:test';
import OpenAI from 'openai';
import { run, serve, sleep } from './loam.mjs';

let server, client;
before(async () => {
  server = await serve('--builtin');
  client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'none', maxRetries: 0 });
});
after(async () => {
  const { code } = await server.stop();
  assert.equal(code, 0, server.stderr);
});

const chat = (more) => client.chat.completions.create({
  model: 'any', seed: 7, max_tokens: 24,
  messages: [{ role: 'user', content: 'Who goes there?' }], ...more,
});

async function collect(stream) {
  const got = { text: '', finish: null, usage: null, roles: [] };
  for await (const chunk of stream) {
    if (chunk.usage) got.usage = chunk.usage;
    const choice = chunk.choices[0];
    if (!choice) continue;
    got.text += choice.delta?.content ?? choice.text ?? '';
    if (choice.delta?.role) got.roles.push(choice.delta.role);
    if (choice.finish_reason) got.finish = choice.finish_reason;
  }
  return got;
}

test('chat answers in one piece, with usage', async () => {
  const answer = await chat();
  assert.equal(answer.object, 'chat.completion');
  assert.equal(answer.choices[0].message.role, 'assistant');
  assert.equal(answer.choices[0].finish_reason, 'length');
  assert.equal(answer.usage.completion_tokens, 24);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 24);
  assert.ok(answer.choices[0].message.content.length > 10);
});

test('a stream gives the same text as the answer in one piece', async () => {
  const whole = await chat();
  const got = await collect(await chat({ stream: true, stream_options: { include_usage: true } }));
  assert.equal(got.text, whole.choices[0].message.content);
  assert.deepEqual(got.usage, whole.usage);
  assert.deepEqual(got.roles, ['assistant']);
  assert.equal(got.finish, 'length');
});

test('usage is only streamed when asked for', async () => {
  const got = await collect(await chat({ stream: true }));
  assert.equal(got.usage, null);
});

test('completions: text, token ids, stream, echo', async () => {
  const ask = { model: 'any', prompt: 'ROMEO:', max_tokens: 16, temperature: 0 };
  const whole = await client.completions.create(ask);
  assert.equal(whole.object, 'text_completion');
  const stream = await collect(await client.completions.create({ ...ask, stream: true }));
  assert.equal(stream.text, whole.choices[0].text);
  const command = run('generate', '--builtin', 'ROMEO:', '--max-tokens', '16', '--temp', '0', '--json');
  assert.equal(JSON.parse(command.stdout).text, whole.choices[0].text);
  const echoed = await client.completions.create({ ...ask, echo: true });
  assert.equal(echoed.choices[0].text, 'ROMEO:' + whole.choices[0].text);
  const { ids } = JSON.parse(run('tokenize', '--builtin', '--text', 'ROMEO:').stdout || '{"ids":[857,25]}');
  const by_ids = await client.completions.create({ ...ask, prompt: ids });
  assert.equal(by_ids.choices[0].text, whole.choices[0].text);
});

test('the same seed gives the same text, whatever runs beside it', async () => {
  const alone = (await chat({ temperature: 1.2 })).choices[0].message.content;
  const together = await Promise.all([
    chat({ temperature: 1.2 }), chat({ seed: 8, max_tokens: 60 }), chat({ temperature: 1.2 }),
    chat({ seed: 9, messages: [{ role: 'user', content: 'x '.repeat(600) }] }),
  ]);
  assert.equal(together[0].choices[0].message.content, alone);
  assert.equal(together[2].choices[0].message.content, alone);
  assert.notEqual(together[1].choices[0].message.content, alone);
});

test('logprobs: every token, in one piece as in a stream', async () => {
  const ask = { logprobs: true, top_logprobs: 3, temperature: 0, max_tokens: 12 };
  const whole = await chat(ask);
  const items = whole.choices[0].logprobs.content;
  assert.equal(items.length, whole.usage.completion_tokens);
  assert.equal(items.map((item) => item.token).join(''), whole.choices[0].message.content);
  for (const item of items) {
    assert.ok(item.logprob <= 0);
    assert.deepEqual(Buffer.from(item.bytes).toString(), item.token);
    assert.equal(item.top_logprobs.length, 3);
    assert.equal(item.top_logprobs[0].token, item.token, 'greedy takes the best');
    assert.ok(item.top_logprobs[0].logprob >= item.top_logprobs[1].logprob);
  }
  const streamed = [];
  for await (const chunk of await chat({ ...ask, stream: true }))
    streamed.push(...(chunk.choices[0].logprobs?.content ?? []));
  assert.deepEqual(streamed, items);
  assert.equal((await chat({ max_tokens: 2 })).choices[0].logprobs, null);
});

test('n choices: the first is what n = 1 gives, the others differ, the prompt counts once', async () => {
  const ask = { temperature: 1.2, max_tokens: 16 };
  const one = await chat(ask), three = await chat({ ...ask, n: 3 });
  assert.deepEqual(three.choices.map((choice) => choice.index), [0, 1, 2]);
  assert.equal(three.choices[0].message.content, one.choices[0].message.content);
  assert.notEqual(three.choices[1].message.content, one.choices[0].message.content);
  assert.equal(three.usage.prompt_tokens, one.usage.prompt_tokens);
  assert.equal(three.usage.completion_tokens, 48);
  const texts = ['', '', ''], finishes = [];
  for await (const chunk of await chat({ ...ask, n: 3, stream: true })) {
    const choice = chunk.choices[0];
    texts[choice.index] += choice.delta.content ?? '';
    if (choice.finish_reason) finishes.push(choice.index);
  }
  assert.deepEqual(texts, three.choices.map((choice) => choice.message.content));
  assert.deepEqual(finishes.sort(), [0, 1, 2]);
});

test('completions: arrays of prompts, n, logprobs, echo of ids, suffix refused', async () => {
  const ask = { model: 'any', max_tokens: 8, temperature: 0 };
  const single = async (prompt) => (await client.completions.create({ ...ask, prompt })).choices[0].text;
  const two = await client.completions.create({ ...ask, prompt: ['ROMEO:', 'JULIET:'], n: 2, echo: true });
  assert.deepEqual(two.choices.map((choice) => choice.index), [0, 1, 2, 3]);
  assert.equal(two.choices[0].text, 'ROMEO:' + await single('ROMEO:'));
  assert.equal(two.choices[1].text, two.choices[0].text, 'greedy: n gives the same');
  assert.equal(two.choices[2].text, 'JULIET:' + await single('JULIET:'));
  const ids = await client.completions.create({ ...ask, prompt: [[857, 25], [857, 25, 857]] });
  assert.equal(ids.choices.length, 2);
  const many = await client.completions.create({ ...ask, max_tokens: 2, prompt: Array(100).fill('ROMEO:') });
  assert.equal(many.choices.length, 100);
  assert.ok(many.choices.every((choice) => choice.text === many.choices[0].text));
  const logprobs = (await client.completions.create({ ...ask, prompt: 'ROMEO:', logprobs: 2 })).choices[0];
  assert.equal(logprobs.logprobs.tokens.join(''), logprobs.text);
  assert.equal(logprobs.logprobs.token_logprobs.length, 8);
  assert.equal(Object.keys(logprobs.logprobs.top_logprobs[0]).length, 2);
  assert.equal(logprobs.logprobs.text_offset[0], 0);
  assert.equal(logprobs.logprobs.text_offset[1], logprobs.logprobs.tokens[0].length);
  await assert.rejects(client.completions.create({ ...ask, prompt: 'a', suffix: 'b' }), { status: 400, param: 'suffix' });
  for (const prompt of [[], [1, 'a'], {}, [[]], null, [''.padStart(9), 3]])
    await assert.rejects(client.completions.create({ ...ask, prompt }), { status: 400, param: 'prompt' });
});

test('stop strings end the text before them and never leak', async () => {
  const ask = { model: 'any', prompt: 'ROMEO:', max_tokens: 64, temperature: 0 };
  const free = (await client.completions.create(ask)).choices[0].text;
  const stop = free.slice(12, 17);
  const cut = free.slice(0, free.indexOf(stop));
  const whole = await client.completions.create({ ...ask, stop });
  assert.equal(whole.choices[0].text, cut);
  assert.equal(whole.choices[0].finish_reason, 'stop');
  const stream = await collect(await client.completions.create({ ...ask, stop: [stop, 'zzz'], stream: true }));
  assert.equal(stream.text, cut);
});

async function live() {
  return (await (await fetch(`${server.url}/stats`)).json()).batch.active_rows;
}

test('text comes while its row still runs; an aborted stream frees its row', async () => {
  const stream = await chat({ stream: true, max_tokens: 1500, ignore_eos: true });
  for await (const chunk of stream) {
    if (!chunk.choices[0].delta.content) continue;
    assert.equal(await live(), 1);
    stream.controller.abort();
    break;
  }
  for (let i = 0; i < 100 && (await live()) > 0; i++) await sleep(10);
  assert.equal(await live(), 0);
});

test('a client that hangs up before an answer in one piece frees its row too', async () => {
  const controller = new AbortController();
  const pending = client.chat.completions.create(
    { model: 'any', max_tokens: 1500, ignore_eos: true, messages: [{ role: 'user', content: 'Speak.' }] },
    { signal: controller.signal });
  for (let i = 0; i < 100 && (await live()) === 0; i++) await sleep(5);
  assert.equal(await live(), 1);
  controller.abort();
  await assert.rejects(pending);
  for (let i = 0; i < 100 && (await live()) > 0; i++) await sleep(10);
  assert.equal(await live(), 0);
});

test('models are listed and found', async () => {
  const list = await client.models.list();
  assert.equal(list.data[0].id, 'loam-shakespeare');
  assert.equal((await client.models.retrieve('loam-shakespeare')).object, 'model');
  await assert.rejects(client.models.retrieve('gpt-9'), { status: 404, code: 'model_not_found' });
});

test('bad requests get a status, a sentence and the parameter', async () => {
  const cases = [
    [{ messages: [] }, 'messages'], [{ messages: 'hi' }, 'messages'], [{ messages: [{ content: 'x' }] }, 'messages'],
    [{ temperature: 'hot' }, 'temperature'], [{ temperature: 9 }, 'temperature'], [{ max_tokens: 0 }, 'max_tokens'],
    [{ stop: [1] }, 'stop'], [{ stream: 'yes' }, 'stream'], [{ logit_bias: { a: 1 } }, 'logit_bias'],
  ];
  for (const [more, param] of cases)
    await assert.rejects(chat(more), (error) => {
      assert.equal(error.status, 400, JSON.stringify(more));
      assert.equal(error.param, param);
      assert.equal(error.type, 'invalid_request_error');
      return true;
    });
  await assert.rejects(chat({ messages: [{ role: 'user', content: 'word '.repeat(4000) }] }),
    { status: 400, code: 'context_length_exceeded' });
  await assert.rejects(client.post('/nowhere', { body: {} }), { status: 404 });
  const wrong_method = await fetch(`${server.url}/v1/models`, { method: 'DELETE' });
  assert.equal(wrong_method.status, 405);
  assert.equal(wrong_method.headers.get('allow'), 'GET');
  for (const body of ['{"messages":', '[1]', '', '\u0000', '{"messages":[{"role":"user","content":"\\ud800"}]}']) {
    const response = await fetch(`${server.url}/v1/chat/completions`, { method: 'POST', body });
    assert.equal(response.status, 400, body);
    assert.equal((await response.json()).error.type, 'invalid_request_error');
  }
  const too_large = await fetch(`${server.url}/v1/completions`, { method: 'POST', body: 'x'.repeat(65 * 2 ** 20) });
  assert.equal(too_large.status, 413);
});

test('a second server on the port is refused before it loads anything', async () => {
  const port = new URL(server.url).port;
  const second = run('serve', '--builtin', '--port', port);
  assert.equal(second.code, 1);
  assert.match(second.stderr, new RegExp(`port ${port} is already serving loam-shakespeare`));
  const other = net.createServer((socket) => socket.destroy()).listen(0, '127.0.0.1');
  await new Promise((resolve) => other.on('listening', resolve));
  const taken = run('serve', '--builtin', '--port', String(other.address().port));
  other.close();
  assert.equal(taken.code, 1);
});

test('SIGTERM lets running answers finish and exits 0', async () => {
  const second = await serve('--builtin');
  const other = new OpenAI({ baseURL: `${second.url}/v1`, apiKey: 'none', maxRetries: 0 });
  const stream = await other.chat.completions.create({
    model: 'any', max_tokens: 300, ignore_eos: true, stream: true, seed: 1,
    messages: [{ role: 'user', content: 'Speak.' }] });
  let n = 0, finish = null;
  for await (const chunk of stream) {
    if (n++ === 3) second.child.kill('SIGTERM');
    finish = chunk.choices[0]?.finish_reason ?? finish;
  }
  assert.equal(finish, 'length');
  assert.deepEqual(await second.exited, { code: 0, signal: null });
});

test('structured output: schemas, choices, expressions', async () => {
  const schema = { type: 'object', properties: { name: { enum: ['Romeo', 'Juliet'] }, age: { type: 'integer', minimum: 1, maximum: 99 } },
    required: ['name', 'age'], additionalProperties: false };
  // The model's template knows reasoning, and the grammar begins behind it.
  const chat_template_kwargs = { enable_thinking: false };
  const ask = { max_tokens: 1500, temperature: 0.7, chat_template_kwargs };
  const format = { type: 'json_schema', json_schema: { name: 'person', schema, strict: true } };
  for (let seed = 0; seed < 5; seed++) {
    const { choices: [choice] } = await chat({ ...ask, seed, response_format: format });
    const value = JSON.parse(choice.message.content);
    assert.ok(['Romeo', 'Juliet'].includes(value.name) && value.age >= 1 && value.age <= 99);
    assert.equal(choice.finish_reason, 'stop');
  }
  const streamed = await collect(await chat({ ...ask, response_format: format, stream: true }));
  JSON.parse(streamed.text);
  const picked = await chat({ ...ask, guided_choice: ['yes', 'no'] });
  assert.match(picked.choices[0].message.content, /^(yes|no)$/);
  const matched = await client.completions.create({ model: 'x', prompt: 'a', max_tokens: 50, guided_regex: '[0-9]{3}-[a-f]{2}' });
  assert.match(matched.choices[0].text, /^[0-9]{3}-[a-f]{2}$/);
  const response = await client.responses.create({ model: "x", input: "Who?", seed: 3, chat_template_kwargs, text: { format: { type: 'json_schema', name: 'p', schema } } });
  JSON.parse(response.output_text);
  const outputs = { regex: '[0-9]{3}', choice: ['yes', 'no'], grammar: 'root ::= "a" | "b"', json: { type: 'integer', minimum: 10, maximum: 99 },
    structural_tag: { type: 'structural_tag', format: { type: 'const_string', value: 'fixed' } } };
  for (const [kind, value] of Object.entries(outputs)) {
    const { choices: [{ message: { content } }] } = await chat({ ...ask, structured_outputs: { [kind]: value } });
    assert.match(content, { regex: /^\d{3}$/, choice: /^(yes|no)$/, grammar: /^[ab]$/, json: /^[1-9]\d(\.0+)?$/, structural_tag: /^fixed$/ }[kind], kind);
  }
  assert.match((await chat({ ...ask, grammar: 'root ::= [x-z]{2}' })).choices[0].message.content, /^[x-z]{2}$/);
  const loose = { ...ask, response_format: { type: 'json_schema', json_schema: { name: 'l', schema: { type: 'array', items: { type: 'boolean' }, maxItems: 2, uniqueItems: true } } } };
  const answer = await chat(loose).asResponse();
  assert.match(answer.headers.get('warning'), /^199 loam ".*uniqueItems"$/);
  const strict = structuredClone(loose);
  strict.response_format.json_schema.strict = true;
  await assert.rejects(chat(strict), ({ status, param, message }) => status === 400 && param === 'response_format' && /'uniqueItems' at #/.test(message));
  await assert.rejects(chat({ guided_regex: '.', grammar: 'root ::= "a"' }), { status: 400, param: 'grammar' });
  await assert.rejects(chat({ structured_outputs: {} }), { status: 400, param: 'structured_outputs' });
  await assert.rejects(chat({ guided_regex: '(' }), { status: 400, param: 'guided_regex' });
  await assert.rejects(chat({ response_format: { type: 'xml' } }), { status: 400, param: 'response_format' });
});
