// template/parser.h - tokens to a tree of nodes. Names are resolved by scope.h afterwards.
#ifndef LOAM_TEMPLATE_PARSER_H
#define LOAM_TEMPLATE_PARSER_H
#include "template/ast.h"
#include "template/lexer.h"

// Nesting of statements, of brackets, and height of an expression's tree.
enum { PARSE_STATEMENTS_MAX = 100, PARSE_BRACKETS_MAX = 200, PARSE_HEIGHT_MAX = 1000 };

// Parse template->source into the body of template->root. ERR_FORMAT with line and column; ERR_NOMEM.
bool parser_run(struct template *template, struct err *err);
#endif
