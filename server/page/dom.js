/** Building elements. Text only ever enters as text nodes, never as markup. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * @param {Element} element
 * @param {Record<string, unknown>} props attributes; functions become listeners; null and false are left out
 * @param {(Node | string | null | undefined)[]} children
 */
function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === "function") element.addEventListener(name, /** @type {EventListener} */ (value));
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/**
 * @param {string} tag
 * @param {Record<string, unknown>} [props]
 * @param {...(Node | string | null | undefined)} children
 * @returns {HTMLElement}
 */
export function h(tag, props = {}, ...children) {
  return /** @type {HTMLElement} */ (fill(document.createElement(tag), props, children));
}

/** The same for SVG. @param {string} tag @param {Record<string, unknown>} [props] @param {...(Node | string)} children */
export function svg(tag, props = {}, ...children) {
  return /** @type {SVGElement} */ (fill(document.createElementNS(SVG, tag), props, children));
}

/** @param {string} id @returns {HTMLElement} */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`no element #${id}`);
  return element;
}

/** @param {number} value probability */
export function percent(value) {
  if (value > 0 && value < 0.001) return "<0.1 %";
  if (value < 1 && value > 0.999) return ">99.9 %";
  return `${(100 * value).toFixed(value < 0.1 || (value > 0.99 && value < 1) ? 1 : 0)} %`;
}

/** A probability as in tables: .915. @param {number} value */
export function share(value) {
  if (value >= 1) return "1";
  if (value >= 0.9995) return ">.999";
  if (value > 0 && value < 0.0005) return "<.001";
  return value === 0 ? "0" : value.toFixed(3).slice(1);
}

/** @param {number} value */
export function number(value, digits = 2) {
  return value.toFixed(digits);
}

/** Text for screen readers, said when they are free. @param {string} text */
export function say(text) {
  byId("spoken").textContent = text;
}

/** White space and control characters made visible; for labels, not for the answer. @param {string} text */
export function visible(text) {
  if (text === "") return "∅";
  return text
    .replace(/\n/g, "⏎")
    .replace(/\t/g, "⇥")
    .replace(/ /g, "␣")
    .replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (character) => {
      return `‹${character.charCodeAt(0).toString(16).padStart(4, "0")}›`;
    });
}
