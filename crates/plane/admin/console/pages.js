// The pages. Each is made whole from what is known; what has not changed stays as it is on screen.

import { h, icon, spark } from "./dom.js";
import { call, living, store } from "./live.js";
import { bytes, clock, many, names, number, rate, version, when } from "./words.js";

/** Rows that are drawn; a filter narrows larger lists. */
const ROWS_MAX = 200;
const AUDIT_PAGE = 50;

/** What the reader has opened, filtered and paged to. */
export const ui = { open: new Set(), filters: {}, draw: () => {}, older };

export const PAGES = {
  overview: { title: "Overview", draw: overview },
  relays: { title: "Relays", draw: relays, count: () => troubles("relay") },
  nodes: { title: "Nodes", draw: nodes, count: () => troubles("node") },
  links: { title: "Links", draw: links, count: () => troubles("link") },
  audit: { title: "Audit", draw: audit },
};

function troubles(kind) {
  return new Set(store.warnings().filter((warning) => warning.kind === kind).map((warning) => warning.id)).size;
}

// --- Overview

function overview() {
  const { status } = store;
  const tunnels = store.relays().reduce((sum, relay) => sum + (living(relay)?.live_tunnels ?? 0), 0);
  return [
    h("h1", { class: "hidden" }, "Overview"),
    health(),
    h("section", { class: "tiles", "aria-label": "The pool in numbers" },
      tile("Relays ready", ratio(status.relays_ready, status.relays), "#/relays", kinds(store.relays())),
      tile("Nodes ready", ratio(status.nodes_ready, status.nodes), "#/nodes", kinds(store.nodes())),
      tile("Links ready", ratio(status.links_ready, status.links), "#/links", kinds(store.links())),
      tile("Live tunnels", number(tunnels), "#/relays", `over ${many(store.relays().filter(living).length, "relay")}`),
      tile("Traffic", rate(store.totalRate()), "#/relays", spark(store.history, "Traffic of the last two minutes")),
      tile("Policy", `revision ${status.policy_revision}`, "#/audit", `epoch ${status.policy_epoch}`),
    ),
    store.links().length > 0 && h("section", { "aria-labelledby": "paths" },
      h("h2", { id: "paths" }, "Paths"), h("ul", { class: "paths card" }, sorted(store.links()).slice(0, 12).map(path)),
      store.links().length > 12 && h("p", {}, h("a", { href: "#/links" }, `All ${number(store.links().length)} links`))),
    h("p", { class: "quiet foot" },
      `Control plane ${version(status.version)} at ${status.advertised}, up for ${status.uptime === "0s" ? "less than a minute" : status.uptime}`),
  ];
}

function health() {
  const warnings = store.warnings();
  const { status } = store;
  if (status.relays === 0 || status.nodes === 0 || status.links === 0) {
    const start = beginnings();
    if (start) return [start, warnings.length > 0 && trouble(warnings)];
  }
  if (warnings.length > 0) return trouble(warnings);
  if (status.verdict === "attention") return toEnrol();
  if (status.verdict === "settling") {
    const waits = [...store.relays(), ...store.nodes(), ...store.links()].filter((item) => item.state !== "ready").length;
    return h("section", { class: "health waits card", "data-key": "health", role: "status" },
      icon("waiting"),
      h("div", {}, h("h2", {}, "Settling"), h("p", {}, `${many(waits, "object")} not ready yet; nothing is known to be wrong.`)));
  }
  return h("section", { class: "health ok card", "data-key": "health", role: "status" },
    icon("ok"),
    h("div", {}, h("h2", {}, "All is well"),
      h("p", {}, `Every relay, node and link is ready: new connections are carried.`)));
}

/** Members that wait for somebody to enrol them: no fault, and nothing that comes right by itself. */
function toEnrol() {
  const waits = [...store.relays(), ...store.nodes()].filter((item) => item.state === "pending");
  return h("section", { class: "health warning card", "data-key": "health", role: "status" },
    icon("warning"),
    h("div", {}, h("h2", {}, `${many(waits.length, "member")} to enrol`),
      h("p", {}, `${names(waits.map((item) => item.name), 5)}: run the command that adding it has shown on its host, or make a new token.`)));
}

function trouble(warnings) {
  const critical = warnings.filter((warning) => warning.severity === "critical").length;
  const kind = critical > 0 ? "critical" : "warning";
  const title = critical > 0
    ? `${many(critical, "thing")} ${critical === 1 ? "does" : "do"} not work${warnings.length > critical ? `, ${number(warnings.length - critical)} to look at` : ""}`
    : `${many(warnings.length, "thing")} to look at`;
  return h("section", { class: `health ${kind} card`, "data-key": "health", "aria-labelledby": "health" },
    icon(kind),
    h("div", {},
      h("h2", { id: "health", role: "status" }, title),
      h("ul", { class: "warnings" }, warnings.slice(0, 50).map((warning) => h("li", { "data-key": `${warning.code}${warning.id}`, class: warning.severity },
        h("p", { class: "what" },
          icon(warning.severity), h("span", { class: "hidden" }, `${warning.severity}: `), warning.message),
        h("p", { class: "todo" }, warning.action, " ",
          warning.kind !== "pool" && h("button", { class: "link", type: "button", "data-act": "go", "data-kind": warning.kind, "data-id": warning.id },
            `Show ${warning.kind} ${warning.name}`)),
        h("code", { class: "code quiet" }, warning.code),
      ))),
      warnings.length > 50 && h("p", { class: "quiet" }, `and ${number(warnings.length - 50)} more`),
    ));
}

/** The way to a first link, while something is missing. */
function beginnings() {
  const { relays: relayCount, nodes: nodeCount, links: linkCount } = store.status;
  const step = (done, title, text, act, label) => h("li", { class: done ? "done" : null },
    h("span", { class: "step" }, done && icon("ok")),
    h("div", {}, h("h3", {}, title, done && h("span", { class: "hidden" }, " (done)")), !done && h("p", {}, text)),
    !done && store.mayChange() && h("button", { class: "button", type: "button", "data-act": act }, icon("add"), label));
  return h("section", { class: "card begin", "data-key": "begin", "aria-labelledby": "begin" },
    h("h2", { id: "begin" }, "Three steps to the first connection"),
    h("ol", {},
      step(relayCount > 0, "A relay", "A host that carries connections. It needs one UDP port that every node reaches.", "add-relay", "Add relay"),
      step(nodeCount > 1, "Two nodes", "Where your services are, and where they are used. They need no open port.", "add-node", "Add node"),
      step(linkCount > 0, "A link", "Publishes one service of one node to another node.", "add-link", "Add link")));
}

function tile(label, value, href, note) {
  return h("a", { class: "tile card", href, "data-key": label },
    h("span", { class: "label" }, label), h("span", { class: "value" }, value), h("span", { class: "note" }, note));
}

function ratio(ready, all) {
  return all === 0 ? "none" : `${number(ready)} of ${number(all)}`;
}

/** "1 offline, 2 pending", or that there is nothing to say. */
function kinds(items) {
  const counts = new Map();
  for (const { state } of items) if (state !== "ready") counts.set(state, (counts.get(state) ?? 0) + 1);
  if (items.length === 0) return "none yet";
  if (counts.size === 0) return "all of them";
  return [...counts].map(([state, count]) => `${count} ${state.replace("-", " ")}`).join(", ");
}

function path(link) {
  return h("li", { "data-key": link.id },
    h("button", { class: "link name", type: "button", "data-act": "go", "data-kind": "link", "data-id": link.id }, link.name),
    h("span", { class: "route" },
      h("span", { class: "end" }, link.from.name), icon("arrow"),
      h("span", { class: "via" }, link.relays.length === 0 ? "no relay" : names(link.relays.map((relay) => relay.name))),
      icon("arrow"), h("span", { class: "end" }, link.to.name)),
    state(link.state));
}

// --- Lists

const ORDER = { offline: 0, "not-ready": 1, pending: 2, ready: 3 };

function sorted(items) {
  return items.sort((a, b) => (ORDER[a.state] - ORDER[b.state]) || a.name.localeCompare(b.name, "en", { numeric: true }));
}

const STATES = { ready: ["ok", "ready"], "not-ready": ["warning", "not ready"], offline: ["critical", "offline"], pending: ["waiting", "pending"] };

function state(name) {
  const [picture, words] = STATES[name] ?? ["waiting", name];
  return h("span", { class: `state ${name}` }, icon(picture), words);
}

/** A list with its title, its filter, its button, and rows that open. */
function list(kind, title, columns, items, row, detail, empty) {
  const text = (ui.filters[kind] ?? "").trim().toLowerCase();
  const matches = sorted(items).filter((item) => text === "" || haystack(item).includes(text));
  const shown = matches.slice(0, ROWS_MAX);
  const add = store.mayChange() && h("button", { class: "button primary", type: "button", "data-act": `add-${kind}` }, icon("add"), `Add ${kind}`);
  const head = h("div", { class: "head", "data-key": "head" },
    h("h1", {}, title, h("span", { class: "quiet" }, ` ${number(items.length)}`)),
    items.length > 3 && h("input", {
      type: "search", class: "filter", placeholder: "Filter", "aria-label": `Filter ${title.toLowerCase()}`, "data-filter": kind, "data-key": "filter",
    }),
    items.length > 0 && add);
  if (items.length === 0) return [head, h("div", { class: "card empty", "data-key": "empty" }, empty, add)];
  return [
    head,
    h("div", { class: "card scroll", "data-key": "list" },
      h("table", { role: "table" },
        h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((name) => h("th", { scope: "col", role: "columnheader" }, name)))),
        h("tbody", { role: "rowgroup" }, shown.flatMap((item) => {
          const isOpen = ui.open.has(item.id);
          const cells = row(item).map((cell, at) => h("td", { role: "cell", "data-label": columns[at] }, at === 0 ? opener(item, isOpen, cell) : cell));
          return [
            h("tr", { role: "row", "data-key": item.id, class: `row ${item.state}` }, cells),
            isOpen && h("tr", { role: "row", "data-key": `${item.id}/open`, class: "opened" },
              h("td", { role: "cell", colspan: columns.length, id: `detail-${item.id}` }, detail(item), actions(kind, item))),
          ].filter(Boolean);
        })))),
    matches.length === 0 && h("p", { class: "quiet", role: "status", "data-key": "none" }, "Nothing matches the filter."),
    matches.length > shown.length && h("p", { class: "quiet", "data-key": "more" },
      `${number(shown.length)} of ${number(matches.length)} are shown: narrow them with the filter.`),
  ];
}

function haystack(item) {
  return [item.name, item.state, item.address, item.failure_domain, item.class, item.from?.name, item.to?.name, item.target, item.listen,
    ...(item.relays ?? []).map((relay) => relay.name ?? relay.relay?.name)].join(" ").toLowerCase();
}

function opener(item, isOpen, cell) {
  return h("div", { class: "opener" },
    h("button", {
      class: "disclose", type: "button", "data-act": "open", "data-id": item.id,
      "aria-expanded": String(isOpen), "aria-controls": isOpen ? `detail-${item.id}` : null,
    }, icon("open"), h("span", { class: "name" }, item.name)),
    cell);
}

function actions(kind, item) {
  if (!store.mayChange()) return null;
  return h("div", { class: "actions" },
    item.state === "pending" && kind !== "link" && h("button", { class: "button", type: "button", "data-act": "command", "data-kind": kind, "data-id": item.id }, "New install command"),
    h("button", { class: "button danger", type: "button", "data-act": "remove", "data-kind": kind, "data-id": item.id }, `Remove ${kind}`));
}

function two(first, second) {
  return h("div", { class: "two" }, h("div", {}, first), second && h("div", { class: "quiet" }, second));
}

function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter((pair) => pair && pair[1] !== null && pair[1] !== "" && pair[1] !== undefined)
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function policy({ wanted, applied, refused }) {
  if (refused !== "") return h("span", { class: "bad" }, "refused");
  if (!wanted) return "none";
  if (!applied) return h("span", { class: "quiet" }, "not reported");
  const name = `revision ${applied.revision}`;
  if (applied.epoch === wanted.epoch && applied.revision === wanted.revision) return `${name}, current`;
  const behind = applied.epoch === wanted.epoch ? wanted.revision - applied.revision : null;
  return h("span", { class: "warn" }, behind === null ? `${name}, of an old epoch` : `${name}, ${behind} behind`);
}

function age({ wanted_at: at }) {
  return at && ["signed ", when(at)];
}

function seen(member) {
  if (member.last_seen) return when(member.last_seen);
  return member.enrolled_at ? "now" : "never";
}

function certificate(member) {
  return member.certificate_not_after ? ["certificate ends ", when(member.certificate_not_after)] : "no certificate yet";
}

// --- Relays

function relays() {
  return list("relay", "Relays", ["Relay", "State", "Address", "Tunnels", "Traffic", "Policy", "Version"], store.relays(),
    (relay) => [
      relay.local ? h("span", { class: "tag" }, "local") : null,
      two(state(relay.state), relay.state_reason),
      two(h("code", {}, relay.address), relay.failure_domain),
      living(relay) ? two(number(relay.worker.live_tunnels), many(relay.worker.hop_sessions, "session")) : "–",
      living(relay) ? two(rate(store.rate(relay.id)), `${bytes(relay.worker.memory_bytes)} memory`) : "–",
      two(policy(relay.policy), relay.policy.lease_not_after && ["lease: ", when(relay.policy.lease_not_after, { bare: true }), " left"]),
      two(version(relay.version), certificate(relay)),
    ],
    (relay) => facts([
      ["Why it is not ready", relay.state_reason],
      ["Policy", age(relay.policy)],
      ["Policy refused", relay.policy.refused],
      ["Endpoints placed here", number(relay.endpoints)],
      ["Takes links", relay.capacity ? "yes" : "no"],
      ["Heard", seen(relay)],
      ["Added", when(relay.created_at)],
      ["Enrolled", relay.enrolled_at && when(relay.enrolled_at)],
      ["Worker", relay.worker && [relay.worker.state, living(relay) && `process ${relay.worker.pid}`, version(relay.worker.version)].filter(Boolean).join(", ")],
      ["Worker restarts", relay.worker && number(relay.worker.restarts)],
      ["Last exit", relay.worker?.last_exit],
      ["Open descriptors", living(relay) && number(relay.worker.open_descriptors)],
      ["Carried since its start", relay.worker && bytes(relay.worker.bytes_relayed)],
      ["Metrics", relay.worker?.metrics && h("code", {}, relay.worker.metrics)],
      ["Id", h("code", {}, relay.id)],
    ]),
    [h("h2", {}, "No relay yet"), h("p", {}, "A relay is a host that carries connections between nodes. It needs one UDP port that every node reaches.")]);
}

// --- Nodes

function nodes() {
  return list("node", "Nodes", ["Node", "State", "Streams", "Relays", "Policy", "Version"], store.nodes(),
    (node) => {
      const connected = node.relays.filter((reach) => reach.connected && !reach.error);
      const fastest = connected.map((reach) => reach.rtt_us).filter((rtt) => rtt > 0).sort((a, b) => a - b)[0];
      return [
        null,
        two(state(node.state), node.state_reason),
        away(node) ? "–" : two(number(node.live_streams), node.memory_bytes > 0 && `${bytes(node.memory_bytes)} memory`),
        away(node) ? "–" : two(`${connected.length} of ${node.relays.length} connected`, fastest && `nearest: ${milliseconds(fastest)}`),
        two(policy(node.policy), age(node.policy)),
        two(version(node.version), certificate(node)),
      ];
    },
    (node) => [
      node.relays.length > 0 && h("table", { class: "inner" },
        h("caption", {}, "Its relays"),
        h("thead", {}, h("tr", {}, ["Relay", "Connection", "Round trip", "Registered"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, node.relays.map((reach) => h("tr", { "data-key": reach.relay.id },
          h("td", {}, reach.relay.name),
          h("td", {}, away(node) ? "not known" : connection(reach)),
          h("td", {}, reach.rtt_us ? milliseconds(reach.rtt_us) : "–"),
          h("td", {}, reach.registered.length === 0 ? "–" : many(reach.registered.length, "service")))))),
      facts([
        ["Why it is not ready", node.state_reason],
        ["Policy refused", node.policy.refused],
        ["Heard", seen(node)],
        ["Added", when(node.created_at)],
        ["Enrolled", node.enrolled_at && when(node.enrolled_at)],
        ["Uses", uses(node, "from")],
        ["Publishes", uses(node, "to")],
        ["Metrics", node.metrics && h("code", {}, node.metrics)],
        ["Id", h("code", {}, node.id)],
      ]),
    ],
    [h("h2", {}, "No node yet"), h("p", {}, "A node publishes services or uses them. It opens no port to the network: it connects to the relays.")]);
}

/** What a node that is away does is not known. */
function away(node) {
  return node.state === "offline" || node.state === "pending";
}

function connection(reach) {
  const isOn = reach.connected && !reach.error;
  return [state(isOn ? "ready" : "offline").cloneNode(true).firstChild, " ", isOn ? "connected" : reach.error || "not connected"];
}

function uses(node, end) {
  return names(store.links().filter((link) => link[end].id === node.id).map((link) => link.name).sort(), 8);
}

function milliseconds(us) {
  return us < 10_000 ? `${(us / 1000).toFixed(1)} ms` : `${Math.round(us / 1000)} ms`;
}

// --- Links

function links() {
  return list("link", "Links", ["Link", "State", "From → to", "Listens → target", "Relays"], store.links(),
    (link) => [
      link.class === "standard" ? null : h("span", { class: "tag" }, link.class),
      two(state(link.state), link.waiting_for[0]),
      h("span", { class: "route" }, link.from.name, icon("arrow"), link.to.name),
      two(h("code", {}, link.listen), ["→ ", h("code", {}, link.target)]),
      two(link.relays.length === 0 ? "none" : names(link.relays.map((relay) => relay.name)), link.placement_reason),
    ],
    (link) => [
      link.waiting_for.length > 0 && h("div", {}, h("h3", {}, "Waits for"), h("ul", {}, link.waiting_for.map((text) => h("li", {}, text)))),
      facts([
        ["Class", link.class],
        ["Relays, best first", link.relays.map((relay) => relay.name).join(", ")],
        ["Why these relays", link.placement_reason],
        ["Last connection turned away", link.last_refusal && [when(link.last_refusal.at), `: ${link.last_refusal.code}, ${link.last_refusal.message} (${number(link.last_refusal.count)} so far)`]],
        ["Added", when(link.created_at)],
        ["Generation", number(link.generation)],
        ["Endpoint", h("code", {}, link.endpoint)],
        ["Route", h("code", {}, link.route)],
        ["Id", h("code", {}, link.id)],
      ]),
    ],
    [h("h2", {}, "No link yet"), h("p", {}, "A link publishes one service of one node to another: applications on the one connect to a local address, and reach the service on the other.")]);
}

// --- Audit log

const log = { entries: [], newest: 0, from: null, fault: "", busy: false };

function audit() {
  const seq = store.status.audit_seq;
  if (seq !== log.newest && !log.busy) newer(seq);
  return [
    h("div", { class: "head", "data-key": "head" }, h("h1", {}, "Audit log", h("span", { class: "quiet" }, ` ${many(seq, "entry", "entries")}`))),
    h("p", { class: "quiet", "data-key": "about" }, "Who changed what, and when. Each entry holds the hash of the one before it: what is altered shows."),
    log.fault !== "" && h("p", { class: "fault", role: "alert", "data-key": "fault" }, log.fault),
    h("div", { class: "card", "data-key": "list" },
      log.entries.length === 0 && h("p", { class: "waiting" }, h("span", { class: "spinner", "aria-hidden": "true" }), "Loading…"),
      h("ol", { class: "audit" }, log.entries.map(entry))),
    log.from > 1 && h("button", { class: "button", type: "button", "data-act": "older", "data-key": "older", disabled: log.busy }, log.busy ? "Loading…" : "Show older entries"),
  ];
}

function entry(item) {
  const id = `audit-${item.seq}`;
  const isOpen = ui.open.has(id);
  return h("li", { "data-key": id },
    h("div", { class: "line" },
      h("button", { class: "disclose", type: "button", "data-act": "open", "data-id": id, "aria-expanded": String(isOpen), "aria-label": `Entry ${item.seq}, ${item.action} ${item.object}` }, icon("open")),
      h("span", { class: "at" }, clock(item.at)),
      h("span", { class: "action" }, item.action),
      h("span", { class: "object" }, item.object),
      h("span", { class: "actor quiet" }, `by ${item.actor}`)),
    isOpen && h("div", { class: "sides" },
      side("Before", item.before), side("After", item.after),
      h("p", { class: "quiet" }, `Entry ${item.seq}, hash `, h("code", {}, item.hash.slice(0, 16)), "…")));
}

function side(title, object) {
  if (object === null) return null;
  return h("div", {}, h("h3", {}, title), h("pre", { tabindex: "0" }, JSON.stringify(object, null, 2)));
}

async function fetchAudit(after, limit) {
  log.busy = true;
  try {
    const answer = await call("GET", `/v1/audit?after=${after}&limit=${limit}`);
    log.fault = "";
    return answer.items.reverse();
  } catch (refusal) {
    log.fault = `The log cannot be read: ${refusal.message}`;
    return null;
  } finally {
    log.busy = false;
    ui.draw();
  }
}

async function newer(seq) {
  const after = log.newest === 0 || seq < log.newest || seq - log.newest > AUDIT_PAGE ? Math.max(0, seq - AUDIT_PAGE) : log.newest;
  const items = await fetchAudit(after, AUDIT_PAGE);
  if (items === null) {
    // Not again at once: the next change asks anew.
    log.newest = seq;
    return;
  }
  const goesOn = after === log.newest && log.newest !== 0;
  log.entries = goesOn ? [...items, ...log.entries] : items;
  if (!goesOn) log.from = after + 1;
  log.newest = items[0]?.seq ?? seq;
  ui.draw();
}

async function older() {
  const after = Math.max(0, log.from - 1 - AUDIT_PAGE);
  const items = await fetchAudit(after, log.from - 1 - after);
  if (items === null) return;
  log.entries.push(...items);
  log.from = after + 1;
  ui.draw();
}
