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

/** Makes tabs of them. The answer shows those that there are, and selects the one that the address names. */
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
    select(there.find((tab) => `#${panel(tab).id}` === location.hash) ?? there[0]);
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

function presence() {
  const lost = find("lost");
  onPresence((isThere) => {
    document.body.classList.toggle("away", !isThere);
    lost.textContent = isThere ? "" : "The server does not answer. This page goes on as soon as it does.";
  });
}

/** Asks again and again while somebody looks; one question at a time. */
function repeat(refresh) {
  const again = async () => {
    if (document.visibilityState === "visible") await refresh().catch(() => {});
    setTimeout(again, REFRESH_MS);
  };
  again();
}

function begin() {
  const show = tabs();
  presence();
  const all = { sendAll: find("send-all"), burstAll: find("burst-all"), reset: find("reset") };
  const refresh = playground(find("cards"), all);
  const beginComparing = compare(find("compare"));
  let isPlaying = null;
  repeat(async () => {
    // Where nothing can be played with, that stays so; whether the server is there is still of interest.
    if (isPlaying === false) return void (await ask("GET", "/healthz"));
    const store = await refresh();
    if (isPlaying === null) {
      isPlaying = store !== null;
      for (const tab of [find("tab-playground"), find("tab-compare")]) show(tab, isPlaying);
      find("off").hidden = isPlaying;
      if (isPlaying) beginComparing();
    }
    find("store").textContent = STORES[store] ?? "connected";
  });
  const refreshOperations = operations(find("operations"), (isShown) => show(find("tab-operations"), isShown));
  repeat(refreshOperations);
  show(find("tab-playground"), true);
}

begin();
