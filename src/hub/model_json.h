// hub/model_json.h - a downloaded model as JSON: what `loam ls --json` prints and GET /library answers. Any thread.
#ifndef LOAM_HUB_MODEL_JSON_H
#define LOAM_HUB_MODEL_JSON_H
#include "base/json.h"
#include "hub/scan.h"

// May it be served within so much memory? An estimate: hub_model_serve_bytes(), with the tenth left that plans leave.
bool hub_model_fits(const struct hub_model *model, uint64_t limit_bytes);
// A new object; NULL: out of memory. The folder's path is in it only with `with_path`: it is nobody's business elsewhere.
json_t *hub_model_json(const struct hub_model *model, uint64_t limit_bytes, bool with_path);
#endif
