// The page: one report, or two beside each other that turn and select together.

import { changes } from "./changes.js";
import { h, replace, unique } from "./dom.js";
import { live } from "./live.js";
import { View } from "./view.js";

function together([a, b]) {
  let isBusy = false;
  const both = (from, to) => {
    from.addEventListener("turn", ({ detail }) => {
      const name = from.names[detail].split(" ")[0];
      to.turn(to.names.findIndex((n) => n.startsWith(name)));
    });
    from.folding?.addEventListener("select", ({ detail }) => {
      const op = from.folding.selected;
      if (isBusy || !to.program || op < 0 || op >= from.program.count) return;
      isBusy = true;
      const same = from.program.matching(to.program, op);
      if (same >= 0) to.folding.select(same, { center: true, ...detail, from: true });
      isBusy = false;
    });
  };
  both(a, b);
  both(b, a);
}

function theme() {
  const root = document.documentElement;
  const next = () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    window.dispatchEvent(new Event("resize"));
    views.forEach((view) => view.graph?.soon());
  };
  return h("button", { type: "button", onclick: next }, "Light or dark");
}

function licences() {
  const text = document.getElementById("licences")?.textContent ?? "";
  const id = unique("licences");
  const dialog = h("dialog", { "aria-labelledby": id }, h("h2", { id }, "Licences"), h("pre", null, text), h("form", { method: "dialog" }, h("button", null, "Close")));
  return [h("button", { type: "button", onclick: () => dialog.showModal() }, "Licences"), dialog];
}

const data = JSON.parse(document.getElementById("data").textContent);
const views = data.reports.map((each) => new View(each));
if (views.length === 2) together(views);
const page = h("main", { class: views.length === 2 ? "two" : "" }, views.map((view) => view.element));
replace(document.body,
  h("a", { class: "skip", href: "#reports" }, "Skip to the report"),
  h("div", { class: "top" }, h("h1", null, data.reports.length === 2 ? "meshrt inspect, compared" : "meshrt inspect"), theme(), licences()),
  data.serve ? live(data.serve.events, views, data.serve.error) : null,
  data.changes ? changes(data.changes, views[1].short) : null, page);
page.id = "reports";
// For whoever drives the page from outside, such as its tests.
window.meshrt = { views, data };
document.documentElement.dataset.ready = String(Math.round(performance.now()));
