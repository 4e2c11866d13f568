// server/output_format.h - how a model family marks reasoning and tool calls in its output: one row a family.
// The rows are constant; any thread may read them.
#ifndef LOAM_SERVER_OUTPUT_FORMAT_H
#define LOAM_SERVER_OUTPUT_FORMAT_H
#include "base/bytes.h"

// What is between a call's marks.
enum call_body {
    CALL_NONE,   // the family has no tool calls
    CALL_JSON,   // objects with a name and arguments, alone, several, or in an array
    CALL_NAMED,  // the name, then a JSON-like object of arguments
    CALL_TAGGED, // the name, then each argument between tags
    CALL_PYTHON, // [name(key=value, ...), ...]
};

enum { OUTPUT_DETECT_MAX = 3 };

struct output_format {
    const char *name;
    // The family is this one if the chat template's source holds all of these.
    const char *detect[OUTPUT_DETECT_MAX];
    const char *think_open, *think_close; // NULL: no reasoning part
    // gpt-oss: channels decide what a part is. The reader uses nothing else of the row; what follows and think_*
    // say how parts are written.
    bool harmony;
    enum call_body body;
    // Around all calls and around each; NULL: none. Without call_open and section_open a call may only be
    // the whole answer, and only by a name that the request declares.
    const char *section_open, *section_close;
    const char *call_open, *call_close;
    // CALL_NAMED, CALL_TAGGED: what stands before and after the name. CALL_NAMED: after the object.
    const char *name_open, *name_close;
    // CALL_TAGGED.
    const char *key_open, *key_close, *value_open, *value_close;
    const char *string_mark; // CALL_NAMED: what quotes strings besides ", or NULL
    // How the family writes calls, for answers that must be calls (call_grammar.h): what comes before the first, a
    // call ($n: its name, $a: its arguments, $i: a number), what comes between two (NULL: it writes one only) and
    // behind the last. CALL_TAGGED: an argument ($k: its name, $v: its value, $s: true if that is a string).
    const char *write_open, *write_call, *write_between, *write_close, *write_argument;
    const char *write_text; // before an answer that is no call, or NULL
};

// The row for a chat template; never NULL: the generic one knows <think> and <tool_call>.
const struct output_format *output_format_of(struct str template_source);
// For a template that shows no marks: the row whose opening mark is a special token of the vocabulary.
const struct output_format *output_format_of_tokens(bool (*is_special)(void *user, struct str text),
                                                     void *user);
const struct output_format *output_format_by_name(struct str name); // NULL if there is none
// The names, in the table's order, NULL after the last.
const char *output_format_name(size_t i);
// Does the prompt end inside a reasoning part?
bool output_format_reasoning_open(const struct output_format *format, struct str prompt);
bool output_format_reasoning_closed(const struct output_format *format, struct str prompt); // behind one
// The marks that are to reach the parser even if they are special tokens: call fn with each.
void output_format_marks(const struct output_format *format, void (*fn)(void *user, struct str mark),
                         void *user);
#endif
