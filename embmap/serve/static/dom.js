// Functions that build the document. Text is never parsed as HTML.

export const $ = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  node.append(...children);
  return node;
}

export const el = (tag, attributes = {}, ...children) =>
  filled(document.createElement(tag), attributes, children);

export const svg = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children);

export const quoted = (word) => `“${word}”`;

// A number with three decimals and a minus sign as wide as a digit.
export const score = (x) =>
  Number.isFinite(x) ? x.toFixed(3).replace("-", "−") : "–";

export const cssColor = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();
