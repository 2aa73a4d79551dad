"use strict";

const byId = (id) => document.getElementById(id);
const root = document.documentElement;
const data = JSON.parse(byId("data").textContent);
const isRows = data.kind === "rows";

// -- making elements; text of the user's only ever becomes text nodes and attributes --

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    // A content security policy may forbid styles that stand in attributes.
    if (name === "style") element.style.cssText = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
const make = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const canvas = (name, { width, height }) => make("canvas", { class: name, width, height, role: "img" });
const figure = (caption, ...content) =>
  make("figure", {}, ...content, make("figcaption", {}, caption));

// -- words and numbers --

const DASH = "–";
const SEEN = "as the generator sees it";
const noun = isRows ? "row" : "image";
// Who answered, and whether with labels alone: then there is no probability to show.
const [who, says, gives] = data.asked ? [data.asked, "say", "give"] : ["the classifier", "says", "gives"];
const labelsOnly = data.labels ?? (Boolean(data.asked) || (data.cards.length > 0 && data.cards.every(({ labels }) => labels)));
const plans = data.plans.length ? data.plans : [["counterfactual", ""], ["reliable counterfactual", ""]];
const short = (name) => name.replace(/ counterfactual$/, "");
const outcomes = (card) => (card.reliable ? [card, card.reliable] : [card]);
const className = (k) => String(data.classes[k] ?? k);
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const shorter = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(4))) : DASH);
const percent = (share) => `${share > 0 && share < 0.01 ? "less than 1" : Math.round(100 * share)} %`;
const hundredths = (value) =>
  Number.isFinite(value) ? value.toFixed(2).replace(/^-(?=.*[1-9])/, "−").replace("-", "") : value < 0 ? "−∞" : "∞";
const signed = (value) => (value >= 0.005 ? "+" : "") + hundredths(value);
// Long names of columns and files may break after their joints.
const breakable = (text) =>
  String(text).split(/(?<=[_/.])/).flatMap((part, n) => (n ? [make("wbr"), part] : [part]));

const NUMBERS = [
  ["label", (v) => className(v)],
  ["L1", (v) => v.toFixed(3)],
  ["margin", hundredths],
  ["typicality", (v) => `${Math.round(100 * v)} %`],
  ["leaps", String],
  ["queries", String],
  ["nfe", String],
  ["milliseconds", (v) => `${v < 10 ? v.toFixed(1) : Math.round(v)} ms`],
].filter(([key]) => !(labelsOnly && key === "margin") && !(data.asked && ["typicality", "nfe", "milliseconds"].includes(key)));

// Of each number: its name, what it means, which way is better, and what it does not say.
const HELP = {
  result: ["result", `reached if ${who} ${gives} the counterfactual the class that was asked for, not reached if the search ended before, already there if the input had that class from the start.`, "reached.", "whether it looks like that class to you."],
  label: [`${who} ${says}`, `the class that ${who} ${gives} the counterfactual.${labelsOnly ? ` ${capital(who)} ${gives} labels only, so how surely is not known.` : ""}`, "the class that was asked for.", "whether that is true: every classifier errs, and most of all on what is unusual."],
  L1: ["distance (L1)", isRows ? "how far the row moved: the mean change of its columns, in units of their spread." : "how much changed since the input as the generator sees it: the mean change of a pixel, where 0 is none and 1 is from black to white everywhere.", "smaller is nearer to the input.", "whether the change makes sense: a little in the wrong place may matter more than much elsewhere."],
  margin: ["margin", `the probability that ${who} ${gives} the class asked for, minus that of the next one. Above 0 it is reached; 1 is the most.`, "larger is clearer.", "how often that is right: many classifiers are too sure of themselves."],
  typicality: ["typicality", `how many of a hundred real ${noun}s of the class are less typical of it than this one, in the eyes of the flow that learnt the classes from ${who}.`, "higher is more typical; below 5 % is as unusual as the oddest twentieth of real ones.", "whether people see that class in it."],
  leaps: ["leaps", "the steps of the search until the counterfactual stood, steps back included.", "fewer are less work.", "whether the result is any better or worse."],
  queries: ["queries", `how often ${who} had to answer.`, "fewer are cheaper.", "whether the result is any better or worse."],
  nfe: ["NFE", "number of function evaluations: how often the network of the flow was computed.", "fewer are faster.", "whether the result is any better or worse."],
  milliseconds: ["time", "this one's share of the time that it took to compute all.", "less is faster.", "how long one alone would take: many together share the work."],
  validity: ["validity", `how many counterfactuals ${who} ${gives} the class that was asked for.`, "more.", "whether they look like that class to you."],
  oracle: ["oracle", "a second classifier that had no part in making the counterfactuals: how many does it give the class that was asked for?", "more: what convinces both is less likely a quirk of one.", "whether it is true: both may share a fault."],
};
const STAGES = {
  blend: "blend(n, size): at most n leaps, which take the old class out and put the new one in. A third number presses harder.",
  inject: "inject(n, out, in): n leaps on into the class, which put more in than they take out.",
  tighten: "tighten(n): n steps back towards the input, as far as the answer stays.",
  focus: "focus(t): takes small changes back, where the answer stays.",
  restart: "restart(): what went astray begins again from the input.",
};

function helpLines([, means, better, not]) {
  return [capital(means), ...(better ? [`Better: ${better}`, `It does not say ${not}`] : [])].map((line) => make("p", {}, line));
}

// The help panel has every explanation; a term shows its own beside it, and names it as its description.
function fillHelp(intro, hotkeys) {
  byId("intro").textContent = intro;
  byId("hotkeys").prepend(...hotkeys.flatMap(([keys, does]) =>
    [make("dt", {}, ...keys.flatMap((key) => [make("kbd", {}, key), " "])), make("dd", {}, does)]));
  const used = new Set(["result", ...NUMBERS.map(([key]) => key), "validity", "oracle"]);
  const entry = (key, title, lines) => byId("terms").append(make("dt", {}, title), make("dd", { id: `about-${key}` }, ...lines));
  for (const [key, words] of Object.entries(HELP)) if (used.has(key)) entry(key, words[0], helpLines(words));
  plans.forEach(([name, plan], n) => {
    const stages = Object.entries(STAGES).filter(([stage]) => plan.includes(`${stage}(`)).map(([, line]) => line);
    if (plan) entry(`plan-${n}`, `plan, ${short(name)}`, [`Made by the plan ${plan}`, ...stages].map((line) => make("p", {}, line)));
  });
  const foreign = `${isRows ? ".pictorial" : ".tabular"}${labelsOnly ? ", .probable" : ""}`;
  for (const part of document.querySelectorAll(foreign)) part.remove();
}
const term = (key, text) => make("button", { class: "term", type: "button", "aria-describedby": `about-${key}` }, text);

let [hiding, tipped] = [0, null];
function placeTip() {
  const tip = byId("tip");
  const [box, own] = [tipped.getBoundingClientRect(), tip.getBoundingClientRect()];
  const above = box.bottom + own.height > innerHeight && box.top > own.height;
  tip.style.left = `${clamp(box.left, 8, Math.max(8, innerWidth - own.width - 8))}px`;
  tip.style.top = `${above ? box.top - own.height : box.bottom}px`;
}
function showTip(button) {
  const about = byId(button.getAttribute("aria-describedby"));
  clearTimeout(hiding);
  tipped = button;
  byId("tip").replaceChildren(make("b", {}, about.previousElementSibling.textContent), ...about.cloneNode(true).childNodes);
  byId("tip").hidden = false;
  placeTip();
}
function hideTip() {
  tipped = null;
  byId("tip").hidden = true;
}

// A tip stays while the pointer is on it, and goes with the focus, with Escape and with the pointer.
function onTips() {
  const near = (event) => event.target.closest?.(".term, #tip");
  const show = (event) => near(event)?.matches(".term") && showTip(near(event));
  const later = () => { clearTimeout(hiding); hiding = setTimeout(hideTip, 150); };
  document.addEventListener("mouseover", (event) => (near(event) ? clearTimeout(hiding) || show(event) : later()));
  document.addEventListener("click", show);
  document.addEventListener("focusin", (event) => (near(event) ? show(event) : hideTip()));
  document.addEventListener("focusout", later);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
  document.addEventListener("scroll", () => tipped && placeTip(), { passive: true, capture: true });
}

function tabulate(header, rows, attributes = {}) {
  const cell = (content) => (content instanceof Node ? [content] : breakable(content));
  const line = ([first, ...rest]) =>
    make("tr", {}, make("th", { scope: "row" }, ...cell(first)), ...rest.map((content) => make("td", {}, content)));
  const titles = header.map((title) => make(title === "" ? "td" : "th", title === "" ? {} : { scope: "col" }, title));
  return make("table", attributes,
    make("thead", {}, make("tr", {}, ...titles)),
    make("tbody", {}, ...rows.map(line)));
}

// The words of the table at the top, such as "mean L1", are terms too.
function summaryTable([header, ...rows]) {
  const key = (text) => {
    const word = text.replace(/^mean /, "");
    return ["reached", "not reached", "already there"].includes(word) ? "result" : word;
  };
  return tabulate(header, rows.map(([first, ...rest]) => [byId(`about-${key(first)}`) ? term(key(first), first) : first, ...rest]));
}

function numbersTable(card) {
  const all = outcomes(card);
  const show = (value, format) => (value === null || value === undefined ? DASH : format(value));
  const rows = NUMBERS.map(([key, format]) => [term(key, HELP[key][0]), ...all.map(({ numbers }) => show(numbers[key], format))]);
  rows.unshift([term("result", "result"), ...all.map(({ status }) => status)]);
  return tabulate(["", ...all.map((_, n) => short(plans[n][0]))], rows, { class: "numbers" });
}

const MARKS = { reached: "✓", "not reached": "✕", "already there": "=" };
function badge(status) {
  const mark = make("span", { "aria-hidden": "true" }, `${MARKS[status] ?? "·"} `);
  return make("span", { class: `badge ${status.split(" ")[0]}` }, mark, status);
}

// What the classifier says at a frame, as far as the shown classes let us know.
function answerAt({ curve }, frame) {
  const known = curve.classes
    .map((k, row) => [curve.p[row][frame], k])
    .filter(([p]) => Number.isFinite(p))
    .sort((a, b) => b[0] - a[0]);
  if (!known.length) return data.asked ? `${who} were not asked here` : `${who} was not queried here`;
  const [p, k] = known[0];
  const rest = 1 - known.reduce((sum, [q]) => sum + q, 0);
  if (labelsOnly) return p >= rest ? `${who} ${says} ${className(k)}` : `${who} ${says} another class`;
  const text = `${className(k)} with ${p.toFixed(2)}`;
  return p >= rest ? `${who} ${says} ${text}` : `of the classes shown, most is ${text}`;
}

// -- two answers: what changed, and can I trust it --

function whatChanged(card, n) {
  if (isRows) return changedColumns(card, n);
  const { share, where, ...ways } = outcomes(card)[n].changed ?? {};
  if (share === undefined) return "That was not measured: see the map.";
  if (!share) return "Nothing that is clear to see.";
  const words = card.frames.color
    ? { lighter: "lighter (red)", darker: "darker (blue)", other: "another colour (violet)" }
    : { lighter: "added (red)", darker: "taken away (blue)" };
  const found = Object.keys(words).filter((way) => ways[way] >= 0.25).map((way) => words[way]);
  const how = found.length === 1 ? `mostly ${found[0]}` : found.map((way) => `partly ${way}`).join(", ");
  return `${capital(percent(share))} of the image changed clearly, ${where ? `most ${where}` : "here and there"}: ${how}.`;
}

// Points for (✓), against (!) and unknown (·), and what they come to. See "Can I trust it?" in the help.
function trust(card, n) {
  const all = outcomes(card);
  const { status, numbers, oracle, changed } = all[n];
  const target = className(card.target);
  if (status === "already there") return [`There was nothing to change: ${target} was the answer from the start.`, []];
  if (status !== "reached") return [`No. ${capital(who)} still ${says} ${className(numbers.label)}, not ${target}.`, []];
  const points = [];
  const point = (known, good, forIt, against) => points.push(!known ? ["·", forIt] : good ? ["✓", forIt] : ["!", against]);
  if (labelsOnly) point(true, true, `${capital(who)} ${says} ${target}${data.asked ? "" : "; it gives labels only, so how surely is not known"}`);
  else {
    const margin = `(margin ${hundredths(numbers.margin)})`;
    point(true, numbers.margin >= 0.1, `${capital(who)} ${numbers.margin >= 0.5 ? "clearly " : ""}${says} ${target} ${margin}`, `${capital(who)} only just ${says} ${target} ${margin}`);
  }
  const { typicality } = numbers;
  if (Number.isFinite(typicality) && !data.asked) {
    const real = `${percent(typicality)} of real ${noun}s of ${target}`;
    const few = typicality < 0.01 ? `hardly any real ${noun} of ${target} is less typical` : `more typical than only ${real}`;
    point(true, typicality >= 0.05, `Not unusual: more typical than ${real}`, `Unusual: ${few}`);
  } else if (!data.asked) point(false, false, `How typical it is of ${target} was not measured`);
  if (Number.isFinite(oracle)) point(true, oracle === card.target, `The oracle says ${target} too`, `The oracle says ${className(oracle)}`);
  else point(false, false, "No oracle was asked");
  if (all.length > 1) {
    const other = `The ${plans[1 - n][0].replace(/ counterfactual$/, " one")}`;
    point(true, all[1 - n].status !== "not reached", `${other} arrives too`, `${other} does not arrive`);
  } else if (!data.positions) point(false, false, "There is no reliable one beside it to compare with");
  if (changed?.share === 0) point(true, false, "", "The change is hardly to be seen: perhaps a weakness of the classifier rather than a reason");
  if (card.redrawn > numbers.L1) point(true, false, "", `The generator alone changes the input by more (${card.redrawn.toFixed(3)}) than this (${numbers.L1.toFixed(3)})`);
  const count = (mark) => points.filter(([found]) => found === mark).length;
  const [against, unknown] = [count("!"), count("·")];
  const open = unknown ? `, and ${unknown} ${unknown === 1 ? "is" : "are"} not known` : "";
  if (against) return [`With care: ${against} of ${points.length} points speak${against === 1 ? "s" : ""} against it${open}.`, points];
  return [`None of ${points.length} points speaks against it${unknown ? `, but ${unknown} ${unknown === 1 ? "is" : "are"} not known` : ""}.`, points];
}

function answersOf(card, n) {
  const [verdict, points] = trust(card, n);
  const NAMES = { "✓": ["for", "for it: "], "!": ["against", "against it: "], "·": ["unknown", "not known: "] };
  const line = ([mark, text]) => make("li", {},
    make("span", { class: NAMES[mark][0], role: "img", "aria-label": NAMES[mark][1] }, mark), make("span", {}, text));
  const limits = make("button", { type: "button", class: "limits" }, "What this page cannot tell");
  limits.addEventListener("click", () => openHelp("limits"));
  return make("dl", { class: "answers" },
    make("dt", {}, "What changed?"), make("dd", {}, whatChanged(card, n)),
    make("dt", {}, "Can I trust it?"), make("dd", {}, verdict, make("ul", {}, ...points.map(line), make("li", {}, make("span", { "aria-hidden": "true" }, "?"), limits))));
}

// -- the curve --

const BOX = { left: 26, right: 272, top: 6, bottom: 176, width: 280, height: 198 };
const LANE = 36;
const DASHES = ["none", "7 4", "2 3", "9 3 2 3", "4 2", "1 4"];
const digits = (value) => Number(value.toFixed(2));
const cut = (text, most = 40) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// The target is solid and the source dashed on every card; other classes follow in order.
function styles({ curve, source, target }) {
  const others = curve.classes.filter((k) => k !== source && k !== target);
  return curve.classes.map((k) => {
    const n = (k === target ? 0 : k === source ? 1 : 2 + others.indexOf(k)) % DASHES.length;
    return { stroke: `var(--c${n})`, "stroke-dasharray": DASHES[n] };
  });
}

// Probabilities are curves between 0 and 1. Labels are no probabilities: each class has a lane, with
// a dot where it was the answer.
function curveOf(card) {
  const { leaps } = card.frames;
  const { classes, p } = card.curve;
  const [first, last] = [leaps[0], leaps[leaps.length - 1]];
  const left = labelsOnly ? 6 : BOX.left;
  const bottom = labelsOnly ? BOX.top + LANE * classes.length : BOX.bottom;
  const lane = (row) => BOX.top + LANE * (row + 1) - 10;
  const height = (row, value) => (labelsOnly ? lane(row) : BOX.bottom - clamp(value, 0, 1) * (BOX.bottom - BOX.top));
  const across = (frame) =>
    digits(left + (BOX.right - left) * (last > first ? (leaps[frame] - first) / (last - first) : 0));
  const svg = draw("svg", { class: "curve", role: "img", viewBox: `0 0 ${BOX.width} ${bottom + 22}` });
  const role = (k) => (k === card.target ? " (target)" : k === card.source ? " (source)" : "");
  const level = (y, text, attributes) => svg.append(
    draw("line", { class: "grid", x1: left, x2: BOX.right, y1: y, y2: y }), draw("text", attributes, text));
  if (labelsOnly) classes.forEach((k, row) => level(lane(row), cut(className(k) + role(k)), { x: left, y: lane(row) - 8 }));
  else for (const value of [0, 0.5, 1]) level(height(0, value), String(value), { x: left - 6, y: height(0, value) + 4, "text-anchor": "end" });
  const below = bottom + 16;
  svg.append(
    draw("text", { x: left, y: below, "text-anchor": "middle" }, String(first)),
    draw("text", { x: (left + BOX.right) / 2, y: below, "text-anchor": "middle" }, "leap"));
  if (last > first) svg.append(draw("text", { x: BOX.right, y: below, "text-anchor": "middle" }, String(last)));
  const looks = styles(card);
  p.forEach((values, row) => {
    const points = values.flatMap((v, n) => (Number.isFinite(v) && (v > 0 || !labelsOnly) ? [`${across(n)} ${digits(height(row, v))}`] : []));
    if (!points.length) return;
    const { stroke } = looks[row];
    if (!labelsOnly) svg.append(draw("path", { class: "thread", d: `M${points.join("L")}`, style: `stroke:${stroke}`, "stroke-dasharray": looks[row]["stroke-dasharray"] }));
    svg.append(draw("path", { class: "dots", d: points.map((point) => `M${point}h0`).join(""), style: `stroke:${stroke}` }));
  });
  const cursor = draw("line", { class: "cursor", y1: BOX.top - 4, y2: bottom + 4 });
  svg.append(cursor);

  const values = classes.map(() => make("b"));
  const legend = make("ul", { class: "legend" }, ...(labelsOnly ? [make("li", {}, `${capital(who)} ${gives} labels only: a dot is an answer.`)] : classes.map((k, row) => {
    const { stroke, ...dash } = looks[row];
    const swatch = draw("svg", { class: "swatch", viewBox: "0 0 26 8", "aria-hidden": "true" },
      draw("path", { d: "M0 4h26", style: `stroke:${stroke}`, ...dash }));
    return make("li", {}, swatch, make("span", {}, className(k) + role(k)), values[row]);
  })));

  function move(frame, place) {
    const x = across(frame);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    const texts = p.map((line) => (Number.isFinite(line[frame]) ? line[frame].toFixed(2) : DASH));
    texts.forEach((text, row) => { values[row].textContent = text; });
    const list = classes.map((k, row) => `${className(k)} ${texts[row] === DASH ? "not known" : texts[row]}`);
    svg.setAttribute("aria-label", labelsOnly ? `answer at ${place}: ${answerAt(card, frame)}` : `probabilities at ${place}: ${list.join(", ")}`);
  }
  function nearest(event) {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * BOX.width;
    const gaps = leaps.map((_, frame) => Math.abs(across(frame) - x));
    return gaps.indexOf(Math.min(...gaps));
  }
  return { svg, legend, move, nearest };
}

// -- pictures: the strip is loaded when idle and drawn when near --

let colours = null;
function palette() {
  colours ??= ["--less", "--none", "--more", "--other"].map((name) => {
    const probe = make("i", { style: `color: var(${name})` });
    document.body.append(probe);
    const found = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
    probe.remove();
    return found;
  });
  return colours;
}

const isPhoto = ({ width, height: tall }) => Math.max(width, tall) >= data.photo.side;
const fullChange = (size) => (isPhoto(size) ? data.photo.change : 1);

// As change_map in leapfactual/report/figures.py: red was added, blue taken away, violet is another
// colour as bright as the one before. The change that has the full colour is the same on every card.
function paintChange(before, now, change) {
  const [less, none, more, other] = palette();
  const out = change.createImageData(now.width, now.height);
  const whole = 765 * fullChange(now);
  for (let at = 0; at < now.data.length; at += 4) {
    let [sum, size] = [0, 0];
    for (let c = at; c < at + 3; c += 1) {
      const d = now.data[c] - before.data[c];
      sum += d;
      size += Math.abs(d);
    }
    const share = Math.min(1, size / whole);
    const balance = size ? Math.abs(sum) / size : 0;
    const end = sum < 0 ? less : more;
    for (let c = 0; c < 3; c += 1) {
      const full = other[c] + balance * (end[c] - other[c]);
      out.data[at + c] = Math.round(none[c] + share * (full - none[c]));
    }
    out.data[at + 3] = 255;
  }
  change.putImageData(out, 0, 0);
}

// Pictures become buttons that enlarge them.
function enlarging(picture, open) {
  const button = make("button", { class: "zoom", type: "button", title: "enlarge", "aria-haspopup": "dialog" }, picture);
  button.addEventListener("click", () => open(picture, button));
  return button;
}

class PictureViewer {
  constructor(card) {
    const { frames, pictures } = card;
    this.size = frames;
    this.images = null;
    this.uris = frames.differences ? { start: pictures.reconstruction ?? pictures.input } : {};
    if (frames.strip) this.uris.strip = frames.strip;
    this.ends = ["counterfactual", "reliable"].filter((key) => pictures[key]);
    for (const key of this.ends) this.uris[key] = pictures[key];
    this.before = null;
    this.after = [];
    [this.frame, this.seen] = ["frame", "seen"].map((name) => canvas(name, frames));
    this.changes = this.ends.map(() => canvas("change", frames));
  }

  load(then = () => {}) {
    this.images ??= Object.fromEntries(Object.entries(this.uris).map(([key, uri]) => {
      const image = new Image();
      image.addEventListener("error", () => this.seen.closest(".card").append("The frames cannot be read."));
      image.src = uri;
      return [key, image];
    }));
    const waiting = Object.values(this.images).filter((image) => !image.complete);
    if (!waiting.length) return then();
    const loaded = (image) => new Promise((done) => { image.addEventListener("load", done, { once: true }); });
    return Promise.all(waiting.map(loaded)).then(then);
  }

  // Draws a part of an image and returns its pixels.
  copy(image, at, to) {
    const { width, height: tall } = this.size;
    const context = to.getContext("2d", { willReadFrequently: true });
    context.clearRect(0, 0, width, tall);
    context.drawImage(image, at * width, 0, width, tall, 0, 0, width, tall);
    return context.getImageData(0, 0, width, tall);
  }

  // Draws a frame and returns its pixels. The frames of photographs are differences, as halves
  // around 128, from the first, which is a picture of its own, as the last is.
  draw(frame, to) {
    const { differences, n } = this.size;
    const { start, strip } = this.images;
    if (!differences) return this.copy(strip, frame, to);
    if (frame === 0) return this.copy(start, 0, to);
    if (frame === n - 1) return this.copy(this.images[this.ends.at(-1)], 0, to);
    const pixels = this.copy(strip, frame - 1, to);
    for (let k = 0; k < pixels.data.length; k += 1) {
      if (k % 4 < 3) pixels.data[k] = this.before.data[k] + 2 * (pixels.data[k] - 128);
    }
    to.getContext("2d").putImageData(pixels, 0, 0);
    return pixels;
  }

  get ready() {
    return this.images && Object.values(this.images).every((image) => image.naturalWidth);
  }

  paint(frame) {
    if (!this.ready) return;
    this.before ??= this.draw(0, this.seen);
    this.draw(frame, this.frame);
  }

  paintChanges() {
    if (!this.ready) return;
    this.before ??= this.draw(0, this.seen);
    this.ends.forEach((key, n) => {
      const map = this.changes[n];
      this.after[n] ??= this.copy(this.images[key], 0, map);
      paintChange(this.before, this.after[n], map.getContext("2d"));
    });
  }

  tell(place, answer) {
    this.frame.setAttribute("aria-label", `${place}: ${answer}`);
  }
}

// The pictures of a card, each with what it is called in the large view, where it can be opened.
class Pictures {
  constructor(card, view, open) {
    Object.assign(this, { card, view, open, dividers: [] });
    this.picture = (key, what) => {
      const { width, height: tall } = card.frames;
      return this.named(make("img", { class: "picture", src: card.pictures[key], width, height: tall, decoding: "async" }), what);
    };
  }

  named(picture, what, label = what) {
    picture.dataset.what = what;
    picture.setAttribute(picture.tagName === "IMG" ? "alt" : "aria-label", `${this.card.name}, ${label}`);
    return picture;
  }

  before() {
    const { card, view } = this;
    const answer = `${who} ${says} ${className(card.source)}`;
    const same = card.frames.differences && !card.pictures.reconstruction;
    const input = figure(same ? answer : "as it was given", enlarging(this.picture("input", "input"), this.open));
    return same ? [input] : [input, figure(`${SEEN}: ${answer}`, enlarging(this.named(view.seen, SEEN), this.open))];
  }

  plan(n) {
    const { card, view } = this;
    const [name] = plans[n];
    const words = card.frames.color ? "blue darker, red lighter, violet another colour" : "blue taken away, red added";
    const full = fullChange(card.frames);
    const map = this.named(view.changes[n], `what changed: ${short(name)}`, `what changed to the ${name}: ${words}; full colour for a change of ${full}`);
    const scale = make("div", { class: "scale", "aria-hidden": "true" }, `−${full}`, make("i"), `+${full}`);
    const changed = figure(`what changed: ${words}`, enlarging(map, this.open), scale);
    return [this.compare(view.ends[n], name), changed];
  }

  // The input left of a divider, the counterfactual right of it. The dividers of a card move together.
  compare(key, name) {
    const { card } = this;
    const under = make("img", { class: "picture", src: card.pictures.input, alt: `${card.name}, input` });
    const over = this.picture(key, name);
    over.classList.add("over");
    const range = make("input", { type: "range", min: 0, max: 100, "aria-label": `divider between input and ${name} of ${card.name}` });
    const line = make("i", { class: "line" });
    const corner = make("button", { class: "corner", type: "button", "aria-label": `enlarge ${name} of ${card.name}`, title: "enlarge", "aria-haspopup": "dialog" }, "⤢");
    corner.addEventListener("click", () => this.open(over, corner));
    range.addEventListener("input", () => this.divide(range.valueAsNumber));
    this.dividers.push((at) => {
      range.value = at;
      range.setAttribute("aria-valuetext", `left ${at} %: input; right ${100 - at} %: ${name}`);
      over.style.clipPath = `inset(0 0 0 ${at}%)`;
      line.style.left = `${at}%`;
    });
    return figure(`drag: input | ${short(name)}`, make("div", { class: "compare" }, under, over, range, line, corner));
  }

  divide(at) {
    for (const move of this.dividers) move(at);
  }
}

// -- rows of numbers --

const FIRST = 12;
const inStd = (change, k) => (data.std[k] > 0 ? change / data.std[k] : change && change * Infinity);
const endsOf = ({ rows }) => [rows.counterfactual, rows.reliable].filter(Boolean);
const changesOf = (card, row) => row.map((value, k) => inStd(value - card.rows.frames[0][k], k));
function largestChange() {
  const all = data.cards.flatMap((card) => endsOf(card).flatMap((row) => changesOf(card, row).map(Math.abs)));
  return clamp(Math.ceil(all.filter(Number.isFinite).reduce((a, b) => Math.max(a, b), 1)), 1, 6);
}
const limit = isRows ? largestChange() : 1;

function changedColumns(card, n) {
  const [start, row] = [card.rows.frames[0], endsOf(card)[n]];
  const size = changesOf(card, row).map(Math.abs);
  const order = data.columns.map((_, k) => k).filter((k) => size[k] > 0).sort((a, b) => size[b] - size[a]);
  if (!order.length) return "Nothing.";
  const three = order.slice(0, 3).map((k) => `${data.columns[k]} ${shorter(start[k])} → ${shorter(row[k])}`);
  return `${order.length} of ${data.columns.length} columns, most of all ${three.join("; ")}.`;
}

class RowViewer {
  constructor(card) {
    this.card = card;
    this.rows = card.rows;
    this.lines = [];
    this.changes = endsOf(card).map((row) => changesOf(card, row));
    const size = (k) => Math.max(...this.changes.map((change) => Math.abs(change[k])));
    const order = data.columns.map((_, k) => k).sort((a, b) => size(b) - size(a));
    this.stage = make("div", { class: "before" }, this.table(order.slice(0, FIRST)));
    if (order.length > FIRST) this.stage.append(this.others(order.slice(FIRST)));
  }

  others(columns) {
    const details = make("details", {}, make("summary", {}, `show all ${data.columns.length} columns`));
    details.addEventListener("toggle", () => {
      details.append(this.table(columns));
      this.paint(this.now);
    }, { once: true });
    return details;
  }

  table(columns) {
    const { card, rows: { frames } } = this;
    const ends = endsOf(card);
    const moving = frames.length > 2;
    const cell = (row, n, k) => {
      const change = this.changes[n][k];
      const bar = make("i", { class: change < 0 ? "down" : "up" });
      bar.style.width = `${50 * clamp(Math.abs(change) / limit, 0, 1)}%`;
      return make("div", { class: "cell" }, shorter(row[k]), make("div", { class: "bar" }, make("span", {}, bar), make("b", {}, signed(change))));
    };
    const body = columns.map((k) => {
      const line = { k, now: make("span", { class: "now" }) };
      this.lines.push(line);
      return [data.columns[k], shorter(frames[0][k]), ...ends.map((row, n) => cell(row, n, k)), ...(moving ? [line.now] : [])];
    });
    const header = ["column", "before", ...ends.map((_, n) => short(plans[n][0])), ...(moving ? ["at this leap"] : [])];
    const table = tabulate(header, body, { class: "columns" });
    if (moving) for (const { lastElementChild: last } of table.rows) last.className = "here";
    const note = make("p", { class: "reason" }, `Bars: change in units of the column's spread, −${limit} to +${limit}.`);
    return make("div", {}, make("div", { class: "scroll" }, table), note);
  }

  load(then = () => {}) { then(); }

  paint(frame) {
    this.now = frame;
    for (const { k, now } of this.lines) now.textContent = shorter(this.rows.frames[frame][k]);
  }

  paintChanges() {}

  tell() {}
}

// -- a card --

const still = matchMedia("(prefers-reduced-motion: reduce)");
// Where the divider is at first: at its side, so that the counterfactual is seen, and in sight.
const DIVIDER = 12;
// The longer side of a picture, at most.
const LARGE = 280;
let playing = null;

class Card {
  constructor(card, index) {
    this.card = card;
    this.index = index;
    this.last = card.frames.n - 1;
    this.frame = this.last;
    this.near = false;
    this.timer = 0;
    this.view = isRows ? new RowViewer(card) : new PictureViewer(card);
    this.pictures = isRows ? null : new Pictures(card, this.view, (...picture) => zoom.open(this, ...picture));
    this.curve = curveOf(card);
    this.steer();
    this.element = this.build();
    this.curve.svg.addEventListener("pointerdown", (event) => this.go(this.curve.nearest(event)));
    this.curve.svg.addEventListener("pointermove", (event) => event.buttons && this.go(this.curve.nearest(event)));
    this.pictures?.divide(DIVIDER);
    this.show();
  }

  steer() {
    const { name } = this.card;
    this.slider = make("input", { class: "slider", type: "range", min: 0, max: this.last, value: this.last, "aria-label": `leaps of ${name}` });
    this.button = make("button", { class: "play", type: "button", "aria-label": `play ${name}` }, "▶ Play");
    this.place = make("span", { class: "place" });
    this.answer = make("span", { class: "says" });
    this.slider.addEventListener("input", () => this.go(this.slider.valueAsNumber));
    this.button.addEventListener("click", () => this.toggle());
  }

  build() {
    const { card } = this;
    const title = make("h2", { id: `card-${this.index}` },
      make("span", { class: "name" }, ...breakable(card.name)), ` ${className(card.source)} → ${className(card.target)}`);
    const body = make("div", { class: "body" }, this.before(), ...outcomes(card).map((_, n) => this.panel(n)), this.more());
    const element = make("article", { class: `card ${card.reliable ? "" : "single"}`, tabindex: 0, "aria-labelledby": `card-${this.index}` }, title, body);
    if (!isRows) this.measure(element);
    return element;
  }

  before() {
    if (isRows) return this.view.stage;
    return make("section", { class: "panel before", "aria-label": "input" },
      make("div", { class: "title" }, make("h3", {}, "input")), make("div", { class: "pair" }, ...this.pictures.before()));
  }

  panel(n) {
    const { card } = this;
    const [name, plan] = plans[n];
    const { status, reason } = outcomes(card)[n];
    return make("section", { class: "panel plan", "aria-label": name },
      make("div", { class: "title" }, make("h3", {}, name), badge(status), ...(plan ? [term(`plan-${n}`, "plan")] : [])),
      ...(isRows ? [] : [make("div", { class: "pair" }, ...this.pictures.plan(n))]),
      answersOf(card, n),
      make("p", { class: "reason" }, reason));
  }

  // Without iterates between the ends there is no way to show.
  more() {
    const { card } = this;
    const parts = [make("section", { class: "figures" }, make("h3", {}, "The numbers"), make("div", { class: "scroll" }, numbersTable(card)))];
    if (this.last > 1) {
      const end = plans[outcomes(card).length - 1][0];
      const picture = isRows ? [] : [figure("on the way", enlarging(this.pictures.named(this.view.frame, "on the way"), this.pictures.open))];
      parts.unshift(make("section", { class: "way" }, make("h3", {}, `On the way to the ${end}`), ...picture,
        make("div", { class: "plot" }, this.curve.svg, this.curve.legend),
        make("div", { class: "steer" }, this.button, this.slider, this.place, this.answer)));
    }
    return make("div", { class: "more" }, ...parts);
  }

  measure(element) {
    const { width, height: tall } = this.card.frames;
    const longest = Math.max(width, tall);
    const photo = isPhoto(this.card.frames);
    const times = photo ? Math.max(1, LARGE / longest) : Math.max(1, Math.floor(LARGE / longest));
    element.classList.add(photo ? "photo" : "pixel");
    element.style.setProperty("--own", `${width}px`);
    element.style.setProperty("--large", `${Math.round(width * times)}px`);
  }

  go(frame) {
    this.frame = clamp(frame, 0, this.last);
    this.show();
  }

  show() {
    const { leaps } = this.card.frames;
    const place = `leap ${leaps[this.frame]} of ${leaps[this.last]}`;
    const answer = answerAt(this.card, this.frame);
    this.element.dataset.frame = this.frame;
    this.slider.value = this.frame;
    this.slider.setAttribute("aria-valuetext", `${place}: ${answer}`);
    this.place.textContent = place;
    this.answer.textContent = answer;
    this.curve.move(this.frame, place);
    this.view.tell(place, answer);
    if (this.near) this.view.paint(this.frame);
  }

  paint() {
    this.view.paint(this.frame);
    this.view.paintChanges();
  }

  wake() {
    this.near = true;
    this.view.load(() => this.paint());
  }

  toggle() {
    if (this.timer) return this.pause();
    if (this.last < 1) return undefined;
    playing?.pause();
    playing = this;
    if (this.frame === this.last) this.go(0);
    const pace = still.matches ? 500 : clamp(3000 / this.last, 60, 300);
    this.timer = setInterval(() => this.step(), pace);
    return this.label("❚❚ Pause", "pause");
  }

  step() {
    this.go(this.frame + 1);
    if (this.frame === this.last) this.pause();
  }

  pause() {
    clearInterval(this.timer);
    this.timer = 0;
    playing = null;
    this.label("▶ Play", "play");
  }

  label(text, verb) {
    this.button.textContent = text;
    this.button.setAttribute("aria-label", `${verb} ${this.card.name}`);
  }
}

// -- the large view: one picture at a time, all at the same place --

const STEPS = [1, 2, 4, 8];

class Zoom {
  constructor() {
    this.dialog = byId("zoom");
    this.pane = byId("pane");
    this.canvas = make("canvas", { role: "img" });
    byId("scale").append(this.choice("step", "fit", "fit"), ...STEPS.map((step) => this.choice("step", step, `${step}×`)));
    byId("scale").addEventListener("change", (event) => this.resize(event.target.value));
    byId("what").addEventListener("change", (event) => this.show(Number(event.target.value)));
    byId("swap").addEventListener("click", () => this.show(this.other));
    byId("zoom-close").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("close", () => this.back.focus());
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    this.dialog.addEventListener("keydown", (event) => this.key(event));
    this.pane.addEventListener("pointerdown", (event) => event.pointerType === "mouse" && this.pane.setPointerCapture(event.pointerId));
    this.pane.addEventListener("pointermove", (event) => {
      if (this.pane.hasPointerCapture(event.pointerId)) this.pane.scrollBy({ left: -event.movementX, top: -event.movementY, behavior: "instant" });
    });
    addEventListener("resize", () => this.dialog.open && this.resize(this.step));
  }

  choice(name, value, ...content) {
    return make("label", {}, make("input", { type: "radio", name, value }), ...content);
  }

  open({ card, element }, picture, opener) {
    playing?.pause();
    hideTip();
    this.back = opener;
    this.pictures = [...element.querySelectorAll("[data-what]")];
    this.canvas.width = card.frames.width;
    this.canvas.height = card.frames.height;
    this.dialog.classList.toggle("pixel", element.classList.contains("pixel"));
    byId("zoom-title").replaceChildren(make("span", { class: "name" }, ...breakable(card.name)), ` ${className(card.source)} → ${className(card.target)}`);
    byId("what").replaceChildren(byId("what").firstElementChild, ...this.pictures.map((shown, n) =>
      this.choice("what", n, make("i", { "aria-hidden": "true" }, String(n + 1)), shown.dataset.what)));
    this.now = this.pictures.indexOf(picture);
    const partner = picture.classList.contains("over") ? "input" : plans[0][0];
    this.other = this.pictures.findIndex((shown) => shown.dataset.what === partner);
    this.pane.replaceChildren(this.canvas);
    this.dialog.showModal();
    this.show(this.now);
    this.resize("fit");
    byId("what").querySelector(":checked").focus();
  }

  show(n) {
    if (n !== this.now) this.other = this.now;
    this.now = n;
    const picture = this.pictures[n];
    const label = picture.alt ?? picture.getAttribute("aria-label");
    if (picture.complete === false) picture.addEventListener("load", () => this.show(this.now), { once: true });
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(picture, 0, 0, this.canvas.width, this.canvas.height);
    this.canvas.setAttribute("aria-label", label);
    byId("zoom-note").textContent = label;
    const choice = byId("what").querySelectorAll("input")[n];
    choice.checked = true;
    if (byId("what").contains(document.activeElement)) choice.focus();
  }

  // The middle of the picture stays where it is.
  resize(step) {
    const { pane, canvas: { width, height: tall, style } } = this;
    const middle = [(pane.scrollLeft + pane.clientWidth / 2) / pane.scrollWidth, (pane.scrollTop + pane.clientHeight / 2) / pane.scrollHeight];
    const room = Math.min(pane.offsetWidth / width, pane.offsetHeight / tall);
    const whole = this.dialog.classList.contains("pixel") && room > 1;
    this.step = step;
    this.times = step === "fit" ? (whole ? Math.floor(room) : room) : Number(step);
    style.width = `${Math.floor(width * this.times)}px`;
    style.height = `${Math.floor(tall * this.times)}px`;
    pane.scrollLeft = middle[0] * pane.scrollWidth - pane.clientWidth / 2;
    pane.scrollTop = middle[1] * pane.scrollHeight - pane.clientHeight / 2;
    byId("scale").querySelector(`[value="${step}"]`).checked = true;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !byId("letters").checked) return;
    const larger = STEPS.find((step) => step > this.times) ?? this.step;
    const smaller = STEPS.findLast((step) => step < this.times) ?? this.step;
    const step = { "+": larger, "=": larger, "-": smaller, 0: "fit" }[event.key];
    if (this.pictures[event.key - 1]) this.show(event.key - 1);
    else if (event.key === "s") this.show(this.other);
    else if (step) this.resize(step);
    else return;
    event.preventDefault();
  }
}

const zoom = new Zoom();

// -- the cards that are shown, their colours, and help --

let cards = [];

function openHelp(place) {
  hideTip();
  byId("keys").showModal();
  if (place) byId(place).scrollIntoView({ behavior: "instant" });
  else byId("keys").scrollTop = 0;
}

byId("help").addEventListener("click", () => openHelp());
byId("close").addEventListener("click", () => byId("keys").close());

// -- theme --

const THEMES = ["auto", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";
try { theme = sessionStorage.getItem("theme") ?? "auto"; } catch { /* not allowed here: fine */ }
if (!THEMES.includes(theme)) theme = "auto";

function repaint() {
  colours = null;
  for (const card of cards) if (card.near) card.paint();
  if (zoom.dialog.open) zoom.show(zoom.now);
}

function applyTheme() {
  if (theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
  repaint();
}

function nextTheme() {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try { sessionStorage.setItem("theme", theme); } catch { /* not allowed here: fine */ }
  applyTheme();
}

byId("theme").addEventListener("click", nextTheme);
dark.addEventListener("change", repaint);

// -- how many pictures fit beside each other --

function fitPictures(list) {
  const body = list.querySelector(".card:not([hidden]) .body");
  if (!body) return;
  const own = isRows ? 0 : Math.max(...cards.map(({ card }) => card.frames.width));
  const fits = (pictures, least, gaps) => body.clientWidth >= pictures * Math.max(own, least) + gaps;
  list.dataset.across = fits(5, 180, 80) ? 5 : fits(3, 180, 40) ? 3 : 2;
}
