/** The queue of pending reviews: the subject as values, approve or deny with a comment, then the next one. */

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { post } from "./api.js";
import { Link, useKeys, useQuery, useTitle } from "./app.js";
import { Json, visible } from "./parts.js";
import { Failure, useRead } from "./polling.js";
import { Ago, plural, shortId, words } from "./words.js";

/** How long a chosen verdict waits for its confirmation, in milliseconds. */
const SURE = 6000;
/** The characters of the values that the queue shows of a review. */
const SUMMARY = 80;

export function page({ me }) {
  const [query, setQuery] = useQuery();
  const mine = query.mine === "1";
  const { value, error, at, again } = useRead("admin/reviews", mine ? { mine: 1 } : {});
  const [answered, setAnswered] = useState(new Set());
  const pending = (value ?? []).filter((review) => !answered.has(review.taskId));
  const index = Math.max(0, pending.findIndex((review) => review.taskId === query.task));
  const current = pending[index];
  const opened = useRef(null);
  useTitle(value === null ? "Reviews" : `(${pending.length}) Reviews`);

  const open = (next) => pending[next] && setQuery({ task: pending[next].taskId });
  useKeys({ j: () => open(index + 1), k: () => open(index - 1) });
  const done = (taskId) => {
    setAnswered(new Set(answered).add(taskId));
    const next = pending[index + 1] ?? pending[index - 1];
    setQuery({ task: next ? next.taskId : "" });
    opened.current?.focus();
    again();
  };
  return html`<div class="page">
    <header class="page-head"><h1>Reviews</h1><span class="muted">${value === null ? "Loading …" : plural(pending.length, "pending review")}</span>
      ${me?.authenticated && html`<label class="check"><input type="checkbox" checked=${mine} onChange=${(event) => setQuery({ mine: event.target.checked ? "1" : "" })} /> Only those that ask me</label>`}</header>
    ${error && html`<${Failure} error=${error} again=${again} at=${value ? at : 0} what="the reviews" />`}
    ${value !== null && pending.length === 0 && html`
      <div class="empty"><p>Nothing waits for a review.</p>
        <p class="muted">A task appears here when a rule of the policy asks a user, such as <code>review('supervisor@example.com')</code>.</p></div>`}
    ${pending.length > 0 && html`
    <div class="review-desk">
      <ol class="review-queue plain" aria-label="Pending reviews, the longest waiting first">
        ${pending.map((review, at) => html`
          <li key=${review.taskId}><button type="button" aria-current=${at === index ? "true" : null} onClick=${() => open(at)}>
            <b>${visible(review.function || "An answer")}</b>${summary(review) && html`<span class="sub summary">${summary(review)}</span>`}<span class="sub"><${Ago} time=${review.since} suffix="" /> · ${visible(review.agent)} · for ${visible(review.owner || "anonymous")}</span></button></li>`)}
      </ol>
      <section class="review" aria-label="The review" tabindex="-1" ref=${opened}>
        <${Review} key=${`${current.taskId} ${current.since}`} review=${current} me=${me} done=${() => done(current.taskId)} />
      </section>
    </div>`}</div>`;
}

/** Return the values that are reviewed on one line, by which reviews of one function can be told apart. */
function summary({ subject }) {
  if (typeof subject !== "object" || subject === null) return visible(String(subject ?? "")).slice(0, SUMMARY);
  const values = Object.values(subject).filter((value) => typeof value !== "object" && value !== "");
  return visible(values.join(" · ")).slice(0, SUMMARY);
}

/** One review. Its heading is what the rule says, never a text that a model wrote. */
function Review({ review, me, done }) {
  return html`
    <h2>${review.function ? html`May <code>${visible(review.function)}</code> be called?` : "May this answer be given?"}</h2>
    <p class="muted">Asks <b>${visible(review.user)}</b> · waits <${Ago} time=${review.since} suffix="" /> · agent ${visible(review.agent)} · owner ${visible(review.owner || "anonymous")} · ${""}
      <${Link} to=${`tasks/${encodeURIComponent(review.taskId)}`}>task ${shortId(review.taskId)} with its timeline</${Link}></p>
    <${Subject} review=${review} />
    ${review.rule && html`<${Rule} review=${review} />`}
    <${Verdict} review=${review} me=${me} done=${done} />`;
}

/** The rule that asks, as the policy has it where the caller may see the policy. */
function Rule({ review }) {
  const { value } = useRead("admin/agent", {}, 3_600_000);
  const policy = value?.policies.find((one) => one.agent === review.agent);
  const rule = policy?.rules.find((one) => one.name === review.rule);
  return html`
    <div><p class="label">The rule that asks: <code>${visible(review.rule)}</code></p>
      ${rule && html`<pre class="rule"><code>${visible(`${rule.action} ${rule.expression || rule.invoke}`)}</code></pre>`}</div>`;
}

function Subject({ review }) {
  const { subject } = review;
  if (subject === null || subject === undefined) return html`<p class="pre">${visible(review.text ?? "")}</p>`;
  if (typeof subject !== "object") return html`<p class="pre subject">${visible(String(subject))}</p>`;
  const entries = Array.isArray(subject) ? subject.map((value, index) => [String(index + 1), value]) : Object.entries(subject);
  return html`
    <table class="subject"><caption class="visually-hidden">What is reviewed</caption>
      <tbody>${entries.map(([name, value]) => html`
        <tr><th scope="row">${visible(words(name))}</th><td>${typeof value === "object" && value !== null ? html`<${Json} value=${value} />` : html`<span class="pre">${value === "" ? html`<i class="muted">empty</i>` : visible(String(value))}</span>`}</td></tr>`)}
      </tbody></table>`;
}

/** Approve or deny, with a confirmation, because a key is more easily pressed by accident than a button. */
function Verdict({ review, me, done }) {
  const [comment, setComment] = useState("");
  const [chosen, choose] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const confirm = useRef(null);
  const allowed = me?.canWrite !== false;
  useEffect(() => {
    if (!chosen) return undefined;
    confirm.current?.focus();
    const timer = setTimeout(() => choose(""), SURE);
    return () => clearTimeout(timer);
  }, [chosen]);
  useKeys({ a: () => allowed && choose("approve"), d: () => allowed && choose("deny"), Escape: () => choose("") });
  const send = async () => {
    setBusy(true);
    setError(null);
    try {
      await post(`admin/reviews/${encodeURIComponent(review.taskId)}`, { approved: chosen === "approve", comment, since: review.since });
      done();
    } catch (problem) {
      setError(problem);
      setBusy(false);
      choose("");
    }
  };
  return html`
    <div class="verdict">
      <label for="comment">Comment, which the agent also gets</label>
      <textarea id="comment" rows="2" value=${comment} onInput=${(event) => setComment(event.target.value)}></textarea>
      <div class="verdict-buttons">
        ${chosen
          ? html`<span>${chosen === "approve" ? "Approve this?" : "Deny this?"}</span>
              <button type="button" ref=${confirm} class=${chosen === "approve" ? "good" : "danger"} disabled=${busy} onClick=${send}>Yes, ${chosen}</button>
              <button type="button" disabled=${busy} onClick=${() => choose("")}>No</button>`
          : html`<button type="button" class="good" disabled=${!allowed} onClick=${() => choose("approve")}>Approve <kbd>a</kbd></button>
              <button type="button" class="danger" disabled=${!allowed} onClick=${() => choose("deny")}>Deny <kbd>d</kbd></button>`}
      </div>
      ${!allowed && html`<p class="muted">You may read here, but not answer.</p>`}
      ${error && html`<p class="failure" role="alert">${error.message}</p>`}
    </div>`;
}

/** The review of one task, for the page of the task. */
export function ReviewForm({ taskId, me, done }) {
  const { value, error, again } = useRead("admin/reviews", {}, 10_000);
  if (error && !value) return html`<${Failure} error=${error} again=${again} what="the review" />`;
  if (!value) return html`<p class="muted">Loading …</p>`;
  const review = value.find((one) => one.taskId === taskId);
  if (!review) return html`<p class="muted">Only the user who is asked sees what is reviewed.</p>`;
  const about = review.function ? html`May <code>${visible(review.function)}</code> be called?` : "May this answer be given?";
  return html`
    <p><b>${about}</b> <span class="muted">Asks ${visible(review.user)}</span></p>
    <${Subject} review=${review} /><${Verdict} key=${review.since} review=${review} me=${me} done=${done} />`;
}

