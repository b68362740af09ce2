/** A step's tree as a picture: a column per depth, the kept path on, what was refused crossed out. */

import { percent, svg, visible } from "./dom.js";
import { originOf } from "./origins.js";
import { MARKS, outcomeOf, summaryOf } from "./reasons.js";

/** @typedef {import("./steps.js").Candidate} Candidate */
/** @typedef {import("./steps.js").Step} Step */
/** @typedef {{ candidate: Candidate | null, children: Place[], x: number, y: number, end: boolean }} Place */

const COLUMN = 120;
const ROW = 46;
const WIDTH = 98;
const HEIGHT = 34;

/**
 * @param {Step} step
 * @param {string} rootText the token before the step
 * @param {(candidate: Candidate) => void} onSelect
 */
export function drawTree(step, rootText, onSelect) {
  const root = build(step);
  let rows = 0;
  layout(root, 0, () => rows++);
  const columns = 1 + Math.max(0, ...places(root).map((place) => place.x));
  const width = columns * COLUMN - (COLUMN - WIDTH) + 4;
  const height = Math.max(1, rows) * ROW + 4;
  const picture = svg("svg", {
    class: "tree",
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "img",
    "aria-label": `${summaryOf(step)} The table below has the same in words.`,
  });
  const edges = svg("g");
  const boxes = svg("g");
  picture.append(edges, boxes);
  for (const place of places(root)) {
    for (const child of place.children) edges.append(edge(place, child));
    boxes.append(place.candidate || place.end ? box(place, step, onSelect) : rootBox(place, rootText));
  }
  return picture;
}

/** @param {Step} step @returns {Place} */
function build(step) {
  /** @type {Place} */
  const root = { candidate: null, children: [], x: 0, y: 0, end: false };
  const bySlot = new Map([[0, root]]);
  let last = root;
  for (const candidate of step.candidates) {
    /** @type {Place} */
    const place = { candidate, children: [], x: 0, y: 0, end: false };
    bySlot.get(candidate.parent)?.children.push(place);
    // An equal draw leads to the same slot; what hangs below is drawn once, on the kept path if it is there.
    if (!bySlot.has(candidate.slot) || candidate.kept) bySlot.set(candidate.slot, place);
    if (candidate.kept) last = place;
  }
  const token = step.tokens[step.tokens.length - 1];
  if (token && token.drawn !== null) last.children.push({ candidate: null, children: [], x: 0, y: 0, end: true });
  return root;
}

/** @param {Place} place @param {number} depth @param {() => number} nextRow */
function layout(place, depth, nextRow) {
  place.x = depth;
  for (const child of place.children) layout(child, depth + 1, nextRow);
  const ys = place.children.map((child) => child.y);
  place.y = ys.length ? (ys[0] + ys[ys.length - 1]) / 2 : nextRow();
}

/** @param {Place} place @returns {Place[]} */
function places(place) {
  return [place, ...place.children.flatMap(places)];
}

/** @param {Place} place */
function corner(place) {
  return { x: 2 + place.x * COLUMN, y: 2 + place.y * ROW + (ROW - HEIGHT) / 2 };
}

/** @param {Place} from @param {Place} to */
function edge(from, to) {
  const start = corner(from);
  const end = corner(to);
  const [x1, y1, x2, y2] = [start.x + WIDTH, start.y + HEIGHT / 2, end.x, end.y + HEIGHT / 2];
  const middle = (x1 + x2) / 2;
  const outcome = to.candidate ? outcomeOf(to.candidate) : "kept";
  return svg("path", { class: `edge ${outcome}`, d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` });
}

/** @param {Place} place @param {string} text */
function rootBox(place, text) {
  const { x, y } = corner(place);
  return svg(
    "g",
    { class: "node root", transform: `translate(${x} ${y})` },
    svg("rect", { width: WIDTH, height: HEIGHT, rx: 8 }),
    label(text, 10),
    svg("text", { class: "small", x: 10, y: 27 }, "so far"),
  );
}

/** @param {Place} place @param {Step} step @param {(candidate: Candidate) => void} onSelect */
function box(place, step, onSelect) {
  const { x, y } = corner(place);
  const candidate = place.candidate;
  const token = candidate ?? step.tokens[step.tokens.length - 1];
  const outcome = candidate ? outcomeOf(candidate) : "kept";
  const group = svg(
    "g",
    {
      class: `node ${outcome} ${originOf(token.origin).style} ${candidate ? "" : "end"}`,
      transform: `translate(${x} ${y})`,
      "data-key": candidate ? `${candidate.parent}/${candidate.child}` : "end",
    },
    svg("rect", { width: WIDTH, height: HEIGHT, rx: candidate ? 8 : 17 }),
    label(token.text, 10),
    svg("text", { class: "small", x: 10, y: 27 }, `p ${percent(token.p)}`),
    svg("text", { class: "mark", x: WIDTH - 10, y: 21, "text-anchor": "end" }, candidate ? MARKS[outcome] : "+"),
  );
  if (candidate) group.addEventListener("click", () => onSelect(candidate));
  return group;
}

/** @param {string} text @param {number} x */
function label(text, x) {
  const shown = visible(text);
  const short = [...shown].length > 9 ? `${[...shown].slice(0, 8).join("")}…` : shown;
  return svg("text", { class: "label", x, y: 14 }, short);
}
