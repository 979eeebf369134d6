// Source files beside the graph; lines are tinted by the bytes that they send, else by those that they make.

import { h, human, replace } from "./dom.js";

const ROW = 18; // pixels, as in page.css
const MARGIN = 20;

export function sources(folding, sentByPlace, short) {
  const { program } = folding;
  const files = program.data.sources;
  const lines = h("div", { class: "rows" });
  const view = h("div", { class: "code", tabindex: 0, role: "region", "aria-label": "Source lines", onscroll: show }, lines);
  const choice = h("select", { "aria-label": "Source file", onchange: () => open(Number(choice.value), 1) },
    files.map((file, i) => h("option", { value: i }, short(file.path))));
  const panel = h("section", { class: "sources", "aria-label": "Source" },
    files.length ? h("div", { class: "bar" }, choice, h("span", { class: "note" }, "tinted by bytes sent (red), else made (amber)")) : null,
    files.length ? view : h("p", { class: "note" }, "The report has no sources: their files were not read."));
  const held = new Map();
  for (const [where, operations] of program.byPlace) held.set(where, operations.reduce((sum, op) => sum + program.held(op), 0));
  const most = { sent: Math.max(1, ...sentByPlace.values()), held: [...held.values()].reduce((a, b) => Math.max(a, b), 1) };
  let file = 0;
  let marked = -1;

  function open(number, line) {
    file = number;
    marked = line;
    choice.value = String(number);
    lines.style.height = `${files[file].lines.length * ROW}px`;
    const top = (line - 1) * ROW;
    if (top < view.scrollTop || top > view.scrollTop + view.clientHeight - 3 * ROW) view.scrollTop = Math.max(top - view.clientHeight / 2, 0);
    show();
  }

  function show() {
    if (!files.length) return;
    const { path, lines: texts } = files[file];
    const first = Math.max(Math.floor(view.scrollTop / ROW) - MARGIN, 0);
    const last = Math.min(first + Math.ceil((view.clientHeight || 400) / ROW) + 2 * MARGIN, texts.length);
    replace(lines, texts.slice(first, last).map((text, i) => {
      const number = first + i + 1;
      const where = `${path}:${number}`;
      const [sent, made] = [sentByPlace.get(where) ?? 0, held.get(where) ?? 0];
      const note = sent ? `${human(sent)} sent` : made ? human(made) : "";
      const choose = () => pick(where, number);
      const row = h(note ? "button" : "div", { class: ["line", number === marked ? "marked" : ""].join(" "), type: note ? "button" : null, onclick: note ? choose : null,
        "aria-label": note ? `line ${number}, ${note}: ${text}` : null },
        h("span", { class: "number" }, String(number)), h("span", { class: "text" }, text), h("span", { class: "note" }, note));
      row.style.top = `${(number - 1) * ROW}px`;
      const share = sent ? Math.log(1 + sent) / Math.log(1 + most.sent) : made ? Math.log(1 + made) / Math.log(1 + most.held) : 0;
      if (share) row.style.backgroundColor = `hsl(${sent ? 350 : 36} 90% 50% / ${(sent ? 0.15 + 0.3 * share : 0.02 + 0.2 * share).toFixed(2)})`;
      return row;
    }));
  }

  /** Selects the operations of a line, one after the other. */
  function pick(where, number) {
    const operations = program.byPlace.get(where) ?? [];
    marked = number;
    if (operations.length) {
      const at = operations.indexOf(folding.selected);
      folding.find(operations);
      folding.select(operations[(at + 1) % operations.length]);
    }
    show();
  }

  function go(where) {
    const cut = (where ?? "").lastIndexOf(":");
    const number = files.findIndex((f) => f.path === where?.slice(0, cut));
    if (number >= 0) open(number, Number(where.slice(cut + 1)));
    return number >= 0;
  }

  folding.addEventListener("select", () => {
    if (folding.selected >= 0 && folding.selected < program.count) go(program.where(folding.selected));
  });
  new ResizeObserver(show).observe(view);
  if (files.length) open(0, -1);
  return { panel, go };
}
