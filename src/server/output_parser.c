#include "server/output_parser.h"

#include <ctype.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "server/json_mend.h"

enum { NAME_BYTES_MAX = 256 };

enum mode {
    TEXT,       // content
    THINK,      // reasoning
    SECTION,    // between calls of a section
    NAME,       // a call's name
    ARGUMENTS,  // a call's object of arguments (CALL_NAMED, CALL_PYTHON, harmony)
    OBJECT,     // an object with name and arguments (CALL_JSON)
    KEY,        // behind a name or a value: the next argument (CALL_TAGGED)
    VALUE,      // an argument's text (CALL_TAGGED)
    CALL_ENDED, // behind a call's object, up to its closing mark
    HEADER,     // harmony: between parts
};
enum channel { CHANNEL_FINAL, CHANNEL_REASONING, CHANNEL_CALL };

struct output_parser {
    struct output_parser_options o;
    const struct output_format *f;
    enum mode mode;
    struct strbuf in; // what is not settled yet is in.data[pos ..]
    size_t pos;
    bool ended, failed;
    bool skip_newlines; // behind a mark
    bool any_text;      // something other than white space was content
    bool thought;       // a reasoning part has ended
    bool in_section;
    bool in_list;       // of a call's mark: [call, call]
    bool bare;          // the call has no mark: it is one only if its name is declared

    // The call that is being read.
    uint32_t n_calls;
    bool committed;      // CALL_BEGIN was sent
    struct strbuf raw;   // its text, in case it is none
    struct strbuf name, id;
    enum call_body body;
    struct json_mend mend;
    struct strbuf mended; // what came out of mend, not yet sent
    size_t mended_sent;
    struct {
        size_t pos; // in `mended`
        uint32_t depth;
        bool in_string, escaped;
        size_t string_at, value_at; // of the key or value at depth 1
        bool is_value;
        struct strbuf key;
        bool in_arguments; // the value is being sent
    } scan;
    // CALL_TAGGED
    struct strbuf key, value;
    bool first_key, value_is_string, value_text_sent, held_newline, forced_string;
    // harmony
    enum channel channel;
    bool header_seen;
};

// ---- Sending ------------------------------------------------------------------------------------
static void send(struct output_parser *p, enum output_kind kind, struct str text, struct str id) {
    if (text.n == 0 && kind != OUTPUT_CALL_END && kind != OUTPUT_CALL_BEGIN)
        return;
    struct output_piece piece = {.kind = kind, .text = text, .id = id,
                                 .call_idx = p->n_calls - (p->committed ? 1 : 0)};
    p->o.fn(p->o.user, &piece);
}

static void send_text(struct output_parser *p, struct str text) {
    for (size_t i = 0; i < text.n && !p->any_text; i++)
        p->any_text = !isspace((unsigned char)text.data[i]);
    send(p, OUTPUT_CONTENT, text, (struct str){0});
}

static void send_arguments(struct output_parser *p, struct str text) {
    send(p, OUTPUT_CALL_ARGUMENTS, text, (struct str){0});
}

static bool is_declared(const struct output_parser *p, struct str name) {
    for (size_t i = 0; i < json_array_size(p->o.tools); i++)
        if (str_eq(json_str(json_object_get(json_object_get(json_array_get(p->o.tools, i), "function"),
                                            "name")), name))
            return true;
    return false;
}

static bool is_name(struct str name) {
    if (name.n == 0 || name.n > NAME_BYTES_MAX)
        return false;
    for (size_t i = 0; i < name.n; i++)
        if (!isalnum((unsigned char)name.data[i]) && !strchr("_-.:/", name.data[i]))
            return false;
    return true;
}

static struct str trimmed(struct str s) {
    while (s.n && isspace((unsigned char)s.data[0]))
        s = str_slice(s, 1, s.n);
    while (s.n && isspace((unsigned char)s.data[s.n - 1]))
        s.n--;
    return s;
}

// Settle the name: "functions.f:0" is f with that id, as Kimi writes it; functions.f is f unless declared so.
static bool accept_name(struct output_parser *p) {
    struct str name = trimmed(strbuf_str(&p->name));
    if (name.n >= 2 && strchr("\"'`", name.data[0]) && name.data[name.n - 1] == name.data[0])
        name = str_slice(name, 1, name.n - 1);
    if (!is_declared(p, name)) {
        struct str prefix = STR("functions.");
        struct str whole = name;
        if (str_starts(name, prefix))
            name = str_slice(name, prefix.n, name.n);
        size_t digits = name.n;
        while (digits && isdigit((unsigned char)name.data[digits - 1]))
            digits--;
        if (digits && digits < name.n && name.data[digits - 1] == ':') {
            name.n = digits - 1;
            strbuf_clear(&p->id);
            strbuf_append(&p->id, whole);
        }
    }
    if (!is_name(name) || (p->bare && !is_declared(p, name)))
        return false;
    struct strbuf kept = {0};
    strbuf_append(&kept, name);
    strbuf_deinit(&p->name);
    p->name = kept;
    return true;
}

static void begin_call(struct output_parser *p) {
    p->n_calls++;
    p->committed = true;
    send(p, OUTPUT_CALL_BEGIN, strbuf_str(&p->name), strbuf_str(&p->id));
}

// Get ready for a call's text. What `raw` holds already belongs to it.
static void reset_call(struct output_parser *p) {
    p->committed = false;
    strbuf_clear(&p->name);
    strbuf_clear(&p->id);
    json_mend_deinit(&p->mend);
    json_mend_init(&p->mend, p->f->string_mark, p->body == CALL_PYTHON);
    strbuf_clear(&p->mended);
    p->mended_sent = 0;
    strbuf_deinit(&p->scan.key);
    memset(&p->scan, 0, sizeof p->scan);
    p->first_key = true;
}

static void end_call(struct output_parser *p) {
    send(p, OUTPUT_CALL_END, (struct str){0}, (struct str){0});
    p->committed = false;
    strbuf_clear(&p->raw);
}

// ---- Marks in the input ---------------------------------------------------------------------------
enum match { MATCH_NO, MATCH_MORE, MATCH_YES }; // MORE: the input ends inside it

static enum match match_at(const struct output_parser *p, size_t at, const char *mark) {
    if (!mark)
        return MATCH_NO;
    size_t n = strlen(mark), have = p->in.n - at;
    size_t m = n < have ? n : have;
    if (memcmp(p->in.data + at, mark, m) != 0)
        return MATCH_NO;
    return m == n ? MATCH_YES : p->ended ? MATCH_NO : MATCH_MORE;
}

// Behind `at`, past white space: MATCH_YES if nothing or one of the marks follows.
static enum match ends_there(const struct output_parser *p, size_t at) {
    while (at < p->in.n && isspace((unsigned char)p->in.data[at]))
        at++;
    if (at == p->in.n)
        return p->ended ? MATCH_YES : MATCH_MORE;
    const char *const marks[] = {p->f->call_open, p->f->section_close, p->f->section_open};
    enum match best = MATCH_NO;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        enum match m = match_at(p, at, marks[i]);
        best = m > best ? m : best;
    }
    return best;
}

static size_t rest(const struct output_parser *p) {
    return p->in.n - p->pos;
}

static void take_raw(struct output_parser *p, size_t n) {
    strbuf_append(&p->raw, (struct str){p->in.data + p->pos, n});
    p->pos += n;
}

// The text that looked like a call is content.
static void give_up(struct output_parser *p) {
    struct strbuf raw = p->raw;
    p->raw = (struct strbuf){0};
    p->committed = false;
    send_text(p, strbuf_str(&raw));
    p->failed |= raw.failed;
    strbuf_deinit(&raw);
    p->mode = TEXT;
    p->in_section = p->in_list = false;
    p->skip_newlines = false;
}

static void after_call(struct output_parser *p) {
    p->mode = p->in_section ? SECTION : TEXT;
    p->skip_newlines = true;
}

// ---- Text and reasoning -----------------------------------------------------------------------------
static bool wants_calls(const struct output_parser *p) {
    return p->o.tools && p->f->body != CALL_NONE;
}

static void enter_call(struct output_parser *p, enum call_body body) {
    p->body = body;
    p->in_list = false;
    reset_call(p);
    p->mode = body == CALL_JSON ? OBJECT : NAME;
}

// The whole answer may be a call without any mark: does the input begin like one?
static enum match begins_bare_call(const struct output_parser *p, size_t at) {
    if (p->f->call_open || p->any_text || p->n_calls || (p->f->body != CALL_JSON && p->f->body != CALL_PYTHON))
        return MATCH_NO;
    const char *s = p->in.data;
    if (p->f->body == CALL_JSON)
        return s[at] == '{' || s[at] == '[' ? MATCH_YES : MATCH_NO;
    if (s[at] != '[')
        return MATCH_NO;
    size_t i = at + 1;
    while (i < p->in.n && isspace((unsigned char)s[i]))
        i++;
    size_t from = i;
    while (i < p->in.n && (isalnum((unsigned char)s[i]) || s[i] == '_' || s[i] == '.'))
        i++;
    if (i == p->in.n)
        return p->ended ? MATCH_NO : MATCH_MORE;
    return s[i] == '(' && is_declared(p, (struct str){s + from, i - from}) ? MATCH_YES : MATCH_NO;
}

static bool step_text(struct output_parser *p) {
    const struct output_format *f = p->f;
    bool calls = wants_calls(p);
    while (p->skip_newlines && rest(p)) {
        if (p->in.data[p->pos] != '\n' && p->in.data[p->pos] != '\r') {
            p->skip_newlines = false;
            break;
        }
        p->pos++;
    }
    size_t start = p->pos, solid = start; // solid: behind the last byte that is no white space
    for (size_t at = start; at < p->in.n; at++) {
        const char c = p->in.data[at];
        if (isspace((unsigned char)c))
            continue;
        bool first = !p->any_text && solid == start;
        bool marks = !p->o.whole || first;
        enum match think = !p->o.exact || (first && !p->thought) ? match_at(p, at, f->think_open) : MATCH_NO;
        enum match section = calls && marks ? match_at(p, at, f->section_open) : MATCH_NO;
        enum match call = calls && marks ? match_at(p, at, f->call_open) : MATCH_NO;
        enum match bare = calls && solid == start ? begins_bare_call(p, at) : MATCH_NO;
        if (think == MATCH_YES || section == MATCH_YES || call == MATCH_YES || bare == MATCH_YES) {
            if (solid > start)
                send_text(p, (struct str){p->in.data + start, solid - start});
            size_t n = think == MATCH_YES     ? strlen(f->think_open)
                       : section == MATCH_YES ? strlen(f->section_open)
                       : call == MATCH_YES    ? strlen(f->call_open)
                                              : 0;
            strbuf_clear(&p->raw);
            p->pos = at;
            if (think == MATCH_YES) {
                p->pos += n;
                p->mode = THINK;
                p->skip_newlines = true;
                return true;
            }
            p->pos = solid; // the white space in front belongs to it, should it be no call
            take_raw(p, at - solid + n);
            p->bare = bare == MATCH_YES;
            p->in_section = section == MATCH_YES;
            if (section == MATCH_YES) {
                p->mode = SECTION;
                return true;
            }
            enter_call(p, f->body);
            return true;
        }
        if (think == MATCH_MORE || section == MATCH_MORE || call == MATCH_MORE || bare == MATCH_MORE)
            break;
        solid = at + 1;
    }
    if (p->ended)
        solid = p->in.n;
    if (solid > start)
        send_text(p, (struct str){p->in.data + start, solid - start});
    p->pos = solid;
    return false;
}

static bool step_think(struct output_parser *p) {
    while (p->skip_newlines && rest(p) && (p->in.data[p->pos] == '\n' || p->in.data[p->pos] == '\r'))
        p->pos++;
    if (!rest(p))
        return false;
    size_t start = p->pos, solid = start;
    // The mark may be written once more where the prompt had it already.
    enum match again = p->skip_newlines ? match_at(p, start, p->f->think_open) : MATCH_NO;
    if (again == MATCH_YES) {
        p->pos += strlen(p->f->think_open);
        return true;
    }
    if (again == MATCH_MORE)
        return false;
    for (size_t at = start; at < p->in.n; at++) {
        if (isspace((unsigned char)p->in.data[at]))
            continue;
        enum match close = match_at(p, at, p->f->think_close);
        if (close == MATCH_YES) {
            send(p, OUTPUT_REASONING, (struct str){p->in.data + start, solid - start}, (struct str){0});
            p->pos = at + strlen(p->f->think_close);
            p->mode = TEXT;
            p->thought = true;
            p->skip_newlines = true;
            return true;
        }
        if (close == MATCH_MORE)
            break;
        solid = at + 1;
    }
    if (p->ended)
        solid = p->in.n;
    if (solid > start)
        p->skip_newlines = false;
    send(p, OUTPUT_REASONING, (struct str){p->in.data + start, solid - start}, (struct str){0});
    p->pos = solid;
    return false;
}

// ---- Between the calls of a section ------------------------------------------------------------------
static bool step_section(struct output_parser *p) {
    const struct output_format *f = p->f;
    size_t at = p->pos;
    while (at < p->in.n && isspace((unsigned char)p->in.data[at]))
        at++;
    if (at == p->in.n) {
        if (p->ended)
            give_up(p); // an opening mark with nothing behind it
        return false;
    }
    enum match close = match_at(p, at, f->section_close);
    enum match call = match_at(p, at, f->call_open);
    if (close == MATCH_YES) {
        p->pos = at + strlen(f->section_close);
        strbuf_clear(&p->raw);
        p->in_section = false;
        p->mode = TEXT;
        p->skip_newlines = true;
        return true;
    }
    if (call == MATCH_YES) {
        take_raw(p, at - p->pos + strlen(f->call_open));
        enter_call(p, f->body);
        return true;
    }
    if (close == MATCH_MORE || call == MATCH_MORE)
        return false;
    char c = p->in.data[at];
    // Families that write JSON, or a list of calls, right behind the section's mark.
    if (c == '{' || c == '[' || (f->body == CALL_PYTHON && !f->call_open)) {
        take_raw(p, at - p->pos);
        bool python = f->body == CALL_PYTHON && c != '{';
        enter_call(p, python ? CALL_PYTHON : CALL_JSON);
        return true;
    }
    if (strbuf_str(&p->raw).n) { // no call at all
        give_up(p);
        return true;
    }
    p->in_section = false; // text behind the calls, the section's closing mark is missing
    p->mode = TEXT;
    return true;
}

// ---- Mended JSON out ----------------------------------------------------------------------------------
static void send_mended(struct output_parser *p) {
    if (p->committed && p->mended.n > p->mended_sent)
        send_arguments(p, str_slice(strbuf_str(&p->mended), p->mended_sent, p->mended.n));
    p->mended_sent = p->mended.n;
}

// Follow an object of name and arguments as it grows, and send the arguments once the name is known.
static void scan_object(struct output_parser *p) {
    const char *s = p->mended.data;
    size_t send_from = SIZE_MAX;
    for (; p->scan.pos < p->mended.n; p->scan.pos++) {
        size_t i = p->scan.pos;
        char c = s[i];
        if (p->scan.in_arguments && send_from == SIZE_MAX)
            send_from = i;
        if (p->scan.in_string) {
            if (p->scan.escaped)
                p->scan.escaped = false;
            else if (c == '\\')
                p->scan.escaped = true;
            else if (c == '"') {
                p->scan.in_string = false;
                if (p->scan.depth != 1)
                    continue;
                struct str text = {s + p->scan.string_at, i - p->scan.string_at};
                struct str key = strbuf_str(&p->scan.key);
                if (!p->scan.is_value) {
                    strbuf_clear(&p->scan.key);
                    strbuf_append(&p->scan.key, text);
                } else if (str_eq_c(key, "name") || str_eq_c(key, "tool_name")) {
                    strbuf_clear(&p->name);
                    strbuf_append(&p->name, text);
                } else if (str_eq_c(key, "id") || str_eq_c(key, "tool_call_id")) {
                    strbuf_clear(&p->id);
                    strbuf_append(&p->id, text);
                }
            }
            continue;
        }
        switch (c) {
        case '"':
            p->scan.in_string = true;
            p->scan.string_at = i + 1;
            break;
        case '{':
        case '[':
            if (c == '{' && p->scan.depth == 1 && p->scan.is_value && !p->committed && p->name.n &&
                (str_eq_c(strbuf_str(&p->scan.key), "arguments") ||
                 str_eq_c(strbuf_str(&p->scan.key), "parameters")) && accept_name(p)) {
                begin_call(p);
                p->scan.in_arguments = true;
                send_from = i;
            }
            p->scan.depth++;
            break;
        case '}':
        case ']':
            p->scan.depth--;
            if (p->scan.depth == 1 && p->scan.in_arguments) {
                p->scan.in_arguments = false;
                send_arguments(p, (struct str){s + send_from, i + 1 - send_from});
                send_from = SIZE_MAX;
            }
            break;
        case ':':
            if (p->scan.depth == 1)
                p->scan.is_value = true;
            break;
        case ',':
            if (p->scan.depth == 1)
                p->scan.is_value = false;
            break;
        default:
            break;
        }
    }
    if (p->scan.in_arguments && send_from != SIZE_MAX)
        send_arguments(p, (struct str){s + send_from, p->mended.n - send_from});
}

// A whole object in another order or another shape: nested in "function", with the name among the arguments,
// or with the arguments beside the name.
static bool read_whole_object(struct output_parser *p) {
    struct err ignored;
    json_t *object = json_parse(strbuf_str(&p->mended), "call", &ignored);
    json_t *call = json_is_object(json_object_get(object, "function")) ? json_object_get(object, "function")
                                                                        : object;
    static const char *const NAME_KEYS[] = {"name", "tool_name", "function", "tool"};
    static const char *const ARGUMENT_KEYS[] = {"arguments", "parameters", "args", "input", "params"};
    json_t *name = NULL, *arguments = NULL;
    for (size_t i = 0; !name && i < sizeof NAME_KEYS / sizeof *NAME_KEYS; i++)
        if (json_is_string(json_object_get(call, NAME_KEYS[i])))
            name = json_object_get(call, NAME_KEYS[i]);
    for (size_t i = 0; !arguments && i < sizeof ARGUMENT_KEYS / sizeof *ARGUMENT_KEYS; i++)
        arguments = json_object_get(call, ARGUMENT_KEYS[i]);
    json_incref(name);
    json_t *made = NULL;
    if (!name && json_is_object(arguments) && json_is_string(json_object_get(arguments, "name")) &&
        is_declared(p, json_str(json_object_get(arguments, "name")))) { // misplaced
        name = json_incref(json_object_get(arguments, "name"));
        json_object_del(arguments, "name");
    }
    if (json_is_string(arguments)) { // JSON in a string
        struct json_mend inner;
        struct strbuf text = {0};
        json_mend_init(&inner, NULL, false);
        struct str s = trimmed(json_str(arguments));
        for (size_t i = 0; i < s.n && !inner.complete; i++)
            json_mend_push(&inner, s.data[i], &text);
        if (!inner.complete)
            json_mend_finish(&inner, &text);
        made = s.n ? json_parse(strbuf_str(&text), "arguments", &ignored) : json_object();
        json_mend_deinit(&inner);
        strbuf_deinit(&text);
    } else if (!arguments && name) { // beside the name; only for a name that is known: any object may have one
        if (is_declared(p, json_str(name))) {
            made = json_copy(call);
            for (size_t i = 0; i < sizeof NAME_KEYS / sizeof *NAME_KEYS; i++)
                json_object_del(made, NAME_KEYS[i]);
            json_object_del(made, "type");
            json_object_del(made, "id");
        }
    } else if (json_is_null(arguments)) {
        made = json_object();
    } else {
        made = json_incref(arguments);
    }
    bool ok = json_is_string(name) && json_is_object(made);
    if (ok) {
        strbuf_clear(&p->name);
        strbuf_append(&p->name, json_str(name));
        const json_t *id = json_object_get(object, "id");
        if (json_is_string(id)) {
            strbuf_clear(&p->id);
            strbuf_append(&p->id, json_str(id));
        }
        ok = accept_name(p);
    }
    if (ok) {
        struct strbuf text = {0};
        strbuf_json(&text, made);
        begin_call(p);
        send_arguments(p, strbuf_str(&text));
        p->failed |= text.failed;
        strbuf_deinit(&text);
    }
    json_decref(name);
    json_decref(made);
    json_decref(object);
    return ok;
}

// The first key shows early that an answer of JSON is no call.
static bool is_other_json(const struct output_parser *p) {
    static const char *const KEYS[] = {"name", "type", "function", "id", "parameters", "arguments",
                                       "tool_name", "tool_call_id"};
    struct str key = strbuf_str(&p->scan.key);
    if (!p->bare || p->committed || key.n == 0)
        return false;
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++)
        if (str_eq_c(key, KEYS[i]))
            return false;
    return true;
}

// A closing mark at `at`: of the call or its section. In a string it only counts if the text ends there.
static enum match closes_at(const struct output_parser *p, size_t at, bool in_string) {
    const char *const marks[] = {p->f->call_close, p->f->section_close};
    for (size_t i = 0; i < 2; i++) {
        enum match m = match_at(p, at, marks[i]);
        if (in_string && p->o.exact)
            m = MATCH_NO;
        if (m == MATCH_YES && in_string)
            m = ends_there(p, at + strlen(marks[i]));
        if (m != MATCH_NO)
            return m;
    }
    return MATCH_NO;
}

// Feed the mender up to the end of its value, a closing mark, or the end of the input. False: more input is
// needed. *closed: a closing mark ended it.
static bool feed_mend(struct output_parser *p, bool *closed) {
    *closed = false;
    while (rest(p) && !p->mend.complete) {
        bool in_string = json_mend_in_string(&p->mend);
        enum match m = closes_at(p, p->pos, in_string);
        if (m == MATCH_MORE)
            return false;
        if (m == MATCH_YES) {
            *closed = true;
            return true;
        }
        char c = p->in.data[p->pos];
        take_raw(p, 1);
        json_mend_push(&p->mend, c, &p->mended);
    }
    return p->mend.complete || p->ended;
}

// ---- CALL_JSON ----------------------------------------------------------------------------------------
static bool is_fence_byte(char c) {
    return isspace((unsigned char)c) || c == '`' || isalpha((unsigned char)c);
}

static bool step_object(struct output_parser *p) {
    // In front of an object: white space, a list's bracket, a comma, a code fence.
    while (p->mend.state == 0 && p->mend.depth == 0 && rest(p)) {
        char c = p->in.data[p->pos];
        if (c == '{')
            break;
        enum match close = closes_at(p, p->pos, false);
        if (close == MATCH_MORE)
            return false;
        if (close == MATCH_YES) {
            give_up(p);
            return true;
        }
        if (c == '[' && !p->in_list) {
            p->in_list = true;
        } else if (p->in_list && c == ']' && p->bare) { // an empty list is an answer
            give_up(p);
            return true;
        } else if (!(p->bare ? isspace((unsigned char)c) : is_fence_byte(c))) {
            give_up(p);
            return true;
        }
        take_raw(p, 1);
    }
    if (!rest(p) && p->mend.depth == 0 && !p->mend.complete) {
        if (p->ended)
            give_up(p);
        return false;
    }
    bool closed, more = !feed_mend(p, &closed);
    if (!more && !p->mend.complete)
        json_mend_finish(&p->mend, &p->mended);
    scan_object(p);
    if (is_other_json(p)) {
        give_up(p);
        return true;
    }
    if (more)
        return false;
    if (!p->committed && !read_whole_object(p)) {
        give_up(p);
        return true;
    }
    end_call(p);
    p->mode = CALL_ENDED;
    return true;
}

// ---- CALL_NAMED and CALL_PYTHON -------------------------------------------------------------------------
static bool step_name(struct output_parser *p) {
    const struct output_format *f = p->f;
    bool python = p->body == CALL_PYTHON;
    size_t at = p->pos;
    while (at < p->in.n && isspace((unsigned char)p->in.data[at]))
        at++;
    if (python && at < p->in.n && p->in.data[at] == '[' && !p->in_list) {
        p->in_list = true;
        take_raw(p, at + 1 - p->pos);
        return true;
    }
    // JSON where the name should be: the older form of several families.
    if (!python && at < p->in.n && (p->in.data[at] == '{' || p->in.data[at] == '[')) {
        take_raw(p, at - p->pos);
        p->body = CALL_JSON;
        reset_call(p);
        p->mode = OBJECT;
        return true;
    }
    enum match open = f->name_open ? match_at(p, at, f->name_open) : MATCH_NO;
    if (open == MATCH_MORE)
        return false;
    size_t from = open == MATCH_YES ? at + strlen(f->name_open) : at;
    for (size_t i = from; i < p->in.n; i++) {
        char c = p->in.data[i];
        size_t skip = SIZE_MAX;
        enum match name_close = f->name_close ? match_at(p, i, f->name_close) : MATCH_NO;
        enum match close = closes_at(p, i, false);
        enum match key = p->body == CALL_TAGGED ? match_at(p, i, f->key_open) : MATCH_NO;
        enum match id = match_at(p, i, "[CALL_ID]");
        if (name_close == MATCH_MORE || close == MATCH_MORE || key == MATCH_MORE || id == MATCH_MORE)
            return false;
        if (name_close == MATCH_YES)
            skip = strlen(f->name_close);
        else if (close == MATCH_YES || key == MATCH_YES || (python ? c == '(' : c == '{') ||
                 (c == '\n' && p->body == CALL_NAMED && i > from))
            skip = 0;
        else if (id == MATCH_YES && p->body == CALL_NAMED) { // Mistral's: name[CALL_ID]id[ARGS]{...}
            strbuf_append(&p->name, (struct str){p->in.data + from, i - from});
            take_raw(p, i + 9 - p->pos);
            return true;
        }
        if (skip == SIZE_MAX) {
            if (i - from > NAME_BYTES_MAX)
                break;
            continue;
        }
        struct str text = {p->in.data + from, i - from};
        if (p->name.n) {
            strbuf_append(&p->id, trimmed(text));
        } else {
            strbuf_append(&p->name, text);
        }
        take_raw(p, i + skip - p->pos);
        if (!accept_name(p)) {
            give_up(p);
        } else if (p->body == CALL_TAGGED) {
            begin_call(p);
            p->mode = KEY;
        } else {
            p->mode = ARGUMENTS;
        }
        return true;
    }
    if (p->in.n - from > NAME_BYTES_MAX || p->ended) {
        take_raw(p, rest(p) && !p->ended ? 1 : rest(p));
        give_up(p);
        return true;
    }
    return false;
}

static bool step_arguments(struct output_parser *p) {
    bool python = p->body == CALL_PYTHON;
    while (p->mend.depth == 0 && !p->mend.complete) {
        if (!rest(p)) {
            if (p->ended)
                give_up(p);
            return false;
        }
        char c = p->in.data[p->pos];
        enum match close = closes_at(p, p->pos, false);
        if (close == MATCH_MORE)
            return false;
        if (close == MATCH_YES) { // a call without arguments
            begin_call(p);
            send_arguments(p, STR("{}"));
            end_call(p);
            p->mode = CALL_ENDED;
            return true;
        }
        if (c == (python ? '(' : '{')) {
            take_raw(p, 1);
            json_mend_open_object(&p->mend, python ? ')' : '}', &p->mended);
            begin_call(p);
        } else if (is_fence_byte(c)) {
            take_raw(p, 1);
        } else {
            give_up(p);
            return true;
        }
    }
    bool closed, more = !feed_mend(p, &closed);
    if (!more && !p->mend.complete)
        json_mend_finish(&p->mend, &p->mended);
    send_mended(p);
    if (more)
        return false;
    end_call(p);
    p->mode = CALL_ENDED;
    return true;
}

// Behind a call's object: its closing mark, or the next of the list; one bracket too many and a fence go.
static bool step_call_ended(struct output_parser *p) {
    const struct output_format *f = p->f;
    size_t at = p->pos;
    for (; at < p->in.n; at++) {
        char c = p->in.data[at];
        enum match close = match_at(p, at, f->call_close);
        enum match section = match_at(p, at, f->section_close);
        if (close == MATCH_MORE || section == MATCH_MORE)
            return false;
        if (close == MATCH_YES) {
            p->pos = at + strlen(f->call_close);
            after_call(p);
            return true;
        }
        if (section == MATCH_YES) {
            p->pos = at;
            p->in_section = true;
            p->mode = SECTION;
            return true;
        }
        if (c == '{' && p->body == CALL_JSON) {
            p->pos = at;
            reset_call(p);
            p->mode = OBJECT;
            return true;
        }
        if ((c == ',' || c == ';') && (p->in_list || p->body == CALL_JSON))
            continue;
        if (c == ']' && p->in_list && !f->call_close) {
            p->pos = at + 1;
            p->in_list = false;
            after_call(p);
            return true;
        }
        if (p->body == CALL_PYTHON && p->in_list && (isalpha((unsigned char)c) || c == '_')) {
            p->pos = at;
            reset_call(p);
            p->mode = NAME;
            return true;
        }
        if (isspace((unsigned char)c) || c == '`' || c == ']' || c == '}')
            continue;
        p->pos = at; // no closing mark: what follows is text, or the next call
        after_call(p);
        return true;
    }
    if (p->ended)
        p->pos = at;
    return false;
}

// ---- CALL_TAGGED ----------------------------------------------------------------------------------------
static const json_t *schema_of(const struct output_parser *p, struct str key) {
    for (size_t i = 0; i < json_array_size(p->o.tools); i++) {
        const json_t *function = json_object_get(json_array_get(p->o.tools, i), "function");
        if (str_eq(json_str(json_object_get(function, "name")), strbuf_str(&p->name)))
            return json_object_getn(json_object_get(json_object_get(function, "parameters"), "properties"),
                                    key.data, key.n);
    }
    return NULL;
}

static bool type_is(const json_t *type, const char *wanted) {
    if (json_is_string(type))
        return strcmp(json_string_value(type), wanted) == 0;
    for (size_t i = 0; i < json_array_size(type); i++)
        if (type_is(json_array_get(type, i), wanted))
            return true;
    return false;
}

// Does the schema allow this type? `depth` bounds anyOf in anyOf.
static bool schema_allows(const json_t *schema, const char *type, int depth) {
    if (type_is(json_object_get(schema, "type"), type))
        return true;
    const json_t *values = json_object_get(schema, "enum");
    for (size_t i = 0; strcmp(type, "string") == 0 && i < json_array_size(values); i++)
        if (json_is_string(json_array_get(values, i)))
            return true;
    static const char *const ANY[] = {"anyOf", "oneOf"};
    for (size_t a = 0; depth < 4 && a < 2; a++) {
        const json_t *any = json_object_get(schema, ANY[a]);
        for (size_t i = 0; i < json_array_size(any); i++)
            if (schema_allows(json_array_get(any, i), type, depth + 1))
                return true;
    }
    return false;
}

static void open_value(struct output_parser *p) {
    struct str key = trimmed(strbuf_str(&p->key));
    struct strbuf out = {0};
    p->forced_string = false;
    static const char *const FLAGS[] = {"\" string=\"true", "\" string=\"false"};
    bool typed = false;
    for (size_t i = 0; i < 2; i++) { // DSML says itself whether a value is a string
        if (str_ends(key, str_from(FLAGS[i]))) {
            key.n -= strlen(FLAGS[i]);
            p->forced_string = i == 0;
            typed = true;
        }
    }
    if (key.n >= 2 && key.data[0] == '"' && key.data[key.n - 1] == '"')
        key = str_slice(key, 1, key.n - 1);
    const json_t *schema = schema_of(p, key);
    // Only a value that can be nothing but a string goes out while it comes.
    p->value_is_string = p->forced_string ||
                         (!typed && schema_allows(schema, "string", 0) && !schema_allows(schema, "null", 0));
    strbuf_append_c(&out, p->first_key ? "{" : ",");
    strbuf_json_string(&out, key);
    strbuf_char(&out, ':');
    if (p->value_is_string)
        strbuf_char(&out, '"');
    send_arguments(p, strbuf_str(&out));
    p->failed |= out.failed;
    strbuf_deinit(&out);
    struct strbuf kept = {0};
    strbuf_append(&kept, key);
    strbuf_deinit(&p->key);
    p->key = kept;
    p->first_key = false;
    p->value_text_sent = p->held_newline = false;
    strbuf_clear(&p->value);
}

static void end_tagged(struct output_parser *p) {
    send_arguments(p, p->first_key ? STR("{}") : STR("}"));
    end_call(p);
}

static bool step_key(struct output_parser *p) {
    const struct output_format *f = p->f;
    for (size_t at = p->pos; at < p->in.n; at++) {
        enum match key = match_at(p, at, f->key_open);
        enum match close = closes_at(p, at, false);
        enum match call = match_at(p, at, f->call_open);
        if (key == MATCH_MORE || close == MATCH_MORE || call == MATCH_MORE)
            return false;
        if (close == MATCH_YES || call == MATCH_YES) {
            end_tagged(p);
            p->pos = at;
            p->mode = CALL_ENDED;
            return true;
        }
        if (key != MATCH_YES)
            continue; // what stands between arguments says nothing
        size_t from = at + strlen(f->key_open);
        for (size_t i = from; i < p->in.n; i++) {
            enum match key_close = match_at(p, i, f->key_close);
            if (key_close == MATCH_MORE)
                return false;
            if (key_close == MATCH_NO)
                continue;
            size_t behind = i + strlen(f->key_close);
            if (f->value_open) {
                while (behind < p->in.n && isspace((unsigned char)p->in.data[behind]))
                    behind++;
                if (behind == p->in.n && !p->ended)
                    return false;
                enum match open = match_at(p, behind, f->value_open);
                if (open == MATCH_MORE)
                    return false;
                if (open == MATCH_YES)
                    behind += strlen(f->value_open);
            }
            strbuf_clear(&p->key);
            strbuf_append(&p->key, (struct str){p->in.data + from, i - from});
            p->pos = behind;
            open_value(p);
            p->mode = VALUE;
            return true;
        }
        if (p->ended) {
            p->pos = p->in.n;
            end_tagged(p);
            p->mode = TEXT;
        }
        return false;
    }
    if (p->ended) {
        p->pos = p->in.n;
        end_tagged(p);
        p->mode = TEXT;
    }
    return false;
}

static void value_text(struct output_parser *p, struct str text) {
    if (!p->value_is_string) {
        strbuf_append(&p->value, text);
        return;
    }
    struct strbuf quoted = {0};
    strbuf_json_string(&quoted, text);
    if (quoted.n > 2)
        send_arguments(p, str_slice(strbuf_str(&quoted), 1, quoted.n - 1));
    p->failed |= quoted.failed;
    strbuf_deinit(&quoted);
}

// Does the JSON value fit what the schema says?
static bool value_fits(const json_t *schema, const json_t *value) {
    const char *type = json_is_object(value)    ? "object"
                       : json_is_array(value)   ? "array"
                       : json_is_boolean(value) ? "boolean"
                       : json_is_null(value)    ? "null"
                       : json_is_integer(value) ? "integer"
                       : json_is_real(value)    ? "number"
                                                : "string";
    if (json_is_string(value))
        return schema_allows(schema, "string", 0);
    return schema_allows(schema, type, 0) || (json_is_integer(value) && schema_allows(schema, "number", 0)) ||
           (!json_object_get(schema, "type") && !json_object_get(schema, "enum") &&
            !json_object_get(schema, "anyOf") && !json_object_get(schema, "oneOf"));
}

static void close_value(struct output_parser *p) {
    if (p->value_is_string) {
        send_arguments(p, STR("\""));
        return;
    }
    struct str text = strbuf_str(&p->value), bare = trimmed(text);
    const json_t *schema = schema_of(p, strbuf_str(&p->key));
    struct strbuf out = {0};
    struct err ignored;
    struct json_mend mend;
    json_mend_init(&mend, NULL, false);
    bool container = bare.n && (bare.data[0] == '{' || bare.data[0] == '[');
    size_t i = 0;
    if (container) {
        for (; i < bare.n && !mend.complete; i++)
            json_mend_push(&mend, bare.data[i], &out);
        if (!mend.complete)
            json_mend_finish(&mend, &out);
    } else if (str_eq_c(bare, "True") || str_eq_c(bare, "False") || str_eq_c(bare, "None")) {
        strbuf_append_c(&out, bare.data[0] == 'T' ? "true" : bare.data[0] == 'F' ? "false" : "null");
        i = bare.n;
    } else {
        strbuf_append(&out, bare);
        i = bare.n;
    }
    json_t *value = i == bare.n && out.n ? json_parse(strbuf_str(&out), "value", &ignored) : NULL;
    bool plain = value && !json_is_string(value) && value_fits(schema, value);
    if (!plain) {
        strbuf_clear(&out);
        // A quoted string counts as one only where the schema has no strings that could hold the quotes.
        strbuf_json_string(&out, text.n ? text : STR(""));
    }
    send_arguments(p, strbuf_str(&out));
    p->failed |= out.failed;
    json_mend_deinit(&mend);
    strbuf_deinit(&out);
    json_decref(value);
}

static bool step_value(struct output_parser *p) {
    const struct output_format *f = p->f;
    // One line break frames the value on either side. CDATA frames it too.
    if (!p->value_text_sent) {
        if (!rest(p) && !p->ended)
            return false;
        enum match cdata = rest(p) ? match_at(p, p->pos, "<![CDATA[") : MATCH_NO;
        if (cdata == MATCH_MORE)
            return false;
        if (cdata == MATCH_YES) {
            size_t from = p->pos + 9;
            for (size_t i = from; i < p->in.n; i++) {
                enum match end = match_at(p, i, "]]>");
                if (end == MATCH_NO)
                    continue;
                if (end == MATCH_MORE)
                    return false;
                value_text(p, (struct str){p->in.data + from, i - from});
                p->pos = i + 3;
                p->value_text_sent = true;
                return true;
            }
            if (!p->ended)
                return false;
        } else if (rest(p) && p->in.data[p->pos] == '\n') {
            p->pos++;
        }
        p->value_text_sent = true;
    }
    size_t start = p->pos, safe = start;
    for (size_t at = start; at < p->in.n; at++) {
        enum match close = match_at(p, at, f->value_close);
        if (close == MATCH_NO && f->call_close && !p->o.exact) { // the value's own mark is missing
            close = match_at(p, at, f->call_close);
            if (close == MATCH_YES && ends_there(p, at + strlen(f->call_close)) != MATCH_YES)
                close = ends_there(p, at + strlen(f->call_close)) == MATCH_MORE ? MATCH_MORE : MATCH_NO;
        }
        if (close == MATCH_MORE)
            break;
        if (close == MATCH_YES) {
            size_t end = at;
            if (end > start && p->in.data[end - 1] == '\n')
                end--;
            value_text(p, (struct str){p->in.data + start, end - start});
            close_value(p);
            p->pos = match_at(p, at, f->value_close) == MATCH_YES ? at + strlen(f->value_close) : at;
            p->mode = KEY;
            return true;
        }
        safe = p->in.data[at] == '\n' ? at : at + 1;
    }
    if (p->ended)
        safe = p->in.n > start && p->in.data[p->in.n - 1] == '\n' ? p->in.n - 1 : p->in.n;
    value_text(p, (struct str){p->in.data + start, safe - start});
    p->pos = safe;
    if (p->ended) {
        p->pos = p->in.n;
        close_value(p);
        p->mode = KEY;
        return true;
    }
    return false;
}

// ---- Harmony ---------------------------------------------------------------------------------------------
// Parts are <|start|>role to=recipient<|channel|>name to=recipient <|constrain|>json<|message|>text<|end|>.
// Source: OpenAI, "OpenAI harmony response format".
static const char *const PART_ENDS[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"};
enum { N_PART_ENDS = sizeof PART_ENDS / sizeof *PART_ENDS };

static enum match part_ends_at(const struct output_parser *p, size_t at, size_t *n) {
    for (size_t i = 0; i < N_PART_ENDS; i++) {
        enum match m = match_at(p, at, PART_ENDS[i]);
        if (m == MATCH_NO)
            continue;
        *n = i < 3 ? strlen(PART_ENDS[i]) : 0; // the last two begin the next part
        return m;
    }
    return MATCH_NO;
}

static struct str word_behind(struct str text, struct str mark) {
    size_t at = str_find(text, mark, 0);
    if (at == SIZE_MAX)
        return (struct str){0};
    size_t from = at + mark.n, to = from;
    while (to < text.n && !isspace((unsigned char)text.data[to]) && text.data[to] != '<')
        to++;
    return str_slice(text, from, to);
}

static bool step_header(struct output_parser *p) {
    struct str in = {p->in.data + p->pos, rest(p)}, first = in;
    while (first.n && isspace((unsigned char)first.data[0]))
        first = str_slice(first, 1, first.n);
    // An answer that begins like no part is plain text.
    bool part = p->header_seen || first.n == 0 || first.data[0] == '<' ||
                memcmp(first.data, "to=", first.n < 3 ? first.n : 3) == 0;
    size_t message = part ? str_find(in, STR("<|message|>"), 0) : SIZE_MAX;
    if (message == SIZE_MAX) {
        if (part && !p->ended)
            return false;
        if (part && p->header_seen) { // only marks and a header are left over
            p->pos = p->in.n;
            return false;
        }
        p->channel = CHANNEL_FINAL;
        p->header_seen = true;
        p->mode = TEXT;
        return rest(p) > 0;
    }
    struct str header = str_slice(in, 0, message);
    struct str recipient = word_behind(header, STR("to="));
    struct str channel = word_behind(header, STR("<|channel|>"));
    strbuf_clear(&p->raw);
    take_raw(p, message + 11);
    p->header_seen = true;
    p->mode = TEXT;
    if (str_starts(recipient, STR("functions.")) && p->o.tools) {
        p->body = CALL_NAMED;
        reset_call(p);
        strbuf_append(&p->name, str_slice(recipient, 10, recipient.n));
        p->channel = accept_name(p) ? CHANNEL_CALL : CHANNEL_FINAL;
    } else {
        p->channel = str_eq_c(channel, "analysis") ? CHANNEL_REASONING : CHANNEL_FINAL;
    }
    return true;
}

static void harmony_text(struct output_parser *p, struct str text) {
    if (p->channel == CHANNEL_REASONING) {
        send(p, OUTPUT_REASONING, text, (struct str){0});
    } else if (p->channel == CHANNEL_FINAL) {
        send_text(p, text);
    } else {
        for (size_t i = 0; i < text.n && !p->mend.complete; i++) {
            char c = text.data[i];
            if (!p->committed && c != '{') { // white space and fences in front
                strbuf_append(&p->raw, (struct str){&c, 1});
                continue;
            }
            if (!p->committed) {
                begin_call(p);
                json_mend_open_object(&p->mend, '}', &p->mended);
            } else {
                json_mend_push(&p->mend, c, &p->mended);
            }
        }
        send_mended(p);
    }
}

static void harmony_part_done(struct output_parser *p) {
    if (p->channel == CHANNEL_CALL) {
        if (!p->committed) {
            begin_call(p);
            send_arguments(p, STR("{}"));
        } else if (!p->mend.complete) {
            json_mend_finish(&p->mend, &p->mended);
            send_mended(p);
        }
        end_call(p);
    }
    strbuf_clear(&p->raw);
    p->channel = CHANNEL_FINAL;
    p->mode = HEADER;
}

static bool step_harmony(struct output_parser *p) {
    size_t start = p->pos;
    for (size_t at = start; at < p->in.n; at++) {
        size_t n = 0;
        enum match end = p->in.data[at] == '<' ? part_ends_at(p, at, &n) : MATCH_NO;
        if (end == MATCH_NO)
            continue;
        harmony_text(p, (struct str){p->in.data + start, at - start});
        p->pos = at;
        if (end == MATCH_MORE)
            return false;
        p->pos = at + n;
        harmony_part_done(p);
        return true;
    }
    harmony_text(p, (struct str){p->in.data + start, p->in.n - start});
    p->pos = p->in.n;
    if (p->ended && p->channel == CHANNEL_CALL)
        harmony_part_done(p);
    return false;
}

// ---- The parser --------------------------------------------------------------------------------------------
static bool step(struct output_parser *p) {
    if (p->f->harmony)
        return p->mode == HEADER ? step_header(p) : step_harmony(p);
    switch (p->mode) {
    case TEXT:
        return step_text(p);
    case THINK:
        return step_think(p);
    case SECTION:
        return step_section(p);
    case NAME:
        return step_name(p);
    case ARGUMENTS:
        return step_arguments(p);
    case OBJECT:
        return step_object(p);
    case KEY:
        return step_key(p);
    case VALUE:
        return step_value(p);
    case CALL_ENDED:
        return step_call_ended(p);
    case HEADER:
        return false;
    }
    return false;
}

struct output_parser *output_parser_create(const struct output_parser_options *options, struct err *err) {
    struct output_parser *p = calloc(1, sizeof *p);
    if (!p) {
        err_set(err, ERR_NOMEM, "out of memory for an answer");
        return NULL;
    }
    p->o = *options;
    p->f = options->format;
    p->mode = p->f->harmony ? HEADER : options->reasoning_open && p->f->think_open ? THINK : TEXT;
    p->skip_newlines = p->mode == THINK;
    return p;
}

void output_parser_destroy(struct output_parser *p) {
    if (!p)
        return;
    strbuf_deinit(&p->in);
    strbuf_deinit(&p->raw);
    strbuf_deinit(&p->name);
    strbuf_deinit(&p->id);
    strbuf_deinit(&p->mended);
    strbuf_deinit(&p->scan.key);
    strbuf_deinit(&p->key);
    strbuf_deinit(&p->value);
    json_mend_deinit(&p->mend);
    free(p);
}

static bool run(struct output_parser *p) {
    // A character that is not whole yet stays out of it.
    size_t tail = p->ended || !p->in.n ? 0 : utf8_incomplete_tail(strbuf_str(&p->in));
    p->in.n -= tail;
    while (step(p)) {
    }
    p->in.n += tail;
    // What is settled goes; what is left is at most a mark and what it holds back.
    if (p->pos) {
        memmove(p->in.data, p->in.data + p->pos, rest(p));
        p->in.n -= p->pos;
        p->pos = 0;
    }
    return !(p->failed || p->in.failed || p->raw.failed || p->name.failed || p->id.failed ||
             p->mended.failed || p->scan.key.failed || p->key.failed || p->value.failed ||
             p->mend.held.failed);
}

bool output_parser_push(struct output_parser *p, struct str text) {
    strbuf_append(&p->in, text);
    return run(p);
}

bool output_parser_finish(struct output_parser *p) {
    p->ended = true;
    return run(p);
}

uint32_t output_parser_n_calls(const struct output_parser *p) {
    return p->n_calls;
}
