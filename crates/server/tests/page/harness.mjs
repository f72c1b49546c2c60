// Starts servers, a Redis and a browser, and ends them. A page that complains fails its test.

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

/** The longest that a condition takes to come true. */
const WAIT_MS = 10_000;

const packaged = createRequire(join(ROOT, ".tools/page/node_modules/of-the-tests.js"));

function needed(name) {
  try {
    return packaged.resolve(name);
  } catch (error) {
    throw new Error(`${name} is missing: run \`make browser\``, { cause: error });
  }
}

/** What is to be ended with this process. */
const started = [];
const directory = mkdtempSync(join(tmpdir(), "tollgate-page-"));
process.on("exit", () => {
  for (const child of started) child.kill("SIGKILL");
  rmSync(directory, { recursive: true, force: true });
});
process.once("SIGTERM", () => process.exit(1));

/** A path in a directory that goes with this process. */
export const scratch = (name) => join(directory, name);

function start(command, args, env = {}) {
  const child = spawn(command, args, { cwd: directory, env, stdio: ["ignore", "ignore", "pipe"] });
  child.gone = new Promise((resolve) => child.once("exit", resolve).once("error", resolve));
  started.push(child);
  return child;
}

/** A server on free ports. */
export class Server {
  /** `Server.start(["--no-playground"], { TOLLGATE_OPERATOR_TOKEN: "…" })`. */
  static async start(flags = [], env = {}) {
    const server = new Server();
    [server.flags, server.env, server.address] = [flags, env, "127.0.0.1:0"];
    await server.run();
    return server;
  }

  /** Once more, where it was before. */
  async run() {
    const binary = resolve(process.env.TOLLGATE ?? join(ROOT, "target/debug/tollgate"));
    assert.ok(existsSync(binary), `${binary} is missing: build it, or say in TOLLGATE where it is`);
    const args = ["serve", "--listen", this.address, "--grpc-listen", "127.0.0.1:0", ...this.flags];
    // So few connections that a machine has files for them, and nothing is said of that.
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

  /** At once, as one that is lost. */
  async stop() {
    this.child.kill("SIGKILL");
    await this.child.gone;
  }

  /** `await server.ask("POST", "/v1/check", { limit: "free", key: "a" })`. */
  async ask(method, path, body) {
    const headers = this.env.TOLLGATE_OPERATOR_TOKEN ? { authorization: `Bearer ${this.env.TOLLGATE_OPERATOR_TOKEN}` } : {};
    if (body !== undefined) headers["content-type"] = "application/json";
    const response = await fetch(this.url + path, { method, headers, body: body && JSON.stringify(body) });
    return { status: response.status, json: JSON.parse((await response.text()) || "null") };
  }
}

/** A Redis on a socket. */
export class Redis {
  static async start() {
    const redis = new Redis();
    redis.path = scratch("redis.sock");
    redis.url = `redis+unix://${redis.path}`;
    await redis.run();
    return redis;
  }

  /** Once more, where it was before, and empty. */
  async run() {
    this.child = start("redis-server", ["--port", "0", "--unixsocket", this.path, "--save", ""], { PATH: process.env.PATH });
    const failed = new Promise((_, reject) => this.child.once("error", (error) => reject(new Error(`redis-server: ${error.message}; run \`make servers\``))));
    await Promise.race([failed, eventually(() => connects(this.path), "a Redis that listens")]);
  }

  async stop() {
    this.child.kill("SIGKILL");
    await this.child.gone;
  }
}

function connects(path) {
  return new Promise((resolve, reject) => {
    const socket = createConnection(path, () => resolve(socket.destroy())).once("error", reject);
  });
}

/** Tries until it does not throw; then what it gave. */
export async function eventually(attempt, what = "it") {
  const until = performance.now() + WAIT_MS;
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      if (performance.now() > until) throw new Error(`${what} did not come true in ${WAIT_MS} ms: ${error.message}`, { cause: error });
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
}

let browser;

/** The one browser of a file of tests. */
export async function chromium() {
  assert.ok(existsSync(CHROMIUM), `${CHROMIUM} is missing: run \`make browser\``);
  browser ??= packaged(needed("playwright-core")).chromium.launch({ executablePath: CHROMIUM, args: FLAGS });
  return browser;
}

/** Closes the browser and ends all that runs. */
export async function end() {
  await (await browser)?.close();
  for (const child of started) child.kill("SIGKILL");
  await Promise.all(started.map((child) => child.gone));
}

/** A browser's window on a page that is watched, with cookies of its own. */
export class Visit {
  /**
   * `path` is where on the server; the rest are options of Playwright's, such as `colorScheme`. With less motion, unless
   * said otherwise: without a graphics card, drawing takes all the time there is.
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

  /** Waits until the page has heard of the server. */
  async connected() {
    await this.page.locator("#store", { hasText: /^(counters|connected)/ }).waitFor({ state: "attached" });
  }

  async watch() {
    const { page, problems } = this;
    const isHere = (url) => url.startsWith(`${this.server.url}/`);
    page.on("console", (message) => ["error", "warning"].includes(message.type()) && problems.push(`console: ${message.text()} ${message.location().url}`));
    page.on("pageerror", (error) => problems.push(`error: ${error.stack}`));
    page.on("request", (request) => isHere(request.url()) || problems.push(`elsewhere: ${request.url()}`));
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
      // How many questions are not answered and shown: what a page does with an answer it does before its next task.
      window.asking = 0;
      const [ask, read] = [window.fetch, Response.prototype.text];
      const counted = (promise) => promise.finally(() => setTimeout(() => { window.asking -= 1; }));
      window.fetch = (...all) => {
        window.asking += 1;
        return counted(ask(...all));
      };
      Response.prototype.text = function text() {
        window.asking += 1;
        return counted(read.call(this));
      };
    });
  }

  /** Loads the page again; what it was waiting for is not answered any more. */
  async reload() {
    this.isLeaving = true;
    await this.page.reload();
    this.isLeaving = false;
    await this.connected();
  }

  /** Lets the page complain of what is like this. */
  expect(...patterns) {
    this.expected.push(...patterns);
  }

  /** Fails if the page complained, save of what was to be expected; that must have been there. */
  assertCalm() {
    const isExpected = (problem) => this.expected.some((pattern) => pattern.test(problem));
    assert.deepEqual(this.problems.filter((problem) => !isExpected(problem)), [], "the page complained");
    for (const pattern of this.expected) assert.ok(this.problems.some((problem) => pattern.test(problem)), `nothing of ${pattern}`);
  }

  /**
   * Does something, and gives the answer to what the page asks then, of this path and what is wanted: not to what it
   * asked before. By then the page shows it.
   */
  async answerTo(path, act, isWanted = () => true) {
    const isIt = (request) => new URL(request.url()).pathname === path && isWanted(request.postDataJSON());
    const [request] = await Promise.all([this.page.waitForRequest(isIt), act()]);
    const response = await request.response();
    assert.ok(response, `no answer to ${path}`);
    await this.page.waitForFunction(() => window.asking === 0);
    return { sent: request.postDataJSON(), json: await response.json(), headers: await response.allHeaders() };
  }

  /** What the API says of the same session. */
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

/** What an accessibility checker finds, as texts. */
export async function axe({ page }) {
  const source = readFileSync(needed("axe-core"), "utf8");
  await page.evaluate(source);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(({ target, failureSummary }) => `${target} ${failureSummary}`).join("; ")}`);
}
