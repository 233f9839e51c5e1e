// The script of a page: sorts tables, makes charts interactive, and updates live pages.
// Without it a page shows the same tables and charts.
"use strict";

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children); // names become text, never markup
  return node;
}

function button(text, title, act) {
  const node = element("button", { type: "button", title }, text);
  node.addEventListener("click", act);
  return node;
}

function download(name, address) {
  element("a", { href: address, download: name }).click();
}

function downloadText(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  download(name, address);
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// State that the reader set (order, zoom, hidden names), by the position of a node. It survives updates of a live page.

const states = new Map();

function stateOf(node, initial) {
  const parent = node.closest("[id]") ?? document.body;
  const key = `${parent.id} ${node.localName} ${[...parent.querySelectorAll(node.localName)].indexOf(node)}`;
  if (!states.has(key)) states.set(key, initial);
  return states.get(key);
}

// Tables: a click on a heading sorts, a second click reverses, a third restores the order.

const NUMBER = /^[+−-]?(\d+\.?\d*|\.\d+)(e[+−-]?\d+)?(?=$|[\s(†])/i;

function sortKey(cell) {
  const text = cell?.textContent.trim() ?? "";
  if (!text || /^(X|–|—)($|\s)/.test(text)) return null; // missing
  const number = text.match(NUMBER); // text after the number, such as ± 0.3, is ignored
  return number ? Number(number[0].replaceAll("−", "-")) : text;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

// A table that is too wide for the window has its standard errors below the means. If it fits, its head stays visible.
const fittedTables = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    target.classList.remove("tight", "fits");
    target.classList.toggle("tight", target.scrollWidth > target.clientWidth);
    target.classList.toggle("fits", target.scrollWidth <= target.clientWidth);
  }
});

function setUpTable(table) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const state = stateOf(table, { column: -1, direction: 0 });

  function sort() {
    const keys = new Map(rows.map((row) => [row, sortKey(row.cells[state.column])]));
    const known = rows.filter((row) => keys.get(row) !== null), missing = rows.filter((row) => keys.get(row) === null);
    known.sort((a, b) => state.direction * compare(keys.get(a), keys.get(b)));
    body.append(...(state.direction ? [...known, ...missing] : rows));
    heads.forEach((head, column) => {
      const direction = column === state.column ? state.direction : 0;
      head.setAttribute("aria-sort", ["descending", "none", "ascending"][direction + 1]);
    });
  }

  heads.forEach((head, column) => {
    const isNumeric = rows.some((row) => typeof sortKey(row.cells[column]) === "number");
    const first = isNumeric && column ? -1 : 1; // the largest numbers come first
    const words = head.textContent.split(/(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])/); // a long name may break between them
    const sorter = button("", "Sort", () => {
      const next = state.column !== column ? first : state.direction === first ? -first : 0;
      Object.assign(state, { column: next ? column : -1, direction: next });
      sort();
    });
    words.forEach((word, index) => sorter.append(...(index ? [element("wbr"), word] : [word])));
    head.replaceChildren(sorter);
  });
  sort();

  const scroll = table.closest(".scroll");
  if (table.closest("figure.table")) fittedTables.observe(scroll);

  const figure = table.closest("figure"), data = figure && JSON.parse(figure.querySelector(":scope > script").textContent);
  const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const visible = () => [...table.rows].map((row) => [...row.cells].map((cell) => quoted(cell.innerText)).join(",") + "\n");
  const save = button("↓ CSV", "Download this table", () =>
    downloadText(`${data?.name ?? "list"}.csv`, "text/csv", data?.csv ?? visible().join("")));
  const tools = element("div", { class: "tools" }, save);
  if (figure) figure.querySelector(".head").append(tools);
  else scroll.before(tools);
}

// Charts: a panel is drawn by Vega when it comes into view. Until then it shows the SVG of the page, if there is one.

const OPTIONS = { // `ast`: expressions are interpreted, as the security policy demands
  actions: false, ast: true, renderer: "svg", defaultStyle: false, mode: "vega-lite",
  tooltip: { theme: "page", offsetX: 14 },
};
const views = new WeakMap(); // the view of a panel, or a promise of it
const visiblePanels = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) if (isIntersecting) target.draw();
}, { rootMargin: "300px" });
const resizedPanels = new ResizeObserver((entries) => entries.forEach(({ target }) => target.fit()));

function setUpFigure(figure) {
  const data = JSON.parse(figure.querySelector(":scope > script").textContent), { spec } = data;
  const specs = spec.vconcat.at(-1).concat ?? [], panels = [...figure.querySelectorAll(".panel")];
  const state = stateOf(figure, { hidden: new Set(), zoom: [] });
  const reset = button("Reset zoom", "Show all data", () => panels.forEach((panel) => setZoom(panel, null, null)));
  const showReset = () => reset.toggleAttribute("hidden", !state.zoom.some((domains) => domains));

  panels.forEach((panel, i) => {
    const { $schema, config, padding, params } = spec;
    const size = () => {
      const { y } = specs[i].encoding, isRows = y.type === "nominal"; // rows have a fixed height, and names on the left
      const width = Math.max(120, panel.clientWidth - (isRows ? y.axis.minExtent : config.axisY.minExtent) - 2 * padding);
      return { width, height: isRows ? specs[i].height : Math.round((width * specs[i].height) / specs[i].width) };
    };
    panel.draw = () => {
      visiblePanels.unobserve(panel);
      if (!views.has(panel)) views.set(panel, embed());
      return views.get(panel);
    };
    panel.fit = async () => {
      const { width, height } = size(), view = await views.get(panel);
      if (view && view.width() !== width) view.width(width).height(height).runAsync();
    };
    async function embed() {
      const chart = element("div", { class: "chart", tabindex: 0, role: "group", "aria-label": specs[i].description });
      const { view } = await vegaEmbed(chart, { $schema, config, padding, params, ...specs[i], ...size() }, OPTIONS);
      view.signal("hidden", [...state.hidden]);
      if (state.zoom[i]) view.signal("zoom_x", state.zoom[i][0]).signal("zoom_y", state.zoom[i][1]);
      await view.runAsync();
      if ("zoom" in view.getState().signals) {
        view.addSignalListener("zoom", () => {
          const domains = [view.signal("zoom_x"), view.signal("zoom_y")];
          state.zoom[i] = domains[0] ? domains : null;
          showReset();
        });
        setUpKeysAndTouch(chart, view, panel, specs[i]);
      }
      panel.replaceChildren(chart);
      panel.removeAttribute("role");
      resizedPanels.observe(panel);
      return view;
    }
    visiblePanels.observe(panel);
  });

  for (const entry of figure.querySelectorAll(".legend li")) {
    const name = entry.querySelector("span").textContent, mark = () => toggle.setAttribute("aria-pressed", !state.hidden.has(name));
    const toggle = button("", "Hide or show", () => {
      if (!state.hidden.delete(name)) state.hidden.add(name);
      mark();
      panels.forEach(async (panel) => (await panel.draw()).signal("hidden", [...state.hidden]).runAsync());
    });
    mark();
    toggle.append(...entry.childNodes);
    entry.append(toggle);
  }

  const save = (type, act) => button(`↓ ${type}`, `Download as ${type}`, act);
  const tools = element("div", { class: "tools" }, reset,
    save("CSV", () => downloadText(`${data.name}.csv`, "text/csv", data.csv)),
    save("SVG", async () => downloadText(`${data.name}.svg`, "image/svg+xml", await (await drawWhole(data, state)).toSVG())),
    save("PNG", async () => download(`${data.name}.png`, await (await drawWhole(data, state)).toImageURL("png", 2))));
  showReset();
  figure.querySelector(".head").append(tools);
}

async function drawWhole({ spec }, { hidden }) { // the figure with its legend, in light colours, without hidden names
  const light = JSON.parse(document.querySelector("#light").textContent);
  const copy = JSON.parse(JSON.stringify(spec).replace(/var\(--(\w+)\)/g, (text, name) => light[name] ?? text));
  copy.params = [{ name: "hidden", value: [...hidden] }];
  for (const { legend } of Object.values(copy.vconcat[0].encoding ?? {})) {
    if (legend) legend.values = legend.values.filter((name) => !hidden.has(name));
  }
  return (await vegaEmbed(element("div"), copy, { ...OPTIONS, renderer: "none" })).view;
}

async function setZoom(panel, x, y) {
  const view = await views.get(panel);
  if (view && "zoom_x" in view.getState().signals) view.signal("zoom_x", x).signal("zoom_y", y).runAsync();
}

function movePointer(target, at, name = "pointermove") {
  target?.dispatchEvent(new PointerEvent(name, { ...at, bubbles: true }));
}

function setUpKeysAndTouch(chart, view, panel, { data, encoding }) {
  const points = data.values.filter(({ kind, y }) => kind === "line" && y !== null);
  const steps = [...new Set(points.map(({ x }) => x))].sort((a, b) => a - b);
  const whole = encoding.x.scale.domain, isPlane = encoding.x.axis.grid;
  let step = -1, target = null; // the element under the pointer
  const around = (name, factor) => {
    const [low, high] = view.scale(name).domain(), middle = (low + high) / 2, half = ((high - low) / 2) * factor;
    return [middle - half, middle + half];
  };
  const zoom = (factor) => {
    const x = around("x", factor);
    if (x[0] <= whole[0] && x[1] >= whole[1]) return setZoom(panel, null, null);
    if (isPlane) return setZoom(panel, x, around("y", factor));
    const inside = points.filter((point) => point.x >= x[0] && point.x <= x[1]); // the y axis fits the lines
    const ends = inside.flatMap(({ y, stderr = 0 }) => [y - stderr, y + stderr]);
    const low = Math.min(...ends), high = Math.max(...ends), room = 0.08 * (high - low) || 0.1 * Math.abs(low) || 1;
    return setZoom(panel, x, ends.length ? [low - room, high + room] : view.scale("y").domain());
  };
  const read = (direction) => { // moves the pointer of the chart to the next value
    if (!steps.length) return;
    step = Math.min(Math.max(step + direction, 0), steps.length - 1);
    chart.scrollIntoView({ block: "nearest" });
    const box = chart.querySelector("svg").getBoundingClientRect(), [left, top] = view.origin();
    const at = { clientX: box.left + left + view.scale("x")(steps[step]), clientY: box.top + top + view.height() / 2 };
    target = document.elementFromPoint(at.clientX, at.clientY);
    movePointer(target, at);
  };
  const keys = {
    "+": () => zoom(1 / 2), "-": () => zoom(2), Escape: () => setZoom(panel, null, null),
    ArrowRight: () => read(1), ArrowLeft: () => read(-1),
  };
  chart.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  chart.addEventListener("click", (event) => { // a tap does not move the pointer
    target = event.target;
    movePointer(target, { clientX: event.clientX, clientY: event.clientY });
  });
  chart.addEventListener("blur", () => movePointer(target, {}, "pointerout"));
}

// The page. A live page asks its server for a new version and replaces its content.

const CHART_HINT = "Point at a chart to read values; drag to move, Ctrl + wheel to zoom, double-click to reset. " +
  "Click a name in a legend to hide it. Keys of a chart: arrows, +, −, Esc. ";
const NARROW = matchMedia("(max-width: 600px)"); // there, figures are closed at first
const TABLE_HINT = "Click a column heading to sort.";

const navigation = new ResizeObserver(([{ target }]) =>
  document.documentElement.style.setProperty("--nav", `${target.offsetHeight}px`));

function setUpPage() {
  const hint = (document.querySelector("figure.figure") ? CHART_HINT : "") + TABLE_HINT;
  document.querySelector("main > header").append(element("p", { class: "muted hint" }, hint));
  document.querySelectorAll("nav").forEach((nav) => navigation.observe(nav));
  document.querySelectorAll("main table:not(.confusion)").forEach(setUpTable);
  document.querySelectorAll("figure.figure").forEach(setUpFigure);
  for (const part of document.querySelectorAll("details")) {
    const state = stateOf(part, { open: part.open && !("wide" in part.dataset && NARROW.matches) });
    part.open = state.open;
    part.addEventListener("toggle", () => (state.open = part.open));
  }
}

let latest = document.querySelector("main").outerHTML;

async function refresh() {
  if (document.hidden || document.querySelector(".chart:hover")) return; // do not disturb a reader who points at a chart
  const reply = await fetch(location.href, { cache: "no-store" }).catch(() => null);
  document.body.classList.toggle("lost", !reply?.ok);
  if (!reply?.ok) return;
  const page = new DOMParser().parseFromString(await reply.text(), "text/html"), fresh = page.querySelector("main");
  if (fresh.outerHTML === latest) return;
  latest = fresh.outerHTML;
  const focusable = () => [...document.querySelectorAll("main :is(a, button, summary, [tabindex])")];
  const focused = focusable().indexOf(document.activeElement);
  for (const figure of fresh.querySelectorAll("figure.figure")) { // show the old charts until the new ones are drawn
    const old = document.querySelectorAll(`#${figure.id} .panel`);
    figure.querySelectorAll(".panel").forEach((panel, i) => panel.append(...(old[i]?.childNodes ?? [])));
  }
  document.querySelector("main").replaceWith(fresh);
  document.title = page.title;
  setUpPage();
  if (focused >= 0) focusable()[focused]?.focus({ preventScroll: true });
}

setUpPage();
let closed = []; // what a reader has not opened; it is printed, too
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  closed.forEach((part) => (part.open = true));
  document.querySelectorAll(".panel").forEach((panel) => panel.draw());
});
addEventListener("afterprint", () => closed.forEach((part) => (part.open = false)));
if (document.body.dataset.live) setInterval(refresh, 1000 * document.body.dataset.live);
