// A page that `--serve` shows: it is loaded anew when the program has changed, and shows what went wrong with it.

import { h, replace } from "./dom.js";

const KEPT = "meshrt-inspect";

export function live(events, views, error) {
  const banner = h("div", { class: "banner", role: "alert", hidden: true });
  let failure = error;
  let isCut = false;
  const tell = () => {
    const text = isCut ? "The server does not answer any more. What is shown stays as it is." : failure;
    banner.hidden = !text;
    replace(banner, text ? h("pre", null, text) : "");
  };
  tell();
  const source = new EventSource(events);
  source.addEventListener("program", () => {
    sessionStorage.setItem(KEPT, JSON.stringify(views.map((view) => ({
      tab: view.current, fold: view.folding?.name,
      selected: view.folding && view.folding.selected >= 0 && view.folding.selected < view.program.count ? view.program.key(view.folding.selected) : null,
    }))));
    location.reload();
  });
  source.addEventListener("failure", (event) => {
    failure = JSON.parse(event.data);
    tell();
  });
  source.addEventListener("open", () => { isCut = false; tell(); });
  source.addEventListener("error", () => { isCut = true; tell(); });
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");
  sessionStorage.removeItem(KEPT);
  queueMicrotask(() => views.forEach((view, i) => {
    const { tab, fold, selected } = kept[i] ?? {};
    if (tab !== undefined) view.turn(tab);
    if (fold && fold !== view.folding?.name) view.folding.use(fold);
    if (!selected || !view.program) return;
    for (let op = 0; op < view.program.count; op++) {
      if (view.program.key(op) === selected) return view.folding.select(op);
    }
  }));
  return banner;
}
