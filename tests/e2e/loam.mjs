// Start and stop a loam server for a test.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';

export const LOAM = process.env.LOAM;

// loam serve with these arguments on a free port; resolves when it says that it is ready.
export const serve = (...args) => start(LOAM, ['serve', '--port', '0', ...args]);

// And in another environment.
export const serve_in = (env, ...args) => start(LOAM, ['serve', '--port', '0', ...args], env);

// The same for any program that says "ready URL".
export function start(program, args, env = process.env) {
  const child = spawn(program, args, { stdio: ['ignore', 'ignore', 'pipe'], env });
  const server = { child, stderr: '', url: null };
  server.exited = new Promise((resolve) => child.on('exit', (code, signal) => resolve({ code, signal })));
  const ready = new Promise((resolve, reject) => {
    child.stderr.on('data', (data) => {
      server.stderr += data;
      const match = /^ready (https?:\S+)$/m.exec(server.stderr);
      if (match) {
        server.url = match[1];
        resolve(server);
      }
    });
    server.exited.then(({ code }) => reject(new Error(`loam ended with ${code}: ${server.stderr}`)));
  });
  server.stop = async (signal = 'SIGTERM') => {
    child.kill(signal);
    return server.exited;
  };
  return ready;
}

// Run loam to its end.
export const run = (...args) => run_with('', ...args);

// And with something to read on its standard input.
export function run_with(input, ...args) {
  const result = spawnSync(LOAM, args, { encoding: 'utf8', input, maxBuffer: 1 << 28 });
  return { code: result.status, stdout: result.stdout, stderr: result.stderr };
}

// A run that must have been refused: the exit code, one sentence on stderr with these parts, nothing on stdout.
export function refused(result, code, ...parts) {
  assert.equal(result.code, code, `exit ${result.code}: ${result.stderr}`);
  assert.equal(result.stdout, '', 'stdout carries results only');
  for (const part of parts)
    assert.ok(result.stderr.includes(part), `"${result.stderr}" does not say "${part}"`);
  assert.equal(result.stderr.trim().split('\n').length, 1, `one sentence, not: ${result.stderr}`);
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
