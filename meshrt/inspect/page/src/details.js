// What is known of the operation or group that is selected: its values, their shardings over the mesh, and why.

import { counted, h, human, replace } from "./dom.js";
import { meshDrawing } from "./mesh.js";

/** `show(where)` shows a source line, `short(where)` is how places are written. */
export function details(folding, mesh, show, short) {
  const { program } = folding;
  const panel = h("section", { class: "details", "aria-label": "Details", "aria-live": "polite" });

  const jump = (op) => h("button", { type: "button", class: "link", onclick: () => folding.select(op) }, program.title(op));
  const source = (where) => (where ? h("button", { type: "button", class: "link", onclick: () => show(where) }, short(where)) : "unknown");
  const facts = (pairs) => h("dl", null, pairs.filter(([, v]) => v !== null && v !== "").flatMap(([k, v]) => [h("dt", null, k), h("dd", null, v)]));

  function update() {
    const node = folding.selected;
    if (node < 0) {
      return replace(panel, h("p", { class: "note" }, "Select an operation, in the graph or in the outline, to see its sharding and why it has it."));
    }
    const { tree } = folding;
    if (node >= program.count) {
      const total = tree.total(node);
      return replace(panel, h("h3", null, tree.name(node)),
        facts([["operations", String(total.operations)], ["made per device", human(total.held)]]),
        h("button", { type: "button", onclick: () => folding.toggle(node) }, folding.open.has(node) ? "Fold" : "Unfold"));
    }
    const operands = program.operations.operands[node];
    const results = program.operations.results[node];
    replace(panel, h("h3", null, program.title(node)),
      facts([["scope", program.scope(node)], ["function", `@${program.func(node)}`], ["source", source(program.where(node))]]),
      tree.isGroup(node) ? h("button", { type: "button", onclick: () => folding.toggle(node) }, folding.open.has(node) ? "Fold" : "Unfold") : null,
      results.length ? results.map((value, i) => valueFacts(value, results.length > 1 ? `Result ${i}` : "Result", i === 0)) : null,
      operands.length ? h("details", { open: operands.length <= 4 }, h("summary", null, `Operands (${operands.length})`),
        h("ol", null, operands.map((v) => h("li", null, program.maker[v] >= 0 ? jump(program.maker[v]) : "value", ` ${program.type(v)} ${program.sharding(v)}`)))) : null,
      users(results));
  }

  function users(results) {
    const readers = [...new Set(results.flatMap((v) => program.users[v]))];
    if (!readers.length) return null;
    return h("details", { open: readers.length <= 4 }, h("summary", null, `Read by (${readers.length})`),
      h("ol", null, readers.slice(0, 200).map((op) => h("li", null, jump(op), " ", source(program.where(op)))), readers.length > 200 ? h("li", null, `and ${readers.length - 200} more`) : null));
  }

  function valueFacts(value, title, isOpen) {
    const unreduced = program.unreduced(value);
    const content = [
      facts([
        ["type", program.type(value)], ["sharding", program.sharding(value)],
        ["unreduced over", unreduced], ["per device", program.part(value)],
        ["bytes", `${human(program.values.bytes[value])}, ${human(program.values.held[value])} per device`],
      ]),
      mesh.length ? meshDrawing(mesh, program.type(value), program.axes(value)) : null,
      why(value),
    ];
    const name = program.named(value);
    return h("details", { open: isOpen, class: "value" }, h("summary", null, name ? `${title} ${name}` : title), content);
  }

  function why(value) {
    const chains = program.why(value);
    if (!chains.length) return h("p", { class: "note" }, "No dimension is sharded: no annotation reaches it.");
    return chains.map(({ dim, axis, steps }) =>
      h("details", { class: "why", open: steps.length <= 6 },
        h("summary", null, `Why dimension ${dim} is split over ${axis} (${counted(steps.length, "step")})`),
        h("ol", null, steps.map((step) => h("li", null, short(step.text), " ", step.op >= 0 ? jump(step.op) : null)))));
  }

  folding.addEventListener("select", update);
  folding.addEventListener("fold", update);
  update();
  return panel;
}
