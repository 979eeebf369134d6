// A value's sharding drawn over the mesh: devices as cells, equal colours where they hold the same part.

import { h, s } from "./dom.js";

const MOST = 256; // devices drawn
const LISTED = 64; // devices told in words

/** The shape in a type's text: [128, 256] of `f32[128,256]`. */
export function shapeOf(type) {
  const inside = /\[([\d,]*)\]$/.exec(type);
  return inside && inside[1] ? inside[1].split(",").map(Number) : [];
}

/** The index of a device along an axis, or a part of one: `model:(1)2` is its first factor of 2. */
function along(axis, mesh, coordinates) {
  const part = /^(.*):\((\d+)\)(\d+)$/.exec(axis);
  const name = part ? part[1] : axis;
  const at = mesh.findIndex(([n]) => n === name);
  const size = mesh[at][1];
  if (!part) return [coordinates[at], size];
  const [before, own] = [Number(part[2]), Number(part[3])];
  return [Math.floor(coordinates[at] / (size / (before * own))) % own, own];
}

/** The part that a device holds: [[begin, end]] per dimension. */
export function partOf(shape, axes, mesh, device) {
  const coordinates = [];
  for (let i = mesh.length - 1, rest = device; i >= 0; i--) {
    coordinates[i] = rest % mesh[i][1];
    rest = Math.floor(rest / mesh[i][1]);
  }
  return shape.map((size, d) => {
    let [index, count] = [0, 1];
    for (const axis of axes[d] ?? []) {
      const [at, of] = along(axis, mesh, coordinates);
      [index, count] = [index * of + at, count * of];
    }
    const each = Math.ceil(size / count);
    return [Math.min(index * each, size), Math.min((index + 1) * each, size)];
  });
}

const sliceText = (part) => `[${part.map(([a, b]) => `${a}:${b}`).join(", ")}]`;

/** The drawing, and the same in words. */
export function meshDrawing(mesh, type, axes) {
  const shape = shapeOf(type);
  const devices = mesh.reduce((n, [, size]) => n * size, 1);
  const shown = Math.min(devices, MOST);
  const last = mesh.length ? mesh[mesh.length - 1][1] : 1;
  const columns = mesh.length > 1 && last <= 32 ? last : Math.min(devices, 16);
  const parts = Array.from({ length: shown }, (_, d) => sliceText(partOf(shape, axes, mesh, d)));
  const different = [...new Set(parts)];
  const [width, height] = [Math.max(Math.min(52, 420 / columns), 12), 26];
  const cells = parts.map((part, d) => {
    const [x, y] = [(d % columns) * width, Math.floor(d / columns) * height];
    const rect = s("rect", { x: x + 1, y: y + 1, width: width - 2, height: height - 2, rx: 3, class: "device" },
      s("title", null, `device ${d} holds ${part}`));
    rect.style.fill = different.length === 1 ? "var(--same)" : `hsl(${(different.indexOf(part) * 360) / different.length} 55% var(--lightness))`;
    const label = width < 18 ? null : s("text", { x: x + width / 2, y: y + height / 2 + 4, "text-anchor": "middle" }, String(d));
    return [rect, label];
  });
  const words = different.length === 1
    ? devices === 1 ? "One device holds the whole value." : `All ${devices} devices hold the whole value.`
    : `${devices} devices hold ${different.length}${shown < devices ? " or more" : ""} different parts; equal colours are equal parts.`;
  const axesText = mesh.map(([n, size]) => `${n}=${size}`).join(", ");
  const more = shown < devices ? `, the first ${shown} drawn` : "";
  return h("figure", { class: "mesh" },
    s("svg", { role: "img", "aria-label": `${words} Mesh ${axesText}${more}`, width: columns * width, height: Math.ceil(shown / columns) * height }, cells.flat().filter(Boolean)),
    h("figcaption", null, `${words} Mesh ${axesText}${more}.`),
    h("details", null, h("summary", null, "Parts by device"),
      h("ul", null, parts.slice(0, LISTED).map((part, d) => h("li", null, `device ${d}: ${part}`)),
        devices > LISTED ? h("li", null, `and ${devices - LISTED} more`) : null)));
}
