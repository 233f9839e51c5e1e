// One pair of axes: values to read off, and a part to look at closely. Its marks are drawn in pixels of their frame,
// and to zoom is to show a part of the frame.

const shown = (value, digits = 4) => String(Number(value.toPrecision(digits))).replaceAll("-", "−");
const tickText = (tick) => (Math.abs(tick) >= 1e4 ? `${tick / 1000}k` : String(tick)).replaceAll("-", "−");
const inOrder = (a, b) => [Math.min(a, b), Math.max(a, b)];
const length = ([low, high]) => high - low;

function ticks([low, high]) { // round numbers, as in axes.py, but none outside
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * (1 - 1e-9));
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

class Panel {
  constructor(place, data, hidden, state, changed) {
    Object.assign(this, { place, data, hidden, state, changed });
    this.chart = place.querySelector(".chart");
    this.plot = place.querySelector(".plot");
    this.axes = place.querySelector(".axes");
    this.whole = [...this.axes.childNodes];
    const number = (name) => Number(this.plot.getAttribute(name));
    this.frame = { left: number("x"), top: number("y"), width: number("width"), height: number("height") };
    this.size = this.chart.viewBox.baseVal;
    this.lines = !data.upright; // to be followed along x; else there are places in the plane
    this.says = place.appendChild(html("div", { class: "says", role: "status" }));
    place.querySelectorAll(".hover").forEach((disc) => disc.remove()); // the crosshair says it better
    this.listen();
    this.draw();
  }

  get view() {
    return this.state.view ?? { x: this.data.x, y: this.data.y };
  }

  get scale() { // pixels of the screen for one of the drawing
    return this.chart.getBoundingClientRect().width / this.size.width;
  }

  // Between values, pixels of the drawing, and the pointer.

  toX(value) {
    return this.frame.left + ((value - this.view.x[0]) / length(this.view.x)) * this.frame.width;
  }

  toY(value) {
    return this.frame.top + ((this.view.y[1] - value) / length(this.view.y)) * this.frame.height;
  }

  valueAt({ x, y }) {
    const { left, top, width, height } = this.frame, view = this.view;
    return {
      x: view.x[0] + ((x - left) / width) * length(view.x),
      y: view.y[1] - ((y - top) / height) * length(view.y),
    };
  }

  pointer(event) {
    const box = this.chart.getBoundingClientRect(), { left, top, width, height } = this.frame;
    return {
      x: Math.min(Math.max((event.clientX - box.left) / this.scale, left), left + width),
      y: Math.min(Math.max((event.clientY - box.top) / this.scale, top), top + height),
    };
  }

  visible(...kinds) { // of what is named in the legend
    return this.data.marks.filter((m) => kinds.includes(m.kind) && m.key !== null && !this.hidden.has(m.key));
  }

  draw() {
    const { left, top, width, height } = this.frame, { x, y } = this.view, all = this.data;
    const across = length(x) / length(all.x), up = length(y) / length(all.y);
    const start = left + ((x[0] - all.x[0]) / length(all.x)) * width;
    const upper = top + ((all.y[1] - y[1]) / length(all.y)) * height;
    this.plot.setAttribute("viewBox", [start, upper, width * across, height * up].join(" "));
    this.plot.setAttribute("overflow", this.state.view ? "hidden" : "visible");
    for (const pin of this.plot.querySelectorAll(".pin")) { // arrowheads and words keep their size
      const { e, f } = pin.transform.baseVal.getItem(0).matrix;
      pin.setAttribute("transform", `translate(${e} ${f}) scale(${across} ${up})`);
    }
    for (const part of this.plot.querySelectorAll("[data-key]")) {
      part.setAttribute("display", this.hidden.has(Number(part.dataset.key)) ? "none" : "inline");
    }
    this.axes.replaceChildren(...(this.state.view ? this.ticks() : this.whole));
    this.hide();
    this.changed();
  }

  ticks() {
    const { left, top, width, height } = this.frame, right = left + width, bottom = top + height;
    const parts = [svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom })];
    for (const tick of ticks(this.view.y)) {
      const y = this.toY(tick);
      parts.push(svg("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }));
      parts.push(svg("text", { class: "tick end", x: left - 7, y: y + 3.5 }, tickText(tick)));
    }
    for (const tick of ticks(this.view.x)) {
      const x = this.toX(tick);
      if (this.data.upright) parts.push(svg("line", { class: "grid", x1: x, x2: x, y1: top, y2: bottom }));
      parts.push(svg("text", { class: "tick middle", x, y: bottom + 16 }, tickText(tick)));
    }
    return parts;
  }

  // Looking closely.

  zoom(x, y) {
    const { data } = this, within = (part, all) => [Math.max(part[0], all[0]), Math.min(part[1], all[1])];
    const view = { x: within(x, data.x), y: within(y, data.y) };
    if (!["x", "y"].every((axis) => length(view[axis]) > 1e-4 * length(data[axis]))) return; // close enough
    const all = ["x", "y"].every((axis) => length(view[axis]) === length(data[axis]));
    this.state.view = all ? null : view;
    this.draw();
  }

  reset() {
    this.state.view = null;
    this.draw();
  }

  select(from, to) {
    const a = this.valueAt(from), b = this.valueAt(to), x = inOrder(a.x, b.x), y = inOrder(a.y, b.y);
    if (this.lines) return this.zoom(x, this.heightOf(x));
    if (!this.data.square) return this.zoom(x, y);
    const part = Math.max(length(x) / length(this.view.x), length(y) / length(this.view.y));
    return this.magnify(part, { x: (x[0] + x[1]) / 2, y: (y[0] + y[1]) / 2 }, 0.5);
  }

  heightOf([low, high]) { // what the lines need between two values of x
    if (low <= this.data.x[0] && high >= this.data.x[1]) return this.data.y;
    const points = this.visible("line").flatMap((mark) => mark.points);
    const ends = points.filter(([x, y]) => y !== null && x >= low && x <= high);
    if (!ends.length) return this.view.y;
    const least = Math.min(...ends.map(([, y, spread]) => y - spread));
    const most = Math.max(...ends.map(([, y, spread]) => y + spread));
    const room = 0.08 * (most - least) || 0.05 * length(this.data.y);
    return [least - room, most + room];
  }

  magnify(part, about, share) { // keeping a place where it is, or, with a share of 1/2, taking it to the middle
    const around = (span, value) => {
      const before = share ?? (value - span[0]) / length(span);
      return [value - before * part * length(span), value + (1 - before) * part * length(span)];
    };
    const x = around(this.view.x, about.x);
    this.zoom(x, this.lines ? this.heightOf(x) : around(this.view.y, about.y));
  }

  // Reading values off.

  show(at) {
    const found = this.lines ? this.column(at) : this.nearest(at);
    if (!found.points.length) return this.hide();
    this.clear();
    this.read = found;
    const { top, height } = this.frame, x = this.toX(found.x), cross = svg("g", { class: "cross" });
    if (this.lines) cross.append(svg("line", { class: "axis", x1: x, x2: x, y1: top, y2: top + height }));
    for (const { mark, point } of found.points) {
      const colour = this.plot.querySelector(`[data-key="${mark.key}"]`).getAttribute("class");
      cross.append(svg("circle", { class: `spot ${colour}`, cx: this.toX(point[0]), cy: this.toY(point[1]), r: 3.5 }));
    }
    this.chart.append(cross);
    const [{ mark, point }] = found.points, counts = new Set(found.points.map(({ point: [, , , n] }) => n));
    const alike = counts.size === 1 && point[3] > 1 ? `, n = ${point[3]}` : "";
    const head = this.lines ? `${this.data.x_label} ${shown(found.x)}${alike}` : mark.name;
    const entries = found.points.map((entry) => this.entry(entry, !alike));
    this.says.replaceChildren(html("strong", {}, head), ...entries);
    this.says.classList.add("on");
    const wide = this.says.offsetWidth, late = x > this.size.width / 2;
    const side = late ? x * this.scale - 12 - wide : x * this.scale + 12;
    this.says.style.left = `${Math.max(0, Math.min(side, this.place.clientWidth - wide))}px`;
    this.says.style.top = `${top * this.scale}px`;
  }

  entry({ mark, point: [x, y, spread, n] }, count) {
    if (!this.lines) return html("div", {}, `${this.data.x_label} ${shown(x)}, ${this.data.y_label} ${shown(y)}`);
    const entry = this.place.closest("figure").querySelector(`.legend [data-key="${mark.key}"] .swatch`);
    const error = n > 1 ? html("small", {}, ` ± ${shown(spread, 2)}${count ? `, n = ${n}` : ""}`) : "";
    return html("div", {}, entry.cloneNode(true), html("span", {}, mark.name), html("b", {}, shown(y), error));
  }

  column(at) { // the values of all lines at the x that is nearest
    const lines = this.visible("line"), [low, high] = this.view.x, wanted = this.valueAt(at).x;
    const places = lines.flatMap((mark) => mark.points.map(([x]) => x)).filter((x) => x >= low && x <= high);
    if (!places.length) return { points: [] };
    const x = places.reduce((best, place) => (Math.abs(place - wanted) < Math.abs(best - wanted) ? place : best));
    const here = (mark) => mark.points.filter((point) => point[0] === x && point[1] !== null);
    const points = lines.flatMap((mark) => here(mark).map((point) => ({ mark, point })));
    return { x, points: points.sort((a, b) => b.point[1] - a.point[1]) };
  }

  nearest(at) { // the one dot or arrowhead under the pointer
    let best = { far: 24, points: [] };
    for (const mark of this.visible("line", "cloud", "arrow")) {
      for (const point of mark.kind === "arrow" ? mark.points.slice(1) : mark.points) {
        const far = point[1] === null ? Infinity : Math.hypot(this.toX(point[0]) - at.x, this.toY(point[1]) - at.y);
        if (far < best.far) best = { far, x: point[0], points: [{ mark, point }] };
      }
    }
    return best;
  }

  clear() {
    this.chart.querySelectorAll(".cross, .part").forEach((node) => node.remove());
  }

  hide() {
    this.clear();
    this.read = null;
    this.says.classList.remove("on");
  }

  step(direction) { // to the next value, by keyboard
    const places = this.visible("line").flatMap((mark) => mark.points.map(([x]) => x));
    const now = this.read?.x ?? direction * -Infinity;
    const next = places.filter((x) => direction * (x - now) > 0).sort((a, b) => direction * (a - b))[0];
    if (next !== undefined) this.show({ x: this.toX(next), y: 0 });
  }

  // What the reader does.

  listen() {
    const { chart } = this;
    let from = null; // where a drag began
    const on = (name, act) => chart.addEventListener(name, act, { passive: false });
    chart.setAttribute("tabindex", "0");
    on("pointerdown", (event) => {
      if (event.pointerType !== "mouse") return this.show(this.pointer(event)); // a finger reads; two of them zoom
      if (event.button !== 0) return;
      from = this.pointer(event);
      chart.setPointerCapture(event.pointerId);
    });
    on("pointermove", (event) => (from ? this.mark(from, this.pointer(event)) : this.show(this.pointer(event))));
    on("pointerup", (event) => {
      const to = this.pointer(event), far = from ? Math.hypot(to.x - from.x, to.y - from.y) : 0;
      if (far > 6) this.select(from, to);
      from = null;
    });
    on("pointercancel", () => {
      from = null;
      this.hide();
    });
    on("pointerleave", (event) => {
      if (!from && event.pointerType === "mouse") this.hide(); // what a finger has shown stays
    });
    on("blur", () => this.hide());
    on("dblclick", () => this.reset());
    on("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      this.magnify(1.002 ** event.deltaY, this.valueAt(this.pointer(event)));
    });
    const { left, top, width, height } = this.frame;
    const middle = () => this.valueAt({ x: left + width / 2, y: top + height / 2 });
    const about = () => ({ ...middle(), ...(this.read && { x: this.read.x }) });
    const keys = {
      ArrowRight: () => this.step(1),
      ArrowLeft: () => this.step(-1),
      "+": () => this.magnify(1 / 2, about()),
      "-": () => this.magnify(2, about()),
      Escape: () => this.reset(),
    };
    on("keydown", (event) => {
      if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      keys[event.key]();
    });
  }

  mark(from, to) { // the part that a drag has gone over
    const { top, height } = this.frame, x = inOrder(from.x, to.x);
    const y = this.lines ? [top, top + height] : inOrder(from.y, to.y);
    this.hide();
    this.chart.append(svg("rect", { class: "part", x: x[0], y: y[0], width: length(x), height: length(y) }));
  }
}
