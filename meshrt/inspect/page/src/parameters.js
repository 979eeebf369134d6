// Arguments and results as a tree by their paths, with totals.

import { counted, h, human, replace } from "./dom.js";

export function parameters(rows, label) {
  const root = { name: "", path: "", children: new Map(), rows: 0, global: 0, device: 0 };
  for (const row of rows) {
    let at = root;
    const parts = row.path.split("/");
    [root, ...parts].forEach((part, i) => {
      if (i) {
        if (!at.children.has(part)) at.children.set(part, { name: part, path: parts.slice(0, i).join("/"), children: new Map(), rows: 0, global: 0, device: 0 });
        at = at.children.get(part);
      }
      at.rows += 1;
      at.global += row.global_bytes;
      at.device += row.device_bytes;
    });
    at.row = row;
  }
  const open = new Set();
  // Unfolded from the start as far as it fits a screen.
  const unfold = (node, left) => {
    for (const child of node.children.values()) {
      if (child.children.size && child.children.size <= left) {
        open.add(child.path);
        unfold(child, left - child.children.size);
      }
    }
  };
  unfold(root, 40);
  const body = h("tbody");

  function lines(node, depth, out) {
    for (const child of node.children.values()) {
      const isGroup = child.children.size > 0;
      const isOpen = open.has(child.path);
      const toggle = () => {
        if (!open.delete(child.path)) open.add(child.path);
        const at = [...body.children].findIndex((row) => row.contains(document.activeElement));
        update();
        body.children[at]?.querySelector("button")?.focus();
      };
      const name = isGroup
        ? h("button", { type: "button", class: "fold", "aria-expanded": String(isOpen), onclick: toggle }, `${isOpen ? "▾" : "▸"} ${child.name}`)
        : h("span", { class: "leaf" }, child.name);
      const cell = h("td", null, name);
      cell.style.paddingLeft = `${depth * 18 + 8}px`;
      const row = child.row;
      out.push(h("tr", { "aria-level": depth + 1, class: isGroup ? "group" : "" }, cell,
        h("td", null, isGroup ? counted(child.rows, "array") : row.type), h("td", null, isGroup ? "" : row.sharding),
        h("td", null, isGroup ? "" : row.device_type), h("td", { class: "right" }, human(child.global)), h("td", { class: "right" }, human(child.device))));
      if (isOpen) lines(child, depth + 1, out);
    }
    return out;
  }

  const update = () => replace(body, lines(root, 0, []));
  update();
  return h("div", null, h("h3", null, label),
    h("table", { class: "tree", role: "treegrid", "aria-label": label },
      h("thead", null, h("tr", null, ["name", "type", "sharding", "per device"].map((n) => h("th", { scope: "col" }, n)),
        ["bytes", "bytes per device"].map((n) => h("th", { scope: "col", class: "right" }, n)))),
      body, h("tfoot", null, h("tr", null, h("td", null, "total"), h("td", null, counted(root.rows, "array")), h("td"), h("td"), h("td", { class: "right" }, human(root.global)), h("td", { class: "right" }, human(root.device))))));
}
