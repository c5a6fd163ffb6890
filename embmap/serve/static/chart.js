// Values over time, drawn by uPlot.

import { cssColor, score } from "./dom.js";

/* global uPlot */

export const MOST_LINES = 6;
const lineColor = (i) => cssColor(`--line-${i + 1}`);
const DASHES = [[], [8, 4], [3, 3], [12, 4, 3, 4], [4, 4], [14, 6]];

let plot = null;

export function removeChart() {
  plot?.destroy();
  plot = null;
}

// Mark a time step in the chart.
export function markStep(step) {
  if (!plot) return;
  plot.step = step;
  plot.redraw(false);
  plot.setLegend({ idx: step });
}

const height = (width) => Math.round(Math.min(Math.max(width * 0.42, 220), 340));

export function resizeChart(width) {
  if (plot && plot.width !== width) plot.setSize({ width, height: height(width) });
}

// The places of time steps on the axis: their labels if these are numbers that rise, such as years.
function placesOf(labels, n) {
  const rising = labels.every((x, t) => Number.isInteger(x) && (t === 0 || x > labels[t - 1]));
  return labels.length && rising ? labels : Array.from({ length: n }, (_, t) => t);
}

// `series` are {word, values}; `places` gives their colours. A click on a step calls `choose(step)`.
export function drawChart(box, series, step, choose, { places, labels }) {
  removeChart();
  const width = Math.max(box.clientWidth, 200);
  const ink = cssColor("--quiet");
  const grid = { stroke: cssColor("--line"), width: 1 };
  const axis = { stroke: ink, grid, ticks: { show: false } };
  const font = "12px system-ui, sans-serif";
  const steps = placesOf(labels, series[0].values.length);
  // Between time steps there is nothing to name.
  const nameAt = (x) => {
    const t = steps.indexOf(x);
    return t < 0 ? (labels.length && steps !== labels ? "" : String(x)) : String(labels[t] ?? t);
  };
  const legend = (u) => {
    if (u.cursor.idx === null || u.cursor.idx === undefined) u.setLegend({ idx: u.step }, false);
  };
  const marker = (u) => {
    if (u.step === null || u.step === undefined) return;
    const x = Math.round(u.valToPos(steps[u.step], "x", true)) + 0.5;
    u.ctx.save();
    u.ctx.strokeStyle = ink;
    u.ctx.lineWidth = devicePixelRatio;
    u.ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    u.ctx.beginPath();
    u.ctx.moveTo(x, u.bbox.top);
    u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
    u.ctx.stroke();
    u.ctx.restore();
  };
  plot = new uPlot(
    {
      width,
      height: height(width),
      scales: { x: { time: false }, y: { range: (_, low, high) => padded(low, high) } },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 8 } },
      legend: { live: true },
      axes: [
        {
          ...axis,
          font,
          incrs: [1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000],
          size: 34,
          values: (u, values) => values.map(nameAt),
        },
        {
          ...axis,
          font,
          size: 52,
          incrs: [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5],
          values: (u, values, i, space, step) => values.map((v) => tick(v, step)),
        },
      ],
      series: [
        {
          label: labels.length ? "time" : "step",
          value: (_, x) => (x === null ? "–" : nameAt(x)),
        },
        ...series.map((line, i) => ({
          label: line.word,
          stroke: lineColor(places[i]),
          width: 2,
          dash: DASHES[places[i]],
          points: { show: steps.length <= 16, size: 5, fill: lineColor(places[i]) },
          value: (_, v) => score(v),
        })),
      ],
      hooks: { draw: [marker], ready: [legend], setCursor: [legend] },
    },
    [steps, ...series.map((line) => line.values)],
    box,
  );
  plot.step = step;
  plot.over.addEventListener("click", () => {
    if (Number.isInteger(plot.cursor.idx)) choose(plot.cursor.idx);
  });
}

const tick = (value, step) => value.toFixed(step < 0.01 ? 3 : 2).replace("-", "−");

function padded(low, high) {
  if (low === null || high === null) return [0, 1];
  const room = Math.max((high - low) * 0.08, 0.02);
  return [Math.max(low - room, -1.02), Math.min(high + room, 1.02)];
}
