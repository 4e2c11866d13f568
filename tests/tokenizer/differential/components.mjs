// Small tokenizers that together have every component and option of tokenizer.json.
import { CODE, random, SENTENCES } from './corpus.mjs';

const LETTERS = [];
for (let b = 0, n = 0; b < 256; b++) {
  const printable = (b > 32 && b < 127) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
  LETTERS.push(String.fromCodePoint(printable ? b : 256 + n++));
}
const spell = (s) => [...Buffer.from(s)].map((b) => LETTERS[b]);
const TEXT = [...SENTENCES, ...CODE];

// Byte-pair merges learned from the corpus: words are lists of symbols.
function learn(words, nMerges, join = (a, b) => a + b) {
  const merges = [];
  words = words.map((w) => [...w]);
  while (merges.length < nMerges) {
    const counts = new Map();
    for (const w of words) for (let i = 0; i + 1 < w.length; i++) {
      const key = w[i] + '\0' + w[i + 1];
      counts.set(key, (counts.get(key) ?? 0) + 1);
    }
    let best = null, most = 1;
    for (const [key, n] of counts) if (n > most) [best, most] = [key, n];
    if (!best) break;
    const [a, b] = best.split('\0');
    merges.push([a, b]);
    words = words.map((w) => {
      const out = [];
      for (let i = 0; i < w.length; i++)
        if (w[i] === a && w[i + 1] === b) out.push(join(a, b)), i++;
        else out.push(w[i]);
      return out;
    });
  }
  return merges;
}
const numbered = (texts) => Object.fromEntries([...new Set(texts)].map((t, i) => [t, i]));

const byteWords = TEXT.flatMap((s) => s.match(/ ?\S+|\s+/gu)).map(spell);
const byteMerges = learn(byteWords, 400);
const byteBpe = (options = {}) => ({ type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false, byte_fallback: false, ignore_merges: false,
  vocab: numbered([...LETTERS, ...byteMerges.map(([a, b]) => a + b), 'Ġzzz', 'ĠMenschen']), merges: byteMerges.map(([a, b]) => `${a} ${b}`), ...options });
const charWords = TEXT.flatMap((s) => s.match(/ ?\S+|\s+/gu)).map((w) => [...w.replaceAll(' ', '▁')]);
const charMerges = learn(charWords, 300);
const common = [...'▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789.,-_éüñабвгде世界の'];
const BYTES = Array.from({ length: 256 }, (_, b) => `<0x${b.toString(16).toUpperCase().padStart(2, '0')}>`);
function charBpe(options = {}, bytes = true) {
  const known = new Set(common), merges = [];
  for (const [a, b] of charMerges) if (known.has(a) && known.has(b)) merges.push([a, b]), known.add(a + b);
  return { type: 'BPE', dropout: null, unk_token: '<unk>', continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: true, byte_fallback: bytes, ignore_merges: false,
    vocab: numbered(['<unk>', '<s>', ...(bytes ? BYTES : []), ...known]), merges, ...options };
}
function affixBpe(prefix, suffix) {
  const start = (w) => [...w].map((c, i, all) => (i && prefix ? prefix : '') + c + (i === all.length - 1 && suffix ? suffix : ''));
  const words = TEXT.flatMap((s) => s.match(/\p{L}+/gu) ?? []).map(start);
  const cut = [...(prefix ?? '')].length;
  const merges = learn(words, 200, (a, b) => a + b.slice(cut));
  return { type: 'BPE', dropout: null, unk_token: '<unk>', continuing_subword_prefix: prefix, end_of_word_suffix: suffix, fuse_unk: false, byte_fallback: false,
    vocab: numbered(['<unk>', ...words.flat(), ...merges.map(([a, b]) => a + b.slice(cut))]), merges };
}
const words = [...new Set(TEXT.flatMap((s) => s.match(/\p{L}+|\S/gu)))];
const wordPiece = (options = {}) => ({ type: 'WordPiece', unk_token: '[UNK]', continuing_subword_prefix: '##', max_input_chars_per_word: 100,
  vocab: numbered(['[UNK]', '[CLS]', '[SEP]', ...words.filter((_, i) => i % 3).map((w) => w.toLowerCase()), ...words.filter((_, i) => i % 2), ...words.flatMap((w) => [...w].slice(0, 4)), ...words.flatMap((w) => ['##' + [...w].slice(-2).join(''), '##' + [...w].slice(1, 3).join(''), ...[...w].slice(1).map((c) => '##' + c)])]), ...options });
function unigram(options = {}, bytes = false) {
  const r = random(7);
  const pieces = [...new Set(['<unk>', '<s>', ...(bytes ? BYTES : []), ...common, ...charMerges.map(([a, b]) => a + b), ...words.slice(0, 200).map((w) => '▁' + w)])];
  return { type: 'Unigram', unk_id: 0, byte_fallback: bytes, vocab: pieces.map((p, i) => [p, i < 2 ? 0 : -(r.below(120000) / 10000) - [...p].length / 8]), ...options };
}
const wordLevel = { type: 'WordLevel', vocab: numbered(['<unk>', ...words.slice(0, 300), ' ', 'a', '1']), unk_token: '<unk>' };

// A charsmap as SentencePiece builds it: a Darts double array of keys and NUL-ended targets.
function charsmap(pairs) {
  const root = { next: new Map() };
  let targets = Buffer.alloc(0);
  for (const [key, target] of pairs) {
    let node = root;
    for (const b of Buffer.from(key)) {
      if (!node.next.has(b)) node.next.set(b, { next: new Map() });
      node = node.next.get(b);
    }
    node.value = targets.length;
    targets = Buffer.concat([targets, Buffer.from(target), Buffer.from([0])]);
  }
  const units = new Map([[0, 0]]), used = new Set([0]);
  const place = (at, node) => {
    const labels = [...node.next.keys()];
    if (node.value !== undefined) labels.push(0);
    if (!labels.length) return;
    let base = 1;
    while (((at ^ base) & 0xff) && false || labels.some((c) => used.has(base ^ c) || (base ^ c) === 0)) base++;
    for (const c of labels) used.add(base ^ c);
    let unit = units.get(at) | ((at ^ base) << 10);
    if (node.value !== undefined) unit |= 1 << 8;
    units.set(at, unit);
    for (const c of node.next.keys()) units.set(base ^ c, c);
    if (node.value !== undefined) units.set(base, (0x80000000 | node.value) >>> 0);
    for (const [c, child] of node.next) place(base ^ c, child);
  };
  place(0, root);
  const size = (Math.max(...used) | 255) + 1, array = Buffer.alloc(4 + 4 * size);
  array.writeUInt32LE(4 * size, 0);
  for (const [at, unit] of units) array.writeUInt32LE(unit >>> 0, 4 + 4 * at);
  return Buffer.concat([array, targets]).toString('base64');
}
const CHARSMAP = charsmap([['\u00a0', ' '], ['\u3000', ' '], ['ﬁ', 'fi'], ['Å', 'Å'], ['e\u0301', 'é'], ['\u200b', ''], ['①', '1'], ['㎏', 'kg'], ['\t', ' '], ['\n', ' '], ['ﾀ', 'タ'], ['ｶ', 'カ'], ['Ω', 'Ω'], ['½', '1⁄2'], ['\u0301', '']]);

const BYTE_LEVEL = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false };
const added = (content, id, o = {}) => ({ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true, ...o });
const ADDED = [['<|a|>', {}], ['<|ab|>', { lstrip: true }], ['<|a|>b', { rstrip: true }], ['wor', { single_word: true, special: false }], ['Der', { normalized: true, special: false }], ['ＦＵＬＬ', { normalized: true, lstrip: true, rstrip: true, special: false }], ['<mask>', { lstrip: true, rstrip: true }], ['\n\n', { special: false }], ['the', { normalized: true, single_word: true, special: false }], ['é', { special: false }]];
const withAdded = (model) => {
  let id = Array.isArray(model.vocab) ? model.vocab.length : Object.keys(model.vocab).length;
  const has = (t) => (Array.isArray(model.vocab) ? model.vocab.findIndex(([p]) => p === t) : model.vocab[t] ?? -1);
  return ADDED.map(([content, o]) => added(content, has(content) >= 0 ? has(content) : id++, o));
};

export function components() {
  const list = [];
  const add = (name, parts, tokens = true) => list.push({ name, json: { version: '1.0', truncation: null, padding: null, added_tokens: tokens ? withAdded(parts.model) : [], normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null, ...parts } });
  const bytes = { pre_tokenizer: BYTE_LEVEL, decoder: BYTE_LEVEL };

  // Normalizers, seen byte by byte.
  const normalizers = { none: null, NFC: { type: 'NFC' }, NFD: { type: 'NFD' }, NFKC: { type: 'NFKC' }, NFKD: { type: 'NFKD' }, Lowercase: { type: 'Lowercase' }, StripAccents: { type: 'StripAccents' }, Nmt: { type: 'Nmt' }, ByteLevel: { type: 'ByteLevel' }, Precompiled: { type: 'Precompiled', precompiled_charsmap: CHARSMAP },
    NoSequence: { type: 'Sequence', normalizers: [] }, Prepend: { type: 'Prepend', prepend: '▁_' }, ReplaceString: { type: 'Replace', pattern: { String: ' ' }, content: '▁' }, ReplaceRegex: { type: 'Replace', pattern: { Regex: ' {2,}|\\d+' }, content: '<>' }, ReplaceNothing: { type: 'Replace', pattern: { String: 'e' }, content: '' },
    Sequence: { type: 'Sequence', normalizers: [{ type: 'NFKD' }, { type: 'Sequence', normalizers: [{ type: 'StripAccents' }, { type: 'Lowercase' }] }, { type: 'Strip', strip_left: true, strip_right: true }] } };
  for (const left of [true, false]) for (const right of [true, false]) normalizers[`Strip ${left} ${right}`] = { type: 'Strip', strip_left: left, strip_right: right };
  for (let k = 0; k < 24; k++) normalizers[`Bert ${k}`] = { type: 'BertNormalizer', clean_text: !(k & 1), handle_chinese_chars: !(k & 2), lowercase: !(k & 4), strip_accents: [null, true, false][k >> 3] };
  for (const [name, normalizer] of Object.entries(normalizers)) add(`normalizer ${name}`, { ...bytes, normalizer, model: byteBpe() });

  // Pre-tokenizers: each word is one token or unknown, or seen through byte-level BPE.
  const pre = { Whitespace: { type: 'Whitespace' }, WhitespaceSplit: { type: 'WhitespaceSplit' }, BertPreTokenizer: { type: 'BertPreTokenizer' }, UnicodeScripts: { type: 'UnicodeScripts' }, Digits: { type: 'Digits', individual_digits: false }, 'Digits one by one': { type: 'Digits', individual_digits: true }, CharDelimiterSplit: { type: 'CharDelimiterSplit', delimiter: 'e' }, FixedLength: { type: 'FixedLength', length: 3 }, 'FixedLength 1': { type: 'FixedLength', length: 1 } };
  for (const behavior of ['Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous']) {
    pre[`Punctuation ${behavior}`] = { type: 'Punctuation', behavior };
    for (const invert of [false, true]) {
      pre[`Split string ${behavior} ${invert}`] = { type: 'Split', pattern: { String: 'e' }, behavior, invert };
      pre[`Split regex ${behavior} ${invert}`] = { type: 'Split', pattern: { Regex: '\\s+|\\p{P}|[^\\S\\n]x?' }, behavior, invert };
      pre[`Split empty ${behavior} ${invert}`] = { type: 'Split', pattern: { Regex: 'a*' }, behavior, invert };
    }
  }
  for (const [name, one] of Object.entries(pre)) {
    add(`pre_tokenizer ${name}`, { pre_tokenizer: one, model: wordLevel });
    add(`pre_tokenizer ${name}, bytes`, { ...bytes, pre_tokenizer: { type: 'Sequence', pretokenizers: [one, BYTE_LEVEL] }, model: byteBpe() });
  }
  for (const add_prefix_space of [true, false]) for (const use_regex of [true, false]) {
    const one = { type: 'ByteLevel', add_prefix_space, trim_offsets: true, use_regex };
    add(`pre_tokenizer ByteLevel ${add_prefix_space} ${use_regex}`, { pre_tokenizer: one, decoder: one, model: byteBpe(), post_processor: one });
    add(`pre_tokenizer ByteLevel ${add_prefix_space} ${use_regex}, not last`, { pre_tokenizer: { type: 'Sequence', pretokenizers: [one, { type: 'Punctuation', behavior: 'Isolated' }] }, decoder: one, model: byteBpe({ ignore_merges: true }) });
  }
  for (const prepend_scheme of ['always', 'first', 'never']) for (const split of [true, false]) {
    const one = { type: 'Metaspace', replacement: '▁', prepend_scheme, split };
    add(`Metaspace ${prepend_scheme} ${split}`, { pre_tokenizer: one, decoder: one, model: charBpe() });
    add(`Metaspace ${prepend_scheme} ${split}, Unigram`, { pre_tokenizer: one, decoder: one, model: unigram() });
    add(`Metaspace ${prepend_scheme} ${split}, after WhitespaceSplit`, { pre_tokenizer: { type: 'Sequence', pretokenizers: [{ type: 'WhitespaceSplit' }, one] }, decoder: one, model: unigram({}, true) });
  }

  // Models.
  add('BPE ignore_merges', { ...bytes, model: byteBpe({ ignore_merges: true }) });
  add('BPE pairs', { ...bytes, model: byteBpe({ merges: byteMerges }) });
  add('BPE lacking letters', { ...bytes, model: byteBpe({ vocab: numbered(Object.keys(byteBpe().vocab).filter((t) => t !== 'Ã' && t !== 'Q')), merges: byteMerges.filter((m) => !m.join('').includes('Ã')) }) });
  for (const fuse_unk of [true, false]) for (const byteTokens of [true, false]) for (const byte_fallback of [true, false])
    add(`BPE fuse_unk=${fuse_unk} byte_fallback=${byte_fallback} ${byteTokens}`, { normalizer: normalizers.ReplaceString, model: charBpe({ fuse_unk, byte_fallback }, byteTokens), decoder: { type: 'Sequence', decoders: [{ type: 'Replace', pattern: { String: '▁' }, content: ' ' }, { type: 'ByteFallback' }, { type: 'Fuse' }] } });
  add('BPE no unk', { normalizer: normalizers.ReplaceString, model: charBpe({ unk_token: null, byte_fallback: false }, false) });
  for (const [prefix, suffix] of [['##', null], [null, '</w>'], ['##', '</w>'], ['', '']])
    add(`BPE affixes ${prefix} ${suffix}`, { pre_tokenizer: { type: 'Whitespace' }, model: affixBpe(prefix, suffix), decoder: { type: 'BPEDecoder', suffix: suffix || '</w>' } });
  add('WordPiece', { normalizer: normalizers['Bert 0'], pre_tokenizer: pre.BertPreTokenizer, model: wordPiece(), decoder: { type: 'WordPiece', prefix: '##', cleanup: true }, post_processor: { type: 'BertProcessing', sep: ['[SEP]', 2], cls: ['[CLS]', 1] } });
  add('WordPiece no cleanup', { pre_tokenizer: pre.Whitespace, model: wordPiece({ max_input_chars_per_word: 5 }), decoder: { type: 'WordPiece', prefix: '##', cleanup: false } });
  add('Unigram', { normalizer: normalizers.ReplaceString, model: unigram(), decoder: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true } });
  add('Unigram byte_fallback', { normalizer: normalizers.ReplaceString, model: unigram({}, true), decoder: { type: 'Sequence', decoders: [{ type: 'ByteFallback' }, { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: false }] } });
  add('WordLevel', { pre_tokenizer: pre.WhitespaceSplit, model: wordLevel });

  // Post-processors.
  const special = (id) => ({ SpecialToken: { id, type_id: 0 } }), A = { Sequence: { id: 'A', type_id: 0 } }, B = { Sequence: { id: 'B', type_id: 1 } };
  const template = (single) => ({ type: 'TemplateProcessing', single, pair: [A, B], special_tokens: { '<s>': { id: '<s>', ids: [1], tokens: ['<s>'] }, two: { id: 'two', ids: [0, 1], tokens: ['<unk>', '<s>'] } } });
  add('TemplateProcessing', { model: charBpe(), post_processor: template([special('two'), A, special('<s>')]) });
  add('TemplateProcessing in a Sequence', { model: charBpe(), post_processor: { type: 'Sequence', processors: [BYTE_LEVEL, template([special('<s>'), A]), BYTE_LEVEL] } });
  add('RobertaProcessing', { ...bytes, model: byteBpe(), post_processor: { type: 'RobertaProcessing', sep: ['a', 5], cls: ['b', 6], trim_offsets: true, add_prefix_space: true } });

  // Decoders.
  const decoders = { CTC: { type: 'CTC', pad_token: 'e', word_delimiter_token: '▁', cleanup: true }, 'CTC no cleanup': { type: 'CTC', pad_token: 'e', word_delimiter_token: '▁', cleanup: false }, Fuse: { type: 'Fuse' }, ByteFallback: { type: 'ByteFallback' }, BPEDecoder: { type: 'BPEDecoder', suffix: '▁' },
    Strip: { type: 'Strip', content: '▁', start: 1, stop: 0 }, 'Strip end': { type: 'Strip', content: '▁', start: 0, stop: 1 }, 'Fuse Strip': { type: 'Sequence', decoders: [{ type: 'ByteFallback' }, { type: 'Fuse' }, { type: 'Strip', content: '▁', start: 2, stop: 0 }] },
    'Replace regex': { type: 'Replace', pattern: { Regex: '[aeiou]▁?' }, content: '_' }, 'Fuse Replace': { type: 'Sequence', decoders: [{ type: 'Fuse' }, { type: 'Replace', pattern: { String: 'e▁' }, content: '=' }] }, WordPiece: { type: 'WordPiece', prefix: '▁', cleanup: true }, 'Bytes Metaspace': { type: 'Sequence', decoders: [{ type: 'ByteFallback' }, { type: 'Metaspace', replacement: '▁', prepend_scheme: 'never', split: true }, { type: 'Fuse' }] } };
  for (const [name, decoder] of Object.entries(decoders)) add(`decoder ${name}`, { normalizer: normalizers.ReplaceString, model: charBpe(), decoder });
  add('decoder ByteLevel Strip', { pre_tokenizer: BYTE_LEVEL, model: byteBpe(), decoder: { type: 'Sequence', decoders: [BYTE_LEVEL, { type: 'Strip', content: ' ', start: 1, stop: 0 }] } });
  add('no added tokens', { ...bytes, model: byteBpe() }, false);
  return list;
}
