/**
 * The frame of the console: addresses, navigation, sign-in, keys and themes.
 *
 * How a page is added: write a module with
 *
 *     export function page({ params, query, me }) { … }    // returns vnodes; hooks may be used
 *
 * and a row in `PAGES`, with a style sheet. `params` are the parts of the address that begin with a colon, `query` is an
 * object of the values behind "?", and `me` is what `GET /admin/me` says about the caller, null where there is no operator
 * API. Module and style sheet are loaded when the page is opened first. Everything of preact comes from one file:
 *
 *     import { html, useEffect, useState } from "./vendor/preact.js";
 *     import { Link, go, useKeys, useQuery, useTitle } from "./app.js";
 *     import { get, post, call, ApiError } from "./api.js";
 *     import { follow } from "./stream.js";
 *     import { Json, Parts } from "./parts.js";
 *
 * Addresses in `go` and `Link` are below the console, such as "tasks?view=failed", or below the mount point if they
 * begin with a slash, such as "/chat". What agents and clients have written goes into vnodes as text, never as HTML,
 * and never as an object whose fields become attributes.
 */

import { card, get, isSignedIn, onSignIn, root, signIn, signInWays, version } from "./api.js";
import { html, render, useEffect, useErrorBoundary, useId, useLayoutEffect, useReducer, useRef, useState } from "./vendor/preact.js";

const chat = () => import("./chat.js");

/** Every page: its address below the mount point, its module, and its place in the navigation. */
const PAGES = [
  { path: "console", styles: "pages.css", load: () => import("./overview.js"), title: "Overview", icon: "home", key: "h" },
  { path: "chat", styles: "chat.css", load: chat, title: "Chat", icon: "chat", key: "c" },
  { path: "chat/:context", styles: "chat.css", load: chat, parent: "chat" },
  { path: "console/tasks", styles: "pages.css", load: () => import("./tasks.js"), title: "Tasks", icon: "list", key: "t" },
  { path: "console/tasks/:id", styles: "pages.css", load: () => import("./task.js"), parent: "console/tasks" },
  { path: "console/reviews", styles: "pages.css", load: () => import("./reviews.js"), title: "Reviews", icon: "review", key: "r" },
  { path: "console/agent", styles: "pages.css", load: () => import("./agent.js"), title: "Agent", icon: "agent", key: "a" },
  { path: "console/ops", styles: "pages.css", load: () => import("./ops.js"), title: "Operations", short: "Ops", icon: "chart", key: "o" },
];

/** Shapes of icons, in a field of 24 by 24. */
const ICONS = {
  home: "M4 11l8-7 8 7M6 9.5V20h12V9.5",
  chat: "M4 5h16v11H9l-5 4z",
  list: "M9 6h11M9 12h11M9 18h11M4.5 6h.01M4.5 12h.01M4.5 18h.01",
  review: "M12 3l7 3v5c0 5-3 8-7 10-4-2-7-5-7-10V6zM9 12l2 2 4-4",
  agent: "M6 8h12v10H6zM12 8V4M9.5 12.5v1M14.5 12.5v1M3 12v3M21 12v3",
  clip: "M20 11.5l-8 8a5 5 0 01-7-7l8.5-8.5a3.3 3.3 0 014.7 4.7L9.8 17a1.7 1.7 0 01-2.4-2.4l7.6-7.6",
  chart: "M4 20V4M4 20h16M8 16v-4M12 16V8M16 16v-6",
  more: "M5 12h.01M12 12h.01M19 12h.01",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false"><path d=${ICONS[name] ?? ""} /></svg>`;
}

// Addresses

const base = new URL(root).pathname;
const watchers = new Set();

/** Return the address of a place in the console for links. */
export function href(to) {
  const path = to.startsWith("/") ? to.slice(1) : to === "" ? "console" : to.startsWith("?") ? `${here().path}${to}` : `console/${to}`;
  return base + path;
}

/** Open a place. With `replace`, the back button skips the present one. */
export function go(to, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", href(to));
  watchers.forEach((watch) => watch());
}

function here() {
  const path = location.pathname.startsWith(base) ? location.pathname.slice(base.length) : "";
  return { path: path.replace(/\/+$/, ""), query: Object.fromEntries(new URLSearchParams(location.search)) };
}

function route(path) {
  const parts = path.split("/");
  for (const row of PAGES) {
    const names = row.path.split("/");
    if (names.length !== parts.length) continue;
    if (!names.every((name, index) => name.startsWith(":") ? parts[index] : name === parts[index])) continue;
    const params = {};
    try {
      names.forEach((name, index) => { if (name.startsWith(":")) params[name.slice(1)] = decodeURIComponent(parts[index]); });
    } catch {
      return null;
    }
    return { row, params };
  }
  return null;
}

/** A link to a place in the console; it opens without loading the page again. */
export function Link({ to, children, ...rest }) {
  return html`<a href=${href(to)} ...${rest}>${children}</a>`;
}

function onClick(event) {
  const link = event.target.closest?.("a[href]");
  const isPlain = event.button === 0 && !event.defaultPrevented && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  if (!link || !isPlain || link.target || link.hash || link.hasAttribute("download") || link.origin !== location.origin) return;
  const path = link.pathname.slice(base.length);
  if (!link.pathname.startsWith(base) || !/^(console|chat)(\/|$)/.test(path) || path.startsWith("console/static/")) return;
  event.preventDefault();
  if (link.href === location.href) return;
  go(`/${path}${link.search}`);
}

/** Return the values behind "?" and a function that changes some of them; an empty value removes one. */
export function useQuery() {
  const { query } = here();
  const set = (changes, { push = false } = {}) => {
    const next = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(changes)) {
      if (value === "" || value === null || value === undefined) next.delete(name);
      else next.set(name, value);
    }
    const text = next.toString();
    history[push ? "pushState" : "replaceState"](null, "", location.pathname + (text ? `?${text}` : ""));
    watchers.forEach((watch) => watch());
  };
  return [query, set];
}

/** Set the title of the tab. */
export function useTitle(title) {
  useEffect(() => { document.title = title ? `${title} · ${card.name}` : card.name; }, [title]);
}

// Keys

const tables = [];
let isKeyed = stored("errands-keys") !== "off";

/** Names of keys that are not letters, as the help shows them, and the usual meanings of the keys of a page. */
const MEANINGS = {
  j: "Next row", k: "Previous row", Enter: "Open", o: "Expand", e: "Next problem", E: "Previous problem", f: "Follow",
  x: "Select", ".": "Actions", a: "Approve", d: "Deny", "/": "Search", Escape: "Close",
};

/**
 * Handle keys while the page is shown: `{j: () => …}`, or `{j: {does: "Next row", run: () => …}}` for the help.
 *
 * Keys are ignored while the user types, and when single keys are switched off.
 */
export function useKeys(table) {
  const latest = useRef(table);
  latest.current = table;
  useEffect(() => {
    tables.push(latest);
    return () => { tables.splice(tables.indexOf(latest), 1); };
  }, []);
}

/** Elements that handle keys themselves. */
const TYPED = "input:not([type=checkbox], [type=radio], [type=range]), textarea, select, [contenteditable]";
let pending = "";

function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const isTyping = event.target.closest?.(TYPED);
  if (isTyping && event.key !== "Escape") return;
  if (document.querySelector("dialog[open]")) return;
  if (!isKeyed && event.key !== "Escape") return;
  // A focused button or link handles Enter and Space itself.
  if ((event.key === "Enter" || event.key === " ") && event.target.closest?.("button, a, summary, input")) return;
  if (pending === "g") {
    pending = "";
    const row = PAGES.find((one) => one.key === event.key);
    if (row) { event.preventDefault(); go(`/${row.path}`); }
    return;
  }
  if (event.key === "g") { pending = "g"; setTimeout(() => { pending = ""; }, 1500); return; }
  for (const table of tables.toReversed()) {
    const found = Object.hasOwn(table.current, event.key) ? table.current[event.key] : null;
    if (!found) continue;
    event.preventDefault();
    (found.run ?? found)(event);
    return;
  }
}

/** A dialog with a title. Escape and a click beside it close it. */
function Dialog({ title, close, children, ...rest }) {
  const dialog = useRef(null);
  const id = useId();
  useLayoutEffect(() => { dialog.current.showModal(); }, []);
  const onClick = (event) => { if (event.target === dialog.current) close(); };
  return html`
    <dialog ref=${dialog} aria-labelledby=${id} onClose=${close} onClick=${onClick} ...${rest}>
      <header class="dialog-head">
        <h2 id=${id}>${title}</h2><button type="button" class="quiet" aria-label="Close" onClick=${close}>✕</button>
      </header>
      ${children}
    </dialog>`;
}

function KeyHelp({ close }) {
  const [on, setOn] = useState(isKeyed);
  const own = tables.flatMap((table) => Object.entries(table.current)).map(([key, found]) => [key, found.does ?? MEANINGS[key] ?? ""]);
  const rows = [
    ...PAGES.filter((row) => row.key).map((row) => [`g ${row.key}`, row.title]),
    ...own.filter(([, does]) => does),
  ];
  const toggle = (event) => {
    isKeyed = event.target.checked;
    store("errands-keys", isKeyed ? "" : "off");
    setOn(isKeyed);
  };
  return html`
    <${Dialog} title="Keys" close=${close} class="keys">
      <dl>${rows.map(([key, does]) => html`
        <div><dt>${key.split(" ").map((one) => html`<kbd>${one}</kbd>`)}</dt><dd>${does}</dd></div>`)}
      </dl>
      <label class="check"><input type="checkbox" checked=${on} onChange=${toggle} /> Single keys are on</label>
    </${Dialog}>`;
}

// What the browser remembers

function stored(name) {
  try { return localStorage.getItem(name) ?? ""; } catch { return ""; }
}

function store(name, value) {
  try {
    if (value) localStorage.setItem(name, value);
    else localStorage.removeItem(name);
  } catch { /* A browser may forbid storage. */ }
}

const THEMES = { "": "System theme", light: "Light theme", dark: "Dark theme" };

function useTheme() {
  const [theme, setTheme] = useState(stored("errands-theme"));
  useLayoutEffect(() => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    store("errands-theme", theme);
  }, [theme]);
  const names = Object.keys(THEMES);
  return [theme, () => setTheme(names[(names.indexOf(theme) + 1) % names.length])];
}

// Signing in

/** Why a sign-in at a provider has failed. */
let signInProblem = "";

function SignIn({ close, canClose, isRefused }) {
  const dialog = useRef(null);
  const ways = signInWays();
  const [chosen, setChosen] = useState(ways[0].id);
  const [values, setValues] = useState(["", ""]);
  const [remember, setRemember] = useState(false);
  const [problem, setProblem] = useState(signInProblem);
  const way = ways.find((one) => one.id === chosen) ?? ways[0];
  useLayoutEffect(() => { dialog.current.showModal(); }, []);
  const submit = (event) => {
    event.preventDefault();
    if (way.discovery) {
      import("./sign-in.js").then(({ begin }) => begin(way, remember)).catch((error) => setProblem(error.message));
      return;
    }
    const given = way.fields.map((_, index) => values[index].trim());
    if (given.some((value) => !value)) return;
    signIn(way.read(given), remember);
    close();
  };
  const onCancel = (event) => { if (!canClose) event.preventDefault(); };
  const enter = (index, text) => setValues(values.map((value, at) => (at === index ? text : value)));
  return html`
    <dialog ref=${dialog} class="sign-in" aria-labelledby="sign-in-title" onCancel=${onCancel} onClose=${close}>
      <form onSubmit=${submit}>
        <h2 id="sign-in-title">Sign in to ${card.name}</h2>
        ${(problem || isRefused) && html`<p class="failure" role="alert">${problem || "That was not accepted."}</p>`}
        ${ways.length > 1 && html`
          <fieldset class="chips"><legend class="visually-hidden">How to sign in</legend>
            ${ways.map((one) => html`
              <label class="chip">
                <input type="radio" name="way" value=${one.id} checked=${one.id === way.id} onChange=${() => setChosen(one.id)} />
                ${one.label}
              </label>`)}
          </fieldset>`}
        ${way.fields.map((field, index) => html`
          <label class="field" key=${field}><span>${field}</span>
            <input type=${field === "User name" ? "text" : "password"} autocomplete="off" spellcheck="false" autofocus=${index === 0}
              value=${values[index]} onInput=${(event) => enter(index, event.target.value)} /></label>`)}
        <p class="muted">${way.hint}</p>
        <label class="check">
          <input type="checkbox" checked=${remember} onChange=${(event) => setRemember(event.target.checked)} />
          Remember it in this tab
        </label>
        <div class="dialog-buttons">
          ${canClose && html`<button type="button" onClick=${close}>Cancel</button>`}
          <button type="submit" class="primary">${way.discovery ? `Sign in at ${way.label}` : "Sign in"}</button>
        </div>
      </form>
    </dialog>`;
}

// The frame

const narrow = matchMedia("(max-width: 720px)");

function useNarrow() {
  const [isNarrow, setNarrow] = useState(narrow.matches);
  useEffect(() => {
    const changed = () => setNarrow(narrow.matches);
    narrow.addEventListener("change", changed);
    return () => narrow.removeEventListener("change", changed);
  }, []);
  return isNarrow;
}

function App() {
  const [, redraw] = useReducer((count) => count + 1, 0);
  const [me, setMe] = useState(undefined);
  const [asked, setAsked] = useState("");
  const [helped, setHelped] = useState(false);
  const [more, setMore] = useState(false);
  const isNarrow = useNarrow();
  const [epoch, setEpoch] = useState(0);
  const [theme, nextTheme] = useTheme();
  const { path, query } = here();
  const found = route(path);
  const current = found?.row.parent ?? found?.row.path;

  useEffect(() => {
    watchers.add(redraw);
    window.addEventListener("popstate", redraw);
    document.addEventListener("click", onClick);
    document.addEventListener("keydown", onKey);
    return onSignIn((isWanted) => {
      if (isWanted) { setAsked(isSignedIn() ? "refused" : "needed"); return; }
      setEpoch((count) => count + 1);
    });
  }, []);
  useEffect(() => {
    let isOld = false;
    get("admin/me").then(
      (value) => { if (!isOld) setMe(value); },
      () => { if (!isOld) setMe(null); },
    );
    return () => { isOld = true; };
  }, [epoch]);
  useKeys({ "?": { does: "This help", run: () => setHelped(true) } });

  const who = me?.authenticated ? me.owner : "";
  const asksWhoCalls = Object.keys(card.securitySchemes ?? {}).length > 0;
  const foot = html`
    ${(who || isSignedIn()) && html`<p class="who" title=${who}>${who || "Signed in"}</p>`}
    ${isSignedIn() && html`<button type="button" class="quiet" onClick=${() => signIn(null)}>Sign out</button>`}
    ${!isSignedIn() && asksWhoCalls && html`<button type="button" class="quiet" onClick=${() => setAsked("offered")}>Sign in</button>`}
    <button type="button" class="quiet" onClick=${nextTheme}>${THEMES[theme]}</button>
    ${!isNarrow && html`<button type="button" class="quiet" onClick=${() => setHelped(true)}>Keys <kbd>?</kbd></button>`}
    <p class="version">errands ${version}</p>`;
  return html`
    <a class="skip" href="#main">Skip to the content</a>
    <div class=${`frame at-${current?.split("/").pop() ?? "nowhere"}`}>
      <nav class="rail" aria-label="Pages">
        <${Link} to="" class="brand">
          <svg class="brand-mark" viewBox="0 0 32 32" aria-hidden="true">
            <rect width="32" height="32" rx="8" /><path d="M9 10h14M9 16h9M9 22h14" />
          </svg>
          <span class="brand-name">${card.name}</span>
        </${Link}>
        <ul>
          ${PAGES.filter((row) => row.title).map((row) => html`
            <li>
              <${Link} to=${`/${row.path}`} class="rail-link" title=${`${row.title} (g ${row.key})`}
                aria-current=${row.path === current ? "page" : undefined}>
                <${Icon} name=${row.icon} /><span>${isNarrow && row.short ? row.short : row.title}</span>
              </${Link}>
            </li>`)}
          ${isNarrow && html`
            <li><button type="button" class="rail-link" aria-haspopup="dialog" onClick=${() => setMore(true)}>
              <${Icon} name="more" /><span>More</span></button></li>`}
        </ul>
        ${!isNarrow && html`<div class="rail-foot">${foot}</div>`}
      </nav>
      <main id="main" tabindex="-1">
        ${me === undefined
          ? html`<p class="muted boot" role="status">Loading …</p>`
          : found === null
            ? html`
              <div class="page"><h1>Not found</h1>
                <p>There is no page at this address. <${Link} to="">Go to the overview</${Link}></p></div>`
            : html`<${Page} key=${`${current} ${epoch}`} row=${found.row} params=${found.params} query=${query} me=${me} />`}
      </main>
    </div>
    ${asked !== "" && html`<${SignIn} canClose=${asked === "offered"} isRefused=${asked === "refused"} close=${() => setAsked("")} />`}
    ${more && html`<${Dialog} title=${card.name} close=${() => setMore(false)}><div class="more">${foot}</div></${Dialog}>`}
    ${helped && html`<${KeyHelp} close=${() => setHelped(false)} />`}`;
}

const modules = new Map();
const sheets = new Map();

/** Load a style sheet once. A page is shown when it is there. */
export function loadStyles(name) {
  if (!sheets.has(name)) {
    sheets.set(name, new Promise((resolve, reject) => {
      const link = document.createElement("link");
      link.rel = "stylesheet";
      link.href = new URL(name, import.meta.url).href;
      link.onload = resolve;
      link.onerror = () => reject(new Error(`${name} is missing.`));
      document.head.append(link);
    }));
  }
  return sheets.get(name);
}

/** A page whose module is loaded when it is opened. A crash of the page does not affect the frame. */
function Page({ row, ...props }) {
  const [, redraw] = useReducer((count) => count + 1, 0);
  const [failure, setFailure] = useState(null);
  const [crash, recover] = useErrorBoundary((error) => console.error(error));
  const loaded = modules.get(row.load);
  // Before the effects of the page itself, which may set another title.
  useLayoutEffect(() => { document.title = row.title ? `${row.title} · ${card.name}` : card.name; }, [row]);
  useEffect(() => {
    setFailure(null);
    const load = async () => {
      const [module] = await Promise.all([row.load(), loadStyles(row.styles)]);
      modules.set(row.load, module);
      redraw();
    };
    if (!loaded) load().catch(setFailure);
  }, [row]);
  if (crash) {
    return html`
      <div class="page"><h1>${row.title ?? "This page"}</h1>
        <div class="failure" role="alert"><p>This page has crashed: ${String(crash.message ?? crash)}</p>
          <p><button type="button" onClick=${recover}>Show it again</button></p></div></div>`;
  }
  if (failure) {
    return html`
      <div class="page"><h1>${row.title ?? "This page"}</h1>
        <p class="failure" role="alert">This page could not be loaded. ${String(failure.message)}</p></div>`;
  }
  if (!loaded) return html`<p class="muted boot" role="status">Loading …</p>`;
  return html`<${loaded.page} ...${props} />`;
}

/** A component of a module that is loaded when it is shown first: `load` imports the module, `name` is the component. */
export function Later({ load, name, ...props }) {
  const [{ module, failure }, settle] = useState({});
  useEffect(() => { load().then((module) => settle({ module }), (failure) => settle({ failure })); }, []);
  if (failure) return html`<p class="failure" role="alert">This part could not be loaded. ${String(failure.message)}</p>`;
  return module ? html`<${module[name]} ...${props} />` : html`<p class="muted" role="status">Loading …</p>`;
}

/** The icon of the tab. As a blob it needs no request. */
function setIcon() {
  const drawing = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="8" fill="#3450c8"/>
    <path d="M9 10h14M9 16h9M9 22h14" stroke="#fff" stroke-width="3" stroke-linecap="round"/></svg>`;
  const link = document.createElement("link");
  link.rel = "icon";
  link.href = URL.createObjectURL(new Blob([drawing], { type: "image/svg+xml" }));
  document.head.append(link);
}

/** Show the console; at the address to which a provider leads back, sign in before. */
async function start() {
  if (here().path === "console/sign-in") {
    try {
      const { finish } = await import("./sign-in.js");
      await finish();
    } catch (error) { signInProblem = error.message; }
  }
  document.getElementById("app").replaceChildren();
  render(html`<${App} />`, document.getElementById("app"));
}

setIcon();
start();
