// Sampling options on every surface: one table, so the same ranges, the same names and the same text.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { run, serve } from './loam.mjs';

let server, options;
before(async () => {
  server = await serve('--builtin');
  const api = await (await fetch(`${server.url}/openapi.json`)).json();
  const { properties } = api.paths['/v1/completions'].post.requestBody.content['application/json'].schema;
  options = Object.entries(properties).filter(([, schema]) => 'maximum' in schema);
});
after(async () => {
  const { code } = await server.stop();
  assert.equal(code, 0, server.stderr);
});

const message = { role: 'user', content: 'Who goes there?' };
const ROUTES = {
  '/v1/chat/completions': { messages: [message] },
  '/v1/completions': { prompt: 'ROMEO:' },
  '/v1/responses': { input: 'Who goes there?' },
  '/v1/messages': { messages: [message] },
};
async function post(route, fields, { url } = server) {
  const reply = await fetch(url + route, {
    method: 'POST', headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ max_tokens: 24, seed: 5, ...ROUTES[route], ...fields }),
  });
  return { status: reply.status, ...await reply.json() };
}
const TEXT = {
  '/v1/chat/completions': (a) => a.choices[0].message.content,
  '/v1/completions': (a) => a.choices[0].text,
  '/v1/responses': (a) => a.output.map((item) => item.content[0].text).join(''),
  '/v1/messages': (a) => a.content.map((block) => block.text).join(''),
};

test('every option is checked on every route, by name', async () => {
  assert.ok(options.length >= 18);
  for (const route of Object.keys(ROUTES))
    for (const [name, { type, minimum, maximum }] of options)
      for (const wrong of [maximum + 1, minimum - 1, 'much', type === 'integer' ? 1.5 : true]) {
        const answer = await post(route, { [name]: wrong });
        assert.equal(answer.status, 400, `${route} ${name} ${wrong}`);
        assert.match(answer.error.message, new RegExp(`'${name}'`));
      }
  for (const wrong of ['x', [1], [''], Array(33).fill('a')])
    assert.equal((await post('/v1/completions', { dry_sequence_breakers: wrong })).error.param, 'dry_sequence_breakers');
});

// Each changes the text that is there without it.
const SETS = [
  { temperature: 0.2 },
  { temperature: 1.5, top_p: 0.3 },
  { temperature: 1.5, top_k: 2 },
  { temperature: 1.5, min_p: 0.5 },
  { temperature: 1.5, typical_p: 0.2 },
  { temperature: 1.5, xtc_probability: 1, xtc_threshold: 0.05 },
  { temperature: 0, repetition_penalty: 3 },
  { temperature: 0, repetition_penalty: 3, repetition_context_size: 0 },
  { temperature: 0, presence_penalty: 2, presence_context_size: 0 },
  { temperature: 0, frequency_penalty: 2, frequency_context_size: 0 },
  { temperature: 0, dry_multiplier: 50, dry_base: 2, dry_allowed_length: 1, dry_penalty_last_n: 100 },
];

test('every option acts, and HTTP and the command line give the same text', async () => {
  const route = '/v1/completions', seen = new Map();
  for (const set of [{ temperature: 0 }, { temperature: 1.5 }, ...SETS]) {
    const text = TEXT[route](await post(route, { ...set, max_tokens: 100 }));
    const flags = Object.entries(set).flatMap(([name, value]) => [`--${name.replaceAll('_', '-')}`, `${value}`]);
    const command = run('generate', '--builtin', 'ROMEO:', '--raw', '--seed', '5', '--max-tokens', '100', '--json', ...flags);
    assert.equal(JSON.parse(command.stdout).text, text, JSON.stringify(set));
    assert.ok(!seen.has(text), `${JSON.stringify(set)} is ${seen.get(text)}`);
    seen.set(text, JSON.stringify(set));
  }
});

test('the chat surfaces sample alike', async () => {
  const texts = [];
  for (const route of ['/v1/chat/completions', '/v1/responses', '/v1/messages'])
    texts.push(TEXT[route](await post(route, { temperature: 0, repetition_penalty: 3, repetition_context_size: 0 })));
  assert.equal(texts[1], texts[0]);
  assert.equal(texts[2], texts[0]);
});

test('DRY ends at the breakers that are given', async () => {
  const dry = { temperature: 0, dry_multiplier: 50, dry_allowed_length: 1, max_tokens: 100 };
  const texts = [];
  for (const more of [{}, { dry_sequence_breakers: [] }, { dry_sequence_breakers: [' ', 'e', 't'] }])
    texts.push(TEXT['/v1/completions'](await post('/v1/completions', { ...dry, ...more })));
  assert.equal(new Set(texts).size, 3);
  const command = run('generate', '--builtin', 'ROMEO:', '--raw', '--temp', '0', '--dry-multiplier', '50',
    '--dry-allowed-length', '1', '--max-tokens', '100', '--json', ...[' ', 'e', 't'].flatMap((text) =>
      ['--dry-sequence-breaker', text]));
  assert.equal(JSON.parse(command.stdout).text, texts[2]);
});

test('logit_bias, min_tokens and ignore_eos, everywhere', async () => {
  const [id] = JSON.parse(run('tokenize', '--builtin', '--text', ' the', '--json', '--no-special').stdout).ids;
  for (const route of Object.keys(ROUTES)) {
    const answer = await post(route, { logit_bias: { [id]: 100 }, max_tokens: 5 });
    assert.equal(TEXT[route](answer).trim(), Array(5).fill('the').join(' '), route);
    assert.equal((await post(route, { logit_bias: { x: 1 } })).status, 400, route);
  }
  const ask = { logit_bias: { 1002: 100 }, temperature: 0 }; // the built-in model's end
  const end = async (more) => {
    const { choices: [choice], usage } = await post('/v1/completions', { ...ask, ...more });
    return [choice.finish_reason, usage.completion_tokens];
  };
  assert.deepEqual(await end({}), ['stop', 1]);
  assert.deepEqual(await end({ min_tokens: 5 }), ['stop', 6]);
  assert.deepEqual(await end({ ignore_eos: true, max_tokens: 9 }), ['length', 9]);
});

test('serve takes defaults for requests that do not say', async () => {
  const other = await serve('--builtin', '--temp', '0', '--repetition-penalty', '3', '--repetition-context-size', '0');
  try {
    const route = '/v1/completions';
    const said = await post(route, { temperature: 0, repetition_penalty: 3, repetition_context_size: 0 });
    assert.equal(TEXT[route](await post(route, {}, other)), TEXT[route](said));
    const plain = await post(route, { temperature: 0 });
    assert.notEqual(TEXT[route](plain), TEXT[route](said));
    assert.equal(TEXT[route](await post(route, { repetition_penalty: 1 }, other)), TEXT[route](plain));
  } finally {
    await other.stop();
  }
});

test('responses: logprobs when they are included, streamed and not, as in chat', async () => {
  const ask = { temperature: 0, include: ['message.output_text.logprobs'], top_logprobs: 2, max_tokens: 12 };
  const whole = await post('/v1/responses', ask);
  const { text, logprobs } = whole.output[0].content[0];
  const chat = await post('/v1/chat/completions', { temperature: 0, logprobs: true, top_logprobs: 2, max_tokens: 12 });
  assert.deepEqual(logprobs, chat.choices[0].logprobs.content);
  assert.equal(logprobs.map((one) => one.token).join(''), text);
  assert.equal(whole.top_logprobs, 2);
  const reply = await fetch(`${server.url}/v1/responses`, {
    method: 'POST', body: JSON.stringify({ ...ROUTES['/v1/responses'], ...ask, seed: 5, stream: true }) });
  const events = (await reply.text()).split('\n').filter((line) => line.startsWith('data: '))
    .map((line) => JSON.parse(line.slice(6)));
  const bare = logprobs.map(({ token, logprob, top_logprobs }) => ({ token, logprob,
    top_logprobs: top_logprobs.map((top) => ({ token: top.token, logprob: top.logprob })) }));
  const deltas = events.filter((event) => event.type === 'response.output_text.delta');
  assert.deepEqual(deltas.flatMap((event) => event.logprobs), bare);
  for (const delta of deltas)
    assert.equal(delta.logprobs.map((one) => one.token).join(''), delta.delta);
  assert.deepEqual(events.find((event) => event.type === 'response.output_text.done').logprobs, bare);
  assert.deepEqual(events.at(-1).response.output[0].content[0].logprobs, logprobs);
  assert.deepEqual((await post('/v1/responses', { max_tokens: 2 })).output[0].content[0].logprobs, []);
  assert.equal((await post('/v1/responses', { top_logprobs: 2 })).error.param, 'top_logprobs');
  assert.equal((await post('/v1/responses', { include: 'all' })).error.param, 'include');
});
