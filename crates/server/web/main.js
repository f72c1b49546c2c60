// The page: its tabs, and the banner for a server that cannot be reached.

import { onReachability, send } from "./api.js";
import { playground } from "./cards.js";
import { compare } from "./compare.js";
import { operations } from "./operations.js";

/** The time between two updates from the server. */
const REFRESH_MS = 1000;

/** The texts for the store, at the top of the page. */
const STORES = { memory: "counters in memory", redis: "counters on Redis" };

const find = (id) => document.getElementById(id);

/** Returns the view of a tab. */
const panel = (tab) => find(tab.getAttribute("aria-controls"));

/** Connects the tabs. Returns a function that shows or hides a tab, and then selects the tab that the address names. */
function tabs() {
  const all = [...document.querySelectorAll("[role=tab]")];
  const shown = () => all.filter((tab) => !tab.hidden);
  const select = (tab) => {
    for (const other of all) {
      other.setAttribute("aria-selected", String(other === tab));
      other.tabIndex = other === tab ? 0 : -1;
      panel(other).hidden = other !== tab;
    }
  };
  const selectNamed = () => {
    const visible = shown();
    const named = visible.find((tab) => `#${panel(tab).id}` === location.hash);
    // An address within a view, such as #content, keeps the selected view.
    select(named ?? visible.find((tab) => !panel(tab).hidden) ?? visible[0]);
  };
  const open = (tab) => {
    history.replaceState(null, "", `#${panel(tab).id}`);
    select(tab);
  };
  for (const tab of all) {
    tab.addEventListener("click", () => open(tab));
    tab.addEventListener("keydown", (event) => {
      const to = neighbour(event.key, shown(), tab);
      if (!to) return;
      event.preventDefault();
      to.focus();
      open(to);
    });
  }
  addEventListener("hashchange", selectNamed);
  return (tab, isShown) => {
    tab.hidden = !isShown;
    selectNamed();
  };
}

/** Returns the tab that a key moves to. */
function neighbour(key, tabs, tab) {
  const at = tabs.indexOf(tab);
  switch (key) {
    case "ArrowRight": return tabs[(at + 1) % tabs.length];
    case "ArrowLeft": return tabs.at(at - 1);
    case "Home": return tabs[0];
    case "End": return tabs.at(-1);
    default: return null;
  }
}

/**
 * Shows a banner while the server cannot be reached. Returns a function that sets another problem for the banner, or null.
 */
function connectBanner() {
  const banner = find("banner");
  let [isReachable, problem] = [true, null];
  const update = () => {
    const words = isReachable ? problem ?? "" : "The server does not answer. This page continues when the server is back.";
    document.body.classList.toggle("unreachable", words !== "");
    if (banner.textContent !== words) banner.textContent = words;
  };
  onReachability((now) => {
    isReachable = now;
    update();
  });
  return (words) => {
    problem = words;
    update();
  };
}

/** Calls `refresh` every second while the page is visible, but not before the previous call has ended. */
function repeat(refresh, setProblem = () => {}) {
  const again = async () => {
    if (document.visibilityState === "visible") await refresh().then(() => setProblem(null), (error) => setProblem(error.message));
    setTimeout(again, REFRESH_MS);
  };
  again();
}

async function begin() {
  const show = tabs();
  const setProblem = connectBanner();
  const about = await readViews();
  for (const tab of [find("tab-playground"), find("tab-compare")]) show(tab, about.playground);
  show(find("tab-operations"), about.operations !== "no");
  find("no-views").hidden = about.playground || about.operations !== "no";
  find("store").textContent = STORES[about.store] ?? "connected";
  if (about.playground) startPlayground(setProblem, about.holds);
  else repeat(() => send("GET", "/healthz"), setProblem);
  if (about.operations !== "no") repeat(operations(find("operations"), about.operations === "token"));
}

/** Returns which views the server has. Waits until the server answers. */
async function readViews() {
  for (;;) {
    const answer = await send("GET", "/page/server.json").catch(() => null);
    if (answer?.ok && answer.json) return answer.json;
    await new Promise((done) => setTimeout(done, REFRESH_MS));
  }
}

/** Starts the Playground and Compare views. */
function startPlayground(setProblem, hasHolds) {
  repeat(playground(find("cards"), { sendAll: find("send-all"), burstAll: find("burst-all"), reset: find("reset") }, hasHolds), setProblem);
  compare(find("compare"));
}

begin();
