// The page: its tabs, and whether the server is there.

import { ask, onPresence } from "./api.js";
import { playground } from "./cards.js";
import { compare } from "./compare.js";
import { operations } from "./operations.js";

/** How often the server is asked how things stand. */
const REFRESH_MS = 1000;

const STORES = { memory: "counters in memory", redis: "counters on Redis" };

const find = (id) => document.getElementById(id);

/** What a tab shows. */
const panel = (tab) => find(tab.getAttribute("aria-controls"));

/** Makes tabs of them. The answer shows or hides one, and selects the one that the address names. */
function tabs() {
  const all = [...document.querySelectorAll("[role=tab]")];
  const shown = () => all.filter((tab) => !tab.hidden);
  const select = (tab) => {
    for (const own of all) {
      own.setAttribute("aria-selected", String(own === tab));
      own.tabIndex = own === tab ? 0 : -1;
      panel(own).hidden = own !== tab;
    }
  };
  const selectNamed = () => {
    const there = shown();
    const named = there.find((tab) => `#${panel(tab).id}` === location.hash);
    // An address within the page, such as of its content, is no other view.
    select(named ?? there.find((tab) => !panel(tab).hidden) ?? there[0]);
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

/** Says what is wrong with the server, or that all is well again. The answer is told what is wrong beside its being away. */
function presence() {
  const lost = find("lost");
  let [isThere, trouble] = [true, null];
  const tell = () => {
    const words = isThere ? trouble ?? "" : "The server does not answer. This page goes on as soon as it does.";
    document.body.classList.toggle("away", words !== "");
    if (lost.textContent !== words) lost.textContent = words;
  };
  onPresence((now) => {
    isThere = now;
    tell();
  });
  return (words) => {
    trouble = words;
    tell();
  };
}

/** Asks again and again while somebody looks; one question at a time. */
function repeat(refresh, onTrouble = () => {}) {
  const again = async () => {
    if (document.visibilityState === "visible") await refresh().then(() => onTrouble(null), (error) => onTrouble(error.message));
    setTimeout(again, REFRESH_MS);
  };
  again();
}

async function begin() {
  const show = tabs();
  const onTrouble = presence();
  const about = await known();
  for (const tab of [find("tab-playground"), find("tab-compare")]) show(tab, about.playground);
  show(find("tab-operations"), about.operations !== "no");
  find("nothing").hidden = about.playground || about.operations !== "no";
  find("store").textContent = STORES[about.store] ?? "connected";
  if (about.playground) play(onTrouble);
  else repeat(() => ask("GET", "/healthz"), onTrouble);
  if (about.operations !== "no") repeat(operations(find("operations"), about.operations === "token"));
}

/** What there is to see; as soon as the server tells. */
async function known() {
  for (;;) {
    const answer = await ask("GET", "/page/server.json").catch(() => null);
    if (answer?.ok && answer.json) return answer.json;
    await new Promise((done) => setTimeout(done, REFRESH_MS));
  }
}

function play(onTrouble) {
  repeat(playground(find("cards"), { sendAll: find("send-all"), burstAll: find("burst-all"), reset: find("reset") }), onTrouble);
  compare(find("compare"));
}

begin();
