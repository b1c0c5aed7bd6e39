/** The log of a task as this page has read it, and a slider that shows the task as it was at a version. */

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { get } from "./api.js";
import { fold } from "./fold.js";
import { State, duration, exact, number } from "./words.js";

const PAGE = 1000;
/** The number of events between tasks that are kept, so that a step of the slider folds few events. */
const KEPT = 250;
/** Milliseconds without a move after which the slider counts as resting. */
const RESTS = 300;

/**
 * Return the log of a task: `events` that were read, `gap`, `loading`, and `all()`, which reads those that are missing
 * and returns the events. Nothing is read before `all()` is called.
 */
export function useLog(id, newest) {
  const [state, setState] = useState({ id, events: [], gap: false, loading: false, error: null });
  const store = useRef(null);
  if (store.current?.id !== id) store.current = { id, events: [], after: 0, gap: false, reading: null };
  const limit = useRef(newest);
  limit.current = newest;
  const all = () => {
    const log = store.current;
    log.reading ??= (async () => {
      try {
        while (log.after < limit.current) {
          const page = await get(`admin/tasks/${encodeURIComponent(id)}/events`, { after: log.after, limit: PAGE });
          log.gap ||= page.gap;
          for (const event of page.events) log.events.push(event);
          // For callers who may not see every kind of event, versions may jump.
          log.after = page.next ?? Math.max(limit.current, page.events.at(-1)?.version ?? 0);
          if (store.current === log) setState({ id, events: log.events.slice(), gap: log.gap, loading: true, error: null });
        }
        if (store.current === log) setState({ id, events: log.events.slice(), gap: log.gap, loading: false, error: null });
      } catch (error) {
        if (store.current === log) setState((old) => ({ ...old, loading: false, error }));
        throw error;
      } finally {
        log.reading = null;
      }
      return log.events;
    })();
    return log.reading;
  };
  return { ...(state.id === id ? state : { events: [], gap: false, loading: false, error: null }), all };
}

/** Return a function from an index to the task after that event. It keeps tasks in between. */
export function replayer(events) {
  const kept = new Map([[-1, null]]);
  return (index) => {
    let at = Math.floor((index + 1) / KEPT) * KEPT - 1;
    while (!kept.has(at)) at -= KEPT;
    let task = kept.get(at);
    while (at < index) {
      const end = Math.min(index, at + KEPT);
      // An event that is too large to be shown has no data.
      task = fold(task, events.slice(at + 1, end + 1).filter((event) => event.data));
      at = end;
      if ((at + 1) % KEPT === 0) kept.set(at, task);
    }
    return task;
  };
}

/**
 * The slider. `version` is that of the address, "" when the newest is shown; `setReplay` is given `{task, at, event}`
 * of the version that is shown, or null.
 */
export function Replay({ log, newest, start, version, setVersion, setReplay }) {
  const active = version !== undefined && version !== "";
  const [playing, setPlaying] = useState(false);
  // Where the slider was moved to. The address follows when it rests: browsers limit how often it may change.
  const [moved, move] = useState(null);
  const at = useMemo(() => (log.gap ? () => null : replayer(log.events)), [log.events, log.gap]);
  const versions = log.events;
  const wanted = moved ?? Number(version);
  let index = active ? versions.findLastIndex((event) => event.version <= wanted) : -1;
  if (active && index < 0 && versions.length) index = 0;
  const event = versions[index];

  useEffect(() => {
    if (moved === null) return undefined;
    if (!active) { move(null); return undefined; }
    if (Number(version) === moved) { move(null); return undefined; }
    const timer = setTimeout(() => setVersion(moved), RESTS);
    return () => clearTimeout(timer);
  }, [moved, version, active]);
  useEffect(() => { if (active) log.all().catch(() => {}); }, [active, newest]);
  useEffect(() => {
    setReplay(active && event ? { task: at(index), at: event.at, event } : null);
  }, [active, index, at]);
  useEffect(() => {
    if (!playing) return undefined;
    if (!active || index >= versions.length - 1) { setPlaying(false); return undefined; }
    // In real time, but without pauses longer than a second, and in half a minute at most.
    const gap = versions[index + 1].at - event.at;
    const step = Math.max(1, Math.ceil(versions.length / 600));
    const timer = setTimeout(() => move(versions[Math.min(versions.length - 1, index + step)].version), Math.min(Math.max(gap, 40), 1000, 30_000 * step / versions.length));
    return () => clearTimeout(timer);
  }, [playing, index, versions.length]);

  if (!active) return null;
  const to = (next) => { setPlaying(false); move(versions[Math.max(0, Math.min(versions.length - 1, next))]?.version ?? null); };
  const task = event ? at(index) : null;
  const play = () => {
    if (!playing && index >= versions.length - 1) move(versions[0].version);
    setPlaying(!playing);
  };
  return html`
    <section class="replay active" aria-label="Replay">
      <div class="replay-controls">
        <button type="button" class="small" aria-label="Previous event" disabled=${index <= 0} onClick=${() => to(index - 1)}>◂</button>
        <button type="button" class="small play" disabled=${!versions.length} onClick=${play}>${playing ? "Pause" : "Play"}</button>
        <button type="button" class="small" aria-label="Next event" disabled=${index >= versions.length - 1} onClick=${() => to(index + 1)}>▸</button>
        <input type="range" min="0" max=${Math.max(0, versions.length - 1)} value=${Math.max(0, index)} aria-label="Version"
          aria-valuetext=${event ? `version ${event.version}` : "loading"} onInput=${(input) => to(Number(input.target.value))} />
        <button type="button" class="small" onClick=${() => { setPlaying(false); move(null); setVersion(""); }}>Back to now</button>
      </div>
      <p class="replay-state" role="status">
        ${log.error ? html`The log could not be read: ${log.error.message}` : !event ? "Reading the log …" : html`
          As of version <b>${number(event.version)}</b> of ${number(Math.max(newest, versions.at(-1).version))}${log.loading ? " (still reading)" : ""}, ${""}
          <span title=${exact(event.at)}>${duration(event.at - (start ?? versions[0].at))} after the beginning</span> ·
          ${log.gap && "its beginning is no longer kept, so the task cannot be put together · "}${task?.status && html`<${State} state=${task.status.state} />`} · <span class="muted">${event.kind}</span>`}
      </p>
    </section>`;
}
