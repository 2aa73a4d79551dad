"use strict";
const buttons = new Map();
for (const button of document.querySelectorAll("button[data-key]")) {
  buttons.set(button.dataset.key, button);
  if (button.textContent.toLowerCase() === button.dataset.key) continue;
  const hint = document.createElement("span");
  hint.className = "key";
  hint.ariaHidden = "true";
  hint.textContent = button.dataset.key;
  button.append(hint);
}
let sent = false;
document.addEventListener("keydown", (event) => {
  if (sent || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
  const button = buttons.get(event.key.toLowerCase());
  if (button) {
    event.preventDefault();
    sent = true;
    button.click();
  }
});
