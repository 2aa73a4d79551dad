// What is asked now, and what is known of it.
const browser = crypto.randomUUID();
const state = {
  key: "", // the picture
  seen: null, // what the classifier says of it
  target: null,
  position: 0, // of the dial
  found: new Map(), // the answers, by position
  card: null,
  seed: 0,
  question: null, // what the running request can be stopped with
};

// -- talking to the server --

class Refused extends Error {}

async function post(path, body, signal) {
  const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal };
  return checked(await fetch(path, options));
}

async function checked(response) {
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  throw new Refused(error ?? `The studio answered with ${response.status}.`);
}

// Calls back with each event of an answer; one that is interrupted by another question just ends.
async function ask(path, body, onEvent) {
  state.question?.abort();
  const question = new AbortController();
  state.question = question;
  try {
    const response = await post(path, { browser, ...body }, question.signal);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const event = JSON.parse(part.replace(/^data: /, ""));
        if (event.event === "error") throw new Refused(event.text);
        if (!question.signal.aborted) onEvent(event);
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") complain(error);
  } finally {
    if (state.question === question) {
      state.question = null;
      byId("progress").hidden = true;
      document.body.removeAttribute("aria-busy");
    }
  }
}

function tell(text, kind = "") {
  byId("status").className = kind;
  byId("status").textContent = text;
}

function complain(error) {
  const text = error instanceof Refused ? error.message : "The studio does not answer. Is it still running in the terminal?";
  byId("progress").hidden = true;
  tell(text, "bad");
}

// -- 1: a picture --

const thumbnails = new Map();

function thumbnail({ key, name, label }) {
  const image = make("img", { src: `/picture/${key}?small`, alt: "", loading: "lazy" });
  const says = label === undefined ? "" : `, ${who} says ${className(label)}`;
  const button = make("button", { type: "button", class: "thumb", title: name, "aria-label": name + says, "aria-pressed": "false" }, image);
  button.dataset.label = label ?? "";
  button.addEventListener("click", () => { choose(key); remember(); });
  thumbnails.set(key, button);
  return button;
}

function choose(key, then = () => state.target !== null && state.target !== state.seen?.label && leap(state.target)) {
  state.key = key;
  state.seen = null;
  clearMask();
  forget();
  for (const [other, button] of thumbnails) {
    button.setAttribute("aria-pressed", String(other === key));
    // One stop for the tabulator; arrows go on from there.
    button.tabIndex = other === key ? 0 : -1;
  }
  thumbnails.get(key)?.scrollIntoView({ block: "nearest", inline: "nearest" });
  byId("brush-under").src = `/picture/${key}`;
  return ask("/look", { key }, (event) => {
    state.seen = { ...event, label: best(event.p) };
    showSeen();
  }).then(() => state.seen?.key === key && then());
}

const best = (p) => p.indexOf(Math.max(...p));

function showSeen() {
  const { name, label, recognized, p } = state.seen;
  const sure = labelsOnly ? "" : ` with ${p[label].toFixed(2)}`;
  byId("says").textContent = `${capital(who)} says ${className(label)}${sure}: ${name}.`;
  if (recognized !== label) {
    byId("says").append(` But it says ${className(recognized)} of what the generator makes of it, from where a walk begins: read the answer with care.`);
  }
  showBars();
  tell("Click a class: the answer appears here.");
}

async function bring(content, name) {
  tell("Taking the picture in …");
  try {
    const response = await checked(await fetch("/bring", { method: "POST", headers: { "x-name": encodeURIComponent(name) }, body: content }));
    const picture = await response.json();
    byId("only").value = "";
    onlyOf();
    byId("gallery").prepend(thumbnail(picture));
    choose(picture.key);
    remember();
  } catch (error) {
    complain(error);
  }
}

function bringFirst(files) {
  const picture = [...files].find(({ type }) => type.startsWith("image/")) ?? files[0];
  if (picture && data.bring) bring(picture, picture.name);
}

function onlyOf() {
  const wanted = byId("only").value;
  for (const button of thumbnails.values()) button.hidden = wanted !== "" && button.dataset.label !== "" && button.dataset.label !== wanted;
}

function neighbour(step) {
  const shown = [...byId("gallery").children].filter((button) => !button.hidden);
  const at = shown.indexOf(thumbnails.get(state.key));
  const next = shown[clamp(at + step, 0, shown.length - 1)];
  next?.click();
  return next;
}

// -- 2: a class, and the dial --

const rows = data.classes.map((name, k) => {
  const bars = ["before", "after", "oracle"].map((kind) => make("i", { class: kind }));
  const value = make("span", { class: "value" });
  const opinion = make("span", { class: "heard" });
  const button = make("button", { type: "button", class: "class", "aria-pressed": "false" }, make("b", {}, name), make("span", { class: "bars", "aria-hidden": "true" }, ...bars), value, opinion);
  button.addEventListener("click", () => leap(k));
  return { button, bars, value, opinion };
});

function showBars() {
  const { seen, target } = state;
  const found = state.found.get(state.position);
  rows.forEach(({ button, bars, value, opinion }, k) => {
    const shares = [seen?.p[k], found?.p[k], found?.oracle?.[k]];
    bars.forEach((bar, n) => { bar.style.width = `${100 * (shares[n] ?? 0)}%`; });
    const text = shares.slice(0, 2).filter((p) => p !== undefined).map((p) => (labelsOnly ? (p ? "yes" : "no") : p.toFixed(2))).join(" → ");
    value.textContent = text;
    button.setAttribute("aria-pressed", String(k === target));
    button.disabled = !seen;
    opinion.textContent = shares[2] === undefined ? "" : `, the oracle says ${shares[2].toFixed(2)}`;
  });
}

function forget() {
  state.found.clear();
  state.card?.pause();
  state.card = null;
  cards = [];
  byId("cards").replaceChildren();
  for (const id of ["beside", "ways", "progress"]) byId(id).hidden = true;
  showBars();
}

function leap(target) {
  const started = performance.now();
  state.target = target;
  // As soon as the picture is seen, it is walked to the class that was chosen meanwhile.
  if (!state.seen) return;
  forget();
  rows[target].button.scrollIntoView({ block: "nearest", inline: "nearest" });
  tell(`What would have had to be different for ${className(target)}?`);
  document.body.setAttribute("aria-busy", "true");
  const { key, position } = state;
  ask("/walk", { key, target, position, cells: cellsText() }, (event) => {
    if (event.event === "step") showStep(event);
    else {
      state.found.set(event.position, event);
      if (event.position === state.position) showFound(event.position === position ? started : 0);
      showDial();
    }
  });
  remember();
}

function showStep({ step, p, picture }) {
  if (state.found.has(state.position)) return;
  byId("progress").hidden = false;
  byId("live").src = picture;
  byId("live-says").textContent = `Step ${step}: ${who} says ${className(best(p))}${labelsOnly ? "" : ` with ${Math.max(...p).toFixed(2)}`}.`;
}

function showFound(started = 0) {
  const found = state.found.get(state.position);
  byId("progress").hidden = true;
  byId("ways").hidden = true;
  state.card?.pause();
  state.card = new Card(found.card, 0);
  cards = [state.card];
  byId("cards").replaceChildren(state.card.element);
  fitPictures(byId("cards"));
  state.card.wake();
  showBars();
  showBeside(found);
  const ms = performance.now() - started;
  const took = started ? ` (${ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`})` : "";
  tell(`${capital(found.card.reason)}${took}.`, found.card.status === "not reached" ? "bad" : "");
  if (!started) return;
  if (byId("answer").getBoundingClientRect().top > 0.7 * innerHeight) byId("answer").scrollIntoView();
  if (!still.matches && state.card.last > 1) state.card.toggle();
}

function showBeside({ nearest, answer }) {
  byId("beside").hidden = false;
  byId("nearest").hidden = !nearest;
  if (nearest) {
    const [image, caption] = byId("nearest").children;
    image.src = `/picture/${nearest.key}`;
    image.alt = `a real picture: ${nearest.name}`;
    caption.textContent = `The nearest real picture that is ${className(state.target)} for ${who}: ${nearest.name}. Does the change lead to something that there is?`;
  }
  byId("keep").disabled = !answer;
  byId("keep").textContent = "Keep";
  byId("other").hidden = !data.others;
}

function showDial() {
  const { positions } = data;
  const reliability = positions[state.position].reliability.toFixed(2);
  const missing = state.target !== null && state.question && !state.found.has(state.position);
  byId("dial-says").textContent = missing ? `${reliability}, on its way` : reliability;
  byId("dial").setAttribute("aria-valuetext", `reliability ${reliability} of 1`);
}

function dial(position) {
  state.position = position;
  showDial();
  remember();
  if (state.target === null || !state.seen) return;
  if (state.found.has(position)) showFound();
  else if (!state.question) leap(state.target);
}

// -- where it may change --

const [high, wide] = data.cells;
const cells = new Uint8Array(high * wide);
const brush = { row: high >> 1, column: wide >> 1, painting: false };

function cellsText() {
  if (!cells.includes(1)) return "";
  let text = "";
  for (let at = 0; at < cells.length; at += 4) {
    text += ((cells[at] << 3) | ((cells[at + 1] ?? 0) << 2) | ((cells[at + 2] ?? 0) << 1) | (cells[at + 3] ?? 0)).toString(16);
  }
  return text;
}

function readCells(text) {
  if (text.length !== Math.ceil(cells.length / 4) || !/^[0-9a-f]*$/.test(text)) return;
  const bits = [...text].flatMap((digit) => [...parseInt(digit, 16).toString(2).padStart(4, "0")]);
  cells.forEach((_, n) => { cells[n] = Number(bits[n]); });
  byId("masking").open = cells.includes(1);
  paintCells();
}

function paintCells(cursor = false) {
  const over = byId("brush-over");
  const context = over.getContext("2d");
  const { color } = getComputedStyle(over);
  context.clearRect(0, 0, wide, high);
  context.fillStyle = color;
  cells.forEach((on, n) => { if (on) context.fillRect(n % wide, Math.floor(n / wide), 1, 1); });
  if (cursor) {
    context.fillStyle = "#fff";
    context.fillRect(brush.column, brush.row, 1, 1);
  }
  const share = cells.reduce((a, b) => a + b, 0) / cells.length;
  byId("brush-says").textContent = share ? `${percent(share)} of it may change.` : "All of it may change.";
}

function stroke(row, column) {
  const radius = Math.max(1, Math.round(Math.min(high, wide) / 16));
  const value = byId("rubber").checked ? 0 : 1;
  for (let y = Math.max(0, row - radius); y <= Math.min(high - 1, row + radius); y += 1) {
    for (let x = Math.max(0, column - radius); x <= Math.min(wide - 1, column + radius); x += 1) {
      if ((y - row) ** 2 + (x - column) ** 2 <= radius ** 2) cells[y * wide + x] = value;
    }
  }
}

function clearMask() {
  cells.fill(0);
  paintCells();
}

function onBrush(event) {
  if (event.type === "pointerdown") {
    brush.painting = true;
    event.target.setPointerCapture(event.pointerId);
  } else if (event.type !== "pointermove") {
    if (brush.painting && state.target !== null) leap(state.target);
    brush.painting = false;
  }
  if (!brush.painting) return;
  const box = event.target.getBoundingClientRect();
  stroke(Math.floor(((event.clientY - box.top) / box.height) * high), Math.floor(((event.clientX - box.left) / box.width) * wide));
  paintCells();
}

function onBrushKey(event) {
  const [y, x] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [0, 0];
  brush.row = clamp(brush.row + y, 0, high - 1);
  brush.column = clamp(brush.column + x, 0, wide - 1);
  if (event.key === " ") {
    stroke(brush.row, brush.column);
    if (state.target !== null) leap(state.target);
  } else if (!x && !y) return;
  paintCells(true);
  event.preventDefault();
  event.stopPropagation();
}

// -- in other ways --

function otherWays() {
  const { key, target, position } = state;
  state.seed += 1;
  tell("Looking for other ways …");
  document.body.setAttribute("aria-busy", "true");
  ask("/others", { key, target, position, cells: cellsText(), seed: state.seed }, ({ found }) => {
    byId("ways").hidden = false;
    byId("ways").lastElementChild.replaceChildren(...found.map(way));
    tell(found.length ? `${found.length} other ways. Click one to look at it.` : "No other way was found.");
  });
}

function way(found, n) {
  const image = make("img", { src: found.card.pictures.counterfactual, alt: "" });
  const button = make("button", { type: "button", class: "thumb large", "aria-label": `way ${n + 1}: ${found.card.reason}` }, image);
  button.addEventListener("click", () => {
    state.found.set(state.position, found);
    showFound();
    byId("ways").hidden = false;
  });
  return button;
}

// -- keeping, and links --

async function keep(event) {
  event.preventDefault();
  const found = state.found.get(state.position);
  if (!found) return;
  byId("keep").disabled = true;
  try {
    await post("/keep", { answer: found.answer, note: byId("note").value });
    byId("note").value = "";
    byId("keep").textContent = "Kept";
    showKept();
  } catch (error) {
    byId("keep").disabled = false;
    complain(error);
  }
}

async function showKept() {
  const items = await (await checked(await fetch("/kept"))).json();
  byId("shelf").hidden = !items.length;
  byId("kept").replaceChildren(...items.reverse().map((item) => {
    const name = `${item.name}: ${item.source} → ${item.target}`;
    const away = make("button", { type: "button", "aria-label": `remove ${name}` }, "Remove");
    away.addEventListener("click", () => post("/remove", { key: item.key }).then(showKept, complain));
    return make("li", {},
      make("img", { src: `/kept/${item.key}.png`, alt: `${name}, counterfactual`, loading: "lazy" }),
      make("div", {}, make("b", {}, `${item.source} → ${item.target}`), make("span", { class: "hint" }, ` ${item.name}`), make("p", {}, item.note)),
      make("div", { class: "row" }, make("a", { href: `/kept/${item.key}.safetensors`, download: "", "aria-label": `file of ${name}` }, "File"), away));
  }));
}

// The picture, the class, the dial and the mask stand in the address, so that it can be sent on.
function remember() {
  const parts = new URLSearchParams({ picture: state.key });
  if (state.target !== null) parts.set("target", state.target);
  if (state.position) parts.set("dial", state.position);
  if (cellsText()) parts.set("mask", cellsText());
  history.replaceState(null, "", `#${parts}`);
}

function openLink() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const number = (name, most) => {
    const value = Number(parts.get(name) ?? NaN);
    return Number.isInteger(value) && value >= 0 && value < most ? value : null;
  };
  state.target = number("target", data.classes.length);
  state.position = number("dial", data.positions.length) ?? 0;
  byId("dial").value = state.position;
  showDial();
  const key = parts.get("picture") ?? "";
  if (!thumbnails.has(key)) {
    choose(data.pictures[0].key);
    if (key) tell("The picture of this link is not in this studio.", "bad");
    return;
  }
  choose(key, () => {
    readCells(parts.get("mask") ?? "");
    if (state.target !== null) leap(state.target);
  });
}

async function copyLink() {
  remember();
  const own = state.key.startsWith("b");
  try {
    await navigator.clipboard.writeText(location.href);
    tell(own ? "Copied. But this picture is in the memory of this studio only: keep the answer to show it to others." : "Copied: picture, class, dial and mask are in the address.");
  } catch {
    tell("The address of this page has it all: copy it from there.");
  }
}

// -- drawing one --

const pen = { down: false, x: 0, y: 0 };

function clearPaper() {
  const context = byId("paper").getContext("2d");
  context.fillStyle = "#000";
  context.fillRect(0, 0, 280, 280);
}

function onPaper(event) {
  const paper = byId("paper");
  const box = paper.getBoundingClientRect();
  const [x, y] = [(event.clientX - box.left) * (280 / box.width), (event.clientY - box.top) * (280 / box.height)];
  if (event.type === "pointerdown") {
    Object.assign(pen, { down: true, x, y });
    paper.setPointerCapture(event.pointerId);
  } else if (event.type !== "pointermove") pen.down = false;
  if (!pen.down) return;
  const context = paper.getContext("2d");
  Object.assign(context, { strokeStyle: "#fff", lineWidth: 22, lineCap: "round" });
  context.beginPath();
  context.moveTo(pen.x, pen.y);
  context.lineTo(x, y);
  context.stroke();
  Object.assign(pen, { x, y });
}

function takePaper() {
  const [tall, width] = data.size;
  const small = make("canvas", { width, height: tall });
  const context = small.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(byId("paper"), 0, 0, width, tall);
  byId("drawing").close();
  small.toBlob((blob) => bring(blob, "drawn"));
}

// -- keys --

const INTRO = "Take a picture and click the class that it might have been: the page shows how the picture would have had to look for that answer, a counterfactual. The dial goes from the nearest, just across the border between two answers, to the reliable one, further into the class. Beside it stands the nearest real picture of that class, as a check: does the change lead to something that there is?";
const HOTKEYS = [
  [["0", "9"], "the class of that name, or of that number"],
  [["j", "k"], "next picture, previous picture"],
  [["←", "→"], "leap by leap; on a divider or the dial: move it; among the pictures: the next"],
  [["Space"], "play or pause"],
];

function classOfKey(key) {
  const named = data.classes.indexOf(key);
  return named >= 0 || !/^[1-9]$/.test(key) ? named : data.classes[key - 1] === undefined ? -1 : key - 1;
}

function onKey(event) {
  const { key, target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (target.closest("select, input:not([type=range], [type=checkbox])")) return;
  const arrow = { ArrowLeft: -1, ArrowRight: 1 }[key];
  const step = { j: 1, k: -1 }[key];
  if (arrow && target.closest("#gallery")) neighbour(arrow)?.focus();
  else if (arrow && state.card && !target.matches("input")) state.card.go(state.card.frame + arrow);
  else if (key === " " && state.card && !target.closest("button, a, summary, input")) state.card.toggle();
  else if (!byId("letters").checked) return;
  else if (key === "?") openHelp();
  else if (step) neighbour(step);
  else if (key.length === 1 && classOfKey(key) >= 0) leap(classOfKey(key));
  else return;
  event.preventDefault();
}

// -- start --

function start() {
  const { pictures, positions } = data;
  byId("about").textContent = `${pictures.length} pictures${data["left out"] ? `, ${data["left out"]} more left out` : ""}, as ${data.name} sees them. Nothing leaves this computer.`;
  byId("gallery").append(...pictures.map(thumbnail));
  byId("classes").append(...rows.map(({ button }) => button));
  byId("only").append(make("option", { value: "" }, "all"), ...data.classes.map((name, k) => make("option", { value: k }, name)));
  byId("only").addEventListener("change", onlyOf);
  byId("gallery-note").textContent = data.bring ? "Drop or paste a picture of your own anywhere." : "";
  byId("dial").max = positions.length - 1;
  byId("tuning").hidden = positions.length < 2;
  byId("dial").addEventListener("input", () => dial(byId("dial").valueAsNumber));
  byId("bring").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", () => bringFirst(byId("file").files));
  byId("stop").addEventListener("click", () => { state.question?.abort(); tell("Stopped."); });
  byId("other").addEventListener("click", otherWays);
  byId("link").addEventListener("click", copyLink);
  byId("keeping").addEventListener("submit", keep);
  byId("note").maxLength = data["max note"];
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => { event.preventDefault(); bringFirst(event.dataTransfer.files); });
  addEventListener("paste", (event) => event.clipboardData.files.length && bringFirst(event.clipboardData.files));
  Object.assign(byId("brush-over"), { width: wide, height: high });
  for (const kind of ["pointerdown", "pointermove", "pointerup", "pointercancel"]) {
    byId("brush-over").addEventListener(kind, onBrush);
    byId("paper").addEventListener(kind, onPaper);
  }
  byId("brush-over").addEventListener("keydown", onBrushKey);
  byId("brush-clear").addEventListener("click", () => { clearMask(); if (state.target !== null) leap(state.target); });
  byId("bring").hidden = !data.bring;
  byId("pen").hidden = !(data.bring && data.grey && Math.max(...data.size) <= 64);
  byId("pen").addEventListener("click", () => { clearPaper(); byId("drawing").showModal(); });
  byId("paper-clear").addEventListener("click", clearPaper);
  byId("paper-done").addEventListener("click", takePaper);
  byId("drawing-close").addEventListener("click", () => byId("drawing").close());
  const pixel = Math.max(...data.size) < data.photo.side;
  document.body.classList.toggle("pixel", pixel);
  fillHelp(INTRO, HOTKEYS);
  onTips();
  applyTheme();
  document.addEventListener("keydown", onKey);
  addEventListener("resize", () => fitPictures(byId("cards")));
  addEventListener("hashchange", openLink);
  showKept().catch(complain);
  openLink();
}

start();
