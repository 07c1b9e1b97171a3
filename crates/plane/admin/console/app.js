// The console: frame, navigation, and what buttons do.

import { addLink, addMember, confirmRemoval, newCommand } from "./dialogs.js";
import { h, morph } from "./dom.js";
import { call, store } from "./live.js";
import { mark, showLogin } from "./login.js";
import { PAGES, ui } from "./pages.js";
import { clock, many } from "./words.js";

const root = document.getElementById("app");
let due = false;

/** Draws at the next frame, however much has changed. */
function draw() {
  if (due || !store.who) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    if (store.who) morph(root, [skip(), header(), main()]);
    root.removeAttribute("aria-busy");
  });
}
ui.draw = draw;

function page() {
  const name = location.hash.replace(/^#\/?/, "").split("/")[0];
  return name in PAGES ? name : "overview";
}

function skip() {
  return h("a", { class: "skip", href: "#main", "data-key": "skip", "data-act": "skip" }, "Skip to the content");
}

function header() {
  const here = page();
  const links = Object.entries(PAGES).map(([name, { title, count }]) => {
    const badge = count?.() ?? 0;
    return h(
      "a", { href: `#/${name}`, "data-key": name, "aria-current": name === here ? "page" : null },
      title, badge > 0 && h("span", { class: "count", "aria-label": `, ${many(badge, "warning")}` }, badge),
    );
  });
  return h(
    "header", { class: "top", "data-key": "top" },
    h("div", { class: "bar" },
      h("a", { class: "brand", href: "#/overview", "aria-label": "Fairlead, overview" }, mark(), h("span", {}, "Fairlead")),
      store.status && h("span", { class: "domain", title: "Trust domain" }, store.status.trust_domain),
      store.status?.lab && h("span", { class: "tag", title: "Several relays on one host are allowed" }, "lab"),
      h("span", { class: "push" }),
      connection(),
      h("span", { class: "who", title: `Scopes: ${store.who.scopes.join(", ")}` },
        store.who.name, !store.mayChange() && h("span", { class: "tag" }, "read only")),
      h("button", { class: "button small", type: "button", "data-act": "logout" }, "Log out"),
    ),
    h("nav", { "aria-label": "Pages" }, links),
  );
}

function connection() {
  const words = { connecting: "Connecting…", live: "Live", lost: "Reconnecting…" };
  const since = new Date(store.heard).toISOString();
  return h(
    "span", { class: `connection ${store.connection}`, role: "status" },
    h("span", { class: "dot", "aria-hidden": "true" }),
    words[store.connection],
    store.connection === "lost" && h("span", { class: "quiet stale" }, " shown as of ", clock(since)),
  );
}

function main() {
  const { title, draw: content } = PAGES[page()];
  const trouble = store.warnings().length;
  document.title = `${trouble > 0 ? `(${trouble}) ` : ""}${title} · Fairlead`;
  if (!store.complete) {
    const wait = h("p", { class: "waiting" }, h("span", { class: "spinner", "aria-hidden": "true" }), "Loading the pool…");
    return h("main", { id: "main", tabindex: "-1", "data-key": "main", "aria-busy": "true" }, wait);
  }
  return h("main", { id: "main", tabindex: "-1", "data-key": "main", class: store.connection === "lost" ? "old" : null }, content());
}

/** What buttons do, by their `data-act`. */
const ACTS = {
  skip: (event) => {
    event.preventDefault();
    document.getElementById("main")?.focus();
  },
  logout: async () => {
    try {
      await call("DELETE", "/v1/session");
    } catch {
      // The cookie is all that is lost.
    }
    store.stop();
    store.who = null;
    store.reset();
    login("");
  },
  "add-relay": () => addMember("relay"),
  "add-node": () => addMember("node"),
  "add-link": () => addLink(),
  remove: (_, { kind, id }) => confirmRemoval(kind, id),
  command: (_, { kind, id }) => newCommand(kind, id),
  open: (_, { id }) => {
    if (!ui.open.delete(id)) ui.open.add(id);
    draw();
  },
  go: (_, { kind, id }) => {
    ui.open.add(id);
    location.hash = `#/${kind}s`;
    requestAnimationFrame(() => requestAnimationFrame(() => {
      const row = document.querySelector(`[data-act="open"][data-id="${CSS.escape(id)}"]`);
      row?.scrollIntoView({ block: "center" });
      row?.focus();
    }));
  },
  older: () => ui.older(),
};

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-act]");
  const act = target && ACTS[target.dataset.act];
  if (act) act(event, target.dataset);
});
document.addEventListener("input", (event) => {
  const { filter } = event.target.dataset;
  if (filter) {
    ui.filters[filter] = event.target.value;
    draw();
  }
});
window.addEventListener("hashchange", () => {
  draw();
  window.scrollTo(0, 0);
});

function login(why) {
  document.querySelectorAll("dialog").forEach((dialog) => dialog.remove());
  showLogin(root, why, enter);
}

function enter(who) {
  store.who = who;
  root.replaceChildren();
  store.start();
  draw();
  requestAnimationFrame(() => requestAnimationFrame(() => document.getElementById("main")?.focus()));
}

store.onChange(draw);
store.onEnd = () => login("Your session has ended: it was idle for long, its token was revoked, or the control plane started again.");

try {
  const answer = await fetch("/v1/whoami", { credentials: "same-origin", cache: "no-store" });
  if (answer.ok) enter(await answer.json());
  else login("");
} catch {
  login("");
}
