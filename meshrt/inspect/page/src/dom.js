// Elements and texts. Nothing of a program is ever parsed as HTML: texts become text nodes, attributes are set.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined));
  return node;
}

/** An HTML element; `on…` attributes are listeners, strings among the children are text. */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element. */
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export const replace = (node, ...children) => node.replaceChildren(...children.flat(Infinity).filter((c) => c !== null));

/** `3.5 MiB` */
export function human(bytes) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(bytes) < 1024 || unit === "GiB") {
      return `${unit === "B" ? Math.round(bytes) : Number(bytes.toPrecision(4))} ${unit}`;
    }
    bytes /= 1024;
  }
}

/** `12.5 us` */
export function humanTime(seconds) {
  for (const [factor, unit] of [[1e6, "us"], [1e3, "ms"]]) {
    if (seconds * factor < 1000) return `${Number((seconds * factor).toPrecision(3))} ${unit}`;
  }
  return `${Number(seconds.toPrecision(3))} s`;
}

/** `1 row`, `2 rows` */
export const counted = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

/** A number for an id that no other element of the page has. */
let given = 0;
export const unique = (name) => `${name}-${++given}`;

/** A hue that is the same for the same text. */
export function hue(text) {
  let sum = 7;
  for (let i = 0; i < text.length; i++) sum = (sum * 31 + text.charCodeAt(i)) % 360;
  return (sum * 47) % 360;
}
