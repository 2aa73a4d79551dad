// -- filters and order --

const list = byId("cards");
cards = data.cards.map((card, index) => new Card(card, index));
const ofElement = new Map(cards.map((card) => [card.element, card]));
const names = new Intl.Collator("en", { numeric: true });
const number = (key, worst) => ({ card }) => card.numbers[key] ?? worst;
const ascending = (value) => (a, b) => value(a) - value(b);
const ORDERS = {
  given: ascending(({ index }) => index),
  L1: ascending(number("L1", Infinity)),
  typicality: ascending(({ card }) => -(card.numbers.typicality ?? -1)),
  leaps: ascending(number("leaps", Infinity)),
  name: (a, b) => names.compare(a.card.name, b.card.name),
};
const FILTERS = ["source", "target", "status"];

function fits({ card }) {
  const wanted = byId("search").value.trim().toLowerCase();
  return card.name.toLowerCase().includes(wanted)
    && FILTERS.every((key) => ["", String(card[key])].includes(byId(key).value));
}

function refresh() {
  let shown = 0;
  for (const card of cards) {
    const fit = fits(card);
    shown += fit;
    card.element.hidden = !fit;
    if (!fit && card.timer) card.pause();
  }
  byId("shown").textContent = `${shown} of ${cards.length} shown`;
  byId("none").hidden = shown > 0;
}

function reorder() {
  const order = ORDERS[byId("sort").value];
  list.append(...[...cards].sort((a, b) => order(a, b) || a.index - b.index).map(({ element }) => element));
}

function choices(key, all, text) {
  const found = [...new Set(data.cards.map((card) => card[key]))];
  found.sort((a, b) => (key === "status" ? 0 : a - b));
  byId(key).append(make("option", { value: "" }, all), ...found.map((value) => make("option", { value }, text(value))));
}

// -- printing --

function beforePrint() {
  root.dataset.theme = "light";
  list.dataset.across = 5;
  for (const card of cards) card.near = true;
  repaint();
}

// -- keys --

function moveFocus(step) {
  const visible = [...list.querySelectorAll(".card:not([hidden])")];
  const at = visible.indexOf(document.activeElement?.closest(".card"));
  const next = visible[at < 0 ? 0 : clamp(at + step, 0, visible.length - 1)];
  next?.focus({ preventScroll: true });
  next?.scrollIntoView({ block: "start" });
}

const INTRO = "Each card takes one input and shows how it would have had to look for the answer to be another one: a counterfactual. The nearest one changes as little as possible and lies just across the border between two answers. A reliable one goes on into the other class, so that it should convince others, too. Filters, order and status go by the first of the two.";
const HOTKEYS = [
  [["j", "k"], "next card, previous card"],
  [["←", "→"], "on a divider: move it; elsewhere on a card: leap by leap"],
  [["Space"], "play or pause on the card with the focus"],
  [["/"], "search names"],
];
const KEYS = {
  j: () => moveFocus(1),
  k: () => moveFocus(-1),
  "/": () => byId("search").focus(),
  "?": () => openHelp(),
};

function onKey(event) {
  const { key, target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (target.closest("select, input:not([type=range], [type=checkbox])")) return;
  const card = ofElement.get(target.closest(".card"));
  const arrow = { ArrowLeft: -1, ArrowRight: 1 }[key];
  if (KEYS[key] && byId("letters").checked) KEYS[key]();
  else if (arrow && card && !target.matches("input")) card.go(card.frame + arrow);
  else if (key === " " && target === card?.element) card.toggle();
  else return;
  event.preventDefault();
}

// -- start --

function start() {
  byId("title").textContent = data.title;
  byId("about").textContent = data.about ?? "";
  list.classList.add(isRows ? "rows" : "images");
  fillHelp(INTRO, HOTKEYS);
  onTips();
  if (data.table) {
    byId("summary").lastElementChild.append(summaryTable(data.table));
    byId("summary").hidden = false;
    byId("summary").open = innerWidth > 700;
  }
  choices("source", "from any class", (k) => `from ${className(k)}`);
  choices("target", "to any class", (k) => `to ${className(k)}`);
  choices("status", "any status", String);
  for (const key of FILTERS) byId(key).addEventListener("change", refresh);
  byId("search").addEventListener("input", refresh);
  byId("sort").addEventListener("change", reorder);
  byId("reset").addEventListener("click", () => {
    for (const key of [...FILTERS, "search"]) byId(key).value = "";
    refresh();
  });
  addEventListener("beforeprint", beforePrint);
  addEventListener("afterprint", () => { applyTheme(); fitPictures(list); });
  document.addEventListener("keydown", onKey);
  reorder();
  refresh();
  applyTheme();
  fitPictures(list);
  addEventListener("resize", () => fitPictures(list));
  const observer = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      ofElement.get(target).wake();
    }
  }, { rootMargin: "600px" });
  for (const { element } of cards) observer.observe(element);
  const whenIdle = window.requestIdleCallback ?? ((work) => setTimeout(work, 50));
  const loadFrom = (n) => whenIdle(() => {
    for (const card of cards.slice(n, n + 10)) card.view.load();
    if (n + 10 < cards.length) loadFrom(n + 10);
  });
  loadFrom(0);
}

start();
