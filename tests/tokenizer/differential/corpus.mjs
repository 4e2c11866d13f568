// Strings to compare tokenizers on, the same for the same seed.

// A small counter-based generator (splitmix64's steps in 32 bits are enough here).
export function random(seed) {
  let s = seed >>> 0;
  const next = () => {
    s = (s + 0x9e3779b9) >>> 0;
    let z = s;
    z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return (z ^ (z >>> 15)) >>> 0;
  };
  return {
    below: (n) => next() % n,
    pick: (list) => list[next() % list.length],
    chance: (p) => next() / 4294967296 < p,
  };
}

export const SENTENCES = [
  'The quick brown fox jumps over the lazy dog, doesn\'t it?', "I'm sure THEY'RE here; WE'LL see what you'd've done.",
  'Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.', 'Où est passé le garçon naïf qui rêvait d\'été à Noël ?',
  'El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío.', 'Příliš žluťoučký kůň úpěl ďábelské ódy.',
  'Pchnąć w tę łódź jeża lub ośm skrzyń fig.', 'Съешь же ещё этих мягких французских булок, да выпей чаю.',
  'Жебракують філософи при ґанку церкви в Гадячі, ще й шатро їхнє п\'яне знаємо.', 'Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.',
  'נוף מזהיר של ים סגול וחבר טוב, עִם נִקּוּד.', 'نص حكيم له سر قاطع وذو شأن عظيم، مكتوب على ثوب أخضر.', 'مُحَمَّدٌ رَسُولٌ ١٢٣٤٥',
  'ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश हुआ।', 'আমি বাংলায় গান গাই, ১২৩।', 'ਸਾਰੇ ਇਨਸਾਨ ਆਜ਼ਾਦ ਹਨ।',
  'யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது எங்கும் காணோம்', 'అందరికీ నమస్కారం, మీరు ఎలా ఉన్నారు?', 'ಎಲ್ಲಾ ಮಾನವರೂ ಸ್ವತಂತ್ರರು.',
  'എല്ലാ മനുഷ്യരും സ്വതന്ത്രരായി ജനിക്കുന്നു.', 'සියලු මනුෂ්‍යයෝ නිදහස්ව උපත ලබා ඇත.', 'เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน',
  'ສະບາຍດີ ທຸກຄົນ', 'မင်္ဂလာပါ ကမ္ဘာလောက', 'សួស្តី​ពិភពលោក', 'བོད་སྐད་ཡིག་གི་ཚིག་ཕྲེང་།', 'გთხოვთ ახლავე გაიაროთ რეგისტრაცია.', 'Բոլոր մարդիկ ծնվում են ազատ։',
  'ሰው ሁሉ ነጻ ሆኖ ተወለደ።', 'ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ', 'いろはにほへと ちりぬるを わかよたれそ つねならむ', '私は昨日、東京タワーへ行きました。ｶﾀｶﾅも。',
  '我能吞下玻璃而不伤身体。', '繁體中文：視野無限廣，窗外有藍天', '키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.', 'Монгол бичиг ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ',
  'Tiếng Việt: Con sói nâu nhảy qua người phụ nữ lười biếng.', 'İstanbul\'da ılık bir gün, IĞDIR; ŞİŞLİ', 'Fix, Schwyz! quäkt Jürgen blöd vom Paß. ẞ ſ K',
  '∀x∈ℝ: ∃y, x² + y² ≤ 1 ∧ ∫₀^∞ e^{-x²} dx = √π⁄2', '\\frac{\\partial f}{\\partial x} = \\sum_{i=1}^{n} \\alpha_i x_i^2', '𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒻𝓊𝓃 𝟘𝟙𝟚 ①②③ Ⅷ ½ ¾ ٣ ৪ 五',
  '👨‍👩‍👧‍👦 👩🏽‍🚀 🏳️‍🌈 🇩🇪🇫🇷 ☺️ ❤️‍🔥 1️⃣ 🤷🏿‍♂️', 'ﬁ ﬂ ﬀ ﷺ ㎏ ℡ Å Ω', 'e\u0301 o\u0308 a\u030A\u0301 Z\u0351\u036B\u0343 n\u0303 q\u0307\u0323',
  'Call +1 (555) 123-4567 or mail a.b-c@example.co.uk; see https://example.org/a?b=c&d=%20#x', '1234567890 3.14159 1,000,000.00 0xDEADBEEF 1e-10 12345678901234567890',
];
export const CODE = [
  'for (int i = 0; i < n; i++) {\n    sum += a[i] * b[i];\n}\n', 'def f(x: int) -> str:\n\treturn f"{x!r:>{10}}"  # comment\n\n\n', 'SELECT * FROM t WHERE a >= 3 AND b LIKE \'%x_\' ORDER BY c;\r\n',
  '<div class="a-b">\n  <p>Hello&nbsp;&amp; <b>bye</b></p>\n</div>', '{"key": [1, 2.5, null, true, "va\\nlue"], "nested": {"a": {}}}', '#include <stdio.h>\nint main(void){printf("%d\\n",42);return 0;}',
  'let x = &mut vec![1u8; 32]; match x { Some(ref y) if *y > 0 => {}, _ => unreachable!() }', '```python\nprint("hi")\n```\n\n- item\n  - sub\n1. one\n', 'A|B\n---|---\n1|2\n', 'std::vector<std::unique_ptr<T>>::const_iterator it;',
  'x=>{return!y&&(z||=w??{...v})}', '-----\n=====\n*****\n//////\n', 'CamelCaseIdentifier snake_case_name SCREAMING_CASE kebab-case someHTMLParser2Go',
];
const SPACES = [' ', '  ', '   ', '\t', '\n', '\r\n', '\n\n', ' \n', '\n ', '\u00a0', '\u3000', '\u2028', '\u200b', '\u0085', '\u2003', '\u1680', '\u180e', '\ufeff', '\v\f'];
const RANGES = [
  [0x00, 0x7f], [0x80, 0x24f], [0x250, 0x36f], [0x370, 0x5ff], [0x600, 0x8ff], [0x900, 0xdff], [0xe00, 0x13ff], [0x1400, 0x1fff], [0x2000, 0x2bff], [0x2c00, 0x2fff],
  [0x3000, 0x30ff], [0x3100, 0x33ff], [0x4e00, 0x9fff], [0xa000, 0xabff], [0xac00, 0xd7a3], [0xe000, 0xf8ff], [0xf900, 0xfdff], [0xfe00, 0xffff], [0x10000, 0x10fff], [0x11000, 0x11fff],
  [0x12000, 0x16fff], [0x1b000, 0x1d0ff], [0x1d100, 0x1dfff], [0x1e000, 0x1efff], [0x1f000, 0x1faff], [0x20000, 0x2a6ff], [0xe0000, 0xe01ef], [0x10fffe, 0x10ffff],
];

function randomCharacters(r, n) {
  let s = '';
  const [low, high] = r.pick(RANGES);
  for (let i = 0; i < n; i++) {
    const c = low + r.below(high - low + 1);
    s += c >= 0xd800 && c <= 0xdfff ? '?' : String.fromCodePoint(c);
  }
  return s;
}

function slice(r, s) {
  const characters = [...s];
  const from = r.below(characters.length);
  return characters.slice(from, from + 1 + r.below(characters.length - from)).join('');
}

// One string of a few fragments; `spellings` are the vocabulary's special tokens.
function fragment(r, spellings) {
  switch (r.below(12)) {
    case 0: case 1: case 2: return r.pick(SENTENCES);
    case 3: return slice(r, r.pick(SENTENCES));
    case 4: return r.pick(CODE);
    case 5: return slice(r, r.pick(CODE));
    case 6: return r.pick(SPACES).repeat(1 + r.below(r.chance(0.1) ? 200 : 6));
    case 7: return randomCharacters(r, 1 + r.below(12));
    case 8: return String.fromCodePoint(r.below(0xd800)).repeat(1 + r.below(r.chance(0.1) ? 300 : 8));
    case 9: return spellings.length ? r.pick(SPACES) + r.pick(spellings) + (r.chance(0.5) ? r.pick(SPACES) : '') : 'x';
    case 10: return spellings.length ? slice(r, r.pick(spellings)) : '<';
    default: return String(r.below(1000000000)) + r.pick(["'s", "'LL", "'ve", 'th', '%', '.', '']);
  }
}

// Cases as Buffers: mostly valid UTF-8, some with bytes knocked over.
export function strings(n, seed, spellings) {
  const r = random(seed), out = [];
  for (const s of ['', ' ', '\n', 'a', '\0', '\ufffd', ...SENTENCES, ...CODE, ...SPACES, ...spellings.slice(0, 300)]) out.push(Buffer.from(s));
  while (out.length < n) {
    let s = '';
    for (let k = 1 + r.below(6); k > 0; k--) s += fragment(r, spellings) + (r.chance(0.4) ? r.pick(SPACES) : '');
    const b = Buffer.from(s);
    if (r.chance(0.05)) for (let k = 1 + r.below(4); k > 0 && b.length; k--) b[r.below(b.length)] = r.below(256);
    out.push(r.chance(0.03) ? b.subarray(0, r.below(b.length + 1)) : b);
  }
  return out;
}

// Long texts: where an algorithm that is not linear, or a cache, would show.
export function longStrings(seed) {
  const out = ['a', ' ', '\n', '=', 'é', '世', '😀', '0', 'ab', ' a', '\u0301'].map((s) => Buffer.from(s.repeat((s === 'a' ? 1 << 20 : 20000) / s.length)));
  out.push(mixedText(300000, seed));
  return out;
}

// Prose of many languages, code and numbers, as a corpus would have them.
export function mixedText(nBytes, seed) {
  const r = random(seed), parts = [];
  const english = 'the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you were all her she there would their we him been has when who will no more if out so up said what its about than into them can only other time new some could these two may first then do any like my now over such our man me even most made after also did many off before must well back through years where much your way down should because long each just state those people too mr how little good world make very year still see own work men day get here old life both between being under three never know same last another while us might great go come since against right came take used himself few house use during without again place american around however home small found mrs part school thought went say general once upon high every war until always away something fact water put though'.split(' ');
  let n = 0;
  while (n < nBytes) {
    let s;
    if (r.chance(0.6)) {
      s = '';
      for (let k = 8 + r.below(30); k > 0; k--) {
        let w = r.pick(english);
        if (r.chance(0.3)) w += r.pick(english); // rarer words
        if (r.chance(0.08)) w = w[0].toUpperCase() + w.slice(1);
        s += w + (r.chance(0.1) ? ', ' : r.chance(0.06) ? '. ' : ' ');
      }
      s += '\n';
    } else if (r.chance(0.5)) s = r.pick(SENTENCES) + '\n';
    else if (r.chance(0.6)) s = r.pick(CODE);
    else s = String(r.below(100000)) + ' ' + r.pick(english) + ' = ' + r.below(1000) / 8 + ';\n';
    const b = Buffer.from(s);
    parts.push(b);
    n += b.length;
  }
  return Buffer.concat(parts);
}
