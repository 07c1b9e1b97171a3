// Forms. A dialog holds the focus, closes by Escape, and gives the focus back; what waits shows how
// far it is.

import { h, icon, morph, toast } from "./dom.js";
import { call, store } from "./live.js";
import { many, names, when } from "./words.js";

/** Opens a dialog with a title; `content` goes below it. */
function open(title, ...content) {
  const back = document.activeElement;
  const close = h("button", { class: "button small close", type: "button", "aria-label": "Close" }, icon("critical"));
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" },
    h("div", { class: "title" }, h("h2", { id: "dialog-title" }, title), close), ...content);
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    // A click beside it, unless something was typed.
    const typed = [...dialog.querySelectorAll("input")].some((input) => input.value !== "" && input.type !== "checkbox");
    if (event.target === dialog && !typed && !dialog.dataset.busy) dialog.close();
  });
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (back?.isConnected) back.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** A form of labelled fields that sends itself and shows every fault at its field. */
function form(fields, label, send) {
  const summary = h("p", { class: "fault", role: "alert" });
  const submit = h("button", { class: "button primary", type: "submit" }, label);
  const rows = fields.map((field) => row(field));
  const element = h("form", { novalidate: true }, rows.map((r) => r.element), summary, h("div", { class: "actions" }, submit));
  const clear = () => {
    summary.textContent = "";
    for (const { control, fault } of rows) {
      fault.textContent = "";
      control.removeAttribute("aria-invalid");
    }
  };
  const show = (name, message) => {
    const at = rows.find((r) => r.name === name);
    if (!at) return false;
    at.fault.textContent += at.fault.textContent === "" ? message : `; ${message}`;
    at.control.setAttribute("aria-invalid", "true");
    return true;
  };
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (submit.disabled) return;
    clear();
    const missing = rows.filter(({ control, required }) => required && control.value.trim() === "");
    for (const { name } of missing) show(name, "It is missing");
    if (missing.length > 0) {
      missing[0].control.focus();
      return;
    }
    const body = {};
    for (const { name, control, required } of rows) {
      if (control.type === "checkbox") body[name] = control.checked;
      else if (required || control.value.trim() !== "") body[name] = control.value.trim();
    }
    submit.disabled = true;
    submit.textContent = "Sending…";
    try {
      await send(body);
    } catch (refusal) {
      const rest = (refusal.faults ?? []).filter(({ field, message }) => !show(field, message));
      const known = (refusal.faults ?? []).length > rest.length;
      summary.textContent = known && rest.length === 0 ? "" : [refusal.message, ...rest.map((fault) => `${fault.field}: ${fault.message}`)].join(" ");
      (rows.find(({ control }) => control.hasAttribute("aria-invalid"))?.control ?? submit).focus();
    } finally {
      submit.disabled = false;
      submit.textContent = label;
    }
  });
  return element;
}

function row({ name, label, help, required = true, type = "text", value = "", options, placeholder }) {
  const id = `field-${name}`;
  const attributes = {
    id, name, "aria-describedby": `${id}-help ${id}-fault`, "aria-required": required ? "true" : null,
    autocomplete: "off", autocapitalize: "off", spellcheck: "false", placeholder,
  };
  let control;
  if (options) {
    control = h("select", attributes, options.map(([text, words]) => h("option", { value: text, selected: text === value }, words)));
  } else {
    control = h("input", { ...attributes, type });
    if (type !== "checkbox") control.value = value;
  }
  const fault = h("p", { class: "fault", id: `${id}-fault`, "aria-live": "polite" });
  const text = h("label", { for: id }, label, !required && type !== "checkbox" && h("span", { class: "quiet" }, " (optional)"));
  const note = h("p", { class: "help", id: `${id}-help` }, help);
  const element = type === "checkbox"
    ? h("div", { class: "field check" }, control, h("div", {}, text, note, fault))
    : h("div", { class: "field" }, text, control, note, fault);
  return { name, control, fault, required: required && type !== "checkbox", element };
}

const NAME_HELP = "Lower-case letters, digits, hyphens, dots; how you will call it everywhere.";

/** Add relay, add node: a form, then the install command, then the wait until it is online. */
export function addMember(kind) {
  const fields = kind === "relay"
    ? [
      { name: "name", label: "Name", help: NAME_HELP, placeholder: "relay-1" },
      { name: "address", label: "Address", help: "Where nodes reach it, by UDP: a host name or IP address. Port 9443 if you write none.", placeholder: "relay-1.example.net" },
      { name: "failure_domain", label: "Failure domain", required: false, help: "What fails together with it, such as power=a,host=b. Links are spread over several. Empty means host=NAME: it shares nothing with other relays.", placeholder: "power=a" },
      { name: "local", label: "It runs on the control plane's own host", type: "checkbox", required: false, help: "" },
    ]
    : [{ name: "name", label: "Name", help: NAME_HELP, placeholder: "db-1" }];
  const element = form(fields, `Add ${kind}`, async (body) => {
    if (body.local === false) delete body.local;
    const issued = await call("POST", `/v1/${kind}s`, body);
    follow(dialog, kind, issued);
  });
  const dialog = open(`Add ${kind}`, element);
  dialog.querySelector("input").focus();
}

/** A new token for a member that has not enrolled. */
export async function newCommand(kind, id) {
  try {
    const issued = await call("POST", `/v1/${kind}s/${encodeURIComponent(id)}/token`, {});
    follow(open(`Install ${issued.name}`), kind, issued);
  } catch (refusal) {
    toast(refusal.message);
  }
}

/** A text to take along, and the button that copies it. */
function copyable(name, text, label) {
  const shown = h("pre", { tabindex: "0", "aria-label": name }, h("code", {}, text));
  const button = h("button", { class: "button primary", type: "button" }, label);
  const copied = h("span", { class: "quiet", role: "status" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copied.textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(shown);
      copied.textContent = "Selected: copy it with your keyboard.";
    }
  });
  return { button, parts: [shown, h("div", { class: "actions" }, button, copied)] };
}

/** Shows command and token, and closes by itself when the member is online. */
function follow(dialog, kind, issued) {
  const title = dialog.querySelector("#dialog-title");
  title.textContent = `Install ${kind} ${issued.name}`;
  const command = copyable("Install command", issued.install_command, "Copy command");
  const token = copyable("Token", issued.token, "Copy token");
  const steps = h("ol", { class: "progress", role: "status", "aria-label": "Progress" });
  const expiry = h("p", { class: "quiet" });
  const body = h("div", { class: "follow" },
    h("p", {}, `Run this on the ${kind}'s host, as root; or as anybody, with another --dir:`), ...command.parts,
    h("p", {}, "It asks for this token, which works once, and is shown only here:"), ...token.parts, steps, expiry,
    h("p", {}, "Then start its service there, or ", h("code", {}, `fairlead run ${kind === "relay" ? "supervisor" : "node"} --dir /var/lib/fairlead/${kind}`), "."),
    h("p", { class: "help" }, "This closes by itself when the ", kind, " is online. You may close it earlier: the ", kind, " stays in the list as pending."));
  dialog.querySelector("form")?.remove();
  dialog.append(body);
  command.button.focus();

  const update = () => {
    const member = store.kinds[kind].get(issued.id);
    const states = progress(kind, member);
    morph(steps, states.map(([text, done, note], at) => {
      const isNext = !done && states.slice(0, at).every(([, before]) => before);
      return h("li", { class: done ? "done" : isNext ? "next" : null },
        h("span", { class: "mark" }, done ? icon("ok") : isNext ? h("span", { class: "spinner", "aria-hidden": "true" }) : null),
        h("span", {}, text, done ? h("span", { class: "hidden" }, " (done)") : null, isNext && note ? h("span", { class: "quiet" }, ` – ${note}`) : null));
    }));
    const isPending = !member || member.state === "pending";
    morph(expiry, isPending ? [new Date(issued.expires_at) > new Date()
      ? h("span", {}, "The token works for another ", when(issued.expires_at, { bare: true }), ".")
      : h("span", { class: "bad" }, "The token has expired: close this, and make a new one in the list.")] : []);
    if (member && states.every(([, done]) => done) && !dialog.dataset.done) {
      dialog.dataset.done = "true";
      toast(`${kind === "relay" ? "Relay" : "Node"} ${issued.name} is online.`);
      setTimeout(() => dialog.close(), 1500);
    }
  };
  const stop = store.onChange(update);
  const tick = setInterval(update, 1000);
  dialog.addEventListener("close", () => {
    stop();
    clearInterval(tick);
  });
  update();
}

/** The steps of a member on its way in: text, whether done, a note. */
function progress(kind, member) {
  const enrolled = Boolean(member?.enrolled_at);
  const connected = enrolled && member.version !== "" && member.state !== "offline";
  const reason = member?.state_reason ?? "";
  const steps = [
    ["Waiting for the host to enrol", enrolled, ""],
    [kind === "relay" ? "Its supervisor connects" : "Its daemon connects", connected, reason],
  ];
  if (kind === "relay") steps.push(["Its port answers the other relays", member?.state === "ready", reason]);
  return steps;
}

/** Add link. */
export function addLink() {
  const nodes = store.nodes().sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  if (nodes.length < 2) {
    open("Add link", h("p", {}, "A link goes from one node to another: add two nodes first."));
    return;
  }
  const options = nodes.map((node) => [node.name, node.state === "ready" ? node.name : `${node.name} (${node.state.replace("-", " ")})`]);
  const element = form([
    { name: "name", label: "Name", help: NAME_HELP, placeholder: "db" },
    { name: "from", label: "From node", help: "The consumer: where applications connect.", options },
    { name: "listen", label: "Listens on", help: "The address on that node that applications connect to.", placeholder: "127.0.0.1:15432" },
    { name: "to", label: "To node", help: "The publisher: where the service is.", options, value: nodes[1].name },
    { name: "target", label: "Target", help: "The service, as that node reaches it: host:port, or unix:/path.", placeholder: "127.0.0.1:5432" },
    {
      name: "class", label: "Class", help: "What the service is. Shown, and decides nothing yet.", value: "standard",
      options: [["standard", "standard"], ["database", "database"], ["storage", "storage"]],
    },
  ], "Add link", async (body) => {
    const link = await call("POST", "/v1/links", body);
    followLink(dialog, link);
  });
  const dialog = open("Add link", element);
  dialog.querySelector("input").focus();
}

/** Shows what a new link waits for, and closes by itself when it is ready. */
function followLink(dialog, made) {
  dialog.querySelector("#dialog-title").textContent = `Link ${made.name}`;
  dialog.querySelector("form").remove();
  const state = h("div", { class: "follow", role: "status" });
  dialog.append(state, h("p", { class: "help" }, "This closes by itself when the link is ready. You may close it earlier."));
  const update = () => {
    const link = store.kinds.link.get(made.id) ?? made;
    const isReady = link.state === "ready";
    morph(state, isReady
      ? [h("p", { class: "waiting" }, icon("ok"), "Ready: applications connect to ", h("code", {}, link.listen), ` on ${link.from.name}.`)]
      : [h("p", { class: "waiting" }, h("span", { class: "spinner", "aria-hidden": "true" }), "Getting ready. It waits for:"),
        h("ul", {}, link.waiting_for.map((text) => h("li", {}, text)))]);
    if (isReady && !dialog.dataset.done) {
      dialog.dataset.done = "true";
      toast(`Link ${made.name} is ready.`);
      setTimeout(() => dialog.close(), 1500);
    }
  };
  const stop = store.onChange(update);
  dialog.addEventListener("close", stop);
  dialog.querySelector(".close").focus();
  update();
}

/** Asks before a removal, and says what it means. */
export function confirmRemoval(kind, id) {
  const item = store.kinds[kind].get(id);
  if (!item) return;
  const fault = h("p", { class: "fault", role: "alert" });
  const cancel = h("button", { class: "button", type: "button" }, "Keep it");
  const remove = h("button", { class: "button danger", type: "button" }, `Remove ${kind}`);
  const dialog = open(`Remove ${kind} ${item.name}?`, h("p", {}, consequence(kind, item)), fault, h("div", { class: "actions" }, remove, cancel));
  cancel.addEventListener("click", () => dialog.close());
  remove.addEventListener("click", async () => {
    fault.replaceChildren();
    remove.disabled = true;
    dialog.dataset.busy = "true";
    remove.textContent = "Removing…";
    try {
      await call("DELETE", `/v1/${kind}s/${encodeURIComponent(id)}`);
      toast(`${kind[0].toUpperCase()}${kind.slice(1)} ${item.name} is removed.`);
      dialog.close();
    } catch (refusal) {
      fault.append(refusal.message);
      const after = refusal.details?.removableAfter;
      if (after && !Number.isNaN(new Date(after).getTime())) {
        fault.append(" Can be removed after ", new Date(after).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "long" }), " (", when(after), ").");
      }
      remove.disabled = false;
      delete dialog.dataset.busy;
      remove.textContent = `Remove ${kind}`;
      remove.focus();
    }
  });
  cancel.focus();
}

function consequence(kind, item) {
  if (kind === "link") return `Applications on ${item.from.name} reach ${item.target} through it no more; its open connections end at once.`;
  const used = store.links().filter((link) => (kind === "node" ? link.from.id === item.id || link.to.id === item.id : link.relays.some((relay) => relay.id === item.id)));
  const uses = used.length === 0 ? "No link uses it." : `${many(used.length, "link")} use it: ${names(used.map((link) => link.name), 5)}.`;
  if (kind === "node") return `${uses} Its certificate ends at once; to come back, its host must enrol anew. A node that links use is not removed.`;
  return `${uses} Its certificate ends at once; to come back, its host must enrol anew. A relay that may carry anything is not removed; one that never was ready is.`;
}
