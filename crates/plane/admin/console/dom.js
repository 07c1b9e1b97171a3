// Elements from plain values. Text is always text: there is no way here to make markup of it.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; children are nodes, texts, lists of both, or nothing. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

const ICONS = {
  ok: "M3.5 8.5l3 3 6-7",
  warning: "M8 2.2l6.3 11.3H1.7zM8 6.4v3.2M8 11.5v.1",
  critical: "M4.5 4.5l7 7M11.5 4.5l-7 7",
  waiting: "M8 4.5V8l2.5 1.5M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8z",
  arrow: "M2.5 8h10M9 4.5L12.5 8 9 11.5",
  open: "M6 3.5L10.5 8 6 12.5",
  add: "M8 3v10M3 8h10",
};

/** A small picture beside a text that says the same. */
export function icon(name) {
  const path = s("path", { d: ICONS[name] });
  return s("svg", { class: `icon icon-${name}`, viewBox: "0 0 16 16", "aria-hidden": "true" }, path);
}

/** A line through values, oldest first. */
export function spark(values, label) {
  const [width, height] = [120, 28];
  const top = Math.max(1, ...values);
  const step = width / Math.max(1, values.length - 1);
  const points = values.map((value, at) => `${(at * step).toFixed(1)},${(height - 2 - (value / top) * (height - 4)).toFixed(1)}`);
  const line = s("polyline", { points: points.join(" ") });
  return s("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, preserveAspectRatio: "none" }, line);
}

/** Makes the children of `parent` look like `nexts`, keeping what can stay: focus, what is typed,
    and what is open stay where they are. Elements with `data-key` are the same by that key. */
export function morph(parent, nexts) {
  const focused = document.activeElement;
  morphChildren(parent, nexts);
  if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}

function morphChildren(parent, nexts) {
  const keyed = new Map();
  for (const child of parent.children) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  let at = parent.firstChild;
  for (const next of nexts) {
    const key = next.dataset?.key;
    const match = key ? keyed.get(key) : at && !at.dataset?.key && isSame(at, next) ? at : null;
    if (match && isSame(match, next)) {
      if (match === at) at = at.nextSibling;
      else parent.insertBefore(match, at);
      patch(match, next);
    } else {
      parent.insertBefore(next, at);
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function isSame(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName;
}

function patch(one, next) {
  if (one.nodeType === Node.TEXT_NODE) {
    if (one.nodeValue !== next.nodeValue) one.nodeValue = next.nodeValue;
    return;
  }
  for (const { name } of [...one.attributes]) if (!next.hasAttribute(name)) one.removeAttribute(name);
  for (const { name, value } of next.attributes) if (one.getAttribute(name) !== value) one.setAttribute(name, value);
  if (one.nodeName !== "SELECT") morphChildren(one, [...next.childNodes]);
}

/** Says something for a moment; screen readers say it too. */
export function toast(text) {
  const message = h("p", { class: "toast" }, text);
  document.getElementById("toasts").append(message);
  setTimeout(() => message.remove(), 6000);
}
