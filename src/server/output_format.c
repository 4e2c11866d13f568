#include "server/output_format.h"

#define THINK .think_open = "<think>", .think_close = "</think>"
#define CALL_WITH_ARGUMENTS "{\"name\": \"$n\", \"arguments\": $a}"
#define CALL_WITH_PARAMETERS "{\"name\": \"$n\", \"parameters\": $a}"

// In order: the first row whose marks are all in the template's source. Sources: the chat templates that the
// families publish, and their model cards.
static const struct output_format FORMATS[] = {
    {.name = "gpt-oss", .detect = {"<|channel|>", "<|message|>"}, .harmony = true,
     .think_open = "<|channel|>analysis<|message|>", .think_close = "<|end|><|start|>assistant",
     .write_text = "<|channel|>final<|message|>",
     .write_call = "<|channel|>commentary to=functions.$n <|constrain|>json<|message|>$a"},
    {.name = "gemma4", .detect = {"<|tool_call>", "<|\"|>"}, .think_open = "<|channel>thought\n",
     .think_close = "<channel|>", .body = CALL_NAMED, .call_open = "<|tool_call>",
     .call_close = "<tool_call|>", .name_open = "call:", .string_mark = "<|\"|>",
     .write_call = "<|tool_call>call:$n$a<tool_call|>", .write_between = ""},
    {.name = "functiongemma", .detect = {"<start_function_call>"}, .body = CALL_NAMED,
     .call_open = "<start_function_call>", .call_close = "<end_function_call>", .name_open = "call:",
     .string_mark = "<escape>",
     .write_call = "<start_function_call>call:$n$a<end_function_call>", .write_between = ""},
    {.name = "deepseek-dsml", .detect = {"DSML"}, THINK, .body = CALL_TAGGED,
     .section_open = "<｜DSML｜function_calls>", .section_close = "</｜DSML｜function_calls>",
     .call_open = "<｜DSML｜invoke name=\"", .call_close = "</｜DSML｜invoke>", .name_close = "\">",
     .key_open = "<｜DSML｜parameter name=\"", .key_close = "\">",
     .value_close = "</｜DSML｜parameter>",
     .write_open = "<｜DSML｜function_calls>\n",
     .write_call = "<｜DSML｜invoke name=\"$n\">\n$a</｜DSML｜invoke>", .write_between = "\n",
     .write_close = "\n</｜DSML｜function_calls>",
     .write_argument = "<｜DSML｜parameter name=\"$k\" string=\"$s\">$v</｜DSML｜parameter>\n"},
    {.name = "deepseek", .detect = {"<｜tool▁calls▁begin｜>", "```json"}, THINK, .body = CALL_NAMED,
     .section_open = "<｜tool▁calls▁begin｜>", .section_close = "<｜tool▁calls▁end｜>",
     .call_open = "<｜tool▁call▁begin｜>", .call_close = "<｜tool▁call▁end｜>",
     .name_open = "function<｜tool▁sep｜>", .name_close = "<｜tool▁sep｜>",
     .write_open = "<｜tool▁calls▁begin｜>",
     .write_call = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$n\n```json\n$a\n```<｜tool▁call▁end｜>",
     .write_between = "\n", .write_close = "<｜tool▁calls▁end｜>"},
    // 3.1: no word and no fence around a call's parts.
    {.name = "deepseek-v3.1", .detect = {"<｜tool▁calls▁begin｜>"}, THINK, .body = CALL_NAMED,
     .section_open = "<｜tool▁calls▁begin｜>", .section_close = "<｜tool▁calls▁end｜>",
     .call_open = "<｜tool▁call▁begin｜>", .call_close = "<｜tool▁call▁end｜>",
     .name_open = "function<｜tool▁sep｜>", .name_close = "<｜tool▁sep｜>",
     .write_open = "<｜tool▁calls▁begin｜>", .write_between = "", .write_close = "<｜tool▁calls▁end｜>",
     .write_call = "<｜tool▁call▁begin｜>$n<｜tool▁sep｜>$a<｜tool▁call▁end｜>"},
    {.name = "kimi", .detect = {"<|tool_calls_section_begin|>"}, THINK, .body = CALL_NAMED,
     .section_open = "<|tool_calls_section_begin|>", .section_close = "<|tool_calls_section_end|>",
     .call_open = "<|tool_call_begin|>", .call_close = "<|tool_call_end|>",
     .name_close = "<|tool_call_argument_begin|>",
     .write_open = "<|tool_calls_section_begin|>",
     .write_call = "<|tool_call_begin|>functions.$n:$i<|tool_call_argument_begin|>$a<|tool_call_end|>",
     .write_between = "", .write_close = "<|tool_calls_section_end|>"},
    {.name = "minimax", .detect = {"<minimax:tool_call>"}, THINK, .body = CALL_TAGGED,
     .section_open = "<minimax:tool_call>", .section_close = "</minimax:tool_call>",
     .call_open = "<invoke name=\"", .call_close = "</invoke>", .name_close = "\">",
     .key_open = "<parameter name=\"", .key_close = "\">", .value_close = "</parameter>",
     .write_open = "<minimax:tool_call>\n", .write_call = "<invoke name=\"$n\">\n$a</invoke>",
     .write_between = "\n", .write_close = "\n</minimax:tool_call>",
     .write_argument = "<parameter name=\"$k\">$v</parameter>\n"},
    {.name = "seed-oss", .detect = {"<seed:tool_call>"}, .think_open = "<seed:think>",
     .think_close = "</seed:think>", .body = CALL_TAGGED, .section_open = "<seed:tool_call>",
     .section_close = "</seed:tool_call>", .call_open = "<function=", .call_close = "</function>",
     .name_close = ">", .key_open = "<parameter=", .key_close = ">", .value_close = "</parameter>",
     .write_open = "<seed:tool_call>\n", .write_call = "<function=$n>\n$a</function>",
     .write_between = "\n", .write_close = "\n</seed:tool_call>",
     .write_argument = "<parameter=$k>$v</parameter>\n"},
    // 4.7 and later: no line breaks between the marks.
    {.name = "glm-4.7", .detect = {"<arg_key>", "<tool_call>{function-name}<arg_key>"}, THINK,
     .body = CALL_TAGGED, .call_open = "<tool_call>", .call_close = "</tool_call>", .name_close = "\n",
     .key_open = "<arg_key>", .key_close = "</arg_key>", .value_open = "<arg_value>",
     .value_close = "</arg_value>", .write_call = "<tool_call>$n$a</tool_call>", .write_between = "",
     .write_argument = "<arg_key>$k</arg_key><arg_value>$v</arg_value>"},
    {.name = "glm", .detect = {"<arg_key>"}, THINK, .body = CALL_TAGGED, .call_open = "<tool_call>",
     .call_close = "</tool_call>", .name_close = "\n", .key_open = "<arg_key>",
     .key_close = "</arg_key>", .value_open = "<arg_value>", .value_close = "</arg_value>",
     .write_call = "<tool_call>$n\n$a</tool_call>", .write_between = "\n",
     .write_argument = "<arg_key>$k</arg_key>\n<arg_value>$v</arg_value>\n"},
    {.name = "minicpm", .detect = {"<function name=\"", "<param name=\""}, THINK, .body = CALL_TAGGED,
     .call_open = "<function name=\"", .call_close = "</function>", .name_close = "\">",
     .key_open = "<param name=\"", .key_close = "\">", .value_close = "</param>",
     .write_call = "<function name=\"$n\">$a</function>", .write_between = "\n",
     .write_argument = "<param name=\"$k\">$v</param>"},
    {.name = "qwen-xml", .detect = {"<function=", "<parameter="}, THINK, .body = CALL_TAGGED,
     .section_open = "<tool_call>", .section_close = "</tool_call>", .call_open = "<function=",
     .call_close = "</function>", .name_close = ">", .key_open = "<parameter=", .key_close = ">",
     .value_close = "</parameter>",
     .write_call = "<tool_call>\n<function=$n>\n$a</function>\n</tool_call>", .write_between = "\n",
     .write_argument = "<parameter=$k>\n$v\n</parameter>\n"},
    {.name = "functionary", .detect = {"<function=", "</function>"}, .body = CALL_NAMED,
     .call_open = "<function=", .call_close = "</function>", .name_close = ">",
     .write_call = "<function=$n>$a</function>", .write_between = ""},
    {.name = "mistral", .detect = {"[TOOL_CALLS]", "[ARGS]"}, .think_open = "[THINK]", .think_close = "[/THINK]",
     .body = CALL_NAMED, .call_open = "[TOOL_CALLS]", .name_close = "[ARGS]",
     .write_call = "[TOOL_CALLS]$n[ARGS]$a", .write_between = ""},
    // Before that: a list of objects.
    {.name = "mistral-list", .detect = {"[TOOL_CALLS]"}, .think_open = "[THINK]", .think_close = "[/THINK]",
     .body = CALL_NAMED, .call_open = "[TOOL_CALLS]", .name_close = "[ARGS]",
     .write_open = "[TOOL_CALLS][", .write_call = CALL_WITH_ARGUMENTS, .write_between = ", ",
     .write_close = "]"},
    {.name = "cohere", .detect = {"<|START_ACTION|>"}, .think_open = "<|START_THINKING|>",
     .think_close = "<|END_THINKING|>", .body = CALL_JSON, .call_open = "<|START_ACTION|>",
     .call_close = "<|END_ACTION|>",
     .write_open = "<|START_ACTION|>[\n",
     .write_call = "    {\"tool_call_id\": \"$i\", \"tool_name\": \"$n\", \"parameters\": $a}",
     .write_between = ",\n", .write_close = "\n]<|END_ACTION|>"},
    {.name = "nemotron", .detect = {"<TOOLCALL>"}, THINK, .body = CALL_JSON, .call_open = "<TOOLCALL>",
     .call_close = "</TOOLCALL>",
     .write_open = "<TOOLCALL>[", .write_call = CALL_WITH_ARGUMENTS, .write_between = ", ",
     .write_close = "]</TOOLCALL>"},
    {.name = "phi4", .detect = {"<|/tool_call|>"}, .body = CALL_JSON, .call_open = "<|tool_call|>",
     .call_close = "<|/tool_call|>",
     .write_open = "<|tool_call|>[", .write_call = CALL_WITH_ARGUMENTS, .write_between = ", ",
     .write_close = "]<|/tool_call|>"},
    {.name = "granite", .detect = {"<|tool_call|>", "granite"}, THINK, .body = CALL_JSON,
     .call_open = "<|tool_call|>",
     .write_open = "<|tool_call|>[", .write_call = CALL_WITH_ARGUMENTS, .write_between = ", ",
     .write_close = "]"},
    {.name = "lfm2", .detect = {"<|tool_list_start|>"}, THINK, .body = CALL_PYTHON,
     .call_open = "<|tool_call_start|>", .call_close = "<|tool_call_end|>",
     .write_open = "<|tool_call_start|>[", .write_call = "$n$a", .write_between = ", ",
     .write_close = "]<|tool_call_end|>"},
    {.name = "internlm2", .detect = {"<|action_start|>"}, .body = CALL_JSON,
     .call_open = "<|action_start|><|plugin|>", .call_close = "<|action_end|>",
     .write_call = "<|action_start|><|plugin|>\n{\"name\": \"$n\", \"parameters\": $a}<|action_end|>",
     .write_between = "\n"},
    {.name = "firefunction", .detect = {"functools["}, .body = CALL_JSON, .call_open = "functools",
     .write_open = "functools[", .write_call = CALL_WITH_ARGUMENTS, .write_between = ", ",
     .write_close = "]"},
    {.name = "tool-calls", .detect = {"<tool_calls>"}, THINK, .body = CALL_JSON,
     .call_open = "<tool_calls>", .call_close = "</tool_calls>",
     .write_open = "<tool_calls>[", .write_call = CALL_WITH_ARGUMENTS, .write_between = ", ",
     .write_close = "]</tool_calls>"},
    {.name = "llama4", .detect = {"<|header_start|>", "func_name1"}, .body = CALL_PYTHON,
     .section_open = "<|python_start|>", .section_close = "<|python_end|>",
     .write_open = "<|python_start|>[", .write_call = "$n$a", .write_between = ", ",
     .write_close = "]<|python_end|>"},
    {.name = "llama4-json", .detect = {"<|header_start|>", "\"parameters\""}, .body = CALL_JSON,
     .section_open = "<|python_start|>", .section_close = "<|python_end|>",
     .write_open = "<|python_start|>", .write_call = CALL_WITH_PARAMETERS, .write_between = "; ",
     .write_close = "<|python_end|>"},
    {.name = "llama3-pythonic", .detect = {"<|start_header_id|>", "func_name1"}, .body = CALL_PYTHON,
     .write_open = "[", .write_call = "$n$a", .write_between = ", ", .write_close = "]"},
    {.name = "llama3", .detect = {"<|start_header_id|>", "\"parameters\""}, .body = CALL_JSON,
     .section_open = "<|python_tag|>",
     .write_call = CALL_WITH_PARAMETERS, .write_between = "; "},
    {.name = "hermes", .detect = {"<tool_call>"}, THINK, .body = CALL_JSON, .call_open = "<tool_call>",
     .call_close = "</tool_call>",
     .write_call = "<tool_call>\n{\"name\": \"$n\", \"arguments\": $a}\n</tool_call>",
     .write_between = "\n"},
    // Any other template: its reasoning, if it has one, is <think>; and <tool_call> with JSON is what loam
    // itself asks for when a template knows no tools.
    {.name = "generic", THINK, .body = CALL_JSON, .call_open = "<tool_call>",
     .call_close = "</tool_call>",
     .write_call = "<tool_call>\n{\"name\": \"$n\", \"arguments\": $a}\n</tool_call>",
     .write_between = "\n"},
};
enum { N_FORMATS = sizeof FORMATS / sizeof *FORMATS };

const struct output_format *output_format_of(struct str source) {
    for (size_t i = 0; i < N_FORMATS - 1; i++) {
        bool all = true;
        for (size_t d = 0; d < OUTPUT_DETECT_MAX && FORMATS[i].detect[d]; d++)
            all &= str_find(source, str_from(FORMATS[i].detect[d]), 0) != SIZE_MAX;
        if (all)
            return &FORMATS[i];
    }
    return &FORMATS[N_FORMATS - 1];
}

const struct output_format *output_format_of_tokens(bool (*is_special)(void *user, struct str text),
                                                     void *user) {
    for (size_t i = 0; i < N_FORMATS - 1; i++) {
        const char *mark = FORMATS[i].section_open ? FORMATS[i].section_open : FORMATS[i].call_open;
        // The generic row's mark is shared by many families and says nothing.
        if (mark && strcmp(mark, FORMATS[N_FORMATS - 1].call_open) != 0 && is_special(user, str_from(mark)))
            return &FORMATS[i];
    }
    return &FORMATS[N_FORMATS - 1];
}

const struct output_format *output_format_by_name(struct str name) {
    for (size_t i = 0; i < N_FORMATS; i++)
        if (str_eq_c(name, FORMATS[i].name))
            return &FORMATS[i];
    return NULL;
}

const char *output_format_name(size_t i) {
    return i < N_FORMATS ? FORMATS[i].name : NULL;
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool ends_with_mark(struct str prompt, const char *mark) {
    if (!mark)
        return false;
    while (prompt.n && is_space(prompt.data[prompt.n - 1]))
        prompt.n--;
    struct str text = str_from(mark);
    while (text.n && is_space(text.data[text.n - 1]))
        text.n--;
    return str_ends(prompt, text);
}

bool output_format_reasoning_open(const struct output_format *format, struct str prompt) {
    return ends_with_mark(prompt, format->think_open);
}

bool output_format_reasoning_closed(const struct output_format *format, struct str prompt) {
    return ends_with_mark(prompt, format->think_close);
}

void output_format_marks(const struct output_format *f, void (*fn)(void *user, struct str mark), void *user) {
    static const char *const HARMONY[] = {"<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>",
                                          "<|return|>", "<|constrain|>"};
    if (f->harmony) {
        for (size_t i = 0; i < sizeof HARMONY / sizeof *HARMONY; i++)
            fn(user, str_from(HARMONY[i]));
        return;
    }
    const char *const marks[] = {f->think_open, f->think_close, f->section_open, f->section_close,
                                 f->call_open,  f->call_close,  f->name_open,    f->name_close,
                                 f->key_open,   f->key_close,   f->value_open,   f->value_close,
                                 f->string_mark};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (marks[i])
            fn(user, str_from(marks[i]));
}
