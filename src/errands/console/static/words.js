/** How the console writes states, times, sizes and outcomes: always as words, with a glyph and a colour beside them. */

import { html, useEffect, useReducer } from "./vendor/preact.js";

/** Every state: its glyph, and the colour class. Glyphs differ in shape, so colour is never needed to tell them apart. */
const STATES = {
  submitted: { glyph: "○", tone: "quiet", says: "Queued" },
  working: { glyph: "◐", tone: "busy", says: "Working" },
  "input-required": { glyph: "?", tone: "asks", says: "Waits for an answer" },
  "auth-required": { glyph: "⚿", tone: "asks", says: "Waits for a sign-in" },
  completed: { glyph: "✓", tone: "good", says: "Completed" },
  failed: { glyph: "✗", tone: "bad", says: "Failed" },
  rejected: { glyph: "⊘", tone: "bad", says: "Rejected" },
  canceled: { glyph: "■", tone: "quiet", says: "Canceled" },
};

/** The quick filters of the list of tasks: what they are called, and the parameters of the list. */
export const VIEWS = [
  ["", "All", {}],
  ["flight", "In flight", { state: "submitted,working" }],
  ["waits", "Waits for someone", { waiting: 1 }],
  ["retrying", "Retrying", { state: "submitted,working", retried: 1 }],
  ["failed", "Failed", { state: "failed,rejected" }],
  ["done", "Completed", { state: "completed" }],
];

/** Return the words of a field's name: `First token at` for `firstTokenAt`. */
export function words(name) {
  const text = name.replace(/([a-z0-9])([A-Z])/g, "$1 $2").replaceAll("_", " ").toLowerCase();
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export const TERMINAL = ["completed", "failed", "canceled", "rejected"];

/** Return the short name of a state: `working` for `TASK_STATE_WORKING`. */
export function shortState(state) {
  return String(state ?? "").replace(/^TASK_STATE_/, "").toLowerCase().replaceAll("_", "-");
}

export function isTerminal(state) {
  return TERMINAL.includes(shortState(state));
}

/** Return the words of a state, such as `Waits for an answer`. */
export function stateWords(state) {
  return STATES[shortState(state)]?.says ?? shortState(state);
}

export function State({ state, asks = "" }) {
  const name = shortState(state);
  const { glyph, tone, says } = STATES[name] ?? { glyph: "·", tone: "quiet", says: name || "Unknown" };
  return html`
    <span class=${`state tone-${tone}`}><span class="glyph" aria-hidden="true">${glyph}</span>${asks ? "Waits for a review" : says}</span>`;
}

const OUTCOMES = {
  ok: { glyph: "✓", tone: "good" },
  failed: { glyph: "✗", tone: "bad" },
  refused: { glyph: "⊘", tone: "bad" },
  asked: { glyph: "?", tone: "asks" },
  waiting: { glyph: "…", tone: "asks" },
  running: { glyph: "◐", tone: "busy" },
  info: { glyph: "·", tone: "quiet" },
};

export function outcomeOf(name) {
  return OUTCOMES[name] ?? OUTCOMES.info;
}

/** Return a length of time in at most two units: `340 ms`, `1.2 s`, `4 min 10 s`, `2 h 4 min`. */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  const value = Math.max(0, ms);
  if (value < 1000) return `${Math.round(value)} ms`;
  if (value < 59_950) return `${(value / 1000).toFixed(value < 9_950 ? 1 : 0)} s`;
  const units = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];
  const index = units.findIndex(([, size]) => value >= size);
  const [name, size] = units[index], [small, smallSize] = units[index + 1];
  const whole = Math.floor(value / size), rest = Math.floor((value - whole * size) / smallSize);
  return rest ? `${whole} ${name} ${rest} ${small}` : `${whole} ${name}`;
}

/** Return a time in milliseconds, given as that or in ISO 8601; null without one. */
export function millis(time) {
  if (time === null || time === undefined || time === "") return null;
  const value = typeof time === "number" ? time : Date.parse(time);
  return Number.isNaN(value) ? null : value;
}

/** Render an age such as `3 min ago`; the exact time is its title. It is written again while it is shown. */
export function Ago({ time, suffix = " ago" }) {
  const at = millis(time);
  const now = useNow(at !== null && Date.now() - at < 90_000 ? 1000 : 30_000);
  if (at === null) return html`<span class="muted">–</span>`;
  const age = Math.max(0, now - at);
  const words = age < 1500 && suffix ? "just now" : aged(age) + suffix;
  return html`<time datetime=${new Date(at).toISOString()} title=${exact(at)}>${words}</time>`;
}

/** Return a length of time in whole units of one kind, for what is written again every second: `12 s`, `3 min`, `2 h`. */
export function aged(ms) {
  const found = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000]].find(([, size]) => ms >= size) ?? ["s", 1000];
  return `${Math.floor(Math.max(0, ms) / found[1])} ${found[0]}`;
}

/** Return the exact local time with its zone, and the same in UTC. */
export function exact(time) {
  const at = millis(time);
  if (at === null) return "";
  return `${new Date(at).toLocaleString([], { dateStyle: "medium", timeStyle: "long" })} (${new Date(at).toISOString()})`;
}

/** Return the time, again after every `every` milliseconds while the page is visible. */
export function useNow(every = 1000) {
  const [, tick] = useReducer((value) => value + 1, 0);
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden) tick(); }, every);
    return () => clearInterval(timer);
  }, [every]);
  return Date.now();
}

export function number(count) {
  return typeof count === "number" ? count.toLocaleString("en") : "–";
}

/** Return `1 task` or `3 tasks`. */
export function plural(count, word, words = `${word}s`) {
  return `${number(count)} ${count === 1 ? word : words}`;
}

/** Return the beginning and the end of an id: ids begin with the time, so ids of the same moment differ at the end. */
export function shortId(id) {
  const text = String(id ?? "");
  return text.length > 16 ? `${text.slice(0, 8)}…${text.slice(-4)}` : text;
}
