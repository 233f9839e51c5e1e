// The page: everything set up, and on a live one set up again whenever its server has something new.

const HINT = "Hover over a chart to read it, or tap it; drag over a part to zoom, double click to see all again. " +
  "Click a name to hide it, and the head of a column to sort by it.";

function setUp() {
  document.querySelector("main > header").append(html("p", { class: "muted hint" }, HINT));
  document.querySelectorAll("main table").forEach(setUpTable);
  document.querySelectorAll("figure.figure").forEach(setUpFigure);
  for (const part of document.querySelectorAll("details")) {
    const state = memory(part, { open: part.open });
    part.open = state.open;
    part.addEventListener("toggle", () => (state.open = part.open));
  }
}

let known = document.querySelector("main").outerHTML;

async function refresh() {
  if (document.hidden || document.querySelector(".cross, .part")) return; // nobody looks, or somebody looks closely
  const reply = await fetch(location.href, { cache: "no-store" }).catch(() => null);
  document.body.classList.toggle("lost", !reply?.ok);
  if (!reply?.ok) return;
  const page = new DOMParser().parseFromString(await reply.text(), "text/html"), fresh = page.querySelector("main");
  if (fresh.outerHTML === known) return;
  known = fresh.outerHTML;
  const places = () => [...document.querySelectorAll("main :is(a, button, summary, [tabindex])")];
  const focused = places().indexOf(document.activeElement);
  document.querySelector("main").replaceWith(fresh);
  document.title = page.title;
  setUp();
  if (focused >= 0) places()[focused]?.focus({ preventScroll: true });
}

setUp();
if (document.body.dataset.live) setInterval(refresh, 1000 * document.body.dataset.live);
