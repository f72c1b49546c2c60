// The page: its tabs, and whether the server is there.

import { ask, onPresence } from "./api.js";
import { playground } from "./cards.js";
import { compare } from "./compare.js";
import { operations } from "./operations.js";

/** How often a server that is away is asked whether it is back, and one that is there how things stand. */
const AGAIN_MS = 1000;
const REFRESH_MS = 5000;

const find = (id) => document.getElementById(id);

function tabs() {
  const all = [...document.querySelectorAll("[role=tab]")];
  const select = (tab) => {
    for (const own of all) {
      const isSelected = own === tab;
      own.setAttribute("aria-selected", String(isSelected));
      own.tabIndex = isSelected ? 0 : -1;
      find(own.getAttribute("aria-controls")).hidden = !isSelected;
    }
  };
  const named = () => all.find((tab) => !tab.hidden && `#${tab.getAttribute("aria-controls")}` === location.hash);
  for (const tab of all) {
    tab.addEventListener("click", () => {
      history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
      select(tab);
    });
    tab.addEventListener("keydown", (event) => {
      const shown = all.filter((own) => !own.hidden);
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const to = event.key === "Home" ? shown[0] : event.key === "End" ? shown.at(-1)
        : step ? shown.at((shown.indexOf(tab) + step) % shown.length) : null;
      if (!to) return;
      event.preventDefault();
      to.focus();
      to.click();
    });
  }
  const selectNamed = () => select(named() ?? all[0]);
  addEventListener("hashchange", selectNamed);
  selectNamed();
  return selectNamed;
}

function presence(refresh) {
  const lost = find("lost");
  onPresence((isThere) => {
    lost.hidden = isThere;
    lost.textContent = isThere ? "" : "The server does not answer. The page goes on when it does.";
    if (!isThere) again();
  });
  const again = () => setTimeout(() => ask("GET", "/healthz").then(refresh).catch(again), AGAIN_MS);
}

async function begin() {
  const selectNamed = tabs();
  const refresh = playground(find("cards"), find("reset"));
  const tell = async () => {
    const store = await refresh();
    find("store").textContent = store === "memory" ? "counters in this server's memory" : "counters on Redis";
  };
  presence(tell);
  compare(find("compare"));
  operations(find("operations"), find("tab-operations"), selectNamed);
  await tell().catch(() => {});
  setInterval(() => {
    if (document.visibilityState === "visible") tell().catch(() => {});
  }, REFRESH_MS);
}

begin();
