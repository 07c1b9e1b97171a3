// The page before the login.

import { h } from "./dom.js";
import { call } from "./live.js";

/** Shows the login in `root`; `done` gets who logged in. */
export function showLogin(root, why, done) {
  const input = h("input", {
    id: "token", name: "token", type: "password", required: true, autocomplete: "current-password",
    spellcheck: "false", autocapitalize: "off", "aria-describedby": "token-help",
  });
  const fault = h("p", { class: "fault", role: "alert" });
  const button = h("button", { class: "button primary wide", type: "submit" }, "Log in");
  const form = h(
    "form", { class: "card login", novalidate: true },
    h("div", { class: "brand big" }, mark(), h("span", {}, "Fairlead")),
    h("h1", {}, "Log in"),
    why && h("p", { class: "notice" }, why),
    h("label", { for: "token" }, "Admin token"),
    input,
    fault,
    button,
    h("p", { id: "token-help", class: "help" },
      "The first token is in the file ", h("code", {}, "admin.token"), " of the control plane's folder. ",
      "More are made with ", h("code", {}, "fairlead token add"), "; one with the scope ", h("code", {}, "read"),
      " sees everything and changes nothing."),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const token = input.value.trim();
    if (token === "") {
      fault.textContent = "Paste an admin token.";
      input.focus();
      return;
    }
    fault.textContent = "";
    button.disabled = true;
    button.textContent = "Logging in…";
    try {
      const who = await call("POST", "/v1/session", { token });
      input.value = "";
      done(who);
    } catch (refusal) {
      fault.textContent = refusal.code === "UNAUTHENTICATED" ? "This token is wrong or was revoked." : refusal.message;
      button.disabled = false;
      button.textContent = "Log in";
      input.select();
      input.focus();
    }
  });
  root.replaceChildren(h("main", { class: "center" }, form));
  root.removeAttribute("aria-busy");
  document.title = "Log in · Fairlead";
  input.focus();
}

export function mark() {
  const image = h("img", { src: "/console/icon.svg", alt: "", width: "28", height: "28" });
  return image;
}
