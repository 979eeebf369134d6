// The program as a tree of texts beside the graph: everything that the graph shows, for keyboards and screen readers.

import { counted, h, human, replace, unique } from "./dom.js";

const ROW = 24; // pixels, as in page.css
const MARGIN = 10;

export function outline(folding) {
  const id = unique("outline");
  let rows = [];
  let active = 0;
  const list = h("div", { class: "rows" });
  const tree = h("div", {
    class: "outline", role: "tree", tabindex: 0, "aria-label": "Outline of the program", onscroll: show, onkeydown: key,
  }, list);

  function update() {
    const kept = rows[active]?.node;
    rows = folding.visible();
    const again = rows.findIndex((row) => row.node === kept);
    active = again >= 0 ? again : Math.min(active, Math.max(rows.length - 1, 0));
    show();
  }

  function show() {
    const { tree: groups } = folding;
    const sight = tree.clientHeight || 600;
    const first = Math.max(Math.floor(tree.scrollTop / ROW) - MARGIN, 0);
    const last = Math.min(first + Math.ceil(sight / ROW) + 2 * MARGIN, rows.length);
    list.style.height = `${rows.length * ROW}px`;
    replace(list, rows.slice(first, last).map((row, i) => {
      const { node, depth, position, size } = row;
      const isGroup = groups.isGroup(node);
      const isOpen = folding.open.has(node);
      const total = groups.total(node);
      const note = isGroup ? `${counted(total.operations, "operation")}, ${human(total.held)}` : human(total.held);
      const item = h("div", {
        id: `${id}-${node}`, role: "treeitem", "aria-level": depth + 1, "aria-posinset": position, "aria-setsize": size,
        "aria-expanded": isGroup ? String(isOpen) : null, "aria-selected": String(node === folding.selected),
        class: ["row", first + i === active ? "active" : "", folding.found.has(node) ? "found" : ""].join(" "),
        onclick: (event) => {
          active = first + i;
          if (isGroup && event.target.classList.contains("twisty")) folding.toggle(node);
          else folding.select(node);
        },
        ondblclick: () => folding.toggle(node),
      }, h("span", { class: "twisty", "aria-hidden": "true" }, isGroup ? (isOpen ? "▾" : "▸") : ""),
        h("span", { class: "name" }, groups.name(node)), h("span", { class: "note" }, note));
      item.style.top = `${(first + i) * ROW}px`;
      item.style.paddingLeft = `${depth * 14 + 4}px`;
      return item;
    }));
    if (rows.length) tree.setAttribute("aria-activedescendant", `${id}-${rows[active].node}`);
  }

  function go(number) {
    active = Math.min(Math.max(number, 0), rows.length - 1);
    const top = active * ROW;
    if (top < tree.scrollTop) tree.scrollTop = top;
    else if (top + ROW > tree.scrollTop + tree.clientHeight) tree.scrollTop = top + ROW - tree.clientHeight;
    show();
  }

  function key(event) {
    const row = rows[active];
    if (!row) return;
    const isOpen = folding.open.has(row.node);
    const page = Math.max(Math.floor(tree.clientHeight / ROW) - 1, 1);
    const actions = {
      ArrowDown: () => go(active + 1), ArrowUp: () => go(active - 1), PageDown: () => go(active + page), PageUp: () => go(active - page),
      Home: () => go(0), End: () => go(rows.length - 1),
      ArrowRight: () => (folding.tree.isGroup(row.node) && !isOpen ? folding.toggle(row.node) : isOpen && go(active + 1)),
      ArrowLeft: () => (isOpen ? folding.toggle(row.node) : go(rows.findIndex((r) => r.node === folding.tree.parents[row.node]))),
      Enter: () => folding.select(row.node),
      " ": () => (folding.tree.isGroup(row.node) ? folding.toggle(row.node) : folding.select(row.node)),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  folding.addEventListener("fold", update);
  folding.addEventListener("select", (event) => {
    const at = rows.findIndex((row) => row.node === folding.selected);
    if (at >= 0 && event.detail.center) go(at);
    else show();
  });
  new ResizeObserver(show).observe(tree);
  update();
  return tree;
}
