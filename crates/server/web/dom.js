// Makes elements. Texts are never read as markup.

/** Returns an HTML element: `make("p", { class: "note" }, "text", child)`. */
export function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Returns an SVG element, with the same arguments as `make`. */
export function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

/** Returns a text for a picture. */
export const text = (x, y, words, anchor = "start", kind = "") => draw("text", { x, y, "text-anchor": anchor, class: kind }, words);

/** The fill of held units: the pattern in index.html. */
export const HATCH = "url(#held)";

/** Returns the mark of a refused request in a picture. */
export const cross = (cx, cy, r) => draw("path", { d: `M${cx - r} ${cy - r}l${2 * r} ${2 * r}m0-${2 * r}l-${2 * r} ${2 * r}`, class: "no" });

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Returns a duration as text: 1.2 s, 340 ms, 2 min. */
export function duration(seconds) {
  if (seconds < 0.0005) return "0 s";
  if (seconds < 1) return `${Math.ceil(seconds * 1000)} ms`;
  if (seconds < 120) return `${(Math.ceil(seconds * 10) / 10).toFixed(1)} s`;
  if (seconds < 7200) return `${Math.ceil(seconds / 60)} min`;
  return `${Math.ceil(seconds / 3600)} h`;
}
