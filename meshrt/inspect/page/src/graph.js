// The graph on a canvas: only what lies in sight is drawn, and of that what is large enough to be seen.

import { select } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";

import { boxesOf } from "./boxes.js";
import { counted, h, hue, human } from "./dom.js";

const SMALLEST = 4; // pixels of a box whose inside is drawn
const READABLE = 0.45; // scale from which there are texts
const LONG = 700; // units from which an edge is drawn as two stubs unless one of its ends is selected
const MOST_EDGES = 6000; // drawn at once

/** What boxes are coloured by: name -> (view, node) -> [hue, saturation, share of colour]. */
const COLOURS = {
  "bytes held": ({ folding, most }, node) => {
    const { held } = folding.tree.total(node);
    return [28, 85, held ? Math.log(1 + held) / Math.log(1 + most) : 0];
  },
  sharding: ({ folding }, node) => {
    const { program } = folding;
    const [value] = node < program.count ? program.operations.results[node] : [];
    const text = value === undefined ? "" : program.sharding(value);
    return text === "" || text === "replicated" ? [0, 0, 0.2] : [hue(text), 60, 0.7];
  },
  "bytes sent": ({ sentBy, folding, mostSent }, node) => {
    const sent = sentBy(folding, node);
    return [350, 80, sent ? 0.25 + (0.75 * Math.log(1 + sent)) / Math.log(1 + mostSent) : 0];
  },
};
export const COLOUR_NAMES = Object.keys(COLOURS);

export class Graph {
  /** `sent` has the bytes that each operation's collectives send. */
  constructor(folding, sent) {
    this.folding = folding;
    this.sent = sent;
    this.colour = COLOUR_NAMES[0];
    this.sums = new Map();
    this.canvas = h("canvas", {
      class: "graph", tabindex: 0, role: "img",
      "aria-label": "Graph of the program. Arrow keys move it, plus and minus zoom, 0 shows all; the outline has the same as text.",
    });
    this.element = h("div", { class: "canvas" }, this.canvas);
    this.transform = zoomIdentity;
    this.zoom = zoom().scaleExtent([0.01, 4]).on("zoom", ({ transform }) => { this.transform = transform; this.soon(); });
    const surface = select(this.canvas).call(this.zoom).on("dblclick.zoom", null);
    this.moves = (method, ...rest) => surface.call(this.zoom[method], ...rest);
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("dblclick", (event) => {
      const box = this.hit(event);
      if (box) folding.toggle(box.node);
    });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    folding.addEventListener("fold", ({ detail }) => this.arrange(detail.whole));
    folding.addEventListener("select", ({ detail }) => {
      if (detail.center) this.centre(folding.selected);
      this.soon();
    });
    new ResizeObserver(() => this.resize()).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
    this.arrange(true);
  }

  /** Sizes anew what is unfolded, and shows the whole of it; else what was folded or selected stays where it is. */
  arrange(whole) {
    const anchor = this.boxes?.all.get(this.folding.anchor);
    const before = anchor && this.transform.apply([anchor.x, anchor.y]);
    this.boxes = boxesOf(this.folding);
    this.most = Math.max(1, ...this.folding.tree.top.map((n) => this.folding.tree.total(n).held));
    this.mostSent = Math.max(1, ...this.folding.tree.top.map((n) => this.sentBy(n)));
    const after = this.boxes.all.get(this.folding.anchor);
    if (!whole && before && after) {
      const k = this.transform.k;
      this.moves("transform", zoomIdentity.translate(before[0] - after.x * k, before[1] - after.y * k).scale(k));
    } else if (whole && this.width) this.fit();
    this.soon();
  }

  sentBy(node) {
    const { tree, program, name } = this.folding;
    const key = `${name} ${node}`;
    if (!this.sums.has(key)) {
      const own = node < program.count ? this.sent[node] : 0;
      this.sums.set(key, (tree.members.get(node) ?? []).reduce((sum, n) => sum + this.sentBy(n), own));
    }
    return this.sums.get(key);
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!width || !height) return;
    const first = !this.width;
    const ratio = window.devicePixelRatio || 1;
    [this.width, this.height] = [width, height];
    [this.canvas.width, this.canvas.height] = [width * ratio, height * ratio];
    if (first) this.fit();
    this.paint();
  }

  fit() {
    const { width, height } = this.boxes;
    const k = Math.min(1, (this.width - 40) / Math.max(width, 1), (this.height - 40) / Math.max(height, 1));
    // A program that is much higher than wide is shown from its beginning rather than as a thread.
    const scale = Math.max(k, Math.min(0.35, (this.width - 40) / Math.max(width, 1)));
    const top = Math.max((this.height - height * scale) / 2, 20);
    this.moves("transform", zoomIdentity.translate((this.width - width * scale) / 2, top).scale(scale));
  }

  centre(node) {
    const box = this.boxes.all.get(node);
    if (!box || !this.width) return;
    const k = Math.max(this.transform.k, 0.6);
    const y = box.inner ? Math.min(box.y + box.height / 2, box.y + this.height / k / 2 - 20) : box.y + box.height / 2;
    this.moves("transform", zoomIdentity.translate(this.width / 2 - (box.x + box.width / 2) * k, this.height / 2 - y * k).scale(k));
  }

  hit(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const [x, y] = this.transform.invert([event.clientX - bounds.left, event.clientY - bounds.top]);
    const inside = (boxes) => {
      for (const box of boxes) {
        if (x >= box.x && y >= box.y && x <= box.x + box.width && y <= box.y + box.height) {
          return (box.inner && inside(box.inner)) || box;
        }
      }
      return null;
    };
    return inside(this.boxes.top);
  }

  click(event) {
    const box = this.hit(event);
    if (!box) return;
    const [, y] = this.transform.apply([box.x, box.y]);
    const head = event.clientY - this.canvas.getBoundingClientRect().top - y < 26 * this.transform.k;
    if (box.inner && head && this.folding.selected === box.node) this.folding.toggle(box.node);
    else this.folding.select(box.node, { center: false });
  }

  key(event) {
    const step = 80 / this.transform.k;
    const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (moves[event.key]) this.moves("translateBy", ...moves[event.key]);
    else if (event.key === "+" || event.key === "=") this.moves("scaleBy", 1.3);
    else if (event.key === "-") this.moves("scaleBy", 1 / 1.3);
    else if (event.key === "0") this.fit();
    else if (event.key === "Enter" && this.folding.selected >= 0) this.folding.toggle(this.folding.selected);
    else return;
    event.preventDefault();
  }

  soon() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.paint(); });
  }

  paint() {
    if (!this.width) return;
    const context = this.canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    const style = getComputedStyle(this.element);
    const paper = (name) => style.getPropertyValue(name).trim();
    this.ink = { text: paper("--text"), faint: paper("--faint"), line: paper("--line"), box: paper("--box"), group: paper("--group"), accent: paper("--accent"), light: paper("--lightness") };
    const { x, y, k } = this.transform;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.setTransform(ratio * k, 0, 0, ratio * k, ratio * x, ratio * y);
    const sight = { left: -x / k, top: -y / k, right: (this.width - x) / k, bottom: (this.height - y) / k };
    this.drawn = 0;
    // Edges run below the boxes that they pass, and above the groups that those are in.
    const [groups, leaves] = [[], []];
    this.inSight(this.boxes.top, sight, k, groups, leaves);
    for (const box of groups) this.box(context, box, sight, k);
    this.edgesIn(context, sight, k);
    for (const box of leaves) this.box(context, box, sight, k);
  }

  inSight(boxes, sight, k, groups, leaves) {
    for (const box of boxes) {
      if (box.x > sight.right || box.y > sight.bottom || box.x + box.width < sight.left || box.y + box.height < sight.top) continue;
      this.drawn++;
      (box.inner ? groups : leaves).push(box);
      if (box.inner && box.width * k > SMALLEST * 4) this.inSight(box.inner, sight, k, groups, leaves);
    }
  }

  box(context, box, sight, k) {
    const { folding, ink } = this;
    const [shade, saturation, share] = COLOURS[this.colour]({ folding, most: this.most, mostSent: this.mostSent, sentBy: (_, n) => this.sentBy(n) }, box.node);
    context.fillStyle = box.inner ? ink.group : ink.box;
    context.globalAlpha = box.inner ? 0.35 : 1;
    context.fillRect(box.x, box.y, box.width, box.height);
    if (!box.inner) {
      context.globalAlpha = 0.1 + 0.5 * share;
      context.fillStyle = `hsl(${shade} ${saturation}% ${ink.light})`;
      context.fillRect(box.x, box.y, box.width, box.height);
    }
    context.globalAlpha = 1;
    const isSelected = folding.selected === box.node;
    const isFound = folding.found.has(box.node);
    context.strokeStyle = isSelected || isFound ? ink.accent : ink.line;
    context.lineWidth = (isSelected ? 3 : isFound ? 2 : 1) / Math.min(k, 1);
    context.setLineDash(isFound && !isSelected ? [6 / k, 3 / k] : []);
    context.strokeRect(box.x, box.y, box.width, box.height);
    context.setLineDash([]);
    const isGroup = folding.tree.isGroup(box.node);
    if (box.inner && k < READABLE) return this.large(context, box, sight, k);
    if (k < READABLE) return;
    context.save();
    context.beginPath();
    context.rect(box.x, box.y, box.width, box.height);
    context.clip();
    context.fillStyle = ink.text;
    context.textBaseline = "top";
    context.font = `${isGroup ? "600 " : ""}13px system-ui, sans-serif`;
    const left = box.inner ? Math.max(box.x, Math.min(sight.left, box.x + box.width - 200)) : box.x;
    context.fillText(`${isGroup ? (box.inner ? "▾ " : "▸ ") : ""}${folding.tree.name(box.node)}`, left + 7, box.y + 6);
    context.fillStyle = ink.faint;
    context.font = "11px system-ui, sans-serif";
    if (!box.inner) context.fillText(this.second(box.node, isGroup), left + 7, box.y + (isGroup ? 27 : 22));
    context.restore();
  }

  /** The name of an unfolded group when single texts are too small to read. */
  large(context, box, sight, k) {
    // As large as fits above the boxes of the group.
    const size = Math.min(13, 24 * k);
    if (box.width * k < 90 || size < 6) return;
    context.save();
    context.beginPath();
    context.rect(box.x, box.y, box.width, box.height);
    context.clip();
    context.fillStyle = this.ink.text;
    context.textBaseline = "top";
    context.font = `600 ${size / k}px system-ui, sans-serif`;
    context.fillText(this.folding.tree.name(box.node), Math.max(box.x, sight.left) + 6 / k, Math.max(box.y, sight.top) + 2 / k);
    context.restore();
  }

  second(node, isGroup) {
    const { tree, program } = this.folding;
    const total = tree.total(node);
    if (isGroup) return `${counted(total.operations, "operation")}, ${human(total.held)}`;
    const [value] = program.operations.results[node];
    if (value === undefined) return "";
    const sharding = program.sharding(value);
    return sharding === "replicated" ? program.type(value) : `${program.type(value)} ${sharding}`;
  }

  edgesIn(context, sight, k) {
    const { boxes, ink, folding } = this;
    const chosen = boxes.all.get(folding.selected);
    const near = [];
    context.beginPath();
    let drawn = 0;
    for (const edge of boxes.edges) {
      if (edge.from === chosen || edge.to === chosen) {
        near.push(edge);
        continue;
      }
      const { from, to } = edge;
      const top = Math.min(from.y, to.y);
      const bottom = Math.max(from.y + from.height, to.y + to.height);
      const left = Math.min(from.x, to.x);
      const right = Math.max(from.x + from.width, to.x + to.width);
      if (top > sight.bottom || bottom < sight.top || left > sight.right || right < sight.left) continue;
      if (Math.max(from.width, to.width) * k < SMALLEST || drawn++ > MOST_EDGES) continue;
      this.edge(context, from, to, false);
    }
    context.strokeStyle = ink.faint;
    context.globalAlpha = 0.6;
    context.lineWidth = 1 / Math.min(k, 1);
    context.stroke();
    context.globalAlpha = 1;
    context.beginPath();
    for (const { from, to } of near) this.edge(context, from, to, true);
    context.strokeStyle = ink.accent;
    context.lineWidth = 2 / Math.min(k, 1);
    context.stroke();
    this.edgeCount = drawn;
  }

  edge(context, from, to, whole) {
    const [x1, y1] = [from.x + from.width / 2, from.inner && contains(from, to) ? from.y + 26 : from.y + from.height];
    const [x2, y2] = [to.x + to.width / 2, to.y];
    if (y2 < y1 && !(from.inner && contains(from, to))) {
      // Against the order of the program: groups by line or function have such edges. They go round on the right.
      const [right1, right2] = [from.x + from.width, to.x + to.width];
      const [middle1, middle2] = [from.y + from.height / 2, to.y + to.height / 2];
      if (!whole && Math.abs(middle2 - middle1) > LONG) {
        context.moveTo(right1, middle1);
        context.lineTo(right1 + 12, middle1);
        context.moveTo(right2 + 12, middle2);
        context.lineTo(right2, middle2);
      } else {
        const out = Math.max(right1, right2) + 50;
        context.moveTo(right1, middle1);
        context.bezierCurveTo(out, middle1, out, middle2, right2, middle2);
      }
      context.moveTo(right2 + 6, middle2 - 4);
      context.lineTo(right2, middle2);
      context.lineTo(right2 + 6, middle2 + 4);
      return;
    }
    if (!whole && Math.abs(y2 - y1) > LONG) {
      context.moveTo(x1, y1);
      context.lineTo(x1, y1 + 12);
      context.moveTo(x2, y2 - 12);
      context.lineTo(x2, y2);
    } else {
      const bend = Math.max(Math.min(Math.abs(y2 - y1) / 2, 120), 12);
      context.moveTo(x1, y1);
      context.bezierCurveTo(x1, y1 + bend, x2, y2 - bend, x2, y2);
    }
    context.moveTo(x2 - 4, y2 - 6);
    context.lineTo(x2, y2);
    context.lineTo(x2 + 4, y2 - 6);
  }
}

function contains(outer, box) {
  for (let at = box.parent; at; at = at.parent) if (at === outer) return true;
  return false;
}
