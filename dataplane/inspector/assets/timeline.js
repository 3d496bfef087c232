// What every worker did when: a lane each, work as bars, waiting as gaps.
import { fetchJson, hideTip, make, shown as text, showTip } from "./dom.js";

const COLORS = { generate: "#3b7dd8", teacher: "#d9822b", student: "#8a5fc2", baseline: "#c9a227", train: "#2c9a63", divergence: "#7d8895" };
const MARK_COLORS = { step_sealed: "#9aa7b5", step_trained: "#2c9a63", published: "#3b7dd8", checkpointed: "#b3366b", epoch_opened: "#b3261e" };
const LANE = 40, LEFT = 150, TOP = 26, RIGHT = 12;
let data = null, canvas = null, table = null, note = null, range = null;

export async function show(root, rest, query) {
  range = null;
  data = await fetchJson("/api/timeline");
  const steps = data.marks.filter((mark) => mark.kind === "step_trained");
  if (query.get("all") === null && steps.length > 12) range = [steps[steps.length - 9].time, data.last];
  if (range) data = await fetchJson(`/api/timeline?start=${range[0]}&end=${range[1]}`);
  note = make("span", { class: "soft" });
  canvas = make("canvas", { class: "lanes", onmousemove: hover, onmouseleave: hideTip });
  let from = null;
  canvas.addEventListener("mousedown", (event) => (from = timeAt(event)));
  canvas.addEventListener("mouseup", (event) => {
    const to = timeAt(event);
    if (from !== null && Math.abs(to - from) > (data.end - data.start) / 200) zoom(Math.min(from, to), Math.max(from, to));
    from = null;
  });
  table = make("tbody");
  const heads = ["worker", "busy", "working, s", "waiting, s", "claims", "rows"];
  const head = make("tr", {}, ...heads.map((name, index) => make("th", { class: index ? "number" : "" }, name)));
  root.append(
    make("div", { class: "bar" },
      make("button", { onclick: () => zoom(null, null) }, "whole run"),
      make("button", { onclick: () => scale(0.5) }, "zoom in"),
      make("button", { onclick: () => scale(2) }, "zoom out"),
      make("button", { onclick: () => shift(-0.5) }, "earlier"),
      make("button", { onclick: () => shift(0.5) }, "later"), note),
    make("div", { class: "chart" }, canvas),
    make("p", { class: "legend" }, ...legend()),
    make("h2", {}, "Work and waiting in this window"),
    make("div", { class: "table" }, make("table", {}, make("thead", {}, head), table)),
  );
}

export function shown() {
  draw();
  addEventListener("resize", draw);
}

export async function refresh() {
  const following = range === null || range[1] >= data.last;
  const width = range ? range[1] - range[0] : 0;
  const fresh = await fetchJson(range && !following ? `/api/timeline?start=${range[0]}&end=${range[1]}` : "/api/timeline");
  if (range && following) return zoom(fresh.last - width, fresh.last);
  data = fresh;
  draw();
}

async function zoom(start, end) {
  range = start === null ? null : [Math.max(start, data.first), Math.min(end, data.last)];
  data = await fetchJson(range ? `/api/timeline?start=${range[0]}&end=${range[1]}` : "/api/timeline");
  draw();
}

function scale(factor) {
  const middle = (data.start + data.end) / 2, half = ((data.end - data.start) / 2) * factor;
  return zoom(middle - half, middle + half);
}

function shift(share) {
  const by = (data.end - data.start) * share;
  return zoom(data.start + by, data.end + by);
}

function legend() {
  const swatch = (color, label) => {
    const box = make("i");
    box.style.background = color;
    return make("span", {}, box, label);
  };
  const tasks = [...new Set(data.lanes.flatMap((lane) => lane.spans.map((span) => span[0])))];
  const marks = [...new Set(data.marks.map((mark) => mark.kind))].filter((kind) => MARK_COLORS[kind]);
  return [...tasks.map((task) => swatch(COLORS[task] ?? "#5d6b7a", task)), ...marks.map((kind) => swatch(MARK_COLORS[kind], kind.replace("_", " "))),
    make("span", {}, "drag over the lanes to zoom")];
}

const width = () => canvas.clientWidth - LEFT - RIGHT;
const place = (time) => LEFT + ((time - data.start) / Math.max(data.end - data.start, 1e-9)) * width();
const timeAt = (event) => data.start + ((event.offsetX - LEFT) / width()) * (data.end - data.start);

function draw() {
  if (!canvas.isConnected) return removeEventListener("resize", draw);
  const height = TOP + data.lanes.length * LANE + 8, ratio = devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  axis(pen, height);
  data.lanes.forEach((lane, index) => drawLane(pen, lane, TOP + index * LANE));
  note.textContent = `${text(data.end - data.start)} s of ${text(data.last - data.first)} s`;
  table.replaceChildren(...data.lanes.map(row));
}

function axis(pen, height) {
  pen.fillStyle = "#5d6b7a";
  const span = data.end - data.start, step = 10 ** Math.floor(Math.log10(Math.max(span, 1e-6))) / 2;
  for (let at = Math.ceil((data.start - data.first) / step) * step; at <= data.end - data.first; at += step) {
    const x = place(data.first + at);
    pen.fillStyle = "#eef1f4";
    pen.fillRect(x, TOP - 6, 1, height - TOP);
    pen.fillStyle = "#5d6b7a";
    pen.fillText(`${Number(at.toPrecision(4))} s`, x + 3, 9);
  }
  for (const mark of data.marks) {
    if (!MARK_COLORS[mark.kind]) continue;
    pen.fillStyle = MARK_COLORS[mark.kind];
    pen.fillRect(place(mark.time), TOP - 8, 1.5, 7);
  }
}

function drawLane(pen, lane, top) {
  pen.fillStyle = "#1c2733";
  pen.fillText(lane.name.slice(0, 18), 4, top + LANE / 2 - 6);
  pen.fillStyle = "#5d6b7a";
  pen.fillText(`busy ${Math.round(lane.busy * 100)} %`, 4, top + LANE / 2 + 9);
  pen.fillStyle = "#f0f3f7";
  pen.fillRect(LEFT, top + 6, width(), LANE - 12);
  for (const [task, start, end, , outcome] of lane.spans) {
    const from = Math.max(place(start), LEFT), to = Math.min(place(end ?? data.end), LEFT + width());
    pen.fillStyle = outcome === "lost" ? "#b3261e" : COLORS[task] ?? "#5d6b7a";
    pen.globalAlpha = end === null ? 0.5 : 1;
    pen.fillRect(from, top + 6, Math.max(to - from, 1), LANE - 12);
    pen.globalAlpha = 1;
  }
}

function row(lane) {
  const waiting = data.end - data.start - lane.busy_s;
  const values = [`${(lane.busy * 100).toFixed(1)} %`, lane.busy_s.toFixed(2), waiting.toFixed(2), text(lane.claims), text(lane.rows)];
  return make("tr", {}, make("td", {}, lane.name), ...values.map((value) => make("td", { class: "number" }, value)));
}

function hover(event) {
  const lane = data.lanes[Math.floor((event.offsetY - TOP) / LANE)];
  const at = timeAt(event);
  const slack = ((data.end - data.start) / Math.max(width(), 1)) * 1.5;
  const span = lane?.spans.find(([, start, end]) => start - slack <= at && at <= (end ?? data.end) + slack);
  if (event.offsetX < LEFT || !span) return hideTip();
  const [task, start, end, rows, outcome, count] = span;
  showTip(event, [["task", task], ["samples", rows], ["from", `${(start - data.first).toFixed(3)} s`],
    ["took", end === null ? "still running" : `${((end - start) * 1000).toFixed(1)} ms`], ["outcome", outcome],
    ...(count > 1 ? [["claims", count]] : [])]);
}
