/**
 * The timeline of a task: an outline strip in SVG, and below it one line for each span with filters.
 *
 * Both show the spans that the server computes from the log. The strip is a picture of the list, so screen readers and
 * keyboard users use the list.
 */

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { get } from "./api.js";
import { Link } from "./app.js";
import { Json, fileSize, visible } from "./parts.js";
import { usePolled } from "./polling.js";
import { useWindowed } from "./windowed.js";
import { duration, exact, isTerminal, millis, number, outcomeOf, plural, shortId, shortState, stateWords, words } from "./words.js";

/** The rows of the strip, top to bottom, and the kinds of the filter. */
export const LANES = [
  ["state", "State"], ["message", "Messages"], ["model", "Model"], ["tool", "Tools"], ["policy", "Policy"],
  ["people", "People"], ["output", "Output"], ["attempt", "Attempts"],
];
const NAMES = new Map(LANES);
/** Periods in which nothing begins or ends are folded if longer than a minute, or than a quarter of a short task. */
const IDLE = 60_000, SHORTEST_IDLE = 1000;
const FOLD = 76, LABELS = 74, ROW = 16, PAD = 5, RIBBON = 18;
/** How deep timelines of delegated tasks are shown inside of each other. */
const DEEPEST = 8;

// The axis

/**
 * Return the parts of the time between two moments: `{from, to, folded}`. A part is folded when nothing begins or ends
 * in it for long and nothing works in it, such as the hours in which a review waits.
 */
export function partsOfTime(spans, start, end, trueScale = false) {
  const moments = new Set([start, end]);
  for (const span of spans) for (const at of [span.at, span.until]) if (at > start && at < end) moments.add(at);
  const sorted = [...moments].sort((one, other) => one - other);
  const longest = Math.min(IDLE, Math.max(SHORTEST_IDLE, (end - start) / 4));
  const busy = spans.filter((span) => span.lane === "model" || span.lane === "tool" || (span.lane === "state" && span.detail?.state === "working"));
  const parts = [];
  for (let index = 1; index < sorted.length; index++) {
    const from = sorted[index - 1], to = sorted[index];
    const idle = !trueScale && to - from > longest && !busy.some((span) => span.at < to && (span.until ?? end) > from);
    const before = parts.at(-1);
    if (!idle && before && !before.folded) before.to = to;
    else parts.push({ from, to, folded: idle });
  }
  return parts.length ? parts : [{ from: start, to: Math.max(end, start + 1), folded: false }];
}

/** Return `{x, time, folds}` for an axis of a width: from a time to a place, and back. */
export function axisOf(parts, width) {
  const open = parts.filter((part) => !part.folded);
  const shown = open.reduce((sum, part) => sum + part.to - part.from, 0) || 1;
  const room = Math.max(40, width - (parts.length - open.length) * FOLD);
  let place = 0;
  const placed = parts.map((part) => {
    const size = part.folded ? FOLD : (part.to - part.from) / shown * room;
    place += size;
    return { ...part, x: place - size, size };
  });
  const x = (time) => {
    const part = placed.find((one) => time <= one.to) ?? placed.at(-1);
    const share = (Math.min(Math.max(time, part.from), part.to) - part.from) / (part.to - part.from || 1);
    return part.x + share * part.size;
  };
  const time = (at) => {
    const part = placed.find((one) => at <= one.x + one.size) ?? placed.at(-1);
    return part.from + Math.min(1, Math.max(0, (at - part.x) / (part.size || 1))) * (part.to - part.from);
  };
  return { x, time, folds: placed.filter((part) => part.folded) };
}

/** Return the lanes that have spans, each with its rows: spans that overlap are below each other, in up to three. */
export function stack(spans, end) {
  const lanes = [];
  for (const [lane] of LANES) {
    if (lane === "attempt") continue;
    const rows = [];
    for (const span of spans) {
      if (span.lane !== lane) continue;
      const free = rows.findIndex((row) => row.until <= span.at);
      const row = free >= 0 ? free : Math.min(rows.length, 2);
      rows[row] ??= { spans: [], until: 0 };
      rows[row].spans.push(span);
      rows[row].until = Math.max(rows[row].until, span.until ?? (span.outcome === "running" || span.outcome === "waiting" ? end : span.at));
    }
    if (rows.length) lanes.push({ lane, rows: rows.map((row) => row.spans) });
  }
  return lanes;
}

// The strip

export function Strip({ timeline, end, selected, onSelect, cursor, range, onRange }) {
  const box = useRef(null);
  const [width, setWidth] = useState(800);
  const [trueScale, setTrueScale] = useState(false);
  const [drag, setDrag] = useState(null);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.round(entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);

  const start = timeline.start ?? timeline.spans[0]?.at ?? end;
  const [from, to] = range ? [start + range[0], Math.min(start + range[1], Math.max(end, start + 1))] : [start, Math.max(end, start + 1)];
  const spans = useMemo(
    () => timeline.spans.filter((span) => span.at <= to && (span.until ?? to) >= from), [timeline, from, to],
  );
  const parts = useMemo(() => partsOfTime(spans, from, to, trueScale), [spans, from, to, trueScale]);
  const labels = width < 480 ? 0 : LABELS;
  const axis = axisOf(parts, width - labels - 8);
  const x = (time) => labels + axis.x(time);
  const lanes = stack(spans, to);
  let height = RIBBON;
  const tops = lanes.map(({ rows }) => { const top = height; height += rows.length * ROW + PAD; return top; });
  if (axis.folds.length) height += 14;
  const foot = height;
  height += 16;

  const place = (event) => event.clientX - event.currentTarget.getBoundingClientRect().left - labels;
  const down = (event) => {
    if (event.button === 0 && !event.target.closest("[data-span]")) setDrag([place(event), place(event)]);
  };
  const move = (event) => drag && setDrag([drag[0], place(event)]);
  const up = () => {
    if (drag && Math.abs(drag[1] - drag[0]) > 6) {
      const [one, other] = drag.map((at) => axis.time(at)).sort((a, b) => a - b);
      if (other - one >= 1) onRange([Math.round(one - start), Math.round(other - start)]);
    }
    setDrag(null);
  };
  const pick = (event) => {
    const id = event.target.closest("[data-span]")?.dataset.span;
    if (id) onSelect(id);
  };
  const folded = axis.folds.length > 0 || trueScale;
  return html`
    <div class="strip" ref=${box}>
      <div class="strip-tools">
        <span class="muted">${range ? `${duration(range[0])} to ${duration(range[1])} after the beginning` : `${duration(to - from)} in all`}</span>
        ${range && html`<button type="button" class="small" onClick=${() => onRange(null)}>Show all</button>`}
        ${folded && html`<label class="check"><input type="checkbox" checked=${trueScale} onChange=${(event) => setTrueScale(event.target.checked)} /> True scale</label>`}
        <span class="muted wide-only">Drag over the strip to zoom</span>
      </div>
      <svg class="outline" width=${width} height=${height} role="img"
        aria-label=${`Outline of ${plural(timeline.spans.length, "span")}; the list below has the same`}
        onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerLeave=${up} onClick=${pick}>
        <${Patterns} />
        ${(timeline.attempts ?? []).map((attempt) => html`<${Band} ...${{ attempt, x, from, to, height }} />`)}
        ${axis.folds.map((fold) => html`
          <g class="fold"><rect x=${labels + fold.x} y="0" width=${fold.size} height=${foot} />
          <text x=${labels + fold.x + fold.size / 2} y=${foot - 4} text-anchor="middle">⋯ ${duration(fold.to - fold.from)}</text>
          <title>Nothing happened for ${duration(fold.to - fold.from)}</title></g>`)}
        ${lanes.map(({ lane, rows }, index) => html`
          ${labels > 0 && html`<text class="lane-name" x="0" y=${tops[index] + 11}>${NAMES.get(lane)}</text>`}
          <line class="lane-line" x1=${labels} x2=${width} y1=${tops[index] - 3} y2=${tops[index] - 3} />
          ${rows.map((row, at) => row.map((span) => html`
            <${Mark} key=${span.id} ...${{ span, x, from, to, y: tops[index] + at * ROW, chosen: span.id === selected, past: cursor !== null && span.at > cursor }} />`))}`)}
        ${cursor !== null && cursor >= from && cursor <= to && html`
          <line class="cursor" x1=${x(cursor)} x2=${x(cursor)} y1="0" y2=${height - 12} />`}
        ${drag && html`<rect class="brush" x=${labels + Math.min(...drag)} y="0" width=${Math.abs(drag[1] - drag[0])} height=${height - 12} />`}
        <text class="axis-end" x=${labels} y=${height - 2}>${duration(from - start)}</text>
        <text class="axis-end" x=${width - 4} y=${height - 2} text-anchor="end">${duration(to - start)}</text>
      </svg>
    </div>`;
}

function Patterns() {
  return html`
    <defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
      <rect class="hatch-ground" width="6" height="6" /><line class="hatch-line" x1="0" y1="0" x2="0" y2="6" />
    </pattern></defs>`;
}

/** An attempt, as a band behind the lanes. The edge of one that lost its lease is torn. */
function Band({ attempt, x, from, to, height }) {
  const begin = Math.max(millis(attempt.at) ?? from, from), end = Math.min(millis(attempt.until) ?? to, to);
  if (begin > to || end < from) return null;
  const left = x(begin), right = Math.max(x(end), left + 2), bottom = height - 14;
  const torn = attempt.end === "lost";
  const teeth = [];
  if (torn) for (let y = bottom, odd = 0; y > 0; y -= 5, odd ^= 1) teeth.push(`${right - (odd ? 4 : 0)} ${y}`);
  const edge = torn ? `L${teeth.join("L")}` : `V0`;
  return html`
    <g class=${`band ${attempt.attempt % 2 ? "odd" : "even"} ${torn ? "torn" : ""}`}>
      <path d=${`M${left} 0V${bottom}H${right}${edge}L${right - (torn ? 4 : 0)} 0Z`} />
      ${right - left > 60 && html`<text x=${left + 4} y="11">attempt ${attempt.attempt}${right - left > 190 && attempt.worker ? ` · ${attempt.worker}` : ""}</text>`}
      <title>Attempt ${attempt.attempt}${attempt.worker ? ` by ${attempt.worker}` : ""}${torn ? ", which lost its lease" : ""}</title>
    </g>`;
}

/** A span: a bar while it takes time, else a mark. Waiting is hatched, working is solid. */
function Mark({ span, x, from, to, y, chosen, past }) {
  const { glyph, tone } = outcomeOf(span.outcome);
  const open = span.until === null && (span.outcome === "running" || span.outcome === "waiting" || span.outcome === "asked");
  const left = x(Math.max(span.at, from)), right = x(Math.min(span.until ?? (open ? to : span.at), to));
  const waits = span.lane === "people" || span.outcome === "waiting" || span.outcome === "asked" || (span.lane === "state" && /submitted|required/.test(span.detail?.state));
  const state = span.lane === "state" ? `is-${shortState(span.detail?.state)}` : "";
  const names = `mark tone-${tone} lane-${span.lane} ${state} ${waits ? "waits" : ""} ${chosen ? "chosen" : ""} ${past ? "past" : ""} ${span.problem ? "problem" : ""}`;
  const long = right - left >= 4;
  return html`
    <g class=${names} data-span=${span.id}>
      <title>${titleOf(span)}${span.until !== null && span.until > span.at ? ` · ${duration(span.until - span.at)}` : ""}</title>
      ${span.lane === "policy" || !long
        ? html`<rect class="target" x=${left - 6} y=${y - 1} width="12" height="14" /><text class="mark-glyph" x=${left} y=${y + 10} text-anchor="middle">${span.lane === "output" || span.lane === "message" ? "▪" : glyph}</text>`
        : html`<rect class="bar" x=${left} y=${y} width=${right - left} height="11" rx="2" />
          ${right - left > 54 && html`<text class="bar-text" x=${left + 4} y=${y + 9}>${fitted(titleOf(span), right - left)}</text>`}`}
    </g>`;
}

/** Return the words of a span. */
function titleOf(span) {
  return span.lane === "state" && span.detail?.state ? stateWords(span.detail.state) : visible(span.title);
}

/** Return the words about the outcome of a span beside its glyph; "" if the title says it. */
function outcomeWords(span) {
  if (span.lane === "attempt" && span.detail?.end) return { lost: "lost its lease", "given back": "given back" }[span.detail.end] ?? "";
  return span.lane === "state" || span.outcome === "info" || span.outcome === "ok" ? "" : span.outcome;
}

function fitted(text, width) {
  const most = Math.floor((width - 8) / 5.6);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

// The list

/** Return whether a span is shown by filters: `kinds` (a set, empty for all), `problems` and `text`. */
export function passes(span, { kinds, problems, text }) {
  return (kinds.size === 0 || kinds.has(span.lane)) && (!problems || span.problem)
    && (text === "" || `${span.title} ${JSON.stringify(span.detail ?? {})}`.toLowerCase().includes(text.toLowerCase()));
}

/**
 * Return the timelines of delegated tasks that are shown inside of that of their parent: `shown`, `{timeline, error}` by
 * the id of the task, and `toggle`. Those of tasks that have not ended are read again every two seconds.
 */
export function useDelegated() {
  const [shown, setShown] = useState(new Map());
  const update = (id, change) => setShown((old) => (old.has(id) ? new Map(old).set(id, { ...old.get(id), ...change }) : old));
  const read = async (id) => {
    try { update(id, { timeline: await get(`admin/tasks/${encodeURIComponent(id)}/timeline`), error: null }); }
    catch (error) { update(id, { error }); }
  };
  const open = [...shown].filter(([, { timeline, error }]) => error?.status !== 404 && !timeline?.spans.some(isEnd)).map(([id]) => id);
  usePolled(() => Promise.all(open.map(read)), 2000, [open.join()]);
  const toggle = (id) => setShown((old) => {
    const next = new Map(old);
    if (!next.delete(id)) next.set(id, { timeline: null, error: null });
    return next;
  });
  return { shown, toggle };
}

function isEnd(span) {
  return span.lane === "state" && isTerminal(span.detail?.state);
}

/** Return the rows of a list: the spans of a timeline that pass, each followed by those of the task it has delegated. */
function rowsOf(timeline, filters, delegated, depth = 0, within = "") {
  const titles = new Map(timeline.spans.map((span) => [span.id, span]));
  const rows = [];
  for (const span of timeline.spans) {
    if (!passes(span, filters)) continue;
    const id = within + span.id, child = span.detail?.child;
    rows.push({ id, span, depth, titles, within });
    const found = depth < DEEPEST ? delegated.shown.get(child) : undefined;
    if (found?.timeline) rows.push(...rowsOf(found.timeline, filters, delegated, depth + 1, `${id}/`));
    else if (found) rows.push({ id: `${id}/`, depth: depth + 1, note: noteOf(found.error) });
  }
  return rows;
}

function noteOf(error) {
  if (!error) return "Loading …";
  return error.status === 404 ? "This task is on another server, or it is not yours." : error.message;
}

/**
 * The spans, one line each. `opened` is the set of the ids that are open; `filters` are those of `passes`, and
 * `onFilter` changes some of them. Where `nests` is true, a delegation can be opened to the timeline of its task.
 */
export function SpanList({ timeline, end, filters, onFilter, selected, onSelect, opened, onToggle, cursor, nests, children }) {
  const delegated = useDelegated();
  const shown = useMemo(() => rowsOf(timeline, filters, delegated), [timeline, filters, delegated.shown]);
  const counts = useMemo(() => {
    const found = new Map();
    for (const span of timeline.spans) found.set(span.lane, (found.get(span.lane) ?? 0) + 1);
    return found;
  }, [timeline]);
  const rows = useWindowed(shown.length, 37, (index) => shown[index]?.id);
  const hidden = timeline.spans.length - shown.filter((row) => row.depth === 0).length;
  const problems = timeline.spans.filter((span) => span.problem).length;
  const start = timeline.start ?? timeline.spans[0]?.at ?? 0;
  useEffect(() => { rows.show(shown.findIndex((row) => row.id === selected)); }, [selected]);
  const toggleKind = (lane) => {
    const kinds = new Set(filters.kinds);
    if (!kinds.delete(lane)) kinds.add(lane);
    onFilter({ kinds });
  };
  return html`
    <div class="filters" role="group" aria-label="Filter the events">
      ${LANES.filter(([lane]) => counts.has(lane)).map(([lane, name]) => html`
        <button type="button" class="chip" aria-pressed=${filters.kinds.has(lane)} onClick=${() => toggleKind(lane)}>${name} <span class="count">${counts.get(lane)}</span></button>`)}
      <button type="button" class="chip" aria-pressed=${filters.problems} onClick=${() => onFilter({ problems: !filters.problems })}>Only problems <span class="count">${problems}</span></button>
      <input type="search" placeholder="Filter by text" aria-label="Filter the events by text" value=${filters.text}
        onInput=${(event) => onFilter({ text: event.target.value })} />
      ${children}
    </div>
    ${hidden > 0 && html`<p class="hidden-count muted" role="status">${plural(hidden, "event")} hidden by the filters.
      <button type="button" class="link" onClick=${() => onFilter({ kinds: new Set(), problems: false, text: "" })}>Show all</button></p>`}
    <table class="spans">
      <thead><tr><th scope="col">Version</th><th scope="col">Time</th><th scope="col">What happened</th><th scope="col" class="right">Took</th></tr></thead>
      <tbody ref=${rows.ref}>
        ${rows.before > 0 && html`<tr aria-hidden="true"><td colspan="4" class="spacer" style=${{ height: `${rows.before}px` }}></td></tr>`}
        ${shown.slice(rows.first, rows.last).map((row, index) => row.note
          ? html`<tr key=${row.id} class="nested" style=${{ "--depth": row.depth }}><td></td><td></td><td class="muted" role="status">${row.note}</td><td></td></tr>`
          : html`<${SpanRow} key=${row.id} ...${{ ...row, start, end, delegated: nests && row.depth < DEEPEST ? delegated : null, measure: rows.measure(rows.first + index),
            chosen: row.id === selected, open: opened.has(row.id), onSelect, onToggle, past: cursor !== null && row.span.at > cursor }} />`)}
        ${rows.after > 0 && html`<tr aria-hidden="true"><td colspan="4" class="spacer" style=${{ height: `${rows.after}px` }}></td></tr>`}
      </tbody>
    </table>
    ${shown.length === 0 && html`<p class="empty">${timeline.spans.length ? "No event passes the filters." : "Nothing has happened yet. Events appear here as the task continues."}</p>`}`;
}

function SpanRow({ id, span, depth, within, delegated, start, end, titles, measure, chosen, open, onSelect, onToggle, past }) {
  const { glyph, tone } = outcomeOf(span.outcome);
  const takes = span.until !== null ? span.until - span.at : span.outcome === "running" || span.outcome === "waiting" ? end - span.at : null;
  const toggle = () => { onSelect(id); onToggle(id); };
  const child = delegated && span.detail?.child;
  return html`
    <tr class=${`span tone-${tone} ${depth ? "nested" : ""} ${chosen ? "chosen" : ""} ${span.problem ? "problem" : ""} ${past ? "past" : ""}`} style=${{ "--depth": depth }} ref=${measure} id=${`span-${id}`}>
      <td class="version">${span.from}${span.to > span.from ? `–${span.to}` : ""}</td>
      <td class="at" title=${exact(span.at)}>+${duration(span.at - start)}</td>
      <td><div class=${child ? "delegates" : ""}>
        <button type="button" class="row-button" aria-expanded=${open} onClick=${toggle}>
          <span class="glyph" aria-hidden="true">${glyph}</span><span class="lane-tag">${NAMES.get(span.lane) ?? span.lane}</span>
          <span class="title">${titleOf(span)}</span>${outcomeWords(span) && html`<span class="outcome">${outcomeWords(span)}</span>`}
        </button>
        ${child && html`<button type="button" class="small nest" aria-expanded=${delegated.shown.has(child)} onClick=${() => delegated.toggle(child)}
          title="Show the timeline of the task that was delegated"><span aria-hidden="true">${delegated.shown.has(child) ? "▾" : "▸"}</span> Task ${visible(shortId(child))}</button>`}</div>
        ${open && html`<${Detail} span=${span} titles=${titles} onSelect=${(other) => onSelect(within + other)} />`}
      </td>
      <td class="right took">${takes === null || (takes === 0 && span.lane !== "model") ? "" : duration(takes)}${span.until === null && takes !== null ? " so far" : ""}</td>
    </tr>`;
}

/** The content of an open span: its facts as a table, its causes as buttons, its bounds, and the JSON on demand. */
function Detail({ span, titles, onSelect }) {
  const [raw, setRaw] = useState(false);
  const facts = Object.entries(span.detail ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== "" && !(Array.isArray(value) && value.length === 0));
  const causes = (span.causes ?? []).map((id) => titles.get(id)).filter(Boolean);
  const effects = [...titles.values()].filter((one) => (one.causes ?? []).includes(span.id));
  const link = (one) => html`<li><button type="button" class="link" onClick=${() => onSelect(one.id)}>${titleOf(one)}</button></li>`;
  return html`
    <div class="detail">
      <dl class="facts">
        ${facts.map(([name, value]) => html`<div><dt>${words(name)}</dt><dd><${Fact} name=${name} value=${value} /></dd></div>`)}
        <div><dt>At</dt><dd>${exact(span.at)}</dd></div>
        ${span.attempt ? html`<div><dt>Attempt</dt><dd>${span.attempt}</dd></div>` : null}
      </dl>
      ${causes.length > 0 && html`<p class="label">Because of</p><ul class="plain">${causes.map(link)}</ul>`}
      ${effects.length > 0 && html`<p class="label">Led to</p><ul class="plain">${effects.map(link)}</ul>`}
      <button type="button" class="small" aria-expanded=${raw} onClick=${() => setRaw(!raw)}>JSON</button>
      ${raw && html`<${Json} value=${span} />`}
    </div>`;
}

function Fact({ name, value }) {
  if (name === "child") return html`<${Link} to=${`tasks/${encodeURIComponent(value)}`}><code>${visible(value)}</code></${Link}>`;
  if (typeof value === "object") return html`<${Json} value=${value} />`;
  if (typeof value === "number") return /At$/.test(name) ? exact(value) : name === "bytes" ? fileSize(value) : number(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return html`<span class="pre">${visible(String(value))}</span>`;
}
