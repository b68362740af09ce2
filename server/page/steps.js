/** The steps of one answer, fetched from the server when somebody looks at them. */

import { getJson } from "./api.js";

const PAGE = 50;

/**
 * @typedef {{ slot: number, parent: number, depth: number, child: number, token_id: number, text: string,
 *   origin: string, p: number, q: number | null, draft: number | null, accept: number, threshold: number | null,
 *   uniform: number | null, shared: boolean, reached: boolean, kept: boolean }} Candidate
 * @typedef {{ token_id: number, text: string, origin: string, p: number, drawn: number | null }} Token
 * @typedef {{ index: number, position: number, verifier: string, candidates: Candidate[], tokens: Token[] }} Step
 */

export class Steps {
  /** @param {string} requestId */
  constructor(requestId) {
    this.requestId = requestId;
    this.count = 0; // known so far
    /** @type {Map<number, Step>} */
    this.steps = new Map();
    /** @type {Map<number, Promise<void>>} */
    this.pages = new Map();
  }

  /** A step, or null if the server has forgotten it. Throws a Problem. @param {number} index */
  async at(index) {
    const known = this.steps.get(index);
    if (known) return known;
    const page = Math.floor(index / PAGE);
    if (!this.pages.has(page)) this.pages.set(page, this.fetch(page * PAGE));
    try {
      await this.pages.get(page);
    } finally {
      this.pages.delete(page); // a running answer has more to tell the next time
    }
    return this.steps.get(index) ?? null;
  }

  /** @param {number} start */
  async fetch(start) {
    const id = encodeURIComponent(this.requestId);
    const found = await getJson(`v1/requests/${id}/speculation?start=${start}&limit=${PAGE}`);
    this.count = found.num_steps;
    for (const step of found.steps) this.steps.set(step.index, step);
  }
}
