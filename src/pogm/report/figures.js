// Figures: panels under one legend, whose entries hide and show; numbers and pictures to take away.

function setUpFigure(figure) {
  const data = JSON.parse(figure.querySelector(":scope > script").textContent);
  const state = memory(figure, { hidden: new Set(), panels: [] });
  const back = button("Reset zoom", "Show everything again", () => panels.forEach((panel) => panel.reset()));
  const changed = () => back.toggleAttribute("hidden", !state.panels.some((panel) => panel.view));
  const panels = [...figure.querySelectorAll(".panel")].map((place, i) => {
    state.panels[i] ??= { view: null };
    return new Panel(place, data.panels[i], state.hidden, state.panels[i], changed);
  });
  for (const entry of figure.querySelectorAll(".legend li")) {
    const key = Number(entry.dataset.key), press = () => toggle.setAttribute("aria-pressed", !state.hidden.has(key));
    const toggle = button("", "Hide or show", () => {
      if (!state.hidden.delete(key)) state.hidden.add(key);
      press();
      panels.forEach((panel) => panel.draw());
    });
    press();
    toggle.append(...entry.childNodes);
    entry.append(toggle);
  }
  const numbers = button("↓ CSV", "Download the numbers", () =>
    download(`${data.name}.csv`, "text/csv", figureCsv(data)));
  const drawing = button("↓ SVG", "Download the picture, as it is now", () =>
    download(`${data.name}.svg`, "image/svg+xml", picture(figure, state.hidden)));
  figure.querySelector(".head").append(html("div", { class: "tools" }, back, numbers, drawing));
}

function figureCsv(data) {
  const rows = data.panels.flatMap(({ title, marks }) =>
    marks.flatMap(({ kind, name, points }) => points.map((point) => [title, kind, name, ...point])));
  return csv([["panel", "mark", "name", "x", "y", "stderr", "n"], ...rows]);
}

function picture(figure, hidden) { // the panels as they are now, on white, with a legend and a style of their own
  const charts = [...figure.querySelectorAll(".panel > .chart")];
  const columns = charts.length === 4 ? 2 : Math.min(charts.length, 3);
  const size = (chart) => chart.viewBox.baseVal, width = Math.max(...charts.map((chart) => size(chart).width)) + 36;
  const parts = [];
  let x = 24, y = 56;
  for (const entry of figure.querySelectorAll(".legend li")) {
    if (hidden.has(Number(entry.dataset.key))) continue;
    const sample = entry.querySelector(".swatch > g").cloneNode(true), long = 7.5 * entry.textContent.length + 56;
    if (x > 24 && x + long > columns * width) [x, y] = [24, y + 24];
    sample.setAttribute("transform", `translate(${x} ${y - 34})`);
    parts.push(sample, svg("text", { class: "key", x: x + 30, y: y - 26 }, entry.textContent));
    x += long;
  }
  for (let row = 0; row < charts.length; row += columns) {
    const here = charts.slice(row, row + columns);
    here.forEach((chart, column) => {
      const copy = chart.cloneNode(true);
      copy.querySelectorAll('.cross, .part, [display="none"]').forEach((node) => node.remove());
      const place = { x: 24 + column * width, y, width: size(chart).width, height: size(chart).height };
      for (const [key, value] of Object.entries(place)) copy.setAttribute(key, value);
      parts.push(copy);
    });
    y += Math.max(...here.map((chart) => size(chart).height)) + 24;
  }
  const whole = { width: columns * width + 12, height: y };
  const style = JSON.parse(document.querySelector("#picture-style script").textContent);
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${whole.width} ${y}`, ...whole, color: "#1b1f24" });
  root.append(svg("style", {}, style), svg("rect", { ...whole, fill: "#fff" }), ...parts);
  return new XMLSerializer().serializeToString(root);
}
