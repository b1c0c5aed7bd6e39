/** Conversations with the agent: `/chat`, and `/chat/CONTEXT` for one that has begun. */

import { Icon, Later, Link, go, loadStyles, useKeys, useTitle } from "./app.js";
import { card, newId } from "./api.js";
import { Conversation, filePart, firstWords, isEnded, isPaused, listConversations } from "./conversation.js";
import { Copy, Parts, fileName, fileSize, readAddress, visible } from "./parts.js";
import { html, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "./vendor/preact.js";
import { Ago, State, shortId } from "./words.js";

/** The mark of the questions and answers of reviews. */
const REVIEW = "errands/review";
/** The distance from the end, in pixels, within which a conversation scrolls with new content. */
const NEAR = 120;
const MOST_SUGGESTIONS = 6;

export function page({ params, query, me }) {
  const [contextId, setContextId] = useState(() => params.context ?? newId());
  const [, redraw] = useReducer((count) => count + 1, 0);
  const conversation = useRef(null);
  const [listed, setListed] = useState(0);
  const [panel, setPanel] = useState("");
  const isNew = params.context === undefined;
  if (conversation.current === null) conversation.current = new Conversation(contextId, redraw);

  // The address names the conversation. One that begins on this page gets its address with its first message.
  useLayoutEffect(() => {
    const wanted = params.context ?? (conversation.current.tasks.size + conversation.current.outgoing.length > 0 ? newId() : contextId);
    if (wanted === contextId) return;
    conversation.current.close();
    conversation.current = new Conversation(wanted, redraw);
    setContextId(wanted);
    setPanel("");
  }, [params.context]);
  useEffect(() => {
    const { current } = conversation;
    if (isNew) { current.state = "ready"; redraw(); } else current.load();
    return () => current.close();
  }, [contextId]);

  const shown = conversation.current;
  const tasks = [...shown.tasks.values()];
  const openState = shown.open?.status.state ?? "";
  useEffect(() => { setListed((count) => count + 1); }, [tasks.length, openState]);
  const title = tasks.length > 0 ? firstWords(tasks[0].task) : "";
  const toggle = (name) => setPanel(panel === name ? "" : name);
  useTitle(title ? `${title} · Chat` : "Chat");
  useKeys({
    n: { does: "New conversation", run: () => go("/chat") },
    "/": { does: "Write a message", run: () => document.getElementById("message")?.focus() },
    w: { does: "Raw wire", run: () => toggle("wire") },
    ...(panel ? { Escape: { does: "Close", run: () => setPanel("") } } : {}),
  });

  const send = (parts, options) => {
    shown.send(parts, options);
    if (isNew) go(`/chat/${encodeURIComponent(contextId)}`, { replace: true });
  };
  const isEmpty = shown.state === "ready" && tasks.length === 0 && shown.outgoing.length === 0;
  return html`
    <div class=${`chat ${panel ? `with-${panel}` : ""}`}>
      <${Conversations} current=${isNew ? "" : contextId} epoch=${listed} isShown=${panel === "list"} close=${() => setPanel("")} />
      ${panel === "list" && html`
        <button type="button" class="backdrop" aria-label="Close the conversations" onClick=${() => setPanel("")}></button>`}
      <section class="talk" aria-label="Conversation">
        <header class="talk-head">
          <button type="button" class="quiet only-narrow" aria-expanded=${panel === "list"} onClick=${() => toggle("list")}>
            <${Icon} name="list" /><span class="visually-hidden">Conversations</span>
          </button>
          <h1>${title || (isEmpty ? "New conversation" : "Conversation")}</h1>
          <${LiveState} conversation=${shown} />
          <span class="talk-buttons">
            <button type="button" class="small quiet" disabled=${!shown.last?.taskId} aria-expanded=${panel === "wire"}
              onClick=${() => toggle("wire")}>Raw wire</button>
            <${Link} to="/chat" class="button small only-narrow">New</${Link}>
          </span>
        </header>
        <${Messages} conversation=${shown} me=${me} send=${send} isEmpty=${isEmpty} />
        <${Composer} key=${contextId} conversation=${shown} me=${me} send=${send} text=${query.text ?? ""} />
      </section>
      ${panel === "wire" && shown.last?.taskId && html`<${WirePanel} last=${shown.last} close=${() => setPanel("")} />`}
    </div>`;
}

// The conversations

function Conversations({ current, epoch, isShown, close }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    let isOld = false;
    // Several things change at once when a task begins or ends.
    const timer = setTimeout(() => listConversations().then(
      (list) => { if (!isOld) { setFound(list); setError(null); } },
      (problem) => { if (!isOld) setError(problem); },
    ), epoch > 1 ? 300 : 0);
    return () => { isOld = true; clearTimeout(timer); };
  }, [epoch, current]);
  return html`
    <nav class=${`conversations ${isShown ? "is-shown" : ""}`} aria-label="Conversations">
      <div class="conversations-head">
        <h2>Conversations</h2>
        <${Link} to="/chat" class="button small" title="New conversation (n)" onClick=${close}>New</${Link}>
      </div>
      ${error && html`<p class="failure" role="alert">${error.message}</p>`}
      ${found?.length === 0 && html`<p class="muted conversations-empty">What you talk about with the agent appears here.</p>`}
      <ul class="plain">${(found ?? []).map((one) => html`
        <li key=${one.contextId}>
          <${Link} to=${`/chat/${encodeURIComponent(one.contextId)}`} onClick=${close}
            aria-current=${one.contextId === current ? "page" : undefined}>
            <span class="conversation-title">${one.title || shortId(one.contextId)}</span>
            <span class="conversation-about">
              <${Ago} time=${one.at} />${!/COMPLETED/.test(one.state) && html` <${State} state=${one.state} />`}
            </span>
          </${Link}>
        </li>`)}
      </ul>
    </nav>`;
}

function LiveState({ conversation }) {
  const { live, liveError } = conversation;
  if (live === "reconnecting") {
    return html`<span class="live tone-asks" role="status" title=${liveError?.message ?? ""}>Reconnecting …</span>`;
  }
  if (live === "paused") return html`<span class="live tone-quiet" role="status">Paused</span>`;
  if (live === "failed" && liveError) return html`<span class="live tone-bad" role="status">${liveError.message}</span>`;
  return null;
}

// Messages

function Messages({ conversation, me, send, isEmpty }) {
  const scroller = useRef(null);
  const isNear = useRef(true);
  const [hasNew, setHasNew] = useState(false);
  const toEnd = () => {
    scroller.current.scrollTop = isEmpty ? 0 : scroller.current.scrollHeight;
    setHasNew(false);
  };
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = scroller.current;
    isNear.current = scrollHeight - scrollTop - clientHeight < NEAR;
    if (isNear.current && hasNew) setHasNew(false);
  };
  const tasks = [...conversation.tasks.values()];
  const sent = conversation.outgoing.length;
  useLayoutEffect(() => { isNear.current = true; toEnd(); }, [conversation, sent > 0]);
  useLayoutEffect(() => {
    if (isNear.current) toEnd();
    else if (!hasNew && conversation.isBusy) setHasNew(true);
  });
  // Markdown and pictures are loaded later and then make the page longer.
  useEffect(() => {
    const grown = new ResizeObserver(() => { if (isNear.current && scroller.current) toEnd(); });
    grown.observe(scroller.current.firstElementChild);
    return () => grown.disconnect();
  }, [isEmpty]);
  return html`
    <div class="talk-scroll" ref=${scroller} onScroll=${onScroll} tabindex="0" role="region" aria-label="Messages">
      <div class="talk-inner">
        ${conversation.state === "loading" && html`<p class="muted" role="status">Loading …</p>`}
        ${conversation.state === "failed" && html`
          <div class="failure" role="alert">
            <p>${conversation.error.message}</p>
            <button type="button" class="small" onClick=${() => conversation.load()}>Try again</button>
          </div>`}
        ${isEmpty && html`<${Welcome} send=${send} />`}
        ${conversation.hasMore && html`
          <p class="seam">Older tasks of this conversation are not shown. <${Link} to="tasks">All tasks</${Link}></p>`}
        ${tasks.map(({ task, isGap }) => html`
          <${TaskTurn} key=${task.id} task=${task} isGap=${isGap} conversation=${conversation} me=${me} send=${send} />`)}
        ${conversation.outgoing.map((one) => html`<${Outgoing} key=${one.message.messageId} entry=${one} conversation=${conversation} />`)}
        ${sent > 0 && conversation.outgoing.every((one) => !one.error) && html`<${Working} words="Sending" />`}
      </div>
      ${hasNew && html`<button type="button" class="to-end" onClick=${toEnd}>New messages ↓</button>`}
      <${Announcer} tasks=${tasks} />
    </div>`;
}

/** Tells screen readers in one sentence what has happened, instead of every token. */
function Announcer({ tasks }) {
  const [said, say] = useState("");
  const newest = tasks.at(-1)?.task;
  const state = newest?.status.state ?? "";
  const before = useRef("");
  useEffect(() => {
    const key = `${newest?.id} ${state}`;
    if (newest && before.current && before.current !== key && (isEnded(newest) || isPaused(newest))) {
      const answer = newest.artifacts?.at(-1)?.parts ?? newest.status.message?.parts ?? [];
      const text = answer.map((part) => part.text ?? "").join(" ").slice(0, 400);
      if (isPaused(newest)) say(`The agent asks: ${text}`);
      else if (/COMPLETED/.test(state)) say(`The agent has answered: ${text}`);
      else say(`The task has ended: ${state.slice(11).toLowerCase()}. ${text}`);
    }
    before.current = key;
  }, [newest?.id, state]);
  return html`<p class="visually-hidden" role="log" aria-live="polite">${said}</p>`;
}

function Welcome({ send }) {
  const skills = card.skills ?? [];
  const examples = skills.flatMap(({ name, examples: texts }) => (texts ?? []).slice(0, 2).map((text) => ({ text, skill: name })));
  return html`
    <div class="welcome">
      <span class="avatar large" aria-hidden="true">${initials(card.name)}</span>
      <h2>${card.name}</h2>
      <p class="lead">${card.description}</p>
      ${examples.length > 0
        ? html`
          <ul class="plain suggestions">${examples.slice(0, MOST_SUGGESTIONS).map(({ text, skill }) => html`
            <li><button type="button" onClick=${() => send([{ text }])}><b>${text}</b><span class="muted">${skill}</span></button></li>`)}
          </ul>`
        : html`
          <ul class="plain suggestions">${skills.slice(0, MOST_SUGGESTIONS).map((skill) => html`
            <li class="suggestion"><b>${skill.name}</b><span class="muted">${skill.description}</span></li>`)}
          </ul>`}
    </div>`;
}

function initials(name) {
  const words = visible(name).trim().split(/\s+/);
  return words.slice(0, 2).map((word) => [...word][0] ?? "").join("").toUpperCase();
}

function Outgoing({ entry, conversation }) {
  const { message, error } = entry;
  return html`
    <div class="turn">
      <article class="bubble from-user is-sending" aria-label="Your message"><${Parts} parts=${message.parts} /></article>
      ${error && html`
        <div class="failure" role="alert"><p>The message was not sent. ${error.message}</p>
          <p><button type="button" class="small" onClick=${() => conversation.again(message)}>Send it again</button>
            ${" "}<button type="button" class="small quiet" onClick=${() => conversation.discard(message)}>Discard it</button></p></div>`}
    </div>`;
}

/** A task: the messages of both sides in their order, its artifacts, and its state. */
function TaskTurn({ task, isGap, conversation, me, send }) {
  const history = task.history ?? [];
  const rows = [];
  // Agents from manifests write their answer as an artifact and as the message that ends the turn.
  const answers = [...history, task.status.message].filter((message) => message?.role === "ROLE_AGENT");
  const said = new Set(answers.map((message) => textOf(message.parts)));
  const artifacts = (task.artifacts ?? [])
    .filter((artifact) => artifact.name || !said.has(textOf(artifact.parts) || null))
    .map((artifact) => ({ artifact, place: conversation.placeOf(task, artifact.artifactId) }));
  const isWorking = !isEnded(task) && !isPaused(task);
  const open = isWorking ? task.artifacts?.at(-1)?.artifactId : null;
  const putArtifacts = (place) => {
    for (const one of artifacts) {
      if (one.place !== place) continue;
      const id = one.artifact.artifactId;
      rows.push(html`<${ArtifactBubble} key=${`artifact ${id}`} artifact=${one.artifact} isOpen=${id === open} />`);
    }
  };
  const question = isPaused(task) ? task.status.message : null;
  history.forEach((message, index) => {
    putArtifacts(index);
    // The open question is shown at the end, with the controls to answer it.
    if (message.messageId === question?.messageId) return;
    rows.push(html`<${MessageBubble} key=${message.messageId} message=${message} />`);
  });
  for (const place of new Set(artifacts.map((one) => one.place).filter((one) => one >= history.length))) putArtifacts(place);
  const final = task.status.message;
  if (isEnded(task) && final && !history.some((message) => message.messageId === final.messageId)) {
    rows.push(html`<${MessageBubble} key=${final.messageId} message=${final} />`);
  }
  return html`
    <div class="turn">
      ${isGap && html`<p class="seam">Some events are no longer kept; this is the task as it is now.</p>`}
      ${rows}
      ${isPaused(task) && html`
        <${Question} key=${question?.messageId ?? "question"} task=${task} conversation=${conversation} me=${me} send=${send} />`}
      ${isWorking && html`<${Working} words=${progressOf(task)} />`}
      <footer class="turn-foot">
        ${!isWorking && html`<${State} state=${task.status.state} asks=${isReview(question) ? "review" : ""} />`}
        <${Link} to=${`tasks/${encodeURIComponent(task.id)}`} class="turn-link">Task ${shortId(task.id)}</${Link}>
        <span class="muted"><${Ago} time=${task.status.timestamp} /></span>
      </footer>
    </div>`;
}

function progressOf(task) {
  const text = task.status.message?.parts?.map((part) => part.text ?? "").join(" ").trim();
  if (text) return visible(text).slice(0, 300);
  return task.status.state === "TASK_STATE_SUBMITTED" ? "Waiting in the queue" : task.artifacts?.length ? "Writing" : "Working";
}

function textOf(parts) {
  return (parts ?? []).map((part) => part.text ?? "").join("").trim();
}

function isReview(message) {
  return Boolean(message?.metadata && Object.hasOwn(message.metadata, REVIEW));
}

function Working({ words }) {
  return html`<p class="working"><span class="dots" aria-hidden="true"><i></i><i></i><i></i></span> ${words}</p>`;
}

function MessageBubble({ message }) {
  const isUser = message.role === "ROLE_USER";
  return html`
    <article class=${`bubble ${isUser ? "from-user" : "from-agent spoken"}`} aria-label=${isUser ? "Your message" : "Message of the agent"}>
      <${Parts} parts=${message.parts.filter((part) => !isSchema(part))} /></article>`;
}

function isSchema(part) {
  return part?.mediaType === "application/schema+json";
}

function ArtifactBubble({ artifact, isOpen }) {
  const text = useMemo(() => artifact.parts.map((part) => part.text ?? "").join("\n").trim(), [artifact]);
  const label = artifact.name ? `Artifact ${visible(artifact.name)}` : "Artifact";
  return html`
    <article class="bubble from-agent product" aria-label=${label} aria-busy=${isOpen}>
      ${(artifact.name || artifact.description) && html`
        <header class="product-head"><b>${artifact.name}</b> <span class="muted">${artifact.description}</span></header>`}
      <${Parts} parts=${artifact.parts} isOpen=${isOpen} />
      ${text && !isOpen && html`<div class="bubble-tools"><${Copy} text=${text} /></div>`}
    </article>`;
}

// Questions

/** A paused task: its question, and the controls to answer it. */
function Question({ task, conversation, me, send }) {
  const message = task.status.message;
  const [modules, setModules] = useState({});
  const review = isReview(message);
  const parts = message?.parts ?? [];
  const hasSchema = parts.some(isSchema);
  const isAuth = task.status.state === "TASK_STATE_AUTH_REQUIRED";
  useEffect(() => {
    const load = async () => {
      if (review) {
        const [{ ReviewForm }] = await Promise.all([import("./reviews.js"), loadStyles("pages.css")]);
        setModules({ ReviewForm });
      } else if (hasSchema) {
        const { SchemaForm, schemaOf } = await import("./form.js");
        setModules({ SchemaForm, schema: schemaOf(message) });
      }
    };
    // Without them, the question is answered in words.
    load().catch(() => {});
  }, [review, hasSchema]);
  const [inWords, setInWords] = useState(false);
  const answer = (answered) => send(answered, { taskId: task.id });
  const writeInstead = () => {
    setInWords(true);
    document.getElementById("message")?.focus();
  };
  if (review) {
    return html`
      <article class="bubble question" aria-label="Review"><p class="label">A rule wants a review</p>
        ${modules.ReviewForm
          ? html`<${modules.ReviewForm} taskId=${task.id} me=${me} done=${() => conversation.reviewed(task.id)} />`
          : html`<p class="muted">Loading …</p>`}
      </article>`;
  }
  const wanted = isAuth ? parts.find((part) => part.data && typeof part.data === "object" && !isSchema(part))?.data : null;
  const shown = parts.filter((part) => !isSchema(part) && !(isAuth && part.data === wanted && wanted));
  return html`
    <article class="bubble question" aria-label=${isAuth ? "The agent needs a sign-in" : "The agent asks"}>
      <p class="label">${isAuth ? "The agent needs you to sign in somewhere" : "The agent asks"}</p>
      <${Parts} parts=${shown} />
      ${isAuth && html`<${AuthDetails} wanted=${wanted ?? {}} />`}
      ${isAuth && html`
        <p><button type="button" class="primary" onClick=${() => answer([{ text: "I have signed in." }])}>I have signed in</button></p>`}
      ${modules.schema && !inWords && html`
        <${modules.SchemaForm} schema=${modules.schema}
          onAnswer=${(value) => answer([{ data: value, mediaType: "application/json" }])} />
        <p><button type="button" class="small quiet" onClick=${writeInstead}>Answer in words instead</button></p>`}
      ${!isAuth && (!hasSchema || inWords) && html`<p class="muted">Write your answer below.</p>`}
    </article>`;
}

function AuthDetails({ wanted }) {
  const address = typeof wanted.authUrl === "string" ? readAddress(wanted.authUrl) : null;
  const schemes = Array.isArray(wanted.schemes) ? wanted.schemes.filter((one) => typeof one === "string") : [];
  return html`
    <dl class="facts">
      ${address && html`
        <div><dt>Where</dt><dd>
          <a class="button" href=${address.href} target="_blank" rel="noopener noreferrer nofollow">Open ${address.host} ↗</a>
        </dd></div>`}
      ${typeof wanted.authUrl === "string" && !address && html`<div><dt>Where</dt><dd>${visible(wanted.authUrl)}</dd></div>`}
      ${schemes.length > 0 && html`<div><dt>How</dt><dd>${visible(schemes.join(", "))}</dd></div>`}
      ${typeof wanted.credentialsHint === "string" && html`<div><dt>Hint</dt><dd>${visible(wanted.credentialsHint)}</dd></div>`}
    </dl>`;
}

// Writing

function Composer({ conversation, me, send, text: prefilled }) {
  const [text, setText] = useState(prefilled);
  const [files, setFiles] = useState([]);
  const [problem, setProblem] = useState("");
  const [isSending, setSending] = useState(false);
  const [isStopping, setStopping] = useState(false);
  const [isOver, setOver] = useState(false);
  const [asJson, setAsJson] = useState(false);
  const [metadata, setMetadata] = useState("");
  const [hasOptions, setHasOptions] = useState(false);
  const area = useRef(null);
  const picker = useRef(null);
  const { open, isBusy } = conversation;
  const canWrite = me?.canWrite !== false;
  const isAsked = open !== null && isPaused(open);
  const hint = !canWrite ? "You may read here, but not write." : isAsked ? "Write your answer" : `Message ${card.name}`;
  const isEmpty = !text.trim() && files.length === 0;

  useLayoutEffect(() => {
    area.current.style.height = "auto";
    area.current.style.height = `${Math.min(area.current.scrollHeight + 2, 260)}px`;
  }, [text]);
  useEffect(() => {
    if (matchMedia("(hover: hover)").matches) area.current.focus({ preventScroll: true });
    if (prefilled) history.replaceState(null, "", location.pathname);
  }, []);
  useEffect(() => { if (!isBusy) setStopping(false); }, [isBusy]);

  const add = (list) => { setProblem(""); setFiles((old) => [...old, ...list].slice(0, 20)); };
  const submit = async (event) => {
    event?.preventDefault();
    if (isSending || isEmpty) return;
    let extra;
    const parts = [];
    try {
      if (metadata.trim()) extra = asObject(JSON.parse(metadata));
      if (asJson && text.trim()) parts.push({ data: JSON.parse(text), mediaType: "application/json" });
      else if (text.trim()) parts.push({ text });
    } catch (error) {
      setProblem(`This is not valid JSON: ${error.message}`);
      return;
    }
    setSending(true);
    setProblem("");
    try {
      for (const file of files) parts.push(await filePart(file, me?.maxUploadBytes));
      send(parts, { metadata: extra });
      setText("");
      setFiles([]);
    } catch (error) {
      setProblem(error.message);
    }
    setSending(false);
    area.current?.focus();
  };
  const stop = async () => {
    setStopping(true);
    try {
      await conversation.cancel();
    } catch (error) {
      setProblem(error.message);
      setStopping(false);
    }
  };
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    submit(event);
  };
  const onPaste = (event) => {
    const pasted = [...(event.clipboardData?.files ?? [])];
    if (pasted.length > 0) { event.preventDefault(); add(pasted); }
  };
  const onPick = (event) => {
    add([...event.target.files]);
    event.target.value = "";
  };
  const onDrop = (event) => {
    event.preventDefault();
    setOver(false);
    add([...(event.dataTransfer?.files ?? [])]);
  };
  return html`
    <form class=${`composer ${isOver ? "is-over" : ""}`} onSubmit=${submit} onDrop=${onDrop} onDragLeave=${() => setOver(false)}
      onDragOver=${(event) => { if ([...event.dataTransfer.types].includes("Files")) { event.preventDefault(); setOver(true); } }}>
      ${problem && html`<p class="failure" role="alert">${problem}</p>`}
      ${files.length > 0 && html`<ul class="plain attached">${files.map((file, index) => html`
        <li key=${index}><span>${fileName(file.name)}</span> <span class="muted">${fileSize(file.size)}</span>
          <button type="button" class="small quiet" aria-label=${`Remove ${fileName(file.name)}`}
            onClick=${() => setFiles(files.filter((_, at) => at !== index))}>✕</button></li>`)}</ul>`}
      ${hasOptions && html`
        <div class="options">
          <label class="check">
            <input type="checkbox" checked=${asJson} onChange=${(event) => setAsJson(event.target.checked)} />
            Send what I write as JSON data
          </label>
          <label class="field">
            <span>Metadata of the message, as a JSON object</span>
            <input class="mono" type="text" spellcheck="false" placeholder="{}" value=${metadata}
              onInput=${(event) => setMetadata(event.target.value)} />
          </label>
        </div>`}
      <div class="composer-box">
        <label class="visually-hidden" for="message">Message</label>
        <textarea id="message" ref=${area} rows="1" class=${asJson ? "mono" : ""} disabled=${!canWrite} placeholder=${hint}
          value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${onKeyDown} onPaste=${onPaste}></textarea>
        <div class="composer-buttons">
          <input type="file" multiple hidden ref=${picker} onChange=${onPick} />
          <button type="button" class="quiet" aria-label="Attach files" title="Attach files" disabled=${!canWrite}
            onClick=${() => picker.current.click()}><${Icon} name="clip" /></button>
          <button type="button" class="quiet" aria-expanded=${hasOptions} onClick=${() => setHasOptions(!hasOptions)}>Options</button>
          <span class="composer-hint muted">Enter sends, Shift+Enter begins a line</span>
          ${isBusy && open && html`
            <button type="button" class="stop" disabled=${isStopping} onClick=${stop}>${isStopping ? "Stopping …" : "Stop"}</button>`}
          <button type="submit" class="primary" disabled=${!canWrite || isSending || isEmpty}>${isSending ? "Sending …" : "Send"}</button>
        </div>
      </div>
    </form>`;
}

function asObject(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error("it must be an object");
  return value;
}

/** The wire of the last exchange. Its module is loaded when it is opened. */
function WirePanel({ last, close }) {
  return html`
    <aside class="wire-panel" aria-label="Raw wire of the last exchange">
      <header class="dialog-head">
        <h2>Raw wire</h2><button type="button" class="quiet" aria-label="Close" onClick=${close}>✕</button>
      </header>
      <${Later} load=${() => import("./exchange.js")} name="Exchange" last=${last} />
    </aside>`;
}
