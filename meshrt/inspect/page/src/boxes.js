// Where the boxes of a folded program stand: rows and places come with the page, sizes follow from what is unfolded.

export const LEAF = { width: 164, height: 38 };
export const FOLDED = { width: 190, height: 48 };
const GAP = { x: 18, y: 30 };
const PAD = { x: 14, top: 30, bottom: 14 };

/**
 * The boxes in sight as a tree: {node, x, y, width, height, parent, inner: [box] | null}; x and y are absolute. Also
 * the box of each operation: its own, or that of the folded group it is in.
 */
export function boxesOf(folding) {
  const { tree, open, program } = folding;

  function arranged(nodes) {
    const boxes = [];
    let width = 0;
    let y = 0;
    for (let i = 0; i < nodes.length; ) {
      const row = [];
      for (const number = tree.rows[nodes[i]]; i < nodes.length && tree.rows[nodes[i]] === number; i++) row.push(sized(nodes[i]));
      let x = 0;
      for (const box of row) {
        [box.x, box.y] = [x, y];
        x += box.width + GAP.x;
      }
      const wide = x - GAP.x;
      row.wide = wide;
      width = Math.max(width, wide);
      y += Math.max(...row.map((b) => b.height)) + GAP.y;
      boxes.push(row);
    }
    for (const row of boxes) for (const box of row) box.x += (width - row.wide) / 2;
    return { boxes: boxes.flat(), width, height: Math.max(y - GAP.y, 0) };
  }

  function sized(node) {
    if (!tree.isGroup(node)) return { node, ...LEAF, inner: null };
    if (!open.has(node)) return { node, ...FOLDED, inner: null };
    const inside = arranged(tree.members.get(node));
    return {
      node, inner: inside.boxes, width: Math.max(inside.width + 2 * PAD.x, FOLDED.width),
      height: inside.height + PAD.top + PAD.bottom, inset: Math.max((FOLDED.width - 2 * PAD.x - inside.width) / 2, 0),
    };
  }

  const all = new Map();
  const of = new Array(program.count).fill(null);

  function place(boxes, dx, dy, parent) {
    for (const box of boxes) {
      box.x += dx;
      box.y += dy;
      box.parent = parent;
      all.set(box.node, box);
      if (box.node < program.count) of[box.node] = box;
      if (box.inner) place(box.inner, box.x + PAD.x + box.inset, box.y + PAD.top, box);
      else if (tree.isGroup(box.node)) hide(box.node, box);
    }
  }

  function hide(group, box) {
    for (const member of tree.members.get(group)) {
      if (member < program.count) of[member] = box;
      if (tree.isGroup(member)) hide(member, box);
    }
  }

  const whole = arranged(tree.top);
  place(whole.boxes, 0, 0, null);
  return { top: whole.boxes, all, of, width: whole.width, height: whole.height, edges: edgesOf(program, of) };
}

/** Edges between boxes in sight: {from, to, count}, those inside of one left out. */
function edgesOf(program, of) {
  const numbers = new Map();
  const found = new Map();
  const number = (box) => {
    if (!numbers.has(box)) numbers.set(box, numbers.size);
    return numbers.get(box);
  };
  for (const [maker, reader] of program.edges) {
    const [from, to] = [of[maker], of[reader]];
    if (from === to || !from || !to) continue;
    const key = number(from) * program.count * 2 + number(to);
    const edge = found.get(key);
    if (edge) edge.count++;
    else found.set(key, { from, to, count: 1 });
  }
  return [...found.values()];
}
