// Compare loam's ids and decoded text with Hugging Face's own tokenizers (npm package "tokenizers").
//   node compare.mjs --program BUILD/tests/tokenizer/encode_cases [--strings N] [--seed S]
//                    [--no-long] [--components] [--speed] [--goldens OUT.json] [TOKENIZER.json ...]
// --no-long leaves the texts of 300 kB and 1 MiB out. With --components: small tokenizers of every
// component, made here. With --speed: 10 MB of mixed text, both sides on one thread. With --goldens: write
// what the oracle gives for the small tokenizers, for test_components.c. docs/tokenizers.md says how to
// install what it needs.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { components } from './components.mjs';
import { longStrings, mixedText, strings } from './corpus.mjs';

process.env.RAYON_NUM_THREADS = '1';
process.env.TOKENIZERS_PARALLELISM = 'false';
const { Tokenizer } = createRequire(path.join(process.cwd(), 'x.js'))('tokenizers');

const args = process.argv.slice(2);
const option = (name, fallback) => {
  const at = args.indexOf(name);
  return at < 0 ? fallback : args.splice(at, 2)[1];
};
const flag = (name) => {
  const at = args.indexOf(name);
  return at >= 0 && args.splice(at, 1).length > 0;
};
const program = option('--program');
const nStrings = Number(option('--strings', 5000));
const seed = Number(option('--seed', 1));
const goldens = option('--goldens');
const withComponents = flag('--components'), noLong = flag('--no-long'), speed = flag('--speed'), verbose = flag('--verbose');
if (!program && !goldens) {
  console.error('compare.mjs: --program must name the built encode_cases');
  process.exit(2);
}
const folder = mkdtempSync(path.join(tmpdir(), 'compare-'));

function runLoam(file, cases) {
  const parts = [];
  for (const c of cases) {
    const n = Buffer.alloc(4);
    n.writeUInt32LE(c.length);
    parts.push(n, c);
  }
  const done = spawnSync(program, [file], { input: Buffer.concat(parts), maxBuffer: 1 << 30 });
  if (done.status !== 0) throw new Error(`${file}: ${done.stderr}`);
  const out = done.stdout;
  let at = 0;
  const count = () => { at += 4; return out.readUInt32LE(at - 4); };
  const ids = () => { const n = count(), list = new Array(n); for (let i = 0; i < n; i++) list[i] = count(); return list; };
  const text = () => { const n = count(); at += n; return out.subarray(at - n, at); };
  return { results: cases.map(() => ({ plain: ids(), special: ids(), shown: text(), skipped: text() })), times: JSON.parse(String(done.stderr).trim().split('\n').pop()) };
}

const same = (a, b) => a.length === b.length && a.every((x, i) => x === b[i]);

async function compare(name, file, cases) {
  const json = JSON.parse(readFileSync(file));
  if (json.truncation || json.padding) { // loam passes over them; the oracle must too
    json.truncation = json.padding = null;
    file = path.join(folder, 'plain.json');
    writeFileSync(file, JSON.stringify(json));
  }
  const oracle = Tokenizer.fromFile(file);
  const { results } = runLoam(file, cases);
  let different = 0;
  for (let i = 0; i < cases.length; i++) {
    const text = cases[i].toString(); // U+FFFD for what is not UTF-8, as loam does
    const plain = (await oracle.encode(text, null, { addSpecialTokens: false })).getIds();
    const special = (await oracle.encode(text, null, { addSpecialTokens: true })).getIds();
    const shown = await oracle.decode(special, false), skipped = await oracle.decode(special, true);
    const r = results[i], wrong = [];
    if (!same(plain, r.plain)) wrong.push(['ids', plain, r.plain]);
    if (!same(special, r.special)) wrong.push(['ids with special tokens', special, r.special]);
    // A wrong id makes a wrong text: compare texts of equal ids only.
    if (!wrong.length && !Buffer.from(shown).equals(r.shown)) wrong.push(['text', shown, r.shown.toString()]);
    if (!wrong.length && !Buffer.from(skipped).equals(r.skipped)) wrong.push(['text, special skipped', skipped, r.skipped.toString()]);
    if (!wrong.length) continue;
    different++;
    if (different <= (verbose ? 100 : 3))
      for (const [what, want, got] of wrong)
        console.log(`${name}: ${what} of ${JSON.stringify(text).slice(0, 300)}\n  want ${JSON.stringify(want).slice(0, 500)}\n  got  ${JSON.stringify(got).slice(0, 500)}`);
  }
  console.log(`${name}: ${cases.length} cases, ${different} different`);
  return { cases: cases.length, different };
}

async function measure(name, file) {
  const text = mixedText(10 << 20, seed), string = text.toString(), oracle = Tokenizer.fromFile(file);
  const median = (list) => list.sort((a, b) => a - b)[list.length >> 1];
  const ours = { encode: [], decode: [] }, theirs = { encode: [], decode: [] };
  for (let k = 0; k < 3; k++) { // interleaved: the machine's mood hits both
    const { times } = runLoam(file, [text]);
    ours.encode.push(times.encode_ms);
    ours.decode.push(times.decode_ms);
    let start = performance.now();
    const ids = (await oracle.encode(string, null, { addSpecialTokens: false })).getIds();
    theirs.encode.push(performance.now() - start);
    start = performance.now();
    await oracle.decode(ids, false);
    theirs.decode.push(performance.now() - start);
  }
  const line = { tokenizer: name, mb: text.length / 1e6 };
  for (const what of ['encode', 'decode']) {
    line[`${what}_ms`] = Math.round(median(ours[what]));
    line[`${what}_ms_rust`] = Math.round(median(theirs[what]));
    line[`${what}_ratio`] = Math.round((10 * median(theirs[what])) / median(ours[what])) / 10;
  }
  console.log(JSON.stringify(line));
}

const GOLDEN_TEXTS = [
  "Hello, I'm  the wor <|a|> <|ab|>b 12345 Der ＦＵＬＬ<mask> world's\n\n\tx ",
  ' Ünïcödé e\u0301 ﬁ①½㎏ 世界は、한국어 ｶﾅ Привет ñandú 👨‍👩‍👧 \u00a0\u3000\u200bİ',
  '\u00a0\u1ada\u1a4c x\u0897 \n\u1ada \ufb01\u1ada \u00bd\u0897', // marks of Unicode 16 and 17
  '...for (int i=0; i<n; i++) { the_sum += a[i]*2; }\r\n the end. Isn\'t it?',
];
async function writeGoldens(out) {
  const models = [], places = new Map(), cases = [];
  for (const { name, json } of components()) {
    const oracle = Tokenizer.fromString(JSON.stringify(json)), key = JSON.stringify(json.model);
    if (!places.has(key)) places.set(key, models.push(json.model) - 1);
    const results = [];
    for (const text of GOLDEN_TEXTS) {
      const ids = (await oracle.encode(text, null, { addSpecialTokens: true })).getIds();
      results.push([ids, await oracle.decode(ids, false), await oracle.decode(ids, true)]);
    }
    cases.push({ name, tokenizer: { ...json, model: places.get(key) }, results });
  }
  const lines = (list) => list.map((item) => JSON.stringify(item)).join(',\n');
  const { version } = createRequire(path.join(process.cwd(), 'x.js'))('tokenizers/package.json');
  writeFileSync(out, `{"oracle": "tokenizers ${version} (npm)", "texts": ${JSON.stringify(GOLDEN_TEXTS)},\n"models": [\n${lines(models)}],\n"cases": [\n${lines(cases)}]}\n`);
}
if (goldens) await writeGoldens(goldens);

const total = { cases: 0, different: 0 };
const add = (r) => { total.cases += r.cases; total.different += r.different; };
for (const file of args) {
  const name = file.split('/').slice(-3).join('/');
  if (speed) { await measure(name, file); continue; }
  const spellings = JSON.parse(readFileSync(file)).added_tokens.map((t) => t.content);
  add(await compare(name, file, [...strings(nStrings, seed, spellings), ...(noLong ? [] : longStrings(seed))]));
}
if (withComponents)
  for (const { name, json } of components()) {
    const file = path.join(folder, 'component.json');
    writeFileSync(file, JSON.stringify(json));
    add(await compare(name, file, strings(Math.min(nStrings, 1500), seed, json.added_tokens.map((t) => t.content))));
  }
rmSync(folder, { recursive: true });
if (program && !speed) console.log(`all: ${total.cases} cases, ${total.different} different`);
process.exit(total.different ? 1 : 0);
