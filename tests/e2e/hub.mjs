// A local hub in the shape of huggingface.co, and a home of its own for the commands that use it.
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { spawn } from 'node:child_process';
import { LOAM } from './loam.mjs';

const hex = (algorithm, ...parts) => parts.reduce((hash, part) => hash.update(part), createHash(algorithm)).digest('hex');
export const commit_of = (name) => hex('sha1', name);

// The files of a folder as a repository; weights are LFS files. `more` adds files: {path: text or buffer}.
export function repo_of(folder, more = {}) {
  const files = {};
  for (const path of folder ? readdirSync(folder).filter((path) => !path.startsWith('golden')) : [])
    files[path] = readFileSync(join(folder, path));
  for (const [path, data] of Object.entries(more)) files[path] = Buffer.from(data);
  return { files };
}

// Start a hub: repos = {"org/name": {files, token, status, error_code}}. `before(request, path)` may return a promise
// that holds a file back. LFS files are redirected to /lfs/ on another address, as the real one does.
export async function start_hub(repos, before = async () => {}) {
  const hub = { requests: [], repos };
  const server = createServer(async (request, response) => {
    const url = new URL(request.url, 'http://hub');
    hub.requests.push({ path: url.pathname, authorization: request.headers.authorization, host: request.headers.host });
    const send = (status, body, headers = {}) => {
      response.writeHead(status, { 'Content-Length': body.length, ...headers });
      response.end(body);
    };
    const send_file = (data) => {
      const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '');
      if (!range) return send(200, data);
      const from = Number(range[1]), to = range[2] ? Number(range[2]) + 1 : data.length;
      send(206, data.subarray(from, to), { 'Content-Range': `bytes ${from}-${to - 1}/${data.length}` });
    };
    const parts = decodeURIComponent(url.pathname).split('/').slice(1);
    if (parts[0] === 'lfs') {
      await before(request, parts.slice(3).join('/'));
      return send_file(repos[`${parts[1]}/${parts[2]}`].files[parts.slice(3).join('/')]);
    }
    const api = parts[0] === 'api';
    const name = api ? `${parts[2]}/${parts[3]}` : `${parts[0]}/${parts[1]}`;
    const repo = repos[name];
    if (!repo) return send(404, '{"error":"Repository not found"}', { 'X-Error-Code': 'RepoNotFound' });
    if (repo.status) return send(repo.status, '{"error":"no"}', { 'X-Error-Code': repo.error_code ?? '' });
    if (repo.token && request.headers.authorization !== `Bearer ${repo.token}`)
      return send(401, '{"error":"Access to model is restricted"}', { 'X-Error-Code': 'GatedRepo' });
    if (api) {
      const revision = decodeURIComponent(parts.slice(5).join('/'));
      if (revision !== 'main' && revision !== commit_of(name))
        return send(404, '{"error":"Invalid rev id"}', { 'X-Error-Code': 'RevisionNotFound' });
      const siblings = Object.entries(repo.files).map(([rfilename, data]) => ({
        rfilename, size: data.length, blobId: hex('sha1', `blob ${data.length}\0`, data),
        ...(/\.(safetensors|bin|gguf)$/.test(rfilename) ? { lfs: { sha256: hex('sha256', data), size: data.length } } : {}),
      }));
      return send(200, JSON.stringify({ id: name, sha: commit_of(name), siblings }));
    }
    const path = parts.slice(4).join('/'), data = repo.files[path];
    if (!data) return send(404, 'Entry not found', { 'X-Error-Code': 'EntryNotFound' });
    if (/\.(safetensors|bin|gguf)$/.test(path))
      return send(302, '', { Location: `http://127.0.0.2:${hub.port}/lfs/${name}/${path}` });
    send_file(repo.wrong?.[path] ?? data);
  });
  await new Promise((resolve) => server.listen(0, '0.0.0.0', resolve));
  hub.port = server.address().port;
  hub.url = `http://127.0.0.1:${hub.port}`;
  hub.stop = () => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  };
  return hub;
}

// A home with nothing in it, and the environment that names it.
export function fresh_home(hub) {
  const folder = mkdtempSync(join(tmpdir(), 'loam-hub-'));
  const env = { ...process.env, HOME: folder, HF_ENDPOINT: hub?.url ?? 'http://127.0.0.1:9', LOAM_DEVICE: 'cpu' };
  for (const name of ['XDG_CACHE_HOME', 'HF_HOME', 'HF_HUB_CACHE', 'HF_TOKEN', 'HF_TOKEN_PATH', 'HF_HUB_OFFLINE',
    'HUGGING_FACE_HUB_TOKEN', 'HUGGINGFACE_HUB_CACHE'])
    delete env[name];
  return { folder, env, cache: join(folder, '.cache/huggingface/hub'), remove: () => rmSync(folder, { recursive: true }) };
}

// Run loam to its end without blocking the hub that lives in this process.
export function run_async(env, ...args) {
  return new Promise((resolve) => {
    const child = spawn(LOAM, args, { env, stdio: ['ignore', 'pipe', 'pipe'] });
    const result = { code: null, stdout: '', stderr: '' };
    child.stdout.on('data', (data) => { result.stdout += data; });
    child.stderr.on('data', (data) => { result.stderr += data; });
    child.on('close', (code) => resolve({ ...result, code }));
  });
}

// A program on a terminal of its own: what it writes to it collects in `text`; type() is a person. Needs script(1).
export function on_terminal(env, command) {
  const child = spawn('script', ['-qec', command, '/dev/null'], { env, stdio: ['pipe', 'pipe', 'inherit'] });
  const terminal = { child, text: '' };
  child.stdout.on('data', (data) => { terminal.text += data; });
  terminal.exited = new Promise((resolve) => child.on('close', (code) => resolve(code)));
  terminal.type = (line) => child.stdin.write(line);
  terminal.sees = async (pattern, timeout_ms = 20000) => {
    for (const until = Date.now() + timeout_ms; !pattern.test(terminal.text);) {
      if (Date.now() > until) throw new Error(`the terminal does not show ${pattern}: ${terminal.text}`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    return pattern.exec(terminal.text);
  };
  return terminal;
}
