// What the second of two reports has otherwise than the first.

import { h, human } from "./dom.js";
import { table } from "./table.js";

const plain = (value) => (value === null ? "-" : typeof value === "number" ? human(value) : String(value));

/** `short` is how places are written. */
export function changes(found, short) {
  const same = !found.figures.length && !found.shardings.length && !found.collectives.length;
  const beforeAfter = (name, rows, show) => rows.length ? h("div", null, h("h3", null, name), table({
    label: name, rows, height: "30vh",
    columns: [
      { name: "what", value: (r) => r.what, wide: true },
      { name: "before", value: (r) => show(r, r.before), wide: true }, { name: "after", value: (r) => show(r, r.after), wide: true },
    ],
  })) : null;
  return h("section", { class: "changes pad", "aria-label": "What changed" },
    h("h2", null, "What changed"),
    same ? h("p", null, "Shardings, communication and memory are the same.") : null,
    beforeAfter("Figures", found.figures, (row, value) => (row.what === "devices" ? String(value) : plain(value))),
    found.collectives.length ? h("div", null, h("h3", null, "Collectives"), table({
      label: "Changed collectives", rows: found.collectives, height: "30vh", sort: { column: 4, down: true },
      columns: [
        { name: "kind", value: (r) => r.kind, choices: true }, { name: "axes", value: (r) => r.axes || "-" },
        { name: "run", value: (r) => r.count[1] - r.count[0], text: (r) => `${r.count[0]} → ${r.count[1]}`, right: true },
        { name: "sent", value: (r) => r.bytes[1], text: (r) => `${human(r.bytes[0])} → ${human(r.bytes[1])}`, right: true },
        { name: "growth", value: (r) => r.bytes[1] - r.bytes[0], text: (r) => human(r.bytes[1] - r.bytes[0]), right: true },
        { name: "source", value: (r) => short(r.where ?? "-"), wide: true }, { name: "cause", value: (r) => r.cause, wide: true },
        ...(found.collectives.some((r) => r.because.length) ? [{ name: "because of", value: (r) => r.because.map(short).join("; "), wide: true }] : []),
      ],
    })) : null,
    beforeAfter("Shardings", found.shardings, (_, value) => plain(value)));
}
