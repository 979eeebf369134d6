// One report: its figures, and a panel for each thing that it tells.

import { details } from "./details.js";
import { h, human, humanTime, unique } from "./dom.js";
import { Folding } from "./folding.js";
import { COLOUR_NAMES, Graph } from "./graph.js";
import { memory } from "./memory.js";
import { outline } from "./outline.js";
import { parameters } from "./parameters.js";
import { Program } from "./program.js";
import { sources } from "./sources.js";
import { table } from "./table.js";

/** What a change that was tried does: `sent 1 MiB → 512 KiB, held 3 MiB as before`. */
function tried(remedy) {
  const both = (what, before, after, text) => `${what} ${before === after ? `${text(before)} as before` : `${text(before)} → ${text(after)}`}`;
  const figures = [both("sent", remedy.bytes_before, remedy.bytes_after, human), both("held", remedy.peak_before, remedy.peak_after, human)];
  if (remedy.seconds_before != null && remedy.seconds_after != null) figures.push(both("per run", remedy.seconds_before, remedy.seconds_after, humanTime));
  return figures.join(", ");
}

export class View extends EventTarget {
  constructor({ report, program }) {
    super();
    this.report = report;
    this.id = unique("view");
    this.short = (text) => (report.folder ? text.replaceAll(report.folder, "") : text);
    if (program) this.setProgram(new Program(program));
    const panels = [
      program ? ["Graph", () => this.graphPanel()] : null,
      ["Collectives", () => this.collectives()], ["Sent", () => this.sent()], ["Memory", () => memory(report, this.short, (w) => this.show(w))],
      ["Parameters", () => h("div", { class: "pad" }, parameters(report.arguments, "Arguments"), parameters(report.results, "Results"))],
      [`Findings (${this.findingCount})`, () => this.findings()],
    ].filter(Boolean);
    this.element = h("article", { class: "view", "aria-label": `Report of ${report.name}` }, this.head(), this.tabs(panels));
  }

  setProgram(program) {
    this.program = program;
    this.folding = new Folding(program);
    this.sentByPlace = new Map(this.report.sent.line.map((t) => [t.key, t.bytes]));
    this.sentByOperation = new Float64Array(program.count);
    for (const collective of this.report.collectives) {
      for (const member of collective.members.length ? collective.members : [collective]) {
        const operation = this.operationOf(member);
        if (operation >= 0) this.sentByOperation[operation] += member.bytes * (collective.times ?? 1);
      }
    }
  }

  /** The operation that a collective is for: that of its line, scope and kind, as far as they tell. */
  operationOf({ where, scope, cause }) {
    const operations = this.program?.byPlace.get(where) ?? [];
    const kind = (cause ?? "").split(":")[0].replace("stablehlo.", "");
    const fits = (op) => (this.program.kind(op) === kind ? 2 : 0) + (this.program.scope(op) === scope ? 1 : 0);
    return operations.reduce((best, op) => (best < 0 || fits(op) > fits(best) ? op : best), -1);
  }

  get findingCount() { return this.report.findings.length + (this.report.lint?.length ?? 0); }

  head() {
    const { report } = this;
    const mesh = report.mesh.map(([n, size]) => `${n}=${size}`).join(", ") || "none";
    const { totals, timing } = report;
    const range = report.least_bytes < report.bytes ? `${human(report.least_bytes)} to ${human(report.bytes)}` : human(report.bytes);
    const figures = [
      ["devices", `${totals.devices}`], ["mesh", mesh], ["sent per device and run", range],
      ["held at most", report.memory ? human(report.memory.peak_bytes) : null],
      ["replicated arguments", human(totals.replicated_argument_bytes)],
      ["time per run, predicted", timing ? humanTime(timing.seconds) : null],
      [timing ? "collectives" : "collectives take", humanTime(totals.seconds_sending)],
    ];
    return h("header", { class: "head" }, h("h2", null, this.short(report.name)),
      h("dl", { class: "figures" }, figures.filter(([, v]) => v).map(([k, v]) => h("div", null, h("dt", null, k), h("dd", null, v)))),
      timing ? this.time(timing) : null);
  }

  /** The parts of the predicted time as a bar, and in words. */
  time({ seconds, computing, waiting, sending }) {
    const part = (name, value) => {
      const piece = h("span", { class: name, title: `${name} ${humanTime(value)}` });
      piece.style.width = `${seconds ? (100 * value) / seconds : 0}%`;
      return piece;
    };
    return h("p", { class: "time" }, h("span", { class: "split", "aria-hidden": "true" }, part("computing", computing), part("waiting", waiting)),
      ` ${humanTime(computing)} computing, ${humanTime(waiting)} waiting for messages; one after the other they take ${humanTime(sending)}`);
  }

  tabs(panels) {
    this.names = panels.map(([name]) => name);
    this.panels = panels.map(([name, make], i) => ({ name, make, element: h("section", { role: "tabpanel", id: `${this.id}-panel-${i}`, "aria-labelledby": `${this.id}-tab-${i}`, class: "panel", hidden: true }) }));
    this.tabButtons = panels.map(([name], i) =>
      h("button", { type: "button", role: "tab", id: `${this.id}-tab-${i}`, "aria-controls": `${this.id}-panel-${i}`, onclick: () => this.turn(i) }, name));
    const list = h("div", { role: "tablist", class: "tabs", "aria-label": "Parts of the report", onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      this.turn((this.current + step + panels.length) % panels.length);
      this.tabButtons[this.current].focus();
    } }, this.tabButtons);
    queueMicrotask(() => this.current === undefined && this.turn(0));
    return [list, ...this.panels.map((p) => p.element)];
  }

  turn(number) {
    if (number === this.current || !this.panels[number]) return;
    this.current = number;
    this.panels.forEach(({ element, make }, i) => {
      if (i === number && !element.childElementCount) element.append(make());
      element.hidden = i !== number;
      this.tabButtons[i].setAttribute("aria-selected", String(i === number));
      this.tabButtons[i].tabIndex = i === number ? 0 : -1;
    });
    this.dispatchEvent(new CustomEvent("turn", { detail: number }));
  }

  /** Shows a source line, and the operations of it, beside the graph. */
  show(where) {
    if (!this.program) return;
    this.turn(0);
    this.sourceView.go(where);
    const operations = this.program.byPlace.get(where) ?? [];
    if (operations.length) {
      this.folding.find(operations);
      this.folding.select(operations[0]);
    }
  }

  graphPanel() {
    const { folding } = this;
    this.sourceView = sources(folding, this.sentByPlace, this.short);
    const graph = (this.graph = new Graph(folding, this.sentByOperation));
    const fold = h("select", { "aria-label": "Fold by", onchange: () => folding.use(fold.value) },
      ["layer", "function", "line"].map((name) => h("option", { value: name }, `fold by ${name}`)));
    const colour = h("select", { "aria-label": "Colour by", onchange: () => { graph.colour = colour.value; graph.soon(); } },
      COLOUR_NAMES.map((name) => h("option", { value: name }, `colour by ${name}`)));
    const button = (name, action) => h("button", { type: "button", onclick: action }, name);
    const bar = h("div", { class: "bar" }, this.search(), fold, colour,
      button("Fold all", () => folding.all(false)), button("Unfold all", () => folding.all(true)), button("Show all", () => graph.fit()));
    folding.addEventListener("fold", () => (fold.value = folding.name));
    const show = (where) => this.sourceView.go(where);
    return h("div", { class: "program" }, bar, h("div", { class: "columns" }, outline(folding), graph.element,
      h("div", { class: "side" }, details(folding, this.report.mesh, show, this.short), this.sourceView.panel)));
  }

  search() {
    const { folding, program } = this;
    let found = [];
    let at = -1;
    const note = h("span", { class: "note", role: "status" });
    const go = (step) => {
      if (!found.length) return;
      at = (at + step + found.length) % found.length;
      note.textContent = `${at + 1} of ${found.length}`;
      folding.select(found[at]);
    };
    const input = h("input", { type: "search", class: "search", placeholder: "Search operations", "aria-label": "Search operations",
      oninput: () => {
        found = program.search(input.value);
        at = -1;
        note.textContent = input.value ? `${found.length} found` : "";
        folding.find(found);
      },
      onkeydown: (event) => {
        if (event.key !== "Enter") return;
        event.preventDefault();
        go(event.shiftKey ? -1 : 1);
      } });
    return h("span", { class: "searching" }, input, note);
  }

  collectives() {
    const { short } = this;
    const rows = this.report.collectives;
    if (!rows.length) return h("p", { class: "pad" }, this.report.totals.devices === 1 ? "No collectives: there is one device." : "No collectives: every device works on its own.");
    const bytes = (name, value) => ({ name, value, text: (r) => human(value(r)), right: true });
    return h("div", { class: "pad" }, table({
      label: "Collectives", rows, sort: { column: 5, down: true }, height: "70vh",
      choose: (row) => {
        this.show(row.where);
        const operation = this.operationOf(row);
        if (operation >= 0) this.folding.select(operation);
      },
      columns: [
        { name: "kind", value: (r) => r.kind, choices: true }, { name: "axes", value: (r) => r.axes || "-", choices: true },
        { name: "groups", value: (r) => r.groups, text: (r) => `${r.groups} of ${r.group_size}`, right: true },
        bytes("bytes", (r) => r.bytes), { name: "times", value: (r) => r.times, text: (r) => r.times ?? "?", right: true },
        bytes("total", (r) => r.total), { name: "time", value: (r) => r.seconds * (r.times ?? 1), text: (r) => humanTime(r.seconds * (r.times ?? 1)), right: true },
        { name: "layer", value: (r) => r.layer || "-", wide: true }, { name: "source", value: (r) => short(r.where ?? "-"), wide: true },
        { name: "cause", value: (r) => [r.cause, ...r.members.map((m) => `${m.cause} (${short(m.where ?? "-")}, ${human(m.bytes)})`)].join("; ").replaceAll("stablehlo.", ""), wide: true },
      ],
    }), h("p", { class: "note" }, "bytes: what the busiest device sends each time; times: per run, a collective in a loop counts once for each iteration; total: bytes × times."));
  }

  sent() {
    const one = (name, rows) => h("div", null, h("h3", null, `Sent per ${name}`), table({
      label: `Sent per ${name}`, rows, height: "40vh", sort: { column: 2, down: true },
      choose: name === "source line" ? (row) => this.show(row.key) : null,
      columns: [
        { name, value: (r) => this.short(r.key), wide: true }, { name: "run", value: (r) => r.count, right: true },
        { name: "bytes", value: (r) => r.bytes, text: (r) => human(r.bytes), right: true },
        { name: "time", value: (r) => r.seconds, text: (r) => humanTime(r.seconds), right: true },
      ],
    }));
    const { line, axes, layer } = this.report.sent;
    return h("div", { class: "pad" }, one("source line", line), one("mesh axis", axes), one("layer", layer));
  }

  findings() {
    const { report, short } = this;
    const place = (where) => (this.program ? h("button", { type: "button", class: "link", onclick: () => this.show(where) }, short(where)) : short(where));
    const one = (name, { where, message, bytes }, ...more) => h("li", null, h("b", null, name), where ? [" ", place(where)] : null,
      `: ${message}${bytes ? ` (${human(bytes)} per device)` : ""}`, more);
    const found = report.findings.map((f) => one(f.kind, f));
    const lint = (report.lint ?? []).map((f) => one(f.rule, f, f.remedy ? h("p", { class: "remedy" }, `${f.remedy.text}: ${tried(f.remedy)}`) : null));
    return h("div", { class: "pad" },
      found.length || lint.length ? h("ul", { class: "findings" }, found, lint) : h("p", null, "Nothing was found that could not stay sharded."),
      report.explanations.length ? [h("h3", null, "Explanations"), h("ul", null, report.explanations.map((line) => h("li", null, short(line))))] : null,
      report.kernels.length ? [h("h3", null, "Kernels"), this.kernels()] : null);
  }

  kernels() {
    const bytes = (name, value) => ({ name, value, text: (r) => human(value(r)), right: true });
    return table({
      label: "Kernels", rows: this.report.kernels, choose: (row) => row.where && this.show(row.where),
      columns: [
        { name: "kernel", value: (r) => r.name, wide: true }, { name: "grid", value: (r) => r.grid.join("x") || "-" },
        { name: "held by a core", value: (r) => r.memory.map((m) => `${m.memory} ${human(m.bytes)}`).join(", ") || "-" },
        { name: "copies", value: (r) => r.copies, right: true }, bytes("copied", (r) => r.moved), bytes("sent", (r) => r.sent),
        { name: "source", value: (r) => this.short(r.where ?? "-"), wide: true },
      ],
    });
  }
}

