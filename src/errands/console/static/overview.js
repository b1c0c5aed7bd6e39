/** The first page: one sentence of health, counts that lead to filtered lists, and the last failures with their reasons. */

import { html } from "./vendor/preact.js";
import { Link, useTitle } from "./app.js";
import { visible } from "./parts.js";
import { Failure, useRead } from "./polling.js";
import { latest } from "./figures.js";
import { Ago, State, VIEWS, duration, plural, shortId } from "./words.js";

const MOST = 100;

export function page({ me }) {
  const filtered = Object.fromEntries(VIEWS.map(([name, , parameters]) => [name, parameters]));
  const flight = useRead("admin/tasks", { ...filtered.flight, limit: MOST }, 4000);
  const waits = useRead("admin/tasks", { ...filtered.waits, limit: MOST }, 4000);
  const failed = useRead("admin/tasks", { ...filtered.failed, limit: 10 }, 4000);
  const reviews = useRead("admin/reviews", {}, 4000);
  const figures = useRead(me && me.reach !== "agent" ? "" : "admin/figures", {}, 5000);
  useTitle("Overview");
  const reads = [flight, waits, failed];
  const broken = reads.find((read) => read.error);
  const known = flight.value && waits.value;
  const working = flight.value?.tasks.filter((task) => task.state === "working").length ?? 0;
  const retried = flight.value && { ...flight.value, tasks: flight.value.tasks.filter((task) => task.attempt > 1) };
  const queued = (flight.value?.tasks.length ?? 0) - working;
  const dead = figures.value ? latest(figures.value, "errands_outbox_dead") : 0;
  return html`<div class="page">
    <header class="page-head"><h1>${me?.agent || "Overview"}</h1><${Link} to="/chat" class="button primary">Chat with it</${Link}></header>
    ${broken && html`<${Failure} error=${broken.error} at=${broken.value ? broken.at : 0} what="the state of the agent" again=${() => reads.forEach((read) => read.again())} />`}
    ${known && html`<p class="health" role="status">${health({ working, queued, waits: waits.value.tasks.length, more: Boolean(waits.value.next), reviews: reviews.value?.length ?? 0, figures: figures.value, dead })}</p>`}
    <ul class="counts plain">
      <${Count} to="tasks?view=flight" title="In flight" read=${flight} />
      <${Count} to="tasks?view=waits" title="Wait for someone" read=${waits} tone="asks" />
      <${Count} to="tasks?view=retrying" title="Retrying" read=${{ value: retried }} tone="bad" />
      <${Count} to="reviews" title="Reviews" read=${{ ...reviews, value: reviews.value && { tasks: reviews.value } }} tone="asks" />
      ${dead > 0 && html`<li><${Link} to="ops"><b class="tone-bad">${dead}</b><span>Dead letters</span></${Link}></li>`}
    </ul>
    <section aria-labelledby="failures"><h2 id="failures">Last failures</h2>
      ${failed.value?.tasks.length === 0 && html`<p class="empty">No task has failed. When one does, its reason appears here.</p>`}
      ${failed.value?.tasks.length > 0 && html`
        <table class="tasks cards"><thead><tr><th scope="col">State</th><th scope="col">Task</th><th scope="col" class="right">When</th></tr></thead>
        <tbody>${failed.value.tasks.map((task) => html`
          <tr key=${task.id}><td><${State} state=${task.state} /></td>
          <td class="main-cell"><${Link} to=${`tasks/${encodeURIComponent(task.id)}`} class="row-link">${visible(task.words) || html`<i>no text</i>`}</${Link}>
            <span class="sub"><code>${shortId(task.id)}</code> <span class="reason">${visible(task.reason) || "no reason given"}</span></span></td>
          <td class="right" data-label="When"><${Ago} time=${task.statusAt} /></td></tr>`)}
        </tbody></table>
        <p><${Link} to="tasks?view=failed">All failed tasks</${Link}></p>`}
    </section></div>`;
}

function Count({ to, title, read, tone = "" }) {
  const count = read.value?.tasks.length;
  return html`<li><${Link} to=${to}><b class=${count && tone ? `tone-${tone}` : ""}>${count === undefined ? "–" : read.value.next ? `${count}+` : count}</b><span>${title}</span></${Link}></li>`;
}

/** Return one sentence about the state of the agent. */
export function health({ working, queued, waits, more = false, reviews, figures, dead }) {
  const said = [working ? `${working} working` : "Nothing is working"];
  if (queued) said.push(`${queued} queued`);
  if (waits) said.push(`${more ? "more than " : ""}${waits} ${waits === 1 ? "waits" : "wait"} for someone${reviews ? ` (${plural(reviews, "review")})` : ""}`);
  const age = figures ? latest(figures, "errands_queue_age_seconds") : null;
  if (age > 1) said.push(`the oldest has been queued for ${duration(age * 1000)}`);
  if (dead) said.push(`${plural(dead, "webhook")} given up`);
  return `${said.join(", ")}.${working + queued + waits + dead === 0 ? " All is quiet." : ""}`;
}
