// Tables: a click on a head sorts, a second one the other way round, a third restores the order.

const NUMBER = /^[+−-]?(\d+\.?\d*|\.\d+)(e[+−-]?\d+)?(?=$|[\s(†])/i;

function sortKey(cell) {
  const text = cell?.textContent.trim() ?? "";
  if (!text || /^(X|–|—)($|\s)/.test(text)) return null; // missing
  const number = text.match(NUMBER); // what follows it, such as ± 0.3, is ignored
  return number ? Number(number[0].replaceAll("−", "-")) : text;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

function setUpTable(table) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const state = memory(table, { column: -1, direction: 0 });

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
    const numeric = rows.some((row) => typeof sortKey(row.cells[column]) === "number");
    const first = numeric && column ? -1 : 1; // of numbers, the largest are asked for first
    const sorter = button(head.textContent, "Sort", () => {
      const next = state.column !== column ? first : state.direction === first ? -first : 0;
      Object.assign(state, { column: next ? column : -1, direction: next });
      sort();
    });
    head.replaceChildren(sorter);
  });
  sort();

  const figure = table.closest("figure"), data = figure?.querySelector(":scope > script");
  const { name, csv: given } = data ? JSON.parse(data.textContent) : { name: "list" };
  const seen = () => csv([...table.rows].map((row) => [...row.cells].map((cell) => cell.innerText)));
  const save = button("↓ CSV", "Download this table", () => download(`${name}.csv`, "text/csv", given ?? seen()));
  const tools = html("div", { class: "tools" }, save);
  if (figure) figure.querySelector(".head").append(tools);
  else table.closest(".scroll").before(tools);
}
