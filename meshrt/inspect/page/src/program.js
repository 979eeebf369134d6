// A program as the page asks for it: operations and values by number, the trees of groups over them, and why-chains.

const NONE = [];

export class Program {
  constructor(data) {
    this.data = data;
    this.texts = data.texts;
    this.operations = data.operations;
    this.values = data.values;
    this.count = data.operations.kind.length;
    this.maker = new Int32Array(data.values.type.length).fill(-1);
    this.users = Array.from(data.values.type, () => []);
    this.operations.results.forEach((results, op) => results.forEach((v) => (this.maker[v] = op)));
    this.operations.operands.forEach((operands, op) => operands.forEach((v) => this.users[v].push(op)));
    this.edges = [];
    this.operations.operands.forEach((operands, op) =>
      operands.forEach((v) => this.maker[v] >= 0 && this.edges.push([this.maker[v], op]))
    );
    this.reasons = new Map();
    data.reasons.value.forEach((value, i) => {
      if (!this.reasons.has(value)) this.reasons.set(value, []);
      this.reasons.get(value).push(i);
    });
    this.byPlace = new Map();
    for (let op = 0; op < this.count; op++) {
      const where = this.where(op);
      if (where === null) continue;
      if (!this.byPlace.has(where)) this.byPlace.set(where, []);
      this.byPlace.get(where).push(op);
    }
    this.trees = Object.fromEntries(Object.entries(data.trees).map(([name, tree]) => [name, new Tree(this, tree)]));
  }

  text(number) { return number < 0 ? null : this.texts[number]; }
  kind(op) { return this.text(this.operations.kind[op]); }
  scope(op) { return this.text(this.operations.scope[op]); }
  where(op) { return this.text(this.operations.where[op]); }
  func(op) { return this.text(this.operations.function[op]); }
  type(value) { return this.text(this.values.type[value]); }
  part(value) { return this.text(this.values.part[value]); }
  named(value) { return this.text(this.values.name[value]); }

  /** What an operation is called in lists: an argument by its name. */
  title(op) {
    const [first] = this.operations.results[op];
    const name = first === undefined ? "" : this.named(first);
    return name ? `${this.kind(op)} ${name}` : this.kind(op);
  }

  /** Bytes of one device's parts of what an operation makes. */
  held(op) { return this.operations.results[op].reduce((sum, v) => sum + this.values.held[v], 0); }

  /** The axes of each dimension: [["data"], [], ["model:(1)2"]]. */
  axes(value) {
    return JSON.parse(this.text(this.values.axes[value]));
  }

  /** `(data, -, model)`, or `replicated`. */
  sharding(value) {
    const dims = this.axes(value);
    return dims.some((d) => d.length) ? `(${dims.map((d) => d.join("+") || "-").join(", ")})` : "replicated";
  }

  unreduced(value) { return this.text(this.values.unreduced[value]); }

  /** For each axis of a value the steps that lead to an annotation: [{dim, axis, steps: [{text, op}]}]. */
  why(value) {
    return (this.reasons.get(value) ?? NONE).map((first) => {
      const r = this.data.reasons;
      const steps = [];
      const seen = new Set();
      for (let at = first; at !== undefined && !seen.has(at); ) {
        seen.add(at);
        steps.push({ text: this.text(r.text[at]), op: this.maker[r.value[at]] });
        const [source, dim, axis] = [r.source[at], r.sourceDim[at], r.axis[at]];
        at = source < 0 ? undefined : (this.reasons.get(source) ?? NONE).find((i) => r.dim[i] === dim && r.axis[i] === axis);
      }
      return { dim: r.dim[first], axis: this.text(r.axis[first]), steps };
    });
  }

  /** What tells an operation among those of another version of the program. */
  key(op) { return [this.func(op), this.scope(op), this.title(op)].join("\u0000"); }

  /** The operation of `other` that is the same as `op`: of those with equal names the one with the same number. */
  matching(other, op) {
    const key = other.key(op);
    let number = 0;
    for (let i = 0; i < op; i++) if (other.key(i) === key) number++;
    for (let i = 0; i < this.count; i++) if (this.key(i) === key && number-- === 0) return i;
    return -1;
  }

  /** Operations in which a text occurs: in kind, name, scope, place or type. */
  search(text) {
    const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
    if (!wanted.length) return [];
    const found = [];
    for (let op = 0; op < this.count; op++) {
      const types = this.operations.results[op].map((v) => `${this.type(v)} ${this.named(v)} ${this.sharding(v)}`);
      const all = `${this.kind(op)} ${this.scope(op)} ${this.where(op) ?? ""} @${this.func(op)} ${types.join(" ")}`;
      const lower = all.toLowerCase();
      if (wanted.every((w) => lower.includes(w))) found.push(op);
    }
    return found;
  }
}

/** Groups over the operations; operations with a body are groups too where the tree follows the program's structure. */
class Tree {
  constructor(program, data) {
    this.program = program;
    this.parents = data.parents;
    this.members = new Map();
    this.parents.forEach((parent, node) => {
      if (!this.members.has(parent)) this.members.set(parent, []);
      this.members.get(parent).push(node);
    });
    for (const nodes of this.members.values()) {
      nodes.sort((a, b) => data.rows[a] - data.rows[b] || data.places[a] - data.places[b]);
    }
    this.rows = data.rows;
    this.names = data.names;
    this.totals = new Map();
  }

  get top() { return this.members.get(-1) ?? []; }
  isGroup(node) { return this.members.has(node); }

  name(node) {
    const count = this.program.count;
    return node < count ? this.program.title(node) : this.names[node - count];
  }

  /** How many operations a group has, and the bytes of what they make. */
  total(node) {
    let found = this.totals.get(node);
    if (!found) {
      const own = node < this.program.count;
      found = { operations: own ? 1 : 0, held: own ? this.program.held(node) : 0 };
      for (const member of this.members.get(node) ?? []) {
        const inner = this.total(member);
        found.operations += inner.operations;
        found.held += inner.held;
      }
      this.totals.set(node, found);
    }
    return found;
  }

  /** The groups around a node, the innermost first. */
  around(node) {
    const found = [];
    for (let at = this.parents[node]; at >= 0; at = this.parents[at]) found.push(at);
    return found;
  }
}
