// Words as points of a plane: principal components, and labels that avoid each other.

import { svg } from "./dom.js";

export function unit(vector) {
  const length = Math.hypot(...vector);
  return length > 0 ? vector.map((x) => x / length) : vector;
}

export const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);

export const cosine = (a, b) => dot(unit(a), unit(b));

// The eigenvector of a symmetric matrix's largest eigenvalue, by power iteration.
function leading(matrix) {
  let vector = unit(matrix.map((row, i) => Math.sqrt(Math.max(row[i], 0)) + 1e-9 * (i + 1)));
  let value = 0;
  for (let round = 0; round < 300; round += 1) {
    const product = matrix.map((row) => dot(row, vector));
    const length = Math.hypot(...product);
    if (length < 1e-12) return { vector: vector.map(() => 0), value: 0 };
    vector = product.map((x) => x / length);
    if (Math.abs(length - value) < 1e-10 * length) break;
    value = length;
  }
  return { vector, value };
}

// Coordinates of unit vectors on their first two principal components, from their dot products,
// and the share of the variance that the plane shows.
export function pca(vectors) {
  const units = vectors.map(unit);
  const mean = units[0].map((_, j) => units.reduce((sum, u) => sum + u[j], 0) / units.length);
  const centered = units.map((u) => u.map((x, j) => x - mean[j]));
  let gram = centered.map((a) => centered.map((b) => dot(a, b)));
  const total = gram.reduce((sum, row, i) => sum + row[i], 0);
  const axes = [0, 1].map(() => {
    const { vector, value } = leading(gram);
    gram = gram.map((row, i) => row.map((x, j) => x - value * vector[i] * vector[j]));
    const far = vector.reduce((best, x) => (Math.abs(x) > Math.abs(best) ? x : best), 0);
    const sign = far < 0 ? -1 : 1; // the same picture each time
    return { values: vector.map((x) => x * sign * Math.sqrt(value)), value };
  });
  return {
    points: vectors.map((_, i) => axes.map((axis) => axis.values[i])),
    shown: total > 0 ? (axes[0].value + axes[1].value) / total : 1,
  };
}

const overlap = (a, b) =>
  Math.max(0, Math.min(a.x + a.w, b.x + b.w) - Math.max(a.x, b.x)) *
  Math.max(0, Math.min(a.y + a.h, b.y + b.h) - Math.max(a.y, b.y));

function* places(x, y, w, h) {
  for (const gap of [7, 14, 22, 32, 44, 58]) {
    yield { x: x + gap, y: y - h / 2 };
    yield { x: x - gap - w, y: y - h / 2 };
    yield { x: x - w / 2, y: y - gap - h };
    yield { x: x - w / 2, y: y + gap };
    yield { x: x + gap * 0.7, y: y - gap * 0.7 - h };
    yield { x: x - gap * 0.7 - w, y: y - gap * 0.7 - h };
    yield { x: x + gap * 0.7, y: y + gap * 0.7 };
    yield { x: x - gap * 0.7 - w, y: y + gap * 0.7 };
  }
}

// A box for each label, in order: the first place that is free, else the least bad one.
export function placeLabels(points, sizes, width, height) {
  const dots = points.map(([x, y]) => ({ x: x - 5, y: y - 5, w: 10, h: 10 }));
  const placed = [];
  for (const [i, [x, y]] of points.entries()) {
    const { w, h } = sizes[i];
    let best = null;
    for (const place of places(x, y, w, h)) {
      const box = {
        x: Math.min(Math.max(place.x, 2), Math.max(width - w - 2, 2)),
        y: Math.min(Math.max(place.y, 2), height - h - 2),
        w,
        h,
      };
      let cost = 0;
      for (const other of placed) cost += 3 * overlap(box, other);
      for (const dot of dots) cost += 2 * overlap(box, dot);
      if (best === null || cost < best.cost - 1e-9) best = { ...box, cost };
      if (cost === 0) break;
    }
    placed.push(best);
  }
  return placed;
}

const STRETCH = 1.5; // how much more one axis may be drawn out than the other
const shortened = (word) => (word.length > 22 ? `${word.slice(0, 21)}…` : word);

// Draw `items` ({word, vector, score, to}; the first is the word searched for) into `box`.
export function drawMap(box, items) {
  const width = Math.max(box.clientWidth, 200);
  const height = Math.round(Math.min(Math.max(width * 0.72, 220 + 9 * items.length), 560));
  const { points, shown } = pca(items.map((item) => item.vector));
  const [low, high] = [Math.min, Math.max].map((end) =>
    [0, 1].map((axis) => end(...points.map((point) => point[axis]))),
  );
  const margin = { x: Math.min(70, width * 0.16), y: 28 };
  const room = [width - 2 * margin.x, height - 2 * margin.y];
  const fitting = room.map((r, axis) => r / Math.max(high[axis] - low[axis], 1e-9));
  const scale = fitting.map((s) => Math.min(s, STRETCH * Math.min(...fitting)));
  const spots = points.map((p) => [
    width / 2 + (p[0] - (low[0] + high[0]) / 2) * scale[0],
    height / 2 - (p[1] - (low[1] + high[1]) / 2) * scale[1],
  ]);
  const pen = document.createElement("canvas").getContext("2d");
  const labels = items.map((item) => shortened(item.word));
  const sizes = labels.map((label, i) => {
    pen.font = `${i ? 400 : 700} ${i ? 13 : 14}px ${getComputedStyle(document.body).fontFamily}`;
    return { w: pen.measureText(label).width + 4, h: 18 };
  });
  const boxes = placeLabels(spots, sizes, width, height);
  const root = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "group",
    "aria-label": `Map of ${items[0].word} and its neighbours`,
  });
  const leaders = svg("g", { class: "leaders" });
  root.append(leaders);
  for (const [i, item] of items.entries()) {
    const [x, y] = spots[i];
    const label = boxes[i];
    const [nearX, nearY] = [
      Math.min(Math.max(x, label.x), label.x + label.w),
      Math.min(Math.max(y, label.y), label.y + label.h),
    ];
    if (Math.hypot(nearX - x, nearY - y) > 12) {
      leaders.append(svg("line", { x1: x, y1: y, x2: nearX, y2: nearY }));
    }
    const node = svg(
      i ? "a" : "g",
      i ? { "data-to": item.to, class: "point" } : { class: "point center" },
      svg("title", {}, i ? `${item.word}  ${item.score}` : item.word),
      svg("circle", { cx: x, cy: y, r: i ? 4.5 : 7 }),
      svg("rect", { x: label.x, y: label.y, width: label.w, height: label.h, rx: 3 }),
      svg("text", { x: label.x + 2, y: label.y + 13.5 }, labels[i]),
    );
    root.append(node);
  }
  root.append(root.querySelector(".center")); // on top
  box.replaceChildren(root);
  return shown;
}
