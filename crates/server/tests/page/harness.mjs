// Starts and stops servers, Redis and the browser. A problem that the page reports fails its test.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { createConnection } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../../..", import.meta.url));
const CHROMIUM = "/usr/bin/chromium";
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

/** The longest time that a condition can take to become true. */
const WAIT_MS = 10_000;

const packaged = createRequire(join(ROOT, ".tools/page/node_modules/of-the-tests.js"));

/** Returns the path of a package, or fails with the command that installs it. */
function installed(name) {
  try {
    return packaged.resolve(name);
  } catch (error) {
    throw new Error(`${name} is missing: run \`make browser\``, { cause: error });
  }
}

/** The processes to kill when this process ends. */
const started = [];
const directory = mkdtempSync(join(tmpdir(), "tollgate-page-"));
process.on("exit", () => {
  for (const child of started) child.kill("SIGKILL");
  rmSync(directory, { recursive: true, force: true });
});
process.once("SIGTERM", () => process.exit(1));

/** Returns a path in a directory that is deleted when this process ends. */
export const scratch = (name) => join(directory, name);

function start(command, args, env = {}) {
  const child = spawn(command, args, { cwd: directory, env, stdio: ["ignore", "ignore", "pipe"] });
  child.ended = new Promise((resolve) => child.once("exit", resolve).once("error", resolve));
  started.push(child);
  return child;
}

/** A Tollgate server on free ports. */
export class Server {
  /** Starts a server: `Server.start(["--no-playground"], { TOLLGATE_OPERATOR_TOKEN: "…" })`. */
  static async start(flags = [], env = {}) {
    const server = new Server();
    [server.flags, server.env, server.address] = [flags, env, "127.0.0.1:0"];
    await server.run();
    return server;
  }

  /** Starts the server. A second start uses the same address. */
  async run() {
    const binary = resolve(process.env.TOLLGATE ?? join(ROOT, "target/debug/tollgate"));
    assert.ok(existsSync(binary), `${binary} is missing: build it, or set TOLLGATE to its path`);
    const args = ["serve", "--listen", this.address, "--grpc-listen", "127.0.0.1:0", ...this.flags];
    // A number of connections for which every machine has enough file descriptors, so that the server logs no warning.
    this.child = start(binary, args, { TOLLGATE_MAX_CONNECTIONS: "1000", ...this.env });
    this.url = await new Promise((resolve, reject) => {
      let log = "";
      createInterface({ input: this.child.stderr }).on("line", (line) => {
        log += `${line}\n`;
        const found = /(http:\/\/[^ ,]+), gRPC/.exec(line);
        if (found) resolve(found[1]);
      }).on("close", () => reject(new Error(`the server did not start: ${log}`)));
      this.child.once("error", reject);
    });
    this.address = new URL(this.url).host;
  }

  /** Kills the server without a drain. */
  async stop() {
    this.child.kill("SIGKILL");
    await this.child.ended;
  }

  /** Sends a request: `await server.ask("POST", "/v1/check", { limit: "free", key: "a" })`. */
  async ask(method, path, body) {
    const headers = this.env.TOLLGATE_OPERATOR_TOKEN ? { authorization: `Bearer ${this.env.TOLLGATE_OPERATOR_TOKEN}` } : {};
    if (body !== undefined) headers["content-type"] = "application/json";
    const response = await fetch(this.url + path, { method, headers, body: body && JSON.stringify(body) });
    return { status: response.status, json: JSON.parse((await response.text()) || "null") };
  }
}

/** A Redis on a Unix socket. */
export class Redis {
  static async start() {
    const redis = new Redis();
    redis.path = scratch("redis.sock");
    redis.url = `redis+unix://${redis.path}`;
    await redis.run();
    return redis;
  }

  /** Starts an empty Redis. A second start uses the same path. */
  async run() {
    this.child = start("redis-server", ["--port", "0", "--unixsocket", this.path, "--save", ""], { PATH: process.env.PATH });
    const failed = new Promise((_, reject) => this.child.once("error", (error) => reject(new Error(`redis-server: ${error.message}; run \`make servers\``))));
    await Promise.race([failed, eventually(() => connects(this.path), "a connection to Redis")]);
  }

  async stop() {
    this.child.kill("SIGKILL");
    await this.child.ended;
  }
}

function connects(path) {
  return new Promise((resolve, reject) => {
    const socket = createConnection(path, () => resolve(socket.destroy())).once("error", reject);
  });
}

/** Calls `attempt` until it does not throw, and returns its result. */
export async function eventually(attempt, what = "the condition") {
  const until = performance.now() + WAIT_MS;
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      if (performance.now() > until) throw new Error(`${what} failed for ${WAIT_MS} ms: ${error.message}`, { cause: error });
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
}

let browser;

/** Returns the browser that all tests of a file share. */
export async function chromium() {
  assert.ok(existsSync(CHROMIUM), `${CHROMIUM} is missing: run \`make browser\``);
  browser ??= packaged(installed("playwright-core")).chromium.launch({ executablePath: CHROMIUM, args: FLAGS });
  return browser;
}

/** Closes the browser and kills all processes. */
export async function end() {
  await (await browser)?.close();
  for (const child of started) child.kill("SIGKILL");
  await Promise.all(started.map((child) => child.ended));
}

/** A browser window with its own cookies. It records the problems of the page. */
export class Visit {
  /**
   * Opens `path` on the server. The other options are Playwright's, such as `colorScheme`. Reduced motion is the default,
   * because without a graphics card the animations use all of the CPU time.
   */
  static async open(server, { path = "/", ...options } = {}) {
    const visit = new Visit();
    visit.server = server;
    visit.context = await (await chromium()).newContext({ viewport: { width: 1280, height: 900 }, reducedMotion: "reduce", ...options });
    visit.context.setDefaultTimeout(WAIT_MS);
    [visit.problems, visit.expected] = [[], []];
    visit.page = await visit.context.newPage();
    await visit.watch();
    await visit.page.goto(server.url + path);
    await visit.connected();
    return visit;
  }

  /** Waits until the page has reached the server. */
  async connected() {
    await this.page.locator("#store", { hasText: /^(counters|connected)/ }).waitFor({ state: "attached" });
  }

  async watch() {
    const { page, problems } = this;
    const isOwn = (url) => url.startsWith(`${this.server.url}/`);
    page.on("console", (message) => ["error", "warning"].includes(message.type()) && problems.push(`console: ${message.text()} ${message.location().url}`));
    page.on("pageerror", (error) => problems.push(`error: ${error.stack}`));
    page.on("request", (request) => isOwn(request.url()) || problems.push(`request to another host: ${request.url()}`));
    page.on("requestfailed", (request) => {
      const text = request.failure()?.errorText;
      if (!this.isLeaving || text !== "net::ERR_ABORTED") problems.push(`failed: ${text} ${request.url()}`);
    });
    page.on("dialog", (dialog) => problems.push(`dialog: ${dialog.message()}`));
    await page.exposeFunction("reportedByPolicy", (text) => problems.push(`policy: ${text}`));
    await page.addInitScript(() => addEventListener("securitypolicyviolation", (event) => {
      window.reportedByPolicy(`${event.effectiveDirective} ${event.blockedURI} ${event.sourceFile ?? ""}:${event.lineNumber}`);
    }));
    await page.addInitScript(() => {
      // The number of requests whose answers are not shown yet. The page shows an answer before its next task.
      window.openRequests = 0;
      const [fetch, read] = [window.fetch, Response.prototype.text];
      const counted = (promise) => promise.finally(() => setTimeout(() => { window.openRequests -= 1; }));
      window.fetch = (...all) => {
        window.openRequests += 1;
        return counted(fetch(...all));
      };
      Response.prototype.text = function text() {
        window.openRequests += 1;
        return counted(read.call(this));
      };
    });
  }

  /** Reloads the page. Requests that this aborts are not problems. */
  async reload() {
    this.isLeaving = true;
    await this.page.reload();
    this.isLeaving = false;
    await this.connected();
  }

  /** Expects problems that match these patterns. */
  expect(...patterns) {
    this.expected.push(...patterns);
  }

  /** Fails if the page had an unexpected problem, or if an expected one is missing. */
  assertNoProblems() {
    const isExpected = (problem) => this.expected.some((pattern) => pattern.test(problem));
    assert.deepEqual(this.problems.filter((problem) => !isExpected(problem)), [], "the page had problems");
    for (const pattern of this.expected) assert.ok(this.problems.some((problem) => pattern.test(problem)), `no problem matches ${pattern}`);
  }

  /**
   * Runs `act`, and returns the answer to the first request for this path that the page sends after that and that `isWanted`
   * accepts. Returns once the page shows the answer.
   */
  async answerTo(path, act, isWanted = () => true) {
    const matches = (request) => new URL(request.url()).pathname === path && isWanted(request.postDataJSON());
    const [request] = await Promise.all([this.page.waitForRequest(matches), act()]);
    const response = await request.response();
    assert.ok(response, `no answer to ${path}`);
    await this.page.waitForFunction(() => window.openRequests === 0);
    return { sent: request.postDataJSON(), json: await response.json(), headers: await response.allHeaders() };
  }

  /** Returns the state of the same session from the API. */
  async state(config = {}) {
    const response = await this.context.request.post(`${this.server.url}/api/rate-limit/state`, { data: { config } });
    assert.equal(response.status(), 200, await response.text());
    return response.json();
  }

  tab(name) {
    return this.page.getByRole("tab", { name });
  }

  async close() {
    await this.context.close();
  }
}

/** Returns the problems that the accessibility checker axe finds. */
export async function axe({ page }) {
  const source = readFileSync(installed("axe-core"), "utf8");
  await page.evaluate(source);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(({ target, failureSummary }) => `${target} ${failureSummary}`).join("; ")}`);
}
