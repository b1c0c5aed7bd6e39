/** The list of tasks: live, with filters and search from the address, and bulk cancel. */

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { get, post, root } from "./api.js";
import { Link, useKeys, useQuery } from "./app.js";
import { visible } from "./parts.js";
import { Failure, usePolled } from "./polling.js";
import { useWindowed } from "./windowed.js";
import { Ago, State, VIEWS, isTerminal, plural, shortId } from "./words.js";

const FIELDS = ["q", "agent", "owner", "context", "state"];
const PAGE = 50;

/** Return the parameters of the list for the query of the address. */
export function parametersOf(query) {
  const view = VIEWS.find(([name]) => name === (query.view ?? "")) ?? VIEWS[0];
  const own = Object.fromEntries(FIELDS.filter((name) => query[name]).map((name) => [name, query[name]]));
  return { ...view[2], ...own };
}

/** Return the pages with one of them replaced. A task stays in the first page that contains it. */
export function rowsOf(pages) {
  const seen = new Set();
  return pages.flatMap((page) => page.tasks).filter((task) => !seen.has(task.id) && seen.add(task.id));
}

/**
 * The pages that were loaded: `{pages, error, at, loading, more, again, visible}`. The first one is read again every two
 * seconds, as are those that `visible` names because they are on the screen.
 */
function usePages(parameters) {
  const key = JSON.stringify(parameters);
  const [state, setState] = useState({ key, pages: [], error: null, at: 0 });
  const visible = useRef([]);
  // What was read last, before it is drawn: the cursor of a page is that of the page before it.
  const newest = useRef(state);
  if (newest.current.key !== key) newest.current = { key, pages: [], error: null, at: 0 };
  const reading = useRef(Promise.resolve());
  const growing = useRef("");

  const readPage = async (index) => {
    if (newest.current.key !== key) return;
    const before = index === 0 ? "" : newest.current.pages[index - 1]?.next;
    if (index > 0 && !before) return;
    const result = await get("admin/tasks", { ...parameters, before, limit: PAGE }).then(
      (page) => ({ page, error: null, at: Date.now() }), (error) => ({ error, at: newest.current.at }),
    );
    if (newest.current.key !== key) return;
    const pages = [...newest.current.pages];
    if (result.page) pages[index] = result.page;
    // After the last page there are no others.
    if (result.page && !result.page.next) pages.length = index + 1;
    newest.current = { key, pages, error: result.error, at: result.at };
    setState(newest.current);
  };
  // One after the other, so that no page is read with the cursor of one that is just being replaced.
  const read = (indexes) => {
    reading.current = reading.current.then(async () => { for (const index of indexes()) await readPage(index); });
    return reading.current;
  };
  const again = () => read(() => [...new Set([0, ...visible.current])].filter((index) => index <= newest.current.pages.length));
  usePolled(again, 2000, [key]);
  const pages = state.key === key ? state.pages : [];
  const more = () => {
    if (growing.current === key) return;
    growing.current = key;
    read(() => [newest.current.pages.length]).finally(() => { growing.current = ""; });
  };
  const { error, at } = state.key === key ? state : { error: null, at: 0 };
  return { pages, error, at, loading: pages.length === 0 && !error, more: pages.at(-1)?.next ? more : null, again, visible };
}

export function page({ me }) {
  const [query, setQuery] = useQuery();
  const parameters = useMemo(() => parametersOf(query), [JSON.stringify(query)]);
  const { pages, error, at, loading, more, visible, again } = usePages(parameters);
  const tasks = useMemo(() => rowsOf(pages), [pages]);
  const [chosen, setChosen] = useState(new Set());
  const [current, setCurrent] = useState(-1);
  const rows = useWindowed(tasks.length, 57, (index) => tasks[index]?.id);
  const search = useRef(null);

  useEffect(() => {
    visible.current = [Math.floor(rows.from / PAGE), Math.floor(Math.max(0, rows.to - 1) / PAGE)];
    if (more && rows.to >= tasks.length - 10) more();
  }, [rows.from, rows.to, tasks.length]);
  useEffect(() => { setChosen(new Set()); setCurrent(-1); }, [JSON.stringify(parameters)]);

  const step = (by) => {
    const index = Math.max(0, Math.min(tasks.length - 1, current + by));
    setCurrent(index);
    rows.show(index);
    requestAnimationFrame(() => document.getElementById(`task-${tasks[index]?.id}`)?.querySelector("a")?.focus({ preventScroll: true }));
  };
  const toggle = (id) => {
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    setChosen(next);
  };
  const problem = (from, by) => {
    for (let index = from + by; index >= 0 && index < tasks.length; index += by) {
      if (tasks[index].reason || tasks[index].attempt > 1) { step(index - current); return; }
    }
  };
  useKeys({
    j: () => step(1), k: () => step(-1),
    x: () => tasks[current] && toggle(tasks[current].id),
    e: () => problem(current, 1), E: () => problem(current, -1),
    "/": () => search.current?.focus(),
    Escape: () => setChosen(new Set()),
  });

  const view = query.view ?? "";
  const wide = me?.reach && me.reach !== "scope";
  const inner = [me?.agent, ...(me?.innerAgents ?? [])].filter(Boolean);
  const narrowed = FIELDS.some((name) => query[name]);
  return html`<div class="page">
    <header class="page-head"><h1>Tasks</h1>
      <span class="muted">${loading && !tasks.length ? "Loading …" : html`${plural(tasks.length, "task")}${more ? ", and more below" : ""}`}</span></header>
    <div class="filters" role="group" aria-label="Quick filters">
      ${VIEWS.map(([name, title]) => html`
        <button type="button" class="chip" aria-pressed=${view === name} onClick=${() => setQuery({ view: name, state: "" }, { push: true })}>${title}</button>`)}
    </div>
    <div class="filters" role="search">
      <input type="search" ref=${search} class="grow" placeholder="Search an id or words of the message" aria-label="Search tasks"
        value=${query.q ?? ""} onInput=${(event) => setQuery({ q: event.target.value })} />
      ${inner.length > 1 && html`
        <select class="narrow" aria-label="Agent" value=${query.agent ?? ""} onChange=${(event) => setQuery({ agent: event.target.value })}>
          <option value="">All agents</option>${inner.map((name) => html`<option value=${name}>${name}</option>`)}</select>`}
      ${wide && html`<${Field} name="owner" title="Owner" ...${{ query, setQuery }} />`}
      <${Field} name="context" title="Conversation" ...${{ query, setQuery }} />
      ${narrowed && html`<button type="button" class="small" onClick=${() => setQuery(Object.fromEntries(FIELDS.map((name) => [name, ""])))}>Clear</button>`}
    </div>
    ${chosen.size > 0 && html`<${Bulk} ...${{ tasks, chosen, setChosen, again, canWrite: me?.canWrite !== false }} />`}
    ${error && html`<${Failure} error=${error} again=${again} at=${tasks.length ? at : 0} what="the tasks" />`}
    ${tasks.length > 0 && html`
    <table class=${`tasks cards ${error ? "stale" : ""}`} aria-rowcount=${more ? -1 : tasks.length + 1}>
      <thead><tr>
        <th scope="col" class="check-cell"><span class="visually-hidden">Select</span></th>
        <th scope="col">State</th><th scope="col">Task</th>${inner.length > 1 && html`<th scope="col">Agent</th>`}${wide && html`<th scope="col">Owner</th>`}
        <th scope="col">Attempt</th><th scope="col" class="right">Changed</th>
      </tr></thead>
      <tbody ref=${rows.ref}>
        ${rows.before > 0 && html`<tr aria-hidden="true"><td colspan="7" class="spacer" style=${{ height: `${rows.before}px` }}></td></tr>`}
        ${tasks.slice(rows.first, rows.last).map((task, offset) => {
          const index = rows.first + offset;
          return html`<${Row} key=${task.id} ...${{ task, index, wide, several: inner.length > 1, measure: rows.measure(index), current: index === current,
            chosen: chosen.has(task.id), toggle, focus: () => setCurrent(index) }} />`;
        })}
        ${rows.after > 0 && html`<tr aria-hidden="true"><td colspan="7" class="spacer" style=${{ height: `${rows.after}px` }}></td></tr>`}
      </tbody>
    </table>`}
    ${more && html`<p class="more"><button type="button" onClick=${more}>Load more</button></p>`}
    ${!loading && !error && tasks.length === 0 && html`<${Empty} filtered=${view !== "" || narrowed} scanned=${pages[0]?.scanned} />`}</div>`;
}

function Field({ name, title, query, setQuery }) {
  return html`
    <input type="text" class="narrow" placeholder=${title} aria-label=${title} value=${query[name] ?? ""} onInput=${(event) => setQuery({ [name]: event.target.value })} />`;
}

function Row({ task, index, wide, several, measure, current, chosen, toggle, focus }) {
  return html`
    <tr id=${`task-${task.id}`} ref=${measure} class=${`${current ? "current" : ""} ${chosen ? "chosen" : ""}`} aria-rowindex=${index + 2} onFocusIn=${focus}>
      <td class="check-cell"><input type="checkbox" aria-label=${`Select task ${shortId(task.id)}`} checked=${chosen} onChange=${() => toggle(task.id)} /></td>
      <td><${State} state=${task.state} asks=${task.asks} />${task.cancelRequested && !isTerminal(task.state) ? html`<span class="note">cancel requested</span>` : null}</td>
      <td class="main-cell">
        <${Link} to=${`tasks/${encodeURIComponent(task.id)}`} class="row-link">${visible(task.words) || html`<i>no text</i>`}</${Link}>
        <span class="sub"><code>${shortId(task.id)}</code>${task.asks ? html` · asks ${task.asks}` : null}
          ${task.reason && html` <span class=${`reason ${isTerminal(task.state) ? "" : "tone-asks"}`} title=${visible(task.reason)}>${visible(task.reason)}</span>`}</span>
      </td>
      ${several && html`<td data-label="Agent">${task.agent}</td>`}
      ${wide && html`<td data-label="Owner">${task.owner || html`<span class="muted">anonymous</span>`}</td>`}
      <td data-label="Attempt">${task.attempt > 1 ? html`<span class="retry">↻ ${task.attempt}</span>` : html`<span class="muted">${task.attempt || "–"}</span>`}</td>
      <td class="right" data-label="Changed"><${Ago} time=${task.updatedAt} /></td>
    </tr>`;
}

/** The actions on the selected tasks. */
function Bulk({ tasks, chosen, setChosen, again, canWrite }) {
  const [sure, setSure] = useState(false);
  const [done, setDone] = useState(null);
  const live = tasks.filter((task) => chosen.has(task.id) && !isTerminal(task.state));
  const cancel = async () => {
    setSure(false);
    const failures = [];
    for (const [index, task] of live.entries()) {
      setDone(`Canceling ${index + 1} of ${live.length} …`);
      try { await post(`admin/tasks/${encodeURIComponent(task.id)}/cancel`, {}); }
      catch (error) { failures.push(`${shortId(task.id)}: ${error.message}`); }
    }
    setDone(`Cancel was requested for ${plural(live.length - failures.length, "task")}.${failures.length ? ` Not for ${failures.join("; ")}` : ""}`);
    if (!failures.length) setTimeout(() => setChosen(new Set()), 1500);
    again();
  };
  return html`
    <div class="bulk" role="region" aria-label="Selected tasks">
      <b>${plural(chosen.size, "task")} selected</b>
      ${done ? html`<span role="status">${done}</span>` : sure
        ? html`<span>Cancel ${plural(live.length, "task")}?</span>
            <button type="button" class="danger" onClick=${cancel}>Yes, cancel</button><button type="button" onClick=${() => setSure(false)}>No</button>`
        : html`<button type="button" class="danger" disabled=${!live.length || !canWrite} onClick=${() => setSure(true)}>Cancel tasks</button>
            ${!live.length && html`<span class="muted">All of them have ended.</span>`}`}
      <button type="button" class="link" onClick=${() => setChosen(new Set())}>Clear the selection</button>
    </div>`;
}

function Empty({ filtered, scanned }) {
  return filtered
    ? html`<p class="empty">No task passes these filters${scanned ? ` (${plural(scanned, "task")} looked at)` : ""}.</p>`
    : html`<div class="empty"><p>No tasks yet. They appear here as soon as the agent receives a message, for example with</p>
        <pre><code>errands send ${root} "hello"</code></pre></div>`;
}
