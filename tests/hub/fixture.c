#include "hub/fixture.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file_map.h"
#include "base/hash.h"

// ---- Folders ------------------------------------------------------------------------------------

char *fixture_folder(const char *base) {
    char *path = malloc(PATH_MAX);
    const char *tmp = base ? base : getenv("TMPDIR");
    snprintf(path, PATH_MAX, "%s/loam-hub-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(path));
    return path;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

void fixture_remove(char *folder) {
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(folder);
}

void fixture_write(const char *path, const void *data, size_t n) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    struct err err = {0};
    check_ok(path_make_folders(folder, &err), &err);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

void fixture_path(char out[PATH_MAX], const char *format, ...) {
    va_list args;
    va_start(args, format);
    assert_true(vsnprintf(out, PATH_MAX, format, args) < PATH_MAX);
    va_end(args);
}

bool fixture_exists(const char *format, ...) {
    char path[PATH_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(path, sizeof path, format, args);
    va_end(args);
    return path_exists(path);
}

// ---- Repository ---------------------------------------------------------------------------------

void fixture_repo_init(struct fixture_repo *repo, const char *name, char commit_digit) {
    *repo = (struct fixture_repo){0};
    snprintf(repo->name, sizeof repo->name, "%s", name);
    memset(repo->commit, commit_digit, 40);
}

void fixture_repo_deinit(struct fixture_repo *repo) {
    for (size_t i = 0; i < repo->n_files; i++)
        free(repo->files[i].data);
    *repo = (struct fixture_repo){0};
}

static struct fixture_file *add(struct fixture_repo *repo, const char *path, bool is_lfs, uint8_t *data,
                                size_t n) {
    assert_true(repo->n_files < FIXTURE_FILES_MAX);
    struct fixture_file *file = &repo->files[repo->n_files++];
    snprintf(file->path, sizeof file->path, "%s", path);
    file->is_lfs = is_lfs;
    file->data = data;
    file->n = n;
    if (is_lfs) {
        hash_sha256_hex((struct bytes){data, n}, file->hash);
    } else { // git's blob hash
        struct strbuf whole = {0};
        strbuf_printf(&whole, "blob %zu", n);
        strbuf_char(&whole, '\0');
        strbuf_append(&whole, (struct str){(char *)data, n});
        hash_sha1_hex(bytes_of(strbuf_str(&whole)), file->hash);
        strbuf_deinit(&whole);
    }
    return file;
}

struct fixture_file *fixture_add(struct fixture_repo *repo, const char *path, bool is_lfs, size_t n,
                                 unsigned seed) {
    uint8_t *data = malloc(n + 8);
    uint64_t x = hash_str(str_from(path)) + seed;
    for (size_t i = 0; i < n; i += 8) {
        x = hash_u64(x + 1);
        memcpy(data + i, &x, 8);
    }
    return add(repo, path, is_lfs, data, n);
}

struct fixture_file *fixture_add_text(struct fixture_repo *repo, const char *path, const char *text) {
    return add(repo, path, false, (uint8_t *)strdup(text), strlen(text));
}

void fixture_add_model(struct fixture_repo *repo, size_t shard_bytes) {
    fixture_add_text(repo, "config.json", "{\"model_type\": \"llama\"}");
    fixture_add_text(repo, "README.md", "---\nlicense: mit\n---\n");
    fixture_add_text(repo, "empty.txt", "");
    fixture_add(repo, "tokenizer.json", false, 70000, 1);
    fixture_add(repo, "extra/a folder/notes+more.txt", false, 300, 1);
    fixture_add(repo, "model-00001-of-00002.safetensors", true, shard_bytes, 1);
    fixture_add(repo, "model-00002-of-00002.safetensors", true, shard_bytes + 12345, 2);
    fixture_add_text(repo, "model.safetensors.index.json",
                     "{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\", "
                     "\"b\": \"model-00002-of-00002.safetensors\"}}");
    fixture_add(repo, "pytorch_model.bin", true, 5000, 1);
}

char *fixture_listing(const struct fixture_repo *repo) {
    struct strbuf s = {0};
    strbuf_printf(&s, "{\"id\": \"%s\", \"sha\": \"%s\", \"private\": false, \"siblings\": [", repo->name,
                  repo->commit);
    for (size_t i = 0; i < repo->n_files; i++) {
        const struct fixture_file *f = &repo->files[i];
        strbuf_printf(&s, "%s{\"rfilename\": \"%s\", \"size\": %zu, \"blobId\": \"%s\"", i ? ", " : "",
                      f->path, f->n, f->is_lfs ? "0123456789012345678901234567890123456789" : f->hash);
        if (f->is_lfs)
            strbuf_printf(&s, ", \"lfs\": {\"sha256\": \"%s\", \"size\": %zu, \"pointerSize\": 134}", f->hash,
                          f->n);
        strbuf_append_c(&s, "}");
    }
    strbuf_append_c(&s, "]}");
    return strbuf_take(&s);
}

struct hub_env fixture_env(const char *folder, const char *ip, int port) {
    struct hub_env env = {0};
    snprintf(env.cache, sizeof env.cache, "%s/hub", folder);
    snprintf(env.endpoint, sizeof env.endpoint, "http://%s:%d", ip, port);
    return env;
}

struct hub_get_options fixture_options(const struct fixture_repo *repo) {
    struct hub_get_options options = hub_get_defaults();
    options.repo = repo->name;
    options.split_bytes = 2 << 20;
    options.chunk_bytes = 1 << 20;
    options.reserve_bytes = 0;
    options.backoff_ms = 20;
    options.stall_ms = 1000;
    return options;
}

static void decode_url(const char *in, char *out) {
    for (; *in && *in != '?'; in++, out++) {
        unsigned byte;
        if (*in == '%' && sscanf(in + 1, "%2x", &byte) == 1) {
            *out = (char)byte;
            in += 2;
        } else {
            *out = *in;
        }
    }
    *out = '\0';
}

bool fixture_hub(const struct fixture_repo *repo, const struct fault_request *request,
                 struct fault_reply *reply, char *listing) {
    char want[2048], path[2048];
    decode_url(request->target, path);
    snprintf(want, sizeof want, "/api/models/%s/revision/main", repo->name);
    if (strcmp(path, want) == 0) {
        reply->body = (const uint8_t *)listing;
        reply->n_body = strlen(listing);
        return true;
    }
    for (size_t i = 0; i < repo->n_files; i++) {
        snprintf(want, sizeof want, "/%s/resolve/%s/%s", repo->name, repo->commit, repo->files[i].path);
        if (strcmp(path, want) == 0) {
            fault_serve(request, reply, repo->files[i].data, repo->files[i].n);
            return true;
        }
    }
    reply->status = 404;
    return false;
}

// ---- Checks -------------------------------------------------------------------------------------

static bool content_is(const char *path, const struct fixture_file *file) {
    struct file_map map;
    if (!file_map_open(&map, path, NULL))
        return false;
    bool same = map.bytes.n == file->n && (file->n == 0 || memcmp(map.bytes.data, file->data, file->n) == 0);
    file_map_close(&map);
    return same;
}

static const struct fixture_file *file_with_hash(const struct fixture_repo *repo, const char *hash) {
    for (size_t i = 0; i < repo->n_files; i++)
        if (strcmp(repo->files[i].hash, hash) == 0)
            return &repo->files[i];
    return NULL;
}

void fixture_check_nothing_false(const struct hub_env *env, const struct fixture_repo *repo) {
    char folder[PATH_MAX], path[PATH_MAX], commit[HUB_COMMIT_BYTES];
    assert_true(hub_repo_folder(env, repo->name, folder, NULL));
    assert_true(hub_path(path, NULL, "%s/blobs", folder));
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        char hash[256];
        snprintf(hash, sizeof hash, "%s", entry->d_name);
        char *dot = strchr(hash, '.');
        if (dot)
            *dot = '\0';
        const struct fixture_file *file = file_with_hash(repo, hash);
        assert_non_null(file);
        assert_true(hub_path(path, NULL, "%s/blobs/%s", folder, entry->d_name));
        struct file_map map;
        struct err err = {0};
        check_ok(file_map_open(&map, path, &err), &err);
        // A partial file is a true prefix; a blob is whole.
        assert_true(map.bytes.n <= file->n);
        assert_true(map.bytes.n == 0 || memcmp(map.bytes.data, file->data, map.bytes.n) == 0);
        assert_true(dot || map.bytes.n == file->n);
        file_map_close(&map);
    }
    if (dir)
        closedir(dir);
    bool all = true, config_is_there = false;
    for (size_t i = 0; i < repo->n_files; i++) {
        const struct fixture_file *file = &repo->files[i];
        struct stat st;
        assert_true(hub_path(path, NULL, "%s/snapshots/%s/%s", folder, repo->commit, file->path));
        bool linked = lstat(path, &st) == 0;
        if (linked)
            assert_true(content_is(path, file));
        else if (!hub_is_foreign_weight(file->path))
            all = false;
        config_is_there = config_is_there || (linked && strcmp(file->path, "config.json") == 0);
    }
    assert_true(all || !config_is_there);
    assert_true(all || !hub_ref_read(folder, "main", commit));
}

void fixture_check_complete(const struct hub_env *env, const struct fixture_repo *repo) {
    char folder[PATH_MAX], path[PATH_MAX], commit[HUB_COMMIT_BYTES];
    assert_true(hub_repo_folder(env, repo->name, folder, NULL));
    for (size_t i = 0; i < repo->n_files; i++) {
        const struct fixture_file *file = &repo->files[i];
        struct stat st;
        assert_true(hub_path(path, NULL, "%s/snapshots/%s/%s", folder, repo->commit, file->path));
        if (hub_is_foreign_weight(file->path)) {
            assert_false(path_exists(path));
            continue;
        }
        if (!content_is(path, file))
            fail_msg("%s is missing or wrong", path);
        assert_true(lstat(path, &st) == 0 && S_ISLNK(st.st_mode));
        assert_false(fixture_exists("%s/blobs/%s.incomplete", folder, file->hash));
    }
    assert_true(hub_ref_read(folder, "main", commit));
    assert_string_equal(commit, repo->commit);
}

// ---- Snapshots ----------------------------------------------------------------------------------

// As other tools lay it, and without hub_snapshot_link()'s fsync.
static void add_blob(const char *repo_folder, const char *commit, const char *file, const void *data, size_t n) {
    char path[PATH_MAX], hash[65], target[100];
    struct err err = {0};
    hash_sha256_hex((struct bytes){data, n}, hash);
    fixture_path(path, "%s/blobs/%s", repo_folder, hash);
    if (!path_exists(path))
        fixture_write(path, data, n);
    fixture_path(path, "%s/snapshots/%s", repo_folder, commit);
    check_ok(path_make_folders(path, &err), &err);
    fixture_path(path, "%s/snapshots/%s/%s", repo_folder, commit, file);
    snprintf(target, sizeof target, "../../blobs/%s", hash);
    assert_true(symlink(target, path) == 0 || errno == EEXIST);
}

void fixture_snapshot(const struct hub_env *env, const char *repo, char commit_digit, bool with_ref) {
    static const char CONFIG[] =
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 64, "
        "\"intermediate_size\": 128, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"head_dim\": 16, \"vocab_size\": 100, \"max_position_embeddings\": 4096, "
        "\"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\", \"tie_word_embeddings\": true}";
    static const char README[] = "---\ntags: [x]\nlicense: other\nlicense_name: \"house-rules\"\n---\n# x\n";
    char folder[PATH_MAX], commit[41], weights[8 + 200 + 400] = {0};
    memset(commit, commit_digit, 40);
    commit[40] = '\0';
    assert_true(hub_repo_folder(env, repo, folder, NULL));
    // Padded with blanks, so that the data are aligned.
    int n = snprintf(weights + 8, 200, "%-80s",
                     "{\"a.weight\":{\"dtype\":\"F32\",\"shape\":[10,10],\"data_offsets\":[0,400]}}");
    weights[0] = (char)n;
    weights[8 + n] = commit_digit; // so that each commit has its own blob
    add_blob(folder, commit, "model.safetensors", weights, 8 + (size_t)n + 400);
    add_blob(folder, commit, "README.md", README, sizeof README - 1);
    add_blob(folder, commit, "chat_template.jinja", "{% if tools %}", 14);
    add_blob(folder, commit, "config.json", CONFIG, sizeof CONFIG - 1);
    if (with_ref) {
        char path[PATH_MAX];
        fixture_path(path, "%s/refs/main", folder);
        fixture_write(path, commit, 40);
    }
}

// ---- nginx --------------------------------------------------------------------------------------

static int free_port(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof addr;
    assert_true(bind(fd, (struct sockaddr *)&addr, n) == 0 &&
                getsockname(fd, (struct sockaddr *)&addr, &n) == 0);
    close(fd);
    return ntohs(addr.sin_port);
}

static bool answers(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    bool ok = connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0;
    close(fd);
    return ok;
}

bool nginx_start(struct nginx *nginx, const struct fixture_repo *repos, size_t n_repos,
                 unsigned kib_per_s) {
    *nginx = (struct nginx){.pid = -1};
    if (access("/usr/sbin/nginx", X_OK) != 0)
        return false;
    nginx->folder = fixture_folder(NULL);
    chmod(nginx->folder, 0755);
    nginx->port = free_port();
    char path[PATH_MAX];
    for (size_t r = 0; r < n_repos; r++) {
        char *listing = fixture_listing(&repos[r]);
        snprintf(path, sizeof path, "%s/root/api/models/%s/revision/main", nginx->folder, repos[r].name);
        fixture_write(path, listing, strlen(listing));
        free(listing);
        for (size_t i = 0; i < repos[r].n_files; i++) {
            const struct fixture_file *f = &repos[r].files[i];
            snprintf(path, sizeof path, "%s/root/%s/resolve/%s/%s", nginx->folder, repos[r].name,
                     repos[r].commit, f->path);
            fixture_write(path, f->data, f->n);
        }
    }
    struct strbuf conf = {0};
    if (getuid() == 0)
        strbuf_append_c(&conf, "user root;\n");
    strbuf_printf(&conf,
                  "daemon off; worker_processes 1; pid %s/pid; error_log %s/error.log;\n"
                  "events { worker_connections 256; }\n"
                  "http { access_log %s/access.log; sendfile on; default_type application/octet-stream;\n"
                  "client_body_temp_path %s/t1; proxy_temp_path %s/t2; fastcgi_temp_path %s/t3;\n"
                  "uwsgi_temp_path %s/t4; scgi_temp_path %s/t5;\n"
                  "limit_rate %uk; root %s/root;\n"
                  "server { listen 127.0.0.1:%d;\n"
                  "  location /org/gated/ { if ($http_authorization != \"Bearer secret\") { return 401; } }\n"
                  "  location /api/models/org/gated/ {\n"
                  "    if ($http_authorization != \"Bearer secret\") { return 401; } }\n"
                  "  location ~ \\.safetensors$ { return 302 http://127.0.0.2:%d$request_uri?signature=x; }\n"
                  "}\n"
                  "server { listen 127.0.0.2:%d;\n"
                  "  if ($http_authorization) { return 400; }\n"
                  "}\n}\n",
                  nginx->folder, nginx->folder, nginx->folder, nginx->folder, nginx->folder, nginx->folder,
                  nginx->folder, nginx->folder, kib_per_s, nginx->folder, nginx->port, nginx->port,
                  nginx->port);
    snprintf(path, sizeof path, "%s/nginx.conf", nginx->folder);
    fixture_write(path, conf.data, conf.n);
    strbuf_deinit(&conf);
    nginx->pid = fork();
    if (nginx->pid == 0) {
        execl("/usr/sbin/nginx", "nginx", "-e", "/dev/null", "-c", path, "-p", nginx->folder, (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 500 && !answers(nginx->port); i++)
        usleep(10 * 1000);
    assert_true(answers(nginx->port));
    return true;
}

void nginx_stop(struct nginx *nginx) {
    if (nginx->pid > 0) {
        kill(nginx->pid, SIGTERM);
        waitpid(nginx->pid, NULL, 0);
    }
    if (nginx->folder)
        fixture_remove(nginx->folder);
    *nginx = (struct nginx){.pid = -1};
}
