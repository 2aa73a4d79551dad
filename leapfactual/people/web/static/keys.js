"use strict";
const picture = document.querySelector("img.subject");
const buttons = new Map();
const hints = [];
for (const button of document.querySelectorAll("button[data-key]")) {
  const key = button.dataset.key;
  buttons.set(key, button);
  if (button.textContent.toLowerCase() === key) continue;
  const hint = document.createElement("span");
  hint.className = "key";
  hint.ariaHidden = "true";
  hint.textContent = key;
  button.append(hint);
  hints.push(hint);
}

// Who dictates, or rests a hand on the keys, can switch them off.
const toggle = document.createElement("button");
toggle.type = "button";
toggle.className = "quiet";
let on = localStorage.getItem("keys") !== "off";
function show() {
  toggle.textContent = `Switch keyboard shortcuts ${on ? "off" : "on"}`;
  for (const hint of hints) hint.hidden = !on;
  for (const [key, button] of buttons) {
    if (on) button.setAttribute("aria-keyshortcuts", key);
    else button.removeAttribute("aria-keyshortcuts");
  }
}
toggle.addEventListener("click", () => {
  on = !on;
  localStorage.setItem("keys", on ? "on" : "off");
  show();
});
show();
document.querySelector("footer").append(toggle);

document.addEventListener("keydown", (event) => {
  if (!on || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
  const button = buttons.get(event.key.toLowerCase());
  if (!button) return;
  event.preventDefault();
  if (picture.complete) button.click();
});

// The second half of a double click would be an answer to the next picture, unseen.
let busy = 0;
document.querySelector("form").addEventListener("click", (event) => {
  if (event.detail > 1) event.preventDefault();
});
document.querySelector("form").addEventListener("submit", (event) => {
  if (performance.now() < busy) event.preventDefault();
  else busy = performance.now() + 2000;
});
addEventListener("pageshow", () => { busy = 0; });
