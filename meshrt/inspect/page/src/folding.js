// What is folded, selected and found in a program: one state for the graph and the outline beside it.

export class Folding extends EventTarget {
  constructor(program) {
    super();
    this.program = program;
    this.selected = -1;
    this.found = new Set();
    this.use("layer");
  }

  /** Folds by another tree: layer, function or line. */
  use(name) {
    this.name = name;
    this.tree = this.program.trees[name];
    this.open = new Set();
    // A group that has most of the program says nothing as long as it is folded.
    const most = (n) => this.tree.isGroup(n) && this.tree.total(n).operations > this.program.count / 2;
    for (let at = this.tree.top.find(most); at !== undefined; at = this.tree.members.get(at).find(most)) this.open.add(at);
    this.anchor = -1;
    if (this.selected >= this.program.count) this.selected = -1;
    if (this.selected >= 0) this.reveal(this.selected);
    this.tell("fold", { whole: true });
    if (this.selected >= 0) this.tell("select", { center: true });
  }

  tell(what, detail) { this.dispatchEvent(new CustomEvent(what, { detail })); }

  toggle(node) {
    if (!this.tree.isGroup(node)) return;
    if (!this.open.delete(node)) this.open.add(node);
    this.anchor = node;
    this.tell("fold", { whole: false });
  }

  /** Unfolds or folds everything. */
  all(isOpen) {
    this.open = new Set(isOpen ? [...this.tree.members.keys()].filter((n) => n >= 0) : []);
    this.tell("fold", { whole: true });
  }

  reveal(node) { for (const group of this.tree.around(node)) this.open.add(group); }

  /** Selects a node; an operation inside folded groups is unfolded to. */
  select(node, { center = true } = {}) {
    this.selected = node;
    if (node >= 0) {
      const before = this.open.size;
      this.reveal(node);
      this.anchor = node;
      if (this.open.size !== before) this.tell("fold", { whole: false });
    }
    this.tell("select", { center });
  }

  find(operations) {
    this.found = new Set(operations);
    this.tell("select", { center: false });
  }

  /** The nodes in sight, in order, with their depth: for the outline. */
  visible() {
    const found = [];
    const add = (nodes, depth) => {
      nodes.forEach((node, i) => {
        found.push({ node, depth, position: i + 1, size: nodes.length });
        if (this.open.has(node)) add(this.tree.members.get(node) ?? [], depth + 1);
      });
    };
    add(this.tree.top, 0);
    return found;
  }
}
