// What the control plane knows, live, and requests to it.

const STALE_MS = 25_000;
const AGAIN_MS = 2_000;
const SAMPLES = 60;
const SAMPLE_MS = 2_000;
const REPORT_S = 2;

/** An answer that says no. */
export class Refusal extends Error {
  constructor(status, error) {
    super(error?.message ?? "The control plane does not answer.");
    this.status = status;
    this.code = error?.code ?? "";
    this.faults = error?.faults ?? [];
    this.details = error?.details ?? {};
  }
}

/** One request. Cookie and origin are the browser's to send. */
export async function call(method, path, body) {
  const request = { method, headers: {}, credentials: "same-origin", cache: "no-store", redirect: "error" };
  if (method !== "GET") {
    request.headers["content-type"] = "application/json";
    if (body !== undefined) request.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, request);
  } catch {
    throw new Refusal(0, { message: "The control plane cannot be reached from here. Check your network, then its host." });
  }
  const text = await answer.text();
  let value = null;
  try {
    value = text === "" ? null : JSON.parse(text);
  } catch {
    throw new Refusal(answer.status, { message: `The answer is not what a control plane says (HTTP ${answer.status}).` });
  }
  if (!answer.ok) {
    const refusal = new Refusal(answer.status, value?.error);
    if (answer.status === 401 && path !== "/v1/session") store.ended();
    throw refusal;
  }
  return value;
}

/** A relay's worker, where its numbers are of this moment. */
export function living(relay) {
  return relay?.state === "offline" ? null : relay?.worker;
}

/** Everything that is shown. */
class Store {
  constructor() {
    this.who = null;
    this.listeners = new Set();
    this.reset();
    this.source = null;
    this.connection = "connecting"; // connecting, live, lost
    this.heard = Date.now();
    this.onEnd = () => {};
    setInterval(() => this.watch(), 1000);
    setInterval(() => this.sample(), SAMPLE_MS);
  }

  reset() {
    this.status = null;
    this.complete = false;
    this.kinds = { warning: new Map(), relay: new Map(), node: new Map(), link: new Map() };
    this.rates = new Map();
    this.history = [];
  }

  relays() { return [...this.kinds.relay.values()]; }
  nodes() { return [...this.kinds.node.values()]; }
  links() { return [...this.kinds.link.values()]; }
  warnings() { return [...this.kinds.warning.values()].sort((a, b) => a.place - b.place); }
  mayChange() { return this.who?.scopes.includes("admin:system") ?? false; }

  start() {
    this.stop();
    this.connection = "connecting";
    const source = new EventSource("/v1/events");
    this.source = source;
    source.addEventListener("open", () => this.alive());
    source.addEventListener("change", (event) => this.take(JSON.parse(event.data)));
    source.addEventListener("beat", () => this.alive());
    source.addEventListener("end", () => this.ended());
    source.addEventListener("error", () => this.lost(source));
  }

  stop() {
    this.source?.close();
    this.source = null;
    clearTimeout(this.again);
  }

  alive() {
    this.heard = Date.now();
    if (this.connection === "live") return;
    this.connection = "live";
    this.tell();
  }

  /** The browser tries again by itself after a broken connection, but not after a refusal. */
  lost(source) {
    if (this.source !== source) return;
    if (this.connection !== "lost") {
      this.connection = "lost";
      this.tell();
    }
    if (source.readyState !== EventSource.CLOSED) return;
    this.stop();
    this.again = setTimeout(async () => {
      try {
        await call("GET", "/v1/whoami");
        this.start();
      } catch (refusal) {
        if (refusal.status !== 401) {
          this.again = setTimeout(() => this.start(), AGAIN_MS);
        }
      }
    }, AGAIN_MS);
  }

  /** A connection that says nothing any more: a laptop that slept, a network that changed. */
  watch() {
    if (this.source && this.connection === "live" && Date.now() - this.heard > STALE_MS) {
      this.connection = "lost";
      this.tell();
      this.start();
    }
  }

  ended() {
    this.stop();
    this.who = null;
    this.reset();
    this.onEnd();
  }

  take(change) {
    if (change.anew) {
      const { history } = this;
      this.reset();
      this.history = history;
    }
    for (const { kind, id, value } of change.items) {
      if (kind === "status") this.status = value;
      else if (!(kind in this.kinds)) continue;
      else if (value === null) this.kinds[kind].delete(id);
      else this.kinds[kind].set(id, value);
      if (kind === "relay") this.measure(id, value);
    }
    this.complete ||= change.complete;
    this.connection = "live";
    this.heard = Date.now();
    this.tell();
  }

  /** Bytes per second of a relay. Workers report each 2 s, so what has changed since the last
      event has changed since then at most. */
  measure(id, relay) {
    const worker = living(relay);
    if (!worker) {
      this.rates.delete(id);
      return;
    }
    const now = { at: Date.now(), pid: worker.pid, bytes: worker.bytes_relayed, rate: 0 };
    const last = this.rates.get(id);
    if (last && last.pid === now.pid) {
      const more = now.bytes - last.bytes;
      const seconds = (now.at - last.at) / 1000;
      if (more === 0 || seconds < 0.5) return;
      now.rate = Math.max(0, more) / Math.min(seconds, REPORT_S);
    }
    this.rates.set(id, now);
  }

  /** A relay whose count has stood still for two reports carries nothing. */
  rate(id) {
    const known = this.rates.get(id);
    if (!known) return null;
    return Date.now() - known.at > 2500 * REPORT_S ? 0 : known.rate;
  }

  totalRate() {
    const rates = [...this.kinds.relay.keys()].map((id) => this.rate(id)).filter((value) => value !== null);
    return rates.length === 0 ? null : rates.reduce((sum, value) => sum + value, 0);
  }

  sample() {
    if (!this.complete) return;
    this.history.push(this.totalRate() ?? 0);
    if (this.history.length > SAMPLES) this.history.shift();
    this.tell();
  }

  onChange(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  tell() {
    for (const listener of this.listeners) listener();
  }
}

export const store = new Store();
