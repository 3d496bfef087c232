// The run in curves.
import { fetchJson, make, shown as text } from "./dom.js";

const COLORS = ["#2456a6", "#c4541a", "#2c8a57", "#8a3ea8", "#a38316", "#1f8a9e", "#b3366b", "#5d6b7a"];
let charts = [];

// title, unit, series by label
function plots(data) {
  const m = data.metrics;
  const of = (name, label = name) => (m[name] ? [[label, m.step, m[name]]] : []);
  const byAgent = (name) => {
    const agents = [...new Set(data.by_agent.map((row) => row.agent))];
    return agents.map((agent) => {
      const rows = data.by_agent.filter((row) => row.agent === agent);
      return [agent ?? "no agent", rows.map((row) => row.step), rows.map((row) => row[name])];
    });
  };
  const heldOut = (agent) => data.held_out.filter((row) => row.agent === agent);
  const accuracy = [...new Set(data.held_out.map((row) => row.agent))].map((agent) => [
    agent ?? "no agent", heldOut(agent).map((row) => row.weight_version), heldOut(agent).map((row) => row.accuracy)]);
  return [
    ["Gap to the teacher", "nats a token, mean", [...of("gap_mean", "all"), ...byAgent("gap")]],
    ["Reward", "mean of a step", [...of("reward_mean", "all"), ...byAgent("reward")]],
    ["Held-out accuracy", "greedy, by weight version", accuracy],
    ["Loss", "", of("loss")],
    ["Exact KL to the teacher", "nats a token, held out", of("exact_kl", "KL")],
    ["Sampler against trainer", "KL, nats", [...of("generation_kl_error", "generation"), ...of("policy_kl_error", "policy")]],
    ["Advantages", "nats", [...of("adv_mean", "mean"), ...of("adv_std", "std")]],
    ["Gradient norm", "before clipping", of("grad_norm")],
    ["Gated by the importance correction", "share", of("is_oob_ratio")],
    ["Staleness", "weight versions, mean", byAgent("staleness")],
    ["Throughput", "trained tokens a second", of("tokens_per_s")],
    ["Time of a step", "seconds", [...of("wall_s", "wall"), ...of("plane_s", "store and controller")]],
  ].filter(([, , series]) => series.some(([, , values]) => values.some((value) => value !== null)));
}

// An agent has the same colour in every chart; "all" comes before them.
const agents = [];
function colorOf(label, index) {
  const known = agents.indexOf(label);
  return COLORS[(known < 0 ? index : known + 1) % COLORS.length];
}

// uPlot wants one x for all series; what is not measured at a step is a hole, what is no number too.
function aligned(series) {
  const steps = [...new Set(series.flatMap(([, xs]) => xs))].sort((a, b) => a - b);
  const at = new Map(steps.map((step, index) => [step, index]));
  const columns = series.map(([, xs, values]) => {
    const column = new Array(steps.length).fill(null);
    xs.forEach((step, index) => (column[at.get(step)] = typeof values[index] === "number" ? values[index] : null));
    return column;
  });
  return [steps, ...columns];
}

function chart(root, title, unit, series) {
  const box = make("section", { class: "chart" }, make("h3", {}, title, " ", make("small", {}, unit)));
  root.append(box);
  const sparse = (column) => column.filter((value) => value !== null).length <= Math.max(12, column.length / 2);
  const data = aligned(series);
  const options = {
    width: 380,
    height: 190,
    cursor: { sync: { key: "steps" }, y: false },
    scales: { x: { time: false } },
    axes: [
      { grid: { stroke: "#eef1f4" }, ticks: { stroke: "#dde2e8" }, stroke: "#5d6b7a", size: 28 },
      { grid: { stroke: "#eef1f4" }, ticks: { stroke: "#dde2e8" }, stroke: "#5d6b7a", size: 54, values: (_, ticks) => ticks.map(text) },
    ],
    series: [
      { label: unit.includes("version") && !unit.includes("versions") ? "version" : "step", value: (_, value) => (value === null ? "–" : String(value)) },
      ...series.map(([label], index) => ({
        label,
        stroke: colorOf(label, index),
        width: 1.6,
        spanGaps: true,
        points: { show: sparse(data[index + 1]), size: 5 },
        value: (_, value) => (value === null ? "–" : text(value)),
      })),
    ],
  };
  const plot = new uPlot(options, data, box);
  charts.push({ plot, box, title });
}

function card(label, value) {
  return make("div", { class: "card" }, make("b", {}, value), make("span", {}, label));
}

function cards(run, data) {
  const last = (name) => {
    const values = (data.metrics[name] ?? []).filter((value) => value !== null);
    return values.length ? text(values[values.length - 1]) : "–";
  };
  const statuses = {};
  for (const row of run.statuses) if (row.partition === "train") statuses[row.status] = (statuses[row.status] ?? 0) + row.rows;
  return [
    card("steps trained", text(run.steps_trained)),
    card("gap, last step", last("gap_mean")),
    card("reward, last step", last("reward_mean")),
    card("held-out accuracy", last("accuracy")),
    card("tokens/s, last step", last("tokens_per_s")),
    ...Object.entries(statuses).map(([status, rows]) => card(`samples ${status.replace("_", " ")}`, text(rows))),
  ];
}

let box = null;
let newest = null;

export async function show(root) {
  box = root;
  charts = [];
  newest = await Promise.all([fetchJson("/api/run"), fetchJson("/api/steps")]);
}

// Charts need their width, which they have once they are in the page.
export function shown() {
  draw();
  addEventListener("resize", fit);
}

function draw() {
  const [run, data] = newest;
  charts = [];
  for (const { agent } of [...data.by_agent, ...data.held_out]) if (!agents.includes(agent)) agents.push(agent);
  box.replaceChildren(make("div", { class: "cards", id: "cards" }, ...cards(run, data)), make("h2", {}, "Curves"));
  const grid = make("div", { class: "charts" });
  box.append(grid);
  const drawn = plots(data);
  if (!drawn.length) grid.append(make("p", { class: "soft" }, "No step has been trained yet."));
  for (const [title, unit, series] of drawn) chart(grid, title, unit, series);
  fit();
}

function fit() {
  for (const { plot, box: around } of charts) plot.setSize({ width: around.clientWidth - 24, height: 190 });
}

export async function refresh() {
  newest = await Promise.all([fetchJson("/api/run"), fetchJson("/api/steps")]);
  const known = new Map(plots(newest[1]).map(([title, , series]) => [title, series]));
  const same = charts.length === known.size && charts.every(({ plot, title }) => known.get(title)?.length === plot.series.length - 1);
  if (!same) return draw();
  document.getElementById("cards").replaceChildren(...cards(...newest));
  for (const { plot, title } of charts) plot.setData(aligned(known.get(title)));
}
