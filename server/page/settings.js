/** The settings form: empty fields mean the server's own defaults. */

import { h } from "./dom.js";
import { DEFAULTS, saveSettings } from "./state.js";

/** @typedef {import("./state.js").Settings} Settings */
/** @typedef {{ mode: string, verifiers: { name: string, exact: boolean }[], verifier: string, max_nodes: number, max_depth: number, proposers: string[] }} Speculation */

/** @type {[keyof Settings, string, string, number, number | null, number | "any"][]} */
const NUMBERS = [
  ["temperature", "Temperature", "0: greedy. Higher: more varied.", 0, 100, "any"],
  ["top_p", "Top p", "Only the likeliest tokens that make up this share.", 0, 1, "any"],
  ["max_tokens", "Longest answer", "In tokens.", 1, null, 1],
  ["seed", "Seed", "The same seed gives the same answer.", 0, null, 1],
];

/**
 * @param {HTMLElement} element
 * @param {Settings} settings changed in place
 * @param {Speculation | null} speculation what the server can do; null: no proposers
 * @param {Record<string, number>} defaults the model's own
 */
export function drawSettings(element, settings, speculation, defaults) {
  const keep = () => saveSettings(settings);
  const system = h("textarea", { id: "set-system", rows: 2, dir: "auto", input: (/** @type {Event} */ event) => {
    settings.system = /** @type {HTMLTextAreaElement} */ (event.target).value;
    keep();
  } });
  /** @type {HTMLTextAreaElement} */ (system).value = settings.system;
  const fields = [field("set-system", "System prompt", "What the model should be.", system, "wide")];
  for (const [name, label, hint, low, high, step] of NUMBERS) {
    const model = defaults[name];
    fields.push(numberField(settings, name, label, hint, low, high, step, model ?? "default", keep));
  }
  if (speculation) {
    fields.push(
      modeField(settings, speculation, keep),
      verifierField(settings, speculation, keep),
      ...(speculation.proposers.length > 1 ? [proposerField(settings, speculation, keep)] : []),
      numberField(settings, "max_nodes", "Tree budget", `Candidates a step, at most ${speculation.max_nodes}.`, 1, speculation.max_nodes, 1, speculation.max_nodes, keep),
      numberField(settings, "max_depth", "Tree depth", `Levels, at most ${speculation.max_depth}.`, 1, speculation.max_depth, 1, speculation.max_depth, keep),
    );
  } else {
    fields.push(h("p", { class: "note wide" }, "This server runs without a draft or another proposer: every token is drawn by the target alone."));
  }
  const reset = h("button", { type: "button", class: "quiet", click: () => {
    Object.assign(settings, DEFAULTS);
    keep();
    drawSettings(element, settings, speculation, defaults);
  } }, "Back to the defaults");
  element.replaceChildren(h("div", { class: "settings-grid" }, ...fields), reset);
}

/** @param {string} id @param {string} label @param {string} hint @param {HTMLElement} control @param {string} [style] */
function field(id, label, hint, control, style = "") {
  control.setAttribute("aria-describedby", `${id}-hint`);
  return h("div", { class: `field ${style}` }, h("label", { for: id }, label), control, h("small", { id: `${id}-hint` }, hint));
}

/**
 * @param {Settings} settings @param {keyof Settings} name @param {string} label @param {string} hint
 * @param {number} low @param {number | null} high @param {number | "any"} step
 * @param {number | string} placeholder @param {() => void} keep
 */
function numberField(settings, name, label, hint, low, high, step, placeholder, keep) {
  const id = `set-${name}`;
  const input = /** @type {HTMLInputElement} */ (h("input", { id, type: "number", min: low, max: high, step, placeholder, inputmode: "decimal" }));
  input.value = settings[name] === null ? "" : String(settings[name]);
  input.addEventListener("input", () => {
    // What cannot be right is sent all the same: the server says what would be.
    Object.assign(settings, { [name]: input.value === "" ? null : input.valueAsNumber });
    input.setAttribute("aria-invalid", String(!input.validity.valid));
    keep();
  });
  return field(id, label, hint, input);
}

/** @param {Settings} settings @param {Speculation} speculation @param {() => void} keep */
function modeField(settings, speculation, keep) {
  return selectField(settings, "mode", "Speculation", "Auto: as much as pays. Off: the target alone.", [
    ["", `${speculation.mode} (the server's)`],
    ["auto", "auto"],
    ["fixed", "fixed trees"],
    ["off", "off"],
  ], keep);
}

/** @param {Settings} settings @param {Speculation} speculation @param {() => void} keep */
function verifierField(settings, speculation, keep) {
  return selectField(settings, "verifier", "Verifier", "The rule that keeps or refuses candidates.", [
    ["", `${speculation.verifier} (the server's)`],
    ...speculation.verifiers.map((one) => /** @type {[string, string]} */ ([one.name, one.exact ? one.name : `${one.name} (not exact)`])),
  ], keep);
}

/** @param {Settings} settings @param {Speculation} speculation @param {() => void} keep */
function proposerField(settings, speculation, keep) {
  return selectField(settings, "proposer", "Proposer", "Who says what may follow.", [
    ["", "all of the server's"],
    ...speculation.proposers.map((name) => /** @type {[string, string]} */ ([name, `${name} alone`])),
  ], keep);
}

/**
 * @param {Settings} settings @param {"mode" | "verifier" | "proposer"} name @param {string} label @param {string} hint
 * @param {[string, string][]} options values and what they read @param {() => void} keep
 */
function selectField(settings, name, label, hint, options, keep) {
  const id = `set-${name}`;
  const select = /** @type {HTMLSelectElement} */ (h("select", { id }, ...options.map(([value, text]) => h("option", { value }, text))));
  select.value = settings[name];
  if (select.value !== settings[name]) select.value = settings[name] = ""; // the server no longer has it
  select.addEventListener("change", () => {
    settings[name] = select.value;
    keep();
  });
  return field(id, label, hint, select);
}
