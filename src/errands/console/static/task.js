/** The page of a task: its state in words, its timeline with replay, its artifacts, the raw wire, and its actions. */

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { get, post, root } from "./api.js";
import { Later, Link, go, useKeys, useQuery, useTitle } from "./app.js";
import { fold } from "./fold.js";
import { follow } from "./stream.js";
import { Part, Parts, copyText, fileSize, visible } from "./parts.js";
import { Failure } from "./polling.js";
import { Replay, useLog } from "./replay.js";
import { SpanList, Strip } from "./timeline.js";
import { Ago, State, aged, duration, isTerminal, millis, number, plural, shortId, shortState, stateWords, useNow } from "./words.js";

const TABS = [["timeline", "Timeline"], ["conversation", "Conversation"], ["artifacts", "Artifacts"], ["raw", "Raw"]];

const wire = () => import("./wire.js");

/** Texts with more characters are shown in part, so that they may grow fast. */
const LONG = 20_000;

/**
 * Follow a task: `{row, task, timeline, error, live, newest}`.
 *
 * The task is read once; after that each event of the stream is folded into it, as the server does. The row and the
 * timeline are read again after events other than chunks, with pauses of at least five times the time of a read.
 */
function useTask(id) {
  const [state, setState] = useState({ row: null, task: null, timeline: null, error: null, at: 0, live: "", newest: 0 });
  const again = useRef(() => {});
  useEffect(() => {
    const path = `admin/tasks/${encodeURIComponent(id)}`;
    const pending = { events: [], frame: 0, timer: 0, reading: false };
    let stopped = false, stream = null;
    const update = (change) => { if (!stopped) setState((old) => ({ ...old, ...(typeof change === "function" ? change(old) : change) })); };
    setState({ row: null, task: null, timeline: null, error: null, at: 0, live: "", newest: 0 });

    const read = async () => {
      clearTimeout(pending.timer);
      pending.timer = 0;
      if (pending.reading) { later(500); return; }
      pending.reading = true;
      const begun = performance.now();
      try {
        const [row, timeline] = await Promise.all([get(path), get(`${path}/timeline`)]);
        update((old) => ({ row, timeline, error: null, at: Date.now(), task: old.task && old.newest >= row.version ? old.task : row.task, newest: Math.max(old.newest, row.version) }));
        if (!stream && !stopped) listen(row);
      } catch (error) { update({ error }); }
      pending.reading = false;
      pending.pause = Math.max(400, 5 * (performance.now() - begun));
    };
    const later = (delay) => { if (!stopped) pending.timer ||= setTimeout(read, delay); };
    again.current = read;

    // Events of one frame are folded together: a fast stream paints once for each frame.
    const paint = () => {
      pending.frame = 0;
      const events = pending.events.splice(0);
      if (!events.length) return;
      const newest = events.at(-1).version;
      update((old) => ({
        task: fold(old.task, events.filter((event) => event.version > old.newest && event.data)),
        newest: Math.max(old.newest, newest),
      }));
      later(events.every((event) => event.kind === "artifact") ? 3000 : pending.pause ?? 400);
    };
    const listen = (row) => {
      if (isTerminal(row.state)) { update({ live: "ended" }); return; }
      let over = false;
      stream = follow(`${path}/stream`, {
        after: row.version,
        onState: (live) => { update({ live }); if (live === "ended") read(); },
        isOver: () => over,
        onEvent: (event) => {
          if (!event.version) { over = true; return; }  // the end of the log
          over ||= isTerminal(stateOf(event));
          pending.events.push(event);
          pending.frame ||= requestAnimationFrame(paint);
        },
        onGap: () => { update({ newest: 0 }); read(); },
      });
    };
    read();
    return () => {
      stopped = true;
      stream?.close();
      clearTimeout(pending.timer);
      cancelAnimationFrame(pending.frame);
    };
  }, [id]);
  return { ...state, again: () => again.current() };
}

/** Return a value that is updated once a second, for displays that should not follow each chunk. */
function useSettled(value) {
  const [settled, settle] = useState(value);
  const latest = useRef(value);
  latest.current = value;
  useEffect(() => {
    if (value === settled) return undefined;
    const timer = setTimeout(() => settle(latest.current), settled ? 1000 : 0);
    return () => clearTimeout(timer);
  }, [value !== settled, settled]);
  return settled;
}

/** Return the state after an event, undefined if it does not change the state. */
function stateOf(event) {
  return event?.data?.statusUpdate?.status.state ?? event?.data?.task?.status?.state;
}

export function page({ params, me }) {
  return html`<div class="page"><${TaskView} key=${params.id} id=${params.id} me=${me} /></div>`;
}

function TaskView({ id, me }) {
  const { row, task, timeline, error, at, live, newest, again } = useTask(id);
  const [query, setQuery] = useQuery();
  const [opened, setOpened] = useState(new Set(query.span ? [query.span] : []));
  const [replay, setReplay] = useState(null);
  const log = useLog(id, newest);
  const settled = useSettled(newest);
  const ended = row ? isTerminal(row.state) : false;
  useTitle(row ? `${stateWords(row.state)}: ${visible(row.words || shortId(id))}` : "Task");
  const now = useNow(ended ? 3_600_000 : 1000);
  const tab = query.tab ?? "timeline";
  const filters = useMemo(() => ({
    kinds: new Set((query.kinds ?? "").split(",").filter(Boolean)), problems: query.problems === "1", text: query.text ?? "",
  }), [query.kinds, query.problems, query.text]);
  const range = query.from && query.to ? [Number(query.from), Number(query.to)] : null;
  const end = timeline ? (ended ? Math.max(timeline.end ?? 0, ...timeline.spans.map((span) => span.until ?? span.at)) : Math.max(now, timeline.end ?? 0)) : 0;

  const select = (span) => setQuery({ span });
  const toggle = (span) => {
    const next = new Set(opened);
    if (!next.delete(span)) next.add(span);
    setOpened(next);
  };
  const spans = timeline?.spans ?? [];
  const step = (by, only = () => true) => {
    const index = spans.findIndex((span) => span.id === query.span);
    for (let at = index < 0 && by < 0 ? spans.length - 1 : index + by; at >= 0 && at < spans.length; at += by) {
      if (only(spans[at])) { select(spans[at].id); return; }
    }
  };
  const followed = query.follow === "1";
  useKeys({
    j: () => step(1), k: () => step(-1),
    e: () => step(1, (span) => span.problem), E: () => step(-1, (span) => span.problem),
    o: () => query.span && toggle(query.span), Enter: () => query.span && toggle(query.span),
    f: () => setQuery({ follow: followed ? "" : "1" }),
    "/": () => document.querySelector(".filters input[type=search]")?.focus(),
    Escape: () => select(""),
  });
  useEffect(() => {
    if (followed && spans.length) select(spans.at(-1).id);
  }, [followed, spans.length]);

  if (!row) {
    return error
      ? html`<h1>Task</h1>${error.status === 404 ? html`<p class="empty">There is no task <code>${id}</code>, or it is not yours.</p>` : html`<${Failure} error=${error} again=${again} what="this task" />`}`
      : html`<h1>Task</h1><p class="muted" role="status">Loading …</p>`;
  }
  const shownTask = replay?.task ?? task;
  const cursor = replay?.at ?? null;
  return html`
    <${Head} ...${{ row, task, timeline, end, now, live, id }} />
    ${error && html`<${Failure} error=${error} again=${again} at=${at} what="the newest state of this task" />`}
    <${Actions} ...${{ row, task, id, log, me, again }} />
    <${Matter} ...${{ row, task, again, me }} />
    <div class="tab-row"><nav class="tabs" aria-label="Parts of the task">
      ${TABS.map(([name, title]) => html`
        <button type="button" aria-current=${tab === name ? "page" : null} onClick=${() => setQuery({ tab: name === "timeline" ? "" : name }, { push: true })}>${title}${name === "artifacts" && shownTask?.artifacts?.length ? html` <span class="count">${shownTask.artifacts.length}</span>` : null}</button>`)}
    </nav>
    <button type="button" class="small" aria-expanded=${Boolean(query.version)} disabled=${!settled} onClick=${() => setQuery({ version: query.version ? "" : settled })}>Replay</button></div>
    <${Replay} ...${{ log, newest: settled, start: timeline?.start, version: query.version, setVersion: (version) => setQuery({ version }), setReplay }} />
    ${tab === "timeline" && timeline && html`
      ${timeline.gap && html`<p class="seam" role="note">Older events of this task are no longer kept. The timeline begins after them.</p>`}
      <${Strip} ...${{ timeline, end, selected: query.span, cursor, range, onSelect: (span) => { select(span); setOpened(new Set(opened).add(span)); },
        onRange: (next) => setQuery(next ? { from: next[0], to: next[1] } : { from: "", to: "" }) }} />
      <${SpanList} ...${{ timeline, end, filters, opened, cursor, selected: query.span, onSelect: select, onToggle: toggle, nests: me?.isOperator !== false,
        onFilter: (change) => setQuery(filterQuery({ ...filters, ...change })) }}>
        ${!ended && html`<button type="button" class="chip" aria-pressed=${followed} onClick=${() => setQuery({ follow: followed ? "" : "1" })}>Follow</button>`}
      </${SpanList}>
      ${Object.keys(timeline.hidden ?? {}).length > 0 && html`<p class="muted">Not shown here: ${Object.entries(timeline.hidden).map(([kind, count]) => `${number(count)} ${kind}`).join(", ")}. The raw log has them.</p>`}`}
    ${tab === "conversation" && html`<${Conversation} task=${shownTask} />`}
    ${tab === "artifacts" && html`<${Artifacts} task=${shownTask} live=${!ended && !replay} />`}
    ${tab === "raw" && html`<${Later} load=${wire} name="RawWire" ...${{ id, log, newest: settled }} />`}`;
}

function filterQuery({ kinds, problems, text }) {
  return { kinds: [...kinds].join(","), problems: problems ? "1" : "", text };
}

/** The state of the task in words. */
function Head({ row, task, timeline, end, now, live, id }) {
  const state = shortState(row.state);
  const since = millis(row.statusAt) ?? millis(row.updatedAt);
  const lease = millis(row.leaseUntil);
  const whole = (since ?? 0) - (millis(row.createdAt) ?? 0);
  const facts = [];
  if (state === "working" && row.worker) facts.push(html`held by <code>${row.worker}</code>`);
  if (lease && state === "working") facts.push(lease > now ? `lease ends in ${aged(lease - now)} unless it is extended` : "the lease has ended");
  if (row.attempt > 0) facts.push(`attempt ${row.attempt}${row.attempt <= row.maxAttempts ? ` of ${row.maxAttempts}` : ""}`);
  if (row.unread > 1) facts.push(`${row.unread} messages to do`);
  if (row.asks) facts.push(html`asks <b>${row.asks}</b>`);
  if (row.cancelRequested && !isTerminal(row.state)) facts.push("cancel requested");
  if (row.push) facts.push(plural(row.push === true ? 1 : row.push, "webhook"));
  const spent = timeline ? costs(timeline, end) : [];
  return html`
    <header class="task-head">
      <p class="crumbs"><${Link} to="tasks">Tasks</${Link}> <span aria-hidden="true">/</span> <code>${shortId(id)}</code></p>
      <h1>${visible(row.words) || `Task ${shortId(id)}`}</h1>
      <p class="sentence"><${State} state=${row.state} asks=${row.asks} />
        ${isTerminal(row.state) ? html` after ${duration(whole)}, <${Ago} time=${since} />` : html` for ${aged(now - since)}`}
        ${facts.map((fact) => html` · ${fact}`)}
        ${!isTerminal(row.state) && html`<span class=${`pill live-${live}`} role="status">${LIVE[live] ?? "Connecting"}</span>`}</p>
      ${spent.length > 0 && html`<ul class="costs">${spent.map(([name, value]) => html`<li><span class="muted">${name}</span> <b>${value}</b></li>`)}</ul>`}
      <p class="muted small-print">${row.agent && html`Agent ${row.agent} · `}owner ${row.owner || "anonymous"}${row.tenant ? ` · tenant ${row.tenant}` : ""} ·
        begun <${Ago} time=${row.createdAt} /> · version ${number(row.version)} · <code class="whole-id">${id}</code>
        ${row.parent && html` · delegated by <${Link} to=${`tasks/${encodeURIComponent(row.parent)}`}>${shortId(row.parent)}</${Link}>`}
        ${(row.children ?? []).map((child) => html` · delegated to <${Link} to=${`tasks/${encodeURIComponent(child)}`}>${shortId(child)}</${Link}>`)}</p>
    </header>`;
}

const LIVE = { live: "● Live", reconnecting: "◌ Reconnecting", paused: "‖ Paused", failed: "✗ Cut off", ended: "Ended" };

/** Return how the time of a task was spent, and its tokens: `[[name, words]]`. */
export function costs(timeline, end) {
  const lengths = { queued: [], model: [], tool: [], people: [] };
  let tokens = 0;
  for (const span of timeline.spans) {
    const piece = [span.at, span.until ?? (["running", "waiting", "asked"].includes(span.outcome) ? end : span.at)];
    if (span.lane === "model") tokens += (span.detail?.prompt ?? 0) + (span.detail?.completion ?? 0);
    const state = span.lane === "state" ? shortState(span.detail?.state ?? span.title) : "";
    if (state === "submitted") lengths.queued.push(piece);
    else if (/-required$/.test(state)) lengths.people.push(piece);
    else if (span.lane === "model" || span.lane === "tool") lengths[span.lane].push(piece);
  }
  const names = { queued: "Queued", model: "Model", tool: "Tools", people: "Waiting for people" };
  const found = Object.entries(lengths).map(([kind, pieces]) => [names[kind], covered(pieces)]).filter(([, length]) => length > 0);
  const shown = found.map(([name, length]) => [name, duration(length)]);
  return tokens ? [...shown, ["Tokens", number(tokens)]] : shown;
}

/** Return the time that the pieces cover. Overlaps count once. */
export function covered(pieces) {
  let sum = 0, until = -Infinity;
  for (const [from, to] of pieces.sort((one, other) => one[0] - other[0])) {
    sum += Math.max(0, to - Math.max(from, until));
    until = Math.max(until, to);
  }
  return sum;
}

/** The failure or the question, before everything else. */
function Matter({ row, task, again, me }) {
  const state = shortState(row.state);
  if (state === "failed" || state === "rejected") {
    return html`<section class="matter tone-bad" aria-label="Why it ended"><h2>${state === "failed" ? "Why it failed" : "Why it was rejected"}</h2>
      <p class="pre">${visible(row.reason) || "The agent gave no reason."}</p></section>`;
  }
  if (row.asks) {
    return html`<section class="matter tone-asks" aria-label="Review"><h2>Waits for a review by ${row.asks}</h2>
      <${Later} load=${() => import("./reviews.js")} name="ReviewForm" taskId=${row.id} me=${me} done=${again} /></section>`;
  }
  if (state === "input-required" || state === "auth-required") {
    return html`<section class="matter tone-asks" aria-label="Question"><h2>The agent asks</h2>
      ${task?.status?.message ? html`<${Parts} parts=${task.status.message.parts} />` : html`<p>${visible(row.reason)}</p>`}
      <p><${Link} to=${`/chat/${encodeURIComponent(row.contextId)}`} class="button primary">Answer in the chat</${Link}></p></section>`;
  }
  return null;
}

function Actions({ row, task, id, log, me, again }) {
  const [said, say] = useState("");
  const [sure, setSure] = useState(false);
  const [busy, setBusy] = useState(false);
  const allowed = me?.canWrite !== false;
  const doing = (what, act) => async () => {
    setBusy(true);
    setSure(false);
    try { say((await act()) ?? what); }
    catch (error) { say(error.message); }
    setBusy(false);
  };
  const cancel = doing("Cancel was requested.", async () => { await post(`admin/tasks/${encodeURIComponent(id)}/cancel`, {}); again(); });
  const retry = doing("Started again as a new task.", async () => {
    const made = await post(`admin/tasks/${encodeURIComponent(id)}/retry`, {});
    go(`tasks/${encodeURIComponent(made.id)}`);
  });
  const copy = (what, text) => doing(`Copied ${what}.`, () => copied(text));
  const download = doing("The log was downloaded.", async () => {
    const events = await log.all();
    save(`${id}.jsonl`, events.map((event) => JSON.stringify(event)).join("\n") + "\n");
  });
  const command = `errands tasks get ${root} ${id}`;
  return html`
    <div class="actions" role="group" aria-label="Actions">
      ${!isTerminal(row.state) && (sure
        ? html`<span>Cancel this task?</span><button type="button" class="danger" disabled=${busy} onClick=${cancel}>Yes, cancel</button>
            <button type="button" onClick=${() => setSure(false)}>No</button>`
        : html`<button type="button" class="danger" disabled=${busy || !allowed} onClick=${() => setSure(true)}>Cancel</button>`)}
      <button type="button" disabled=${busy || !allowed || row.canRetry === false} onClick=${retry}>Retry as a new task</button>
      ${row.contextId && html`<${Link} to=${`/chat/${encodeURIComponent(row.contextId)}`} class="button">Open the chat</${Link}>`}
      <button type="button" disabled=${!task} onClick=${copy("the request as a curl command", async () => (await wire()).curlOf(task))}>Copy as curl</button>
      <button type="button" onClick=${copy("the command", () => command)}>Copy command</button>
      <button type="button" disabled=${busy} onClick=${download}>Download log</button>
      <span class="said" role="status">${said}</span>
    </div>`;
}

/** Write a text to the clipboard. If that is not allowed, raise an error with the text. */
async function copied(text) {
  const words = await text();
  try { await copyText(words); }
  catch { throw new Error(`The browser does not allow copying here: ${words}`); }
}

function save(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function Conversation({ task }) {
  const messages = [...(task?.history ?? [])];
  const last = task?.status?.message;
  if (last && !messages.some((message) => message.messageId === last.messageId)) messages.push(last);
  if (!messages.length) return html`<p class="empty">No messages. The conversation of a task appears here as it continues.</p>`;
  return html`
    <ol class="messages plain">${messages.map((message) => html`
      <li class=${message.role === "ROLE_AGENT" ? "from-agent" : "from-user"} key=${message.messageId}>
        <h3>${message.role === "ROLE_AGENT" ? "Agent" : "User"}</h3><${Parts} parts=${message.parts} /></li>`)}
    </ol>`;
}

function Artifacts({ task, live }) {
  const artifacts = task?.artifacts ?? [];
  if (!artifacts.length) return html`<p class="empty">No artifacts${live ? " yet. What the agent produces appears here while it is written" : ""}.</p>`;
  return html`
    <div class="artifacts">${artifacts.map((artifact) => {
      const size = artifact.parts.reduce((sum, part) => sum + (part.text?.length ?? part.raw?.length ?? 0), 0);
      return html`
        <section class="artifact" key=${artifact.artifactId} aria-label=${`Artifact ${artifact.name || artifact.artifactId}`}>
          <h3>${artifact.name || artifact.artifactId} <span class="muted">${fileSize(size)}, ${plural(artifact.parts.length, "part")}</span></h3>
          ${artifact.description && html`<p class="muted">${artifact.description}</p>`}
          ${artifact.parts.map((part, index) => (part.text?.length > LONG
            ? html`<${LongText} key=${index} text=${part.text} live=${live} />`
            : html`<${Part} key=${index} part=${part} isOpen=${live && index === artifact.parts.length - 1} />`))}
        </section>`;
    })}</div>`;
}

/** The end of a growing text, or the beginning of a complete one, until the user asks for all of it. */
function LongText({ text, live }) {
  const [whole, setWhole] = useState(false);
  const rest = number(text.length - LONG);
  const hidden = html`<p class="muted">${rest} ${live ? "earlier" : "more"} characters. <button type="button" class="small" onClick=${() => setWhole(true)}>Show everything</button></p>`;
  return html`
    ${!whole && live && hidden}
    <pre class="plain-text" tabindex="0">${whole ? text : live ? text.slice(-LONG) : text.slice(0, LONG)}</pre>
    ${!whole && !live && hidden}`;
}
