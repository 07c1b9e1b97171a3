// Numbers and times as people read them.

import { h } from "./dom.js";

/** Between a number and its unit: they stay on one line. */
const TIE = "\u00a0";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(count) {
  let [value, unit] = [count, 0];
  while (value >= 1024 && unit < UNITS.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)}${TIE}${UNITS[unit]}`;
}

export function rate(bytesPerSecond) {
  return bytesPerSecond === null ? "–" : `${bytes(bytesPerSecond)}/s`;
}

export function number(value) {
  return value.toLocaleString("en");
}

export function many(count, one, more = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : more}`;
}

/** A length of time by its two largest units. */
export function span(seconds) {
  const parts = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  let left = Math.max(0, Math.round(seconds));
  const shown = [];
  for (const [unit, size] of parts) {
    const count = Math.floor(left / size);
    left -= count * size;
    if (count > 0 || (unit === "s" && shown.length === 0)) shown.push(`${count}${TIE}${unit}`);
    else if (shown.length > 0) break;
    if (shown.length === 2) break;
  }
  return shown.join(TIE);
}

function absolute(at) {
  return at.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "long" });
}

/** A point in time: how far it is, and in its title the date. */
export function when(text, { ago = true, bare = false } = {}) {
  const at = new Date(text);
  const seconds = (at - Date.now()) / 1000;
  let words;
  if (seconds <= 0) words = Math.abs(seconds) < 5 ? "just now" : `${span(-seconds)}${ago ? " ago" : ""}`;
  else words = bare ? span(seconds) : `in ${span(seconds)}`;
  return h("time", { datetime: text, title: absolute(at) }, words);
}

/** A clock time of today, or a date. */
export function clock(text) {
  const at = new Date(text);
  const today = new Date().toDateString() === at.toDateString();
  const words = today ? at.toLocaleTimeString("en-GB") : at.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
  return h("time", { datetime: text, title: absolute(at) }, words);
}

/** "db, cache and 2 more" */
export function names(list, most = 3) {
  if (list.length <= most) return list.join(", ");
  return `${list.slice(0, most).join(", ")} and ${list.length - most} more`;
}

export function version(text) {
  return text === "" ? "–" : `v${text}`;
}
