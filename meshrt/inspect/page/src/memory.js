// What a device holds over the course of the program, and what that is when it is most.

import { scaleLinear } from "d3-scale";

import { h, human, s } from "./dom.js";
import { table } from "./table.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [860, 240, 84, 26];

export function memory(report, short, choose) {
  const found = report.memory;
  if (!found) return h("p", { class: "note" }, "The report has no memory plan.");
  const { moments } = found;
  const x = scaleLinear([0, Math.max(moments.length - 1, 1)], [LEFT, WIDTH - 10]);
  const y = scaleLinear([0, Math.max(found.peak_bytes * 1.05, 1)], [HEIGHT - BOTTOM, 12]);
  // Round numbers of bytes are powers of two.
  const unit = 1024 ** Math.floor(Math.log(Math.max(found.peak_bytes, 1)) / Math.log(1024));
  const ticks = scaleLinear([0, found.peak_bytes / unit], [0, 1]).ticks(4).map((tick) => tick * unit);
  const steps = moments.map((m, i) => `${i ? "L" : "M"}${x(i).toFixed(1)},${y(m.bytes).toFixed(1)}`).join("");
  const area = moments.length ? `${steps}L${x(moments.length - 1).toFixed(1)},${y(0)}L${LEFT},${y(0)}Z` : "";
  const kept = found.argument_bytes + found.result_bytes;
  const cursor = s("line", { class: "cursor", y1: 12, y2: HEIGHT - BOTTOM });
  const peak = moments.reduce((best, m, i) => (m.bytes > moments[best].bytes ? i : best), 0);
  const said = h("output", { class: "moment", "aria-live": "polite" });
  const slider = h("input", { type: "range", min: 0, max: Math.max(moments.length - 1, 0), value: peak, "aria-label": "Moment of the program", oninput: () => at(Number(slider.value)) });
  const drawing = s("svg", { class: "timeline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
    "aria-label": `Memory over time: at most ${human(found.peak_bytes)}, at moment ${peak + 1} of ${moments.length}.` },
    ticks.map((tick) => s("g", null, s("line", { class: "rule", x1: LEFT, x2: WIDTH - 10, y1: y(tick), y2: y(tick) }),
      s("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, human(tick)))),
    s("path", { class: "area", d: area }), s("path", { class: "outline-of-area", d: steps }),
    s("rect", { class: "kept", x: LEFT, y: y(kept), width: WIDTH - 10 - LEFT, height: Math.max(y(0) - y(kept), 0) }),
    s("text", { x: LEFT + 6, y: y(kept) - 4 }, `arguments and results ${human(kept)}`),
    moments.length ? s("circle", { class: "peak", cx: x(peak), cy: y(moments[peak].bytes), r: 4 }) : null,
    s("text", { x: WIDTH - 10, y: HEIGHT - 6, "text-anchor": "end" }, "the program, in order"), cursor);
  const seek = (event) => {
    const bounds = drawing.getBoundingClientRect();
    const i = Math.round(x.invert(((event.clientX - bounds.left) * WIDTH) / bounds.width));
    slider.value = String(Math.min(Math.max(i, 0), moments.length - 1));
    at(Number(slider.value));
  };
  drawing.addEventListener("pointermove", seek);
  drawing.addEventListener("click", () => moments.length && choose(moments[Number(slider.value)].where));

  function at(i) {
    const moment = moments[i];
    if (!moment) return;
    cursor.setAttribute("x1", x(i));
    cursor.setAttribute("x2", x(i));
    const text = `${human(moment.bytes)} in ${moment.what} (${short(moment.where ?? "-")})`;
    said.textContent = i === peak ? `${text}: the peak` : text;
    slider.setAttribute("aria-valuetext", said.textContent);
  }
  at(peak);

  return h("div", { class: "pad" },
    h("p", null, `${human(found.peak_bytes)} at most per device: ${human(found.argument_bytes)} arguments, ${human(found.result_bytes)} results, ${human(found.temporary_bytes)} in between. Estimated before a compiler fuses and reorders.`),
    drawing, h("div", { class: "seek" }, slider, said),
    h("h3", null, "Held at the peak"),
    table({
      label: "Held at the peak", rows: found.alive, sort: { column: 3, down: true }, height: "50vh",
      choose: (row) => row.where && choose(row.where),
      columns: [
        { name: "what", value: (r) => r.what, wide: true }, { name: "type", value: (r) => r.type, wide: true },
        { name: "count", value: (r) => r.count, right: true },
        { name: "bytes", value: (r) => r.bytes, text: (r) => human(r.bytes), right: true },
        { name: "source", value: (r) => short(r.where ?? "-"), wide: true },
      ],
    }));
}
