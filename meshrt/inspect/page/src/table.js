// A table of which only the rows in sight are elements: sorted by its heads, filtered by text and by choices.

import { counted, h, replace } from "./dom.js";

const ROW = 27; // pixels, as in page.css
const MARGIN = 12; // rows above and below those in sight

/**
 * `columns` are {name, value(row), text(row)?, right?: bool, choices?: bool, wide?: bool}; `choose(row)` is called for
 * the row that was clicked or entered. Columns with `choices` get a list to filter by.
 */
export function table({ label, columns, rows, choose, sort = null, height = null }) {
  const state = { sort, text: "", chosen: new Map(), rows, active: 0 };
  const text = (column, row) => String(column.text ? column.text(row) : column.value(row) ?? "");
  const body = h("tbody");
  const count = h("span", { class: "note", role: "status" });
  const heads = columns.map((column, i) =>
    h("th", { scope: "col", class: [column.right ? "right" : "", column.wide ? "wide" : "", column.choices ? "named" : ""].join(" ") },
      h("button", { type: "button", onclick: () => sortBy(i) }, column.name, h("span", { class: "arrow", "aria-hidden": "true" })))
  );
  const grid = h("table", { "aria-label": label, "aria-rowcount": rows.length + 1 },
    h("thead", null, h("tr", { "aria-rowindex": 1 }, heads)), body);
  const scroller = h("div", { class: "scroller", tabindex: 0, role: "region", "aria-label": label, onscroll: show, onkeydown: key }, grid);
  if (height) scroller.style.maxHeight = height;
  const search = h("input", {
    type: "search", placeholder: "Filter", "aria-label": `Filter ${label}`,
    oninput: () => { state.text = search.value.toLowerCase(); update(); },
  });
  const selects = columns.filter((c) => c.choices).map((column) => {
    const options = [...new Set(rows.map((row) => text(column, row)))].sort();
    const select = h("select", {
      "aria-label": `${label}: ${column.name}`,
      onchange: () => { state.chosen.set(column, select.value); update(); },
    }, h("option", { value: "" }, `any ${column.name}`), options.map((o) => h("option", { value: `=${o}` }, o)));
    return select;
  });

  function sortBy(i) {
    const down = state.sort?.column === i ? !state.sort.down : Boolean(columns[i].right);
    state.sort = { column: i, down };
    update();
  }

  function update() {
    state.rows = rows.filter((row) => {
      for (const [column, value] of state.chosen) if (value && `=${text(column, row)}` !== value) return false;
      return !state.text || columns.some((c) => text(c, row).toLowerCase().includes(state.text));
    });
    if (state.sort) {
      const { column, down } = state.sort;
      const value = columns[column].value;
      const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a ?? "").localeCompare(String(b ?? "")));
      state.rows.sort((a, b) => (down ? order(value(b), value(a)) : order(value(a), value(b))));
    }
    heads.forEach((head, i) => {
      const is = state.sort?.column === i;
      head.setAttribute("aria-sort", is ? (state.sort.down ? "descending" : "ascending") : "none");
      head.querySelector(".arrow").textContent = is ? (state.sort.down ? " ▼" : " ▲") : "";
    });
    grid.setAttribute("aria-rowcount", state.rows.length + 1);
    count.textContent = state.rows.length === rows.length ? counted(rows.length, "row") : `${state.rows.length} of ${counted(rows.length, "row")}`;
    state.active = Math.min(state.active, Math.max(state.rows.length - 1, 0));
    show();
  }

  function show() {
    const sight = scroller.clientHeight || 600;
    const first = Math.max(Math.floor(scroller.scrollTop / ROW) - MARGIN, 0);
    const last = Math.min(first + Math.ceil(sight / ROW) + 2 * MARGIN, state.rows.length);
    const space = (n) => (n ? [h("tr", { class: "space", "aria-hidden": "true" }, h("td", { colspan: columns.length }))] : []);
    const above = space(first);
    const below = space(state.rows.length - last);
    if (above.length) above[0].style.height = `${first * ROW}px`;
    if (below.length) below[0].style.height = `${(state.rows.length - last) * ROW}px`;
    const shown = state.rows.slice(first, last).map((row, i) => element(row, first + i));
    const hadFocus = body.contains(document.activeElement);
    replace(body, above, shown, below);
    if (hadFocus) shown[state.active - first]?.focus({ preventScroll: true });
  }

  function element(row, number) {
    const cells = columns.map((column) => {
      const shown = text(column, row);
      return h("td", { class: [column.right ? "right" : "", column.wide ? "wide" : ""].join(" "), title: shown }, shown);
    });
    const pick = () => { state.active = number; choose?.(row); };
    return h("tr", {
      "aria-rowindex": number + 2, tabindex: number === state.active ? 0 : -1, class: choose ? "choosable" : "",
      onclick: pick, onfocus: () => (state.active = number),
      onkeydown: (event) => { if (event.key === "Enter" && choose) { event.preventDefault(); pick(); } },
    }, cells);
  }

  function key(event) {
    const page = Math.floor((scroller.clientHeight || 600) / ROW) - 1;
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || !state.rows.length) return;
    event.preventDefault();
    state.active = Math.min(Math.max(state.active + step, 0), state.rows.length - 1);
    const top = state.active * ROW;
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    else if (top + 2 * ROW > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = top + 2 * ROW - scroller.clientHeight;
    show();
    body.querySelector(`[aria-rowindex="${state.active + 2}"]`)?.focus({ preventScroll: true });
  }

  update();
  return h("div", { class: "table" }, h("div", { class: "bar" }, rows.length > 8 ? search : null, selects, count), scroller);
}
